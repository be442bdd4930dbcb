"""A counterexample shown as a window of events: what the wrong subject did, beside the reference on the same numbers.

The first event at which the two differ, in kind or in the state after it, is the offending one: it is marked with what
the reference does there. Nothing is marked that the two runs do not show. The clause breaks, at the latest, where the
run ends; where a subject has no other reference than itself, that is all that is marked. A timeline is for people: no
verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import wraps
from inspect import getattr_static, isfunction
from typing import Any

from gradproof.arith import exact
from gradproof.arith.soft import Ratio
from gradproof.core.timeline import Tick, Timeline, as_json, shortened

# -- What a model does, reported event by event to whoever listens; nothing is kept while nobody does.
MOST = 4096
"""Events that are kept, at most: a longer run is reported up to here."""


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
    """The events stated inside the block, in order; one listener at a time. Raises RuntimeError for a second one."""
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
            setattr(subject, name, _stated(name, getattr(subject, name)))
        except (AttributeError, TypeError):
            return subject
    return subject


def _stated(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        tell(name, result, True)
        return result

    return call


LONGEST, DIGITS, ELEMENTS = 24, (4, 6, 9, 17), 3
CUT, LEAST = Fraction(1, 2**30), Fraction(1, 2**60)
"""Distance below which two exact numbers are the same where a root is cut: of the largest of a state, and at least."""
FLOATS = Fraction(1, 2**18)
"""The same for sums of machine numbers."""

EXACT = Fraction(0)


def events_during(run: Callable[[], Any]) -> list[Said]:
    """What is reported while something runs, as `events_of`."""
    with listening() as said:
        run()
    return events_of(said)


def events_of(said: Sequence[Said]) -> list[Said]:
    """The events where there are any, else the phases that returned."""
    return [s for s in said if not s.phase] or list(said)


def timeline(title: str, ours: Sequence[Said], right: Sequence[Said], harm: str, slack: Fraction) -> Timeline | None:
    """The events of a run that breaks a clause, the first one that differs from the right run marked.

    `right` is empty where there is no other run. States that differ by `slack` of their largest number, or less, are
    the same. None without an event.
    """
    if not ours:
        return None
    ticks = [Tick(s.event, shown(s.after)) for s in ours]
    found = _first(ours, right, slack) if right else None
    if found is not None:
        at, why = found
        ticks[at] = Tick(ticks[at].event, ticks[at].after, refused=why)
    last = ticks[-1]
    ticks[-1] = Tick(last.event, last.after, refused=last.refused, harm=harm)
    return Timeline(title, "", shortened(ticks))


def traced(title: str, ours: Sequence[Said], right: Sequence[Said], harm: str, slack: Fraction) -> dict[str, Any]:
    """The timeline as the field `trace` of a counterexample; no field without an event."""
    line = timeline(title, ours, right, harm, slack)
    return {} if line is None else {"trace": as_json(line)}


def _acts(said: Sequence[Said]) -> list[tuple[int, Said]]:
    """The events with their numbers, but for a zero of what is zero already, which is none."""
    kept: list[tuple[int, Said]] = []
    state: Any = None
    for i, one in enumerate(said):
        if one.event != "zero" or one.phase or not _same(state, one.after, EXACT):
            kept.append((i, one))
        state = one.after if isinstance(one.after, tuple) else state
    return kept


def _first(ours: Sequence[Said], right: Sequence[Said], slack: Fraction) -> tuple[int, str] | None:
    """The first event that differs, and what the reference does there.

    Of phases only those are compared that both runs have, and only their values: a subject is free to call others.
    """
    both = {s.event for s in ours} & {s.event for s in right}
    mine, theirs = ([(i, s) for i, s in _acts(said) if not s.phase or s.event in both] for said in (ours, right))
    for k, (i, one) in enumerate(mine):
        if k >= len(theirs):
            return None if one.phase else (i, "the reference has ended here")
        other = theirs[k][1]
        if one.event != other.event:
            return None if one.phase or other.phase else (i, f"the reference does {other.event} here")
        if not _same(one.after, other.after, slack):
            return i, _differs(one.after, other.after, slack)
    return None


def _differs(a: Any, b: Any, slack: Fraction) -> str:
    """What the reference has, in as many digits as tell it from what is here, and in the element that differs."""
    where, scale = "", _largest((a, b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list) and len(a) == len(b):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not _same(x, y, slack, scale)), 0)
        if at >= ELEMENTS:
            a, b, where = a[at], b[at], f"element {at} is "
    for digits in DIGITS:
        ours, right = shown(a, digits), shown(b, digits)
        if ours != right:
            break
    many = bool(where) or ours != shown(a)
    return f"{where}{ours} here, and the reference has {right}" if many else f"the reference has {right} here"


def _same(a: Any, b: Any, slack: Fraction, scale: Fraction | None = None) -> bool:
    """Whether two states agree within `slack` of their largest number; what is no number agrees when it is equal."""
    scale = _largest((a, b)) if scale is None else scale
    if is_dataclass(a) and type(a) is type(b):
        return _same(_parts(a), _parts(b), slack, scale)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y, slack, scale) for x, y in zip(a, b, strict=True))
    x, y = _number(a), _number(b)
    if x is None or y is None:
        return x is y and bool(_text(a) == _text(b))
    return x == y if slack == EXACT else abs(x - y) <= max(slack * scale, LEAST)


def _largest(value: Any) -> Fraction:
    """The largest absolute value of the numbers in a state."""
    if is_dataclass(value) and not isinstance(value, type):
        return _largest(_parts(value))
    if isinstance(value, tuple | list):
        return max((_largest(v) for v in value), default=Fraction(0))
    return abs(_number(value) or Fraction(0))


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, f.name) for f in fields(value))


def _number(value: Any) -> Fraction | None:
    """A concrete number, exactly; None for anything else, infinity and NaN."""
    try:
        found = exact(value)
        return Fraction(found.num, found.den) if isinstance(found, Ratio) else Fraction(found)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | bool | float | None) else type(value).__name__


def shown(value: Any, digits: int = DIGITS[0]) -> str:
    """A state in a few letters: at most 3 elements, a short fraction as it is, any other number to some digits."""
    if is_dataclass(value) and not isinstance(value, type):
        named = [f"{f.name} {shown(getattr(value, f.name), digits)}" for f in fields(value)[:ELEMENTS]]
        return ", ".join(named)
    if isinstance(value, tuple | list):
        cut = [shown(v, digits) for v in value[:ELEMENTS]] + ["..."] * (len(value) > ELEMENTS)
        return f"[{', '.join(cut)}]"
    number = None if isinstance(value, str | bool | None) else _number(value)
    if number is None:
        text = _text(value)
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    text = str(number)
    return text if len(text) <= 7 else f"{float(number):.{digits}g}"
