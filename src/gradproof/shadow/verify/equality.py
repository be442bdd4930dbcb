"""Whether two runs computed the same values: a proof over the reals, a test in the field, equality up to constants.

`equal_real` proves: equal normal forms, or Z3 on what is left. It refutes only by evaluating both sides in floats with
a running error bound, with the true functions, at a point at which the path conditions hold; a solver's model is never
taken for a refutation, since its functions are not the real ones. `equal_field` tests an identity at random points with
a stated probability of error. `up_to_constants` reads the float constants of both runs as the rationals that they may
stand for, and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Domain, Value
from gradproof.shadow.domains import modular
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Compiler, Doubtful, Near, Program, near
from gradproof.shadow.domains.real import Reals, Snap, Special
from gradproof.shadow.domains.terms import Poly

Pair = tuple[str, Value, Value]
Make = Callable[[Domain], tuple[Sequence[Pair], Sequence[Value]]]
"""Interprets both runs in a domain: the pairs (name, ours, full), and the conditions on the path."""

POINTS = 16
"""Points at which a difference is looked for: the recorded one, and others around it."""

SIZES = (8.0, 64.0, 0.01)
"""Then further points, this many times as large: a clip binds at one size and not at another."""

MOST_STEPS = 20_000
"""Steps of terms up to which the solver is asked: about a second of translation, which no time limit ends."""

CERTAIN = 4.0
"""How many times its error bound a difference must be to count."""

TARGET = 2.0**-40
"""Error probability at which `equal_field` stops evaluating."""


class Kind(StrEnum):
    """What was found. Only EQUAL is a proof; CONSTANTS is one with the constants read as `Answer.constants` says."""

    EQUAL = "equal"
    CONSTANTS = "equal up to constants"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Answer:
    """What was found, how, and about which of the pairs.

    `how`: normal form, z3, floats, field. `names`: the pairs that differ, or of which nothing is known. `assignment`:
    values of the leaves (`kind/name[i]`) at which they differ, `sides` what both are there. `error`: probability that
    EQUAL is wrong. `constants`: floats and the rationals that they were read as, `bound` the greatest relative distance
    between the two. `ratios`: ours / full by pair, where it is one rational for all elements.
    """

    kind: Kind
    how: str
    names: list[str] = field(default_factory=list)
    reason: str = ""
    assignment: dict[str, float] | None = None
    sides: tuple[float, float] | None = None
    error: float = 0.0
    constants: dict[float, Fraction] = field(default_factory=dict)
    bound: Fraction = Fraction(0)
    ratios: dict[str, Fraction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """Two elements that are not the same term."""

    name: str
    ours: Any
    full: Any


def _elements(pairs: Sequence[Pair]) -> Iterator[Open]:
    for name, ours, full in pairs:
        if ours.shape != full.shape:
            raise ValueError(f"{name}: shapes {ours.shape} and {full.shape}")
        if ours.domain is not full.domain:
            raise ValueError(f"{name}: interpreted by two domains; terms of two pools cannot be compared")
        for a, b in zip(ours.parts[0].ravel().tolist(), full.parts[0].ravel().tolist(), strict=True):
            yield Open(name, a, b)


def _distinct(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def equal_real(pairs: Sequence[Pair], conditions: Sequence[Value] = (), seconds: float = 10.0) -> Answer:
    """Prove that each pair (name, ours, full) is equal elementwise wherever the conditions hold and no divisor is 0.

    Every Value must come of one `Reals`. EQUAL is for all real leaves; DIFFERENT has an assignment; all else is UNKNOWN
    with a reason, infinities and NAN among the values included. Raises ValueError for pairs of different shape or pool.
    """
    if not pairs:
        return Answer(Kind.UNKNOWN, "", reason="nothing to compare")
    elements = list(_elements(pairs))
    special = [e.name for e in elements if isinstance(e.ours, Special) or isinstance(e.full, Special)]
    if special:
        return Answer(Kind.UNKNOWN, "", _distinct(special), "a value that is no real number")
    rest = list({(e.ours, e.full): e for e in elements if e.ours is not e.full}.values())
    if not rest:
        return Answer(Kind.EQUAL, "normal form")
    domain = pairs[0][1].domain
    assert isinstance(domain, Reals)
    taken = [c for condition in conditions for c in condition.parts[0].ravel().tolist()]
    compiled = Compiler(domain.pool).compile([*(e.ours for e in rest), *(e.full for e in rest), *taken])
    differing = [e.name for e in elements if e.ours is not e.full]
    found = _floats(compiled, rest, domain.recorded)
    if found.kind is Kind.DIFFERENT:
        return replace(found, names=_distinct(differing), ratios=_ratios(pairs))
    if found.kind is Kind.UNKNOWN:
        return replace(found, names=_distinct(differing))
    return replace(_solver(compiled, len(rest), seconds), names=_distinct(differing))


def _points(recorded: Mapping[str, float]) -> Iterator[dict[str, float]]:
    yield dict(recorded)
    rng = np.random.default_rng(0)
    for turn in range(POINTS - 1):
        size = 0.01 if turn < POINTS // 2 else 0.5
        noise = rng.standard_normal((2, len(recorded))) * size
        yield {name: v * (1 + float(a)) + float(b) for (name, v), a, b in zip(recorded.items(), *noise, strict=True)}
    for size in SIZES:
        noise = 1 + 0.1 * rng.standard_normal(len(recorded))
        yield {name: size * v * float(a) for (name, v), a in zip(recorded.items(), noise, strict=True)}


def _floats(program: Program, rest: Sequence[Open], recorded: Mapping[str, float]) -> Answer:
    """DIFFERENT with a point, EQUAL (the conditions hold somewhere, and no difference was found), or UNKNOWN."""
    n, witnessed = len(rest), False
    for point in _points(recorded):
        try:
            values = near(program, point)
        except Doubtful:
            continue
        if not all(values[2 * n :]):
            continue
        witnessed = True
        for element, ours, full in zip(rest, values[:n], values[n : 2 * n], strict=True):
            if not isinstance(ours, Near) or not isinstance(full, Near):
                continue
            if abs(ours.value - full.value) > CERTAIN * (ours.error + full.error):
                reason = f"{element.name}: {ours.value:.9g} instead of {full.value:.9g}"
                sides = (ours.value, full.value)
                return Answer(Kind.DIFFERENT, "floats", assignment=point, sides=sides, reason=reason)
    if witnessed:
        return Answer(Kind.EQUAL, "floats")
    return Answer(Kind.UNKNOWN, "floats", reason="no point was found at which the path is taken")


def _solver(program: Program, n: int, seconds: float) -> Answer:
    from gradproof.arith import smt

    if len(program.steps) > MOST_STEPS:
        reason = f"{len(program.steps)} steps of terms, more than the bound of {MOST_STEPS} for the solver"
        return Answer(Kind.UNKNOWN, "z3", reason=reason)
    places = program.outputs
    pairs = list(zip(places[:n], places[n : 2 * n], strict=True))
    reply = smt.prove_equal(program.steps, pairs, places[2 * n :], seconds)
    if reply.answer is smt.Answer.UNSAT:
        return Answer(Kind.EQUAL, "z3")
    why = "the terms differ, but no point was found at which their values do" if reply.answer is smt.Answer.SAT else ""
    return Answer(Kind.UNKNOWN, "z3", reason=why or f"z3: {reply.answer} {reply.reason}".strip())


def _ratios(pairs: Sequence[Pair]) -> dict[str, Fraction]:
    """ours / full where it is one rational for every element of a pair (elements that are 0 on both sides aside)."""
    found: dict[str, Fraction] = {}
    for name, ours, full in pairs:
        ratios = {_ratio(e.ours, e.full) for e in _elements([(name, ours, full)])} - {Fraction(0)}
        if len(ratios) == 1 and None not in ratios:
            found[name] = next(r for r in ratios if r is not None)
    return found


def _ratio(ours: Any, full: Any) -> Fraction | None:
    """The rational factor between two normal forms; 0 when both are 0, None when there is none."""
    if not isinstance(ours, Poly) or not isinstance(full, Poly) or len(ours.terms) != len(full.terms):
        return None
    if not ours.terms:
        return Fraction(0)
    factor = Fraction(ours.terms[0][1]) / full.terms[0][1]
    same = all(m == k and c == factor * d for (m, c), (k, d) in zip(ours.terms, full.terms, strict=True))
    return factor if same else None


def equal_field(make: Make, *, evaluations: int = 4, seed: int = 0, snap: Snap | None = None) -> Answer:
    """Test in the field: `make` interprets both runs in a domain and gives the pairs; it is called once a point.

    EQUAL carries the probability that it is wrong (`Field.failure_bound`). DIFFERENT means that the two sides are
    different terms; whether their values differ, the caller finds by replaying. UNKNOWN: a value that is no number.
    Raises what `make` raises.
    """
    error, made = 1.0, 0
    coincidences: set[str] = set()
    seen: list[dict[str, Fraction]] = []
    while made < evaluations and error > TARGET:
        domain = Field(seed * 1000003 + made, snap=snap)
        pairs, _ = make(domain)
        made += 1
        found = _compared(domain, pairs)
        if found is not None and found.kind is Kind.UNKNOWN:
            return found
        if found is not None:
            found = replace(found, error=domain.failure_bound(1))
            seen.append(_field_ratios(pairs))
            if len(seen) > 1:
                agreed = {name: r for name, r in seen[0].items() if seen[1].get(name) == r}
                return replace(found, ratios=agreed)
            last = found
            continue
        coincidences.add(domain.coincidences())
        if len(coincidences) > 1:
            return Answer(Kind.UNKNOWN, "field", reason="hashed arguments coincide at one point and not at another")
        error = min(error, domain.failure_bound(made))
    if seen:
        return last
    return Answer(Kind.EQUAL, "field", error=error)


def _compared(domain: Field, pairs: Sequence[Pair]) -> Answer | None:
    """None when all pairs are equal at this point."""
    if not pairs:
        return Answer(Kind.UNKNOWN, "field", reason="nothing to compare")
    unequal, lost = [], []
    for name, ours, full in pairs:
        if ours.shape != full.shape or ours.domain is not domain or full.domain is not domain:
            raise ValueError(f"{name}: shapes {ours.shape} and {full.shape}, or another domain")
        a, b = ours.parts[0], full.parts[0]
        if (a >= modular.P).any() or (b >= modular.P).any():
            lost.append(name)
        elif (a != b).any():
            unequal.append(name)
        for side in (ours, full):
            if side.size and not side.truth:
                domain.count.observed = max(domain.count.observed, float(side.parts[1].max()))
    if lost:
        return Answer(Kind.UNKNOWN, "field", lost, "a value that is no number, or a division by 0 at the random point")
    return Answer(Kind.DIFFERENT, "field", unequal, "the terms differ") if unequal else None


def _field_ratios(pairs: Sequence[Pair]) -> dict[str, Fraction]:
    """Like `_ratios`, by rational reconstruction, for small numerators and denominators."""
    found: dict[str, Fraction] = {}
    for name, ours, full in pairs:
        a, b = ours.parts[0].ravel(), full.parts[0].ravel()
        some = (a != 0) | (b != 0)
        if (b[some] == 0).any() or not some.any():
            continue
        factors = np.unique(modular.mul(a[some], modular.inverse(b[some])))
        ratio = modular.rational(int(factors[0])) if factors.size == 1 else None
        if ratio is not None:
            found[name] = ratio
    return found


def up_to_constants(make: Make, *, domain: str = "real", seconds: float = 10.0, seed: int = 0) -> Answer:
    """Whether the runs are equal once float constants are read as the rationals that they may stand for (`Snap`).

    CONSTANTS lists every constant that was read otherwise than written, by at most `bound` relative each: it says
    exactly that the runs agree with these in the constants' place. `domain`: real or field. DIFFERENT and UNKNOWN as in
    `equal_real` and `equal_field`.
    """
    snap = Snap()
    if domain == "real":
        answer = equal_real(*make(Reals(snap=snap)), seconds)
    else:
        answer = equal_field(make, seed=seed, snap=snap)
    if answer.kind is not Kind.EQUAL or not snap.changed:
        return answer
    return replace(answer, kind=Kind.CONSTANTS, constants=dict(snap.changed), bound=snap.bound())


def decide(make: Make, *, domain: str = "real", seconds: float = 10.0, seed: int = 0) -> Answer:
    """The whole question: EQUAL, else CONSTANTS, else what the first attempt found.

    A difference is believed only when reading the constants as rationals does not remove it.
    """
    answer = equal_real(*make(Reals()), seconds) if domain == "real" else equal_field(make, seed=seed)
    if answer.kind is Kind.EQUAL:
        return answer
    second = up_to_constants(make, domain=domain, seconds=seconds, seed=seed)
    return second if second.kind is Kind.CONSTANTS else answer
