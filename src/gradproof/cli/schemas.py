"""The schemas of every document that gradproof publishes, by file name: `reports/*.schema.json` is made of them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gradproof.core.outcome import EVIDENCE_SCHEMA
from gradproof.core.schemas.base import KERNELS, ROUNDING, Kernels, Rounding


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas that are published in `reports/`, by file name."""
    from gradproof.cli.graph import GRAPH_SCHEMA
    from gradproof.core.schemas.commands import (
        BOUND,
        CERTIFICATE,
        CONFIG,
        DOCTOR,
        EVENTS,
        LIST,
        MERGE,
        SELECTION,
        THRESHOLDS,
        BoundDocument,
        Certificate,
        Config,
        Doctor,
        Event,
        Graph,
        Listing,
        Merge,
        Selection,
        Thresholds,
    )
    from gradproof.core.schemas.deterministic import DETERMINISTIC, Deterministic
    from gradproof.core.schemas.evidence import Evidence
    from gradproof.core.schemas.studies import SCALING, SPEEDUP, TOKENS, Scaling, Speedup, Tokens
    from gradproof.core.schemas.sweep import SWEEP, Sweep
    from gradproof.extras.attest.manifest import BUNDLE, Manifest
    from gradproof.extras.claims.document import CLAIMS, Claims
    from gradproof.report.diff import DIFF, Diff

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    kinds: dict[str, tuple[str, type[BaseModel]]] = {
        "rounding.schema.json": (ROUNDING, Rounding),
        "kernels.schema.json": (KERNELS, Kernels),
        "bundle.schema.json": (BUNDLE, Manifest),
        "deterministic.schema.json": (DETERMINISTIC, Deterministic),
        "sweep.schema.json": (SWEEP, Sweep),
        "speedup.schema.json": (SPEEDUP, Speedup),
        "scaling.schema.json": (SCALING, Scaling),
        "tokens.schema.json": (TOKENS, Tokens),
        "graph.schema.json": (GRAPH_SCHEMA, Graph),
        "claims.schema.json": (CLAIMS, Claims),
        "doctor.schema.json": (DOCTOR, Doctor),
        "diff.schema.json": (DIFF, Diff),
        "merge.schema.json": (MERGE, Merge),
        "list.schema.json": (LIST, Listing),
        "config.schema.json": (CONFIG, Config),
        "selection.schema.json": (SELECTION, Selection),
        "events.schema.json": (EVENTS, Event),
        "evidence.schema.json": (EVIDENCE_SCHEMA, Evidence),
        "bound.schema.json": (BOUND, BoundDocument),
        "thresholds.schema.json": (THRESHOLDS, Thresholds),
        "certificate.schema.json": (CERTIFICATE, Certificate),
    }
    return {name: head | {"$id": id_} | kind.model_json_schema() for name, (id_, kind) in kinds.items()}
