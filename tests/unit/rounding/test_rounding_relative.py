"""The relative form and the norm: the inductions, what makes them fail, and brute force in tiny formats."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from gradproof.arith.formats import FORMATS, Format
from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Expect, Kind, Layer, Outcome, Reach
from gradproof.execution.methods import smt as smt_run
from gradproof.rounding.accumulation import Setting, error_of
from gradproof.rounding.bound import relative_bound
from models.accumulation.rounding_steps import LAYOUTS, MEANS
from symbolic.accumulation import rounding_norm, rounding_relative

NORM = "symbolic.accumulation.rounding_norm:norm"
CASES = {
    "symbolic.accumulation.rounding_relative:relative": ("Means", "EmptyMeans", "MEANS", tuple(MEANS)),
    NORM: ("Layout", "EmptyLayout", "LAYOUTS", tuple(LAYOUTS)),
}
TINY = {"t3": Format("t3", 5, 3, -1, 3), "t2": Format("t2", 5, 2, -1, 2)}


class Names:
    """A workspace of importable names."""

    def resolve(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)


def proved(harness: str, subject: str = "", limit: float = 60.0) -> Finding:
    """The finding of a harness on its reference, or on another subject without controls."""
    reference, empty, mutants, named = CASES[harness]
    bounds = {"transitions": 1, "branches": 12, "paths": 64} | ({"elements": 3} if harness == NORM else {})
    home = "models.accumulation.rounding_steps"
    return smt_run.run(
        Check(
            "T-1", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "a test", harness, f"{home}:{subject or reference}",
            strategy="exhaustive", mutants=() if subject else named, time_limit=limit, expect=Expect.HOLDS,
            bounds=tuple(Bound(n, v, "a test") for n, v in bounds.items()),
            params={"empty": f"{home}:{empty}", "mutants": f"{home}:{mutants}", "subjects": {},
                    "controls_off": bool(subject)},
        ),
        Names(),
    )  # fmt: skip


@pytest.mark.parametrize("harness", CASES)
def test_it_holds_for_every_n_and_every_mutant_is_refuted(harness: str) -> None:
    found = proved(harness)
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.BOUNDED if harness == NORM else Reach.ALL_INPUTS)
    assert {c.name: c.killed for c in found.controls} == dict.fromkeys(("empty body", *CASES[harness][3]), True)


def less(kept: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    return lambda n, own: kept(n, own) - Fraction(1, 4) * own


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("factor", lambda n, own: n - 1),  # the quotients are free
        ("factor", lambda n, own: n - 1 + Fraction(own, 2)),  # a quotient costs half
        ("factor", lambda n, own: Fraction(9, 10) * (n - 1 + own)),
        ("rounded", lambda k, drawn, error, reach: lambda z: z + drawn[0]),
    ],
)
def test_less_room_is_refuted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(rounding_relative, name, wrong)
    found = proved("symbolic.accumulation.rounding_relative:relative", "Means")
    assert found.counterexample is not None
    assert found.outcome in (Outcome.REFUTED, Outcome.SPURIOUS)


@pytest.mark.parametrize(
    ("name", "wrong", "label"),
    [
        ("at_most", lambda k, one, two: one <= Fraction(9, 10) * two, "at most sqrt(d) B"),
        ("euclidean", lambda parts: sum(abs(x) for x in parts), "at most sqrt(d) B"),
    ],
)
def test_a_smaller_norm_is_refuted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any, label: str) -> None:
    """A bound that is a tenth smaller, and the sum of the errors for their norm."""
    monkeypatch.setattr(rounding_norm, name, wrong)
    found = proved(NORM, "Layout")
    assert found.counterexample is not None
    assert found.counterexample["label"] == label


@pytest.mark.parametrize("scale", ["divide", "multiply"])
@pytest.mark.parametrize(("fmt", "n"), [("t3", 2), ("t3", 3), ("t2", 3), ("t2", 4)])
def test_no_input_of_a_tiny_format_exceeds_the_relative_form(
    monkeypatch: pytest.MonkeyPatch, fmt: str, scale: str, n: int
) -> None:
    for name, made in TINY.items():
        monkeypatch.setitem(FORMATS, name, made)
    f = FORMATS[fmt]
    setting = Setting(n, buffer=fmt, scale=scale, magnitude=f.largest / 4)
    c, a = relative_bound(setting)
    half = [x for x in f.nonnegative() if x <= setting.magnitude]
    inputs = itertools.product(half, *[sorted({-x for x in half} | {*half})] * (n - 1))
    worst = max(error_of(setting, g) - c * sum(map(abs, g)) / n for g in inputs)
    assert worst <= a


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_relative_form_is_needed_to_within_a_term(n: int) -> None:
    """Gradients that are swamped one by one: the first is large, each of the others is lost (Rump 2012)."""
    f = FORMATS["fp16"]
    first = Fraction(n)
    g = [first, *[f.round(first * f.u)] * (n - 1)]
    setting = Setting(n, buffer="fp16", magnitude=first)
    c, a = relative_bound(setting)
    share = error_of(setting, g) / (sum(g) / n)
    assert c * Fraction(n - 1, n) * Fraction(99, 100) <= share <= c + a / (sum(g) / n)


def test_the_relative_form_of_rounded_inputs() -> None:
    plain, given = relative_bound(Setting(8)), relative_bound(Setting(8, inputs="fp16"))
    assert given[0] == plain[0] + (1 + plain[0]) * FORMATS["fp16"].u
    assert given[1] > plain[1]


@pytest.mark.parametrize(
    "options", [{"order": "pairwise"}, {"scale": "after"}, {"scale": "none"}, {"buffer": "fp16", "inputs": "fp32"}]
)
def test_other_settings_have_no_relative_form(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scaled before|rounded again"):
        relative_bound(Setting(8, **options))
