"""The SMT backend: a harness explored path by path, then the same harness on the empty body and on every named mutant.

A HOLDS needs: every path explored, every check answered `unsat`, every cover reached, the empty body refuted, every
mutant refuted on the clause that it was made to break, and every refutation replayed on concrete numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gradproof.arith import smt
from gradproof.core.check import Check, Control, Finding, Resolver, Scope, reach_shown
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind, Outcome
from gradproof.core.timeline import as_json
from gradproof.execution.methods.controls import drop_equivalent, named_controls, remaining, survivors
from gradproof.execution.methods.explore import Exploration, Explorer, Limits, Violated
from gradproof.execution.methods.free_inputs import stated
from gradproof.execution.methods.harness import PARTS, SymbolicKit
from gradproof.execution.methods.replay import Attempted, first_reproduced, instance, replayed, torch_replay
from gradproof.rounding.lemma_store import LemmaRefused

DOMAIN = {
    "exhaustive": "integers and rationals (no rounding)",
    "bounded_int": "integers",
    "stub_float": "floats, each rounding replaced by the stub",
    "bit_precise": "IEEE 754 floats, bit for bit",
    "linear_chain": "floats, each rounding within half an ulp of its interval",
    "bit_exhaustive": "floats of a 16-bit format, every one of them",
    "step_contract": "steps of rounded operations: floats, and reals that are rounded",
    "compositional": "rationals (no rounding)",
}


EXPLORATION = {"branches", "paths"}
WITHOUT_SOLVER = {"linear_chain", "bit_exhaustive", "step_contract"}


@dataclass(frozen=True)
class Trial:
    """One claim, ready to be tried on any subject."""

    check: Check
    workspace: Resolver
    harness: Any
    reference: Any
    stub: Any
    deadline: float
    justification: dict[str, Any] = field(default_factory=dict)
    untold: list[Callable[[], None]] = field(default_factory=list)

    def explore(self, subject: Any) -> Exploration:
        """Explore the harness on one subject, which is made anew on every path."""
        most, own = (self.check.bound("branches"), self.check.bound("paths")), subject is self.reference
        limits = Limits(*most, self.check.time_limit, self.deadline, scope=own)
        if self.check.strategy in WITHOUT_SOLVER:
            return self._without_solver(limits, subject)
        explorer = Explorer(limits, self.stub)
        return explorer.run(lambda: self.harness(SymbolicKit(self.check, explorer), instance(subject)))

    def _without_solver(self, limits: Limits, subject: Any) -> Exploration:
        from gradproof.execution.methods.smt_strategies import explored

        explorer, kit = explored(self.check, limits)
        result = explorer.run(lambda: self.harness(kit, instance(subject)))
        if subject is self.reference:
            self.justification.update(explorer.justification())
        return result


def run(check: Check, workspace: Resolver) -> Finding:
    """Discharge or refute one SMT check. Raises GradproofError when a name does not resolve."""
    reference = workspace.resolve(check.subject)
    stub, deadline = stub_of(check, workspace), time.process_time() + check.time_limit
    trial = Trial(check, workspace, workspace.resolve(check.harness), reference, stub, deadline)
    try:
        trial.justification.update(_rests_on(check))
    except LemmaRefused as refused:
        return Finding(Outcome.UNKNOWN, f"the stub rests on a lemma that is not proved: {refused}")
    finding = _judge_subject(trial, trial.explore(reference))
    if finding.outcome is Outcome.HOLDS and not check.params.get("controls_off"):
        rows, registry = named_controls(check, workspace)
        finding.controls = [_control(trial, *row) for row in rows]
        drop_equivalent(rows, registry)
        if left := survivors(finding.controls):
            finding.outcome, finding.reason = remaining(finding.controls), left
    for tell in trial.untold:  # after the last question: what a solver answers depends on what was freed before
        tell()
    if check.strategy in WITHOUT_SOLVER:
        return finding
    if finding.outcome is Outcome.HOLDS and smt.TALLY.queries:
        finding.stats["solvers"] = [{"solver": "z3", "version": smt.version().removeprefix("z3 "), "answer": "unsat"}]
    finding.stats.update(
        solver=smt.version(),
        queries=smt.TALLY.queries,
        solver_seconds=round(smt.TALLY.seconds, 3),
        slowest_query_seconds=round(smt.TALLY.slowest, 3),
    )
    return finding


def _rests_on(check: Check) -> dict[str, Any]:
    """The evidence of the lemmas that a stub names, checked now. Raises LemmaRefused, GradproofError."""
    if check.kind is not Kind.STUB or "lemmas" not in check.params:
        return {}
    from gradproof.execution.methods.smt_strategies import lemmas_of
    from gradproof.rounding.lemma_store import stated

    return {"lemmas": stated(lemmas_of(check))}


def stub_of(check: Check, workspace: Resolver) -> Any:
    """The rounding stub of a stub_float check, or None."""
    if check.strategy != "stub_float":
        return None
    if len(check.stubs) != 1:
        raise GradproofError(
            "GP302", f"{check.id} names {len(check.stubs)} stubs", "exactly one", "name the one it uses"
        )
    rows = {row["id"]: row for row in check.text["stubs"]}
    return workspace.resolve(rows[check.stubs[0]]["stub"])


def _judge_subject(trial: Trial, result: Exploration) -> Finding:
    check = trial.check
    stats: dict[str, Any] = {"paths": result.paths, "most_branches": result.most_branches}
    stats["rounded_operations"] = result.sites
    stats["sides_of_unknown_feasibility"] = result.undecided
    stats |= trial.justification
    stats |= {"fields": stated(result.fields)} if result.fields else {}
    stats |= {"rounded": sorted(result.operators)} if result.operators else {}
    covers = [{"name": n, "reached": w is not None, "witness": w} for n, w in result.covers.items()]
    scope = None if check.strategy == "step_contract" else _scope(result)
    reach = reach_shown(scope, [row["name"] for row in trial.justification.get("lemmas", ())])
    stats |= {} if scope is None else {"scope": asdict(scope)}
    base = Finding(Outcome.ERROR, "", reach, DOMAIN.get(check.strategy, check.strategy), covers=covers, stats=stats)
    base.assumptions = [*check.assumptions]
    if result.stopped is not None:
        base.outcome, base.reason = Outcome(result.stopped.outcome), result.stopped.reason
    elif result.violation is not None:
        attempt = first_reproduced(check, trial.harness, trial.reference, None, result.violation)
        silent = Outcome.UNKNOWN if check.strategy == "linear_chain" else Outcome.SPURIOUS
        base.outcome = Outcome.REFUTED if attempt.reproduced else silent
        # The PyTorch step is a text of its own: when it is right where the model is wrong, the model is refuted still.
        torch_replay(check, trial.workspace, "", attempt)
        base.clauses = {result.violation.clause: "REFUTED"}
        base.counterexample, base.replays = attempt.counterexample, attempt.replays
        if attempt.reproduced:
            _trace(trial, attempt, result.violation, check.subject.rpartition(":")[2], trial.reference)
        base.reason = f"{result.violation.clause} {result.violation.label}"
    elif missing := _missing(check, result):
        base.outcome, base.reason = Outcome.VACUOUS, missing
    elif idle := [b.name for b in check.bounds if b.name not in result.used | EXPLORATION]:
        base.outcome, base.reason = Outcome.WEAK, f"a bound is stated and never read: {', '.join(idle)}"
    else:
        base.clauses = dict.fromkeys(result.checked, "HOLDS")
        checks = sum(result.checked.values())
        base.outcome = Outcome.HOLDS
        base.reason = f"{result.paths} paths, {checks} checks, none falsifiable"
    return base


def _scope(result: Exploration) -> Scope:
    """What the harness did, as far as its reach follows from it."""
    inputs, asked = len(result.inputs) if result.free else 0, result.asked
    used, numbers = tuple(sorted(result.used)), tuple(sorted(result.numbers))
    sizes = sorted(result.sizes | {len(places) for places in result.lists.values() if len(places) > 1})
    counts = asked["base"], asked["step"], asked["direct"], asked["other"]
    pinned = [row for row in stated(result.fields) if not row["free"]]
    fixed = tuple(f"{row['field']} = {', '.join(row['values']) or 'one value'}" for row in pinned)
    return Scope(inputs, used, numbers, result.paths, *counts, tuple(sizes), fixed)


def _missing(check: Check, result: Exploration) -> str:
    """Why a run without a violation established nothing, or an empty text."""
    unchecked = [o for o in check.obligations if o not in result.checked]
    if unchecked or not result.checked:
        return f"no path checks {', '.join(unchecked) or 'anything'}"
    if idle := [PARTS[part] for (part, *_), n in sorted(result.parts.items()) if not (n and result.asked[part])]:
        return f"{idle[0]} asks nothing of what is free"
    unreached = [name for name, witness in result.covers.items() if witness is None]
    if unreached:
        return f"cover not reached: {'; '.join(unreached)}"
    if result.dead:
        return f"the assumptions contradict each other on the path of {result.dead[0]}, which is checked for nothing"
    return "" if result.covers else "the harness states no cover"


def _control(trial: Trial, control: Control, subject: Any) -> Control:
    """Run the harness on a mutant or the empty body; it gets neither the name nor the clause."""
    began = time.monotonic()
    try:
        result = trial.explore(subject)
    except Exception as error:  # a crash of the mutant is an outcome: ERROR, and never a kill
        control.reason = f"{type(error).__name__}: {error}"
        return control
    if result.stopped is not None:
        control.outcome, control.reason = Outcome(result.stopped.outcome), result.stopped.reason
    elif result.violation is None:
        control.outcome, control.reason = Outcome.HOLDS, "the harness finds nothing wrong with it"
    else:
        _settle(trial, control, subject, result.violation)
    control.seconds = round(time.monotonic() - began, 3)
    return control


def _settle(trial: Trial, control: Control, subject: Any, violation: Violated) -> None:
    attempt = first_reproduced(trial.check, trial.harness, subject, trial.reference, violation)
    torch_replay(trial.check, trial.workspace, control.name, attempt)
    control.counterexample, control.replays = attempt.counterexample, attempt.replays
    control.outcome = Outcome.REFUTED if attempt.reproduced else Outcome.SPURIOUS
    control.reason = f"{violation.clause} {violation.label}"
    named = control.kind == "empty_body" or violation.clause == control.clause
    control.killed = attempt.reproduced and named
    if control.killed and control.kind == "mutant":
        _trace(trial, attempt, violation, control.name, subject)
    if not named:
        control.reason += f" (it is named for {control.clause})"


def _trace(trial: Trial, attempt: Attempted, violation: Violated, name: str, subject: Any) -> None:
    """Add the run of a wrong subject: the shortest one, where the claim names a function that finds it, else this one.

    `params.trace` takes the name of the harness, the name of the subject and the subject, and gives a Timeline or None.
    """
    if "trace" in trial.check.params:
        find = trial.workspace.resolve(trial.check.params["trace"])
        line = find(trial.check.harness.rpartition(":")[2], name, subject)
        attempt.counterexample["trace"] = None if line is None else as_json(line)
        return
    reference = None if subject is trial.reference else trial.reference
    trial.untold.append(partial(replayed, trial.check, trial.harness, subject, reference, violation, attempt))
