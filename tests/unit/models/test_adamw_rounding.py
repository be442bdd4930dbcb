"""The derived bound of one AdamW step: its rules, its counts, software floats within it, and what breaks it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from gradproof.arith import exact
from gradproof.arith.formats import FORMATS
from gradproof.arith.soft import Soft
from gradproof.contract.model import load
from gradproof.core.outcome import Outcome
from gradproof.core.workspace import Workspace
from gradproof.execution.methods import smt as smt_run
from gradproof.execution.methods.explore import Explorer, Limits
from gradproof.execution.methods.harness import SymbolicKit
from gradproof.execution.methods.property import Case, Place, Refutation
from gradproof.extras.conformance.reductions import root
from gradproof.verdict.plan import plan
from models.adamw.kernel import Kernel
from models.adamw.mutants import KernelEpsInsideRoot
from models.adamw.torch_model import MUTANTS, REFERENCE, Settings
from symbolic.adamw import rounding as adamw_rounding, rounding as factors
from symbolic.adamw.falsify import Derived, scalars
from symbolic.adamw.rounding import Bounds, Factored, Term, bounds, grown

PLACED = Place("cpu", "fp32", {}, frozenset())
U = FORMATS["fp32"].u
HERE = Path(__file__).resolve().parents[3]
CHECK = next(c for c in plan(load(HERE / "proofs/adamw-kernel-v1/contract.yaml")) if c.id == "KANI-AW-009")


class Asked:
    """A kit that remembers what was asked of it, for numbers."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def check(self, clause: str, condition: Any, label: str = "") -> None:
        assert condition, label
        self.labels.append(label)


def number(x: Fraction | int, single: int = 0) -> Factored:
    return Factored([Term(Fraction(x), single)], Asked(), "clause")


def counts(made: Factored) -> list[int]:
    return [t.single for t in made.terms]


def test_the_growth_of_k_roundings_is_at_most_ku_over_one_minus_ku() -> None:
    assert grown(0) == 1
    for k in (1, 4, 10):
        assert k * U < grown(k) - 1 <= k * U / (1 - k * U)


def test_each_operation_counts_one_rounding_and_those_of_its_operands() -> None:
    a, b = number(3, 2), number(5, 4)
    assert counts(a * b) == [7]
    assert counts(a / b) == [7]
    assert counts(a + b) == [3, 5]
    assert (a + b).whole() == Term(Fraction(8), 5)
    assert counts(number(4, 3).sqrt()) == [3]
    assert counts(number(4, 4).sqrt()) == [3]
    assert (number(7) - number(5)).terms == (Term(Fraction(2), 1),)
    assert number(1).rounded("fp16").terms == (Term(Fraction(1), 0, 1),)
    with pytest.raises(ValueError, match="bf16"):
        number(1).rounded("bf16")


def test_a_divisor_whose_terms_cancel_is_asked_about() -> None:
    with pytest.raises(AssertionError, match="divisor"):
        number(1) / (number(3, 1) - number(2, 1))


def test_a_number_of_too_many_terms_is_no_kill() -> None:
    four = [Term(Fraction(i), 1) for i in range(4)]
    with pytest.raises(ValueError, match="4 terms"):
        factors.charged(Asked(), "clause", Factored(four, Asked(), "clause"), factors.Claim([(1, 1)]), "m'", (0, 0, 0))


def judged(**changed: int) -> Any:
    """The proof with other counts, without its controls."""
    check = replace(CHECK, params={**CHECK.params, "controls_off": True})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(adamw_rounding, name, value)
        return smt_run.run(check, Workspace(HERE, HERE / "reports"))


@pytest.mark.parametrize("name", ["START", "MOMENT", "SQUARE", "WEIGHT", "UPDATE", "BELOW"])
def test_no_count_of_the_bound_can_be_smaller(name: str) -> None:
    finding = judged(**{name: getattr(adamw_rounding, name) - 1})
    assert finding.outcome is Outcome.REFUTED, finding.reason


@pytest.mark.parametrize(
    ("call", "label"), [(1, "one rounding"), (7, "a root has half of the factors"), (0, "")], ids=str
)
def test_a_wrong_rule_is_refuted(call: int, label: str) -> None:
    """One rounding, and a root, charged with nothing; and no wrong rule."""
    real, calls = factors.band, []

    def wrong(factor: Any, most: Any) -> Any:
        calls.append(factor)
        return real(factor, 1) if len(calls) == call else real(factor, most)

    explorer = Explorer(Limits(4, 4, 10, 10**12), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factors, "band", wrong)
        result = explorer.run(lambda: factors.rules(SymbolicKit(CHECK, explorer), "clause"))
    assert result.stopped is None
    assert (result.violation.label if result.violation else "") == label


def soft_step(state: tuple[Fraction, ...], settings: Settings, t: int, kernel: Kernel) -> tuple[Bounds, list[Fraction]]:
    """The bounds around the exact step, and m', v', theta' of the kernel in software fp32."""
    p, g, m, v = state
    given = scalars(settings, t)
    second = given.beta2 * v + given.weight2 * g * g
    made = bounds((p, g, m, v), given, root(second) / given.root + given.eps)
    names = ("weight", "beta2", "weight2", "kept", "size", "root", "eps")
    w, b2, w2, kept, size, low, eps = (Soft(getattr(given, name), "fp32") for name in names)
    sp, sg, sm, sv = (Soft(x, "fp32") for x in state)
    near = given.weight < Fraction(1, 2)
    first = kernel.first(sm, sg, w) if near else kernel.first_far(sm, sg, 1 - w)
    square = kernel.second(sv, sg, b2, w2)
    after = kernel.moved(sp, kept, first, kernel.below(square, low, eps), size)
    return made, [exact(x) for x in (first, square, after)]


def states() -> list[tuple[Fraction, ...]]:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(20, 4, generator=generator)
    return [(*map(Fraction, row[:3]), Fraction(row[3]) ** 2 + 1) for row in rows.tolist()]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.75)])
def test_software_floats_in_torchs_order_stay_within_the_bound(betas: tuple[float, float]) -> None:
    worst = Fraction(0)
    for state in states():
        rounded = tuple(FORMATS["fp32"].round(x) for x in state)
        made, got = soft_step(rounded, Settings(rate=0.25, betas=betas, eps=0.5), 7, Kernel())
        for (want, off), x in zip((made.first, made.second, made.weight), got, strict=True):
            assert abs(x - want) <= off
            worst = max(worst, abs(x - want) / off)
    assert Fraction(1, 4) < worst


def test_eps_under_the_root_leaves_the_bound() -> None:
    rounded = tuple(FORMATS["fp32"].round(x) for x in states()[0])
    made, got = soft_step(rounded, Settings(rate=0.25, eps=0.5), 7, KernelEpsInsideRoot())
    assert abs(got[2] - made.weight[0]) > 100 * made.weight[1]


@pytest.mark.parametrize("form", ["single", "foreach", "fused"])
def test_moments_of_sixteen_bits_are_refuted_in_every_form(form: str) -> None:
    case = Case("defaults", 2, "fp32", 1, "adamw", form, magnitude=2)
    assert len(Derived().test(REFERENCE, case, PLACED).rows) == 3
    with pytest.raises(Refutation, match="derived bound"):
        Derived().test(MUTANTS["half_moments"].subject, case, PLACED)


def test_two_forms_part_by_more_than_eight_ulp_in_m_as_far_as_is_derived() -> None:
    """What the contract says of its 8 ulp: u |x| is less than one ulp, and each form has the bound to itself."""
    scale, weight = Fraction(1), Fraction(1, 10)
    h1, h4 = grown(1) - 1, grown(4) - 1
    first = 2 * (h1 * scale + h4 * (1 + weight) * scale) / U
    second = 2 * h4 * scale / U
    assert 8 < second < Fraction(81, 10)
    assert 8 < first < 11


@pytest.mark.parametrize("beta", [0.1, 0.4, 1 / 3])
def test_a_far_weight_that_fp32_does_not_hold_has_no_bound(beta: float) -> None:
    """torch rounds 1 - b1 before it takes b1 back from it: at b1 = 0.1 the formula would be exceeded."""
    with pytest.raises(ValueError, match="no number of fp32"):
        soft_step(states()[0], Settings(rate=0.25, betas=(beta, 0.75), eps=0.5), 7, Kernel())


def test_torch_exceeds_the_formula_where_nothing_is_derived() -> None:
    weight, moment, grad = 1 - 0.1, -31.999998092651367, 3.814697720372351e-06
    got = torch.tensor([moment]).lerp_(torch.tensor([grad]), weight)
    m, g, w = map(Fraction, (moment, grad, weight))
    formula = (grown(1) - 1) * abs(g) + (grown(4) - 1) * (1 - w) * abs(g - m)
    assert abs(Fraction(float(got)) - (m + w * (g - m))) > Fraction(13, 10) * formula
