"""What trainers do around a step: collators, saves, evaluation, copies. Each right form has a wrong one beside it."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests.checked import watch

HOLDS = Outcome.HOLDS
FILE = "trainer_loop.py"
HEAD = """
torch.manual_seed(0)
N = 4
model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))
optimizer = torch.optim.AdamW(model.parameters())
"""


def watched(body: str, **names: object) -> Verification:
    """What is said of a script of four micro-batches a window."""
    text = HEAD + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    given = {"torch": torch, "nn": nn, "DataLoader": DataLoader, "TensorDataset": TensorDataset, **names}
    return watch(lambda: exec(compile(text, FILE, "exec"), given), 4, 3)


# -- What a data loader's own code does to rows.

COLLATED = """
texts = [torch.randint(1, 50, (int(torch.randint(3, 9, ())),)).tolist() for _ in range(64)]
def collate(rows):
    ids = torch.tensor([row + [0] * (8 - len(row)) for row in rows])
    labels = ids.clone()
    {collate}
    return ids, labels
for k, (x, y) in enumerate(DataLoader(texts, batch_size=4, collate_fn=collate)):
    {loss}
    loss.backward()
    if k % N == N - 1:
        optimizer.step()
        optimizer.zero_grad()
"""
MEAN = "loss = nn.functional.mse_loss(model(x.float()), y.float()) / N"
MASKED = [
    "labels[labels == 0] = -100",
    "labels = ids.masked_fill(ids == 0, -100)",
    "labels = torch.where(ids != 0, ids, -100)",
    "labels[~torch.bernoulli(torch.full(ids.shape, 0.3)).bool() | (ids == 0)] = -100",
]


@pytest.mark.parametrize("collate", MASKED)
def test_rows_that_a_collator_masks_are_samples(collate: str) -> None:
    assert watched(COLLATED.format(collate=collate, loss=MEAN)).outcome is HOLDS


@pytest.mark.parametrize(
    ("collate", "loss"),
    [
        ("labels[labels == 0] = -100", MEAN.removesuffix(" / N")),
        (
            "labels = (ids != 0) / (ids != 0).sum()",  # weights by the tokens of the micro-batch: a mean of means
            "loss = ((model(x.float()) - 1).square() * y).sum() / N",
        ),
    ],
)
def test_a_wrong_loss_over_collated_rows_does_not_hold(collate: str, loss: str) -> None:
    assert watched(COLLATED.format(collate=collate, loss=loss)).result("GA-EQ-001").outcome is not HOLDS


# -- Saves in a recorded window.

SAVED = """
X, Y = torch.randn(64, 8), torch.randn(64, 8)
for k in range(16):
    loss = nn.functional.mse_loss(model(X[4 * k : 4 * k + 4]), Y[4 * k : 4 * k + 4]) / N
    loss.backward()
    if k % N == N - 1:
        optimizer.step()
        optimizer.zero_grad()
        {save}
"""


@pytest.mark.parametrize(
    ("save", "holds"),
    [
        ("library.save_pretrained(folder, state_dict={'lm_head.weight': model[0].weight.detach()})", True),
        ("address(model[0].weight)", False),  # of a user's own: what it does with the memory is not seen
    ],
)
def test_a_checkpoint_of_transformers_loses_no_value(save: str, holds: bool, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import id_tensor_storage

    library = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    found = watched(SAVED.format(save=save), library=library, folder=tmp_path, address=id_tensor_storage)
    assert (found.outcome is HOLDS) is holds
    assert holds or "storage of a tensor" in found.result("GA-EQ-001").reason


# -- Forward passes in evaluation mode, with gradients.

EVALUATED = """
X, Y, probe, target = torch.randn(96, 8), torch.randn(96, 8), torch.randn(2, 8), torch.randn(2, 8)
criterion = nn.MSELoss()
for w in range(5):
    {mode}
    for k in range(4):
        at = slice(16 * w + 4 * k, 16 * w + 4 * k + 4)
        loss = criterion(model(X[at]), Y[at]) / N
        {backward}
    optimizer.step()
    optimizer.zero_grad()
    {evaluate}
"""
PROBED = "model.eval(); print(criterion(model(model(probe)), target).item())"


def evaluated(mode: str = "model.train()", backward: str = "loss.backward()", evaluate: str = PROBED) -> Verification:
    """What is said of a script that evaluates between its windows."""
    return watched(EVALUATED.format(mode=mode, backward=backward, evaluate=evaluate))


def test_an_evaluation_with_gradients_is_no_micro_batch() -> None:
    assert evaluated().outcome is HOLDS


@pytest.mark.parametrize(
    ("mode", "backward", "evaluate"),
    [
        ("model.train()", "loss.backward() if k != 1 or w != 1 else None", "pass"),
        ("model.eval()", "loss.backward() if k != 1 or w != 1 else None", "pass"),  # trains in evaluation mode
        ("model.train()", "loss.backward()", "model(probe)"),  # a forward pass in training mode, for nothing
        ("model.eval()", "loss.backward()", "model(probe)"),
    ],
)
def test_a_forward_pass_that_may_be_a_micro_batch_is_one(mode: str, backward: str, evaluate: str) -> None:
    found = evaluated(mode, backward, evaluate)
    assert found.result("GA-DATA-001").outcome is not HOLDS


def test_rows_that_train_again_in_evaluation_mode_are_rows_of_two_windows() -> None:
    body = EVALUATED.replace("16 * w + ", "").format(
        mode="model.train(w == 0)", backward="loss.backward()", evaluate="pass"
    )
    found = watched(body).result("GA-DATA-001")
    assert found.outcome is Outcome.UNKNOWN
    assert "in a micro-batch before" in found.reason


def test_an_evaluation_that_stays_open_is_named() -> None:
    for data in ("probe", "torch.randn(2, 8)"):
        found = evaluated("model.eval()", "loss.backward()", f"model({data})").result("GA-DATA-001")
        assert "is in no gradient" in found.reason
        assert "its forward pass was in evaluation mode" in found.reason


def test_two_forward_passes_in_one_backward_pass_are_two_micro_batches() -> None:
    """A loss module takes its labels into the micro-batch before it; a model begins another."""
    both = "loss = loss + criterion(model(X[80:84]), Y[80:84]) / N; loss.backward()"
    assert evaluated(backward=both, evaluate="pass").result("GA-EQ-001").outcome is not HOLDS


# -- Copies that deepcopy makes.

COPIED = """
from copy import deepcopy
model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, affine=False).eval(), nn.Linear(4, 8))
optimizer = torch.optim.AdamW(model.parameters())
average = deepcopy(model)
X, Y = torch.randn(64, 8), torch.randn(64, 8)
for k in range(16):
    loss = nn.functional.mse_loss(model(X[4 * k : 4 * k + 4]), Y[4 * k : 4 * k + 4]) / N
    loss.backward()
    {each}
    if k % N == N - 1:
        optimizer.step()
        optimizer.zero_grad()
        for own, other in zip(average.parameters(), model.parameters()):
            own.data.lerp_(other.data, 0.1)
"""


@pytest.mark.parametrize(
    ("each", "outcome"),
    [
        ("pass", HOLDS),
        ("grads = [deepcopy(p.grad) for p in model.parameters()]", HOLDS),
        ("[p.grad.add_(deepcopy(p.grad)) for p in model.parameters() if k % N == 1]", Outcome.REFUTED),
        ("[p.grad.set_(p.grad.clone()) for p in model.parameters()]", Outcome.OPAQUE),
    ],
)
def test_a_copy_holds_what_the_tensor_holds(each: str, outcome: Outcome) -> None:
    found = watched(COPIED.format(each=each)).result("GA-EQ-001")
    assert found.outcome is outcome, found.reason


# -- Batches that are padded to lengths of their own.

PADDED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50)
    def forward(self, x, pooled=False):
        h = torch.tanh(self.inner(self.embed(x)))
        return self.out((h * (x != 0).unsqueeze(-1)).sum(1) if pooled else h)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
texts = [torch.randint(1, 50, (int(torch.randint(3, 12, ())),)).tolist() for _ in range(128)]
def collate(rows):
    ids = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    return ids, ids.masked_fill(ids == 0, -100), torch.tensor([sum(row) % 3 for row in rows])
def tokens(x, y, how="mean"):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=how)
loader, others = (DataLoader(of, batch_size=4, collate_fn=collate) for of in (texts, texts[::-1]))
batches, others = [], iter(others)
for x, y, kind in loader:
    batches.append((x, y, kind))
    if len(batches) < N:
        continue
    count = sum((y != -100).sum() for _, y, _ in batches)
    for x, y, kind in batches:
        {loss}
        loss.backward()
    batches.clear()
    optimizer.step()
    optimizer.zero_grad()
"""
POOLED = "loss = nn.functional.cross_entropy(model(x, True), kind)"


@pytest.mark.parametrize(
    ("loss", "obligation", "outcome"),
    [
        (f"{POOLED} / N", "GA-EQ-001", HOLDS),
        (POOLED, "GA-EQ-001", Outcome.REFUTED),
        (f"{POOLED} / N * x.shape[1] / 8", "GA-EQ-001", Outcome.UNKNOWN),
        ("loss = nn.functional.cross_entropy(model(x, True) / x.shape[1], kind) / N", "GA-EQ-001", Outcome.UNKNOWN),
        ("loss = model(x).sum(-1).square().mean() / N", "GA-EQ-001", Outcome.UNKNOWN),  # over padding as well
        ("loss = tokens(x, y, 'sum') / count", "GA-TOK-001", HOLDS),
        ("loss = tokens(x, y) / N", "GA-TOK-001", Outcome.REFUTED),
        ("tokens(x, y).backward(); u, v, _ = next(others); loss = tokens(u, v)", "GA-TOK-001", Outcome.UNKNOWN),
    ],
)
def test_samples_of_batches_of_other_lengths_are_one_function_but_for_it(
    loss: str, obligation: str, outcome: Outcome
) -> None:
    """Weights that depend on the length are none of one function; several losses a window are no mean of means."""
    found = watched(PADDED.format(loss=loss))
    assert found.result(obligation).outcome is outcome, found.result(obligation).reason
    assert any(said.startswith("padding adds nothing") for said in found.assumptions)


def test_samples_that_took_other_ways_by_their_length_are_told_what_to_do() -> None:
    found = watched(PADDED.format(loss=f"{POOLED} / N if x.shape[1] > 9 else {POOLED[7:]} / N + 0 * model(x).sum()"))
    assert "batches have other lengths (" in found.result("GA-EQ-001").reason
    assert "pad all batches to one length" in found.result("GA-EQ-001").help
