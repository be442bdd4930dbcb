"""A real run whose rounding is bounded while it runs: an enclosure of every number that depends on a parameter.

From the first operator that reads a parameter on, each operator is followed by its rule (`bounds.rules`) on the
enclosures of its arguments. Memory is one flat array of enclosures for each storage; tensors read and write it through
their offset and strides, so that views alias as they do in torch. What no followed operator made is a leaf where it is
first read: a parameter, a buffer of a module, or data, which random operators and the outside make. Any other tensor is
a constant.

Before a storage is read, its bytes are compared with what the last operator left: a difference is a write that no
operator made, and nothing is bounded then. After each operator its results are compared with their enclosures.

The bound is of |machine - exact| for every leaf in its range. The measured error is the distance of the recorded tensor
from its exact value at the recorded leaves, which the enclosures hold to about 1e-14. The share of an operator is what
the bound loses when its own roundings are left out: shares are approximate and need not sum to one. The function is
called once for the bound, once more where ranges are given, and once for each share.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.core.errors import GradproofError
from gradproof.shadow.bounds.domain import FORMATS, Box, Domain, Key, NoBound, Radius, fits
from gradproof.shadow.bounds.rules import MOVED
from gradproof.shadow.follow.interpreter import GENERATORS
from gradproof.shadow.follow.memory import weakly
from gradproof.shadow.follow.unseen import passes, replaced
from gradproof.shadow.locations import Location, initialising, stated, user_location
from gradproof.shadow.ops.schema import Spec, spec_of, tensors_in
from gradproof.shadow.request import RANGE
from gradproof.shadow.tape.calls import params_of, steps
from gradproof.shadow.tape.checksums import checksum, plain, same
from gradproof.shadow.tape.run import Run, Step, default_dtype, seed

CASTS = frozenset({"_to_copy", "copy", "clone", "contiguous", "lift_fresh", "_unsafe_view", "_reshape_alias"})
OVERWRITES = frozenset({"aten.copy_", "aten.fill_", "aten.zero_"})
"""Operators in place that do not read what they write."""
TOP = 4
"""Operators named for each tensor, each of which costs one more run: reading more helps nobody."""
KINDS = frozenset({"data", "param", "buffer"})


@dataclass(slots=True, eq=False)
class BoundedStorage:
    """A storage. `value`: what it holds where it is followed, as one flat array; `checksum`: of its numbers then.

    `kind`: a kind of leaf (`data`, or `buffer` of a `name`), or that of a constant, which has no range. `made`: an
    operator made it. `parameter`: a leaf of autograd that lies in it. `memory`: its addresses, where it is followed.
    """

    weak: Any
    kind: str
    name: str = ""
    made: bool = False
    parameter: Tensor | None = None
    value: Box | NoBound | None = None
    dtype: torch.dtype | None = None
    checksum: Tensor | None = None
    memory: range = range(0)


Which = tuple[str, int, str]
"""What a step was given (`grad`), or left (`weight`); the step from 1; the parameter."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A gradient that a step was given, or a weight after it: its enclosures and its numbers."""

    location: Location
    value: Box | NoBound
    dtype: torch.dtype
    numbers: Tensor


class Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bounds what runs inside `with run.running():`; the observations are in `seen`.

    `lost`: why nothing is bounded. `outside`: the operators whose results were not inside their enclosures, each with
    its line.
    """

    def __init__(self, domain: Domain) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.domain = domain
        self.lost, self.outside = "", list[Key]()
        self.seen: dict[Which, Seen] = {}
        self.held: dict[int, BoundedStorage] = {}
        self.names: dict[int, tuple[Tensor, str]] = {}
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
            stack.enter_context(passes(engine))
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
                held = self._of(buffer)
                held.kind, held.name = "buffer", name

    def name(self, parameter: Tensor, name: str = "") -> str:
        """The name of a parameter: in the first module that ran with it, else a number."""
        if id(parameter) not in self.names:
            plain = (name or f"param{len(self.names)}").removeprefix("module.").removeprefix("_orig_mod.")
            before = sum(known.partition("#")[0] == plain for _, known in self.names.values())
            self.names[id(parameter)] = (parameter, f"{plain}#{before + 1}" if before else plain)
        return self.names[id(parameter)][1]

    def begin(self, *_: Any) -> None:
        """A backward pass begins."""

    broke = begin

    def ended(self, found: Any) -> None:
        """A backward pass has ended. One inside of a step is a closure's: the step applies what it leaves."""
        if self.stepping is not None:
            self._observe("grad", self.stepping)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.stepping = optimizer
        self.steps += 1
        self._observe("grad", optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self.stepping = None
        self._observe("weight", optimizer)

    def _observe(self, kind: str, optimizer: Optimizer) -> None:
        with aside():
            for parameter in params_of(optimizer):
                tensor = parameter.grad if kind == "grad" else parameter
                if tensor is None:
                    continue
                if odd(tensor):
                    self.lose(f"a tensor of {tensor.layout} and {tensor.dtype}")
                    return
                where = self.location()
                self.domain.begin(("", where), [tensor.dtype])
                found = Seen(where, self._enclosed(self.read(tensor)), tensor.dtype, numbers_of(tensor))
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
        strange = spec is None or any(map(odd, tensors))
        with aside():
            for t in tensors:
                if not odd(t) and trainable(t):
                    self._of(t).parameter = t
            followed = [t for t in tensors if not odd(t) and self._of(t).value is not None]
        if spec is None or strange:
            if followed or any(t.requires_grad for t in tensors):
                what = "runs a function of its own" if spec is None else "has a tensor of another layout"
                self.lose(f"{func} {what}")
            return func(*args, **kwargs)
        if spec.view:
            return func(*args, **kwargs)
        if not spec.by_shape and (followed or self._reads_parameters(spec, args, kwargs, tensors)):
            return self._operate(func, spec, args, kwargs)
        return self._beside(func, spec, args, kwargs, tensors)

    def _of(self, tensor: Tensor) -> BoundedStorage:
        """What is known of the storage of a tensor. From outside of torch, more than one number is data."""
        storage = tensor.untyped_storage()
        found = self.held.get(storage._cdata)
        if found is None or found.weak.expired():
            data = tensor.is_floating_point() and storage.nbytes() > tensor.element_size()
            found = self.held[storage._cdata] = BoundedStorage(weakly(storage), "data" if data else "constant")
        return found

    def _reads_parameters(self, spec: Spec, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> bool:
        written = [self._of(t) for t in spec.targets(args, kwargs)]
        read = [held for held in map(self._of, tensors) if held not in written]
        return any(held.parameter is not None for held in read) and not initialising()

    def _beside(self, func: Any, spec: Spec, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Any:
        """An operator that is not followed: what it makes is data, where it draws it, or makes it of data."""
        learns = torch.is_grad_enabled() and not spec.by_shape and not initialising()
        if learns and any(t.requires_grad and not trainable(t) for t in given):
            self.lose("a tensor that no operator made depends on a parameter")
        data = spec.function in GENERATORS or (not spec.by_shape and any(self._kind(t) == "data" for t in given))
        out = func(*args, **kwargs)
        with aside():
            for held in (self._of(t) for t in [*tensors_in(out), *spec.targets(args, kwargs)] if not odd(t)):
                held.made = True
                held.kind = held.kind if held.kind == "buffer" else "data" if data else "constant"
        return out

    def _kind(self, tensor: Tensor) -> str:
        """What kind of leaf a tensor is that no followed operator made.

        Data of which a gradient is taken are data: a parameter is one of a module or an optimizer.
        """
        held = self._of(tensor)
        owned = isinstance(held.parameter, nn.Parameter) or id(held.parameter) in self.optimized
        plain = held.parameter is not None and held.kind == "constant"
        return "param" if plain or (owned and held.kind == "data") else held.kind

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
            results = list(out) if isinstance(out, list | tuple) else [out]
            if not tensors_in(results):
                results = [spec.argument(at, args, kwargs) for at in spec.written]
            made, own, line = tensors_in(results), spec.targets(args, kwargs), f"{self.location()}: {spec.name}"
            unknown = next((v for v in tree_leaves(given) if isinstance(v, NoBound)), None)
            try:
                if unknown is None:
                    self._bounded(spec, given, results, computes)
            except NoBound as error:
                unknown = NoBound(f"{line}: {error}")
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                unknown = NoBound(f"{line}: its rule does not know these arguments ({what})")
            for tensor in [*made, *own] if unknown else [t for t in own if not any(t is one for one in made)]:
                self._hold(tensor, unknown or NoBound(f"{line} writes an argument without a bound"))
        return out

    def _bounded(self, spec: Spec, given: list[Any], results: list[Any], computes: torch.dtype | None) -> None:
        """Put the enclosures of the results where they are. Raises NoBound where they have none."""
        made = tensors_in(results)
        formats = [t.dtype for t in made if t.is_floating_point()]
        formats += [computes] if computes is not None and (spec.results or not formats) else []
        self.domain.begin((spec.name, self.location()), formats, results)
        format = None if spec.function in (*CASTS, *MOVED) else computes
        args, kwargs = tree_map(lambda arg: self._enclosed(arg, format), given)
        rule = self.domain.rule(spec)
        if rule is None:
            raise NoBound("no bound is known for its kernel")
        values = [v for v in tree_leaves(rule(self.domain, *args, **kwargs)) if v is not None]
        if len(values) != len(made):
            raise NoBound(f"the rule gives {len(values)} results, and the operator {len(made)}")
        for tensor, value in zip(made, values, strict=True):
            self._store(tensor, value)

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
        held, kind = self._of(tensor), self._kind(tensor)
        if kind == "constant" or tensor.dtype not in FORMATS:
            return False
        if held.parameter is None and not held.made and (self._shared(tensor) or tensor.requires_grad):
            self.lose("a tensor that no operator made depends on, or shares the memory of, one that is followed")
        numbers = numbers_of(flat(tensor))
        if bool(numbers.isfinite().all()):
            name = self.name(held.parameter) if kind == "param" and held.parameter is not None else held.name
            self._hold(tensor, self.domain.leaf(kind, name, tensor.dtype, numbers))
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

    def _enclosed(self, arg: Any, format: torch.dtype | None = None) -> Any:
        """What was read, in the format of the operator: an enclosure of a wider one is rounded, where it computes."""
        if isinstance(arg, Box):
            return arg if format is None or fits(arg.format, format) else self.domain.stored(arg, format)
        return self.domain.lift(arg) if isinstance(arg, Tensor) and arg.is_floating_point() else arg

    def _store(self, tensor: Tensor, value: Any) -> None:
        """A result in its place; integers are the machine's own."""
        held = self._of(tensor)
        truth = tensor.dtype is torch.bool and isinstance(value, Box) and value.format is torch.bool
        if not isinstance(value, Box) or not (tensor.is_floating_point() or truth):
            held.value = None
            low, high, err = value.parts if isinstance(value, Box) else (torch.zeros(()),) * 3
            if not torch.equal((low - err).trunc(), (high + err).trunc()):
                raise NoBound("rounding may make another integer")
            return
        value = (value if truth else self.domain.stored(value, tensor.dtype)).expand(tensor.shape)
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


def common(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """The format in which an operator on these computes: the widest of tensors with dimensions, else of all."""
    floats = [t for t in tensors if t.dtype in FORMATS]
    formats = [t.dtype for t in floats if t.dim()] or [t.dtype for t in floats]
    return reduce(torch.promote_types, formats) if formats else None


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


# -- The report


def follow(step: Step, run: Run, domain: Domain) -> Follow:
    """Call a training function once, its output unseen, and bound the rounding of what it does."""
    seed(run.seed)
    made = Follow(domain)
    with redirect_stdout(io.StringIO()), made.running():
        try:
            step(run)
        except Exception as caught:
            made.lost = made.lost or f"the function raised {stated(caught)}"
    return made


def report(step: Step, run: Run, ranges: Sequence[str] = ()) -> tuple[list[dict[str, Any]], str]:
    """One entry for each gradient that a step is given and each weight after it; and why there is none, or nothing.

    Keys: `quantity` (grad, weight), `param`, `window` (from 1), `location`, `dtype`, `bound`, `measured` (floats,
    maxima over the elements), `within` (the recorded tensors lie inside their enclosures: anything else refutes the
    bound), `top` (dicts of op, location, share), `reason` (why there is no bound; then `bound` and `within` are None).
    `ranges`: as a user writes them (`request.RANGE`); without, the bound is for the recorded values alone. Raises
    GradproofError GP406 for a range of a name that no parameter has.
    """
    point = follow(step, run, Domain())
    if point.lost:
        return [], point.lost
    wide, chosen = point, dict[str, Radius]()
    if ranges:
        chosen = _ranges(ranges, {name for _, name in point.names.values()})
        wide = follow(step, run, Domain(chosen))
    if wide.lost or not _alike(wide, point):
        return [], wide.lost or "the function does not do the same when it is called again"
    bounds, shares = _bounds(wide), dict[Key, dict[Which, float]]()
    charged = wide.domain.charged
    for key in sorted((key for key in charged if charged[key] > 0), key=lambda key: -charged[key])[: 2 * TOP]:
        without = _bounds(follow(step, run, Domain(chosen, frozenset({key}))))
        shares[key] = {which: 1 - without.get(which, bound) / bound for which, bound in bounds.items() if bound > 0}
    rows = [_entry(wide, point, which, shares) for which in sorted(wide.seen, key=lambda which: which[:2])]
    return rows, ""


def _ranges(texts: Sequence[str], names: set[str]) -> dict[str, Radius]:
    found: dict[str, Radius] = {}
    for text in texts:
        match = RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no range")
        if match["name"] not in KINDS | names:
            expected = f"one of {', '.join(sorted(KINDS | names))}"
            raise GradproofError("GP406", f"range of {match['name']!r}", expected, "change the name before the =")
        given = {key: float(match[key]) for key in ("absolute", "relative", "box") if match[key]}
        if "relative" in given:
            given["relative"] /= 100
        found[match["name"]] = Radius(**given)
    return found


def _alike(one: Follow, other: Follow) -> bool:
    """Whether two runs stepped the same parameters by the same numbers."""
    mine, theirs = ([seen.numbers.nan_to_num() for seen in run.seen.values()] for run in (one, other))
    return [*one.seen] == [*other.seen] and all(map(torch.equal, mine, theirs))


def _bounds(run: Follow) -> dict[Which, float]:
    return {which: largest(seen.value.parts[2]) for which, seen in run.seen.items() if isinstance(seen.value, Box)}


def _entry(wide: Follow, point: Follow, which: Which, shares: Mapping[Key, Mapping[Which, float]]) -> dict[str, Any]:
    seen, exact = wide.seen[which], point.seen[which]
    made: dict[str, Any] = {
        "quantity": which[0], "param": which[2], "window": which[1], "location": str(seen.location),
        "dtype": str(seen.dtype).removeprefix("torch."), "bound": None, "measured": None, "within": None, "top": [],
        "reason": "",
    }  # fmt: skip
    if not isinstance(seen.value, Box) or not isinstance(exact.value, Box):
        return made | {"reason": str(seen.value if isinstance(seen.value, NoBound) else exact.value)}
    low, high, _ = exact.value.parts
    parts = sorted(((by.get(which, 0.0), str(at), op) for (op, at), by in shares.items()), reverse=True)
    return made | {
        "bound": largest(seen.value.parts[2]),
        "measured": largest(torch.maximum(seen.numbers - low, high - seen.numbers)),
        "within": not (wide.outside or point.outside)
        and seen.value.around(seen.numbers) and exact.value.around(exact.numbers),
        "top": [{"op": op, "location": at, "share": share} for share, at, op in parts[:TOP] if share > 0],
    }  # fmt: skip


def largest(x: Tensor) -> float:
    """Largest element, or 0."""
    return max(0.0, float(x.max())) if x.numel() else 0.0
