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
from gradproof.shadow.follow.facts import CLOSE, DOMAIN, Hints, difference, largest, leaves
from gradproof.shadow.follow.group import Group
from gradproof.shadow.follow.runs import Real
from gradproof.shadow.follow.terms import Combination, ratio
from gradproof.shadow.follow.values import shared
from gradproof.shadow.judge.by_terms import Judge
from gradproof.shadow.judge.followed import Followed, with_numbers
from gradproof.shadow.judge.losses import DIVIDED
from gradproof.shadow.judge.statements import DATA, EQ, HELP, LOSS, SYNC, WIDTH
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import ALL_DATA, RECORDED, Result
from gradproof.shadow.tape.run import Run

OF_RANKS = {
    **HELP,
    EQ: "divide by what the whole window has on all ranks, and mind what the collective divides by",
    DATA: "give every rank its own part of the samples",
    LOSS: "report the mean over the ranks, or the loss of the own rank",
}
UNSEEN = "one rank alone makes other steps: what a sample of each rank has to weigh is not known"


def agreed(group: Group, hints: Hints, ours: Followed, full: Followed) -> Hints:
    """The hints of all ranks, joined. What one line draws is apart where the generators of two ranks are."""
    if group.size == 1:
        return hints
    draws = [side.engine.draws for side in (ours, full) if isinstance(side.engine, Real)]
    every = group.gather((hints, draws))
    states: dict[tuple[int, str, int], set[str]] = {}
    for run, side in [(run, side) for _, sides in every for run, side in enumerate(sides)]:
        for (site, turn), state in side.items():
            states.setdefault((run, site, turn), set()).add(state)
    apart = {site for (_, site, _), found in states.items() if len(found) > 1}
    joined, given = frozenset[str]().union, [one for one, _ in every]
    return replace(
        hints, by_hand=any(one.by_hand for one in given), common=joined(*(one.common for one in given)),
        apart=joined(apart, *(one.apart for one in given)), fixed=joined(*(one.fixed for one in given)),
    )  # fmt: skip


def over_ranks(
    step: Callable[[Any], Any], run: Run, ours: Followed, full: Followed, hints: Hints, results: list[Result]
) -> list[Result]:
    """The results of this rank with what the ranks show together: those of the worst rank, and GA-SYNC-001."""
    judge = RankJudge(ours, full, {result.obligation: result for result in results})
    group, engine = judge.group, judge.engine
    if not any(group.gather(bool(ours.error or full.error))):
        whole = replace(
            run.full_batch(), micro_batch_size=run.effective_batch_size * group.size,
            tail_samples=run.tail * run.micro_batch_size * group.size,
        )  # fmt: skip
        every = judge.exchanged()
        if group.rank == 0:
            given = (step, whole, judge.terms, engine.every, 2, hints)
            one: Followed = with_numbers(engine.drawn, judge.exchange, *given, alone=True)
            judge.compared(Judge(judge.terms, run, ours, one), every)
        judge.found[SYNC] = judge.synchronised(every)
        judge.narrow()
    return list(judge.found.values())


@dataclass(frozen=True, slots=True)
class Steps:
    """The optimizer steps of a rank: gradients and parameters after, by name, and the numbers of its parameters.

    `read`: the samples that the backward passes of each window began with, each apart from the others, and what
    the rows of those from outside hold. `draws`: where the generator stood at each draw.
    """

    gradients: list[dict[str, Combination]]
    after: list[dict[str, Combination]]
    weights: list[dict[str, torch.Tensor]]
    read: list[set[int | str]]
    draws: dict[tuple[str, int], str]


class RankJudge:
    """The obligations of this rank that need the others, by its two runs. `found`: what these decided alone."""

    def __init__(self, ours: Followed, full: Followed, found: dict[str, Result]) -> None:
        self.ours, self.full, self.found = ours, full, found
        self.engine = cast("Real", ours.engine)
        self.exchange, self.group = self.engine.collectives.exchange, self.engine.group
        self.terms, self.updates = self.engine.terms, ours.facts.updates

    def _result(self, name: str, outcome: Outcome, reason: str, location: Location | None, **more: Any) -> Result:
        reach = ALL_DATA if outcome is Outcome.HOLDS else RECORDED if outcome is Outcome.REFUTED else ""
        return Result(name, outcome, reason, location, OF_RANKS[name], DOMAIN, reach, **more)

    def exchanged(self) -> list[Steps]:
        """The optimizer steps of the run by micro-batches, of every rank."""
        grads = [update.gradients for update in self.updates]
        after = [{name: self.terms.of(term) for name, term in update.after.items()} for update in self.updates]
        own = [shared(value) for step in (*grads, *after) for value in step.values()]
        read = [self._read(at) for at in range(len(self.updates))]
        names = ([list(step) for step in grads], [list(step) for step in after])
        weights = [*(update.weights for update in self.updates), self.ours.facts.last]
        every = self.group.gather((names, weights, read, self.engine.draws))
        found = []
        for values, (own_names, *rest) in zip(self.exchange.values("steps", own), every, strict=True):
            parts = iter(value.parts[0] for value in values)
            steps = [[{name: next(parts) for name in step} for step in kind] for kind in own_names]
            found.append(Steps(steps[0], steps[1], *rest))
        return found

    def _read(self, at: int) -> set[int | str]:
        roots = {self.terms.bare(term)[0] for root in self.ours.facts.roots.get(at, []) for term in root}
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
        part = [name for pair in zip(mine.weights, first.weights, strict=False) for name in unlike(*pair)]
        how, parted = ("not", Outcome.REFUTED) if part else ("not shown to be", Outcome.UNKNOWN)
        for at, update in enumerate(self.updates):
            lacking = None if rank else self._lacking(at, every)
            if lacking is not None:
                return lacking
            for what, own, other in (
                ("gradient", mine.gradients[at], first.gradients[at]),
                ("parameter", mine.after[at], first.after[at]),
            ):
                name = next((name for name, value in own.items() if other.get(name) != value), None)
                if name is not None:
                    reason = f"window {at + 1}: the {what} {name} of rank {rank} is {how} that of rank 0"
                    return self._result(SYNC, parted, reason, update.location)
        if part:
            reason = f"at the end {part[0]} of rank {rank} is not that of rank 0"
            return self._result(SYNC, Outcome.REFUTED, reason, location)
        reason = f"{len(self.updates)} steps, each by one gradient of all {self.group.size} ranks"
        return self._result(SYNC, Outcome.HOLDS, reason, None)

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
        equal, data, weighed = self.found[EQ], self.found[DATA], self._weighed(whole)
        twice = self._read_twice(every) if whole.unequal is not None or weighed is not None else None
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
        if twice is None and weighed is not None:
            refuted = weighed.outcome is Outcome.REFUTED and equal.outcome not in (Outcome.REFUTED, Outcome.OUTSIDE)
            self.found[EQ] = weighed if refuted or equal.outcome is Outcome.HOLDS else equal
        if self.found[EQ].outcome is Outcome.HOLDS and not whole.totals.stand():
            self.found[EQ] = self._result(EQ, Outcome.UNKNOWN, DIVIDED, self._line(0))
        self._reported(whole.full)

    def _weighed(self, whole: Judge) -> Result | None:
        """A gradient that is not that of one process with all samples; None where each of them is.

        Where that process reads other samples than the ranks, gradients are compared without the names of their data
        and draws: two of one form are the same function of as many samples.
        """
        if whole.full.error or whole.full.facts.lost or not whole.paired:
            return self._result(EQ, Outcome.UNKNOWN, UNSEEN, self._line(0))
        counted = self.ours.facts.reads or self.engine.laws.integers
        for at, (update, other) in enumerate(zip(self.updates, whole.theirs, strict=True)):
            same = whole.samples[at] == self.terms.summed(other.gradients.values())
            for name in [*update.gradients, *(other.gradients.keys() - update.gradients.keys())]:
                mine, full = update.gradients.get(name, {}), other.gradients.get(name, {})
                forms = [self._forms(mine), self._forms(full)]
                if (mine == full) if same else (forms[0] == forms[1]):
                    continue
                what = f"the gradient of {name} in window {at + 1}"
                by, bare = ratio(mine, full), [Counter(form for form, _ in side.elements()) for side in forms]
                apart = difference(whole.facts, whole.other, at)
                if same and by is not None:
                    reason = f"{what} is {by} times that of one process with all samples"
                elif same and apart is not None and leaves(self.terms, update) <= leaves(self.terms, other):
                    reason = f"{what} is not that of one process with all samples"
                elif not same and bare[0] == bare[1] and not counted:
                    ours, theirs = (", ".join(map(str, sorted({by for _, by in side})[:4])) for side in forms)
                    reason = f"{what} weighs its samples by {ours}, one process with as many by {theirs}"
                else:
                    reason = f"{what} was not shown to be that of one process with as many samples"
                    return self._result(EQ, Outcome.UNKNOWN, reason, self._line(at))
                return self._result(EQ, Outcome.REFUTED, reason, self._line(at))
        return None

    def _line(self, at: int) -> Location:
        """The line that made what the last backward pass of a window began at."""
        return self.engine.events.last_root(at) or self.updates[at].location

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
        loss, ours, theirs = self.found[LOSS], self.full.returned, one.returned
        if loss.outcome is not Outcome.HOLDS or not ours or len(ours) != len(theirs):
            return
        for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            parts, whole = self._forms(mine), self._forms(other)
            common = {form for form, _ in parts} & {form for form, _ in whole}
            own, all_ = ({by for form, by in side if form in common} for side in (parts, whole))
            roots = [term for root in self.full.facts.roots.get(at, []) for term in root]
            shared_ = self.terms.samples(mine) > self.terms.samples(roots)
            ratios = {a / b for a in own for b in all_} or {Fraction(0)}
            allowed = {Fraction(1)} if shared_ else {Fraction(1), Fraction(self.group.size)}
            if (shared_ or common) and not ratios <= allowed:
                reason = f"returned loss {at + 1} was not shown to be that of one process with as many samples"
                self.found[LOSS] = self._result(LOSS, Outcome.UNKNOWN, reason, loss.location)
                return

    def _forms(self, value: Combination) -> Counter[tuple[str, Fraction]]:
        return Counter((self.terms.order(term)[0], by) for term, by in value.items())

    # GA-INV-004

    def narrow(self) -> None:
        """Which samples of other ranks are of one micro-batch is not known: below fp32 nothing is decided."""
        held = self.found.get(WIDTH)
        if self.ours.facts.below is not None and held is not None:
            held.doubt("tensors are below fp32, and over ranks it is not known which micro-batch a sample is of")


def unlike(mine: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors of one name and shape that differ by more than rounding."""
    both = [(name, held, other[name]) for name, held in mine.items() if name in other]
    pairs = [(name, one, two) for name, one, two in both if one.shape == two.shape]
    return [name for name, one, two in pairs if largest([one - two]) > CLOSE * largest([one, two])]
