"""What a verification looks like, as a terminal, Markdown and JSON, and that none of them says more than it holds."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import step_bench
from rich.console import Console

from gradproof.core.outcome import Effect, Outcome
from gradproof.report.formats import step
from gradproof.shadow.locations import Location
from gradproof.shadow.request import complete, expected_obligations, undecided
from gradproof.shadow.result import OBLIGATIONS, WHERE_DUE, Result, Verification, from_json, plain, step_effect, to_json

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "reports/step.schema.json").read_text(encoding="utf-8"))
LINE = "    loss.backward()  # `here` <b>"


def drawn(found: Verification, width: int = 80) -> str:
    out = io.StringIO()
    step.terminal(found, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


RENDERERS: dict[str, Callable[[Verification], str]] = {
    "plain": step.text,
    "terminal": lambda found: drawn(found, 300),
    "markdown": step.render_markdown,
}
OPEN = [o for o in Outcome if step_effect(o) is Effect.OPEN]


@pytest.fixture
def place(tmp_path: Path) -> Location:
    path = tmp_path / "train.py"
    path.write_text(f"def step(run):\n{LINE}\n")
    return Location(str(path), 2, "step", "library.py:7")


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_is_told_and_only_holds_reads_as_success(name: str, outcome: Outcome) -> None:
    text = " ".join(RENDERERS[name](step_bench.answering(outcome)).split())
    assert str(outcome) in text.replace("\\", "")
    assert ("every obligation holds" in text) == (outcome is Outcome.HOLDS)
    assert ("NOT DECIDED" in text) == (outcome in OPEN)
    assert ("neither a proof" in text) == (outcome in OPEN)
    every = len(OBLIGATIONS)
    assert (f"{every} of {every} obligations" in text) == (outcome is Outcome.HOLDS)


@pytest.mark.parametrize("name", RENDERERS)
def test_a_refutation_has_its_line_counterexample_and_help(name: str, place: Location) -> None:
    text = RENDERERS[name](step_bench.refuted(place)).replace("\\", "")
    flat = " ".join(text.split())
    assert text.index("GA-EQ-001") < text.index("GA-DATA-001")
    for words in (step_bench.REASON, "train.py:2 in step", "loss.backward()", "weight[0, 0].accumulated", "4/3"):
        assert words.replace(" ", "") in flat.replace(" ", ""), words
    assert "divide the loss." in flat
    assert "Help:" in flat


@pytest.mark.parametrize("width", [60, 100])
def test_no_line_is_wider_than_the_terminal(place: Location, width: int) -> None:
    lines = drawn(step_bench.refuted(place), width).splitlines()
    assert max(map(len, lines)) <= width


def test_plain_text_has_a_sentence_a_line_and_no_escapes(place: Location) -> None:
    found = step_bench.refuted(place)
    found.rounding = [{f"column {i}": "1" * 20 for i in range(9)} for _ in range(200)]
    found.notes = ["a note of **many** `words` & <b>, " * 20, "a_b"]
    lines = step.text(found).splitlines()
    assert f"- {' '.join(found.notes[0].split())}" in lines
    assert "- a_b" in lines
    assert "Help: divide the loss." in lines
    assert any("80 more" in line for line in lines)
    assert [line for line in lines if line != line.rstrip() or "\\" in line] == []


@pytest.mark.parametrize("name", RENDERERS)
def test_what_it_rests_on_is_all_there(name: str) -> None:
    found = step_bench.held()
    found.uncovered, found.havocked = ["the branch at train.py:9"], ["aten.strange.default"]
    found.assumptions, found.notes = ["exp is some function"], ["a note"]
    text = RENDERERS[name](found)
    for words in ("train.py:9", "aten.strange", "exp is some function", "a note", "called 11 times", "torch 2.13"):
        assert words in " ".join(text.split()), words
    assert "1/8" in text
    assert "accum-steps 4" in text
    assert "0.25 s" in text


def test_reasons_told_once_name_every_obligation() -> None:
    text = step.text(undecided("a.py:f", {}, Outcome.TIMEOUT, "no answer within 2 s"))
    assert text.count("no answer within 2 s") == 1
    assert all(name in text for name in expected_obligations(1))
    assert "nothing" in text.rpartition("Recorded")[2]


def test_nothing_said_is_not_decided() -> None:
    for call in RENDERERS.values():
        assert "NOT DECIDED" in call(Verification("a.py:f", {})).replace("\\", "").replace("\n", " ")


def test_markdown_lets_nothing_of_the_user_through(place: Location) -> None:
    found = step_bench.refuted(place)
    found.results[1].reason = "a | b <script> `x` [y](z)"
    text = step.render_markdown(found)
    assert "<script>" not in text
    assert "\\`here\\` &lt;b&gt;" in text
    assert "a \\| b &lt;script&gt;" in text


def test_control_characters_reach_no_terminal() -> None:
    found = step_bench.refuted()
    found.results[1].reason = "red \x1b[31m text"
    assert "\x1b[31m" not in drawn(found) + step.text(found)


def test_a_source_that_is_gone_is_not_quoted() -> None:
    found = step_bench.refuted(Location("/gone/train.py", 3, "step"))
    assert "/gone/train.py:3 in step" in step.text(found)
    found.results[1].location = Location("", 0)
    assert ":0" not in step.text(found)


def test_the_json_form_follows_the_schema_and_comes_back(place: Location) -> None:
    for found in (
        step_bench.held(),
        step_bench.refuted(place),
        undecided("a", {"ranks": 2}, Outcome.ERROR, "x", place),
    ):
        data = json.loads(json.dumps(to_json(found), allow_nan=False))
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
        again = from_json(data)
        assert to_json(again) == data
        assert (again.outcome, again.code, again.results[1].location) == (
            found.outcome,
            found.code,
            found.results[1].location,
        )


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_schema_knows_every_outcome(outcome: Outcome) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(to_json(step_bench.answering(outcome)))


def _set(path: str, to: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        *places, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for name in places:
            data = data[name]
        data[last] = to

    return change


WRONG = {
    "schema": _set("schema", "gradproof-step/3"),
    "outcome": _set("outcome", "HOLDS"),
    "code": _set("code", 0),
    "exit": _set("exit", "met"),
    "result": _set("results.1.outcome", "HOLDS"),
    "word": _set("results.1.outcome", "FINE"),
    "location": _set("results.1.location", {"file": "a"}),
    "reason": _set("results.1.reason", None),
    "row": _set("results.0", "HOLDS"),
    "missing": lambda data: data.pop("assumptions"),
    "more": _set("proved", True),
    "list": _set("notes", {}),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_edited_json_form_is_refused(place: Location, name: str) -> None:
    data = copy.deepcopy(to_json(step_bench.refuted(place)))
    WRONG[name](data)
    with pytest.raises(ValueError):  # noqa: PT011
        from_json(data)


def test_numbers_become_plain() -> None:
    found = {"a": Fraction(1, 3), "b": math.inf, "c": np.float32(0.5), "d": np.arange(2), "e": {2}, (0, 1): math.nan}
    assert plain(found) == {"a": "1/3", "b": "inf", "c": 0.5, "d": [0, 1], "e": [2], "(0, 1)": "nan"}
    json.dumps(plain(found), allow_nan=False)
    with pytest.raises(ValueError, match=r"here\.a\[0\] is a builtins\.object"):
        plain({"a": [object()]}, "here")
    with pytest.raises(ValueError, match="type float"):
        plain({1.5: 1})


def test_silence_about_an_obligation_is_not_run() -> None:
    found = step_bench.held()
    found.results = [r for r in found.results if r.obligation not in ("GA-EQ-001", *WHERE_DUE)]
    complete(found, 1)
    assert (found.outcome, found.result("GA-EQ-001").outcome) == (Outcome.NOT_RUN, Outcome.NOT_RUN)
    assert [r.obligation for r in found.results] == list(expected_obligations(1))
    complete(found, 2)
    assert found.result("GA-SYNC-001").outcome is Outcome.NOT_RUN
    assert [r.obligation for r in found.results] == list(expected_obligations(2))


def test_an_obligation_of_a_later_version_is_kept() -> None:
    found = step_bench.held()
    found.results.append(Result("GA-NEW-001", Outcome.REFUTED, "x"))
    assert complete(found, 1).results[-1].obligation == "GA-NEW-001"
    assert "GA-NEW-001" in step.text(found)


@pytest.mark.parametrize("outcome", [Outcome.HOLDS, Outcome.REFUTED])
def test_an_answer_is_never_made_up(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="is an answer"):
        undecided("a", {}, outcome, "x")


def test_a_rounding_bound_names_the_operators_that_add_most() -> None:
    found = Verification("train.py:step", {})
    top = [{"op": "aten.addmm.default", "location": "/a/train.py:8", "share": 0.284}]
    row = {"quantity": "grad", "param": "w", "window": 1, "location": "/a/train.py:9", "dtype": "float32", "top": top}
    found.rounding = [row | {"bound": 4.42e-7, "measured": 2e-8, "within": True, "reason": ""}]
    none = {"bound": None, "measured": None, "within": None, "reason": "no bound for conv", "top": []}
    found.rounding.append(row | none)
    [(title, rows)] = step.tables(found)
    assert title == "Rounding bounds"
    assert rows[0]["most from"] == "28% addmm (train.py:8)"
    assert rows[0]["bound"] == 4.42e-7
    assert rows[1]["bound"] == "no bound for conv"
