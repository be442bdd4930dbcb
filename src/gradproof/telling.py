"""What a model does, told event by event to whoever listens; nothing is kept while nobody does.

A model calls `tell` where its events pass. Only the concrete replay of a counterexample listens: never an exploration,
whose values are symbolic and whose paths are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static, isfunction
from typing import Any

MOST = 4096
"""Events that are kept, at most: a longer run is told up to here."""


@dataclass(frozen=True, slots=True)
class Said:
    """One event, and the state after it in the model's own numbers.

    `phase` is true for a method that returned, and false for what the model itself calls an event.
    """

    event: str
    after: Any
    phase: bool = False


_heard: list[Said] | None = None


def tell(event: str, after: Any, phase: bool = False) -> None:
    """Tell an event, where somebody listens."""
    if _heard is not None and len(_heard) < MOST:
        _heard.append(Said(str(event), after, phase))


def heard() -> bool:
    """Whether somebody listens, for what is costly to tell."""
    return _heard is not None


@contextmanager
def listening() -> Iterator[list[Said]]:
    """The events told inside the block, in order; one listener at a time. Raises RuntimeError for a second one."""
    global _heard
    if _heard is not None:
        raise RuntimeError("somebody listens already")
    said: list[Said] = []
    _heard = said
    try:
        yield said
    finally:
        _heard = None


def by_phase(subject: Any, kind: type) -> Any:
    """The subject, of which every public method that `kind` has tells what it returns, unless nobody listens.

    A subject that takes no attributes is given back as it is.
    """
    for name in dir(kind):
        if name.startswith("_") or not isfunction(getattr_static(kind, name)):
            continue
        try:
            setattr(subject, name, _told(name, getattr(subject, name)))
        except (AttributeError, TypeError):
            return subject
    return subject


def _told(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        tell(name, result, True)
        return result

    return call
