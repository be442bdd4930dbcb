"""Steps with other models: layers, parametrizations, dropout, batch statistics, state that moves, narrow weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import accumulates, hand_over, meets, right, wrong
from tests.soundness.tasks import CONV, LINEAR, MLP, VOCABULARY, WHOLE_TOKENS, token_mean


class Recurrent(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(VOCABULARY, 2), nn.LSTM(2, 2, batch_first=True)
        self.head = nn.Linear(2, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        return self.head(self.layer(self.embedding(tokens))[0])


class Attention(nn.Module):
    """One layer of attention, with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixed = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        q, k, v = self.mixed(self.embedding(tokens)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) @ self.embedding.weight.T


class Checkpointed(nn.Module):
    """Two layers that are not kept for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Forward, and again in the backward pass."""
        made: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return made


class Centred(nn.Module):
    """A layer over inputs less the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Centre, then the layer."""
        made: Tensor = self.layer(x - x.mean(0))
        return made


class Moving(nn.Module):
    """A layer whose inputs are shifted by a buffer that moves with each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Shift, then move the shift."""
        output = self.layer(x - self.shift.to(x.dtype))
        if self.training:
            with torch.no_grad():
                self.shift.lerp_(x.mean(0).to(self.shift.dtype), 0.1)
        return output


def of(model: Any, task: Any = LINEAR) -> Any:
    """A task with another model."""
    return replace(task, model=model)


RECURRENT, ATTENTION = of(Recurrent, WHOLE_TOKENS), of(Attention, WHOLE_TOKENS)
CHECKPOINTED, MOVING, CENTRED = of(Checkpointed), of(Moving), of(Centred)
DROPOUT = of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
BATCH_NORM = of(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
FROZEN_NORM = of(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)))
LAYER_NORM = of(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
WEIGHT_NORM = of(lambda: parametrizations.weight_norm(nn.Linear(3, 2)))
ORTHOGONAL = of(lambda: parametrizations.orthogonal(nn.Linear(3, 2)))


@right("models", CONV)
def a_convolution(run: Run) -> None:
    """Convolution, ReLU, a layer."""
    CONV.start(run).train()


@right("models", RECURRENT)
def an_lstm(run: Run) -> None:
    """Tokens through an LSTM."""
    RECURRENT.start(run).train()


@wrong("models", RECURRENT, "GA-EQ-001")
def an_lstm_without_a_share(run: Run) -> None:
    """The 1/N is missing."""
    RECURRENT.start(run).train(lambda output, target, window: token_mean(output, target))


@right("models", ATTENTION)
def attention_with_tied_weights(run: Run) -> None:
    """The embedding is the head, too."""
    ATTENTION.start(run).train()


@wrong("models", ATTENTION, "GA-INV-002")
def tied_weights_that_are_not_zeroed(run: Run) -> None:
    """All but the embedding is zeroed."""
    job = ATTENTION.start(run)
    for window in job.windows():
        for x, y in window:
            (token_mean(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for p in job.parameters[1:]:
            p.grad = None


@right("models", LAYER_NORM)
def layer_norm(run: Run) -> None:
    """Every sample by itself."""
    LAYER_NORM.start(run).train()


@right("models", FROZEN_NORM)
def frozen_batch_norm(run: Run) -> None:
    """The statistics do not move."""
    FROZEN_NORM.start(run).train()


@meets("models", BATCH_NORM, "GA-EQ-001")
def batch_norm(run: Run) -> None:
    """Each micro-batch has its own statistics."""
    BATCH_NORM.start(run).train()


@wrong("models", MOVING, "GA-EQ-001")
def a_buffer_that_moves_with_each_micro_batch(run: Run) -> None:
    """The forward pass uses what the last micro-batch left."""
    MOVING.start(run).train()


@right("models", DROPOUT)
def dropout(run: Run) -> None:
    """Random numbers in the forward pass; the oracle looks at the step without them."""
    DROPOUT.start(run).train()


@right("parametrizations", WEIGHT_NORM)
def weight_norm(run: Run) -> None:
    """A direction and a length."""
    WEIGHT_NORM.start(run).train()


@wrong("parametrizations", WEIGHT_NORM, "GA-EQ-001")
def weight_norm_without_a_share(run: Run) -> None:
    """The 1/N is missing."""
    WEIGHT_NORM.start(run).train(lambda output, target, window: F.mse_loss(output, target))


@right("parametrizations", ORTHOGONAL)
def orthogonal(run: Run) -> None:
    """An orthogonal weight."""
    ORTHOGONAL.start(run).train()


@right("models", CHECKPOINTED)
def a_checkpoint(run: Run) -> None:
    """The forward pass is made again in the backward pass."""
    CHECKPOINTED.start(run).train()


@right("models", MLP)
def a_functional_call(run: Run) -> None:
    """The parameters are handed to the model."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            output = torch.func.functional_call(job.model, dict(job.model.named_parameters()), (x,))
            (F.cross_entropy(output, y) / len(window)).backward()
        job.apply()


def penalised(run: Run) -> None:
    """The plain full batch with the squared gradient of each sample's loss by its input."""
    job, size = MLP.start(run), run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        penalty(job.model, x, y).backward()
        job.apply()


def penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss with a penalty on the gradient by the input."""
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(model(x), y, reduction="sum")
    (by_input,) = torch.autograd.grad(loss, x, create_graph=True)
    return (loss + 0.1 * by_input.square().sum()) / len(x)


@right("models", penalised)
def a_gradient_penalty(run: Run) -> None:
    """create_graph, each sample by itself."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (penalty(job.model, x, y) / len(window)).backward()
        job.apply()


def contrast(output: Tensor, target: Tensor) -> Tensor:
    """Every other sample of the batch is a negative."""
    return F.cross_entropy(output @ target.T, torch.arange(len(output)))


@meets("models", replace(LINEAR, loss=contrast), "GA-EQ-001")
def in_batch_negatives(run: Run) -> None:
    """The loss of a sample depends on its micro-batch."""
    replace(LINEAR, loss=contrast).start(run).train()


@wrong("models", CENTRED, "GA-EQ-001")
def inputs_less_the_mean_of_the_micro_batch(run: Run) -> None:
    """The model takes the batch's mean away."""
    CENTRED.start(run).train()


def mastered(run: Run) -> None:
    """The plain full batch: narrow weights and wide copies."""
    job, size = LINEAR.start(run), run.effective_batch_size
    job.model.to(torch.bfloat16)
    masters = [p.detach().to(run.dtype) for p in job.parameters]
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x.bfloat16()).to(run.dtype), y).backward()
        stepped(job, masters, [g.to(run.dtype) for g in job.gradients])


def stepped(job: Any, masters: list[Tensor], gradients: list[Tensor]) -> None:
    """Step the copies, and copy them back."""
    hand_over(gradients, [job.lr])
    with torch.no_grad():
        for p, m, g in zip(job.parameters, masters, gradients, strict=True):
            m -= job.lr * g
            p.copy_(m)
            p.grad = None


@right("narrow weights", mastered, tolerance=5e-2)
def wide_copies_and_wide_sums(run: Run) -> None:
    """bf16 weights; gradients are added up in fp32."""
    job = LINEAR.start(run)
    job.model.to(torch.bfloat16)
    masters = [p.detach().to(run.dtype) for p in job.parameters]
    for window in job.windows():
        sums = [torch.zeros_like(m) for m in masters]
        for x, y in window:
            (F.mse_loss(job.model(x.bfloat16()).to(run.dtype), y) / len(window)).backward()
            for s, p in zip(sums, job.parameters, strict=True):
                s += p.grad
                p.grad = None
        stepped(job, masters, sums)


@wrong("narrow weights", mastered, "GA-INV-004", tolerance=5e-3)
def wide_copies_and_narrow_sums(run: Run) -> None:
    """bf16 weights; gradients are added up where they are."""
    job = LINEAR.start(run)
    job.model.to(torch.bfloat16)
    masters = [p.detach().to(run.dtype) for p in job.parameters]
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x.bfloat16()).to(run.dtype), y) / len(window)).backward()
        accumulates(*job.gradients)
        stepped(job, masters, [g.to(run.dtype) for g in job.gradients])
