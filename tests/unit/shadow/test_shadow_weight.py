"""Exact weights of tokens and samples in recorded steps, right and wrong, and counts that tell the rules apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradproof.shadow.algebra import Beyond
from gradproof.shadow.domains.weight import LIMIT, PRIME, Weight, rational, residue
from gradproof.shadow.record.run import Run, record
from gradproof.shadow.tape import Source, Tape
from gradproof.shadow.verify.token_weights import (
    RULES,
    TokenCounts,
    Weighing,
    alike,
    shown,
    weigh,
    weighing,
)

COUNTS = (3, 1, 5, 2)
IGNORED = -100
Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def recorded(loss: Loss, finish: Callable[[list[nn.Parameter]], None] | None = None,
             counts: Sequence[int] = COUNTS, windows: int = 1, length: int = 8) -> Tape:  # fmt: skip
    def step(run: Run) -> None:
        module = nn.Linear(3, 4)
        parameters = list(module.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.125)
        for _ in range(windows):
            optimizer.zero_grad()
            for k, count in enumerate(counts):
                labels = torch.randint(0, 4, (length,))
                labels[count:] = IGNORED
                loss(module(torch.randn(length, 3)), labels, k).backward()
            if finish is not None:
                finish(parameters)
            optimizer.step()

    made = record(step, Run())
    assert not made.error
    return made.tape


def entropy(x: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(x, labels, **options)


def right(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    return entropy(x, labels, reduction="sum") / sum(COUNTS)


def means(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    return entropy(x, labels) / len(COUNTS)


def total(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    return entropy(x, labels, reduction="sum")


def divide(by: float) -> Callable[[list[nn.Parameter]], None]:
    def finish(parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            assert p.grad is not None
            p.grad.div_(by)

    return finish


def weights_by_micro(tape: Tape) -> list[set[Fraction]]:
    found: dict[int, set[Fraction]] = {}
    for token in weigh(tape).tokens:
        if token["expected"]:
            found.setdefault(token["micro"], set()).add(token["weight"].limit_denominator(10**6))
    return [found[k] for k in sorted(found)]


def test_the_right_rule_up_to_constants() -> None:
    found = weigh(recorded(right))
    assert found.right
    assert found.verdict.startswith("token weights 1/11 each")
    assert len(found.tokens) == 4 * 8


def test_rescaled_gradients_weigh_exactly() -> None:
    found = weigh(recorded(total, divide(11)))
    assert (found.right, found.exact, found.verdict) == (True, True, "token weights 1/11 each")
    assert all(t["weight"] in (Fraction(1, 11), 0) for t in found.tokens)


def test_mean_of_means_is_named_micro_batch_by_micro_batch() -> None:
    found = weigh(recorded(means))
    assert found.right is False
    assert "tokens of micro-batch 2 weigh 1/4, should weigh 1/11" in found.verdict
    assert weights_by_micro(recorded(means)) == [{Fraction(1, 4 * n)} for n in COUNTS]


def test_every_window_is_weighed() -> None:
    tape = recorded(right, windows=3)
    assert all(weigh(tape, window).right for window in range(3))
    assert weigh(tape, 3).right is None


def test_label_smoothing_weighs_a_token_once() -> None:
    def smooth(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return entropy(x, labels, reduction="sum", label_smoothing=0.125) / sum(COUNTS)

    assert weigh(recorded(smooth)).right


def test_a_loss_scale_that_is_divided_out_weighs_nothing() -> None:
    def scaled(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return total(x, labels, k) * 1024.0

    assert weigh(recorded(scaled, divide(11 * 1024.0))).exact
    assert weigh(recorded(scaled, divide(11 * 512.0))).right is False


def test_before_a_clip() -> None:
    def clipped(parameters: list[nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 0.01)

    found = weigh(recorded(right, clipped))
    assert found.right
    assert any("clip" in note for note in found.notes)
    assert weigh(recorded(means, clipped)).right is False


def test_a_dropped_micro_batch_weighs_zero() -> None:
    def drop(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return right(x, labels, k) * (0.0 if k == 1 else 1.0)

    found = weigh(recorded(drop))
    assert found.right is False
    assert found.verdict == "tokens of micro-batch 2 weigh 0, should weigh 1/11"


def test_a_micro_batch_that_is_rescaled_late() -> None:
    def ema(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return right(x, labels, k)

    halved: list[nn.Parameter] = []

    def step(run: Run) -> None:
        module = nn.Linear(3, 4)
        halved[:] = list(module.parameters())
        optimizer = torch.optim.SGD(halved, lr=0.125)
        for k, count in enumerate(COUNTS):
            labels = torch.zeros(8, dtype=torch.int64)
            labels[count:] = IGNORED
            ema(module(torch.randn(8, 3)), labels, k).backward()
            divide(2)(halved)
        optimizer.step()

    made = record(step, Run())
    assert not made.error
    expected = [{Fraction(1, 11 * 2 ** (len(COUNTS) - k))} for k in range(len(COUNTS))]
    assert weights_by_micro(made.tape) == expected


def test_weights_that_depend_on_data_are_no_verdict() -> None:
    def rewarded(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return (entropy(x, labels, reduction="none") * torch.rand(8)).sum()

    found = weigh(recorded(rewarded))
    assert found.right is None
    assert "data" in found.verdict


def test_class_weights_are_no_verdict() -> None:
    def classes(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return F.cross_entropy(x, labels, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]), reduction="sum")

    assert weigh(recorded(classes)).right is None


def test_samples_of_a_squared_error() -> None:
    def squared(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return F.mse_loss(x, torch.zeros_like(x)) / 4

    found = weigh(recorded(squared))
    assert found.right
    assert len(found.tokens) == 32

    def summed(x: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
        return F.mse_loss(x, torch.zeros_like(x))

    assert weigh(recorded(summed)).right is False


def test_a_run_without_a_known_loss_is_no_verdict() -> None:
    found = weigh(recorded(lambda x, labels, k: (x * x).mean()))
    assert (found.right, found.tokens) == (None, [])


RANKS = ((3, 1), (5, 2))


@pytest.mark.parametrize("rule", ["right", "averaged by device"])
def test_ranks(rule: str) -> None:
    tapes = []
    for counts in RANKS:
        shared = sum(map(sum, RANKS)) if rule == "right" else len(RANKS) * sum(counts)

        def one(x: torch.Tensor, labels: torch.Tensor, k: int, by: int = shared) -> torch.Tensor:
            return total(x, labels, k) / by

        tapes.append(recorded(one, counts=counts))
    assert weigh(tapes).right is (rule == "right")


# Counts that tell the rules apart.


def count_vectors(n: int, ranks: int = 1, length: int = 4, samples: int = 2) -> list[TokenCounts]:
    """Windows of `n` micro-batches of up to `samples` sequences, padded to `length` tokens or up to two more.

    They tell all rules apart for two ranks and n > 1; with one rank, rules about devices agree with others, and with
    n = 1 most do. The counts are small and differ between neighbouring micro-batches; the last window is one
    micro-batch short when n > 1. Raises ValueError for n or ranks below 1, or fewer than three tokens a sequence.
    """
    if n < 1 or ranks < 1 or length < 3:
        raise ValueError("at least one micro-batch, one rank and three tokens a sequence")
    whole = [_expected_window(n, n, ranks, length, samples, shift) for shift in range(2)]
    return whole + ([_expected_window(n - 1, n, ranks, length, samples, 1)] if n > 1 else [])


def _expected_window(n: int, planned: int, ranks: int, length: int, samples: int, shift: int) -> TokenCounts:
    most = samples * (length - 1)
    rows: list[tuple[tuple[int, ...], ...]] = [(), (), (), ()]
    for r in range(ranks):
        valid = tuple(1 + (2 * k + 3 * r + shift + (k * k) % 3) % most for k in range(n))
        held = tuple(max(1, samples - (k + r + shift) % 2) for k in range(n))
        padded = tuple(h * (length + (k + r + shift) % 3) for k, h in enumerate(held))
        fitting = tuple(min(v, h * (length - 1)) for v, h in zip(valid, held, strict=True))
        columns = (fitting, padded, held, tuple(min(h, v) for v, h in zip(fitting, held, strict=True)))
        rows = [(*row, column) for row, column in zip(rows, columns, strict=True)]
    return TokenCounts(rows[0], rows[1], rows[2], rows[3], planned)


def closest(found: Sequence[tuple[TokenCounts, Weighing]]) -> list[str]:
    """Rules that explain weights which were found at some counts: the names of all that agree everywhere."""
    return [name for name in RULES if found and all(weighing(name, counts) == weights for counts, weights in found)]


@pytest.mark.parametrize("n", range(2, 9))
def test_two_ranks_tell_every_pair_of_rules_apart(n: int) -> None:
    assert alike(count_vectors(n, ranks=2)) == []


@pytest.mark.parametrize("n", range(2, 9))
def test_one_rank_tells_all_but_rules_of_devices_apart(n: int) -> None:
    devices = {"right", "averaged by device", "averaged over devices twice", "summed by device"}
    assert set(alike(count_vectors(n))) == set(combinations(sorted(devices), 2))


def test_equal_counts_tell_nothing() -> None:
    equal = TokenCounts(((4, 4),), ((4, 4),), ((1, 1),), ((0, 0),), 2)
    assert ("mean of means", "right") in alike([equal])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_weights_name_their_rule(rule: str) -> None:
    found = [(counts, weighing(rule, counts)) for counts in count_vectors(4, ranks=2)]
    assert closest(found) == [rule]


def test_count_vectors_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="at least one"):
        count_vectors(0)


# The arithmetic.


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 22), Fraction(-7, 3), Fraction(0.1), Fraction(2**200, 3**100)])
def test_rationals_are_read_back(x: Fraction) -> None:
    made = x.numerator * pow(x.denominator, -1, PRIME) % PRIME
    assert rational(made) == x


def test_a_residue_that_is_no_small_rational_is_not_read_back() -> None:
    domain = Weight()
    assert rational(domain._hash("anything")) is None
    assert 2 * LIMIT**2 < PRIME


def test_infinity_and_nan() -> None:
    assert residue(float("-inf")) == float("-inf")
    with pytest.raises(Beyond, match="NaN"):
        residue(float("nan"))


def test_fractions_are_shown_short() -> None:
    assert shown(Fraction(1, 22)) == "1/22"
    assert shown(Fraction(float(torch.tensor(1 / 22)))) == "1/22"


def test_numbers_are_the_same_wherever_a_checkout_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def residues(folder: str) -> list[int]:
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        source = Source("data", f"{tmp_path / folder}/train.py:3+8 (2,)")
        return [int(v) for v in Weight().leaf(source, (2,), np.zeros(2))[0]]

    assert residues("here") == residues("there")
    elsewhere = Source("data", f"{tmp_path}/other/train.py:3+8 (2,)")
    assert [int(v) for v in Weight().leaf(elsewhere, (2,), np.zeros(2))[0]] != residues("everywhere")
