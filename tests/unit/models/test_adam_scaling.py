"""A missing 1/K: the models against torch.optim, how sharp the bound on AdamW is, and runs that end bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import sqrt

import pytest
import torch
from training_checks import checks, found

from gradproof.core.check import Scope
from gradproof.core.outcome import Outcome
from models.tokens.scaling import AdamW, Setup, Sgd, SgdSetup, State
from models.tokens.torch_scaling import TorchScaling
from symbolic.tokens.falsify import net, vector
from symbolic.tokens.falsify_scaling import stream
from symbolic.tokens.scaling import BETA1, BETA2, limit

GRADIENTS = [0.5, -2.0, 0.25, 3.0, -0.125]
BY_INDUCTION = "proved for all inputs by induction"
PROOFS = {
    "KANI-GT-211": BY_INDUCTION,
    "KANI-GT-212": BY_INDUCTION,
    "KANI-GT-216": "proved for every input with eps = 0 by induction",
    "KANI-GT-219": BY_INDUCTION,
}


def by_torch(optimizer: torch.optim.Optimizer, leaf: torch.Tensor, gradients: Sequence[float]) -> float:
    """The weight after torch's own steps on these gradients."""
    for g in gradients:
        leaf.grad = torch.tensor([g], dtype=leaf.dtype)
        optimizer.step()
    return float(leaf.detach())


def leaf_at(w: float) -> torch.Tensor:
    """One fp64 weight."""
    return torch.tensor([w], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_model_of_sgd_is_torchs(nesterov: bool) -> None:
    leaf, state = leaf_at(1.5), State(1.5, 0.0, 0.0)
    for g in GRADIENTS:
        state = Sgd().step(state, g, SgdSetup(0.01, 0.9, 0.0, None, nesterov))
    optimizer = torch.optim.SGD([leaf], lr=0.01, momentum=0.9, nesterov=nesterov)
    assert by_torch(optimizer, leaf, GRADIENTS) == pytest.approx(state.w, rel=1e-12)


def test_the_model_of_adamw_is_torchs() -> None:
    leaf, state, setup = leaf_at(1.5), State(1.5, 0.0, 0.0), Setup(0.01, 0.9, 0.999, 1e-8, 0.1)
    for t, g in enumerate(GRADIENTS, 1):
        state = AdamW().step(state, g, setup, (1 - 0.9**t, 1 - 0.999**t))
    optimizer = torch.optim.AdamW([leaf], lr=0.01, eps=1e-8, weight_decay=0.1)
    assert by_torch(optimizer, leaf, GRADIENTS) == pytest.approx(state.w, rel=1e-9)


def test_the_bound_on_adamws_step_is_sharp_on_torch() -> None:
    """Gradients that grow by beta2 / beta1 a step make Cauchy and Schwarz nearly an equality."""
    count = 6000
    grown = [1e-12] * (count - 400) + [float((BETA2 / BETA1) ** i) * 1e-12 for i in range(400)]
    leaf = leaf_at(0.0)
    optimizer = torch.optim.AdamW([leaf], lr=1e-3, eps=1e-30, weight_decay=0.0)
    before = by_torch(optimizer, leaf, grown[:-1])
    last = abs(by_torch(optimizer, leaf, grown[-1:]) - before) / 1e-3
    assert 7.2 < last < sqrt(limit(BETA1, BETA2)) < 7.28


@pytest.mark.parametrize("name", PROOFS)
def test_it_holds_at_every_step_and_every_mutant_is_refuted(name: str) -> None:
    finding = found(name)
    assert (finding.outcome, Scope(**finding.stats["scope"]).label) == (Outcome.HOLDS, PROOFS[name])
    assert {c.name for c in finding.controls if c.killed} == {"empty body", *checks()[name].mutants}


@pytest.mark.parametrize("claim", ["KANI-GT-220", "KANI-GT-221"])
def test_the_claim_of_eight_times_the_rate_is_refuted(claim: str) -> None:
    assert found(claim).outcome is Outcome.REFUTED


def test_a_limit_that_is_a_little_too_small_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symbolic.tokens.scaling.limit", lambda b1, b2: limit(b1, b2) * Fraction(99, 100))
    assert found("KANI-GT-219", "models.tokens.scaling:AdamW").outcome is not Outcome.HOLDS


@pytest.mark.parametrize(("name", "factor"), [("SGD", 8), ("AdamW", 1)])
def test_eight_micro_batches_end_bit_for_bit(name: str, factor: int) -> None:
    """A power of two changes no rounding: over 8 it is as exact as over the reals."""
    ends = []
    for rate, scaled in ((1e-3, False), (factor * 1e-3, True)):
        model = net(3)
        TorchScaling().train(name, model, stream(3, 64), 8, rate, scaled)
        ends.append(vector(list(model.parameters())))
    assert torch.equal(*ends)
