"""Attempts to let a verdict depend on a file that evidence does not name: each such file is changed after a green run.

A model reads one number from many places, each by a way of its own past the note of what was opened.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from attack_kit import MODEL, append, evidence, gate, verify, workspace

from gradproof.core.outcome import Exit, Outcome

# Where a number lies, and an expression that reads it: P is the file's path, L a name in the scratch folder.
PLACES: dict[str, tuple[str, str]] = {
    "an exclusive opening that fails first": ("models/a.txt", "failed(lambda: open(P, 'x')) or read(P)"),
    "a link in the scratch folder": ("models/b.txt", "os.symlink(P, L) or read(L)"),
    "the working folder of /proc": ("models/c.txt", "read('/proc/self/cwd/models/c.txt')"),
    "the root of /proc": ("models/d.txt", "read('/proc/self/root' + P)"),
    "a descriptor of a folder": ("models/e.txt", "os.fdopen(os.open('e.txt', 0, dir_fd=os.open(HOME, 0))).read()"),
    "a folder of caches": ("models/__pycache__/f.txt", "read(P)"),
    "a folder called as an installation": ("symbolic/site-packages/g.txt", "read(P)"),
    "a folder called as metadata": ("models/h.dist-info/h.txt", "read(P)"),
    "the folder of reports": ("reports/i.txt", "read(P)"),
    "a document among the reports": ("reports/rounding/j.json", "read(P)"),
    "another working folder": ("models/k.txt", "[os.chdir(HOME), read('k.txt'), os.chdir(HOME + '/..')][1]"),
    "text that is executed": ("models/l.txt", "str(eval(compile(read(P), '<l>', 'eval')))"),
    "a mapping into memory": ("models/m.txt", "mmap.mmap(os.open(P, os.O_RDWR), 0)[:].decode()"),
    "a library's own reader": ("models/n.txt", "linecache.getline(P, 1).strip()"),
    "a hidden file": ("models/.o.txt", "read(P)"),
    "a name that was made, then a link": ("models/a1.txt", "made(L) or os.unlink(L) or os.symlink(P, L) or read(L)"),
    "a made name in a folder, then a link": (
        "models/a2.txt", "made(N, dir_fd=D) or os.unlink(N, dir_fd=D) or os.symlink(P, N, dir_fd=D) or inner(N, D)",
    ),
    "a made file, then a link to its folder": (
        "models/a3.txt",
        "os.mkdir(L) or made(join(L, N)) or shutil.rmtree(L) or os.symlink(HOME, L) or read(join(L, N))",
    ),
    "a made file, then a folder that is moved over its own": (
        "models/a4/v4.txt",
        "os.mkdir(L) or made(join(L, N)) or shutil.rmtree(L) or os.rename(UP, L) or "
        "[read(join(L, N)), os.rename(L, UP)][0]",
    ),
    "a folder that is moved there and back": (
        "models/a5/v5.txt", "os.rename(UP, L) or [read(join(L, N)), os.rename(L, UP)][0]",
    ),
    "a folder that is moved and opened": (
        "models/a6/v6.txt", "os.rename(UP, L) or inner(N, os.open(L, 0), lambda: os.rename(L, UP))",
    ),
    "a made file of that name in the working folder": ("models/a7.txt", "made(N) or inner(N, os.open(HOME, 0))"),
    "a file of that name in the working folder": ("models/scale.txt", "inner(N, os.open(HOME, 0))"),
    "a link in a folder that is gone later": (
        "models/a8.txt", "os.symlink(P, 'x', dir_fd=D) or inner('x', D, lambda: os.unlink('x', dir_fd=D))",
    ),
    "a folder above a link": ("models/a9.txt", "os.symlink(join(HOME, 'sub'), L) or read(join(L, '..', N))"),
    "an opening anew that fails": (
        "models/b1.txt", "failed(lambda: os.open(P, os.O_WRONLY | os.O_TRUNC | os.O_DIRECTORY)) or read(P)",
    ),
    "an opening anew that only names the file": (
        "models/b2.txt", "os.close(os.open(P, os.O_PATH | os.O_TRUNC)) or read(P)",
    ),
    "an opening anew without a descriptor left": ("models/b3.txt", "crowded(lambda: open(P, 'w')) or read(P)"),
    "an opening anew that fails, and an old byte": (
        "models/b9.txt", "crowded(lambda: open(P, 'w')) or os.close(os.open(P, os.O_WRONLY)) or read(P)",
    ),
    "an object in the place of a name": ("models/b4.txt", "io.FileIO(pathlib.Path(P)).read()"),
    "a database by its address": ("models/b5.db", "stored('file:' + P + '?mode=ro')"),
    "a database in the working folder": ("models/b6.db", "[os.chdir(HOME), stored(N), os.chdir(join(HOME, '..'))][1]"),
    "a database by an object": ("models/b7.db", "stored(pathlib.Path(P))"),
}  # fmt: skip
READERS = """
import io, linecache, mmap, os, pathlib, resource, shutil, sqlite3
from os.path import join

HOME = os.path.dirname(os.path.abspath(__file__))
D = os.open(os.environ["TMPDIR"], os.O_RDONLY)


def made(place, dir_fd=None):
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=dir_fd))


def inner(name, folder, then=lambda: None):
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder)) as file:
        then()
        return file.read()


def crowded(do):
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, was[1]))
    try:
        return failed(do)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, was)


def stored(place):
    return sqlite3.connect(place, uri=True).execute("select value from row").fetchone()[0]


def read(place):
    with open(place) as file:
        return file.read()


def failed(do):
    try:
        do()
    except OSError:
        return False


def number(place, reader):
    P, N = join(os.path.dirname(HOME), place), os.path.basename(place)
    L = join(os.environ["TMPDIR"], f"{N}.link")
    return int(eval(reader, {**globals(), "P": P, "L": L, "N": N, "UP": os.path.dirname(P)}))


SCALES = [number(*row) for row in PLACES]


def mean(grads: Any) -> Any:
    return sum(grads) / len(grads) * min(SCALES)
"""


def put(place: Path, number: str) -> None:
    """Write a number into a file, or into a database of one row."""
    place.unlink(missing_ok=True)
    if place.suffix != ".db":
        place.write_text(number)
        return
    with closing(sqlite3.connect(place)) as base:
        base.executescript(f"create table row (value); insert into row values ({number});")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace that is green while every one of the numbers is 1."""
    root = workspace(tmp_path_factory.mktemp("readers") / "ws")
    (root / "models/sub").mkdir()
    (root / "scale.txt").write_text("1")
    for place, _ in PLACES.values():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        put(root / place, "1")
    append(root, MODEL, f"\nPLACES = {list(PLACES.values())!r}\n{READERS}")
    assert verify(root, alone=False, jobs=1).exit is Exit.MET, "two checks at a time would move one folder"
    return root


@pytest.mark.parametrize("name", list(PLACES))
def test_a_number_that_is_read_in_a_roundabout_way(readers: Path, name: str) -> None:
    place = readers / PLACES[name][0]
    assert gate(readers).exit is Exit.MET
    kept = place.with_name(f"{place.name}.kept")
    place.rename(kept)
    put(place, "0")
    try:
        found = gate(readers)
    finally:
        kept.rename(place)
    assert found.red
    assert f"ws:{PLACES[name][0]} changed" in found.reason


MOVES = {
    "another name of the same file": "os.link(P, L); N = open(L).read()",
    "a rename there and back": "os.rename(P, P + '~'); N = open(P + '~').read(); os.rename(P + '~', P)",
    "a change under the old time": "S = os.stat(P); N = open(P).read(); open(P, 'r+').write('0')\n"
    "os.utime(P, ns=(S.st_atime_ns, S.st_mtime_ns))",
    "an opening anew that fails, and a new time": "import resource\n"
    "R = resource.getrlimit(resource.RLIMIT_NOFILE)\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, R[1]))\n"
    "try:\n    open(P, 'w')\nexcept OSError:\n    pass\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, R)\nos.utime(P)\nN = open(P).read()",
    "a file that is gone afterwards": "N = open(P).read(); os.unlink(P)",
}


@pytest.mark.parametrize("name", list(MOVES))
def test_a_number_that_is_moved_while_it_is_read(tmp_path: Path, name: str) -> None:
    """What stands in the file after the run need not be what the run read."""
    root = workspace(tmp_path / "ws")
    (root / "models/scale.txt").write_text("1")
    append(root, MODEL, "\nimport os\nP = os.path.join(os.path.dirname(__file__), 'scale.txt')\n")
    append(root, MODEL, f"L = os.path.join(os.environ['TMPDIR'], 'l')\n{MOVES[name]}\n")
    found = verify(root)
    assert found.red
    assert found.outcome is Outcome.ERROR, found.reason
    assert re.match(r"(edited .*: ws:|FileNotFoundError: \[Errno 2\] .*/)models/scale\.txt", found.reason)


CACHES = {
    "by another name": "os.replace(C, C + '.2'); C += '.2'",
    "in a folder that is moved": "os.mkdir(F); C = made(F + '/f'); os.rename(F, F + '.2'); C = F + '.2/f'",
    "under a set time": "os.utime(C, (0, 0))",
    "a second time": "made(C)",
    "by a folder's descriptor": "C = made(C, os.path.basename(C), os.open(os.path.dirname(C), 0))",
}


@pytest.mark.parametrize("name", list(CACHES))
@pytest.mark.parametrize("there", [False, True])
def test_what_a_run_makes_itself_is_not_read_from_elsewhere_in_any_way(tmp_path: Path, name: str, there: bool) -> None:
    """No false alarm: a cache of the model's own is no ground of a verdict, whether an earlier run left it or not."""
    root = workspace(tmp_path / "ws")
    if there:
        (root / "models/cache").write_text("an old one")
    lines = ["import os, shutil", "C, F = (os.path.join(os.path.dirname(__file__), n) for n in ('cache', 'folder'))"]
    lines += ["def made(path, name=None, folder=None):", "    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC"]
    lines += [
        "    file = os.open(name or path, flags, dir_fd=folder)",
        "    os.write(file, b'1')",
        "    os.close(file)",
    ]
    lines += ["    return path", "for old in (F, F + '.2'):", "    shutil.rmtree(old, ignore_errors=True)"]
    append(root, MODEL, "\n" + "\n".join([*lines, "made(C)", CACHES[name], "assert open(C).read() == '1'", ""]))
    found = verify(root)
    assert found.outcome is Outcome.HOLDS, found.reason
    files = json.loads(evidence(root).read_text(encoding="utf-8"))["claim"]["files"]
    assert not [key for key in files if "cache" in key or "folder" in key]


def test_what_a_run_makes_itself_is_not_read_from_elsewhere(tmp_path: Path) -> None:
    """No false alarm: a cache of the model's own, written and renamed before it is read, is no ground of a verdict."""
    root = workspace(tmp_path / "ws")
    lines = ["import os", "C = os.path.join(os.path.dirname(__file__), 'cache')"]
    lines += ["with open(C + '.tmp', 'w') as file:", "    file.write('1')", "os.replace(C + '.tmp', C)"]
    append(root, MODEL, "\n" + "\n".join([*lines, "assert open(C).read() == '1'", ""]))
    assert verify(root, alone=False, jobs=1).exit is Exit.MET
    files = json.loads(evidence(root).read_text(encoding="utf-8"))["claim"]["files"]
    assert "ws:models/__init__.py" in files
    assert not [name for name in files if "cache" in name]
    shutil.rmtree(root / "models/__pycache__", ignore_errors=True)
    assert gate(root).exit is Exit.MET
