"""`gradproof check --script`: what two runs of a script by its own arguments decide, and when they decide nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gradproof import cli
from gradproof.cli.check import _of_script
from gradproof.cli.script import ShortRun, Twice

FLAT = """
import argparse

import torch
from torch import nn

import helper

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--steps", type=int, default=0)
args = parser.parse_args()
print("heard", args.accumulate)
helper.begins()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
order = list(range(64))
batches = [order[at : at + args.batch_size] for at in range(0, 64, args.batch_size)]
for i, batch in enumerate(batches, 1):
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    (loss / args.accumulate).backward()
    if i % args.accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "model.pt")
        print(f"loss {loss.item():.4f}", file=open("log.txt", "a"))
"""
HELPER = """
from pathlib import Path

began = 0


def begins():
    global began
    began += 1
    assert began == 1, "the module is that of an earlier run"
    assert not Path("model.pt").exists(), "an earlier run left its file"
"""
NANO = """
import numpy as np
import torch
from torch import nn

batch_size, gradient_accumulation_steps, dropout = 2, 4, 0.1
exec(open("configurator.py").read())
data = np.random.default_rng(0).integers(0, 32, 200)
model = nn.Sequential(nn.Embedding(32, 16), nn.Dropout(dropout), nn.Linear(16, 32))
optimizer = torch.optim.AdamW(model.parameters())


def get_batch():
    ix = torch.randint(len(data) - 8, (batch_size,))
    return (torch.stack([torch.from_numpy(data[i + at : i + at + 8]) for i in ix]) for at in (0, 1))


x, y = get_batch()
for _ in range(5):
    for _ in range(gradient_accumulation_steps):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / gradient_accumulation_steps
        x, y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
CONFIGURATOR = """
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    assert arg.startswith("--") and key in globals(), arg
    globals()[key] = literal_eval(val)
"""
HYDRA = """
import hydra
import torch
from hydra.core.config_store import ConfigStore

ConfigStore.instance().store(name="train", node={"batch": 2, "accumulate": 4})


@hydra.main(version_base=None, config_name="train")
def main(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(torch.randn(32, 8).split(config.batch), 1):
        (model(x).square().mean() / config.accumulate).backward()
        if i % config.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


main()
"""
ACCUM, BATCH = "--accum-arg=accumulate=4", "--batch-arg=batch-size=8"


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the script, which is the working one; what is in it stays as it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    return tmp_path


def checked(folder: Path, text: str, *words: str) -> Done:
    """`gradproof check --script train.py` with these words. The run leaves nothing behind."""
    (folder / "train.py").write_text(text)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "gradproof", "check", "--script", "train.py", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return Done(done.returncode, done.stdout, done.stderr)


def changed(*pairs: tuple[str, str]) -> str:
    """The flat script with something else in it."""
    text = FLAT
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_a_right_flat_script_holds(folder: Path) -> None:
    done = checked(folder, FLAT, ACCUM, BATCH)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("HOLDS train.py: every obligation that was judged holds (6 of 7)\n")
    assert len(done.out.splitlines()) <= 12
    assert "windows after the first 2 of each run, and a short last one" in done.out
    assert done.err.count("heard") == 1


def test_the_verbose_text_names_both_command_lines(folder: Path) -> None:
    done = checked(folder, FLAT, "-v", "--windows", "3", ACCUM, BATCH, "--", "--steps", "3")
    assert "run A: python train.py --steps 3 --accumulate=4\n" in done.out
    assert "run B: python train.py --steps 3 --accumulate=1 --batch-size=8\n" in done.out
    assert "windows after the first 3 of each run" in done.out


@pytest.mark.parametrize(
    ("old", "new", "obligation", "line"),
    [
        ("(loss / args.accumulate).backward()", "loss.backward()", "GA-EQ-001", "loss = nn"),
        ("        optimizer.zero_grad()\n", "", "GA-INV-002", "(loss / args"),
        ("% args.accumulate == 0:", "% args.accumulate == 1 % args.accumulate:", "GA-INV-003", "step()"),
        ("(loss / args.accumulate)", "(loss / (args.accumulate - (args.accumulate > 1)))", "GA-EQ-001", "(loss / "),
    ],
)  # fmt: skip
def test_a_wrong_script_is_refuted_with_its_line(folder: Path, old: str, new: str, obligation: str, line: str) -> None:
    done = checked(folder, changed((old, new)), ACCUM, BATCH)
    assert done.code == 1, done.out + done.err
    assert len(done.out.splitlines()) <= 25
    assert done.out.startswith("REFUTED train.py\n" + obligation)
    assert re.search(r"--> train\.py:\d+ in <module>\n +\d+ \| .*" + re.escape(line), done.out), done.out


UNSEEDED = ("order = list(range(64))\n", "import random\n\norder = random.Random().sample(range(64), 64)\n")
WEIGHTS = (
    "optimizer = ",
    "import os\n\nmodel[0].weight.data.mul_(1 + os.urandom(1)[0] / 7 + os.urandom(1)[0])\noptimizer = ",
)


@pytest.mark.parametrize("division", [[], [("(loss / args.accumulate)", "(loss)")]])
@pytest.mark.parametrize(
    ("pair", "reason"),
    [(UNSEEDED, r"other samples: \d+ of window 1 are in one alone"), (WEIGHTS, "began with other weights")],
)
def test_nothing_is_decided_of_runs_that_begin_otherwise(
    folder: Path, pair: tuple[str, str], reason: str, division: list[tuple[str, str]]
) -> None:
    """Right or wrong: neither HOLDS nor REFUTED is said of it."""
    done = checked(folder, changed(pair, *division), ACCUM, BATCH)
    assert done.code == 4, done.out + done.err
    assert re.search(rf"not decided: the two runs .*{reason}", done.out)
    assert "also: 0 of 7 obligations hold" in done.out
    assert ("--> train.py:" in done.out) == (pair is UNSEEDED)


def begun(weights: str, *windows: str) -> ShortRun:
    """A run that began with these weights, and whose windows took these samples; "A" has the numbers of "a"."""
    made = ShortRun(len(windows))
    made.weights, made.samples, made.complete = [*weights], [[*one] for one in windows], True
    made.numbers = {name: torch.tensor([float(ord(name.lower()))]) for name in "".join(windows)}
    return made


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (begun("w", "abcd", "efgh"), ""),
        (begun("w", "bcad", "hgfe"), ""),  # the same sets in another order
        (begun("w", "a", "bcde"), ""),  # the same order, and a step that comes too early
        (begun("w", "acbd", "efg"), "samples: 1 of window 2 are"),
        (begun("w", "acb", "efgh"), "samples: 1 of window 1 are"),
        (begun("w", "abce", "efgh"), "samples: 2 of window 1 are"),
        (begun("w", "aabcd", "efgh"), "samples: 1 of window 1 are"),
        (begun("w", "AbCd", "efgh"), ""),  # rounded otherwise
        (begun("w", "Abce", "efgh"), "samples: 4 of window 1 are"),
        (begun("w", "BAcd", "efgh"), "samples: 4 of window 1 are"),
        (begun("w", "ABc", "efgh"), "samples: 5 of window 1 are"),
        (begun("v", "abcd", "efgh"), "weights"),
        (begun("ww", "abcd", "efgh"), "weights"),
    ],
)
def test_which_runs_began_alike(other: ShortRun, said: str) -> None:
    twice = object.__new__(Twice)
    twice.runs = [(0, begun("w", "abcd", "efgh")), (1, begun("x", "ijkl", "mnop")), (0, other)]
    found = [reason for reason, _ in twice._unlike()]
    assert bool(found) == bool(said)
    assert all(said in reason for reason in found[:1])


def test_what_torch_draws_without_a_seed_is_one_draw_in_both_runs(folder: Path) -> None:
    loader = "torch.utils.data.DataLoader(order, batch_size=args.batch_size, shuffle=True)"
    batches = "[order[at : at + args.batch_size] for at in range(0, 64, args.batch_size)]"
    done = checked(folder, changed((batches, loader), ("torch.manual_seed(0)\n", "")), ACCUM, BATCH)
    assert done.code == 0, done.out + done.err


def test_a_script_that_divides_its_batch_needs_no_batch_argument(folder: Path) -> None:
    own = ("helper.begins()\n", "args.batch_size = 8 // args.accumulate\n")
    assert checked(folder, changed(own), ACCUM).code == 0


MISTAKES = {
    "the argument is ignored": ("args.accumulate = 4", BATCH, "4 backward passes in a window of run A, 4 of run B"),
    "no full batch": ("", "--windows=1", "--batch-arg NAME=8 for run B, the full batch"),
    "run B fails": ("assert args.accumulate > 1", BATCH, "--batch-size=8 ended with AssertionError"),
    "run B ends badly": ("if args.accumulate == 1: raise SystemExit(7)", BATCH, "the script ended with exit code 7"),
    "another argument": ("", "--batch-arg=bach=8", "the script ended with exit code 2"),
    "too little data": ("args.accumulate *= 5", BATCH, "ended with fewer steps"),
}
"""What a script does before it trains, an argument, and what is said."""


@pytest.mark.parametrize("name", MISTAKES)
def test_arguments_that_do_something_else_are_a_clear_error(folder: Path, name: str) -> None:
    line, word, said = MISTAKES[name]
    done = checked(folder, changed(("helper.begins()", line)), ACCUM, word)
    assert (done.code, done.out) == (2, ""), done.out + done.err
    assert re.search(r"GP416\n  found:    .*\n  expected: .*\n  help:     ", done.err), done.err
    assert said in done.err
    assert ("train.py:15: GP416" in done.err) == (name == "run B fails")


@pytest.mark.parametrize("right", [True, False])
def test_a_configurator_that_overwrites_globals(folder: Path, right: bool) -> None:
    text = NANO if right else NANO.replace(" / gradient_accumulation_steps", "")
    words = ("--accum-arg", "gradient_accumulation_steps=4", "--batch-arg", "batch_size=8")
    done = checked(folder, text, *words)
    assert done.code == (0 if right else 1), done.out + done.err
    assert ("every valid token weighs the same" in done.out) or not right


@pytest.mark.parametrize("right", [True, False] if find_spec("hydra") else [])
def test_a_script_of_hydra(folder: Path, right: bool) -> None:
    text = HYDRA if right else HYDRA.replace("/ config.accumulate", "")
    done = checked(folder, text, "--accum-arg", "accumulate=4", "--batch-arg", "batch=8")
    assert done.code == (0 if right else 1), done.out + done.err
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(
    ("text", "given", "a", "b"),
    [
        ("import torch", ("n=4", "m=8"), ["--n=4"], ["--n=1", "--m=8"]),
        ("import torch", ("--n=4", "-m=8"), ["--n=4"], ["--n=1", "-m=8"]),
        ("import torch", ("n=4", None), ["--n=4"], ["--n=1"]),
        ("  from hydra import main", ("train.n=4", "+m=8"), ["train.n=4"], ["train.n=1", "+m=8"]),
    ],
)
def test_how_an_argument_is_given(
    folder: Path, text: str, given: tuple[str, str | None], a: list[str], b: list[str]
) -> None:
    (folder / "train.py").write_text(text)
    with _of_script("train.py", ["own"], *given) as (target, n, left):
        assert (n, left, target.shown) == (4, [], "train.py")
        assert repr(("train.py", ["own", *a], ["own", *b]))[:-1] in target.path.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--script", "train.py", "train.py:step", ACCUM], "script is 'train.py'"),
        (["--script", "train.py", ACCUM, "--accum-steps", "4"], "accum-steps is 4"),
        (["--script", "train.py", ACCUM, "--fake"], "fake is True"),
        (["--script", "train.py", ACCUM, "--ranks=2"], "ranks is 2"),
        (["--script", "train.py"], "accum-arg is ''"),
        (["--script", "train.py", "--accum-arg", "n=1"], "accum-arg is 'n=1'"),
        (["--script", "train.py", "--accum-arg", "n"], "accum-arg is 'n'"),
        (["--script", "train.py", ACCUM, "--batch-arg", "=8"], "batch-arg is '=8'"),
        (["train.py:step", ACCUM], "accum-arg is 'accumulate=4'"),
        (["--script", "gone.py", ACCUM], "no such file"),
        ([], "Expected one FILE.py:FUNCTION or --script FILE.py, found none"),
        (["a.py:b", "c.py:d"], "found a.py:b c.py:d"),
    ],
)
def test_options_that_do_not_belong_together(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (folder / "train.py").write_text(FLAT)
    assert cli.dispatch(["check", *words]) == 2
    assert said in capsys.readouterr().err


CLASSES = (
    ("targets = torch.randn(64, 8), torch.randn(64, 1)", "labels = torch.randn(64, 8), torch.randint(0, 12, (64,))"),
    ("nn.Linear(8, 1))", "nn.Linear(8, 12))"),
    ("nn.functional.mse_loss(model(inputs[batch]), targets[batch])", "loss_of(model(inputs[batch]), labels[batch])"),
    ("for i, batch", "loss_of = nn.CrossEntropyLoss(weight, reduction='none')\nfor i, batch"),
    ("(loss / args", "loss = loss.mean()\n    (loss / args"),
    ("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        warm.step()\n"),
    (
        "order = ",
        "warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)\n"
        "inputs = (inputs - inputs.mean(0)) / inputs.std(0)\n"
        "weight = 64 / (1 + torch.bincount(labels, minlength=12).float())\norder = ",
    ),
)
"""A classifier with class weights and inputs from the whole data set, and a warm-up that begins at learning rate 0."""


@pytest.mark.parametrize("right", [True, False])
def test_a_script_with_statistics_of_its_data_and_a_warm_up(folder: Path, right: bool) -> None:
    text = changed(*CLASSES)
    done = checked(folder, text if right else text.replace("loss / args.accumulate", "loss"), ACCUM, BATCH)
    assert done.code == (0 if right else 1), done.out + done.err
    assert len(done.out.splitlines()) <= (12 if right else 25)
    assert ("constants of both runs, and no samples" in done.out) or not right
