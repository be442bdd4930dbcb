"""Families of models whose samples lie in odd places: each right loop is proved, each without 1/N refuted."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.values import Value, shared
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run
from tests.laws.numbers import Traced
from tests.laws.trials import compare, cut_up

LENGTH, WORDS, WIDTH = 5, 11, 8


class Recurrent(nn.Module):
    """A language model of a recurrent layer, with samples along the first axis or the second."""

    def __init__(self, layer: type[nn.RNNBase], first: bool) -> None:
        super().__init__()
        self.first = first
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layer = layer(WIDTH, WIDTH, batch_first=first)  # type: ignore[call-arg]

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        found, _ = self.layer(self.embedding(ids if self.first else ids.t()))
        return self.head(found if self.first else found.transpose(0, 1))


class Vision(nn.Module):
    """Patches, a class token for every sample, and torch's own encoder, which puts time first."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes."""
        rows = self.patches(pictures).flatten(2).transpose(1, 2)
        return self.head(self.encoder(torch.cat([self.token.expand(len(rows), -1, -1), rows], 1))[:, 0])


class Translation(nn.Module):
    """Encoder and decoder: the packed weights of the attention over the encoder get their gradient in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        rows = self.embedding(ids)
        return self.head(self.transformer(rows, rows))


class Diffusion(nn.Module):
    """Down and up again, by a convolution that is turned round and by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures of the same size."""
        low = F.silu(self.norm(self.down(pictures)))
        wide = F.interpolate(low, size=pictures.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([self.up(low), wide], 1))


class Experts(nn.Module):
    """Each token is given to the best two of three experts; all compute, and zeros weigh the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WORDS) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        rows = self.embedding(ids)
        best, chosen = self.router(rows).softmax(-1).topk(2, -1)
        weights = torch.zeros(*ids.shape, 3).scatter(-1, chosen, best)
        return (weights.unsqueeze(-1) * torch.stack([expert(rows) for expert in self.experts], -2)).sum(-2)


class Pairs(nn.Module):
    """Two numbers for two columns, as many as a micro-batch has samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(192, 2), nn.Linear(2, WORDS)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.first(pictures.flatten(1)) * torch.tensor([0.5, 2.0]))


class Rotations(nn.Module):
    """Rows turned by complex numbers, a convolution by Fourier transforms, and a conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weight, self.head = nn.Parameter(torch.randn(3, WIDTH)), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        rows = self.first(self.embedding(ids)).unflatten(-1, (WIDTH // 2, 2))
        turns = torch.polar(torch.ones(LENGTH, WIDTH // 2), torch.arange(LENGTH * WIDTH / 2).view(LENGTH, -1))
        turned = torch.view_as_complex(rows) * turns
        waves = torch.fft.rfft(torch.view_as_real(turned * turned.conj()).flatten(2), dim=1) * self.weight
        turned, nothing = turned * 1j, torch.ones(2, 6).repeat_interleave(0, 0)
        turned = turned + nothing.sum()
        return self.head(torch.fft.irfft(waves, n=LENGTH, dim=1) + torch.view_as_real(turned).flatten(2))


def normed() -> nn.Module:
    """Norms of the data themselves, which ask for no gradient."""
    last = nn.Sequential(nn.Flatten(), nn.RMSNorm(192), nn.Linear(192, WORDS))
    return nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(1, 3), *last)


class Queries(nn.Module):
    """Queries that all samples have read each picture: of a parameter that is expanded, repeated, or stacked."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.queries, self.norm = how, nn.Parameter(torch.randn(3, WIDTH)), nn.LayerNorm(WIDTH)
        self.query, self.keys, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes."""
        rows, count = pictures.flatten(1, 2), len(pictures)
        own = {
            "expanded": lambda: self.queries.expand(count, -1, -1),
            "repeated": lambda: self.queries.unsqueeze(0).repeat(count, 1, 1),
            "stacked": lambda: torch.stack([self.queries] * count),
        }[self.how]()
        keys, values = self.keys(rows).chunk(2, -1)
        found = F.scaled_dot_product_attention(self.query(self.norm(own))[:, None], keys[:, None], values[:, None])
        return self.head(own + found[:, 0]).mean(1)


class Detections(nn.Module):
    """A decoder whose queries are those of all samples, with samples along the first axis or the second."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.queries, self.head = first, nn.Embedding(3, WIDTH), nn.Linear(WIDTH, WORDS)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 2, 16, 0.0, batch_first=first)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes."""
        rows, count = pictures.flatten(1, 2), len(pictures)
        if self.first:
            return self.head(self.decoder(self.queries.weight.expand(count, -1, -1), rows)).mean(1)
        own = self.queries.weight.unsqueeze(1).repeat(1, count, 1)
        return self.head(self.decoder(torch.zeros_like(own) + own, rows.transpose(0, 1))).mean(0)


class Places(nn.Module):
    """Numbers of places that are repeated for each sample, and a norm of each channel of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.head = nn.InstanceNorm1d(LENGTH, affine=True), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        places = self.places(torch.arange(LENGTH).unsqueeze(0).repeat(len(ids), 1))
        return self.head(self.norm(self.embedding(ids) + places))


def words(run: Run) -> tuple[Tensor, Tensor]:
    """Token ids and labels."""
    return torch.randint(WORDS, (run.samples, LENGTH)), torch.randint(WORDS, (run.samples, LENGTH))


def pictures(run: Run) -> tuple[Tensor, Tensor]:
    """Pictures and classes."""
    return torch.randn(run.samples, 3, 8, 8), torch.randint(WORDS, (run.samples,))


def pixels(run: Run) -> tuple[Tensor, Tensor]:
    """Pictures and pictures."""
    return torch.randn(run.samples, 3, 8, 8), torch.randn(run.samples, 3, 8, 8)


def scored(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over all labels."""
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


Family = tuple[Callable[[], nn.Module], Callable[[Run], tuple[Tensor, Tensor]], Callable[[Tensor, Tensor], Tensor]]
FAMILIES: dict[str, Family] = {
    "lstm": (lambda: Recurrent(nn.LSTM, True), words, scored),
    "lstm, time first": (lambda: Recurrent(nn.LSTM, False), words, scored),
    "gru": (lambda: Recurrent(nn.GRU, True), words, scored),
    "vision transformer": (Vision, pictures, F.cross_entropy),
    "encoder and decoder": (Translation, words, scored),
    "interpolation": (Diffusion, pixels, F.mse_loss),
    **{
        f"queries, {how}": (partial(Queries, how), pictures, F.cross_entropy)
        for how in ("expanded", "repeated", "stacked")
    },
    "detections": (partial(Detections, True), pictures, F.cross_entropy),
    "detections, samples second": (partial(Detections, False), pictures, F.cross_entropy),
    "as many numbers as samples": (Pairs, pictures, F.cross_entropy),
    "complex numbers": (Rotations, words, scored),
    "repeated places": (Places, words, scored),
    "norms of data": (normed, pictures, F.cross_entropy),
    "top-k experts": (Experts, words, scored),
}


def training(name: str, divided: bool) -> Callable[[Run], list[float]]:
    """A loop of a family, with its division or without."""
    make, data, loss = FAMILIES[name]

    def train(run: Run) -> list[float]:
        torch.manual_seed(run.seed)
        model, losses = make(), list[float]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        batches = zip(*(part.split(run.micro_batch_size) for part in data(run)), strict=True)
        for at, (inputs, targets) in enumerate(batches):
            share = loss(model(inputs), targets) / (run.accum_steps if divided else 1)
            share.backward()
            losses += [0.0] * (at % run.accum_steps == 0)
            losses[-1] += share.item()
            if (at + 1) % run.accum_steps == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return losses

    return train


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_proved_and_without_its_division_refuted(name: str) -> None:
    right = check_whole(training(name, True), name, Request())
    assert [(r.obligation, r.reason) for r in right.results if r.applies and r.outcome is not Outcome.HOLDS] == []
    wrong = check_whole(training(name, False), name, Request()).result("GA-EQ-001")
    assert (wrong.outcome, "4 times" in wrong.reason) == (Outcome.REFUTED, True)


# -- Movements of parts that take turns, against the real movements.


def factors(count: int) -> list[int]:
    """The numbers that divide a number."""
    return [n for n in range(1, count + 1) if count % n == 0]


def moved(x: Traced, value: Value, tensor: Tensor, by: random.Random) -> tuple[Value, Tensor]:
    """One random movement of a value and of its tensor."""
    shape = tuple(tensor.shape)
    kind = by.choice(["reshape", "permute", "cut", "expand", "join"])
    if kind == "permute":
        order = by.sample(range(len(shape)), len(shape))
        return x.permute(value, shape, order), tensor.permute(order)
    if kind == "cut":
        axis = by.randrange(len(shape))
        count = by.choice(factors(shape[axis]))
        start = by.randrange(shape[axis] // count) * count
        return x.cut(value, shape, axis, start, count), tensor.narrow(axis, start, count)
    if kind == "expand" and len(shape) < 5:
        wide = (2, *shape)
        return x.expand(value, shape, wide), tensor.expand(wide)
    if kind == "join":
        axis = by.randrange(len(shape))
        out = torch.cat([tensor, tensor], axis)
        return x.join([value, value], [shape, shape], axis, tuple(out.shape)), out
    left, new = tensor.numel(), list[int]()
    while left > 1 and len(new) < 3:
        new.append(by.choice(factors(left)))
        left //= new[-1]
    return x.reshape(value, shape, (*new, left)), tensor.reshape(*new, left)


@pytest.mark.parametrize("seed", range(40))
def test_movements_of_values_are_those_of_their_tensors(seed: int) -> None:
    """A value says which rows are whose; after any movement it still says what the tensor holds."""
    by = random.Random(seed)
    for _ in range(10):
        x = Traced()
        tensor = torch.arange(48.0, dtype=torch.float64).reshape(by.choice([(3, 4, 4), (4, 12), (2, 4, 6), (48,)]))
        axes = [axis for axis, size in enumerate(tensor.shape) if size % 4 == 0]
        axis = by.choice(axes)
        value = cut_up(x, tensor, axis, by.choice([2, 4]), 1, True, by.choice([1, tensor.shape[axis] // 4]))
        for _ in range(4):
            value, tensor = moved(x, value, tensor, by)
            if tensor.numel() > 400:
                break
            compare("moved", x, [value], [tensor])


def test_parts_that_lie_otherwise_are_seen() -> None:
    x, tensor = Traced(), torch.arange(8.0, dtype=torch.float64)
    value = cut_up(x, tensor, 0, 2, 1, True, 2)
    wrong = Value(value.parts, value.axis, value.rows)
    compare("turns", x, [value], [tensor])
    with pytest.raises(AssertionError):
        compare("turns", x, [wrong], [tensor])
    assert shared(value.parts[0]).turns == 1


def test_a_transposition_in_place_moves_the_parts() -> None:
    """`Tensor.transpose_` writes nothing: the same numbers lie along other axes."""

    def train(run: Run) -> Any:
        torch.manual_seed(run.seed)
        model, data = nn.Linear(3, 2), torch.randn(run.samples, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at, rows in enumerate(data.split(run.micro_batch_size)):
            turned = (rows * 2).transpose_(0, 1)
            (model(turned.t()).square().mean() / run.accum_steps).backward()
            if (at + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert check_whole(train, "step", Request()).result("GA-EQ-001").outcome is Outcome.HOLDS


def test_a_sum_of_many_sums_within_each_other_is_reshaped() -> None:
    """The residual stream of a deep model: each named sum is a summand of the next."""
    x = Traced()
    leaves = [x.terms.make("parameter", (at,), (), (2, 6)) for at in range(4000)]
    term = leaves[0]
    for leaf in leaves[1:]:
        term = x.terms.named({term: Fraction(1), leaf: Fraction(2)}, (2, 6))
    made = x.reshaped(term, (3, 4))
    (first, by), (last, twice) = x.terms.parts_of(made).items()
    assert (x.terms.operators[first], by, twice) == ("combination", 1, 2)
    assert (last, x.terms.shapes[made]) == (x.reshaped(leaves[-1], (3, 4)), (3, 4))


def test_samples_that_meet_in_a_recurrence_end_in_time() -> None:
    """Data with samples first in a layer with time first: the summands of what meets multiply, up to a limit."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        layer, data = nn.LSTM(3, 3), torch.randn(run.samples, 3, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for at, rows in enumerate(data.split(run.micro_batch_size)):
            (layer(rows)[0].square().mean() / run.accum_steps).backward()
            if (at + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = check_whole(train, "step", Request(accum_steps=3, windows=1, fake=True))
    assert found.result("GA-EQ-001").outcome is not Outcome.HOLDS
