"""The conformance suite of a backend: what every implementation must say, and must not.

A backend is a function `run(check, workspace) -> Finding`. Whoever writes one gives `prepare(scenario)`, which
returns a check and a workspace for each name in SCENARIOS, and calls `violations`; an empty list is conformance.
The suite knows no method: it judges findings alone. gradproof's own backends pass it in `tests/conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradproof.core.check import Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome

Prepare = Callable[[str], tuple[Check, Any]]
Run = Callable[[Check, Any], Finding]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the claim is like, and which outcomes are right for it."""

    claim: str
    outcomes: frozenset[Outcome]


def _of(claim: str, *outcomes: Outcome) -> Scenario:
    return Scenario(claim, frozenset(outcomes))


SCENARIOS: Mapping[str, Scenario] = {
    "true": _of("true of the subject; its mutants are killed and its covers reached", Outcome.HOLDS),
    "false": _of("false of the subject", Outcome.REFUTED),
    "survivor": _of("true, but a named mutant is the subject itself", Outcome.WEAK),
    "crasher": _of("true, but a named mutant raises", Outcome.WEAK),
    "other_clause": _of("true, but a mutant is named for a clause that the harness does not check", Outcome.WEAK),
    "empty_passes": _of("true of the empty body too", Outcome.WEAK),
    "unreached": _of("true, but a cover cannot be reached", Outcome.VACUOUS),
    "crash": _of("not judged: the subject raises", Outcome.ERROR),
    "missing": _of("true, but a named mutant does not exist", Outcome.ERROR, Outcome.WEAK),
}


def violations(run: Run, prepare: Prepare) -> list[str]:
    """What the backend gets wrong, one sentence each."""
    found: list[str] = []
    for name, scenario in SCENARIOS.items():
        check, workspace = prepare(name)
        finding = _finding(run, check, workspace)
        if finding.outcome not in scenario.outcomes:
            wanted = " or ".join(sorted(scenario.outcomes))
            found.append(f"{name} ({scenario.claim}): {finding.outcome}, not {wanted}; {finding.reason}")
        found += [f"{name}: {text}" for text in _blemishes(name, check, finding)]
    return found


def _finding(run: Run, check: Check, workspace: Any) -> Finding:
    """The finding; an exception is what the worker makes of it, an ERROR."""
    try:
        return run(check, workspace)
    except GradproofError as error:
        return Finding(Outcome.ERROR, error.code)
    except Exception as error:  # the worker records it as ERROR
        return Finding(Outcome.ERROR, f"{type(error).__name__}: {error}")


def _blemishes(name: str, check: Check, finding: Finding) -> list[str]:
    found = []
    if not finding.reason:
        found.append("no reason is given")
    if finding.outcome is Outcome.HOLDS:
        found += _unfounded(check, finding)
    if finding.outcome is Outcome.REFUTED:
        if not finding.counterexample or finding.counterexample.get("clause") not in check.obligations:
            found.append("a refutation without a counterexample to a clause of the claim")
        if not any(r["reproduced"] for r in finding.replays):
            found.append("a refutation that was not replayed")
    dead = [c.name for c in finding.controls if c.killed and c.outcome is not Outcome.REFUTED]
    if dead:
        found.append(f"killed without a refutation: {', '.join(dead)}")
    if name == "crasher" and finding.controls and finding.controls[-1].outcome is not Outcome.ERROR:
        found.append(f"a mutant that raises is {finding.controls[-1].outcome}, not ERROR")
    return found


def _unfounded(check: Check, finding: Finding) -> list[str]:
    """What a HOLDS must stand on."""
    found = []
    if not set(check.obligations) <= set(finding.clauses):
        found.append("HOLDS without a word on its obligations")
    if finding.reach is None:
        found.append("HOLDS without a reach")
    if not finding.covers or not all(c["reached"] for c in finding.covers):
        found.append("HOLDS with a cover that was not reached, or none")
    if len(finding.controls) < 1 + len(check.mutants) or not all(c.killed for c in finding.controls):
        found.append("HOLDS with a control that was not killed, or not tried")
    return found
