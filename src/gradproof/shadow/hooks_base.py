"""What every hook of a training loop needs: a sink, names, and the buffers, watched between the calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from math import isnan
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradproof.shadow.buffers import Buffers, all_zero
from gradproof.shadow.hooks_patch import rates
from gradproof.shadow.names import NAMES
from gradproof.shadow.patches import Patches
from gradproof.shadow.places import user_place
from gradproof.shadow.tape import Place

Call = Callable[..., Any]


class Sink(Protocol):
    """Takes the events. A sink whose `tensors` is False is handed none: nothing is copied or read for it."""

    def event(self, kind: str, tensors: Mapping[str, Tensor], place: Place | None = None, **detail: Any) -> object:
        """Take one event."""


class Reporter:
    """Reports to a sink what happens to the gradient buffers."""

    def __init__(self, sink: Sink, clean: str = "") -> None:
        self.sink = sink
        self.clean, self._fresh = clean, True
        self.module_buffers: dict[str, Any] = {}
        self.thorough = bool(getattr(sink, "tensors", True))
        self.names = NAMES
        self.buffers = Buffers(NAMES)
        self.buffers.sums = not self.thorough
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._patches = Patches()
        self._handles: list[Any] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stack: list[tuple[int, int]] = []
        self._inside: list[str] = []
        self._steps = 0
        self._backwards = 0
        self._synced = False
        self._kept = False
        self._ranks = 1
        self._odd: tuple[tuple[int, int], dict[str, str]] = ((-1, -1), {})
        self._place: Place | None = None

    def _event(
        self, kind: str, tensors: Mapping[str, Tensor] | None = None, place: Place | None = None, **detail: Any
    ) -> None:
        self.sink.event(kind, tensors or {}, place or user_place(), **detail)

    def _grads(self, params: Iterable[Tensor]) -> dict[str, Tensor]:
        if not self.thorough:
            return {}
        return {f"grad/{self.names.claim(p)}": p.grad for p in params if p.grad is not None}

    def _params(self, params: Iterable[Tensor]) -> dict[str, Tensor]:
        return {f"param/{self.names.claim(p)}": p for p in params} if self.thorough else {}

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
        if not self.thorough:
            empty = {id(p) for p in written if p.grad is None or all_zero(p.grad)}
            zeroed += [p for p in written if id(p) in empty]
            written = [p for p in written if id(p) not in empty]
        if zeroed:
            self._zeroed(zeroed, "seen later")
        if written:
            self._event("touch", self._grads(written), params=self._named(written), how="seen later")
        if not self.thorough and not self._stack and (moved := self.buffers.rewritten()):
            self._event("rewrite", params=self._named(moved))

    def _zeroed(self, params: list[Tensor], how: str) -> None:
        self.buffers.zeroed(params)
        self._event("zero", self._grads(params), params=self._named(params), how=how)

    def assigned(self, setter: Call, tensor: Tensor, value: Any) -> None:
        """`p.grad = value`, wherever it is written; inside a backward pass what arrived until now is told first."""
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
            self._event("assign", self._grads([tensor]), params=self._named([tensor]), during=during)

    def within(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call whose writes to the buffers are accounted for."""
        self._inside.append(what)
        told = self.thorough and what != "backward"
        if told:
            self._event("enter", what=what)
        try:
            return call()
        finally:
            self._inside.pop()
            if told:
                self._event("leave", what=what)

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

    def rebound(self, setter: Call, tensor: Tensor, value: Any) -> None:
        """`p.data = value` of a known parameter: its numbers are those of another tensor from here on."""
        setter(tensor, value)
        if self.names.knows(tensor) and not self._inside:
            self._event("rebind", self._params([tensor]), params=self._named([tensor]))

    def _dtypes(self, params: list[Tensor]) -> dict[str, str]:
        """The buffers' dtypes, but for float32; without tensors they are looked at once for a set of parameters."""
        key = (self.names.edition, len(params))
        if self.thorough or self._odd[0] != key:
            odd = ((p, p.grad.dtype) for p in params if p.grad is not None and p.grad.dtype is not torch.float32)
            self._odd = key, {self.names.claim(p): str(dtype).removeprefix("torch.") for p, dtype in odd}
        return self._odd[1]

    def _rated(self, optimizer: Any, at: str) -> None:
        """Report a learning rate that no scheduler set; `at` is the call before which it was seen."""
        now = rates(optimizer)
        before = self._rates.setdefault(optimizer, now)
        self._rates[optimizer] = now
        moved = any(a != b and not isnan(a) and not isnan(b) for a, b in zip(now, before, strict=False))
        if len(now) == len(before) and moved:
            self._event("rate", optimizer=self.number(optimizer), before=before, after=now, at=at)

    def _arrived(self, only: list[Tensor] | None = None) -> None:
        """Buffers that the backward pass changed."""
        changed = [p for p, how in self.buffers.changes(only) if how != "gone" and p.is_leaf]
        if changed:
            self._event(
                "accumulate",
                self._grads(self.names.params() if only is None else only),
                self._place,
                ranks=self._ranks,
                params=self._named(changed),
                number=self._backwards,
                dtypes=self._dtypes(changed),
                hooked=any(p._backward_hooks or p._post_accumulate_grad_hooks for p in changed),
                kept=self._kept,
            )
