"""Under torch.set_flush_denormal(True) every row that meets subnormals names FTZ and does not hold.

A CPU that has no such mode says so, and then nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gradproof.extras.conformance import elementwise, matmul, matmul as flushing, reductions
from gradproof.extras.conformance.elementwise import OPERATORS, Operator
from gradproof.extras.conformance.machine import FLUSHES
from gradproof.extras.conformance.report import HOLDS, REFUTED, KernelResult

COUNT = 2000
WIDE = ("fp32", "bf16")  # 16-bit floats of five exponent bits are never subnormal in fp32, where a CPU computes
BLIND = ("add(scalar)", "sqrt", "to(fp16)", "to(bf16)")
"""No scalar is small, a library's root sets its own mode, and conversions are integer arithmetic."""
AFFECTED = [(op, d) for op in OPERATORS for d in op.dtypes if d in WIDE and op.name not in BLIND]
SUMS = {name: (reduce, check) for name, reduce, check in reductions.REDUCTIONS if check is not reductions.check_norm}


@pytest.fixture
def flushes() -> Iterator[bool]:
    """Whether this thread now flushes, which is undone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the mode is the thread's
    try:
        yield torch.set_flush_denormal(True)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def agrees(result: KernelResult, flushes: bool) -> bool:
    """Whether a row says what it must in this mode."""
    named = any("FTZ" in name for name in result.names)
    if not flushes:
        return result.outcome == HOLDS and not named
    return result.outcome == REFUTED and named and result.first is not None


def test_this_thread_flushes_or_says_that_it_cannot(flushes: bool) -> None:
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    assert bool(((tiny + 0).view(torch.int32) == 0).all()) is flushes


@pytest.mark.parametrize(("op", "dtype"), AFFECTED, ids=lambda v: getattr(v, "name", v))
def test_an_elementwise_row_names_it(op: Operator, dtype: str, flushes: bool) -> None:
    assert agrees(elementwise.conform(op, dtype, "cpu", COUNT), flushes)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.name in BLIND], ids=lambda op: f"{op.name}-{op.dtypes}")
def test_a_row_that_holds_names_nothing(op: Operator, flushes: bool) -> None:
    for dtype in op.dtypes:
        result = elementwise.conform(op, dtype, "cpu", COUNT)
        assert (result.outcome == HOLDS) is (result.names == ())


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", WIDE)
def test_a_sum_names_it(dtype: str, name: str, flushes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "DTYPES", (dtype,))
    monkeypatch.setattr(reductions, "REDUCTIONS", ((name, *SUMS[name]),))
    monkeypatch.setattr(reductions, "_steps", lambda *_: [])
    (result,) = reductions.rows("cpu")
    assert agrees(result, flushes)


@pytest.mark.parametrize(("name", "kernel"), matmul.SCATTERS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("dtype", WIDE)
def test_a_scattered_sum_names_it(dtype: str, name: str, kernel: matmul.Scatter, flushes: bool) -> None:
    assert agrees(matmul.scatter_row(name, kernel, dtype, "cpu", False, 0, False), flushes)


@pytest.mark.parametrize("dtype", WIDE)
def test_a_product_names_it(dtype: str, flushes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other inputs meet no subnormal: without the one that does, the row would hold and name FTZ."""
    monkeypatch.setattr(matmul, "DTYPES", (dtype,))
    monkeypatch.setattr(matmul, "QUICK_SHAPES", ((5, 2, 7), (9, 65, 9)))
    (result,) = (r for r in matmul.rows("cpu") if r.device == "cpu")
    assert agrees(result, flushes)
    if flushes:
        assert result.mismatches == 1


def test_the_edges_name_it(flushes: bool) -> None:
    found = {(r.operator, r.dtype): r for r in matmul.edge_rows("cpu")}
    for dtype in WIDE:
        for edge in ("subnormal", "signed zero"):
            assert agrees(found[f"buf.add_: {edge}", dtype], flushes)
        assert found["buf.add_: cancellation", dtype].outcome == HOLDS


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_sum_of_subnormals_is_asked(dtype: str) -> None:
    """Also where the CPU cannot flush: by a sum that does it itself."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x), x).sum()

    assert flushing.named(torch.sum, dtype, "cpu") == ()
    assert flushing.named(torch.mean, dtype, "cpu", want=1) == ()
    assert flushing.trial(torch.sum, dtype, "cpu").error == 0
    assert flushing.named(cut, dtype, "cpu") == (FLUSHES,)
    assert flushing.trial(cut, dtype, "cpu").error > flushing.trial(cut, dtype, "cpu").bound == 0
