"""`gradproof verify --watch`: run again what a save touched, and print what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.core import EXIT_CODE, EXIT_MEANING, Exit, GradproofError

if TYPE_CHECKING:
    from gradproof.evidence import Standing
    from gradproof.saves import Seen
    from gradproof.session import Options, Session

EVERY = 0.3  # seconds between two looks at the files
SHOWN = 100
Told = Mapping[str, tuple[str, str]]


def watched(options: Options, rounds: int | None = None, pause: Callable[[], object] | None = None) -> int:
    """Verify, and again after every save, until it is interrupted (130) or `rounds` are over.

    `pause` waits between two looks at the files. Returns the exit code of the last round; a contract with a mistake is
    told and waited for. Raises KeyboardInterrupt from a pause.
    """
    wait = pause or (lambda: time.sleep(EVERY))
    watcher = Watcher(options)
    done, before = 0, watcher.look()
    while True:
        code = watcher.round()
        done += 1
        if code == _interrupted() or (rounds is not None and done >= rounds):
            return code
        before = watcher.known(before)
        while (now := watcher.look()) == before:
            wait()
        before = now


def _interrupted() -> int:
    from gradproof.session import INTERRUPTED

    return INTERRUPTED


@dataclass
class Watcher:
    """The rounds of one watch. `told`: outcome and reason of each check, verdict of each contract, as last printed."""

    options: Options
    told: Told | None = None
    session: Session | None = None
    standings: Mapping[str, Standing] = field(default_factory=dict)

    def look(self) -> Seen:
        """The files as they are now."""
        from gradproof.saves import seen
        from gradproof.workspace import find

        workspace = find(self.options.workspace, explicit=self.options.workspace is not None)
        paths = [Path(name) for name in self.options.contracts if Path(name).is_file()]
        return seen(workspace, self.standings.values(), paths)

    def known(self, before: Seen) -> Seen:
        """`before`, with the files that the last round's claims name for the first time."""
        from gradproof.saves import named

        return named(self.session.workspace, self.standings.values(), before) if self.session else before

    def round(self) -> int:
        """One round. What is wrong with a contract or a command line is told, not raised, once there was a round."""
        from gradproof.cli.show import opened
        from gradproof.session import Session

        try:
            return self._round(Session(self.options) if self.session else opened(self.options))
        except GradproofError as error:
            if self.told is None:
                raise
            click.echo(error.render(), err=True)
            return EXIT_CODE[Exit.USAGE]

    def _round(self, session: Session) -> int:
        from gradproof.cli.progress import listening
        from gradproof.cli.verify import FORMATS
        from gradproof.saves import touched
        from gradproof.session import INTERRUPTED, worst

        chosen = session.selected()
        if self.session is not None:
            at_hand = session.standings(chosen)
            chosen = touched(chosen, at_hand)
            session.options = replace(session.options, no_cache=False)
        self.session = session
        session.mark()
        with listening(quiet=True) as listener:
            run = session.run(chosen, listener)
        run = session.filled(run)
        self.standings = run.standings
        reports = session.reports(run)
        for contract, report in zip(session.contracts, reports, strict=True):
            session.write(contract, report, FORMATS)
        self._tell(reports, len(run.ran))
        return INTERRUPTED if run.interrupted else worst(Exit(r["verdict"]["exit"]) for r in reports)

    def _tell(self, reports: list[dict[str, Any]], ran: int) -> None:
        now = dict(_facts(reports))
        lines = list(_changes(self.told, now))
        self.told = now
        for line in lines:
            click.echo(line)
        click.echo(f"{ran} run; {f'{len(lines)} changed' if lines else 'nothing changed'}; ctrl-C ends", err=True)


def _facts(reports: list[dict[str, Any]]) -> Iterator[tuple[str, tuple[str, str]]]:
    for report in reports:
        for row in report["checks"]:
            yield row["id"], (f"{row['outcome']} ({row['effect']})", row["reason"])
        exit_ = Exit(report["verdict"]["exit"])
        reasons = report["verdict"]["reasons"]
        yield report["contract"]["id"], (f"{EXIT_MEANING[exit_]} (exit {EXIT_CODE[exit_]})", "; ".join(reasons[:1]))


def _changes(before: Told | None, now: Told) -> Iterator[str]:
    """One line for each check and verdict that is not what it was; at first, for each that is not discharged."""
    for name, (said, reason) in now.items():
        was = before[name][0] if before is not None and name in before else None
        first = before is None and "(DISCHARGED)" in said
        if was == said or first:
            continue
        short = " ".join(reason.split())[:SHOWN]
        yield f"{name}: {f'{was} -> ' if was else ''}{said}{f'  {short}' if short else ''}"
    yield from (f"{name}: gone" for name in (before or {}) if name not in now)
