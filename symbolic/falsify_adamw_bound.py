"""FALSIFY-AW-007 of adamw-kernel-v1: torch's fp32 forms against the bound that KANI-AW-009 derives for one step.

The step over the reals is exact arithmetic on the state in fp32 and on the scalars that torch computes in doubles:
1 - b1, b2, 1 - b2, 1 - rate decay, rate / (1 - b1^t), sqrt(1 - b2^t), eps. A root is cut, within 2^-100 of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

from torch import Tensor

from gradproof.harness import Case, Observed, Place, Refutation, rounded_root as root
from models.torch_adamw import Settings
from symbolic.adamw_rounding import Bounds, Scalars, bounds
from symbolic.falsify_adamw import Vectorised
from symbolic.falsify_adamw_grid import Snapshot, last, settings_of, walk

CUT = Fraction(1, 2**90)
"""What the cut root may change of an update, relatively."""


@cache
def scalars(settings: Settings, t: int) -> Scalars:
    """The scalars of step t, as torch computes them in doubles."""
    one, two = settings.betas
    first, second = 1 - one**t, 1 - two**t
    made = (1 - one, two, 1 - two, 1 - settings.rate * settings.decay, settings.rate / first, second**0.5, settings.eps)
    return Scalars(*map(Fraction, made))


def derived(state: tuple[Fraction, Fraction, Fraction, Fraction], given: Scalars) -> Bounds:
    """The step over the reals from (theta, g, m, v), v > 0 after it, each result with its bound."""
    _, g, _, v = state
    second = given.beta2 * v + given.weight2 * g * g
    made = bounds(state, given, root(second) / given.root + given.eps)
    weight, off = made.weight
    return replace(made, weight=(weight, off + CUT * (abs(weight) + abs(state[0]))))


def errors(state: Sequence[Tensor], after: Snapshot, given: Scalars) -> Iterator[tuple[str, int, float]]:
    """Name of a result, element, and its error over its bound; a result that is not finite is infinitely far."""
    results = (after.first.tolist(), after.second.tolist(), after.weight.tolist())
    for i, row in enumerate(zip(*(x.double().tolist() for x in state), strict=True)):
        p, g, m, v = map(Fraction, row)
        made = derived((p, g, m, v), given)
        for name, got, (want, off) in zip(
            ("m", "v", "theta"), (r[i] for r in results), (made.first, made.second, made.weight), strict=True
        ):
            finite = abs(got) < float("inf")
            yield name, i, float(abs(Fraction(got) - want) / off) if finite else float("inf")


class Derived(Vectorised):
    """FALSIFY-AW-007: m', v' and theta' of every form lie within the derived bounds, from every state drawn."""

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        return (-16, 2, 16)

    def reaches(self, place: Place) -> Sequence[str]:
        return ("a rounding error of more than a quarter of its bound",)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, settings = Observed(), settings_of(case, place)
        settings = replace(settings, eps=0.5) if case.seed % 2 else settings
        weight, grad, start = self.moment(case, place)
        after = last(walk(subject, settings, weight, [grad], place, start))
        most: dict[str, float] = {}
        state = (weight, grad, start.first, start.second)
        for name, i, ratio in errors(state, after, scalars(settings, case.n)):
            if not ratio <= 1:
                told = f"step {case.n}: {name} of element {i} is {ratio:.4g} times its derived bound away"
                raise Refutation(self.clause, told, {"element": i, "ratio": ratio})
            most[name] = max(ratio, most.get(name, 0.0))
        seen.rows = [row(case, place, ratio, f"adamw {case.form}: {name}") for name, ratio in most.items()]
        seen.covers |= {self.reaches(place)[0]} if max(most.values()) > 1 / 4 else set()
        return seen


def row(case: Case, place: Place, ratio: float, words: str) -> dict[str, Any]:
    """The largest error over its derived bound, as a measured row; the bound is of a step and not of a gradient."""
    return {
        "column": "end_to_end", "device": place.device, "dtype": place.dtype, "net": case.net, "n": case.n,
        "measured": ratio, "l2": None, "relative": None, "bound": None, "ratio": None, "tolerance": None,
        "note": f"{words}, error over its derived bound",
    }  # fmt: skip


within_derived_bound = Derived()
