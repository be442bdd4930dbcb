"""How a command that judges begins: what an earlier run wrote is taken away before a contract is loaded.

So nothing green of an earlier run is left where this one has a mistake in a contract, crashes or is killed. The summary
of `github` stays, to which others append as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gradproof.cli.destination import allowed, cleared
from gradproof.cli.outputs import ONE_EACH, Output, paged
from gradproof.cli.show import warned
from gradproof.core import GradproofError

if TYPE_CHECKING:
    from gradproof.session import Options, Session
    from gradproof.workspace import Workspace

ASKED_WRONGLY = frozenset({"GP212", "GP487"})  # no such contract, no such baseline: this says nothing of the reports


def begun(options: Options, outputs: Sequence[Output], *, reports: bool = False) -> Session:
    """A session of these options, after what an earlier run wrote has been taken away: it says nothing of this one.

    `reports`: where no session comes about, the workspace's reports say so, too. The baseline is no place of an output.
    Raises GradproofError.
    """
    from gradproof.session import Session, workspace_of

    workspace = workspace_of(options)
    names = [] if workspace is None else _named(workspace, options)
    paths = [Path(p) for o in outputs if o.path is not None for p in _each(o.path, names)]
    for path in paths:
        allowed(path, "--format")
    paged(outputs, len(names))
    if workspace is not None:
        own = _reports_of(workspace, names) if reports else []
        _not_the_baseline([*(("--format", path) for path in paths), *own], options, workspace)
    for path in (Path(p) for o in outputs if o.path and o.name != "github" for p in _each(o.path, names)):
        cleared(path)
    try:
        return warned(Session(options))
    except GradproofError as error:
        if reports and workspace is not None and error.code not in ASKED_WRONGLY:
            _unstarted(workspace, names, error, names if options.contracts else None)
        raise


def _each(path: str, names: Sequence[str]) -> list[str]:
    return [path.replace(ONE_EACH, name) for name in names] if ONE_EACH in path else [path]


def watching(options: Options) -> None:
    """Before a watch, which writes reports. Raises GradproofError GP433 where it would write over the baseline."""
    from gradproof.session import workspace_of

    workspace = workspace_of(options)
    if workspace is not None:
        _not_the_baseline(_reports_of(workspace, _named(workspace, options)), options, workspace)


def _reports_of(workspace: Workspace, names: Iterable[str]) -> list[tuple[str, Path]]:
    """Where a run writes its reports, and who writes there."""
    return [("a run", place / "report.json") for place in (workspace.reports, *(workspace.reports / n for n in names))]


def _not_the_baseline(places: Sequence[tuple[str, Path]], options: Options, workspace: Workspace) -> None:
    """Raises GradproofError GP433 for what would be written where a report lies that nothing may be weaker than."""
    if not places:
        return
    from gradproof.session import baselines_of

    real: set[str] = set()
    for baseline in (p for p in baselines_of(options, workspace.root) if "\0" not in str(p)):
        inner = baseline.glob("*/report.json") if os.path.isdir(baseline) else ()
        real |= {os.path.realpath(p) for p in (baseline, baseline / "report.json", *inner)}
    for who, path in places:
        if os.path.realpath(path) in real:
            found, wanted = f"{who} would write over the baseline", "a file that is no part of what is judged"
            mend = "name another file, or keep the reports of a release in a folder of their own"
            raise GradproofError("GP433", found, wanted, mend, str(path))


def _named(workspace: Workspace, options: Options) -> list[str]:
    """Ids of the contracts that are asked for, told by their places alone, whatever is in them."""
    from gradproof.contract import contract_id
    from gradproof.session import is_file

    if not options.contracts:
        return [contract_id(path) for path in sorted(workspace.root.glob("proofs/*/contract.yaml"))]
    known = [name for name in options.contracts if is_file(workspace.root / "proofs" / name / "contract.yaml")]
    return known + [contract_id(Path(name)) for name in options.contracts if name not in known and is_file(Path(name))]


def _unstarted(workspace: Workspace, names: Iterable[str], error: GradproofError, only: Sequence[str] | None) -> None:
    """Say in the reports of an earlier run that this one could not start. A report that cannot be written stays."""
    from gradproof import report as reports

    why = f"the run could not start: {error.where + ': ' if error.where else ''}{error.code}: {error.found}"
    for folder in [workspace.reports, *(workspace.reports / name for name in names)]:
        with suppress(OSError):
            reports.outdate(folder, why, only)
