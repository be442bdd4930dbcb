"""`gradproof merge`: what is believed here is taken, what is not is named, and a conflict takes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, refutation, runs, worker_command, write_workspace

from gradproof import cli
from gradproof.core import files
from gradproof.core.check import Check, Finding, digest_of
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.evidence import store as merge
from gradproof.evidence.record import now, record
from gradproof.evidence.store import Store, safe
from gradproof.execution.local import Worker
from gradproof.session import Options, Session

OPEN, USAGE, NOTHING = EXIT_CODE[Exit.OPEN], EXIT_CODE[Exit.USAGE], EXIT_CODE[Exit.NOTHING]
Data = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The toy workspace after one run of everything."""
    workspace = write_workspace(tmp_path_factory.mktemp("whole") / "toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", lambda self: worker_command(self.workspace.root))
        assert cli.dispatch(["verify", "-q", "--workspace", str(workspace.root)]) == 0
    return workspace


@pytest.fixture
def fresh(tmp_path: Path, whole: Workspace) -> Workspace:
    """A workspace of the same content, without evidence."""
    return write_workspace(tmp_path / "toy")


def evidence(root: Path) -> dict[str, str]:
    """Every file of a store, with what it holds."""
    found = (root / "reports").rglob("*.json") if (root / "reports").exists() else ()
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in found if p.name != "report.json"}


def planned(workspace: Workspace) -> dict[str, Check]:
    return {c.id: c for c in Session(Options(workspace=workspace.root)).checks}


def stored(folder: Path, data: Data) -> Path:
    """An evidence file as the store would write it."""
    path = folder / "evidence" / safe(data["check"]["id"]) / f"{digest_of(data)[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def other(whole: Workspace, folder: Path, finding: Callable[[Check], Finding] | None = None, name: str = "K-1",
          later: bool = True) -> Path:  # fmt: skip
    """Evidence of the same claim as in `whole`, of another run, with another finding."""
    [path] = (whole.reports / "evidence" / name).glob("*.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    if finding is not None:
        data["finding"] = json.loads(json.dumps(record(planned(whole)[name], finding(planned(whole)[name]))))["finding"]
    data["finished_at"] = now() if later else "2000-01-01T00:00:00.000+00:00"
    return stored(folder, data)


def merged(to: Workspace, *folders: Path) -> int:
    return cli.dispatch(["merge", "--workspace", str(to.root), *map(str, folders)])


def gate(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> tuple[int, Data]:
    capsys.readouterr()
    code = cli.dispatch(["gate", "--json", "--workspace", str(workspace.root)])
    report = json.loads(capsys.readouterr().out)
    cells = {o["id"]: {k: (c["effect"], c["reach"]) for k, c in o["cells"].items()} for o in report["obligations"]}
    checks = {c["id"]: (c["outcome"], c["effect"], c["reason"], c["reach"], c["fresh"]) for c in report["checks"]}
    return code, {"verdict": report["verdict"], "checks": checks, "cells": cells, "mutants": report["mutants"]}


def test_shards_of_two_machines_merged_give_the_verdict_of_one_run(
    whole: Workspace, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(self.workspace.root))
    machines = [write_workspace(tmp_path / f"machine{i}") for i in (1, 2)]
    for i, machine in enumerate(machines, 1):
        assert cli.dispatch(["verify", "-q", "--workspace", str(machine.root), "--shard", f"{i}/2"]) == OPEN
        assert gate(machine, capsys)[0] == OPEN
    assert merged(fresh, machines[0].reports) == 0
    assert gate(fresh, capsys)[0] == OPEN
    assert merged(fresh, *(m.reports for m in machines)) == 0
    assert gate(fresh, capsys) == gate(whole, capsys)
    assert gate(fresh, capsys)[0] == 0
    assert runs(fresh.root) == []
    before = evidence(fresh.root)
    assert merged(fresh, *(m.reports for m in machines)) == 0
    assert evidence(fresh.root) == before


def test_two_answers_to_one_claim_take_neither(
    whole: Workspace, fresh: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = other(whole, tmp_path / "a", answer)
    for i, finding in enumerate([
        refutation,
        lambda c: answer(c, reach=Reach.CHOSEN),
        lambda c: answer(c, controls=[]),  # WEAK, by the audit
        lambda c: Finding(Outcome.SPURIOUS, "it does not replay"),
    ]):  # fmt: skip
        second = other(whole, tmp_path / f"b{i}", finding)
        assert merged(fresh, whole.reports, tmp_path / "a", tmp_path / f"b{i}") == USAGE
        err = capsys.readouterr().err
        assert "GP483" in err
        assert str(second) in err
        assert any(str(p) in err for p in (first, whole.reports))
        assert evidence(fresh.root) == {}


def test_a_conflict_with_evidence_at_hand_leaves_the_store_as_it_was(
    whole: Workspace, fresh: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merged(fresh, whole.reports) == 0
    before = evidence(fresh.root)
    other(whole, tmp_path / "b", refutation)
    assert merged(fresh, tmp_path / "b") == USAGE
    assert str(fresh.reports) in capsys.readouterr().err
    assert evidence(fresh.root) == before


def test_an_answer_stays_before_a_timeout_and_the_later_of_two_is_taken(
    whole: Workspace, fresh: Workspace, tmp_path: Path
) -> None:
    late = other(whole, tmp_path / "late", lambda c: Finding(Outcome.TIMEOUT, "late"))
    assert merged(fresh, tmp_path / "late") == 0
    assert [Path(p).name for p in evidence(fresh.root)] == [late.name]
    assert merged(fresh, whole.reports, tmp_path / "late") == 0
    [path] = (fresh.reports / "evidence/K-1").glob("*.json")
    assert path.name == next((whole.reports / "evidence/K-1").glob("*.json")).name
    again = other(whole, tmp_path / "again")
    assert merged(fresh, tmp_path / "again") == 0
    [path] = (fresh.reports / "evidence/K-1").glob("*.json")
    assert path.name == again.name
    other(whole, tmp_path / "early", later=False)
    assert merged(fresh, tmp_path / "early") == 0
    assert list((fresh.reports / "evidence/K-1").glob("*.json")) == [path]


def edit(text: str) -> str:
    return text.replace('"WEAK"', '"HOLDS"').replace("every clause held", "every clause held!")


SPOILED: dict[str, Callable[[Path], object]] = {
    "edited": lambda p: p.write_text(edit(p.read_text(encoding="utf-8")), encoding="utf-8"),
    "cut short": lambda p: p.write_text(p.read_text(encoding="utf-8")[:-100], encoding="utf-8"),
    "empty": lambda p: p.write_text("", encoding="utf-8"),
    "deep": lambda p: p.write_text("[" * 100_000, encoding="utf-8"),
    "under another name": lambda p: p.rename(p.with_name("0123456789abcdef.json")),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a broken link": lambda p: (p.unlink(), p.symlink_to("nowhere")),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_would_not_be_believed_here_is_refused(
    whole: Workspace, fresh: Workspace, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole.reports, tmp_path / "in")
    [path] = (tmp_path / "in/evidence/K-1").glob("*.json")
    SPOILED[name](path)
    merged(fresh, tmp_path / "in")
    assert "refused  " in capsys.readouterr().out
    assert not any("K-1" in p for p in evidence(fresh.root))
    assert gate(fresh, capsys)[0] == OPEN


def test_stale_and_strange_evidence(
    whole: Workspace, fresh: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fresh.root / "models/b.py").write_text("VALUE = 1  # another\n", encoding="utf-8")
    assert merged(fresh, whole.reports) == OPEN
    out = capsys.readouterr().out
    assert "stale: ws:models/b.py" in out
    assert "missing  F-1@cpu-fp32" in out
    shutil.copytree(whole.reports / "evidence/K-2", tmp_path / "gpu/gpu/K-2")
    assert merged(write_workspace(tmp_path / "one"), tmp_path / "gpu") == OPEN
    assert "in gpu/" in capsys.readouterr().out
    fewer = write_workspace(tmp_path / "two")
    contract = fewer.root / "proofs/toy/contract.yaml"
    contract.write_text(contract.read_text(encoding="utf-8").replace("id: K-2", "id: K-9"), encoding="utf-8")
    merged(fewer, whole.reports)
    assert "of no planned check" in capsys.readouterr().out
    assert not any("K-2" in p for p in evidence(fewer.root))


def test_nothing_and_no_folder(fresh: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merged(fresh, tmp_path / "nowhere") == USAGE
    assert "GP484" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert merged(fresh, tmp_path / "empty") == NOTHING


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_in_the_middle_takes_everything_back(
    whole: Workspace, fresh: Workspace, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = other(whole, tmp_path / "late", lambda c: Finding(Outcome.TIMEOUT, "late"))
    assert merged(fresh, tmp_path / "late") == 0
    real, left = files.replace_whole, [2]

    def failing(path: Path, text: str) -> None:
        if not left[0]:
            raise error
        left[0] -= 1
        real(path, text)

    monkeypatch.setattr(files, "replace_whole", failing)
    code = merged(fresh, whole.reports)
    assert code == (USAGE if isinstance(error, OSError) else 130)
    assert [Path(p).name for p in evidence(fresh.root)] == [late.name]


def test_json_names_what_became_of_every_file(
    whole: Workspace, fresh: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.dispatch(["merge", "--json", "--workspace", str(fresh.root), str(whole.reports)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["exit"]) == ("gradproof-merge/1", "met")
    assert {row["check"] for row in data["taken"]} == {"STUB-1", "K-1", "K-2", "F-1@cpu-fp32", "GATE-1/falsification"}
    assert len(data["taken"]) == len(evidence(fresh.root))
    assert data["refused"] == data["missing"] == data["strange"] == []


def taken(to: Workspace, *folders: Path) -> merge.Merged:
    return merge.merge(list(planned(to).values()), Store(to), folders)


def test_a_store_merged_into_itself_takes_nothing(whole: Workspace, fresh: Workspace) -> None:
    """Its own files are found in the folder and in the store, and are one answer each."""
    shutil.copytree(whole.reports, fresh.reports)
    before = evidence(fresh.root)
    found = taken(fresh, fresh.reports, fresh.root / "models/../reports")
    assert (found.taken, len(found.kept), found.refused, found.missing) == ((), 5, (), ())
    assert evidence(fresh.root) == before
    assert not found.nothing


def test_a_file_larger_than_any_evidence_is_not_read(
    whole: Workspace, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MOST_BYTES", 9)
    monkeypatch.setattr(merge, "read", lambda path: pytest.fail("it was read"))
    found = taken(fresh, whole.reports)
    assert all("larger" in why for _, why in found.refused)
    assert (found.taken, found.kept, found.strange, found.nothing) == ((), (), (), False)


@pytest.mark.parametrize("error", [OSError("gone"), RecursionError(), ValueError("bad")])
def test_a_file_that_cannot_be_read_is_refused_and_names_its_check(
    whole: Workspace, fresh: Workspace, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Data:
        raise error

    monkeypatch.setattr(merge, "read", fail)
    found = taken(fresh, whole.reports)
    assert [why.partition(":")[0] for _, why in found.refused] == ["it is rejected"] * 5
    assert taken(fresh, whole.reports / "evidence").nothing
    assert set(found.missing) == {"STUB-1", "K-1", "K-2", "F-1@cpu-fp32", "GATE-1/falsification"}
    assert (found.taken, found.nothing) == ((), False)


def test_what_somebody_is_still_writing_is_not_looked_at(fresh: Workspace, tmp_path: Path) -> None:
    place = tmp_path / "in/evidence/K-1"
    place.mkdir(parents=True)
    (place / ".0123.json").write_text("{", encoding="utf-8")
    assert taken(fresh, tmp_path / "in").nothing


def test_evidence_of_no_planned_check_alone_is_not_nothing(whole: Workspace, fresh: Workspace, tmp_path: Path) -> None:
    shutil.copytree(whole.reports / "evidence/K-2", tmp_path / "in/evidence/K-2")
    few = [check for check in planned(fresh).values() if check.id != "K-2"]
    found = merge.merge(few, Store(fresh), [tmp_path / "in"])
    assert (len(found.strange), found.nothing, found.taken) == (1, False, ())


def test_a_check_with_evidence_at_hand_is_not_missing(whole: Workspace, fresh: Workspace, tmp_path: Path) -> None:
    shutil.copytree(whole.reports, fresh.reports)
    [path] = (whole.reports / "evidence/K-1").glob("*.json")
    spoiled = tmp_path / "in/evidence/K-1" / path.name
    spoiled.parent.mkdir(parents=True)
    spoiled.write_text("{", encoding="utf-8")
    found = taken(fresh, tmp_path / "in")
    assert (len(found.refused), len(found.kept), found.missing, found.taken) == (1, 1, (), ())
