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


ERROR, HIDDEN = "(model(x) - y).square()", "model[0](x).square()"
MIXED = LOOP.format("(mse(model(x), y) + {}) / N")
KL = "nn.functional.kl_div(model(x).log_softmax(-1), y.softmax(-1), reduction='batchmean')"
VAE = f"(mse(model(x), y, reduction='sum') + 0.5 * {HIDDEN}.sum())"
SUMS_WRONG = {
    "a mean and a sum": (MIXED.format(f"{HIDDEN}.sum()"), 3, 8, "1/4 times"),
    "a mean and a sum with a factor": (MIXED.format(f"2.0 * {HIDDEN}.sum()"), 3, 8, "1/4 times"),
    "a mean and half a sum": (MIXED.format(f"-0.5 * {HIDDEN}.sum()"), 3, 8, "1/4 times"),
    "a mean and a sum with a small factor": (MIXED.format(f"0.01 * {HIDDEN}.sum()"), 3, 8, "1/4 times"),
    "a mean and a sum of means": (MIXED.format(f"{ERROR}.mean(1).sum()"), 3, 8, "1/4 times"),
    "a mean and a sum, of as many rows as N": (MIXED.format(f"{HIDDEN}.sum()"), 3, 4, "1/4 times"),
    "a mean and a mean of sums over rows": (MIXED.format(f"{ERROR}.sum(0).mean()"), 3, 8, "1/4 times"),
    "a sum by its rows and times them": (MIXED.format(f"{HIDDEN}.sum() / B * B"), 3, 8, "1/4 times"),
    "a sum of means of as many numbers as rows": (LOOP.format(f"{ERROR}.mean(1).sum() / N"), 8, 8, "1/4 times"),
    "a sum by N": (LOOP.format(f"{ERROR}.sum() / N"), 3, 8, "1/4 times"),
    "a sum by its rows": (LOOP.format(f"{ERROR}.sum() / len(x)"), 3, 8, "4 times"),
    "a sum by its rows and by as many outputs as N": (LOOP.format(f"{ERROR}.sum() / len(x) / D"), 4, 8, ""),
    "a sum by N and by as many outputs as rows": (LOOP.format(f"{ERROR}.sum() / D / N"), 8, 8, ""),
    "a sum by N and by its outputs": (LOOP.format(f"{ERROR}.sum() / y.shape[1] / N"), 8, 8, "1/4 times"),
    "a sum by its rows, twice": (LOOP.format(f"{ERROR}.sum() / B / B / N"), 3, 8, "4 times"),
    "a sum of N times its elements": (LOOP.format(f"(2 * N * {ERROR}).sum() / B / N"), 3, 8, "4 times"),
    "a mean of rows by its rows": (LOOP.format(KL), 3, 8, "4 times"),
    "a number less a mean, by nothing": (LOOP.format("1 - (model(x) * y).sum(-1).mean()"), 3, 8, "weigh 4 times"),
}


@pytest.mark.parametrize("name", SUMS_WRONG)
def test_sums_over_rows_that_only_n_divides_do_not_hold(name: str) -> None:
    """A width that has the value of N, or of the rows, and a name of its own, may stand for them: not decided."""
    body, outputs, rows, reason = SUMS_WRONG[name]
    found = watched(body, outputs=outputs, rows=rows).result(EQ)
    assert found.outcome is (REFUTED if reason else UNKNOWN), found.reason
    assert reason in found.reason


SUMS_RIGHT = {
    "a sum by its rows": LOOP.format(f"{ERROR}.sum() / len(x) / N"),
    "a sum by its rows, divided after": LOOP.format(f"{ERROR}.sum() / len(x)").replace(
        "done(i)", "[p.grad.div_(N) for p in model.parameters() if i % N == N - 1]; done(i)"
    ),
    "half a sum by its rows": LOOP.format(f"0.5 * {ERROR}.sum() / len(x) / N"),
    "a divergence by its rows": LOOP.format(f"{KL} / N"),
    "two sums by their rows": LOOP.format(f"{VAE} / x.size(0) / N"),
    "a sum of means over rows": LOOP.format(f"{ERROR}.mean(0).sum() / N"),
    "a mean and a sum by its rows": MIXED.format(f"0.1 * {HIDDEN}.sum() / len(x)"),
    "a mean and a sum by its elements": MIXED.format(f"0.1 * (h := {HIDDEN}).sum() / h.numel()"),
    "a mean and a sum times one by its rows": MIXED.format(f"0.1 * {HIDDEN}.sum() * (1 / len(x))"),
    "a mean and a sum of means over rows": MIXED.format(f"{HIDDEN}.mean(0).sum()"),
    "a mean and a mean of sums": MIXED.format(f"2.0 * {HIDDEN}.sum(1).mean()"),
    "a mean of sums": LOOP.format(f"{ERROR}.sum(1).mean() / N"),
    "a mean with a factor": LOOP.format("8.0 * mse(model(x), y) / N"),
    "a number less a mean": LOOP.format("(1 - (model(x) * y).sum(-1)).mean() / N"),
    "a number and a mean": LOOP.format("(3.0 + mse(model(x), y)) / N"),
}


@pytest.mark.parametrize("name", SUMS_RIGHT)
def test_sums_over_rows_that_their_rows_and_n_divide_hold(name: str) -> None:
    made = watched(SUMS_RIGHT[name], outputs=3, rows=8)
    assert made.result(EQ).outcome is HOLDS, made.result(EQ).reason


SCALED = "s = torch.amp.GradScaler('cpu', init_scale=1024.0)\n" + LOOP.format("s.scale(mse(model(x), y) / N)")
HELPS = {
    "the loss scale": ("a loss scale is left in the gradients", "scaler.unscale_(optimizer)", UNKNOWN),
    "the batches of an epoch": ("1/4 times", "divide each loss by the number of micro-batches", REFUTED),
    "the batch size": ("16 times", "divide each loss by the number of micro-batches", REFUTED),
    "a sum by N": ("1/4 times", "divide a sum by the rows of its micro-batch", REFUTED),
}
HELPED = {
    "the loss scale": "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\n"
    + LOOP.format("scaler.scale(mse(model(x), y) / N)"),
    "the batches of an epoch": LOOP.format("mse(model(x), y) / len(loader) / N"),
    "the batch size": LOOP.format("mse(model(x), y) / B"),
    "a sum by N": LOOP.format(f"{ERROR}.sum() / N"),
}


@pytest.mark.parametrize("name", HELPS)
def test_the_help_names_what_the_weights_show(name: str) -> None:
    reason, help, outcome = HELPS[name]
    found = watched(HELPED[name], outputs=3, rows=8).result(EQ)
    assert found.outcome is outcome, found.reason
    assert reason in found.reason
    assert help in found.help


STEP = "    ({}).backward(); done(i)\n"
DATA_WRONG = {
    "the same rows by index": (
        "for i in range(24):\n    x, y = X[order[:B]], Y[order[:B]]\n",
        "a micro-batch before, and hold the same",
    ),
    "the same rows in each window": (
        "for i in range(24):\n    of = order[i % N * B :][:B]; x, y = X[of], Y[of]\n",
        "a micro-batch before, and hold the same",
    ),
    "copies of the same rows": (
        "for i in range(24):\n    x, y = X[:B].clone(), Y[:B].clone()\n",
        "a micro-batch before, and hold the same",
    ),
    "a new data loader for each micro-batch": (
        "for i in range(24):\n    x, y = next(iter(DataLoader(data, batch_size=B)))\n",
        "none had come to its end",
    ),
    "a new data loader for each window": (
        "for i in range(24):\n    batches = batches if i % N else iter(DataLoader(data, batch_size=B))\n"
        "    x, y = next(batches)\n",
        "none had come to its end",
    ),
    "every second batch is dropped": (
        "batches = iter(loader)\nfor i in range(12):\n    next(batches); x, y = next(batches)\n",
        "between others of its iteration",
    ),
    "a batch of five is dropped": (
        "for i, (x, y) in enumerate(b for k, b in enumerate(loader) if k % 5 != 2):\n",
        "between others of its iteration",
    ),
    "every second part of a table is dropped": (
        "def rows(k):\n    return X[k * B :][:B], Y[k * B :][:B]\n"
        "for i in range(12):\n    rows(2 * i); x, y = rows(2 * i + 1)\n",
        "were never used, and rows that it took after them were",
    ),
    "each epoch begins with batches that are dropped": (
        "for i, (x, y) in enumerate(b for _ in range(2) for k, b in enumerate(loader) if k >= 8):\n",
        "left out 8 of 24 batches",
    ),
}


@pytest.mark.parametrize("name", DATA_WRONG)
def test_samples_that_are_used_again_or_dropped_do_not_hold(name: str) -> None:
    head, reason = DATA_WRONG[name]
    made = watched("order = torch.randperm(96)\n" + head + STEP.format("mse(model(x), y) / N"))
    assert made.result(EQ).outcome is HOLDS, made.result(EQ).reason
    assert made.result(DATA).outcome is UNKNOWN
    assert reason in made.result(DATA).reason


DATA_RIGHT = {
    "other rows by index": "for i in range(24):\n    of = order[i * B :][:B]; x, y = X[of], Y[of]\n",
    "a data loader for the rows of each window": "for i in range(24):\n"
    "    k = 16 * (i // N); batches = batches if i % N else iter(DataLoader(Subset(data, range(k, k + 16)), B))\n"
    "    x, y = next(batches)\n",
    "what an epoch leaves over is read": "loader = DataLoader(Subset(data, range(40)), B)\n"
    "for i, (x, y) in enumerate(b for _ in range(3) for k, b in enumerate(loader) if k < 8):\n",
    "an earlier run had the first batches": "for i, (x, y) in enumerate(\n"
    "    b for epoch in range(2) for k, b in enumerate(loader) if epoch or k >= 8):\n",
    "a part of a table is taken ahead": "def rows(k):\n    return X[k * B :][:B], Y[k * B :][:B]\n"
    "ahead = rows(0)\nfor i in range(23):\n    (x, y), ahead = ahead, rows(i + 1)\n",
    "one of two tables is used": "Z = X.clone()\nfor i in range(24):\n"
    "    x, y, z = X[i * B :][:B], Y[i * B :][:B], Z[i * B :][:B]\n",
    "a batch is looked at before": "x, y = next(iter(loader))\nfor i, (x, y) in enumerate(loader):\n",
}


@pytest.mark.parametrize("name", DATA_RIGHT)
def test_samples_that_are_used_once_hold(name: str) -> None:
    made = watched("order = torch.randperm(96)\n" + DATA_RIGHT[name] + STEP.format("mse(model(x), y) / N"))
    assert made.result(DATA).outcome is HOLDS, made.result(DATA).reason


TOKENS = """
ids = torch.randint(0, 9, (96, 6)); labels = ids.masked_fill(torch.rand(96, 6) < 0.4, -100)
model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9)); opt = torch.optim.SGD(model.parameters(), lr=0.1)
counted = {first}
for window in range(5):
    batches = [(ids[i : i + B].clone(), labels[i : i + B].clone()) for i in range(window * 16, window * 16 + 16, B)]
    counted, total = {counted} or [y for _, y in batches], 0
    for k, (x, y) in enumerate(batches):
        total = total + (counted[k] != -100).sum()
        nn.functional.cross_entropy(model(x).transpose(1, 2), y, reduction="sum").backward()
    for p in model.parameters():
        p.grad /= total
    opt.step(); opt.zero_grad()
    counted = [y.clone() for _, y in batches]
"""


@pytest.mark.parametrize(
    ("first", "counted", "outcome"),
    [
        ("None", "None", HOLDS),
        ("None", "counted", UNKNOWN),
        ("[labels[i : i + B].clone() for i in range(80, 96, B)]", "counted", UNKNOWN),
    ],
)
def test_tokens_that_an_earlier_window_counted_are_not_those_of_this_one(
    first: str, counted: str, outcome: Outcome
) -> None:
    made = watched(TOKENS.format(first=first, counted=counted))
    assert made.result(EQ).outcome is outcome, made.result(EQ).reason
    assert {one.outcome for one in made.results if one.obligation == "GA-TOK-001"} <= {outcome}


EVALUATED = """
held = iter(DataLoader(TensorDataset(X + 1, Y), batch_size=B))
def both():
    for n, batch in enumerate(loader):
        yield batch
        if n % 3 == 2:
            yield next(held)
for k, (x, y) in enumerate({batches}):
    model.train(k % 4 != 3)
    loss = mse(model(x), y)
    if k % 4 != 3:
        i = k - k // 4
        (loss / N).backward(); done(i)
"""


@pytest.mark.parametrize(
    ("batches", "outcome"),
    [("loader", UNKNOWN), ("both()", HOLDS)],
)
def test_a_batch_that_is_evaluated_is_no_training_data_where_no_other_of_its_iteration_trains(
    batches: str, outcome: Outcome
) -> None:
    found = watched(EVALUATED.format(batches=batches)).result(DATA)
    assert found.outcome is outcome, found.reason


ROWWISE = [
    "mse(model(x), y, reduction='none').sum(1).mean()",
    "mse(model(x), y, reduction='none').mean(1).mean()",
    "mse(model(x), y, reduction='none').sum(1).sum() / B",
]


@pytest.mark.parametrize("loss", ROWWISE)
@pytest.mark.parametrize("rows", [4, 8])
def test_a_mean_of_the_rows_own_losses_weighs_one(loss: str, rows: int) -> None:
    """Each row has one output: its loss is a sum, or a mean, of one number. Divided by N twice it is wrong."""
    assert watched(LOOP.format(f"{loss} / N"), rows=rows).result(EQ).outcome is HOLDS
    for wrong in (f"{loss} / N / N", f"{loss} / (B * N)"):
        assert watched(LOOP.format(wrong), rows=rows).result(EQ).outcome is REFUTED


@pytest.mark.parametrize(
    ("loss", "outcome"),
    [
        ("(model(x) - y).square().sum() / B / N", HOLDS),
        ("(model(x) - y).square().sum() / (B * N)", HOLDS),
        ("(0.25 * (model(x) - y).square()).sum() / B", UNKNOWN),
        ("((model(x) - y).square() / 4).sum() / len(x)", UNKNOWN),
        ("(0.125 * (model(x) - y).square()).sum() / N", UNKNOWN),
    ],
)
def test_a_sum_is_divided_by_all_of_its_elements(loss: str, outcome: Outcome) -> None:
    """A factor 1/N inside of the sum may be the loss's own, and then nothing divides it by N."""
    found = watched(LOOP.format(loss), rows=8).result(EQ)
    assert found.outcome is outcome, found.reason
