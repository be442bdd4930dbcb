"""The sections "Rounding" and "The stub against the real kernel", and the timelines: in every format, never greener."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import report_sample as sample
import study_sample as studies

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect
from gradproof.core.timeline import as_json, from_json
from gradproof.report import charts, consistency, rounding, stories as traces, views
from gradproof.report.formats import html, markdown

Report = dict[str, Any]
SCHEMA = Path(__file__).resolve().parents[3] / "reports/report.schema.json"


@pytest.fixture
def green() -> Report:
    return sample.green()


def section(page: str, name: str) -> str:
    start = page.index(f'<section id="{name}"')
    return page[start : page.index("</section>", start)]


def absent(report: Report, status: str = "absent") -> None:
    report["rounding"] = {"status": status, "reason": f"it is {status}; make it", "document": None}


def test_every_threshold_is_shown_in_every_format(green: Report) -> None:
    rows = green["rounding"]["document"]["thresholds"]
    text, page = markdown.render(green), section(html.render(green), "rounding")
    assert len(rounding.thresholds(green)) == len(rows)
    assert page.count("<td>2e-3 (bf16)</td>") == sum(r["tolerance"] == "2e-3" for r in rows)
    for words in rounding.thresholds(green):
        assert all(f">{cell}<" in page for cell in words)
        assert f"| {' | '.join(markdown.escape(cell) for cell in words)} |" in text
    assert json.loads(consistency.as_json(green))["rounding"] == green["rounding"]
    assert "FRESH" in page


def test_a_stale_study_is_called_stale_wherever_it_is_shown(green: Report) -> None:
    green["rounding"] |= {"status": "stale", "reason": "rounding/answer.py changed"}
    page, text = section(html.render(green), "rounding"), markdown.render(green)
    assert "STALE" in page
    assert "rounding/answer.py changed" in page
    assert re.search(r"STALE, .*: rounding/answer\.py changed", text)
    assert "discharged" not in page
    answers = [cell for row in rounding.thresholds(green) for cell in (row[4], row[6]) if cell != "none"]
    assert answers
    assert all("(stale)" in cell for cell in answers)
    assert page.count(" buffer (stale)") == 3


@pytest.mark.parametrize("status", ["absent", "rejected"])
def test_a_study_that_is_not_there_is_told(green: Report, status: str) -> None:
    absent(green, status)
    page, text = section(html.render(green), "rounding"), markdown.render(green)
    assert f"{status.upper()}: it is {status}; make it." in page
    assert f"{status.upper()}: it is {status}; make it." in text
    assert "<svg" not in page
    assert "discharged" not in page
    assert "no plot" in page


@pytest.mark.parametrize(
    "lie",
    [
        lambda r: r["rounding"].update(document=None),
        lambda r: r["rounding"].update(status="absent"),
        lambda r: r["rounding"].update(status="proved"),
        lambda r: r["rounding"]["document"]["series"][0]["points"][1].update(attained="1"),
        lambda r: r["kernels"]["relies"][1].update(state="HOLDS"),
        lambda r: r["kernels"]["relies"][0].update(operator="divine"),
        lambda r: r["kernels"]["documents"][0]["rows"][0].update(outcome="REFUTED"),
        lambda r: r["kernels"]["documents"][0].update(status="rejected"),
        lambda r: r["kernels"]["documents"][0].update(rows=[]),
    ],
)
def test_a_section_that_concludes_more_than_its_parts_is_refused(green: Report, lie: Callable[[Report], Any]) -> None:
    made = copy.deepcopy(green)
    consistency.require(made)
    lie(made)
    with pytest.raises(GradproofError, match="REPORT-INCONSISTENT"):
        consistency.require(made)


def test_the_report_schema_takes_both_sections_and_traces(green: Report) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    data = json.loads(consistency.as_json(green))
    assert [e.message for e in validator.iter_errors(data)] == []
    for damage in (
        lambda r: r["rounding"].update(status="fine"),
        lambda r: r["kernels"]["relies"][0].update(state="FINE"),
        lambda r: r["kernels"]["documents"][0]["rows"][0].pop("claim"),
        lambda r: r.pop("rounding"),
        lambda r: r.pop("kernels"),
        lambda r: next(k for c in r["checks"] for k in c["controls"] if "trace" in k["counterexample"])[
            "counterexample"
        ].update(trace={"title": "x"}),
    ):
        broken = copy.deepcopy(data)
        damage(broken)
        assert not validator.is_valid(broken)


def test_the_plot_is_true_to_the_numbers(green: Report) -> None:
    document = green["rounding"]["document"]
    for panel, series in zip(charts.rounding_panels(document), document["series"], strict=True):
        svg, x, y = ElementTree.fromstring(str(panel.svg)), panel.x, panel.y
        points = [(p["n"], *(float(Fraction(p[k])) for k in ("bound", "attained"))) for p in series["points"]]
        points = [p for p in points if p[1] > 0]
        asked = {r["tolerance"] for r in document["thresholds"] if r["buffer"] == series["buffer"] == r["gradients"]}
        [line] = svg.findall("polyline[@class='bound']")
        assert line.get("points") == " ".join(f"{x.at(n):.1f},{y.at(bound):.1f}" for n, bound, _ in points)
        marks = svg.findall("circle[@class='measured']") + svg.findall("circle[@class='row']")
        assert {(m.get("cx"), m.get("cy")) for m in marks} == {
            (f"{x.at(n):.1f}", f"{y.at(attained):.1f}") for n, _, attained in points
        }
        solid = [n for n, _, _ in points if n in (1, 2, 4, 8)]
        assert len(svg.findall("circle[@class='measured']")) == len(solid)
        levels = [t.get("points", "").split() for t in svg.findall("polyline[@class='tolerance']")]
        heights = {place.partition(",")[2] for level in levels for place in level}
        assert heights == {f"{y.at(float(v)):.1f}" for v in asked}
        assert asked <= {t.text for t in svg.findall("text[@class='tick']")}
        assert len(asked) == (1 if series["buffer"] == "fp32" else 2)
        stated = svg.get("aria-label") or ""
        assert "Proven bound" in stated


def test_the_axes_hold_every_number_and_grow_by_powers_of_two() -> None:
    asked = {"buffer": "fp32", "gradients": "fp32", "tolerance": "1e-5"}
    points = [
        {"n": n, "bound": f"{n}/100000000", "attained": f"{9 * n}/1000000000", "ratio": 1 / 0.9}
        for n in (2, 3, 4, 100, 4096)
    ]
    [panel] = charts.rounding_panels({"series": [{"buffer": "fp32", "points": points}], "thresholds": [asked]})
    x, y = panel.x, panel.y
    assert x.ticks == tuple(2**k for k in range(1, 13))
    assert 10.0**y.low <= 1.8e-8
    assert 10.0**y.high >= 4.096e-5
    assert x.at(2) < x.at(3) < x.at(4) < x.at(100) < x.at(4096)
    assert y.at(1e-8) > y.at(1e-5)
    [alone] = charts.rounding_panels({"series": [{"buffer": "fp32", "points": points[:1]}], "thresholds": []})
    assert len(alone.x.ticks) >= 2


def test_a_series_with_nothing_above_zero_has_no_panel() -> None:
    document = studies.rounding(
        series=[{"buffer": "fp32", "points": [{"n": 1, "bound": "0", "attained": "0", "ratio": None}]}]
    )
    assert charts.rounding_panels(document) == []


def test_kernels_are_told_by_operator_dtype_and_device(green: Report) -> None:
    [document] = [d for d in green["kernels"]["documents"] if d["status"] == "fresh"]
    document["rows"] += [
        {**document["rows"][0], "section": "matmul", "operator": "matmul", "flags": {"allow_tf32": tf32},
         "outcome": outcome, "mismatches": off, "ratio": worst, "names": names, "reason": ""}
        for tf32, outcome, off, worst, names in (
            (False, "HOLDS", 0, 0.5, []), (True, "REFUTED", 3, 7.25, ["TF32: factors are rounded to 11 bits"])
        )
    ]  # fmt: skip
    sections = dict(rounding.kernels(document))
    without, one = sections["matmul"]
    assert rounding.kernel_words(without)[3].endswith("allow_tf32=False")
    assert rounding.kernel_words(one)[3:5] == (f"{one['claim']}, allow_tf32=True", "REFUTED")
    assert rounding.kernel_words(one)[6:9] == ("3", "7.25", "TF32: factors are rounded to 11 bits")
    assert re.fullmatch(r"2 rows, HOLDS, REFUTED; .* 7\.25", rounding.section_words([without, one]))
    page, text = section(html.render(green), "kernels"), markdown.render(green)
    for words in (*one["names"], "7.25", "kernels/cpu.json: quick run on cpu", "kernels/old.json is rejected: cut"):
        assert words in page
        assert words in text
    assert '<span class="effect broken"><span aria-hidden="true">✕</span> REFUTED</span>' in page


def test_only_a_row_that_holds_is_green() -> None:
    states = ("HOLDS", "REFUTED", "ERROR", "DIFFERS", "NOT_RUN", "UNUSED", "something else")
    assert [s for s in states if rounding.tone(s) is Effect.DISCHARGED] == ["HOLDS"]


def test_what_is_assumed_of_a_device_is_said_in_every_format(green: Report) -> None:
    words = "assumption: no conformance row for add fp32 on cuda"
    assert words in section(html.render(green), "kernels")
    assert words in section(html.render(green), "reach")
    assert words in markdown.render(green)
    assert (words, ["STUB-FL-001"]) in views.assumptions(green)
    assert any(re.match(r"cuda: 0 of 1 .* 1 assumed \(NOT_RUN, ", words) for words in rounding.devices(green))
    with_gpu = sample.green("release", True)
    assert words not in markdown.render(with_gpu)
    assert rounding.assumed(with_gpu) == []


def test_without_a_document_of_kernels_the_report_says_so(green: Report) -> None:
    green["kernels"] = {"documents": [], "relies": []}
    page = section(html.render(green), "kernels")
    assert "NOT_RUN" in page
    assert "reports/kernels/cpu.json" in page
    assert [words.partition(" rounded")[0] for words in rounding.devices(green)] == ["cpu: 0 of 0", "cuda: 0 of 0"]


def test_a_trace_is_drawn_for_each_mutant_that_carries_one(green: Report) -> None:
    page, text = html.render(green), markdown.render(green)
    shown = traces.traces(green)
    assert {name for _, name, _ in shown} == {"zero_skipped"}
    assert page.count('<details class="trace">') == len(shown) > 0
    [drawing, *_] = re.findall(r'<details class="trace">.*?</details>', page, re.DOTALL)
    assert "onto a stale gradient" in drawing
    assert '<li class="broken">✕ ' in drawing
    assert "step X accumulate ! step" in text
    assert re.search(r"\b2 accumulate: onto .*; 3 step: it", text)


def test_a_mutant_that_lives_and_a_check_without_a_trace_draw_nothing(green: Report) -> None:
    for check in green["checks"]:
        for control in check["controls"]:
            if "trace" in control["counterexample"]:
                control["killed"] = None
    assert traces.traces(green) == []
    assert '<details class="trace">' not in html.render(green)
    for check in green["checks"]:
        for control in check["controls"]:
            control["killed"] = True
            if "trace" in control["counterexample"]:
                control["counterexample"]["trace"] = None
    assert traces.traces(green) == []


def test_the_right_subject_of_an_expected_refutation_is_drawn(green: Report) -> None:
    naive = next(c for c in green["checks"] if c["id"] == "KANI-GA-006")
    naive["counterexample"] = {**naive["counterexample"], "trace": sample.TRACE}
    assert ("KANI-GA-006", naive["subject"]) in [(check, name) for check, name, _ in traces.traces(green)]


@pytest.mark.parametrize(
    "trace", [{"title": "x"}, {"title": "x", "start": "y", "ticks": []}, {**sample.TRACE, "more": 1}, "a trace",
              {**sample.TRACE, "ticks": [{"event": 1, "after": "x"}]}, {**sample.TRACE, "ticks": [{"colour": "red"}]}]
)  # fmt: skip
def test_what_is_no_timeline_is_refused(green: Report, trace: Any) -> None:
    with pytest.raises(ValueError, match="timeline"):
        from_json(trace)
    green["checks"][1]["controls"][0]["counterexample"]["trace"] = trace
    with pytest.raises(GradproofError, match="REPORT-SHAPE"):
        html.render(green)


def test_a_timeline_comes_back_from_json() -> None:
    line = from_json(sample.TRACE)
    assert as_json(line) == sample.TRACE
    assert from_json(json.loads(json.dumps(as_json(line)))) == line


def test_documents_of_two_machines_and_thirty_traces_leave_the_page_below_its_size(green: Report) -> None:
    """The reference report without them takes 570 kB of the megabyte that a page may have."""
    bare = copy.deepcopy(green)
    absent(bare)
    bare["kernels"] = {"documents": [], "relies": []}
    before = len(html.render(bare).encode())
    [document] = [d for d in green["kernels"]["documents"] if d["status"] == "fresh"]
    rows = [{**document["rows"][0], "operator": f"buf.add_(g / {n}) transformer", "ratio": 0.5} for n in range(250)]
    green["kernels"]["documents"] = [
        {**document, "path": f"kernels/{d}.json", "rows": rows + document["rows"]} for d in "ab"
    ]
    green["kernels"]["relies"] *= 20
    [control] = [k for k in green["checks"][2]["controls"] if k["counterexample"].get("trace")]
    green["checks"][2]["controls"] += [{**control, "name": f"{control['name']}_{i}"} for i in range(29)]
    page = html.render(green)
    assert page.count('<details class="trace">') >= 30
    assert page.count("buf.add_(g / 249)") == 2
    assert len(page.encode()) - before < 400_000
