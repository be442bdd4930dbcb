"""Token weights for every mask: proved where the counts stay tensors, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import count_steps as steps
import pytest
import torch
from count_steps import SUM, Batches, Rule, entropy, recorded, whole
from torch import nn
from torch.nn import functional as F

from gradproof.shadow.record import counts as count_rules
from gradproof.shadow.record.run import Run, record
from gradproof.shadow.tape import Const
from gradproof.shadow.verify import normaliser as all_counts
from gradproof.shadow.verify.normaliser import for_all_counts
from gradproof.shadow.verify.token_weights import weigh
from gradproof.shadow.verify.verifier import check
from tests.loops import plain_token_sum


@pytest.mark.parametrize("rule", steps.RIGHT, ids=lambda r: r.__name__)
def test_counts_that_stay_tensors_are_proved(rule: Rule) -> None:
    tape = recorded(rule)
    assert weigh(tape).right
    proved, words = for_all_counts(tape)
    assert proved, words
    assert "for every mask" in words
    assert "error probability at most 2e-15" in words
    assert ("clamp(min=1)" in words) is (rule is steps.clamped)
    assert ("divided by zero" in words) is (rule is steps.means_by_count)
    assert ("6 of the 30 labels are constants" in words) is (rule is steps.padded)


@pytest.mark.parametrize("rule", steps.RIGHT, ids=lambda r: r.__name__)
@pytest.mark.parametrize("counts", [(1, 9), (10, 10, 2), (6,)])
def test_what_is_proved_is_right_at_other_masks(rule: Rule, counts: Sequence[int]) -> None:
    assert weigh(recorded(rule, counts)).right


def test_every_window_is_proved() -> None:
    tape = recorded(steps.tensors, windows=3)
    assert [for_all_counts(tape, w)[0] for w in range(4)] == [True, True, True, None]


def test_a_clip_is_named() -> None:
    def clip(model: nn.Module) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    proved, words = for_all_counts(recorded(steps.tensors, finish=clip))
    assert proved, words
    assert "before the gradient is changed" in words


def test_the_loop_of_the_corpus() -> None:
    run = record(plain_token_sum.train, Run())
    assert not run.error
    assert all(for_all_counts(run.tape, window)[0] for window in range(2))


def test_a_verification_says_so() -> None:
    found = check(plain_token_sum.train, windows=1, domains=("field", "weight"))
    assert any(n.startswith("window 1: token weights") and "for every mask" in n for n in found.notes), found.notes
    assert any("token weights for every mask" in text for text in found.assumptions)


@pytest.mark.parametrize(("rule", "counts"), steps.UNPROVED, ids=[r.__name__ for r, _ in steps.UNPROVED])
def test_what_is_right_at_the_recorded_counts_alone_is_not_proved(rule: Rule, counts: Sequence[int]) -> None:
    tape = recorded(rule, counts)
    assert weigh(tape).right, weigh(tape).verdict
    proved, words = for_all_counts(tape)
    assert proved is None
    assert "every mask" not in words
    assert "recorded counts only" in words
    assert ("went through Python" in words) is (rule in steps.READ)


def test_labels_counted_before_they_are_shifted() -> None:
    tape = recorded(steps.unshifted_count, data=steps.unshifted_data)
    assert weigh(tape).right
    assert for_all_counts(tape)[0] is None


def test_the_count_of_another_window_is_not_proved() -> None:
    kept: list[torch.Tensor] = []

    def stale(model: nn.Module, batches: Batches) -> None:
        kept.append(whole(batches))
        for x, labels in batches:
            (entropy(model, x, labels, **SUM) / kept[0]).backward()

    tape = recorded(stale, windows=2)
    assert weigh(tape, 1).right
    assert [for_all_counts(tape, w)[0] for w in range(2)] == [True, None]


def test_a_wrong_normaliser_is_not_proved() -> None:
    def all_tokens(model: nn.Module, batches: Batches) -> None:
        for x, labels in batches:
            (entropy(model, x, labels, **SUM) / sum(b.numel() for _, b in batches)).backward()

    assert for_all_counts(recorded(all_tokens))[0] is None


def test_a_number_that_is_read_after_the_step_changes_nothing() -> None:
    def step(run: Run) -> None:
        model = nn.Linear(3, steps.CLASSES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        for _ in range(2):
            batches = steps.made((3, 7))
            steps.tensors(model, batches)
            optimizer.step()
            optimizer.zero_grad()
            whole(batches).item()

    tape = record(step, Run()).tape
    assert for_all_counts(tape, 0)[0]
    assert for_all_counts(tape, 1)[0] is None  # Python may have used what it read


def test_it_says_nothing_without_integer_targets() -> None:
    def squared(model: nn.Module, batches: Batches) -> None:
        for x, _ in batches:
            F.mse_loss(model(x), torch.zeros(2, steps.LENGTH, steps.CLASSES)).backward()

    assert for_all_counts(recorded(squared)) == (None, "")


def test_ranks_are_not_followed() -> None:
    tape = recorded(steps.tensors)
    assert for_all_counts([tape, tape])[0] is None


def test_a_large_tape_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = recorded(steps.tensors)
    monkeypatch.setattr(all_counts, "MOST_OPERATIONS", 10)
    assert for_all_counts(tape)[0] is None


# A broken engine is noticed.


def test_a_sum_that_forgets_an_element_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = count_rules._total

    def forgets(values: Any, axes: tuple[int, ...], keep: bool) -> Any:
        return real(values[1:] if values.ndim else values, axes, keep)

    monkeypatch.setattr(count_rules, "_total", forgets)
    assert for_all_counts(recorded(steps.tensors))[0] is None


def test_a_comparison_that_names_every_element_alike_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(count_rules.RULES, "ne", lambda call: count_rules.elements(
        lambda m: count_rules.Unknown(("eq",), True, True), call.get(0).marks))  # fmt: skip
    assert for_all_counts(recorded(steps.tensors))[0] is None


def test_a_count_enters_the_tape_with_its_marks() -> None:
    tape = recorded(steps.tensors)
    total = next(a for e in tape.entries() for a in e.args if isinstance(a, Const) and a.value.shape == ())
    assert total.value == 14
    assert total.marks.marks.item().degree == 1
