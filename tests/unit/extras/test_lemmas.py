"""Step contracts as jobs: judged by the files that came back, whatever the engine says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.check import digest_of
from gradproof.core.workspace import Workspace
from gradproof.execution.engine import WorkResult
from gradproof.execution.local import LocalProcesses
from gradproof.extras import lemmas
from gradproof.rounding import lemma_store as store
from gradproof.rounding.step_contracts import LEMMAS, method

DERIVED = "divide/bf16/half-ulp"


class Changed(LocalProcesses):
    """An engine that changes the files that a lemma's call returns."""

    change: Callable[[dict[str, str]], Any] = staticmethod(lambda files: files)

    def answer(self, seconds: float) -> WorkResult | None:
        answer = super().answer(seconds)
        if answer is None:
            return None
        data = json.loads(json.dumps(answer.value))
        data["finding"]["stats"]["value"] = self.change(data["finding"]["stats"]["value"])
        return replace(answer, value=data)


def asked_of_solvers() -> str:
    return next(name for name in LEMMAS if method(LEMMAS[name]) == "solvers")


def test_every_lemma_has_one_job_or_follows_from_others() -> None:
    jobs = list(lemmas.jobs_of(list(LEMMAS), 1.0))
    decided = [
        n for j in jobs for n in (store.pass_of(j.name).decides if "exh" in method(LEMMAS[j.name]) else [j.name])
    ]
    assert sorted(decided) == sorted(name for name in LEMMAS if method(LEMMAS[name]) != "derivation")
    assert len({job.name for job in jobs}) == len(jobs)


def on(engine: type[LocalProcesses], root: Path) -> Any:
    """An engine of an empty workspace."""
    return engine(Workspace(root.resolve(), root.resolve()), 1, ())


def test_a_lemma_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    name, said = asked_of_solvers(), list[str]()
    [job] = lemmas.jobs_of([name], 0.01)
    (tmp_path / f"{name.replace('/', '_')}.{'0' * 64}.json").write_text("an older one")
    [made] = lemmas.rebuild([name], on(LocalProcesses, tmp_path), said.append, tmp_path, 0.01)
    assert made.path.parent == tmp_path
    assert made.verdict != store.PROVED
    assert store.load(name, tmp_path).verdict == made.verdict
    assert any(name in line and made.verdict in line for line in said)
    assert job.check.harness == "gradproof.extras.lemmas:discharge"


def told(file: str, **changes: Any) -> dict[str, str]:
    """An evidence file of a lemma with other content, under the digest of that content."""
    data = {**json.loads(file), **changes}
    return {f"{data['name'].replace('/', '_')}.{digest_of(data)}.json": json.dumps(data)}


def renamed(files: dict[str, str], old: str, new: str) -> dict[str, str]:
    """The files with other content, under the names that they had."""
    return {name: text.replace(old, new) for name, text in files.items()}


STRANGE: dict[str, Callable[[dict[str, str]], Any]] = {
    "stale: the lemma's text changed": lambda files: told(*files.values(), text="0" * 64),
    "the file calls it 'proved', what was run supports 'open'": lambda files: told(*files.values(), verdict="proved"),
    "is not named by the digest of its content": lambda files: renamed(files, '"open"', '"proved"'),
    "no evidence files": lambda files: {},
    "the file does not say what was run": lambda files: told(*files.values(), run={"verdict": "proved"}),
    "what came back is no evidence": lambda files: ["proved"],
}


@pytest.mark.parametrize("why", STRANGE)
def test_what_comes_back_is_judged_here(why: str, tmp_path: Path) -> None:
    engine = on(Changed, tmp_path)
    engine.change = STRANGE[why]
    with pytest.raises(store.LemmaRefused, match=re.escape(why)):
        lemmas.rebuild([asked_of_solvers()], engine, lambda line: None, tmp_path, 0.01)
    assert not list(tmp_path.glob("*.json"))


def test_a_lemma_of_another_engine_is_refused(tmp_path: Path) -> None:
    class Elsewhere(Changed):
        def answer(self, seconds: float) -> WorkResult | None:
            answer = LocalProcesses.answer(self, seconds)
            if answer is not None:
                answer.value["claim"]["files"]["gp:rounding/smtlib.py"] = "0" * 64
            return answer

    with pytest.raises(store.LemmaRefused, match=r"is refused: gp:rounding/smtlib\.py changed"):
        lemmas.rebuild([asked_of_solvers()], on(Elsewhere, tmp_path), lambda line: None, tmp_path, 0.01)
    assert not list(tmp_path.glob("*.json"))


def test_a_pass_decides_all_its_lemmas_at_once_and_derivations_follow(tmp_path: Path) -> None:
    names = ["add/bf16/half-ulp", "add/bf16/grid", DERIVED]
    [job] = lemmas.jobs_of(names, 1.0)
    assert {*names[:2]} < {*job.check.params["argument"]["names"]}
    assert method(LEMMAS[DERIVED]) == "derivation"
    made = lemmas.rebuild(names, on(LocalProcesses, tmp_path), lambda line: None, tmp_path)
    assert [(e.name, e.verdict) for e in made] == [(name, "proved") for name in names]
    assert all(store.load(name, tmp_path) in made for name in names)
    assert len(list(tmp_path.glob("*.json"))) == len(names)


def test_a_job_that_fails_gives_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemmas, "PLACE", "gradproof.extras.nothing")
    with pytest.raises(store.LemmaRefused, match=r"GP203: no module 'gradproof\.extras\.nothing'"):
        lemmas.rebuild([asked_of_solvers()], on(LocalProcesses, tmp_path), lambda line: None, tmp_path)
    assert not list(tmp_path.glob("*.json"))
    assert lemmas.main(["--engine", "dask"]) == 2
