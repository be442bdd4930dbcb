"""The CrossHair backend: a contract confirmed over all paths, its covers refuted, and every control refuted.

A harness is a factory `f(subject, number=...) -> contract`, a plain function whose docstring holds `pre:` lines (the
bounds) and `post: _`. Its module also has `COVERS`: for each harness, factories of functions with `post: not _`, which
CrossHair must refute; and `BOUNDS`: for each harness, the named bounds that its `pre:` lines reach.
"""

from __future__ import annotations

import functools
import gc
import inspect
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from crosshair.core import ConditionCheckable
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet

from gradproof.arith.soft import Soft
from gradproof.core.check import Check, Control, Finding, Resolver
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome, Reach
from gradproof.execution.methods.controls import drop_equivalent, named_controls, remaining, survivors
from gradproof.execution.methods.counterexample import CUT, EXACT, events_during, traced
from gradproof.execution.methods.harness import case_of
from gradproof.execution.methods.replay import instance, watched

# -- Asking CrossHair about one function, and what its answer is worth.
SAMPLES = 200
TRIES = 20_000
SPAN = (0, 1, -1, 2, 3, 4, 5, 6, -2, -3, 7, 1000, -1001)
BITS = (False, True)

ANSWER: Mapping[str, Outcome] = {
    "CONFIRMED": Outcome.HOLDS,
    "CANNOT_CONFIRM": Outcome.UNKNOWN,
    "PRE_UNSAT": Outcome.VACUOUS,
    "POST_FAIL": Outcome.REFUTED,
    "POST_ERR": Outcome.ERROR,
    "EXEC_ERR": Outcome.ERROR,
    "SYNTAX_ERR": Outcome.ERROR,
    "IMPORT_ERR": Outcome.ERROR,
}

Contract = Callable[..., Any]


@dataclass
class Answer:
    """What CrossHair said of one function, and the arguments of its counterexample."""

    outcome: Outcome
    reason: str
    values: dict[str, Any] | None = None
    paths: int = 0
    seconds: float = 0.0


@dataclass
class CrosshairWatch:
    """What was seen of one exploration from inside."""

    entered: int = 0
    judged: int = 0
    raised: str = ""
    values: dict[str, Any] | None = None
    stats: Counter[str] = field(default_factory=Counter)


def consult(contract: Contract, post: str, limit: float, most_paths: int = sys.maxsize) -> Answer:
    """Ask CrossHair about a function whose postcondition reads `post`, for at most `limit` seconds of CPU time."""
    if limit <= 0:
        return Answer(Outcome.TIMEOUT, "no time was left for it")
    watch, began = CrosshairWatch(), time.process_time()
    try:
        checkables = analyze_function(contract, options(limit, most_paths, watch.stats))
        problem = unsuitable(checkables, post)
        asked = [counted(c, watch) for c in checkables if isinstance(c, ConditionCheckable)]
        with uncollected():
            messages = [] if problem else run_checkables(asked)
    except Exception as error:  # CrossHair's own failure is an outcome, and never an answer
        return Answer(Outcome.ERROR, f"CrossHair failed: {type(error).__name__}: {error}")
    used = time.process_time() - began
    answer = Answer(Outcome.ERROR, problem) if problem else read(messages, watch)
    answer.paths, answer.seconds = watch.stats["num_paths"], round(used, 3)
    if answer.outcome is Outcome.UNKNOWN and answer.paths >= most_paths:
        answer.outcome, answer.reason = Outcome.BOUND_HIT, f"the bound of {most_paths} paths was reached"
    elif answer.outcome is Outcome.UNKNOWN and used >= 0.95 * limit:
        answer.outcome, answer.reason = Outcome.TIMEOUT, f"not confirmed within {limit:.1f} s of CPU time"
    return answer


@contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage is collected inside, but all of it before.

    z3 gives the number of a collected term to a later one, and what it answers depends on numbers: a counterexample
    would depend on when the interpreter collects, and so on all that was imported before.
    """
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def options(limit: float, most_paths: int, stats: Counter[str]) -> AnalysisOptionSet:
    """Every option that can end an exploration early, set here, so that no comment in a source file sets it."""
    return AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316],
        enabled=True,
        specs_complete=False,
        report_all=True,
        per_condition_timeout=limit,
        per_path_timeout=max(1.0, limit / 2),
        max_iterations=most_paths,
        max_uninteresting_iterations=sys.maxsize,
        stats=stats,
    )


def unsuitable(checkables: Sequence[Any], post: str) -> str:
    """Why CrossHair's reading of the docstring is no claim of ours, or an empty text."""
    if not checkables:
        return "CrossHair found no contract in the docstring"
    if not isinstance(checkables[0], ConditionCheckable):
        said = "; ".join(m.message for m in checkables[0].analyze())
        return f"CrossHair cannot read the contract: {said}"
    if len(checkables) > 1:
        return f"the docstring states {len(checkables)} postconditions, not one"
    conditions = checkables[0].conditions
    if conditions.post[0].expr_source.strip() != post:
        return f"the postcondition reads {conditions.post[0].expr_source!r}, not {post!r}"
    if conditions.raises:
        return "the docstring declares exceptions, which CrossHair would count as success"
    return ""


def counted(checkable: ConditionCheckable, watch: CrosshairWatch) -> ConditionCheckable:
    """The same question: counts paths, keeps a counterexample's arguments, ignores contracts of called functions."""
    conditions = checkable.conditions
    post = conditions.post[0]

    @functools.wraps(conditions.fn)
    def entered(*args: Any, **kwargs: Any) -> Any:
        watch.entered += 1
        return conditions.fn(*args, **kwargs)

    def judged(scope: Mapping[str, object]) -> Any:
        watch.judged += 1
        assert post.evaluate is not None
        return post.evaluate(scope)

    def guarded(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def assumed(scope: Mapping[str, object]) -> Any:
            try:
                return evaluate(scope)
            except Exception as error:
                watch.raised = f"a pre: line raised {type(error).__name__}"
                raise

        return assumed

    def kept(args: inspect.BoundArguments, returned: object, reprs: Any) -> tuple[str, str]:
        watch.values = dict(args.arguments)
        return ", ".join(f"{k}={v!r}" for k, v in args.arguments.items()), repr(returned)

    pre = [p if p.evaluate is None else replace(p, evaluate=guarded(p.evaluate)) for p in conditions.pre]
    stated = replace(
        conditions, fn=entered, pre=pre, post=[replace(post, evaluate=judged)], counterexample_description_maker=kept
    )
    return ConditionCheckable(checkable.ctxfn, replace(checkable.options, analysis_kind=()), stated)


def read(messages: Sequence[Any], watch: CrosshairWatch) -> Answer:
    """The answer in CrossHair's messages. Nothing, several kinds or an unknown kind is an ERROR."""
    kinds = {m.state.name for m in messages}
    if len(kinds) != 1:
        return Answer(Outcome.ERROR, f"CrossHair gave {'several answers' if kinds else 'no answer'}: {sorted(kinds)}")
    kind, said = kinds.pop(), messages[0].message
    outcome = ANSWER.get(kind)
    if watch.raised:
        return Answer(Outcome.ERROR, f"{watch.raised}, which CrossHair would read as an assumption: {said}")
    if outcome is None:
        return Answer(Outcome.ERROR, f"CrossHair said {kind}, which gradproof does not know: {said}")
    if outcome is Outcome.HOLDS:
        return confirmed(watch)
    if outcome is Outcome.VACUOUS and (watch.entered or not watch.stats["exhaustion"]):
        return Answer(Outcome.UNKNOWN, f"{watch.entered} paths entered the body and none was finished")
    if outcome is Outcome.REFUTED and watch.values is None:
        return Answer(Outcome.ERROR, f"CrossHair gave a counterexample without arguments: {said}")
    return Answer(outcome, f"{kind}: {said}", watch.values if outcome is Outcome.REFUTED else None)


def confirmed(watch: CrosshairWatch) -> Answer:
    """What a CONFIRMED is worth: HOLDS only if the tree was exhausted and each path that began was judged."""
    if watch.stats["exhaustion"] < 1:
        return Answer(Outcome.UNKNOWN, "CrossHair said CONFIRMED although its paths were not exhausted")
    if watch.judged == 0:
        return Answer(Outcome.VACUOUS, "no path reached the postcondition")
    if watch.judged != watch.entered:
        return Answer(Outcome.UNKNOWN, f"{watch.entered - watch.judged} of {watch.entered} paths were dropped")
    return Answer(Outcome.HOLDS, f"confirmed over all paths; {watch.judged} of them reached the postcondition")


def sampled(contract: Contract) -> tuple[int, str]:
    """Call a contract of ints and truth values on arguments that meet its `pre:` lines.

    Returns the number of calls and the first disagreement with a confirmation. Other arguments are not sampled.
    """
    checkable = analyze_function(contract, options(1.0, 1, Counter()))[0]
    assert isinstance(checkable, ConditionCheckable)
    types = {p.name: p.annotation for p in checkable.conditions.sig.parameters.values()}
    if not set(types.values()) <= {int, bool}:
        return 0, ""
    pre = [p.evaluate for p in checkable.conditions.pre if p.evaluate is not None]
    draws, done = random.Random(20260115), 0
    for _ in range(TRIES):
        if done == SAMPLES:
            break
        values = {name: draws.choice(BITS if kind is bool else SPAN) for name, kind in types.items()}
        if all(condition(values) for condition in pre):
            done += 1
            fails, said = broken(contract, values)
            if fails is not False:
                return done, f"{values}: {said}"
    return done, ""


def broken(contract: Contract, values: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether plain Python finds the function false on these arguments; None where it raises."""
    try:
        returned = contract(**values)
    except Exception as error:
        return None, f"raised {type(error).__name__}: {error}"
    return not returned, f"returned {returned!r}"


__all__ = ["broken", "run"]

CLAIM, COVER = "_", "not _"

DOMAIN: Mapping[str, str] = {
    "Ratio": "integers and rationals (no rounding)",
    "Lattice": "integers; every operation rounded to nearest even in fp32, fp16 or bf16",
}


def fresh(harness: Callable[..., Contract], subject: Any, **setup: Any) -> Contract:
    """The harness's contract, each call of which is about an instance of its own: what a run leaves in it is lost."""
    contract = harness(instance(subject), **setup)

    @functools.wraps(contract)
    def anew(*args: Any, **kwargs: Any) -> Any:
        return harness(instance(subject), **setup)(*args, **kwargs)

    return anew if isinstance(subject, type) else contract


@dataclass
class HarnessTrial:
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

    def replayed(self, subject: Any, values: Mapping[str, Any], example: dict[str, Any]) -> None:
        """Add the window of events to a reproduced counterexample."""

        def run(one: Any) -> Any:
            return broken(self.harness(watched(one, self.reference)), values)

        ours = events_during(lambda: run(subject))
        right = [] if subject is self.reference else events_during(lambda: run(self.reference))
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


def run(check: Check, workspace: Resolver) -> Finding:
    """Confirm or refute one CrossHair check. Raises GradproofError when a name does not resolve."""
    harness, reference = workspace.resolve(check.harness), workspace.resolve(check.subject)
    covers, (controls, _) = stated(check, workspace, "COVERS", ()), named_controls(check, workspace)
    trial = HarnessTrial(
        check, harness, reference, time.process_time() + check.time_limit, 1 + len(covers) + len(controls)
    )
    domain = DOMAIN.get(number_of(harness) or "", "the types of the contract's arguments")
    finding = Finding(Outcome.ERROR, "", Reach.BOUNDED, domain, assumptions=[*check.assumptions])
    _check_bounds(check, stated(check, workspace, "BOUNDS", {}), finding)
    if not finding.reason:
        _judge_subject(trial, workspace, finding)
    if finding.outcome is Outcome.HOLDS:
        if not inspect.signature(fresh(harness, reference)).parameters:
            finding.reach = Reach.CHOSEN
        _judge_covers(trial, covers, finding)
    if finding.outcome is Outcome.HOLDS:
        finding.controls = [_control(trial, control, subject) for control, subject in controls]
        drop_equivalent([(c, s) for c, (_, s) in zip(finding.controls, controls, strict=True)], {})
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


def stated(check: Check, workspace: Resolver, table: str, absent: Any) -> Any:
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


class CaseRecorder:
    """A subject that remembers the case it was last run on, in plain floats, for the replay on a PyTorch step."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self.case: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def run(self, params: Any, batches: Any, config: Any, buffer: Any) -> Any:
        """The subject's run."""
        self.case = case_of(batches, config, buffer)
        return self._subject.run(params, batches, config, buffer)


def torch_replay(trial: HarnessTrial, workspace: Resolver, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The refutation of the check's own subject on the PyTorch step of the same name, where there is one."""
    check, subjects = trial.check, trial.check.params.get("subjects", {})
    mutant = check.subject.partition("[")[2].rstrip("]")
    registry = workspace.resolve(subjects["torch_mutants"]) if mutant and "torch_mutants" in subjects else {}
    if "torch" not in subjects or (mutant and mutant not in registry) or not check.obligations:
        return []
    recorder = CaseRecorder(instance(trial.reference))
    broken(trial.harness(recorder), values)
    if recorder.case is None:
        return []
    from gradproof.execution.methods.replay_torch import replay_model

    step = registry[mutant].subject if mutant else workspace.resolve(subjects["torch"])
    return [replay_model(step, recorder.case, check.obligations[0])]


def _check_bounds(check: Check, reached: Mapping[str, int], finding: Finding) -> None:
    """A claim may state no bound beyond what the harness reaches."""
    for bound in check.bounds:
        if bound.name != "paths" and bound.value > reached.get(bound.name, 0):
            has = reached.get(bound.name, "nothing")
            finding.reason = f"the claim states {bound.name} = {bound.value}; the harness reaches {has}"


def _judge_subject(trial: HarnessTrial, workspace: Resolver, finding: Finding) -> None:
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
            trial.replayed(trial.reference, answer.values, finding.counterexample)
            finding.replays += torch_replay(trial, workspace, answer.values)
    elif answer.outcome is Outcome.HOLDS:
        count, disagreement = sampled(contract)
        finding.stats["samples"] = count
        if disagreement:
            finding.outcome = Outcome.ERROR
            finding.reason = f"CrossHair confirms what plain Python finds false on {disagreement}"
    finding.clauses = {name: str(finding.outcome) for name in check.obligations}


def _judge_covers(trial: HarnessTrial, covers: Sequence[Callable[..., Contract]], finding: Finding) -> None:
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


def _control(trial: HarnessTrial, control: Control, subject: Any) -> Control:
    """Put the same question about a mutant or the empty body; the harness gets neither name nor clause."""
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
            trial.replayed(subject, answer.values, control.counterexample)
    elif answer.outcome is Outcome.HOLDS:
        control.reason = "the contract finds nothing wrong with it"
    control.seconds = round(time.monotonic() - began, 3)
    return control


def _shown(clause: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"clause": clause, "values": {k: str(v) for k, v in values.items()}, "found_by": "crosshair"}
