"""Every backend passes the published suite, and the suite sees a backend that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradproof.arith.soft import Ratio
from gradproof.core.check import Bound, Check, Control, Finding
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.execution.methods import (
    crosshair as crosshair_run,
    measure as torch_run,
    recorded_step as trace_run,
    smt as smt_run,
)
from models.accumulation.torch_mutants import MUTANTS as TORCH_MUTANTS
from models.accumulation.torch_steps import EmptyStep, TorchStep
from models.registry import Mutant
from symbolic.accumulation.falsify import accumulated_matches_full
from symbolic.accumulation.step import Accumulates, accumulates
from tests.conformance.suite import SCENARIOS, violations

CLAUSE = "GA-EQ-001"
BOUNDS = tuple(Bound(name, value, "a test") for name, value in {"branches": 20, "paths": 20, "examples": 2}.items())
NAMES = {"empty": "empty", "mutants": "mutants", "torch": "subject", "torch_empty": "empty", "torch_mutants": "mutants"}


class Desk:
    """A workspace of named objects."""

    def __init__(self, **objects: Any) -> None:
        self.objects = objects

    def resolve(self, name: str) -> Any:
        return self.objects[name]


def boom(*_: Any, **__: Any) -> Any:
    raise RuntimeError("boom")


def prepare(
    scenario: str, check: Check, harness: Any, right: Any, wrong: Any, crash: Any, nothing: Any, dry: Any
) -> Any:
    """The scenario's check and workspace, from a right subject, a wrong one, one that raises, one that does nothing."""
    mutant = {"survivor": right, "crasher": crash}.get(scenario, wrong)
    clause = "GA-INV-005" if scenario == "other_clause" else CLAUSE
    registry = {} if scenario == "missing" else {"bug": Mutant("bug", clause, "nowhere#1", mutant)}
    subject = {"false": wrong, "crash": crash}.get(scenario, right)
    empty = right if scenario == "empty_passes" else nothing
    used = dry if scenario == "unreached" else harness
    return check, Desk(harness=used, subject=subject, empty=empty, mutants=registry)


def claim(kind: Kind, layer: Layer, **params: Any) -> Check:
    return Check(
        "T-1",
        kind,
        layer,
        (CLAUSE,),
        "a test",
        "harness",
        "subject",
        strategy="exhaustive",
        bounds=BOUNDS,
        mutants=("bug",),
        params={"subjects": NAMES, **params},
        text={"obligations": []},
        time_limit=60.0,
    )


def doubles(k: Any, subject: Any) -> None:
    x = k.real("x", -1, 1)
    k.cover("positive", x > 0)
    k.check(CLAUSE, k.same(subject(x), 2 * x))


def doubles_dry(k: Any, subject: Any) -> None:
    doubles(k, subject)
    k.cover("impossible", k.real("y", 0, 1) > 1)


def smt_case(scenario: str) -> Any:
    params = {"subjects": {"empty": "empty", "mutants": "mutants"}}
    check = replace(claim(Kind.SMT, Layer.SMT), params=params, bounds=BOUNDS[:2])
    return prepare(scenario, check, doubles, lambda x: x + x, lambda x: 3 * x, boom, lambda x: 0 * x, doubles_dry)


def contract_of(subject: Any) -> Callable[[int], bool]:
    def contract(x: int) -> bool:
        """
        pre: 0 <= x
        post: _
        """
        return bool(subject(Ratio(x)) == 2 * x)

    return contract


def positive(subject: Any) -> Callable[[int], bool]:
    def contract(x: int) -> bool:
        """
        pre: 0 <= x
        post: not _
        """
        return x > 0

    return contract


def impossible(subject: Any) -> Callable[[int], bool]:
    def contract(x: int) -> bool:
        """
        pre: 0 <= x
        post: not _
        """
        return x < 0

    return contract


def crosshair_case(scenario: str) -> Any:
    unreached = impossible if scenario == "unreached" else positive
    own = replace(
        claim(Kind.CROSSHAIR, Layer.CROSSHAIR),
        harness="own:contract_of",
        bounds=(Bound("micro_batches", 2, "a test"),),
        params={"subjects": {"empty": "empty", "mutants": "mutants"}},
    )
    check, desk = prepare(
        scenario, own, contract_of, lambda x: x + x, lambda x: 3 * x, boom, lambda x: 0 * x, contract_of
    )
    desk.objects |= {
        "own:contract_of": contract_of,
        "own:COVERS": {"contract_of": (unreached,)},
        "own:BOUNDS": {"contract_of": {"micro_batches": 2}},
    }
    return check, desk


class Crash(TorchStep):
    """Raises in the middle of a step."""

    backward = boom


class Dry:
    """The property with one more cover, which nothing reaches."""

    def __init__(self) -> None:
        self.clause = accumulated_matches_full.clause

    def covers(self, place: Any) -> list[str]:
        return [*accumulated_matches_full.covers(place), "impossible"]

    def __getattr__(self, name: str) -> Any:
        return getattr(accumulated_matches_full, name)


def torch_case(scenario: str) -> Any:
    check = claim(Kind.TORCH, Layer.CPU, nets=["linear"], n=[1, 2, 4], outside=[], device="cpu", dtype="fp32")
    wrong = TORCH_MUTANTS["missing_scale"].subject
    return prepare(scenario, check, accumulated_matches_full, TorchStep, wrong, Crash, EmptyStep, Dry())


class DryStep(Accumulates):
    """The harness with one more cover, which nothing reaches."""

    def covers(self, settings: Any) -> list[str]:
        return [*super().covers(settings), "impossible"]


def trace_case(scenario: str) -> Any:
    check = replace(
        claim(Kind.TRACE, Layer.STEP, nets=["linear"], n=[2], domains=["field"]),
        bounds=(Bound("micro_batches", 2, "a test"), Bound("windows", 1, "a test")),
    )
    wrong = TORCH_MUTANTS["divided_twice"].subject
    return prepare(scenario, check, accumulates, TorchStep, wrong, Crash, EmptyStep, DryStep())


def test_the_trace_backend_conforms() -> None:
    assert violations(trace_run.run, trace_case) == []


def test_the_smt_backend_conforms() -> None:
    assert violations(smt_run.run, smt_case) == []


def test_the_crosshair_backend_conforms() -> None:
    assert violations(crosshair_run.run, crosshair_case) == []


def test_the_torch_backend_conforms() -> None:
    assert violations(torch_run.run, torch_case) == []


def green(check: Check, workspace: Any) -> Finding:
    """A backend that likes everything."""
    covers = [{"name": "c", "reached": True, "witness": None}]
    controls = [
        Control("bug", "mutant", CLAUSE, Outcome.ERROR, True),
        Control("e", "empty_body", "", Outcome.HOLDS, True),
    ]
    return Finding(Outcome.HOLDS, "fine", Reach.BOUNDED, clauses={CLAUSE: "HOLDS"}, covers=covers, controls=controls)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "true"])
def test_the_suite_sees_a_backend_that_likes_everything(scenario: str) -> None:
    said = violations(green, smt_case)
    assert any(text.startswith(f"{scenario} (") for text in said)
    assert any("killed without a refutation" in text for text in said)


def test_the_suite_sees_an_unfounded_answer() -> None:
    bare = violations(lambda check, workspace: Finding(Outcome.HOLDS, "fine"), smt_case)
    for part in ("a word on its obligations", "a reach", "a cover that was not reached", "not killed, or not tried"):
        assert any(part in text for text in bare), part
    refuted = violations(lambda check, workspace: Finding(Outcome.REFUTED, ""), smt_case)
    for part in ("without a counterexample", "not replayed", "no reason"):
        assert any(part in text for text in refuted), part
