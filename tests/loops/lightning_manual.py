"""Lightning with manual optimization: backward, clip, step and schedule are called by hand."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

MAX_NORM = 0.85


class Regression(lightning.LightningModule):
    """Two layers and a mean squared error."""

    def __init__(self, accum_steps: int, micro_batches: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.accum_steps, self.micro_batches = accum_steps, micro_batches
        self.window_loss = torch.zeros(())
        self.losses: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """One micro-batch; at the window's end one step."""
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        n = self.accum_steps
        window = min(n, self.micro_batches - index // n * n)
        if index % n == 0:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        share = loss / window
        self.manual_backward(share)
        self.window_loss = self.window_loss + share.detach()
        if (index + 1) % n == 0 or index + 1 == self.micro_batches:
            self.clip_gradients(optimizer, gradient_clip_val=MAX_NORM, gradient_clip_algorithm="norm")
            optimizer.step()
            scheduler.step()
            self.losses.append(self.window_loss)
            self.window_loss = torch.zeros(())

    def configure_optimizers(self) -> Any:
        """SGD with momentum and a schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    module = Regression(run.accum_steps, run.micro_batches)
    data = TensorDataset(torch.randn(run.samples, 3), torch.randn(run.samples, 2))
    loader = DataLoader(data, batch_size=run.micro_batch_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
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
