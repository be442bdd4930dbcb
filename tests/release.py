"""What a release uploads, checked before it does: `python -m tests.release DIST [--tag v0.1.0]`.

One wheel and one source distribution of one version, with README as their description, whole, and with nothing in the
wheel that is not the package. With a tag, that of the version.
"""

from __future__ import annotations

import argparse
import base64
import csv
import email
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path, PurePosixPath

from gradproof import __version__

REPOSITORY = Path(__file__).resolve().parents[1]
STATED = {
    "Name": "gradproof", "Version": __version__, "Description-Content-Type": "text/markdown",
    "License-Expression": "Apache-2.0", "Requires-Python": ">=3.11",
}  # fmt: skip
NEEDED = ("gradproof/__init__.py", "gradproof/py.typed", "gradproof/_reference/docs/glossary.md")
IN_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "mkdocs.yml", "docs/index.md", ".ci/run")


def metadata(text: str, where: str) -> Iterator[str]:
    """What is wrong with the metadata of a distribution."""
    found: Message = email.message_from_string(text)
    for name, value in STATED.items():
        if found[name] != value:
            yield f"{where}: {name} is {found[name]!r}, not {value!r}"
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8").strip()
    if str(found.get_payload()).strip() != readme:
        yield f"{where}: the description is not README.md"


def wheel(path: Path) -> Iterator[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        info = f"gradproof-{__version__}.dist-info"
        yield from (f"{path.name} lacks {name}" for name in (*NEEDED, f"{info}/RECORD") if name not in names)
        outside = {n for n in names if PurePosixPath(n).parts[0] not in ("gradproof", info)}
        yield from (f"{path.name} has {name}" for name in sorted(outside))
        if f"{info}/RECORD" not in names:
            return
        for name, digest, _ in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())):
            if not digest:
                continue
            made = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            if digest != f"sha256={made}":
                yield f"{path.name}: {name} has another digest than its record"
        yield from metadata(archive.read(f"{info}/METADATA").decode(), path.name)
        if b"gradproof = gradproof.__main__:main" not in archive.read(f"{info}/entry_points.txt"):
            yield f"{path.name} brings no command gradproof"


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
    if len(wheels) != 1 or len(sdists) != 1:
        return [*found, f"{dist} has {len(wheels)} wheels and {len(sdists)} source distributions, not one of each"]
    if tag and tag != f"v{__version__}":
        found.append(f"the tag is {tag}, and the version {__version__}")
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {__version__}" not in changes:
        found.append(f"CHANGELOG.md has no section {__version__}")
    if tag and f"## {__version__} (unreleased)" in changes:
        found.append(f"CHANGELOG.md says that {__version__} is unreleased")
    return [*found, *wheel(wheels[0]), *sdist(sdists[0])]


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
