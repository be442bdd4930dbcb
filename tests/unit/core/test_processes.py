"""Time limits: CPU time of a whole tree of processes, and ten times as much on the clock."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradproof.arith import smt
from gradproof.contract.model import load as contract
from gradproof.contract.settings import load
from gradproof.contract.yaml_reader import ContractErrors
from gradproof.core import processes
from gradproof.core.errors import GradproofError
from gradproof.core.processes import Spent, exceeded
from gradproof.core.workspace import Workspace
from gradproof.session import Options
from gradproof.shadow.process.check import Target, verify
from gradproof.shadow.request import Request

SPIN = "while True: pass"
BREEDS = """
import os, time
while True:
    pid = os.fork()
    if pid == 0:
        while time.process_time() < 0.05: pass
        os._exit(0)
    os.waitpid(pid, 0)
"""
ESCAPES = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    {SPIN}
sys.stdin.read()
"""
Children = list[subprocess.Popen[bytes]]


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes of a test, ended with all that is known of their trees."""
    started: Children = []
    yield started
    for child in started:
        spent = Spent(child.pid)
        spent.look()
        for process in spent._known.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def start(children: Children, text: str) -> subprocess.Popen[bytes]:
    """A process of Python that runs a text, in a session of its own."""
    children.append(subprocess.Popen([sys.executable, "-I", "-c", text], stdin=subprocess.PIPE, start_new_session=True))
    return children[-1]


@pytest.mark.parametrize("text", [SPIN, BREEDS, ESCAPES], ids=["spins", "dead children", "a session of its own"])
def test_the_cpu_time_of_the_whole_tree_is_limited(children: Children, text: str) -> None:
    assert re.findall(r"[\d.]+|CPU", exceeded(start(children, text), 0.5) or "") == ["0.5", "CPU"]


def test_a_process_that_does_nothing_is_limited_by_the_clock(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WALL", 0.01)
    said = exceeded(start(children, "import sys; sys.stdin.read()"), 50.0) or ""
    assert re.findall(r"[\d.]+|clock|CPU", said) == ["0.5", "clock", "0.01", "50", "CPU"]


def test_a_process_that_waits_for_a_busy_machine_is_waited_for(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers long after its limit has passed on the clock, and has had little CPU time."""
    child, looks = start(children, "import sys; sys.stdin.read()"), list[float]()
    monkeypatch.setattr(processes, "LOOK", 0.01)
    monkeypatch.setattr(processes, "WALL", 1e6)
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 1 << 20)
    look = Spent.look

    def looked(spent: Spent) -> float:
        looks.append(look(spent))
        if len(looks) == 50:
            child.stdin.close()
        return 0.0 if len(looks) < 100 else 1e9

    monkeypatch.setattr(Spent, "look", looked)
    assert exceeded(child, 0.1) is None
    assert (len(looks) >= 50, child.returncode) == (True, 0)


def hard() -> list[smt.Term]:
    """A question that z3 does not answer soon: three cubes that sum to 42, of numbers with seventeen digits."""
    x, y, z = (smt.integer(name) for name in "xyz")
    return [x * x * x + y * y * y + z * z * z == 42]


def test_a_query_ends_with_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt, "WALL", 1e5)
    assert smt.solve(hard(), {}, 0.3).answer is smt.SolverAnswer.TIMEOUT


def test_a_query_that_gets_no_cpu_time_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt.time, "process_time", lambda: 0.0)
    assert smt.solve(hard(), {}, 0.05).answer is smt.SolverAnswer.TIMEOUT


class Never:
    """A process for which nobody must wait."""

    pid = 0

    def wait(self, timeout: float | None = None) -> int:
        """Never called."""
        raise AssertionError(timeout)


NO_LIMITS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 0, True, "60")


@pytest.mark.parametrize("limit", NO_LIMITS, ids=repr)
def test_what_is_no_time_limit_is_refused_wherever_one_is_given(tmp_path: Path, limit: Any) -> None:
    for given in (
        lambda: exceeded(Never(), limit),
        lambda: Options(time_limit=limit),
        lambda: verify(Target(tmp_path / "train.py", "train", "train.py"), Request(), limit),
    ):
        with pytest.raises(GradproofError, match="the time limit is") as refused:
            given()
        assert refused.value.code == "GP406"


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "-1.0", "0", "true", '"60"'])
def test_what_is_no_time_limit_is_refused_in_the_settings(tmp_path: Path, word: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.gradproof]\ntime-limit = {word}\n", encoding="utf-8")
    with pytest.raises(GradproofError, match=r"pyproject\.toml:2:\d+: GP491\n[\s\S]* 3600"):
        load(tmp_path)


@pytest.mark.parametrize("word", ["nan", ".nan", ".inf", "-1", "0", "true"])
def test_what_is_no_time_limit_is_refused_in_a_contract(toy: Workspace, word: str) -> None:
    path = toy.contracts()[0]
    text = path.read_text(encoding="utf-8")
    at = text.index("harness:")
    indent = " " * (at - text.rindex("\n", 0, at) - 1)
    path.write_text(f"{text[:at]}time_limit: {word}\n{indent}{text[at:]}", encoding="utf-8")
    with pytest.raises(ContractErrors) as refused:
        contract(path)
    assert {p.code for p in refused.value.problems} <= {"GP104", "GP107"}
