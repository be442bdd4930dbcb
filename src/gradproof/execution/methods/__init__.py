"""One file a method. A backend is a module with `run(check, workspace) -> Finding`; only the one needed is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Kind

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace

MODULE: Mapping[Kind, str] = {
    Kind.STUB: "smt",
    Kind.SMT: "smt",
    Kind.CROSSHAIR: "crosshair",
    Kind.TRACE: "recorded_step",
    Kind.TORCH: "measure",
    Kind.GATE: "gate",
}

if set(MODULE) != set(Kind):
    raise ImportError("the table of backends is not total")


def run(check: Check, workspace: Workspace) -> Finding:
    """Run one check in this process. Raises whatever the backend raises."""
    backend = import_module(f"{__name__}.{MODULE[check.kind]}")
    finding: Finding = backend.run(check, workspace)
    return finding
