"""The report as JSON, schema gradproof-report/2 (reports/report.schema.json).

History: 1, the first. Top-level keys come in the order of the schema, keys below them in alphabetical order, so that
two reports of one state differ in nothing but their times.
"""

from __future__ import annotations

import json
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.report.consistency import SHAPE, Report, require


def render(report: Report) -> str:
    """JSON text with a final newline. Raises GradproofError on a wrong shape, an inconsistency, NaN or infinity."""
    require(report)
    try:
        plain = json.loads(json.dumps(report, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError) as error:
        help = "record such a number as null, with a note"
        raise GradproofError("REPORT-NUMBER", str(error), "finite numbers and plain JSON values", help) from error
    order = {key: place for place, key in enumerate(SHAPE[""])}
    top: dict[str, Any] = dict(sorted(plain.items(), key=lambda kv: (order.get(kv[0], len(order)), kv[0])))
    return json.dumps(top, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
