"""The plain loops are proved, each bug that a plain loop can have is found at its line, and a miss is called a miss."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gradproof.shadow.result import Verification
from tests.loops.bugs import LoopMutant
from tests.loops.catalogue import FOLDER, LOOPS, UNPROVED
from tests.loops.mutants import MUTANTS
from tests.loops.sweep import Job, Worker, jobs_of, kept, said, sweep, verify, wanted
from tests.loops.sweep_table import markdown
from tests.loops.verdicts import (
    CRASH,
    FALSE_ALARM,
    MISSED,
    NO_ANSWER,
    OTHER,
    OTHER_LINE,
    PROVED,
    RIGHT,
    TIMEOUT,
    WANTED,
    Answer,
    Found,
    Row,
    crashed,
    of_correct,
    of_mutant,
    row_of_correct,
    row_of_mutant,
    timed_out,
)

WORKERS = 2
QUICK_FIRST = (
    "plain", "plain_third", "plain_closure", "plain_div_once", "plain_token_sum", "plain_mlp", "plain_func",
    "plain_master", "plain_ema", "plain_checkpoint", "plain_amp", "plain_attention",
)  # fmt: skip
SPINS = 2.0
"""The limit of the job that never ends. The others get the sweep's own limit: a loaded machine may be slow."""


def one_of_each() -> Iterator[Job]:
    """Each bug once, in the loop that is verified soonest."""
    seen: set[str] = set()
    for name in QUICK_FIRST:
        for job in jobs_of(LOOPS[name], [m.name for m in MUTANTS if m.loop == name]):
            if job.mutant is not None and job.mutant.name not in seen:
                seen.add(job.mutant.name)
                yield job


def mutant(name: str = "divided_twice", loop: str = "plain") -> LoopMutant:
    """A mutant of the table."""
    return next(m for m in MUTANTS if (m.name, m.loop) == (name, loop))


def text_of(name: str) -> str:
    """A loop's source."""
    return LOOPS[name].path.read_text(encoding="utf-8")


def test_every_plain_loop_is_listed() -> None:
    assert set(QUICK_FIRST) == {name for name in LOOPS if name.startswith("plain")}


def test_every_plain_loop_is_proved() -> None:
    jobs = [next(jobs_of(LOOPS[name], ["correct"])) for name in QUICK_FIRST]
    assert [said(row) for row in sweep(jobs, WORKERS) if not wanted(row)] == []


def test_every_plain_loop_is_proved_with_a_tail() -> None:
    jobs = [job for name in QUICK_FIRST for job in jobs_of(LOOPS[name], ["correct"]) if job.tail]
    assert len(jobs) == len(QUICK_FIRST)
    assert [said(row) for row in sweep(jobs, WORKERS) if not wanted(row)] == []


def test_every_right_loop_of_the_page_is_proved_or_has_a_reason() -> None:
    """The page has every configuration; a loop that is no longer proved must be listed."""
    page = (FOLDER.parents[1] / "docs" / "mutants.md").read_text(encoding="utf-8")
    section = page.split("## Correct loops")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "N=" in line]
    verdicts = {(loop, config): (verdict, why) for loop, config, verdict, why in rows}
    assert set(verdicts) == {(job.loop, job.config) for loop in LOOPS.values() for job in jobs_of(loop, ["correct"])}
    assert verdicts == {key: (NO_ANSWER, UNPROVED[key]) if key in UNPROVED else (PROVED, "") for key in verdicts}
    assert set(UNPROVED) <= set(verdicts)


def test_a_right_loop_may_lack_a_proof_for_a_listed_reason_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of_correct("plain", "N=1", Answer("UNKNOWN", (Found("GA-EQ-001", "UNKNOWN"),)))
    alarm = row_of_correct("plain", "N=1", Answer("REFUTED", (Found("GA-EQ-001", "REFUTED"),)))
    assert not wanted(row)
    monkeypatch.setattr("tests.loops.sweep.UNPROVED", {("plain", "N=1"): "one micro-batch a window"})
    assert wanted(row)
    assert not wanted(alarm)
    assert not wanted(row_of_correct("plain", "N=1", Answer("HOLDS", (HOLDS,))))


def test_every_bug_is_found_at_its_line() -> None:
    jobs = list(one_of_each())
    assert {j.mutant.name for j in jobs if j.mutant} == {m.name for m in MUTANTS if m.loop in QUICK_FIRST}
    assert [said(row) for row in sweep(jobs, WORKERS) if row.verdict not in WANTED] == []


OTHERS = [name for name, loop in LOOPS.items() if name not in QUICK_FIRST and loop.available]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_loop_is_proved_and_a_bug_that_no_plain_loop_has_is_found(name: str) -> None:
    """Whatever is verified, its few lines are counted (`tests.checked`): one too many is a crash here."""
    known = {m.name for m in MUTANTS if m.loop in QUICK_FIRST}
    jobs = [job for job in jobs_of(LOOPS[name]) if job.mutant is None or job.mutant.name not in known]
    assert [said(row) for row in sweep(jobs, WORKERS) if not wanted(row)] == []


def test_a_line_too_many_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(found: Verification, spent: int = 0) -> Verification:
        raise AssertionError(f"99 lines of {found.subject}, and {spent} besides")

    monkeypatch.setattr("tests.checked.counted", counted)
    with pytest.raises(AssertionError, match="99 lines of train"):
        verify(LOOPS["plain"].path, 4, 0, 1)


def test_a_correct_loop_that_is_called_a_mutant_is_missed() -> None:
    job = Job("plain", text_of("plain"), 4, 0, 1, mutant())
    assert [row.verdict for row in sweep([job])] == [MISSED]


def test_a_mutant_that_is_called_correct_is_a_false_alarm() -> None:
    found = next(jobs_of(LOOPS["plain"], ["divided_twice"]))
    assert [row.verdict for row in sweep([replace(found, mutant=None)])] == [FALSE_ALARM]


def test_a_worker_that_dies_spins_or_raises_kills_no_mutant(tmp_path: Path) -> None:
    texts = {"import os\nos._exit(3)\n": None, "while True:\n    pass\n": SPINS, "no python\n": None}
    worker, answers = Worker(tmp_path), []
    try:
        for text, worker.seconds in texts.items():
            answers.append(worker.answer(Job("plain", text, 4, 0, 1)))
    finally:
        worker.close()
    assert [a.outcome for a in answers] == [CRASH, TIMEOUT, CRASH]
    assert re.search(r"died .*\b3$", answers[0].error)
    assert "SyntaxError" in answers[2].error
    assert {of_mutant(mutant(), a) for a in answers} == {NO_ANSWER}
    assert {of_correct(a) for a in answers} == {NO_ANSWER}


HOLDS = Found("GA-EQ-001", "HOLDS")
AT = mutant().line_text
CASES = [
    (Answer("HOLDS", (HOLDS,)), MISSED),
    (Answer("HOLDS", ()), MISSED),
    (crashed("no"), NO_ANSWER),
    (timed_out(1.0), NO_ANSWER),
    (Answer("UNKNOWN", (Found("GA-EQ-001", "UNKNOWN", AT),)), NO_ANSWER),
    (Answer("OPAQUE", (Found("GA-EQ-001", "OPAQUE", AT),)), NO_ANSWER),
    (Answer("SPURIOUS", (Found("GA-EQ-001", "SPURIOUS", AT),)), NO_ANSWER),
    (Answer("ERROR", (Found("GA-EQ-001", "ERROR", AT),)), NO_ANSWER),
    (Answer("REFUTED", (Found("GA-EQ-001", "REFUTED", AT),)), RIGHT),
    (Answer("REFUTED", (Found("GA-EQ-001", "REFUTED", "share.backward()"),)), RIGHT),
    (Answer("REFUTED", (Found("GA-EQ-001", "REFUTED", "optimizer.step()"),)), OTHER_LINE),
    (Answer("REFUTED", (Found("GA-EQ-001", "REFUTED", ""),)), OTHER_LINE),
    (Answer("REFUTED", (Found("GA-INV-003", "REFUTED", AT),)), OTHER),
    (Answer("REFUTED", (Found("GA-EQ-001", "UNKNOWN", AT), Found("GA-INV-003", "REFUTED", AT))), OTHER),
]


@pytest.mark.parametrize(("answer", "verdict"), CASES)
def test_verdicts_on_a_mutant(answer: Answer, verdict: str) -> None:
    assert of_mutant(mutant(), answer) == verdict


def test_an_opaque_mutant_must_lose_sight_at_its_line() -> None:
    hidden = mutant("scaled_through_numpy")
    assert of_mutant(hidden, Answer("HOLDS", (HOLDS,))) == MISSED
    assert of_mutant(hidden, Answer("OPAQUE", (Found("GA-EQ-001", "OPAQUE", hidden.line_text),))) == RIGHT
    assert of_mutant(hidden, Answer("OPAQUE", (Found("GA-EQ-001", "OPAQUE", "else"),))) == OTHER_LINE
    assert of_mutant(hidden, crashed("no")) == NO_ANSWER


def test_verdicts_on_a_correct_loop() -> None:
    assert of_correct(Answer("HOLDS", (HOLDS,))) == PROVED
    assert of_correct(Answer("HOLDS", ())) == NO_ANSWER
    assert of_correct(Answer("NOT_RUN", (HOLDS, Found("GA-INV-001", "NOT_RUN")))) == NO_ANSWER
    assert of_correct(Answer("REFUTED", (HOLDS, Found("GA-INV-001", "REFUTED")))) == FALSE_ALARM


def rows() -> list[Row]:
    """A small sweep with one of each kind."""
    missed = Answer("HOLDS", (HOLDS,))
    return [
        row_of_correct("plain", "N=4", missed),
        row_of_mutant(mutant(), "N=4", missed),
        row_of_mutant(mutant("missing_scale"), "N=4", crashed("Boom")),
    ]


def test_the_page_names_what_was_missed() -> None:
    page = markdown(rows())
    assert page == markdown(rows())
    assert re.search(r"\b2 mutants: 1 MISSED .* 1 no answer", page)
    assert "| `plain` |" in page
    assert "- `plain`, `divided_twice` (N=4): **MISSED" in page
    assert "Boom" in page


def test_rows_are_kept_until_they_are_made_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert kept(file, []) == []
    file.write_text(json.dumps([asdict(row) for row in rows()]), encoding="utf-8")
    again = list(jobs_of(LOOPS["plain"], ["divided_twice"]))
    assert [row.name for row in kept(file, again)] == ["correct", "missing_scale"]
