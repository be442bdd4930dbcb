"""The two runs of a function, by micro-batches and by the full batch, with numbers or without.

Both runs share one store of terms. The gradient of a window is proved equal to the full batch's where both are one
combination: then they are equal for all real parameters, data and draws. An optimizer step makes what it wrote a new
leaf, which is named by its definition: two runs have one leaf only where they wrote the same.

A run with numbers (`Real`) takes the path that its numbers lead to. Random numbers of the second run are those that the
first one drew for the same leaf, so that the numbers of both runs can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from gradproof.shadow.follow.engine import Engine
from gradproof.shadow.follow.facts import SAMPLED, Hints, Update, largest, sampled
from gradproof.shadow.follow.group import APART, Collectives, Exchange
from gradproof.shadow.follow.interpreter import COUNTING, LOOKUPS, MOST, Call, rows_of, within
from gradproof.shadow.follow.laws import RULES
from gradproof.shadow.follow.loop_events import EMPTIED, READ, LoopEvents
from gradproof.shadow.follow.memory import MOVED
from gradproof.shadow.follow.terms import COMPUTED, UNIT, Combination, Shape, Terms, plus
from gradproof.shadow.follow.unseen import (
    WAYS_OUT,
    NoNumbers,
    by_a_loader,
    call_site,
    digest,
    generator_state,
    of_an_object,
    reads,
)
from gradproof.shadow.follow.values import Value, number
from gradproof.shadow.locations import Location, by_torch, initialising, user_location
from gradproof.shadow.ops.schema import DEVICE, Forms, Spec, read_by, tensors_in
from gradproof.shadow.tape.calls import params_of, states
from gradproof.shadow.tape.checksums import inside
from gradproof.shadow.tape.run import Run

KEPT = ("parameter", "gradient", "tensor", "state")
"""What is compared, for writes that are no operators."""


class Called(Engine):  # type: ignore[no-untyped-call]
    """An engine for a function that is called for each of two runs.

    `rows`: samples of a micro-batch; `samples`: of the run. The first axis of a data tensor that has as many rows as
    one of them is the axis of samples; rows of one line are numbered in the order in which they are
    made. What that calls a sample is a name for arbitrary numbers: a wrong guess makes no false proof. Where it costs
    one, the runs are made again with `hints.rows`: every first axis has samples, of data made by no draw as well, but
    for what all samples use alike (`followed.again`).
    """

    constants = False
    """Whether a tensor that has no rows of samples is a constant: class weights, lists of indices, means of images."""

    def __init__(self, terms: Terms, run: Run, every: int, number: int, hints: Hints) -> None:
        super().__init__(terms, every, number)
        self.rows, self.samples, self.hints = run.micro_batch_size, run.samples, hints
        self.most = run.effective_batch_size if run.tables else math.inf
        self.world = 1
        self.contents: set[str] = set()
        """What the float rows of data from outside are called."""
        self.axes: dict[str, list[int | None]] = {}
        self.widths: set[int] = set()
        self.fixed: dict[str, bool] = {}
        """Of tensors from outside, by what they hold: whether it was taken for a constant."""
        self.tables: dict[str, list[frozenset[int]]] = {}  # leaves of what has more rows than a window, by its hint
        self.looked_up: set[str] = set()  # of these, what an embedding looked rows up in
        self.laws.integers = hints.integers
        self.events = LoopEvents(self)
        self.pending: Update | None = None
        self.written_by_hand: dict[int, tuple[torch.Tensor, Combination]] = {}

    # Steps without an optimizer

    def put(self, tensor: torch.Tensor, value: Value) -> None:
        """A tensor holds a value now."""
        value = self._of_all_data(tensor, value) if self.tables else value
        alone = not self.stepping and not self.in_backward
        made = {s for part in value.parts for s in self.terms.common(part)} if alone else set()
        scalars = made - self.facts.scaled.keys()
        if scalars and tensor.is_floating_point() and self.writes_gradient([tensor]):
            self.facts.scaled |= dict.fromkeys(scalars, self.location())
        if alone and self.hints.by_hand and not initialising() and self._by_hand(tensor):
            self.memory.write(tensor, value)
        else:
            super().put(tensor, value)

    def _of_all_data(self, tensor: torch.Tensor, value: Value) -> Value:
        """Numbers that are made of all rows of tables, and of no parameter, are one constant: a mean of all data.

        It is named by its definition, so that two runs have one constant only where they computed the same.
        """
        (part, *more), terms, shape = value.parts, self.terms, tuple(tensor.shape)
        count = tensor.numel() == 1 and not tensor.is_floating_point()
        if count or more or not value.shared or not terms.plain(part) or len(terms.samples(part)) <= self.most:
            return value
        made, whole = {*terms.found(part, ("data",))}, [rows for met in self.tables.values() for rows in met]
        if made != set[int]().union(*(rows for rows in whole if rows <= made)):
            return value
        self.facts.fixed.setdefault(self.location())
        return self.leaf(COMPUTED[terms.counting(part)], (terms.order(terms.named(part, shape)),), shape)

    def several(self, samples: set[int]) -> bool:
        """Whether samples, which may be taken in any order, are more than a micro-batch has."""
        return len(samples) > self.every

    def _by_hand(self, tensor: torch.Tensor) -> bool:
        """Whether the function writes a parameter itself.

        What it adds is the gradient, where `.grad` has none.
        """
        storage, passes = tensor.untyped_storage()._cdata, self.all_passes - self.last.get(0, 0)
        parameter = next((p for p in self.declared.values() if p.untyped_storage()._cdata == storage), None)
        if self.pending is None and parameter is not None and passes:
            self.pending = Update(user_location(), {}, passes=passes, begun_with=self.begun_with)
            self.passes, self.begun_with, self.last[0] = 0, {}, self.all_passes
        if self.pending is not None and parameter is not None and id(parameter) not in self.written_by_hand:
            self.written_by_hand[id(parameter)] = (parameter, self.combination(parameter))
            self.pending.gradients |= self.gradients([parameter])
            self.pending.numbers |= self.numbers([parameter])
        return parameter is not None

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments. A parameter that a forward pass reads has been stepped."""
        forward = self.pending is not None and torch.is_grad_enabled() and spec.base != "aten.detach"
        if forward and any(t.requires_grad and t.is_leaf for t in tensors_in((args, kwargs))):
            self.stepped_by_hand()
        return super().before(spec, args, kwargs)

    def stepped_by_hand(self) -> None:
        """The parameters that the function wrote itself are new leaves."""
        update, own, self.pending, self.written_by_hand = self.pending, self.written_by_hand, None, {}
        if update is None:
            return
        written = [parameter for parameter, _ in own.values()]
        for parameter, before in own.values():
            added = plus(self.combination(parameter), before, -UNIT)
            update.gradients.setdefault(self.name(parameter), added)
        update.order = tuple(map(self.name, written))
        self.facts.updates.append(update)
        copies = [self.memory.alike(self.value(parameter)) for parameter in written]
        self.applied(update, written)
        for parameter, regions in zip(written, copies, strict=True):
            for held, region in regions:
                region.value = self.value(parameter)
                held.views.clear()

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step, by its learning rates; one without a number is NaN."""
        super().before_step(optimizer)
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
        unknown = () if self.constants else torch.Tensor
        self.facts.updates[-1].rates = [math.nan if isinstance(rate, unknown) else float(rate) for rate in rates]

    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        self.stepped_by_hand()
        super().begin(roots, *rest)

    def end(self) -> None:
        """The function has returned."""
        self.stepped_by_hand()
        super().end()

    def source(self, tensor: torch.Tensor, within: tuple[Any, Any], real: torch.Tensor | None = None) -> Value:
        """Data: rows of samples, of a `real` tensor by content. Flattened labels have several rows a sample."""
        shape, site = tuple(tensor.shape), call_site()
        labels = real is not None and len(shape) == 1 and not real.is_floating_point() and self.running not in LOOKUPS
        tables = (rows for rows in shape[:1] if rows > self.most and not labels)
        whole, item = (self.samples, self.samples * self.world, *tables), self.hints.rows and self.running == "stack"
        sizes = {*whole, self.rows, self.rows * self.world}
        fits = {self.rows, *range(2, MOST + 1)} if self.hints.rows and not labels else sizes
        axis = next((i for i, size in enumerate(shape[:2]) if size in fits and not item), None)
        if real is None and site in self.hints.common:
            self.facts.fixed |= {self.location(): None} if shape[:1] > (self.most,) else {}
            return self._shared(site + self.drawing, shape)
        if real is None:
            self.axes.setdefault(site, []).append(axis)
        self.widths |= {shape[1]} if axis == 0 and len(shape) > 1 and shape[0] == self.rows else set()
        count, left = divmod(shape[0] if labels else 0, self.rows)
        flat = count > 0 and not left and not item and (axis is None or count in self.widths)
        axis, each = (0, count) if flat else (axis, 1)
        rows = 1 if axis is None else shape[axis] // each
        size = shape if axis is None else (*shape[:axis], each, *shape[axis + 1 :])
        own = f"{site} {size} {tensor.dtype}{self.drawing}"
        turn, first = self.made[own, 0], 0 if axis is not None and rows in whole else self.made[own, 0]
        self.made[own, 0] += rows
        own, before = self.named(own, turn, real is not None)
        line = site.rpartition(" ")[0]
        self.facts.sources[line] = max(self.facts.sources.get(line, 0), first + rows)
        self.facts.there = max(self.facts.there, first + max([rows, *shape[:1]]) if real is None else math.inf)
        if real is not None and self.constants:
            name = f"{real.dtype} {digest(real)}"
            constant = ("constant", (name,), (), shape)
            taken = constant in self.terms.known or name in self.hints.fixed  # by the other run, for no rows of samples
            self.fixed[name] = (axis is None and not item) or taken
            if self.fixed[name]:
                self.facts.fixed |= {self.location(): None} if shape[:1] > (self.most,) else {}
                return self.leaf("constant", (name,), shape)
        names = [(own, turn + i) for i in range(rows)] if real is None else self._contents(real, axis, rows, each)
        made = self.data([(*name, within) for name in names], before + first, size, axis)
        if rows > (1 if self.hints.rows else self.most):
            key = site if real is None else f"{real.dtype} {digest(real)}"
            self.tables.setdefault(key, []).append(frozenset(leaf for part in made.parts for leaf in part))
        return made

    def named(self, site: str, turn: int, outside: bool) -> tuple[str, int]:
        """What data of a line are called, and from which number on their samples are counted."""
        return site, 0

    def _contents(self, real: torch.Tensor, axis: int | None, rows: int, each: int) -> list[tuple[str, int]]:
        """The digest of each row of a real tensor, and how many rows of that content were met before."""
        found = []
        for i in range(rows):
            with _disable_current_modes():
                piece = real.detach() if axis is None else real.detach().narrow(axis, i * each, each)
                distinct = real.is_floating_point() and len(torch.unique(piece.flatten()[:SAMPLED])) > 2
            name, _ = self.named(f"{real.dtype} {tuple(piece.shape)} {digest(piece)}", 0, True)
            found.append((name, self.made[name, 0]))
            self.contents |= {name} if distinct else set()
            if distinct and self.made[name, 0]:
                self.facts.repeated = self.facts.repeated or self.location()
            self.made[name, 0] += 1
        return found

    def held(self, tensor: torch.Tensor, made: torch.Tensor) -> Value:
        """What a real tensor stands for: a number, or data within the bounds of what it holds."""
        with _disable_current_modes():
            plain = tensor.item() if tensor.dim() == 0 else None
        if plain is not None:
            found = RULES["fill"](self.laws, Call("fill", (made, plain), {}, (), [], [], [], [made]))
            assert found is not None
            return found[0]
        low, _ = within(tensor)
        return self.source(made, (0, math.inf) if low is not None and low >= 0 else (None, None), tensor)


class Real(Called):  # type: ignore[no-untyped-call]
    """An engine for tensors with numbers. `drawn`: what the first run drew, by the leaf that it is."""

    constants = True
    numbers_of = staticmethod(sampled)

    def __init__(self, drawn: dict[int, torch.Tensor], exchange: Exchange, *given: Any) -> None:
        super().__init__(*given)
        self.drawn, self.group = drawn, exchange.group
        self.world = len(self.group.everyone)
        self.mark = (self.run, self.group.rank) if self.group.size > 1 else self.run
        self.collectives = Collectives(exchange, self)
        self.assumed.tries = lambda: self.group.size == 1
        self.laws.looked = self._indices
        self.state, self.states, self.draws = "", set[tuple[Any, ...]](), dict[tuple[str, int], str]()
        self.repeats, self.peak, self.top = False, 0.0, 0.0
        self.late: Location | None = None
        self.begun: dict[str, torch.Tensor] = {}

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The engine's own use of tensors, which is not the function's."""
        self.busy += 1
        try:
            with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch(), torch.no_grad():
                yield
        finally:
            self.busy -= 1

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments."""
        self.running, self.grads = spec.short, torch.is_grad_enabled()
        with self.aside(), torch.set_grad_enabled(self.grads):
            values = super().before(spec, args, kwargs)
        if spec.short == "embedding":
            leaves = {term for part in values[id(args[0])].parts for term in part}
            self.looked_up |= {key for key, met in self.tables.items() if any(rows & leaves for rows in met)}
        return values

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results."""
        with self.aside():
            super().after(func, spec, args, kwargs, values, out)
            if spec.short in ("nonzero", "masked_select"):
                by = [part for value in values.values() for part in value.parts]
                number = all(one.numel() == 1 for one in tensors_in((args, kwargs)))  # of several samples, as a loss
                if not (number and len(self.terms.samples(term for part in by for term in part)) > 1):
                    self.laws.chooses(by, len(out))
            if self.in_backward:
                self.events.hooked(spec, args, kwargs, out)
            elif not self.stepping or self._in_closure():
                self.events.operated(spec, args, kwargs, out, values)
                late = self.stepping and not self.passes and spec.short not in EMPTIED
                if late and not by_torch() and self.writes_gradient(spec.targets(args, kwargs)):
                    self.late = self.late or self.location()  # other numbers than the step was handed

    def _in_closure(self) -> bool:
        """Whether a step runs the function's own code."""
        location = user_location()
        return location != self.facts.updates[-1].location and location.function != "step"

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator; a number that is read is noted. Data that are only moved are not met yet."""
        if self.busy:
            return func(*args, **kwargs)
        space, base = spec.base.split(".", 1)
        tensors = tensors_in((args, kwargs))
        if str(kwargs.get("device")) == "meta" or any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)  # shapes alone, and no training
        if space in ("c10d", "_c10d_functional"):
            return self._collective(func, spec, base, args, kwargs)
        if any(tensor.layout is not torch.strided for tensor in tensors):
            self.lose("a sparse tensor is computed with")
            return func(*args, **kwargs)
        reads(self, func, spec, args, kwargs)
        if base in MOVED and tensors and not any(self.knows(t) for t in tensors):
            return func(*args, **kwargs)
        if spec.written and self.left and any(t.untyped_storage()._cdata in self.left for t in tensors):
            with self.aside():
                self.compare(*KEPT)
        if spec.random:
            self._before_draw(spec, args, kwargs)
        return super().operate(func, spec, args, kwargs)

    def _collective(self, func: Any, spec: Spec, base: str, args: Any, kwargs: Any) -> Any:
        """Run a collective of torch.distributed, with what the other ranks have."""
        with self.aside():
            settle = self.collectives.settle(base, (*args, *kwargs.values()))
        out = func(*args, **kwargs)
        with self.aside():
            settle(out)
            if not self.in_backward:
                self.events.operated(spec, args, kwargs, out, {})
        return out

    def _before_draw(self, spec: Spec, args: Any, kwargs: Any) -> None:
        """Whether a generator stands where it stood at this line before: it draws the same numbers again."""
        with self.aside():
            device, self.state = generator_state(args, kwargs)
            key = (spec.base, str(self.location()), device, self.state)
        self.repeats = key in self.states
        self.states.add(key)

    def read_whole(self, how: str, tensor: torch.Tensor) -> None:
        """Python reads numbers of a tensor."""
        if tensor.layout is torch.strided and not inside(tensor):
            with self.aside():
                self.note(how, tensor)
                if how == "tolist":
                    self.events.read_out(tensor)
                    self._escape(self.value(tensor))

    def _escape(self, value: Value) -> bool:
        """Whether Python got at numbers of a gradient or a parameter."""
        found = any(self.terms.trained[term] for part in value.parts for term in part)
        self.facts.escaped = self.facts.escaped or (self.location() if found else None)
        return found

    def note(self, how: str, tensor: torch.Tensor) -> None:
        """A number of a tensor became a plain number of Python."""
        if of_an_object():
            return
        found = self.value(tensor)
        value, leaves = self.laws.whole(found, tuple(tensor.shape)), [term for part in found.parts for term in part]
        if self.laws.constant(value):
            return
        if by_a_loader():
            self.terms.orders_by(leaves)
        self.facts.reads.append((self.location(), how))
        self.facts.free, self.facts.gated = True, self.facts.gated or self._of_gradients(value)
        counts = self.terms.counting(value) or not (tensor.is_floating_point() or self.terms.ordering(leaves))
        whole = counts and (tensor.dtype is not torch.bool or how in ("tolist", *WAYS_OUT))
        if whole and self.terms.plain(value) and how not in ("equal", "allclose", "is_nonzero", "bincount"):
            self.facts.counted = self.facts.counted or self.location()

    def _of_gradients(self, value: Combination) -> bool:
        """Whether a number is made of parameters after a backward pass of the window, and is no loss."""
        roots = {self.terms.bare(term)[0] for own in self.facts.roots.values() for root in own for term in root}
        other = any(self.terms.trained[term] and self.terms.bare(term)[0] not in roots for term in value)
        return bool(self.passes) and other

    def _indices(self, tensor: torch.Tensor) -> list[int]:
        """The numbers of a list of indices that names samples."""
        self.facts.reads.append((self.location(), "indices"))
        self.facts.free = True
        with _disable_current_modes():
            return [int(number) for number in tensor.tolist()] if tensor.dim() == 1 else []

    def _judged(self, func: Any, spec: Spec, call: Call) -> list[Value]:
        made = call.out[0] if call.out else None
        if not self.hints.rows or call.name not in COUNTING or made is None or not made.dim() or initialising():
            return super()._judged(func, spec, call)
        return [self.source(made, within(made), made)]

    # Random numbers

    def named(self, site: str, turn: int, outside: bool) -> tuple[str, int]:
        """What data of a line are called: a rank's own are called by it, and counted apart."""
        if self.group.size == 1:
            return site, 0
        if not outside:
            self.draws[site, turn] = self.state
        own = outside or site in self.hints.apart
        return (f"rank {self.group.rank}: {site}", (self.group.rank + 1) * APART) if own else (site, 0)

    def _shared(self, kind: str, shape: Shape) -> Value:
        return super()._shared(self.named(kind, self.made[kind, 0], False)[0], shape)

    def _unknown(self, tensor: torch.Tensor) -> Value:
        if self.memory.of(tensor).regions or initialising():
            return super()._unknown(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            made = self.leaf("outside", (digest(tensor),), tuple(tensor.shape))
        else:
            self.memory.of(tensor).data = True
            made = self.held(tensor, tensor)
            self.keep("tensor", tensor, made)
        self.memory.alias(tensor, made)
        return made

    def _drawn_like(self, call: Call, written: bool = True) -> list[Value]:
        found = super()._drawn_like(call, written)
        for made, value in zip(call.out, found, strict=True):
            if made is not None:
                self._again(made, value)
        return found

    def _again(self, made: torch.Tensor, value: Value) -> None:
        """The same leaf has the same numbers in both runs."""
        with torch.no_grad(), _disable_current_modes():
            whole = made.detach()
            if self.repeats:
                self.facts.again |= {leaf for part in value.parts for leaf in part}
            for at, part in enumerate(value.parts):
                ((leaf, _),) = part.items()
                piece = rows_of(whole, value, at)
                if leaf in self.drawn and self.drawn[leaf].numel() == piece.numel():
                    piece.copy_(self.drawn[leaf].view_as(piece))
                else:
                    self.drawn[leaf] = piece.clone()

    def _dropped(self, call: Call) -> list[Value]:
        found = super()._dropped(call)
        made, mask = call.out
        if made is not None and mask is not None and float(call.args[1]) < 1:
            with torch.no_grad(), _disable_current_modes():
                made.copy_(call.tensors[0] * mask / (1 - float(call.args[1])))
        return found

    def exported(self, tensor: torch.Tensor, found: Any, foreign: bool) -> None:
        """Python got at the memory of a tensor: what it holds has to stay."""
        with self.aside():
            value, self.left[tensor.untyped_storage()._cdata] = self.value(tensor), self.location()
            super().exported(tensor, found, foreign)
            if self._escape(value):
                self.events.add(READ)
            self.keep("tensor", tensor, value)

    def look(self, *kinds: str) -> None:
        """Keep what the parameters, their gradients and the optimizers hold."""
        self.events.held()
        super().look(*kinds)
        for one in (one for optimizer in self.optimizers for one in states(optimizer)):
            if one.layout is torch.strided and (value := self.memory.read(one)) is not None:
                self.seen.keep(f"state {id(one)}", one, value)

    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        with self.aside():
            self.compare(*KEPT)
            self.late = None
            if not self.passes:
                self.begun = {self.name(p): sampled(p.grad) for p in self.kept if p.is_leaf and p.grad is not None}
            super().begin(roots, *rest)
            own = [root for root in tensors_in(roots) if root.numel() == 1 and not inside(root)]
            self.events.began(own[0] if own else None)
            for root in own:
                self.facts.passed[self.window] += float(root)

    def ended(self, found: Any) -> None:
        """A backward pass has ended."""
        with self.aside():
            super().ended(found)
            top = largest([sampled(grad) for grad in self.present()])
            if not self.stepping:
                self.top, self.peak = top, max(top, self.peak)
            else:
                update = self.facts.updates[-1]
                own = params_of(self.optimizers[update.optimizer])
                self.events.stepping(own)
                update.weights = {self.name(p): sampled(p) for p in own}
                update.peak = max(top, update.peak)
            self.look("parameter", "gradient")

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        with self.aside():
            self.group.keep()
            self.compare(*KEPT)
            super().before_step(optimizer)
            own = params_of(optimizer)
            self.events.stepping(own)
            update = self.facts.updates[-1]
            self.peak *= largest([*update.numbers.values()]) / self.top if self.top else 1.0
            self._stepping(update, own)

    def _stepping(self, update: Update, own: list[torch.Tensor]) -> None:
        """Keep the numbers of a step: the parameters before it, and what was summed."""
        update.begun, update.weights = self.begun, {self.name(p): sampled(p) for p in own}
        update.peak, self.peak, self.top = self.peak, 0.0, 0.0

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        with self.aside():
            if self.late is not None:
                self.lose("a gradient is written after the optimizer was called, and before it steps", self.late)
            super().after_step(optimizer)
            self.facts.updates[-1].moved = {self.name(p): sampled(p) for p in params_of(optimizer)}
            self.look("parameter", "gradient")

    def stepped_by_hand(self) -> None:
        """The parameters that the function wrote itself are new leaves."""
        if self.pending is not None:
            self._stepping(self.pending, [parameter for parameter, _ in self.written_by_hand.values()])
            self.pending.moved = self.pending.weights
        super().stepped_by_hand()

    def end(self) -> None:
        """The function has returned."""
        with self.aside():
            self.compare(*KEPT)
            super().end()
            every = (group for one in self.optimizers for group in one.param_groups)
            self.facts.last_rates = [float(group["lr"]) for group in every if "lr" in group]
            self.facts.last = {self.name(p): sampled(p) for p in self.declared.values()}


# -- A run without numbers: the function is called on fake tensors, of any size.
class Fake(Called):  # type: ignore[no-untyped-call]
    """An engine for tensors without numbers. Nothing can reach a tensor but through an operator."""

    def __init__(self, mode: FakeTensorMode, *given: Any) -> None:
        super().__init__(*given)
        self.mode, self.forms = mode, Forms(mode)
        self.outside: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator; real tensors, which the function took from outside, become data."""
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            args, kwargs = tree_map_only(torch.Tensor, self._outside, (args, kwargs))
        if read_by(func, args):
            return self.read_whole(spec.short, tensors_in(args)[0])
        self.grads = torch.is_grad_enabled()
        out = super().operate(func, spec, args, kwargs)
        if self.passes and not self.stepping and not self.in_backward:
            self.events.keeps(spec.short, tensors_in((args, kwargs)), spec.targets(args, kwargs) or tensors_in(out))
        return out

    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        super().begin(roots, *rest)
        self.events.held()
        self.events.began(None)

    def read_whole(self, how: str, tensor: torch.Tensor) -> Any:
        """A number that the laws know; there is no other."""
        found = number(self.laws, self.value(tensor)) if how == "_local_scalar_dense" else None
        if found is not None:
            kind = tensor.dtype
            return float(found) if kind.is_floating_point else bool(found) if kind is torch.bool else int(found)
        self.facts.reads.append((self.location(), how))
        raise NoNumbers(f"{how} needs a number, and in a run without numbers there is none")

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor, which the function took from outside, as a fake one: it is data."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.outside:
            made: torch.Tensor = self.mode.from_tensor(tensor)
            self.outside[id(tensor)] = (tensor, made, digest(tensor))
            self.memory.write(made, self.held(tensor, made))
        _, made, held = self.outside[id(tensor)]
        if digest(tensor) != held:
            self.lose("a tensor that was made outside of the function was changed by something that is no operator")
        return made
