"""`gradproof verify --watch`: a save runs again what rests on it, and what changed is printed, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from toy_workspace import answer, check, recorded, runs

from gradproof import cli
from gradproof.cli.verify import affected, watched
from gradproof.core.check import Finding
from gradproof.core.outcome import EXIT_CODE, Exit, Kind, Outcome
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import EvidenceStatus
from gradproof.session import Options

Save = Callable[[Path], object]


def saves(toy: Workspace, steps: Sequence[Save]) -> tuple[int, list[list[str]]]:
    """Watch while these saves are made, one between two rounds: the last exit code, and what each round ran."""
    left, ran = list(steps), []

    def pause() -> None:
        if not left:
            raise AssertionError("the last save was not seen")
        ran.append(runs(toy.root))
        left.pop(0)(toy.root)

    code = watched(Options(workspace=toy.root, jobs=2), rounds=len(steps) + 1, pause=pause)
    return code, [*ran, runs(toy.root)]


def write(name: str, text: str) -> Save:
    return lambda root: (root / name).write_text(text, encoding="utf-8")


def test_a_save_runs_again_what_it_touched_and_prints_changes_only(
    toy: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = (toy.root / "proofs/toy/contract.yaml").read_text(encoding="utf-8")
    code, ran = saves(
        toy,
        [
            write("models/b.py", "VALUE = 1  # a comment\n"),
            write("models/b.py", "VALUE = 3\n"),
            write("proofs/toy/contract.yaml", contract.replace("name: toy gate", "name: ''")),
            write("proofs/toy/contract.yaml", contract),
            write("models/b.py", "VALUE = 1\n"),
        ],
    )
    assert code == 0
    assert ran[1:] == [["F-1@cpu-fp32"], ["F-1@cpu-fp32"], [], [], ["F-1@cpu-fp32"]]
    out, err = capsys.readouterr()
    names = [line.partition(": ")[0] for line in out.splitlines()]
    assert names == ["F-1@cuda-fp32", "toy", *["F-1@cpu-fp32", "toy"] * 2]
    assert "F-1@cpu-fp32: HOLDS (DISCHARGED) -> REFUTED (BROKEN)" in out
    assert "F-1@cpu-fp32: REFUTED (BROKEN) -> HOLDS (DISCHARGED)" in out
    assert re.search(r"^toy: .*\(exit 0\) -> .*\(exit 1\)", out, re.M)
    assert "GP103" in err
    report = json.loads((toy.reports / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"]["met"] is True


def test_a_crash_is_tried_again_at_the_next_save_and_a_new_module_is_seen(toy: Workspace) -> None:
    good = (toy.root / "symbolic/runs.py").read_text(encoding="utf-8")
    code, ran = saves(
        toy,
        [
            write("symbolic/runs.py", good.replace("    value =", "    from models import late\n    value =")),
            write("models/late.py", "LATE = 1\n"),
        ],
    )
    assert code == 0
    assert "F-1@cpu-fp32" in ran[1]
    assert "F-1@cpu-fp32" in ran[2]


@pytest.mark.parametrize(
    ("outcome", "files", "fresh", "due"),
    [
        (Outcome.HOLDS, True, True, False),
        (Outcome.HOLDS, True, False, True),
        (Outcome.REFUTED, True, True, False),
        (Outcome.UNKNOWN, True, True, False),
        (Outcome.UNKNOWN, True, False, True),
        (Outcome.TIMEOUT, False, True, True),
        (Outcome.ERROR, True, True, True),
    ],
)
def test_what_a_save_makes_due(outcome: Outcome, files: bool, fresh: bool, due: bool) -> None:
    """A check whose claim is as it was is left alone; a crash, or a run that named no file, may rest on any."""
    stub, proof = check("S-1", kind=Kind.STUB), check("K-1", depends=("S-1",))
    claim = {"files": {"ws:models/a.py": "0" * 64} if files else {}}
    held = EvidenceStatus(recorded(stub, answer(stub), inputs={"files": {"gp:core/check.py": "0" * 64}}), True)
    statuses = {"S-1": held, "K-1": EvidenceStatus(recorded(proof, Finding(outcome, "r"), inputs=claim), fresh)}
    assert [c.id for c in affected([stub, proof], statuses)] == (["S-1", "K-1"] if due else [])
    assert [c.id for c in affected([proof], {"K-1": EvidenceStatus(None, False)})] == ["K-1"]


def test_a_document_of_one_run_is_refused(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["verify", "--watch", "--json"]) == EXIT_CODE[Exit.USAGE]
    assert "GP482" in capsys.readouterr().err
    assert runs(toy.root) == []


def test_ctrl_c_ends_with_130(toy: Workspace) -> None:
    """The real command, polling real files, in a process of its own."""
    contract = toy.root / "proofs/toy/contract.yaml"
    command = [sys.executable, "-m", "gradproof", "verify", "--watch", "-k", "K-2"]
    process = subprocess.Popen(command, cwd=toy.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while "ctrl-C ends" not in (line := process.stderr.readline()):
            assert line, process.communicate()
        os.utime(contract)
        while "nothing changed" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
