"""The terminal's matrix: a column for every layer that a contract asks for, and for no other."""

from __future__ import annotations

import io

import report_sample as sample
from rich.console import Console

from gradproof.core.outcome import Layer
from gradproof.report import views
from gradproof.report.formats import terminal


def shown(report: sample.Report) -> str:
    """What a wide terminal shows."""
    out = io.StringIO()
    terminal.render(report, Console(file=out, width=160))
    return out.getvalue()


def test_the_matrix_has_a_column_for_every_layer_that_is_asked_for() -> None:
    report, title = sample.green(), views.LAYER_TITLE[Layer.STEP]
    assert views.LAYER_TITLE[Layer.SMT] in shown(report)
    assert title not in shown(report)
    row = report["obligations"][0]
    asked = {"effect": "OPEN", "outcomes": [], "reach": None, "required": True, "checks": []}
    row["cells"]["step"] = {**row["cells"]["smt"], **asked}
    row["effect"] = "OPEN"
    report["verdict"] |= {"met": False, "exit": "open", "code": 4, "reasons": ["no check"]}
    assert title in shown(report)
