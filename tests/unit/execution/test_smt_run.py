"""The SMT backend on its own: what it calls HOLDS, and everything that it must not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Expect, Kind, Layer, Outcome
from gradproof.core.protocol import Event
from gradproof.execution.methods import smt as smt_run
from models.accumulation.loop import Accumulation, Config, Empty, MicroBatch, Record, Vector
from models.accumulation.mutants import MUTANTS
from models.registry import Mutant
from symbolic.accumulation import whole
from symbolic.accumulation.loop import numerical_equivalence
from symbolic.stubs import claims, d2_half_ulp, d3_grid, d4_monotone

BOUNDS = {"branches": 400, "paths": 5000}
SIZES: dict[str, dict[str, int]] = {
    "symbolic.accumulation.loop:numerical_equivalence": {"micro_batches": 4, "elements": 2},
    "symbolic.accumulation.loop:loss_and_zeroing": {"micro_batches": 4, "elements": 2, "cycles": 2},
    "symbolic.accumulation.loop:exact_equivalence": {"micro_batches": 4, "elements": 2, "samples": 2},
    "symbolic.accumulation.whole:whole_window": {"elements": 2, "windows": 3, "clipped_windows": 1},
    "symbolic.stubs.claims:sound": {"values": 65536, "shifts": 2},
}


RUNS = {
    "weights": "equal", "shapes": [[2, 1], [2, 2]], "clipped_shapes": [[2, 2]], "single_windows": [[3, 2]],
    "skips": [[1]],
}  # fmt: skip


def tolerances(fp32: str, fp16: str) -> list[dict[str, Any]]:
    rows = [{"dtype": "fp32", "value": fp32}, {"dtype": "fp16", "value": fp16}]
    return [{"id": "GA-EQ-001", "tolerance": rows}]


class Local:
    """A workspace whose names are this test's objects, else importable modules."""

    def __init__(self, **objects: Any) -> None:
        self.objects = {"subject": Accumulation, "empty": Empty, "mutants": MUTANTS} | objects

    def resolve(self, name: str) -> Any:
        if name in self.objects:
            return self.objects[name]
        module, _, attribute = name.partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found


def claim(
    harness: str, *obligations: str, strategy: str = "exhaustive", mutants: tuple[str, ...] = (), **more: Any
) -> Check:
    bounds = tuple(Bound(k, v, "a test") for k, v in (BOUNDS | SIZES.get(harness, {}) | more.pop("bounds", {})).items())
    stubs = [{"id": "S", "stub": "stub"}]
    params = {"subjects": {"empty": "empty", "mutants": "mutants"}, **more.get("params", {})}
    return Check(
        "T-1",
        Kind.SMT,
        Layer.SMT,
        obligations,
        "a test",
        harness,
        "subject",
        strategy=strategy,
        bounds=bounds,
        stubs=("S",) if strategy == "stub_float" else (),
        mutants=mutants,
        params=params,
        text={"obligations": more.pop("tolerance", tolerances("1e-5", "1e-3")), "stubs": stubs},
        time_limit=more.pop("time_limit", 60.0),
        expect=more.pop("expect", Expect.HOLDS),
    )


def run(check: Check, **objects: Any) -> Finding:
    return smt_run.run(check, Local(**objects))


def doubled(k: Any, loop: Any) -> None:
    """A toy harness: the subject doubles."""
    x = k.real("x", -1, 1)
    k.cover("positive", x > 0)
    k.check("C", k.same(loop(x), 2 * x), "doubles")


def toy(harness: Any, subject: Any, *mutants: Mutant, **more: Any) -> Finding:
    registry = {m.name: m for m in mutants}
    check = claim("harness", "C", mutants=tuple(registry), **more)
    return run(check, harness=harness, subject=subject, empty=lambda x: x, mutants=registry)


def test_a_true_claim_with_its_controls_holds() -> None:
    finding = toy(doubled, lambda x: x + x, Mutant("tripled", "C", "nowhere#1", lambda x: 3 * x))
    assert finding.outcome is Outcome.HOLDS
    assert finding.clauses == {"C": "HOLDS"}
    assert [c.killed for c in finding.controls] == [True, True]
    assert all(r["reproduced"] for c in finding.controls for r in c.replays)


def test_a_false_claim_is_refuted_and_replayed() -> None:
    finding = toy(doubled, lambda x: 3 * x)
    assert finding.outcome is Outcome.REFUTED
    assert finding.counterexample is not None
    assert [r["reproduced"] for r in finding.replays] == [True, True]


def test_a_surviving_mutant_makes_the_harness_weak() -> None:
    finding = toy(doubled, lambda x: x + x, Mutant("same", "C", "nowhere#1", lambda x: 2 * x))
    assert finding.outcome is Outcome.WEAK
    assert "same" in finding.reason


def test_a_mutant_killed_on_another_clause_does_not_count() -> None:
    finding = toy(doubled, lambda x: x + x, Mutant("tripled", "D", "nowhere#1", lambda x: 3 * x))
    assert finding.outcome is Outcome.WEAK
    assert "named for D" in finding.controls[1].reason


def test_a_mutant_that_crashes_is_not_killed() -> None:
    def crash(x: Any) -> Any:
        raise RuntimeError("boom")

    finding = toy(doubled, lambda x: x + x, Mutant("crash", "C", "nowhere#1", crash))
    assert finding.outcome is Outcome.WEAK
    assert finding.controls[1].outcome is Outcome.ERROR
    assert "boom" in finding.controls[1].reason


def test_a_harness_that_the_empty_body_passes_is_weak() -> None:
    def lazy(k: Any, loop: Any) -> None:
        k.cover("here")
        k.check("C", k.real("x", 0, 1) <= 1)

    finding = toy(lazy, lambda x: 2 * x)
    assert finding.outcome is Outcome.WEAK
    assert "empty body" in finding.reason


def test_a_harness_that_assumes_false_is_vacuous() -> None:
    def contradiction(k: Any, loop: Any) -> None:
        x = k.real("x", 0, 1)
        k.assume(x > 1)
        doubled_after = k.same(loop(x), 5 * x)
        k.cover("here")
        k.check("C", doubled_after)

    finding = toy(contradiction, lambda x: 2 * x)
    assert finding.outcome is Outcome.VACUOUS
    assert "cover not reached" in finding.reason


@pytest.mark.parametrize(
    "harness", [lambda k, loop: None, lambda k, loop: k.cover("here"), lambda k, loop: k.check("D", True)]
)
def test_a_harness_that_checks_nothing_of_its_clause_is_vacuous(harness: Any) -> None:
    assert toy(harness, lambda x: x).outcome is Outcome.VACUOUS


def test_a_harness_without_a_cover_is_vacuous() -> None:
    finding = toy(lambda k, loop: k.check("C", True), lambda x: x)
    assert finding.outcome is Outcome.VACUOUS
    assert finding.reason.endswith("no cover")


def test_a_bound_that_is_hit_is_the_outcome() -> None:
    def loops(k: Any, loop: Any) -> None:
        x, i = k.int("x", 0), 0
        while x > i:
            i += 1

    assert toy(loops, lambda x: x, bounds={"branches": 5}).outcome is Outcome.BOUND_HIT


def test_a_stub_that_is_too_weak_gives_spurious_and_not_refuted() -> None:
    """Over reals and with an anything-goes stub, the sum may be anything; no real rounding does that."""
    free = SimpleNamespace(contract=lambda z, r, site: [], enclose=d3_grid.enclose)
    finding = run(
        claim("symbolic.accumulation.loop:numerical_equivalence", "GA-EQ-001", strategy="stub_float"), stub=free
    )
    assert finding.outcome is Outcome.SPURIOUS
    assert not any(r["reproduced"] for r in finding.replays)


def test_overflow_that_the_range_does_not_exclude_is_no_proof() -> None:
    def wide(k: Any, loop: Any) -> None:
        a, b = k.floats("a", 2, "fp16", -65504, 65504)
        k.cover("here")
        k.check("C", k.same(a + b, b + a))

    check = claim("harness", "C", strategy="stub_float")
    finding = run(check, harness=wide, subject=lambda x: x, stub=d3_grid)
    assert finding.outcome is Outcome.UNKNOWN
    assert "may exceed" in finding.reason


@pytest.mark.parametrize("stub", [d2_half_ulp, d3_grid, d4_monotone])
def test_the_bounded_proof_of_equivalence(stub: Any) -> None:
    mutants = ("missing_scale", "divided_twice", "rescaled_buffer")
    check = claim(
        "symbolic.accumulation.loop:numerical_equivalence", "GA-EQ-001", strategy="stub_float", mutants=mutants
    )
    finding = run(check, stub=stub)
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert all(c.killed for c in finding.controls)
    assert finding.stats["rounded"] == ["add fp32", "convert fp16", "divide fp32"]


def test_a_tolerance_below_the_sharp_bound_is_refuted_by_the_witness() -> None:
    """fp32 errs by up to 7.4506e-8 at N = 4 and by less than 1.35e-7 at N = 3, where 1/3 is rounded too."""
    more: dict[str, Any] = {"strategy": "stub_float", "params": {"controls_off": True}}
    names = ("symbolic.accumulation.loop:numerical_equivalence", "GA-EQ-001")
    below = run(claim(*names, tolerance=tolerances("7.443e-8", "1"), **more), stub=d3_grid)
    assert below.outcome is Outcome.REFUTED
    assert below.counterexample is not None
    assert "worst-case construction" in below.counterexample["found_by"]
    assert "add fp32" in below.stats["rounded"]
    above = run(claim(*names, tolerance=tolerances("1.35e-7", "1"), **more), stub=d3_grid)
    assert above.outcome is Outcome.HOLDS


class RightEventsWrongValue(Accumulation):
    """Clips at the right moment and does nothing there."""

    def clip(self, buffer: Vector, max_norm: Any) -> Vector:
        return buffer


class ClipsTooFar(Accumulation):
    """Clips to half the norm."""

    def clip(self, buffer: Vector, max_norm: Any) -> Vector:
        return tuple(b / 2 for b in super().clip(buffer, max_norm))


class ClipsElementwise(Accumulation):
    """Clips each element on its own: the direction changes."""

    def clip(self, buffer: Vector, max_norm: Any) -> Vector:
        return tuple(max_norm if b > max_norm else b for b in buffer)


class TwoSteps(Accumulation):
    """Applies the same gradient twice."""

    def step(self, record: Record, config: Config) -> bool:
        performed = super().step(record, config)
        record.note(Event.STEP, record.buffer)
        return performed


class Swapped(Accumulation):
    """Applies the gradient of another window."""

    def step(self, record: Record, config: Config) -> bool:
        performed = super().step(record, config)
        record.updates[-1] = record.values[0] if len(record.updates) == 1 else record.updates[0]
        return performed


@pytest.mark.parametrize(
    ("clause", "subject"),
    [
        ("GA-INV-005", RightEventsWrongValue),
        ("GA-INV-005", ClipsTooFar),
        ("GA-INV-005", ClipsElementwise),
        ("GA-INV-003", TwoSteps),
        ("GA-INV-003", Swapped),
    ],
)
def test_values_are_judged_besides_events(clause: str, subject: Any) -> None:
    finding = run(claim("symbolic.accumulation.whole:whole_window", clause, params=RUNS), subject=subject)
    assert finding.outcome is Outcome.REFUTED, finding.reason
    assert finding.counterexample is not None
    assert finding.counterexample["clause"] == clause


@dataclass(frozen=True)
class TwoSamples(MicroBatch):
    """A micro-batch of two samples, where it says nothing of them."""

    count: int = 2


@dataclass(frozen=True)
class Rated(Config):
    """A configuration with a learning rate of its own."""

    learning_rate: Any = 2


@dataclass
class Begun(Record):
    """A record that starts in the second window."""

    window: int = 1


@pytest.mark.parametrize(("clause", "made"), [("GA-EQ-001", TwoSamples), ("GA-INV-003", Rated), ("GA-INV-003", Begun)])
def test_a_default_that_changes_is_refuted(clause: str, made: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, made.__bases__[0].__name__, made)
    finding = run(claim("symbolic.accumulation.whole:whole_window", clause, params=RUNS))
    assert finding.clauses == {clause: "REFUTED"}, finding.reason
    assert finding.outcome is Outcome.REFUTED


@pytest.mark.parametrize("name", sorted(claims.UNSOUND))
def test_an_unsound_stub_is_refuted(name: str) -> None:
    params = {"formats": ["fp16", "bf16"]}
    check = claim("symbolic.stubs.claims:sound", strategy="exhaustive", params=params)
    finding = run(check, subject=claims.UNSOUND[name].subject)
    assert finding.outcome is Outcome.REFUTED
    assert finding.counterexample is not None
    assert finding.counterexample["clause"] == "T-1"


def test_the_harness_is_short_and_is_what_the_contract_names() -> None:
    assert numerical_equivalence.__doc__ is not None
    assert "GA-EQ-001" in numerical_equivalence.__doc__


class FirstRunBug(Accumulation):
    """Loses a micro-batch in the first run of an instance, when there is more than one."""

    warm = False

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        kept = batches if self.warm or config.n == 1 else batches[1:]
        self.warm = True
        return super().run(params, kept, config, buffer)


class CallsZeroOne(Accumulation):
    """Takes a gradient that is zero for one that is missing."""

    def backward(self, batch: Any, window: Any, config: Config) -> Vector:
        return tuple(g if g else 1 for g in super().backward(batch, window, config))


class TailLossByN(Accumulation):
    """The loss of a short window is divided by the configured N."""

    def run(self, params: Vector, batches: Any, config: Config, buffer: Vector) -> Record:
        record = super().run(params, batches, config, buffer)
        sizes = [len(self.window(i, batches, config)) for i in range(0, len(batches), config.n)]
        record.losses = [x * size / config.n for x, size in zip(record.losses, sizes, strict=True)]
        return record


@pytest.mark.parametrize(
    ("harness", "obligations", "subject"),
    [
        ("symbolic.accumulation.loop:loss_and_zeroing", ("GA-INV-001", "GA-INV-002"), FirstRunBug),
        ("symbolic.accumulation.loop:exact_equivalence", ("GA-EQ-001",), FirstRunBug),
        ("symbolic.accumulation.loop:loss_and_zeroing", ("GA-INV-001", "GA-INV-002"), CallsZeroOne),
        ("symbolic.accumulation.loop:exact_equivalence", ("GA-EQ-001",), CallsZeroOne),
        ("symbolic.accumulation.loop:loss_and_zeroing", ("GA-INV-001", "GA-INV-002"), TailLossByN),
    ],
)
def test_bugs_that_an_earlier_version_missed(harness: str, obligations: tuple[str, ...], subject: Any) -> None:
    finding = run(claim(harness, *obligations), subject=subject)
    assert finding.outcome is Outcome.REFUTED, finding.reason


def test_a_bound_that_no_harness_reads_makes_it_weak() -> None:
    finding = toy(doubled, lambda x: x + x, bounds={"elements": 1000})
    assert finding.outcome is Outcome.WEAK
    assert finding.reason.endswith("never read: elements")


def test_a_path_that_checks_for_nothing_is_vacuous() -> None:
    def half_dead(k: Any, loop: Any) -> None:
        n = k.choose("n", [1, 2])
        x = k.real("x", -1, 1)
        k.cover("positive", x > 0)
        if n == 2:
            k.assume(x > 1)
        k.check("C", k.same(loop(x), 2 * x))

    finding = toy(half_dead, lambda x: 2 * x)
    assert finding.outcome is Outcome.VACUOUS
    assert "path of [2]" in finding.reason


def test_a_stubbed_claim_names_one_stub() -> None:
    check = replace(claim("symbolic.accumulation.loop:numerical_equivalence", strategy="stub_float"), stubs=("S", "S"))
    with pytest.raises(GradproofError, match="GP302"):
        run(check, stub=d3_grid)


def test_the_watcher_of_cpu_time_never_frees_a_solver() -> None:
    """Two threads in one z3 context crash the process. Looks without a pause between them met that within seconds."""
    text = """
from gradproof.arith import smt
smt.LOOK = 0.0
x = smt.real("x")
print({smt.solve([x > i, x < i + 1], None, 60).answer for i in range(3000)})
"""
    ran = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "{<SolverAnswer.SAT: 'sat'>}\n"), ran.stderr
