"""A check of a bundle, run again from the bundle's own sources; its recorded queries, put to a solver again.

This executes what the bundle carries. The rest of `verify-bundle` executes nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gradproof.audit import audit
from gradproof.bundle import asking
from gradproof.bundle.carried import SOURCES, Carried
from gradproof.bundle.listing import Problem
from gradproof.bundle.queries import parse
from gradproof.bundle.second import answers, verdict
from gradproof.core import Check, GradproofError, Layer
from gradproof.environment import cuda_absent
from gradproof.runner import Worker
from gradproof.store import parse as parse_json
from gradproof.workspace import PACKAGE, Workspace, sha256_of


def chosen(carried: Carried, name: str) -> Check:
    """A check that can be run again here. Raises GradproofError GP441: unknown, without evidence, another engine."""
    check = next((c for c in carried.checks() if c.id == name), None)
    evidence = None if check is None else carried.standings[name].evidence
    if check is None or evidence is None:
        raise _refused(f"there is no evidence of {name}", "the id of a check of the bundle", "see reports/")
    if check.layer is Layer.CUDA and (why := cuda_absent()):
        raise _refused(f"{name} needs a GPU: {why}", "a machine with a GPU", "run it on one")
    engine = [key for key in evidence["claim"]["files"] if key.startswith("gp:")]
    changed = [key for key in engine if not _same(key, carried.store.files[key])]
    if changed:
        found = f"{len(changed)} files of the installed gradproof are not those that ran, {changed[0]} first"
        raise _refused(found, "the engine that the evidence rests on", "install the gradproof that made the bundle")
    return check


def _refused(found: str, expected: str, mend: str) -> GradproofError:
    return GradproofError("GP441", found, expected, mend)


def _same(key: str, digest: str) -> bool:
    path = PACKAGE / key.removeprefix("gp:")
    return (sha256_of(path) if path.is_file() else "") == digest


def rerun(root: Path, carried: Carried, check: Check) -> tuple[str, Problem | None]:
    """Run a check from the bundle's sources: what it found in words, and the problem where the evidence disagrees."""
    evidence = carried.standings[check.id].evidence
    assert evidence is not None
    with tempfile.TemporaryDirectory(prefix="gradproof-bundle-") as folder:
        home = Path(folder).resolve()
        shutil.copytree(root / SOURCES, home / "workspace")
        workspace = Workspace(home / "workspace", home / "reports")
        finding = Worker(check, workspace, check.time_limit).run()["finding"]
    then, now = audit(check, evidence["finding"]), audit(check, finding)
    told = f"{check.id} is {now[0]} again: {now[1]}"
    if now[0] is not then[0] or finding["clauses"] != evidence["finding"]["clauses"]:
        words = f"{check.id} was run again: {now[0]}, {now[1]}; the evidence says {then[0]}, {then[1]}"
        return words, Problem("GP449", str(check.id), words)
    return told, None


def ask(root: Path, solver: str, seconds: float, limits: Mapping[str, float]) -> Iterator[Problem | str]:
    """Put every recorded query to a solver: a line for each script, or a problem. No answer is a problem too.

    A query has as long as its check has by the contract (`limits`), and each script has at most `seconds`.
    """
    for row in parse_json((root / asking.INDEX).read_text(encoding="utf-8")):
        if row["file"] is None:
            continue
        queries = parse((root / row["file"]).read_text(encoding="utf-8"))
        each = limits[row["check"]]
        said = answers(queries, solver, seconds, each)
        found = [verdict(q.status, a) for q, a in zip(queries, said, strict=False)]
        agree, known = found.count("agree"), sum(q.status != "unknown" for q in queries)
        differ = found.count("differ")
        words = f"{agree} of {known} answers are the same, {differ} differ ({solver})"
        if silent := known - agree - differ:
            words += f"; no answer within {each:g} s, or none that can be read: {silent}"
        yield f"{row['check']}: {words}" if agree == known else Problem("GP449", row["file"], words)
