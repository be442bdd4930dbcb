"""The commands that the documentation tells a reader to run: lines of its blocks, and whole commands in its text."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLLOWED = ("tutorial.md", "recipes.md", "index.md")
"""Pages of which a test follows each block, in order, with what it prints."""
GENERATED = (
    "bench.md", "laws.md", "mutants.md", "mutation-matrix.md", "mutation.md", "obligations.md", "origin.md",
    "scripts.md", "soundness.md",
)  # fmt: skip
"""Pages that a command writes. The command stands in the Makefile, and in the page's own first lines."""
PROGRAMS = r"gradproof|python|make|pip|dask|openssl|torchrun|pre-commit|pytest|gh"
BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(rf"(?:\$ )?((?:{PROGRAMS}) .*?)(?:\s{{2,}}#.*|\s+# .*)?")
SAID = re.compile(r"gradproof( \w+)?: |.*\.\.\.$")
INLINE = re.compile(rf"`((?:{PROGRAMS}) [^`\n]+)`")
BARE = re.compile(r"gradproof [a-z-]+|pytest proofs|python -P")
"""A name of a command, such as `gradproof check`, about which a sentence speaks."""


def in_blocks(text: str) -> list[str]:
    """The commands of a page's blocks of shell, without prompts and comments."""
    blocks = (match["text"] for match in BLOCK.finditer(text) if match["kind"] in ("", "sh"))
    lines = [line for block in blocks for line in block.splitlines()]
    found = (COMMAND.fullmatch(line) for line in lines if not SAID.match(line))
    return [match[1] for match in found if match]


def in_text(text: str) -> list[str]:
    """The commands with arguments that stand in sentences and tables."""
    return [found for found in INLINE.findall(BLOCK.sub("", text)) if not BARE.fullmatch(found)]


def told() -> dict[str, list[str]]:
    """Every command of README and docs/ to the pages that tell it; pages that are followed, or generated, left out."""
    found: dict[str, list[str]] = {}
    pages = [p for p in sorted((REPOSITORY / "docs").glob("*.md")) if p.name not in (*FOLLOWED, *GENERATED)]
    for path in [REPOSITORY / "README.md", *pages]:
        text = path.read_text(encoding="utf-8")
        for command in [*in_blocks(text), *in_text(text)]:
            found.setdefault(command, []).append(path.name)
    return found
