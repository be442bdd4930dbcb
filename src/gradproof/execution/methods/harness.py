"""What a harness is given: inputs, assumptions, checks and covers, in one of several meanings.

A harness is a plain function `harness(k, subject)`: assume, act, check. With a `SymbolicKit` its inputs are
symbolic and every check is a solver query; with a `ConcreteKit` they are numbers and every check is a comparison,
which is how a counterexample is replayed. The harness cannot tell which subject it was given.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from gradproof.arith import exact, smt
from gradproof.arith.formats import FORMATS, format_named
from gradproof.arith.soft import Ratio, Soft
from gradproof.arith.symbolic import Ieee, Sym, SymBool
from gradproof.core.check import Check
from gradproof.execution.methods.explore import Explorer
from gradproof.execution.methods.free_inputs import rows

PARTS = {"base": "the base of an induction", "step": "an inductive step", "direct": "a direct claim"}
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for every class that a Python program makes


def genuine(x: Any) -> bool:
    """Whether x is a number of Python, NumPy or gradproof, or a list or tuple of such: a class says what it likes of
    its own module, so classes in C, Fraction and what gradproof's modules hold under the class's name are taken."""
    kind = type(x)
    if kind in (list, tuple):
        return all(genuine(one) for one in x)
    if kind is Fraction or not kind.__flags__ & _HEAP:
        return not getattr(getattr(x, "dtype", None), "hasobject", False)
    home = sys.modules.get(kind.__module__) if kind.__module__.partition(".")[0] == "gradproof" else None
    return home is not None and vars(home).get(kind.__qualname__) is kind


class Kit(ABC):
    """What both meanings share: the claim's bounds, parameters and tolerances."""

    def __init__(self, check: Check) -> None:
        self.claim = check
        self.params: Mapping[str, Any] = check.params

    def bound(self, name: str) -> int:
        """The value of the claim's bound called `name`. Raises KeyError when there is none."""
        return self.claim.bound(name)

    def inductive(self, base: Callable[[], None], step: Callable[[], None]) -> None:
        """Base and step of an induction. Neither may read a bound."""
        base()
        step()

    def direct(self, claim: Callable[[], None]) -> None:
        """A claim on single numbers, without any size: no induction is needed. It may read no bound and make no list
        of inputs."""
        claim()

    def tolerance(self, obligation: str, dtype: str) -> Fraction:
        """The contract's tolerance for `dtype`, exactly as written. Raises KeyError when none is stated."""
        for clause in self.claim.text.get("obligations", ()):
            if clause["id"] == obligation:
                for row in clause.get("tolerance") or ():
                    if row["dtype"] == dtype:
                        return Fraction(str(row["value"]))
        raise KeyError(f"{obligation} states no tolerance for {dtype}")

    def reals(self, name: str, count: int, lo: Any = None, hi: Any = None) -> tuple[Any, ...]:
        """`count` real inputs; the length is recorded as a size. Raises TypeError in a direct claim."""
        self._sized(name, count)
        return tuple(self.real(f"{name}[{i}]", lo, hi) for i in range(count))

    def floats(self, name: str, count: int, fmt: str, lo: Any, hi: Any) -> tuple[Any, ...]:
        """`count` numbers of a format; the length is recorded as a size. Raises TypeError in a direct claim."""
        self._sized(name, count)
        return tuple(self.float(f"{name}[{i}]", fmt, lo, hi) for i in range(count))

    def _sized(self, name: str, count: int) -> None:
        """Take note of the length of a list."""
        return None

    def upto(self, name: str) -> int:
        """Every value 1 .. bound(name), one path each."""
        return int(self.choose(name, list(range(1, self.bound(name) + 1))))

    @abstractmethod
    def scenario(self, *case: Any, **named: Any) -> None:
        """The case that a harness built: dataclasses, lists of them, and named arguments, as they go to the subject.

        Three of them are the micro-batches, the configuration and the buffer of an accumulation loop.
        """

    @abstractmethod
    def real(self, name: str, lo: Any = None, hi: Any = None) -> Any:
        """A real input in [lo, hi]."""

    @abstractmethod
    def float(self, name: str, fmt: str, lo: Any, hi: Any) -> Any:
        """An input that is a number of the format `fmt` in [lo, hi]."""

    @abstractmethod
    def choose(self, name: str, options: Sequence[Any]) -> Any:
        """One of several concrete options, one path each."""


class ExploringKit(Kit):
    """Inputs are not known, and choices are the paths of an explorer."""

    def __init__(self, check: Check, explorer: Explorer) -> None:
        super().__init__(check)
        self.explorer = explorer

    def bound(self, name: str) -> int:
        """The value of a bound, which then counts as used."""
        self.explorer.result.used.add(name)
        return super().bound(name)

    def _sized(self, name: str, count: int) -> None:
        self.explorer.result.sizes.add(count)
        if self.explorer.part == "direct":
            raise TypeError(f"a direct claim makes the list {name!r}, which has a length: what it shows is bounded")

    def choose(self, name: str, options: Sequence[Any]) -> Any:
        """One of several concrete options, one path each. A choice among numbers is recorded: see Scope."""
        made = list(options)
        if not all(map(_case_by_name, made)):
            self.explorer.result.numbers.add(name)
        return self.explorer.choose(made)

    def scenario(self, *case: Any, **named: Any) -> None:
        """The case that a harness built: the evidence states what it freed of it."""
        loop = _is_loop(case)
        self.explorer.case(rows(case[:2], {"buffer": case[2], **named}) if loop else rows(case, named))


def _case_by_name(option: Any) -> bool:
    """Whether an option is a case of a few, and no number of many: a word, a truth value, a member of an Enum."""
    if isinstance(option, (list, tuple)):
        return all(map(_case_by_name, option))
    return option is None or isinstance(option, (str, bool, Enum))


def _is_loop(case: Sequence[Any]) -> bool:
    """Whether a case is the micro-batches, the configuration and the buffer, plain numbers, of a loop."""
    lists = len(case) == 3 and isinstance(case[0], list) and isinstance(case[2], (list, tuple))
    return lists and not any(map(is_dataclass, case[2]))


class SymbolicKit(ExploringKit):
    """Inputs are symbolic and checks are solver queries."""

    def __init__(self, check: Check, explorer: Explorer) -> None:
        super().__init__(check, explorer)
        self.bits = check.strategy == "bit_precise"

    def bound(self, name: str) -> int:
        """The value of a bound, which then counts as used. Raises TypeError in an induction and a direct claim."""
        value = super().bound(name)
        if (part := self.explorer.part) != "other":
            raise TypeError(f"{PARTS[part]} reads the bound {name!r}: what it shows is bounded")
        return value

    def inductive(self, base: Callable[[], None], step: Callable[[], None]) -> None:
        """Base and step, during which no bound may be read.

        The bound `transitions` is the length of a step; raises ValueError unless it is 1.
        """
        if self.bound("transitions") != 1:
            raise ValueError("an inductive step is one transition; make the bound `transitions` 1")
        self.explorer.within("base", base)
        self.explorer.within("step", step)

    def direct(self, claim: Callable[[], None]) -> None:
        """A claim on single numbers, during which no bound may be read and no list of inputs be made."""
        self.explorer.within("direct", claim)

    def real(self, name: str, lo: Any = None, hi: Any = None) -> Sym:
        """A real input in [lo, hi] (None: unbounded)."""
        low, high = (None if b is None else Fraction(b) for b in (lo, hi))
        return self._number(name, smt.real(name), low, high)

    def int(self, name: str, lo: int | None = None, hi: int | None = None) -> Sym:
        """An integer input in [lo, hi] (None: unbounded)."""
        low, high = (None if b is None else Fraction(b) for b in (lo, hi))
        return self._number(name, smt.integer(name), low, high)

    def bool(self, name: str) -> SymBool:
        """A truth value."""
        x = SymBool(smt.boolean(name))
        self.explorer.declare(name, x)
        return x

    def float(self, name: str, fmt: str, lo: Any, hi: Any) -> Any:
        """A number of `fmt`; over the reals any real, in a stubbed run a number that later operations round."""
        low, high = Fraction(lo), Fraction(hi)
        if self.bits:
            x = Ieee.variable(name, fmt)
            self.explorer.declare(name, x)
            self.explorer.assume(x.finite() & (x >= low) & (x <= high))
            return x
        plain = self._number(name, smt.real(name), low, high)
        if not self.explorer.rounds:
            return plain
        return self.explorer.give(Sym(plain.term, low, high, fmt, format_named(fmt).tiny))

    def _number(self, name: str, term: smt.Term, lo: Fraction | None, hi: Fraction | None) -> Sym:
        x = Sym(term, lo, hi)
        self.explorer.declare(name, x)
        if lo is not None:
            self.explorer.assume(x >= lo)
        if hi is not None:
            self.explorer.assume(x <= hi)
        return self.explorer.give(x)

    def assume(self, condition: Any) -> None:
        """Restrict the inputs of this path."""
        self.explorer.assume(condition)

    def check(self, clause: str, condition: Any, label: str = "") -> None:
        """The clause must hold here for every input that reaches this point."""
        self.explorer.check(clause, condition, label)

    def cover(self, name: str, condition: Any = True) -> None:
        """This point must be reachable with `condition`, or the harness is vacuous."""
        self.explorer.cover(name, condition)

    def same(self, a: Any, b: Any) -> Any:
        """Equality, exactly. Raises TypeError for a number of the workspace's own, which may agree with everything."""
        for x in (a, b):
            if not genuine(x):
                raise TypeError(f"{type(x).__qualname__} of {type(x).__module__} is no number of gradproof")
        return a == b


class Unreplayable(Exception):
    """The concrete values do not satisfy the harness's assumptions."""


class BrokenHarness(Exception):
    """A check failed on concrete numbers."""

    def __init__(self, clause: str, label: str) -> None:
        self.clause, self.label = clause, label
        super().__init__(f"{clause} {label}".strip())


LETTERS = ("a", "b", "c")
"""Names of the operands of one step, in a counterexample."""

SLACK = {"float": (Fraction(1, 10**4), Fraction(1, 10**6)), "fraction": (Fraction(1, 2**60), Fraction(1, 2**200))}


class ConcreteKit(Kit):
    """Inputs are the numbers of a counterexample, in one number system.

    `family`: `fraction` (the reals), `float` (binary64, then NumPy after a conversion), `soft` (every operation
    rounded in the present format, exactly) or `torch` (a number of a format is a tensor). Equality over the reals is
    judged in floats within 1e-4 of the scale (in rationals within 2^-60, because a root is cut), so a replay is
    meaningful only beside the reference's, which must not break there.
    """

    def __init__(self, check: Check, values: Mapping[str, Any], choices: Sequence[Any], family: str) -> None:
        super().__init__(check)
        self.values, self.family = values, family
        self.case: dict[str, Any] | None = None
        self._choices = list(choices)
        self._next = 0

    def _in_range(self, name: str, value: Any, lo: Any, hi: Any) -> None:
        if (lo is not None and value < Fraction(lo)) or (hi is not None and value > Fraction(hi)):
            raise Unreplayable(f"{name} = {float(value)!r} is outside [{lo}, {hi}]")

    def real(self, name: str, lo: Any = None, hi: Any = None) -> Any:
        """The value of a real input: a float in the float family, else a Fraction."""
        value = Fraction(self.values[name])
        self._in_range(name, value, lo, hi)
        return float(value) if self.family == "float" else value

    def int(self, name: str, lo: Any = None, hi: Any = None) -> Any:
        """The value of an integer input."""
        value = int(self.values[name])
        self._in_range(name, value, lo, hi)
        return value

    def bool(self, name: str) -> Any:
        """The value of a truth value."""
        return bool(self.values[name])

    def float(self, name: str, fmt: str, lo: Any, hi: Any) -> Any:
        """The value rounded to `fmt`. Raises Unreplayable when that leaves the range."""
        value = FORMATS[fmt].round(Fraction(self.values[name]))
        self._in_range(name, value, lo, hi)
        if self.family == "soft":
            return Soft(value, fmt)
        if self.family == "torch":
            from gradproof.execution.methods.replay_kernels import number

            return number(value, fmt)
        return float(value) if self.family == "float" else value

    def lemmas(self) -> Sequence[str]:
        """The lemmas that the claim names."""
        from gradproof.rounding.step_contracts import named

        return named(self.params["lemmas"])

    def keeps(self, lemma: str, promise: Any, least: Any) -> Any:
        """Whether the step on the counterexample's operands keeps the promise."""
        from gradproof.rounding.step_contracts import step

        operands = [Fraction(self.values[letter]) for letter in LETTERS if letter in self.values]
        return promise.holds(step(lemma, operands))

    def refuses(self, lemma: str, promise: Any) -> Any:
        """Whether the promise excludes the wrong result that tells the lemma from a promise of nothing."""
        from gradproof.rounding.step_contracts import refuting_case

        return not promise.holds(refuting_case(lemma)[1])

    def choose(self, name: str, options: Sequence[Any]) -> Any:
        """The option that the counterexample's path took. Raises Unreplayable when it is not on offer."""
        if self._next >= len(self._choices):
            raise Unreplayable(f"the recorded path has no choice number {self._next + 1} ({name})")
        taken = self._choices[self._next]
        self._next += 1
        for option in options:
            if option == taken or str(option) == taken:
                return option
        raise Unreplayable(f"{name}: {taken!r} is not among the options")

    def assume(self, condition: Any) -> None:
        """Raises Unreplayable where an assumption does not hold."""
        if not condition:
            raise Unreplayable("an assumption does not hold on these numbers")

    def check(self, clause: str, condition: Any, label: str = "") -> None:
        """Raises Broken where the clause fails."""
        if not condition:
            raise BrokenHarness(clause, label)

    def cover(self, name: str, condition: Any = True) -> None:
        """Nothing: a replay is one input."""

    def same(self, a: Any, b: Any) -> Any:
        """Equality over the reals, judged on concrete numbers."""
        x, y = exact(a), exact(b)
        if self.family == "soft":
            return bool(x == y)
        slack, floor = SLACK[self.family]
        return bool(abs(x - y) <= slack * max(abs(x), abs(y), floor))

    def scenario(self, *case: Any, **named: Any) -> None:
        """Keep micro-batches, configuration and buffer in plain floats, for the replay on a real PyTorch step."""
        if _is_loop(case):
            self.case = case_of(*case)


def case_of(batches: Sequence[Any], config: Any, buffer: Sequence[Any]) -> dict[str, Any]:
    """The case that a harness built, in plain floats: what `replay_torch.replay_model` takes."""
    return {
        "n": config.n,
        "losses": [_nearest(b.loss) for b in batches],
        "grads": [[_nearest(g) for g in b.grads] for b in batches],
        "counts": _whole([b.count for b in batches]),
        "max_norm": None if config.max_norm is None else _nearest(config.max_norm),
        "loss_scale": None if config.loss_scale is None else _nearest(config.loss_scale),
        "stale": [_nearest(b) for b in buffer],
        "gradient_format": config.gradient_format,
        "skip": sorted(config.skip),
    }


def _whole(counts: Sequence[Any]) -> list[int]:
    """Whole numbers in the proportion of the counts, on which alone the weights depend."""
    parts = [Fraction(exact(c)).limit_denominator(1000) for c in counts]
    size = math.lcm(*(p.denominator for p in parts))
    return [int(p * size) for p in parts]


def _nearest(x: Any) -> float:
    """The float nearest to a concrete number."""
    return x.num / x.den if isinstance(x, Ratio) else float(x)
