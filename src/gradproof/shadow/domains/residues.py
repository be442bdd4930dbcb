"""Arithmetic modulo the Mersenne prime p = 2^61 - 1 on uint64 arrays, exact, in NumPy alone.

2^61 = 1 modulo p, so that a product with a power of two is a rotation of 61 bits, a float's residue is a rotation of
its mantissa, and limbs are put together by rotations. Every array here holds numbers below p.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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
