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
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Parts, Snap
from gradproof.shadow.domains.real import reader
from gradproof.shadow.domains.terms import AT_ZERO, POWER_LIMIT
from gradproof.shadow.tape import Source

# -- Arithmetic modulo the Mersenne prime p = 2^61 - 1 on uint64 arrays, exact, in NumPy alone.
Words = NDArray[np.uint64]

BITS = 61
P = 2**BITS - 1
_P = np.uint64(P)
_31, _30, _61 = np.uint64(31), np.uint64(30), np.uint64(BITS)
_LOW31, _LOW30 = np.uint64(2**31 - 1), np.uint64(2**30 - 1)
LIMB = 21
"""Bits of a limb in `matmul`: 3 limbs hold 61 bits, and a product of two fills 42 bits."""
CHUNK = 2048
"""Products of two limbs that float64 sums exactly: 2^11 of 2^42 reach 2^53."""


def reduce(x: Words) -> Words:
    """Any uint64 modulo p."""
    y = (x & _P) + (x >> _61)
    return cast("Words", y - _P * (y >= _P))


def add(a: Words, b: Words) -> Words:
    """a + b."""
    y = a + b
    return cast("Words", y - _P * (y >= _P))


def neg(a: Words) -> Words:
    """-a."""
    return cast("Words", np.where(a == 0, a, _P - a))


def sub(a: Words, b: Words) -> Words:
    """a - b."""
    y = a + (_P - b)
    return cast("Words", y - _P * (y >= _P))


def rotate(a: Words, by: Any) -> Words:
    """a times 2^by, 0 <= by < 61."""
    left = np.asarray(by, dtype=np.uint64)
    return cast("Words", ((a << left) & _P) | (a >> (_61 - left)))


def mul(a: Words, b: Words) -> Words:
    """a b: the upper halves' product is at 2^62 = 2, the middle ones' at 2^31."""
    ah, al, bh, bl = a >> _31, a & _LOW31, b >> _31, b & _LOW31
    middle = al * bh + ah * bl
    total = ((ah * bh) << np.uint64(1)) + (middle >> _30) + ((middle & _LOW30) << _31) + al * bl
    return reduce(total)


def power(a: Words, n: int) -> Words:
    """a to the n-th, n >= 0."""
    result = np.ones_like(a)
    while n:
        if n & 1:
            result = mul(result, a)
        a = mul(a, a) if n > 1 else a
        n >>= 1
    return result


ALONE = 64
"""Elements up to which each is inverted by itself, by Euclid's algorithm in Python."""


def inverse(a: Words) -> Words:
    """1 / a, 0 for 0. Many at once by Montgomery's trick: 1 / x = y / (x y), halving the number of inversions."""
    flat = np.where(a == 0, np.uint64(1), a).reshape(-1)
    return cast("Words", np.where(a == 0, a, _inverses(flat).reshape(a.shape)))


def _inverses(a: Words) -> Words:
    if a.size <= ALONE:
        return np.array([pow(x, -1, P) for x in a.tolist()], dtype=np.uint64)
    half = a.size // 2
    x, y = a[:half], a[half : 2 * half]
    both = _inverses(np.concatenate([mul(x, y), a[2 * half :]]))
    return np.concatenate([mul(both[:half], y), mul(both[:half], x), both[half:]])


def total(a: Words, axes: tuple[int, ...]) -> Words:
    """Sum over axes: halves of 31 and 30 bits, exact for up to 2^33 elements."""
    low = np.asarray((a & _LOW31).sum(axis=axes, dtype=np.uint64))
    high = np.asarray((a >> _31).sum(axis=axes, dtype=np.uint64))
    return add(reduce(low), rotate(reduce(high), 31))


def _limbs(a: Words, axis: int) -> NDArray[np.float64]:
    """The three limbs of a matrix, one after the other along an axis."""
    low = np.uint64(2**LIMB - 1)
    return np.concatenate([((a >> np.uint64(LIMB * i)) & low).astype(np.float64) for i in range(3)], axis=axis)


def _product(a: Words, b: Words) -> Words:
    """A product of matrices whose inner dimension is at most CHUNK: all nine products of limbs in one of floats."""
    m, n = a.shape[-2], b.shape[-1]
    parts = (_limbs(a, -2) @ _limbs(b, -1)).astype(np.uint64)
    found = np.zeros((*parts.shape[:-2], m, n), dtype=np.uint64)
    for weight in range(5):
        diagonal = np.zeros_like(found)
        for i in range(max(0, weight - 2), min(3, weight + 1)):
            j = weight - i
            diagonal += parts[..., i * m : (i + 1) * m, j * n : (j + 1) * n]
        found += rotate(diagonal, LIMB * weight % BITS)
    return reduce(found)


def matmul(a: Words, b: Words) -> Words:
    """A product of (stacks of) matrices."""
    inner = a.shape[-1]
    if inner <= CHUNK:
        return _product(a, b)
    found = _product(a[..., :CHUNK], b[..., :CHUNK, :])
    for start in range(CHUNK, inner, CHUNK):
        found = add(found, _product(a[..., start : start + CHUNK], b[..., start : start + CHUNK, :]))
    return found


def of_floats(x: NDArray[np.float64]) -> Words:
    """The residue of each finite float: its 53-bit mantissa, rotated. Exact for subnormal floats too."""
    mantissa, exponent = np.frexp(x)
    whole = np.abs(mantissa * 2.0**53).astype(np.uint64)
    turned = rotate(whole, (exponent.astype(np.int64) - 53) % BITS)
    return cast("Words", np.where(x < 0, neg(turned), turned))


def of_fraction(x: Fraction) -> int:
    """The residue of a rational. Raises ZeroDivisionError when p divides the denominator."""
    if x.denominator % P == 0:
        raise ZeroDivisionError(f"{x} has no residue modulo {P}")
    return int(x.numerator * pow(x.denominator, -1, P) % P)


def rational(residue: int, limit: int = 2**30 - 1) -> Fraction | None:
    """The rational of numerator and denominator at most `limit` with this residue, or None (Wang's reconstruction).

    Unique, if there is one, for 2 limit^2 < p, as by default.
    """
    before, now, s_before, s = P, residue % P, 0, 1
    while now > limit:
        quotient = before // now
        before, now, s_before, s = now, before - quotient * now, s, s_before - quotient * s
    if s == 0 or abs(s) > limit:
        return None
    found = Fraction(now, s)
    return found if of_fraction(found) == residue % P else None


_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15))


def mix(x: Words) -> Words:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits in which each bit reaches all."""
    with np.errstate(over="ignore"):
        x = x + _MIX[2]
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
        return cast("Words", x ^ (x >> np.uint64(31)))


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
        found = of_floats(kept) if read is Fraction else self._read(kept, read)
        if not finite.all():
            self.special = True
            code = np.where(np.isnan(floats), NAN, np.where(floats > 0, PINF, NINF))
            found = np.where(finite, found, code)
        return _pack(found, 0, 0)

    def _read(self, values: Array, read: Any) -> Words:
        distinct, place = np.unique(values, return_inverse=True)
        try:
            table = [of_fraction(read(float(v))) for v in distinct]
        except ZeroDivisionError as error:
            raise Beyond(str(error)) from error
        return np.asarray(table, dtype=np.uint64)[place].reshape(values.shape)

    def truth(self, x: Array) -> Parts:
        """Concrete truth values: residues 0 and 1."""
        return (np.asarray(x, dtype=bool).astype(np.uint64),)

    def seed(self, *names: str) -> int:
        """A 64-bit number of the key and some names."""
        text = "\0".join((str(self.key), *names)).encode(errors="surrogateescape")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

    def hash(self, name: str, args: Sequence[Words]) -> Words:
        """A fresh unknown for each distinct tuple of arguments."""
        state: Any = np.uint64(self.seed("function", name, str(len(args))))
        for turn, a in enumerate(args):
            state = mix(mix(a ^ np.uint64(self.seed("argument", name, str(turn)))) ^ state)
        self.hashed.setdefault(name, []).append(np.asarray(state).reshape(-1))
        found = reduce(np.asarray(mix(state)))
        self.count.hashed[name] = self.count.hashed.get(name, 0) + int(found.size)
        return found

    def coincidences(self) -> str:
        """A digest of which hashed arguments coincide with which: the same at two points unless one is an accident."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.hashed):
            states = np.concatenate(self.hashed[name])
            _, first, place = np.unique(states, return_index=True, return_inverse=True)
            digest.update(name.encode(errors="surrogateescape") + first[place].astype(np.int64).tobytes())
        return digest.hexdigest()

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """Random residues by source and index."""
        first = np.uint64(source.first)
        index = np.arange(math.prod(shape), dtype=np.uint64) + first
        start = np.uint64(self.seed("leaf", source.kind, source.name))
        found = reduce(mix(mix(index) ^ start)).reshape(shape)
        return _pack(found, 1, 0)

    # Arithmetic.

    def _with(self, found: Words, degree: float, nesting: float, kind: str, *args: Words) -> Parts:
        if self.special:
            found = _codes(kind, found, *args)
        return _pack(found, degree, nesting)

    def add(self, a: Parts, b: Parts) -> Parts:
        """a + b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(add(x, y), max(_of(a), _of(b)), _deep(a, b), "add", a[0], b[0])

    def sub(self, a: Parts, b: Parts) -> Parts:
        """a - b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(sub(x, y), max(_of(a), _of(b)), _deep(a, b), "sub", a[0], b[0])

    def mul(self, a: Parts, b: Parts) -> Parts:
        """a b."""
        x, y = self._plain(a), self._plain(b)
        return self._with(mul(x, y), _of(a) + _of(b), _deep(a, b), "mul", a[0], b[0])

    def div(self, a: Parts, b: Parts) -> Parts:
        """a / b; NAN where b is 0 at this point."""
        x, y, degree = self._plain(a), self._plain(b), _of(b)
        quotient = mul(x, inverse(y))
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
        return self._with(neg(self._plain(a)), _of(a), _deep(a), "neg", a[0])

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Sum over axes."""
        found = total(self._plain(a), axes)
        if self.special:
            low, high = (np.asarray((a[0] == code).any(axis=axes)) for code in (NINF, PINF))
            bad = np.asarray((a[0] == NAN).any(axis=axes)) | (low & high)
            found = np.where(bad, NAN, np.where(low, NINF, np.where(high, PINF, found)))
        return _pack(found, _of(a), _deep(a))

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """As NumPy's, for at least two dimensions on either side; NAN where an infinity enters."""
        found = matmul(self._plain(a), self._plain(b))
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
            found = np.where(plain[0] == 0, np.uint64(of_fraction(at_zero)), found)
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
            whole = power(np.broadcast_to(plain[0], shape), n)
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
        difference = sub(self._plain(b), self._plain(a))
        if name == "equal":
            difference = np.minimum(difference, neg(difference))
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
            return (sub(np.full(args[0][0].shape, one), args[0][0]),)
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
        mixed = add(y, mul(c[0], sub(x, y)))
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
