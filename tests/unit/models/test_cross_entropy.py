"""Cross-entropy at the logits: derivative rules against fp64 autograd, and what PyTorch does where all is ignored."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from training_checks import found

from gradproof.core.outcome import Outcome
from gradproof.execution.methods.property import Case, Place, Refutation
from models.tokens.cross_entropy import CE_MUTANTS, IGNORED, CrossEntropy, DividesByRows
from models.tokens.torch_cross_entropy import CE_MUTANTS as TORCH_MUTANTS, TorchCrossEntropy
from symbolic.tokens.cross_entropy import mean_slope
from symbolic.tokens.falsify import ALL, NONE, SOME, GradientAtLogits

TARGETS = [(0, 2), (1, IGNORED), (IGNORED, IGNORED)]


def exponentials() -> list[tuple[Fraction, ...]]:
    """Two rows of three positive numbers."""
    return [(Fraction(1), Fraction(3), Fraction(1, 2)), (Fraction(2), Fraction(2), Fraction(5))]


@pytest.mark.parametrize("targets", TARGETS)
def test_the_closed_form_is_what_fp64_autograd_gives(targets: tuple[int, ...]) -> None:
    exps = exponentials()
    leaf = torch.tensor([[float(e) for e in row] for row in exps], dtype=torch.float64).log()
    want = TorchCrossEntropy().backward(leaf, torch.tensor(targets))
    got = torch.tensor([[float(g) for g in row] for row in CrossEntropy().backward(exps, targets)])
    assert torch.allclose(got.double(), want, atol=1e-6)


@pytest.mark.parametrize("largest", [0, 1, 2])
def test_the_rules_of_differentiation_give_the_closed_form(largest: int) -> None:
    slope = mean_slope(exponentials(), (1, 0), largest)
    grads = CrossEntropy().backward(exponentials(), (1, 0))
    assert {k: Fraction(v) for k, v in slope.items()} == {
        (i, j): g for i, r in enumerate(grads) for j, g in enumerate(r)
    }


def test_the_closed_form_is_proved_and_every_wrong_one_refuted() -> None:
    finding = found("KANI-GT-210")
    assert finding.outcome is Outcome.HOLDS
    assert {c.name for c in finding.controls if c.killed} == {"empty body", *CE_MUTANTS}
    assert DividesByRows().backward(exponentials(), (1, 0)) == CrossEntropy().backward(exponentials(), (1, 0))


def test_the_mean_of_no_target_is_not_a_number_and_its_gradient_is_zero() -> None:
    logits, targets = torch.randn(2, 3), torch.full((2,), IGNORED)
    assert bool(TorchCrossEntropy().loss(logits, targets).isnan())
    assert torch.equal(TorchCrossEntropy().backward(logits, targets), torch.zeros(2, 3))


@pytest.mark.parametrize("mode", [SOME, ALL])
@pytest.mark.parametrize("name", ["ignored_leaks", "ignored_is_first_class"])
def test_a_gradient_in_an_ignored_row_is_seen(name: str, mode: str) -> None:
    place = Place("cpu", "fp32", {"GA-CE-001": 1e-6}, frozenset({"GA-CE-001"}))
    case = Case("classes 3", 4, mode=mode)
    assert GradientAtLogits().test(TorchCrossEntropy, case, place).covers == {mode}
    with pytest.raises(Refutation, match="ignored row"):
        GradientAtLogits().test(TORCH_MUTANTS[name].subject, case, place)


def test_rows_that_are_all_valid_cannot_tell_the_divisors_apart() -> None:
    place = Place("cpu", "fp32", {"GA-CE-001": 1e-6}, frozenset({"GA-CE-001"}))
    subject = TORCH_MUTANTS["divides_by_rows"].subject
    assert GradientAtLogits().test(subject, Case("classes 3", 4, mode=NONE), place).judged
    with pytest.raises(Refutation, match="N times the error"):
        GradientAtLogits().test(subject, Case("classes 3", 4, mode=SOME), place)
