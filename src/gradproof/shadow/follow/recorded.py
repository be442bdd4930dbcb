"""The engine on a real run of an unchanged script: what each gradient is made of, read while the script trains.

Tensors have numbers, and operators run as they always do. What no operator of a followed tensor made is data: it is met
when it first enters a calculation with a parameter, and its rows are the samples. Until then it is only moved, and not
followed. The rows of one fetch of a data loader, or of one forward pass, belong to one micro-batch.

A number that Python reads stays a number: what is proved then is proved of the recorded path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from threading import get_ident
from typing import Any

import numpy
import torch
from torch import distributed as dist, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from gradproof.shadow.follow.facts import BackwardPass
from gradproof.shadow.follow.group import MEAN, SUM
from gradproof.shadow.follow.laws import LAWS, pointwise
from gradproof.shadow.follow.loop_events import EMPTIED
from gradproof.shadow.follow.memory import MOVED, Memory, known
from gradproof.shadow.follow.origins import Origins
from gradproof.shadow.follow.rows import Rows, axis_of
from gradproof.shadow.follow.samples import MICRO, Samples, guarded
from gradproof.shadow.follow.terms import NOBODY, UNIT, Combination, Powers, Shape, plus
from gradproof.shadow.follow.unseen import OwnBackward, by_a_loader, digest, generator_state, reads
from gradproof.shadow.follow.values import NOUGHT, Value, shared
from gradproof.shadow.locations import Location, by_torch, frames, recomputing, user_location
from gradproof.shadow.ops.schema import Spec, spec_of, tensors_in
from gradproof.shadow.tape.calls import params_of, states
from gradproof.shadow.tape.checksums import inside, plain
from gradproof.shadow.tape.held_state import HeldState

RANKS = "what torch.distributed does to gradients is not followed in one process; gradproof check --ranks 2 follows it"
READS = frozenset({"_local_scalar_dense", "equal", "allclose", "is_nonzero"})
ROWWISE = frozenset({"where", "masked_fill", "index_put", "_index_put_impl", "add", "sub", "rsub"})
META = torch.device("meta")
BLANKS = frozenset({"zeros", "ones", "empty", "full", "empty_strided", "new_empty_strided"})


class Recorded(Samples):  # type: ignore[no-untyped-call]
    """Follows the values of a run that has numbers, from the first optimizer or forward pass until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.laws.marks = True
        self.assumed.tries = lambda: not (dist.is_available() and dist.is_initialized())
        # a rank that tries an operator by itself could wait for the others for ever
        self.fetched: tuple[Any, list[Any]] = (None, [])  # the data set, and the rows that were asked for last
        self._states = dict[tuple[Any, ...], int]()  # where generators stood at a line, in a window: the micro-batch
        self.steps = self.resumed = 0
        self.parts = self.applied_of = 0
        self.runs, self.alive = list[BackwardPass](), list[torch.Tensor]()
        self.looked, self.arrived, self.reaching = set[int](), set[int](), set[int]()
        self.joined = set[int]()  # what an operator took beside a tensor that requires gradients
        self.thread, self.of_gradients = get_ident(), dict[int, bool]()
        self.own = OwnBackward(self)
        self.lines, self.laws.reads_line = Origins(self.rows_along), self._origin
        self._before: dict[str, Combination] = {}
        self.hooked: Location | None = None
        self.overwritten: Location | None = None
        self.later: dict[int, str] = {}  # by the number of steps: a gradient that the next pass found, or none
        self.window_of: Callable[[], int] = lambda: len(self.facts.updates)
        self.held = HeldState(lambda change: None, {})

    def _origin(self, number: float, single: bool) -> tuple[Fraction, Powers] | None:
        """What a plain number is made of, by the line that gives it to an operator; a backward pass has none."""
        if self.in_backward or self.stepping:
            return None
        by, leaves = self.lines.of(float(number), single)
        return by, {self.laws.named(leaf): power for leaf, power in leaves.items()}

    def rows_along(self, tensor: torch.Tensor, axis: int) -> int:
        """The rows of micro-batches that lie along an axis; 0 for none, -1 where nothing is known of the tensor."""
        if isinstance(tensor, nn.Parameter) or not plain(tensor):
            return 0
        if not self.knows(tensor):
            number = self.origins.node(tensor).fetch  # a tensor of a data loader's batch, as it was given
            if number is None:
                return -1
            _, rows, _, shown = self._of_batch(number)
            return int(tensor.shape[axis]) * (axis == axis_of(tensor.shape, shown, rows))
        value = self.memory.read(tensor)
        return -1 if value is None or value.shared else int(tensor.shape[axis]) * (value.axis == axis)

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.closed:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        if all(t.is_meta for t in tensors) and (tensors or kwargs.get("device") == META):
            out = func(*args, **kwargs)  # of a model without numbers, as one whose costs are counted
            if self.awake and not all(t.is_meta for t in tensors_in(out)):
                self._leave(f"{func} makes numbers of a tensor on the meta device")
            return out
        strange = next((t for t in tensors if not plain(t)), None)
        if strange is not None and self.awake:
            self._leave(f"{func} has a tensor of the {strange.layout} layout, or of a class of its own")
        if not self.awake and strange is None:
            self.awake = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if self.closed or not self.awake:
            if not self.closed and (spec := spec_of(func)) is not None:
                reads(self, func, spec, args, kwargs)
                out = func(*args, **kwargs)
                self._copied(func, spec, args, kwargs, out)
                return out
            return func(*args, **kwargs)
        spec = spec_of(func)
        if spec is not None and spec.draws(args, kwargs) and not self.in_backward and not recomputing():
            self._draws(spec, args, kwargs)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if spec is not None and not (self.in_backward or self.stepping or self.loading or self.closed):
            self.held.operated(spec, args, kwargs, out)
        return out

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator. While data are only moved, and in an optimizer's step, nothing is followed."""
        base, tensors = spec.short, tensors_in((args, kwargs))
        self.own.meets(base, tensors)
        reads(self, func, spec, args, kwargs)
        if base in READS:
            return func(*args, **kwargs)
        if self.stepping and not self.in_backward:
            if not by_torch() and self.writes_gradient(spec.targets(args, kwargs)):
                self.lose("a gradient is written while the optimizer steps")
            return func(*args, **kwargs)
        if self._between_ranks(func, spec, args, kwargs):
            return func(*args, **kwargs)
        if self._prepares(spec, base, tensors, args):
            out = func(*args, **kwargs)
            self._copied(func, spec, args, kwargs, out)
            return out
        if spec.alters:
            self.lose(f"{base} gives a tensor another storage")
        within = self.in_backward and self.calls and not recomputing()
        if within and user_location() != self.calls[-1]:  # a hook, or a function of its own
            self.hooked = self.hooked or user_location()
            self.own.hook(base)
            if self.writes_gradient(spec.targets(args, kwargs)):
                self.overwritten = user_location()
        if base in EMPTIED and not self.in_backward and self.writes_gradient(spec.targets(args, kwargs)):
            self.emptied()
        out = super().operate(func, spec, args, kwargs)
        if not self.in_backward and not self.closed:
            self._copied(func, spec, args, kwargs, out)
        if not self.trained_on and base in MOVED:
            self.moved(tensors_in(out))
        return out

    def _draws(self, spec: Spec, args: Any, kwargs: Any) -> None:
        """Numbers are drawn for the rows of a micro-batch: another one of its window may have drawn the same."""
        given = tensors_in(args)
        shape = tuple(given[0].shape if given else args[0] if args and isinstance(args[0], list | tuple) else ())
        with self.own_work():
            key = len(self.facts.updates), spec.base, self.location(), *generator_state(args, kwargs)
        other = self._states.setdefault(key, self.fetch) != self.fetch
        if other and shape[:1] == (self.rows.get(self.fetch),):
            self.meetings.redrawn = self.meetings.redrawn or self.location()

    def _between_ranks(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> bool:
        """Whether a collective changes nothing, as there is one rank."""
        if func.namespace not in ("c10d", "_c10d_functional"):
            return False
        alone = dist.is_initialized() and dist.get_world_size() == 1
        summed = spec.base == "c10d.allreduce_" and int((*args, *kwargs.values())[2].op()) in (SUM, MEAN)
        if alone and (summed or spec.base == "c10d.broadcast_"):
            return True
        if self.in_backward or self.writes_gradient(spec.targets(args, kwargs)):
            self.lose(RANKS)
        return False

    @guarded
    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments."""
        tensors = tensors_in((args, kwargs))
        trained = not self.in_backward and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if trained:
            self.trained_on = self.taking = True
        found = super().before(spec, args, kwargs)
        if trained:
            self.joined.update(term for value in found.values() for part in value.parts for term in part)
        return found

    @guarded
    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results."""
        if self.closed:
            return
        strange = next((t for t in tensors_in(out) if not plain(t)), None)
        if strange is not None:
            self._leave(f"{func} makes a tensor of the {strange.layout} layout, or of a class of its own")
        else:
            super().after(func, spec, args, kwargs, values, out)

    def present(self) -> list[torch.Tensor]:
        """The gradients that the parameters have now."""
        return [grad for grad in super().present() if plain(grad)]

    def _prepares(self, spec: Spec, base: str, tensors: list[torch.Tensor], args: Any) -> bool:
        """Whether an operator makes or moves data that were not met yet; `set_` does where torch.load calls it."""
        if self.in_backward or (any(self.knows(t) for t in tensors) and not self._refills(base, args)):
            return False
        law, name = LAWS.get(base.rstrip("_")), base.rstrip("_")
        rowwise = spec.random or name in ROWWISE or (law is not None and law.letters is pointwise)
        if self.loading and (rowwise or not tensors):
            return True
        if not tensors:
            return spec.random or (base in BLANKS and not self.depth)
        loads = base == "set_" and len(args) > 1 and isinstance(args[1], torch.UntypedStorage)
        return base in MOVED or (loads and not self.memory.knows(args[1]))

    def _refills(self, base: str, args: Any) -> bool:
        """Whether new data are copied over data, as into a buffer that each micro-batch fills: it holds new ones."""
        if base != "copy_" or not isinstance(args[1], torch.Tensor) or self.knows(args[1]):
            return False
        held, size = self.memory.of(args[0]), args[0].untyped_storage().nbytes()
        whole = args[0].shape == args[1].shape and args[0].numel() * args[0].element_size() == size
        if held.data and whole:
            self.memory.forget(args[0])
        return held.data and whole

    @guarded
    def read_whole(self, how: str, tensor: torch.Tensor) -> None:
        """Numbers are read: what follows is about the recorded path. Data are not met by it."""
        if self.closed or (self.stepping and by_torch()) or by_a_loader():
            return
        value = self.value(tensor) if self.awake and plain(tensor) and self.knows(tensor) else None
        if value is None or not (value.shared and self.laws.constant(value.parts[0])):
            self.facts.reads.append((self.location(), how))
            self.looked.update(term for part in (value.parts if value else ()) for term in part)

    @guarded
    def exported(self, tensor: torch.Tensor, found: Any, foreign: bool) -> None:
        """Python got at the memory of a tensor: what it holds has to stay."""
        if not plain(tensor):
            return
        super().exported(tensor, found, foreign)
        self.origins.written(tensor)
        if not self.closed and not self.stepping:
            self.held.exported(tensor)
        if self.closed or not self.awake or not self.knows(tensor):
            return
        if not self.in_backward:
            self.keep("tensor", tensor, self.value(tensor))
        else:
            self.lose("the memory of a tensor is read in a backward pass")

    @guarded
    def stored(self, storage: torch.UntypedStorage, read: bool) -> None:
        """Python writes a storage by itself, or gets at its numbers."""
        if self.closed:
            self.seen.left(storage, None)
        else:
            super().stored(storage, read)

    @guarded
    def copied(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """deepcopy made a copy of a tensor, which belongs to the same fetch."""
        if not self.closed and self.awake and plain(tensor):
            super().copied(tensor, made)
            self.origins.same(tensor, made)

    def _narrow(self, tensor: torch.Tensor, value: Value) -> None:
        """Gradients are meant: a sum of losses may be narrow. What is made of gradients, as a flat copy, is unsure."""
        terms, known = {self.terms.bare(term)[0] for part in value.parts for term in part}, len(self.facts.narrow)
        if self.in_backward or terms & self.arrived:
            super()._narrow(tensor, value)
        elif any(self.terms.made_of(term, self.arrived, self.of_gradients) for term in terms):
            super()._narrow(tensor, value)
            self.facts.narrow[known:] = [(at, kind, False, to) for at, kind, _, to in self.facts.narrow[known:]]

    def _note(self, target: torch.Tensor) -> None:
        """What a run keeps is not compared with another run."""

    # Data

    def _unknown(self, tensor: torch.Tensor) -> Value:
        held, shape = self.memory.of(tensor), tuple(tensor.shape)
        part, loaded = known(held) and not held.data, next(frames()).f_code.co_name == "_load_from_state_dict"
        if not part and (loaded or isinstance(tensor, nn.Parameter) or id(tensor) in self.buffers):
            name = digest(tensor) if loaded else self.buffers.get(id(tensor)) or self.name(tensor)
            made = self.leaf("constant", (name,), shape)
        elif part or self.in_backward:
            ranks = dist.is_available() and dist.is_initialized()
            other = RANKS if ranks else "a tensor of unknown origin takes part in a backward pass"
            self.lose("a part of a tensor was read after a write to another part" if part else other)
            made = self._fresh("unknown", shape)
        else:
            held.data = True
            made = self._data(tensor)
        self.memory.alias(tensor, made)
        if held.data and self.seen.reach(tensor):
            self.keep("batch", tensor, made)
        return made

    def buffered(self, module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
        """A module was given a buffer."""
        if buffer is not None:
            self.alive.append(buffer)
            self.buffers[id(buffer)] = f"buffer {name} {len(self.buffers)}"

    # Optimizers and backward passes

    @guarded
    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self.steps += 1
        if self.closed or not self.awake or self.steps > 1:
            return
        window = self.window_of()  # the default counts the steps before this one
        self.compare("gradient", "parameter", "tensor")
        super().before_step(optimizer)
        update = self.facts.updates[-1]
        update.until, update.window, update.part = len(self.runs), window, self.parts
        update.fetches = self.resumed, self.fetch
        update.leaves = {term for p in params_of(optimizer) for part in self.value(p).parts for term in part}
        self.applied_of = len(self.used)

    def gradients(self, own: Iterable[torch.Tensor]) -> dict[str, Combination]:
        """What the gradients of parameters are made of that have one."""
        found = [parameter for parameter in own if parameter.grad is not None]
        if not all(plain(parameter.grad) for parameter in found if parameter.grad is not None):
            self.lose("a gradient is no plain tensor")
        return {self.name(p): self._gradient(p) for p in found}

    @guarded
    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters are new leaves."""
        self.steps -= 1
        if self.closed or not self.stepping or self.steps:
            return
        self.stepping = False
        for parameter in params_of(optimizer):
            key = (self.name(parameter), len(self.facts.updates))
            self.memory.write(parameter, self.leaf("state", key, tuple(parameter.shape)))
        for one in list(states(optimizer)):
            self.memory.write(one, self._fresh("state", tuple(one.shape)))
        self.look("parameter")
        self.terms.clock.begin()

    @guarded
    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        if self.closed or not self.awake or self.in_backward or any(map(inside, tensors_in(roots))):
            return
        if self.stepping or get_ident() != self.thread:
            self.lose("a backward pass runs inside an optimizer step, or in a thread of its own")
        self.compare("gradient", "batch")
        self._reachable()
        super().begin(roots)
        if self.passes == 1:
            steps = len(self.facts.updates)
            self.later[steps] = self.later.get(steps) or next(iter(self.begun_with), "")
        tensors, one = tensors_in(roots), self.terms.of(self.terms.one)
        run = BackwardPass(self.location(), [self.combination(t) for t in tensors if t.numel() == 1])
        seeded = any(self.combination(seed) != one for seed in tensors_in(rest[:1]))
        run.seeded, run.before = seeded or any(t.numel() != 1 for t in tensors), len(self.terms)
        self.runs.append(run)
        self._before = {self.name(p): self._gradient(p) for p in self.kept}

    @guarded
    def ended(self, found: Any) -> None:
        """A backward pass has ended: what it added to each gradient, or returned."""
        if self.closed or not self.awake or self.in_backward or not self.runs or any(map(inside, tensors_in(found))):
            return
        run = self.runs[-1]
        returned = {at: one for at, one in enumerate(found or ()) if isinstance(one, torch.Tensor)}
        run.returned, run.window = bool(returned), self.window_of()
        run.gains |= {f"returned {at}": self.combination(one) for at, one in returned.items()}
        for parameter in self.kept:
            name = self.name(parameter)
            gain = plus(self._gradient(parameter), self._before.get(name, {}), -UNIT)
            if gain:
                run.gains[name] = gain
                if id(parameter) not in self.reaching:
                    self.overwritten = self.overwritten or self.location()
        self.arrived |= {self.terms.bare(term)[0] for gain in run.gains.values() for term in gain}
        self.ran = True
        self.look("gradient")

    def emptied(self) -> None:
        """A gradient was zeroed, or taken away."""
        done = self.facts.updates[-1] if self.facts.updates else None
        if self.runs and not self.in_backward and not (done is not None and done.until == len(self.runs)):
            self.runs[-1].emptied = self.runs[-1].emptied or user_location()

    def _gradient(self, parameter: torch.Tensor) -> Combination:
        grad = parameter.grad if parameter.is_leaf else None
        return {} if grad is None or not plain(grad) else self.combination(grad)

    def broke(self) -> None:
        """A backward pass ended with an exception."""
        if self.awake and not self.closed and not self.in_backward:
            self.lose("a backward pass ended with an exception")

    # What data loaders give

    def fetching(self, original: Callable[..., Any], fetcher: Any, asked: Any) -> Any:
        """A data loader asks for rows of a data set, in this process."""
        self.fetched = fetcher.dataset, asked if isinstance(asked, list) and None not in asked else []
        return self.loading.call(original, fetcher, asked)

    @guarded
    def took(self, batch: Any, of: Any = None, asked: int = 0) -> None:
        """A data loader was `asked` for so many rows, and gave a batch; a worker may make plain numbers of its data."""
        if not self.closed and any(isinstance(one, int | float | numpy.ndarray) for one in tree_leaves(batch)):
            self.facts.reads.append((self.location(), "a data loader"))
        tensors = [t for t in tensors_in(batch) if plain(t) and t.dim()]
        if not tensors or self.closed:
            return
        if not self.trained_on and any(map(self.knows, tensors)):
            self._begin_anew()
        self.ran = True
        number = self.opened()
        self.marked.add(number)
        if torch.is_grad_enabled():
            self.given[number] = of, self.location()
        shape = tensors[0].shape
        axis = int(asked not in (0, shape[0]) and shape[1:2] == (asked,))  # as many as were asked for are the samples
        self.rows[number], self.axes[number] = shape[axis], axis
        for tensor in tensors:
            if of is not None and of.collated:
                self.origins.comes(tensor, self.location())
            self._take_for_samples(tensor, axis_of(tensor.shape, axis, shape[axis]), number)
            self.origins.gives(tensor, number)

    @guarded
    def comes(self, tensor: Any) -> None:
        """Code outside of torch gave a tensor its numbers."""
        if isinstance(tensor, torch.Tensor) and plain(tensor) and tensor.dim() and tensor.shape[0] > 1:
            self.origins.comes(tensor, self.location())

    # Writes that are no operators

    def _reachable(self) -> None:
        """While a backward pass runs nobody else may write into a gradient, nor may two of them be one."""
        taken: dict[int, int] = {}
        for grad in sorted(self.present(), key=lambda one: one.storage_offset()):
            storage, begin = grad.untyped_storage()._cdata, int(grad.storage_offset())
            if self.seen.reach(grad):
                self.lose("something else can reach the memory of a gradient while a backward pass runs")
            if begin < taken.get(storage, 0):
                self.lose("two parameters share the memory of their gradients")
            taken[storage] = begin + grad.numel()

    @guarded
    def go_on(self, own: Iterable[torch.Tensor]) -> None:
        """Follow again, after windows that were not: what tensors hold is not known, and data are met anew.

        `own`: parameters of the optimizers. A gradient of which every element is zero is none.
        """
        self.parts += 1
        self.terms.clock.begin()
        self._forget()
        for sample in list(self.used)[self.applied_of :]:
            del self.used[sample]  # of a window that is not recorded
        self.origins = Rows()
        self.forget_rows()
        self.meetings.forget()
        self.closed, self.awake, self.stepping = False, True, False
        self.begun = self.ran = self.taking = False
        self.fetch, self.passes, self.begun_with, self._before = self.fetch + 1, 0, {}, {}
        for p in {id(p): p for p in (*self.kept, *own)}.values():
            key = (self.name(p), f"of part {self.parts}")
            self.memory.write(p, self.leaf("state", key, tuple(p.shape)))
            if p.is_leaf and p.grad is not None and plain(p.grad):
                with torch.no_grad(), _disable_current_modes():
                    left = bool(torch.count_nonzero(p.grad))
                self.memory.write(p.grad, self._strange(tuple(p.grad.shape)) if left else NOUGHT)
        self.resumed = self.fetch
        self.look("parameter")

    def _forget(self) -> None:
        """What tensors that were followed hold now is not known. A number that was made of no sample is read anew."""
        before, self.memory = self.memory, Memory(self.laws)
        self.memory.bytes_read = before.bytes_read
        for number, held in before.held.items():
            if held.weak.expired() or held.data:
                continue
            kept = []
            for one in held.regions:
                owners = {self.terms.owners[term] for part in one.value.parts for term in part}
                if one.shape or owners != {NOBODY}:
                    kept.append(replace(one, value=self._strange(one.shape, owners == {NOBODY})))
            self.memory.held[number] = replace(held, regions=kept, views={})

    def _strange(self, shape: Shape, constant: bool = False) -> Value:
        """What was made in windows that were not followed: it counts as a sample of its own, if it is no constant."""
        self.made["left", 0] += 1
        owner = NOBODY if constant else self.fetch * MICRO + MICRO - 1
        key = ("left", self.parts, self.made["left", 0])
        return shared(self.terms.of(self.terms.make("unknown", key, (), shape, owner)))
