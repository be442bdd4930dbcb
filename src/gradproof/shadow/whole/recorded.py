"""The engine on a real run of an unchanged script: what each gradient is made of, read while the script trains.

Tensors have numbers, and operators run as they always do. What no operator of a followed tensor made is data: it is met
when it first enters a calculation with a parameter, and its rows are the samples. Until then it is only moved, and not
followed. The rows of one fetch of a data loader, or of one forward pass, belong to one micro-batch.

A number that Python reads stays a number: what is proved then is proved of the recorded path.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import distributed as dist, nn
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.locations import Location, by_torch, recomputing, user_location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import stated
from gradproof.shadow.whole.engine import NARROW, Engine
from gradproof.shadow.whole.facts import BackwardPass, Gradient, RecordedStep
from gradproof.shadow.whole.group import WatchedRanks
from gradproof.shadow.whole.interpreter import within
from gradproof.shadow.whole.loop_events import EMPTIED
from gradproof.shadow.whole.memory import MOVED, Meetings, Memory, known, weakly
from gradproof.shadow.whole.terms import NOBODY, UNIT, Combination, Shape, Terms, exact, plus
from gradproof.shadow.whole.unseen import Escapes, OwnBackward, Unchanged, call_site, digest, plain
from gradproof.shadow.whole.values import NOUGHT, Value, shared

MICRO = 1 << 20
"""Samples are numbered by micro-batch: `MICRO` times its number, plus the row."""
UNITS = 32
"""A micro-batch of more rows is followed in this many blocks of rows, where it has as many."""
READS = frozenset({"_local_scalar_dense", "equal", "is_nonzero"})
BLANKS = frozenset({"zeros", "ones", "empty", "full", "empty_strided", "new_empty_strided"})


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A method whose failure ends the following, and not the user's script."""

    @functools.wraps(method)
    def call(self: Recorded, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._leave(stated(error))

    return call


class Recorded(Engine):  # type: ignore[no-untyped-call]
    """Follows the values of a run that has numbers, from the first optimizer or forward pass until it is closed."""

    def __init__(self) -> None:
        super().__init__(Terms(), MICRO, 0)
        self.laws.marks = self.laws.tallies = True
        self.assumed.tries = alone
        self.awake = self.closed = False
        self.runs: list[BackwardPass] = []
        self.looked: set[int] = set()
        self.arrived: set[int] = set()
        self.of_gradients: dict[int, bool] = {}
        self.used: dict[int, Location] = {}
        self.joined: set[int] = set()  # what an operator took beside a tensor that requires gradients
        self.depth, self.thread = 0, get_ident()
        self.fetch, self.begun, self.ran = 0, False, False
        self.rows: dict[int, int | None] = {}
        self.fetched: dict[int, tuple[Any, int, tuple[int, ...]]] = {}
        self.turns: Counter[tuple[int, str]] = Counter()
        self.marked: set[int] = set()
        self.given: set[int] = set()  # by a data loader, with gradients on
        self.by_pass = False
        self.met = Meetings()
        self._last = (-1, 0)
        self.escapes = Escapes()
        self.seen = Unchanged(self.escapes)
        self.exports = self.inside = self.steps = 0
        self.own, self.ranks = OwnBackward(self), WatchedRanks(self)
        self.narrowed: Location | None = None
        self.alive: list[torch.Tensor] = []
        self._before: dict[str, Combination] = {}
        self.hooked: Location | None = None
        self.overwritten: Location | None = None
        self.reaching: set[int] = set()
        self.since = self.parts = self.applied_of = 0
        self.later: dict[int, str] = {}  # by the number of steps: a gradient that the next pass found, or none
        self.window_of: Callable[[], int] = lambda: len(self.facts.updates)

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.closed:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        strange = next((t for t in tensors if not plain(t)), None)
        if strange is not None and self.awake:
            self._leave(f"{func} has a tensor of the {strange.layout} layout, or of a class of its own")
        if not self.awake and strange is None:
            self.awake = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if self.closed or not self.awake:
            return func(*args, **kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator. While data are only moved, and in an optimizer's step, nothing is followed."""
        base, tensors = spec.short, tensors_in((args, kwargs))
        self.own.meets(base, tensors)
        if base in READS:
            return self.read(func, base, args, kwargs)
        if self.stepping and not self.inside:
            return self._by_optimizer(func, spec, args, kwargs)
        if self._prepares(spec, base, tensors):
            out = func(*args, **kwargs)
            self._carried(tensors, [t for t in tensors_in(out) if plain(t)])
            return out
        if spec.alters:
            self.lose(f"{base} gives a tensor another storage")
        if self.inside and self._from_a_hook():
            self.hooked = self.hooked or user_location()
            self.own.hook(base)
            if self._writes_a_gradient(spec, args, kwargs):
                self.overwritten = user_location()
        if base in EMPTIED and not self.inside and self._writes_a_gradient(spec, args, kwargs):
            self.emptied()
        return super().operate(func, spec, args, kwargs)

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments. The engine's own failure ends the following, and not the script."""
        try:
            found, tensors = super().before(spec, args, kwargs), tensors_in((args, kwargs))
            if not self.inside and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                self.joined.update(term for value in found.values() for part in value.parts for term in part)
            return found
        except Exception as error:
            self._leave(stated(error))
            return {}

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results."""
        if self.closed:
            return
        strange = next((t for t in tensors_in(out) if not plain(t)), None)
        if strange is not None:
            self._leave(f"{func} makes a tensor of the {strange.layout} layout, or of a class of its own")
            return
        try:
            super().after(func, spec, args, kwargs, values, out)
            self.ranks.ran(spec, args, kwargs)
        except Exception as error:
            self._leave(stated(error))

    def _leave(self, why: str) -> None:
        """Follow nothing more, and prove nothing."""
        self.lose(why)
        self.close()

    def _by_optimizer(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """What an optimizer's step does is not followed; code that is not torch's may not write a gradient in it."""
        if not by_torch() and self._writes_a_gradient(spec, args, kwargs):
            self.lose("a gradient is written while the optimizer steps")
        return func(*args, **kwargs)

    def _writes_a_gradient(self, spec: Spec, args: Any, kwargs: Any) -> bool:
        written = [t for t in spec.targets(args, kwargs) if plain(t)]
        own = {grad.untyped_storage()._cdata for grad in self._gradients()} if written else set()
        return any(t.untyped_storage()._cdata in own for t in written)

    def _gradients(self) -> list[torch.Tensor]:
        held = (p.grad for p in {id(p): p for p in self.kept}.values() if p.is_leaf)
        return [grad for grad in held if grad is not None and plain(grad)]

    def _from_a_hook(self) -> bool:
        """Whether the user's code runs inside a backward pass: in a hook, or in a function of its own."""
        return user_location() != self.calls[-1] and not recomputing()

    def _prepares(self, spec: Spec, base: str, tensors: list[torch.Tensor]) -> bool:
        """Whether an operator makes or moves data that were not met yet."""
        if self.inside or any(self._met(t) for t in tensors):
            return False
        if not tensors:
            return spec.random or (base in BLANKS and not self.depth)
        return base in MOVED

    def _met(self, tensor: torch.Tensor) -> bool:
        held = tensor.requires_grad or isinstance(tensor, nn.Parameter) or id(tensor) in self.buffers
        return held or self.memory.met(tensor)

    def _carried(self, tensors: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        """What is made of fetched data belongs to the same fetch."""
        sources = [t for t in tensors if self._fetch_of(t) is not None]
        for made in out if sources else ():
            storage, (_, number, row) = made.untyped_storage(), self.fetched[sources[-1].untyped_storage()._cdata]
            self.fetched.setdefault(storage._cdata, (weakly(storage), number, row))

    def _fetch_of(self, tensor: torch.Tensor) -> int | None:
        found = self.fetched.get(tensor.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def read(self, func: Any, base: str, args: Any, kwargs: Any) -> Any:
        """A number is read: what follows is about the recorded path."""
        if self.awake and not self.closed and not (self.stepping and by_torch()) and self._met(args[0]):
            self.facts.reads.append((self.location(), base))
            self.looked.update(term for part in self.value(args[0]).parts for term in part)
        return func(*args, **kwargs)

    @guarded
    def exported(self, tensor: torch.Tensor, found: Any, foreign: bool) -> None:
        """Python got at the memory of a tensor: what it holds has to stay."""
        if not plain(tensor):
            return
        self.escapes.left(tensor.untyped_storage(), found, foreign)
        self.seen.left(tensor.untyped_storage())
        if self.closed or not self.awake or not self._met(tensor):
            return
        self.looked.update(term for part in self.value(tensor).parts for term in part)
        if not self.inside:
            self.exports += 1
            self.seen.keep(f"tensor {self.exports}", tensor, self.value(tensor))
        else:
            self.lose("the memory of a tensor is read in a backward pass")

    @guarded
    def stored(self, storage: torch.UntypedStorage) -> None:
        """Python writes a storage by itself, or gives its memory away."""
        self.escapes.left(storage, None)
        if self.closed:
            return
        if self.awake and self.memory.knows(storage):
            self.lose("the storage of a tensor was written, or given away, by itself")

    def _narrow(self, tensor: torch.Tensor, value: Value) -> None:
        """Gradients are meant: a sum of losses may be narrow. What is made of gradients, as a flat copy, is unsure."""
        terms, known = {self.terms.bare(term)[0] for part in value.parts for term in part}, len(self.facts.narrow)
        if self.inside or terms & self.arrived:
            super()._narrow(tensor, value)
        elif any(self.terms.made_of(term, self.arrived, self.of_gradients) for term in terms):
            super()._narrow(tensor, value)
            self.facts.narrow[known:] = [(at, kind, False) for at, kind, _ in self.facts.narrow[known:]]

    def put(self, tensor: torch.Tensor, value: Value) -> None:
        """A tensor holds a value now."""
        if self.narrowed is None and tensor.dtype in NARROW:
            self.narrowed = self.location()
        super().put(tensor, value)

    def _note(self, target: torch.Tensor) -> None:
        """What a run keeps is not compared with another run."""

    # Data

    def _unknown(self, tensor: torch.Tensor) -> Value:
        held, shape = self.memory.of(tensor), tuple(tensor.shape)
        frozen = isinstance(tensor, nn.Parameter) or id(tensor) in self.buffers
        if known(held) and not held.data:
            self.lose("a part of a tensor was read after a write to another part")
            made = shared(self.terms.of(self._fresh("unknown", shape)))
        elif frozen:
            name = self.buffers.get(id(tensor)) or self.name(tensor)
            made = shared(self.terms.of(self.terms.make("constant", (name,), (), shape)))
        elif self.inside:
            self.lose("a tensor of unknown origin takes part in a backward pass")
            made = shared(self.terms.of(self._fresh("unknown", shape)))
        else:
            held.data = True
            found = self._number(tensor)
            if found is None:
                found = self.source(tensor, within(tensor))
                number = self._fetch_of(tensor)
                number = self.fetch if number is None else number
                self.met.data(tensor, found, len(self.facts.updates), number, self.location())
            self.memory.alias(tensor, found)
            if self.escapes.reach(tensor):
                self.exports += 1
                self.seen.keep(f"batch {self.exports}", tensor, found)
            return found
        self.memory.alias(tensor, made)
        return made

    def _number(self, tensor: torch.Tensor) -> Value | None:
        """A float tensor that holds one number everywhere is that number, and no data; so is a single integer.

        What a data loader gave are data, whatever they hold.
        """
        single = not tensor.dim() and self.rows.get(self.fetch, 1) is not None
        if not tensor.numel() or tensor.is_complex() or not (tensor.is_floating_point() or single):
            return None
        given = self._fetch_of(tensor) is not None
        if tensor.dim() and given:
            return None
        with torch.no_grad(), _disable_current_modes():
            first = tensor.detach().flatten()[0]
            if not bool((tensor.detach() == first).all()):
                return None
            plain = exact(float(first))
        if plain is not None and (tensor.is_floating_point() or given):
            self.met.one_number(tensor, self._site(), len(self.facts.updates), self.location())
        return None if plain is None else self.laws.ones(plain)

    def _open(self) -> int:
        """The present micro-batch; another one where a backward pass has ended since the last.

        Data that were met before are met anew: the same rows in another micro-batch are samples of that one.
        """
        if self.ran:
            self.fetch, self.begun, self.ran = self.fetch + 1, False, False
            for number, held in self.memory.held.items():
                if held.data and number not in self.fetched:
                    held.views.clear()
        return self.fetch

    def source(self, tensor: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """Data: rows of samples along one of the first two axes; a table where neither has as many rows.

        Labels that were flattened have several rows a sample.
        """
        shape, given = tuple(tensor.shape), self._fetch_of(tensor)
        number = self._open() if given is None else given
        if number not in self.rows:
            self.rows[number] = shape[0] if shape else None
        rows = self.rows[number]
        axis = next((i for i in range(min(2, len(shape))) if shape[i] == rows), None)
        labels = len(shape) == 1 and not tensor.is_floating_point()
        if axis is None and rows and labels and shape[0] % rows == 0:
            axis = 0
        whole = given is not None and axis is not None
        row = None if given is None else self.fetched[tensor.untyped_storage()._cdata][2]
        if shape and shape[0] != rows and shape[1:] == row:
            axis, whole = 0, False  # a part of a batch, as where a script cuts it into micro-batches
        if axis is None and rows is not None:
            return shared(self.terms.of(self.terms.make("constant", (digest(tensor),), (), shape)))
        gradients, slot = torch.is_grad_enabled(), self._site()
        count = blocks(min(rows, shape[axis])) if axis is not None and rows is not None else 1
        size = shape if axis is None else (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
        first = self.turns[number, slot]
        self.turns[number, slot] += 1 if whole else count
        if whole:
            slot, first = f"{slot} {first}", 0
        self.by_pass |= number not in self.marked
        parts = []
        for i in range(first, first + count):
            owner = number * MICRO + i
            key = (slot, gradients, str(tensor.dtype), owner)
            parts.append(self.terms.of(self.terms.make("data", (*key, within), (), size, owner)))
            if gradients:
                self.used.setdefault(owner, self.location())
        return shared(parts[0]) if axis is None else Value(tuple(parts), axis, size[axis])

    def _site(self) -> str:
        """Where data are met: the line, which call of it, and which of the operator's data they are."""
        same = self._last[0] == self.facts.operators
        self._last = (self.facts.operators, self._last[1] + 1 if same else 0)
        return f"{call_site()} {self._last[1]}"

    @guarded
    def forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins: its first tensor of data gives the number of rows of the micro-batch."""
        if not self.awake:
            self.awake = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if not self.awake or self.closed:
            return
        if torch.is_grad_enabled():
            self._open()
            self.ranks.forward(module)
        given = [t for t in tensors_in((args, kwargs)) if plain(t)]
        first = next((t for t in given if t.dim() and not self._met(t)), None)
        if first is None:
            return
        number = self._fetch_of(first)
        if number is None:
            number = self._open()
            if self.begun:
                self.fetch += 1
                number = self.fetch
        self.begun = True
        single = first.is_floating_point() and first.dim() == 1
        self.marked.add(number)
        self.rows.setdefault(number, None if single else first.shape[0])
        self.facts.operators += 1
        for tensor in given:
            self.value(tensor)

    @guarded
    def took(self, batch: Any) -> None:
        """A data loader gave a batch."""
        tensors = [t for t in tensors_in(batch) if plain(t) and t.dim()]
        if not tensors or self.closed:
            return
        self.ran = True
        number = self._open()
        self.marked.add(number)
        if torch.is_grad_enabled():
            self.given.add(number)
        self.rows[number] = tensors[0].shape[0]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.fetched[storage._cdata] = (weakly(storage), number, tuple(tensor.shape[1:]))

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
        self._compare("gradient")
        self._compare("parameter")
        self._compare("tensor")
        number = self.number_of(optimizer)
        own, found = params_of(optimizer), dict[str, Gradient]()
        for parameter in own:
            if parameter.grad is not None and not plain(parameter.grad):
                self.lose("a gradient is no plain tensor")
            elif parameter.grad is not None:
                found[self.name(parameter)] = Gradient(self.name(parameter), self.combination(parameter.grad))
        update = RecordedStep(user_location(), found, passes=self.passes, begun_with=self.begun_with)
        update.optimizer, update.since, update.until = number, self.since, len(self.runs)
        update.window, update.part = self.window_of(), self.parts
        update.order = tuple(self.name(parameter) for parameter in own)
        update.leaves = {term for p in own for part in self.value(p).parts for term in part}
        self.facts.updates.append(update)
        self.stepping, self.passes, self.begun_with, self.applied_of = True, 0, {}, len(self.used)

    @guarded
    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters are new leaves."""
        self.steps -= 1
        if self.closed or not self.stepping or self.steps:
            return
        self.stepping = False
        for parameter in params_of(optimizer):
            leaf = self.terms.make("state", (self.name(parameter), len(self.facts.updates)), (), tuple(parameter.shape))
            self.memory.write(parameter, shared(self.terms.of(leaf)))
        for held in list(optimizer.state.values()):
            for one in held.values() if isinstance(held, dict) else ():
                if isinstance(one, torch.Tensor):
                    self.memory.write(one, shared(self.terms.of(self._fresh("state", tuple(one.shape)))))
        self._look("parameter")

    @guarded
    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        if self.closed or not self.awake or self.inside:
            self.inside += 1
            return
        if self.stepping or get_ident() != self.thread:
            self.lose("a backward pass runs inside an optimizer step, or in a thread of its own")
        self._compare("gradient")
        self._compare("batch")
        self._reachable()
        super().begin(roots)
        if self.passes == 1:
            steps = len(self.facts.updates)
            self.later[steps] = self.later.get(steps) or next(iter(self.begun_with), "")
        tensors = [t for t in tensors_in(roots) if isinstance(t, torch.Tensor)]
        run = BackwardPass(self.location(), [self.combination(t) for t in tensors if t.numel() == 1])
        seeds = tensors_in(rest[0]) if rest else []
        one = self.terms.of(self.terms.one)
        run.seeded = any(t.numel() != 1 for t in tensors) or any(self.combination(seed) != one for seed in seeds)
        self.runs.append(run)
        self._before = {self.name(p): self._gradient(p) for p in self.kept}
        self.inside += 1

    @guarded
    def ended(self, found: Any) -> None:
        """A backward pass has ended: what it added to each gradient, or returned."""
        self.inside -= 1
        if self.closed or not self.awake or self.inside or not self.runs:
            return
        run = self.runs[-1]
        if found is not None and any(isinstance(one, torch.Tensor) for one in found):
            run.returned = True
            for at, one in enumerate(found):
                if isinstance(one, torch.Tensor):
                    run.gains[f"returned {at}"] = self.combination(one)
        for parameter in self.kept:
            name = self.name(parameter)
            gain = plus(self._gradient(parameter), self._before.get(name, {}), -UNIT)
            if gain:
                run.gains[name] = gain
                if id(parameter) not in self.reaching:
                    self.overwritten = self.overwritten or self.location()
        self.arrived |= {self.terms.bare(term)[0] for gain in run.gains.values() for term in gain}
        self.ran = True
        self._look("gradient")

    def emptied(self) -> None:
        """A gradient was zeroed, or taken away."""
        done = self.facts.updates[-1] if self.facts.updates else None
        if self.runs and not self.inside and not (isinstance(done, RecordedStep) and done.until == len(self.runs)):
            self.runs[-1].emptied = self.runs[-1].emptied or user_location()

    def _gradient(self, parameter: torch.Tensor) -> Combination:
        grad = parameter.grad if parameter.is_leaf else None
        return {} if grad is None or not plain(grad) else self.combination(grad)

    def broke(self) -> None:
        """A backward pass ended with an exception."""
        self.inside -= 1
        if self.awake and not self.closed and not self.inside:
            self.lose("a backward pass ended with an exception")

    # Writes that are no operators

    def _look(self, kind: str) -> None:
        """Keep what the parameters, or the gradients, hold."""
        for parameter in self.kept:
            tensor = parameter if kind == "parameter" else parameter.grad if parameter.is_leaf else None
            if tensor is not None and plain(tensor):
                self.seen.keep(f"{kind} {self.name(parameter)}", tensor, self.value(tensor))

    def _compare(self, kind: str) -> None:
        """What no operator wrote has to hold what it held."""
        for name, _ in self.seen.changed(kind, self.memory.read):
            self.lose(f"the {name} was changed by something that is no operator")

    def _reachable(self) -> None:
        """While a backward pass runs nobody else may write into a gradient, nor may two of them be one."""
        taken: dict[int, int] = {}
        for grad in sorted(self._gradients(), key=lambda one: one.storage_offset()):
            storage, begin = grad.untyped_storage()._cdata, int(grad.storage_offset())
            if self.escapes.reach(grad):
                self.lose("something else can reach the memory of a gradient while a backward pass runs")
            if begin < taken.get(storage, 0):
                self.lose("two parameters share the memory of their gradients")
            taken[storage] = begin + grad.numel()

    def close(self) -> None:
        """Nothing more is followed."""
        self.closed = True
        self.seen.clear()

    @guarded
    def go_on(self, own: Iterable[torch.Tensor]) -> None:
        """Follow again, after windows that were not: what tensors hold is not known, and data are met anew.

        `own`: parameters of the optimizers. A gradient of which every element is zero is none.
        """
        self.parts, self.since = self.parts + 1, len(self.runs)
        self._forget()
        for sample in list(self.used)[self.applied_of :]:
            del self.used[sample]  # of a window that is not recorded
        self.fetched.clear()
        self.met.forget()
        self.closed, self.awake, self.stepping, self.begun, self.ran = False, True, False, False, False
        self.fetch, self.inside, self.passes, self.begun_with, self._before = self.fetch + 1, 0, 0, {}, {}
        for p in {id(p): p for p in (*self.kept, *own)}.values():
            key = (self.name(p), f"of part {self.parts}")
            self.memory.write(p, shared(self.terms.of(self.terms.make("state", key, (), tuple(p.shape)))))
            if p.is_leaf and p.grad is not None and plain(p.grad):
                with torch.no_grad(), _disable_current_modes():
                    left = bool(torch.count_nonzero(p.grad))
                self.memory.write(p.grad, self._strange(tuple(p.grad.shape)) if left else NOUGHT)
        self._look("parameter")

    def _forget(self) -> None:
        """What tensors that were followed hold now is not known. A number that was made of no sample is read anew."""
        before, self.memory = self.memory, Memory(self.laws)
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


def alone() -> bool:
    """Whether no other rank trains: one that tries an operator by itself could wait for the others for ever."""
    return not (dist.is_available() and dist.is_initialized())


def blocks(rows: int) -> int:
    """In how many blocks the rows of a micro-batch are followed."""
    if rows <= UNITS:
        return max(rows, 1)
    return next((n for n in range(UNITS, UNITS // 4, -1) if rows % n == 0), rows)
