"""A check and a workspace stand-in for the tests of the torch backend."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Kind, Layer
from models.accumulation.torch_mutants import MUTANTS

HARNESSES = {
    "GA-EQ-001": "accumulated_matches_full",
    "GA-INV-001": "loss_is_mean",
    "GA-INV-002": "no_leak_between_cycles",
    "GA-INV-003": "three_steps_in_three_windows",
    "GA-INV-004": "buffer_is_fp32",
    "GA-INV-005": "clips_once_on_the_total",
}
TOLERANCES = [
    {"dtype": "fp32", "value": "1e-5", "metric": "linf", "domain": "|g_i| <= 1", "role": "required"},
    {"dtype": "fp16", "value": "1e-3", "metric": "linf", "domain": "|g_i| <= 1", "role": "required"},
    {"dtype": "bf16", "value": "2e-3", "metric": "linf", "domain": "|g_i| <= 1", "role": "reported"},
]
NETS = ("linear", "transformer")
STEP = "models.accumulation.torch_steps:TorchStep"


@dataclass
class Desk:
    """Resolves names by import, and by the replacements that a test puts in."""

    replaced: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, name: str) -> Any:
        """The object called `module:attribute`."""
        if name in self.replaced:
            return self.replaced[name]
        module, attribute = name.split(":")
        return attrgetter(attribute)(importlib.import_module(module))


def a_check(
    clause: str = "GA-EQ-001",
    dtype: str = "fp32",
    *,
    device: str = "cpu",
    subject: str = STEP,
    nets: Sequence[str] = NETS,
    n: Sequence[int] = (1, 2, 8),
    outside: Sequence[str] = (),
    mutants: Sequence[str] | None = None,
    tolerances: Sequence[Mapping[str, str]] = TOLERANCES,
    examples: int = 6,
) -> Check:
    """A falsification check as the plan makes it."""
    names = [m.name for m in MUTANTS.values() if m.obligation == clause] if mutants is None else mutants
    subjects = {"torch": STEP, "torch_empty": "models.accumulation.torch_steps:EmptyStep"}
    return Check(
        id=f"FALSIFY-{clause}@{device}-{dtype}",
        kind=Kind.TORCH,
        layer=Layer(device),
        obligations=(clause,),
        title="",
        harness=f"symbolic.accumulation.falsify:{HARNESSES[clause]}",
        subject=subject,
        bounds=(Bound("examples", examples, "a test"),),
        mutants=tuple(names),
        params={
            "nets": list(nets),
            "n": list(n),
            "outside": list(outside),
            "device": device,
            "dtype": dtype,
            "subjects": {**subjects, "torch_mutants": "models.accumulation.torch_mutants:MUTANTS"},
        },
        text={"obligations": [{"id": clause, "tolerance": list(tolerances)}]},
    )


def attempt(check: Check, **replaced: Any) -> Finding:
    """Run the check; the keywords replace `subject`, `harness`, `empty` or `mutants`."""
    from gradproof.execution.methods.measure import run

    places = {
        "subject": check.subject,
        "harness": check.harness,
        "empty": check.params["subjects"]["torch_empty"],
        "mutants": check.params["subjects"]["torch_mutants"],
    }
    return run(check, Desk({places[k]: v for k, v in replaced.items()}))
