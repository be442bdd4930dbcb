"""Laws of operators: along which axes an operator treats rows apart, in which arguments it is linear, what it sums.

A law is data. Each axis of each tensor argument and of each result has a letter:

* a lower-case letter that arguments share with a result is *mapped*: rows of the result are the operator on those rows;
* a lower-case letter that no result has, for that result, is *summed*: the result is the sum of the operator on rows;
* an upper-case letter is *coupled*: a row of the result may depend on every row;
* a dot stands for an axis of one row that is broadcast.

`linear` are the tensor arguments, by their order among the tensors, in each of which the operator is linear while the
others are held. An operator without a law is an uninterpreted function of whole tensors, which is true of any operator
that is deterministic: its samples are coupled, and no proof needs more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.locations import Location, user_location
from gradproof.shadow.whole.constants import Snap
from gradproof.shadow.whole.terms import ZERO, Combination, Powers, Shape, Terms, exact, frozen, multiplied, plus, times
from gradproof.shadow.whole.values import Moves, Value, part_shape, shape_with, shared

LETTERS = "abcdefghijklmnop"


LOOKUPS = frozenset({"index", "index_select", "index_put", "embedding", "gather", "take", "scatter"})
"""Operators that are given places in a tensor."""


@dataclass(slots=True)
class Call:
    """One call of an operator. `tensors`, `values` and `shapes` are of its tensor arguments, in order."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attributes: tuple[Any, ...]
    tensors: list[torch.Tensor]
    values: list[Value]
    shapes: list[Shape]
    out: list[torch.Tensor | None]
    arguments: tuple[str, ...] = ()
    coupled: list[int] = field(default_factory=list)

    def out_shape(self, at: int = 0) -> Shape:
        """The shape of a result; () where there is none."""
        made = self.out[at]
        return () if made is None else tuple(made.shape)

    def numeric(self) -> bool:
        """Whether sums of the first result are those of numbers: not of booleans, bytes or complex ones."""
        made = self.out[0]
        return made is not None and (made.is_floating_point() or made.dtype in (torch.int32, torch.int64))

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument by its place, or by its name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)


Letters = tuple[list[str], list[str]]
"""The letters of the tensor arguments, and of the results."""


@dataclass(frozen=True, slots=True)
class Law:
    """`letters` of a call; the arguments in which it is linear; what of its other arguments is part of the term.

    `uniform`: of numbers that are one everywhere it makes one. `commutes`: its arguments may change places.
    """

    letters: Callable[[Call], Letters]
    linear: tuple[int, ...] = ()
    attributes: Callable[[Call], tuple[Any, ...]] | None = None
    uniform: bool = False
    commutes: bool = False


def _padded(known: NDArray[Any], template: tuple[Any, ...], ignored: int) -> NDArray[Any] | None:
    """A mask of labels after `constant_pad_nd(labels, widths, value)`; None for a negative width."""
    widths, value = template[1], template[2] if len(template) > 2 else 0
    if any(width < 0 for width in widths):
        return None
    pairs = [(0, 0)] * (known.ndim - len(widths) // 2)
    pairs += [(widths[i], widths[i + 1]) for i in range(len(widths) - 2, -1, -2)]
    counts = value != ignored if isinstance(value, int) else float.fromhex(value[1]) != ignored
    return np.pad(known, pairs, constant_values=counts)


class Interpreter(Moves):
    """Applies laws to the values of a call."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.masks: dict[tuple[int, int], NDArray[Any] | None] = {}
        self.reduced: dict[int, tuple[Combination, str]] = {}
        self.numbers: dict[int, float] = {}
        self.locations: dict[int, Location] = {}
        self.snap: Snap | None = None
        """Reads float constants as the rationals that they stand for, where a run asks for it."""
        self.integers = False
        self.every_label = False
        """Whether every label of a loss counts, as far as is known."""
        self.tallies = False
        """Whether it is noted how many elements each term of a loss stands for."""
        self.seen_counts: list[tuple[int, ...]] = []
        """Whether counts are the numbers of this run, and no unknowns."""
        self.looked: Callable[[torch.Tensor], list[int]] | None = None
        """Reads the numbers of a list of indices, where there are numbers."""

    def exact(self, number: Any) -> Fraction | None:
        """A Python number as the rational that it is, or that it stands for."""
        found = exact(number)
        return found if self.snap is None or found is None or isinstance(number, int) else self.snap.read(number)

    def reduces(self, made: Value, masses: Sequence[Combination], kind: str) -> None:
        """A loss became a sum, or a mean: keep how many elements each of its terms stands for."""
        terms = list(made.parts[0]) if self.tallies and made.shared else []
        each = masses if len(masses) == len(terms) else list(masses[:1]) * len(terms) if len(masses) == 1 else []
        for term, mass in zip(terms, each, strict=False):
            self.reduced.setdefault(self.terms.bare(term)[0], (mass, kind))

    def scales(self, powers: Powers, by: Fraction, tensor: torch.Tensor) -> None:
        """Something is scaled by a scalar of a real run: keep its number, and the line."""
        new = [scalar for scalar, power in powers.items() if power == 1 and scalar not in self.numbers]
        if self.marks and len(new) == 1 and len(powers) == 1:
            with _disable_current_modes():
                self.numbers[new[0]] = float(tensor.detach().flatten()[0]) / float(by)
            self.locations[new[0]] = user_location()

    def counted(self, counts: Sequence[Combination], value: Value, labels: torch.Tensor, ignored: int) -> None:
        """Keep the numbers of the counts of a real run."""
        with _disable_current_modes():
            for at, count in enumerate(counts if self.marks else ()):
                own = rows_of(labels, value, at)
                self.numbers.update({term: float((own != ignored).sum()) for term in count if term != self.terms.one})

    def apply(self, law: Law, call: Call) -> list[Value]:
        """The values of the results."""
        ins, outs = law.letters(call)
        attributes = call.attributes if law.attributes is None else law.attributes(call)
        letter, laid = self._letter(call, ins)
        if letter is None:
            return self._once(law, call, attributes)
        kids = [self._parts(call, at, ins[at], letter, laid) for at in range(len(call.values))]
        count, turns = laid
        made: list[Value] = []
        for at, letters in enumerate(outs):
            whole = call.out_shape(at)
            axis = letters.find(letter)
            small = whole if axis < 0 else shape_with(whole, axis, whole[axis] // count)
            rows = [[kid[i] for kid in kids] for i in range(count)]
            if axis < 0:
                total: Combination = ZERO
                for row in rows:
                    total = plus(total, self._spread(law, call, at, attributes, row, small, laid))
                made.append(shared(self.gathered(total) if count == 1 else total))
            else:
                parts = [self._term(law, call, at, attributes, row, small, laid) for row in rows]
                made.append(Value(tuple(parts), axis, small[axis], turns))
        return made

    def _spread(
        self, law: Law, call: Call, at: int, attributes: tuple[Any, ...],
        kids: list[tuple[Combination, Shape]], shape: Shape, laid: tuple[int, int],
    ) -> Combination:  # fmt: skip
        """The operator on shared arguments: a linear one keeps the summands of its longest linear argument."""
        kids = [
            (self.terms.opened(part), size) if i in law.linear else (part, size) for i, (part, size) in enumerate(kids)
        ]
        longest = max(law.linear, key=lambda i: len(kids[i][0]), default=None)
        if longest is None or len(kids[longest][0]) < 2:
            return self._term(law, call, at, attributes, kids, shape, laid)
        total: Combination = ZERO
        size = kids[longest][1]
        for term, by in kids[longest][0].items():
            each = [*kids[:longest], ({term: by}, size), *kids[longest + 1 :]]
            total = plus(total, self._term(law, call, at, attributes, each, shape, laid))
        return total

    def _letter(self, call: Call, ins: Sequence[str]) -> tuple[str | None, tuple[int, int]]:
        """The letter along which parts lie, with their number and turns; of several the first."""
        for value, letters in zip(call.values, ins, strict=True):
            if not value.shared and letters[value.axis].islower():
                return letters[value.axis], value.layout[1:]
        return None, (1, 1)

    def _parts(
        self, call: Call, at: int, letters: str, letter: str, laid: tuple[int, int]
    ) -> list[tuple[Combination, Shape]]:
        value, shape = call.values[at], call.shapes[at]
        count, turns = laid
        axis = letters.find(letter)
        if axis < 0:
            if not value.shared:
                call.coupled.append(at)
            return [(self.whole(value, shape), shape)] * count
        size = shape_with(shape, axis, shape[axis] // count)
        if value.layout == (axis, count, turns):
            return [(part, size) for part in value.parts]
        if not value.shared:
            call.coupled.append(at)
        whole = self.fitted(self.whole(value, shape), shape)
        return [(part, size) for part in self.split(whole, shape, axis, size[axis], turns)]

    def _once(self, law: Law, call: Call, attributes: tuple[Any, ...]) -> list[Value]:
        """No parts lie along a mapped axis: one term a result, and a linear argument keeps its combination."""
        for at, value in enumerate(call.values):
            if not value.shared:
                call.coupled.append(at)
        kids = [(self.whole(v, s), s) for v, s in zip(call.values, call.shapes, strict=True)]
        return [
            shared(self._spread(law, call, at, attributes, kids, call.out_shape(at), (1, 1)))
            for at in range(len(call.out))
        ]

    def _term(
        self, law: Law, call: Call, at: int, attributes: tuple[Any, ...],
        kids: Sequence[tuple[Combination, Shape]], shape: Shape, laid: tuple[int, int],
    ) -> Combination:  # fmt: skip
        """The operator on one part of each argument: a coefficient times a term."""
        by = Fraction(1)
        powers: Powers = {}
        terms: list[int] = []
        for location, (part, size) in enumerate(kids):
            if location in law.linear:
                if not part:
                    return ZERO
                part = self.terms.factored(part, size)
                ((term, factor),) = part.items()
                term, own = self.terms.bare(term)
                by, powers = by * factor, multiplied(powers, own)
                terms.append(term)
            else:
                terms.append(self.terms.named(part, size))
        if law.commutes:
            terms.sort(key=self.terms.order)
        formless = [self.terms.shapes[term] is None for term in terms]
        if law.uniform and all(formless):
            made = self.terms.make(call.name, (at, attributes), tuple(terms), None)
            return {self.terms.scaled(made, powers): by}
        sizes = tuple(size for (_, size), bare in zip(kids, formless, strict=True) if bare and not law.uniform)
        made = self.terms.make(call.name, (at, attributes, sizes), tuple(terms), shape)
        return {self.terms.scaled(made, powers): by}

    def counting(self, value: Value, shape: Shape, ignored: int, labels: torch.Tensor) -> list[Combination]:
        """For each part, how many labels are not the ignored one: a number, or a scalar where it is not known."""
        size = part_shape(value, shape)
        if self.integers:
            with _disable_current_modes():
                own = [rows_of(labels, value, i) for i in range(len(value.parts))]
                seen = [int((one != ignored).sum()) for one in own]
            self.seen_counts.append(tuple(seen))
            return [times(self.terms.of(self.terms.one), Fraction(number)) for number in seen]
        return [self.count(self.terms.named(part, size), size, ignored) for part in value.parts]

    def count(self, labels: int, size: Shape, ignored: int) -> Combination:
        """How many elements of a term of labels are not the ignored one."""
        seen = self._counts(labels, ignored)
        if seen is not None:
            self.every_label = True
            return times(self.terms.of(self.terms.one), Fraction(int(seen.sum())))
        while self.terms.operators[labels] in ("reshape", "permute"):
            labels = self.terms.kids[labels][0]
        return self.terms.of(self.terms.make("count", (ignored,), (labels,), ()))

    def _counts(self, term: int, ignored: int) -> NDArray[Any] | None:
        """Which elements of a term of labels are not the ignored one, where its leaves say so."""
        key = (term, ignored)
        if key not in self.masks:
            self.masks[key] = self._mask(term, ignored)
        return self.masks[key]

    def _mask(self, term: int, ignored: int) -> NDArray[Any] | None:
        terms = self.terms
        operator, attributes, shape = terms.operators[term], terms.attributes[term], terms.shapes[term]
        if operator in ("data", "draw"):
            low, high = attributes[-1]
            outside = low is not None and not low <= ignored < high
            return np.ones(shape or (), dtype=bool) if outside else None
        if operator not in ("reshape", "permute", "slice", "cat", "constant_pad_nd") or shape is None:
            return None
        kids = [self._counts(kid, ignored) for kid in terms.kids[term]]
        known = [kid for kid in kids if kid is not None]
        if len(known) != len(kids):
            return None
        if operator == "cat":
            return np.concatenate(known, axis=attributes[0])
        if operator == "slice":
            axis, start, count, step = attributes
            return known[0].take(range(start, start + count * step, step), axis=axis)
        if operator == "constant_pad_nd":
            return _padded(known[0], attributes[1], ignored)
        return known[0].transpose(attributes) if operator == "permute" else known[0].reshape(shape)

    def opaque(self, call: Call) -> list[Value]:
        """The results as uninterpreted functions of whole arguments."""
        for at, value in enumerate(call.values):
            if not value.shared:
                call.coupled.append(at)
        kids = []
        for value, shape in zip(call.values, call.shapes, strict=True):
            kids.append(self.terms.named(self.fitted(self.whole(value, shape), shape), shape))
        sizes = tuple(call.shapes[i] for i, kid in enumerate(kids) if self.terms.shapes[kid] is None)
        return [
            shared(
                self.terms.of(self.terms.make(call.name, (at, call.attributes, sizes), tuple(kids), call.out_shape(at)))
            )
            for at in range(len(call.out))
        ]


def rows_of(tensor: torch.Tensor, value: Value, at: int) -> torch.Tensor:
    """A view of the rows of a tensor that a part of its value stands for. An axis of turns stands before the rows."""
    if value.shared:
        return tensor
    shape, each = tensor.shape, value.rows // value.turns
    apart = (*shape[: value.axis], value.turns, -1, *shape[value.axis + 1 :])
    return tensor.view(apart).narrow(value.axis + 1, at * each, each)


def within(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The least whole number of a tensor, and the first above its largest."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or not tensor.numel():
        return (None, None)
    with _disable_current_modes():
        return int(tensor.min()), int(tensor.max()) + 1


# -- Letters of the common forms.


def pointwise(call: Call) -> Letters:
    """Every argument is broadcast to the shape of the result."""
    out = call.out_shape()
    letters = LETTERS[: len(out)]
    ins = []
    for shape in call.shapes:
        own = letters[len(out) - len(shape) :]
        wide = out[len(out) - len(shape) :]
        ins.append("".join(x if size == full else "." for x, size, full in zip(own, shape, wide, strict=True)))
    return ins, [letters] * len(call.out)


def coupled(call: Call) -> Letters:
    """Nothing is mapped."""
    return [LETTERS[: len(s)].upper() for s in call.shapes], [
        LETTERS[: len(call.out_shape(at))].upper() for at in range(len(call.out))
    ]


def broadcast(call: Call) -> Letters:
    """Every argument is broadcast to the shape of the first; the result is a sum over all of it."""
    wide = call.shapes[0]
    letters = LETTERS[: len(wide)]
    ins = []
    for shape in call.shapes:
        pairs = zip(letters[len(wide) - len(shape) :], shape, wide[len(wide) - len(shape) :], strict=True)
        ins.append("".join(x if size == full else "." for x, size, full in pairs))
    return ins, [""]


def fixed(*texts: str) -> Callable[[Call], Letters]:
    """The same letters in each call: `fixed("mk", "kn", "->mn")`."""
    at = next(i for i, text in enumerate(texts) if text.startswith("->"))
    ins, outs = list(texts[:at]), [text.removeprefix("->") for text in texts[at:]]

    def letters(call: Call) -> Letters:
        return ins[: len(call.values)], outs[: len(call.out)]

    return letters


def over(location: int, name: str) -> Callable[[Call], Letters]:
    """Every tensor has one shape; the axis that an argument names is coupled."""

    def letters(call: Call) -> Letters:
        shape = call.shapes[0]
        axis = call.argument(location, name) % max(len(shape), 1)
        own = "".join(LETTERS[i].upper() if i == axis else LETTERS[i] for i in range(len(shape)))
        return [own] * len(call.values), [own] * len(call.out)

    return letters


def along(call: Call) -> Letters:
    """One tensor, of which the axis `dim`, the last by default, is coupled."""
    rank = len(call.shapes[0])
    at = call.arguments.index("dim")
    axis = call.argument(at, "dim", -1) % max(rank, 1)
    own = "".join(x.upper() if i == axis else x for i, x in enumerate(LETTERS[:rank]))
    return [own] * len(call.values), [own] * len(call.out)


def leading(rank: int) -> str:
    """Letters of `rank` axes of which only the first is mapped."""
    return "".join("a" if i == 0 else LETTERS[i].upper() for i in range(rank))


def batched(weights: Sequence[int] = (), summed: Sequence[int] = ()) -> Callable[[Call], Letters]:
    """The first axis of each argument is mapped, but for the arguments `weights`, which have none; `summed` results."""

    def letters(call: Call) -> Letters:
        ins = [
            LETTERS[: len(s)].upper() if i in weights or not s else leading(len(s)) for i, s in enumerate(call.shapes)
        ]
        outs = []
        for at in range(len(call.out)):
            rank = len(call.out_shape(at))
            outs.append(LETTERS[:rank].upper() if at in summed else leading(rank))
        return ins, outs

    return letters


def normalised(call: Call) -> Letters:
    """Layer and RMS norms: the last axes are coupled, those before are mapped; weights have the last axes alone."""
    rank, size = len(call.shapes[0]), len(call.argument(1, "normalized_shape"))
    kept = LETTERS[: rank - size]
    ins = [kept + "Z" * size] + ["Z" * len(s) for s in call.shapes[1:]]
    return ins, [kept + "Z" * (len(call.out_shape(at)) - len(kept)) for at in range(len(call.out))]


def normalised_back(call: Call) -> Letters:
    """Their backward: the gradient of the input is mapped, those of the weights are summed."""
    rank, size = len(call.shapes[0]), len(call.args[2])
    kept = LETTERS[: rank - size]
    ins = [kept + "Z" * size if len(s) == rank else "Z" * len(s) for s in call.shapes]
    outs = [kept + "Z" * size] + ["Z" * len(call.out_shape(at)) for at in range(1, len(call.out))]
    return ins, outs


def reduced(call: Call) -> Letters:
    """A reduction over the axes of its second argument: these are coupled."""
    shape, out = call.shapes[0], call.out_shape()
    if len(call.values) != 1:
        return [LETTERS[: len(s)].upper() for s in call.shapes], [""] * len(call.out)
    dims = reduced_axes(call)
    own = "".join(LETTERS[i].upper() if i in dims else LETTERS[i] for i in range(len(shape)))
    kept = own if len(out) == len(shape) else "".join(x for x in own if x.islower())
    return [own] * len(call.values), [kept] * len(call.out)


def summed(call: Call) -> Letters:
    """A sum over the axes of its second argument: the result has none of their letters."""
    shape, out = call.shapes[0], call.out_shape()
    dims = reduced_axes(call)
    own = LETTERS[: len(shape)]
    left = "".join("." if i in dims else x for i, x in enumerate(own))
    return [own], [left if len(out) == len(shape) else left.replace(".", "")]


def reduced_axes(call: Call) -> set[int]:
    """The axes over which a reduction goes; all of them where its arguments name none."""
    rank = len(call.shapes[0])
    dims = call.argument(call.arguments.index("dim"), "dim") if "dim" in call.arguments else None
    if dims is None or dims == []:
        return set(range(rank))
    return {dim % rank for dim in (dims if isinstance(dims, list | tuple) else [dims])} if rank else set()


# -- The table of laws: operator to law. What is not here, and has no rule, is an uninterpreted function.


def table_rows(call: Call) -> Letters:
    """A lookup: the rows of a table, at each index."""
    own = LETTERS[: len(call.shapes[1])]
    return ["YZ", own], [own + "Z"]


def triangle(call: Call) -> Letters:
    """The last two axes are coupled."""
    rank = len(call.shapes[0])
    own = LETTERS[: rank - 2] + "YZ"
    return [own], [own]


def chosen(call: Call) -> Letters:
    """`gather`: index and result have one shape; the axis that is looked up is coupled, others where sizes agree."""
    axis = call.args[1] % max(len(call.shapes[0]), 1)
    source, index = call.shapes[0], call.shapes[1]
    own = "".join(
        x.upper() if i == axis or a != b else x for i, (x, a, b) in enumerate(zip(LETTERS, source, index, strict=False))
    )
    return [own, own], [own]


def attention(call: Call) -> Letters:
    """Samples are mapped; a mask may be one for all of them."""
    samples = call.shapes[0][0]

    def letters(shape: tuple[int, ...]) -> str:
        if len(shape) < 3 or shape[0] not in (samples, 1):
            return "Z" * len(shape)
        return ("a" if shape[0] == samples else ".") + "Z" * (len(shape) - 1)

    return [letters(s) for s in call.shapes], [letters(call.out_shape(at)) for at in range(len(call.out))]


def trailing(call: Call) -> tuple[object, ...]:
    """The arguments of a group norm without the number of samples."""
    at = call.arguments.index("N")
    return tuple(frozen(arg) for arg in call.args[at + 1 :])


def above(law: Law, *names: str) -> dict[str, Law]:
    """One law for several operators."""
    return dict.fromkeys(names, law)


def turned(call: Call) -> Letters:
    """The axes that are turned round stay whole."""
    rank = len(call.shapes[0])
    axes = {axis % rank for axis in call.args[1]}
    own = "".join(x.upper() if i in axes else x for i, x in enumerate(LETTERS[:rank]))
    return [own], [own]


LAWS: dict[str, Law] = {
    **above(
        Law(pointwise, uniform=True),
        "abs", "acos", "asin", "atan", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil",
        "celu", "clamp", "clamp_max", "clamp_min", "cos", "cosh", "div", "add", "sub", "mul", "elu", "eq",
        "erf", "erfc", "exp", "exp2", "expm1", "floor", "floor_divide", "fmod", "ge", "gelu", "gt",
        "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp",
        "log", "log10", "log1p", "log2", "log_sigmoid_forward", "logical_and", "logical_not", "logical_or",
        "lt", "masked_fill", "maximum", "minimum", "mish", "nan_to_num", "ne", "pow", "prelu",
        "_prelu_kernel", "reciprocal", "relu", "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign",
        "silu", "sin", "sinh", "softplus", "softshrink", "sqrt", "square", "tan", "tanh", "threshold",
        "trunc", "where", "addcmul", "addcdiv", "sgn", "atan2", "xlogy", "logit",
    ),
    **above(
        Law(pointwise, linear=(0,)),
        "gelu_backward", "tanh_backward", "silu_backward", "sigmoid_backward", "threshold_backward", "elu_backward",
        "leaky_relu_backward", "hardtanh_backward", "hardsigmoid_backward", "hardswish_backward", "softplus_backward",
        "log_sigmoid_backward", "mish_backward", "native_dropout_backward", "logit_backward",
    ),
    "mm": Law(fixed("ik", "kj", "->ij"), linear=(0, 1)),
    "bmm": Law(fixed("bik", "bkj", "->bij"), linear=(0, 1)),
    "mv": Law(fixed("ik", "k", "->i"), linear=(0, 1)),
    "dot": Law(fixed("k", "k", "->"), linear=(0, 1)),
    "embedding": Law(table_rows, linear=(0,)),
    **above(Law(over(1, "dim")), "_softmax", "_log_softmax", "_safe_softmax"),
    **above(Law(along), "sort", "topk", "cummax", "cummin", "logcumsumexp"),
    **above(Law(over(1, "dim"), linear=(0,)), "cumsum"),
    **above(Law(over(2, "dim"), linear=(0,)), "_softmax_backward_data", "_log_softmax_backward_data"),
    "_weight_norm_interface_backward": Law(coupled, linear=(0,)),
    "gather": Law(chosen),
    "flip": Law(turned, linear=(0,)),
    **above(
        Law(reduced),
        "amax", "amin", "argmax", "argmin", "all", "any", "var", "std", "var_mean", "std_mean", "logsumexp", "prod",
        "linalg_vector_norm", "norm", "max", "min", "median", "count_nonzero", "sum", "mean",
    ),
    **above(Law(triangle, linear=(0,)), "tril", "triu"),
    **above(Law(normalised), "native_layer_norm", "_fused_rms_norm", "rms_norm"),
    "native_layer_norm_backward": Law(normalised_back, linear=(0,)),
    "native_group_norm": Law(batched(weights=(1, 2)), attributes=trailing),
    "native_group_norm_backward": Law(batched(weights=(4,), summed=(1, 2)), linear=(0,), attributes=trailing),
    **above(Law(batched(weights=(1, 2))), "convolution"),
    "convolution_backward": Law(batched(weights=(2,), summed=(1, 2)), linear=(0,)),
    **above(
        Law(batched()),
        "max_pool2d_with_indices", "avg_pool2d", "avg_pool1d", "_adaptive_avg_pool2d", "upsample_nearest2d",
        "upsample_bilinear2d", "pixel_shuffle", "pixel_unshuffle", "adaptive_max_pool2d",
    ),
    **above(
        Law(batched(), linear=(0,)),
        "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
    ),
    "_scaled_dot_product_flash_attention_for_cpu": Law(attention),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Law(attention, linear=(0,)),
}  # fmt: skip
"""Samples are mapped over axes that these leave in lower case. Source: the definitions in torch's own documentation."""
