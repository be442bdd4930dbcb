"""Writes that are no operators: NumPy, another process, or a kernel of an extension changes the memory of a tensor.

A tensor whose memory somebody else can reach is compared whole, by checksum. What writes into any other asked nobody
for its memory, as a kernel of an extension does: of it at most SAMPLED elements are compared.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.buffers import BITS, checksum, same
from gradproof.shadow.tape import NOWHERE, Location, frames, user_place
from gradproof.shadow.whole.terms import ZERO, Combination, multiplied, plus, times
from gradproof.shadow.whole.values import Value, shared, weakly

if TYPE_CHECKING:
    from gradproof.shadow.whole.engine import Engine

SAMPLED = 1024
WAYS_OUT = ("numpy", "__array__", "data_ptr", "__dlpack__")
"""Methods that give away the memory of a tensor."""
OF_STORAGES = ("__getitem__", "tolist", "__setitem__", "fill_", "copy_", "data_ptr")
"""Methods of a storage that write, or give its memory away."""


class Escapes:
    """The storages whose memory was given away. An array that nobody holds any more reaches nothing.

    What another library owns cannot be resized, and neither can what NumPy was given: the latter is known here.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[Any, Callable[[], Any]]]] = {}

    def left(self, storage: torch.UntypedStorage, found: Any, foreign: bool = False) -> None:
        """Python has got the memory of a storage, as `found`. `foreign`: it was another library's before."""
        if storage._cdata not in self._held and foreign:
            found = None
        array = weakref.ref(found) if isinstance(found, numpy.ndarray) else lambda: True
        self._held.setdefault(storage._cdata, []).append((weakly(storage), array))

    def reach(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else can reach the memory of a tensor."""
        storage = tensor.untyped_storage()
        given = [(weak, array) for weak, array in self._held.get(storage._cdata, ()) if not weak.expired()]
        if storage.device.type == "cpu" and (storage.is_shared() or (not given and not storage.resizable())):
            return True
        alive = [(weak, array) for weak, array in given if array() is not None]
        self._held[storage._cdata] = alive or given[:1]
        return bool(alive)


class Unchanged:
    """What tensors held when they were kept."""

    def __init__(self, escapes: Escapes) -> None:
        self.escapes = escapes
        self._seen: dict[str, tuple[torch.Tensor, Value, bool, torch.Tensor | None]] = {}

    def keep(self, name: str, tensor: torch.Tensor, value: Value) -> None:
        """Keep what a tensor holds."""
        whole = self.escapes.reach(tensor)
        self._seen[name] = (tensor.detach(), value, whole, checksum(tensor) if whole else fingerprint(tensor))

    def left(self, storage: torch.UntypedStorage) -> None:
        """The memory of a storage is given away now: what it holds is kept whole from here on."""
        for name, (tensor, value, whole, before) in list(self._seen.items()):
            if not whole and tensor.untyped_storage()._cdata == storage._cdata and same(before, fingerprint(tensor)):
                self._seen[name] = (tensor, value, True, checksum(tensor))

    def changed(
        self, kind: str, read: Callable[[torch.Tensor], Value | None]
    ) -> Iterator[tuple[str, torch.UntypedStorage]]:
        """The kept tensors of a kind that no operator wrote, and that hold something else; each is forgotten."""
        for name in [name for name in self._seen if name.startswith(kind)]:
            tensor, value, whole, before = self._seen.pop(name)
            if read(tensor) is value and not same(before, checksum(tensor) if whole else fingerprint(tensor)):
                yield name, tensor.untyped_storage()

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()


def fingerprint(tensor: torch.Tensor) -> torch.Tensor | None:
    """At most SAMPLED elements of a tensor, as bits, at an odd distance; all of a tensor that has gaps."""
    size = tensor.numel()
    with torch.no_grad(), _disable_current_modes():
        plain = tensor.detach()
        if plain.is_complex() or plain.element_size() not in BITS or tensor.is_quantized:
            return checksum(tensor)
        if not plain.is_contiguous():
            ordered = sorted(zip(plain.stride(), plain.shape, strict=True), reverse=True)
            dense = [math.prod(n for _, n in ordered[at + 1 :]) for at in range(len(ordered))]
            if any(n > 1 and step != whole for (step, n), whole in zip(ordered, dense, strict=True)):
                return checksum(tensor)
            plain = plain.as_strided((size,), (1,))
        step = max(1, size // SAMPLED) | 1
        return plain.reshape(-1)[::step].clone().view(BITS[plain.element_size()])


@contextmanager
def ways_out(
    left: Callable[[torch.Tensor, Any, bool], None], written: Callable[[torch.UntypedStorage], None]
) -> Iterator[None]:
    """`left` is called with each tensor whose memory is given away, and with what was given.

    `written` is called with each storage that Python is about to write, or to give away, by itself.
    """

    def leaving(original: Any) -> Any:
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            own = self.layout is torch.strided and not self.is_meta and self.untyped_storage().resizable()
            found = original(self, *args, **kwargs)
            left(self, found, not own)
            return found

        return call

    def writing(original: Any) -> Any:
        def call(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            written(self)
            return original(self, *args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in OF_STORAGES:
            stack.enter_context(replaced(torch.UntypedStorage, name, writing(getattr(torch.UntypedStorage, name))))
        for name in WAYS_OUT:
            stack.enter_context(replaced(torch.Tensor, name, leaving(getattr(torch.Tensor, name))))
        dlpack: Any = torch.utils.dlpack
        stack.enter_context(replaced(dlpack, "to_dlpack", leaving(dlpack.to_dlpack)))
        yield


# -- What is seen beside operators: optimizer steps, modules, and backward passes.


@contextmanager
def steps(before: Callable[[Any], None], after: Callable[[Any], None]) -> Iterator[None]:
    """Each optimizer step while this runs; a step that calls that of its base class is one step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    running: list[int] = []

    def begins(optimizer: Any, *_: Any) -> None:
        running.append(id(optimizer))
        if running.count(id(optimizer)) == 1:
            before(optimizer)

    def ends(optimizer: Any, *_: Any) -> None:
        if running.count(id(optimizer)) == 1:
            after(optimizer)
        if id(optimizer) in running:
            running.remove(id(optimizer))

    with removed(register_optimizer_step_pre_hook(begins)), removed(register_optimizer_step_post_hook(ends)):
        yield


@contextmanager
def watched(engine: Engine) -> Iterator[None]:
    """Optimizer steps, modules and backward calls are seen while this runs."""
    from torch.nn.modules import module

    with ExitStack() as stack:
        stack.enter_context(steps(engine.before_step, engine.after_step))
        stack.enter_context(removed(module.register_module_parameter_registration_hook(engine.registered)))
        stack.enter_context(removed(module.register_module_module_registration_hook(engine.registered)))
        stack.enter_context(removed(module.register_module_buffer_registration_hook(engine.buffered)))
        stack.enter_context(calls(engine))
        yield


@contextmanager
def removed(handle: Any) -> Iterator[None]:
    """A hook, for a while."""
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute, for a while."""
    own, before = name in vars(holder), getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if own:
            setattr(holder, name, before)
        else:
            delattr(holder, name)


@contextmanager
def calls(engine: Engine) -> Iterator[None]:
    """The line that started autograd, for what runs in it; `afterwards` is called when it has ended."""
    original = torch.autograd.graph._engine_run_backward

    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
        engine.calls.append(user_place())
        try:
            with torch.no_grad():
                engine.begin(roots, *args)
            try:
                found = original(roots, *args, **kwargs)
            except BaseException:
                engine.broke()
                raise
            with torch.no_grad():
                engine.ended(found)
            return found
        finally:
            engine.calls.pop()
            while engine.afterwards and not engine.calls:
                engine.afterwards.pop()()

    name = "_engine_run_backward"
    with replaced(torch.autograd.graph, name, run), replaced(torch.autograd, name, run):
        yield


def parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    """The parameters of an optimizer, each once."""
    seen: set[int] = set()
    for parameter in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter


def inside(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func, which has no storage of its own."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def digest(tensor: torch.Tensor) -> str:
    """What a real tensor holds."""
    with _disable_current_modes():
        plain = tensor.detach().cpu().reshape(-1).clone()
        return hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


def generator_of(device: Any, given: list[torch.Tensor]) -> torch.Generator:
    """The generator that an operator draws from where it is given none: that of the device of its result."""
    where = torch.device(device) if device is not None else given[0].device if given else torch.get_default_device()
    if where.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if where.index is None else where.index]


def call_site() -> str:
    """The user's line that runs, and which call of the line: `x, y = randn(8), randn(8)` has two."""
    place = user_place()
    at = next((f.f_lasti for f in frames() if f.f_code.co_filename == place.file and f.f_lineno == place.line), 0)
    return f"{place} {at}"


BETWEEN_RANKS = ("distributed_c10d.py", "distributed/utils.py")
"""Files of torch's that read the sizes of the objects and parameters that ranks exchange."""


def of_an_object() -> bool:
    """Whether torch.distributed reads the size of what ranks exchange."""
    return any(frame.f_code.co_filename.endswith(BETWEEN_RANKS) for frame in itertools.islice(frames(), 4))


# -- Numbers that Python reads of a tensor: what they are made of goes along where Python adds, scales and divides
# them.

PLAIN = (int, float)
SHOWN = frozenset({"tolist", "__repr__", "__format__"})
"""Functions that read the numbers of a tensor, and run no operator for it."""
NUMBERS = (
    torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__bool__, torch.Tensor.__float__,
    torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__dlpack__, torch.Tensor.data_ptr,
)  # fmt: skip
"""What Python reads the numbers of a tensor by."""
SCALED = frozenset({
    "mul", "mul_", "div", "div_", "true_divide", "true_divide_", "add", "add_", "sub", "sub_", "__mul__", "__rmul__",
    "__imul__", "__truediv__", "__itruediv__", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__",
    "multiply", "multiply_", "divide", "divide_", "__div__", "__rdiv__", "__idiv__", "_foreach_mul_", "_foreach_mul",
    "_foreach_div_", "_foreach_div",
})  # fmt: skip
"""Functions of tensors in which a number may as well be a tensor of one element."""
FILLED = frozenset({"tensor", "as_tensor", "scalar_tensor", "full", "full_like", "fill_", "new_full", "new_tensor"})
"""Functions that make tensors of one number."""


class NoNumbers(RuntimeError):
    """The function reads a number of a tensor; in a run without numbers there is none."""


class Carries:
    """A number that keeps what it is made of where Python adds, scales and divides it."""

    engine: Engine
    value: Combination
    place: Location

    def kept(self, value: Combination, number: Callable[[], Any]) -> Any:
        """The number that Python makes, and what it is made of."""
        return known(self.engine, value, number())

    def refused(self, other: Any, number: Callable[[], Any]) -> Any:
        """Arithmetic that is not followed: Python goes on with plain numbers; a tensor is asked itself."""
        return NotImplemented if isinstance(other, torch.Tensor) else number()

    def _other(self, other: Any) -> Combination | None:
        """What the other number of an operation is made of; None for what is no number."""
        if isinstance(other, Carries):
            return other.value
        if not isinstance(other, PLAIN) or isinstance(other, bool):
            return None
        held = self.engine.laws.exact(other)
        return None if held is None else {self.engine.terms.one: held} if held else ZERO

    def __reduce__(self) -> Any:
        plain = _bare(self)
        return type(plain), (plain,)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __add__(self, other: Any) -> Any:
        return self._sum(other, Fraction(1), lambda: _bare(self) + _bare(other))

    def __radd__(self, other: Any) -> Any:
        return self._sum(other, Fraction(1), lambda: _bare(other) + _bare(self))

    def __sub__(self, other: Any) -> Any:
        return self._sum(other, Fraction(-1), lambda: _bare(self) - _bare(other))

    def __rsub__(self, other: Any) -> Any:
        own = self._other(other)

        def number() -> Any:
            return _bare(other) - _bare(self)

        return self.refused(other, number) if own is None else self.kept(plus(own, self.value, Fraction(-1)), number)

    def __neg__(self) -> Any:
        return self.kept(times(self.value, Fraction(-1)), lambda: -_bare(self))

    def _sum(self, other: Any, by: Fraction, number: Callable[[], Any]) -> Any:
        own = self._other(other)
        return self.refused(other, number) if own is None else self.kept(plus(self.value, own, by), number)

    def __mul__(self, other: Any) -> Any:
        return self._product(other, lambda: _bare(self) * _bare(other))

    def __rmul__(self, other: Any) -> Any:
        return self._product(other, lambda: _bare(other) * _bare(self))

    def _product(self, other: Any, number: Callable[[], Any]) -> Any:
        own = self._other(other)
        if own is None:
            return self.refused(other, number)
        if not own or not self.value:
            return self.kept(ZERO, number)
        first, second = (own, self.value) if self.engine.laws.constant(own) else (self.value, own)
        by, powers = self.engine.laws.scalar(first)
        return self._at(self.kept(times(self.engine.terms.rescaled(second, powers), by), number), other)

    def _at(self, made: Any, other: Any) -> Any:
        """A number times a plain one was made where the number was."""
        if isinstance(made, Carries) and not isinstance(other, Carries):
            made.place = self.place
        return made

    def __truediv__(self, other: Any) -> Any:
        return self._quotient(self.value, self._other(other), lambda: _bare(self) / _bare(other), other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._quotient(self._other(other), self.value, lambda: _bare(other) / _bare(self), other)

    def _quotient(
        self, over: Combination | None, under: Combination | None, number: Callable[[], Any], other: Any
    ) -> Any:
        if over is None or not under:
            return self.refused(other, number)
        by, powers = self.engine.laws.scalar(under)
        made = times(self.engine.terms.rescaled(over, multiplied({}, powers, -1)), 1 / by)
        return self._at(self.kept(made, number), other)


def _bare(number: Any) -> Any:
    """A number without what it is made of."""
    if isinstance(number, Float):
        return float.__float__(number)
    return int.__int__(number) if isinstance(number, Integer) else number


class Unread(Carries):
    """A number that was taken from a tensor without numbers: it can be added, scaled and printed, and not compared."""

    __slots__ = ("engine", "place", "value")

    def __init__(self, engine: Engine, value: Combination) -> None:
        self.engine, self.value, self.place = engine, value, NOWHERE

    def kept(self, value: Combination, number: Callable[[], Any]) -> Any:
        """Another number that nobody knows."""
        return Unread(self.engine, value)

    def refused(self, *_: Any) -> Any:
        """Raises NoNumbers: a number is needed."""
        place = user_place()
        self.engine.flow.reads.append((place, "a number of a tensor"))
        raise NoNumbers(f"{place} needs a number of a tensor, and in a run without numbers there is none")

    def __format__(self, spec: str) -> str:
        return "?"

    def __repr__(self) -> str:
        return "?"

    def __rtruediv__(self, other: Any) -> Any:
        return self.refused()

    def _quotient(
        self, over: Combination | None, under: Combination | None, number: Callable[[], Any], other: Any
    ) -> Any:
        held = under is not None and self.engine.laws.constant(under)
        return super()._quotient(over, under, number, other) if held else self.refused()

    def _product(self, other: Any, number: Callable[[], Any]) -> Any:
        return self.refused() if isinstance(other, Unread) else super()._product(other, number)

    __float__ = __int__ = __bool__ = __index__ = __round__ = __lt__ = __le__ = __gt__ = __ge__ = refused
    __abs__ = __floordiv__ = __mod__ = __array__ = __pow__ = __rpow__ = __eq__ = __ne__ = refused
    __hash__ = None  # type: ignore[assignment]


def _leads(kind: type, name: str) -> Callable[..., Any]:
    """A method of a plain number, after which Python may go another way at other numbers."""
    plain = getattr(kind, name)

    def method(self: Any, *args: Any) -> Any:
        self.engine.flow.free = True
        self.engine.flow.counted |= kind is int and name in ("__int__", "__index__", "__float__")
        return plain(self, *args)

    return method


class Float(Carries, float):
    """A float that was read of a tensor of a real run."""

    place = NOWHERE
    __hash__ = float.__hash__
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__, __bool__, __int__, __float__, __round__ = (
        _leads(float, f"__{name}__")
        for name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "round")
    )  # fmt: skip


class Integer(Carries, int):
    """An int that was read of a tensor of a real run."""

    place = NOWHERE
    __hash__ = int.__hash__
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__, __bool__, __int__, __float__, __index__ = (
        _leads(int, f"__{name}__")
        for name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "index")
    )  # fmt: skip


def known(engine: Engine, value: Combination, number: Any) -> Any:
    """A number of a real run with what it is made of."""
    if isinstance(number, bool) or not isinstance(number, PLAIN):
        return number
    made: Any = Float(number) if isinstance(number, float) else Integer(number)
    made.engine, made.value, made.place = engine, value, user_place()
    return made


class Unreading(TorchFunctionMode):
    """What Python reads of a tensor of one element becomes an `Unread`; texts of tensors have no numbers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item and args[0].numel() == 1:
            return self._item(args[0])
        if func in NUMBERS:
            engine = self.engine
            engine.flow.reads.append((engine.place(), f"a tensor by {func.__name__}()"))
            raise NoNumbers(
                f"{engine.place()} reads the numbers of a tensor, and in a run without numbers there are none"
            )
        if func in (torch.Tensor.__format__, torch.Tensor.__repr__):
            return "?"
        return func(*args, **(kwargs or {}))

    def _item(self, tensor: torch.Tensor) -> Any:
        engine = self.engine
        whole = single(engine, tensor)
        if engine.laws.constant(whole):
            held = whole.get(engine.terms.one, 0)
            return float(held) if tensor.is_floating_point() else int(held)
        return Unread(engine, whole)


def single(engine: Engine, tensor: torch.Tensor) -> Combination:
    """What the one element of a tensor is made of."""
    with engine.aside():
        whole = engine.combination(tensor)
    return {engine.laws.reshaped(term, ()): by for term, by in whole.items()}


class Reading(TorchFunctionMode):
    """Numbers that Python reads keep what they are made of, until Python makes plain numbers of them.

    `plain`: the plain floats that were read, each with what it is made of, for those that the function returns as they
    are.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.plain: dict[int, tuple[float, Combination]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.item, torch.Tensor.__float__) and args[0].numel() == 1 and not args[0].is_complex():
            return self._one(func, args[0])
        if func is torch.Tensor.__index__:
            return self._index(args[0])
        name = getattr(func, "__name__", "")
        if name in SHOWN:
            self.engine.read_whole(name, args[0])
        if name in SCALED and any(isinstance(arg, Carries) for arg in args):
            wide = any(isinstance(arg, torch.Tensor) and arg.dtype is torch.float64 for arg in args)
            return func(*(self._tensor(arg, wide) for arg in args), **kwargs)
        made = func(*args, **kwargs)
        if name in FILLED and isinstance(made, torch.Tensor):
            given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Carries)]
            if len(given) == 1 and (
                made.is_floating_point() or (made.dtype is torch.int64 and isinstance(given[0], int))
            ):
                self.engine.memory.write(made, shared(given[0].value))
        return made

    def _one(self, func: Any, tensor: torch.Tensor) -> Any:
        flow = self.engine.flow
        before = flow.counted, flow.free
        number = func(tensor)
        whole = self.engine.laws.integers and not tensor.is_floating_point()
        if of_an_object() or isinstance(number, bool) or whole:
            return number
        value = single(self.engine, tensor)
        if func is torch.Tensor.item:
            flow.counted, flow.free = before
            made = known(self.engine, value, number)
            made.place = (self.engine.line(tensor) if made.place.via else None) or made.place
            return made
        self.plain[id(number)] = (number, value)
        return number

    def _index(self, tensor: torch.Tensor) -> Any:
        """A number that was drawn, and is an index as it is, counts nothing."""
        terms, before = self.engine.terms, self.engine.flow.counted
        number = torch.Tensor.__index__(tensor)
        made = {term for part in self.engine.value(tensor).parts for term in part} - {terms.one}
        drawn = [terms.kids[term][0] if terms.operators[term] == "reshape" else term for term in made]
        if all(terms.operators[t] == "data" and not str(terms.attributes[t][0]).startswith("torch.") for t in drawn):
            self.engine.flow.counted = before
        return number

    def _tensor(self, arg: Any, wide: bool) -> Any:
        """A number as a tensor of one element, of a type that makes no result wider than the number does."""
        if not isinstance(arg, Carries):
            return arg
        kind = torch.int64 if isinstance(arg, int) else torch.float64 if wide else torch.get_default_dtype()
        with torch.no_grad(), _disable_current_modes():
            made = torch.tensor(_bare(arg), dtype=kind)
        self.engine.memory.write(made, shared(arg.value))
        return made
