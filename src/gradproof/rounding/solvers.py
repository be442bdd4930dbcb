"""One SMT-LIB 2 text, one solver, one process that is killed at its time limit.

`python -m gradproof.rounding.solvers SOLVER` reads a JSON list of texts and prints a JSON list of answers. Bitwuzla and
cvc5 share the float library SymFPU, so they are one family; z3 has its own. An answer counts only as `unsat` or
`sat`; a solver that is missing, crashes, is killed or prints anything else gives no answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

FAMILIES: Mapping[str, str] = {"bitwuzla": "symfpu", "cvc5": "symfpu", "z3": "z3"}
PACKAGES: Mapping[str, str] = {"bitwuzla": "bitwuzla", "cvc5": "cvc5", "z3": "z3-solver"}
ANSWERS = ("unsat", "sat", "unknown", "timeout", "error")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a solver said of some texts: `unsat` only where it said so of every one."""

    solver: str
    version: str
    answer: str
    seconds: float
    texts: int
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def version_of(solver: str) -> str:
    """The installed version of a solver, or an empty text. Raises KeyError for a solver that is not known."""
    try:
        return metadata.version(PACKAGES[solver])
    except metadata.PackageNotFoundError:
        return ""


def decide(texts: Sequence[str], solver: str, seconds: float) -> Reply:
    """The answer of one solver to texts that must all be unsat, within `seconds` in all, in a process of its own.

    Raises KeyError for a solver that is not known, ValueError for no text.
    """
    if not texts:
        raise ValueError("no text was asked")
    version, began = version_of(solver), time.monotonic()
    if not version:
        return Reply(solver, "", "error", 0.0, len(texts), "it is not installed")
    answer, reason = _ask_child(texts, solver, seconds)
    return Reply(solver, version, answer, round(time.monotonic() - began, 2), len(texts), reason)


def _ask_child(texts: Sequence[str], solver: str, seconds: float) -> tuple[str, str]:
    places = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p)}
    command = [sys.executable, "-P", "-m", "gradproof.rounding.solvers", solver]
    asked = json.dumps(list(texts)).encode()
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=seconds, env=environ, check=False)
    except subprocess.TimeoutExpired:
        return "timeout", f"killed after {seconds:g} s"
    if done.returncode != 0:
        return "error", done.stderr.decode(errors="replace").strip()[-200:]
    return _read(done.stdout, len(texts))


def _read(printed: bytes, texts: int) -> tuple[str, str]:
    """The answer in what a child printed: anything but one answer a text is an error."""
    try:
        answers = json.loads(printed)
    except ValueError:
        return "error", "it printed no JSON"
    if not isinstance(answers, list) or not all(isinstance(a, str) and a in ANSWERS for a in answers):
        return "error", f"it printed {answers!r}"[:200]
    bad = [a for a in answers if a != "unsat"]
    if not bad and len(answers) != texts:
        return "error", f"{len(answers)} answers to {texts} texts"
    return (bad[0], f"text {answers.index(bad[0]) + 1} of {texts}") if bad else ("unsat", "")


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
LONG = 10**6


def main(solver: str) -> None:
    """Answer the texts on standard input, up to the first that is not unsat."""
    answers: list[str] = []
    for text in json.loads(sys.stdin.read()):
        answers.append(CALLS[solver](text, LONG))
        if answers[-1] != "unsat":
            break
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
