"""`gradproof doctor`: a planted folder that shadows a package, and the ones that do not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest

from gradproof.cli import dispatch, doctor


def package(root: Path, name: str) -> Path:
    """A package that says where it is."""
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").write_text(f"HERE = {str(root)!r}\n", encoding="utf-8")
    return root / name


def install(site: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with its metadata, on sys.path."""
    package(site, name)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))


def imported(name: str, folder: Path, *site: Path) -> str:
    """Where a fresh interpreter that is started in the folder finds the package."""
    text = f"import sys; sys.path[1:1] = {[str(s) for s in site]!r}; import {name}; print(list({name}.__path__)[0])"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=600, check=True
    )
    return done.stdout.strip()


def test_a_package_of_the_folder_shadows_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    install(site, "wandb", monkeypatch)
    planted = package(here, "wandb")
    [found] = doctor.shadows(here)
    assert (found.name, found.found, found.distributions) == ("wandb", str(planted), ("wandb",))
    assert found.installed == str(site / "wandb" / "__init__.py")
    assert "shadows 'wandb' of wandb" in found.stated()
    assert imported("wandb", here, site) == str(planted)


def test_a_bare_folder_loses_against_an_ordinary_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python does decides, and the doctor says what Python does."""
    site, here = tmp_path / "site", tmp_path / "here"
    install(site, "wandb", monkeypatch)
    (here / "wandb" / "run-1").mkdir(parents=True)
    assert doctor.shadows(here) == []
    assert imported("wandb", here, site) == str(site / "wandb")


def test_two_parts_of_one_namespace_are_joined_and_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    install(site, "spacious", monkeypatch)
    (site / "spacious" / "__init__.py").rename(site / "spacious" / "part.py")
    (here / "spacious").mkdir(parents=True)
    assert doctor.resolved("spacious", sys.path) is not None
    assert doctor.shadows(here) == []
    package(tmp_path / "other", "spacious")
    assert [s.name for s in doctor.shadows(tmp_path / "other")] == ["spacious"]


class Editable:
    """A finder at the end of sys.meta_path, as an editable installation makes one."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.root = name, root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The one package that it knows."""
        return PathFinder.find_spec(name, [str(self.root)]) if name == self.name else None


def test_a_bare_folder_wins_against_an_editable_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, source, here = tmp_path / "site", tmp_path / "source", tmp_path / "here"
    install(site, "wandb", monkeypatch)
    (site / "wandb" / "__init__.py").unlink()
    (site / "wandb").rmdir()
    package(source, "wandb")
    (here / "wandb").mkdir(parents=True)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable("wandb", source)])
    [found] = doctor.shadows(here)
    assert (found.found, found.installed) == (str(here / "wandb"), str(source / "wandb" / "__init__.py"))


def test_a_tracker_s_folder_is_taken_for_the_package_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "neptune").mkdir()
    (tmp_path / "data").mkdir()
    [found] = doctor.shadows(tmp_path)
    assert (found.name, found.installed) == ("neptune", None)
    assert "empty module" in found.stated()
    assert imported("neptune", tmp_path) == str(tmp_path / "neptune")


@pytest.mark.parametrize("name", ["random.py", "click.py"])
def test_a_module_shadows_too(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    [found] = doctor.shadows(tmp_path)
    assert found.name == name.removesuffix(".py")
    assert found.distributions == (() if name == "random.py" else ("click",))


def test_what_hides_nothing_is_let_pass(tmp_path: Path) -> None:
    package(tmp_path, "my_model")
    for name in ("train.py", "README.md", "notes.txt", "torch.txt", "my-data.py"):
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    for name in ("checkpoints", "torch.old", "__pycache__"):
        (tmp_path / name).mkdir()
    assert doctor.shadows(tmp_path) == []


def test_a_package_that_is_installed_from_the_folder_itself_is_no_shadow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "own", monkeypatch)
    assert doctor.shadows(tmp_path) == []


def test_the_search_path_is_as_it_was_afterwards(tmp_path: Path) -> None:
    before = list(sys.path)
    package(tmp_path, "click")
    assert len(doctor.shadows(tmp_path)) == 1
    assert sys.path == before


def test_the_command_warns_and_says_so_in_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["doctor", "--quick", "--folder", str(tmp_path)]) == 0
    clean = capsys.readouterr().out
    for word in ("torch", "z3", "crosshair", "cpu", "cuda", "shadows an installed package"):
        assert word in clean, word
    planted = package(tmp_path, "click")
    assert dispatch(["doctor", "--quick", "--folder", str(tmp_path)]) == 1
    assert f"warning: {planted} shadows" in capsys.readouterr().out


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "click")
    monkeypatch.chdir(tmp_path)
    assert dispatch(["doctor", "--quick", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "gradproof-doctor/3"
    assert [s["name"] for s in found["shadows"]] == ["click"]
    assert len(found["warnings"]) == 1
    assert found["versions"]["torch"]


def test_a_missing_tool_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "gradproof.evidence.environment.environment", lambda: {"python": "3.11", "torch": "2", "crosshair": "0"}
    )
    assert dispatch(["doctor", "--quick", "--folder", str(tmp_path)]) == 1
    assert "warning: z3 is" in capsys.readouterr().out


Z3 = "'z3-solver>=4.13'"


def installations(monkeypatch: pytest.MonkeyPatch, *own: str) -> None:
    """These distributions of gradproof are installed, and torch; Z3 and CrossHair are not."""
    versions = {"torch": "2", **dict.fromkeys(own, "0.1.0")}
    monkeypatch.setattr("gradproof.evidence.environment.version_of", versions.get)
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["z3-solver>=4.13"])


def test_the_light_distribution_lacks_nothing_and_says_how_to_get_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installations(monkeypatch, "gradproof-light")
    asked: list[dict[str, tuple[str, str]]] = []
    monkeypatch.setattr("gradproof.extras.selftest.run_all", lambda skipped: asked.append(skipped) or [])
    assert dispatch(["doctor", "--folder", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "distribution gradproof-light 0.1.0" in out
    assert "warning" not in out
    [skipped] = asked
    assert {"solver", "crosshair", "worker"} <= set(skipped)
    assert skipped["solver"] == ("z3 is not installed", f"python -m pip install {Z3}")
    installations(monkeypatch, "gradproof")
    assert dispatch(["doctor", "--folder", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "distribution gradproof 0.1.0\n" in out
    how = f"get it with: python -m pip install {Z3}"
    assert f"warning: z3 is not installed: what needs it cannot run; {how}" in out
    assert set(asked[-1]) <= {"cuda"}


def test_two_distributions_with_the_same_files_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installations(monkeypatch, "gradproof", "gradproof-light")
    assert dispatch(["doctor", "--quick", "--folder", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "distribution gradproof 0.1.0 and gradproof-light 0.1.0" in out
    assert "uninstall both, and install one" in out


def test_a_folder_that_is_not_there_is_a_mistake_in_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["doctor", "--quick", "--folder", str(tmp_path / "gone")]) == 2
    assert "GP412" in capsys.readouterr().err
