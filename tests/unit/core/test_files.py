"""The one writer of files: whole or not there, on every way out of it; and everything that writes uses it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradproof.core import files
from gradproof.core.files import replace_whole, write_json, write_whole
from gradproof.extras.conformance import report

TEXT = "ä\n" * 1000

Write = Callable[[Path], None]

WRITERS: dict[str, Write] = {
    "write_whole": lambda path: write_whole(path, TEXT),
    "write_json": lambda path: write_json(path, {"text": TEXT}),
    "replace_whole": lambda path: replace_whole(path, TEXT),
    "the kernels' report": lambda path: report.write(path, {"text": TEXT}),
}

each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@each_writer
def test_a_file_takes_its_name_when_it_is_whole(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of the renaming the neighbour holds everything, and the old content still has the name."""
    path, seen = tmp_path / "a.json", []
    path.write_text("old")
    rename = os.replace

    def watched(source: Any, target: Any) -> None:
        seen.append((Path(source).parent == path.parent, Path(source).read_text(), path.read_text()))
        rename(source, target)

    monkeypatch.setattr(files.os, "replace", watched)
    write(path)
    assert [(beside, old) for beside, _, old in seen] == [(True, "old")]
    assert seen[0][1] == path.read_text() != "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def broken(error: BaseException) -> Callable[..., Any]:
    """A call that fails."""

    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


@each_writer
@pytest.mark.parametrize(
    "error", [OSError("no space left on device"), KeyboardInterrupt()], ids=["full", "interrupted"]
)
@pytest.mark.parametrize("call", ["replace", "fdopen"])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    call: str, error: BaseException, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(files.os, call, broken(error))
    with pytest.raises(type(error)):
        write(path)
    monkeypatch.undo()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.json", "old")]


def test_what_is_no_json_or_no_text_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for data, error in ((float("nan"), ValueError), ({"a": object()}, TypeError)):
        with pytest.raises(error):
            write_json(path, data)
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.write(path, {"a": float("inf")})
    assert list(tmp_path.iterdir()) == []


def test_a_byte_of_a_path_that_is_no_utf_8_is_written_as_an_escape(tmp_path: Path) -> None:
    path, data = tmp_path / "a.json", {"folder": os.fsdecode(b"/caf\xe9")}
    write_json(path, data)
    assert path.read_bytes() == b'{"folder": "/caf\\udce9"}'
    assert json.loads(path.read_text(encoding="utf-8")) == data


def test_only_a_file_of_the_users_makes_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.json"
    for name in ("write_whole", "write_json", "the kernels' report"):
        with pytest.raises(FileNotFoundError):
            WRITERS[name](path)
    replace_whole(path, "text")
    assert path.read_text() == "text"


def test_permissions_are_the_umasks_except_of_a_file_for_everybody(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_whole(tmp_path / "own", "")
        replace_whole(tmp_path / "public", "")
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "public": 0o644}


@pytest.mark.parametrize(("writer", "synced"), [("write_json", 1), ("replace_whole", 1), ("the kernels' report", 0)])
def test_what_must_survive_a_crash_is_on_the_disk_before_it_has_its_name(
    writer: str, synced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (done.append("fsync"), sync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (done.append("replace"), rename(a, b)))
    WRITERS[writer](tmp_path / "a")
    assert done == ["fsync"] * synced + ["replace"]


def test_a_long_name_and_two_writers_at_once_do_not_collide(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    text = "import sys; from pathlib import Path; from gradproof.core.files import write_whole\n"
    text += "for i in range(200): write_whole(Path(sys.argv[1]), sys.argv[2] * 5000, durable=False)"
    both = [subprocess.Popen([sys.executable, "-c", text, str(path), letter]) for letter in "ab"]
    assert [p.wait(timeout=600) for p in both] == [0, 0]
    assert path.read_text() in ("a" * 5000, "b" * 5000)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "module",
    [
        "gradproof.execution.worker",
        "gradproof.shadow.process.check",
        "gradproof.evidence.store",
        "gradproof.extras.conformance.report",
    ],
)
def test_there_is_one_writer(module: str) -> None:
    """None of them renames a file itself."""
    source = Path(files.__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    assert "from gradproof.core.files import" in source
    assert not any(word in source for word in ("os.replace", ".rename(", "mkstemp", "os.fsync"))
