"""Attempts to let a verdict depend on a file that evidence does not name: each such file is changed after a green run.

A model reads one number from many places, each by a way of its own past the note of what was opened.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from attack_kit import MODEL, append, evidence, gate, verify, workspace

from gradproof.core import Exit, Outcome

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
}
READERS = """
import linecache, mmap, os

HOME = os.path.dirname(os.path.abspath(__file__))


def read(place):
    with open(place) as file:
        return file.read()


def failed(do):
    try:
        do()
    except OSError:
        return False


def number(place, reader):
    P, L = os.path.join(os.path.dirname(HOME), place), os.path.join(os.environ["TMPDIR"], os.path.basename(place))
    return int(eval(reader, {**globals(), "P": P, "L": L}))


SCALES = [number(*row) for row in PLACES]


def mean(grads: Any) -> Any:
    return sum(grads) / len(grads) * min(SCALES)
"""


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace that is green while every one of the numbers is 1."""
    root = workspace(tmp_path_factory.mktemp("readers") / "ws")
    for place, _ in PLACES.values():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("1")
    append(root, MODEL, f"\nPLACES = {list(PLACES.values())!r}\n{READERS}")
    assert verify(root, alone=False).exit is Exit.MET
    return root


@pytest.mark.parametrize("name", list(PLACES))
def test_a_number_that_is_read_in_a_roundabout_way(readers: Path, name: str) -> None:
    place = readers / PLACES[name][0]
    assert gate(readers).exit is Exit.MET
    place.write_text("0")
    try:
        found = gate(readers)
    finally:
        place.write_text("1")
    assert found.red
    assert f"ws:{PLACES[name][0]} changed" in found.reason


MOVES = {
    "another name of the same file": "os.link(P, L); N = open(L).read()",
    "a rename there and back": "os.rename(P, P + '~'); N = open(P + '~').read(); os.rename(P + '~', P)",
    "a change under the old time": "S = os.stat(P); N = open(P).read(); open(P, 'r+').write('0')\n"
    "os.utime(P, ns=(S.st_atime_ns, S.st_mtime_ns))",
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
    assert (found.outcome, found.reason) == (Outcome.ERROR, "edited while the check ran: ws:models/scale.txt")


def test_what_a_run_makes_itself_is_not_read_from_elsewhere(tmp_path: Path) -> None:
    """No false alarm: a cache of the model's own, written and renamed before it is read, is no ground of a verdict."""
    root = workspace(tmp_path / "ws")
    lines = ["import os", "C = os.path.join(os.path.dirname(__file__), 'cache')"]
    lines += ["with open(C + '.tmp', 'w') as file:", "    file.write('1')", "os.replace(C + '.tmp', C)"]
    append(root, MODEL, "\n" + "\n".join([*lines, "assert open(C).read() == '1'", ""]))
    assert verify(root, alone=False).exit is Exit.MET
    files = json.loads(evidence(root).read_text(encoding="utf-8"))["claim"]["files"]
    assert "ws:models/__init__.py" in files
    assert not [name for name in files if "cache" in name]
    shutil.rmtree(root / "models/__pycache__", ignore_errors=True)
    assert gate(root).exit is Exit.MET
