"""`gradproof doctor`: whether what gradproof rests on is there and answers rightly, and what shadows it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from gradproof.core import EXIT_CODE, Exit, GradproofError

SCHEMA = "gradproof-doctor/3"
NEEDED = ("torch", "z3", "crosshair")


@click.command("doctor", epilog="Exit code 0: nothing to warn of; 1: a warning; 2: a mistake in the call.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Look here.  [default: this folder]")
@click.option("--quick", is_flag=True, help="No self-tests: nothing is imported.")
@click.option("--json", "json_", is_flag=True, help="Print JSON on stdout.")
def command(folder: Path, quick: bool, json_: bool) -> int:
    """Self-test solver, CrossHair, torch, a worker, `check` and devices; say what is missing, and how to get it.

    Each self-test is a process of its own, with a question whose answer is known; one runs a check in a worker, one
    verifies two small loops as `check` does. A folder or file that shadows an
    installed package, such as wandb/, is warned of: the import system is asked with the folder first and without it.
    """
    found = diagnosis(folder, quick)
    click.echo(json.dumps(found) if json_ else told(found))
    return EXIT_CODE[Exit.BROKEN if found["warnings"] else Exit.MET]


def diagnosis(folder: Path, quick: bool = False) -> dict[str, Any]:
    """Versions, devices, self-tests and warnings. Raises GradproofError GP412 for a folder that cannot be read."""
    from gradproof.doctor import shadows
    from gradproof.environment import PACKAGES, cuda_absent, environment

    try:
        hidden = shadows(folder)
    except OSError as error:
        raise GradproofError("GP412", str(error), "a folder that can be read", "name another", str(folder)) from error
    versions, absent = environment(), cuda_absent()
    missing = [name for name in NEEDED if name not in versions]
    tests = [] if quick else self_tests(absent)
    warnings = [s.told() for s in hidden]
    get = {name: f"python -m pip install {PACKAGES[name]}" for name in missing}
    warnings += [f"{name} is not installed: what needs it cannot run; get it with: {get[name]}" for name in missing]
    warnings += [f"the self-test {t['name']} failed: {t['said']}; try: {t['get']}" for t in tests if failed(t)]
    return {
        "schema": SCHEMA,
        "folder": str(folder.resolve()),
        "versions": versions,
        "devices": {"cpu": f"{os.cpu_count()} cores", "cuda": absent or "a device is there"},
        "self_tests": tests,
        "shadows": [{**vars(s), "distributions": list(s.distributions)} for s in hidden],
        "warnings": warnings,
    }


def self_tests(absent: str | None) -> list[dict[str, Any]]:
    """Every self-test as JSON values. `absent`: why there is no CUDA device."""
    from dataclasses import asdict

    from gradproof.selftests import run_all

    return [asdict(test) for test in run_all(absent)]


def failed(test: dict[str, Any]) -> bool:
    """Whether a self-test did anything but pass or find nothing to test."""
    return test["state"] not in ("passed", "absent")


def told(found: dict[str, Any]) -> str:
    """The diagnosis in words."""
    lines = [f"{name:12}{version}" for name, version in found["versions"].items()]
    lines += [f"{name:12}{what}" for name, what in found["devices"].items()]
    for test in found["self_tests"]:
        how = f"; to get it: {test['get']}" if test["state"] == "absent" else ""
        lines.append(f"self-test {test['name']}: {test['state']}: {test['said']}{how}")
    lines += [f"warning: {text}" for text in found["warnings"]]
    if not found["shadows"]:
        lines.append(f"nothing in {found['folder']} shadows an installed package")
    return "\n".join(lines)
