"""What other people's CI reads: the action and the hooks, through their own linters, and the action's script itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from house_rules import PRODUCT, sources

from gradproof.cli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/ci.md"
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
    data: dict[str, Any] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    return data


def hooks() -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
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
    found = re.findall(r"entry: gradproof (\w+)|-P -m gradproof (\w+)", "\n".join(texts))
    assert {"".join(names) for names in found} == {"gate", "verify"}
    verify = cli.get_command(None, "verify")  # type: ignore[arg-type]
    assert verify is not None
    options = {o for p in verify.params for o in p.opts}
    assert {o for text in texts for o in re.findall(r"(?<=\s)--[a-z-]+", text)} <= options


def hooks_to_copy() -> str:
    """The configuration of hooks that docs/ci.md shows, to copy."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if ".pre-commit-config.yaml" in block]
    return str(block)


def test_the_configuration_to_copy_is_one_and_names_every_hook(tmp_path: Path) -> None:
    config = tmp_path / ".pre-commit-config.yaml"
    config.write_text(hooks_to_copy(), encoding="utf-8")
    check = [sys.executable, "-W", "ignore", "-m", "pre_commit", "validate-config", str(config)]
    assert subprocess.run(check, capture_output=True, timeout=600, check=False).returncode == 0
    data = yaml.safe_load(hooks_to_copy())
    assert {hook["id"] for repo in data["repos"] for hook in repo["hooks"]} == {hook["id"] for hook in hooks()}
    assert {"pre-commit", "pre-push"} == set(data["default_install_hook_types"])


def repository(folder: Path, gradproof: str) -> dict[str, str]:
    """A repository whose hooks are ours, on a `gradproof` that is this shell script; the environment to use it in."""
    bin_ = folder.parent / "bin"
    bin_.mkdir()
    (bin_ / "gradproof").write_text(f"#!/bin/sh\n{gradproof}\n", encoding="utf-8")
    (bin_ / "gradproof").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "SKIP" and not name.startswith("GIT_")}
    env = {**kept, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PRE_COMMIT_HOME": str(folder.parent / "pc"),
           "HOME": str(folder.parent), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}  # fmt: skip
    for name in ("proofs/x/contract.yaml", "models/loop.py", "symbolic/loop.py", "train.py", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# as it was\n", encoding="utf-8")
    ours = [{**hook, "language": "system"} for hook in hooks()]
    with (folder / ".pre-commit-config.yaml").open("w", encoding="utf-8") as file:
        yaml.safe_dump({"repos": [{"repo": "local", "hooks": ours}]}, file)
    who = ["-c", "user.name=a reader", "-c", "user.email=reader@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "As it was"]):
        subprocess.run(["git", *command], cwd=folder, env=env, timeout=600, check=True)
    return env


@pytest.mark.parametrize(("code", "word"), [(0, "Passed"), (4, "Failed")])
def test_the_hooks_run_whatever_file_was_changed(tmp_path: Path, code: int, word: str) -> None:
    """A verdict rests on the loop, its settings and its data as well: a hook that is skipped lets them pass."""
    home, note = tmp_path / "home", tmp_path / "note"
    env = repository(home, f'echo "$*" >> "{note}"; exit {code}')
    for name in ("train.py", "pyproject.toml", "data/new.txt"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("# as it is\n", encoding="utf-8")
        subprocess.run(["git", "add", name], cwd=home, env=env, timeout=600, check=True)
        for hook, stage in (("gradproof-gate", "pre-commit"), ("gradproof-verify", "manual")):
            run = [sys.executable, "-W", "ignore", "-m", "pre_commit", "run", hook, "--hook-stage", stage]
            done = subprocess.run(run, cwd=home, env=env, capture_output=True, text=True, timeout=600, check=False)
            assert (done.returncode, word in done.stdout) == (min(code, 1), True), done.stdout + done.stderr
        subprocess.run(["git", "reset", "--quiet", "--hard"], cwd=home, env=env, timeout=600, check=True)
    assert note.read_text(encoding="utf-8").splitlines() == ["gate --workspace .", "verify --quiet --workspace ."] * 3


def unsafe(text: str) -> list[str]:
    """Commands that start a module with the current folder first on the import path, where its json.py would run."""
    return re.findall(r"(?<!-P )-m (?:gradproof|pip)\b.*|(?<!\"-P\", )\"-m\", \"(?:gradproof|pip)\b.*", text)


def test_what_runs_in_a_users_repository_does_not_search_it_for_modules() -> None:
    made = [*(REPOSITORY / "src/gradproof/cli/templates").glob("*.j2")]
    published = [ACTION, HOOKS, PAGE, *made]
    assert made
    assert {path.name: found for path in published if (found := unsafe(path.read_text(encoding="utf-8")))} == {}
    started = {s.name: re.findall(r'.*"-m", "gradproof\b.*', s.text) for s in sources(PRODUCT)}
    assert {name: [line for line in lines if unsafe(line)] for name, lines in started.items() if lines} == {
        f"src/gradproof/{name}.py": []
        for name in ("extras/attest/verify", "rounding/solvers", "extras/selftest", "shadow/process/check")
    }
    assert len(unsafe('python -m gradproof gate\npython -P -m pip\n[sys.executable, "-m", "gradproof", "x"]')) == 2


def run_script(folder: Path, workspace: str) -> tuple[int, dict[str, str], str]:
    """The action's script in bash: exit code, outputs, and what it printed."""
    step = next(s for s in action()["runs"]["steps"] if s.get("id") == "verify")
    output = folder / "output"
    env = {**os.environ, "WORKSPACE": workspace, "CONTRACT": "", "PROFILE": "ci", "REPORTS": "made", "JOBS": "1",
           "GITHUB_OUTPUT": str(output), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # fmt: skip
    script = step["run"].replace("python -P", f"{sys.executable} -P")
    done = subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    lines = output.read_text(encoding="utf-8").splitlines()
    return done.returncode, dict(line.split("=", 1) for line in lines), done.stdout


def installed(folder: Path, requirement: str) -> list[str]:
    """What the action's first step starts, with a `python` that notes its arguments and does nothing else."""
    note = folder / "note"
    (folder / "python").write_text(f'#!/bin/sh\necho "$*" >> "{note}"\n', encoding="utf-8")
    (folder / "python").chmod(0o755)
    [step] = [step for step in action()["runs"]["steps"] if step["name"] == "Install gradproof"]
    assert step["env"] == {"REQUIREMENT": "${{ inputs.requirement }}"}
    assert "if" not in step
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "GITHUB_ACTION_PATH": "/the action/at REF"}
    command = ["bash", "-e", "-c", step["run"]]
    subprocess.run(command, env={**env, "REQUIREMENT": requirement}, cwd=folder, timeout=600, check=True)
    return note.read_text(encoding="utf-8").splitlines() if note.exists() else []


@pytest.mark.parametrize(
    ("requirement", "install"),
    [("", "/the action/at REF"), ("gradproof==0.1.0", "gradproof==0.1.0"), ("none", None)],
)
def test_the_action_installs_what_its_own_commit_holds_unless_told_otherwise(
    tmp_path: Path, requirement: str, install: str | None
) -> None:
    """REF decides what runs: nothing is taken from an index where nobody names a version."""
    assert action()["inputs"]["requirement"]["default"] == ""
    stated = [] if install is None else [f"-P -m pip install --quiet {install}"]
    assert installed(tmp_path, requirement) == stated


def test_the_script_hands_on_the_verdict(tmp_path: Path) -> None:
    code, outputs, _ = run_script(tmp_path, "no such folder")
    assert code == 2
    assert outputs["exit-code"] == "2"
