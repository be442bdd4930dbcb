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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.shadow.bounds import kernels as kernels
from gradproof.shadow.bounds.domain import FORMATS, RULES, Box, Domain, Key, NoBound, Rule, fits as within
from gradproof.shadow.bounds.rules import MOVED
from gradproof.shadow.locations import Location, initialising, stated, user_location
from gradproof.shadow.ops.schema import Spec, spec_of, tensors_in
from gradproof.shadow.record.checksums import checksum, plain, same
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import Run, Step, default_dtype, seed
from gradproof.shadow.whole.draws import GENERATORS
from gradproof.shadow.whole.memory import weakly
from gradproof.shadow.whole.unseen import calls, replaced, steps

FLOATS = {dtype: name for name, dtype in FORMATS.items()}
CASTS = frozenset({"_to_copy", "copy", "clone", "contiguous", "lift_fresh", "_unsafe_view", "_reshape_alias"})
OVERWRITES = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
"""Operators in place that do not read what they write."""


@dataclass(slots=True, eq=False)
class BoundedStorage:
    """A storage. `value`: what it holds where it is followed, as one flat array; `checksum`: of its numbers then.

    `made`: an operator made it, of data or not. `parameter`: a leaf of autograd that lies in it. `buffer`: the name of
    a module's buffer.
    """

    weak: Any
    value: Box | NoBound | None = None
    dtype: torch.dtype | None = None
    checksum: Tensor | None = None
    memory: range = range(0)
    made: str = ""
    parameter: Tensor | None = None
    buffer: str = ""


Which = tuple[str, int, str]
"""What a step was given (`grad`), or left (`weight`); the step from 1; the parameter."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A gradient that a step was given, or a weight after it: its enclosures and its numbers."""

    location: Location
    value: Box | NoBound
    dtype: str
    numbers: Tensor


class Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bounds what runs inside `with run.running():`; the observations are in `seen`.

    `rules`: of the operators, instead of `RULES`. `lost`: why nothing is bounded. `outside`: the operators whose
    results were not inside their enclosures, each with its line.
    """

    def __init__(self, domain: Domain, rules: Mapping[str, Rule] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.domain = domain
        self.domain.rules = RULES if rules is None else rules
        self.lost, self.outside = "", list[Key]()
        self.seen: dict[Which, Seen] = {}
        self.held: dict[int, BoundedStorage] = {}
        self.names: dict[int, tuple[Tensor, str]] = {}
        self.taken: Counter[str] = Counter()
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.optimized: set[int] = set()
        self.stepping: Optimizer | None = None
        self.steps = 0
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
            engine: Any = self
            stack.enter_context(calls(engine))
            stack.enter_context(steps(self.before_step, self.after_step))
            stack.enter_context(nn.modules.module.register_module_forward_pre_hook(self._forward))
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
                self._of(buffer).buffer = name

    def name(self, parameter: Tensor, name: str = "") -> str:
        """The name of a parameter: in the first module that ran with it, else a number."""
        if id(parameter) not in self.names:
            plain = (name or f"param{len(self.names)}").removeprefix("module.").removeprefix("_orig_mod.")
            self.taken[plain] += 1
            again = f"#{self.taken[plain]}" if self.taken[plain] > 1 else ""
            self.names[id(parameter)] = (parameter, plain + again)
        return self.names[id(parameter)][1]

    def begin(self, *_: Any) -> None:
        """A backward pass begins."""

    broke = begin

    def ended(self, found: Any) -> None:
        """A backward pass has ended. One inside of a step is a closure's: the step applies what it leaves."""
        if self.stepping is not None:
            self._gradients(self.stepping)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.stepping = optimizer
        self.steps += 1
        self._gradients(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self.stepping = None
        self._observe("weight", [(p, p) for p in params_of(optimizer)])

    def _gradients(self, optimizer: Optimizer) -> None:
        self._observe("grad", [(p, p.grad) for p in params_of(optimizer) if p.grad is not None])

    def _observe(self, kind: str, tensors: Sequence[tuple[Tensor, Tensor]]) -> None:
        with aside():
            for parameter, tensor in tensors:
                if odd(tensor):
                    self.lose(f"a tensor of {tensor.layout} and {tensor.dtype}")
                    return
                where, dtype = self.location(), str(tensor.dtype).removeprefix("torch.")
                self.domain.begin(("", where), [FLOATS.get(tensor.dtype, "")])
                found = Seen(where, self._lifted(self.read(tensor)), dtype, numbers_of(tensor))
                self.seen[kind, self.steps, self.name(parameter)] = found

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
            if any(t.requires_grad or self._alive(t) for t in tensors):
                what = "runs a function of its own" if spec is None else "has a tensor of another layout"
                self.lose(f"{func} {what}")
            return func(*args, **kwargs)
        with aside():
            for t in tensors:
                if trainable(t):
                    self._of(t).parameter = t
            followed = self._takes_part(spec, args, kwargs, tensors)
        if spec.view:
            return func(*args, **kwargs)
        return self._operate(func, spec, args, kwargs) if followed else self._beside(func, spec, args, kwargs)

    def _takes_part(self, spec: Spec, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> bool:
        if spec.by_shape:
            return False
        if any(self._alive(t) for t in tensors):
            return True
        homes = [self._of(t) for t in spec.targets(args, kwargs)]
        read = [held for held in map(self._of, tensors) if held not in homes]
        return any(held.parameter is not None for held in read) and not initialising()

    def _of(self, tensor: Tensor) -> BoundedStorage:
        """What is known of the storage of a tensor."""
        storage = tensor.untyped_storage()
        found = self.held.get(storage._cdata)
        if found is None or found.weak.expired():
            found = self.held[storage._cdata] = BoundedStorage(weakly(storage))
        return found

    def _alive(self, tensor: Tensor) -> bool:
        """Whether the storage of a tensor is followed."""
        return not odd(tensor) and self._of(tensor).value is not None

    def _beside(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """An operator that is not followed: what it makes is data, where it draws it, or makes it of data."""
        given = tensors_in((args, kwargs))
        learns = torch.is_grad_enabled() and not spec.by_shape and not initialising()
        if learns and any(t.requires_grad and not trainable(t) for t in given):
            self.lose("a tensor that no operator made depends on a parameter")
        with aside():
            data = spec.function in GENERATORS or (not spec.by_shape and any(self._data(t) for t in given))
        out = func(*args, **kwargs)
        with aside():
            for tensor in (t for t in [*tensors_in(out), *spec.targets(args, kwargs)] if not odd(t)):
                self._of(tensor).made = "of data" if data else "of constants"
        return out

    def _data(self, tensor: Tensor) -> bool:
        """Whether a tensor that no followed operator made is data: from outside of torch, more than one number is."""
        held = self._of(tensor)
        if odd(tensor) or held.buffer or self._owned(tensor):
            return False
        outside = tensor.is_floating_point() and tensor.untyped_storage().nbytes() > tensor.element_size()
        return held.made == "of data" or (not held.made and outside)

    def _owned(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter of a module or an optimizer, and no data of which a gradient is taken."""
        known = self._of(tensor).parameter
        return isinstance(known, nn.Parameter) or id(known) in self.optimized

    def _operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator, and its rule on the enclosures of its arguments."""
        with aside():
            if spec.alters:
                self.lose(f"{spec.base} puts other memory under a tensor")
            rest = {n: v for n, v in kwargs.items() if n not in spec.results}
            computes = common(tensors_in((args, rest)))
            given = list(tree_map(self.read, (args, rest)))
            if spec.base in OVERWRITES:
                given[0] = (numbers_of(args[0]), *given[0][1:])
        out = func(*args, **kwargs)
        if self.lost:
            return out
        with aside(), default_dtype(torch.float64):
            own, results = spec.targets(args, kwargs), list(out) if isinstance(out, list | tuple) else [out]
            if not tensors_in(results):
                results = [spec.argument(at, args, kwargs) for at in spec.written]
            made = tensors_in(results)
            why = next((str(v) for v in tree_leaves(given) if isinstance(v, NoBound)), "")
            if not why:
                formats = [FLOATS.get(t.dtype, "") for t in made if t.is_floating_point()]
                formats += [computes] if computes and (spec.results or not formats) else []
                why = self._bounded(spec, given, results, formats, computes)
            for tensor in [*made, *own] if why else [t for t in own if not any(t is one for one in made)]:
                self._hold(tensor, NoBound(why or f"{self.location()}: {spec.name} writes an argument without a bound"))
        return out

    def _bounded(self, spec: Spec, given: list[Any], results: list[Any], formats: Sequence[str], computes: str) -> str:
        """Put the enclosures of the results where they are; why they have none, or nothing."""
        made, location = tensors_in(results), self.location()
        try:
            self.domain.begin((spec.name, location), formats, results)
            fits = "" if spec.function in (*CASTS, *MOVED) else computes
            args, kwargs = tree_map(lambda arg: self._lifted(arg, fits), given)
            rule = self.domain.rule(spec)
            if rule is None:
                raise NoBound("no bound is known for its kernel")
            values = [v for v in tree_leaves(rule(self.domain, *args, **kwargs)) if v is not None]
            if len(values) != len(made):
                raise NoBound(f"the rule gives {len(values)} results, and the operator {len(made)}")
            for tensor, value in zip(made, values, strict=True):
                self._store(tensor, value)
        except NoBound as error:
            return f"{location}: {spec.name}: {error}"
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            return f"{location}: {spec.name}: its rule does not know these arguments ({what})"
        return ""

    # Memory

    def read(self, arg: Any) -> Any:
        """The enclosures of a tensor, why it has none, or the numbers of a constant; any other argument as it is."""
        if not isinstance(arg, Tensor):
            return arg
        held = self._of(arg)
        if held.value is None and not self._leaf(arg):
            return numbers_of(arg) if arg.is_floating_point() else arg.to("cpu", copy=True)
        if not same(held.checksum, checksum(flat(arg))):
            self.lose("a tensor was changed by something that is no operator")
        if held.dtype is not arg.dtype:
            self.lose("the memory of a tensor is read as another type")
        if not isinstance(held.value, Box):
            return held.value
        return Box(self.domain, [strided(part, arg) for part in held.value.parts], held.value.format)

    def _leaf(self, tensor: Tensor) -> bool:
        """What no followed operator made is a leaf where it is first read, or a constant: False."""
        held, outside = self._of(tensor), tensor.is_floating_point() and not self._of(tensor).made
        if tensor.dtype not in FLOATS:
            return False
        if held.buffer:
            kind, name = "buffer", held.buffer
        elif self._data(tensor):
            kind, name = "data", ""
        elif held.parameter is not None:
            kind, name = "param", self.name(held.parameter)
        else:
            return False
        if held.parameter is None and outside and (self._shared(tensor) or tensor.requires_grad):
            self.lose("a tensor that no operator made depends on, or shares the memory of, one that is followed")
        numbers = numbers_of(flat(tensor))
        if bool(numbers.isfinite().all()):
            self._hold(tensor, self.domain.leaf(kind, name, FLOATS[tensor.dtype], numbers))
        return held.value is not None

    def _shared(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of a storage that is followed."""
        at = tensor.untyped_storage().data_ptr()
        return any(at in held.memory and not held.weak.expired() for held in self.held.values())

    def _hold(self, tensor: Tensor, value: Box | NoBound) -> None:
        if odd(tensor):
            self.lose(f"a tensor of the {tensor.layout} layout")
            return
        held, storage = self._of(tensor), tensor.untyped_storage()
        held.value, held.dtype, held.checksum = value, tensor.dtype, checksum(flat(tensor))
        held.memory = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())

    def _lifted(self, arg: Any, fits: str = "") -> Any:
        """What was read, in the format of the operator: an enclosure of a wider one is rounded, where it computes."""
        if isinstance(arg, Box):
            return self.domain.stored(arg, fits) if fits and not within(arg.format, fits) else arg
        return self.domain.lift(arg) if isinstance(arg, Tensor) and arg.is_floating_point() else arg

    def _store(self, tensor: Tensor, value: Any) -> None:
        """A result in its place; integers are the machine's own."""
        held, truth = self._of(tensor), tensor.dtype is torch.bool and isinstance(value, Box) and value.format == "bool"
        if not isinstance(value, Box) or not (tensor.is_floating_point() or truth):
            held.value = None
            low, high, err = value.parts if isinstance(value, Box) else (torch.zeros(()),) * 3
            if not torch.equal((low - err).trunc(), (high + err).trunc()):
                op, location = self.domain.key
                self._hold(tensor, NoBound(f"{location}: {op}: rounding may make another integer"))
            return
        if not truth:
            value = self.domain.stored(value, FLOATS[tensor.dtype])
        value = value.expand(tensor.shape)
        if not truth and not value.around(numbers_of(tensor)):
            self.outside.append(self.domain.key)
        if tensor.numel() == flat(tensor).numel() and tensor.is_contiguous():
            self._hold(tensor, value.reshape(-1))
            return
        numbers = numbers_of(flat(tensor))
        around = (numbers, numbers, torch.zeros_like(numbers)) if held.value is None else held.value
        if isinstance(around, NoBound):
            self._hold(tensor, around)
            return
        copies = [part.clone() for part in (around.parts if isinstance(around, Box) else around)]
        for copy, part in zip(copies, value.parts, strict=True):
            strided(copy, tensor).copy_(part)
        self._hold(tensor, Box(self.domain, copies, value.format))


# -- Tensors


@contextmanager
def aside() -> Iterator[None]:
    """The mode's own use of tensors."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def odd(tensor: Tensor) -> bool:
    """Whether a tensor has no storage of real numbers of its own."""
    return not plain(tensor) or tensor.is_complex()


def trainable(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of autograd that requires gradients, and no view of one."""
    view = tensor._base is not None and tensor._base.requires_grad
    return tensor.requires_grad and not view and tensor.is_leaf


def common(tensors: Sequence[Tensor]) -> str:
    """The format in which an operator on these computes: the widest of tensors with dimensions, else of all."""
    floats = [t for t in tensors if t.dtype in FLOATS]
    names = [FLOATS[t.dtype] for t in floats if t.dim()] or [FLOATS[t.dtype] for t in floats]
    if {"float16", "bfloat16"} <= set(names):
        names.append("float32")
    return next((name for name in FORMATS if name in names), "")


def numbers_of(tensor: Tensor) -> Tensor:
    """A copy of a tensor's numbers in float64."""
    return tensor.detach().to("cpu", torch.float64, copy=True)


def flat(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor, in one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def strided(part: Tensor, tensor: Tensor) -> Tensor:
    """The elements of a flat array at which a tensor is, as a view."""
    return part.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


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
