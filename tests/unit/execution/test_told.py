"""Counterexamples of models and PyTorch steps as windows of events: the event to blame, and no earlier one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from torch_bench import NETS, a_check, attempt

from gradproof.core.timeline import LEFT_OUT, MOST, Tick, as_lines, from_json, shortened
from gradproof.execution.methods import counterexample, crosshair as crosshair_run
from gradproof.execution.methods.counterexample import (
    CUT,
    EXACT,
    FLOATS,
    Said,
    by_phase,
    events_during as heard,
    listening,
    shown,
    tell,
    timeline,
    traced,
)
from gradproof.execution.methods.replay import watched
from models.accumulation.loop import Accumulation, Config, MicroBatch
from models.accumulation.mutants import MUTANTS
from models.systems import tails
from models.tokens import window as tokens
from symbolic.accumulation.contracts import numerical_equivalence

Events = list[Said]


def window(subject: type, n: int = 2, total: int = 3, **config: Any) -> Events:
    """The events of a loop over `total` micro-batches, from a buffer that holds something."""
    batches = [MicroBatch(Fraction(i + 1), (Fraction(i + 1, 4), Fraction(-1, i + 2))) for i in range(total)]
    left = (Fraction(1, 8), Fraction(0))
    return heard(lambda: subject().run((Fraction(0), Fraction(0)), batches, Config(n, **config), left))


def blamed(name: str, **config: Any) -> tuple[int, Tick]:
    """The one event that is refused in a window of a mutant."""
    ours, right = window(MUTANTS[name].subject, **config), window(Accumulation, **config)
    line = timeline(name, ours, right, "the clause breaks", CUT)
    assert line is not None
    [(number, tick)] = [(i, t) for i, t in line.faults if t.refused]
    assert line.faults[0][0] == number
    assert line.ticks[-1].harm == "the clause breaks"
    return number, tick


KNOWN = [
    ("missing_scale", {}, 2, "accumulate", "the reference has [1/8, -1/4] here"),
    ("zero_skipped", {}, 1, "accumulate", "the reference does zero here"),
    ("zero_first_cycle_only", {}, 7, "accumulate", "the reference does zero here"),
    ("step_per_micro_batch", {}, 3, "step", "the reference does accumulate here"),
    ("tail_by_configured_n", {}, 8, "accumulate", "the reference has [3/4, -1/4] here"),
    ("tail_dropped", {}, 9, "end", "the reference does step here"),
    ("clip_per_micro_batch", {"max_norm": Fraction(1, 8)}, 2, "accumulate", "the reference has [1/8, -1/4] here"),
    ("clip_before_last", {"max_norm": Fraction(1, 8)}, 3, "clip", "the reference does accumulate here"),
    ("last_loss_only", {}, 6, "report", "the reference has 3/2 here"),
]


@pytest.mark.parametrize(("name", "config", "number", "event", "why"), KNOWN)
def test_the_first_event_that_differs_is_blamed(
    name: str, config: dict[str, Any], number: int, event: str, why: str
) -> None:
    found, tick = blamed(name, **config)
    assert (found, tick.event, tick.refused) == (number, event, why)


def test_the_reference_is_blamed_for_nothing() -> None:
    """Beside itself, and where it is its own reference: what it must be refuted for breaks at the end."""
    ours = window(Accumulation)
    for right in (window(Accumulation), []):
        line = timeline("right", ours, right, "the clause breaks", EXACT)
        assert line is not None
        assert [(i, t.refused, t.harm) for i, t in line.faults] == [(len(ours), "", "the clause breaks")]


def test_the_text_marks_the_event() -> None:
    ours, right = window(MUTANTS["missing_scale"].subject), window(Accumulation)
    line = from_json(traced("GA-EQ-001", ours, right, "GA-EQ-001 breaks", CUT)["trace"])
    assert re.search(r"X 2 accumulate: .* \[1/8, -1/4\]", "\n".join(as_lines(line)))
    assert as_lines(line)[1].split() == ["X", "2", "accumulate", "[1/4,", "-1/2]"]


def numbered(found: list[tuple[int, str]]) -> list[str]:
    """Each refused event by its place, with the values and the event that its words name."""
    return [" ".join([str(at), *re.findall(r"\[.*?\]|\d+|zero", words)]) for at, words in found]


def said(*events: tuple[str, Any], phase: bool = False) -> Events:
    return [Said(name, after, phase) for name, after in events]


def refused(ours: Events, right: Events, slack: Fraction = EXACT) -> list[tuple[int, str]]:
    line = timeline("t", ours, right, "breaks", slack)
    assert line is not None
    return [(i, t.refused) for i, t in line.faults if t.refused]


def test_a_zero_of_what_is_zero_is_no_event() -> None:
    nothing, some = (Fraction(0),), (Fraction(1),)
    right = said(("zero", nothing), ("accumulate", nothing), ("zero", nothing), ("accumulate", some), ("end", some))
    ours = said(("zero", nothing), ("accumulate", nothing), ("accumulate", some), ("end", some))
    assert refused(ours, right) == []
    held = said(("zero", nothing), ("accumulate", some), ("zero", nothing), ("accumulate", some), ("end", some))
    lost = said(("zero", nothing), ("accumulate", some), ("accumulate", some), ("end", some))
    assert numbered(refused(lost, held)) == ["3 zero"]


def test_a_difference_of_rounding_is_none_where_machine_numbers_are_summed() -> None:
    right, near = said(("accumulate", (1.0, 1e-9))), said(("accumulate", (1.0 + 1e-7, -1e-9)))
    assert refused(near, right, FLOATS) == []
    assert refused(near, right, EXACT) != []
    assert numbered(refused(said(("accumulate", (1.001, 0.0))), right, FLOATS)) == ["1 [1, 1e-09]"]
    other = said(("step", (1.0 + 1e-4, 0.0)))
    assert numbered(refused(other, said(("step", (1.0, 0.0))), FLOATS)) == ["1 [1.0001, 0] [1, 0]"]


def test_the_element_that_differs_is_named_where_it_is_not_shown() -> None:
    right, ours = said(("step", tuple(range(9)))), said(("step", (*range(7), 70, 8)))
    assert numbered(refused(ours, right)) == ["1 7 70 7"]


def test_phases_that_only_one_run_has_say_nothing() -> None:
    """A subject may call what it likes: only the values of what both call are compared."""
    right = said(("normaliser", 4), ("share", 1), ("finish", 1), phase=True)
    assert numbered(refused(said(("helper", 9), ("share", 1), ("finish", 2), phase=True), right)) == ["3 1"]
    assert refused(said(("helper", 9), ("finish", 1), ("share", 1), phase=True), right) == []
    assert refused(said(("share", 1), ("finish", 1), ("finish", 1), phase=True), right) == []


def test_no_event_is_no_run() -> None:
    assert traced("t", [], window(Accumulation), "breaks", EXACT) == {}


@pytest.mark.parametrize("marks", [(0,), (0, 39), (5, 20), (39,), (12, 13)])
def test_a_long_run_is_cut_and_keeps_what_is_wrong(marks: tuple[int, ...]) -> None:
    ticks = [Tick(f"e{i}", "", refused="x" if i in marks else "") for i in range(40)]
    cut = shortened(ticks)
    assert len(cut) <= MOST
    assert [t.event for t in cut if t.refused] == [f"e{i}" for i in marks]
    assert cut[-1].event == f"e{marks[-1]}"
    stated = sum(int(t.note.removesuffix(" events")) if t.event == LEFT_OUT else 1 for t in cut)
    assert stated == marks[-1] + 1
    assert all(t.mark == ":" for t in cut if t.event == LEFT_OUT)


@pytest.mark.parametrize(
    ("value", "words"),
    [(Fraction(1, 3), "1/3"), (Fraction(10**9, 7), "1.429e+08"), (0.1, "0.1"), (True, "True"), (None, "None"),
     ((1, 2, 3, 4), "[1, 2, 3, ...]"), (float("nan"), "nan"), ("a" * 60, "a" * 21 + "..."), (object(), "object")],
)  # fmt: skip
def test_a_state_is_shown_in_a_few_letters(value: Any, words: str) -> None:
    assert shown(value) == words


def test_nothing_is_kept_while_nobody_listens() -> None:
    tell("lost", 1)
    assert not counterexample.heard()
    with listening() as stated:
        tell("kept", 2)
        with pytest.raises(RuntimeError, match="already"), listening():
            pass
        for _ in range(2 * counterexample.MOST):
            tell("more", 3)
    assert stated[0] == Said("kept", 2)
    assert len(stated) == counterexample.MOST
    tell("lost", 4)
    assert len(stated) == counterexample.MOST


@dataclass(frozen=True)
class Frozen:
    """A subject that takes no attributes."""

    def share(self, g: int) -> int:
        """Half."""
        return g // 2


def test_the_phases_of_a_subject_are_told_where_it_has_no_events() -> None:
    batches = [tokens.TokenBatch((Fraction(3),), 3, 0), tokens.TokenBatch((Fraction(1),), 1, 0)]

    def events(subject: type) -> Events:
        return heard(lambda: watched(subject, tokens.TokenWindow).run((Fraction(0),), batches, 1))

    ours, right = events(tokens.FixedConstant), events(tokens.TokenWindow)
    assert [s.event for s in ours] == ["skips", "share", "share", "finish", "run"]
    assert numbered(refused(ours, right)) == ["2 [3/4]"]
    assert by_phase(Frozen(), Frozen).share(4) == 2
    assert watched(tails, tails.Tail) is tails


def test_crosshair_tells_its_numbers_too() -> None:
    check: Any = type("Claim", (), {"id": "CROSS-T-001"})
    trial = crosshair_run.HarnessTrial(check, numerical_equivalence, Accumulation, 0.0, 1)
    names = [f"{letter}{i}" for letter in "gh" for i in range(1, 5)]
    example: dict[str, Any] = {"clause": "GA-EQ-001"}
    trial.replayed(MUTANTS["missing_scale"].subject, {"n": 2, **dict.fromkeys(names, 1)}, example)
    line = from_json(example["trace"])
    [(number, tick)] = [(i, t) for i, t in line.faults if t.refused]
    assert (number, tick.event) == (2, "accumulate")
    assert "Ratio" not in "\n".join(as_lines(line))


@pytest.mark.parametrize(
    ("clause", "name", "number", "why"),
    [("GA-EQ-001", "missing_scale", 2, "the reference has"),
     ("GA-INV-002", "zero_skipped", 1, "the reference does zero"),
     ("GA-INV-003", "step_per_micro_batch", 3, "the reference does accumulate")],
)  # fmt: skip
def test_a_torch_step_is_told_by_its_hooks(clause: str, name: str, number: int, why: str) -> None:
    """What is reported is what the buffers held when the next event began; what is recorded besides is as it was."""
    check = a_check(clause, nets=NETS[:1], n=[2], mutants=[name], examples=1)
    finding = attempt(check)
    [control] = [c for c in finding.controls if c.name == name]
    assert control.killed, control.reason
    assert control.counterexample is not None
    line = from_json(control.counterexample["trace"])
    [(found, tick)] = [(i, t) for i, t in line.faults if t.refused]
    assert (found, tick.refused.startswith(why)) == (number, True), as_lines(line)
    assert line.ticks[-1].harm == f"{clause} breaks"
    assert set(control.counterexample) == {"clause", "values", "found_by", "trace"}
