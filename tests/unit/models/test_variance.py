"""GA-VAR-001: the variance of the gradient estimate, exactly on the model and within an interval on real PyTorch."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from gradproof.execution.methods.property import Case, Place, Refutation
from models.sampling import torch_variance as gradient_variance, variance
from models.sampling.torch_variance import DrawnEstimate, moments
from symbolic.sampling.falsify_variance import job_of, variance_of_estimates

pytestmark = pytest.mark.usefixtures("one_thread")
PLACE = Place("cpu", "fp32")
POPULATION = (Fraction(-3), Fraction(1), Fraction(5), Fraction(2))


def spread(subject: Any, size: int, n: int) -> Fraction:
    """Variance over every sequence of draws, about the estimate's own mean."""
    found = [subject.run(POPULATION, d, size, n) for d in product(range(len(POPULATION)), repeat=size * n)]
    center = Fraction(sum(found)) / len(found)
    return Fraction(sum((g - center) ** 2 for g in found)) / len(found)


SIGMA2 = spread(variance.Estimate(), 1, 1)


@pytest.mark.parametrize(("size", "n"), [(1, 1), (2, 1), (1, 3), (2, 2), (3, 1)])
def test_the_variance_is_sigma_squared_over_b(size: int, n: int) -> None:
    assert spread(variance.Estimate(), size, n) == SIGMA2 / (size * n)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("same_samples_again", 2), ("overlapping_micro_batches", Fraction(3, 2)), ("variance_unscaled", 4)],
)
def test_a_mutant_has_the_variance_that_it_should_have(name: str, factor: Fraction) -> None:
    """Two micro-batches of two: one batch twice; weights 1, 2, 1 of 4; N^2."""
    assert spread(variance.MUTANTS[name].subject(), 2, 2) == factor * SIGMA2 / 4


def test_a_tail_without_replacement_varies_less() -> None:
    assert spread(variance.MUTANTS["tail_without_replacement"].subject(), 2, 2) < SIGMA2 / 4


def test_the_moments_are_those_of_every_draw() -> None:
    """The spread of |G - mean|^2, by every pair of samples."""
    job = job_of(Case("mlp", 1, size=1), PLACE, 5)
    known, rows = moments(job), []
    for i in range(5):
        job.model.zero_grad()
        job.loss(job.model(job.inputs[i : i + 1]), job.targets[i : i + 1]).backward()  # type: ignore[no-untyped-call]
        rows.append(gradient_variance.flat(job.model) - known.mean)
    squares = [float((((a + b) / 2) ** 2).sum()) for a, b in product(rows, repeat=2)]
    mean = sum(squares) / len(squares)
    assert known.variance(2) == pytest.approx(mean, rel=1e-9)
    assert known.spread(2) == pytest.approx((sum((s - mean) ** 2 for s in squares) / len(squares)) ** 0.5, rel=1e-9)


def test_real_estimates_scatter_as_they_should() -> None:
    row = variance_of_estimates.test(DrawnEstimate, Case("mlp", 2, size=2), PLACE).rows[0]
    assert 0 < row["ratio"] <= 1


@pytest.mark.parametrize("name", gradient_variance.MUTANTS)
def test_a_real_mutant_is_refuted(name: str) -> None:
    n = 4 if name == "overlapping_micro_batches" else 2
    with pytest.raises(Refutation, match=r"sigma\^2 / B"):
        variance_of_estimates.test(gradient_variance.MUTANTS[name].subject, Case("mlp", n, size=2), PLACE)


def test_the_empty_body_is_refuted() -> None:
    with pytest.raises(Refutation, match="no gradient"):
        variance_of_estimates.test(gradient_variance.NothingDrawn, Case("mlp", 1, size=2), PLACE)
