"""The laws of the checker of certificates: what an operator makes of samples, written from torch's documentation.

A law gives each axis of arguments and results a letter. Samples may lie along an axis with a small letter: then the
operator does the same to the rows of each sample. A result without that letter is the sum over the samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

NOBODY, SEVERAL = -1, -2
Shape = tuple[int, ...]
Items = dict[tuple[int, int], Fraction]
"""Term and sample to coefficient."""


class Unfollowed(Exception):
    """A value that no law gives, and why."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a tensor holds: a sum of terms, each of one sample, of none or of several, times powers of scalars.

    Where there is an `axis`, the samples lie along it in order, `each` rows each, with one term and one coefficient.
    """

    items: Items
    axis: int = -1
    each: int = 0
    factors: frozenset[tuple[int, int]] = frozenset()

    @property
    def owned(self) -> bool:
        """Whether samples are in it."""
        return any(owner != NOBODY for _, owner in self.items) or bool(self.factors)

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


def is_reference(value: Any) -> bool:
    """Whether an argument is a tensor: its number, with the version of its storage."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).isdigit()


def bared(value: Any) -> Any:
    """Arguments without the tensors."""
    if isinstance(value, dict):
        return "tensor" if is_reference(value) else {name: bared(one) for name, one in value.items()}
    return [bared(one) for one in value] if isinstance(value, list) else value


Letters = tuple[list[str], list[str]]
SMALL, LARGE = "abcdefghij", "QRSTUVWXYZ"


def elements(c: OperatorCall, wide: Shape = ()) -> Letters:
    """An operator on elements: arguments are right-aligned, and an axis of one row is repeated."""
    wide = wide or c.outs[0]

    def letters(shape: Shape) -> str:
        skip = len(wide) - len(shape)
        return "".join(SMALL[skip + i] if n == wide[skip + i] else "1" for i, n in enumerate(shape))

    return [letters(shape) for shape in c.shapes], [SMALL[: len(wide)]] * len(c.outs)


def axes(dims: Any, rank: int) -> list[int]:
    """Dimensions of an operator as axes; none are all."""
    if dims is None or dims == []:
        return list(range(rank))
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)] if rank else []


def closed(text: str, dims: Iterable[int]) -> str:
    """Letters with those of some axes large: the rows of such an axis meet, and no samples may lie there."""
    return "".join(LARGE[i] if i in set(dims) else x for i, x in enumerate(text))


def along(at: int) -> Callable[[OperatorCall], Letters]:
    """An operator along the axis that an argument names, whose rows meet."""

    def law(c: OperatorCall) -> Letters:
        text = closed(SMALL[: len(c.shapes[0])], axes(c.arg(at, "dim"), len(c.shapes[0])))
        return [text] * len(c.shapes), [text] * len(c.outs)

    return law


def reduced(c: OperatorCall) -> Letters:
    """A sum or a mean over axes."""
    rank = len(c.shapes[0])
    gone, kept = axes(c.arg(1, "dim"), rank), len(c.outs[0]) == rank
    return [SMALL[:rank]], ["".join("1" if i in gone else SMALL[i] for i in range(rank) if kept or i not in gone)]


def fixed(text: str) -> Callable[[OperatorCall], Letters]:
    """Letters that are always the same."""
    ins, outs = (side.split(",") for side in text.split("->"))
    return lambda c: (ins, outs)


def biased(c: OperatorCall) -> Letters:
    """A product of matrices and a bias, which is added once: nothing is summed over samples."""
    return ["nm"[2 - len(c.shapes[0]) :], "nK", "Km"], ["nm"]


def normed(c: OperatorCall) -> Letters:
    """Layer norm over the last axes; mean and rstd have one row there. Backward: weight and bias get sums over rows."""
    back = c.name.endswith("_backward")
    inner = LARGE[: len(c.args[2 if back else 1])]
    lead = SMALL[: len(c.shapes[0]) - len(inner)]
    row, one = lead + inner, lead + "1" * len(inner)
    if back:
        return [row, row, one, one, *[inner] * (len(c.shapes) - 4)], [row, inner, inner]
    return [row] + [inner] * (len(c.shapes) - 1), [row, one, one]


def looked_up(c: OperatorCall) -> Letters:
    """Embedding: rows of a table by index. Backward: the rows of the gradient are added up by index."""
    index = SMALL[: len(c.shapes[1])]
    return ([index + "D", index], ["VD"]) if c.name.endswith("_backward") else (["VD", index], [index + "D"])


def labelled(c: OperatorCall) -> Letters:
    """Negative log-likelihood of rows with a label each. The second result counts the labels."""
    back = c.name.endswith("_backward")
    own = "n" if len(c.shapes[back]) == 2 else ""
    kept = own if c.arg(3 + back, "reduction") == 0 else ""
    return ([kept, own + "C", own, ""], [own + "C"]) if back else ([own + "C", own], [kept, ""])


def compared(c: OperatorCall) -> Letters:
    """A loss of pairs of elements: by element, or one sum or mean of them."""
    ins, outs = elements(c, c.shapes[0])
    return ins, outs if c.arg(2, "reduction", 1) == 0 else [""]


def moved(c: OperatorCall) -> Letters:
    """Axes in another order, left out, put in, or repeated."""
    rank, shape, out = len(c.shapes[0]), c.shapes[0], c.outs[0]
    text, order = SMALL[:rank], list(range(rank))
    if c.name == "permute":
        order = axes(c.args[1], rank)
    elif c.name in ("t", "transpose") and rank > 1:
        left, right = axes([0, 1] if c.name == "t" else c.args[1:3], rank)
        order[left], order[right] = right, left
    elif c.name == "squeeze":
        gone = [i for i in axes(c.arg(1, "dim"), rank) if shape[i] == 1]
        order = [i for i in order if i not in gone]
    elif c.name == "unsqueeze":
        at = c.args[1] % len(out)
        return [text], [text[:at] + "1" + text[at:]]
    elif c.name == "expand":
        skip = len(out) - rank
        kept = [i >= skip and shape[i - skip] == n for i, n in enumerate(out)]
        outer = "".join(text[i - skip] if own else "1" for i, own in enumerate(kept))
        return ["".join(x if kept[skip + i] else "1" for i, x in enumerate(text))], [outer]
    return [text], ["".join(text[i] for i in order)]


def cut_axis(c: OperatorCall) -> int:
    """The axis that an operator cuts."""
    rank = len((c.outs if c.name.endswith("_backward") else c.shapes)[0])
    return int(c.arg(1 if c.name in ("select", "slice", "unbind") else 2, "dim", 0)) % rank


def cut(c: OperatorCall) -> Letters:
    """Parts of an axis, or one row of it; backward: among zeros. An axis that is cut has no samples here."""
    back, axis = c.name.endswith("_backward"), cut_axis(c)
    whole = closed(SMALL[: len((c.outs if back else c.shapes)[0])], [axis])
    part = whole[:axis] + ("" if c.name.startswith(("select", "unbind")) else "P") + whole[axis + 1 :]
    return ([part], [whole]) if back else ([whole], [part] * len(c.outs))


def joined(c: OperatorCall) -> Letters:
    """Tensors side by side along an axis."""
    whole = closed(SMALL[: len(c.outs[0])], axes(c.arg(1, "dim", 0), len(c.outs[0])))
    return [whole] * len(c.shapes), [whole]


def attended(c: OperatorCall) -> Letters:
    """Attention: samples and heads are apart, the positions of one meet. A mask is that of all samples."""
    ins, outs = (["abXY"[: len(shape)] for shape in side] for side in (c.shapes, c.outs))
    return [*ins[:-1], "1111"] if c.named.get("attn_mask") is not None else ins, outs


class SampleLaw(NamedTuple):
    """A law. `linear`: the arguments in each of which the operator is linear by itself; `joint`: in all together."""

    letters: Callable[[OperatorCall], Letters]
    linear: tuple[int, ...] = ()
    joint: bool = False


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
OF_ELEMENTS = """
relu gelu silu tanh sigmoid exp log log1p sqrt rsqrt reciprocal pow abs sgn sign sin cos erf clamp clamp_min clamp_max
where masked_fill eq ne lt le gt ge logical_not logical_and bitwise_and bitwise_not maximum minimum leaky_relu elu
hardtanh softplus cast
"""
BACKWARDS = "threshold gelu silu tanh sigmoid leaky_relu elu hardtanh softplus native_dropout mse_loss"
ROWS: Iterable[tuple[str, SampleLaw]] = [
    (OF_ELEMENTS, SampleLaw(elements)),
    (" ".join(f"{name}_backward" for name in BACKWARDS.split()) + " div neg", SampleLaw(elements, (0,))),
    ("mul", SampleLaw(elements, (0, 1))),
    ("add sub", SampleLaw(elements, joint=True)),
    ("_softmax _log_softmax", SampleLaw(along(1))),
    ("_softmax_backward_data _log_softmax_backward_data", SampleLaw(along(2), (0,))),
    ("sum mean", SampleLaw(reduced, (0,))),
    ("mm", SampleLaw(fixed("nk,km->nm"), (0, 1))),
    ("bmm", SampleLaw(fixed("bnk,bkm->bnm"), (0, 1))),
    ("addmm", SampleLaw(biased)),
    ("native_layer_norm", SampleLaw(normed)),
    ("native_layer_norm_backward", SampleLaw(normed, (0,))),
    ("embedding", SampleLaw(looked_up)),
    ("embedding_dense_backward", SampleLaw(looked_up, (0,))),
    ("nll_loss_forward", SampleLaw(labelled)),
    ("nll_loss_backward", SampleLaw(labelled, (0,))),
    ("mse_loss smooth_l1_loss huber_loss", SampleLaw(compared)),
    ("t transpose permute unsqueeze squeeze expand", SampleLaw(moved, (0,))),
    ("select slice split unbind split_with_sizes select_backward slice_backward", SampleLaw(cut, (0,))),
    ("cat", SampleLaw(joined, joint=True)),
    (FLASH, SampleLaw(attended)),
    (f"{FLASH}_backward", SampleLaw(attended, (0,))),
]
LAWS = {name: law for names, law in ROWS for name in names.split()}
FUNCTIONS = frozenset("norm linalg_vector_norm stack".split())  # noqa: SIM905
"""Functions of whole gradients, which no law takes apart."""
REDUCTIONS = {"mse_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "nll_loss_forward": 3, "mse_loss_backward": 3}
REDUCTIONS["nll_loss_backward"] = 4
"""Where the reduction of a loss stands: 0 none, 1 mean (the default), 2 sum."""
LABELS = {"nll_loss_forward": (1, 2, 4), "nll_loss_backward": (2, 3, 5)}
"""Where labels stand among the tensors; weights of classes, and the label that is ignored, among the arguments."""
SAME = frozenset("detach alias clone _to_copy lift_fresh copy".split())  # noqa: SIM905
RESHAPED = frozenset("view _unsafe_view _reshape_alias".split())  # noqa: SIM905
CUTS = frozenset("select slice split unbind split_with_sizes".split())  # noqa: SIM905
VIEWS = CUTS | RESHAPED | frozenset("t transpose permute unsqueeze squeeze expand".split())  # noqa: SIM905
FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
GIVEN = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""The place of the number that fills the result."""


class Laws:
    """Terms, each once, and what operators make of them. A term of a sample names no sample.

    `kinds`: whether the loss of a sample was summed up, or averaged, over samples. `sums`: the sums over samples of
    which a term is a function. `versions`: the parameters that a term is made of. `scalars`: what scaled gradients.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self.versions: list[frozenset[tuple[str, int]]] = []
        self.sums: dict[int, Contents] = {}
        self.kinds: dict[int, str] = {}
        self.scalars: set[int] = set()
        self.one = self.make("one")

    def make(self, name: str, attributes: Any = "", kids: Iterable[int] = (), shape: Shape = ()) -> int:
        """The number of a term."""
        key = (name, attributes, tuple(kids), shape)
        if key not in self.known:
            self.known[key] = len(self.keys)
            self.keys.append(key)
            own = frozenset({attributes}) if name == "parameter" else frozenset()
            self.versions.append(own.union(*(self.versions[kid] for kid in key[2])))
        return self.known[key]

    def leaf(self, name: str, attributes: Any, shape: Shape) -> Contents:
        """A tensor of no sample that no operator made."""
        return Contents({(self.make(name, attributes, (), shape), NOBODY): Fraction(1)})

    def number(self, by: Any) -> Contents:
        """One number everywhere."""
        return Contents({(self.one, NOBODY): Fraction(by)}) if by else ZERO

    def plain(self, value: Contents) -> Fraction | None:
        """The number that a value is everywhere, or None."""
        known = not value.factors and all(key == (self.one, NOBODY) for key in value.items)
        return next(iter(value.items.values()), Fraction(0)) if known else None

    def scaled(self, by: Fraction, term: int) -> int:
        """A term with a coefficient."""
        return term if by == 1 else self.make("times", str(by), (term,))

    def named(self, value: Contents, shape: Shape) -> int:
        """One term for a sum."""
        rows, factors = sorted(value.items.items()), sorted(value.factors)
        if len(rows) == 1 and not factors and rows[0][0][1] == NOBODY:
            return self.scaled(rows[0][1], self.shaped(rows[0][0][0], shape))
        attributes = (tuple((owner, str(by)) for (_, owner), by in rows), tuple(factors))
        made = self.make("sum", attributes, [term for (term, _), _ in rows] + [term for term, _ in factors], shape)
        if value.owned:
            self.sums[made] = value
        return made

    def shaped(self, term: int, shape: Shape) -> int:
        """A term; one number everywhere gets a shape."""
        return self.make("number", "", (term,), shape) if term == self.one else term

    def aggregates(self, terms: Iterable[int]) -> list[Contents]:
        """The sums over samples that terms are functions of, by any path."""
        stack, seen = list(terms), set[int]()
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                stack += self.keys[term][2]
        return [self.sums[term] for term in sorted(seen & self.sums.keys())]

    def result(self, c: OperatorCall) -> list[Contents]:
        """The values of the results of an operator. Raises Unfollowed."""
        name, first = c.name, c.values[0] if c.values else ZERO
        if name in FILLED or name in GIVEN:
            by = FILLED[name] if name in FILLED else c.arg(GIVEN[name], "value")
            if isinstance(by, int | float) and abs(by) != float("inf"):
                return [self.number(by)]
            return [c.values[-1] if name == "fill" else self.leaf("full", str(by), c.outs[0])]
        if name.startswith(("empty", "new_empty")):
            raise Unfollowed(f"{name} makes memory that nothing was written to")
        if name in ("add", "sub", "mul", "div") and len(c.values) == 1:
            c = c._replace(values=[first, self.number(c.args[1])], shapes=[*c.shapes, ()])
        if name in SAME or (name in VIEWS and self.plain(first) is not None):
            return [first] * len(c.outs)
        if name in RESHAPED and first.axis >= 0:
            return [self.reshaped(c)]
        if name in CUTS and first.axis >= 0 and cut_axis(c) == first.axis:
            return self.rows_cut(c)
        found = self.added(c) if name in ("add", "sub") else self.multiplied(c) if name in ("mul", "div") else None
        if found is not None:
            return [found]
        law = LAWS.get(name)
        if any(value.axis >= 0 for value in c.values) and law is not None:
            return self.applied(c, law)
        if law is None and name not in FUNCTIONS | RESHAPED and any(value.owned for value in c.values):
            raise Unfollowed(name)
        return self.shared(c, (0,) if name in RESHAPED else law.linear if law else ())

    def applied(self, c: OperatorCall, law: SampleLaw) -> list[Contents]:
        """An operator on rows of samples, by its law."""
        ins, outs = law.letters(c)
        first = next(at for at, value in enumerate(c.values) if value.axis >= 0)
        letter, owners = ins[first][c.values[first].axis], c.values[first].owners
        self.apart(c, ins, letter, owners)
        linear = (0,) if c.name == "masked_fill" and c.arg(2) == 0 else law.linear
        lead, by, kids = next(iter(c.values[first].items.values())) if law.joint else Fraction(1), Fraction(1), []
        for at, (value, shape) in enumerate(zip(c.values, c.shapes, strict=True)):
            single = value.axis >= 0 or (len(value.items) == 1 and not value.factors)
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
            term = self.make(c.name, (at, json.dumps(bared([c.args, c.named]))), kids, part)
            share = Fraction(1, len(owners) if average and (axis < 0 or c.name.endswith("_backward")) else 1)
            made.append(Contents(dict.fromkeys([(term, owner) for owner in owners], by * lead * share), axis, each))
            if axis < 0:
                self.kinds.setdefault(term, "mean" if average else "sum")
        if c.name == "nll_loss_forward" and outs[0] == "":
            made[1] = self.number(prod(c.shapes[1]))
        return made if by else [ZERO] * len(c.outs)

    def apart(self, c: OperatorCall, ins: list[str], letter: str, owners: tuple[int, ...]) -> None:
        """Raises Unfollowed where an operator is not one operator on the rows of each sample."""
        sizes = {shape[text.index(letter)] for text, shape in zip(ins, c.shapes, strict=True) if letter in text}
        if not letter.islower() or len(sizes) != 1:
            raise Unfollowed(f"{c.name} makes samples of one another")
        for value, text in zip(c.values, ins, strict=True):
            if value.axis >= 0 and (text[value.axis] != letter or value.owners != owners):
                raise Unfollowed(f"{c.name} meets samples in two orders")
            if value.axis < 0 and (value.owned or (letter in text and self.plain(value) is None)):
                raise Unfollowed(f"{c.name} meets a sum over samples, or a constant with rows of its own")
        if c.name in LABELS:
            at, weights, ignored = LABELS[c.name]
            key = self.keys[next(iter(c.values[at].items))[0]]
            while key[0] in VIEWS:
                key = self.keys[key[2][0]]
            least = key[1][2] if key[0] == "data" else None
            if c.arg(weights) is not None or least is None or c.arg(ignored, "ignore_index", -100) >= least:
                raise Unfollowed(f"{c.name} with labels that may be ignored, or weights of classes")

    def shared(self, c: OperatorCall, linear: tuple[int, ...]) -> list[Contents]:
        """A function of whole arguments: of each term of a sum, where it is linear in it; else of the sum."""
        kids = [self.named(value, shape) for value, shape in zip(c.values, c.shapes, strict=True)]
        owned = [at for at, value in enumerate(c.values) if value.owned]
        made = []
        for at, shape in enumerate(c.outs):
            form = (at, json.dumps(bared([c.args, c.named])))
            if len(owned) == 1 and owned[0] in linear:
                one, value, items = owned[0], c.values[owned[0]], {}
                for (term, owner), by in value.items.items():
                    own = [*kids[:one], self.shaped(term, c.shapes[one]), *kids[one + 1 :]]
                    items[self.make(c.name, form, own, shape), owner] = by
                made.append(Contents(items, factors=value.factors))
            else:
                term = self.make(c.name, form, kids, shape)
                made.append(Contents({(term, SEVERAL if owned else NOBODY): Fraction(1)}))
        return made

    def added(self, c: OperatorCall) -> Contents | None:
        """A sum of two values; None where they are rows, or have other factors."""
        (left, right), out = c.values, c.outs[0]
        right = right.times(Fraction(c.named.get("alpha", 1)) * (-1 if c.name == "sub" else 1))
        for value, other, shape in ((left, right, c.shapes[0]), (right, left, c.shapes[1])):
            if not other.items and (shape == out or self.plain(value) is not None):
                return value
        if left.axis >= 0 or right.axis >= 0 or left.factors != right.factors:
            return None
        items = dict[tuple[int, int], Fraction]()
        for value, shape in zip((left, right), c.shapes, strict=True):
            if shape != out and self.plain(value) is None:
                value = self.shared(OperatorCall("expand", [value], [shape], [], {}, [out]), (0,))[0]
            for key, own in value.items.items():
                items[key] = items.get(key, Fraction(0)) + own
        return Contents({key: own for key, own in items.items() if own}, factors=left.factors)

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
            single = prod(c.shapes[at]) == len(scalar.items) == 1 and not scalar.factors and key[1] == SEVERAL
            if single and value.axis < 0 and value.owned:
                powers = Counter(dict(value.factors))
                powers[key[0]] += power
                self.scalars.add(key[0])
                return replace(value.times(by**power), factors=frozenset((t, n) for t, n in powers.items() if n))
        return None

    def reshaped(self, c: OperatorCall) -> Contents:
        """Rows of samples, their elements in order, in another shape."""
        (value,), (old,), (new,) = c.values, c.shapes, c.outs
        count, (((term, _), by), *_) = len(value.items), value.items.items()
        for axis, size in enumerate(new):
            if prod(new[:axis]) == prod(old[: value.axis]) and size % count == 0 and prod(new) == prod(old):
                part = (*new[:axis], size // count, *new[axis + 1 :])
                if part != (*old[: value.axis], value.each, *old[value.axis + 1 :]):
                    term = self.make("view", "", (term,), part)
                return Contents({(term, owner): by for owner in value.owners}, axis, size // count)
        raise Unfollowed(f"{c.name} mixes rows of samples")

    def rows_cut(self, c: OperatorCall) -> list[Contents]:
        """Parts of the axis of samples have the samples of their rows."""
        (value,), axis, found = c.values, c.values[0].axis, []
        start = (c.arg(2, "start", 0) or 0) % c.shapes[0][axis] if c.name == "slice" else 0
        if c.name in ("select", "unbind") or (c.name == "slice" and c.arg(4, "step", 1) != 1):
            raise Unfollowed(f"{c.name} of samples")
        for shape in c.outs:
            if start % value.each or shape[axis] % value.each or not shape[axis]:
                raise Unfollowed(f"{c.name} of a part of a sample")
            first, last = start // value.each, (start + shape[axis]) // value.each
            found.append(replace(value, items=dict([*value.items.items()][first:last])))
            start += shape[axis]
        return found
