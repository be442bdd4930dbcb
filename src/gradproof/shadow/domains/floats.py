"""The domain of machine numbers: one float64 component, with infinities and NaN.

It computes what a step computes, up to the rounding of float64: the rows of the operator table are tested in it against
the real kernels. It proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Parts
from gradproof.shadow.tape import Source

Floats64 = NDArray[np.float64]

LOGIC: dict[str, Callable[..., Array]] = {"not": np.logical_not, "and": np.logical_and, "or": np.logical_or}


def _one(f: Callable[..., Array]) -> Callable[[Parts, Parts], Parts]:
    """A NumPy function of two arrays as one of components, in silence about infinities and NaN."""

    def applied(a: Parts, b: Parts) -> Parts:
        with np.errstate(all="ignore"):
            return (np.asarray(f(a[0], b[0])),)

    return applied


def _each(f: Callable[[float], float]) -> Callable[[Floats64], Floats64]:
    """A function of a Python float, elementwise."""
    lifted = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(lifted(x), dtype=np.float64)


def inverse_erf(y: float) -> float:
    """The x with erf(x) = y, to float64: Winitzki's approximation (2008), then Newton on erf or erfc."""
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1:
        return math.copysign(math.inf, y)
    size = abs(y)
    near = math.log1p(-size * size)
    half = 2 / (math.pi * 0.147) + near / 2
    x = math.sqrt(max(0.0, math.sqrt(half * half - near / 0.147) - half))
    for _ in range(4):
        error = math.erf(x) - size if size < 0.5 else (1 - size) - math.erfc(x)
        x -= error / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return math.copysign(x, y)


def sigmoid(x: Floats64) -> Floats64:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def softplus(x: Floats64) -> Floats64:
    """log(1 + exp(x)), without overflow."""
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0.0))


COMPUTED: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "log1p": np.log1p,
    "expm1": np.expm1, "atan": np.arctan, "pow": np.power, "floor": np.floor, "round": np.round, "erf": _each(math.erf),
    "erfinv": _each(inverse_erf), "sigmoid": sigmoid, "softplus": softplus,
}  # fmt: skip
"""One meaning for every name of `algebra.FUNCTIONS`; `round` is to even, as torch's."""


class Floats:
    """An `algebra.Domain` of float64 arrays (one component; bool for truth values)."""

    name = "value"

    def const(self, x: Array) -> Parts:
        """An array of numbers. Raises Beyond for an integer that float64 may not hold exactly."""
        values = np.asarray(x, dtype=np.float64)
        if x.dtype.kind in "iu" and np.any(np.abs(values) >= 2.0**53):
            raise Beyond("an integer constant of 2^53 or more may not be exact in float64")
        return (values,)

    def truth(self, x: Array) -> Parts:
        """An array of truth values."""
        return (np.asarray(x, dtype=bool),)

    add = staticmethod(_one(np.add))
    sub = staticmethod(_one(np.subtract))
    mul = staticmethod(_one(np.multiply))
    div = staticmethod(_one(np.divide))
    matmul = staticmethod(_one(np.matmul))
    less = staticmethod(_one(np.less))
    equal = staticmethod(_one(np.equal))

    def neg(self, a: Parts) -> Parts:
        """Minus a."""
        return (np.asarray(-a[0]),)

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum over axes."""
        with np.errstate(all="ignore"):
            return (np.asarray(a[0].sum(axis=axes)),)

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """A function of `COMPUTED`."""
        with np.errstate(all="ignore"):
            return (np.asarray(COMPUTED[name](*(a[0] for a in args))),)

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """`not`, `and`, `or`."""
        return (np.asarray(LOGIC[name](*(a[0] for a in args))),)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """Selection; the value not selected may be NaN."""
        return (np.where(c[0], a[0], b[0]),)

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """The recorded value."""
        return (np.asarray(value, dtype=np.float64).reshape(shape),)

    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts:
        """Float64 throughout: nothing is rounded to `dtype`."""
        return a
