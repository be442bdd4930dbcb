"""The proven bounds: attained where they claim to be, never exceeded elsewhere, wrong when halved."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, strategies as st

from gradproof.arith.bounds import accumulation_bound, accumulation_witness, clip_factor, closed_form, scaling_bound
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding.accumulation import Setting, error_of

ATTAINED = [*(("fp32", 2**k) for k in range(1, 11)), *(("fp16", 2**k) for k in range(1, 7))]
ATTAINED += [("bf16", 2**k) for k in range(1, 5)]


@pytest.mark.parametrize(("fmt", "n"), ATTAINED)
def test_the_witness_attains_the_bound_exactly(fmt: str, n: int) -> None:
    bound = accumulation_bound(fmt, n, Fraction(1))
    assert bound == closed_form(fmt, n) == error_of(Setting(n, fmt), accumulation_witness(n, fmt))


@pytest.mark.parametrize(("fmt", "n"), [("fp32", 4), ("fp32", 256), ("fp16", 8), ("bf16", 8)])
def test_the_witness_replays_in_autograd(fmt: str, n: int) -> None:
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
    g = accumulation_witness(n, fmt)
    w = torch.zeros(1, dtype=dtype, requires_grad=True)
    for x in g:
        (w * torch.tensor([float(x)], dtype=dtype)).sum().div(n).backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    error = abs(Fraction(w.grad.item()) - sum(g, Fraction(0)) / n)
    assert error == closed_form(fmt, n)


def test_the_tolerances_of_the_contract_hold_where_they_are_said_to() -> None:
    assert (
        accumulation_bound("fp32", 256, Fraction(1)) < Fraction(1, 10**5) < accumulation_bound("fp32", 512, Fraction(1))
    )
    assert accumulation_bound("fp16", 4, Fraction(1)) < Fraction(1, 1000) < accumulation_bound("fp16", 8, Fraction(1))


@given(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=12))
def test_no_fp16_sum_exceeds_its_bound(xs: list[float]) -> None:
    f, terms = FORMATS["fp16"], [Fraction(x) for x in xs]
    total = terms[0]
    for x in terms[1:]:
        total = f.round(total + x)
    reach = max(map(abs, terms))
    assert abs(total - sum(terms)) <= accumulation_bound("fp16", len(terms), reach * len(terms))


def test_brute_force_on_a_tiny_format_finds_nothing_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Format("tiny", 6, 3, -2, 3)
    monkeypatch.setitem(FORMATS, "tiny", tiny)
    values = [s * x for x in tiny.nonnegative() if x <= 1 for s in (1, -1)]
    worst = Fraction(0)
    for terms in itertools.product(values, repeat=3):
        total = tiny.round(tiny.round(terms[0] + terms[1]) + terms[2])
        worst = max(worst, abs(total - sum(terms)))
    bound = accumulation_bound("tiny", 3, Fraction(3))
    assert bound / 2 < worst <= bound


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40), st.floats(0.125, 8, width=32))
def test_torch_clips_within_the_derived_factor(xs: list[float], limit: float) -> None:
    p = torch.zeros(len(xs), requires_grad=True)
    p.grad = torch.tensor(xs)
    torch.nn.utils.clip_grad_norm_([p], limit)
    squared = sum(Fraction(x) ** 2 for x in p.grad.tolist())
    assert squared <= (Fraction(limit) * clip_factor("fp32", len(xs))) ** 2


def test_torch_does_exceed_max_norm_itself() -> None:
    """Without the factor the clause would be false: this is why it is there."""
    generator, above = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        p = torch.zeros(17, requires_grad=True)
        p.grad = torch.randn(17, generator=generator) * 100
        torch.nn.utils.clip_grad_norm_([p], 1000.0**0.5 / 30)
        above += sum(Fraction(x) ** 2 for x in p.grad.tolist()) > Fraction(1000.0**0.5 / 30) ** 2
    assert above > 0


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one micro-batch"):
        accumulation_bound("fp32", 0, Fraction(1))
    with pytest.raises(ValueError, match="powers of two"):
        closed_form("fp32", 3)
    with pytest.raises(ValueError, match="at least one element"):
        clip_factor("fp32", 0)
    with pytest.raises(ValueError, match="too many"):
        clip_factor("fp16", 10**6)
    with pytest.raises(ValueError, match="at least one micro-batch"):
        accumulation_witness(0, "fp32")
    assert scaling_bound("fp32", 1, Fraction(1)) == 0
    assert scaling_bound("fp16", 3, Fraction(1)) == 3 * FORMATS["fp16"].half_ulp(Fraction(1, 3))
