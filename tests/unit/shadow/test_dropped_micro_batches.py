"""`watch` refutes a backward pass that stands behind the loop over micro-batches, and no other lone backward pass."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests.checked import watch

FILE = "dropped_loop.py"
HEAD = """
torch.manual_seed(0)
model, other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), nn.Linear(3, 2)
optimizer, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(96, 3), torch.randn(96, 2))
batches = (batch for _ in range(9) for batch in torch.utils.data.DataLoader(rows, batch_size=2))
scaler = torch.amp.GradScaler("cpu")
def loss_of(x, y):
    return nn.functional.mse_loss(model(x), y)
for window in range(4):
"""
TAIL = "\n    optimizer.step()\n    optimizer.zero_grad()\n"
LOOP = "    for _ in range(4):\n        loss = loss_of(*next(batches))\n"
DROPPED = {
    "divided behind the loop": LOOP + "    (loss / 4).backward()",
    "divided inside of the loop": LOOP.replace("next(batches))", "next(batches)) / 4") + "    loss.backward()",
    "times a quarter": LOOP + "    (loss * 0.25).backward()",
    "three of three": LOOP.replace("4", "3") + "    (loss / 3).backward()",
    "clipped": LOOP + "    (loss / 4).backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 0.1)",
    "under a loss scale": LOOP
    + "    scaler.scale(loss / 4).backward()\n    scaler.unscale_(optimizer)\n    scaler.update()",
    "without a data loader": LOOP.replace("next(batches)", "(torch.randn(2, 3), torch.randn(2, 2))")
    + "    (loss / 4).backward()",
}
SAID = {
    "not divided": LOOP + "    loss.backward()",
    "half, as a squared error may be": LOOP.replace("4", "2") + "    (loss / 2).backward()",
    "divided by another number": LOOP + "    (loss / 8).backward()",
}
"""No gradient is divided by the number of forward passes: they may be there for something else."""
OTHER = {
    "a sum of losses": "    total = 0\n" + LOOP + "        total = total + loss / 4\n    total.backward()",
    "one micro-batch": "    (loss_of(*next(batches)) / 4).backward()",
    "a validation at another line": "    (loss_of(*next(batches)) / 4).backward()\n"
    "    for _ in range(3):\n        x, y = next(batches)\n        print(float((model(x) - y).detach().mean()))",
    "validation without gradients": "    for _ in range(3):\n        with torch.no_grad():\n"
    "            loss_of(*next(batches))\n    (loss_of(*next(batches)) / 4).backward()",
    "a validation in another mode": LOOP.replace("_ in", "part in").replace(
        "        loss", "        model.train(part == 3)\n        loss"
    )
    + "    (loss / 4).backward()",
    "the same batch again": "    one = next(batches)\n"
    + LOOP.replace("next(batches)", "one")
    + "    (loss / 4).backward()",
    "in one window alone": "    for _ in range(4 if window == 1 else 1):\n        loss = loss_of(*next(batches))\n"
    "    (loss / 4).backward()",
    "the largest loss": "    losses = [loss_of(*next(batches)) for _ in range(4)]\n    max(losses).div(4).backward()",
    "the first loss": "    losses = [loss_of(*next(batches)) for _ in range(4)]\n    losses[0].div(4).backward()",
    "two optimizers in turn": LOOP + "    (loss / 4).backward()\n    nn.functional.mse_loss("
    "other(next(batches)[0]), torch.zeros(2, 2)).backward()\n    second.step()\n    second.zero_grad()",
    "a penalty of the gradient": "    x, y = next(batches)\n    x.requires_grad_()\n    out = model(x).sum()\n"
    "    slope, = torch.autograd.grad(out, x, create_graph=True)\n    (slope.square().sum() / 4).backward()",
    "weights that do not train": "    for _ in range(4):\n        x, y = next(batches)\n        with torch.no_grad():\n"
    "            x = other(x)\n    ((model(torch.cat([x, x], 1)[:, :3]) - y).square().mean() / 4).backward()",
}


def watched(body: str) -> Verification:
    text = HEAD + body + TAIL
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    return watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn, "print": lambda *_: None}))


@pytest.mark.parametrize("name", DROPPED)
def test_micro_batches_without_a_backward_pass_are_refuted(name: str) -> None:
    count = 3 if name == "three of three" else 4
    found = watched(DROPPED[name]).result("GA-DATA-001")
    assert found.outcome is Outcome.REFUTED, found
    assert f"{count - 1} of {count} micro-batches of each window are in no gradient" in found.reason
    assert found.location is not None
    assert "model(x), y)" in linecache.getline(FILE, found.location.line)


@pytest.mark.parametrize("name", SAID)
def test_where_the_loss_is_not_divided_by_their_number_it_is_said(name: str) -> None:
    made = watched(SAID[name])
    assert not any(result.outcome is Outcome.REFUTED for result in made.results)
    count = 2 if name.startswith("half") else 4
    said = f"{count - 1} of {count} micro-batches of each window are in none"
    assert said in made.result("GA-DATA-001").reason


@pytest.mark.parametrize("name", OTHER)
def test_other_lone_backward_passes_are_no_alarm(name: str) -> None:
    made = watched(OTHER[name])
    assert not any(result.outcome is Outcome.REFUTED for result in made.results)
    if name != "the largest loss":
        assert "micro-batches of each window" not in made.result("GA-DATA-001").reason
