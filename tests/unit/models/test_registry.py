"""Tables of mutants: by name, each name once."""

from __future__ import annotations

import pytest

from models.registry import Mutant, registered, registered_for

ROWS = (("late", "T-1", "lab#1", int), ("early", "T-2", "lab#2", str))


def test_rows_become_mutants_in_their_order() -> None:
    assert dict(registered(ROWS)) == {row[0]: Mutant(*row) for row in ROWS}
    made = registered_for("T-1", [("late", "lab#1", int)])
    assert dict(made) == {"late": Mutant("late", "T-1", "lab#1", int)}


def test_a_name_that_is_used_twice_loses_no_mutant_silently() -> None:
    with pytest.raises(ValueError, match="'late'"):
        registered([*ROWS, ("late", "T-2", "lab#3", float)])
