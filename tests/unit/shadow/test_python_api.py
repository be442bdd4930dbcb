"""gradproof from Python and in a notebook: check, watch, and the one object that both give."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import step_bench
import torch

import gradproof
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.extras.selftest import LOOP, RIGHT, WRONG
from gradproof.report.formats.page import Checked
from gradproof.shadow.locations import Location
from gradproof.shadow.result import OBLIGATIONS, Result
from gradproof.testing import judge

CELL = """
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, targets = torch.randn(24, 8), torch.randn(24, 1)
with gradproof.watch(accum_steps=4) as seen:
    for i in range(12):
        loss = torch.nn.functional.mse_loss(model(data[2 * i : 2 * i + 2]), targets[2 * i : 2 * i + 2])
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def train(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    return names["train"]


def run(cell: str, name: str = "<ipython-input-1-0123456789ab>") -> Checked:
    """What the cell of a notebook leaves in `seen`."""
    names: dict[str, Any] = {"torch": torch, "gradproof": gradproof}
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    exec(compile(cell, name, "exec"), names)
    seen: Checked = names["seen"]
    return seen


def test_check_gives_one_object_for_prompt_page_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = gradproof.check(train(LOOP), accum_steps=4)
    assert repr(found) == "<REFUTED: train, 2 of 6 obligations hold>"
    page = found._repr_html_()
    assert page.startswith('<div class="gradproof">')
    assert page.count('<rect class="wrong"') == 16
    first = {"window": 0, "sample": 0, "weight": "1/2", "expected": "1/8", "ok": False, "parameter": "bias"}
    assert found.weights[0] == first
    assert [row["sample"] for row in found.weights] == list(range(16))
    capsys.readouterr()
    found.explain()
    assert "GA-EQ-001, the gradient of the full batch: REFUTED" in capsys.readouterr().out
    right = gradproof.check(train(LOOP.replace(WRONG, RIGHT)), accum_steps=4)
    assert repr(right) == "<HOLDS: train, every obligation that was judged holds (6 of 7)>"
    assert '<rect class="wrong"' not in right._repr_html_()
    assert {(row["weight"], row["ok"]) for row in right.weights} == {("1/8", True)}


def test_watch_sees_a_cell_of_a_notebook() -> None:
    seen = run(CELL)
    equal = seen.result("GA-EQ-001")
    assert (seen.outcome, equal.outcome) == (Outcome.REFUTED, Outcome.REFUTED)
    assert equal.location is not None
    assert (equal.location.file, equal.location.line) == ("<ipython-input-1-0123456789ab>", 8)
    assert "loss.backward()" in seen._repr_html_()
    assert seen._repr_html_().count('<rect class="wrong"') == 24
    assert {(row["weight"], row["expected"], row["ok"]) for row in seen.weights} == {("1/2", "1/8", False)}
    assert [(row["window"], row["sample"]) for row in seen.weights] == [(i // 8, i) for i in range(24)]
    right = run(CELL.replace("loss.backward()", "(loss / 4).backward()"))
    assert right.result("GA-EQ-001").outcome is Outcome.HOLDS
    assert right.outcome is not Outcome.REFUTED
    assert {(row["weight"], row["ok"]) for row in right.weights} == {("1/8", True)}
    uneven = run(CELL.replace("loss.backward()", "(loss if i % 4 == 3 else loss / 4).backward()"))
    assert [row["weight"] for row in uneven.weights[:8]] == ["1/8"] * 6 + ["1/2"] * 2


def test_what_a_cell_raises_is_raised_and_what_was_seen_is_kept() -> None:
    with pytest.raises(ZeroDivisionError), gradproof.watch() as seen:
        _ = 1 / 0
    assert {r.obligation for r in seen.results} >= {"GA-EQ-001", "GA-INV-003"}
    assert not [r for r in seen.results if r.outcome is Outcome.HOLDS]
    assert seen.code != 0


@pytest.mark.parametrize("wrong", [{"accum_steps": 0}, {"windows": 0}, {"epoch_batches": 0}, {"windows_at": "x"}])
def test_numbers_of_watch_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GradproofError, match="GP406"), gradproof.watch(**wrong):
        raise AssertionError("it runs")


def test_what_may_stay_undecided_is_asked_before_anything_runs() -> None:
    with pytest.raises(GradproofError, match="GP406"), gradproof.watch(allow_undecided=["GA-X-001"]):
        raise AssertionError("it runs")
    with gradproof.watch(allow_undecided=list(OBLIGATIONS)) as seen:
        pass
    assert seen.allow_undecided == list(OBLIGATIONS)


def test_the_assertion_has_the_short_text_in_25_lines() -> None:
    found = step_bench.held()
    found.results = [
        Result(name, (Outcome.UNKNOWN, Outcome.REFUTED)[i % 2], "why " * 90, Location(__file__, 1), "help " * 40)
        for i, name in enumerate(OBLIGATIONS)
    ]  # fmt: skip
    found.uncovered = ["what was not judged " * 9] * 9
    with pytest.raises(AssertionError, match="GA-EQ-001 REFUTED") as caught:
        judge(found)
    assert 10 < len(str(caught.value).splitlines()) <= 25
    assert "help: help" in str(caught.value)


def test_gradproof_is_imported_in_no_time_and_is_typed() -> None:
    heavy = "import sys, gradproof; assert not {'torch', 'numpy', 'pydantic'} & sys.modules.keys(); gradproof.watch"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        _ = gradproof.chek  # type: ignore[attr-defined]
    assert (Path(gradproof.__file__).parent / "py.typed").exists()
