"""The strategy linear_chain: a harness on linear floats, each claim decided by a certificate that is checked at once.

A claim |x| <= bound holds if the certificate's bound is no larger and `rounding.farkas`, which shares no code with
what made it, accepts it. Otherwise the extreme inputs of the exact part, and the constructed worst cases, are replayed;
if none breaks the claim, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradproof.arith.bounds import rational
from gradproof.arith.linear import Linear, NonLinear, Within
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.execution.methods.explore import Exploration, Explorer, Limits, Stopped, Violated
from gradproof.execution.methods.free_inputs import settle
from gradproof.execution.methods.harness import LETTERS, ExploringKit
from gradproof.rounding.certificate import Certificate, certify
from gradproof.rounding.enumerated import AtMost, Enumerated, LinearDifference
from gradproof.rounding.farkas import Refused, check as checked
from gradproof.rounding.lemma_store import LemmaRefused, require, require_contracts, stated
from gradproof.rounding.step_contracts import Form, Operands, form_of, named, operators_of, refuting_case, tried


class ChainExplorer(Explorer):
    """Runs a harness once for every choice; there is no solver, and nothing branches on a number."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.inputs: dict[str, Any] = {}
        self.certificates: list[dict[str, Any]] = []

    def justification(self) -> dict[str, Any]:
        """The certificates behind the claims, and the evidence of every lemma that they rest on."""
        if not self.certificates:
            return {}
        names = sorted({name for row in self.certificates for name in row["contracts"]})
        return {"certificates": self.certificates, "lemmas": stated(names)}

    def run(self, body: Callable[[], None]) -> Exploration:
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
        if self._path.checks and not self._ended():
            self.result.inputs |= (free := {name for name, x in self.inputs.items() if x.reach > 0})
            for part, names in self._path.open:
                self._ask_of_free(part, names is None or not free.isdisjoint(names))
            settle(self.result.fields, self._path.case, self._varied)

    def _inputs_in(self, x: Any) -> set[str]:
        """A claim that is no truth value may be one on each of them."""
        return set() if isinstance(x, bool) else set(self.inputs)

    def _varied(self, asked: Sequence[Any]) -> set[int]:
        """The places of those numbers that are inputs themselves."""
        inputs = set(map(id, self.inputs.values()))
        return {i for i, x in enumerate(asked) if id(x) in inputs}

    def decide(self, clause: str, condition: Any, label: str) -> None:
        """One claim. Raises Violated with the inputs that break it, or that are to be tried, NonLinear, or Stopped."""
        self._counted(clause, condition)
        if condition is False:
            raise self._broken(clause, label, {})
        if condition is not True:
            self._decide_claim(clause, condition, label)

    def _broken(self, clause: str, label: str, values: Mapping[str, Fraction]) -> Violated:
        """The claim breaks at these inputs, or may: all others are 0."""
        return self._violated(clause, label, dict.fromkeys(self.inputs, Fraction(0)) | dict(values))

    def _decide_claim(self, clause: str, condition: Any, label: str) -> None:
        if not isinstance(condition, Within):
            raise NonLinear(f"{clause} {label}: only |x| <= constant is decided")
        made = certify(condition.of)
        self.result.operators |= operators_of(made.rows)
        if made.bound > condition.bound:
            raise self._broken(clause, f"{label}: bound {float(made.bound):.6g}", extremes(made))
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


def extremes(made: Certificate) -> dict[str, Fraction]:
    """For every input the end of its range that drives the exact part of the result upwards."""
    left = [Fraction(0)] * len(made.rows)
    for row, m in zip(made.rows, made.multipliers, strict=True):
        for c, j in row.terms if m and not row.of_error else ():
            left[j] += m * c
    ends = ((row, rational(row.top) * (1 if x >= 0 else -1)) for row, x in zip(made.rows, left, strict=True))
    return {row.name: end for row, end in ends if row.kind == "input"}


class ChainKit(ExploringKit):
    """Inputs are linear floats; checks are certificates."""

    explorer: ChainExplorer

    def inductive(self, base: Callable[[], None], step: Callable[[], None]) -> None:
        """Raises NonLinear: a chain is as long as its bound says."""
        raise NonLinear("an induction is no chain")

    def direct(self, claim: Callable[[], None]) -> None:
        """Raises NonLinear: a chain is as long as its bound says."""
        raise NonLinear("a chain has a length")

    def real(self, name: str, lo: Any = None, hi: Any = None) -> Any:
        """A real in [-b, b], b the larger end. Raises NonLinear without bounds."""
        return self._input(name, None, lo, hi)

    def float(self, name: str, fmt: str, lo: Any, hi: Any) -> Any:
        """A number of a format in [-b, b]."""
        return self._input(name, fmt, lo, hi)

    def _input(self, name: str, fmt: str | None, lo: Any, hi: Any) -> Any:
        if name in self.explorer.inputs:
            raise ValueError(f"two inputs are called {name!r}")
        self.explorer.inputs[name] = self._number(name, fmt, lo, hi)
        self.explorer.element(name)
        return self.explorer.inputs[name]

    def _number(self, name: str, fmt: str | None, lo: Any, hi: Any) -> Any:
        if lo is None or hi is None:
            raise NonLinear(f"{name} has no range")
        return Linear.input(name, fmt, max(abs(Fraction(lo)), abs(Fraction(hi))))

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


# -- The strategy step_contract: step contracts, each behind evidence that is checked again now.
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

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.named: list[str] = []
        self.proved: list[str] = []

    def run(self, body: Callable[[], None]) -> Exploration:
        """Explore. A lemma that is named and not decided ends in UNKNOWN."""
        result = super().run(body)
        left = [name for name in self.named if name not in self.proved]
        if left and result.violation is None and result.stopped is None:
            result.stopped = Stopped("UNKNOWN", f"the harness does not decide {', '.join(left[:4])}")
        return result

    def justification(self) -> dict[str, Any]:
        """The evidence of every lemma that a claim rests on."""
        return {"lemmas": stated(self.proved)} if self.proved else {}

    def _decide_claim(self, clause: str, condition: Any, label: str) -> None:
        if isinstance(condition, Keeps):
            self._keeps(clause, condition, label)
        elif isinstance(condition, Refuses):
            given, wrong = refuting_case(condition.lemma)
            if condition.promise.holds(wrong):
                words = f"{label}: it allows {float(wrong.t):.9g} for {float(wrong.z):.9g}"
                raise self._broken(clause, words, _lettered(given))
        else:
            raise self._broken(clause, label, {})

    def _keeps(self, clause: str, claim: Keeps, label: str) -> None:
        steps = tried(claim.lemma)
        for given, one in steps:
            if not claim.promise.holds(one):
                words = f"{label}: {float(one.z):.9g} is rounded to {float(one.t):.9g}"
                raise self._broken(clause, words, _lettered(given))
        if len(steps) < claim.least:
            raise self._stop("ERROR", f"{claim.lemma}: {len(steps)} steps were tried, {claim.least} are promised")
        if claim.promise is not form_of(claim.lemma):
            raise self._stop("UNKNOWN", f"{claim.lemma}: the evidence is not about this promise")
        try:
            require([claim.lemma])
        except LemmaRefused as refused:
            raise self._stop("UNKNOWN", f"{clause} {label}: not proved: {refused}") from refused
        self.proved.append(claim.lemma)


def _lettered(given: Operands) -> dict[str, Fraction]:
    return dict(zip(LETTERS, given, strict=False))


class ContractKit(ChainKit):
    """Names of lemmas, and what is claimed of their steps. Raises GradproofError GP304 for a name that matches none."""

    explorer: ContractExplorer

    def __init__(self, check: Check, explorer: ContractExplorer) -> None:
        super().__init__(check, explorer)
        explorer.named = lemmas_of(check)

    def lemmas(self) -> list[str]:
        """The lemmas that the claim names."""
        return self.explorer.named

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
    expected = "names that `python -m gradproof.rounding.lemma_store --list` prints, or shell patterns of them"
    return GradproofError("GP304", f"{check.id}: {found}", expected, "correct lemmas in the contract")


# -- The strategy bit_exhaustive: a harness on enumerated numbers, each claim decided by the exact worst case.
class ExhaustExplorer(ChainExplorer):
    """Runs a harness once for every choice; a claim is decided by enumeration."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.enumerated: list[dict[str, Any]] = []

    def justification(self) -> dict[str, Any]:
        """The exact worst cases that stand behind the claims."""
        return {"exhaustion": self.enumerated} if self.enumerated else {}

    def _decide_claim(self, clause: str, condition: Any, label: str) -> None:
        if not isinstance(condition, AtMost):
            raise NonLinear(f"{clause} {label}: only |x| <= constant is decided")
        for values in ends(condition.of):
            error = abs(condition.of.at(values))
            if error > condition.bound:
                raise self._broken(clause, f"{label}: {float(error):.6g} at the ends of the ranges", values)
        try:
            worst, values, numbers = condition.of.worst()
        except ArithmeticError as error_:
            if isinstance(error_, OverflowError):
                raise
            raise self._stop("ERROR", f"{clause} {label}: {error_}") from error_
        words = f"{label}: the exact worst case is {float(worst):.6g}"
        if worst > condition.bound:
            raise self._broken(clause, words, values)
        row = {"clause": clause, "label": label, "worst": str(worst), "claimed": str(condition.bound)}
        self.enumerated.append({**row, "inputs": len(values), "numbers": numbers})


def ends(claim: LinearDifference) -> Iterator[dict[str, Fraction]]:
    """All inputs at the upper end of their range; then every other one at the lower end."""
    tops = {name: node.sums.reach() for name, node in claim.every_input().items()}
    yield tops
    yield {name: -top if i % 2 else top for i, (name, top) in enumerate(tops.items())}


class ExhaustKit(ChainKit):
    """Inputs are enumerated numbers of a format."""

    def _number(self, name: str, fmt: str | None, lo: Any, hi: Any) -> Any:
        if fmt is None or lo is None or hi is None or Fraction(lo) != -Fraction(hi):
            raise NonLinear(f"{name} is no number of a format in a symmetric range")
        return Enumerated.input(name, fmt, Fraction(hi))


STRATEGIES: Mapping[str, tuple[type[ChainExplorer], type[ChainKit]]] = {
    "linear_chain": (ChainExplorer, ChainKit),
    "step_contract": (ContractExplorer, ContractKit),
    "bit_exhaustive": (ExhaustExplorer, ExhaustKit),
}


def explored(check: Check, limits: Limits) -> tuple[ChainExplorer, ChainKit]:
    """An explorer of the claim's strategy, and the kit that it gives to a harness."""
    explorer, kit = STRATEGIES[check.strategy]
    made = explorer(limits)
    return made, kit(check, made)
