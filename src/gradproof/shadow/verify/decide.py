"""Domains as judges: what each says of every quantity in which the two runs must agree.

`field` evaluates both tapes at random points modulo a prime; `real` builds a term for every element and proves the
terms equal, and is left out, with a word, where a tape is larger than `MOST_OPERATIONS`. Quantities that differ are
asked about again with their constants read as the rationals that they stand for.

Whether two runs computed the same values: a proof over the reals, a test in the field, equality up to constants.
`equal_real` proves: equal normal forms, or Z3 on what is left. It refutes only by evaluating both sides in floats with
a running error bound, with the true functions, at a point at which the path conditions hold; a solver's model is never
taken for a refutation, since its functions are not the real ones. `equal_field` tests an identity at random points
with a stated probability of error. `up_to_constants` reads the float constants of both runs as the rationals that they
may stand for, and asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Beyond, Domain, Snap, Value
from gradproof.shadow.domains import modular
from gradproof.shadow.domains.interpreter import NoRow, Reading
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Compiler, Doubtful, Near, Program, near
from gradproof.shadow.domains.real import Reals, Special
from gradproof.shadow.domains.terms import Poly
from gradproof.shadow.result import ALL_INPUTS, PROBABLE, Verification
from gradproof.shadow.verify.compare import Decision, Pairs, Quantity, pairs, size_of, wanted
from gradproof.shadow.verify.recordings import StepRecordings

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


class DecisionKind(StrEnum):
    """What was found. Only EQUAL is a proof; CONSTANTS is one with the constants read as `Answer.constants` says."""

    EQUAL = "equal"
    CONSTANTS = "equal up to constants"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Equality:
    """What was found, how, and about which of the pairs.

    `how`: normal form, z3, floats, field. `names`: the pairs that differ, or of which nothing is known. `assignment`:
    values of the leaves (`kind/name[i]`) at which they differ, `sides` what both are there. `error`: probability that
    EQUAL is wrong. `constants`: floats and the rationals that they were read as, `bound` the greatest relative distance
    between the two. `ratios`: ours / full by pair, where it is one rational for all elements.
    """

    kind: DecisionKind
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


def equal_real(pairs: Sequence[Pair], conditions: Sequence[Value] = (), seconds: float = 10.0) -> Equality:
    """Prove that each pair (name, ours, full) is equal elementwise wherever the conditions hold and no divisor is 0.

    Every Value must come of one `Reals`. EQUAL is for all real leaves; DIFFERENT has an assignment; all else is UNKNOWN
    with a reason, infinities and NAN among the values included. Raises ValueError for pairs of different shape or pool.
    """
    if not pairs:
        return Equality(DecisionKind.UNKNOWN, "", reason="nothing to compare")
    elements = list(_elements(pairs))
    special = [e.name for e in elements if isinstance(e.ours, Special) or isinstance(e.full, Special)]
    if special:
        return Equality(DecisionKind.UNKNOWN, "", _distinct(special), "a value that is no real number")
    rest = list({(e.ours, e.full): e for e in elements if e.ours is not e.full}.values())
    if not rest:
        return Equality(DecisionKind.EQUAL, "normal form")
    domain = pairs[0][1].domain
    assert isinstance(domain, Reals)
    taken = [c for condition in conditions for c in condition.parts[0].ravel().tolist()]
    compiled = Compiler(domain.pool).compile([*(e.ours for e in rest), *(e.full for e in rest), *taken])
    differing = [e.name for e in elements if e.ours is not e.full]
    found = _floats(compiled, rest, domain.recorded)
    if found.kind is DecisionKind.DIFFERENT:
        return replace(found, names=_distinct(differing), ratios=_ratios(pairs))
    if found.kind is DecisionKind.UNKNOWN:
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


def _floats(program: Program, rest: Sequence[Open], recorded: Mapping[str, float]) -> Equality:
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
                return Equality(DecisionKind.DIFFERENT, "floats", assignment=point, sides=sides, reason=reason)
    if witnessed:
        return Equality(DecisionKind.EQUAL, "floats")
    return Equality(DecisionKind.UNKNOWN, "floats", reason="no point was found at which the path is taken")


def _solver(program: Program, n: int, seconds: float) -> Equality:
    from gradproof.arith import smt

    if len(program.steps) > MOST_STEPS:
        reason = f"{len(program.steps)} steps of terms, more than the bound of {MOST_STEPS} for the solver"
        return Equality(DecisionKind.UNKNOWN, "z3", reason=reason)
    places = program.outputs
    pairs = list(zip(places[:n], places[n : 2 * n], strict=True))
    reply = smt.prove_equal(program.steps, pairs, places[2 * n :], seconds)
    if reply.answer is smt.SolverAnswer.UNSAT:
        return Equality(DecisionKind.EQUAL, "z3")
    why = (
        "the terms differ, but no point was found at which their values do"
        if reply.answer is smt.SolverAnswer.SAT
        else ""
    )
    return Equality(DecisionKind.UNKNOWN, "z3", reason=why or f"z3: {reply.answer} {reply.reason}".strip())


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


def equal_field(make: Make, *, evaluations: int = 4, seed: int = 0, snap: Snap | None = None) -> Equality:
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
        if found is not None and found.kind is DecisionKind.UNKNOWN:
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
            return Equality(
                DecisionKind.UNKNOWN, "field", reason="hashed arguments coincide at one point and not at another"
            )
        error = min(error, domain.failure_bound(made))
    if seen:
        return last
    return Equality(DecisionKind.EQUAL, "field", error=error)


def _compared(domain: Field, pairs: Sequence[Pair]) -> Equality | None:
    """None when all pairs are equal at this point."""
    if not pairs:
        return Equality(DecisionKind.UNKNOWN, "field", reason="nothing to compare")
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
        return Equality(
            DecisionKind.UNKNOWN, "field", lost, "a value that is no number, or a division by 0 at the random point"
        )
    return Equality(DecisionKind.DIFFERENT, "field", unequal, "the terms differ") if unequal else None


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


def up_to_constants(make: Make, *, domain: str = "real", seconds: float = 10.0, seed: int = 0) -> Equality:
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
    if answer.kind is not DecisionKind.EQUAL or not snap.changed:
        return answer
    return replace(answer, kind=DecisionKind.CONSTANTS, constants=dict(snap.changed), bound=snap.bound())


def decide(make: Make, *, domain: str = "real", seconds: float = 10.0, seed: int = 0) -> Equality:
    """The whole question: EQUAL, else CONSTANTS, else what the first attempt found.

    A difference is believed only when reading the constants as rationals does not remove it.
    """
    answer = equal_real(*make(Reals()), seconds) if domain == "real" else equal_field(make, seed=seed)
    if answer.kind is DecisionKind.EQUAL:
        return answer
    second = up_to_constants(make, domain=domain, seconds=seconds, seed=seed)
    return second if second.kind is DecisionKind.CONSTANTS else answer


Decider = Callable[[StepRecordings, Verification], Decision]
SEEDS = (0, 1, 2)
"""Random points that are tried when a divisor is zero at the one before."""
SECONDS = 20.0
MOST_ERROR = 2.0**-20
"""Error probability above which agreeing residues decide nothing."""


@dataclass(slots=True)
class DomainQuestion:
    """One interpretation of both runs: the quantities by name, and the conditions on their paths."""

    session: StepRecordings
    made: Verification
    quantities: dict[str, Quantity] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def make(self, domain: Any) -> tuple[list[tuple[str, Value, Value]], list[Value]]:
        """What `prove` asks for. Raises NoRow and Beyond."""
        found, conditions = self._both(domain)
        self.quantities = {f"{q} at {q.event}": q for q in found.quantities}
        self.missing = found.missing
        return [(name, q.ours, q.full) for name, q in self.quantities.items()], conditions

    def _both(self, domain: Any) -> tuple[Pairs, list[Value]]:
        ours, full = (self.session.read(domain, r, wanted) for r in (self.session.ours, self.session.full))
        found, conditions = Pairs(), []
        for reading in (*ours, *full):
            described(self.made, reading)
            conditions += [condition for condition, _, _ in reading.path.conditions]
        for rank, (a, b) in enumerate(zip(ours, full, strict=True)):
            one = pairs(a, b)
            found.quantities += [replace(q, rank=rank) for q in one.quantities]
            found.missing += one.missing
        first = {(q.window, q.name, q.event): q for q in found.quantities if q.group == "weights" and not q.rank}
        for q in [q for q in found.quantities if q.group == "weights" and q.rank]:
            other = first.get((q.window, q.name, q.event))
            if other is None:
                found.missing.append(f"rank {q.rank} stepped {q.name} in window {q.window + 1}, rank 0 did not")
            else:
                found.quantities.append(replace(q, group="sync", ours=q.ours, full=other.ours))
        return found, conditions


def described(made: Verification, reading: Reading) -> None:
    """Put what an interpretation took for granted into the verification."""
    for text, count in reading.path.assumptions.items():
        _once(made.assumptions, f"{text} ({count} times)" if count > 1 else text)
    for _, text, entry in reading.path.conditions:
        _once(made.paths, f"{text}, at {entry.place}" if entry is not None else text)
    for name in reading.path.havocked:
        _once(made.havocked, name)


def _once(texts: list[str], text: str) -> None:
    if text not in texts:
        texts.append(text)


def by_field(session: StepRecordings, made: Verification) -> Decision:
    """The field domain, at the first of `SEEDS` where every value is a number."""
    asked, decision = DomainQuestion(session, made), Decision("field", PROBABLE)

    def ask(snap: Snap | None) -> Equality:
        answer = Equality(DecisionKind.UNKNOWN, "field", reason="not asked")
        for seed in SEEDS:
            answer = equal_field(asked.make, seed=seed, snap=snap)
            if answer.kind is not DecisionKind.UNKNOWN:
                return answer
        return answer

    return _settled(decision, asked, ask)


def by_real(session: StepRecordings, made: Verification) -> Decision:
    """The real domain: a proof for all values of the leaves on the recorded path."""
    asked, decision = DomainQuestion(session, made), Decision("real", ALL_INPUTS)
    size = max(size_of(r.tape) for r in (*session.ours, *session.full))
    if size > session.operations:
        words = f"{size} scalar operations, more than the bound of {session.operations} for terms (--operations)"
        decision.unknown.append((None, Outcome.BOUND_HIT, words))
        return decision

    try:
        return _proved(decision, asked)
    except NoRow as error:
        decision.unknown.append((None, Outcome.OPAQUE, str(error)))
    except Beyond as error:
        decision.unknown.append((None, Outcome.UNKNOWN, f"beyond the real domain: {error}"))
    return decision


def _proved(decision: Decision, asked: DomainQuestion) -> Decision:
    """Equal normal forms first, then equal ones with constants snapped, then the solver and floats on what is left."""
    given, conditions = asked.make(Reals())
    quantities, decision.missing = dict(asked.quantities), list(asked.missing)
    rest = [pair for pair in given if not same_terms(pair)]
    decision.equal = [q for name, q in quantities.items() if name not in {pair[0] for pair in rest}]
    decision.error_bound = "normal form"
    if rest:
        snap = Snap()
        again, _ = asked.make(Reals(snap=snap))
        snapped = {pair[0] for pair in again if same_terms(pair)} if snap.changed else set()
        decision.constants = [(quantities[pair[0]], words_of(snap)) for pair in rest if pair[0] in snapped]
        rest = [pair for pair in rest if pair[0] not in snapped]
    _asked_one_by_one(decision, quantities, sorted(rest, key=_order(quantities)), conditions)
    return decision


def same_terms(pair: tuple[str, Value, Value]) -> bool:
    """Whether two values have the same normal form in every element, and each is a real number."""
    a, b = (v.parts[0].ravel().tolist() for v in pair[1:])
    return len(a) == len(b) and all(x is y and not isinstance(x, Special) for x, y in zip(a, b, strict=True))


def _order(quantities: Mapping[str, Quantity]) -> Callable[[tuple[str, Value, Value]], tuple[int, int]]:
    rank = {"grad": 0, "loss": 0, "sync": 1, "weights": 2, "state": 3, "average": 3}
    return lambda pair: (quantities[pair[0]].window, rank[quantities[pair[0]].group])


def _asked_one_by_one(
    decision: Decision,
    quantities: Mapping[str, Quantity],
    rest: Sequence[tuple[str, Value, Value]],
    conditions: Sequence[Value],
) -> None:
    """Prove or refute what no normal form decided, up to a limit of time; one difference of a group is enough."""
    ends = time.monotonic() + SECONDS
    settled: set[str] = set()
    for pair in rest:
        quantity = quantities[pair[0]]
        if quantity.group in settled or time.monotonic() > ends:
            decision.unknown.append((quantity, Outcome.UNKNOWN, "not asked: another difference was found first"))
            continue
        answer = equal_real([pair], conditions, SECONDS / 4)
        if answer.kind is DecisionKind.EQUAL:
            decision.equal.append(quantity)
            decision.error_bound = "normal form and z3"
        elif answer.kind is DecisionKind.DIFFERENT:
            settled.add(quantity.group)
            decision.apart.append(quantity)
            assignment = answer.assignment or {}
            decision.examples[str(quantity)] = dict(list(assignment.items())[:40])
        else:
            decision.unknown.append((quantity, Outcome.UNKNOWN, answer.reason))


def _settled(decision: Decision, asked: DomainQuestion, ask: Callable[[Snap | None], Equality]) -> Decision:
    """Ask, and ask again about what differs with the constants snapped."""
    try:
        first = ask(None)
        quantities, decision.missing = dict(asked.quantities), list(asked.missing)
        snap = Snap()
        second = first if first.kind is DecisionKind.EQUAL else ask(snap)
    except NoRow as error:
        decision.unknown.append((None, Outcome.OPAQUE, str(error)))
        return decision
    except Beyond as error:
        decision.unknown.append((None, Outcome.UNKNOWN, f"beyond the field domain: {error}"))
        return decision
    decision.error_bound = f"error probability at most {first.error:.2g}" if decision.domain == "field" else first.how
    open_now = _names(first, quantities)
    still = _names(second, quantities)
    if decision.domain == "field" and max(first.error, second.error) > MOST_ERROR:
        words = f"the error probability of the residues is only bounded by {max(first.error, second.error):.2g}"
        same = [q for name, q in quantities.items() if name not in still]
        decision.unknown += [(q, Outcome.UNKNOWN, f"{words}; at most {MOST_ERROR:.2g} is needed") for q in same]
        open_now = still
        quantities = {name: q for name, q in quantities.items() if name in still}
    decision.equal = [q for name, q in quantities.items() if name not in open_now]
    for name in open_now:
        if name not in still and snap.changed:
            decision.constants.append((quantities[name], words_of(snap)))
        elif second.kind is DecisionKind.UNKNOWN or first.kind is DecisionKind.UNKNOWN:
            why = first.reason if first.kind is DecisionKind.UNKNOWN else second.reason
            decision.unknown.append((quantities[name], Outcome.UNKNOWN, why))
        else:
            decision.apart.append(quantities[name])
            if first.assignment is not None:
                decision.examples.setdefault(str(quantities[name]), dict(list(first.assignment.items())[:40]))
    return decision


def _names(answer: Equality, quantities: Mapping[str, Quantity]) -> list[str]:
    """The pairs that an answer leaves open; an answer that names none but is no equality leaves all open."""
    if answer.kind is DecisionKind.EQUAL:
        return []
    return [name for name in quantities if name in answer.names] or list(quantities)


def words_of(snap: Snap) -> str:
    """The constants that were read as rationals, and by how much they are off."""
    typed = [(x, r) for x, r in snap.changed.items() if x > 0 and r.numerator == 1] or list(snap.changed.items())
    shown = ", ".join(f"{x:.17g} for {r}" for x, r in sorted(typed)[:3])
    return f"constants are near the rationals that they stand for ({shown}), off by at most {float(snap.bound()):.2g}"


DOMAINS: Mapping[str, Decider] = {"real": by_real, "field": by_field}
