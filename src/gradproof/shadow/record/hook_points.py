"""Where the hooks are put, and what they ask of torch's objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks as POST_HOOKS,
    _global_optimizer_pre_hooks as PRE_HOOKS,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.buffers import found_skip
from gradproof.shadow.record.names import functional
from gradproof.shadow.record.patches import Patches, Replacement, all_subclasses

if TYPE_CHECKING:
    from gradproof.shadow.record.hooks import Hooks

BUILT = (
    module.register_module_parameter_registration_hook,
    module.register_module_module_registration_hook,
    module.register_module_buffer_registration_hook,
)
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


def skips(optimizer: Any, now: bool) -> bool | Flag:
    """Whether a fused optimizer skips its update on an infinite gradient. `now`: read the device at once."""
    found = found_skip(optimizer)
    if found is None or not now:
        return found is not None and Flag(found)
    with _disable_current_modes():
        return bool(found.item())


def install(hooks: Hooks, patches: Patches) -> None:
    """Put every patch in place, inert until `patches.active`.

    Every optimizer imports torch._dynamo, which copies torch's functions into tables: it must find torch's own.
    """
    import torch._dynamo

    patches.function(torch.autograd.backward, hooks.backward)
    patches.function(torch.autograd.grad, hooks.grad)
    patches.function(torch.utils.swap_tensors, hooks.swapped)
    for name in CLIPS:
        if hasattr(torch.nn.utils.clip_grad, name):
            patches.function(getattr(torch.nn.utils.clip_grad, name), hooks.clip)
    if torch.distributed.is_available():
        patches.function(torch.distributed.all_reduce, hooks.all_reduce)
    left = getattr(hooks.sink, "left", None)
    if left is not None:
        patches.function(torch.cond, branched)
        patches.function(vars(torch.utils.dlpack)["to_dlpack"], left)
    patches.everywhere()
    _setter(patches, "grad", hooks.assigned)
    _setter(patches, "data", hooks.rebound)
    for cls in all_subclasses(Optimizer) + all_subclasses(torch.nn.Module):
        patches.method(cls, "zero_grad", hooks.zero)
    patches.method(torch.nn.Module, "_apply", hooks.moved)
    for cls in all_subclasses(torch.amp.GradScaler):
        patches.method(cls, "scale", hooks.scaled)
        patches.method(cls, "unscale_", hooks.unscale)
        patches.method(cls, "step", hooks.scaled_step)
    for cls in all_subclasses(DistributedDataParallel):
        patches.method(cls, "forward", hooks.ranks)
    for cls in all_subclasses(LRScheduler):
        patches.method(cls, "step", hooks.schedule)
        patches.method(cls, "__init__", hooks.scheduler_made)
    patches.method(AveragedModel, "update_parameters", hooks.averaged)
    patches.method(Optimizer, "add_param_group", hooks.optimizer_made)


def branched(original: Replacement, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """torch.cond outside of a compiler: one of two functions. Its own backward pass fails below a dispatch mode."""
    return (true_fn if pred else false_fn)(*operands)


def cover(hooks: Hooks, patches: Patches, kind: type) -> None:
    """A class of schedulers that was defined after `install`."""
    for cls in kind.__mro__:
        if issubclass(cls, LRScheduler):
            patches.method(cls, "step", hooks.schedule)


def _setter(patches: Patches, name: str, tell: Replacement) -> None:
    """An attribute of tensors as a property: torch's own getter, and a setter that tells the hooks."""
    inherited = next(vars(c)[name] for c in torch.Tensor.__mro__ if name in vars(c))

    def assign(tensor: Tensor, value: Any) -> None:
        if patches.active:
            tell(inherited.__set__, tensor, value)
        else:
            inherited.__set__(tensor, value)

    def delete(tensor: Tensor) -> None:
        assign(tensor, None)

    patches.attribute(torch.Tensor, name, property(inherited.__get__, assign, delete))


def tensors_of(given: Any) -> list[Tensor]:
    """The tensors among an argument's: one, several, a mapping's values; gradient edges and None are left out."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        given = given.values()
    items = [given] if isinstance(given, Tensor) or not isinstance(given, Iterable) else given
    return [t for t in items if isinstance(t, Tensor)]


def unwrapped(tensor: Tensor) -> Tensor | None:
    """The tensor below one level of torch.func; None where there are more levels."""
    below: Tensor = torch._C._functorch.get_unwrapped(tensor) if functional(tensor) else tensor
    return None if functional(below) else below


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


def states_of(optimizer: Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """The tensors of an optimizer's state, with the parameter that they belong to and their key."""
    for param in params_of(optimizer):
        for key, held in optimizer.state.get(param, {}).items():
            if isinstance(held, Tensor):
                yield param, key, held


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


__all__ = ["CLIPS", "Flag", "Replacement", "cover", "install", "leaves_of", "params_of", "rates", "skips", "tensors_of"]
