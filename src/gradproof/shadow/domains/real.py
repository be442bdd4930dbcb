"""The domain of exact real numbers: one object component of neutral terms (`terms.Pool`).

What is proved here holds for all real values of the leaves at which every divisor is not 0. Functions are uninterpreted
(equal where their arguments are), so that an equality holds for the real ones too; a difference need not.

The two runs of a comparison must be interpreted by one `Reals`: terms of two pools cannot be compared.

Infinite constants are `Special`: minus infinity passes through sums and `exp(-inf) = 0`; what has no definite value
(`0 * inf`, `inf - inf`, a NaN, a quotient by the constant 0) becomes `NAN`, which equals nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.shadow.algebra import SNAP_AT_MOST, Array, Beyond, Parts, Snap
from gradproof.shadow.domains.programs import Raw
from gradproof.shadow.domains.terms import TermPool
from gradproof.shadow.tape import Source


def reader(snap: Snap | None, values: Array) -> Callable[[float], Fraction]:
    """How the finite floats of one constant array are read."""
    if snap is None or np.unique(values).size > SNAP_AT_MOST:
        return Fraction
    return snap.read


class Special:
    """Not a real number: minus infinity, plus infinity, or unknown."""

    __slots__ = ("name", "sign")

    def __init__(self, name: str, sign: int) -> None:
        self.name, self.sign = name, sign


NINF, PINF, NAN = Special("-inf", -1), Special("inf", 1), Special("nan", 0)
LIMITS: dict[tuple[str, int], int | Special] = {
    ("exp", -1): 0, ("exp", 1): PINF, ("sigmoid", -1): 0, ("sigmoid", 1): 1, ("tanh", -1): -1, ("tanh", 1): 1,
    ("erf", -1): -1, ("erf", 1): 1, ("log", 1): PINF, ("sqrt", 1): PINF, ("softplus", -1): 0, ("softplus", 1): PINF,
}  # fmt: skip
"""Functions at the infinities (name, sign)."""


def _signed(sign: int) -> Special:
    return {-1: NINF, 0: NAN, 1: PINF}[sign]


class Reals:
    """An `algebra.Domain` of terms. `raw`: terms without normal form. `snap`: read float constants as rationals.

    `recorded` holds, for each variable by name, the value of the leaf in the run that was interpreted last.
    """

    name = "real"

    def __init__(self, *, raw: bool = False, snap: Snap | None = None) -> None:
        self.pool: Any = Raw() if raw else TermPool()
        self.snap = snap
        self.recorded: dict[str, float] = {}

    # Constants and leaves.

    def const(self, x: Array) -> Parts:
        """Exact dyadic rationals (or snapped ones); infinities and NaN as Special."""
        values = np.asarray(x)
        if values.dtype.kind in "biu":
            return (_fill(values, lambda v: self.pool.number(int(v))),)
        read = reader(self.snap, values)
        known: dict[float, Any] = {}

        def term(v: float) -> Any:
            if v not in known:
                known[v] = self.pool.number(read(v)) if np.isfinite(v) else _infinite(v)
            return known[v]

        return (_fill(values, lambda v: term(float(v))),)

    def truth(self, x: Array) -> Parts:
        """Concrete truth values."""
        return (_fill(np.asarray(x), lambda v: self.pool.true if v else self.pool.false),)

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """Variables `kind/name[index]`."""
        flat = np.asarray(value, dtype=np.float64).reshape(-1)
        out = np.empty(flat.size, dtype=object)
        for i, v in enumerate(flat):
            name = f"{source.kind}/{source.name}[{source.first + i}]"
            out[i] = self.pool.variable(name)
            self.recorded[name] = float(v)
        return (out.reshape(shape),)

    # Arithmetic on elements.

    def _add(self, a: Any, b: Any) -> Any:
        if a.__class__ is Special or b.__class__ is Special:
            return _special_sum((a, b))
        return self.pool.combine(((1, a), (1, b)))

    def _sub(self, a: Any, b: Any) -> Any:
        if a.__class__ is Special or b.__class__ is Special:
            return _special_sum((a, self._neg(b)))
        return self.pool.combine(((1, a), (-1, b)))

    def _neg(self, a: Any) -> Any:
        return _signed(-a.sign) if a.__class__ is Special else self.pool.combine(((-1, a),))

    def _mul(self, a: Any, b: Any) -> Any:
        if a.__class__ is Special or b.__class__ is Special:
            return _signed(_sign(a) * _sign(b))
        return self.pool.mul(a, b)

    def _div(self, a: Any, b: Any) -> Any:
        if b.__class__ is Special:
            return self.pool.zero if b.sign and a.__class__ is not Special else NAN
        if a.__class__ is Special:
            return _signed(a.sign * _sign(b))
        try:
            return self.pool.div(a, b)
        except ZeroDivisionError:
            return NAN

    def _less(self, a: Any, b: Any) -> Any:
        if a.__class__ is Special or b.__class__ is Special:
            return self.pool.true if _order(a) < _order(b) else self.pool.false
        return self.pool.less(a, b)

    def _equal(self, a: Any, b: Any) -> Any:
        if a.__class__ is Special or b.__class__ is Special:
            return self.pool.true if _order(a) == _order(b) else self.pool.false
        return self.pool.equal(a, b)

    def _ite(self, c: Any, a: Any, b: Any) -> Any:
        if c is self.pool.true or c is self.pool.false or a is b:
            return b if c is self.pool.false else a
        if a.__class__ is Special or b.__class__ is Special:
            return NAN
        return self.pool.ite(c, a, b)

    def _total(self, terms: Sequence[Any]) -> Any:
        if any(t.__class__ is Special for t in terms):
            return _special_sum(terms)
        return self.pool.combine([(1, t) for t in terms])

    # Arithmetic on components.

    def add(self, a: Parts, b: Parts) -> Parts:
        """a + b."""
        return _zip(self._add, a[0], b[0])

    def sub(self, a: Parts, b: Parts) -> Parts:
        """a - b."""
        return _zip(self._sub, a[0], b[0])

    def mul(self, a: Parts, b: Parts) -> Parts:
        """a b."""
        return _zip(self._mul, a[0], b[0])

    def div(self, a: Parts, b: Parts) -> Parts:
        """a / b; `x / x` is not 1, since x may be 0."""
        return _zip(self._div, a[0], b[0])

    def neg(self, a: Parts) -> Parts:
        """-a."""
        return _zip(self._neg, a[0])

    def less(self, a: Parts, b: Parts) -> Parts:
        """a < b. Raises Beyond for a NAN."""
        return _zip(self._less, a[0], b[0])

    def equal(self, a: Parts, b: Parts) -> Parts:
        """a = b. Raises Beyond for a NAN."""
        return _zip(self._equal, a[0], b[0])

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """Selection."""
        return _zip(self._ite, c[0], a[0], b[0])

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum over axes."""
        kept = tuple(k for k in range(a[0].ndim) if k not in axes)
        turned = a[0].transpose(kept + axes)
        shape = turned.shape[: len(kept)]
        rows = turned.reshape((int(np.prod(shape, dtype=np.int64)), -1 if turned.size else 0))
        out = np.empty(rows.shape[0], dtype=object)
        for i, row in enumerate(rows):
            out[i] = self._total(row.tolist())
        return (out.reshape(shape),)

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """As NumPy's, for at least two dimensions on either side."""
        x, y = a[0], b[0].swapaxes(-1, -2)
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-2]
        xs = np.broadcast_to(x, (*batch, m, k)).reshape(int(np.prod(batch, dtype=np.int64)), m, k)
        ys = np.broadcast_to(y, (*batch, n, k)).reshape(xs.shape[0], n, k)
        out = np.empty((xs.shape[0], m, n), dtype=object)
        for g in range(xs.shape[0]):
            columns = [column.tolist() for column in ys[g]]
            for i, row in enumerate(xs[g].tolist()):
                for j, column in enumerate(columns):
                    out[g, i, j] = self._total([self._mul(p, q) for p, q in zip(row, column, strict=True)])
        return (out.reshape((*batch, m, n)),)

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """An uninterpreted function; at an infinity by `LIMITS`, else NAN."""

        def applied(*xs: Any) -> Any:
            if any(x.__class__ is Special for x in xs):
                limit = LIMITS.get((name, xs[0].sign), NAN) if len(xs) == 1 else NAN
                return limit if isinstance(limit, Special) else self.pool.number(limit)
            return self.pool.apply(name, xs)

        return _zip(applied, *(a[0] for a in args))

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """`not`, `and`, `or`."""
        if name == "not":
            return _zip(self.pool.negate, args[0][0])
        return _zip(lambda *xs: self.pool.junction(name, xs), *(a[0] for a in args))

    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts:
        """Real arithmetic rounds nothing."""
        return a


def _fill(values: Array, f: Callable[[Any], Any]) -> Array:
    out = np.empty(values.size, dtype=object)
    for i, v in enumerate(values.reshape(-1).tolist()):
        out[i] = f(v)
    return out.reshape(values.shape)


def _zip(f: Callable[..., Any], *arrays: Array) -> Parts:
    found = np.frompyfunc(f, len(arrays), 1)(*arrays)
    if isinstance(found, np.ndarray):
        return (found,)
    single = np.empty((), dtype=object)
    single[()] = found
    return (single,)


def _infinite(v: float) -> Special:
    return NAN if np.isnan(v) else _signed(1 if v > 0 else -1)


def _special_sum(terms: Sequence[Any]) -> Special:
    signs = {t.sign for t in terms if t.__class__ is Special}
    return _signed(signs.pop()) if len(signs) == 1 else NAN


def _sign(a: Any) -> int:
    """Sign of an infinity or a constant; 0 where it is not known."""
    if a.__class__ is Special:
        return int(a.sign)
    constant = a.constant
    return 0 if constant is None else int(np.sign(Fraction(constant).numerator))


def _order(a: Any) -> int:
    if a is NAN:
        raise Beyond("a comparison of a value that is not a number")
    return int(a.sign) if a.__class__ is Special else 0
