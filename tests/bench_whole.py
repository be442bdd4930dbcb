"""What proofs over whole tensors cost: `python -m tests.bench_whole --out docs/bench.md` measures the plan's bars.

Each row is a process of its own. Wall time is that of the check without imports, and of a whole command for a script.
Processor time stands beside it, because a machine that others use shows longer wall times. What torch alone takes for
the same work, without gradproof, stands beside both. Nothing here is a test, and nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.unit.shadow.test_whole_frameworks import SCRIPTS
from tests.unit.whole_models import Gpt, Llama, loop

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
MIB = 1024
"""Of KiB, in which Linux counts memory."""


def gpt(width: int, heads: int = 4, layers: int = 2, length: int = 16, words: int = 128) -> Callable[[], nn.Module]:
    """A GPT with tied embeddings."""
    return lambda: Gpt(width, heads, layers, length, words)


def llama(width: int, heads: int, layers: int) -> Callable[[], nn.Module]:
    """A Llama with 8 groups of queries and the words of Llama 3."""
    return lambda: Llama(width, heads, 8, layers, 128256, hidden=7 * width // 2)


class OfHuggingFace(nn.Module):
    """A causal language model of transformers, which takes its labels and gives its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """The mean loss of the next token."""
        return self.net(input_ids=x, labels=y).loss


def hugging_gpt() -> nn.Module:
    """GPT2LMHeadModel in its own configuration, which has 124 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return OfHuggingFace(GPT2LMHeadModel(GPT2Config()))


def hugging_llama() -> nn.Module:
    """LlamaForCausalLM in the configuration of Llama 3 with 8 billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192,
    )  # fmt: skip
    return OfHuggingFace(LlamaForCausalLM(config))


@dataclass(frozen=True, slots=True)
class Case:
    """A model to check, and its bar. `real`: with numbers. `options`: of the request. `bug`: of the loop."""

    model: Callable[[], nn.Module]
    length: int = 16
    words: int = 128
    seconds: float = math.inf
    megabytes: float = math.inf
    real: bool = False
    bug: str = ""
    options: dict[str, int] = field(default_factory=dict)

    @property
    def bar(self) -> str:
        """The bar in words."""
        limits = [f"{self.seconds:g} s" * (self.seconds < math.inf), _memory(self.megabytes)]
        return ", ".join(filter(None, limits)) or "decided"


def _memory(megabytes: float) -> str:
    return f"{megabytes / 1000:g} GB" if megabytes < math.inf else ""


SMALL, LARGE = (768, 12, 12, 1024, 50257), {"length": 8192, "words": 128256}
CASES = {
    "GPT, width 64, 2 layers, T 16, N 4: two runs": Case(gpt(64), seconds=2, real=True),
    "GPT, width 64, 2 layers, T 16, N 4: `--fake`": Case(gpt(64), seconds=2),
    "GPT-2 124M: `--fake`": Case(gpt(*SMALL), 1024, 50257, 15, 1000),
    **{
        f"GPT-2 124M, bug {bug}: `--fake`": Case(gpt(*SMALL), 1024, 50257, 15, 1000, bug=bug)
        for bug in ("share", "clip", "stale")
    },
    "Llama 8B: `--fake`": Case(llama(4096, 32, 32), seconds=30, **LARGE),
    "Llama 405B: `--fake`": Case(llama(16384, 128, 126), seconds=90, megabytes=2000, **LARGE),
    "transformers' GPT2LMHeadModel 124M: `--fake`": Case(hugging_gpt, 1024, 50257),
    "transformers' LlamaForCausalLM 8B: `--fake`": Case(hugging_llama, **LARGE),
}
GROWTH = {
    **{f"width {width}": Case(gpt(width)) for width in (64, 256, 1024, 4096, 16384)},
    **{f"{layers} layers": Case(gpt(64, layers=layers)) for layers in (4, 8, 16)},
    **{f"{steps} micro-batches": Case(gpt(64), options={"accum_steps": steps}) for steps in (8, 16, 32)},
}
RECORDING = "recording one window of GPT-2 124M, T 64"
WATCHED = {f"`watch` of {name}": name for name in SCRIPTS}
BARS = [*CASES, *WATCHED, RECORDING]
RATIO = 1.5
SHORT, TRIES = 5.0, 3
PEER = "pytest-torch, GPT of width 64"
QUOTED = """\
Quoted from their authors, on other machines: Entangle, 10 to 14 s for one layer on 16 cores; TrainVerify, hours for
plans of 405 and 671 billion parameters. spmd_types has no scale factors and no optimizer.
"""


# -- Measuring: in this process, or of a command.


def peak() -> float:
    """The most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What some work gives, its wall time and its processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - processor


def checked(case: Case) -> dict[str, Any]:
    """Check a model in this process, and then let torch alone do the same."""
    from gradproof.shadow.judge.two_runs import check_whole, run_of
    from gradproof.shadow.request import Request

    def data(run: Any) -> tuple[Tensor, Tensor]:
        return tuple(torch.randint(case.words, (run.samples, case.length)) for _ in range(2))  # type: ignore[return-value]

    import torch._dynamo

    step, request = loop(case.model, data, case.bug), Request(fake=not case.real, **case.options)
    found, wall, processor = timed(lambda: check_whole(step, "bench", request))
    held = peak()
    both = (run_of(request), run_of(request).full_batch())
    _, _, alone = timed(lambda: [torch_alone(step, run, case) for run in both])
    refuted = [result.obligation for result in found.results if str(result.outcome) == "REFUTED"]
    right = str(found.outcome) == ("REFUTED" if case.bug else "HOLDS")
    return {
        "bar": case.bar, "outcome": ", ".join([str(found.outcome), *refuted]), "wall": wall, "processor": processor,
        "megabytes": held, "alone": alone, "within": right and processor <= case.seconds and held <= case.megabytes,
        "size": found.notes[0],
    }  # fmt: skip


def torch_alone(step: Callable[[Any], Any], run: Any, case: Case) -> None:
    """The function as torch alone runs it, on real tensors or on fake ones; a number that it reads is 1 there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if case.real:
        step(run)
        return
    with FakeTensorMode(), patch.object(torch.Tensor, "item", lambda _: 1.0):
        step(run)


def commanded(command: Sequence[str], folder: str) -> tuple[int, float, float, float]:
    """The exit code of a command, its wall time, and the processor time and most memory of all of its processes."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    return (
        os.waitstatus_to_exitcode(status), time.perf_counter() - begun, used.ru_utime + used.ru_stime,
        used.ru_maxrss / MIB,
    )  # fmt: skip


def watched(name: str) -> dict[str, Any]:
    """Watch a script that is not changed, and run it without anything."""
    body, code = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(body, encoding="utf-8")
        _, _, alone, _ = commanded([sys.executable, "train.py"], folder)
        watch = [sys.executable, "-P", "-m", "gradproof", "watch", "--format", "json", "--out", "found.json"]
        ended, wall, processor, held = commanded([*watch, "--", "python", "train.py"], folder)
        results = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))["results"]
    refuted = [result["obligation"] for result in results if result["outcome"] == "REFUTED"]
    outcome = ", ".join(["REFUTED", *refuted]) if refuted else "HOLDS" if ended == 0 else "undecided"
    return {
        "bar": "decided", "outcome": outcome, "wall": wall, "processor": processor, "megabytes": held, "alone": alone,
        "within": ended == code and outcome.startswith("REFUTED" if code else "HOLDS"), "size": "with imports",
    }  # fmt: skip


def recorded(windows: int = 3) -> dict[str, Any]:
    """One window of GPT-2 on the CPU with watch around it, beside a plain one; each time another plain one."""
    from gradproof.shadow.process.watch import ScriptWatch

    torch.manual_seed(0)
    model = Gpt(768, 12, 12, 64, 50257)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def window() -> None:
        for _ in range(4):
            ids, labels = torch.randint(50257, (2, 64)), torch.randint(50257, (2, 64))
            (model(ids, labels) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    window()
    pairs = []
    for _ in range(windows):
        plain = timed(window)[1:]
        with ScriptWatch(4, 1) as watcher:
            pairs.append((timed(window)[1:], plain))
    found = watcher.verification()
    decided = {str(r.outcome) for r in found.results if r.obligation in ("GA-EQ-001", "GA-DATA-001", "GA-INV-004")}
    ratio = statistics.median(recorded[1] / plain[1] for recorded, plain in pairs)
    (wall, processor), (_, alone) = (
        tuple(statistics.median(pair[side][at] for pair in pairs) for at in (0, 1)) for side in (0, 1)
    )
    two = 1 + 2 * (ratio - 1)
    return {
        "bar": f"{RATIO:g} times", "outcome": "HOLDS" if decided == {"HOLDS"} else "undecided", "wall": wall,
        "processor": processor, "megabytes": peak(), "alone": alone, "within": two <= RATIO and decided == {"HOLDS"},
        "size": f"{ratio:.2f} times a plain window; {two:.2f} times where torch takes half the time with two threads",
    }  # fmt: skip


def peer() -> dict[str, Any]:
    """What pytest-torch takes for the smallest model, on one sample of data; empty where it is not installed."""
    try:
        from pytest_torch.training_loop import TrainingSetup, assert_accumulation_equivalent
    except ImportError:
        return {"words": "is not installed here"}

    def setup() -> Any:
        model = gpt(64)()
        return TrainingSetup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return model(*batch)

    batches = [(torch.randint(128, (8, 16)), torch.randint(128, (8, 16))) for _ in range(2)]

    def asked() -> str:
        try:
            assert_accumulation_equivalent(setup, batches, loss_fn=loss)
        except AssertionError as error:
            return f"fails: {str(error).splitlines()[0].rstrip(':')}"
        return "passes"

    words, _, processor = timed(asked)
    return {"words": f"{words} ({processor:.1f} s)"}


def measured(name: str) -> dict[str, Any]:
    """One row, in this process."""
    if name == PEER:
        return peer()
    if name in WATCHED:
        return watched(WATCHED[name])
    return recorded() if name == RECORDING else checked({**CASES, **GROWTH}[name])


# -- The tables.

BAR_HEAD = """\
| what | bar | result | seconds | processor | torch alone | MB | within | size |
|---|---|---|---|---|---|---|---|---|
"""
GROWTH_HEAD = """\
| GPT, T 16, `--fake`: width 64, 2 layers and N 4, but for | operators | processor | a 1000 | MB |
|---|---|---|---|---|
"""


def row_of(name: str) -> dict[str, Any]:
    """One row, in a process of its own; of a short one the best of three."""
    command = [sys.executable, "-m", "tests.bench_whole", "--one", name]
    rows: list[dict[str, Any]] = []
    while len(rows) < TRIES and all(row.get("processor", SHORT) < SHORT for row in rows):
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(made.stdout.splitlines()[-1]))
    return min(rows, key=lambda row: row.get("processor", 0.0))


def bar_line(name: str, row: dict[str, Any]) -> str:
    """A row of the table of bars."""
    cells = [
        name, row["bar"], row["outcome"], *(f"{row[key]:.1f}" for key in ("wall", "processor", "alone")),
        f"{row['megabytes']:.0f}", "yes" if row["within"] else "**no**", row["size"],
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def growth_line(name: str, row: dict[str, Any]) -> str:
    """A row of the table of growth."""
    operators = int(row["size"].split(", ")[1].split()[0])
    each = row["processor"] / operators * 1000
    cells = [name, str(operators), f"{row['processor']:.2f}", f"{each:.2f}", f"{row['megabytes']:.0f}"]
    return f"| {' | '.join(cells)} |\n"


def peers() -> str:
    """What other tools take."""
    return (
        "Beside: pytest-torch (`assert_accumulation_equivalent`, one sample of data, compared by `allclose`), asked\n"
        f"about the GPT of width 64 with numbers and without clipping, {row_of(PEER)['words']}.\n{QUOTED}"
    )


def page(bars: Sequence[str], growth: Sequence[str], beside: str) -> str:
    """The page of measured bars."""
    there = f"torch {torch.__version__}, {os.cpu_count()} cores without a GPU, load {os.getloadavg()[2]:.0f}"
    return "".join(
        [
            "# What proofs over whole tensors cost\n\n",
            f"Made by `python -m tests.bench_whole --out docs/bench.md` ({there}).\n{EXPLAINED}\n",
            BAR_HEAD, *bars, "\n", beside, "\n", GROWN, "\n", GROWTH_HEAD, *growth,
        ]
    )  # fmt: skip


EXPLAINED = """\
`--without 405B` leaves the longest row out. Each model is trained by AdamW with clipping, in windows of 4 micro-batches
of 2 samples, and each script by its own loop. `seconds` are those of the clock, `processor` those of all cores; others
may use it meanwhile (load). `torch alone` is the processor time of the same steps without gradproof, on fake tensors
where the check is `--fake`: a unit that carries over to another machine. Torch has one thread. A row is within its bar
where the result is right and neither the processor time nor memory exceeds the bar. On a machine of its own the clock
shows the same. A check with numbers of a loop that reads its losses makes both runs with three seeds.
"""
GROWN = """\
The cost is linear in operators times samples, and the same at any width. `a 1000` is the time for 1000 operators:
"""


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables; with --one, one row as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_whole", description=__doc__)
    parser.add_argument("--one", metavar="ROW", choices=[*BARS, *GROWTH, PEER])
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="rows with one of these in their name")
    parser.add_argument("--without", nargs="+", metavar="TEXT", default=[], help="but those with one of these in it")
    parser.add_argument("--out", type=Path, help="write the page here")
    given = parser.parse_args(words)
    if given.one:
        torch.set_num_threads(1)
        print(json.dumps(measured(given.one)))
        return 0
    made: list[list[str]] = []
    for head, names, line in ((BAR_HEAD, BARS, bar_line), (GROWTH_HEAD, GROWTH, growth_line)):
        asked = [n for n in names if any(t in n for t in given.only) and not any(t in n for t in given.without)]
        print(head, end="", flush=True)
        made.append([])
        for name in asked:
            made[-1].append(line(name, row_of(name)))
            print(made[-1][-1], end="", flush=True)
    beside = peers()
    print(beside)
    if given.out:
        given.out.write_text(page(*made, beside), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
