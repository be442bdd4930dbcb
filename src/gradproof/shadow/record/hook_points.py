"""Functions and methods replaced for a while and put back; where the hooks are put, and what they ask of torch.

Replacing functions and methods for a while, and putting back exactly what was there. A replacement that somebody
wrapped or copied meanwhile is left alone; `active` makes it inert.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks as POST_HOOKS,
    _global_optimizer_pre_hooks as PRE_HOOKS,
)
from torch.optim.swa_utils import AveragedModel

from gradproof.shadow.locations import LIBRARY, TORCH, owner
from gradproof.shadow.record.buffers import found_skip

if TYPE_CHECKING:
    from gradproof.shadow.record.hooks import Hooks

Replacement = Callable[..., Any]
MISSING = object()


def all_subclasses(cls: type) -> list[type]:
    """A class and every subclass that exists."""
    found, seen = [cls], {cls}
    for c in found:
        below: list[type] = type.__subclasses__(c)
        found += (s for s in below if s not in seen)
        seen.update(below)
    return found


class Patches:
    """A stack of replacements."""

    def __init__(self) -> None:
        self.active = False
        self._attributes: list[tuple[Any, str, Any, Any]] = []
        self._functions: dict[int, tuple[Any, Any]] = {}

    def wrap(self, original: Replacement, around: Replacement) -> Replacement:
        """A function that calls `around(original, *args, **kwargs)` while the patches are active."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        return wrapper

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of an object or class."""
        self._attributes.append((owner, name, vars(owner).get(name, MISSING), value))
        setattr(owner, name, value)

    def method(self, cls: type, name: str, around: Replacement) -> None:
        """Wrap a method where this very class defines it, once."""
        original = vars(cls).get(name)
        if original is None or any(owner is cls and n == name for owner, n, _, _ in self._attributes):
            return
        self.attribute(cls, name, self.wrap(original, around))

    def function(self, original: Replacement, around: Replacement) -> None:
        """Wrap a function; `everywhere` then puts the wrapper into every module that holds it."""
        self._functions[id(original)] = (original, self.wrap(original, around))

    def everywhere(self) -> None:
        """Put the wrappers of the functions into every module that was imported, under whatever name."""
        for module, name, held in self._holding(self._functions.keys()):
            if held is self._functions[id(held)][0]:
                self.attribute(module, name, self._functions[id(held)][1])

    def restore(self) -> None:
        """Put everything back, the last replacement first, then what was imported from a patched module meanwhile."""
        self.active = False
        while self._attributes:
            owner, name, before, ours = self._attributes.pop()
            if vars(owner).get(name, MISSING) is not ours:
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        wrappers = {id(wrapper): original for original, wrapper in self._functions.values()}
        for module, name, held in self._holding(wrappers.keys()):
            setattr(module, name, wrappers[id(held)])
        self._functions.clear()

    def _holding(self, wanted: Collection[int]) -> list[tuple[Any, str, Any]]:
        """Every global name of an imported module that holds an object of one of these ids.

        An installed package is looked through once, and again when it has more or fewer names.
        """
        if not wanted:
            return []
        found, ids = [], frozenset(wanted)
        scanned = _SCANNED.setdefault(frozenset(_label(f) for f, _ in self._functions.values()), {})
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            before = scanned.get(id(names))
            if before is not None and before[1] == len(names):
                locations = before[2]
            else:
                locations = () if ids.isdisjoint(map(id, list(names.values()))) else _locations(names, ids)
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and owner(file) in (LIBRARY, TORCH):
                    scanned[id(names)] = (names, len(names), locations)
            found += [(module, name, names[name]) for name in locations if id(names.get(name)) in ids]
        return found


_SCANNED: dict[frozenset[str], dict[int, tuple[dict[str, Any], int, tuple[str, ...]]]] = {}
"""By the functions that are looked for: the globals of installed packages, how many they were, and who held one.

A function and its wrappers have one label, for they stand in the same places.
"""


def _label(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def _locations(names: dict[str, Any], ids: frozenset[int]) -> tuple[str, ...]:
    return tuple(name for name, held in list(names.items()) if id(held) in ids)


CLIPS = (
    "clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_",
)  # fmt: skip


class Flag:
    """A truth value on a device, read when it is asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __bool__(self) -> bool:
        return bool(self.tensor.item())

    def __repr__(self) -> str:
        return str(bool(self))


def skips(optimizer: Any) -> bool | Flag:
    """Whether a fused optimizer skips its update on an infinite gradient."""
    found = found_skip(optimizer)
    return found is not None and Flag(found)


COLLECTIVES = (
    "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip


def install(hooks: Hooks, patches: Patches) -> None:
    """Put every patch in place, inert until `patches.active`.

    Every optimizer imports torch._dynamo, which copies torch's functions into tables: it must find torch's own.
    """
    import torch._dynamo

    patches.function(torch.autograd.backward, hooks.backward)
    patches.function(torch.autograd.grad, hooks.grad)
    patches.function(torch.utils.swap_tensors, hooks.buffers.swapped)
    for name in CLIPS:
        if hasattr(torch.nn.utils.clip_grad, name):
            patches.function(getattr(torch.nn.utils.clip_grad, name), hooks.clip)
    if torch.distributed.is_available():
        patches.function(torch.distributed.all_reduce, hooks.all_reduce)
        for name in COLLECTIVES:
            patches.function(getattr(torch.distributed, name), hooks.collective)
    patches.everywhere()
    _setter(patches, hooks.assigned)
    for cls in all_subclasses(Optimizer) + all_subclasses(torch.nn.Module):
        patches.method(cls, "zero_grad", hooks.zero)
    patches.method(torch.nn.Module, "_apply", hooks.moved)
    for cls in all_subclasses(torch.amp.GradScaler):
        patches.method(cls, "unscale_", hooks.unscale)
        patches.method(cls, "step", hooks.scaled_step)
    for cls in all_subclasses(DistributedDataParallel):
        patches.method(cls, "forward", hooks.ranks)
    for cls in all_subclasses(LRScheduler):
        patches.method(cls, "step", hooks.schedule)
    patches.method(AveragedModel, "update_parameters", hooks.averaged)


def install_makers(hooks: Hooks, patches: Patches) -> None:
    """What is made is noted to the end, also while nothing else is."""
    for cls in all_subclasses(DistributedDataParallel):
        patches.method(cls, "__init__", hooks.ranks_made)
    for cls in all_subclasses(LRScheduler):
        patches.method(cls, "__init__", hooks.scheduler_made)
    patches.method(Optimizer, "add_param_group", hooks.optimizer_made)


def cover(hooks: Hooks, patches: Patches, kind: type) -> None:
    """A class of schedulers that was defined after `install`."""
    for cls in kind.__mro__:
        if issubclass(cls, LRScheduler):
            patches.method(cls, "step", hooks.schedule)


def _setter(patches: Patches, tell: Replacement) -> None:
    """`Tensor.grad` as a property: torch's own getter, and a setter that tells the hooks."""
    inherited = next(vars(c)["grad"] for c in torch.Tensor.__mro__ if "grad" in vars(c))

    def assign(tensor: Tensor, value: Any) -> None:
        if patches.active:
            tell(inherited.__set__, tensor, value)
        else:
            inherited.__set__(tensor, value)

    def delete(tensor: Tensor) -> None:
        assign(tensor, None)

    patches.attribute(torch.Tensor, "grad", property(inherited.__get__, assign, delete))


def tensors_of(given: Any) -> list[Tensor]:
    """The tensors among an argument's: one, several, a mapping's values; gradient edges and None are left out."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        given = given.values()
    items = [given] if isinstance(given, Tensor) or not isinstance(given, Iterable) else given
    return [t for t in items if isinstance(t, Tensor)]


def listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a backward pass with each iterator read into a tuple: it can be read only once."""

    def read(given: Any) -> Any:
        return tuple(given) if isinstance(given, Iterator) else given

    return tuple(map(read, args)), {name: read(given) for name, given in kwargs.items()}


def inner(optimizer: Any) -> Any:
    """The torch optimizer inside wrappers that keep it as `.optimizer`."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def leaves_of(roots: Iterable[Tensor]) -> list[Tensor]:
    """The leaves that a backward pass from these tensors reaches, in the order of a depth-first walk."""
    found: list[Tensor] = []
    stack = [r.grad_fn for r in roots if r.grad_fn is not None]
    seen = set(stack)
    while stack:
        node: Any = stack.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.append(leaf)
        for following, _ in reversed(node.next_functions):
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found


def params_of(optimizer: Any) -> list[Tensor]:
    """The parameters of an optimizer, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def changes_step(optimizer: Optimizer) -> bool:
    """Whether something is put around the step of an optimizer of torch.optim: a subclass's own step, or a hook.

    A wrapper need not have called Optimizer's constructor, which makes the tables of hooks.
    """
    kinds = [c for c in type(optimizer).__mro__ if issubclass(c, Optimizer) and c is not Optimizer]
    steps = [getattr(vars(c)["step"], "__module__", "") for c in kinds if "step" in vars(c)]
    own = [not s.startswith("torch.optim.") for s in steps]
    around = bool(own) and own[0] and not all(own)
    return around or bool(getattr(optimizer, "_optimizer_step_post_hooks", None)) or strange(POST_HOOKS)


def prepared(optimizer: Optimizer) -> bool:
    """Whether hooks of the user's own run before an optimizer's step."""
    return bool(getattr(optimizer, "_optimizer_step_pre_hooks", None)) or strange(PRE_HOOKS)


def strange(hooks: Mapping[int, Any]) -> bool:
    """Whether one of torch's hooks for every optimizer is not of this package."""
    return any(not str(getattr(h, "__module__", "")).startswith("gradproof.") for h in hooks.values())


def rates(optimizer: Any) -> list[float]:
    """The learning rates of an optimizer's groups; one that lives on a device is not waited for, but NaN."""
    if optimizer is None:
        return []
    return [rate(group.get("lr", float("nan"))) for group in optimizer.param_groups]


def rate(value: Any) -> float:
    """A learning rate as a float; one that is a tensor on an accelerator, or no number, is NaN."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, Real) else float("nan")
    with torch.utils._python_dispatch._disable_current_modes():
        return float(value.detach()) if value.device.type == "cpu" else float("nan")


__all__ = [
    "CLIPS",
    "Flag",
    "Replacement",
    "cover",
    "install",
    "install_makers",
    "leaves_of",
    "params_of",
    "rates",
    "skips",
    "tensors_of",
]
