"""Scripts that `watch` once got wrong: right ones that it refuted, and wrong ones of which it said HOLDS."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests.checked import watch

HOLDS, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
EQ, DATA, CLIP = "GA-EQ-001", "GA-DATA-001", "GA-INV-005"
FILE = "never_wrong_loop.py"
HEAD = """
from torch.utils.data import DataLoader, Subset, TensorDataset
torch.manual_seed(0)
D, B, N = {outputs}, {rows}, 4
X, Y = torch.randn(96, 8), torch.randn(96, D)
data = TensorDataset(X, Y)
loader = DataLoader(data, batch_size=B)
model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, D))
heads = nn.ModuleList([nn.Linear(8, D) for _ in range(4)])
opt = torch.optim.SGD([*model.parameters(), *heads.parameters()], lr=0.05)
mse = nn.functional.mse_loss
def done(i):
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""
LOOP = "for i, (x, y) in enumerate(loader):\n    ({}).backward(); done(i)"


def watched(body: str, *, outputs: int = 1, rows: int = 4, **options: object) -> Verification:
    """What is said of a loop over batches of some rows."""
    text = HEAD.format(outputs=outputs, rows=rows) + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    return watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}), **options)  # type: ignore[arg-type]


NEVER_REFUTED = {
    "a mean of N losses, divided by N": (LOOP.format("sum(mse(h(x), y) for h in heads) / len(heads) / N"), 1, 4),
    "a sum over N outputs, divided by all rows": (LOOP.format("(model(x) - y).square().sum() / (B * N)"), 4, 2),
    "a norm as the loss of one sample": (LOOP.format("torch.linalg.vector_norm(model(x) - y) / N"), 1, 1),
    "one sample that its norm divides": (LOOP.format("mse(model(x / x.norm()), y) / N"), 1, 1),
    "a loss that a norm of its sample divides": (LOOP.format("mse(model(x), y) / x.norm() / N"), 1, 1),
}


@pytest.mark.parametrize("name", NEVER_REFUTED)
def test_a_right_script_is_never_refuted(name: str) -> None:
    body, outputs, rows = NEVER_REFUTED[name]
    made = watched(body, outputs=outputs, rows=rows)
    assert not [(r.obligation, r.reason) for r in made.results if r.outcome is REFUTED]


REFUTABLE = {
    "two losses, divided twice": (LOOP.format("sum(mse(h(x), y) for h in heads[:2]) / N / N"), EQ, 4),
    "a sum, divided by its rows alone": (LOOP.format("(model(x) - y).square().sum() / B"), EQ, 8),
    "a clip in each micro-batch": (
        LOOP.format("torch.linalg.vector_norm(model(x) - y) / N").replace(
            "; done", "; nn.utils.clip_grad_norm_(model.parameters(), 0.1); done"
        ),
        CLIP,
        1,
    ),
}


@pytest.mark.parametrize("name", REFUTABLE)
def test_the_wrong_script_beside_it_is_still_refuted(name: str) -> None:
    body, obligation, rows = REFUTABLE[name]
    found = watched(body, rows=rows).result(obligation)
    assert found.outcome is REFUTED, found.reason
