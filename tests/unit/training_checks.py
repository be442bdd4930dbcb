"""Single checks of the contracts on training and on accumulation, run in this process."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gradproof.contract.model import load
from gradproof.core.check import Check, Finding
from gradproof.execution.methods import smt as smt_run
from gradproof.verdict.plan import plan

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "proofs" / "gradient-accumulation-training-v1" / "contract.yaml"
KERNEL = ROOT / "proofs" / "gradient-accumulation-kernel-v1" / "contract.yaml"


class Names:
    """A workspace of importable names; `name[key]` is an entry of a registry."""

    def resolve(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)


@cache
def checks() -> dict[str, Check]:
    """The checks of both contracts by id."""
    return {c.id: c for path in (CONTRACT, KERNEL) for c in plan(load(path))}


def found(name: str, subject: str = "") -> Finding:
    """What the SMT backend finds; with a subject, that one instead of the check's own and without controls."""
    check = checks()[name]
    if subject:
        check = replace(check, subject=subject, params={**check.params, "controls_off": True})
    return smt_run.run(check, Names())
