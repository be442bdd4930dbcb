"""Scaled dot-product attention, fused: the forms of CPU and CUDA by one rule.

Scores are q k / sqrt(width) (or times `scale`), hidden above the diagonal where `causal`, plus a mask; a Boolean mask
keeps where it is true. The log-sum-exp is an output, from which the backward pass makes the probabilities again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Value, where
from gradproof.shadow.ops.rows.activation import no_mass, shifted
from gradproof.shadow.ops.table import Example, Int, Ops, T, register

Q = T((2, 3, 5, 4))
K = T((2, 3, 6, 4))
LSE = T((2, 3, 5), 1.0, 3.0)
HALF = T((1, 2, 8, 8), dtype="float16")
LSE_HALF = T((1, 2, 8), 3.0, 5.0)


def by_head(x: Value, heads: int) -> Value:
    """Keys or values repeated for grouped queries."""
    own = x.shape[1]
    return x if own == heads else x.move(lambda p: np.repeat(p, heads // own, axis=1))


def grouped(g: Value, heads: int) -> Value:
    """The gradient of `by_head`: sums over the queries that shared a head."""
    b, all_heads, *rest = g.shape
    return g if all_heads == heads else g.reshape(b, heads, all_heads // heads, *rest).sum(2)


def hidden(shape: Sequence[int], causal: bool, mask: Any) -> Array | None:
    """Where scores are hidden by the causal order or a recorded Boolean mask, or None."""
    boolean = mask is not None and not isinstance(mask, Value) and np.asarray(mask).dtype == bool
    if not causal and not boolean:
        return None
    rows, columns = np.ogrid[: shape[-2], : shape[-1]]
    late = columns > rows if causal else columns < 0
    return np.broadcast_to(late | ~np.asarray(mask) if boolean else late, tuple(shape))


def scores(q: Value, keys: Value, mask: Any, scale: float | None) -> Value:
    """q k, scaled, plus a mask of numbers."""
    s = q @ keys.swapaxes(-1, -2)
    width = q.shape[-1]
    root = math.isqrt(width)
    s = s * scale if scale is not None else s / root if root * root == width else s * (1 / math.sqrt(width))
    if mask is None or (not isinstance(mask, Value) and np.asarray(mask).dtype == bool):
        return s
    if isinstance(mask, Value) and mask.truth:
        raise Beyond("a Boolean attention mask that depends on tracked values")
    total: Value = s + mask
    return total


def certain(dropout: float) -> None:
    """Raise Beyond for dropout inside the fused operator, whose mask nobody sees."""
    if dropout:
        raise Beyond(f"dropout of {dropout} inside fused attention: its mask cannot be recorded")


def attend(
    k: Ops, q: Value, keys: Value, values: Value, mask: Any, causal: bool, scale: float | None
) -> tuple[Value, Value]:
    """Output, and log-sum-exp (B, H, L). A row that is hidden whole gives zeros."""
    heads = q.shape[1]
    keys, values = by_head(keys, heads), by_head(values, heads)
    s = scores(q, keys, mask, scale)
    shift = shifted(k, s, -1)
    weights = k.fn("exp", shift)
    out_of_sight = hidden(s.shape, causal, mask)
    if out_of_sight is not None:
        weights = where(out_of_sight, k.lift(np.zeros(s.shape)), weights)
    total = weights.sum(-1, keep=True)
    one = total
    if mask is not None:
        one = where(no_mass(k, total), k.lift(np.ones(total.shape)), total)
    lse = k.fn("log", one) + (s - shift)[..., :1]
    return (weights / one) @ values, lse.reshape(lse.shape[:-1])


def attend_backward(
    k: Ops, g: Value, q: Value, keys: Value, values: Value, out: Value, lse: Value, mask: Any, causal: bool,
    scale: float | None,
) -> tuple[Value, Value, Value, Value]:  # fmt: skip
    """Gradients of query, key, value, and of the mask of numbers (B, H, L, S)."""
    heads, own = q.shape[1], keys.shape[1]
    wide, held = by_head(keys, heads), by_head(values, heads)
    s = scores(q, wide, mask, scale)
    p = k.fn("exp", s - lse[..., : s.shape[-2]].reshape(*s.shape[:-1], 1))
    out_of_sight = hidden(s.shape, causal, mask)
    if out_of_sight is not None:
        p = where(out_of_sight, k.lift(np.zeros(s.shape)), p)
    towards = g @ held.swapaxes(-1, -2)
    ds = p * (towards - (g * out).sum(-1, keep=True))
    width = q.shape[-1]
    root = math.isqrt(width)
    by = scale if scale is not None else 1 / math.sqrt(width)
    back = ds / root if scale is None and root * root == width else ds * by
    of_keys = back.swapaxes(-1, -2) @ q
    return back @ wide, grouped(of_keys, own), grouped(p.swapaxes(-1, -2) @ g, own), ds


@register(
    "aten._scaled_dot_product_flash_attention_for_cpu",
    examples=[
        Example(Q, K, K), Example(Q, Q, Q, 0.0, True), Example(Q, K, K, scale=0.3),
        Example(Q, K, K, attn_mask=T((2, 3, 5, 6))), Example(T((1, 2, 3, 3)), T((1, 2, 3, 3)), T((1, 2, 3, 3))),
    ],
)  # fmt: skip
def flash_cpu(
    k: Ops, q: Value, keys: Value, values: Value, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Output and log-sum-exp."""
    certain(dropout)
    return attend(k, q, keys, values, attn_mask, causal, scale)


@register(
    "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    examples=[
        Example(Q, Q, K, K, Q, LSE, 0.0, False), Example(Q, Q, Q, Q, Q, LSE, 0.0, True),
        Example(Q, Q, K, K, Q, LSE, 0.0, False, attn_mask=T((2, 3, 5, 6)), scale=0.3),
    ],
)  # fmt: skip
def flash_cpu_backward(
    k: Ops, g: Value, q: Value, keys: Value, values: Value, out: Value, lse: Value, dropout: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Gradients of query, key and value."""
    certain(dropout)
    return attend_backward(k, g, q, keys, values, out, lse, attn_mask, causal, scale)[:3]


def cuda_outputs(k: Ops, out: Value, lse: Value) -> tuple[Any, ...]:
    """Output and log-sum-exp, in the extents that the kernel gave it; the rest is the generator's."""
    given = k.entry.outs[1]
    shape = getattr(given, "shape", lse.shape)
    if len(shape) == lse.ndim + 1 and shape[-1] == 1:
        lse = lse.reshape(*lse.shape, 1)
    if tuple(shape) != lse.shape and shape:
        wide = k.lift(np.zeros(tuple(shape)))
        lse = wide.put(tuple(slice(0, n) for n in lse.shape), lse)
    rest = [k.entry.seen.get(i) for i in range(2, len(k.entry.outs))]
    return out, lse, *rest


@register(
    "aten._scaled_dot_product_flash_attention",
    examples=[Example(HALF, HALF, HALF, 0.0, True)],
)
def flash_cuda(
    k: Ops, q: Value, keys: Value, values: Value, dropout: float = 0.0, causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """CUDA's flash form."""
    certain(dropout)
    return cuda_outputs(k, *attend(k, q, keys, values, None, causal, scale))


@register(
    "aten._scaled_dot_product_flash_attention_backward",
    examples=[Example(HALF, HALF, HALF, HALF, HALF, LSE_HALF, None, None, 8, 8, 0.0, True, Int((), 1), Int((), 1))],
)
def flash_cuda_backward(
    k: Ops, g: Value, q: Value, keys: Value, values: Value, out: Value, lse: Value, starts_q: Any, starts_k: Any,
    most_q: int, most_k: int, dropout: float, causal: bool, seed: Any, offset: Any, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """CUDA's flash form, backward."""
    certain(dropout)
    return attend_backward(k, g, q, keys, values, out, lse, None, causal, scale)[:3]


@register(
    "aten._scaled_dot_product_efficient_attention",
    examples=[Example(HALF, HALF, HALF, None, True, 0.0, True)],
)
def efficient(
    k: Ops, q: Value, keys: Value, values: Value, bias: Any, with_lse: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """CUDA's memory-efficient form."""
    certain(dropout)
    return cuda_outputs(k, *attend(k, q, keys, values, bias, causal, scale))


@register(
    "aten._scaled_dot_product_efficient_attention_backward",
    examples=[
        Example(
            HALF, HALF, HALF, HALF, None, HALF, T((1, 2, 32), 3.0, 5.0), Int((), 1), Int((), 1), 0.0,
            [True, True, True, False], True,
        )
    ],
)  # fmt: skip
def efficient_backward(
    k: Ops, g: Value, q: Value, keys: Value, values: Value, bias: Any, out: Value, lse: Value, seed: Any, offset: Any,
    dropout: float, mask: Sequence[bool], causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """CUDA's memory-efficient form, backward; the bias's gradient in the bias's shape."""
    certain(dropout)
    found = list(attend_backward(k, g, q, keys, values, out, lse, bias, causal, scale))
    if mask[3] and bias is not None:
        found[3] = unbroadcast(found[3], bias.shape)
    return tuple(f if wanted else None for f, wanted in zip(found, mask, strict=True))


def unbroadcast(g: Value, shape: Sequence[int]) -> Value:
    """Summed to a shape that was broadcast."""
    g = g.sum(tuple(range(g.ndim - len(shape)))) if g.ndim > len(shape) else g
    axes = tuple(a for a, n in enumerate(shape) if n == 1 and g.shape[a] != 1)
    return g.sum(axes, keep=True) if axes else g


@register(
    "aten._scaled_dot_product_cudnn_attention",
    examples=[Example(HALF, HALF, HALF, None, True, 0.0, True)],
)  # fmt: skip
def cudnn(
    k: Ops, q: Value, keys: Value, values: Value, bias: Any, with_lse: bool, dropout: float = 0.0,
    causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """cuDNN's form."""
    certain(dropout)
    return cuda_outputs(k, *attend(k, q, keys, values, bias, causal, scale))


@register(
    "aten._scaled_dot_product_cudnn_attention_backward",
    examples=[
        Example(
            HALF, HALF, HALF, HALF, HALF, T((1, 2, 8, 1), 3.0, 5.0), Int((), 1), Int((), 1), None, None, None, 8, 8,
            0.0, True,
        )
    ],
)  # fmt: skip
def cudnn_backward(
    k: Ops, g: Value, q: Value, keys: Value, values: Value, out: Value, lse: Value, seed: Any, offset: Any, bias: Any,
    starts_q: Any, starts_k: Any, most_q: int, most_k: int, dropout: float, causal: bool, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """cuDNN's form, backward."""
    certain(dropout)
    flat = lse.reshape(lse.shape[:3])
    return attend_backward(k, g, q, keys, values, out, flat, bias, causal, scale)[:3]
