"""The gate's own falsification, executed: with each seeded bug as the subject, the gate must turn red, for that bug.

The sub-checks come with the check. Each is run here, its finding is written up as evidence, and the same judge that
decides the release reads it. A gate that stays green, or turns red because something crashed, fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Effect, Exit, Layer, Outcome, Reach
from gradproof.evidence.record import EvidenceStatus, record
from gradproof.execution import methods
from gradproof.verdict.judge import Verdict, judge
from gradproof.verdict.plan import Clause, GateCriterion, Policy

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace


def run(check: Check, workspace: Workspace) -> Finding:
    """HOLDS when each seeded bug, and nothing else, turns the gate red."""
    bugs = [str(bug) for bug in check.params.get("seeded_bugs", ())]
    if not bugs:
        return Finding(Outcome.NOT_RUN, "the contract names no seeded_bug, so the gate's falsification cannot be run")
    checks = [Check.from_json(data) for data in check.params["subchecks"]]
    found = {bug: _seeded(bug, [c for c in checks if c.subject.endswith(f"[{bug}]")], check, workspace) for bug in bugs}
    outcome = next((o for o, _, _ in found.values() if o is not Outcome.HOLDS), Outcome.HOLDS)
    reason = "; ".join(stated for o, stated, _ in found.values() if o is outcome)
    clauses = {check.id: "HOLDS"} if outcome is Outcome.HOLDS else {}
    reach = Reach.SAMPLED if outcome is Outcome.HOLDS else None
    stats = {"seeded_bugs": {bug: row for bug, (_, _, row) in found.items()}}
    return Finding(outcome, reason, reach, domain=f"the seeded bugs {', '.join(bugs)}", clauses=clauses, stats=stats)


def _seeded(
    bug: str, checks: Sequence[Check], check: Check, workspace: Workspace
) -> tuple[Outcome, str, dict[str, Any]]:
    """What one bug does to the gate: the outcome, why, and the judge's findings."""
    if not checks:
        return Outcome.WEAK, f"no proof and no fp32 run is named to kill {bug}, so the gate cannot see it", {}
    statuses = {c.id: _attempt(c, workspace) for c in checks}
    freed = [replace(c, depends=()) for c in checks]  # of their stubs: those are decided before this check starts
    verdict = judge(freed, statuses, _policy(checks, check.params["criteria"]))
    outcome, reason = _conclude(bug, verdict)
    rows = {name: [str(r.outcome), r.reason] for name, r in verdict.rulings.items()}
    criteria = {c.name: c.met for c in verdict.criteria}
    return outcome, reason, {
        "exit": str(verdict.exit), "checks": rows, "reasons": list(verdict.reasons), "criteria": criteria,
    }  # fmt: skip


def _attempt(check: Check, workspace: Workspace) -> EvidenceStatus:
    """Evidence of one sub-check on the seeded bug. A crash is an ERROR."""
    from gradproof.core.schemas.evidence import evidence_of

    try:
        return EvidenceStatus(evidence_of(record(check, methods.run(check, workspace))), True)
    except GradproofError as e:
        finding = Finding(Outcome.ERROR, f"{e.code}: {e.found}")
    except Exception as e:
        finding = Finding(Outcome.ERROR, f"the backend raised {type(e).__name__}: {e}")
    return EvidenceStatus(evidence_of(record(check, finding)), True)


def _policy(checks: Sequence[Check], criteria: Mapping[str, Any]) -> Policy:
    """The gate, narrowed to the obligations and layers of the sub-checks."""
    layers: dict[str, list[Layer]] = {}
    for check in checks:
        for name in check.obligations:
            layers.setdefault(name, []).append(check.layer)
    clauses = tuple(Clause(name, tuple(dict.fromkeys(found))) for name, found in layers.items())
    affected = {name: [o for o in names if o in layers] for name, names in criteria.items()}
    return Policy("seeded", clauses, tuple(GateCriterion(n, tuple(names)) for n, names in affected.items() if names))


def _conclude(bug: str, verdict: Verdict) -> tuple[Outcome, str]:
    # Without controls of its own a seeded check that holds is WEAK to the audit; it still did not see the bug.
    passed = [r for r in verdict.rulings.values() if r.status.outcome is Outcome.HOLDS]
    blind = [r.check.id for r in passed if r.outcome in (Outcome.HOLDS, Outcome.WEAK)]
    if blind:
        return Outcome.WEAK, f"with {bug} seeded, the gate does not see it: {', '.join(blind)}"
    odd = [r for r in verdict.rulings.values() if r.outcome is not Outcome.REFUTED]
    if odd:
        stated = "; ".join(f"{r.check.id} is {r.outcome}: {r.reason}" for r in odd)
        return Outcome.ERROR, f"with {bug} seeded, the gate is red for another reason: {stated}"
    if verdict.exit is not Exit.BROKEN:
        return Outcome.WEAK, f"with {bug} seeded, the gate does not see it: {verdict.exit}"
    broken = [o.id for o in verdict.obligations.values() if o.effect is Effect.BROKEN]
    fallen = [c.name for c in verdict.criteria if not c.met]
    if not broken or not fallen:
        return Outcome.WEAK, f"with {bug} seeded, no criterion of the gate falls"
    named = ", ".join(verdict.rulings)
    return Outcome.HOLDS, (
        f"with {bug} seeded, the gate turns red (exit {verdict.code}): {', '.join(broken)} is BROKEN by {named}, "
        f"and {', '.join(fallen)} is not met"
    )
