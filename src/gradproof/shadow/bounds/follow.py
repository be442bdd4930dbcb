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

import hashlib
import io
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.shadow.bounds.domain import Domain, Key
from gradproof.shadow.bounds.kernels import KERNELS
from gradproof.shadow.bounds.rules import MOVED, RULES, Call, Rule, moved
from gradproof.shadow.bounds.values import Array, NoBound, Value, lift, number
from gradproof.shadow.ops.schema import DROPOUTS, SHAPE_ONLY, Spec, spec_of, tensors_in
from gradproof.shadow.record.hook_points import params_of
from gradproof.shadow.record.run import Run, Step, seed, stated
from gradproof.shadow.tape import Location, initialising, user_place

FLOATS = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
OVERWRITES = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
"""Operators in place that do not read what they write."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A value without a bound: why."""

    why: str


@dataclass(frozen=True, slots=True)
class Plain:
    """A constant: the numbers of a tensor."""

    numbers: Array


class Spoiled(NoBound):
    """An argument has no bound."""


@dataclass(slots=True)
class Held:
    """A storage that is followed: its enclosures, as one flat array, and a digest of its bytes."""

    storage: Any
    dtype: torch.dtype
    value: Value | Lost
    digest: bytes


@dataclass(slots=True)
class Seen:
    """The gradients that a step was given (`grad`), or the weights after it (`weight`): enclosures, and numbers."""

    kind: str
    place: Location
    values: dict[str, Value | Lost] = field(default_factory=dict)
    numbers: dict[str, tuple[str, Array]] = field(default_factory=dict)


class Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bounds what runs inside `with Follow(domain) as run:`; the observations are in `run.seen`.

    `rules`: by operator, instead of `RULES` and `KERNELS`. `lost`: why nothing is bounded. `outside`: the operators
    whose results were not inside their enclosures, each with its line.
    """

    def __init__(self, domain: Domain, rules: Mapping[str, Rule] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.domain, self.rules = domain, {**RULES, **KERNELS} if rules is None else rules
        self.lost, self.outside = "", list[Key]()
        self.seen: list[Seen] = []
        self.held: dict[int, Held] = {}
        self.made: dict[int, tuple[Any, bool]] = {}
        self.parameters: dict[int, torch.Tensor] = {}
        self.buffers: dict[int, tuple[torch.Tensor, str]] = {}
        self.names: dict[int, tuple[torch.Tensor, str]] = {}
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.steps: list[int] = []
        self.places: list[Location] = []
        self._patched = ExitStack()

    def __enter__(self) -> Follow:
        if not self._patched._exit_callbacks:  # type: ignore[attr-defined]
            self._install()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def _install(self) -> None:
        """Without MKL-DNN, which would run a recurrent layer as a single operator."""
        engine, mkldnn = vars(torch.autograd)["_engine_run_backward"], torch._C._get_mkldnn_enabled()
        self._patched.callback(torch._C._set_mkldnn_enabled, mkldnn)
        torch._C._set_mkldnn_enabled(False)

        def run(*args: Any, **kwargs: Any) -> Any:
            self.places.append(self._place())
            try:
                return engine(*args, **kwargs)
            finally:
                self.places.pop()

        self._patched.callback(setattr, torch.autograd, "_engine_run_backward", engine)
        vars(torch.autograd)["_engine_run_backward"] = run
        for handle in (
            nn.modules.module.register_module_forward_pre_hook(self._forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._patched.callback(handle.remove)

    def close(self) -> None:
        """Take the hooks away."""
        self._patched.close()

    def _place(self) -> Location:
        running = self.places and torch._C._current_graph_task_id() != -1
        return self.places[0] if running else user_place()

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
        found = Seen(kind, self._place())
        with aside():
            for parameter, tensor in tensors:
                if odd(tensor):
                    self.lose(f"a tensor of {tensor.layout} and {tensor.dtype}")
                    return
                name = self.name(parameter)
                self.domain.begin(("", found.place), [FLOATS.get(tensor.dtype, "")])
                found.values[name] = self._lifted(self._read(tensor))
                found.numbers[name] = (str(tensor.dtype).removeprefix("torch."), array(tensor))
        self.seen.append(found)

    def lose(self, why: str) -> None:
        """Bound nothing more: why, and the line."""
        self.lost = self.lost or f"{self._place()}: {why}"

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
                self.lose(
                    f"{func} runs a function of its own" if spec is None else f"{func} on a tensor of another layout"
                )
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
        homes = {t.untyped_storage()._cdata for t in written(spec, args, kwargs)}
        own = (self._parameter(t) for t in tensors if t.untyped_storage()._cdata not in homes)
        return any(p is not None for p in own) and not initialising()

    def _alive(self, tensor: torch.Tensor) -> Held | None:
        """What is known of a storage that is followed."""
        held = None if odd(tensor) else self.held.get(tensor.untyped_storage()._cdata)
        return None if held is None or held.storage.expired() else held

    def _parameter(self, tensor: torch.Tensor) -> torch.Tensor | None:
        known = self.parameters.get(tensor.untyped_storage()._cdata)
        same = known is not None and known.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        return known if same and tensor.is_floating_point() else None

    def _beside(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """An operator that is not followed: what it makes is data, where it draws it, or makes it of data."""
        with aside():
            given = tensors_in((args, kwargs))
            collects = spec.base in ("aten.stack", "aten.cat")
            data = any(self._data(t) and (t.dim() > 0 or collects) for t in given) and spec.base not in SHAPE_ONLY
        out = func(*args, **kwargs)
        with aside():
            data |= spec.random and spec.base not in DROPOUTS
            for tensor in [*tensors_in(out), *written(spec, args, kwargs)]:
                if not odd(tensor):
                    storage = tensor.untyped_storage()
                    self.made[storage._cdata] = (weak(tensor), data)
        return out

    def _data(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that no followed operator made is data."""
        storage, known = tensor.untyped_storage()._cdata, self.made.get(tensor.untyped_storage()._cdata)
        if not tensor.is_floating_point() or self._parameter(tensor) is not None or storage in self.buffers:
            return False
        return True if known is None or known[0].expired() else known[1]

    def _operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator, and its rule on the enclosures of its arguments."""
        with aside():
            place, own = self._place(), written(spec, args, kwargs)
            if spec.alters:
                self.lose(f"{spec.base} puts other memory under a tensor")
            given, named = self._read(args), self._read({n: v for n, v in kwargs.items() if n not in spec.results})
            if spec.base in OVERWRITES:
                given = (Plain(array(args[0])), *given[1:]) if isinstance(args[0], torch.Tensor) else given
            before = {id(t): array(flat(t)) for t in own if self._alive(t) is None and not whole(t)}
        out = func(*args, **kwargs)
        if self.lost:
            return out
        with aside():
            results = list(out) if isinstance(out, list | tuple) else [out]
            if not tensors_in(results):
                results = [spec.argument(at, args, kwargs) for at in spec.written]
            if spec.random and base_of(spec) not in self.rules:
                for tensor in own:
                    self.held.pop(tensor.untyped_storage()._cdata, None)
                    self.made[tensor.untyped_storage()._cdata] = (weak(tensor), spec.base not in DROPOUTS)
            else:
                self._evaluate(func, spec, (given, named), results, own, before, place)
        return out

    def _evaluate(
        self, func: Any, spec: Spec, given: tuple[Any, Any], results: list[Any], own: list[torch.Tensor],
        before: Mapping[int, Array], place: Location,
    ) -> None:  # fmt: skip
        targets = tensors_in(results)
        rest = [t for t in own if not any(t is one for one in targets)]
        try:
            self.domain.begin((spec.name, place), [FLOATS.get(t.dtype, "") for t in targets if t.is_floating_point()])
            values = list(flattened(self._apply(func, spec, self._lifted(given[0]), self._lifted(given[1]), results)))
            if len(values) != len(targets):
                raise NoBound(f"the rule gives {len(values)} results, and the operator {len(targets)}")
            for target, value in zip(targets, values, strict=True):
                self._store(target, value, before)
        except NoBound as error:
            why = str(error) if isinstance(error, Spoiled) else f"{place}: {spec.name}: {error}"
            rest = [*targets, *own]
        else:
            why = f"{place}: {spec.name} writes an argument for which no bound is known"
        for tensor in rest:
            self._hold(tensor, Lost(why))

    def _apply(self, func: Any, spec: Spec, args: Any, kwargs: Any, results: list[Any]) -> Any:
        """The rule of an operator on enclosures; one on lists of tensors is the same operator on each."""
        spoiled = next((v for v in flattened((args, list(kwargs.values()))) if isinstance(v, Lost)), None)
        if spoiled is not None:
            raise Spoiled(spoiled.why)
        base = base_of(spec)
        rule = self.rules.get(spec.name.removeprefix("aten."), self.rules.get(base))
        named = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        call = Call(self.domain, results, named | dict(zip(spec.arguments, args, strict=False)) | kwargs)
        if rule is None and base.startswith("_foreach_"):
            return self._each(call, base.removeprefix("_foreach_"), args, kwargs)
        if rule is None and base not in MOVED:
            raise NoBound("no bound is known for its kernel")
        try:
            found = None if rule is None else rule(call, *args, **kwargs)
            return moved(call, func, args, kwargs) if found is None else found
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NoBound(f"its rule does not know these arguments ({type(error).__name__}: {error})") from error

    def _each(self, call: Call, base: str, args: Any, kwargs: Any) -> list[Any]:
        rule, count = self.rules.get(base), next(len(a) for a in args if isinstance(a, list | tuple))
        if rule is None:
            raise NoBound("no bound is known for its kernel")

        def own(arg: Any, at: int) -> Any:
            by_element = isinstance(arg, list | tuple) or (isinstance(arg, Value) and arg.shape == (count,) and at >= 0)
            return arg[at] if by_element else arg

        lists = [[own(a, at) for a in args] for at in range(count)]
        return [rule(call, *each, **{n: own(v, at) for n, v in kwargs.items()}) for at, each in enumerate(lists)]

    # Memory

    def _read(self, arg: Any) -> Any:
        """An argument with the enclosures of its tensors; constants as they are now."""
        if isinstance(arg, list | tuple):
            return [self._read(a) for a in arg] if isinstance(arg, list) else tuple(self._read(a) for a in arg)
        if isinstance(arg, dict):
            return {name: self._read(a) for name, a in arg.items()}
        if not isinstance(arg, torch.Tensor):
            return arg
        held = self._alive(arg) or self._leaf(arg)
        if held is None:
            return Plain(array(arg)) if arg.is_floating_point() else arg.clone()
        if held.digest != digest(arg):
            self.lose("a tensor was changed by something that is no operator")
        if held.dtype is not arg.dtype:
            self.lose("the memory of a tensor is read as another type")
        return held.value if isinstance(held.value, Lost) else held.value.move(lambda p: strided(p, arg))

    def _leaf(self, tensor: torch.Tensor) -> Held | None:
        """What no followed operator made is a leaf where it is first read, or a constant: None."""
        storage, known = tensor.untyped_storage()._cdata, self._parameter(tensor)
        if tensor.dtype not in FLOATS:
            return None
        if known is not None:
            kind, name = "param", self.name(known)
        elif storage in self.buffers and self.buffers[storage][0].untyped_storage()._cdata == storage:
            kind, name = "buffer", self.buffers[storage][1]
        elif tensor.dim() and self._data(tensor):
            kind, name = "data", str(user_place())
        else:
            return None
        numbers = array(flat(tensor))
        if not bool(np.all(np.isfinite(numbers))):
            return None
        parts = self.domain.leaf(kind, name, FLOATS[tensor.dtype], numbers)
        self._hold(tensor, Value(self.domain, parts))
        return self.held[storage]

    def _hold(self, tensor: torch.Tensor, value: Value | Lost) -> None:
        self.held[tensor.untyped_storage()._cdata] = Held(weak(tensor), tensor.dtype, value, digest(tensor))

    def _lifted(self, arg: Any) -> Any:
        """Constants as enclosures, in the format of the operator."""
        if isinstance(arg, list | tuple):
            return [self._lifted(a) for a in arg] if isinstance(arg, list) else tuple(self._lifted(a) for a in arg)
        if isinstance(arg, dict):
            return {name: self._lifted(a) for name, a in arg.items()}
        return Value(self.domain, self.domain.const(arg.numbers)) if isinstance(arg, Plain) else arg

    def _store(self, tensor: torch.Tensor, value: Any, before: Mapping[int, Array]) -> None:
        """A result in its place; integers are the machine's own."""
        if not isinstance(value, Value) or not (tensor.is_floating_point() or value.truth):
            self.held.pop(tensor.untyped_storage()._cdata, None)
            return
        if tensor.is_floating_point():
            parts = self.domain.rounded(number(value).parts, FLOATS[tensor.dtype])
            value = Value(self.domain, parts).expand(tuple(tensor.shape))
            if not inside(array(tensor), value):
                self.outside.append(self.domain.key)
        held = self._alive(tensor)
        if whole(tensor):
            self._hold(tensor, value.expand(tuple(tensor.shape)).reshape(-1))
        elif held is not None and isinstance(held.value, Lost):
            self._hold(tensor, held.value)
        else:
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            blank = lift(self.domain, before.get(id(tensor), np.zeros(size, dtype=bool if value.truth else float)))
            self._hold(tensor, (blank if held is None else held.value).move(np.array))  # type: ignore[union-attr]
            flat_value = self.held[tensor.untyped_storage()._cdata].value
            assert isinstance(flat_value, Value)
            for part, new in zip(flat_value.parts, value.parts, strict=True):
                strided(part, tensor)[...] = new


def follow(step: Step, run: Run, domain: Domain, rules: Mapping[str, Rule] | None = None) -> Follow:
    """Call a training function once, its output unseen, and bound the rounding of what it does."""
    seed(run.seed)
    made = Follow(domain, rules)
    with redirect_stdout(io.StringIO()), made:
        try:
            step(run)
        except Exception as caught:
            made.lost = made.lost or f"the function raised {stated(caught)}"
        finally:
            made.close()
    return made


@contextmanager
def aside() -> Iterator[None]:
    """The mode's own use of tensors."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        yield


def odd(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no storage of real numbers of its own."""
    wrapper = hasattr(type(tensor), "__tensor_flatten__")
    return tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_complex() or wrapper


def trainable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf of autograd that requires gradients, and no view of one."""
    if not tensor.requires_grad or (tensor._base is not None and tensor._base.requires_grad):
        return False
    return bool(tensor.is_leaf)


def base_of(spec: Spec) -> str:
    """`add` for aten.add_.Tensor."""
    base = spec.base.removeprefix("aten.")
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def written(spec: Spec, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operator writes."""
    return [t for at in spec.written for t in tensors_in(spec.argument(at, args, kwargs))]


def flattened(values: Any) -> Iterator[Any]:
    """What lists and tuples hold, in order, without None."""
    if isinstance(values, list | tuple):
        for value in values:
            yield from flattened(value)
    elif values is not None:
        yield values


def weak(tensor: torch.Tensor) -> Any:
    """A weak reference to the storage of a tensor."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def digest(tensor: torch.Tensor) -> bytes:
    """A digest of the bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu()
    return hashlib.blake2b(held.numpy().data, digest_size=16).digest()


def array(tensor: torch.Tensor) -> Array:
    """A copy of a tensor's numbers: float64, int64 or bool."""
    wide = torch.float64 if tensor.is_floating_point() else torch.int64
    wide = torch.bool if tensor.dtype is torch.bool else wide
    found: Array = torch.empty(tensor.shape, dtype=wide).copy_(tensor.detach()).numpy()
    return found


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, in one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its whole storage, in order."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.numel() == count and tensor.is_contiguous()


def strided(part: Array, tensor: torch.Tensor) -> Array:
    """The elements of a flat array at which a tensor is, as a view."""
    steps = tuple(n * part.itemsize for n in tensor.stride())
    return np.lib.stride_tricks.as_strided(part[tensor.storage_offset() :], tuple(tensor.shape), steps)


def inside(numbers: Array, value: Value) -> bool:
    """Whether numbers lie in their enclosures."""
    low, high, err, _ = value.parts
    return bool(np.all((numbers >= low - err) & (numbers <= high + err)))
