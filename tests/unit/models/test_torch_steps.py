"""The PyTorch subjects: no correct step is refuted, every mutant is killed where it should be."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch_bench import HARNESSES, a_check, attempt

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import Event
from gradproof.execution.methods.property import FORMS, OPTIMIZERS, Case, Place, Refutation, StepConfig, make_optimizer
from models.accumulation.mutants import MUTANTS as MODELS
from models.accumulation.torch_mutants import MUTANTS, TORCH_ONLY
from models.accumulation.torch_nets import NETS
from models.accumulation.torch_steps import DividedOnce, SummedOverTokens, TorchStep
from symbolic.accumulation import falsify
from symbolic.accumulation.falsify_bench import SPOKEN_OF, events_of, execute, table_breaks
from symbolic.accumulation.falsify_measure import MODES, interaction, scale_of

DTYPES = ("fp32", "bf16", "fp16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("optimizer", "form"), list(itertools.product(OPTIMIZERS, FORMS)))
def test_the_reference_passes_in_every_optimizer_form(dtype: str, optimizer: str, form: str) -> None:
    place = Place("cpu", dtype)
    for mode, net in itertools.product(MODES[dtype], ("linear", "mlp", "conv", "transformer")):
        case = Case(
            net, 4, mode=mode, seed=11, optimizer=optimizer, form=form, loss_scale=scale_of(mode), learning_rate=0.0625
        )
        falsify.accumulated_matches_full.test(TorchStep, case, place)
        falsify.clips_once_on_the_total.test(TorchStep, Case(**{**vars(case), "clip": 0.5, "large": 1}), place)
        falsify.three_steps_in_three_windows.test(TorchStep, Case(**{**vars(case), "windows": 2, "tail": 3}), place)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clause", HARNESSES)
@pytest.mark.parametrize("subject", [DividedOnce, SummedOverTokens])
def test_other_correct_steps_are_not_refuted(clause: str, dtype: str, subject: type) -> None:
    finding = attempt(a_check(clause, dtype, n=(2, 12), mutants=()), subject=subject)
    assert finding.outcome is Outcome.HOLDS, finding.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clause", HARNESSES)
def test_every_mutant_is_killed_by_the_test_named_for_its_obligation(clause: str, dtype: str) -> None:
    finding = attempt(a_check(clause, dtype))
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert len(finding.controls) >= 4
    assert [c.name for c in finding.controls if not c.killed] == []
    assert {c.outcome for c in finding.controls} == {Outcome.REFUTED}
    assert all(r["reproduced"] for c in finding.controls for r in c.replays)


@pytest.mark.parametrize("form", FORMS)
def test_the_window_table_refuses_a_schedule_after_a_skipped_step(form: str) -> None:
    """The gradient of the second window overflows, so that the scaler skips its step."""
    case = Case("linear", 2, seed=11, windows=3, loss_scale=8.0, overflow=2, learning_rate=0.0625, form=form)
    right, wrong = (
        execute(subject, case, Place("cpu", "fp32")) for subject in (TorchStep, MUTANTS["scheduled_after_skip"].subject)
    )
    attempts = [e for e in events_of(right) if e in (Event.STEP, Event.SKIP)]
    assert attempts == [Event.STEP, Event.SKIP, Event.STEP]
    assert [table_breaks(right, clause) for clause in SPOKEN_OF] == ["", "", ""]
    said = "window table, schedule while skipped: the schedule advanced after a step that the scaler skipped"
    assert table_breaks(wrong, "GA-INV-003") == said


def test_names_obligations_and_references_are_those_of_the_models() -> None:
    assert set(TORCH_ONLY) == set(MUTANTS) - set(MODELS)
    assert all(TORCH_ONLY.values())
    for name, mutant in MUTANTS.items():
        if name in TORCH_ONLY:
            continue
        model = MODELS[name]
        assert (mutant.name, mutant.obligation, mutant.reference) == (name, model.obligation, model.reference)


def test_a_mutant_without_a_scaler_to_fool_is_the_reference() -> None:
    case = Case("linear", 2, clip=0.25)
    falsify.clips_once_on_the_total.test(MUTANTS["clip_before_unscale"].subject, case, Place("cpu", "fp32"))
    scaled = Case("linear", 2, clip=0.25, loss_scale=1024.0)
    with pytest.raises(Refutation, match="clipped before unscale"):
        falsify.clips_once_on_the_total.test(MUTANTS["clip_before_unscale"].subject, scaled, Place("cpu", "fp32"))


@pytest.mark.parametrize(("name", "least"), [("fp16_buffer", 1.28e-3), ("fp16_sum", 1.28e-3), ("bf16_buffer", 1e-2)])
def test_narrow_buffers_err_as_far_as_their_worst_case(name: str, least: float) -> None:
    fmt = "bf16" if name == "bf16_buffer" else "fp16"
    from gradproof.arith.bounds import accumulation_witness

    case = Case("weights", 8, gradients=tuple(map(float, accumulation_witness(8, fmt))))
    with pytest.raises(Refutation) as caught:
        falsify.buffer_is_fp32.test(MUTANTS[name].subject, case, Place("cpu", "fp32"))
    assert float(caught.value.values["error"]) >= least


def test_only_batch_norm_makes_samples_interact() -> None:
    moved = {name: interaction(net) for name, net in NETS.items()}
    assert moved.pop("conv_batchnorm") > 1e-3
    assert set(moved.values()) == {0.0}


def test_unknown_optimizers_are_refused() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match="no optimizer form"):
        make_optimizer(StepConfig(1, form="magic"), weights)
    with pytest.raises(ValueError, match="no optimizer 'lion'"):
        make_optimizer(StepConfig(1, optimizer="lion"), weights)
