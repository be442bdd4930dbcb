"""Runs a falsification property on real PyTorch: the subject, then the empty body, then every named mutant.

The fixed cases of the property's grid run cell by cell; then Hypothesis draws over all cells in one strategy (its
first draw is always the simplest case, so that one draw a cell would never vary). A failure shrinks. HOLDS needs every
cell judged, every cover reached, no survivor among the controls, and no measured error above its proven bound. A cell
whose kernel does not exist on a CPU is listed as NOT_RUN among the clauses, as is an optimizer form, and the others
decide; without a kernel on CUDA the check is NOT_RUN.

A control is killed when the property refutes it on the clause that it breaks and the counterexample fails again in a
fresh run outside Hypothesis. A crash is an ERROR and no kill.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, settings, strategies as st
from hypothesis.errors import Flaky

from gradproof.core.check import Check, Control, Finding, Resolver
from gradproof.core.outcome import Layer, Outcome, Reach
from gradproof.execution.methods.controls import drop_equivalent
from gradproof.execution.methods.counterexample import FLOATS, Said, events_during, events_of, listening, traced
from gradproof.execution.methods.exact_window import WindowTally
from gradproof.execution.methods.observe import phases
from gradproof.execution.methods.property import DTYPES, Case, Cell, NoKernel, Observed, Place, Property, Refutation

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Counterexample

EMPTY = "empty body"
CONTROL_EXAMPLES = 20  # drawn over the cells after the fixed cases; a control that needs more survives


def place_of(check: Check) -> Place:
    """Device, dtype and tolerances of a check. Raises ValueError when its params do not say."""
    device = str(check.params.get("device") or check.layer)
    dtype = str(check.params.get("dtype", ""))
    if not dtype and "@" in check.id:
        dtype = check.id.rpartition("@")[2].partition("-")[2]
    if dtype not in DTYPES or device not in (Layer.CPU, Layer.CUDA):
        raise ValueError(f"{check.id}: no device and dtype to run on (found {device!r}, {dtype!r})")
    rows = tolerances_of(check, dtype)
    required = frozenset(clause for clause, (_, role) in rows.items() if role == "required")
    return Place(device, dtype, {clause: value for clause, (value, _) in rows.items()}, required)


def tolerances_of(check: Check, dtype: str) -> dict[str, tuple[float, str]]:
    """Tolerance and role in this dtype, by obligation."""
    return {
        str(clause["id"]): (float(row["value"]), str(row.get("role") or "required"))
        for clause in check.text.get("obligations", ())
        for row in clause.get("tolerance") or ()
        if row["dtype"] == dtype
    }


@contextmanager
def _flags(place: Place) -> Iterator[dict[str, Any]]:
    """One thread on the CPU; on CUDA deterministic kernels, and TF32 as the dtype says, in both directions."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if place.device != "cuda":
        try:
            yield {"threads": 1}
        finally:
            torch.set_num_threads(threads)
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    held = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    tf32 = place.dtype == "fp32-tf32"
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = tf32, tf32, True, False
    try:
        yield {"threads": 1, "allow_tf32": tf32, "cudnn_deterministic": True, "cudnn_benchmark": False}
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = held
        torch.set_num_threads(threads)


def _device(place: Place) -> dict[str, Any]:
    seen: dict[str, Any] = {"torch": torch.__version__, "hypothesis": hypothesis.__version__, "device": place.device}
    if place.device == "cuda":
        seen |= {"device_name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        seen |= {"capability": list(torch.cuda.get_device_capability())}
    return seen


def _draw(prop: Property, cells: Sequence[Cell], place: Place, count: int, body: Any, shrink: bool) -> None:
    """Run `body` on cases drawn over all the cells. Raises what the smallest failing case raises."""
    cases = st.sampled_from(cells).flatmap(lambda cell: prop.strategy(cell, place))
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, phases=phases, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet, print_blob=False,
    )(given(cases)(body))  # fmt: skip
    run()


@dataclass
class Failure:
    """A case that the property refuted."""

    case: Case
    refutation: Refutation
    found_by: str


class _Counted:
    """A property that notes the cases without an answer: Hypothesis drops a case that says it does not suit."""

    def __init__(self, prop: Property) -> None:
        self._prop = prop
        self.left: list[Case] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prop, name)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """The property's own test. Raises what that raises."""
        self.left.append(case)
        seen = self._prop.test(subject, case, place)
        self.left.pop()
        return seen


def _failure(
    prop: Property,
    subject: Any,
    cells: Sequence[Cell],
    place: Place,
    count: int,
    tally: WindowTally | None,
    shrink: bool,
) -> Failure | None:
    """The first failing fixed case of the cells or the smallest failing drawn one; None when all pass.

    With `shrink` a fixed case that fails is followed by draws in its own cell, which may find a smaller one.
    """
    held: list[Failure] = []
    counted = _Counted(prop)
    prop = cast(Property, counted)

    def body(case: Case) -> None:
        try:
            seen = prop.test(subject, case, place)
        except Refutation as e:
            held.append(Failure(case, e, "Hypothesis"))
            raise
        if tally is not None:
            tally.add(case, seen)

    drawn = list(cells)
    for turn, cell in enumerate(cells):
        try:
            for case in prop.examples(cell, place, turn, len(cells)):
                body(case)
        except Refutation:
            held[-1].found_by, drawn = "a fixed case", [cell]
            break
    fixed = held[-1] if held else None
    if fixed is not None and not shrink:
        return fixed
    try:
        _draw(prop, drawn, place, count, body, shrink)
    except Refutation:
        return held[-1]
    if counted.left and fixed is None:
        stated = f"{len(counted.left)} cases were left without an answer, the first one {counted.left[0].to_json()}"
        raise RuntimeError(stated)
    return fixed


def _counterexample(failure: Failure) -> dict[str, Any]:
    values = {**failure.refutation.values, "case": failure.case.to_json(), "detail": failure.refutation.detail}
    return {"clause": failure.refutation.clause, "values": values, "found_by": failure.found_by}


def _again(prop: Property, subject: Any, case: Case, place: Place, clause: str) -> dict[str, Any]:
    """Run one case outside Hypothesis: does the same clause break?"""
    try:
        prop.test(subject, case, place)
    except Refutation as e:
        return {"on": str(place), "reproduced": e.clause == clause, "detail": str(e)}
    except Exception as e:
        return {"on": str(place), "reproduced": False, "detail": f"crashed: {type(e).__name__}: {e}"}
    return {"on": str(place), "reproduced": False, "detail": "the same case passes"}


def _control(
    prop: Property, control: Control, subject: Any, right: Any, place: Place, cells: Sequence[Cell], count: int
) -> Control:
    """Run the property on a control until it is refuted. Killed only on its clause, and only when replayed."""
    began = time.perf_counter()
    control.outcome, control.reason = Outcome.HOLDS, "the property let it pass on every case"
    try:
        failure = _failure(prop, subject, cells, place, count, None, shrink=False)
        if failure is not None:
            _refuted(control, prop, subject, right, place, failure)
    except Exception as e:
        control.outcome, control.reason = Outcome.ERROR, f"crashed, which kills nothing: {type(e).__name__}: {e}"
    control.seconds = round(time.perf_counter() - began, 4)
    return control


def _refuted(control: Control, prop: Property, subject: Any, right: Any, place: Place, failure: Failure) -> None:
    with listening() as said, phases():
        again = _again(prop, subject, failure.case, place, failure.refutation.clause)
    control.counterexample, control.replays = _counterexample(failure), [again]
    control.outcome = Outcome.REFUTED if again["reproduced"] else Outcome.SPURIOUS
    control.killed = control.outcome is Outcome.REFUTED and failure.refutation.clause == control.clause
    control.reason = str(failure.refutation)
    if control.killed and control.kind == "mutant":
        control.counterexample |= _replayed(prop, right, said, place, failure)
    if failure.refutation.clause != control.clause:
        control.reason = f"refuted on {failure.refutation.clause}, not on {control.clause}"


def _replayed(prop: Property, right: Any, ours: list[Said], place: Place, failure: Failure) -> dict[str, Any]:
    """The window of events of a reproduced counterexample, as its field; `right` is None where there is no other."""
    case, clause = failure.case, failure.refutation.clause
    stated = events_of(ours)
    theirs: list[Said] = []
    if stated and right is not None:
        with phases():
            theirs = events_during(lambda: _again(prop, right, case, place, clause))
    return traced(f"{clause}, {Cell(case.net, case.n)}", stated, theirs, f"{clause} breaks", FLOATS)


def _controls(
    prop: Property, check: Check, workspace: Resolver, right: Any, place: Place, cells: Sequence[Cell]
) -> list[Control]:
    """The empty body and every named mutant, on the cells of the first net, larger N after N = 2, 4."""
    first = sorted((c for c in cells if c.net == cells[0].net), key=lambda c: (c.n == 1, c.n))
    names = check.params.get("subjects", {})
    empty = workspace.resolve(check.params.get("empty") or names["torch_empty"])
    nothing = Control(EMPTY, "empty_body", prop.clause, Outcome.HOLDS, False)
    found = [_control(prop, nothing, empty, right, place, first, CONTROL_EXAMPLES)]
    subjects = [empty]
    mutants = workspace.resolve(check.params.get("mutants") or names["torch_mutants"]) if check.mutants else {}
    for name in check.mutants:
        if name not in mutants:
            reason = "inexpressible: the workspace has no PyTorch mutant of this name"
            found.append(Control(name, "mutant", prop.clause, Outcome.NOT_RUN, False, reason=reason))
            subjects.append(None)
            continue
        mutant = mutants[name]
        control = Control(name, "mutant", mutant.obligation, Outcome.HOLDS, False, mutant.reference)
        found.append(_control(prop, control, mutant.subject, right, place, first, CONTROL_EXAMPLES))
        subjects.append(mutant.subject)
    drop_equivalent(list(zip(found, subjects, strict=True)), mutants)
    return found


def _walk(
    prop: Property, subject: Any, check: Check, place: Place, cells: Sequence[Cell], tally: WindowTally
) -> Failure | None:
    """The reference over the cells of the grid that have their kernels here."""
    able = []
    for cell in cells:
        try:
            prop.probe(cell, place)
            able.append(cell)
        except NoKernel as e:
            tally.unsupported[str(cell)] = str(e)
    return _failure(prop, subject, able, place, check.bound("examples"), tally, shrink=True) if able else None


def run(check: Check, workspace: Resolver) -> Finding:
    """Run one TORCH check. Raises what the workspace raises for a name that does not resolve."""
    place = place_of(check)
    if place.device == "cuda" and not torch.cuda.is_available():
        return Finding(Outcome.NOT_RUN, "no CUDA device here: torch.cuda.is_available() is False")
    prop: Property = workspace.resolve(check.harness)
    subject = workspace.resolve(check.subject or check.params["subjects"]["torch"])
    cells, tally = list(prop.cells(place, check.params)), WindowTally()
    finding = Finding(Outcome.ERROR, "no run", domain=f"{len(cells)} cells on {place}")
    if not cells:
        finding.outcome, finding.reason = Outcome.VACUOUS, "the claim lists no net and N to run"
        return finding
    with _flags(place) as flags:
        bounds = [asdict(b) for b in prop.bounds(place)]
        finding.stats = {**_device(place), "flags": flags, "bounds": bounds}
        try:
            failure = _walk(prop, subject, check, place, cells, tally)
            if failure is None:
                finding.measurements = prop.outside(subject, place, check.params)
        except Flaky as e:
            finding.outcome, finding.reason = Outcome.SPURIOUS, f"a failure did not repeat: {e}"
            return finding
        except Exception as e:
            finding.outcome, finding.reason = Outcome.ERROR, f"the run crashed: {type(e).__name__}: {e}"
            finding.stats["traceback"] = "".join(traceback.format_exception(e))[-4000:]
            return finding
        if failure is not None:
            with listening() as said, phases():
                again = _again(prop, subject, failure.case, place, failure.refutation.clause)
            finding.counterexample, finding.replays = _counterexample(failure), [again]
            if again["reproduced"]:
                finding.counterexample |= _replayed(prop, None, said, place, failure)
        able = [c for c in cells if str(c) not in tally.unsupported]
        finding.controls = _controls(prop, check, workspace, subject, place, able) if able else []
    _report(finding, prop, check, place, cells, tally)
    return finding


def _report(
    finding: Finding, prop: Property, check: Check, place: Place, cells: Sequence[Cell], tally: WindowTally
) -> None:
    """Fill in what was seen and decide the outcome."""
    finding.assumptions = [*check.assumptions, *sorted(tally.notes)]
    finding.measurements = [*tally.rows.values(), *finding.measurements]
    finding.covers = [
        {"name": name, "reached": name in tally.covers, "witness": tally.covers.get(name)}
        for name in ("every cell of the grid judged", *prop.covers(place))
    ]
    missing = [str(c) for c in cells if not tally.judged.get(str(c)) and str(c) not in tally.unsupported]
    ran = len(cells) - len(tally.unsupported) - len(missing)
    finding.covers[0] |= {"reached": not missing and ran > 0, "witness": f"{ran} of {len(cells)} cells"}
    finding.domain = f"{tally.runs} runs in {ran} cells on {place}"
    finding.stats["not_run"] = {**tally.unsupported, **prop.absent(place)}
    finding.stats |= {"runs": tally.runs, "cells": tally.judged, "unjudged": missing}
    finding.outcome, finding.reason = _decide(finding, place, ran, missing)
    finding.reach = Reach.SAMPLED if finding.outcome is Outcome.HOLDS else None
    said = "broken" if finding.counterexample else "held in every run" if ran else "not run"
    finding.clauses = {prop.clause: said, **{k: f"NOT_RUN: {why}" for k, why in finding.stats["not_run"].items()}}


def _below(row: Mapping[str, Any]) -> bool:
    """Whether a row is at most its bound, which an accumulation error must have; one without a ratio is not."""
    ratio, bound = row.get("ratio"), row.get("bound")
    if row["column"] != "accumulation":
        return bound is None or bool(row["measured"] is not None and row["measured"] <= bound)
    return ratio is not None and bound is not None and bool(ratio <= 1 and row["measured"] <= bound)


def _decide(finding: Finding, place: Place, ran: int, missing: Sequence[str]) -> tuple[Outcome, str]:
    """Outcome and reason, the worst first."""
    if finding.counterexample is not None:
        detail = str(finding.counterexample["values"]["detail"])
        if all(r["reproduced"] for r in finding.replays):
            return Outcome.REFUTED, detail
        return Outcome.SPURIOUS, f"{detail}; {finding.replays[0]['detail']}"
    above = [r for r in finding.measurements if not _below(r)]
    if above:
        return Outcome.ERROR, f"{len(above)} rows measured above their bound although the property passed"
    not_run = finding.stats["not_run"]
    if missing:
        return Outcome.VACUOUS, f"never judged: {', '.join(missing)}"
    if not ran or (not_run and place.device != "cpu"):
        return Outcome.NOT_RUN, next(iter(not_run.values()))
    unreached = [c["name"] for c in finding.covers if not c["reached"]]
    if unreached:
        return Outcome.VACUOUS, f"never reached: {', '.join(unreached)}"
    alive = [f"{c.name} ({c.outcome}: {c.reason})" for c in finding.controls if not c.killed]
    if alive:
        return Outcome.WEAK, f"not killed: {'; '.join(alive)}"
    aside = f"; {len(not_run)} cells or forms have no kernel here" if not_run else ""
    return Outcome.HOLDS, f"{finding.domain}: no counterexample; {len(finding.controls)} controls killed{aside}"


def replay(
    check: Check, workspace: Resolver, counterexample: Counterexample, subject: Any = None
) -> list[dict[str, Any]]:
    """Run a stored counterexample of this check again, on the check's subject or on the one given.

    Raises KeyError or ValueError when it carries no case.
    """
    place = place_of(check)
    if place.device == "cuda" and not torch.cuda.is_available():
        return [{"on": str(place), "reproduced": False, "detail": "no CUDA device here"}]
    prop: Property = workspace.resolve(check.harness)
    subject = subject or workspace.resolve(check.subject or check.params["subjects"]["torch"])
    case = Case.from_json(counterexample.values["case"])
    with _flags(place):
        return [_again(prop, subject, case, place, counterexample.clause)]
