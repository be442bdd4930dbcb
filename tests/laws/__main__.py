"""Writes the table of laws: `python -m tests.laws --out docs/laws.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from gradproof.shadow.follow.laws import LAWS, RULES
from tests.laws.covered import REASONS, lawless
from tests.laws.examples import COMPLEX, UNTRIED
from tests.laws.proofs import Proof, proofs
from tests.laws.trials import Trial, tried

SHOWN = 2
"""Shapes of proofs that a row names."""
INTRODUCTION = """# Laws of operators

`check` and `watch` follow whole tensors. What an operator does to them is a law: which axes it treats row by row, over
which axes it sums, and in which arguments it is linear; a *rule* works the value out (sums, views, losses). `make laws`
writes this table.

- **Tried.** Arguments are cut into parts, each part gets a weight, and what the law says is compared with the real
  kernel on the whole, in float64.
- **Proved.** The same at small shapes for all real numbers: both sides are one polynomial in each element, with
  functions such as `exp` as unknowns. torch's own decomposition of the operator is used, or a definition from its
  documentation; that it is what the kernel computes is assumed, and compared on numbers. Labels and indices have the
  numbers of the example. Where an operator is linear with known shares (pools, interpolation, pads), these are read
  from the kernel. Laws of complex numbers are tried alone.
- **Mutants.** A mutant claims more than its law: one linear argument more, or every axis row by row. Each that is false
  fails by numbers, and fails to be proved.

A law is assumed at other shapes than those, and on other devices: it is a part of what every proof rests on. Operators
that are not in this table are uninterpreted functions of whole tensors; where samples meet in one, a run with numbers
[tries it](own-loop.md#operators-of-your-own) on the kernel.
"""
HEAD = "| operator | kind | linear in | cases tried | proved | mutants refuted, not proved |\n|---|---|---|---|---|---|"
LEFT = "## Not tried\n\n| operator | why |\n|---|---|"
LAWLESS = "## Operators without a law\n\n| operator | why |\n|---|---|"


def row(trial: Trial, proof: Proof | None) -> str:
    """One operator of the table."""
    law = LAWS.get(trial.name)
    linear = "" if law is None else ", ".join(map(str, law.linear))
    proof = proof or Proof(trial.name)
    shapes = list(dict.fromkeys(proof.shapes))
    shown = "; ".join(shapes[:SHOWN]) + (" ..." if len(shapes) > SHOWN else "")
    proved = f"{proof.cases}, at {shown}" if proof.cases and not proof.why else f"no: {proof.why[:1]}"
    proved = "tried alone: complex numbers" if trial.name in COMPLEX else proved
    killed = "" if law is None else f"{len(trial.killed)}, {len(proof.fell)}"
    kind = "rule" if trial.name in RULES else "law"
    return f"| `{trial.name}` | {kind} | {linear} | {trial.cases} | {proved} | {killed} |"


def markdown(trials: dict[str, Trial], proved: dict[str, Proof]) -> str:
    """The table of docs/laws.md."""
    rows = [row(trial, proved.get(name)) for name, trial in sorted(trials.items()) if trial.cases]
    left = sorted(name for name in UNTRIED if name in LAWS or name in RULES)
    why = [f"| `{name}` | {UNTRIED[name]} |" for name in left]
    none = [f"| `{name}` | {REASONS[name]} |" for name in lawless()]
    return "\n".join([INTRODUCTION, HEAD, *rows, "", LEFT, *why, "", LAWLESS, *none, ""])


def main() -> int:
    """Write docs/laws.md, or print what is wrong."""
    trials, proved = tried(), proofs()
    wrong = [f"{trial.name}: {text}" for trial in trials.values() for text in trial.wrong]
    wrong += [f"{proof.name}: not proved: {text}" for proof in proved.values() for text in proof.why]
    print("\n".join(wrong), end="\n" if wrong else "")
    cases = sum(trial.cases for trial in trials.values()), sum(proof.cases for proof in proved.values())
    print(f"{len(trials)} operators, {cases[0]} cases tried, {cases[1]} proved, {len(wrong)} wrong")
    if "--out" in sys.argv:
        Path(sys.argv[sys.argv.index("--out") + 1]).write_text(markdown(trials, proved), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
