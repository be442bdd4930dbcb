"""The trial of laws on real kernels, of mutants of each law, and the proof of both.

The arguments of an example are cut into parts along an axis, each part a random rational times a leaf. The law says
what the result is made of; that is computed part by part with the real operator in float64, and compared with the
operator on the whole. A mutant claims more than its law: one linear argument more, or a coupled axis that is mapped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch

from gradproof.shadow.follow.engine import bared
from gradproof.shadow.follow.interpreter import Call, Law, rows_of
from gradproof.shadow.follow.laws import LAWS, RULES
from gradproof.shadow.follow.terms import Combination
from gradproof.shadow.follow.values import Value, shared
from gradproof.shadow.ops.schema import spec_of, tensors_in
from tests.laws.examples import examples
from tests.laws.numbers import FUNCTIONS, Traced, Wrong
from tests.operator_examples import Example, overload

WEIGHTS = (Fraction(2), Fraction(-1, 2), Fraction(3), Fraction(-3, 4), Fraction(1))
FRAGILE = frozenset(
    {
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
    }
)
"""Kernels that end the process where a mutant gives them parts that do not fit."""


@dataclass
class Trial:
    """What was tried of one operator: cases that a law decided, and those that it left opaque."""

    name: str
    cases: int = 0
    opaque: int = 0
    absent: int = 0
    mutants: int = 0
    killed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def cut_up(
    x: Traced, tensor: torch.Tensor, axis: int, count: int, number: int, weighted: bool, turns: int = 1
) -> Value:
    """A tensor as parts along an axis, each a weight times a leaf."""
    rows = tensor.shape[axis] // count
    parts: list[Combination] = []
    laid = Value((), axis, rows, turns)
    for i in range(count):
        by = (
            WEIGHTS[i % len(WEIGHTS)]
            if weighted and (tensor.is_floating_point() or tensor.is_complex())
            else Fraction(1)
        )
        piece = rows_of(tensor, laid, i).flatten(axis, axis + 1)
        parts.append({x.leaf(100 * number + i, piece / float(by) if by != 1 else piece): by})
    return laid.holding(parts)


def layouts(tensors: list[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Which tensors are cut along which axis: one alone, and all of those that have as many rows along one axis."""
    for i, tensor in enumerate(tensors):
        for axis in range(tensor.dim()):
            if tensor.shape[axis] > 1:
                yield {i: axis}
    sizes = {t.shape[a] for t in tensors for a in range(t.dim()) if t.shape[a] > 1}
    for size in sorted(sizes):
        for first in (True, False):
            chosen = {}
            for i, t in enumerate(tensors):
                axes = [a for a in range(t.dim()) if t.shape[a] == size]
                if axes:
                    chosen[i] = axes[0 if first else -1]
            if len(chosen) > 1:
                yield chosen


def takes(tensors: list[torch.Tensor], layout: dict[int, int]) -> tuple[int, ...]:
    """The turns that the parts of a layout can take: two, where each part has two rows."""
    return (1, 2) if all(tensors[i].shape[axis] == 4 for i, axis in layout.items()) else (1,)


def attempt(
    name: str,
    op: str,
    example: Example,
    args: Any,
    kwargs: Any,
    layout: dict[int, int],
    law: Law | None,
    turns: int = 1,
    x: Traced | None = None,
    whole: Any = None,
) -> bool:
    """Try one layout; parts may take turns. Whether a law decided it. Raises Wrong where the numbers differ.

    `x`: what works the numbers out; `whole`: the results of the operator, where they are known.
    """
    func = overload(op, example, args, kwargs)
    spec = spec_of(func)
    whole = func(*args, **kwargs) if whole is None else whole
    outs = list(whole) if isinstance(whole, list | tuple) else [whole]
    tensors = tensors_in((args, kwargs))
    x = Traced() if x is None else x
    values = []
    for i, tensor in enumerate(tensors):
        if i in layout:
            count = tensor.shape[layout[i]] if tensor.shape[layout[i]] != 4 else 2
            values.append(cut_up(x, tensor, layout[i], count, i + 1, True, turns))
        elif x.counts_up(tensor):
            term = x.terms.make("range", (Fraction(0), Fraction(1)), (), (tensor.numel(),))
            values.append(shared(x.terms.of(x.reshaped(term, tuple(tensor.shape)))))
        elif i == 0 and ("index_put" in name or "scatter" in name) and x.nought(tensor):
            values.append(shared({}))
        elif name in ("nll_loss_backward", "nll_loss2d_backward") and i == len(tensors) - 1:
            values.append(x.ones(Fraction(float(tensor))))  # the count of labels, which the rule asks for
        else:
            by = Fraction(-3, 4) if tensor.is_floating_point() else Fraction(1)
            values.append(shared({x.leaf(100 * (i + 1), tensor / float(by) if by != 1 else tensor): by}))
    template = (*(bared(a) for a in args), ("", tuple((k, bared(v)) for k, v in sorted(kwargs.items()))))
    held = tuple(args)
    FUNCTIONS[id(held)] = func
    call = Call(
        name, held, kwargs, template, tensors, values, [tuple(t.shape) for t in tensors],
        [o if isinstance(o, torch.Tensor) else None for o in outs], spec.arguments if spec else (),
    )  # fmt: skip
    found = None
    if law is None and name in RULES:
        found = RULES[name](x, call)
    if found is None:
        used = law or LAWS.get(name)
        if used is None:
            return False
        found = x.apply(used, call)
    compare(name, x, found, outs)
    FUNCTIONS.pop(id(held))
    return True


def compare(name: str, x: Traced, found: list[Value], outs: list[Any]) -> None:
    """The value against the kernel's numbers. Raises Wrong."""
    for at, (value, out) in enumerate(zip(found, outs, strict=False)):
        if not isinstance(out, torch.Tensor) or (out.numel() == 0):
            continue
        shape = tuple(out.shape)
        if value.shared:
            made = x.total(value.parts[0], shape)
        else:
            size = (*shape[: value.axis], value.rows, *shape[value.axis + 1 :])
            apart = [x.total(part, size).expand(size).unflatten(value.axis, (value.turns, -1)) for part in value.parts]
            made = torch.cat(apart, value.axis + 1).flatten(value.axis, value.axis + 1)
        if not x.same(made, out):
            raise Wrong(f"{name}, result {at}: {x.shown(made)} and not {x.shown(out)}")


def mutants(law: Law, tensors: list[torch.Tensor]) -> Iterator[tuple[str, Law]]:
    """Laws that claim more: one more linear argument; each coupled axis mapped."""
    for i, tensor in enumerate(tensors[:4]):
        if i not in law.linear and tensor.is_floating_point():
            yield f"linear in argument {i}", replace(law, linear=(*law.linear, i))

    def lowered(call: Call) -> Any:
        ins, outs = law.letters(call)
        return [text.lower() for text in ins], [text.lower() for text in outs]

    yield "every axis mapped", replace(law, letters=lowered)


def tried() -> dict[str, Trial]:
    """Every law on every example and layout, and its mutants."""
    found: dict[str, Trial] = {}
    random.seed(0)
    for name, op, example, args, kwargs in examples():
        trial = found.setdefault(name, Trial(name))
        tensors = tensors_in((args, kwargs))
        for layout, turns in ((one, turns) for one in layouts(tensors) for turns in takes(tensors, one)):
            try:
                decided = attempt(name, op, example, args, kwargs, layout, None, turns)
            except NotImplementedError:
                trial.absent += 1  # this machine has no such kernel
                continue
            except Exception as error:
                trial.wrong.append(f"{args_of(example)} {layout} {turns}: {type(error).__name__} {error}")
                continue
            trial.cases += decided
            trial.opaque += not decided
        law = LAWS.get(name)
        if law is None or name in FRAGILE:
            continue
        for label, mutant in mutants(law, tensors):
            if label in trial.killed:
                continue
            if any(refuted(name, op, example, args, kwargs, layout, mutant) for layout in layouts(tensors)):
                trial.killed.append(label)
                trial.survived = [s for s in trial.survived if s != label]
            elif label not in trial.survived:
                trial.survived.append(label)
    return found


def args_of(example: Example) -> str:
    """The arguments of an example in words."""
    return ", ".join(str(getattr(a, "shape", a)) for a in example.args)[:80]


def refuted(name: str, op: str, example: Example, args: Any, kwargs: Any, layout: dict[int, int], law: Law) -> bool:
    """Whether a layout shows that a mutant is not true, or that it makes no sense."""
    try:
        attempt(name, op, example, args, kwargs, layout, law)
    except NotImplementedError:
        return False
    except Exception:
        return True
    return False
