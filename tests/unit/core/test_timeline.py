"""Timelines: the text and the page say the same, and name what goes wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradproof.core.timeline import Tick, Timeline, as_lines
from gradproof.report.formats.html import environment

STALE = Timeline(
    "a stale gradient",
    "clean",
    (
        Tick("accumulate", "full", "window 1"),
        Tick("step", "stepped"),
        Tick("accumulate", "full", "window 2", refused="accumulated onto <stale> & more"),
        Tick("step", "stepped", harm="it reaches a step"),
    ),
)


def shown(line: Timeline) -> str:
    module: Any = environment().get_template("timeline.html.j2").module
    return str(module.timeline("KANI-GA-002", line))


def test_the_text_has_a_line_for_each_event() -> None:
    assert as_lines(STALE) == [
        "o  1 accumulate  window 1  full",
        "o  2 step                  stepped",
        "X  3 accumulate  window 2  full",
        "!  4 step                  stepped",
        "X 3 accumulate: accumulated onto <stale> & more",
        "! 4 step: it reaches a step",
    ]


def test_the_same_words_are_said_once() -> None:
    assert Tick("step", "stepped", refused="twice", harm="twice").words == "twice"
    assert Tick("step", "stepped", refused="twice", harm="again").words == "twice; again"
    assert Tick("step", "stepped", refused="twice", harm="again").mark == "X"


def test_a_timeline_needs_an_event() -> None:
    with pytest.raises(ValueError, match="needs an event"):
        Timeline("nothing", "clean", ())


def test_a_right_run_has_no_mark() -> None:
    line = Timeline("right", "clean", STALE.ticks[:2])
    assert line.faults == ()
    assert not {"X", "!"} & set("".join(as_lines(line)))
    assert "broken" not in shown(line)


def test_a_page_marks_each_event_at_fault_and_shows_every_state() -> None:
    page = shown(STALE)
    assert page.count("<li") == len(STALE.ticks)
    marked = re.findall(r'<li class="broken">(.) (\d) <b>(\w+)</b>', page)
    assert marked == [("✕", "3", "accumulate"), ("▲", "4", "step")]
    assert re.findall('class="state">(.*?)<', page) == [t.after for t in STALE.ticks]
    for word in ("a stale gradient", "at the start: clean", "window 2", "it reaches a step", "&lt;stale&gt; &amp;"):
        assert word in page, word
    assert "<stale>" not in page
