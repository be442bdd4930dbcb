"""Which order each field of a contract, of pyproject.toml and of a report has, and the walk of two trees by it.

A field without a row is undecided when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import partial
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
SAME: Way = N, "rewritten"
Found = tuple[Direction, str, Any, Any]
Order = Callable[[Any, Any], Iterable[Found]]


def _always(way: Direction, word: str, old: Any, new: Any) -> Iterator[Found]:
    """Every change is of one direction."""
    yield way, word, old, new


def _each(dropped: Direction, added: Direction, old: Any, new: Any) -> Iterator[Found]:
    """By the elements of a list."""
    rows = ([] if x is ABSENT else x if isinstance(x, list) else [x] for x in (old, new))
    before, after = (dict.fromkeys(map(_text, row)) for row in rows)
    yield from ((dropped, "dropped", x, ABSENT) for x in before if x not in after)
    yield from ((added, "added", ABSENT, x) for x in after if x not in before)
    if before == after:
        yield N, "reordered", old, new


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _by(key: Callable[[Any], Any], ways: Sequence[Way], old: Any, new: Any) -> Iterator[Found]:
    """By a key of each value. `ways`: where the keys are the same, where the new one is more, where it is less.

    Where there is no key the change is undecided.
    """
    try:
        before, after = key(old), key(new)
        yield *ways[(after > before) - (after < before)], old, new
    except (ValueError, ZeroDivisionError, TypeError):
        yield U, "changed", old, new


def _number(value: Any) -> Fraction:
    return Fraction(str(value))


def ranked(*names: Any, worse: str = "lowered", better: str = "raised") -> Order:
    """By place in `names`, the weakest first. What is absent stands below them."""
    return partial(_by, [ABSENT, *names].index, ((S, better), (S, better), (W, worse)))


def asked(old: Any, new: Any) -> Iterable[Found]:
    """A least number that is asked for; none is 0."""
    return larger(*(0 if x is ABSENT else x for x in (old, new)))


def _where(test: Callable[[Any], bool], one: Order, other: Order, old: Any, new: Any) -> Iterable[Found]:
    """By `one` where a side passes the test, else by the other."""
    return (one if test(old) or test(new) else other)(old, new)


def status(old: Any, new: Any) -> Iterable[Found]:
    """`OUTCOME, EFFECT`: by the effect; another outcome of the same effect is neither."""
    before, after = (x.rpartition(", ")[2] for x in (old, new))
    return by_effect(before, after) if before != after else [(N, "changed", old, new)]


words, undecided = partial(_always, N, "reworded"), partial(_always, U, "changed")
more, fewer = partial(_each, W, S), partial(_each, S, W)
present, excuse, unclear = PRESENCE = [
    partial(_by, lambda x: x is not ABSENT, ((U, "changed"), (come, "new"), (gone, "dropped")))
    for gone, come in ((W, S), (S, W), (U, U))
]
larger = partial(_by, _number, (SAME, (S, "larger"), (W, "smaller")))
tighter = partial(_by, _number, (SAME, (W, "looser"), (S, "tighter")))
later = partial(_by, str.__str__, (SAME, (W, "later"), (S, "sooner")))  # a last day, ISO 8601
smaller = partial(_where, lambda x: x is ABSENT, present, tighter)  # none is no promise
data = partial(_where, lambda x: x is not ABSENT and not isinstance(x, list), undecided, more)
by_reach = ranked(*map(str, reversed(Reach)))
by_expect = ranked(str(Expect.REFUTED), str(Expect.HOLDS), worse="flipped", better="flipped")
by_effect = ranked("BROKEN", "OPEN", "DISCHARGED", worse="worse", better="better")
yes = ranked(False, True, worse="lost", better="gained")

# -- The rules: for each order, what a change is called (without a word: as its field), and places; the first that
# matches counts. Steps: `*` is any name, `a|b` one of two, `**` all that is below. An order of PRESENCE says what it
# means that an item is there or not; where it is on both sides, its fields are compared.
CHECKS = ("stubs", "kani_harnesses", "step_proofs", "falsification_tests")
CHECK = f"{'|'.join(CHECKS)}|checks.*"
OBLIGATION = "proof_obligations|obligations.*"
TOLERANCE = f"{OBLIGATION}.tolerance.*"
CLAIMS: dict[Order, str] = {
    present: f"""check: {CHECK}; obligation: {OBLIGATION}; tolerance: {TOLERANCE}; mutant: mutants.*;
        equation: equations.*; phase: kernel_structure.phases.*; enforcement: enforcement.*; gate: qa_gate|gate;
        criterion: gate.criteria.*; baseline: baseline""",
    excuse: "fixed input: inputs.fixed.*; waiver: qa_gate.waivers.* waivers.*",
    unclear: f"named bound: {CHECK}.bounds.*",
    more: f"""obligation of a check: {CHECK}.obligations; mutant: {CHECK}.mutants; format: {CHECK}.formats;
        lemma: {CHECK}.lemmas; layer: {OBLIGATION}.layers.* qa_gate.least.*.layers require.*.layers;
        dependency: metadata.depends_on depends_on; free input: inputs.of; invariant: equations.*.invariants;
        postcondition: equations.*.postconditions; seeded bug: qa_gate.seeded_bug;
        criterion: qa_gate.checks qa_gate.criteria.* gate.criteria.*.obligations;
        required justification: qa_gate.require.*""",
    fewer: f"""stub: {CHECK}.stubs;
        assumption: {CHECK}.assumptions {OBLIGATION}.assumptions equations.*.assumptions|preconditions""",
    data: f"parameter: {CHECK}.params.**",
    larger: f"bound: {CHECK}.bound {CHECK}.bounds.*.value",
    smaller: f"tolerance: {TOLERANCE}.value; age of evidence: qa_gate.gpu_max_age_days gpu-max-age-days",
    asked: "required bound: qa_gate.least.*.bounds.* require.*.bounds.*",
    later: "waiver: qa_gate.waivers.*.expires waivers.*.expires",
    by_reach: "required reach: qa_gate.least.*.reach.* require.*.reach.*",
    by_expect: f"expect: {CHECK}.expect",
    yes: f"required: {CHECK}.required; layer: {OBLIGATION}.cells.*.required",
    ranked("reported", "required"): f"tolerance: {TOLERANCE}.role",
    ranked("ci", "release"): "profile: profile",
    words: f"""words: {CHECK}.harness|time_limit|note|property|rule|prediction|test|if_fails|title
        {CHECK}.bounds.*.reason {OBLIGATION}.property {TOLERANCE}.reason inputs.fixed.*.reason
        metadata.version|created|author|description|references kernel_structure.phases.*.description
        enforcement.*.description|reference qa_gate|gate.name|description|pass_criteria|falsification
        qa_gate.waivers.*.owner|reason waivers.*.owner|reason verification_summary.** text jobs|time-limit""",
    undecided: f""": {CHECK}.subject|strategy|solver|stub
        {OBLIGATION}.type|formal|applies_to|lean|requires|applies_to_phase|parent_contract;
        tolerance: {TOLERANCE}.dtype|metric|domain; gate: qa_gate|gate.id; fixed input: inputs.fixed.*.value;
        subject: subjects.** {OBLIGATION}.subjects.** {OBLIGATION}.cells.*.subject; dispatch: simd_dispatch.**;
        equation: equations.*.formula|domain|codomain|assumes|guarantees; phase: kernel_structure.phases.*.invariant;
        enforcement: enforcement.*.**; waiver: qa_gate.waivers.*.obligation|layer waivers.*.obligation|layer""",
}
EVIDENCE: dict[Order, str] = {
    status: f"outcome: {CHECK}.status",
    by_effect: f"outcome: {OBLIGATION}.effect {OBLIGATION}.cells.*.effect",
    by_reach: f"reach: {CHECK}.shown {OBLIGATION}.cells.*.reach",
    present: f"cover: {CHECK}.covers.*",
    more: f"kill: {CHECK}.killed",
    fewer: f"assumption: {CHECK}.taken",
    yes: f"outcome: gate.criteria.*.met gate.turned_red; cover: {CHECK}.covers.*.reached; kill: mutants.*.killed",
    ranked("partial", "complete"): "run: run_state",
    ranked("absent", "rejected", "stale", "fresh"): "document: rounding",
    undecided: f": {CHECK}.kind|layer|domain",
}


class Rule(NamedTuple):
    """An order at one place. `steps`: for each step, the names that match."""

    steps: tuple[tuple[str, ...], ...]
    order: Order
    kind: str
    of: Kind = "claim"

    def matches(self, path: tuple[str, ...]) -> bool:
        """Whether it is the rule of this place."""
        here = path[: len(self.steps)] if self.steps[-1] == ("**",) else path
        pairs = zip(self.steps, here, strict=False)
        return len(here) == len(self.steps) and all(names[0] in ("*", "**") or x in names for names, x in pairs)


def _rules(rows: Mapping[Order, str], of: Kind) -> Iterator[Rule]:
    for order, text in rows.items():
        for kind, places in (entry.split(":") for entry in text.split(";")):
            for place in places.split():
                yield Rule(tuple(tuple(step.split("|")) for step in place.split(".")), order, kind.strip(), of)


RULES = (*_rules(CLAIMS, "claim"), *_rules(EVIDENCE, "evidence"))
SETTINGS = tuple(rule for rule in RULES if set(rule.steps[0]) <= set(KEYS))
CONTRACT = (Rule((("*",),), present, "contract"),)
OTHER = Rule((("**",),), undecided, "other")


def rule_of(rules: tuple[Rule, ...], path: tuple[str, ...]) -> Rule:
    """The first rule of a table for a path."""
    return next((rule for rule in rules if rule.matches(path)), OTHER)


# What evidence says counts where it is discharged on both sides; elsewhere the effect says enough.
COUNTED = ("shown", "taken", "covers", "killed", "domain", "reach")
JUDGED = (("checks",), ("obligations", "cells"))


def compare(old: Any, new: Any, rules: tuple[Rule, ...] = RULES, path: tuple[str, ...] = ()) -> Iterator[ChangeShape]:
    """Every difference of two trees of plain data, in the order of the old one."""
    if old is new or (type(old) is type(new) and old == new):
        return
    rule, there = rule_of(rules, path), [x for x in (old, new) if x is not ABSENT]
    item = rule.order in PRESENCE
    if item and len(there) == 1:
        old, new = (x if x is ABSENT else "it" for x in (old, new))
    elif (item or rule.steps[-1] == ("**",)) and all(isinstance(x, Mapping) for x in there):
        judged = len(there) == 2 and len(path) % 2 == 0 and path[::2] in JUDGED
        passed = COUNTED if judged and not all(map(_discharged, there)) else ()
        for key in dict.fromkeys(key for x in there for key in x if key not in passed):
            was, now = (x if x is ABSENT else x.get(key, ABSENT) for x in (old, new))
            yield from compare(was, now, rules, (*path, str(key)))
        return
    kind, place = rule.kind or path[-1], ".".join(path)
    for way, word, *sides in rule.order(old, new):
        was, now = (None if x is ABSENT else _text(x) for x in sides)
        yield ChangeShape(kind=kind, place=place, direction=way, word=word, old=was, new=now, of=rule.of)


def _discharged(row: Mapping[str, Any]) -> bool:
    return (row.get("effect") or str(row.get("status")).rpartition(", ")[2]) == Effect.DISCHARGED
