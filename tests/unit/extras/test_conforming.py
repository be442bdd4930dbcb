"""Reliance on kernels: an operator conforms only by a row that holds of a single rounding on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import study_sample as sample

from gradproof.arith.formats import FORMATS
from gradproof.arith.linear import Linear
from gradproof.extras.conformance import elementwise
from gradproof.report.studies import KERNELS, ONCE, SINGLE, reliances
from gradproof.rounding.accumulation import Setting, difference
from gradproof.rounding.certificate import certify
from gradproof.rounding.step_contracts import operators_of

Json = dict[str, Any]


def document(data: Json, name: str = "kernels/cpu.json") -> Json:
    """A document as a report carries it while reliance is judged."""
    rows = [{"section": section, **r} for section, found in data["sections"].items() for r in found]
    return {"path": name, "environment": data["environment"], "rows": rows}


def states(checks: list[Json], *documents: Json, here: Json = sample.HERE) -> dict[tuple[str, str, str], str]:
    """State by check, device and operator with its dtype."""
    found = reliances(checks, documents, here)
    return {(r["check"], r["device"], f"{r['operator']} {r['dtype']}"): r["state"] for r in found}


CHAIN = sample.check("K-1")
ADD, DIVIDE = ("K-1", "cpu", "add fp32"), ("K-1", "cpu", "divide fp32")


def test_the_words_are_those_of_the_kernel_rows() -> None:
    assert (SINGLE, ONCE) == (elementwise.SINGLE, elementwise.ONCE)
    names = {o.name for o in elementwise.OPERATORS}
    for kernels in KERNELS.values():
        assert {k.format(dtype=d) for k in kernels for d in ("fp16", "bf16")} <= names


def test_a_row_that_holds_conforms_and_without_a_document_it_is_assumed() -> None:
    there = {("K-1", "cuda", "add fp32"): "NOT_RUN", ("K-1", "cuda", "divide fp32"): "NOT_RUN"}
    assert states([CHAIN], document(sample.kernels())) == {ADD: "HOLDS", DIVIDE: "HOLDS", **there}
    rows = reliances([CHAIN], [document(sample.kernels())], sample.HERE)
    words = next(r["words"] for r in rows if r["device"] == "cuda" and r["operator"] == "add")
    assert (words.partition(":")[0], "add fp32 on cuda (NOT_RUN:" in words) == ("assumption", True)
    assert set(states([CHAIN]).values()) == {"NOT_RUN"}


BREAKS: dict[str, tuple[Callable[[Json], Any], str]] = {
    "refuted": (lambda r: r.update(outcome="REFUTED", mismatches=1, names=["FTZ"]), "REFUTED"),
    "not run": (lambda r: r.update(outcome="NOT_RUN", cases=0, reason="no device"), "NOT_RUN"),
    "error": (lambda r: r.update(outcome="ERROR", reason="crash"), "ERROR"),
    "a product": (lambda r: r.update(claim=f"{ONCE}, times fl(1/scalar)"), "DIFFERS"),
    "a bound": (lambda r: r.update(claim="bound: any order in fp32, rounded once"), "DIFFERS"),
    "another dtype": (lambda r: r.update(dtype="fp64"), "NOT_RUN"),
    "another device": (lambda r: r.update(device="cuda"), "NOT_RUN"),
    "another operator": (lambda r: r.update(operator="div(other)"), "NOT_RUN"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_every_way_not_to_hold_is_an_assumption(name: str) -> None:
    damage, state = BREAKS[name]
    data = sample.kernels()
    damage(next(r for r in data["sections"]["elementwise"] if (r["operator"], r["dtype"]) == ("div(scalar)", "fp32")))
    found = states([CHAIN], document(data))
    assert (found[ADD], found[DIVIDE]) == ("HOLDS", state)


@pytest.mark.parametrize("fact", ["3 of 1000", ""])
def test_two_roundings_conform_only_where_they_were_seen_to_be_one(fact: str) -> None:
    check = sample.check("K-1", rounded=("divide fp16",))
    assert states([check], document(sample.kernels()))["K-1", "cpu", "divide fp16"] == "HOLDS"
    data = sample.kernels()
    one = next(r for r in data["sections"]["elementwise"] if (r["operator"], r["dtype"]) == ("div(tensor)", "fp16"))
    one["facts"] = {"differs from operations rounded to fp16": fact} if fact else {}
    assert states([check], document(data))["K-1", "cpu", "divide fp16"] == "DIFFERS"


@pytest.mark.parametrize("changed", [{"torch": "2.5.0"}, {"machine": "aarch64"}])
def test_a_run_on_another_machine_is_no_row_of_this_one(changed: Json) -> None:
    found = states([CHAIN], document(sample.kernels()), here=sample.HERE | changed)
    assert found[ADD] == "NOT_RUN"


def test_measured_evidence_names_the_instruction_set_and_the_gpu() -> None:
    both = [document(sample.kernels()), document(sample.kernels(device="cuda"), "kernels/cuda.json")]
    same = [sample.check("T@cpu", "property test", layer="cpu", environment={"device": "cpu AVX2"}),
            sample.check("T@cuda", "property test", layer="cuda", environment={"device": "NVIDIA H100"})]  # fmt: skip
    assert set(states([CHAIN, *same], *both).values()) == {"HOLDS"}
    other = [c | {"environment": {"device": "another"}} for c in same]
    assert set(states([CHAIN, *other], *both).values()) == {"NOT_RUN"}


def test_a_document_of_one_device_says_nothing_of_the_other() -> None:
    """A run on the CPU lists CUDA rows that it could not run; they must not hide those of a GPU."""
    data = sample.kernels([*sample.elementwise(), sample.row("add_(tensor)", "fp32", "cuda", outcome="NOT_RUN")])
    gpu = document(sample.kernels(device="cuda"), "kernels/cuda.json")
    assert states([CHAIN], document(data), gpu)["K-1", "cuda", "add fp32"] == "HOLDS"
    assert states([CHAIN], document(data))["K-1", "cuda", "add fp32"] == "NOT_RUN"


def test_the_worst_of_two_documents_counts() -> None:
    bad = sample.kernels([sample.row("add_(tensor)", "fp32", outcome="REFUTED", mismatches=1)])
    assert states([CHAIN], document(sample.kernels()), document(bad, "kernels/b.json"))[ADD] == "REFUTED"


def test_a_stub_relies_on_what_the_checks_that_name_it_round() -> None:
    stub = sample.check("STUB-1", "exhaustive", (), kind="stub")
    user = sample.check("K-2", "stub_float", ("add fp16", "convert fp16"), stubs=["STUB-1"])
    found = states([stub, user], document(sample.kernels()))
    assert {key[2]: s for key, s in found.items() if key[1] == "cpu"} == {"add fp16": "HOLDS", "convert fp16": "HOLDS"}
    assert {key[0] for key in found} == {"STUB-1"}
    assert set(states([stub]).values()) == {"UNUSED"}


@pytest.mark.parametrize("changed", [{"fresh": False}, {"stats": {}}])
def test_without_fresh_evidence_nothing_conforms(changed: Json) -> None:
    stub = sample.check("STUB-1", "exhaustive", (), kind="stub")
    user = sample.check("K-2", "stub_float", ("add fp16",), stubs=["STUB-1"])
    found = states([stub, user | changed, CHAIN | changed], document(sample.kernels()))
    assert set(found.values()) == {"NOT_RUN"}
    assert {key[0] for key in found} == {"STUB-1", "K-1"}


def test_an_operator_without_a_kernel_is_assumed() -> None:
    check = sample.check("K-1", rounded=("remainder fp32",))
    assert states([check], document(sample.kernels()))["K-1", "cpu", "remainder fp32"] == "NOT_RUN"


@pytest.mark.parametrize(
    ("setting", "operators"),
    [
        (Setting(4), {"add fp32", "divide fp32"}),
        (Setting(3), {"add fp32", "divide fp32"}),
        (Setting(3, scale="multiply"), {"add fp32", "multiply fp32"}),
        (Setting(4, order="kahan"), {"add fp32", "divide fp32"}),
        (Setting(4, inputs="fp16"), {"add fp32", "divide fp32", "convert fp16"}),
        (Setting(4, buffer="bf16", scale="none"), {"add bf16"}),
    ],
)
def test_a_chain_names_its_operators(setting: Setting, operators: set[str]) -> None:
    assert operators_of(certify(difference(setting)).rows) == operators


def test_a_negation_rounds_nothing() -> None:
    x = Linear.input("x", "fp32", FORMATS["fp32"].largest)
    assert operators_of(certify((-x).exact() + x.exact()).rows) == set()
