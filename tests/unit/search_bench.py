"""A run and a gate with import paths of their own: what the tests of `gradproof.evidence.import_path` share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.schemas.evidence import ImportSearch
from gradproof.core.workspace import Finder, Locator
from gradproof.evidence.import_path import Search, searched

LIBRARY = str(Path(os.__file__).resolve().parent)
LIB = ("lib", "lib.part")
HOME = ("home", LIBRARY, "site-packages")
Imports = list[dict[str, Any]]
PLACES = re.compile(r"\b(?:ws|ext|what):[^\s,;]+|installed|any|not there")
"""What a reason names: keys of files, and what stands for none."""


class Run:
    """A run and a gate: the import paths of both, as folders beside the workspace, and what became of the names."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch, self.out = root, patch, f"ext:{root.parent}"

    def places(self, names: Iterable[str]) -> tuple[str, ...]:
        """Folders beside the workspace, as an import path names them."""
        return tuple(name if os.path.isabs(name) else str(self.root.parent / name) for name in names)

    def write(self, *files: str) -> None:
        """Empty files beside the workspace."""
        for name in files:
            (self.root.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root.parent / name).write_text("")

    def remove(self, file: str) -> None:
        """One of these files is gone."""
        (self.root.parent / file).unlink()

    def imports(self, *path: str, start: tuple[str, ...] = (), names: Iterable[str] = LIB,
                others: Iterable[str] = (), finder: Finder | None = None) -> Imports:  # fmt: skip
        """What a run notes that has this path, and began with `start`. `others`: names that installed code asks for."""
        finder, places = finder or Finder(self.root), self.places(path)
        for name in (*names, *others):
            key = (name, *self._within(name, places))
            finder.asked.setdefault(key, set()).update([] if name in others else [str(self.root / "models/a.py")])
        return searched(self.root, self.places(start), finder)

    def _within(self, name: str, places: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
        """Whether a name is a part of a package with code, and the folders in which it is looked for."""
        folders: Iterable[str] = places
        for part in name.split(".")[:-1]:
            spec = Locator(self.root).spec(part, folders)
            if spec is None or spec.loader is None:
                return False, places
            folders = spec.submodule_search_locations or ()
        return folders is not places, tuple(folders)

    def moved(self, imports: Imports, *start: str, here: bool = True) -> list[str]:
        """What the gate says whose Python starts with `start`."""
        return Search(self.root, self.places(start), here).moved(map(ImportSearch.model_validate, imports))


def hiding(reasons: Iterable[str]) -> list[str]:
    """Of each reason the module, where it is now and what it hides: `lib ws:lib.py ext:/lib.py`. One gone is a name."""
    return [" ".join([reason.split()[1], *PLACES.findall(reason)]) for reason in reasons]


def shown(reasons: Iterable[str]) -> list[str]:
    """The same without what is hidden."""
    return [" ".join(found.split()[:2]) for found in hiding(reasons)]


def where(imports: Imports, name: str) -> list[str]:
    """Where a run found a name."""
    return [search["names"][name] for search in imports if name in search["names"]]


def made(root: Path, patch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    run = Run(root, patch)
    run.write("ws/src/pkg/train.py", "home/lib/__init__.py", "home/lib/part.py", "first/f.txt", "behind/b.txt")
    run.write("site-packages/acc/__init__.py", "home/spare.py")
    return run
