"""A graph of contracts as a text tree, as Graphviz DOT, and as a Mermaid flowchart.

Every text escapes what ids and properties may hold; `depth` is contracts, obligations or checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradproof.graph import ABSENT, optional

DEPTHS = ("contracts", "obligations", "checks")
COLOURS: Mapping[str, str] = {"DISCHARGED": "#1a7f37", "BROKEN": "#cf222e", "OPEN": "#9a6700", ABSENT: "#6e7781"}
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
    return [(_told(row), ()) for row in checks]


def _told(row: Mapping[str, Any]) -> str:
    words = [f"{row['state']:<10}", row["id"], row["outcome"]]
    words += ["as expected"] if row["expect"] == "refuted" and row["state"] == "DISCHARGED" else []
    words += [f"rests on {', '.join(row['depends_on'])}"] if row["depends_on"] else []
    return "  ".join([*words, "not required"] if optional(row) else words)


def _branches(trees: Sequence[Tree], lead: str) -> Iterator[str]:
    for i, (head, below) in enumerate(trees):
        last = i + 1 == len(trees)
        yield f"{lead}{'└─ ' if last else '├─ '}{head}"
        yield from _branches(below, lead + ("   " if last else "│  "))


Edge = tuple[str, str]


def _nodes(graph: Graph, depth: int) -> tuple[dict[str, tuple[str, str]], list[Edge]]:
    """Nodes as key -> (label, state), and edges from what depends to what it depends on."""
    nodes: dict[str, tuple[str, str]] = {}
    edges: list[Edge] = []
    for contract in graph["contracts"]:
        own = f"contract {contract['id']}"
        nodes[own] = (contract["id"], contract["state"])
        for other in contract["depends_on"]:
            nodes.setdefault(f"contract {other['id']}", (other["id"], other["state"]))
            edges.append((own, f"contract {other['id']}"))
        for row in contract["obligations"] if depth else ():
            clause = f"{own} obligation {row['id']}"
            nodes[clause] = (row["id"], row["state"])
            edges.append((own, clause))
            for check in row["checks"] if depth > 1 else ():
                edges.append((clause, f"check {check['id']}"))
        rows = [c for row in contract["obligations"] for c in row["checks"]] + contract["others"] if depth > 1 else []
        for check in rows:
            nodes[f"check {check['id']}"] = (f"{check['id']} {check['outcome']}", check["state"])
            edges += [(f"check {check['id']}", f"check {name}") for name in check["depends_on"]]
    return nodes, list(dict.fromkeys(edges))


def dot(graph: Graph, depth: str) -> str:
    """Graphviz DOT."""
    nodes, edges = _nodes(graph, DEPTHS.index(depth))
    keys = {key: f"n{i}" for i, key in enumerate(nodes)}
    lines = ["digraph gradproof {", "  rankdir=LR;", "  node [shape=box, fontname=sans-serif];"]
    for key, (label, state) in nodes.items():
        shown = f"{label}\\n{state}".replace('"', "'")
        lines.append(f'  {keys[key]} [label="{shown}", color="{COLOURS[state]}"];')
    lines += [f"  {keys[a]} -> {keys[b]};" for a, b in edges if b in keys]
    return "\n".join([*lines, "}"])


def mermaid(graph: Graph, depth: str) -> str:
    """A Mermaid flowchart, as GitHub and GitLab draw it."""
    nodes, edges = _nodes(graph, DEPTHS.index(depth))
    keys = {key: f"n{i}" for i, key in enumerate(nodes)}
    lines = ["flowchart LR"]
    for key, (label, state) in nodes.items():
        shown = f"{label}<br/>{state}".replace('"', "#quot;")
        lines.append(f'  {keys[key]}["{shown}"]:::{state.lower()}')
    lines += [f"  {keys[a]} --> {keys[b]}" for a, b in edges if b in keys]
    lines += [f"  classDef {state.lower()} stroke:{colour},stroke-width:2px" for state, colour in COLOURS.items()]
    return "\n".join(lines)


DRAWN: Mapping[str, Callable[[Graph, str], str]] = {"text": text, "dot": dot, "mermaid": mermaid}
