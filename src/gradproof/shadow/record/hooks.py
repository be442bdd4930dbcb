"""What a dispatch mode cannot see, and what gives operators their meaning: the events of a training loop.

| event | seen by |
|---|---|
| `accumulate` | torch.autograd.backward (Tensor.backward calls it), and the buffers that it changed |
| `threads` | a backward pass that begins while that of another thread runs |
| `gradients` | torch.autograd.grad with respect to parameters |
| `step`, `stepped` | the global step hooks of torch.optim; with a closure, when the closure has returned |
| `zero`, `assign`, `touch` | zero_grad, the setter of `Tensor.grad`, else the identity and version of each buffer |
| `clip` | torch.nn.utils.clip_grad_*, under every name that a module holds them by |
| `unscale` | GradScaler.unscale_ (also inside its step) |
| `schedule` | LRScheduler.step of every class; the call inside a constructor is none |
| `rate` | the learning rates of the known optimizers, compared before each backward pass and each step |
| `rewrite` | weights that no step wrote, by checksum before each step |
| `sync` | torch.distributed.all_reduce on gradients; DistributedDataParallel by its own flag at the forward pass |

Backward passes inside a backward pass (checkpointing) belong to the outer one. A wrapped optimizer that does nothing
between boundaries makes no event, because the hooks of the inner optimizer decide. The getter of `Tensor.grad` stays
the C getter (measured: 80 ns instead of 53 ns a read), so that only writes pay for the patch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradproof.shadow.locations import Location, user_location
from gradproof.shadow.record.buffers import Buffers, Ranks, Reached, all_zero, is_gradient, other_dtypes, world_of
from gradproof.shadow.record.hook_points import (
    Patches,
    changes_step,
    cover,
    inner,
    install,
    install_makers,
    leaves_of,
    listed,
    params_of,
    prepared,
    rates,
    skips,
    tensors_of,
)
from gradproof.shadow.record.names import NAMES

# -- What every hook of a training loop needs: a sink, names, and the buffers, watched between the calls.
Call = Callable[..., Any]
SUM = torch.distributed.ReduceOp.SUM if torch.distributed.is_available() else None


class Sink(Protocol):
    """Takes the events. Nothing is copied or read for it."""

    def event(self, kind: str, location: Location | None = None, **detail: Any) -> object:
        """Take one event."""


class Reporter:
    """Reports to a sink what happens to the gradient buffers."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.reached = Reached()
        self.names = NAMES
        self.buffers = Buffers(NAMES)
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._patches, self._makers = Patches(), Patches()
        self._handles: list[Any] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stack: list[tuple[int, int]] = []
        self._inside: list[str] = []
        self._callers: list[int] = []
        self._steps = self._backwards = self._begun = 0
        self._ddp = Ranks()
        self._location: Location | None = None

    def _event(self, kind: str, location: Location | None = None, **detail: Any) -> None:
        self.sink.event(kind, location or user_location(), **detail)

    def number(self, thing: Any) -> int:
        """Optimizers and schedulers by order of appearance."""
        return self._numbers.setdefault(thing, len(self._numbers))

    def _named(self, params: Iterable[Tensor]) -> list[str]:
        return [self.names.claim(p) for p in params]

    # Buffers that changed by themselves

    def _poll(self) -> None:
        """Report what happened to the buffers since the last look, as near as can be known."""
        if self._inside:
            return
        changes = self.buffers.changes()
        zeroed = [p for p, how in changes if how == "gone"]
        written = [p for p, how in changes if how != "gone"]
        empty = {id(p) for p in written if p.grad is None or all_zero(p.grad)}
        zeroed += [p for p in written if id(p) in empty]
        written = [p for p in written if id(p) not in empty]
        if zeroed:
            self._zeroed(zeroed, "seen later")
        if written:
            self._event("touch", params=self._named(written), how="seen later")

    def _zeroed(self, params: list[Tensor], how: str) -> None:
        self.buffers.zeroed(params)
        self._event("zero", params=self._named(params), how=how)

    def assigned(self, setter: Call, tensor: Tensor, value: Any) -> None:
        """`p.grad = value`, wherever it is written; inside a backward pass what arrived until now is reported first."""
        inside = self._inside
        nothing = value is None and tensor.grad is None
        other = not isinstance(tensor, nn.Parameter) and not self.names.knows(tensor)
        if nothing or other or (inside and inside[-1] != "backward"):
            setter(tensor, value)
            return
        self.names.claim(tensor)
        if self._inside:
            self._arrived([tensor])
        setter(tensor, value)
        changed = self.buffers.changes([tensor])
        if tensor.grad is None or all_zero(tensor.grad):
            if changed and changed[0][1] != "new":
                self._zeroed([tensor], "assigned")
        else:
            during = "backward" if inside else ""
            self._event("assign", params=self._named([tensor]), during=during)

    def within(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call whose writes to the buffers are accounted for."""
        self._inside.append(what)
        try:
            return call()
        finally:
            self._inside.pop()

    def zero(self, original: Call, owner: Any, *args: Any, **kwargs: Any) -> Any:
        """A zero_grad: of the buffers that it changes, it zeroes every one."""
        if self._inside:
            return original(owner, *args, **kwargs)
        if isinstance(owner, nn.Module):
            self.names.moved(owner)
        self._poll()
        result = self.within("zero", lambda: original(owner, *args, **kwargs))
        changed = [p for p, _ in self.buffers.changes()]
        if changed:
            self._zeroed(changed, "zero_grad")
        return result

    def _rated(self, optimizer: Any, at: str) -> None:
        """Report a learning rate that no scheduler set; `at` is the call before which it was seen."""
        now = rates(optimizer)
        before = self._rates.setdefault(optimizer, now)
        self._rates[optimizer] = now
        if len(now) == len(before) and any(a < b or b < a for a, b in zip(now, before, strict=True)):
            self._event("rate", optimizer=self.number(optimizer), before=before, after=now, at=at)

    def _arrived(self, only: list[Tensor] | None = None) -> list[Tensor]:
        """Buffers that the backward pass changed."""
        changed = [p for p, how in self.buffers.changes(only) if how != "gone" and p.is_leaf]
        if changed:
            self._event(
                "accumulate",
                self._location,
                shared=self._named(self._ddp.shared(changed)),
                params=self._named(changed),
                number=self._backwards,
                dtypes={self.names.claim(p): dtype for p, dtype in other_dtypes(changed)},
                **self._interfered(changed),
            )
        return changed

    def _interfered(self, params: list[Tensor]) -> dict[str, bool]:
        """Whether something besides the derivative of one loss made what is in these buffers."""
        hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in params)
        return {"hooked": hooked, "written": any(id(p) not in self.reached.leaves for p in params)}


class Hooks(Reporter):
    """Reports the events of a training loop to a sink while it is entered, and leaves torch as it was."""

    def __enter__(self) -> Hooks:
        self.names.clear()
        self.buffers.clear()
        try:
            self._install()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    def end(self) -> None:
        """The run is over: the event `end`, with every optimizer."""
        self._poll()
        self._event("end", optimizers=self._optimizers())

    def _optimizers(self) -> dict[int, list[str]]:
        return {self.number(o): self._named(params_of(o)) for o in list(self._made)}

    def stop(self) -> None:
        """Nothing is wanted for now: torch is as it was, but for hooks that do nothing."""
        self._event("made", optimizers=self._optimizers())
        self._patches.restore()

    @property
    def within_call(self) -> bool:
        """Whether a call that is watched runs."""
        return bool(self._inside)

    def go_on(self) -> None:
        """Events are wanted again. What happened to buffers and weights meanwhile is not reported."""
        self._stack.clear()
        self._inside.clear()
        install(self, self._patches)
        self.buffers.changes()
        self.buffers.rewritten()
        self.buffers.applied(self.names.params())
        for optimizer in list(self._rates):
            self._rates[optimizer] = rates(optimizer)
        self._event("on")
        self._patches.active = True

    def _remove(self) -> None:
        self._patches.restore()
        self._makers.restore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            nn.modules.module.register_module_forward_pre_hook(self._forward),
        ]
        install(self, self._patches)
        install_makers(self, self._makers)
        self._patches.active = self._makers.active = True

    # Backward passes

    def backward(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """torch.autograd.backward: one at a time, or the event `threads` says so."""
        self._callers.append(get_ident())
        try:
            if len(set(self._callers)) > 1:
                self._event("threads")
            return self._backward(original, *args, **kwargs)
        finally:
            self._callers.remove(get_ident())

    def _backward(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = listed(args, kwargs)
        roots = tensors_of(args[0] if args else kwargs.get("tensors"))
        if "backward" in self._inside:
            self.reached.begin(roots, inner=True)
            return original(*args, **kwargs)
        self._before_backward(roots)
        self.reached.begin(roots)
        try:
            result = self.within("backward", lambda: original(*args, **kwargs))
            summed = self._ddp.summed(self._arrived())
        except BaseException:
            self._event("aborted", location=self._location)
            raise
        if summed:
            params = self._named(summed)
            self.buffers.summed(summed)
            self._event("sync", self._location, params=params, how="DistributedDataParallel", world=world_of())
        return result

    def _before_backward(self, roots: list[Tensor]) -> None:
        if next(self.names.params(), None) is None:
            for leaf in leaves_of(roots):
                self.names.claim(leaf)
        self._poll()
        unseen = self.buffers.unseen_zeros() if not self._inside else []
        if unseen:
            self._zeroed(unseen, "found zero")
        for optimizer in [] if self._inside else list(self._rates):
            self._rated(optimizer, "backward")
        self._backwards += 1
        self._location = user_location()

    def grad(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """torch.autograd.grad."""
        if "backward" in self._inside:
            return original(*args, **kwargs)
        args, kwargs = listed(args, kwargs)
        inputs = tensors_of(args[1] if len(args) > 1 else kwargs.get("inputs"))
        known = [t for t in inputs if t.is_leaf and (isinstance(t, nn.Parameter) or self.names.knows(t))]
        if not known or len(known) != len(inputs) or kwargs.get("create_graph"):
            return original(*args, **kwargs)
        self._before_backward(tensors_of(args[0] if args else kwargs.get("outputs")))
        result = self.within("backward", lambda: original(*args, **kwargs))
        given = result.values() if isinstance(result, dict) else result
        self._returned(known, list(given))
        return result

    def _returned(self, params: list[Tensor], given: list[Any]) -> None:
        """Gradients that were returned instead of accumulated."""
        names = self._named(params)
        dtypes = {n: str(g.dtype)[6:] for n, g in zip(names, given, strict=True) if g is not None}
        self._event("gradients", params=names, number=self._backwards, dtypes=dtypes)

    # Optimizers

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not self._patches.active:
            return None
        if self._nested(optimizer):
            self._stack.append(self._stack[-1])
            return None
        if "backward" in self._inside:
            self._arrived()
        self._poll()
        if not self._patches.active:  # what just arrived was the first of a window that is not recorded
            return None
        self._handles[-1].remove()
        if moved := self.buffers.rewritten():
            self._event("rewrite", params=self._named(moved))
        self._rated(optimizer, "step")
        self._steps += 1
        self._stack.append((self.number(optimizer), self._steps))
        self._begun = self._backwards
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._step_event(optimizer, self._stack[-1], 0)
            return None
        wrapped = self._closure(optimizer, closure)
        return ((args[0], wrapped, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": wrapped})

    def _nested(self, optimizer: Optimizer) -> bool:
        """Whether this is the step of a base class, called by the step that is under way: one step."""
        return bool(self._stack) and self._stack[-1][0] == self.number(optimizer) and self._begun == self._backwards

    def _closure(self, optimizer: Optimizer, closure: Call) -> Call:
        this, calls = self._stack[-1], [0]

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            calls[0] += 1
            self._poll()
            self._step_event(optimizer, this, calls[0])
            return result

        return evaluated

    def _step_event(self, optimizer: Optimizer, this: tuple[int, int], evaluation: int) -> None:
        params = params_of(optimizer)
        location = self._stack.index(this) if this in self._stack else 0
        self._event(
            "step",
            **self._about(optimizer, this),
            outer=next((n for n, _ in reversed(self._stack[:location]) if n != this[0]), None),
            evaluation=evaluation,
            held=self._named(p for p in params if p.grad is not None),
            scaled=getattr(optimizer, "grad_scale", None) is not None,
            skipped=skips(optimizer),
        )
        self.buffers.applied(params)

    def _about(self, optimizer: Optimizer, this: tuple[int, int]) -> dict[str, Any]:
        return {
            "params": self._named(params_of(optimizer)),
            "lr": rates(optimizer),
            "optimizer": this[0],
            "type": type(optimizer).__name__,
            "foreign": not type(optimizer).__module__.startswith("torch.optim."),
            "call": this[1],
            "hooked": prepared(optimizer),
            "changed": changes_step(optimizer),
        }

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._patches.active:
            return
        while self._stack and self._stack[-1][0] != self.number(optimizer):
            self._stack.pop()
        this = self._stack.pop() if self._stack else (self.number(optimizer), self._steps)
        if this in self._stack:
            return
        self._rates[optimizer] = rates(optimizer)
        moved = bool(self.buffers.rewritten())
        self._event("stepped", moved=moved, **self._about(optimizer, this))

    def scaled_step(self, original: Call, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """GradScaler.step, which makes no step at all when it found an infinite gradient."""
        before = self._steps
        result = original(scaler, optimizer, *args, **kwargs)
        if self._steps == before and scaler.is_enabled() and isinstance(optimizer, Optimizer):
            self._steps += 1
            params = params_of(optimizer)
            self._event(
                "step",
                **self._about(optimizer, (self.number(optimizer), self._steps)),
                outer=None, evaluation=0, held=self._named(params), scaled=False, skipped=True,
            )  # fmt: skip
            self.buffers.applied(params)
        return result

    def unscale(self, original: Call, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """GradScaler.unscale_, called by the user or by the scaler's own step."""
        if not scaler.is_enabled() or "unscale" in self._inside:
            return original(scaler, optimizer, *args, **kwargs)
        self._poll()
        result = self.within("unscale", lambda: original(scaler, optimizer, *args, **kwargs))
        self.buffers.changes()
        params = params_of(optimizer)
        self._event("unscale", params=self._named(params))
        return result

    def clip(self, original: Call, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """The clips of torch.nn.utils."""
        if "clip" in self._inside:
            return original(parameters, *args, **kwargs)
        params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self._poll()
        norm = self.within("clip", lambda: original(params, *args, **kwargs))
        self.buffers.changes()
        limit = args[0] if args else next((kwargs[k] for k in ("max_norm", "clip_value") if k in kwargs), None)
        self._event("clip", params=self._named(params), limit=limit, how=original.__name__)
        return norm

    def averaged(self, original: Call, average: Any, *args: Any, **kwargs: Any) -> Any:
        """AveragedModel.update_parameters."""
        self._event("averaged")
        return original(average, *args, **kwargs)

    # Schedules, modules, ranks

    def schedule(self, original: Call, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """LRScheduler.step; a scheduler inside another, or inside a constructor, belongs to it."""
        if "schedule" in self._inside:
            return original(scheduler, *args, **kwargs)
        optimizer = inner(getattr(scheduler, "optimizer", None))
        before = rates(optimizer)
        result = self.within("schedule", lambda: original(scheduler, *args, **kwargs))
        self._event(
            "schedule",
            scheduler=self.number(scheduler),
            type=type(scheduler).__name__,
            last=getattr(scheduler, "last_epoch", 0),
            optimizer=None if optimizer is None else self.number(optimizer),
            placed=bool(args or kwargs),
            before=before,
            after=rates(optimizer),
        )
        self._rates |= {} if optimizer is None else {optimizer: rates(optimizer)}
        return result

    def scheduler_made(self, original: Call, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """A constructor of a scheduler: its first step is no event."""
        cover(self, self._patches, type(scheduler))
        self.within("schedule", lambda: original(scheduler, *args, **kwargs))

    def optimizer_made(self, original: Call, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Parameters that are given to an optimizer."""
        original(optimizer, *args, **kwargs)
        self._made.add(optimizer)
        self._rates[optimizer], group = rates(optimizer), optimizer.param_groups[-1]
        for param, name in zip(group["params"], group.get("param_names", [None] * len(group["params"])), strict=False):
            if name is None:
                self.names.know(param)
            else:
                self.names.name(param, name)

    def ranks(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
        """DistributedDataParallel.forward."""
        self._ddp.forward(module)
        return original(module, *args, **kwargs)

    def ranks_made(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> None:
        """The constructor of a DistributedDataParallel."""
        original(module, *args, **kwargs)
        self._ddp.made(module)

    def all_reduce(
        self, original: Call, tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        """torch.distributed.all_reduce, of gradients or of something else. A sum is one over all ranks."""
        self._poll()
        result = self.within("sync", lambda: original(tensor, op, group, async_op))
        own = [p for p in self.names.params() if is_gradient(tensor, p)]
        self.buffers.changes(own)
        self.buffers.summed(own)
        world = world_of(group) if op in (SUM, torch.distributed.ReduceOp.AVG) else 1
        about = {"world": world, "whole": world == world_of() and not async_op, "elements": tensor.numel()}
        self._event("sync", None, params=self._named(own), how="all_reduce", **about)
        return result

    def collective(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """Another exchange between ranks: what it does to gradients is not followed."""
        self._event("collective")
        return original(*args, **kwargs)

    def moved(self, original: Call, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Module._apply, as in `model.to(device)`: it may come before the forward pass that names parameters."""
        self.names.moved(module)
        return original(module, *args, **kwargs)

    def _forward(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.names.module(module)
