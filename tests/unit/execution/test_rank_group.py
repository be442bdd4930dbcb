"""Real processes with one gloo group: answers, a rank that dies, and one that never answers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradproof.core.errors import GradproofError
from gradproof.execution.methods.counterexample import FLOATS, events_during as heard, timeline
from gradproof.execution.methods.property import Case, Cell, Place, Refutation
from gradproof.shadow.tape.ranks import run_ranks
from models.systems import torch_ddp as ddp_steps
from symbolic.systems.falsify_ddp import one_sync_a_window

HERE = Path(__file__).stem
PLACE = Place("cpu", "fp32", {"GA-SYNC-001": 1e-5}, frozenset({"GA-SYNC-001"}))


def sums(payload: int) -> int:
    """The sum of rank + payload over the ranks."""
    total = torch.tensor([dist.get_rank() + payload])
    dist.all_reduce(total)
    return int(total)


def dies(payload: int) -> int:
    """Rank 1 ends at once; the others wait for it in a collective."""
    if dist.get_rank() == payload:
        os._exit(3)
    return sums(0)


def hangs(payload: int) -> int:
    """Rank 0 never comes to the collective."""
    if dist.get_rank() == payload:
        time.sleep(600)
    return sums(0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_answers(ranks: int) -> None:
    want = sum(range(ranks)) + 10 * ranks
    assert run_ranks(f"{HERE}:sums", 10, ranks, 600) == [want] * ranks


def test_a_rank_that_dies_is_named_and_ends_the_others() -> None:
    with pytest.raises(GradproofError, match=r"rank 1 .* 3\n") as refused:
        run_ranks(f"{HERE}:dies", 1, 2, 600)
    assert refused.value.code == "GP410"


def test_ranks_that_do_not_answer_in_time_are_ended() -> None:
    with pytest.raises(GradproofError, match=r"GP410\n.* 2 ranks .* 3 s\n"):
        run_ranks(f"{HERE}:hangs", 0, 2, 3)
    assert run_ranks(f"{HERE}:sums", 0, 2, 600) == [1, 1]


def test_one_all_reduce_a_window() -> None:
    case = one_sync_a_window.cases(Cell("mlp", 4), PLACE)[0]
    rows = one_sync_a_window.test(ddp_steps.SyncOnLast, case, PLACE).rows
    assert [row["measured"] for row in rows if row["column"] == "collectives saved"] == [7]


@pytest.mark.parametrize("name", ddp_steps.MUTANTS)
def test_a_misplaced_no_sync_is_refuted(name: str) -> None:
    with pytest.raises(Refutation, match="collectives"):
        one_sync_a_window.test(ddp_steps.MUTANTS[name].subject, Case("mlp", 2, windows=1, ranks=2), PLACE)


@pytest.mark.parametrize("name", ddp_steps.MUTANTS)
def test_what_rank_0_did_is_told_beside_the_reference(name: str) -> None:
    """The first event that differs is an all-reduce that only one of the two makes."""
    case = Case("mlp", 2, windows=1, ranks=2)

    def wrong() -> None:
        with pytest.raises(Refutation):
            one_sync_a_window.test(ddp_steps.MUTANTS[name].subject, case, PLACE)

    right = heard(lambda: one_sync_a_window.test(ddp_steps.SyncOnLast, case, PLACE))
    assert [(s.event, s.after) for s in right] == [("forward", 1), ("forward", 2), ("all-reduce", 2), ("step", 2)]
    line = timeline("", heard(wrong), right, "breaks", FLOATS)
    assert line is not None
    refused = [tick for tick in line.ticks if tick.refused]
    assert [(tick.event == "all-reduce") != ("all-reduce" in tick.refused) for tick in refused] == [True]
