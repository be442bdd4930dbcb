"""One self-test of `gradproof doctor`, in a process of its own: `python -m gradproof.extras.selftest NAME`.

Each asks a tool a question whose answer is known, one where it must say yes and, of a solver, one where it must say no.
What a tool that is broken says is no answer: the line that is printed is JSON, `passed` and `said`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

# -- The self-tests of `gradproof doctor`, seen from the process that asks: each in a child of its own.
State = Literal["passed", "failed", "absent"]
LIMIT = 600.0
"""Seconds for all of them; they run side by side."""

USES = {"solver": "z3", "crosshair": "crosshair", "worker": "z3"}
"""Self-test -> the module that it needs, of those that the light distribution does not bring."""
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
    return [sys.executable, "-P", "-m", "gradproof.extras.selftest", name]


def run_all(absent: Mapping[str, tuple[str, str]], limit: float = LIMIT) -> list[SelfTest]:
    """Every self-test, side by side. `absent`: those of which there is nothing to test, why not, and how to get it."""
    names = [name for name in GET if name not in absent]
    with tempfile.TemporaryDirectory(prefix="gradproof-") as scratch, ThreadPoolExecutor(len(names)) as side_by_side:
        found = list(side_by_side.map(lambda name: _run(name, scratch, limit), names))
    return found + [SelfTest(name, "absent", why, get, 0.0) for name, (why, get) in absent.items()]


def _run(name: str, scratch: str, limit: float) -> SelfTest:
    """Run one in a child, and judge what it printed. It finds the folders of PYTHONPATH that the caller found."""
    places = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environ = {**os.environ, **({"PYTHONPATH": os.pathsep.join(places)} if places else {})}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command(name), cwd=scratch, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=limit, check=False,
        )  # fmt: skip
        state, said = judged(done.returncode, done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
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


TEST_LIMIT = 20.0
"""Seconds of CPU time for one question."""

ODD_ONE = 57
OBLIGATION = "GA-EQ-001"
CHECKED = "KANI-GA-002"
"""A check of the packaged reference workspace that takes a second."""
LOOP = """\
import torch


def train(run):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(run.samples, 8), torch.randn(run.samples, 1)
    batches = zip(*(part.split(run.micro_batch_size) for part in data))
    for i, (inputs, targets) in enumerate(batches):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
"""The loop of README.md and of `gradproof demo`. Nothing divides the loss by the micro-batches of a window."""
WRONG, RIGHT = "        loss.backward()\n", "        (loss / run.accum_steps).backward()\n"


def passes(x: int) -> bool:
    """What CrossHair must refute, and at one argument alone.

    pre: 0 <= x <= 100
    post: __return__
    """
    return x * 3 != ODD_ONE * 3


def solver() -> str:
    """One query that has a model, which must be right, and one that has none."""
    from gradproof.arith import smt

    x, zero, four = smt.real("x"), smt.number(0), smt.number(4)
    found = smt.solve([x * x == four, x > zero], {"x": x}, TEST_LIMIT)
    if found.answer is not smt.SolverAnswer.SAT or found.values.get("x") != 2:
        raise RuntimeError(f"x * x = 4 with x > 0: {found.answer}, {found.values}")
    none = smt.solve([x > zero, x < zero], {}, TEST_LIMIT)
    if none.answer is not smt.SolverAnswer.UNSAT:
        raise RuntimeError(f"x > 0 with x < 0: {none.answer}")
    return f"Z3 {smt.version()}: one query is sat with a model that is right, one is unsat"


def crosshair() -> str:
    """One contract with one counterexample, which must be found and must be one."""
    from gradproof.core.outcome import Outcome
    from gradproof.execution.methods.crosshair import broken, consult

    answer = consult(passes, "__return__", TEST_LIMIT)
    if answer.outcome is not Outcome.REFUTED or not answer.values:
        raise RuntimeError(f"a contract that is false: {answer.outcome}, {answer.reason}")
    if broken(passes, answer.values)[0] is not True:
        raise RuntimeError(f"a counterexample that is none: {answer.values}")
    return f"refuted one contract, at {answer.values}"


def worker() -> str:
    """One check of the reference workspace, in a process of its own, as `gradproof verify` runs it."""
    from gradproof.core.outcome import Outcome
    from gradproof.core.workspace import Workspace, reference
    from gradproof.execution.local import Worker
    from gradproof.session import Options, Session

    root = reference()
    if root is None:
        raise RuntimeError("no reference workspace lies beside the package")
    [check] = [c for c in Session(Options(workspace=root)).checks if c.id == CHECKED]
    found = Worker(check, Workspace(root, Path("reports").resolve()), check.time_limit).run().finding
    if found.outcome is not Outcome.HOLDS:
        raise RuntimeError(f"{CHECKED}, which holds: {found.outcome}, {found.reason}")
    return f"{CHECKED} holds, in a process of its own"


def check() -> str:
    """A loop that accumulates as it should, and the same without its division, as `gradproof check` verifies them."""
    from gradproof.core.outcome import Outcome
    from gradproof.shadow.process.check import target_of, verify
    from gradproof.shadow.request import Request

    asked = Request(accum_steps=2, micro_batch=1)
    for name, text, right in (
        ("right", LOOP.replace(WRONG, RIGHT), Outcome.HOLDS), ("wrong", LOOP, Outcome.REFUTED),
    ):  # fmt: skip
        Path(f"{name}.py").write_text(text, encoding="utf-8")
        [found] = [
            r for r in verify(target_of(f"{name}.py:train"), asked, TEST_LIMIT).results if r.obligation == OBLIGATION
        ]
        if found.outcome is not right:
            raise RuntimeError(f"{OBLIGATION} of a loop that is {name}: {found.outcome}, {found.reason}")
    return f"{OBLIGATION} holds of one loop, and is refuted of the same loop without its division"


def backward(device: str) -> str:
    """One backward pass on the CPU or the first CUDA device: the gradient of sum(w * w * x) is 2 w x.

    Raises RuntimeError where torch finds another.
    """
    import torch

    weights = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True)
    loss = (weights * weights * torch.tensor([1.0, 2.0, 0.5], device=device)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    found = None if weights.grad is None else weights.grad.tolist()
    if found != [2.0, -8.0, 3.0]:
        raise RuntimeError(f"the gradient of sum(w * w * x) is {found}, and not 2 w x")
    name = f", {torch.cuda.get_device_name(0)}" if device == "cuda" else ""
    return f"torch {torch.__version__}: one backward pass on {device}{name}"


TESTS: Mapping[str, Callable[[], str]] = {
    "solver": solver, "crosshair": crosshair, "torch": partial(backward, "cpu"), "cuda": partial(backward, "cuda"),
    "worker": worker, "check": check,
}  # fmt: skip


def answer(name: str) -> dict[str, object]:
    """What a self-test says. Raises KeyError for a name that is none."""
    test = TESTS[name]
    try:
        return {"passed": True, "said": test()}
    except Exception as error:  # whatever a broken tool raises is what the self-test found
        return {"passed": False, "said": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Run the self-test that is named, and print its answer on a line of its own."""
    print("\n" + json.dumps(answer(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
