"""GA-CE-001: the closed form of the cross-entropy gradient against the derivative of the loss, over the reals.

The loss is computed as PyTorch computes it, log sum exp(z - m) + m - z_target with m the row's largest logit, on
numbers that carry their derivatives by every logit (forward-mode differentiation: Griewank and Walther 2008, section
3.1). The rules are d exp(x) = exp(x) dx and d log x = dx / x; exp of a logit is any positive real, and m any logit, so
exp(z - m) = e / e_m. The value of log is never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from models.tokens.cross_entropy import Rows

CLAUSE = "GA-CE-001"
IGNORED = -100  # torch.nn.functional.cross_entropy's default of ignore_index; the model has a constant of its own
LARGER = (5, [[4, IGNORED, 3, 0, 4], [3, 4, IGNORED, IGNORED, 2]])
"""Classes, and targets of larger batches: what only happens above two rows, valid targets or classes is seen there."""
Slope = dict[tuple[int, int], Any]


@dataclass(frozen=True)
class Dual:
    """A number (`exp` instead of the number itself for a logit or a difference of logits) and its derivatives."""

    value: Any
    slope: Slope

    def minus(self, other: Dual) -> Dual:
        """Difference of two logits: the exponentials divide."""
        return Dual(self.value / other.value, combined(1, self.slope, -1, other.slope))

    def exp(self) -> Dual:
        """d exp(x) = exp(x) dx."""
        return Dual(self.value, {k: self.value * d for k, d in self.slope.items()})


def combined(a: Any, x: Slope, b: Any, y: Slope) -> Slope:
    """a x + b y."""
    return {k: a * x.get(k, 0) + b * y.get(k, 0) for k in dict.fromkeys([*x, *y])}


def log_slope(x: Dual) -> Slope:
    """d log x = dx / x."""
    return {k: d / x.value for k, d in x.slope.items()}


def loss_slope(logits: Sequence[Dual], target: int, largest: int) -> Slope:
    """Derivatives of log sum exp(z - m) + m - z_target, m the logit number `largest`."""
    m = logits[largest]
    total = Dual(0, {})
    for z in logits:
        e = z.minus(m).exp()
        total = Dual(total.value + e.value, combined(1, total.slope, 1, e.slope))
    lifted = combined(1, log_slope(total), 1, m.slope)
    return combined(1, lifted, -1, logits[target].slope)


def mean_slope(exps: Rows, targets: Sequence[int], largest: int) -> Slope:
    """Derivatives of the mean loss over the valid targets, which are at least one."""
    valid = [i for i, t in enumerate(targets) if t != IGNORED]
    slope: Slope = {}
    for i in valid:
        logits = [Dual(e, {(i, j): 1}) for j, e in enumerate(exps[i])]
        slope = combined(1, slope, 1, loss_slope(logits, targets[i], largest))
    return {k: d / len(valid) for k, d in slope.items()}


def gradient_at_logits(k: Any, loss: Any) -> None:
    """GA-CE-001, for every assignment of targets, ignored ones among them, and all logits."""
    if k.choose("batch", ["every assignment", "larger"]) == "larger":
        classes, batches = LARGER
        targets, largest = list(k.choose("targets", batches)), 0
        rows = len(targets)
    else:
        rows, classes = k.upto("rows"), k.bound("classes")
        targets = [int(k.choose("target", [*range(classes), IGNORED])) for _ in range(rows)]
        largest = int(k.choose("largest", [0, classes - 1] if rows < k.bound("rows") else [rows % classes]))
    exps = positive(k, rows, classes)
    valid = sum(t != IGNORED for t in targets)
    k.cover("a valid and an ignored row", 0 < valid < rows)
    k.cover("no valid row", valid == 0)
    slope = mean_slope(exps, targets, largest) if valid else {}
    grads = loss.backward(exps, targets)
    k.check(CLAUSE, [len(g) for g in grads] == [classes] * rows, "a gradient for each logit")
    for i, row in enumerate(grads):
        words = f"row {i} of targets {targets}"
        same = [k.same(g, slope.get((i, j), 0)) for j, g in enumerate(row)]
        k.check(CLAUSE, reduce(and_, same), f"{words}: the derivative of the mean loss, zero where it is ignored")
    if largest == 0 and rows == 1:
        refuses_no_class(k, loss, classes)


def positive(k: Any, rows: int, classes: int, name: str = "e") -> Rows:
    """Exponentials of logits: any positive numbers."""
    exps = [k.reals(f"{name}{i}", classes) for i in range(rows)]
    for row in exps:
        for e in row:
            k.assume(e > 0)
    return exps


def refuses_no_class(k: Any, loss: Any, classes: int) -> None:
    """A target that is neither a class nor IGNORED is an error, as in PyTorch: it has no gradient."""
    label = int(k.choose("no class", [-1, classes, classes + 1, IGNORED - 1, IGNORED + 1]))
    try:
        loss.backward(positive(k, 1, classes, "other "), [label])
    except IndexError:
        return
    k.check(CLAUSE, False, f"target {label} of {classes} classes is taken")
