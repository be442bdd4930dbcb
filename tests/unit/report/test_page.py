"""The page of one verification: what is wrong is marked, what is right is not, and what users wrote is escaped."""

from __future__ import annotations

import re
import sys
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
import step_bench
from test_render_page import Page

from gradproof.core.outcome import Outcome
from gradproof.core.timeline import Tick, Timeline, as_json
from gradproof.report.formats import html, page
from gradproof.report.text import glossary
from gradproof.shadow.locations import Location
from gradproof.shadow.result import NAMES, OBLIGATIONS, Verification

NASTY = "\"'><script>alert(1)</script><b onclick=x>&amp;{{ 7*7 }}</style></title>\x1b\u202e"
RIGHT = ["1/8"] * 8


def weighed(found: Verification, *windows: list[str], expected: str = "1/8") -> Verification:
    """The verification with these weights of the samples, window by window."""
    found.weights = [
        {"window": at, "sample": 8 * at + i, "weight": by, "expected": expected, "ok": by == expected, "parameter": "w"}
        for at, weights in enumerate(windows)
        for i, by in enumerate(weights)
    ]
    return found


def broken(place: Location | None = None) -> Verification:
    """A wrong gradient with the weights of two windows and the run that shows it."""
    found = weighed(step_bench.refuted(place), RIGHT, ["1/2", *RIGHT[1:7], "1/4"])
    shown = Timeline("GA-EQ-001, window 2", "none", (
        Tick("backward", "1", "train.py:2", refused="the loss of train.py:2 is at fault"),
        Tick("backward", "2", "train.py:2"), Tick("backward", "3", "train.py:2"),
        Tick("step", "3 applied", "train.py:4", harm="the gradient is wrong"),
    ))  # fmt: skip
    found.result("GA-EQ-001").counterexample = {"accumulated": [4.0], "full_batch": [1.0], "trace": as_json(shown)}
    return found


def rounded() -> Verification:
    """Rounding bounds: one kept, one broken, one that was not found."""
    found = weighed(step_bench.held(rounding=True), RIGHT)
    row = {"quantity": "grad", "param": "w", "window": 1, "dtype": "float32", "top": [], "reason": ""}
    found.rounding = [
        {**row, "bound": 4e-6, "measured": 1e-6}, {**row, "bound": 1e-6, "measured": 3e-6},
        {**row, "bound": None, "measured": 1e-6, "reason": "an operator without a rule"},
    ]  # fmt: skip
    return found


def bars(text: str) -> list[tuple[str, float, float]]:
    """Class, place from the top and height of each bar of a sample."""
    drawn = r'<rect class="(\w+)" x="[^"]*" width="[^"]*" y="([^"]*)" height="([^"]*)">'
    return [(kind, float(y), float(height)) for kind, y, height in re.findall(drawn, text)]


def words(text: str) -> str:
    """What the page says, without the style."""
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", text, flags=re.S)).split()))


def test_a_wrong_weight_is_coloured_and_a_right_one_is_not() -> None:
    text = page.of_step(broken())
    assert [kind for kind, _, _ in bars(text)] == ["wrong", *["ok"] * 6, "wrong", *["ok"] * 8]  # what is wrong first
    heights = [height for _, _, height in bars(text)]
    assert heights[0] == pytest.approx(4 * heights[1], rel=0.02)
    assert heights[7] == pytest.approx(2 * heights[1], rel=0.02)
    assert "2 of 8 samples have a wrong weight" in words(text)
    assert "sample 8: weight 1/2 ✕, the right weight is 1/8" in words(text)
    lines = {float(y) for y in re.findall(r'<line class="right"[^>]*y1="([^"]*)"', text.partition("</svg>")[0])}
    assert lines == {next(y for kind, y, _ in bars(text) if kind == "ok")}  # where the tops of the right bars are


@pytest.mark.parametrize("wrong", ["-1/8", "0", "1/16"])
def test_weights_below_the_right_one_are_seen(wrong: str) -> None:
    text = page.of_step(weighed(step_bench.refuted(), [wrong, *RIGHT[1:]]))
    (kind, y, height), (_, top, _) = bars(text)[:2]
    assert (kind, height > 0) == ("wrong", True)
    assert y > top


def test_a_page_without_refutation_has_no_mark_of_one() -> None:
    text = page.of_step(weighed(step_bench.held(), RIGHT, RIGHT))
    assert "HOLDS: train.py:step" in words(text)
    assert {kind for kind, _, _ in bars(text)} == {"ok"}
    assert "✕" not in words(text)
    classes = {name for _, attrs in Page(text).found for name in attrs.get("class", "").split()}
    assert not classes & {"broken", "open", "wrong"}
    assert not Page(text).all("article")


def test_the_page_says_first_whether_to_release() -> None:
    undecided = step_bench.held()
    undecided.results[0].outcome = Outcome.UNKNOWN
    name = undecided.results[0].obligation
    advice = {"Do not release: something is wrong": broken(), "Do not release yet: nothing is refuted": undecided}
    advice["Release: nothing that was judged is wrong, or left open."] = step_bench.held()
    for said, found in advice.items():
        assert said in words(page.of_step(found)).partition("Command")[0]
    undecided.allow_undecided = [name]
    assert "wrong, and what is open is allowed to be." in words(page.of_step(undecided))


def test_the_refuted_obligation_stands_first_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def step(run):\n    loss.backward() < 1\n")
    found = broken(Location(str(tmp_path / "train.py"), 2, "step"))
    found.results[0].outcome = Outcome.UNKNOWN
    said = words(page.of_step(found))
    order = ["REFUTED: train.py:step", "The gradient of the full batch GA-EQ-001 REFUTED", "train.py:2 in step",
             "2 loss.backward() < 1", f"Wrong {step_bench.REASON.capitalize()}", "Found In window 2", "Expected 1/8",
             "Help Divide the loss", "Every sample once GA-DATA-001 UNKNOWN, not decided", "What holds",
             "The weight of each sample", "The events, in order", "What was not judged",
             "What was assumed"]  # fmt: skip
    places = [said.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_every_obligation_has_its_name_and_a_sentence() -> None:
    said = words(page.of_step(broken()))
    for name, sentence in OBLIGATIONS.items():
        assert NAMES[name].capitalize()[:1] + NAMES[name][1:] in said
        assert sentence[1:] in said


def test_the_events_are_in_order_and_the_wrong_one_is_marked() -> None:
    rows = re.findall(r'<li class="(\w*)">(.*?)</li>', page.of_step(broken()).partition('<ol class="events">')[2], re.S)
    events = [(kind, words(text)) for kind, text in rows[:3]]
    assert events == [
        ("broken", "✕ backward train.py:2 the loss of train.py:2 is at fault"), ("", "backward ×2 train.py:2"),
        ("broken", "▲ step train.py:4 the gradient is wrong"),
    ]  # fmt: skip
    found = step_bench.held()
    found.events = [{"event": kind, "location": "a.py:1", "window": at} for at, kind in
                    [(0, "backward"), (0, "backward"), (0, "step"), (1, "zero"), (1, "backward")]]  # fmt: skip
    assert "Window 1 backward ×2 a.py:1 step a.py:1" in words(page.of_step(found))


def test_an_error_is_drawn_against_its_bound() -> None:
    text = page.of_step(rounded())
    shares = re.findall(r'<rect class="(\w+)" width="([\d.]+)" height="10"/>', text)
    assert shares == [("ok", "25.0"), ("wrong", "100.0")]
    assert "an operator without a rule" in text
    assert "What was not judged nothing is left out" in words(text)
    assert "the rounding of floats" in words(page.of_step(step_bench.held()))


def test_everything_is_escaped() -> None:
    found = rounded()
    found.rounding[0] |= {"param": NASTY, "top": [{"op": f"a.{NASTY}", "location": NASTY, "share": 0.5}]}
    texts = [found.assumptions, found.uncovered, found.notes, found.paths, found.havocked]
    for some in texts:
        some.append(NASTY)
    weighed(found, ["1/2", *RIGHT[1:]])
    found.weights[0] |= {"parameter": NASTY}
    found.subject, found.versions, found.shapes = f"{NASTY}.py:step", {NASTY: NASTY}, {NASTY: NASTY}
    found.config |= {"optimizer": NASTY, NASTY: NASTY}
    found.events = [{"event": NASTY, "location": NASTY, "window": 0}]
    trace = Timeline(NASTY, NASTY, (Tick(NASTY, NASTY, NASTY, NASTY, NASTY),))
    for result, outcome in zip(found.results, Outcome, strict=False):
        result.outcome, result.reason, result.help, result.reach = outcome, NASTY, NASTY, NASTY
        result.location = Location(NASTY, 1, NASTY)
        result.counterexample = {NASTY: NASTY, "trace": as_json(trace)}
    text = page.of_step(found)
    parsed = Page(text)
    assert not parsed.all("script", "img", "link", "iframe")
    assert not [a for _, a in parsed.found if any(k.startswith("on") or k in ("src", "style", "href") for k in a)]
    assert len(parsed.all("style")) == 1
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{{ 7*7 }}" in text


@pytest.mark.parametrize("weight", ["≈ 0.3", "nan", "1/0", ""])
def test_a_weight_that_is_no_number_is_not_drawn(weight: str) -> None:
    assert bars(page.of_step(weighed(step_bench.refuted(), [weight, *RIGHT[1:]], RIGHT))) != []
    assert page.weighed(weighed(step_bench.refuted(), [weight, *RIGHT[1:]])) == []


def test_many_samples_are_few_bars() -> None:
    found = weighed(step_bench.refuted(), ["1/8"] * 3000 + ["1/4"] * 1000)
    ((few, table),) = page.weighed(found)
    assert [(b.first, b.size, b.ok) for b in few] == [(0, 3000, True), (3000, 1000, False)]
    assert few == table
    assert "1000 of 4000 samples have a wrong weight" in words(page.of_step(found))
    ((many, _),) = page.weighed(weighed(step_bench.refuted(), ["1/8", "1/4"] * 2000))
    assert len(many) == page.MOST


def test_every_term_that_a_page_explains_is_in_the_glossary_and_is_explained_once() -> None:
    known = {word for row in glossary() for word in row.split(", ")}
    assert set(html.TERMS) <= known
    text = page.of_step(broken())
    rows = re.findall(r"<dfn>(.*?)</dfn>", text)
    assert Counter(rows).most_common(1)[0][1] == 1
    assert {"accumulation window, window", "full batch", "REFUTED", "obligation"} <= set(rows)
    for row in rows:
        used = words(re.sub(r'<p class="gloss">.*?</p>', "", text.partition(f"<dfn>{row}</dfn>")[0]))
        assert any(re.search(rf"\b{term}", used) for term in row.split(", ")), row


def test_the_body_is_the_page_without_its_head() -> None:
    found = broken()
    body = page.body(found)
    assert body.startswith('<div class="gradproof">')
    assert not Page(body).all("html", "head", "meta", "script")
    assert words(body)[:200] in words(page.of_step(found))


def test_the_command_is_said_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gradproof", "watch", "--", "python", "a b.py", "<b>"])
    text = page.of_step(step_bench.held())
    assert "<code>gradproof watch -- python &#39;a b.py&#39; &#39;&lt;b&gt;&#39;</code>" in text
    assert "Command" not in page.body(step_bench.held())
