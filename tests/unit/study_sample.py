"""Documents for tests: a rounding study of a few rows computed now, and a run of kernels made up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gradproof import __version__
from gradproof.core.schemas.base import KERNELS, ROUNDING
from gradproof.evidence.source_digests import sources
from gradproof.extras.studies.rounding import questions, series, threshold
from gradproof.report.studies import ONCE, SINGLE
from gradproof.rounding.bound import ASSUMED

Json = dict[str, Any]
TOLERANCES = {"fp32": "1e-5", "fp16": "1e-3", "bf16": "2e-3"}
HERE = {"torch": "2.6.0", "machine": "x86_64", "python": "3.11.7"}


@cache
def _rows() -> tuple[list[Json], list[Json]]:
    asked = [q for q in questions(TOLERANCES) if q.order in ("sequential", "any")]
    return [threshold(q, 8) for q in asked], [series(b, 8)[0] for b in ("fp32", "fp16", "bf16")]


def rounding(**changed: Any) -> Json:
    """A study up to N = 8, with some keys replaced."""
    thresholds, drawn = _rows()
    made: Json = {
        "schema": ROUNDING, "gradproof": __version__, "made_at": "2025-11-21T08:05:02Z", "seconds": 1.5, "most": 8,
        "magnitude": "1", "scale": "divide", "assumes": list(ASSUMED), "contracts": ["add/fp32/grid"],
        "thresholds": [dict(row) for row in thresholds], "series": [dict(row) for row in drawn], "sources": sources(),
    }  # fmt: skip
    return made | changed


def row(operator: str, dtype: str, device: str = "cpu", **changed: Any) -> Json:
    """One row that holds of a single rounding, with some keys replaced."""
    made: Json = {
        "operator": operator, "dtype": dtype, "device": device, "claim": SINGLE, "outcome": "HOLDS", "cases": 1000,
        "mismatches": 0, "first": None, "names": [], "ratio": None, "flags": {}, "facts": {}, "reason": "",
    }  # fmt: skip
    return made | changed


def elementwise(device: str = "cpu") -> list[Json]:
    """Every row that the operators of the model need, all of them holding."""
    rows = []
    for dtype in ("fp32", "fp16", "bf16"):
        facts = {f"differs from operations rounded to {dtype}": "0 of 1000"} if dtype != "fp32" else {}
        rows += [row("add_(tensor)", dtype, device), row("mul(tensor)", dtype, device)]
        rows += [row("div(tensor)", dtype, device, claim=ONCE, facts=facts)]
        rows += [row("div(scalar)", dtype, device, claim=ONCE), row("sqrt", dtype, device)]
    return [*rows, row("to(fp16)", "fp32", device), row("to(bf16)", "fp32", device)]


def kernels(rows: list[Json] | None = None, device: str = "cpu", more: Mapping[str, Any] | None = None) -> Json:
    """A run of kernels on one device; `more` goes into its environment."""
    found = elementwise(device) if rows is None else rows
    outcomes = [r["outcome"] for r in found]
    environment = {"device": device, "torch": "2.6.0", "machine": "x86_64", "cpu_capability": "AVX2"}
    environment |= {"gpu": "NVIDIA H100"} if device == "cuda" else {}
    return {
        "schema": KERNELS, "mode": "quick", "environment": {**environment, **(more or {})},
        "summary": {name: outcomes.count(name) for name in ("HOLDS", "REFUTED", "NOT_RUN", "ERROR")},
        "sections": {"elementwise": found},
    }  # fmt: skip


def check(
    name: str, strategy: str = "linear_chain", rounded: tuple[str, ...] = ("add fp32", "divide fp32"), **more: Any
) -> Json:
    """A check of a report, as far as reliance reads it."""
    made: Json = {
        "id": name, "kind": "smt", "layer": "smt", "strategy": strategy, "stubs": [], "fresh": True, "environment": {},
        "stats": {"rounded": list(rounded)},
    }  # fmt: skip
    return made | more
