"""The strategy bit_exhaustive: the exact worst case of a harness's own text, and what it cannot say."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gradproof.arith import exact, round_to
from gradproof.arith.formats import FORMATS, Format
from gradproof.arith.linear import NonLinear
from gradproof.arith.soft import Soft
from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.execution.methods import smt as smt_run
from gradproof.execution.methods.explore import Exploration, Limits
from gradproof.execution.methods.smt_strategies import explored
from gradproof.rounding import enumerated
from gradproof.rounding.accumulation import Setting, error_of
from gradproof.rounding.enumerated import Enumerated
from gradproof.rounding.lattice import exhaustive
from models.accumulation.loop import Accumulation, Config
from models.accumulation.mutants import BUFFER_BUGS, Summed
from symbolic.accumulation import chain as exhausted
from symbolic.accumulation.loop import columns, mean, one_window, only_update

ROOT = Path(__file__).parents[3]
T5 = Format("t5", 5, 3, 0, 1)
SMALL = Format("small", 16, 6, -9, 7)


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "t5", T5)
    monkeypatch.setitem(FORMATS, "small", SMALL)


def claim(n: int, tolerance: str, fmt: str = "small", **more: Any) -> Check:
    bounds = {"micro_batches": n, "elements": 2, "branches": 2, "paths": 2} | more.pop("bounds", {})
    params = {
        "buffer": fmt,
        "empty": "models.accumulation.loop:Empty",
        "mutants": "models.accumulation.mutants:BUFFER_BUGS",
    }
    text = {"obligations": [{"id": "GA-EQ-001", "tolerance": [{"dtype": fmt, "value": tolerance}]}]}
    data: dict[str, Any] = {"harness": "symbolic.accumulation.chain:buffer_within_tolerance"} | more
    rows = tuple(Bound(k, v, "a test") for k, v in bounds.items())
    params |= {"subjects": {}, **data.pop("params", {})}
    return Check(
        "T-1", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "a test", strategy="bit_exhaustive", bounds=rows, params=params,
        subject=data.pop("subject", "models.accumulation.loop:Accumulation"), text=text, **data,
    )  # fmt: skip


def result_of(body: Callable[[Any], None], check: Check | None = None) -> tuple[Exploration, Any]:
    explorer, kit = explored(check or claim(2, "1"), Limits(4, 4, 30.0, time.monotonic() + 600))
    return explorer.run(lambda: body(kit)), explorer


def worst_of(loop: Any, n: int, fmt: str) -> Fraction:
    """The worst case of a loop's first element by enumeration of every input."""
    f = FORMATS[fmt]
    values = sorted({s * x for x in f.nonnegative() if x <= 1 for s in (1, -1)})
    worst = Fraction(0)
    for given in itertools.product(values, repeat=n):
        row = [Soft(g, fmt) for g in given]
        kit = type("K", (), {"scenario": lambda *_: None})()
        applied = one_window(kit, loop, [row], Config(n, buffer_format=fmt)).updates[0][0]
        worst = max(worst, abs(exact(applied) - mean(row)))
    return worst


@pytest.mark.parametrize("name", ["", "divided_twice", "rescaled_buffer", "missing_scale"])
def test_the_worst_case_of_the_model_s_text_is_what_enumeration_finds(name: str) -> None:
    loop = (BUFFER_BUGS[name].subject if name else Accumulation)()
    tiny = Format("t5", 5, 3, -2, 1)
    FORMATS["t5"] = tiny

    def body(k: Any) -> None:
        grads = columns(k, lambda at: k.floats(at, 2, "t5", -1, 1))
        applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, Config(2, buffer_format="t5")))
        found.append((exact(applied[0]) - mean(grads[0])).worst()[0])

    found: list[Fraction] = []
    result, _ = result_of(body)
    assert result.stopped is None
    assert found == [worst_of(loop, 2, "t5")]


ORDERS = [("sequential", "divide"), ("pairwise", "divide"), ("pairwise", "after"), ("blocked:3", "none")]


@pytest.mark.parametrize(("order", "scale"), ORDERS)
def test_orders_and_scales_give_what_the_lattice_gives(order: str, scale: str) -> None:
    n = 4 if scale != "none" else 3
    setting = Setting(n, "small", magnitude=Fraction(1), order=order, scale=scale)
    own = setting.reach if scale == "none" else Fraction(1)
    grads = [Enumerated.input(f"g[{i}]", "small", own) for i in range(n)]
    got = Summed().result(grads, "small", order, scale)
    shares = [exact(g) * w for g, w in zip(grads, setting.shares(), strict=True)]
    worst, values, numbers = (exact(got) - sum(shares[1:], shares[0])).worst()
    assert worst == exhaustive(setting).worst > 0
    assert error_of(setting, [values[f"g[{i}]"] for i in range(n)]) == worst
    assert numbers > n


def ran(check: Check) -> Finding:
    return smt_run.run(check, Workspace(ROOT, ROOT / "reports"))


def test_a_claim_of_the_worst_case_holds_and_kills_its_mutants() -> None:
    """fp16 at N = 2, every input: 2^-12 and no less."""
    found = ran(claim(2, "1/4096", "fp16", mutants=("missing_scale", "divided_twice", "rescaled_buffer", "underflows")))
    assert (found.outcome, found.reach) == (Outcome.HOLDS, Reach.BOUNDED)
    assert [c.name for c in found.controls if not c.killed] == []
    assert [row["worst"] for row in found.stats["exhaustion"]] == ["1/4096", "1/4096"]
    assert all(r["reproduced"] for c in found.controls for r in c.replays)


def test_a_claim_below_the_worst_case_is_refuted_by_its_witness() -> None:
    found = ran(claim(2, "1/4097", "fp16"))
    assert found.outcome is Outcome.REFUTED
    assert found.counterexample is not None
    assert found.counterexample["found_by"] == "the enumeration"
    values = [Fraction(found.counterexample["values"][f"g0[{i}]"]) for i in range(2)]
    assert error_of(Setting(2, "fp16"), values) == Fraction(1, 4096)
    assert [(r["on"], r["reproduced"]) for r in found.replays] == [
        ("Python model, IEEE software floats", True),
        ("Python model, PyTorch's kernels on the CPU", True),
    ]


def test_fp16_at_eight_is_refuted_in_the_model_and_on_torch() -> None:
    """The witness of the enumeration is known, so that the test need not enumerate: the ends break another claim."""
    check = claim(8, "1e-3", "fp16", bounds={"elements": 1})
    from gradproof.execution.methods.replay import once

    grads = ["-1", "-2045/2048", "-1023/1024", "-1021/1024", *["-509/512"] * 4]
    values = {f"g0[{i}]": Fraction(g) for i, g in enumerate(grads)}
    for family in ("soft", "torch"):
        clause, said, _ = once(check, exhausted.buffer_within_tolerance, Accumulation, values, [], family)
        assert (clause, "element 0" in said) == ("GA-EQ-001", True)
    assert error_of(Setting(8, "fp16"), list(values.values())) == Fraction(21, 16384)


def test_orders_are_a_harness_too() -> None:
    more = {
        "harness": "symbolic.accumulation.chain:order_within_tolerance",
        "subject": "models.accumulation.mutants:Summed",
    }
    worst = exhaustive(Setting(4, "small", order="pairwise")).worst
    params = {"order": "pairwise", "scale": "divide", "controls_off": True}
    for tolerance, outcome in ((worst, Outcome.HOLDS), (worst * Fraction(99, 100), Outcome.UNKNOWN)):
        check = claim(4, str(tolerance), params=params, **more)
        result, _ = result_of(lambda k: exhausted.order_within_tolerance(k, Summed()), check)
        assert (result.violation is None) is (outcome is Outcome.HOLDS)


TWO = ("x", "y")


@pytest.mark.parametrize(
    "use",
    [
        lambda x, y: x + x,
        lambda x, y: (x + y) + y,
        lambda x, y: x * y,
        lambda x, y: x + 1,
        lambda x, y: x * Fraction(1, 3),
        lambda x, y: x < y,
        lambda x, y: bool(x),
        lambda x, y: abs(x),
        lambda x, y: x == y,
        lambda x, y: round_to(x, "fp32"),
        lambda x, y: (x - y).sums,
        lambda x, y: (exact(x + y) - exact(x)).worst(),
        lambda x, y: (exact(x + y) - exact(x) / 2 - exact(y) / 3).worst(),
        lambda x, y: (exact(x + y) + exact(x) + exact(y)).worst(),
        lambda x, y: (exact(x + y) - exact(x / 2)).worst(),
        lambda x, y: exact(x) + 1,
        lambda x, y: bool(abs(exact(x)) <= 1),
    ],
)
def test_what_is_not_enumerated_is_refused(use: Callable[[Any, Any], object]) -> None:
    with pytest.raises(NonLinear):
        use(*(Enumerated.input(name, "small", Fraction(1)) for name in TWO))


def test_a_constant_of_a_wide_format_is_rounded_first() -> None:
    x = Enumerated.input("x", "fp32", Fraction(1))
    assert (x * Fraction(1, 3)).factor == FORMATS["fp32"].round(Fraction(1, 3))


def test_an_input_that_is_left_out_counts_with_its_reach() -> None:
    x, y = (Enumerated.input(name, "small", Fraction(1)) for name in TWO)
    worst, values, _ = (exact(x / 4) - exact(x) / 4 - exact(y) / 2).worst()
    assert worst == Fraction(1, 2) + max(abs(SMALL.round(g / 4) - g / 4) for g in SMALL.nonnegative() if g <= 1)
    assert values["y"] == -1


def test_inputs_that_do_not_attain_the_worst_case_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original = enumerated._of_result
    monkeypatch.setattr(
        enumerated, "_of_result", lambda *a: (original(*a)[0] / 2, *original(*a)[1:])
    )  # half the true worst case
    result, _ = result_of(lambda k: exhausted.buffer_within_tolerance(k, Accumulation()), claim(4, "1"))
    assert result.stopped is not None
    assert (result.stopped.outcome, "do not attain" in result.stopped.reason) == ("ERROR", True)


@pytest.mark.parametrize(
    "body",
    [
        lambda k: k.real("x", -1, 1),
        lambda k: k.float("x", "small", -1, 2),
        lambda k: k.check("GA-EQ-001", k.float("x", "small", -1, 1) <= 1),
        lambda k: k.check("GA-EQ-001", 3),
        lambda k: k.float("x", "small", -200, 200) + k.float("y", "small", -200, 200),
    ],
)
def test_what_an_enumeration_cannot_say_is_unknown(body: Callable[[Any], None]) -> None:
    result, _ = result_of(body)
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"
