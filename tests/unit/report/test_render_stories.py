"""What the page tells of an obligation, the mutants, the claims, and that five hundred checks stay below 1 MB."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from test_render_page import Page

from gradproof.report import stories, text as fmt
from gradproof.report.build import LONGEST, texts
from gradproof.report.formats import html

Report = dict[str, Any]
MUTANT: Report = {"name": "m", "obligation": "O", "reference": "", "killed_by": [], "survived": [], "not_tried": []}


def mutant(**lists: list[str]) -> Report:
    return MUTANT | lists


def test_a_survivor_is_never_hidden_by_the_devices_that_killed() -> None:
    report = sample.green()
    killed = next(m for m in report["mutants"] if "FALSIFY-GA-001@cpu-fp16" in m["killed_by"])
    report["mutants"][1]["not_tried"] = ["KANI-GA-003"]
    page = html.render(report)
    assert "SURVIVED" not in page.partition('id="mutants"')[2].partition("</section>")[0]
    killed["killed_by"].remove("FALSIFY-GA-001@cpu-fp16")
    killed["survived"] = ["FALSIFY-GA-001@cpu-fp16"]
    report["verdict"] |= {"met": False, "exit": "broken", "code": 1, "reasons": ["a mutant survived"]}
    rows = html.render(report).partition('aria-label="Mutants"')[2].partition("</table>")[0].split("<tr ")
    [row] = [row for row in rows if f">{killed['name']}<" in row]
    assert "SURVIVED" in row
    assert "survived <span" in row
    assert len([row for row in rows if "not tried by" in row]) == 1


def test_mutants_are_told_with_the_clause_that_they_break() -> None:
    section = html.render(sample.green()).partition('aria-label="Mutants"')[2].partition("</table>")[0]
    for name, (clause, *_) in sample.REFERENCES.items():
        assert re.search(rf">{name}<.*?data-label=\"Breaks\">{clause}<", section), name


@pytest.mark.parametrize(
    ("lists", "certain"),
    [
        ({"killed_by": ["K"]}, True),
        ({"killed_by": ["K"], "survived": ["F"]}, False),
        ({"killed_by": ["K"], "not_tried": ["F"]}, False),
        ({}, False),
    ],
)
def test_a_mutant_is_certain_only_when_every_check_killed_it(lists: dict[str, list[str]], certain: bool) -> None:
    assert stories.certain(mutant(**lists)) is certain


def test_a_story_tells_bounds_with_their_reasons_and_the_worst_first() -> None:
    story = next(s for s in stories.stories(sample.red()) if s.obligation and s.obligation["id"] == "GA-EQ-001")
    assert ("micro_batches", 4, "the contract's own bound", "KANI-GA-001, KANI-GA-006") in story.bounds
    assert story.answers[0] == ("REFUTED, nothing established", "BROKEN", ("FALSIFY-GA-001@cpu-fp16",))
    assert {stories.wrong(s.check) for s in story.counterexamples} == {True, False}


def test_what_claims_no_obligation_is_told_too() -> None:
    made = stories.stories(sample.green())
    assert [s.obligation is None for s in made].count(True) == 1
    assert {n for s in made for _, _, ids in s.answers for n in ids} == {c["id"] for c in sample.green()["checks"]}


def with_sources() -> Report:
    report = sample.red()
    for check in report["checks"]:
        check["harness"] = "symbolic.accumulation.falsify:run" if check["layer"] == "cpu" else ""
    text = 'def run(check):\n    return "</code></pre><script>alert(1)</script>"\n'
    report["harnesses"] = {
        "symbolic.accumulation.falsify:run": {"path": "symbolic/accumulation/falsify.py", "line": 7, "text": text}
    }
    bad = next(c for c in report["checks"] if c["outcome"] == "REFUTED" and c["effect"] == "BROKEN")
    bad["counterexample"]["trace"] = sample.TRACE
    return report


def test_the_source_of_a_harness_stands_once_folded_and_escaped() -> None:
    text = html.render(with_sources())
    assert text.count("return &#34;&lt;/code&gt;") == 1
    assert Page(text).all("script") == [{}]
    (folded,) = [a for a in Page(text).all("details") if a.get("class") == "source"]
    assert "open" not in folded
    assert "symbolic/accumulation/falsify.py:7" in text
    assert text.count(f'href="#{folded["id"]}"') > 6


def test_the_counterexample_of_a_subject_is_drawn_with_its_obligation() -> None:
    text = html.render(with_sources())
    article = text.partition('id="ob-GA-EQ-001"')[2].partition("</article>")[0]
    drawn = article.partition('<div class="shown "')[2].partition("</div></div>")[0]
    assert "FALSIFY-GA-001@cpu-fp16" in drawn
    assert re.search(r"✕ 2 <b>accumulate</b>.*onto", drawn)
    assert "Timeline of" not in html.render(sample.red()).partition('id="ob-GA-EQ-001"')[2].partition("</article>")[0]


def test_claims_are_told_where_there_are_some() -> None:
    report = sample.red()
    assert 'id="claims"' not in html.render(report)
    rows = [{"id": "C1", "claim": "a <b>claim</b>", "verdict": "CONFIRMED", "checks": ["KANI-GA-003", "X-9"]}]
    text = html.render(report | {"claims": rows})
    section = text.partition('<section id="claims"')[2].partition("</section>")[0]
    assert "a &lt;b&gt;claim" in section
    assert '<span aria-hidden="true">✕</span> KANI-GA-003' in section
    assert "X-9 <span" in section
    assert 'href="#claims"' in text


def many(count: int) -> Report:
    """A report of `count` checks, each with the controls, covers and bounds of a real one, in the sample's shape."""
    report = sample.red()
    proofs = [c for c in report["checks"] if c["layer"] != "cuda"]
    checks, cells = [], report["obligations"][0]["cells"]
    for place in range(count):
        check = copy.deepcopy(proofs[place % len(proofs)])
        check["id"] = f"{check['id'].partition('@')[0]}-V{place:03d}"
        check["reason"] = f"{place} paths, 310 checks, none falsifiable within what the bounds say of them"
        check["bounds"] = [{"name": n, "value": 4, "reason": f"{n}: the fewest that tell {place} apart from others"}
                           for n in ("micro_batches", "paths", "branches")]  # fmt: skip
        check["obligations"], check["stubs"] = ["GA-EQ-001"], []
        checks.append(check)
    report["checks"] = checks
    for layer, cell in cells.items():
        cell["checks"] = [c["id"] for c in checks if c["layer"] == layer]
    for ob in report["obligations"][1:]:
        for cell in ob["cells"].values():
            cell["checks"] = []
    report["kernels"]["relies"] = []
    for ob in report["obligations"]:
        ob["effect"] = "BROKEN"
        for cell in ob["cells"].values():
            cell["effect"] = "BROKEN" if cell["checks"] else None
    for row in report["mutants"]:
        row |= {"killed_by": [c["id"] for c in checks][:9], "survived": [], "not_tried": []}
    stated = [c["effect"] for c in checks]
    report["totals"] |= {"checks": count, **{e.lower(): stated.count(e) for e in ("DISCHARGED", "BROKEN", "OPEN")}}
    return report


def test_five_hundred_checks_stay_below_one_megabyte_and_nothing_undischarged_is_shortened() -> None:
    report = many(500)
    text = html.render(report)
    assert len(text.encode()) < 1_000_000
    assert text.count('<tbody class="check"') == 500
    folds = Page(text).all("details")
    open_ = sum(c["effect"] != "DISCHARGED" for c in report["checks"])
    assert len([f for f in folds if f.get("class") in ("weak", "refuted", "timeout")]) == open_ > 0


def test_five_hundred_checks_with_a_run_of_each_counterexample_stay_below_one_megabyte() -> None:
    """Twelve events each, with the words of a real one, and none is left out."""
    report = many(500)
    stated = {"refused": "the reference has [0.02053, 0.008292, 0.004715, ...] here", "harm": "GA-EQ-001 breaks"}
    ticks = [
        {"event": "accumulate", "after": "[0.04107, 0.01658, 0.009431, ...]", "note": "", "refused": "", "harm": ""}
        for _ in range(12)
    ]
    ticks[3] |= stated
    trace = {"title": "GA-EQ-001, linear/N=2", "start": "", "ticks": ticks}
    own = [c for c in report["checks"] if c.get("counterexample")]
    killed = [k for c in report["checks"] for k in c["controls"] if k.get("counterexample")]
    for shown in [*own, *killed]:
        shown["counterexample"]["trace"] = trace
    text = html.render(report)
    assert len(text.encode()) < 1_000_000
    stories = text.partition('id="stories"')[2].partition('id="checks"')[0]
    assert stories.count('aria-label="Timeline of') == len(own)
    assert len(re.findall(r"✕ 4 <b>accumulate</b>.*?\[0\.02053", stories)) == len(own)


def test_a_page_that_would_be_too_large_tells_less_of_what_is_discharged(monkeypatch: pytest.MonkeyPatch) -> None:
    full = html.render(with_sources())
    monkeypatch.setattr(html, "MOST", 1000)
    least = html.render(with_sources())
    assert len(least) < len(full)
    assert "page stays small" in least
    assert "page stays small" not in full
    for name in ("FALSIFY-GA-001@cpu-fp16", "KANI-GA-003", "CROSS-GA-005"):
        row = least.partition(f'id="{fmt.anchor("check", name)}"')[2].partition("</tbody>")[0]
        assert "<details" in row, name
    assert "onto a stale gradient" in least


def test_the_text_of_a_harness_is_cut_out_and_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "ws" / "symbolic"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    body = "raise SystemExit('imported')\n\n\n@trace\ndef one(check):\n    return 1\n\n\n"
    body += "class Two:\n    def three(self):\n        pass\n"
    (folder / "toy.py").write_text(body)
    (folder / "broken.py").write_text("def (:\n")
    (tmp_path / "stranger.py").write_text("def one(): ...\n")
    (folder / "link.py").symlink_to(tmp_path / "stranger.py")
    names = [f"symbolic.{n}" for n in ("toy:one", "toy:Two.three", "toy:four", "broken:one", "link:one", "gone:one")]
    found = texts([*names, "", "symbolic.toy"], tmp_path / "ws")
    assert found == {
        "symbolic.toy:one": {"path": "symbolic/toy.py", "line": 4, "text": "@trace\ndef one(check):\n    return 1"},
        "symbolic.toy:Two.three": {"path": "symbolic/toy.py", "line": 10, "text": "    def three(self):\n        pass"},
    }


def test_a_long_harness_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "symbolic").mkdir()
    (tmp_path / "symbolic" / "__init__.py").write_text("")
    lines = [f"    x_{i:04d} = {i:04d}.0" for i in range(1000)]
    (tmp_path / "symbolic" / "long.py").write_text("def run():\n" + "\n".join(lines) + "\n")
    text = texts(["symbolic.long:run"], tmp_path)["symbolic.long:run"]["text"]
    *kept, last = text.splitlines()
    assert len("\n".join(kept)) <= LONGEST
    assert last.startswith(f"… {1001 - len(kept)} more ")
