"""Where the names that a run asked for were found on the import path, and where they would be found now.

A run notes the path that Python started with, the path at its end, and which folder had each name first. Evidence is
stale where another folder would have it first now, or where the folder has another file for it. Nothing is imported.
What a workspace put onto the path stays there; what Python starts with is asked of a Python that is started anew, so
PYTHONPATH, editable installations and `.pth` files count as they are now.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gradproof
from gradproof.core.workspace import CONTENT, PACKAGE, STDLIB, Finder, Locator, installed
from gradproof.evidence.environment import generated

ROOT = "ws:."
SITE = "site"
"""Folders of installed packages with which Python starts, wherever they lie: versions and contents count."""
_ENGINE = "gradproof"
_LIMIT = 60.0
_PATH = "import json, sys; print(json.dumps(sys.path))"
FileOf = Callable[[str], Path | None]
Folders = tuple[tuple[str, Path], ...]
"""An import path: the input key of each folder, or SITE, and the folder."""


def searched(
    modules: Mapping[str, str], root: Path, start: Iterable[str], finder: Finder, wanted: Iterable[str], place: FileOf
) -> dict[str, Any]:
    """The import path among the inputs of a run. `modules`: input keys by dotted name.

    `start`: sys.path as the run began. `where`: names that were asked for, by the folder that has them first; a
    module is at the root where it says nothing else. `apart`: modules that came from elsewhere, and from which
    folder, an empty text where no folder has that file under its name. `wanted`: names that code which counts by its
    content looked for in vain. `passing`: names that were not there in folders that were on the path, or a package's,
    as they were asked for.
    """
    begun = _begun(start, root)
    known = frozenset(p for key, p in begun if key == SITE)
    path = _keyed(_folders(sys.path), root, known)
    look, where, apart = _Look(_rooted(path, root)), dict[str, list[str]](), dict[str, str]()
    for name, key in sorted(modules.items()):
        file, found = place(key), look.first(name)
        if file is None or (found is not None and _same(look.at(found[1], name), file)):
            continue
        home = home_of(name, file)
        apart[name] = _key(home, root, known) if home is not None and _same(look.at(home, name), file) else ""
    named = {*modules, *finder.absent, *sys.stdlib_module_names, *_loaded()}
    for name in sorted(n for n in named if n.partition(".")[0] != _ENGINE):
        found = look.first(name)
        if found is not None and (found[0] != ROOT or name not in modules or name in apart):
            where.setdefault(found[0], []).append(name)
    nowhere = sorted(n for n in set(wanted) if look.first(n) is None)
    return {
        "start": [k for k, _ in begun],
        "path": [k for k, _ in path],
        "where": where,
        "apart": apart,
        "wanted": nowhere,
        "passing": _passing(finder, look, root, known),
    }


def _passing(finder: Finder, look: _Look, root: Path, known: frozenset[Path]) -> dict[str, list[str]]:
    final = {os.path.realpath(p) for _, p in look.path}
    found: dict[str, set[str]] = {}
    for path, names in finder.paths.items():
        for folder in (p for p in _folders(path) if os.path.realpath(p) not in final):
            own = {n for n in names if n not in CONTENT and look.at(folder, n) is None}
            found.setdefault(_key(folder, root, known), set()).update(own)
    for place, names in finder.inner.items():
        folder = Path(os.path.abspath(place))
        own = {n for n in (name.rpartition(".")[2] for name in names) if look.at(folder, n) is None}
        found.setdefault(_key(folder, root, known), set()).update(own)
    return {key: sorted(names) for key, names in sorted(found.items()) if names}


def _loaded() -> set[str]:
    """Top-level names of the modules that this process has from files, without those that every Python begins with."""
    held = [(n, module) for n, module in list(sys.modules.items()) if "." not in n and n not in gradproof.BARE]
    return {name for name, module in held if getattr(module, "__file__", None)}


def home_of(name: str, file: Path) -> Path | None:
    """The folder of the import path from which a module of this name comes from this file."""
    above = name.count(".") + (file.name.partition(".")[0] == "__init__")
    return file.parents[above] if above < len(file.parents) else None


def _folders(places: Iterable[str]) -> list[Path]:
    """Folders and archives of an import path, each once and by its own name; none of Python, torch or the engine."""
    paths: dict[str, Path] = {}
    for place in places:
        if isinstance(place, str) and place:
            paths.setdefault(os.path.realpath(place), Path(os.path.abspath(place)))
    return [p for real, p in paths.items() if not _own(Path(real))]


def _but(folders: Iterable[Path], root: Path) -> list[Path]:
    """Folders without the root, which a run puts first."""
    return [p for p in folders if os.path.realpath(p) != str(root)]


def _own(path: Path) -> bool:
    inside, made = path.is_relative_to(STDLIB) and not installed(path), generated()
    if made is not None and path == made.parent:
        return True
    return inside or path.is_relative_to(PACKAGE) or (path.parent == STDLIB.parent and path.suffix == ".zip")


def _begun(start: Iterable[str], root: Path) -> Folders:
    """What Python started with, by key: installed packages are behind its own library, elsewhere they are a folder."""
    places = [p for p in start if isinstance(p, str)]
    library = next((i for i, p in enumerate(places) if Path(os.path.realpath(p)) == STDLIB), -1)
    behind = frozenset(p for p in _folders(places[library + 1 :]) if installed(p))
    return _keyed(_but(_folders(places), root), root, behind)


def _keyed(folders: Iterable[Path], root: Path, site: frozenset[Path]) -> Folders:
    return tuple((_key(p, root, site), p) for p in folders)


def _key(path: Path, root: Path, site: frozenset[Path]) -> str:
    """The input key of a folder. `site`: the folders of installed packages with which Python starts."""
    if path in site:
        return SITE
    inner = next((p for p in (path, Path(os.path.realpath(path))) if p.is_relative_to(root)), None)
    return f"ext:{path.as_posix()}" if inner is None else f"ws:{inner.relative_to(root).as_posix()}"


def _rooted(path: Folders, root: Path) -> Folders:
    """The path with the root, which is asked first where the path does not have it."""
    return path if any(key == ROOT for key, _ in path) else ((ROOT, root), *path)


def _same(found: Path | None, file: Path) -> bool:
    return found is not None and os.path.realpath(found) == os.path.realpath(file)


class _Look:
    """Looks names up along an import path; each name and folder once."""

    def __init__(self, path: Folders, locators: dict[Path, Locator] | None = None) -> None:
        self.path, self._locators = path, {} if locators is None else locators
        self._first: dict[str, tuple[str, Path] | None] = {}

    def at(self, folder: Path, name: str) -> Path | None:
        """The file of a module in one folder."""
        if folder not in self._locators:
            self._locators[folder] = Locator(folder)
        return self._locators[folder].locate(name)

    def first(self, name: str) -> tuple[str, Path] | None:
        """Which folder of the path has a name first; None where none has, or Python itself comes before."""
        if name not in self._first:
            self._first[name] = next(self._having(name), None)
        return self._first[name]

    def _having(self, name: str) -> Iterator[tuple[str, Path]]:
        top = name.partition(".")[0]
        above = self.first(top) if top != name else None
        for key, folder in self.path if above is None else (above,):
            if key == SITE and top in sys.stdlib_module_names:
                return
            if (key == ROOT or top not in CONTENT) and self.at(folder, name) is not None:
                yield key, folder


def started() -> tuple[str, ...] | None:
    """sys.path of a worker that is started now; None where Python cannot be started."""
    if gradproof.STARTED is not None:
        return gradproof.STARTED
    return _asked(sys.executable, os.environ.get("PYTHONPATH", ""), os.environ.get("HOME", ""))


@cache
def _asked(python: str, pythonpath: str, home: str) -> tuple[str, ...] | None:
    """sys.path of a Python that is started as workers are, asked once for each value of the variables that matter."""
    from gradproof.evidence.environment import worker_environ

    environ = worker_environ("smt", os.curdir)
    try:
        done = subprocess.run([python, "-P", "-c", _PATH], capture_output=True, check=True, env=environ, timeout=_LIMIT)
        return tuple(map(str, json.loads(done.stdout)))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None


class Trail:
    """Looks for the recorded names again. `here`: whether folders outside of the workspace are those of the runs."""

    def __init__(self, root: Path, place: FileOf, here: bool = True) -> None:
        self._root, self._place, self._here = root, place, here
        self._locators: dict[Path, Locator] = {}
        self._looks: dict[Folders, _Look] = {}
        self._start: Folders | None = None
        self._real: dict[Path, str] = {}

    def moved(self, inputs: Mapping[str, Any]) -> list[str]:
        """Why recorded names would be found elsewhere now.

        A module that no folder had under its name was loaded by other means: its content counts. So does one from a
        folder that the path has lost, as long as nothing else would be found.
        """
        search, modules = inputs["search"], inputs["modules"]
        if self._here and self._start is None:
            now = started()
            if now is None:
                return [f"{sys.executable} cannot be started, and nobody else knows its import path"]
            self._start = _begun(now, self._root)
        look = self._look(search)
        then = {name: ROOT for name in modules if name not in search["apart"]}
        then |= {name: key for key, names in search["where"].items() for name in names}
        found: dict[str, str] = {}
        for name in {*then, *inputs["absent"], *search["wanted"], *search["apart"], *sys.stdlib_module_names}:
            hit, before = look.first(name), then.get(name)
            elsewhere = before is not None if hit is None else hit[0] != before
            if (elsewhere or name in modules) and (why := self._other(look, name, before, inputs)):
                found[name] = why
        stated = [why for name, why in sorted(found.items()) if name.rpartition(".")[0] not in found]
        return [*self._archives(search), *stated, *self._passed(look, search["passing"])]

    def _archives(self, search: Mapping[str, Any]) -> list[str]:
        new = [p for k, p in self._start or () if k not in search["start"] and os.path.isfile(p)]
        return [f"{p.name} is new on the import path, and archives are not looked into" for p in new]

    def _passed(self, look: _Look, passing: Mapping[str, Any]) -> list[str]:
        """Names that are there now in folders that a run passed over."""
        places = [(folder, name) for key in passing for _, folder in self._placed([key]) for name in passing[key]]
        return [f"module {n} is now in {p.name}, shadowing what was not there" for p, n in places if look.at(p, n)]

    def _look(self, search: Mapping[str, Any]) -> _Look:
        path = self._path(search)
        if path not in self._looks:
            self._looks[path] = _Look(path, self._locators)
        return self._looks[path]

    def _path(self, search: Mapping[str, Any]) -> Folders:
        """The path of a run, with what Python starts with now in the place of what it started with then."""
        then, start = search["path"], set(search["start"])
        if not self._here or self._start is None:
            return _rooted(self._placed(then), self._root)
        first = then.index(ROOT) + 1 if ROOT in then else 0  # what is before the root was put there
        left = [(k, p) for k, p in self._start if k in then or k not in start]
        last = max((i for i, key in enumerate(then) if key in start), default=first - 1)
        made = list(self._placed(then[:first]))
        for i, key in enumerate(then[first:], first):
            if key not in start:
                made += self._placed([key])
            while key in [k for k, _ in left] or (i >= last and left):
                made.append(left.pop(0))
        return _rooted((*made, *left), self._root)

    def _placed(self, keys: Iterable[str]) -> Folders:
        """Recorded folders; those of another machine are not looked into."""
        found = ((k, self._place(k)) for k in keys)
        return tuple((k, p) for k, p in found if p is not None and (self._here or k.startswith("ws:")))

    def _other(self, look: _Look, name: str, then: str | None, inputs: Mapping[str, Any]) -> str | None:
        """Why a name would be found elsewhere now, or as another file; None where it would not."""
        search, key = inputs["search"], inputs["modules"].get(name)
        now = look.first(name)
        where = None if now is None else now[0]
        if where != then and not self._indifferent(look, name, then, where, inputs):
            return _stated(name, key, then, now)
        home = search["apart"].get(name, then)
        if not key or not home or not (self._here or home.startswith("ws:")) or (home == SITE and now is None):
            return None
        folder, file = now[1] if now is not None and now[0] == home else self._place(home), self._place(key)
        found = None if folder is None else look.at(folder, name)
        if found is None or file is None:
            return f"module {name} is no longer found"
        if self._leads(found) == self._leads(file):
            return None
        there = "in the workspace" if home == ROOT and key.startswith("ext:") else found.name
        return f"module {name} is now {there}, shadowing {key}"

    def _leads(self, path: Path) -> str:
        """Where a path leads to."""
        if path not in self._real:
            self._real[path] = os.path.realpath(path)
        return self._real[path]

    def _indifferent(
        self, look: _Look, name: str, then: str | None, now: str | None, inputs: Mapping[str, Any]
    ) -> bool:
        """Whether it does not matter that a name is elsewhere on the path."""
        if then is None:
            return now == SITE and name not in inputs["search"]["wanted"]
        if not self._here and not then.startswith("ws:"):
            return now is None or _behind(inputs["search"]["path"], now, then)
        if now is not None or then == SITE:
            return now is None and name in inputs["modules"]
        folder = self._place(then)
        return folder is not None and look.at(folder, name) is not None


def _behind(path: Sequence[str], now: str, then: str) -> bool:
    """Whether a folder comes later on a path than another one; the root is first where the path does not say."""
    return now in path and then in path and path.index(now) > path.index(then)


def _stated(name: str, key: str | None, then: str | None, now: tuple[str, Path] | None) -> str:
    if now is None:
        return f"module {name} is no longer found"
    if now[0] == ROOT and not then and not key:
        return f"{name} now exists in the workspace"
    shadowed = "the installed one" if then == SITE else key or then or "what was not there"
    return f"module {name} is now in {'the workspace' if now[0] == ROOT else now[1].name}, shadowing {shadowed}"
