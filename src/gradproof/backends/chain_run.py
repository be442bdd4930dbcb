"""The strategy linear_chain: a harness on linear floats, each claim decided by a certificate that is checked at once.

A claim |x| <= bound holds if the certificate's bound is no larger and `rounding.farkas`, which shares no code with
what made it, accepts it. Otherwise the extreme inputs of the exact part, and the constructed worst cases, are replayed;
if none breaks the claim, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gradproof.arith.linear import Linear, NonLinear, Within
from gradproof.arith.units import rational
from gradproof.core import Check
from gradproof.explore import Explorer, Limits, Result, Violated
from gradproof.kit import Kit
from gradproof.rounding.certificate import Certificate, certify
from gradproof.rounding.farkas import Refused
from gradproof.rounding.farkas import check as checked
from gradproof.rounding.founded import require_contracts
from gradproof.rounding.lemmas import LemmaRefused, told
from gradproof.rounding.operators import operators_of


class ChainExplorer(Explorer):
    """Runs a harness once for every choice; there is no solver, and nothing branches on a number."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.inputs: dict[str, Any] = {}
        self.certificates: list[dict[str, Any]] = []

    def backing(self) -> dict[str, Any]:
        """The certificates behind the claims, and the evidence of every lemma that they rest on."""
        if not self.certificates:
            return {}
        names = sorted({name for row in self.certificates for name in row["contracts"]})
        return {"certificates": self.certificates, "lemmas": told(names)}

    def run(self, body: Callable[[], None]) -> Result:
        """Explore. What is not linear, or may overflow, ends in UNKNOWN."""

        def linear() -> None:
            self.inputs = {}
            try:
                body()
            except (NonLinear, OverflowError) as error:
                raise self._stop("UNKNOWN", str(error)) from error

        return super().run(linear)

    def _live(self) -> None:
        """Inputs in a box always exist."""

    def decide(self, clause: str, condition: Any, label: str) -> None:
        """One claim. Raises Violated with inputs to try, or Stopped."""
        self.result.checked[clause] = self.result.checked.get(clause, 0) + 1
        self._path.checks += 1
        if isinstance(condition, bool):
            if not condition:
                self._violated(clause, label, None)
            return
        if not isinstance(condition, Within):
            raise NonLinear(f"{clause} {label}: only |x| <= constant is decided")
        made = certify(condition.of)
        self.result.operators |= operators_of(made.rows)
        if made.bound > condition.bound:
            self._violated(clause, label, made)
        try:
            proved = checked(made.text())
        except Refused as refused:
            raise self._stop("ERROR", f"{clause} {label}: the certificate is refused: {refused}") from refused
        if proved > condition.bound:
            raise self._stop("ERROR", f"{clause} {label}: the certificate proves another bound")
        try:
            contracts = require_contracts(made.rows)
        except LemmaRefused as refused:
            raise self._stop("UNKNOWN", f"{clause} {label}: a step contract is not proved: {refused}") from refused
        row: dict[str, Any] = {"clause": clause, "label": label, "sha256": made.digest(), "rows": len(made.rows)}
        row["contracts"] = contracts
        self.certificates.append({**row, "bound": str(made.bound), "claimed": str(condition.bound)})

    def _violated(self, clause: str, label: str, made: Certificate | None) -> None:
        values = {name: Fraction(0) for name in self.inputs}
        if made is not None:
            words = f"bound {float(made.bound):.6g}"
            label = f"{label}: {words}"
            values |= extremes(made)
        self.result.violation = Violated(clause, label, values, list(self._path.options))
        raise self.result.violation


def extremes(made: Certificate) -> dict[str, Fraction]:
    """For every input the end of its range that drives the exact part of the result upwards."""
    left = [Fraction(0)] * len(made.rows)
    for row, m in zip(made.rows, made.multipliers, strict=True):
        for c, j in row.terms if m and not row.of_error else ():
            left[j] += m * c
    ends = ((row, rational(row.top) * (1 if x >= 0 else -1)) for row, x in zip(made.rows, left, strict=True))
    return {row.name: end for row, end in ends if row.kind == "input"}


class ChainKit(Kit):
    """Inputs are linear floats; checks are certificates."""

    def __init__(self, check: Check, explorer: ChainExplorer) -> None:
        super().__init__(check)
        self.explorer = explorer

    def bound(self, name: str) -> int:
        """The value of a bound, which then counts as used."""
        self.explorer.result.used.add(name)
        return super().bound(name)

    def inductive(self, base: Callable[[], None], step: Callable[[], None]) -> None:
        """Raises NonLinear: a chain is as long as its bound says."""
        raise NonLinear("an induction is no chain")

    def real(self, name: str, lo: Any = None, hi: Any = None) -> Any:
        """A real in [-b, b], b the larger end. Raises NonLinear without bounds."""
        return self._input(name, None, lo, hi)

    def float(self, name: str, fmt: str, lo: Any, hi: Any) -> Any:
        """A number of a format in [-b, b]."""
        return self._input(name, fmt, lo, hi)

    def _input(self, name: str, fmt: str | None, lo: Any, hi: Any) -> Any:
        if lo is None or hi is None:
            raise NonLinear(f"{name} has no range")
        if name in self.explorer.inputs:
            raise ValueError(f"two inputs are called {name!r}")
        made = Linear.input(name, fmt, max(abs(Fraction(lo)), abs(Fraction(hi))))
        self.explorer.inputs[name] = made
        return made

    def choose(self, name: str, options: Sequence[Any]) -> Any:
        """One of several concrete options, one path each."""
        return self.explorer.choose(list(options))

    def assume(self, condition: Any) -> None:
        """A concrete condition ends the path where it is false. Raises NonLinear for any other."""
        if not isinstance(condition, bool):
            raise NonLinear("an assumption on numbers that are not known")
        self.explorer.assume(condition)

    def check(self, clause: str, condition: Any, label: str = "") -> None:
        """The clause must hold here for every input."""
        self.explorer.decide(clause, condition, label)

    def cover(self, name: str, condition: Any = True) -> None:
        """This point must be reached with a concrete condition that is true."""
        if not isinstance(condition, bool):
            raise NonLinear("a cover on numbers that are not known")
        if condition or self.explorer.result.covers.setdefault(name, None) is not None:
            choices = [str(o) for o in self.explorer._path.options]
            self.explorer.result.covers[name] = {"values": {}, "choices": choices}

    def same(self, a: Any, b: Any) -> Any:
        """Equality over the reals."""
        return a == b

    def scenario(self, batches: Sequence[Any], config: Any, buffer: Sequence[Any]) -> None:
        """Nothing: only a replay needs the case."""


def explored(check: Check, limits: Limits) -> tuple[ChainExplorer, ChainKit]:
    """An explorer of this strategy, and the kit that it gives to a harness."""
    explorer = ChainExplorer(limits)
    return explorer, ChainKit(check, explorer)
