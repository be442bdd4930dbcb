"""What every measured document shares: its command, the workspace whose models are measured, and how it is written."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.report.studies import Study, settled, sources_of

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace

D = TypeVar("D")


def options(
    name: str, doc: str | None, arguments: Sequence[str] | None, quick: str, *, plot: bool = False, device: bool = True
) -> argparse.Namespace:
    """The parsed command line of a study; `quick` says what is less with --quick."""
    parser = argparse.ArgumentParser(prog=f"python -m gradproof.extras.studies.{name}", description=doc)
    parser.add_argument("--out", type=Path, help="write the JSON document here")
    if plot:
        parser.add_argument("--plot", type=Path, help="write the loss curves as SVG here")
    parser.add_argument("--quick", action="store_true", help=quick)
    if device:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(sys.argv[1:] if arguments is None else arguments)


def command(
    o: argparse.Namespace, make: Callable[[], D], stated: Callable[[D], str], *,
    ends: Callable[[D], Exit] = lambda made: Exit.MET, drawing: Callable[[D], str] | None = None,
) -> int:  # fmt: skip
    """Measure, write, print, and return the exit code; 2 for a mistake in the call."""
    from gradproof.core.files import writable, written
    from gradproof.evidence.environment import present

    try:
        writable(o.out)
        if drawing is not None:
            writable(o.plot)
        present(getattr(o, "device", "cpu"))
        made = make()
        if o.out is not None:
            write(o.out, made)
        if drawing is not None and o.plot is not None:
            written(o.plot, drawing(made))
    except GradproofError as error:
        print(error.render(), file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    print(stated(made))
    return EXIT_CODE[ends(made)]


class Begun:
    """A measurement that has begun: the files that make it, and when."""

    def __init__(self, study: Study) -> None:
        self.study, self.made_with, self.began = study, sources_of(study, place()), time.monotonic()

    def head(self) -> dict[str, Any]:
        """What every document says of its making. Raises GradproofError GP219 where a file of it has changed."""
        from gradproof.evidence.record import now

        return {
            "gradproof": __version__, "made_at": now(), "seconds": round(time.monotonic() - self.began, 1),
            "torch": models("sampling.measured").torch_version(),
            "sources": dict(settled(self.study, place(), self.made_with)),
        }  # fmt: skip


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
