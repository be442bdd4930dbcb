"""The rounding domain against real kernels: every covered row's examples, in three formats, inside their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gradproof.shadow.algebra import Beyond, Value, lift, where
from gradproof.shadow.domains.interpreter import Interpreter
from gradproof.shadow.domains.report import report
from gradproof.shadow.domains.rounding import Radius, Ranges, RoundingDomain
from gradproof.shadow.domains.rounding_kernels import COVERED, SPECIAL, table, unknown
from gradproof.shadow.ops.table import Bool, Example, Int, OperatorRow, Ops, PathConditions, T, names
from gradproof.shadow.record.run import Run, record
from gradproof.shadow.tape import NOWHERE, Const, Entry, Leaf, Ref, Source

SEEDS = 2
APART = ("aten._amp_foreach_non_finite_check_and_unscale_", "aten.new_zeros")
"""In place with arguments of fixed dtypes, and made of nothing: not for a loop over random arguments."""

HALVES = ("bfloat16", "float16")
DTYPES = ("float64", "float32", "int64", "bool", *HALVES)


def ref(number: int, tensor: torch.Tensor) -> Ref:
    return Ref(number, str(tensor.dtype)[6:], 0, tuple(tensor.shape), tensor.contiguous().stride(), tensor.numel())


class OneCall:
    """One operator on random arguments: the tape's entry, its leaves, and what the kernel made."""

    def __init__(self, op: str, example: Example, dtype: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype, self.leaves, self.count = dtype, [], 0
        args = [self.made(a) for a in example.args]
        kwargs = {name: self.made(a) for name, a in example.kwargs.items()}
        space, name = op.split(".")[:2]
        overload = example.overload or (op.split(".")[2] if op.count(".") == 2 else "")
        packet = getattr(getattr(torch.ops, space), name)
        function = getattr(packet, overload) if overload else packet
        self.full = f"{space}.{name}.{overload or 'default'}"
        real = [self.tensor(a) for a in args]
        out = function(*real, **{n: self.tensor(a) for n, a in kwargs.items()})
        self.results = list(out) if isinstance(out, tuple) else [out]
        outs = tuple(self.out(o) for o in self.results)
        self.entry = Entry(self.full, tuple(map(self.taped, args)), {n: self.taped(a) for n, a in kwargs.items()},
                           outs, (), NOWHERE, self.seen())  # fmt: skip

    def seen(self) -> dict[int, np.ndarray]:
        plain = enumerate(self.results)
        return {i: r.numpy() for i, r in plain if isinstance(r, torch.Tensor) and not r.is_floating_point()}

    def made(self, spec: Any) -> Any:
        if isinstance(spec, T):
            values = torch.tensor(self.rng.uniform(spec.low, spec.high, spec.shape))
            return values.to(getattr(torch, self.dtype))
        if isinstance(spec, Int):
            return torch.tensor(self.rng.integers(spec.low, spec.high, spec.shape))
        if isinstance(spec, Bool):
            return torch.tensor(self.rng.random(spec.shape) < 0.5)
        return [self.made(s) for s in spec] if isinstance(spec, list | tuple) else spec

    def tensor(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg.clone()
        if isinstance(arg, str) and arg in DTYPES:
            return getattr(torch, arg)
        return [self.tensor(a) for a in arg] if isinstance(arg, list | tuple) else arg

    def taped(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and not arg.is_floating_point():
            return Const(arg.numpy(), str(arg.dtype)[6:])
        if isinstance(arg, torch.Tensor):
            self.count += 1
            made = ref(self.count, arg)
            source = Source("data", f"x{self.count}")
            self.leaves.append(Leaf(made, source, arg.double().numpy(), NOWHERE))
            return made
        return [self.taped(a) for a in arg] if isinstance(arg, list | tuple) else arg

    def out(self, o: Any) -> Any:
        if isinstance(o, list):
            return [self.out(x) for x in o]
        if not isinstance(o, torch.Tensor):
            return None
        self.count += 1
        return ref(self.count + 1000, o)

    def enclosures(self, rows: dict[str, OperatorRow], **options: Any) -> list[tuple[np.ndarray, Value]]:
        interpreter = Interpreter(RoundingDomain(**options), rows)
        for item in [*self.leaves, self.entry]:
            interpreter.do(item)
        pairs = zip(flat(self.results), flat(self.entry.outs), strict=True)
        return [
            (r.double().numpy(), interpreter.memory.read(o))
            for r, o in pairs
            if isinstance(o, Ref) and o.floating and r.numel()
        ]


def flat(x: Any) -> list[Any]:
    return [z for y in x for z in flat(y)] if isinstance(x, list | tuple) else [x]


def excess(value: np.ndarray, found: Value) -> float:
    """How far the kernel's result lies outside the enclosure, as a multiple of the bound; at most 1 is inside."""
    lo, hi, err = found.parts[:3]
    away = np.maximum(np.maximum(value - hi, lo - value), 0.0)
    return float(np.max(np.where(away > 0, away / np.maximum(err, 1e-300), 0.0)))


def cases() -> list[tuple[str, int]]:
    rows = table()
    return [
        (op, i)
        for op, row in sorted(rows.items())
        for i in range(len(row.examples))
        if op not in APART
        and isinstance((*row.examples[i].args, 0, 0)[1] if op == "aten.pow" else 0, int | float)
        and any(n in COVERED or n in SPECIAL for n in names(op))
    ]


CASES = cases()


LOOSE = ("aten.native_layer_norm", "bfloat16")
"""With every step of it in bf16, the variance may be off by more than itself: a bound only for fp32 inside."""


def test_a_layer_norm_in_bf16_throughout_has_no_bound() -> None:
    rows = table()
    call = OneCall(LOOSE[0], Example(T((2, 8), 4.9, 5.1), [8], None, None, 1e-5), LOOSE[1], 0)
    with pytest.raises(Beyond):
        call.enclosures(rows)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(("op", "index"), CASES)
def test_kernels_stay_inside(op: str, index: int, dtype: str) -> None:
    rows = table()
    for seed in range(SEEDS):
        call = OneCall(op, rows[op].examples[index], dtype, seed)
        for value, found in call.enclosures(rows, wide=(op, dtype) == LOOSE):
            assert excess(value, found) <= 1.0


STEPS = ("linear", "mlp", "attention")


def network(kind: str) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(1)
    if kind == "linear":
        one = torch.nn.Linear(4, 3)
        return one, one
    if kind == "mlp":
        many = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3), torch.nn.Tanh())
        return many, many
    parts = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ("q", "k", "v")})

    def attend(x: torch.Tensor) -> torch.Tensor:
        scores = parts["q"](x) @ parts["k"](x).transpose(-1, -2) / 2.0
        return torch.softmax(scores, -1) @ parts["v"](x)

    return parts, attend


def trained(kind: str, dtype: str) -> Any:
    def step(run: Run) -> None:
        module, forward = network(kind)
        module = module.half() if dtype == "float16" else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.125)
        for _ in range(run.accum_steps):
            x = torch.randn(run.micro_batch_size, 3, 4)
            x = x.half() if dtype == "float16" else x
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
                out = forward(x)
            ((out.float() ** 2).mean() / run.accum_steps).backward()
        optimizer.step()

    recording = record(step, Run(accum_steps=3, windows=1))
    assert not recording.error
    return recording.tape


@pytest.fixture(scope="module")
def tapes() -> dict[tuple[str, str], Any]:
    return {(kind, dtype): trained(kind, dtype) for kind in STEPS for dtype in ("float32", *HALVES)}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("kind", STEPS)
def test_steps_stay_inside(tapes: dict[tuple[str, str], Any], kind: str, dtype: str, wide: bool) -> None:
    found = report(tapes[(kind, dtype)], wide=wide)
    assert {one["quantity"] for one in found} == {"grad", "weight"}
    for one in found:
        assert one["within"], one
        assert one["measured"] <= one["bound"]
    assert any(one["measured"] > 0 for one in found)


def test_a_linear_bound_is_tight(tapes: dict[tuple[str, str], Any]) -> None:
    found = [one for one in report(tapes[("linear", "float32")]) if one["quantity"] == "grad"]
    assert max(one["bound"] for one in found) <= 100 * max(one["measured"] for one in found)


@pytest.mark.parametrize("kind", STEPS)
def test_a_bound_that_is_too_small_is_found_out(tapes: dict[tuple[str, str], Any], kind: str) -> None:
    assert not all(one["within"] for one in report(tapes[(kind, "float32")], scale=2.0**-10))


def test_a_row_that_forgets_an_operand_is_found_out(tapes: dict[tuple[str, str], Any]) -> None:
    rows = table(extra={"aten.addmm": lambda k, bias, a, b, **kw: k.lift(a) @ k.lift(b)})
    assert not all(one["within"] for one in report(tapes[("linear", "float32")], rows=rows))


def test_operators_that_contribute_are_named(tapes: dict[tuple[str, str], Any]) -> None:
    found = report(tapes[("attention", "float32")])
    shares = [part for one in found for part in one["top"]]
    assert shares
    assert all(0 < part["share"] <= 1 and "test_shadow_rounding.py:" in part["place"] for part in shares)


def test_an_operator_without_a_bound_is_named(tapes: dict[tuple[str, str], Any]) -> None:
    found = report(tapes[("linear", "float32")], rows=table(extra={"aten.addmm": unknown("aten.addmm")}))
    assert all(one["bound"] is None and "aten.addmm" in one["reason"] for one in found if one["quantity"] == "grad")


def test_every_machine_run_in_range_stays_inside() -> None:
    rows, radius = table(), Radius(absolute=0.5)
    example = Example(T((3, 4)), T((4, 2)))
    wide = OneCall("aten.mm", example, "float32", 0)
    ((_, found),) = wide.enclosures(rows, ranges=Ranges(default=radius))
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (leaf.value + rng.uniform(-0.5, 0.5, leaf.value.shape) for leaf in wide.leaves)
        a, b = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
        exact = a.double().numpy() @ b.double().numpy()
        assert np.all((exact >= found.parts[0] - 1e-12) & (exact <= found.parts[1] + 1e-12))
        assert np.all(np.abs((a @ b).double().numpy() - exact) <= found.parts[2])


@pytest.mark.parametrize("order", range(20))
def test_sums_in_any_order(order: int) -> None:
    rng = np.random.default_rng(order)
    x = (rng.uniform(-1, 1, 64) * 10.0 ** rng.integers(-3, 3, 64)).astype(np.float16)
    domain = RoundingDomain()
    domain._format("float16")
    leaf = domain.leaf(Source("data", "x"), x.shape, x.astype(np.float64))
    _, _, err, _ = domain.sum(leaf, (0,))
    total = np.float16(0)
    for value in rng.permutation(x):
        total = np.float16(total + value)
    assert abs(float(total) - float(x.astype(np.float64).sum())) <= float(err)


def test_powers_of_two_are_free_and_underflow_is_not() -> None:
    domain = RoundingDomain()
    domain._format("float16")
    leaf = domain.leaf(Source("data", "x"), (2,), np.array([1.5, 2.0**-14]))
    assert float(domain.mul(leaf, domain.const(np.array(4.0)))[2].max()) == 0
    assert float(domain.mul(leaf, domain.const(np.array(2.0**-11)))[2].max()) >= 2.0**-25
    assert float(domain.const(np.array(0.1))[2]) >= abs(0.1 - float(np.float16(0.1)))


def test_overflow_and_division_by_zero_have_no_bound() -> None:
    domain = RoundingDomain()
    domain._format("float16")
    big = Value(domain, domain.leaf(Source("data", "x"), (1,), np.array([60000.0])))
    with pytest.raises(Beyond, match="overflow"):
        domain.rounded((big + big).parts, "float16", None)
    domain.reason = ""
    with pytest.raises(Beyond, match="zero"):
        domain.rounded((big / (big - big)).parts, "float16", None)
    safe = where(np.array([False]), big / (big - big), big)
    assert float(domain.rounded(safe.parts, "float16", None)[2][0]) == 0


def test_an_undecided_branch_carries_both_sides() -> None:
    domain = RoundingDomain(Ranges(default=Radius(box=1.0)))
    x = Value(domain, domain.leaf(Source("data", "x"), (1,), np.array([0.5])))
    lo, hi, err, _ = where(x < 0.0, lift(domain, -3.0), lift(domain, 2.0)).parts
    assert (float(lo[0]), float(hi[0])) == (-3.0, 2.0)
    assert float(err[0]) >= 5.0


def test_softmax_with_a_mask() -> None:
    rows = table()
    call = OneCall("aten._softmax", Example(T((2, 5), -30.0, 30.0), -1, False), "float32", 3)
    ((value, found),) = call.enclosures(rows)
    assert excess(value, found) <= 1.0
    domain = RoundingDomain()
    domain._format("float32")
    masked = Value(domain, domain.const(np.array([[0.5, -np.inf, 0.25]])))
    parts = SPECIAL["aten._softmax"](Ops(domain, call.entry, PathConditions()), masked, -1, False).parts
    assert float(parts[1][0, 1]) == 0 == float(parts[2][0, 1])
