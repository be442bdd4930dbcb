"""The strategy step_contract: step contracts, each behind evidence that is checked again now.

A contract of the subject holds if it is the promise that a proved lemma states, and none of the steps that are tried
breaks it. A contract that is broken on a step is refuted by that step; one that no lemma states is not known to hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradproof.backends.chain_run import ChainExplorer, ChainKit
from gradproof.core import Check, GradproofError
from gradproof.explore import Limits, Result, Stopped, Violated
from gradproof.kit import LETTERS
from gradproof.rounding.contracts import Form
from gradproof.rounding.lemmas import LemmaRefused, require, told
from gradproof.rounding.steps import Operands, form_of, named, telling, tried


@dataclass(frozen=True)
class Keeps:
    """The claim that every step of a lemma's operator keeps a promise; at least `least` are tried."""

    lemma: str
    promise: Form
    least: int


@dataclass(frozen=True)
class Refuses:
    """The claim that a promise excludes a wrong result that the lemma excludes."""

    lemma: str
    promise: Form


class ContractExplorer(ChainExplorer):
    """Runs a harness once for every lemma; evidence and steps decide."""

    def __init__(self, check: Check, limits: Limits) -> None:
        super().__init__(limits)
        self.named = lemmas_of(check)
        self.proved: list[str] = []

    def run(self, body: Callable[[], None]) -> Result:
        """Explore. A lemma that is named and not decided ends in UNKNOWN."""
        result = super().run(body)
        left = [name for name in self.named if name not in self.proved]
        if left and result.violation is None and result.stopped is None:
            result.stopped = Stopped("UNKNOWN", f"the harness does not decide {', '.join(left[:4])}")
        return result

    def backing(self) -> dict[str, Any]:
        """The evidence of every lemma that a claim rests on."""
        return {"lemmas": told(self.proved)} if self.proved else {}

    def decide(self, clause: str, condition: Any, label: str) -> None:
        """One claim. Raises Violated with the operands that break it, or Stopped."""
        self.result.checked[clause] = self.result.checked.get(clause, 0) + 1
        self._path.checks += 1
        if isinstance(condition, Keeps):
            self._keeps(clause, condition, label)
        elif isinstance(condition, Refuses):
            given, wrong = telling(condition.lemma)
            if condition.promise.holds(wrong):
                self._broken(clause, f"{label}: it allows {float(wrong.t):.9g} for {float(wrong.z):.9g}", given)
        elif condition is not True:
            self._broken(clause, label, ())

    def _keeps(self, clause: str, claim: Keeps, label: str) -> None:
        steps = tried(claim.lemma)
        for given, one in steps:
            if not claim.promise.holds(one):
                self._broken(clause, f"{label}: {float(one.z):.9g} is rounded to {float(one.t):.9g}", given)
        if len(steps) < claim.least:
            raise self._stop("ERROR", f"{claim.lemma}: {len(steps)} steps were tried, {claim.least} are promised")
        if claim.promise is not form_of(claim.lemma):
            raise self._stop("UNKNOWN", f"{claim.lemma}: the evidence is not about this promise")
        try:
            require([claim.lemma])
        except LemmaRefused as refused:
            raise self._stop("UNKNOWN", f"{clause} {label}: not proved: {refused}") from refused
        self.proved.append(claim.lemma)

    def _broken(self, clause: str, label: str, given: Operands) -> None:
        values = dict(zip(LETTERS, given, strict=False))
        self.result.violation = Violated(clause, label, values, list(self._path.options))
        raise self.result.violation


class ContractKit(ChainKit):
    """Names of lemmas, and what is claimed of their steps."""

    def lemmas(self) -> list[str]:
        """The lemmas that the claim names. Raises GradproofError GP304 for a name that matches none."""
        return lemmas_of(self.claim)

    def keeps(self, lemma: str, promise: Any, least: int) -> Keeps:
        """Every step of the lemma's operator keeps the promise."""
        return Keeps(lemma, promise, least)

    def refuses(self, lemma: str, promise: Any) -> Refuses:
        """The promise excludes a wrong result."""
        return Refuses(lemma, promise)


def lemmas_of(check: Check) -> list[str]:
    """The lemmas that a claim names by patterns. Raises GradproofError GP304 for none at all or for one."""
    try:
        found = named(check.params.get("lemmas") or ())
    except KeyError as error:
        raise _no_lemma(check, str(error.args[0])) from error
    if not found:
        raise _no_lemma(check, "no lemma is named")
    return found


def _no_lemma(check: Check, found: str) -> GradproofError:
    expected = "names that `python -m gradproof.rounding.lemmas --list` prints, or shell patterns of them"
    return GradproofError("GP304", f"{check.id}: {found}", expected, "correct lemmas in the contract")


def explored(check: Check, limits: Limits) -> tuple[ContractExplorer, ContractKit]:
    """An explorer of this strategy, and the kit that it gives to a harness."""
    explorer = ContractExplorer(check, limits)
    return explorer, ContractKit(check, explorer)
