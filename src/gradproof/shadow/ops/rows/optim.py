"""Fused optimizers: one operator for a whole step, so that the whole formula is here.

Formulas: aten/src/ATen/native/cpu/Fused{SGD,Adam,Adagrad}Kernel.cpp. With `grad_scale` the gradients are divided by it
and stored; the step is taken where `found_inf` is zero, which is assumed (the path that this run took).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, where
from gradproof.shadow.ops.rows.common import fn, larger, power
from gradproof.shadow.ops.table import Example, Int, Ops, T, register
from gradproof.shadow.tape import Const

# -- GradScaler's operators. A gradient is a real number here, so that none is infinite: that is assumed, and said.
GRADS = [T((2, 3)), T((3,))]
ZERO = T((), 0.0, 0.0)


@register(
    "aten._amp_foreach_non_finite_check_and_unscale_",
    examples=[
        Example(GRADS, ZERO, T((), 0.25, 0.5), untracked=[1]),
        Example(GRADS, ZERO, T((), 0.25, 0.5), untracked=[1, 2]),
    ],
)
def unscale(k: Ops, grads: list[Any], found_inf: Any, inv_scale: Any) -> tuple[list[Value], Value]:
    """Every gradient times the inverse scale; `found_inf` keeps what it was."""
    k.note("no scaled gradient is infinite or NaN")
    return [k.lift(g) * k.lift(inv_scale) for g in grads], k.lift(found_inf)


@register(
    "aten._amp_update_scale_",
    examples=[
        Example(T((), 4.0, 8.0), Int((), 3, dtype="int32"), ZERO, 2.0, 0.5, n, untracked=[1]) for n in (1, 2, 2000)
    ],
)
def update_scale(
    k: Ops, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> tuple[Value, Any]:
    """The scale backs off after an infinity, and grows after `interval` steps without one."""
    if isinstance(tracker, Value):
        raise Beyond("a growth tracker that depends on a leaf")
    finite, old, after = k.lift(found_inf).same(0.0), k.lift(scale), k.seen(1)
    steps = int(np.asarray(tracker)) + 1
    grows = steps == interval
    if int(np.asarray(after)) != (0 if grows else steps):
        k.assume(~finite, "a scaled gradient was infinite")
    elif not grows:
        k.assume(finite, "no scaled gradient was infinite")
    return where(finite, old * growth if grows else old, old * backoff), after


P, S = [T((2, 3)), T((3,))], [T((2, 3), 0.1, 2.0), T((3,), 0.1, 2.0)]
STEPS = [T((), 3.0, 3.0), T((), 1.0, 1.0)]
SCALED: dict[str, Any] = {"grad_scale": T((), 4.0, 4.0), "found_inf": T((), 0.0, 0.0)}
SGD: dict[str, Any] = {
    "weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip
ADAM: dict[str, Any] = {
    "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.05, "eps": 1e-6, "amsgrad": False, "maximize": False,
}  # fmt: skip
ADAGRAD: dict[str, Any] = {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.01, "eps": 1e-6, "maximize": False}


def unscaled(k: Ops, grads: list[Any], grad_scale: Any, found_inf: Any) -> list[Value]:
    """The gradients as the kernel leaves them."""
    if found_inf is not None:
        k.assume(k.lift(found_inf).same(0.0), "the gradients were finite, so that the fused step was taken")
    lifted = [k.lift(g) for g in grads]
    return lifted if grad_scale is None else [g / k.lift(grad_scale) for g in lifted]


def decayed(p: Value, g: Value, weight_decay: float, maximize: bool) -> Value:
    """The gradient's sign, and weight decay as part of the gradient."""
    signed = -g if maximize else g
    return signed if weight_decay == 0 else signed + p * weight_decay


def corrected(k: Ops, beta: float, steps: Any, position: tuple[int, int]) -> Value:
    """`1 - beta ** steps`, by products where the number of steps is a constant."""
    raw = k.entry.args[position[0]][position[1]]
    if isinstance(raw, Const):
        return 1.0 - power(k, k.lift(beta), float(raw.value.reshape(-1)[0]))
    return 1.0 - fn(k, "pow", beta, steps)


@register(
    "aten._fused_sgd_",
    examples=[
        Example(P, P, P, **SGD),
        Example(P, P, P, **{**SGD, "is_first_step": True, "dampening": 0.5}),
        Example(P, P, P, **{**SGD, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
        Example(P, P, P, **{**SGD, "dampening": 0.25}),
        Example(P, P, [], **{**SGD, "momentum": 0.0}, **SCALED),
        Example(P, P, P, **{**SGD, "lr": T((), 0.1, 0.2)}),
    ],
)
def fused_sgd(
    k: Ops, params: list[Any], grads: list[Any], buffers: list[Any], *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None,
    found_inf: Any = None,
) -> tuple[list[Value], list[Value], list[Value]]:  # fmt: skip
    """SGD with momentum."""
    left = unscaled(k, grads, grad_scale, found_inf)
    new_params, new_buffers = [], []
    for i, (raw, g) in enumerate(zip(params, left, strict=True)):
        p = k.lift(raw)
        d = decayed(p, g, weight_decay, maximize)
        if momentum:
            buffer = d if is_first_step else k.lift(buffers[i]) * momentum + d * (1.0 - dampening)
            new_buffers.append(buffer)
            d = d + buffer * momentum if nesterov else buffer
        new_params.append(p - d * k.lift(lr))
    return new_params, left, new_buffers


def _adam(k: Ops, lists: tuple[list[Any], ...], decoupled: bool, options: dict[str, Any]) -> Any:
    params, grads, means, squares, largest, steps = lists
    left = unscaled(k, grads, options["grad_scale"], options["found_inf"])
    beta1, beta2, decay, lr = options["beta1"], options["beta2"], options["weight_decay"], k.lift(options["lr"])
    new: tuple[list[Value], ...] = ([], [], [], [])
    for i, (raw, g) in enumerate(zip(params, left, strict=True)):
        p = k.lift(raw)
        d = decayed(p, g, 0.0 if decoupled else decay, options["maximize"])
        if decoupled and decay:
            p = p * (1.0 - lr * decay)
        m = k.lift(means[i]) * beta1 + d * (1.0 - beta1)
        v = k.lift(squares[i]) * beta2 + d * d * (1.0 - beta2)
        top = larger(k.lift(largest[i]), v) if options["amsgrad"] else v
        first, second = (corrected(k, b, steps[i], (5, i)) for b in (beta1, beta2))
        below = k.fn("sqrt", top) / k.fn("sqrt", second) + options["eps"]
        for held, value in zip(new, (p - lr / first * (m / below), m, v, top), strict=True):
            held.append(value)
    return new[0], left, new[1], new[2], new[3] if options["amsgrad"] else list(largest)


MORE: tuple[dict[str, Any], ...] = (
    {}, {"amsgrad": True, "maximize": True}, {"weight_decay": 0.0}, SCALED, {"lr": T((), 0.1, 0.2)},
)  # fmt: skip
ADAMS = tuple(
    Example(P, P, P, S, S if more.get("amsgrad") else [], STEPS, **{**ADAM, **more}, untracked=[5]) for more in MORE
)


@register("aten._fused_adam_", examples=ADAMS)
def fused_adam(
    k: Ops, params: list[Any], grads: list[Any], means: list[Any], squares: list[Any], largest: list[Any],
    steps: list[Any], *, grad_scale: Any = None, found_inf: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Adam, weight decay in the gradient."""
    lists = (params, grads, means, squares, largest, steps)
    return _adam(k, lists, False, {"grad_scale": grad_scale, "found_inf": found_inf, **options})


@register("aten._fused_adamw_", examples=ADAMS)
def fused_adamw(
    k: Ops, params: list[Any], grads: list[Any], means: list[Any], squares: list[Any], largest: list[Any],
    steps: list[Any], *, grad_scale: Any = None, found_inf: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Adam, weight decay on the parameter."""
    lists = (params, grads, means, squares, largest, steps)
    return _adam(k, lists, True, {"grad_scale": grad_scale, "found_inf": found_inf, **options})


@register(
    "aten._fused_adagrad_",
    examples=[
        Example(P, P, S, STEPS, **ADAGRAD, untracked=[3]),
        Example(P, P, S, STEPS, **{**ADAGRAD, "maximize": True}, **SCALED, untracked=[3]),
    ],
)
def fused_adagrad(
    k: Ops, params: list[Any], grads: list[Any], sums: list[Any], steps: list[Any], *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> Any:  # fmt: skip
    """Adagrad; the steps, which the schema calls written, stay as they are."""
    left = unscaled(k, grads, grad_scale, found_inf)
    new_params, new_sums = [], []
    for i, (raw, g) in enumerate(zip(params, left, strict=True)):
        p = k.lift(raw)
        d = decayed(p, g, weight_decay, maximize)
        rate = k.lift(lr) / (1.0 + (k.lift(steps[i]) - 1.0) * lr_decay)
        total = k.lift(sums[i]) + d * d
        new_sums.append(total)
        new_params.append(p - rate * (d / (k.fn("sqrt", total) + eps)))
    return (new_params, left, new_sums, list(steps))[: len(k.entry.outs)]
