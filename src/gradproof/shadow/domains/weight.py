"""Weight: exact arithmetic modulo a large prime, with a marker on the gradient of every loss.

Leaves are keyed hashes, and so are functions that are no polynomials, as in the field domain; the prime is so large
that a rational number with numerator and denominator below 2^300 is read back from its residue. `probe` sees the
gradient that a backward pass hands to a loss (`Ops.probe`), keeps its sum over the classes, which is minus the weight
of each token's loss, and multiplies it by a marker. How the gradient at the step depends on the markers tells by which
factor each backward pass entered it (`shadow.weights`).

One component: an object array of Python integers, or of infinite floats where a mask had them. A comparison of two
rational constants is decided; any other is a keyed coin, the same for the same arguments.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Parts, Value
from gradproof.shadow.tape import Const, Entry

PRIME = 2**607 - 1
"""A Mersenne prime (Robinson, 1952)."""

LIMIT = 2**300
"""Largest numerator or denominator that is read back: 2 LIMIT^2 < PRIME makes the rational number unique."""

KNOWN_AT = {("exp", 0): 1, ("log", 1): 0, ("sqrt", 0): 0, ("sqrt", 1): 1, ("tanh", 0): 0, ("erf", 0): 0}
"""Values that no hash may contradict: a function at a constant."""


@dataclass(slots=True, eq=False)
class SeenLoss:
    """The gradient of one loss: minus the weights of its tokens (residues), and which of the tokens count."""

    entry: Entry
    weights: Array
    valid: Array | None
    uneven: bool
    kind: str


class Weight:
    """The domain. `markers`: the factor of the i-th loss gradient of the run; 1 where nothing is said.

    Several ranks are interpreted together, in turns: `others` are the markers of the ranks from 1 on, and `rank` is
    the one whose turn it is.
    """

    name = "weight"

    def __init__(
        self, markers: Mapping[int, int] | None = None, seed: int = 0, others: Sequence[Mapping[int, int]] = ()
    ) -> None:
        self.seed, self.rank = seed, 0
        self.marked = [dict(m) for m in (markers or {}, *others)]
        self.found: list[list[SeenLoss]] = [[] for _ in self.marked]
        self._valid: Array | None = None
        self._uneven = False

    @property
    def markers(self) -> Mapping[int, int]:
        """Those of the rank whose turn it is."""
        return self.marked[self.rank]

    @property
    def seen(self) -> list[SeenLoss]:
        """The loss gradients of the rank whose turn it is."""
        return self.found[self.rank]

    def begin(self, item: Any) -> None:
        """Take note of the targets of a negative log-likelihood, whose gradient comes next."""
        if isinstance(item, Entry) and item.op.split(".")[1] in ("nll_loss_backward", "nll_loss2d_backward"):
            target, given, ignored = item.args[2], item.args[3], item.args[5]
            self._valid = np.asarray(target.value != ignored) if isinstance(target, Const) else None
            self._uneven = given is not None

    def probe(self, name: str, value: Value, entry: Entry) -> Value:
        """Note a loss's gradient and mark it; other probes, and a second one in the same operator, change nothing."""
        if name not in ("token_grad", "sample_grad") or (self.seen and self.seen[-1].entry is entry):
            return value
        number = len(self.seen)
        if name == "token_grad":
            axis = _axis(entry, value.ndim)
            weights = -value.parts[0].sum(axis=axis) % PRIME
        else:
            weights = value.parts[0]
        flat = np.asarray(weights, dtype=object).reshape(-1)
        valid = self._valid.reshape(-1) if self._valid is not None and self._valid.size == flat.size else None
        self.seen.append(SeenLoss(entry, flat, valid, self._uneven and valid is not None, name))
        self._valid, self._uneven = None, False
        marker = self.markers.get(number, 1)
        return Value(self, (value.parts[0] * marker % PRIME,)) if marker != 1 else value

    # The domain's methods.

    def const(self, x: Array) -> Parts:
        """Exact."""
        array = np.asarray(x)
        flat = [residue(v) for v in array.ravel().tolist()]
        return (_objects(flat, array.shape),)

    def truth(self, x: Array) -> Parts:
        """Truth values are concrete."""
        return (np.asarray(x, dtype=bool),)

    def leaf(self, source: Any, shape: tuple[int, ...], value: Array) -> Parts:
        """A keyed hash of the leaf's name and the element's place in its stream.

        Below the working directory a file counts by its place there, so that a coin falls alike in every checkout.
        """
        size, first = math.prod(shape), source.first
        name = source.name.replace(f"{os.getcwd()}{os.sep}", "")
        flat = [self._hash("leaf", source.kind, name, first + i) for i in range(size)]
        return (_objects(flat, shape),)

    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts:
        """Nothing is rounded."""
        return a

    def add(self, a: Parts, b: Parts) -> Parts:
        """Sum."""
        return (_reduced(a[0] + b[0]),)

    def sub(self, a: Parts, b: Parts) -> Parts:
        """Difference."""
        return (_reduced(a[0] - b[0]),)

    def mul(self, a: Parts, b: Parts) -> Parts:
        """Product. Raises Beyond for infinity times a number that is no rational constant."""
        if _endless(a[0]) or _endless(b[0]):
            raise Beyond("a product with infinity in the weight domain")
        return (_reduced(a[0] * b[0]),)

    def div(self, a: Parts, b: Parts) -> Parts:
        """Quotient; zero divided by zero, and anything divided by zero, is zero here and selected by no sound step."""
        inverse = np.frompyfunc(_inverse, 1, 1)(b[0])
        return self.mul(a, (np.asarray(inverse, dtype=object).reshape(np.shape(b[0])),))

    def neg(self, a: Parts) -> Parts:
        """Minus."""
        return (_reduced(-a[0]),)

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum."""
        total = a[0].sum(axis=axes) if axes else a[0]
        return (_reduced(np.asarray(total, dtype=object)),)

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """Product of matrices."""
        if _endless(a[0]) or _endless(b[0]):
            raise Beyond("a matrix product with infinity in the weight domain")
        return (_reduced(np.asarray(a[0] @ b[0], dtype=object)),)

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """A keyed hash of the arguments; the limits of exp and a few constants are known."""

        def one(*values: Any) -> Any:
            if name == "exp" and isinstance(values[0], float):
                return 0 if values[0] < 0 else math.inf
            found = KNOWN_AT.get((name, values[0])) if len(values) == 1 else None
            return self._hash(name, *values) if found is None else found

        arrays = np.broadcast_arrays(*(a[0] for a in args))
        out = np.frompyfunc(one, len(arrays), 1)(*arrays)
        return (np.asarray(out, dtype=object).reshape(arrays[0].shape),)

    def less(self, a: Parts, b: Parts) -> Parts:
        """Decided for constants, a keyed coin otherwise."""
        return (_bools(self._less, a[0], b[0]),)

    def equal(self, a: Parts, b: Parts) -> Parts:
        """Equality of residues."""
        return (_bools(lambda x, y: bool(x == y), a[0], b[0]),)

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """Concrete."""
        first = np.asarray(args[0][0], dtype=bool)
        if name == "not":
            return (~first,)
        second = np.asarray(args[1][0], dtype=bool)
        return (first & second if name == "and" else first | second,)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """Selection."""
        return (np.where(np.asarray(c[0], dtype=bool), a[0], b[0]),)

    def _less(self, x: Any, y: Any) -> bool:
        if isinstance(x, float) or isinstance(y, float):
            sides = [v if isinstance(v, float) else 0.0 for v in (x, y)]
            return bool(sides[0] < sides[1])
        left, right = rational(x, 2**64), rational(y, 2**64)
        if left is not None and right is not None:
            return bool(left < right)
        if x == y:
            return False
        low, high = min(x, y), max(x, y)
        return bool((self._hash("less", low, high) & 1 == 1) == (x == low))

    def _hash(self, *key: Any) -> int:
        text = repr((self.seed, *key)).encode()
        return int.from_bytes(hashlib.shake_128(text).digest(80)) % PRIME


def _axis(entry: Entry, ndim: int) -> int:
    """The axis of the classes: the third argument of `_log_softmax_backward_data`, else the last."""
    dim = entry.args[2] if len(entry.args) > 2 and isinstance(entry.args[2], int) else -1
    return int(dim) % max(ndim, 1)


def _objects(flat: Sequence[Any], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(flat), dtype=object)
    made[:] = flat
    return made.reshape(shape)


def _one(x: Any) -> Any:
    return x if isinstance(x, float) else x % PRIME


_EACH = np.frompyfunc(_one, 1, 1)


def _reduced(x: Any) -> Array:
    array = np.asarray(x, dtype=object)
    out = np.asarray(_EACH(array), dtype=object).reshape(array.shape)
    if any(v != v for v in out.ravel() if isinstance(v, float)):
        raise Beyond("infinity less infinity in the weight domain")
    return out


def _endless(x: Array) -> bool:
    return any(isinstance(v, float) for v in x.ravel())


def _bools(f: Callable[[Any, Any], bool], a: Array, b: Array) -> Array:
    left, right = np.broadcast_arrays(a, b)
    return np.asarray(np.frompyfunc(f, 2, 1)(left, right), dtype=bool).reshape(left.shape)


def _inverse(x: Any) -> int:
    return 0 if isinstance(x, float) or x == 0 else inverse(x)


@lru_cache(maxsize=65536)
def inverse(x: int) -> int:
    """Modulo PRIME. Raises ValueError at zero."""
    return pow(x, -1, PRIME)


def residue(x: Any) -> Any:
    """Of a number: a float is the dyadic rational that it is; infinities stay. Raises Beyond for NaN."""
    if isinstance(x, float):
        if math.isnan(x):
            raise Beyond("NaN in the weight domain")
        if math.isinf(x):
            return x
        over, under = x.as_integer_ratio()
        return over * inverse(under) % PRIME
    return int(x) % PRIME


def rational(x: int, limit: int = LIMIT) -> Fraction | None:
    """The rational number with numerator and denominator up to `limit` that has this residue, or None.

    Wang's algorithm ("A p-adic algorithm for univariate partial fractions", SYMSAC 1981): Euclid's, stopped half way.
    """
    if isinstance(x, float):
        return None
    above, below, s, t = PRIME, x % PRIME, 0, 1
    while below > limit >= abs(t):
        quotient = above // below
        above, below, s, t = below, above - quotient * below, t, s - quotient * t
    if t == 0 or abs(t) > limit:
        return None
    return Fraction(below if t > 0 else -below, abs(t))
