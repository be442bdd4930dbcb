"""`gradproof replay`: a counterexample on concrete numbers, again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import workspace_option

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Counterexample, EvidenceFinding, ReplayRow


@click.command("replay")
@click.argument("evidence", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--control", metavar="NAME", help="The counterexample of a mutant, or of the empty body (empty).")
@click.option("--write", "write", type=click.Path(path_type=Path, dir_okay=False), help="Write it as a pytest file.")
@workspace_option
def command(evidence: Path, control: str | None, write: Path | None, workspace: Path | None) -> int:
    """Replay the counterexample of an EVIDENCE file on the code as it is now.

    Exit code 0: the same clause breaks again everywhere. 4: it does not, or not within the check's time limit.
    """
    from gradproof.core.files import writable, written
    from gradproof.core.outcome import EXIT_CODE, Exit
    from gradproof.core.workspace import find
    from gradproof.evidence.store import Store, open_evidence
    from gradproof.execution.methods.replay_evidence import again, pytest_file, replay, subject_of

    writable(write, "--write")
    found = open_evidence(evidence)
    check = found.check
    place = find(workspace or evidence.resolve().parent, explicit=workspace is not None)
    subject = subject_of(check, control)
    example, recorded = _example(check.id, found.finding, control)
    fresh, why = Store(place).fresh(check, found)
    if not fresh:
        click.echo(f"the evidence is stale: {why}", err=True)
    click.echo(f"{check.id}: {example.clause} on {subject}, found by {example.found_by or 'unknown'}")
    for name, value in example.values.items():
        click.echo(f"  {name} = {value}")
    rows = _within(check.time_limit, lambda: replay(check, place, subject, example))
    if rows is None:
        click.echo(f"no answer within {check.time_limit:g} s, the time limit of {check.id}: not reproduced", err=True)
        return EXIT_CODE[Exit.OPEN]
    for row in rows:
        click.echo(f"{'reproduced' if row['reproduced'] else 'NOT reproduced':<15}{row['on']}: {row['detail']}")
    if write is not None:
        written(write, pytest_file(check, subject, example, rows, place, write), "--write")
        click.echo(f"written: {write}")
    return EXIT_CODE[Exit.MET if again(rows, recorded) else Exit.OPEN]


def _within(limit: float, call: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    """What `call` returns or raises, or None after `limit` seconds. The thread ends with the process."""
    done: list[list[dict[str, Any]]] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            done.append(call())
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit)
    if failed:
        raise failed[0]
    return done[0] if done else None


def _example(check_id: str, finding: EvidenceFinding, control: str | None) -> tuple[Counterexample, list[ReplayRow]]:
    """The counterexample of the check or of a control, and its replays. Raises GradproofError GP213."""
    from gradproof.core.errors import GradproofError

    names = (control, "empty body") if control == "empty" else (control,)
    whose = next((c for c in finding.controls if c.name in names), None) if control is not None else finding
    if whose is not None and whose.counterexample is not None:
        return whose.counterexample, whose.replays
    with_one = [c.name for c in finding.controls if c.counterexample]
    raise GradproofError(
        "GP213",
        f"no counterexample of {check_id if control is None else f'control {control} of {check_id}'} is recorded",
        f"--control with one of {', '.join(with_one)}" if with_one else "a refuted check",
        "name another evidence file or control",
    )
