"""A real run whose rounding is bounded while it runs: an enclosure of every number that depends on a parameter.

From the first operator that reads a parameter on, each operator is followed by its rule (`bounds.rules`) on the
enclosures of its arguments. Memory is one flat array of enclosures for each storage; tensors read and write it through
their offset and strides, so that views alias as they do in torch. What no followed operator made is a leaf where it is
first read: a parameter, a buffer of a module, or data, which random operators and the outside make. Any other tensor is
a constant.

Before a storage is read, its bytes are compared with what the last operator left: a difference is a write that no
operator made, and nothing is bounded then. After each operator its results are compared with their enclosures.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.shadow.bounds import kernels as kernels
from gradproof.shadow.bounds.domain import RULES, Box, Domain, Key, NoBound, Rule, narrower
from gradproof.shadow.bounds.memory import (
    FLOATS, aside, certain, common, flat, inside, numbers_of, odd, stored, strided, trainable, whole,
)  # fmt: skip
from gradproof.shadow.bounds.rules import MOVED
from gradproof.shadow.locations import Location, initialising, user_location
from gradproof.shadow.ops.schema import DROPOUTS, SHAPE_ONLY, Spec, spec_of, tensors_in
from gradproof.shadow.record.checksums import checksum, same
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import Run, Step, default_dtype, seed, stated
from gradproof.shadow.whole.memory import weakly
from gradproof.shadow.whole.unseen import calls, removed, replaced, steps

CASTS = frozenset({"_to_copy", "copy", "clone", "contiguous", "lift_fresh", "_unsafe_view", "_reshape_alias"})
OVERWRITES = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
"""Operators in place that do not read what they write."""
UNKNOWN = "no bound is known for its kernel"


@dataclass(frozen=True, slots=True)
class Lost:
    """A value without a bound: why."""

    why: str


class Spoiled(NoBound):
    """An argument has no bound."""


@dataclass(slots=True)
class BoundedStorage:
    """A storage that is followed: its enclosures, as one flat array, and a checksum of its numbers."""

    storage: Any
    dtype: torch.dtype
    value: Box | Lost
    checksum: Tensor | None
    begin: int
    size: int


@dataclass(slots=True)
class Seen:
    """The gradients that a step was given (`grad`), or the weights after it (`weight`): enclosures, and numbers."""

    kind: str
    location: Location
    values: dict[str, Box | Lost] = field(default_factory=dict)
    numbers: dict[str, tuple[str, Tensor]] = field(default_factory=dict)


class Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bounds what runs inside `with run.running():`; the observations are in `seen`.

    `rules`: of the operators, instead of `RULES`. `lost`: why nothing is bounded. `outside`: the operators whose results
    were not inside their enclosures, each with its line.
    """

    def __init__(self, domain: Domain, rules: Mapping[str, Rule] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.domain = domain
        self.domain.rules = RULES if rules is None else rules
        self.lost, self.outside = "", list[Key]()
        self.seen: list[Seen] = []
        self.held: dict[int, BoundedStorage] = {}
        self.made: dict[int, tuple[Any, bool]] = {}
        self.parameters: dict[int, Tensor] = {}
        self.buffers: dict[int, tuple[Tensor, str]] = {}
        self.names: dict[int, tuple[Tensor, str]] = {}
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.optimized: set[int] = set()
        self.stepping: tuple[Optimizer, int] | None = None
        self.calls: list[Location] = []
        self.afterwards: list[Any] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Without MKL-DNN, which would run a recurrent layer as a single operator. Hooks are gone at the end."""
        original = Optimizer.add_param_group

        def add_param_group(optimizer: Optimizer, group: Any) -> None:
            original(optimizer, group)
            self.optimized.update(map(id, optimizer.param_groups[-1]["params"]))

        with ExitStack() as stack:
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
            stack.enter_context(replaced(Optimizer, "add_param_group", add_param_group))
            stack.enter_context(calls(self))
            stack.enter_context(steps(self.before_step, self.after_step))
            stack.enter_context(removed(nn.modules.module.register_module_forward_pre_hook(self._forward)))
            stack.enter_context(self)
            yield

    def location(self) -> Location:
        """The user's line that runs; while autograd runs, the line that started it."""
        return self.calls[0] if self.calls and torch._C._current_graph_task_id() != -1 else user_location()

    # Names and events

    def _forward(self, module: nn.Module, args: Any) -> None:
        if module in self.modules:
            return
        self.modules.update(module.modules())
        for name, parameter in module.named_parameters():
            self.name(parameter, name)
        for name, buffer in module.named_buffers():
            if not odd(buffer):
                self.buffers[buffer.untyped_storage()._cdata] = (buffer, name)

    def name(self, parameter: Tensor, name: str = "") -> str:
        """The name of a parameter: in the first module that ran with it, else a number."""
        if id(parameter) not in self.names:
            plain, taken = name or f"param{len(self.names)}", {held for _, held in self.names.values()}
            for prefix in ("module.", "_orig_mod."):
                plain = plain.removeprefix(prefix)
            numbers = (f"{plain}#{n}" for n in range(2, len(taken) + 3))
            self.names[id(parameter)] = (parameter, next(n for n in (plain, *numbers) if n not in taken))
        return self.names[id(parameter)][1]

    def begin(self, *_: Any) -> None:
        """A backward pass begins."""

    broke = begin

    def ended(self, found: Any) -> None:
        """A backward pass has ended. One inside of a step is a closure's: the step applies what it leaves."""
        if self.stepping is not None:
            optimizer, at = self.stepping
            self.seen[at] = self._gradients(optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.stepping = optimizer, len(self.seen)
        self.seen.append(self._gradients(optimizer))

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self.stepping = None
        self.seen.append(self._observed("weight", [(p, p) for p in params_of(optimizer)]))

    def _gradients(self, optimizer: Optimizer) -> Seen:
        return self._observed("grad", [(p, p.grad) for p in params_of(optimizer) if p.grad is not None])

    def _observed(self, kind: str, tensors: Sequence[tuple[Tensor, Tensor]]) -> Seen:
        found = Seen(kind, self.location())
        with aside():
            for parameter, tensor in tensors:
                if odd(tensor):
                    self.lose(f"a tensor of {tensor.layout} and {tensor.dtype}")
                    break
                name = self.name(parameter)
                self.domain.begin(("", found.location), [FLOATS.get(tensor.dtype, "")])
                found.values[name] = self._lifted(self.read(tensor))
                found.numbers[name] = (str(tensor.dtype).removeprefix("torch."), numbers_of(tensor))
        return found

    def lose(self, why: str) -> None:
        """Bound nothing more: why, and the line."""
        self.lost = self.lost or f"{self.location()}: {why}"

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, spec = kwargs or {}, spec_of(func)
        tensors = tensors_in((args, kwargs))
        if self.lost or any(type(t).__name__ == "FakeTensor" for t in tensors):
            return func(*args, **kwargs)
        if spec is not None and spec.composite and not any(t.is_nested for t in tensors):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        strange = next((t for t in tensors if odd(t)), None)
        if spec is None or strange is not None:
            if any(t.requires_grad or self._alive(t) is not None for t in tensors):
                what = "runs a function of its own" if spec is None else "has a tensor of another layout"
                self.lose(f"{func} {what}")
            return func(*args, **kwargs)
        with aside():
            for t in tensors:
                if trainable(t):
                    self.parameters[t.untyped_storage()._cdata] = t
            followed = self._takes_part(spec, args, kwargs, tensors)
        if spec.view:
            return func(*args, **kwargs)
        return self._operate(func, spec, args, kwargs) if followed else self._beside(func, spec, args, kwargs)

    def _takes_part(self, spec: Spec, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> bool:
        if spec.base in SHAPE_ONLY:
            return False
        if any(self._alive(t) is not None for t in tensors):
            return True
        homes = {t.untyped_storage()._cdata for t in spec.targets(args, kwargs)}
        own = (self._parameter(t) for t in tensors if t.untyped_storage()._cdata not in homes)
        return any(p is not None for p in own) and not initialising()

    def _alive(self, tensor: Tensor) -> BoundedStorage | None:
        """What is known of a storage that is followed."""
        held = self.held.get(tensor.untyped_storage()._cdata) if stored(tensor) else None
        return None if held is None or held.storage.expired() else held

    def _parameter(self, tensor: Tensor) -> Tensor | None:
        known = self.parameters.get(tensor.untyped_storage()._cdata)
        same = known is not None and known.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        return known if same and tensor.is_floating_point() else None

    def _beside(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """An operator that is not followed: what it makes is data, where it draws it, or makes it of data."""
        learns = torch.is_grad_enabled() and spec.base not in SHAPE_ONLY and not initialising()
        if learns and any(t.requires_grad and not trainable(t) for t in tensors_in((args, kwargs))):
            self.lose("a tensor that no operator made depends on a parameter")
        with aside():
            given = tensors_in((args, kwargs))
            collects = spec.base in ("aten.stack", "aten.cat") and any(self._unseen(t) for t in given)
            data = (collects or any(self._data(t) for t in given)) and spec.base not in SHAPE_ONLY
            data |= any(self._data(t) and not whole(t) for t in spec.targets(args, kwargs))
        out = func(*args, **kwargs)
        with aside():
            data |= spec.random and spec.base not in DROPOUTS
            for tensor in (t for t in [*tensors_in(out), *spec.targets(args, kwargs)] if not odd(t)):
                self.made[tensor.untyped_storage()._cdata] = (weakly(tensor.untyped_storage()), data)
        return out

    def _data(self, tensor: Tensor) -> bool:
        """Whether a tensor that no followed operator made is data."""
        if odd(tensor) or self._buffer(tensor) or self._owned(tensor):
            return False
        if self._unseen(tensor):
            return tensor.untyped_storage().nbytes() > tensor.element_size()
        known = self.made.get(tensor.untyped_storage()._cdata)
        return known is not None and known[1]

    def _buffer(self, tensor: Tensor) -> str:
        """The name of a module's buffer, or nothing."""
        storage = tensor.untyped_storage()._cdata
        buffer, name = self.buffers.get(storage, (tensor, ""))
        return name if buffer.untyped_storage()._cdata == storage else ""

    def _unseen(self, tensor: Tensor) -> bool:
        """Whether no operator made a tensor of floating-point numbers."""
        known = self.made.get(tensor.untyped_storage()._cdata)
        return tensor.is_floating_point() and (known is None or known[0].expired())

    def _owned(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter of a module or an optimizer, and no data of which a gradient is taken."""
        known = self._parameter(tensor)
        return known is not None and (isinstance(known, nn.Parameter) or id(known) in self.optimized)

    def _operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator, and its rule on the enclosures of its arguments."""
        with aside():
            own = spec.targets(args, kwargs)
            if spec.alters:
                self.lose(f"{spec.base} puts other memory under a tensor")
            rest = {n: v for n, v in kwargs.items() if n not in spec.results}
            computes = common(tensors_in((args, rest)))
            given, named = tree_map(self.read, (args, rest))
            if spec.base in OVERWRITES:
                given = (numbers_of(args[0]), *given[1:])
            before = {id(t): numbers_of(flat(t)) for t in own if self._alive(t) is None and not whole(t)}
        out = func(*args, **kwargs)
        if self.lost:
            return out
        with aside(), default_dtype(torch.float64):
            results = list(out) if isinstance(out, list | tuple) else [out]
            if not tensors_in(results):
                results = [spec.argument(at, args, kwargs) for at in spec.written]
            formats = [FLOATS.get(t.dtype, "") for t in tensors_in(results) if t.is_floating_point()]
            formats += [computes] if computes and (spec.results or not formats) else []
            targets, location = tensors_in(results), self.location()
            why = f"{location}: {spec.name} writes an argument for which no bound is known"
            lost = [t for t in own if not any(t is one for one in targets)]
            try:
                self.domain.begin((spec.name, location), formats, results)
                fits = "" if spec.function in (*CASTS, *MOVED) else computes
                lifted = tree_map(lambda arg: self._lifted(arg, fits), (given, named))
                for target, value in zip(targets, self._apply(spec, *lifted, len(targets)), strict=True):
                    self._store(target, value, before)
            except NoBound as error:
                why = str(error) if isinstance(error, Spoiled) else f"{location}: {spec.name}: {error}"
                lost = [*targets, *own]
            for tensor in lost:
                self._hold(tensor, Lost(why))
        return out

    def _apply(self, spec: Spec, args: Any, kwargs: Any, count: int) -> list[Any]:
        """The results of the rule of an operator; one on lists of tensors is the same operator on each."""
        spoiled = next((v for v in tree_leaves((args, kwargs)) if isinstance(v, Lost)), None)
        if spoiled is not None:
            raise Spoiled(spoiled.why)
        rule, d = self.domain.rule(spec), self.domain
        each = rule is None and spec.function.startswith("_foreach_")
        if each:
            rule = d.rules.get(spec.function.removeprefix("_foreach_"))
        if rule is None:
            raise NoBound(UNKNOWN)

        def own(arg: Any, at: int) -> Any:
            by_element = isinstance(arg, list | tuple) or (isinstance(arg, Box) and arg.shape == (count,))
            return arg[at] if by_element else arg

        try:
            if not each:
                found = rule(d, *args, **kwargs)
            else:
                lists = [([own(a, at) for a in args], {n: own(v, at) for n, v in kwargs.items()}) for at in range(count)]
                found = [rule(d, *mine, **named) for mine, named in lists]
        except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NoBound(f"its rule does not know these arguments ({type(error).__name__}: {error})") from error
        values = [v for v in tree_leaves(found) if v is not None]
        if len(values) != count:
            raise NoBound(f"the rule gives {len(values)} results, and the operator {count}")
        return values

    # Memory

    def read(self, arg: Any) -> Any:
        """The enclosures of a tensor, why it has none, or the numbers of a constant; any other argument as it is."""
        if not isinstance(arg, Tensor):
            return arg
        held = self._alive(arg) or self._leaf(arg)
        if held is None:
            return numbers_of(arg) if arg.is_floating_point() else arg.to("cpu", copy=True)
        if not same(held.checksum, checksum(flat(arg))):
            self.lose("a tensor was changed by something that is no operator")
        if held.dtype is not arg.dtype:
            self.lose("the memory of a tensor is read as another type")
        if isinstance(held.value, Lost):
            return held.value
        return Box(self.domain, [strided(part, arg) for part in held.value.parts], held.value.format)

    def _leaf(self, tensor: Tensor) -> BoundedStorage | None:
        """What no followed operator made is a leaf where it is first read, or a constant: None."""
        known, buffer = self._parameter(tensor), self._buffer(tensor)
        if tensor.dtype not in FLOATS:
            return None
        if buffer:
            kind, name = "buffer", buffer
        elif self._data(tensor):
            kind, name = "data", ""
        elif known is not None:
            kind, name = "param", self.name(known)
        else:
            return None
        if known is None and self._unseen(tensor) and (self._shared(tensor) or tensor.requires_grad):
            self.lose("a tensor that no operator made depends on, or shares the memory of, one that is followed")
        numbers = numbers_of(flat(tensor))
        if not bool(numbers.isfinite().all()):
            return None
        self._hold(tensor, self.domain.leaf(kind, name, FLOATS[tensor.dtype], numbers))
        return self._alive(tensor)

    def _shared(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of a storage that is followed."""
        at = tensor.untyped_storage().data_ptr()
        return any(h.begin <= at < h.begin + h.size for h in self.held.values() if not h.storage.expired())

    def _hold(self, tensor: Tensor, value: Box | Lost) -> None:
        if not stored(tensor):
            self.lose(f"a tensor of the {tensor.layout} layout")
            return
        storage = tensor.untyped_storage()
        where = (storage.data_ptr(), storage.nbytes())
        self.held[storage._cdata] = BoundedStorage(weakly(storage), tensor.dtype, value, checksum(flat(tensor)), *where)

    def _lifted(self, arg: Any, fits: str = "") -> Any:
        """What was read, in the format of the operator: an enclosure of a wider one is rounded, where it computes."""
        if isinstance(arg, Box):
            return self.domain.stored(arg, fits) if narrower(fits, arg.format) else arg
        return self.domain.lift(arg) if isinstance(arg, Tensor) and arg.is_floating_point() else arg

    def _store(self, tensor: Tensor, value: Any, before: Mapping[int, Tensor]) -> None:
        """A result in its place; integers are the machine's own."""
        truth = tensor.dtype is torch.bool and isinstance(value, Box) and value.format == "bool"
        if not isinstance(value, Box) or not (tensor.is_floating_point() or truth):
            self.held.pop(tensor.untyped_storage()._cdata, None)
            if isinstance(value, Box) and not certain(value):
                op, location = self.domain.key
                self._hold(tensor, Lost(f"{location}: {op}: rounding may make another integer"))
            return
        if not truth:
            value = self.domain.stored(value, FLOATS[tensor.dtype])
        parts = [part.expand(tensor.shape) for part in value.parts]
        if not truth and not inside(numbers_of(tensor), Box(self.domain, parts, value.format)):
            self.outside.append(self.domain.key)
        if whole(tensor):
            self._hold(tensor, Box(self.domain, [part.reshape(-1) for part in parts], value.format))
            return
        held = self._alive(tensor)
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        known = before.get(id(tensor), torch.zeros(size)).to(torch.bool if truth else torch.float64)
        around = self.domain.lift(known) if held is None else held.value
        if isinstance(around, Box):
            copies = [part.clone() for part in around.parts]
            for copy, part in zip(copies, parts, strict=True):
                strided(copy, tensor).copy_(part)
            around = Box(self.domain, copies, value.format)
        self._hold(tensor, around)


def follow(step: Step, run: Run, domain: Domain, rules: Mapping[str, Rule] | None = None) -> Follow:
    """Call a training function once, its output unseen, and bound the rounding of what it does."""
    seed(run.seed)
    made = Follow(domain, rules)
    with redirect_stdout(io.StringIO()), made.running():
        try:
            step(run)
        except Exception as caught:
            made.lost = made.lost or f"the function raised {stated(caught)}"
    return made
