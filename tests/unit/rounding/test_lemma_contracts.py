"""The promises of contracts.py on tiny formats, by brute force in exact rationals; wrong results break each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import pytest

from gradproof.arith.formats import Format
from gradproof.arith.soft import near_sqrt
from gradproof.rounding.step_contracts import (
    ADD_FORMS,
    EXACT_RESULT,
    LEMMAS,
    ROUND_FORMS,
    SQRT_FORMS,
    THREE,
    Form,
    Step,
    lemma_named,
    premises,
)

TINY = Format("tiny", 6, 3, -1, 2)
SMALL = Format("small", 7, 4, -2, 1)
FORMATS = [TINY, SMALL]


def numbers(f: Format) -> list[Fraction]:
    """Every finite number, both signs."""
    positive = list(f.nonnegative())
    return [-x for x in positive[:0:-1]] + positive


def step(f: Format, z: Fraction, s: Fraction = Fraction(0), x: Fraction = Fraction(0)) -> Step | None:
    """A correctly rounded step, or None where it overflows."""
    try:
        return Step(f, z, f.round(z), s, x)
    except OverflowError:
        return None


@cache
def additions(f: Format) -> tuple[Step, ...]:
    """Every sum of two numbers that is finite."""
    made = (step(f, s + x, s, x) for s, x in product(numbers(f), repeat=2))
    return tuple(c for c in made if c is not None)


@cache
def reals(f: Format) -> tuple[Step, ...]:
    """Every multiple of an eighth of the smallest subnormal, and odd fractions between them."""
    unit = f.tiny / 8
    halves = [z for k in range(int(f.largest / unit) + 9) for z in (k * unit, (k + Fraction(1, 3)) * unit)]
    return tuple(c for z in halves for sign in (1, -1) if (c := step(f, sign * z)) is not None)


@cache
def results(f: Format) -> tuple[Step, ...]:
    """Products, quotients, fused products and roots of numbers, correctly rounded; each exact result once."""
    held = numbers(f)
    exact = {z for a, b in product(held, repeat=2) for z in (a * b, *([a / b] if b else []))}
    exact |= {a * b + c for a, b, c in product(held[::2], held[::3], held[::5])}
    roots = [Step(f, near_sqrt(a), f.round(near_sqrt(a))) for a in f.nonnegative()]
    return (*(c for z in exact if (c := step(f, z)) is not None), *roots)


@pytest.mark.parametrize("f", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("form", ADD_FORMS)
def test_every_sum_keeps_the_promises_of_addition(f: Format, form: str) -> None:
    made = list(additions(f))
    assert len(made) > 1000
    assert all(ADD_FORMS[form].holds(c) for c in made)


@pytest.mark.parametrize("f", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("form", ROUND_FORMS)
def test_every_rounding_keeps_the_promises_of_rounding(f: Format, form: str) -> None:
    assert all(ROUND_FORMS[form].holds(c) for c in reals(f))
    assert all(ROUND_FORMS[form].holds(c) for c in results(f))


def broken(forms: Mapping[str, Form], made: Sequence[Step]) -> set[str]:
    """Which promises some step breaks."""
    return {name for name, form in forms.items() if not all(form.holds(c) for c in made)}


def test_a_wrong_result_breaks_every_promise() -> None:
    held = [c for c in additions(TINY) if c.z >= 0]
    near = [Step(TINY, c.z, t, c.s, c.x) for c in held for t in (c.t + TINY.spacing(c.t), Fraction(0))]
    assert broken(ADD_FORMS, near) == set(ADD_FORMS)
    assert broken(ROUND_FORMS, near) == set(ROUND_FORMS)


def test_truncation_is_not_taken_for_rounding() -> None:
    cut = [Step(TINY, c.z, min(c.t, (c.z / TINY.spacing(c.z)).__floor__() * TINY.spacing(c.z))) for c in reals(TINY)]
    assert broken(ROUND_FORMS, [c for c in cut if c.z >= 0]) == {"half-ulp", "relative", "subnormal"}


def test_half_the_true_error_is_too_little() -> None:
    made = list(additions(TINY))
    assert any(2 * c.error > TINY.half_ulp(c.z) for c in made)
    assert any(2 * c.error > TINY.u * abs(c.z) for c in made)
    assert any(2 * c.error > min(abs(c.s), abs(c.x)) for c in made)
    assert any(4 * c.error > TINY.tiny for c in reals(TINY) if abs(c.z) < c.normal)


def test_a_multiple_of_q_that_is_too_large_is_rounded() -> None:
    """The promise of exactness has the right edge: 2^p q is exact, 2^p q + q is not."""
    q = TINY.tiny
    assert ADD_FORMS["multiples"].holds(Step(TINY, 9 * q, 8 * q, 8 * q, q))
    assert not ADD_FORMS["multiples"].holds(Step(TINY, 8 * q, 9 * q, 7 * q, q))


def test_names_and_premises() -> None:
    for name, lemma in LEMMAS.items():
        operator, fmt, form = name.split("/")
        assert (lemma.operator, lemma.fmt) == (operator, fmt)
        assert form
        assert all(p in LEMMAS and p != name for p in premises(lemma))
    for fmt in THREE:
        assert {f"add/{fmt}/{form}" for form in ADD_FORMS} <= set(LEMMAS)
        assert {f"round/{fmt}/{form}" for form in ROUND_FORMS} <= set(LEMMAS)
        for operator in EXACT_RESULT:
            forms = SQRT_FORMS if operator == "sqrt" else ROUND_FORMS
            assert {f"{operator}/{fmt}/{form}" for form in forms} <= set(LEMMAS)
    assert premises(LEMMAS["fma/fp32/half-ulp"]) == ("round/fp32/half-ulp",)


def test_an_unknown_lemma_is_named() -> None:
    with pytest.raises(KeyError, match="operators: add, convert"):
        lemma_named("add/fp8/half-ulp")
