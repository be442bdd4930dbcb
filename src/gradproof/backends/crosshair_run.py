"""The CrossHair backend: a contract confirmed over all paths, its covers refuted, and every control refuted.

A harness is a factory `f(subject, number=...) -> contract`, a plain function whose docstring holds `pre:` lines (the
bounds) and `post: _`. Its module also has `COVERS`: for each harness, factories of functions with `post: not _`, which
CrossHair must refute; and `BOUNDS`: for each harness, the named bounds that its `pre:` lines reach.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from gradproof.arith.ratio import Ratio
from gradproof.arith.soft import Soft
from gradproof.backends.crosshair_ask import Answer, Contract, broken, consult, sampled
from gradproof.backends.replay import instance, watched
from gradproof.backends.told import CUT, EXACT, heard, traced
from gradproof.backends.twins import disown, remaining, survivors
from gradproof.core import Check, Control, Finding, GradproofError, Outcome, Reach

__all__ = ["broken", "run"]

CLAIM, COVER = "_", "not _"

DOMAIN: Mapping[str, str] = {
    "Ratio": "integers and rationals (no rounding)",
    "Lattice": "integers; every operation rounded to nearest even in fp32, fp16 or bf16",
}


class Workspace(Protocol):
    """What the backend needs of the workspace."""

    def resolve(self, name: str) -> Any:
        """The object called `module:attribute`."""
        ...


def fresh(harness: Callable[..., Contract], subject: Any, **setup: Any) -> Contract:
    """The harness's contract, each call of which is about an instance of its own: what a run leaves in it is lost."""
    contract = harness(instance(subject), **setup)

    @functools.wraps(contract)
    def anew(*args: Any, **kwargs: Any) -> Any:
        return harness(instance(subject), **setup)(*args, **kwargs)

    return anew if isinstance(subject, type) else contract


@dataclass
class Trial:
    """One harness, ready to be tried on any subject, and the CPU time that is left."""

    check: Check
    harness: Callable[..., Contract]
    reference: Any
    deadline: float
    parts: int
    seconds: dict[str, float] = field(default_factory=dict)
    paths: dict[str, int] = field(default_factory=dict)

    def ask(self, name: str, contract: Contract, post: str) -> Answer:
        """Consult CrossHair within this part's share of the time; the check's own subject may take half."""
        left = self.deadline - time.process_time()
        share = left / 2 if name == "subject" else left / max(1, self.parts)
        paths = [b.value for b in self.check.bounds if b.name == "paths"]
        answer = consult(contract, post, share, *paths)
        self.parts -= 1
        self.seconds[name], self.paths[name] = answer.seconds, answer.paths
        return answer

    def replays(self, subject: Any, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The counterexample on the harness's own numbers, and in floats where the harness can change its numbers.

        The reference must hold on the same numbers; else the counterexample says nothing about the mutant.
        """
        rows = [self._replay("Python model, exact numbers", subject, values, {})]
        if (number := number_of(self.harness)) is None:
            return rows
        if number == "Lattice":
            soft = {"number": lambda g: Soft(g, "fp32")}
            rows.append(self._replay("Python model, IEEE software floats", subject, values, soft))
        rows.append(self._replay("Python model, NumPy floats", subject, values, {"number": float}))
        return [r for r in rows if "NumPy has no" not in r["detail"]]

    def retold(self, subject: Any, values: Mapping[str, Any], example: dict[str, Any]) -> None:
        """Add the window of events to a reproduced counterexample."""

        def run(one: Any) -> Any:
            return broken(self.harness(watched(one, self.reference)), values)

        ours = heard(lambda: run(subject))
        right = [] if subject is self.reference else heard(lambda: run(self.reference))
        slack = EXACT if number_of(self.harness) == "Lattice" else CUT
        clause = example["clause"] or "the contract"
        example |= traced(f"{clause}, {self.check.id}", ours, right, f"{clause} breaks", slack)

    def _replay(self, on: str, subject: Any, values: Mapping[str, Any], setup: Mapping[str, Any]) -> dict[str, Any]:
        fails, detail = broken(fresh(self.harness, subject, **setup), values)
        if fails and subject is not self.reference:
            other, said = broken(fresh(self.harness, self.reference, **setup), values)
            if other is not False:
                fails, detail = False, f"{detail}; but the reference fails there too: {said}"
        return {"on": on, "reproduced": fails is True, "detail": detail}


def run(check: Check, workspace: Workspace) -> Finding:
    """Confirm or refute one CrossHair check. Raises GradproofError when a name does not resolve."""
    harness, reference = workspace.resolve(check.harness), workspace.resolve(check.subject)
    covers, controls = stated(check, workspace, "COVERS", ()), controls_of(check, workspace)
    trial = Trial(check, harness, reference, time.process_time() + check.time_limit, 1 + len(covers) + len(controls))
    finding = _blank(check, harness)
    _check_bounds(check, stated(check, workspace, "BOUNDS", {}), finding)
    if not finding.reason:
        _judge_subject(trial, workspace, finding)
    if finding.outcome is Outcome.HOLDS:
        _judge_covers(trial, covers, finding)
    if finding.outcome is Outcome.HOLDS:
        finding.controls = [_control(trial, control, subject) for control, subject in controls]
        disown([(c, s) for c, (_, s) in zip(finding.controls, controls, strict=True)], {})
        if left := survivors(finding.controls):
            finding.outcome, finding.reason = remaining(finding.controls), left
    finding.stats |= {
        "solver": f"crosshair {version('crosshair-tool')}",
        "paths": trial.paths.get("subject", 0),
        "paths_of_parts": trial.paths,
        "seconds_of_parts": trial.seconds,
        "cpu_seconds": round(sum(trial.seconds.values()), 3),
    }
    return finding


def stated(check: Check, workspace: Workspace, table: str, absent: Any) -> Any:
    """What the harness's module states for it in COVERS or BOUNDS; `absent` when it states nothing."""
    module, _, name = check.harness.partition(":")
    try:
        rows = workspace.resolve(f"{module}:{table}")
    except GradproofError as error:
        if error.code != "GP204":
            raise
        return absent
    return rows.get(name, absent)


def number_of(harness: Callable[..., Contract]) -> str | None:
    """Name of the number system that the harness runs on by default; None where it has no such parameter."""
    parameter = inspect.signature(harness).parameters.get("number")
    return None if parameter is None else str(getattr(parameter.default, "__name__", ""))


def as_float(x: Any) -> float:
    """The float nearest to a concrete number."""
    return x.num / x.den if isinstance(x, Ratio) else float(x)


class Recorder:
    """A subject that remembers the case it was last run on, in plain floats, for the replay on a PyTorch step."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self.case: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def run(self, params: Any, batches: Any, config: Any, buffer: Any) -> Any:
        """The subject's run."""
        self.case = {
            "n": config.n,
            "losses": [as_float(b.loss) for b in batches],
            "grads": [[as_float(g) for g in b.grads] for b in batches],
            "counts": [b.count for b in batches],
            "max_norm": None if config.max_norm is None else as_float(config.max_norm),
            "loss_scale": None if config.loss_scale is None else as_float(config.loss_scale),
            "stale": [as_float(b) for b in buffer],
            "gradient_format": config.gradient_format,
            "skip": sorted(config.skip),
        }
        return self._subject.run(params, batches, config, buffer)


def torch_replay(trial: Trial, workspace: Workspace, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The refutation of the check's own subject on the PyTorch step of the same name, where there is one."""
    check, subjects = trial.check, trial.check.params.get("subjects", {})
    mutant = check.subject.partition("[")[2].rstrip("]")
    registry = workspace.resolve(subjects["torch_mutants"]) if mutant and "torch_mutants" in subjects else {}
    if "torch" not in subjects or (mutant and mutant not in registry) or not check.obligations:
        return []
    recorder = Recorder(instance(trial.reference))
    broken(trial.harness(recorder), values)
    if recorder.case is None:
        return []
    from gradproof.backends.torch_replay import replay_model

    step = registry[mutant].subject if mutant else workspace.resolve(subjects["torch"])
    return [replay_model(step, recorder.case, check.obligations[0])]


def controls_of(check: Check, workspace: Workspace) -> list[tuple[Control, Any]]:
    """The empty body and the named mutants. Raises GradproofError: GP301 unknown mutant, GP303 no empty body."""
    subjects: Mapping[str, str] = check.params.get("subjects", {})
    subjects = {**subjects, **{k: check.params[k] for k in ("empty", "mutants") if k in check.params}}
    if "empty" not in subjects:
        raise GradproofError(
            "GP303",
            f"{check.id} has no empty body",
            "subjects.empty in the contract",
            "name a subject that does nothing",
        )
    rows = [(Control("empty body", "empty_body", "", Outcome.ERROR, False), workspace.resolve(subjects["empty"]))]
    registry = workspace.resolve(subjects.get("mutants", "")) if check.mutants else {}
    for name in check.mutants:
        if name not in registry:
            raise GradproofError(
                "GP301",
                f"mutant {name!r}, named by {check.id}",
                f"one of {', '.join(registry)}",
                f"add it to {subjects['mutants']} or take it out of the contract",
            )
        m = registry[name]
        rows.append((Control(name, "mutant", m.obligation or check.id, Outcome.ERROR, False, m.reference), m.subject))
    return rows


def _blank(check: Check, harness: Callable[..., Contract]) -> Finding:
    domain = DOMAIN.get(number_of(harness) or "", "the types of the contract's arguments")
    return Finding(Outcome.ERROR, "", Reach.BOUNDED, domain, assumptions=[*check.assumptions])


def _check_bounds(check: Check, reached: Mapping[str, int], finding: Finding) -> None:
    """A claim may state no bound beyond what the harness reaches."""
    for bound in check.bounds:
        if bound.name != "paths" and bound.value > reached.get(bound.name, 0):
            has = reached.get(bound.name, "nothing")
            finding.reason = f"the claim states {bound.name} = {bound.value}; the harness reaches {has}"


def _judge_subject(trial: Trial, workspace: Workspace, finding: Finding) -> None:
    check, contract = trial.check, fresh(trial.harness, trial.reference)
    answer = trial.ask("subject", contract, CLAIM)
    finding.outcome, finding.reason = answer.outcome, answer.reason
    finding.assumptions += [
        line.strip() for line in (contract.__doc__ or "").splitlines() if line.strip()[:4] == "pre:"
    ]
    if answer.values is not None:
        finding.counterexample = _shown(check.obligations[0] if check.obligations else "", answer.values)
        finding.replays = trial.replays(trial.reference, answer.values)
        if not finding.replays[0]["reproduced"]:
            finding.outcome = Outcome.SPURIOUS
        else:
            trial.retold(trial.reference, answer.values, finding.counterexample)
            finding.replays += torch_replay(trial, workspace, answer.values)
    elif answer.outcome is Outcome.HOLDS:
        count, disagreement = sampled(contract)
        finding.stats["samples"] = count
        if disagreement:
            finding.outcome = Outcome.ERROR
            finding.reason = f"CrossHair confirms what plain Python finds false on {disagreement}"
    finding.clauses = {name: str(finding.outcome) for name in check.obligations}


def _judge_covers(trial: Trial, covers: Sequence[Callable[..., Contract]], finding: Finding) -> None:
    """Each cover must be refuted with arguments on which plain Python finds the situation too."""
    if not covers:
        finding.outcome, finding.reason = Outcome.VACUOUS, "the harness states no cover"
    for factory in covers:
        name = (factory.__doc__ or factory.__name__).strip().splitlines()[0]
        contract = fresh(factory, trial.reference)
        answer = trial.ask(f"cover {factory.__name__}", contract, COVER)
        reached = answer.values is not None and broken(contract, answer.values)[0] is False
        witness = {k: str(v) for k, v in (answer.values or {}).items()} if reached else None
        finding.covers.append({"name": name, "reached": reached, "witness": witness})
        if not reached and finding.outcome is Outcome.HOLDS:
            never = answer.outcome in (Outcome.HOLDS, Outcome.REFUTED, Outcome.VACUOUS)
            finding.outcome = Outcome.VACUOUS if never else answer.outcome
            finding.reason = f"cover not reached: {name} ({answer.reason})"


def _control(trial: Trial, control: Control, subject: Any) -> Control:
    """Put the same question about a mutant or the empty body; the harness is told neither name nor clause."""
    began = time.monotonic()
    try:
        answer = trial.ask(control.name, fresh(trial.harness, subject), CLAIM)
    except Exception as error:  # a mutant that cannot even be made is an ERROR, and never killed
        control.reason = f"{type(error).__name__}: {error}"
        return control
    control.outcome, control.reason = answer.outcome, answer.reason
    if answer.values is not None:
        control.counterexample = _shown(control.clause or "every clause", answer.values)
        control.replays = trial.replays(subject, answer.values)
        named = control.kind == "empty_body" or control.clause in trial.check.obligations
        control.killed = control.replays[0]["reproduced"] and named
        if not control.replays[0]["reproduced"]:
            control.outcome = Outcome.SPURIOUS
        elif not named:
            control.reason += f" (it is named for {control.clause})"
        elif control.kind == "mutant":
            trial.retold(subject, answer.values, control.counterexample)
    elif answer.outcome is Outcome.HOLDS:
        control.reason = "the contract finds nothing wrong with it"
    control.seconds = round(time.monotonic() - began, 3)
    return control


def _shown(clause: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"clause": clause, "values": {k: str(v) for k, v in values.items()}, "found_by": "crosshair"}
