"""Epochs on real PyTorch under OneCycleLR: FALSIFY-GT-401 to -403 of the training contract.

What happened is observed by hooks: where a step was attempted, which gradient it applied, how often the scheduler was
stepped. With the net `linear` a micro-batch's gradient is the mean of its inputs, so a window's is known exactly, and
an applied one may differ by the roundings it went through; with `mlp` it is compared with the whole window in fp64.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from gradproof.harness import Case, Cell, Observed, Place, Refutation
from models.systems.torch_epochs import EpochJob, Pair
from symbolic.measured import Measured, gamma

WIDTH, MAX_LR, TOLERANCE_CLAUSE = 3, 0.125, "GA-TAIL-001"
SCALE = 1024.0


class CountingScaler(torch.amp.GradScaler):
    """A GradScaler that counts its attempts."""

    attempts = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.attempts += 1
        return super().step(optimizer, *args, **kwargs)


@dataclass
class Seen:
    """What was observed, at every micro-batch: attempts, performed steps and scheduler steps so far."""

    total: int | None = None
    scheduler: Any = None
    raised: str = ""
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    applied: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[int, dict[str, Tensor]] = field(default_factory=dict)


def net_of(name: str) -> tuple[nn.Module, Any]:
    """A model and its loss, the mean over the rows."""
    if name == "linear":
        return nn.Linear(WIDTH, 1, bias=False), lambda output, _: output.mean()
    if name == "mlp":
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1)), nn.functional.mse_loss
    raise ValueError(f"no net {name!r}; known: linear, mlp")


def batches_of(case: Case, device: str) -> list[Pair]:
    """The micro-batches of an epoch: full windows, a tail, the last micro-batch shorter where the case is ragged."""
    made = torch.Generator().manual_seed(case.seed)
    count = case.windows * case.n + case.tail
    sizes = [case.size] * count
    sizes[-1] = max(1, case.size - 1) if case.ragged else case.size
    return [
        ((torch.rand(s, WIDTH, generator=made) * 2 - 1).to(device), torch.rand(s, 1, generator=made).to(device))
        for s in sizes
    ]


def observe(subject: Any, case: Case, place: Place) -> tuple[Seen, list[Pair]]:
    """Run a subject on a case. Raises what it raises, but for a scheduler that was stepped too often."""
    torch.manual_seed(case.seed)
    model, loss = net_of(case.net)
    model = model.to(place.device)
    batches, seen = batches_of(case, place.device), Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=MAX_LR)
    scaler = None if case.overflow is None else CountingScaler(place.device, init_scale=SCALE, growth_interval=1 << 30)
    steps = 0

    def criterion(output: Tensor, targets: Tensor) -> Tensor:
        at = len(seen.rows)
        value: Tensor = loss(output, targets)
        return value * math.inf if case.overflow is not None and at == case.overflow else value

    def before_step(*_: Any) -> None:
        nonlocal steps
        seen.applied[len(seen.rows)] = torch.cat(
            [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]
        )
        seen.weights[len(seen.rows)] = copy.deepcopy(model.state_dict())
        steps += 1

    def schedule(total: int) -> Any:
        seen.total = total
        if total > 0:
            seen.scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=MAX_LR, total_steps=total)
        return seen.scheduler

    def now(*_: Any) -> None:
        seen.rows.append((steps if scaler is None else scaler.attempts, steps, scheduled(seen)))

    optimizer.register_step_pre_hook(before_step)
    model.register_forward_pre_hook(now)
    try:
        with warnings.catch_warnings():  # the wrong loops are warned of by the scheduler, which is not the judge here
            warnings.filterwarnings("ignore", "Detected call of", UserWarning)
            subject().run(EpochJob(model, optimizer, scaler, batches, case.n, case.epochs, criterion, schedule))
    except ValueError as e:
        if "Tried to step" not in str(e):
            raise
        seen.raised = str(e)
    now()
    return seen, batches


def scheduled(seen: Seen) -> int:
    """Scheduler steps so far; its constructor makes one of its own, which is not counted."""
    return 0 if seen.scheduler is None else int(seen.scheduler.last_epoch)


def steps_due(case: Case) -> list[int]:
    """Micro-batches of an epoch after which a step falls due."""
    count = case.windows * case.n + case.tail
    return [b for b in range(1, count + 1) if b % case.n == 0 or b == count]


class Epoch(Measured):
    """Base: epochs with and without a tail, with a skipped step, with a short last micro-batch."""

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        n = cell.n
        rows: list[Mapping[str, Any]] = [
            {"windows": 2, "tail": n - 1, "epochs": 2, "size": 2},
            {"windows": 1, "tail": n // 2, "epochs": 1, "size": 3, "ragged": True},
            {"windows": 2, "epochs": 3},
            {"windows": 2, "tail": n // 2, "epochs": 2, "overflow": n},
        ]
        return [Case(cell.net, n, seed=i, **row) for i, row in enumerate(rows)]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return st.builds(
            Case, net=st.just(cell.net), n=st.just(cell.n), seed=st.integers(0, 99), windows=st.integers(1, 3),
            tail=st.integers(0, cell.n - 1), size=st.integers(1, 3), ragged=st.booleans(), epochs=st.integers(1, 3),
            overflow=st.sampled_from((None, None, 0)),
        )  # fmt: skip


class StepsPerEpoch(Epoch):
    """FALSIFY-GT-401: an attempt after the N-th micro-batch and at the epoch's end, ceil(B/N) an epoch."""

    clause = "GA-STEP-002"
    reached = ("a tail", "no tail", "a skipped step")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, batches = observe(subject, case, place)
        due = steps_due(case)
        ceiling = math.ceil(Fraction(len(batches), case.n))
        attempts = [row[0] for row in seen.rows]
        for epoch in range(case.epochs if not seen.raised else 0):
            start = epoch * len(batches)
            made = [b for b in range(1, len(batches) + 1) if attempts[start + b] > attempts[start + b - 1]]
            count = attempts[start + len(batches)] - attempts[start]
            if made != due or count != ceiling:
                detail = f"epoch {epoch}: {count} attempts, after micro-batches {made}; due {ceiling}, after {due}"
                raise Refutation(self.clause, detail, {"made": made, "due": due})
        if seen.total is None or seen.total != case.epochs * ceiling:
            raise Refutation(self.clause, f"{seen.total} steps planned, {case.epochs} x {ceiling} made")
        tail = len(batches) % case.n
        return Observed({"a tail" if tail else "no tail", *(["a skipped step"] if case.overflow is not None else [])})


class ScheduleWithinTotal(Epoch):
    """FALSIFY-GT-402: a real OneCycleLR advances with each performed step and is never stepped too often."""

    clause = "GA-SCHED-001"
    reached = ("total_steps used up, and one more raises", "a skipped step")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, batches = observe(subject, case, place)
        total = case.epochs * math.ceil(Fraction(len(batches), case.n))
        if seen.raised:
            raise Refutation(self.clause, f"OneCycleLR raised: {seen.raised}", {"total": seen.total})
        if seen.total != total:
            raise Refutation(self.clause, f"total_steps {seen.total}, and epochs x ceil(B/N) is {total}")
        for i, (_, performed, made) in enumerate(seen.rows):
            if made != performed:
                raise Refutation(self.clause, f"after {i} micro-batches {performed} steps and {made} schedules")
        if case.overflow is None and seen.rows[-1][2] != total:
            raise Refutation(
                self.clause, f"{seen.rows[-1][2]} of {total} schedules at the end, and no step was skipped"
            )
        reached = {"a skipped step"} if seen.rows[-1][0] > seen.rows[-1][1] else set()
        if seen.rows[-1][2] == total:
            try:
                seen.scheduler.step()
            except ValueError:
                reached.add("total_steps used up, and one more raises")
        return Observed(reached)


class TailHolds(Epoch):
    """FALSIFY-GT-403: every applied gradient is the mean over the samples that its window holds."""

    clause = "GA-TAIL-001"
    reached = ("a tail", "a tail with a short last micro-batch")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, batches = observe(subject, case, place)
        due, reached = steps_due(case), set()
        rows = []
        for at, got in seen.applied.items():
            end = (at - 1) % len(batches) + 1
            if end not in due:
                raise Refutation(self.clause, f"a step after micro-batch {end}; due after {due}")
            start = max([0, *(d for d in due if d < end)])
            window = batches[start:end]
            error, bound = difference(case, seen.weights[at], window, got, place)
            if not error <= bound:
                detail = f"the window of {len(window)} of {case.n} micro-batches that ends with {end}: {error:.3g} from"
                raise Refutation(self.clause, f"{detail} the mean over its samples; bound {bound:.3g}")
            column = "accumulation" if case.net == "linear" else "end to end"
            rows.append(row_of(case, place, column, error, bound))
            short = len(window) < case.n
            reached |= {"a tail"} if short else set()
            reached |= (
                {"a tail with a short last micro-batch"} if short and len({len(x) for x, _ in window}) > 1 else set()
            )
        if not seen.applied:
            raise Refutation(self.clause, "no gradient was applied")
        return Observed(reached, rows)


def row_of(case: Case, place: Place, column: str, error: float, bound: float) -> dict[str, Any]:
    """One row of the table of measurements."""
    return {
        "column": column, "net": case.net, "n": case.n, "dtype": place.dtype, "device": place.device,
        "measured": error, "bound": bound, "ratio": error / bound, "note": "",
    }  # fmt: skip


def difference(
    case: Case, weights: Mapping[str, Tensor], window: Sequence[Pair], got: Tensor, place: Place
) -> tuple[float, float]:
    """Largest difference from the window's own mean gradient, and what is allowed."""
    if case.net == "linear":
        xs = torch.cat([x for x, _ in window]).cpu()
        error = Fraction(0)
        for j, value in enumerate(got.tolist()):
            column = [Fraction(v) for v in xs[:, j].tolist()]
            error = max(error, abs(Fraction(value) - sum(column, Fraction(0)) / len(column)))
        # A sample meets a sum, a division, a product with its count, a division, a loss scale and the buffer's sum.
        largest = Fraction(float(xs.abs().max()))
        return float(error), float(gamma(len(xs) + len(window) + 8) * largest)
    model, loss = net_of(case.net)
    model.load_state_dict({name: value.cpu() for name, value in weights.items()})
    model.double()
    inputs, targets = (torch.cat([pair[i] for pair in window]).cpu().double() for i in (0, 1))
    loss(model(inputs), targets).backward()
    full = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return float((got.cpu().double() - full).abs().max()), place.tolerances[TOLERANCE_CLAUSE]


steps_in_an_epoch = StepsPerEpoch()
schedule_in_a_training = ScheduleWithinTotal()
tail_in_an_epoch = TailHolds()
