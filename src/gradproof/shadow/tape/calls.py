"""Where the calls of a training loop are seen: one table of places, for every reader.

`check`, `watch`, the enclosures, the measured harnesses and the mutants of a user's loop all ask here for passes,
steps, zeroes, clips and schedules (`Patches.around`, `steps`). Each says what runs around such a call.

What is put back is exactly what was there. A replacement that somebody wrapped or copied meanwhile is left alone;
`active` makes it inert.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from numbers import Real
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks as POST_HOOKS,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradproof.shadow.locations import frames
from gradproof.shadow.ops.schema import tensors_in

Replacement = Callable[..., Any]
PASS, STEP, ZERO, CLIP, UNSCALE, SCHEDULE = (
    "backward pass", "step", "zeroing", "clip", "unscaling", "step of a schedule",
)  # fmt: skip
SCALE, ATTEMPT = "loss scaling", "step of a loss scaler"
METHODS: Mapping[str, tuple[tuple[type, str], ...]] = {
    ZERO: ((Optimizer, "zero_grad"), (nn.Module, "zero_grad")),
    SCALE: ((torch.amp.GradScaler, "scale"),),
    UNSCALE: ((torch.amp.GradScaler, "unscale_"),),
    ATTEMPT: ((torch.amp.GradScaler, "step"),),
}
"""The methods that are such a call, of a class and of every subclass that exists."""
CLIPS = (
    "clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_",
)  # fmt: skip
FUNCTIONS: Mapping[str, tuple[tuple[Any, str], ...]] = {
    PASS: tuple((module, "_engine_run_backward") for module in (torch.autograd.graph, torch.autograd)),
    CLIP: tuple((module, name) for module in (torch.nn.utils.clip_grad, torch.nn.utils) for name in CLIPS),
}
"""The functions that are such a call, in the modules of torch that name them."""


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
        self._searched = set(sys.modules)  # the modules that hold no replacement, but for those put there
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

    def around(self, kind: str, around: Replacement) -> None:
        """Wrap the calls of a kind, but for steps of optimizers: of functions those by torch's own modules.

        A backward pass of a model without numbers, on the meta device, is none.
        """
        if kind == PASS:
            around = functools.partial(_with_numbers, around)
        for owner, name in METHODS.get(kind, ()):
            for cls in all_subclasses(owner):
                self.method(cls, name, around)
        for module, name in FUNCTIONS.get(kind, ()):
            if (original := vars(module).get(name)) is not None:
                self.function(original, around)
                self.attribute(module, name, self._functions[id(original)][1])
        if kind == SCHEDULE:
            self._schedules(around)

    def _schedules(self, step: Replacement) -> None:
        """Wrap the step of every schedule, of classes that are defined later as well; its constructor's is none."""
        made = Nested()

        def stepping(original: Replacement, *args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if made else step(original, *args, **kwargs)

        def making(original: Replacement, scheduler: Any, *args: Any, **kwargs: Any) -> None:
            for cls in type(scheduler).__mro__:
                if issubclass(cls, LRScheduler):
                    self.method(cls, "step", stepping)
            made.call(original, scheduler, *args, **kwargs)

        for cls in all_subclasses(LRScheduler):
            self.method(cls, "step", stepping)
            self.method(cls, "__init__", making)

    def function(self, original: Replacement, around: Replacement) -> None:
        """Wrap a function, once; `everywhere` then puts the wrapper into every module that holds it."""
        if id(original) not in self._functions:
            self._functions[id(original)] = (original, self.wrap(original, around))

    def everywhere(self) -> None:
        """Put the wrappers of the functions into every module that was imported, under whatever name."""
        self._searched.clear()
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
        for module, name, held in holding(wrappers.keys(), self._searched):
            setattr(module, name, wrappers[id(held)])
        self._functions.clear()


def _with_numbers(around: Replacement, original: Replacement, roots: Any, *args: Any, **kwargs: Any) -> Any:
    if any(root.is_meta for root in tensors_in(roots)):
        return original(roots, *args, **kwargs)
    return around(original, roots, *args, **kwargs)


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


@contextmanager
def seen(around: Mapping[str, Replacement]) -> Iterator[None]:
    """Calls of some kinds run through these while this runs."""
    patches = Patches()
    for kind, replacement in around.items():
        patches.around(kind, replacement)
    patches.active = True
    try:
        yield
    finally:
        patches.restore()


@contextmanager
def steps(before: Callable[[Any], None], after: Callable[[Any], None]) -> Iterator[list[Any]]:
    """Each optimizer step while this runs; a step that calls that of its base class is one step.

    Gives the optimizers that step now, the outermost first. One whose step raised steps no more.
    """
    running, callers = list[Any](), list[FrameType]()

    def cut(at: int) -> None:
        del running[at:], callers[at:]

    def begins(optimizer: Any, *_: Any) -> None:
        caller, outer = sys._getframe(1), {*frames()}
        cut(next((at for at, one in enumerate(callers) if one not in outer), len(callers)))
        if not any(one is optimizer for one in running):
            before(optimizer)
        running.append(optimizer)
        callers.append(caller)

    def ends(optimizer: Any, *_: Any) -> None:
        caller = sys._getframe(1)
        if caller in callers:  # or it began before this
            cut(callers.index(caller))
            if not any(one is optimizer for one in running):
                after(optimizer)

    with register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends):
        yield running


def holding(wanted: Set[int], besides: Set[str] = frozenset()) -> list[tuple[Any, str, Any]]:
    """Every global name of an imported module, `besides` some, that holds an object of one of these ids."""
    found = []
    for module in [module for key, module in list(sys.modules.items()) if key not in besides] if wanted else ():
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and not wanted.isdisjoint(map(id, list(names.values()))):
            found += [(module, name, held) for name, held in list(names.items()) if id(held) in wanted]
    return found


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
