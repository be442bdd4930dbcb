"""Second look at an answer: does the evidence carry what its outcome claims?

A backend decides its own outcome. This reads the parts below it (clauses, covers, controls, replays, measurements)
and takes back what they do not support. It never turns a worse outcome into a better one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradproof.core.check import Check, reach_shown
from gradproof.core.outcome import Kind, Outcome, Reach

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import EvidenceFinding

Objection = tuple[Outcome, str]

_PROOFS = (Kind.SMT, Kind.CROSSHAIR, Kind.TRACE)
_CONTROLLED = (*_PROOFS, Kind.TORCH)
_ORDER = (Outcome.ERROR, Outcome.VACUOUS, Outcome.WEAK)


def audit(check: Check, finding: EvidenceFinding) -> Objection:
    """The outcome that the evidence supports, and why."""
    outcome, reason = finding.outcome, finding.reason
    if check.kind is Kind.GATE:
        return outcome, reason
    if outcome is Outcome.HOLDS:
        objections = [*_contradictions(check, finding), *_empty(check, finding), *_weak(check, finding)]
        return min(objections, key=lambda o: _ORDER.index(o[0]), default=(outcome, reason))
    if outcome is Outcome.REFUTED:
        return next(_unreplayed(check, finding), (outcome, reason))
    return outcome, reason


def belongs(clause: str, obligation: str) -> bool:
    """Whether a clause is the obligation or a named part of it (`GA-EQ-001`, `GA-EQ-001/fp16`)."""
    return clause == obligation or (clause.startswith(obligation) and not clause[len(obligation)].isalnum())


def _contradictions(check: Check, finding: EvidenceFinding) -> Iterator[Objection]:
    if finding.counterexample is not None:
        yield Outcome.ERROR, "the evidence contradicts itself: it holds, and has a counterexample"
    if far := _too_far(check, finding):
        yield Outcome.ERROR, f"the evidence contradicts itself: {far}"
    ran = finding.stats.device
    if check.kind is Kind.TORCH and ran is not None and ran != str(check.layer):
        yield Outcome.ERROR, f"the evidence contradicts itself: it is about {check.layer}, and it ran on {ran}"
    for row in finding.measurements:
        if row.measured is None and row.note.startswith("NOT_RUN"):
            continue
        if row.column != "accumulation" and row.bound is None:
            continue
        if row.measured is None:
            yield Outcome.ERROR, "the evidence contradicts itself: it holds, and measured None"
        elif row.bound is not None and row.measured > row.bound:
            yield Outcome.ERROR, f"the evidence contradicts itself: it holds, and measured {row.measured} > {row.bound}"


def _too_far(check: Check, finding: EvidenceFinding) -> str:
    """Why the stated reach is not what the run shows; an empty text where it is."""
    reach, stats = finding.reach, finding.stats
    if check.kind is Kind.TORCH and reach not in (None, Reach.SAMPLED):
        return f"it is a measurement, and its reach is {reach}"
    if check.kind in (Kind.CROSSHAIR, Kind.TRACE) and reach is Reach.ALL_INPUTS:
        return f"a check of the kind {check.kind} has bounds, and its reach is {reach}"
    if check.kind not in (Kind.SMT, Kind.STUB) or reach is None:
        return ""
    if stats.scope is None and check.strategy != "step_contract":
        return "nothing in it says what the harness did"
    scope = None if stats.scope is None else stats.scope.read()
    shown = reach_shown(scope, [row.name for row in stats.lemmas])
    return "" if reach is shown else f"its reach is {reach}, and what the harness did shows {shown}"


def _empty(check: Check, finding: EvidenceFinding) -> Iterator[Objection]:
    clauses, covers = finding.clauses, finding.covers
    if not clauses:
        yield Outcome.VACUOUS, "no clause was checked"
    for name in check.obligations:
        if not any(belongs(clause, name) for clause in clauses):
            yield Outcome.VACUOUS, f"no clause of {name} was checked"
    for clause, said in clauses.items():
        if not said.lower().startswith(("holds", "held")):
            yield Outcome.VACUOUS, f"clause {clause} reads {said!r}"
    if check.kind in _PROOFS and not covers:
        yield Outcome.VACUOUS, "no cover shows that the harness can be reached"
    for cover in covers:
        if not cover.reached:
            yield Outcome.VACUOUS, f"cover {cover.name!r} was not reached"
    if finding.reach is None:
        yield Outcome.VACUOUS, "the evidence states no reach"


def _weak(check: Check, finding: EvidenceFinding) -> Iterator[Objection]:
    controls = finding.controls
    if check.kind in _CONTROLLED and not any(c.kind in ("empty_body", "empty") for c in controls):
        yield Outcome.WEAK, "the empty body was not tried"
    tried = {c.name for c in controls}
    for name in check.mutants:
        if name not in tried:
            yield Outcome.WEAK, f"mutant {name} was not tried"
    for control in controls:
        if not control.shows:
            yield Outcome.WEAK, f"{control.name} survives ({control.outcome})"


def _unreplayed(check: Check, finding: EvidenceFinding) -> Iterator[Objection]:
    example = finding.counterexample
    if example is None:
        yield Outcome.SPURIOUS, "no counterexample is recorded"
        return
    if not any(replay.reproduced for replay in finding.replays):
        yield Outcome.SPURIOUS, "no replay reproduced the counterexample"
    if check.obligations and not any(belongs(example.clause, name) for name in check.obligations):
        yield (
            Outcome.SPURIOUS,
            f"the counterexample is to {example.clause or 'no clause'}, which this check does not claim",
        )
