"""Rows of networks: what real modules dispatch has rows, and the cases that a random example does not reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from shadow_rows_bench import FLOATING, difference, numbers, run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.shadow.algebra import Beyond, Value, lift
from gradproof.shadow.domains.floats import Floats
from gradproof.shadow.ops.rows import (
    activation as softmax,
    attention,
    conv,
    geometry,
    index,
    load,
    lookup,
    losses,
    norm,
)
from gradproof.shadow.ops.rows.geometry import Plane
from gradproof.shadow.ops.table import TABLE, OperatorRow, Ops, PathConditions
from gradproof.shadow.tape import NOWHERE, Entry, Source

load()
UNREAD = ("bernoulli", "uniform", "normal", "rand", "exponential", "empty", "new_empty")
"""Operators that read no element: random ones, and those that leave memory as it is."""


# Every operator that common modules dispatch has a row.


class Watch(TorchDispatchMode):
    """The operators that read or write a floating-point tensor, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [a for a in func._schema.arguments if a.alias_info is not None]
        view = bool(given) and not any(a.alias_info.is_write for a in given)
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        name = func.__name__.split(".")[0]
        if not view and not name.startswith(UNREAD) and any(t.dtype in FLOATING for t in tensors):
            self.ops.add(str(func))
        return func(*args, **(kwargs or {}))


def first(result: Any) -> torch.Tensor:
    while isinstance(result, tuple):
        result = result[0]
    return result


def image() -> torch.Tensor:
    return torch.randn(2, 4, 6, 6, requires_grad=True)


def tokens() -> torch.Tensor:
    return torch.randn(2, 3, 4, requires_grad=True)


def heads() -> torch.Tensor:
    return torch.randn(2, 2, 5, 4, requires_grad=True)


def logits() -> torch.Tensor:
    return torch.randn(6, 5, requires_grad=True)


TARGET = torch.tensor([0, 1, -100, 2, 4, 3])
IDS = torch.tensor([[0, 3, 3], [1, 0, 4]])
KEPT = torch.ones(5, 5, dtype=torch.bool).tril()

MODULES: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: nn.Linear(4, 3)(tokens()),
    "conv1d": lambda: nn.Conv1d(3, 2, 3)(tokens()),
    "conv2d": lambda: nn.Conv2d(4, 2, 3, padding=1)(image()),
    "conv2d same depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, padding="same")(image()),
    "transposed": lambda: nn.ConvTranspose2d(4, 2, 3, stride=2)(image()),
    "batch norm": lambda: nn.BatchNorm2d(4)(image()),
    "batch norm eval": lambda: nn.BatchNorm2d(4).eval()(image()),
    "instance norm": lambda: nn.InstanceNorm2d(4)(image()),
    "layer norm": lambda: nn.LayerNorm(4)(tokens()),
    "group norm": lambda: nn.GroupNorm(2, 4)(image()),
    "rms norm": lambda: nn.RMSNorm(4)(tokens()),
    "embedding": lambda: nn.Embedding(5, 4, padding_idx=0)(IDS),
    "bag": lambda: nn.EmbeddingBag(5, 4)(IDS),
    "attention": lambda: first(nn.MultiheadAttention(4, 2, batch_first=True)(*[tokens()] * 3)),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.1, "gelu", batch_first=True)(tokens()),
    "decoder": lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)(tokens(), tokens()),
    "causal": lambda: F.scaled_dot_product_attention(heads(), heads(), heads(), is_causal=True),
    "masked": lambda: F.scaled_dot_product_attention(heads(), heads(), heads(), attn_mask=KEPT),
    "gru": lambda: first(nn.GRU(4, 3)(tokens())),
    "rnn": lambda: first(nn.RNN(4, 3)(tokens())),
    "lstm cell": lambda: first(nn.LSTMCell(4, 3)(tokens()[0])),
    "cross entropy": lambda: F.cross_entropy(logits(), TARGET),
    "smoothed": lambda: F.cross_entropy(logits(), TARGET, label_smoothing=0.1),
    "weighted": lambda: F.cross_entropy(logits(), TARGET, weight=torch.full((5,), 0.5), label_smoothing=0.1),
    "cross entropy 2d": lambda: F.cross_entropy(torch.randn(2, 5, 3, requires_grad=True), IDS),
    "mse": lambda: F.mse_loss(tokens(), tokens()),
    "l1": lambda: F.l1_loss(tokens(), tokens()),
    "smooth l1": lambda: F.smooth_l1_loss(tokens(), tokens()),
    "huber": lambda: F.huber_loss(tokens(), tokens()),
    "bce": lambda: F.binary_cross_entropy(tokens().sigmoid(), torch.full((2, 3, 4), 0.3)),
    "bce logits": lambda: F.binary_cross_entropy_with_logits(tokens(), tokens().sigmoid().detach()),
    "kl": lambda: F.kl_div(logits().log_softmax(1), logits().softmax(1), reduction="batchmean"),
    "soft margin": lambda: F.soft_margin_loss(tokens(), tokens().sign().detach()),
    "triplet": lambda: F.triplet_margin_loss(logits(), logits(), logits()),
    "max pool": lambda: nn.MaxPool2d(2)(image()),
    "avg pool": lambda: nn.AvgPool2d(2)(image()),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(2)(image()),
    "adaptive 1": lambda: nn.AdaptiveAvgPool2d(1)(image()),
    "adaptive max": lambda: nn.AdaptiveMaxPool2d(2)(image()),
    "dropout": lambda: nn.Dropout(0.5)(tokens()),
    "upsample": lambda: nn.Upsample(scale_factor=2)(image()),
    "pixel shuffle": lambda: nn.PixelShuffle(2)(image()),
    "pads": lambda: F.pad(image(), (1, 1, 2, 0), mode="reflect").sum() + F.pad(tokens(), (1, 1), mode="circular").sum(),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_dispatches_has_rows(name: str) -> None:
    with Watch() as watch:
        MODULES[name]().sum().backward()
    assert watch.ops
    assert [op for op in sorted(watch.ops) if lookup(op) is None] == []


@pytest.fixture
def no_fused_recurrence() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.usefixtures("no_fused_recurrence")
def test_an_lstm_without_its_fused_kernel_has_rows() -> None:
    with Watch() as watch:
        first(nn.LSTM(4, 3, 2)(tokens())).sum().backward()
    assert [op for op in sorted(watch.ops) if lookup(op) is None] == []


# Special cases. `ops` is what a row gets; its entry has the outputs that the case names.


def ops(domain: Any = None, seen: dict[int, Any] | None = None, outs: int = 1) -> Ops:
    entry = Entry("aten.tested.default", (), {}, (None,) * outs, (), NOWHERE, seen or {})
    return Ops(domain or Floats(), entry, PathConditions())


def value(x: Any, k: Ops) -> Value:
    return lift(k.domain, np.asarray(x, dtype=float))


def near(found: Any, expected: torch.Tensor) -> bool:
    return bool(np.allclose(found.parts[0], numbers(expected), rtol=1e-9, atol=1e-9, equal_nan=True))


def test_a_batch_without_a_valid_target_has_no_mean() -> None:
    k = ops()
    with pytest.raises(Beyond, match="every target of this batch is ignored"):
        losses.nll_loss(k, value(np.zeros((2, 3)), k), np.array([-100, -100]), None, 1, -100)
    loss, total = losses.nll_loss(k, value(np.zeros((2, 3)), k), np.array([-100, -100]), None, 2, -100)
    assert (loss.parts[0], total.parts[0]) == (0.0, 0.0)


@pytest.mark.parametrize("rule", [index.index, index.masked_select, index.nonzero])
def test_a_tracked_mask_that_chooses_elements_is_beyond(rule: Any) -> None:
    k = ops()
    x = Value(k.domain, k.domain.leaf(Source("data", "x"), (3,), np.array([1.0, -1.0, 2.0])))
    args = {"index": (x, [x > 0.0]), "masked_select": (x, x > 0.0), "nonzero": (x,)}[rule.__name__]
    with pytest.raises(Beyond, match="data-dependent shape"):
        rule(k, *args)


def test_one_value_may_be_put_under_a_tracked_mask_and_no_more() -> None:
    k = ops()
    x = value([1.0, -1.0, 2.0], k)
    assert index.index_put(k, x, [x < 0.0], value(0.5, k)).parts[0].tolist() == [1.0, 0.5, 2.0]
    assert index.index_put(k, x, [x < 0.0], value(0.5, k), True).parts[0].tolist() == [1.0, -0.5, 2.0]
    with pytest.raises(Beyond, match="data-dependent shape"):
        index.index_put(k, x, [x < 0.0], value([1.0, 2.0], k))


def test_sorting_assumes_the_order_of_the_run() -> None:
    for order, holds in (([1, 0, 2], True), ([0, 1, 2], False)):
        k = ops(seen={1: np.array(order)})
        values, _ = index.sort(k, value([3.0, 1.0, 7.0], k))
        (condition, text, _), *rest = k.path.conditions
        assert values.shape == (3,)
        assert not rest
        assert "order" in text
        assert bool(condition.parts[0].all()) is holds


def test_topk_assumes_that_what_was_left_out_is_smaller() -> None:
    for chosen, holds in (([2, 0], True), ([2, 1], False)):
        k = ops(seen={1: np.array(chosen)})
        index.topk(k, value([3.0, 1.0, 7.0], k), 2)
        assert all(bool(c.parts[0].all()) for c, _, _ in k.path.conditions) is holds


def test_a_pool_assumes_where_its_maxima_are() -> None:
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    pooled, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    for places, holds in ((numbers(at), True), ((numbers(at) + 1) % 4, False)):
        k = ops(seen={1: places})
        found, _ = TABLE["aten.max_pool2d_with_indices"].rule(k, value(x.numpy(), k), [3, 3], [2, 2], [1, 1])
        (condition, _, _), *_ = k.path.conditions
        assert bool(condition.parts[0].all()) is holds
        assert near(found, pooled) is holds


def test_running_statistics_move_with_the_batch() -> None:
    module = nn.BatchNorm2d(3, momentum=0.3).double()
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    k = ops(outs=5)
    old = value(np.zeros(3), k), value(np.ones(3), k)
    mean, var, out, *_ = norm.batch_norm(k, value(x.numpy(), k), None, None, *old, True, 0.3, 1e-5)
    expected = module(x)
    assert near(out, expected)
    assert near(mean, module.running_mean)
    assert near(var, module.running_var)
    biased = norm.running(old[1], value(numbers(x.var((0, 2, 3), correction=0)), k), 0.3)
    assert not near(biased, module.running_var)


def test_statistics_are_of_this_batch_only_in_training() -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    k = ops(outs=3)
    args = value(x.numpy(), k), None, None, value(np.zeros(3), k), value(np.ones(3), k)
    trained = norm.batch_norm(k, *args, True, 0.1, 1e-5)[0]
    steady = norm.batch_norm(k, *args, False, 0.1, 1e-5)[0]
    assert near(steady, x / np.sqrt(1 + 1e-5))
    assert not np.allclose(trained.parts[0], steady.parts[0])


def test_a_row_that_is_masked_out_whole() -> None:
    k = ops()
    x = value([[1.0, 2.0], [-np.inf, -np.inf]], k)
    assert np.allclose(softmax.safe_softmax(k, x, -1).parts[0][1], 0.0)
    assert np.isnan(softmax.softmax(k, x, -1, False).parts[0][1]).all()


def test_minus_infinity_in_a_mask_hides_a_score() -> None:
    k = ops()
    x = Value(k.domain, k.domain.leaf(Source("data", "x"), (1, 3), np.array([[0.5, 1.0, 2.0]])))
    mask = lift(k.domain, np.array([[0.0, 0.0, -np.inf]]))
    shown = softmax.softmax(k, x[:, :2], -1, False)
    masked = softmax.softmax(k, x + mask, -1, False)
    assert [p[:, :2].tolist() for p in masked.parts] == [p.tolist() for p in shown.parts]


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_and_its_gradient_are_those_of_its_pieces(causal: bool) -> None:
    q, key, val = (torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, key[:, :2], val[:, :2], is_causal=causal, enable_gqa=True)
    out.square().sum().backward()
    k = ops()
    a, b, c = (value(t.detach().numpy(), k) for t in (q, key[:, :2], val[:, :2]))
    found, lse = attention.attend(k, a, b, c, None, causal, None)
    assert near(found, out)
    back = attention.attend_backward(k, found * 2, a, b, c, found, lse, None, causal, None)
    for mine, real in zip(back, (q.grad, key.grad[:, :2], val.grad[:, :2]), strict=False):
        assert near(mine, real)


def test_dropout_inside_attention_is_beyond() -> None:
    k = ops()
    x = value(np.zeros((1, 1, 2, 2)), k)
    with pytest.raises(Beyond, match="dropout"):
        attention.flash_cpu(k, x, x, x, 0.5)


def test_sums_over_overlapping_windows_count_every_window() -> None:
    k = ops()
    at = np.array([2, 0, 2, -1, 2, 0])
    rows = value(np.arange(6.0)[:, None], k)
    assert geometry.pile(k, at, rows, 4).parts[0].ravel().tolist() == [6.0, 0.0, 6.0, 0.0]
    base = value(np.ones((4, 1)), k)
    assert geometry.pile(k, at, rows, 4, base).parts[0].ravel().tolist() == [7.0, 1.0, 7.0, 1.0]


@pytest.mark.parametrize(
    ("n", "size", "step", "pad", "ceil"), [(5, 2, 2, 0, True), (6, 3, 2, 1, True), (7, 3, 3, 1, False)]
)
def test_a_last_window_that_hangs_over_starts_inside(n: int, size: int, step: int, pad: int, ceil: bool) -> None:
    expected = F.max_pool1d(torch.zeros(1, 1, n), size, step, pad, ceil_mode=ceil).shape[-1]
    assert Plane.of((n,), size, step, pad).extents(ceil) == (expected,)


# Wrong rows are seen on the examples that the right ones carry.


def spoiled_divisor(k: Ops, x: Value, *args: Any) -> Value:
    return conv.mean_pool(k, x, 2, *pooled(x, *args))


def pooled(
    x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *rest: Any
) -> tuple[Any, ...]:
    plane = Plane.of(x.shape[-2:], kernel, stride, padding)
    members = plane.index(ceil)
    return members, members.shape[1], plane.extents(ceil)


WRONG: dict[str, Callable[..., Any]] = {
    "aten.avg_pool2d": spoiled_divisor,
    "aten._softmax": lambda k, x, dim, half: softmax.softmax(k, x, 0, half),
    "aten._log_softmax_backward_data": lambda k, g, out, dim, dtype: g - k.fn("exp", out),
    "aten.nll_loss_forward": lambda k, x, t, w, r, i: losses.nll_loss(k, x, t, None, r, i),
    "aten.nll_loss_backward": lambda k, g, x, t, w, r, i, n: losses.nll_loss_backward(k, g, x, t, w, 2, i, n),
    "aten.mse_loss_backward": lambda k, g, x, y, r: losses.mse_loss_backward(k, g, x, y, 2),
    "aten.embedding_dense_backward": lambda k, g, at, n, pad, scale: TABLE["aten.embedding_dense_backward"].rule(
        k, g, at, n, -1, scale),
    "aten.index_put": lambda k, x, at, v, accumulate=False: index.index_put(k, x, at, v),
    "aten.scatter_add": lambda k, x, dim, at, v: index.scatter(k, x, dim, at, v),
    "aten.native_layer_norm": lambda k, x, shape, w, b, eps: norm.layer_norm(k, x, shape, w, b, 0.1),
    "aten.convolution": lambda k, x, w, b, *geometry: conv.convolution(k, x, w, None, *geometry),
    "aten._scaled_dot_product_flash_attention_for_cpu": lambda k, q, a, b, p=0.0, causal=False, **o: (
        attention.flash_cpu(k, q, a, b, p, False, **o)),
}  # fmt: skip


@pytest.mark.parametrize("op", WRONG)
def test_a_wrong_rule_is_seen(op: str) -> None:
    row = TABLE[op]
    table: dict[str, OperatorRow] = {**TABLE, op: replace(row, rule=WRONG[op])}
    assert any(difference(c.interpret(Floats(), table), c.outs) for c in (run(row, e, 5, None) for e in row.examples))
    assert not any(difference(c.interpret(Floats()), c.outs) for c in (run(row, e, 5, None) for e in row.examples))
