"""Whether a backward pass leaves in `.grad` what it held before plus what arrived, and nothing else.

For one backward pass each parameter that its graph reaches has three hooks: one on the tensor, behind the user's own,
and one on its AccumulateGrad node before and after the node runs. They compare checksums, so that nothing needs to be
known of who writes: a hook of the node, a custom function, NumPy. What happens to a gradient before the first of them
is part of the graph and is not judged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.buffers import checksum, same

Sum = Tensor | None


@dataclass(slots=True)
class Arrived:
    """What the hooks of one parameter saw. `pairs`: checksums that are equal where nobody interfered."""

    held: Sum
    came: Sum = None
    ran: bool = False
    hooked: list[tuple[Sum, Sum]] = field(default_factory=list)
    entered: list[tuple[Sum, Sum]] = field(default_factory=list)
    left: list[tuple[Sum, Sum]] = field(default_factory=list)


class Arrivals:
    """The arrivals of one backward pass at a time. `again`: its graph shares a node with that of an earlier pass.

    Where not `active`, nothing is hooked.
    """

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.again = False
        self._ran: set[int] = set()
        self._found: dict[int, Arrived] = {}
        self._handles: list[Any] = []
        self._own: set[int] = set()

    @property
    def leaves(self) -> set[int]:
        """The ids of the tensors that the pass reaches."""
        return set(self._found)

    def begin(self, roots: Iterable[Tensor], inner: bool = False) -> None:
        """Hook what a backward pass from these tensors reaches. `inner`: a pass inside a pass belongs to it."""
        if not self.active:
            return
        if not inner:
            self.end()
            self._found.clear()
            self.again = False
        stack = [root.grad_fn for root in roots if root.grad_fn is not None]
        met = set(stack)
        while stack:
            node: Any = stack.pop()
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                self._hook(leaf, node)
            else:
                self._note(node, inner)
            for following, _ in node.next_functions:
                if following is not None and following not in met:
                    met.add(following)
                    stack.append(following)

    def _note(self, node: Any, inner: bool) -> None:
        number = node._sequence_nr()
        self.again = self.again or (number in self._ran and not inner)
        self._ran.add(number)

    def _hook(self, leaf: Tensor, node: Any) -> None:
        if id(leaf) in self._found:
            return
        found = self._found[id(leaf)] = Arrived(_held(leaf))

        def came(grad: Tensor) -> None:
            found.came = checksum(grad)

        def before(grads: Any) -> None:
            with torch.no_grad(), _disable_current_modes():
                found.hooked.append((found.came, checksum(grads[0])))
                found.entered.append((found.held, _held(leaf)))
                found.held = checksum(grads[0] if leaf.grad is None else leaf.grad + grads[0])
                found.ran = True

        def after(*_: Any) -> None:
            found.left.append((found.held, _held(leaf)))

        own = leaf.register_hook(came)  # type: ignore[no-untyped-call]
        self._own.add(own.id)
        self._handles += [own, node.register_prehook(before), node.register_hook(after)]

    def end(self) -> None:
        """The pass is over: take the hooks away."""
        for handle in self._handles:
            with suppress(KeyError):
                handle.remove()
        self._handles.clear()
        self._own.clear()

    def hooked(self, params: Iterable[Tensor]) -> bool:
        """Whether a hook ran, or may have run, on what arrived at one of these parameters."""
        for param in params:
            users = set(param._backward_hooks or ()) - self._own
            found = self._found.get(id(param))
            if users or param._post_accumulate_grad_hooks or (found and not all(same(*pair) for pair in found.hooked)):
                return True
        return False

    def written(self, params: Iterable[Tensor], summed: Container[int] = ()) -> bool:
        """Whether the `.grad` of one of these, which the pass changed, is more than what arrived added to it.

        `summed`: ids of parameters whose gradients the pass replaces, once they are there, by a sum over the ranks. A
        gradient that has no checksum counts as written.
        """
        for param in params:
            found = self._found.get(id(param))
            if found is None or not found.ran:
                return True
            now = _held(param)
            pairs = found.entered if id(param) in summed else (*found.entered, *found.left, (found.held, now))
            if (now is None and param.grad is not None) or not all(same(*pair) for pair in pairs):
                return True
        return False


def _held(param: Tensor) -> Sum:
    return None if param.grad is None else checksum(param.grad)
