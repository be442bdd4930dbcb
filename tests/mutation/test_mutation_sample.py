"""Sixty mutants, drawn anew by each commit from the files that reports/mutation.json lists: none survives unlisted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNT = 60


def test_a_sample_of_mutants_leaves_no_survivor_that_is_not_listed(pytestconfig: pytest.Config) -> None:
    seed = str(pytestconfig.getoption("sample") or "0")
    words = ["--sample", str(COUNT), "--seed", seed, "--known"]
    command = [sys.executable, "-m", "tests.mutation", *words]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, f"again with: python -m tests.mutation {' '.join(words)}\n{done.stdout}{done.stderr}"
    assert f"{COUNT} mutants in" in done.stdout
