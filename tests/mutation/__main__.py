"""Mutants of the models by machine: `python -m tests.mutation`. 0 where no mutant survives that is not equivalent.

Every mutant is run against the checks of the contracts that reach its line, until one answers otherwise than on the
unmutated models. `--json` keeps the answers: a later run asks only what changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradproof.core.workspace import Workspace
from gradproof.report.studies import MUTATION, sources_of
from tests.mutation.elsewhere import Elsewhere
from tests.mutation.known import known
from tests.mutation.mutants import CodeMutant
from tests.mutation.page import HOWS, document, markdown, matrix, verdict
from tests.mutation.subjects import SIX, files, read
from tests.mutation.sweep import Memory, Pool, Result, Sweep, all_mutants, drawn


def said(mutant: CodeMutant, row: Result) -> str:
    """A result as text: a line for a mutant that was killed, its diff as well for one that survived."""
    place = f"{mutant.path}:{mutant.line} {mutant.within} {mutant.operator}"
    if not row["survived"]:
        first = row["killers"][0]
        return f"killed    {place}: {', '.join(k['check'] for k in row['killers'])} ({first['how']}) {row['seconds']} s"
    diff, told = row["diff"].replace("\n", "\n    "), row["equivalence"]
    word = "SURVIVED" if verdict(row) == "survived" else "equal"
    return (
        f"{word:9} {place}: {row['tried']} checks, {row['seconds']} s\n    {diff}\n    {told['answer']}: {told['why']}"
    )


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=Path.cwd())
    parser.add_argument("--only", nargs="+", metavar="FILE", help="default: the six models")
    parser.add_argument("--all", action="store_true", help="every plain model")
    parser.add_argument("--within", default="", help="only definitions that begin so, as AdamW.step")
    parser.add_argument("--operator", default="", help="only operators that begin so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a dask cluster, instead of --jobs here")
    parser.add_argument("--json", type=Path, help="keep the answers here, between runs")
    parser.add_argument("--sample", type=int, help="only so many, drawn by --seed")
    parser.add_argument("--seed", default="0")
    parser.add_argument(
        "--known", action="store_true", help="files that reports/mutation.json lists; its survivors do not fail"
    )
    parser.add_argument(
        "--matrix", type=Path, metavar="PAGE", help="second killers too; write which checks no mutant needs, one by one"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants, run nothing")
    parser.add_argument("--document", type=Path, help="write reports/mutation.json here")
    parser.add_argument("--out", type=Path, help="write docs/mutation.md here")
    parser.add_argument("--quiet", action="store_true", help="survivors alone")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    given = options().parse_args(words)
    tree = read(given.workspace.resolve())
    listed = known(tree.root) if given.known else None
    paths = given.only or (files(tree) if given.all else list(SIX))
    if listed is not None and (unswept := [path for path in paths if path not in listed.files]):
        print(f"{', '.join(unswept)}: not in reports/mutation.json. Run: make mutation")
        return 2
    if (given.document or given.out) and (given.within or given.operator or given.sample is not None or listed):
        print("--document and --out tell of whole files: leave out --within, --operator, --sample and --known")
        return 2
    made = [m for m in all_mutants(tree, paths) if m.within.startswith(given.within)]
    made = [m for m in made if m.operator.startswith(given.operator)]
    if given.sample is not None:
        made = drawn(made, given.sample, given.seed)
    if given.list:
        print("\n".join(f"{m.path}:{m.line} {m.within} {m.operator}" for m in made))
        return 0
    with Elsewhere(tree.root, given.scheduler) if given.scheduler else Pool(given.jobs) as pool:
        sweep = Sweep(tree, pool, Memory(given.json), known=listed)
        rows = swept(sweep, paths, made, given.quiet)
        if given.matrix:
            asked = {name: tree.checks[name].title for name in sweep.bases}
            found = {row["key"]: row for row in rows} | {row["key"]: row for _, row in sweep.second_killers(made)}
            given.matrix.write_text(matrix(list(found.values()), asked), encoding="utf-8")
    here = Workspace(tree.root, tree.root / "reports")
    seconds = {name: base["cpu"] for name, base in sweep.bases.items()}
    if not sweep.red:
        written(given.document, given.out, document(rows, sources_of(MUTATION, here), seconds))
    for name in sorted(sweep.red):
        print(f"{name} is not green on the unmutated models, and kills nothing: no document is written")
    left = [row for row in rows if verdict(row) == "survived" and not (listed and row["key"] in listed.kept)]
    print(f"{len(left)} survivors{' that are not listed' if listed else ''}")
    return int(bool(left or sweep.red))


def swept(sweep: Sweep, paths: Sequence[str], made: Sequence[CodeMutant], quiet: bool) -> list[Result]:
    """The rows of the mutants, told as they come."""
    began, rows = time.monotonic(), []
    sweep.measure(paths)
    for mutant, row in sweep.results(made):
        rows.append(row)
        if verdict(row) == "survived" or not quiet:
            print(said(mutant, row), flush=True)
    print(summary(rows, time.monotonic() - began))
    return rows


def written(data: Path | None, page: Path | None, found: dict[str, Any]) -> None:
    """Write the document and its page, where they are wanted."""
    if data is not None:
        data.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if page is not None:
        page.write_text(markdown(found), encoding="utf-8")


def summary(rows: Sequence[Result], seconds: float) -> str:
    """One line a file."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row["file"], verdict(row)] += 1
    lines = [f"{'file':40} mutants refuted not-green equivalent survived"]
    for path in sorted({row["file"] for row in rows}):
        n = {how: counts[path, how] for how in HOWS}
        lines.append(f"{path:40} {sum(n.values()):7} {' '.join(f'{v:7}' for v in n.values())}")
    cpu = sum(row["cpu"] for row in rows)
    return "\n".join([*lines, f"{len(rows)} mutants in {seconds:.0f} s; to answer them took {cpu:.0f} s of CPU time"])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a solver's answer may depend on the order of a set
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
