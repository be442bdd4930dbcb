"""A run and a gate with import paths of their own: what the tests of `gradproof.evidence.import_path` share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gradproof
from gradproof.core.workspace import Finder
from gradproof.evidence.import_path import Trail, searched
from gradproof.evidence.inputs import key_of, place_of

LIB = {"lib": "home/lib/__init__.py", "lib.part": "home/lib/part.py"}
HOME = ("home", "site-packages")
MOVED = re.compile(r"module (\S+) is (?:now (?:in )?(?:the )?(\S+), shadowing (?:the )?([^ ;]+).*|no longer found)")


class Run:
    """A run and a gate: the import paths of both, as folders beside the workspace, and what became of the names."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch

    def places(self, names: tuple[str, ...]) -> list[str]:
        """Folders beside the workspace, as an import path names them."""
        return [name if os.path.isabs(name) else str(self.root.parent / name) for name in names]

    def write(self, *files: str) -> None:
        """Empty files beside the workspace."""
        for name in files:
            (self.root.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root.parent / name).write_text("")

    def place(self, key: str) -> Path | None:
        """The file of a claim key."""
        return place_of(key, self.root)

    def claim(self, *path: str, start: tuple[str, ...] = (), modules: Mapping[str, str] | None = None,
              absent: tuple[str, ...] = (), wanted: tuple[str, ...] = (),
              finder: Finder | None = None) -> dict[str, Any]:  # fmt: skip
        """What a run says that ended with this path, and began with `start`. `modules`: files by dotted name."""
        held = {name: key_of(Path(os.path.realpath(self.root.parent / f)), self.root) or f"ext:{self.root.parent / f}"
                for name, f in (LIB if modules is None else modules).items()}  # fmt: skip
        self.patch.setattr(sys, "path", self.places(path))
        finder = finder or Finder(self.root)
        finder.absent |= set(absent)
        search = searched(held, self.root, self.places(start), finder, wanted, self.place)
        return {"modules": held, "absent": list(absent), "search": search}

    def moved(self, claim: dict[str, Any], *start: str, here: bool = True) -> list[str]:
        """What the gate says whose Python starts with `start`."""
        self.patch.setattr(gradproof, "STARTED", tuple(self.places(start)))
        return Trail(self.root, self.place, here).moved(claim)

    def told(self, claim: dict[str, Any], *start: str, here: bool = True) -> list[str]:
        """The same, each as the module's name, where it is now, and what it hides: `lib first ext:/home/lib.py`."""
        found = [MOVED.fullmatch(why) or why for why in self.moved(claim, *start, here=here)]
        return [why if isinstance(why, str) else " ".join(filter(None, why.groups())) for why in found]


def made(root: Path, patch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    run = Run(root, patch)
    run.write("ws/src/pkg/train.py", "home/lib/__init__.py", "home/lib/part.py", "first/f.txt", "behind/b.txt")
    run.write("site-packages/acc/__init__.py", "home/spare.py")
    return run
