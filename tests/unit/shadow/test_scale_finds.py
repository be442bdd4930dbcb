"""Numbers that a reading of the line may take for others: what is wrong never holds, what is right is never refuted.

Each was found by an attack on the rule of docs/rule.md, and labelled in float64 by the full batch of the same program.
"""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Result
from tests.checked import watch

HOLDS, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
FILE = "scale_finds_loop.py"
HEAD = """
import argparse, math
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
N, B = {n}, {rows}
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(16 * B, 5), torch.randn(16 * B, 1))
loader = DataLoader(data, batch_size=B)
args = argparse.Namespace(accum={n}, rows={rows})
{before}
for i, (x, y) in enumerate(loader):
    {inside}
    out = model(x)
    err = (out - y) ** 2
    ({loss}).backward()
    if (i + 1) % N == 0:
        {after}
        opt.step(); opt.zero_grad()
"""


def equal(loss: str, before: str = "", inside: str = "pass", after: str = "pass", n: int = 4, rows: int = 8) -> Result:
    """What is said of the gradient."""
    text = HEAD.format(loss=loss, before=before, inside=inside, after=after, n=n, rows=rows)
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    made = watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}))
    return made.result("GA-EQ-001")


ONES = {"inside": "w = torch.ones_like(y)"}
TURNED = {"inside": "t = x.T"}
SAFE = "n = x.size(0)\n    if n == 0: continue"
SHORT = "n = x.size(0)\n    if n < B: continue"
WRONG = {
    "rows of a tensor of ones, no N": ("(err * w).sum() / w.numel()", ONES),
    "rows of a batch that was turned, no N": ("err.sum() / t.shape[1]", TURNED),
    "features for rows": ("err.sum() / t.shape[0] / N", TURNED),
    "rows of another tensor": ("err.sum() / other.shape[0] / N", {"before": "other = torch.randn(8, 5)"}),
    "the rows by a name that shapes nothing, no N": ("err.sum() / size", {"before": "size = 8"}),
    "rows that a condition looks at, no N": ("err.sum() / n", {"inside": SAFE}),
    "as many rows as N, no N": ("err.mean() / n", {"inside": SHORT, "rows": 4}),
    "N by its name and as it is written": ("err.mean() / 4 / N", {}),
    "N by two names": ("err.mean() / N / args.accum", {}),
    "a slice of features for rows": ("err.sum() / (F * N)", {"before": "F = 8", "inside": "x = x[:, :F]"}),
    "a root of N": ("err.mean() / N * math.sqrt(N)", {}),
    "one and a share of N": ("err.mean() / N * (1 + 1 / N)", {}),
    "a name whose tensor is another one now": (
        "err.sum() / (C * N)",
        {"before": "x = torch.randn(3, 8); C = x.shape[1]"},
    ),
    "a window of pieces, and N": ("err.sum() / (len(x) * N) / N", {}),
    "a mean over outputs of a sum over rows": ("err.sum(0).mean() / N", {}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_hold(name: str) -> None:
    loss, more = WRONG[name]
    found = equal(loss, **more)  # type: ignore[arg-type]
    assert found.outcome in (UNKNOWN, REFUTED), found.reason


RIGHT = {
    "rows of a tensor of ones": ("(err * w).sum() / w.numel() / N", ONES, UNKNOWN),
    "rows of a batch that was turned": ("err.sum() / t.shape[1] / N", TURNED, UNKNOWN),
    "a temperature of N's value": ("err.mean() * T * T / N", {"before": "T = 2.0; assert T > 0", "n": 2}, UNKNOWN),
    "a weight of N's value": ("(err.mean() + b * out.abs().mean()) / N", {"before": "b = 2.0; b > 1", "n": 2}, UNKNOWN),
    "as many losses as N": (
        "sum(l) / len(l) / N",
        {"inside": "l = [(model(x) - y).abs().mean() for _ in range(4)]"},
        UNKNOWN,
    ),
    "as many features as rows": ("err.mean() / F / N", {"before": "F = 8", "inside": "x = x[:, :5][:, :F]"}, UNKNOWN),
    "rows that a condition looks at": ("err.sum() / n / N", {"inside": SHORT, "rows": 4}, HOLDS),
    "a batch size that a condition looks at": ("err.sum() / B / N", {"inside": "assert len(x) == B", "rows": 4}, HOLDS),
    "a weight of a list": ("sum(v[t] * l for t, l in enumerate([err.mean()])) / N", {"before": "v = [0.3]"}, HOLDS),
    "a half where N is two": ("0.5 * err.mean() / N", {"n": 2}, HOLDS),
    "a factor of the rows' value": ("err.mean() / 8 / N", {}, HOLDS),
    "gradients by N": ("err.mean()", {"after": "[p.grad.div_(N) for p in model.parameters()]"}, HOLDS),
    "a minimum": ("err.mean() / min(N, 100)", {}, HOLDS),
    "a weight of N over the rows": ("(err.mean() + 0.5 * out.abs().sum() / len(x)) / N", {}, HOLDS),
    "a penalty of no sample": ("(err.mean() + 0.1 * model[0].weight.pow(2).sum()) / N", {}, HOLDS),
    "a penalty of no sample, a mean": ("(err.mean() + 0.1 * model[0].weight.pow(2).mean()) / N", {}, HOLDS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_never_refuted(name: str) -> None:
    loss, more, outcome = RIGHT[name]
    found = equal(loss, **more)  # type: ignore[arg-type]
    assert found.outcome is outcome, found.reason


PIECES = """
for x, y in DataLoader(data, batch_size=4 * B):
    for part, label in zip(x.split(B), y.split(B)):
        ({loss}).backward()
    opt.step(); opt.zero_grad()
"""
OF_PIECES = {
    "a mean by its share": ("((model(part) - label) ** 2).mean() * (len(part) / len(x))", HOLDS),
    "a sum by the whole": ("((model(part) - label) ** 2).sum() / x.size(0)", HOLDS),
    "a sum by the whole, and N": ("((model(part) - label) ** 2).sum() / (len(x) * N)", REFUTED),
    "a mean by its share, and N": ("((model(part) - label) ** 2).mean() * len(part) / len(x) / N", REFUTED),
}


@pytest.mark.parametrize("name", OF_PIECES)
def test_pieces_of_a_batch_have_their_own_rows(name: str) -> None:
    loss, outcome = OF_PIECES[name]
    head = HEAD.partition("for i, (x")[0].format(n=4, rows=2, before="step = 4; done = step % N")
    text = head + PIECES.format(loss=loss)
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    made = watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}))
    assert made.result("GA-EQ-001").outcome is outcome, made.result("GA-EQ-001").reason
