"""The numbers of a value: what a law says that a result is made of, computed part by part with the real operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch

from gradproof.shadow.follow.interpreter import Call, Interpreter, Law
from gradproof.shadow.follow.terms import Combination, Shape, Terms
from gradproof.shadow.follow.values import Value

CLOSE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-5}
"""How far a result may be off by the rounding of its type; others 1e-9."""


def exactly(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of numbers of 64 bits, or of pairs of them."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


class Wrong(AssertionError):
    """A law is not true of the kernel."""


class Traced(Interpreter):
    """An interpreter that remembers by which call a term was made, so that its numbers can be computed."""

    def __init__(self) -> None:
        super().__init__(Terms())
        self.numbers: dict[int, torch.Tensor] = {}
        self.origin: dict[int, tuple[Call, int, list[Shape]]] = {}

    def same(self, made: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether what a law says is the result."""
        real, close = exactly(out), CLOSE.get(out.dtype, 1e-9)
        return made.shape == real.shape and torch.allclose(made, real, rtol=close, atol=close, equal_nan=True)

    def shown(self, tensor: torch.Tensor) -> str:
        """The first elements."""
        return str(tensor.flatten()[:4].tolist())

    def nought(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds zeros."""
        return not tensor.any()

    def counts_up(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds 0, 1, 2 ..."""
        plain = not tensor.is_floating_point() and tensor.numel() > 1
        return plain and tensor.equal(torch.arange(tensor.numel()).view_as(tensor))

    def leaf(self, number: int, tensor: torch.Tensor) -> int:
        """A leaf with numbers."""
        whole = tensor.dtype not in (torch.bool, torch.complex128) and not tensor.is_floating_point() and tensor.numel()
        within = (int(tensor.min()), int(tensor.max()) + 1) if whole else (None, None)
        term = self.terms.make("data", ("leaf", number, within), (), tuple(tensor.shape), 0)
        self.numbers[term] = tensor
        return term

    def _term(self, law: Law, call: Call, at: int, attributes: Any, kids: Any, shape: Shape) -> Combination:
        made = super()._term(law, call, at, attributes, kids, shape)
        for term in made:
            sizes = [size for _, size in kids]
            if call.name == "sum" and law.linear:  # without axes of one row, which come back by a reshape
                while self.terms.operators[term] == "reshape":
                    (term,) = self.terms.kids[term]
                if self.terms.operators[term] != "sum":
                    continue
                sizes = [self.terms.shapes[kid] or () for kid in self.terms.kids[term]]
            self.origin.setdefault(term, (call, at, sizes))
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
            found = found + float(by) * exactly(self.of(term, shape))
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
        if self.terms.operators[term] == "mul":
            given = [exactly(g) for g in given]
        else:
            given = [g.to(t.dtype).contiguous() for g, t in zip(given, call.tensors, strict=True)]
        name, attributes = self.terms.operators[term], self.terms.attributes[term][1]
        if name in NAMED:
            found = NAMED[name](given, attributes, call)
        else:
            args, kwargs = put(call.args, call.kwargs, given)
            found = FUNCTIONS[id(call.args)](*args, **kwargs)
        return (list(found) if isinstance(found, list | tuple) else [found])[at]


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
    "chosen": lambda kids, by, _: torch.cat(kids, by[0]),
    "choose": lambda kids, _, __: kids[0][kids[1].bool()],
    "put_back": lambda kids, _, shape: torch.zeros(shape, dtype=kids[0].dtype).index_put((kids[1].bool(),), kids[0]),
    "count": lambda kids, by, _: (kids[0] != by[0]).sum(),
    "weighed": lambda kids, by, _: (kids[1][kids[0].clamp(min=0).long()] * (kids[0] != by[0])).sum(),
    "scaled": lambda kids, by, _: (
        kids[0] * math.prod(kid.to(torch.float64) ** power for kid, power in zip(kids[1:], by, strict=True))
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
    blank = torch.zeros((*inner.shape[:axis], size, *inner.shape[axis + 1 :]), dtype=inner.dtype)
    first, last, step = (
        (rest[0], min(rest[1], size), rest[2]) if len(rest) > 1 else (rest[0] % size, rest[0] % size + 1, 1)
    )
    return torch.slice_scatter(blank, inner, axis, first, last, step)


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


UPSAMPLED = ("nearest1d", "nearest3d", "linear1d", "nearest2d", "bilinear2d", "bicubic2d")
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
