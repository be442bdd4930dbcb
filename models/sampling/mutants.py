"""Bugs of data sampling that shipped, as small changes of the reference; each names its thread and its obligation.

The same names are found in `models/sampling/torch_mutants.py`, where the same bug is made in a real training loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.registry import Mutant, registered
from models.sampling.model import Number, Plan, Samples, Sampling, World


class DrawnApart(Sampling):
    """Each micro-batch is drawn by itself: the same distribution, other samples than the effective batch."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """Nothing yet."""
        return ()

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        """A call of its own."""
        return world.data.draw(plan.size)


class LoaderRestarts(Sampling):
    """The loader is started anew in every window: the same samples for ever."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """The first effective batch again."""
        world.data.restart()
        return super().effective(plan, world)


class InputsReused(Sampling):
    """The inputs are fetched once and serve for all micro-batches of the window."""

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        """The first part always."""
        return super().micro_batch(batch, 0, plan, world)


class GlobalRng(Sampling):
    """The data come from the generator that the model's dropout uses too."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """From the model's generator."""
        return world.model.draw(plan.effective)


class SeedFromGlobal(Sampling):
    """A loader's generator of its own, seeded by a number of the model's generator in every window."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """The data's numbers, moved by the seed."""
        (seed,) = world.model.draw(1)
        return tuple(sample + seed for sample in super().effective(plan, world))


class ValidationFromGlobal(Sampling):
    """The validation data come from the generator that the model's dropout uses too."""

    def validation(self, plan: Plan, world: World) -> list[Samples]:
        """From the model's generator."""
        world.validation = world.model
        return super().validation(plan, world)


class ValidationAtMicroBatch(Sampling):
    """As many validation batches as before, each of the size of a micro-batch."""

    def validation(self, plan: Plan, world: World) -> list[Samples]:
        """The first samples of each batch only."""
        return [batch[: plan.size] for batch in super().validation(plan, world)]


class ValidationDropsShort(Sampling):
    """The validation data in micro-batches, a short last one left out."""

    def validation(self, plan: Plan, world: World) -> list[Samples]:
        """Whole micro-batches only."""
        samples = world.validation.draw(plan.validation)
        whole = plan.validation // plan.size * plan.size
        return [samples[i : i + plan.size] for i in range(0, whole, plan.size)]


class ValidationByWindows(Sampling):
    """Validation batches are counted in windows: only multiples of N of them are used."""

    def validation(self, plan: Plan, world: World) -> list[Samples]:
        """As many whole windows as there are."""
        batches = super().validation(plan, world)
        return batches[: len(batches) // plan.n * plan.n]


class LoggedSum(Sampling):
    """The logged loss is the sum of the micro-batch losses."""

    def log(self, logged: Number, loss: Number, plan: Plan) -> Number:
        """The whole loss."""
        return logged + loss


class LoggedLast(Sampling):
    """The logged loss is the last micro-batch's."""

    def log(self, logged: Number, loss: Number, plan: Plan) -> Number:
        """Overwrites instead of adding."""
        return loss


class LoggedDividedTwice(Sampling):
    """The logged loss is divided by N once more."""

    def log(self, logged: Number, loss: Number, plan: Plan) -> Number:
        """A share of the share."""
        return logged + loss / plan.n / plan.n


class SeededByClock(Sampling):
    """The data's generator is seeded with the time and the process number."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """The data's numbers, moved by the clock."""
        (now,) = world.clock.draw(1)
        return tuple(sample + now for sample in super().effective(plan, world))


class Unseeded(Sampling):
    """The data's generator is never seeded."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """Whatever the machine gives."""
        return world.clock.draw(plan.effective)


class ArrivalOrder(Sampling):
    """The samples are taken in the order in which the loader's workers finish."""

    def effective(self, plan: Plan, world: World) -> Samples:
        """The same samples, begun elsewhere."""
        samples = super().effective(plan, world)
        first = world.arrival % len(samples)
        return samples[first:] + samples[:first]


_ROWS = [
    ("drawn_apart", "GA-DATA-001", "nanoGPT#340", DrawnApart),
    ("loader_restarts", "GA-DATA-001", "InstructLLaMA#6", LoaderRestarts),
    ("inputs_reused", "GA-DATA-001", "URSA#10", InputsReused),
    ("global_rng", "GA-RNG-001", "pytorch#122697", GlobalRng),
    ("seed_from_global", "GA-RNG-001", "pytorch#11062", SeedFromGlobal),
    ("validation_from_global", "GA-RNG-001", "pytorch#80119", ValidationFromGlobal),
    ("validation_at_micro_batch", "GA-VAL-001", "rf-detr#1378", ValidationAtMicroBatch),
    ("validation_drops_short", "GA-VAL-001", "Autoformer#104", ValidationDropsShort),
    ("validation_by_windows", "GA-VAL-001", "SimpleTuner#2051", ValidationByWindows),
    ("logged_sum", "GA-LOG-001", "axolotl#2262", LoggedSum),
    ("logged_last", "GA-LOG-001", "minimind#632", LoggedLast),
    ("logged_divided_twice", "GA-LOG-001", "pytorch-lightning#2569", LoggedDividedTwice),
    ("seeded_by_clock", "GA-DET-001", "webdataset#122", SeededByClock),
    ("unseeded", "GA-DET-001", "Xiaomi-Robotics-1#11", Unseeded),
    ("arrival_order", "GA-DET-001", "DIGITS#883", ArrivalOrder),
]

MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
