"""Wrong window tables: the protocol with one rule loosened, and a table that never leaves its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from models.registry import Mutant
from models.window import FILL, RULES, Breaks, Event, Fill, State, advance

Advance = Callable[..., State | Breaks]


def altered(state: State, event: Event, rule: State | Fill) -> Advance:
    """The interpreter of the table in which `event` in `state` follows `rule`."""
    return partial(advance, rules={**RULES, (state, event): rule})


def stuck(state: State, event: Event, last: bool = False, scaled: bool = False) -> State | Breaks:
    """The empty body of the protocol: every event is allowed and changes nothing."""
    return state


TABLE_MUTANTS: Mapping[str, Mutant] = {
    "late_step": Mutant(
        "late_step", "GA-INV-003", "transformers#22098", altered(State.FULL, Event.ACCUMULATE, State.FULL)
    ),
    "stale_accumulate": Mutant(
        "stale_accumulate", "GA-INV-002", "DeepSpeed#5154", altered(State.STEPPED, Event.ACCUMULATE, FILL)
    ),
    "double_clip": Mutant(
        "double_clip", "GA-INV-005", "transformers#1563", altered(State.CLIPPED, Event.CLIP, State.CLIPPED)
    ),
}
