"""One synchronisation a window on the window table, for every N: KANI-GT-303 of the training contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symbolic.accumulation.window import ONE_SYNC_A_WINDOW, prove

CLAUSE = "GA-SYNC-001"


def one_sync_a_window(k: Any, loop: Any) -> None:
    """GA-SYNC-001: one collective a window, after its last micro-batch and before clip and step."""
    prove(k, loop, replace(ONE_SYNC_A_WINDOW, clause=CLAUSE))
