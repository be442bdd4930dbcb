"""What contracts build on: `depends_on` followed through the files, circles refused, and what it means for a verdict.

A contract whose dependency is not discharged is not discharged. It is OPEN and never BROKEN for that reason, even where
the dependency is BROKEN: nothing of its own was refuted, only what it rests on, as with a check and its stub. The
dependency shows its own verdict, and the worst of all is the exit code. A dependency that is not there counts as one
that is not discharged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradproof.contract.yaml_reader import ContractErrors, Node, Problem, read
from gradproof.core.outcome import EXIT_MEANING, Exit

if TYPE_CHECKING:
    from gradproof.contract.model import Contract


@dataclass(frozen=True)
class Premise:
    """A contract that this one builds on: whether it is discharged, and how it stands."""

    contract: str
    discharged: bool
    why: str


ABSENT = "it is not there"


def place_of(contract: Contract, name: str) -> Path | None:
    """The file of the contract called `name` that `contract` builds on, or None: beside it, as GP123 looks for it."""
    full = contract.path.absolute()
    home = full.parent.parent if full.stem == "contract" else full.parent
    places = (home / name / "contract.yaml", home / f"{name}.yaml")
    return next((p for p in places if p.is_file()), None)


def closure(contracts: Sequence[Contract], load: Callable[[Path], Contract]) -> dict[str, Contract]:
    """The contracts and all that they build on, by id, dependencies first.

    Raises ContractErrors: what `load` finds in a dependency, or GP220 for a circle, at its `depends_on` entry.
    """
    known = {contract.id: contract for contract in contracts}
    done: dict[str, Contract] = {}
    for contract in contracts:
        _visit(contract, known, done, (), load)
    return done


def _visit(
    contract: Contract,
    known: dict[str, Contract],
    done: dict[str, Contract],
    above: tuple[str, ...],
    load: Callable[[Path], Contract],
) -> None:
    if contract.id in done:
        return
    trail = (*above, contract.id)
    for name in contract.metadata.depends_on:
        if name in trail:
            raise ContractErrors([_circle(contract, name, (*trail[trail.index(name) :], name))])
        if name not in known and (path := place_of(contract, name)) is not None:
            known[name] = load(path)
        if name in known:
            _visit(known[name], known, done, trail, load)
    done[contract.id] = contract


def _circle(contract: Contract, name: str, names: Sequence[str]) -> Problem:
    node = entry(contract.path, name)
    line, col = (node.line, node.col) if node is not None else (1, 1)
    found = f"contracts that build on each other: {' -> '.join(names)}"
    return Problem("GP220", str(contract.path), line, col, found, "dependencies without a circle", f"remove {name!r}")


def entry(path: Path, name: str) -> Node | None:
    """The node of a `depends_on` entry in a contract's file."""
    _, root, _ = read(path, str(path))
    nodes = root.items("metadata", "depends_on") if root is not None else []
    return next((n for n in nodes if n.value == name), None)


def premises(contract: Contract, exits: Mapping[str, Exit]) -> tuple[Premise, ...]:
    """What a contract builds on, with how each stands. A name without an exit is a contract that is not there."""
    found = [(name, exits.get(name)) for name in contract.metadata.depends_on]
    return tuple(Premise(name, e is Exit.MET, ABSENT if e is None else EXIT_MEANING[e]) for name, e in found)
