"""Measured quantities of a workspace's own: shown in every format, held to their limits, and of the published shape."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import report_sample as sample
from toy_workspace import MEASURED, answer, check, recorded

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.evidence.audit import audit
from gradproof.report import charts, consistency
from gradproof.report.consistency import as_json
from gradproof.report.formats import html, markdown
from tests import conform

Report = dict[str, Any]
SCHEMA = json.loads((conform.SCHEMAS / "report.schema.json").read_text(encoding="utf-8"))
ROW = {
    "check": "FALSIFY-GA-001@cpu-fp32", "column": "peak bytes", "device": "cpu", "dtype": "fp32", "net": "mlp", "n": 4,
    "measured": 300, "bound": 400, "ratio": 0.75, "note": "",
}  # fmt: skip


def with_rows(*rows: dict[str, Any]) -> Report:
    report = sample.green()
    report["measurements"] += [ROW | row for row in rows]
    return report


def test_they_are_shown_with_their_limit() -> None:
    report = with_rows({}, {"measured": 399, "net": "deep", "n": 8}, {"column": "draws", "bound": None, "ratio": None})
    peak, draws = charts.quantities(report)
    assert (peak.rows, peak.nets, peak.sizes, peak.worst["measured"]) == (2, ("mlp", "deep"), (4, 8), 399)
    assert (peak.verdict, draws.verdict) == ("within", "no limit is stated")
    text, page = markdown.render(report), html.render(report)
    assert "| peak bytes | cpu | fp32 | 2 | mlp, deep | 4, 8 | 399 | 400 | deep, N = 8 | within |" in text
    assert 'id="quantities"' in page
    assert "peak bytes" in page
    assert 'id="quantities"' not in html.render(sample.green())
    jsonschema.validate(json.loads(as_json(report)), SCHEMA)


@pytest.mark.parametrize("measured", [401, float("nan")])
def test_one_above_its_limit_is_never_green(measured: float) -> None:
    report = with_rows({}, {"measured": measured})
    (peak,) = charts.quantities(report)
    assert re.fullmatch("ABOVE .* 1 of 2 rows", peak.verdict)
    with pytest.raises(GradproofError, match="measured above its bound"):
        consistency.require(report)
    one = check("F@cpu-fp32", kind=Kind.TORCH, layer=Layer.CPU)
    rows = [{**MEASURED, "column": "peak bytes", "measured": measured, "bound": 400}]
    assert audit(one, recorded(one, answer(one, measurements=rows)).finding)[0] is Outcome.ERROR


def test_what_does_not_conform_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform.main([str(tmp_path)]) == 1
    assert "no evidence" in capsys.readouterr().out
    (tmp_path / "c").mkdir()
    (tmp_path / "c/report.json").write_text(as_json(with_rows({})), encoding="utf-8")
    read, found = conform.faults(tmp_path)
    assert (read, found) == (1, [f"{tmp_path}: no evidence"])
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    (tmp_path / "d/report.json").write_text(as_json(with_rows({"column": ""})), encoding="utf-8")
    read, found = conform.faults(tmp_path)
    assert read == 2
    assert "column" in found[1]
