"""The table of the window protocol, and the sums over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradproof.core.errors import GradproofError
from gradproof.shadow.locations import Location
from gradproof.shadow.protocol.events import acts_of
from gradproof.shadow.protocol.window import judge, table
from gradproof.shadow.record.events import Event, EventLog


@pytest.mark.parametrize(("synced", "ranks", "broken"), [((2,), 2, []), ((1,), 2, ["GA-SYNC-001"]), ((), 1, [])])
def test_ranks_are_summed_after_the_last_micro_batch(synced: tuple[int, ...], ranks: int, broken: list[str]) -> None:
    """A sum after an earlier one leaves the rest of the window on its own rank."""
    log, location = EventLog(), Location("train.py", 3)
    for number in (1, 2):
        log.items.append(
            Event("accumulate", location, {"params": ["w"], "number": number, "shared": ["w"] * (ranks > 1)})
        )
        if number in synced:
            log.items.append(Event("sync", location, {"params": ["w"], "world": ranks}))
    log.items.append(Event("sync", location, {"params": [], "world": ranks, "elements": 1}))
    log.items.append(Event("step", location, {"params": ["w"], "optimizer": 0}))
    assert [b.obligation for b in judge(acts_of(log), [2]).broken] == broken


def test_the_table_is_the_proved_one() -> None:
    """Loaded under a private name, and total."""
    module = table()
    assert module.__name__ == "gradproof_window_table"
    assert set(module.RULES) == {(s, e) for s in module.State for e in module.Event}


def test_a_missing_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a code, and where it was looked for."""
    table.cache_clear()
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(GradproofError, match=r"GP409\n  found: .*models.accumulation.window\.py"):
        table()
    monkeypatch.undo()
    assert table().RULES
