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

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.shadow.bounds.domain import Domain, Key, narrower
from gradproof.shadow.bounds.enclosure import Array, NoBound
from gradproof.shadow.bounds.kernels import KERNELS
from gradproof.shadow.bounds.memory import (
    FLOATS,
    array,
    aside,
    certain,
    common,
    digest,
    flat,
    inside,
    odd,
    stored,
    strided,
    trainable,
    weak,
    whole,
)
from gradproof.shadow.bounds.rules import MOVED, RULES, OpCall, Rule, moved
from gradproof.shadow.bounds.values import Box, lift, number
from gradproof.shadow.locations import Location, initialising, user_location
from gradproof.shadow.ops.schema import DROPOUTS, SHAPE_ONLY, Spec, spec_of, tensors_in
from gradproof.shadow.record.patches import Patches, params_of
from gradproof.shadow.record.run import Run, Step, seed, stated

CASTS = frozenset({"_to_copy", "copy", "clone", "contiguous", "lift_fresh", "_unsafe_view", "_reshape_alias"})
OVERWRITES = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
"""Operators in place that do not read what they write."""
ENGINE = "_engine_run_backward"
UNKNOWN = "no bound is known for its kernel"


@dataclass(frozen=True, slots=True)
class Lost:
    """A value without a bound: why."""

    why: str


@dataclass(frozen=True, slots=True)
class Plain:
    """A constant: the numbers of a tensor."""

    numbers: Array


@dataclass(frozen=True, slots=True)
class Wide:
    """An argument of a wider format than `dtype`, in which the operator computes."""

    value: Box
    dtype: str


class Spoiled(NoBound):
    """An argument has no bound."""


@dataclass(slots=True)
class BoundedStorage:
    """A storage that is followed: its enclosures, as one flat array, and a digest of its bytes."""

    storage: Any
    dtype: torch.dtype
    value: Box | Lost
    digest: bytes
    begin: int
    size: int


@dataclass(slots=True)
class Seen:
    """The gradients that a step was given (`grad`), or the weights after it (`weight`): enclosures, and numbers."""

    kind: str
    location: Location
    values: dict[str, Box | Lost] = field(default_factory=dict)
    numbers: dict[str, tuple[str, Array]] = field(default_factory=dict)


class Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bounds what runs inside `with run.running():`; the observations are in `seen`.

    `rules`: by operator, instead of `RULES` and `KERNELS`. `lost`: why nothing is bounded. `outside`: the operators
    whose results were not inside their enclosures, each with its line.
    """

    def __init__(self, domain: Domain, rules: Mapping[str, Rule] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.domain, self.rules = domain, {**RULES, **KERNELS} if rules is None else rules
        self.lost, self.outside = "", list[Key]()
        self.seen: list[Seen] = []
        self.held: dict[int, BoundedStorage] = {}
        self.made: dict[int, tuple[Any, bool]] = {}
        self.parameters: dict[int, torch.Tensor] = {}
        self.buffers: dict[int, tuple[torch.Tensor, str]] = {}
        self.names: dict[int, tuple[torch.Tensor, str]] = {}
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.steps: list[int] = []
        self.locations: list[Location] = []
        self.optimized: set[int] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Without MKL-DNN, which would run a recurrent layer as a single operator. Hooks are gone at the end."""
        with ExitStack() as stack:
            patches = Patches()
            stack.callback(patches.restore)
            patches.attribute(torch.autograd, ENGINE, patches.wrap(vars(torch.autograd)[ENGINE], self._backward))
            patches.method(Optimizer, "add_param_group", self._optimized)
            patches.active = True
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
            for handle in (
                nn.modules.module.register_module_forward_pre_hook(self._forward),
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(handle.remove)
            stack.enter_context(self)
            yield

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.locations.append(self._location())
        try:
            return original(*args, **kwargs)
        finally:
            self.locations.pop()

    def _optimized(self, original: Any, optimizer: Optimizer, group: Any) -> None:
        original(optimizer, group)
        self.optimized.update(map(id, optimizer.param_groups[-1]["params"]))

    def _location(self) -> Location:
        running = self.locations and torch._C._current_graph_task_id() != -1
        return self.locations[0] if running else user_location()

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

    def name(self, parameter: torch.Tensor, name: str = "") -> str:
        """The name of a parameter: in the first module that ran with it, else a number."""
        if id(parameter) not in self.names:
            plain, taken = name or f"param{len(self.names)}", {held for _, held in self.names.values()}
            for prefix in ("module.", "_orig_mod."):
                plain = plain.removeprefix(prefix)
            numbers = (f"{plain}#{n}" for n in range(2, len(taken) + 3))
            self.names[id(parameter)] = (parameter, next(n for n in (plain, *numbers) if n not in taken))
        return self.names[id(parameter)][1]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self.steps.append(id(optimizer))
        if id(optimizer) in self.steps[:-1]:  # a base class's step, in the step of a subclass
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._gradients_of(optimizer)
            return None

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._gradients_of(optimizer)
            return result

        return ((args[0], evaluated, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": evaluated})

    def _gradients_of(self, optimizer: Optimizer) -> None:
        self._observe("grad", [(p, p.grad) for p in params_of(optimizer) if p.grad is not None])

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.steps:
            self.steps.pop()
        if id(optimizer) not in self.steps:
            self._observe("weight", [(p, p) for p in params_of(optimizer)])

    def _observe(self, kind: str, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        found = Seen(kind, self._location())
        with aside():
            for parameter, tensor in tensors:
                if odd(tensor):
                    self.lose(f"a tensor of {tensor.layout} and {tensor.dtype}")
                    return
                name = self.name(parameter)
                self.domain.begin(("", found.location), [FLOATS.get(tensor.dtype, "")])
                found.values[name] = self._lifted(self._read(tensor, ""))
                found.numbers[name] = (str(tensor.dtype).removeprefix("torch."), array(tensor))
        self.seen.append(found)

    def lose(self, why: str) -> None:
        """Bound nothing more: why, and the line."""
        self.lost = self.lost or f"{self._location()}: {why}"

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

    def _takes_part(self, spec: Spec, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> bool:
        if spec.base in SHAPE_ONLY:
            return False
        if any(self._alive(t) is not None for t in tensors):
            return True
        homes = {t.untyped_storage()._cdata for t in spec.targets(args, kwargs)}
        own = (self._parameter(t) for t in tensors if t.untyped_storage()._cdata not in homes)
        return any(p is not None for p in own) and not initialising()

    def _alive(self, tensor: torch.Tensor) -> BoundedStorage | None:
        """What is known of a storage that is followed."""
        held = self.held.get(tensor.untyped_storage()._cdata) if stored(tensor) else None
        return None if held is None or held.storage.expired() else held

    def _parameter(self, tensor: torch.Tensor) -> torch.Tensor | None:
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
                self.made[tensor.untyped_storage()._cdata] = (weak(tensor), data)
        return out

    def _data(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that no followed operator made is data."""
        if odd(tensor) or self._buffer(tensor) or self._owned(tensor):
            return False
        if self._unseen(tensor):
            return tensor.untyped_storage().nbytes() > tensor.element_size()
        known = self.made.get(tensor.untyped_storage()._cdata)
        return known is not None and known[1]

    def _buffer(self, tensor: torch.Tensor) -> str:
        """The name of a module's buffer, or nothing."""
        storage = tensor.untyped_storage()._cdata
        buffer, name = self.buffers.get(storage, (tensor, ""))
        return name if buffer.untyped_storage()._cdata == storage else ""

    def _unseen(self, tensor: torch.Tensor) -> bool:
        """Whether no operator made a tensor of floating-point numbers."""
        known = self.made.get(tensor.untyped_storage()._cdata)
        return tensor.is_floating_point() and (known is None or known[0].expired())

    def _owned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter of a module or an optimizer, and no data of which a gradient is taken."""
        known = self._parameter(tensor)
        return known is not None and (isinstance(known, nn.Parameter) or id(known) in self.optimized)

    def _operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator, and its rule on the enclosures of its arguments."""
        with aside():
            location, own = self._location(), spec.targets(args, kwargs)
            if spec.alters:
                self.lose(f"{spec.base} puts other memory under a tensor")
            rest = {n: v for n, v in kwargs.items() if n not in spec.results}
            computes = common(tensors_in((args, rest)))
            fits = "" if spec.function in CASTS or spec.function in MOVED else computes
            given, named = tree_map(lambda arg: self._read(arg, fits), (args, rest))
            if spec.base in OVERWRITES:
                given = (Plain(array(args[0])), *given[1:])
            before = {id(t): array(flat(t)) for t in own if self._alive(t) is None and not whole(t)}
        out = func(*args, **kwargs)
        if self.lost:
            return out
        with aside():
            results = list(out) if isinstance(out, list | tuple) else [out]
            if not tensors_in(results):
                results = [spec.argument(at, args, kwargs) for at in spec.written]
            if spec.random and spec.function not in self.rules:
                for tensor in own:
                    self.held.pop(tensor.untyped_storage()._cdata, None)
                    self.made[tensor.untyped_storage()._cdata] = (weak(tensor), spec.base not in DROPOUTS)
                for tensor in tensors_in(results):
                    if tensor.is_floating_point() and not any(tensor is one for one in own):
                        self._hold(tensor, Lost(f"{location}: {spec.name}: {UNKNOWN}"))
            else:
                formats = [FLOATS.get(t.dtype, "") for t in tensors_in(results) if t.is_floating_point()]
                formats += [computes] if computes and (spec.results or not formats) else []
                self._evaluate(func, spec, (given, named), results, own, before, location, formats)
        return out

    def _evaluate(
        self, func: Any, spec: Spec, given: tuple[Any, Any], results: list[Any], own: list[torch.Tensor],
        before: Mapping[int, Array], location: Location, formats: Sequence[str],
    ) -> None:  # fmt: skip
        targets = tensors_in(results)
        rest = [t for t in own if not any(t is one for one in targets)]
        try:
            self.domain.begin((spec.name, location), formats)
            args, kwargs = tree_map(self._lifted, given)
            found = self._apply(func, spec, args, kwargs, results)
            values = [v for v in tree_leaves(found) if v is not None]
            if len(values) != len(targets):
                raise NoBound(f"the rule gives {len(values)} results, and the operator {len(targets)}")
            for target, value in zip(targets, values, strict=True):
                self._store(target, value, before)
        except NoBound as error:
            why = str(error) if isinstance(error, Spoiled) else f"{location}: {spec.name}: {error}"
            rest = [*targets, *own]
        else:
            why = f"{location}: {spec.name} writes an argument for which no bound is known"
        for tensor in rest:
            self._hold(tensor, Lost(why))

    def _apply(self, func: Any, spec: Spec, args: Any, kwargs: Any, results: list[Any]) -> Any:
        """The rule of an operator on enclosures; one on lists of tensors is the same operator on each."""
        spoiled = next((v for v in tree_leaves((args, kwargs)) if isinstance(v, Lost)), None)
        if spoiled is not None:
            raise Spoiled(spoiled.why)
        base = spec.function
        rule = self.rules.get(spec.name.removeprefix("aten."), self.rules.get(base))
        named = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        call = OpCall(self.domain, results, named | dict(zip(spec.arguments, args, strict=False)) | kwargs)
        if rule is None and base.startswith("_foreach_"):
            return self._each(call, base.removeprefix("_foreach_"), args, kwargs)
        if rule is None and base not in MOVED:
            raise NoBound(UNKNOWN)
        try:
            found = None if rule is None else rule(call, *args, **kwargs)
            return moved(call, func, args, kwargs) if found is None else found
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NoBound(f"its rule does not know these arguments ({type(error).__name__}: {error})") from error

    def _each(self, call: OpCall, base: str, args: Any, kwargs: Any) -> list[Any]:
        rule, count = self.rules.get(base), next(len(a) for a in args if isinstance(a, list | tuple))
        if rule is None:
            raise NoBound(UNKNOWN)

        def own(arg: Any, at: int) -> Any:
            by_element = isinstance(arg, list | tuple) or (isinstance(arg, Box) and arg.shape == (count,))
            return arg[at] if by_element else arg

        lists = [[own(a, at) for a in args] for at in range(count)]
        return [rule(call, *each, **{n: own(v, at) for n, v in kwargs.items()}) for at, each in enumerate(lists)]

    # Memory

    def _read(self, arg: Any, dtype: str) -> Any:
        """The enclosures of a tensor, or a constant as it is now. `dtype`: in which the operator computes, if any."""
        if not isinstance(arg, torch.Tensor):
            return arg
        held = self._alive(arg) or self._leaf(arg)
        if held is None:
            return Plain(array(arg)) if arg.is_floating_point() else arg.clone()
        if held.digest != digest(arg):
            self.lose("a tensor was changed by something that is no operator")
        if held.dtype is not arg.dtype:
            self.lose("the memory of a tensor is read as another type")
        if isinstance(held.value, Lost):
            return held.value
        found = held.value.move(lambda p: strided(p, arg))
        return Wide(found, dtype) if narrower(dtype, FLOATS.get(arg.dtype, "")) else found

    def _leaf(self, tensor: torch.Tensor) -> BoundedStorage | None:
        """What no followed operator made is a leaf where it is first read, or a constant: None."""
        known, buffer = self._parameter(tensor), self._buffer(tensor)
        if tensor.dtype not in FLOATS:
            return None
        if buffer:
            kind, name = "buffer", buffer
        elif self._data(tensor):
            kind, name = "data", str(user_location())
        elif known is not None:
            kind, name = "param", self.name(known)
        else:
            return None
        if known is None and self._unseen(tensor) and (self._shared(tensor) or tensor.requires_grad):
            self.lose("a tensor that no operator made depends on, or shares the memory of, one that is followed")
        numbers = array(flat(tensor))
        if not bool(np.all(np.isfinite(numbers))):
            return None
        parts = self.domain.leaf(kind, name, FLOATS[tensor.dtype], numbers)
        self._hold(tensor, Box(self.domain, parts))
        return self._alive(tensor)

    def _shared(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of a storage that is followed."""
        at = tensor.untyped_storage().data_ptr()
        return any(h.begin <= at < h.begin + h.size for h in self.held.values() if not h.storage.expired())

    def _hold(self, tensor: torch.Tensor, value: Box | Lost) -> None:
        if not stored(tensor):
            self.lose(f"a tensor of the {tensor.layout} layout")
            return
        storage = tensor.untyped_storage()
        where = (storage.data_ptr(), storage.nbytes())
        self.held[storage._cdata] = BoundedStorage(weak(tensor), tensor.dtype, value, digest(tensor), *where)

    def _lifted(self, arg: Any) -> Any:
        """What was read, in the format of the operator."""
        if isinstance(arg, Wide):
            return Box(self.domain, self.domain.rounded(arg.value.parts, arg.dtype))
        return Box(self.domain, self.domain.const(arg.numbers)) if isinstance(arg, Plain) else arg

    def _store(self, tensor: torch.Tensor, value: Any, before: Mapping[int, Array]) -> None:
        """A result in its place; integers are the machine's own."""
        fits = isinstance(value, Box) and (tensor.is_floating_point() or (value.truth and tensor.dtype is torch.bool))
        if not fits:
            self.held.pop(tensor.untyped_storage()._cdata, None)
            if isinstance(value, Box) and not certain(value):
                op, location = self.domain.key
                self._hold(tensor, Lost(f"{location}: {op}: rounding may make another integer"))
            return
        if tensor.is_floating_point():
            value = Box(self.domain, self.domain.rounded(number(value).parts, FLOATS[tensor.dtype]))
        value = value.expand(tuple(tensor.shape))
        if not value.truth and not inside(array(tensor), value):
            self.outside.append(self.domain.key)
        self._hold(tensor, value.reshape(-1) if whole(tensor) else self._with_rest(tensor, value, before))

    def _with_rest(self, tensor: torch.Tensor, value: Box, before: Mapping[int, Array]) -> Box | Lost:
        """The whole storage after a part of it was written."""
        held = self._alive(tensor)
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        numbers = before.get(id(tensor), np.zeros(size, dtype=bool if value.truth else float))
        known = lift(self.domain, numbers) if held is None else held.value
        if isinstance(known, Lost):
            return known
        made = known.move(np.array)
        for part, new in zip(made.parts, value.parts, strict=True):
            strided(part, tensor)[...] = new
        return made


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
