"""What several ranks decide together: every rank steps by one gradient, and it is that of one process with all samples.

Each rank has judged its own two runs. The full batch of all ranks may divide by the wrong number just as the run by
micro-batches does. So the first rank calls the function once more, as the only rank, with the samples of all of them in
one batch: its gradients are the ones that the ranks have to step by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Run
from gradproof.shadow.result import ALL_DATA, RECORDED, Result
from gradproof.shadow.verify.followed import Followed, with_numbers
from gradproof.shadow.verify.judge import Judge
from gradproof.shadow.whole.facts import CLOSE, DOMAIN, Hints, Update, difference, largest, leaves
from gradproof.shadow.whole.group import Exchange, Group
from gradproof.shadow.whole.runs import Real
from gradproof.shadow.whole.terms import Combination, Terms, ratio
from gradproof.shadow.whole.values import shared

EQ, DATA, LOSS, WIDTH, SYNC = "GA-EQ-001", "GA-DATA-001", "GA-INV-001", "GA-INV-004", "GA-SYNC-001"
HELP = {
    SYNC: "let the last backward pass of every window sum the gradients of all ranks, before the step",
    EQ: "divide by what the whole window has on all ranks, and mind what the collective divides by",
    DATA: "give every rank its own part of the samples",
    LOSS: "report the mean over the ranks, or the loss of the own rank",
}
UNSEEN = "one rank alone makes other steps: what a sample of each rank has to weigh is not known"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two runs of this rank, what it exchanges with the others, and what it drew."""

    ours: Followed
    full: Followed
    exchange: Exchange
    drawn: dict[int, torch.Tensor]

    @property
    def terms(self) -> Terms:
        """The store of both runs."""
        return self.exchange.terms


def agreed(group: Group, hints: Hints, ours: Followed, full: Followed) -> Hints:
    """The hints of all ranks, joined. What one line draws is apart where the generators of two ranks are."""
    if group.size == 1:
        return hints
    draws = [side.engine.draws for side in (ours, full) if isinstance(side.engine, Real)]
    every = group.gather((hints, draws))
    seen: dict[tuple[int, str, int], str] = {}
    apart: set[str] = set()
    for _, sides in every:
        for run, side in enumerate(sides):
            for (site, turn), state in side.items():
                if seen.setdefault((run, site, turn), state) != state:
                    apart.add(site)
    return replace(
        hints,
        by_hand=any(one.by_hand for one, _ in every),
        common=frozenset[str]().union(*(one.common for one, _ in every)),
        apart=frozenset(apart).union(*(one.apart for one, _ in every)),
    )


def over_ranks(step: Callable[[Any], Any], run: Run, pair: Pair, hints: Hints, results: list[Result]) -> list[Result]:
    """The results of this rank with what the ranks show together: those of the worst rank, and GA-SYNC-001."""
    group = pair.exchange.group
    judge = RankJudge(pair, {result.obligation: result for result in results})
    found = judge.found
    if not group.some(bool(pair.ours.error or pair.full.error)):
        whole = replace(
            run.full_batch(), micro_batch_size=run.effective_batch_size * group.size,
            tail_samples=run.tail * run.micro_batch_size * group.size,
        )  # fmt: skip
        every = judge.exchanged()
        if group.rank == 0:
            one = one_rank(step, whole, pair, hints)
            found[EQ], found[DATA] = judge.weighed(one, every)
            judge.counted(run, one)
            judge.reported(one)
        found[SYNC] = judge.synchronised(every)
        judge.narrow()
    return list(found.values())


def one_rank(step: Callable[[Any], Any], run: Run, pair: Pair, hints: Hints) -> Followed:
    """The function called on this rank alone, by all samples in one batch."""
    found: Followed = with_numbers(
        pair.drawn, pair.exchange, step, run, pair.terms, pair.ours.engine.every, 2, hints, alone=True
    )
    return found


@dataclass(frozen=True, slots=True)
class Steps:
    """The optimizer steps of a rank: gradients and parameters after, by name, and the numbers of both.

    `read`: the samples that the backward passes of each window began with, each apart from the others, and what
    the rows of those from outside hold. `before`: the parameters before each step, `last`: at the end. `draws`: where
    the generator stood at each draw.
    """

    gradients: list[dict[str, Combination]]
    after: list[dict[str, Combination]]
    numbers: list[dict[str, torch.Tensor]]
    weights: list[dict[str, torch.Tensor]]
    read: list[set[int | str]]
    before: list[dict[str, torch.Tensor]]
    last: dict[str, torch.Tensor]
    draws: dict[tuple[str, int], str]


class RankJudge:
    """The obligations of this rank that need the others. `found`: what its own runs decided."""

    def __init__(self, pair: Pair, found: dict[str, Result]) -> None:
        self.pair, self.terms, self.found = pair, pair.terms, found
        self.group = pair.exchange.group
        self.updates = pair.ours.facts.updates

    def _result(self, name: str, outcome: Outcome, reason: str, location: Location | None, **more: Any) -> Result:
        reach = ALL_DATA if outcome is Outcome.HOLDS else RECORDED if outcome is Outcome.REFUTED else ""
        return Result(name, outcome, reason, location, HELP[name], DOMAIN, reach, **more)

    def exchanged(self) -> list[Steps]:
        """The optimizer steps of the run by micro-batches, of every rank."""
        names = [(sorted(u.gradients), sorted(u.after)) for u in self.updates]
        own = [
            value
            for u, (grads, after) in zip(self.updates, names, strict=True)
            for value in (*(u.gradients[n].value for n in grads), *(self.terms.of(u.after[n]) for n in after))
        ]
        all_names = self.group.gather(names)
        every = self.pair.exchange.values("steps", [shared(value) for value in own])
        engine = self.pair.ours.engine
        assert isinstance(engine, Real)
        read = [self._read(at) for at in range(len(self.updates))]
        numbers = engine.numbers
        own_rest = (numbers.gradients, numbers.after, read, numbers.weights, numbers.last, engine.draws)
        rest = self.group.gather(own_rest)
        found = []
        for of_rank, values, sent in zip(all_names, every, rest, strict=True):
            made = Steps([], [], *sent)
            parts = iter(value.parts[0] for value in values)
            for grads, after in of_rank:
                made.gradients.append({name: next(parts) for name in grads})
                made.after.append({name: next(parts) for name in after})
            found.append(made)
        return found

    def _read(self, at: int) -> set[int | str]:
        of_window = (root for window, root in self.pair.ours.facts.roots if window == at)
        roots = {self.terms.bare(term)[0] for root in of_window for term in root}
        rows = {self._rows(term) for term in roots} - {""}
        return {self.terms.owners[term] for term in roots if self.terms.owners[term] >= 0} | rows

    def _rows(self, root: int) -> str:
        """What the float rows from outside hold that a loss is made of."""
        names = (str(self.terms.attributes[leaf][0]) for leaf in self.terms.found([root], ("data",)))
        held = (name.partition(": ")[2] for name in names if name in self.pair.ours.engine.contents)
        return " and ".join(sorted(held))

    # GA-SYNC-001

    def synchronised(self, every: list[Steps]) -> Result:
        """Every rank steps by the gradients that the first one steps by, made of the samples of all ranks."""
        first, mine = every[0], every[self.group.rank]
        location = self.updates[-1].location if self.updates else NOWHERE
        if len({len(one.gradients) for one in every}) > 1 or not self.updates:
            return self._result(SYNC, Outcome.UNKNOWN, "the ranks make different numbers of optimizer steps", location)
        for at, update in enumerate(self.updates):
            apart = self._apart(at, first, mine) if self.group.rank else self._lacking(at, every)
            if apart is not None:
                return apart
            if first.after[at] != mine.after[at]:
                shown = [name for name in mine.weights[at] if self._differ(mine.weights[at], first.weights[at], name)]
                how = "not" if shown else "not shown to be"
                reason = f"after window {at + 1} the parameters of rank {self.group.rank} are {how} those of rank 0"
                return self._result(SYNC, Outcome.REFUTED if shown else Outcome.UNKNOWN, reason, update.location)
        shown = [name for name in mine.last if self._differ(mine.last, first.last, name)]
        if shown:
            reason = f"at the end {shown[0]} of rank {self.group.rank} is not that of rank 0"
            return self._result(SYNC, Outcome.REFUTED, reason, location)
        reason = f"{len(self.updates)} steps, each by one gradient of all {self.group.size} ranks"
        return self._result(SYNC, Outcome.HOLDS, reason, None)

    def _differ(self, mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor], name: str) -> bool:
        """Whether two tensors of one name and shape differ by more than rounding."""
        one, two = mine.get(name), other.get(name)
        if one is None or two is None or one.shape != two.shape:
            return False
        return largest([one - two]) > CLOSE * largest([one, two])

    def _apart(self, at: int, first: Steps, mine: Steps) -> Result | None:
        """A gradient of this rank that is not that of the first."""
        location = self.updates[at].location
        for name, value in mine.gradients[at].items():
            other = first.gradients[at].get(name)
            if other == value:
                continue
            reason = f"the gradient of {name} in window {at + 1} was not shown to be that of rank 0"
            if self._differ(mine.numbers[at], first.numbers[at], name):
                if self._alike(mine, first):
                    reason = "the ranks step by gradients of their own, and have the same parameters at the next step"
                    return self._result(SYNC, Outcome.UNKNOWN, reason, location)
                reason = f"rank {self.group.rank} steps by another gradient of {name} than rank 0 in window {at + 1}"
                return self._result(SYNC, Outcome.REFUTED, reason, location)
            return self._result(SYNC, Outcome.UNKNOWN, reason, location)
        return None

    def _alike(self, mine: Steps, first: Steps) -> bool:
        """Whether the parameters are those of rank 0 before each step and at the end."""
        pairs = [*zip(mine.before, first.before, strict=False), (mine.last, first.last)]
        return not any(self._differ(one, two, name) for one, two in pairs for name in one)

    def _lacking(self, at: int, every: list[Steps]) -> Result | None:
        """Samples of another rank that no gradient of a step is made of."""
        made = self.terms.summed(every[0].gradients[at].values())
        for rank, one in enumerate(every):
            if {sample for sample in one.read[at] if isinstance(sample, int)} - made:
                reason = f"window {at + 1}: the gradients are not made of the samples of rank {rank}"
                return self._result(SYNC, Outcome.UNKNOWN, reason, self.updates[at].location)
        return None

    # GA-EQ-001 and GA-DATA-001

    def weighed(self, one: Followed, every: list[Steps]) -> tuple[Result, Result]:
        """What one rank with all samples shows of the gradients, and of the samples that each rank reads."""
        equal, data = self.found[EQ], self.found[DATA]
        apart = self._unequal(one)
        twice = self._read_twice(every)
        if twice is not None and apart is not None:
            at, ranks = twice
            engine = self.pair.ours.engine
            location = engine.events.first if isinstance(engine, Real) else self._line(at)
            reason = f"window {at + 1}: ranks {ranks[0]} and {ranks[1]} read the same samples"
            data = self._result(DATA, Outcome.REFUTED, reason, location)
            follows = {"follows_from": DATA}
            if equal.outcome is not Outcome.REFUTED:
                reason = "the samples of one rank stand for those of another"
                equal = self._result(EQ, Outcome.UNKNOWN, reason, location, details=follows)
            return equal, data
        if data.outcome is Outcome.HOLDS and (self._read_later(every) or self._drawn_twice(every)):
            reason = "a rank reads samples that another rank reads in another window"
            data = self._result(DATA, Outcome.UNKNOWN, reason, self._line(0))
        if apart is None or apart[2] is None:
            if apart is not None and equal.outcome is Outcome.HOLDS:
                equal = self._by_form(equal, one)
            return equal, data
        at, name, factor = apart
        if equal.outcome in (Outcome.REFUTED, Outcome.OUTSIDE):
            return equal, data
        if factor:
            reason = f"the gradient of {name} in window {at + 1} is {factor} that of one process with all samples"
            equal = self._result(EQ, Outcome.REFUTED, reason, self._line(at))
        elif equal.outcome is Outcome.HOLDS:
            reason = f"the gradient of {name} in window {at + 1} was not shown to be that of one process"
            equal = self._result(EQ, Outcome.UNKNOWN, reason, self._line(at))
        return equal, data

    def counted(self, run: Run, one: Followed) -> None:
        """The process with all samples divides by the counts of what it sums, or by one number for all windows."""
        equal = self.found[EQ]
        stands = Judge(self.terms, run, self.pair.ours, one).totals.stand()
        if equal.outcome is Outcome.HOLDS and not stands:
            reason = "the losses of the windows are divided by different numbers, which are no counts of what they sum"
            self.found[EQ] = self._result(EQ, Outcome.UNKNOWN, reason, self._line(0))

    def _unequal(self, one: Followed) -> tuple[int, str, str | None] | None:
        """The first gradient that is not that of one rank with all samples.

        With it: how many times that it is, in words; nothing where no number shows it, None where the samples differ.
        """
        theirs = one.facts.updates
        if one.error or one.facts.lost or len(theirs) != len(self.updates):
            return 0, "", None
        for at, (mine, other) in enumerate(zip(self.updates, theirs, strict=True)):
            for name, gradient in mine.gradients.items():
                value = other.gradients[name].value if name in other.gradients else {}
                if gradient.value == value:
                    continue
                if self._samples(mine) != self._samples(other):
                    return at, name, None
                by = ratio(gradient.value, value)
                return at, name, f"{by} times" if by is not None else self._by_numbers(one, at)
        return None

    def _by_numbers(self, one: Followed, at: int) -> str:
        ours, theirs = self.pair.ours.engine, one.engine
        assert isinstance(ours, Real)
        assert isinstance(theirs, Real)
        found = difference(ours.numbers, theirs.numbers, at)
        if found is None or not leaves(self.terms, self.updates[at]) <= leaves(self.terms, one.facts.updates[at]):
            return ""
        factor = found.factor()
        return "another than" if factor is None else f"{factor} times"

    def _samples(self, update: Update) -> set[int]:
        return self.terms.summed(gradient.value for gradient in update.gradients.values())

    def _line(self, at: int) -> Location:
        """The line that made what the last backward pass of a window began at."""
        engine = self.pair.ours.engine
        assert isinstance(engine, Real)
        passes = engine.events.of(at, "backward")
        if not passes:
            return self.updates[at].location
        return passes[-1].location if passes[-1].root is NOWHERE else passes[-1].root

    def _read_twice(self, every: list[Steps]) -> tuple[int, list[int]] | None:
        """A window in which two ranks read one sample, and the ranks."""
        for at in range(len(self.updates)):
            for sample in set[int | str]().union(*(one.read[at] for one in every if at < len(one.read))):
                ranks = [rank for rank, one in enumerate(every) if at < len(one.read) and sample in one.read[at]]
                if len(ranks) > 1:
                    return at, ranks
        return None

    def _read_later(self, every: list[Steps]) -> bool:
        """Whether two ranks read rows from outside that hold the same, in any two windows."""
        held = [{row for window in one.read for row in window if isinstance(row, str)} for one in every]
        return any(held[i] & held[j] for i in range(len(held)) for j in range(i))

    def _drawn_twice(self, every: list[Steps]) -> bool:
        """Whether a line draws on one rank what it draws on another rank at another turn."""
        seen: dict[tuple[str, str], set[tuple[int, int]]] = {}
        for rank, one in enumerate(every):
            for (site, turn), state in one.draws.items():
                seen.setdefault((site, state), set()).add((rank, turn))
        return any(i != j and a != b for found in seen.values() for i, a in found for j, b in found)

    # GA-INV-001

    def reported(self, one: Followed) -> None:
        """Losses of all ranks are those of one process; a rank's own is its mean, or its part of the sum."""
        loss, ours, theirs = self.found[LOSS], self.pair.full.returned, one.returned
        if loss.outcome is not Outcome.HOLDS or not ours or len(ours) != len(theirs):
            return
        for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            parts, whole = self._forms(mine), self._forms(other)
            common = {form for form, _ in parts} & {form for form, _ in whole}
            own, all_ = ({by for form, by in side if form in common} for side in (parts, whole))
            shared_ = self.terms.samples(mine) > self.terms.samples(self._roots(at))
            ratios = {a / b for a in own for b in all_} or {Fraction(0)}
            allowed = {Fraction(1)} if shared_ else {Fraction(1), Fraction(self.group.size)}
            if (shared_ or common) and not ratios <= allowed:
                reason = f"returned loss {at + 1} was not shown to be that of one process with as many samples"
                self.found[LOSS] = self._result(LOSS, Outcome.UNKNOWN, reason, loss.location)
                return

    def _roots(self, at: int) -> list[int]:
        return [term for window, root in self.pair.full.facts.roots if window == at for term in root]

    def _by_form(self, equal: Result, one: Followed) -> Result:
        """Where one rank alone reads other samples: gradients are compared without the names of their data and draws.

        Two gradients of one form are the same function of as many samples. One with other coefficients weighs them
        otherwise.
        """
        theirs = one.facts.updates
        if one.error or one.facts.lost or len(theirs) != len(self.updates):
            return self._result(EQ, Outcome.UNKNOWN, UNSEEN, self._line(0))
        for at, (update, other) in enumerate(zip(self.updates, theirs, strict=True)):
            for name, gradient in update.gradients.items():
                value = other.gradients[name].value if name in other.gradients else {}
                mine, full = self._forms(gradient.value), self._forms(value)
                if mine == full:
                    continue
                window = f"the gradient of {name} in window {at + 1}"
                counted = self.pair.ours.facts.reads or self.pair.ours.engine.laws.integers
                if counted or Counter(form for form, _ in mine.elements()) != Counter(
                    form for form, _ in full.elements()
                ):
                    reason = f"{window} was not shown to be that of one process with as many samples"
                    return self._result(EQ, Outcome.UNKNOWN, reason, self._line(at))
                weights = [sorted({by for _, by in side}) for side in (mine, full)]
                said = f"weighs its samples by {_listed(weights[0])}, one process with as many by {_listed(weights[1])}"
                return self._result(EQ, Outcome.REFUTED, f"{window} {said}", self._line(at))
        return equal

    def _forms(self, value: Combination) -> Counter[tuple[str, Fraction]]:
        return Counter((self.terms.order(term)[0], by) for term, by in value.items())

    # GA-INV-004

    def narrow(self) -> None:
        """Which samples of other ranks are of one micro-batch is not known: below fp32 nothing is decided."""
        held = self.found.get(WIDTH)
        engine = self.pair.ours.engine
        if isinstance(engine, Real) and engine.numbers.narrow and held is not None and held.outcome is Outcome.HOLDS:
            held.outcome, held.reach = Outcome.UNKNOWN, ""
            held.reason = "tensors are below fp32, and over ranks it is not known which micro-batch a sample is of"


def _listed(weights: list[Fraction]) -> str:
    return ", ".join(str(by) for by in weights[:4])
