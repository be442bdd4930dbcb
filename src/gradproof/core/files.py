"""Files that are whole or not there: the text goes to a neighbour, which then takes the name.

It imports the standard library alone, for every part of the package writes through it.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

PUBLIC = 0o644


def write_whole(path: Path, text: str, *, parents: bool = False, durable: bool = True, mode: int | None = None) -> None:
    """Write UTF-8 `text` so that `path` holds what it held before or all of the new text, whatever happens.

    `parents`: make the folders that are missing. `durable`: the text is on the disk before it takes the name. `mode`:
    permissions; None leaves them to the umask. A byte of a path that is no UTF-8 is written as an escape, `\\udcff`.
    Raises OSError; then nothing is left behind.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text)
            f.flush()
            if durable:
                os.fsync(f.fileno())
        if mode is not None:
            os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    """JSON on one line, whole or not there. Raises ValueError for NaN, TypeError for what is no JSON, OSError."""
    write_whole(path, json.dumps(data, ensure_ascii=False, allow_nan=False))


def replace_whole(path: Path, text: str) -> None:
    """A file of the user's: folders are made, and everybody may read it. Raises OSError."""
    write_whole(path, text, parents=True, mode=PUBLIC)
