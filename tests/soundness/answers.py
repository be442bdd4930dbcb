"""What gradproof answers to a step, and what is wrong with that answer."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass, field

from gradproof.shadow.locations import NOWHERE
from tests.checked import check
from tests.soundness.kit import BLIND, MEETS, RIGHT, Step
from tests.soundness.oracle import Findings

FALSE_HOLDS, BESIDE, FALSE_REFUTED, CRASH = "false HOLDS", "held beside", "false REFUTED", "crash"
"""Held beside: not green, and the label does not hold, but another obligation does that the numbers show broken."""
PROVED, REFUTED, UNDECIDED, NAMED = "proved", "refuted", "undecided", "outside"
"""Outside: samples meet, and the line where they do is named."""
EQ = "GA-EQ-001"
SILENT = ("GA-SYNC-001",)
NO_SUBJECT = ("the function returns no loss",)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of each obligation, the exit code, and the exception that gradproof ended with, if it did."""

    outcomes: dict[str, str] = field(default_factory=dict)
    code: int = 3
    error: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    meet: bool = False

    @property
    def verdict(self) -> str:
        """The answer in a word."""
        if self.error:
            return CRASH
        if REFUTED in self.outcomes.values():
            return REFUTED
        return PROVED if self.code == 0 else NAMED if self.meet else UNDECIDED

    def why(self, broken: tuple[str, ...]) -> str:
        """Why nothing was decided: the reason of the first of some obligations, or else of the first that is open."""
        order = sorted(
            self.outcomes, key=lambda name: (name not in broken, self.outcomes[name] == "unknown", name != EQ)
        )
        open_ = (name for name in order if self.outcomes[name] not in ("holds", "not_run") and name not in SILENT)
        return next((f"{name}: {self.reasons[name]}" for name in open_ if self.reasons[name] not in NO_SUBJECT), "")


def ask(step: Step) -> Answer:
    """Verify a step in this process."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            made = check(
                step.function,
                accum_steps=step.accum_steps,
                micro_batch=step.micro_batch,
                windows=step.windows,
                tail=step.tail,
            )
        except Exception as error:  # whatever it is, it is gradproof's
            return Answer(error=f"{type(error).__name__}: {error}")
    equal = next(r for r in made.results if r.obligation == EQ)
    meet = str(equal.outcome).lower() == NAMED and equal.location not in (None, NOWHERE)
    outcomes = {r.obligation: str(r.outcome).lower() for r in made.results}
    errors = [r.reason for r in made.results if str(r.outcome).lower() == "error"]
    reasons = {r.obligation: r.reason for r in made.results}
    return Answer(outcomes, made.code, errors[0] if errors and made.code == 3 else "", reasons, meet)


def must_not_hold(step: Step, found: Findings) -> set[str]:
    """The obligations that the label or the numbers say are broken."""
    if step.label == RIGHT:
        return set()
    if step.label in (BLIND, MEETS):
        return set(step.broken)
    # A step that comes at another place has other samples before it.
    moved = "GA-INV-003" in step.broken
    return set(step.broken) | (found.broken - ({"GA-DATA-001"} if moved else set()))


def fault(step: Step, found: Findings, answer: Answer) -> tuple[str, str]:
    """What is wrong with an answer, and where; two empty texts where nothing is."""
    if answer.error:
        return CRASH, answer.error
    held = sorted(name for name in must_not_hold(step, found) if answer.outcomes.get(name) == "holds")
    if step.label != RIGHT and answer.code == 0:
        return FALSE_HOLDS, ", ".join(["green", *held])
    if held:
        return FALSE_HOLDS if set(held) & set(step.broken) else BESIDE, ", ".join(held)
    refuted = sorted(name for name, outcome in answer.outcomes.items() if outcome == "refuted")
    if step.label in (RIGHT, BLIND) and refuted:
        return FALSE_REFUTED, ", ".join(refuted)
    return "", ""
