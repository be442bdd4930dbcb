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

from gradproof.shadow.whole.interpreter import LETTERS, Call, Interpreter, Law, Letters
from gradproof.shadow.whole.terms import Combination, frozen, multiplied
from gradproof.shadow.whole.values import Value

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
    """`gather` and `scatter`: the axis that is looked up is coupled, others are mapped where all sizes agree."""
    axis = call.args[1] % max(len(call.shapes[0]), 1)
    sizes = enumerate(zip(*call.shapes, strict=True))
    own = "".join(LETTERS[i].upper() if i == axis or len({*at}) > 1 else LETTERS[i] for i, at in sizes)
    return [own] * len(call.values), [own]


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


def enlarged(call: Call) -> tuple[object, ...]:
    """The arguments of the gradient of an interpolation, without the number of samples in the shape of its input."""
    return (*call.attributes[:2], frozen(call.args[2][1:]), *call.attributes[3:])


def shuffled(call: Call) -> Letters:
    """The last three axes, which are those of one picture, stay whole."""
    kept = LETTERS[: max(len(call.shapes[0]) - 3, 0)]
    return [kept + "XYZ"[: len(call.shapes[0])]], [kept + "XYZ"[: len(call.out_shape())]]


def above(law: Law, *names: str) -> dict[str, Law]:
    """One law for several operators."""
    return dict.fromkeys(names, law)


def turned(call: Call) -> Letters:
    """The axes that are turned round, or rolled, stay whole; without a list of them it is all axes."""
    rank = len(call.shapes[0])
    axes = {axis % rank for axis in call.argument(call.arguments.index("dims"), "dims", ()) or range(rank)}
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
    "gather": Law(chosen, linear=(0,)),
    **above(Law(chosen), "scatter", "scatter_add"),
    **above(Law(turned, linear=(0,)), "flip", "roll"),
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
        "upsample_bilinear2d", "adaptive_max_pool2d", "upsample_nearest1d",
        "upsample_bicubic2d", "upsample_linear1d",
    ),
    **above(
        Law(batched(), linear=(0,)),
        "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
    ),
    **above(Law(shuffled), "pixel_shuffle", "pixel_unshuffle"),
    **above(
        Law(batched(), linear=(0,), attributes=enlarged),
        "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_nearest1d_backward",
        "upsample_bicubic2d_backward", "upsample_linear1d_backward",
    ),
    "_scaled_dot_product_flash_attention_for_cpu": Law(attention),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Law(attention, linear=(0,)),
}  # fmt: skip
"""Samples are mapped over axes that these leave in lower case. Source: the definitions in torch's own documentation."""


# -- Rules: operators whose values are worked out and not named. `arithmetic` and `losses` enter theirs.

Rule = Callable[[Interpreter, Call], "list[Value] | None"]
RULES: dict[str, Rule] = {}
"""Operator (without the namespace and the underscore of a form in place) to rule."""

FIRST = Law(pointwise, linear=(0,), uniform=True)
BOTH = Law(pointwise, linear=(0, 1), uniform=True, commutes=True)
SUM = Law(summed, linear=(0,))


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table."""

    def put(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return put


def divided(x: Interpreter, value: Value, count: Combination) -> Value:
    """A value divided by a count."""
    by, powers = x.scalar(count)
    return x.rescaled(value, 1 / by, multiplied({}, powers, -1))
