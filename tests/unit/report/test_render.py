"""Terminal, Markdown and JSON reports: what they say, and what they refuse to say."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import report_sample as sample
from rich.console import Console

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import DECISION, Effect, Expect, Kind, Layer, Outcome
from gradproof.evidence.record import record
from gradproof.report import text as fmt, views
from gradproof.report.consistency import as_json
from gradproof.report.formats import html, markdown

Report = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
TARGET = "CROSS-GA-003"
PAIRS = list(DECISION)
NOT_GREEN = [pair for pair in PAIRS if DECISION[pair] is not Effect.DISCHARGED]


def in_terminal(report: Report, width: int = 0, colour: bool = False) -> str:
    """What a terminal of this width shows; without a width, what a pipe gets."""
    out = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=out, width=width or 100, force_terminal=bool(width), color_system=system)  # type: ignore[arg-type]
    fmt.draw(markdown.overview(report), console)
    return out.getvalue()


RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": in_terminal,
    "markdown": markdown.render,
    "html": html.render,
    "json": as_json,
}
SHOWN = {name: call for name, call in RENDERERS.items() if name != "json"}


def find(report: Report, name: str) -> Report:
    found: Report = next(c for c in report["checks"] if c["id"] == name)
    return found


def with_outcome(expect: Expect, outcome: Outcome) -> Report:
    """A consistent report in which one required check, alone in its cell, has this expectation and outcome."""
    report = sample.green()
    fresh = outcome is not Outcome.NOT_RUN
    find(report, TARGET).update(expect=str(expect), outcome=str(outcome), reason="for the test", fresh=fresh)
    return sample.judged(report)


def target_cell(report: Report) -> views.CellView:
    ob = next(o for o in report["obligations"] if o["id"] == "GA-INV-003")
    return views.cell(report, ob, Layer.CROSSHAIR)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0]}-{p[1]}")
def test_every_outcome_is_named_with_its_effect(pair: tuple[Expect, Outcome]) -> None:
    report = with_outcome(*pair)
    cell = target_cell(report)
    assert cell.effect is DECISION[pair]
    assert str(pair[1]) in cell.words
    assert cell.words.startswith(f"{DECISION[pair]}: ")
    assert ("proved" in cell.words or "counterexample" in cell.words) == (cell.effect is Effect.DISCHARGED)
    for name, call in SHOWN.items():
        text = call(report)
        assert views.outcome_words(find(report, TARGET)) in text.replace("\n", " "), name
        assert ("GATE MET" in text) == (DECISION[pair] is Effect.DISCHARGED), name
        assert ("GATE NOT MET" in text) == (DECISION[pair] is not Effect.DISCHARGED), name
    assert cell.words in " ".join(in_terminal(report).split())
    row = next(line for line in markdown.render(report).splitlines() if line.startswith(f"| {TARGET} "))
    assert ("DISCHARGED" in row) == (DECISION[pair] is Effect.DISCHARGED)
    assert ("nothing established" in row) == (DECISION[pair] is not Effect.DISCHARGED)


@pytest.mark.parametrize("state", ["partial", "running"])
@pytest.mark.parametrize("call", SHOWN.values(), ids=SHOWN)
def test_an_unfinished_run_is_never_met(call: Callable[[Report], str], state: str) -> None:
    report = sample.green()
    report["run_state"] = state
    assert report["verdict"]["met"]
    text = call(report)
    assert "GATE MET" not in text
    assert "GATE NOT MET" in text
    assert views.RUN_STATE_WORDS[state] in " ".join(text.split())
    assert "0 (the gate is met)" not in text


@pytest.mark.parametrize("call", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("made", [sample.green, lambda: sample.green("release", True)])
def test_a_met_gate_is_said(call: Callable[[Report], str], made: Callable[[], Report]) -> None:
    text = call(made())
    assert "GATE MET" in text
    assert "GATE NOT MET" not in text


@pytest.mark.parametrize("call", RENDERERS.values(), ids=RENDERERS)
@pytest.mark.parametrize("pair", NOT_GREEN, ids=lambda p: f"{p[0]}-{p[1]}")
def test_a_verdict_better_than_its_parts_is_refused(
    call: Callable[[Report], str], pair: tuple[Expect, Outcome]
) -> None:
    report = with_outcome(*pair)
    report["verdict"] = {"exit": "met", "code": 0, "met": True, "reasons": []}
    with pytest.raises(GradproofError) as error:
        call(report)
    assert error.value.code == "REPORT-INCONSISTENT"


def _cell_lies(r: Report) -> None:
    find(r, TARGET).update(outcome="TIMEOUT", effect="OPEN")
    r["totals"].update(discharged=r["totals"]["discharged"] - 1, open=r["totals"]["open"] + 1)


def _obligation_lies(r: Report) -> None:
    _cell_lies(r)
    r["obligations"][3]["cells"]["crosshair"]["effect"] = "OPEN"


def _measured_above(r: Report) -> None:
    r["measurements"][4]["measured"] = 2 * r["measurements"][4]["bound"]


def _unplaced(outcome: str, effect: str) -> Callable[[Report], None]:
    """A stub, which is in no cell of the matrix, comes to another end; its totals are right."""

    def lie(r: Report) -> None:
        find(r, "STUB-FL-001").update(outcome=outcome, effect=effect)
        counts = [c["effect"] for c in r["checks"]]
        r["totals"].update({k: counts.count(k.upper()) for k in ("discharged", "broken", "open")})

    return lie


LIES: dict[str, Callable[[Report], object]] = {
    "check effect": lambda r: find(r, TARGET).update(outcome="VACUOUS"),
    "effect of a check in no cell": _unplaced("TIMEOUT", "DISCHARGED"),
    "broken check in no cell": _unplaced("WEAK", "BROKEN"),
    "open check in no cell": _unplaced("TIMEOUT", "OPEN"),
    "stale": lambda r: find(r, TARGET).update(fresh=False),
    "twice": lambda r: r["checks"].append(dict(r["checks"][0])),
    "cell": _cell_lies,
    "obligation": _obligation_lies,
    "cell names nothing": lambda r: r["obligations"][0]["cells"]["smt"]["checks"].append("KANI-GA-999"),
    "required cell without a check": lambda r: r["obligations"][4]["cells"]["crosshair"].update(required=True),
    "discharged cell without a check": lambda r: r["obligations"][4]["cells"]["crosshair"].update(effect="DISCHARGED"),
    "nothing required": lambda r: [c.update(required=False) for c in r["obligations"][0]["cells"].values()],
    "totals": lambda r: r["totals"].update(broken=1),
    "code": lambda r: r["verdict"].update(code=4),
    "exit": lambda r: r["verdict"].update(exit="open", code=4),
    "no obligation": lambda r: r.update(obligations=[]),
    "criterion not met": lambda r: r["gate"]["criteria"][0].update(met=False),
    "criterion of nothing": lambda r: r["gate"]["criteria"][0]["obligations"].append("GA-INV-099"),
    "seeded bug not run": lambda r: r["gate"]["falsification"].update(turned_red=None),
    "seeded bug missed": lambda r: r["gate"]["falsification"].update(turned_red=False),
    "mutant survived": lambda r: r["mutants"][0]["survived"].append("KANI-GA-001"),
    "measured above its bound": _measured_above,
}
WRONG: dict[str, Callable[[Report], object]] = {
    "schema": lambda r: r.update(schema="gradproof-report/3"),
    "no run_state": lambda r: r.pop("run_state"),
    "run_state": lambda r: r.update(run_state="done"),
    "no verdict": lambda r: r.pop("verdict"),
    "met is no truth value": lambda r: r["verdict"].update(met=1),
    "outcome": lambda r: find(r, TARGET).update(outcome="PASSED"),
    "effect": lambda r: find(r, TARGET).update(effect="GREEN"),
    "cell": lambda r: r["obligations"][0]["cells"]["smt"].pop("required"),
    "layer": lambda r: r["obligations"][0]["cells"].update(tpu={"effect": None, "required": False, "checks": []}),
    "checks are no list": lambda r: r.update(checks={}),
    "check is no mapping": lambda r: r["checks"].append("KANI-GA-001"),
    "negative error": lambda r: r["measurements"][0].update(measured=-1.0),
    "empty": lambda r: r.clear(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_report_that_contradicts_itself_is_refused(lie: Callable[[Report], object]) -> None:
    report = sample.green()
    lie(report)
    for call in RENDERERS.values():
        with pytest.raises(GradproofError, match="REPORT-INCONSISTENT"):
            call(report)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_shape_is_refused(wrong: Callable[[Report], object]) -> None:
    report = sample.green()
    wrong(report)
    for call in RENDERERS.values():
        with pytest.raises(GradproofError, match="REPORT-SHAPE"):
            call(report)


def test_nothing_is_printed_before_a_refusal() -> None:
    report = sample.green()
    report["totals"]["broken"] = 3
    out = io.StringIO()
    with pytest.raises(GradproofError):
        fmt.draw(markdown.overview(report), Console(file=out))
    assert out.getvalue() == ""


@pytest.mark.parametrize("call", SHOWN.values(), ids=SHOWN)
def test_counts_have_denominators(call: Callable[[Report], str]) -> None:
    text = " ".join(call(sample.red()).split())
    for many, rest in (("3 of 6 obligations", "2 1"), ("27 of 54 checks", "2 25 24"), ("11 of 12 mutants", "1 0")):
        assert re.findall(r"\d+", text.partition(many)[2])[: len(rest.split())] == rest.split(), many


@pytest.mark.parametrize("call", SHOWN.values(), ids=SHOWN)
def test_the_sentence_and_the_open_gpu_rows_are_there(call: Callable[[Report], str]) -> None:
    text = " ".join(call(sample.green()).split())
    assert views.SENTENCE in text
    assert sample.NO_GPU in text
    assert "24 checks outside" in text


def test_an_obligation_that_is_not_discharged_claims_no_reach() -> None:
    rows = {words: ids for words, _, ids in views.strongest(sample.red())}
    assert rows["nothing established"] == ["GA-EQ-001", "GA-INV-003", "GA-INV-005"]
    assert rows["proved, bounded"] == ["GA-INV-001", "GA-INV-002", "GA-INV-004"]
    assert [ids for _, _, ids in views.strongest(sample.partial())][-1] == list(sample.OBLIGATIONS)


def test_a_mutant_that_nothing_tried_is_not_killed() -> None:
    report = sample.partial()
    report["mutants"][0].update(killed_by=[], survived=[], not_tried=["KANI-GA-001"])
    for call in SHOWN.values():
        text = " ".join(call(report).split())
        assert re.findall(r"\d+", text.partition("11 of 12 mutants")[2])[:2] == ["0", "1"]
        assert "NOT TRIED" in text


def test_a_long_list_of_reasons_says_how_many_are_left_out() -> None:
    report = sample.partial()
    report["verdict"]["reasons"] = [f"reason {i}" for i in range(20)]
    assert "12 more of 20" in views.banner(report).reasons[-1]


@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize("made", [sample.green, sample.red, sample.partial])
def test_the_terminal_keeps_its_width(made: Callable[[], Report], width: int) -> None:
    lines = in_terminal(made(), width).splitlines()
    assert max(map(len, lines)) <= width


def test_colour_adds_nothing_but_colour() -> None:
    coloured = in_terminal(sample.red(), 100, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == in_terminal(sample.red(), 100)


def hostile(value: Any, text: str) -> Any:
    """`value` with `text` appended to every free string below it."""
    fixed = {"schema", "run_state", "exit", "outcome", "effect", "expect", "layer", "reach", "column", "outcomes"}
    linked = {"id", "obligations", "checks", "killed_by", "survived", "check", "status", "state"}
    if not isinstance(value, dict):
        lists = isinstance(value, list)
        return [hostile(v, text) for v in value] if lists else value + text if isinstance(value, str) else value
    if value.get("schema") == "gradproof-rounding/1":
        return {**value, **{k: hostile(value[k], text) for k in ("gradproof", "made_at", "assumes", "contracts")}}
    linked |= {"operator", "dtype", "device"} if {"state", "claim"} & set(value) else set()
    return {k: v if k in fixed | linked and _words(v) else hostile(v, text) for k, v in value.items()}


def _words(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def test_markdown_is_escaped() -> None:
    nasty = "<img src=x>| `a` *b* [c](d) $e$ \n# f &lt; \\|"
    text = markdown.render(hostile(sample.red(), nasty))
    assert "<img" not in text
    assert "\n# f" not in text.removeprefix("# GATE")
    head = 0
    for line in text.splitlines():
        bare = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) if line.startswith("|") else 0
        assert not line.startswith("|") or head in (0, bare), line
        head = bare
    plain = re.sub(r"\\.", "", text)
    assert not re.search(r"[`*$]", plain)


def test_markdown_tables_have_every_column() -> None:
    text = markdown.render(sample.red())
    assert (
        "| fp16 | cpu | 32 | 4 | 4.1e-6 | 6.35e-7 | 6.46 | ≤ 1e-3 | 5.86e-4 | ABOVE the bound in 1 of 4 rows |" in text
    )
    assert "NOT reproduced" in text
    assert "tail_dropped" in text
    end = text.index("## End-to-end difference (no proven bound)")
    assert "BatchNorm" not in text[text.index("## Accumulation error") : end]


def test_the_matrix_has_a_column_for_every_layer_that_is_asked_for() -> None:
    report, title = sample.green(), views.LAYER_TITLE[Layer.STEP]
    assert views.LAYER_TITLE[Layer.SMT] in in_terminal(report, 160)
    assert title not in in_terminal(report, 160)
    row = report["obligations"][0]
    asked = {"effect": "OPEN", "outcomes": [], "reach": None, "required": True, "checks": []}
    row["cells"]["step"] = {**row["cells"]["smt"], **asked}
    row["effect"] = "OPEN"
    report["verdict"] |= {"met": False, "exit": "open", "code": 4, "reasons": ["no check"]}
    assert title in in_terminal(report, 160)


def test_the_terminal_obeys_no_control_character() -> None:
    nasty = hostile(sample.red(), "\x1b[2J\x07[bold]x[/bold]\u202e")
    text = in_terminal(nasty) + in_terminal(nasty, 200)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


def test_json_is_stable_and_complete() -> None:
    report = sample.red()
    text = as_json(report)
    assert json.loads(text) == report
    shuffled = dict(reversed([(k, v) for k, v in report.items()]))
    assert as_json(shuffled) == text
    assert list(json.loads(text))[:2] == ["schema", "run_state"]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_json_refuses_what_is_no_number(number: float) -> None:
    report = sample.green()
    report["seconds"] = number
    with pytest.raises(GradproofError, match="REPORT-NUMBER"):
        as_json(report)


def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "reports" / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("made", [sample.green, sample.red, sample.partial, lambda: sample.green("release", True)])
def test_reports_meet_their_schema(made: Callable[[], Report]) -> None:
    assert [e.message for e in _validator("report").iter_errors(json.loads(as_json(made())))] == []


@pytest.mark.parametrize("name", ["schema", "run_state", "outcome", "exit", "no run_state", "unknown key", "cell"])
def test_the_report_schema_rejects(name: str) -> None:
    report = sample.green()
    {**LIES, **WRONG, "unknown key": lambda r: r.update(grade="A")}[name](report)
    assert not _validator("report").is_valid(report)


def _evidence() -> Report:
    bound = Bound("micro_batches", 4, "the contract's own bound")
    check = Check(
        "KANI-GA-001", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "x", "symbolic.accumulation.loop:x", bounds=(bound,)
    )
    finding = Finding(Outcome.HOLDS, "every clause holds", measurements=[dict(sample.measurements()[1])])
    finding.covers = [{"name": "clip branch", "reached": True, "witness": {"norm": "3/2"}}]
    return json.loads(json.dumps(record(check, finding, seconds=1.5)))  # type: ignore[no-any-return]


def test_evidence_meets_its_schema() -> None:
    assert [e.message for e in _validator("evidence").iter_errors(_evidence())] == []


@pytest.mark.parametrize(
    "place", [("schema",), ("finding", "outcome"), ("claim", "spec"), ("check", "bounds", 0, "reason")]
)
def test_the_evidence_schema_rejects(place: tuple[Any, ...]) -> None:
    evidence = _evidence()
    inner: Any = evidence
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = ""
    assert not _validator("evidence").is_valid(evidence)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.28174e-3, "1.28e-3"), (1e-5, "1e-5"), (0.25, "0.25"), (999.6, "1e3"), (12345.0, "1.23e4"),
     (None, "none"), (math.nan, "not a number"), (-math.inf, "-infinite")],
)  # fmt: skip
def test_numbers_are_readable(value: float | None, text: str) -> None:
    assert fmt.sci(value) == text


@pytest.mark.parametrize("value", [1.0000001, 1 + 2**-52, 1.004, 0.9999999, 1 - 2**-53, 1.0, 0.5, 6.46])
def test_a_ratio_stays_on_its_side_of_one(value: float) -> None:
    assert (float(fmt.ratio(value)) > 1) == (value > 1)


def test_small_words() -> None:
    assert fmt.when("2025-11-21T09:05:02.129+01:00") == "2025-11-21 08:05:02 UTC"
    assert fmt.when("soon") == "soon"
    assert fmt.value("-1/3") == "-1/3"
    assert fmt.value(f"{10**40 + 1}/{3 * 10**40}") == "≈ 0.333"
    assert fmt.value(f"1.{'0' * 40}e999999999") == "≈ infinite"
    assert fmt.value("w" * 40) == "w" * 31 + "…"
    assert fmt.sentence("done") == fmt.sentence("done.") == "done."
    assert (fmt.seconds(0.416), fmt.seconds(125)) == ("0.42 s", "2 min 05 s")
    assert fmt.grouped(["A@cpu-fp32", "B", "A@cpu-bf16"]) == ["A @ cpu-fp32, cpu-bf16", "B"]
    names = ["a@b", "a-b", "a_b", "a_40_b", "a b", "ä"]
    assert len({fmt.anchor("check", n) for n in names}) == len(names)


def test_rendering_loads_neither_torch_nor_z3() -> None:
    load = "import sys; from gradproof.report.formats import html, markdown"
    code = f"{load}; print({{'torch', 'z3'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert found.stdout.strip() == "set()"
