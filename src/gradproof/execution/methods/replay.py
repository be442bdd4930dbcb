"""Replaying a counterexample on concrete numbers: on the Python model, and on a real PyTorch step.

A counterexample of a stubbed run gives values that the stub allows and real rounding may not; so the values are
tried as they are, rounded to their formats, and then replaced by the constructed worst case of accumulation.
Whatever is reported was replayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradproof.arith.bounds import accumulation_witness
from gradproof.core.check import Check
from gradproof.execution.methods.counterexample import CUT, EXACT, by_phase, events_during, traced
from gradproof.execution.methods.explore import Violated
from gradproof.execution.methods.harness import BrokenHarness, ConcreteKit, Unreplayable

FAMILIES = {
    "exhaustive": ("fraction", "float"),
    "compositional": ("fraction", "float"),
    "bounded_int": ("fraction",),
    "stub_float": ("soft",),
    "linear_chain": ("soft",),
    "bit_precise": ("soft",),
    "bit_exhaustive": ("soft", "torch"),
    "step_contract": ("fraction",),
}
FOUND_BY = {"bit_exhaustive": "the enumeration", "step_contract": "the steps that are tried"}
NAMES = {
    "fraction": "Python model, exact rationals",
    "float": "Python model, floats",
    "soft": "Python model, IEEE software floats",
    "torch": "Python model, PyTorch's kernels on the CPU",
}


@dataclass
class Attempted:
    """The concrete values that were tried last, what each replay said, and the values as numbers."""

    counterexample: dict[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    replays: list[dict[str, Any]] = field(default_factory=list)
    case: dict[str, Any] | None = None

    @property
    def reproduced(self) -> bool:
        """Every replay on the Python model failed the same clause."""
        return bool(self.replays) and all(r["reproduced"] for r in self.replays)


def instance(subject: Any) -> Any:
    """A subject is a class to be instantiated, or a plain function or module."""
    return subject() if isinstance(subject, type) else subject


def once(check: Check, harness: Any, subject: Any, values: Mapping[str, Any], choices: list[Any], family: str) -> Any:
    """Run the harness on numbers. Returns (clause or None, what happened, case)."""
    kit = ConcreteKit(check, values, choices, family)
    try:
        harness(kit, instance(subject))
    except BrokenHarness as broken:
        return broken.clause, str(broken), kit.case
    except Unreplayable as no:
        return None, f"not replayable: {no}", kit.case
    except (ArithmeticError, ValueError, TypeError) as error:
        return None, f"{type(error).__name__}: {error}", kit.case
    return None, "every clause holds on these numbers", kit.case


def first_reproduced(check: Check, harness: Any, subject: Any, reference: Any, violation: Violated) -> Attempted:
    """The first candidate that breaks the same clause in every number system; else the solver's own values."""
    first: Attempted | None = None
    for found_by, values in candidates(violation.values):
        found = FOUND_BY.get(check.strategy, found_by) if found_by == "solver" else found_by
        attempt = _attempt(check, harness, subject, reference, violation, found, values)
        if attempt.reproduced:
            return attempt
        first = first or attempt
    assert first is not None
    return first


def _attempt(
    check: Check, harness: Any, subject: Any, reference: Any, violation: Violated, found_by: str, values: dict[str, Any]
) -> Attempted:
    shown, taken = {name: str(v) for name, v in values.items()}, [str(c) for c in violation.choices]
    example = {"clause": violation.clause, "label": violation.label, "values": shown, "choices": taken}
    attempt = Attempted(example | {"found_by": found_by}, values)
    for family in FAMILIES[check.strategy]:
        clause, detail, case = once(check, harness, subject, values, violation.choices, family)
        good = clause == violation.clause
        if good and reference is not None:
            other, said, _ = once(check, harness, reference, values, violation.choices, family)
            good = other is None
            detail += "" if good else f"; but the reference fails there too: {said}"
        attempt.replays.append({"on": NAMES[family], "reproduced": good, "detail": detail})
        attempt.case = case or attempt.case
    return attempt


def replayed(check: Check, harness: Any, subject: Any, reference: Any, violation: Violated, attempt: Attempted) -> None:
    """Add the window of events to a reproduced counterexample; `reference` is None where the subject is its own."""
    family = FAMILIES[check.strategy][0]

    def run(one: Any) -> Any:
        made = watched(one, subject if reference is None else reference)
        return once(check, harness, made, attempt.values, violation.choices, family)

    ours = events_during(lambda: run(subject))
    right = [] if reference is None else events_during(lambda: run(reference))
    title = f"{violation.clause}, {violation.label}".rstrip(", ")
    slack = CUT if family in ("fraction", "float") else EXACT
    attempt.counterexample |= traced(title, ours, right, f"{violation.clause} breaks", slack)


def watched(subject: Any, reference: Any) -> Any:
    """An instance of a subject that is a class, of which the phases that the reference has are reported."""
    made = instance(subject)
    both = isinstance(subject, type) and isinstance(reference, type)
    return by_phase(made, reference) if both else made


def candidates(values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The solver's values, then constructed worst cases for every vector of inputs."""
    yield "solver", dict(values)
    vectors: dict[str, list[str]] = {}
    for name in values:
        if found := re.fullmatch(r"(.+)\[(\d+)\]", name):
            vectors.setdefault(found[1], []).append(name)
    for fmt in ("fp16", "bf16", "fp32"):
        changed: dict[str, Any] = dict(values)
        for names in vectors.values():
            ordered = sorted(names, key=lambda n: int(n[n.rindex("[") + 1 : -1]))
            changed |= dict(zip(ordered, accumulation_witness(len(ordered), fmt), strict=True))
        yield f"worst-case construction for {fmt}", changed


def torch_replay(check: Check, workspace: Any, name: str, attempt: Attempted) -> None:
    """Add a replay on the PyTorch step of the same name, where the case is one that a step can be given.

    `name` is a control's, or empty for the check's own subject.
    """
    subjects = check.params.get("subjects", {})
    if attempt.case is None or not attempt.reproduced or "torch_mutants" not in subjects:
        return
    if check.strategy == "bit_exhaustive":  # its buffer is no fp32 buffer; the model itself is replayed on torch
        return
    cls = _torch_twin(check, workspace, name, subjects)
    if cls is None:
        return
    from gradproof.execution.methods.replay_torch import replay_model

    attempt.replays.append(replay_model(cls, attempt.case, attempt.counterexample["clause"]))


def _torch_twin(check: Check, workspace: Any, name: str, subjects: Mapping[str, str]) -> Any:
    """The PyTorch step that is the counterpart of a Python model, or None when there is none."""
    if name == "empty body":
        return workspace.resolve(subjects["torch_empty"])
    seeded = re.fullmatch(r".+\[(\w+)\]", check.subject)
    wanted = name or (seeded[1] if seeded else "")
    if not wanted:
        return workspace.resolve(subjects["torch"]) if check.subject == subjects.get("model") else None
    registry = workspace.resolve(subjects["torch_mutants"])
    return registry[wanted].subject if wanted in registry else None
