"""The CrossHair backend on the reference, on every mutant of the model, and on harnesses that are wrong."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.core.check import Bound, Check, Control, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.execution.methods import crosshair as crosshair_run
from models.accumulation.loop import Accumulation, Config, Empty, MicroBatch, Record, Vector
from models.accumulation.mutants import MUTANTS
from models.registry import CROSSING, Mutant
from symbolic.accumulation import contracts as crosshair_contracts

HARNESSES = {
    "GA-EQ-001": "numerical_equivalence",
    "GA-INV-001": "loss_mean",
    "GA-INV-002": "no_stale_gradient",
    "GA-INV-003": "step_count",
    "GA-INV-004": "buffer_precision",
    "GA-INV-005": "clip_after_accumulate",
}
SUBJECTS = {
    "empty": "models.accumulation.loop:Empty",
    "mutants": "models.accumulation.mutants:MUTANTS",
    "torch": "models.accumulation.torch_steps:TorchStep",
    "torch_mutants": "models.accumulation.torch_mutants:MUTANTS",
}


class Place:
    """A workspace that is this process, with a few names of its own."""

    def __init__(self, **own: Any) -> None:
        self.own = own

    def resolve(self, name: str) -> Any:
        name, _, key = name.partition("[")
        module, _, attribute = name.partition(":")
        if module == "own":
            if attribute not in self.own:
                raise GradproofError("GP204", attribute, "", "")
            return self.own[attribute]
        value = getattr(importlib.import_module(module), attribute)
        return value[key.rstrip("]")].subject if key else value


def claim(obligation: str, name: str, **changes: Any) -> Check:
    fields: dict[str, Any] = {
        "id": "CROSS",
        "kind": Kind.CROSSHAIR,
        "layer": Layer.CROSSHAIR,
        "obligations": (obligation,),
        "title": "",
        "harness": f"symbolic.accumulation.contracts:{name}",
        "subject": "models.accumulation.loop:Accumulation",
        "params": {"subjects": SUBJECTS},
        "bounds": (Bound("micro_batches", 3, "a test"),),
        "time_limit": 600.0,
    }
    return Check(**{**fields, **changes})


def named_for(obligation: str) -> tuple[str, ...]:
    rows = [n for n, m in MUTANTS.items() if m.obligation == obligation and m.reference != CROSSING]
    return tuple(n for n in rows if n != "mean_of_means")


@pytest.mark.parametrize(("obligation", "harness"), HARNESSES.items())
def test_the_reference_is_confirmed_and_every_mutant_is_killed(obligation: str, harness: str) -> None:
    mutants = named_for(obligation)
    assert len(mutants) >= 3
    finding = crosshair_run.run(claim(obligation, harness, mutants=mutants), Place())
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert finding.reach is Reach.BOUNDED
    assert finding.clauses == {obligation: "HOLDS"}
    assert set(finding.stats["seconds_of_parts"]) >= {"subject"}
    assert finding.stats["samples"] == 200
    assert finding.covers
    assert all(c["reached"] and c["witness"] for c in finding.covers)
    assert any(line.startswith("pre: ") for line in finding.assumptions)
    assert [c.name for c in finding.controls] == ["empty body", *mutants]
    for control in finding.controls:
        assert (control.outcome, control.killed) == (Outcome.REFUTED, True), control
        assert control.counterexample is not None
        assert len(control.replays) >= 2
        assert all(r["reproduced"] for r in control.replays), control


def test_unequal_counts_hold_when_weighted_and_are_refuted_when_not() -> None:
    weighted = claim(
        "GA-EQ-001",
        "unequal_counts",
        subject="models.accumulation.loop:WeightedAccumulation",
        mutants=("mean_of_means",),
    )
    assert crosshair_run.run(weighted, Place()).outcome is Outcome.HOLDS
    naive = crosshair_run.run(claim("GA-EQ-001", "unequal_counts"), Place())
    assert naive.outcome is Outcome.REFUTED
    assert naive.controls == []
    assert [r["reproduced"] for r in naive.replays] == [True, True, True]


def test_a_mutant_in_the_place_of_the_subject_is_refuted_and_replayed_on_torch() -> None:
    check = claim("GA-EQ-001", "numerical_equivalence", subject="models.accumulation.mutants:MUTANTS[missing_scale]")
    finding = crosshair_run.run(check, Place())
    assert finding.outcome is Outcome.REFUTED
    assert finding.clauses == {"GA-EQ-001": "REFUTED"}
    assert finding.counterexample is not None
    assert finding.counterexample["values"]["n"] in "234"
    assert [r["on"] for r in finding.replays] == [
        "Python model, exact numbers",
        "Python model, NumPy floats",
        "torch cpu fp32",
    ]
    assert all(r["reproduced"] for r in finding.replays)


class Crashes(Accumulation):
    """A mutant that never gets to break anything."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        raise RuntimeError("a crash is no kill")


class Unmakeable(Accumulation):
    """A mutant that cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no instance")


class Harmless(Accumulation):
    """A mutant that is the reference."""


class Endless(Accumulation):
    """A subject that takes for ever."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        x = batches[0].loss
        while x > 0 or x <= 0:
            x = x - 1
        return super().run(params, batches, config, buffer)


@pytest.mark.parametrize(
    ("subject", "outcome"),
    [(Crashes, Outcome.ERROR), (Unmakeable, Outcome.ERROR), (Harmless, Outcome.HOLDS)],
)
def test_a_mutant_that_crashes_or_survives_makes_the_harness_weak(subject: type, outcome: Outcome) -> None:
    registry = {"bad": Mutant("bad", "GA-INV-001", "", subject)}
    subjects = {"empty": "models.accumulation.loop:Empty", "mutants": "own:MUTANTS"}
    check = claim("GA-INV-001", "loss_mean", mutants=("bad",), params={"subjects": subjects})
    finding = crosshair_run.run(check, Place(MUTANTS=registry))
    assert finding.outcome is Outcome.WEAK
    assert (finding.controls[-1].outcome, finding.controls[-1].killed) == (outcome, False)


def test_a_mutant_named_for_another_clause_is_not_killed() -> None:
    registry = {"bad": Mutant("bad", "GA-INV-005", "", MUTANTS["loss_sum"].subject)}
    subjects = {"empty": "models.accumulation.loop:Empty", "mutants": "own:MUTANTS"}
    check = claim("GA-INV-001", "loss_mean", mutants=("bad",), params={"subjects": subjects})
    finding = crosshair_run.run(check, Place(MUTANTS=registry))
    assert finding.outcome is Outcome.WEAK
    assert "GA-INV-005" in finding.controls[-1].reason


@pytest.mark.parametrize(
    ("subject", "outcome"),
    [(Crashes, Outcome.ERROR), (Endless, Outcome.TIMEOUT), (Empty, Outcome.REFUTED)],
)
def test_a_subject_that_crashes_or_hangs_or_does_nothing(subject: type, outcome: Outcome) -> None:
    check = claim("GA-INV-001", "loss_mean", subject="own:Subject", time_limit=4.0)
    finding = crosshair_run.run(check, Place(Subject=subject))
    assert finding.outcome is outcome
    assert finding.controls == []


Factory = Callable[..., Callable[..., bool]]


def own(harness: Factory, **tables: Any) -> Finding:
    """The finding about a harness of this file, with COVERS and BOUNDS as given."""
    check = claim("GA-INV-001", "", harness="own:harness", bounds=(Bound("micro_batches", 2, "a test"),))
    return crosshair_run.run(check, Place(harness=harness, **tables))


def small(subject: Any) -> Callable[..., bool]:
    """A harness without a choice of numbers."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        post: _
        """
        batch = MicroBatch(x, (x,))
        return bool(subject.run((0,), [batch], Config(n=1, buffer_format="fp64"), (0,)).losses == [x])

    return contract


def without_arguments(subject: Any) -> Callable[..., bool]:
    """A harness of which nothing is free."""

    def contract() -> bool:
        """
        post: _
        """
        batch = MicroBatch(2, (2,))
        return bool(subject.run((0,), [batch], Config(n=1, buffer_format="fp64"), (0,)).losses == [2])

    return contract


def reached(subject: Any) -> Callable[..., bool]:
    """Something that happens."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        post: not _
        """
        return x > 10

    return contract


def unreachable(subject: Any) -> Callable[..., bool]:
    """Something that never happens."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        post: not _
        """
        return x < 0

    return contract


def deaf(subject: Any) -> Callable[..., bool]:
    """A harness that looks at nothing."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        post: _
        """
        return x > 0

    return contract


def fickle(subject: Any) -> Callable[..., bool]:
    """A harness whose answer changes: false only when it is explored."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        post: _
        """
        return type(x).__name__ == "int" and x.__class__.__mro__ is not None and (x < 5 or not tracing())

    return contract


def tracing() -> bool:
    from crosshair.tracers import is_tracing

    return is_tracing()


def impossible(subject: Any) -> Callable[..., bool]:
    """A harness whose assumptions exclude everything."""

    def contract(x: int) -> bool:
        """
        pre: x > 0
        pre: x < 0
        post: _
        """
        return True

    return contract


TABLES = {"BOUNDS": {"harness": {"micro_batches": 2}}, "COVERS": {"harness": (reached,)}}


@pytest.mark.parametrize(
    ("harness", "tables", "outcome", "why"),
    [
        (deaf, TABLES, Outcome.WEAK, "empty body"),
        (deaf, {**TABLES, "COVERS": {}}, Outcome.VACUOUS, "no cover"),
        (deaf, {"BOUNDS": TABLES["BOUNDS"]}, Outcome.VACUOUS, "no cover"),
        (deaf, {**TABLES, "COVERS": {"harness": (reached, unreachable)}}, Outcome.VACUOUS, "Something that never"),
        (deaf, {**TABLES, "BOUNDS": {"harness": {"micro_batches": 1}}}, Outcome.ERROR, "reaches 1"),
        (deaf, {"COVERS": TABLES["COVERS"]}, Outcome.ERROR, "reaches nothing"),
        (impossible, TABLES, Outcome.VACUOUS, "PRE_UNSAT"),
        (fickle, TABLES, Outcome.SPURIOUS, "POST_FAIL"),
    ],
)
def test_a_harness_that_is_not_sound_never_holds(harness: Factory, tables: Any, outcome: Outcome, why: str) -> None:
    finding = own(harness, **tables)
    assert finding.outcome is outcome, finding.reason
    assert why in finding.reason


@pytest.mark.parametrize(("harness", "reach"), [(without_arguments, Reach.CHOSEN), (small, Reach.BOUNDED)])
def test_a_contract_without_arguments_is_checked_at_chosen_values(
    monkeypatch: pytest.MonkeyPatch, harness: Factory, reach: Reach
) -> None:
    answer = crosshair_run.Answer(Outcome.HOLDS, "confirmed")
    monkeypatch.setattr(crosshair_run, "consult", lambda *args: answer)
    assert own(harness, **TABLES).reach is reach


def test_a_confirmation_that_samples_contradict_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = crosshair_run.Answer(Outcome.HOLDS, "confirmed")
    monkeypatch.setattr(crosshair_run, "consult", lambda *args: answer)
    check = claim("GA-INV-001", "loss_mean", subject="models.accumulation.mutants:MUTANTS[loss_sum]")
    finding = crosshair_run.run(check, Place())
    assert finding.outcome is Outcome.ERROR
    assert "plain Python finds false" in finding.reason


def test_names_that_do_not_resolve_are_the_users_mistakes() -> None:
    with pytest.raises(GradproofError) as unknown:
        crosshair_run.run(claim("GA-INV-001", "loss_mean", mutants=("nobody",)), Place())
    assert unknown.value.code == "GP301"
    with pytest.raises(GradproofError) as unnamed:
        crosshair_run.run(claim("GA-INV-001", "loss_mean", params={"subjects": {}}), Place())
    assert unnamed.value.code == "GP303"


def test_a_check_may_name_its_own_empty_body_and_mutants() -> None:
    """A contract of several models has one registry and one empty body of its own."""
    own = {"empty": "models.accumulation.loop:Empty", "mutants": "models.accumulation.mutants:MUTANTS"}
    other = {
        "subjects": {"empty": "models.tokens.window:Empty", "mutants": "models.tokens.window_mutants:TOKEN_MUTANTS"}
    }
    check = claim("GA-INV-001", "loss_mean", mutants=("loss_sum",), params={**other, **own})
    rows, _ = crosshair_run.named_controls(check, Place())
    assert [subject for _, subject in rows] == [Empty, MUTANTS["loss_sum"].subject]
    with pytest.raises(GradproofError, match=r"window_mutants"):
        crosshair_run.named_controls(claim("GA-INV-001", "loss_mean", mutants=("loss_sum",), params=other), Place())


def test_time_is_shared_out_and_none_left_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(process_time=lambda: 1e9, monotonic=lambda: 1e9)
    monkeypatch.setattr(crosshair_run, "time", clock)
    check, control = claim("GA-INV-001", "loss_mean"), Control("m", "mutant", "GA-INV-001", Outcome.ERROR, False)
    trial = crosshair_run.HarnessTrial(check, crosshair_contracts.loss_mean, Accumulation(), 0.0, 3)
    after = crosshair_run._control(trial, control, MUTANTS["loss_sum"].subject)
    assert (after.outcome, after.killed) == (Outcome.TIMEOUT, False)


@pytest.mark.parametrize(("left", "outcome"), [
    ([Outcome.TIMEOUT], Outcome.TIMEOUT), ([Outcome.TIMEOUT, Outcome.TIMEOUT], Outcome.TIMEOUT),
    ([Outcome.HOLDS], Outcome.WEAK), ([Outcome.TIMEOUT, Outcome.HOLDS], Outcome.WEAK), ([Outcome.ERROR], Outcome.WEAK),
    ([Outcome.UNKNOWN], Outcome.WEAK),
])  # fmt: skip
def test_mutants_for_which_no_time_was_left_refute_nothing(
    left: list[Outcome], outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine is no weak harness: that would end red where nothing is known."""
    check = claim("GA-INV-001", "loss_mean", mutants=("loss_sum",))

    rows = [(Control(str(i), "mutant", "GA-INV-001", found, False), None) for i, found in enumerate(left)]
    monkeypatch.setattr(crosshair_run, "_control", lambda trial, control, subject: control)
    monkeypatch.setattr(crosshair_run, "named_controls", lambda check, workspace: (rows, {}))
    finding = crosshair_run.run(check, Place())
    assert finding.outcome is outcome
    assert finding.reason.startswith("not killed: 0")


@pytest.mark.parametrize("harness", crosshair_contracts.COVERS)
def test_each_harness_states_its_covers_and_bounds(harness: str) -> None:
    assert crosshair_contracts.COVERS[harness]
    reach = crosshair_contracts.BOUNDS[harness]
    factory = getattr(crosshair_contracts, harness)
    most = elements = 0

    class Counting(Accumulation):
        """Counts the micro-batches that it is given, and their elements."""

        def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
            nonlocal most, elements
            most, elements = max(most, len(batches)), len(batches[0].grads)
            return super().run(params, batches, config, buffer)

    crosshair_run.sampled(factory(Counting()))
    assert most == reach["micro_batches"]
    assert elements == reach.get("elements", 2)
