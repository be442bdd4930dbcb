"""The bench of the falsification properties: builds the job of a case, runs a subject on it under observation.

Data, weights and counts come from the case alone, through seeded generators on the CPU. Losses are multiplied by a
power of two so that in fp64 no element of any micro-batch's gradient exceeds 2^-magnitude; whether |g_i| <= 1 holds
in the run is checked on the recorded values. The fp64 reference differentiates the same net on the same (rounded)
weights and inputs, in one pass over the window and in one pass a micro-batch.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.core.protocol import Event, replay, window_sizes
from gradproof.harness import (
    Applied,
    Backward,
    Batch,
    Case,
    Job,
    Maker,
    Place,
    Refutation,
    Report,
    StepConfig,
    Trace,
    Watch,
    WindowError,
    judge_window,
    vector_of,
)
from models.accumulation.torch_nets import NETS, Weights

LARGE = 64.0
FEW = 8
WITNESS = "weights"


@dataclass(frozen=True)
class Data:
    """A case's micro-batches on the CPU in fp32, the factor on each loss, and the model that they belong to."""

    model: nn.Module
    batches: tuple[Batch, ...]
    gains: tuple[float, ...]


@dataclass(frozen=True)
class Truth:
    """fp64: the model at its initial weights, and the gradient and loss of the micro-batches there.

    Of three windows or more only the FEW first are known, and none of data of which a window was swapped.
    """

    model: nn.Module
    grads: tuple[Tensor, ...]
    losses: tuple[float, ...]


@dataclass
class Run:
    """A subject's run as it was observed, beside the job and the truth."""

    case: Case
    job: Job
    trace: Trace
    report: Report
    data: Data
    truth: Truth
    start: list[Tensor]

    @property
    def sizes(self) -> list[int]:
        """Micro-batches of the successive windows."""
        return window_sizes(len(self.data.batches), self.case.n)

    def window(self, k: int) -> range:
        """Indices of the micro-batches of window `k`."""
        start = k * self.case.n
        return range(start, start + self.sizes[k])

    def weights(self, k: int) -> list[float]:
        """Right weight of each micro-batch of window `k`."""
        counts = [self.data.batches[i].count for i in self.window(k)]
        return [c / sum(counts) for c in counts]

    def boundaries(self) -> list[int]:
        """After how many micro-batches each step is due."""
        ends, total = [], 0
        for size in self.sizes:
            total += size
            ends.append(total)
        return ends


def _quantised(t: Tensor) -> Tensor:
    """Rounded to bf16: such inputs are the same numbers in every mode."""
    return t.bfloat16().float() if t.is_floating_point() else t


def _sizes(case: Case, total: int, generator: torch.Generator) -> list[int]:
    if not case.ragged:
        return [case.size] * total
    sizes: list[int] = torch.randint(1, 4, (total,), generator=generator).tolist()
    if total > 1:
        sizes[0], sizes[1] = 3, 1
    return sizes


def total_of(case: Case) -> int:
    """How many micro-batches the case trains on."""
    return case.windows * case.n + case.tail


def _key(case: Case) -> Case:
    """The part of a case that its data depend on."""
    return Case(
        case.net, case.n, seed=case.seed, windows=case.windows, tail=case.tail, size=case.size, ragged=case.ragged,
        magnitude=case.magnitude, large=case.large, swap=case.swap, swapped=case.swapped, gradients=case.gradients,
        mode="fp16_params" if case.mode == "fp16_params" else "fp32",
    )  # fmt: skip


def _given(case: Case) -> Data:
    """The weight vector whose gradients are the numbers of the case, one micro-batch each."""
    model = Weights(1)
    with torch.no_grad():
        model.row.weight.fill_(0.5)
    made = [Batch(i, torch.tensor([[g]]), torch.zeros(1), 1) for i, g in enumerate(case.gradients)]
    return Data(model, tuple(made), (1.0,) * len(made))


def _drawn(case: Case) -> Data:
    net, generator = NETS[case.net], torch.Generator().manual_seed(case.seed)
    other = None if case.swap is None else torch.Generator().manual_seed(1000 + case.swap)
    batches = []
    for i, size in enumerate(_sizes(case, total_of(case), generator)):
        inputs, targets = net.data(generator, size)
        if other is not None and i // case.n == case.swapped:
            inputs = net.data(other, size)[0]
        batches.append(Batch(i, _quantised(inputs), _quantised(targets), net.count(targets)))
    gains = tuple(LARGE if i == case.large else 1.0 for i in range(len(batches)))
    return Data(net.build(case.seed), tuple(batches), gains)


def loss_of(net: str, output: Tensor, batch: Batch, reduction: str) -> Tensor:
    """The net's loss in at least fp32."""
    wide = output if output.dtype == torch.float64 else output.float()
    return wide.sum() if net == WITNESS else NETS[net].loss(wide, batch.targets, reduction)


def differentiate(model: nn.Module, net: str, batch: Batch, gain: float) -> tuple[Tensor, float]:
    """Gradient and value of a micro-batch's mean loss in fp64."""
    inputs = batch.inputs.double() if batch.inputs.is_floating_point() else batch.inputs
    loss = loss_of(net, model(inputs), batch, "mean") * gain
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in grads]), float(loss.detach())


@lru_cache(maxsize=512)
def _prepared(key: Case) -> tuple[Data, Truth]:
    """Data with their gains normalised, and the fp64 truth of them."""
    data = _given(key) if key.gradients else _drawn(key)
    model = copy.deepcopy(data.model)
    if key.mode == "fp16_params":
        model = model.half()
    model = model.double()
    if key.swap is not None:
        gains = prepared(replace(key, swap=None, swapped=0))[0].gains
        return replace(data, gains=gains), Truth(model, (), ())
    known = len(data.batches) if key.windows <= 2 else FEW
    pairs = zip(data.batches[:known], data.gains[:known], strict=True)
    made = [differentiate(model, key.net, b, g) for b, g in pairs]
    if key.gradients:
        return data, Truth(model, tuple(g for g, _ in made), tuple(v for _, v in made))
    peak = max(float(g.abs().max()) for g, _ in made)
    factor = 2.0 ** (math.floor(-math.log2(peak) - 0.01) - key.magnitude) if peak > 0 else 1.0
    gains = tuple(g * factor for g in data.gains)
    truth = Truth(model, tuple(g * factor for g, _ in made), tuple(v * factor for _, v in made))
    return replace(data, gains=gains), truth


def prepared(case: Case) -> tuple[Data, Truth]:
    """Data and fp64 truth of a case."""
    return _prepared(_key(case))


def config_of(case: Case, place: Place) -> StepConfig:
    """The step's configuration; `clip` is a fraction of the first window's fp64 norm, before any swap."""
    data, truth = prepared(replace(case, swap=None, swapped=0))
    even = len({b.count for b in data.batches}) == 1
    max_norm = None
    if case.clip is not None:
        counts = [b.count for b in data.batches[: case.n]]
        mean = sum((g * (c / sum(counts)) for g, c in zip(truth.grads, counts, strict=False)), torch.zeros(1).double())
        max_norm = float(torch.tensor(case.clip * float(mean.norm())).float())
    return StepConfig(
        n=case.n, mode=case.mode, optimizer=case.optimizer, form=case.form, max_norm=max_norm,
        weighting="equal" if even else "count", loss_scale=case.loss_scale,
        learning_rate=case.learning_rate, device=place.device,
    )  # fmt: skip


def _moved(batch: Batch, config: StepConfig) -> Batch:
    inputs = batch.inputs.to(config.device)
    if config.mode == "fp16_params" and inputs.is_floating_point():
        inputs = inputs.half()
    return Batch(batch.index, inputs, batch.targets.to(config.device), batch.count)


def execute(subject: Any, case: Case, place: Place) -> Run:
    """Run the subject (a class) on the case. Raises whatever the subject raises."""
    data, truth = prepared(case)
    config = config_of(case, place)

    def loss(output: Tensor, batch: Batch, reduction: str) -> Tensor:
        over = batch.index == case.overflow and case.loss_scale is not None
        gain = math.inf if over else data.gains[batch.index]
        return loss_of(case.net, output, batch, reduction) * gain

    watch = Watch(loss)
    moved = [_moved(b, config) for b in data.batches]
    job = Maker(watch.criterion).make(copy.deepcopy(data.model), config, moved)
    if case.poison is not None:
        for p in {*job.leaves, *job.masters}:
            p.grad = torch.full_like(p, case.poison)
    start = [p.detach().to("cpu", copy=True) for p in job.masters]
    with watch.watching(job) as trace:
        report = subject().run(job)
    return Run(case, job, trace, report, data, truth, start)


def backwards_of(run: Run, k: int, clause: str) -> list[Backward]:
    """The recorded backward pass of each micro-batch of window `k`. Refutes when one is missing or doubled."""
    found = []
    for i in run.window(k):
        passes = [b for b in run.trace.backwards if b.index == i]
        if len(passes) != 1:
            detail = f"micro-batch {i} of window {k} was differentiated {len(passes)} times, not once"
            raise Refutation(clause, detail, {"window": k, "micro_batch": i})
        found.append(passes[0])
    return found


def skipped_windows(run: Run) -> set[int]:
    """Windows whose step a loss scaler must suppress: a gradient that reached a leaf is not finite."""
    if run.job.scaler is None:
        return set()
    bad = {b.index for b in run.trace.backwards if not b.finite}
    return {k for k in range(len(run.sizes)) if bad.intersection(run.window(k))}


def applied_to(run: Run, clause: str) -> dict[int, Applied]:
    """The gradient applied to each window that is not skipped. Refutes when their numbers differ."""
    due = applied_windows(run)
    applied = [a for a in run.trace.applied if not a.skipped]
    if len(applied) != len(due):
        detail = f"{len(run.data.batches)} micro-batches at N = {run.case.n}: {len(due)} windows to apply"
        detail += f", {len(applied)} gradients applied"
        raise Refutation(clause, detail, {"windows": len(due), "applied": len(applied)})
    return dict(zip(due, applied, strict=True))


def elements_of(run: Run, k: int, clause: str) -> list[float]:
    """The gradient applied to window `k`, element by element."""
    values: list[float] = vector_of(applied_to(run, clause)[k].grads, [t.numel() for t in run.start]).tolist()
    return values


def applied_windows(run: Run) -> list[int]:
    """Windows whose gradient is applied: all but those whose step the scaler suppresses."""
    skipped = skipped_windows(run)
    return [k for k in range(len(run.sizes)) if k not in skipped]


def scale_at(run: Run, k: int) -> float:
    """The loss scale of window `k`: each suppressed step before it has halved it."""
    return float((run.job.config.loss_scale or 1.0) / 2 ** sum(j < k for j in skipped_windows(run)))


def ratios_of(run: Run, k: int, passes: Sequence[Backward]) -> list[float]:
    """Factor on each loss over its right weight: what the recorded gradients are too large by."""
    weights = run.weights(k)
    counts = [run.data.batches[b.index].count for b in passes]
    right = [w / c if b.reduction == "sum" else w for w, c, b in zip(weights, counts, passes, strict=True)]
    return [b.factor / w for b, w in zip(passes, right, strict=True)]


def error_of(run: Run, k: int, clause: str) -> WindowError:
    """Accumulation error of window `k`. Refutes when it cannot be taken."""
    applied = elements_of(run, k, clause)
    passes = backwards_of(run, k, clause)
    terms = [b.vector.tolist() for b in passes]
    try:
        return judge_window(terms, ratios_of(run, k, passes), applied, run.job.config.device != "cpu")
    except ValueError as e:
        raise Refutation(clause, f"window {k}: {e}", {"window": k}) from e


def largest_gradient(run: Run) -> float:
    """Largest |element| of the recorded g_i of the applied windows, the subject's factors taken out."""
    largest, skipped = 0.0, skipped_windows(run)
    for b in (one for one in run.trace.backwards if one.index // run.case.n not in skipped):
        factor = b.factor * (run.data.batches[b.index].count if b.reduction == "sum" else 1)
        peak = float(b.vector.abs().max())
        largest = max(largest, peak / abs(factor) if factor else math.inf)
    return largest


# -- What the falsification properties of one clause ask of a run that another clause's bug must not answer.
#
# `table_breaks` holds the observed events against the window table, on one clause: events that only another clause
# speaks of are left out, so that its bug neither is blamed here nor ends the trace early.
#
# `own_error` judges an applied gradient against the right mean, or else the sum of what the subject's own backward
# passes brought, up to one overall factor (a late division, the loss scale): whether the 1/N is right is for
# GA-EQ-001 alone.

SPOKEN_OF: Mapping[str, frozenset[Event]] = {
    "GA-INV-002": frozenset({Event.ZERO, Event.ACCUMULATE, Event.STEP, Event.SKIP, Event.END}),
    "GA-INV-003": frozenset({Event.ACCUMULATE, Event.STEP, Event.SKIP, Event.SCHEDULE, Event.END}),
    "GA-INV-005": frozenset({Event.ACCUMULATE, Event.UNSCALE, Event.CLIP, Event.STEP, Event.SKIP, Event.END}),
}


def due_passes(run: Run, clause: str) -> None:
    """Every micro-batch was differentiated once, in a window that has a step. Refutes the empty body."""
    for k in range(len(run.sizes)):
        backwards_of(run, k, clause)


def events_for(events: Sequence[Event], clause: str) -> Iterator[Event]:
    """The events that the clause speaks of; where it does not speak of zeroing, each new window begins with one."""
    stepped = False
    for event in events:
        if event in SPOKEN_OF[clause]:
            if event is Event.ACCUMULATE and stepped and Event.ZERO not in SPOKEN_OF[clause]:
                yield Event.ZERO
            yield event
            stepped = event in (Event.STEP, Event.SKIP) or (stepped and event is not Event.ACCUMULATE)


def events_of(run: Run) -> list[Event]:
    """The observed events. An attempt after which nothing was applied is a step that the scaler skipped."""
    performed = Counter(a.after for a in run.trace.applied if not a.skipped)
    attempts, events = iter(run.trace.attempts), [Event(e) for e in run.trace.events]
    for i, event in enumerate(events):
        if event is Event.STEP:
            performed[after := next(attempts)] -= 1
            events[i] = Event.STEP if performed[after] >= 0 else Event.SKIP
    return events


def table_breaks(run: Run, clause: str) -> str:
    """What the window table says of the observed events when they break this clause; else nothing.

    A subject that never calls `unscale_` leaves the loss scale to the scaler's step, or takes it out by hand: then
    where its clip stands to the loss scale is judged by value alone.
    """
    events = events_of(run)
    scaled = clause == "GA-INV-005" and run.job.scaler is not None and Event.UNSCALE in events
    trace = replay(events_for(events, clause), run.sizes, scaled=scaled)
    broken = trace[-1].broken if trace else None
    if broken is None or broken.obligation != clause:
        return ""
    return f"window table, {trace[-1].event} while {trace[-1].before}: {broken.why}"


def own_errors(run: Run, k: int, clause: str) -> Iterator[WindowError]:
    """Error of the gradient applied to window `k` against the right mean, then against its own sum, a divisor each.

    Divisors: none, the micro-batches, the samples or tokens of the window, or N, and the loss scale or not. Refutes
    when a value is not finite.
    """
    yield error_of(run, k, clause)
    applied, passes = elements_of(run, k, clause), backwards_of(run, k, clause)
    terms = [b.vector.tolist() for b in passes]
    counts = sum(run.data.batches[b.index].count for b in passes)
    scales = dict.fromkeys((scale_at(run, k), 1.0))
    late = dict.fromkeys((1, len(passes), counts, run.case.n))
    for divisor in dict.fromkeys(scale * m for scale in scales for m in late):
        try:
            yield judge_window(terms, [divisor] * len(passes), applied, run.job.config.device != "cpu")
        except ValueError as e:
            raise Refutation(clause, f"window {k}: {e}", {"window": k}) from e


def own_error(run: Run, k: int, clause: str) -> WindowError:
    """The first of `own_errors` within its bound, or the least."""
    seen = []
    for error in own_errors(run, k, clause):
        if error.within:
            return error
        seen.append(error)
    return min(seen, key=lambda e: math.inf if e.ratio is None else e.ratio)
