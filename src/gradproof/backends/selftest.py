"""One self-test of `gradproof doctor`, in a process of its own: `python -m gradproof.backends.selftest NAME`.

Each asks a tool a question whose answer is known, one where it must say yes and, of a solver, one where it must say no.
What a tool that is broken says is no answer: the line that is printed is JSON, `passed` and `said`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

LIMIT = 20.0
"""Seconds for one question."""

ODD_ONE = 57


def passes(x: int) -> bool:
    """What CrossHair must refute, and at one argument alone.

    pre: 0 <= x <= 100
    post: __return__
    """
    return x * 3 != ODD_ONE * 3


def solver() -> str:
    """One query that has a model, which must be right, and one that has none."""
    from gradproof import smt

    x, zero, four = smt.real("x"), smt.number(0), smt.number(4)
    found = smt.solve([x * x == four, x > zero], {"x": x}, LIMIT)
    if found.answer is not smt.Answer.SAT or found.values.get("x") != 2:
        raise RuntimeError(f"x * x = 4 with x > 0: {found.answer}, {found.values}")
    none = smt.solve([x > zero, x < zero], {}, LIMIT)
    if none.answer is not smt.Answer.UNSAT:
        raise RuntimeError(f"x > 0 with x < 0: {none.answer}")
    return f"Z3 {smt.version()}: one query is sat with a model that is right, one is unsat"


def crosshair() -> str:
    """One contract with one counterexample, which must be found and must be one."""
    from gradproof.backends.crosshair_ask import broken, consult
    from gradproof.core import Outcome

    answer = consult(passes, "__return__", LIMIT)
    if answer.outcome is not Outcome.REFUTED or not answer.values:
        raise RuntimeError(f"a contract that is false: {answer.outcome}, {answer.reason}")
    if broken(passes, answer.values)[0] is not True:
        raise RuntimeError(f"a counterexample that is none: {answer.values}")
    return f"refuted one contract, at {answer.values}"


def torch() -> str:
    """One backward pass on the CPU."""
    return _backward("cpu")


def cuda() -> str:
    """One backward pass on the first CUDA device."""
    return _backward("cuda")


def _backward(device: str) -> str:
    """The gradient of sum(w * w * x) is 2 w x. Raises RuntimeError where torch finds another."""
    import torch

    weights = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True)
    loss = (weights * weights * torch.tensor([1.0, 2.0, 0.5], device=device)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    found = None if weights.grad is None else weights.grad.tolist()
    if found != [2.0, -8.0, 3.0]:
        raise RuntimeError(f"the gradient of sum(w * w * x) is {found}, and not 2 w x")
    name = f", {torch.cuda.get_device_name(0)}" if device == "cuda" else ""
    return f"torch {torch.__version__}: one backward pass on {device}{name}"


TESTS: Mapping[str, Callable[[], str]] = {"solver": solver, "crosshair": crosshair, "torch": torch, "cuda": cuda}


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
