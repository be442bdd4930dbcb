"""Proofs about the real PyTorch step: followed, compared with the full batch, and judged over whole tensors.

The full batch is trained by the harness's `specification`, a step of another text; without one, by the subject itself,
whose mistakes that do not depend on N then go unseen.

Each configuration of the claim is verified with the subject, then those of the first net with the further correct
steps that the claim names (`also`); all of them must hold. Then the empty body and every named mutant run through the
same verifier, net by net. A mutant is killed only when the obligation that it is named for is REFUTED, and when the
line that the verifier blames lies inside the mutant's class (or in the function that the harness names for it).

How far a HOLDS goes: BOUNDED, all weights, data and draws at these shapes that take the recorded path, where terms over
the reals were proved equal. What is read off the recorded numbers is SAMPLED.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gradproof.core.check import Check, Control, Finding, Resolver
from gradproof.core.outcome import Outcome, Reach
from gradproof.core.workspace import CONTENT
from gradproof.execution.methods.controls import drop_equivalent, remaining
from gradproof.shadow.follow.facts import DOMAIN
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.locations import NOWHERE, USER, Location, owner
from gradproof.shadow.request import Request
from gradproof.shadow.result import ALL_DATA, OBLIGATIONS, ON_PATH, RECORDED, SEVERITY, Result, Verification, worst
from gradproof.shadow.tape.calls import PASS, STEP

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Counterexample
    from gradproof.shadow.tape.run import Run


# -- What a step proof records: its configurations, and the interface of its harness.
BOUNDS = frozenset({"micro_batches", "windows"})
OWN = "own"
"""The optimizer of a setting whose subject makes its own: model, data, optimizer, precision and weights."""

USERS, ANYWHERE = "any line of the user's", "any line, or none"
"""What `Harness.blamed` may say of a mutant that is made around a function, instead of naming one."""


@dataclass(frozen=True, slots=True)
class StepSetting:
    """One configuration: `windows` of `n` micro-batches of `micro_batch` samples, then one of `tail` micro-batches.

    `overflow`: before this window stands one more, whose gradients overflow: the loss scaler suppresses its step.
    """

    net: str
    n: int
    windows: int
    tail: int = 0
    micro_batch: int = 1
    optimizer: str = "sgd"
    form: str = "single"
    mode: str = "fp32"
    weighting: str = "equal"
    max_norm: float | None = None
    loss_scale: float | None = None
    overflow: int | None = None

    def __str__(self) -> str:
        if self.optimizer == OWN:
            return f"N={self.n} windows={self.windows} tail={self.tail}, micro-batches of {self.micro_batch}"
        extras = [f"clip {self.max_norm:g}"] if self.max_norm is not None else []
        extras += [f"loss scale {self.loss_scale:g}"] if self.loss_scale is not None else []
        extras += [f"an overflow before window {self.overflow}"] if self.overflow is not None else []
        shape = f"{self.net} N={self.n} windows={self.windows} tail={self.tail}"
        return ", ".join([shape, f"{self.optimizer} {self.form}", self.mode, f"weights by {self.weighting}", *extras])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON form; `Setting(**data)` reads it back."""
        return asdict(self)

    @property
    def due(self) -> int:
        """Optimizer steps that are due."""
        return self.windows + (self.tail > 0)


class StepHarness(Protocol):
    """A harness of step proofs.

    `specification(setting)`, where there is one, is the function that trains by the full batch, written independently
    of the subjects. `shown_by`, where there is one, names the obligation by which a recording shows a mutant where that
    is another than its own. `blamed` names, for mutants that leave something out, the function (`module:attribute`) in
    which the faulty line may lie, or USERS or ANYWHERE; every other mutant must be blamed inside its own class.
    """

    blamed: Mapping[str, str]

    def step(self, subject: Any, setting: StepSetting) -> Callable[[Run], Any]:
        """The function that trains the subject in the configuration; what it returns are the window losses."""
        ...

    def covers(self, settings: Sequence[StepSetting]) -> Sequence[str]:
        """Names of what the configurations must reach, beyond that each was compared."""
        ...

    def reached(self, setting: StepSetting) -> Iterable[str]:
        """Which of the covers this configuration reaches."""
        ...


def crossed(factors: Sequence[Sequence[Any]], possible: Callable[[Any], bool]) -> list[tuple[Any, ...]]:
    """Rows of one value a factor, so that every two values that can stand together do in some row.

    Greedy over the product of all factors, the first of the best rows each time: the same on every machine.
    """
    rows = [row for row in itertools.product(*factors) if possible(row)]
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    left, made = set[Any]().union(*pairs.values()), list[tuple[Any, ...]]()
    while left:
        made.append(max(rows, key=lambda row: len(left & pairs[row])))
        left -= pairs[made[-1]]
    return made


def settings_of(check: Check) -> list[StepSetting]:
    """The configurations of a claim, its first net's first. Raises KeyError when a bound or a param is not stated.

    Every two values of nets, n, optimizers, modes, clips, loss scales and overflows meet in one of them. A step is
    suppressed under a loss scale alone; a fused optimizer is called then all the same, which looks like a step.
    """
    params, windows = check.params, check.bound("windows")
    stated = {name: params.get(name) or [None] for name in ("max_norm", "loss_scale", "overflow")}
    listed = {name: [value] if isinstance(value, str) else value for name, value in stated.items()}

    def possible(row: Sequence[Any]) -> bool:
        return row[6] is None or (row[5] is not None and not row[2].endswith("fused"))

    def setting(net: str, n: int, optimizer: str, mode: str, *numbers: Any) -> StepSetting:
        name, _, form = optimizer.partition(" ")
        tail, size = int(params.get("tail", 0)), int(params.get("micro_batch", 1))
        return StepSetting(
            net, n, windows, tail if tail < n else 0, size, name, form or "single", mode,
            params.get("weighting", "equal"), *numbers,
        )  # fmt: skip

    factors = (
        [str(net) for net in params["nets"]], [int(n) for n in params["n"]], params.get("optimizers") or ["sgd"],
        params.get("modes") or ["fp32"], [_number(x) for x in listed["max_norm"]],
        [_number(x) for x in listed["loss_scale"]], listed["overflow"],
    )  # fmt: skip
    made = [setting(*row) for row in crossed(factors, possible)]
    return sorted(made, key=lambda s: list(params["nets"]).index(s.net))


def _number(text: Any) -> float | None:
    """A number as a contract states it; `none` is a configuration without."""
    return None if text in (None, "none") else float(text)


def idle_bounds(check: Check) -> list[str]:
    """Bounds that are stated and that the configurations do not reach or read."""
    found = [b.name for b in check.bounds if b.name not in BOUNDS]
    sizes = [int(n) for n in check.params.get("n", ())]
    if sizes and max(sizes) != check.bound("micro_batches"):
        found.append("micro_batches")
    return found


EMPTY = "empty body"
COMPARED = "every configuration was compared"
REPLAYED = "the real step, recorded again"


@dataclass
class Tried:
    """One verification, and what it says of the obligations of the claim."""

    subject: str
    setting: StepSetting
    made: Verification
    results: list[Result]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome; an obligation that nothing decided makes it VACUOUS."""
        found = worst(result.outcome for result in self.results)
        return Outcome.VACUOUS if found is Outcome.NOT_RUN else found

    @property
    def result(self) -> Result:
        """The result that decides the outcome."""
        return min(self.results, key=lambda r: SEVERITY.index(r.outcome))


@dataclass
class StepTrial:
    """One check: what all its verifications share."""

    check: Check
    workspace: Resolver
    harness: StepHarness
    settings: list[StepSetting]
    tried: list[Tried] = field(default_factory=list)

    def verify(self, name: str, subject: Any, setting: StepSetting, asked: Sequence[str] = ()) -> Tried:
        """Record the subject in a configuration and judge the claim's obligations, or those that are asked for."""
        request = Request(setting.n, setting.micro_batch, setting.windows, setting.tail)
        specification = getattr(self.harness, "specification", None)
        full = None if specification is None else specification(setting)
        asked = asked or self.check.obligations
        made = check_whole(self.harness.step(subject, setting), name, request, full=full, asked=asked)
        return Tried(name, setting, made, judged(asked, setting, made))

    def shown(self, text: str) -> str:
        """A text without the path of the workspace."""
        root = getattr(self.workspace, "root", None)
        return text if root is None else text.replace(f"{root}/", "")


def judged(obligations: Sequence[str], setting: StepSetting, made: Verification) -> list[Result]:
    """The results of the claimed obligations. A subject that does nothing breaks each of them.

    Raises ValueError for an obligation that the verifier does not know.
    """
    unknown = [name for name in obligations if name not in OBLIGATIONS]
    if unknown or not obligations:
        raise ValueError(f"the verifier judges {', '.join(OBLIGATIONS)}; not {', '.join(unknown) or 'nothing'}")
    found = {result.obligation: result for result in made.results}
    none = Result("", Outcome.NOT_RUN, "the verifier said nothing of it")
    rows = [found.get(name, none) for name in obligations]
    acted = any(event.get("event") in (PASS, STEP) for event in made.events)
    if acted or any(row.outcome in (Outcome.ERROR, Outcome.OPAQUE) for row in rows):
        return rows
    words = f"no gradient arrived and no step was taken where {setting.due} steps are due"
    return [Result(name, Outcome.REFUTED, words, domain="events", reach=RECORDED) for name in obligations]


def run(check: Check, workspace: Resolver) -> Finding:
    """Run one TRACE check. Raises what the workspace raises for a name that does not resolve, and ValueError."""
    harness: StepHarness = workspace.resolve(check.harness)
    subject = workspace.resolve(check.subject)
    trial = StepTrial(check, workspace, harness, settings_of(check))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        broken = _subjects(trial, subject)
        finding = _judged(trial)
        if broken is not None:
            _refuted(trial, finding, broken)
        elif finding.outcome is Outcome.HOLDS:
            _covered(trial, finding)
        if finding.outcome is Outcome.HOLDS and not check.params.get("controls_off"):
            rows = list(_controls(check, workspace, getattr(harness, "shown_by", {})))
            finding.controls = [_control(trial, *row) for row in rows]
            drop_equivalent(rows, workspace.resolve(check.params["subjects"]["torch_mutants"]) if check.mutants else {})
            alive = [f"{c.name} ({c.outcome}: {c.reason})" for c in finding.controls if not c.killed]
            if alive:
                finding.outcome, finding.reason = remaining(finding.controls), f"not killed: {'; '.join(alive)}"
    finally:
        torch.set_num_threads(threads)
    if finding.outcome is not Outcome.HOLDS:
        finding.reach = None
    return finding


def _subjects(trial: StepTrial, subject: Any) -> tuple[Tried, Any] | None:
    """Verify the subject everywhere and the further steps on the first net; stop at a refutation or a crash."""
    rows = [(trial.check.subject, subject, setting) for setting in trial.settings]
    for name in trial.check.params.get("also", ()):
        other = trial.workspace.resolve(name)
        rows += [(name, other, setting) for setting in trial.settings if setting.net == trial.settings[0].net]
    for name, one, setting in rows:
        tried = trial.verify(name, one, setting)
        trial.tried.append(tried)
        if tried.outcome in (Outcome.REFUTED, Outcome.ERROR):
            return (tried, one) if tried.outcome is Outcome.REFUTED else None
    return None


def _judged(trial: StepTrial) -> Finding:
    """The worst of the verifications, with everything that they rest on."""
    check, tried = trial.check, trial.tried
    finding = Finding(
        Outcome.VACUOUS, "the claim lists no configuration", domain=f"{len(trial.settings)} configurations"
    )
    finding.stats = _stats(trial)
    assumed = [a for t in tried for a in (*t.made.assumptions, *(f"path: {text}" for text in t.made.paths))]
    finding.assumptions = [*check.assumptions, *dict.fromkeys(map(trial.shown, assumed))]
    if not tried:
        return finding
    bad = min(tried, key=lambda t: SEVERITY.index(t.outcome))
    finding.outcome = bad.outcome
    finding.domain = f"{len(tried)} verifications of {len({t.subject for t in tried})} steps"
    finding.covers = [{"name": COMPARED, "reached": bad.outcome is Outcome.HOLDS, "witness": str(len(tried))}]
    if bad.outcome is not Outcome.HOLDS:
        finding.reason = _stated(trial, bad)
        finding.clauses = {bad.result.obligation or check.obligations[0]: str(bad.outcome)}
        return finding
    finding.reach = min((reach_of(r) for t in tried for r in t.results), key=[Reach.SAMPLED, Reach.BOUNDED].index)
    finding.clauses = {name: f"HOLDS: {_established(name, tried)}" for name in check.obligations}
    finding.reason = f"{finding.domain}, {len(check.obligations)} obligations each: every one holds"
    if idle := idle_bounds(check):
        finding.outcome, finding.reason = Outcome.WEAK, f"a bound is stated and never read: {', '.join(idle)}"
    return finding


def _stated(trial: StepTrial, tried: Tried) -> str:
    """Why a verification does not hold: the subject where it is another, the reason, the line and the help."""
    result = tried.result
    who = "" if tried.subject == trial.check.subject else f"{tried.subject}: "
    reason = trial.shown(result.reason)
    return f"{who}{result.obligation} {reason}{_at(result.location)} ({tried.setting})"


def _at(location: Location | None) -> str:
    return "" if location is None or location == NOWHERE else f", at {shown(location)}"


def shown(location: Location) -> str:
    """The path from models/ or symbolic/ on, elsewhere folder/file, and the line: the same on every machine."""
    parts = Path(location.file).parts
    start = max((i for i, part in enumerate(parts[:-1]) if part in CONTENT), default=max(0, len(parts) - 2))
    return f"{'/'.join(parts[start:])}:{location.line}"


def reach_of(result: Result) -> Reach:
    """How far one result that holds goes."""
    known = (ALL_DATA, ON_PATH[ALL_DATA])
    return Reach.BOUNDED if result.domain == DOMAIN and result.reach.startswith(known) else Reach.SAMPLED


def _established(name: str, tried: Sequence[Tried]) -> str:
    """By what an obligation was established in the configurations, in words."""
    rows = [r for t in tried for r in t.results if r.obligation == name]
    found = [f"{r.domain}, {r.reach}" + (f", {d}" if (d := r.details.get("established_by")) else "") for r in rows]
    return "; ".join(dict.fromkeys(found))


def _stats(trial: StepTrial) -> dict[str, Any]:
    """What was recorded: operators, paths, versions and seconds."""
    made = [t.made for t in trial.tried]
    operators: Counter[str] = Counter()
    for one in made:
        operators.update(one.operators)
    texts = {name: dict.fromkeys(trial.shown(x) for m in made for x in getattr(m, name)) for name in TEXTS}
    return {
        "configurations": [str(s) for s in trial.settings],
        "subjects": list(dict.fromkeys(t.subject for t in trial.tried)),
        "operators": dict(sorted(operators.items())),
        "operators_counted": sum(operators.values()),
        **{name: list(found) for name, found in texts.items()},
        "versions": made[0].versions if made else {},
        "seconds": [{"configuration": str(t.setting), "subject": t.subject, **t.made.seconds} for t in trial.tried],
    }


TEXTS = ("paths", "uncovered", "havocked", "notes")


def _covered(trial: StepTrial, finding: Finding) -> None:
    """Whether the configurations reach what the harness says that they must."""
    names = list(trial.harness.covers(trial.settings))
    witness: dict[str, str] = {}
    for setting in trial.settings:
        for name in trial.harness.reached(setting) if set(names) - set(witness) else ():
            witness.setdefault(name, str(setting))
    finding.covers += [{"name": n, "reached": n in witness, "witness": witness.get(n)} for n in names]
    unreached = [n for n in names if n not in witness]
    if unreached:
        finding.outcome, finding.reason = Outcome.VACUOUS, f"never reached: {', '.join(unreached)}"


def _refuted(trial: StepTrial, finding: Finding, broken: tuple[Tried, Any]) -> None:
    """Record the refuted step once more: only what is refuted again is REFUTED."""
    tried, subject = broken
    finding.counterexample = _example(trial, tried, tried.result)
    finding.replays = [_again(trial, tried.subject, subject, tried.setting, tried.result.obligation)]
    if not finding.replays[0]["reproduced"]:
        finding.outcome = Outcome.SPURIOUS
        finding.reason = f"{finding.reason}; {finding.replays[0]['detail']}"


def _example(trial: StepTrial, tried: Tried, result: Result) -> dict[str, Any]:
    values = {
        "setting": tried.setting.to_json(),
        "subject": tried.subject,
        "place": shown(result.location) if result.location is not None and result.location != NOWHERE else "",
        "detail": trial.shown(result.reason),
        "help": result.help,
        **{name: value for name, value in (result.counterexample or {}).items() if name != "trace"},
    }
    trace = (result.counterexample or {}).get("trace")
    stated = {} if trace is None else {"trace": trace}
    return {
        "clause": result.obligation,
        "values": values,
        "found_by": f"gradproof.shadow, {result.domain or 'events'}",
        **stated,
    }


def _again(trial: StepTrial, name: str, subject: Any, setting: StepSetting, clause: str) -> dict[str, Any]:
    """Is the same obligation refuted by fresh recordings?"""
    tried = trial.verify(name, subject, setting)
    found = next((r for r in tried.results if r.obligation == clause), None)
    stated = "the verifier said nothing of it" if found is None else f"{found.outcome}: {trial.shown(found.reason)}"
    return {"on": REPLAYED, "reproduced": found is not None and found.outcome is Outcome.REFUTED, "detail": stated}


def _controls(check: Check, workspace: Resolver, shown_by: Mapping[str, str]) -> Iterator[tuple[Control, Any]]:
    """The empty body and every named mutant; the subject of a mutant that does not exist is None.

    `shown_by`: the obligation by which a recording shows a mutant, where that is another than it is named for.
    """
    subjects: Mapping[str, str] = check.params["subjects"]
    yield Control(EMPTY, "empty_body", "", Outcome.ERROR, False), workspace.resolve(subjects["torch_empty"])
    registry = workspace.resolve(subjects["torch_mutants"]) if check.mutants else {}
    for name in check.mutants:
        mutant = registry.get(name)
        if mutant is None:
            reason = "the workspace has no PyTorch mutant of this name"
            yield Control(name, "mutant", check.obligations[0], Outcome.NOT_RUN, False, reason=reason), None
        else:
            clause = shown_by.get(name, mutant.obligation)
            yield Control(name, "mutant", clause, Outcome.ERROR, False, mutant.reference), mutant.subject


def _control(trial: StepTrial, control: Control, subject: Any) -> Control:
    """Verify a control, configuration by configuration, until the obligation that it is named for is refuted."""
    if subject is None:
        return control
    began = time.perf_counter()
    clauses = [control.clause] if control.clause else list(trial.check.obligations)
    control.outcome, control.reason = Outcome.HOLDS, "the verifier finds nothing wrong with it"
    for setting in trial.settings:
        try:
            tried = trial.verify(control.name, subject, setting, clauses)
        except Exception as error:  # a crash of the mutant is an outcome: ERROR, and never a kill
            control.outcome, control.reason = Outcome.ERROR, f"crashed: {type(error).__name__}: {error}"
            break
        if _settled(trial, control, subject, tried, clauses):
            break
    control.seconds = round(time.perf_counter() - began, 3)
    return control


def _settled(trial: StepTrial, control: Control, subject: Any, tried: Tried, clauses: Sequence[str]) -> bool:
    """Take over what one verification says of a control. True when there is nothing more to try."""
    hit = next((r for r in tried.results if r.obligation in clauses and r.outcome is Outcome.REFUTED), None)
    if hit is None:
        if control.outcome is Outcome.HOLDS and tried.outcome is not Outcome.HOLDS:
            control.outcome, control.reason = tried.outcome, _stated(trial, tried)
            if control.outcome is Outcome.REFUTED:
                control.reason = f"{control.reason}; it is named for {', '.join(clauses)}"
        return control.outcome is Outcome.ERROR
    control.outcome, control.counterexample = Outcome.REFUTED, _example(trial, tried, hit)
    control.replays = [{"on": "the real step, as recorded", "reproduced": True, "detail": trial.shown(hit.reason)}]
    wanted = "" if control.kind == "empty_body" else _misplaced(trial, control.name, subject, hit.location)
    control.killed = not wanted
    control.reason = f"{hit.obligation} {trial.shown(hit.reason)}{_at(hit.location)}{wanted}"
    return True


def _misplaced(trial: StepTrial, name: str, subject: Any, location: Location | None) -> str:
    """What is wrong with the blamed line; nothing where it lies in the mutant, or where the harness says."""
    where = trial.harness.blamed.get(name)
    if where in (USERS, ANYWHERE):
        seen = where == ANYWHERE or (location is not None and location != NOWHERE and owner(location.file) == USER)
        return "" if seen else f"; the faulty line is {where}"
    targets = [*_own(subject), *([trial.workspace.resolve(where)] if where is not None else [])]
    for target in targets:
        lines, first = inspect.getsourcelines(target)
        same = location is not None and Path(location.file) == Path(inspect.getsourcefile(target) or "")
        if location is not None and same and first <= location.line < first + len(lines):
            return ""
    return f"; the faulty line lies in {where or getattr(subject, '__qualname__', name)}"


def _own(subject: Any) -> list[Any]:
    """The mutant's class, and what it inherits from in its own module."""
    classes = inspect.getmro(subject) if inspect.isclass(subject) else (subject,)
    return [c for c in classes if getattr(c, "__module__", "") == getattr(subject, "__module__", None)]


def replay(
    check: Check, workspace: Resolver, counterexample: Counterexample, subject: Any = None
) -> list[dict[str, Any]]:
    """Verify the configuration of a stored counterexample again, on the check's subject or on the one given.

    Raises KeyError or TypeError when it carries no configuration.
    """
    setting = StepSetting(**counterexample.values["setting"])
    trial = StepTrial(check, workspace, workspace.resolve(check.harness), [setting])
    subject = subject or workspace.resolve(check.subject)
    return [_again(trial, check.subject, subject, setting, counterexample.clause)]
