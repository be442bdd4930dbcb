"""The rules of epochs and tails on plain numbers, and the properties over real loops on right and wrong ones."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from gradproof.core import batches
from gradproof.execution.methods.property import Cell, Place, Refutation
from models.systems import torch_epochs as epoch_steps, torch_memory as memory_steps
from models.systems.epochs import MUTANTS, Epochs, LengthNow
from models.systems.tails import ByConfiguredN, Held, MeanOfMeans, Tail
from symbolic.systems.falsify_epochs import schedule_in_a_training, steps_in_an_epoch, tail_in_an_epoch
from symbolic.systems.falsify_memory import LOSS, peak_memory

pytestmark = pytest.mark.usefixtures("one_thread")

PLACE = Place("cpu", "fp32", {"GA-TAIL-001": 1e-5}, frozenset({"GA-TAIL-001"}))
PROPERTIES = {p.clause: p for p in (steps_in_an_epoch, schedule_in_a_training, tail_in_an_epoch)}


def steps_made(plan: Epochs, count: int, n: int) -> int:
    """Steps of a plain loop over one epoch."""
    held = made = 0
    for batch in range(1, count + 1):
        held += 1
        if plan.ends(held, n, batch, count):
            made, held = made + 1, 0
    assert held == 0 or plan.__class__ is not Epochs
    return made


def test_the_loop_makes_as_many_steps_as_planned() -> None:
    for count in range(1, 30):
        for n in range(1, 12):
            ceiling = math.ceil(Fraction(count, n))
            assert steps_made(Epochs(), count, n) == ceiling == Epochs().steps(count, n)
            assert Epochs().total(7, count, n) == 7 * ceiling


@pytest.mark.parametrize("name", ["tail_dropped", "steps_early"])
def test_a_wrong_loop_makes_another_number(name: str) -> None:
    assert any(steps_made(MUTANTS[name].subject(), count, 4) != math.ceil(count / 4) for count in range(1, 10))


def test_the_documented_epoch_of_625_batches() -> None:
    assert batches.steps_per_epoch(625, 4) == 157
    assert batches.total_steps(100, 625, 4) == 15_700
    assert batches.effective(16, 4, 1) == 64


def test_a_tail_is_the_mean_of_what_it_holds() -> None:
    grads, counts = [Fraction(3), Fraction(5), Fraction(-2)], [4, 4, 1]
    held = Held(8, 3, sum(counts), 4)
    mean = Fraction(sum(g * c for g, c in zip(grads, counts, strict=True)), 9)
    assert sum(Tail().share(g, c, held) for g, c in zip(grads, counts, strict=True)) == mean
    for wrong in (ByConfiguredN(), MeanOfMeans()):
        assert sum(wrong.share(g, c, held) for g, c in zip(grads, counts, strict=True)) != mean


def test_the_documented_form_gives_r_over_n() -> None:
    grads = [Fraction(3), Fraction(5), Fraction(-2)]
    got = sum(ByConfiguredN().share(g, 2, Held(8, 3, 6, 2)) for g in grads)
    assert got == Fraction(3, 8) * Fraction(sum(grads), 3)


def test_n_that_is_read_anew_changes_inside_a_window() -> None:
    assert Epochs().length(4, 2) == 4
    assert LengthNow().length(4, 2) == 2


@pytest.mark.parametrize("clause", PROPERTIES)
def test_the_right_loop_holds_and_reaches_every_cover(clause: str) -> None:
    found = PROPERTIES[clause]
    reached: set[str] = set()
    for n in (1, 2, 4):
        for case in found.cases(Cell("linear", n), PLACE):
            reached |= found.test(epoch_steps.EpochStep, case, PLACE).covers
    assert reached >= set(found.covers(PLACE))


@pytest.mark.parametrize("name", [name for name, m in epoch_steps.MUTANTS.items() if m.obligation in PROPERTIES])
def test_a_wrong_loop_is_refuted_on_its_clause(name: str) -> None:
    mutant = epoch_steps.MUTANTS[name]
    found = PROPERTIES[mutant.obligation]

    def walk() -> None:
        for n in (2, 4):
            for case in found.cases(Cell("linear", n), PLACE):
                found.test(mutant.subject, case, PLACE)

    with pytest.raises(Refutation) as refuted:
        walk()
    assert refuted.value.clause == mutant.obligation


def test_another_error_of_the_loop_is_no_refutation() -> None:
    class Crashes(epoch_steps.EpochStep):
        def run(self, job: epoch_steps.EpochJob) -> None:
            raise ValueError("of its own")

    case = steps_in_an_epoch.cases(Cell("linear", 2), PLACE)[0]
    with pytest.raises(ValueError, match="of its own"):
        steps_in_an_epoch.test(Crashes, case, PLACE)


def test_peak_memory_of_the_right_window_stays() -> None:
    for n in (1, 2, 5, 32):
        rows = peak_memory.test(memory_steps.OneAtATime, peak_memory.cases(Cell("mlp", n), PLACE)[0], PLACE).rows
        peak, above = ((row["measured"], row["bound"]) for row in rows)
        assert 0 < peak[0] <= peak[1]
        assert 0 <= above[0] <= above[1] + LOSS


@pytest.mark.parametrize("name", memory_steps.MUTANTS)
def test_a_window_that_keeps_things_alive_grows(name: str) -> None:
    case = peak_memory.cases(Cell("mlp", 5), PLACE)[0]
    with pytest.raises(Refutation, match=r"peak memory grows|accumulation adds .* bytes to the peak"):
        peak_memory.test(memory_steps.MUTANTS[name].subject, case, PLACE)
