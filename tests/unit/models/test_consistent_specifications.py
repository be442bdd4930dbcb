"""Two checks that specify one obligation over events accept the same sequences of them, up to eight events.

Sequences are tried in order of their length, and continued while every specification accepts them; two that lead all
specifications to the same state are continued once. The first on which two disagree is the shortest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, product
from typing import Any

import pytest
import window_specifications as specs
from window_specifications import (
    ANY_SCHEDULE,
    BUFFER,
    PROOFS,
    SCHEDULES,
    SCHEDULING_SPEC,
    SYNCHRONISING_SPEC,
    TABLE_SPEC,
    Data,
    Judged,
    Spec,
    Trace,
)

from gradproof.core.protocol import Event, State, window_sizes
from models.accumulation.loop import Accumulation, Config, MicroBatch
from models.accumulation.window_bugs import SCHEDULING, SYNCHRONISING, Loop, allowing, bent
from symbolic.accumulation import window as facts
from symbolic.systems.contracts import windows_of

LONGEST = 8
DATA = tuple(
    Data(sizes, scaled)
    for sizes in ((1, 1, 1, 1), (2, 2), (2, 1), (1, 2), (3, 1), (4,), (2, 2, 2))
    for scaled in (False, True)
)
PROFILES: dict[str, tuple[Spec, ...]] = {
    "the buffer": (TABLE_SPEC, *(PROOFS[f"KANI-GA-{n:03d}"] for n in (11, 12, 13, 14, 15))),
    "schedules": (SCHEDULING_SPEC, PROOFS["KANI-GA-013"], PROOFS["KANI-GA-017"]),
    "one sync a window": (SYNCHRONISING_SPEC, PROOFS["KANI-GA-013"], PROOFS["KANI-GT-303"]),
}
"""The table leaves to loops whether the schedule follows each step, and whether the ranks are summed once."""


def disagreement(topic: str, event: Event, found: Sequence[tuple[Spec, bool]]) -> str:
    """Which two of those that decide a topic at an event disagree, in words; nothing where they do not."""
    exact = [(spec, refuses) for spec, refuses in found if not spec.necessary]
    refusing = [spec for spec, refuses in exact if refuses]
    taking = [spec for spec, refuses in exact if not refuses]
    if refusing and taking:
        return f"{topic}: {refusing[0].check} refuses {event.value}, and {taking[0].check} takes it"
    for spec, refuses in found:
        if spec.necessary and refuses and taking:
            return f"{topic}: {spec.check} refuses {event.value}, and {taking[0].check} takes it"
    return ""


def judged(specs_: Sequence[Spec], event: Event, broken: Sequence[frozenset[str]]) -> tuple[bool, str]:
    """Whether an act is refused, by all that decide a topic; or which two disagree about one."""
    words, refused = "", False
    for topic in dict.fromkeys(t for spec in specs_ for t, events in spec.decides.items() if event in events):
        found = [
            (spec, topic in one)
            for spec, one in zip(specs_, broken, strict=True)
            if event in spec.decides.get(topic, ())
        ]
        said = disagreement(topic, event, found)
        refused |= not said and any(refuses for spec, refuses in found if not spec.necessary)
        words = words or said
    return refused, "" if refused else words  # the first broken rule ends a trace: of the others nobody is asked


def frozen(state: Any) -> Any:
    """A state as something that can be compared."""
    if isinstance(state, dict):
        return tuple(sorted(state.items()))
    return tuple(frozen(part) for part in state) if isinstance(state, tuple) else state


def first_disagreement(specs_: Sequence[Spec], data: Data, longest: int = LONGEST) -> tuple[int, str] | None:
    """The length of the shortest sequence on which two specifications disagree, and the sequence with both of them."""
    start = tuple(spec.start(data) for spec in specs_)
    queue = deque([((), start, 0)])
    known = {(frozen(start), 0)}
    while queue:
        events, states, seen = queue.popleft()
        for event in Event:
            if event is Event.ACCUMULATE and seen == data.total:
                continue
            made = [spec.step(data, state, event, seen) for spec, state in zip(specs_, states, strict=True)]
            refused, words = judged(specs_, event, [broken for _, broken in made])
            if words:
                return len(events) + 1, f"{words}: {Trace(data, (*events, event))}"
            after, now = tuple(state for state, _ in made), seen + (event is Event.ACCUMULATE)
            ends = event is Event.END or len(events) + 1 == longest
            if not refused and not ends and (key := (frozen(after), now)) not in known:
                known.add(key)
                queue.append(((*events, event), after, now))
    return None


@pytest.mark.parametrize("profile", PROFILES)
def test_specifications_of_one_obligation_agree_on_every_event(profile: str) -> None:
    found = [one for data in DATA if (one := first_disagreement(PROFILES[profile], data)) is not None]
    assert not found, min(found)[1]


# -- Checks that judge whole runs.


def traces(data: Data, specs_: Sequence[Spec], longest: int = LONGEST) -> Iterator[Trace]:
    """Whole runs that some of the specifications takes: nothing is clipped, scaled or summed over ranks."""
    others = [e for e in Event if e not in (Event.CLIP, Event.UNSCALE, Event.SYNC)]
    queue = deque([((), tuple(spec.start(data) for spec in specs_), 0)])
    while queue:
        events, states, seen = queue.popleft()
        for event in others:
            if event is Event.ACCUMULATE and seen == data.total:
                continue
            made = [
                (None, frozenset(["before"])) if state is None else spec.step(data, state, event, seen)
                for spec, state in zip(specs_, states, strict=True)
            ]
            if all(broken for _, broken in made):
                continue
            after = tuple(None if broken else state for state, broken in made)
            if event is Event.END:
                yield Trace(data, (*events, event))
            elif len(events) + 1 < longest:
                queue.append(((*events, event), after, seen + (event is Event.ACCUMULATE)))


def accepted(spec: Spec, trace: Trace) -> bool:
    """Whether a specification of single events takes a whole run."""
    state, seen = spec.start(trace.data), 0
    for event in trace.events:
        state, broken = spec.step(trace.data, state, event, seen)
        if broken:
            return False
        seen += event is Event.ACCUMULATE
    return True


WHOLE: dict[str, Judged] = {
    "KANI-GA-017": lambda trace: accepted(PROOFS["KANI-GA-017"], trace),
    "the loop SCHEDULING": lambda trace: accepted(SCHEDULING_SPEC, trace),
    "CROSS-GA-004": specs.cross_ga_004,
}
"""What decides the schedule of a run whose buffer is treated as the table says."""
LESS: dict[str, Judged] = {"CROSS-GT-402": specs.cross_gt_402}
"""What sees no more than how many schedules follow each micro-batch: what it refuses, each of the others refuses."""
COMPLETE = tuple(Data(sizes) for sizes in ((1,), (2,), (3,), (1, 1), (2, 1), (2, 2)))


@cache
def complete() -> tuple[Trace, ...]:
    """Runs that have every micro-batch, and whose buffer is treated as the table says: schedules alone may be wrong."""
    runs = chain.from_iterable(traces(data, (ANY_SCHEDULE,)) for data in COMPLETE)
    return tuple(run for run in runs if run.events.count(Event.ACCUMULATE) == run.data.total)


def parted(trace: Trace, whole: dict[str, Judged], topic: str = SCHEDULES) -> str:
    """Which two checks disagree on a run, in words; nothing where they do not."""
    answers = {check: answer for check, judge in whole.items() if (answer := judge(trace)) is not None}
    taking = [check for check, answer in answers.items() if answer]
    refusing = [check for check, answer in answers.items() if not answer]
    return f"{topic}: {refusing[0]} refuses, and {taking[0]} takes: {trace}" if taking and refusing else ""


def test_checks_of_whole_runs_agree_on_the_schedule() -> None:
    runs = complete()
    assert sum(bool(trace.skipped) for trace in runs) > 100
    wrong = [(len(trace.events), words) for trace in runs if (words := parted(trace, WHOLE))]
    for trace in runs:
        lesser = {check: judge for check, judge in LESS.items() if judge(trace) is False}
        wrong += [(len(trace.events), words) for words in [lesser and parted(trace, {**WHOLE, **lesser})] if words]
    assert not wrong, min(wrong)[1]


BY_TABLE: dict[str, Judged] = {
    "the table": lambda trace: accepted(TABLE_SPEC, trace),
    "the trace check": specs.replayed,
}


def test_the_trace_check_is_the_table() -> None:
    """On whole runs that the table or the proofs take, right ones and wrong ones."""
    every = (TABLE_SPEC, PROOFS["KANI-GA-013"])
    runs = chain.from_iterable(traces(data, every, 6) for data in COMPLETE[:4])
    assert [words for trace in runs if (words := parted(trace, BY_TABLE))] == []


def test_what_watch_refutes_by_events_the_table_refuses() -> None:
    """Watch states less than the table. So that it states something, it refutes some of the runs."""
    runs = chain.from_iterable(traces(data, (ANY_SCHEDULE, PROOFS["KANI-GA-013"]), 6) for data in COMPLETE)
    refuted = [trace for trace in runs if not specs.watched(trace)]
    assert len(refuted) > 100
    assert [str(trace) for trace in refuted if accepted(TABLE_SPEC, trace)] == []


@pytest.mark.parametrize("skip", [frozenset[int](), frozenset({0}), frozenset({1}), frozenset({0, 1})])
def test_what_the_reference_loop_does_is_taken_by_every_specification(skip: frozenset[int]) -> None:
    """With and without a scale and a clip; the scaler skips the windows of `skip`."""
    for (m, n), scaled in product(((1, 1), (3, 1), (3, 2), (4, 2), (5, 3)), (False, True)):
        skipped = frozenset(w for w in skip if w < -(-m // n))
        config = Config(n, loss_scale=4 if scaled else None, max_norm=1 if scaled else None, skip=skipped)
        done = Accumulation().run((0.0,), [MicroBatch(1.0, (0.5,))] * m, config, (0.0,))
        trace = Trace(Data(tuple(window_sizes(m, n)), scaled), tuple(done.events))
        kept = {"the trace check": specs.replayed, "watch": specs.watched}
        kept |= {s.check: partial(accepted, s) for s in (*PROFILES["the buffer"], *PROFILES["schedules"])}
        kept |= {} if scaled else {**WHOLE, **LESS, "KANI-GA-003": specs.whole_window}
        refusing = [check for check, judge in kept.items() if judge(trace) is False]
        assert refusing == [], f"{', '.join(refusing)}: {trace}"


def test_the_events_of_the_whole_window_are_taken_by_every_check_of_whole_runs() -> None:
    """KANI-GA-003 takes one order of events alone; what it takes, the others take."""
    runs = [trace for data in COMPLETE for trace in traces(data, (TABLE_SPEC,)) if specs.whole_window(trace)]
    assert any(trace.skipped for trace in runs)
    all_of_them = {**WHOLE, **LESS, "KANI-GA-003": specs.whole_window}
    assert [words for trace in runs if (words := parted(trace, all_of_them))] == []


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_windows_of_the_optimizer_state_are_taken_by_every_specification(n: int) -> None:
    """CROSS-GT-302 moves the optimizer state along whole windows, of which the scaler skips one."""
    for skip in range(3):
        trace = Trace(Data((n, n)), (*windows_of(n, 2, skip), Event.END))
        kept = {s.check: partial(accepted, s) for s in (*PROFILES["the buffer"], *PROFILES["schedules"])}
        kept |= {**WHOLE, **LESS, "KANI-GA-003": specs.whole_window, "watch": specs.watched}
        assert [check for check, judge in kept.items() if judge(trace) is False] == [], str(trace)


# -- Controls: a specification that is changed in one place is found, with the shortest sequence.

_S, _E = State, Event


@pytest.mark.parametrize(
    "loop",
    [
        bent(_S.SKIPPED, _E.SCHEDULE, _S.SCHEDULED, SCHEDULING),
        bent(_S.FULL, _E.SKIP, _S.STEPPED, SCHEDULING),
        bent(_S.SKIPPED, _E.ZERO, _S.DUE, SCHEDULING),
        bent(_S.SCHEDULED, _E.SCHEDULE, _S.SCHEDULED, SCHEDULING),
        bent(_S.OPEN, _E.SCHEDULE, _S.OPEN, SCHEDULING),
        allowing(SCHEDULING, _E.ACCUMULATE, _S.DUE),
        allowing(SCHEDULING, _E.END, _S.STEPPED),
    ],
)
def test_a_loop_that_schedules_otherwise_disagrees_with_the_proof(loop: Loop) -> None:
    changed = specs.loop_spec("the changed loop", loop, SCHEDULING_SPEC.decides, SCHEDULES)
    found = [one for data in DATA if (one := first_disagreement((changed, *PROFILES["schedules"][1:]), data))]
    assert found
    assert SCHEDULES in min(found)[1]
    assert "KANI-GA-017" in min(found)[1]


@pytest.mark.parametrize(
    "loop",
    [
        bent(_S.STEPPED, _E.SYNC, _S.STEPPED, SYNCHRONISING),
        allowing(SYNCHRONISING, _E.SYNC, _S.FULL),
        allowing(SYNCHRONISING, _E.SYNC, _S.OPEN),
        allowing(SYNCHRONISING, _E.STEP, _S.FULL),
        allowing(SYNCHRONISING, _E.SKIP, _S.SCALED),
        allowing(SYNCHRONISING, _E.CLIP, _S.FULL),
    ],
)
def test_a_loop_that_sums_otherwise_disagrees_with_the_proof(loop: Loop) -> None:
    changed = specs.loop_spec("the changed loop", loop, SYNCHRONISING_SPEC.decides, specs.SYNCS)
    found = [one for data in DATA if (one := first_disagreement((changed, *PROFILES["one sync a window"][1:]), data))]
    assert found
    assert "KANI-GT-303" in min(found)[1]


def test_the_shortest_sequence_is_named_with_both_checks() -> None:
    """A loop that schedules after a skipped step, as the reference loop did and CROSS-GA-004 demanded."""
    loop = bent(_S.SKIPPED, _E.SCHEDULE, _S.SCHEDULED, SCHEDULING)
    changed = specs.loop_spec("the changed loop", loop, SCHEDULING_SPEC.decides, SCHEDULES)
    assert first_disagreement((changed, *PROFILES["schedules"][1:]), Data((1, 1))) == (
        3,
        "GA-INV-003: schedule: KANI-GA-017 refuses schedule, and the changed loop takes it: accumulate, skip, schedule "
        "(micro-batches of the windows: (1, 1))",
    )


def every_attempt_schedules(trace: Trace) -> bool | None:
    """What CROSS-GA-004 demanded before: as many schedules as attempts."""
    attempts = sum(event in facts.ATTEMPTS for event in trace.events)
    return trace.events.count(Event.SCHEDULE) == attempts


def test_the_demand_of_before_disagrees_with_each_other_check() -> None:
    runs = complete()
    for check, judge in {**WHOLE, **LESS}.items():
        pair = {"before": every_attempt_schedules, check: judge}
        assert any(parted(trace, pair) for trace in runs), check


@pytest.mark.parametrize(
    ("state", "event", "to", "topic"),
    [
        (_S.STEPPED, _E.ACCUMULATE, _S.OPEN, "GA-INV-002"),
        (_S.FULL, _E.ZERO, _S.CLEAN, "GA-INV-002"),
        (_S.OPEN, _E.STEP, _S.STEPPED, "GA-INV-003"),
        (_S.STEPPED, _E.STEP, _S.STEPPED, "GA-INV-003"),
        (_S.FULL, _E.END, _S.FULL, "GA-INV-003"),
        (_S.CLIPPED, _E.CLIP, _S.CLIPPED, "GA-INV-005"),
        (_S.SCALED, _E.CLIP, _S.SCALED, "GA-INV-005"),
        (_S.OPEN, _E.UNSCALE, _S.OPEN, "GA-EQ-001"),
    ],
)
def test_a_loosened_rule_of_the_table_disagrees(state: State, event: Event, to: State, topic: str) -> None:
    table = specs.loop_spec("the changed table", bent(state, event, to), TABLE_SPEC.decides)
    found = [one for data in DATA if (one := first_disagreement((table, *PROFILES["the buffer"][1:]), data))]
    assert found
    assert topic in min(found)[1]


@pytest.mark.parametrize("number", range(len(facts.ONE_CLIP_A_WINDOW.demands)))
def test_a_proof_that_lost_a_demand_disagrees(number: int) -> None:
    """Without one of its demands KANI-GA-014 takes what the table refuses."""
    kept = tuple(d for i, d in enumerate(facts.ONE_CLIP_A_WINDOW.demands) if i != number)
    proof = replace(facts.ONE_CLIP_A_WINDOW, demands=kept)
    lost = specs.proof_spec("KANI-GA-014", proof, specs.CLIPS, BUFFER[specs.CLIPS])
    found = [one for data in DATA if (one := first_disagreement((TABLE_SPEC, lost), data))]
    assert found
    assert "KANI-GA-014 takes it" in min(found)[1]
