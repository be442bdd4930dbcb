"""What a contract says of the backing of its proofs: lemmas that are there, and requirements that meet some check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradproof.contract_tree import Node

if TYPE_CHECKING:
    from gradproof.contract_rules import Rules


def lemma_names(r: Rules) -> None:
    """Lemmas of stubs, and of harnesses of step contracts, are lemmas that there are; such a harness names some."""
    from gradproof.rounding.steps import named

    rows = [(stub, stub.items("lemmas")) for stub in r.stubs]
    for clause in r.harnesses if r.ours else ():
        if clause.text("strategy") != "step_contract":
            continue
        params = clause.get("params")
        held = params.get("lemmas") if params is not None else None
        if held is None or not isinstance(held.value, list) or not held.value:
            mend = "name them under params: lemmas"
            r.error("GP103", held or clause, f"no lemmas in {r.label(clause)}", "the step contracts to check", mend)
        else:
            rows.append((clause, held.value))
    for clause, nodes in rows:
        for node in nodes:
            try:
                named([str(node.value)])
            except KeyError:
                _unknown(r, clause, node)


def _unknown(r: Rules, clause: Node, node: Node) -> None:
    found = f"{r.label(clause)} names {node.value!r}, which is no lemma and no pattern of any"
    expected = "a name that `python -m gradproof.rounding.lemmas --list` prints, or a shell pattern of such names"
    r.error("GP136", node, found, expected, "correct the name")


def requirements(r: Rules) -> None:
    """A strategy of which the gate requires something is the strategy of some harness."""
    gate = r.root.get("qa_gate")
    used = sorted({s for clause in r.harnesses if (s := clause.text("strategy"))})
    for key, row in gate.pairs("require") if gate is not None else []:
        nodes = [n for n in row.value if isinstance(n.value, str)] if isinstance(row.value, list) else []
        seen: set[str] = set()
        for node in nodes:
            if node.value not in used:
                found = f"{key} of {node.value!r} is required, and no harness has that strategy"
                r.error("GP135", node, found, f"of: {', '.join(used)}", "correct the strategy, or remove it")
            if node.value in seen:
                r.error("GP129", node, f"the strategy {node.value} again", "each entry once", "remove one of the two")
            seen.add(node.value)
