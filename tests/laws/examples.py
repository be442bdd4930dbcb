"""On what the laws are tried and proved, and what is not: operators, and mutants that are true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradproof.shadow.follow import engine as engine
from gradproof.shadow.follow.laws import LAWS, RULES
from tests.operator_examples import EXAMPLES, Bool, Example, Int, Maker, T


def pairs(shape: tuple[int, ...]) -> Callable[[Maker], torch.Tensor]:
    """A random tensor of complex numbers."""
    return lambda maker: torch.view_as_complex(maker.made(T((*shape, 2))).double())


def moved(name: str, *examples: Example) -> tuple[str, tuple[Example, ...]]:
    """An operator and its examples."""
    return f"aten.{name}", examples


MOVED = [
    moved("view", Example(T((4, 3, 2)), [12, 2]), Example(T((2, 6)), [2, 3, 2]), Example(T((2, 6)), [12])),
    moved("_unsafe_view", Example(T((4, 6)), [4, 2, 3]), Example(T((4, 2, 3)), [8, 3])),
    moved("reshape", Example(T((4, 3)), [3, 4]), Example(T((4, 3)), [2, 2, 3])),
    moved("t", Example(T((4, 3))), Example(T((3,)))),
    moved("transpose", Example(T((4, 3, 2)), 0, 1), Example(T((4, 3, 2)), -1, 0)),
    moved("permute", Example(T((4, 3, 2)), [2, 0, 1]), Example(T((4, 3, 2)), [-1, 1, 0])),
    moved("expand", Example(T((4, 1)), [4, 3]), Example(T((4, 1)), [2, 4, 3]), Example(T((3,)), [2, 3])),
    moved("view_as_real", Example(pairs((4, 3)))),
    moved("view_as_complex", Example(T((4, 3, 2)))),
    moved("_conj", Example(pairs((4, 3)))),
    moved("resolve_conj", Example(pairs((4, 3)))),
    moved("_fft_r2c", Example(T((4, 3, 6)), [2], 0, True), Example(T((4, 3, 6)), [1, 2], 1, False)),
    moved("_fft_c2c", Example(pairs((4, 3, 4)), [1, 2], 0, True)),
    moved("_fft_c2r", Example(pairs((4, 3, 4)), [2], 2, 6)),
    moved("repeat", Example(T((4, 1)), [1, 3]), Example(T((1, 3)), [4, 2, 1]), Example(T((4, 3)), [2, 1])),
    moved("slice", Example(T((4, 6)), 1, 1, 5, 2), Example(T((4, 6)), 0, 1, 3), Example(T((6, 2)), 0, -3, 9)),
    moved("narrow", Example(T((4, 6)), 1, 2, 3), Example(T((4, 6)), 0, 2, 2)),
    moved("select", Example(T((4, 6)), 0, 2), Example(T((4, 6)), 1, -1), Example(T((4, 2, 3)), -2, 1)),
    moved("split", Example(T((4, 6)), 2), Example(T((4, 6)), 4, -1)),
    moved("split_with_sizes", Example(T((4, 6)), [1, 3]), Example(T((4, 6)), [1, 2, 3], 1)),
    moved("unbind", Example(T((4, 3))), Example(T((4, 3)), 1)),
    moved("unsqueeze", Example(T((4, 3)), 0), Example(T((4, 3)), -1), Example(T((4, 3)), 1)),
    moved("squeeze", Example(T((4, 1, 3))), Example(T((4, 1, 3)), 1), Example(T((1, 4)), 0)),
    moved("detach", Example(T((4, 3)))),
    moved("alias", Example(T((4, 3)))),
    moved("acos", Example(T((4, 3), -0.9, 0.9))),
    moved("asin", Example(T((4, 3), -0.9, 0.9))),
    moved("atan2", Example(T((4, 3)), T((4, 3)))),
    moved("celu", Example(T((4, 3)))),
    moved("cummax", Example(T((4, 3)), 1), Example(T((4, 3)), -1)),
    moved("cummin", Example(T((4, 3)), 0)),
    moved("logcumsumexp", Example(T((4, 3)), 1)),
    moved("median", Example(T((4, 3)), 1), Example(T((4, 3)))),
    moved("_weight_norm_interface_backward", Example(T((4, 3)), T((4, 3)), T((4, 1)), T((4, 1), 0.5, 2.0), 0)),
    moved("gather", Example(T((4, 5)), 1, Int((4, 3), 5)), Example(T((4, 5)), 0, Int((2, 5), 4))),
    moved(
        "nll_loss2d_forward",
        *(
            Example(T((4, 3, 2, 2)), Int((4, 2, 2), 3), w, r, -100)
            for w in (None, T((3,), 0.5, 2.0))
            for r in (0, 1, 2)
        ),
    ),
    moved(
        "nll_loss2d_backward",
        *(
            Example(T(() if r else (4, 2, 2)), T((4, 3, 2, 2)), Int((4, 2, 2), 3), None, r, -100, T((), 16.0, 16.0))
            for r in (0, 2)
        ),
    ),
    *(
        moved(name, Example(T((5, 3), 0.0, 0.0), [Int((4,), 5)], T((4, 3)), True, *rest))
        for name, rest in (("_index_put_impl", (False,)), ("_unsafe_index_put", ()))
    ),
    moved(
        "index",
        Example(T((4, 3, 2)), [torch.arange(4), Int((4,), 3)]),
        Example(T((4, 3, 2)), [torch.arange(4).view(4, 1), torch.arange(3), Int((4, 3), 2)]),
        Example(T((4, 3, 2)), [torch.arange(4), None, Int((4,), 2)]),
    ),
    moved(
        "index_put",
        Example(T((5, 3), 0.0, 0.0), [Int((4,), 5)], T((4, 3)), True),
        Example(T((4, 3), 0.0, 0.0), [torch.arange(4), Int((4,), 3)], T((4,)), True),
        Example(T((4, 3, 2)), [Bool((4, 3))], T(())),
    ),
    moved("roll", Example(T((4, 3)), [1], [1]), Example(T((4, 3)), [1])),
    moved("sum", Example(T((4, 2, 3)), [0, 1], True), Example(T((4, 2, 3)), [-1]), Example(Int((4, 3), 9))),
    moved("sum", Example(T((4, 3)), [0], False, dtype=torch.int64)),
    moved("cumsum", Example(T((4, 3)), 1, dtype=torch.int64)),
    moved("mean", Example(T((4, 2, 3)), [0, 2]), Example(T((4, 2, 3)), [1], True)),
]
"""Movements, and forms for which `EXAMPLES` has no example."""
RARE: dict[str, list[Example]] = {
    "aten.max_pool3d_with_indices": [Example(T((2, 2, 3, 3, 2)), [2, 2, 2], [1, 1, 1])],
    "aten.max_pool3d_with_indices_backward": [
        Example(T((2, 2, 2, 2, 1)), T((2, 2, 3, 3, 2)), [2, 2, 2], [1, 1, 1], [0, 0, 0], [1, 1, 1], False,
        Int((2, 2, 2, 2, 1), 18)),
    ],
    "aten.avg_pool3d": [Example(T((2, 2, 3, 3, 2)), [2, 2, 2], [1, 1, 1])],
    "aten.avg_pool3d_backward": [
        Example(T((2, 2, 2, 2, 1)), T((2, 2, 3, 3, 2)), [2, 2, 2], [1, 1, 1], [0, 0, 0], False, True, None),
    ],
    "aten._adaptive_avg_pool3d": [Example(T((2, 2, 3, 3, 2)), [2, 2, 1])],
    "aten._adaptive_avg_pool3d_backward": [Example(T((2, 2, 2, 2, 1)), T((2, 2, 3, 3, 2)))],
    "aten.adaptive_max_pool3d": [Example(T((2, 2, 3, 3, 2)), [2, 2, 1])],
    "aten.adaptive_max_pool3d_backward": [
        Example(T((2, 2, 2, 2, 1)), T((2, 2, 3, 3, 2)), Int((2, 2, 2, 2, 1), 18)),
    ],
    "aten.adaptive_max_pool2d_backward": [Example(T((2, 2, 2, 2)), T((2, 2, 3, 3)), Int((2, 2, 2, 2), 9))],
    "aten.upsample_nearest3d": [Example(T((2, 2, 2, 2, 2)), [4, 4, 2])],
    "aten.upsample_nearest3d_backward": [Example(T((2, 2, 4, 4, 2)), [4, 4, 2], [2, 2, 2, 2, 2])],
    **{f"aten.{kind}_pad{rank}d": [Example(T((2, 3, 4, 4, 4)[: 2 + rank]), [1, 2] * rank)]
       for kind in ("reflection", "replication") for rank in (1, 2, 3)},
    **{f"aten.{kind}_pad{rank}d_backward": [
        Example(T((2, 3, 7, 7, 7)[: 2 + rank]), T((2, 3, 4, 4, 4)[: 2 + rank]), [1, 2] * rank),
    ] for kind in ("reflection", "replication") for rank in (1, 2)},
    **{f"aten.{kind}_pad3d_backward": [Example(T((2, 1, 4, 4, 4)), T((2, 1, 2, 2, 2)), [1] * 6)]
       for kind in ("reflection", "replication")},
    "aten.glu": [Example(T((2, 3, 4))), Example(T((4, 3)), 0)],
    "aten.glu_backward": [Example(T((2, 3, 2)), T((2, 3, 4)), -1), Example(T((2, 3)), T((4, 3)), 0)],
    "aten.hardshrink": [Example(T((2, 3)))],
    "aten.hardshrink_backward": [Example(T((2, 3)), T((2, 3)), 0.5)],
    "aten.softshrink_backward": [Example(T((2, 3)), T((2, 3)), 0.5)],
    "aten.erfinv": [Example(T((2, 3), -0.9, 0.9))],
    "aten.frac": [Example(T((2, 3)))],
    "aten.logical_xor": [Example(Bool((2, 3)), Bool((3,)))],
    "aten.cumprod": [Example(T((4, 3)), 1), Example(T((4, 3)), 0)],
}  # fmt: skip
"""Volumes, pads, and others that few loops use."""
UNTRIED = {
    **dict.fromkeys(["_ctc_loss", "_ctc_loss_backward", "_embedding_bag", "_embedding_bag_backward"], "by loops alone"),
    "broadcast_to": "as view",
    "chunk": "as view",
    "contiguous": "as view",
    "expand_as": "as view",
    "flatten": "as view",
    "numpy_T": "as view",
    "swapaxes": "as view",
    "tensor_split": "as view",
    "to": "as _to_copy",
    "type_as": "as _to_copy",
    "view_as": "as view",
    "true_divide": "as div",
    "positive": "as clone",
    "_reshape_alias": "as view",
    "lift_fresh": "as clone",
    "prelu": "torch decomposes it",
    "rms_norm": "torch decomposes it",
    "arange": "it takes no tensor",
    "full": "it takes no tensor",
    "ones": "it takes no tensor",
    "zeros": "it takes no tensor",
    "scalar_tensor": "it takes no tensor",
}
"""Operators that no example tries, and why: composite ones never reach the engine under their own name."""


EQUIVALENT = {
    **dict.fromkeys(
        [
            "_adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "mean", "pixel_shuffle", "pixel_unshuffle",
            "sum", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
            "upsample_nearest2d", "xlogy", "avg_pool3d", "_adaptive_avg_pool3d", "upsample_nearest3d",
        ],
        "linear in argument 0",
    ),
    "mul": "linear in argument 1",
}  # fmt: skip
"""Mutants that are true: the law claims less than it could."""
TOO_WEAK = ("eq", "isinf", "isnan", "logical_not", "nan_to_num")
"""Operators whose examples have no number at which a false claim of linearity shows."""


Q, KV, SUMS = T((2, 1, 3, 2)), T((2, 1, 2, 2)), T((2, 1, 3), 1.0, 3.0)
NONE, CLASSES, TOTAL = T(()), T((5,), 0.1, 1.0), T((), 16.0, 16.0)
PICTURE, FLAT = T((2, 2, 3, 3)), ([1], [0], [1], False, [0])
SMALL: dict[str, list[Example]] = {
    "_scaled_dot_product_flash_attention_for_cpu": [
        Example(Q, KV, KV), Example(Q, Q, Q, 0.0, True), Example(Q, KV, KV, scale=0.3),
        Example(Q, KV, KV, attn_mask=T((2, 1, 3, 2))),
    ],
    "_scaled_dot_product_flash_attention_for_cpu_backward": [
        Example(Q, Q, KV, KV, Q, SUMS, 0.0, False), Example(Q, Q, Q, Q, Q, SUMS, 0.0, True),
        Example(Q, Q, KV, KV, Q, SUMS, 0.0, False, attn_mask=T((2, 1, 3, 2)), scale=0.3),
    ],
    "convolution": [
        Example(PICTURE, T((2, 2, 2, 2)), T((2,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Example(PICTURE, T((4, 1, 2, 2)), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        Example(T((2, 2, 3)), T((3, 2, 2)), T((3,)), *FLAT, 1),
        Example(PICTURE, T((2, 1, 2, 2)), T((2,)), [2, 2], [1, 1], [1, 1], True, [1, 0], 2),
    ],
    "convolution_backward": [
        Example(T((2, 2, 4, 4)), PICTURE, T((2, 2, 2, 2)), [2], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3),
        Example(T((2, 3, 2)), T((2, 2, 3)), T((3, 2, 2)), [0], *FLAT, 1, [False, True, False]),
        Example(T((2, 2, 4)), T((2, 2, 3)), T((2, 1, 2)), [2], [2], [1], [1], True, [0], 2, [True] * 3),
    ],
    "native_group_norm": [
        Example(T((2, 4, 2)), T((4,)), T((4,)), 2, 4, 2, 2, 1e-05), Example(T((2, 4)), None, None, 2, 4, 1, 4, 1e-05),
    ],
    "native_group_norm_backward": [
        Example(T((2, 4, 2)), T((2, 4, 2)), T((2, 2)), T((2, 2), 0.5, 2.0), T((4,)), 2, 4, 2, 2, [True] * 3),
    ],
    "native_batch_norm_backward": [
        Example(
            T((2, 2, 3)), T((2, 2, 3)), T((2,)), T((2,)), T((2,), 0.5, 2.0), T((2,)), T((2,), 0.5, 2.0), False, 1e-05,
            [True] * 3,
        ),
    ],
    "avg_pool2d": [
        Example(PICTURE, [2, 2], [1, 1]), Example(PICTURE, [3, 3], [2, 2], [1, 1], True, True),
        Example(PICTURE, [2, 2], [2, 2], [0, 0], False, True, 3),
    ],
    "nll_loss_backward": [
        *(Example(NONE, T((4, 5)), Int((4,), 5), w, r, 2, TOTAL) for w in (None, CLASSES) for r in (1, 2)),
        Example(T((4,)), T((4, 5)), Int((4,), 5), CLASSES, 0, 1, TOTAL),
    ],
    "nll_loss2d_backward": [
        Example(NONE, T((2, 5, 2, 3)), Int((2, 2, 3), 5), CLASSES, 1, 2, TOTAL),
        Example(T((2, 2, 3)), T((2, 5, 2, 3)), Int((2, 2, 3), 5), None, 0, 2, TOTAL),
    ],
    "native_layer_norm_backward": [
        Example(T((2, 2, 3)), T((2, 2, 3)), [3], T((2, 2, 1)), T((2, 2, 1), 0.5, 2.0), T((3,)), T((3,)), [True] * 3),
    ],
}  # fmt: skip
"""What takes long in polynomials is proved on fewer elements than it is tried on."""


COMPLEX = frozenset({"_conj", "resolve_conj", "view_as_real", "view_as_complex", "_fft_r2c", "_fft_c2c", "_fft_c2r"})
"""Laws of complex numbers are tried and not proved: polynomials here are those of real ones."""


def examples(small: bool = False) -> Iterator[tuple[str, str, Example, Any, Any]]:
    """Each example of an operator that has a law or a rule: name, operator, example, arguments."""
    for op, given in [*EXAMPLES.items(), *RARE.items(), *MOVED]:
        base = op.split(".")[1]
        name = base if base.endswith("__") else base.rstrip("_")
        if (name not in LAWS and name not in RULES) or (small and name in COMPLEX):
            continue
        for i, example in enumerate(SMALL.get(name, given) if small else given):
            maker = Maker(i, "float64")
            args = [maker.made(a) for a in example.args]
            yield name, op, example, args, {key: maker.made(v) for key, v in example.kwargs.items()}
