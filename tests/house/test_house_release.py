"""The release workflow: well formed, started by a maintainer, and run up to the upload; and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from house_rules import REPOSITORY

from gradproof import __version__
from tests.installed import RELEASE, release_steps
from tests.light import light
from tests.release import faults


def workflow() -> dict[str, Any]:
    """The workflow. YAML 1.1 reads the key `on` as true."""
    data: dict[str, Any] = {str(k): v for k, v in yaml.safe_load(RELEASE.read_text(encoding="utf-8")).items()}
    return data


def lint(path: Path) -> int:
    """Exit code of the linter of GitHub's workflows."""
    command = [sys.executable, "-W", "ignore", "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    return subprocess.run([*command, str(path)], capture_output=True, timeout=600, check=False).returncode


def test_the_workflow_is_well_formed_and_a_mistake_is_seen(tmp_path: Path) -> None:
    assert lint(RELEASE) == 0
    broken = tmp_path / "release.yml"
    broken.write_text(RELEASE.read_text(encoding="utf-8").replace("runs-on:", "runs_on:", 1), encoding="utf-8")
    assert lint(broken) != 0


def test_a_maintainer_starts_it_and_nothing_is_uploaded_untested() -> None:
    data = workflow()
    assert set(data["True"]) == {"push", "workflow_dispatch"}
    assert data["True"]["push"] == {"tags": ["v*"]}
    assert data["True"]["workflow_dispatch"]["inputs"]["publish"]["default"] is False
    jobs = data["jobs"]
    assert (jobs["attest"]["needs"], jobs["publish"]["needs"]) == ("build", "attest")
    assert jobs["publish"]["environment"] == "release"
    assert "inputs.publish" in jobs["publish"]["if"]


def test_no_job_has_more_rights_than_it_needs_and_no_expression_is_pasted_into_a_script() -> None:
    data = workflow()
    assert data["permissions"] == {"contents": "read"}
    assert "permissions" not in data["jobs"]["build"]
    assert data["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert [run for run in release_steps().values() if "${{" in run] == []
    assert not [
        line for line in RELEASE.read_text(encoding="utf-8").splitlines() if "password" in line or "secrets." in line
    ]


def test_the_wheel_is_tried_by_what_make_installed_runs() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert "-m tests.installed" in makefile
    assert release_steps()["Test"] == 'python -m tests.installed --dist "$DIST"'


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the steps Build and Check make, in a copy of the project; a build writes into its tree for a moment."""
    copy = tmp_path_factory.mktemp("project")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    for name in set(done.stdout.split("\0")):
        if name and (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, copy / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DIST": "dist", "TAG": ""}
    for name in ("Build", "Check"):
        command = ["bash", "-e", "-c", release_steps()[name]]
        ran = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=900, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 things are not as they should be" in ran.stdout
    return copy / "dist"


@pytest.mark.slow
def test_its_steps_run_up_to_the_upload_and_a_wrong_tag_is_seen(dist: Path) -> None:
    assert faults(dist) == []
    assert f"the tag is v9.9.9, and the version {__version__}" in faults(dist, "v9.9.9")


@pytest.mark.slow
def test_a_changed_wheel_and_a_file_too_many_are_seen(dist: Path, tmp_path: Path) -> None:
    changed = tmp_path / "dist"
    shutil.copytree(dist, changed)
    [path] = changed.glob("gradproof-*.whl")
    [light] = changed.glob("gradproof_light-*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["gradproof/__init__.py"] += b"# changed\n"
    files["tests/extra.py"] = b""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    (changed / "notes.txt").write_text("", encoding="utf-8")
    assert faults(changed) == [
        f"{changed} has notes.txt",
        f"{path.name} has tests/extra.py",
        f"{path.name}: tests/extra.py is not in its record",
        f"{path.name}: gradproof/__init__.py has another digest than its record",
        f"{light.name} has other files than {path.name}",
    ]
    path.unlink()
    assert "has 1 wheels and 1 source distributions, not gradproof, gradproof-light and" in faults(changed)[-1]


@pytest.mark.slow
def test_a_light_wheel_that_is_not_light_is_seen(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool that makes it, with one part taken away at a time."""
    changed = tmp_path / "dist"
    shutil.copytree(dist, changed)
    [full] = changed.glob("gradproof-*.whl")
    assert (light(full).read_bytes(), faults(changed)) == (light(full).read_bytes(), [])
    monkeypatch.setattr("tests.light.LEFT_OUT", ("crosshair-tool", "hypothesis", "z3-solver"))
    [found] = faults(light(full).parent)
    assert "torch>=" in found
    monkeypatch.undo()
    monkeypatch.setattr("tests.light.DEVELOPERS", ("proofs", "docs", "loops", "test"))
    light(full)
    assert [" the extras proofs, tests and all " in found for found in faults(changed)] == [True, False]
