"""The recorder: a dispatch mode that writes a tape of a real run.

Every operator of forward, backward and optimizer passes through `__torch_dispatch__`, in whatever thread autograd runs
it. An operator with a tracked argument becomes an `Entry`; all others only leave a trace in `Storages`. Before a
tracked storage is read its bytes are compared with those that the last recorded write left: a difference is a write
that no operator made, and the recorder has lost sight of that value (`Blind`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.shadow.ops.schema import (
    COLLECTS,
    DROPOUTS,
    OVERWRITES,
    SHAPE_ONLY,
    Spec,
    spec_of,
    tensors_in,
)
from gradproof.shadow.record.hook_points import params_of
from gradproof.shadow.record.leaves import Leaves
from gradproof.shadow.record.storages import (
    Held,
    State,
    Storages,
    array,
    const,
    covers,
    dtype_name,
    fingerprint,
    flat,
    storage_of,
    trainable,
)
from gradproof.shadow.tape import (
    NOWHERE,
    Blind,
    Const,
    Entry,
    Event,
    Init,
    Location,
    Ref,
    Tape,
    user_place,
)


# -- The outputs of a tracked operator: what it wrote, what it made, and what becomes tracked by it.
class Outs:
    """The outputs of one tracked operator, as the tape has them."""

    def __init__(
        self, recorder: Recorder, spec: Spec, held: Mapping[int, Held], before: Mapping[int, int],
        saved: Mapping[int, Const], trained: bool,
    ) -> None:  # fmt: skip
        self.recorder, self.spec, self.trained = recorder, spec, trained
        self.before, self.saved = before, saved
        self.homes = {h.weak.cdata for h in held.values()}
        self.writes: list[Ref] = []
        self.seen: dict[int, Any] = {}

    def of(self, args: Any, kwargs: Any, out: Any) -> list[Any]:
        """Written arguments in the order of the schema, then fresh outputs."""
        found = [self._written(self.spec.argument(at, args, kwargs)) for at in self.spec.written]
        results = out if isinstance(out, list | tuple) and self.spec.returns > 1 else [out]
        fresh = [results[at] for at in self.spec.fresh]
        values = [self.spec.argument(at, args, kwargs) for at in self.spec.written] + fresh
        found += [self._fresh(value) for value in fresh]
        for position, value in enumerate(values):
            if isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex():
                self.seen[position] = array(value)
        return found

    def _written(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._written(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return None
        held = self.recorder.storages.meet(value)
        if held.state is not State.TRACKED:
            same = self.before.get(id(value)) == fingerprint(value.untyped_storage())
            if same and self.spec.base.startswith("aten.") and "batch_norm" in self.spec.base:
                return const(value)
            self._begin(value)
        return self._put(value)

    def _begin(self, value: torch.Tensor) -> None:
        held = self.recorder.storages.track(value)
        content = self.saved.get(id(value))
        if content is not None:
            self.recorder.tape.items.append(Init(held.number, content, int(content.value.size)))

    def _fresh(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._fresh(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return None
        if storage_of(value) is None or value.is_complex():
            self.recorder.lost("layout", f"{self.spec.name} makes a tensor of {value.layout}", self.recorder.place())
            return None
        if value.untyped_storage()._cdata in self.homes:
            return self.recorder.arg(value)
        self.recorder.storages.track(value)
        return self._put(value)

    def _put(self, value: torch.Tensor) -> Ref:
        held = self.recorder.storages.meet(value)
        held.print = fingerprint(value.untyped_storage())
        held.trained = held.trained or self.trained
        ref = self.recorder.storages.ref(value, held)
        self.writes.append(ref)
        return ref


REWRITTEN = (
    "write with copy_(), or make a new tensor; orthogonal and spectral_norm of torch.nn.utils do this themselves: "
    "verify the step without them"
)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what runs inside `with Recorder() as recorder:` on `recorder.tape`.

    Each step of an optimizer of torch is two events: `step` with the gradients, `stepped` with the weights after it.
    Operators run in one thread meanwhile, because the tensors are small, and without MKL-DNN, which would run a
    recurrent layer as a single operator.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self.storages = Storages()
        self.leaves = Leaves(self.tape, self.storages)
        self.quiet = 0
        self.calls: list[Location] = []
        self.steps: list[int] = []
        self.entered = 0
        self.threads, self.fused = 1, True
        self._patched = ExitStack()

    def __enter__(self) -> Recorder:
        self.entered += 1
        if self.entered == 1:
            self.threads, self.fused = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
            torch.set_num_threads(1)
            torch._C._set_mkldnn_enabled(False)
            self._patch()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]
        self.entered -= 1
        if self.entered:
            return
        torch.set_num_threads(self.threads)
        torch._C._set_mkldnn_enabled(self.fused)
        self._patched.close()

    def _patch(self) -> None:
        """Hear of modules, backward passes and steps."""
        engine = vars(torch.autograd)["_engine_run_backward"]
        for owner, name, new in (
            (torch.autograd, "_engine_run_backward", self._engine(engine)),
            (torch.utils, "swap_tensors", swapped),
        ):
            self._patched.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, new)
        for handle in (
            modules.register_module_forward_pre_hook(self._forward),
            modules.register_module_parameter_registration_hook(self.leaves.registered),
            modules.register_module_module_registration_hook(self.leaves.registered),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._patched.callback(handle.remove)

    def _engine(self, original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(self.place())
            try:
                return original(*args, **kwargs)
            finally:
                self.calls.pop()

        return run

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) not in self.leaves.modules:
            self.leaves.adopt(module)

    # Events

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
        held = [p for p in params_of(optimizer) if p.grad is not None]
        self.event("step", {f"grad/{self.leaves.claim(p)}": p.grad for p in held if p.grad is not None})

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.steps:
            self.steps.pop()
        if id(optimizer) not in self.steps:
            self.event("stepped", {f"param/{self.leaves.claim(p)}": p for p in params_of(optimizer)})

    def event(self, kind: str, tensors: Mapping[str, torch.Tensor]) -> Event:
        """Put an event on the tape, with the present values of some tensors; unseen writes are looked for first."""
        self.quiet += 1
        try:
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                found = Event(kind, self.place())
                self.look_around(found.place)
                for name, tensor in tensors.items():
                    arg = self._observed(tensor, found.place)
                    if arg is not None:
                        found.refs[name], found.values[name] = arg, array(tensor)
        finally:
            self.quiet -= 1
        self.tape.items.append(found)
        return found

    def _observed(self, tensor: torch.Tensor, place: Location) -> Ref | Const | None:
        if storage_of(tensor) is None or tensor.is_complex():
            self.lost("layout", f"a tensor of {tensor.layout} and {tensor.dtype}", place)
            return None
        held = self.leaves.glance(tensor)
        self.leaves.read(tensor, held)
        if held.state is not State.TRACKED:
            return const(tensor)
        self.compare(tensor.untyped_storage(), held, place)
        return self.storages.ref(tensor, held)

    def place(self) -> Location:
        """The line of the user's that runs; while autograd runs, the line that started it, `via` the line of a hook."""
        inner = user_place()
        if not self.calls or not running():
            return inner
        outer = self.calls[0]
        same = inner is NOWHERE or (inner.file, inner.line) == (outer.file, outer.line)
        return outer if same else replace(outer, via=str(inner))

    def lost(self, code: str, what: str, place: Location, help: str = "") -> None:
        """The recorder lost sight of a value. The same loss at the same line is kept once."""
        blind = Blind(code, what, place, help)
        if blind not in self.tape.blind:
            self.tape.blind.append(blind)

    # Unseen writes

    def look_around(self, place: Location) -> None:
        """Compare every live tracked storage with what was last seen in it."""
        for held, storage in self.storages.tracked():
            self.compare(storage, held, place)

    def compare(self, storage: torch.UntypedStorage, held: Held, place: Location) -> None:
        """Compare one storage with what was last seen in it."""
        now = fingerprint(storage)
        if now == held.print:
            return
        held.print = now
        what = f"{self._label(storage, held)} was changed by something that is no operator"
        self.lost("unseen-write", what, place, "change tensors with torch operators, not through NumPy or a pointer")

    def _label(self, storage: torch.UntypedStorage, held: Held) -> str:
        for known, name in self.leaves.names.values():
            parameter = known()
            grad = None if parameter is None or not parameter.is_leaf else parameter.grad
            if grad is not None and grad.layout is torch.strided and grad.untyped_storage()._cdata == storage._cdata:
                return f"{name}.grad"
        return held.label or "a tensor"

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.quiet:
            return func(*args, **kwargs)
        spec = spec_of(func)
        if spec is None:
            return self._without_schema(func, args, kwargs)
        if spec.composite and not any(t.is_nested for t in tensors_in((args, kwargs))):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        tensors = tensors_in((args, kwargs))
        if any(type(t).__name__ == "AsyncCollectiveTensor" for t in tensors):
            return NotImplemented
        if any(type(t).__name__ == "FakeTensor" for t in tensors):
            return func(*args, **kwargs)
        if spec.base == "_c10d_functional._wrap_tensor_autograd":
            return func(*args, **kwargs)
        if any(storage_of(t) is None or t.is_complex() for t in tensors):
            return self._without_storage(func, spec, tensors, args, kwargs)
        if spec.view:
            return self._view(func, spec, tensors, args, kwargs)
        return self._operate(func, spec, tensors, args, kwargs)

    def _without_schema(self, func: Any, args: Any, kwargs: Any) -> Any:
        if any(self._is_tracked(t) for t in tensors_in((args, kwargs))):
            self.lost(
                "higher-order", f"{func} runs a function of its own", self.place(), "run it without torch.compile"
            )
        return func(*args, **kwargs)

    def _without_storage(self, func: Any, spec: Spec, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        if all(t.is_meta for t in tensors):  # there are no numbers to follow
            return self._untracked(func, spec, [], args, kwargs)
        out = func(*args, **kwargs)
        if any(t.requires_grad or self._is_tracked(t) for t in tensors):
            odd = next(t for t in tensors if storage_of(t) is None or t.is_complex())
            self.lost("layout", f"{spec.name} on a tensor of {odd.layout} and {odd.dtype}", self.place())
        return out

    def _is_tracked(self, tensor: torch.Tensor) -> bool:
        held = self.storages.get(tensor)
        return held is not None and held.state is State.TRACKED

    def _view(self, func: Any, spec: Spec, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        for tensor in tensors:
            held = self.leaves.glance(tensor)
            reading = torch.is_grad_enabled() and spec.base != "aten.detach"
            if reading and trainable(tensor):
                self.leaves.read(tensor, held)
        if spec.name == "aten.view.dtype" and self._is_tracked(tensors[0]):
            return self._reinterpreted(func, args, kwargs)
        return func(*args, **kwargs)

    def _operate(self, func: Any, spec: Spec, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        written = [t for at in spec.written for t in tensors_in(spec.argument(at, args, kwargs))]
        skipped = {id(t) for t in written} if spec.base in OVERWRITES or spec.results else set()
        for fresh in (t for t in written if id(t) in skipped and covers(t)):
            self.storages.meet(fresh)  # what it held is not read: it is no source of data
        held = {id(t): self.leaves.glance(t) for t in tensors}
        if spec.base in SHAPE_ONLY:
            return self._untracked(func, spec, written, args, kwargs)
        read = [t for t in tensors if id(t) not in skipped]
        homes = {held[id(t)].weak.cdata for t in written}
        if any(held[id(t)].weak.cdata not in homes and t.is_floating_point() for t in read) or any(
            held[id(t)].state is State.TRACKED for t in tensors
        ):
            for t in read:
                self.leaves.read(t, held[id(t)])
        if (
            spec.random
            and spec.base not in DROPOUTS
            and not spec.fresh
            and all(held[id(t)].state is not State.TRACKED for t in read)
        ):
            return self._untracked(func, spec, written, args, kwargs)
        if not any(h.state is State.TRACKED for h in held.values()):
            return self._untracked(func, spec, written, args, kwargs)
        if any(held[id(t)].state is State.TRACKED and held[id(t)].dtype is not t.dtype for t in tensors):
            return self._reinterpreted(func, args, kwargs)
        if spec.alters:
            self.lost("geometry", f"{spec.base} puts other memory under a tracked tensor", self.place(), REWRITTEN)
            return func(*args, **kwargs)
        return self._tracked(func, spec, tensors, written, held, args, kwargs)

    def _reinterpreted(self, func: Any, args: Any, kwargs: Any) -> Any:
        what = "the memory of a tracked tensor is read as another dtype"
        self.lost("reinterpreted", what, self.place(), "read the tensor, not its storage or its bits")
        return func(*args, **kwargs)

    def _untracked(self, func: Any, spec: Spec, written: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        random = spec.random and spec.base not in DROPOUTS
        stacked = spec.base in COLLECTS and any(
            h is not None and h.scalar for h in map(self.storages.get, tensors_in(args))
        )
        for tensor in tensors_in(out):
            if storage_of(tensor) is None or spec.alters:
                continue
            held = self.storages.get(tensor)
            if held is None:
                held = self.storages.meet(tensor)
                held.blank = spec.base.split(".")[-1].startswith(("empty", "new_empty"))
                if random or stacked:
                    self.leaves.source(tensor, held, unseen=False)
        for tensor in written:
            if spec.alters and self.storages.get(tensor) is None:
                continue
            held = self.storages.meet(tensor)
            held.blank = False
            if random:
                self.leaves.refill(tensor, held)
            elif spec.base in OVERWRITES and held.state is State.PENDING and covers(tensor):
                held.state, held.pending = State.KNOWN, None
        return out

    def _tracked(
        self, func: Any, spec: Spec, tensors: list[torch.Tensor], written: list[torch.Tensor],
        held: dict[int, Held], args: Any, kwargs: Any,
    ) -> Any:  # fmt: skip
        place = self.place()
        for home in {h.weak.cdata: (t, h) for t in tensors if (h := held[id(t)]).state is State.TRACKED}.values():
            self.compare(home[0].untyped_storage(), home[1], place)
        given = tuple(self.arg(a) for a in args)
        named = {k: self.arg(a) for k, a in kwargs.items() if k not in spec.results}
        untracked = [t for t in written if held[id(t)].state is not State.TRACKED]
        before = {id(t): fingerprint(t.untyped_storage()) for t in untracked}
        saved = {id(t): const(flat(t)) for t in untracked if not covers(t) and not held[id(t)].blank}
        out = func(*args, **kwargs)
        if not written and (not spec.fresh or isinstance(out, bool | int | float)):
            return out
        trained = any(held[id(t)].trained for t in tensors)
        outs = Outs(self, spec, held, before, saved, trained)
        found = outs.of(args, kwargs, out)
        if outs.writes:
            self.tape.items.append(Entry(spec.name, given, named, tuple(found), tuple(outs.writes), place, outs.seen))
        return out

    def arg(self, value: Any) -> Any:
        """An argument as the tape has it."""
        if isinstance(value, torch.Tensor):
            held = self.storages.get(value)
            tracked = held is not None and held.state is State.TRACKED
            return self.storages.ref(value, held) if tracked and held is not None else const(value)
        if isinstance(value, list | tuple):
            return [self.arg(v) for v in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return dtype_name(value) if isinstance(value, torch.dtype) else str(value)


def swapped(one: torch.Tensor, other: torch.Tensor) -> None:
    """`torch.utils.swap_tensors` refuses tensors that have weak references, which the recorder's have."""
    grads = one.grad, other.grad
    one.grad = other.grad = None
    one.data, other.data = other.data, one.data
    one.grad, other.grad = grads[1], grads[0]


def running() -> bool:
    """Whether autograd is computing gradients."""
    return bool(torch._C._current_graph_task_id() != -1)
