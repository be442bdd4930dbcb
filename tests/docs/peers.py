"""Other tools beside gradproof: `python -m tests.docs.peers --python PYTHON --out docs/comparison.md`.

PYTHON is an interpreter with torch, pytest, pytest-torch, spmd-types and traincheck; gradproof is taken from here. One
loop, right and with one line changed, is given to each tool in the way that the tool wants it. What a tool says is read
from its own output. The tables stand between the marks of the page. A tool that is not installed is named as such, and
nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
LIMIT = 900.0
LOOP = """
import torch
from torch import nn


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def labels(count):
    return torch.randint(0, 3, (count,))


def micro_batch(model, optimizer, x, y, i, n):
    loss = nn.functional.cross_entropy(model(x), y)
    (loss / n).backward()
    if (i + 1) % n == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def train(run):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(run.seed)
    x, y = torch.randn(run.samples, 8), labels(run.samples)
    for i, (a, b) in enumerate(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size))):
        micro_batch(model, optimizer, a, b, i, run.accum_steps)
"""
TEST = """
import torch
from loop import labels, micro_batch, model_of
from pytest_torch import TrainingSetup, assert_accumulation_equivalent


def setup():
    model = model_of()
    return TrainingSetup(model, torch.optim.SGD(model.parameters(), lr=0.1))


def step(k):
    return lambda setup, batch: micro_batch(setup.model, setup.optimizer, *batch, setup.step_index, k)


def test_accumulation():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 8), labels(8)) for _ in range(2)]
    assert_accumulation_equivalent(setup, batches, step)
"""
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
AFTER = "    (loss / n).backward()\n"
CASES: dict[str, tuple[str, str, bool]] = {
    "right": ("", "", True),
    "right, with dropout": ("nn.Tanh(), nn", "nn.Tanh(), nn.Dropout(0.5), nn", True),
    "not divided by N": ("(loss / n)", "(loss)", False),
    "divided twice": ("(loss / n)", "(loss / n / n)", False),
    "never zeroed": ("        optimizer.zero_grad()\n", "", False),
    "a step after each micro-batch": ("if (i + 1) % n == 0", "if True", False),
    "each micro-batch clipped": (AFTER, AFTER + CLIP, False),
    "a clamp of each micro-batch, which these data do not reach": (
        AFTER, AFTER + "    for p in model.parameters():\n        p.grad.clamp_(-100, 100)\n", False),
    "sums rounded to bf16": (
        AFTER, AFTER + "    for p in model.parameters():\n        p.grad = p.grad.bfloat16().float()\n", False),
    "a mean of means, with ignored labels": (
        "    return torch.randint(0, 3, (count,))",
        "    return torch.randint(0, 3, (count,)).masked_fill(torch.rand(count) < 0.4, -100)", False),
}  # fmt: skip
"""A name to what is replaced, by what, and whether the loop is right."""
SPMD = """
import sys
import torch, torch.distributed as dist
import spmd_types as spmd, spmd_types.checker
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group(backend="fake", rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
dp = mesh.get_group("dp")
with spmd.set_current_mesh(mesh), spmd.checker.typecheck():
    w = torch.randn(4, 1); spmd.assert_type(w, {dp: spmd.R})
    total = None
    for k in range(4):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        spmd.assert_type(x, {dp: spmd.V}); spmd.assert_type(y, {dp: spmd.V})
        g = torch.mul(torch.matmul(x.t(), torch.sub(torch.matmul(x, w), y)), SHARE)
        total = g if total is None else torch.add(total, g)
    total = spmd.reinterpret(total, dp, src=spmd.V, dst=spmd.P)
    SUM
    spmd.assert_type(torch.sub(w, torch.mul(total, 0.1)), {dp: spmd.R})
print("typechecks")
"""
SUM, SHARE = "total = spmd.all_reduce(total, dp, src=spmd.P, dst=spmd.R)", "2 / 8 / 4 / 2"
FLAT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(256, 16), torch.randn(256, 1)
for i in range(32):
    x, y = inputs[8 * i : 8 * i + 8], targets[8 * i : 8 * i + 8]
    loss = nn.functional.mse_loss(model(x), y)
    (loss / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
FLAT_CASES = {
    "right": ("", ""), "not divided by N": ("(loss / 4)", "(loss)"),
    "never zeroed": ("        optimizer.zero_grad()\n", ""),
    "a step after each micro-batch": ("(i + 1) % 4 == 0", "(i + 1) % 1 == 0"),
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """A command that ended: its exit code, what it printed, seconds of the clock and of the processor."""

    code: int
    said: str
    seconds: float
    processor: float


def ran(python: str, folder: Path, *command: str) -> Ran:
    """Run a command in a folder, with the interpreter's own commands first on the path."""
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    ours = {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "CI": ""}
    env = {**os.environ, **ours, "PATH": path}
    start, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", timeout=LIMIT, check=False,
    )  # fmt: skip
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Ran(done.returncode, done.stdout, time.monotonic() - start, processor)


def replaced(text: str, old: str, new: str) -> str:
    """A text with one place changed. Raises ValueError where it does not stand there once."""
    if old and text.count(old) != 1:
        raise ValueError(f"{old!r} does not stand once")
    return text.replace(old, new) if old else text


class Kept:
    """Rows of an earlier run, by what they are about; and the file to which those of this one are added."""

    def __init__(self, file: Path | None, have: dict[str, str]) -> None:
        self.file, self.have = file, have
        lines = file.read_text(encoding="utf-8").splitlines() if file and file.is_file() else []
        self.rows: dict[str, str] = dict(json.loads(line) for line in lines)

    def row(self, about: list[str], measure: Callable[[], str]) -> str:
        """The row about a text and the present versions: kept, or measured now."""
        key = json.dumps([*about, self.have])
        if key not in self.rows:
            self.rows[key] = measure()
            if self.file:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.rows[key]]) + "\n")
        print(self.rows[key], flush=True)
        return self.rows[key]


def accumulation(python: str, folder: Path, kept: Kept) -> Iterator[str]:
    """Rows: gradproof check and pytest-torch about one loop."""
    for name, (old, new, _) in CASES.items():
        about = [name, replaced(LOOP, old, new), TEST]
        yield kept.row(about, partial(asked_of_both, python, folder, name))


def asked_of_both(python: str, folder: Path, name: str) -> str:
    """One of these rows."""
    old, new, _ = CASES[name]
    (folder / "loop.py").write_text(replaced(LOOP, old, new), encoding="utf-8")
    (folder / "test_loop.py").write_text(TEST, encoding="utf-8")
    ours = ran(
        python, folder, python, "-m", "gradproof", "check", "--format", "json", "--out", "v.json", "loop.py:train"
    )
    rows = json.loads((folder / "v.json").read_text(encoding="utf-8"))["results"]
    refuted = ", ".join(r["obligation"] for r in rows if r["outcome"] == "REFUTED")
    said = {0: "holds", 1: f"refuted: {refuted}", 4: "not decided"}[ours.code]
    theirs = ran(
        python, folder, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:gradproof", "test_loop.py"
    )
    first = re.search(r"^E +AssertionError: (.*)$", theirs.said, re.MULTILINE)
    if theirs.code not in (0, 1) or (theirs.code and not first):
        raise RuntimeError(theirs.said[-3000:])
    words = "passes" if first is None else f"fails: {first[1].rstrip(':')}"
    return f"| {name} | {said} | {ours.processor:.1f} | {words} | {theirs.processor:.1f} |"


def spmd_types(python: str, folder: Path, kept: Kept) -> Iterator[str]:
    """Rows: a data-parallel window, typechecked."""
    cases = {"right": (SHARE, SUM), "not divided by N": ("2 / 8 / 2", SUM), "not summed over ranks": (SHARE, "pass")}
    for name, (share, summed) in cases.items():
        text = SPMD.replace("SHARE", share).replace("SUM", summed)
        yield kept.row([name, text], partial(typechecked, python, folder, name, text))


def typechecked(python: str, folder: Path, name: str, text: str) -> str:
    """One of these rows."""
    (folder / "spmd.py").write_text(text, encoding="utf-8")
    done = ran(python, folder, python, "-W", "ignore", "spmd.py")
    error = re.search(r"(?:\w+\.)*(\w*Type\w*Error)\b", done.said)
    if "typechecks" not in done.said and error is None:
        raise RuntimeError(done.said[-3000:])
    words = "typechecks" if "typechecks" in done.said else f"refused: {error[1] if error else ''}"
    return f"| {name} | {words} | {done.processor:.1f} |"


def traincheck(python: str, folder: Path, kept: Kept) -> Iterator[str]:
    """Rows: invariants learned from the right script, checked on each. All of them are one measurement."""
    texts = [replaced(FLAT, old, new) for old, new in FLAT_CASES.values()]
    yield from kept.row(["traincheck", *texts], partial(learned, python, folder, texts)).splitlines()


def learned(python: str, folder: Path, texts: list[str]) -> str:
    """These rows."""
    spent, rows = [], []
    for number, text in enumerate(texts):
        (folder / f"flat{number}.py").write_text(text, encoding="utf-8")
        trace = ("-p", f"flat{number}.py", "--models-to-track", "model", "--output-dir", f"trace{number}")
        spent.append(ran(python, folder, "traincheck-collect", *trace).processor)
    once = ran(python, folder, "traincheck-infer", "-f", "trace0", "-o", "invariants.json").processor
    for number, name in enumerate(FLAT_CASES):
        done = ran(python, folder, "traincheck-check", "-f", f"trace{number}", "-i", "invariants.json")
        rows.append(invariants(name, done.said, spent[number] + done.processor))
    return "\n".join([*rows, f"| learning the invariants, once | | {once:.1f} |"])


def invariants(name: str, said: str, seconds: float) -> str:
    """A row of what TrainCheck printed. Raises RuntimeError where it printed no result."""
    found = re.search(r"Total failed invariants: (\d+)/(\d+)", said)
    if found is None:
        raise RuntimeError(said[-3000:])
    return f"| {name} | {found[1]} of {found[2]} invariants fail | {seconds:.1f} |"


TOOLS = {"pytest_torch": "pytest-torch", "spmd_types": "spmd-types", "traincheck": "traincheck"}


def versions(python: str) -> dict[str, str]:
    """The installed version of each tool; empty where it is not installed."""
    code = (
        "import importlib.metadata as m, json\ndef v(n):\n try: return m.version(n)\n"
        " except m.PackageNotFoundError: return ''\n"
        f"print(json.dumps({{n: v(n) for n in {[*TOOLS.values(), 'torch']!r}}}))"
    )
    found: dict[str, str] = json.loads(subprocess.check_output([python, "-c", code], text=True, timeout=LIMIT))
    return found


def tables(python: str, folder: Path, have: dict[str, str], kept: Kept) -> str:
    """All tables, measured now."""
    lines = [
        f"torch {have['torch']}, {os.cpu_count()} cores without a GPU. Seconds are the processor's, with imports.",
        "",
    ]
    lines += [
        "",
        f"`gradproof check` and pytest-torch {have['pytest-torch']} (`assert_accumulation_equivalent`) about one loop:",
        "",
    ]
    lines += [
        "| the loop | gradproof | seconds | pytest-torch | seconds |",
        "|---|---|---|---|---|",
        *accumulation(python, folder, kept),
    ]
    lines += ["", f"A window of data parallelism with annotations, typechecked by spmd_types {have['spmd-types']}:", ""]
    lines += ["| the window | spmd_types | seconds |", "|---|---|---|", *spmd_types(python, folder, kept)]
    lines += [
        "",
        f"A flat script, by invariants that TrainCheck {have['traincheck']} learned from one run of the right one:",
        "",
    ]
    lines += ["| the script | TrainCheck | seconds |", "|---|---|---|", *traincheck(python, folder, kept)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write. Exit code 1 where a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the other tools")
    parser.add_argument("--keep", type=Path, help="a file of rows: what it has is not measured again")
    parser.add_argument("--out", type=Path, help="the page, between its marks")
    given: Any = parser.parse_args(arguments)
    have = versions(given.python)
    missing = [name for name in TOOLS.values() if not have[name]]
    if missing:
        print(f"not installed: {', '.join(missing)}; nothing was measured", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        made = tables(given.python, Path(folder), have, Kept(given.keep, have))
    print(made)
    if given.out:
        before, _, rest = given.out.read_text(encoding="utf-8").partition(BEGIN)
        given.out.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
