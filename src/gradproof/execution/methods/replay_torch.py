"""Replays a counterexample of the Python model on a real PyTorch step.

The case's gradients become a model: with loss_i = w . g_i + L_i (the value L_i alone, the gradient g_i), real autograd
gives exactly g_i, in a 16-bit forward when the case says so. The step then runs under observation, and the same
clause is judged on what was applied and reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.arith.bounds import accumulation_bound
from gradproof.arith.formats import format_named
from gradproof.execution.methods.exact_window import judge_window
from gradproof.execution.methods.observe import Trace, Watch, vector_of
from gradproof.execution.methods.property import Batch, Maker, Report, StepConfig

NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}
SKIP_SCALE = 1024.0
RATE = 2.0**-6


class ReplayGiven(nn.Module):
    """w . x in the forward's format."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.dtype = nn.Parameter(torch.zeros(elements)), dtype

    def forward(self, x: Tensor) -> Tensor:
        """(elements,) -> scalar."""
        return (self.weight.to(self.dtype) * x.to(self.dtype)).sum().float()


@dataclass
class Played:
    """The case as it ran."""

    case: Mapping[str, Any]
    trace: Trace
    report: Report
    sizes: list[int]

    @property
    def windows(self) -> list[range]:
        """Indices of the micro-batches of each window."""
        n, total = int(self.case["n"]), len(self.case["grads"])
        return [range(i, min(i + n, total)) for i in range(0, total, n)]

    @property
    def skipped(self) -> set[int]:
        """Windows that the scaler must suppress."""
        return {int(k) for k in self.case.get("skip", ()) if int(k) < len(self.windows)}

    def weights(self, window: range) -> list[Fraction]:
        """Right weight of each micro-batch."""
        counts = [int(c) for c in self.case.get("counts") or [1] * len(self.case["grads"])]
        total = sum(counts[i] for i in window)
        return [Fraction(counts[i], total) for i in window]

    def applied(self) -> dict[int, list[float]] | None:
        """Gradient applied to each window that is not skipped; None when their numbers differ."""
        due = [k for k in range(len(self.windows)) if k not in self.skipped]
        taken = [a for a in self.trace.applied if not a.skipped]
        if len(taken) != len(due):
            return None
        return {k: vector_of(a.grads, self.sizes).tolist() for k, a in zip(due, taken, strict=True)}

    def mean(self, window: range) -> list[Fraction]:
        """The exact weighted mean of the given gradients (as fp32 numbers)."""
        rows = [torch.tensor(self.case["grads"][i], dtype=torch.float32).tolist() for i in window]
        weighted = zip(rows, self.weights(window), strict=True)
        scaled = [[Fraction(v) * w for v in row] for row, w in weighted]
        return [sum(column, Fraction(0)) for column in zip(*scaled, strict=True)]

    def room(self, window: range, tolerance: float) -> float:
        """What a correct fp32 accumulation of these gradients may err by: the bound, and one rounding a share."""
        peak = max((abs(v) for i in window for v in self.case["grads"][i]), default=0.0)
        if peak == 0:
            return tolerance
        n, magnitude = len(window), Fraction(peak)
        u = format_named("fp32").u + format_named("fp32").u
        narrow = self.case.get("gradient_format")
        u += 3 * format_named(narrow).u if narrow in NARROW else 0
        return max(tolerance, float(accumulation_bound("fp32", n, magnitude) + u * magnitude))


def play(subject: Any, case: Mapping[str, Any]) -> Played:
    """Run the subject (a class) on the case. Raises whatever it raises, and KeyError for a case without gradients."""
    grads = [torch.tensor(row, dtype=torch.float32) for row in case["grads"]]
    losses = _flattened(case.get("losses") or [0.0] * len(grads))
    n, skip = int(case["n"]), {int(k) for k in case.get("skip", ())}
    scale = case.get("loss_scale") or (SKIP_SCALE if skip else None)
    weighting = case.get("weighting", "equal")
    config = StepConfig(n, max_norm=case.get("max_norm"), loss_scale=scale, weighting=weighting, learning_rate=RATE)

    def loss(output: Tensor, batch: Batch, reduction: str) -> Tensor:
        value = output - output.detach() + losses[batch.index]
        value = value * math.inf if batch.index // n in skip and batch.index % n == 0 else value
        return value * batch.count if reduction == "sum" else value

    counts = case.get("counts") or [1] * len(grads)
    batches = [Batch(i, g, g, int(c)) for i, (g, c) in enumerate(zip(grads, counts, strict=True))]
    watch = Watch(loss)
    model = ReplayGiven(len(grads[0]), NARROW.get(case.get("gradient_format") or "", torch.float32))
    job = Maker(watch.criterion).make(model, config, batches)
    if case.get("stale"):
        model.weight.grad = torch.tensor(case["stale"], dtype=torch.float32)
    with watch.watching(job) as trace:
        report = subject().run(job)
    return Played(case, trace, report, [model.weight.numel()])


def _flattened(losses: Sequence[Any]) -> list[float]:
    return [float(v) for row in losses for v in (row if isinstance(row, list | tuple) else (row,))]


def _values(p: Played) -> str:
    """Every window's applied gradient is the exact mean of the given ones; the first difference, or nothing."""
    applied = p.applied()
    if applied is None:
        return f"{len(p.windows) - len(p.skipped)} windows to apply, {len(p.trace.applied)} gradients applied"
    for k, got in applied.items():
        room = p.room(p.windows[k], float(p.case.get("tolerance") or 0))
        for e, (v, right) in enumerate(zip(got, p.mean(p.windows[k]), strict=True)):
            if not abs(v - float(right)) <= room:
                return f"window {k}, element {e}: applied {v:.9g}, exact mean {float(right):.9g}, room {room:.3g}"
    return ""


def _losses(p: Played) -> str:
    """Every window's reported loss is the mean."""
    if len(p.report.losses) != len(p.windows):
        return f"{len(p.windows)} windows, {len(p.report.losses)} losses reported"
    losses = _flattened(p.case.get("losses") or [0.0] * len(p.case["grads"]))
    for k, (reported, window) in enumerate(zip(p.report.losses, p.windows, strict=True)):
        shares = [float(w) * losses[i] for i, w in zip(window, p.weights(window), strict=True)]
        room = (len(window) + 8) * float(format_named("fp32").u) * math.fsum(map(abs, shares))
        if not abs(reported - math.fsum(shares)) <= max(room, float(p.case.get("tolerance") or 0)):
            return f"window {k}: reported loss {reported:.9g}, mean {math.fsum(shares):.9g}"
    return ""


def _steps(p: Played) -> str:
    """One attempt at each window's end, weights that it moved, and the schedule after each step that was performed."""
    due = [window.stop for window in p.windows]
    if p.trace.attempts != due:
        return f"steps after {p.trace.attempts} micro-batches, due after {due}"
    if p.trace.astray:
        return p.trace.astray
    made, wanted = p.trace.schedules(), [0, *(int(k not in p.skipped) for k in range(len(p.windows)))]
    if made != wanted:
        return f"the schedule advanced {made} times, before the first step and after each; due {wanted}"
    return _values(p)


def _buffer(p: Played) -> str:
    """Each applied gradient is within fp32's bound of the exact sum of what arrived."""
    applied = p.applied()
    if applied is None:
        return "a window was not applied"
    for k, got in applied.items():
        passes = [b for i in p.windows[k] for b in p.trace.backwards if b.index == i]
        if len(passes) != len(p.windows[k]):
            return f"window {k}: {len(passes)} backward passes for {len(p.windows[k])} micro-batches"
        ratios = [b.factor / float(w) for b, w in zip(passes, p.weights(p.windows[k]), strict=True)]
        try:
            error = judge_window([b.vector.tolist() for b in passes], ratios, got)
        except ValueError as e:
            return f"window {k}: {e}"
        if not error.within:
            return f"window {k}: error {error.error:.6g}, an fp32 buffer errs by at most {error.bound:.6g}"
    return ""


def _clips(p: Played) -> str:
    """One clip a window, after its last micro-batch and after unscale; the applied gradient is clip(mean)."""
    window: list[str] = []
    for event in p.trace.events:
        if event == "step":
            after = window[window.index("clip") + 1 :] if "clip" in window else []
            if window.count("clip") != 1 or {"accumulate", "unscale"}.intersection(after):
                return f"events of a window: {', '.join(window)}, step"
        window = [] if event == "step" else [*window, event]
    limit, applied = p.case.get("max_norm"), p.applied()
    if limit is None or applied is None:
        return _values(p)
    for k, got in applied.items():
        mean = [float(v) for v in p.mean(p.windows[k])]
        norm = math.sqrt(math.fsum(v * v for v in mean))
        shrink, room = min(1.0, limit / (norm + 1e-6)), 3 * p.room(p.windows[k], 0.0)
        for e, (v, m) in enumerate(zip(got, mean, strict=True)):
            if not abs(v - shrink * m) <= room:
                return f"window {k}, element {e}: applied {v:.9g}, clip(mean) {shrink * m:.9g}"
    return ""


JUDGES: Mapping[str, Callable[[Played], str]] = {
    "GA-EQ-001": _values,
    "GA-INV-001": _losses,
    "GA-INV-002": _values,
    "GA-INV-003": _steps,
    "GA-INV-004": _buffer,
    "GA-INV-005": _clips,
}


def replay_model(subject_cls: Any, case: Mapping[str, Any], clause: str) -> dict[str, Any]:
    """Does the clause break on a real PyTorch step with these numbers? A crash is no reproduction.

    `case`: n, grads (a list a micro-batch); optional losses, counts, max_norm, loss_scale, stale, skip,
    gradient_format, weighting and tolerance.
    """
    on = "torch cpu fp32" + (f", {case['gradient_format']} forward" if case.get("gradient_format") in NARROW else "")
    if clause not in JUDGES:
        return {"on": on, "reproduced": False, "detail": f"no judge for clause {clause}"}
    try:
        said = JUDGES[clause](play(subject_cls, case))
    except Exception as e:
        return {"on": on, "reproduced": False, "detail": f"crashed: {type(e).__name__}: {e}"}
    return {"on": on, "reproduced": bool(said), "detail": said or f"{clause} holds on these numbers"}
