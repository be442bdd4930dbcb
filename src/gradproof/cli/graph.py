"""`gradproof graph`: what builds on what, and how it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import output_format, place, with_options
from gradproof.core.outcome import EXIT_MEANING, Effect, Exit, Layer

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
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
def command(options: Options, format_: str, depth: str) -> int:
    """Draw contracts, what they depend on, their obligations and checks, with the verdict on the stored evidence.

    Runs nothing. A contract whose dependency is not discharged is OPEN.
    """
    from gradproof.cli.outputs import open_session, problems

    session = open_session(options)
    problems(session, quiet=False)
    graph = built(session)
    if format_ == "json":
        click.echo(json.dumps(graph, indent=1, ensure_ascii=False))
    else:
        click.echo(text(graph, depth))
    return 0
