"""Windows of token counts: the models against exact numbers, the smallest counterexample, the bias by brute force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import isqrt

import pytest
from training_checks import CONTRACT, ROOT, found

from gradproof.contract.model import load
from gradproof.core.outcome import Outcome, Reach
from gradproof.verdict.plan import policy_of
from models.tokens.bias import Bias, HalfAndHalf, OneOutlier
from models.tokens.window import FixedConstant, TokenBatch, TokenWindow, WeightedMeans
from symbolic.tokens.bias import bias_of, example
from symbolic.tokens.window import smallest

COUNTS = [c for k in (1, 2, 3, 4) for c in product(range(1, 10), repeat=k)]
RIGHT = (TokenWindow, WeightedMeans)


def window(rows: Sequence[Sequence[int]]) -> list[TokenBatch]:
    """Micro-batches whose tokens have these gradients, and two ignored labels each."""
    return [TokenBatch((Fraction(sum(row)),), len(row), 2) for row in rows]


def worst(counts: Sequence[int]) -> Fraction:
    """The most that the fixed constant can be off at these counts: each micro-batch's mean is 1 or -1."""
    k, total = len(counts), sum(counts)
    return sum((abs(Fraction(1, k) - Fraction(n, total)) for n in counts), Fraction(0))


@pytest.mark.parametrize("loop", RIGHT)
def test_every_valid_token_weighs_the_same(loop: type[TokenWindow]) -> None:
    rows = [(3, -1, 5), (), (7,), (2, 2)]
    step = loop().run((Fraction(1),), window(rows), Fraction(1, 2))
    assert (step.gradient, step.params, step.steps) == ((3,), (Fraction(-1, 2),), 1)
    assert FixedConstant().run((Fraction(1),), window(rows), 1).gradient != step.gradient


@pytest.mark.parametrize("loop", RIGHT)
def test_a_window_without_a_valid_token_is_not_stepped(loop: type[TokenWindow]) -> None:
    step = loop().run((Fraction(1),), window([(), ()]), 1)
    assert (step.gradient, step.params, step.steps) == ((0,), (1,), 0)


def test_the_windows_are_tried_in_order_of_size() -> None:
    assert smallest(1, 2, 3) == [(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)]
    assert smallest(0, 2, 1) == [(1,), (0, 1), (1, 0)]


@pytest.mark.parametrize(("name", "counts"), [("KANI-GT-203", (1, 2)), ("KANI-GT-204", (0, 1))])
def test_the_smallest_counterexample_is_found(name: str, counts: tuple[int, ...]) -> None:
    finding = found(name)
    assert finding.outcome is Outcome.REFUTED
    assert finding.counterexample is not None
    assert finding.counterexample["choices"] == [str(counts)]
    wrong = [c for c in smallest(min(counts), 2, 4) if worst([n for n in c if n]) or 0 in c]
    assert wrong[0] == counts


def test_the_reference_has_no_counterexample_there() -> None:
    assert found("KANI-GT-203", "models.tokens.window:TokenWindow").outcome is Outcome.HOLDS


def test_no_counts_exceed_the_bound() -> None:
    for counts in COUNTS:
        r, error = Fraction(max(counts), min(counts)), worst(counts)
        s = Fraction(
            isqrt(r.numerator * 10**20 // r.denominator), 10**10
        )  # below sqrt r, so the bound is below its own
        assert error <= Bias().at_most(s) + Fraction(1, 10**9), counts
        above = sum(n * len(counts) > sum(counts) for n in counts)
        assert error <= Bias().with_above(above, len(counts), r), counts


@pytest.mark.parametrize("claim", [HalfAndHalf, OneOutlier])
def test_brute_force_refutes_a_smaller_bound(claim: type[Bias]) -> None:
    assert any(worst(c) > claim().at_most(2) for c in COUNTS if max(c) == 4 * min(c))


@pytest.mark.parametrize("s", [1, 2, 3, 5])
def test_the_bound_is_attained_by_the_models(s: int) -> None:
    assert bias_of(example(s, 1, s * s, 3)) == Fraction(2 * (s - 1), s + 1)
    assert bias_of(example(s, 1, s * s, 3)) == worst([3] * s + [3 * s * s])


def test_the_bias_is_bounded_for_every_k_and_every_wrong_claim_is_refuted() -> None:
    finding = found("KANI-GT-207")
    assert (finding.outcome, finding.reach) == (Outcome.HOLDS, Reach.ALL_INPUTS)
    assert {c.name for c in finding.controls if c.killed} == {
        "empty body",
        "half_and_half",
        "one_outlier",
        "sum_of_means",
    }


def test_a_claim_that_is_a_little_too_small_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Bias.at_most
    monkeypatch.setattr(Bias, "at_most", lambda self, s: exact(self, s) * Fraction(99, 100))
    assert found("KANI-GT-207", "models.tokens.bias:Bias").outcome is not Outcome.HOLDS
    assert found("KANI-GT-209", "models.tokens.bias:Bias").outcome is Outcome.REFUTED


def test_each_obligation_names_the_model_that_it_is_about() -> None:
    about = {c.id: c.subjects.get("model") for c in policy_of(load(CONTRACT), "ci").clauses if c.subjects}
    assert about["GA-TOK-001"] == "models.tokens.window:TokenWindow"
    assert about["GA-CE-001"] == "models.tokens.cross_entropy:CrossEntropy"
    assert about["GA-LR-001"] == "models.tokens.scaling:AdamW"


def test_the_page_tells_the_figures_of_the_document() -> None:
    page = (ROOT / "docs" / "tokens.md").read_text(encoding="utf-8")
    data = json.loads((ROOT / "reports" / "tokens.json").read_text(encoding="utf-8"))
    for row in data["effective_tokens"]:
        assert f"| {row['tokens']} | {row['micro_batches']} | {row['counted']} | {row['weight_of_each']} |" in page
    for row in data["parity"]["runs"]:
        scaled = "no" if row["run"].startswith("without") else "yes"
        stated = f"| {row['optimizer']} | {row['rate']:.0e}".replace("e-03", "e-3")
        assert f"{stated} | {scaled} | {row['losses'][-1]:.4f} |" in page
    assert f"up to {data['after_switch']['largest']:.2f} rates, at the {data['after_switch']['at']}th step" in page
