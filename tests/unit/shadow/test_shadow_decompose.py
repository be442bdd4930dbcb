"""Operators without a row, by torch's own decompositions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shadow_rows_bench import Case, difference, run

from gradproof.shadow.algebra import Value
from gradproof.shadow.domains.decompose import Decomposer, decompose
from gradproof.shadow.domains.interpreter import Interpreter, NoRow
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Floats
from gradproof.shadow.domains.rounding import RoundingDomain
from gradproof.shadow.ops.rows import load
from gradproof.shadow.ops.table import TABLE, Bool, Example, OperatorRow, T
from gradproof.shadow.tape import Entry

load()
X = T((2, 3))
SHIPPED = {
    "aten.dist": Example(X, X),
    "aten.soft_margin_loss": Example(X, X),
    "aten.mse_loss": Example(X, X),
    "aten._softmax": Example(X, 1, False),
    "aten.native_layer_norm": Example(X, [3], T((3,)), T((3,)), 1e-5),
    "aten.native_group_norm": Example(T((2, 4, 3)), T((4,)), T((4,)), 2, 4, 3, 2, 1e-5),
    "aten.addcdiv": Example(X, X, T((2, 3), 0.5, 2.0)),
    "aten.std": Example(X, [1], correction=0, overload="correction"),
    "aten.masked_fill": Example(X, Bool((3,)), 0.5),
}


def case_of(op: str, form: str = "") -> Case:
    return run(OperatorRow(op, print, (), ""), SHIPPED[op], 1, "float64", form, strided=bool(form))


def without(op: str) -> dict[str, OperatorRow]:
    return {name: row for name, row in TABLE.items() if name != op}


def interpreted(case: Case, table: dict[str, OperatorRow]) -> Interpreter:
    machine = Interpreter(Floats(), table, Decomposer(table))
    for leaf in case.leaves:
        machine.do(leaf)
    machine.do(case.entry)
    return machine


@pytest.mark.parametrize("op", SHIPPED)
def test_a_decomposition_computes_what_the_kernel_computes(op: str) -> None:
    case = case_of(op)
    assert not difference(interpreted(case, without(op)), case.outs)


def test_the_form_in_place_writes_the_view_alone() -> None:
    case = case_of("aten.addcdiv", "_")
    assert case.bases
    assert not difference(interpreted(case, without("aten.addcdiv")), case.bases)


def test_a_wrong_row_of_a_piece_is_seen() -> None:
    case = case_of("aten.mse_loss")
    table = without("aten.mse_loss")
    pieces = decompose(case.entry, table=table)
    assert pieces is not None
    op = next(name for name in table if any(isinstance(i, Entry) and i.op.startswith(f"{name}.") for i in pieces.items))
    table[op] = replace(table[op], rule=lambda k, x, *_, **__: k.lift(x) * 2.0)
    assert difference(interpreted(case, table), case.outs)


def test_an_operator_with_neither_row_nor_decomposition_is_named() -> None:
    op = "aten.geqrf"
    case = run(OperatorRow(op, print, (), ""), Example(T((3, 3))), 1, "float64")
    with pytest.raises(NoRow, match=r"aten\.geqrf"):
        interpreted(case, TABLE)


def test_the_rounding_domain_gets_no_answer() -> None:
    case = case_of("aten.mse_loss")
    table = without("aten.mse_loss")
    machine = Interpreter(RoundingDomain(), table, Decomposer(table))
    for leaf in case.leaves:
        machine.do(leaf)
    with pytest.raises(NoRow):
        machine.do(case.entry)


def test_two_runs_agree_in_the_field_and_uses_are_counted() -> None:
    case, table = case_of("aten.soft_margin_loss"), without("aten.soft_margin_loss")
    found = []
    for _ in range(2):
        decomposer = Decomposer(table)
        machine = Interpreter(Field(3), table, decomposer)
        for leaf in case.leaves:
            machine.do(leaf)
        machine.do(case.entry)
        value = machine.memory.read(case.outs[0][0])
        assert isinstance(value, Value)
        found.append(value.parts[0])
        assert decomposer.used == {"aten.soft_margin_loss.default": 1}
    assert np.array_equal(found[0], found[1])
