"""Replacing functions and methods for a while, and putting back exactly what was there.

A replacement that somebody wrapped or copied meanwhile is left alone; `active` makes it inert.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any

from gradproof.shadow.places import LIBRARY, TORCH, owner

Replacement = Callable[..., Any]
MISSING = object()


def all_subclasses(cls: type) -> list[type]:
    """A class and every subclass that exists."""
    found, seen = [cls], {cls}
    for c in found:
        below: list[type] = type.__subclasses__(c)
        found += (s for s in below if s not in seen)
        seen.update(below)
    return found


class Patches:
    """A stack of replacements."""

    def __init__(self) -> None:
        self.active = False
        self._attributes: list[tuple[Any, str, Any, Any]] = []
        self._functions: dict[int, tuple[Any, Any]] = {}

    def wrap(self, original: Replacement, around: Replacement) -> Replacement:
        """A function that calls `around(original, *args, **kwargs)` while the patches are active."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        return wrapper

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of an object or class."""
        self._attributes.append((owner, name, vars(owner).get(name, MISSING), value))
        setattr(owner, name, value)

    def method(self, cls: type, name: str, around: Replacement) -> None:
        """Wrap a method where this very class defines it, once."""
        original = vars(cls).get(name)
        if original is None or any(owner is cls and n == name for owner, n, _, _ in self._attributes):
            return
        self.attribute(cls, name, self.wrap(original, around))

    def function(self, original: Replacement, around: Replacement) -> None:
        """Wrap a function; `everywhere` then puts the wrapper into every module that holds it."""
        self._functions[id(original)] = (original, self.wrap(original, around))

    def everywhere(self) -> None:
        """Put the wrappers of the functions into every module that was imported, under whatever name."""
        for module, name, held in self._holding(self._functions.keys()):
            if held is self._functions[id(held)][0]:
                self.attribute(module, name, self._functions[id(held)][1])

    def restore(self) -> None:
        """Put everything back, the last replacement first, then what was imported from a patched module meanwhile."""
        self.active = False
        while self._attributes:
            owner, name, before, ours = self._attributes.pop()
            if vars(owner).get(name, MISSING) is not ours:
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        wrappers = {id(wrapper): original for original, wrapper in self._functions.values()}
        for module, name, held in self._holding(wrappers.keys()):
            setattr(module, name, wrappers[id(held)])
        self._functions.clear()

    def _holding(self, wanted: Collection[int]) -> list[tuple[Any, str, Any]]:
        """Every global name of an imported module that holds an object of one of these ids.

        An installed package is looked through once, and again when it has more or fewer names.
        """
        found, ids = [], frozenset(wanted)
        scanned = _SCANNED.setdefault(frozenset(self._functions), {})
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            before = scanned.get(id(names))
            if before is not None and before[1] == len(names):
                places = before[2]
            else:
                places = () if ids.isdisjoint(map(id, list(names.values()))) else _places(names, ids)
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and owner(file) in (LIBRARY, TORCH):
                    scanned[id(names)] = (names, len(names), places)
            found += [(module, name, names[name]) for name in places if id(names.get(name)) in ids]
        return found


_SCANNED: dict[frozenset[int], dict[int, tuple[dict[str, Any], int, tuple[str, ...]]]] = {}
"""By the functions that are looked for: the globals of installed packages, how many they were, and who held one."""


def _places(names: dict[str, Any], ids: frozenset[int]) -> tuple[str, ...]:
    return tuple(name for name, held in list(names.items()) if id(held) in ids)
