"""The strategy bit_exhaustive: a harness on enumerated numbers, each claim decided by the exact worst case.

A claim |x| <= bound holds if no input within the bounds exceeds it; otherwise the inputs that attain the worst case
are the counterexample. Inputs at the ends of their ranges are evaluated first: where they break the claim already, the
worst case is not computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gradproof.arith.enumerated import AtMost, Difference, Enumerated
from gradproof.arith.linear import NonLinear
from gradproof.backends.chain_run import ChainExplorer, ChainKit
from gradproof.core import Check
from gradproof.explore import Limits, Violated


class ExhaustExplorer(ChainExplorer):
    """Runs a harness once for every choice; a claim is decided by enumeration."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.enumerated: list[dict[str, Any]] = []

    def backing(self) -> dict[str, Any]:
        """The exact worst cases that stand behind the claims."""
        return {"exhaustion": self.enumerated} if self.enumerated else {}

    def decide(self, clause: str, condition: Any, label: str) -> None:
        """One claim. Raises Violated with the inputs that break it, NonLinear, or Stopped."""
        self.result.checked[clause] = self.result.checked.get(clause, 0) + 1
        self._path.checks += 1
        if isinstance(condition, bool):
            if not condition:
                self._broken(clause, label, {})
            return
        if not isinstance(condition, AtMost):
            raise NonLinear(f"{clause} {label}: only |x| <= constant is decided")
        for values in ends(condition.of):
            error = abs(condition.of.at(values))
            if error > condition.bound:
                self._broken(clause, f"{label}: {float(error):.6g} at the ends of the ranges", values)
        try:
            worst, values, numbers = condition.of.worst()
        except ArithmeticError as error_:
            if isinstance(error_, OverflowError):
                raise
            raise self._stop("ERROR", f"{clause} {label}: {error_}") from error_
        words = f"{label}: the exact worst case is {float(worst):.6g}"
        if worst > condition.bound:
            self._broken(clause, words, values)
        row = {"clause": clause, "label": label, "worst": str(worst), "claimed": str(condition.bound)}
        self.enumerated.append({**row, "inputs": len(values), "numbers": numbers})

    def _broken(self, clause: str, label: str, values: dict[str, Fraction]) -> None:
        filled = {name: Fraction(0) for name in self.inputs} | values
        self.result.violation = Violated(clause, label, filled, list(self._path.options))
        raise self.result.violation


def ends(claim: Difference) -> Iterator[dict[str, Fraction]]:
    """All inputs at the upper end of their range; then every other one at the lower end."""
    tops = {name: node.sums.reach() for name, node in claim.every_input().items()}
    yield tops
    yield {name: -top if i % 2 else top for i, (name, top) in enumerate(tops.items())}


class ExhaustKit(ChainKit):
    """Inputs are enumerated numbers of a format."""

    def _input(self, name: str, fmt: str | None, lo: Any, hi: Any) -> Any:
        if fmt is None or lo is None or hi is None or Fraction(lo) != -Fraction(hi):
            raise NonLinear(f"{name} is no number of a format in a symmetric range")
        if name in self.explorer.inputs:
            raise ValueError(f"two inputs are called {name!r}")
        made = Enumerated.input(name, fmt, Fraction(hi))
        self.explorer.inputs[name] = made
        return made


def explored(check: Check, limits: Limits) -> tuple[ExhaustExplorer, ExhaustKit]:
    """An explorer of this strategy, and the kit that it gives to a harness."""
    explorer = ExhaustExplorer(limits)
    return explorer, ExhaustKit(check, explorer)
