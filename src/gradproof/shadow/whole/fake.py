"""The two runs of a function without numbers: by micro-batches, and by the full batch; and what they say.

Both runs share one store of terms. The gradient of a window is proved equal to the full batch's where both are one
combination: then they are equal for all real parameters, data and draws. An optimizer step makes what it wrote a new
leaf, which is named by its definition: two runs have one leaf only where they wrote the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from gradproof.shadow.record.run import Run, blamed, default_dtype, seed, stated, tensors
from gradproof.shadow.tape import NOWHERE, user_place
from gradproof.shadow.whole.engine import Engine, Flow, Gradient, NoNumbers, Update
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
            value = engine.value(tensor)
            whole = engine.laws.fitted(engine.laws.whole(value, tuple(tensor.shape)), tuple(tensor.shape))
        if engine.laws.constant(whole):
            held = whole.get(engine.terms.one, 0)
            return float(held) if tensor.is_floating_point() else int(held)
        return Unread(engine, {engine.laws.reshaped(term, ()): by for term, by in whole.items()})


@contextmanager
def watched(engine: Engine) -> Iterator[None]:
    """Optimizer steps, modules and backward calls are seen while this runs."""
    from torch.nn.modules import module
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    known: dict[int, Any] = {}

    def before(optimizer: Any, *_: Any) -> None:
        found: dict[str, Gradient] = {}
        known[id(optimizer)] = optimizer
        engine.flow.optimizers = len(known)
        for parameter in parameters(optimizer):
            name = engine.name(parameter)
            if parameter.grad is not None:
                grad = parameter.grad
                shape = tuple(grad.shape)
                value = engine.laws.fitted(engine.laws.whole(engine.value(grad), shape), shape)
                value = engine.terms.opened(value)
                engine.memory.alias(grad, shared(value))
                found[name] = Gradient(name, value, shape, grad.dtype)
        update = Update(user_place(), found, passes=engine.passes, begun_with=engine.begun_with)
        update.order = tuple(engine.name(parameter) for parameter in parameters(optimizer))
        engine.flow.updates.append(update)
        engine.stepping, engine.passes, engine.begun_with = True, 0, ""

    def after(optimizer: Any, *_: Any) -> None:
        update, engine.stepping = engine.flow.updates[-1], False
        for parameter in parameters(optimizer):
            update.after[engine.name(parameter)] = renewed(engine, parameter)
        update.leaves = {
            leaf
            for leaf in engine.terms.reached(update.after.values())
            if engine.terms.operators[leaf] in ("parameter", "state")
        } - {term for p in parameters(optimizer) for term in engine.value(p).parts[0]}
        for held in list(optimizer.state.values()):
            for one in held.values() if isinstance(held, dict) else ():
                if isinstance(one, torch.Tensor):
                    renewed(engine, one)

    with ExitStack() as stack:
        stack.enter_context(removed(register_optimizer_step_pre_hook(before)))
        stack.enter_context(removed(register_optimizer_step_post_hook(after)))
        stack.enter_context(removed(module.register_module_parameter_registration_hook(engine.registered)))
        stack.enter_context(removed(module.register_module_module_registration_hook(engine.registered)))
        stack.enter_context(calls(engine))
        stack.enter_context(replaced(torch.utils, "swap_tensors", taken_over))
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
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def taken_over(first: torch.Tensor, second: torch.Tensor) -> None:
    """Exchange the storages of two tensors. torch exchanges fake tensors whole, which a weak reference forbids."""
    kept = first.data
    first.data, second.data = second.data, kept


@contextmanager
def calls(engine: Engine) -> Iterator[None]:
    """The line that started autograd, for what runs in it."""
    original = torch.autograd.graph._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        engine.calls.append(user_place())
        with torch.no_grad():
            engine.begin()
        try:
            return original(*args, **kwargs)
        finally:
            engine.calls.pop()

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


def renewed(engine: Engine, tensor: torch.Tensor) -> int:
    """What a step wrote becomes a leaf that belongs to no sample. The number of its definition."""
    shape = tuple(tensor.shape)
    value = engine.terms.opened(engine.laws.fitted(engine.laws.whole(engine.value(tensor), shape), shape))
    defined = engine.terms.named(value, shape)
    if engine.terms.owners[defined] == -1:
        return defined
    leaf = engine.terms.make("state", (), (defined,), shape)
    engine.memory.write(tensor, shared(engine.terms.of(leaf)))
    return defined


@contextmanager
def without_numbers(engine: Engine, fake: FakeTensorMode, run: Run) -> Iterator[None]:
    """Tensors have no numbers, and every operator is followed."""
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # it would run a recurrent layer as one operator
    try:
        with fake, engine, Reading(engine), watched(engine), default_dtype(run.dtype):
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
    engine = Engine(terms, fake, run.micro_batch_size, run.samples, every, number)
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
    value: Value = engine.value(one)
    shape = tuple(one.shape)
    return engine.laws.fitted(engine.laws.whole(value, shape), shape)
