"""What is known of the passes and steps of recorded windows beside their order: weights, optimizers, learning rates.

Weights are the parameters of every optimizer that was made, and those that a backward pass reaches. A write past the
version counter is seen by checksum, before and after each step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from gradproof.shadow.locations import user_location
from gradproof.shadow.protocol import run_events as kinds
from gradproof.shadow.protocol.rank_sums import COLLECTIVES, Call, RankSums
from gradproof.shadow.protocol.run_events import Arrival, RunEvents, SeenEvent
from gradproof.shadow.record.checksums import checksum, same
from gradproof.shadow.record.patches import Patches, all_subclasses, changes_step, leaves_of, params_of, rates


@dataclass(frozen=True, slots=True)
class SeenPass:
    """A backward pass: what was known as it began, and the weights that it reaches.

    `hooked`: one of these has a hook. `returned`: gradients were returned. `inside`: of an optimizer's step.
    """

    arrival: Arrival
    reached: frozenset[int]
    hooked: bool
    returned: bool
    inside: bool


@dataclass(frozen=True, slots=True)
class SeenStep:
    """An optimizer step: its parameters, and the gradients that it was handed, as they were written last.

    `changed`: a subclass or a hook changes the step. `within`: a backward pass ran. `still`: it wrote no weight, though
    its rate is not zero.
    """

    optimizer: int
    own: frozenset[int]
    held: Mapping[int, tuple[int, Any]]
    foreign: bool
    changed: bool
    within: bool
    skipped: bool
    still: bool


class WindowDetails:
    """Looks at weights and optimizers while a recorded window runs. `leaves`, `reaching`: what the pass reaches.

    `optimizers`: the parameters of each that was there in a recorded pass. It may be freed before the run is judged.
    """

    def __init__(self, run: RunEvents) -> None:
        self.run, self.sums = run, RankSums()
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers: set[frozenset[int]] = set()
        self.reaching: set[int] = set()
        self.leaves: list[Tensor] = []
        self._weights: dict[int, Tensor] = {}
        self._checked: dict[int, Tensor | None] = {}
        self._rates: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()
        self._held: dict[int, tuple[int, Any]] = {}
        self._last = -2
        self.starts: Callable[[], None] = lambda: None  # called where an optimizer is made

    def install(self, patches: Patches) -> None:
        """Put the patches in place."""
        patches.method(Optimizer, "__init__", self._optimizer)
        patches.method(AveragedModel, "update_parameters", self._averaged)
        if torch.distributed.is_available():
            patches.function(torch.distributed.all_reduce, self.sums.reduce)
            for name in COLLECTIVES:
                patches.function(getattr(torch.distributed, name), self.sums.collective)
        for cls in all_subclasses(DistributedDataParallel):
            patches.method(cls, "__init__", self.sums.made)
            patches.method(cls, "forward", self.sums.forward)

    def _optimizer(self, original: Call, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.made.add(optimizer)
        self.starts()

    def _averaged(self, original: Call, average: Any, *args: Any, **kwargs: Any) -> Any:
        self.run.keep(kinds.AVERAGED)
        return original(average, *args, **kwargs)

    # Backward passes

    def reaches(self, roots: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """What a backward pass reaches; one inside another belongs to it."""
        if self.run.on:
            self._reach(roots, inputs)

    def _reach(self, roots: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        self.leaves += list(inputs) or leaves_of(roots)
        self.reaching.update(map(id, self.leaves))

    def _owned(self) -> dict[int, Tensor]:
        return {id(p): p for optimizer in list(self.made) for p in params_of(optimizer)}

    def of_weights(self, given: list[Tensor]) -> bool:
        """Whether tensors are weights, each of them."""
        owned = self._owned()
        return bool(given) and all(isinstance(t, nn.Parameter) or id(t) in owned for t in given)

    def began(
        self, event: SeenEvent, arrival: Arrival, roots: Iterable[Tensor], inputs: Iterable[Tensor], *flags: bool
    ) -> None:
        """A pass has begun. `flags`: whether it returns gradients, and whether it is inside of an optimizer's step."""
        self.leaves.clear()
        self.reaching.clear()
        self.sums.on = self.run.on
        if not event.kept:
            return
        self._reach(roots, inputs)
        owned = self._owned()
        self.optimizers |= {frozenset(map(id, params_of(optimizer))) for optimizer in list(self.made)}
        own = {id(t): t for t in self.leaves if isinstance(t, nn.Parameter) or id(t) in owned}
        if not own:
            return
        hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in own.values())
        event.about = SeenPass(arrival, frozenset(own), hooked, *flags)
        if not self.run.on:
            return
        if self._last not in (self.run.number, self.run.number - 1):  # what happened meanwhile is not known
            self._checked.clear()
            self._rates.clear()
            self.sums.clear()
        if event.about.inside:
            self.sums.unsummed = self.sums.unsummed or event.location
        first, self._last = self._last != self.run.number, self.run.number
        self._weights |= owned | own
        for key, weight in self._weights.items():
            if key not in self._checked:
                self._checked[key] = checksum(weight)
        for optimizer in list(self.made):
            self.rated(optimizer, inner=not first)

    def rated(self, optimizer: Any, inner: bool = False, scheduled: bool = False) -> None:
        """Look at the learning rates. `scheduled`: a schedule set them; `inner`: it is another pass than the first."""
        now = rates(optimizer)
        before = self._rates.get(optimizer, now)
        self._rates[optimizer] = now
        if not scheduled and len(now) == len(before) and any(a < b or b < a for a, b in zip(now, before, strict=True)):
            self.run.keep(kinds.RATE, inner)

    # Optimizer steps

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self.made.add(optimizer)
        if not self.run.on:
            return
        own = params_of(optimizer)
        self._weights |= {id(p): p for p in own}
        if self._written():
            self.run.keep(kinds.REWRITTEN)
        self.rated(optimizer)
        self._held = held(own)
        self.sums.applied(own, user_location())

    def stepped(self, optimizer: Any, number: int, skipped: bool) -> SeenStep | None:
        """An optimizer has stepped, or a loss scaler has left the step out. What a closure brought is held as well."""
        if not self.run.on:
            return None
        own = params_of(optimizer)
        now = rates(optimizer)
        self._rates[optimizer] = now
        still = not self._written() and not skipped and any(now)
        foreign = not type(optimizer).__module__.startswith("torch.optim.")
        within = torch._C._current_graph_task_id() != -1
        flags = (foreign, changes_step(optimizer), within, skipped, still)
        return SeenStep(number, frozenset(map(id, own)), held(own) | self._held, *flags)

    def _written(self) -> bool:
        """Whether some weight is not what it was at the last call. Of a sparse one that is not known."""
        now = {key: checksum(weight) for key, weight in self._weights.items()}
        found = any(weight.layout is not torch.strided for weight in self._weights.values())
        found |= any(not same(self._checked.get(key), one) for key, one in now.items())
        self._checked = now
        return found


def held(own: Iterable[Tensor]) -> dict[int, tuple[int, Any]]:
    """The gradients of some parameters: which tensor each is, and its version; one of inference mode has none."""
    found = ((id(p), p.grad) for p in own if p.grad is not None)
    return {key: (id(grad), object() if grad.is_inference() else grad._version) for key, grad in found}
