"""One call of a function under an engine: what it returned, and how it ended."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.core.errors import GradproofError
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Printed, Run, decimals, default_dtype, inside, numbers, raised_at, seed, stated
from gradproof.shadow.verify.step_log import Logging
from gradproof.shadow.whole.facts import Hints, Update
from gradproof.shadow.whole.fake import Fake
from gradproof.shadow.whole.group import Exchange
from gradproof.shadow.whole.loop_events import seen
from gradproof.shadow.whole.plain_numbers import Carries, Reading, UnknownNumber, Unreading, bare
from gradproof.shadow.whole.runs import Called, Real
from gradproof.shadow.whole.terms import NOBODY, ROUNDED, Combination, Terms, plus, times
from gradproof.shadow.whole.unseen import replaced, watched, ways_out


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
        watched(engine),
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
    with eager, engine, reading, watched(engine), seen(engine.events), ways_out(engine.exported, engine.stored):
        found.call(step, run, reading)
    found.error = exchange.group.end(found.error)
    if found.error and not found.unsupported and exchange.group.size == 1:
        found.alone = _ends_well(step, run)
    return found


def _ends_well(step: Callable[[Any], Any], run: Run) -> bool:
    seed(run.seed)
    try:
        with redirect_stdout(io.StringIO()):
            step(run)
    except Exception:
        return False
    return True


def again(ours: Followed, full: Followed, hints: Hints) -> Hints:
    """What two runs show that have to be made again; the same hints where nothing has to.

    Numbers that a line draws as often in both runs, fewer times than there are samples, and along no axis of samples,
    are no data of a sample: a frozen weight, for example.
    """
    by_hand = hints.by_hand or not (ours.facts.updates or full.facts.updates)
    mine, other = ours.engine.axes, full.engine.axes
    both = mine.keys() & other.keys()
    apart = {site for site in both if set(mine[site]) != set(other[site])}
    whole = {s for s in both if set(mine[s]) == {None} and len(mine[s]) == len(other[s]) < ours.engine.samples}
    apart |= _beside_data(ours, whole, apart) if whole else set()
    return replace(hints, by_hand=by_hand, common=hints.common | apart)


def _beside_data(ours: Followed, sites: set[str], apart: set[str]) -> set[str]:
    """The lines of which gradients hold draws, where they hold data of other lines as well."""
    terms, values = ours.engine.terms, (g.value for u in ours.facts.updates for g in u.gradients.values())
    met = {terms.attributes[leaf][0] for leaf in terms.found([t for value in values for t in value], ("data",))}
    drawn = {site for site in sites if any(one.startswith(f"{site} ") for one in met)}
    return drawn if any(not one.startswith(tuple(f"{site} " for site in apart | drawn)) for one in met) else set()


COUNTS = ("count", "ne", "eq", "gt", "lt", "ge", "le", "index")
ADDED = (
    "one", "combination", "scaled", "sum", "cast", "clamp", "clamp_min", "cat", "reshape", "slice", "expand", "filled",
)  # fmt: skip
"""Counts of labels, truth values and weights of classes, and what adds them up."""


def divided_by_others(terms: Terms, updates: Sequence[Update]) -> int | None:
    """The first step whose gradients are divided by a count of other samples than theirs; one before has its own count.

    A count of all samples of the run, or of any that are no window, is a number that each window may be divided by.
    """
    own = False
    for at, update in enumerate(updates):
        values = [gradient.value for gradient in update.gradients.values() if gradient.value]
        divisors = [{s for s, by in terms.common(v).items() if by == -1 and _counts(terms, s)} for v in values]
        if not divisors or len(divisors[0]) != 1 or any(found != divisors[0] for found in divisors):
            return None
        if terms.samples(divisors[0]) == terms.summed(values):
            own = True
        elif own:
            return at
    return None


def _counts(terms: Terms, scalar: int) -> bool:
    """Whether a scalar is a sum of counts of data."""
    stack, found = [scalar], False
    while stack:
        term = stack.pop()
        if terms.operators[term] in COUNTS:
            found = True
        elif terms.operators[term] in ADDED:
            stack += terms.kids[term]
        else:
            return False
    return found and not terms.trained[scalar]


class LossTotals:
    """The weights of the windows' losses, by the full batch's run."""

    def __init__(self, terms: Terms, ours: Followed, full: Followed) -> None:
        self.terms, self.ours, self.full = terms, ours, full

    def counts_stand(self) -> bool:
        """Whether counts that are plain numbers are of their own window: each weighs its tokens alike in all.

        The counts of this run have to differ, or a mean of means would look the same. Where counts are unknowns, the
        losses have to be means by them.
        """
        laws, raw = self.full.engine.laws, self.totals() or []
        totals = [self._plainly(total) for total in raw]
        counts = {sum(row) for row in self.ours.engine.laws.seen_counts}
        known = len(counts) > 1 if laws.integers else all(self._counted(total) for total in raw)
        if not totals or not known or not all(map(laws.constant, totals)):
            return False
        found = [total.get(self.terms.one, Fraction(0)) for total in totals]
        return all(abs(total - found[0]) <= ROUNDED * abs(found[0]) for total in found)

    def totals(self) -> list[Combination] | None:
        """What the tokens, or elements, of each window weigh in its loss; None where that is not known."""
        laws, totals = self.full.engine.laws, dict[int, Combination]()
        for window, root in self.full.facts.roots:
            scale, scalars = self.full.facts.unscaled.get(window, (Fraction(1), {}))
            for term, by in self.terms.rescaled(times(root, scale), scalars).items():
                bare, powers = self.terms.bare(term)
                mass = laws.reduced.get(bare, (None, ""))[0]
                if mass is None:
                    return None
                if self.terms.owners[bare] == NOBODY:
                    continue
                weighed = self.terms.rescaled(times(mass, by), powers)
                totals[window] = plus(totals.get(window, {}), weighed)
        return [*totals.values()]

    def stand(self) -> bool:
        """Whether the loss of each window is a mean, or a sum times one number for all windows, as far as is known."""
        raw, factors = self.totals(), dict[int, set[Fraction]]()
        if raw is None:
            return True
        found = [self._plainly(total) for total in raw]
        for window, root in self.full.facts.roots:
            scale = self.full.facts.unscaled.get(window, (Fraction(1), {}))[0]
            factors.setdefault(window, set()).update(by * scale for by in root.values())
        divided = any(self._counted(total) for total in found)
        return len({frozenset(one.items()) for one in found}) < 2 or (
            not divided and len({frozenset(one) for one in factors.values()}) < 2
        )

    def _plainly(self, total: Combination) -> Combination:
        """A sum of counts that is divided by their own sum, or by the larger of it and a bound, is a number."""
        powers = self.terms.common(total)
        ((scalar, power),) = powers.items() if len(powers) == 1 else ((self.terms.one, 0),)
        if power != -1:
            return total
        rest, own = self.terms.rescaled(total, {scalar: 1}), self._counts_in(scalar)
        first = next(iter(own))
        by = rest.get(first, Fraction(0)) / own[first]
        return times(self.terms.of(self.terms.one), by) if by and rest == times(own, by) else total

    def _counts_in(self, scalar: int) -> Combination:
        while self.terms.operators[scalar] in ("clamp", "clamp_min", "cast"):
            scalar = self.terms.kids[scalar][0]
        return self.terms.parts_of(scalar)

    def _counted(self, total: Combination) -> bool:
        """Whether a total is divided by counts of labels."""
        divisors = {s for term in total for s, by in self.terms.bare(term)[1].items() if by < 0}
        return any({self.terms.operators[t] for t in self._counts_in(s)} == {"count"} for s in divisors)
