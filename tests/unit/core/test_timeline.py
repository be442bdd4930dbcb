"""Timelines: the text and the SVG say the same, name what goes wrong, and need nothing from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gradproof.core.timeline import Tick, Timeline, as_lines, as_svg

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


def drawing(line: Timeline) -> ElementTree.Element:
    return ElementTree.fromstring(str(as_svg(line)))


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
    assert drawing(line).findall("path") == []


def test_the_drawing_has_a_mark_for_every_event() -> None:
    svg = drawing(STALE)
    assert len(svg.findall("circle")) == 2
    assert [p.find("title").text for p in svg.findall("path")] == [  # type: ignore[union-attr]
        "accumulated onto <stale> & more",
        "it reaches a step",
    ]
    said = [t.text for t in svg.findall("text")]
    for word in (
        "a stale gradient",
        "accumulate",
        "step",
        "clean",
        "stepped",
        "3 (window 2)",
        "4 step: it reaches a step",
    ):
        assert word in said, word


def test_everything_is_drawn_inside_the_picture() -> None:
    svg = drawing(STALE)
    _, _, width, height = (float(v) for v in svg.attrib["viewBox"].split())
    for text in svg.findall("text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 < float(text.attrib["y"]) <= height
    for dot in svg.findall("circle"):
        assert 0 < float(dot.attrib["cx"]) < width


def test_long_words_are_wrapped_and_lost_nowhere() -> None:
    why = " ".join(f"word{i}" for i in range(60))
    svg = drawing(Timeline("long " * 40, "clean", (Tick("step", "stepped", refused=why),)))
    said = " ".join(t.text or "" for t in svg.findall("text"))
    assert set(why.split()) <= set(said.split())
    assert said.split().count("long") == 40


def test_the_drawing_uses_nothing_from_elsewhere() -> None:
    page = str(as_svg(STALE))
    for word in ("http", "url(", "href", "<script", "<style", "@import", "style="):
        assert word not in page, word
    assert "<stale>" not in page


def test_the_drawing_is_told_to_who_cannot_see_it() -> None:
    svg = drawing(STALE)
    assert svg.attrib["role"] == "img"
    assert "event 3, accumulate: accumulated onto <stale> & more" in svg.attrib["aria-label"]
    assert re.search(r"event 4, step: it reaches a step", svg.attrib["aria-label"])
