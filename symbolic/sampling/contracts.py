"""CrossHair contracts of data sampling: CROSS-GT-101 to -105 of the training contract.

A generator's numbers are an affine image of a few symbolic integers (`pool`): every call gives other numbers, and each
depends on an argument. What is compared is which numbers a run used, so that this loses no counterexample that the
mutants need; Z3's harnesses (KANI-GT-101 to -106) leave every number free. The claim on the logged loss is homogeneous:
for all integers, so for all rationals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradproof.harness import Ratio
from models.sampling.model import Plan, Record, Samples, Seed, Stream, World
from symbolic.crosshair_kit import Contract, Numbers, pick, same

APART = 1000
LONG = 96


def pool(number: Numbers, *given: int) -> Seed:
    """A seed of LONG numbers, in stretches of the given ones moved by a constant each."""
    return Seed(tuple(number(given[i % len(given)] + APART * (i // len(given))) for i in range(LONG)))


def world(data: Seed, validation: Seed, model: Seed, clock: Seed, arrival: int = 0) -> World:
    """Generators just seeded."""
    return World(Stream(data), Stream(validation), Stream(model), Stream(clock), arrival)


def alike(got: Any, want: Any) -> bool:
    """Whether two nested sequences have one shape and equal numbers."""
    if not isinstance(want, tuple | list):
        return not isinstance(got, tuple | list) and same(got, want)
    return (
        isinstance(got, tuple | list)
        and len(got) == len(want)
        and all(alike(x, y) for x, y in zip(got, want, strict=True))
    )


def cut(samples: Samples, size: int) -> list[Samples]:
    """Parts of `size` samples in order, the last one perhaps shorter."""
    return [samples[i : i + size] for i in range(0, len(samples), size)]


def data_in_order(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-DATA-001: the micro-batches of each window are its effective batch, whole and in order."""

    def contract(size: int, n: int, steps: int, a: int, b: int, c: int) -> bool:
        """
        pre: 1 <= size <= 2 and 1 <= n <= 3 and 1 <= steps <= 2
        post: _
        """
        plan = Plan(pick(size, 1, 2), pick(n, 1, 3), pick(steps, 1, 2), 0, 1)
        data, rest = pool(number, a, b), pool(number, c)
        record: Record = subject.run(plan, world(data, rest, rest, rest))
        stream = Stream(data)
        return alike(record.steps, [cut(stream.draw(plan.effective), plan.size) for _ in range(plan.steps)])

    return contract


def data_apart_from_model(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-RNG-001: another seed of the model and another number of masks leave samples and validation as they were."""

    def contract(size: int, n: int, masks: int, a: int, b: int, c: int, d: int) -> bool:
        """
        pre: 1 <= size <= 2 and 1 <= n <= 2 and 0 <= masks <= 2
        post: _
        """
        plain = Plan(pick(size, 1, 2), pick(n, 1, 2), 2, 3)
        masked = Plan(plain.size, plain.n, plain.steps, plain.validation, pick(masks, 0, 2))
        data, validation = pool(number, a), pool(number, b)
        one: Record = subject.run(plain, world(data, validation, pool(number, c), pool(number, c)))
        other: Record = subject.run(masked, world(data, validation, pool(number, d), pool(number, d)))
        return (
            len(one.steps) == plain.steps
            and len(one.validation) > 0
            and alike(other.steps, one.steps)
            and alike(other.validation, one.validation)
        )

    return contract


def validation_of_one_size(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-VAL-001: every split of an effective batch of four validates the same batches, and all of the data."""

    def contract(halvings: int, total: int, a: int, b: int) -> bool:
        """
        pre: 0 <= halvings <= 2 and 1 <= total <= 9
        post: _
        """
        n, total = 2 ** pick(halvings, 0, 2), pick(total, 1, 9)
        data, validation = pool(number, a), pool(number, b)
        record: Record = subject.run(Plan(4 // n, n, 1, total), world(data, validation, data, data))
        return alike(record.validation, cut(Stream(validation).draw(total), 4))

    return contract


def logged_is_mean(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-LOG-001: the logged loss is the mean of the micro-batch losses, which every split of the batch shares."""

    def contract(size: int, n: int, a: int, b: int, c: int) -> bool:
        """
        pre: 1 <= size <= 2 and 1 <= n <= 4
        post: _
        """
        plan = Plan(pick(size, 1, 2), pick(n, 1, 4), 1)
        data = pool(number, a, b, c)
        record: Record = subject.run(plan, world(data, data, data, data))
        batch = Stream(data).draw(plan.effective)
        total = sum(batch[1:], batch[0])
        return len(record.logged) == 1 and same(record.logged[0] * plan.effective, total)

    return contract


def runs_agree(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-DET-001: the same seeds, another clock and another order of arrival, and every number is the same."""

    def contract(size: int, n: int, arrival: int, a: int, b: int, c: int, d: int, e: int) -> bool:
        """
        pre: 1 <= size <= 2 and 1 <= n <= 2 and 0 <= arrival <= 1
        post: _
        """
        plan = Plan(pick(size, 1, 2), pick(n, 1, 2), 2, 3, 1)
        seeds = pool(number, a), pool(number, b), pool(number, c)
        one: Record = subject.run(plan, world(*seeds, pool(number, d)))
        other: Record = subject.run(plan, world(*seeds, pool(number, e), pick(arrival, 0, 1)))
        return len(one.steps) == plan.steps and all(
            alike(getattr(other, name), getattr(one, name))
            for name in ("steps", "masks", "losses", "logged", "validation")
        )

    return contract


def _first(subject: Any, number: Numbers, plan: Plan, *seeds: int) -> Record:
    made = [pool(number, seed) for seed in seeds]
    record: Record = subject.run(plan, world(made[0], made[-1], made[-1], made[-1]))
    return record


def samples_differ(subject: Any, number: Numbers = Ratio) -> Contract:
    """A window of two micro-batches whose samples are not those of the window before."""

    def contract(a: int, b: int) -> bool:
        """
        pre: a != b
        post: not _
        """
        steps = _first(subject, number, Plan(1, 2, 2, 0, 1), a, b).steps
        return len(steps) == 2 and not same(steps[0][0][0], steps[1][0][0])

    return contract


def masks_are_drawn(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run whose model takes a number that is not one of its samples."""

    def contract(a: int, b: int) -> bool:
        """
        pre: a != b
        post: not _
        """
        record = _first(subject, number, Plan(1, 1, 1, 1, 1), a, b)
        return len(record.masks) == 1 and not same(record.masks[0][0], record.steps[0][0][0])

    return contract


def validates_a_short_batch(subject: Any, number: Numbers = Ratio) -> Contract:
    """Validation data whose last batch is short, of numbers that no training batch has."""

    def contract(a: int, b: int) -> bool:
        """
        pre: a != b
        post: not _
        """
        found = _first(subject, number, Plan(2, 2, 1, 5), a, b).validation
        return [len(batch) for batch in found] == [4, 1] and same(found[0][0], number(b))

    return contract


def losses_differ(subject: Any, number: Numbers = Ratio) -> Contract:
    """A logged loss that is neither of its two micro-batch losses."""

    def contract(a: int, b: int) -> bool:
        """
        pre: a != b
        post: not _
        """
        data = pool(number, a, b)
        record: Record = subject.run(Plan(1, 2, 1), world(data, data, data, data))
        return len(record.logged) == 1 and all(not same(record.logged[0], number(x)) for x in (a, b))

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "data_in_order": (samples_differ,),
    "data_apart_from_model": (masks_are_drawn,),
    "validation_of_one_size": (validates_a_short_batch,),
    "logged_is_mean": (losses_differ,),
    "runs_agree": (samples_differ, masks_are_drawn),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "data_in_order": {"micro_batches": 3, "samples": 2, "cycles": 2},
    "data_apart_from_model": {"micro_batches": 2, "samples": 2, "cycles": 2, "masks": 2},
    "validation_of_one_size": {"micro_batches": 4, "samples": 4, "validation": 9},
    "logged_is_mean": {"micro_batches": 4, "samples": 2},
    "runs_agree": {"micro_batches": 2, "samples": 2, "cycles": 2, "arrivals": 2},
}
