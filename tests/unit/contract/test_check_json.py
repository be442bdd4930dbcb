"""The plain form of a check is what `dataclasses.asdict` would make of it: digests of claims rest on it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import check

from gradproof.contract.model import load
from gradproof.core.check import Bound, Check, canonical
from gradproof.core.outcome import Expect
from gradproof.verdict.plan import plan

ROOT = Path(__file__).parents[3]


def slow(of: Check) -> dict[str, Any]:
    """The definition."""
    return asdict(of) | {"kind": str(of.kind), "layer": str(of.layer), "expect": str(of.expect)}


def test_every_check_of_a_contract_is_written_as_asdict_writes_it() -> None:
    checks = plan(load(ROOT / "proofs" / "adamw-kernel-v1" / "contract.yaml"))
    assert len(checks) > 20
    for one in checks:
        assert one.to_json() == slow(one)
        assert canonical(one.to_json()) == canonical(slow(one))
        assert Check.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "value", [Bound("n", 1, "why"), {"a": [Bound("n", 1, "why")]}, (1, [2.5, None]), Expect.HOLDS, {"x": {1, 2}}]
)
def test_whatever_a_parameter_holds_is_written_as_asdict_writes_it(value: Any) -> None:
    one = replace(check(), params={"value": value})
    assert one.to_json() == slow(one)


def test_the_plain_form_is_a_copy() -> None:
    one = check(params={"deep": {"list": [1, 2]}})
    before = one.digest
    one.to_json()["params"]["deep"]["list"].append(3)
    assert one.digest == before
    assert replace(one, params={"deep": {"list": [1, 2, 3]}}).digest != before
