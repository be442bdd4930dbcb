"""The sums over the ranks, by the events of a window."""

from __future__ import annotations

import pytest

from gradproof.shadow.locations import Location
from gradproof.shadow.protocol.turns import broken as rules_broken, turns
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
    assert [b.obligation for b in rules_broken(turns(log.items), frozenset({"w"}))] == broken
