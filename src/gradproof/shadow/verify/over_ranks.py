"""What several ranks decide together: every rank steps by one gradient, and it is that of one process with all samples.

Each rank has judged its own two runs. The full batch of all ranks may divide by the wrong number just as the run by
micro-batches does. So the first rank calls the function once more, as the only rank, with the samples of all of them in
one batch: its gradients are the ones that the ranks have to step by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, cast

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Run
from gradproof.shadow.result import ALL_DATA, RECORDED, Result
from gradproof.shadow.verify.followed import Followed, with_numbers
from gradproof.shadow.verify.judge import Judge
from gradproof.shadow.whole.facts import CLOSE, DOMAIN, Hints, Numbers, difference, largest, leaves
from gradproof.shadow.whole.group import Exchange, Group
from gradproof.shadow.whole.runs import Real
from gradproof.shadow.whole.terms import Combination, ratio
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
        fixed=frozenset[str]().union(*(one.fixed for one, _ in every)),
    )


def over_ranks(step: Callable[[Any], Any], run: Run, pair: Pair, hints: Hints, results: list[Result]) -> list[Result]:
    """The results of this rank with what the ranks show together: those of the worst rank, and GA-SYNC-001."""
    group = pair.exchange.group
    judge = RankJudge(pair, {result.obligation: result for result in results})
    if not group.some(bool(pair.ours.error or pair.full.error)):
        whole = replace(
            run.full_batch(), micro_batch_size=run.effective_batch_size * group.size,
            tail_samples=run.tail * run.micro_batch_size * group.size,
        )  # fmt: skip
        every = judge.exchanged()
        if group.rank == 0:
            judge.compared(Judge(pair.exchange.terms, run, pair.ours, one_rank(step, whole, pair, hints)), every)
        judge.found[SYNC] = judge.synchronised(every)
        judge.narrow()
    return list(judge.found.values())


def one_rank(step: Callable[[Any], Any], run: Run, pair: Pair, hints: Hints) -> Followed:
    """The function called on this rank alone, by all samples in one batch."""
    given = (pair.exchange.terms, pair.ours.engine.every, 2, hints)
    found: Followed = with_numbers(pair.drawn, pair.exchange, step, run, *given, alone=True)
    return found


@dataclass(frozen=True, slots=True)
class Steps:
    """The optimizer steps of a rank: gradients and parameters after, by name, and its numbers.

    `read`: the samples that the backward passes of each window began with, each apart from the others, and what
    the rows of those from outside hold. `draws`: where the generator stood at each draw.
    """

    gradients: list[dict[str, Combination]]
    after: list[dict[str, Combination]]
    numbers: Numbers
    read: list[set[int | str]]
    draws: dict[tuple[str, int], str]


class RankJudge:
    """The obligations of this rank that need the others. `found`: what its own runs decided."""

    def __init__(self, pair: Pair, found: dict[str, Result]) -> None:
        self.pair, self.terms, self.found = pair, pair.exchange.terms, found
        self.group = pair.exchange.group
        self.updates = pair.ours.facts.updates
        self.engine = cast("Real", pair.ours.engine)

    def _result(self, name: str, outcome: Outcome, reason: str, location: Location | None, **more: Any) -> Result:
        reach = ALL_DATA if outcome is Outcome.HOLDS else RECORDED if outcome is Outcome.REFUTED else ""
        return Result(name, outcome, reason, location, HELP[name], DOMAIN, reach, **more)

    def exchanged(self) -> list[Steps]:
        """The optimizer steps of the run by micro-batches, of every rank."""
        grads = [{name: gradient.value for name, gradient in update.gradients.items()} for update in self.updates]
        after = [{name: self.terms.of(term) for name, term in update.after.items()} for update in self.updates]
        own = [shared(value) for step in (*grads, *after) for value in step.values()]
        read = [self._read(at) for at in range(len(self.updates))]
        names = ([list(step) for step in grads], [list(step) for step in after])
        every = self.group.gather((names, self.engine.numbers, read, self.engine.draws))
        found = []
        for values, (own_names, *rest) in zip(self.pair.exchange.values("steps", own), every, strict=True):
            parts = iter(value.parts[0] for value in values)
            steps = [[{name: next(parts) for name in step} for step in kind] for kind in own_names]
            found.append(Steps(steps[0], steps[1], *rest))
        return found

    def _read(self, at: int) -> set[int | str]:
        of_window = (root for window, root in self.pair.ours.facts.roots if window == at)
        roots = {self.terms.bare(term)[0] for root in of_window for term in root}
        rows = {self._rows(term) for term in roots} - {""}
        return {self.terms.owners[term] for term in roots if self.terms.owners[term] >= 0} | rows

    def _rows(self, root: int) -> str:
        """What the float rows from outside hold that a loss is made of."""
        names = (str(self.terms.attributes[leaf][0]) for leaf in self.terms.found([root], ("data",)))
        held = (name.partition(": ")[2] for name in names if name in self.engine.contents)
        return " and ".join(sorted(held))

    # GA-SYNC-001

    def synchronised(self, every: list[Steps]) -> Result:
        """Every rank steps by the gradients that the first one steps by, made of the samples of all ranks."""
        first, mine, rank = every[0], every[self.group.rank], self.group.rank
        location = self.updates[-1].location if self.updates else NOWHERE
        if len({len(one.gradients) for one in every}) > 1 or not self.updates:
            return self._result(SYNC, Outcome.UNKNOWN, "the ranks make different numbers of optimizer steps", location)
        for at, update in enumerate(self.updates):
            apart = self._apart(at, first, mine) if rank else self._lacking(at, every)
            if apart is not None:
                return apart
            if first.after[at] != mine.after[at]:
                shown = unlike(mine.numbers.after[at], first.numbers.after[at])
                how = "not" if shown else "not shown to be"
                reason = f"after window {at + 1} the parameters of rank {rank} are {how} those of rank 0"
                return self._result(SYNC, Outcome.REFUTED if shown else Outcome.UNKNOWN, reason, update.location)
        for name in unlike(mine.numbers.last, first.numbers.last):
            reason = f"at the end {name} of rank {rank} is not that of rank 0"
            return self._result(SYNC, Outcome.REFUTED, reason, location)
        reason = f"{len(self.updates)} steps, each by one gradient of all {self.group.size} ranks"
        return self._result(SYNC, Outcome.HOLDS, reason, None)

    def _apart(self, at: int, first: Steps, mine: Steps) -> Result | None:
        """A gradient of this rank that is not that of the first."""
        name = next((n for n, value in mine.gradients[at].items() if first.gradients[at].get(n) != value), None)
        if name is None:
            return None
        one, two, outcome = mine.numbers, first.numbers, Outcome.UNKNOWN
        reason = f"the gradient of {name} in window {at + 1} was not shown to be that of rank 0"
        if name in unlike(one.gradients[at], two.gradients[at]):
            reason = "the ranks step by gradients of their own, and have the same parameters at the next step"
            weights = [*zip(one.weights, two.weights, strict=False), (one.last, two.last)]
            if any(unlike(*pair) for pair in weights):
                outcome, rank = Outcome.REFUTED, self.group.rank
                reason = f"rank {rank} steps by another gradient of {name} than rank 0 in window {at + 1}"
        return self._result(SYNC, outcome, reason, self.updates[at].location)

    def _lacking(self, at: int, every: list[Steps]) -> Result | None:
        """Samples of another rank that no gradient of a step is made of."""
        made = self.terms.summed(every[0].gradients[at].values())
        for rank, one in enumerate(every):
            if {sample for sample in one.read[at] if isinstance(sample, int)} - made:
                reason = f"window {at + 1}: the gradients are not made of the samples of rank {rank}"
                return self._result(SYNC, Outcome.UNKNOWN, reason, self.updates[at].location)
        return None

    # One process with all samples

    def compared(self, whole: Judge, every: list[Steps]) -> None:
        """What one process with all samples shows of the gradients, of the samples of each rank, and of the losses.

        `whole`: judges this rank's run beside that of the one process.
        """
        equal, data, apart = self.found[EQ], self.found[DATA], self._unequal(whole)
        twice = None if apart is None else self._read_twice(every)
        if twice is not None:
            at, ranks = twice
            line = self.engine.events.first
            reason = f"window {at + 1}: ranks {ranks[0]} and {ranks[1]} read the same samples"
            self.found[DATA] = self._result(DATA, Outcome.REFUTED, reason, line)
            if equal.outcome is not Outcome.REFUTED:
                reason = "the samples of one rank stand for those of another"
                self.found[EQ] = self._result(EQ, Outcome.UNKNOWN, reason, line, details={"follows_from": DATA})
        elif data.outcome is Outcome.HOLDS and self._read_elsewhere(every):
            reason = "a rank reads samples that another rank reads in another window"
            self.found[DATA] = self._result(DATA, Outcome.UNKNOWN, reason, self._line(0))
        if twice is None and apart is not None:
            self.found[EQ] = self._weighed(whole, *apart)
        if self.found[EQ].outcome is Outcome.HOLDS and not whole.totals.stand():
            reason = "the losses of the windows are divided by different numbers, which are no counts of what they sum"
            self.found[EQ] = self._result(EQ, Outcome.UNKNOWN, reason, self._line(0))
        self._reported(whole.full)

    def _weighed(self, whole: Judge, at: int, name: str, factor: str | None) -> Result:
        """The result of a gradient that is not that of one process."""
        equal, what = self.found[EQ], f"the gradient of {name} in window {at + 1}"
        if factor is None and equal.outcome is Outcome.HOLDS:
            return self._by_form(equal, whole)
        if factor and equal.outcome not in (Outcome.REFUTED, Outcome.OUTSIDE):
            reason = f"{what} is {factor} that of one process with all samples"
            return self._result(EQ, Outcome.REFUTED, reason, self._line(at))
        if factor == "" and equal.outcome is Outcome.HOLDS:
            reason = f"{what} was not shown to be that of one process"
            return self._result(EQ, Outcome.UNKNOWN, reason, self._line(at))
        return equal

    def _unequal(self, whole: Judge) -> tuple[int, str, str | None] | None:
        """The first gradient that is not that of one rank with all samples.

        With it: how many times that it is, in words; nothing where no number shows it, None where the samples differ.
        """
        if _unseen(whole):
            return 0, "", None
        if whole.unequal is None:
            return None
        at, name = whole.unequal
        steps = (whole.updates[at], whole.theirs[at])
        if whole.samples[at] != self.terms.summed(steps[1].values()):
            return at, name, None
        by = ratio(*(step.value(name) or {} for step in steps))
        if by is None:
            found = difference(whole.mine, whole.other, at)
            if found is None or not leaves(self.terms, steps[0]) <= leaves(self.terms, steps[1]):
                return at, name, ""
            by = found.factor()
        return at, name, "another than" if by is None else f"{by} times"

    def _line(self, at: int) -> Location:
        """The line that made what the last backward pass of a window began at."""
        passes = self.engine.events.of(at, "backward")
        if not passes:
            return self.updates[at].location
        return passes[-1].location if passes[-1].root is NOWHERE else passes[-1].root

    def _read_twice(self, every: list[Steps]) -> tuple[int, tuple[int, int]] | None:
        """A window in which two ranks read one sample, and the ranks."""
        for at in range(len(self.updates)):
            read = [one.read[at] if at < len(one.read) else set() for one in every]
            for i, j in combinations(range(len(read)), 2):
                if read[i] & read[j]:
                    return at, (i, j)
        return None

    def _read_elsewhere(self, every: list[Steps]) -> bool:
        """Whether two ranks read rows that hold the same, in any windows, or draw the same at two turns of a line."""
        held = [{row for window in one.read for row in window if isinstance(row, str)} for one in every]
        seen: dict[tuple[str, str], set[tuple[int, int]]] = {}
        for rank, one in enumerate(every):
            for (site, turn), state in one.draws.items():
                seen.setdefault((site, state), set()).add((rank, turn))
        drawn = any(i != j and a != b for found in seen.values() for i, a in found for j, b in found)
        return drawn or any(one & two for one, two in combinations(held, 2))

    def _reported(self, one: Followed) -> None:
        """Losses of all ranks are those of one process; a rank's own is its mean, or its part of the sum."""
        loss, ours, theirs = self.found[LOSS], self.pair.full.returned, one.returned
        if loss.outcome is not Outcome.HOLDS or not ours or len(ours) != len(theirs):
            return
        for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            parts, whole = self._forms(mine), self._forms(other)
            common = {form for form, _ in parts} & {form for form, _ in whole}
            own, all_ = ({by for form, by in side if form in common} for side in (parts, whole))
            roots = [term for window, root in self.pair.full.facts.roots if window == at for term in root]
            shared_ = self.terms.samples(mine) > self.terms.samples(roots)
            ratios = {a / b for a in own for b in all_} or {Fraction(0)}
            allowed = {Fraction(1)} if shared_ else {Fraction(1), Fraction(self.group.size)}
            if (shared_ or common) and not ratios <= allowed:
                reason = f"returned loss {at + 1} was not shown to be that of one process with as many samples"
                self.found[LOSS] = self._result(LOSS, Outcome.UNKNOWN, reason, loss.location)
                return

    def _by_form(self, equal: Result, whole: Judge) -> Result:
        """Where one rank alone reads other samples: gradients are compared without the names of their data and draws.

        Two gradients of one form are the same function of as many samples. One with other coefficients weighs them
        otherwise.
        """
        if _unseen(whole):
            return self._result(EQ, Outcome.UNKNOWN, UNSEEN, self._line(0))
        counted = self.pair.ours.facts.reads or self.engine.laws.integers
        for at, (update, other) in enumerate(zip(self.updates, whole.theirs, strict=True)):
            for name, gradient in update.gradients.items():
                mine, full = self._forms(gradient.value), self._forms(other.value(name) or {})
                if mine == full:
                    continue
                window = f"the gradient of {name} in window {at + 1}"
                forms = [Counter(form for form, _ in side.elements()) for side in (mine, full)]
                if counted or forms[0] != forms[1]:
                    reason = f"{window} was not shown to be that of one process with as many samples"
                    return self._result(EQ, Outcome.UNKNOWN, reason, self._line(at))
                ours, theirs = (", ".join(map(str, sorted({by for _, by in side})[:4])) for side in (mine, full))
                reason = f"{window} weighs its samples by {ours}, one process with as many by {theirs}"
                return self._result(EQ, Outcome.REFUTED, reason, self._line(at))
        return equal

    def _forms(self, value: Combination) -> Counter[tuple[str, Fraction]]:
        return Counter((self.terms.order(term)[0], by) for term, by in value.items())

    # GA-INV-004

    def narrow(self) -> None:
        """Which samples of other ranks are of one micro-batch is not known: below fp32 nothing is decided."""
        held = self.found.get(WIDTH)
        if self.engine.numbers.narrow and held is not None and held.outcome is Outcome.HOLDS:
            held.outcome, held.reach = Outcome.UNKNOWN, ""
            held.reason = "tensors are below fp32, and over ranks it is not known which micro-batch a sample is of"


def unlike(mine: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors of one name and shape that differ by more than rounding."""
    both = [(name, held, other[name]) for name, held in mine.items() if name in other]
    pairs = [(name, one, two) for name, one, two in both if one.shape == two.shape]
    return [name for name, one, two in pairs if largest([one - two]) > CLOSE * largest([one, two])]


def _unseen(whole: Judge) -> bool:
    """Whether one process alone makes other steps, or was not followed."""
    return bool(whole.full.error or whole.full.facts.lost) or not whole.paired
