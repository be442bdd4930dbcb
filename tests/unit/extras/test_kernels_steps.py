"""Rows about steps and scattered sums on this CPU: each holds, and is refuted when bound or kernel is broken."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import matmul, reductions, reductions as moments
from gradproof.extras.conformance.__main__ import SECTIONS, options, sections
from gradproof.extras.conformance.elementwise import DTYPES
from gradproof.extras.conformance.machine import Values, decode
from gradproof.extras.conformance.report import (
    CONTROL,
    ERROR,
    HOLDS,
    NOT_RUN,
    REFUTED,
    KernelResult,
    RowClaim,
    bounded,
    judge,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ROW = RowClaim("made up", "fp16", "cpu", "bound", {})
COUNT = 400


def without_subnormals(a: Values, term: Values, name: str) -> Values:
    """The bound as it once was: the last rounding taken for relative wherever it happens."""
    f, u = FORMATS[name], float(reductions.U)
    bound = 4 * u * np.abs(term) + u * np.abs(a + term) + 2.0**-44 * np.abs(a)
    wide: Values = bound + float(f.u) * (np.abs(a + term) + bound)
    return wide


@pytest.mark.parametrize("divide", [False, True], ids=["addcmul", "addcdiv"])
def test_a_sum_that_cancels_into_the_subnormals_of_fp16(divide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a subnormal is more than u times the sum: a full run of 10^6 once met three such sums, a short one none."""

    def found() -> KernelResult:
        return bounded(ROW, lambda: reductions.compound_trials(divide, "fp16", "cpu", 2000, 0))

    assert found().outcome == HOLDS
    monkeypatch.setattr(reductions, "compound_bound", without_subnormals)
    result = found()
    assert result.outcome == REFUTED
    assert result.first is not None
    a, b, c = (decode(np.array([int(x, 16)], dtype=np.uint32), "fp16")[0] for x in result.first.inputs)
    left = a + (0.7 * b / c if divide else 0.7 * b * c)
    assert abs(left) < 2.0 ** FORMATS["fp16"].emin


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_eighth_of_the_operands_cancel(dtype: str, divide: bool) -> None:
    a, b, c = (decode(x, dtype) for x in reductions.compound_operands(divide, dtype, 800, 1))
    left = np.abs(a + reductions.compound_term(divide, b, c))
    near = left <= float(FORMATS[dtype].u) * np.abs(a)
    assert near[:100].all()
    assert near[100:].sum() < 20
    assert np.abs(np.concatenate([a[100:], b[100:], c[100:]])).min() >= 2.0**-4


@pytest.mark.parametrize("form", moments.FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_from_moments_holds_and_a_smaller_bound_does_not(dtype: str, form: str) -> None:
    made = list(moments.adamw_trials(form, dtype, "cpu", COUNT, 0))
    assert bounded(ROW, lambda: made).outcome == HOLDS
    for output in moments.OUTPUTS:
        own = [t for t in made if t.note.startswith(f"{output} after")]
        assert judge(ROW, own, tuple, Fraction(1)).outcome == HOLDS
        assert judge(ROW, own, tuple, CONTROL).outcome == REFUTED, output


WRONG: dict[str, dict[str, Any]] = {
    "the first decay": {"betas": (0.91, 0.999)},
    "the second decay": {"betas": (0.9, 0.99)},
    "no decoupled decay": {"weight_decay": 0.0},
    "the learning rate": {"lr": 1.1e-3},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("form", moments.FORMS)
def test_a_wrong_step_from_moments_is_refuted(
    form: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.optim.AdamW

    def other(params: Any, **given: Any) -> torch.optim.AdamW:
        return right(params, **{**given, **change})

    monkeypatch.setattr(torch.optim, "AdamW", other)
    result = bounded(ROW, lambda: moments.adamw_trials(form, "fp32", "cpu", COUNT, 0))
    assert result.outcome == REFUTED
    assert result.first is not None
    assert len(result.first.inputs) == 4


def test_the_number_of_the_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bias corrections of the step before."""
    plain = moments.corrections
    monkeypatch.setattr(moments, "corrections", lambda t: plain(t + 1))
    assert bounded(ROW, lambda: moments.adamw_trials("fused", "fp32", "cpu", COUNT, 0)).outcome == REFUTED


def test_roots_and_corrections_are_as_exact_as_they_say() -> None:
    for x in (Fraction(2), Fraction(1, 3), Fraction(10) ** 40, Fraction(1, 10**40), Fraction(49, 64)):
        below = moments.root(x)
        assert below**2 <= x < (below * (1 + Fraction(1, 2**100))) ** 2
    for t in (1, 2, 50):
        for cut, beta in zip(moments.corrections(t), moments.BETAS, strict=True):
            assert 0 <= 1 - Fraction(beta) ** t - cut <= Fraction(1, 2**200)


@pytest.mark.parametrize(("name", "kernel"), matmul.SCATTERS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("dtype", DTYPES)
def test_scattered_sums_hold_and_repeat(dtype: str, name: str, kernel: matmul.Scatter) -> None:
    """The witness attains the bound: no smaller one is true of these kernels."""
    result = matmul.scatter_row(name, kernel, dtype, "cpu", False, 0, True)
    assert (result.outcome, result.ratio) == (HOLDS, 1.0)
    assert list(result.facts.values()) == [True]
    assert result.flags == {"deterministic": True}


def test_a_kernel_that_does_not_repeat_is_refuted_only_where_it_must_repeat() -> None:
    """It adds the terms in a random order, which is within the bound."""
    rng = torch.Generator().manual_seed(0)

    def shuffled(total: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(x), generator=rng)
        return total.index_add_(0, index[order], x[order])

    free = matmul.scatter_row("shuffled", shuffled, "fp32", "cpu", False, 0, False)
    assert (free.outcome, list(free.facts.values())) == (HOLDS, [False])
    asked = matmul.scatter_row("shuffled", shuffled, "fp32", "cpu", False, 0, True)
    assert asked.outcome == REFUTED
    assert asked.first is not None
    assert "65536 terms" in asked.first.note


def test_a_kernel_that_loses_more_than_an_order_can_is_refuted() -> None:
    def coarse(total: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return total.index_add_(0, index, x.bfloat16().to(x.dtype))

    for dtype in ("fp32", "fp16"):
        result = matmul.scatter_row("coarse", coarse, dtype, "cpu", False, 0, False)
        assert result.outcome == REFUTED
        assert result.first is not None


def test_a_kernel_without_a_deterministic_form_is_not_run() -> None:
    def refusing(total: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("does not have a deterministic implementation")
        return total.index_add_(0, index, x)

    assert matmul.scatter_row("refusing", refusing, "fp32", "cpu", False, 0, False).outcome == HOLDS
    result = matmul.scatter_row("refusing", refusing, "fp32", "cpu", False, 0, True)
    assert result.outcome == NOT_RUN
    assert "deterministic implementation" in result.reason
    assert not torch.are_deterministic_algorithms_enabled()


def test_no_place_receives_more_terms_than_the_bound_is_for() -> None:
    for dtype in DTYPES:
        most = max(np.bincount(index).max() for _, index, _, _ in matmul.inputs(dtype, 2, 0))
        assert 8 <= most <= 2 ** FORMATS[dtype].p


def test_without_cuda_the_new_rows_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [*matmul.scatter_rows("cuda"), *moments.adamw_rows("cuda")]
    assert len(found) == 27
    assert {r.outcome for r in found} == {NOT_RUN}


def test_both_are_sections_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"scatter", "moments"} <= set(SECTIONS)
    for module, name in ((matmul, "scatter_rows"), (moments, "adamw_rows")):
        rows = [KernelResult("x", "fp32", "cpu", "claim", ERROR, reason=name)]
        monkeypatch.setattr(module, name, lambda *_, rows=rows: rows)
    said: list[KernelResult] = []
    found = sections(options(["--quick", "--only", "scatter", "--only", "moments"]), said.append)
    assert [r.reason for r in said] == ["scatter_rows", "adamw_rows"]
    assert list(found) == ["scatter", "moments"]
