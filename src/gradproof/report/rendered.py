"""Reports as files: the renderer of each format, and what happens where a file cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises GradproofError GP450 for a report that cannot be written."""
    try:
        yield
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror or error}"
        raise GradproofError("GP450", found, "a folder of reports with room", "free the disk or its rights") from error


MODULE: Mapping[str, str] = {"json": "jsonreport", "md": "markdown", "html": "html"}


def rendering(name: str) -> Callable[[Mapping[str, Any]], str]:
    """The renderer of a format: json, md or html. Its module is imported when it is first asked for."""
    renderer: Callable[[Mapping[str, Any]], str] = import_module(f"gradproof.report.formats.{MODULE[name]}").render
    return renderer
