"""Subjects that are wrong in one place: the contracts refute each, for its own clause, from a fresh instance."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from gradproof.core.check import Bound, Check
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.core.protocol import Event
from gradproof.execution.methods import crosshair as crosshair_run
from models.accumulation.loop import Accumulation, Config, MicroBatch, Record, Vector, WeightedAccumulation
from symbolic.accumulation import contracts as crosshair_contracts

CLAUSES = ["GA-EQ-001", *(f"GA-INV-00{k}" for k in range(1, 6))]


class Desk:
    """A workspace that is this process; the subject is at hand."""

    def __init__(self, subject: Any) -> None:
        self.subject = subject

    def resolve(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        return self.subject if module == "own" else getattr(importlib.import_module(module), attribute)


def question(clause: str, harness: str) -> Check:
    return Check(
        id="CROSS",
        kind=Kind.CROSSHAIR,
        layer=Layer.CROSSHAIR,
        obligations=(clause,),
        title="",
        harness=f"symbolic.accumulation.contracts:{harness}",
        subject="own:subject",
        params={"subjects": {"empty": "models.accumulation.loop:Empty"}},
        bounds=(Bound("micro_batches", 3, "a test"),),
        time_limit=60.0,
    )


class TruthyGradient(Accumulation):
    """A gradient that is zero is taken for a missing one."""

    def backward(self, batch: MicroBatch, window: Any, config: Config) -> Vector:
        return tuple(g if g else 1 for g in super().backward(batch, window, config))


class NotGradient(Accumulation):
    """The same, said with `not`."""

    def backward(self, batch: MicroBatch, window: Any, config: Config) -> Vector:
        return tuple(1 if not g else g for g in super().backward(batch, window, config))  # noqa: SIM212


class OrGradient(Accumulation):
    """The same, said with `or`; the buffer is left alone by a sum that is zero."""

    def backward(self, batch: MicroBatch, window: Any, config: Config) -> Vector:
        return tuple(g or 1 for g in super().backward(batch, window, config))


class OnceBySet(Accumulation):
    """Equal gradients are counted once, by a set."""

    def unseen(self, batches: Any) -> Any:
        seen: set[Any] = set()
        for b in batches:
            if b.grads[0] not in seen:
                seen.add(b.grads[0])
                yield b

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        return super().run(params, list(self.unseen(batches)), config, buffer)


class OnceByDict(OnceBySet):
    """The same, by the keys of a dictionary."""

    def unseen(self, batches: Any) -> Any:
        return {b.grads[0]: b for b in batches}.values()


class OnceByHash(OnceBySet):
    """The same, by the hashes alone."""

    def unseen(self, batches: Any) -> Any:
        hashes = [hash(b.grads[0]) for b in batches]
        return [b for i, b in enumerate(batches) if hashes[i] not in hashes[:i]]


class OnceByPair(OnceBySet):
    """The same, by a set display of what there was before."""

    def unseen(self, batches: Any) -> Any:
        first = {batches[0].grads[0], batches[0].loss}
        return [*batches[:1], *(b for b in batches[1:] if b.grads[0] not in first)]


class FirstRunBug(Accumulation):
    """The first run of an instance loses the micro-batches of a window of more than one."""

    def __init__(self) -> None:
        self.warm = False

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        return super().accumulate(buffer, grads, config) if self.warm or config.n == 1 else buffer

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        record = super().run(params, batches, config, buffer)
        self.warm = True
        return record


class ClipFirstWindowOnly(Accumulation):
    """Every later window has its clip, which does nothing."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        self.clips = 0
        return super().run(params, batches, config, buffer)

    def clip(self, buffer: Vector, max_norm: Any) -> Vector:
        self.clips += 1
        return super().clip(buffer, max_norm) if self.clips == 1 else buffer


class LossTailByN(Accumulation):
    """The loss of a short last window is divided by the configured N."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        record, tail = super().run(params, batches, config, buffer), len(batches) % config.n
        if tail:
            record.losses[-1] = record.losses[-1] * tail / config.n
        return record


class GradientForLoss(Accumulation):
    """The reported loss is the gradient's first element."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        return super().run(params, [replace(b, loss=b.grads[0]) for b in batches], config, buffer)


class WeightsTwice(Accumulation):
    """The weights move twice for one update."""

    def step(self, record: Record, config: Config) -> bool:
        performed = super().step(record, config)
        if performed:
            record.params = tuple(
                p - config.learning_rate * g for p, g in zip(record.params, record.buffer, strict=True)
            )
        return performed


class NoRate(Accumulation):
    """The learning rate is left out."""

    def step(self, record: Record, config: Config) -> bool:
        return super().step(record, replace(config, learning_rate=1))


class ScheduleLate(Accumulation):
    """As many schedules as steps, and all of them after the last one."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        record = super().run(params, batches, config, buffer)
        kept = [(e, v) for e, v in zip(record.events, record.values, strict=True) if e is not Event.SCHEDULE]
        late = [(Event.SCHEDULE, record.buffer)] * record.events.count(Event.SCHEDULE)
        rows = kept[:-1] + late + kept[-1:]
        record.events, record.values = [e for e, _ in rows], [v for _, v in rows]
        return record


class StaleAfterSkip(Accumulation):
    """The buffer is not zeroed after a window that the scaler skipped."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        return super().zeroes_before(i, config) and i // config.n - 1 not in config.skip


class WeightsFirstOnly(WeightedAccumulation):
    """The other elements count every micro-batch equally."""

    def backward(self, batch: MicroBatch, window: Any, config: Config) -> Vector:
        plain = Accumulation.scale(self, 1, batch, window, config)
        return (*super().backward(batch, window, config)[:1], *(g * plain for g in batch.grads[1:]))


WRONG = [
    *((c, "GA-EQ-001", "numerical_equivalence") for c in (TruthyGradient, NotGradient, OrGradient, FirstRunBug)),
    *((c, "GA-EQ-001", "numerical_equivalence") for c in (OnceBySet, OnceByDict, OnceByPair, OnceByHash)),
    (WeightsFirstOnly, "GA-EQ-001", "unequal_counts"),
    *((c, "GA-INV-001", "loss_mean") for c in (LossTailByN, GradientForLoss)),
    *((c, "GA-INV-002", "no_stale_gradient") for c in (TruthyGradient, FirstRunBug, StaleAfterSkip)),
    *((c, "GA-INV-003", "step_count") for c in (WeightsTwice, NoRate, ScheduleLate, FirstRunBug)),
    *((c, "GA-INV-004", "buffer_precision") for c in (TruthyGradient, FirstRunBug)),
    *((c, "GA-INV-005", "clip_after_accumulate") for c in (TruthyGradient, FirstRunBug, ClipFirstWindowOnly)),
]


@pytest.mark.parametrize(("subject", "clause", "harness"), WRONG, ids=lambda x: getattr(x, "__name__", x))
def test_a_wrong_subject_is_refuted_and_replayed(subject: type, clause: str, harness: str) -> None:
    finding = crosshair_run.run(question(clause, harness), Desk(subject))
    assert finding.outcome is Outcome.REFUTED, finding.reason
    assert finding.replays[0]["reproduced"]


def test_each_call_of_a_contract_has_an_instance_of_its_own() -> None:
    made = 0

    class Counted(Accumulation):
        """Counts its instances."""

        def __init__(self) -> None:
            nonlocal made
            made += 1

    contract = crosshair_run.fresh(crosshair_contracts.loss_mean, Counted)
    before = made
    assert all(contract(n=2, l1=1, l2=2, l3=3, l4=4) for _ in range(3))
    assert made == before + 3
