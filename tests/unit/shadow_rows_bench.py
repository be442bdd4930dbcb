"""One run of a real kernel as an entry of a tape: for the tests that compare the rows with the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradproof.shadow.algebra import Domain, Value, lift
from gradproof.shadow.domains.interpreter import Interpreter
from gradproof.shadow.ops.table import Bool, Example, Int, OperatorRow, T
from gradproof.shadow.tape import NOWHERE, Const, Entry, Leaf, Ref, Source, places

FLOATING = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def numbers(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach()
    return plain.double().numpy() if plain.dtype in FLOATING else plain.numpy()


@dataclass
class Case:
    """An entry, what it starts from, and what the kernel left behind: `outs`, and the whole storages of what it wrote.

    `strays`: where `out` has gaps the kernel wrote beside it, or wrote what it does not return (some of torch's).
    """

    entry: Entry
    leaves: list[Leaf]
    truths: list[tuple[Ref, np.ndarray]]
    outs: list[tuple[Ref, np.ndarray]]
    bases: list[tuple[Ref, np.ndarray]] = field(default_factory=list)
    strays: bool = False

    def interpret(self, domain: Domain, table: dict[str, OperatorRow] | None = None) -> Interpreter:
        machine = Interpreter(domain, table)
        for leaf in self.leaves:
            machine.do(leaf)
        for ref, value in self.truths:
            machine.memory.write(ref, lift(domain, value))
        machine.do(self.entry)
        return machine


class Maker:
    """Tensors of an example, and the entry of an operator run on them."""

    def __init__(self, seed: int, dtype: str | None, strided: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype, self.strided = dtype, strided
        self.known: list[tuple[torch.Tensor, int]] = []
        self.constants: set[int] = set()
        self.tracked: set[int] = set()
        self.has_numbers = False

    def tensor(self, spec: Any) -> torch.Tensor:
        if isinstance(spec, T):
            dtype = getattr(torch, self.dtype or spec.dtype)
            self.has_numbers = True
            return self.laid(
                torch.from_numpy(np.asarray(self.random.uniform(spec.low, spec.high, spec.shape))).to(dtype)
            )
        if isinstance(spec, Int):
            drawn = torch.from_numpy(np.asarray(self.random.integers(spec.low, spec.high, spec.shape)))
            return drawn.to(getattr(torch, spec.dtype))
        return self.laid(torch.from_numpy(np.asarray(self.random.uniform(size=spec.shape) < 0.5)))

    def laid(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.strided:
            return tensor
        base = torch.zeros(2 * tensor.numel() + 3, dtype=tensor.dtype)
        if tensor.dtype != torch.bool:
            base.copy_(torch.from_numpy(self.random.uniform(1.0, 2.0, tuple(base.shape))))
        steps = [2 * int(np.prod(tensor.shape[:axis])) for axis in range(tensor.dim())]
        view = base.as_strided(tensor.shape, steps, 1)
        view.copy_(tensor)
        return view

    def made(self, spec: Any, constant: bool) -> Any:
        if isinstance(spec, T | Int | Bool):
            tensor = self.tensor(spec)
            self.known.append((tensor, len(self.known)))
            if constant or isinstance(spec, Int):
                self.constants.add(id(tensor))
            return tensor
        if isinstance(spec, list | tuple):
            return [self.made(s, constant) for s in spec]
        return getattr(torch, spec) if isinstance(spec, str) and hasattr(torch, spec) and spec[-1].isdigit() else spec

    def storage(self, tensor: torch.Tensor) -> int:
        for other, number in self.known:
            if other.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                return number
        self.known.append((tensor, len(self.known)))
        return len(self.known) - 1

    def ref(self, tensor: torch.Tensor) -> Ref:
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        geometry = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        return Ref(self.storage(tensor), name(tensor.dtype), *geometry, size)

    def plain(self, tensor: torch.Tensor) -> bool:
        """Whether the row gets the tensor by value."""
        if id(tensor) in self.tracked:
            return False
        return id(tensor) in self.constants or (tensor.dtype not in FLOATING and self.has_numbers)

    def arg(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Const(numbers(value).copy(), name(value.dtype)) if self.plain(value) else self.ref(value)
        if isinstance(value, list | tuple):
            return [self.arg(v) for v in value]
        return name(value) if isinstance(value, torch.dtype) else value


def overload(row: OperatorRow, example: Example, args: list[Any], kwargs: dict[str, Any], form: str = "") -> Any:
    """The overload that torch itself picks, or the one that the row or the example names."""
    space, base, *rest = row.op.split(".")
    packet = getattr(getattr(torch.ops, space), base + form)
    given = rest[0] if rest else example.overload
    picked = given or torch._C._jit_resolve_packet(f"{space}::{base}{form}", *args, **kwargs)
    return getattr(packet, picked or "default")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((size,), (1,), 0)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from tensors(v)


def run(
    row: OperatorRow, example: Example, seed: int, dtype: str | None, form: str = "", strided: bool = False
) -> Case:
    """Run the kernel. `form`: empty, `_` for the operator in place, `out` for a given output."""
    maker = Maker(seed, dtype, strided)
    args = [maker.made(a, i in example.untracked) for i, a in enumerate(example.args)]
    kwargs = {key: maker.made(a, False) for key, a in example.kwargs.items()}
    func = overload(row, example, args, kwargs, "_" if form == "_" else "")
    if form == "out":
        result = func(*args, **kwargs)
        name_ = "out" if func._overloadname == "default" else f"{func._overloadname}_out"
        packet = func._overloadpacket
        func = getattr(packet, "out" if "out" in packet.overloads() and name_ not in packet.overloads() else name_)
        kwargs["out"] = maker.laid(torch.zeros_like(result))
        maker.known.append((kwargs["out"], len(maker.known)))
        maker.tracked.add(id(kwargs["out"]))
    held = [t for t in tensors([args, list(kwargs.values())]) if not maker.plain(t)]
    leaves = [
        Leaf(maker.ref(whole(t)), Source("data", f"x{i}"), numbers(whole(t)).copy(), NOWHERE)
        for i, t in enumerate(held) if t.dtype in FLOATING
    ]  # fmt: skip
    truths = [(maker.ref(whole(t)), numbers(whole(t)).copy()) for t in held if t.dtype not in FLOATING]
    given = tuple(maker.arg(a) for a in args), {key: maker.arg(a) for key, a in kwargs.items()}
    found = func(*args, **kwargs)
    case = finished(maker, func, (args, kwargs), given, found, (leaves, truths))
    case.strays = any(strayed(case, ref, after) for ref, after in case.bases)
    if form == "out":
        case.strays |= not torch.equal(result, kwargs["out"])
    return case


def strayed(case: Case, base: Ref, after: np.ndarray) -> bool:
    """Whether an element of a storage outside every written view differs from what it was."""
    free = np.ones(base.size, dtype=bool)
    for ref, _ in case.outs:
        if ref.storage == base.storage:
            free[places(ref.offset, ref.shape, ref.stride).ravel().tolist()] = False
    before = next((leaf.value for leaf in case.leaves if leaf.ref.storage == base.storage), after)
    return not np.array_equal(before.ravel()[free], after.ravel()[free], equal_nan=True)


def finished(maker: Maker, func: Any, real: Any, given: Any, found: Any, start: Any) -> Case:
    """The entry of what has run."""
    schema, (args, kwargs) = func._schema, real
    bound = {a.name: args[i] if i < len(args) else kwargs.get(a.name) for i, a in enumerate(schema.arguments)}
    written = [bound[a.name] for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    returned = list(found) if isinstance(found, tuple) else [found] if found is not None else []
    fresh = [r for r, s in zip(returned, schema.returns, strict=False) if s.alias_info is None]
    fresh = fresh if fresh or written else copies(returned)
    real_outs = [*written, *fresh]
    new = {id(t) for t in tensors(fresh)}
    outs = tuple(
        [out(maker, t, new) for t in o] if isinstance(o, list | tuple) else out(maker, o, new) for o in real_outs
    )
    seen = {
        i: numbers(o).copy() for i, o in enumerate(real_outs)
        if isinstance(o, torch.Tensor) and o.dtype not in FLOATING
    }  # fmt: skip
    refs = [(out(maker, t, new), numbers(t).copy()) for t in tensors(real_outs)]
    held = [(r, v) for r, v in refs if isinstance(r, Ref)]
    bases = [(maker.ref(whole(t)), numbers(whole(t)).copy()) for t in tensors(written) if not maker.plain(t)]
    entry = Entry(str(func), given[0], given[1], outs, tuple(r for r, _ in held), NOWHERE, seen)
    return Case(entry, start[0], start[1], held, bases)


def copies(views: list[Any]) -> list[Any]:
    """Views as tensors of their own: a row of a view moves data."""
    return [copies(v) if isinstance(v, list | tuple) else v.clone() for v in views]


def out(maker: Maker, tensor: torch.Tensor, new: set[int]) -> Any:
    """A written argument as it was given; a fresh output is on the tape."""
    return maker.ref(tensor) if id(tensor) in new else maker.arg(tensor)


def read(machine: Interpreter, ref: Ref) -> Any:
    return machine.memory.read(ref)


def shown(value: Any) -> np.ndarray:
    """A Value of the domain of floats as numbers."""
    return value.parts[0] if isinstance(value, Value) else np.asarray(value)


def difference(machine: Interpreter, refs: list[tuple[Ref, np.ndarray]]) -> str:
    """Where the row and the kernel differ, in words; empty where nowhere."""
    for ref, expected in refs:
        value = shown(read(machine, ref))
        if value.shape != expected.shape:
            return f"{ref}: shape {value.shape}, kernel {expected.shape}"
        bound = TOLERANCE.get(ref.dtype, 0.0)
        a, b = value.astype(np.float64), expected.astype(np.float64)
        if not np.allclose(a, b, rtol=bound, atol=bound, equal_nan=True):
            return f"{ref}: row {a.ravel()[:8]}, kernel {b.ravel()[:8]}"
    return ""
