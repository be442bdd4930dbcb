"""Where a module was found that is not at the root of a workspace, and what would be found in its place now.

A run notes, for each such module, the folder that had it and the folders that Python asks before that one and that
had no such name. Evidence is stale where one of them has it now, or where the folder has another file for it. Nothing
is imported. What PYTHONPATH adds is compared; a workspace that changes sys.path counts by its files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproof.workspace import PACKAGE, Locator, installed

_STDLIB = Path(os.__file__).resolve().parent
Place = Callable[[str], Path | None]


def searched(modules: Mapping[str, str], root: Path, start: Iterable[Path], place: Place) -> dict[str, Any]:
    """What a claim says of its modules that the root does not have. `modules`: claim keys by dotted name.

    `start`: the folders of PYTHONPATH, in order. `place`: the file of a claim key. A row is of a package, or of a
    module that came from another folder than its package did. What no folder has under its name has no home.
    """
    locator, path = Locator(root), [p for p in _folders(sys.path) if p != root]
    locators = {folder: Locator(folder) for folder in path}
    found: dict[str, dict[str, Any]] = {}
    for name, key in sorted(modules.items()):
        file, top = place(key), name.partition(".")[0]
        if file is None or key.startswith("gp:") or _same(locator.locate(name), file):
            continue
        home, row = home_of(name, file), {"home": "", "before": list[str]()}
        if home is not None and _same(locators.setdefault(home, Locator(home)).locate(name), file):
            before = path[: path.index(home)] if home in path else path
            asked = [p for p in before if not any(locators[p].locate(n) for n in (top, name))]
            row = {"home": _key(home, root), "before": [_key(p, root) for p in asked]}
        if found.setdefault(top, row) != row:
            found[name] = row
    return {"start": [_key(p, root) for p in _folders(map(str, start))], "found": found}


def home_of(name: str, file: Path) -> Path | None:
    """The folder of the import path from which a module of this name comes from this file."""
    above = name.count(".") + (file.name.partition(".")[0] == "__init__")
    return file.parents[above] if above < len(file.parents) else None


def _folders(places: Iterable[str]) -> list[Path]:
    """Folders of an import path that anybody may write to: neither Python's own nor an archive, nor the engine's."""
    paths = [Path(p).resolve() for p in places if p]
    return [p for p in paths if p.suffix != ".zip" and not _own(p)]


def _own(path: Path) -> bool:
    inside = path.is_relative_to(_STDLIB) and not installed(path)
    return inside or path.is_relative_to(PACKAGE)


def _key(path: Path, root: Path) -> str:
    return f"ws:{path.relative_to(root).as_posix()}" if path.is_relative_to(root) else f"ext:{path.as_posix()}"


def _same(found: Path | None, file: Path) -> bool:
    return found is not None and found.resolve() == file.resolve()


class Trail:
    """Looks for the modules of claims again. `here`: whether folders outside of the workspace are those of the run."""

    def __init__(self, place: Place, here: bool = True) -> None:
        self._place, self._here = place, here
        self._locators: dict[Path, Locator] = {}
        self._now = _folders(os.environ.get("PYTHONPATH", "").split(os.pathsep))

    def moved(self, name: str, key: str, file: Path, search: Mapping[str, Any]) -> str | None:
        """Why a module that the root does not have would be another one now; None where it would not.

        One that no folder had under its name was loaded by other means: its content counts. So does one from a folder
        that PYTHONPATH has lost, as long as nothing else would be found.
        """
        top = name.partition(".")[0]
        row = search["found"].get(name) or search["found"].get(top)
        if row is None:
            return f"module {name} is no longer found"
        home = self._place(row["home"]) if row["home"] else None
        if home is None or not (self._here or row["home"].startswith("ws:")):
            return None
        found = self._locate(home, name)
        if found is None or not _same(found, file):
            return f"module {name} is {f'now {found}, shadowing {key}' if found else 'no longer found'}"
        for folder in [*self._asked(row["before"]), *self._first(home, search["start"])]:
            held = next((n for n in (top, name) if folder != home and self._locate(folder, n) is not None), None)
            if held is not None:
                return f"module {held} is now in {folder.name}, shadowing {row['home']}"
        return None

    def _locate(self, folder: Path, name: str) -> Path | None:
        if folder not in self._locators:
            self._locators[folder] = Locator(folder)
        return self._locators[folder].locate(name)

    def _asked(self, keys: Sequence[str]) -> list[Path]:
        """Folders that had no such module and are asked before the home."""
        kept = keys if self._here else [k for k in keys if k.startswith("ws:")]
        return [p for k in kept if (p := self._place(k)) is not None]

    def _first(self, home: Path, start: Sequence[str]) -> list[Path]:
        """Folders of PYTHONPATH now that come before the home, or that the run did not have."""
        if not self._here:
            return []
        then = [p for k in start if (p := self._place(k)) is not None]
        if home in self._now:
            return self._now[: self._now.index(home)]
        if home in then:
            return [*self._now, *(p for p in _folders(sys.path) if installed(p))]
        return [p for p in self._now if p not in then]
