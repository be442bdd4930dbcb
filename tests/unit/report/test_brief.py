"""A verification in a few lines: never more than promised, never more than was shown, and not one word broken."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import step_bench
from rich.console import Console

from gradproof.core.outcome import Effect, Outcome
from gradproof.report.formats import brief, step
from gradproof.report.formats.brief import Line
from gradproof.shadow.locations import Location
from gradproof.shadow.request import undecided
from gradproof.shadow.result import (
    ALL_DATA,
    NAMES,
    NO_LOSS,
    OBLIGATIONS,
    RECORDED,
    Result,
    Verification,
    on_path,
    step_effect,
)
from tests import checked

SOURCE = "    loss.backward()  # at the end of a path"
LONG = "a word and " * 40
OPEN = [o for o in Outcome if step_effect(o) is Effect.OPEN]


@pytest.fixture
def place(tmp_path: Path) -> Location:
    path = tmp_path / "train.py"
    path.write_text(f"def step(run):\n{SOURCE}\n")
    return Location(str(path), 2, "step")


def weighed(weights: dict[int, str], place: Location | None = None) -> Verification:
    """A refuted gradient with the weights of eight samples of the second window; the right one is 1/8."""
    found = step_bench.refuted(place)
    rows = [(0, sample, "1/8") for sample in range(8)] + [(1, 8 + sample, by) for sample, by in weights.items()]
    found.weights = [
        {"window": at, "sample": sample, "weight": by, "expected": "1/8", "ok": by == "1/8"} for at, sample, by in rows
    ]
    return found


def drawn(found: Verification, width: int, colour: bool = False) -> str:
    out = io.StringIO()
    system = "truecolor" if colour else None
    brief.terminal(found, Console(file=out, width=width, force_terminal=True, color_system=system))  # type: ignore[arg-type]
    return out.getvalue()


def height(found: Verification, spent: int = 0) -> int:
    return sum(line.height(brief.WIDTH) for line in brief.lines(found, spent))


def test_a_refutation_reads_like_a_compilers(place: Location) -> None:
    rows = brief.text(weighed(dict.fromkeys(range(8), "1/2"), place)).splitlines()
    assert rows[:2] == ["REFUTED train.py:step", "GA-EQ-001, the gradient of the full batch"]
    assert rows[2].endswith("train.py:2 in step")
    assert rows[3:9] == [
        "  2 | loss.backward() # at the end of a path",
        "    | ^^^^^^^^^^^^^^^",
        f"  wrong: {step_bench.REASON}",
        "  found: each of the 8 samples of window 2 weighs 1/2",
        "  expected: 1/8",
        "  help: divide the loss",
    ]
    assert rows[-2].startswith("also: 8 of 9 obligations hold: GA-DATA-001, every sample once; ")
    assert rows[-1].startswith("exit code 1; --verbose ")


def test_unequal_weights_are_shown_by_their_samples() -> None:
    some = {**dict.fromkeys(range(4), "1/4"), **dict.fromkeys((4, 6), "1/8"), 5: "1/16", 7: "1/2"}
    text = brief.text(weighed(some))
    assert "found: in window 2, samples 8 to 11 weigh 1/4, 2 samples weigh 1/8, sample 13 weighs 1/16, sample" in text


@pytest.mark.parametrize("weights", [dict.fromkeys(range(6), "1/2"), dict.fromkeys(range(8), f"{1 / 3:.60f}")])
def test_where_weights_say_little_numbers_are_shown(weights: dict[int, str]) -> None:
    """Samples without a weight are missing from the table, and two long fractions look the same."""
    found = weighed(weights)
    found.results[1].counterexample = {"accumulated": [0.5, 2.0], "full_batch": [0.25, 1.0]}
    text = brief.text(found)
    assert "found: 0.5, 2 by micro-batches\n  expected: 0.25, 1 by the full batch\n" in text


def test_what_holds_is_told_with_its_reach_and_its_names() -> None:
    found = step_bench.held("train.py:step")
    rows = brief.text(found).splitlines()
    assert rows[0] == f"HOLDS train.py:step: every obligation holds ({len(OBLIGATIONS)} of {len(OBLIGATIONS)})"
    assert rows[1] == f"  for {ALL_DATA}: " + "; ".join(f"{id}, {name}" for id, name in NAMES.items())
    assert rows[2] == "not judged: the rounding of floats"
    found.results[2].details, found.results[2].outcome = {"code": NO_LOSS}, Outcome.UNKNOWN
    found.results[3].reach, found.rounding = RECORDED, [{"bound": 1.0}, {"bound": None}]
    rows = brief.text(found).splitlines()
    assert rows[0].endswith("every obligation that was judged holds (8 of 9)")
    assert rows[2] == f"  for {RECORDED}: GA-INV-002, no stale gradient"
    assert rows[3].startswith("not judged: GA-INV-001, the loss of the full batch: equal")
    assert rows[4].startswith("rounding: 1 of 2 tensors bounded")


def test_an_assumption_of_its_own_is_shown_first_and_whole() -> None:
    found = step_bench.held()
    found.assumptions = [
        "no denominator is zero",
        "the laws of 3 operators (somewhere)",
        "the sampled law of my::op, at a.py",
    ]
    said = "the sampled law of my::op, at a.py; no denominator is zero; torch's operators follow their laws"
    assert f"assumed: {said}\n" in brief.text(found)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_is_named_and_only_holds_reads_as_success(outcome: Outcome) -> None:
    found = step_bench.answering(outcome)
    text = brief.text(found)
    assert (text.startswith("HOLDS"), "every obligation" in text) == (outcome is Outcome.HOLDS,) * 2
    assert text.startswith(f"NOT DECIDED ({outcome})") == (outcome in OPEN)
    assert ("  not decided: " in text) == (outcome in OPEN)
    assert str(outcome) in text
    assert f"exit code {found.code}; " in text
    assert (outcome in OPEN and outcome is not Outcome.ERROR) == ("--allow-undecided GA-EQ-001" in text)


def worst(outcome: Outcome, place: Location) -> Verification:
    """Every obligation has this outcome, each for a reason of its own, which is long."""
    found = undecided("train.py:step", {}, Outcome.UNKNOWN, "")
    found.results = [Result(name, outcome, f"{name}: {LONG}", place, LONG, reach=ALL_DATA) for name in OBLIGATIONS]
    found.uncovered, found.assumptions = [LONG, LONG], [LONG, LONG]
    found.config["inferred"], found.config["accum_steps"] = True, 4
    return found


@pytest.mark.parametrize("spent", [0, 2])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_however_much_there_is_to_say_the_lines_are_counted(outcome: Outcome, spent: int, place: Location) -> None:
    found = worst(outcome, place)
    most = (12 if outcome is Outcome.HOLDS else 25) - spent
    assert height(found, spent) <= most
    assert height(found, spent) >= most - 2, "room is left, and texts were cut"


def test_a_line_too_many_is_seen_by_whoever_checks_a_loop(monkeypatch: pytest.MonkeyPatch, place: Location) -> None:
    """`tests.checked` counts the lines of every verification, and so does the sweep over `tests/loops`."""
    for outcome in (Outcome.HOLDS, Outcome.REFUTED):
        found = worst(outcome, place)
        assert checked.counted(found) is found
        assert checked.counted(found, 2) is found
    monkeypatch.setattr(brief, "HELD", 99)
    monkeypatch.setattr(brief, "OTHER", 99)
    for outcome, spent in ((Outcome.HOLDS, 0), (Outcome.REFUTED, 0), (Outcome.REFUTED, 2)):
        with pytest.raises(AssertionError, match="lines"):
            checked.counted(worst(outcome, place), spent)


def test_a_reach_is_never_cut(place: Location) -> None:
    """Cut, it would claim more than was shown; the lines that read values may be counted instead."""
    reach = on_path(ALL_DATA, [f"/some/where/{'deep/' * 20}train.py:{line}" for line in range(3)])
    found = worst(Outcome.HOLDS, place)
    for result in found.results[:4]:
        result.reach = reach
    for result in found.results[4:8]:
        result.reach = RECORDED
    text = "\n".join(line.label for line in brief.lines(found, 2))
    assert height(found, 2) <= 10
    assert "for all real weights, data and draws that take the recorded path, at these shapes (values read at" in text
    assert all(f"for {said}: " in text for said in (RECORDED, ALL_DATA))
    shown = " ".join(line.text for line in brief.lines(found, 2))
    assert all(name in shown for name in OBLIGATIONS)


CASES: dict[str, Callable[[Location], Verification]] = {
    "held": lambda place: step_bench.held(),
    "refuted": lambda place: weighed(dict.fromkeys(range(8), "1/2"), place),
    "open": lambda place: worst(Outcome.OPAQUE, place),
    "worst": lambda place: worst(Outcome.REFUTED, place),
}


@pytest.mark.parametrize("name", CASES)
def test_a_pipe_has_a_sentence_a_line_and_a_terminal_whole_words(name: str, place: Location) -> None:
    found = CASES[name](place)
    plain = brief.text(found)
    assert "\x1b" not in plain
    assert plain.count("\n") == len(brief.lines(found))
    for width in (60, 80, 100):
        text = drawn(found, width)
        rows = text.splitlines()
        assert all(len(row) <= width or " " not in row.strip() or "-->" in row for row in rows)
        assert [row for row in [*rows, *plain.splitlines()] if row != row.rstrip()] == []
        if name in ("refuted", "held"):
            assert " ".join(text.split()) == " ".join(plain.split())
    assert "\x1b[" in drawn(found, 80, colour=True)


def test_a_line_of_source_is_cut_where_a_terminal_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"x = {'1+' * 60}1\n")
    found = weighed(dict.fromkeys(range(8), "1/2"), Location(str(path), 1))
    assert max(len(row) for row in drawn(found, 60).splitlines() if row.startswith("  1 | ")) == 60
    assert f"  1 | x = {'1+' * 60}1\n" in brief.text(found)


def test_control_characters_reach_no_terminal() -> None:
    found = step_bench.refuted()
    found.results[1].reason = "red \x1b[31m text"
    assert "\x1b[31m" not in drawn(found, 80) + brief.text(found) + brief.quiet(found)


def test_what_makes_the_gradient_wrong_comes_first(place: Location) -> None:
    found = step_bench.refuted(place)
    found.results[6] = replace(found.results[1], obligation="GA-INV-005", reason="clipped twice")
    rows = brief.text(found).splitlines()
    assert rows[1].startswith("GA-INV-005")
    found.results[0].help = "record it: --windows-at 0,1,2,7"
    assert any(row.startswith("refuted: GA-EQ-001, the gradient of the full batch at ") for row in rows)
    found.results[0].outcome, found.results[0].reason = Outcome.OPAQUE, "a value was lost"
    assert (
        f"not decided, OPAQUE: GA-DATA-001, every sample once: a value was lost; {found.results[0].help}\n"
        in brief.text(found)
    )


def test_help_names_what_lets_stand_all_that_is_undecided_or_nothing() -> None:
    found = step_bench.answering(Outcome.UNKNOWN)
    found.results[3].outcome = Outcome.OPAQUE
    ids = [found.results[at].obligation for at in (1, 3)]
    named = "; --allow-undecided GA-EQ-001 --allow-undecided GA-INV-002 lets it stand\n"
    assert ids == ["GA-EQ-001", "GA-INV-002"]
    assert named in brief.text(found)
    found.allow_undecided = ids
    assert found.code == 0
    everything = undecided("train.py:step", {}, Outcome.UNKNOWN, "no step was seen")
    everything.allow_undecided = list(OBLIGATIONS)
    assert everything.code == 4
    assert "--allow-undecided" not in brief.text(everything)
    found.results[4].outcome = Outcome.REFUTED
    assert "--allow-undecided" not in brief.text(found)


def test_a_script_that_failed_is_the_first_line_and_no_success() -> None:
    """And no windows were counted, so none are named."""
    found = step_bench.held("train.py", failed="at train.py:11: RuntimeError: red", inferred=True)
    assert (found.outcome, found.code) == (Outcome.ERROR, 3)
    assert brief.text(found).startswith(
        "ERROR train.py: the script failed at train.py:11: RuntimeError: red; N = 4, as "
    )
    assert "decided" not in brief.text(found)
    assert "The script failed at train.py:11: RuntimeError: red." in step.text(found)
    del found.config["accum_steps"]
    assert "N = " not in brief.text(found)


def test_a_pipe_has_whole_sentences_where_a_terminal_has_their_beginning() -> None:
    found = step_bench.held()
    found.uncovered, found.assumptions = [f"{LONG}end"] * 3, [f"{LONG}end"] * 3
    rows = brief.text(found).splitlines()
    assert len(rows) <= 12
    assert [len(re.findall("end", row)) for row in rows if row.startswith(("not judged: ", "assumed: "))] == [3, 3]
    assert not [row for row in rows if "…" in row or row.endswith("...")]
    assert "…" in drawn(found, 100)


def test_nothing_said_is_not_decided() -> None:
    text = brief.text(Verification("a.py:f", {}))
    assert text.startswith("NOT DECIDED (NOT_RUN) a.py:f\n")
    assert "neither a proof nor a counterexample" in text


def test_quiet_names_obligation_and_line(place: Location) -> None:
    assert brief.quiet(step_bench.held()) == ""
    [line] = brief.quiet(step_bench.refuted(place)).splitlines()
    assert line.endswith(f"train.py:2: REFUTED GA-EQ-001, the gradient of the full batch: {step_bench.REASON}")
    found = step_bench.answering(Outcome.OPAQUE)
    assert brief.quiet(found).startswith("OPAQUE GA-EQ-001, ")
    found.allow_undecided = ["GA-EQ-001"]
    assert brief.quiet(found) == ""
    assert brief.quiet(Verification("a.py:f", {})) == "NOT DECIDED (NOT_RUN) a.py:f\n"


def test_a_name_has_at_most_six_words() -> None:
    assert [name for name in NAMES.values() if len(name.split()) > 6] == []
    assert len(set(NAMES.values())) == len(NAMES) == len(OBLIGATIONS)


def test_next_is_a_command_that_fits_the_run() -> None:
    for config, said in (({}, "--rounding"), ({"fake": True}, "without --fake"), ({"ranks": 2}, "gradproof init")):
        text = brief.text(step_bench.held(**config))
        assert f"next: {said}" in text
    watched = step_bench.held("train.py", inferred=True)
    text = brief.text(watched)
    assert text.splitlines()[0] == "HOLDS train.py: every obligation holds (9 of 9); N = 4, as the run shows"
    assert "next: gradproof check FILE.py:FUNCTION" in text
    assert "next: " not in brief.text(step_bench.held("train"))


def test_weights_may_be_fractions() -> None:
    found = weighed({})
    found.weights += [
        {"window": 1, "sample": i, "weight": Fraction(1, 2), "expected": "1/8", "ok": False} for i in range(8)
    ]
    assert "each of the 8 samples of window 2 weighs 1/2" in brief.text(found)


MENDED = ("loss.backward()", "(loss / run.accum_steps).backward()")
README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readme_shows_what_check_prints(tmp_path: Path) -> None:
    """`...` in a block stands for lines that are left out."""
    text = README.read_text(encoding="utf-8")
    source = text.split("```python\n")[1].split("```")[0]
    assert MENDED[1] in text.replace("`", "")
    blocks = [block.split("```")[0] for block in text.split("```\n$ gradproof check train.py:train\n")[1:]]
    for block, old, new in zip(blocks, ("", MENDED[0]), ("", MENDED[1]), strict=True):
        (tmp_path / "train.py").write_text(source.replace(old, new) if old else source)
        command = [sys.executable, "-m", "gradproof", "check", "train.py:train"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if old else 1), done.stderr
        assert re.fullmatch(".*".join(map(re.escape, block.split("...\n"))), done.stdout, re.DOTALL), done.stdout


@pytest.mark.parametrize("size", [30, 90, 99, 100, 101, 150, 400])
def test_a_word_of_any_length_is_cut_at_last(size: int) -> None:
    """A path that is longer than a line has no place after which it could be cut."""
    for text in ("x" * size, f"some words and {'x' * size} and more", f"{'x' * size}: {LONG}"):
        for rows in (1, 2):
            line = Line(text, "found: ", indent=2)
            if line.height(100) > rows:
                assert line.cut(rows, 100).height(100) <= rows
