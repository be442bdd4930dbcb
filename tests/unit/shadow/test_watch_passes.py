"""Usual micro-batches under `watch`: decoders, pairs, metrics, a model as its own teacher, losses, clips by value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradproof.core.outcome import Outcome
from tests import checked

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Clips = Callable[[list[Tensor]], object]


class Count(nn.Module):
    """Counts what it is given, as a metric does; it has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0.0

    def forward(self, *given: Tensor) -> None:
        """The last argument is counted."""
        self.count += given[-1].numel()


class Decoder(nn.Module):
    """Takes what another module made, and labels that no module took before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.labels = nn.Linear(4, 3), nn.Embedding(4, 4)

    def forward(self, code: Tensor, y: Tensor) -> Tensor:
        """(rows, 4) and (rows,) to (rows, 3)."""
        out: Tensor = self.inner(code + self.labels(y))
        return out


class Noise(nn.Module):
    """Adds noise to a batch."""

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return x + torch.randn_like(x)


class Step:
    """The losses of one training step, by name."""

    def __init__(self) -> None:
        self.model, self.decoder, self.metric, self.noise = nn.Linear(3, 4), Decoder(), Count(), Noise()
        self.dropped = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
        self.teacher = nn.Linear(3, 4).requires_grad_(False)
        self.shares = torch.rand(16, 6).softmax(1)

    def metric_first(self, x: Tensor, y: Tensor) -> Tensor:
        """Labels are counted by a module before the model runs."""
        self.metric(y)
        return F.cross_entropy(self.model(x), y)

    def table_first(self, x: Tensor, y: Tensor) -> Tensor:
        """A module without weights is given a table that has other rows than the batch."""
        self.metric(torch.arange(3) * 1.5)
        return F.cross_entropy(self.model(x), y)

    def looked_at(self, x: Tensor, y: Tensor) -> Tensor:
        """Both are read before the model runs."""
        self.metric.count += float(x.mean() + y.sum())
        return F.cross_entropy(self.model(x), y)

    def chosen(self, x: Tensor, y: Tensor) -> Tensor:
        """A part of the labels is found before the model runs: in the first batch it has fewer rows."""
        self.metric.count += len(torch.where(y == 1)[0])
        return F.cross_entropy(self.model(x), y)

    def smoothed(self, x: Tensor, y: Tensor) -> Tensor:
        """Torch counts the labels by a mask of its own."""
        return F.cross_entropy(self.model(x), y, label_smoothing=0.1)

    def encoded(self, x: Tensor, y: Tensor) -> Tensor:
        """Torch looks at the labels before it makes codes of them."""
        return F.mse_loss(self.model(x), F.one_hot(y, 4).float())

    def weighed(self, x: Tensor, y: Tensor) -> Tensor:
        """A sum whose weights are data of the batch, and 1 in all, beside a mean."""
        scores, shares = self.model(x), self.shares[int(self.metric.count)]
        self.metric.count += 1
        return scores.square().mean() + (shares * F.cross_entropy(scores, y, reduction="none")).sum()

    def metric_between(self, x: Tensor, y: Tensor) -> Tensor:
        """A module is given the scores without a gradient, and the labels before the loss is."""
        scores = self.model(x)
        self.metric(scores.detach().argmax(-1), y)
        return F.cross_entropy(scores, y)

    def decoded(self, x: Tensor, y: Tensor) -> Tensor:
        """A conditional autoencoder."""
        return F.mse_loss(self.decoder(self.model(x), y), x)

    def decoded_apart(self, x: Tensor, y: Tensor) -> Tensor:
        """The decoder sends no gradient to the encoder."""
        scores = self.model(x)
        return F.mse_loss(self.decoder(scores.detach(), y), x) + F.cross_entropy(scores, y)

    def noisy(self, x: Tensor, y: Tensor) -> Tensor:
        """A module without weights prepares the batch."""
        return F.cross_entropy(self.model(self.noise(x)), y)

    def own_teacher(self, x: Tensor, y: Tensor) -> Tensor:
        """The first pass of the model, in training mode, has no gradient."""
        with torch.no_grad():
            target = self.model(x).softmax(1)
        scores = self.model(x)
        return F.cross_entropy(scores, y) + F.kl_div(scores.log_softmax(1), target, reduction="batchmean")

    def pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """Direct preference optimization: the model runs on both answers, and so does a frozen reference."""
        better, worse = x, x.flip(1)
        with torch.no_grad():
            known = self.teacher(better).sum(1) - self.teacher(worse).sum(1)
        return -F.logsigmoid(self.model(better).sum(1) - self.model(worse).sum(1) - known).mean()

    def dropped_twice(self, x: Tensor, y: Tensor) -> Tensor:
        """R-Drop: two passes of one batch that drop other units."""
        one, other = self.dropped(x), self.dropped(x)
        apart = F.kl_div(one.log_softmax(1), other.softmax(1), reduction="batchmean")
        return (F.cross_entropy(one, y) + F.cross_entropy(other, y)) / 3 + apart


def trained(name: str, loader: bool, share: int, clips: Clips | None = None, each: bool = False, rows: int = 2) -> None:
    """Four windows of four micro-batches of two samples, or `rows`; each loss is divided by `share`.

    `clips`: what is done to the gradients before a step, and with `each` after each backward pass.
    """
    torch.manual_seed(0)
    x, y, step = torch.randn(16 * rows, 3), torch.arange(16 * rows) % 4, Step()
    parts = (step.model, step.decoder, step.dropped)
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=0.1)
    batches = (
        DataLoader(TensorDataset(x, y), batch_size=rows) if loader else zip(x.split(rows), y.split(rows), strict=True)
    )
    for k, (xs, ys) in enumerate(batches, 1):
        loss = getattr(step, name)(xs, ys)
        (loss / share).backward()
        if clips is not None and (each or k % 4 == 0):
            clips([p for part in parts for p in part.parameters() if p.grad is not None])
        if k % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


ONCE = (
    "metric_first", "table_first", "looked_at", "chosen", "metric_between", "decoded", "decoded_apart", "noisy",
    "own_teacher", "smoothed", "encoded",
)  # fmt: skip
"""No module with gradients runs twice."""
TWICE = ("pairs", "dropped_twice")
UNREAD = ("smoothed",)
"""Numbers of C++ scale its parts: they refute nothing."""


@pytest.mark.parametrize(
    ("name", "loader"), [*((name, loader) for name in ONCE for loader in (False, True)), *((n, True) for n in TWICE)]
)
def test_passes_of_one_batch_are_one_micro_batch(name: str, loader: bool) -> None:
    right = checked.watch(lambda: trained(name, loader, 4))
    judged = [r for r in right.results if r.obligation != "GA-INV-001"]
    assert {r.obligation: r.reason for r in judged if r.outcome is not HOLDS} == {}
    wrong = checked.watch(lambda: trained(name, loader, 1))
    assert wrong.result("GA-EQ-001").outcome is (Outcome.UNKNOWN if name in UNREAD else REFUTED)


def by_hand(weights: list[Tensor]) -> None:
    """Gradients are cut off at a number."""
    for weight in weights:
        assert weight.grad is not None
        weight.grad.clamp_(-0.01, 0.01)


VALUES: dict[str, Clips] = {"torch's": lambda weights: nn.utils.clip_grad_value_(weights, 0.01), "by hand": by_hand}


@pytest.mark.parametrize("how", VALUES)
def test_a_clip_by_value_is_one_of_the_whole_gradient(how: str) -> None:
    right = checked.watch(lambda: trained("noisy", True, 4, VALUES[how]))
    judged = [r for r in right.results if r.obligation != "GA-INV-001"]
    assert {r.obligation: r.reason for r in judged if r.outcome is not HOLDS} == {}
    wrong = checked.watch(lambda: trained("noisy", True, 1, VALUES[how])).result("GA-EQ-001")
    assert (wrong.outcome, "weigh 4 times" in wrong.reason) == (REFUTED, True), wrong.reason
    early = checked.watch(lambda: trained("noisy", True, 4, VALUES[how], each=True))
    assert HOLDS not in {early.result(name).outcome for name in ("GA-EQ-001", "GA-INV-005")}


def too_early(weights: list[Tensor]) -> None:
    """Gradients are cut off before they are divided."""
    by_hand(weights)
    for weight in weights:
        assert weight.grad is not None
        weight.grad.div_(4)


def test_a_clip_by_value_at_another_scale_does_not_hold() -> None:
    found = checked.watch(lambda: trained("noisy", True, 1, too_early))
    assert HOLDS not in {found.result(name).outcome for name in ("GA-EQ-001", "GA-INV-005")}


def test_a_sum_that_data_weigh_is_not_refuted() -> None:
    found = checked.watch(lambda: trained("weighed", True, 4, rows=6)).result("GA-EQ-001")
    assert found.outcome is not REFUTED, found.reason
