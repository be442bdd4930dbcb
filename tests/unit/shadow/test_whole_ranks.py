"""Several ranks by whole tensors: right loops hold, each wrong one is refuted by the obligation that it breaks."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.group import Ended, Exchange, Group
from gradproof.shadow.follow.terms import Terms
from gradproof.shadow.follow.values import shared
from gradproof.shadow.process.check import verified, worst_of
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification
from tests.unit.shadow import rank_steps

LOSS, EQ, SYNC, DATA, STALE, CLIP = (
    "GA-INV-001", "GA-EQ-001", "GA-SYNC-001", "GA-DATA-001", "GA-INV-002", "GA-INV-005",
)  # fmt: skip
RIGHT = sorted(name for name in vars(rank_steps) if name.startswith("right_"))
WRONG = {
    "wrong_sum": EQ, "wrong_sum_of_own_data": EQ, "wrong_never": SYNC, "wrong_first_window_only": SYNC,
    "wrong_without_the_bias": SYNC, "wrong_largest": EQ, "wrong_shifted_by_rank": SYNC, "wrong_never_zeroed": STALE,
    "wrong_first_weights_apart": SYNC, "wrong_one_rank_decays": SYNC, "wrong_at_the_end": SYNC,
    "wrong_clipped_before_the_sum": CLIP,
    "wrong_same_numpy": DATA, "wrong_same_data": DATA, "wrong_by_world": EQ, "wrong_by_world_own_data": EQ,
    "wrong_share_by_rank": EQ, "wrong_synced_first": SYNC, "wrong_hook": EQ, "wrong_rate_by_rank": SYNC,
    "wrong_tokens_without_world": EQ,
}  # fmt: skip


def checked(name: str) -> dict[str, tuple[Outcome, str]]:
    found: Verification = verified(getattr(rank_steps, name), Request(accum_steps=3, ranks=2))
    return {result.obligation: (result.outcome, result.reason) for result in found.results}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_holds_on_two_ranks(name: str) -> None:
    found = checked(name)
    without_loss = {k: v for k, v in found.items() if k != LOSS or name != "right_tokens"}
    assert {outcome for outcome, _ in without_loss.values()} == {Outcome.HOLDS}, found


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_refuted_on_two_ranks(name: str) -> None:
    found = checked(name)
    assert found[WRONG[name]][0] is Outcome.REFUTED, found


UNDECIDED = {"wrong_own_tokens": EQ, "wrong_seeds_meet": DATA, "wrong_rows_meet": DATA, "wrong_reported_sum": LOSS}


def test_every_wrong_loop_is_tried() -> None:
    assert {name for name in vars(rank_steps) if name.startswith("wrong_")} == {*WRONG, *UNDECIDED}


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_wrong_loop_does_not_hold_on_two_ranks(name: str) -> None:
    assert checked(name)[UNDECIDED[name]][0] is Outcome.UNKNOWN


def test_a_gather_into_one_tensor_is_followed() -> None:
    found = checked("mean_of_a_gather")
    assert {found[name][0] for name in (DATA, STALE, SYNC)} == {Outcome.HOLDS}
    assert found[EQ][0] in (Outcome.HOLDS, Outcome.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "words"), [("ends_on_one_rank", "ill (on rank 1)"), ("other_collectives", "broadcast_")]
)
def test_ranks_that_part_end_with_an_error(name: str, words: str) -> None:
    outcome, reason = checked(name)[EQ]
    assert outcome is Outcome.ERROR
    assert words in reason


def test_the_worst_rank_decides_each_obligation_whatever_the_order_of_its_results() -> None:
    first = [Result(DATA, Outcome.OPAQUE, "lost"), Result(EQ, Outcome.HOLDS, "equal")]
    second = [
        Result(EQ, Outcome.UNKNOWN, "not shown"),
        Result(DATA, Outcome.HOLDS, "read once"),
        Result(SYNC, Outcome.HOLDS, "one gradient"),
    ]
    found = {result.obligation: (result.outcome, result.reason) for result in worst_of([first, second])}
    assert found[DATA] == (Outcome.OPAQUE, "lost")
    assert found[EQ] == (Outcome.UNKNOWN, "rank 1: not shown")
    assert set(found) == {DATA, EQ, SYNC}


def test_two_stores_name_terms_alike(tmp_path: Path) -> None:
    """What another rank sends becomes the own term, whatever the order in which both stores made their terms."""
    groups = [Group(rank, 2, tmp_path) for rank in (0, 1)]
    stores = [Terms(named_alike=True), Terms(named_alike=True)]
    made = []
    for turn, terms in enumerate(stores):
        names = ("a", "b") if turn == 0 else ("b", "a")
        leaves = {name: terms.make("data", (name, 0, (None, None)), (), (2,), 0) for name in names}
        total = terms.named({leaves["a"]: Fraction(2), leaves["b"]: Fraction(3)}, (2,))
        made.append({terms.make("relu", (), (total,), (2,)): Fraction(1)})
    exchanges = [Exchange(group, terms) for group, terms in zip(groups, stores, strict=True)]
    parcel = exchanges[1]._packed("sent", [shared(made[1])], (0, 1))
    (value,) = exchanges[0]._unpacked(1, parcel)
    assert value.parts[0] == made[0]


def test_a_rank_does_not_wait_for_one_that_has_ended(tmp_path: Path) -> None:
    group = Group(0, 2, tmp_path)
    (tmp_path / "0-end@1").write_bytes(b"")
    with pytest.raises(Ended, match="rank 1 has ended"):
        group.gather(torch.ones(1))
