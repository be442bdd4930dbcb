"""The run that symbolic numbers belong to: who forks on a truth value, who rounds a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar


class SymbolicRun(Protocol):
    """What a symbolic number needs of its run."""

    rounds: bool

    def branch(self, term: Any) -> bool:
        """Decide a truth value on this path."""
        ...

    def rounder(self) -> Any:
        """The rounding stub of this run. Raises RuntimeError in a run over the reals."""
        ...

    def root(self, x: Any) -> Any:
        """The square root of a symbolic number."""
        ...

    def refuse(self, reason: str) -> None:
        """Remember that a number was asked for what it does not have, even if the subject catches the exception."""
        ...


_RUN: ContextVar[SymbolicRun] = ContextVar("gradproof_run")


def current() -> SymbolicRun:
    """The run in progress. Raises RuntimeError outside one."""
    try:
        return _RUN.get()
    except LookupError:
        raise RuntimeError("symbolic numbers exist only inside a harness run") from None


def refused(reason: str) -> None:
    """Tell the run in progress, if there is one, that a number was asked for what it does not have."""
    run = _RUN.get(None)
    if run is not None:
        run.refuse(reason)


@contextmanager
def running(run: SymbolicRun) -> Iterator[None]:
    """Make `run` the current one."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


# -- What a number that stands for many values cannot give: one value of its own.
E = TypeVar("E", bound=Exception)


class Refusal(TypeError):
    """An operation that needs one value; the run in progress is reported."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        refused(reason)


def noted(error: E) -> E:
    """The error, of which the run in progress is reported."""
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


# -- Operators written once: a number system says what `_do` and `_ask` make of a sign.
def _done(sign: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._do(sign, other, swap)


def _asked(sign: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._ask(sign, other)


class Operators:
    """A base of numbers: arithmetic by `_do(sign, other, swap)`, where the other may come first; order by `_ask`."""

    __slots__ = ()
    __add__, __sub__, __mul__, __truediv__ = map(_done, "+-*/")
    __radd__, __rsub__, __rmul__, __rtruediv__ = (_done(sign, swap=True) for sign in "+-*/")
    __lt__, __le__, __gt__, __ge__ = map(_asked, ("<", "<=", ">", ">="))
