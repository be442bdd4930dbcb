"""`watch` on scripts that were written against it: what is wrong never holds, what is right is never refuted.

Each script runs in a forked process of its own, as `gradproof watch --accum-steps 4` would run it. None may end
otherwise than it does alone.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.data

from gradproof.shadow.process.watch import ScriptWatch
from tests.checked import run_script
from tests.soundness.watched_clips import CLIPS
from tests.soundness.watched_narrow import NARROW
from tests.soundness.watched_passes import PASSES, PASSES_RIGHT
from tests.soundness.watched_ranks import RANKS_REFUTED, RANKS_RIGHT, RANKS_UNDECIDED, RANKS_WRONG
from tests.soundness.watched_right import RIGHT
from tests.soundness.watched_shown import SHOWN, SHOWN_RIGHT, SUMS_RIGHT, SUMS_WRONG
from tests.soundness.watched_stale import STALE
from tests.soundness.watched_steps import STEPS
from tests.soundness.watched_unseen import SUMS_UNSEEN, UNSEEN
from tests.soundness.watched_weights import WEIGHTS_RIGHT, WEIGHTS_WRONG

HEAD = """\
import torch, torch.nn as nn
from torch.nn.functional import l1_loss, mse_loss
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
X, Y = torch.randn(200, 2, 4), torch.randn(200, 2, 2) * 5
opt = torch.optim.SGD(model.parameters(), lr=0.05)
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
"""
RANKS = """
import os, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.FileStore(os.environ["STORE"], 2), rank=rank, world_size=2)
torch.manual_seed(rank + 1)
X, Y = torch.randn(200, 2, 4), torch.randn(200, 2, 2) * 5
"""
OF_SUMS = """
from contextlib import nullcontext
r = rank
"""
WRONG = {**CLIPS, **STEPS, **STALE, **NARROW, **PASSES, **SHOWN, **UNSEEN}
NO_SUMS = {**SUMS_WRONG, **SUMS_UNSEEN}
RIGHTS = {**RIGHT, **PASSES_RIGHT, **SHOWN_RIGHT}
LIMIT = 300
Answers = dict[str, str]
Run = tuple[Any, Any]


def answered(script: str, end: Any, windows_at: str | None = None) -> None:
    """In a process of its own: watch, and send the outcomes; the text of an exception where there is one."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    watch = ScriptWatch(4, 3, windows_at=windows_at)
    found = dict[str, str]()
    try:
        with watch:
            run_script([script])
    except Exception as error:
        found["raised"] = f"{type(error).__name__}: {error}"
    found |= {r.obligation: str(r.outcome) for r in watch.verification().results}
    end.send(json.dumps(found))
    end.close()
    os._exit(0)


def watched(folder: Path, body: str, windows_at: str | None = None) -> Answers:
    """The outcomes of a script by obligation."""
    return ended(started(folder, body, windows_at))


def started(folder: Path, body: str, windows_at: str | None = None) -> Run:
    """A script that is watched in a process of its own."""
    script = folder / f"train{os.environ.get('RANK', '')}.py"
    script.write_text(HEAD + body)
    here = multiprocessing.get_context("fork")
    mine, theirs = here.Pipe(duplex=False)
    process = here.Process(target=answered, args=(str(script), theirs, windows_at))
    process.start()
    theirs.close()
    return process, mine


def ended(run: Run) -> Answers:
    """What it answered."""
    process, mine = run
    try:
        said = mine.recv() if mine.poll(LIMIT) else json.dumps({"raised": f"no answer in {LIMIT} s"})
    except EOFError:
        said = json.dumps({"raised": "the process ended"})
    process.kill()
    process.join()
    return dict(json.loads(said))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_hold(tmp_path: Path, name: str) -> None:
    body, wrong = WRONG[name]
    found = watched(tmp_path, body)
    assert "raised" not in found, found
    assert [o for o in wrong if found[o] == "HOLDS"] == [], found


@pytest.mark.parametrize("name", RIGHTS)
def test_what_is_right_is_not_refuted(tmp_path: Path, name: str) -> None:
    found = watched(tmp_path, RIGHTS[name])
    assert "raised" not in found, found
    assert [o for o, outcome in found.items() if outcome == "REFUTED"] == [], found


@pytest.mark.parametrize("name", WEIGHTS_WRONG)
def test_wrong_weights_do_not_hold(tmp_path: Path, name: str) -> None:
    body, refuted = WEIGHTS_WRONG[name]
    found = watched(tmp_path, body)
    assert "raised" not in found, found
    assert found["GA-EQ-001"] != "HOLDS", found
    assert not refuted or found["GA-EQ-001"] == "REFUTED", found


@pytest.mark.parametrize("name", WEIGHTS_RIGHT)
def test_right_weights_are_not_refuted(tmp_path: Path, name: str) -> None:
    body, held = WEIGHTS_RIGHT[name]
    found = watched(tmp_path, body)
    assert "REFUTED" not in found.values(), found
    assert not held or found["GA-EQ-001"] == "HOLDS", found


LOADED = """
from torch.utils.data import DataLoader, TensorDataset
for k, (x, y) in enumerate(DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=2)):
    (mse_loss(model(x), y) / N).backward()
    if k % N == N - 1: opt.step(); opt.zero_grad()
"""
UNLOADED = """
for w in range(W):
    for i in range(N): mb(w * N + i).backward()
    opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize("body", [LOADED, UNLOADED], ids=["loader", "none"])
def test_a_plain_script_holds(tmp_path: Path, body: str) -> None:
    """The same answers are no answers where nothing ever holds."""
    found = watched(tmp_path, body)
    assert {name for name, outcome in found.items() if outcome != "HOLDS"} == {"GA-INV-001"}, found  # not reported


MASKED = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
A, M = torch.randint(0, 50, (96, 12)), (torch.arange(12) < torch.randint(3, 13, (96, 1))).float()
model = nn.Sequential(nn.Embedding(50, 6), nn.Linear(6, 50))
opt, N = torch.optim.SGD(model.parameters(), lr=0.1), 4
for k, (x, m) in enumerate(DataLoader(TensorDataset(A, M), batch_size=4)):
    l = F.cross_entropy(model(x).transpose(1, 2), x, reduction="none")
    ((l * m).sum() / m.sum() / N).backward()
    if k % N == N - 1: opt.step(); opt.zero_grad()
"""


def test_means_by_a_mask_of_the_data_are_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is made before anything is followed, so the script has no head."""
    monkeypatch.setattr(f"{__name__}.HEAD", "")
    assert watched(tmp_path, MASKED)["GA-EQ-001"] == "REFUTED"
    assert watched(tmp_path, MASKED.replace("/ m.sum() ", "/ 12 "))["GA-EQ-001"] == "UNKNOWN"  # rows are N as well


def test_a_generator_of_tensors_is_read_once(tmp_path: Path) -> None:
    """The watched script trains as it does alone: its weights move."""
    body = """
before = [p.detach().clone() for p in model.parameters()]
for w in range(W):
    for i in range(N): torch.autograd.backward(loss for loss in [mb(w * N + i)])
    opt.step(); opt.zero_grad()
assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
"""
    assert "raised" not in watched(tmp_path, body)


def of_two_ranks(
    folder: Path, body: str, monkeypatch: pytest.MonkeyPatch, windows_at: str | None = None
) -> list[Answers]:
    """What is answered on each of two ranks."""
    monkeypatch.setenv("STORE", str(folder / "store"))
    with ThreadPoolExecutor(2) as pool:
        answers = []
        for rank in (0, 1):
            monkeypatch.setenv("RANK", str(rank))
            answers.append(started(folder, RANKS + body, windows_at))
        return list(pool.map(ended, answers))


@pytest.mark.parametrize("name", RANKS_WRONG)
def test_ranks_that_differ_do_not_hold(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, RANKS_WRONG[name], monkeypatch):
        assert "raised" not in found, found
        assert found["GA-SYNC-001"] != "HOLDS", found


@pytest.mark.parametrize("name", RANKS_RIGHT)
def test_ranks_that_agree_hold(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, RANKS_RIGHT[name], monkeypatch):
        assert "raised" not in found, found
        assert found["GA-SYNC-001"] == "HOLDS", found


@pytest.mark.parametrize("name", RANKS_REFUTED)
def test_ranks_that_never_sum_are_refuted(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, RANKS_REFUTED[name], monkeypatch):
        assert found["GA-SYNC-001"] == "REFUTED", found


@pytest.mark.parametrize("name", RANKS_UNDECIDED)
def test_ranks_that_sum_otherwise_are_undecided(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, RANKS_UNDECIDED[name], monkeypatch):
        assert "raised" not in found, found
        assert found["GA-SYNC-001"] not in ("HOLDS", "REFUTED"), found


@pytest.mark.parametrize("name", NO_SUMS)
def test_sums_of_something_else_do_not_hold(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, OF_SUMS + NO_SUMS[name], monkeypatch):
        assert "raised" not in found, found
        assert found["GA-SYNC-001"] != "HOLDS", found


@pytest.mark.parametrize("name", SUMS_RIGHT)
def test_sums_made_otherwise_are_not_refuted(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in of_two_ranks(tmp_path, OF_SUMS + SUMS_RIGHT[name], monkeypatch):
        assert "raised" not in found, found
        assert "REFUTED" not in found.values(), found


AFTER_A_GAP = (
    "arrays of the weights from before the optimizer", "never stepped second optimizer zeroed", "closure never zeroed",
    "never stepped second optimizer freed", "clip norm with stale backbone", "stale norm", "leaky", "zero wrong opt",
    "plain leaf bf16", "accum in parameters",
)  # fmt: skip
RIGHT_AFTER_A_GAP = ("optimizer in backward", "step in last hook stop", "accumulating optimizer wrapper")


@pytest.mark.parametrize("name", AFTER_A_GAP)
def test_what_is_wrong_does_not_hold_in_windows_after_a_gap(tmp_path: Path, name: str) -> None:
    """What was made before the script's windows are recorded, or between them, is not taken for a constant."""
    body, wrong = WRONG[name]
    found = watched(tmp_path, body, "1,3")
    assert "raised" not in found, found
    assert [o for o in wrong if found[o] == "HOLDS"] == [], found


@pytest.mark.parametrize("name", RIGHT_AFTER_A_GAP)
def test_what_is_right_is_not_refuted_in_windows_after_a_gap(tmp_path: Path, name: str) -> None:
    found = watched(tmp_path, RIGHTS[name], "1,3")
    assert "raised" not in found, found
    assert "REFUTED" not in found.values(), found


@pytest.mark.parametrize("name", ["ddp unfrozen after wrap", "ddp head replaced find unused"])
def test_sums_of_something_else_do_not_hold_after_a_gap(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in of_two_ranks(tmp_path, OF_SUMS + NO_SUMS[name], monkeypatch, "1,3"):
        assert "raised" not in found, found
        assert found["GA-SYNC-001"] != "HOLDS", found
