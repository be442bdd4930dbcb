"""Lightning with automatic optimization; the loss is scaled so that the short last window counts by its length."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

MAX_NORM = 1.25


class Regression(lightning.LightningModule):
    """Two layers and a mean squared error."""

    def __init__(self, micro_batches: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.micro_batches = micro_batches
        self.losses: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss; Lightning divides it by `accumulate_grad_batches`."""
        n = self.trainer.accumulate_grad_batches
        window = min(n, self.micro_batches - index // n * n)
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        if index % n == 0:
            self.losses.append(torch.zeros(()))
        self.losses[-1] += loss.detach() / window
        return loss * n / window

    def configure_optimizers(self) -> Any:
        """AdamW with a schedule that advances with every step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    module = Regression(run.micro_batches)
    data = TensorDataset(torch.randn(run.samples, 3), torch.randn(run.samples, 2))
    loader = DataLoader(data, batch_size=run.micro_batch_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accumulate_grad_batches=run.accum_steps,
            gradient_clip_val=MAX_NORM,
            max_epochs=1,
            accelerator=torch.device(run.device).type,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(module, loader)
    return module.losses
