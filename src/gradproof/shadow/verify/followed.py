"""One call of a function under an engine: what it returned, and how it ended."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.core.errors import GradproofError
from gradproof.shadow.locations import NOWHERE, Location, raised_at, stated
from gradproof.shadow.record.run import Printed, Run, decimals, default_dtype, inside, numbers, seed
from gradproof.shadow.verify.step_log import Logging
from gradproof.shadow.whole.facts import Hints
from gradproof.shadow.whole.group import Exchange
from gradproof.shadow.whole.loop_events import seen
from gradproof.shadow.whole.plain_numbers import Carries, Reading, UnknownNumber, Unreading, bare
from gradproof.shadow.whole.runs import Called, Fake, Real
from gradproof.shadow.whole.terms import Combination
from gradproof.shadow.whole.unseen import made, ran, replaced, ways_out


def taken_over(first: torch.Tensor, second: torch.Tensor) -> None:
    """Exchange the storages of two tensors. torch exchanges fake tensors whole, which a weak reference forbids."""
    kept = first.data
    first.data, second.data = second.data, kept


class Followed:
    """One run: what was seen, what the function returned, and its error in words with the line.

    `unsupported`: the error is the engine's; `alone`: the function ends well when nobody follows it.
    `plain`: the numbers that it returned and that were not followed. `printed`: the decimal fractions that it printed,
    each with the size of its last place.
    """

    def __init__(self, engine: Called) -> None:
        self.engine, self.facts = engine, engine.facts
        self.error, self.raised = "", NOWHERE
        self.returned: list[Combination] = []
        self.values: list[float] = []
        self.lines: list[Location] = []
        self.plain: list[float] = []
        self.printed: list[tuple[float, float]] = []
        self.unread: list[str] = []
        self.unsupported = False
        self.alone = False

    def call(self, step: Callable[[Any], Any], run: Run, reading: Reading | None = None) -> None:
        """Call the function."""
        printed = Printed(sys.stdout or io.StringIO(), self.engine.run == 0)
        try:
            with redirect_stdout(cast("Any", printed)):
                returned = step(run)
            with self.engine.aside():
                self._returned(returned, reading)
        except GradproofError:
            raise
        except Exception as caught:
            self.error, self.raised = stated(caught), raised_at(caught)
            self.unsupported = type(caught).__module__.startswith("torch._subclasses") or "Unread" in self.error
        self.engine.end()
        self.printed = decimals("".join(printed.texts))
        self.facts.parameters = sum(t.numel() for t in self.engine.declared.values())

    def _returned(self, returned: Any, reading: Reading | None) -> None:
        read = {} if reading is None else reading.plain
        for one in inside(returned):
            if isinstance(one, Carries):
                one.used = True
                self._reported(one.value, _plain(one), one.location)
            elif id(one) in read:
                self._reported(read[id(one)][1], float(one), NOWHERE)
            elif isinstance(one, torch.Tensor) and one.is_floating_point():
                line = self.engine.events.line(one) if isinstance(self.engine, Real) else NOWHERE
                plain = float(one.detach()) if one.numel() == 1 and not isinstance(one, FakeTensor) else math.nan
                made = self.engine.combination(one)
                self._reported(self.engine.laws.single(made) if one.numel() == 1 else made, plain, line)
            else:
                self.plain += numbers(one)

    def _reported(self, made: Combination, plain: float, line: Location) -> None:
        reads = [location for location, _ in self.facts.reads]
        self.returned.append(made)
        self.values.append(plain)
        self.lines.append(line if line is not NOWHERE or not reads else reads[-1])


def started(kind: Any, hints: Hints, run: Run, *given: Any) -> Any:
    """An engine, which is logged where the hints say so."""
    if hints.log is None:
        return kind(*given)
    engine = type("Logged", (Logging, kind), {})(*given)
    engine.logs(hints.log, run)
    return engine


def _plain(one: Any) -> float:
    return math.nan if isinstance(one, UnknownNumber) else float(bare(one))


def without_numbers(step: Callable[[Any], Any], run: Run, *given: Any) -> Followed:
    """Call the function on tensors without numbers. `given`: as an engine takes it."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    terms, *rest = given
    engine = started(Fake, rest[-1], run, fake, terms, run, *rest)
    found = Followed(engine)
    seed(run.seed)
    swap = replaced(torch.utils, "swap_tensors", taken_over)
    with (
        torch.compiler.set_stance("force_eager"),
        fake,
        engine,
        Unreading(engine),
        made(engine),
        ran(engine),
        swap,
        default_dtype(run.dtype),
    ):
        found.call(step, run)
    return found


def with_numbers(
    drawn: dict[int, torch.Tensor],
    exchange: Exchange,
    step: Callable[[Any], Any],
    run: Run,
    *given: Any,
    alone: bool = False,
) -> Followed:
    """Call the function on real tensors: on every rank, or on this one `alone`."""
    terms, *rest = given
    exchange.group.begin(alone)
    engine = started(Real, rest[-1], run, drawn, exchange, terms, run, *rest)
    found = Followed(engine)
    seed(run.seed)
    reading = Reading(engine)
    eager = torch.compiler.set_stance("force_eager")  # or Dynamo skips what it met for good
    with (
        eager,
        engine,
        reading,
        made(engine),
        ran(engine),
        seen(engine.events),
        ways_out(engine.exported, engine.stored),
    ):
        found.call(step, run, reading)
    reading.end()
    found.error = exchange.group.end(found.error)
    if found.error and not found.unsupported and exchange.group.size == 1:
        found.alone = not unobserved(step, run)
    return found


def unobserved(step: Callable[[Any], Any], run: Run) -> str:
    """Call the function when nobody follows it: the error that it ends with, if it does."""
    seed(run.seed)
    try:
        with redirect_stdout(io.StringIO()):
            step(run)
    except Exception as caught:
        return str(caught) or "an error"
    return ""


def again(ours: Followed, full: Followed, hints: Hints) -> Hints:
    """What two runs show that have to be made again; the same hints where nothing has to.

    What the full batch's run took for a constant is no data of samples, also where a micro-batch has as many rows.
    Numbers that a line draws as often in both runs, fewer times than there are samples, and along no axis of samples,
    are no data of a sample: a frozen weight, for example.
    """
    by_hand = hints.by_hand or not (ours.facts.updates or full.facts.updates)
    mine, other = ours.engine.axes, full.engine.axes
    both = mine.keys() & other.keys()
    apart = {site for site in both if set(mine[site]) != set(other[site])}
    whole = {s for s in both if set(mine[s]) == {None} and len(mine[s]) == len(other[s]) < ours.engine.samples}
    apart |= _beside_data(ours, whole, apart) if whole else set()
    fixed = {name for name, taken in ours.engine.fixed.items() if not taken and full.engine.fixed.get(name)}
    return replace(hints, by_hand=by_hand, common=hints.common | apart, fixed=hints.fixed | fixed)


def _beside_data(ours: Followed, sites: set[str], apart: set[str]) -> set[str]:
    """The lines of which gradients hold draws, where they hold data of other lines as well."""
    terms, values = ours.engine.terms, (value for update in ours.facts.updates for value in update.gradients.values())
    met = {terms.attributes[leaf][0] for leaf in terms.found([t for value in values for t in value], ("data",))}
    drawn = {site for site in sites if any(one.startswith(f"{site} ") for one in met)}
    return drawn if any(not one.startswith(tuple(f"{site} " for site in apart | drawn)) for one in met) else set()
