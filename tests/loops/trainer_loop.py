"""Transformers' Trainer with a module of one's own that uses `num_items_in_batch`."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments

VOCABULARY, WIDTH, LENGTH = 5, 4, 4


class Documents(Dataset[dict[str, Tensor]]):
    """Token ids and labels; the labels behind a document's end are ignored."""

    def __init__(self, samples: int) -> None:
        self.ids = torch.randint(0, VOCABULARY, (samples, LENGTH))
        lengths = torch.randint(2, LENGTH + 1, (samples, 1))
        self.labels = self.ids.masked_fill(torch.arange(LENGTH) >= lengths, -100)
        self.labels[:, 0] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


class Model(nn.Module):
    """Predicts the next token from this one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, input_ids: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """The loss, summed and divided by the tokens of the window where they are known."""
        logits = self.head(torch.tanh(self.embed(input_ids)))[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        total = nn.functional.cross_entropy(logits, targets, reduction="sum")
        count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / count, "logits": logits}


class OrderedTrainer(Trainer):
    """Reads the documents in their order."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


def train(run: Any) -> list[float]:
    """Train; the loss of every window as the Trainer logs it."""
    torch.manual_seed(run.seed)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=run.micro_batch_size,
            gradient_accumulation_steps=run.accum_steps,
            num_train_epochs=1,
            learning_rate=0.01,
            lr_scheduler_type="linear",
            max_grad_norm=0.3,
            optim="adamw_torch",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=run.device == "cpu",
            disable_tqdm=True,
            seed=run.seed,
            dataloader_pin_memory=False,
        )
        trainer = OrderedTrainer(model=Model(), args=arguments, train_dataset=Documents(run.samples))
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
