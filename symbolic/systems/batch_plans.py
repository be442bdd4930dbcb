"""effective = micro x accum x world and its inverses, for all positive integers: KANI-GT-301 of the training contract.

The inverse exists exactly where the other two factors divide the target: then it is found, and gives the target again;
where they do not, no plan is made, and none would give the target.
"""

from __future__ import annotations

from typing import Any

from symbolic.accumulation.window import no
from symbolic.systems.epochs import division, positive

CLAUSE = "GA-BATCH-001"


def effective_batch(k: Any, plan: Any) -> None:
    """GA-BATCH-001: both directions, each a direct claim on whole numbers; no induction is needed."""
    micro, accum, world, target, any_n = positive(k, "micro", "accum", "world", "target", "any N")
    k.direct(lambda: _forward(k, plan, micro, accum, world))
    k.direct(lambda: _back(k, plan, micro, world, target, any_n))


def _forward(k: Any, plan: Any, micro: Any, accum: Any, world: Any) -> None:
    """From the factors to the product."""
    made = plan.effective(micro, accum, world)
    k.cover("several ranks that accumulate", (accum > 1) & (world > 1) & (micro > 1))
    k.check(CLAUSE, made == micro * accum * world, "effective = micro x accum x world")


def _back(k: Any, plan: Any, micro: Any, world: Any, target: Any, any_n: Any) -> None:
    """From a target and two factors to the third; `micro` stands for the accumulation on the other path."""
    way = k.choose("asked for", ["the accumulation", "the micro-batch"])
    ask = plan.accumulation if way == "the accumulation" else plan.micro_batch
    found = ask(target, micro, world, division(k, way))
    if found is None:
        k.cover(f"{way}: nothing divides", target > micro * world)
        k.check(CLAUSE, no(target == micro * world * any_n), f"{way}: no whole number gives the target")
    else:
        k.cover(f"{way}: found", (found > 1) & (world > 1))
        k.check(CLAUSE, found >= 1, f"{way}: a positive number")
        k.check(CLAUSE, micro * world * found == target, f"{way}: it gives the target again")
