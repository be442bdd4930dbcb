"""`gradproof doctor`: whether what gradproof rests on is there and answers rightly, and what shadows it."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import click

from gradproof.cli.options import output_format
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit

# -- What in a working directory would make `import` find something other than what is installed.
TRACKERS = ("aim", "clearml", "comet_ml", "mlflow", "neptune", "tensorboard", "wandb")
"""Optional packages that a loop imports if it can, and that write a folder of their own name, or are given one."""


@dataclass(frozen=True)
class Shadow:
    """A name that import finds in the folder. `installed`: where it would find it else, None where it is nowhere."""

    name: str
    found: str
    installed: str | None
    distributions: tuple[str, ...]

    def stated(self) -> str:
        """What is wrong and what to do."""
        if self.installed is None:
            text = f"{self.found} is taken for the package {self.name!r}, which is not installed: `import {self.name}`"
            return f"{text} succeeds and gives an empty module; rename the folder, or install the package"
        whose = f" of {', '.join(self.distributions)}" if self.distributions else " of the standard library"
        return f"{self.found} shadows {self.name!r}{whose} ({self.installed}): rename it, or start elsewhere"


def shadows(folder: Path) -> list[Shadow]:
    """Everything in the folder that hides an installed package, by name. Raises OSError for a folder without entry."""
    folder = folder.resolve()
    known = installed()
    importlib.invalidate_caches()
    elsewhere = [p for p in sys.path if Path(p or ".").resolve() != folder]
    found = []
    for name, entry in candidates(folder).items():
        here = resolved(name, [str(folder), *elsewhere])
        if here is None or not _inside(here, folder):
            continue
        there = resolved(name, elsewhere)
        if there is not None and (_inside(there, folder) or here.origin is there.origin is None):
            continue
        distributions = known.get(name, ())
        if there is not None and (distributions or name in sys.stdlib_module_names):
            found.append(Shadow(name, str(entry), place(there), distributions))
        elif there is None and (distributions or name in TRACKERS) and here.origin is None:
            found.append(Shadow(name, str(entry), None, distributions))
    return found


def candidates(folder: Path) -> dict[str, Path]:
    """Names that `import` could find in the folder, with what has them, in order. Raises OSError."""
    entries = sorted(folder.iterdir(), reverse=True)
    named = {entry.name if entry.is_dir() else inspect.getmodulename(entry.name): entry for entry in entries}
    return {name: named[name] for name in reversed(named) if name and name.isidentifier() and name != "__pycache__"}


def installed() -> Mapping[str, tuple[str, ...]]:
    """Name of a package or module -> the distributions that provide it; one that says nothing, by its own name."""
    found: dict[str, set[str]] = {}
    for name, distributions in importlib.metadata.packages_distributions().items():
        found.setdefault(name, set()).update(distributions)
    for distribution in importlib.metadata.distributions():
        title = distribution.metadata["Name"]
        if title:
            found.setdefault(title.replace("-", "_").lower(), set()).add(title)
    return {name: tuple(sorted(titles)) for name, titles in found.items()}


def resolved(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """What `import name` would load in a fresh process with this as sys.path; a loaded module does not count."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path if finder is PathFinder else None, None)
        if spec is not None:
            return spec
    return None


def place(spec: ModuleSpec) -> str:
    """The file or folder that a module comes from."""
    return str(spec.origin or next(iter(spec.submodule_search_locations or ()), spec.name))


def _inside(spec: ModuleSpec, folder: Path) -> bool:
    where = place(spec)
    return where not in ("built-in", "frozen") and Path(where).resolve().is_relative_to(folder)


SCHEMA = "gradproof-doctor/3"
NEEDED = ("torch", "z3", "crosshair")
TWICE = "gradproof and gradproof-light, which have the same files, are both installed: uninstall both, and install one"


@click.command("doctor", epilog="Exit code 0: nothing to warn of; 1: a warning; 2: a mistake in the call.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Look here.  [default: this folder]")
@click.option("--quick", is_flag=True, help="No self-tests: nothing is imported.")
@output_format("text", "json")
def command(folder: Path, quick: bool, format_: str) -> int:
    """Self-test solver, CrossHair, torch, a worker, `check` and devices; say what is missing, and how to get it.

    Each self-test is a process of its own, with a question whose answer is known; one runs a check in a worker, one
    verifies two small loops as `check` does. A folder or file that shadows an
    installed package, such as wandb/, is warned of: the import system is asked with the folder first and without it.
    """
    found = diagnosis(folder, quick)
    click.echo(json.dumps(found) if format_ == "json" else stated(found))
    return EXIT_CODE[Exit.BROKEN if found["warnings"] else Exit.MET]


def diagnosis(folder: Path, quick: bool) -> dict[str, Any]:
    """Versions, devices, self-tests and warnings. Raises GradproofError GP412 for a folder that cannot be read."""
    from gradproof.evidence.environment import LIGHT, cuda_absent, environment, installing, version_of
    from gradproof.extras.selftest import GET, USES, run_all

    try:
        hidden = shadows(folder)
    except OSError as error:
        raise GradproofError("GP412", str(error), "a folder that can be read", "name another", str(folder)) from error
    versions, absent = environment(), cuda_absent()
    own = [f"{name} {version}" for name in ("gradproof", LIGHT) if (version := version_of(name)) is not None]
    light, versions["distribution"] = version_of(LIGHT), " and ".join(own) or "none"
    get = {name: installing([name]) for name in NEEDED if name not in versions}
    skipped = {test: (f"{name} is not installed", get[name]) for test, name in USES.items() if light and name in get}
    skipped |= {"cuda": (absent, GET["cuda"])} if absent else {}
    tests = [] if quick else [asdict(test) for test in run_all(skipped)]
    warnings = [*(s.stated() for s in hidden), *([TWICE] if len(own) > 1 else [])]
    lost = [name for name in get if name == "torch" or not light]
    warnings += [f"{name} is not installed: what needs it cannot run; get it with: {get[name]}" for name in lost]
    warnings += [
        f"the self-test {t['name']} failed: {t['said']}; try: {t['get']}"
        for t in tests
        if t["state"] not in ("passed", "absent")
    ]
    return {
        "schema": SCHEMA,
        "folder": str(folder.resolve()),
        "versions": versions,
        "devices": {"cpu": f"{os.cpu_count()} cores", "cuda": absent or "a device is there"},
        "self_tests": tests,
        "shadows": [{**vars(s), "distributions": list(s.distributions)} for s in hidden],
        "warnings": warnings,
    }


def stated(found: dict[str, Any]) -> str:
    """The diagnosis in words."""
    lines = [f"{name:13}{version}" for name, version in found["versions"].items()]
    lines += [f"{name:13}{what}" for name, what in found["devices"].items()]
    for test in found["self_tests"]:
        how = f"; to get it: {test['get']}" if test["state"] == "absent" else ""
        lines.append(f"self-test {test['name']}: {test['state']}: {test['said']}{how}")
    lines += [f"warning: {text}" for text in found["warnings"]]
    if not found["shadows"]:
        lines.append(f"nothing in {found['folder']} shadows an installed package")
    return "\n".join(lines)
