"""Several ranks: each recording has processes of its own, forked from one, and none of them outlives it."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import PACKAGE
from gradproof.shadow.tape import ranks

STEP = """
import os, sys, time
import torch

SEEN = []

def train(seed):
    rank = int(os.environ["RANK"])
    SEEN.append(rank)
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}, call {len(SEEN)}")
    if seed == 7 and rank == 1:
        os._exit(9)
    if seed == 7 or seed == 8:
        open("waiting", "w").write(str(os.getpid()))
        time.sleep(600)
    torch.distributed.init_process_group("gloo")
    total = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(total)
    return [float(total), float(os.getpid())]
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    made: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    made._stop()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "step.py").write_text(STEP)
    yield made
    made._stop()


def record(seed: int, seconds: float = 600.0) -> None:
    ranks.each_rank("step:train", [seed, seed], seconds)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether a process ends within a minute."""
    for _ in range(600):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


def test_every_recording_begins_anew_in_a_fork_of_one_process(pool: Any, capfd: pytest.CaptureFixture[str]) -> None:
    record(0)
    first = pool._forkserver_pid
    record(1)
    assert first is not None
    assert pool._forkserver_pid == first
    stated = capfd.readouterr().err
    assert stated.count("rank 0 of 2, call 1") == stated.count("rank 1 of 2, call 1") == 2


def test_a_rank_that_ends_early_ends_the_others(pool: Any) -> None:
    with pytest.raises(GradproofError, match="GP410") as error:
        record(7)
    assert "9" in str(error.value)
    assert gone(int(Path("waiting").read_text()))
    record(0)


def test_ranks_that_take_too_long_are_ended(pool: Any) -> None:
    record(0)
    with pytest.raises(GradproofError, match="GP410"):
        record(8, 5.0)
    assert gone(int(Path("waiting").read_text()))


def test_the_ranks_end_with_the_parent_and_do_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    program = (
        "import sys; from gradproof.shadow.tape.ranks import each_rank; sys.path.insert(0, '.')\n"
        "each_rank('step:train', [8, 8], 600.0)"
    )
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart/unguarded.py").write_text(program)
    (tmp_path / "signal.py").write_text("raise SystemExit")  # what a folder of the user's holds is not imported
    own = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))  # "" is the present folder
    environment = {**os.environ, "PYTHONPATH": own}
    parent = subprocess.Popen([sys.executable, "apart/unguarded.py"], cwd=tmp_path, env=environment)
    stated = tmp_path / "waiting"
    for _ in range(3000):
        if (stated.exists() and stated.read_text()) or parent.poll() is not None:
            break
        time.sleep(0.1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(int(stated.read_text()))


LOOP = ["correct", "per_rank_token_means", "world_forgotten", "samples_for_tokens", "ranks_read_the_same", "loss_sum"]


@pytest.mark.parametrize("name", LOOP)
def test_two_ranks_of_a_real_loop(name: str) -> None:
    """Weights of tokens over both ranks, and which rank reads what."""
    from tests.loops.catalogue import LOOPS
    from tests.loops.sweep import jobs_of, sweep
    from tests.loops.verdicts import PROVED, WANTED

    job = next(iter(jobs_of(LOOPS["ddp_loop"], [name])))
    [row] = sweep([job])
    assert row.verdict in ([PROVED] if name == "correct" else WANTED), row
