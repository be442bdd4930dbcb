"""The rows of the rounding study: thresholds of a tolerance over N = 2^k, and both sides of the bound over N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gradproof.rounding.answer import answer, proved, thresholds, witness
from gradproof.rounding.lattice import exhaustive
from gradproof.rounding.setting import Setting, error_of

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
    return {"n": n, "by": "witness", "error": str(error_of(_one_order(own), witness(own)))}


def _one_order(setting: Setting) -> Setting:
    return replace(setting, order="sequential") if setting.order == "any" else setting


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
