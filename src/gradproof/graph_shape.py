"""The shape of `gradproof graph --format json`, format `gradproof-graph/1`; published as reports/graph.schema.json."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gradproof.documents import Shape

State = Literal["DISCHARGED", "BROKEN", "OPEN"]
Standing = Literal["DISCHARGED", "BROKEN", "OPEN", "ABSENT"]


class Node(Shape):
    """One check: how it is expected to end, how it ended, and the checks that it rests on."""

    id: str
    layer: Literal["smt", "crosshair", "step", "cpu", "cuda"]
    required: bool
    expect: Literal["holds", "refuted"]
    outcome: str
    state: State
    depends_on: list[str]


class Clause(Shape):
    """One obligation and the checks that speak of it."""

    id: str
    property: str
    state: State
    checks: list[Node]


class Dependency(Shape):
    """A contract that another one builds on; ABSENT where there is none of that id."""

    id: str
    state: Standing


class Part(Shape):
    """One contract. `others`: checks that speak of no obligation. `path`: where its file lies."""

    id: str
    version: str
    path: str
    state: State
    says: str
    depends_on: list[Dependency]
    obligations: list[Clause]
    others: list[Node]


class Graph(Shape):
    """Contracts, those that nothing builds on first, on the evidence at hand. History: 1, the first."""

    document: Literal["gradproof-graph/1"] = Field(alias="schema")
    profile: str
    contracts: list[Part]
