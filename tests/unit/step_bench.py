"""An engine that answers what a test asks for, for tests of what stands around it; and samples of its answers.

`fake` in place of `gradproof.shadow.judge.two_runs`: the training function's own return value names the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.shadow import result as verdict
from gradproof.shadow.locations import Location
from gradproof.shadow.result import Result, Verification

WHOLE, WATCH = "gradproof.shadow.judge.two_runs", "gradproof.shadow.process.watch"
SAID = ["fine"]
REASON = "the gradient is 4 times that of the full batch"


def held(subject: str = "train.py:step", **config: Any) -> Verification:
    """Every obligation HOLDS."""
    results = [
        Result(name, Outcome.HOLDS, "equal in every element", domain="whole tensors", reach=verdict.ALL_DATA)
        for name in verdict.OBLIGATIONS
    ]
    made = Verification(subject, {"accum_steps": 4, "micro_batch": 2, "windows": 2, **config}, results)
    made.operators, made.shapes = {"aten.mm.default": 4, "aten.add.Tensor": 7}, {"param weight": "[2, 3]"}
    made.paths, made.seconds, made.versions = ["the recorded path"], {"recording": 0.25}, {"torch": "2.13"}
    made.weights = [{"micro_batch": i, "sample": i, "weight": Fraction(1, 8)} for i in range(4)]
    return made


def refuted(place: Location | None = None) -> Verification:
    """The gradient is wrong; everything else HOLDS."""
    made = held()
    example = {"weight[0, 0]": {"full": "1/3", "accumulated": "4/3"}, "inputs": [1.0, 2.0]}
    at = place or Location(__file__, 1, "step")
    made.results[1] = Result(
        "GA-EQ-001", Outcome.REFUTED, REASON, at, "divide the loss", "whole tensors", "", {}, example
    )
    return made


def answering(outcome: Outcome) -> Verification:
    """One obligation has this outcome; everything else HOLDS."""
    made = held()
    made.results[1].outcome = outcome
    made.results[1].location = Location(__file__, 1, "step") if outcome is Outcome.OUTSIDE else None
    return made


def partial() -> Verification:
    """Of one obligation nothing is said; everything else HOLDS."""
    made = held()
    del made.results[1]
    return made


def check(function: Callable[[Any], Any], **options: Any) -> Any:
    """Calls the function once, and answers as it says: `refuted`, the name of an outcome, `silent`,
    `garbage` and so on."""
    said = function(SimpleNamespace(micro_batch_size=options["micro_batch"], **options))
    if said == "refuses":
        raise GradproofError("GP410", "ranks ended with 1", "a recording of every rank", "look above")
    answers: dict[str, Any] = {"refuted": refuted, "silent": lambda: Verification("", {}), "garbage": lambda: {"a": 1}}
    answers["partial"] = partial
    answers["strange"] = lambda: held(strange=object())
    if said in answers:
        return answers[said]()
    return answering(Outcome(said)) if said in list(Outcome) else held(**options)


class ScriptWatch:
    """A watcher that answers what the script wrote into SAID, like `check`."""

    stopped = 0

    def __init__(self, **options: Any) -> None:
        self.options = {name: value for name, value in options.items() if not callable(value)}

    def __enter__(self) -> ScriptWatch:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def verification(self) -> Any:
        """The answer."""
        return check(lambda run: SAID[-1], micro_batch=1, **self.options)


def check_whole(function: Callable[[Any], Any], subject: str, request: Any) -> Verification:
    """The same, with the subject."""
    made = check(function, **request.options())
    if isinstance(made, Verification):
        made.subject = subject
    return made


def fake() -> None:
    """Put the engines and the watcher in the place of the real ones in this process."""
    for name, what in ((WHOLE, check_whole), (WATCH, ScriptWatch)):
        module = ModuleType(name)
        vars(module)[what.__name__] = what
        sys.modules[name] = module


def program(module: str) -> str:
    """The text of a child with this engine; the folder of this file is the last on its path."""
    here = str(Path(__file__).parent)
    head = f"import sys; sys.path.append({here!r}); import step_bench; step_bench.fake()"
    return f"{head}\nfrom gradproof.shadow.{module} import main\nmain()"


def command(*job: str, flags: Sequence[str] = ()) -> list[str]:
    """A child of `gradproof check` with this engine, or of `gradproof watch` with this watcher."""
    return [sys.executable, *flags, "-P", "-c", program("process.check"), *job]
