"""What torch.optim calls: operators on lists of tensors, and fused optimizers, whose whole formula is here.

Formulas: aten/src/ATen/native/cpu/Fused{SGD,Adam,Adagrad}Kernel.cpp. With `grad_scale` the gradients are divided by it
and stored; the step is taken where `found_inf` is zero, which is assumed (the path that this run took).

Operators on lists of tensors, element of the list by element: what torch.optim and `clip_grad_norm_` use. A list of
scalars goes with the list of tensors; a tensor of scalars (`addcdiv`'s, `addcmul`'s) gives one to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, where
from gradproof.shadow.ops.rows import pointwise
from gradproof.shadow.ops.rows.activation import sigmoid, tanh
from gradproof.shadow.ops.rows.common import constant, fn, larger, power
from gradproof.shadow.ops.rows.movement import converted
from gradproof.shadow.ops.rows.pointwise import UNARY
from gradproof.shadow.ops.rows.reduce import vector_norm
from gradproof.shadow.ops.table import Example, Int, Ops, T, register
from gradproof.shadow.tape import Const, Ref

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


LIST = [T((2, 3)), T((3,)), T(())]
AWAY = [T((2, 3), 0.5, 2.0), T((3,), 0.5, 2.0), T((), 0.5, 2.0)]
NUMBERS = [0.5, -1.5, 2.0]
Rule = Callable[..., Any]

BINARY: Mapping[str, Rule] = {
    "add": pointwise.add,
    "sub": pointwise.sub,
    "mul": pointwise.mul,
    "div": pointwise.div,
    "maximum": pointwise.maximum,
    "minimum": pointwise.minimum,
    "clamp_min": pointwise.clamp_min,
    "clamp_max": pointwise.clamp_max,
}

SINGLE = (
    "neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos",
    "tan", "erf", "erfc", "floor", "ceil", "trunc", "frac",
)  # fmt: skip


def each(rule: Rule, k: Ops, lists: Sequence[Any], **kwargs: Any) -> list[Any]:
    """A rule along lists of one length; what is no list goes to every call."""
    count = max(len(a) for a in lists if isinstance(a, list))
    return [rule(k, *(a[i] if isinstance(a, list) else a for a in lists), **kwargs) for i in range(count)]


def _along(rule: Rule) -> Rule:
    def row(k: Ops, *lists: Any, **kwargs: Any) -> list[Any]:
        return each(rule, k, lists, **kwargs)

    row.__module__ = __name__
    return row


def _single(name: str) -> Rule:
    rule = UNARY[name][0]

    def row(k: Ops, tensors: list[Any]) -> list[Any]:
        return [rule(k, k.lift(x)) for x in tensors]

    row.__module__ = __name__
    return row


for _name in SINGLE:
    register(f"aten._foreach_{_name}", examples=[Example(AWAY if UNARY[_name][1].low > 0 else LIST)])(_single(_name))

for _name, _rule in BINARY.items():
    _more = [Example(LIST, T((), 0.5, 2.0))] if _name in ("add", "mul", "div") else []
    _kinds = [Example(LIST, 0.5), Example(LIST, AWAY), Example(LIST, NUMBERS), *_more]
    _alpha = [Example(LIST, AWAY, alpha=0.5)] if _name in ("add", "sub") else []
    register(f"aten._foreach_{_name}", examples=[*_kinds, *_alpha])(_along(_rule))

register("aten._foreach_sigmoid", examples=[Example(LIST)])(_along(sigmoid))
register("aten._foreach_tanh", examples=[Example(LIST)])(_along(tanh))


@register("aten._foreach_round", examples=[Example(LIST)])
def foreach_round(k: Ops, tensors: list[Any]) -> list[Any]:
    """Half to even."""
    return [k.fn("round", x) for x in tensors]


def _scalars(values: Any, count: int) -> Any:
    return [values[i] for i in range(count)] if isinstance(values, Value) else values


THREE = (
    Example(LIST, LIST, AWAY), Example(LIST, LIST, AWAY, 0.5), Example(LIST, LIST, AWAY, NUMBERS),
    Example(LIST, LIST, AWAY, T((3,)), untracked=[3]),
)  # fmt: skip


@register("aten._foreach_addcmul", examples=THREE)
def foreach_addcmul(k: Ops, x: list[Any], y: list[Any], z: list[Any], value: Any = 1) -> list[Any]:
    """`x + value y z`."""
    return each(pointwise.addcmul, k, (x, y, z, _scalars(value, len(x))))


@register("aten._foreach_addcdiv", examples=THREE)
def foreach_addcdiv(k: Ops, x: list[Any], y: list[Any], z: list[Any], value: Any = 1) -> list[Any]:
    """`x + value y / z`."""
    return each(pointwise.addcdiv, k, (x, y, z, _scalars(value, len(x))))


@register(
    "aten._foreach_lerp", examples=[Example(LIST, AWAY, 0.25), Example(LIST, AWAY, AWAY), Example(LIST, AWAY, NUMBERS)]
)
def foreach_lerp(k: Ops, x: list[Any], y: list[Any], weight: Any) -> list[Any]:
    """`x + weight (y - x)`."""
    return each(pointwise.lerp, k, (x, y, weight))


@register("aten._foreach_norm", examples=[Example(LIST), Example(LIST, 1), Example(LIST, float("inf"))])
def foreach_norm(k: Ops, tensors: list[Any], ord: float = 2, dtype: str | None = None) -> list[Any]:
    """The norm of each tensor."""
    return [vector_norm(k, k.lift(x), ord, None, False) for x in tensors]


@register(
    "aten._foreach_pow", examples=[Example(LIST, 2), Example(AWAY, NUMBERS), Example(AWAY, AWAY), Example(2.0, LIST)]
)
def foreach_pow(k: Ops, x: Any, exponent: Any) -> list[Any]:
    """Powers, of tensors or of a number."""
    return each(lambda k, a, p: pointwise.powers(k, a, p), k, (x, exponent))


@register("aten._foreach_zero", examples=[Example(LIST)])
def foreach_zero(k: Ops, tensors: list[Any]) -> list[Any]:
    """Zeros in the place of each tensor."""
    return [constant(k, x.shape) for x in tensors]


@register("aten._foreach_copy", examples=[Example(LIST, AWAY)])
def foreach_copy(k: Ops, x: list[Any], source: list[Any]) -> list[Any]:
    """Other tensors' elements."""
    outs = k.entry.outs[0]
    dtypes = [o.dtype if isinstance(o, Ref) else "float64" for o in outs]
    return [_copied(k, a, s, d) for a, s, d in zip(x, source, dtypes, strict=True)]


def _copied(k: Ops, old: Any, source: Any, dtype: str) -> Any:
    found = k.lift(converted(k, source, dtype))
    return found.expand(old.shape)
