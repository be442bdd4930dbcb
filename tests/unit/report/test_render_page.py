"""The HTML page and its plot: self-contained, escaped, accessible, and true to the numbers."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from test_render import hostile

import gradproof.report.formats
from gradproof.report import charts
from gradproof.report.formats import html, markdown

Report = dict[str, Any]
VOID = {"meta", "br", "link", "img", "input", "hr"}
CSS = (Path(gradproof.report.formats.__file__).parent / "report.css").read_text(encoding="utf-8")
SAMPLES = {"green": sample.green, "red": sample.red, "partial": sample.partial}


class Page(HTMLParser):
    """Elements with their attributes, ids, text by element; raises on an element that is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words.append((self.open[-1] if self.open else "", data))

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attrs for tag, attrs in self.found if tag in tags]


@pytest.mark.parametrize("made", SAMPLES.values(), ids=SAMPLES)
def test_the_page_is_self_contained_and_sound(made: Any) -> None:
    text = html.render(made())
    page = Page(text)
    assert not page.all("link", "img", "iframe", "object", "base", "form")
    assert page.all("script") == [{}]
    assert not [a for _, a in page.found if any(k.startswith("on") or k in ("src", "srcset", "style") for k in a)]
    assert not re.search(r"url\(|@import|@font-face", text)
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert text.startswith("<!doctype html>")
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("title")) >= 1
    ids = Counter(a["id"] for _, a in page.found if "id" in a)
    assert max(ids.values()) == 1
    targets = [a["href"] for a in page.all("a")]
    assert all(t.startswith(("#", "https://", "http://")) for t in targets)
    assert {t[1:] for t in targets if t.startswith("#")} <= set(ids)
    assert {a["aria-labelledby"] for _, a in page.found if "aria-labelledby" in a} <= set(ids)


@pytest.mark.parametrize("made", SAMPLES.values(), ids=SAMPLES)
def test_every_table_has_headers_and_every_graphic_words(made: Any) -> None:
    page = Page(html.render(made()))
    assert page.all("table")
    assert all(a.get("scope") in ("col", "row", "rowgroup") for a in page.all("th"))
    assert len(page.all("h1")) == 1
    for attrs in page.all("svg"):
        stated = attrs.get("aria-label", "")
        assert attrs.get("aria-hidden") == "true" or (
            attrs["role"] == "img" and ("bound" in stated or "breaks" in stated)
        )
    for (tag, attrs), after in zip(page.found, page.found[1:], strict=False):
        if "effect" in attrs.get("class", "").split():
            assert (tag, after[1].get("aria-hidden")) == ("span", "true")


def test_every_state_word_stands_beside_its_symbol() -> None:
    page = html.render(sample.red())
    spans = re.findall(r'<span class="effect (\w+)"><span aria-hidden="true">(.)</span> ([^<]+)</span>', page)
    assert len(spans) == page.count('class="effect ')
    symbols = {"discharged": "●", "broken": "✕", "open": "○"}
    for tone, symbol, words in spans:
        assert symbol == symbols[tone]
        good = re.match(r"(DISCHARGED|MET|KILLED|TURNED RED|FRESH|HOLDS)", words) is not None
        assert good == (tone == "discharged"), words


def test_everything_is_escaped() -> None:
    nasty = "\"'><script>alert(1)</script><b onclick=x>&amp;{{ 7*7 }}</title></style>\x1b\u202e"
    text = html.render(hostile(sample.red(), nasty))
    page = Page(text)
    assert page.all("script") == [{}]
    assert not [a for _, a in page.found if "onclick" in a]
    assert len(page.all("style")) == 1
    marks = {"circle", "path", "text", "title"}  # a device that is not "cpu" has another mark, long words are wrapped
    tags, plain = (Counter(t for t, _ in p.found if t not in marks) for p in (page, Page(html.render(sample.red()))))
    assert tags - plain == Counter()
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    "reference", ["javascript:alert(1)", "data:text/html,x", "https://a.b/ c", "C51 DeepSpeed#1800"]
)
def test_only_one_plain_address_becomes_a_link(reference: str) -> None:
    report = sample.green()
    report["mutants"][0]["reference"] = reference
    assert not [a for a in Page(html.render(report)).all("a") if a["href"].startswith(reference[:11])]


def test_the_title_says_the_verdict() -> None:
    assert "<title>GATE MET: " in html.render(sample.green())
    assert "<title>GATE NOT MET: " in html.render(sample.red())
    partial = html.render(sample.partial())
    assert "<title>GATE NOT MET: " in partial
    assert "run partial" in partial


def test_sections_carry_what_a_release_manager_asks_for() -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", html.render(sample.red())).split())
    for words in (
        "4 of 4 controls killed", "2 of 2 covers reached", "micro_batches = 4 : the contract", "STUB-FL-001",
        "and 10 more of 22 in the evidence", "NOT reproduced", "reproduced (G_accum",
        "End-to-end difference: no proven bound",
        "BatchNorm couples the samples", "ABOVE the bound in 1 of 4 rows", "equal-size, mean-reduced micro-batches",
        "adamw-kernel-v1", "TURNED RED, as it must", "SURVIVED", "REFUTED as expected", "NOT_RUN ×4", "not required",
    ):  # fmt: skip
        assert words in text, words


def test_the_three_columns_are_never_mixed() -> None:
    report = sample.green()
    for row in report["measurements"]:
        if row["column"] != "accumulation":
            row["measured"] = 0.123456 if row["column"] == "end_to_end" else 0.789
    text = html.render(report)
    start, end = text.index('id="error"'), text.index('id="end-to-end"')
    beside = re.findall(r'<td class="num nowrap">([^<]*)</td><td class="num">([^<]*)</td>', text[start:end])
    assert len(beside) == len(charts.groups(charts.column(report, "accumulation")))
    assert {figure for _, figure in beside} == {"0.123"}
    assert text[start:end].count("0.123") == len(beside)
    assert "0.789" not in text[start:end]
    assert {"0.123", "0.789"} <= set(re.findall(r"0\.\d{3}", text[end:]))
    assert "outside_assumptions" not in text


def test_the_tolerance_is_shown_as_it_is_judged_beside_the_figure_that_it_does_not_judge() -> None:
    rows = [
        row(2, 1e-8, tolerance=1e-5),
        row(2, 3e-4, None, column="end_to_end"),
        row(2, 2e-4, None, column="end_to_end"),
    ]
    assert charts.apart({"measurements": rows}) == {("fp32", "cpu", 2): 3e-4}
    assert [charts.tolerated(one) for one in rows[:2]] == ["≤ 1e-5", "none"]
    for text in (html.render(sample.green()), markdown.render(sample.green())):
        assert "The tolerance judges the accumulation error alone" in text
        assert "≤ 1e-5" in text


def _palettes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    assert len(blocks) == 3
    names = ("light", "dark", "print")
    return {n: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", b)) for n, b in zip(names, blocks, strict=True)}


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_text_contrast_is_at_least_aa(mode: str) -> None:
    colours = _palettes()[mode]
    grounds = ["paper", "panel", "good-bg", "bad-bg", "wait-bg"]
    assert contrast("#777777", "#ffffff") < 4.5 < contrast("#000000", "#ffffff")
    for ink in ("ink", "dim", "good", "bad", "wait", "link"):
        for ground in grounds:
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def row(n: int, measured: float, bound: float | None = 1e-7, **extra: Any) -> Report:
    base = {"column": "accumulation", "device": "cpu", "dtype": "fp32", "net": "mlp", "n": n, "measured": measured}
    return base | {"bound": bound, "ratio": measured / bound if bound else None, "tolerance": None} | extra


def test_the_plot_places_numbers() -> None:
    rows = [row(2, 1e-8), row(8, 5e-8, 2e-7), row(32, 9e-8, 1e-6)]
    panel = charts.panels(rows)[0]
    x, y = panel.x, panel.y
    assert (y.low, y.high, y.strip) == (-8, -6, "")
    assert x.at(2) < x.at(8) < x.at(32)
    assert x.at(8) - x.at(2) == pytest.approx(x.at(32) - x.at(8))
    assert y.at(1e-8) - y.at(1e-7) == pytest.approx(y.at(1e-7) - y.at(1e-6))
    assert y.at(1e-6) < y.at(5e-8)
    svg = str(panel.svg)
    assert svg.count('class="measured"') == 3
    assert f'points="{x.at(2):.1f},{y.at(1e-7):.1f} ' in svg
    assert " above<" not in svg


def test_a_run_above_its_bound_is_marked_even_when_a_larger_one_is_within() -> None:
    rows = [row(4, 5e-8, 1e-8, net="linear"), row(4, 9e-8, 1e-6)]
    panel = charts.panels(rows)[0]
    assert panel.svg.count("1 above") == 1
    assert "1 of 2 rows" in panel.note
    assert "over proven: 5;" in panel.note
    assert re.fullmatch(r"ABOVE .* 1 of 2 rows", panel.rows[0].verdict)


def test_zeros_have_a_strip_and_no_line_leads_into_it() -> None:
    rows = [row(1, 0.0, 0.0), row(2, 1e-8), row(4, 1e-8)]
    y = charts.panels(rows)[0].y
    assert y.strip == "0"
    assert y.at(0) > y.start >= y.at(1e-8)
    line = re.search(r'<polyline class="bound" points="([^"]*)"', charts.panels(rows)[0].svg)
    assert line is not None
    assert len(line[1].split()) == 2


def test_a_subnormal_bound_does_not_stretch_the_axis() -> None:
    rows = [row(1, 0.0, 1.4e-45), row(2, 1e-8)]
    y = charts.panels(rows)[0].y
    assert (y.low, y.high, y.strip) == (-17, -7, "lower")
    assert y.at(1.4e-45) == y.at(0) > y.start


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stands_above_the_bound(value: float) -> None:
    panel = charts.panels([row(2, value), row(2, 1e-9)])[0]
    assert "1 above" in panel.svg
    assert "nan" not in panel.svg.lower().replace("not a number", "")
    assert panel.rows[0].above == 1
    assert panel.rows[0].worst["measured"] is value


def test_no_bound_is_said() -> None:
    panel = charts.panels([row(2, 1e-8, None)])[0]
    assert "no proven bound" in panel.note
    assert 'class="bound"' not in panel.svg
    assert panel.rows[0].verdict == "no proven bound"


def test_devices_have_shapes_of_their_own() -> None:
    panel = charts.panels([row(2, 1e-8), row(2, 1e-8, device="cuda")])[0]
    assert panel.svg.count('<circle class="measured"') == 1
    assert panel.svg.count('class="measured other"') == 1


def test_plot_text_is_escaped() -> None:
    panel = charts.panels([row(2, 1e-8, device="<b>", dtype='"><script>')])[0]
    assert "<b>" not in panel.svg
    assert "<script>" not in panel.svg


def test_summaries_keep_the_largest_and_never_merge_what_was_compared() -> None:
    rows = [row(n, v, None, note="x") for n, v in ((2, 1e-8), (8, 3e-8), (4, 2e-8))]
    found, other = charts.summaries([*rows, row(2, 9e-8, None, note="y")])
    assert (found.sizes, found.rows, found.worst["n"], found.name) == ((2, 4, 8), 3, 8, "x")
    assert other.name == "y"
