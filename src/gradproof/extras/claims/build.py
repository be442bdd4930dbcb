"""Ledger and verdicts on contracts -> the document. Nothing is run; a verdict comes from fresh evidence alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradproof import __version__
from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Effect, Expect, Kind, Layer, Outcome, Reach
from gradproof.evidence.record import now
from gradproof.extras.claims import figures
from gradproof.extras.claims.document import (
    Answer,
    Claims,
    Figure,
    Named,
    NamedBound,
    Part,
    Row,
    Verdict,
    answer,
    effect,
    exit_of,
    totals,
    verdict,
)
from gradproof.extras.claims.figures import STUDIES, ClaimShape, FigureShape, document
from gradproof.extras.claims.load import Ledger, load
from gradproof.report.studies import FRESH

if TYPE_CHECKING:
    from gradproof.evidence.record import Standing
    from gradproof.session import Session
    from gradproof.verdict.judge import Ruling

SHOWN = 4
LONGEST = 40
EXPLORATION = ("branches", "paths")
FAR = {Outcome.HOLDS: Outcome.REFUTED, Outcome.REFUTED: Outcome.HOLDS}


def built(session: Session, select: Sequence[str] = ()) -> Claims:
    """The ledger of a session that has every contract; `select`: only rows whose id has one of these texts.

    Raises GradproofError GP501 without a ledger, and ContractErrors with every mistake in it.
    """
    ledger = load(session.workspace.root, session.checks)
    return _Builder(session, ledger, {}).claims(select)


def claims_of(session: Session, ledger: Ledger, standings: Mapping[str, Standing]) -> Claims:
    """Every claim of a ledger, on evidence that has been read."""
    return _Builder(session, ledger, standings).claims(())


class _Builder:
    """`standings`: what is known of the evidence already; the rest is read."""

    def __init__(self, session: Session, ledger: Ledger, standings: Mapping[str, Standing]) -> None:
        self.session, self.ledger = session, ledger
        verdicts = session.verdicts(standings)
        self.contract = {name: c for c, v in verdicts.items() for name in v.rulings}
        self.rulings: dict[str, Ruling] = {n: r for v in verdicts.values() for n, r in v.rulings.items()}
        self.documents: dict[str, Any] = {}

    def claims(self, select: Sequence[str]) -> Claims:
        wanted = [c for c in self.ledger.claims if not select or any(s.casefold() in c.id.casefold() for s in select)]
        rows = [self._row(claim) for claim in wanted]
        found = exit_of(rows)
        return Claims.model_validate(
            {
                "schema": "gradproof-claims/1",
                "gradproof": __version__,
                "made_at": now(),
                "ledger": self.ledger.digest,
                "sources": dict(self.ledger.sources),
                "exit": str(found),
                "code": EXIT_CODE[found],
                "totals": totals(rows),
                "rows": rows,
            }
        )

    def _row(self, claim: ClaimShape) -> Row:
        checks = [self._named(part, self.rulings[check.id]) for part, check in self.ledger.named[claim.id]]
        read = [self._figure(figure) for figure in claim.figures or ()]
        told = [Answer(name) for name in (*(c.answer for c in checks), *(f.answer for f in read))]
        expect = Verdict(claim.expect)
        found = Verdict.NOT_TESTABLE if expect is Verdict.NOT_TESTABLE else verdict(told)
        made = effect(expect, found, told, any(c.contrary for c in checks))
        return Row.model_validate(
            {
                "id": claim.id,
                "source": claim.source,
                "title": self.ledger.sources[claim.source],
                "claim": claim.claim,
                "form": claim.form,
                "expect": claim.expect,
                "verdict": str(found),
                "effect": str(made),
                "counts": any(c.red for c in checks) or any(f.red for f in read),
                "reason": "; ".join(dict.fromkeys(_reasons(expect, found, made, checks, read))),
                "contradiction": claim.contradiction,
                "why": claim.why,
                "checks": checks,
                "figures": read,
            }
        )

    def _named(self, part: Part, ruling: Ruling) -> Named:
        check, finding = ruling.check, _finding(ruling)
        reach = Reach(finding["reach"]) if finding and finding["reach"] else None
        told = answer(part, ruling.outcome, reach)
        counter = finding["counterexample"] if finding and told is Answer.COUNTEREXAMPLE else None
        return Named(
            id=check.id,
            part=part.value,
            contract=self.contract[check.id],
            outcome=str(ruling.outcome),
            answer=told.value,
            contrary=ruling.outcome is FAR[_wanted(check)],
            red=can_turn_red(check),
            reason="" if ruling.effect is Effect.DISCHARGED else ruling.reason,
            bounds=[NamedBound(name=b.name, value=b.value) for b in check.bounds if b.name not in EXPLORATION],
            counterexample=None if counter is None else _shown(counter),
            evidence=digest_of(ruling.standing.evidence) if finding else None,
            again=again(check),
        )

    def _figure(self, figure: FigureShape) -> Figure:
        origin, place, rerun = self._origin(figure)
        words: dict[str, Any] = {"origin": origin, "place": place, "again": rerun, "said": figures.said(figure)}
        words["on"] = self._on(figure)
        try:
            value = figures.value_of(figure, self._content(figure))
        except (figures.Unread, GradproofError) as error:
            reason = error.found if isinstance(error, GradproofError) else str(error)
            return Figure(**words, answer="nothing", value="", reason=reason, red=figure.compute is None)
        inside = figures.judged(figure, value)
        exact = figure.compute is not None or figure.plan is not None
        told = (Answer.COMPUTED if inside else Answer.COMPUTED_OTHERWISE) if exact else None
        told = told or (Answer.FIGURE_INSIDE if inside else Answer.FIGURE_OUTSIDE)
        shown = figures.told(value, figure.unit)
        return Figure(**words, answer=told.value, value=shown, reason="", red=figure.compute is None)

    def _origin(self, figure: FigureShape) -> tuple[str, str, str]:
        """What a figure is read from, where, and the command that makes it again."""
        if figure.document is not None:
            return f"study:{figure.document}", _place(figure), STUDIES[figure.document].make
        if figure.evidence is not None:
            ruling = self._evidence(figure)
            return ruling.check.id, _place(figure), again(ruling.check)
        if figure.plan is not None:
            return "plan-batch", _place(figure), figures.plan_again(figure)
        return "its own arithmetic", str(figure.compute), "gradproof claims"

    def _on(self, figure: FigureShape) -> str:
        """What a figure was measured on and when: it holds there, and a document does not go stale elsewhere."""
        try:
            content = self._content(figure)
        except (figures.Unread, GradproofError):
            return ""
        if figure.evidence is not None:
            evidence = self._evidence(figure).standing.evidence or {}
            content = {**evidence.get("environment", {}), "made_at": evidence.get("started_at")}
            content["device_name"] = content.get("device")
        if not isinstance(content, Mapping) or not content.get("torch"):
            return ""
        day = str(content.get("made_at", "")).partition("T")[0]
        return ", ".join(str(w) for w in (content.get("device_name"), f"torch {content['torch']}", day) if w)

    def _evidence(self, figure: FigureShape) -> Ruling:
        name = str(figure.evidence)
        return self.rulings[name] if name in self.rulings else self.rulings[self._alone(name)]

    def _alone(self, name: str) -> str:
        return next(n for n in self.rulings if n.startswith(f"{name}@cpu-"))

    def _content(self, figure: FigureShape) -> Any:
        """What the figure is read from. Raises figures.Unread where that decides nothing, GradproofError GP413."""
        if figure.document is not None:
            name = figure.document
            if name not in self.documents:
                self.documents[name] = document(self.session.workspace, name)
            found = self.documents[name]
            if found.standing != FRESH:
                raise figures.Unread(found.reason)
            return found.content
        if figure.evidence is not None:
            ruling = self._evidence(figure)
            finding = _finding(ruling)
            if finding is None or ruling.effect is not Effect.DISCHARGED:
                raise figures.Unread(f"it is {ruling.outcome}: {ruling.reason}")
            return finding
        return figures.plan_of(figure) if figure.plan is not None else None


def _finding(ruling: Ruling) -> Mapping[str, Any] | None:
    """What fresh evidence found."""
    standing = ruling.standing
    return standing.evidence["finding"] if standing.evidence is not None and standing.fresh else None


def _wanted(check: Check) -> Outcome:
    return Outcome.HOLDS if check.expect is Expect.HOLDS else Outcome.REFUTED


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
        where = ", ".join(f"{k} = {figures.told(v)}" for k, v in (figure.where or {}).items())
        words = f"{figure.among}[{where}]{words}" + (f", the {figure.take}" if figure.take else "")
    return words if figure.over is None else f"{words} / {figure.over}"


def _shown(counterexample: Mapping[str, Any]) -> str:
    """A counterexample in a line: what it is of, what was chosen, and its first values."""
    values = counterexample.get("values") or {}
    pairs = [f"{k} = {str(v)[:LONGEST]}" for k, v in list(values.items())[:SHOWN]]
    more = [f"and {len(values) - SHOWN} more"] if len(values) > SHOWN else []
    label = str(counterexample.get("label") or counterexample.get("clause") or "")
    chosen = ", ".join(str(c)[:LONGEST] for c in (counterexample.get("choices") or [])[:SHOWN])
    words = [f"{label} [{chosen}]" if chosen else label, ", ".join([*pairs, *more])]
    return ": ".join(filter(None, words))


def _reasons(
    expect: Verdict, found: Verdict, made: Effect, checks: Sequence[Named], read: Sequence[Figure]
) -> Iterator[str]:
    """Why a row is not as expected."""
    if made is Effect.DISCHARGED:
        return
    if found not in (expect, Verdict.OPEN):
        yield f"expected: {expect}; found: {found}"
    for check in checks:
        if check.contrary or Answer(check.answer) is Answer.NOTHING:
            yield f"{check.id} is {check.outcome}" + (f": {check.reason}" if check.reason else "")
    yield from (f"{f.origin}: {f.reason}" for f in read if Answer(f.answer) is Answer.NOTHING)
