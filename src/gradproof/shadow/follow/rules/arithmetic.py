"""Operators whose values are worked out and not named: sums, scalings, copies, fills, views, losses and draws.

Each rule takes the interpreter and a call and gives the values of the results. A rule that meets a form that it does
not know gives None, and the operator is judged by its law, or as opaque.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.interpreter import Call, Interpreter, Law, rows_of
from gradproof.shadow.follow.laws import (
    BOTH,
    FIRST,
    LAWS,
    RULES,
    SUM,
    chosen,
    divided,
    fixed,
    over,
    pointwise,
    raised,
    reduced_axes,
    rule,
)
from gradproof.shadow.follow.terms import ZERO, Combination, Shape, added, multiplied, plus, times
from gradproof.shadow.follow.values import NOUGHT, Value, number, part_shape, shared

# -- Sums and products.


@rule("add", "sub", "rsub")
def add(x: Interpreter, call: Call) -> list[Value] | None:
    """A combination of two tensors, or of a tensor and a number."""
    alpha = x.exact(call.kwargs.get("alpha", 1 if len(call.args) < 3 else call.args[2]))
    numbers = call.numeric() or (call.out[0] is not None and call.out[0].is_complex())
    if not numbers or alpha is None or len(call.args) < 2:
        return None
    operands, given = list[tuple[Value, Shape]](), zip(call.values, call.shapes, strict=True)
    for arg in call.args[:2]:
        plain = None if isinstance(arg, torch.Tensor) else x.exact(arg)
        if plain is None and not isinstance(arg, torch.Tensor):
            return None
        operands.append(next(given) if plain is None else (x.ones(plain), ()))
    first, second = (operands[1], operands[0]) if call.name == "rsub" else operands
    by = alpha if call.name == "add" else -alpha
    return [combined(x, call, first, second, by)]


def combined(
    x: Interpreter, call: Call, first: tuple[Value, Shape], second: tuple[Value, Shape], by: Fraction
) -> Value:
    """first + by * second, both broadcast to the shape of the result."""
    out = call.out_shape()
    left, right = (x.expand(value, shape, out) for value, shape in (first, second))
    if left.shared and right.shared:
        return shared(plus(left.parts[0], right.parts[0], by))
    lead = right if left.shared else left
    parts = [x.split_like(value, out, lead) for value in (left, right)]
    if any(not v.shared and v.layout != lead.layout for v in (left, right)):
        call.coupled.append(0)
    return x.along(lead.axis, lead.rows, [plus(a, b, by) for a, b in zip(*parts, strict=True)], out, lead.turns)


@rule("mul", "div", "true_divide")
def mul(x: Interpreter, call: Call) -> list[Value] | None:
    """A product; with a number, and with a tensor that holds one number, it is a scaling."""
    divides, pairs = call.name != "mul", call.out[0] is not None and call.out[0].is_complex()
    if not (call.numeric() or pairs) or call.kwargs.get("rounding_mode") or len(call.args) < 2:
        return None
    if pairs and len(call.tensors) == 2:
        return None if divides else x.apply(BOTH, replace(call, attributes=()))
    out = call.out_shape()
    plain = [arg for arg in call.args[:2] if not isinstance(arg, torch.Tensor)]
    if plain:
        by, powers = x.factor(plain[0], prod(out) == 1)
        if by is None or not isinstance(call.args[0], torch.Tensor) or (divides and not by):
            return x.apply(Law(pointwise, linear=(0,)), call) if pairs and not divides else None
        whole = x.expand(call.values[0], call.shapes[0], out)
        return [x.rescaled(whole, 1 / by, multiplied({}, powers, -1)) if divides else x.rescaled(whole, by, powers)]
    at = _single(x, call, divides)
    if at is not None:
        other = x.expand(call.values[1 - at], call.shapes[1 - at], out)
        factor = call.values[at].parts[0]
        if not factor:
            return None if divides else [NOUGHT]
        by, powers = x.scalar(factor)
        x.scales(powers, by, call.tensors[at])
        return [x.rescaled(other, 1 / by, multiplied({}, powers, -1)) if divides else x.rescaled(other, by, powers)]
    if divides:
        return x.apply(FIRST, replace(call, attributes=()))
    return x.apply(BOTH, replace(call, attributes=()))


def _single(x: Interpreter, call: Call, divides: bool) -> int | None:
    """The factor that is one number everywhere, the divisor first; of two one of no parameter, or one without axes."""
    fitting = [
        i for i, (value, shape) in enumerate(zip(call.values, call.shapes, strict=True))
        if value.shared and (prod(shape) == 1 or x.uniform(value.parts[0]))
    ]  # fmt: skip
    if divides:
        return 1 if 1 in fitting else None
    plain = [i for i in fitting if x.terms.plain(call.values[i].parts[0])]
    bare = [i for i in fitting if not call.shapes[i]]
    if len(fitting) < 2 or plain:
        return min(fitting, default=None) if len(fitting) < 2 else plain[-1]
    return bare[0] if len(bare) == 1 else None


@rule("dot")
def dot(x: Interpreter, call: Call) -> list[Value] | None:
    """Of vectors of one element each it is their product."""
    if call.shapes[0] != (1,) or not all(value.shared for value in call.values):
        return None
    values = [x.reshape(value, (1,), ()) for value in call.values]
    return mul(x, replace(call, name="mul", values=values, shapes=[(), ()], arguments=(), attributes=()))


@rule("addcdiv", "addcmul")
def added_product(x: Interpreter, call: Call) -> list[Value] | None:
    """A sum with a product, or a quotient, of which one is a single number."""
    by, name = x.exact(call.kwargs.get("value", 1)), "div" if call.name == "addcdiv" else "mul"
    if by is None or len(call.tensors) != 3 or len({(), *call.shapes[1:]}) > 2:
        return None
    part = call.some(1, 2, name=name, args=call.args[1:3], kwargs={}, attributes=())
    made = mul(x, part) if _single(x, part, name == "div") is not None else None
    out = call.out_shape()
    return made and [combined(x, call, (call.values[0], call.shapes[0]), (made[0], out), by)]


@rule("lerp")
def lerp(x: Interpreter, call: Call) -> list[Value] | None:
    """From one tensor to another by a plain number: first + by * (second - first)."""
    if not call.numeric() or isinstance(call.args[2], torch.Tensor):
        return None
    out, (first, second) = call.out_shape(), zip(call.values, call.shapes, strict=True)
    by, powers = x.factor(call.args[2], prod(out) == 1)
    if by is None:
        return None
    way = x.rescaled(combined(x, call, second, first, Fraction(-1)), by, powers)
    return [combined(x, call, first, (way, out), Fraction(1))]


@rule("reciprocal")
def reciprocal(x: Interpreter, call: Call) -> list[Value] | None:
    """One over a scalar is a power of it."""
    value = call.values[0]
    if not value.shared or prod(call.shapes[0]) != 1 or not value.parts[0]:
        return None
    return [divided(x, x.ones(), value.parts[0])]


@rule("where")
def where(x: Interpreter, call: Call) -> list[Value] | None:
    """What a mask chooses of one tensor, and what it leaves of the other: linear in each."""
    if len(call.tensors) != 3 or not call.numeric():
        return None
    chosen = []
    for at, name in ((1, "where_true"), (2, "where_false")):
        part = call.some(0, at, name=name, attributes=())
        chosen.append(x.apply(Law(pointwise, linear=(1,)), part)[0])
    out = call.out_shape()
    return [combined(x, call, (chosen[0], out), (chosen[1], out), Fraction(1))]


@rule("masked_fill")
def masked_fill(x: Interpreter, call: Call) -> list[Value] | None:
    """Zeros where a mask says so: linear in the rest."""
    value = x.exact(call.args[2]) if len(call.tensors) == 2 else number(x, call.values[2])
    if value != 0 or not call.numeric():
        return None
    return x.apply(Law(pointwise, linear=(1,)), call.some(1, 0, name="where_false", attributes=()))


@rule("addmm", "baddbmm", "addmv")
def addmm(x: Interpreter, call: Call) -> list[Value] | None:
    """beta * bias + alpha * a product."""
    beta, alpha = x.exact(call.kwargs.get("beta", 1)), x.exact(call.kwargs.get("alpha", 1))
    if beta is None or alpha is None:
        return None
    product = {"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}[call.name]
    inner = call.some(1, 2, name=product, attributes=())
    made = x.apply(LAWS[product], inner)[0].scaled(alpha)
    call.coupled.extend(inner.coupled)
    out = call.out_shape()
    return [combined(x, call, (made, out), (call.values[0], call.shapes[0]), beta)]


@rule("sum", "mean")
def total(x: Interpreter, call: Call) -> list[Value] | None:
    """A sum over axes; a mean is a sum times a rational."""
    if not call.numeric() or call.tensors[0].is_complex() or call.truncates():
        return None
    if not call.shapes[0]:
        return [call.values[0]]
    dims = sorted(reduced_axes(call))
    held = number(x, call.values[0])
    count = prod(call.shapes[0][i] for i in dims)
    if not count:
        return None
    by = Fraction(1, count) if call.name == "mean" else Fraction(1)
    if held is not None:
        return [x.ones(held * count * by)]
    kept = len(call.out_shape()) == len(call.shapes[0])
    found = counted(x, call) if not call.out_shape() and call.name == "sum" else None
    if found is None and (found := pieces(x, call, dims, by)) is not None and not call.out_shape():
        each = masses(x, call, count)
        x.reduces(
            found, x.ones().parts if each and call.values[0].shared else each, call.name, count
        )  # numbers in a row
    if found is not None:
        return [found]
    inner = replace(call, name="sum", attributes=(tuple(dims), kept))
    within = x.marks and call.name == "mean" and (call.out_shape() != () or call.values[0].shared)
    powers = x.counted_by(call, dims) if within else {}  # no mean over all samples
    made = x.rescaled(x.apply(SUM, inner)[0], Fraction(1) if within else by, powers)
    x.reduces(made, masses(x, call, count), "sum" if within else call.name, count)
    call.coupled.extend(inner.coupled)
    return [made]


# -- Counts of labels: sums of truth values that say which are valid, and what a masked sum stands for.


def masses(x: Interpreter, call: Call, count: int) -> list[Combination]:
    """How many elements each part of a sum of everything stands for: those that a mask keeps, or all of them.

    Where counts are the numbers of this run, what is ignored of all of them is not known.
    """
    value, terms, small = call.values[0], x.terms, part_shape(call.values[0], call.shapes[0])
    parts = value.parts if call.name == "sum" and not call.out_shape() else ()
    found = list[Combination]()
    for part in parts:
        bare = terms.bare(next(iter(part)))[0] if len(part) == 1 else x.terms.one
        kids = terms.kids[bare] if terms.operators[bare] == "mul" else ()
        counts = [made for kid in kids if terms.shapes[kid] == small and (made := _valid(x, kid)) is not None]
        found += counts if len(counts) == 1 else []
    if parts and len(found) == len(parts):
        return found
    return [] if x.integers else x.elements_of(value, count)


def _valid(x: Interpreter, term: int) -> Combination | None:
    """The count of labels that are not the ignored one, of truth values that say so, also as numbers."""
    terms = x.terms
    term = terms.kids[term][0] if terms.operators[term] == "cast" else term
    if x.integers:
        return x.tallied.get(term)
    form = terms.attributes[term]
    if terms.operators[term] != "ne" or len(terms.kids[term]) != 1 or not isinstance(form[1][1], int):
        return None
    labels = terms.kids[term][0]
    return x.count(labels, terms.shapes[labels] or (), form[1][1])


def counted(x: Interpreter, call: Call) -> Value | None:
    """A sum of truth values that say which labels are not the ignored one: it is the count of these labels."""
    value = call.values[0]
    if call.tensors[0].dtype is not torch.bool or (x.marks and not x.smooths):
        return None
    if x.integers:
        with _disable_current_modes():
            seen = [int(rows_of(call.tensors[0], value, at).sum()) for at in range(len(value.parts))]
        for part, number in zip(value.parts, seen, strict=True):
            x.tallied |= {term: x.ones(Fraction(number)).parts[0] for term in part if len(part) == 1}
        return x.ones(Fraction(sum(seen)))
    counts = [_valid(x, next(iter(part))) if list(part.values()) == [1] else None for part in value.parts]
    known = [count for count in counts if count is not None]
    return shared(x.labels(known, value, call.shapes[0])) if len(known) == len(counts) else None


@rule("bitwise_not", "logical_not")
def negated(x: Interpreter, call: Call) -> list[Value] | None:
    """What is not equal is unequal: a loss with label smoothing counts its labels so."""
    value, terms = call.values[0], x.terms
    own = [next(iter(part)) for part in value.parts if list(part.values()) == [1]]
    if call.tensors[0].dtype is not torch.bool or [terms.operators[t] for t in own] != ["eq"] * len(value.parts):
        return None
    made = (terms.make("ne", terms.attributes[t], terms.kids[t], terms.shapes[t]) for t in own)
    return [value.holding([terms.of(term) for term in made])]


FEW = 256
"""Numbers side by side, such as the losses of some windows, that are followed one by one."""


def pieces(x: Interpreter, call: Call, dims: Sequence[int], by: Fraction) -> Value | None:
    """A sum of numbers that stand side by side is the sum of them; rows of samples that stay are summed each alone."""
    shape, out, value = call.shapes[0], call.out_shape(), call.values[0]
    apart = len(value.parts) > 1 and value.axis not in dims
    each = singles(x, value, shape) if prod(shape) <= FEW and not apart else None
    if each is None:
        return None
    locations = np.moveaxis(np.arange(prod(shape)).reshape(shape), list(dims), range(-len(dims), 0))
    every = locations.reshape(max(prod(out), 1), -1).tolist()
    totals = [times(added(each[at] for at in row), by) for row in every]
    if prod(out) == 1:
        return shared({x.reshaped(x.broadcast(t, (1,)), out): factor for t, factor in totals[0].items()})
    rows = [{x.reshaped(x.broadcast(t, (1,)), (1,)): factor for t, factor in total.items()} for total in totals]
    flat = shared(x.laid(rows, [(1,)] * len(rows), 0, (len(rows),)))
    return x.reshape(flat, (len(rows),), out)


def singles(x: Interpreter, value: Value, shape: Shape) -> list[Combination] | None:
    """The elements of a tensor that was put together of single numbers, in order; None for any other."""
    terms = x.terms
    if not value.shared and len(value.parts) == prod(shape):
        return [x.single(part) for part in value.parts]
    if not value.shared or len(value.parts[0]) != 1:
        return None
    ((term, by),) = value.parts[0].items()
    bare, powers = terms.bare(term)
    bare = terms.inner(bare, "reshape")
    kids = terms.kids[bare]
    if (
        terms.operators[bare] != "cat"
        or len(kids) != prod(shape)
        or any(prod(terms.shapes[k] or ()) != 1 for k in kids)
    ):
        return None
    return [times(terms.rescaled(x.single(terms.of(kid)), powers), by) for kid in kids]


# -- Copies, casts and fills.


@rule("_to_copy", "to", "copy", "type_as")
def cast(x: Interpreter, call: Call) -> list[Value] | None:
    """A copy: over the reals, a cast to a floating-point or complex type changes nothing; others are functions."""
    at = 1 if call.name == "copy" and len(call.tensors) > 1 else 0
    source = call.tensors[at]
    value = x.expand(call.values[at], call.shapes[at], call.out_shape())
    made = call.out[0]
    assert made is not None
    wider = made.is_complex() or (made.is_floating_point() and not source.is_complex())
    if wider or source.dtype == made.dtype or (number(x, value) is not None and source.dtype is torch.bool):
        return [value]
    law = Law(pointwise, uniform=True)
    part = call.some(at, name="cast", attributes=(str(made.dtype),))
    return x.apply(law, replace(part, values=[value], shapes=[call.out_shape()]))


FILLS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
}  # fmt: skip
FILLED = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""Where the number stands among the arguments."""


@rule(*FILLS, *FILLED)
def fill(x: Interpreter, call: Call) -> list[Value] | None:
    """One number everywhere."""
    found: Any = FILLS[call.name] if call.name in FILLS else call.argument(FILLED[call.name], "fill_value")
    kind = torch.float32 if call.out[0] is None else call.out[0].dtype
    whole = not (kind.is_floating_point or kind.is_complex)
    if isinstance(found, torch.Tensor):
        if whole and (found.is_floating_point() or (kind is torch.bool and found.dtype is not torch.bool)):
            return None
        return [x.expand(call.values[-1], call.shapes[-1], call.out_shape())]
    if whole and isinstance(found, int | float) and math.isfinite(found):
        found = int(found) if kind is not torch.bool else bool(found)
    plain = Fraction(int(found)) if isinstance(found, bool) else x.exact(found)
    if plain is None:
        return [shared(x.terms.of(x.terms.make("number", (str(found),), (), None)))]
    return [x.ones(plain)]


@rule("arange")
def arange(x: Interpreter, call: Call) -> list[Value] | None:
    """Consecutive numbers, which a slice keeps."""
    numbers = [x.exact(arg) for arg in call.args]
    made = call.out_shape()
    if not numbers or any(n is None for n in numbers):
        return None
    if call.out[0] is not None and not call.out[0].is_floating_point() and any(isinstance(n, float) for n in call.args):
        return None  # its numbers have no fractions
    start, _, step, *_ = [*(numbers if len(numbers) > 1 else [Fraction(0), *numbers]), Fraction(1)]
    return [shared(x.terms.of(x.terms.make("range", (start, step), (), made)))]


# -- Views and joins.


@rule("view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "view_as", "unsqueeze", "squeeze")
def view(x: Interpreter, call: Call) -> list[Value] | None:
    """The same elements in another shape. An axis of one row that comes or goes moves those behind it."""
    value, shape, axis = call.values[0], call.shapes[0], None
    if call.args[1:] and isinstance(call.args[1], torch.dtype):
        return None
    if call.name == "unsqueeze" and not value.shared:
        axis = value.axis + (value.axis >= call.argument(1, "dim") % (len(shape) + 1))
    if call.name == "squeeze" and not value.shared:
        asked = call.argument(1, "dim", range(len(shape)))
        dims = {dim % len(shape) for dim in ([asked] if isinstance(asked, int) else asked)}
        gone = [dim for dim in dims if shape[dim] == 1]
        axis = None if value.axis in gone else value.axis - sum(dim < value.axis for dim in gone)
    return [x.reshape(value, shape, call.out_shape(), axis)]


@rule("t", "transpose", "permute", "numpy_T", "swapaxes")
def permute(x: Interpreter, call: Call) -> list[Value] | None:
    """The axes in another order."""
    rank = len(call.shapes[0])
    order = list(range(rank))
    if call.name == "permute":
        order = [d % rank for d in call.args[1]]
    elif call.name == "t":
        order = order[::-1]
    elif rank:
        a, b = call.args[1] % rank, call.args[2] % rank
        order[a], order[b] = b, a
    return [x.permute(call.values[0], call.shapes[0], order)]


@rule("repeat")
def repeated(x: Interpreter, call: Call) -> list[Value] | None:
    """A tensor again and again: a broadcast of axes of one row; along the first axis, its parts once more each time."""
    value, out, turns = call.values[0], call.out_shape(), call.argument(1, "repeats")
    more = len(out) - len(call.shapes[0])
    size = (*(1,) * more, *call.shapes[0])
    value = x.reshape(value, call.shapes[0], size, None if value.shared else value.axis + more)
    if all(turn == 1 or rows == 1 for turn, rows in zip(turns, size, strict=True)):
        return [x.expand(value, size, out)]
    if any(turn != 1 for turn in turns[1:]) or not out[0]:
        return None
    if not value.shared:
        return [value.holding(value.parts * turns[0])] if (value.axis, value.turns) == (0, 1) else None
    return [x.along(0, size[0], [x.fitted(value.parts[0], size)] * turns[0], out)]


@rule("slice", "narrow")
def cut(x: Interpreter, call: Call) -> list[Value] | None:
    """Rows of an axis."""
    shape = call.shapes[0]
    axis = call.argument(1, "dim", 0) % len(shape)
    start = call.argument(2, "start", 0) or 0
    step = 1 if call.name == "narrow" else call.argument(4, "step", 1)
    start = min(max(start + shape[axis] if start < 0 else start, 0), shape[axis])
    return [x.cut(call.values[0], shape, axis, start, call.out_shape()[axis], step)]


@rule("select")
def select(x: Interpreter, call: Call) -> list[Value] | None:
    """One row."""
    shape = call.shapes[0]
    axis = call.args[1] % len(shape)
    return [x.select(call.values[0], shape, axis, call.args[2] % shape[axis])]


@rule("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split")
def split(x: Interpreter, call: Call) -> list[Value] | None:
    """Rows of an axis, one piece after the other."""
    shape = call.shapes[0]
    axis = call.argument(call.arguments.index("dim"), "dim", 0) % len(shape)
    if call.name == "unbind":
        return [x.select(call.values[0], shape, axis, i) for i in range(len(call.out))]
    made, start = [], 0
    for at in range(len(call.out)):
        count = call.out_shape(at)[axis]
        made.append(x.cut(call.values[0], shape, axis, start, count))
        start += count
    return made


@rule("cat", "stack")
def cat(x: Interpreter, call: Call) -> list[Value] | None:
    """Tensors side by side."""
    out = call.out_shape()
    axis = call.argument(1, "dim", 0) % len(out)
    values, shapes = call.values, call.shapes
    if call.name == "stack":
        wide = [(*s[:axis], 1, *s[axis:]) for s in shapes]
        values = [
            x.reshape(v, s, w, None if v.shared else v.axis + (v.axis >= axis))
            for v, s, w in zip(values, shapes, wide, strict=True)
        ]
        shapes = wide
    if all(prod(s) == 0 for s in shapes):
        return [NOUGHT]
    return [x.join(values, shapes, axis, out)]


# -- Norms, lookups and paddings backwards.


@rule("scatter", "scatter_add")
def put_at(x: Interpreter, call: Call) -> list[Value] | None:
    """What is put, or added, into zeros at the places of an index: linear in it."""
    if len(call.tensors) != 3 or number(x, call.values[0]) != 0 or not call.numeric() or call.kwargs:
        return None
    ins, outs = chosen(call)
    axis = call.args[1] % max(len(call.shapes[0]), 1)
    part = call.some(1, 2, attributes=(axis, call.shapes[0][axis:][:1]))
    return x.apply(Law(lambda _: (ins[1:], outs), linear=(1,)), part)


@rule("slice_backward", "select_backward")
def put_back(x: Interpreter, call: Call) -> list[Value] | None:
    """The gradient of a view: zeros around it."""
    sizes = call.args[1]
    axis = call.args[2] % len(sizes)
    out = raised(len(sizes), axis)
    own = out if call.name == "slice_backward" else out[:axis] + out[axis + 1 :]
    if call.name == "slice_backward" and call.values[0].axis == axis:
        return _rows_put_back(call.values[0], sizes[axis], *call.args[3:])
    call = replace(call, attributes=(axis, sizes[axis], *call.args[3:]))
    return x.apply(Law(lambda _: ([own], [out]), linear=(0,)), call)


def _rows_put_back(value: Value, size: int, start: int, stop: int, step: int) -> list[Value] | None:
    """Whole samples with samples of zeros around them."""
    rows = value.rows
    if step != 1 or start % rows or size % rows or start < 0 or value.turns > 1:
        return None
    before, after = start // rows, size // rows - start // rows - len(value.parts)
    parts = (ZERO,) * before + value.parts + (ZERO,) * after
    return [Value(parts, value.axis, rows)]


@rule("constant_pad_nd")
def pad(x: Interpreter, call: Call) -> list[Value] | None:
    """Zeros around a tensor."""
    value = call.args[2] if len(call.args) > 2 else 0
    rank, widths = len(call.shapes[0]), call.args[1]
    own = raised(rank, *(rank - 1 - i // 2 for i, width in enumerate(widths) if width))
    return x.apply(Law(lambda _: ([own], [own]), linear=() if value else (0,)), call)


# -- Operators of one line: copies and broadcasts, the opposite, and those that are linear in most calls.

COPIES = ("clone", "detach", "alias", "lift_fresh", "lift", "contiguous", "positive", "detach_copy")
BROADCASTS = ("expand", "expand_as", "broadcast_to")
RULES.update({
    **dict.fromkeys(COPIES, lambda x, call: [call.values[0]]),
    **dict.fromkeys(BROADCASTS, lambda x, call: [x.expand(call.values[0], call.shapes[0], call.out_shape())]),
    "neg": lambda x, call: [call.values[0].scaled(Fraction(-1))] if call.numeric() else None,
    "cumsum": lambda x, call: x.apply(Law(over(), linear=() if call.truncates() else (0,)), call),
    "embedding_dense_backward": lambda x, call: (
        None if call.args[4] else x.apply(Law(fixed("...Z", "...", "->YZ"), linear=(0,)), call)
    ),
})  # fmt: skip
