"""A training loop with a place for every mutation."""

from __future__ import annotations

import linecache
import warnings
from types import CodeType
from typing import Any

import torch

LOOP = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
unused = nn.Linear(2, 2)
params = [*model.parameters(), *unused.parameters()]
optimizer = torch.optim.AdamW(params, lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=SCALED)
for window in range(W):
    for k in range(N):
        #before
        loss = model(torch.randn(2, 3)).square().mean() / N
        #loss
        scaler.scale(loss).backward()
        #each
    #full
    scaler.unscale_(optimizer)
    #unscaled
    nn.utils.clip_grad_norm_(params, 1.0)
    #clipped
    scaler.step(optimizer)
    scaler.update()
    #stepped
    schedule.step()
    #scheduled
    optimizer.zero_grad()
    #zeroed
"""
FILE = "protocol_loop.py"
PROTOCOL = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
"""The obligations of the window protocol."""


def source(edits: dict[str, str]) -> str:
    """The loop with edits: a `#mark` is replaced with the lines given, any other text with its replacement."""
    text = LOOP
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is found {text.count(old)} times")
        line = text[text.rindex("\n", 0, text.index(old)) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        text = text.replace(old, new.replace("\n", "\n" + indent))
    return text


def names(n: int, windows: int, scaled: bool) -> dict[str, Any]:
    """What the loop finds defined."""
    return {"torch": torch, "nn": torch.nn, "N": n, "W": windows, "SCALED": scaled, "__name__": "protocol_loop"}


def program(text: str) -> CodeType:
    """The compiled loop, with its lines to be found."""
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    return compile(text, FILE, "exec")


def run(code: CodeType, given: dict[str, Any]) -> None:
    """Execute the loop; torch's own warnings about its bugs are not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, given)
