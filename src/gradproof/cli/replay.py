"""`gradproof replay`: a counterexample on concrete numbers, again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gradproof.cli.options import workspace_option


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
    check, data = open_evidence(evidence)
    place = find(workspace or evidence.resolve().parent, explicit=workspace is not None)
    subject = subject_of(check, control)
    example, recorded = _example(check.id, data["finding"], control)
    fresh, why = Store(place).fresh(check, data)
    if not fresh:
        click.echo(f"the evidence is stale: {why}", err=True)
    click.echo(f"{check.id}: {example.get('clause')} on {subject}, found by {example.get('found_by', 'unknown')}")
    for name, value in example.get("values", {}).items():
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


def _example(
    check_id: str, finding: dict[str, Any], control: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The counterexample of the check or of a control, and its replays. Raises GradproofError GP213."""
    from gradproof.core.errors import GradproofError

    held, replays = finding["counterexample"], finding["replays"]
    whose = check_id
    if control is not None:
        names = (control, "empty body") if control == "empty" else (control,)
        rows = [c for c in finding["controls"] if c["name"] in names]
        held, replays = (rows[0].get("counterexample"), rows[0].get("replays", [])) if rows else (None, [])
        whose = f"control {control} of {check_id}"
    if held is None:
        with_one = [c["name"] for c in finding["controls"] if c.get("counterexample")]
        raise GradproofError(
            "GP213",
            f"no counterexample of {whose} is recorded",
            f"--control with one of {', '.join(with_one)}" if with_one else "a refuted check",
            "name another evidence file or control",
        )
    return dict(held), list(replays)
