"""The generated table of dispatched operators is that of the loops, and has at least 120 of them."""

from __future__ import annotations

import re

import pytest

from gradproof.shadow.ops.rows import lookup
from tests.loops import dispatched

LISTED = re.findall(r"^\| `([\w.]+)` \| (\d+) \|", dispatched.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
FEW = ["plain", "plain_mlp", "plain_attention", "plain_zoo"]


def test_the_table_has_at_least_120_operators_each_with_a_row() -> None:
    names = [name for name, _ in LISTED]
    assert len(names) == len(set(names)) >= 120
    assert [name for name in names if lookup(name) is None] == []


def test_the_table_is_made_from_what_runs() -> None:
    """What these loops dispatch now is listed, by as many loops at least."""
    found = dispatched.dispatched(FEW)
    listed = {name: int(count) for name, count in LISTED}
    assert {op for op, loops in found.items() if listed.get(op, 0) < len(loops)} == set()
    assert len(found) > 100


def test_an_operator_without_a_row_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no row for mylib"):
        dispatched.page({"mylib.unknown.default": ["plain"]})
