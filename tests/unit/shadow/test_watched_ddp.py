"""DistributedDataParallel under `watch`: one rank is decided, several are not, and no hook makes a wrong one hold."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed as dist

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.recorded import RANKS
from gradproof.shadow.process.check import script_of
from gradproof.shadow.result import Verification
from tests.checked import watch

FILE = "ddp_loop.py"
LOOP = """
import json, sys, torch
from contextlib import nullcontext
from torch import distributed as dist, nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(96, 3), torch.randn(96, 2))
for i, (x, y) in enumerate(torch.utils.data.DataLoader(rows, batch_size=2)):
    last = i % 4 == 3
    with nullcontext() if last else model.no_sync():
        (nn.functional.mse_loss(model(x), y) / 4).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
"""
HOOK = """
def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    made = torch.futures.Future()
    made.set_result(bucket.buffer() * 2)
    return made
model.register_comm_hook(None, hook)
optimizer ="""
RIGHT = {
    "as it is": LOOP,
    "views of buckets": LOOP.replace("Parallel(net)", "Parallel(net, gradient_as_bucket_view=True)"),
    "each micro-batch sums": LOOP.replace(" if last else model.no_sync()", ""),
    "small buckets": LOOP.replace("Parallel(net)", "Parallel(net, bucket_cap_mb=1e-5)"),
    "summed by hand": LOOP.replace("DistributedDataParallel(net)", "distributed.DistributedDataParallel(net)")
    .replace("model = nn.parallel.distributed.DistributedDataParallel(net)", "model = net")
    .replace("model.no_sync()", "nullcontext()")
    .replace("    if last:\n", "    if last:\n        [dist.all_reduce(p.grad) for p in net.parameters()]\n"),
}
WRONG = {
    "not divided": (LOOP.replace(" / 4)", ")"), "GA-EQ-001"),
    "never zeroed": (LOOP.replace("optimizer.zero_grad()", "pass"), "GA-INV-002"),
}
UNDECIDED = {
    "a hook that doubles": LOOP.replace("\noptimizer =", HOOK),
    "a hook that sums nothing": LOOP.replace(
        "\noptimizer =", "\nfrom torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks as hooks\n"
        "model.register_comm_hook(None, hooks.noop_hook)\noptimizer =",
    ),
    "weights that may be unused": LOOP.replace("Parallel(net)", "Parallel(net, find_unused_parameters=True)"),
}  # fmt: skip


def watched(text: str) -> Verification:
    """What is said of a loop on one rank. Its text is read as that of a file is."""
    linecache.cache[FILE] = len(text), None, text.splitlines(keepends=True), FILE
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        return watch(lambda: exec(compile(text, FILE, "exec", dont_inherit=True), {"__name__": "ddp_loop"}), 4)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", RIGHT)
def test_one_rank_holds(name: str) -> None:
    found = watched(RIGHT[name])
    assert found.outcome is Outcome.HOLDS, found.results


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_rank_is_refuted(name: str) -> None:
    text, obligation = WRONG[name]
    assert watched(text).result(obligation).outcome is Outcome.REFUTED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNDECIDED)
def test_what_is_not_followed_is_not_decided_and_says_what_to_run(name: str) -> None:
    found = watched(UNDECIDED[name])
    for obligation in ("GA-EQ-001", "GA-INV-002", "GA-DATA-001"):
        result = found.result(obligation)
        assert result.outcome is Outcome.OPAQUE, result
        assert RANKS in result.reason


def test_two_ranks_under_their_launcher_are_not_decided_and_say_what_to_run(tmp_path: Path) -> None:
    script, writes = (
        tmp_path / "train.py",
        "import os; os.makedirs('out', exist_ok=True); open('log', 'a').write('x')\n",
    )
    script.write_text(writes + LOOP.replace("torch.manual_seed(0)", "dist.init_process_group('gloo')", 1))
    watcher = [
        *("-m", "gradproof", "watch", "--accum-steps", "4", "--stop-after", "2", "--format", "json"),
        *("--allow-undecided", "GA-EQ-001", "--allow-undecided", "GA-DATA-001", "--allow-undecided", "GA-INV-001"),
        *("--allow-undecided", "GA-INV-002", "--allow-undecided", "GA-INV-004", "--allow-undecided", "GA-INV-005"),
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29541"]
    command = [*launcher, *watcher, "--", "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.iterdir()] == [script]  # what both ranks wrote is gone
    decoder, text = json.JSONDecoder(), done.stdout
    for _ in range(2):
        found, end = decoder.raw_decode(text[text.index("{") :])
        text = text[text.index("{") + end :]
        results = {one["obligation"]: one for one in found["results"]}
        assert found["config"]["stopped_after"] == 2
        assert RANKS in results["GA-EQ-001"]["reason"]
        assert (results["GA-SYNC-001"]["outcome"], results["GA-INV-003"]["outcome"]) == ("HOLDS", "HOLDS")


@pytest.mark.parametrize("words", ["torchrun --x 2 train.py -a", "python -m torch.distributed.run --x 2 train.py -a"])
def test_a_launcher_is_told_how_it_starts_gradproof(words: str) -> None:
    with pytest.raises(GradproofError) as error:
        script_of(words.split())
    assert "-m gradproof watch -- train.py" in error.value.help
