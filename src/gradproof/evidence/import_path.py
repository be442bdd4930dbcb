"""Where the names that a run asked for were found on the import path, and where they would be found now.

A run notes each name that it asked for, the path on which it looked, and the file that came of it. Evidence is stale
where the same search comes to another file now. Nothing is imported. What a workspace put onto the path stays there;
what Python starts with is asked of a Python that is started anew, so PYTHONPATH, editable installations and `.pth`
files count as they are now.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core import workspace
from gradproof.core.workspace import CONTENT, STDLIB, Finder, Locator, installed, pythons
from gradproof.evidence.environment import generated, worker_environ
from gradproof.evidence.inputs import by_version, key_of, place_of

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import ImportSearch

ROOT = "ws:."
START = "start"
"""In a path: the folders that Python starts with, its own library and installed packages among them."""
SITE = "site"
"""Where a name was found: in Python's own library or among the installed packages. Versions and contents count."""
EITHER = "site or nowhere"
"""Where it does not matter which of both: only installed code asked for the name."""
_ENGINE = "gradproof"
_LIMIT = 60.0
_PATH = "import json, sys; print(json.dumps(sys.path))"
_SAID = {"": "what was not there", SITE: "the installed one", EITHER: "the installed one, if any"}
Keys = tuple[str, ...]
"""A path: the input keys of its folders. With START it is one of sys.path, without it the folders of a package."""


def searched(root: Path, start: Sequence[str], finder: Finder) -> list[dict[str, Any]]:
    """Each path on which a run looked, and where each name is on it. `start`: sys.path as the run began.

    A name that was loaded and never asked for is looked for where Python starts, behind the root.
    """
    search, asked = Search(root, start), dict[Keys, dict[str, bool]]()
    for (name, within, places), askers in list(finder.asked.items()):
        own = any(asker == workspace.__file__ or not by_version(asker) for asker in askers)
        installed_part = within and not own and all(pythons(Path(p)) for p in places)
        if installed_part or name.partition(".")[0] == _ENGINE:
            continue
        names = asked.setdefault(search.folder_keys(places) if within else search.path_keys(places), {})
        names[name] = own or names.get(name, False)
    loaded = {n for n, held in list(sys.modules.items()) if "." not in n and getattr(held, "__file__", None)}
    default = asked.setdefault(search.path_keys(start), {})
    default |= dict.fromkeys(loaded.difference({_ENGINE}, *asked.values()), False)
    return [{"path": list(path), "names": search.noted(path, names)} for path, names in asked.items()]


class Search:
    """Looks for names along paths. `start`: what Python starts with; None where it does not start.

    `here`: whether folders outside of the workspace are those of the runs.
    """

    def __init__(self, root: Path, start: Sequence[str] | None, here: bool = True) -> None:
        self._root, self._here, self._begins = root, here, start is not None
        self._start = [os.path.abspath(p) for p in start or () if p]
        self._started = {self._key(p) for p in self._start}
        real = [Path(os.path.realpath(p)) for p in self._start]
        behind = real.index(STDLIB) if STDLIB in real else len(real)
        pairs = list(zip(self._start, real, strict=True))[behind:]
        self._site = tuple(f"{p}{os.sep}" for p, at in pairs if at.is_relative_to(STDLIB) or installed(at))
        self._locator = Locator(root)
        self._folders: dict[Keys, list[str]] = {}
        self._found: dict[tuple[str, Keys], str] = {}

    def _key(self, place: str) -> str:
        path = Path(os.path.abspath(place))
        inner = next((p for p in (path, Path(os.path.realpath(path))) if p.is_relative_to(self._root)), None)
        return f"ext:{path.as_posix()}" if inner is None else f"ws:{inner.relative_to(self._root).as_posix()}"

    def folder_keys(self, places: Iterable[str]) -> Keys:
        """The keys of folders; torch's temporary one is left out."""
        made = generated()
        return tuple(dict.fromkeys(self._key(p) for p in places if p and (made is None or Path(p) != made.parent)))

    def path_keys(self, places: Iterable[str]) -> Keys:
        """The keys of a sys.path, on which the root is. START stands for what Python starts with, behind the root."""
        keys = self.folder_keys(places)
        keys = keys if ROOT in keys else (ROOT, *keys)
        behind = range(keys.index(ROOT) + 1, len(keys))
        first = next((i for i in behind if keys[i] in self._started), len(keys))
        return (*keys[:first], START, *(k for k in keys[first:] if k not in self._started))

    def noted(self, path: Keys, names: Mapping[str, bool]) -> dict[str, str]:
        """Where names are found. For each: whether a contract or code that counts by its content asked for it."""
        found = {n: self.found(n, path) for n in sorted(names)}
        return {n: EITHER if where in ("", SITE) and not names[n] else where for n, where in found.items()}

    def found(self, name: str, path: Keys) -> str:
        """The key of the file that a name leads to; SITE for an installed one, and nothing where there is none."""
        if (name, path) not in self._found:
            self._found[name, path] = self._where(self._file(name, path))
        return self._found[name, path]

    def _file(self, name: str, path: Keys) -> str | None:
        if path not in self._folders:
            self._folders[path] = [folder for key in path for folder in self._places(key)]
        folders = self._folders[path]
        if START not in path:
            return self._locator.file(name.rpartition(".")[2], self._locator.own_first(folders))
        content = name.partition(".")[0] in CONTENT
        return self._locator.file(name, [str(self._root)] if content else folders)

    def _places(self, key: str) -> list[str]:
        """Folders of a key; those of another machine are not looked into."""
        if key == START:
            return self._start
        place = place_of(key, self._root) if self._here or key.startswith("ws:") else None
        return [] if place is None else [os.path.normpath(place)]

    def _where(self, file: str | None) -> str:
        if file is None:
            return ""
        if file.startswith(self._site) and not file.startswith(f"{self._root}{os.sep}"):
            return SITE
        real = Path(os.path.realpath(file))
        return key_of(real, self._root) or (SITE if str(real).startswith(self._site) else f"ext:{real.as_posix()}")

    def moved(self, imports: Iterable[ImportSearch]) -> list[str]:
        """Why names would be found elsewhere now. A part of a package that is elsewhere is not reported by itself."""
        if not self._begins:
            return [f"{sys.executable} cannot be started, and nobody else knows its import path"]
        reported: dict[str, str] = {}
        for search in imports:
            path = tuple(search.path)
            for name, then in search.names.items():
                foreign = not self._here and then not in ("", EITHER) and not then.startswith("ws:")
                now = self.found(name, _before(path, then) if foreign else path)
                if now != then and not (now == "" and foreign) and not (now in ("", SITE) and then == EITHER):
                    reported[name] = _stated(name, then, now)
        return [why for name, why in sorted(reported.items()) if name.rpartition(".")[0] not in reported]


def _before(path: Keys, then: str) -> Keys:
    """What comes on a path before the folder that a file was in; the folders of START are not looked into there."""
    at = next((i for i, key in enumerate(path) if then.startswith(f"{key}/")), len(path))
    at = path.index(START) if at == len(path) and START in path else at
    return (*path[:at], START) if START in path else path[:at]


def _stated(name: str, then: str, now: str) -> str:
    if not now:
        return f"module {name} is no longer found"
    return f"module {name} is now {_SAID.get(now, now)}, shadowing {_SAID.get(then, then)}"


def started() -> tuple[str, ...] | None:
    """sys.path of a worker that is started now; None where Python cannot be started."""
    return _asked(sys.executable, os.environ.get("PYTHONPATH", ""), os.environ.get("HOME", ""))


@cache
def _asked(python: str, pythonpath: str, home: str) -> tuple[str, ...] | None:
    """sys.path of a Python that is started as workers are, asked once for each value of the variables that matter."""
    environ = worker_environ("smt", os.curdir)
    try:
        done = subprocess.run([python, "-P", "-c", _PATH], capture_output=True, check=True, env=environ, timeout=_LIMIT)
        return tuple(map(str, json.loads(done.stdout)))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None
