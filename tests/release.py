"""What a release uploads, checked before it does: `python -m tests.release DIST [--tag v0.1.0]`.

Two wheels and one source distribution of one version, with README as their description, whole, and with nothing in a
wheel that is not the package. The light wheel has the files of the full one, and asks for no torch and no solver. With
a tag, that of the version.
"""

from __future__ import annotations

import argparse
import csv
import email
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path, PurePosixPath

from gradproof import __version__
from tests.light import DEVELOPERS, LEFT_OUT, LIGHT, digest, parts

REPOSITORY = Path(__file__).resolve().parents[1]
STATED = {
    "Version": __version__, "Description-Content-Type": "text/markdown",
    "License-Expression": "Apache-2.0", "Requires-Python": ">=3.11",
}  # fmt: skip
NEEDED = (
    "gradproof/__init__.py",
    "gradproof/py.typed",
    "gradproof/_reference/docs/glossary.md",
    "gradproof/_reference/docs/errors.md",
)
IN_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "mkdocs.yml", "docs/index.md", ".ci/run")


def metadata(text: str, where: str, title: str = "gradproof") -> Iterator[str]:
    """What is wrong with the metadata of a distribution of this name."""
    found: Message = email.message_from_string(text)
    for name, value in {"Name": title, **STATED}.items():
        if found[name] != value:
            yield f"{where}: {name} is {found[name]!r}, not {value!r}"
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8").strip()
    if str(found.get_payload()).strip() != readme:
        yield f"{where}: the description is not README.md"


def wheel(path: Path, title: str = "gradproof") -> Iterator[str]:
    """What is wrong with a wheel of this name."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        info = f"{title.replace('-', '_')}-{__version__}.dist-info"
        yield from (f"{path.name} lacks {name}" for name in (*NEEDED, f"{info}/RECORD") if name not in names)
        outside = {n for n in names if PurePosixPath(n).parts[0] not in ("gradproof", info)}
        yield from (f"{path.name} has {name}" for name in sorted(outside))
        if f"{info}/RECORD" not in names:
            return
        rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
        yield from (f"{path.name}: {name} is not in its record" for name in sorted(names - {name for name, *_ in rows}))
        for name, stated, _ in rows:
            if stated and stated != digest(archive.read(name)):
                yield f"{path.name}: {name} has another digest than its record"
        yield from metadata(archive.read(f"{info}/METADATA").decode(), path.name, title)
        if b"gradproof = gradproof.__main__:main" not in archive.read(f"{info}/entry_points.txt"):
            yield f"{path.name} brings no command gradproof"


def requirements(path: Path) -> tuple[set[str], dict[str, set[str]], dict[str, bytes]]:
    """What a wheel requires, its extras with what each requires, and its files besides its metadata."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        [stated] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found: Message = email.message_from_bytes(archive.read(stated))
    rows = [parts(row) for row in found.get_all("Requires-Dist", [])]
    names: list[str] = found.get_all("Provides-Extra", [])
    needs = {extra: {name + version for name, version, of in rows if of == extra} for extra in ("", *names)}
    return needs.pop(""), needs, files


def lighter(full: Path, light: Path) -> Iterator[str]:
    """How the light wheel differs from the full one otherwise than it should."""
    (needs, extras, files), (fewer, more, same) = requirements(full), requirements(light)
    left = {need for need in needs if parts(need)[0] in LEFT_OUT}
    if files != same:
        yield f"{light.name} has other files than {full.name}"
    if len(left) != len(LEFT_OUT) or fewer != needs - left:
        yield f"{light.name} requires {', '.join(sorted(fewer))}"
    proofs, tests = more.get("proofs", set()), more.get("tests", set())
    if not proofs or not tests or not more.get("all") == proofs | tests == {n for n in left if parts(n)[0] != "torch"}:
        yield f"{light.name}: the extras proofs, tests and all are not what {full.name} requires besides torch"
    if more != {name: needs for name, needs in extras.items() if name not in DEVELOPERS}:
        yield f"{light.name} has other extras than {full.name}: {', '.join(sorted(more))}"


def sdist(path: Path) -> Iterator[str]:
    """What is wrong with a source distribution."""
    root = f"gradproof-{__version__}"
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
        yield from (f"{path.name} lacks {name}" for name in IN_SDIST if f"{root}/{name}" not in names)
        file = archive.extractfile(f"{root}/PKG-INFO")
        yield from metadata(file.read().decode() if file else "", path.name)


def faults(dist: Path, tag: str = "") -> list[str]:
    """What is wrong with the files of a release."""
    wheels, sdists = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    others = sorted(p.name for p in dist.iterdir() if p not in (*wheels, *sdists))
    found = [f"{dist} has {name}" for name in others]
    named = [path.name.partition("-")[0] for path in wheels]
    if named != ["gradproof", "gradproof_light"] or len(sdists) != 1:
        has = f"{len(wheels)} wheels and {len(sdists)} source distributions"
        return [*found, f"{dist} has {has}, not gradproof, {LIGHT} and one source distribution"]
    if tag and tag != f"v{__version__}":
        found.append(f"the tag is {tag}, and the version {__version__}")
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {__version__}" not in changes:
        found.append(f"CHANGELOG.md has no section {__version__}")
    if tag and f"## {__version__} (unreleased)" in changes:
        found.append(f"CHANGELOG.md says that {__version__} is unreleased")
    full, light = wheels
    return [*found, *wheel(full), *wheel(light, LIGHT), *lighter(full, light), *sdist(sdists[0])]


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong. Exit code 1 where something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--tag", default="")
    given = parser.parse_args(arguments)
    found = faults(given.dist, given.tag)
    print("\n".join([*found, f"release {__version__}: {len(found)} things are not as they should be"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
