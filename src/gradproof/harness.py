"""The one module that models and harnesses import: every name that a check may use, loaded when it is used.

A name enters the inputs of a check only where the check uses it (PEP 562). Without a solver installed, what needs none
works as before.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradproof import __version__
    from gradproof.arith import constant, exact, round_to, sqrt
    from gradproof.arith.bounds import accumulation_bound, accumulation_witness, clip_factor, scaling_bound
    from gradproof.arith.formats import FORMATS, Format, format_named
    from gradproof.arith.soft import Lattice, Ratio
    from gradproof.arith.symbolic import Site
    from gradproof.core import batches
    from gradproof.core.batches import Divide
    from gradproof.core.check import Bound
    from gradproof.core.errors import GradproofError
    from gradproof.core.files import replace_whole, writable
    from gradproof.core.outcome import EXIT_CODE, Exit
    from gradproof.core.schemas.studies import Tokens
    from gradproof.core.timeline import Tick, Timeline
    from gradproof.core.workspace import Workspace
    from gradproof.evidence.record import now as timestamp
    from gradproof.execution.methods.counterexample import tell
    from gradproof.execution.methods.exact_window import SNAP, WindowError, element_bound, judge_window
    from gradproof.execution.methods.explore import Move, PathSearch, PathTrace, shortest
    from gradproof.execution.methods.observe import Applied, Backward, Trace, Watch, vector_of
    from gradproof.execution.methods.property import (
        AUTOCAST,
        FORMS,
        OPTIMIZERS,
        PAIRS,
        Batch,
        Case,
        Cell,
        Job,
        Maker,
        NoKernel,
        Observed,
        Place,
        Refutation,
        Report,
        StepConfig,
        make_optimizer,
        place,
        schedule_factor,
    )
    from gradproof.execution.methods.recorded_step import StepSetting
    from gradproof.execution.methods.user_loop import LoopHarness, mutants_of
    from gradproof.extras.conformance.reductions import root as rounded_root
    from gradproof.report.charts import Curve, Panel
    from gradproof.report.studies import TOKENS as TOKEN_STUDY, settled, sources_of
    from gradproof.rounding.accumulation import Setting, accumulated
    from gradproof.rounding.bound import answer as bound_answer
    from gradproof.rounding.step_contracts import Form, Step, form_of
    from gradproof.shadow.tape.monitor import Monitor
    from gradproof.shadow.tape.monitor_report import monitored
    from gradproof.shadow.tape.ranks import run_ranks
    from gradproof.shadow.tape.run import Run

__all__ = [
    "AUTOCAST", "EXIT_CODE", "FORMATS", "FORMS", "OPTIMIZERS", "PAIRS", "SNAP", "TOKEN_STUDY", "Applied",
    "Backward", "Batch", "Bound", "Case", "Cell", "Curve", "Divide", "Exit", "Form", "Format",
    "GradproofError", "Job", "Lattice", "LoopHarness", "Maker", "Monitor", "Move", "NoKernel", "Observed",
    "Panel", "PathSearch", "PathTrace", "Place", "Ratio", "Refutation", "Report", "Run", "Setting", "Site", "Step",
    "StepConfig", "StepSetting", "Tick", "Timeline", "Tokens", "Trace", "Watch", "WindowError", "Workspace",
    "__version__", "accumulated", "accumulation_bound", "accumulation_witness", "batches", "bound_answer",
    "clip_factor", "constant", "element_bound", "exact", "form_of", "format_named", "judge_window",
    "make_optimizer", "monitored", "mutants_of", "place", "replace_whole", "round_to", "rounded_root", "run_ranks",
    "scaling_bound", "schedule_factor", "settled", "shortest", "sources_of", "sqrt", "tell", "timestamp", "vector_of",
    "writable"
]  # fmt: skip


@cache
def _where() -> dict[str, tuple[str, str]]:
    """The module of each name and its name there, as the imports above say, which type checkers alone run."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {a.asname or a.name: (str(n.module), a.name) for n in lines for a in n.names}


def __getattr__(name: str) -> Any:
    """Import a name from the module that has it. Raises AttributeError for a name that no check may use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _where()[name]
    found = getattr(import_module(module), own, None)
    value = import_module(f"{module}.{own}") if found is None else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
