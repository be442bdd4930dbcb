"""Every row of the operator table against the real kernel, on the row's own examples, in floats and by bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from shadow_rows_bench import Case, difference, read, run

from gradproof.core.errors import GradproofError
from gradproof.shadow.algebra import Beyond, Value
from gradproof.shadow.domains.floats import Floats
from gradproof.shadow.domains.interpreter import Interpreter, NoRow
from gradproof.shadow.domains.rounding import RoundingDomain
from gradproof.shadow.domains.rounding_kernels import table as rounding_table
from gradproof.shadow.ops.rows import load
from gradproof.shadow.ops.table import TABLE, Example, OperatorRow, T, register
from gradproof.shadow.tape import NOWHERE, Entry, Ref
from tests.operators import elsewhere

load()
ROWS = sorted(op for op, row in TABLE.items() if row.module.startswith("gradproof."))
FP32_ONLY = "itensor_view_from_dense expects|expected scalar type Float but found Double|must be a float tensor"


@functools.cache
def cases(op: str, dtype: str | None = None, seed: int = 1) -> list[Case]:
    """The runs of a row's examples that this machine's kernels take; see the two tests of what is left out."""
    found = []
    for example in TABLE[op].examples:
        try:
            found.append(run(TABLE[op], example, seed, dtype))
        except NotImplementedError:
            continue
        except RuntimeError as error:
            if dtype != "float64" or not any(text in str(error) for text in FP32_ONLY.split("|")):
                raise
    return found


@pytest.mark.parametrize("op", ROWS)
def test_a_row_computes_what_the_kernel_computes(op: str) -> None:
    for dtype in (None, "float64"):
        for case in cases(op, dtype):
            assert case.outs
            assert not difference(case.interpret(Floats()), case.outs)


def test_only_scaled_operators_have_no_float64_run() -> None:
    without = {op for op in ROWS if len(cases(op, "float64")) < len(cases(op))}
    assert all(op.startswith(("aten._fused_", "aten._amp_", "aten.mkldnn_")) for op in without)


def test_only_kernels_of_other_devices_are_not_run() -> None:
    assert {op for op in ROWS if len(cases(op)) < len(TABLE[op].examples)} <= {op for op in ROWS if elsewhere(op)}


def wrong(value: Any) -> Any:
    """A result that is off by a hundredth, a truth value negated, an integer off by one."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return type(value)(wrong(v) for v in value)
    if isinstance(value, Value):
        return ~value if value.truth else value * 1.01 + 0.037
    array = np.asarray(value)
    return ~array if array.dtype == bool else array * 1.01 + 0.037 if array.dtype.kind == "f" else array + 1


def spoiled(row: OperatorRow) -> OperatorRow:
    return replace(row, rule=lambda *args, **kwargs: wrong(row.rule(*args, **kwargs)))


@pytest.mark.parametrize("op", ROWS)
def test_a_wrong_row_is_seen(op: str) -> None:
    table = {**TABLE, op: spoiled(TABLE[op])}
    for case in cases(op):
        machine = case.interpret(Floats(), table)
        assert machine.recorded(case.entry) or difference(machine, case.outs)


SWAPPED: dict[str, tuple[str, Callable[..., Any]]] = {
    "sub for add": ("aten.add", lambda k, x, y, alpha=1: k.lift(x) - k.lift(y) * alpha),
    "no alpha": ("aten.add", lambda k, x, y, alpha=1: k.lift(x) + k.lift(y)),
    "sum for mean": ("aten.mean", TABLE["aten.sum"].rule),
    "biased variance": ("aten.var", lambda k, x, dim=None, correction=None, keepdim=False: TABLE["aten.var"].rule(
        k, x, dim, 0, keepdim)),
    "derivative of the other gelu": ("aten.gelu_backward", lambda k, g, x, approximate="none": TABLE[
        "aten.gelu_backward"].rule(k, g, x, "none" if approximate == "tanh" else "tanh")),
    "transposed product": ("aten.addmm", lambda k, x, a, b, beta=1, alpha=1: TABLE["aten.addmm"].rule(
        k, x, a, b, alpha, beta)),
    "decoupled decay": ("aten._fused_adam_", TABLE["aten._fused_adamw_"].rule),
    "least for largest": ("aten.amax", TABLE["aten.amin"].rule),
    "strict for not strict": ("aten.relu", lambda k, x: -x),
    "forgotten mask": ("aten.threshold_backward", lambda k, g, x, limit: k.lift(g)),
}  # fmt: skip


@pytest.mark.parametrize("name", SWAPPED)
def test_a_swapped_rule_is_seen(name: str) -> None:
    op, rule = SWAPPED[name]
    table = {**TABLE, op: replace(TABLE[op], rule=rule)}
    assert any(difference(case.interpret(Floats(), table), case.outs) for case in cases(op))


# Aliasing.


def written(op: str, form: str) -> list[Case]:
    """The forms that write a tensor of the caller's, through strided views of larger storages."""
    space, base, *_ = op.split(".")
    packet = getattr(getattr(torch.ops, space), base + ("_" if form == "_" else ""), None)
    found: list[Case] = []
    if packet is None or (form == "_" and base.endswith("_")):
        return found
    for example in TABLE[op].examples:
        try:
            found.append(run(TABLE[op], example, 2, "float64", form, strided=True))
        except (RuntimeError, AttributeError, TypeError, ValueError):
            continue
    return found


BLIND_TO_STRIDES = frozenset({"aten._masked_softmax"})
"""Kernels of torch (2.13, CPU) that read a transposed input as if contiguous: the result is wrong, not the row."""


@pytest.mark.parametrize("form", ["_", "out"])
def test_forms_that_write_an_argument_write_exactly_that(form: str) -> None:
    total = 0
    for op in ROWS:
        for case in written(op, form) if cases(op) and op not in BLIND_TO_STRIDES else []:
            if not case.strays:
                assert not difference(case.interpret(Floats()), case.bases), (op, case.entry)
            total += bool(case.bases) and not case.strays
    assert total >= 100


def test_a_write_beside_the_view_is_seen() -> None:
    case = next(c for c in written("aten.mul", "_"))
    machine = case.interpret(Floats())
    ref = case.bases[0][0]
    machine.memory.write(replace(ref, offset=0, shape=(1,), stride=(1,)), np.full((1,), 9.0))
    assert difference(machine, case.bases)


# The domain of rounding.


@functools.cache
def bounded() -> dict[str, OperatorRow]:
    return rounding_table()


def enclosed(case: Case, table: dict[str, OperatorRow]) -> bool | None:
    """Whether the kernel's results lie in the enclosure; None where no bound is claimed."""
    try:
        machine = case.interpret(RoundingDomain(), table)
    except Beyond:
        return None
    inside = True
    for ref, kernel in case.outs:
        value = read(machine, ref)
        if isinstance(value, Value) and not value.truth and ref.floating:
            low, high, error, _ = value.parts
            inside &= bool(np.all((low - error <= kernel) & (kernel <= high + error)))
    return inside


def test_rounding_bounds_contain_the_kernels_results() -> None:
    claims = 0
    for op in ROWS:
        for case in cases(op):
            answer = enclosed(case, bounded())
            assert answer is not False, (op, case.entry)
            claims += answer is True
    assert claims >= 150


def test_a_wrong_bound_is_seen() -> None:
    for op in ("aten.add", "aten.mm", "aten.exp", "aten.sum"):
        assert enclosed(cases(op)[0], {**bounded(), op: spoiled(bounded()[op])}) is False


# The table itself.


def test_an_operator_without_a_row_is_named() -> None:
    entry = Entry("aten.nosuch.default", (), {}, (Ref(0, "float32", 0, (1,), (1,), 1),), (), NOWHERE)
    with pytest.raises(NoRow, match=r"no row for aten\.nosuch\.default"):
        Interpreter(Floats()).do(entry)


def test_a_row_needs_an_example_and_no_second() -> None:
    with pytest.raises(GradproofError, match="carries no example"):
        register("mine.none")(lambda k, x: x)
    with pytest.raises(GradproofError, match="a second row"):
        register("aten.add", examples=[Example(T((1,)))])(lambda k, x: x)


def test_there_are_as_many_rows_as_promised() -> None:
    assert len(ROWS) >= 120
