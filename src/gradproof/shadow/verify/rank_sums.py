"""GA-SYNC-001 of one watched run: the gradients of each step are sums over all ranks, and nothing of one rank's own.

The engine notes which terms are such sums. A gradient may be a part of one, clipped by torch, or without a loss scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.whole.facts import DOMAIN, RecordedStep
from gradproof.shadow.whole.terms import Combination

if TYPE_CHECKING:
    from gradproof.shadow.verify.one_run import OneRun

NAME = "GA-SYNC-001"
LOCAL = "stepped on a gradient that was not summed over the ranks after the last micro-batch"
UNSUMMED = "not every gradient was seen to be summed over the ranks between its last arrival and the step"
HELP = "let the last micro-batch of every window synchronise"
NAMED = (
    "a tensor of unknown origin takes part in a backward pass",
    "a part of a tensor was read after a write to another part",
)
"""What is lost where an unknown term stands for it: whatever is made of that term is seen to be, and is no sum."""
MOVES, CLAMPS = ("reshape", "slice", "permute"), ("clamp", "clamp_min", "clamp_max")


class RankSums:
    """The sums over the ranks in one watched run."""

    def __init__(self, judge: OneRun) -> None:
        self.judge, self.engine, self.terms = judge, judge.engine, judge.terms
        self.ranks = judge.engine.ranks

    def result(self, help: str) -> Result:
        """GA-SYNC-001 of the recorded windows. `help`: what decides it otherwise."""
        lost = next((at for at, what in self.engine.facts.lost if what not in NAMED), None)
        steps = [window.step for window in self.judge.windows]
        local = next((step for step in steps if self._local(step)), None)
        exchanged = self.ranks.by_hand or self.ranks.by_hook
        if local is not None and lost is None and not exchanged:
            return Result(NAME, Outcome.REFUTED, LOCAL, local.location, HELP, DOMAIN, RECORDED)
        unsummed = next((step.location for step in steps if not all(map(self._summed, step.values()))), None)
        if lost is not None or unsummed is not None or not steps:
            return Result(NAME, Outcome.OPAQUE, UNSUMMED, lost or unsummed, help, DOMAIN, RECORDED)
        why = "each gradient was summed over the ranks before its step"
        return Result(NAME, Outcome.HOLDS, why, domain=DOMAIN, reach=RECORDED)

    def _summed(self, gradient: Combination) -> bool:
        """Whether a gradient is made of sums over the ranks alone. What ranks multiply by may be another on each."""
        terms, sums = self.terms, self.ranks.made
        moves = (*MOVES, *(CLAMPS if self.judge.clips else ()))
        for term, by in gradient.items():
            bare, scalars = terms.bare(term)
            while bare not in sums and terms.operators[bare] in moves:
                bare = terms.kids[bare][0]
            if bare not in sums or by not in self.engine.shares or not self._common(scalars):
                return False
        return bool(gradient)

    def _common(self, scalars: Iterable[int]) -> bool:
        """Whether scalars are made of loss scales and plain numbers alone, and by a clip of sums over the ranks."""
        stack, plain = [*scalars], {self.terms.one, *(self.ranks.made if self.judge.clips else ())}
        while stack:
            term = stack.pop()
            kids = () if term in plain else self.terms.kids[term]
            if not kids and term not in plain and self.terms.attributes[term][:1] != ("loss scale",):
                return False
            stack += kids
        return True

    def _local(self, step: RecordedStep) -> bool:
        """Whether a DistributedDataParallel left gradients to the own rank, which are made of samples alone."""
        number = self.engine.facts.updates.index(step)
        for name in self.ranks.replicas.get(number, set()) & step.gradients.keys():
            value = step.gradients[name].value
            made = {self.terms.operators[term] for term in self.terms.reached(value)}
            if self.terms.summed([value]) and not any(one == "unknown" or "c10d" in one for one in made):
                return True
        return False
