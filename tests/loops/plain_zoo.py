"""Many layers, losses and optimizers in one plain loop: what a training loop may dispatch, at tiny shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, WIDTH, CLASSES = 6, 4, 3


class Picture(nn.Module):
    """Convolutions of several kinds, to (batch, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.up, self.norm = nn.ConvTranspose2d(4, 4, 2), nn.GroupNorm(2, 4)
        self.still = nn.BatchNorm2d(4).eval()
        self.line = nn.Conv1d(4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, side, side) to (batch, width)."""
        x = F.max_pool2d(F.silu(self.norm(self.first(x))), 2, stride=1)
        x = F.avg_pool2d(F.hardswish(self.still(self.second(x))), 1)
        x = F.interpolate(F.leaky_relu(self.up(x)), scale_factor=2)
        x = F.adaptive_avg_pool2d(F.pad(x, (1, 0, 0, 1)), 2).flatten(2)
        return F.mish(self.line(x)).amax(dim=2)


class Words(nn.Module):
    """Embedding, attention by heads, a recurrent cell, a gate, to (batch, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, WIDTH, padding_idx=0)
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.cell, self.gate = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.rms = nn.RMSNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) token ids to (batch, width)."""
        x = self.table(ids)
        x = x + self.heads(x, x, x, need_weights=False)[0]
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True)
        state = torch.zeros_like(x[:, 0])
        for place in range(ids.size(1)):
            state = self.cell(x[:, place], state)
        x = F.glu(self.gate(self.rms(state)))
        return F.softplus(x) - F.elu(x) + torch.sin(x) * torch.cos(x).abs()


class Mixed(nn.Module):
    """Both, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.words = Picture(), Words()
        self.join, self.head = nn.Parameter(torch.randn(WIDTH, WIDTH, WIDTH)), nn.Linear(2 * WIDTH, CLASSES)
        self.slope, self.shift = nn.PReLU(), nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, image: Tensor, ids: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        a, b = self.picture(image), self.words(ids)
        x = self.slope(torch.einsum("bi,ijk,bj->bk", a, self.join, b)) + torch.lerp(
            a, b, 0.25
        ) * self.shift.exp().clamp(max=2.0)
        order = x.sort(dim=1).values.cumsum(dim=1).roll(1, 1)
        x = torch.where(x > 0, x, order) / x.square().sum(1, keepdim=True).add(1).sqrt()
        return self.head(torch.cat([x, torch.stack([a, b]).mean(0).flip(1)], dim=1))


def loss_of(logits: Tensor, target: Tensor, goal: Tensor) -> Tensor:
    """A sum of losses, each a mean over samples."""
    named = F.cross_entropy(logits, target, label_smoothing=0.1)
    hot = F.one_hot(target, CLASSES).to(logits.dtype)
    near = F.smooth_l1_loss(logits, goal) + F.huber_loss(logits, goal, delta=0.5) + F.l1_loss(logits, goal)
    chance = F.binary_cross_entropy_with_logits(logits, hot)
    apart = F.kl_div(F.log_softmax(logits, 1), hot, reduction="batchmean")
    return named + near + chance + 0.1 * apart + F.mse_loss(logits.tanh(), goal.sigmoid()) + logits.logsumexp(1).mean()


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """One optimizer for every few parameters."""
    params = list(model.parameters())
    kinds: list[Any] = [
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
        lambda p: torch.optim.NAdam(p, lr=0.01),
        lambda p: torch.optim.Adamax(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.01, fused=True),
    ]
    return [make(params[k :: len(kinds)]) for k, make in enumerate(kinds)]


def train(run: Any) -> None:
    """Train."""
    torch.manual_seed(run.seed)
    model = Mixed().to(run.device)
    steps = optimizers(model)
    images, goals = torch.randn(run.samples, 1, SIDE, SIDE), torch.randn(run.samples, CLASSES)
    ids, targets = torch.randint(1, 7, (run.samples, 3)), torch.randint(0, CLASSES, (run.samples,))
    parts = [t.to(run.device).split(run.micro_batch_size) for t in (images, ids, targets, goals)]
    batches = list(zip(*parts, strict=True))
    for start in range(0, len(batches), run.accum_steps):
        window = batches[start : start + run.accum_steps]
        for image, words, target, goal in window:
            (loss_of(model(image, words), target, goal) / len(window)).backward()
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad()
