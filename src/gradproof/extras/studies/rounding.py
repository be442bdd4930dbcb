"""The rows of the rounding study: thresholds of a tolerance over N = 2^k, and both sides of the bound over N."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.extras.studies.sources import write
from gradproof.rounding.accumulation import Setting, error_of
from gradproof.rounding.bound import answer, proved, replayed, thresholds, witness
from gradproof.rounding.lattice import exhaustive

# -- The command: `python -m gradproof.extras.studies.rounding --out reports/rounding.json [--most N]`.
CLAUSE = "GA-EQ-001"
DTYPES = ("fp32", "fp16", "bf16")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m gradproof.extras.studies.rounding", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON document here")
    parser.add_argument("--most", type=int, default=4096, help="the largest N, a power of two (default 4096)")
    return parser.parse_args(arguments)


def tolerances() -> dict[str, str]:
    """The tolerances that the contract states of the accumulated gradient, by dtype. Raises GradproofError GP218."""
    from gradproof.contract.model import load
    from gradproof.core.workspace import Workspace, reference

    root = reference()
    for path in [] if root is None else Workspace(root, root / "reports").contracts():
        stated = [o for o in load(path).obligations if o.id == CLAUSE]
        found: dict[str, str] = {t.dtype: t.value for o in stated for t in o.tolerance if t.dtype in DTYPES}
        if len(found) == len(DTYPES):
            return found
    wanted = f"{CLAUSE} with a tolerance for {', '.join(DTYPES)}"
    raise GradproofError("GP218", "no contract that states the tolerances", wanted, "run it in a whole checkout")


def document(most: int, stated: Mapping[str, str], say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """The study, as JSON values. Raises GradproofError GP411 for an N that is no power of two, and LemmaRefused."""
    from gradproof.core.schemas.base import ROUNDING
    from gradproof.evidence.record import now
    from gradproof.evidence.source_digests import sources
    from gradproof.rounding.bound import ASSUMED

    if most < 1 or most & (most - 1):
        raise GradproofError("GP411", f"--most {most}", "a power of two", "such as 4096 or 65536")
    began, digests = time.monotonic(), sources()
    thresholds, drawn, contracts = [], [], set[str]()
    for asked in questions(stated):
        thresholds.append(threshold(asked, most))
        say(summary(thresholds[-1]))
    for buffer in DTYPES:
        made, rests = series(buffer, most)
        drawn.append(made)
        contracts |= rests
        say(f"{buffer}: {len(made['points'])} points")
    if sources() != digests:
        raise GradproofError("GP219", "a source file changed under the study", "files that stay", "run it again")
    return {
        "schema": ROUNDING, "gradproof": __version__, "made_at": now(), "seconds": round(time.monotonic() - began, 1),
        "most": most, "magnitude": "1", "scale": "divide", "assumes": list(ASSUMED), "contracts": sorted(contracts),
        "thresholds": thresholds, "series": drawn, "sources": digests,
    }  # fmt: skip


def summary(row: Mapping[str, Any]) -> str:
    """One row of the table on a line."""
    sides = [f"{row[k]['n']} ({row[k]['by']})" if row[k] else "none" for k in ("true", "false")]
    where = f"{row['gradients']} in {row['buffer']}, {row['order']}, {row['tolerance']}"
    return f"{where}: true up to {sides[0]}, undecided {row['undecided'] or 'none'}, false from {sides[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, write, and return the exit code."""
    from gradproof.core.files import writable
    from gradproof.core.schemas.base import RoundingStudy
    from gradproof.rounding.lemma_store import LemmaRefused

    o = options(sys.argv[1:] if arguments is None else arguments)
    try:
        writable(o.out)
        data = document(o.most, tolerances(), lambda line: print(line, file=sys.stderr, flush=True))
        write(o.out, RoundingStudy.model_validate_json(json.dumps(data)))
    except GradproofError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    except LemmaRefused as error:
        print(f"no study: a step contract is not proved: {error}", file=sys.stderr)
        return EXIT_CODE[Exit.OPEN]
    print(f"{o.out}: {len(data['thresholds'])} thresholds, {len(data['series'])} series, {data['seconds']} s")
    return EXIT_CODE[Exit.MET]


ORDERS = ("sequential", "pairwise", "blocked:32", "kahan", "neumaier", "any")
# Gradients, buffer, and the dtypes whose tolerances are asked about: a 16-bit buffer is held to those of both.
FORMS = (
    ("fp32", "fp32", ("fp32",)),
    ("fp16", "fp32", ("fp16",)),
    ("bf16", "fp32", ("bf16",)),
    ("fp16", "fp16", ("fp16", "bf16")),
    ("bf16", "bf16", ("bf16", "fp16")),
)
NARROW = ("fp16", "bf16")
MOST_EXHAUSTED = 64  # terms; a lattice of more takes minutes
EVERY_N, MOST_POINTS = 64, 4096


@dataclass(frozen=True)
class Question:
    """One row to be: gradients in a format, a buffer, an order, and a tolerance, which is that of some dtype."""

    gradients: str
    buffer: str
    order: str
    tolerance_of: str
    tolerance: Fraction
    text: str

    def setting(self, n: int) -> Setting:
        """The question at one N; gradients in the buffer's own format are its numbers and are not rounded to it."""
        return Setting(n, self.buffer, None if self.gradients == self.buffer else self.gradients, order=self.order)


def questions(tolerances: Mapping[str, str], orders: Sequence[str] = ORDERS) -> list[Question]:
    """Every row of the table. `tolerances`: by dtype, as decimal text. Raises KeyError for a dtype without one."""
    return [
        Question(gradients, buffer, order, dtype, Fraction(tolerances[dtype]), tolerances[dtype])
        for gradients, buffer, dtypes in FORMS
        for dtype in dtypes
        for order in orders
    ]


def threshold(asked: Question, most: int) -> dict[str, Any]:
    """One row of the table, as JSON values. Raises LemmaRefused where a step contract is not proved."""
    found, up_to, note = _asked(asked, most)
    first, refuted = found["undecided from"], found["false from"]
    held = found["true up to"] if first is None or (found["true up to"] or 0) < first else first // 2 or None
    true = None if held is None else _true(asked, held)
    false = None if refuted is None else _false(asked, refuted)
    true, false, note = _exhausted(asked, true, false, up_to, note)
    low, high = true["n"] if true else 0, false["n"] if false else 2 * up_to
    between = [2**k for k in range(up_to.bit_length()) if low < 2**k < high]
    return {
        "gradients": asked.gradients, "buffer": asked.buffer, "order": asked.order,
        "tolerance": asked.text, "tolerance_of": asked.tolerance_of, "asked": up_to,
        "true": true, "undecided": between, "false": false, "note": note,
    }  # fmt: skip


def _asked(asked: Question, most: int) -> tuple[dict[str, int | None], int, str]:
    """Thresholds up to the largest N = 2^k that has a bound at all, and why it is no larger."""
    note = ""
    while True:
        try:
            return thresholds(asked.setting(1), asked.tolerance, most), most, note
        except (ValueError, OverflowError) as error:
            if most == 1:
                raise
            most, note = most // 2, note or f"asked no further: {error}"


def _true(asked: Question, n: int) -> dict[str, Any]:
    bound, certificate, _ = proved(asked.setting(n))
    return {"n": n, "by": "every order" if certificate is None else "certificate", "error": str(bound)}


def _false(asked: Question, n: int) -> dict[str, Any]:
    own = asked.setting(n)
    return {"n": n, "by": "witness", "error": str(error_of(replayed(own), witness(own)))}


Side = dict[str, Any] | None


def _exhausted(asked: Question, true: Side, false: Side, up_to: int, note: str) -> tuple[Side, Side, str]:
    """Exhaustion decides the undecided of a 16-bit buffer one by one, until it cannot."""
    n = 2 * true["n"] if true else 1
    while asked.buffer in NARROW and n <= up_to and (false is None or n < false["n"]):
        if n > MOST_EXHAUSTED:
            return true, false, note or f"exhaustion is tried up to N = {MOST_EXHAUSTED}"
        try:
            worst = exhaustive(asked.setting(n)).worst
        except ValueError:
            return true, false, note or "exhaustion has no lattice for this order"
        except OverflowError as error:
            return true, false, note or f"exhaustion cannot decide: {error}"
        side = {"n": n, "by": "exhaustion", "error": str(worst)}
        if worst > asked.tolerance:
            return true, side, note
        true, n = side, 2 * n
    return true, false, note


def series(buffer: str, most: int) -> tuple[dict[str, Any], set[str]]:
    """Both sides at N = 2^k, in fp32 at every small N too; and the step contracts that the bounds rest on."""
    powers = {2**k for k in range(min(most, MOST_POINTS).bit_length())}
    sizes = powers | set(range(1, min(most, EVERY_N) + 1)) if buffer == "fp32" else powers
    points, contracts = [], set[str]()
    for n in sorted(sizes):
        made = answer(Setting(n, buffer))
        ratio = None if made.ratio is None else float(made.ratio)
        points.append({"n": n, "bound": str(made.bound), "attained": str(made.attained), "ratio": ratio})
        contracts |= set(made.contracts)
    return {"buffer": buffer, "order": "sequential", "points": points}, contracts


if __name__ == "__main__":
    sys.exit(main())
