"""The torch backend never turns a non-answer into a green one, and reports what it saw."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_bench import HARNESSES, STEP, TOLERANCES, Desk, a_check, attempt

from gradproof.core.check import canonical
from gradproof.core.outcome import Outcome, Reach
from gradproof.core.schemas.evidence import Counterexample
from gradproof.execution.methods import measure as torch_run
from gradproof.execution.methods.property import PAIRS, Batch, Case, Cell, Job, NoKernel, Observed, Place, Report
from models.accumulation.torch_mutants import MUTANTS, ZeroSkipped
from models.accumulation.torch_steps import EmptyStep, TorchStep
from models.registry import Mutant
from symbolic.accumulation import falsify
from symbolic.accumulation.falsify import AccumulatedMatchesFull, NoLeakage

ROW = {"column", "device", "dtype", "net", "n", "measured", "bound", "ratio", "tolerance", "metric", "l2", "relative"}


def test_the_whole_grid_runs_and_the_finding_is_plain_data() -> None:
    nets = ("linear", "mlp", "conv", "transformer")
    finding = attempt(a_check(nets=nets, n=(1, 2, 4, 8, 32), outside=("conv_batchnorm",)))
    assert (finding.outcome, finding.reach) == (Outcome.HOLDS, Reach.SAMPLED)
    assert all(count >= 2 for count in finding.stats["cells"].values())
    assert set(finding.stats["cells"]) == {f"{net}/N={n}" for net, n in itertools.product(nets, (1, 2, 4, 8, 32))}
    rows = finding.measurements
    canonical([rows, finding.covers, finding.stats])
    assert all(set(row) >= {*ROW, "note"} for row in rows)
    for column in ("accumulation", "end_to_end"):
        cells = {(row["net"], row["n"]) for row in rows if row["column"] == column}
        assert cells == set(itertools.product(nets, (1, 2, 4, 8, 32)))
    assert all(row["ratio"] <= 1 and row["measured"] <= row["bound"] for row in rows if row["column"] == "accumulation")
    assert all(row["bound"] is None and row["ratio"] is None for row in rows if row["column"] != "accumulation")
    assert max(row["ratio"] for row in rows if row["column"] == "accumulation") > 0.1
    assert all(c["reached"] for c in finding.covers)


def test_a_refuted_subject_is_refuted_with_a_replayed_case() -> None:
    finding = attempt(a_check(mutants=()), subject=MUTANTS["missing_scale"].subject)
    assert finding.outcome is Outcome.REFUTED
    assert finding.reach is None
    assert finding.counterexample is not None
    assert finding.counterexample["clause"] == "GA-EQ-001"
    assert [r["reproduced"] for r in finding.replays] == [True]
    assert finding.replays[0]["on"] == "torch cpu fp32"


def test_a_failure_that_only_drawn_cases_show_shrinks() -> None:
    class Wrong(TorchStep):
        """Forgets to divide when AdamW runs in its fused form."""

        def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
            wrong = job.config.form == "fused" and job.config.optimizer == "adamw"
            return loss if wrong else super().scale_loss(loss, batch, window, job)

    finding = attempt(a_check(mutants=(), nets=("linear",), n=(2,), examples=60), subject=Wrong)
    assert finding.outcome is Outcome.REFUTED
    assert finding.counterexample is not None
    assert finding.counterexample["found_by"] == "Hypothesis"
    case = Case.from_json(finding.counterexample["values"]["case"])
    assert (case.seed, case.tail, case.size, case.ragged, case.magnitude) == (0, 0, 1, False, 0)
    assert (case.optimizer, case.form) == ("adamw", "fused")


@pytest.mark.parametrize("clause", HARNESSES)
@pytest.mark.parametrize("n", [(4,), (1, 2, 4), (1, 2, 3, 4, 5, 6, 7)])
def test_every_fixed_case_runs_in_every_optimizer_and_form(clause: str, n: tuple[int, ...]) -> None:
    prop, place = getattr(falsify, HARNESSES[clause]), Place("cpu", "fp16")
    cells = list(prop.cells(place, {"nets": ["linear"], "n": n}))
    cases = [c for turn, cell in enumerate(cells) for c in prop.examples(cell, place, turn, len(cells))]
    for mode in ("fp16", "fp16_params"):
        assert {(c.optimizer, c.form) for c in cases if c.mode == mode} == set(PAIRS)
    assert set(prop.covers(place)) >= {f"{optimizer} {form}" for optimizer, form in PAIRS}


def test_drawn_cases_vary_over_the_cells() -> None:
    seen: list[tuple[object, ...]] = []

    class Noted(TorchStep):
        def run(self, job: Job) -> Report:
            seen.append((job.config.n, job.config.optimizer, job.config.form, job.config.learning_rate))
            return super().run(job)

    class OnlyDrawn(AccumulatedMatchesFull):
        def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
            return ()

    attempt(a_check(mutants=(), n=(2, 4, 8), examples=20), subject=Noted, harness=OnlyDrawn())
    assert len({n for n, *_ in seen}) == 3
    assert len(set(seen)) >= 10


def test_an_optimizer_form_without_a_kernel_is_listed_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = {"adamw fused": "no fused adamw"}
    monkeypatch.setattr("symbolic.accumulation.falsify_measure.forms_missing", lambda device: lacks)
    finding = attempt(a_check(mutants=()))
    assert finding.outcome is Outcome.HOLDS
    assert finding.clauses["adamw fused"] == "NOT_RUN: no fused adamw"
    assert "adamw fused" not in {c["name"] for c in finding.covers}
    assert "1 cells " in finding.reason


def test_a_form_that_never_ran_makes_the_check_vacuous() -> None:
    class Single(AccumulatedMatchesFull):
        """Runs no fused form."""

        def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
            return [replace(c, form="single") for c in super().examples(cell, place, turn, turns)]

    finding = attempt(a_check(mutants=(), examples=1), harness=Single())
    assert finding.outcome is Outcome.VACUOUS
    assert "sgd fused" in finding.reason


def test_a_stored_counterexample_is_replayed() -> None:
    check = a_check(mutants=())
    wrong = MUTANTS["divided_twice"].subject
    finding = attempt(check, subject=wrong)
    example = Counterexample.model_validate(finding.counterexample)
    again = torch_run.replay(check, Desk({STEP: wrong}), example)
    assert [r["reproduced"] for r in again] == [True]
    fixed = torch_run.replay(check, Desk(), example)
    assert [r["reproduced"] for r in fixed] == [False]
    assert torch_run.replay(check, Desk(), example, wrong)[0]["reproduced"]
    with pytest.raises(KeyError):
        torch_run.replay(check, Desk(), Counterexample(clause="GA-EQ-001", values={}))


def test_a_failure_that_does_not_repeat_is_spurious() -> None:
    runs = itertools.count()

    class Once(TorchStep):
        """Wrong in its third run only."""

        def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
            return loss if self.wrong else super().scale_loss(loss, batch, window, job)

        def run(self, job: Job) -> Report:
            self.wrong = next(runs) == 2
            return super().run(job)

    finding = attempt(a_check(mutants=(), nets=("linear",), n=(2,)), subject=Once)
    assert finding.outcome is Outcome.SPURIOUS


def test_a_crash_of_the_subject_is_an_error() -> None:
    class Crash(TorchStep):
        def update(self, job: Job) -> None:
            raise RuntimeError("no such thing")

    finding = attempt(a_check(mutants=()), subject=Crash)
    assert finding.outcome is Outcome.ERROR
    assert "no such thing" in finding.reason
    assert "traceback" in finding.stats


def controls(mutant: type, clause: str = "GA-EQ-001") -> dict[str, Mutant]:
    """A registry of one."""
    return {"one": Mutant("one", clause, "a test", mutant)}


def test_a_crashing_mutant_is_not_killed() -> None:
    class Crash(TorchStep):
        def update(self, job: Job) -> None:
            raise AssertionError("crash")

    finding = attempt(a_check(mutants=("one",)), mutants=controls(Crash))
    assert finding.outcome is Outcome.WEAK
    assert (finding.controls[1].outcome, finding.controls[1].killed) == (Outcome.ERROR, False)


def test_a_surviving_mutant_makes_the_check_weak() -> None:
    finding = attempt(a_check(mutants=("one",)), mutants=controls(TorchStep))
    assert finding.outcome is Outcome.WEAK
    assert "one" in finding.reason
    assert finding.controls[1].outcome is Outcome.HOLDS


def test_a_mutant_refuted_on_another_clause_is_not_killed() -> None:
    finding = attempt(a_check(mutants=("one",)), mutants=controls(MUTANTS["missing_scale"].subject, "GA-INV-002"))
    assert finding.outcome is Outcome.WEAK
    assert re.findall(r"GA-[\w-]+", finding.controls[1].reason) == ["GA-EQ-001", "GA-INV-002"]


def test_a_mutant_that_the_workspace_lacks_is_not_killed() -> None:
    finding = attempt(a_check(mutants=("two",)), mutants={})
    assert finding.outcome is Outcome.WEAK
    assert finding.controls[1].outcome is Outcome.NOT_RUN
    assert "inexpressible" in finding.controls[1].reason


def test_an_empty_body_that_survives_makes_the_check_weak() -> None:
    finding = attempt(a_check(mutants=()), empty=TorchStep)
    assert finding.outcome is Outcome.WEAK
    assert "empty body" in finding.reason


@pytest.mark.parametrize("clause", HARNESSES)
def test_the_empty_body_as_subject_is_refuted(clause: str) -> None:
    assert attempt(a_check(clause, mutants=()), subject=EmptyStep).outcome is Outcome.REFUTED


class Lenient(AccumulatedMatchesFull):
    """A property that a test bends."""

    rows: tuple[Mapping[str, Any], ...] = ()
    reached: frozenset[str] = frozenset(AccumulatedMatchesFull().covers(Place("cpu", "fp32")))
    judged = True

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        if subject is EmptyStep:
            return super().test(subject, case, place)
        return Observed(set(self.reached), [dict(r) for r in self.rows], self.judged)


def bent(**fields: Any) -> Any:
    """The property with other rows, covers or judgement."""
    prop = Lenient()
    for name, value in fields.items():
        setattr(prop, name, value)
    return attempt(a_check(mutants=(), tolerances=()), harness=prop)


def a_row(**fields: Any) -> dict[str, Any]:
    """An accumulation row."""
    empty = dict.fromkeys(sorted(ROW))
    head = {
        "column": "accumulation",
        "net": "linear",
        "n": 2,
        "measured": 1e-8,
        "bound": 2e-8,
        "ratio": 0.5,
        "note": "",
    }
    return {**empty, **head, **fields}


def test_a_bent_property_holds_when_nothing_is_wrong() -> None:
    own = a_row(column="peak bytes", ratio=None)
    assert bent(rows=(a_row(), own, {**own, "bound": None})).outcome is Outcome.HOLDS


@pytest.mark.parametrize("fields", [{"ratio": 1.0000001}, {"ratio": None}, {"measured": 3e-8}, {"bound": None},
    {"column": "peak bytes", "measured": 3e-8}, {"column": "peak bytes", "measured": None}])  # fmt: skip
def test_a_row_above_its_bound_is_never_green(fields: Mapping[str, Any]) -> None:
    assert bent(rows=(a_row(**fields),)).outcome is Outcome.ERROR


def test_cells_that_were_not_judged_make_the_check_vacuous() -> None:
    finding = bent(judged=False)
    assert finding.outcome is Outcome.VACUOUS
    assert "linear/N=1" in finding.reason


def test_a_cover_that_was_not_reached_makes_the_check_vacuous() -> None:
    finding = bent(reached=frozenset({"N > 1"}))
    assert finding.outcome is Outcome.VACUOUS
    assert "unequal counts" in finding.reason


def test_an_empty_grid_is_vacuous() -> None:
    assert attempt(a_check(nets=(), mutants=())).outcome is Outcome.VACUOUS


class Kernels(AccumulatedMatchesFull):
    """A device without kernels for one net, or for all."""

    lacks: frozenset[str] = frozenset({"linear"})

    def probe(self, cell: Cell, place: Place) -> None:
        if cell.net in self.lacks:
            raise NoKernel(f"no kernel for {cell.net}")


def test_a_net_without_kernels_on_the_cpu_is_listed_and_the_others_decide() -> None:
    finding = attempt(a_check(), harness=Kernels())
    assert finding.outcome is Outcome.HOLDS
    assert finding.clauses["linear/N=2"].startswith("NOT_RUN: no kernel")
    assert "3 cells " in finding.reason
    assert {row["net"] for row in finding.measurements} == {"transformer"}


def test_without_any_kernel_the_check_is_not_run() -> None:
    prop = Kernels()
    prop.lacks = frozenset({"linear", "transformer"})
    finding = attempt(a_check(), harness=prop)
    assert (finding.outcome, finding.reach) == (Outcome.NOT_RUN, None)


def test_the_probe_tells_a_missing_kernel_from_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("\"addmm_impl\" not implemented for 'Half'")

    def crash(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("symbolic.accumulation.falsify_measure.one_batch", missing)
    with pytest.raises(NoKernel, match="not implemented"):
        falsify.accumulated_matches_full.probe(Cell("linear", 2), Place("cpu", "fp16"))
    monkeypatch.setattr("symbolic.accumulation.falsify_measure.one_batch", crash)
    with pytest.raises(RuntimeError, match="out of luck"):
        falsify.accumulated_matches_full.probe(Cell("linear", 2), Place("cpu", "fp16"))


def test_without_a_gpu_a_cuda_check_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = a_check(device="cuda", dtype="fp32-tf32")
    finding = attempt(check)
    assert finding.outcome is Outcome.NOT_RUN
    assert not finding.controls
    assert not torch_run.replay(check, Desk(), Counterexample(clause="GA-EQ-001", values={"case": "{}"}))[0][
        "reproduced"
    ]


def test_batch_norm_as_an_ordinary_net_is_refuted() -> None:
    finding = attempt(a_check(nets=("conv_batchnorm",), mutants=()))
    assert finding.outcome is Outcome.REFUTED
    assert "samples interact" in finding.reason


def test_batch_norm_outside_the_assumptions_is_measured_and_proves_nothing() -> None:
    finding = attempt(a_check(outside=("conv_batchnorm",)))
    rows = [r for r in finding.measurements if r["column"] == "outside_assumptions"]
    assert finding.outcome is Outcome.HOLDS
    assert {r["n"] for r in rows} == {1, 2, 8}
    assert max(r["relative"] for r in rows) > 0.01
    assert all(r["bound"] is None and "found by experiment" in r["note"] for r in rows)


def test_a_net_without_interaction_is_not_let_outside_the_assumptions() -> None:
    finding = attempt(a_check(outside=("mlp",), mutants=()))
    assert finding.outcome is Outcome.ERROR
    assert "do not interact" in finding.reason


def test_a_tolerance_is_judged_when_it_is_required_and_shown_when_it_is_not() -> None:
    tight = {**TOLERANCES[0], "value": "1e-12"}
    assert attempt(a_check(mutants=(), tolerances=[tight])).outcome is Outcome.REFUTED
    finding = attempt(a_check(mutants=(), tolerances=[{**tight, "role": "reported"}]))
    assert finding.outcome is Outcome.HOLDS
    assert {r["tolerance"] for r in finding.measurements if r["column"] == "accumulation"} == {1e-12}


def test_a_check_that_does_not_say_where_to_run_is_refused() -> None:
    check = a_check()
    nowhere = replace(check, id="FALSIFY-GA-001", params={**check.params, "dtype": "fp8"})
    with pytest.raises(ValueError, match="no device and dtype"):
        torch_run.run(nowhere, Desk())


def test_a_leak_of_less_than_rounding_is_seen_bit_by_bit() -> None:
    class Leak(TorchStep):
        """Keeps 2^-35 of the previous gradient: inside the proven bound at N = 8."""

        def zero(self, job: Job) -> None:
            held = [None if p.grad is None else p.grad * 2.0**-35 for p in job.masters]
            super().zero(job)
            for master, left in zip(job.masters, held, strict=True):
                master.grad = left

    case = Case("linear", 8, seed=3, windows=2, swap=1, poison=64.0)
    with pytest.raises(falsify.Refutation, match="previous owner"):
        NoLeakage().test(Leak, case, Place("cpu", "fp32"))
    with pytest.raises(falsify.Refutation, match="depends on cycle 0"):
        NoLeakage().test(ZeroSkipped, case, Place("cpu", "fp32"))


def test_a_second_clip_of_the_total_is_seen() -> None:
    class Twice(TorchStep):
        def clip(self, job: Job) -> None:
            super().clip(job)
            super().clip(job)

    case = Case("linear", 2, clip=0.25)
    with pytest.raises(falsify.Refutation, match="clipped 2 times"):
        falsify.clips_once_on_the_total.test(Twice, case, Place("cpu", "fp32"))


def test_reading_the_norm_by_an_unlimited_clip_is_no_clip() -> None:
    class Reads(TorchStep):
        def after_backward(self, i: int, job: Job) -> None:
            torch.nn.utils.clip_grad_norm_(job.masters, float("inf"))

    falsify.clips_once_on_the_total.test(Reads, Case("linear", 2, clip=0.25), Place("cpu", "fp32"))


def test_the_backend_and_the_harnesses_load_no_solver() -> None:
    code = "import sys, gradproof.execution.methods.measure, gradproof.execution.methods.replay_torch"
    code += "; import symbolic.accumulation.falsify, models.accumulation.torch_mutants"
    code += "; sys.exit(bool({'z3', 'crosshair'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0
