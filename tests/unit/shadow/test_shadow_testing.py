"""assert_accumulates and the pytest fixture, with the engine that answers what a test asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import step_bench

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.testing import assert_accumulates, check, judge

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ("-p", "no:cacheprovider")
USERS = """
import step_bench
step_bench.fake()


def test_good(gradproof):
    assert gradproof.assert_accumulates(lambda run: None, accum_steps=3).config["accum_steps"] == 3


def test_answer(gradproof):
    assert gradproof.check(lambda run: "refuted").code == 1


def test_bad(gradproof):
    gradproof.assert_accumulates(lambda run: "refuted")
"""


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine in place of the real one."""
    for name in (step_bench.WHOLE, step_bench.WATCH):
        monkeypatch.setitem(sys.modules, name, None)
    step_bench.fake()


def says(word: str) -> Callable[[Any], str]:
    return lambda run: word


def test_what_holds_is_returned() -> None:
    found = assert_accumulates(says("fine"), accum_steps=3, micro_batch=5, windows=1)
    assert (found.config["accum_steps"], found.config["windows"]) == (3, 1)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.HOLDS])
def test_every_other_outcome_is_an_assertion(outcome: Outcome) -> None:
    with pytest.raises(AssertionError, match=f"GA-EQ-001 {outcome}"):
        assert_accumulates(says(str(outcome)))


def test_a_refutation_is_told_in_full() -> None:
    with pytest.raises(AssertionError, match=step_bench.REASON) as caught:
        assert_accumulates(says("refuted"))
    for words in ("help: divide the loss", "step_bench.py:1", "GA-EQ-001, the gradient of the full batch"):
        assert words in str(caught.value)
    assert "--verbose" not in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 25


def test_what_is_missing_is_said() -> None:
    with pytest.raises(AssertionError, match="GA-INV-005 NOT_RUN"):
        assert_accumulates(says("silent"))
    from gradproof.shadow.result import Verification

    with pytest.raises(AssertionError, match="none was judged"):
        judge(Verification("a", {}))


def test_what_is_undecided_can_be_allowed_and_nothing_else() -> None:
    assert assert_accumulates(says("OPAQUE"), allow_undecided=["GA-EQ-001"]).allow_undecided == ["GA-EQ-001"]
    for outcome, names in (("OPAQUE", ["GA-INV-002"]), ("REFUTED", ["GA-EQ-001"]), ("ERROR", ["GA-EQ-001"])):
        with pytest.raises(AssertionError, match=f"GA-EQ-001 {outcome}"):
            assert_accumulates(says(outcome), allow_undecided=names)
    with pytest.raises(GradproofError, match="allow-undecided"):
        assert_accumulates(says("fine"), allow_undecided=["GA-EQ-1"])


def test_the_optimizer_is_passed_on() -> None:
    with pytest.raises(AssertionError):
        assert_accumulates(lambda run: "refuted" if run.optimizer == "adam" else "", optimizer="adam")


@pytest.mark.parametrize(
    "options", [{"accum_steps": 0}, {"accum_steps": True}, {"dtype": "int8"}, {"ranges": ("data=1",)}]
)
def test_numbers_out_of_range_are_mistakes(options: dict[str, Any]) -> None:
    with pytest.raises(GradproofError, match="GP406"):
        check(says("HOLDS"), **options)


def test_a_function_without_an_argument_is_a_mistake() -> None:
    with pytest.raises(GradproofError, match="GP405"):
        check(lambda: None)  # type: ignore[arg-type]


def users(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A user's own pytest run, with the plugin."""
    (folder / "test_mine.py").write_text(USERS)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/unit")])
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-W", "error", *options]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_the_fixture_in_a_users_suite(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = users(tmp_path, *options)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert step_bench.REASON in done.stdout
    assert not re.search(r"^\S*(testing|pytest_plugin).py:\d+", done.stdout, re.MULTILINE)  # no frame of its own


def test_the_fixture_is_listed(tmp_path: Path) -> None:
    assert "gradproof" in users(tmp_path, "--fixtures").stdout


def test_the_plugin_loads_nothing_heavy() -> None:
    program = (
        "import pytest, sys; was = set(sys.modules); import gradproof.pytest_plugin; print(set(sys.modules) - was)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert eval(done.stdout) == {"gradproof", "gradproof.pytest_plugin"}


def test_the_assertion_loads_no_torch_before_it_is_used() -> None:
    program = "import sys; import gradproof.testing; print(sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "z3", "numpy", "rich"} & set(eval(done.stdout))
