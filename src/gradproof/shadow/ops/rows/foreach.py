"""Operators on lists of tensors, element of the list by element: what torch.optim and `clip_grad_norm_` use.

A list of scalars goes with the list of tensors; a tensor of scalars (`addcdiv`'s, `addcmul`'s) gives one to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradproof.shadow.algebra import Value
from gradproof.shadow.ops.rows import pointwise
from gradproof.shadow.ops.rows.activation import sigmoid, tanh
from gradproof.shadow.ops.rows.common import constant
from gradproof.shadow.ops.rows.fill import converted
from gradproof.shadow.ops.rows.pointwise import UNARY
from gradproof.shadow.ops.rows.reduce import vector_norm
from gradproof.shadow.ops.table import Example, Ops, T, register
from gradproof.shadow.tape import Ref

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
