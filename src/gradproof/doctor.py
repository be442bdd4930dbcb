"""What in a working directory would make `import` find something other than what is installed.

A script that is started in a folder searches that folder first. For each module or folder in it that has the name of an
installed package, or of one of the standard library, the import system is asked twice, with the folder first and
without it; nothing is imported. A folder without `__init__.py`, such as the one that a run tracker writes its logs to,
loses against an ordinary installed package and wins against one that is installed in editable mode, or not at all.
Two such folders of one name are joined, and hide nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

TRACKERS = ("aim", "clearml", "comet_ml", "mlflow", "neptune", "tensorboard", "wandb")
"""Optional packages that a loop imports if it can, and that write a folder of their own name, or are given one."""

SUFFIXES = (".py", ".pyc", *EXTENSION_SUFFIXES)


@dataclass(frozen=True)
class Shadow:
    """A name that import finds in the folder. `installed`: where it would find it else, None where it is nowhere."""

    name: str
    found: str
    installed: str | None
    distributions: tuple[str, ...]

    def told(self) -> str:
        """What is wrong and what to do."""
        if self.installed is None:
            text = f"{self.found} is taken for the package {self.name!r}, which is not installed: `import {self.name}`"
            return f"{text} succeeds and gives an empty module; rename the folder, or install the package"
        whose = f" of {', '.join(self.distributions)}" if self.distributions else " of the standard library"
        return f"{self.found} shadows {self.name!r}{whose} ({self.installed}): rename it, or start elsewhere"


def shadows(folder: Path) -> list[Shadow]:
    """Everything in the folder that hides an installed package, by name. Raises OSError for a folder without entry."""
    folder = folder.resolve()
    known = installed()
    found = []
    for name, entry in candidates(folder):
        with searching([str(folder), *_elsewhere(folder)]):
            here = resolved(name)
        if here is None or not _inside(here, folder):
            continue
        with searching(_elsewhere(folder)):
            there = resolved(name)
        if there is not None and (_inside(there, folder) or here.origin is there.origin is None):
            continue
        distributions = known.get(name, ())
        if there is not None and (distributions or name in sys.stdlib_module_names):
            found.append(Shadow(name, str(entry), place(there), distributions))
        elif there is None and (distributions or name in TRACKERS) and here.origin is None:
            found.append(Shadow(name, str(entry), None, distributions))
    return found


def candidates(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names that `import` could find in the folder, with what has them, in order. Raises OSError."""
    seen = set[str]()
    for entry in sorted(folder.iterdir()):
        name = entry.name if entry.is_dir() else _stem(entry.name)
        if name.isidentifier() and name != "__pycache__" and name not in seen:
            seen.add(name)
            yield name, entry


def _stem(name: str) -> str:
    """The module's name of a file; empty for a file that is no module."""
    suffix = max((s for s in SUFFIXES if name.endswith(s)), key=len, default="")
    return name.removesuffix(suffix) if suffix else ""


def installed() -> Mapping[str, tuple[str, ...]]:
    """Name of a package or module -> the distributions that provide it; one that says nothing, by its own name."""
    found: dict[str, set[str]] = {}
    for name, distributions in importlib.metadata.packages_distributions().items():
        found.setdefault(name, set()).update(distributions)
    for distribution in importlib.metadata.distributions():
        title = distribution.metadata["Name"]
        if title:
            found.setdefault(title.replace("-", "_").lower(), set()).add(title)
    return {name: tuple(sorted(titles)) for name, titles in found.items()}


def resolved(name: str) -> ModuleSpec | None:
    """What `import name` would load in a fresh process with this sys.path; a loaded module does not count."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None, None)
        if spec is not None:
            return spec
    return None


def place(spec: ModuleSpec) -> str:
    """The file or folder that a module comes from."""
    return str(spec.origin or next(iter(spec.submodule_search_locations or ()), spec.name))


@contextmanager
def searching(path: Sequence[str]) -> Iterator[None]:
    """Another sys.path, as long as it lasts."""
    held = list(sys.path)
    sys.path[:] = path
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = held
        importlib.invalidate_caches()


def _elsewhere(folder: Path) -> list[str]:
    """sys.path without the folder."""
    return [p for p in sys.path if Path(p or ".").resolve() != folder]


def _inside(spec: ModuleSpec, folder: Path) -> bool:
    where = place(spec)
    return where not in ("built-in", "frozen") and Path(where).resolve().is_relative_to(folder)
