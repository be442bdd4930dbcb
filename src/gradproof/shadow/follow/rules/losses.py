"""Losses: sums and means of elements, and what a mean is divided by. Batch norms: by running statistics, or not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

from gradproof.shadow.follow.interpreter import Call, Interpreter, Law
from gradproof.shadow.follow.laws import FIRST, RULES, broadcast, divided, fixed, pointwise, rule
from gradproof.shadow.follow.terms import ZERO, Combination, Shape, added
from gradproof.shadow.follow.values import NOUGHT, Value, part_shape, shared

ELEMENTWISE = (
    "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
LIKELIHOODS = ("nll_loss_forward", "nll_loss2d_forward")
LOSSES = frozenset((*ELEMENTWISE, *LIKELIHOODS))
"""Operators that are losses: to make one larger is never what is wanted."""


@rule(*ELEMENTWISE)
def loss(x: Interpreter, call: Call) -> list[Value] | None:
    """A loss of elements, by its reduction: 0 none, 1 the mean, 2 the sum."""
    reduction = call.argument(call.arguments.index("reduction"), "reduction", 1)
    if call.shapes[0] != call.shapes[1] or not prod(call.shapes[0]) or len(call.out_shape()) * reduction:
        return None
    rest = tuple(a for i, a in enumerate(call.attributes) if call.arguments[i : i + 1] != ("reduction",))
    if reduction == 0:
        return x.apply(Law(pointwise), replace(call, attributes=rest))
    made = x.apply(Law(broadcast), replace(call, attributes=("total", *rest)))
    most = max(call.values[:2], key=lambda v: (len(v.parts), bool(x.chosen(v.parts[0]))))
    count = prod(call.shapes[0])
    x.reduces(made[0], x.elements_of(most, count), "mean" if reduction == 1 else "sum", count)
    return [made[0].scaled(Fraction(1, count) if reduction == 1 else Fraction(1))]


@rule(
    "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward",
    "binary_cross_entropy_backward",
)  # fmt: skip
def loss_backward(x: Interpreter, call: Call) -> list[Value] | None:
    """The gradient of such a loss, linear in what comes from above."""
    reduction = call.argument(call.arguments.index("reduction"), "reduction", 1)
    if not prod(call.shapes[1]):
        return None
    rest = tuple(a for i, a in enumerate(call.attributes) if call.arguments[i : i + 1] != ("reduction",))
    made = x.apply(FIRST, replace(call, attributes=rest))
    return [made[0].scaled(Fraction(1, prod(call.shapes[1])) if reduction == 1 else Fraction(1))]


def labels(scores: Shape) -> tuple[str, str]:
    """Letters of the scores and of the labels of a negative log-likelihood."""
    return {1: ("C", ""), 2: ("aC", "a"), 4: ("aCde", "ade")}[len(scores)]


def weighing(x: Interpreter, call: Call, ignored: int) -> list[Combination]:
    """What a weighted loss divides by, in all or for each part: the weights of its classes, looked up and summed."""
    labels_, weights = call.values[1], call.values[2]
    every = not (x.integers or x.marks) and x.counting(labels_, call.shapes[1], ignored, call.tensors[1])
    if every and all(map(x.constant, every)) and sum(each[x.terms.one] for each in every) == prod(call.shapes[1]):
        table = call.some(
            2, 1, name="index", args=(call.tensors[2], [call.tensors[1]]), kwargs={}, arguments=("self", "indices"),
            out=[call.tensors[1]],
        )  # fmt: skip
        found = (RULES["index"](x, table) or [NOUGHT])[0]
        summed = RULES["sum"](
            x, replace(call, name="sum", args=call.args[:1], kwargs={}, attributes=(), arguments=(), values=[found],
                       tensors=call.tensors[:1], shapes=[call.shapes[1]], out=call.out[1:]),
        )  # fmt: skip
        if found is not NOUGHT and summed is not None and summed[0].shared:
            return [summed[0].parts[0]]
    small = part_shape(labels_, call.shapes[1])
    by = x.terms.named(x.fitted(x.whole(weights, call.shapes[2]), call.shapes[2]), call.shapes[2])
    return [
        x.terms.of(x.terms.make("weighed", (ignored, small), (x.terms.named(part, small), by), ()))
        for part in labels_.parts
    ]


@rule(*LIKELIHOODS)
def nll(x: Interpreter, call: Call) -> list[Value] | None:
    """The loss and the weight by which it was divided: a count of labels, or the weights of their classes."""
    reduction, ignored = call.args[3], call.args[4]
    weighed = len(call.tensors) == 3
    counts = (
        weighing(x, call, ignored) if weighed else x.counting(call.values[1], call.shapes[1], ignored, call.tensors[1])
    )
    rows = added(counts) if weighed else x.labels(counts, call.values[1], call.shapes[1])
    if not rows or len(call.shapes[0]) not in (1, 2, 4):
        return None
    scores, own = labels(call.shapes[0])
    ins = [scores, own, "C"][: len(call.tensors)]
    if reduction == 0:
        made = x.apply(Law(lambda _: (ins, [own, ""]), linear=(0,)), replace(call, attributes=(0, ignored)))
        return [made[0], NOUGHT]
    one = replace(call, out=call.out[:1], attributes=(2, ignored))
    made = x.apply(Law(lambda _: (ins, [""]), linear=(0,)), one)
    if weighed:
        return [divided(x, made[0], rows) if reduction == 1 else made[0], shared(rows)]
    if len(counts) == len(made[0].parts[0]):  # else labels of all samples are one term
        x.reduces(made[0], counts, "mean" if reduction == 1 else "sum", rows)
    return [divided(x, made[0], rows) if reduction == 1 else made[0], shared(rows)]


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_backward(x: Interpreter, call: Call) -> list[Value] | None:
    """Its gradient, linear in what comes from above; the scores give a shape alone."""
    reduction, ignored = call.args[4], call.args[5]
    counted = call.values[-1].parts[0] if call.values[-1].shared else ZERO
    if len(call.tensors) not in (4, 5) or len(call.shapes[1]) not in (1, 2, 4) or (reduction == 1 and not counted):
        return None
    scores, own = labels(call.shapes[1])
    above = own if reduction == 0 else ""
    at = [0, 2, 3][: len(call.tensors) - 2]
    classes = call.shapes[1][scores.index("C")]
    part = call.some(*at, attributes=(reduction == 0, ignored, classes))
    made = x.apply(Law(lambda _: ([above, own, "C"][: len(at)], [scores]), linear=(0,)), part)
    return [divided(x, made[0], counted) if reduction == 1 else made[0]]


CTC = ("b", "AbC", "bD", "b", "b", "b", "bEF", "->AbC")
"""Letters of the gradient of a loss over alignments, whose labels are a matrix: what comes from above is first."""


@rule("_ctc_loss", "_ctc_loss_backward")
def alignments(x: Interpreter, call: Call) -> list[Value] | None:
    """A loss over alignments, and its gradient: each sample apart, along the second axis of its scores."""
    ranks = "".join(str(len(shape)) for shape in call.shapes)
    laws = {"3211": Law(fixed(*CTC[1:5], "->b", "->bEF")), "1321113": Law(fixed(*CTC), linear=(0,))}
    return x.apply(laws[ranks], call) if ranks in laws else None


@rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(x: Interpreter, call: Call) -> list[Value] | None:
    """A batch norm with running statistics: each sample apart. In training, rows of one channel are coupled."""
    if call.name != "_native_batch_norm_legit_no_training" and call.args[5]:
        return _by_channel(x, call, 1)
    made = x.apply(Law(fixed("aZ*", "Z*", "->aZ*")), replace(call, out=call.out[:1]))
    return made + [NOUGHT] * (len(call.out) - 1)


@rule("native_batch_norm_backward")
def batch_norm_backward(x: Interpreter, call: Call) -> list[Value] | None:
    """Its gradient: of the input apart, of the weights a sum."""
    if call.args[7]:
        return _by_channel(x, call, 2, linear=(0,))
    return x.apply(Law(fixed("aZ*", "aZ*", "Z*", "->aZ*", "->Z"), linear=(0,)), call)


def _by_channel(x: Interpreter, call: Call, whole: int, linear: tuple[int, ...] = ()) -> list[Value] | None:
    """A batch norm in which each channel is one of a sample, as an instance norm calls it; None for another.

    `whole`: how many of its arguments have the input's axes; the others have an element for each channel.
    """
    if not any(value.axis == 1 and len(value.parts) > 1 for value in call.values[:whole]):
        return None  # one part may lie along any axis
    return x.apply(Law(fixed(*["ZbZ*"] * whole, "b", "->ZbZ*", "->b"), linear=linear), call)
