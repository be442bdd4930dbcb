"""Rounding: an enclosure of every value, and a bound on how far the machine's value may lie from it.

`low <= exact value <= high`, and `|machine's value - exact value| <= err`, elementwise, for every leaf in its range
(`Radius`) that is a number of its format.

One operation costs u |result| and the underflow unit. A sum of m terms costs (m - 1) u sum |x_i| in every order of
summation, an inner product of n terms n u sum |x_i y_i| with and without fused multiply-add; neither needs a factor
1 / (1 - n u) under rounding to nearest (Rump, "Error estimation of floating-point summation and dot product", BIT 52,
2012; Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J. Matrix Anal.
Appl. 34, 2013). u is that of the operator's narrowest output. u of the 16-bit formats carries 2 u of fp32 for kernels
that round twice.

The bookkeeping is in float64 and rounded outward. What has no bound (a divisor that may be zero, an overflow) is an
unknown element; storing one raises NoBound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.shadow.locations import Location
from gradproof.shadow.ops.schema import Spec, spec_of

FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""From the widest to the narrowest. Truth values are numbers of every format: theirs is torch.bool."""
SLACK = 1 + 2.0**-47
"""Outward inflation: covers 32 roundings of float64 on numbers of one sign."""
TINY = 2.0**-1000
Key = tuple[str, Location]
Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)
RULES: dict[str, Rule] = {}
"""What an operator computes, by its name: on a domain and the operator's arguments."""


class NoBound(Exception):
    """No bound is known for a value: why. Never a verdict."""


def rule(*names: str) -> Callable[[F], F]:
    """The function is the rule of these operators."""

    def register(function: F) -> F:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Box(Tensor):
    """An array of enclosures, with which torch's operators compute by their rules.

    `parts`: the low end, the high end and the error of each element. `format`: the machine's values are numbers of it.
    Truth values are 0 and 1. The error of one that the machine must see so is 0.
    """

    domain: Domain
    parts: tuple[Tensor, Tensor, Tensor]
    format: torch.dtype
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Box], domain: Domain, parts: Sequence[Tensor], format: torch.dtype) -> Box:
        """An array of the shape of its parts."""
        kind = torch.bool if format is torch.bool else torch.float64
        found: Any = Tensor._make_wrapper_subclass(cls, parts[0].shape, dtype=kind)
        found.domain, found.parts, found.format = domain, tuple(parts), format
        return cast("Box", found)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore
        domain = next(x.domain for x in tree_leaves((args, kwargs)) if isinstance(x, Box))
        return domain.operate(func, args, kwargs or {})

    @property
    def size_of(self) -> Tensor:
        """The largest magnitude of the exact value."""
        return torch.maximum(self.parts[0].abs(), self.parts[1].abs())

    @property
    def sharp(self) -> Tensor:
        """Where the value is known, and the machine has it."""
        low, high, err = self.parts
        return (low == high) & (err == 0)

    @property
    def none(self) -> Tensor:
        """Where machine and exact value are zero for certain."""
        return self.sharp & (self.parts[0] == 0)

    def around(self, numbers: Tensor) -> bool:
        """Whether numbers of the machine lie in their enclosures."""
        low, high, err = self.parts
        return bool(((numbers >= low - err) & (numbers <= high + err)).all())


@dataclass(frozen=True, slots=True)
class Radius:
    """How far a leaf may lie from its recorded value: `relative`, `absolute` (of it), or in [-`box`, `box`]."""

    relative: float = 0.0
    absolute: float = 0.0
    box: float | None = None

    def interval(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Lowest and highest number of every element, rounded outward when it is not the recorded one."""
        if self.box is not None:
            return torch.full_like(value, -abs(self.box)), torch.full_like(value, abs(self.box))
        reach = (value.abs() * abs(self.relative) + abs(self.absolute)) * SLACK
        return torch.where(reach > 0, below(value - reach), value), torch.where(reach > 0, above(value + reach), value)


class Domain:
    """The domain. `charged` totals what each operator and line of the user's code added; `silent` ones add nothing.

    `ranges`: of leaves, by their name or kind. `results`: what the machine's operator made. `reason`: why an element
    is unknown.
    """

    scale = 1.0
    """A factor on every charge, for the test that a bound which is too small is found out."""

    def __init__(self, ranges: Mapping[str, Radius] | None = None, silent: frozenset[Key] = frozenset()) -> None:
        self.ranges, self.silent = ranges or {}, silent
        self.charged: dict[Key, float] = {}
        self.begin(("", Location("", 0)), ())

    def begin(self, key: Key, formats: Sequence[torch.dtype], results: Sequence[Any] = ()) -> None:
        """Before an operator with results of these formats: its roundings are those of the narrowest.

        Raises NoBound for a floating-point format that is not known here.
        """
        self.key, self.reason, self.results = key, "", results
        unknown = next((f for f in formats if f not in FORMATS), None)
        if unknown is not None:
            raise NoBound(f"no rounding bound for {unknown}")
        self.set_format(max(formats, key=FORMATS.index, default=torch.float64))

    def set_format(self, format: torch.dtype) -> None:
        """The format of the next roundings."""
        made = torch.finfo(format)
        self.format, self.largest, self.normal = format, made.max, made.tiny
        scale = 0.0 if self.key in self.silent else self.scale
        self.u = (made.eps / 2 + (2.0**-23 if made.bits < 32 else 0.0)) * scale
        self.eta = max(made.tiny * made.eps / 2, 5e-324) * scale

    def rule(self, spec: Spec) -> Rule | None:
        """The rule of an operator."""
        name = spec.function.removeprefix("prims.")
        single = RULES.get(name.removeprefix("_foreach_"))
        return RULES.get(name) or (each(single) if single and name.startswith("_foreach_") else None)

    def operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator on enclosures. Raises NoBound where it has no rule."""
        spec = spec_of(func)
        if spec is None or spec.written:
            raise NoBound(f"no bound is known for {func}")
        if (found := self.rule(spec)) is not None:
            return found(self, *args, **kwargs)
        if spec.by_shape:
            return func(*tree_map(lambda x: x.parts[0] if isinstance(x, Box) else x, args), **kwargs)
        if spec.composite:
            return func.decompose(*args, **kwargs)
        if not spec.view:
            raise NoBound(f"no bound is known for {func}")
        return moved(func)(self, *args, **kwargs)

    # Making and storing

    def lift(self, x: Any) -> Box:
        """An enclosure as it is. A constant is exact, or charged one rounding where it is no number of the format."""
        if isinstance(x, Box):
            return x
        given = torch.as_tensor(x if isinstance(x, Tensor) else np.asarray(x), device="cpu")
        value = given.to(torch.float64)
        if given.dtype is torch.bool:
            return Box(self, (value, value, torch.zeros_like(value)), torch.bool)
        exact = (value.to(self.format).to(torch.float64) == value) | ~value.isfinite()
        return self.made(value, value, self.lost(torch.where(exact, 0.0, value.abs())))

    def leaf(self, kind: str, name: str, format: torch.dtype, value: Tensor) -> Box:
        """Every number of the leaf's format in its range; no error of its own."""
        low, high = self.ranges.get(name, self.ranges.get(kind, Radius())).interval(value)
        return Box(self, (low, high, torch.zeros_like(value)), format)

    def holds(self, x: Box) -> bool:
        """Whether the machine's values are numbers of the format."""
        return fits(x.format, self.format)

    def stored(self, x: Box, format: torch.dtype) -> Box:
        """The value as stored: one rounding, unless the format holds it already.

        Raises NoBound where an element is unknown, or may overflow.
        """
        if format not in FORMATS:
            raise NoBound(f"no rounding bound for {format}")
        (low, high, err), inner = x.parts, self.format
        self.set_format(format)
        free = infinite(low, high) | self.holds(x)
        out = self.made(low, high, err + self.lost(torch.where(free, 0.0, x.size_of + err)))
        self.set_format(inner)
        if not bool(out.parts[2].isfinite().all()):
            raise NoBound(self.reason or "no bound is known for an element")
        return out

    def lost(self, size: Tensor, times: float | Tensor = 1.0) -> Tensor:
        """`times` roundings of results of at most this size, noted for the report."""
        lost = torch.where(size > 0, times * (self.u * size + self.eta), 0.0) * SLACK
        self.charge(lost)
        return lost

    def charge(self, lost: Tensor) -> None:
        """Note what the operator added, for the report."""
        self.charged[self.key] = self.charged.get(self.key, 0.0) + float(lost[lost.isfinite()].sum())

    def made(self, low: Tensor, high: Tensor, err: Tensor) -> Box:
        """A result whose roundings were charged. Unknown is what is no number, or overflows the operator's format."""
        constant = infinite(low, high)
        err = torch.where(constant, 0.0, torch.where(err > 0, err * SLACK + TINY, err))
        size = torch.maximum(low.abs(), high.abs()) + err
        over = ~constant & (size > self.largest)
        if bool(over.any()):
            self.overflows()
        bad = low.isnan() | high.isnan() | err.isnan() | over | (~constant & ~size.isfinite())
        parts = (torch.where(bad, end, x) for end, x in ((-torch.inf, low), (torch.inf, high), (torch.inf, err)))
        return Box(self, [*parts], self.format)

    def overflows(self) -> None:
        """Why an element is unknown."""
        self.reason = self.reason or f"a value may overflow {str(self.format).removeprefix('torch.')}"


def moved(function: Any) -> Rule:
    """The rule of an operator that moves numbers: it runs on each component of its arguments."""

    def run(d: Domain, *args: Any, **kwargs: Any) -> Any:
        def lifted(x: Any) -> Any:
            """Constants among what is moved, as enclosures; whole numbers by themselves are indices."""
            if isinstance(x, list | tuple):
                several = any(isinstance(one, Box) for one in x)
                return [d.lift(one) if several and isinstance(one, Tensor) else lifted(one) for one in x]
            return d.lift(x) if isinstance(x, Tensor) and x.is_floating_point() else x

        given = [lifted(x) for x in args], {name: lifted(x) for name, x in kwargs.items()}
        format = common_format(*(x for x in tree_leaves(given) if isinstance(x, Box)))
        made = []
        for at in range(3):
            own, named = tree_map(lambda x, at=at: x.parts[at].contiguous() if isinstance(x, Box) else x, given)
            made.append(function(*own, **named))
        one = isinstance(made[0], Tensor)
        return Box(d, made, format) if one else [Box(d, parts, format) for parts in zip(*made, strict=True)]

    return run


def each(single: Rule) -> Rule:
    """The rule of an operator on lists of tensors, which is the same operator on each."""

    def run(d: Domain, first: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        def own(arg: Any, at: int) -> Any:
            by_element = isinstance(arg, list | tuple) or (isinstance(arg, Box) and arg.shape == (len(first),))
            return arg[at] if by_element else arg

        return [
            single(d, one, *(own(a, at) for a in args), **{name: own(v, at) for name, v in kwargs.items()})
            for at, one in enumerate(first)
        ]

    return run


def above(x: Tensor) -> Tensor:
    """The next float64; infinities stay."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def below(x: Tensor) -> Tensor:
    """The float64 before; infinities stay."""
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def infinite(low: Tensor, high: Tensor) -> Tensor:
    """Where a value is infinite for certain, as the logit of a masked position is."""
    return (low == high) & low.isinf()


def fits(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether every number of a format is one of another."""
    return torch.promote_types(one, other) is other


def common_format(*boxes: Box) -> torch.dtype:
    """A format that holds the values of all."""
    return reduce(torch.promote_types, [box.format for box in boxes], torch.bool)
