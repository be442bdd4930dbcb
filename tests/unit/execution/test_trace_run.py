"""The backend of the step proofs: what holds, what does not, and everything that must never read as either."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch_bench import Desk
from toy_workspace import recorded

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Expect, Kind, Layer, Outcome, Reach
from gradproof.core.schemas.evidence import Counterexample
from gradproof.core.timeline import from_json
from gradproof.evidence import audit
from gradproof.evidence.record import plain
from gradproof.execution.methods import recorded_step as trace_run, replay_evidence as replaying
from gradproof.execution.methods.property import Job, Report
from gradproof.execution.methods.recorded_step import StepSetting, settings_of
from gradproof.shadow.judge import two_runs as verifying
from gradproof.shadow.judge.two_runs import attempted
from gradproof.shadow.result import ALL_DATA, RECORDED, Result, Verification, on_path
from models.accumulation.torch_mutants import MUTANTS
from models.accumulation.torch_steps import TorchStep
from models.registry import Mutant
from symbolic.accumulation.step import BINDING, Accumulates, accumulates

STEP = "models.accumulation.torch_steps:TorchStep"
SUBJECTS = {
    "torch": STEP,
    "torch_empty": "models.accumulation.torch_steps:EmptyStep",
    "torch_mutants": "models.accumulation.torch_mutants:MUTANTS",
}


def claim(*obligations: str, mutants: Sequence[str] = (), bounds: dict[str, int] | None = None, **params: Any) -> Check:
    """A step proof of a linear net in windows of two."""
    stated = {"micro_batches": 2, "windows": 2} if bounds is None else bounds
    return Check(
        id="STEP-T-001",
        kind=Kind.TRACE,
        layer=Layer.STEP,
        obligations=obligations or ("GA-EQ-001",),
        title="a test",
        harness="symbolic.accumulation.step:accumulates",
        subject=STEP,
        bounds=tuple(Bound(name, value, "a test") for name, value in stated.items()),
        mutants=tuple(mutants),
        assumptions=("a test",),
        params={"nets": ["linear"], "n": [2], "subjects": SUBJECTS, **params},
    )


def run(check: Check, **replaced: Any) -> Finding:
    """Run it, with other objects for some names; the finding is plain data and passes the audit as it is."""
    finding = trace_run.run(check, Desk(replaced))
    assert audit.audit(check, recorded(check, finding).finding)[0] is finding.outcome
    return finding


class Silent(TorchStep):
    """Halves the gradient through NumPy."""

    def clip(self, job: Job) -> None:
        for master in job.masters:
            assert master.grad is not None
            master.grad.numpy()[:] *= 0.5


class Pretends(TorchStep):
    """Clips hard, unless a dispatch mode is on."""

    def clip(self, job: Job) -> None:
        if not _get_current_dispatch_mode_stack():
            torch.nn.utils.clip_grad_norm_(job.masters, 1e-3)


class Crash(TorchStep):
    """Raises in the middle of a step."""

    def clip(self, job: Job) -> None:
        raise RuntimeError("boom")


class Idle(TorchStep):
    """Computes every gradient and never steps."""

    def update(self, job: Job) -> None:
        """Nothing."""


def test_the_step_holds_over_the_reals_in_every_configuration() -> None:
    check = claim(
        mutants=["divided_twice", "missing_scale"], tail=1,
        optimizers=["sgd", "adamw foreach"], also=["models.accumulation.torch_steps:DividedOnce"],
    )  # fmt: skip
    found = run(check)
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.BOUNDED)
    assert found.clauses["GA-EQ-001"].startswith("HOLDS: ")
    assert [c["name"] for c in found.covers if c["reached"]] == [trace_run.COMPARED, "a short last window"]
    assert [c.name for c in found.controls if c.killed] == ["empty body", "divided_twice", "missing_scale"]
    assert "at models/accumulation/torch_mutants.py:" in found.controls[1].reason
    assert "at models/accumulation/torch_nets.py:" in found.controls[2].reason
    assert found.stats["subjects"] == [STEP, "models.accumulation.torch_steps:DividedOnce"]
    assert found.stats["operators_counted"] == sum(found.stats["operators"].values()) > 100
    assert {"torch", "gradproof", "python"} <= set(found.stats["versions"])
    assert len(found.stats["seconds"]) == 4
    assert found.assumptions[0] == "a test"
    assert any(text.startswith("path: ") and "reads a number" in text for text in found.assumptions)


def test_losses_that_are_plain_numbers_are_sampled() -> None:
    found = run(claim("GA-EQ-001", "GA-INV-001", mutants=["loss_sum"]))
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.SAMPLED)
    assert found.clauses["GA-INV-001"] == f"HOLDS: floats, {RECORDED}"


def test_the_window_table_with_a_scaler_and_a_clip_that_binds() -> None:
    names = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
    check = claim(*names, mutants=["clip_before_unscale"], max_norm="0.0625", loss_scale="4", modes=["fp16_params"])
    found = run(check)
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.BOUNDED)
    assert [c["reached"] for c in found.covers if c["name"] == BINDING] == [True]
    assert found.controls[1].counterexample is not None
    assert found.controls[1].counterexample["clause"] == "GA-INV-005"


def test_a_clip_that_never_binds_is_vacuous() -> None:
    found = run(claim("GA-INV-005", max_norm="1000000"))
    assert (found.outcome, found.reach) == (Outcome.VACUOUS, None)
    assert found.reason == f"never reached: {BINDING}"
    assert found.controls == []


def test_a_wrong_step_is_refuted_and_replayed() -> None:
    check = claim()
    found = run(check, **{STEP: MUTANTS["divided_twice"].subject})
    assert found.outcome is Outcome.REFUTED
    assert re.search(r"1/2 times .* at models/accumulation/torch_mutants\.py:\d+", found.reason)
    assert found.counterexample is not None
    assert found.counterexample["clause"] == "GA-EQ-001"
    assert found.replays == [{"on": trace_run.REPLAYED, "reproduced": True, "detail": found.replays[0]["detail"]}]
    desk: Any = Desk()
    example = Counterexample.model_validate(plain(found.counterexample))
    bug = "models.accumulation.torch_mutants:MUTANTS[divided_twice]"
    desk.replaced = {bug: MUTANTS["divided_twice"].subject}
    assert [r["reproduced"] for r in replaying.replay(check, desk, bug, example)] == [True]
    assert [r["reproduced"] for r in replaying.replay(check, desk, STEP, example)] == [False]


def test_an_expected_refutation_needs_no_controls() -> None:
    check = replace(claim(), expect=Expect.REFUTED)
    assert run(check, **{STEP: MUTANTS["missing_scale"].subject}).outcome is Outcome.REFUTED


def test_a_further_step_that_is_wrong_refutes_the_claim() -> None:
    other = "models.accumulation.torch_steps:DividedOnce"
    found = run(claim(also=[other]), **{other: MUTANTS["missing_scale"].subject})
    assert found.outcome is Outcome.REFUTED
    assert found.reason.startswith(f"{other}: GA-EQ-001")


def test_a_refutation_that_does_not_come_back_is_spurious() -> None:
    class Fickle(Accumulates):
        """Hands over the wrong step at first."""

        calls = 0

        def step(self, subject: Any, setting: StepSetting) -> Any:
            self.calls += 1
            return super().step(MUTANTS["missing_scale"].subject if self.calls == 1 else subject, setting)

    found = run(claim(), **{"symbolic.accumulation.step:accumulates": Fickle()})
    assert found.outcome is Outcome.SPURIOUS
    assert "HOLDS" in found.replays[0]["detail"]


@pytest.mark.parametrize(
    ("names", "registry", "said"),
    [
        (["bug"], {"bug": Mutant("bug", "GA-EQ-001", "t#1", TorchStep)}, "bug (HOLDS: "),
        (["bug"], {"bug": Mutant("bug", "GA-EQ-001", "t#1", Crash)}, "bug (ERROR: "),
        (["bug"], {}, "bug (NOT_RUN: "),
        (
            ["divided_twice"],
            {"divided_twice": replace(MUTANTS["divided_twice"], obligation="GA-INV-005")},
            "(UNKNOWN: ",
        ),
        # The line of the missing 1/N is in no class: without a word of the harness it is no kill.
        (["bug"], {"bug": replace(MUTANTS["missing_scale"], name="bug")}, "in MissingScale"),
    ],
)
def test_a_mutant_that_is_not_killed_on_its_clause_and_line_is_weak(
    names: list[str], registry: dict[str, Mutant], said: str
) -> None:
    found = run(claim(mutants=names), **{SUBJECTS["torch_mutants"]: registry})
    assert (found.outcome, found.reach) == (Outcome.WEAK, None)
    assert said in found.reason
    assert [c.killed for c in found.controls] == [True, False]


def test_a_mutant_is_looked_for_in_every_configuration() -> None:
    """The fused form is the second configuration's."""
    found = run(claim(mutants=["fused_forgets_scale"], optimizers=["sgd", "sgd fused"]))
    assert found.outcome is Outcome.HOLDS
    assert found.controls[1].counterexample is not None
    assert found.controls[1].counterexample["values"]["setting"]["form"] == "fused"


def test_an_empty_body_that_passes_is_weak() -> None:
    found = run(claim(), **{SUBJECTS["torch_empty"]: TorchStep})
    assert found.outcome is Outcome.WEAK
    assert "empty body" in found.reason


def test_the_empty_body_is_refuted_as_a_subject_too() -> None:
    from models.accumulation.torch_steps import EmptyStep

    for name in ("GA-EQ-001", "GA-INV-002", "GA-INV-005"):
        found = run(claim(name), **{STEP: EmptyStep})
        assert (found.outcome, found.replays[0]["reproduced"]) == (Outcome.REFUTED, True)
        assert "where 2 steps" in found.reason


def test_a_step_that_never_steps_does_not_hold() -> None:
    assert run(claim("GA-INV-003"), **{STEP: Idle}).outcome is not Outcome.HOLDS
    assert run(claim("GA-EQ-001"), **{STEP: Idle}).outcome is not Outcome.HOLDS


def test_a_step_that_behaves_only_while_it_is_recorded_is_no_answer() -> None:
    found = run(claim(), **{STEP: Pretends})
    assert found.outcome is Outcome.OPAQUE
    assert "nobody" in found.reason


def test_a_gradient_that_is_changed_through_numpy_is_opaque() -> None:
    found = run(claim(), **{STEP: Silent})
    assert (found.outcome, found.reach) == (Outcome.OPAQUE, None)
    assert found.controls == []


def test_batch_statistics_are_outside() -> None:
    found = run(claim(nets=["conv_batchnorm"], micro_batch=2))
    assert found.outcome is Outcome.OUTSIDE
    assert "samples meet in native_batch_norm" in found.reason


def test_a_crash_is_an_error_with_its_line() -> None:
    found = run(claim(also=["models.accumulation.torch_steps:DividedOnce"]), **{STEP: Crash})
    assert found.outcome is Outcome.ERROR
    assert "RuntimeError: boom, at execution/test_trace_run.py:" in found.reason
    assert found.stats["subjects"] == [STEP]


@pytest.mark.parametrize("bounds", [{"micro_batches": 3, "windows": 2}, {"micro_batches": 2, "windows": 2, "x": 1}])
def test_a_bound_that_nothing_reads_is_weak(bounds: dict[str, int]) -> None:
    found = run(claim(bounds=bounds))
    assert found.outcome is Outcome.WEAK
    assert "never read: " in found.reason


def test_a_bound_that_is_not_stated_is_an_error_of_the_claim() -> None:
    with pytest.raises(KeyError, match="windows"):
        run(claim(bounds={"micro_batches": 2}))


def test_no_configuration_is_vacuous() -> None:
    assert run(claim(nets=[])).outcome is Outcome.VACUOUS


@pytest.mark.parametrize("name", ["T-1", "GA-EQ-002"])
def test_an_obligation_that_the_verifier_does_not_know_is_no_answer(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        run(claim(name))


def test_an_obligation_that_was_not_judged_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Verification("x", {}, [], events=[{"event": "step"}])
    monkeypatch.setattr(trace_run, "check_whole", lambda *_, **__: made)
    found = run(claim())
    assert (found.outcome, found.clauses) == (Outcome.VACUOUS, {"GA-EQ-001": "VACUOUS"})


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.HOLDS, Outcome.REFUTED, Outcome.NOT_RUN)])
def test_what_is_no_answer_passes_through(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    made = Verification("x", {}, [Result("GA-EQ-001", outcome, "why")], events=[{"event": "step"}])
    monkeypatch.setattr(trace_run, "check_whole", lambda *_, **__: made)
    found = trace_run.run(claim(), Desk())
    assert (found.outcome, found.reach) == (outcome, None)
    assert found.reason.startswith("GA-EQ-001 why")


@pytest.mark.parametrize(
    ("domain", "stated", "reach"),
    [
        ("whole tensors", ALL_DATA, Reach.BOUNDED), ("whole tensors", on_path(ALL_DATA, ["a.py:1"]), Reach.BOUNDED),
        ("floats", RECORDED, Reach.SAMPLED), ("floats", ALL_DATA, Reach.SAMPLED), ("whole tensors", "", Reach.SAMPLED),
    ],
)  # fmt: skip
def test_how_far_a_result_goes(domain: str, stated: str, reach: Reach) -> None:
    assert trace_run.reach_of(Result("x", Outcome.HOLDS, "", domain=domain, reach=stated)) is reach


def test_every_two_values_that_can_stand_together_meet_in_a_configuration() -> None:
    check = claim(
        nets=["mlp", "linear"],
        n=[2, 3],
        optimizers=["sgd", "sgd fused", "adamw"],
        modes=["fp32", "bf16"],
        max_norm=["0.5", "none"],
        loss_scale=["4", "none"],
        overflow=[1],
        tail=2,
    )
    made = settings_of(check)
    rows = [
        (s.net, s.n, f"{s.optimizer} {s.form}", s.mode, s.max_norm, s.loss_scale, s.overflow) for s in made
    ]  # fmt: skip
    values = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
    # an overflow that is stated stands in every configuration, which a scaler must suppress and no fused form can
    assert values[2] == ["sgd single", "adamw single"]
    assert (values[5], values[6]) == ([4.0], [1])
    for i, j in itertools.combinations(range(5), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(values[i], values[j]))
    assert [s.net for s in made] == sorted((s.net for s in made), key=["mlp", "linear"].index)
    assert {(s.n, s.tail, s.due) for s in made} == {(2, 0, 2), (3, 2, 3)}
    assert [StepSetting(**s.to_json()) for s in made] == made


def test_what_is_stated_once_is_one_configuration() -> None:
    assert [str(s) for s in settings_of(claim(max_norm="0.5"))] == [
        "linear N=2 windows=2 tail=0, sgd single, fp32, weights by equal, clip 0.5"
    ]


class Unspecified:
    """The harness without its specification: a step is compared with itself alone."""

    blamed: ClassVar[dict[str, str]] = {}
    step, covers, reached = accumulates.step, accumulates.covers, accumulates.reached


class ClipsToOne(TorchStep):
    """Clips to 1 with any N: its own full batch says nothing of it, the specification does."""

    def clip(self, job: Job) -> None:
        torch.nn.utils.clip_grad_norm_(job.masters, 1.0)


def test_a_bug_that_the_full_batch_shares_is_refuted_by_the_specification() -> None:
    check = claim("GA-EQ-001", max_norm=["0.0625"])
    assert run(check, **{STEP: ClipsToOne}).outcome is Outcome.REFUTED
    assert run(check, **{STEP: ClipsToOne, check.harness: Unspecified()}).outcome is Outcome.HOLDS


def test_the_harness_names_lines_of_mutants_that_exist() -> None:
    assert set(accumulates.blamed) <= set(MUTANTS)


def test_threads_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch.get_num_threads()

    def broken(*_: Any, **__: Any) -> Iterator[None]:
        raise OSError("no recorder")

    monkeypatch.setattr(trace_run, "check_whole", broken)
    with pytest.raises(OSError, match="no recorder"):
        trace_run.run(claim(), Desk())
    assert torch.get_num_threads() == held


class Reports(TorchStep):
    """Correct, but for the report."""

    def run(self, job: Job) -> Report:
        report = super().run(job)
        return Report([x * job.config.n for x in report.losses])


def test_losses_are_judged_where_they_are_claimed() -> None:
    assert run(claim("GA-INV-001"), **{STEP: Reports}).outcome is Outcome.REFUTED
    assert run(claim("GA-EQ-001"), **{STEP: Reports}).outcome is Outcome.HOLDS


def test_a_killed_mutant_is_told_as_its_window() -> None:
    """The first loss of the window is the event that is to blame; the numbers hold no second copy of the run."""
    (_, control) = run(claim(mutants=["missing_scale"])).controls
    assert control.killed, control.reason
    line = from_json(control.counterexample["trace"])
    assert "trace" not in control.counterexample["values"]
    assert [t.event for _, t in line.faults if t.refused] == ["backward"]
    assert re.fullmatch(r"\w+\.py:\d+", line.ticks[0].note)


@pytest.mark.parametrize(
    ("subject", "windows", "asked", "tried"),
    [
        (TorchStep, 2, ["GA-EQ-001", "GA-INV-002"], [0, 1, 2]),  # each holds, where Python reads numbers: other seeds
        (TorchStep, 1, ["GA-INV-002"], [0, 0]),  # undecided, also where counts are the numbers of this run
        (MUTANTS["clip_per_micro_batch"].subject, 2, ["GA-INV-005"], [0]),  # refuted, whatever else is left
    ],
)
def test_no_run_is_made_for_an_obligation_that_nobody_asks_for(
    subject: Any, windows: int, asked: list[str], tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def noted(step: Any, request: Any, *rest: Any) -> Any:
        seeds.append(request.seed)
        return attempted(step, request, *rest)

    monkeypatch.setattr(verifying, "attempted", noted)
    setting = StepSetting("linear", 2, windows, mode="bf16", max_norm=0.0625)
    found = trace_run.StepTrial(claim(), Desk({}), accumulates, [setting]).verify("a test", subject, setting, asked)
    assert (sorted(r.obligation for r in found.made.results), seeds) == (asked, tried)
