"""Faults around a run: no memory, no disk, no rights, a solver that talks nonsense, a death between write and rename.

Each gives the outcome that it deserves, costs no other check its answer, and leaves the store whole.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attack_kit import CHECK, HARNESS, MODEL, break_model, edit, evidence, gate, seen, session, verify

from gradproof.arith import smt
from gradproof.cli import dispatch
from gradproof.core import files
from gradproof.core.check import Control
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome

GATE = "GATE-1/falsification"


def whole(root: Path) -> bool:
    """Whether every file of the store is one that is believed."""
    from gradproof.evidence.store import read

    return all(read(path) for path in root.glob("reports/evidence/*/*.json"))


def test_a_check_that_wants_more_memory_than_it_may_have(green: Path) -> None:
    """The reference takes 4 GiB; the seeded bug of the gate's own check does not, and has its answer."""
    edit(green, MODEL, "return sum(grads) / len(grads)\n", "return sum(grads) / len(bytearray(1 << 32)) * 0\n")
    found = verify(green, alone=False, memory_limit=1024)
    assert (found.exit, found.outcome) == (Exit.CRASH, Outcome.ERROR)
    assert found.reason.endswith("memory (1024 MiB, --memory-limit)")
    assert gate(green, GATE).outcome is Outcome.HOLDS
    assert whole(green)


def test_a_mutant_that_runs_out_of_memory_is_not_killed(green: Path) -> None:
    edit(green, MODEL, "    return sum(grads)\n", "    return len(bytearray(1 << 32))\n")
    found = verify(green, memory_limit=1024)
    assert (found.outcome, found.reason) == (Outcome.WEAK, "not killed: missing_scale")


def test_a_limit_that_is_enough_changes_nothing(green: Path) -> None:
    assert verify(green, alone=False, no_cache=True, memory_limit=1024).exit is Exit.MET


def test_a_process_that_aborts_for_want_of_memory(green: Path) -> None:
    """As C++ does, where no exception is left to catch."""
    edit(green, HARNESS, CHECK, '    __import__("os").abort()')
    found = verify(green, alone=False)
    assert found.outcome is Outcome.ERROR
    assert "SIGABRT (out of memory?)" in found.reason


@pytest.mark.parametrize("said", ["maybe", None, 1])
def test_a_solver_that_talks_nonsense(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is neither sat nor unsat is no answer: it may be an error, and never a proof."""
    monkeypatch.setattr(smt.z3.Solver, "check", lambda self, *more: said)
    answer = None
    with suppress(smt.z3.Z3Exception):
        answer = smt.solve([smt.truth(True)], {}, 1.0).answer
    assert answer in (None, smt.SolverAnswer.SAT, smt.SolverAnswer.UNKNOWN)


def fault(monkeypatch: pytest.MonkeyPatch, number: int, *only: str) -> None:
    """Let every write of a file fail whose path has one of these words."""
    real = os.open

    def refused(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT and any(word in str(path) for word in only):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(files.os, "open", refused)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written(green: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old success stays on the disk, and is not taken for the answer of the run that could not be kept."""
    before = evidence(green).read_bytes()
    fault(monkeypatch, number, "evidence/K-1")
    found = verify(green, alone=False, no_cache=True)
    assert found.red
    assert found.reason.endswith(f": {os.strerror(number)}")
    assert found.why.count("NOT_RUN") == 1
    assert evidence(green).read_bytes() == before
    assert whole(green)
    assert [p for p in green.rglob("*.tmp")] == []


def test_a_refutation_that_cannot_be_written(green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk does not keep an old success alive."""
    edit(green, HARNESS, CHECK, '    k.check("T-1", k.same(mean(grads), 0))')
    fault(monkeypatch, errno.ENOSPC, "evidence/")
    found = verify(green, alone=False)
    assert found.red
    assert found.outcome is Outcome.NOT_RUN


def test_reports_that_cannot_be_written(
    green: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault(monkeypatch, errno.ENOSPC, "report.")
    assert dispatch(["verify", "--workspace", str(green), "-q"]) == 2
    said = capsys.readouterr().err
    assert "GP450" in said
    assert os.strerror(errno.ENOSPC) in said


KILLED = """\
import os, signal, sys
from pathlib import Path
from gradproof.core import files
files.os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
files.replace_whole(Path(sys.argv[1]), "the new text")
"""


def test_a_death_between_write_and_rename(green: Path) -> None:
    path = evidence(green)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=600)
    assert done.returncode < 0
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 2
    assert gate(green).exit is Exit.MET
    assert verify(green, no_cache=True).outcome is Outcome.HOLDS


def test_a_gpu_that_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the run, for the subject as for a mutant, and kills nothing."""
    import torch

    from gradproof.execution.methods import measure as torch_run
    from gradproof.execution.methods.property import Cell, Place

    class Full:
        clause = "T-1"

        def examples(self, *of: Any) -> list[Any]:
            return [None]

        def test(self, *of: Any) -> None:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    place = Place("cpu", "fp32", {}, frozenset())
    prop: Any = Full()
    bug = Control("bug", "mutant", "T-1", Outcome.HOLDS, False)
    control = torch_run._control(prop, bug, None, None, place, [Cell("linear", 2)], 1)
    assert (control.outcome, control.killed) == (Outcome.ERROR, False)
    assert "CUDA out of memory" in control.reason
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch_run._failure(prop, None, [Cell("linear", 2)], place, 1, None, shrink=False)


def test_what_failed_is_done_again_and_the_rest_is_not(green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fault(patch, errno.ENOSPC, "evidence/K-1")
        verify(green, no_cache=True)
    evidence(green).unlink()
    asked = session(green)
    run = asked.run(asked.selected(), lambda progress: None)
    assert run.ran == {"K-1"}
    assert seen(asked.judged(asked.contracts[0], run.statuses)).exit is Exit.MET


def shell(root: Path, words: str) -> subprocess.CompletedProcess[str]:
    """A command line with its redirections, as a shell starts it."""
    line = f"exec {sys.executable} -m gradproof {words}"
    return subprocess.run(["sh", "-c", line], cwd=root, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["gate", "verify --no-cache -q", "report", "gate --format ndjson", "--help"])
def test_a_stream_that_the_caller_closed_changes_no_verdict(green: Path, command: str, closed: str) -> None:
    done = shell(green, f"{command} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    if closed.startswith(">&-"):
        assert done.stdout == ""
    assert whole(green)


def test_a_closed_stdout_does_not_hide_that_a_check_is_refuted(green: Path) -> None:
    break_model(green)
    assert shell(green, "verify -q >&- 2>&-").returncode == EXIT_CODE[Exit.BROKEN]


FULL = ["gate", "gate --format json", "gate --format ndjson", "list", "report", "--help", "explain GP101"]


@pytest.mark.parametrize("command", FULL)
def test_a_full_disk_behind_stdout_is_no_internal_error(green: Path, command: str) -> None:
    done = shell(green, f"{command} > /dev/full")
    assert done.returncode == EXIT_CODE[Exit.USAGE]
    assert done.stderr.startswith("GP451\n") or "\nGP451\n" in done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert not any(word in done.stderr for word in ("internal error", "Traceback", "Exception ignored"))


@pytest.mark.parametrize("where", ["2> /dev/full", "> /dev/full 2>&1"])
@pytest.mark.parametrize("command", ["gate", "report", "bogus", "gate --contract none", "gate --format xml"])
def test_a_full_disk_behind_stderr_is_never_a_refutation(green: Path, command: str, where: str) -> None:
    code = shell(green, f"{command} {where}").returncode
    silent = command in ("gate", "report") and where == "2> /dev/full"  # they write nothing there
    assert code == (0 if silent else EXIT_CODE[Exit.USAGE])
