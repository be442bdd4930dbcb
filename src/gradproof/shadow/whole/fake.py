"""The two runs of a function without numbers: by micro-batches, and by the full batch; and what they say.

Both runs share one store of terms. The gradient of a window is proved equal to the full batch's where both are one
combination: then they are equal for all real parameters, data and draws. An optimizer step makes what it wrote a new
leaf, which is named by its definition: two runs have one leaf only where they wrote the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.ops.schema import Spec
from gradproof.shadow.record.run import Run, blamed, default_dtype, seed, stated, tensors
from gradproof.shadow.tape import NOWHERE, user_place
from gradproof.shadow.whole.arithmetic import RULES, number
from gradproof.shadow.whole.engine import NO_NUMBERS, Engine, Flow, NoNumbers, call_site, digest, replaced, watched
from gradproof.shadow.whole.laws import Call
from gradproof.shadow.whole.terms import Combination, Terms, plus, times
from gradproof.shadow.whole.values import Value, shared

PLAIN = (int, float)
NUMBERS = (
    torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__bool__, torch.Tensor.__float__,
    torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__dlpack__, torch.Tensor.data_ptr,
)  # fmt: skip
"""What Python reads the numbers of a tensor by."""


class Unread:
    """A number that was taken from a tensor without numbers: it can be added, scaled and printed, and not compared."""

    __slots__ = ("engine", "value")

    def __init__(self, engine: Engine, value: Combination) -> None:
        self.engine, self.value = engine, value

    def _joined(self, other: Any, by: int) -> Any:
        if isinstance(other, Unread):
            return Unread(self.engine, plus(self.value, other.value, self._exact(by)))
        if not isinstance(other, PLAIN) or isinstance(other, bool):
            return NotImplemented
        return Unread(self.engine, plus(self.value, {self.engine.terms.one: self._exact(other)}, self._exact(by)))

    def _exact(self, number: float) -> Fraction:
        return Fraction(number)

    def __add__(self, other: Any) -> Any:
        return self._joined(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._joined(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (self * -1) + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, PLAIN) or isinstance(other, bool):
            return self._refused()
        return Unread(self.engine, times(self.value, self._exact(other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, PLAIN) or isinstance(other, bool):
            return self._refused()
        return Unread(self.engine, times(self.value, 1 / self._exact(other)))

    def __format__(self, spec: str) -> str:
        return "?"

    def __repr__(self) -> str:
        return "?"

    def __neg__(self) -> Any:
        return self * -1

    def _refused(self, *_: Any) -> Any:
        place = user_place()
        self.engine.flow.reads.append((place, "a number of a tensor"))
        raise NoNumbers(f"{place} needs a number of a tensor, and in a run without numbers there is none")

    __float__ = __int__ = __bool__ = __index__ = __round__ = __lt__ = __le__ = __gt__ = __ge__ = _refused
    __abs__ = __floordiv__ = __mod__ = __array__ = __pow__ = __rpow__ = __rtruediv__ = __eq__ = __ne__ = _refused
    __hash__ = None  # type: ignore[assignment]


class Reading(TorchFunctionMode):
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
        with torch.no_grad():
            whole = engine.combination(tensor)
        if engine.laws.constant(whole):
            held = whole.get(engine.terms.one, 0)
            return float(held) if tensor.is_floating_point() else int(held)
        return Unread(engine, {engine.laws.reshaped(term, ()): by for term, by in whole.items()})


class Fake(Engine):  # type: ignore[no-untyped-call]
    """An engine for tensors without numbers. Nothing can reach a tensor but through an operator.

    `rows`: samples of a micro-batch; `samples`: of the run. The first axis of a data tensor that has as many rows as
    one of them is the axis of samples; rows of one line of code are numbered in the order in which they are made. What
    that calls a sample is a name for rows of arbitrary numbers: a wrong guess can cost a proof, and makes no false one.
    """

    def __init__(self, terms: Terms, mode: FakeTensorMode, rows: int, samples: int, every: int, run: int) -> None:
        super().__init__(terms, every, run)
        self.mode, self.rows, self.samples = mode, rows, samples
        self.outside: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator; real tensors, which the function took from outside, become data."""
        args, kwargs = self._faked(args), self._faked(kwargs)
        base = spec.base.split(".", 1)[1]
        if base in NO_NUMBERS:
            return self.read(func, base, args, kwargs)
        return super().operate(func, spec, args, kwargs)

    def read(self, func: Any, base: str, args: Any, kwargs: Any) -> Any:
        """A number that the laws know; there is no other."""
        found = number(self.laws, self.value(args[0])) if base == "_local_scalar_dense" else None
        if found is not None:
            kind = args[0].dtype
            return float(found) if kind.is_floating_point else bool(found) if kind is torch.bool else int(found)
        self.flow.reads.append((self.place(), base))
        raise NoNumbers(f"{base} needs a number, and in a run without numbers there is none")

    def source(self, tensor: torch.Tensor, within: tuple[Any, Any], real: torch.Tensor | None = None) -> Value:
        """Data: rows of samples along the first axis that has as many as the run, or as a micro-batch.

        Data of a `real` tensor are named by what they hold, so that two runs that read other data are not one.
        """
        shape, site = tuple(tensor.shape), call_site()
        fitting = (i for i in range(min(2, len(shape))) if shape[i] in (self.samples, self.rows))
        axis = next(fitting, None)
        rows = 1 if axis is None else shape[axis]
        size = shape if axis is None else (*shape[:axis], 1, *shape[axis + 1 :])
        own = f"{site} {size} {tensor.dtype}"
        turn, first = self.made[own, 0], 0 if axis is not None and rows == self.samples else self.made[own, 0]
        self.made[own, 0] += rows
        line = site.rpartition(" ")[0]
        self.flow.sources[line] = max(self.flow.sources.get(line, 0), first + rows)
        names = [(own, turn + i) for i in range(rows)] if real is None else self._contents(real, axis, rows)
        parts = [self.terms.of(self.terms.make("data", (*names[i], within), (), size, first + i)) for i in range(rows)]
        return shared(parts[0]) if axis is None else Value(tuple(parts), axis, 1)

    def _contents(self, real: torch.Tensor, axis: int | None, rows: int) -> list[tuple[str, int]]:
        """The digest of each row of a real tensor, and how many rows of that content were met before."""
        found = []
        for i in range(rows):
            with _disable_current_modes():
                piece = real.detach() if axis is None else real.detach().narrow(axis, i, 1)
            name = f"{real.dtype} {tuple(piece.shape)} {digest(piece)}"
            found.append((name, self.made[name, 0]))
            self.made[name, 0] += 1
        return found

    def _faked(self, value: Any) -> Any:
        """Arguments with real tensors, which the function took from outside, as fake ones: they are data."""
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self._outside(value)
        if isinstance(value, list | tuple):
            found = [self._faked(part) for part in value]
            return found if isinstance(value, list) else tuple(found)
        if isinstance(value, dict):
            return {name: self._faked(part) for name, part in value.items()}
        return value

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.outside:
            made: torch.Tensor = self.mode.from_tensor(tensor)
            self.outside[id(tensor)] = (tensor, made, digest(tensor))
            self.memory.write(made, self._held(tensor, made))
        _, made, held = self.outside[id(tensor)]
        if digest(tensor) != held:
            self.lose("a tensor that was made outside of the function was changed by something that is no operator")
        return made

    def _held(self, tensor: torch.Tensor, made: torch.Tensor) -> Value:
        """What a real tensor stands for: a number, or data within the bounds of what it holds."""
        with _disable_current_modes():
            plain = tensor.item() if tensor.dim() == 0 else None
            counts = not tensor.dtype.is_floating_point and tensor.numel() > 0
            within = (int(tensor.min()), int(tensor.max()) + 1) if counts else (None, None)
        if plain is not None:
            found = RULES["fill"](self.laws, Call("fill", (made, plain), {}, (), [], [], [], [made]))
            assert found is not None
            return found[0]
        return self.source(made, within, tensor)


def taken_over(first: torch.Tensor, second: torch.Tensor) -> None:
    """Exchange the storages of two tensors. torch exchanges fake tensors whole, which a weak reference forbids."""
    kept = first.data
    first.data, second.data = second.data, kept


@contextmanager
def without_numbers(engine: Engine, fake: FakeTensorMode, run: Run) -> Iterator[None]:
    """Tensors have no numbers, and every operator is followed."""
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # it would run a recurrent layer as one operator
    try:
        swap = replaced(torch.utils, "swap_tensors", taken_over)
        with fake, engine, Reading(engine), watched(engine), swap, default_dtype(run.dtype):
            yield
    finally:
        torch._C._set_mkldnn_enabled(fused)


class Followed:
    """One run: what was seen, what the function returned, and its error in words with the line."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.error, self.raised = "", NOWHERE
        self.returned: list[Combination] = []
        self.unread: list[str] = []
        self.unsupported = False


def followed(step: Callable[[Any], Any], run: Run, terms: Terms, number: int, every: int) -> Followed:
    """Call the function without numbers."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    engine = Fake(terms, fake, run.micro_batch_size, run.samples, every, number)
    found = Followed(engine.flow)
    seed(run.seed)
    with without_numbers(engine, fake, run):
        try:
            returned = step(run)
            found.returned = [_whole(engine, one) for one in reported(returned)]
        except Exception as caught:
            found.error, found.raised = stated(caught), blamed(caught)
            found.unsupported = type(caught).__module__.startswith("torch._subclasses") or "Unread" in found.error
        engine.end()
    engine.flow.parameters = sum(t.numel() for t in engine.declared.values())
    return found


def reported(returned: Any) -> list[Any]:
    """The losses in what a function returns: tensors of floats, and numbers that were taken from tensors."""
    if isinstance(returned, Unread):
        return [returned]
    if isinstance(returned, list | tuple):
        return [one for part in returned for one in reported(part)]
    if isinstance(returned, dict):
        return [one for part in returned.values() for one in reported(part)]
    return tensors(returned)


def _whole(engine: Engine, one: Any) -> Combination:
    if isinstance(one, Unread):
        return one.value
    return engine.combination(one)
