"""SMT-LIB 2 texts, one solver, one process that is killed at its time limit.

`python -m gradproof.rounding.solvers SOLVER` reads JSON (texts, seconds for each, whether the first answer that is not
unsat ends it) and prints one answer a line, as each comes. What a killed process had printed can be read. Bitwuzla and
cvc5 share the float library SymFPU, so they are one family; z3 has its own. An answer counts only as `unsat` or `sat`;
a solver that is missing, crashes, is killed or prints anything else gives no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

from gradproof.core.workspace import PACKAGE

FAMILIES: Mapping[str, str] = {"bitwuzla": "symfpu", "cvc5": "symfpu", "z3": "z3"}
PACKAGES: Mapping[str, str] = {"bitwuzla": "bitwuzla", "cvc5": "cvc5", "z3": "z3-solver"}
LONG, KILLED = 10**6, "killed after"
ANSWERS = ("unsat", "sat", "unknown", "timeout", "error")


@dataclass(frozen=True, slots=True)
class SolverReply:
    """What a solver said of some texts: `unsat` only where it said so of every one."""

    solver: str
    version: str
    answer: str
    seconds: float
    texts: int
    reason: str = ""


def version_of(solver: str) -> str:
    """The installed version of a solver, or an empty text. Raises KeyError for a solver that is not known."""
    try:
        return metadata.version(PACKAGES[solver])
    except metadata.PackageNotFoundError:
        return ""


def decide(texts: Sequence[str], solver: str, seconds: float) -> SolverReply:
    """The answer of one solver to texts that must all be unsat, within `seconds` in all, in a process of its own.

    Raises KeyError for a solver that is not known, ValueError for no text.
    """
    if not texts:
        raise ValueError("no text was asked")
    version, began = version_of(solver), time.monotonic()
    if not version:
        return SolverReply(solver, "", "error", 0.0, len(texts), "it is not installed")
    answers, ended = answered(texts, solver, seconds, alike=True)
    answer, reason = agreed(answers, len(texts), ended)
    return SolverReply(solver, version, answer, round(time.monotonic() - began, 2), len(texts), reason)


def answered(
    texts: Sequence[str], solver: str, seconds: float, each: float = LONG, *, alike: bool = False
) -> tuple[list[str], str]:
    """The answers that came within `seconds` in all, and `each` for one, in order; and why no more came, or nothing.

    `alike`: the first answer that is not `unsat` is the last.
    """
    places = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p)}
    command = [sys.executable, "-P", "-m", "gradproof.rounding.solvers", solver]
    asked = json.dumps({"texts": list(texts), "seconds": each, "alike": alike}).encode()
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=seconds, env=environ, check=False)
        printed = done.stdout
        ended = done.stderr.decode(errors="replace").strip()[-200:] or "it crashed" if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        printed, ended = late.stdout or b"", f"{KILLED} {seconds:g} s"
    whole = printed.decode(errors="replace").rpartition("\n")[0]
    return whole.split("\n") if whole else [], ended


def agreed(answers: Sequence[str], texts: int, ended: str) -> tuple[str, str]:
    """The one answer to all texts, and its reason: anything but one answer a text is an error."""
    if ended:
        return ("timeout" if ended.startswith(KILLED) else "error"), ended
    for i, answer in enumerate(answers):
        if answer != "unsat":
            return (answer, f"text {i + 1} of {texts}") if answer in ANSWERS else ("error", f"it printed {answer!r}")
    return ("unsat", "") if len(answers) == texts else ("error", f"{len(answers)} answers to {texts} texts")


def _bitwuzla(text: str, seconds: float) -> str:  # `seconds` is left to the limit of its process
    solver = import_module("bitwuzla")
    parser = solver.Parser(solver.TermManager(), solver.Options())
    parser.parse(text.replace("(check-sat)", ""), parse_only=False, parse_file=False)
    return str(parser.bitwuzla().check_sat())


def _cvc5(text: str, seconds: float) -> str:
    solver = import_module("cvc5")
    engine = solver.Solver(solver.TermManager())
    engine.setOption("fp-exp", "true")
    engine.setOption("tlimit-per", str(int(seconds * 1000)))
    parser = solver.InputParser(engine)
    parser.setStringInput(solver.InputLanguage.SMT_LIB_2_6, text, "text")
    symbols, said = parser.getSymbolManager(), ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(engine, symbols))
    return said.strip()


def _z3(text: str, seconds: float) -> str:
    from gradproof.arith import smt

    return smt.decide_text(text, seconds)


CALLS: Mapping[str, Callable[[str, float], str]] = {"bitwuzla": _bitwuzla, "cvc5": _cvc5, "z3": _z3}
"""Solver -> its answer to a text, for which it has so many seconds."""


def main(solver: str) -> None:
    """Answer the texts on standard input, one line each."""
    asked = json.loads(sys.stdin.read())
    for text in asked["texts"]:
        try:
            said = CALLS[solver](text, asked["seconds"])
        except Exception as error:
            said = f"error: {type(error).__name__}: {error}"
        print(" ".join(said.split())[:200] or "error: it said nothing", flush=True)
        if asked["alike"] and said != "unsat":
            break


if __name__ == "__main__":
    main(sys.argv[1])
