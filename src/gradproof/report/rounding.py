"""The sections "Rounding" and "The stub against the real kernel" in words, once for every format.

What is stale, rejected or absent is called that, and no such document has a word of success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any

from gradproof.core.outcome import Effect
from gradproof.report.consistency import Report
from gradproof.report.studies import ANY, DEVICES, FRESH, HOLDS, STALE, UNUSED
from gradproof.report.text import ABSENT, counted, plural, ratio, sci, seconds, when

TITLES = ("Gradients", "Buffer", "Order", "Tolerance", "True up to", "Undecided", "False from")
KERNEL_TITLES = ("Operator", "dtype", "device", "Claim", "State", "Cases", "Off", "Worst ratio", "Named", "Why")
RELY_TITLES = ("Check", "Operator", "dtype", "device", "State", "What follows")


def status(report: Report) -> str:
    """Whether the study speaks of the files as they are, in one sentence."""
    section = report["rounding"]
    words = {FRESH: "Fresh", STALE: "STALE, nothing below speaks of the present files"}
    return f"{words.get(section['status'], section['status'].upper())}: {section['reason']}."


def others(report: Report) -> list[str]:
    """How the documents of the training systems stand, a sentence each."""
    words = {FRESH: "fresh", STALE: "STALE, it speaks of other files"}
    return [f"{r['name']}: {words.get(r['status'], r['status'].upper())}: {r['reason']}." for r in report["studies"]]


def study(report: Report) -> Mapping[str, Any] | None:
    """The document of the study, or None where there is none to show."""
    found: Mapping[str, Any] | None = report["rounding"]["document"]
    return found


def thresholds(report: Report) -> list[tuple[str, ...]]:
    """The rows of the table; where the study is stale, every answer is marked so."""
    document = study(report)
    stale = " (stale)" if report["rounding"]["status"] != FRESH else ""
    return [] if document is None else [_threshold(row, stale) for row in document["thresholds"]]


def _threshold(row: Mapping[str, Any], stale: str) -> tuple[str, ...]:
    sides = [_side(row[key], stale) for key in ("true", "false")]
    between = ", ".join(map(str, row["undecided"])) or ABSENT
    true = sides[0] if row["undecided"] or row["false"] else f"{sides[0]}, nothing larger was asked"
    between += f" ({row['note']})" if row["note"] else ""
    tolerance = f"{row['tolerance']} ({row['tolerance_of']})"
    return row["gradients"], row["buffer"], row["order"], tolerance, true, between, sides[1]


def _side(side: Mapping[str, Any] | None, stale: str) -> str:
    if side is None:
        return ABSENT
    by = side["by"].replace("every order", "bound of every order")
    return f"{side['n']}, by {by}, {sci(float(Fraction(side['error'])))}{stale}"


def about(document: Mapping[str, Any]) -> str:
    """How the study was made."""
    made = f"gradproof {document['gradproof']}, {when(document['made_at'])}, {seconds(document['seconds'])}"
    rests = plural(len(document["contracts"]), "step contract")
    asked = f"|g| <= {document['magnitude']}, {document['scale']} by N, N = 2^k up to {document['most']}"
    return f"{asked}; {'; '.join(document['assumes'])}; rests on {rests}; {made}."


def kernels(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The rows of one document by section."""
    return [(name, list(rows)) for name, rows in groupby(document["rows"], key=lambda row: str(row["section"]))]


def kernel_words(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as cells: an operator in a dtype on a device, the claim with the flags that it was made under."""
    claim = ", ".join([row["claim"], *(f"{name}={flag}" for name, flag in row["flags"].items())])
    worst = ABSENT if row["ratio"] is None else ratio(float(row["ratio"]))
    counts, names = (str(row["cases"]), str(row["mismatches"]), worst), "; ".join(row["names"]) or ABSENT
    return (row["operator"], row["dtype"], row["device"], claim, row["outcome"], *counts, names, row["reason"])


def ran(document: Mapping[str, Any]) -> str:
    """What a document of kernel runs is of, in one line."""
    e = document["environment"]
    machine = e.get("gpu") or f"{e.get('machine')} {e.get('cpu_capability')}"
    outcomes = counted(row["outcome"] for row in document["rows"]) or "no row"
    where = f"{document['mode']} run on {e.get('device')}, {machine}, torch {e.get('torch')}"
    return f"{document['path']}: {where}; {outcomes}"


def section_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """A section in one line: outcomes and the largest ratio."""
    ratios = [float(row["ratio"]) for row in rows if row["ratio"] is not None]
    worst = f"; worst ratio {ratio(max(ratios))}" if ratios else ""
    return f"{plural(len(rows), 'row')}, {counted(row['outcome'] for row in rows)}{worst}"


def devices(report: Report) -> list[str]:
    """For each device, how many of the operators that proofs rely on were seen to conform there."""
    rows = report["kernels"]["relies"]
    read = [d for d in report["kernels"]["documents"] if d["status"] == FRESH]
    words = []
    for device in DEVICES:
        mine = [r for r in rows if r["device"] == device and r["state"] != UNUSED]
        own = {(r["operator"], r["dtype"]): r["state"] for r in mine if r["operator"] != ANY}
        blind = sum(r["operator"] == ANY for r in mine)
        good = sum(state == HOLDS for state in own.values())
        ran_here = [d["path"] for d in read if d["environment"].get("device") == device]
        source = ", ".join(ran_here) or "NOT_RUN, there is no document of kernels run there"
        said = f"{device}: {good} of {plural(len(own), 'rounded operator')} conform, {len(own) - good} assumed"
        said += f"; of {plural(blind, 'check')} it is not known what is rounded" if blind else ""
        words.append(f"{said} ({source}).")
    return words


def relies(report: Report) -> list[tuple[str, ...]]:
    """What each stub and each linear chain relies on, as cells."""
    rows = report["kernels"]["relies"]
    return [(r["check"], r["operator"], r["dtype"], r["device"], r["state"], r["words"]) for r in rows]


def tone(state: str) -> Effect:
    """The tone of a kernel's state: green only where the row holds."""
    return {HOLDS: Effect.DISCHARGED, "REFUTED": Effect.BROKEN}.get(state, Effect.OPEN)


def assumed(report: Report) -> list[tuple[str, str]]:
    """Assumptions that proofs make of kernels, each with its check."""
    return [(r["words"], r["check"]) for r in report["kernels"]["relies"] if r["state"] not in (HOLDS, UNUSED)]
