"""Evidence on disk: content-addressed, written atomically, believed only after it has been checked.

`reports/evidence/<check>/<digest>.json`; GPU evidence lies in `reports/gpu/` in the same layout, because it is
carried to machines without a GPU by version control. A file that was edited, cut short or made for another check
is rejected with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.files import replace_whole, write_all
from gradproof.core.outcome import Layer, Outcome, Reach
from gradproof.core.workspace import Workspace, sha256_of
from gradproof.evidence.audit import audit
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


# -- Evidence of other folders of reports, taken into the store, or not at all.
#
# A file is taken where it would be believed if it lay in the store: it is whole, it is evidence of a planned check, and
# its claim is the claim as it stands here. Two fresh answers to one claim that differ are a conflict, which nobody here
# can decide: nothing is taken then. Of answers that agree the latest is kept, and an answer before a run without one.

SAID = ANSWERS | {Outcome.SPURIOUS}
KINDS = ("evidence", "gpu")
MOST_BYTES = 64 << 20
MOST_NAMED = 5


@dataclass(frozen=True)
class Found:
    """One evidence file that is fresh: what it says of its check, by the audit. `own`: it lies in the store."""

    path: Path
    check: Check
    evidence: Evidence
    outcome: Outcome
    own: bool

    @property
    def said(self) -> tuple[Outcome, Reach | None]:
        """What an answer consists of."""
        return self.outcome, self.evidence.finding.reach


@dataclass(frozen=True)
class Merged:
    """What became of every file. `missing`: checks of which files were found, and none that is fresh."""

    taken: tuple[Found, ...]
    kept: tuple[Found, ...]
    refused: tuple[tuple[Path, str], ...]
    strange: tuple[Path, ...]
    missing: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether the folders held no evidence file at all."""
        return not (self.taken or self.kept or self.refused or self.strange)


def merge(checks: Sequence[Check], store: Store, folders: Sequence[Path]) -> Merged:
    """Take evidence of these checks from folders of reports. `checks`: every planned one.

    Raises GradproofError: GP484 for what is no folder, GP483 for two answers that differ, GP486 when a file cannot be
    written. In each case the store is as it was.
    """
    for folder in folders:
        if not folder.is_dir():
            help = "name the folders that `gradproof verify --shard` wrote its reports to"
            raise GradproofError("GP484", f"{folder} is no folder", "a folder of reports", help)
    planned = {check.id: check for check in checks}
    fresh: dict[str, list[Found]] = {}
    refused: list[tuple[Path, str]] = []
    strange: list[Path] = []
    names: dict[str, None] = {}
    paths = [p for folder in folders for kind in KINDS for p in sorted(folder.glob(f"{kind}/*/*.json"))]
    for path in dict.fromkeys(p for p in paths if not p.name.startswith(".")):
        found = _examined(path, planned, store)
        if isinstance(found, Found):
            fresh.setdefault(found.check.id, []).append(found)
        elif found is None:
            strange.append(path)
        else:
            refused.append((path, found[1]))
            names |= {found[0]: None} if found[0] else {}
    for name in [*fresh, *names]:
        fresh[name] = [*_own(planned[name], store), *(f for f in fresh.get(name, []) if not f.own)]
    _agree(fresh)
    best = [max(rows, key=_rank) for rows in fresh.values() if rows]
    taken = tuple(found for found in best if not found.own)
    _taken(taken, store)
    missing = tuple(name for name in names if not fresh[name])
    return Merged(taken, tuple(f for f in best if f.own), tuple(refused), tuple(strange), missing)


def _examined(path: Path, planned: Mapping[str, Check], store: Store) -> Found | tuple[str, str] | None:
    """A fresh file; or the check's id, where it is known, and why the file is refused; None for no planned check."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return "", f"it is no file, or larger than {MOST_BYTES >> 20} MiB"
        evidence = read(path)
    except (OSError, ValueError, RecursionError) as e:
        # The check in whose folder it lies: an id need not be a folder's name.
        owner = next((name for name in planned if safe(name) == path.parent.name), "")
        return owner, f"it is rejected: {e}"
    check = planned.get(evidence.check.id)
    if check is None:
        return None
    if (check.layer is Layer.CUDA) is not (path.parent.parent.name == "gpu"):
        return check.id, f"evidence of the layer {check.layer} does not lie in {path.parent.parent.name}/"
    ok, reason = store.fresh(check, evidence)
    if not ok:
        return check.id, f"it is stale: {reason}"
    own = path.resolve().parent in [folder.resolve() for folder in store.folders(check)]
    return Found(path, check, evidence, audit(check, evidence.finding)[0], own)


def _own(check: Check, store: Store) -> Iterator[Found]:
    """Fresh evidence of a check that the store holds already."""
    for path in [p for folder in store.folders(check) for p in sorted(folder.glob("*.json"))]:
        found = _examined(path, {check.id: check}, store)
        if isinstance(found, Found):
            yield found


def _rank(found: Found) -> tuple[bool, bool, str, bool, str]:
    """An answer first, then the latest; of two files of one content the one that is in the store."""
    answered, said = found.outcome in ANSWERS, found.outcome in SAID
    return answered, said, found.evidence.finished_at, found.own, found.path.name


def _agree(fresh: Mapping[str, Iterable[Found]]) -> None:
    """Raises GradproofError GP483 where two files answer one claim differently."""
    conflicts = []
    for name, rows in fresh.items():
        answers = [found for found in rows if found.outcome in SAID]
        other = next((found for found in answers if found.said != answers[0].said), None)
        if other is not None:
            conflicts.append(f"{name}: {_stated(answers[0])}, and {_stated(other)}")
    if conflicts:
        more = f"; and {len(conflicts) - MOST_NAMED} more" if len(conflicts) > MOST_NAMED else ""
        help = "run it again with --no-cache where the answers came from; nothing was taken"
        raise GradproofError("GP483", "; ".join(conflicts[:MOST_NAMED]) + more, "one answer to one claim", help)


def _stated(found: Found) -> str:
    outcome, reach = found.said
    return f"{outcome}{f' ({reach})' if reach else ''} in {found.path}"


def _taken(taken: Sequence[Found], store: Store) -> None:
    """Every file, then the older ones away; after an error, none of them. Raises GradproofError GP486."""
    try:
        write_all({store.folder(found.check) / found.path.name: written(found.evidence) for found in taken})
    except OSError as e:
        found_ = f"{store.workspace.reports} cannot be written: {e.strerror or e}"
        raise GradproofError("GP486", found_, "a store that can be written", "nothing was taken") from e
    for found in taken:
        for older in store.folder(found.check).glob("*.json"):
            if older.name != found.path.name:
                with suppress(OSError):
                    older.unlink(missing_ok=True)
