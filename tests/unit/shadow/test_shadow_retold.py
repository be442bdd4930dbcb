"""A refuted real step is shown as the events of its run, with the one that is to blame marked, and no earlier one."""

from __future__ import annotations

import linecache
import re
from functools import cache
from typing import Any

import pytest
import retold_loops as loops

from gradproof.core.outcome import Outcome
from gradproof.core.timeline import Timeline, from_json
from gradproof.report.formats import step
from gradproof.shadow.result import Result, Verification
from tests import checked as verify


@cache
def said(name: str) -> Verification:
    return verify.check(getattr(loops, name))


def drawn(result: Result) -> Timeline:
    assert result.counterexample is not None, result
    return from_json(result.counterexample["trace"])


def source(note: str) -> str:
    """The line of the loops that a tick's note names."""
    line = re.fullmatch(r"retold_loops\.py:(\d+)", note)
    assert line is not None, note
    return linecache.getline(str(loops.__file__), int(line[1])).strip()


KNOWN = [
    ("stale", "GA-INV-002", "share.backward()", 6, "accumulated onto a gradient that was already applied"),
    ("unscaled", "GA-EQ-001", "share = loss / n if scale else loss.clone()", 1, f"{BLAMED}, {EACH}"),
    ("clips_each", "GA-INV-005", "nn.utils.clip_grad_norm_(model.parameters(), 0.1)", 2, "clipped before the last"),
    ("clips_each", "GA-EQ-001", "nn.utils.clip_grad_norm_(model.parameters(), 0.1)", 2, "clipped before the last"),
    ("early", "GA-INV-003", "optimizer.step()", 3, "stepped before the window was complete"),
    ("divided_again", "GA-EQ-001", "torch._foreach_div_(", 5, BLAMED),
    ("moved", "GA-INV-003", "model.weight.mul_(0.9)", 7, "the weights were changed after the step of window 1"),
    ("moved", "GA-EQ-001", "model.weight.mul_(0.9)", 7, "the weights were changed after the step of window 1"),
]


@pytest.mark.parametrize(("name", "obligation", "text", "number", "why"), KNOWN)
def test_the_event_to_blame_is_marked_and_no_earlier_one(
    name: str, obligation: str, text: str, number: int, why: str
) -> None:
    result = said(name).result(obligation)
    assert result.outcome is Outcome.REFUTED, result
    line = drawn(result)
    refused = [(i, t) for i, t in line.faults if t.refused]
    assert [i for i, _ in refused] == [number], line
    assert line.faults[0] == refused[0], "harm is marked before the event that does it"
    tick = refused[0][1]
    assert why in tick.refused
    assert text in source(tick.note)
    assert line.ticks[-1].words, "the run goes on after the last thing that is wrong"
    assert any(t.harm for t in line.ticks)


def test_the_state_counts_what_is_in_the_gradient() -> None:
    line = drawn(said("stale").result("GA-INV-002"))
    assert [t.after for t in line.ticks] == ["1", "2", "3", "4", "4 applied", "4 applied + 1"]
    clipped = drawn(said("clips_each").result("GA-INV-005"))
    assert [t.after for t in clipped.ticks] == ["1", "1 clipped"]


def test_a_right_step_has_no_trace() -> None:
    found = said("right")
    assert found.outcome is Outcome.HOLDS
    assert all(r.counterexample is None for r in found.results)
    assert "Events, " not in step.text(found)


def test_no_event_is_blamed_where_none_can_be_told_from_the_others() -> None:
    """One number is always a multiple of another: that does not make each of its parts wrong."""
    result = said("one_weight").result("GA-EQ-001")
    assert result.outcome is Outcome.REFUTED
    line = drawn(result)
    assert [t.refused for t in line.ticks] == [""] * len(line.ticks)
    assert [i for i, _ in line.faults] == [len(line.ticks)]
    assert line.ticks[-1].event == "step"
    assert "is blamed, and no one event of it" in line.ticks[-1].harm


@pytest.mark.parametrize("render", [step.text, step.render_markdown])
def test_the_run_is_shown_one_event_a_line(render: Any) -> None:
    rows = [row.strip() for row in render(said("stale")).splitlines()]
    at = next(i for i, row in enumerate(rows) if row.startswith("Events, GA-INV-002"))
    assert [row[:4] for row in rows[at + 1 : at + 7]] == ["o  1", "o  2", "o  3", "o  4", "o  5", "X  6"]
    assert rows[at + 7].startswith("X 6 backward: accumulated onto a gradient")
    assert not any(row.startswith(("trace", "| trace")) for row in rows)


def test_what_is_no_run_is_said_and_nothing_of_it_is_obeyed() -> None:
    found = Result("GA-EQ-001", Outcome.REFUTED, "", counterexample={"trace": {"ticks": "none"}})
    assert step.run_of(found) == ["The run that shows it cannot be read."]
    tick = {"event": "step\x1b[31m", "after": "", "note": "", "refused": "x", "harm": ""}
    found.counterexample = {"trace": {"title": "t\x1b[0m", "start": "", "ticks": [tick]}}
    assert not any("\x1b" in row for row in step.run_of(found))
