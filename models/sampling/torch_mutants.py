"""The bugs of `models.sampling.mutants` in the real training loop: same names, obligations and threads."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from models.registry import Mutant
from models.sampling.mutants import MUTANTS as MODELS
from models.sampling.torch_training import CharTraining, Job


class DrawnApart(CharTraining):
    """Each micro-batch is drawn by itself."""

    def micro_batch(self, job: Job, starts: Tensor, i: int, data: torch.Generator) -> Tensor:
        return self.draw(job.text, job.setup.shape.block, job.setup.size, data)

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        return torch.empty(0, dtype=torch.long)


class LoaderRestarts(CharTraining):
    """The loader is started anew in every window."""

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        return super().effective(job, data.manual_seed(job.setup.data_seed))


class InputsReused(CharTraining):
    """The inputs are fetched once for all micro-batches of the window."""

    def micro_batch(self, job: Job, starts: Tensor, i: int, data: torch.Generator) -> Tensor:
        return super().micro_batch(job, starts, 0, data)


class GlobalRng(CharTraining):
    """The data come from the generator that dropout uses."""

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        return self.draw(job.text, job.setup.shape.block, job.setup.effective, None)


class SeedFromGlobal(CharTraining):
    """The data's generator is seeded from the global one in every window, as a loader is when it is iterated."""

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        return super().effective(job, data.manual_seed(int(torch.empty((), dtype=torch.int64).random_())))


class ValidationFromGlobal(CharTraining):
    """The validation data come from the generator that dropout uses."""

    def batches(self, job: Job, generator: torch.Generator) -> list[Tensor]:
        starts = self.draw(job.held_out, job.setup.shape.block, job.setup.validation, None)
        return list(torch.split(starts, job.setup.effective))


class ValidationAtMicroBatch(CharTraining):
    """As many validation batches as before, each of the size of a micro-batch."""

    def batches(self, job: Job, generator: torch.Generator) -> list[Tensor]:
        return [starts[: job.setup.size] for starts in super().batches(job, generator)]


class ValidationDropsShort(CharTraining):
    """The validation data in micro-batches, a short last one left out."""

    def batches(self, job: Job, generator: torch.Generator) -> list[Tensor]:
        starts = torch.cat(super().batches(job, generator))
        return [part for part in torch.split(starts, job.setup.size) if len(part) == job.setup.size]


class ValidationByWindows(CharTraining):
    """Only multiples of N validation batches are used."""

    def batches(self, job: Job, generator: torch.Generator) -> list[Tensor]:
        found = super().batches(job, generator)
        return found[: len(found) // job.setup.n * job.setup.n]


class LoggedSum(CharTraining):
    """The logged loss is the sum of the micro-batch losses."""

    def log(self, logged: Tensor, loss: Tensor, n: int) -> Tensor:
        return logged + loss


class LoggedLast(CharTraining):
    """The logged loss is the last micro-batch's."""

    def log(self, logged: Tensor, loss: Tensor, n: int) -> Tensor:
        return loss


class LoggedDividedTwice(CharTraining):
    """The logged loss is divided by N once more."""

    def log(self, logged: Tensor, loss: Tensor, n: int) -> Tensor:
        return logged + loss / n / n


class SeededByClock(CharTraining):
    """The generators are seeded with the time."""

    def seeded(self, seed: int) -> torch.Generator:
        return super().seeded(seed + time.time_ns() % 2**31)


class Unseeded(CharTraining):
    """The generators are seeded by the machine."""

    def seeded(self, seed: int) -> torch.Generator:
        generator = super().seeded(seed)
        generator.seed()
        return generator


class ArrivalOrder(CharTraining):
    """The samples are taken in the order in which the loader's workers answer."""

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        return super().effective(job, data).roll(-job.arrival)


_SUBJECTS: Mapping[str, type[CharTraining]] = {
    "drawn_apart": DrawnApart,
    "loader_restarts": LoaderRestarts,
    "inputs_reused": InputsReused,
    "global_rng": GlobalRng,
    "seed_from_global": SeedFromGlobal,
    "validation_from_global": ValidationFromGlobal,
    "validation_at_micro_batch": ValidationAtMicroBatch,
    "validation_drops_short": ValidationDropsShort,
    "validation_by_windows": ValidationByWindows,
    "logged_sum": LoggedSum,
    "logged_last": LoggedLast,
    "logged_divided_twice": LoggedDividedTwice,
    "seeded_by_clock": SeededByClock,
    "unseeded": Unseeded,
    "arrival_order": ArrivalOrder,
}

TORCH_ONLY: Mapping[str, str] = {}
"""Every mutant here has a twin in the model."""

MUTANTS: Mapping[str, Mutant] = {
    name: Mutant(name, MODELS[name].obligation, MODELS[name].reference, subject) for name, subject in _SUBJECTS.items()
}
