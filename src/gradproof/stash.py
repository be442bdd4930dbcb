"""Modules that a fork server imported in advance, out of sight until a worker imports them itself.

`preload` imports a library and takes everything that came with it out of sys.modules again. A worker that imports one
of these names gets the very module object back, after the finder of its workspace was asked for it: so what a worker
imported, what it looked for in vain and which distributions it used are the same as in a process that starts from
nothing. Only installed libraries are preloaded: a folder of PYTHONPATH runs no code in the process that all share.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from gradproof.core import Kind
from gradproof.workspace import Locator, installed

# torch._dynamo, which every optimizer imports at its first step, costs as much as torch itself.
NEEDED: Mapping[Kind, tuple[str, ...]] = {
    Kind.STUB: ("z3",),
    Kind.SMT: ("z3",),
    Kind.CROSSHAIR: ("z3", "crosshair.core_and_libs"),
    Kind.TRACE: ("numpy", "torch._dynamo"),
    Kind.TORCH: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.GATE: (),
}
_KEPT = ("gradproof", "__mp_main__", "__main__")


class Stash(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder that gives preloaded modules back. `before`: names in sys.modules that every worker has anyway."""

    def __init__(self, before: Iterable[str]) -> None:
        self._before = frozenset(before)
        self._held: dict[str, ModuleType] = {}
        # Modules, names that were looked for, and what was put on sys.path.
        self._brought: dict[str, tuple[frozenset[str], frozenset[str], tuple[str, ...]]] = {}
        self._sought: set[str] = set()
        self._asked: dict[str, tuple[ModuleType, ModuleSpec | None]] = {}

    def preload(self, name: str) -> None:
        """Import a library, if it is installed and not yet here, and hide it. Raises what its import raises."""
        top = name.partition(".")[0]
        if name in self._held or not _installed(top):
            return
        self._sought, path = set(), list(sys.path)
        importlib.import_module(name)
        self._brought[top] = self.hide(), frozenset(self._sought), tuple(p for p in sys.path if p not in path)
        sys.path[:] = path

    def hide(self) -> frozenset[str]:
        """Take every module that a worker would not have, when it starts from nothing, out of sys.modules."""
        names = {n for n in sys.modules if n not in self._before and n.partition(".")[0] not in _KEPT}
        self._held |= {name: sys.modules.pop(name) for name in names}
        return frozenset(names)

    def shadowed(self, root: Path) -> list[str]:
        """Modules at the root of a workspace for which a preloaded library looked: it would have found them there."""
        locator = Locator(root)
        sought = {name for _, names, _ in self._brought.values() for name in names}
        names = sought & {place.name.partition(".")[0] for place in root.iterdir()}
        return sorted(name for name in names if locator.spec(name, str(root)) is not None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module that is held."""
        if path is None:
            self._sought.add(fullname)
        module = self._held.get(fullname)
        if module is None:
            return None
        origin = module.__spec__.origin if module.__spec__ else None
        return ModuleSpec(fullname, self, origin=origin, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was imported; all that came with it is in sys.modules from now on."""
        module, top = self._held.pop(spec.name), spec.name.partition(".")[0]
        self._asked[spec.name] = module, module.__spec__
        came, sought, places = self._brought.get(top, (frozenset(), frozenset(), ()))
        sys.path += places
        self._announce(sought - {spec.name}, top)
        for name in [n for n in self._held if n in came or n.partition(".")[0] == top]:
            sys.modules.setdefault(name, self._held.pop(name))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run again; the import system has put its own spec in the place of the module's."""
        if module.__spec__ is not None:
            module.__spec__ = self._asked[module.__spec__.name][1]

    def _announce(self, names: Iterable[str], asked: str) -> None:
        """The finders before this one hear of the names that an import looked for, as they would have.

        Raises ImportError when one of them has such a module.
        """
        self._sought |= set(names)
        for name in sorted(set(names) - set(sys.modules)):
            for finder in sys.meta_path[: sys.meta_path.index(self)]:
                if finder.find_spec(name, None) is not None:
                    raise ImportError(f"the workspace has a module {name!r}, for which {asked} looks; run again")


def _installed(top: str) -> bool:
    spec = importlib.util.find_spec(top)
    return spec is not None and spec.origin is not None and installed(Path(spec.origin).resolve())
