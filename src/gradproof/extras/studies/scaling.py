"""The linear scaling rule: `python -m gradproof.extras.studies.scaling [--out FILE.json] [--plot FILE.svg] [--quick]`.

One task is trained at (B, rate), (kB, rate), (kB, k rate) and (kB, k rate with warm-up) over the same samples; kB is
made of k micro-batches. Format of the document: `gradproof-scaling/1`, `reports/scaling.schema.json`. Exit code 0:
measured, whatever it shows; 2: a mistake in the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradproof.extras.studies.sources import Begun, command, models, options
from gradproof.report.studies import SCALING

if TYPE_CHECKING:
    from gradproof.core.schemas.studies import Scaling, ScalingRun

NET, MICRO, K, RATE, MOMENTUM, SEEDS = "mlp", 4, 8, 0.02, 0.9, 3
SAMPLES, QUICK = 8192, 512
WARM_PART = 5 / 90
POINTS = 32
RULE = "when the batch is multiplied by k, multiply the learning rate by k; ramp it up from the small rate at the start"
SOURCE = "Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv:1706.02677), equations (3) and (4), section 2.2"


def plans(samples: int) -> list[Any]:
    """The four trainings; the warm-up takes 5 of 90 parts, as in the source, and at least one step."""
    plan = models("speed.large_batch").Plan
    warm = max(1, round(WARM_PART * samples / (MICRO * K)))
    sizes = ((1, RATE, 0), (K, RATE, 0), (K, K * RATE, 0), (K, K * RATE, warm))
    return [
        plan(NET, MICRO, n, samples, rate, RATE if steps else rate, steps, MOMENTUM) for n, rate, steps in sizes
    ]  # fmt: skip


def document(samples: int) -> Scaling:
    """Train all four, once for each seed, on one thread."""
    from gradproof.core.schemas.studies import RUNS, Scaling, conclusion

    begun, restore = Begun(SCALING), models("sampling.measured").one_thread()
    try:
        runs = [run(name, plan) for name, plan in zip(RUNS, plans(samples), strict=True)]
    finally:
        restore()
    return Scaling(
        schema="gradproof-scaling/1", threads=1, rule=RULE, source=SOURCE, net="mlp",
        parameters=models("speed.throughput").parameters(NET), k=K, samples=samples, momentum=MOMENTUM, seeds=SEEDS,
        runs=runs, stated=conclusion(runs), **begun.head(),
    )  # fmt: skip


def run(name: str, plan: Any) -> ScalingRun:
    """One of the four, once for each seed."""
    from dataclasses import replace

    from gradproof.core.schemas.studies import ScalingRun, median_of

    train = models("speed.large_batch").train
    trained = [train(replace(plan, seed=seed)) for seed in range(SEEDS)]
    finals = [t.final for t in trained]
    batch = plan.micro * plan.n
    return ScalingRun(
        name=name, batch=batch, accumulate=plan.n, steps=plan.steps, rate=plan.rate, warm_up_steps=plan.warm,
        finals=finals, median_final=median_of(finals), curve=curve(trained[0].losses, batch, plan.samples),
    )  # fmt: skip


def curve(losses: Sequence[float], batch: int, samples: int) -> list[tuple[int, float]]:
    """Samples seen and the mean loss since the point before: at most POINTS of them."""
    every = max(1, samples // batch // POINTS)
    starts = range(0, len(losses) - every + 1, every)
    return [((i + every) * batch, sum(losses[i : i + every]) / every) for i in starts]


def drawing(made: Scaling) -> str:
    """The four loss curves over the samples seen."""
    from gradproof.report.charts import Curve, Panel

    lines = tuple(
        Curve(f"{r.name}: {r.batch} at {r.rate:g}", tuple((float(x), y) for x, y in r.curve))
        for r in made.runs
        if r.curve
    )
    return Panel(f"Linear scaling, k = {made.k}", "samples seen", "loss of the batches, nats", lines).svg


def stated(made: Scaling) -> str:
    """The rule, every run with its final losses, and how far they are apart."""
    lines = [f"{made.rule} ({made.source})"]
    for r in made.runs:
        finals = ", ".join("diverged" if f is None else f"{f:.4f}" for f in r.finals)
        warm = f", warm-up of {r.warm_up_steps}" if r.warm_up_steps else ""
        lines.append(f"{r.name:22}{r.batch:5} at {r.rate:<6g}{r.steps:5} steps{warm}: final loss {finals}")
    return "\n".join([*lines, made.stated, f"torch {made.torch}, one thread, {made.seconds} s"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print, write, and return the exit code."""
    o = options("scaling", __doc__, arguments, f"{QUICK} samples instead of {SAMPLES}", plot=True, device=False)
    return command(o, lambda: document(QUICK if o.quick else SAMPLES), stated, drawing=drawing)


if __name__ == "__main__":
    sys.exit(main())
