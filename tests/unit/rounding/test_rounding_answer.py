"""`gradproof bound`: both sides, the verdict, the exit code; and the strategy linear_chain."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.arith import exact
from gradproof.arith.formats import FORMATS
from gradproof.arith.linear import Linear
from gradproof.cli import dispatch
from gradproof.core.outcome import Outcome
from gradproof.execution.methods import replay_kernels as replays, smt_strategies as chain_run
from gradproof.execution.methods.explore import Exploration, Limits
from gradproof.execution.methods.replay_kernels import replay
from gradproof.execution.methods.smt_strategies import ChainExplorer, ChainKit, extremes
from gradproof.rounding import bound as answers, farkas, lemma_store as founded
from gradproof.rounding.accumulation import Setting, difference, error_of
from gradproof.rounding.bound import answer, bits, thresholds
from gradproof.rounding.certificate import certify
from gradproof.rounding.lemma_store import LemmaRefused

EPS = Fraction(1, 10**5)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    code = dispatch(["bound", *args])
    caught = capsys.readouterr()
    return code, caught.out + caught.err


@pytest.mark.parametrize(("n", "code", "word"), [("256", 0, "HOLDS"), ("512", 1, "REFUTED")])
def test_the_tolerance_of_fp32(capsys: pytest.CaptureFixture[str], n: str, code: int, word: str) -> None:
    found, out = run(capsys, "-n", n, "--tolerance", "1e-5")
    assert (found, f"within 1e-05: {word}" in out, "ratio 1.0000" in out) == (code, True, True)


def test_between_the_bound_and_the_witness_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(Setting(16, order="kahan"))
    between = (made.bound + made.attained) / 2
    assert made.outcome(between) is Outcome.UNKNOWN
    assert run(capsys, "-n", "16", "--order", "kahan", "--tolerance", str(between))[0] == 4


@pytest.mark.parametrize(
    "options",
    [
        {}, {"buffer": "fp16"}, {"inputs": "fp16"}, {"inputs": "bf16"}, {"order": "pairwise"}, {"order": "any"},
        {"order": "kahan"}, {"order": "neumaier"}, {"order": "blocked:4"}, {"scale": "multiply"}, {"scale": "after"},
        {"magnitude": Fraction(3, 7)}, {"inputs": "fp16", "magnitude": Fraction(5, 3)}, {"order": "any", "n": 7},
    ],
)  # fmt: skip
def test_what_is_attained_is_no_more_than_what_is_proved(options: dict[str, Any]) -> None:
    made = answer(Setting(**{"n": 8, **options}))
    assert 0 < made.attained <= made.bound
    assert made.contracts


def test_the_thresholds_of_the_contract() -> None:
    assert thresholds(Setting(1), EPS, 512) == {"true up to": 256, "undecided from": None, "false from": 512}
    assert thresholds(Setting(1, buffer="fp16"), 100 * EPS)["false from"] == 8
    assert thresholds(Setting(1, buffer="bf16"), 100 * EPS)["false from"] == 2


def test_a_rounded_gradient_errs_in_its_own_rounding_and_in_the_sum() -> None:
    """Beyond what the rounding of the inputs can do alone, which is half an ulp of 1."""
    made = answer(Setting(16, buffer="fp16", inputs="fp16"))
    assert made.attained > 3 * FORMATS["fp16"].half_ulp(Fraction(1))
    assert made.ratio is not None
    assert made.ratio < Fraction(3, 2)
    assert all(abs(g) <= 1 for g in made.witness)


def test_the_certificate_is_a_file_that_the_checker_accepts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    assert run(capsys, "-n", "8", "--certificate", str(file))[0] == 0
    text = json.loads(file.read_text())
    assert farkas.check(text) == certify(difference(Setting(8))).bound
    text["bound"] = "1/100000000"
    with pytest.raises(farkas.Refused):
        farkas.check(text)


def test_json_has_the_witness_as_bit_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "-n", "4", "--json")
    found = json.loads(out)
    values = [Fraction(int(w, 16) - 0x3F000000 + 2**23, 2**24) for w in found["witness"]]
    assert code == 0
    assert error_of(Setting(4), values) == Fraction(found["attained"])


@pytest.mark.parametrize(
    "wrong",
    [
        ["-n", "0"], ["--magnitude", "many"], ["--tolerance", "1/0"], ["--thresholds"], ["--order", "random"],
        ["--scale", "twice"], ["--magnitude", "70000", "--buffer", "fp16"],
        ["--order", "any", "--certificate", "made.json"],
    ],
)  # fmt: skip
def test_what_has_no_bound_is_said(
    capsys: pytest.CaptureFixture[str], wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out = run(capsys, *wrong)
    assert (code, "GP411" in out, [*tmp_path.iterdir()]) == (2, True, [])


def test_a_contract_that_is_not_proved_gives_no_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: object) -> list[str]:
        raise LemmaRefused("add/fp32/half-ulp: stale")

    monkeypatch.setattr(answers, "require_contracts", refuse)
    code, out = run(capsys, "-n", "8")
    assert (code, "stale" in out, "attained:" in out) == (4, True, False)


def test_the_contracts_of_a_chain() -> None:
    rows = certify(difference(Setting(6, inputs="fp16", order="kahan"))).rows
    names = founded.contracts_of(rows)
    assert {"add/fp32/half-ulp", "add/fp32/error-representable", "round/fp16/half-ulp", "round/fp32/grid"} <= {*names}
    assert "convert/fp16-fp32/exact" in names


def test_rounding_in_a_format_without_contracts_is_refused() -> None:
    x = Linear.input("x", "fp64", Fraction(1))
    with pytest.raises(LemmaRefused):
        founded.require_contracts(certify((x + x / 3).exact() - x.exact()).rows)


def test_bits() -> None:
    assert (bits(Fraction(1), FORMATS["fp32"]), bits(Fraction(-2), FORMATS["fp16"])) == ("3f800000", "c000")
    assert bits(Fraction(1), FORMATS["bf16"]) == "3f80"
    with pytest.raises(ValueError, match="is no fp16 number"):
        bits(Fraction(1, 3), FORMATS["fp16"])


@pytest.mark.parametrize(
    "options",
    [{"n": 512}, {"n": 8, "buffer": "fp16"}, {"n": 4, "buffer": "bf16"}, {"n": 7}, {"n": 16, "inputs": "fp16"},
     {"n": 5, "scale": "multiply"}, {"n": 6, "scale": "after"}, {"n": 16, "order": "pairwise"},
     {"n": 16, "buffer": "fp16", "order": "kahan"}, {"n": 9, "order": "neumaier"}, {"n": 12, "order": "blocked:4"},
     {"n": 8, "order": "any"}, {"n": 2, "scale": "multiply", "weights": (Fraction(1, 3), Fraction(2, 3))}],
)  # fmt: skip
def test_torch_does_what_the_model_says(options: dict[str, Any]) -> None:
    made = answer(Setting(**options))
    seen = replay(made.setting, made.witness)
    assert (seen.equal, seen.error) == (True, made.attained)


def test_a_kernel_that_rounds_otherwise_is_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = run(capsys, "-n", "4", "--replay", "cpu")
    assert (code, "to the last digit" in out) == (0, True)
    monkeypatch.setitem(replays.TORCH, "fp32", "bfloat16")
    code, out = run(capsys, "-n", "4", "--replay", "cpu")
    assert (code, "BEYOND THE BOUND" in out) == (1, True)


@pytest.mark.parametrize("wrong", [["--order", "random"], ["--replay", "tpu"]])
def test_what_torch_is_not_asked(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    code, out = run(capsys, "-n", "4", "--replay", "cpu", *wrong)
    assert (code, "GP411" in out) == (2, True)


# The strategy linear_chain


def explored(body: Callable[[Any], None], bounds: tuple[str, ...] = ("n",)) -> tuple[Exploration, ChainExplorer]:
    """A harness on linear floats, with a bound of 4."""
    check = SimpleNamespace(params={}, bound=lambda name: 4, text={})
    explorer = ChainExplorer(Limits(8, 8, 10.0, time.monotonic() + 600))
    return explorer.run(lambda: body(ChainKit(check, explorer))), explorer  # type: ignore[arg-type]


def claim(k: Any, bound: Fraction, terms: int = 4) -> None:
    x = k.floats("g", k.bound("n"), "fp32", -1, 1)
    total = x[0] / 4
    for term in x[1:terms]:
        total = total + term / 4
    mean = sum((exact(v) for v in x[1:]), exact(x[0])) / 4
    k.cover("all")
    k.check("GA-EQ-001", abs(exact(total) - mean) <= bound, "claim")


def test_a_chain_holds_with_its_certificate() -> None:
    result, explorer = explored(lambda k: claim(k, Fraction(1, 10**7)))
    assert (result.violation, result.stopped, result.covers["all"] is not None) == (None, None, True)
    assert [c["rows"] > 4 and len(c["sha256"]) == 64 for c in explorer.certificates] == [True]
    assert result.operators == {"add fp32", "divide fp32"}


def test_a_chain_that_may_exceed_the_claim_is_violated() -> None:
    result, _ = explored(lambda k: claim(k, Fraction(1, 10**8)))
    assert result.violation is not None
    assert "bound 7.45" in result.violation.label
    assert result.operators == {"add fp32", "divide fp32"}


def test_a_term_that_is_left_out_is_violated_at_the_extremes() -> None:
    result, _ = explored(lambda k: claim(k, Fraction(1, 10**7), terms=3))
    assert result.violation is not None
    assert abs(result.violation.values["g[3]"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda k: k.check("X", k.real("x", -1, 1) <= 1),
        lambda k: k.check("X", bool(k.real("x", -1, 1))),
        lambda k: k.assume(abs(k.real("x", -1, 1)) <= 1),
        lambda k: k.cover("c", k.real("x", -1, 1) == 0),
        lambda k: k.real("x"),
        lambda k: k.inductive(lambda: None, lambda: None),
        lambda k: k.float("x", "fp16", -60000, 60000) + k.float("y", "fp16", -60000, 60000),
    ],
)
def test_what_a_chain_cannot_say_is_unknown(body: Callable[[Any], None]) -> None:
    result, _ = explored(body)
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"


def test_a_certificate_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: object) -> Fraction:
        raise farkas.Refused("row 3")

    monkeypatch.setattr(chain_run, "checked", refuse)
    result, _ = explored(lambda k: claim(k, Fraction(1, 10**7)))
    assert result.stopped is not None
    assert (result.stopped.outcome, "row 3" in result.stopped.reason) == ("ERROR", True)


def test_an_unproved_contract_leaves_a_chain_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rows: object) -> list[str]:
        raise LemmaRefused("stale")

    monkeypatch.setattr(chain_run, "require_contracts", refuse)
    result, explorer = explored(lambda k: claim(k, Fraction(1, 10**7)))
    assert result.stopped is not None
    assert (result.stopped.outcome, explorer.certificates) == ("UNKNOWN", [])


def test_extremes_drive_the_exact_part() -> None:
    x, y = (Linear.input(name, "fp32", Fraction(2)) for name in "xy")
    found = extremes(certify(x.exact() - y.exact()))
    assert found["x"] - found["y"] == 4 or found["y"] - found["x"] == 4
