"""What a number that stands for many values cannot give: one value of its own.

A float has an integer part, a hash, a remainder; a symbolic number has none, and says so with an exception. A subject
that catches it goes on where no real number would, so the run remembers every refusal, and nothing that was shown on it
counts.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from gradproof.arith.context import refused

E = TypeVar("E", bound=Exception)


class Refusal(TypeError):
    """An operation that needs one value; the run in progress is told."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        refused(reason)


def noted(error: E) -> E:
    """The error, of which the run in progress is told."""
    refused(str(error))
    return error


class Undecided:
    """A base of what has no truth value and no order, such as a claim that is yet to be decided."""

    __slots__ = ()
    _refusal: type[Refusal] = Refusal

    def undecided(self, *_: object) -> NoReturn:
        """Raises Refusal, or the class's own kind of it."""
        raise self._refusal("a decision on a number that is not known")


class ManyValued(Undecided):
    """A base of numbers without one value: what floats can do beyond arithmetic and comparison raises Refusal."""

    __slots__ = ()

    def _one_value(self, *_: Any) -> NoReturn:
        raise self._refusal("a number that is not known has no one value; use a named bound for loop counts")

    __float__ = __int__ = __index__ = __complex__ = __round__ = __floor__ = __ceil__ = __trunc__ = _one_value
    __rmod__ = __rfloordiv__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _one_value
    is_integer = as_integer_ratio = hex = _one_value

    def __mod__(self, other: Any) -> Any:
        return self._one_value()

    def __floordiv__(self, other: Any) -> Any:
        return self._one_value()
