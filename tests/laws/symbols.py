"""Tensors of polynomials: torch runs an operator on them, and the result says what it computes for all real arguments.

What torch decomposes is decomposed. Movements are made by torch with the numbers of elements. Where an operator is
linear in all its arguments at once, and the shares are known numbers (a pool, an interpolation), they are read from the
kernel at unit vectors. What is left has a definition in `definitions`. Integers have their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._decomp import decomposition_table

from tests.laws.polynomials import ELEMENTWISE, ONE, OPAQUE, Function, Polynomial, add, atom, div, frozen, mul, number


class Unsupported(Exception):
    """An operator that has neither a decomposition nor a definition."""


Array = NDArray[Any]


class Symbols(torch.Tensor):
    """A tensor of polynomials, in `array`."""

    array: Array
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[Symbols], array: Array, dtype: torch.dtype = torch.float64) -> Symbols:
        made: Symbols = torch.Tensor._make_wrapper_subclass(cls, array.shape, dtype=dtype)  # type: ignore[attr-defined]
        made.array = array
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Symbols({self.array.shape})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return applied(func, args, kwargs or {})


def variables(tensor: torch.Tensor, name: str) -> Symbols:
    """A variable for each element; one that is 0 or 1 for a truth value."""
    kind = "mask" if tensor.dtype is torch.bool else "variable"
    made = np.empty(tensor.numel(), dtype=object)
    made[:] = [atom(kind, name, i) for i in range(tensor.numel())]
    return Symbols(made.reshape(tuple(tensor.shape)), tensor.dtype)


def array_of(x: Any) -> Array:
    """The polynomials of a tensor, or of a number."""
    if isinstance(x, Symbols):
        return x.array
    held = x.detach().flatten().tolist() if isinstance(x, torch.Tensor) else [x]
    made = np.empty(len(held), dtype=object)
    made[:] = [number(one) for one in held]
    return made.reshape(tuple(x.shape)) if isinstance(x, torch.Tensor) else made.reshape(())


def applied(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator on tensors of polynomials."""
    space, name = str(func).split(".")[:2]
    if func in DEFINITIONS:
        return DEFINITIONS[func](*args, **kwargs)
    if name in SHAPES:
        return func(*[_walk(a, lambda t: torch.zeros(t.shape, dtype=t.dtype)) for a in args], **kwargs)
    if name in MOVEMENTS and not ("index_put" in name and (args[3:4] or [kwargs.get("accumulate")])[0]):
        return moved(func, args, kwargs)
    if name in SUMS:
        return summed(func, args, kwargs)
    if name in RANKED:
        return ranked(func, name, args, kwargs)
    if func in decomposition_table:
        return decomposition_table[func](*args, **kwargs)
    if space == "prims" and name in ELEMENTWISE:
        return elementwise(ELEMENTWISE[name], args, _type_of(func, args))
    if space == "prims" and name in OPAQUE:
        return elementwise(lambda *of: atom(name, *map(frozen, of)), args, _type_of(func, args))
    if space == "prims" and name in REDUCED:
        return reduced(REDUCED[name], *args, **kwargs)
    made = func.decompose(*args, **kwargs)
    if made is NotImplemented:
        raise Unsupported(f"torch does not decompose {space}.{name}")
    return made


def _type_of(func: Any, args: Any) -> torch.dtype:
    name = str(func).split(".")[1]
    if name in ("gt", "lt", "ge", "le", "eq", "ne", "isnan", "isinf", "signbit"):
        return torch.bool
    kinds = [a.dtype for a in args if isinstance(a, torch.Tensor)]
    return kinds[-1]


def elementwise(function: Function, args: Sequence[Any], dtype: torch.dtype) -> Symbols:
    """A function of each element."""
    arrays = np.broadcast_arrays(*map(array_of, args))
    made = np.empty(arrays[0].size, dtype=object)
    made[:] = [function(*of) for of in zip(*(a.ravel() for a in arrays), strict=True)]
    return Symbols(made.reshape(arrays[0].shape), dtype)


def _walk(value: Any, change: Function) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_walk(part, change) for part in value] if isinstance(value, list | tuple) else value


DEFINITIONS: dict[Any, Function] = {}
"""Operator to what it computes, in operators of torch."""
SHAPES = ("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full", "empty_strided")
"""Operators that use the shape of a tensor alone."""
MOVEMENTS = frozenset({
    "view", "_unsafe_view", "as_strided", "transpose", "broadcast_in_dim", "collapse_view", "split_dim",
    "squeeze", "rev", "cat", "index", "gather", "select", "slice", "expand", "scatter", "index_put", "clone",
    "detach", "view_of", "unbind", "permute", "detach_copy", "constant_pad_nd", "unsqueeze", "split",
    "split_with_sizes", "t", "alias", "flip", "pixel_shuffle", "pixel_unshuffle", "slice_scatter",
    "select_scatter", "tril", "triu", "slice_backward", "select_backward", "_index_put_impl", "lift",
    "lift_fresh",
})  # fmt: skip
"""Operators that put elements elsewhere: torch itself moves their numbers."""


def moved(func: Any, args: Any, kwargs: Any) -> Any:
    """A movement: element numbers are moved, and the elements follow them. A number that is put in counts from -1."""
    flat: list[Polynomial] = [{}]

    def numbered(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, Symbols) and not tensor.is_floating_point():
            return tensor
        start = len(flat)
        flat.extend(array_of(tensor).ravel())
        return torch.arange(start, len(flat)).reshape(tuple(tensor.shape))

    kinds = [t.dtype for t in _flat((args, kwargs)) if isinstance(t, Symbols)]
    own = [_walk(a, numbered) for a in args]
    name = str(func).split(".")[1]
    if (
        name in ("constant_pad_nd", "scatter")
        and isinstance(own[-1], float | int)
        and len(own) > 2 + (name == "scatter")
    ):
        flat.append(number(own[-1]))
        own[-1] = len(flat) - 1
    made = func(*own, **{key: _walk(v, numbered) for key, v in kwargs.items()})
    results = [_looked(flat, one, kinds[0]) for one in (made if isinstance(made, list | tuple) else [made])]
    return results if isinstance(made, list | tuple) else results[0]


def _looked(flat: list[Polynomial], numbers: torch.Tensor, dtype: torch.dtype) -> Symbols:
    made = np.empty(numbers.numel(), dtype=object)
    made[:] = [flat[i] for i in numbers.flatten().tolist()]
    return Symbols(made.reshape(tuple(numbers.shape)), dtype)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [t for part in parts for t in _flat(part)]


SUMS = frozenset({
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward", "avg_pool3d",
    "avg_pool3d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward", "upsample_nearest3d",
    "upsample_nearest3d_backward",
    "index_put", "_index_put_impl", "_unsafe_index_put", "scatter_add", "avg_pool1d", "avg_pool2d",
    "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_linear1d_backward",
    "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", })  # fmt: skip
"""Operators that are linear in all their real arguments at once: each result is a sum of known shares."""
SHARES_OF = {
    **{f"{kind}_pool{rank}d_backward": (0,) for kind in ("avg", "_adaptive_avg") for rank in (2, 3)},
    **{f"replication_pad{rank}d_backward": (0,) for rank in (1, 2, 3)},
}
"""The arguments of which the numbers count; others give a shape alone."""


def summed(func: Any, args: Any, kwargs: Any) -> Symbols:
    """A linear operator, its shares read from the kernel at unit vectors."""
    name = str(func).split(".")[1]
    real = [t for t in _flat((args, kwargs)) if t.is_floating_point()]
    used = [real[i] for i in SHARES_OF.get(name, range(len(real)))]
    inputs = [p for t in used for p in array_of(t).ravel()]

    key = (
        func,
        str([_walk(a, lambda t: (list(t.shape), t if not t.is_floating_point() else 0)) for a in args]),
        str(kwargs),
    )
    if key not in COLUMNS:
        COLUMNS[key] = shares(func, args, kwargs, [id(t) for t in used])
    shape, columns = COLUMNS[key]
    made = np.array([{} for _ in range(math.prod(shape))], dtype=object)
    for p, column in zip(inputs, columns, strict=True):
        for i, by in column:
            made[i] = add(made[i], mul(number(by), p))
    return Symbols(made.reshape(shape))


COLUMNS: dict[Any, tuple[tuple[int, ...], list[list[tuple[int, float]]]]] = {}
"""What `shares` found: for each element of the arguments, the elements of the result with its share of them."""


def shares(func: Any, args: Any, kwargs: Any, used: list[int]) -> tuple[tuple[int, ...], list[list[tuple[int, float]]]]:
    """The kernel at nought, and at each unit vector of the arguments whose numbers count."""

    def called(unit: torch.Tensor | None, at: int = 0) -> torch.Tensor:
        def plain(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            made = torch.zeros(tensor.shape, dtype=torch.float64)
            if tensor is unit:
                made.view(-1)[at] = 1
            return made

        return torch.as_tensor(func(*[_walk(a, plain) for a in args], **kwargs))

    nought = called(None)
    if bool(nought.any()):
        raise Unsupported(f"{func} is not nought where its arguments are")
    columns = []
    for tensor in (t for t in _flat((args, kwargs)) if id(t) in used):
        for at in range(tensor.numel()):
            column = called(tensor, at).flatten()
            columns.append([(i, float(column[i])) for i in column.nonzero().flatten().tolist()])
    return tuple(nought.shape), columns


# -- Reductions, and functions of a whole row.


def reduced(function: Function, x: Any, dims: Sequence[int], *rest: Any, **named: Any) -> Symbols:
    """A function of the elements along some axes."""
    array = array_of(x)
    dims = (
        list(range(array.ndim)) if dims is None else sorted(d % max(array.ndim, 1) for d in dims) if array.ndim else []
    )
    kept = [d for d in range(array.ndim) if d not in dims]
    rows = array.transpose(*kept, *dims).reshape([array.shape[d] for d in kept] + [-1])
    made = np.empty(rows.shape[:-1], dtype=object)
    for at in np.ndindex(*made.shape):
        made[at] = function(list(rows[at]), *rest, **named)
    return Symbols(made, x.dtype)


def total(row: Iterable[Polynomial], **_: Any) -> Polynomial:
    """A sum."""
    found: Polynomial = {}
    for p in row:
        found = add(found, p)
    return found


def product(row: Iterable[Polynomial], **_: Any) -> Polynomial:
    """A product."""
    found = ONE
    for p in row:
        found = mul(found, p)
    return found


def variance(row: list[Polynomial], correction: float = 1.0, **_: Any) -> Polynomial:
    """The mean square of the distances from the mean."""
    mean = div(total(row), number(len(row)))
    squares = [mul(d, d) for d in (add(p, mean, -1) for p in row)]
    return div(total(squares), number(len(row) - correction))


REDUCED: dict[str, Function] = {
    "sum": total, "prod": product, "var": variance,
    "amax": lambda row, **_: atom("amax", tuple(map(frozen, row))),
    "amin": lambda row, **_: atom("amin", tuple(map(frozen, row))),
}  # fmt: skip
RANKED = ("sort", "topk", "cummax", "cummin", "logcumsumexp", "median", "max", "min", "argmax", "argmin")
"""Functions of a whole row, of which nothing more is used: which axis they go over is part of their definition."""


def ranked(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A function of a row: element k of a result is an atom of the whole row."""
    array = array_of(args[0])
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.get("dim", -1 if name in ("sort", "topk") else None)
    if dim is None or not array.ndim:
        array, dim = array.reshape(-1), 0
        whole = True
    else:
        whole = False
    rows = np.moveaxis(array, dim, -1)
    rest = tuple(sorted((k, v) for k, v in given.items() if k not in ("self", "dim", "keepdim")))
    sample = func(torch.zeros(tuple(args[0].shape), dtype=torch.float64), *args[1:], **kwargs)
    results = list(sample) if isinstance(sample, list | tuple) else [sample]
    found = []
    for at, like in enumerate(results):
        long = like.numel() // max(math.prod(rows.shape[:-1]), 1)
        made = np.empty((*rows.shape[:-1], long), dtype=object)
        for row in np.ndindex(*rows.shape[:-1]):
            for k in range(long):
                made[(*row, k)] = atom(name, at, k, rest, tuple(map(frozen, rows[row])))
        shaped = made if whole else np.moveaxis(made, -1, dim)
        found.append(Symbols(shaped.reshape(tuple(like.shape)), like.dtype))
    return found if isinstance(sample, list | tuple) else found[0]
