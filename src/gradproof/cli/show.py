"""`gradproof graph`, `config` and `replay`: how contracts stand, each setting's source, and a counterexample again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import (
    ENVIRONMENT,
    baseline,
    output_format,
    place,
    running,
    with_options,
    workspace_option,
)  # fmt: skip
from gradproof.contract.settings import demands_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, EXIT_MEANING, Effect, Exit, Layer

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
    from gradproof.core.schemas.evidence import Counterexample, EvidenceFinding, ReplayRow
    from gradproof.session import Options, Session
    from gradproof.verdict.judge import Ruling, Verdict


# -- What builds on what: contracts, their dependencies, obligations and checks, each with how it stands on the evidence
GRAPH_SCHEMA = "gradproof-graph/1"
ABSENT = "ABSENT"
STATE: Mapping[Exit, Effect] = {Exit.MET: Effect.DISCHARGED, Exit.BROKEN: Effect.BROKEN}


def built(session: Session) -> dict[str, Any]:
    """The graph of the session's contracts and of what they build on; who depends on others comes first."""
    verdicts = session.verdicts({})
    rows = [_contract(session.known[name], verdict, verdicts) for name, verdict in reversed(verdicts.items())]
    return {"schema": GRAPH_SCHEMA, "profile": session.options.profile, "contracts": rows}


def state_of(verdict: Verdict | None) -> str:
    """DISCHARGED, BROKEN or OPEN; ABSENT for a contract that is not there."""
    return ABSENT if verdict is None else str(STATE.get(verdict.exit, Effect.OPEN))


def _contract(contract: Contract, verdict: Verdict, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    names = {o.id: o.property for o in contract.obligations}
    loose = [r for r in verdict.rulings.values() if not r.check.obligations]
    return {
        "id": contract.id,
        "version": contract.metadata.version,
        "path": str(contract.path),
        "state": state_of(verdict),
        "says": EXIT_MEANING[verdict.exit],
        "depends_on": [{"id": n, "state": state_of(verdicts.get(n))} for n in contract.metadata.depends_on],
        "obligations": [
            {
                "id": row.id,
                "property": names[row.id],
                "state": str(row.effect),
                "checks": [_check(r) for r in verdict.rulings.values() if row.id in r.check.obligations],
            }
            for row in verdict.obligations.values()
        ],
        "others": [_check(r) for r in loose],
    }


def _check(ruling: Ruling) -> dict[str, Any]:
    check = ruling.check
    return {
        "id": check.id,
        "layer": str(check.layer),
        "required": ruling.required,
        "expect": str(check.expect),
        "outcome": str(ruling.outcome),
        "state": str(ruling.effect),
        "depends_on": list(check.depends),
    }


# -- A graph of contracts as a text tree.
DEPTHS = ("contracts", "obligations", "checks")
Graph = Mapping[str, Any]
Tree = tuple[str, Sequence["Tree"]]


def text(graph: Graph, depth: str) -> str:
    """One tree for each contract, those that nothing builds on first."""
    lines: list[str] = []
    for contract in graph["contracts"]:
        head, below = _tree(contract, DEPTHS.index(depth))
        lines += [head, *_branches(below, ""), ""]
    return "\n".join(lines[:-1])


def _tree(contract: Mapping[str, Any], depth: int) -> Tree:
    below: list[Tree] = [(f"{d['state']:<10} depends on {d['id']}", ()) for d in contract["depends_on"]]
    for row in contract["obligations"] if depth else ():
        below.append(
            (f"{row['state']:<10} {row['id']}  {row['property']}", _leaves(row["checks"]) if depth > 1 else ())
        )
    below += _leaves(contract["others"]) if depth > 1 else ()
    return f"{contract['state']} {contract['id']} {contract['version']}: {contract['says']}", below


def _leaves(checks: Sequence[Mapping[str, Any]]) -> list[Tree]:
    return [(_stated(row), ()) for row in checks]


def _stated(row: Mapping[str, Any]) -> str:
    words = [f"{row['state']:<10}", row["id"], row["outcome"]]
    words += ["as expected"] if row["expect"] == "refuted" and row["state"] == "DISCHARGED" else []
    words += [f"rests on {', '.join(row['depends_on'])}"] if row["depends_on"] else []
    spare = row["state"] == Effect.OPEN and row["layer"] == Layer.CUDA and not row["required"]  # in profile ci
    return "  ".join([*words, "not required"] if spare else words)


def _branches(trees: Sequence[Tree], lead: str) -> Iterator[str]:
    for i, (head, below) in enumerate(trees):
        last = i + 1 == len(trees)
        yield f"{lead}{'└─ ' if last else '├─ '}{head}"
        yield from _branches(below, lead + ("   " if last else "│  "))


@click.command("graph")
@place
@output_format("text", "json")
@click.option(
    "--depth", type=click.Choice(DEPTHS), default="checks", show_default=True,
    help="How far down; JSON has everything.",
)  # fmt: skip
@with_options
def graph(options: Options, format_: str, depth: str) -> int:
    """Draw contracts, what they depend on, their obligations and checks, with the verdict on the stored evidence.

    Runs nothing. A contract whose dependency is not discharged is OPEN.
    """
    from gradproof.cli.outputs import open_session, problems

    session = open_session(options)
    problems(session, quiet=False)
    made = built(session)
    if format_ == "json":
        click.echo(json.dumps(made, indent=1, ensure_ascii=False))
    else:
        click.echo(text(made, depth))
    return 0


# -- `gradproof config`: every setting with its value and where it comes from.


@click.command("config")
@place
@running
@baseline
@output_format("text", "json")
@with_options
def config(options: Options, quiet: bool, format_: str) -> int:
    """Show each setting with its value and its source: command line, environment, pyproject.toml or default.

    Then what a release demands beyond the contracts, and what is waived.
    """
    from gradproof.session import Session

    session = Session(options)
    rows = [*_options(session), *_demands(session)]
    if format_ == "json":
        click.echo(json.dumps({"schema": "gradproof-config/1", "settings": rows}, indent=1, ensure_ascii=False))
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['value'] if row['value'] is not None else '-'}  ({row['source']})")
    return 0


def _options(session: Session) -> Iterator[dict[str, Any]]:
    from click.core import ParameterSource

    source = click.get_current_context().get_parameter_source
    for name, variable in ENVIRONMENT.items():
        stated = f"environment {variable}"
        if source(name) is not ParameterSource.ENVIRONMENT:
            by_line = source(name) is ParameterSource.COMMANDLINE
            stated = "command line" if by_line else session.settings.places.get(name, "default")
        value = getattr(session.options, name)
        if name == "baseline" and value is None and session.options.baselines:
            continue
        yield {"name": name, "value": value if isinstance(value, int | float | None) else str(value), "source": stated}
    for kept in session.options.baselines:
        if kept != session.options.baseline:
            yield {"name": "baseline", "value": str(kept), "source": session.settings.places["baseline"]}


def _demands(session: Session) -> Iterator[dict[str, Any]]:
    """One row for each demand and each waiver, of the file first, then of the gates."""
    places = session.settings.places
    sources = [(session.settings.demands, places)]
    for contract in session.contracts:
        if (gate := contract.gate) is not None:
            line = contract.places.get(gate.id, (1, 1))[0]
            asked = demands_of(gate.least, gate.gpu_max_age_days, gate.waivers)
            sources.append((asked, {"*": f"{contract.path}:{line}"}))
    for demands, where in sources:
        fallback = where.get("*", str(session.settings.path))
        if demands.gpu_max_age is not None:
            source = where.get("gpu_max_age_days", fallback)
            yield {"name": "gpu_max_age_days", "value": demands.gpu_max_age.days, "source": source}
        for name, least in demands.least.items():
            parts = [f"layers {', '.join(least.layers)}"] if least.layers else []
            parts += [f"reach {layer}: {reach}" for layer, reach in least.reach.items()]
            parts += [f"{bound} >= {value}" for bound, value in least.bounds.items()]
            source = where.get(f"require.{name}", fallback)
            yield {"name": f"require {name}", "value": "; ".join(parts) or "nothing", "source": source}
        for waiver in demands.waivers:
            yield {"name": "waiver", "value": waiver.words(), "source": where.get("waivers", fallback)}


# -- `gradproof replay`: a counterexample on concrete numbers, again.


@click.command("replay")
@click.argument("evidence", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--control", metavar="NAME", help="The counterexample of a mutant, or of the empty body (empty).")
@click.option("--write", "write", type=click.Path(path_type=Path, dir_okay=False), help="Write it as a pytest file.")
@workspace_option
def replay(evidence: Path, control: str | None, write: Path | None, workspace: Path | None) -> int:
    """Replay the counterexample of an EVIDENCE file on the code as it is now.

    Exit code 0: the same clause breaks again everywhere. 4: it does not, or not within the check's time limit.
    """
    from gradproof.core.files import writable, written
    from gradproof.core.workspace import find
    from gradproof.evidence.store import Store, open_evidence
    from gradproof.execution.methods import replay_evidence as replaying

    writable(write, "--write")
    found = open_evidence(evidence)
    check = found.check
    place = find(workspace or evidence.resolve().parent, explicit=workspace is not None)
    subject = replaying.subject_of(check, control)
    example, recorded = _example(check.id, found.finding, control)
    fresh, why = Store(place).fresh(check, found)
    if not fresh:
        click.echo(f"the evidence is stale: {why}", err=True)
    click.echo(f"{check.id}: {example.clause} on {subject}, found by {example.found_by or 'unknown'}")
    for name, value in example.values.items():
        click.echo(f"  {name} = {value}")
    rows = _within(check.time_limit, lambda: replaying.replay(check, place, subject, example))
    if rows is None:
        click.echo(f"no answer within {check.time_limit:g} s, the time limit of {check.id}: not reproduced", err=True)
        return EXIT_CODE[Exit.OPEN]
    for row in rows:
        click.echo(f"{'reproduced' if row['reproduced'] else 'NOT reproduced':<15}{row['on']}: {row['detail']}")
    if write is not None:
        written(write, replaying.pytest_file(check, subject, example, rows, place, write), "--write")
        click.echo(f"written: {write}")
    return EXIT_CODE[Exit.MET if replaying.again(rows, recorded) else Exit.OPEN]


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
