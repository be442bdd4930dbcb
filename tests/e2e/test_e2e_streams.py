"""Standard output as users have it: an ASCII locale, a path with a byte that is no UTF-8, a reader that leaves."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from e2e_kit import command, environ

pytestmark = pytest.mark.slow

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
RAISES = 'def train(run):\n    raise ValueError("né \\U0001f600 → no")\n'
RIGHT = """
import torch
def train(run):
    torch.manual_seed(run.seed)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(run.samples, 2).split(run.micro_batch_size)
    losses = []
    for first in range(0, len(inputs), run.accum_steps):
        losses.append(torch.zeros(()))
        for x in inputs[first : first + run.accum_steps]:
            loss = model(x).square().mean() / run.accum_steps
            loss.backward()
            losses[-1] += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    return losses
"""
COMMANDS = ("list", "list --format json", "gate", "report", "doctor --quick", "config --json", "explain GA-EQ-001")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name has a byte that is no UTF-8, with a loop that raises."""
    monkeypatch.delenv("CI", raising=False)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "raises.py").write_text(RAISES, encoding="utf-8")
    return folder


def ran(folder: Path, *args: str, **variables: str) -> tuple[int, bytes]:
    """Exit code and everything that was printed."""
    done = subprocess.run(
        command(*args), cwd=folder, env={**environ(), **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("text", COMMANDS)
def test_no_command_fails_for_what_the_locale_lacks(odd: Path, tmp_path: Path, text: str) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    code, printed = ran(odd, *text.split(), **ASCII)
    assert b"UnicodeEncodeError" not in printed
    assert code == ran(plain, *text.split())[0]


@pytest.mark.parametrize("variables", [ASCII, {"LC_ALL": "C.UTF-8"}], ids=["ASCII", "UTF-8"])
def test_what_check_prints_is_json_in_every_locale(odd: Path, variables: dict[str, str]) -> None:
    code, printed = ran(odd, "check", str(odd / "raises.py") + ":train", "--format", "json", **variables)
    data = json.loads(printed[printed.index(b"{\n") :])
    assert code == 3
    assert "né \U0001f600 → no" in json.dumps(data, ensure_ascii=False)
    assert "UnicodeEncodeError" not in json.dumps(data)


def test_a_right_loop_holds_where_the_path_is_no_utf8(odd: Path) -> None:
    (odd / "right.py").write_text(RIGHT, encoding="utf-8")
    code, printed = ran(odd, "check", "right.py:train", **ASCII)
    assert code == 0, printed.decode("ascii", "replace")


@pytest.mark.parametrize("words", ["check raises.py:train", "check raises.py:none", "doctor --quick"])
def test_a_reader_that_leaves_changes_no_exit_code(odd: Path, words: str) -> None:
    text = f"{' '.join(command(*words.split()))} 2>&1 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], cwd=odd, env=environ(), timeout=600, check=False)
    assert done.returncode == ran(odd, *words.split())[0]
