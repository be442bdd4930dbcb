"""Nine statements about a step, one for each obligation, and how each is decided.

A statement is asked of a window beside its reference: the second run of `check`, or in `watch` the weights with N -> 1
and r -> N * r. What refutes it comes first: numbers of known origin that differ, or a broken rule of the window table.
Else whatever speaks against it leaves it undecided, with its line. Else it holds. What each says is in `result.ROWS`,
and docs/obligations.md has the functions that refute it and that speak against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import chain
from types import MappingProxyType
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import Event, replay
from gradproof.shadow.follow.facts import DOMAIN, RunFacts
from gradproof.shadow.follow.terms import NORMS, Combination, Terms
from gradproof.shadow.locations import Location
from gradproof.shadow.result import ALL_DATA, Result

DATA, EQ, LOSS, STALE, STEPS, WIDTH, CLIP, SYNC, TOKENS = (
    "GA-DATA-001", "GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005", "GA-SYNC-001",
    "GA-TOK-001",
)  # fmt: skip
HELP: Mapping[str, str] = MappingProxyType({
    DATA: "every micro-batch takes the next samples of the stream that the full batch takes at once",
    EQ: "the factors of the window's micro-batches have to sum to one, each its share of the window",
    LOSS: "report the window's mean: the sum of the micro-batches' shares",
    STALE: "call optimizer.zero_grad() once a window, right after optimizer.step()",
    STEPS: "step the optimizer, and after it the schedule, once a window, after its last micro-batch",
    WIDTH: "accumulate in float32",
    CLIP: "clip once a window, after the last micro-batch and the unscaling",
    SYNC: "let the last backward pass of every window sum the gradients of all ranks, before the step",
    TOKENS: "divide the sum of the losses by the number of valid tokens of the whole window",
})  # fmt: skip
"""The help for what is refuted, where nothing more is known."""
Refutations = Iterator[Result]
"""The first one counts."""
Objections = Iterator[tuple[Any, ...]]
"""Why something is not proved, its line, and where they are known the help and the outcome."""
INFINITE = "('float', 'inf')"


def ruled(passes: int, size: int, then: Event) -> str:
    """The rule of the window table that breaks after so many passes, of a window of `size`, or right after a step."""
    given = [Event.ACCUMULATE] * passes if passes else [Event.ACCUMULATE, Event.STEP]
    last = replay([*given, then], [size if passes else 1])[-1]
    return last.broken.why if last.broken else ""


class Judging:
    """Decides statements. A judge of two runs and one of a single run say what refutes each, and what is against it."""

    terms: Terms
    facts: RunFacts
    undecided = ""
    """What to do where nothing is decided."""

    def decided(self, name: str, broken: Refutations, against: Objections, held: str) -> Result:
        """A statement: refuted, undecided, or `held`, in words."""
        for refuted in broken:
            return refuted
        for objection in against:
            return self._open(name, *objection)
        return self._result(name, Outcome.HOLDS, held)

    def _result(
        self, name: str, outcome: Outcome, reason: str, at: Location | None = None, help: str = "", **more: Any
    ) -> Result:
        usual = "" if outcome is Outcome.HOLDS else HELP[name] if outcome is Outcome.REFUTED else self.undecided
        return Result(name, outcome, reason, at, help or usual, DOMAIN, self.reach(outcome), **more)

    def reach(self, outcome: Outcome) -> str:
        """What a result is about."""
        return ALL_DATA if outcome is Outcome.HOLDS else ""

    def _open(
        self, name: str, reason: str, at: Location | None, help: str = "", outcome: Outcome = Outcome.UNKNOWN
    ) -> Result:
        return self._result(name, outcome, reason, at, help)

    def width(self, unseen: Objections) -> Result:
        """No sum over micro-batches is narrower than fp32. `unseen`: what speaks against having seen every sum."""
        narrow = sorted(self.facts.narrow, key=lambda one: not one[2])
        broken = (
            self._result(WIDTH, Outcome.REFUTED, f"a {dtype} tensor holds a sum over micro-batches", location)
            for location, dtype, sums, _ in narrow
            if sums
        )
        against = [(f"a {dtype} tensor is made of several micro-batches", line) for line, dtype, _, _ in narrow]
        return self.decided(WIDTH, broken, chain(against, unseen), "no tensor below fp32 joins two micro-batches")

    def endless(self, scalar: int) -> bool:
        """Whether a clip is one at infinity, which measures and scales nothing. What is below its norm is the model."""
        terms = self.terms
        above = terms.walked([scalar], lambda term: () if terms.operators[term] in NORMS else terms.kids[term])
        return any(INFINITE in str(terms.attributes[term]) for term in above)

    def bared(self, value: Combination) -> dict[int, Fraction]:
        """The summands of a value without their scalars, each with its coefficient."""
        return {self.terms.bare(term)[0]: by for term, by in value.items()}
