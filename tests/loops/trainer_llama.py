"""Transformers' Trainer with a causal language model of the library, built from its configuration."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY, LENGTH = 7, 4


def documents(samples: int) -> list[dict[str, Tensor]]:
    """Token ids and labels; the first label, which the shift removes, and those behind the end are ignored."""
    found = []
    for _ in range(samples):
        ids = torch.randint(0, VOCABULARY, (LENGTH,))
        labels = ids.clone()
        labels[0] = -100
        labels[int(torch.randint(2, LENGTH + 1, ())) :] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def build() -> LlamaForCausalLM:
    """One layer of width 4."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


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
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=run.device == "cpu",
            disable_tqdm=True,
            seed=run.seed,
            dataloader_pin_memory=False,
        )
        trainer = OrderedTrainer(model=build(), args=arguments, train_dataset=documents(run.samples))
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
