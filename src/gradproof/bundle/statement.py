"""A report as an in-toto Statement v1 with a test-result v0.1 predicate: plain JSON, to be put into an envelope.

The predicate knows passed, warned and failed, and nothing between: whatever gave no answer is failed. A check that
nothing demands and that did not run is in no list. A waived one is warned.
Source: https://in-toto.io/Statement/v1 and https://in-toto.io/attestation/test-result/v0.1
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproof.bundle.document import MANIFEST, Wheel
from gradproof.render.consistency import excused_ids
from gradproof.render.standing import Standing, rows
from gradproof.workspace import sha256_of

TYPE, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"
RESULTS = ("FAILED", "WARNED", "PASSED")  # the worst first


def statement(
    report: Mapping[str, Any], wheel: Wheel | None, sources: str, materials: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """The statement. Its subject is the wheel, else the list of sources. `materials`: (name, file). Raises OSError."""
    subject = {"name": wheel.name, "digest": {"sha256": wheel.sha256}} if wheel else _described("files.sha256", sources)
    passed, warned, failed = sorted_rows(report)
    result = "FAILED" if failed or not report["verdict"]["met"] else "WARNED" if warned else "PASSED"
    return {
        "_type": TYPE,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": [_described(name, sha256_of(Path(place))) for name, place in materials],
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def of_manifest(digest: str, statements: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The statement about a whole bundle. Its subject is the manifest, by `digest` (sha256 in hex).

    `statements`: of each contract, by its id, the place in the bundle and the text. The tests are the contracts.
    """
    results = {name: json.loads(text)["predicate"]["result"] for name, (_, text) in statements.items()}
    named = {word: [name for name, result in results.items() if result == word] for word in RESULTS}
    texts = statements.values()
    return {
        "_type": TYPE,
        "subject": [_described(MANIFEST, digest)],
        "predicateType": PREDICATE,
        "predicate": {
            "result": next((word for word in RESULTS if named[word]), "FAILED"),
            "configuration": [_described(place, hashlib.sha256(text.encode()).hexdigest()) for place, text in texts],
            "passedTests": named["PASSED"],
            "warnedTests": named["WARNED"],
            "failedTests": named["FAILED"],
        },
    }


def _described(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def sorted_rows(report: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names of what passed, what is waived, and everything else that was asked for."""
    waived = excused_ids(report)
    passed: list[str] = []
    warned: list[str] = []
    failed: list[str] = []
    for row in rows(report):
        if row.id in waived:
            warned.append(row.id)
        elif row.standing is not Standing.SKIPPED:
            (passed if row.standing is Standing.PASSED else failed).append(row.id)
    return passed, warned, failed
