"""The light wheel, made from the full one: `python -m tests.light DIST`.

pip cannot leave out a dependency. So there are two distributions of the same files: `gradproof`, which requires all
that the main job needs, and `gradproof-light` for `check` and `watch`, beside a torch of the user's. The light one is
the full wheel with other metadata and so another record: Z3, CrossHair and Hypothesis are no requirements, but extras.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

LIGHT = "gradproof-light"
LEFT_OUT = ("crosshair-tool", "hypothesis", "torch", "z3-solver")
"""What the full distribution requires, and the light one does not."""
DEVELOPERS = ("docs", "loops", "test")
"""Extras of the full distribution that are for work on a checkout; the light one lacks them."""
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<rest>[^;]*)(?:; extra == \"(?P<extra>\w+)\")?")


def parts(requirement: str) -> tuple[str, str, str]:
    """Name, versions and extra of a requirement in metadata. Raises ValueError for another form."""
    found = REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(requirement)
    return found["name"], found["rest"], found["extra"] or ""


def metadata(full: str) -> str:
    """The metadata of the light distribution, from those of the full one."""
    head, _, description = full.partition("\n\n")
    rows = []
    for row in head.splitlines():
        key, _, value = row.partition(": ")
        name, _, extra = parts(value) if key == "Requires-Dist" else ("", "", value)
        needless = (name in LEFT_OUT and not extra) or extra in DEVELOPERS
        if key not in ("Requires-Dist", "Provides-Extra") or not needless:
            rows.append(f"Name: {LIGHT}" if key == "Name" else row)
    return "\n".join([*rows, "", description])


def digest(data: bytes) -> str:
    """The digest of a file as a wheel's record has it."""
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}"


def record(files: Iterable[tuple[str, bytes]], own: str) -> bytes:
    """The record of a wheel: its files, with digests and sizes, and itself."""
    return "".join([*(f"{name},{digest(data)},{len(data)}\n" for name, data in files), f"{own},,\n"]).encode()


def light(full: Path) -> Path:
    """Write the light wheel beside the full one."""
    target = full.with_name(full.name.replace("gradproof-", "gradproof_light-", 1))
    old, new = (f"{'-'.join(path.name.split('-')[:2])}.dist-info/" for path in (full, target))
    with zipfile.ZipFile(full) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        files = []
        for info in source.infolist():
            data = source.read(info)
            info.filename = info.filename.replace(old, new, 1)
            if info.filename == f"{new}METADATA":
                data = metadata(data.decode()).encode()
            if info.filename == f"{new}RECORD":  # the last
                data = record(files, info.filename)
            files.append((info.filename, data))
            made.writestr(info, data)
    return target


if __name__ == "__main__":
    [found] = Path(sys.argv[1]).glob("gradproof-*.whl")
    print(light(found))
