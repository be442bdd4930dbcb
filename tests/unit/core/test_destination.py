"""Where a command may write: streams as they are, files whole or not at all, and nothing that a run is judged by."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradproof.core import files as destination
from gradproof.core.errors import GradproofError
from gradproof.core.files import allowed, cleared, descriptor_of, is_stream, opened, unwritten, writable, written


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A file that this process has open, which holds a line already; its name is one that is written by hand."""
    place = tmp_path / "log.yaml"
    number = os.open(place, os.O_RDWR | os.O_CREAT)
    os.write(number, b"before\n")
    yield number, place
    os.close(number)


@pytest.mark.parametrize("form", ["/dev/fd/{}", "/proc/self/fd/{}", "/dev/../dev/fd/{}"])
def test_an_open_file_goes_on_where_it_stands(log: tuple[int, Path], form: str) -> None:
    """Neither cut nor written from its beginning, as by a shell's `>>`, and whatever its own name is."""
    number, place = log
    path = Path(form.format(number))
    assert descriptor_of(path) == number
    assert is_stream(path)
    written(path, "one\n")
    with opened(path, "w") as stream:
        stream.write("two\n")
    cleared(path)
    os.write(number, b"three\n")
    assert place.read_text() == "before\none\ntwo\nthree\n"


SAYS = """import sys
from pathlib import Path
from gradproof.core.files import written
sys.stdout.write("said ")
written(Path("/dev/stdout"), "written")
"""


def test_what_was_said_before_comes_before() -> None:
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "said written"


def test_a_process_without_stdout_still_writes(monkeypatch: pytest.MonkeyPatch, log: tuple[int, Path]) -> None:
    monkeypatch.setattr("sys.stdout", None)
    written(Path(f"/dev/fd/{log[0]}"), "one\n")
    assert log[1].read_text() == "before\none\n"


NAMES = {"a\0b": ("GP407", "NUL"), "folder": ("GP407", "a folder"), "there.yaml": ("GP433", ".yaml")}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("act", [allowed, writable, lambda path: written(path, "")], ids=["ask", "before", "write"])
def test_a_place_that_is_no_file_to_write(tmp_path: Path, act: object, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.yaml").write_text("by hand")
    code, word = NAMES[name]
    with pytest.raises(GradproofError, match=code) as error:
        act(tmp_path / name)  # type: ignore[operator]
    assert word in error.value.found


def test_what_is_refused_in_one_place_is_allowed_in_another(tmp_path: Path) -> None:
    """Folders of a workspace's names that are in none; a new file; code that is the result itself."""
    (tmp_path / "models").mkdir()
    (tmp_path / "there.py").write_text("made")
    (tmp_path / "there.toml").write_text("by hand")
    for name in ("models/a.json", "new.yaml", "new.py"):
        allowed(tmp_path / name)
    allowed(tmp_path / "there.py", "--write")
    for name, option in (("there.py", "--out"), ("there.toml", "--write"), ("there.toml", "--out")):
        with pytest.raises(GradproofError, match="GP433"):
            allowed(tmp_path / name, option)


def test_the_folders_of_reports_are_no_files(tmp_path: Path) -> None:
    for name in ("proofs", "models", "symbolic"):
        allowed(tmp_path / "reports")
        (tmp_path / name).mkdir()
    for name in ("reports", "reports/evidence", "reports/gpu"):
        with pytest.raises(GradproofError, match=r"(?s)GP433.*reports or evidence"):
            allowed(tmp_path / name)
    allowed(tmp_path / "reports/mine.json")
    allowed(tmp_path / "deep/reports")


def test_a_file_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    os.link(tmp_path / "a.json", tmp_path / "kept.json")
    written(tmp_path / "a.json", "after")
    assert (tmp_path / "a.json").read_text() == "after"
    assert (tmp_path / "kept.json").read_text() == "before"


def test_an_error_without_words_of_the_system_is_told_in_its_own() -> None:
    assert unwritten("a", OSError("odd")).found.endswith(": odd")


def test_a_result_is_known_to_have_a_place_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable(None)
    writable(tmp_path / "new.json")
    for out, said in ((tmp_path / "none/new.json", "is no folder"), (Path("/proc/none/a"), "is no folder")):
        with pytest.raises(GradproofError, match="GP407") as error:
            writable(out)
        assert said in error.value.found
    monkeypatch.setattr(destination.os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(GradproofError, match="GP407") as error:
        writable(tmp_path / "new.json")
    assert "may not" in error.value.found
    os.mkfifo(tmp_path / "pipe")
    writable(tmp_path / "pipe")


def test_a_pipe_and_what_is_not_there_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    for name in ("pipe", "none", "file/x"):
        cleared(tmp_path / name)
    assert is_stream(tmp_path / "pipe")
    cleared(tmp_path / "file")
    assert not (tmp_path / "file").exists()
    with pytest.raises(GradproofError, match="GP407"):
        cleared(tmp_path)
