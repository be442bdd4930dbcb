"""GitHub's problem matcher over what `gradproof check` really prints: red, green, and not decided."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from house_rules import REPOSITORY

from gradproof.core.outcome import Outcome

MATCHER = REPOSITORY / ".github/gradproof-matcher.json"
LOOP = """import torch


def train(run):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(run.samples, 8), torch.randn(run.samples, 1)
    for i, (x, y) in enumerate(zip(*(part.split(run.micro_batch_size) for part in data))):
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss / run.accum_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) if (i + 1) % run.accum_steps == 0 else None
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG = LOOP.replace("(loss / run.accum_steps)", "loss").replace(" if (i + 1) % run.accum_steps == 0 else None", "")
OPEN = LOOP.replace("torch.nn.Linear(8, 1)", "torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))")


def matchers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(MATCHER.read_text(encoding="utf-8"))["problemMatcher"]
    return found


def matched(lines: list[str]) -> Iterator[tuple[str, str, int, str, str]]:
    """Severity, file, line, code and message of each problem, as GitHub's runner finds them.

    The patterns of a matcher are for lines that follow each other.
    """
    for matcher in matchers():
        patterns = matcher["pattern"]
        for start in range(len(lines) - len(patterns) + 1):
            found: dict[str, str] = {}
            for pattern, line in zip(patterns, lines[start:], strict=False):
                match = re.search(pattern["regexp"], line)
                if match is None:
                    break
                found |= {key: match[group] for key, group in pattern.items() if key != "regexp"}
            else:
                yield matcher["severity"], found["file"], int(found["line"]), found["code"], found["message"]


def problems(folder: Path, text: str, *options: str) -> tuple[int, list[tuple[str, str, int, str, str]]]:
    """The exit code of `gradproof check`, and the problems that its output makes."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "gradproof", "check", *options, "train.py:train"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "CI": "true"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, list(matched(done.stdout.splitlines()))


def at(found: Iterable[tuple[str, str, int, str, str]]) -> set[tuple[str, str, int, str]]:
    return {row[:4] for row in found}


def test_the_file_is_what_github_reads() -> None:
    """Owners differ; each pattern is a regular expression; the last one has what the others lack of an annotation."""
    owners = [m["owner"] for m in matchers()]
    assert len(set(owners)) == len(owners) == 5
    for matcher in matchers():
        assert matcher["severity"] in ("error", "warning")
        keys = {key for pattern in matcher["pattern"] for key in pattern}
        assert keys == {"regexp", "file", "line", "code", "message"}
        assert "message" in matcher["pattern"][-1]
        assert all(re.compile(p["regexp"]).groups >= len(p) - 1 for p in matcher["pattern"])


def test_every_outcome_but_holds_is_an_error_or_a_warning() -> None:
    for outcome in Outcome:
        found = list(matched([f"train.py:3: {outcome} GA-EQ-001, the gradient of the full batch: why"]))
        assert len(found) == (outcome is not Outcome.HOLDS), outcome


def test_a_green_check_makes_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, LOOP) == (0, [])
    assert problems(tmp_path, LOOP, "--quiet") == (0, [])


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_red_check_makes_an_error_for_each_line_that_is_wrong(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, found = problems(tmp_path, WRONG, *options)
    assert code == 1
    errors = {row for row in at(found) if row[0] == "error"}
    assert errors == {("error", "train.py", 11, "GA-EQ-001"), ("error", "train.py", 11, "GA-INV-005")}
    assert all(message for *_, message in found)


def test_what_is_not_decided_is_a_warning(tmp_path: Path) -> None:
    code, found = problems(tmp_path, OPEN, "--quiet")
    assert code == 4
    assert {row[0] for row in found} == {"warning"}
    assert "GA-EQ-001" in {row[3] for row in found}
    code, found = problems(tmp_path, OPEN)
    assert code == 4
    assert {row[0] for row in found} == {"warning"}
