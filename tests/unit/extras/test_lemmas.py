"""Step contracts as jobs: judged by the run that came back, whatever the engine says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.workspace import Workspace
from gradproof.execution.engine import WorkItem, WorkResult
from gradproof.execution.local import LocalProcesses
from gradproof.extras import lemmas
from gradproof.rounding import lemma_store as store
from gradproof.rounding.step_contracts import LEMMAS, method


class Told(LocalProcesses):
    """An engine that answers what it is told."""

    value: Mapping[str, Any]

    def start(self, job: WorkItem) -> None:
        self.name = job.name

    def answer(self, seconds: float) -> WorkResult | None:
        return WorkResult(self.name, {"value": self.value, "fault": ""})


def asked_of_solvers() -> str:
    return next(name for name in LEMMAS if method(LEMMAS[name]) == "solvers")


def test_every_lemma_has_one_job_or_follows_from_others() -> None:
    jobs = list(lemmas.jobs_of(list(LEMMAS), 1.0))
    decided = [
        n for j in jobs for n in (store.pass_of(j.name).decides if "exh" in method(LEMMAS[j.name]) else [j.name])
    ]
    assert sorted(decided) == sorted(name for name in LEMMAS if method(LEMMAS[name]) != "derivation")
    assert len({job.name for job in jobs}) == len(jobs)


def test_a_lemma_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    name, root = asked_of_solvers(), tmp_path.resolve()
    [job] = lemmas.jobs_of([name], 0.01)
    said: list[str] = []
    [made] = lemmas.rebuild([name], LocalProcesses(Workspace(root, root), 1, ()), said.append, tmp_path, 0.01)
    assert made.path.parent == tmp_path
    assert made.verdict != store.PROVED
    assert store.load(name, tmp_path).verdict == made.verdict
    assert any(name in line and "ran" in line for line in said)
    assert job.payload["call"] == "gradproof.extras.lemmas:discharge"


def test_what_comes_back_is_judged_here(tmp_path: Path) -> None:
    name, root = asked_of_solvers(), tmp_path.resolve()
    stored = store.load(name).run
    engine = Told(Workspace(root, root), 1, ())
    for answer, verdict in (("unsat", "proved"), ("sat", "refuted"), ("unknown", "open")):
        replies = [{**reply, "answer": answer} for reply in stored["replies"]]
        engine.value = {name: {"replies": replies}}
        [made] = lemmas.rebuild([name], engine, lambda line: None, tmp_path)
        assert made.verdict == verdict
    for value in ({name: {"replies": [], "verdict": "proved"}}, {name: {"verdict": "proved"}}, {}):
        engine.value = value
        with pytest.raises(store.LemmaRefused, match="what came back is no run"):
            lemmas.rebuild([name], engine, lambda line: None, tmp_path)


def test_a_job_that_fails_gives_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    monkeypatch.setattr(lemmas, "PLACE", "gradproof.extras.nothing")
    with pytest.raises(store.LemmaRefused, match="No module named"):
        lemmas.rebuild([asked_of_solvers()], LocalProcesses(Workspace(root, root), 1, ()), lambda line: None, tmp_path)
    assert not list(tmp_path.glob("*.json"))
    assert lemmas.main(["--engine", "dask"]) == 2
