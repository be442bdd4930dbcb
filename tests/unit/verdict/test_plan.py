"""Contract -> checks: nothing left out, nothing planned twice, every clause carried in full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import write_workspace

from gradproof.contract.model import Contract, load
from gradproof.contract.schema import LayersShape, Least, SubjectsShape
from gradproof.contract.settings import Demands
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Expect, Kind, Layer
from gradproof.verdict.plan import falsification_id, plan, policy_of

ROOT = Path(__file__).resolve().parents[3]
CONTRACTS = [*sorted(ROOT.glob("proofs/*/contract.yaml")), ROOT / "tests/contracts/field.yaml"]


@pytest.fixture
def toy(tmp_path: Path) -> Contract:
    return load(write_workspace(tmp_path / "toy").contracts()[0])


def changed(entry: Any, **values: Any) -> Any:
    """A clause with other values."""
    return entry.model_copy(update=values)


def by_id(contract: Contract) -> dict[str, Check]:
    return {c.id: c for c in plan(contract)}


def test_one_check_for_each_row_device_and_dtype(toy: Contract) -> None:
    found = by_id(toy)
    assert list(found) == ["STUB-1", "K-1", "K-2", "F-1@cpu-fp32", "F-1@cuda-fp32", "GATE-1/falsification"]
    assert [str(c.kind) for c in found.values()] == ["stub", "smt", "smt", "torch", "torch", "gate"]
    assert [str(c.layer) for c in found.values()] == ["smt", "smt", "smt", "cpu", "cuda", "smt"]


def test_a_proof_carries_its_claim(toy: Contract) -> None:
    one, two = (by_id(toy)[name] for name in ("K-1", "K-2"))
    assert (one.expect, two.expect) == (Expect.HOLDS, Expect.REFUTED)
    assert (one.depends, one.stubs, one.mutants) == (("STUB-1",), ("STUB-1",), ("bug",))
    assert (one.subject, one.harness, one.strategy) == ("models.a:VALUE", "symbolic.toy:a_is_one", "stub_float")
    assert one.bound("micro_batches") == 2
    assert one.text["obligations"][0]["id"] == "T-1"
    assert one.text["obligations"][0]["tolerance"][0]["value"] == "1e-5"
    assert one.text["stubs"][0]["stub"] == "symbolic.stub"
    assert one.params["subjects"] == dict(toy.subjects)


def test_a_run_is_narrowed_to_its_device_and_dtype(toy: Contract) -> None:
    cpu, gpu = (by_id(toy)[f"F-1@{d}-fp32"] for d in ("cpu", "cuda"))
    assert (cpu.params["device"], cpu.params["dtype"]) == ("cpu", "fp32")
    assert (gpu.params["device"], gpu.params["dtype"]) == ("cuda", "fp32")
    assert "dtypes" not in cpu.params
    assert cpu.subject == "models.b:VALUE"


def test_another_dtype_leaves_the_evidence_of_the_first_alone(toy: Contract) -> None:
    """Adding bf16 must not re-run fp32."""
    test = toy.falsification_tests[0]
    params = {**test.params, "dtypes": {"cpu": ["fp32", "bf16"], "cuda": ["fp32"]}}
    broader = changed(test, params=params)
    broader._raw = {**test.raw, "params": params}
    more = replace(toy, falsification_tests=(broader,))
    before, after = by_id(toy), by_id(more)
    assert "F-1@cpu-bf16" in after
    assert after["F-1@cpu-fp32"].digest == before["F-1@cpu-fp32"].digest


def test_a_changed_clause_changes_the_digest_of_what_speaks_about_it(toy: Contract) -> None:
    clause = toy.obligations[0]
    tighter = changed(clause, tolerance=[changed(clause.tolerance[0], value="1e-6")])
    before, after = by_id(toy), by_id(replace(toy, obligations=(tighter,)))
    assert {name for name in before if before[name].digest != after[name].digest} == {
        "K-1",
        "K-2",
        "F-1@cpu-fp32",
        "F-1@cuda-fp32",
        "GATE-1/falsification",
    }


def test_a_check_carries_the_tolerances_of_other_obligations_and_nothing_else_of_them(toy: Contract) -> None:
    """KANI-GA-004 claims GA-INV-004 and measures it by GA-EQ-001's tolerance."""
    other = changed(toy.obligations[0], id="T-2")
    silent = changed(other, id="T-3", tolerance=[])
    clauses = by_id(replace(toy, obligations=(*toy.obligations, other, silent)))["K-1"].text["obligations"]
    assert [c["id"] for c in clauses] == ["T-1", "T-2"]
    assert set(clauses[1]) == {"id", "tolerance"}


def test_a_stub_is_a_claim_of_its_own(toy: Contract) -> None:
    one = by_id(toy)["STUB-1"]
    assert (one.obligations, one.subject, one.params["formats"]) == ((), "symbolic.stub", ["fp16"])


def test_the_gates_falsification_is_self_contained(toy: Contract) -> None:
    gate = by_id(toy)["GATE-1/falsification"]
    seeded = {d["id"]: Check.from_json(d) for d in gate.params["subchecks"]}
    assert list(seeded) == ["K-1", "F-1@cpu-fp32"]
    assert seeded["K-1"].subject == "models.registry:MUTANTS[bug]"
    assert all(c.mutants == () and c.params["controls_off"] for c in seeded.values())
    assert gate.depends == ("STUB-1",)
    assert gate.params["criteria"] == {"right": ["T-1"]}
    assert gate.time_limit == sum(c.time_limit for c in seeded.values())


def test_expected_refutations_and_gpu_runs_are_no_part_of_the_falsification(toy: Contract) -> None:
    first, second = toy.harnesses
    named = replace(toy, harnesses=(first, changed(second, mutants=["bug"])))
    names = [d["id"] for d in by_id(named)["GATE-1/falsification"].params["subchecks"]]
    assert "K-2" not in names
    assert "F-1@cuda-fp32" not in names


def test_a_seeded_bug_that_no_check_kills_leaves_nothing_to_run(toy: Contract) -> None:
    assert toy.gate is not None
    other = replace(toy, gate=changed(toy.gate, seeded_bug=["unheard_of"]))
    assert by_id(other)["GATE-1/falsification"].params["subchecks"] == []


def test_the_policy_follows_the_profile(toy: Contract) -> None:
    ci, release = policy_of(toy, "ci"), policy_of(toy, "release")
    assert ci.clauses[0].layers == (Layer.SMT, Layer.CPU)
    assert release.clauses[0].layers == (Layer.SMT, Layer.CPU, Layer.CUDA)
    assert [c.name for c in ci.criteria] == ["right"]
    assert ci.gate_check == "GATE-1/falsification"


def test_a_gate_check_without_criteria_is_an_unmet_criterion(toy: Contract) -> None:
    assert toy.gate is not None
    other = replace(toy, gate=changed(toy.gate, checks=["right", "unheard_of"]))
    assert [(c.name, c.obligations) for c in policy_of(other, "ci").criteria] == [
        ("right", ("T-1",)),
        ("unheard_of", ()),
    ]


def test_an_id_planned_twice_is_an_error(toy: Contract) -> None:
    with pytest.raises(GradproofError, match="GP210"):
        plan(replace(toy, harnesses=[*toy.harnesses, *toy.harnesses]))


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda p: p.parent.name)
def test_every_contract_at_hand_is_planned_whole(path: Path) -> None:
    contract = load(path)
    checks = plan(contract)
    rows = [*contract.stubs, *contract.harnesses, *contract.falsification_tests]
    for row in rows:
        assert any(c.id.partition("@")[0] == row.id for c in checks), row.id
    assert len({c.id for c in checks}) == len(checks)
    for one in checks:
        assert Check.from_json(one.to_json()).digest == one.digest
    if contract.gate is not None:
        assert falsification_id(contract.gate) in [c.id for c in checks]


@pytest.mark.parametrize(
    ("name", "killers"),
    [
        ("gradient-accumulation-kernel-v1", {"KANI-GA-001", "FALSIFY-GA-001@cpu-fp32"}),
        ("adamw-kernel-v1", {"KANI-AW-001", "KANI-AW-008", "FALSIFY-AW-001@cpu-fp32"}),
    ],
)
def test_the_reference_contract_covers_every_obligation_on_every_layer(name: str, killers: set[str]) -> None:
    contract = load(next(path for path in CONTRACTS if path.parent.name == name))
    checks = plan(contract)
    for obligation in contract.obligations:
        for layer in obligation.layers.release:
            assert any(obligation.id in c.obligations and c.layer is layer for c in checks), (obligation.id, layer)
    gate = checks[-1]
    assert gate.kind is Kind.GATE
    assert killers <= {d["id"] for d in gate.params["subchecks"]}


def test_an_obligation_brings_subjects_and_controls_of_its_own(toy: Contract) -> None:
    (one,) = toy.obligations
    about = {"model": "models.other:M", "mutants": "models.other:BUGS", "torch": "models.other:T"}
    other = by_id(replace(toy, obligations=(changed(one, subjects=SubjectsShape(**about)),)))
    assert {other["K-1"].subject, other["F-1@cpu-fp32"].subject} == {"models.other:M", "models.other:T"}
    assert other["K-1"].params["subjects"] == {**toy.subjects, **about}
    seeded = [row["subject"] for row in other["GATE-1/falsification"].params["subchecks"]]
    torch_mutants = toy.subjects["torch_mutants"]
    assert seeded == ["models.other:BUGS[bug]", f"{torch_mutants}[bug]"]


@pytest.mark.parametrize(("layers", "solver", "want"), [
    ((Layer.CPU,), "z3", (Layer.CPU, Layer.SMT)), ((Layer.CPU,), "crosshair", (Layer.CPU, Layer.CROSSHAIR)),
    ((Layer.CPU,), "", (Layer.CPU, Layer.SMT)), ((Layer.STEP,), "z3", (Layer.STEP,)),
])  # fmt: skip
def test_a_least_bound_asks_for_a_layer_of_proofs(
    toy: Contract, layers: tuple[Layer, ...], solver: str, want: tuple[Layer, ...]
) -> None:
    """The one that has a proof of the obligation, where none is required."""
    harnesses = tuple(changed(h, solver=solver) for h in toy.harnesses) if solver else ()
    asked = LayersShape(ci=list(layers), release=list(layers))
    toy = replace(toy, obligations=(changed(toy.obligations[0], layers=asked),), harnesses=harnesses)
    more = Demands({"T-1": Least(bounds={"micro_batches": 2})})
    assert [c.layers for c in policy_of(toy, "ci", more).clauses] == [want]
