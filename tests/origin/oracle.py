"""What each optimizer step is given, in float64: a case beside its reference, the same loop by the full batch.

A label is confirmed where a right loop gives each step what the reference gives it, and a wrong one does not, or leaves
other weights. Several seeds and, of a function, several sizes are tried.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradproof.shadow.tape.run import Run
from tests.origin.cases import FUNCTIONS, Case

CLOSE = 1e-6
SEEDS = ("0", "3")
SIZES = ((4, 2, 2, 0), (4, 2, 6, 1), (3, 2, 4, 2), (2, 3, 5, 3), (8, 1, 3, 4), (4, 1, 2, 5))
"""Micro-batches, rows, windows and seed of a function's runs."""
Steps = list[torch.Tensor]


def unseen(case: Case) -> str:
    """Why the numbers of steps say nothing of a case; empty where they do."""
    if case.kind == "ordinary":
        return "a loop as people write it has no reference of its own"
    if case.kind == FUNCTIONS:
        return "its script is confirmed; other sizes do not fit each function"
    return str(case.slots.get("unseen", ""))


def difference(case: Case) -> float:
    """The largest relative difference, over all seeds and sizes; infinity where the numbers of steps differ."""
    if case.kind == "check":
        return max(_apart(_called(case.text, *size), _called(case.reference, 1, size[0] * size[1], *size[2:]))
                   for size in SIZES)  # fmt: skip
    return max(_apart(_run(case.text, seed), _run(case.reference, seed)) for seed in SEEDS)


def contradiction(case: Case) -> str:
    """What the numbers say against the label; empty where they confirm it."""
    try:
        found = difference(case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if (found <= CLOSE) is case.right else f"{case.label}, and the steps are {found:.1e} apart"


def _apart(one: tuple[Steps, Steps], other: tuple[Steps, Steps]) -> float:
    return max(_relative(mine, reference) for mine, reference in zip(one, other, strict=True))


def _relative(mine: Steps, reference: Steps) -> float:
    if len(mine) != len(reference) or not mine or any(a.shape != b.shape for a, b in zip(mine, reference, strict=True)):
        return float("inf")
    return max(float((a - b).abs().max() / b.abs().max().clamp(1e-12)) for a, b in zip(mine, reference, strict=True))


def _run(text: str, seed: str) -> tuple[Steps, Steps]:
    os.environ["SEED"] = seed
    return _recorded(0, lambda: exec(compile(text, "train.py", "exec"), {"__name__": "__main__"}))


def _called(text: str, n: int, rows: int, windows: int, seed: int) -> tuple[Steps, Steps]:
    module = types.ModuleType("train")
    exec(compile(text, "train.py", "exec"), module.__dict__)
    run = Run(n, rows, windows, "cpu", torch.float64, seed)
    return _recorded(seed, lambda: module.train(run))


def _recorded(seed: int, call: Callable[[], Any]) -> tuple[Steps, Steps]:
    """The gradients that each step is given, and the weights that it leaves."""
    given: Steps = []
    left: Steps = []
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    before = register_optimizer_step_pre_hook(lambda of, *_: given.append(_flat(of, lambda p: p.grad)))
    after = register_optimizer_step_post_hook(lambda of, *_: left.append(_flat(of, lambda p: p)))
    try:
        with in_float64(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            call()
    finally:
        before.remove()
        after.remove()
    return given, left


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """The default dtype, for a while."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


def _flat(of: torch.optim.Optimizer, read: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor:
    """One tensor of all parameters; zeroes where there is none."""
    parts = []
    for p in (p for group in of.param_groups for p in group["params"]):
        got = read(p)
        own = torch.zeros_like(p) if got is None else got
        own = torch.view_as_real(own.detach().resolve_conj()) if own.is_complex() else own.detach().to_dense()
        parts.append(own.reshape(-1).double().clone())
    return torch.cat(parts)
