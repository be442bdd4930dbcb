"""A page of documentation, followed to the letter in a fresh folder: every command, and every line that is promised."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
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

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.said = home, ""
        self.environ = {
            **environ, "HOME": str(home), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GIT_CONFIG_GLOBAL": os.devnull,
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
                self.help(block)
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

    def help(self, block: Block) -> None:
        """Replace the lines that are taken out by those that are put in. Raises ValueError where they are not there."""
        rows = block.text.splitlines(keepends=True)
        old, new = ("".join(r[1:] for r in rows if r[0] == sign) for sign in "-+")
        path = self.folder / block.file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{old!r} does not stand once in {path}")
        path.write_text(text.replace(old, new), encoding="utf-8")
