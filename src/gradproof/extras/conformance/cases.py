"""Inputs of the conformance rows, as bit patterns.

A structured set meets itself in every pair (or triple): both signs of zero, subnormal and boundary significands in
exponents at both ends, around one and in between, infinities and NaN. Random inputs are half uniform bit patterns and
half numbers whose exponents are close, because sums of uniform bit patterns are mostly one of their operands; random
triples are half of them near a cancellation of a * b with c, where a fused product shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradproof.extras.conformance.machine import Bits, decode, encode, known

CHUNK = 100_003  # odd, so that the scalar tail of a vectorised kernel runs too
EXPONENTS_FROM_ONE = (-2, -1, 0, 1, 2)


def all_patterns(name: str) -> Bits:
    """Every bit pattern of a 16-bit format. Raises ValueError for a wider one."""
    if known(name).bits > 16:
        raise ValueError(f"{name} has too many bit patterns to run them all")
    return np.arange(2 ** known(name).bits, dtype=np.uint32)


def structured(name: str, few: bool = False) -> Bits:
    """Special, boundary and ordinary numbers of a format; `few` for triples."""
    f = known(name)
    top = 2 ** (f.bits - f.p) - 1
    far = {0, 1, 2, f.p, f.p + 1, 2 * f.p, top - 2, top - 1, top}
    near = {f.emax + k for k in (*EXPONENTS_FROM_ONE, -f.p - 1, -f.p, 1 - f.p, -f.emax // 2, f.emax // 2)}
    half, ones = 2 ** (f.p - 2), 2 ** (f.p - 1) - 1
    significands = (0, 1, ones) if few else (0, 1, 2, 3, half - 1, half, half + 1, ones - 1, ones)
    if few:
        far, near = {0, 1, top - 1, top}, {f.emax, f.emax - 1, f.emax - f.p, f.emax // 2}
    fields = sorted(e for e in far | near if 0 <= e <= top)
    patterns = [s << (f.bits - 1) | e << (f.p - 1) | m for s in (0, 1) for e in fields for m in significands]
    return np.array(sorted(set(patterns)), dtype=np.uint32)


def products(values: Bits, arity: int) -> list[Bits]:
    """Every pair or triple of a set, as one array for each operand."""
    grids = np.meshgrid(*[values] * arity, indexing="ij")
    return [np.ascontiguousarray(g.ravel()) for g in grids]


def close(name: str, rng: np.random.Generator, count: int, arity: int) -> list[Bits]:
    """Random numbers whose exponents differ by at most p + 2; triples are near c = -a b."""
    f = known(name)
    top = 2 ** (f.bits - f.p) - 1
    base = rng.integers(0, top, count)
    found = []
    for _ in range(arity):
        field = np.clip(base + rng.integers(-f.p - 2, f.p + 3, count), 0, top - 1)
        sign = rng.integers(0, 2, count) << (f.bits - 1)
        found.append((sign | field << (f.p - 1) | rng.integers(0, 2 ** (f.p - 1), count)).astype(np.uint32))
    if arity == 3:
        found[1] = _near_one(name, rng, count)
        found[2] = _near_one(name, rng, count)
        minus = encode(-decode(found[1], name) * decode(found[2], name), name)
        found[0] = (minus.astype(np.int64) + rng.integers(-3, 4, count)).astype(np.uint32)
    return found


def _near_one(name: str, rng: np.random.Generator, count: int) -> Bits:
    f = known(name)
    field = f.emax + rng.integers(-3, 3, count)
    sign = rng.integers(0, 2, count) << (f.bits - 1)
    patterns: Bits = (sign | field << (f.p - 1) | rng.integers(0, 2 ** (f.p - 1), count)).astype(np.uint32)
    return patterns


def uniform(name: str, rng: np.random.Generator, count: int, arity: int) -> list[Bits]:
    """Random bit patterns, each equally likely."""
    return [rng.integers(0, 2 ** known(name).bits, count, dtype=np.uint64).astype(np.uint32) for _ in range(arity)]


def cases(name: str, arity: int, count: int, seed: int) -> Iterator[list[Bits]]:
    """Chunks of operands: everything structured first (all patterns for one 16-bit operand), then `count` random ones.

    Raises ValueError for an arity other than 1, 2 or 3.
    """
    if arity not in (1, 2, 3):
        raise ValueError(f"operators take one to three tensors, not {arity}")
    if arity == 1 and known(name).bits == 16:
        yield [all_patterns(name)]
        return
    special = products(structured(name, few=arity == 3), arity)
    for start in range(0, len(special[0]), CHUNK):
        yield [s[start : start + CHUNK] for s in special]
    rng = np.random.default_rng([seed, arity, known(name).bits, known(name).p])
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        draw = uniform if (start // CHUNK) % 2 == 0 else close
        if size < CHUNK and start == 0:
            halves = [uniform(name, rng, size // 2, arity), close(name, rng, size - size // 2, arity)]
            yield [np.concatenate(pair) for pair in zip(*halves, strict=True)]
        else:
            yield draw(name, rng, size, arity)
