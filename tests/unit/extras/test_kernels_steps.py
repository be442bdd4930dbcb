"""Rows about steps and scattered sums on this CPU: each holds, and is refuted when bound or kernel is broken."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import matmul, reductions
from gradproof.extras.conformance.__main__ import SECTIONS, options, sections
from gradproof.extras.conformance.elementwise import DTYPES
from gradproof.extras.conformance.machine import Values, decode
from gradproof.extras.conformance.report import ERROR, HOLDS, NOT_RUN, REFUTED, KernelResult, RowClaim, bounded

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


def test_roots_are_as_exact_as_they_say() -> None:
    for x in (Fraction(2), Fraction(1, 3), Fraction(10) ** 40, Fraction(1, 10**40), Fraction(49, 64)):
        below = reductions.root(x)
        assert below**2 <= x < (below * (1 + Fraction(1, 2**100))) ** 2


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


def test_without_cuda_scattered_sums_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [*matmul.scatter_rows("cuda")]
    assert len(found) == 18
    assert {r.outcome for r in found} == {NOT_RUN}


def test_scattered_sums_are_a_section_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "scatter" in SECTIONS
    rows = [KernelResult("x", "fp32", "cpu", "claim", ERROR, reason="scatter_rows")]
    monkeypatch.setattr(matmul, "scatter_rows", lambda *_: rows)
    said: list[KernelResult] = []
    found = sections(options(["--quick", "--only", "scatter"]), said.append)
    assert [r.reason for r in said] == ["scatter_rows"]
    assert list(found) == ["scatter"]
