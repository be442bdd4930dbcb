"""The laws of the checker of certificates: what an operator makes of samples, written from torch's documentation.

A law gives each axis of arguments and results a letter. Samples may lie along an axis with a small letter: then the
operator does the same to the rows of each. A result without that letter is the sum over the samples. A dot is all axes
without a letter of their own, and a bar is those too, where the ones that an argument names are large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fractions import Fraction
from math import isfinite, prod
from string import ascii_lowercase
from typing import Any, NamedTuple

NOBODY, SEVERAL = -1, -2
TENSOR = re.compile(r'\{"tensor": (\d+)\}')
"""A tensor among arguments, in JSON."""
Shape = tuple[int, ...]
Items = dict[tuple[int, int], Fraction]
"""Term and sample to coefficient."""


class Unfollowed(Exception):
    """A value that no law gives, and why."""


class Contents(NamedTuple):
    """What a tensor holds: a sum of terms, each of one sample, of none or of several, all times the term `factor`.

    Where there is an `axis`, the samples lie along it in order, as many rows each, with one term and one coefficient.
    """

    items: Items
    axis: int = -1
    factor: int = 0

    @property
    def owned(self) -> bool:
        """Whether samples are in it."""
        return self.factor != 0 or any(owner != NOBODY for _, owner in self.items)

    @property
    def owners(self) -> list[int]:
        """The samples, in order."""
        return [owner for _, owner in self.items]

    def times(self, by: Fraction) -> Contents:
        """The same, times a number."""
        return self._replace(items={key: own * by for key, own in self.items.items()}) if by else ZERO


ZERO = Contents({})


class OperatorCall(NamedTuple):
    """An operator with what it was given, by name. `outs`: the shapes of its results."""

    name: str
    values: list[Contents]
    shapes: list[Shape]
    args: dict[str, Any]
    outs: list[Shape]


class TensorRecord(NamedTuple):
    """A tensor: where it lies in its storage, in elements."""

    storage: int
    offset: int
    shape: Shape
    stride: Shape
    dtype: str

    @property
    def end(self) -> int:
        """The element after the last."""
        sizes = zip(self.shape, self.stride, strict=True)
        return self.offset + (0 if 0 in self.shape else 1 + sum((n - 1) * by for n, by in sizes))

    @property
    def dense(self) -> bool:
        """Whether it has every element from its first to its last, once."""
        rows = sorted((by, n) for n, by in zip(self.shape, self.stride, strict=True) if n != 1)
        return all(by == prod(n for _, n in rows[:at]) for at, (by, _) in enumerate(rows))

    def inside(self, whole: TensorRecord) -> bool:
        """Whether its elements lie between the first and the last of another tensor."""
        return whole.offset <= self.offset and self.end <= whole.end


class SampleLaw(NamedTuple):
    """A law. `linear`: the arguments in each of which the operator is linear by itself; `joint`: in all together.

    `off`: the name of an argument that has to be false or 0: it counts words over samples, or drops some attention.
    """

    text: str
    linear: tuple[int, ...] = ()
    joint: bool = False
    off: str = ""

    def letters(self, c: OperatorCall) -> tuple[list[str], list[str]]:
        """The letters of the axes of arguments and results. Shorter shapes are right-aligned."""
        rank, dims = max(map(len, (*c.shapes, *c.outs)), default=0), c.args.get("dim")
        large = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank)) if rank}
        found, sizes = list[list[str]](), dict[str, int]()
        for side, shapes in zip(self.text.split("->"), (c.shapes, c.outs), strict=True):
            own = side.split(",")
            found.append([])
            for text, shape in zip(own + own[-1:] * len(shapes), shapes, strict=False):
                lead = ascii_lowercase[: max(len(shape) - len(text) + 1, 0)][::-1]
                if text == "|":
                    kept = [at for at in range(rank) if len(shape) == rank or at not in large]
                    lead = "".join("X" if at in large else ascii_lowercase[rank - 1 - at] for at in kept)
                text = lead + text[1:] if text[0] in ".|" else text
                found[-1].append(text[max(len(text) - len(shape), 0) :])
                wide = [(x, n) for x, n in zip(found[-1][-1], shape, strict=False) if x not in "X1" and n != 1]
                if len(text) < len(shape) or any(sizes.setdefault(x, n) != n for x, n in wide):
                    raise Unfollowed(f"operator {c.name} was called with shapes that its law does not know")
        return found[0], found[1]


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
TABLE = {
    "relu gelu silu tanh sigmoid exp log sqrt rsqrt reciprocal pow abs sign sin cos clamp clamp_min where masked_fill "
    "eq ne lt le gt ge logical_not leaky_relu elu softplus mse_loss smooth_l1_loss": SampleLaw(".->."),
    "threshold_backward gelu_backward silu_backward tanh_backward sigmoid_backward leaky_relu_backward elu_backward "
    "softplus_backward mse_loss_backward smooth_l1_loss_backward div neg": SampleLaw(".->.", (0,)),
    "mul": SampleLaw(".->.", (0, 1)),
    "add sub": SampleLaw(".->.", joint=True),
    "cat stack": SampleLaw("|->|", joint=True),
    "_softmax _log_softmax": SampleLaw("|->|"),
    "_softmax_backward_data _log_softmax_backward_data select_backward slice_backward": SampleLaw("|->|", (0,)),
    "sum mean": SampleLaw(".->|", (0,)),
    "mm bmm": SampleLaw(".nk,.km->.nm", (0, 1)),
    "addmm": SampleLaw("nm,nK,Km->nm"),
    "native_layer_norm": SampleLaw(".N,N->.N,.1"),
    "native_layer_norm_backward": SampleLaw(".N,.N,.1,.1,N->.N,N", (0,)),
    "embedding": SampleLaw("VD,.->.D"),
    "embedding_dense_backward": SampleLaw(".D,.->VD", (0,), off="scale_grad_by_freq"),
    "nll_loss_forward": SampleLaw("nC,n->n"),
    "nll_loss_backward": SampleLaw("n,nC,n->nC", (0,)),
    FLASH: SampleLaw("abXY,abXY,abXY,1111->abXY,abX", off="dropout_p"),
    f"{FLASH}_backward": SampleLaw("abXY,abXY,abXY,abXY,abXY,abX,1111->abXY", (0,), off="dropout_p"),
}
LAWS = {name: law for names, law in TABLE.items() for name in names.split()}
SAME = frozenset({"clone", "_to_copy", "lift_fresh", "copy"})
FILLED: dict[str, Any] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("full", "full_like", "new_full"), "fill_value"),
    **{"fill": "value", "scalar_tensor": "s"},
}
"""The number that fills the result, or the name of the argument that holds it."""


class Laws:
    """Terms, each once, and what operators make of them. A term of a sample names no sample.

    `sums`: the sums over samples of which a term is a function. `traits`: of labels the least that they can be, and
    whether the loss of a sample was summed up, or averaged, over samples. `scalars`: what scaled gradients.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self.sums: dict[int, Contents] = {}
        self.traits: dict[int, Any] = {}
        self.scalars: set[int] = set()
        self.one = self.make("one")

    def make(self, name: str, attributes: Any = "", kids: Iterable[int] = (), shape: Shape = ()) -> int:
        """The number of a term."""
        key = (name, attributes, tuple(kids), shape)
        if key not in self.known:
            self.known[key] = len(self.keys)
            self.keys.append(key)
            if name in ("view", "stack") and key[2][0] in self.traits:
                self.traits[self.known[key]] = self.traits[key[2][0]]
        return self.known[key]

    def leaf(self, name: str, attributes: Any, shape: Shape) -> Contents:
        """A tensor of no sample that no operator made."""
        return Contents({(self.make(name, attributes, (), shape), NOBODY): Fraction(1)})

    def number(self, by: Any) -> Contents:
        """One number everywhere. Raises Unfollowed for what is none, or infinite."""
        if not isinstance(by, int | float | Fraction) or not isfinite(by):
            raise Unfollowed("a number is not known")
        return Contents({(self.one, NOBODY): Fraction(by)}) if by else ZERO

    def plain(self, value: Contents) -> Fraction | None:
        """The number that a value is everywhere, or None."""
        known = not value.factor and all(key == (self.one, NOBODY) for key in value.items)
        return next(iter(value.items.values()), Fraction(0)) if known else None

    def named(self, value: Contents, shape: Shape) -> int:
        """One term for a sum."""
        rows = sorted(value.items.items())
        ((term, owner), by), *more = rows or [((self.one, NOBODY), Fraction(0))]
        if term != self.one and owner == NOBODY and by == 1 and not more and not value.factor:
            return term
        kids = [*(term for (term, _), _ in rows), value.factor]
        made = self.make("sum", tuple((owner, str(by)) for (_, owner), by in rows), kids, shape)
        if value.owned:
            self.sums[made] = value
        return made

    def below(self, terms: Iterable[int]) -> tuple[set[Any], list[Contents]]:
        """The leaves, and the sums over samples, that terms are functions of."""
        stack, seen = list(terms), set[int]()
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                stack += self.keys[term][2]
        return {self.keys[term][:2] for term in seen}, [self.sums[term] for term in sorted(seen & self.sums.keys())]

    def result(self, c: OperatorCall) -> list[Contents]:
        """The values of the results of an operator. Raises Unfollowed."""
        law, form, plain = LAWS.get(c.name), TENSOR.sub("[]", json.dumps(c.args)), None
        letters = ([], []) if law is None else law.letters(c)
        if c.name in FILLED:
            plain = [self.number(c.args.get(FILLED[c.name], FILLED[c.name]))]
        elif c.name in SAME and (c.shapes == c.outs or self.plain(c.values[0]) is not None):
            plain = c.values
        elif c.name == "stack":
            plain = self.stacked(c)
        elif c.name in ("add", "sub", "mul", "div"):
            other = [self.number([*c.args.values()][1])] if len(c.values) == 1 else []
            both = c._replace(values=[*c.values, *other], shapes=[*c.shapes, *[()] * len(other)])
            plain = self.added(both) if c.name in ("add", "sub") else self.multiplied(both)
        if plain is not None:
            return plain
        if any(value.axis >= 0 for value in c.values):
            if law is None:
                raise Unfollowed(f"operator {c.name} has no law in the checker")
            return self.applied(c, law, form, *letters)
        owned = [at for at, value in enumerate(c.values) if value.owned]
        put = owned[0] if len(owned) == 1 and law is not None and owned[0] in law.linear else -1
        value = c.values[put] if put >= 0 else Contents({(self.one, SEVERAL if owned else NOBODY): Fraction(1)})
        kids = [self.named(*one) for at, one in enumerate(zip(c.values, c.shapes, strict=True)) if at != put]
        made = []
        for at, shape in enumerate(c.outs):
            key = (c.name, (at, put, form, *c.shapes))
            items = {(self.make(*key, [term, *kids], shape), owner): by for (term, owner), by in value.items.items()}
            made.append(value._replace(items=items))
        return made

    def applied(self, c: OperatorCall, law: SampleLaw, form: str, ins: list[str], outs: list[str]) -> list[Contents]:
        """An operator on rows of samples, by its law. Raises Unfollowed where it is not one on the rows of each."""
        first = next(at for at, value in enumerate(c.values) if value.axis >= 0)
        rows, size = c.values[first], c.shapes[first][c.values[first].axis]
        letter, owners = ins[first][rows.axis], rows.owners
        fits = letter.islower() and not (law.off and c.args[law.off])
        for value, shape, text in zip(c.values, c.shapes, ins, strict=True):
            same = text[value.axis : value.axis + 1] == letter and value.owners == owners
            alike = letter not in text or shape[text.index(letter)] == 1 or self.plain(value) is not None
            fits = fits and (same if value.axis >= 0 else alike and not value.owned)
        for shape, text in zip(c.outs, outs, strict=True):
            fits = fits and (letter not in text or shape[text.index(letter)] == size)
        if not fits:
            raise Unfollowed(f"operator {c.name} does not keep samples apart")
        average = c.name == "mean" or ("loss" in c.name and c.args["reduction"] == 1)
        values = self.labelled(c, average) if c.name.startswith("nll_loss") else c.values
        linear = (0,) if c.name == "masked_fill" and c.args["value"] == 0 else law.linear
        lead, by, kids = next(iter(rows.items.values())) if law.joint else Fraction(1), Fraction(1), []
        for at, (value, shape) in enumerate(zip(values, c.shapes, strict=True)):
            single = value.axis >= 0 or (len(value.items) == 1 and not value.factor)
            (kid, _), own = next(iter(value.items.items())) if single else ((self.named(value, shape), NOBODY), 1)
            by *= own if at in linear else 1
            kids.append(kid if at in linear or own == lead else self.make("times", str(own / lead), (kid,)))
        made = []
        for at, (text, shape) in enumerate(zip(outs, c.outs, strict=True)):
            axis = text.find(letter)
            part = (*shape[:axis], shape[axis] // len(owners), *shape[axis + 1 :]) if axis >= 0 else shape
            term = self.make(c.name, (at, form), kids, part)
            share = Fraction(1, len(owners) if average and (axis < 0 or c.name.endswith("_backward")) else 1)
            made.append(Contents(dict.fromkeys([(term, owner) for owner in owners], by * lead * share), axis))
            if axis < 0:
                self.traits.setdefault(term, "mean" if average else "sum")
        if c.name == "nll_loss_forward" and outs[0] == "":
            made[1] = self.number(prod(c.shapes[1]))
        return made

    def labelled(self, c: OperatorCall, average: bool) -> list[Contents]:
        """The arguments of a loss by labels, with no count of the labels. Raises Unfollowed where not each counts."""
        at = 2 if c.name.endswith("_backward") else 1
        least, total = self.traits.get(next(iter(c.values[at].items), (0, 0))[0]), c.values[at + 1 :]
        counts = not average or all(self.plain(one) == prod(c.shapes[at]) for one in total)
        if c.args["weight"] is not None or least is None or c.args["ignore_index"] >= least or not counts:
            raise Unfollowed(f"operator {c.name} has labels that may be ignored, or weights of classes")
        return [*c.values[: at + 1], *(self.number(1) for _ in total)]

    def stacked(self, c: OperatorCall) -> list[Contents] | None:
        """One tensor of each sample, as rows; None where the arguments are something else."""
        dim, out = c.args["dim"] % len(c.outs[0]), c.outs[0]
        owners = [owner for value in c.values for owner in value.owners]
        same = {(term, by, value.factor) for value in c.values for (term, _), by in value.items.items()}
        if len(same) != 1 or min(owners) < 0 or not len(set(owners)) == len(owners) == len(c.values):
            return None
        ((term, by, factor),) = same
        made = self.make("stack", dim, (term,), out[:dim] + out[dim + 1 :])
        return [Contents({(made, owner): by for owner in owners}, dim)] if not factor else None

    def added(self, c: OperatorCall) -> list[Contents] | None:
        """A sum of two values; None where they are rows, or have other factors."""
        (left, right), out = c.values, c.outs[0]
        right = right.times(Fraction(float(c.args.get("alpha", 1))) * (-1 if c.name == "sub" else 1))
        wide = all(
            shape == out or self.plain(value) is not None for shape, value in zip(c.shapes, c.values, strict=True)
        )
        factors = {value.factor for value in (left, right) if value.items}
        if left.axis >= 0 or right.axis >= 0 or len(factors) > 1 or not wide:
            return None
        own = {key: left.items.get(key, Fraction(0)) + right.items.get(key, 0) for key in {**left.items, **right.items}}
        return [Contents({key: by for key, by in own.items() if by}, factor=max(factors, default=0))]

    def multiplied(self, c: OperatorCall) -> list[Contents] | None:
        """A product or quotient with a number, or with a scalar that is made of several samples; else None."""
        if c.args.get("rounding_mode"):
            raise Unfollowed("a quotient is rounded")
        power = -1 if c.name == "div" else 1
        for at in (1,) if power < 0 else (1, 0):
            value, scalar = c.values[1 - at], c.values[at]
            if c.shapes[1 - at] != c.outs[0] and self.plain(value) is None:
                continue
            if (by := self.plain(scalar)) is not None:
                return [value.times(by**power)]
            ((term, owner), by), *more = scalar.items.items()
            single = prod(c.shapes[at]) == 1 and not more and not scalar.factor and owner == SEVERAL
            if single and value.axis < 0 and value.owned and not value.factor:
                factor = term if power > 0 else self.make("reciprocal", "", (term,))
                self.scalars.add(factor)
                return [value.times(by**power)._replace(factor=factor)]
        return None

    def viewed(self, value: Contents, whole: TensorRecord, part: TensorRecord) -> Contents:
        """What a part of a tensor holds, in any shape: whose samples lie there, and one term of what each holds."""
        offset, own, strides, steps = part.offset - whole.offset, part.shape, whole.stride, part.stride
        if part == whole or (whole.dense and self.plain(value) is not None):
            return value
        if not whole.dense or 0 in own or (value.axis >= 0 and not strides[value.axis]):
            raise Unfollowed("a part of a tensor with gaps is read")
        if value.axis < 0:
            at = (offset, strides, steps)
            items = {(self.make("view", at, (term,), own), owner): by for (term, owner), by in value.items.items()}
            return value._replace(items=items)
        ((term, _), by), *_ = value.items.items()
        row = whole.shape[value.axis] // len(value.items) * strides[value.axis]
        (far, near), block = divmod(offset, row * len(value.items)), row * len(value.items)
        first, near = divmod(near, row)
        form = (far, near, *(divmod(step, block) for step in (*strides, *steps)))
        fit = [at for at, step in enumerate(steps) if step and row % step == 0 and own[at] % (row // step) == 0]
        for axis in (*sorted(fit, key=lambda at: -steps[at]), -1):
            each, count = (row // steps[axis], own[axis] * steps[axis] // row) if axis >= 0 else (0, 1)
            left = (*own[:axis], each, *own[axis + 1 :]) if each else own
            owners = value.owners[first : first + count]
            reach = near + sum((n - 1) * step for n, step in zip(left, steps, strict=True) if step % block)
            if reach < row and len(owners) == count:
                made = self.make("view", form, (term,), left)
                return Contents({(made, owner): by for owner in owners}, axis)
        raise Unfollowed("a part of samples is read")
