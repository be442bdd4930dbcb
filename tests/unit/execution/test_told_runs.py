"""Counterexamples of whole checks over symbolic values, stated as windows of events by their replay."""

from __future__ import annotations

import re
from dataclasses import replace

import report_sample as sample
import torch
from test_smt_run import RUNS, claim, run

from gradproof.core.outcome import Expect, Outcome
from gradproof.core.timeline import from_json
from gradproof.execution.methods import counterexample as refuting_case
from gradproof.execution.methods.counterexample import FLOATS, Said, listening, traced
from gradproof.execution.methods.observe import phases
from gradproof.report.formats import html, markdown
from models.accumulation.loop import Vector
from models.accumulation.mutants import MUTANTS


def test_a_killed_mutant_is_told_by_its_replay_and_never_by_the_exploration() -> None:
    heard: list[bool] = []

    class Spy(MUTANTS["missing_scale"].subject):  # type: ignore[misc,name-defined]
        def zero(self, buffer: Vector) -> Vector:
            heard.append(refuting_case.heard())
            return tuple(super().zero(buffer))

    check = claim(
        "symbolic.accumulation.loop:exact_equivalence", "GA-EQ-001", mutants=("missing_scale",),
        bounds={"micro_batches": 2, "elements": 1, "samples": 1},
    )  # fmt: skip
    spied = {"missing_scale": replace(MUTANTS["missing_scale"], subject=Spy)}
    control = run(check, mutants=spied).controls[1]
    assert control.killed, control.reason
    assert control.counterexample is not None
    line = from_json(control.counterexample["trace"])
    assert [t.event for _, t in line.faults if t.refused] == ["accumulate"]
    explored = heard.index(True)
    assert explored > 0
    assert not refuting_case.heard()


def test_an_expected_refutation_is_told_without_an_event_to_blame() -> None:
    params = RUNS | {"weights": "count"}
    found = run(claim("symbolic.accumulation.whole:whole_window", "GA-EQ-001", params=params, expect=Expect.REFUTED))
    assert found.outcome is Outcome.REFUTED
    assert found.counterexample is not None
    line = from_json(found.counterexample["trace"])
    assert [(t.event, t.refused, t.harm) for _, t in line.faults] == [("end", "", "GA-EQ-001 breaks")]


def test_a_loop_without_hooks_of_the_harness_is_told_by_what_torch_does() -> None:
    def loop(scale: float, clips: bool = False) -> list[Said]:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        with listening() as said, phases():
            (weight.sum() * scale).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_([weight], 10.0)
            optimizer.step()
            optimizer.zero_grad()
        return said

    plain = torch.Tensor.backward, torch.optim.Optimizer.zero_grad, torch.nn.utils.clip_grad_norm_
    ours = loop(3.0, clips=True)
    assert [s.event for s in ours] == ["backward", "clip", "step", "zero"]
    assert ours[0].after == 6.0
    assert ours[2].after == (-0.5, -0.5)
    assert (torch.Tensor.backward, torch.optim.Optimizer.zero_grad, torch.nn.utils.clip_grad_norm_) == plain
    line = from_json(traced("T-001", ours, loop(1.0), "T-001 breaks", FLOATS)["trace"])
    found = [(i, t.event, re.findall(r"\d+", t.refused)) for i, t in line.faults]
    assert found == [(1, "backward", ["2"]), (4, "zero", [])]
    with listening() as said:
        torch.ones(1, requires_grad=True).sum().backward()
    assert said == []


def test_a_page_draws_a_real_run_with_the_event_to_blame() -> None:
    check = claim(
        "symbolic.accumulation.whole:whole_window", "GA-INV-003", mutants=("step_per_micro_batch",), params=RUNS
    )
    control = run(check).controls[1]
    assert control.killed, control.reason
    report = sample.green()
    held = next(k for c in report["checks"] for k in c["controls"] if k["killed"] and k["counterexample"])
    held |= {"name": "step_per_micro_batch", "counterexample": control.counterexample}
    page = html.render(report)
    drawing = page.partition("Timeline of step_per_micro_batch")[2].partition("</ol>")[0]
    blamed = [row for row in drawing.split("<li")[1:] if 'class="broken"' in row]
    assert [re.findall(r"<b>(.*?)</b>", row) for row in blamed] == [["step"], ["end"]]
    assert "accumulate here" in blamed[0]
    assert re.search(r"\bstep: .* accumulate here", markdown.render(report))
