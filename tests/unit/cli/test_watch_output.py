"""What `gradproof watch` says beside its verdict: a script that failed, warnings, and files that it prints to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(16):
    loss = torch.nn.functional.mse_loss(model(torch.randn(2, 8)), torch.randn(2, 1)) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SCALED = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
scaler.scale(model(torch.randn(2, 8)).sum()).backward()
scaler.unscale_(optimizer)
scaler.unscale_(optimizer)
"""


def ran(*words: str, **files: str) -> subprocess.CompletedProcess[str]:
    """What a command printed, here; `files`: the text of Python files."""
    for name, text in files.items():
        Path(f"{name}.py").write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, timeout=300)


WATCH = ("-m", "gradproof", "watch", "--", "python")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("files", "at"),
    [
        ({"train": SCALED}, "train.py:8: RuntimeError: unscale_() has already been called"),
        ({"train": "import helper\n", "helper": "\nimport no_such_package\n"}, "helper.py:2: ModuleNotFoundError: No "),
        ({"train": "x = (\n"}, "train.py:1: SyntaxError: '(' was never closed"),
    ],
)
def test_a_script_that_fails_is_named_with_its_line_and_its_own_traceback(files: dict[str, str], at: str) -> None:
    seen, alone = ran(*WATCH, "train.py", **files), ran("train.py")
    traceback, _, said = seen.stderr.partition("ERROR train.py")
    assert traceback.replace('"train.py"', f'"{Path.cwd()}/train.py"') == alone.stderr
    assert said.startswith(f": the script failed at {at}")
    assert "N = " not in said
    assert "exit code 3; " in said
    assert said.endswith("train.py ended with exit code 1; gradproof ends with 3\n")
    assert seen.returncode == 3


def test_an_exit_code_is_a_failure_whatever_the_windows_say() -> None:
    """And none where a script ends with 0. A failure is in the machine's form as well."""
    text = f"{LOOP}\nimport os, sys\nsys.stdout.flush()\n"
    made = [ran(*WATCH[:3], "--format", "json", *WATCH[3:], "t.py", t=text + end) for end in ("sys.exit(7)", "exit(0)")]
    failed, right = (json.loads(one.stdout) for one in made)
    assert (made[0].returncode, failed["outcome"], failed["code"]) == (3, "ERROR", 3)
    assert failed["config"]["failed"] == "at t.py:15: SystemExit: 7"
    assert [one["outcome"] for one in failed["results"]] == [one["outcome"] for one in right["results"]]
    assert "failed" not in right["config"]
    refuted = ran(*WATCH, "t.py", t=LOOP.replace("        optimizer.zero_grad()\n", "") + "\nraise SystemExit(7)")
    assert refuted.returncode == 1
    assert "REFUTED t.py: the script failed at t.py:12: SystemExit: 7" in refuted.stderr


WARNS = f"""{LOOP}
import warnings
schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)
schedule.step()
def own():
    warnings.warn("mine", stacklevel=2)
own()
compiled = torch.compile(model, backend="eager")
"""


def test_warnings_are_those_of_the_script_at_its_own_lines() -> None:
    """The schedule's warning points two frames up, where gradproof is; that of torch.compile has gradproof's cause."""
    seen, alone = ran(*WATCH, "train.py", train=WARNS), ran("train.py")
    assert alone.stderr.count("UserWarning") == 2
    said = alone.stderr.replace(f"{Path.cwd()}/", "")
    lines = [line for line in seen.stderr.splitlines() if line in said.splitlines()]
    assert "\n".join(lines) + "\n" == said
    assert seen.stderr.count("UserWarning") == 2


@pytest.mark.parametrize(("to", "named"), [("> log.txt 2>&1", False), ("2>&1 | tee log.txt", True)])
def test_what_gradproof_prints_to_is_no_change_by_another_program(to: str, named: bool) -> None:
    Path("train.py").write_text(LOOP, encoding="utf-8")
    command = f"{sys.executable} -m gradproof watch --stop-after 2 -- python train.py {to}"
    subprocess.run(["bash", "-c", command], check=True, capture_output=True, timeout=300)
    said = Path("log.txt").read_text(encoding="utf-8")
    assert "stopped after window 2" in said
    assert ("not put back" in said) is named
