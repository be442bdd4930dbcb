"""The schemas of documents that gradproof reads, by file name: their `reports/*.schema.json` are made of them.

A document that a command only prints has its schema in `reports/` alone, and is held to it by the tests.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gradproof.core.outcome import EVIDENCE_SCHEMA
from gradproof.core.schemas.base import KERNELS, ROUNDING, Kernels, RoundingStudy


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas that are published in `reports/`, by file name."""
    from gradproof.core.schemas.deterministic import DETERMINISTIC, Deterministic
    from gradproof.core.schemas.evidence import Evidence
    from gradproof.core.schemas.mutation import MUTATION, Mutation
    from gradproof.core.schemas.studies import SCALING, SPEEDUP, TOKENS, Scaling, Speedup, Tokens
    from gradproof.core.schemas.sweep import SWEEP, Sweep
    from gradproof.extras.attest.manifest import BUNDLE, Manifest
    from gradproof.extras.claims.document import CLAIMS, Claims
    from gradproof.report.diff import DIFF, Diff

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    kinds: dict[str, tuple[str, type[BaseModel]]] = {
        "rounding.schema.json": (ROUNDING, RoundingStudy),
        "kernels.schema.json": (KERNELS, Kernels),
        "bundle.schema.json": (BUNDLE, Manifest),
        "deterministic.schema.json": (DETERMINISTIC, Deterministic),
        "sweep.schema.json": (SWEEP, Sweep),
        "speedup.schema.json": (SPEEDUP, Speedup),
        "scaling.schema.json": (SCALING, Scaling),
        "mutation.schema.json": (MUTATION, Mutation),
        "tokens.schema.json": (TOKENS, Tokens),
        "claims.schema.json": (CLAIMS, Claims),
        "diff.schema.json": (DIFF, Diff),
        "evidence.schema.json": (EVIDENCE_SCHEMA, Evidence),
    }
    return {name: head | {"$id": id_} | kind.model_json_schema() for name, (id_, kind) in kinds.items()}
