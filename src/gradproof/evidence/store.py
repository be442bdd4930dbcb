"""Evidence on disk: content-addressed, written atomically, believed only after it has been checked.

`reports/evidence/<check>/<digest>.json`; GPU evidence lies in `reports/gpu/` in the same layout, because it is
carried to machines without a GPU by version control. A file that was edited, cut short or made for another check
is rejected with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.files import replace_whole
from gradproof.core.outcome import Layer
from gradproof.core.workspace import Workspace, sha256_of
from gradproof.evidence.environment import differences
from gradproof.evidence.import_path import Search, started
from gradproof.evidence.inputs import place_of
from gradproof.evidence.record import ANSWERS, EvidenceStatus

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Environment, Evidence, EvidenceInputs

SKEW = timedelta(hours=1)  # by which the clocks of two machines may differ
_UNSAFE = re.compile(r"[^A-Za-z0-9._@-]")


def safe(check_id: str) -> str:
    """A folder name for a check id: the id itself where it can be one, else with a digest that keeps it unique."""
    name = _UNSAFE.sub("_", check_id)
    if name and name == check_id and not name.startswith("."):
        return name
    return f"{name.lstrip('.')}-{digest_of(check_id)[:8]}"


def read(path: Path) -> Evidence:
    """One evidence file. Raises ValueError with the reason why it is not to be believed."""
    from gradproof.core.schemas.evidence import evidence_of

    if path.is_symlink() or path.parent.is_symlink():
        raise ValueError("it is a symbolic link, and what that leads to may change unseen")
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    try:
        data = parse(path.read_text(encoding="utf-8"))
        evidence = evidence_of(data)
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"it cannot be read: {e}") from e
    except json.JSONDecodeError as e:
        raise ValueError(f"it is no JSON: {e}") from e
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    if path.stem != digest_of(data)[:16]:
        raise ValueError("its name is not the digest of its content: it was edited or cut short")
    if path.parent.name != safe(evidence.check.id):
        raise ValueError(f"it is evidence of {evidence.check.id}, in another check's folder")
    return evidence


def parse(text: str) -> Any:
    """JSON without duplicate keys, NaN and infinity. Raises ValueError."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("it holds a duplicate key")
    return data


def no_constant(name: str) -> Any:
    """For a reader of JSON: NaN and infinities are refused with ValueError."""
    raise ValueError(f"it holds {name}")


def written(evidence: Evidence) -> str:
    """The text of an evidence file."""
    return json.dumps(evidence.stated(), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


class Store:
    """The evidence of one workspace."""

    _here = True  # folders outside of the workspace are those that the runs had

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._hashes: dict[str, str] = {}
        self._searches: dict[bool, Search] = {}

    def folder(self, check: Check) -> Path:
        """Where the evidence of a check lies."""
        kind = "gpu" if check.layer is Layer.CUDA else "evidence"
        return self.workspace.reports / kind / safe(check.id)

    def folders(self, check: Check) -> list[Path]:
        """Where evidence of a check may lie: GPU evidence also comes with the workspace, wherever reports go."""
        own = self.folder(check)
        carried = self.workspace.root / "reports" / "gpu" / safe(check.id)
        return [own] if check.layer is not Layer.CUDA or carried == own else [own, carried]

    def write(self, evidence: Evidence) -> Path:
        """Store one run, then drop the check's older files. Raises ValueError for text that is no Unicode, OSError.

        Only files that were there before are dropped: what another process writes meanwhile stays, and is judged.
        """
        folder = self.folder(evidence.check)
        before = list(folder.glob("*.json"))
        path = folder / f"{digest_of(evidence.stated())[:16]}.json"
        replace_whole(path, written(evidence))
        for older in before:
            if older != path:
                older.unlink(missing_ok=True)
        return path

    def status(self, check: Check) -> EvidenceStatus:
        """The check's best evidence: fresh before stale, later before earlier."""
        ranked: list[tuple[bool, str, EvidenceStatus]] = []
        rejected = []
        for path in [p for folder in self.folders(check) for p in sorted(folder.glob("*.json"))]:
            try:
                evidence = read(path)
            except ValueError as e:
                rejected.append(f"{path.name} is rejected: {e}")
                continue
            ok, reason = self.fresh(check, evidence)
            status = EvidenceStatus(evidence, ok, reason, str(path), cached=ok)
            ranked.append((ok, evidence.finished_at, status))
        if ranked:
            return max(ranked, key=lambda r: r[:2])[2]
        return EvidenceStatus(None, False, "; ".join(rejected) or "it was never run")

    def fresh(self, check: Check, evidence: Evidence) -> tuple[bool, str]:
        """Whether evidence speaks about the claim as it stands now, and if not, why."""
        reasons = self._reasons(check, evidence)
        return (not reasons, "; ".join(reasons))

    def _reasons(self, check: Check, evidence: Evidence) -> list[str]:
        inputs = evidence.claim
        if inputs.spec != check.digest:
            now, then = check.to_json(), evidence.check.to_json()
            changed = sorted(k for k in {*now, *then} if digest_of(now.get(k)) != digest_of(then.get(k)))
            return [f"the claim changed: {', '.join(changed) or 'its text'}"]
        reasons = list(_misdated(evidence))
        reasons += [r for key, digest in inputs.files.items() if (r := self._file(key, digest))]
        reasons += self._search(check).moved(inputs.imports)
        if check.layer is not Layer.CUDA:
            reasons += self._environment(check, evidence.environment)
        if reasons or evidence.finding.outcome not in ANSWERS:
            return reasons
        return self._grounds(check, inputs)

    def _environment(self, check: Check, recorded: Environment) -> list[str]:
        """How what the evidence ran on differs from what counts now."""
        return differences(check.kind, recorded.stated())

    def _grounds(self, check: Check, inputs: EvidenceInputs) -> list[str]:
        """An answer rests on files: its harness, and the engine that ran it."""
        module = check.harness.partition(":")[0]
        if module and not any(search.names.get(module) for search in inputs.imports):
            return [f"the inputs list no file of its harness {check.harness}"]
        return [] if any(k.startswith("gp:") for k in inputs.files) else ["the inputs list no file of the engine"]

    def _file(self, key: str, digest: str) -> str | None:
        if key not in self._hashes:
            path = place_of(key, self.workspace.root)
            if path is None:
                return f"{key} names no file"
            try:
                self._hashes[key] = sha256_of(path) if path.is_file() else ""  # a pipe would keep the reader waiting
            except OSError:
                self._hashes[key] = ""
        now = self._hashes[key]
        return None if now == digest else f"{key} changed" if now else f"{key} is gone"

    def _search(self, check: Check) -> Search:
        here = self._here and check.layer is not Layer.CUDA
        if here not in self._searches:
            self._searches[here] = Search(self.workspace.root, started() if here else (), here)
        return self._searches[here]


def _misdated(evidence: Evidence) -> Iterator[str]:
    """Why its times cannot be true. They order evidence and tell its age."""
    if evidence.ended > datetime.now(UTC) + SKEW:
        yield f"it ended at {evidence.finished_at}, which is in the future"
    elif evidence.ended < evidence.began - SKEW:
        yield "it ended before it began"


def open_evidence(path: Path) -> Evidence:
    """An evidence file that a user named. Raises GradproofError GP211."""
    try:
        return read(path)
    except ValueError as e:
        raise GradproofError(
            "GP211",
            f"{path} is no evidence to believe: {e}",
            "a file below reports/evidence or reports/gpu as gradproof wrote it",
            "run the check again with: gradproof verify",
        ) from e
