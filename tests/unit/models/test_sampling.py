"""The model of data sampling, and what its harnesses see beyond the mutants that have a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gradproof.contract.model import load
from gradproof.core.check import Check
from gradproof.core.workspace import reference
from gradproof.execution.methods.crosshair import broken
from gradproof.execution.methods.explore import Exploration, Explorer, Limits
from gradproof.execution.methods.harness import SymbolicKit
from gradproof.execution.methods.smt_strategies import explored
from gradproof.verdict.plan import plan
from models.sampling.model import Number, Plan, Record, Samples, Sampling, Seed, Stream, World
from models.sampling.mutants import MUTANTS
from symbolic.sampling import contracts as sampling_contracts, model as sampling

Harness = Callable[[Any, Any], None]


@cache
def checks() -> dict[str, Check]:
    """The planned checks of the training contract."""
    root = reference()
    assert root is not None
    return {c.id: c for c in plan(load(root / "proofs/gradient-accumulation-training-v1/contract.yaml"))}


def explore(name: str, harness: Harness, subject: Any) -> Exploration:
    """A harness of the contract over all paths of a subject."""
    check = checks()[name]
    limits = Limits(check.bound("branches"), check.bound("paths"), 30, time.monotonic() + 600)
    if check.strategy == "linear_chain":
        chain, kit = explored(check, limits)
        return chain.run(lambda: harness(kit, subject))
    explorer = Explorer(limits)
    return explorer.run(lambda: harness(SymbolicKit(check, explorer), subject))


class Strided(Sampling):
    """A partition that is not in order: micro-batch i takes every N-th sample."""

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        return batch[i :: plan.n]


class FirstAgain(Sampling):
    """The first sample of each effective batch stands in for the last one."""

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        return super().micro_batch(batch[:-1] + batch[:1], i, plan, world)


class WholeBatch(Sampling):
    """Every micro-batch is the whole effective batch."""

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        return batch


class MasksFirst(Sampling):
    """Dropout masks are drawn from the data's generator."""

    def window(self, plan: Plan, world: World, record: Record) -> None:
        world.data.draw(plan.masks)
        super().window(plan, world, record)


class Weighted(Sampling):
    """The logged loss favours the last micro-batch: exponential, not equal."""

    def log(self, logged: Number, loss: Number, plan: Plan) -> Number:
        return (logged + loss) / 2


class LogsEarlier(Sampling):
    """The second window logs what the first one left over."""

    def run(self, plan: Plan, world: World) -> Record:
        record = super().run(plan, world)
        record.logged = [sum(record.logged[: i + 1]) for i in range(len(record.logged))]
        return record


CASES = [
    ("KANI-GT-101", sampling.data_in_order, Strided, "GA-DATA-001"),
    ("KANI-GT-101", sampling.data_in_order, FirstAgain, "GA-DATA-001"),
    ("KANI-GT-101", sampling.data_in_order, WholeBatch, "GA-DATA-001"),
    ("KANI-GT-102", sampling.data_apart_from_model, MasksFirst, "GA-RNG-001"),
    ("KANI-GT-104", sampling.logged_is_mean, Weighted, "GA-LOG-001"),
    ("KANI-GT-104", sampling.logged_is_mean, LogsEarlier, "GA-LOG-001"),
    ("KANI-GT-105", sampling.logged_in_floats, Weighted, "GA-LOG-001"),
]


@pytest.mark.parametrize(("name", "harness", "subject", "clause"), CASES)
def test_a_bug_without_a_thread_is_seen_too(name: str, harness: Harness, subject: Any, clause: str) -> None:
    violation = explore(name, harness, subject()).violation
    assert violation is not None
    assert violation.clause == clause


@pytest.mark.parametrize("subject", [Strided, FirstAgain, WholeBatch])
def test_crosshair_s_contract_sees_them_on_numbers(subject: Any) -> None:
    values = {"size": 2, "n": 2, "steps": 1, "a": 3, "b": 5, "c": 7}
    assert broken(sampling_contracts.data_in_order(subject()), values)[0] is True
    assert broken(sampling_contracts.data_in_order(Sampling()), values)[0] is False


@pytest.mark.parametrize("mutant", ["logged_sum", "global_rng", "seeded_by_clock", "validation_drops_short"])
def test_a_mutant_of_another_clause_is_let_pass(mutant: str) -> None:
    """What is logged is no matter of the micro-batches; where they come from is, and is judged elsewhere too."""
    violation = explore("KANI-GT-101", sampling.data_in_order, MUTANTS[mutant].subject()).violation
    assert (violation is None) == (mutant in ("logged_sum", "validation_drops_short"))


def test_a_call_is_told_by_its_history_and_not_by_its_place() -> None:
    seed = Seed(range(100))
    one, other, again = Stream(seed), Stream(seed), Stream(seed)
    whole, parts = one.draw(4), other.draw(2) + other.draw(2)
    assert again.draw(4) == whole
    assert set(whole).isdisjoint(parts)
    one.restart()
    assert one.draw(4) == whole
    assert one.draw(0) == ()


def test_a_pool_that_is_too_short_is_an_error() -> None:
    with pytest.raises(IndexError, match="3 numbers"):
        Stream(Seed(range(3))).draw(4)


class Concatenating(Seed):
    """A generator in which N calls for m numbers are one call for N m, as torch.randint on a CPU."""

    def after(self, history: tuple[int, ...]) -> Samples:
        return tuple(range(sum(history[:-1]), sum(history)))


def test_only_a_generator_that_concatenates_hides_micro_batches_drawn_apart() -> None:
    """Why the model's generator promises nothing: with this one the bug trains on the right samples."""
    size = Plan(2, 2, 2)

    def trained(subject: Any, seed: Seed) -> list[list[Samples]]:
        return list(subject().run(size, World(*(Stream(seed) for _ in range(4)))).steps)

    apart = MUTANTS["drawn_apart"].subject
    for seed, hidden in ((Concatenating([]), True), (Seed(range(99)), False)):
        assert (trained(apart, seed) == trained(Sampling, seed)) is hidden


def test_the_bound_on_the_logged_loss_is_derived_for_each_split() -> None:
    """More shares and longer means both cost something, and no split costs 1e-4 of a loss of 8."""
    rooms = {n: sampling.room(Plan(64 // n, n, 1)) for n in (1, 2, 4, 8, 16, 32, 64)}
    assert all(0 < bound < sampling.LARGEST / 10**4 for bound in rooms.values())
    assert sampling.room(Plan(1, 4, 1)) < rooms[4]
    assert sampling.room(Plan(16, 1, 1)) < rooms[4]


def test_a_tighter_bound_than_the_derived_one_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "room", lambda size: sampling.LARGEST / 2**30)
    result = explore("KANI-GT-105", sampling.logged_in_floats, Sampling())
    assert result.violation is not None


def test_the_bounds_of_the_claims_are_read() -> None:
    check = checks()["KANI-GT-101"]
    assert {b.name for b in check.bounds} == {"micro_batches", "samples", "cycles", "branches", "paths"}
    assert explore("KANI-GT-101", sampling.data_in_order, Sampling()).paths == 24
