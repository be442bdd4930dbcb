"""One file a method. A backend is a module with `run(check, workspace) -> Finding`; only the one needed is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from gradproof.core import Check, Finding, Kind

if TYPE_CHECKING:
    from gradproof.workspace import Workspace

MODULE: Mapping[Kind, str] = {
    Kind.STUB: "smt_run",
    Kind.SMT: "smt_run",
    Kind.CROSSHAIR: "crosshair_run",
    Kind.TRACE: "trace_run",
    Kind.TORCH: "torch_run",
    Kind.GATE: "gate_run",
}

if set(MODULE) != set(Kind):
    raise ImportError("the table of backends is not total")


def run(check: Check, workspace: Workspace) -> Finding:
    """Run one check in this process. Raises whatever the backend raises."""
    backend = import_module(f"{__name__}.{MODULE[check.kind]}")
    finding: Finding = backend.run(check, workspace)
    return finding
