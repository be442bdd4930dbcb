"""Steps as tests: a test that takes `gradproof_run` is verified, in a user's own pytest; and what the plugin costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench_speed import STRANGER

ROOT = Path(__file__).resolve().parents[3]
STEPS = """\
import pytest
import torch


@pytest.fixture
def rate(tmp_path):
    return 0.1


def loop(run, rate, divide=True):
    torch.manual_seed(run.seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    data = torch.randn(run.samples, 4), torch.randn(run.samples, 1)
    for i, (x, y) in enumerate(zip(*(part.split(run.micro_batch_size) for part in data))):
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss / run.accum_steps if divide else loss).backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.gradproof(micro_batch=3, accum_steps=2)
def test_green(gradproof_run, rate):
    assert (gradproof_run.micro_batch_size % 3, rate) == (0, 0.1)
    loop(gradproof_run, rate)


class TestClass:
    def test_red(self, gradproof_run, rate):
        loop(gradproof_run, rate, divide=False)


@pytest.mark.gradproof
def test_undecided(gradproof_run):
    pass


def test_raising(gradproof_run):
    raise RuntimeError("the step is broken")
"""


def run(folder: Path, *options: str, text: str = STEPS) -> tuple[int, str]:
    """A user's pytest: exit code and output."""
    (folder / "test_steps.py").write_text(text, encoding="utf-8")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-W", "error", *options],
        cwd=folder, env={**environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def section(out: str, name: str) -> list[str]:
    """The lines of a failing test, below its headline."""
    [found] = re.findall(rf"^_+ {re.escape(name)} _+\n+(.*?)\n(?=_{{5,}}|={{5,}})", out, re.DOTALL | re.MULTILINE)
    lines: list[str] = found.splitlines()
    return lines


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of all of them."""
    code, out = run(tmp_path_factory.mktemp("suite"))
    assert code == 1, out
    return out


def test_a_step_that_accumulates_passes_with_its_own_fixtures(said: str) -> None:
    assert "3 failed, 1 passed" in said


def test_a_wrong_step_shows_what_check_says_and_nothing_else(said: str) -> None:
    lines = section(said, "TestClass.test_red[accum=4]")
    text = "\n".join(lines)
    assert lines[0].startswith("E   AssertionError: not every obligation holds: ")
    assert "REFUTED test_red[accum=4]" in text
    assert "GA-EQ-001, the gradient of the full batch" in text
    assert re.search(r"test_steps.py:\d+ in loop", text)
    assert "help: divide each loss" in text
    assert len(lines) <= 26  # of check 25, and one of pytest's about the traceback
    assert "pytest_plugin.py" not in said
    assert "testing.py" not in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [("test_undecided", "the function never reads accum_steps"), ("test_raising", "RuntimeError: the step is broken")],
)
def test_a_step_that_is_not_decided_fails_with_its_reason(said: str, name: str, reason: str) -> None:
    lines = section(said, f"{name}[accum=4]")
    assert reason in "\n".join(lines)
    assert len(lines) <= 26


def test_the_numbers_of_the_command_line_come_before_the_mark(tmp_path: Path) -> None:
    code, out = run(tmp_path, "-q", "--collect-only")
    assert (code, re.findall(r"\[accum=(\d+)\]", out)) == (0, ["2", "4", "4", "4"])
    code, out = run(tmp_path, "--gradproof-accum", "2,two")
    assert (code, "--gradproof-accum" in out) == (4, True)
    text = "import pytest\n@pytest.mark.gradproof(accum_steps=7)\ndef test_n(gradproof_run):\n"
    text += "    raise RuntimeError(f'N is {gradproof_run.accum_steps}')\n"
    code, out = run(tmp_path, "--gradproof-accum", "2,3", "--gradproof-accum=5", text=text)
    assert re.findall(r"ended with RuntimeError: N is (\d+)", out) == ["2", "3", "5"]
    assert re.findall(r"FAILED test_steps.py::test_n\[accum=(\d+)\]", out) == ["2", "3", "5"]


METHOD = """\
import unittest
import pytest

class TestOld(unittest.TestCase):
    @pytest.mark.gradproof
    def test_step(self):
        pass
"""
THROUGH = """\
import pytest

@pytest.fixture
def mine(gradproof_run):
    return 1

@pytest.mark.gradproof
def test_step(mine):
    pass
"""


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n@pytest.mark.gradproof\ndef test_step():\n    pass\n", METHOD, THROUGH,
        THROUGH.replace("@pytest.mark.gradproof\n", ""),
        "import pytest\n@pytest.mark.usefixtures('gradproof_run')\ndef test_step():\n    pass\n",
    ],
    ids=["function", "unittest", "fixture", "fixture without a mark", "usefixtures"],
)  # fmt: skip
def test_a_mark_without_the_argument_is_an_error_and_not_a_test_that_passes(tmp_path: Path, text: str) -> None:
    code, out = run(tmp_path, text=text)
    assert code == 4
    assert " is marked gradproof, or uses gradproof_run, and has no argument gradproof_run" in out


def test_a_step_may_skip_itself_and_one_with_a_model_that_stays_trained_is_not_decided(tmp_path: Path) -> None:
    text = f"""{STEPS.partition("@pytest.mark.gradproof")[0]}

@pytest.fixture
def model():
    return torch.nn.Linear(4, 1)


def test_skipping(gradproof_run):
    pytest.skip("no device")


def test_stays(gradproof_run, model):
    torch.manual_seed(gradproof_run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(torch.randn(gradproof_run.samples, 4).split(gradproof_run.micro_batch_size)):
        (model(x).square().mean() / gradproof_run.accum_steps).backward()
        if (i + 1) % gradproof_run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    code, out = run(tmp_path, text=text)
    assert (code, "1 failed, 1 skipped" in out) == (1, True), out
    assert "NOT DECIDED" in out


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    code, out = run(tmp_path, text="import sys\nsys.modules['torch'] = None\ndef test_step(gradproof_run):\n    pass\n")
    assert code == 1
    assert "GP409" in out
    assert "python -m pip install 'torch>=" in out
    assert len(section(out, "test_step[accum=4]")) <= 6


def test_the_mark_is_listed(tmp_path: Path) -> None:
    assert "@pytest.mark.gradproof(accum_steps=4" in run(tmp_path, "--markers")[1]
    assert "gradproof_run" in run(tmp_path, "--fixtures")[1]


def test_a_strangers_suite_pays_for_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """What is imported when pytest ends a suite of somebody who has the plugin installed."""
    heavy = ("torch", "z3", "numpy", "pydantic", "click", "rich", "gradproof.session", "gradproof.core")
    text = "import atexit, sys\natexit.register(lambda: print('LOADED', *sorted(sys.modules)))\n"
    code, out = run(tmp_path, "-p", "no:hypothesispytest", text=text + STRANGER)
    assert code == 0, out
    loaded = out.partition("LOADED ")[2].split()
    assert "gradproof.pytest_plugin" in loaded
    assert [name for name in loaded if name.startswith(heavy)] == []
    assert [name for name in loaded if name.startswith("gradproof")] == ["gradproof", "gradproof.pytest_plugin"]


WRONG_MARKS = """\
import pytest


@pytest.mark.gradproof(acum_steps=2)
def test_misspelt(gradproof_run):
    pass


@pytest.mark.gradproof(4)
def test_without_a_name(gradproof_run):
    pass
"""


def test_a_mark_with_an_argument_that_is_none_is_named(tmp_path: Path) -> None:
    code, out = run(tmp_path, "-rf", text=WRONG_MARKS)
    assert code == 1
    for wrong in ("acum_steps", "4"):
        assert f": the mark gradproof has no argument {wrong}; it takes, by name, accum_steps, micro" in out
    assert "TypeError" not in out
