"""What changes at steps alone: the state and the groups of optimizers, the buffers of modules, averages of weights.

An entry that changes in one interval of a window, as after each step, does so once a window by the full batch as well.
One that changes between micro-batches, and again, is one of three:
- it is made of what it was before, by one factor or one difference: it advances N times a window. That is wrong;
- it was set anew, as a learning rate to a function of progress: the last one counts, and it is right;
- how it was made is not shown, or all of it changed by one factor or difference though it was set: not decided.

Two things show how: an operator that writes a tensor in place, and reads it unless it only sets it, or makes one of
another; and numbers of groups, which are handed out as `HeldNumber` once they were changed by hand.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.locations import NOWHERE, Location, user_location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.tape.checksums import checksum, plain, same

Key = tuple[Any, ...]
"""Group, state, buffer or average: what holds the entry, its name, and the place in a tuple."""
GROUP, STATE, BUFFER, AVERAGE, EXPORT = "group", "state", "buffer", "average", "export"
HELD = {
    GROUP: (
        "`{}` of an optimizer's group",
        "set it once a window, after the step",
    ),
    STATE: ("`{}` of an optimizer's state", "leave it to the optimizer's step"),
    BUFFER: (
        "`{}` of a module's buffers",
        "keep the module in eval mode, or use one without running statistics, such as GroupNorm or LayerNorm",
    ),
    AVERAGE: ("an average of the weights", "update it once a window, right after the step"),
    EXPORT: ("what another library than torch may make of the weights", "read them once a window, after the step"),
}
"""How an entry is called, and what helps."""
ITSELF, SET, UNKNOWN = "made of what it was", "set", ""
SETS = frozenset({"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_", "set_", "normal_", "uniform_"})
JOINS = frozenset({"cat", "stack"})
LONG = 2
"""A tensor that is made anew each time is an average of weights once it was made of such a one so often before."""


class HeldNumber(float):
    """A number of a group, or what Python made of it. `of`: the entries that it is made of, and when."""

    of: frozenset[tuple[Key, int]] = frozenset()

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


def number(value: float, of: frozenset[tuple[Key, int]]) -> HeldNumber:
    """A number of this origin."""
    made = HeldNumber(value)
    made.of = of
    return made


def _operation(name: str) -> Callable[..., Any]:
    operation = getattr(float, name)

    def operated(self: HeldNumber, *others: Any) -> Any:
        made = operation(self, *others)
        of = self.of.union(*(other.of for other in others if isinstance(other, HeldNumber)))
        return number(made, of) if isinstance(made, float) else made

    return operated


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(HeldNumber, f"__{_name}__", _operation(f"__{_name}__"))
    setattr(HeldNumber, f"__r{_name}__", _operation(f"__r{_name}__"))
for _name in ("neg", "pos", "abs", "round"):
    setattr(HeldNumber, f"__{_name}__", _operation(f"__{_name}__"))


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that something else than a step wrote, and its line where an operator did.

    `turn`: the interval. `inner`: it ends with a backward pass that is not the first of a window. `narrow`: its numbers
    may be narrower than Python's.
    """

    key: Key
    before: float | None
    after: float | None
    made: str
    turn: int
    inner: bool
    location: Location = NOWHERE
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry as it was seen last. `storage`: of a tensor; `stamp`: of a number that was handed out."""

    number: float | None = None
    sum: Tensor | None = None
    other: Any = None
    storage: int | None = None
    stamp: int | None = None

    def differs(self, now: HeldEntry) -> bool:
        """Whether the entry holds something else now."""
        if self.number is not None and now.number is not None:
            return self.number < now.number or now.number < self.number
        return not same(self.sum, now.sum) or self.other != now.other or (self.sum is None) != (now.sum is None)


@dataclass(slots=True)
class Origin:
    """What operators made a storage of. `of`: storages that were there before; `weights`: whether weights were read.

    `born`, `written`: the turns. `long`: how often it was made anew of one that was made of weights before.
    """

    weak: Any
    born: int
    written: int
    of: set[int] = field(default_factory=set)
    weights: bool = False
    long: int = 0
    location: Location = NOWHERE

    @property
    def expired(self) -> bool:
        """Whether the storage is gone. Until this is, its number is not given to another one."""
        return bool(self.weak.expired())


class HeldState:
    """Compares, before each backward pass and each step of a recorded window, what is held with what was.

    `keep` takes a change. `weights` and `modules`, which were called: by identity.
    """

    def __init__(self, keep: Callable[[Change], None], weights: dict[int, Tensor]) -> None:
        self._keep, self._weights = keep, weights
        self.modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._seen: dict[Key, HeldEntry] = {}
        self._origins: dict[int, Origin] = {}
        self._places: set[int] = set()
        self._exports: dict[Location, None] = {}
        self._turn = self._stamps = 0

    def forget(self) -> None:
        """What happened meanwhile is not known."""
        self._seen.clear()
        self._origins.clear()

    def look(self, optimizers: Sequence[Any], inner: bool = False) -> None:
        """Compare what is held now; what a step or a schedule writes is `settled`."""
        with _disable_current_modes():
            known, self._seen = self._seen, {}
            for key, value, owner in entries(optimizers, self.modules.values()):
                before, now = known.get(key), seen(value)
                if before is not None and before.differs(now):
                    made, location = self._made(key, value, before, now)
                    self._keep(
                        Change(
                            key, before.number, now.number, made, self._turn, inner, location, now.storage is not None
                        )
                    )
                    now = self._handed(key, value, owner, now)
                self._seen[key] = now
            self._averages(inner)
            self._begin()

    def settled(self, optimizers: Sequence[Any]) -> None:
        """A step, or a schedule, has written what is held by optimizers. Numbers of groups are plain again."""
        with _disable_current_modes():
            for key, value, owner in entries(optimizers, ()):
                if isinstance(value, HeldNumber):
                    put(owner, key, float(value))
            self._seen = {key: one for key, one in self._seen.items() if key[0] == BUFFER}
            self._seen |= {key: seen(value) for key, value, _ in entries(optimizers, ())}
            self._begin()

    def _begin(self) -> None:
        self._turn += 1
        self._places = {storage for p in self._weights.values() if (storage := place(p)) is not None}
        gone = [storage for storage, one in self._origins.items() if one.expired]
        for storage in gone:
            del self._origins[storage]

    # How an entry was made

    def _made(self, key: Key, value: Any, before: HeldEntry, now: HeldEntry) -> tuple[str, Location]:
        """How an entry was made, and the line."""
        if isinstance(value, Tensor):
            one = self._origins.get(now.storage or 0)
            if one is not None and one.written == self._turn:
                return ITSELF if before.storage in one.of else SET, one.location
            return (UNKNOWN if now.storage == before.storage else SET), NOWHERE
        if before.stamp is None:
            return UNKNOWN, NOWHERE
        return (ITSELF if (key, before.stamp) in getattr(value, "of", ()) else SET), NOWHERE

    def _handed(self, key: Key, value: Any, owner: Any, now: HeldEntry) -> HeldEntry:
        """Hand out a number of a group in a way that shows what is made of it."""
        if not isinstance(value, float) or key[0] != GROUP:
            return now
        self._stamps += 1
        put(owner, key, number(value, frozenset({(key, self._stamps)})))
        return HeldEntry(now.number, stamp=self._stamps)

    def operated(self, spec: Spec, args: Any, kwargs: Any, out: Any) -> None:
        """An operator ran, outside of steps and backward passes."""
        given = [t for t in tensors_in((args, kwargs)) if plain(t)]
        targets = {s: t for t in spec.targets(args, kwargs) if plain(t) and (s := place(t)) is not None}
        made = {s: t for t in tensors_in(out) if plain(t) and (s := place(t)) is not None} if not targets else {}
        read = {s for t in given if (s := place(t)) is not None}
        for storage, tensor in (targets or made).items():
            if storage in read and not targets:
                continue  # a view
            others = [t for t in given if place(t) != storage]
            old = self._origins.get(storage) if targets else None
            one = Origin(weak(tensor), self._turn if old is None else old.born, self._turn)
            if old is None and targets:
                one.born = -1
            for other in others:
                self._joined(one, other, tensor, spec.short)
            if targets and spec.short not in SETS:
                again = old is not None and old.written == self._turn
                one.of |= old.of if old is not None and again else {storage}
                one.weights |= old is not None and again and old.weights
            one.location = user_location() if targets or one.weights else NOWHERE
            self._origins[storage] = one

    def _joined(self, one: Origin, other: Tensor, into: Tensor, short: str) -> None:
        """One is made of another tensor."""
        storage = place(other)
        known, alike = self._origins.get(storage or 0), other.shape == into.shape or short in JOINS
        if storage in self._places:
            one.weights |= alike
        elif known is not None and known.born == self._turn:
            one.of |= known.of
            one.weights |= known.weights and alike
            one.long = max(one.long, known.long)
        elif storage is not None:
            one.of.add(storage)
            one.long = max(one.long, known.long + 1 if known is not None and known.weights else 0)

    def _averages(self, inner: bool) -> None:
        """Weights went into tensors that were made of weights before, and that are neither weights nor gradients."""
        held = {one.storage for one in self._seen.values()} | self._places
        held |= {place(p.grad) for p in self._weights.values() if p.is_leaf and p.grad is not None}
        lines = {(EXPORT, line): line for line in self._exports}
        for storage, one in self._origins.items():
            again = storage in one.of if one.born < self._turn else one.long >= LONG
            if one.written == self._turn and one.weights and again and storage not in held and not one.expired:
                lines[AVERAGE, one.location] = one.location
        for key, line in lines.items():
            self._keep(Change(key, None, None, ITSELF, self._turn, inner, line))
        self._exports.clear()

    def exported(self, tensor: Tensor) -> None:
        """The memory of a tensor is given to NumPy, or to another library."""
        storage = place(tensor)
        known = self._origins.get(storage or 0)
        if storage in self._places or (known is not None and known.weights):
            self._exports[user_location()] = None


def weak(tensor: Tensor) -> Any:
    """A weak reference to the storage of a tensor."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def place(tensor: Tensor | None) -> int | None:
    """The storage of a tensor that has one."""
    return tensor.untyped_storage()._cdata if tensor is not None and plain(tensor) else None


def entries(optimizers: Iterable[Any], modules: Iterable[nn.Module]) -> Iterator[tuple[Key, Any, Any]]:
    """What is held, with what holds it."""
    for optimizer in optimizers:
        of = id(optimizer)
        for at, group in enumerate(optimizer.param_groups):
            yield from _named((GROUP, of, at), {name: one for name, one in group.items() if name != "params"}, group)
        state = getattr(optimizer, "state", None)
        for parameter, held in list(state.items()) if isinstance(state, dict) else ():
            owner = id(parameter) if isinstance(parameter, Tensor) else parameter
            yield from _named((STATE, of, owner), held if isinstance(held, dict) else {}, held)
    for module in list(modules):
        yield from _named((BUFFER, id(module), 0), dict(module.named_buffers()), module)


def _named(key: Key, held: dict[Any, Any], owner: Any) -> Iterator[tuple[Key, Any, Any]]:
    for name, value in held.items():
        if isinstance(value, tuple | list):
            yield from (((*key, name, at), one, owner) for at, one in enumerate(value))
        else:
            yield (*key, name, None), value, owner


def put(owner: Any, key: Key, value: Any) -> None:
    """Replace a number that is held, by itself or in a tuple or list."""
    name, at = key[-2:]
    if at is not None:
        held = owner[name]
        value = type(held)([*held[:at], value, *held[at + 1 :]]) if type(held) in (tuple, list) else held
    owner[name] = value


def seen(value: Any) -> HeldEntry:
    """An entry as it is now. A tensor of one element is a number, but on an accelerator, which is not waited for."""
    if isinstance(value, Tensor):
        alone = value.numel() == 1 and value.device.type == "cpu" and plain(value) and not value.is_complex()
        return HeldEntry(
            float(value.detach()) if alone else None, None if alone else checksum(value), storage=place(value)
        )
    if isinstance(value, Real) and not isinstance(value, bool):
        return HeldEntry(float(value))
    return HeldEntry(other=value if isinstance(value, str | bool) else None)


# -- What a window's changes say.

ADVANCES = "{} is made of what it was before, by one {}, in several micro-batches of a window: it advances once a step"
STEADY = "{} changes by one {} in several micro-batches of a window; whether by what it was before is not shown"
MOVED = "{} changes in several micro-batches of a window, and not at steps alone"
BY_HAND = "{} is set before each micro-batch to a function of progress, so that the last one of a window counts"
DIFFERENCE, FACTOR = "difference", "factor"
LAWS: dict[str, Callable[[float], float]] = {
    DIFFERENCE: lambda one: one, FACTOR: lambda one: log(abs(one)), "count below it": lambda one: 1 / one,
    "root of a count below it": lambda one: one**-2,
}  # fmt: skip
"""Laws by which a number goes that counts micro-batches, and on which scale it then goes in equal steps."""
EQUAL, EXACT, NARROW = 1e-7, 1e-15, 1e-6


@dataclass(frozen=True, slots=True)
class Advancing:
    """What is said of an entry. `wrong`: it is for certain; `right`: it is, as assumed where there is a `reason`."""

    reason: str
    help: str = ""
    wrong: bool = False
    right: bool = False


def judged(changes: Sequence[Change]) -> Advancing | None:
    """What the changes of one entry in one window show; None where they are none of several micro-batches."""
    if len({one.turn for one in changes}) < 2 or not any(one.inner for one in changes):
        return None
    key, made = changes[0].key, {one.made for one in changes} - {UNKNOWN}
    name, here, law = shown(key), "" if changes[-1].location.file else ": before this line", law_of(changes)
    if made == {SET} and (key[0] == BUFFER or (key[0] == GROUP and law == "")):
        return Advancing(BY_HAND.format(name) if key[0] == GROUP else "", right=True)
    if made == {ITSELF} and law in (DIFFERENCE, FACTOR) and key[0] != BUFFER:  # a buffer may count samples
        return Advancing(ADVANCES.format(name, law) + here, wrong=True)
    return Advancing((STEADY.format(name, law) if law else MOVED.format(name)) + here, HELD[key[0]][1])


def law_of(changes: Sequence[Change]) -> str | None:
    """The law by which numbers go from change to change: "" where none fits, and None where not all are numbers."""
    numbers = [(one.before, one.after) for one in changes if one.before is not None and one.after is not None]
    if len(numbers) < len(changes):
        return None
    for law, scale in LAWS.items():
        if law is DIFFERENCE or all(before * after > 0 for before, after in numbers):
            steps = [scale(after) - scale(before) for before, after in numbers]
            size = max(abs(scale(one)) for pair in numbers for one in pair)
            allowed = max(EQUAL * abs(steps[0]), (NARROW if any(one.narrow for one in changes) else EXACT) * size)
            if all(abs(step - steps[0]) <= allowed for step in steps):
                return law
    return ""


def shown(key: Key) -> str:
    """An entry in words."""
    return HELD[key[0]][0].format(key[-2])
