"""Evidence of other folders of reports, taken into this workspace's store, or not at all.

A file is taken where it would be believed if it lay in the store: it is whole, it is evidence of a planned check, and
its claim is the claim as it stands here. Two fresh answers to one claim that differ are a conflict, which nobody here
can decide: nothing is taken then. Of answers that agree the latest is kept, and an answer before a run without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_all
from gradproof.core.outcome import Layer, Outcome, Reach
from gradproof.core.schemas.evidence import Evidence
from gradproof.evidence.audit import audit
from gradproof.evidence.record import ANSWERS
from gradproof.evidence.store import Store, read, safe, written

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
    _write(taken, store)
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


def _write(taken: Sequence[Found], store: Store) -> None:
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
