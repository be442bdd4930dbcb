"""The step contracts as a subject, and contracts that promise too much: subjects of KANI-GA-026.

A wrong contract is the seed of a false proof: half the true error doubles the N up to which a tolerance seems to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradproof.harness import Form, Step, form_of
from models.registry import Mutant, registered_for


class Contracts:
    """The reference: each lemma promises what it states."""

    def of(self, name: str) -> Form:
        """The promise of a lemma. Raises KeyError for an unknown one."""
        return form_of(name)


class Empty(Contracts):
    """Promises nothing."""

    def of(self, name: str) -> Form:
        """Whatever the result."""
        return Form("nothing", lambda c: True)


def _too_strong(form: str, words: str, holds: Callable[[Step], bool]) -> type[Contracts]:
    """The contracts with one form replaced."""

    class TooStrong(Contracts):
        """One promise is too strong."""

        def of(self, name: str) -> Form:
            """The promise of a lemma, or the one that is too strong."""
            return Form(words, holds) if name.endswith(f"/{form}") else super().of(name)

    return TooStrong


def _half_the_error(c: Step) -> bool:
    return form_of("round/fp32/half-ulp").holds(Step(c.fmt, c.z, c.z + 2 * (c.t - c.z)))


def _no_ties(c: Step) -> bool:
    return c.t == c.z or c.error != c.fmt.spacing(c.z) / 2


def _half_the_relative_error(c: Step) -> bool:
    return abs(c.z) < c.normal or 2 * c.error <= c.fmt.u * abs(c.z)


def _never_up(c: Step) -> bool:
    return c.t <= c.z


def _unordered_residual(c: Step) -> bool:
    """Fast2Sum without its condition: the smaller term is taken off first."""
    small, large = sorted((c.s, c.x), key=abs)
    a = c.fmt.round(c.t - small)
    return a == c.t - small and c.fmt.round(large - a) == c.z - c.t


def _exact_underflow(c: Step) -> bool:
    return abs(c.z) > c.normal or c.t == c.z


def _exact_with_one_more_bit(c: Step) -> bool:
    return (2 * c.z / c.fmt.spacing(c.z)).denominator != 1 or c.t == c.z


def _free_quotient(c: Step) -> bool:
    return abs(c.x) < c.normal or 2 * c.error <= c.fmt.spacing(c.t)


_ROWS: tuple[tuple[str, str, type[Contracts]], ...] = (
    ("half_the_error", "half the true error", _too_strong("half-ulp", "a quarter of an ulp", _half_the_error)),
    ("no_ties", "ties taken for impossible", _too_strong("half-ulp", "below half an ulp", _no_ties)),
    (
        "half_the_relative_error",
        "u halved, as when p counts the hidden bit twice",
        _too_strong("relative", "|e| <= u |z| / 2", _half_the_relative_error),
    ),
    ("never_up", "rounding taken for truncation", _too_strong("grid", "t <= z", _never_up)),
    (
        "unordered_residual",
        "Fast2Sum without |s| >= |x|",
        _too_strong("error-representable", "the residual of the smaller term", _unordered_residual),
    ),
    (
        "exact_underflow",
        "the rule of sums taken for every rounding",
        _too_strong("subnormal", "|z| <= 2^emin => e = 0", _exact_underflow),
    ),
    (
        "one_more_bit",
        "p taken for p + 1",
        _too_strong("exact", "z a number with one more bit => e = 0", _exact_with_one_more_bit),
    ),
    (
        "free_quotient",
        "the rounding of g / N forgotten beside that of the sum",
        _too_strong("joint", "half an ulp of the sum", _free_quotient),
    ),
)

TOO_STRONG: Mapping[str, Mutant] = registered_for("GA-EQ-001", _ROWS)
