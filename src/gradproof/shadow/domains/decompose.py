"""Operators without a row, by the decompositions that torch ships.

The decomposition runs once on placeholders of the same shapes and dtypes, and the operators of which it consists are
interpreted instead, in storages of their own. Integers and constants keep their real values. A decomposition that
looks at a placeholder's value, or that leads to an operator without a row, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.shadow.algebra import Value, lift
from gradproof.shadow.domains.interpreter import Interpreter, Memory
from gradproof.shadow.ops.rows import lookup
from gradproof.shadow.ops.schema import spec_of, tensors_in
from gradproof.shadow.ops.table import OperatorRow, PathConditions
from gradproof.shadow.tape import FLOATS, Const, Entry, Init, Ref


@dataclass(slots=True)
class Pieces:
    """What an operator consists of. `inputs` pairs its tensors with the storages that stand for them.

    `results` stand for the tensors that the operator wrote or made, in the order of `Entry.outs`.
    """

    items: list[Entry | Init] = field(default_factory=list)
    inputs: list[tuple[Ref, Ref]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


def decompose(
    entry: Entry, integers: Mapping[Ref, Any] | None = None, table: Mapping[str, OperatorRow] | None = None
) -> Pieces | None:
    """The pieces of an operator, or None where torch ships no decomposition that could be followed.

    `integers`: arrays for those of its tensors whose elements are known on the path (int or bool, of the Ref's shape).
    What has a row in `table` (by default gradproof's own) is a piece; what has none is decomposed further.
    """

    return trace(entry, dict(integers or {}), table)


class Decomposer:
    """A `Havoc` for `Interpreter`: answers for an operator without a row by its decomposition, or not at all.

    `used` counts, by operator, how often it did. A decomposition is equal to its kernel over the reals, not in its
    roundings, so that the rounding domain gets no answer.
    """

    def __init__(self, table: Mapping[str, OperatorRow] | None = None) -> None:
        self.table = table
        self.used: dict[str, int] = {}

    def __call__(self, entry: Entry, memory: Memory, path: PathConditions) -> bool:
        """Interpret the pieces in `memory`. Raises Beyond where a row of a piece does."""
        known = {ref: memory.read(ref) for ref in _refs((entry.args, entry.kwargs)) if ref.storage in memory.flat}
        whole = {ref: np.asarray(v) for ref, v in known.items() if not isinstance(v, Value)}
        pieces = None if memory.domain.name == "rounding" else decompose(entry, whole, self.table)
        if pieces is None:
            return False
        self._interpret(entry, pieces, memory, path)
        self.used[entry.op] = self.used.get(entry.op, 0) + 1
        return True

    def _interpret(self, entry: Entry, pieces: Pieces, memory: Memory, path: PathConditions) -> None:
        machine = Interpreter(memory.domain, self.table)
        machine.path = path
        for ref, stand_in in pieces.inputs:
            machine.memory.write(stand_in, memory.read(ref))
        for item in pieces.items:
            machine.do(item)
        for out, result in zip(_flat(entry.outs), _flat(pieces.results), strict=True):
            if isinstance(out, Ref):
                memory.write(out, _value(machine, result))


def _value(machine: Interpreter, result: Any) -> Any:
    if isinstance(result, Ref):
        return machine.memory.read(result)
    constant = result.value
    return lift(machine.domain, constant) if constant.dtype.kind == "f" else constant


def _flat(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, list | tuple) else [value]
    return found


def _refs(arg: Any) -> list[Ref]:
    if isinstance(arg, Mapping):
        return [r for a in arg.values() for r in _refs(a)]
    if isinstance(arg, list | tuple):
        return [r for a in arg for r in _refs(a)]
    return [arg] if isinstance(arg, Ref) else []


# -- Following a decomposition: a dispatch mode that notes the operators which touch a placeholder. Needs torch.
PRIMS = frozenset(
    f"prims.{name}.default"
    for name in (
        "abs", "add", "atan", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clone", "cos", "cosh",
        "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "fmax", "fmin", "fmod", "ge", "gt",
        "isfinite", "le", "log", "log10", "log1p", "log2", "lt", "maximum", "minimum", "mul", "ne", "neg", "pow",
        "reciprocal", "remainder", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
        "where",
    )
)  # fmt: skip
"""Elementwise primitives that mean what the ATen operator of the same name means."""

PLAIN = (torch.dtype, torch.layout, torch.memory_format)


class DecompositionRefused(Exception):
    """The decomposition looks at a placeholder's value, or there is none."""


def operator(name: str) -> Any:
    """An operator by its full schema name; None where torch has none."""
    space, base, overload = (*name.split("."), "default")[:3]
    packet = getattr(getattr(torch.ops, space), base, None)
    return None if packet is None else getattr(packet, overload, None)


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Any]:
    """All that torch ships, by operator; those of the core operators win."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    return {**decomposition_table, **core_aten_decompositions()}


def meaning(func: Any, args: Any) -> tuple[str, Any, dict[str, Any]] | None:
    """Name, arguments and options under which the table is asked for a primitive; None for other operators."""
    name = str(func)
    if name in PRIMS:
        return name.replace("prims.", "aten.").replace("erf_inv", "erfinv"), args, {}
    if name == "prims.convert_element_type.default":
        return "aten._to_copy.default", args[:1], {"dtype": args[1]}
    return None


def name_of(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators on tracked storages; what has no row is decomposed."""

    def __init__(self, entry: Entry, table: Mapping[str, OperatorRow] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entry, self.table = entry, table
        self.pieces = Pieces()
        self.tracked: dict[int, int] = {}
        self.alive: list[torch.Tensor] = []

    def track(self, tensor: torch.Tensor) -> None:
        """A storage of its own for a tensor."""
        self.alive.append(tensor)
        self.tracked.setdefault(tensor.untyped_storage()._cdata, len(self.tracked))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor depends on a placeholder."""
        return tensor.untyped_storage()._cdata in self.tracked

    def arg(self, value: Any) -> Any:
        """An argument as the tape holds it."""
        if isinstance(value, torch.Tensor):
            return self.ref(value) if self.knows(value) else self.constant(value)
        if isinstance(value, list | tuple):
            return [self.arg(v) for v in value]
        return name_of(value) if isinstance(value, torch.dtype) else str(value) if isinstance(value, PLAIN) else value

    def ref(self, tensor: torch.Tensor) -> Ref:
        """Geometry over a tracked storage."""
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        number = self.tracked[tensor.untyped_storage()._cdata]
        offset, shape, stride = int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
        return Ref(number, name_of(tensor.dtype), offset, shape, stride, size)

    def constant(self, tensor: torch.Tensor) -> Const:
        """An untracked tensor by value."""
        plain = tensor.detach().double() if tensor.dtype.is_floating_point else tensor.detach()
        return Const(plain.numpy().copy(), name_of(tensor.dtype))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator inside a decomposition."""
        kwargs = kwargs or {}
        if not any(self.knows(t) for t in tensors_in([args, kwargs])):
            return func(*args, **kwargs)
        if str(func).startswith("aten._local_scalar_dense"):
            raise DecompositionRefused(str(func))
        spec = spec_of(func)
        if spec is None:
            raise DecompositionRefused(str(func))
        if spec.view:
            return func(*args, **kwargs)
        name, named, options = meaning(func, args) or (str(func), args, kwargs)
        if lookup(name, self.table) is None:
            return self.broken(func, args, kwargs)
        given = tuple(self.arg(a) for a in named), {key: self.arg(a) for key, a in options.items()}
        return self.noted(func, args, kwargs, (name, given))

    def broken(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Decompose further. Raises Refused where torch does not."""
        rule = decompositions().get(func)
        with self:
            result = rule(*args, **kwargs) if rule is not None else func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise DecompositionRefused(str(func))
        return result

    def noted(self, func: Any, args: Any, kwargs: Any, called: Any) -> Any:
        """Note an operator that has a row, and run it on the placeholders."""
        spec = spec_of(func)
        assert spec is not None
        written = [spec.argument(at, args, kwargs) for at in spec.written]
        for tensor in tensors_in(written):
            if not self.knows(tensor):
                self.begin(tensor)
        name, given = called
        before = {t.untyped_storage()._cdata for t in tensors_in([args, kwargs])}
        result = func(*args, **kwargs)
        returned = list(result) if isinstance(result, tuple) else [result]
        made = [returned[i] for i in spec.fresh]
        if not all(isinstance(r, torch.Tensor | list | tuple) for r in made):
            raise DecompositionRefused(str(func))
        if not written and all(t.untyped_storage()._cdata in before for t in tensors_in(made)):
            return result
        for tensor in tensors_in(made):
            self.track(tensor)
        outs = tuple(self.arg(o) for o in [*written, *made])
        refs = tuple(self.ref(t) for t in tensors_in([written, made]))
        place, backward, micro = self.entry.place, self.entry.backward, self.entry.micro
        self.pieces.items.append(Entry(name, given[0], given[1], outs, refs, place, backward, micro))
        return result

    def begin(self, tensor: torch.Tensor) -> None:
        """An untracked tensor that is written from a tracked one."""
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = self.constant(tensor.as_strided((size,), (1,), 0))
        self.track(tensor)
        self.pieces.items.append(Init(self.ref(tensor).storage, whole, size))


class Placeholders:
    """Tensors in the place of an entry's arguments."""

    def __init__(self, tracer: Tracer, integers: dict[Ref, Any]) -> None:
        self.tracer, self.integers = tracer, integers
        self.made: dict[Ref, torch.Tensor] = {}

    def of(self, arg: Any, key: str = "") -> Any:
        """The argument that torch takes."""
        if isinstance(arg, Ref):
            return self.tensor(arg)
        if isinstance(arg, Const):
            return torch.from_numpy(np.array(arg.value)).to(getattr(torch, arg.dtype))
        if isinstance(arg, list | tuple):
            return [self.of(a) for a in arg]
        if key == "device":
            return torch.device("cpu")
        found = getattr(torch, arg.removeprefix("torch."), None) if isinstance(arg, str) else None
        return found if isinstance(found, PLAIN) else arg

    def tensor(self, ref: Ref) -> torch.Tensor:
        """A placeholder, or the integers themselves."""
        if ref not in self.made:
            known = None if ref.dtype in FLOATS else self.integers.get(ref)
            dtype = getattr(torch, ref.dtype)
            if known is not None:
                self.made[ref] = torch.from_numpy(np.array(known)).to(dtype)
            else:
                self.made[ref] = torch.zeros(ref.shape, dtype=dtype)
                self.tracer.track(self.made[ref])
                self.tracer.pieces.inputs.append((ref, self.tracer.ref(self.made[ref])))
        return self.made[ref]


def trace(entry: Entry, integers: dict[Ref, Any], table: Mapping[str, OperatorRow] | None = None) -> Pieces | None:
    """The pieces of an operator; None where there is no decomposition, or none that could be followed."""
    func = operator(entry.op)
    spec = None if func is None else spec_of(func)
    if spec is None or overlapping(entry):
        return None
    tracer = Tracer(entry, table)
    stand = Placeholders(tracer, integers)
    args = [stand.of(a) for a in entry.args]
    kwargs = {key: stand.of(a, key) for key, a in entry.kwargs.items() if key not in ("generator", "out")}
    try:
        with torch.no_grad():
            result = tracer.broken(func, args, kwargs)
    except (DecompositionRefused, NotImplementedError, RuntimeError, TypeError, AssertionError):
        return None
    returned = list(result) if isinstance(result, tuple) else [result]
    written = [spec.argument(at, args, kwargs) for at in spec.written]
    results = [tracer.arg(r) for r in [*written, *(returned[i] for i in spec.fresh)]]
    if len(results) != len(entry.outs):
        return None
    tracer.pieces.results = results
    return tracer.pieces


def overlapping(entry: Entry) -> bool:
    """Whether a written argument is a view of a storage that another argument views differently."""
    seen: dict[int, Ref] = {}
    written = {ref.storage for ref in entry.writes}
    for ref in _references((entry.args, list(entry.kwargs.values()))):
        if seen.setdefault(ref.storage, ref) != ref and ref.storage in written:
            return True
    return False


def _references(arg: Any) -> list[Ref]:
    if isinstance(arg, list | tuple):
        return [r for a in arg for r in _references(a)]
    return [arg] if isinstance(arg, Ref) else []
