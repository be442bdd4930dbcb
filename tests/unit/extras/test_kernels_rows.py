"""The conformance rows on this CPU: each holds, and each is refuted when its model is broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gradproof.extras.conformance import elementwise, matmul, reductions
from gradproof.extras.conformance.elementwise import (
    DTYPES,
    OPERATORS,
    Operator,
    compare,
    conform,
    distance,
    operator_named,
    outputs,
    to_bits,
    to_tensor,
)
from gradproof.extras.conformance.machine import UNEXPLAINED, Machine, encode
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    NOT_RUN,
    REFUTED,
    KernelTrial,
    RowClaim,
    bounded,
    exactly,
    judge,
    sample,
)

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 4000
ROWS = [(op, dtype) for op in OPERATORS for dtype in op.dtypes]
ROW = RowClaim("made up", "fp32", "cpu", "bound", {})


@pytest.mark.parametrize(("op", "dtype"), ROWS, ids=lambda v: getattr(v, "name", v))
def test_a_row_holds_and_its_broken_model_is_refuted(op: Operator, dtype: str) -> None:
    found = list(outputs(op, dtype, "cpu", COUNT, 0))
    away = op.ulps.get(("cpu", dtype), 0)
    claimed = compare(op.machine(dtype, "cpu"), op.program, iter(found), dtype, op.second(dtype, "cpu"), away)
    assert claimed.cases > COUNT
    assert (claimed.off, claimed.first) == (0, None)
    machine, program = op.wrong(dtype, "cpu")
    broken = compare(machine, program, iter(found), dtype, ulps=away)
    assert broken.off > 0
    assert broken.first is not None
    assert all(text.startswith("0x") for text in (*broken.first.inputs, broken.first.got, broken.first.want))


@pytest.mark.parametrize("place", [0, 3, -1])
def test_one_wrong_bit_is_refuted_with_its_inputs(place: int) -> None:
    good = operator_named("add_(tensor)", "fp16")

    def kernel(x: list[torch.Tensor], s: float) -> torch.Tensor:
        result = good.kernel(x, s)
        result.view(torch.int16)[place] ^= 0x4000
        return result

    result = conform(replace(good, kernel=kernel), "fp16", "cpu", COUNT)
    assert result.outcome == REFUTED
    assert 0 < result.mismatches < result.cases // 100
    assert result.first is not None
    assert len(result.first.inputs) == 2
    assert int(result.first.got, 16) ^ int(result.first.want, 16) == 0x4000
    assert result.names == (UNEXPLAINED,)


def test_a_refuted_row_names_the_habit() -> None:
    unfused = replace(operator_named("addcmul"), habits={"contract": False})
    result = conform(unfused, "fp32", "cpu", COUNT)
    assert result.outcome == REFUTED
    assert any(name.startswith("FMA contraction:") for name in result.names)
    stored = replace(operator_named("mul(scalar)", "fp16"), by_device={"cpu": {"scalar": "storage"}})
    assert conform(stored, "fp16", "cpu", COUNT).names == ("the scalar keeps fp32",)


def test_a_row_that_its_control_passes_is_an_error() -> None:
    tame = replace(operator_named("mul(tensor)"), control={})
    result = conform(tame, "fp32", "cpu", COUNT)
    assert result.outcome == ERROR
    assert "control" in result.reason


def test_a_kernel_that_crashes_is_an_error() -> None:
    def kernel(x: list[torch.Tensor], s: float) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    result = conform(replace(OPERATORS[0], kernel=kernel), "fp32", "cpu", COUNT)
    assert result.outcome == ERROR
    assert "no kernel image" in result.reason


def test_without_cuda_nothing_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [*elementwise.all_rows("cuda", COUNT), *reductions.rows("cuda"), *matmul.rows("cuda")]
    assert len(found) > 80
    assert {r.outcome for r in found} == {NOT_RUN}
    assert all(r.reason and not r.cases for r in found)


def test_nan_is_never_near_and_zeros_are_two() -> None:
    a = encode(np.array([1.0, 0.0, 0.0, np.nan, np.inf]), "fp16")
    b = encode(np.array([1 + 2.0**-10, -0.0, 2.0**-24, 1.0, 65504.0]), "fp16")
    assert distance(a, b, "fp16").tolist() == [1, 0, 1, 2**40, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_hold_and_shrunken_bounds_are_refuted(dtype: str) -> None:
    for name, reduce, check in reductions.REDUCTIONS:
        row = RowClaim(name, dtype, "cpu", "bound", {})
        made = list(reductions.reduction_trials(reduce, check, dtype, "cpu", 1, 0))
        assert bounded(row, lambda made=made: made).outcome == HOLDS, name  # type: ignore[misc]
        assert judge(row, made, tuple, Fraction(1, 32)).outcome == REFUTED, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_is_bit_for_bit_given_the_norm(dtype: str) -> None:
    row = RowClaim("clip", dtype, "cpu", "bits", {})

    def right() -> Iterator[KernelTrial]:
        return reductions.clip_scale_trials(dtype, "cpu", 1, 0)

    def wrong() -> Iterator[KernelTrial]:
        return reductions.clip_scale_trials(dtype, "cpu", 1, 0, reductions.wrong_coefficient)

    assert exactly(row, right, wrong).outcome == HOLDS
    assert judge(row, wrong(), tuple, Fraction(1)).outcome == REFUTED
    assert exactly(row, right, right).outcome == ERROR
    assert bounded(row, lambda: reductions.clip_norm_trials(dtype, "cpu", 1, 0)).outcome == HOLDS


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_hold_and_a_wrong_step_is_refuted(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = RowClaim("AdamW", dtype, "cpu", "bound", {})
    assert bounded(row, lambda: reductions.adam_trials(dtype, "cpu", 2001, 0)).outcome == HOLDS
    for divide in (False, True):
        made = list(reductions.compound_trials(divide, dtype, "cpu", 2001, 0))
        assert bounded(row, lambda made=made: made).outcome == HOLDS  # type: ignore[misc]
    right = torch.optim.AdamW

    def hasty(params: Any, **options: Any) -> torch.optim.AdamW:
        return right(params, **{**options, "lr": 1.01 * options["lr"] if dtype == "fp32" else 0.1})

    monkeypatch.setattr(torch.optim, "AdamW", hasty)
    result = bounded(row, lambda: reductions.adam_trials(dtype, "cpu", 2001, 0))
    assert result.outcome == REFUTED
    assert result.first is not None
    assert result.first.inputs[0].startswith("0x")


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_hold_and_tf32_like_factors_do_not(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = RowClaim("matmul", dtype, "cpu", "bound", {})
    monkeypatch.setattr(matmul, "QUICK_SHAPES", ((5, 2, 7), (9, 65, 9)))
    assert bounded(row, lambda: matmul.trials(dtype, "cpu", matmul.Flags(), False, 0)).outcome == HOLDS
    plain = matmul.product

    def coarse(a: Any, b: Any, shape: tuple[int, int, int], name: str, device: str) -> Any:
        cut = Machine(name, name, name, factors="bf16" if name == "bf16" else "tf32")
        if name != "fp32":
            m, k, n = shape
            left, right = to_tensor(a, name, device).view(m, k), to_tensor(b, name, device).view(k, n)
            total = torch.zeros(m, n, dtype=left.dtype)
            for i in range(k):
                total = total + left[:, i : i + 1] * right[i : i + 1]
            return to_bits(total)
        return plain(
            *(encode(cut.product(matmul.decode(x, name), np.ones(1)), name) for x in (a, b)), shape, name, device
        )

    monkeypatch.setattr(matmul, "product", coarse)
    result = bounded(row, lambda: matmul.trials(dtype, "cpu", matmul.Flags(), False, 0))
    assert result.outcome == REFUTED
    names = matmul.asked(dtype, "cpu", matmul.Flags())
    wanted = {"fp32": ("TF32", "11 bits"), "fp16": ("sums", "11 bits")}.get(dtype, ("sums", "8 bits"))
    assert any(all(word in name for word in wanted) for name in names)


def test_flags_come_back_and_every_flag_has_a_bound() -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled())
    with matmul.applied(matmul.Flags(tf32=True, reduced=True, deterministic=True)):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()) == before
    plain = matmul.relative("fp32", "cuda", matmul.Flags(), 64)
    assert plain < matmul.relative("fp32", "cuda", matmul.Flags(tf32=True), 64)
    assert plain == matmul.relative("fp32", "cpu", matmul.Flags(tf32=True), 64)
    with pytest.raises(ValueError, match="no finite bound"):
        matmul.relative("bf16", "cuda", matmul.Flags(reduced=True), 256)


def test_trials_decide() -> None:
    good = KernelTrial(Fraction(1), Fraction(1), ("0x1",), "0x2", "0x2", "equal to its bound")
    bad = replace(good, error=Fraction(1) + Fraction(1, 10**30))
    assert bounded(ROW, lambda: [good]).outcome == HOLDS
    refuted = bounded(ROW, lambda: [good, bad])
    assert (refuted.outcome, refuted.mismatches) == (REFUTED, 1)
    assert bounded(ROW, lambda: []).outcome == ERROR
    slack = bounded(ROW, lambda: [replace(good, error=Fraction(1, 100))])
    assert slack.outcome == ERROR
    assert "32 times smaller" in slack.reason
    with pytest.raises(KeyError):
        sample("unheard of", "fp32", 3, np.random.default_rng(0))
