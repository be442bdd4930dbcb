"""The trial of laws on real kernels, and of mutants of each law: `python -m tests.laws --out docs/laws.md`.

The arguments of an example are cut into parts along an axis, each part a random rational times a leaf. The law says
what the result is made of; that is computed part by part with the real operator in float64, and compared with the
operator on the whole. A mutant claims more than its law: one linear argument more, or a coupled axis that is mapped.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from gradproof.shadow.ops.schema import spec_of, tensors_in
from gradproof.shadow.whole.engine import bared
from gradproof.shadow.whole.interpreter import Call, Interpreter, Law, rows_of
from gradproof.shadow.whole.laws import LAWS, RULES
from gradproof.shadow.whole.terms import Combination, Shape, Terms
from gradproof.shadow.whole.values import Value, shared
from tests.operator_examples import EXAMPLES, Bool, Example, Int, Maker, T, overload

WEIGHTS = (Fraction(2), Fraction(-1, 2), Fraction(3), Fraction(-3, 4), Fraction(1))
CLOSE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-5}
"""How far a result may be off by the rounding of its type; others 1e-9."""


class Wrong(AssertionError):
    """A law is not true of the kernel."""


class Traced(Interpreter):
    """An interpreter that remembers by which call a term was made, so that its numbers can be computed."""

    def __init__(self) -> None:
        super().__init__(Terms())
        self.numbers: dict[int, torch.Tensor] = {}
        self.origin: dict[int, tuple[Call, int, list[Shape]]] = {}

    def leaf(self, number: int, tensor: torch.Tensor) -> int:
        """A leaf with numbers."""
        whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool and tensor.numel() > 0
        within = (int(tensor.min()), int(tensor.max()) + 1) if whole else (None, None)
        term = self.terms.make("data", ("leaf", number, within), (), tuple(tensor.shape), 0)
        self.numbers[term] = tensor
        return term

    def _term(self, law: Law, call: Call, at: int, attributes: Any, kids: Any, shape: Shape, laid: Any) -> Combination:
        made = super()._term(law, call, at, attributes, kids, shape, laid)
        for term in made:
            self.origin.setdefault(term, (call, at, [size for _, size in kids]))
        return made

    def opaque(self, call: Call) -> list[Value]:
        made = super().opaque(call)
        for at, value in enumerate(made):
            for term in value.parts[0]:
                self.origin.setdefault(term, (call, at, call.shapes))
        return made

    def total(self, combination: Combination, shape: Shape) -> torch.Tensor:
        """The numbers of a combination."""
        found = torch.zeros(shape, dtype=torch.float64)
        for term, by in combination.items():
            found = found + float(by) * self.of(term, shape).to(torch.float64)
        return found

    def of(self, term: int, shape: Shape) -> torch.Tensor:
        """The numbers of a term."""
        if term not in self.numbers:
            self.numbers[term] = self.worked(term, shape)
        found = self.numbers[term]
        return found.expand(shape) if self.terms.shapes[term] is None else found

    def worked(self, term: int, shape: Shape) -> torch.Tensor:
        """The numbers of a term that is no leaf."""
        terms = self.terms
        name, given, kids = terms.operators[term], terms.attributes[term], terms.kids[term]
        own = terms.shapes[term]
        shape = shape if own is None else own
        if name == "one":
            return torch.ones((), dtype=torch.float64)
        if name == "number":
            return torch.tensor(float(given[0]), dtype=torch.float64)
        if term in self.origin:
            return self.called(term)
        inner = [self.of(kid, terms.shapes[kid] or shape) for kid in kids]
        if name == "combination":
            parts = [float(Fraction(*by)) * part for by, part in zip(given, inner, strict=True)]
            return torch.as_tensor(sum(parts, torch.zeros((), dtype=torch.float64)))
        return STRUCTURE[name](inner, given, shape)

    def called(self, term: int) -> torch.Tensor:
        """The numbers of an operator on parts."""
        call, at, sizes = self.origin[term]
        kids = self.terms.kids[term]
        if self.terms.operators[term] == "mul":  # its factors stand in another order
            sizes = [self.terms.shapes[kid] or self.terms.shapes[term] or () for kid in kids]
        given = [self.of(kid, size).expand(size) for kid, size in zip(kids, sizes, strict=True)]
        types = [torch.float64 if self.terms.operators[term] == "mul" else t.dtype for t in call.tensors]
        given = [g.to(kind).contiguous() for g, kind in zip(given, types, strict=True)]
        name, attributes = self.terms.operators[term], self.terms.attributes[term][1]
        if name in NAMED:
            found = NAMED[name](given, attributes, call)
        else:
            args, kwargs = put(call.args, call.kwargs, given)
            found = FUNCTIONS[id(call.args)](*args, **kwargs)
        return (list(found) if isinstance(found, list | tuple) else [found])[at]


FRAGILE = frozenset(
    {
        "max_pool2d_with_indices_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
    }
)
"""Kernels that end the process where a mutant gives them parts that do not fit."""

FUNCTIONS: dict[int, Any] = {}
"""The operator of a call, by its arguments."""

STRUCTURE: dict[str, Callable[[list[torch.Tensor], Any, Shape], torch.Tensor]] = {
    "reshape": lambda kids, _, shape: kids[0].reshape(shape),
    "permute": lambda kids, order, _: kids[0].permute(order),
    "expand": lambda kids, _, shape: kids[0].expand(shape),
    "filled": lambda kids, _, shape: kids[0].expand(shape),
    "slice": lambda kids, by, _: kids[0].narrow(by[0], by[1], by[3] * (by[2] - 1) + 1)[
        (slice(None),) * by[0] + (slice(None, None, by[3]),)
    ],
    "cat": lambda kids, by, _: torch.cat(kids, by[0]),
    "count": lambda kids, by, _: (kids[0] != by[0]).sum(),
    "weighed": lambda kids, by, _: (kids[1][kids[0].clamp(min=0).long()] * (kids[0] != by[0])).sum(),
    "scaled": lambda kids, by, _: (
        kids[0] * math.prod(float(kid) ** power for kid, power in zip(kids[1:], by, strict=True))
    ),
    "range": lambda _, by, shape: torch.arange(shape[0], dtype=torch.float64) * float(by[1]) + float(by[0]),
}


def reduction_of(given: list[torch.Tensor], attributes: Any, call: Call) -> Any:
    """A loss of elements, as a sum where the law says so."""
    args, kwargs = put(call.args, call.kwargs, given)
    at = call.arguments.index("reduction")
    mode = 2 if attributes and attributes[0] == "total" else 0
    if call.name.endswith("_backward"):
        mode = 2
    args = [*args[:at], mode, *args[at + 1 :]] if len(args) > at else args
    kwargs = kwargs if len(args) > at else {**kwargs, "reduction": mode}
    return FUNCTIONS[id(call.args)](*args, **kwargs)


def back_in_place(given: list[torch.Tensor], attributes: Any, call: Call) -> torch.Tensor:
    """Zeros around a slice or a row."""
    axis, size, *rest = attributes
    inner = given[0] if call.name == "slice_backward" else given[0].unsqueeze(axis)
    found = torch.zeros((*inner.shape[:axis], size, *inner.shape[axis + 1 :]), dtype=inner.dtype)
    index = slice(rest[0], min(rest[1], size), rest[2]) if len(rest) > 1 else slice(rest[0] % size, rest[0] % size + 1)
    found[(slice(None),) * axis + (index,)] = inner
    return found


def likelihood(given: list[torch.Tensor], attributes: Any, call: Call) -> Any:
    """A negative log-likelihood, with the weights of the classes where there are any."""
    weight = given[2] if len(given) > 2 else None
    plain = torch.ops.aten.nll_loss2d_forward if given[0].dim() == 4 else torch.ops.aten.nll_loss_forward
    return plain(given[0], given[1], weight, attributes[0], attributes[1])


def likelihood_back(given: list[torch.Tensor], attributes: Any, call: Call) -> torch.Tensor:
    """The gradient of a negative log-likelihood."""
    above, labels, *weights = given
    each, ignored, classes = attributes
    axis = 1 if labels.dim() == 3 else labels.dim()
    seed = (above if each else above.expand(labels.shape)) * (labels != ignored)
    seed = seed * weights[0][labels.clamp(min=0)] if weights else seed
    found = torch.zeros((*labels.shape[:axis], classes, *labels.shape[axis:]), dtype=above.dtype)
    return found.scatter(axis, labels.clamp(min=0).unsqueeze(axis), -seed.unsqueeze(axis))


def lists_of(lists: list[torch.Tensor], form: Any, shape: Sequence[int]) -> list[torch.Tensor | None]:
    """The lists of indices of a lookup in a tensor of a shape; one that was left out is 0, 1, 2 ... again."""
    (apart, _, width), found, left = form, [None] * len(shape), iter(lists)
    for axis, place in apart:
        spread = [-1 if at == place else 1 for at in range(width)]
        found[axis] = next(left) if place < 0 else torch.arange(shape[axis]).view(spread)
    return found


def looked_up(given: list[torch.Tensor], attributes: Any, call: Call) -> torch.Tensor:
    """Rows that lists of indices name."""
    return torch.as_tensor(torch.ops.aten.index(given[0], lists_of(given[1:], attributes, given[0].shape)))


def put_rows(given: list[torch.Tensor], attributes: Any, call: Call) -> torch.Tensor:
    """Rows that are added into zeros."""
    (above, *lists), (apart, start, width, sizes) = given, attributes
    rows, left, looked = above.shape[start : start + width], list(above.shape), iter(sizes)
    del left[start : start + width]
    known = dict(apart)
    shape = [
        left.pop(0) if axis not in known else next(looked) if known[axis] < 0 else rows[known[axis]]
        for axis in range(above.dim() - width + len(apart))
    ]
    index = lists_of(lists, (apart, start, width), shape)
    return torch.as_tensor(torch.ops.aten.index_put(torch.zeros(shape, dtype=above.dtype), index, above, True))


def put_by_mask(given: list[torch.Tensor], attributes: Any, call: Call) -> torch.Tensor:
    """One number wherever a mask of the leading axes is true."""
    whole, mask, number = given
    return torch.where(mask.reshape(*mask.shape, *[1] * (whole.dim() - mask.dim())), number, whole)


def normed(given: list[torch.Tensor], attributes: Any, call: Call) -> Any:
    """A group norm of fewer samples."""
    args, kwargs = put(call.args, call.kwargs, given)
    args[call.arguments.index("N")] = given[0].shape[0]
    return FUNCTIONS[id(call.args)](*args, **kwargs)


def enlarged(given: list[torch.Tensor], attributes: Any, call: Call) -> Any:
    """The gradient of an interpolation of fewer samples."""
    args, kwargs = put(call.args, call.kwargs, given)
    args[2] = [given[0].shape[0], *args[2][1:]]
    return FUNCTIONS[id(call.args)](*args, **kwargs)


def put_at(given: list[torch.Tensor], attributes: Any, call: Call) -> Any:
    """What is put, or added, into zeros; or into the tensor that is given."""
    if not isinstance(attributes[0], int):
        args, kwargs = put(call.args, call.kwargs, given)
        return FUNCTIONS[id(call.args)](*args, **kwargs)
    axis, size = attributes
    shape = (*given[1].shape[:axis], *size, *given[1].shape[axis + 1 :])
    return getattr(torch.zeros(shape, dtype=given[1].dtype), call.name)(axis, given[0], given[1])


UPSAMPLED = ("nearest1d", "linear1d", "nearest2d", "bilinear2d", "bicubic2d")
LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy")
NAMED: dict[str, Callable[[list[torch.Tensor], Any, Call], Any]] = {
    "mm": lambda g, _, c: g[0] @ g[1],
    "bmm": lambda g, _, c: g[0] @ g[1],
    "mv": lambda g, _, c: g[0] @ g[1],
    "mul": lambda g, _, c: g[0] * g[1],
    "div": lambda g, a, c: g[0] / g[1] if not a else torch.ops.aten.div(*put(c.args, c.kwargs, g)[0], **c.kwargs),
    "where_true": lambda g, _, c: torch.where(g[0].bool(), g[1], 0.0),
    "where_false": lambda g, _, c: torch.where(g[0].bool(), 0.0, g[1]),
    "sum": lambda g, a, c: g[0].sum(dim=a[0], keepdim=a[1]) if len(a) == 2 and isinstance(a[1], bool) else (
        FUNCTIONS[id(c.args)](*put(c.args, c.kwargs, g)[0], **c.kwargs)
    ),
    "cast": lambda g, a, c: g[0].to(getattr(torch, a[0].removeprefix("torch."))),
    **dict.fromkeys([*LOSSES, *(f"{name}_backward" for name in LOSSES)], reduction_of),
    "binary_cross_entropy_with_logits": reduction_of,
    **dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward"], likelihood),
    **dict.fromkeys(["nll_loss_backward", "nll_loss2d_backward"], likelihood_back),
    "index": looked_up,
    "masked_put": put_by_mask,
    **dict.fromkeys(["index_put", "_index_put_impl", "_unsafe_index_put"], put_rows),
    **dict.fromkeys(["slice_backward", "select_backward"], back_in_place),
    **dict.fromkeys(["native_group_norm", "native_group_norm_backward"], normed),
    **dict.fromkeys([f"upsample_{kind}_backward" for kind in UPSAMPLED], enlarged),
    **dict.fromkeys(["scatter", "scatter_add"], put_at),
}  # fmt: skip


def put(args: Any, kwargs: Any, given: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with other tensors, in their order."""
    left = iter(given)

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(left)
        return [walk(v) for v in value] if isinstance(value, list | tuple) else value

    return [walk(a) for a in args], {key: walk(v) for key, v in kwargs.items()}


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


def moved(name: str, *examples: Example) -> tuple[str, tuple[Example, ...]]:
    """An operator and its examples."""
    return f"aten.{name}", examples


MOVED = [
    moved("view", Example(T((4, 3, 2)), [12, 2]), Example(T((2, 6)), [2, 3, 2]), Example(T((2, 6)), [12])),
    moved("_unsafe_view", Example(T((4, 6)), [4, 2, 3]), Example(T((4, 2, 3)), [8, 3])),
    moved("reshape", Example(T((4, 3)), [3, 4]), Example(T((4, 3)), [2, 2, 3])),
    moved("t", Example(T((4, 3))), Example(T((3,)))),
    moved("transpose", Example(T((4, 3, 2)), 0, 1), Example(T((4, 3, 2)), -1, 0)),
    moved("permute", Example(T((4, 3, 2)), [2, 0, 1]), Example(T((4, 3, 2)), [-1, 1, 0])),
    moved("expand", Example(T((4, 1)), [4, 3]), Example(T((4, 1)), [2, 4, 3]), Example(T((3,)), [2, 3])),
    moved("slice", Example(T((4, 6)), 1, 1, 5, 2), Example(T((4, 6)), 0, 1, 3), Example(T((6, 2)), 0, -3, 9)),
    moved("narrow", Example(T((4, 6)), 1, 2, 3), Example(T((4, 6)), 0, 2, 2)),
    moved("select", Example(T((4, 6)), 0, 2), Example(T((4, 6)), 1, -1), Example(T((4, 2, 3)), -2, 1)),
    moved("split", Example(T((4, 6)), 2), Example(T((4, 6)), 4, -1)),
    moved("split_with_sizes", Example(T((4, 6)), [1, 3]), Example(T((4, 6)), [1, 2, 3], 1)),
    moved("unbind", Example(T((4, 3))), Example(T((4, 3)), 1)),
    moved("unsqueeze", Example(T((4, 3)), 0), Example(T((4, 3)), -1), Example(T((4, 3)), 1)),
    moved("squeeze", Example(T((4, 1, 3))), Example(T((4, 1, 3)), 1), Example(T((1, 4)), 0)),
    moved("detach", Example(T((4, 3)))),
    moved("alias", Example(T((4, 3)))),
    moved("acos", Example(T((4, 3), -0.9, 0.9))),
    moved("asin", Example(T((4, 3), -0.9, 0.9))),
    moved("atan2", Example(T((4, 3)), T((4, 3)))),
    moved("celu", Example(T((4, 3)))),
    moved("cummax", Example(T((4, 3)), 1), Example(T((4, 3)), -1)),
    moved("cummin", Example(T((4, 3)), 0)),
    moved("logcumsumexp", Example(T((4, 3)), 1)),
    moved("median", Example(T((4, 3)), 1), Example(T((4, 3)))),
    moved("_weight_norm_interface_backward", Example(T((4, 3)), T((4, 3)), T((4, 1)), T((4, 1), 0.5, 2.0), 0)),
    moved("gather", Example(T((4, 5)), 1, Int((4, 3), 5)), Example(T((4, 5)), 0, Int((2, 5), 4))),
    moved(
        "nll_loss2d_forward",
        *(
            Example(T((4, 3, 2, 2)), Int((4, 2, 2), 3), w, r, -100)
            for w in (None, T((3,), 0.5, 2.0))
            for r in (0, 1, 2)
        ),
    ),
    moved(
        "nll_loss2d_backward",
        *(
            Example(T(() if r else (4, 2, 2)), T((4, 3, 2, 2)), Int((4, 2, 2), 3), None, r, -100, T((), 16.0, 16.0))
            for r in (0, 2)
        ),
    ),
    *(
        moved(name, Example(T((5, 3), 0.0, 0.0), [Int((4,), 5)], T((4, 3)), True, *rest))
        for name, rest in (("_index_put_impl", (False,)), ("_unsafe_index_put", ()))
    ),
    moved(
        "index",
        Example(T((4, 3, 2)), [torch.arange(4), Int((4,), 3)]),
        Example(T((4, 3, 2)), [torch.arange(4).view(4, 1), torch.arange(3), Int((4, 3), 2)]),
        Example(T((4, 3, 2)), [torch.arange(4), None, Int((4,), 2)]),
    ),
    moved(
        "index_put",
        Example(T((5, 3), 0.0, 0.0), [Int((4,), 5)], T((4, 3)), True),
        Example(T((4, 3), 0.0, 0.0), [torch.arange(4), Int((4,), 3)], T((4,)), True),
        Example(T((4, 3, 2)), [Bool((4, 3))], T(())),
    ),
    moved("roll", Example(T((4, 3)), [1], [1]), Example(T((4, 3)), [1])),
    moved("sum", Example(T((4, 2, 3)), [0, 1], True), Example(T((4, 2, 3)), [-1]), Example(Int((4, 3), 9))),
    moved("mean", Example(T((4, 2, 3)), [0, 2]), Example(T((4, 2, 3)), [1], True)),
]
"""Movements, and forms for which `EXAMPLES` has no example."""
UNTRIED = {
    "broadcast_to": "as view",
    "chunk": "as view",
    "contiguous": "as view",
    "expand_as": "as view",
    "flatten": "as view",
    "numpy_T": "as view",
    "resolve_conj": "as view",
    "swapaxes": "as view",
    "tensor_split": "as view",
    "to": "as _to_copy",
    "type_as": "as _to_copy",
    "view_as": "as view",
    "true_divide": "as div",
    "positive": "as clone",
    "_conj": "the same for real numbers",
    "_reshape_alias": "as view",
    "lift_fresh": "as clone",
    "prelu": "torch decomposes it",
    "rms_norm": "torch decomposes it",
    "arange": "it takes no tensor",
    "full": "it takes no tensor",
    "ones": "it takes no tensor",
    "zeros": "it takes no tensor",
    "scalar_tensor": "it takes no tensor",
}
"""Operators that no example tries, and why: composite ones never reach the engine under their own name."""


EQUIVALENT = {
    **dict.fromkeys(
        [
            "_adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "mean", "pixel_shuffle", "pixel_unshuffle",
            "sum", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
            "upsample_nearest2d", "xlogy",
        ],
        "linear in argument 0",
    ),
    "mul": "linear in argument 1",
}  # fmt: skip
"""Mutants that are true: the law claims less than it could."""
TOO_WEAK = ("eq", "isinf", "isnan", "logical_not", "nan_to_num")
"""Operators whose examples have no number at which a false claim of linearity shows."""


def examples() -> Iterator[tuple[str, str, Example, Any, Any]]:
    """Each example of an operator that has a law or a rule: name, operator, example, arguments."""
    for op, given in [*EXAMPLES.items(), *MOVED]:
        base = op.split(".")[1]
        name = base if base.endswith("__") else base.rstrip("_")
        if name not in LAWS and name not in RULES:
            continue
        for i, example in enumerate(given):
            maker = Maker(i, "float64")
            args = [maker.made(a) for a in example.args]
            yield name, op, example, args, {key: maker.made(v) for key, v in example.kwargs.items()}


def cut_up(
    x: Traced, tensor: torch.Tensor, axis: int, count: int, number: int, weighted: bool, turns: int = 1
) -> Value:
    """A tensor as parts along an axis, each a weight times a leaf."""
    rows = tensor.shape[axis] // count
    parts: list[Combination] = []
    laid = Value((), axis, rows, turns)
    for i in range(count):
        by = WEIGHTS[i % len(WEIGHTS)] if weighted and tensor.is_floating_point() else Fraction(1)
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
) -> bool:
    """Try one layout; parts may take turns. Whether a law decided it. Raises Wrong where the numbers differ."""
    func = overload(op, example, args, kwargs)
    spec = spec_of(func)
    whole = func(*args, **kwargs)
    outs = list(whole) if isinstance(whole, list | tuple) else [whole]
    tensors = tensors_in((args, kwargs))
    x = Traced()
    values = []
    for i, tensor in enumerate(tensors):
        if i in layout:
            count = tensor.shape[layout[i]] if tensor.shape[layout[i]] != 4 else 2
            values.append(cut_up(x, tensor, layout[i], count, i + 1, True, turns))
        elif (
            not tensor.is_floating_point()
            and tensor.numel() > 1
            and tensor.equal(torch.arange(tensor.numel()).view_as(tensor))
        ):
            term = x.terms.make("range", (Fraction(0), Fraction(1)), (), (tensor.numel(),))
            values.append(shared(x.terms.of(x.reshaped(term, tuple(tensor.shape)))))
        elif i == 0 and ("index_put" in name or "scatter" in name) and not tensor.any():
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
        real, close = out.to(torch.float64), CLOSE.get(out.dtype, 1e-9)
        if made.shape != real.shape or not torch.allclose(made, real, rtol=close, atol=close, equal_nan=True):
            raise Wrong(f"{name}, result {at}: {made.flatten()[:4].tolist()} and not {real.flatten()[:4].tolist()}")


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


def markdown(trials: dict[str, Trial]) -> str:
    """The table of docs/laws.md."""
    rows = []
    for trial in sorted(trials.values(), key=lambda t: t.name):
        law = LAWS.get(trial.name)
        linear = "" if law is None else ", ".join(map(str, law.linear))
        sort = "rule" if trial.name in RULES else "law"
        if trial.cases:
            cells = (f"`{trial.name}`", sort, linear, str(trial.cases), str(len(trial.killed)))
            rows.append(f"| {' | '.join(cells)} |")
    left = sorted(name for name in UNTRIED if name in LAWS or name in RULES)
    why = [f"| `{name}` | {UNTRIED[name]} |" for name in left]
    return "\n".join([INTRODUCTION, HEAD, *rows, "", LEFT, *why, ""])


INTRODUCTION = """# Laws of operators

`gradproof check --fake` follows whole tensors and computes no number. What an operator does to them is a law: which
axes it treats row by row, over which axes it sums, and in which arguments it is linear. `make laws` tries each on the
real kernel in float64: arguments are cut into parts, each part gets a weight, and what the law says is compared with
the operator on the whole. A mutant claims more than its law: one linear argument more, or every axis row by row.
Operators that are not in this table are uninterpreted functions of whole tensors: samples that meet in one of them are
coupled, and nothing is proved about each of them. These trials are samples, not proofs: a law is an assumption of
each proof that uses it.
"""
HEAD = "| operator | kind | linear in | cases tried | mutants refuted |\n|---|---|---|---|---|"
LEFT = "## Not tried\n\n| operator | why |\n|---|---|"


def main() -> int:
    """Write docs/laws.md, or print what is wrong."""
    trials = tried()
    wrong = [f"{trial.name}: {text}" for trial in trials.values() for text in trial.wrong]
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{len(trials)} operators, {sum(t.cases for t in trials.values())} cases, {len(wrong)} wrong")
    if "--out" in sys.argv:
        Path(sys.argv[sys.argv.index("--out") + 1]).write_text(markdown(trials), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
