"""docs/tutorial.md, followed to the letter in a fresh folder: every command, and every line that is promised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
KINDS = {"sh", "text", "python", "diff"}


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the file that it is about, its text."""

    kind: str
    file: str
    text: str


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order. Raises ValueError for one of a kind that nothing here follows."""
    found = [Block(m["kind"], m["file"] or "", m["text"]) for m in BLOCK.finditer(text)]
    if len(found) * 2 != f"\n{text}".count("\n```") or not {b.kind for b in found} <= KINDS:
        raise ValueError("a block of a kind that nobody follows")
    return found


def plain(text: str) -> str:
    """Text without its line breaks, which depend on the width of the terminal."""
    return " ".join(text.split())


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, home: Path) -> None:
        self.folder, self.said = home, ""
        places = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        self.environ = {
            **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, places)), "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GIT_CONFIG_GLOBAL": os.devnull,
        }  # fmt: skip
        for who in ("AUTHOR", "COMMITTER"):
            self.environ |= {f"GIT_{who}_NAME": "a reader", f"GIT_{who}_EMAIL": "reader@example.org"}

    def follow(self, page: list[Block]) -> Iterator[str]:
        """Do what each block says; yields the promises that are not kept."""
        for block in page:
            if block.kind == "sh":
                yield from self.run(block.text)
            elif block.kind == "python":
                (self.folder / block.file).write_text(block.text, encoding="utf-8")
            elif block.kind == "diff":
                self.mend(block)
            else:
                missing = [line for line in block.text.splitlines() if plain(line) not in plain(self.said)]
                yield from (f"{line!r} is not in {self.said}" for line in missing)

    def run(self, text: str) -> Iterator[str]:
        """Run a block in bash, where the one before it ended. The last command must succeed."""
        script = f'{text}code=$?; echo; echo "$PWD"; exit $code'
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        self.said = done.stdout + done.stderr
        if done.returncode != 0:
            yield f"{text!r} ended with {done.returncode}: {self.said}"
        self.folder = Path(done.stdout.rstrip().splitlines()[-1])

    def mend(self, block: Block) -> None:
        """Replace the lines that are taken out by those that are put in. Raises ValueError where they are not there."""
        rows = block.text.splitlines(keepends=True)
        old, new = ("".join(r[1:] for r in rows if r[0] == sign) for sign in "-+")
        path = self.folder / block.file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{old!r} does not stand once in {path}")
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.slow
def test_the_tutorial_keeps_its_promises(tmp_path: Path) -> None:
    page = blocks(TUTORIAL.read_text(encoding="utf-8"))
    loop = next(b for b in page if b.kind == "python")
    assert 30 <= len([line for line in loop.text.splitlines() if line.strip()]) <= 40
    reader = Reader(tmp_path)
    assert list(reader.follow(page)) == []
    steps = YAML(typ="safe").load(reader.folder / ".github/workflows/gradproof.yml")["jobs"]["gate"]["steps"]
    for step in steps:  # what the reader's own CI runs after the commit
        assert list(reader.run(step["run"])) == [] if "run" in step else step["uses"].startswith("actions/")
    assert {p.name for p in (reader.folder / "gradproof-reports").iterdir()} == {"report.junit.xml", "report.sarif"}


def test_a_broken_promise_is_seen(tmp_path: Path) -> None:
    page = blocks("```sh\necho red 1; false\n```\n\n```text\nred\ngreen 1\n```\n")
    told = list(Reader(tmp_path).follow(page))
    assert len(told) == 2
    assert "ended with 1" in told[0]
    assert told[1].startswith("'green 1' is not in red 1")


def test_a_mend_that_does_not_fit_and_a_block_that_nobody_follows_are_seen(tmp_path: Path) -> None:
    page = blocks("\n```python a.py\nx = 1\n```\n\n```diff a.py\n-y = 1\n+y = 2\n```\n")
    with pytest.raises(ValueError, match="does not stand once"):
        list(Reader(tmp_path).follow(page))
    with pytest.raises(ValueError, match="nobody follows"):
        blocks("\n```fish\nls\n```\n")
