"""Arguments on which the laws of operators are tried against the real kernels, and how they are made.

A tensor of an example is `T` (uniform), `Int` or `Bool` (random), or what a function makes by a maker; lists of these,
and plain values, are passed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class T:
    """A random floating-point tensor, uniform between `low` and `high`."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Int:
    """A random tensor of integers, `low` included and `high` excluded."""

    shape: tuple[int, ...]
    high: int
    low: int = 0
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Bool:
    """A random Boolean tensor."""

    shape: tuple[int, ...]


class Example:
    """Arguments of an operator; `overload` picks one of its overloads."""

    def __init__(self, *args: Any, overload: str = "", **kwargs: Any) -> None:
        self.args, self.kwargs, self.overload = args, kwargs, overload


class Maker:
    """Tensors of an example, from one random generator; floating-point ones of `dtype`."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.random, self.dtype = np.random.default_rng(seed), dtype

    def made(self, spec: Any) -> Any:
        """An argument as an operator takes it."""
        if isinstance(spec, T):
            drawn = np.asarray(self.random.uniform(spec.low, spec.high, spec.shape))
            return torch.from_numpy(drawn).to(getattr(torch, self.dtype))
        if callable(spec):
            return spec(self)
        if isinstance(spec, Int):
            drawn = np.asarray(self.random.integers(spec.low, spec.high, spec.shape))
            return torch.from_numpy(drawn).to(getattr(torch, spec.dtype))
        if isinstance(spec, Bool):
            return torch.from_numpy(np.asarray(self.random.uniform(size=spec.shape) < 0.5))
        if isinstance(spec, list | tuple):
            return [self.made(s) for s in spec]
        return getattr(torch, spec) if isinstance(spec, str) and hasattr(torch, spec) and spec[-1].isdigit() else spec


def overload(op: str, example: Example, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The overload that torch itself picks for `aten.name`, or the one that the name or the example gives."""
    space, base, *rest = op.split(".")
    given = rest[0] if rest else example.overload
    picked = given or torch._C._jit_resolve_packet(f"{space}::{base}", *args, **kwargs)
    return getattr(getattr(getattr(torch.ops, space), base), picked or "default")


# fmt: off
EXAMPLES: dict[str, list[Example]] = {
    # activation
    "aten.relu": [Example(T((2, 3)))],
    "aten.threshold": [Example(T((2, 3)), 0.5, -1.0)],
    "aten.threshold_backward": [Example(T((2, 3)), T((2, 3)), 0), Example(T((2, 3)), T((2, 3)), 0.5)],
    "aten.sigmoid": [Example(T((2, 3)))],
    "aten.sigmoid_backward": [Example(T((2, 3)), T((2, 3), 0.1, 0.9))],
    "aten.tanh": [Example(T((2, 3)))],
    "aten.tanh_backward": [Example(T((2, 3)), T((2, 3), 0.1, 0.9))],
    "aten.logit": [Example(T((2, 3), 0.1, 0.9)), Example(T((2, 3), -0.2, 1.2), 0.25)],
    "aten.logit_backward": [Example(T((2, 3)), T((2, 3), 0.1, 0.9)), Example(T((2, 3)), T((2, 3), 0.1, 0.9), 0.25)],
    "aten.gelu": [Example(T((2, 3))), Example(T((2, 3)), approximate="tanh")],
    "aten.gelu_backward": [Example(T((2, 3)), T((2, 3))), Example(T((2, 3)), T((2, 3)), approximate="tanh")],
    "aten.silu": [Example(T((2, 3)))],
    "aten.silu_backward": [Example(T((2, 3)), T((2, 3)))],
    "aten.mish": [Example(T((2, 3)))],
    "aten.mish_backward": [Example(T((2, 3)), T((2, 3)))],
    "aten.softplus": [Example(T((2, 3))), Example(T((2, 3), -4, 4), 0.5, 1.0)],
    "aten.softplus_backward": [
        Example(T((2, 3)), T((2, 3)), 1.0, 20.0), Example(T((2, 3)), T((2, 3), -4, 4), 0.5, 1.0),
    ],
    "aten.log_sigmoid_forward": [Example(T((2, 3)))],
    "aten.log_sigmoid_backward": [Example(T((2, 3)), T((2, 3)), T((2, 3), 0.1, 1.0))],
    "aten.elu": [Example(T((2, 3))), Example(T((2, 3)), 1.5, 1.25, 0.5)],
    "aten.elu_backward": [
        Example(T((2, 3)), 1.5, 1.25, 0.5, True, T((2, 3), -1.0, 1.0)),
        Example(T((2, 3)), 1.5, 1.25, 0.5, False, T((2, 3), -1.0, 1.0)),
    ],
    "aten.leaky_relu": [Example(T((2, 3))), Example(T((2, 3)), 0.25)],
    "aten.leaky_relu_backward": [Example(T((2, 3)), T((2, 3)), 0.25, False)],
    "aten._prelu_kernel": [Example(T((2, 3)), T((1, 3)))],
    "aten.hardtanh": [Example(T((2, 3))), Example(T((2, 3)), 0.0, 1.5)],
    "aten.hardtanh_backward": [Example(T((2, 3)), T((2, 3)), -1.0, 1.0)],
    "aten.hardsigmoid": [Example(T((2, 4), -5.0, 5.0))],
    "aten.hardsigmoid_backward": [Example(T((2, 4), -5.0, 5.0), T((2, 4), -5.0, 5.0))],
    "aten.hardswish": [Example(T((2, 4), -5.0, 5.0))],
    "aten.hardswish_backward": [Example(T((2, 4), -5.0, 5.0), T((2, 4), -5.0, 5.0))],
    "aten.softshrink": [Example(T((2, 3))), Example(T((2, 3)), 0.25)],
    "aten._softmax": [Example(T((2, 3, 4)), -1, False), Example(T((2, 3, 4)), 1, False), Example(T(()), 0, False)],
    "aten._safe_softmax": [Example(T((2, 3, 4)), -1), Example(T((2, 3, 4)), 1)],
    "aten._softmax_backward_data": [Example(T((2, 3, 4)), T((2, 3, 4), 0.0, 1.0), -1, "float32")],
    "aten._log_softmax": [
        Example(T((2, 3, 4)), -1, False), Example(T((2, 3, 4)), 1, False), Example(T((5, 3)), 1, False),
    ],
    "aten._log_softmax_backward_data": [Example(T((2, 3, 4)), T((2, 3, 4), -3.0, 0.0), 1, "float32")],
    # attention
    "aten._scaled_dot_product_flash_attention_for_cpu": [
        Example(T((2, 3, 5, 4)), T((2, 3, 6, 4)), T((2, 3, 6, 4))),
        Example(T((2, 3, 5, 4)), T((2, 3, 5, 4)), T((2, 3, 5, 4)), 0.0, True),
        Example(T((2, 3, 5, 4)), T((2, 3, 6, 4)), T((2, 3, 6, 4)), scale=0.3),
        Example(T((2, 3, 5, 4)), T((2, 3, 6, 4)), T((2, 3, 6, 4)), attn_mask=T((2, 3, 5, 6))),
        Example(T((1, 2, 3, 3)), T((1, 2, 3, 3)), T((1, 2, 3, 3))),
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": [
        Example(T((2, 3, 5, 4)), T((2, 3, 5, 4)), T((2, 3, 6, 4)), T((2, 3, 6, 4)), T((2, 3, 5, 4)),
        T((2, 3, 5), 1.0, 3.0), 0.0, False), Example(T((2, 3, 5, 4)), T((2, 3, 5, 4)), T((2, 3, 5, 4)), T((2, 3, 5, 4)),
        T((2, 3, 5, 4)), T((2, 3, 5), 1.0, 3.0), 0.0, True), Example(T((2, 3, 5, 4)), T((2, 3, 5, 4)), T((2, 3, 6, 4)),
        T((2, 3, 6, 4)), T((2, 3, 5, 4)), T((2, 3, 5), 1.0, 3.0), 0.0, False, attn_mask=T((2, 3, 5, 6)), scale=0.3),
    ],
    # conv
    "aten.convolution": [
        Example(T((2, 4, 5, 4)), T((2, 4, 3, 3)), T((2,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Example(T((2, 4, 5, 4)), T((6, 2, 3, 2)), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        Example(T((2, 4, 5, 4)), T((4, 1, 3, 3)), T((4,)), [1], [1], [1], False, [0], 4),
        Example(T((2, 3, 5)), T((2, 3, 3)), T((2,)), [1], [0], [1], False, [0], 1),
        Example(T((1, 1, 3, 3, 4)), T((2, 1, 2, 2, 2)), T((2,)), [1, 1, 1], [0, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
        Example(T((2, 4, 5, 4)), T((4, 2, 3, 3)), T((2,)), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
        Example(T((2, 4, 5, 4)), T((4, 2, 2, 3)), T((4,)), [1, 2], [0, 1], [2, 1], True, [0, 0], 2),
    ],
    "aten.convolution_backward": [
        Example(T((2, 2, 5, 4)), T((2, 4, 5, 4)), T((2, 4, 3, 3)), [2], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        [True, True, True]), Example(T((2, 6, 3, 2)), T((2, 4, 5, 4)), T((6, 2, 3, 2)), [6], [2, 1], [1, 0],
        [1, 2], False, [0, 0], 2, [True, True, True]),
        Example(T((2, 2, 3)), T((2, 3, 5)), T((2, 3, 3)), [0], [1], [0], [1], False, [0], 1, [False, True, False]),
        Example(T((2, 2, 10, 7)), T((2, 4, 5, 4)), T((4, 2, 3, 3)), [2], [2, 2], [1, 1], [1, 1], True, [1, 0], 1,
        [True, True, True]), Example(T((2, 4, 7, 7)), T((2, 4, 5, 4)), T((4, 2, 2, 3)), [4], [1, 2], [0, 1],
        [2, 1], True, [0, 0], 2, [True, True, True]),
    ],
    "aten.avg_pool1d": [
        Example(T((2, 3, 5)), [2], [2]), Example(T((2, 3, 5)), [3], [2], [1], True, True),
        Example(T((2, 3, 5)), [3], [2], [1], False, False),
    ],
    "aten.avg_pool2d": [
        Example(T((2, 3, 5, 4)), [2, 2], [2, 2]), Example(T((2, 3, 5, 4)), [3, 3], [2, 2], [1, 1], True, True),
        Example(T((2, 3, 5, 4)), [3, 3], [2, 2], [1, 1], False, False),
        Example(T((2, 3, 5, 4)), [2, 2], [2, 2], [0, 0], False, True, 3),
    ],
    "aten.avg_pool2d_backward": [
        Example(T((2, 3, 2, 2)), T((2, 3, 5, 4)), [2, 2], [2, 2], [0, 0], False, True, None),
        Example(T((2, 3, 3, 3)), T((2, 3, 5, 4)), [3, 3], [2, 2], [1, 1], True, False, None),
    ],
    "aten._adaptive_avg_pool2d": [Example(T((2, 3, 5, 4)), [2, 3]), Example(T((2, 3, 5, 4)), [1, 1])],
    "aten._adaptive_avg_pool2d_backward": [Example(T((2, 3, 2, 3)), T((2, 3, 5, 4)))],
    "aten.max_pool2d_with_indices": [
        Example(T((2, 3, 5, 4)), [2, 2], [2, 2]), Example(T((2, 3, 5, 4)), [3, 3], [2, 2], [1, 1], [1, 1], True),
        Example(T((2, 3, 5, 4)), [2, 2], [1, 1], [1, 1], [2, 2]),
    ],
    "aten.max_pool2d_with_indices_backward": [
        Example(T((2, 3, 2, 2)), T((2, 3, 5, 4)), [2, 2], [2, 2], [0, 0], [1, 1], False, Int((2, 3, 2, 2), 20)),
    ],
    "aten.adaptive_max_pool2d": [Example(T((2, 3, 5, 4)), [2, 3])],
    "aten.mm": [Example(T((2, 3)), T((3, 4)))],
    "aten.bmm": [Example(T((2, 2, 3)), T((2, 3, 4)))],
    "aten.addmm": [
        Example(T((4,)), T((2, 3)), T((3, 4))), Example(T((4,)), T((2, 3)), T((3, 4)), beta=0.5, alpha=2.0),
        Example(T((4,)), T((2, 3)), T((3, 4)), beta=0),
    ],
    "aten.baddbmm": [
        Example(T((2, 2, 4)), T((2, 2, 3)), T((2, 3, 4))),
        Example(T((2, 2, 4)), T((2, 2, 3)), T((2, 3, 4)), beta=0.5, alpha=2.0),
        Example(T((2, 2, 4)), T((2, 2, 3)), T((2, 3, 4)), beta=0),
    ],
    "aten.mv": [Example(T((2, 3)), T((3,)))],
    "aten.addmv": [
        Example(T((2,)), T((2, 3)), T((3,))), Example(T((2,)), T((2, 3)), T((3,)), beta=0.5, alpha=2.0),
        Example(T((2,)), T((2, 3)), T((3,)), beta=0),
    ],
    "aten.dot": [Example(T((3,)), T((3,)))],
    "aten.vdot": [Example(T((3,)), T((3,)))],
    "aten.tril": [Example(T((2, 3, 3))), Example(T((2, 3)), 1), Example(T((2, 3)), -1)],
    "aten.triu": [Example(T((2, 3, 3))), Example(T((2, 3)), 1), Example(T((2, 3)), -1)],
    "aten.diagonal_backward": [
        Example(T((3,)), [3, 3], 0, 0, 1), Example(T((2, 2)), [2, 2, 3], 1, 1, 2), Example(T((2,)), [3, 2], -1, 0, 1),
    ],
    # index
    "aten.index": [
        Example(T((2, 3, 4)), [None, Int((2,), 3)], overload="Tensor"),
        Example(T((2, 3, 4)), [Int((2, 1), 2), None, Int((3,), 4)], overload="Tensor"),
        Example(T((2, 3, 4)), [Int((2, 2), 2, -2)], overload="Tensor"),
        Example(T((2, 3, 4)), [Bool((2, 3))], overload="Tensor"),
    ],
    "aten.index_put": [
        Example(T((2, 3, 4)), [Int((1,), 2)], T((3, 4))),
        Example(T((2, 3, 4)), [None, Int((5,), 3)], T((2, 5, 4)), True), Example(T((2, 3, 4)), [Bool((2, 3))], T(())),
        Example(T((2, 3, 4)), [Int((6,), 2), Int((6,), 3)], T((6, 1)), True),
    ],
    "aten._unsafe_index_put": [
        Example(T((2, 3, 4)), [Int((1,), 2)], T((3, 4))),
        Example(T((2, 3, 4)), [None, Int((5,), 3)], T((2, 5, 4)), True), Example(T((2, 3, 4)), [Bool((2, 3))], T(())),
        Example(T((2, 3, 4)), [Int((6,), 2), Int((6,), 3)], T((6, 1)), True),
    ],
    "aten._index_put_impl": [
        Example(T((2, 3, 4)), [Int((1,), 2)], T((3, 4))),
        Example(T((2, 3, 4)), [None, Int((5,), 3)], T((2, 5, 4)), True), Example(T((2, 3, 4)), [Bool((2, 3))], T(())),
        Example(T((2, 3, 4)), [Int((6,), 2), Int((6,), 3)], T((6, 1)), True),
    ],
    "aten.index_select": [Example(T((2, 3, 4)), 1, Int((4,), 3)), Example(T((2, 3, 4)), -1, Int((2,), 4))],
    "aten.index_add": [
        Example(T((2, 3, 4)), 1, Int((5,), 3), T((2, 5, 4))), Example(T((3, 4)), 1, Int((2,), 4), T((3, 2)), alpha=0.5),
    ],
    "aten.index_copy": [Example(T((2, 3, 4)), 1, Int((1,), 3), T((2, 1, 4)))],
    "aten.index_fill": [Example(T((2, 3, 4)), 1, Int((2,), 3), 0.5), Example(T((2, 3, 4)), 0, Int((1,), 2), T(()))],
    "aten.gather": [
        Example(T((2, 3, 4)), 1, Int((2, 1, 4), 3)), Example(T((2, 3, 4)), -1, Int((2, 3, 2), 4)),
        Example(T((3,)), 0, Int((5,), 3)),
    ],
    "aten.scatter_add": [
        Example(T((4, 3, 4), 0.0, 0.0), 1, Int((4, 5, 4), 3), T((4, 5, 4))),
        Example(T((2, 3, 4)), 1, Int((2, 5, 4), 3), T((2, 5, 4))), Example(T((2, 4)), 1, Int((2, 3), 3), T((2, 4))),
    ],
    "aten.scatter": [
        Example(T((2, 3, 4)), 1, Int((2, 1, 4), 3), T((2, 1, 4)), overload="src"),
        Example(T((2, 3, 4)), 1, Int((2, 1, 4), 3), 0.5, overload="value"),
        *(Example(T((4, 3, 4), x, x), 1, Int((4, 2, 4), 3), T((4, 2, 4)), overload="src") for x in (0.0, 0.5)),
    ],
    "aten.take": [Example(T((2, 3, 4)), Int((2, 3), 24, -24))],
    "aten.masked_select": [Example(T((2, 3, 4)), Bool((2, 3, 1))), Example(T((2, 3, 4)), Bool((4,)))],
    "aten.sort": [
        Example(T((2, 3, 4))), Example(T((2, 3, 4)), 1, True),
        Example(T((2, 3, 4)), stable=True, dim=0, descending=True, overload="stable"),
    ],
    "aten.topk": [Example(T((2, 3, 4)), 2), Example(T((2, 3, 4)), 1, 1, False), Example(T((2, 3, 4)), 4, -1)],
    "aten.embedding": [Example(T((5, 4)), Int((2, 3), 5)), Example(T((5, 4)), Int((2, 3), 5), 2)],
    "aten.embedding_dense_backward": [
        Example(T((2, 3, 4)), Int((2, 3), 5), 5, -1, False), Example(T((2, 7, 4)), Int((2, 7), 5), 5, 2, True),
    ],
    "aten.native_dropout": [Example(T((3, 4)), 0.25, True), Example(T((3, 4)), 0.25, False)],
    "aten.native_dropout_backward": [Example(T((3, 4)), Bool((3, 4)), 1.25)],
    "aten.upsample_nearest2d": [Example(T((2, 3, 3, 4)), [5, 7]), Example(T((2, 3, 3, 4)), [6, 8], 2.0, 2.0)],
    "aten.upsample_nearest1d": [Example(T((4, 3, 4)), [6])],
    "aten.upsample_linear1d": [Example(T((4, 3, 4)), [6], False), Example(T((4, 3, 4)), [7], True, 1.75)],
    "aten.upsample_bicubic2d": [Example(T((4, 2, 3, 4)), [6, 8], False, 2.0, 2.0)],
    "aten.upsample_nearest1d_backward": [Example(T((4, 3, 6)), [6], [4, 3, 4])],
    "aten.upsample_linear1d_backward": [Example(T((4, 3, 6)), [6], [4, 3, 4], False)],
    "aten.upsample_nearest2d_backward": [Example(T((4, 2, 6, 8)), [6, 8], [4, 2, 3, 4], 2.0, 2.0)],
    "aten.upsample_bilinear2d_backward": [Example(T((4, 2, 6, 8)), [6, 8], [4, 2, 3, 4], False, 2.0, 2.0)],
    "aten.upsample_bicubic2d_backward": [Example(T((4, 2, 6, 8)), [6, 8], [4, 2, 3, 4], False, 2.0, 2.0)],
    "aten.upsample_bilinear2d": [Example(T((4, 2, 3, 4)), [6, 8], False, 2.0, 2.0)],
    # losses
    "aten.nll_loss_forward": [
        Example(T((4, 5), -3.0, 0.0), Int((4,), 5), None, 1, -100),
        Example(T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 1, 2),
        Example(T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 2, 1),
        Example(T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 0, 1),
        Example(T((5,)), Int((), 5), None, 1, -100),
    ],
    "aten.nll_loss2d_forward": [
        Example(T((2, 5, 2, 3), -3.0, 0.0), Int((2, 2, 3), 5), None, 1, -100),
        Example(T((2, 5, 2, 3), -3.0, 0.0), Int((2, 2, 3), 5), T((5,), 0.1, 1.0), 1, 2),
        Example(T((2, 5, 2, 3), -3.0, 0.0), Int((2, 2, 3), 5), None, 0, 2),
    ],
    "aten.nll_loss_backward": [
        Example(T(()), T((4, 5), -3.0, 0.0), Int((4,), 5), None, 1, -100, T((), 1.0, 3.0)),
        Example(T(()), T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 1, 2, T((), 1.0, 3.0)),
        Example(T(()), T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 2, 1, T((), 1.0, 3.0)),
        Example(T((4,)), T((4, 5), -3.0, 0.0), Int((4,), 5), T((5,), 0.1, 1.0), 0, 1, T(())),
    ],
    "aten.nll_loss2d_backward": [
        Example(T(()), T((2, 5, 2, 3), -3.0, 0.0), Int((2, 2, 3), 5), T((5,), 0.1, 1.0), 1, 2, T((), 1.0, 3.0)),
        Example(T((2, 2, 3)), T((2, 5, 2, 3), -3.0, 0.0), Int((2, 2, 3), 5), None, 0, 2, T(())),
    ],
    "aten.mse_loss": [
        Example(T((4, 3)), T((4, 3))), Example(T((4, 3)), T((4, 3)), 0), Example(T((4, 3)), T((4, 3)), 2),
    ],
    "aten.mse_loss_backward": [
        Example(T(()), T((4, 3)), T((4, 3)), 1), Example(T((4, 3)), T((4, 3)), T((4, 3)), 0),
        Example(T(()), T((4, 3)), T((4, 3)), 2),
    ],
    "aten.smooth_l1_loss": [
        Example(T((4, 3)), T((4, 3))), Example(T((4, 3)), T((4, 3)), 0, 0.5), Example(T((4, 3)), T((4, 3)), 2, 2.0),
    ],
    "aten.smooth_l1_loss_backward": [
        Example(T(()), T((4, 3)), T((4, 3)), 1, 1.0), Example(T((4, 3)), T((4, 3)), T((4, 3)), 0, 0.5),
    ],
    "aten.huber_loss": [
        Example(T((4, 3)), T((4, 3))), Example(T((4, 3)), T((4, 3)), 0, 0.5), Example(T((4, 3)), T((4, 3)), 2, 2.0),
    ],
    "aten.huber_loss_backward": [
        Example(T(()), T((4, 3)), T((4, 3)), 1, 1.0), Example(T((4, 3)), T((4, 3)), T((4, 3)), 0, 0.5),
    ],
    "aten.binary_cross_entropy": [
        Example(T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 0.9)),
        Example(T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 0.9), T((3,), 0.1, 1.0), 0),
        Example(T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 0.9), None, 2),
    ],
    "aten.binary_cross_entropy_backward": [
        Example(T(()), T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 0.9), None),
        Example(T((4, 3)), T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 0.9), T((4, 3), 0.1, 1.0), 0),
    ],
    "aten.binary_cross_entropy_with_logits": [
        Example(T((4, 3)), T((4, 3), 0.1, 0.9)),
        Example(T((4, 3)), T((4, 3), 0.1, 0.9), T((3,), 0.1, 1.0), T((3,), 0.5, 2.0), 0),
        Example(T((4, 3)), T((4, 3), 0.1, 0.9), None, None, 2),
    ],
    "aten.soft_margin_loss": [Example(T((4, 3)), T((4, 3))), Example(T((4, 3)), T((4, 3)), 0)],
    "aten.soft_margin_loss_backward": [
        Example(T(()), T((4, 3)), T((4, 3)), 1), Example(T((4, 3)), T((4, 3)), T((4, 3)), 0),
    ],
    # movement
    "aten.cat": [
        Example([T((2, 3, 4)), T((2, 1, 4))], 1), Example([T((0,)), T((2, 3, 4)), T((2, 3, 4))], -1),
        Example([T((3,)), T((2,))]),
    ],
    "aten.stack": [
        Example([T((2, 3, 4)), T((2, 3, 4))], 1), Example([T((2, 3, 4)), T((2, 3, 4)), T((2, 3, 4))]),
        Example([T(()), T(())], -1),
    ],
    "aten.repeat": [Example(T((2, 3, 4)), [2, 1, 1]), Example(T((3,)), [2, 2])],
    "aten.roll": [Example(T((2, 3, 4)), [1], [1]), Example(T((2, 3, 4)), [5]), Example(T((2, 3, 4)), [1, -1], [0, 2])],
    "aten.flip": [Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, -1])],
    "aten._unsafe_view": [Example(T((2, 3, 4)), [6, 4]), Example(T((2, 3, 4)), [2, -1])],
    "aten.view_copy": [Example(T((2, 3, 4)), [6, 4]), Example(T((2, 3, 4)), [2, -1])],
    "aten._reshape_copy": [Example(T((2, 3, 4)), [6, 4]), Example(T((2, 3, 4)), [2, -1])],
    "aten.detach_copy": [Example(T((2, 3, 4)))],
    "aten.alias_copy": [Example(T((2, 3, 4)))],
    "aten.lift": [Example(T((2, 3, 4)))],
    "aten.lift_fresh_copy": [Example(T((2, 3, 4)))],
    "aten.expand_copy": [Example(T((3, 1)), [2, 3, 4]), Example(T((3, 1)), [-1, 4])],
    "aten.permute_copy": [Example(T((2, 3, 4)), [2, 0, 1])],
    "aten.transpose_copy": [Example(T((2, 3, 4)), 0, 2)],
    "aten.t_copy": [Example(T((2, 3)))],
    "aten.unsqueeze_copy": [Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1)],
    "aten.squeeze_copy": [Example(T((2, 1, 3))), Example(T((2, 1, 3)), 1), Example(T((2, 1, 3)), 0)],
    "aten.slice_copy": [Example(T((2, 3, 4)), 1, 1, 3), Example(T((2, 3, 4)), 2, 0, 9223372036854775807, 2)],
    "aten.select_copy": [Example(T((2, 3, 4)), 1, -1)],
    "aten.unbind_copy": [Example(T((2, 3, 4)), 1)],
    "aten.split_with_sizes_copy": [Example(T((2, 3, 4)), [1, 2], 1)],
    "aten.unsafe_split_with_sizes": [Example(T((2, 3, 4)), [1, 2], 1)],
    "aten.split_copy": [Example(T((2, 3, 4)), 2, 1), Example(T((2, 3, 4)), 1)],
    "aten.unsafe_split": [Example(T((2, 3, 4)), 2, 1), Example(T((2, 3, 4)), 1)],
    "aten.slice_backward": [Example(T((2, 2, 4)), [2, 3, 4], 1, 0, 2, 1)],
    "aten.select_backward": [Example(T((2, 4)), [2, 3, 4], 1, -1)],
    "aten.diag_embed": [Example(T((2, 3, 4))), Example(T((2, 3)), 1, 0, 2), Example(T((3,)), -1)],
    "aten.slice_scatter": [
        Example(T((2, 3, 4)), T((2, 1, 4)), 1, 0, 1), Example(T((2, 3, 4)), T((2, 3, 2)), 2, 0, 4, 2),
    ],
    "aten.select_scatter": [Example(T((2, 3, 4)), T((2, 4)), 1, 1)],
    "aten.diagonal_scatter": [Example(T((3, 3)), T((2,)), 1)],
    "aten.constant_pad_nd": [
        Example(T((2, 3, 4)), [1, 2]), Example(T((2, 3, 4)), [1, 0, 0, 2], 3.0), Example(T((2, 3, 4)), [-1, 2, 1, -1]),
    ],
    "aten.pixel_shuffle": [Example(T((2, 8, 3, 2)), 2), Example(T((4, 3, 2)), 2)],
    "aten.pixel_unshuffle": [Example(T((2, 2, 6, 4)), 2)],
    "aten.clone": [Example(T((2, 3)))],
    "aten._to_copy": [
        Example(T((2, 3)), dtype="float64"), Example(T((2, 3)), dtype="float16"), Example(T((2, 3)), dtype="int64"),
        Example(T((2, 3))),
    ],
    "aten.copy": [Example(T((2, 3)), T((3,))), Example(T((2, 3)), Int((2, 3), 5)), Example(Int((2, 3), 5), T((2, 3)))],
    "aten.fill": [Example(T((2, 3)), 2.5), Example(T((2, 3)), T(()))],
    "aten.zero": [Example(T((2, 3)))],
    "aten.zeros_like": [Example(T((2, 3))), Example(T((2, 3)), dtype="int64")],
    "aten.new_zeros": [Example(T((2, 3)), [2, 2])],
    "aten.ones_like": [Example(T((2, 3))), Example(T((2, 3)), dtype="int64")],
    "aten.full_like": [Example(T((2, 3)), 0.5), Example(T((2, 3)), 3, dtype="int64")],
    "aten.new_ones": [Example(T((2, 3)), [2, 2])],
    "aten.new_full": [Example(T((2, 3)), [2, 2], 0.5)],
    "aten.where": [Example(Bool((2, 3)), T((2, 3)), T((3,))), Example(Bool((3,)), T((2, 3)), -1.0)],
    "aten.masked_fill": [Example(T((2, 3)), Bool((2, 3)), -1.5), Example(T((2, 3)), Bool((3,)), T(()))],
    "aten.isfinite": [Example(T((2, 3)))],
    "aten.nan_to_num": [Example(T((2, 3))), Example(T((2, 3)), 0.5, 1.0, -1.0)],
    "aten.logical_and": [Example(Bool((2, 3)), T((2, 3))), Example(T((2, 3)), T((2, 3)))],
    "aten.logical_or": [Example(Bool((2, 3)), T((2, 3))), Example(T((2, 3)), T((2, 3)))],
    "aten.bitwise_not": [Example(Bool((2, 3)))],
    "aten.bitwise_and": [Example(Bool((2, 3)), Bool((3,)))],
    "aten.bitwise_or": [Example(Bool((2, 3)), Bool((3,)))],
    "aten.bitwise_xor": [Example(Bool((2, 3)), Bool((3,)))],
    # norm
    "aten.native_layer_norm": [
        Example(T((2, 3, 4)), [4], T((4,)), T((4,)), 1e-05), Example(T((2, 3, 4)), [3, 4], None, None, 0.001),
        Example(T((2, 3, 4)), [4], T((4,)), None, 1e-05),
    ],
    "aten.native_layer_norm_backward": [
        Example(T((2, 3, 4)), T((2, 3, 4)), [4], T((2, 3, 1)), T((2, 3, 1), 0.5, 2.0), T((4,)), T((4,)),
        [True, True, True]), Example(T((2, 3, 4)), T((2, 3, 4)), [3, 4], T((2, 1, 1)), T((2, 1, 1), 0.5, 2.0), None,
        None, [True, False, False]),
    ],
    "aten._fused_rms_norm": [
        Example(T((2, 3, 4)), [4], T((4,)), 1e-05), Example(T((2, 3, 4)), [3, 4], None, 0.001),
        Example(T((2, 3, 4)), [4], T((4,)), None),
    ],
    "aten.native_group_norm": [
        Example(T((2, 4, 3, 2)), T((4,)), T((4,)), 2, 4, 6, 2, 1e-05),
        Example(T((2, 4, 3, 2)), None, None, 2, 4, 6, 4, 1e-05),
        Example(T((2, 4)), T((4,)), T((4,)), 2, 4, 1, 2, 1e-05),
    ],
    "aten.native_group_norm_backward": [
        Example(T((2, 4, 3, 2)), T((2, 4, 3, 2)), T((2, 2)), T((2, 2), 0.5, 2.0), T((4,)), 2, 4, 6, 2,
        [True, True, True]), Example(T((2, 4, 3, 2)), T((2, 4, 3, 2)), T((2, 2)), T((2, 2), 0.5, 2.0), None, 2, 4, 6, 2,
        [True, False, False]),
    ],
    "aten.native_batch_norm": [
        Example(T((2, 4, 3, 2)), T((4,)), T((4,)), T((4,)), T((4,), 0.5, 2.0), True, 0.1, 1e-05),
        Example(T((2, 4, 3, 2)), None, None, T((4,)), T((4,), 0.5, 2.0), True, 0.25, 1e-05),
        Example(T((2, 4, 3, 2)), T((4,)), T((4,)), T((4,)), T((4,), 0.5, 2.0), False, 0.1, 1e-05),
    ],
    "aten._native_batch_norm_legit_no_training": [
        Example(T((2, 4, 3, 2)), T((4,)), T((4,)), T((4,)), T((4,), 0.5, 2.0), 0.1, 1e-05),
    ],
    "aten.native_batch_norm_backward": [
        Example(T((2, 4, 3, 2)), T((2, 4, 3, 2)), T((4,)), T((4,)), T((4,), 0.5, 2.0), T((4,)),
        T((4,), 0.5, 2.0), True, 1e-05, [True, True, True]), Example(T((2, 4, 3, 2)), T((2, 4, 3, 2)), T((4,)), T((4,)),
        T((4,), 0.5, 2.0), T((4,)), T((4,), 0.5, 2.0), False, 1e-05, [True, True, True]), Example(T((2, 4, 3, 2)),
        T((2, 4, 3, 2)), None, T((4,)), T((4,), 0.5, 2.0), T((4,)), T((4,), 0.5, 2.0), True, 1e-05,
        [True, False, False]),
    ],
    # optim
    "aten._amp_foreach_non_finite_check_and_unscale_": [
        Example([T((2, 3)), T((3,))], T((), 0.0, 0.0), T((), 0.25, 0.5)),
        Example([T((2, 3)), T((3,))], T((), 0.0, 0.0), T((), 0.25, 0.5)),
    ],
    # pointwise
    "aten.lt": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.le": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.gt": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.ge": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.eq": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.ne": [
        Example(T((2, 3)), T((3,)), overload="Tensor"), Example(T((2, 3)), 0.5, overload="Scalar"),
        Example(Int((2, 3), 3), T((2, 3)), overload="Tensor"),
    ],
    "aten.neg": [Example(T((2, 3)))],
    "aten.abs": [Example(T((2, 3)))],
    "aten.sign": [Example(T((2, 3)))],
    "aten.sgn": [Example(T((2, 3)))],
    "aten.square": [Example(T((2, 3)))],
    "aten.sqrt": [Example(T((2, 3), 0.25, 2.0))],
    "aten.rsqrt": [Example(T((2, 3), 0.25, 2.0))],
    "aten.reciprocal": [Example(T((2, 3), 0.25, 2.0))],
    "aten.exp": [Example(T((2, 3)))],
    "aten.exp2": [Example(T((2, 3)))],
    "aten.expm1": [Example(T((2, 3)))],
    "aten.log": [Example(T((2, 3), 0.25, 2.0))],
    "aten.log1p": [Example(T((2, 3), 0.25, 2.0))],
    "aten.log2": [Example(T((2, 3), 0.25, 2.0))],
    "aten.log10": [Example(T((2, 3), 0.25, 2.0))],
    "aten.sin": [Example(T((2, 3)))],
    "aten.cos": [Example(T((2, 3)))],
    "aten.tan": [Example(T((2, 3), 0.1, 0.9))],
    "aten.atan": [Example(T((2, 3)))],
    "aten.sinh": [Example(T((2, 3)))],
    "aten.cosh": [Example(T((2, 3)))],
    "aten.erf": [Example(T((2, 3)))],
    "aten.erfc": [Example(T((2, 3)))],
    "aten.floor": [Example(T((2, 3)))],
    "aten.ceil": [Example(T((2, 3)))],
    "aten.trunc": [Example(T((2, 3)))],
    "aten.logical_not": [Example(T((2, 3)))],
    "aten.isnan": [Example(T((2, 3)))],
    "aten.isinf": [Example(T((2, 3)))],
    "aten.add": [
        Example(T((2, 3)), T((3,)), alpha=2.0), Example(T((2, 3)), 2.5, overload="Scalar"), Example(T((2, 3)), T((3,))),
        Example(T((2, 1)), T((2, 3))),
    ],
    "aten.sub": [
        Example(T((2, 3)), T((3,)), alpha=0.5), Example(T((2, 3)), 2.5, overload="Scalar"), Example(T((2, 3)), T((3,))),
        Example(T((2, 1)), T((2, 3))),
    ],
    "aten.rsub": [Example(T((2, 3)), T((3,)), alpha=2.0), Example(T((2, 3)), 2.5, overload="Scalar")],
    "aten.mul": [
        Example(T((2, 3)), -0.75), Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3))),
        Example(T((2, 3)), Bool((3,))),
    ],
    "aten.div": [
        Example(T((2, 3)), T((3,), 0.5, 2.0)), Example(T((2, 3)), 3.0),
        Example(T((2, 3)), T((3,), 0.5, 2.0), rounding_mode="floor"),
        Example(T((2, 3)), T((3,), 0.5, 2.0), rounding_mode="trunc"), Example(T((2, 3)), 0.3, rounding_mode=None),
    ],
    "aten.floor_divide": [Example(T((2, 3)), T((3,), 0.5, 2.0)), Example(T((2, 3)), 0.3)],
    "aten.remainder": [Example(T((2, 3)), T((3,), 0.5, 2.0)), Example(T((2, 3)), 0.3)],
    "aten.fmod": [Example(T((2, 3)), T((3,), 0.5, 2.0)), Example(T((2, 3)), 0.3)],
    "aten.round": [Example(T((2, 3))), Example(T((2, 3)), decimals=1, overload="decimals")],
    "aten.pow": [
        Example(T((2, 3)), 2), Example(T((2, 3)), 3), Example(T((2, 3)), 0), Example(T((2, 3)), 1),
        Example(T((2, 3), 0.25, 2.0), -1), Example(T((2, 3), 0.25, 2.0), -2), Example(T((2, 3), 0.25, 2.0), 0.5),
        Example(T((2, 3), 0.25, 2.0), -0.5), Example(T((2, 3), 0.25, 2.0), 1.5), Example(T((2, 3), 0.25, 2.0), 0.3),
        Example(2.0, T((2, 3))), Example(T((2, 3), 0.25, 2.0), T((3,))), Example(T((2, 3), 0.25, 2.0), T((3,))),
    ],
    "aten.clamp": [
        Example(T((2, 3)), -0.5, 0.5), Example(T((2, 3)), None, 0.25), Example(T((2, 3)), 1.0, -1.0),
        Example(T((2, 3)), T((3,)), T((2, 1)), overload="Tensor"),
    ],
    "aten.clamp_min": [Example(T((2, 3)), 0.25), Example(T((2, 3)), T((3,)))],
    "aten.clamp_max": [Example(T((2, 3)), 0.25), Example(T((2, 3)), T((3,)))],
    "aten.maximum": [Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3)))],
    "aten.fmax": [Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3)))],
    "aten.minimum": [Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3)))],
    "aten.fmin": [Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3)))],
    "aten.lerp": [Example(T((2, 3)), T((2, 3)), 0.25), Example(T((2, 3)), T((2, 3)), T((3,)))],
    "aten.addcmul": [Example(T((2, 3)), T((2, 3)), T((3,)), value=0.5), Example(T((2, 3)), T((2, 3)), T((2, 3)))],
    "aten.addcdiv": [
        Example(T((2, 3)), T((2, 3)), T((3,), 0.5, 2.0), value=-0.5),
        Example(T((2, 3)), T((2, 3)), T((2, 3), 0.25, 2.0)),
    ],
    "aten.xlogy": [Example(T((2, 3)), T((2, 3), 0.25, 2.0)), Example(0.0, T((2, 3), 0.25, 2.0))],
    # reduce
    "aten.sum": [
        Example(T((2, 3, 4))), Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, -1], True),
        Example(T((2, 3, 4)), dtype="float64"), Example(Bool((2, 3)), [1]), Example(T(())),
    ],
    "aten.mean": [
        Example(T((2, 3, 4))), Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, -1], True),
        Example(T((2, 3, 4)), dtype="float64"),
    ],
    "aten.var": [
        Example(T((2, 3, 4)), overload="correction"), Example(T((2, 3, 4)), [1], correction=0, overload="correction"),
        Example(T((2, 3, 4)), [0, 2], correction=1, keepdim=True, overload="correction"),
    ],
    "aten.std": [
        Example(T((2, 3, 4)), overload="correction"), Example(T((2, 3, 4)), [1], correction=0, overload="correction"),
        Example(T((2, 3, 4)), [0, 2], correction=1, keepdim=True, overload="correction"),
    ],
    "aten.var_mean": [
        Example(T((2, 3, 4)), overload="correction"), Example(T((2, 3, 4)), [1], correction=0, overload="correction"),
        Example(T((2, 3, 4)), [0, 2], correction=1, keepdim=True, overload="correction"),
    ],
    "aten.std_mean": [
        Example(T((2, 3, 4)), overload="correction"), Example(T((2, 3, 4)), [1], correction=0, overload="correction"),
        Example(T((2, 3, 4)), [0, 2], correction=1, keepdim=True, overload="correction"),
    ],
    "aten.linalg_vector_norm": [
        Example(T((2, 3, 4)), 2), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), 0), Example(T((2, 3, 4)), math.inf),
        Example(T((2, 3, 4)), -math.inf), Example(T((2, 3, 4)), 3.0), Example(T((2, 3, 4))),
        Example(T((2, 3, 4)), 2, [1], True), Example(T((2, 3, 4)), 2, dtype="float64"),
    ],
    "aten.norm": [
        Example(T((2, 3, 4)), 2), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4))), Example(T((2, 3, 4)), 2, [1]),
        Example(T((2, 3, 4)), None, [1], True),
    ],
    "aten.amax": [Example(T((2, 3, 4))), Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, -1], True)],
    "aten.amin": [Example(T((2, 3, 4))), Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, -1], True)],
    "aten.max": [
        Example(T((2, 3, 4))), Example(T((2, 3)), T((2, 3))), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1, True),
    ],
    "aten.min": [
        Example(T((2, 3, 4))), Example(T((2, 3)), T((2, 3))), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1, True),
    ],
    "aten.argmax": [Example(T((2, 3, 4))), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1, True)],
    "aten.argmin": [Example(T((2, 3, 4))), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1, True)],
    "aten.logsumexp": [Example(T((2, 3, 4)), [1]), Example(T((2, 3, 4)), [0, 2], True)],
    "aten.cumsum": [Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1), Example(T(()), 0)],
    "aten.prod": [Example(T((2, 3))), Example(T((2, 3, 4)), 1), Example(T((2, 3, 4)), -1, True)],
    "aten.any": [
        Example(Bool((2, 3))), Example(Bool((2, 3)), 1), Example(T((2, 3)), 0, True), Example(Bool((2, 3)), [0, 1]),
    ],
    "aten.all": [
        Example(Bool((2, 3))), Example(Bool((2, 3)), 1), Example(T((2, 3)), 0, True), Example(Bool((2, 3)), [0, 1]),
    ],
    "aten.count_nonzero": [Example(T((2, 3))), Example(T((2, 3)), 1)],
}
# fmt: on
