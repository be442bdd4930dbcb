"""What a gate demands and excuses is of obligations that there are."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from gradproof.contract_tree import Node

if TYPE_CHECKING:
    from gradproof.contract_rules import Rules


def demanded(r: Rules) -> None:
    """Each obligation under `least` and `waivers` is one of the contract's."""
    gate = r.root.get("qa_gate")
    if gate is None:
        return
    known = [name for clause in r.obligations if (name := clause.text("id")) is not None]
    named = [(node.value, node) for row in gate.items("waivers") if (node := row.get("obligation")) is not None]
    for name, node in [*gate.pairs("least"), *named]:
        if isinstance(name, str) and name not in known:
            _unknown(r, name, node, known)


def _unknown(r: Rules, name: str, node: Node, known: list[str]) -> None:
    near = difflib.get_close_matches(name, known, 1)
    mend = f"did you mean {near[0]!r}?" if near else "correct the name, or remove it"
    r.error("GP137", node, f"{name!r}, which is no obligation of this contract", f"one of: {', '.join(known)}", mend)
