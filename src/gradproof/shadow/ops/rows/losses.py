"""Losses and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Value, where
from gradproof.shadow.ops.rows.common import absolute, larger
from gradproof.shadow.ops.rows.geometry import concrete
from gradproof.shadow.ops.table import Example, Int, Ops, T, register

X = T((4, 3))
UNIT = T((4, 3), 0.1, 0.9)
LOGITS = T((4, 5), -3.0, 0.0)
CLASSES = Int((4,), 5)
SPACE = T((2, 5, 2, 3), -3.0, 0.0)
SPACES = Int((2, 2, 3), 5)
WEIGHT = T((5,), 0.1, 1.0)
NONE, MEAN = 0, 1


def reduced(x: Value, reduction: int) -> Value:
    """0: as it is; 1: the mean; 2: the sum."""
    return x if reduction == NONE else x.mean() if reduction == MEAN else x.sum()


def coefficient(grad: Value, shape: tuple[int, ...], reduction: int) -> Value:
    """What each element's loss is multiplied by in the total."""
    each = grad / math.prod(shape) if reduction == MEAN else grad
    return each.expand(shape)


def aligned(k: Ops, *args: Any) -> list[Value]:
    """Values of one shape."""
    values = [k.lift(a) for a in args]
    shape = np.broadcast_shapes(*(v.shape for v in values))
    return [v if v.shape == shape else v.expand(shape) for v in values]


# Negative log-likelihood: classes on the last axis, rows flat.


def rows_of(x: Any) -> Value:
    """(N, C, ...) or (C,) as (rows, C)."""
    if x.ndim == 1:
        return x.reshape(1, -1)  # type: ignore[no-any-return]
    moved = x.move(lambda p: np.moveaxis(p, 1, -1))
    return moved.reshape(-1, x.shape[1])  # type: ignore[no-any-return]


def valid_rows(target: Any, ignore: int) -> tuple[Array, Array, Array]:
    """Flat targets, which rows count, and the targets of those."""
    flat = concrete(target, "the targets").reshape(-1).astype(np.int64)
    kept = np.flatnonzero(flat != ignore)
    return flat, kept, flat[kept]


def class_weights(k: Ops, weight: Any, classes: Array) -> Value:
    """The weight of each row's class, one without weights."""
    return k.lift(np.ones(classes.shape)) if weight is None else k.lift(weight)[classes]


@register(
    "aten.nll_loss_forward",
    examples=[
        Example(LOGITS, CLASSES, None, 1, -100), Example(LOGITS, CLASSES, WEIGHT, 1, 2),
        Example(LOGITS, CLASSES, WEIGHT, 2, 1), Example(LOGITS, CLASSES, WEIGHT, 0, 1),
        Example(T((5,)), Int((), 5), None, 1, -100),
    ],
)  # fmt: skip
def nll_loss(k: Ops, x: Value, target: Any, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    """The loss, and the total weight. Raises Beyond where no target is valid: the mean is 0/0 there."""
    flat, kept, classes = valid_rows(target, ignore)
    w = class_weights(k, weight, classes)
    losses = -rows_of(x)[kept, classes] * w
    if reduction == NONE:
        each = k.lift(np.zeros(flat.shape)).put(kept, losses)
        return each.reshape(np.shape(target)), k.lift(0.0)
    total = w.sum()
    if reduction == MEAN and not kept.size:
        raise Beyond("every target of this batch is ignored: its mean loss is 0/0, which is NaN on the machine")
    return (losses.sum() / total if reduction == MEAN else losses.sum()), total


@register(
    "aten.nll_loss2d_forward",
    examples=[
        Example(SPACE, SPACES, None, 1, -100), Example(SPACE, SPACES, WEIGHT, 1, 2), Example(SPACE, SPACES, None, 0, 2),
    ],
)  # fmt: skip
def nll_loss2d(k: Ops, x: Value, target: Any, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    """The same, with places behind the classes."""
    loss: tuple[Value, Value] = nll_loss(k, x, target, weight, reduction, ignore)
    return loss


@register(
    "aten.nll_loss_backward",
    examples=[
        Example(T(()), LOGITS, CLASSES, None, 1, -100, T((), 1.0, 3.0)),
        Example(T(()), LOGITS, CLASSES, WEIGHT, 1, 2, T((), 1.0, 3.0)),
        Example(T(()), LOGITS, CLASSES, WEIGHT, 2, 1, T((), 1.0, 3.0)),
        Example(T((4,)), LOGITS, CLASSES, WEIGHT, 0, 1, T(())),
    ],
)  # fmt: skip
def nll_loss_backward(
    k: Ops, grad: Value, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
) -> Value:
    """-w g (over the total weight, for the mean) at each row's class."""
    _, kept, classes = valid_rows(target, ignore)
    rows = math.prod(x.shape) // (x.shape[1] if x.ndim > 1 else x.shape[0])
    wide = k.lift(np.zeros((rows, x.shape[1] if x.ndim > 1 else x.shape[0])))
    if kept.size:
        g = grad.reshape(-1)[kept] if reduction == NONE else grad.reshape(1)
        g = g / k.lift(total).reshape(1) if reduction == MEAN else g
        wide = wide.put((kept, classes), (-(class_weights(k, weight, classes) * g)).expand(kept.shape))
    if x.ndim == 1:
        return wide.reshape(x.shape)
    n, c, *rest = x.shape
    return wide.reshape(n, *rest, c).move(lambda p: np.moveaxis(p, -1, 1))


@register(
    "aten.nll_loss2d_backward",
    examples=[
        Example(T(()), SPACE, SPACES, WEIGHT, 1, 2, T((), 1.0, 3.0)),
        Example(T((2, 2, 3)), SPACE, SPACES, None, 0, 2, T(())),
    ],
)  # fmt: skip
def nll_loss2d_backward(
    k: Ops, grad: Value, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
) -> Value:
    """The same, with places behind the classes."""
    found: Value = nll_loss_backward(k, grad, x, target, weight, reduction, ignore, total)
    return found


# Elementwise losses.


@register("aten.mse_loss", examples=[Example(X, X), Example(X, X, 0), Example(X, X, 2)])
def mse_loss(k: Ops, x: Any, y: Any, reduction: int = MEAN) -> Value:
    """Squared differences."""
    a, b = aligned(k, x, y)
    d = a - b
    return reduced(d * d, reduction)


@register("aten.mse_loss_backward", examples=[Example(T(()), X, X, 1), Example(X, X, X, 0), Example(T(()), X, X, 2)])
def mse_loss_backward(k: Ops, grad: Value, x: Any, y: Any, reduction: int) -> Value:
    """2 (x - y) g."""
    a, b = aligned(k, x, y)
    return (a - b) * 2 * coefficient(grad, a.shape, reduction)


@register("aten.smooth_l1_loss", examples=[Example(X, X), Example(X, X, 0, 0.5), Example(X, X, 2, 2.0)])
def smooth_l1_loss(k: Ops, x: Any, y: Any, reduction: int = MEAN, beta: float = 1.0) -> Value:
    """Squares over twice beta inside, absolute differences less half of it outside."""
    a, b = aligned(k, x, y)
    z = absolute(a - b)
    return reduced(z if beta == 0 else where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta), reduction)


@register("aten.smooth_l1_loss_backward", examples=[Example(T(()), X, X, 1, 1.0), Example(X, X, X, 0, 0.5)])
def smooth_l1_loss_backward(k: Ops, grad: Value, x: Any, y: Any, reduction: int, beta: float) -> Value:
    """The difference over beta, at most one."""
    a, b = aligned(k, x, y)
    d, c = a - b, coefficient(grad, a.shape, reduction)
    inner = k.lift(np.zeros(a.shape)) if beta == 0 else d * c / beta
    return where(d <= -beta, -c, where(d >= beta, c, inner))


@register("aten.huber_loss", examples=[Example(X, X), Example(X, X, 0, 0.5), Example(X, X, 2, 2.0)])
def huber_loss(k: Ops, x: Any, y: Any, reduction: int = MEAN, delta: float = 1.0) -> Value:
    """Half squares inside, a line outside."""
    a, b = aligned(k, x, y)
    z = absolute(a - b)
    return reduced(where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta), reduction)


@register("aten.huber_loss_backward", examples=[Example(T(()), X, X, 1, 1.0), Example(X, X, X, 0, 0.5)])
def huber_loss_backward(k: Ops, grad: Value, x: Any, y: Any, reduction: int, delta: float) -> Value:
    """The difference, at most delta."""
    a, b = aligned(k, x, y)
    d, c = a - b, coefficient(grad, a.shape, reduction)
    return where(d <= -delta, -c * delta, where(d >= delta, c * delta, d * c))


@register(
    "aten.binary_cross_entropy",
    examples=[Example(UNIT, UNIT), Example(UNIT, UNIT, T((3,), 0.1, 1.0), 0), Example(UNIT, UNIT, None, 2)],
)
def bce(k: Ops, x: Any, y: Any, weight: Any = None, reduction: int = MEAN) -> Value:
    """-(y log x + (1 - y) log(1 - x)), the logarithms at least -100 as in torch."""
    a, b = aligned(k, x, y)
    loss = (b - 1) * larger(k.fn("log1p", -a), -100.0) - b * larger(k.fn("log", a), -100.0)
    return reduced(loss if weight is None else loss * weight, reduction)


@register(
    "aten.binary_cross_entropy_backward",
    examples=[Example(T(()), UNIT, UNIT, None), Example(X, UNIT, UNIT, T((4, 3), 0.1, 1.0), 0)],
)
def bce_backward(k: Ops, grad: Value, x: Any, y: Any, weight: Any = None, reduction: int = MEAN) -> Value:
    """(x - y) / (x (1 - x)), the divisor at least 1e-12 as in torch."""
    a, b = aligned(k, x, y)
    found = coefficient(grad, a.shape, reduction) * (a - b) / larger((1 - a) * a, 1e-12)
    return found if weight is None else found * weight


@register(
    "aten.binary_cross_entropy_with_logits",
    examples=[
        Example(X, UNIT), Example(X, UNIT, T((3,), 0.1, 1.0), T((3,), 0.5, 2.0), 0), Example(X, UNIT, None, None, 2),
    ],
)  # fmt: skip
def bce_logits(k: Ops, x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN) -> Value:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x))."""
    a, b = aligned(k, x, y)
    soft = k.fn("softplus", -a)
    soft = soft if pos_weight is None else soft * ((k.lift(pos_weight) - 1) * b + 1)
    loss = (1 - b) * a + soft
    return reduced(loss if weight is None else loss * weight, reduction)


@register("aten.soft_margin_loss", examples=[Example(X, X), Example(X, X, 0)])
def soft_margin_loss(k: Ops, x: Any, y: Any, reduction: int = MEAN) -> Value:
    """log(1 + exp(-y x))."""
    a, b = aligned(k, x, y)
    return reduced(k.fn("softplus", -(b * a)), reduction)


@register("aten.soft_margin_loss_backward", examples=[Example(T(()), X, X, 1), Example(X, X, X, 0)])
def soft_margin_loss_backward(k: Ops, grad: Value, x: Any, y: Any, reduction: int) -> Value:
    """-y sigmoid(-y x)."""
    a, b = aligned(k, x, y)
    return -b * k.fn("sigmoid", -(b * a)) * coefficient(grad, a.shape, reduction)


# The multi-class margin.


def margins(k: Ops, x: Value, target: Any, margin: float, weight: Any) -> tuple[Value, Value, Array]:
    """Room of every other class below the margin, its factor by row, and the targets. (rows, C)."""
    rows = x.reshape(-1, x.shape[-1])
    flat = concrete(target, "the targets").reshape(-1)
    each = np.arange(flat.size)
    room = rows - rows[each, flat].reshape(-1, 1) + margin
    own = np.zeros(rows.shape, dtype=bool)
    own[each, flat] = True
    return where(own, k.lift(np.zeros(rows.shape)), room), class_weights(k, weight, flat).reshape(-1, 1), flat


def powered(room: Value, p: int, f: Callable[[Value], Value]) -> Value:
    """`f` of the room where there is some."""
    if p not in (1, 2):
        raise Beyond(f"a margin loss of power {p}")
    return where(room > 0.0, f(room), room * 0)


@register("aten.multi_margin_loss", examples=[Example(LOGITS, CLASSES), Example(LOGITS, CLASSES, 2, 0.5, WEIGHT, 0)])
def multi_margin_loss(
    k: Ops, x: Value, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: int = MEAN
) -> Value:
    """The mean over classes of the room below the margin."""
    room, factor, _ = margins(k, x, target, margin, weight)
    loss = (powered(room, p, lambda r: r if p == 1 else r * r) * factor).mean(1)
    return reduced(loss.reshape(np.shape(target)), reduction)


@register(
    "aten.multi_margin_loss_backward",
    examples=[
        Example(T(()), LOGITS, CLASSES, 1, 1.0, None), Example(T((4,)), LOGITS, CLASSES, 2, 0.5, WEIGHT, 0),
    ],
)  # fmt: skip
def multi_margin_loss_backward(
    k: Ops, grad: Value, x: Value, target: Any, p: int, margin: float, weight: Any = None, reduction: int = MEAN
) -> Value:
    """What each class adds, and minus the sum of it at the target."""
    room, factor, flat = margins(k, x, target, margin, weight)
    g = coefficient(grad, np.shape(target), reduction).reshape(-1, 1)
    pushed = powered(room, p, lambda r: r * 0 + 1 if p == 1 else r * 2) * factor * g / x.shape[-1]
    return pushed.put((np.arange(flat.size), flat), -pushed.sum(1)).reshape(x.shape)
