"""Lookups: rows of a tensor that lists of indices name, and what is put at such rows.

An axis that is looked up is coupled, but for one whose list of indices is 0, 1, 2 ... along an axis of the result: each
row is looked up in its own place, as in `x[torch.arange(len(x)), labels]`. Such a list is left out, and the axis is
mapped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.interpreter import LETTERS, Call, Interpreter, Law, rows_of
from gradproof.shadow.follow.laws import fixed, rule, under
from gradproof.shadow.follow.terms import Combination, Shape, mapped
from gradproof.shadow.follow.values import Value, number, shared


@dataclass(frozen=True, slots=True)
class Lookup:
    """The letters of a tensor that is looked up, of its lists of indices, and of the rows that they name.

    `lists`: the lists that are left, by their order. `form`: what tells the lookup from others of the same lists.
    """

    own: str
    indices: list[str]
    rows: str
    lists: list[int]
    form: tuple[object, ...]


def lookup(x: Interpreter, call: Call) -> Lookup | None:
    """How a tensor is looked up by lists of whole numbers; None where one is a mask."""
    shape, axes = call.shapes[0], [at for at, one in enumerate(call.args[1]) if one is not None]
    sizes = call.shapes[1 : 1 + len(axes)]
    if any(one.dtype in (torch.bool, torch.uint8) for one in call.tensors[1 : 1 + len(axes)]):
        return None
    wide = tuple(torch.broadcast_shapes(*sizes))  # type: ignore[no-untyped-call]
    own, names = list(LETTERS[: len(shape)]), LETTERS[len(shape) : len(shape) + len(wide)]
    lists: list[int] = []
    for at, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        place = in_order(x, call.values[1 + at], size, wide, shape[axis])
        if place is None or names[place] in own:
            own[axis] = own[axis].upper()
            lists.append(at)
        else:
            own[axis] = names[place]
    start = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    left = "".join(letter for axis, letter in enumerate(own) if axis not in axes)
    indices = under(wide, [sizes[at] for at in lists], names)
    apart = tuple((axis, names.find(own[axis])) for axis in axes)
    return Lookup("".join(own), indices, left[:start] + names + left[start:], lists, (apart, start, len(wide)))


def in_order(x: Interpreter, value: Value, shape: Shape, wide: Shape, rows: int) -> int | None:
    """The axis of the result along which a list of indices is 0, 1, 2 ... up to `rows`, where it is."""
    if rows == 1:
        return next((at for at, size in enumerate(wide) if size == 1), None)
    if not value.shared or len(value.parts[0]) != 1:
        return None
    ((term, by),) = value.parts[0].items()
    terms = x.terms
    if terms.operators[term] == "expand":
        (term,) = terms.kids[term]
    long = [at - len(terms.shapes[term] or ()) for at, size in enumerate(terms.shapes[term] or ()) if size > 1]
    term = terms.inner(term, "reshape")
    ordered = terms.operators[term] == "range" and terms.attributes[term] == (0, 1) and terms.shapes[term] == (rows,)
    return len(wide) + long[0] if ordered and by == 1 and len(long) == 1 and len(shape) <= len(wide) else None


@rule("index")
def index(x: Interpreter, call: Call) -> list[Value] | None:
    """Rows that lists of indices name: samples lie along another axis, or the lists have an index for each sample.

    Where one list names samples its numbers are read, which is a condition on the path.
    """
    found = lookup(x, call)
    if found is None:
        return by_mask(x, call)
    value, chosen = call.values[:2]
    names_samples = len(call.shapes) == 2 and not value.shared and found.own[value.axis].isupper()
    given = chosen.shared or {x.terms.operators[term] for part in chosen.parts for term in part} <= {"data"}
    if names_samples and value.rows == 1 and len(call.shapes[1]) == 1 and x.looked is not None and given:
        numbers = x.looked(call.tensors[1])
        return [Value(tuple(value.parts[number] for number in numbers), value.axis, 1)] if numbers else None
    law = Law(lambda _: ([found.own, *found.indices], [found.rows]), linear=(0,))
    return x.apply(law, call.some(0, *(1 + at for at in found.lists), attributes=found.form))


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def put_rows(x: Interpreter, call: Call) -> list[Value] | None:
    """The gradient of a lookup: rows are added into zeros. Or one number put wherever a mask says so."""
    if not call.argument(3, "accumulate", False):
        return masked_put(x, call)
    if call.tensors[1].dtype is torch.bool:
        return back_by_mask(x, call)
    found = lookup(x, call) if number(x, call.values[0]) == 0 else None
    if found is None or len(call.shapes[-1]) != len(found.rows):
        return None
    if prod(call.shapes[-1]) != rows_named(call):
        return None  # one row is added at several places
    sizes = tuple(size for size, letter in zip(call.shapes[0], found.own, strict=True) if letter.isupper())
    law = Law(lambda _: ([found.rows, *found.indices], [found.own]), linear=(0,))
    return x.apply(law, call.some(-1, *(1 + at for at in found.lists), attributes=(*found.form, sizes)))


def masks(x: Interpreter, call: Call) -> tuple[Value, list[Combination], list[int]] | None:
    """How the parts of a tensor lie along its first axis, the mask of each, and how many rows this chooses.

    None for anything but one mask of the first axes. The numbers of the mask are read: they are of the path.
    """
    shape, mask, (first, *others) = call.shapes[0], call.tensors[1], call.args[1]
    leads = [v for v in call.values[:2] if not v.shared]
    fitting = first is mask and mask.dtype is torch.bool and call.shapes[1] == shape[: mask.dim()] and mask.dim()
    if x.looked is None or x.marks or any(one is not None for one in others) or not fitting or not leads:
        return None
    lead = leads[0]
    if any(v.layout != lead.layout for v in leads) or lead.axis or lead.turns != 1:
        return None
    own = x.split_like(call.values[1], call.shapes[1], lead)
    with _disable_current_modes():
        counts = [int(rows_of(mask, lead, at).sum()) for at in range(len(own))]
    x.chooses(own, sum(counts))
    return lead, own, counts


def by_mask(x: Interpreter, call: Call) -> list[Value] | None:
    """The rows that a mask chooses of each sample, one sample after the other."""
    found = masks(x, call)
    if found is None:
        return None
    lead, own, counts = found
    shape, rest = call.shapes[0], call.out_shape()[1:]
    small, large = ((lead.rows, *size[1:]) for size in (call.shapes[1], shape))
    kids = []
    for part, mask, count in zip(x.split_like(call.values[0], shape, lead), own, counts, strict=True):
        given, size = (x.terms.named(mask, small),), (count, *rest)
        kids.append((mapped(x.fitted(part, large), partial(_under, x, "choose", given, (large, size))), size))
    return [shared(x.laid_chosen([made for made, _ in kids], [size for _, size in kids], 0, call.out_shape()))]


def back_by_mask(x: Interpreter, call: Call) -> list[Value] | None:
    """The gradient of such a choice: the rows of each sample are put where its mask chose them, into zeros."""
    found = masks(x, call) if number(x, call.values[0]) == 0 else None
    if found is None or call.shapes[-1] != (sum(found[2]), *call.shapes[0][len(call.shapes[1]) :]):
        return None
    lead, own, counts = found
    rows = x.whole(call.values[-1], call.shapes[-1])
    each = x.choices(rows, call.shapes[-1], 0, counts)
    small, large = ((lead.rows, *size[1:]) for size in (call.shapes[1], call.shapes[0]))
    parts = []
    for part, mask, count in zip(each, own, counts, strict=True):
        given, sizes = (x.terms.named(mask, small),), ((count, *call.shapes[-1][1:]), large)
        parts.append(mapped(part, partial(_under, x, "put_back", given, sizes)))
    return [x.along(0, lead.rows, parts, call.shapes[0])]


def _under(x: Interpreter, name: str, given: tuple[int, ...], sizes: tuple[Shape, Shape], term: int) -> int:
    """An operator that is linear in a term, beneath its scalars. `sizes`: those of the term and of the result."""
    return x.beneath(term, lambda inner: x.terms.make(name, (), (x.solid(inner, sizes[0]), *given), sizes[1]))


def rows_named(call: Call) -> int:
    """How many elements the lists of indices name."""
    lists = [*call.args[1], *[None] * (len(call.shapes[0]) - len(call.args[1]))]
    wide = prod(torch.broadcast_shapes(*call.shapes[1:-1]))  # type: ignore[no-untyped-call]
    return wide * prod(size for size, one in zip(call.shapes[0], lists, strict=True) if one is None)


def masked_put(x: Interpreter, call: Call) -> list[Value] | None:
    """One number wherever a mask of the leading axes is true."""
    first, *others = call.args[1]
    if not isinstance(first, torch.Tensor) or others or first.dtype is not torch.bool or prod(call.shapes[-1]) != 1:
        return None
    return x.apply(Law(fixed("...", "...", ".*", "->...")), replace(call, name="masked_put", attributes=()))


# -- Bags: as many rows of a table are summed, or averaged, for each sample.


def bags(x: Interpreter, call: Call) -> Call | None:
    """A lookup in bags of one size, as `F.embedding_bag` makes of a matrix; None for others, weighted ones and maxima.

    Its first tensor is the table, or the gradient of what was looked up.
    """
    given = dict(zip(call.arguments, call.args, strict=False)) | call.kwargs
    (start, *_), offsets = call.shapes[1], call.values[2].parts[0]
    term = next(iter(offsets)) if call.values[2].shared and len(offsets) == 1 else x.terms.one
    count = call.shapes[2][0] if call.shapes[2] else 0
    if x.terms.operators[term] != "range" or not count or start % count or given.get("mode") == 2:
        return None
    weighted = isinstance(given.get("per_sample_weights"), torch.Tensor) or given.get("include_last_offset")
    if weighted or given.get("scale_grad_by_freq") or x.terms.attributes[term] != (0, start // count):
        return None
    size = (count, start // count)
    rows = x.reshape(call.values[1], call.shapes[1], size)
    form = (given.get("mode", 0), given.get("padding_idx", -1), given.get("num_weights"))
    part = call.some(0, 1, attributes=form, out=call.out[:1])
    return replace(part, values=[call.values[0], rows], shapes=[call.shapes[0], size])


@rule("_embedding_bag")
def bag(x: Interpreter, call: Call) -> list[Value] | None:
    """Sums of rows of a table, each sample apart; what is beside them are numbers of the whole list."""
    part = bags(x, call)
    if part is None:
        return None
    rest = x.opaque(replace(call, coupled=[]))[1:]
    return x.apply(Law(fixed("YZ", "aB", "->aZ"), linear=(0,)), part) + rest


@rule("_embedding_bag_backward")
def bag_backward(x: Interpreter, call: Call) -> list[Value] | None:
    """The gradient of the table: a sum over samples."""
    part = bags(x, call)
    return None if part is None else x.apply(Law(fixed("aZ", "aB", "->YZ"), linear=(0,)), part)
