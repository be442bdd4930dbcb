"""AdamW: the model in every number system, each proof on the reference, on the empty body and on wrong AdamWs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradproof.arith import exact
from gradproof.arith.soft import Soft
from gradproof.contract.model import load
from gradproof.core.check import Check
from gradproof.core.outcome import Kind, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.execution.methods import measure as torch_run, smt as smt_run
from gradproof.execution.methods.explore import Explorer, Limits, _root_range
from gradproof.extras.conformance.reductions import exact_step
from gradproof.verdict.plan import plan
from models.adamw import torch_model as torch_adamw
from models.adamw.model import AdamW, Hyper, State, fresh
from models.adamw.mutants import EVERY, KERNELS
from models.adamw.torch_model import Settings

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = load(ROOT / "proofs" / "adamw-kernel-v1" / "contract.yaml")
CHECKS = {check.id: check for check in plan(CONTRACT)}
PROOFS = [c.id for c in CHECKS.values() if c.kind is Kind.SMT]
RUNS = [c.id for c in CHECKS.values() if c.kind is Kind.TORCH and c.layer == "cpu"]
PATHS = {"KANI-AW-008": 2, "KANI-AW-009": 5}
"""A path for each form, and for each phase; the others decide nothing."""
SEEN_AT = {
    "v_of_first_element": ", step 1, element 1: theta",
    "ascends_from_second_step": ", step 2, element 0: theta",
    "ascends_in_the_end": ": a step leaves nothing behind but what it returns",
}
"""Where in KANI-AW-008 a bug must be seen that is none of the first element in the first step."""
PLACE = Workspace(ROOT, ROOT / "reports")
DEFAULTS = Settings()
HYPER = Hyper(DEFAULTS.rate, *DEFAULTS.betas, DEFAULTS.eps, DEFAULTS.decay)
GRADS = ((0.5, -2.0, 0.0), (0.25, 3.0, -1e-3), (-4.0, 3.0, 7.0))
START = (1.0, -0.5, 0.25)


def steps(make: Any, form: str = "step", model: Any = None) -> list[Any]:
    """Three steps of the model on numbers made by `make`: the weights after each."""
    hyper = Hyper(*(make(x) for x in (HYPER.rate, HYPER.beta1, HYPER.beta2, HYPER.eps, HYPER.decay)))
    params, state, found = tuple(map(make, START)), State((make(0.0),) * 3, (make(0.0),) * 3, make(1.0), make(1.0)), []
    for grads in GRADS:
        done = getattr(model or AdamW(), form)(params, tuple(map(make, grads)), state, hyper)
        params, state = done.params, done.state
        found.append(done)
    return found


def soft(x: float) -> Soft:
    return Soft(Fraction(x), "fp32")


@pytest.mark.parametrize("form", ["step", "vectorised"])
@pytest.mark.parametrize(
    ("make", "slack"), [(float, 1e-15), (np.float32, 1e-6), (soft, 1e-6), (lambda x: torch.tensor(x).double(), 1e-7)]
)
def test_the_model_is_the_same_in_every_number_system(make: Any, slack: float, form: str) -> None:
    wanted = steps(Fraction)
    for got, want in zip(steps(make, form), wanted, strict=True):
        for x, y in zip(got.params, want.params, strict=True):
            assert abs(float(exact(x)) - float(y)) <= slack


@pytest.mark.parametrize("form", sorted(torch_adamw.FORMS))
def test_torch_runs_the_model(form: str) -> None:
    weight = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = torch_adamw.REFERENCE.optimizer(weight, replace(DEFAULTS, form=form))
    for grads, want in zip(GRADS, steps(Fraction), strict=True):
        weight.grad = torch.tensor(grads, dtype=torch.float64)
        optimizer.step()
        assert weight.tolist() == pytest.approx([float(x) for x in want.params], rel=1e-14)
        assert optimizer.state[weight]["exp_avg_sq"].tolist() == pytest.approx([float(x) for x in want.state.v])


def test_the_model_agrees_with_the_step_that_the_kernels_are_held_to() -> None:
    hyper = Hyper(*(Fraction(x) for x in (1e-2, 0.9, 0.999, 1e-8, 1e-1)))
    from gradproof.extras.conformance import reductions as moments

    hyper = replace(hyper, rate=Fraction(moments.LR), eps=Fraction(moments.EPS), decay=Fraction(moments.DECAY))
    p, g, m, v, t = Fraction(3, 4), Fraction(-5, 2), Fraction(1, 8), Fraction(1, 3), 7
    powers = (hyper.beta1 ** (t - 1), hyper.beta2 ** (t - 1))
    done = AdamW().step((p,), (g,), State((m,), (v,), *powers), hyper)
    after, first, second = exact_step(p, g, m, v, t)
    assert (done.state.m[0], done.state.v[0]) == (first, second)
    assert abs(done.params[0] - after) < Fraction(1, 2**80)


def test_in_doubles_the_factor_of_a_late_step_is_one() -> None:
    """Why AW-INV-002 is stated over the reals: 1 - 0.9^356 rounds to 1."""
    assert 1 / (1 - 0.9**355) > 1
    assert 1 / (1 - 0.9**356) == 1
    assert 1 / (1 - Fraction(9, 10) ** 356) > 1


def settled(name: str, subject: str = "") -> Any:
    """The finding of one proof, with another subject if one is named."""
    check = CHECKS[name]
    return smt_run.run(replace(check, subject=subject) if subject else check, PLACE)


@pytest.mark.parametrize("name", PROOFS)
def test_every_proof_holds_and_kills_its_mutants_and_the_empty_step(name: str) -> None:
    finding = settled(name)
    paths = f"{PATHS.get(name, 1)} paths"
    assert (finding.outcome, finding.reason.partition(",")[0]) == (Outcome.HOLDS, paths)
    killed = {c.name for c in finding.controls if c.killed}
    assert killed == {"empty body", *CHECKS[name].mutants}
    if name == "KANI-AW-008":
        assert {c.name: c.reason.partition(" step")[2] for c in finding.controls if c.name in SEEN_AT} == SEEN_AT
    assert finding.reach is (Reach.ALL_INPUTS if name == "KANI-AW-009" else Reach.BOUNDED)  # one number of each kind


@pytest.mark.parametrize("name", PROOFS)
def test_an_empty_step_in_place_of_the_model_is_refuted_by_every_proof(name: str) -> None:
    finding = settled(name, str(CHECKS[name].params.get("empty", "models.adamw.model:Empty")))
    assert finding.outcome is Outcome.REFUTED
    assert finding.counterexample is not None
    assert finding.counterexample["clause"] == CHECKS[name].obligations[0]


def test_every_mutant_is_named_by_a_proof() -> None:
    assert {m for name in PROOFS for m in CHECKS[name].mutants} == {*EVERY, *KERNELS}


def test_every_torch_mutant_is_named_by_a_test() -> None:
    named = {m for name in RUNS for m in CHECKS[name].mutants}
    assert named == set(torch_adamw.MUTANTS)


def test_the_written_step_is_torchs() -> None:
    """The mutants change parts of it, so that they differ from torch's AdamW by the bug alone."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        one, two = (torch.ones(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
        pair = [
            (one, torch_adamw.REFERENCE.optimizer(one, DEFAULTS)),
            (two, torch_adamw.Made(torch_adamw.Written).optimizer(two, DEFAULTS)),
        ]
        for _ in range(3):
            grad = torch.randn(7, generator=generator, dtype=torch.float64)
            for weight, optimizer in pair:
                weight.grad = grad.clone()
                optimizer.step()
        assert one.tolist() == pytest.approx(two.tolist(), rel=1e-14)


@pytest.mark.parametrize("name", RUNS)
def test_the_empty_step_and_each_mutant_are_refuted_in_every_run_on_torch(name: str) -> None:
    check: Check = replace(CHECKS[name], bounds=tuple(replace(b, value=1) for b in CHECKS[name].bounds))
    finding = torch_run.run(check, PLACE)
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert {c.name for c in finding.controls if c.killed} == {torch_run.EMPTY, *check.mutants}


def test_a_run_on_cuda_is_not_run_here_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda = [c for c in CHECKS.values() if c.layer == "cuda"]
    assert len(cuda) == 18
    for check in cuda:
        finding = torch_run.run(check, PLACE)
        assert (finding.outcome, "no CUDA device" in finding.reason) == (Outcome.NOT_RUN, True)


def test_fp16_loses_the_default_eps_and_a_zero_gradient_is_then_no_number() -> None:
    """The assumption of weight_update is needed: torch's AdamW at its defaults, weights in fp16."""
    weight = torch.ones(2, dtype=torch.float16, requires_grad=True)
    optimizer = torch_adamw.REFERENCE.optimizer(weight, DEFAULTS)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert bool(torch.isnan(weight).all())


def test_a_square_that_overflows_leaves_the_moments() -> None:
    """The assumption of adam_variance is needed: v of the largest fp32 gradient is infinite, and the weight stands."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch_adamw.REFERENCE.optimizer(weight, DEFAULTS)
    weight.grad = torch.full((1,), torch.finfo(torch.float32).max)
    optimizer.step()
    assert math.isinf(float(optimizer.state[weight]["exp_avg_sq"]))
    assert float(weight.detach()) == 0


# The root in a stubbed run


def explored(body: Any, stub: Any) -> Any:
    explorer = Explorer(Limits(4, 4, 10, 10**12), stub)
    return explorer.run(lambda: body(explorer))


@pytest.mark.parametrize(("most", "outcome"), [("2", "holds"), ("1.99", "refuted")])
def test_a_stubbed_root_has_the_range_of_its_argument(most: str, outcome: str) -> None:
    from gradproof.arith import smt, sqrt
    from gradproof.arith.symbolic import Sym
    from symbolic.stubs import d3_grid

    def body(explorer: Explorer) -> None:
        x = Sym(smt.real("x"), Fraction(1), Fraction(4), "fp32")
        explorer.declare("x", x)
        explorer.assume((exact(x) >= 1) & (exact(x) <= 4))
        root = exact(sqrt(x))
        explorer.check("clause", (root >= Fraction(99, 100)) & (root <= Fraction(most) + Fraction(1, 10**6)), "")

    result = explored(body, d3_grid)
    assert result.stopped is None
    assert (result.violation is None) is (outcome == "holds")


@pytest.mark.parametrize("ends", [(0, 0), (0, 2), (2, 3), (-1, 5), (Fraction(1, 10**40), 10**40)])
def test_the_range_of_a_root_encloses_it(ends: Sequence[Any]) -> None:
    from gradproof.arith import smt
    from gradproof.arith.symbolic import Sym

    low, high = map(Fraction, ends)
    lo, hi = _root_range(Sym(smt.real("x"), low, high))
    assert lo is not None
    assert hi is not None
    assert lo**2 <= max(low, Fraction(0))
    assert hi**2 >= high
    assert _root_range(Sym(smt.real("x"))) == (None, None)
    assert _root_range(Sym(smt.real("x"), Fraction(-2), Fraction(-1))) == (None, None)


def test_a_fresh_state_is_before_any_step() -> None:
    assert fresh(2) == State((0, 0), (0, 0), 1, 1)
