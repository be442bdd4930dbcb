"""The size and shape of the source, and the picture of its packages: `python -m tests.structure [--write]`.

Everything is read off the files and their imports. Imports inside functions count; those for type checkers alone do
not. `--write` puts the picture into docs/architecture.md.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "gradproof"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- the picture: python -m tests.structure --write -->\n", "<!-- the end of the picture -->\n"
QUIET = frozenset({"gradproof", "_reference", "startup", "backends", "__main__"})
"""Packages that are in no picture: names of old, data, and what starts the rest."""


@cache
def imports() -> dict[str, frozenset[str]]:
    """What each module of gradproof imports of gradproof."""
    graph = grimp.build_graph("gradproof", exclude_type_checking_imports=True, cache_dir=None)
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def reached(name: str) -> set[str]:
    """Every module that a module needs, by any path."""
    found: set[str] = set()
    open_ = list(imports()[name])
    while open_:
        one = open_.pop()
        if one not in found:
            found.add(one)
            open_ += imports()[one]
    return found


def circles() -> set[frozenset[str]]:
    """The groups of modules that need each other."""
    inside = {name: reached(name) for name in imports()}
    return {
        frozenset(other for other in needed if name in inside[other])
        for name, needed in inside.items() if name in needed
    }  # fmt: skip


@cache
def longest(name: str, folder: str = "") -> tuple[str, ...]:
    """The longest path of imports that begins at a module, inside one folder if any. Only where there is no circle."""
    others = [other for other in imports()[name] if not folder or other.rpartition(".")[0] == folder]
    return (name, *max((longest(other, folder) for other in others), key=len, default=()))


def files(root: Path) -> list[Path]:
    """The modules below a folder."""
    return sorted(p for p in root.rglob("*.py") if "__pycache__" not in p.parts)


def lines(*roots: Path) -> int:
    """The lines of the modules below some folders."""
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for root in roots for p in files(root))


def folders() -> Counter[str]:
    """How many modules each folder of the source holds."""
    return Counter(p.parent.relative_to(SOURCE).as_posix() for p in files(SOURCE) if p.name != "__init__.py")


def shared_names(paths: list[Path]) -> dict[str, list[str]]:
    """The names that more than one class has, with the modules of those classes."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.stem)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def figures() -> dict[str, str]:
    """The figures, by name."""
    rings = circles()
    path = () if rings else max(map(longest, imports()), key=len)
    inner = () if rings else max((longest(name, name.rpartition(".")[0]) for name in imports()), key=len)
    largest = [f"{folder} {n}" for folder, n in folders().most_common(4)]
    return {
        "source lines": f"{lines(SOURCE):,}",
        "with models and symbolic": f"{lines(SOURCE, REPOSITORY / 'models', REPOSITORY / 'symbolic'):,}",
        "modules": str(len(files(SOURCE))),
        "modules at the package root": str(folders()["."]),
        "largest folders": ", ".join(largest),
        "class names used twice": str(len(shared_names(files(SOURCE)))),
        "layers of packages": str(max(map(depth, needs()))),
        "import circles": str(len(rings)),
        "longest import path": f"{len(path)}: {' > '.join(n.removeprefix('gradproof.') for n in path)}",
        "longest in one folder": f"{len(inner)}: {' > '.join(n.removeprefix('gradproof.') for n in inner)}",
        "README bytes": f"{(REPOSITORY / 'README.md').stat().st_size:,}",
    }


def package(name: str) -> str:
    """The package below gradproof that a module is in, or the module itself where it stands at the root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "gradproof"


@cache
def needs() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {}
    for name, others in imports().items():
        found.setdefault(package(name), set()).update(package(o) for o in others)
    return {a: {b for b in bs if b != a} - QUIET for a, bs in found.items() if a not in QUIET}


@cache
def depth(name: str) -> int:
    """How many layers of packages begin at a package, with itself."""
    return 1 + max((depth(other) for other in needs()[name]), default=0)


@cache
def below(name: str) -> frozenset[str]:
    """The packages that a package needs, by any path."""
    return frozenset(needs()[name] | {other for one in needs()[name] for other in below(one)})


def picture() -> str:
    """The packages and who imports whom, as Mermaid. An arrow that a longer way implies is left out."""
    arrows = [
        f"    {a} --> {b}\n" for a in sorted(needs()) for b in sorted(needs()[a])
        if not any(b in below(c) for c in needs()[a] if c != b)
    ]  # fmt: skip
    return f"```mermaid\nflowchart TD\n{''.join(arrows)}```\n"


def drawn(page: str) -> str:
    """The page with the picture of today. Raises ValueError where the page has no place for it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise ValueError("the page has no place for the picture")
    return before + BEGIN + picture() + END + after


def main() -> None:
    """Print the figures, and write the picture where that is asked for."""
    for name, value in figures().items():
        print(f"{name:28} {value}")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
