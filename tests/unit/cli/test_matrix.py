"""The matrix of supported versions: a failing cell makes it red, and what is not there is NOT_RUN."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import matrix

PAGE = f"# Page\n\n{matrix.BEGIN}\nold\n{matrix.END}\n\nAfter.\n"
PYTHON = """\
#!{executable}
import json
print(json.dumps(["3.99.1", "9.9.9+fake", {{"numpy": "2.0"}}]))
"""
GRADPROOF = """\
#!{executable}
import json, pathlib, sys
broken, command, words = {broken!r}, sys.argv[1], sys.argv[2:]
if command == "verify":
    sys.exit(3 if broken == "verify crashes" else 4)
if command == "gate":
    checks = {checks!r}
    rows = [{{"id": c, "outcome": "NOT_RUN" if broken == c else "HOLDS", "reason": "why"}} for c in checks]
    pathlib.Path("gate.json").write_text(json.dumps({{"checks": rows}}))
    sys.exit(4)
if command == "check":
    wrong = words[0].startswith("wrong") and broken != "check is always green"
    sys.exit(int(wrong) or (4 if words[0].endswith(":alone") else 0))
if command == "watch":
    right = words[-1] == "right.py"
    said = "HOLDS" if right or broken == "watch is always green" else "REFUTED"
    rows = [{{"obligation": "GA-INV-002", "outcome": said}}]
    pathlib.Path(words[words.index("--out") + 1]).write_text(json.dumps({{"results": rows}}))
    sys.exit(3 if broken == "watch crashes" else 4 if right else 1)
"""


class Bench:
    """A matrix whose environments hold fake commands. `broken`: what one does wrong; `refused`: pip's reason."""

    def __init__(self, page: Path) -> None:
        self.page, self.broken, self.refused = page, "", ""

    def install(self, python: str, torch: str, wheel: Path, env: Path) -> str:
        """In the place of `matrix.install`."""
        (env / "bin").mkdir(parents=True)
        shown = {"executable": sys.executable, "broken": self.broken, "checks": list(matrix.LAYERS.values())}
        for name, text in (("python", PYTHON), ("gradproof", GRADPROOF)):
            (env / "bin" / name).write_text(text.format(**shown))
            (env / "bin" / name).chmod(0o755)
        return self.refused

    def run(self) -> tuple[int, str]:
        """The exit code, and the page."""
        code = matrix.main(["--out", str(self.page)])
        return code, self.page.read_text()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One interpreter that is there and two that are not, and no network."""
    (tmp_path / "page.md").write_text(PAGE)
    made = Bench(tmp_path / "page.md")
    monkeypatch.setattr(matrix, "interpreter", lambda version: sys.executable if version == "3.11" else None)
    monkeypatch.setattr(matrix, "newest", lambda python: "9.9.9")
    monkeypatch.setattr(matrix, "built", lambda home: home / "gradproof.whl")
    monkeypatch.setattr(matrix, "install", made.install)
    return made


def test_every_cell_that_can_be_made_passes_and_a_missing_interpreter_is_not_run(bench: Bench) -> None:
    code, page = bench.run()
    assert code == 0
    assert page.startswith(f"# Page\n\n{matrix.BEGIN}\n")
    assert page.endswith(f"{matrix.END}\n\nAfter.\n")
    assert "old" not in page
    assert ": 2 PASS, 0 FAIL, 4 NOT_RUN." in page
    row = "| 3.99.1 | 9.9.9+fake (newest) | PASS | PASS | PASS | PASS | PASS | PASS | PASS | numpy 2.0 |"
    assert page.count(row) == 1
    assert f"| 3.13 | {matrix.minimum()} (minimum) | - | - | - | - | - | - | NOT_RUN | - |" in page
    assert page.count("Python 3.13 is") == 2


@pytest.mark.parametrize(("broken", "column", "reason"), [
    *((check, column, f"{column}: {check} NOT_RUN why") for column, check in matrix.LAYERS.items()),
    ("verify crashes", "CrossHair", "3, not 4"),
    ("check is always green", "check", "wrong.py:train' ended with 0"),
    ("watch is always green", "watch", "wrong script ended with 1"),
    ("watch crashes", "watch", "right script ended with 3"),
])  # fmt: skip
def test_a_failing_cell_makes_it_red(bench: Bench, broken: str, column: str, reason: str) -> None:
    bench.broken = broken
    code, page = bench.run()
    assert code == 1
    assert ": 0 PASS, 2 FAIL, 4 NOT_RUN." in page
    assert reason in page
    head, row = (next(line for line in page.splitlines() if line.startswith(f"| {w}")) for w in ("Python", "3.99"))
    assert dict(zip(head.split(" | "), row.split(" | "), strict=True))[column] == "FAIL"


def test_what_cannot_be_installed_is_not_run_and_a_matrix_that_ran_nothing_is_red(bench: Bench) -> None:
    bench.refused = "pip install: ERROR: No matching distribution found for torch"
    code, page = bench.run()
    assert code == 1
    assert ": 0 PASS, 0 FAIL, 6 NOT_RUN." in page
    assert page.count(bench.refused) == 2


def test_an_index_that_does_not_answer_leaves_the_newest_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "newest", lambda python: None)
    code, page = bench.run()
    assert (code, page.count("names no torch")) == (0, 1)


def test_the_newest_is_what_pip_says(tmp_path: Path) -> None:
    pip = tmp_path / "python"
    for said, code, found in (
        ("torch (2.15.0)\\nAvailable versions: 2.15.0, 2.6.0", 0, "2.15.0"),
        ("ERROR: no", 1, None),
    ):
        pip.write_text(f"#!/bin/sh\nprintf '{said}\\n'\nexit {code}\n")
        pip.chmod(0o755)
        assert matrix.newest(str(pip)) == found


def test_a_disk_without_room_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**9))
    said = matrix.install(sys.executable, "2.6", tmp_path / "wheel", tmp_path / "env")
    assert re.findall(r"\d+", said) == ["3", "28"]
    assert not (tmp_path / "env").exists()


def test_a_torch_that_does_not_import_fails(bench: Bench, tmp_path: Path) -> None:
    cell, env = matrix.Cell("3.11", "2.6", "minimum"), tmp_path / "env"
    bench.install("", "", tmp_path, env)
    (env / "bin/python").write_text("#!/bin/sh\necho libcudart.so.12 >&2\nexit 1\n")
    matrix.attempt(cell, env, tmp_path)
    assert cell.state == "FAIL"
    assert "import: libcudart.so.12" in cell.reasons()[4]


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Page\n")
    with pytest.raises(ValueError, match="table"):
        matrix.put(tmp_path / "page.md", "table")
    assert (tmp_path / "page.md").read_text() == "# Page\n"


def test_the_minimum_is_the_declared_one() -> None:
    assert f'"torch>={matrix.minimum()}"' in (matrix.REPOSITORY / "pyproject.toml").read_text()
