"""The window table: total, and its traces."""

from __future__ import annotations

import pytest

from gradproof.core.protocol import RULES, Breaks, Event, State, advance, replay, window_sizes
from models.accumulation.loop import Accumulation, Config, MicroBatch
from models.accumulation.mutants import MUTANTS

Z, A, C, S, U, E = Event.ZERO, Event.ACCUMULATE, Event.CLIP, Event.STEP, Event.UNSCALE, Event.END


def test_every_state_and_event_has_a_rule() -> None:
    assert len(RULES) == len(State) * len(Event)


def test_window_sizes_add_up() -> None:
    for n in range(1, 6):
        for m in range(20):
            sizes = window_sizes(m, n)
            assert sum(sizes) == m
            assert len(sizes) == -(-m // n)


@pytest.mark.parametrize(
    ("events", "obligation"),
    [
        ([Z, A, A, S, A], "GA-INV-002"),
        ([Z, A, Z], "GA-INV-002"),
        ([Z, A, S], "GA-INV-003"),
        ([Z, A, A, A], "GA-INV-003"),
        ([Z, A, A, S, S], "GA-INV-003"),
        ([Z, A, E], "GA-INV-003"),
        ([Z, A, C], "GA-INV-005"),
        ([Z, A, A, C, C], "GA-INV-005"),
        ([Z, A, A, S, C], "GA-INV-005"),
    ],
)
def test_wrong_traces_name_their_obligation(events: list[Event], obligation: str) -> None:
    last = replay(events, [2, 2])[-1]
    assert last.index == len(events) - 1
    assert last.broken is not None
    assert last.broken.obligation == obligation


def test_clip_before_unscale_needs_a_scale_to_be_wrong() -> None:
    assert replay([Z, A, C, S, E], [1])[-1].broken is None
    broken = replay([Z, A, C], [1], scaled=True)[-1].broken
    assert broken is not None
    assert "before unscale" in broken.why
    assert replay([Z, A, U, C, S, E], [1], scaled=True)[-1].broken is None


def test_the_reference_is_a_run_of_the_table_for_every_setting() -> None:
    for n in (1, 2, 3):
        for total in range(1, 8):
            for scale in (None, 2.0):
                config = Config(n, max_norm=1.0, loss_scale=scale)
                record = Accumulation().run((0.0,), [MicroBatch(1.0, (1.0,))] * total, config, (9.0,))
                assert replay(record.events, window_sizes(total, n), scaled=scale is not None)[-1].broken is None


def test_the_protocol_mutants_are_no_runs_of_the_table() -> None:
    for name in ("zero_skipped", "zero_per_micro_batch", "zero_after_backward", "step_per_micro_batch", "tail_dropped"):
        subject = MUTANTS[name].subject()
        record = subject.run((0.0,), [MicroBatch(1.0, (1.0,))] * 5, Config(2), (0.0,))
        broken = replay(record.events, window_sizes(5, 2))[-1].broken
        assert broken is not None, name
        assert broken.obligation == MUTANTS[name].obligation


def test_advance_returns_what_is_broken() -> None:
    assert isinstance(advance(State.OPEN, Event.STEP), Breaks)
    assert advance(State.CLEAN, Event.ACCUMULATE, last=True, scaled=True) is State.SCALED
