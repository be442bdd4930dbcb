"""What a report says of the documents beside the evidence: fresh, stale, rejected or absent, and never nothing.

A document lies in the reports of the workspace, or comes with it: `reports/rounding.json`, `reports/kernels/*.json`,
and what was measured of the training systems, `reports/deterministic.json` and `reports/tokens.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError
from gradproof.report.kernel_assumptions import reliances

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace

FRESH, STALE, REJECTED, ABSENT = "fresh", "stale", "rejected", "absent"
ROUNDING_FILE, KERNELS_FOLDER = "rounding.json", "kernels"
MAKE = "make it with: python -m gradproof.extras.studies.rounding --out reports/rounding.json"
MOST_NAMED = 5


@dataclass(frozen=True)
class Study:
    """A document of a training system: its shape, the modules that make it, and the folders that they may reach."""

    file: str
    shape: str
    starts: tuple[str, ...]
    folders: tuple[str, ...]
    make: str


STUDIED = ("models", "gradproof.extras.studies", "gradproof.core.schemas")
DETERMINISTIC = Study(
    "deterministic.json", "gradproof.core.schemas.deterministic:Deterministic",
    ("models.sampling.measured", "gradproof.extras.studies.deterministic"), (*STUDIED, "gradproof.arith"),
    "python -m gradproof.extras.studies.deterministic --out reports/deterministic.json",
)  # fmt: skip
TOKENS = Study(
    "tokens.json", "gradproof.core.schemas.studies:Tokens",
    ("symbolic.tokens.study",), ("models", "symbolic", "gradproof.arith"),
    "python -m symbolic.tokens.study --out reports/tokens.json --plots docs",
)  # fmt: skip
MEASURED = (*STUDIED, "gradproof.execution.methods.ranks")
SWEEP = Study(
    "sweep.json", "gradproof.core.schemas.sweep:Sweep",
    (
        "models.speed.throughput", "models.sampling.torch_variance", "models.sampling.measured",
        "gradproof.extras.studies.sweep",
    ),
    MEASURED,
    "make throughput",
)  # fmt: skip
SPEEDUP = Study(
    "speedup.json", "gradproof.core.schemas.studies:Speedup",
    ("models.speed.step_speed", "models.sampling.measured", "gradproof.extras.studies.speedup"), MEASURED,
    "python -m gradproof.extras.studies.speedup --out reports/speedup.json",
)  # fmt: skip
SCALING = Study(
    "scaling.json", "gradproof.core.schemas.studies:Scaling",
    ("models.speed.large_batch", "models.sampling.measured", "gradproof.extras.studies.scaling"), MEASURED,
    "python -m gradproof.extras.studies.scaling --out reports/scaling.json --plot docs/scaling.svg",
)  # fmt: skip
TRAINING = (DETERMINISTIC, TOKENS, SWEEP, SPEEDUP, SCALING)


def places(workspace: Workspace) -> list[Path]:
    """Folders in which documents are looked for, the workspace's reports first."""
    return list(dict.fromkeys([workspace.reports, workspace.root / "reports"]))


def rounding(workspace: Workspace) -> dict[str, Any]:
    """The rounding study with its status, as JSON values."""
    from gradproof.core.schemas.base import Rounding, read
    from gradproof.evidence.source_digests import sources

    found = [folder / ROUNDING_FILE for folder in places(workspace) if (folder / ROUNDING_FILE).exists()]
    if not found:
        return no_rounding(f"there is no reports/{ROUNDING_FILE}; {MAKE}")
    try:
        document = read(found[0], Rounding).model_dump(mode="json", by_alias=True)
    except ValueError as error:
        return {"status": REJECTED, "reason": f"{ROUNDING_FILE} is rejected: {error}", "document": None}
    changed = differing(document["sources"], sources())
    if changed:
        return {"status": STALE, "reason": f"{changed}; {MAKE}", "document": document}
    return {
        "status": FRESH,
        "reason": "no file that it was computed with has changed",
        "document": document,
    }


def no_rounding(reason: str) -> dict[str, Any]:
    """The section where there is no document."""
    return {"status": ABSENT, "reason": reason, "document": None}


def sources_of(study: Study, workspace: Workspace) -> dict[str, str]:
    """Digests of the files that make a document in a workspace. Raises OSError, SyntaxError and UnicodeDecodeError."""
    from gradproof.evidence.source_digests import closure

    return closure(workspace.root, study.starts, study.folders)


def settled(study: Study, workspace: Workspace, then: Mapping[str, str]) -> Mapping[str, str]:
    """The digests of before a run, which must be those of after it, and some. Raises GradproofError GP219."""
    if not then:
        raise GradproofError("GP219", f"no source of {study.file} below {workspace.root}", study.make, "run it there")
    if changed := differing(then, sources_of(study, workspace)):
        raise GradproofError("GP219", changed, "files that stay while they are measured", "run it again")
    return then


def training(workspace: Workspace) -> list[dict[str, str]]:
    """How each document of a training system stands; one that neither lies there nor is made there has no row."""
    rows = []
    for study in TRAINING:
        found = [folder / study.file for folder in places(workspace) if (folder / study.file).exists()]
        if found or makes(study, workspace):
            status, reason = status_of(study, workspace, found[0] if found else None)
            rows.append({"name": study.file, "status": status, "reason": reason})
    return rows


def makes(study: Study, workspace: Workspace) -> bool:
    """Whether the module that makes a document is in a workspace."""
    return (workspace.root / f"{study.starts[0].replace('.', '/')}.py").is_file()


def status_of(study: Study, workspace: Workspace, path: Path | None) -> tuple[str, str]:
    """Whether a document is fresh, stale, rejected or absent, and why."""
    from gradproof.core.schemas.base import DocumentModel, read

    make = f"make it with: {study.make}"
    if path is None:
        return ABSENT, f"there is no reports/{study.file}; {make}"
    module, _, name = study.shape.partition(":")
    kind: type[DocumentModel] = getattr(import_module(module), name)
    try:
        then: Mapping[str, str] = read(path, kind).model_dump()["sources"]
    except ValueError as error:
        return REJECTED, f"{study.file} is rejected: {error}"
    try:
        changed = differing(then, sources_of(study, workspace))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        changed = f"its sources cannot be read: {error}"
    return (STALE, f"{changed}; {make}") if changed else (FRESH, "no file that it was made with has changed")


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which source files differ from those of a document, in words; an empty text where none does."""
    words = [f"{name} {_how(then.get(name), now.get(name))}" for name in sorted({*then, *now})]
    words = [w for w in words if not w.endswith("same")]
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more


def _how(then: str | None, now: str | None) -> str:
    if then == now:
        return "is the same"
    return "is gone" if now is None else "is new" if then is None else "changed"


def kernels(workspace: Workspace, checks: Sequence[Mapping[str, Any]], here: Mapping[str, Any]) -> dict[str, Any]:
    """Every document of kernel runs, and what the proofs of a report rely on, as JSON values."""
    paths: dict[str, Path] = {}
    for folder in places(workspace):
        for path in sorted((folder / KERNELS_FOLDER).glob("*.json")):
            paths.setdefault(path.name, path)
    documents = [_kernels(path) for _, path in sorted(paths.items())]
    read = [d for d in documents if d["status"] == FRESH]
    relies = reliances(checks, read, here)
    for document in read:
        document["rows"] = [{k: v for k, v in row.items() if k != "facts"} for row in document["rows"]]
    return {"documents": documents, "relies": relies}


def _kernels(path: Path) -> dict[str, Any]:
    from gradproof.core.schemas.base import Kernels, read

    name = f"{KERNELS_FOLDER}/{path.name}"
    base: dict[str, Any] = {"path": name, "status": REJECTED, "mode": None, "environment": {}, "rows": []}
    try:
        found = read(path, Kernels)
    except ValueError as error:
        return base | {"reason": f"{name} is rejected: {error}"}
    rows = [{"section": section, **row.model_dump()} for section, rows in found.sections.items() for row in rows]
    return base | {"status": FRESH, "reason": "", "mode": found.mode, "environment": found.environment, "rows": rows}
