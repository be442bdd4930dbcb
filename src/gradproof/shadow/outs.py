"""The outputs of a tracked operator: what it wrote, what it made, and what becomes tracked by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradproof.shadow.schemas import Spec
from gradproof.shadow.storages import Held, State, array, const, fingerprint, storage_of
from gradproof.shadow.tape import Const, Init, Ref

if TYPE_CHECKING:
    from gradproof.shadow.recorder import Recorder


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
