"""What other people's CI reads: the action and the hooks, through their own linters, and the action's script itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gradproof.cli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
ACTION, HOOKS = REPOSITORY / "action.yml", REPOSITORY / ".pre-commit-hooks.yaml"
LINTERS = {
    ACTION: ("check_jsonschema", "--builtin-schema", "vendor.github-actions"),
    HOOKS: ("pre_commit", "validate-manifest"),
}


def lint(file: Path, like: Path) -> int:
    """Exit code of the linter of `like`, on `file`."""
    module, *options = LINTERS[like]
    command = [sys.executable, "-W", "ignore", "-m", module, *options, str(file)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False).returncode


def action() -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load(ACTION.read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize(("file", "good", "bad"), [(ACTION, "using: composite", "using: spirits"),
                                                   (HOOKS, "language: python", "language: latin")])  # fmt: skip
def test_the_linter_passes_it_and_sees_a_mistake(tmp_path: Path, file: Path, good: str, bad: str) -> None:
    assert lint(file, file) == 0
    broken = tmp_path / file.name
    broken.write_text(file.read_text(encoding="utf-8").replace(good, bad, 1), encoding="utf-8")
    assert lint(broken, file) != 0


def test_no_input_is_pasted_into_a_script() -> None:
    """An input reaches a script through the environment alone, or a title of a pull request could run commands."""
    scripts = [step["run"] for step in action()["runs"]["steps"]]
    assert len(scripts) == 2
    assert not any("${{" in script for script in scripts)


def test_commands_and_options_exist() -> None:
    texts = [HOOKS.read_text(encoding="utf-8"), *(step["run"] for step in action()["runs"]["steps"])]
    found = re.findall(r"entry: gradproof (\w+)|-m gradproof (\w+)", "\n".join(texts))
    assert {"".join(names) for names in found} == {"gate", "verify"}
    verify = cli.get_command(None, "verify")  # type: ignore[arg-type]
    assert verify is not None
    options = {o for p in verify.params for o in p.opts}
    assert {o for text in texts for o in re.findall(r"(?<=\s)--[a-z-]+", text)} <= options


def run_script(folder: Path, workspace: str) -> tuple[int, dict[str, str], str]:
    """The action's script in bash: exit code, outputs, and what it printed."""
    step = next(s for s in action()["runs"]["steps"] if s.get("id") == "verify")
    output = folder / "output"
    env = {**os.environ, "WORKSPACE": workspace, "CONTRACT": "", "PROFILE": "ci", "REPORTS": "made", "JOBS": "1",
           "GITHUB_OUTPUT": str(output), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # fmt: skip
    script = step["run"].replace("python -m", f"{sys.executable} -m")
    done = subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    lines = output.read_text(encoding="utf-8").splitlines()
    return done.returncode, dict(line.split("=", 1) for line in lines), done.stdout


def test_the_script_hands_on_the_verdict(tmp_path: Path) -> None:
    code, outputs, _ = run_script(tmp_path, "no such folder")
    assert code == 2
    assert outputs["exit-code"] == "2"
