"""Loops whose verdict is known, through gradproof: `python -m tests.origin`, and the bars that they have to meet.

Each loop runs in a process of its own, and what is printed is compared with its label. A wrong loop that holds is the
worst; then a right one that is refuted; then what is not decided. A wrong loop that holds is disclosed where the first
12 lines name what the verdict takes for granted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.origin.answered import CRASH, DISCLOSED, HOLDS, REFUTED, UNDECIDED, Said, every_answer
from tests.origin.cases import FUNCTIONS, KINDS, RIGHT, SOURCES, WAYS, WRONG, Case, every
from tests.origin.faults import OPEN, fault

COMMAND = "python -m tests.origin --out docs/origin.md"
COLUMNS = (
    (WRONG, REFUTED), (WRONG, UNDECIDED), (WRONG, DISCLOSED), (WRONG, HOLDS), (WRONG, CRASH),
    (RIGHT, HOLDS), (RIGHT, UNDECIDED), (RIGHT, REFUTED), (RIGHT, CRASH),
)  # fmt: skip
LOOPS, EITHER = ("watch", "check"), "either"
Tally = Counter[tuple[str, str]]


def of(tally: Tally, label: str, *words: str) -> int:
    """How many loops of a label got one of these answers."""
    return sum(tally[label, word] for word in words)


HELD = (HOLDS, DISCLOSED)
FALSE = ((WRONG, HOLDS), (RIGHT, REFUTED), (RIGHT, CRASH))
BARS: tuple[tuple[str, Callable[[Case], bool], Callable[[Tally], int], str, int], ...] = (
    ("loops: wrong and HOLDS, not disclosed", lambda c: c.kind in LOOPS, lambda t: t[WRONG, HOLDS], "<=", 0),
    (
        "loops: right and refuted, or a crash",
        lambda c: c.kind in LOOPS,
        lambda t: of(t, RIGHT, REFUTED, CRASH),
        "<=",
        0,
    ),
    ("loops: right and decided", lambda c: c.kind in LOOPS, lambda t: of(t, RIGHT, *HELD), ">=", 56),
    ("loops: wrong and refuted", lambda c: c.kind == EITHER, lambda t: t[WRONG, REFUTED], ">=", 60),
    ("scripts as functions: false", lambda c: c.kind == FUNCTIONS, lambda t: sum(t[one] for one in FALSE), "<=", 0),
    ("losses: as labelled", lambda c: c.kind == "losses", lambda t: of(t, RIGHT, *HELD) + t[WRONG, REFUTED], ">=", 105),
    (
        "losses: not decided",
        lambda c: c.kind == "losses",
        lambda t: t[RIGHT, UNDECIDED] + t[WRONG, UNDECIDED],
        "<=",
        15,
    ),
    ("losses: false", lambda c: c.kind == "losses", lambda t: sum(t[one] for one in FALSE), "<=", 0),
    ("21 sources of N: right and decided", lambda c: c.group == SOURCES, lambda t: of(t, RIGHT, *HELD), ">=", 19),
    (
        "21 ways to divide: right and decided",
        lambda c: c.group == WAYS and c.kind in ("watch", "forms"),
        lambda t: of(t, RIGHT, *HELD),
        ">=",
        19,
    ),
    ("forms: false", lambda c: c.kind == "forms", lambda t: sum(t[one] for one in FALSE), "<=", 0),
    ("attack: false", lambda c: c.kind == "attack", lambda t: sum(t[one] for one in FALSE), "<=", 0),
    ("ordinary: false", lambda c: c.kind == "ordinary", lambda t: sum(t[one] for one in FALSE), "<=", 0),
)
"""Of these cases this number has to be at most, or at least, so large."""
HEAD = (
    "# Loops whose verdict is known",
    "",
    f"Written by `{COMMAND}`; do not edit.",
    "",
    "`tests/origin` has loops as data. `watch` and `check` were written against the rule by which a window is",
    "judged, which is [One rule](rule.md). `functions` are the loops of `watch` as functions for `check`, but for",
    "those whose full batch is wrong as well. `losses` are 30 losses in four shapes whose numbers collide. `forms`",
    "is one right loop with N from 21 places, and divided in further ways, each with two wrong forms. `ordinary`",
    "are loops as people write them. `attack` is what a reader found who had not seen the engine. `--oracle`",
    "confirms the labels in float64. HOLDS of a wrong loop is disclosed where the first 12 lines name what the",
    "verdict takes for granted. A loop of `watch` is refuted where its script is, or its function: one run of a",
    "loop whose samples meet refutes nothing.",
    "",
)


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 only where every bar of what ran is met, or every label is confirmed."""
    parser = argparse.ArgumentParser(prog="python -m tests.origin", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name or class it matches")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of these kinds; all unless given")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2 unless given")
    parser.add_argument("--json", type=Path, help="keep the answers here, a line each: what is there is not run again")
    parser.add_argument("--out", type=Path, help="write the tables here")
    parser.add_argument("--open", action="store_true", help=f"write what is wrong today to {OPEN.name}")
    parser.add_argument("--oracle", action="store_true", help="confirm the labels in float64, and run nothing else")
    parser.add_argument("--show", action="store_true", help="print each loop, and what is said of it")
    given = parser.parse_args(words)
    chosen = [case for case in every().values() if case.kind in (given.kind or KINDS)]
    chosen = [case for case in chosen if re.search(given.only, f"{case.name} {case.group}")]
    if given.oracle:
        return confirmed(chosen)
    pairs = list(answers(chosen, given.jobs, given.json, given.show))
    lines = [*tables(pairs), "", *bars(pairs)]
    print("\n".join(lines))
    if given.out is not None:
        given.out.write_text("\n".join([*HEAD, *lines, "", *listed(pairs), ""]), encoding="utf-8")
    if given.open and not given.only and not given.kind:
        rows = sorted((case.name, said.word) for case, said in pairs if fault(case, said.word))
        OPEN.write_text("".join(f"{name}\t{word}\n" for name, word in rows), encoding="utf-8")
    return int(any("missed" in line for line in lines))


def confirmed(cases: Iterable[Case]) -> int:
    """Every label through the oracle; what contradicts one is printed."""
    from tests.origin.oracle import contradiction, unseen

    found = 0
    for case in cases:
        why = unseen(case)
        against = "" if why else contradiction(case)
        if why or against:
            print(f"{case.kind} {case.name}: {why or against}", flush=True)
        found += bool(against)
    print(f"{found} labels are contradicted")
    return int(found > 0)


def answers(cases: Sequence[Case], jobs: int, file: Path | None, show: bool) -> Iterator[tuple[Case, Said]]:
    """What is said of each; a fault is printed at once."""
    kept = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    known = {row[0]: Said(*row) for row in map(json.loads, kept)}
    new = every_answer([case for case in cases if case.name not in known], jobs)
    for case in cases:
        said = known.get(case.name) or next(new)
        if file is not None and case.name not in known:
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps([said.name, said.word, said.text]) + "\n")
        if show:
            print(f"{case.text}\n{case.label}: {said.text}", flush=True)
        elif fault(case, said.word):
            print(f"{case.kind} {case.name}: {case.label}, and {said.word}: {said.why}", flush=True)
        yield case, said


def tables(pairs: Sequence[tuple[Case, Said]]) -> list[str]:
    """A table of the classes of each kind; the last row of a kind is all of it."""
    head = ["kind", "class", *(f"{label}: {word}" for label, word in COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * len(COLUMNS)]
    for kind in KINDS:
        groups = dict.fromkeys(case.group for case, _ in pairs if case.kind == kind)
        for group in (*groups, "") if len(groups) > 1 else ("",):
            own = tally((c, s) for c, s in pairs if c.kind == kind and group in (c.group, ""))
            if own:
                own[RIGHT, HOLDS] += own.pop((RIGHT, DISCLOSED), 0)
                cells = (str(own[column] or "") for column in COLUMNS)
                lines.append(f"| {kind} | {group or 'all'} | " + " | ".join(cells) + " |")
    return lines


def tally(pairs: Iterable[tuple[Case, Said]]) -> Tally:
    """How often each label got each answer."""
    return Counter((case.label, said.word) for case, said in pairs)


def bars(pairs: Sequence[tuple[Case, Said]]) -> list[str]:
    """A table of the bars of the kinds that ran."""
    lines = ["| what | found | bar | |", "|---|---:|---:|---|"]
    every = [*pairs, *either(pairs)]
    for what, belongs, count, sign, bar in BARS:
        own = tally((case, said) for case, said in every if belongs(case))
        if own:
            met = count(own) <= bar if sign == "<=" else count(own) >= bar
            lines.append(f"| {what} | {count(own)} | {sign} {bar} | {'met' if met else 'missed'} |")
    return lines


def either(pairs: Sequence[tuple[Case, Said]]) -> Iterator[tuple[Case, Said]]:
    """The loops of `watch` and `check`; one that is a function as well is refuted where either command refutes it."""
    refuted = {case.name.removesuffix("_function") for case, said in pairs if said.word == REFUTED}
    for case, said in pairs:
        if case.kind in LOOPS:
            yield replace(case, kind=EITHER), replace(said, word=REFUTED) if case.name in refuted else said


def listed(pairs: Sequence[tuple[Case, Said]]) -> Iterator[str]:
    """Each case that is not answered as labelled, by its answer."""
    good: Mapping[str, Sequence[str]] = {RIGHT: HELD, WRONG: (REFUTED,)}
    yield "| case | label | what it is | answer |"
    yield "|---|---|---|---|"
    for case, said in pairs:
        if said.word not in good[case.label]:
            words = case.words.replace("|", "\\|").replace("[", "\\[")
            yield f"| `{case.name}` | {case.label} | {words} | {said.word} |"


if __name__ == "__main__":
    sys.exit(main())
