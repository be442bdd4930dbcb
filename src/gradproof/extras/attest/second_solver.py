"""Another solver's answers to recorded queries, in a process that is killed at its time limit.

`python -m gradproof.extras.attest.second_solver SOLVER` reads JSON (texts, seconds for each) and prints one answer a
line. What a killed process had printed counts. Anything but sat and unsat is no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradproof.core.workspace import PACKAGE
from gradproof.execution.queries import HEAD, Query
from gradproof.rounding.solvers import CALLS, version_of

EACH = 5.0
VERDICTS = ("agree", "differ", "unknown", "not_asked")


def verdict(status: str, said: str) -> str:
    """What an answer says of z3's status: agree, differ, or unknown where either of them gave none."""
    if status not in ("sat", "unsat") or said not in ("sat", "unsat"):
        return "unknown"
    return "agree" if status == said else "differ"


def second(queries: Sequence[Query], solver: str, seconds: float) -> dict[str, Any]:
    """Solver, version, and how many queries have each verdict. An absent solver was asked nothing, and says so."""
    version = version_of(solver)
    said = answers(queries, solver, seconds) if version and queries else []
    found = Counter(verdict(q.status, a) for q, a in zip(queries, said, strict=False))
    found["not_asked"] = len(queries) - len(said)
    return {"solver": solver, "version": version or "absent", **{name: found[name] for name in VERDICTS}}


def answers(queries: Sequence[Query], solver: str, seconds: float, each: float = EACH) -> list[str]:
    """The answers that came within `seconds` in all, and `each` for one, in order.

    They are fewer than the queries where time ran out or the process crashed.
    """
    places = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p)}
    command = [sys.executable, "-P", "-m", "gradproof.extras.attest.second_solver", solver]
    asked = json.dumps({"texts": [HEAD + q.text for q in queries], "seconds": each})
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=seconds, env=environ, check=False
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
    whole = printed.rpartition("\n")[0]
    return whole.split("\n")[: len(queries)] if whole else []


def main(solver: str) -> None:
    """Answer the texts on standard input, one line each, as each answer comes."""
    asked = json.loads(sys.stdin.read())
    for text in asked["texts"]:
        try:
            said = CALLS[solver](text, asked["seconds"])
        except Exception as error:
            said = f"error: {type(error).__name__}: {error}"
        print(" ".join(said.split())[:200] or "error: it said nothing", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
