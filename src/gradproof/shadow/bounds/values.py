"""Arrays of enclosures: what the rules of operators are written in.

A `Value` is a tuple of NumPy arrays of one shape, the components of a `Domain` (`bounds.domain`): four for numbers, one
for truth values (`truth`). A movement of data is one function of an array, applied to each component; arithmetic is the
domain's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradproof.shadow.bounds.domain import Domain
from gradproof.shadow.bounds.enclosure import Array, Parts


class Box:
    """An array of enclosures. Every method returns a new one."""

    __slots__ = ("domain", "parts", "truth")
    __array_ufunc__ = None

    def __init__(self, domain: Domain, parts: Parts, truth: bool = False) -> None:
        self.domain, self.parts, self.truth = domain, parts, truth

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy's."""
        return tuple(self.parts[0].shape)

    @property
    def ndim(self) -> int:
        """As NumPy's."""
        return self.parts[0].ndim

    # Movement of data

    def move(self, f: Callable[[Array], Array]) -> Box:
        """Apply a movement of data, which must not depend on the elements, to every component."""
        return Box(self.domain, tuple(f(p) for p in self.parts), self.truth)

    def reshape(self, *shape: Any) -> Box:
        """As NumPy's."""
        return self.move(lambda p: p.reshape(*shape))

    def swapaxes(self, a: int, b: int) -> Box:
        """As NumPy's."""
        return self.move(lambda p: p.swapaxes(a, b))

    def expand(self, shape: Sequence[int]) -> Box:
        """Broadcast to a shape."""
        return self.move(lambda p: np.broadcast_to(p, tuple(shape)))

    def __getitem__(self, index: Any) -> Box:
        return self.move(lambda p: np.asarray(p[index], dtype=p.dtype))

    def put(self, index: Any, other: Box) -> Box:
        """A copy in which the elements at `index` are those of `other`."""

        def written(p: Array, q: Array) -> Array:
            out = np.array(p)
            out[index] = q
            return out

        pairs = zip(self.parts, other.parts, strict=True)
        return Box(self.domain, tuple(written(p, q) for p, q in pairs), self.truth)

    # Arithmetic

    def _two(self, other: Any, f: Callable[[Parts, Parts], Parts], truth: bool = False) -> Box:
        return Box(self.domain, f(number(self).parts, number(lift(self.domain, other)).parts), truth)

    def __add__(self, other: Any) -> Box:
        return self._two(other, self.domain.add)

    def __radd__(self, other: Any) -> Box:
        return lift(self.domain, other) + self

    def __sub__(self, other: Any) -> Box:
        return self._two(other, self.domain.sub)

    def __rsub__(self, other: Any) -> Box:
        return lift(self.domain, other) - self

    def __mul__(self, other: Any) -> Box:
        return self._two(other, self.domain.mul)

    def __rmul__(self, other: Any) -> Box:
        return lift(self.domain, other) * self

    def __truediv__(self, other: Any) -> Box:
        return self._two(other, self.domain.div)

    def __rtruediv__(self, other: Any) -> Box:
        return lift(self.domain, other) / self

    def __neg__(self) -> Box:
        return Box(self.domain, self.domain.neg(number(self).parts))

    def __matmul__(self, other: Any) -> Box:
        """As NumPy's, for at least two dimensions on either side."""
        return self._two(other, self.domain.matmul)

    def __lt__(self, other: Any) -> Box:
        return self._two(other, self.domain.less, True)

    def __gt__(self, other: Any) -> Box:
        return lift(self.domain, other) < self

    def __le__(self, other: Any) -> Box:
        return ~self._two(other, lambda a, b: self.domain.less(b, a), True)

    def __ge__(self, other: Any) -> Box:
        return ~self._two(other, self.domain.less, True)

    def same(self, other: Any) -> Box:
        """Elementwise equality, a truth value."""
        return self._two(other, self.domain.equal, True)

    def __invert__(self) -> Box:
        return Box(self.domain, (self.domain.negated(self.parts[0]),), True)

    def __and__(self, other: Any) -> Box:
        return Box(self.domain, (self.domain.both(self.parts[0], lift(self.domain, other).parts[0]),), True)

    def __or__(self, other: Any) -> Box:
        return ~(~self & ~lift(self.domain, other))

    def sum(self, axes: Sequence[int] | int | None = None, keep: bool = False) -> Box:
        """Sum over some axes (None: all), in any order."""
        chosen = axes_of(self.ndim, axes)
        total = Box(self.domain, self.domain.sum(number(self).parts, chosen))
        kept = tuple(1 if k in chosen else n for k, n in enumerate(self.shape))
        return total.reshape(kept) if keep else total

    def mean(self, axes: Sequence[int] | int | None = None, keep: bool = False) -> Box:
        """Sum over count."""
        chosen = axes_of(self.ndim, axes)
        count = int(np.prod([self.shape[k] for k in chosen], dtype=np.int64))
        return self.sum(chosen, keep) / count

    def function(self, name: str, *others: Any) -> Box:
        """A function that the domain knows by name. Raises NoBound for another name."""
        given = [number(lift(self.domain, x)).parts for x in (self, *others)]
        return Box(self.domain, self.domain.function(name, given))


def axes_of(ndim: int, axes: Sequence[int] | int | None) -> tuple[int, ...]:
    """Axes as torch means them: None or nothing is all, negative ones count from the end."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(ndim))
    chosen = [axes] if isinstance(axes, int) else list(axes)
    return tuple(sorted(k % ndim for k in chosen)) if ndim else ()


def lift(domain: Domain, x: Any) -> Box:
    """A Value as it is; a number, or an array of numbers or truth values, as a constant."""
    if isinstance(x, Box):
        return x
    array = np.asarray(x)
    if array.dtype == bool:
        return Box(domain, domain.truth(array), True)
    return Box(domain, domain.const(array))


def number(x: Box) -> Box:
    """A truth value as 0 or 1; a number as it is."""
    return where(x, lift(x.domain, np.ones(x.shape)), 0.0) if x.truth else x


def where(condition: Any, a: Any, b: Any) -> Box:
    """`a` where the condition holds, else `b`. The condition is a truth value or a concrete Boolean array."""
    domain = next(x.domain for x in (condition, a, b) if isinstance(x, Box))
    c, x, y = (lift(domain, v) for v in (condition, a, b))
    if x.truth and y.truth:
        return (c & x) | (~c & y)
    return Box(domain, domain.where(c.parts, number(x).parts, number(y).parts))


def larger(a: Box, b: Any) -> Box:
    """The larger of two, by element."""
    return a._two(b, a.domain.larger)


def smaller(a: Box, b: Any) -> Box:
    """The smaller of two, by element."""
    return -larger(-a, -lift(a.domain, b))


def absolute(x: Box) -> Box:
    """The absolute value."""
    return larger(x, -x)
