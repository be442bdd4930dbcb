"""How far a proof reaches follows from what its harness did: each way to claim more than that is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
from toy_workspace import answer, check, recorded

from gradproof.core.check import Bound, Check, Finding, Scope
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.evidence.audit import audit
from gradproof.execution.methods import smt as smt_run
from gradproof.execution.methods.harness import Unreplayable
from gradproof.report.views import label

BY_INDUCTION = "proved for all inputs by induction"
UP_TO = "proved for every input up to the bounds"
OF_TWO_AND_THREE = "proved for all values of 2 and 3 elements by induction"
OF_TWO = "proved for all values of 2 elements by induction"
UP_TO_BY_INDUCTION = f"{UP_TO} by induction"


@pytest.mark.parametrize(
    ("scope", "reach", "words"),
    [
        (Scope(3, ("transitions",), base=1, step=1), Reach.ALL_INPUTS, BY_INDUCTION),
        (Scope(3, base=1, step=1, direct=1), Reach.ALL_INPUTS, BY_INDUCTION),
        (Scope(3, direct=1), Reach.ALL_INPUTS, "proved for all inputs"),
        (Scope(3, ("transitions",), base=0, step=1), Reach.BOUNDED, UP_TO),
        (Scope(3, ("transitions",), base=1, step=0), Reach.BOUNDED, UP_TO),
        (Scope(3, ("transitions", "elements"), base=1, step=1), Reach.BOUNDED, UP_TO_BY_INDUCTION),
        (Scope(3, ("transitions",), ("N",), base=1, step=1), Reach.BOUNDED, UP_TO_BY_INDUCTION),
        (Scope(3, ("elements",), base=1, step=1, sizes=(2,)), Reach.BOUNDED, UP_TO_BY_INDUCTION),
        (Scope(3, ("transitions",), base=1, step=1, sizes=(2, 3)), Reach.BOUNDED, OF_TWO_AND_THREE),
        (Scope(3, direct=1, sizes=(1,)), Reach.BOUNDED, "proved for all values of 1 element"),
        (
            Scope(3, base=1, step=1, fixed=("eps = 0",)),
            Reach.BOUNDED,
            "proved for every input with eps = 0 by induction",
        ),
        (
            Scope(3, direct=1, sizes=(2,), fixed=("a = 1", "b = 2")),
            Reach.BOUNDED,
            "proved for all values of 2 elements with a = 1 and b = 2",
        ),
        (Scope(3, ("transitions", "n"), base=1, step=1, fixed=("eps = 0",)), Reach.BOUNDED, UP_TO_BY_INDUCTION),
        (Scope(3, other=1, sizes=(2,)), Reach.BOUNDED, UP_TO),
        (Scope(3, base=0, step=1, direct=1), Reach.BOUNDED, UP_TO),
        (Scope(3, ("transitions",), base=1, step=1, other=1), Reach.BOUNDED, UP_TO),
        (Scope(3, other=1), Reach.BOUNDED, UP_TO),
        (Scope(0, ("transitions",), base=1, step=1), Reach.CHOSEN, "checked at 1 chosen value"),
        (Scope(0, ("n",), ("n",), 8, other=8), Reach.CHOSEN, "checked at 8 chosen values"),
    ],
)
def test_the_reach_and_its_label(scope: Scope, reach: Reach, words: str) -> None:
    assert (scope.reach, scope.label) == (reach, words)
    row = {
        "outcome": "HOLDS",
        "effect": "DISCHARGED",
        "expect": "holds",
        "reach": str(reach),
        "stats": {"scope": asdict(scope)},
    }
    assert label(row) == words


class Place:
    """A workspace of this test's objects."""

    def __init__(self, **objects: Any) -> None:
        self.objects = {"mutants": {}} | objects

    def resolve(self, name: str) -> Any:
        return self.objects[name]


def claim(*names: str) -> Check:
    bounds = {"branches": 20, "paths": 20, "transitions": 1, "n": 3}
    rows = tuple(Bound(name, value, "a test") for name, value in bounds.items() if name not in ("transitions", "n"))
    rows += tuple(Bound(name, bounds[name], "a test") for name in names)
    params = {"subjects": {"empty": "empty", "mutants": "mutants"}}
    return Check(
        "T-1", Kind.SMT, Layer.SMT, ("C",), "a test", "harness", "subject", strategy="exhaustive", bounds=rows,
        params=params,
    )  # fmt: skip


def found(harness: Callable[[Any, Any], None], *names: str) -> Finding:
    """The finding of a harness on a subject that doubles; the empty subject returns what it is given."""
    place = Place(harness=harness, subject=lambda x: x + x, empty=lambda x: x)
    finding = smt_run.run(claim(*names), place)
    if finding.outcome is Outcome.HOLDS:
        assert audit(claim(*names), recorded(claim(*names), finding).finding)[0] is Outcome.HOLDS
    return finding


def doubles(k: Any, subject: Any, x: Any) -> None:
    k.cover("positive", x > 0)
    k.check("C", k.same(subject(x), 2 * x), "doubles")


def induction(k: Any, subject: Any) -> None:
    x = k.real("x")
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x))


def direct(k: Any, subject: Any) -> None:
    x = k.real("x")
    k.direct(lambda: doubles(k, subject, x))


def beside(k: Any, subject: Any) -> None:
    """An induction, and a check that is no part of it."""
    induction(k, subject)
    k.check("C", subject(1) == 2)


def up_to_n(k: Any, subject: Any) -> None:
    """An induction at each size up to a bound."""
    k.upto("n")
    induction(k, subject)


def at_a_constant(k: Any, subject: Any) -> None:
    """An induction at one value of a subject's input."""
    y = k.real("y")
    k.scenario(Rates(y, Fraction(1, 8)))
    induction(k, subject)


def at_two_sizes(k: Any, subject: Any) -> None:
    """An induction at sizes of the harness's own choice."""
    k.choose("size", [2, 3])
    induction(k, subject)


def at_two_shapes(k: Any, subject: Any) -> None:
    """An induction at pairs of sizes."""
    k.choose("shape", [("a", 2), ("b", 3)])
    induction(k, subject)


@dataclass(frozen=True)
class Rates:
    """Inputs of a subject."""

    decay: Any
    rate: Any
    limit: float = 1.0


class Side(Enum):
    """Two cases that are all there are."""

    LEFT = 1
    RIGHT = 2


def each_side(k: Any, subject: Any) -> None:
    """An induction in every case of a few that have names."""
    k.choose("side", list(Side))
    k.choose("scaled and skipped", [(False, None), (True, "no")])
    induction(k, subject)


def at_values(k: Any, subject: Any) -> None:
    """No input at all."""
    x = k.choose("x", [1, 2, 3])
    k.cover("positive", x > 0)
    k.check("C", subject(x) == 2 * x)


def beside_an_input(k: Any, subject: Any) -> None:
    """An input that no check depends on."""
    x = k.real("x")
    k.cover("positive", x > 0)
    k.check("C", subject(3) == 6)


def by_a_decision(k: Any, subject: Any) -> None:
    """A check of a plain truth, on either side of a decision on an input."""
    x = k.real("x")
    k.cover("positive", x > 0)
    k.check("C", subject(3 if x > 0 else 4) in (6, 8))


def two_elements(k: Any, subject: Any) -> None:
    """An induction over lists of two, a length that no bound states."""
    x, y = k.reals("x", 2)
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x + y))


def two_floats_in_the_base(k: Any, subject: Any) -> None:
    """The list is drawn in the base."""
    x = k.real("x")

    def base() -> None:
        for y in k.floats("y", 2, "fp32", -1, 1):
            k.check("C", k.same(subject(y), 2 * y))

    k.inductive(base, lambda: doubles(k, subject, x))


def two_in_the_step(k: Any, subject: Any) -> None:
    """The list is drawn in the step."""
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, sum(k.reals("x", 2))))


def two_by_name(k: Any, subject: Any) -> None:
    """The elements are drawn one by one."""
    x, y = (k.real(f"x[{i}]") for i in range(2))
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x + y))


def two_by_a_number_in_the_name(k: Any, subject: Any) -> None:
    """The elements are drawn in a loop, by names without brackets."""
    x, y = tuple(k.real(f"g{t}") for t in range(2))
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x + y))


def two_by_a_function(k: Any, subject: Any) -> None:
    """The elements are drawn by a function of their number."""

    def draw(i: int) -> Any:
        return k.real(f"gradient {i} of x")

    x, y = draw(1), draw(2)
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x + y))


def two_that_have_names(k: Any, subject: Any) -> None:
    """Two numbers that are no list, though their names end with a number."""
    x, y = (k.real(name) for name in ("beta1", "beta2"))
    z, w = k.real("c1"), k.real("c2")
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, x + y + z + w))


def as_many_as_a_bound(k: Any, subject: Any) -> None:
    """The length of the list is a bound."""
    x = k.reals("x", k.bound("n"))
    k.inductive(lambda: k.check("C", subject(0) == 0), lambda: doubles(k, subject, sum(x)))


def by_a_forced_decision(k: Any, subject: Any) -> None:
    """A condition that has one side decides nothing about an input."""
    x = k.real("x")
    k.cover("positive", x > 0)
    k.check("C", subject(3 if x * x >= 0 else 4) == 6)


def at_a_pinned_number(k: Any, subject: Any) -> None:
    """An input whose range is one number."""
    doubles(k, subject, k.real("x", 2, 2))


def at_an_assumed_number(k: Any, subject: Any) -> None:
    """An input that an assumption pins, beside one that is free and that no check is about."""
    x, _ = k.int("x"), k.real("y")
    k.assume((x > 1) & (x < 3))
    doubles(k, subject, x)


def at_a_truth_that_is_assumed(k: Any, subject: Any) -> None:
    """A truth value that an assumption pins."""
    yes = k.bool("yes")
    k.assume(yes)
    k.cover("a number", subject(1) == 2)
    k.check("C", yes)
    k.check("C", subject(1) == 2)


def pinned_on_the_first_path(k: Any, subject: Any) -> None:
    """An input that one path of two pins."""
    x = k.real("x")
    if k.choose("pinned", [True, False]):
        k.assume(x == 2)
    doubles(k, subject, x)


@pytest.mark.parametrize(
    ("harness", "bounds", "words"),
    [
        (induction, ("transitions",), BY_INDUCTION),
        (each_side, ("transitions",), BY_INDUCTION),
        (direct, (), "proved for all inputs"),
        (beside, ("transitions",), UP_TO),
        (up_to_n, ("transitions", "n"), UP_TO_BY_INDUCTION),
        (at_two_sizes, ("transitions",), UP_TO_BY_INDUCTION),
        (at_two_shapes, ("transitions",), UP_TO_BY_INDUCTION),
        (two_elements, ("transitions",), OF_TWO),
        (two_floats_in_the_base, ("transitions",), OF_TWO),
        (two_in_the_step, ("transitions",), OF_TWO),
        (two_by_name, ("transitions",), OF_TWO),
        (two_by_a_number_in_the_name, ("transitions",), OF_TWO),
        (two_by_a_function, ("transitions",), OF_TWO),
        (two_that_have_names, ("transitions",), BY_INDUCTION),
        (at_a_constant, ("transitions",), "proved for every input with limit = 1.0 and rate = 1/8 by induction"),
        (as_many_as_a_bound, ("transitions", "n"), UP_TO_BY_INDUCTION),
        (by_a_forced_decision, (), "checked at 1 chosen value"),
        (at_a_pinned_number, (), "checked at 1 chosen value"),
        (at_an_assumed_number, (), "checked at 1 chosen value"),
        (at_a_truth_that_is_assumed, (), "checked at 1 chosen value"),
        (pinned_on_the_first_path, (), UP_TO),
        (lambda k, subject: doubles(k, subject, k.real("x")), (), UP_TO),
        (at_values, (), "checked at 3 chosen values"),
        (beside_an_input, (), "checked at 1 chosen value"),
        (by_a_decision, (), UP_TO),
    ],
)
def test_a_harness_is_labelled_by_what_it_did(harness: Any, bounds: tuple[str, ...], words: str) -> None:
    finding = found(harness, *bounds)
    assert finding.outcome is Outcome.HOLDS, finding.reason
    scope = Scope(**finding.stats["scope"])
    assert (finding.reach, scope.label) == (scope.reach, words)


@pytest.mark.parametrize(
    ("base", "step", "part"),
    [
        (lambda k: None, lambda k: k.check("C", k.real("y") * 0 == 0), "the base of an induction"),
        (lambda k: k.check("C", True), lambda k: None, "an inductive step"),
        (lambda k: k.check("C", True), lambda k: k.check("C", True), "an inductive step"),
    ],
)
def test_an_induction_of_which_a_part_asks_nothing_is_vacuous(base: Any, step: Any, part: str) -> None:
    def harness(k: Any, subject: Any) -> None:
        doubles(k, subject, k.real("x"))
        k.inductive(lambda: base(k), lambda: step(k))

    finding = found(harness, "transitions")
    assert (finding.outcome, finding.reason) == (Outcome.VACUOUS, f"{part} asks nothing of what is free")


def empty_base_on_a_path(k: Any, check: Callable[[], None], x: Any) -> None:
    """On one path of two the base asks nothing."""
    base = k.choose("base", ["asked", "empty"])
    k.inductive(lambda: check() if base == "asked" else None, lambda: doubles(k, lambda x: x + x, x))


def empty_second_base(k: Any, check: Callable[[], None], x: Any) -> None:
    """The second induction of two has an empty base."""
    k.inductive(check, lambda: doubles(k, lambda x: x + x, x))
    k.inductive(lambda: None, lambda: doubles(k, lambda x: x + x, k.real("z")))


@pytest.mark.parametrize("harness", [empty_base_on_a_path, empty_second_base])
def test_a_base_of_another_path_or_induction_is_no_base(harness: Any) -> None:
    def asks(k: Any, subject: Any) -> None:
        harness(k, lambda: k.check("C", subject(0) == 0), k.real("x"))

    finding = found(asks, "transitions")
    words = "the base of an induction asks nothing of what is free"
    assert (finding.outcome, finding.reason) == (Outcome.VACUOUS, words)


def test_a_base_that_asks_on_one_side_of_its_own_decision_is_one() -> None:
    def harness(k: Any, subject: Any) -> None:
        x = k.real("x")

        def base() -> None:
            if x > 0:
                k.check("C", subject(0) == 0)

        k.inductive(base, lambda: doubles(k, subject, x))

    finding = found(harness, "transitions")
    assert (finding.outcome, Scope(**finding.stats["scope"]).label) == (Outcome.HOLDS, BY_INDUCTION)


def test_a_direct_claim_that_asks_nothing_is_vacuous() -> None:
    def harness(k: Any, subject: Any) -> None:
        doubles(k, subject, k.real("x"))
        k.direct(lambda: k.check("C", subject(1) == 2))

    assert found(harness).reason == "a direct claim asks nothing of what is free"


SIZES = [
    lambda k: k.bound("n"),
    lambda k: k.upto("n"),
    lambda k: k.reals("x", 2),
    lambda k: k.floats("x", 2, "fp32", -1, 1),
]


@pytest.mark.parametrize("ask", SIZES)
def test_a_direct_claim_has_no_size(ask: Any) -> None:
    with pytest.raises(TypeError, match="what it shows is bounded"):
        found(lambda k, subject: k.direct(lambda: ask(k)), "n")


@pytest.mark.parametrize(("ask", "names"), [(ask, ("n",) if i < 2 else ()) for i, ask in enumerate(SIZES)])
def test_a_harness_that_swallows_the_refusal_of_a_size_has_a_size_still(ask: Any, names: tuple[str, ...]) -> None:
    def harness(k: Any, subject: Any) -> None:
        x = k.real("x")

        def claim() -> None:
            with suppress(TypeError, KeyError, Unreplayable):  # the last two: of a replay, which has no such numbers
                ask(k)
            doubles(k, subject, x)

        k.direct(claim)

    finding = found(harness, *names)
    assert (finding.outcome, finding.reach) == (Outcome.HOLDS, Reach.BOUNDED)


@pytest.mark.parametrize("where", ["step", "direct", "after", "through another"])
def test_an_assumption_of_one_part_does_not_hold_in_another(where: str) -> None:
    """The claim is false where x <= 4: the base assumed more, of an input that the rest asks about."""

    def harness(k: Any, subject: Any) -> None:
        x, y = k.real("x"), k.real("y")
        k.cover("large", x > 6)

        def claim() -> None:
            if where == "through another":
                k.assume(y == x)
            k.check("C", subject(y if where == "through another" else x) > 8)

        def base() -> None:
            k.assume(x > 5)
            k.check("C", k.same(subject(x), 2 * x))

        k.inductive(base, claim if where in ("step", "through another") else lambda: doubles(k, subject, y))
        if where == "direct":
            k.direct(claim)
        elif where == "after":
            claim()

    finding = found(harness, "transitions")
    assert finding.outcome is Outcome.ERROR
    assert finding.reason.startswith("'x' is asked about where another part of the proof assumed something of it")


def test_a_part_that_raises_is_over() -> None:
    """What is asked after a claim that raised is no part of it."""

    def harness(k: Any, subject: Any) -> None:
        x = k.real("x")

        def raises() -> None:
            k.check("C", k.same(subject(x), 2 * x))
            raise LookupError

        with pytest.raises(LookupError):
            k.direct(raises)
        doubles(k, subject, x)

    scope = Scope(**found(harness).stats["scope"])
    assert (scope.direct, scope.other, scope.reach) == (1, 1, Reach.BOUNDED)


@pytest.mark.parametrize("pinned", [lambda k: k.real("y", 1, 1), lambda k: assumed(k, k.real("y"))])
def test_a_step_or_a_claim_about_a_pinned_number_asks_nothing(pinned: Any) -> None:
    def harness(k: Any, subject: Any) -> None:
        doubles(k, subject, k.real("x"))
        k.direct(lambda: k.check("C", k.same(subject(pinned(k)), 2)))

    assert found(harness).reason == "a direct claim asks nothing of what is free"


def assumed(k: Any, x: Any) -> Any:
    """An input that is 1."""
    k.assume(x == 1)
    return x


@pytest.mark.parametrize("shown", [Reach.BOUNDED, Reach.CHOSEN, Reach.ALL_INPUTS])
@pytest.mark.parametrize("said", [Reach.BOUNDED, Reach.CHOSEN, Reach.ALL_INPUTS, Reach.SAMPLED])
def test_evidence_that_says_another_reach_than_it_shows_is_refused(shown: Reach, said: Reach) -> None:
    one = check()
    outcome, why = audit(one, recorded(one, replace(answer(one, reach=shown), reach=said)).finding)
    assert outcome is (Outcome.HOLDS if said is shown else Outcome.ERROR)
    assert said is shown or f"its reach is {said}, and what the harness did shows {shown}" in why


@pytest.mark.parametrize("kind", [Kind.SMT, Kind.STUB])
def test_evidence_that_does_not_say_what_the_harness_did_is_refused(kind: Kind) -> None:
    one = check(kind=kind)
    outcome, why = audit(one, recorded(one, replace(answer(one), stats={})).finding)
    assert (outcome, why.endswith("nothing in it says what the harness did")) == (Outcome.ERROR, True)
