"""The window table for every N: each proof holds, each of its facts is needed, and each bug is seen twice."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from gradproof.contract.model import load
from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Expect, Kind, Layer, Outcome, Reach
from gradproof.core.protocol import FILL, RULES, Breaks, Event, State, replay
from gradproof.core.timeline import as_lines, from_json
from gradproof.core.workspace import reference
from gradproof.execution.methods import smt as smt_run
from gradproof.execution.methods.explore import Exploration, Explorer, Limits, PathTrace
from gradproof.execution.methods.harness import SymbolicKit
from gradproof.verdict.plan import plan
from models.accumulation import window_bugs
from models.accumulation.window_bugs import (
    AFTER_EVERY_ATTEMPT,
    BROKEN,
    TABLE,
    WINDOW_BUGS,
    Loop,
    Refusal,
    allowing,
    bent,
)
from symbolic.accumulation import window as window_all, window as window_facts
from symbolic.accumulation.window import Act, Counts, Demand, Fact, Proof
from symbolic.accumulation.window_traces import (
    Moment,
    counting,
    drawn,
    find,
    first_refused,
    possibilities,
    runs,
    start,
    timeline,
)

LOOPS = {"schedule_follows_steps": "SCHEDULING", "one_sync_a_window": "SYNCHRONISING"}
BOUNDS = {"transitions": 1, "branches": 4, "paths": 4}
EQUAL = window_facts.STEPS_OF_EQUAL_WINDOWS
CASES = [(harness, name) for harness, (_, rows) in BROKEN.items() for name, _, _ in rows]


def proof_of(harness: str) -> Proof:
    found: Proof = getattr(window_facts, harness.upper())
    return found


def claim(harness: str, subject: str = "", mutants: tuple[str, ...] = (), expect: Expect = Expect.HOLDS) -> Check:
    clause = BROKEN[harness][0]
    return Check(
        "T-1",
        Kind.SMT,
        Layer.SMT,
        (clause,),
        "a test",
        f"symbolic.accumulation.window:{harness}",
        f"models.accumulation.window_bugs:{subject or LOOPS.get(harness, 'TABLE')}",
        strategy="exhaustive",
        bounds=tuple(Bound(name, value, "a test") for name, value in BOUNDS.items()),
        mutants=mutants,
        params={
            "empty": "models.accumulation.window_bugs:EMPTY",
            "mutants": "models.accumulation.window_bugs:WINDOW_BUGS",
            "subjects": {},
        }
        | {"trace": "symbolic.accumulation.window_traces:drawn"},
        time_limit=60.0,
        expect=expect,
    )


class Names:
    """A workspace of importable names."""

    def resolve(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Lean(SymbolicKit):
    """A kit that asks for no covers: they are asked for once, by the whole checks."""

    def cover(self, name: str, condition: Any = True) -> None:
        """Nothing."""


def asked(proof: Proof, loop: Loop, kit: type[SymbolicKit] = Lean) -> Exploration:
    explorer = Explorer(Limits(4, 4, 30.0, time.process_time() + 600), None)
    made = kit(claim("no_stale_gradient"), explorer)
    return explorer.run(lambda: window_all.prove(made, loop, proof))


def found(proof: Proof, loop: Loop) -> PathTrace[Moment, Act]:
    trace = find(proof, loop).trace
    assert trace is not None
    return trace


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    """Every harness with its empty body and all its bugs, as a contract would run it: in a process of its own.

    How long z3 searches depends on what its process asked before: after other tests one query took 470 s.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return dict(pool.map(answered, BROKEN))


def answered(harness: str) -> tuple[str, Finding]:
    """What one harness shows."""
    check = claim(harness, mutants=tuple(row[0] for row in BROKEN[harness][1]))
    return harness, smt_run.run(check, Names())


@pytest.mark.parametrize("harness", BROKEN)
def test_the_proof_holds_for_all_inputs_by_one_query(harness: str, findings: dict[str, Finding]) -> None:
    finding = findings[harness]
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert finding.reach is Reach.ALL_INPUTS
    assert finding.clauses == {BROKEN[harness][0]: "HOLDS"}
    assert finding.reason.startswith("1 paths, 2 checks, ")


@pytest.mark.parametrize("harness", BROKEN)
def test_every_state_is_inhabited_and_every_event_can_come(harness: str, findings: dict[str, Finding]) -> None:
    covers = {c["name"]: c["reached"] for c in findings[harness].covers}
    wanted = {f"{s.value} is inhabited" for s in State} | {f"{e.value} can come" for e in Event}
    assert wanted | {fact.text for fact in proof_of(harness).covers} == set(covers)
    assert all(covers.values())


@pytest.mark.parametrize(("harness", "name"), CASES, ids=[name for _, name in CASES])
def test_a_bug_is_refuted_on_its_clause_by_the_induction(harness: str, name: str, findings: dict[str, Finding]) -> None:
    control = next(c for c in findings[harness].controls if c.name == name)
    assert control.outcome is Outcome.REFUTED, control.reason
    assert control.killed
    assert control.clause == BROKEN[harness][0]
    assert "-->" in control.replays[0]["detail"]


@pytest.mark.parametrize("harness", BROKEN)
def test_evidence_carries_the_shortest_trace_of_every_mutant(harness: str, findings: dict[str, Finding]) -> None:
    controls = {c.name: c.counterexample or {} for c in findings[harness].controls}
    assert "trace" not in controls.pop("empty body")
    for name, shown in controls.items():
        loop = WINDOW_BUGS[name].subject
        line = timeline(name, proof_of(harness), found(proof_of(harness), loop))
        assert from_json(shown["trace"]) == line
        assert any(t.refused for t in line.ticks)


def test_a_control_that_lives_and_a_claim_without_a_finder_have_no_trace() -> None:
    """`early_step` breaks another clause than that of the clips, so its counterexample is none of this claim."""
    other = smt_run.run(claim("one_clip_a_window", mutants=("early_step", "double_clip")), Names())
    assert {c.name: "trace" in (c.counterexample or {}) for c in other.controls[1:]} == {
        "early_step": False, "double_clip": True,
    }  # fmt: skip
    bare = claim("one_clip_a_window", mutants=("double_clip",))
    del bare.params["trace"]  # type: ignore[attr-defined]
    [_, control] = smt_run.run(bare, Names()).controls
    assert control.killed
    assert "trace" not in (control.counterexample or {})


def test_every_claim_about_the_window_names_the_finder() -> None:
    root = reference()
    assert root is not None
    checks = [c for path in sorted(root.glob("proofs/*/contract.yaml")) for c in plan(load(path))]
    own = [c for c in checks if c.harness.startswith("symbolic.accumulation.window:") and c.id != "KANI-GA-016"]
    own += [c for c in checks if c.harness == "symbolic.systems.synchronising:one_sync_a_window"]
    assert {c.id for c in own} == {*(f"KANI-GA-0{i}" for i in (11, 12, 13, 14, 15, 17, 19)), "KANI-GT-303"}
    assert {c.params.get("trace") for c in own} == {"symbolic.accumulation.window_traces:drawn"}
    assert drawn("one_clip_a_window", "right", TABLE) is None


@pytest.mark.parametrize(("harness", "name"), CASES, ids=[name for _, name in CASES])
def test_a_bug_is_refuted_by_a_concrete_trace(harness: str, name: str) -> None:
    """The last event breaks the obligation by the counters; the right loop refuses that event or one before it."""
    proof, loop = proof_of(harness), WINDOW_BUGS[name].subject
    trace = found(proof, loop)
    refusal = first_refused(proof, trace)
    assert refusal is not None
    assert refusal[0] < len(trace.moves)
    events = [move.event.event for move in trace.moves]
    table = replay(events, trace.start.run.sizes, trace.start.run.scaled)
    if proof.loop is TABLE:
        assert (table[-1].index, table[-1].broken) == refusal
    line = timeline(name, proof, trace)
    assert line.ticks[refusal[0]].refused == refusal[1].why
    assert line.ticks[-1].harm
    assert f"{name} breaks {proof.clause}" in line.title
    assert refusal[1].why in "\n".join(as_lines(line))


WRONG_AT = {
    "late_step": ("accumulate accumulate", 1),
    "stale_accumulate": ("accumulate step accumulate step", 2),
    "double_clip": ("accumulate clip clip", 2),
    "clip_before_unscale": ("accumulate clip", 1),
    "schedule_on_skip": ("accumulate skip schedule", 2),
    "tail_dropped": ("accumulate end", 1),
    "step_twice": ("accumulate step step end", 2),
    "zero_before_step": ("accumulate zero", 1),
    "sync_after_clip": ("accumulate clip sync", 2),
    "sync_twice": ("accumulate sync sync", 2),
    "schedule_missed": ("accumulate step zero accumulate", 3),
}


@pytest.mark.parametrize("name", WRONG_AT)
def test_the_trace_is_the_one_that_a_person_would_give(name: str) -> None:
    harness = next(h for h, other in CASES if other == name)
    trace = found(proof_of(harness), WINDOW_BUGS[name].subject)
    refusal = first_refused(proof_of(harness), trace)
    assert refusal is not None
    assert (" ".join(m.event.event.value for m in trace.moves), refusal[0]) == WRONG_AT[name]


def test_a_dropped_tail_is_seen_where_there_is_a_tail() -> None:
    run = found(EQUAL, WINDOW_BUGS["tail_dropped"].subject).start.run
    assert (run.n, run.total, run.flush) == (2, 1, True)


def weakened(proof: Proof) -> Iterator[tuple[str, Proof]]:
    """The proof without one fact in one state."""
    for i, fact in enumerate(proof.facts):
        for state in fact.states:
            kept = tuple(s for s in fact.states if s is not state)
            less = (*proof.facts[:i], replace(fact, states=kept), *proof.facts[i + 1 :])
            yield f"{fact.text} ({state.value})", replace(proof, facts=less)


@pytest.mark.parametrize("harness", BROKEN)
def test_every_fact_is_needed(harness: str) -> None:
    """Without it the invariant is not inductive any more, or allows what the obligation forbids."""
    proof, tried = proof_of(harness), 0
    for name, less in weakened(proof):
        assert asked(less, proof.loop).violation is not None, name
        tried += 1
    assert tried >= len(proof.facts)


@pytest.mark.parametrize("harness", BROKEN)
def test_every_demand_is_asked_for(harness: str) -> None:
    """A demand that is replaced by its opposite is refuted: the harness does not check for nothing."""
    proof = proof_of(harness)
    for i, demand in enumerate(proof.demands):
        opposite = replace(demand, holds=lambda g, holds=demand.holds: window_all.no(holds(g)))
        changed = replace(proof, demands=(*proof.demands[:i], opposite, *proof.demands[i + 1 :]))
        result = asked(changed, proof.loop)
        assert result.violation is not None, demand.text
        assert not result.violation.label.startswith("a fresh loop")


@pytest.mark.parametrize("harness", BROKEN)
def test_an_invariant_that_is_false_at_first_is_caught_at_the_base(harness: str) -> None:
    proof = proof_of(harness)
    name = proof.counters[-1]
    wrong = Fact("it has begun", (State.CLEAN,), lambda g: getattr(g, name) >= 1)
    result = asked(replace(proof, facts=(*proof.facts, wrong)), proof.loop)
    assert result.violation is not None
    assert result.violation.label.startswith("a fresh loop")


def test_an_invariant_that_is_always_false_is_caught() -> None:
    never = Fact("never", tuple(State), lambda g: g.old < g.old)
    result = asked(replace(window_facts.NO_STALE_GRADIENT, facts=(never,)), TABLE)
    assert result.violation is not None
    assert result.violation.label.startswith("a fresh loop")


@pytest.mark.parametrize("state", State)
def test_a_false_promise_of_a_state_is_caught(state: State) -> None:
    proof = window_facts.ONE_UNSCALE_A_WINDOW
    never = Fact("never", (state,), lambda g: g.scale < g.scale)
    assert asked(replace(proof, facts=(*proof.facts, never)), TABLE).violation is not None


def test_a_state_that_nothing_inhabits_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no event leads to a state, the induction keeps even a false promise of it; the covers do not."""
    proof = window_facts.ONE_UNSCALE_A_WINDOW
    never = Fact("never", (State.CLIPPED,), lambda g: g.scale < g.scale)
    unclipped = Loop(refusals=(Refusal(Event.CLIP, (State.FULL,), Breaks("GA-INV-005", "no clip in this loop")),))
    changed = replace(proof, facts=(*proof.facts, never))
    assert asked(changed, unclipped).violation is None
    monkeypatch.setattr(window_facts, "ONE_UNSCALE_A_WINDOW", changed)
    monkeypatch.setattr(window_bugs, "TABLE", unclipped)
    finding = smt_run.run(claim("one_unscale_a_window"), Names())
    assert finding.outcome is Outcome.VACUOUS
    assert "clipped is inhabited" in finding.reason


def test_a_query_without_an_answer_is_no_proof() -> None:
    assert smt_run.run(replace(claim("no_stale_gradient"), time_limit=0.0), Names()).outcome is Outcome.TIMEOUT


WRONG_COUNTS: dict[str, Callable[[Any], Any]] = {
    "floor where the tail is flushed": lambda g: (g.flush == 0) | (g.seen < g.total) | (g.attempts == g.quotient),
    "ceil where no tail is flushed": lambda g: (
        (g.flush == 1) | (g.total - g.seen >= g.n) | (g.rest == 0) | (g.attempts == g.quotient + 1)
    ),
    "one too many": lambda g: (g.seen < g.total) | (g.attempts == g.quotient + 1),
    "M/N as if N were 2": lambda g: (g.flush == 1) | (g.total - g.seen >= g.n) | (g.attempts * 2 <= g.total),
}


@pytest.mark.parametrize("name", WRONG_COUNTS)
def test_a_wrong_count_of_steps_is_refuted(name: str) -> None:
    wrong = replace(EQUAL, demands=(Demand(Event.END, name, WRONG_COUNTS[name]),))
    assert asked(wrong, TABLE).violation is not None


def moments(proof: Proof, loop: Loop) -> Iterator[Moment]:
    """Every moment that some run reaches."""
    seen: dict[Moment, None] = dict.fromkeys(start(proof, run) for run in runs(proof))
    left = list(seen)
    while left:
        at = left.pop()
        yield at
        for _, after in possibilities(proof, loop, at):
            if after not in seen:
                seen[after] = None
                left.append(after)


@pytest.mark.parametrize("harness", BROKEN)
def test_every_reachable_moment_keeps_the_facts(harness: str) -> None:
    """Brute force beside the induction: small runs reach every state, and no promise is broken in any of them."""
    proof = proof_of(harness)
    reached = list(moments(proof, proof.loop))
    assert {at.state for at in reached} == set(State)
    for at in reached:
        g = Counts(**dict(at.counts))
        assert all(fact.holds(g) for fact in proof.facts if at.state in fact.states), at


def test_the_steps_of_every_small_run_are_floor_and_ceil() -> None:
    """M/N in Python's own integers, beside the quotient and rest of the proof."""
    ends: dict[tuple[int, int, int], set[int]] = {}
    for at in moments(EQUAL, TABLE):
        g, run = Counts(**dict(at.counts)), at.run
        over = g.seen == run.total if run.flush else run.total - g.seen < run.n
        if over and any(case.act.event is Event.END for case, _ in possibilities(EQUAL, TABLE, at)):
            ends.setdefault((run.n, run.total, run.flush), set()).add(g.attempts)
    assert {(n, m, flush): {-(-m // n) if flush else m // n} for n, m, flush in ends} == ends
    assert {(run.n, run.total, run.flush) for run in runs(EQUAL)} == set(ends)


FORBIDDEN = [(s, e, rule.obligation) for (s, e), rule in RULES.items() if isinstance(rule, Breaks)]
JUDGES = {
    Event.ZERO: "no_stale_gradient",
    Event.ACCUMULATE: "one_step_a_window",
    Event.SYNC: "one_sync_a_window",
    Event.UNSCALE: "one_unscale_a_window",
    Event.CLIP: "one_clip_a_window",
    Event.STEP: "one_step_a_window",
    Event.SKIP: "one_step_a_window",
    Event.SCHEDULE: "schedule_follows_steps",
    Event.END: "one_step_a_window",
}


@pytest.mark.parametrize(("state", "event", "obligation"), FORBIDDEN)
def test_every_prohibition_of_the_table_is_needed(state: State, event: Event, obligation: str) -> None:
    """Allowing it breaks the clause that the table names, by the induction and by a run."""
    named = {"GA-INV-002": "no_stale_gradient", "GA-INV-005": "one_clip_a_window"}
    proof = proof_of(named.get(obligation, JUDGES[event]))
    assert proof.clause == obligation
    loop = bent(state, event, State.OPEN if event is Event.ACCUMULATE else state, proof.loop)
    assert asked(proof, loop).violation is not None
    assert find(proof, loop).trace is not None


def test_a_schedule_after_a_skipped_step_is_refuted_with_its_run() -> None:
    check = claim("schedule_follows_steps", "AFTER_EVERY_ATTEMPT", expect=Expect.REFUTED)
    finding = smt_run.run(check, Names())
    assert finding.outcome is Outcome.REFUTED
    assert finding.replays[0]["reproduced"]
    assert finding.counterexample is not None
    assert from_json(finding.counterexample["trace"]).title.startswith("AFTER_EVERY_ATTEMPT breaks GA-INV-003")
    trace = found(window_facts.SCHEDULE_FOLLOWS_STEPS, AFTER_EVERY_ATTEMPT)
    plain = [move.event.event for move in trace.moves]
    assert plain == [Event.ACCUMULATE, Event.SKIP, Event.SCHEDULE]
    assert replay(plain, trace.start.run.sizes)[-1].broken is not None


def test_the_table_alone_does_not_count_synchronisations() -> None:
    """Twice, in the middle and never are all runs of the table; the loop that promises one a window refuses them."""
    for events in ("accumulate sync sync step", "accumulate sync accumulate step", "accumulate step"):
        names = [Event(e) for e in events.split()]
        assert replay(names, [names.count(Event.ACCUMULATE)])[-1].broken is None
    assert asked(window_facts.ONE_SYNC_A_WINDOW, TABLE).violation is not None


def test_a_loop_has_only_refusals_that_it_had() -> None:
    with pytest.raises(ValueError, match="never refused"):
        allowing(TABLE, Event.SYNC, State.FULL)


def test_a_concrete_run_counts_what_is_left_of_a_window() -> None:
    assert counting(EQUAL) is EQUAL
    assert "left" in counting(window_facts.NO_STALE_GRADIENT).counters


def test_every_obligation_has_two_bugs_and_every_bug_a_thread() -> None:
    assert min(len(rows) for _, rows in BROKEN.values()) >= 2
    assert len(WINDOW_BUGS) == len(CASES)
    assert all("#" in bug.reference and bug.name == name for name, bug in WINDOW_BUGS.items())


def test_the_specification_of_the_table_pins_every_entry() -> None:
    """Whatever the buffer is like in a state, the specification has one answer there, and it is the table's."""
    for (state, event), rule in RULES.items():
        answers = set()
        for at in (b for b in window_facts.buffers("none") if b.state is state):
            wrong = window_facts.breach("none", at, event)
            ends = [window_facts.acted(at, event, last, False).state for last in (False, True)]
            answers.add(wrong or (FILL if event is Event.ACCUMULATE else ends[0]))
        assert answers == {rule.obligation if isinstance(rule, Breaks) else rule}, (state, event)
