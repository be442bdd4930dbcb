"""Generated steps: plans that a seed draws, written as Python, right or with one bug, each with a reference loop.

`python -m tests.soundness --show 17` prints the text of the seventeenth.
"""

from __future__ import annotations

import itertools
import linecache
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.bugs import BUGS, RIGHT_NEEDS, Bug
from tests.soundness.compose import LOSSES, Plan, choose, drawn, task_of
from tests.soundness.kit import RIGHT, WRONG, Step, Train, accumulates, freeze, hand_over, keeps, windows_losses
from tests.soundness.oracle import Findings, weigh

TURNS = 30
"""How often a step is drawn anew until its label is certain."""
FOLDER = Path(__file__).with_name("generated")
SEEDS, MAGNITUDES = (0, 5), (1.0, 3.0)
"""What the oracle weighs a generated step with: seeds, and by what the weights and the inputs are multiplied."""
BF16 = 0.5
"""The relative difference in the run's own dtype that rounding makes under autocast, where gradients may cancel."""


def class_weights(run: Run) -> Tensor:
    """What each class weighs."""
    return torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=run.dtype)


def each(out: Tensor, y: Tensor) -> Tensor:
    """The loss of each token; nought of an ignored one."""
    return F.cross_entropy(out.transpose(1, 2), y, ignore_index=-100, reduction="none")


def two_optimizers(params: list[nn.Parameter]) -> Any:
    """SGD for the first parameter, Adam for the others."""
    made = torch.optim.SGD(params[:1], lr=0.1), torch.optim.Adam(params[1:], lr=0.01)
    freeze(*made)
    return made


NAMES = {
    "F": F, "nn": nn, "torch": torch, "itertools": itertools, "class_weights": class_weights, "each": each,
    "two_optimizers": two_optimizers, "accumulates": accumulates, "hand_over": hand_over, "keeps": keeps,
}  # fmt: skip


def compiled(name: str, text: str, plan: Plan) -> Train:
    """The function of a text, which has lines as that of a file has."""
    file = str(FOLDER / f"{name}.py")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {**NAMES, "TASK": task_of(plan)}
    exec(compile(text, file, "exec"), names)
    made: Train = names["train"]
    return made


def clip(kind: str, params: list[nn.Parameter]) -> None:
    """Clip as a plan asks for it."""
    if kind == "value":
        nn.utils.clip_grad_value_(params, 0.02)
    elif kind == "largest":
        nn.utils.clip_grad_norm_(params, 0.03, float("inf"))
    elif kind != "none":
        nn.utils.clip_grad_norm_(params, 0.1)


def reference(plan: Plan) -> Train:
    """A plain loop over full batches that trains what a plan trains."""
    loss = LOSSES[plan["loss"]]
    whole = compile(loss.mean or loss.sum, "<loss>", "eval")

    def train(run: Run) -> list[float]:
        job, losses = task_of(plan).start(run), []
        params, size = job.parameters, run.effective_batch_size
        optimizers = two_optimizers(params) if plan["optimizer"] == "two" else (job.optimizer,)
        average = [p.detach().clone() for p in params] if plan["extra"] == "average" else []
        keeps(*average)
        for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=plan["dtype"] == "autocast"):
                given = {"out": job.model(x), "y": y, "params": params, "weights": class_weights(run)}
                total = eval(whole, NAMES | given)
            total.backward()
            clip(plan["clip"], params)
            for optimizer in optimizers:
                optimizer.step()
            for a, p in zip(average, params, strict=bool(average)):
                a.lerp_(p.detach(), 0.1)
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] *= 1.0 if plan["schedule"] == "none" else 0.5
            job.model.zero_grad()
            losses.append(float(total))
        return losses

    return train


def number_of(seed: str, number: int, turn: int = 0) -> tuple[random.Random, str, str, Bug | None]:
    """The generator, subject and label of a number, and its bug. `turn`: how often it was drawn before."""
    generator, subjects = random.Random(f"{seed} {number}" + f" {turn}" * (turn > 0)), list(RIGHT_NEEDS)
    at = number // 2 + int.from_bytes(seed.encode(), "big")
    if number % 2 == 0:
        return generator, subjects[at % len(subjects)], RIGHT, None
    bug = BUGS[at * 7 % len(BUGS)]
    return generator, bug.subject, WRONG, bug


def written(seed: str, number: int, turn: int = 0) -> tuple[Step, str]:
    """The step of a number, and its text."""
    generator, subject, label, bug = number_of(seed, number, turn)
    tail = generator.randint(1, 2) if bug is not None and bug.tail else generator.choice((0, 0, 1))
    steps = generator.randint(3, 4)
    plan = drawn(generator, tail, RIGHT_NEEDS[subject] if bug is None else bug.needs)
    made = choose(plan | (bug.instead if bug else {}), bug.words if bug else None)
    if bug is not None:
        bug.changed(made)
    name = f"{subject.replace(' ', '_')}_{number}"
    described = ", ".join(f"{dimension} {choice}" for dimension, choice in plan.items())
    text = f"# {seed}, step {number}: {label}{f', {bug.name}' if bug else ''}\n# {described}\n{made.text()}"
    step = Step(
        name, subject if not subject.startswith("hooks") else "hooks", compiled(name, text, plan), reference(plan),
        label, (bug.broken,) if bug else (), windows_losses if plan["report"] != "none" else None,
        accum_steps=steps, micro_batch=generator.choice((1, 2, 2, 3)), windows=generator.randint(2, 3), tail=tail,
        rounding=BF16 if plan["dtype"] == "autocast" else 2e-4, by_rate=plan["share"] == "rate",
        seeds=SEEDS, magnitudes=MAGNITUDES, bug=bug.name if bug else "",
    )  # fmt: skip
    return step, text


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step that is right or wrong for certain, what the numbers say of it, and its text.

    `before`: why each draw before was thrown out.
    """

    step: Step
    text: str
    found: Findings
    before: tuple[str, ...]


def drawn_step(seed: str, number: int) -> Drawn:
    """The first draw of a number that runs, and of which the numbers say for certain what its label says."""
    before: list[str] = []
    while len(before) < TURNS:
        try:
            step, text = written(seed, number, len(before))
            found = weigh(step)
        except Exception as error:  # the text makes no step: its choices do not go together
            before.append(f"{type(error).__name__}: {error}")
            continue
        if found.certain(step):
            return Drawn(step, text, found, tuple(before))
        before.append(found.contradicts(step) or "the difference may be rounding")
    raise ValueError(f"{seed}, {number}: none of {TURNS} draws is certain: {before}")
