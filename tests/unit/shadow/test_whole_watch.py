"""`watch` on an unchanged script of a GPT: one run decides, right and with the bugs of the field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "watched_gpt.py"
IDIOMS = Path(__file__).parents[1] / "watched_idioms.py"
BY_VALUES = ("GA-DATA-001", "GA-EQ-001", "GA-INV-002", "GA-INV-004", "GA-INV-005")
BUGS = {
    "share": ("GA-EQ-001", "scaler.scale(loss).backward()"),
    "twice": ("GA-EQ-001", "scaler.scale(loss).backward()"),
    "tail": ("GA-EQ-001", "scaler.scale(loss).backward()"),
    "clip": ("GA-INV-005", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
    "narrow": ("GA-INV-004", "buffer += p.grad"),
    "stale": ("GA-INV-002", "scaler.step(optimizer)"),
}


def watched(bug: str, folder: Path, *script: str) -> dict[str, Any]:
    """The results of the script by obligation, as the command line gives them."""
    command = [sys.executable, "-P", "-m", "gradproof", "watch", "--format", "json"]
    made = subprocess.run(
        [*command, "--", "python", *(script or (str(SCRIPT),))], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "BUG": bug}, check=False,
    )  # fmt: skip
    found = json.loads(made.stdout[made.stdout.index("{") :])
    return {result["obligation"]: result for result in found["results"]}


@pytest.mark.parametrize("bug", ["", "scaler", "autocast"])
def test_a_right_script_holds(bug: str, tmp_path: Path) -> None:
    found = watched(bug, tmp_path)
    assert {name: found[name]["outcome"] for name in BY_VALUES} == dict.fromkeys(BY_VALUES, "HOLDS")


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_refuted_at_its_line(bug: str, tmp_path: Path) -> None:
    obligation, line = BUGS[bug]
    found = watched(bug, tmp_path)[obligation]
    assert found["outcome"] == "REFUTED"
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert line in lines[found["location"]["line"] - 1]


@pytest.mark.parametrize("name", ["rows", "policy"])
def test_a_loss_of_the_script_itself_is_decided(name: str, tmp_path: Path) -> None:
    found = watched("", tmp_path, str(IDIOMS), name)
    assert {one: found[one]["outcome"] for one in BY_VALUES} == dict.fromkeys(BY_VALUES, "HOLDS")
    wrong = watched("", tmp_path, str(IDIOMS), name, "wrong")["GA-EQ-001"]
    assert (wrong["outcome"], wrong["counterexample"]["total_weight"]) == ("REFUTED", "4")
    assert ".backward()" in IDIOMS.read_text(encoding="utf-8").splitlines()[wrong["location"]["line"] - 1]


@pytest.mark.parametrize(
    ("how", "holds"), [("loader", False), ("list", False), ("slices", False), ("counts", False), ("ones", False)]
)
def test_masks_that_are_full_in_the_recorded_windows_are_data(how: str, holds: bool, tmp_path: Path) -> None:
    found = watched("", tmp_path, str(IDIOMS.with_name("watched_masks.py")), how)["GA-EQ-001"]
    assert (found["outcome"] == "HOLDS") is holds, found
    assert holds or found["outcome"] == "UNKNOWN"


@pytest.mark.parametrize(("how", "holds"), [("place", False), ("the same", True), ("one batch", True), ("again", True)])
def test_numbers_by_the_place_in_a_micro_batch_are_no_data(how: str, holds: bool, tmp_path: Path) -> None:
    found = watched("", tmp_path, str(IDIOMS.with_name("watched_places.py")), how)["GA-EQ-001"]
    assert found["outcome"] == ("HOLDS" if holds else "UNKNOWN"), found


@pytest.mark.parametrize("dropped", [False, True])
def test_data_from_which_nothing_with_a_gradient_is_made_are_no_samples(dropped: bool, tmp_path: Path) -> None:
    script = str(IDIOMS.with_name("watched_starts.py"))
    found = watched("", tmp_path, script, *["dropped"] * dropped)["GA-DATA-001"]
    assert found["outcome"] == ("UNKNOWN" if dropped else "HOLDS"), found
    assert not dropped or "is in no gradient" in found["reason"]


@pytest.mark.parametrize(
    ("how", "obligation"),
    [
        ("norm", "GA-EQ-001"),
        ("selected", "GA-EQ-001"),
        ("array", "GA-EQ-001"),
        ("counts", "GA-EQ-001"),
        ("dropped", "GA-DATA-001"),
    ],
)
def test_what_readers_found_is_not_proved(how: str, obligation: str, tmp_path: Path) -> None:
    found = watched("", tmp_path, str(IDIOMS.with_name("watched_finds.py")), how)[obligation]
    assert found["outcome"] in ("UNKNOWN", "OUTSIDE", "OPAQUE"), found
    assert "ended with" not in found["reason"]
