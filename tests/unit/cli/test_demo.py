"""`gradproof demo`: red, then green, with the loop of README.md, and without a file that stays."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from gradproof import cli
from gradproof.cli import check
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.extras import selftest as demo

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_loop_is_that_of_the_readme_and_ten_lines_long() -> None:
    assert f"```python\n{demo.LOOP}```" in README
    assert demo.RIGHT.strip() in README
    [body] = re.findall(r"def train\(run\):\n(.*)", demo.LOOP, re.DOTALL)
    assert len(body.splitlines()) == 10
    assert demo.LOOP.count(demo.WRONG) == 1


def test_red_then_green_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The text of check stands in it, as README shows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun = sum(os.times()[:4])
    assert cli.dispatch(["demo"]) == 0
    assert sum(os.times()[:4]) - begun < 20  # seconds of CPU time, with those of the children
    out = capfd.readouterr().out
    shown = re.findall(r"^```\n\$ gradproof check train\.py:train\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for line in [line for block in shown for line in block.splitlines()]:
        assert " ".join(line.removesuffix("...").split()) in " ".join(out.split()), line
    assert shown
    red, fix, green = out.index("REFUTED train.py:train"), out.index(f"\n-{demo.WRONG}+"), out.index("HOLDS train.py")
    assert red < fix < green
    assert out.endswith("\nnow yours: gradproof check FILE.py:FUNCTION\n")
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.dispatch(["demo"]) == EXIT_CODE[Exit.USAGE]
    err = capsys.readouterr().err
    assert "GP409" in err
    assert "pip install torch" in err


def test_another_verdict_than_red_and_green_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "_shown", lambda text: EXIT_CODE[Exit.MET])
    assert cli.dispatch(["demo"]) == EXIT_CODE[Exit.CRASH]
    out, err = capsys.readouterr()
    assert "now yours" not in out
    assert "got [0, 0]" in err
