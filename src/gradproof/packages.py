"""Installed distributions: which one a file belongs to, and which are the solvers, PyTorch and what those need.

Read from the folders' own metadata (`*.dist-info/RECORD`), without importing anything: some 20 ms, once a process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOTS = ("z3-solver", "crosshair-tool", "torch", "hypothesis", "numpy", "gradproof", "tqdm")
"""torch imports tqdm where it finds it."""
_TOP = re.compile(r"^([^/,\n]+)[/,]", re.MULTILINE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_MODULES = ("z3", "crosshair", "torch", "hypothesis", "numpy", "gradproof", "tqdm")
_STARTED = ("__main__", "sitecustomize", "usercustomize")
COMMON = frozenset({"tests", "test", "docs", "examples", "benchmarks", "tools", "scripts"})
"""Nobody's own names, though packages install folders that are called so."""
_FOLDERS = ("site-packages", "dist-packages")


def normal(name: str) -> str:
    """A distribution's name as packaging tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def stack() -> frozenset[str]:
    """The solvers, PyTorch and everything that they require, by normal name."""
    import importlib.metadata  # 10 ms, which a command that asks for no version does not wait for

    found: set[str] = set()
    left = list(ROOTS)
    while left:
        name = normal(left.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        left += [m[0] for need in needs if "extra ==" not in need and (m := re.match(r"[\w.-]+", need))]
    return frozenset(found)


@cache
def _owners(folder: Path) -> Mapping[str, frozenset[tuple[str, str]]]:
    """First part of a path in an installation folder -> the distributions (name, version) that put it there."""
    owners: dict[str, set[tuple[str, str]]] = {}
    for info in sorted(folder.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        try:
            text = (info / "RECORD").read_text(encoding="utf-8")
        except OSError:
            continue
        for top in set(_TOP.findall(text)):
            owners.setdefault(top, set()).add((normal(name), version))
    return {top: frozenset(found) for top, found in owners.items()}


def owner_of(path: Path) -> frozenset[tuple[str, str]]:
    """The distributions that an installed file may belong to; none for a file that nobody's metadata names."""
    parts = path.parts
    at = max((i for i, part in enumerate(parts) if part in _FOLDERS), default=None)
    if at is None or at + 1 >= len(parts):
        return frozenset()
    return _owners(Path(*parts[: at + 1])).get(parts[at + 1], frozenset())


def owned(folder: Path, name: str) -> frozenset[tuple[str, str]]:
    """The distributions that have a module or package of this name in an installation folder."""
    owners = _owners(folder)
    return owners.get(name) or owners.get(f"{name}.py") or frozenset()


def generated() -> Path | None:
    """The module that torch before 2.10 writes into a temporary folder when it is imported: it is torch's own.

    None where torch has written none, or is not imported.
    """
    module = sys.modules.get("torch.distributed.nn.jit.instantiator")
    folder = getattr(module, "INSTANTIATED_TEMPLATE_DIR_PATH", None)
    return None if folder is None else Path(os.path.realpath(folder)) / "_remote_module_non_scriptable.py"


def in_stack(owners: frozenset[tuple[str, str]]) -> bool:
    """Whether every owner is one of the solvers, PyTorch or what they need."""
    return bool(owners) and all(name in stack() for name, _ in owners)


def taken(name: str) -> str | None:
    """Whose module of this name is loaded before a user's own, in words; None for a name that is free."""
    if name in COMMON:
        return None
    if name in sys.stdlib_module_names or name in _STARTED:
        return "Python itself"
    homes = [Path(p) for p in sys.path if any(part in _FOLDERS for part in Path(p).parts)]
    owners = {owner for home in homes if in_stack(found := owned(home, name)) for owner, _ in found}
    if owners or name in _MODULES:
        return f"the package {', '.join(sorted(owners)) or name}, which gradproof needs"
    return None


def imported() -> dict[str, str]:
    """Name and version of every distribution of which this process has imported a module."""
    found: set[tuple[str, str]] = set()
    for module in list(sys.modules.values()):
        origin: Any = getattr(module, "__file__", None)
        if isinstance(origin, str):
            found |= owner_of(Path(origin))
    return dict(sorted(found))


def changed(recorded: Mapping[str, Any]) -> list[str]:
    """Which of the recorded distributions, the stack's apart, have another version now or are gone."""
    return [
        f"{name} {was} then, {now} now"
        for name, was in recorded.items()
        if (now := version_of(name)) != was and normal(name) not in stack()
    ]


@cache
def version_of(name: str) -> str | None:
    """Installed version of a distribution, None when it is absent.

    Read from the head of its metadata, a tenth of the time of `importlib.metadata.version`, which parses all of it.
    """
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
    found = _VERSION.search(head)
    return found[1] if found else distribution.version
