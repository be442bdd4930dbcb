"""What is seen beside operators: optimizer steps, modules, and backward passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gradproof.shadow.tape import user_place

if TYPE_CHECKING:
    from gradproof.shadow.whole.engine import Engine


@contextmanager
def watched(engine: Engine) -> Iterator[None]:
    """Optimizer steps, modules and backward calls are seen while this runs."""
    from torch.nn.modules import module
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Any, *_: Any) -> None:
        engine.before_step(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        engine.after_step(optimizer)

    with ExitStack() as stack:
        stack.enter_context(removed(register_optimizer_step_pre_hook(before)))
        stack.enter_context(removed(register_optimizer_step_post_hook(after)))
        stack.enter_context(removed(module.register_module_parameter_registration_hook(engine.registered)))
        stack.enter_context(removed(module.register_module_module_registration_hook(engine.registered)))
        stack.enter_context(calls(engine))
        yield


@contextmanager
def removed(handle: Any) -> Iterator[None]:
    """A hook, for a while."""
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute, for a while."""
    own, before = name in vars(holder), getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if own:
            setattr(holder, name, before)
        else:
            delattr(holder, name)


@contextmanager
def calls(engine: Engine) -> Iterator[None]:
    """The line that started autograd, for what runs in it; `afterwards` is called when it has ended."""
    original = torch.autograd.graph._engine_run_backward

    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
        engine.calls.append(user_place())
        try:
            with torch.no_grad():
                engine.begin(roots, *args)
            try:
                found = original(roots, *args, **kwargs)
            except BaseException:
                engine.broke()
                raise
            with torch.no_grad():
                engine.ended(found)
            return found
        finally:
            engine.calls.pop()
            while engine.afterwards and not engine.calls:
                engine.afterwards.pop()()

    name = "_engine_run_backward"
    with replaced(torch.autograd.graph, name, run), replaced(torch.autograd, name, run):
        yield


def parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    """The parameters of an optimizer, each once."""
    seen: set[int] = set()
    for parameter in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter
