"""The laws of the checker of certificates: what an operator makes of samples, written from torch's documentation.

A law gives each axis of arguments and results a letter. Samples may lie along an axis with a small letter: then the
operator does the same to the rows of each sample. A result without that letter is the sum over the samples. Nothing of
gradproof is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

NOBODY, SEVERAL = -1, -2
Shape = tuple[int, ...]
Items = dict[tuple[int, int], Fraction]


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows of samples: block `i` of `each` rows along an axis is `by` times the term `term` of sample `owners[i]`."""

    axis: int
    each: int
    owners: tuple[int, ...]
    by: Fraction
    term: int


@dataclass(frozen=True, slots=True)
class TermSum:
    """A sum of terms, each of one sample, of none or of several, times powers of common scalars."""

    items: Items
    factors: frozenset[tuple[int, int]] = frozenset()

    @property
    def owned(self) -> bool:
        """Whether samples are in it."""
        return any(owner != NOBODY for _, owner in self.items) or bool(self.factors)


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """A value that no law gives, and why."""

    why: str


Content = SampleRows | TermSum | NotFollowed


class TermTable:
    """Terms, each once: an operator on terms. A term of a sample names no sample."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self.sums: dict[int, TermSum] = {}
        self.versions: list[frozenset[tuple[str, int]]] = []
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

    def times(self, by: Fraction, term: int) -> int:
        """A term with a coefficient."""
        return term if by == 1 else self.make("times", str(by), (term,))

    def named(self, value: TermSum, shape: Shape) -> int:
        """One term for a sum."""
        rows = sorted(value.items.items())
        if len(rows) == 1 and not value.factors and rows[0][0][1] == NOBODY:
            (term, _), by = rows[0]
            return self.times(by, self.make("number", "", (term,), shape) if term == self.one else term)
        attributes = (tuple((owner, str(by)) for (_, owner), by in rows), tuple(sorted(value.factors)))
        kids = [term for (term, _), _ in rows] + [term for term, _ in sorted(value.factors)]
        made = self.make("sum", attributes, kids, shape)
        if value.owned:
            self.sums[made] = value
        return made

    def aggregates(self, terms: Iterable[int]) -> list[TermSum]:
        """The sums over samples that terms are functions of, by any path."""
        found, stack, seen = list[TermSum](), list(terms), set[int]()
        while stack:
            term = stack.pop()
            if term not in seen:
                seen.add(term)
                found += [self.sums[term]] if term in self.sums else []
                stack += self.keys[term][2]
        return found


@dataclass(slots=True)
class OperatorCall:
    """An operator with what it was given. `outs`: the shapes of its results."""

    name: str
    values: list[Content]
    shapes: list[Shape]
    args: list[Any]
    named: dict[str, Any]
    outs: list[Shape]

    def arg(self, at: int, name: str = "", default: Any = None) -> Any:
        """An argument by its place or its name."""
        return self.args[at] if at < len(self.args) else self.named.get(name, default)

    @property
    def attributes(self) -> str:
        """The arguments that are no tensors, as a part of a key."""
        return json.dumps(bared([self.args, self.named]), sort_keys=True)


def bared(value: Any) -> Any:
    """Arguments without the tensors."""
    if isinstance(value, dict):
        return "tensor" if is_reference(value) else {name: bared(one) for name, one in value.items()}
    return [bared(one) for one in value] if isinstance(value, list) else value


def is_reference(value: Any) -> bool:
    """Whether an argument is a tensor: its number, with the version of its storage."""
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).isdigit()


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


def reduced(meeting: bool, at: int = 1) -> Callable[[OperatorCall], Letters]:
    """A sum or mean over axes; where `meeting`, another operator, along whose axes no samples may lie."""

    def law(c: OperatorCall) -> Letters:
        rank = len(c.shapes[0])
        gone = axes(c.arg(at, "dim"), rank)
        text = closed(SMALL[:rank], gone if meeting else [])
        kept = len(c.outs[0]) == rank
        return [text], ["".join("1" if i in gone else x for i, x in enumerate(text) if kept or i not in gone)] * len(
            c.outs
        )

    return law


def fixed(text: str) -> Callable[[OperatorCall], Letters]:
    """Letters that are always the same."""
    ins, outs = (side.split(",") for side in text.split("->"))
    return lambda c: (ins, outs)


def biased(c: OperatorCall) -> Letters:
    """A matrix product and a bias, which is added once: nothing is summed over samples."""
    return ["nm"[2 - len(c.shapes[0]) :], "nK", "Km"], ["nm"]


def convolved(c: OperatorCall) -> Letters:
    """A convolution: each sample with the same kernel."""
    inner = LARGE[: len(c.shapes[0]) - 1]
    return ["n" + inner, *[LARGE] * (len(c.shapes) - 1)], ["n" + inner]


def normed(c: OperatorCall) -> Letters:
    """Layer norm: input, weight and bias over the last axes; mean and rstd have one row there."""
    inner = LARGE[: len(c.args[1])]
    lead = SMALL[: len(c.shapes[0]) - len(inner)]
    return [lead + inner] + [inner] * (len(c.shapes) - 1), [lead + inner, *[lead + "1" * len(inner)] * 2]


def normed_back(c: OperatorCall) -> Letters:
    """Backward of layer norm: gradient, input, mean and rstd by row; the gradients of weight and bias are sums."""
    inner = LARGE[: len(c.args[2])]
    lead = SMALL[: len(c.shapes[0]) - len(inner)]
    row = lead + inner
    return [row, row, *[lead + "1" * len(inner)] * 2, *[inner] * (len(c.shapes) - 4)], [row, inner, inner]


def looked_up(c: OperatorCall) -> Letters:
    """Embedding: rows of a table by index. Backward: the rows of the gradient are added up by index."""
    index = SMALL[: len(c.shapes[1])]
    return ([index + "D", index], ["VD"]) if c.name.endswith("_backward") else (["VD", index], [index + "D"])


def labelled(c: OperatorCall) -> Letters:
    """Negative log-likelihood of rows with a label each. The second result counts the labels."""
    own, back = (
        "n" if len(c.shapes[0 if c.name == "nll_loss_forward" else 1]) == 2 else "",
        c.name != "nll_loss_forward",
    )
    kept = own if c.arg(4 if back else 3, "reduction") == 0 else ""
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


def cut(c: OperatorCall) -> Letters:
    """Parts of an axis, or one row of it; backward: among zeros. An axis that is cut has no samples here."""
    back = c.name.endswith("_backward")
    rank = len(c.outs[0] if back else c.shapes[0])
    axis = axes(c.arg(1 if c.name in ("select", "slice", "unbind") else 2, "dim", 0), rank)[0]
    whole = closed(SMALL[:rank], [axis])
    part = whole[:axis] + ("" if c.name.startswith(("select", "unbind")) else "P") + whole[axis + 1 :]
    return ([part], [whole]) if back else ([whole], [part] * len(c.outs))


def joined(c: OperatorCall) -> Letters:
    """Tensors side by side along an axis, or along a new one."""
    rank = len(c.outs[0])
    axis = axes(c.arg(1, "dim", 0), rank)[0]
    whole = closed(SMALL[:rank], [axis])
    return [whole if c.name == "cat" else whole[:axis] + whole[axis + 1 :]] * len(c.shapes), [whole]


def padded(c: OperatorCall) -> Letters:
    """Rows put before and behind those of some axes."""
    rank = len(c.shapes[0])
    text = closed(SMALL[:rank], [rank - 1 - i // 2 for i, n in enumerate(c.args[1]) if n])
    return [text], [text]


def attended(c: OperatorCall) -> Letters:
    """Attention: samples and heads are apart, the positions of one meet."""
    ins, outs = (["abXY"[: len(shape)] for shape in side] for side in (c.shapes, c.outs))
    if c.named.get("attn_mask") is not None:
        ins[-1] = ("a" if isinstance(c.values[-1], SampleRows) else "1") + "1" * (len(ins[-1]) - 1)
    return ins, outs


@dataclass(frozen=True, slots=True)
class SampleLaw:
    """A law. `linear`: the arguments in each of which the operator is linear by itself; `joint`: in all together."""

    letters: Callable[[OperatorCall], Letters]
    linear: tuple[int, ...] = ()
    joint: bool = False


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
ELEMENTS = """
    relu gelu silu tanh sigmoid exp log log1p sqrt rsqrt reciprocal pow abs sgn sign sin cos erf clamp clamp_min clamp_max where
    masked_fill eq ne lt le gt ge logical_not logical_and bitwise_and bitwise_not maximum minimum leaky_relu elu hardtanh
    softplus cast
"""
BACKWARDS = "threshold gelu silu tanh sigmoid leaky_relu elu hardtanh softplus native_dropout mse_loss"
LAWS: dict[str, SampleLaw] = {
    **dict.fromkeys(ELEMENTS.split(), SampleLaw(elements)),
    **dict.fromkeys([f"{name}_backward" for name in BACKWARDS.split()] + ["div", "neg"], SampleLaw(elements, (0,))),
    "mul": SampleLaw(elements, (0, 1)),
    **dict.fromkeys(("add", "sub", "rsub"), SampleLaw(elements, joint=True)),
    **dict.fromkeys(("_softmax", "_log_softmax"), SampleLaw(along(1))),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), SampleLaw(along(2), (0,))),
    "cumsum": SampleLaw(along(1), (0,)),
    **dict.fromkeys(("sum", "mean"), SampleLaw(reduced(False), (0,))),
    **dict.fromkeys(("amax", "amin", "prod", "any", "all", "var", "std", "argmax"), SampleLaw(reduced(True))),
    **dict.fromkeys(("norm", "linalg_vector_norm"), SampleLaw(reduced(True, 2))),
    "mm": SampleLaw(fixed("nk,km->nm"), (0, 1)),
    "bmm": SampleLaw(fixed("bnk,bkm->bnm"), (0, 1)),
    "mv": SampleLaw(fixed("nk,k->n"), (0, 1)),
    "dot": SampleLaw(fixed("n,n->"), (0, 1)),
    "addmm": SampleLaw(biased),
    "convolution": SampleLaw(convolved),
    "native_layer_norm": SampleLaw(normed),
    "native_layer_norm_backward": SampleLaw(normed_back, (0,)),
    "embedding": SampleLaw(looked_up),
    "embedding_dense_backward": SampleLaw(looked_up, (0,)),
    "nll_loss_forward": SampleLaw(labelled),
    "nll_loss_backward": SampleLaw(labelled, (0,)),
    **dict.fromkeys(("mse_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss"), SampleLaw(compared)),
    **dict.fromkeys(("t", "transpose", "permute", "unsqueeze", "squeeze", "expand"), SampleLaw(moved, (0,))),
    **dict.fromkeys(("select", "slice", "split", "unbind", "split_with_sizes"), SampleLaw(cut, (0,))),
    **dict.fromkeys(("select_backward", "slice_backward"), SampleLaw(cut, (0,))),
    **dict.fromkeys(("cat", "stack"), SampleLaw(joined, joint=True)),
    "constant_pad_nd": SampleLaw(padded),
    FLASH: SampleLaw(attended),
    f"{FLASH}_backward": SampleLaw(attended, (0,)),
}  # fmt: skip
REDUCTIONS = {
    "mse_loss": 2,
    "smooth_l1_loss": 2,
    "huber_loss": 2,
    "nll_loss_forward": 3,
    "mse_loss_backward": 3,
    "nll_loss_backward": 4,
}
"""Where the reduction of a loss stands: 0 none, 1 mean (the default), 2 sum."""
IGNORED = {"nll_loss_forward": (1, 4), "nll_loss_backward": (2, 5)}
"""Where the labels stand among the tensors, and the label that is ignored among the arguments."""
SAME = frozenset("detach alias clone _to_copy lift_fresh".split())
RESHAPED = frozenset("view _unsafe_view _reshape_alias".split())
VIEWS = frozenset("t transpose permute unsqueeze squeeze expand select slice split unbind split_with_sizes".split())
FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
GIVEN = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""The place of the number that fills the result."""
BLANK = frozenset("empty empty_like empty_strided new_empty new_empty_strided".split())
MADE = frozenset("arange eye linspace tril_indices triu_indices".split())
