"""What a step proof of a contract must state: its bounds, which are the largest n and the number of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradproof.contract_tree import Node

if TYPE_CHECKING:
    from gradproof.contract_rules import Rules

PRIMARY = "micro_batches"
STEP_BOUNDS = (PRIMARY, "windows")


def ints(*nodes: Node) -> bool:
    """Whether every node is a whole number."""
    return all(isinstance(n.value, int) and not isinstance(n.value, bool) for n in nodes)


def step_bounds(r: Rules) -> None:
    """A step proof states the largest n and the windows, and no bound that nothing reads."""
    for clause in r.steps:
        rows = {name: b for b in clause.items("bounds") if (name := b.text("name"))}
        for name in [n for n in STEP_BOUNDS if rows and n not in rows]:
            node = clause.get("bounds") or clause
            r.error("GP103", node, f"no bound {name!r} in {r.label(clause)}", f"the bound {name!r}", f"add {name!r}")
        for name, row in rows.items():
            if name not in STEP_BOUNDS:
                expected = f"one of: {', '.join(STEP_BOUNDS)}"
                r.error("GP105", row, f"the bound {name!r} of a step proof, which nothing reads", expected, "remove it")
        value, params = rows[PRIMARY].get("value") if PRIMARY in rows else None, clause.get("params")
        sizes = [n for n in params.items("n") if ints(n)] if params is not None else []
        if value is None or not sizes or not ints(value) or value.value == max(n.value for n in sizes):
            continue
        largest = max(sizes, key=lambda n: n.value)
        place = f"{largest.line}:{largest.col}"
        found = f"the bound {PRIMARY} is {value.value}, but the largest n is {largest.value} at {place}"
        r.error("GP112", value, found, "the same number in both", "correct the one that is wrong")
