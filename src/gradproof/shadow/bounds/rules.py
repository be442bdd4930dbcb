"""What each operator computes, for the bound of its rounding.

An operator of `MOVED` moves numbers: it runs on each component of its arguments. A rule of `RULES` is the kernel's own
formula: one rounding an operation at most, with products and quotients in any association, sums in any order and
multiply-adds fused or not. The rules of `bounds.kernels` are of kernels that compute something else which is equal over
the reals. Every other operator has no bound. Formulas: torch/_decomp/decompositions.py and aten/src/ATen/native/cpu of
PyTorch, and their counterparts in native/cuda.

A rule is given a `Value` for each floating-point tensor, and a tensor of integers or truth values as it is. It returns
what the operator returns.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.shadow.bounds.domain import ERF, ULPS, Domain
from gradproof.shadow.bounds.enclosure import Array, NoBound, Parts
from gradproof.shadow.bounds.values import Box, absolute, axes_of, larger, lift, number, smaller, where

Rule = Callable[..., Any]
Axes = Sequence[int] | int | None
ASSUMED = (
    "kernels round to nearest; underflow is gradual",
    f"kernels compute exp, log, sin, cos, tanh within {ULPS:g} units in the last place, erf within {ULPS:g} of those "
    f"of {ERF:g}, sigmoid, softplus and pow within {2 * ULPS:g}",
    "sums and products of matrices are accumulated at least in the format of the result, in any order",
    "no intermediate product underflows further than in the formula's order of factors",
    "no NaN arises; where the machine's run takes another branch than the recorded one, no bound is claimed",
    "operations on Python numbers between operators are part of the algorithm: their results are exact constants; so "
    "are numbers that leave torch and come back, through NumPy or a file",
)


@dataclass(slots=True)
class OpCall:
    """What a rule may use besides its arguments: the domain, the real operator's results, and all arguments by name."""

    domain: Domain
    results: Sequence[Any]
    named: dict[str, Any]

    def lift(self, x: Any) -> Box:
        """A constant, or a tensor of integers or truth values; a Value as it is."""
        return lift(self.domain, x.numpy(force=True) if isinstance(x, torch.Tensor) else x)

    def zeros(self, shape: Sequence[int]) -> Box:
        """Zeros."""
        return self.lift(np.zeros(tuple(shape)))


def concrete(x: Any) -> Array:
    """A tensor of integers or truth values as an array. Raises NoBound where it depends on rounded numbers."""
    if isinstance(x, Box):
        raise NoBound("an index depends on rounded numbers")
    return np.asarray(x.numpy(force=True))


# -- Movement: the operator itself, on each component.
MOVEMENTS = """
cat stack index index_select gather masked_select masked_fill index_fill select_backward slice_backward
diagonal_backward select_scatter slice_scatter diagonal_scatter as_strided_scatter repeat roll flip rot90 tril triu
constant_pad_nd take index_put _index_put_impl _unsafe_index_put scatter index_copy expand_copy view_copy permute_copy
transpose_copy t_copy unsqueeze_copy squeeze_copy slice_copy select_copy unbind_copy split_copy split_with_sizes_copy
alias_copy detach_copy _reshape_copy unsafe_split unsafe_split_with_sizes embedding diag_embed
"""
MOVED = frozenset(MOVEMENTS.split())
FILLS = frozenset({"value", "fill_value"})
"""Arguments that are written into a tensor, where they are numbers."""


def moved(k: OpCall, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a movement on each component of its arguments. Raises NoBound for one that adds or multiplies."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    numbers = {n for n in FILLS & given.keys() if isinstance(given[n], int | float)}
    given |= {n: k.lift(float(given[n])) for n in numbers}
    if given.pop("reduce", None) is not None:
        raise NoBound("no rounding bound is known for a reduction that scatters")
    given = {n: _together(k, v) for n, v in given.items()}
    truth = all(v.truth for v in tree_leaves(given) if isinstance(v, Box))
    each = [partial(_component, at=at, truth=truth) for at in range(1 if truth else 4)]
    parts = [func(**{n: tree_map(partial(f, plain=n in numbers), v) for n, v in given.items()}) for f in each]
    if isinstance(parts[0], list | tuple):
        return [_joined(k, one, truth) for one in zip(*parts, strict=True)]
    return _joined(k, parts, truth)


def _together(k: OpCall, x: Any) -> Any:
    """A list of tensors, all as values where one of them is."""
    several = isinstance(x, list | tuple) and any(isinstance(v, Box) for v in x)
    return [k.lift(v) if isinstance(v, torch.Tensor) else v for v in x] if several else x


def _component(x: Any, at: int, truth: bool, plain: bool) -> Any:
    if not isinstance(x, Box):
        return x
    part = (x if truth else number(x)).parts[at]
    return part.item() if plain else torch.tensor(part, device="cpu")


def _joined(k: OpCall, parts: Sequence[torch.Tensor], truth: bool) -> Box:
    return Box(k.domain, tuple(p.numpy() for p in parts), truth)


def same(k: OpCall, x: Any, *args: Any, **kwargs: Any) -> Box:
    """Copies, in any format: the value as it is."""
    return k.lift(x)


def copied(k: OpCall, target: Any, source: Any, *rest: Any) -> Box:
    """What is copied into another tensor."""
    return k.lift(source).expand(tuple(target.shape))


def chosen(k: OpCall, x: Box, *args: Any, **kwargs: Any) -> tuple[Box, Any]:
    """Elements at the places along an axis that the machine chose; another choice is another path."""
    at = k.results[1].numpy(force=True)
    return x.move(lambda p: np.take_along_axis(p, at, k.named["dim"]) if p.ndim else p), at


# -- Arithmetic by element.
SQRT1_2, TWO_SQRTPI, KAPPA = math.sqrt(0.5), 2.0 / math.sqrt(math.pi), 0.044715
BETA = math.sqrt(2.0) * TWO_SQRTPI * 0.5
SIXTH = float(np.float32(1.0 / 6.0))
POWER = 4096
"""Largest exponent that is unfolded into products; above it `pow` is a function."""


def unary(f: Callable[[Box], Box]) -> Rule:
    """A function of one tensor."""
    return lambda k, x, *args, **kwargs: f(k.lift(x))


def binary(f: Callable[[Any, Any], Any]) -> Rule:
    """A function of two tensors."""
    return lambda k, a, b: f(k.lift(a), k.lift(b))


def named(name: str) -> Rule:
    """A function that the domain knows by name."""
    return lambda k, x: k.lift(x).function(name)


def truth(x: Box) -> Box:
    """Whether each element differs from zero."""
    return x if x.truth else ~x.same(0.0)


def add(k: OpCall, x: Any, y: Any, alpha: Any = 1) -> Box:
    """`x + alpha y`; of truth values, or."""
    a, b = k.lift(x), k.lift(y)
    return a | b if a.truth and b.truth else a + b * alpha


def sub(k: OpCall, x: Any, y: Any, alpha: float = 1) -> Box:
    """`x - alpha y`."""
    return k.lift(x) - k.lift(y) * alpha


def mul(k: OpCall, x: Any, y: Any) -> Box:
    """A product; of truth values, and."""
    a, b = k.lift(x), k.lift(y)
    return a & b if a.truth and b.truth else a * b


def div(k: OpCall, x: Any, y: Any, rounding_mode: str | None = None) -> Box:
    """A quotient. Raises NoBound for a rounded one."""
    if rounding_mode is not None:
        raise NoBound("no rounding bound is known for a quotient that is rounded to a whole number")
    return k.lift(x) / k.lift(y)


def power(x: Box, exponent: float) -> Box:
    """A constant power: products for whole and half exponents up to `POWER`, else the function `pow`."""
    twice = Fraction(exponent) * 2 if math.isfinite(exponent) else Fraction(1, 2)
    if twice.denominator != 1 or abs(twice) > 2 * POWER:
        return x.function("pow", np.full(x.shape, float(exponent)))
    whole, half = divmod(abs(int(twice)), 2)
    result = product(x, whole)
    if half:
        root = x.function("sqrt")
        result = root if whole == 0 else result * root
    return 1.0 / result if twice < 0 else result


def product(x: Box, times: int) -> Box:
    """A whole power, by squaring."""
    result, square = lift(x.domain, np.ones(x.shape)), number(x)
    while times:
        result = result * square if times & 1 else result
        times >>= 1
        square = square * square if times else square
    return result


def clamp(k: OpCall, x: Any, min: Any = None, max: Any = None) -> Box:
    """Between two bounds, numbers or tensors."""
    low = k.lift(x) if min is None else larger(k.lift(x), k.lift(min))
    return low if max is None else smaller(low, k.lift(max))


def gelu(k: OpCall, x: Box, approximate: str = "none") -> Box:
    """By the error function, or by the hyperbolic tangent."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + _inner(x).function("tanh"))
    return x * 0.5 * (1.0 + (x * SQRT1_2).function("erf"))


def _inner(x: Box) -> Box:
    return BETA * (x + KAPPA * (x * x * x))


def gelu_backward(k: OpCall, grad: Any, x: Any, approximate: str = "none") -> Box:
    """Of either form."""
    g, v = k.lift(grad), k.lift(x)
    if approximate == "tanh":
        t = _inner(v).function("tanh")
        slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * (BETA * (1.0 + 3.0 * KAPPA * (v * v)))
        return g * slope
    cdf = 0.5 * (1.0 + (v * SQRT1_2).function("erf"))
    return g * (cdf + v * ((v * v * -0.5).function("exp") * (TWO_SQRTPI * SQRT1_2 * 0.5)))


def silu_backward(k: OpCall, grad: Any, x: Any) -> Box:
    """From the argument."""
    v = k.lift(x)
    s = v.function("sigmoid")
    return k.lift(grad) * (s * (1.0 + v * (1.0 - s)))


def softplus(k: OpCall, x: Box, beta: float = 1.0, limit: float = 20.0) -> Box:
    """`log(1 + exp(beta x)) / beta`, the argument itself beyond the limit."""
    z = x * beta
    return where(z > limit, x, z.function("softplus") / beta)


def softplus_backward(k: OpCall, grad: Any, x: Any, beta: float, limit: float) -> Box:
    """From the argument."""
    g, z = k.lift(grad), k.lift(x) * beta
    return where(z > limit, g, g * z.function("sigmoid"))


def elu(k: OpCall, x: Box, alpha: float = 1.0, scale: float = 1.0, inside: float = 1.0) -> Box:
    """Exponential below zero (`selu` and `celu` too)."""
    return where(x < 0.0, (x * inside).function("expm1") * (alpha * scale), x * scale)


def elu_backward(k: OpCall, grad: Any, alpha: float, scale: float, inside: float, is_result: bool, kept: Any) -> Box:
    """From the result or from the argument."""
    g, v = k.lift(grad), k.lift(kept)
    below = (v + alpha * scale) if is_result else (v * inside).function("exp") * (alpha * scale)
    return where(v < 0.0, g * below * inside, g * scale)


def within(k: OpCall, grad: Any, x: Any, low: float, high: float) -> Box:
    """The gradient of a clamp: zero at and beyond the bounds."""
    g, v = k.lift(grad), k.lift(x)
    return where((v <= low) | (v >= high), k.zeros(v.shape), g)


def threshold_backward(k: OpCall, grad: Any, x: Any, limit: float) -> Box:
    """Zero where at most the limit."""
    return where(k.lift(x) <= limit, 0.0, k.lift(grad))


def unscale(k: OpCall, grads: list[Any], found_inf: Any, inverse: Any) -> tuple[list[Box], Any]:
    """Every gradient times the inverse scale."""
    return [k.lift(g) * k.lift(inverse) for g in grads], k.results[1]


# -- Sums.
def converted(k: OpCall, x: Any, dtype: Any) -> Box:
    """What is summed in another format is converted first."""
    value = number(k.lift(x))
    return value if dtype is None else Box(k.domain, k.domain.rounded(value.parts, str(dtype).removeprefix("torch.")))


def summed(k: OpCall, x: Any, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Box:
    """The sum."""
    return converted(k, x, dtype).sum(dim, keepdim)


def mean(k: OpCall, x: Any, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Box:
    """The sum over the count."""
    return converted(k, x, dtype).mean(dim, keepdim)


def amax(k: OpCall, x: Box, dim: Axes = None, keepdim: bool = False) -> Box:
    """The largest along axes."""
    chosen = axes_of(x.ndim, dim)
    found = Box(x.domain, x.domain.largest_of(x.parts, chosen))
    return found.reshape(tuple(1 if i in chosen else n for i, n in enumerate(x.shape))) if keepdim else found


def amin(k: OpCall, x: Box, dim: Axes = None, keepdim: bool = False) -> Box:
    """The smallest along axes."""
    return -amax(k, -x, dim, keepdim)


def masked_fill(k: OpCall, x: Any, mask: Any, value: Any) -> Any:
    """A number under a mask that is computed; None under a plain one, which is a movement."""
    return where(mask, k.lift(value), k.lift(x)) if isinstance(mask, Box) else None


def with_index(f: Rule) -> Rule:
    """An extreme along an axis, and where the machine found it."""
    return lambda k, x, dim=None, keepdim=False: (f(k, x, dim, keepdim), *k.results[1:])


def norm(k: OpCall, x: Box, ord: float | None = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Box:
    """The norm of a vector."""
    order = 2 if ord is None else ord
    if order == 2:
        return (x * x).sum(dim, keepdim).function("sqrt")
    size = absolute(x)
    if math.isinf(order):
        return (amax if order > 0 else amin)(k, size, dim, keepdim)
    if order == 1:
        return size.sum(dim, keepdim)
    if order == 0:
        raise NoBound("no rounding bound is known for a count of what is not zero")
    return power(power(size, order).sum(dim, keepdim), 1.0 / order)


def gathered(k: OpCall, x: Any, add: Callable[[torch.Tensor], torch.Tensor], onto: Any = None, most: int = 0) -> Box:
    """Sums of the elements of `x` that a real operator adds up, onto those of `onto`."""
    given = number(k.lift(x))
    terms: list[tuple[Parts, Callable[[Array], Array]]] = [
        (given.parts, lambda p: add(torch.tensor(p, dtype=torch.float64, device="cpu")).numpy())
    ]
    if onto is not None:
        terms.append((number(k.lift(onto)).parts, np.asarray))
    return Box(k.domain, k.domain.sums(terms, most or given.parts[0].size + 1))


def zeros_like(x: Any) -> torch.Tensor:
    """Zeros in float64, of the shape of a tensor or value."""
    return torch.zeros(tuple(x.shape), dtype=torch.float64, device="cpu")


def index_add(k: OpCall, x: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Box:
    """Added at indices along a dimension."""
    at, blank = (
        torch.as_tensor(concrete(index), device="cpu"),
        torch.zeros(tuple(x.shape), dtype=torch.float64, device="cpu"),
    )
    return gathered(k, k.lift(source) * alpha, lambda p: blank.index_add(dim, at, p), x)


def scatter_add(k: OpCall, x: Any, dim: int, index: Any, source: Any) -> Box:
    """Added at indices along a dimension, one an element."""
    at, blank = (
        torch.as_tensor(concrete(index), device="cpu"),
        torch.zeros(tuple(x.shape), dtype=torch.float64, device="cpu"),
    )
    return gathered(k, source, lambda p: blank.scatter_add(dim, at, p), x)


def index_put(k: OpCall, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, *rest: Any) -> Any:
    """Added at indices; None where elements are replaced, which is a movement."""
    if not accumulate:
        return None
    at = [None if i is None else torch.as_tensor(concrete(i), device="cpu") for i in indices]
    blank = zeros_like(x)
    return gathered(k, values, lambda p: torch.ops.aten.index_put(blank, at, p, True), x)


def embedding_backward(k: OpCall, g: Box, tokens: Any, rows: int, padding: int, by_count: bool) -> Box:
    """Each row gets the sum of the gradients where its token stood. Raises NoBound for a scale by frequency."""
    if by_count:
        raise NoBound("no rounding bound is known for an embedding that is scaled by frequency")
    at, backward = torch.as_tensor(concrete(tokens), device="cpu"), torch.ops.aten.embedding_dense_backward
    return gathered(k, g, lambda p: backward(p, at, rows, padding, False))


def fused(k: OpCall, x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Box:
    """`beta x + alpha a b`, of matrices."""
    return k.lift(x) * beta + (k.lift(a) @ k.lift(b)) * alpha


def addmv(k: OpCall, x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Box:
    """`beta x + alpha a b`, of a matrix and a vector."""
    return k.lift(x) * beta + mv(k, a, b) * alpha


def mv(k: OpCall, a: Any, b: Any) -> Box:
    """A matrix and a vector."""
    return (k.lift(a) @ k.lift(b).reshape(-1, 1)).reshape(-1)


def dot(k: OpCall, a: Any, b: Any) -> Box:
    """Two vectors."""
    return (k.lift(a).reshape(1, -1) @ k.lift(b).reshape(-1, 1)).reshape(())


def dropout(k: OpCall, x: Box, p: float, train: bool | None) -> Any:
    """The recorded mask, and what it leaves, scaled by the machine's 1 / (1 - p)."""
    mask = k.results[1]
    kept = x if train is False else where(concrete(mask), x, 0.0) * (0.0 if p == 1 else 1.0 / (1.0 - p))
    return kept, mask


# -- Losses.
MEAN = 1


def reduced(x: Box, reduction: int) -> Box:
    """0: as it is; 1: the mean; 2: the sum."""
    return x.mean() if reduction == MEAN else x.sum() if reduction else x


def spread(grad: Box, shape: tuple[int, ...], reduction: int) -> Box:
    """What each element's loss is multiplied by in the total."""
    each = grad / math.prod(shape) if reduction == MEAN else grad
    return each.expand(shape)


def loss(each: Callable[..., Box]) -> Rule:
    """A loss by element of a difference: `each(a - b, parameter)`."""

    def rule(k: OpCall, x: Any, y: Any, reduction: int = MEAN, *more: float, **named: float) -> Box:
        return reduced(each(k.lift(x) - k.lift(y), *more, *named.values()), reduction)

    return rule


def loss_backward(slope: Callable[..., Box]) -> Rule:
    """The gradient of one: `slope(a - b, what it is multiplied by, parameter)`."""

    def rule(k: OpCall, grad: Any, x: Any, y: Any, reduction: int, *more: float) -> Box:
        off = k.lift(x) - k.lift(y)
        return slope(off, spread(k.lift(grad), off.shape, reduction), *more)

    return rule


def smooth(d: Box, beta: float = 1.0) -> Box:
    """Squares over twice beta inside, absolute differences less half of it outside."""
    z = absolute(d)
    return z if beta == 0 else where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta)


def smooth_slope(d: Box, c: Box, beta: float) -> Box:
    """The difference over beta, at most one."""
    return where(d <= -beta, -c, where(d >= beta, c, c * 0.0 if beta == 0 else d * c / beta))


def huber(d: Box, delta: float = 1.0) -> Box:
    """Half squares inside, a line outside."""
    z = absolute(d)
    return where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)


def huber_slope(d: Box, c: Box, delta: float) -> Box:
    """The difference, at most delta."""
    return where(d <= -delta, -c * delta, where(d >= delta, c * delta, d * c))


def bce_logits(k: OpCall, x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN) -> Box:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x))."""
    a, b = k.lift(x), k.lift(y)
    soft = (-a).function("softplus")
    soft = soft if pos_weight is None else soft * ((k.lift(pos_weight) - 1) * b + 1)
    each = (1 - b) * a + soft
    return reduced(each if weight is None else each * k.lift(weight), reduction)


def classes_of(target: Any, ignore: int) -> tuple[Array, Array]:
    """The rows that count, and the class of each."""
    flat = concrete(target).reshape(-1)
    kept = np.flatnonzero(flat != ignore)
    return kept, flat[kept]


def class_weights(k: OpCall, weight: Any, classes: Array) -> Box:
    """The weight of each row's class, one without weights."""
    return k.lift(np.ones(classes.shape)) if weight is None else k.lift(weight)[classes]


def by_class(x: Box) -> Box:
    """(N, C, ...) or (C,) as (rows, C)."""
    return x.reshape(1, -1) if x.ndim == 1 else x.move(lambda p: np.moveaxis(p, 1, -1)).reshape(-1, x.shape[1])


def nll_loss(k: OpCall, x: Box, target: Any, weight: Any, reduction: int, ignore: int) -> tuple[Box, Box]:
    """The loss, and the total weight. Raises NoBound where no target is valid: the mean is 0/0 there."""
    kept, classes = classes_of(target, ignore)
    w = class_weights(k, weight, classes)
    losses = -by_class(x)[kept, classes] * w
    if not reduction:
        return k.zeros((target.numel(),)).put(kept, losses).reshape(tuple(target.shape)), k.lift(0.0)
    total = w.sum()
    if reduction == MEAN and not kept.size:
        raise NoBound("every target of this batch is ignored: its mean loss is 0/0, which is NaN on the machine")
    return (losses.sum() / total if reduction == MEAN else losses.sum()), total


def nll_loss_backward(
    k: OpCall, grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
) -> Box:
    """-w g (over the total weight, for the mean) at each row's class."""
    kept, classes = classes_of(target, ignore)
    g = k.lift(grad)
    wide = k.zeros(by_class(k.lift(x)).shape)
    if kept.size:
        each = g.reshape(1) if reduction else g.reshape(-1)[kept]
        each = each / k.lift(total).reshape(1) if reduction == MEAN else each
        wide = wide.put((kept, classes), (-(class_weights(k, weight, classes) * each)).expand(kept.shape))
    shape = tuple(x.shape)
    if len(shape) == 1:
        return wide.reshape(shape)
    return wide.reshape(shape[0], *shape[2:], shape[1]).move(lambda p: np.moveaxis(p, -1, 1))


RULES: dict[str, Rule] = {
    **dict.fromkeys(["clone", "_to_copy", "contiguous", "lift_fresh", "lift_fresh_copy", "lift"], same),
    **dict.fromkeys(["_unsafe_view", "_reshape_alias"], lambda k, x, *rest: x.reshape(tuple(k.results[0].shape))),
    "copy": copied, "fill": copied, "zero": lambda k, x: k.zeros(x.shape), "topk": chosen, "sort": chosen,
    "lt": binary(operator.lt), "le": binary(operator.le), "gt": binary(operator.gt), "ge": binary(operator.ge),
    "eq": binary(lambda a, b: a.same(b)), "ne": binary(lambda a, b: ~a.same(b)),
    "logical_not": unary(lambda x: ~truth(x)), "bitwise_not": unary(lambda x: ~truth(x)),
    **dict.fromkeys(["logical_and", "bitwise_and"], binary(lambda a, b: truth(a) & truth(b))),
    **dict.fromkeys(["logical_or", "bitwise_or"], binary(lambda a, b: truth(a) | truth(b))),
    "masked_fill": masked_fill,
    "where": lambda k, c, a, b: where(c if isinstance(c, Box) else concrete(c), k.lift(a), k.lift(b)),
    "neg": unary(lambda x: -x), "abs": unary(absolute), "square": unary(lambda x: x * x),
    "sign": unary(lambda x: where(x < 0.0, -1.0, where(x > 0.0, np.ones(x.shape), 0.0))),
    "reciprocal": unary(lambda x: 1.0 / x),
    **{f: named(f) for f in ("sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid")},
    "log2": unary(lambda x: x.function("log") / lift(x.domain, 2.0).function("log")),
    "add": add, "sub": sub, "rsub": lambda k, x, y, alpha=1: sub(k, y, x, alpha), "mul": mul, "div": div,
    "addcmul": lambda k, x, y, z, value=1: k.lift(x) + k.lift(y) * k.lift(z) * k.lift(value),
    "addcdiv": lambda k, x, y, z, value=1: k.lift(x) + k.lift(y) * k.lift(value) / k.lift(z),
    "clamp": clamp, "clamp_min": lambda k, x, min: clamp(k, x, min),
    "clamp_max": lambda k, x, max: clamp(k, x, None, max),
    **dict.fromkeys(["maximum", "fmax"], binary(larger)), **dict.fromkeys(["minimum", "fmin"], binary(smaller)),
    "relu": unary(lambda x: larger(x, 0.0)),
    "threshold": lambda k, x, limit, value: where(x <= limit, value, x), "threshold_backward": threshold_backward,
    "sigmoid_backward": binary(lambda g, y: g * (y * (1.0 - y))),
    "tanh_backward": binary(lambda g, y: g * (1.0 - y * y)),
    "gelu": gelu, "gelu_backward": gelu_backward, "silu": unary(lambda x: x * x.function("sigmoid")),
    "silu_backward": silu_backward, "softplus": softplus, "softplus_backward": softplus_backward,
    "elu": elu, "elu_backward": elu_backward,
    "leaky_relu": lambda k, x, slope=0.01: where(x > 0.0, x, x * slope),
    "leaky_relu_backward": lambda k, g, x, slope, kept: where(k.lift(x) > 0.0, k.lift(g), k.lift(g) * slope),
    "hardtanh": lambda k, x, low=-1.0, high=1.0: clamp(k, x, low, high), "hardtanh_backward": within,
    "hardsigmoid": lambda k, x: clamp(k, x + 3.0, 0.0, 6.0) / 6.0,
    "hardsigmoid_backward": lambda k, g, x: within(k, k.lift(g) * SIXTH, x, -3.0, 3.0),
    "hardswish": lambda k, x: x * clamp(k, x + 3.0, 0.0, 6.0) / 6.0,
    "hardswish_backward": binary(lambda g, x: where(x <= -3.0, 0.0, where(x < 3.0, g * (x / 3.0 + 0.5), g))),
    "sum": summed, "mean": mean, "amax": amax, "amin": amin, "max": amax, "min": amin,
    "linalg_vector_norm": norm, "norm": norm, "index_add": index_add, "scatter_add": scatter_add,
    **dict.fromkeys(["index_put", "_index_put_impl", "_unsafe_index_put"], index_put),
    "embedding_dense_backward": embedding_backward,
    **dict.fromkeys(["mm", "bmm"], binary(operator.matmul)), **dict.fromkeys(["addmm", "baddbmm"], fused),
    "mv": mv, "addmv": addmv, **dict.fromkeys(["dot", "vdot"], dot),
    "native_dropout": dropout,
    "native_dropout_backward": lambda k, g, mask, scale: where(concrete(mask), g, 0.0) * scale,
    "mse_loss": loss(lambda d: d * d), "mse_loss_backward": loss_backward(lambda d, c: d * 2 * c),
    "smooth_l1_loss": loss(smooth), "smooth_l1_loss_backward": loss_backward(smooth_slope),
    "huber_loss": loss(huber), "huber_loss_backward": loss_backward(huber_slope),
    "binary_cross_entropy_with_logits": bce_logits,
    **dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward"], nll_loss),
    **dict.fromkeys(["nll_loss_backward", "nll_loss2d_backward"], nll_loss_backward),
    "_amp_foreach_non_finite_check_and_unscale": unscale,
}  # fmt: skip
RULES |= {"max.dim": with_index(amax), "min.dim": with_index(amin)}
