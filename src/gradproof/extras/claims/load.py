"""The ledger and the document that is made of it: `proofs/claims.yaml`, its rules, and the verdict on each claim.

Every mistake has a code and file:line:col, and all are reported at once.

A row is decided by named checks, by figures, or by both; a row that cannot be tested says why and names neither.
Nothing is run; a verdict comes from fresh evidence alone.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof import __version__
from gradproof.contract.model import shaped
from gradproof.contract.yaml_reader import ContractErrors, Node, Problem, read
from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Effect, Expect, Kind, Layer, Outcome
from gradproof.evidence.record import now
from gradproof.extras.claims import FILE, figures
from gradproof.extras.claims.document import (
    CLAIMS,
    ClaimAnswer,
    Claims,
    ClaimVerdict,
    Figure,
    LedgerRow,
    Named,
    NamedBound,
    Part,
    answer,
    concluded,
    exit_of,
    totals,
)
from gradproof.extras.claims.figures import ClaimShape, FigureShape, LedgerShape, Unread, computed, document

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Counterexample, EvidenceFinding
    from gradproof.evidence.record import EvidenceStatus
    from gradproof.session import Session
    from gradproof.verdict.judge import Ruling

ORIGINS = ("document", "evidence", "plan", "compute")
LIMITS = ("equals", "at_least", "at_most", "above", "below")
MATCHES = 3


@dataclass(frozen=True)
class ClaimLedger:
    """The rows as they were written, and the checks that each names, by the part that they play."""

    digest: str
    sources: Mapping[str, str]
    claims: tuple[ClaimShape, ...]
    named: Mapping[str, tuple[tuple[Part, Check], ...]]


def load(root: Path, checks: Sequence[Check]) -> ClaimLedger:
    """The ledger of the workspace at `root`, whose contracts plan `checks`.

    Raises GradproofError GP501 when there is none, and ContractErrors with every mistake.
    """
    path = root / FILE
    if not path.is_file():
        raise GradproofError("GP501", f"no {FILE} in {root}", "a ledger of claims", "write one: docs/claims.md")
    data, tree, problems = read(path, str(path))
    shape = None
    if tree is not None and not isinstance(tree.value, dict):
        problems.append(Problem("GP116", str(path), 1, 1, "no mapping", "format:, sources:, claims:", "add them"))
    elif tree is not None:
        shape, wrong = shaped(tree, LedgerShape, str(path))
        problems += wrong
    if shape is None or tree is None:
        raise ContractErrors(problems or [Problem("GP115", str(path), 1, 1, "nothing", "a ledger", "write one")])
    planned = _Planned(checks)
    problems += _rules(shape, tree, str(path), planned)
    if problems:
        raise ContractErrors(problems)
    named = {
        row.id: tuple((part, c) for part in Part for name in getattr(row, part) or () for c in planned.by_id[name])
        for row in shape.claims
    }
    return ClaimLedger(hashlib.sha256(data).hexdigest(), shape.sources, tuple(shape.claims), named)


class _Planned:
    """Planned checks by id. A test without device and dtype means all of its runs on the CPU."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.by_id: dict[str, tuple[Check, ...]] = {check.id: (check,) for check in checks}
        for check in checks:
            head = check.id.partition("@")[0]
            if check.kind is Kind.TORCH and check.layer is Layer.CPU:
                self.by_id[head] = (*self.by_id.get(head, ()), check)

    def near(self, name: str) -> str:
        found = difflib.get_close_matches(name, self.by_id, MATCHES)
        return f"did you mean {', '.join(found)}?" if found else "gradproof list shows what is planned"


def _rules(shape: LedgerShape, tree: Node, shown: str, planned: _Planned) -> Iterator[Problem]:
    """What rows say about each other, and about the contracts."""
    seen: dict[str, int] = {}
    for i, row in enumerate(shape.claims):
        place = _Place(tree, shown, ("claims", i))
        if row.id in seen:
            yield place.problem("GP129", f"{row.id} again; it is row {seen[row.id] + 1} too", "an id of its own", "id")
        seen.setdefault(row.id, i)
        if row.source not in shape.sources:
            expected = f"one of {', '.join(shape.sources)}"
            yield place.problem("GP504", f"the source {row.source!r}, which is not listed", expected, "source")
        yield from _basis(row, place)
        yield from _parts(row, place, planned)
        for j, figure in enumerate(row.figures or ()):
            yield from _figure(figure, place.below("figures", j), planned)


@dataclass(frozen=True)
class _Place:
    tree: Node
    shown: str
    path: tuple[Any, ...]

    def below(self, *steps: Any) -> _Place:
        return _Place(self.tree, self.shown, (*self.path, *steps))

    def problem(self, code: str, found: str, expected: str, *steps: Any, help: str = "correct the row") -> Problem:
        line, col = self.tree.at((*self.path, *steps))
        return Problem(code, self.shown, line, col, found, expected, help)


def _basis(row: ClaimShape, place: _Place) -> Iterator[Problem]:
    """A row has what decides it, or says why nothing can."""
    decided = any(getattr(row, part) for part in Part) or bool(row.figures)
    if ClaimVerdict(row.expect) is ClaimVerdict.NOT_TESTABLE:
        if decided:
            yield place.problem("GP503", "NOT TESTABLE, with something that tests it", "neither", "expect")
        if row.why is None:
            yield place.problem("GP503", "NOT TESTABLE without why", "the key 'why'", "expect")
    elif not decided:
        yield place.problem("GP503", "nothing decides it", "checks, refuted_by, contradicted_by or figures", "id")
    if (row.contradicted_by is None) != (row.contradiction is None):
        expected = "why the claim and the check cannot both hold, and the check"
        yield place.problem("GP503", "one of contradicted_by and contradiction", expected, "id")


EXPECTS: Mapping[Part, Expect] = {
    Part.STATES: Expect.HOLDS,
    Part.REFUTES: Expect.REFUTED,
    Part.CONTRADICTS: Expect.HOLDS,
}


def _parts(row: ClaimShape, place: _Place, planned: _Planned) -> Iterator[Problem]:
    """Named checks are planned, expected to answer what their part needs, and named once."""
    names: set[str] = set()
    for part in Part:
        for j, name in enumerate(getattr(row, part) or ()):
            here = (str(part), j)
            found = planned.by_id.get(name)
            if found is None:
                help = planned.near(name)
                yield place.problem("GP502", f"{name}, which no contract plans", "a planned check", *here, help=help)
            elif any(check.expect is not EXPECTS[part] for check in found):
                stated = f"{name} under {part}, which is expected to be {found[0].expect}"
                yield place.problem("GP503", stated, f"a check with expect: {EXPECTS[part]}", *here)
            if name in names:
                yield place.problem("GP129", f"{name} again", "each check once", *here)
            names.add(name)


def _figure(figure: FigureShape, place: _Place, planned: _Planned) -> Iterator[Problem]:
    origins = [name for name in ORIGINS if getattr(figure, name) is not None]
    if len(origins) != 1:
        yield place.problem("GP505", f"a figure from {', '.join(origins) or 'nowhere'}", f"one of {', '.join(ORIGINS)}")
        return
    if all(getattr(figure, name) is None for name in LIMITS):
        yield place.problem("GP505", "a figure of which nothing is said", f"one of {', '.join(LIMITS)}")
    if figure.compute is not None:
        if any(getattr(figure, name) is not None for name in ("at", "among", "where", "take", "over")):
            yield place.problem("GP505", "a place in a computation", "the keys compute, scale and what is said of it")
        try:
            computed(figure.compute)
        except Unread as error:
            yield place.problem("GP505", f"{figure.compute!r}: {error}", "numbers, + - * / and brackets", "compute")
    elif figure.at is None:
        yield place.problem("GP505", "a figure without its place", "the key 'at'")
    if figure.among is None and (figure.where is not None or figure.take is not None):
        yield place.problem("GP505", "'where' or 'take' without 'among'", "the list to choose from")
    if figure.evidence is not None and len(planned.by_id.get(figure.evidence, ())) != 1:
        help = planned.near(figure.evidence)
        yield place.problem("GP502", f"the evidence of {figure.evidence}", "one planned check", "evidence", help=help)


# -- Ledger and verdicts on contracts -> the document.
SHOWN = 4
LONGEST = 40
EXPLORATION = ("branches", "paths")
FAR = {Expect.HOLDS: Outcome.REFUTED, Expect.REFUTED: Outcome.HOLDS}


def built(session: Session, select: Sequence[str] = ()) -> Claims:
    """The ledger of a session that has every contract; `select`: only rows whose id has one of these texts.

    Raises GradproofError GP501 without a ledger, and ContractErrors with every mistake in it.
    """
    return claims_of(session, load(session.workspace.root, session.checks), {}, select)


def claims_of(
    session: Session, ledger: ClaimLedger, statuses: Mapping[str, EvidenceStatus], select: Sequence[str] = ()
) -> Claims:
    """The claims of a ledger. `statuses`: what is known of the evidence already; the rest is read."""
    builder = _LedgerBuilder(session, ledger, statuses)
    rows = [builder.row(claim) for claim in chosen(ledger, select)]
    found = exit_of(rows)
    return Claims.model_validate(
        {
            "schema": CLAIMS,
            "gradproof": __version__,
            "made_at": now(),
            "ledger": ledger.digest,
            "sources": dict(ledger.sources),
            "exit": found,
            "code": EXIT_CODE[found],
            "totals": totals(rows),
            "rows": rows,
        }
    )


def chosen(ledger: ClaimLedger, select: Sequence[str]) -> list[ClaimShape]:
    """The rows whose id has one of these texts; all of them for none."""
    return [c for c in ledger.claims if not select or any(s.casefold() in c.id.casefold() for s in select)]


class _LedgerBuilder:
    """What the rows of a ledger are made of."""

    def __init__(self, session: Session, ledger: ClaimLedger, statuses: Mapping[str, EvidenceStatus]) -> None:
        self.session, self.ledger = session, ledger
        verdicts = session.verdicts(statuses)
        self.contract = {name: c for c, v in verdicts.items() for name in v.rulings}
        self.rulings: dict[str, Ruling] = {n: r for v in verdicts.values() for n, r in v.rulings.items()}
        self.document = cache(partial(document, session.workspace))

    def row(self, claim: ClaimShape) -> LedgerRow:
        """One claim with its verdict."""
        checks = [self._named(part, self.rulings[check.id]) for part, check in self.ledger.named[claim.id]]
        read = [self._figure(figure) for figure in claim.figures or ()]
        expect = ClaimVerdict(claim.expect)
        found, made, counts = concluded(expect, checks, read)
        stated = {"id", "source", "claim", "form", "contradiction", "why"}
        return LedgerRow.model_validate(
            {
                **claim.model_dump(include=stated),
                "title": self.ledger.sources[claim.source],
                "expect": expect,
                "verdict": found,
                "effect": made,
                "counts": counts,
                "reason": "; ".join(dict.fromkeys(_reasons(expect, found, made, checks, read))),
                "checks": checks,
                "figures": read,
            }
        )

    def _named(self, part: Part, ruling: Ruling) -> Named:
        check, finding = ruling.check, _finding(ruling)
        stated = answer(part, ruling.outcome, finding.reach if finding else None)
        counter = finding.counterexample if finding and stated is ClaimAnswer.COUNTEREXAMPLE else None
        return Named(
            id=check.id,
            part=part,
            contract=self.contract[check.id],
            outcome=ruling.outcome,
            answer=stated,
            contrary=ruling.outcome is FAR[check.expect],
            red=can_turn_red(check),
            reason="" if ruling.effect is Effect.DISCHARGED else ruling.reason,
            bounds=[NamedBound(name=b.name, value=b.value) for b in check.bounds if b.name not in EXPLORATION],
            counterexample=None if counter is None else _shown(counter),
            evidence=digest_of(ruling.status.evidence.stated()) if ruling.status.evidence and finding else None,
            again=again(check),
        )

    def _figure(self, figure: FigureShape) -> Figure:
        origin, place, rerun = self._origin(figure)
        words: dict[str, Any] = {"origin": origin, "place": place, "again": rerun, "said": figures.said(figure)}
        words |= {"on": "", "red": figure.compute is None}
        try:
            content = self._content(figure)
            words["on"] = self._on(figure, content)
            value = figures.value_of(figure, content)
        except (Unread, GradproofError) as error:
            reason = error.found if isinstance(error, GradproofError) else str(error)
            return Figure(**words, answer=ClaimAnswer.NOTHING, value="", reason=reason)
        if figure.compute is not None or figure.plan is not None:
            inside, outside = ClaimAnswer.COMPUTED, ClaimAnswer.COMPUTED_OTHERWISE
        else:
            inside, outside = ClaimAnswer.FIGURE_INSIDE, ClaimAnswer.FIGURE_OUTSIDE
        stated = inside if figures.judged(figure, value) else outside
        return Figure(**words, answer=stated, value=figures.stated(value, figure.unit), reason="")

    def _origin(self, figure: FigureShape) -> tuple[str, str, str]:
        """What a figure is read from, where, and the command that makes it again."""
        if figure.document is not None:
            return f"study:{figure.document}", _place(figure), figures.MAKE[figure.document]
        if figure.evidence is not None:
            ruling = self._evidence(figure)
            return ruling.check.id, _place(figure), again(ruling.check)
        if figure.plan is not None:
            return "plan-batch", _place(figure), figures.plan_again(figure)
        return "its own arithmetic", str(figure.compute), "gradproof claims"

    def _on(self, figure: FigureShape, content: Any) -> str:
        """What a figure was measured on and when: it holds there, and a document does not go stale elsewhere."""
        if figure.evidence is not None:
            evidence = self._evidence(figure).status.evidence
            content = {**evidence.environment.stated(), "made_at": evidence.started_at} if evidence else {}
            content["device_name"] = content.get("device")
        if not isinstance(content, Mapping) or not content.get("torch"):
            return ""
        day = str(content.get("made_at", "")).partition("T")[0]
        return ", ".join(str(w) for w in (content.get("device_name"), f"torch {content['torch']}", day) if w)

    def _evidence(self, figure: FigureShape) -> Ruling:
        name = str(figure.evidence)
        return self.rulings.get(name) or next(r for n, r in self.rulings.items() if n.startswith(f"{name}@cpu-"))

    def _content(self, figure: FigureShape) -> Any:
        """What the figure is read from. Raises Unread where that decides nothing, GradproofError GP413."""
        if figure.document is not None:
            reason, content = self.document(figure.document)
            if reason:
                raise Unread(reason)
            return content
        if figure.evidence is not None:
            ruling = self._evidence(figure)
            finding = _finding(ruling)
            if finding is None or ruling.effect is not Effect.DISCHARGED:
                raise Unread(f"it is {ruling.outcome}: {ruling.reason}")
            return finding.stated()
        return figures.plan_of(figure) if figure.plan is not None else None


def _finding(ruling: Ruling) -> EvidenceFinding | None:
    """What fresh evidence found."""
    status = ruling.status
    return status.evidence.finding if status.evidence is not None and status.fresh else None


def can_turn_red(check: Check) -> bool:
    """Whether somebody has to watch it fail: a mutant that it must kill, or its own refutation."""
    return bool(check.mutants) or check.expect is Expect.REFUTED or check.kind is Kind.GATE


def again(check: Check) -> str:
    """The command line that runs a check again; on the CPU a test with all of its dtypes."""
    if check.kind is Kind.TORCH and check.layer is Layer.CPU:
        return f"gradproof run --no-cache -k {check.id.partition('@')[0]}"
    command = {Kind.TORCH: f"run --device {check.layer}", Kind.GATE: "verify"}.get(check.kind, "prove")
    return f"gradproof {command} --no-cache -k {check.id}"


def _place(figure: FigureShape) -> str:
    words = str(figure.at)
    if figure.among is not None:
        where = ", ".join(f"{k} = {figures.stated(v)}" for k, v in (figure.where or {}).items())
        words = f"{figure.among}[{where}]{words}" + (f", the {figure.take}" if figure.take else "")
    return words if figure.over is None else f"{words} / {figure.over}"


def _shown(example: Counterexample) -> str:
    """A counterexample in a line: what it is of, what was chosen, and its first values."""
    pairs = [f"{k} = {str(v)[:LONGEST]}" for k, v in list(example.values.items())[:SHOWN]]
    more = [f"and {len(example.values) - SHOWN} more"] if len(example.values) > SHOWN else []
    label = example.label or example.clause
    chosen = ", ".join(c[:LONGEST] for c in example.choices[:SHOWN])
    words = [f"{label} [{chosen}]" if chosen else label, ", ".join([*pairs, *more])]
    return ": ".join(filter(None, words))


def _reasons(
    expect: ClaimVerdict, found: ClaimVerdict, made: Effect, checks: Sequence[Named], read: Sequence[Figure]
) -> Iterator[str]:
    """Why a row is not as expected."""
    if made is Effect.DISCHARGED:
        return
    if found not in (expect, ClaimVerdict.OPEN):
        yield f"expected: {expect}; found: {found}"
    for check in checks:
        if check.contrary or check.answer is ClaimAnswer.NOTHING:
            yield f"{check.id} is {check.outcome}" + (f": {check.reason}" if check.reason else "")
    yield from (f"{f.origin}: {f.reason}" for f in read if f.answer is ClaimAnswer.NOTHING)
