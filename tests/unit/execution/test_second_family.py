"""The CrossHair contracts of AdamW, batch plans, state, epochs and tails, run in plain Python on drawn arguments.

The reference keeps each of them; the empty body and every mutant break theirs. CrossHair's own
verdicts are those of the checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_checks import Names

from gradproof.contract.model import load
from gradproof.core.check import Check
from gradproof.core.outcome import Kind
from gradproof.execution.methods.controls import named_controls
from gradproof.execution.methods.crosshair import sampled
from gradproof.execution.methods.replay import instance
from gradproof.verdict.plan import plan
from symbolic.adamw import contracts as adamw_contracts
from symbolic.systems import contracts as training_contracts

ROOT = Path(__file__).resolve().parents[3]
MODULES = {"symbolic.adamw.contracts": adamw_contracts, "symbolic.systems.contracts": training_contracts}


def rows() -> dict[str, Check]:
    found = {}
    for name in ("adamw-kernel-v1", "gradient-accumulation-training-v1"):
        checks = plan(load(ROOT / "proofs" / name / "contract.yaml"))
        found |= {c.id: c for c in checks if c.kind is Kind.CROSSHAIR and c.harness.partition(":")[0] in MODULES}
    return found


ROWS = rows()


def disagreement(check: Check, subject: Any) -> str:
    """The first arguments that meet `pre` and on which the contract does not return True; nothing where all do."""
    seen, said = sampled(Names().resolve(check.harness)(instance(subject)))
    assert seen > 0, "no arguments satisfy the pre: lines"
    return said


def test_every_harness_of_both_modules_is_a_row_with_bounds_and_covers() -> None:
    stated = {f"{name}:{h}" for name, module in MODULES.items() for h in module.COVERS}
    assert {c.harness for c in ROWS.values()} == stated
    assert all(set(module.BOUNDS) == set(module.COVERS) for module in MODULES.values())


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_reference_keeps_its_contract_and_the_others_break_it(name: str) -> None:
    check = ROWS[name]
    assert disagreement(check, Names().resolve(check.subject)) == ""
    said = {control.name: disagreement(check, subject) for control, subject in named_controls(check, Names())[0]}
    assert [name for name, words in said.items() if "returned False" not in words] == []


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_layer_of_the_obligation_names_the_family(name: str) -> None:
    contracts = [load(p) for p in sorted((ROOT / "proofs").glob("*/contract.yaml"))]
    layers = {o.id: o.layers for c in contracts for o in c.obligations}
    for obligation in ROWS[name].obligations:
        assert "crosshair" in [str(x) for x in layers[obligation].ci]
