"""A bundle as a workspace: contracts and sources in `sources/`, evidence beside it, judged like any other.

Evidence counts as fresh when its claim agrees with what the bundle carries: workspace files by content, files of the
engine and of other folders by the digests of files.sha256, versions by distributions.json. Nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradproof.core.check import Check
from gradproof.core.workspace import Workspace
from gradproof.evidence.environment import KEYS, normal
from gradproof.evidence.record import Standing
from gradproof.evidence.store import Store
from gradproof.session import Options, Run, Session

SOURCES = "sources"
FILES = "files.sha256"
DISTRIBUTIONS = "distributions.json"
BESIDE = ("pyproject.toml", "constraints.txt")
NOTHING = "README"
"""Stands in a folder of the workspace that no evidence rests on."""


class CarriedStore(Store):
    """The evidence of a bundle. `files`: digests by claim key. `ran_on`: environment and distributions."""

    _here = False

    def __init__(self, workspace: Workspace, files: Mapping[str, str], ran_on: Mapping[str, Any]) -> None:
        super().__init__(workspace)
        self.files, self.ran_on = files, ran_on

    def _file(self, key: str, digest: str) -> str | None:
        if key.startswith("ws:") and (said := super()._file(key, digest)) is not None:
            return said
        if key not in self.files:
            return f"{key} is not in {FILES}"
        return None if self.files[key] == digest else f"{key} has another digest in {FILES}"

    def _environment(self, check: Check, recorded: Mapping[str, Any]) -> list[str]:
        here, installed = self.ran_on["environment"], self.ran_on["distributions"]
        pairs = [(key, recorded.get(key), here.get(key)) for key in KEYS[check.kind]]
        held = {normal(name): row["version"] for name, row in installed.items()}
        named = recorded.get("distributions", {})
        pairs += [(name, version, held.get(normal(name))) for name, version in named.items()]
        return [f"{key} {was} then, {now} in {DISTRIBUTIONS}" for key, was, now in pairs if _minor(key, was, now)]


def _minor(key: str, was: Any, now: Any) -> bool:
    """Whether two versions differ; Python's count by the first two numbers."""
    if key == "python":
        return str(was).split(".")[:2] != str(now).split(".")[:2]
    return bool(was != now)


@dataclass(frozen=True)
class Carried:
    """A bundle that was opened: its session, its store, and the standing of every check."""

    session: Session
    store: CarriedStore
    standings: Mapping[str, Standing]

    @property
    def run(self) -> Run:
        """The standings, as a run that ran nothing."""
        return Run(self.standings, frozenset(), True, False, 0.0)

    def checks(self) -> list[Check]:
        """Every check of every contract in the bundle."""
        return [check for checks in self.session.plans.values() for check in checks]


def opened(
    root: Path,
    contracts: Iterable[str],
    profile: str,
    files: Mapping[str, str],
    ran_on: Mapping[str, Any],
    left_out: Mapping[str, str],
    made_at: str,
    *,
    packaged: bool,
) -> Carried:
    """Open a bundle, to be judged by the clock of when it was made. Raises GradproofError for unreadable contracts.

    `packaged`: it is of the packaged reference, which was judged where there was no workspace.
    """
    root = root.resolve()
    session = Session(Options(workspace=root / SOURCES, contracts=tuple(contracts), profile=profile))
    session.workspace = replace(session.workspace, reports=root, packaged=packaged)
    store = CarriedStore(session.workspace, files, ran_on)
    standings = {}
    for check in (c for checks in session.plans.values() for c in checks):
        standing = store.standing(check)
        if standing.evidence is None and check.id in left_out:
            standing = Standing(None, False, f"the bundle carries no evidence of it: {left_out[check.id]}")
        standings[check.id] = standing
    session.demands = replace(session.demands, now=clock(made_at, standings))
    return Carried(session, store, standings)


def clock(made_at: str, standings: Mapping[str, Standing]) -> datetime:
    """When the bundle was made: by its own word, and not before the newest of its evidence."""
    told = [made_at, *(s.evidence["finished_at"] for s in standings.values() if s.evidence is not None)]
    times = [_time(text) for text in told]
    return max(times, default=_time(made_at))


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def claimed(standings: Mapping[str, Standing]) -> dict[str, str]:
    """Digests of every file that the evidence rests on, by claim key, sorted. One digest a key, where all is fresh."""
    files: dict[str, str] = {}
    for standing in standings.values():
        files |= standing.evidence["claim"]["files"] if standing.evidence is not None else {}
    return dict(sorted(files.items()))


def files_text(files: Mapping[str, str]) -> str:
    """One line a file, as sha256sum prints them; a file that was looked for in vain has dashes."""
    return "".join(f"{digest or '-' * 64}  {key}\n" for key, digest in sorted(files.items()))


def files_of(text: str) -> dict[str, str]:
    """Inverse of `files_text`. Raises ValueError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        digest, gap, key = line[:64], line[64:66], line[66:]
        if gap != "  " or not key or key in found:
            raise ValueError(f"{FILES} has a line that is none of a file: {line[:80]!r}")
        found[key] = "" if digest == "-" * 64 else digest
    return found
