"""`gradproof doctor`: what is installed here, and what in the working directory would be imported in its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from gradproof.core import EXIT_CODE, Exit, GradproofError

SCHEMA = "gradproof-doctor/1"
NEEDED = ("torch", "z3", "crosshair")


@click.command("doctor", epilog="Exit code 0: nothing to warn of; 1: a warning; 2: a mistake in the call.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Look here.  [default: this folder]")
@click.option("--json", "json_", is_flag=True, help="Print JSON on stdout.")
def command(folder: Path, json_: bool) -> int:
    """Print versions and devices, and warn of a folder or file, such as wandb/, that shadows an installed package.

    Nothing is imported: the import system is asked what it would find, with the folder first and without it.
    """
    found = diagnosis(folder)
    click.echo(json.dumps(found) if json_ else told(found))
    return EXIT_CODE[Exit.BROKEN if found["warnings"] else Exit.MET]


def diagnosis(folder: Path) -> dict[str, Any]:
    """Versions, devices and warnings, as JSON values. Raises GradproofError GP412 for no readable folder."""
    from gradproof.doctor import shadows
    from gradproof.environment import cuda_absent, environment

    try:
        hidden = shadows(folder)
    except OSError as error:
        raise GradproofError("GP412", str(error), "a folder that can be read", "name another", str(folder)) from error
    versions = environment()
    missing = [name for name in NEEDED if name not in versions]
    warnings = [s.told() for s in hidden]
    warnings += [f"{name} is not installed: what needs it cannot run" for name in missing]
    return {
        "schema": SCHEMA,
        "folder": str(folder.resolve()),
        "versions": versions,
        "devices": {"cpu": f"{os.cpu_count()} cores", "cuda": cuda_absent() or "a device is there"},
        "shadows": [vars(s) for s in hidden],
        "warnings": warnings,
    }


def told(found: dict[str, Any]) -> str:
    """The diagnosis in words."""
    lines = [f"{name:12}{version}" for name, version in found["versions"].items()]
    lines += [f"{name:12}{what}" for name, what in found["devices"].items()]
    lines += [f"warning: {text}" for text in found["warnings"]]
    if not found["shadows"]:
        lines.append(f"nothing in {found['folder']} shadows an installed package")
    return "\n".join(lines)
