"""Monitoring of a whole training: effective batch, steps an epoch, losses per micro-batch, the loss scaler's steps.

It counts and compares nothing with a second run. Sizes and losses are kept for the first windows alone; counts go on
to the end: one hook a step, one wrapper a backward pass and a batch of a DataLoader. A fused optimizer's flag of a
skipped step is read at each step.

What tells an epoch: `epoch_batches`, where it is given; else a DataLoader's iterations, where backward passes followed
its batches; else nothing does, and none is reported.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from statistics import mode
from threading import get_ident
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import default_collate, default_convert
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _MultiProcessingDataLoaderIter

from gradproof.monitoring import LISTENERS, CountRules, Counts
from gradproof.shadow.locations import initialising, user_location
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.tape.calls import (
    ATTEMPT,
    CLIP,
    PASS,
    SCALE,
    SCHEDULE,
    STEP,
    UNSCALE,
    ZERO,
    Nested,
    Patches,
    params_of,
    steps,
)
from gradproof.shadow.tape.handed import KeptWindows, ReportedLoss, handed
from gradproof.shadow.tape.looks import Looks
from gradproof.shadow.tape.run_events import (
    ABORTED,
    THREADS,
    Call,
    Iteration,
    RunEvents,
    SeenPass,
    WindowDetails,
    held,
    world_of,
)

FORWARD = "rows of the first tensor that the micro-batch's first module was given"
LOADER = "rows of the first tensor in the DataLoader's batch"
MOST_REPORTS = 1000


@dataclass
class Forwards:
    """The forward passes since the last backward pass. `size`: the rows of the first, and what stated them.

    `called`: how often each module that is a part of no other one was called, and `each` every module with weights, by
    the mode of the former; `trains`: whether one was in training mode. `inner` are parts.
    """

    size: tuple[int | None, str] | None = None
    trains: bool = False
    mode: bool = False
    called: Counter[tuple[int, bool]] = field(default_factory=Counter)
    each: Counter[tuple[int, bool]] = field(default_factory=Counter)
    inner: set[int] = field(default_factory=set)


@dataclass
class Epoch:
    """A finished epoch, or the present one: counts by optimizer, and what stated it."""

    iteration: Iteration | None
    counts: dict[int, Counts] = field(default_factory=dict)
    passes: int = 0


class Monitor(KeptWindows):
    """Counts whatever trains inside `with Monitor() as monitor:`; `monitor_report` sums it up afterwards.

    `windows` are those whose sizes and losses are kept, `accum_steps` N where it is known, `epoch_batches` the backward
    passes of an epoch where no DataLoader tells it; `opened` is called once, when the first window is complete.
    """

    def __init__(
        self,
        tally: CountRules | None = None,
        windows: int = 3,
        accum_steps: int | None = None,
        epoch_batches: int | None = None,
        opened: Callable[[Monitor], None] = lambda monitor: None,
    ) -> None:
        super().__init__(tally or CountRules(), accum_steps)
        self.windows, self.epoch_batches, self.opened = windows, epoch_batches, opened
        self.epochs: list[Epoch] = []
        self.epoch = Epoch(None)
        self.common = Counts()
        self.types: dict[int, str] = {}
        self.reports, self.unchecked = list[ReportedLoss](), 0
        self.scalers: dict[Any, Counts] = {}
        self.world = 1
        self.samples: Any = None  # of the first window
        self.mixed = self.known = self.dropped = self._past = False
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._iterations: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()
        self._held = dict[Any, tuple[Iteration, int]]()
        self._iteration: Iteration | None = None
        self.iterations = list[Iteration]()  # those that backward passes followed
        self._before, self._since = Forwards(), Forwards()  # the last backward pass, and since then
        self._scale: Any = None
        self._scaler: Any = None
        self._attempts = 0
        self.inside = Nested()  # calls that are watched
        self._steps, self._threads = list[Any](), list[int]()
        self._undo = ExitStack()
        self._forward: Any = None
        self.run = RunEvents()
        self.looks = Looks(self.run.facts)
        self.details = WindowDetails(self.run)
        self.passes = self.stopped = 0  # stopped: the windows after which the script was ended

    def enters(self, stack: ExitStack) -> None:
        """Hooks and patches are in place; what has to be undone before them goes onto the stack."""

    def gave(self, batch: Any) -> None:
        """A DataLoader gave a batch."""

    def turned(self) -> None:
        """A backward pass has ended, or a step begins or ends, also one that a loss scaler leaves out."""

    def passed(self) -> None:
        """A backward pass has returned, to no other one: here a script can be ended."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            patches = Patches()
            stack.callback(patches.restore)
            self._steps = stack.enter_context(steps(self._before_step, self._after_step))
            self.look()
            stack.callback(self._settled)
            self.looks.wait()
            stack.callback(self.looks.end)
            for kind, seen in (
                (PASS, self._backward), (CLIP, self._clipping), (ATTEMPT, self._scaled_step), (SCALE, self._scaling),
                (UNSCALE, self._unscaling), (SCHEDULE, self._scheduled), (ZERO, self._zeroing),
            ):  # fmt: skip
                patches.around(kind, seen)
            self.details.install(patches)
            patches.everywhere()
            patches.method(torch.utils.data.DataLoader, "__iter__", self._begun)
            patches.method(_BaseDataLoaderIter, "__next__", self._read)
            patches.active = True
            LISTENERS.append(self._stated)
            stack.callback(LISTENERS.remove, self._stated)
            self.enters(stack)
            self._undo = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._undo.close()

    def look(self) -> None:
        """Sizes and losses of the next window are wanted, besides those of the first ones."""
        self.windows = max(self.windows, len(self.closed) + 1)
        if self._forward is None:
            self._forward = nn.modules.module.register_module_forward_pre_hook(self._entered)

    def parameters(self) -> list[Tensor]:
        """The parameters of the optimizers that have stepped."""
        return [parameter for optimizer in self._numbers for parameter in params_of(optimizer)]

    def holds_gradients(self) -> bool:
        """Whether some parameter has a gradient that is not zero."""
        held = (p.grad for p in self.parameters() if p.grad is not None)
        with torch.no_grad(), _disable_current_modes():
            return any(bool((g.coalesce().values() if g.is_sparse else g).any()) for g in held)

    def ends(self) -> bool:
        """Whether the first epoch has no more micro-batches left than a window has, as far as its length is known.

        It is, where `epoch_batches` is given, and where a data loader has a length. A window has as many as most had.
        """
        most = self.accum_steps or mode([len(window) for window in self.closed] or [0])
        it = self.epoch.iteration
        length, done = (it.length, it.passes) if it is not None and it is self._iteration else (None, 0)
        if self.epoch_batches is not None:
            length, done = self.epoch_batches, self.epoch.passes
        self.known |= length is not None
        return not self.epochs and length is not None and 0 < length - done <= most

    def _noted(self, kind: str, about: Any, original: Call, *args: Any, **kwargs: Any) -> Any:
        """A call that is an event of its own, but for one inside another."""
        if not self.inside and not initialising():
            self.run.keep(kind, about)
        return self.inside.call(original, *args, **kwargs)

    def _clipping(self, original: Call, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """A clip of torch.nn.utils. One at infinity measures, and scales nothing."""
        own = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        measures = limit is not None and float(limit) == float("inf")
        about = frozenset[int]() if measures else frozenset(map(id, own))
        return self.details.sums.scaled(lambda: self._noted(CLIP, about, original, own, *args, **kwargs))

    def _unscaling(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """GradScaler.unscale_, called by the user or by the scaler's own step."""
        return self.details.sums.scaled(lambda: self._noted(UNSCALE, None, original, *args, **kwargs))

    def _scheduled(self, original: Call, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """A step of a schedule, which may be given its position."""
        about = (id(scheduler), bool(args or kwargs))
        return self.details.scheduled(lambda: self._noted(SCHEDULE, about, original, scheduler, *args, **kwargs))

    def _settled(self) -> None:
        """Sizes and losses are no longer wanted."""
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    # Batches and losses

    def _entered(self, module: nn.Module, args: Any) -> None:
        """A module's forward pass: the first since the last backward pass tells the size of the micro-batch.

        One that trains comes before one in evaluation mode, which may be a validation that forgot `no_grad`.
        """
        if torch.compiler.is_compiling() or self.inside or not torch.is_grad_enabled():
            return
        first = next(module.parameters(), None)
        if first is not None and first.is_meta:
            return  # its costs are counted, and it trains nothing
        seen, weighs = self._since, first is not None
        if id(module) not in seen.inner:
            seen.inner.update(id(part) for part in module.modules() if part is not module)
            self.details.state.modules[id(module)] = module
            seen.mode = module.training if weighs else seen.mode
            seen.called[id(module), seen.mode] += 1
        seen.each[id(module), seen.mode] += weighs
        self.looks.ran(module)
        if seen.size is None or (module.training and not seen.trains):
            seen.size, seen.trains = (rows_of(args), FORWARD), module.training

    def _begun(self, original: Call, loader: Any) -> Any:
        """A new iteration over a DataLoader."""
        made = original(loader)
        self._iterations[made] = Iteration(
            length_of(loader), held=self._held, redraws=redraws(loader), loader=id(loader)
        )
        return made

    def _read(self, original: Call, iterator: Any) -> Any:
        """The next batch of a DataLoader, or its end."""
        found = self._iterations.setdefault(iterator, Iteration())
        apart = isinstance(iterator, _MultiProcessingDataLoaderIter)
        try:
            with _disable_current_modes() if apart else nullcontext():  # a worker made the batch; here it is unpacked
                batch = original(iterator)
        except StopIteration:
            found.ended, self._iteration = True, found
            found.held.clear()
            self.looks.anew()
            raise
        found.shared = apart and iterator._num_workers > 1 and iterator._dataset_kind == _DatasetKind.Iterable
        found.collated = apart and iterator._collate_fn not in (default_collate, default_convert)
        found.read, found.since, found.waiting = found.read + 1, 0, found.waiting + torch.is_grad_enabled()
        found.rows = rows_of(batch)
        found.sizes.add(found.rows)
        self._iteration = found
        self.gave(batch)
        if found.complete:
            found.held.clear()
            self.looks.anew()
        return batch

    def _scaling(self, original: Call, scaler: Any, outputs: Any) -> Any:
        """GradScaler.scale, of a loss."""
        made = original(scaler, outputs)
        if scaler.is_enabled() and isinstance(outputs, Tensor):
            self._scale = scaler._scale
        return made

    def _backward(self, original: Call, outputs: Any, *args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
        """A backward pass, or torch.autograd.grad, whose gradients are returned; but for one inside another."""
        if torch.compiler.is_compiling():  # a compiler's, which makes the graph of a backward pass
            return original(outputs, *args, accumulate_grad=accumulate_grad, **kwargs)
        _, _, differentiable, given, *_ = args
        roots, inputs, inner = tensors_in(outputs), tensors_in(given), bool(self.inside)
        if inner and accumulate_grad:
            self.details.reaches(roots if self.run.on else [], inputs)
        elif accumulate_grad:
            self._arriving(roots, inputs)
        elif not inner:
            event = self.run.begins()
            if not differentiable and self.details.of_weights(inputs):
                self.details.began(event, self._pass(returned=True), [], inputs)
        self._threads.append(get_ident())
        try:
            if len(set(self._threads)) > 1:
                self.run.keep(THREADS)
            found = self.inside.call(original, outputs, *args, accumulate_grad=accumulate_grad, **kwargs)
        except BaseException:
            if accumulate_grad and not inner:
                self.run.keep(ABORTED)
            raise
        finally:
            self._threads.remove(get_ident())
            if not self.inside:
                if accumulate_grad:
                    self.details.sums.arrived(self.details.leaves)
                    self.looks.left(held(self.parameters()), list(self._numbers), False)
                    self.looks.wait()
                self.turned()
        if not inner:
            self.passed()
        return found

    def _arriving(self, roots: list[Tensor], inputs: list[Tensor]) -> None:
        """A micro-batch, as its backward pass begins."""
        it = self._iteration or Iteration()
        resumes = self.run.stepped
        event = self.run.begins()
        self.looks.began(event.location, roots, self._scale, it.rows)
        self.looks.gradients(resumes, held(self.parameters()), list(self._numbers))
        self._turn()
        self._before, self._since = self._since, Forwards()
        self.iterations += [] if it.passes or it is not self._iteration else [it]
        it.followed(event.location)
        size, stated_by = self._before.size or (None, "")
        if size is None:
            size, stated_by = it.size, LOADER
        self.epoch.passes, self.passes = self.epoch.passes + 1, self.passes + 1
        self.common = self.tally.micro_batch(self.common, size or 0)
        for number, counts in self.epoch.counts.items():
            self.epoch.counts[number] = self.tally.micro_batch(counts, size or 0)
        self._past = self._forward is None
        if not self._past:
            self.open.append(handed(roots, self._scale, size, stated_by))
        self._scale = None
        self.details.began(event, self._pass(), roots, inputs)

    def _pass(self, returned: bool = False) -> SeenPass:
        """The backward pass that was last begun. `returned`: it returns its gradients."""
        it, before = self._iteration or Iteration(), self._before
        made = SeenPass(self._iteration, passes=self.passes, returned=returned, inside=bool(self._steps))
        called, each = (
            (n for (_, mode), n in own.items() if mode is before.trains) for own in (before.called, before.each)
        )
        made.forwards, made.again = max(called, default=0), max(each, default=0) > 1
        made.trained, made.read = it.trained, it.read
        made.ahead = it.trained and it.passes == it.read and it.since > 1
        return made

    def _turn(self) -> None:
        """Begin another epoch where this backward pass is the first of one."""
        present, it = self.epoch, self._iteration
        if self.epoch_batches is not None:
            due = present.passes >= self.epoch_batches
        else:
            due = it is not present.iteration
            self.mixed |= due and any(e.iteration is it for e in self.epochs)
            due = due and not self.mixed
        if due and present.passes:
            self.epochs.append(present)
            fresh = {number: self.tally.epoch(counts) for number, counts in present.counts.items()}
            self.epoch, self.common = Epoch(it, fresh), self.tally.epoch(self.common)
        self.epoch.iteration = it

    def _zeroing(self, original: Call, owner: Any, *args: Any, **kwargs: Any) -> Any:
        """zero_grad of an optimizer or a module; inside of the first window it drops micro-batches."""
        if self.open and not self.closed and not self.dropped:
            owned = params_of(owner) if isinstance(owner, Optimizer) else owner.parameters()
            self.dropped = any(p.grad is not None for p in owned)
        return self._noted(ZERO, None, original, owner, *args, **kwargs)

    # Steps

    def _number(self, optimizer: Optimizer) -> int:
        if optimizer not in self._numbers:
            number = self._numbers[optimizer] = len(self._numbers)
            self.types[number] = type(optimizer).__name__
            self.epoch.counts[number] = self.common
        return self._numbers[optimizer]

    def _before_step(self, optimizer: Optimizer) -> None:
        self._number(optimizer)
        self.turned()
        if not self._steps:
            self.details.stepping(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        if not self._steps:
            flag = getattr(optimizer, "found_inf", None)  # by which a fused optimizer skips its update
            with _disable_current_modes():
                self._attempt(optimizer, isinstance(flag, Tensor) and bool(flag.detach().item()))
            self.turned()

    def _scaled_step(self, original: Call, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """GradScaler.step, which makes no step at all when it found an infinite gradient."""
        if not scaler.is_enabled() or not isinstance(optimizer, Optimizer) or self._scaler is not None:
            return original(scaler, optimizer, *args, **kwargs)
        self._scaler, before = scaler, self._attempts
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if self._attempts == before:
                self.details.stepping(optimizer)
                self._attempt(optimizer, True)
                self.turned()
        finally:
            self._scaler = None
        return result

    def _attempt(self, optimizer: Any, skipped: bool) -> None:
        """An optimizer step, performed or skipped."""
        number = self._number(optimizer)
        self._attempts += 1
        self.run.keep(STEP, self.details.stepped(optimizer, number, skipped))
        self.looks.left(held(self.parameters()), list(self._numbers), True)
        before = self.epoch.counts[number]
        self.epoch.counts[number] = self.tally.attempt(before, skipped)
        if self._scaler is not None:
            self.scalers[self._scaler] = self.tally.attempt(self.scalers.get(self._scaler, Counts()), skipped)
        if not self.open:
            return
        self.world = max(self.world, world_of())
        self.closed.append(self.open)
        self.open = []
        if len(self.closed) == 1:
            self.samples = before.samples
            self.opened(self)
        if len(self.closed) >= self.windows:
            self._settled()

    # What the script tells

    def _stated(self, value: Any, of: str, divided: bool) -> None:
        """A loss that the script reported."""
        window = list(self.open) or (self.closed[-1] if self.closed else [])
        if self._past or len(self.reports) >= MOST_REPORTS:
            self.unchecked += 1
            return
        with torch.no_grad(), _disable_current_modes():
            kept = number_of(value)
        self.reports.append(ReportedLoss(kept, of, divided, window, len(self.recorded), user_location()))


def number_of(value: Any) -> Tensor | float | None:
    """A tensor of one real element, or a number; None for anything else: a watched script is not stopped by its log."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.numel() == 1 and not value.is_complex() else None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def length_of(loader: Any) -> int | None:
    """The batches of a DataLoader; None where it does not know."""
    stated = getattr(loader, "_IterableDataset_len_called", None)
    try:
        return len(loader)
    except Exception:  # a dataset may raise what it likes
        return None
    finally:
        loader._IterableDataset_len_called = stated


def redraws(loader: Any) -> bool:
    """Whether a DataLoader draws its rows with replacement."""
    return bool(getattr(getattr(loader, "sampler", None), "replacement", False))


def rows_of(given: Any) -> int | None:
    """The size of the first dimension of the first tensor in nested lists, tuples and mappings; None without one."""
    return next((int(t.shape[0]) for t in tensors_in(given) if t.ndim and not t.is_nested), None)
