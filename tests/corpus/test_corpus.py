"""Whole workspaces, each a folder beside this file, run through the real command line.

A case holds proofs/, models/, symbolic/ and expected.json: `exit` (the exit code), `checks` (outcome, effect and a part
of the reason of each check), `says` (parts of what is printed) and, unless it is `verify`, `command`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradproof.core.outcome import Outcome

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CASES = sorted(p.parent.name for p in HERE.glob("*/expected.json"))
OUTCOMES = set(Outcome)


def expected(case: str) -> dict[str, Any]:
    """What the case must yield."""
    data: dict[str, Any] = json.loads((HERE / case / "expected.json").read_text(encoding="utf-8"))
    return data


def gradproof(workspace: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """One run of the command line, from outside the workspace."""
    command = [sys.executable, "-m", "gradproof", *args, "--workspace", str(workspace)]
    if args[0] == "verify":
        command += ["--jobs", "2"]
    return subprocess.run(
        command, cwd=workspace.parent, capture_output=True, encoding="utf-8", errors="replace", timeout=600, check=False
    )


def differences(rows: dict[str, dict[str, Any]], wanted: dict[str, dict[str, str]]) -> list[str]:
    """How the checks of a report differ from what a case wants of them."""
    found = []
    for name, want in wanted.items():
        row = rows.get(name)
        if row is None:
            found.append(f"{name} is not in the report")
        elif (row["outcome"], row["effect"]) != (want["outcome"], want["effect"]) or want["reason"] not in row[
            "reason"
        ]:
            seen = {key: row[key] for key in want}
            found.append(f"{name}: wanted {want}, found {seen}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_verdict_of_a_workspace(case: str, tmp_path: Path) -> None:
    want = expected(case)
    workspace = tmp_path / case
    shutil.copytree(HERE / case, workspace, ignore=shutil.ignore_patterns("__pycache__", "reports"))
    done = gradproof(workspace, *want.get("command", ["verify"]))
    said = done.stdout + done.stderr
    assert done.returncode == want["exit"], said
    for words in want["says"]:
        assert words in " ".join(said.split()), said
    written = workspace / "reports" / "report.json"
    assert written.exists() == bool(want["checks"])
    if not want["checks"]:
        return
    report = json.loads(written.read_text(encoding="utf-8"))
    jsonschema.validate(report, json.loads((REPOSITORY / "reports" / "report.schema.json").read_text(encoding="utf-8")))
    assert report["verdict"]["code"] == want["exit"]
    assert report["verdict"]["met"] == (want["exit"] == 0)
    assert differences({row["id"]: row for row in report["checks"]}, want["checks"]) == []


def test_the_comparison_sees_a_difference() -> None:
    want = {"K-1": {"outcome": "HOLDS", "effect": "DISCHARGED", "reason": "3 paths"}}
    assert differences({"K-1": want["K-1"]}, want) == []
    assert [words.startswith("K-1 ") for words in differences({}, want)] == [True]
    for changed in ({"outcome": "TIMEOUT"}, {"effect": "OPEN"}, {"reason": "2 paths"}):
        assert len(differences({"K-1": {**want["K-1"], **changed}}, want)) == 1


def test_the_corpus_shows_every_outcome_and_every_exit_code() -> None:
    wanted = [expected(case) for case in CASES]
    assert {row["outcome"] for want in wanted for row in want["checks"].values()} == OUTCOMES
    assert {want["exit"] for want in wanted} == {0, 1, 2, 3, 4, 5}


def test_the_corpus_is_left_as_it_was() -> None:
    """Cases run in copies: no reports lie among them."""
    assert [p for p in HERE.rglob("reports")] == []
