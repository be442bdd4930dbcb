"""Reports as files: the renderer of each format, and what happens where a file cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


def rendering(name: str) -> Callable[[Mapping[str, Any]], str]:
    """The renderer of a format: json, md or html."""
    if name == "json":
        from gradproof.report.formats import jsonreport

        return jsonreport.render
    if name == "md":
        from gradproof.report.formats import markdown

        return markdown.render
    from gradproof.report.formats import html

    return html.render
