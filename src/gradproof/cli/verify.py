"""`gradproof verify`: plan, run, report and gate. `report` and `gate` judge the stored evidence again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradproof.cli import INTERRUPTED
from gradproof.cli.options import (
    baseline,
    place,
    running,
    selecting,
    sharded,
    sharding,
    together,
    verbose_option,
    with_options,
)  # fmt: skip
from gradproof.cli.outputs import code_of, formats as output_formats
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.core.workspace import FOLDERS
from gradproof.evidence.inputs import place_of
from gradproof.evidence.record import ANSWERS, EvidenceStatus

if TYPE_CHECKING:
    from gradproof.extras.claims.load import ClaimLedger
    from gradproof.report.formats.summary import Facts
    from gradproof.session import Options, Session


# -- Watching: the files that evidence rests on, and the checks that must run again when one of them changes.
Seen = Mapping[Path, tuple[int, int, int]]


def _stats(paths: Iterable[Path]) -> Seen:
    found: dict[Path, tuple[int, int, int]] = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        found[path] = (stat.st_ino, stat.st_size, stat.st_ctime_ns)
    return found


def _content(root: Path) -> Iterator[Path]:
    yield root / "pyproject.toml"
    yield from root.glob("*.py")
    for folder in FOLDERS:
        for home, below, names in os.walk(root / folder):
            below[:] = [name for name in below if name != "__pycache__" and not name.startswith(".")]
            yield from (Path(home) / name for name in names if not name.startswith("."))


def _claimed(root: Path, statuses: Iterable[EvidenceStatus]) -> Iterator[Path]:
    for status in statuses:
        if status.evidence is not None:
            yield from (place for key in status.evidence.claim.files if (place := place_of(key, root)))


def affected(checks: Sequence[Check], statuses: Mapping[str, EvidenceStatus]) -> list[Check]:
    """What must run again, and the stubs that it rests on: what has no fresh evidence, by the digests of its claim.

    A crash, and a run that ended without a word on its files, may rest on any file: they are run again too.
    """
    from gradproof.verdict.plan import with_stubs

    return with_stubs(checks, {check.id for check in checks if _due(statuses[check.id])})


def _due(status: EvidenceStatus) -> bool:
    if status.evidence is None or not status.fresh:
        return True
    silent = status.outcome not in ANSWERS and not status.evidence.claim.files
    return silent or status.outcome is Outcome.ERROR


@click.command("verify")
@place
@selecting
@running
@baseline
@output_formats
@verbose_option
@sharding
@click.option("--watch", is_flag=True, help="Run again what a save affected, print changes; ctrl-C ends (exit 130).")
@with_options
def command(
    options: Options, quiet: bool, verbose: bool, formats: tuple[str, ...], json_: bool, watch: bool, shard: str | None,
) -> int:  # fmt: skip
    """Plan every check, run what has no fresh answer, write the report and gate on it.

    With -k only the matching checks are run; the gate still judges all of them, on the stored evidence. With --shard
    the report is partial, and its gate is never met: `gradproof merge` gathers the evidence of all shards.
    """
    from gradproof.cli.claims import judged
    from gradproof.cli.outputs import WARNINGS, Output, Outputs, asked, begun, earlier, problems, published
    from gradproof.cli.progress import listening

    wanted = asked(formats, json_)
    if watch:
        if wanted != [Output("text", None)] or shard is not None:
            found = f"--watch with --shard {shard}" if shard else f"--watch with --format {wanted[0].name}"
            help = "leave --format and --shard out; reports/ has the files"
            raise GradproofError("GP482", found, "the whole plan, and words on stdout alone", help)
        return watched(options)
    session = begun(options, wanted, reports=True)
    chosen = sharded(session.selected(), shard)
    if not chosen:
        click.echo("nothing selected: no planned check matches", err=True)
        return EXIT_CODE[Exit.NOTHING]
    problems(session, quiet, None if verbose else WARNINGS)
    ledger = claimed(session)
    with Outputs(wanted, session.workspace.warning) as outputs:
        before = earlier(session)
        with listening(quiet, verbose) as listener:
            run = session.run(chosen, outputs.listener(listener), session.mark)
        run = replace(session.filled(run), complete=run.complete and shard is None)
        text = outputs.table and not quiet
        made = published(session, run, judged(session, ledger, run.statuses), before, text, verbose)
        outputs.finish(made)
    return INTERRUPTED if run.interrupted else code_of(made)


def claimed(session: Session) -> ClaimLedger | None:
    """The workspace's ledger; one that is wrong is reported and left out, for no contract rests on it."""
    from gradproof.cli.claims import ledger_of
    from gradproof.contract.yaml_reader import ContractErrors

    try:
        return ledger_of(session)
    except ContractErrors as error:
        first = error.problems[0]
        click.echo(f"{first.where}: {first.code}: the ledger of claims is left out: {first.found}", err=True)
        return None


# -- `gradproof verify --watch`: run again what a save affected, and print what became of it.
EVERY = 0.3  # seconds between two looks at the files


def watched(options: Options, rounds: int | None = None, pause: Callable[[], object] | None = None) -> int:
    """Verify, and again after every save, until it is interrupted (130) or `rounds` are over.

    `pause` waits between two looks at the files. Returns the exit code of the last round; a contract with a mistake is
    stated and waited for. Raises KeyboardInterrupt from a pause.
    """
    wait = pause or (lambda: time.sleep(EVERY))
    watcher = Watcher(options)
    done, before = 0, watcher.look()
    while True:
        code = watcher.round()
        done += 1
        if code == INTERRUPTED or (rounds is not None and done >= rounds):
            return code
        before = watcher.known(before)
        while (now := watcher.look()) == before:
            wait()
        before = now


@dataclass
class Watcher:
    """The rounds of one watch. `stated`: what was last printed of each check and contract."""

    options: Options
    stated: Facts | None = None
    session: Session | None = None
    statuses: Mapping[str, EvidenceStatus] = field(default_factory=dict)

    def look(self) -> Seen:
        """Every file of the workspace's content, of the claims of its evidence and of the contracts, as it is now."""
        from gradproof.core.workspace import find

        workspace = find(self.options.workspace, explicit=self.options.workspace is not None)
        paths = [Path(name) for name in self.options.contracts if Path(name).is_file()]
        claimed = _claimed(workspace.root, self.statuses.values())
        return _stats({*_content(workspace.root), *claimed, *paths})

    def known(self, before: Seen) -> Seen:
        """`before`, and files outside the content that claims name for the first time: those were read just now."""
        if self.session is None:
            return before
        root = self.session.workspace.root
        return {**before, **_stats({*_claimed(root, self.statuses.values())} - {*_content(root)} - before.keys())}

    def round(self) -> int:
        """One round. Once there was a round, a wrong contract or command line is reported, not raised."""
        from gradproof.cli.outputs import open_session
        from gradproof.session import Session

        try:
            return self._round(Session(self.options) if self.session else open_session(self.options))
        except GradproofError as error:
            if self.stated is None:
                raise
            click.echo(error.render(), err=True)
            return EXIT_CODE[Exit.USAGE]

    def _round(self, session: Session) -> int:
        from gradproof.cli.progress import listening
        from gradproof.report.formats.summary import changes, facts

        chosen = session.selected()
        if self.session is not None:
            stored = session.statuses(chosen)
            chosen = affected(chosen, stored)
            session.options = replace(session.options, no_cache=False)
        self.session = session
        with listening(quiet=True) as listener:
            run = session.run(chosen, listener, session.mark)
        run = session.filled(run)
        self.statuses = run.statuses
        reports = session.reports(run)
        session.write(reports)
        now = facts(reports)
        lines, self.stated = list(changes(self.stated, now)), now
        for line in lines:
            click.echo(line)
        changed = f"{len(lines)} changed" if lines else "nothing changed"
        click.echo(f"{len(run.ran)} run; {changed}; ctrl-C ends", err=True)
        return INTERRUPTED if run.interrupted else code_of(reports)


# -- `gradproof report` and `gradproof gate`: the stored evidence, rendered again, and its verdict.


judging = together(place, baseline, output_formats, verbose_option, with_options)


@click.command("report")
@judging
def report(options: Options, formats: tuple[str, ...], json_: bool, verbose: bool) -> int:
    """Judge the stored evidence, write the report files, and print one format. Runs nothing.

    json, md and html files are written in every case.
    """
    from gradproof.cli.claims import judged, ledger_of, write
    from gradproof.cli.outputs import Outputs, asked, begun, earlier, published

    wanted = asked(formats, json_)
    session = begun(options, wanted, reports=True)
    run = session.stored()
    claims = judged(session, ledger_of(session), run.statuses)
    if claims is not None:  # `gradproof claims` has its exit code
        write(claims, session.workspace.reports)
    with Outputs(wanted, session.workspace.warning) as outputs:
        made = published(session, run, claims, earlier(session), outputs.table, verbose)
        outputs.finish(made)
    return code_of(made)


@click.command("gate")
@judging
def gate(options: Options, formats: tuple[str, ...], json_: bool, verbose: bool) -> int:
    """Judge the stored evidence against the contract as it stands. Runs nothing, writes what --format names.

    With --baseline, a report.json or a folder of reports, nothing may be weaker than it was there.
    """
    from rich.console import Console

    from gradproof.cli.outputs import Outputs, asked, begun, earlier
    from gradproof.report.formats import summary

    wanted = asked(formats, json_)
    session = begun(options, wanted)
    run = session.stored()
    reports = session.reports(run)
    with Outputs(wanted, session.workspace.warning) as outputs:
        if outputs.table:
            summary.render(reports, Console(), earlier(session), most=None if verbose else summary.LINES)
        outputs.finish(reports)
    return code_of(reports)
