"""Plain arithmetic of batch sizes: the effective batch, its inverse, steps an epoch, and a plan of batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from gradproof.core.errors import GradproofError

Divide = Callable[[Any, Any], tuple[Any, Any]]


def effective(micro: Any, accum: Any, world: Any) -> Any:
    """Samples that one optimizer step averages: micro-batch x micro-batches in a window x ranks."""
    return micro * accum * world


def accumulation(target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
    """Micro-batches a window that make `target` samples a step; None where micro x world does not divide it."""
    n, rest = divide(target, micro * world)
    return n if rest == 0 else None


def micro_batch(target: Any, accum: Any, world: Any, divide: Divide = divmod) -> Any:
    """Samples a micro-batch that make `target` a step; None where accum x world does not divide it."""
    size, rest = divide(target, accum * world)
    return size if rest == 0 else None


def steps_per_epoch(batches: Any, n: Any, divide: Divide = divmod) -> Any:
    """Optimizer steps of `batches` micro-batches at `n` a window, the tail stepped: ceil(batches / n)."""
    full, tail = divide(batches, n)
    return full + 1 if tail > 0 else full


def total_steps(epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
    """Optimizer steps, and so scheduler steps, of a whole training: epochs x ceil(batches / n)."""
    return epochs * steps_per_epoch(batches, n, divide)


# -- A plan of batch sizes: what a choice of micro-batch, accumulation and ranks makes, and the choices beside it.
LARGEST = 10**12
COMPARED = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class BatchPlan:
    """Whole positive numbers. `batches`: micro-batches of an epoch on one rank, where they are known."""

    micro: int
    accum: int
    world: int = 1
    batches: int | None = None
    epochs: int = 1

    @property
    def effective(self) -> int:
        """Samples that one optimizer step averages."""
        return int(effective(self.micro, self.accum, self.world))

    @property
    def steps(self) -> int | None:
        """Optimizer steps an epoch."""
        return None if self.batches is None else int(steps_per_epoch(self.batches, self.accum))

    @property
    def total(self) -> int | None:
        """Optimizer steps of the whole training: total_steps of a OneCycleLR."""
        return None if self.batches is None else int(total_steps(self.epochs, self.batches, self.accum))

    @property
    def without(self) -> int | None:
        """Optimizer steps of the whole training with a step every micro-batch."""
        return None if self.batches is None else self.epochs * self.batches

    @property
    def at_once(self) -> int:
        """Samples alive on a rank at once where the same effective batch is not accumulated."""
        return self.micro * self.accum

    @property
    def fewer(self) -> Fraction | None:
        """Share of optimizer steps saved against a step every micro-batch."""
        return None if self.steps is None or self.batches is None else 1 - Fraction(self.steps, self.batches)

    def as_json(self) -> dict[str, Any]:
        """As JSON values; `fewer` is exact, as text, and `fewer_percent` rounded to two decimals."""
        percent = None if self.fewer is None else float(round(100 * self.fewer, 2))
        return {
            **asdict(self),
            "effective": self.effective,
            "steps_per_epoch": self.steps,
            "steps_per_epoch_without": self.batches,
            "total_steps": self.total,
            "total_steps_without": self.without,
            "fewer": None if self.fewer is None else str(self.fewer),
            "fewer_percent": percent,
            "samples_in_memory": self.micro,
            "samples_in_memory_without": self.at_once,
        }


def planned(
    micro: int | None, accum: int | None, target: int | None, world: int, batches: int | None, epochs: int
) -> BatchPlan:
    """The plan from two of micro-batch, accumulation and effective batch, or from all three where they agree.

    Raises GradproofError GP413 for fewer than two, for numbers that are not positive, disagree or do not divide.
    """
    sizes = {"--micro-batch": micro, "--accum-steps": accum, "--effective": target, "--ranks": world}
    for name, value in {**sizes, "--epochs": epochs, "--batches": batches}.items():
        if value is not None and not 1 <= value <= LARGEST:
            raise GradproofError("GP413", f"{name} {value}", f"a whole number from 1 to {LARGEST}", f"correct {name}")
    if micro is None and accum is not None and target is not None:
        micro = micro_batch(target, accum, world)
        if micro is None:
            raise _indivisible(target, "--accum-steps", accum, world)
    elif accum is None and micro is not None and target is not None:
        accum = accumulation(target, micro, world)
        if accum is None:
            raise _indivisible(target, "--micro-batch", micro, world)
    if micro is None or accum is None:
        expected = "two of --micro-batch, --accum-steps and --effective"
        raise GradproofError("GP413", "one size of three", expected, "add one; the third follows")
    plan = BatchPlan(micro, accum, world, batches, epochs)
    if target is not None and plan.effective != target:
        found = f"--effective {target}, and {micro} x {accum} x {world} is {plan.effective}"
        raise GradproofError("GP413", found, "numbers that agree", "leave one of the three out")
    return plan


def _indivisible(target: int, name: str, value: int, world: int) -> GradproofError:
    each = value * world
    below = target // each * each
    near = f"{below} or {below + each}" if below else f"{each}"
    found = f"an effective batch of {target}, which {name} {value} x {world} ranks = {each} does not divide"
    return GradproofError("GP413", found, f"a multiple of {each}", f"the nearest are {near}")


def compared(plan: BatchPlan, values: Sequence[int], fixed: bool) -> Iterator[tuple[int, BatchPlan | None]]:
    """Plans at other accumulations: of the same micro-batch, or, with `fixed`, of the same effective batch.

    None where the effective batch cannot be kept. An epoch keeps its samples: a fixed effective batch with smaller
    micro-batches has more of them. Raises GradproofError GP413 for a value that is not positive.
    """
    for n in values:
        if not 1 <= n <= LARGEST:
            raise GradproofError("GP413", f"--compare {n}", f"whole numbers from 1 to {LARGEST}", "correct the list")
        if not fixed:
            yield n, BatchPlan(plan.micro, n, plan.world, plan.batches, plan.epochs)
            continue
        micro = micro_batch(plan.effective, n, plan.world)
        batches = None
        if micro is not None and plan.batches is not None:
            batches = -(-plan.batches * plan.micro // micro)
        yield n, None if micro is None else BatchPlan(micro, n, plan.world, batches, plan.epochs)
