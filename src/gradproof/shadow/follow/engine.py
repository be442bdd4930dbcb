"""Follows what each tensor of a training function is made of: the laws give the value of each operator's results.

Every operator passes `__torch_dispatch__`. What a tensor is that no operator made, and what a number is that Python
reads, differs between a run without numbers (`fake`) and a real one (`watched`).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.shadow.follow.facts import Kept, RunFacts, Update
from gradproof.shadow.follow.interpreter import GENERATORS, Call, Interpreter, Law, bounds, by_numbers, settings
from gradproof.shadow.follow.laws import BOTH, LAWS, RULES, Assumed, crossed, pointwise
from gradproof.shadow.follow.memory import Geometry, Memory, Unchanged, geometry_of, weakly
from gradproof.shadow.follow.rules import arithmetic as arithmetic, lookups as lookups, losses as losses
from gradproof.shadow.follow.terms import NOBODY, NORMS, SEVERAL, Combination, Shape, Terms, bared
from gradproof.shadow.follow.values import NOUGHT, Value, part_shape, shared
from gradproof.shadow.locations import NOWHERE, Location, initialising, saved, user_location
from gradproof.shadow.ops.schema import Forms, Spec, spec_of, tensors_in
from gradproof.shadow.tape.calls import Nested, params_of, states
from gradproof.shadow.tape.checksums import inside, plain

NARROW = frozenset(
    kind for kind in vars(torch).values()
    if isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex) and torch.finfo(kind).bits < 32
)  # fmt: skip
SHORT = frozenset({torch.int8, torch.uint8, torch.int16, torch.qint8, torch.quint8})
"""Whole numbers of fewer than 32 bits: a sum of gradients in them is one of fixed-point numbers."""
CASTS = frozenset({"_to_copy", "copy_", "copy", "to", "clone", "detach", "view", "alias"})
DEPTH = 100
UPDATE = "aten._amp_update_scale_"
UNSCALE = "aten._amp_foreach_non_finite_check_and_unscale_"


class Engine(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Follows values through the operators of a training function.

    `every`: the number of samples by which two micro-batches are distinguished. `run`: the number of the run.
    """

    forms: Forms | None = None
    """What makes the results of operators on tensors without numbers."""
    numbers_of: Callable[[torch.Tensor], Any] = staticmethod(lambda _: None)
    """The numbers of a tensor, where there are any."""

    def __init__(self, terms: Terms, every: int, run: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.terms, self.every, self.run = terms, every, run
        self.mark: Any = run
        self.laws = Interpreter(terms)
        self.memory = Memory(self.laws)
        self.memory.bytes_read = lambda: self.lose("the bytes of a tensor are read as another type")
        self.facts = RunFacts()
        self.assumed = Assumed(self.lose)
        self.facts.assumed = self.assumed.names
        self.busy, self.depth = 0, Nested()  # with tensors of its own; calls of modules, and of functions like them
        self.made: Counter[tuple[str, int]] = Counter()
        self.names, self.buffers, self.parents = dict[int, str](), dict[int, str](), dict[int, tuple[Any, str]]()
        self.declared, self.kept = dict[int, torch.Tensor](), list[torch.Tensor]()
        self.calls, self.afterwards = list[Location](), list[Callable[[], None]]()
        self.handed: tuple[int, set[int]] = (0, set())
        self.running = self.drawing = ""
        self.grads, self.stepping, self.closures = True, False, False
        self.begun_with: Mapping[str, Combination] = {}
        self.passes = self.all_passes = self.scales = self.exports = 0
        self.seen, self.left = Unchanged(), dict[int, Location]()
        self.optimizers, self.last = list[Any](), dict[int, int]()
        self.held_buffers: dict[tuple[int, str], Callable[[], Any]] = {}
        self.updated: dict[tuple[int, Geometry], Kept] = {}
        self.written: list[Kept] = []

    # Operators

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while an engine runs, so that no call needs to be kept from Dynamo."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        spec = spec_of(func)
        if spec is None:
            self.lose(f"{func} runs a function of its own")
            return func(*args, **kwargs)
        if spec.composite:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return self.operate(func, spec, args, kwargs)

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator, and work out the values of what it makes and writes."""
        before = self.before(spec, args, kwargs)
        out = func(*args, **kwargs) if self.forms is None else self.forms.call(func, spec, args, kwargs)
        self.after(func, spec, args, kwargs, before, out)
        return out

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments, by the identity of the tensor."""
        return {id(t): self.value(t) for t in spec.given(args, kwargs)}

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results. An operator on lists of tensors is the same operator on each."""
        base = self.running = spec.short
        if spec.moves:
            return  # memory knows what lies where the tensor now is
        if spec.base == UNSCALE:
            self._unscaled(args, values)
            return
        if spec.base == UPDATE:
            self.scales += 1  # the n-th scale is one number in both runs
            for at, tensor in enumerate(args[:2]):
                self.memory.write(tensor, self.leaf("constant", ("loss scale", at, self.scales), tuple(tensor.shape)))
            return
        if not base.startswith("_foreach_"):
            results = list(out) if isinstance(out, list | tuple) else [out]
            if any(isinstance(r, torch.Tensor) for r in results) or spec.written:
                self._settle(func, spec, args, kwargs, values, results)
            return
        results = args[0] if spec.written else out
        again = bool(spec.written) and len({one.untyped_storage()._cdata for one in results}) < len(results)
        for at, result in enumerate(results):
            own = tuple(a[at] if isinstance(a, list | tuple) and len(a) == len(results) else a for a in args)
            if again and at:  # it may have been written as a part of the list before
                values = {**values, **{id(t): self.value(t) for t in tensors_in(own)}}
            self._settle(func, spec, own, kwargs, values, [result])

    def aside(self) -> AbstractContextManager[None]:
        """The engine's own use of tensors."""
        return torch.no_grad()

    def _unscaled(self, args: Any, values: dict[int, Value]) -> None:
        """A loss scaler divides gradients by its scale."""
        grads, found, inverse = args
        by, powers = self.facts.unscaled[self.window] = self.laws.scalar(self.combination(inverse))
        self.laws.scales(powers, by, inverse)
        for grad in grads:
            self.put(grad, self.laws.rescaled(values[id(grad)], by, powers))
        self.memory.write(found, self._fresh("found_inf", tuple(found.shape)))

    def _settle(
        self, func: Any, spec: Spec, args: Any, kwargs: Any, known: dict[int, Value], results: list[Any]
    ) -> None:
        """Work out the values of results, and put them where they are."""
        self.facts.operators += 1
        tensors = spec.given(args, kwargs)
        values = [known[id(t)] for t in tensors]
        name = spec.function.removeprefix("_foreach_")
        made = [r if isinstance(r, torch.Tensor) else None for r in results]
        named = tuple([(k, bared(v)) for k, v in sorted(kwargs.items())]) if kwargs else ()
        overload = (str(getattr(func, "_overloadname", "")), named)
        call = Call(
            name, args, kwargs, (*[bared(arg) for arg in args], overload), tensors, values,
            [tuple(t.shape) for t in tensors], made, spec.arguments,
        )  # fmt: skip
        written = spec.targets(args, kwargs) if spec.written else []
        if name == "view" and any(isinstance(arg, torch.dtype) for arg in args):
            self.lose("the bytes of a tensor are read as another type")
        found = self._drawn(spec, call, written) if spec.draws(args, kwargs) else self._judged(func, spec, call)
        if call.coupled and self.facts.coupled is None:
            self.facts.coupled, self.facts.crossed = (name, self.location()), crossed(call)
        for result, value in zip(made, found, strict=False):
            if result is None:
                continue
            if spec.view:
                held = self.memory.read(result) if name in ("as_strided", "_conj") else None
                self.memory.alias(result, value if held is None else held)
            else:
                self.put(result, value)
        for at, target in enumerate(written):
            if "training" in spec.arguments and not spec.named("training", args, kwargs):
                continue
            if not any(target is result for result in made):
                beside = replace(call, name=f"{name} writes", attributes=(at, call.attributes), out=[target])
                self.put(target, self.laws.opaque(beside)[0])
            self._note(target)

    def _judged(self, func: Any, spec: Spec, call: Call) -> list[Value]:
        self.laws.backward = self.in_backward
        rule, law = RULES.get(call.name), LAWS.get(call.name)
        found = None if rule is None else rule(self.laws, call)
        if found is None and law is not None and call.values:
            found = self.laws.apply(law, call)
        if found is None and call.name.startswith(("empty", "new_empty")):
            if call.values and call.shapes[0] == call.out_shape() and not call.values[0].shared:
                found = self.laws.apply(Law(pointwise), replace(call, name="blank", attributes=()))
            return found or [self._fresh("blank", call.out_shape(at)) for at in range(len(call.out))]
        if found is None:
            law = self.assumed.law(func, spec, call)
            found = None if law is None else self.laws.apply(law, call)
        (self.facts.opaque if found is None else self.facts.laws)[call.name] += 1
        return self.laws.opaque(call) if found is None else found

    def _note(self, target: torch.Tensor) -> None:
        """A tensor of a parameter's shape that the user's code writes: an average, or a buffer of its own."""
        if self.stepping or self.in_backward or not target.dim() or not target.is_floating_point() or initialising():
            return
        storage, steps = target.untyped_storage(), len(self.facts.updates)
        key = (storage._cdata, geometry_of(target))
        known = self.updated.get(key)
        if known is None or known.weak.expired():
            known = self.updated[key] = Kept(weakly(storage), user_location(), steps)
            self.written.append(known)
        known.last, known.shape = steps, tuple(target.shape)
        known.value, known.numbers = self.term(target), self.numbers_of(target)

    def end(self) -> None:
        """Note what the parameters held last, and the tensors that the user's code wrote in more than one window."""
        held = {self.name(parameter): parameter for parameter in self.declared.values()}
        for number, optimizer in enumerate(self.optimizers):
            held |= {f"state {at} of optimizer {number}": one for at, one in enumerate(states(optimizer))}
        for at, ((_, name), module) in enumerate(self.held_buffers.items()):
            buffer = getattr(module(), "_buffers", {}).get(name)
            if isinstance(buffer, torch.Tensor) and self.memory.met(buffer):
                held[f"buffer {name} {at}"] = buffer
        self.facts.final = {name: self.term(tensor) for name, tensor in held.items()}
        turns: Counter[str] = Counter()
        for known in self.written:
            if known.last > known.first:
                site = f"{known.location} {known.shape}"
                turns[site] += 1
                self.facts.kept[f"{site} {turns[site]}"] = (known.location, known.value, known.numbers)

    # Random numbers, and other leaves

    @abstractmethod
    def source(self, tensor: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """A tensor of data, which no operator made of others. `within`: the least whole number, and the first above."""

    def leaf(self, operator: str, attributes: tuple[Any, ...], shape: Shape) -> Value:
        """What all samples share, of no other term."""
        return shared(self.terms.of(self.terms.make(operator, attributes, (), shape)))

    def _fresh(self, kind: str, shape: Shape) -> Value:
        """A leaf of which nothing is known: it equals no other, of this run or another."""
        self.made[kind, 0] += 1
        return self.leaf("unknown", (kind, self.mark, self.made[kind, 0]), shape)

    def _shared(self, kind: str, shape: Shape) -> Value:
        self.made[kind, 0] += 1
        return self.leaf("draw", (kind, self.made[kind, 0], (None, None)), shape)

    def _drawn(self, spec: Spec, call: Call, written: list[torch.Tensor]) -> list[Value]:
        """Random numbers: data, numbers of each sample, or numbers that all share."""
        if call.name == "native_dropout":
            return self._dropped(call)
        by, others = by_numbers(call, written), any(isinstance(arg, torch.Tensor) for arg in call.args[1:])
        if call.name not in GENERATORS or others or (by and written):
            self.facts.opaque[call.name] += 1
            return [self._fresh(call.name, call.out_shape(at)) for at in range(len(call.out))]
        drawn = self._drawn_like(call, bool(written))
        if not by:
            return drawn
        pair = replace(
            call, attributes=settings(call), tensors=call.tensors * 2, values=[call.values[0], *drawn],
            shapes=call.shapes * 2, arguments=(),
        )  # fmt: skip
        return self.laws.apply(Law(pointwise), pair)  # a function of these numbers and of noise

    def _drawn_like(self, call: Call, written: bool = True) -> list[Value]:
        found: list[Value] = []
        for at, made in enumerate(call.out):
            shape = call.out_shape(at)
            like = call.values[0] if call.values and call.shapes[0] == shape else NOUGHT
            owners = [{self.terms.owners[term] for term in part} for part in like.parts]
            if not like.shared and all(len(o) == 1 and min(o) >= 0 for o in owners):
                found.append(self._masks(call, like, [o.pop() for o in owners], shape))
            elif written or initialising() or made is None or (like.shared and call.name.endswith("_like")):
                found.append(self._shared(f"random {call.name} {settings(call)}", shape))
            else:
                self.drawing = f" {call.name} {settings(call)}"
                found.append(self.source(made, bounds(call)))
                self.drawing = ""
        return found

    def _masks(self, call: Call, like: Value, owners: list[int], shape: Shape) -> Value:
        """Numbers drawn for each sample: the n-th draw of a line for a sample is one leaf in both runs."""
        site, size = f"{call.name} at {self.location()}", part_shape(like, shape)
        parts = []
        for owner in owners:
            self.made[site, owner + 1] += 1
            key = (site, call.attributes, owner, self.made[site, owner + 1], (None, None))
            parts.append(self.terms.of(self.terms.make("draw", key, (), size, owner)))
        return like.holding(parts)

    def _dropped(self, call: Call) -> list[Value]:
        """Dropout as one operator: a mask is drawn, and the result is the product with it, scaled."""
        keep = self.laws.exact(call.args[1])
        bits = replace(call, out=call.out[1:], name="bernoulli")
        (mask,) = self._drawn_like(bits)
        if keep is None or keep == 1:
            return self.laws.opaque(call)
        pair = replace(
            call, name="mul", attributes=(), values=[call.values[0], mask], shapes=[call.shapes[0]] * 2,
            tensors=[call.tensors[0]] * 2, out=call.out[:1],
        )  # fmt: skip
        return [self.laws.apply(BOTH, pair)[0].scaled(1 / (1 - keep)), mask]

    # Optimizers and backward passes

    @property
    def window(self) -> int:
        """The number of the next optimizer step, or of the one that runs."""
        return len(self.facts.updates) - self.stepping

    @property
    def in_backward(self) -> bool:
        """Whether autograd runs."""
        return torch._C._current_graph_task_id() != -1

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: keep the gradients that it was handed."""
        own, number = params_of(optimizer), self.number_of(optimizer)
        passes = self.all_passes - self.last.get(number, 0)
        update = Update(user_location(), self.gradients(own), passes=passes, begun_with=self.begun_with)
        update.optimizer, update.numbers = number, self.numbers(own)
        update.order = tuple(self.name(parameter) for parameter in own)
        self.facts.updates.append(update)
        self.last[number] = self.all_passes
        self.stepping, self.passes, self.begun_with = True, 0, {}

    def numbers(self, own: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The numbers of gradients, where there are any."""
        pairs = ((self.name(p), self.numbers_of(p.grad)) for p in own if p.grad is not None)
        return {name: found for name, found in pairs if found is not None}

    def gradients(self, own: Iterable[torch.Tensor]) -> dict[str, Combination]:
        """What the gradients of parameters are made of that have one."""
        found: dict[str, Combination] = {}
        for parameter in own:
            if parameter.grad is not None:
                value = self.combination(parameter.grad)
                if not any(self.terms.made_with(scalar, NORMS) for scalar in self.terms.common(value)):
                    value = self.laws.distributed(value)  # else it stays what its norm was made of
                self.memory.alias(parameter.grad, shared(value))
                found[self.name(parameter)] = value
        return found

    def present(self) -> list[torch.Tensor]:
        """The gradients that the parameters have now."""
        return [p.grad for p in self.kept if p.is_leaf and p.grad is not None]

    def writes_gradient(self, written: list[torch.Tensor]) -> bool:
        """Whether one of some tensors lies where a gradient does."""
        own = {grad.untyped_storage()._cdata for grad in self.present()} if written else set()
        return any(tensor.untyped_storage()._cdata in own for tensor in written)

    def number_of(self, optimizer: Any) -> int:
        """Optimizers are numbered as they step first."""
        if all(one is not optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        return next(at for at, one in enumerate(self.optimizers) if one is optimizer)

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: what it wrote are leaves, which stand for their definitions."""
        update, self.stepping = self.facts.updates[-1], False
        update.begun_with, self.passes, self.begun_with = {**self.begun_with, **update.begun_with}, 0, {}
        self.applied(update, params_of(optimizer))
        for one in list(states(optimizer)):
            self.renewed(one)

    def applied(self, update: Update, own: list[torch.Tensor]) -> None:
        """Parameters that were written are new leaves."""
        update.after = {self.name(p): self.renewed(p) for p in own}
        update.leaves = {
            leaf
            for leaf in self.terms.reached(update.after.values())
            if self.terms.operators[leaf] in ("parameter", "state")
        } - {term for p in (*own, *self.declared.values()) for term in self.value(p).parts[0]}

    def renewed(self, tensor: torch.Tensor) -> int:
        """What a step wrote becomes a leaf that belongs to no sample. The number of its definition."""
        defined = self.term(tensor)
        if self.terms.owners[defined] != NOBODY:
            leaf = self.terms.make("state", (), (defined,), tuple(tensor.shape))
            self.memory.write(tensor, shared(self.terms.of(leaf)))
        return defined

    def begin(self, roots: Any, *_: Any) -> None:
        """A backward pass begins."""
        if not self.passes and not (self.stepping and self.facts.updates[-1].passes):
            held = {self.name(p): self.combination(p.grad) for p in self.kept if p.is_leaf and p.grad is not None}
            self.begun_with = {name: value for name, value in held.items() if value}
        self.passes, self.all_passes = self.passes + 1, self.all_passes + 1
        self.facts.line = self.facts.line or self.location()
        for root in (t for t in tensors_in(roots) if t.numel() == 1 and not inside(t)):
            self.facts.roots.setdefault(self.window, []).append(self.combination(root))

    def ended(self, found: Any) -> None:
        """A backward pass has ended. `found`: the gradients that it returned, or None for each that it accumulated.

        A pass inside of an optimizer's step is a closure's: the step applies what it leaves.
        """
        if self.stepping:
            update, self.closures = self.facts.updates[-1], True
            optimizer = self.optimizers[update.optimizer]
            update.passes += self.all_passes - self.last[update.optimizer]
            self.last[update.optimizer] = self.all_passes
            own = params_of(optimizer)
            update.gradients, update.numbers = self.gradients(own), self.numbers(own)

    def broke(self) -> None:
        """A backward pass ended with an exception."""

    # Writes that are no operators

    def look(self, *kinds: str) -> None:
        """Keep what the parameters, or the gradients, hold."""
        for parameter in self.kept:
            for kind in kinds:
                tensor = parameter if kind == "parameter" else parameter.grad if parameter.is_leaf else None
                if tensor is not None and plain(tensor):
                    self.seen.keep(f"{kind} {self.name(parameter)}", tensor, self.value(tensor))

    def compare(self, *kinds: str) -> None:
        """What no operator wrote has to hold what it held."""
        for kind in kinds:
            for name, storage in self.seen.changed(kind, self.memory.read):
                self.lose(f"the {name} was changed by something that is no operator", self.left.get(storage._cdata))

    def keep(self, kind: str, tensor: torch.Tensor, value: Value) -> None:
        """A tensor that something else can reach has to hold what it holds."""
        self.exports += 1
        self.seen.keep(f"{kind} {self.exports}", tensor, value)

    def exported(self, tensor: torch.Tensor, found: Any, foreign: bool) -> None:
        """Python got at the memory of a tensor."""
        self.seen.left(tensor.untyped_storage(), found, foreign)

    def stored(self, storage: torch.UntypedStorage, read: bool) -> None:
        """Python writes a storage by itself, or gets at its numbers: it may `read` them."""
        self.seen.left(storage, None)
        known = self.memory.knows(storage)
        if known and not saved():
            self.lose("the storage of a tensor was written, or given away, by itself")
        elif known or read:  # of a file as well, which the loop may read
            self.facts.reads.append((self.location(), "a storage"))
            self.facts.free = self.facts.gated = True

    def copied(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """deepcopy made a copy of a tensor by its bytes: it holds what the tensor holds."""
        if plain(tensor) and (self.memory.met(tensor) or id(tensor) in self.buffers):
            with self.aside():
                self.memory.write(made, self.value(tensor))

    @abstractmethod
    def read_whole(self, how: str, tensor: torch.Tensor) -> None:
        """Python reads numbers of a tensor, by the function or operator that is called so."""

    # Values

    def data(self, names: Iterable[tuple[Any, ...]], first: int, size: Shape, axis: int | None) -> Value:
        """Leaves of data, by what each is called: those of the samples from `first` on, along an axis or one alone."""
        leaves = [self.terms.of(self.terms.make("data", name, (), size, first + at)) for at, name in enumerate(names)]
        return shared(leaves[0]) if axis is None else Value(tuple(leaves), axis, size[axis])

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor; what was never met is a parameter, a buffer, or data."""
        found = self.memory.read(tensor)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.declared and torch.is_grad_enabled():
            found = self._first_use(tensor, found)
        elif found is not None and isinstance(tensor, torch.nn.Parameter) and id(tensor) not in self.declared:
            first, storage = self.laws.original(found), tensor.untyped_storage()._cdata
            if first is not None and all(p.untyped_storage()._cdata != storage for p in self.declared.values()):
                found = self.leaf("constant", ("copy", self.terms.order(first)), tuple(tensor.shape))  # does not train
                self.memory.write(tensor, found)
        if found is None:
            found = self._unknown(tensor)
        return found

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter or a buffer, or took part in a calculation: data do later."""
        held = tensor.requires_grad or isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.buffers
        return held or self.memory.met(tensor)

    def combination(self, tensor: torch.Tensor) -> Combination:
        """The value of a tensor as one combination of terms of its shape."""
        shape = tuple(tensor.shape)
        return self.terms.opened(self.laws.fitted(self.laws.whole(self.value(tensor), shape), shape))

    def term(self, tensor: torch.Tensor) -> int:
        """The value of a tensor as one term."""
        return self.terms.named(self.combination(tensor), tuple(tensor.shape))

    def _unknown(self, tensor: torch.Tensor) -> Value:
        if initialising():
            return self._shared("initial", tuple(tensor.shape))
        if self.memory.of(tensor).regions:
            self.lose("a tensor that is no block of its storage was read after a write through another tensor")
        value = self._fresh("unknown", tuple(tensor.shape))
        self.memory.alias(tensor, value)
        return value

    def _first_use(self, tensor: torch.Tensor, found: Value | None) -> Value | None:
        """A parameter holds arbitrary numbers from its first use in a forward pass on; data with a gradient is data.

        What it held first is part of its name, so that two parameters that change places are not taken for each other.
        """
        if not isinstance(tensor, torch.nn.Parameter):
            owned = found is not None and any(self.terms.owners[term] != NOBODY for p in found.parts for term in p)
            if tensor._base is not None or owned:
                return found
        self.declared[id(tensor)] = tensor
        shape = tuple(tensor.shape)
        first = None if found is None else self.terms.order(self.terms.named(self.laws.whole(found, shape), shape))
        made = self.leaf("parameter", (self.name(tensor), first), shape)
        self.memory.write(tensor, made)
        return made

    def name(self, tensor: torch.Tensor) -> str:
        """The name of a parameter; parameters of no module are numbered."""
        if id(tensor) not in self.names:
            steps: list[str] = []
            part: Any = tensor
            while (known := self.parents.get(id(part))) is not None and len(steps) < DEPTH:
                parent, name = known
                if part is not parent._parameters.get(name, parent._modules.get(name)):
                    break
                steps.append(name)
                part = parent
            plain = ".".join(reversed(steps)) or "parameter"
            taken, number, name = set(self.names.values()), 1, plain
            while name in taken:
                number, name = number + 1, f"{plain}#{number + 1}"
            self.names[id(tensor)] = name
            self.kept.append(tensor)
        return self.names[id(tensor)]

    def buffered(self, module: Any, name: str, buffer: Any) -> None:
        """A module was given a buffer."""
        if (id(module), name) not in self.held_buffers:
            self.held_buffers[id(module), name] = weakref.ref(module)

    def registered(self, parent: Any, name: str, part: Any) -> None:
        """A module was given a parameter or a module."""
        if part is not None:
            self.parents[id(part)] = (parent, name)

    def put(self, tensor: torch.Tensor, value: Value) -> None:
        """A tensor holds a value now."""
        if tensor.dtype in NARROW and self.facts.below is None:
            self.facts.below = self.location()
        whole = tensor.dtype in SHORT and any(self.terms.trained[term] for part in value.parts for term in part)
        if whole or tensor.dtype in NARROW:
            self._narrow(tensor, value)
        self.memory.write(tensor, value)

    def _narrow(self, tensor: torch.Tensor, value: Value) -> None:
        """A value below fp32 that joins samples of two micro-batches."""
        for part in value.parts:
            terms = [self.terms.uncounted(term) for term in part]
            owners = {self.terms.owners[term] for term in terms}
            found = {owner for owner in owners if owner >= 0}
            if SEVERAL in owners:
                found |= self.terms.samples(terms)
            if self.several(found):
                own = self.several({owner for owner in owners if owner >= 0})
                alone = not self.in_backward
                if alone and self.stepping and found <= self._handed():
                    return  # the optimizer rounds a sum that was made before
                sums = own and not (alone and (self.stepping or self.running in CASTS))
                own_pass = (self.window, self.all_passes)
                self.facts.narrow.append((self.location(), str(tensor.dtype).removeprefix("torch."), sums, own_pass))
                return

    def several(self, samples: set[int]) -> bool:
        """Whether samples are of several micro-batches."""
        return len({sample // self.every for sample in samples}) > 1

    def _handed(self) -> set[int]:
        """The samples of the gradients that the optimizer of the running step was handed."""
        at = len(self.facts.updates)
        if self.handed[0] != at:
            self.handed = at, self.terms.summed(self.facts.updates[-1].gradients.values())
        return self.handed[1]

    # Places

    def location(self) -> Location:
        """The user's line that runs; while autograd runs, the line that started it."""
        if self.in_backward and self.calls:
            return self.calls[-1]
        found = user_location()
        return found if found is not NOWHERE or not self.calls else self.calls[-1]

    def lose(self, what: str, location: Location | None = None) -> None:
        """The engine lost sight of a value."""
        entry = (location or self.location(), what)
        if entry not in self.facts.lost:
            self.facts.lost.append(entry)
