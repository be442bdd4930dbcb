"""What windows that are not recorded are compared by, besides their events: facts of each backward pass.

A fact is what was read at a place: the form of the loss that backward was handed, and the numbers in it; the rows that
the first module was given, and whether its window was given them before; which modules are in evaluation mode; the
gradients that were there when the window began. Recorded windows with as many backward passes show what is usual. A
fact speaks by the rule of its kind: numbers that differ between recorded windows, as counts of tokens do, say nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.locations import Location
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.tape.checksums import plain, same_memory

Fact = tuple[Any, ...]
"""A kind, and the place: a line, the form of the loss there and a place in that."""
Path = tuple[str, ...]
"""Names of operators of autograd, from a loss downwards."""
Noted = frozenset[tuple[Fact, Any]]
ROWS, GIVEN, FORM, NUMBER, MODES = "rows", "given", "form", "number", "modes"
AGAIN, KEPT, WRITTEN, MOVED, RATES = "again", "kept", "written", "moved", "rates"
NUMPY = Tensor.numpy  # an engine that follows a run sees who calls the method
DEEP = 64
"""Operators of a loss that are looked at."""
SAMPLED = 4096
"""Elements of a tensor that are looked at."""
PASSING = frozenset(
    {"ToCopyBackward", "CloneBackward", "ViewBackward", "SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward"}
)
SCALING = {"MulBackward": "multiplies", "DivBackward": "divides"}
ADDING = frozenset({"AddBackward", "SubBackward", "NegBackward", "StackBackward"})


def _one(value: Any, known: Set[Any]) -> bool:
    return len(known) == 1 and value not in known


def _any(value: Any, known: Set[Any]) -> bool:
    return value not in known


def _most(value: Any, known: Set[Any]) -> bool:
    return bool(value > max(known))


def _shown(form: Set[Sequence[str]]) -> str:
    return " and ".join(sorted(" of ".join(name.removesuffix("Backward") for name in path) for path in form))


Rule = tuple[Callable[[Any, Set[Any]], bool], Callable[[Fact, Any, Set[Any]], str]]
RULES: Mapping[str, Rule] = {
    ROWS: (_one, lambda _, by, due: f"has a batch of {by} rows where the recorded ones have {min(due)}"),
    GIVEN: (_one, lambda _, by, due: f"has a forward pass of {by} rows where the recorded ones have {min(due)}"),
    NUMBER: (
        _one,
        lambda at, by, due: f"{at[2]} a loss by {by:g} at {at[1].short} where the recorded ones have {min(due):g}",
    ),
    AGAIN: (_one, lambda *_: "trains on the same rows twice, which no recorded one does"),
    FORM: (
        _any,
        lambda at, by, due: (
            f"hands backward {_shown(by)} at {at[1].short} where the recorded ones hand it "
            f"{' or '.join(sorted(map(_shown, due)))}"
        ),
    ),
    MODES: (
        _any,
        lambda _, by, due: (
            f"has {len(by)} modules in evaluation mode where the recorded ones have "
            f"{' or '.join(map(str, sorted({len(one) for one in due})))}"
        ),
    ),
    KEPT: (_most, lambda _, by, due: f"begins with {by} x gradient that was there at the step before it"),
    WRITTEN: (
        _one,
        lambda _, by, due: (
            f"has {by} gradients written between its backward passes where the recorded ones have {min(due)}"
        ),
    ),
    MOVED: (_one, lambda _, by, due: f"has {by} weights written without a step, and recorded ones have {min(due)}"),
    RATES: (_one, lambda _, by, due: f"sets {by} numbers of optimizers between passes, and recorded ones {min(due)}"),
}
"""When a value differs from those of the recorded windows, and in what words, in the order in which one is named."""


class Facts:
    """The facts of the present window, and those of the recorded ones by the number of their backward passes."""

    def __init__(self) -> None:
        self._own, self._known = dict[Fact, set[Any]](), dict[Fact, set[Any]]()

    def note(self, value: Any, kind: str, *place: Any) -> None:
        """Keep a fact of the present window; None is none."""
        if value is not None:
            self._own.setdefault((kind, *place), set()).add(value)

    def close(self, passes: int, recorded: bool) -> Noted:
        """The window has ended: its facts, but for those that differ between recorded windows by now."""
        own = {(*fact, passes): values for fact, values in self._own.items()}
        self._own = {}
        if recorded:
            for fact, values in own.items():
                self._known.setdefault(fact, set()).update(values)
        alike = ((f, values) for f, values in own.items() if f[0] not in FREE or len(self._known.get(f, ())) < 2)
        return frozenset((fact, value) for fact, values in alike for value in values)

    def others(self, noted: Noted) -> Iterator[str]:
        """In what facts of a window differ from those of the recorded ones, in words."""
        order = [*RULES]
        for fact, value in sorted(noted, key=lambda one: (order.index(one[0][0]), str(one))):
            differs, words = RULES[fact[0]]
            known = self._known.get(fact, ())
            if known and differs(value, set(known)):
                yield words(fact, value, set(known))


FREE = frozenset(kind for kind, (differs, _) in RULES.items() if differs is _one)
"""Kinds that say nothing once recorded windows differ."""


class Looks:
    """Reads the facts of each backward pass. `waits`: no module that trains was called since the last one."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.modules, self._ids = list[weakref.ref[nn.Module]](), set[int]()
        self.after: Mapping[int, Any] = {}  # the gradients that the last step, or backward pass, left
        self.weights, self.rates = list[int](), list[float]()  # versions of weights, and numbers of groups, since then
        self._hook: Any = None
        self._rows: int | None = None
        self._again = False
        self._data = dict[Any, Any]()  # of the present window

    def ran(self, module: nn.Module) -> None:
        """A module of a recorded window was called: its mode is looked at from here on."""
        if id(module) not in self._ids:
            self._ids.add(id(module))
            self.modules.append(weakref.ref(module))

    def wait(self) -> None:
        """The next forward pass of a module that trains is looked at, and no further one: a hook of each costs time."""
        if self._hook is None:
            self._rows, self._again = None, False
            self._hook = nn.modules.module.register_module_forward_pre_hook(self._entered)

    def end(self) -> None:
        """No forward pass is looked at."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _entered(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
            return
        self.end()
        with torch.no_grad(), _disable_current_modes():
            given = next((t for t in tensors_in(args) if t.ndim and plain(t)), None)
            if given is None:
                return
            self._rows = int(given.shape[0])
            for key, alive in held_by(given):
                before = self._data.get(key)
                self._again |= before is not None and before() is alive()
                self._data[key] = alive

    def began(self, at: Location, roots: Sequence[Tensor], scale: Any, rows: int | None) -> None:
        """A backward pass begins. `rows`: of the last batch of a loader."""
        note = self.facts.note
        note(rows, ROWS)
        note(self._rows, GIVEN)
        note(None if self._rows is None else self._again, AGAIN)
        off = (
            n for n, module in enumerate(one() for one in self.modules) if module is not None and not module.training
        )
        note(frozenset(off), MODES)
        found = form_of(roots, scale)
        if found is not None:
            form, numbers = found
            note(form, FORM, at)
            for path, number in numbers:
                note(number, NUMBER, at, SCALING[path[-1]], path)

    def gradients(self, first: bool, now: Mapping[int, Any], optimizers: Iterable[Any]) -> None:
        """A backward pass begins with these gradients. `first`: after a step."""
        weights, rates = numbers_of(optimizers)
        if len(weights) == len(self.weights):
            self.facts.note(sum(a != b for a, b in zip(weights, self.weights, strict=True)), MOVED)
        if not first and len(rates) == len(self.rates):
            self.facts.note(sum(a != b for a, b in zip(rates, self.rates, strict=True)), RATES)
        kept = sum(now.get(key) == one for key, one in self.after.items())
        if first:
            self.facts.note(kept, KEPT)
        elif self.after:
            self.facts.note(len(self.after) - kept, WRITTEN)

    def left(self, now: Mapping[int, Any], optimizers: Iterable[Any], stepped: bool) -> None:
        """A step, or a backward pass, leaves these gradients."""
        self.after = now
        self.weights, self.rates = numbers_of(optimizers)
        if stepped:
            self.anew()

    def anew(self) -> None:
        """A window, or an iteration over a data loader, has ended: its rows may come again."""
        self._data.clear()


def numbers_of(optimizers: Iterable[Any]) -> tuple[list[int], list[float]]:
    """The versions of the weights of some optimizers, and the numbers of their groups."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    weights = [-1 if p.is_inference() else p._version for group in groups for p in group["params"]]
    return weights, [value for group in groups for value in group.values() if isinstance(value, float)]


def held_by(tensor: Tensor) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """By what a tensor is known again: its place in memory, while that lives, and what it holds where that is much."""
    where = (torch._C.TensorBase.data_ptr(tensor), tensor.shape, tensor.stride(), tensor.dtype)
    if not tensor.is_inference() and tensor.numel():
        yield (*where, tensor._version), weakref.ref(tensor if tensor._base is None else tensor._base)
    least = 8 if tensor.is_floating_point() else 32
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel() >= least:
        held = NUMPY(tensor.detach().flatten()[:SAMPLED].view(torch.uint8)).tobytes()
        if held != held[: tensor.element_size()] * (len(held) // tensor.element_size()):  # not one number everywhere
            yield (tensor.shape, tensor.dtype, hash(held)), lambda: None


def form_of(roots: Iterable[Tensor], scale: Any) -> tuple[Set[Path], list[tuple[Path, float | None]]] | None:
    """The ways from what backward was handed to the first operators that are no sums or products, and their numbers.

    A way is the products and quotients that lead there, however many summands there are, and where it ends. None where
    a compiler made one: no window that is recorded has those. `scale` is the number of a loss scaler.
    """
    stack: list[tuple[Any, Path]] = [(root.grad_fn, ()) for root in roots]
    form, numbers, seen = set[Path](), list[tuple[Path, float | None]](), 0
    with torch.no_grad(), _disable_current_modes():
        while stack and (seen := seen + 1) < DEEP:
            node, path = stack.pop()
            name = type(node).__name__.rstrip("0123456789")
            if node is None or name.startswith("Compiled"):
                return None
            kids = [kid for kid, _ in node.next_functions if kid is not None]
            if name in SCALING:
                path = (*path, name)
            if name in SCALING and len(kids) == 1:
                numbers.append((path, _number(node, scale)))
            if name in PASSING | SCALING.keys() | ADDING:
                stack += [(kid, path) for kid in kids]
            else:
                form.add((*path, name))
    return frozenset(form), numbers


def _number(node: Any, scale: Any) -> float | None:
    """The number by which a loss is multiplied or divided; None for a loss scaler's, and one on an accelerator."""
    try:
        held = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    except (AttributeError, RuntimeError):  # the graph was freed, or keeps no number
        return None
    if isinstance(held, Tensor):
        alone = held.numel() == 1 and held.device.type == "cpu" and not held.is_complex()
        if not alone or same_memory(held, scale):
            return None
    return float(held) if isinstance(held, int | float | Tensor) else None
