"""Every law of whole-tensor values is tried on the real kernel and proved; what claims more than a law is refuted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradproof.shadow.follow.interpreter import Law
from gradproof.shadow.follow.laws import LAWS, RULES, fixed, over, pointwise
from gradproof.shadow.ops.schema import tensors_in
from tests.laws.__main__ import markdown
from tests.laws.covered import NAMES, REASONS, bare, lawless
from tests.laws.examples import EQUIVALENT, TOO_WEAK, UNTRIED, examples
from tests.laws.polynomials import add, atom, choice, div, mul, number, positive, power
from tests.laws.proofs import Numbers, Proof, prove, symbolic
from tests.laws.symbols import DEFINITIONS, Symbols
from tests.laws.trials import Trial, Wrong, layouts, tried

EXAMPLES: dict[str, list[Any]] = {}
for example in examples(small=True):
    EXAMPLES.setdefault(example[0], []).append(example)
TRUE = {**EQUIVALENT, "isnan": "linear in argument 0", "count_nonzero": "every axis mapped"}
"""Mutants that are true over the reals, where nothing is NaN."""


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    """Every operator's trial."""
    return tried()


def test_no_law_differs_from_its_kernel(trials: dict[str, Trial]) -> None:
    assert {name: trial.wrong for name, trial in trials.items() if trial.wrong} == {}


def test_thousands_of_cases_were_decided(trials: dict[str, Trial]) -> None:
    assert sum(trial.cases for trial in trials.values()) > 3500


def test_every_law_is_tried_or_says_why_not(trials: dict[str, Trial]) -> None:
    tried_names = {name for name, trial in trials.items() if trial.cases}
    assert (set(LAWS) | set(RULES)) - tried_names <= set(UNTRIED)


def test_nothing_that_is_tried_is_called_untried(trials: dict[str, Trial]) -> None:
    assert {name for name in UNTRIED if name in trials and trials[name].cases} == set()


def test_mutants_of_laws_are_refuted(trials: dict[str, Trial]) -> None:
    left = {
        name: mutant
        for name, trial in trials.items()
        for mutant in trial.survived
        if trial.cases and mutant.startswith("linear") and EQUIVALENT.get(name) != mutant and name not in TOO_WEAK
    }
    assert left == {}


@pytest.mark.parametrize(
    "name", ["_softmax", "native_layer_norm", "convolution", "native_group_norm", "cumprod", "tril"]
)
def test_a_coupled_axis_that_is_mapped_is_refuted(trials: dict[str, Trial], name: str) -> None:
    assert "every axis mapped" in trials[name].killed


# -- Proofs.


def proof_of(name: str) -> Proof:
    """The proof of one operator."""
    proof = Proof(name)
    with torch.no_grad():
        for one in EXAMPLES[name]:
            prove(proof, *one)
    return proof


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_law_is_proved_and_its_mutants_are_not(name: str) -> None:
    proof = proof_of(name)
    assert proof.why == []
    assert proof.cases
    law = LAWS.get(name)
    mapped = law is not None and (law.letters is pointwise or name in ("mm", "bmm", "mv", "dot"))
    assert proof.held <= {TRUE.get(name), "every axis mapped" if mapped else None}


WRONG: dict[str, tuple[str, Law]] = {
    "another axis": ("_softmax", Law(lambda call: over()(replace(call, args=(call.args[0], 0, False))))),
    "a sum for a map": ("relu", Law(lambda call: (["ab"], ["A"]))),
    "one summand less": ("native_layer_norm_backward", replace(LAWS["native_layer_norm_backward"], linear=(0, 1))),
    "linear jointly and not in each": ("add", Law(pointwise, linear=(0, 1))),
    "a map for a sum": ("convolution_backward", Law(fixed("aZ*", "aZ*", "Z*", "->aZ*", "->aZ*", "->Z*"), linear=(0,))),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_law_is_not_proved(case: str) -> None:
    name, law = WRONG[case]
    failed = 0
    for one in EXAMPLES[name]:
        with torch.no_grad():
            own = symbolic(*one)
            for layout in layouts(tensors_in((own.args, own.kwargs))):
                try:
                    own.proved(layout, law)
                except Exception:
                    failed += 1
    assert failed > 0


def test_a_definition_that_is_not_the_kernels_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = DEFINITIONS[torch.ops.aten.mm.default]
    monkeypatch.setitem(DEFINITIONS, torch.ops.aten.mm.default, lambda a, b: wrong(a, b) * 2)
    proof = proof_of("mm")
    assert proof.cases == 0
    assert all("other numbers" in why for why in proof.why)


def test_an_operator_of_whole_rows_is_proved_by_its_rows_alone() -> None:
    with torch.no_grad():
        own = symbolic(*EXAMPLES["_softmax"][0])
        assert own.proved({0: 0}, LAWS["_softmax"])
        with pytest.raises(Wrong):
            own.proved({0: 2}, Law(pointwise))


# -- Polynomials: rules that hold of numbers hold of them.


@pytest.mark.parametrize(("x", "y"), [(0.75, -1.5), (-2.0, 3.0), (0.5, 0.5)])
def test_polynomials_have_the_numbers_of_what_they_stand_for(x: float, y: float) -> None:
    p, q, mask = (atom(kind, name, 0) for kind, name in (("variable", "x"), ("variable", "y"), ("mask", "m")))
    numbers = Numbers({"x": torch.tensor([x]), "y": torch.tensor([y]), "m": torch.tensor([0.0])})
    pairs = [
        (add(p, q, -3), x - 3 * y), (mul(add(p, q), add(p, q)), (x + y) ** 2), (div(p, add(q, number(5))), x / (y + 5)),
        (choice(positive(add(p, q, -1)), p, q), max(x, y)), (power(q, number(-2)), y**-2), (mul(mask, mask), 0.0),
        (power(add(mul(p, p), mul(q, q)), number(0.5)), (x * x + y * y) ** 0.5),
    ]  # fmt: skip
    for polynomial, expected in pairs:
        array = np.empty(1, dtype=object)
        array[0] = polynomial
        assert float(numbers.of(Symbols(array))) == pytest.approx(expected)
    assert mul(mask, mask) == mask


# -- What is covered.


def test_every_operator_of_the_list_has_a_law_or_a_reason() -> None:
    assert len(NAMES) > 360
    assert set(lawless()) == set(REASONS)
    assert not {bare(name) for name in NAMES} & set(REASONS) & (set(LAWS) | set(RULES))


def test_the_table_has_a_row_for_each() -> None:
    text = markdown({"relu": Trial("relu", cases=3)}, {"relu": proof_of("relu")})
    assert "| `relu` | law |  | 3 | 2, at 2x3 | 0, 1 |" in text
    assert all(f"| `{name}` | {why} |" in text for name, why in REASONS.items())


def test_the_handbook_has_the_table_of_today() -> None:
    text = (Path(__file__).parents[3] / "docs" / "laws.md").read_text(encoding="utf-8")
    assert [name for name in sorted({*LAWS, *RULES, *lawless()}) if f"| `{name}` |" not in text] == []
    assert "| no:" not in text
