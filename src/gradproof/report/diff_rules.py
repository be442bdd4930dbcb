"""Which order each field of a contract, of pyproject.toml and of a report has, and the walk of two trees by it.

A field without a row is undecided when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from gradproof.contract.schema import KEYS
from gradproof.core.check import canonical
from gradproof.core.outcome import Effect, Expect, Reach
from gradproof.core.schemas.base import DocumentModel


class Direction(StrEnum):
    """What a change does to what is claimed, or to what was shown."""

    WEAKENED = "weakened"
    UNDECIDED = "undecided"
    STRENGTHENED = "strengthened"
    NEUTRAL = "neutral"


Kind = Literal["claim", "evidence"]


class ChangeShape(DocumentModel):
    """One difference. `of`: of what is claimed, or of what the evidence shows. Null stands for nothing."""

    kind: str
    place: str
    direction: Direction
    word: str
    old: str | None
    new: str | None
    of: Kind


# -- How two values of one field compare. An order gives differences: a direction, one word for it, and both sides.
ABSENT = object()
W, S, N, U = Direction.WEAKENED, Direction.STRENGTHENED, Direction.NEUTRAL, Direction.UNDECIDED
Way = tuple[Direction, str]
Found = tuple[Direction, str, Any, Any]
Order = Callable[[Any, Any], Iterable[Found]]


def always(way: Direction, word: str) -> Order:
    """Every change is of one direction."""
    return lambda old, new: [(way, word, old, new)]


def presence(dropped: Direction, new: Direction) -> Order:
    """By whether something is there."""
    return lambda a, b: [(dropped, "dropped", a, b) if b is ABSENT else (new, "new", a, b)]


def each(dropped: Direction, added: Direction) -> Order:
    """By the elements of a list."""

    def order(old: Any, new: Any) -> Iterator[Found]:
        before, after = _elements(old), _elements(new)
        yield from ((dropped, "dropped", x, ABSENT) for x in before if x not in after)
        yield from ((added, "added", ABSENT, x) for x in after if x not in before)
        if sorted(before) == sorted(after):
            yield N, "reordered", old, new

    return order


def _elements(value: Any) -> list[str]:
    rows = [] if value is ABSENT else value if isinstance(value, list) else [value]
    return list(dict.fromkeys(map(_text, rows)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def ordered(key: Callable[[Any], Any], less: Way, more: Way, same: Way = (N, "rewritten")) -> Order:
    """By a key of each value. Where there is none the change is undecided."""

    def order(old: Any, new: Any) -> Iterator[Found]:
        try:
            before, after = key(old), key(new)
            way = less if after < before else more if after > before else same
        except (ValueError, ZeroDivisionError, TypeError):
            way = (U, "changed")
        yield *way, old, new

    return order


def ranked(*names: Any, worse: str = "lowered", better: str = "raised") -> Order:
    """By place in `names`, the weakest first. What is absent stands below them."""
    return ordered([ABSENT, *names].index, (W, worse), (S, better), (S, better))


def asked(old: Any, new: Any) -> Iterable[Found]:
    """A least number that is asked for; none is 0."""
    return larger(*(0 if x is ABSENT else x for x in (old, new)))


def status(old: Any, new: Any) -> Iterable[Found]:
    """`OUTCOME, EFFECT`: by the effect; another outcome of the same effect is neither."""
    before, after = (x.rpartition(", ")[2] for x in (old, new))
    return [(N, "changed", old, new)] if before == after else by_effect(before, after)


def where(test: Callable[[Any], bool], one: Order, other: Order) -> Order:
    """By `one` where a side passes the test, else by the other."""
    return lambda old, new: (one if test(old) or test(new) else other)(old, new)


words, undecided = always(N, "reworded"), always(U, "changed")
present, excuse, unclear = PRESENCE = presence(W, S), presence(S, W), presence(U, U)
more, fewer = each(W, S), each(S, W)
larger = ordered(lambda x: Fraction(str(x)), (W, "smaller"), (S, "larger"))
tighter = ordered(lambda x: Fraction(str(x)), (S, "tighter"), (W, "looser"))
smaller = where(lambda x: x is ABSENT, present, tighter)  # none is no promise
data = where(lambda x: x is not ABSENT and not isinstance(x, list), undecided, more)
later = ordered(str.__str__, (S, "sooner"), (W, "later"))  # a last day, ISO 8601
by_reach = ranked(*map(str, reversed(Reach)))
by_expect = ranked(str(Expect.REFUTED), str(Expect.HOLDS), worse="flipped", better="flipped")
by_effect = ranked("BROKEN", "OPEN", "DISCHARGED", worse="worse", better="better")
yes = ranked(False, True, worse="lost", better="gained")

# -- The rows: an order, what a change is called (without a word: as its field), and places. The first row that matches
# counts. Steps: `*` is any name, `a|b` one of two, `**` all that is below. A row of PRESENCE says what it means that an
# item is there or not; where it is on both sides, its fields are compared.
Row = tuple[Order, str, str]
CHECKS = ("stubs", "kani_harnesses", "step_proofs", "falsification_tests")
CHECK = f"{'|'.join(CHECKS)}|checks.*"
OBLIGATION = "proof_obligations|obligations.*"
TOLERANCE = f"{OBLIGATION}.tolerance.*"

CLAIMS: tuple[Row, ...] = (
    (present, "check", CHECK),
    (more, "obligation of a check", f"{CHECK}.obligations"),
    (by_expect, "expect", f"{CHECK}.expect"),
    (unclear, "named bound", f"{CHECK}.bounds.*"),
    (larger, "bound", f"{CHECK}.bound {CHECK}.bounds.*.value"),
    (more, "mutant", f"{CHECK}.mutants"),
    (present, "mutant", "mutants.*"),
    (fewer, "stub", f"{CHECK}.stubs"),
    (fewer, "assumption", f"{CHECK}.assumptions {OBLIGATION}.assumptions equations.*.assumptions|preconditions"),
    (data, "parameter", f"{CHECK}.params.**"),
    (more, "format", f"{CHECK}.formats"),
    (more, "lemma", f"{CHECK}.lemmas"),
    (yes, "required", f"{CHECK}.required"),
    (undecided, "", f"{CHECK}.subject|strategy|solver|stub"),
    (words, "words", f"{CHECK}.harness|time_limit|note|property|rule|prediction|test|if_fails|title"),
    (present, "obligation", OBLIGATION),
    (present, "tolerance", TOLERANCE),
    (smaller, "tolerance", f"{TOLERANCE}.value"),
    (ranked("reported", "required"), "tolerance", f"{TOLERANCE}.role"),
    (undecided, "tolerance", f"{TOLERANCE}.dtype|metric|domain"),
    (more, "layer", f"{OBLIGATION}.layers.* qa_gate.least.*.layers require.*.layers"),
    (yes, "layer", f"{OBLIGATION}.cells.*.required"),
    (undecided, "subject", f"subjects.** {OBLIGATION}.subjects.** {OBLIGATION}.cells.*.subject"),
    (undecided, "", f"{OBLIGATION}.type|formal|applies_to|lean|requires|applies_to_phase|parent_contract"),
    (more, "dependency", "metadata.depends_on depends_on"),
    (more, "free input", "inputs.of"),
    (excuse, "fixed input", "inputs.fixed.*"),
    (undecided, "fixed input", "inputs.fixed.*.value"),
    (present, "equation", "equations.*"),
    (more, "invariant", "equations.*.invariants"),
    (more, "postcondition", "equations.*.postconditions"),
    (undecided, "equation", "equations.*.formula|domain|codomain|assumes|guarantees"),
    (present, "phase", "kernel_structure.phases.*"),
    (undecided, "phase", "kernel_structure.phases.*.invariant"),
    (present, "enforcement", "enforcement.*"),
    (words, "words", "enforcement.*.description|reference"),
    (undecided, "enforcement", "enforcement.*.**"),
    (undecided, "dispatch", "simd_dispatch.**"),
    (present, "gate", "qa_gate|gate"),
    (undecided, "gate", "qa_gate|gate.id"),
    (present, "criterion", "gate.criteria.*"),
    (more, "criterion", "qa_gate.checks qa_gate.criteria.* gate.criteria.*.obligations"),
    (more, "seeded bug", "qa_gate.seeded_bug"),
    (more, "required justification", "qa_gate.require.*"),
    (by_reach, "required reach", "qa_gate.least.*.reach.* require.*.reach.*"),
    (asked, "required bound", "qa_gate.least.*.bounds.* require.*.bounds.*"),
    (smaller, "age of evidence", "qa_gate.gpu_max_age_days gpu-max-age-days"),
    (excuse, "waiver", "qa_gate.waivers.* waivers.*"),
    (later, "waiver", "qa_gate.waivers.*.expires waivers.*.expires"),
    (undecided, "waiver", "qa_gate.waivers.*.obligation|layer waivers.*.obligation|layer"),
    (words, "words", "qa_gate.waivers.*.owner|reason waivers.*.owner|reason"),
    (words, "words", f"{CHECK}.bounds.*.reason {TOLERANCE}.reason inputs.fixed.*.reason {OBLIGATION}.property"),
    (words, "words", "metadata.version|created|author|description|references kernel_structure.phases.*.description"),
    (words, "words", "qa_gate|gate.name|description|pass_criteria|falsification"),
    (words, "words", "verification_summary.** text jobs|time-limit"),
    (ranked("ci", "release"), "profile", "profile"),
    (present, "baseline", "baseline"),
)
EVIDENCE: tuple[Row, ...] = (
    (undecided, "", f"{CHECK}.kind|layer|domain"),
    (status, "outcome", f"{CHECK}.status"),
    (by_effect, "outcome", f"{OBLIGATION}.effect {OBLIGATION}.cells.*.effect"),
    (yes, "outcome", "gate.criteria.*.met gate.turned_red"),
    (by_reach, "reach", f"{CHECK}.shown {OBLIGATION}.cells.*.reach"),
    (fewer, "assumption", f"{CHECK}.taken"),
    (present, "cover", f"{CHECK}.covers.*"),
    (yes, "cover", f"{CHECK}.covers.*.reached"),
    (more, "kill", f"{CHECK}.killed"),
    (yes, "kill", "mutants.*.killed"),
    (ranked("partial", "complete"), "run", "run_state"),
    (ranked("absent", "rejected", "stale", "fresh"), "document", "rounding"),
)


class Rule(NamedTuple):
    """A row at one place. `steps`: for each step, the names that match."""

    steps: tuple[tuple[str, ...], ...]
    order: Order
    kind: str
    of: Kind = "claim"

    def matches(self, path: tuple[str, ...]) -> bool:
        """Whether it is the row of this place."""
        long = len(path) == len(self.steps) or (len(path) > len(self.steps) and self.steps[-1] == ("**",))
        return long and all(names[0] in ("*", "**") or x in names for names, x in zip(self.steps, path, strict=False))


def _rules(rows: tuple[Row, ...], of: Kind) -> Iterator[Rule]:
    for order, kind, places in rows:
        for place in places.split():
            yield Rule(tuple(tuple(step.split("|")) for step in place.split(".")), order, kind, of)


RULES = (*_rules(CLAIMS, "claim"), *_rules(EVIDENCE, "evidence"))
SETTINGS = tuple(rule for rule in RULES if set(rule.steps[0]) <= set(KEYS))
OTHER = Rule((("**",),), undecided, "other")


def rule_of(rules: tuple[Rule, ...], path: tuple[str, ...]) -> Rule:
    """The first row of a table for a path."""
    return next((rule for rule in rules if rule.matches(path)), OTHER)


# What evidence says counts where it is discharged on both sides; elsewhere the effect says enough.
COUNTED = ("shown", "taken", "covers", "killed", "domain", "reach")
JUDGED = (("checks",), ("obligations", "cells"))


def compare(old: Any, new: Any, rules: tuple[Rule, ...] = RULES, path: tuple[str, ...] = ()) -> Iterator[ChangeShape]:
    """Every difference of two trees of plain data, in the order of the old one."""
    if old is new or (type(old) is type(new) and old == new):
        return
    rule = rule_of(rules, path)
    there = [x for x in (old, new) if x is not ABSENT]
    order, item = rule.order, rule.order in PRESENCE
    if item and len(there) == 1:
        old, new = (x if x is ABSENT else "it" for x in (old, new))
    elif (item or rule.steps[-1] == ("**",)) and all(isinstance(x, Mapping) for x in there):
        judged = len(there) == 2 and len(path) % 2 == 0 and path[::2] in JUDGED
        passed = COUNTED if judged and not all(map(_discharged, there)) else ()
        for key in dict.fromkeys(key for x in there for key in x if key not in passed):
            was, now = (x if x is ABSENT else x.get(key, ABSENT) for x in (old, new))
            yield from compare(was, now, rules, (*path, str(key)))
        return
    elif item:
        order = undecided
    yield from changes(rule.kind or path[-1], ".".join(path), order(old, new), rule.of)


def _discharged(row: Mapping[str, Any]) -> bool:
    return (row.get("effect") or str(row.get("status")).rpartition(", ")[2]) == Effect.DISCHARGED


def changes(kind: str, place: str, found: Iterable[Found], of: Kind = "claim") -> Iterator[ChangeShape]:
    """Differences at a place, both sides as text."""
    for way, word, *sides in found:
        old, new = (None if x is ABSENT else _text(x) for x in sides)
        yield ChangeShape(kind=kind, place=place, direction=way, word=word, old=old, new=new, of=of)
