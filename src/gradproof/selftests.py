"""The self-tests of `gradproof doctor`, seen from the process that asks: each in a child of its own.

A child that hangs, dies, or answers anything but one line of JSON has failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "failed", "absent"]
LIMIT = 600.0
"""Seconds for all of them; they run side by side."""

GET: Mapping[str, str] = {
    "solver": "python -m pip install --force-reinstall z3-solver",
    "crosshair": "python -m pip install --force-reinstall crosshair-tool",
    "torch": "python -m pip install --force-reinstall torch",
    "worker": "install gradproof again; where that does not help, report this line",
    "check": "install gradproof again; where that does not help, report this line",
    "cuda": "install a driver from the maker of the GPU, and a torch that is built for it (pytorch.org/get-started)",
}
"""Self-test -> how to get what it tests."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What one self-test found. `absent`: there is nothing to test, and nothing that gradproof needs is missing."""

    name: str
    state: State
    said: str
    get: str
    seconds: float


def command(name: str) -> list[str]:
    """How a child is started: without the current folder on its import path."""
    return [sys.executable, "-P", "-m", "gradproof.backends.selftest", name]


def run_all(absent: str | None, limit: float = LIMIT) -> list[SelfTest]:
    """Every self-test, side by side. `absent`: why there is no CUDA device, None where there is one."""
    names = [name for name in GET if name != "cuda" or absent is None]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradproof-") as scratch:
        started = [(name, _start(name, scratch)) for name in names]
        found = [_finished(name, child, began, limit) for name, child in started]
    if absent is not None:
        found.append(SelfTest("cuda", "absent", absent, GET["cuda"], 0.0))
    return found


def _start(name: str, scratch: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(name), cwd=scratch, env=_environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _environ() -> dict[str, str]:
    """The caller's environment; folders of PYTHONPATH that were named from the current folder stay where they are."""
    places = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)} if places else dict(os.environ)


def _finished(name: str, child: subprocess.Popen[str], began: float, limit: float) -> SelfTest:
    """Wait for a child, and judge what it printed."""
    try:
        out, err = child.communicate(timeout=max(0.0, began + limit - time.monotonic()))
        state, said = judged(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        state, said = "failed", f"no answer within {limit:g} s"
    return SelfTest(name, state, said, "" if state == "passed" else GET[name], round(time.monotonic() - began, 3))


def judged(code: int, out: str, err: str) -> tuple[State, str]:
    """What a child's end is worth: passed only for exit code 0 and a last line that says so."""
    lines = out.strip().splitlines()
    if code != 0:
        last: Sequence[str] = err.strip().splitlines()[-1:]
        return "failed", f"the process ended with exit code {code}" + (f": {last[0]}" if last else "")
    try:
        data = json.loads(lines[-1]) if lines else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or set(data) != {"passed", "said"} or not isinstance(data["said"], str):
        return "failed", "the process ended without an answer"
    return ("passed" if data["passed"] is True else "failed"), data["said"]
