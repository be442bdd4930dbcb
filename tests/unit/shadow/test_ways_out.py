"""Every way by which Python gets numbers out of a tensor, under `check` and `watch`.

What such a number leads to is one path of many: no result may hold for all data after it.
"""

from __future__ import annotations

import array
import contextlib
import copy
import ctypes
import io
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import ALL_DATA, Result, Verification
from gradproof.shadow.tape.run import Run
from tests import checked

Way = Callable[[Tensor], Any]
HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
RUN = Run(windows=4)
IGNORED = ["__array_wrap__ must accept", "TypedStorage is deprecated"]
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in IGNORED]


def printed(t: Tensor) -> str:
    """What print writes."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print(t)
    return out.getvalue()


def saved(t: Tensor, **options: Any) -> bytes:
    """The bytes of torch.save."""
    buffer = io.BytesIO()
    torch.save(t.clone(), buffer, **options)
    return buffer.getvalue()


def written(t: Tensor, memory: Any) -> float:
    """The numbers that an operator writes into memory of NumPy's."""
    into = torch.from_numpy(memory)
    into.copy_(t.detach())
    return float(memory.sum())


def kept(t: Tensor) -> float:
    """The numbers that an operator writes into a tensor of which NumPy has the memory."""
    into = torch.zeros(2, dtype=t.dtype)
    memory = into.numpy()
    torch.mul(t, 1, out=into)
    return float(memory.sum())


def spread(t: Tensor) -> float:
    """The lengths of pieces that numbers decide."""
    return len(torch.tensor_split(torch.zeros(100), t.long())[0])


SCORES, LABELS, FULL = torch.zeros(9, 2, 5).log_softmax(2), torch.ones(2, 4).long(), torch.tensor([9, 9])
STEPS = torch.zeros(2, 99, 1)


def aligned(t: Tensor) -> Tensor:
    """A loss by lengths."""
    return torch.ctc_loss(SCORES, LABELS, FULL, t.long().clamp(1, 4))


def at(t: Tensor) -> float:
    """What lies at the address of a tensor."""
    return float(ctypes.string_at(t.data_ptr(), 1)[0])


SCRIPT = torch.jit.CompilationUnit("""
def listed(t: Tensor) -> float:
    numbers: List[float] = t.double().tolist()
    return numbers[0]

def called(t: Tensor) -> float:
    return listed(t) + 1

def whole(t: Tensor) -> int:
    return int(t[0])
""")
"""TorchScript runs no operator for tolist."""


class Called(nn.Module):
    """A module that is scripted."""

    def forward(self, t: Tensor) -> float:
        """The first number."""
        numbers: list[float] = t.double().tolist()
        return numbers[0]


def module(t: Tensor) -> object:
    """What a module in TorchScript reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Called())(t)


WAYS: dict[str, Way] = {
    "item": lambda t: [one.item() for one in t],
    "int": lambda t: int(t[0]),
    "float": lambda t: float(t[0]),
    "bool": lambda t: bool(t[0] > 1),
    "complex": lambda t: complex(t[0]),
    "index": lambda t: range(t.long()[0]),
    "place in a list": lambda t: [*range(99)][t.long()[0]],
    "slice": lambda t: len(torch.zeros(99)[: t.long()[0]]),
    "size": lambda t: len(torch.zeros(t.long()[0])),
    "if": lambda t: 1 if t.sum() > 3 else 0,
    "in": lambda t: 2.0 in t,
    "sorted": lambda t: sorted(t),
    "max": lambda t: max(t),
    "iteration": lambda t: sum(float(one) for one in t),
    "tolist": lambda t: t.tolist(),
    "script, tolist": lambda t: SCRIPT.listed(t),
    "script, tolist in a call": lambda t: SCRIPT.called(t),
    "script, int": lambda t: SCRIPT.whole(t),
    "module of a script": module,
    "numpy": lambda t: t.numpy(),
    "asarray": lambda t: np.asarray(t),
    "ufunc": lambda t: np.add(t, 1),
    "fromiter": lambda t: np.fromiter(t, dtype=float),
    "list of tensors to NumPy": lambda t: np.array([t[0], t[1]]),
    "from_dlpack": lambda t: np.from_dlpack(t),
    "torch.to_dlpack": lambda t: torch.to_dlpack(t),
    "to_dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "repr": lambda t: repr(t),
    "str": lambda t: str(t),
    "format": lambda t: f"{t}",
    "format of one": lambda t: f"{t[0]:.3}" if t.is_floating_point() else f"{t[0]:d}",
    "print": printed,
    "bytes": lambda t: bytes(t.clamp(0, 9).to(torch.uint8)),
    "array": lambda t: array.array("f", t),
    "struct": lambda t: struct.pack("f", t[0]),
    "pickle": lambda t: pickle.dumps(t.clone()),
    "save": lambda t: saved(t),
    "old save": lambda t: saved(t, _use_new_zipfile_serialization=False),
    "storage": lambda t: t.storage().tolist(),
    "place in a storage": lambda t: t.untyped_storage()[0],
    "bytes of a storage": lambda t: bytes(t.untyped_storage()),
    "copied storage": lambda t: t.untyped_storage().clone().tolist(),
    "deepcopy": lambda t: copy.deepcopy(t).tolist(),
    "address": at,
    "constant address": lambda t: t.const_data_ptr(),
    "apply_": lambda t: t.clone().apply_(lambda one: one),
    "map_": lambda t: t.clone().map_(t, lambda one, other: other),
    "list of tensors": lambda t: torch.tensor([t[0], t[1]]),
    "as_tensor": lambda t: torch.as_tensor([t[0], 1]),
    "new_tensor": lambda t: torch.zeros(1).new_tensor([[t[0]], [t[1]]]),
    "tensor_split": spread,
    "tensor_split, method": lambda t: len(torch.zeros(100).tensor_split(t.long())[0]),
    "ctc_loss": aligned,
    "equal": lambda t: torch.equal(torch.ones(2, dtype=t.dtype), t),
    "allclose": lambda t: torch.allclose(torch.ones(2, dtype=t.dtype), t),
    "assert_close": lambda t: torch.testing.assert_close(t, t.clone()),
    "nonzero": lambda t: len(t.nonzero()),
    "where": lambda t: len(torch.where(t > 1)[0]),
    "mask": lambda t: len(t[t > 1]),
    "masked_select": lambda t: len(t.masked_select(t > 1)),
    "unique": lambda t: len(t.unique()),
    "bincount": lambda t: len(t.long().clamp(0).bincount()),
    "one_hot": lambda t: F.one_hot(t.long().clamp(0)).shape[1],
    "repeat_interleave": lambda t: len(torch.repeat_interleave(t.long().clamp(0))),
    "packed": lambda t: len(pack_padded_sequence(STEPS, t.long().clamp(1, 9), True, False).data),
    "memory of NumPy": lambda t: written(t, np.zeros(2)),
    "memory that NumPy got": kept,
}
"""Each takes a tensor of two numbers, which are at least 0."""
LOST = {
    "pickle", "save", "old save", "storage", "place in a storage", "bytes of a storage", "copied storage", "deepcopy",
    "apply_", "map_",
}  # fmt: skip
"""After these a tensor that was computed with may hold anything, and `watch` decides nothing."""
MEANT = {"ctc_loss", "packed", "memory of NumPy", "memory that NumPy got"}
"""These compute with tensors that hold one number everywhere, which may be data."""


def train(way: Way, of: str, run: Run = RUN) -> None:
    """Right: numbers of data or of losses are read, and nothing is done with them."""
    torch.manual_seed(1)  # the first batch has two kinds of labels
    x, y = torch.randn(run.samples, 3), torch.randint(0, 4, (run.samples,))
    if of == "data before the loop":
        way(y[:2])
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k, (xs, ys) in enumerate(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True), 1):
        if of == "data":
            way(ys)
        losses = F.cross_entropy(model(xs), ys, reduction="none")
        if of == "losses":
            way(losses.detach())
        (losses.mean() / run.accum_steps).backward()
        if k % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def unqualified(found: Verification) -> list[str]:
    """The results that hold for all data on every path."""
    whole = [r for r in found.results if r.outcome is HOLDS and r.reach.startswith("all real")]
    return [r.obligation for r in whole if r.reach == ALL_DATA or "recorded path" not in r.reach]


def judged(found: Verification, name: str) -> Result:
    """The gradient's result, where nothing is refuted or claimed of every path."""
    assert unqualified(found) == []
    assert REFUTED not in {r.outcome for r in found.results}
    result = found.result("GA-EQ-001")
    assert result.outcome is HOLDS or name in LOST | MEANT, result.reason
    return result


EACH = [(name, of) for name in WAYS for of in ("data before the loop", "data")]
BY_OPERATORS = ("item", "tolist", "numpy", "repr", "pickle", "apply_", "list of tensors", "allclose", "mask")


@pytest.mark.parametrize(("name", "of"), [*EACH, *((name, "losses") for name in BY_OPERATORS)])
def test_watch_says_that_numbers_were_read(name: str, of: str) -> None:
    result = judged(checked.watch(lambda: train(WAYS[name], of)), name)
    if result.outcome is HOLDS:
        assert "test_ways_out.py:" in result.reach


@pytest.mark.parametrize("name", WAYS)
def test_check_says_that_numbers_were_read(name: str) -> None:
    found = checked.check(lambda run: train(WAYS[name], "losses", run))
    assert unqualified(found) == []
    assert REFUTED not in {r.outcome for r in found.results}
    result = found.result("GA-EQ-001")
    assert result.outcome is not HOLDS or "test_ways_out.py:" in result.reach


def test_watch_claims_all_data_where_nothing_was_read() -> None:
    found = checked.watch(lambda: train(lambda _: None, "data"))
    assert "recorded path" not in found.result("GA-EQ-001").reach
    assert "GA-EQ-001" in unqualified(found)


def loaded(weights: dict[str, Tensor], of: str, share: int = 4) -> None:
    """Training goes on with weights from a file; the loss is divided by `share`."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.load_state_dict(torch.load(of) if of else weights)
    for k in range(16):
        (F.mse_loss(model(torch.randn(2, 3)), torch.randn(2, 4)) / share).backward()
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("file", [True, False])
def test_weights_that_are_loaded_are_no_data_and_no_read(file: bool, tmp_path: Path) -> None:
    weights, of = nn.Linear(3, 4).state_dict(), str(tmp_path / "weights.pt")
    torch.save(weights, of)
    right = checked.watch(lambda: loaded(weights, of if file else "")).result("GA-EQ-001")
    assert (right.outcome, "recorded path" in right.reach) == (HOLDS, False), right.reason
    wrong = checked.watch(lambda: loaded(weights, of if file else "", 1)).result("GA-EQ-001")
    assert wrong.outcome is REFUTED, wrong.reason


POINTS, KINDS = torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4


class Rows(torch.utils.data.Dataset[Any]):
    """32 samples with one of 4 labels."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return POINTS[at], KINDS[at]


def with_count(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, int]:
    """A batch, and a number that is made of its labels."""
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]), sum(int(y != 3) for _, y in rows)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("counted", [True, False])
def test_a_number_that_a_data_loader_gives_may_be_made_of_data(workers: int, counted: bool) -> None:
    def script() -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(
            Rows(), batch_size=2, shuffle=True, num_workers=workers, collate_fn=with_count if counted else None
        )
        for k, (x, y, *_) in enumerate(loader):
            (F.mse_loss(model(x), y[:, None].float().expand(2, 4)) / 4).backward()
            if k % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    result = checked.watch(script).result("GA-INV-002")
    assert (result.outcome, "recorded path" in result.reach) == (HOLDS, counted), result.reach
