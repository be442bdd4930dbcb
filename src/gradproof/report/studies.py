"""What a report says of the documents beside the evidence: fresh, stale, rejected or absent, and never nothing.

A document lies in the reports of the workspace, or comes with it: `reports/rounding.json`, `reports/kernels/*.json`,
and what was measured of the training systems, `reports/deterministic.json` and `reports/tokens.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace

FRESH, STALE, REJECTED, ABSENT = "fresh", "stale", "rejected", "absent"
ROUNDING_FILE, KERNELS_FOLDER = "rounding.json", "kernels"
MAKE = "make it with: python -m gradproof.extras.studies.rounding --out reports/rounding.json"
MOST_NAMED = 5


@dataclass(frozen=True)
class Study:
    """A document of a training system: its shape, the modules that make it, and the folders that they may reach.

    A module `name.*` stands for every module of that folder.
    """

    file: str
    shape: str
    starts: tuple[str, ...]
    folders: tuple[str, ...]
    make: str


STUDIED = ("models", "gradproof.extras.studies", "gradproof.core.schemas")
DETERMINISTIC = Study(
    "deterministic.json", "gradproof.core.schemas.deterministic:Deterministic",
    ("models.sampling.flags", "gradproof.extras.studies.deterministic"), (*STUDIED, "gradproof.arith"),
    "python -m gradproof.extras.studies.deterministic --out reports/deterministic.json",
)  # fmt: skip
TOKENS = Study(
    "tokens.json", "gradproof.core.schemas.studies:Tokens",
    ("symbolic.tokens.study",), ("models", "symbolic", "gradproof.arith"),
    "python -m symbolic.tokens.study --out reports/tokens.json --plots docs",
)  # fmt: skip
MEASURED = (*STUDIED, "gradproof.shadow.tape.ranks")
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
MUTATION = Study(
    "mutation.json", "gradproof.core.schemas.mutation:Mutation",
    (
        "models.accumulation.loop", "models.accumulation.window_bugs", "models.adamw.model", "models.adamw.kernel",
        "models.tokens.window", "models.tokens.scaling", "models.tokens.bias", "models.tokens.cross_entropy",
        "models.systems.epochs", "symbolic.*",
    ),
    ("models", "symbolic", "gradproof.core.protocol"),
    "make mutation",
)  # fmt: skip
TRAINING = (DETERMINISTIC, TOKENS, SWEEP, SPEEDUP, SCALING, MUTATION)


def places(workspace: Workspace) -> list[Path]:
    """Folders in which documents are looked for, the workspace's reports first."""
    return list(dict.fromkeys([workspace.reports, workspace.root / "reports"]))


def rounding(workspace: Workspace) -> dict[str, Any]:
    """The rounding study with its status, as JSON values."""
    from gradproof.core.schemas.base import RoundingStudy, read
    from gradproof.evidence.source_digests import sources

    found = [folder / ROUNDING_FILE for folder in places(workspace) if (folder / ROUNDING_FILE).exists()]
    if not found:
        return section(ABSENT, f"there is no reports/{ROUNDING_FILE}; {MAKE}")
    try:
        document = read(found[0], RoundingStudy).model_dump(mode="json", by_alias=True)
    except ValueError as error:
        return section(REJECTED, f"{ROUNDING_FILE} is rejected: {error}")
    if changed := differing(document["sources"], sources()):
        return section(STALE, f"{changed}; {MAKE}", document)
    return section(FRESH, "no file that it was computed with has changed", document)


def section(status: str, reason: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a report says of the rounding study."""
    return {"status": status, "reason": reason, "document": document}


def sources_of(study: Study, workspace: Workspace) -> dict[str, str]:
    """Digests of the files that make a document in a workspace. Raises OSError, SyntaxError and UnicodeDecodeError."""
    from gradproof.evidence.source_digests import closure

    starts = [name for name in study.starts if not name.endswith(".*")]
    for folder in (name.removesuffix(".*") for name in study.starts if name.endswith(".*")):
        found = sorted((workspace.root / folder.replace(".", "/")).rglob("*.py"))
        starts += [".".join(path.relative_to(workspace.root).with_suffix("").parts) for path in found]
    return closure(workspace.root, starts, study.folders)


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
            if study is MUTATION and found and status in (FRESH, STALE):
                from gradproof.core.schemas.base import read
                from gradproof.core.schemas.mutation import Mutation

                models = read(found[0], Mutation).files  # how many mutants of each were killed, and survived
                rows += [{"name": f"{study.file}, {m.file}", "status": status, "reason": m.words()} for m in models]
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
    kind: type[DocumentModel] = resolve_name(study.shape)
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
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    words = [f"{n} {'is gone' if n not in now else 'is new' if n not in then else 'changed'}" for n in names]
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more


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


# -- Which kernels a proof about rounding relies on, and whether they were seen to round so on a device.
#
# The rounding model says: each operation returns the rounding of its exact result, once. Evidence names the operators
# that a stub or a chain was applied to; a document of kernel runs has a row for each operator, dtype and device. Where
# the row does not hold, or holds of another operation, what the proof says of that device is an assumption.

HOLDS, NOT_RUN, DIFFERS, UNUSED = "HOLDS", "NOT_RUN", "DIFFERS", "UNUSED"
ANY = "any"
STATES = (HOLDS, "REFUTED", "ERROR", DIFFERS, NOT_RUN)
DEVICES = ("cpu", "cuda")
SINGLE, ONCE = "single rounding", "each operation in fp32, rounded once to storage"
# Kernels that stand for an operator of the model; a window divides by its count, which is a scalar.
KERNELS: Mapping[str, tuple[str, ...]] = {
    "add": ("add_(tensor)",),
    "multiply": ("mul(tensor)",),
    "divide": ("div(tensor)", "div(scalar)"),
    "convert": ("to({dtype})",),
    "square root": ("sqrt",),
}
CHAIN = "linear_chain"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


Judged = tuple[str, tuple[str, ...], str]  # state, rows in words, what is wrong


@dataclass(frozen=True)
class Bench:
    """What was run where: documents that were read, devices that measured evidence names, and the environment here."""

    documents: Sequence[Document]
    devices: frozenset[tuple[str, str]]
    here: Mapping[str, Any]


def reliances(checks: Sequence[Row], documents: Sequence[Document], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every stub and every linear chain of a report's checks, with each operator on each device, as JSON values.

    `state`: the worst of the kernels that stand for the operator; `rows` name what was found, `words` say what follows.
    `documents`: those of the report that were read. `here`: the report's environment.
    """
    ran = ((str(c["layer"]), c["environment"].get("device")) for c in checks if c["fresh"])
    bench = Bench(documents, frozenset((layer, str(name)) for layer, name in ran if name), here)
    found = []
    for name, operators in relying(checks):
        for device in DEVICES:
            judged = [_status(bench, device, *o.rsplit(" ", 1)) for o in operators if o != UNUSED]
            if operators == [UNUSED]:
                words = "no check rests on this stub, so nothing is assumed of a kernel"
                judged = [(ANY, ANY, UNUSED, (), words)]
            elif not judged:
                words = "assumption: no fresh evidence says which operators it rounds, so none is known to conform on"
                judged = [(ANY, ANY, NOT_RUN, (), f"{words} {device}")]
            for operator, dtype, state, rows, words in judged:
                row = {"check": name, "device": device, "operator": operator, "dtype": dtype, "state": state}
                found.append({**row, "rows": list(rows), "words": words})
    return found


def relying(checks: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """Stubs and linear chains, with the operators that fresh evidence says they were applied to ("add fp32").

    A stub is applied by the checks that name it; one that no check names is applied to nothing, which is UNUSED. No
    operator at all: it is not known which.
    """
    for check in checks:
        if check["kind"] == "stub":
            users = [c for c in checks if check["id"] in c["stubs"]]
            known = all(c["fresh"] and c["stats"].get("rounded") for c in users)
            if not users:
                yield check["id"], [UNUSED]
            else:
                yield check["id"], sorted({o for c in users for o in c["stats"]["rounded"]}) if known else []
        elif check["strategy"] == CHAIN:
            yield check["id"], list(check["stats"].get("rounded", ())) if check["fresh"] else []


def _status(bench: Bench, device: str, operator: str, dtype: str) -> tuple[str, str, str, tuple[str, ...], str]:
    """Operator, dtype, state, rows and words; the worst of the kernels that stand for the operator."""
    missing = f"assumption: no conformance row for {operator} {dtype} on {device}"
    state, rows, why = _worst([_kernel(bench, device, *kernel) for kernel in kernels_of(operator, dtype)])
    if state == HOLDS:
        return operator, dtype, state, rows, f"{operator} {dtype} on {device}: {'; '.join(rows)}"
    return operator, dtype, state, rows, missing + (f" ({why})" if why else "")


def _worst(judged: Sequence[Judged]) -> Judged:
    """The worst state of several, all rows, and what is wrong with any of them. Nothing at all is NOT_RUN."""
    state = next((s for s in (*STATES[1:], HOLDS) if any(j[0] == s for j in judged)), NOT_RUN)
    why = dict.fromkeys(why for _, _, why in judged if why)
    return state, tuple(row for _, rows, _ in judged for row in rows), "; ".join(why)


def kernels_of(operator: str, dtype: str) -> list[tuple[str, str]]:
    """The kernels that stand for an operator in a format, each with the dtype of its operands."""
    held = "fp32" if operator == "convert" else dtype
    return [(name.format(dtype=dtype), held) for name in KERNELS.get(operator, ())]


def _kernel(bench: Bench, device: str, name: str, held: str) -> Judged:
    """One kernel over all documents of the device, each on a machine that is this one."""
    own = [d for d in bench.documents if d["environment"]["device"] == device]
    apart = {d["path"]: foreign(d["environment"], bench) for d in own}
    here = [d for d in own if not apart[d["path"]]]
    if not own:
        return NOT_RUN, (), f"NOT_RUN: no document of kernels run on {device}"
    if not here:
        return NOT_RUN, (), "; ".join(f"{path} was made on another machine: {why}" for path, why in apart.items())
    wanted = (name, held, device)
    rows = [(d["path"], r) for d in here for r in d["rows"] if (r["operator"], r["dtype"], r["device"]) == wanted]
    if not rows:
        return NOT_RUN, (), f"no row {name} {held} in {', '.join(d['path'] for d in here)}"
    return _worst([_row(path, row) for path, row in rows])


def _row(path: str, row: Row) -> Judged:
    """One row: HOLDS only of a single rounding, in one way or another."""
    said = (f"{row['operator']} {row['outcome']}, {row['cases']} cases, {path}",)
    if row["outcome"] != HOLDS:
        why = row["reason"] or "; ".join(row["names"]) or "no reason stated"
        return row["outcome"], said, f"{row['operator']} is {row['outcome']}: {why}"
    if row["claim"] == SINGLE or (row["claim"] == ONCE and _innocuous(row)):
        return HOLDS, said, ""
    return DIFFERS, said, f"{row['operator']} holds of another operation: {row['claim']}"


def _innocuous(row: Row) -> bool:
    """Rounding to fp32 and then to 16 bits is one rounding of a quotient or product of 16-bit numbers.

    Source: Figueroa, When is double rounding innocuous?, 1995: 24 >= 2 p + 2. Its row counts the exceptions; that of a
    scalar counts scalars that are no numbers of the format as well, and says nothing of it.
    """
    if row["dtype"] == "fp32" or row["operator"].endswith("(scalar)"):
        return True
    return str(row["facts"].get(f"differs from operations rounded to {row['dtype']}", "")).startswith("0 of ")


def foreign(environment: Mapping[str, Any], bench: Bench) -> str:
    """In what a document's machine differs from this one, or an empty text.

    On the CPU: torch, the architecture, and the instruction set that measured evidence names. On a GPU its name alone,
    where measured evidence names one: such documents are carried from machine to machine.
    """
    device, here = environment["device"], bench.here
    gpu = device == "cuda"
    mine = str(environment.get("gpu")) if gpu else f"cpu {environment.get('cpu_capability')}"
    named = sorted(name for layer, name in bench.devices if layer == device)
    pairs = [] if gpu else [(environment.get(key), here.get(key)) for key in ("torch", "machine")]
    differing = [f"{was}, not {now}" for was, now in pairs if was != now]
    differing += [f"{mine}, not {' or '.join(named)}"] if named and mine not in named else []
    return "; ".join(differing)
