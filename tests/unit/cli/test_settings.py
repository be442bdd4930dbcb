"""`[tool.gradproof]`: precedence, demands and waivers through the commands, and mistakes with their places."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gradproof.cli import dispatch
from gradproof.contract.settings import line_of, load
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import Workspace

TODAY = datetime.now(UTC).date()
WAIVER = """
[[tool.gradproof.waivers]]
obligation = "T-1"
layer = "cuda"
owner = "ann"
reason = "no GPU here"
expires = {day}
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROFILE", "JOBS", "TIME_LIMIT", "BASELINE"):
        monkeypatch.delenv(f"GRADPROOF_{name}", raising=False)


def write(toy: Workspace, text: str) -> None:
    (toy.root / "pyproject.toml").write_text(text, encoding="utf-8")


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    capsys.readouterr()
    assert dispatch(["config", "--json", *args]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}


def test_command_line_before_environment_before_file_before_default(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys)["profile"] == {"name": "profile", "value": "ci", "source": "default"}
    write(toy, '[tool.gradproof]\njobs = 3\nprofile = "release"\ntime-limit = 7\n')
    rows = shown(capsys)
    assert (rows["jobs"]["value"], rows["profile"]["value"], rows["time_limit"]["value"]) == (3, "release", 7.0)
    assert rows["profile"]["source"].endswith("pyproject.toml:3")
    monkeypatch.setenv("GRADPROOF_JOBS", "4")
    assert shown(capsys)["jobs"] == {"name": "jobs", "value": 4, "source": "environment GRADPROOF_JOBS"}
    assert shown(capsys, "--jobs", "5")["jobs"] == {"name": "jobs", "value": 5, "source": "command line"}


def test_the_profile_of_the_file_is_judged(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["verify", "-q"]) == 0
    write(toy, '[tool.gradproof]\nprofile = "release"\n')
    assert dispatch(["gate"]) == EXIT_CODE[Exit.OPEN]
    assert "profile release" in capsys.readouterr().out
    assert dispatch(["gate", "--profile", "ci"]) == 0


def test_a_waiver_opens_the_gate_until_its_day_and_is_told(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["verify", "-q"])
    write(toy, '[tool.gradproof]\nprofile = "release"\n' + WAIVER.format(day=TODAY))
    capsys.readouterr()
    assert dispatch(["gate"]) == 0
    assert f"in force: T-1 x cuda, ann, until {TODAY}: " in capsys.readouterr().out
    for name in ("json", "md", "html", "text", "junit", "sarif"):
        capsys.readouterr()
        assert dispatch(["report", "--format", name]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("no GPU here" in out) or name in ("junit", "sarif")
        if name == "junit":
            assert "waived: NOT_RUN" in out
            assert "<error" not in out
        if name == "sarif":
            assert json.loads(out)["runs"][0]["results"] == []
    write(toy, '[tool.gradproof]\nprofile = "release"\n' + WAIVER.format(day=TODAY - timedelta(days=1)))
    assert dispatch(["gate"]) == EXIT_CODE[Exit.OPEN]
    assert f"ann expired on {TODAY - timedelta(days=1)}" in capsys.readouterr().out


def test_demands_of_the_file_and_of_the_gate(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["verify", "-q"])
    write(toy, "[tool.gradproof.require.T-1]\nbounds = {micro_batches = 100}\n")
    assert dispatch(["gate"]) == EXIT_CODE[Exit.OPEN]
    assert "100 is asked for" in capsys.readouterr().out
    write(toy, "")
    path = toy.contracts()[0]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("  seeded_bug: bug", "  seeded_bug: bug\n  least: {T-1: {reach: {cpu: all inputs}}}"))
    dispatch(["verify", "-q"])
    capsys.readouterr()
    assert dispatch(["gate"]) == EXIT_CODE[Exit.OPEN]
    assert re.search(r"\bT-1 x cpu: .* sampled, .* all inputs", capsys.readouterr().out)
    assert shown(capsys)["require T-1"]["value"] == "reach cpu: all inputs"


MISTAKES = {
    "[tool.gradproof\n": ("GP490", 1),
    "a = 1\n[tool.gradproof]\njobs = = 2\n": ("GP490", 3),
    "tool = 3\n[x]\n": None,
    "[tool]\ngradproof = 3\n": ("GP491", 1),
    "[tool.gradproof]\njob = 2\n": ("GP491", 2),
    "[tool.gradproof]\n\njobs = 0\n": ("GP491", 3),
    "[tool.gradproof]\njobs = true\n": ("GP491", 2),
    '[tool.gradproof]\nprofile = "nightly"\n': ("GP491", 2),
    "[tool.gradproof]\ntime-limit = -1\n": ("GP491", 2),
    "[tool.gradproof]\ntime-limit = nan\n": ("GP491", 2),
    '[tool.gradproof.require.T-1]\nreach = {smt = "everything"}\n': ("GP491", 2),
    "[tool.gradproof.require.T-1]\nbounds = {a = 0}\n": ("GP491", 2),
    '[x]\ny = 1\n\n[[tool.gradproof.waivers]]\nobligation = "T-1"\n': ("GP491", 4),
    WAIVER.format(day='"next year"'): ("GP491", 7),
    WAIVER.format(day="2027-01-31T00:00:00"): ("GP491", 7),
    WAIVER.format(day='"2027-02-30"'): ("GP491", 7),
    WAIVER.format(day="2027-01-31").replace('"ann"', '" "'): ("GP491", 5),
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_has_its_code_and_its_line(toy: Workspace, text: str) -> None:
    write(toy, text)
    wanted = MISTAKES[text]
    if wanted is None:
        assert load(toy.root).path is None
        return
    with pytest.raises(GradproofError) as caught:
        load(toy.root)
    assert caught.value.code == wanted[0]
    assert int(re.findall(r":(\d+):\d+$", caught.value.where)[0]) == wanted[1]


@pytest.mark.parametrize("data", [b"\xff\xfe", b"# " + b"x" * (1 << 20)])
def test_a_file_that_is_no_text_or_too_long(toy: Workspace, data: bytes) -> None:
    (toy.root / "pyproject.toml").write_bytes(data)
    assert dispatch(["gate"]) == EXIT_CODE[Exit.USAGE]


@pytest.mark.parametrize("text", ["[tool.gradproof.require.T-2]\n", WAIVER.format(day=TODAY).replace("T-1", "T-2")])
def test_an_obligation_that_no_contract_has(toy: Workspace, capsys: pytest.CaptureFixture[str], text: str) -> None:
    write(toy, text)
    assert dispatch(["gate"]) == EXIT_CODE[Exit.USAGE]
    err = capsys.readouterr().err
    assert f"pyproject.toml:{'1:25' if text.startswith('[') else '3:15'}: GP492" in err
    assert "did you mean 'T-1'" in err


NAMED = {
    '[tool.gradproof.require."T-2"]\n': "1:26",
    '[tool.gradproof]\nrequire = {T-1 = {}, T-2 = {layers = ["smt"]}}\n': "2:22",
    '[tool.gradproof.require]\n\nT-2 = {layers = ["smt"]}\n': "3:1",
    WAIVER.format(day=TODAY) + WAIVER.format(day=TODAY).replace("T-1", "T-2"): "10:15",
    "[tool.gradproof.require.T-2.bounds]\nn = 2\n": "1:25",
}


@pytest.mark.parametrize("text", NAMED, ids=range(len(NAMED)))
def test_an_obligation_that_no_contract_has_is_placed_where_it_is_named(
    toy: Workspace, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    write(toy, text)
    assert dispatch(["gate"]) == EXIT_CODE[Exit.USAGE]
    assert f"pyproject.toml:{NAMED[text]}: GP492" in capsys.readouterr().err


UNREADABLE = {
    "a pipe": (os.mkfifo, "it is no file"),
    "a folder": (os.mkdir, "it is no file"),
    "a device that never ends": (lambda path: os.symlink("/dev/zero", path), "it is no file"),
    "a link that leads nowhere": (lambda path: os.symlink("gone.toml", path), "a link "),
    "a link to itself": (lambda path: os.symlink("pyproject.toml", path), "a link "),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_settings_that_cannot_be_read_are_not_passed_over(toy: Workspace, name: str) -> None:
    """A pipe would wait for ever, /dev/zero would take all memory, and a lost link would drop what is demanded."""
    make, said = UNREADABLE[name]
    make(toy.root / "pyproject.toml")
    line = [sys.executable, "-m", "gradproof", "gate"]
    limit = ["sh", "-c", 'ulimit -v 2000000; exec "$@"', "sh"]
    done = subprocess.run([*limit, *line], cwd=toy.root, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == EXIT_CODE[Exit.USAGE]
    assert f"pyproject.toml:1:1: GP490\n  found:    {said}" in done.stderr


def test_settings_behind_a_link_count(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (toy.root / "own.toml").write_text("[tool.gradproof]\njobs = 3\n")
    (toy.root / "pyproject.toml").symlink_to("own.toml")
    assert shown(capsys)["jobs"]["value"] == 3


def test_lines_of_keys() -> None:
    text = '[tool.gradproof]\na = 1\n[tool.gradproof.require."X-1"]\nbounds = {n = 1}\n[tool.other]\na = 2\n'
    assert line_of(text, ["a"]) == 2
    assert line_of(text, ["require", "X-1", "bounds", "n"]) == 4
    assert line_of(text, ["require", "X-1"]) == 3
