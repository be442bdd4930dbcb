"""The events of every window of a watched run: windows that are not recorded are compared with those that are.

A window begins with its first backward pass. What comes after its step belongs to it, until the next backward pass.
Nothing that these events show makes an obligation hold: a window that is not like a recorded one is named.

Of recorded windows more is known: weights, optimizers, learning rates. Weights are the parameters of every optimizer
that was made, and those that a backward pass reaches. A write past the version counter is seen by checksum, before and
after each step.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradproof.shadow.locations import NOWHERE, Location, user_location
from gradproof.shadow.tape.calls import (
    CLIP,
    PASS,
    SCHEDULE,
    STEP,
    UNSCALE,
    ZERO,
    Patches,
    all_subclasses,
    changes_step,
    leaves_of,
    params_of,
    rates,
)
from gradproof.shadow.tape.checksums import checksum, same
from gradproof.shadow.tape.held_state import Change, HeldState
from gradproof.shadow.tape.looks import Facts, Noted

COMPARED = (PASS, STEP, ZERO, CLIP, UNSCALE, SCHEDULE)
CHANGED, REWRITTEN, ABORTED, THREADS = "changed", "rewritten", "aborted", "threads"
"""What is kept of recorded windows besides: an entry of what is held that no step wrote, weights that none wrote, a
backward pass that raised, and one that began while that of another thread ran."""
MOST = 256
"""Kinds of windows that are kept."""
Act = tuple[str, Location]
Kind = tuple[tuple[Act, ...], tuple[Act, ...], Noted]
"""What happens in a window up to its last step, and after it; what was noted of its backward passes."""


@dataclass
class Iteration:
    """One pass over a DataLoader, and how backward passes followed its batches. `rows`: of the last one.

    `lead`: the batches until its first backward pass, `between`: the most until another one, `waiting`: since the last;
    `loader`: whose it is, and `line`: that of its first pass.
    `held`: by what rows hold, of any data loader, the iteration and the number of the first such batch since one came
    to its end. `shared`: several workers iterate, each over a copy of one dataset. `collated`: workers put batches
    together by a function of the script's. `redraws`: rows are drawn with replacement. `data`: the data set.
    """

    length: int | None = None
    sizes: set[int | None] = field(default_factory=set)
    rows: int | None = None
    read: int = 0
    ended: bool = False
    passes: int = 0
    since: int = 0
    most: int = 1
    late: int = 0
    held: dict[Any, tuple[Iteration, int]] = field(default_factory=dict)
    shared: bool = False
    collated: bool = False
    redraws: bool = False
    data: Any = None
    loader: int = 0
    line: Location = NOWHERE
    lead: int = 0
    between: int = 0
    waiting: int = 0

    def followed(self, line: Location) -> None:
        """A backward pass follows its batches."""
        if self.passes:
            self.between = max(self.between, self.waiting)
        else:
            self.lead, self.line = self.waiting, line
        self.passes, self.since, self.waiting = self.passes + 1, self.since + 1, 0
        self.late += int(self.ended)
        self.most = self.most if self.ended else max(self.most, self.since)

    @property
    def left_out(self) -> int:
        """How many batches came before the first that was trained on, and were not, where all of them were read."""
        first = self.lead - max(self.between, 1)
        return first if self.complete and 1 < self.passes <= self.read - first else 0

    @property
    def stated(self) -> bool:
        """Whether its batches and the backward passes went together: it was not read to its end beforehand."""
        return self.late <= self.most

    @property
    def complete(self) -> bool:
        """Whether every batch was read."""
        return self.ended or self.read == self.length

    @property
    def cut(self) -> bool:
        """Whether most of its batches were read: an epoch may leave out the rest."""
        return self.length is not None and 2 * self.read >= self.length

    @property
    def trained(self) -> bool:
        """Whether every batch was read and each was followed by a backward pass."""
        return self.complete and self.passes >= self.read

    @property
    def size(self) -> int | None:
        """Rows of a batch, where all batches had as many and each was one micro-batch."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 and self.passes <= self.read else None


@dataclass(slots=True)
class SeenPass:
    """A backward pass: the batches that it follows, the forward passes before it, and the weights that it reaches.

    `trained` says that it was the pass of the last batch; `read` counts the batches until it began. `forwards` counts
    the calls of the first module since the pass before; it is 0 where no module was called, or no more is looked at.
    `passes` counts the backward passes of the run until it began.
    `ahead`: it is the last of as many as there were batches, which were read before; so it follows no batch of its own.
    `again`: one of its parts with weights was called more than once, as where a module sums several micro-batches.
    `hooked`: a weight has a hook. `returned`: gradients were returned. `inside`: of an optimizer's step.
    """

    iteration: Iteration | None = None
    trained: bool = False
    read: int = 0
    forwards: int = 0
    passes: int = 0
    ahead: bool = False
    again: bool = False
    returned: bool = False
    inside: bool = False
    reached: frozenset[int] = frozenset()
    hooked: bool = False


@dataclass(slots=True)
class SeenEvent:
    """An event of a run: its line, and its window, counted from 0; of `check` the optimizer steps before it.

    `watch` knows more `about` it, where the window is recorded. `check` knows the `operator` that wrote, or made, a
    tensor; whether it was `scaled` by a number that is made of gradients; of a backward pass its `root`, the line that
    made the number at which it began.
    """

    kind: str
    location: Location
    window: int = 0
    about: Any = None
    operator: str = ""
    root: Location = NOWHERE
    storage: int = 0
    scaled: bool = False


class RunEvents:
    """The events of a run. `number`: the present window, counted from 0; `stepped`: whether it was.

    `seen`: the events of the recorded windows, of the present one, and of the one after each recorded one. Windows
    below `usual` are what others are compared with, as recorded ones are.
    """

    def __init__(self) -> None:
        self.number = self.usual = self.more = 0
        self.open = self.stepped = False
        self.recorded: set[int] = set()
        self._kinds: dict[Kind, tuple[int, int]] = {}  # how many, and the first of them
        self._recorded: set[Kind] = set()
        self.seen: dict[int, list[SeenEvent]] = {}
        self.facts = Facts()

    def kept(self) -> list[list[SeenEvent]]:
        """The events of each recorded window."""
        return [own for number, own in sorted(self.seen.items()) if number in self.recorded]

    @property
    def on(self) -> bool:
        """Whether the present window is recorded."""
        return self.number in self.recorded

    def keep(self, kind: str, about: Any = None) -> SeenEvent:
        """Note an event of the present window; before the first backward pass it belongs to none."""
        made = SeenEvent(kind, user_location() if self.open else NOWHERE, self.number, about)
        if self.open:
            self.seen.setdefault(self.number, []).append(made)
            self.stepped |= kind == STEP
        return made

    def begins(self) -> SeenEvent:
        """A backward pass begins: the first of a window where a step came before."""
        if self.stepped:
            self._close()
        self.open = True
        return self.keep(PASS)

    def wanted(self, event: SeenEvent) -> bool:
        """Whether an event is of a recorded window, or the first one after it."""
        return self.on or (self.number - 1 in self.recorded and self.seen[self.number][0] is event)

    def _close(self) -> None:
        acts = [(event.kind, event.location) for event in self.seen[self.number] if event.kind in COMPARED]
        until = max(at for at, (what, _) in enumerate(acts, 1) if what == STEP)
        after = acts[until:]
        if sum(what == SCHEDULE for what, _ in after) == 1:  # one that follows epochs, or each step
            after = [act for act in after if act[0] != SCHEDULE]
        passes, usual = sum(what == PASS for what, _ in acts), self.on or self.number < self.usual
        kind = (tuple(acts[:until]), tuple(after), self.facts.close(passes, usual))
        if usual:
            self._recorded.add(kind)
        elif self.number - 1 not in self.recorded:
            del self.seen[self.number]
        if kind in self._kinds or len(self._kinds) < MOST:
            count, first = self._kinds.get(kind, (0, self.number))
            self._kinds[kind] = (count + 1, first)
        else:
            self.more += 1
        self.number, self.open, self.stepped = self.number + 1, False, False

    @property
    def windows(self) -> int:
        """The windows that were stepped."""
        return self.number + self.stepped

    def others(self) -> Iterator[tuple[int, int, str]]:
        """The windows that are like no recorded one: how many, the first of them, and in what they differ.

        What came after the run's last step is not compared.
        """
        last = None
        if self.stepped:
            last = self.number
            self._close()
        for kind, (count, first) in self._kinds.items():
            if self._recorded and not self._known(kind, (count, first) == (1, last)):
                yield count, first, self._difference(kind)

    def _known(self, kind: Kind, final: bool) -> bool:
        """Whether a recorded window is like this one, which may zero more after its step."""
        body, after, noted = kind
        for own, other, _ in self._recorded:
            left = iter(after)
            more = {act[0] for act in Counter(after) - Counter(other)}
            if body == own and (final or (all(act in left for act in other) and more <= {ZERO})):
                return next(self.facts.others(noted), None) is None
        return False

    def _difference(self, kind: Kind) -> str:
        """In what a window differs from the recorded ones: the backward passes first, then what has more or less."""
        own, *others = (Counter(body + after) for body, after, _ in (kind, *self._recorded))
        passes, *known = (sum(n for (what, _), n in one.items() if what == PASS) for one in (own, *others))
        if passes not in known:
            right = " or ".join(map(str, sorted({*known})))
            return f"has {passes} backward passes where the recorded ones have {right}"
        if (words := next(self.facts.others(kind[2]), None)) is not None:
            return words
        every = set[Act]().union(*others)
        for act in (act for act in own if act not in every):
            return f"has {own[act]} x {shown_act(act)}, which no recorded one has"
        for act in sorted(every.difference(own), key=str):
            return f"has no {shown_act(act)}, which a recorded one has"
        return "has the events of the recorded ones in another number or order"


def shown_act(act: Act) -> str:
    """An event with its line."""
    what, location = act
    return f"{what} at {location.short}" if location.file else what


# -- Passes and steps of recorded windows.


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
        self.leaves, self.reaching = list[Tensor](), set[int]()
        self._weights: dict[int, Tensor] = {}
        self._checked: dict[int, Tensor | None] = {}
        self.state = HeldState(self._changed, self._weights)
        self._held: dict[int, tuple[int, Any]] = {}
        self._last = -2
        self.starts: Callable[[], None] = lambda: None  # called where an optimizer is made

    def install(self, patches: Patches) -> None:
        """Put the patches in place."""
        patches.method(Optimizer, "__init__", self._optimizer)
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

    def _changed(self, change: Change) -> None:
        event = self.run.keep(CHANGED, change)
        event.location = change.location if change.location.file else event.location

    # Backward passes

    def reaches(self, roots: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """What a backward pass reaches; one inside another belongs to it."""
        self.leaves += list(inputs) or leaves_of(roots)
        self.reaching.update(map(id, self.leaves))

    def _owned(self) -> dict[int, Tensor]:
        return {id(p): p for optimizer in list(self.made) for p in params_of(optimizer)}

    def of_weights(self, given: list[Tensor]) -> bool:
        """Whether tensors are weights, each of them."""
        owned = self._owned()
        return bool(given) and all(isinstance(t, nn.Parameter) or id(t) in owned for t in given)

    def began(self, event: SeenEvent, seen: SeenPass, roots: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """A pass has begun."""
        self.leaves.clear()
        self.reaching.clear()
        self.sums.on = self.run.on
        if not self.run.wanted(event):
            return
        self.reaches(roots, inputs)
        owned = self._owned()
        self.optimizers |= {frozenset(map(id, params_of(optimizer))) for optimizer in list(self.made)}
        own = {id(t): t for t in self.leaves if isinstance(t, nn.Parameter) or id(t) in owned}
        if not own:
            return
        event.about, seen.reached = seen, frozenset(own)
        seen.hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in own.values())
        if not self.run.on:
            return
        if self._last not in (self.run.number, self.run.number - 1):  # what happened meanwhile is not known
            self._checked.clear()
            self.state.forget()
            self.sums.held.clear()
        if event.about.inside:
            self.sums.unsummed = self.sums.unsummed or event.location
        first, self._last = self._last != self.run.number, self.run.number
        self._weights |= owned | own
        for key, weight in self._weights.items():
            if key not in self._checked:
                self._checked[key] = checksum(weight)
        self.state.look(list(self.made), inner=not first)

    def scheduled(self, call: Callable[[], Any]) -> Any:
        """A schedule steps, and may write what optimizers hold."""
        if not self.run.on:
            return call()
        self.state.look(list(self.made))
        made = call()
        self.state.settled(list(self.made))
        return made

    # Optimizer steps

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self.made.add(optimizer)
        if not self.run.on:
            return
        own = params_of(optimizer)
        self._weights |= {id(p): p for p in own}
        if self._written():
            self.run.keep(REWRITTEN)
        self.state.look(list(self.made))
        self._held = held(own)
        self.sums.applied(own, user_location())

    def stepped(self, optimizer: Any, number: int, skipped: bool) -> SeenStep | None:
        """An optimizer has stepped, or a loss scaler has left the step out. What a closure brought is held as well."""
        if not self.run.on:
            return None
        own = params_of(optimizer)
        self.state.settled(list(self.made))
        still = not self._written() and not skipped and any(rates(optimizer))
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


# -- Which gradients were summed over the ranks, and still hold that sum where a step applies them.
#
# DistributedDataParallel sums in the backward pass of a forward pass outside of `no_sync`: the sum is complete when
# every parameter has its gradient, or with the pass where some may be unused. `all_reduce` of a gradient sums as well.
# What is written afterwards is seen by checksum; torch's own clips and the loss scaler may scale a sum.
Call = Callable[..., Any]
SUM = torch.distributed.ReduceOp.SUM if torch.distributed.is_available() else None
COLLECTIVES = (
    "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip


@dataclass(slots=True)
class SeenGradient:
    """A gradient as it was last seen. `whole`: the sum over all ranks; `local`: the rank's own under no_sync."""

    param: Tensor
    sum: Tensor | None
    whole: bool
    local: bool = False

    @property
    def kept(self) -> bool:
        """Whether the gradient is what it was."""
        grad = self.param.grad
        return grad is not None and self.sum is not None and same(self.sum, checksum(grad))


@dataclass(slots=True)
class Summing:
    """A DistributedDataParallel: its parameters, whether its next backward pass sums, and what that has not brought."""

    params: list[Tensor]
    sums: bool = False
    missing: set[int] = field(default_factory=set)


def world_of(group: Any = None) -> int:
    """The ranks of a process group, by default of all; 1 where there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size(group)


class RankSums:
    """The sums over ranks of the recorded windows. `on`: one of these windows runs."""

    def __init__(self) -> None:
        self.on = self.seen = self.judged = self.by_hand = False
        self.unsummed: Location | None = None
        self.local: Location | None = None
        self.held: dict[int, SeenGradient] = {}
        self._modules: weakref.WeakKeyDictionary[nn.Module, Summing] = weakref.WeakKeyDictionary()

    @property
    def _idle(self) -> bool:
        return not self.on or (world_of() < 2 and not self.seen)

    def made(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> None:
        """A DistributedDataParallel was made: it sums the gradients of what it was given, and of nothing else."""
        original(module, *args, **kwargs)
        self._module(module)

    def _module(self, module: Any) -> Summing:
        if module not in self._modules:
            named, ignored = module.module.named_parameters(), module.parameters_to_ignore
            self._modules[module] = Summing([p for name, p in named if p.requires_grad and name not in ignored])
        return self._modules[module]

    def forward(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
        """DistributedDataParallel.forward, which decides whether the next backward pass sums."""
        own = self._module(module)
        if torch.is_grad_enabled():
            pending = own.sums and own.missing  # the next pass sums all the same
            own.sums = bool(module.require_backward_grad_sync)
            self.by_hand |= bool(self.on and pending and not own.sums)
            own.missing = {id(p) for p in own.params}
        return original(module, *args, **kwargs)

    def reduce(self, original: Call, tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
        """torch.distributed.all_reduce, of gradients or of something else. A sum is one over all ranks."""
        made = original(tensor, op, group, async_op)
        if self.on:
            summed = op in (SUM, torch.distributed.ReduceOp.AVG) and world_of(group) == world_of() and not async_op
            own = [one.param for one in self.held.values() if is_gradient(tensor, one.param)]
            self._note(own, summed)
            self.by_hand |= tensor.numel() > 1 and not (own and summed)
        return made

    def collective(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """Another exchange between ranks: what it does to gradients is not followed."""
        self.by_hand |= self.on
        return original(*args, **kwargs)

    def scaled(self, call: Callable[[], Any]) -> Any:
        """A clip, or the loss scaler: what is a sum stays one."""
        kept = [] if self._idle else [one for one in self.held.values() if one.kept]
        made = call()
        for one in kept:
            one.sum = None if one.param.grad is None else checksum(one.param.grad)
        return made

    def arrived(self, reached: Iterable[Tensor]) -> None:
        """A backward pass has ended."""
        if self._idle:
            return
        arrived = [p for p in reached if p.grad is not None]
        self._note(arrived, False)
        module: Any
        for module, own in list(self._modules.items()):
            if not own.sums or not own.missing & {id(p) for p in arrived}:
                continue
            own.missing -= {id(p) for p in arrived}
            if not own.missing or module.find_unused_parameters or module.static_graph:
                own.missing = set()
                if module.process_group.size() == world_of() and not module._comm_hooks:
                    self._note(own.params, True)

    def _note(self, params: Iterable[Tensor], whole: bool) -> None:
        local = {id(p) for own in self._modules.values() if not own.sums for p in own.params}
        self.seen |= whole and world_of() > 1
        for p in params:
            if p.grad is not None:
                self.held[id(p)] = SeenGradient(p, checksum(p.grad), whole, id(p) in local)

    def applied(self, params: Iterable[Tensor], location: Location) -> None:
        """An optimizer is about to apply the gradients of these."""
        if self._idle:
            return
        self.judged = True
        for p in (p for p in params if p.grad is not None):
            one = self.held.get(id(p))
            if one is not None and one.kept and (one.whole or one.local):
                self.local = self.local or (None if one.whole else location)
            else:
                self.unsummed = self.unsummed or location


def is_gradient(tensor: Tensor, param: Tensor) -> bool:
    """Whether a tensor is the gradient of a parameter: the same numbers, at the same place."""
    address, grad = torch._C.TensorBase.data_ptr, param.grad
    if grad is None or grad.layout is not torch.strided or tensor.layout is not torch.strided:
        return grad is tensor
    return address(grad) == address(tensor) and grad.numel() == tensor.numel()
