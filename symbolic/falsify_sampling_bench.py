"""The bench of FALSIFY-GT-101 to -106: a small training run under observation.

What is judged was seen from outside: the inputs of the model by a hook on its forward, the losses at the criterion, the
steps at the optimizer's. The expected samples are drawn here, by a generator of the bench's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import Case, Place, Refutation, tell
from models.char_training import VALIDATION_SEED, Job, Report, Setup
from models.char_transformer import CharTransformer, Shape, encoded, mean_loss, text_of

SENTENCES = 40
NET = "char"
TINY = {"width": 8, "layers": 1, "heads": 2, "block": 8}
DROPOUT = 0.25


@dataclass
class Seen:
    """A run as it was observed: inputs (samples, block) on the CPU in order, by window; losses as the criterion saw."""

    setup: Setup
    report: Report = field(default_factory=Report)
    trained: list[list[Tensor]] = field(default_factory=list)
    validated: list[Tensor] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    open_inputs: list[Tensor] = field(default_factory=list)
    open_losses: list[float] = field(default_factory=list)

    def close(self) -> None:
        """The optimizer has stepped: a window ends."""
        self.trained.append(self.open_inputs)
        self.losses.append(self.open_losses)
        self.open_inputs, self.open_losses = [], []


@lru_cache(maxsize=1)
def data() -> tuple[Tensor, Tensor, int]:
    """Text, held-out text, and the number of characters."""
    text, characters = encoded(text_of(SENTENCES))
    cut = len(text) * 3 // 4
    return text[:cut], text[cut:], characters


def setup_of(case: Case, place: Place, dropout: float = DROPOUT) -> Setup:
    """The run of a case: `size` samples a micro-batch, `windows` steps, two validation batches and `tail` samples."""
    shape = Shape(data()[2], dropout=dropout, **TINY)
    validation = 2 * case.size * case.n + case.tail
    return Setup(
        case.size, case.n, case.windows, shape, validation, 100 + case.seed, 200 + case.seed, device=place.device
    )


def observe(subject: Any, setup: Setup, arrival: int = 0) -> Seen:
    """Run the subject (a class). Raises whatever it raises."""
    seen = Seen(setup)
    text, held_out, _ = data()

    def build(shape: Shape) -> nn.Module:
        model = CharTransformer(shape)
        model.register_forward_pre_hook(lambda module, inputs: note(module, inputs[0]))
        return model

    def note(module: nn.Module, inputs: Tensor) -> None:
        (seen.open_inputs if module.training else seen.validated).append(inputs.detach().cpu().clone())
        if not module.training:
            tell("validation batch", tuple(inputs.shape), phase=True)

    def criterion(logits: Tensor, targets: Tensor) -> Tensor:
        loss = mean_loss(logits, targets)
        if loss.requires_grad:
            seen.open_losses.append(float(loss.detach()))
        return loss

    seen.report = subject().run(Job(setup, text, held_out, build, criterion, seen.close, arrival))
    return seen


def due(setup: Setup) -> list[list[Tensor]]:
    """The inputs of each window's micro-batches: one draw without replacement a window, split in order."""
    text, _, _ = data()
    generator, block = torch.Generator().manual_seed(setup.data_seed), setup.shape.block
    windows = []
    for _ in range(setup.steps):
        starts = torch.randperm(len(text) - block, generator=generator)[: setup.effective]
        windows.append([blocks(text, part, block) for part in torch.split(starts, setup.size)])
    return windows


def due_validation(setup: Setup) -> list[Tensor]:
    """The inputs of the validation batches: one draw, in batches of the effective size."""
    _, held_out, _ = data()
    generator, block = torch.Generator().manual_seed(setup.data_seed + VALIDATION_SEED), setup.shape.block
    starts = torch.randperm(len(held_out) - block, generator=generator)[: setup.validation]
    return [blocks(held_out, part, block) for part in torch.split(starts, setup.effective)]


def blocks(text: Tensor, starts: Tensor, block: int) -> Tensor:
    """(samples, block): the characters from each start on."""
    return text[starts[:, None] + torch.arange(block)]


def alike(clause: str, what: str, got: list[Tensor], want: list[Tensor]) -> None:
    """Refutes unless the two lists hold equal tensors."""
    if len(got) != len(want):
        raise Refutation(clause, f"{what}: {len(got)} parts where {len(want)} are due", {"parts": len(got)})
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if x.shape != y.shape or not torch.equal(x, y):
            detail = f"{what}, part {i}: {tuple(x.shape)} other samples than the {tuple(y.shape)} that are due"
            raise Refutation(clause, detail, {"part": i, "shape": list(x.shape)})


def ran(clause: str, seen: Seen) -> None:
    """Refutes a run that did not step once a window, or logged another number of losses."""
    for name, count in (("steps", len(seen.trained)), ("logged losses", len(seen.report.logged))):
        if count != seen.setup.steps:
            raise Refutation(clause, f"{count} {name} in {seen.setup.steps} windows", {name: count})


def other(setup: Setup, **changed: Any) -> Setup:
    """The same run with other seeds of the model, or another dropout."""
    dropout = changed.pop("dropout", setup.shape.dropout)
    return replace(setup, shape=replace(setup.shape, dropout=dropout), **changed)
