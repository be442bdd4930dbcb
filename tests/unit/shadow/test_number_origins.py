"""Where a plain number comes from: the expression at its line says it, and no name is guessed from a value."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch

from gradproof.shadow.follow.origins import Origins
from gradproof.shadow.follow.terms import NAMED, SIZE, UNREAD, WRITTEN, Number
from gradproof.shadow.texts import MODULUS, RANGE, ROWS, SLICE

ORIGINS = Origins(lambda tensor, axis: int(tensor.shape[axis]) * (axis == 0))
N, B, WIDTH = 4, 2, 3
INVERSE = 1.0 / N
SIGMA = math.sqrt(2)
OF_TENSOR = torch.tensor(4.0)
CONFIG = {"accum": 4, "batch": 2}
ARGS = argparse.Namespace(accum=4, beta=0.5)
X = torch.zeros(6, 5)


@dataclass
class Settings:
    """A config that shapes a loop by its attribute."""

    accum: int = 4


SETTINGS = Settings()


def origin(number: float) -> tuple[Fraction, dict[str, int]]:
    """The origin of what the caller gives, with the texts of the leaves."""
    by, leaves = ORIGINS.of(number, False)
    return by, {leaf.text: power for leaf, power in leaves.items()}


def leaf(number: float) -> Number:
    """The one leaf of what the caller gives."""
    (found,) = ORIGINS.of(number, False)[1]
    return found


def loop(step: int, rows: list[int]) -> bool:
    """The lines that show what each name shapes."""
    shaped = step % N == 0 or step % CONFIG["accum"] == 0 or step % ARGS.accum == 0 or step == SETTINGS.accum
    return bool(shaped and rows[step * B : (step + 1) * B] and range(WIDTH))


def test_an_expression_is_a_product_of_powers_of_its_leaves() -> None:
    assert origin(N) == (1, {"N": 1})
    assert origin(1 / N) == (1, {"N": -1})
    assert origin(INVERSE) == (1, {"N": -1})
    assert origin(1 / (B * N)) == (1, {"N": -1, "B": -1})
    assert origin(N**2 / B) == (1, {"N": 2, "B": -1})
    assert origin(float(Fraction(1, N) ** 2)) == (1, {"N": -2})
    assert origin(math.exp(-math.log(N))) == (1, {"N": -1})
    assert origin(np.int64(N)) == (1, {"N": 1})
    assert origin(max(N, 1)) == (1, {"N": 1})
    assert origin(1 / OF_TENSOR.item()) == (1, {"4.0": -1})
    assert origin(-N) == (-1, {"N": 1})
    assert origin(N * N / N) == (1, {"N": 1})
    assert origin(1 / (2 * SIGMA**2)) == (1, {"2": -2}), "both are in the text as 2; the exponent is no leaf"


def test_a_parameter_is_what_the_caller_gave() -> None:
    def inner(by: float) -> tuple[Fraction, dict[str, int]]:
        return origin(1 / by)

    assert inner(N) == (1, {"N": -1})
    assert inner(by=2 * N) == (1, {"2": -1, "N": -1})


def test_sizes_are_those_of_an_axis() -> None:
    assert [leaf(1 / len(X)).rows, leaf(X.shape[0]).rows, leaf(X.size(0)).rows] == [6, 6, 6]
    assert (leaf(X.shape[1]).kind, leaf(X.shape[1]).rows) == (SIZE, 0)
    rows, width = X.shape
    assert (leaf(rows).rows, leaf(width).rows) == (6, 0)
    assert sorted(one.value for one in ORIGINS.of(X.numel(), False)[1]) == [5.0, 6.0]


def test_what_a_name_shapes_stands_in_its_file() -> None:
    assert MODULUS in leaf(N).shapes
    assert SLICE in leaf(B).shapes
    assert leaf(WIDTH).shapes == {RANGE}
    assert MODULUS in leaf(CONFIG["accum"]).shapes
    assert MODULUS in leaf(ARGS.accum).shapes
    assert leaf(SETTINGS.accum).shapes
    assert not leaf(CONFIG["batch"]).shapes & {MODULUS, RANGE, ROWS}
    assert loop(0, [1])


def test_kinds_say_how_a_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUM", "7")
    from_text = int(os.environ["ACCUM"])
    assert [leaf(0.25).kind, leaf(ARGS.beta).kind, leaf(from_text).kind] == [WRITTEN, NAMED, NAMED]
    unknown = sorted([3, 5])[0]
    assert leaf(unknown).kind == UNREAD


def test_a_number_that_the_line_does_not_give_has_no_origin() -> None:
    """A name that stands for another number now, a sum of two kinds, and a quotient without its rest."""
    assert leaf(N + B).kind == UNREAD
    assert leaf(len(X) // N).kind == UNREAD

    def other(number: float) -> Number:
        return next(iter(ORIGINS.of(number + 1, False)[1]))

    assert other(N).kind == UNREAD


@pytest.mark.parametrize("condition", [True, False])
def test_of_two_sides_the_one_that_was_taken(condition: bool) -> None:
    assert origin(N if condition else 3 * N)[1]["N"] == 1
    assert ("3" in origin(N if condition else 3 * N)[1]) is not condition
