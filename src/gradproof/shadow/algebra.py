"""Arrays over a domain: what the operator table is written in.

A row of the table is written once, in the operators and methods of `Value` and the functions of `Ops`; a `Domain` gives
them a meaning. A `Value` is a tuple of NumPy arrays of one shape, the domain's components (one array of floats, four of
bounds), so that every movement of data (reshape, transpose, index, concatenate) is written once for all domains, and
only arithmetic is a domain's own business.

Two sorts: numbers and truth values (`truth`). Integers never depend on a leaf without a recorded path condition, so
that they are plain NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.tape import NOWHERE, Location

Array = NDArray[Any]
Parts = tuple[Array, ...]
Number = int | float | Fraction

FUNCTIONS = (
    "exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "sigmoid", "log1p", "expm1", "erfinv", "atan", "pow", "floor",
    "round", "softplus",
)  # fmt: skip
"""Functions that a domain computes by name."""


class Domain(Protocol):
    """Arithmetic over components. Shapes broadcast as in NumPy; a truth value is one component array.

    Constants are exact: a float is the dyadic rational that it is. An infinite or NaN constant is the domain's to carry
    (minus infinity must vanish under `exp`) or to refuse with `Beyond`.
    """

    name: str

    def const(self, x: Array) -> Parts: ...
    def truth(self, x: Array) -> Parts: ...
    def add(self, a: Parts, b: Parts) -> Parts: ...
    def sub(self, a: Parts, b: Parts) -> Parts: ...
    def mul(self, a: Parts, b: Parts) -> Parts: ...
    def div(self, a: Parts, b: Parts) -> Parts: ...
    def neg(self, a: Parts) -> Parts: ...
    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts: ...
    def matmul(self, a: Parts, b: Parts) -> Parts: ...
    def function(self, name: str, args: Sequence[Parts]) -> Parts: ...
    def less(self, a: Parts, b: Parts) -> Parts: ...
    def equal(self, a: Parts, b: Parts) -> Parts: ...
    def logic(self, name: str, args: Sequence[Parts]) -> Parts: ...
    def where(self, c: Parts, a: Parts, b: Parts) -> Parts: ...
    def leaf(self, source: Any, shape: tuple[int, ...], value: Array) -> Parts: ...
    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts: ...


class Beyond(Exception):
    """The domain, or the row, cannot carry this value: what and why, and the user's line if known. Never a verdict."""

    def __init__(self, what: str, place: Location = NOWHERE) -> None:
        self.place = place
        super().__init__(what)


class Value:
    """An array over a domain. Immutable by convention: every method returns a new one."""

    __slots__ = ("domain", "parts", "truth")
    __array_ufunc__ = None

    def __init__(self, domain: Domain, parts: Parts, truth: bool = False) -> None:
        self.domain, self.parts, self.truth = domain, parts, truth

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy's."""
        return cast("tuple[int, ...]", self.parts[0].shape)

    @property
    def ndim(self) -> int:
        """As NumPy's."""
        return self.parts[0].ndim

    @property
    def size(self) -> int:
        """As NumPy's."""
        return int(self.parts[0].size)

    def __len__(self) -> int:
        return self.shape[0]

    # Movement of data: the same for every domain.

    def move(self, f: Callable[[Array], Array]) -> Value:
        """Apply a movement of data, which must not depend on the elements, to every component."""
        return Value(self.domain, tuple(f(p) for p in self.parts), self.truth)

    def reshape(self, *shape: Any) -> Value:
        """As NumPy's."""
        return self.move(lambda p: p.reshape(*shape))

    def transpose(self, *axes: Any) -> Value:
        """As NumPy's."""
        return self.move(lambda p: p.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> Value:
        """As NumPy's."""
        return self.move(lambda p: p.swapaxes(a, b))

    def expand(self, shape: Sequence[int]) -> Value:
        """Broadcast to a shape."""
        return self.move(lambda p: np.broadcast_to(p, tuple(shape)))

    def __getitem__(self, index: Any) -> Value:
        return self.move(lambda p: np.asarray(p[index], dtype=p.dtype))

    def put(self, index: Any, other: Value) -> Value:
        """A copy in which the elements at `index` are those of `other`."""

        def written(p: Array, q: Array) -> Array:
            out = np.array(p)
            out[index] = q.item() if q.ndim == 0 and q.dtype == object else q
            return out

        pairs = zip(self.parts, other.parts, strict=True)
        return Value(self.domain, tuple(written(p, q) for p, q in pairs), self.truth)

    # Arithmetic: the domain's.

    def _lift(self, other: Any) -> Value:
        return other if isinstance(other, Value) else lift(self.domain, other)

    def _two(self, other: Any, f: Callable[[Parts, Parts], Parts], truth: bool = False) -> Value:
        return Value(self.domain, f(number(self).parts, number(self._lift(other)).parts), truth)

    def __add__(self, other: Any) -> Value:
        return self._two(other, self.domain.add)

    def __radd__(self, other: Any) -> Value:
        return self._lift(other) + self

    def __sub__(self, other: Any) -> Value:
        return self._two(other, self.domain.sub)

    def __rsub__(self, other: Any) -> Value:
        return self._lift(other) - self

    def __mul__(self, other: Any) -> Value:
        return self._two(other, self.domain.mul)

    def __rmul__(self, other: Any) -> Value:
        return self._lift(other) * self

    def __truediv__(self, other: Any) -> Value:
        return self._two(other, self.domain.div)

    def __rtruediv__(self, other: Any) -> Value:
        return self._lift(other) / self

    def __neg__(self) -> Value:
        return Value(self.domain, self.domain.neg(number(self).parts))

    def __matmul__(self, other: Any) -> Value:
        """As NumPy's, for at least two dimensions on either side."""
        return self._two(other, self.domain.matmul)

    def __lt__(self, other: Any) -> Value:
        return self._two(other, self.domain.less, True)

    def __gt__(self, other: Any) -> Value:
        return self._lift(other) < self

    def __le__(self, other: Any) -> Value:
        return ~self._two(other, lambda a, b: self.domain.less(b, a), True)

    def __ge__(self, other: Any) -> Value:
        return ~self._two(other, self.domain.less, True)

    def same(self, other: Any) -> Value:
        """Elementwise equality, a truth value."""
        return self._two(other, self.domain.equal, True)

    def _logic(self, name: str, *others: Value) -> Value:
        args = [self.parts, *(o.parts for o in others)]
        return Value(self.domain, self.domain.logic(name, args), True)

    def __invert__(self) -> Value:
        return self._logic("not")

    def __and__(self, other: Any) -> Value:
        return self._logic("and", self._lift(other))

    def __or__(self, other: Any) -> Value:
        return self._logic("or", self._lift(other))

    def sum(self, axes: Sequence[int] | int | None = None, keep: bool = False) -> Value:
        """Sum over some axes (None: all), in any order."""
        chosen = axes_of(self.ndim, axes)
        total = Value(self.domain, self.domain.sum(number(self).parts, chosen))
        kept = tuple(1 if k in chosen else n for k, n in enumerate(self.shape))
        return total.reshape(kept) if keep else total

    def mean(self, axes: Sequence[int] | int | None = None, keep: bool = False) -> Value:
        """Sum over count."""
        chosen = axes_of(self.ndim, axes)
        count = int(np.prod([self.shape[k] for k in chosen], dtype=np.int64))
        return self.sum(chosen, keep) / count


def axes_of(ndim: int, axes: Sequence[int] | int | None) -> tuple[int, ...]:
    """Axes as torch means them: None or nothing is all, negative ones count from the end."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(ndim))
    chosen = [axes] if isinstance(axes, int) else list(axes)
    return tuple(sorted(k % ndim for k in chosen)) if ndim else ()


def lift(domain: Domain, x: Any) -> Value:
    """A constant: a number, a Fraction, or an array of numbers or truth values."""
    if isinstance(x, Fraction):
        return lift(domain, x.numerator) / lift(domain, x.denominator)
    array = np.asarray(x)
    if array.dtype == bool:
        return Value(domain, domain.truth(array), True)
    return Value(domain, domain.const(array))


def number(x: Value) -> Value:
    """A truth value as 0 or 1; a number as it is."""
    if not x.truth:
        return x
    one, zero = lift(x.domain, np.ones(x.shape)), lift(x.domain, np.zeros(x.shape))
    return Value(x.domain, x.domain.where(x.parts, one.parts, zero.parts))


def function(name: str, *args: Value) -> Value:
    """A non-polynomial function of `FUNCTIONS`, elementwise. Raises Beyond for another name."""
    if name not in FUNCTIONS:
        raise Beyond(f"no function {name!r}; known: {', '.join(FUNCTIONS)}")
    domain = args[0].domain
    return Value(domain, domain.function(name, [number(a).parts for a in args]))


def where(condition: Any, a: Any, b: Any) -> Value:
    """`a` where the condition holds, else `b`. The condition is a truth value or a concrete Boolean array."""
    domain = next(x.domain for x in (condition, a, b) if isinstance(x, Value))
    c, x, y = (v if isinstance(v, Value) else lift(domain, v) for v in (condition, a, b))
    if x.truth and y.truth:
        return (c & x) | (~c & y)
    return Value(domain, domain.where(c.parts, number(x).parts, number(y).parts))


def concatenate(values: Sequence[Value], axis: int) -> Value:
    """As NumPy's."""
    first = values[0]
    columns = zip(*(v.parts for v in values), strict=True)
    return Value(first.domain, tuple(np.concatenate(column, axis=axis) for column in columns), first.truth)


def stack(values: Sequence[Value], axis: int) -> Value:
    """As NumPy's."""
    first = values[0]
    columns = zip(*(v.parts for v in values), strict=True)
    return Value(first.domain, tuple(np.stack(column, axis=axis) for column in columns), first.truth)
