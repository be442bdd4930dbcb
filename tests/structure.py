"""The size and shape of the source, and the picture of its packages: `python -m tests.structure [--write]`.

Everything is read off the files and their imports. Imports inside functions count; those for type checkers alone do
not. `--write` puts the picture into docs/architecture.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "gradproof"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- the picture: python -m tests.structure --write -->\n", "<!-- the end of the picture -->\n"
ROWS = "shadow/ops/rows"


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
def longest(name: str) -> tuple[str, ...]:
    """The longest path of imports that begins at a module. Only where there is no circle."""
    return (name, *max((longest(other) for other in imports()[name]), key=len, default=()))


def figures() -> dict[str, str]:
    """The figures, by name."""
    files = sorted(p.relative_to(SOURCE) for p in SOURCE.rglob("*.py") if "__pycache__" not in p.parts)
    lines = sum(len((SOURCE / p).read_text(encoding="utf-8").splitlines()) for p in files)
    folders = Counter(p.parent.as_posix() for p in files if p.name != "__init__.py")
    largest = [f"{folder} {n}" for folder, n in folders.most_common() if folder != ROWS][:3]
    rings = circles()
    path = () if rings else max(map(longest, imports()), key=len)
    return {
        "source lines": f"{lines:,}",
        "modules": str(len(files)),
        "modules at the package root": str(folders["."]),
        "largest folders": ", ".join(largest),
        "import circles": str(len(rings)),
        "longest import path": f"{len(path)}: {' > '.join(n.removeprefix('gradproof.') for n in path)}",
        "README bytes": f"{(REPOSITORY / 'README.md').stat().st_size:,}",
    }


def package(name: str) -> str:
    """The package below gradproof that a module is in, or the module itself where it stands at the root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "gradproof"


def picture() -> str:
    """The packages and who imports whom, as Mermaid. An arrow that a longer way implies is left out."""
    needs: dict[str, set[str]] = {}
    for name, others in imports().items():
        needs.setdefault(package(name), set()).update(package(o) for o in others)
    quiet = {"gradproof", "_reference", "startup", "backends", "__main__"}
    needs = {a: {b for b in bs if b != a} - quiet for a, bs in needs.items() if a not in quiet}

    @cache
    def below(one: str) -> frozenset[str]:
        return frozenset(needs[one] | {c for b in needs[one] for c in below(b)})

    arrows = [
        f"    {a} --> {b}\n" for a in sorted(needs) for b in sorted(needs[a])
        if not any(b in below(c) for c in needs[a] if c != b)
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
