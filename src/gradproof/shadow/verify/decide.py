"""Domains as judges: what each says of every quantity in which the two runs must agree.

`field` evaluates both tapes at random points modulo a prime; `real` builds a term for every element and proves the
terms equal, and is left out, with a word, where a tape is larger than `MOST_OPERATIONS`. Quantities that differ are
asked about again with their constants read as the rationals that they stand for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Beyond, Value
from gradproof.shadow.domains.interpreter import NoRow, Reading
from gradproof.shadow.domains.real import Reals, Snap, Special
from gradproof.shadow.result import ALL_INPUTS, PROBABLE, Verification
from gradproof.shadow.tape import Entry, Ref, Tape
from gradproof.shadow.verify.compare import Pairs, Quantity, pairs, wanted
from gradproof.shadow.verify.equality import Answer, Kind, equal_field, equal_real
from gradproof.shadow.verify.obligations import Decision
from gradproof.shadow.verify.recordings import Session

Decider = Callable[[Session, Verification], Decision]
SEEDS = (0, 1, 2)
"""Random points that are tried when a divisor is zero at the one before."""
MOST_OPERATIONS = 150_000
"""Scalar operations of a tape up to which the real domain is tried, unless a user asks for another bound."""
SECONDS = 20.0
MOST_ERROR = 2.0**-20
"""Error probability above which agreeing residues decide nothing."""


@dataclass(slots=True)
class Asked:
    """One interpretation of both runs: the quantities by name, and the conditions on their paths."""

    session: Session
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


def by_field(session: Session, made: Verification) -> Decision:
    """The field domain, at the first of `SEEDS` where every value is a number."""
    asked, decision = Asked(session, made), Decision("field", PROBABLE)

    def ask(snap: Snap | None) -> Answer:
        answer = Answer(Kind.UNKNOWN, "field", reason="not asked")
        for seed in SEEDS:
            answer = equal_field(asked.make, seed=seed, snap=snap)
            if answer.kind is not Kind.UNKNOWN:
                return answer
        return answer

    return _settled(decision, asked, ask)


def by_real(session: Session, made: Verification) -> Decision:
    """The real domain: a proof for all values of the leaves on the recorded path."""
    asked, decision = Asked(session, made), Decision("real", ALL_INPUTS)
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


def _proved(decision: Decision, asked: Asked) -> Decision:
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
        if answer.kind is Kind.EQUAL:
            decision.equal.append(quantity)
            decision.error_bound = "normal form and z3"
        elif answer.kind is Kind.DIFFERENT:
            settled.add(quantity.group)
            decision.apart.append(quantity)
            assignment = answer.assignment or {}
            decision.examples[str(quantity)] = dict(list(assignment.items())[:40])
        else:
            decision.unknown.append((quantity, Outcome.UNKNOWN, answer.reason))


def _settled(decision: Decision, asked: Asked, ask: Callable[[Snap | None], Answer]) -> Decision:
    """Ask, and ask again about what differs with the constants snapped."""
    try:
        first = ask(None)
        quantities, decision.missing = dict(asked.quantities), list(asked.missing)
        snap = Snap()
        second = first if first.kind is Kind.EQUAL else ask(snap)
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
        elif second.kind is Kind.UNKNOWN or first.kind is Kind.UNKNOWN:
            why = first.reason if first.kind is Kind.UNKNOWN else second.reason
            decision.unknown.append((quantities[name], Outcome.UNKNOWN, why))
        else:
            decision.apart.append(quantities[name])
            if first.assignment is not None:
                decision.examples.setdefault(str(quantities[name]), dict(list(first.assignment.items())[:40]))
    return decision


def _names(answer: Answer, quantities: Mapping[str, Quantity]) -> list[str]:
    """The pairs that an answer leaves open; an answer that names none but is no equality leaves all open."""
    if answer.kind is Kind.EQUAL:
        return []
    return [name for name in quantities if name in answer.names] or list(quantities)


def words_of(snap: Snap) -> str:
    """The constants that were read as rationals, and by how much they are off."""
    typed = [(x, r) for x, r in snap.changed.items() if x > 0 and r.numerator == 1] or list(snap.changed.items())
    shown = ", ".join(f"{x:.17g} for {r}" for x, r in sorted(typed)[:3])
    return f"constants are near the rationals that they stand for ({shown}), off by at most {float(snap.bound()):.2g}"


def operations(entry: Entry) -> int:
    """Scalar operations of an operator, roughly: the elements that it touches, products summed over included."""
    outs = sum(ref.count for ref in entry.writes)
    name = entry.op.split(".")[1]
    if any(word in name for word in ("mm", "mv", "linear", "conv", "attention")):
        tensors = [ref for ref in _refs(entry.args) if ref.shape]
        return outs * max((ref.shape[-1] for ref in tensors), default=1)
    return outs + sum(ref.count for ref in _refs(entry.args))


def _refs(args: Iterable[Any]) -> Iterable[Ref]:
    for a in args:
        if isinstance(a, Ref):
            yield a
        elif isinstance(a, list | tuple):
            yield from _refs(a)


def size_of(tape: Tape) -> int:
    """Scalar operations of a tape."""
    return sum(map(operations, tape.entries()))


DOMAINS: Mapping[str, Decider] = {"real": by_real, "field": by_field}
