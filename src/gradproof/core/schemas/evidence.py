"""The shape of an evidence file down to its last field, so that no reader has to look out for anything else.

It follows reports/evidence.schema.json, and is stricter where a reader would fail: names of files hold no NUL, numbers
can be floats, what is free is not nested without end. A test takes a value and answers None, or where it differs and
how.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any

from gradproof.core.outcome import EVIDENCE_SCHEMA, Expect, Kind, Layer, Outcome, Reach

Fault = tuple[str, str]
Test = Callable[[Any], Fault | None]

DEEPEST = 60
LARGEST = sys.float_info.max
LONGEST_RUN = 1e9  # seconds: some thirty years
MOST_DIGITS = 4000


def fault_of(data: Any) -> str:
    """Where evidence differs from its shape, and how; an empty text where it does not."""
    fault = EVIDENCE(data)
    return "" if fault is None else f"{fault[0].removeprefix('.') or 'it'} {fault[1]}"


def _is(value: Any) -> Fault:
    return "", f"is a {type(value).__name__}"


def text(value: Any) -> Fault | None:
    """A text."""
    return None if isinstance(value, str) else _is(value)


def name(value: Any) -> Fault | None:
    """A text that can name a file or a module."""
    return text(value) or (("", "holds a NUL") if "\0" in value else None)


def flag(value: Any) -> Fault | None:
    """True or false."""
    return None if isinstance(value, bool) else _is(value)


def free(value: Any, left: int = DEEPEST) -> Fault | None:
    """Anything that is not nested too deeply."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if left == 0 and inner:
        return "", "is nested too deeply"
    return next((f for v in inner if isinstance(v, (dict, list)) and (f := free(v, left - 1))), None)


def mapping(value: Any) -> Fault | None:
    """Anything by name."""
    return free(value) if isinstance(value, dict) else _is(value)


def scalar(value: Any) -> Fault | None:
    """A text, a number, true, false or nothing."""
    return _is(value) if isinstance(value, (dict, list)) else None


def exact(value: Any) -> Fault | None:
    """A fraction in digits, such as -1/3, that a float can approximate."""
    if not isinstance(value, str):
        return _is(value)
    if len(value) <= MOST_DIGITS and set(value) <= set("-+0123456789/."):
        try:
            float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError):
            return "", f"is {value[:40]!r}, no fraction"
        return None
    return "", f"is {value[:40]!r}, no fraction"


def number(least: float = -LARGEST, most: float = LARGEST) -> Test:
    """A number within limits."""

    def tested(value: Any) -> Fault | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return _is(value)
        return None if least <= value <= most else ("", f"is not from {least:g} to {most:g}")

    return tested


def whole(least: int = -(1 << 63)) -> Test:
    """A whole number of at most 64 bits."""

    def tested(value: Any) -> Fault | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return _is(value)
        return None if least <= value < 1 << 63 else ("", f"is not from {least} to 2**63 - 1")

    return tested


def one_of(words: type[StrEnum]) -> Test:
    """One of the words of a vocabulary."""
    known = frozenset(str(word) for word in words)

    def tested(value: Any) -> Fault | None:
        if not isinstance(value, str):
            return _is(value)
        return None if value in known else ("", f"is {value[:40]!r}, none of {', '.join(words)}")

    return tested


def maybe(test: Test) -> Test:
    """Nothing, or what the test takes."""
    return lambda value: None if value is None else test(value)


def listed(test: Test, least: int = 0) -> Test:
    """A list of what the test takes."""

    def tested(value: Any) -> Fault | None:
        if not isinstance(value, list):
            return _is(value)
        if len(value) < least:
            return "", f"has {len(value)} entries, fewer than {least}"
        faults = ((i, f) for i, item in enumerate(value) if (f := test(item)))
        return next(((f"[{i}]{place}", said) for i, (place, said) in faults), None)

    return tested


def named(test: Test, key: Test = text) -> Test:
    """What the test takes, by names."""

    def tested(value: Any) -> Fault | None:
        if not isinstance(value, dict):
            return _is(value)
        faults = ((k, f) for k, item in value.items() if (f := key(k) or test(item)))
        return next(((f"[{k[:40]!r}]{place}", said) for k, (place, said) in faults), None)

    return tested


def row(needed: Mapping[str, Test], more: Mapping[str, Test] | None = None, *, others: bool = False) -> Test:
    """A mapping with the keys that are needed, and perhaps more. `others`: any key besides, with a free value."""
    tests = {**needed, **(more or {})}

    def tested(value: Any) -> Fault | None:
        if not isinstance(value, dict):
            return _is(value)
        for key, test in tests.items():
            if key not in value:
                if key in needed:
                    return f".{key}", "is missing"
            elif (fault := test(value[key])) is not None:
                return f".{key}{fault[0]}", fault[1]
        if len(value) > len(needed) and (strange := value.keys() - tests.keys()):
            if not others:
                return "", f"has the unknown key {min(strange)[:40]!r}"
            return next(((f".{k[:40]}", f[1]) for k in strange if (f := free(value[k]))), None)
        return None

    return tested


TICK = row(dict.fromkeys(("event", "after", "note", "refused", "harm"), text))
COUNTEREXAMPLE = row(
    {"clause": text, "values": mapping},
    {
        "found_by": text,
        "label": text,
        "choices": listed(text),
        "trace": maybe(row({"title": text, "start": text, "ticks": listed(TICK, 1)})),
    },
    others=True,
)
COVER = row({"name": text, "reached": flag}, others=True)
REPLAY = row({"on": text, "reproduced": maybe(flag)}, {"detail": text}, others=True)
CONTROL = row(
    {"name": text, "kind": text, "outcome": one_of(Outcome), "killed": flag},
    {
        "clause": text,
        "reference": text,
        "reason": text,
        "counterexample": maybe(COUNTEREXAMPLE),
        "replays": listed(REPLAY),
        "seconds": number(0, LONGEST_RUN),
    },
)
MEASUREMENT = row(
    {"column": text, "device": text, "dtype": text, "net": text, "n": whole(1), "measured": maybe(number(0))},
    {
        "bound": maybe(number(0)),
        **dict.fromkeys(("ratio", "tolerance", "l2", "relative"), maybe(number())),
        **dict.fromkeys(("case", "metric", "note"), text),
    },
    others=True,
)
REPLIES = listed(row({"solver": text, "version": text, "answer": text}, others=True))
_LEMMA = row(
    {"name": text, "method": text},
    {"solvers": REPLIES, "cases": whole(0), "premises": listed(text)},
    others=True,
)


def lemma(value: Any) -> Fault | None:
    """A lemma, with what its method rests on."""
    if fault := _LEMMA(value):
        return fault
    rests = {"solvers": "solvers", "exhaustion": "cases"}.get(value["method"], "premises")
    return None if rests in value else (f".{rests}", "is missing")


def operator(value: Any) -> Fault | None:
    """An operator and the format that it rounds to, such as "add fp32"."""
    return text(value) or (None if " " in value else ("", f"is {value[:40]!r}, no operator with its format"))


_CLAIMED: Mapping[str, Test] = {"clause": text, "label": text, "claimed": exact}
STATS = row(
    {},
    {
        "solver": text,
        "solvers": REPLIES,
        "lemmas": listed(lemma),
        "certificates": listed(
            row({**_CLAIMED, "sha256": text, "bound": exact, "contracts": listed(text)}, others=True)
        ),
        "exhaustion": listed(row({**_CLAIMED, "worst": exact, "numbers": whole(0)}, others=True)),
        "rounded": listed(operator),
    },
    others=True,
)
FINDING = row({
    "outcome": one_of(Outcome),
    "reason": text,
    "reach": maybe(one_of(Reach)),
    "domain": text,
    "clauses": named(text),
    "assumptions": listed(text),
    "covers": listed(COVER),
    "controls": listed(CONTROL),
    "counterexample": maybe(COUNTEREXAMPLE),
    "replays": listed(REPLAY),
    "measurements": listed(MEASUREMENT),
    "stats": STATS,
})  # fmt: skip
CHECK = row({
    "id": name,
    "kind": one_of(Kind),
    "layer": one_of(Layer),
    "title": text,
    "harness": name,
    "subject": name,
    "expect": one_of(Expect),
    "strategy": text,
    "bounds": listed(row({"name": text, "value": whole(), "reason": text})),
    **dict.fromkeys(("obligations", "stubs", "mutants", "assumptions", "depends"), listed(text)),
    "params": mapping,
    "text": mapping,
    "time_limit": number(1e-9, LONGEST_RUN),
})  # fmt: skip
SEARCH = row({
    "start": listed(name), "path": listed(name), "where": named(listed(name), name), "apart": named(name, name),
    "wanted": listed(name), "passing": named(listed(name), name),
})  # fmt: skip
CLAIM = row({
    "spec": text, "files": named(text, name), "modules": named(name, name), "absent": listed(name), "search": SEARCH,
})  # fmt: skip
_SEEN = {"variables": named(text), "distributions": named(text)}


def environment(value: Any) -> Fault | None:
    """Texts and numbers by name, and two mappings of texts."""
    if not isinstance(value, dict):
        return _is(value)
    faults = ((key, f) for key, item in value.items() if (f := _SEEN.get(key, scalar)(item)))
    return next(((f".{key[:40]}{place}", said) for key, (place, said) in faults), None)


EVIDENCE = row({
    "schema": lambda value: None if value == EVIDENCE_SCHEMA else ("", f"is {value!r}, not {EVIDENCE_SCHEMA!r}"),
    "check": CHECK,
    "claim": CLAIM,
    "finding": FINDING,
    "environment": environment,
    "started_at": text,
    "finished_at": text,
    "seconds": number(0, LONGEST_RUN),
})  # fmt: skip
TOP = frozenset({"schema", "check", "claim", "finding", "environment", "started_at", "finished_at", "seconds"})
