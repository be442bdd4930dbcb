"""What every measured document shares: the workspace whose models are measured, and how a document is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace


def place() -> Workspace:
    """The reference workspace, whose models are measured. Raises GradproofError GP201 without one."""
    from gradproof.core.workspace import Workspace, reference

    root = reference()
    if root is None:
        raise GradproofError("GP201", "no reference workspace", "the one of this package", "install gradproof again")
    return Workspace(root, root / "reports")


def models(name: str) -> Any:
    """A module of the reference workspace. Raises GradproofError GP201 without one."""
    return place().resolve(f"models.{name}")


def text(document: Any) -> str:
    """A document as JSON text, after it was read again. Raises ValueError where it does not agree with itself."""
    made = json.dumps(document.model_dump(mode="json", by_alias=True), indent=1, allow_nan=False) + "\n"
    type(document).model_validate_json(made)
    return made


def write(path: Path, document: Any) -> None:
    """Write a document, whole or not at all. Raises GradproofError GP407."""
    from gradproof.core.files import written

    written(path, text(document))
