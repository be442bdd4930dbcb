"""Functions and methods replaced for a while and put back, and what such replacements ask of torch.

What is put back is exactly what was there. A replacement that somebody wrapped or copied meanwhile is left alone;
`active` makes it inert.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks as POST_HOOKS

Replacement = Callable[..., Any]


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
        self._attributes.append((owner, name, vars(owner)[name], value))
        setattr(owner, name, value)

    def method(self, cls: type, name: str, around: Replacement) -> None:
        """Wrap a method where this very class defines it, once."""
        original = vars(cls).get(name)
        if original is None or any(owner is cls and n == name for owner, n, _, _ in self._attributes):
            return
        self.attribute(cls, name, self.wrap(original, around))

    def schedules(self, step: Replacement, made: Replacement) -> None:
        """Wrap the step and the constructor of every schedule, of classes that are defined later as well."""

        def making(original: Replacement, scheduler: Any, *args: Any, **kwargs: Any) -> None:
            for cls in type(scheduler).__mro__:
                if issubclass(cls, LRScheduler):
                    self.method(cls, "step", step)
            made(original, scheduler, *args, **kwargs)

        for cls in all_subclasses(LRScheduler):
            self.method(cls, "step", step)
            self.method(cls, "__init__", making)

    def function(self, original: Replacement, around: Replacement) -> None:
        """Wrap a function; `everywhere` then puts the wrapper into every module that holds it."""
        self._functions[id(original)] = (original, self.wrap(original, around))

    def everywhere(self) -> None:
        """Put the wrappers of the functions into every module that was imported, under whatever name."""
        for module, name, held in holding(self._functions.keys()):
            self.attribute(module, name, self._functions[id(held)][1])

    def restore(self) -> None:
        """Put everything back, the last replacement first, then what was imported from a patched module meanwhile."""
        self.active = False
        while self._attributes:
            owner, name, before, ours = self._attributes.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, before)
        wrappers = {id(wrapper): original for original, wrapper in self._functions.values()}
        for module, name, held in holding(wrappers.keys()):
            setattr(module, name, wrappers[id(held)])
        self._functions.clear()


class Nested:
    """Calls that may run within each other: true while one runs."""

    def __init__(self) -> None:
        self.depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0

    def call(self, original: Replacement, *args: Any, **kwargs: Any) -> Any:
        """Call a function."""
        self.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.depth -= 1


def holding(wanted: Set[int]) -> list[tuple[Any, str, Any]]:
    """Every global name of an imported module that holds an object of one of these ids."""
    found = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and not wanted.isdisjoint(map(id, list(names.values()))):
            found += [(module, name, held) for name, held in list(names.items()) if id(held) in wanted]
    return found


CLIPS = (
    "clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_",
)  # fmt: skip


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
    """The parameters of an optimizer, each once."""
    return list({id(p): p for group in optimizer.param_groups for p in group["params"]}.values())


def states(optimizer: Any) -> Iterator[Tensor]:
    """The tensors that an optimizer keeps from step to step."""
    for held in optimizer.state.values():
        yield from (one for one in held.values() if isinstance(one, Tensor)) if isinstance(held, dict) else ()


def changes_step(optimizer: Optimizer) -> bool:
    """Whether something is put around the step of an optimizer of torch.optim: a subclass's own step, or a hook.

    A wrapper need not have called Optimizer's constructor, which makes the tables of hooks.
    """
    kinds = [c for c in type(optimizer).__mro__ if issubclass(c, Optimizer) and c is not Optimizer]
    steps = [getattr(vars(c)["step"], "__module__", "") for c in kinds if "step" in vars(c)]
    own = [not s.startswith("torch.optim.") for s in steps]
    around = bool(own) and own[0] and not all(own)
    others = [h for h in POST_HOOKS.values() if not str(getattr(h, "__module__", "")).startswith("gradproof.")]
    return around or bool(getattr(optimizer, "_optimizer_step_post_hooks", None) or others)


def rates(optimizer: Any) -> list[float]:
    """The learning rates of an optimizer's groups; NaN for one on an accelerator, which is not waited for, and none."""
    found = [group.get("lr") for group in optimizer.param_groups]
    with torch.utils._python_dispatch._disable_current_modes():
        known = [one.device.type == "cpu" if isinstance(one, Tensor) else isinstance(one, Real) for one in found]
        return [float(one) if own else float("nan") for one, own in zip(found, known, strict=True)]
