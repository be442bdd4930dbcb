"""Harnesses over the data of a training loop: KANI-GT-101 to -106 of the training contract.

The numbers that a generator gives are inputs; which call gives which, `models.sampling.model.Seed` says. A proof
rests on this alone: the same calls after the same seed give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any

from gradproof.harness import accumulation_bound, exact, scaling_bound
from models.sampling.model import Plan, Record, Samples, Seed, Stream, World
from symbolic.accumulation.loop import mean


def sizes(k: Any, masks: int = 0, validation: int = 0) -> Plan:
    """Every size of micro-batch, every N and every number of windows within the bounds."""
    return Plan(k.upto("samples"), k.upto("micro_batches"), k.upto("cycles"), validation, masks)


def pool(k: Any, name: str, plan: Plan, per_sample: int = 1) -> Seed:
    """A seed whose numbers are inputs: enough for any subject that takes at most as many as four runs do."""
    count = 4 * plan.steps * (plan.effective * per_sample + plan.n) + 2 * plan.validation
    return Seed(k.reals(name, count, -1, 1))


def split(batches: Sequence[Samples], plan: Plan) -> list[list[Samples]]:
    """The micro-batches of each effective batch, in order."""
    starts = range(0, plan.effective, plan.size)
    return [[batch[i : i + plan.size] for i in starts] for batch in batches]


def drawn(seed: Seed, plan: Plan) -> list[Samples]:
    """The effective batches of a run: one call each, and nothing between them."""
    stream = Stream(seed)
    return [stream.draw(plan.effective) for _ in range(plan.steps)]


def alike(k: Any, clause: str, got: Any, want: Any, what: str) -> None:
    """Two nested sequences of one shape, with equal numbers; one question for the numbers of a part."""
    k.check(clause, isinstance(got, tuple | list) and len(got) == len(want), f"{what}: {len(want)} are due")
    if any(isinstance(y, tuple | list) for y in want):
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            alike(k, clause, x, y, f"{what} {i}")
    elif want:
        k.check(clause, reduce(and_, map(k.same, got, want)), f"{what}: the same numbers")


def data_in_order(k: Any, loop: Any) -> None:
    """GA-DATA-001: the micro-batches of a step are the effective batch of that step, whole and in order."""
    plan = sizes(k, masks=1)
    data, rest = pool(k, "data", plan), pool(k, "rest", plan)
    k.scenario(plan)
    record = loop.run(plan, World(Stream(data), Stream(rest), Stream(rest), Stream(rest)))
    alike(k, "GA-DATA-001", record.steps, split(drawn(data, plan), plan), f"{plan}: micro-batches")
    k.cover("the largest run", plan == Plan(k.bound("samples"), k.bound("micro_batches"), k.bound("cycles"), 0, 1))
    k.cover("two samples that differ", record.steps[0][0][0] != record.steps[0][-1][-1])


def data_apart_from_model(k: Any, loop: Any) -> None:
    """GA-RNG-001: another seed of the model, and another number of masks, and the data are the same.

    The data and the validation data are also those of their own generators, so that no third thing decides them.
    """
    plain = sizes(k, validation=2)
    masked = Plan(plain.size, plain.n, plain.steps, plain.validation, k.choose("masks", [0, 1, k.bound("masks")]))
    data, validation = pool(k, "data", plain), pool(k, "validation", plain)
    k.scenario([plain, masked])
    records = []
    for name, plan in (("model", plain), ("other model", masked)):
        model = pool(k, name, masked, per_sample=1 + k.bound("masks"))
        records.append(loop.run(plan, World(Stream(data), Stream(validation), Stream(model), Stream(model))))
    one, other = records
    k.cover("dropout takes numbers", masked.masks > 0 and len(other.masks) > 0 and len(other.masks[0]) > 0)
    for what, got, want in (("samples", other.steps, one.steps), ("validation", other.validation, one.validation)):
        k.check("GA-RNG-001", len(want) > 0, f"{plain}: {what} are taken")
        alike(k, "GA-RNG-001", got, want, f"{masked}: {what}")


def validation_of_one_size(k: Any, loop: Any) -> None:
    """GA-VAL-001: at one effective batch, every split into micro-batches validates the same batches, all of them."""
    effective = k.bound("samples") * k.upto("micro_batches")
    n = k.choose("N", [d for d in range(1, effective + 1) if effective % d == 0])
    total = k.upto("validation")
    plan, whole = Plan(effective // n, n, 1, total), Plan(effective, 1, 1, total)
    data, validation = pool(k, "data", plan), pool(k, "validation", plan)
    k.scenario([plan, whole])
    found = [
        loop.run(p, World(Stream(data), Stream(validation), Stream(data), Stream(data))).validation
        for p in (plan, whole)
    ]
    k.cover("a short last batch after a whole one", total > effective and total % effective != 0)
    k.cover("more than one micro-batch", n > 1)
    samples = Stream(validation).draw(total)
    want = [samples[i : i + effective] for i in range(0, total, effective)]
    for which, batches in zip((f"N={n}", "N=1"), found, strict=True):
        alike(k, "GA-VAL-001", batches, want, f"effective batch {effective}, {which}: validation")


def logged_is_mean(k: Any, loop: Any) -> None:
    """GA-LOG-001 over the reals: the mean of the micro-batch losses, which is the full batch's for every N."""
    plan = sizes(k)
    data, rest = pool(k, "data", plan), pool(k, "rest", plan)
    record = loop.run(plan, World(Stream(data), Stream(rest), Stream(rest), Stream(rest)))
    batches = drawn(data, plan)
    k.check("GA-LOG-001", len(record.logged) == plan.steps, "one logged loss a window")
    k.cover("losses that differ", batches[0][0] != batches[0][-1])
    k.cover("the largest window", plan.n == k.bound("micro_batches"))
    for logged, micro, batch in zip(record.logged, split(batches, plan), batches, strict=True):
        parts = [mean(samples) for samples in micro]
        k.check("GA-LOG-001", k.same(logged, mean(parts)), f"{plan}: the mean of the micro-batch losses")
        k.check("GA-LOG-001", k.same(logged, mean(batch)), f"{plan}: what one micro-batch would log")


LARGEST = Fraction(8)


def room(plan: Plan) -> Fraction:
    """What fp32 can lose: in the mean of one micro-batch, and in the sum of their shares. For sizes 2^k.

    A loss is at most 8 in magnitude. The mean of a micro-batch is a sum, then one division, whose result is at most 8.
    """
    inner = accumulation_bound("fp32", plan.size, LARGEST * plan.size) / plan.size
    inner += scaling_bound("fp32", plan.size, LARGEST)
    return inner + accumulation_bound("fp32", plan.n, LARGEST) + scaling_bound("fp32", plan.n, LARGEST)


def logged_in_floats(k: Any, loop: Any) -> None:
    """GA-LOG-001 in fp32: the derived bound for every split of one effective batch, and between any split and N = 1."""
    effective = k.bound("samples")
    most = k.bound("micro_batches")
    n = k.choose("N", [2**i for i in range(most.bit_length()) if 2**i <= most])
    losses = k.floats("loss", effective, "fp32", -LARGEST, LARGEST)
    plans = (Plan(effective // n, n, 1), Plan(effective, 1, 1))
    one, whole = (_logged(k, loop, plan, losses) for plan in plans)
    k.cover("the largest N", n == most)
    shown = f"{effective} samples, N={n}"
    k.check("GA-LOG-001", abs(exact(one) - mean(losses)) <= room(plans[0]), f"{shown}: from the mean")
    if n > 1:
        apart = room(plans[0]) + room(plans[1])
        k.check("GA-LOG-001", abs(exact(one) - exact(whole)) <= apart, f"{shown}: from one micro-batch")


def _logged(k: Any, loop: Any, plan: Plan, losses: Samples) -> Any:
    """The one logged loss of a run over these losses; the clause fails if there is not exactly one."""
    rest = Seed((0,) * (4 * plan.effective))
    record: Record = loop.run(plan, World(Stream(Seed(losses * 2)), Stream(rest), Stream(rest), Stream(rest)))
    k.check("GA-LOG-001", len(record.logged) == 1, "one logged loss a window")
    return record.logged[0]


def runs_agree(k: Any, loop: Any) -> None:
    """GA-DET-001: the same seeds, another clock and another order of arrival, and every number is the same."""
    plan = sizes(k, masks=1, validation=2)
    data, validation, model = (pool(k, name, plan, per_sample=2) for name in ("data", "validation", "model"))
    records = []
    for arrival in (0, 1):
        clock = Stream(pool(k, f"clock {arrival}", plan))
        world = World(Stream(data), Stream(validation), Stream(model), clock, arrival)
        records.append(loop.run(plan, world))
    one, other = records
    k.check("GA-DET-001", len(one.steps) == plan.steps, "every window is trained")
    k.cover("two samples that differ", one.steps[0][0][0] != one.steps[0][-1][-1])
    k.cover("the largest window", plan.n == k.bound("micro_batches"))
    for name in ("steps", "masks", "losses", "logged", "validation"):
        alike(k, "GA-DET-001", getattr(other, name), getattr(one, name), f"{plan}: {name}")
