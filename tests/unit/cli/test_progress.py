"""Progress on stderr: silent for two seconds, then a line now and then, with what runs and what is left."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from toy_workspace import answer, check, recorded

from gradproof.cli.options import LATE, SOON
from gradproof.cli.progress import Sparse, _bar
from gradproof.core.check import Finding
from gradproof.core.outcome import Outcome
from gradproof.core.workspace import Workspace
from gradproof.execution.pool import Pool, Progress


def test_a_pipe_gets_a_line_after_two_seconds_and_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    sparse = Sparse(lambda: now[0])
    running = {"K-1": 3.0, "K-2": 40.0, "K-3": 1.0, "K-4": 2.0}

    def lines(at: float) -> list[str]:
        now[0] = 100 + at
        sparse(Progress("tick", None, None, 3, 9, running, {}, "", 61.0))
        return capsys.readouterr().err.splitlines()

    assert lines(SOON / 2) == []
    [line] = lines(SOON)
    assert line == "[3/9] 2.00 s; about 1 min 01 s left; running K-2 40 s, K-1 3 s, K-4 2 s and 1 more"
    assert lines(SOON + LATE - 1) == []
    assert len(lines(SOON + LATE)) == 1
    now[0] += 2 * LATE
    sparse(Progress("finished", None, None, 9, 9, {}))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_terminal_gets_one_line_that_fits(width: int) -> None:
    shown = io.StringIO()
    with _bar(Console(file=shown, force_terminal=True, width=width, color_system=None)) as listener:
        running = {f"KANI-GA-{n}": 100.0 + n for n in range(9)}
        listener(Progress("tick", None, None, 3, 9, running, {}, "", 61.0))
    lines = [part for part in re.split(r"[\r\n]|\x1b\[[0-9?]*[a-zA-Z]", shown.getvalue()) if part.strip()]
    assert all(len(line) <= width for line in lines)
    last = lines[-1]
    assert "3/9" in last
    assert "about 1 min" in last
    assert ("running KANI-GA-8 108 s" in last) == (width > 79)


def test_a_broken_check_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    sparse, one = Sparse(lambda: now[0]), check()
    wrong = recorded(one, Finding(Outcome.VACUOUS, "nothing was checked"))
    sparse(Progress("finished", one, wrong, 1, 3, {}))
    sparse(Progress("finished", one, recorded(one, answer(one)), 2, 3, {}))
    now[0] = 60
    sparse(Progress("tick", None, None, 2, 3, {}))
    assert capsys.readouterr().err == "[2/3] 1 min 00 s; 1 BROKEN\n"


def test_what_is_left_comes_from_earlier_runs(tmp_path: Path) -> None:
    pool = Pool(Workspace(tmp_path, tmp_path), known={"A": 10.0, "B": 30.0})
    pool._done, pool._waiting = {}, {name: check(name) for name in ("B", "C")}
    assert pool._left({"A": 4.0}) == 6 + 30 + 20  # C is new: the mean of A and B
    assert pool._left({"A": 4.0, "D": 0.0}) == (6 + 20 + 30 + 20) / 2
    assert pool._left({"A": 100.0}) == 50
    pool.known = {}
    assert pool._left({"A": 4.0}) is None
