"""The domain of residues modulo p = 2^61 - 1: an identity is tested at one random point, at real shapes.

Leaves are keyed hashes of (kind, name, index), so that two runs read the same point. A function is a keyed hash of its
name and arguments: a fresh unknown, the same where the arguments are the same. A comparison is not decided but is such
an unknown too, in the place of the indicator's 0 or 1, and `where(c, a, b)` is `b + c (a - b)`: an equality of
polynomials in a free indicator holds for both of its values, so that one evaluation covers every branch at once. What
is concrete (masks, indices, constants) selects exactly.

What it claims. If the two sides differ as terms (rational functions of leaves, function values and indicators, their
coefficients taken modulo p), then equal residues are an accident; `failure_bound` says how likely. It rests on: hash
values under a random key being independent and uniform; p dividing no coefficient by which the sides differ (2^61 = 1
modulo p, so that a scale that is wrong by exactly 2^61 is not seen). Equality holds wherever no divisor is 0.

Components of a number: residues (uint64); the degree of the polynomial in leaves, function values, indicators and
reciprocals (float64, an upper bound, the same for all that one operator made); to how many levels its divisors contain
reciprocals. A truth value has residues alone; its degree is 1. Residues from 2^61 on are codes: minus and plus infinity
and the unknown NAN, with the meaning they have in `real`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Parts
from gradproof.shadow.domains import residues
from gradproof.shadow.domains.constants import Snap, reader
from gradproof.shadow.domains.residues import P, Words
from gradproof.shadow.domains.terms import AT_ZERO, POWER_LIMIT
from gradproof.shadow.tape import Source

NINF, PINF, NAN = (np.uint64(2**64 - k) for k in (3, 2, 1))
LIMITS: dict[str, tuple[int, int]] = {
    "exp": (0, int(PINF)), "sigmoid": (0, 1), "tanh": (P - 1, 1), "erf": (P - 1, 1), "log": (int(NAN), int(PINF)),
    "sqrt": (int(NAN), int(PINF)), "softplus": (0, int(PINF)),
}  # fmt: skip
"""Functions at minus and plus infinity."""


@dataclass(slots=True)
class Count:
    """What the error bound is computed from: hashed elements and divisions, and the greatest degrees of either."""

    hashed: dict[str, int] = field(default_factory=dict)
    argument: float = 1.0
    divisions: int = 0
    divisor: float = 0.0
    nesting: int = 0
    observed: float = 1.0

    def degree(self, of: float) -> float:
        """Degree of the numerator of a rational function of formal degree `of`, its reciprocals cleared.

        Clearing n reciprocals of divisors of degree d multiplies the degree by 1 + n d; once for each level to which
        divisors contain reciprocals.
        """
        return float(of * (1.0 + self.divisions * self.divisor) ** self.nesting)


class Field:
    """An `algebra.Domain` of residues under one key. `snap`: read float constants as rationals."""

    name = "field"

    def __init__(self, key: int = 0, *, snap: Snap | None = None) -> None:
        self.key, self.snap, self.count = key, snap, Count()
        self.special = False
        self.hashed: dict[str, list[Words]] = {}

    # Constants, leaves, hashes.

    def const(self, x: Array) -> Parts:
        """Exact residues of numbers (or of the rationals they are snapped to); codes for what is not finite."""
        values = np.asarray(x)
        if values.dtype.kind in "biu":
            found = np.asarray(values.astype(np.int64) % P).astype(np.uint64)
            return _pack(found, 0, 0)
        floats = values.astype(np.float64)
        finite = np.isfinite(floats)
        kept = np.where(finite, floats, 0.0)
        read = reader(self.snap, kept)
        found = residues.of_floats(kept) if read is Fraction else self._read(kept, read)
        if not finite.all():
            self.special = True
            code = np.where(np.isnan(floats), NAN, np.where(floats > 0, PINF, NINF))
            found = np.where(finite, found, code)
        return _pack(found, 0, 0)

    def _read(self, values: Array, read: Any) -> Words:
        distinct, place = np.unique(values, return_inverse=True)
        try:
            table = [residues.of_fraction(read(float(v))) for v in distinct]
        except ZeroDivisionError as error:
            raise Beyond(str(error)) from error
        return np.asarray(table, dtype=np.uint64)[place].reshape(values.shape)

    def truth(self, x: Array) -> Parts:
        """Concrete truth values: residues 0 and 1."""
        return (np.asarray(x, dtype=bool).astype(np.uint64),)

    def seed(self, *names: str) -> int:
        """A 64-bit number of the key and some names."""
        text = "\0".join((str(self.key), *names)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

    def hash(self, name: str, args: Sequence[Words]) -> Words:
        """A fresh unknown for each distinct tuple of arguments."""
        state: Any = np.uint64(self.seed("function", name, str(len(args))))
        for turn, a in enumerate(args):
            state = residues.mix(residues.mix(a ^ np.uint64(self.seed("argument", name, str(turn)))) ^ state)
        self.hashed.setdefault(name, []).append(np.asarray(state).reshape(-1))
        found = residues.reduce(np.asarray(residues.mix(state)))
        self.count.hashed[name] = self.count.hashed.get(name, 0) + int(found.size)
        return found

    def coincidences(self) -> str:
        """A digest of which hashed arguments coincide with which: the same at two points unless one is an accident."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.hashed):
            states = np.concatenate(self.hashed[name])
            _, first, place = np.unique(states, return_index=True, return_inverse=True)
            digest.update(name.encode() + first[place].astype(np.int64).tobytes())
        return digest.hexdigest()

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """Random residues by source and index."""
        first = np.uint64(source.first)
        index = np.arange(math.prod(shape), dtype=np.uint64) + first
        start = np.uint64(self.seed("leaf", source.kind, source.name))
        found = residues.reduce(residues.mix(residues.mix(index) ^ start)).reshape(shape)
        return _pack(found, 1, 0)

    # Arithmetic.

    def _with(self, found: Words, degree: float, nesting: float, kind: str, *args: Words) -> Parts:
        if self.special:
            found = _codes(kind, found, *args)
        return _pack(found, degree, nesting)

    def add(self, a: Parts, b: Parts) -> Parts:
        """a + b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(residues.add(x, y), max(_of(a), _of(b)), _deep(a, b), "add", a[0], b[0])

    def sub(self, a: Parts, b: Parts) -> Parts:
        """a - b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(residues.sub(x, y), max(_of(a), _of(b)), _deep(a, b), "sub", a[0], b[0])

    def mul(self, a: Parts, b: Parts) -> Parts:
        """a b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(residues.mul(x, y), _of(a) + _of(b), _deep(a, b), "mul", a[0], b[0])

    def div(self, a: Parts, b: Parts) -> Parts:
        """a / b; NAN where b is 0 at this point."""
        x, y, degree = self._plain(a), self._plain(b), _of(b)
        quotient = residues.mul(x, residues.inverse(y))
        if degree:
            self.count.divisions += int(quotient.size)
            self.count.divisor = max(self.count.divisor, degree)
            self.count.nesting = max(self.count.nesting, int(_deep(b)) + 1)
        none = b[0] == 0
        self.special = self.special or bool(none.any())
        nesting = max(_deep(a), _deep(b) + 1) if degree else _deep(a)
        return self._with(quotient, _of(a) + (1 if degree else 0), nesting, "div", a[0], b[0])

    def neg(self, a: Parts) -> Parts:
        """-a."""
        return self._with(residues.neg(self._plain(a)), _of(a), _deep(a), "neg", a[0])

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum over axes."""
        found = residues.total(self._plain(a), axes)
        if self.special:
            low, high = (np.asarray((a[0] == code).any(axis=axes)) for code in (NINF, PINF))
            bad = np.asarray((a[0] == NAN).any(axis=axes)) | (low & high)
            found = np.where(bad, NAN, np.where(low, NINF, np.where(high, PINF, found)))
        return _pack(found, _of(a), _deep(a))

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """As NumPy's, for at least two dimensions on either side; NAN where an infinity enters."""
        found = residues.matmul(self._plain(a), self._plain(b))
        if self.special:
            rows, columns = (a[0] >= P).any(axis=-1), (b[0] >= P).any(axis=-2)
            found = np.where(rows[..., :, None] | columns[..., None, :], NAN, found)
        return _pack(found, _of(a) + _of(b), _deep(a, b))

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """A hash of the arguments; exact where the value is rational for every domain (`exp(0)`, `pow(x, 2)`)."""
        plain = [self._plain(a) for a in args]
        self.count.argument = max(self.count.argument, *(_of(a) for a in args))
        folded = self._power(args, plain) if name == "pow" else None
        if folded is not None:
            return folded
        found = self.hash(name, plain)
        at_zero = AT_ZERO.get(name)
        if at_zero is not None:
            found = np.where(plain[0] == 0, np.uint64(residues.of_fraction(at_zero)), found)
        if name in ("log", "sqrt"):
            found = np.where(plain[0] == 1, np.uint64(name == "sqrt"), found)
        if self.special and len(args) == 1 and name in LIMITS:
            low, high = LIMITS[name]
            found = np.where(args[0][0] == NINF, np.uint64(low), np.where(args[0][0] == PINF, np.uint64(high), found))
            return _pack(np.where(args[0][0] == NAN, NAN, found), 1, 0)
        return self._with(found, 1, 0, "unknown", *(a[0] for a in args))

    def _power(self, args: Sequence[Parts], plain: Sequence[Words]) -> Parts | None:
        """`pow` with one small whole constant exponent as a product, with 1/2 as `sqrt`; None for any other."""
        exponents = plain[1]
        if not exponents.size or _of(args[1]) or (exponents != exponents.flat[0]).any():
            return None
        n = int(exponents.flat[0])
        shape = np.broadcast_shapes(*(p.shape for p in plain))
        if n <= POWER_LIMIT:
            whole = residues.power(np.broadcast_to(plain[0], shape), n)
            return self._with(whole, n * _of(args[0]), _deep(args[0]), "unknown", *(a[0] for a in args))
        if n == (P + 1) // 2 and args[0][0].shape == shape:
            return self.function("sqrt", args[:1])
        return None

    # Truth values.

    def less(self, a: Parts, b: Parts) -> Parts:
        """The indicator of a < b: 0 where they are equal here, else a fresh unknown. Raises Beyond for a NAN."""
        return self._compare("less", a, b)

    def equal(self, a: Parts, b: Parts) -> Parts:
        """The indicator of a = b: 1 where they are equal here, else a fresh unknown. Raises Beyond for a NAN."""
        return self._compare("equal", a, b)

    def _compare(self, name: str, a: Parts, b: Parts) -> Parts:
        difference = residues.sub(self._plain(b), self._plain(a))
        if name == "equal":
            difference = np.minimum(difference, residues.neg(difference))
        self.count.argument = max(self.count.argument, _of(a), _of(b))
        same = np.uint64(name == "equal")
        found = np.where(difference == 0, same, self.hash(name, [difference]))
        if self.special:
            if (a[0] == NAN).any() or (b[0] == NAN).any():
                raise Beyond("a comparison of a value that is not a number")
            x, y = _order(a[0]), _order(b[0])
            decided = (x != 0) | (y != 0)
            known = (x < y) if name == "less" else (x == y)
            found = np.where(decided, known.astype(np.uint64), found)
        return (found,)

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """`not c` is 1 - c; `and` of two unknowns is an unknown of both; `or` by De Morgan."""
        one = np.uint64(1)
        if name == "not":
            return (residues.sub(np.full(args[0][0].shape, one), args[0][0]),)
        if name == "or":
            turned = [self.logic("not", (a,)) for a in args]
            return self.logic("not", (self.logic("and", turned),))
        found = args[0][0]
        for a in args[1:]:
            x, y = np.broadcast_arrays(found, a[0])
            joint = self.hash("and", [np.minimum(x, y), np.maximum(x, y)])
            joint = np.where((x == 0) | (y == 0), np.uint64(0), joint)
            found = np.where(x == one, y, np.where((y == one) | (x == y), x, joint))
        return (found,)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """Exact selection where c is 0 or 1, else `b + c (a - b)`."""
        chosen = np.where(c[0] == 1, a[0], b[0])
        free = c[0] > 1
        degree = max(_of(a), _of(b))
        if not free.any():
            return _pack(chosen, degree, _deep(a, b))
        x, y = self._plain(a), self._plain(b)
        mixed = residues.add(y, residues.mul(c[0], residues.sub(x, y)))
        if self.special:
            mixed = np.where((a[0] == b[0]) | ((a[0] < P) & (b[0] < P)), mixed, NAN)
            mixed = np.where((a[0] == b[0]) & (a[0] >= P), a[0], mixed)
        found = np.where(free, mixed, chosen)
        return _pack(found, degree + 1, _deep(a, b))

    def rounded(self, a: Parts, dtype: str, entry: Any) -> Parts:
        """Exact arithmetic rounds nothing."""
        return a

    def _plain(self, a: Parts) -> Words:
        """Residues, with 0 in the place of a code."""
        words = cast("Words", a[0])
        return np.where(words >= P, np.uint64(0), words) if self.special else words

    def failure_bound(self, evaluations: int = 1) -> float:
        """Probability that sides that differ as terms are equal at each of `evaluations` independent points.

        A point errs when the difference of two sides vanishes there (Schwartz and Zippel: its degree over p), or when
        two hashed arguments that differ coincide (their degree over p). The caller saw to it that `coincidences` is the
        same at all points; then a pair of arguments errs only if it coincides at each of them. Degrees are those of
        numerators after every reciprocal was cleared.
        """
        count = self.count
        pairs = sum(n * (n - 1) / 2 for n in count.hashed.values())
        vanish = min(1.0, count.degree(2 * count.observed) / P)
        coincide = min(1.0, (count.degree(2 * count.argument) + 1) / P)
        return float(min(1.0, vanish**evaluations + pairs * coincide**evaluations))


def _pack(found: Array, degree: float, nesting: float) -> Parts:
    return found, np.broadcast_to(np.float64(degree), found.shape), np.broadcast_to(np.float64(nesting), found.shape)


def _of(a: Parts) -> float:
    """Degree of an array."""
    return float(a[1].max()) if a[1].size else 0.0


def _deep(*args: Parts) -> float:
    """To how many levels divisors in some arrays contain reciprocals."""
    return max(float(a[2].max()) if a[2].size else 0.0 for a in args)


def _order(a: Words) -> Array:
    return np.where(a == PINF, 1, np.where(a == NINF, -1, 0))


def _signs(a: Words) -> Array:
    """-1, 1 for infinities, 2 for NAN, 0 for numbers."""
    return np.where(a == NAN, 2, _order(a))


def _codes(kind: str, found: Words, *args: Words) -> Words:
    """Put the codes where an argument was one. `kind`: add, sub, neg, mul, div, unknown."""
    signs = [_signs(a) for a in args]
    if kind == "neg":
        sign = np.where(signs[0] == 2, 2, -signs[0])
    elif kind in ("add", "sub"):
        other = np.where(signs[1] == 2, 2, -signs[1]) if kind == "sub" else signs[1]
        clash = (signs[0] == 2) | (other == 2) | (signs[0] * other == -1)
        sign = np.where(clash, 2, np.sign(signs[0] + other))
    elif kind in ("mul", "div"):
        sign = _scaled(kind, signs, args)
    else:
        sign = np.where(np.any(np.stack(np.broadcast_arrays(*signs)) != 0, axis=0), 2, 0)
    codes = np.where(sign == 1, PINF, np.where(sign == -1, NINF, NAN))
    return np.where(sign == 0, found, codes)


def _scaled(kind: str, signs: list[Array], args: tuple[Words, ...]) -> Array:
    """Infinities in products: by 1 and -1 the sign is known, a number over an infinity is 0, all else is unknown."""
    unit = [np.where(a == 1, 1, np.where(a == P - 1, -1, 0)) for a in args]
    infinite = [np.abs(s) == 1 for s in signs]
    known = np.where(infinite[0], signs[0] * unit[1], 0)
    if kind == "mul":
        known = known + np.where(infinite[1], signs[1] * unit[0], 0)
        touched = (signs[0] != 0) | (signs[1] != 0)
    else:
        touched = (signs[0] != 0) | (signs[1] == 2) | (args[1] == 0)
    return np.where(touched, np.where(known == 0, 2, known), 0)
