"""Full runs: below the proven bound, on it for the witness, and refuted when the bound is halved."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from gradproof.arith.bounds import closed_form
from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import accumulation as full_runs, accumulation as gradients
from gradproof.extras.conformance.accumulation import (
    PAIRS,
    AccumulationSetting,
    bound_for,
    division_bound,
    run,
    term_bound,
)
from gradproof.extras.conformance.report import ERROR, HOLDS, NOT_RUN, REFUTED
from gradproof.rounding.edge_cases import MULTIPLY, worst
from models.accumulation.torch_nets import NETS

SMALL = 1501


@pytest.mark.parametrize(("gradient", "buffer"), PAIRS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_no_run_exceeds_the_bound(gradient: str, buffer: str, n: int) -> None:
    result = run(n, gradient, buffer, elements=SMALL)
    assert result.outcome == HOLDS, result
    assert result.cases == SMALL
    assert result.ratio is not None
    assert result.ratio <= 1


@pytest.mark.parametrize(("fmt", "n"), [("fp32", 2), ("fp32", 64), ("fp16", 8), ("bf16", 8)])
def test_the_witness_is_on_the_bound(fmt: str, n: int) -> None:
    result = run(n, fmt, fmt, elements=SMALL)
    assert result.ratio is not None
    assert result.ratio > 0.999
    assert result.facts["largest error"] >= float(closed_form(fmt, n)) * (1 - 1e-12)


@pytest.mark.parametrize(("gradient", "buffer"), [("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_half_the_bound_is_refuted_with_the_bits(gradient: str, buffer: str) -> None:
    result = run(8, gradient, buffer, elements=SMALL, scale=Fraction(1, 2))
    assert result.outcome == REFUTED
    assert result.mismatches >= 2
    assert result.first is not None
    assert len(result.first.inputs) == 8
    assert result.first.got.startswith("0x")


def test_a_kernel_that_loses_one_gradient_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Tensor.add_
    calls = []

    def lossy(self: Tensor, other: Tensor) -> Tensor:
        calls.append(1)
        return self if len(calls) == 3 else plain(self, other)

    monkeypatch.setattr(Tensor, "add_", lossy)
    result = run(8, "fp32", "fp32", elements=SMALL)
    assert result.outcome == REFUTED
    assert result.mismatches > SMALL // 2


def test_an_error_where_everything_recorded_is_zero_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros(70)
    assert run(4, "fp32", "fp32", gradients=lambda i: zeros).outcome == HOLDS
    plain = Tensor.add_
    monkeypatch.setattr(Tensor, "add_", lambda self, other: plain(self, other).fill_(2.0**-149))
    assert run(4, "fp32", "fp32", gradients=lambda i: zeros).outcome == REFUTED


def test_gradients_that_overflow_or_change_their_dtype_are_no_answer() -> None:
    big = torch.full((60,), 6e4, dtype=torch.float16)
    infinite = torch.full((60,), float("inf"), dtype=torch.float16)
    assert run(4, "fp16", "fp16", gradients=lambda i: big).outcome in (ERROR, HOLDS)
    assert run(4, "fp16", "fp16", gradients=lambda i: infinite).outcome in (ERROR, REFUTED)
    wrong = run(4, "fp32", "fp16", gradients=lambda i: big)
    assert wrong.outcome == ERROR
    assert "float16" in wrong.reason


def test_the_magnitude_of_the_terms_is_rounded_up() -> None:
    one = Fraction(1)
    assert term_bound("fp32", 4, one) == one
    assert term_bound("fp32", 3, one) > one
    assert bound_for("fp32", "fp32", 8, 0) == closed_form("fp32", 8) + 8 * Fraction(1, 2**150)


def test_a_product_with_the_reciprocal_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for gradient in ("fp32", "fp16", "bf16"):
        assert bound_for(gradient, "fp32", 8, 0, True) == bound_for(gradient, "fp32", 8, 0)
        assert bound_for(gradient, "fp32", 7, 0, True) > bound_for(gradient, "fp32", 7, 0)
    worst_of_seven = worst(MULTIPLY, 7, "fp32")
    reach = Fraction(2) ** 24
    error = worst_of_seven.ulps * FORMATS["fp32"].spacing(Fraction(worst_of_seven.at, 7))
    assert division_bound("fp32", 7, reach) / 7 < error <= division_bound("fp32", 7, reach, True) / 7
    monkeypatch.setattr(AccumulationSetting, "reciprocal", True)
    monkeypatch.setattr(Tensor, "__truediv__", lambda self, n: self * float(torch.tensor(1 / n, dtype=torch.float32)))
    for gradient in ("fp32", "fp16", "bf16"):
        result = run(7, gradient, gradient, elements=SMALL)
        assert result.outcome == HOLDS, result


def test_without_cuda_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [*full_runs.all_runs("cuda", (2,), 10), *gradients.real_runs("cuda", (2,))]
    assert {r.outcome for r in found} == {NOT_RUN}
    assert len(found) == 2 * len(PAIRS)


def of_the_workspace(n: int, dtype: str, device: str, scale: float) -> list[Tensor]:
    """Micro-batch gradients of the workspace's transformer, each of its own scaled loss."""
    net, generator = NETS["transformer"], torch.Generator().manual_seed(0)
    model = net.build(0).to(getattr(torch, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype]))
    found = []
    for _ in range(n):
        tokens, targets = net.data(generator, 2)
        model.zero_grad()
        torch.autograd.backward(net.loss(model(tokens).float(), targets, "mean") * scale)
        found.append(gradients.flat(p.grad for p in model.parameters()))
    return found


def test_real_gradients_stay_within_their_bound() -> None:
    for source in (of_the_workspace, gradients.micro_batches):
        found = gradients.real_runs("cpu", (4,), source)
        assert [r.outcome for r in found] == [HOLDS] * len(PAIRS), found
        assert all(r.cases > 300 for r in found)


def test_half_the_bound_of_real_gradients_is_refuted() -> None:
    recorded = of_the_workspace(4, "fp16", "cpu", 64.0)
    full = run(4, "fp16", "fp16", gradients=recorded.__getitem__)
    assert full.ratio is not None
    assert 0 < full.ratio <= 1
    share = Fraction(full.ratio) / 2
    assert run(4, "fp16", "fp16", gradients=recorded.__getitem__, scale=share).outcome == REFUTED


def test_a_scaled_gradient_that_overflows_is_refused() -> None:
    with pytest.raises(ValueError, match="GradScaler skips"):
        gradients.micro_batches(1, "fp16", "cpu", 2.0**24)
