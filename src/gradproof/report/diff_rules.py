"""Which order each field of a contract and of a report has. A field without a row is undecided when it changes.

A pattern is a path with `*` for one name and `**` for all that is below. The first row that matches counts. A row of
PRESENCE says what it means that an item is there or not; where it is on both sides, its fields are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal

from gradproof.core.check import canonical
from gradproof.core.outcome import Effect, Expect, Reach
from gradproof.core.schemas.base import DocumentModel


# -- How two values of one field compare: stronger, weaker, words alone, or nothing that an order decides.
class Direction(StrEnum):
    """What a change does to what is claimed, or to what was shown."""

    WEAKENED = "weakened"
    UNDECIDED = "undecided"
    STRENGTHENED = "strengthened"
    NEUTRAL = "neutral"


ABSENT = object()
W, S, N, U = Direction.WEAKENED, Direction.STRENGTHENED, Direction.NEUTRAL, Direction.UNDECIDED
EFFECTS = (Effect.BROKEN, Effect.OPEN, Effect.DISCHARGED)


@dataclass(frozen=True)
class FieldChange:
    """One difference: its direction, one word for it, and both sides."""

    direction: Direction
    word: str
    old: Any
    new: Any


Order = Callable[[Any, Any], Iterable[FieldChange]]


def words(old: Any, new: Any) -> Iterator[FieldChange]:
    """Text for readers: nothing is judged by it."""
    yield FieldChange(N, "reworded", old, new)


def undecided(old: Any, new: Any) -> Iterator[FieldChange]:
    """A change of meaning that no order decides."""
    yield FieldChange(U, "changed", old, new)


def present(old: Any, new: Any) -> Iterator[FieldChange]:
    """Something that is better there than not."""
    yield FieldChange(W, "dropped", old, new) if new is ABSENT else FieldChange(S, "new", old, new)


def excuse(old: Any, new: Any) -> Iterator[FieldChange]:
    """Something that is better not there."""
    yield FieldChange(S, "dropped", old, new) if new is ABSENT else FieldChange(W, "new", old, new)


def unclear(old: Any, new: Any) -> Iterator[FieldChange]:
    """Something of which it is not known whether it is better there: a named limit may limit more, or show more."""
    yield FieldChange(U, "dropped" if new is ABSENT else "new", old, new)


def more(old: Any, new: Any) -> Iterator[FieldChange]:
    """A list of which every element asks or shows something."""
    before, after = _elements(old), _elements(new)
    yield from (FieldChange(W, "dropped", x, ABSENT) for x in before if x not in after)
    yield from (FieldChange(S, "added", ABSENT, x) for x in after if x not in before)
    if sorted(before) == sorted(after):
        yield FieldChange(N, "reordered", old, new)


def fewer(old: Any, new: Any) -> Iterator[FieldChange]:
    """A list of which every element takes something for granted."""
    turned = {W: S, S: W, N: N}
    yield from (FieldChange(turned[t.direction], t.word, t.old, t.new) for t in more(old, new))


def _elements(value: Any) -> list[str]:
    rows = [] if value is ABSENT else value if isinstance(value, list) else [value]
    return list(dict.fromkeys(x if isinstance(x, str) else canonical(x) for x in rows))


def larger(old: Any, new: Any) -> Iterator[FieldChange]:
    """A number that promises more the larger it is; one that is not there cannot be compared."""
    yield from _numbers(old, new, "smaller", "larger", 1)


def asked(old: Any, new: Any) -> Iterator[FieldChange]:
    """A least number that is asked for; none is 0."""
    yield from larger(*(0 if x is ABSENT else x for x in (old, new)))


def smaller(old: Any, new: Any) -> Iterator[FieldChange]:
    """A number that promises more the smaller it is, such as a tolerance; none is no promise."""
    if ABSENT in (old, new):
        yield from present(old, new)
    else:
        yield from _numbers(old, new, "looser", "tighter", -1)


def _numbers(old: Any, new: Any, weak: str, strong: str, sign: int) -> Iterator[FieldChange]:
    try:
        step = sign * (Fraction(str(new)) - Fraction(str(old)))
    except (ValueError, ZeroDivisionError):
        yield FieldChange(U, "changed", old, new)
        return
    if step:
        yield FieldChange(W, weak, old, new) if step < 0 else FieldChange(S, strong, old, new)
    else:
        yield FieldChange(N, "rewritten", old, new)


def ranked(*names: Any, worse: str = "lowered", better: str = "raised") -> Order:
    """An order by place in `names`, the weakest first. What is absent stands below them; other values are undecided."""

    def order(old: Any, new: Any) -> Iterator[FieldChange]:
        known = [ABSENT, *names]
        if old not in known or new not in known:
            yield FieldChange(U, "changed", old, new)
        elif known.index(new) < known.index(old):
            yield FieldChange(W, worse, old, new)
        else:
            yield FieldChange(S, better, old, new)

    return order


def later(old: Any, new: Any) -> Iterator[FieldChange]:
    """A last day, ISO 8601, of something that is better over sooner."""
    if not isinstance(old, str) or not isinstance(new, str):
        yield FieldChange(U, "changed", old, new)
    else:
        yield FieldChange(W, "later", old, new) if new > old else FieldChange(S, "sooner", old, new)


def status(old: Any, new: Any) -> Iterator[FieldChange]:
    """`OUTCOME, EFFECT`: by the effect; another outcome of the same effect is neither."""
    before, after = (x.rpartition(", ")[2] for x in (old, new))
    if before == after:
        yield FieldChange(N, "changed", old, new)
    else:
        yield from ranked(*EFFECTS, worse="worse", better="better")(before, after)


def data(old: Any, new: Any) -> Iterator[FieldChange]:
    """Free data: of a list, every element asks something; other values are undecided."""
    lists = [x for x in (old, new) if x is not ABSENT]
    yield from (more if all(isinstance(x, list) for x in lists) else undecided)(old, new)


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


PRESENCE = (present, excuse, unclear)
CHECKS = ("stubs", "kani_harnesses", "step_proofs", "falsification_tests")
by_reach = ranked(*map(str, reversed(Reach)))
by_expect = ranked(str(Expect.REFUTED), str(Expect.HOLDS), worse="flipped", better="flipped")
by_effect = ranked(*map(str, EFFECTS), worse="worse", better="better")
yes = ranked(False, True, worse="lost", better="gained")


@dataclass(frozen=True)
class Rule:
    """What a change of the fields at `pattern` is called, and how it is ordered. `of`: claim or evidence."""

    pattern: str
    kind: str
    order: Order
    of: Kind = "claim"


def _each(at: str, names: str, kind: str, order: Order) -> Iterator[Rule]:
    """A row for each of these fields; without a kind each is called by its name."""
    return (Rule(f"{at}.{name}", kind or name, order) for name in names.split())


def _check(section: str) -> tuple[Rule, ...]:
    at = f"{section}.*"
    return (
        Rule(at, "check", present),
        Rule(f"{at}.obligations", "obligation of a check", more),
        Rule(f"{at}.expect", "expect", by_expect),
        Rule(f"{at}.bounds.*", "named bound", unclear),
        Rule(f"{at}.bounds.*.value", "bound", larger),
        Rule(f"{at}.bounds.*.reason", "words", words),
        Rule(f"{at}.bound", "bound", larger),
        Rule(f"{at}.mutants", "mutant", more),
        Rule(f"{at}.stubs", "stub", fewer),
        Rule(f"{at}.assumptions", "assumption", fewer),
        Rule(f"{at}.params.**", "parameter", data),
        Rule(f"{at}.formats", "format", more),
        Rule(f"{at}.lemmas", "lemma", more),
        *_each(at, "subject strategy solver stub", "", undecided),
        *_each(at, "harness time_limit note property rule prediction test if_fails title", "words", words),
    )


def _waivers(at: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{at}.*", "waiver", excuse),
        Rule(f"{at}.*.expires", "waiver", later),
        *_each(f"{at}.*", "owner reason", "words", words),
        *_each(f"{at}.*", "obligation layer", "waiver", undecided),
    )


def _least(at: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{at}.*.layers", "layer", more),
        Rule(f"{at}.*.reach.*", "required reach", by_reach),
        Rule(f"{at}.*.bounds.*", "required bound", asked),
    )


def _tolerance(at: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{at}.tolerance.*", "tolerance", present),
        Rule(f"{at}.tolerance.*.value", "tolerance", smaller),
        Rule(f"{at}.tolerance.*.role", "tolerance", ranked("reported", "required")),
        Rule(f"{at}.tolerance.*.reason", "words", words),
        *_each(f"{at}.tolerance.*", "dtype metric domain", "tolerance", undecided),
    )


def _obligation(at: str) -> tuple[Rule, ...]:
    return (
        Rule(at, "obligation", present),
        *_tolerance(at),
        Rule(f"{at}.assumptions", "assumption", fewer),
        Rule(f"{at}.layers.*", "layer", more),
        Rule(f"{at}.property", "words", words),
        Rule(f"{at}.subjects.**", "subject", undecided),
        *_each(at, "type formal applies_to lean requires applies_to_phase parent_contract", "", undecided),
    )


CONTRACT: tuple[Rule, ...] = (
    Rule("metadata.depends_on", "dependency", more),
    *_each("metadata", "version created author description references", "words", words),
    Rule("subjects.**", "subject", undecided),
    Rule("inputs.of", "free input", more),
    Rule("inputs.fixed.*", "fixed input", excuse),
    Rule("inputs.fixed.*.value", "fixed input", undecided),
    Rule("inputs.fixed.*.reason", "words", words),
    Rule("equations.*", "equation", present),
    Rule("equations.*.invariants", "invariant", more),
    Rule("equations.*.postconditions", "postcondition", more),
    *_each("equations.*", "assumptions preconditions", "assumption", fewer),
    *_each("equations.*", "formula domain codomain assumes guarantees", "equation", undecided),
    *_obligation("proof_obligations.*"),
    Rule("kernel_structure.phases.*", "phase", present),
    Rule("kernel_structure.phases.*.description", "words", words),
    Rule("kernel_structure.phases.*.invariant", "phase", undecided),
    Rule("enforcement.*", "enforcement", present),
    *_each("enforcement.*", "description reference", "words", words),
    Rule("enforcement.*.**", "enforcement", undecided),
    Rule("simd_dispatch.**", "dispatch", undecided),
    *(rule for section in CHECKS for rule in _check(section)),
    Rule("qa_gate", "gate", present),
    Rule("qa_gate.id", "gate", undecided),
    *_each("qa_gate", "name description pass_criteria falsification", "words", words),
    Rule("qa_gate.checks", "criterion", more),
    Rule("qa_gate.criteria.*", "criterion", more),
    Rule("qa_gate.seeded_bug", "seeded bug", more),
    Rule("qa_gate.require.*", "required justification", more),
    *_least("qa_gate.least"),
    Rule("qa_gate.gpu_max_age_days", "age of evidence", smaller),
    *_waivers("qa_gate.waivers"),
    Rule("verification_summary.**", "words", words),
    Rule("text", "words", words),
)

SETTINGS: tuple[Rule, ...] = (
    *_waivers("waivers"),
    *_least("require"),
    Rule("gpu-max-age-days", "age of evidence", smaller),
    Rule("profile", "profile", ranked("ci", "release")),
    Rule("baseline", "baseline", present),
    *(Rule(name, "words", words) for name in ("jobs", "time-limit")),
)

EVIDENCE: tuple[Rule, ...] = (
    *_check("checks"),
    *(Rule(f"checks.*.{name}", name, undecided, "evidence") for name in ("kind", "layer", "domain")),
    Rule("checks.*.required", "required", yes),
    Rule("checks.*.status", "outcome", status, "evidence"),
    Rule("checks.*.shown", "reach", by_reach, "evidence"),
    Rule("checks.*.taken", "assumption", fewer, "evidence"),
    Rule("checks.*.covers.*", "cover", present, "evidence"),
    Rule("checks.*.covers.*.reached", "cover", yes, "evidence"),
    Rule("checks.*.killed", "kill", more, "evidence"),
    *_obligation("obligations.*"),
    Rule("obligations.*.effect", "outcome", by_effect, "evidence"),
    Rule("obligations.*.cells.*.required", "layer", yes),
    Rule("obligations.*.cells.*.effect", "outcome", by_effect, "evidence"),
    Rule("obligations.*.cells.*.reach", "reach", by_reach, "evidence"),
    Rule("obligations.*.cells.*.subject", "subject", undecided),
    Rule("depends_on", "dependency", more),
    Rule("gate", "gate", present),
    Rule("gate.id", "gate", undecided),
    Rule("gate.criteria.*", "criterion", present),
    Rule("gate.criteria.*.obligations", "criterion", more),
    Rule("gate.criteria.*.met", "outcome", yes, "evidence"),
    Rule("gate.turned_red", "outcome", yes, "evidence"),
    *_each("gate", "name description pass_criteria falsification", "words", words),
    *_waivers("waivers"),
    Rule("mutants.*", "mutant", present),
    Rule("mutants.*.killed", "kill", yes, "evidence"),
    Rule("run_state", "run", ranked("partial", "complete"), "evidence"),
    Rule("rounding", "document", ranked("absent", "rejected", "stale", "fresh"), "evidence"),
    Rule("text", "words", words),
)


def rule_of(rules: tuple[Rule, ...], path: tuple[str, ...]) -> Rule | None:
    """The first row of a table for a path, or None."""
    return next((r for r in rules if _matches(r.pattern.split("."), path)), None)


def _matches(pattern: list[str], path: tuple[str, ...]) -> bool:
    if pattern[-1] == "**":
        pattern = pattern[:-1]
        path = path[: len(pattern)] if len(path) > len(pattern) else ()
    return len(pattern) == len(path) and all(p in ("*", name) for p, name in zip(pattern, path, strict=True))


def compare(old: Any, new: Any, rules: tuple[Rule, ...], path: tuple[str, ...] = ()) -> Iterator[ChangeShape]:
    """Every difference of two trees of plain data, in the order of the old one."""
    if old is new or (type(old) is type(new) and old == new):
        return
    rule = rule_of(rules, path)
    there = [x for x in (old, new) if x is not ABSENT]
    nested = all(isinstance(x, Mapping) for x in there)
    if rule is not None and rule.order in PRESENCE and len(there) == 1:
        yield from _stated(rule, path, ABSENT if old is ABSENT else "it", ABSENT if new is ABSENT else "it")
    elif nested and (rule is None or rule.order in PRESENCE or rule.pattern.endswith("**")):
        before, after = ({} if x is ABSENT else x for x in (old, new))
        for key in dict.fromkeys([*before, *after]):
            yield from compare(before.get(key, ABSENT), after.get(key, ABSENT), rules, (*path, str(key)))
    else:
        rule = rule or Rule(".".join(path), "other", undecided)
        order = undecided if rule.order in PRESENCE else rule.order
        yield from _stated(Rule(rule.pattern, rule.kind, order, rule.of), path, old, new)


def _stated(rule: Rule, path: tuple[str, ...], old: Any, new: Any) -> Iterator[ChangeShape]:
    yield from (changed(rule.kind, ".".join(path), found, rule.of) for found in rule.order(old, new))


def changed(kind: str, place: str, found: FieldChange, of: Kind = "claim") -> ChangeShape:
    """A difference at a place, both sides as text."""
    old, new = _shown(found.old), _shown(found.new)
    return ChangeShape(kind=kind, place=place, direction=found.direction, word=found.word, old=old, new=new, of=of)


def _shown(value: Any) -> str | None:
    if value is ABSENT:
        return None
    return value if isinstance(value, str) else canonical(value)
