"""The edges: facts replayed against the model, closed forms against brute force, the command and its document."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import __main__ as command, matmul
from gradproof.extras.conformance.elementwise import TORCH
from gradproof.extras.conformance.machine import Machine
from gradproof.extras.conformance.report import HOLDS, NOT_RUN, REFUTED, KernelResult, ratio_of
from gradproof.rounding.edge_cases import DIVIDE, MULTIPLY, WIDE, reach_of_orders, smallest_survivor, worst


def test_every_fact_holds_on_this_cpu() -> None:
    found = matmul.special_rows("cpu")
    assert [r for r in found if r.outcome != HOLDS] == []
    assert len(found) > 30


def test_facts_are_refuted_by_a_model_that_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Machine.add

    def flushing(self: Machine, x: matmul.Values, y: matmul.Values) -> matmul.Values:
        sums = right(self, x, y)
        return np.where(np.abs(sums) < 2.0 ** FORMATS[self.fmt].emin, np.copysign(0.0, sums), sums)

    monkeypatch.setattr(Machine, "add", flushing)
    found = {(r.operator, r.dtype): r for r in matmul.edge_rows("cpu")}
    for dtype in ("fp32", "fp16", "bf16"):
        row = found["buf.add_: subnormal", dtype]
        assert row.outcome == REFUTED
        assert row.first is not None


def test_ones_are_swamped_in_bf16_at_512() -> None:
    row = matmul.swamping("cpu", {"bf16": (256, 512)})[0]
    assert row.facts == {"mean of ones N=256": "1", "mean of ones N=512": "0.5"}


def test_a_wrong_threshold_is_refuted() -> None:
    def off(scale: int, n: int) -> tuple[Fraction, bool]:
        limit, inclusive = smallest_survivor(scale, n)
        return limit, not inclusive

    assert matmul.survival("cpu", off).outcome == REFUTED
    assert matmul.survival("cpu", lambda s, n: (FORMATS["fp16"].tiny / 2 * n / s, False)).outcome == REFUTED


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 12, 100])
def test_the_smallest_survivor_is_what_brute_force_finds(n: int) -> None:
    f, (limit, inclusive) = FORMATS["fp16"], smallest_survivor(8, n)

    def survives(g: Fraction) -> bool:
        return f.round(f.round(8 * g) / n) != 0

    step = f.tiny / 64
    first = next(k for k in range(1, 10**5) if survives(k * step))
    assert (first - 1) * step < limit <= first * step or (limit == (first - 1) * step and not inclusive)
    assert survives(limit) == inclusive
    with pytest.raises(ValueError, match="powers of two"):
        smallest_survivor(3, 1)


def test_dividing_first_loses_small_gradients_and_dividing_last_large_ones() -> None:
    reach = reach_of_orders(1024, 8)
    assert reach["before: survives from"] > reach["after: survives from"]
    assert reach["before: overflows from"] == 8 * reach["after: overflows from"]


def test_quotients_that_underflow_make_the_orders_differ() -> None:
    """Eight fp16 gradients, the last of which is rounded when it is divided by 8."""
    column = [0xB711, 0xB5BD, 0x3AAB, 0xB4CD, 0x310E, 0xB18E, 0x3478, 0x0E2B]
    before, after = matmul.both_orders(np.array(column, dtype=np.uint32).reshape(8, 1), "fp16", "cpu")
    assert (before[0], after[0]) == (0x8DBA, 0x8DBB)
    column[-1] = 0x2000
    before, after = matmul.both_orders(np.array(column, dtype=np.uint32).reshape(8, 1), "fp16", "cpu")
    assert before[0] == after[0]


def test_orders_that_differ_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = matmul.both_orders

    def off(bits: matmul.Bits, dtype: str, device: str) -> tuple[matmul.Bits, matmul.Bits]:
        before, after = plain(bits, dtype, device)
        after[7] ^= 0x4000
        return before, after

    monkeypatch.setattr(matmul, "both_orders", off)
    assert [matmul.orders("cpu", n, "fp16", 50).outcome for n in (2, 3)] == [REFUTED, REFUTED]


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
@pytest.mark.parametrize("n", [1, 3, 5, 6, 7, 8])
def test_worst_cases_are_what_rationals_say(fmt: str, n: int) -> None:
    f, single = FORMATS[fmt], FORMATS["fp32"]
    for method in (DIVIDE, MULTIPLY, WIDE):
        ulps = relative = Fraction(0)
        differ = 0
        for m in range(2 ** (f.p - 1), 2**f.p):
            exact = Fraction(m, n)
            wide = f.round(single.round(m * single.round(Fraction(1, n)))) if method == WIDE else Fraction(0)
            y = {DIVIDE: f.round(exact), MULTIPLY: f.round(m * f.round(Fraction(1, n))), WIDE: wide}[method]
            ulps = max(ulps, abs(y - exact) / f.spacing(exact))
            relative = max(relative, abs(y - exact) / exact)
            differ += y != f.round(exact)
        found = worst(method, n, fmt)
        assert (found.ulps, found.relative, found.differ) == (ulps, relative, differ)


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_the_worst_significand_replays_in_fp32(n: int) -> None:
    divide, multiply = worst(DIVIDE, n, "fp32"), worst(MULTIPLY, n, "fp32")
    assert divide.ulps <= Fraction(1, 2) < multiply.ulps
    assert divide.differ == 0 < multiply.differ
    for method in (divide, multiply):
        x = torch.tensor([float(method.at)])
        got = x / n if method is divide else x * torch.tensor(1 / n, dtype=torch.float32)
        exact = Fraction(method.at, n)
        assert abs(Fraction(got.item()) - exact) / FORMATS["fp32"].spacing(exact) == method.ulps


def test_kept_in_fp32_the_reciprocal_costs_a_16_bit_gradient_nothing() -> None:
    for fmt in ("fp16", "bf16"):
        for n in (3, 5, 6, 7):
            assert worst(WIDE, n, fmt).differ == 0 < worst(MULTIPLY, n, fmt).differ
            x = torch.arange(1, 2, 2.0 ** (1 - FORMATS[fmt].p), dtype=torch.float32).to(TORCH[fmt])
            assert torch.equal(x * (1 / n), x / n)


def test_divisors_that_do_not_fit_are_refused() -> None:
    for n in (0, 17):
        with pytest.raises(ValueError, match="sized for"):
            worst(DIVIDE, n, "fp16")
    with pytest.raises(ValueError, match="16-bit"):
        worst(WIDE, 3, "fp32")


BLOCKED = """
import importlib, importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("z3", "crosshair", "pydantic", "click", "hypothesis", "yaml", "rich", "jinja2"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import gradproof.extras.conformance
assert "torch" not in sys.modules
for name in ("elementwise", "reductions", "matmul", "accumulation", "__main__"):
    importlib.import_module(f"gradproof.extras.conformance.{name}")
assert "torch" in sys.modules and "gradproof.arith.smt" not in sys.modules
print("imported")
"""


def test_torch_and_numpy_are_enough() -> None:
    path = str(Path(matmul.__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
        timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout == "imported\n", done.stderr


def test_results_must_be_honest() -> None:
    with pytest.raises(ValueError, match="needs cases"):
        KernelResult("a", "fp32", "cpu", "claim", HOLDS)
    with pytest.raises(ValueError, match="needs a reason"):
        KernelResult("a", "fp32", "cpu", "claim", NOT_RUN)
    with pytest.raises(ValueError, match="no outcome"):
        KernelResult("a", "fp32", "cpu", "claim", "FINE", 1)
    one = Fraction(1)
    assert ratio_of(one, one) == 1.0 < ratio_of(one + Fraction(1, 10**40), one)
    assert ratio_of(one, Fraction(0)) == math.inf
    assert ratio_of(Fraction(0), Fraction(0)) == 0


def test_the_command_writes_a_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "DIVISORS", (3,))
    out = tmp_path / "kernels.json"
    arguments = ["--quick", "--only", "full_runs", "--only", "special", "--elements", "300", "--out", str(out)]
    assert command.main(arguments) == 0
    assert "REFUTED=0" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["schema"] == "gradproof-kernels/1"
    assert set(data["sections"]) == {"full_runs", "special"}
    assert data["environment"]["torch"] == torch.__version__
    rows = [row for section in data["sections"].values() for row in section]
    assert data["summary"] == {"HOLDS": len(rows), "REFUTED": 0, "NOT_RUN": 0, "ERROR": 0}
    share = {(r["fmt"], r["divisor"], r["method"]): r["share"] for r in data["reciprocal"]}
    assert share["fp32", 3, DIVIDE] == "0/1"
    assert Fraction(share["fp32", 3, MULTIPLY]) > Fraction(3, 10)


def test_a_run_in_which_nothing_held_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "closed_forms", dict)
    out = tmp_path / "kernels.json"
    assert command.main(["--quick", "--device", "cuda", "--only", "matmul", "--out", str(out)]) == 1
    assert "HOLDS=0 REFUTED=0 NOT_RUN=12" in capsys.readouterr().out
    assert {r["outcome"] for r in json.loads(out.read_text())["sections"]["matmul"]} == {"NOT_RUN"}


def test_a_refuted_row_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def off(scale: int, n: int) -> tuple[Fraction, bool]:
        return smallest_survivor(scale, n)[0], True

    monkeypatch.setattr(command, "closed_forms", dict)
    monkeypatch.setattr(matmul, "special_rows", lambda device, full: [matmul.survival(device, off)])
    assert command.main(["--quick", "--only", "special"]) == 1
    assert "REFUTED=1" in capsys.readouterr().out
