"""What is seen beside operators: numbers read and written by none, the user's code in a backward pass, steps, threads.

NumPy, another process or a kernel of an extension may change the memory of a tensor; `memory.Unchanged` finds it out.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._dynamo import eval_frame
from torch.jit import _builtins
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gradproof.shadow.follow.terms import NOBODY
from gradproof.shadow.locations import Location, by_torch, frames, user_location
from gradproof.shadow.ops.schema import Spec, read_by, spec_of, tensors_in
from gradproof.shadow.tape.calls import PASS, seen, steps

if TYPE_CHECKING:
    from gradproof.shadow.follow.engine import Engine

SCALES = frozenset({"mul", "div", "neg", "add", "sub", "lerp", "addcmul", "addcdiv", "pow", "true_divide", "multiply"})
"""Operators that make another gradient of one. What a script logs of a gradient are norms, means and extremes."""
NUMPY = torch.Tensor.numpy
WAYS_OUT = ("numpy", "__array__", "data_ptr", "const_data_ptr", "__dlpack__")
"""Methods that give away the memory of a tensor."""
TAKEN = (
    (torch.Tensor, "tolist"), (torch._tensor_str, "_str"), (torch, "tensor"), (torch, "as_tensor"),
    (torch.Tensor, "new_tensor"), (torch, "from_numpy"), (torch, "frombuffer"), (torch, "tensor_split"),
    (torch.Tensor, "tensor_split"), (torch, "ctc_loss"),
)  # fmt: skip
"""Functions that read numbers of tensors, and run no operator for it."""
SHOWN = frozenset({"tolist", "_str", "__repr__", "__format__"})
LENGTHS = frozenset({"tensor_split", "ctc_loss"})
LISTS = frozenset({"tensor", "as_tensor", "new_tensor"})
OUTSIDE = LISTS | {"from_numpy", "frombuffer"}
"""Functions that make tensors of numbers of Python's, or NumPy's."""
SCRIPT = "__call__"
"""What such functions read: their first argument, whole numbers among the others, tensors in lists, and all of them
where a call of TorchScript makes a list, for which it runs no operator."""
UNCOMPILED = "torch.compile changes nothing but rounding: compiled code was followed without its compiler"
replaced = mock.patch.object
"""An attribute, for a while."""
READING = ("__getitem__", "tolist", "data_ptr", "_write_file", "_share_fd_cpu_", "_share_filename_cpu_")
WRITING = ("__setitem__", "fill_", "copy_", "byteswap")
"""Methods of a storage that give its numbers away, and those that write alone."""
ELEMENTS = ("apply_", "map_", "map2_")
"""Methods of a tensor that hand each of its numbers to a function, and write what comes back."""


class NoNumbers(RuntimeError):
    """The function reads a number of a tensor; in a run without numbers there is none."""


class OwnBackward:
    """Code of the user's that runs in a backward pass: what it makes of the share of a loss, no term shows.

    `at`: where a hook computed another gradient, or a function with a loss as its result did not look at the gradient
    of that loss, which holds the division by N.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.at: Location | None = None
        self._given: list[list[torch.Tensor]] = []

    def meets(self, base: str, tensors: list[torch.Tensor]) -> None:
        """An operator runs: the gradient of a loss among its arguments was looked at.

        A number of samples and weights that is added to a loss without a gradient of its own is a part of its value
        and none of its gradient.
        """
        if self._given and any(one is own for own in self._given[-1] for one in tensors):
            self._given[-1] = []
        if base.rstrip("_") not in ("add", "sub") or not torch.is_grad_enabled():
            return
        apart = [one for one in tensors if one.numel() == 1 and not one.requires_grad and one.is_floating_point()]
        if not apart or not any(one.requires_grad and one.numel() == 1 for one in tensors):
            return
        terms, value = self.engine.terms, self.engine.memory.read(apart[0])
        made = [term for part in value.parts for term in part] if value is not None else []
        if any(terms.trained[term] and terms.owners[term] != NOBODY for term in made):
            self.at = self.at or user_location()

    def hook(self, base: str) -> None:
        """An operator runs in a hook, or in a function."""
        if not self._given and base.rstrip("_") in SCALES:
            self.at = self.at or user_location()

    def following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The backward of each function of the user's own, followed."""

        def apply(node: Any, *args: Any) -> Any:
            given = [one for one in args if isinstance(one, torch.Tensor)]
            by_torch = node._forward_cls.__module__.split(".")[0] == "torch"
            self._given.append([] if by_torch or any(one.numel() > 1 for one in given) else given)
            try:
                return original(node, *args)
            finally:
                if self._given.pop():
                    self.at = self.at or self.engine.location()

        return apply


def reads(engine: Engine, func: Any, spec: Spec, args: Any, kwargs: Any) -> None:
    """An operator gives Python numbers: as its result, by its shape, or in memory that Python can reach."""
    for tensor in read_by(func, args):
        engine.read_whole(spec.short, tensor)
    written = spec.targets(args, kwargs) if spec.written and not engine.stepping else ()
    if any(map(engine.seen.reach, written)) and not by_torch():
        engine.facts.reads.append((engine.location(), "memory that Python can reach"))
        engine.facts.free = True


def taken(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors whose numbers a function reads that runs no operator for it."""
    if name in SHOWN:
        return [args[0]]
    if name == SCRIPT:
        try:
            lists = args[0].inlined_graph.findAllNodes("prim::tolist", True)
        except RuntimeError:  # a method of a class in C++ has no graph
            lists = ()
        return tensors_in((args[1:], kwargs)) if lists else []
    given = [*args, *kwargs.values()] if name in LENGTHS | LISTS else []
    if name in LISTS:
        return tensors_in([one for one in given if isinstance(one, list | tuple)])
    lengths = given[2 if name == "ctc_loss" else 1 :]  # its labels stay in the tensor
    return [one for one in lengths if isinstance(one, torch.Tensor) and not one.is_floating_point()]


@contextmanager
def ways_out(
    engine: Engine, functions: Iterable[tuple[Any, str]] = (), comes: Callable[[Any], object] = lambda _: None
) -> Iterator[None]:
    """The engine sees numbers that Python reads, or writes, by no operator, while this runs.

    `functions`: of TAKEN; where no mode sees them. `comes` is given tensors of numbers from outside of torch.
    """

    def leaving(name: str, original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if name == "data_ptr" and by_torch() and next(frames()).f_code.co_name != "__cuda_array_interface__":
            return original(self)  # torch compares addresses
        own = self.layout is torch.strided and not self.is_meta and self.untyped_storage().resizable()
        engine.read_whole(name, self)
        found = original(self, *args, **kwargs)
        engine.exported(self, found, not own)
        return found

    def storing(name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        for one in (one.untyped_storage() for one in tensors_in((args, kwargs))) if name in ELEMENTS else args[:1]:
            loads = any(frame.f_code.co_name == "load_tensor" for frame in itertools.islice(frames(), 3))
            engine.stored(one, name not in WRITING and not loads)
        return original(*args, **kwargs)

    def taking(name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        for one in taken(name, args, kwargs):
            engine.read_whole("tolist" if name == SCRIPT else name, one)
        found = original(*args, **kwargs)
        if name in OUTSIDE:
            comes(found)
        return found

    def followed(name: str, original: Any, method: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if engine.busy else method(name, original, *args, **kwargs)

        return functools.wraps(original)(call)

    ways: list[tuple[Any, str, Callable[..., Any]]] = [
        *((torch.UntypedStorage, name, storing) for name in (*READING, *WRITING)),
        *((torch.Tensor, name, storing) for name in ELEMENTS),
        *((torch.Tensor, name, leaving) for name in WAYS_OUT),
        *((holder, "to_dlpack", leaving) for holder in (torch, torch.utils.dlpack)),
        *((holder, name, taking) for holder, name in functions),
        *((kind, SCRIPT, taking) for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)),
    ]
    compiled: dict[int, str] = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        for holder, name, method in (way for way in ways if hasattr(*way[:2])):
            original = getattr(holder, name)
            made = followed(name, original, method)
            if id(original) in compiled:  # TorchScript knows its operators by identity
                stack.enter_context(mock.patch.dict(compiled, {id(made): compiled[id(original)]}))
            stack.enter_context(replaced(holder, name, made))
        yield


@contextmanager
def copies(engine: Engine) -> Iterator[None]:
    """The copies of tensors that deepcopy makes by their bytes, and no operator makes, are seen while this runs."""
    original = vars(torch.Tensor)["__deepcopy__"]

    def copied(self: torch.Tensor, memo: Any) -> Any:
        again = id(self) in memo
        with engine.aside(), _disable_current_modes():
            made = original(self, memo)
        if not again:
            engine.copied(self, made)
        return made

    with replaced(torch.Tensor, "__deepcopy__", copied):
        yield


@contextmanager
def taken_away(gone: Callable[[], None]) -> Iterator[None]:
    """`gone` is called where `.grad` becomes None that was none before: no operator shows it.

    Every optimizer imports torch._dynamo, which copies torch's functions into tables: it must find torch's own.
    """
    import torch._dynamo

    own = next(vars(c)["grad"] for c in torch.Tensor.__mro__ if "grad" in vars(c))

    def assign(tensor: torch.Tensor, value: Any) -> None:
        if value is None and own.__get__(tensor) is not None:
            gone()
        own.__set__(tensor, value)

    with replaced(torch.Tensor, "grad", property(own.__get__, assign, lambda tensor: assign(tensor, None))):
        yield


# -- What is seen beside operators: optimizer steps, modules, and backward passes.


@contextmanager
def made(engine: Engine) -> Iterator[None]:
    """Optimizer steps, and what modules are given, are seen while this runs."""
    from torch.nn.modules import module

    with (
        steps(engine.before_step, engine.after_step),
        module.register_module_parameter_registration_hook(engine.registered),
        module.register_module_module_registration_hook(engine.registered),
        module.register_module_buffer_registration_hook(engine.buffered),
    ):
        yield


@contextmanager
def ran(engine: Engine) -> Iterator[None]:
    """Backward calls and threads are seen while this runs, and what is compiled runs without its compiler."""
    chosen = getattr(eval_frame, "_callback_from_stance", None)

    def uncompiled(callback: Any) -> Any:
        if callback:
            engine.assumed.names["torch.compile"] = UNCOMPILED
        return chosen(callback) if chosen else None

    with (
        torch.compiler.set_stance("force_eager"),  # or Dynamo skips what it met for good
        replaced(eval_frame, "_callback_from_stance", uncompiled, create=True),
        passes(engine),
        threads(engine),
        replaced(torch._VF, "lstm", unfused(torch._VF.lstm)),
        replaced(torch._C._nn, "cross_entropy_loss", smoothed(engine, torch._C._nn.cross_entropy_loss)),
        replaced(torch.nn.functional, "one_hot", encoded(engine, torch.nn.functional.one_hot)),
    ):
        yield


def smoothed(engine: Engine, loss: Callable[..., Any]) -> Callable[..., Any]:
    """A cross-entropy that counts its labels by a mask of its own, where it smooths them."""

    def call(*args: Any) -> Any:
        engine.laws.smooths = True
        try:
            return loss(*args)
        finally:
            engine.laws.smooths = False

    return call


def encoded(engine: Engine, codes: Callable[..., Any]) -> Callable[..., Any]:
    """One-hot codes, whose zeros are torch's own. It looks at the labels, and gives none away of so many classes."""

    def call(tensor: torch.Tensor, num_classes: int = -1) -> Any:
        facts = engine.facts
        reads, coupled = len(facts.reads), facts.coupled
        made = engine.depth.call(codes, tensor, num_classes)
        if num_classes > 0:
            del facts.reads[reads:]
            facts.coupled = coupled
        return made

    return call


def unfused(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent layer as operators that have laws, and not as one of oneDNN's."""

    def call(*args: Any) -> Any:
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return layer(*args)
        finally:
            torch._C._set_mkldnn_enabled(enabled)

    return call


class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators of another thread: what one reads of parameters and gradients, or writes, is lost."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.engine = engine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        engine, kwargs, spec = self.engine, kwargs or {}, spec_of(func)
        written = [] if spec is None else spec.targets(args, kwargs)
        for tensor in tensors_in((args, kwargs)):
            held = engine.memory.read(tensor)
            trained = held is not None and any(engine.terms.trained[term] for part in held.parts for term in part)
            if trained or (held is not None and any(tensor is one for one in written)):
                engine.lose("another thread computes with a tensor that is followed", user_location())
        return func(*args, **kwargs)


@contextmanager
def threads(engine: Engine) -> Iterator[None]:
    """What threads that start meanwhile do with tensors that are followed is noted."""
    original: Any = vars(threading.Thread)["_bootstrap_inner"]

    def begin(self: threading.Thread) -> None:
        with Elsewhere(engine):
            original(self)

    with replaced(threading.Thread, "_bootstrap_inner", begin):
        yield


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Python looks for garbage among new objects alone: torch's modules are most of what there is, and stay."""
    if gc.get_freeze_count():
        yield  # the user did so
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def passes(engine: Engine) -> Iterator[None]:
    """The line that started autograd, for what runs in it; `afterwards` is called when it has ended."""

    def run(original: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        engine.calls.append(user_location())
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

    with seen({PASS: run}):
        yield


def digest(tensor: torch.Tensor) -> str:
    """What a real tensor holds."""
    with _disable_current_modes():
        plain = tensor.detach().cpu().reshape(-1).clone()
        return hashlib.sha256(NUMPY(plain.view(torch.uint8)).tobytes()).hexdigest()


def generator_state(args: Any, kwargs: Any) -> tuple[str, str]:
    """The device of the generator that an operator draws from, and where it stands. By default it is the result's."""
    generator, given = kwargs.get("generator"), tensors_in(args)
    device = kwargs.get("device") or (given[0].device if given else torch.get_default_device())
    if generator is None and (where := torch.device(device)).type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if where.index is None else where.index]
    with _disable_current_modes():
        generator = generator or torch.default_generator
        return str(generator.device), digest(generator.get_state())


def call_site() -> str:
    """The user's line that runs, and which call of the line: `x, y = randn(8), randn(8)` has two."""
    location = user_location()
    at = next((f.f_lasti for f in frames() if f.f_code.co_filename == location.file and f.f_lineno == location.line), 0)
    return f"{location} {at}"


def by_a_loader() -> bool:
    """Whether torch.utils.data reads in which order samples come."""
    return "torch/utils/data/" in next(frames()).f_code.co_filename


BETWEEN_RANKS = ("distributed_c10d.py", "distributed/utils.py")
"""Files of torch's that read the sizes of the objects and parameters that ranks exchange."""


def of_an_object() -> bool:
    """Whether torch.distributed reads the size of what ranks exchange."""
    return any(frame.f_code.co_filename.endswith(BETWEEN_RANKS) for frame in itertools.islice(frames(), 4))
