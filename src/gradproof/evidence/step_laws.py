"""The laws of the checker of certificates: what an operator makes of samples, written from torch's documentation.

A law gives each axis of arguments and results a letter. Samples may lie along an axis with a small letter: then the
operator does the same to the rows of each sample. A result without that letter is the sum over the samples. In the
text of a law a dot is all axes that have no letter of their own, and a bar is those axes where the ones that an
argument names are large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite, prod
from typing import Any, NamedTuple

NOBODY, SEVERAL = -1, -2
TENSOR = re.compile(r'\{"(\d+)": (\d+)\}')
"""A tensor among arguments, in JSON: its number, with the version of its storage."""
Shape = tuple[int, ...]
Place = tuple[int, Shape, Shape]
"""Where a tensor lies in its storage: offset, sizes and strides, in elements."""
Items = dict[tuple[int, int], Fraction]
"""Term and sample to coefficient."""


class Unfollowed(Exception):
    """A value that no law gives, and why."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a tensor holds: a sum of terms, each of one sample, of none or of several, all times the term `factor`.

    Where there is an `axis`, the samples lie along it in order, `each` rows each, with one term and one coefficient.
    """

    items: Items
    axis: int = -1
    each: int = 0
    factor: int = 0

    @property
    def owned(self) -> bool:
        """Whether samples are in it."""
        return self.factor != 0 or any(owner != NOBODY for _, owner in self.items)

    @property
    def owners(self) -> tuple[int, ...]:
        """The samples, in order."""
        return tuple(owner for _, owner in self.items)

    def times(self, by: Fraction) -> Contents:
        """The same, times a number."""
        return replace(self, items={key: own * by for key, own in self.items.items()}) if by else ZERO


ZERO = Contents({})


class OperatorCall(NamedTuple):
    """An operator with what it was given. `outs`: the shapes of its results."""

    name: str
    values: list[Contents]
    shapes: list[Shape]
    args: list[Any]
    named: dict[str, Any]
    outs: list[Shape]

    def arg(self, at: int, name: str = "", default: Any = None) -> Any:
        """An argument by its place or its name."""
        return self.args[at] if at < len(self.args) else self.named.get(name, default)

    @property
    def form(self) -> str:
        """The arguments without the tensors."""
        return TENSOR.sub("[]", json.dumps([self.args, self.named]))


def span(place: Place) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in place[1] else 1 + sum((n - 1) * by for n, by in zip(place[1], place[2], strict=True))


def dense(place: Place) -> bool:
    """Whether a tensor has every element from its first to its last, once."""
    rows = sorted((by, n) for n, by in zip(place[1], place[2], strict=True) if n != 1)
    return all(by == prod(n for _, n in rows[:at]) for at, (by, _) in enumerate(rows))


SMALL, LARGE = "abcdefghij", "QRSTUVWXYZ"


class SampleLaw(NamedTuple):
    """A law. `linear`: the arguments in each of which the operator is linear by itself; `joint`: in all together.

    `dim`: the place of the argument that names axes.
    """

    text: str
    linear: tuple[int, ...] = ()
    joint: bool = False
    dim: int = 0

    def letters(self, c: OperatorCall) -> tuple[list[str], list[str]]:
        """The letters of the axes of arguments and results. Shorter shapes are right-aligned."""
        texts = list[str]()
        for side, shapes in zip(self.text.split("->"), (c.shapes, c.outs), strict=True):
            own = side.split(",")
            texts += (own + own[-1:] * len(shapes))[: len(shapes)]
        every = [*zip(texts, [*c.shapes, *c.outs], strict=True)]
        leads = [shape[: len(shape) - len(text) + 1] for text, shape in every if text[0] in ".|"]
        rank = max(map(len, leads), default=0)
        sizes = [max(lead[at - rank] for lead in leads if len(lead) >= rank - at) for at in range(rank)]
        dims = c.arg(self.dim, "dim", 0 if self.joint else None) if self.dim else []
        named = range(rank) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        large, found = {dim % rank for dim in named if rank}, list[str]()
        for text, shape in every:
            skip = rank - (len(shape) - len(text) + 1)
            if text[0] == "|":
                kept = [at for at in range(rank) if skip <= 0 or at not in large]
                text = "".join(LARGE[at] if at in large else SMALL[at] for at in kept)
            elif text[0] == ".":
                lead = "".join(SMALL[at] if shape[at - skip] == sizes[at] else "1" for at in range(skip, rank))
                text = lead + text[1:]
            if len(text) < len(shape):
                raise Unfollowed(f"{c.name} of other shapes")
            found.append(text[len(text) - len(shape) :])
        return found[: len(c.shapes)], found[len(c.shapes) :]


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
OF_ELEMENTS = """
relu gelu silu tanh sigmoid exp log log1p sqrt rsqrt reciprocal pow abs sgn sign sin cos erf clamp clamp_min clamp_max
where masked_fill eq ne lt le gt ge logical_not logical_and bitwise_and bitwise_not maximum minimum leaky_relu elu
hardtanh softplus cast mse_loss smooth_l1_loss huber_loss
"""
LINEAR = """
threshold_backward gelu_backward silu_backward tanh_backward sigmoid_backward leaky_relu_backward elu_backward
hardtanh_backward softplus_backward native_dropout_backward mse_loss_backward div neg expand
"""
LAWS = {
    **dict.fromkeys(OF_ELEMENTS.split(), SampleLaw(".->.")),
    **dict.fromkeys(LINEAR.split(), SampleLaw(".->.", (0,))),
    "mul": SampleLaw(".->.", (0, 1)),
    **dict.fromkeys(("add", "sub"), SampleLaw(".->.", joint=True)),
    "cat": SampleLaw("|->|", joint=True, dim=1),
    **dict.fromkeys(("_softmax", "_log_softmax"), SampleLaw("|->|", dim=1)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), SampleLaw("|->|", (0,), dim=2)),
    **dict.fromkeys(("select_backward", "slice_backward"), SampleLaw("|->|", (0,), dim=2)),
    **dict.fromkeys(("sum", "mean"), SampleLaw(".->|", (0,), dim=1)),
    "mm": SampleLaw("nk,km->nm", (0, 1)),
    "bmm": SampleLaw("bnk,bkm->bnm", (0, 1)),
    "addmm": SampleLaw("nm,nK,Km->nm"),
    "native_layer_norm": SampleLaw(".N,N->.N,.1"),
    "native_layer_norm_backward": SampleLaw(".N,.N,.1,.1,N->.N,N", (0,)),
    "embedding": SampleLaw("VD,.->.D"),
    "embedding_dense_backward": SampleLaw(".D,.->VD", (0,)),
    "nll_loss_forward": SampleLaw("nC,n->n"),
    "nll_loss_backward": SampleLaw("n,nC,n->nC", (0,)),
    FLASH: SampleLaw("abXY,abXY,abXY,1111->abXY,abX"),
    f"{FLASH}_backward": SampleLaw("abXY,abXY,abXY,abXY,abXY,abX,1111->abXY", (0,)),
}
REDUCTIONS = {"mse_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "nll_loss_forward": 3, "mse_loss_backward": 3}
REDUCTIONS["nll_loss_backward"] = 4
"""Where the reduction of a loss stands: 0 none, 1 mean (the default), 2 sum."""
LABELS = {"nll_loss_forward": 1, "nll_loss_backward": 2}
"""Where labels stand. Weights of classes come next, and two further on the label that is ignored."""
SAME = frozenset({"clone", "_to_copy", "lift_fresh", "copy"})
GIVEN = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""The place of the number that fills the result."""
FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


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
            if name == "view" and key[2][0] in self.traits:
                self.traits[self.known[key]] = self.traits[key[2][0]]
        return self.known[key]

    def leaf(self, name: str, attributes: Any, shape: Shape) -> Contents:
        """A tensor of no sample that no operator made."""
        return Contents({(self.make(name, attributes, (), shape), NOBODY): Fraction(1)})

    def number(self, by: Any) -> Contents:
        """One number everywhere."""
        return Contents({(self.one, NOBODY): Fraction(by)}) if by else ZERO

    def plain(self, value: Contents) -> Fraction | None:
        """The number that a value is everywhere, or None."""
        known = not value.factor and all(key == (self.one, NOBODY) for key in value.items)
        return next(iter(value.items.values()), Fraction(0)) if known else None

    def scaled(self, by: Fraction, term: int) -> int:
        """A term with a coefficient."""
        return term if by == 1 else self.make("times", str(by), (term,))

    def named(self, value: Contents, shape: Shape) -> int:
        """One term for a sum."""
        rows = sorted(value.items.items())
        if len(rows) == 1 and not value.factor and rows[0][0][1] == NOBODY:
            term = rows[0][0][0]
            return self.scaled(rows[0][1], self.make("number", "", (term,), shape) if term == self.one else term)
        kids = [*(term for (term, _), _ in rows), value.factor]
        made = self.make("sum", tuple((owner, str(by)) for (_, owner), by in rows), kids, shape)
        if value.owned:
            self.sums[made] = value
        return made

    def below(self, terms: Iterable[int]) -> set[int]:
        """The terms that terms are functions of, by any path."""
        stack, seen = list(terms), set[int]()
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                stack += self.keys[term][2]
        return seen

    def aggregates(self, terms: Iterable[int]) -> list[Contents]:
        """The sums over samples that terms are functions of."""
        return [self.sums[term] for term in sorted(self.below(terms) & self.sums.keys())]

    def result(self, c: OperatorCall) -> list[Contents]:
        """The values of the results of an operator. Raises Unfollowed."""
        name, first = c.name, c.values[0] if c.values else ZERO
        if name in FILLED or name in GIVEN:
            by = FILLED[name] if name in FILLED else c.arg(GIVEN[name], "value")
            if not isinstance(by, int | float):
                raise Unfollowed(f"{name} of no number")
            return [self.number(by) if isfinite(by) else self.leaf("full", str(by), c.outs[0])]
        if name.startswith(("empty", "new_empty")):
            raise Unfollowed(f"{name} makes memory that nothing was written to")
        if name in ("add", "sub", "mul", "div") and len(c.values) == 1:
            c = c._replace(values=[first, self.number(c.args[1])], shapes=[*c.shapes, ()])
        if name in SAME:
            return [first]
        plain = self.added(c) if name in ("add", "sub") else self.multiplied(c) if name in ("mul", "div") else None
        if plain is not None:
            return [plain]
        law = LAWS.get(name)
        if all(value.axis < 0 for value in c.values):
            kids = [self.named(value, shape) for value, shape in zip(c.values, c.shapes, strict=True)]
            owned = [at for at, value in enumerate(c.values) if value.owned]
            alone = owned[0] if len(owned) == 1 and law is not None and owned[0] in law.linear else len(kids)
            whole = Contents({(self.one, SEVERAL if owned else NOBODY): Fraction(1)})
            value, found = [*c.values, whole][alone], []
            for at, shape in enumerate(c.outs):
                items = Items()
                for (term, owner), by in value.items.items():
                    own = [*kids[:alone], term, *kids[alone + 1 :]]
                    items[self.make(name, (at, c.form, *c.shapes), own, shape), owner] = by
                found.append(Contents(items, factor=value.factor))
            return found
        if law is None:
            raise Unfollowed(name)
        return self.applied(c, law)

    def applied(self, c: OperatorCall, law: SampleLaw) -> list[Contents]:
        """An operator on rows of samples, by its law."""
        ins, outs = law.letters(c)
        first = next(at for at, value in enumerate(c.values) if value.axis >= 0)
        letter, owners = ins[first][c.values[first].axis], c.values[first].owners
        self.apart(c, ins, outs, letter, owners)
        linear = (0,) if c.name == "masked_fill" and c.arg(2) == 0 else law.linear
        lead, by, kids = next(iter(c.values[first].items.values())) if law.joint else Fraction(1), Fraction(1), []
        for at, (value, shape) in enumerate(zip(c.values, c.shapes, strict=True)):
            single = value.axis >= 0 or (len(value.items) == 1 and not value.factor)
            own = next(iter(value.items.values())) if single else Fraction(bool(value.items))
            kid = next(iter(value.items))[0] if single else self.named(value, shape)
            by *= own if at in linear else 1
            kids.append(kid if at in linear else self.scaled(own / lead, kid))
        average = c.name == "mean" or (c.name in REDUCTIONS and c.arg(REDUCTIONS[c.name], "reduction", 1) == 1)
        made = []
        for at, (text, shape) in enumerate(zip(outs, c.outs, strict=False)):
            axis = text.find(letter)
            each = shape[axis] // len(owners) if axis >= 0 else 0
            part = shape if axis < 0 else (*shape[:axis], each, *shape[axis + 1 :])
            term = self.make(c.name, (at, c.form), kids, part)
            share = Fraction(1, len(owners) if average and (axis < 0 or c.name.endswith("_backward")) else 1)
            made.append(Contents(dict.fromkeys([(term, owner) for owner in owners], by * lead * share), axis, each))
            if axis < 0:
                self.traits.setdefault(term, "mean" if average else "sum")
        if c.name == "nll_loss_forward" and outs[0] == "":
            made[1] = self.number(prod(c.shapes[1]))
        return made if by else [ZERO] * len(c.outs)

    def apart(self, c: OperatorCall, ins: list[str], outs: list[str], letter: str, owners: tuple[int, ...]) -> None:
        """Raises Unfollowed where an operator is not one operator on the rows of each sample."""
        every = zip([*ins, *outs], [*c.shapes, *c.outs], strict=True)
        sizes = {shape[text.index(letter)] for text, shape in every if letter in text}
        fits = [
            text[value.axis] == letter and value.owners == owners
            if value.axis >= 0
            else not value.owned and (letter not in text or self.plain(value) is not None)
            for value, text in zip(c.values, ins, strict=True)
        ]
        if not letter.islower() or len(sizes) != 1 or not all(fits):
            raise Unfollowed(f"{c.name} does not keep samples apart")
        if c.name in LABELS:
            at = LABELS[c.name]
            least = self.traits.get(next(iter(c.values[at].items))[0])
            if c.arg(at + 1) is not None or least is None or c.arg(at + 3, "ignore_index", -100) >= least:
                raise Unfollowed(f"{c.name} with labels that may be ignored, or weights of classes")

    def added(self, c: OperatorCall) -> Contents | None:
        """A sum of two values; None where they are rows, or have other factors."""
        (left, right), out = c.values, c.outs[0]
        right = right.times(Fraction(c.named.get("alpha", 1)) * (-1 if c.name == "sub" else 1))
        for value, other, shape in ((left, right, c.shapes[0]), (right, left, c.shapes[1])):
            if not other.items and (shape == out or self.plain(value) is not None):
                return value
        wide = all(shape == out or self.plain(c.values[at]) is not None for at, shape in enumerate(c.shapes))
        if left.axis >= 0 or right.axis >= 0 or left.factor != right.factor or not wide:
            return None
        items = dict[tuple[int, int], Fraction]()
        for key, own in (*left.items.items(), *right.items.items()):
            items[key] = items.get(key, Fraction(0)) + own
        return Contents({key: own for key, own in items.items() if own}, factor=left.factor)

    def multiplied(self, c: OperatorCall) -> Contents | None:
        """A product or quotient with a number, or with a scalar that is made of several samples; else None."""
        power = -1 if c.name == "div" else 1
        if c.named.get("rounding_mode"):
            raise Unfollowed("div that rounds")
        for at in (1,) if power < 0 else (1, 0):
            value, scalar = c.values[1 - at], c.values[at]
            by, key = next(iter(scalar.items.values()), Fraction(0)), next(iter(scalar.items), (0, NOBODY))
            if c.shapes[1 - at] != c.outs[0] and self.plain(value) is None:
                continue
            if self.plain(scalar) is not None:
                return value.times(by**power)
            single = prod(c.shapes[at]) == len(scalar.items) == 1 and not scalar.factor and key[1] == SEVERAL
            if single and value.axis < 0 and value.owned and not value.factor:
                factor = key[0] if power > 0 else self.make("reciprocal", "", key[:1])
                self.scalars.add(factor)
                return replace(value.times(by**power), factor=factor)
        return None

    def viewed(self, value: Contents, whole: Place, part: Place) -> Contents:
        """What a part of a tensor holds, in any shape: whose samples lie there, and one term of what each holds."""
        (start, _, strides), (offset, own, steps) = whole, part
        if part == whole:
            return value
        if not dense(whole) or 0 in own or (value.axis >= 0 and not strides[value.axis]):
            raise Unfollowed("a part of a tensor with gaps")
        if self.plain(value) is not None:
            return value
        if value.axis < 0:
            at = (offset - start, strides, steps)
            items = {(self.make("view", at, (term,), own), owner): by for (term, owner), by in value.items.items()}
            return replace(value, items=items)
        row, rows = value.each * strides[value.axis], [*value.items.items()]
        block = row * len(rows)
        far, near = divmod(offset - start, block)
        for axis in sorted(range(len(own)), key=lambda at: -steps[at]):
            each = row // max(steps[axis], 1)
            if not each or each * steps[axis] != row or own[axis] % each:
                continue
            first, last = near // row, near // row + own[axis] // each
            left = (*own[:axis], each, *own[axis + 1 :])
            reach = near % row + sum((n - 1) * by for n, by in zip(left, steps, strict=True) if by % block)
            if reach < row and last <= len(rows):
                form = (far, near % row, *(divmod(by, block) for by in (*strides, *steps)))
                made = self.make("view", form, rows[0][0][:1], left)
                return Contents({(made, owner): by for (_, owner), by in rows[first:last]}, axis, each)
        raise Unfollowed("a part of samples")
