"""The page over all contracts: the verdict first, what was shown in sentences, and no green where a contract is not."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from test_page import words
from test_render import hostile
from test_render_page import Page

from gradproof.core.check import Bound
from gradproof.core.outcome import Effect
from gradproof.core.workspace import Workspace
from gradproof.report import views
from gradproof.report.formats import html, summary
from gradproof.report.formats.summary import Reason, reasons
from gradproof.report.text import anchor, glossary
from gradproof.session import Options, Session

ROOT = Path(__file__).resolve().parents[3]


def drawn(*reports: Any, absent: tuple[str, ...] = ()) -> str:
    pages = {r["contract"]["id"]: f"{r['contract']['id']}/report.html" for r in reports}
    return html.overview(reports, pages, ROOT, absent)


def named(report: Any, name: str) -> Any:
    report["contract"] |= {"id": name}
    return report


def test_the_verdict_stands_first_and_what_is_not_required_is_folded() -> None:
    text = drawn(sample.green())
    said = words(text)
    order = ["GATE MET", "Commit", "Made 2025", "Version gradproof", "What was shown", "Proved, bounded",
             "The accumulated gradient is the gradient of the full batch", "All checks, by contract",
             "checks discharged", "open or broken that the gate does not require"]  # fmt: skip
    places = [said.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert "Why the gate is not met" not in said
    assert "Release: all that profile ci requires was shown." in said
    assert not Page(text).all("article", "script")
    folded = "".join(re.findall(r"<details>.*?</details>", text, re.S))
    assert text.count("no CUDA device") == folded.count("no CUDA device") > 0
    assert all(f">{check['id']}</a>" in folded for check in sample.green()["checks"] if check["effect"] == "DISCHARGED")


def test_one_contract_that_is_not_met_is_enough() -> None:
    said = words(drawn(named(sample.green(), "good"), named(sample.red(), "bad")))
    assert said.startswith("GATE NOT MET")
    assert "Do not release: something is refuted, or its check shows nothing." in said
    assert "● good" in said
    assert "✕ bad" in said
    assert said.index("Why the gate is not met") < said.index("What was shown")
    assert said.index("is WEAK") < said.index("is TIMEOUT")  # broken before open
    assert "GATE MET" not in said


@pytest.mark.parametrize(("broken", "shown"), [(0, 8), (3, 8), (10, 10), (30, 30)])
def test_what_is_broken_is_never_folded(monkeypatch: pytest.MonkeyPatch, broken: int, shown: int) -> None:
    effects = [Effect.OPEN] * 25 + [Effect.BROKEN] * broken
    many = [Reason(effect, f"reason {i}", "a.yaml:1", "why") for i, effect in enumerate(effects)]
    monkeypatch.setattr(summary, "reasons", lambda report: many)
    text = drawn(sample.red())
    seen = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    assert (seen.count("<article"), seen.count('<article class="broken">')) == (shown, broken)
    assert f"{len(many) - shown} more reasons, open" in words(text)
    rest = len(many) - max(shown, 20)
    assert f"And {rest} more reasons; the pages" in words(text)


def test_a_partial_run_is_no_verdict() -> None:
    said = words(drawn(sample.partial()))
    assert said.startswith("GATE NOT MET")
    assert "No verdict: the run is partial" in said
    assert "Do not release yet: nothing is refuted" in said


def test_what_is_open_beside_a_refutation_of_its_subject_waits_for_the_fix() -> None:
    report = sample.green()
    first, second, third = [c for c in report["checks"] if c["required"]][:3]
    first |= {"outcome": "REFUTED", "effect": "BROKEN", "subject": "models.loop:loop"}
    second |= {"outcome": "UNKNOWN", "effect": "OPEN", "subject": "models.loop:loop", "reason": "not shown"}
    third |= {"outcome": "UNKNOWN", "effect": "OPEN", "subject": "models.other:loop", "reason": "too many"}
    helps = {r.words.partition(" is ")[0]: r.help for r in reasons(report)}
    assert helps[second["id"]] == "Fix what is refuted of this subject first, then verify again."
    assert helps[third["id"]].startswith("Ask a smaller question")


def test_nothing_is_claimed_of_what_is_not_discharged() -> None:
    report = sample.red()
    shown = drawn(report).partition("<h3>Nothing established</h3>")[2]
    bad = [ob["id"] for ob in report["obligations"] if ob["effect"] != "DISCHARGED"]
    assert bad
    for part in re.findall(r'<p class="ob">.*?</p>', shown, re.S):
        assert "up to" not in part.partition('<small class="cells">')[0]
    assert all(f"#{anchor('ob', name)}" in shown for name in bad)


def test_bounds_of_several_proofs_are_not_one_proof() -> None:
    report = sample.green()
    ob = report["obligations"][0]
    checks = [c for c in report["checks"] if c["id"] in views.reach_of(report, ob)[views.Reach.BOUNDED]]
    assert len(checks) > 1
    for check in checks:
        check["bounds"] = [{"name": "micro_batches", "value": 4, "reason": "why"}]
    assert views.largest(report, ob) == "up to micro_batches = 4"
    checks[0]["bounds"] = [{"name": "micro_batches", "value": 2}, {"name": "elements", "value": 3}]
    assert views.largest(report, ob) == "the largest bounds, each of some proof: micro_batches = 4, elements = 3"
    assert Bound.__annotations__["value"] == "int"


def test_contracts_that_were_not_asked_for_are_named() -> None:
    assert "this page says nothing of them" in words(drawn(sample.green(), absent=("other", "third")))
    assert "says nothing of" not in words(drawn(sample.green()))


def test_every_link_leads_to_a_part_of_a_contracts_page() -> None:
    report = sample.red()
    ids = {a["id"] for _, a in Page(html.render(report)).found if "id" in a}
    links = [a["href"].partition("#") for a in Page(drawn(report)).all("a")]
    assert {page for page, _, _ in links} == {f"{report['contract']['id']}/report.html"}
    assert {part for _, _, part in links if part} <= ids
    assert len(links) > 20


def test_everything_is_escaped() -> None:
    nasty = "\"'><script>alert(1)</script><b onclick=x>&amp;{{ 7*7 }}</title></style>\x1b\u202e"
    report = hostile(sample.red(), nasty)
    text = html.overview([report], {report["contract"]["id"]: "a/report.html"}, ROOT, (nasty,))
    page = Page(text)
    assert not page.all("script", "img")
    assert not [a for _, a in page.found if any(k.startswith("on") or k in ("src", "style") for k in a)]
    assert len(page.all("style")) == 1
    assert "\x1b" not in text
    assert "{{ 7*7 }}" in text


def test_every_obligation_of_the_reference_has_a_sentence() -> None:
    session = Session(Options(workspace=ROOT))
    known = glossary()
    for contract in session.contracts:
        for obligation in contract.obligations:
            assert re.fullmatch(r"[A-Z0-9].{30,}\.", known[obligation.id][0]), obligation.id
    report = sample.green()
    report["obligations"][0]["id"] = "XY-EQ-001"
    for check in report["checks"]:
        check["obligations"] = ["XY-EQ-001" if o == "GA-EQ-001" else o for o in check["obligations"]]
    report["gate"] = None
    assert report["obligations"][0]["property"] in unescape(drawn(report))  # of a contract of one's own


def test_the_commit_is_that_of_the_workspace(tmp_path: Path) -> None:
    assert html.commit(tmp_path / "nowhere").startswith("none")
    top, other = tmp_path / "top", tmp_path / "other"
    top.mkdir()
    git = ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@b"]

    def asked(*words_: str) -> str:
        return subprocess.run([*git, *words_], capture_output=True, text=True, check=True).stdout

    asked("init", "-q")
    assert html.commit(top).startswith("none")  # there is no commit yet
    asked("commit", "-q", "--allow-empty", "-m", "a")
    own = asked("rev-parse", "HEAD")[:12]
    assert html.commit(top) == html.commit(top / "inner/folder") == own
    asked("worktree", "add", "-q", "-b", "b", str(other))
    assert html.commit(other) == own
    asked("pack-refs", "--all")
    assert html.commit(top) == html.commit(other) == own
    asked("checkout", "-q", "--detach")
    assert html.commit(top) == own


@pytest.mark.parametrize("name", ["report.html", "index.html"])
def test_a_run_writes_the_page_and_the_next_takes_it_away(toy: Workspace, name: str) -> None:
    session = Session(Options(workspace=toy.root))
    run = session.stored()
    assert session.write(session.reports(run)) == toy.reports / "index.html"
    assert 'href="report.html' in (toy.reports / "index.html").read_text(encoding="utf-8")
    session.mark()
    assert not (toy.reports / name).exists()
