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


LOSS, BACKWARD = "loss = model(x).square().mean()", "share.backward()"
CLIP, STEP = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "optimizer.step()"
KNOWN = [
    ("stale", "GA-INV-002", BACKWARD, 1, BACKWARD, r"\bsample 0, .*\bwindow 1\b"),
    ("unscaled", "GA-EQ-001", LOSS, 1, BACKWARD, " 4 times "),
    ("clips_each", "GA-INV-005", CLIP, 2, CLIP, r"\bnorm of 2 .*\b8 samples"),
    ("clips_each", "GA-EQ-001", CLIP, 2, CLIP, "not the full batch"),
    ("early", "GA-INV-003", STEP, 3, STEP, r"\b3 optimizer steps .*\b2 windows"),
    ("divided_again", "GA-EQ-001", "torch._foreach_div_(", 5, "torch._foreach_div_(", " 1/4 times "),
]
"""The loop, the obligation, the line of the result, the number of the event to blame, its line, and the reason."""


@pytest.mark.parametrize(("name", "obligation", "at", "number", "text", "why"), KNOWN)
def test_the_event_to_blame_is_marked_and_no_earlier_one(
    name: str, obligation: str, at: str, number: int, text: str, why: str
) -> None:
    result = said(name).result(obligation)
    assert (result.outcome, bool(re.search(why, result.reason))) == (Outcome.REFUTED, True), result
    assert result.location is not None
    assert at in linecache.getline(result.location.file, result.location.line)
    line = drawn(result)
    refused = [(i, t) for i, t in line.faults if t.refused]
    assert [i for i, _ in refused] == [number], line
    assert line.faults[0] == refused[0], "harm is marked before the event that does it"
    tick = refused[0][1]
    assert " is at fault" in tick.refused
    assert text in source(tick.note)
    assert any(re.search(why, t.harm) for t in line.ticks)


def test_weights_that_are_changed_after_a_step_are_seen_in_the_next_window() -> None:
    found = said("moved")
    assert found.result("GA-INV-003").outcome is not Outcome.HOLDS
    result = found.result("GA-EQ-001")
    assert result.outcome is Outcome.REFUTED
    assert "weights change" in [tick.event for tick in drawn(result).ticks]


def test_the_state_counts_what_is_in_the_gradient() -> None:
    line = drawn(said("stale").result("GA-INV-002"))
    assert [t.after for t in line.ticks] == ["1", "2", "3", "4", "4 applied"]
    clipped = drawn(said("clips_each").result("GA-INV-005"))
    assert [t.after for t in clipped.ticks][:2] == ["1", "1 clipped"]


def test_a_right_step_has_no_trace() -> None:
    found = said("right")
    assert found.outcome is Outcome.HOLDS
    assert all(r.counterexample is None for r in found.results)
    assert "Events, " not in step.text(found)


@pytest.mark.parametrize("render", [step.text, step.render_markdown])
def test_the_run_is_shown_one_event_a_line(render: Any) -> None:
    rows = [row.strip() for row in render(said("stale")).splitlines()]
    at = next(i for i, row in enumerate(rows) if row.startswith("Events, GA-INV-002"))
    marks = [row[:4] for row in rows[at + 1 : at + 6]]
    assert (marks[0], marks[1:4]) == ("X  1", ["o  2", "o  3", "o  4"]), rows[at : at + 10]
    assert not any(row.startswith(("trace", "| trace")) for row in rows)


def test_what_is_no_run_is_said_and_nothing_of_it_is_obeyed() -> None:
    found = Result("GA-EQ-001", Outcome.REFUTED, "", counterexample={"trace": {"ticks": "none"}})
    [said_of_it] = step.run_of(found)
    assert "cannot be read" in said_of_it
    tick = {"event": "step\x1b[31m", "after": "", "note": "", "refused": "x", "harm": ""}
    found.counterexample = {"trace": {"title": "t\x1b[0m", "start": "", "ticks": [tick]}}
    assert not any("\x1b" in row for row in step.run_of(found))
