"""What a sweep found: `reports/mutation.json`, and `docs/mutation.md` made of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.mutation.field_operators import OPERATORS

Result = Mapping[str, Any]

HOWS = ("refuted", "not green", "equivalent", "survived")
COLUMNS = ("file", "mutants", *HOWS)

INTRO = """# Mutants by machine

`make mutation` changes the models, one place at a time, and asks the checks of the contracts. A mutant is **killed**
when a check answers otherwise than on the unmutated models. **refuted**: the check found a counterexample, or an
expected counterexample was gone. **not green**: the check crashed, hit a bound, showed nothing, refuted an obligation
that it does not claim, or did not end within the time limit of its contract; a gate fails on that too. **equivalent**:
no check that was asked kills it, and everything observable is shown to be the same, within the bounds that are stated.
**survived**: the rest. After six seconds of checks that do not kill a mutant, it is compared with the original before
the others are asked.

A check that is expected to be refuted claims that its obligation breaks, by whatever clause. So a mutant that breaks
another clause of the same obligation is not killed by it. A check that runs out of memory (6 GiB, the sweep's own
limit) is asked once more. The second time it does not kill.

The operators are those of [cosmic-ray](https://cosmic-ray.readthedocs.io) and these:
"""

LEFT_OUT = """## What is not mutated

| class | why |
|---|---|
| docstrings, annotations, arguments of decorators, messages of exceptions, names of types | only people read them |
| `strict=` of zip | it only raises where lengths differ, and `zip` alone would be silent |
| seeded bugs, their registries, empty bodies | they are wrong on purpose; no check has them as a subject |
| definitions that no check's subject uses | nothing is claimed of them |
| cosmic-ray's VariableReplacer and VariableInserter | a configuration names their variables; `other_field` does that |
| the reason (`why`) in an entry of the window table | only people read it; its obligation is mutated |

What a model says by `tell` is mutated, and is no part of what is compared: only drawings of counterexamples use it.
"Every rounding" is that of finite numbers.
Two mutants with the same syntax tree are one. The third time (`late_` operators) counts on one instance of a model.
"""


def verdict(row: Result) -> str:
    """One of HOWS."""
    if row["survived"]:
        return "equivalent" if row.get("equivalence", {}).get("answer") == "equivalent" else "survived"
    how = str(row["killers"][0]["how"])
    return "refuted" if how == "holds" else how


def document(rows: Iterable[Result], sources: Mapping[str, str], seconds: Mapping[str, float]) -> dict[str, Any]:
    """The document `gradproof-mutation/1`. `seconds`: of each check, on the unmutated models."""
    ordered = sorted(rows, key=lambda r: (r["file"], r["line"], r["operator"], r["key"]))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    first: Counter[tuple[str, str]] = Counter()
    for row in ordered:
        counts[row["file"]][verdict(row)] += 1
        if not row["survived"]:
            first[row["file"], row["killers"][0]["check"]] += 1
    listed = [row for row in ordered if row["survived"]]
    return {
        "schema": "gradproof-mutation/1",
        "sources": dict(sources),
        "files": [{"file": f, **{how.replace(" ", "_"): n[how] for how in HOWS}} for f, n in sorted(counts.items())],
        "checks": [
            {"file": file, "check": name, "first": n, "seconds": seconds[name]}
            for (file, name), n in sorted(first.items())
        ],
        "kept": [_kept(row) for row in listed],
    }


def _kept(row: Result) -> dict[str, Any]:
    said = row.get("equivalence", {"answer": "undecided", "why": "it was not asked"})
    names = {name: row[name] for name in ("key", "file", "line", "within", "operator", "diff")}
    return {**names, "answer": said["answer"], "why": said["why"]}


def markdown(found: Mapping[str, Any]) -> str:
    """docs/mutation.md."""
    lines = [INTRO, "| operator | what it does |", "|---|---|"]
    lines += [f"| `{o.__name__}` | {(o.__doc__ or '').strip()} |" for o in OPERATORS]
    lines += ["", "## By file", "", _row(COLUMNS), "|---" + "|--:" * (len(COLUMNS) - 1) + "|"]
    for row in found["files"]:
        numbers = [row[how.replace(" ", "_")] for how in HOWS]
        lines.append(_row([f"`{row['file']}`", sum(numbers), *numbers]))
    lines += ["", "## By check", "", "How many mutants a check killed first; the likeliest killer is asked first.", ""]
    lines += ["| file | check | first |", "|---|---|--:|"]
    ordered = sorted(found["checks"], key=lambda r: (r["file"], -r["first"]))
    lines += [_row([f"`{row['file']}`", row["check"], row["first"]]) for row in ordered]
    survivors = [row for row in found["kept"] if row["answer"] != "equivalent"]
    equal = [row for row in found["kept"] if row["answer"] == "equivalent"]
    lines += ["", "## Survivors", "", *(_told(survivors) or ["None."])]
    lines += ["", "## Equivalent", "", *(_told(equal) or ["None."])]
    return "\n".join([*lines, "", LEFT_OUT])


def _told(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        lines += [
            f"`{row['file']}:{row['line']}` {row['within']}, {row['operator']}: {row['answer']}, {row['why']}",
            "",
        ]
        lines += ["```diff", row["diff"], "```", ""]
    return lines


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


MATRIX = """# Checks that mutants need

`make mutation-matrix` asks for a second killer of each mutant that `make mutation` killed. A check is **needed** where
some mutant has no other killer; the first that was found stands here, and no further one is looked for. A check is
**redundant** where every mutant that it killed first has another killer: without it, one at a time, none survives. That
alone is no reason to remove it: a check may be there for other models, for rounding, or for an obligation that the
mutated lines say nothing of. Expected counterexamples are checks as well.
"""


def matrix(rows: Sequence[Result], asked: Mapping[str, str]) -> str:
    """docs/mutation-matrix.md. `asked`: the property of each check that reaches the mutated files."""
    first = Counter(row["killers"][0]["check"] for row in rows if not row["survived"])
    needed = {only: row for row in reversed(rows) if (only := only_killer(row))}
    lines = [MATRIX, f"## Needed: {len(needed)}", "", _row(("check", "killed first", "a mutant that it alone kills"))]
    lines.append("|---|--:|---|")
    for name, row in sorted(needed.items()):
        lines.append(_row((name, first[name], f"`{row['file']}:{row['line']}` {row['within']}, {row['operator']}")))
    spare = sorted(set(asked) - set(needed))
    lines += ["", f"## Redundant, one at a time: {len(spare)}", "", _row(("check", "killed first", "what it shows"))]
    lines.append("|---|--:|---|")
    lines += [_row((name, first[name], asked[name].replace("|", "\\|"))) for name in spare]
    return "\n".join([*lines, ""])


def only_killer(row: Result) -> str:
    """The check that alone kills a mutant, where a second killer was asked for and there is none; otherwise empty."""
    names = {k["check"] for k in row["killers"]}
    return str(names.pop()) if row["wanted"] > 1 and len(names) == 1 else ""
