"""Outside of a workspace: the packaged reference is judged, which is said; nothing is, where nobody would read it."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import pytest

from gradproof import cli
from gradproof.cli.verify import Watcher, watched
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, NO_WORKSPACE, Exit
from gradproof.core.workspace import CI, Workspace, find
from gradproof.session import Options


def gradproof(*args: str) -> int:
    return cli.dispatch(list(args))


def test_without_a_workspace_the_reference_is_planned_and_reports_go_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert gradproof("list") == 0
    assert "KANI-GA-001" in capsys.readouterr().out
    assert gradproof("report") == EXIT_CODE[Exit.OPEN]
    for name in ("gradient-accumulation-kernel-v1", "adamw-kernel-v1"):
        assert (tmp_path / "reports" / name / "report.html").exists()


EMPTY = ("--contract", "adamw-kernel-v1")
JUDGING = [
    ("gate",), ("gate", "--json"), ("gate", "--format", "github"), ("report", *EMPTY), ("attest", "out", "-q", *EMPTY),
    ("verify", "-q", "-k", "AW-EQ-001", "--fail-fast", "--time-limit", "0.01", *EMPTY), ("claims",), ("graph",),
    ("prove", "-q", "-k", "KANI-AW-001", "--time-limit", "0.01"),
    ("run", "-q", "-k", "FALSIFY-AW-001@cpu-fp32", "--time-limit", "0.01"),
]  # fmt: skip


@pytest.mark.parametrize("args", JUDGING, ids=lambda args: " ".join(args[:3]))
def test_without_a_workspace_whoever_judges_says_whose_loop_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    """And in CI, or where a part of a workspace is there, nothing is judged at all."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    gradproof(*args)
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == f"warning: {NO_WORKSPACE}"
    assert ("::warning title=gradproof::" + NO_WORKSPACE in out.splitlines()) is ("github" in args)
    monkeypatch.setenv("CI", "true")
    assert gradproof(*args) == EXIT_CODE[Exit.USAGE]
    assert "GP201" in capsys.readouterr().err
    monkeypatch.delenv("CI")
    (tmp_path / "models").mkdir()
    assert gradproof(*args) == EXIT_CODE[Exit.USAGE]
    assert "GP201" in capsys.readouterr().err


def test_without_a_workspace_every_format_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    names = ("text", "json", "md", "html", "junit", "sarif", "ndjson")
    asked = [f"--format={name}=made.{name}" for name in (*names, "github")]
    assert gradproof("gate", *EMPTY, *asked) == EXIT_CODE[Exit.OPEN]
    assert NO_WORKSPACE in capsys.readouterr().out
    silent = [
        n for n in (*names, "github") if NO_WORKSPACE not in " ".join((tmp_path / f"made.{n}").read_text().split())
    ]
    assert silent == []
    capsys.readouterr()
    assert gradproof("prove", "-q", "--json", "-k", "KANI-AW-001", "--time-limit", "0.01") == EXIT_CODE[Exit.OPEN]
    assert json.loads(capsys.readouterr().out)["warning"] == NO_WORKSPACE


def test_in_a_workspace_nothing_is_said_of_another(toy: Workspace, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("CI", "true")
    assert gradproof("gate", "--format", "github") == EXIT_CODE[Exit.OPEN]
    assert NO_WORKSPACE not in "".join(capsys.readouterr())


def test_a_watch_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    options = Options(contracts=EMPTY[1:], select=("AW-EQ-001",), time_limit=0.01)
    looks = count()
    monkeypatch.setattr(Watcher, "look", lambda self: next(looks))
    monkeypatch.setattr(Watcher, "known", lambda self, before: before)
    assert watched(options, 2) == EXIT_CODE[Exit.OPEN]
    assert capsys.readouterr().err.splitlines().count(f"warning: {NO_WORKSPACE}") == 1


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_a_subfolder_of_a_project_with_a_part_of_a_workspace_is_no_place_for_the_reference(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "outer/models").mkdir(parents=True)
    project = tmp_path / "outer/project"
    (project / "proofs/deep").mkdir(parents=True)
    (project / "src").mkdir()
    (project / mark).touch()
    for start in ("src", "proofs/deep"):
        with pytest.raises(GradproofError, match="GP201") as error:
            find(project / start)
        assert re.match(rf"{project} .* models/, symbolic/", error.value.found)
    (project / "proofs/deep").rmdir()
    (project / "proofs").rmdir()
    assert find(project / "src").packaged


@pytest.mark.parametrize(("marks", "seen"), [
    ((".git", "svc/app/pyproject.toml"), True), (("pyproject.toml", "svc/app/pyproject.toml"), True),
    (("svc/app/pyproject.toml",), False), ((), False), (("svc/.git", "pyproject.toml"), False),
])  # fmt: skip
def test_what_counts_as_one_project(
    marks: tuple[str, ...], seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the repository, else to the last pyproject.toml; above it two of three folders are a part, and not one."""
    monkeypatch.delenv("CI", raising=False)
    start = tmp_path / "svc/app/src"
    start.mkdir(parents=True)
    (tmp_path / "models").mkdir()
    for mark in marks:
        (tmp_path / mark).touch()
    if seen:
        with pytest.raises(GradproofError, match="GP201"):
            find(start)
    else:
        assert find(start).packaged
    (tmp_path / "proofs").mkdir()
    with pytest.raises(GradproofError, match="GP201"):
        find(start)


@pytest.mark.parametrize("name", CI)
def test_every_service_is_known_by_its_variable(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in CI:
        monkeypatch.delenv(other, raising=False)
    assert find(tmp_path).packaged
    monkeypatch.setenv(name, "1")
    with pytest.raises(GradproofError, match=rf"(?s)GP201.*where {name} is set"):
        find(tmp_path)


def test_a_folder_that_is_a_link_to_itself_is_no_workspace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert gradproof("gate", "--workspace", str(tmp_path / "loop")) == EXIT_CODE[Exit.USAGE]
    assert "GP201" in capsys.readouterr().err
