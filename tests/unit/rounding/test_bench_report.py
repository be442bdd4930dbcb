"""Gappa's script, with a fake Gappa on PATH, and the run as a whole: exit code, JSON, the rows of our own."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from gradproof.arith.formats import FORMATS
from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import witness
from tests.bench import gappa, rungs, sides, tables
from tests.bench.__main__ import main
from tests.bench.measure import CRASHED, HOLDS, NOT_RUN, TIMEOUT, UNSOUND, Said, timed
from tests.bench.sides import attained

ANSWER = "Results:\n  s4 - m4 in [-{0} {{-1e-08, -2^(-23)}}, {0} {{1e-08, 2^(-23)}}]"
FAKE = """#!{python}
import sys, time
open({seen!r}, "w").write(sys.stdin.read())
time.sleep({sleep})
print({answer!r}, file=sys.stderr)
sys.exit({code})
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program called gappa on PATH that keeps what it reads; returns where."""

    def made(answer: str, code: int = 0, sleep: float = 0.0) -> Path:
        seen, program = tmp_path / "seen.g", tmp_path / "gappa"
        text = FAKE.format(python=sys.executable, seen=str(seen), answer=answer, code=code, sleep=sleep)
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        return seen

    return made


@pytest.fixture
def no_gappa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH without it."""
    monkeypatch.setenv("PATH", str(tmp_path))


def run_script(text: str, given: list[Fraction]) -> Fraction:
    """The question of a script, evaluated: its equations in exact rationals, those with `fl` rounded to fp32."""
    lines = text.splitlines()
    assert lines[0] == "@fl = float<ieee_32, ne>;"
    held = {f"r{i}": g for i, g in enumerate(given, 1)}
    act = {"+": lambda a, b: a + b, "/": lambda a, b: a / b}
    for line in lines[1:-1]:
        if entry := re.fullmatch(r"(\w+) = fl\((\w+)\);", line):
            held[entry[1]] = FORMATS["fp32"].round(held[entry[2]])
            continue
        made = re.fullmatch(r"(\w+) (fl)?= (\w+) ([+/]) (\w+);", line)
        assert made is not None, line
        a, b = (held[x] if x in held else Fraction(x) for x in (made[3], made[5]))
        exact = act[made[4]](a, b)
        held[made[1]] = FORMATS["fp32"].round(exact) if made[2] else exact
    asked = re.fullmatch(r"\{ (.*) -> (\w+) - (\w+) in \? \}", lines[-1])
    assert asked is not None
    for name, low, high in re.findall(r"(\w+) in \[([^,]*),([^\]]*)\]", asked[1]):
        ends = [Fraction(x) if "b" not in x else Fraction(2) ** int(x.split("b")[1]) for x in (high,)]
        assert low == f"-{high}"
        assert abs(held[name]) <= ends[0]
    assert asked[1].count(" in ") == len(given)
    return abs(held[asked[2]] - held[asked[3]])


@pytest.mark.parametrize("n", [2, 4, 8, 64, 512])
@pytest.mark.parametrize("scale", ["divide", "none"])
def test_the_script_asks_for_the_error_of_the_window(scale: str, n: int) -> None:
    """On the witness its two sides differ by exactly what the witness loses."""
    given = [g / (n if scale == "none" else 1) for g in witness(Setting(n))]
    assert run_script(gappa.script(n, scale), given) == attained(n)


def test_the_script_of_two_micro_batches() -> None:
    assert gappa.script(2) == (
        "@fl = float<ieee_32, ne>;\ng1 = fl(r1);\ng2 = fl(r2);\n"
        "x1 fl= g1 / 2;\ny1 = g1 / 2;\nx2 fl= g2 / 2;\ny2 = g2 / 2;\n"
        "s2 fl= x1 + x2;\nm2 = y1 + y2;\n"
        "{ g1 in [-1,1] /\\ g2 in [-1,1] -> s2 - m2 in ? }\n"
    )
    for wrong in ((1, "divide"), (3, "divide"), (4, "multiply")):
        with pytest.raises(ValueError, match="no script"):
            gappa.script(*wrong)


@pytest.mark.parametrize(
    ("answer", "bound"),
    [
        ("s4 - m4 in [-7b-26 {-1.0e-07, -2^(-23.2)}, 7b-26 {1.0e-07, 2^(-23.2)}]", Fraction(7, 2**26)),
        ("s4 - m4 in [-3b-26 {-1, -2}, 7b-26 {1, 2}]", Fraction(7, 2**26)),
        ("s4 - m4 in [-9b-26 {-1, -2}, 7b-26 {1, 2}]", Fraction(9, 2**26)),
        ("x in [0, 0]", Fraction(0)),
        ("x in [-3, 1b2 {4, 2^(2)}]", Fraction(4)),
    ],
)
def test_an_interval_is_read_exactly(answer: str, bound: Fraction) -> None:
    assert gappa.bound_in(answer) == bound


@pytest.mark.parametrize("answer", ["", "Error: some goals were not satisfied.", "x in [1, -1]", "x in [a, b]"])
def test_an_answer_without_an_interval_is_no_bound(answer: str, install: Install) -> None:
    with pytest.raises(ValueError, match="Gappa's answer"):
        gappa.bound_in(answer)
    install(answer)
    assert timed(gappa.ask, (4, "divide"), 100.0).word == CRASHED


def test_the_program_gets_the_script_and_its_answer_counts(install: Install) -> None:
    seen = install(ANSWER.format("7b-26"))
    assert gappa.ask(4, "divide") == Said(HOLDS, Fraction(7, 2**26))
    assert seen.read_text() == gappa.script(4)


def test_a_program_that_fails_or_hangs_is_no_answer(install: Install) -> None:
    install(ANSWER.format("7b-26"), code=1)
    assert gappa.ask(4, "divide").word == CRASHED
    install(ANSWER.format("7b-26"), sleep=600.0)
    assert timed(gappa.ask, (4, "divide"), 3.0).word == TIMEOUT


def run_bench(folder: Path, *more: str) -> tuple[int, dict[str, object]]:
    """`python -m tests.bench` with Gappa alone at N = 4: its exit code and what it wrote."""
    out = folder / "reports" / "bench.json"
    code = main(["--tool", "g / N", "--sizes", "4", "--only-sides", "--limit", "60", "--out", str(out), *more])
    return code, json.loads(out.read_text())


def test_a_tool_that_is_not_installed_is_an_honest_row(
    no_gappa: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, written = run_bench(tmp_path)
    assert code == 0
    assert written["side_by_side"] == [
        {
            "tool": "Gappa, g / N rounded",
            "largest_n": 0,
            "answers": {"4": {"word": NOT_RUN, "seconds": pytest.approx(0, abs=60), "reason": "no gappa on PATH"}},
        }
    ]
    assert "NOT_RUN" in capsys.readouterr().out


def test_a_bound_that_is_too_small_fails_the_run(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E_4 = 5 * 2^-26: a fake that proves 4 * 2^-26 is wrong, one that proves 5 * 2^-26 is right."""
    install(ANSWER.format("4b-26"))
    code, written = run_bench(tmp_path)
    assert code == 1
    assert re.search(r"N = 4: 5\.96046e-08, .* 7\.45058e-08", *written["unsound"])
    assert "UNSOUND" in capsys.readouterr().out
    monkeypatch.setattr(sides, "MOST", 4)
    install(ANSWER.format("5b-26"))
    code, written = run_bench(tmp_path)
    assert (code, written["unsound"]) == (0, [])


@pytest.mark.parametrize("wrong", [["--sizes", "3"], ["--sizes", "1"], ["--tool", "no such tool"], ["--frobnicate"]])
def test_a_wrong_call_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2
    assert "usage: tests.bench" in capsys.readouterr().err


def test_times_faster_is_against_what_was_measured_or_says_that_it_is_stored() -> None:
    ours = Said(HOLDS, Fraction(1), 0.5)
    found = rungs.against_gappa(ours, Said(HOLDS, Fraction(1), 20.0))
    assert (found["times_faster"], found["gappa_from"]) == (40.0, "measured in this run")
    for word in (NOT_RUN, TIMEOUT, UNSOUND):
        found = rungs.against_gappa(ours, Said(word, None, 300.0))
        assert (found["gappa_seconds"], found["times_faster"]) == (60.0, 120.0)
        assert found["gappa_from"].startswith("stored: ")
        assert found["gappa_from"].endswith(word)
    assert rungs.against_gappa(Said(TIMEOUT), Said(NOT_RUN))["times_faster"] is None


def test_certificates_are_built_and_checked_at_the_sizes_asked_for() -> None:
    found = rungs.built((4, 64))
    assert {n: said.word for n, said in found.items()} == {4: HOLDS, 64: HOLDS}
    assert tables.wrong(found) == []
    assert [words.endswith("N = 4: low") for words in tables.wrong({4: Said(UNSOUND, reason="low")})] == [True]


def test_a_chain_below_the_closed_form_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs.claims, "U", rungs.claims.U * 2)
    assert rungs.built((4,))[4].word == UNSOUND


def test_lemmas_and_gappa_are_not_run_unless_they_can_be(no_gappa: None) -> None:
    assert rungs.lemmas(False).word == NOT_RUN
    assert rungs.gappa_at().word == NOT_RUN
    lines = tables.rung_lines(
        {4: Said(TIMEOUT, reason="killed")}, rungs.against_gappa(Said(TIMEOUT), rungs.gappa_at()), rungs.lemmas(False)
    )
    assert "TIMEOUT: killed" in lines[0]
    assert "not known" in lines[1]
    assert "NOT_RUN" in lines[2]


def test_every_tool_has_a_row_in_the_table() -> None:
    rows = [sides.Row(t.name, {2: Said(HOLDS, attained(2), 0.1)}, 2) for t in sides.TOOLS]
    table = tables.side_table(rows, (2,), attained, 10.0)
    assert table.row_count == len(sides.TOOLS) + 1
    assert tables.cell(rows[0].answers[2], attained(2)).splitlines()[1] == "ratio 1.000"
    assert tables.rows_json(rows, attained)[0]["answers"]["2"]["ratio"] == 1.0
