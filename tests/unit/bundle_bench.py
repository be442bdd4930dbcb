"""A bundle of the toy workspace, and the tools of somebody who tampers with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradproof.core.check import digest_of
from gradproof.extras.attest import verify as derived
from gradproof.extras.attest.manifest import MANIFEST, entries, open_manifest
from gradproof.extras.attest.verify import FILES, claimed, files_text, opened

EPOCH = "1700000000"
Json = Any


def load(place: Path) -> Json:
    """JSON of a file."""
    return json.loads(place.read_text(encoding="utf-8"))


def save(place: Path, data: Json) -> None:
    """Write JSON as a bundle has it."""
    place.write_text(derived.dumped(data), encoding="utf-8")


def change(place: Path, edit: Callable[[Json], object]) -> None:
    """Edit a JSON file in place."""
    data = load(place)
    edit(data)
    save(place, data)


def change_manifest(root: Path, edit: Callable[[Json], object]) -> None:
    """Edit the manifest."""
    change(root / MANIFEST, edit)


def reseal(root: Path) -> None:
    """Make the manifest's list anew, as a forger would, without folders that are empty now."""
    for folder in [p for p in sorted(root.rglob("*"), reverse=True) if p.is_dir() and not any(p.iterdir())]:
        folder.rmdir()
    rows = [e.model_dump(mode="json") for e in entries(root)]
    change_manifest(root, lambda m: m.update(files=rows))


def evidence_of(root: Path, check_id: str) -> Path:
    """The evidence file of a check."""
    (place,) = (root / "evidence" / check_id).glob("*.json")
    return place


def reword(place: Path, edit: Callable[[Json], object], rename: bool = True) -> Path:
    """Edit an evidence file, and give it the name of its new content."""
    data = load(place)
    edit(data)
    place.unlink()
    target = place.with_name(f"{digest_of(data)[:16]}.json") if rename else place
    target.write_text(json.dumps(data), encoding="utf-8")
    return target


def forge(root: Path) -> None:
    """Make everything that follows from the evidence anew, and the manifest: only a repeated run can tell."""
    files = claimed(opened(root, open_manifest(root)).statuses)
    (root / FILES).write_text(files_text(files), encoding="utf-8")
    sources = hashlib.sha256((root / FILES).read_bytes()).hexdigest()
    change_manifest(root, lambda m: m.update(sources=sources))
    manifest = open_manifest(root)
    carried = opened(root, manifest)
    made = derived.reports(carried, manifest)
    shutil.rmtree(root / "replay")
    for name, text in derived.documents(carried, made, manifest).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for name, report in made.items():
        save(root / derived.report_path(name), report)
    reseal(root)


def codes(root: Path) -> list[str]:
    """Codes of the problems of a bundle, each once."""
    return list(dict.fromkeys(p.code for p in derived.verify(root).problems))
