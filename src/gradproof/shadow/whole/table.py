"""The table of laws: operator to law. What is not here, and has no rule, is an uninterpreted function."""

from __future__ import annotations

from gradproof.shadow.whole.laws import (
    LETTERS,
    Call,
    Law,
    Letters,
    along,
    batched,
    coupled,
    fixed,
    normalised,
    normalised_back,
    over,
    pointwise,
    reduced,
)
from gradproof.shadow.whole.terms import frozen


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


LAWS: dict[str, Law] = {
    **above(
        Law(pointwise, uniform=True),
        "abs", "acos", "asin", "atan", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "celu", "clamp",
        "clamp_max", "clamp_min", "cos", "cosh", "div", "add", "sub", "mul", "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1",
        "floor", "floor_divide", "fmod", "ge", "gelu", "gt", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le",
        "leaky_relu", "lerp", "log", "log10", "log1p", "log2", "log_sigmoid_forward", "logical_and", "logical_not", "logical_or",
        "lt", "masked_fill", "maximum", "minimum", "mish", "nan_to_num", "ne", "pow", "prelu", "_prelu_kernel", "reciprocal", "relu",
        "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink", "sqrt",
        "square", "tan", "tanh", "threshold", "trunc", "where", "addcmul", "addcdiv", "sgn", "atan2", "xlogy", "logit",
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
    **above(
        Law(reduced),
        "amax", "amin", "argmax", "argmin", "all", "any", "var", "std", "var_mean", "std_mean", "logsumexp", "prod",
        "linalg_vector_norm", "norm", "max", "min", "median", "count_nonzero", "sum", "mean",
    ),
    **above(Law(triangle, linear=(0,)), "tril", "triu"),
    **above(Law(normalised), "native_layer_norm", "_fused_rms_norm", "rms_norm"),
    **above(Law(normalised_back, linear=(0,)), "native_layer_norm_backward", "_fused_rms_norm_backward"),
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
    **above(
        Law(attention), "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Law(attention, linear=(0,)),
}  # fmt: skip
"""Samples are mapped over axes that these leave in lower case. Source: the definitions in torch's own documentation."""
