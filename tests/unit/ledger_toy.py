"""A toy workspace with evidence of every check and a ledger, for the tests of the ledger. Nothing is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from toy_workspace import answer, recorded, refutation, write_workspace

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Expect, Layer, Outcome, Reach
from gradproof.core.schemas.base import DocumentModel, Sha256
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.environment import environment
from gradproof.evidence.store import Store
from gradproof.extras.claims import FILE
from gradproof.extras.claims.document import Claims, LedgerRow
from gradproof.extras.claims.load import built
from gradproof.report.studies import Study
from gradproof.session import Options, Session

HEAD = "format: gradproof-ledger/1\nsources: {S: a document}\nclaims:\n"
ROW = "  - {{id: {id}, source: S, claim: a claim, form: a form, expect: {expect}, {basis}}}\n"
EXACT = {"a": [1, {"b/c": 2.5}], "yes": True, "word": "x", "third": "1/3"}


def row(basis: str, expect: str = "PROVED within a bound", id: str = "CLAIM-T-01") -> str:
    """A row of the ledger; `basis` is what decides it."""
    return ROW.format(id=id, expect=expect, basis=basis)


def ledger(root: Path, *rows: str) -> Path:
    """Write the ledger of a workspace."""
    path = root / FILE
    path.write_text(HEAD + "".join(rows), encoding="utf-8")
    return path


def inputs_of(workspace: Workspace, check: Check) -> dict[str, Any]:
    """The files that evidence of a toy check rests on."""
    module = check.harness.partition(":")[0]
    if not module:
        return {"files": {}}
    name = module.replace(".", "/") + ".py"
    files = {f"ws:{name}": sha256_of(workspace.root / name), "gp:core/check.py": sha256_of(PACKAGE / "core/check.py")}
    return {"files": files, "imports": [{"path": ["ws:.", "start"], "names": {module: f"ws:{name}"}}]}


def store(workspace: Workspace, check: Check, finding: Finding) -> Path:
    """Evidence of a check, fresh."""
    made = recorded(check, finding, inputs=inputs_of(workspace, check), environment=environment(), seconds=0.1)
    return Store(workspace).write(made)


def stocked(root: Path) -> Workspace:
    """The toy workspace with evidence as expected of every check but the CUDA one."""
    workspace = write_workspace(root)
    for check in Session(Options(workspace=workspace.root)).checks:
        if check.layer is not Layer.CUDA:
            store(workspace, check, answer(check) if check.expect is Expect.HOLDS else refutation(check))
    return workspace


def judged(workspace: Workspace) -> Claims:
    """The document of the workspace's ledger."""
    return built(Session(Options(workspace=workspace.root)))


def only_row(workspace: Workspace, basis: str, expect: str = "PROVED within a bound") -> LedgerRow:
    """The single row of a ledger, judged."""
    ledger(workspace.root, row(basis, expect))
    [made] = judged(workspace).rows
    return made


def check_of(workspace: Workspace, id_: str) -> Check:
    """A planned check."""
    return next(c for c in Session(Options(workspace=workspace.root)).checks if c.id == id_)


def reaching(workspace: Workspace, id_: str, reach: Reach) -> None:
    """Evidence that a check holds, this far."""
    check = check_of(workspace, id_)
    store(workspace, check, answer(check, reach=reach))


def flipped(workspace: Workspace, id_: str) -> None:
    """Evidence of a check that answers the opposite of what it is expected to."""
    check = check_of(workspace, id_)
    store(workspace, check, refutation(check) if check.expect is Expect.HOLDS else answer(check))


def left(workspace: Workspace, id_: str, outcome: Outcome) -> None:
    """Evidence of a check that is no answer."""
    check = check_of(workspace, id_)
    store(workspace, check, Finding(outcome, "no answer"))


class ToyDocument(DocumentModel):
    """A document of one figure."""

    document: Literal["gradproof-tokens/1"] = Field(alias="schema")
    sources: dict[str, Sha256]
    x: float
    device_name: str | None = None
    torch: str = ""
    made_at: str = ""


STUDY = Study("tokens.json", "ledger_toy:ToyDocument", ("models.a",), ("models",), "make toys")
"""What stands for the studies of the field."""


def study(workspace: Workspace, name: str, content: Mapping[str, Any], source: str = "models/a.py") -> Path:
    """A document in reports/ that says it was made of one file, as that file is now."""
    path = workspace.root / "reports" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    sources = {source: sha256_of(workspace.root / source)}
    path.write_text(json.dumps({"schema": f"gradproof-{name}/1", "sources": sources, **content}), encoding="utf-8")
    return path
