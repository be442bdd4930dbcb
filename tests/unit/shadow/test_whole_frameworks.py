"""`watch` on unchanged scripts that use transformers and accelerate: every obligation is decided by one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0)
LLAMA = LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    intermediate_size=64, vocab_size=50)
"""
LOOP = """
optimizer = torch.optim.AdamW(model.parameters())
for window in torch.randint(50, (4, 4, 2, 16)):
    for ids in window:
        (model(input_ids=ids, labels=ids).loss / SHARE).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
TRAINER = """
rows = [{"input_ids": torch.randint(50, (16,))} for _ in range(64)]
for k, row in enumerate(rows):
    row["labels"] = row["input_ids"].clone()
    row["labels"][: k % 5] = -100
options = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=4,
                            report_to=[], save_strategy="no", use_cpu=True)
Trainer(GPT2LMHeadModel(GPT2), options, train_dataset=rows).train()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(3, (64,))), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
SCRIPTS = {
    "GPT-2": (MODEL + "model = GPT2LMHeadModel(GPT2)" + LOOP.replace("SHARE", "4"), 0),
    "GPT-2 without 1/N": (MODEL + "model = GPT2LMHeadModel(GPT2)" + LOOP.replace("SHARE", "1"), 1),
    "Llama": (MODEL + "model = LlamaForCausalLM(LLAMA)" + LOOP.replace("SHARE", "4"), 0),
    "Trainer with ragged labels": (MODEL + TRAINER, 0),
    "Accelerate": (ACCELERATE, 0),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unchanged_script_is_decided(name: str, tmp_path: Path) -> None:
    body, code = SCRIPTS[name]
    (tmp_path / "train.py").write_text(body, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "gradproof", "watch", "--format", "json", "--out", "found.json"]
    made = subprocess.run([*command, "--", "python", "train.py"], cwd=tmp_path, capture_output=True, check=False)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    outcomes = {result["obligation"]: result["outcome"] for result in found["results"]}
    assert made.returncode == code, outcomes
    assert outcomes["GA-EQ-001"] == ("REFUTED" if code else "HOLDS")
    assert code or {name for name, outcome in outcomes.items() if outcome != "HOLDS"} == {"GA-INV-001"}  # not reported
