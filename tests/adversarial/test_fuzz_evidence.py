"""The evidence reader and the command line take whatever there is: an answer with a reason, and never a traceback."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
from attack_kit import CONTRACT, evidence, gate, session
from fuzz_kit import few
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from gradproof.cli import COMMANDS, dispatch
from gradproof.core.check import digest_of
from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Outcome
from gradproof.evidence.store import read
from tests.unit.toy_workspace import fault_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def place(green_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with evidence, which every example puts back as it was."""
    import shutil

    root = tmp_path_factory.mktemp("fuzz") / "ws"
    shutil.copytree(green_run, root)
    return root


def spots(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a tree."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(spot for key, value in inner for spot in spots(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The tree with another value at a place, which may be a new key."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = put(copy[path[0]] if len(path) > 1 else None, path[1:], value)
    return copy


@few(120)
@given(st.data())
def test_any_value_in_any_place(place: Path, data: st.DataObject) -> None:
    """The file has the name that its content asks for, as a forger would give it."""
    path = evidence(place)
    text = path.read_text(encoding="utf-8")
    good = json.loads(text)
    spot = data.draw(st.sampled_from(spots(good)))
    changed = put(good, spot, data.draw(JSON))
    if isinstance(changed, dict) and isinstance(changed.get("check"), dict) and isinstance(changed.get("claim"), dict):
        with suppress(ValueError):
            changed["claim"] = {**changed["claim"], "spec": digest_of(changed["check"])}
    path.unlink()
    try:
        name = digest_of(changed)[:16]
    except ValueError:
        name = "0" * 16
    forged = path.with_name(f"{name}.json")
    forged.write_text(json.dumps(changed), encoding="utf-8", errors="surrogatepass")
    try:
        found = gate(place)
        assert found.effect is not Effect.DISCHARGED or found.outcome is Outcome.HOLDS
    finally:
        forged.unlink()
        path.write_text(text, encoding="utf-8")


def enriched(data: Any) -> Any:
    """Good evidence that also holds everything that evidence of another kind may hold."""
    tick = {"event": "call", "after": "sum = 1", "note": "", "refused": "", "harm": "it is not divided"}
    shown = {"clause": "T-1", "values": {"g": "1/3", "case": {"n": 2}}, "found_by": "solver", "choices": ["True"]}
    shown["trace"] = {"title": "a window", "start": "sum = 0", "ticks": [tick, tick]}
    replays = [{"on": "Python model", "reproduced": True, "detail": "broken"}]
    controls = [{**c, "counterexample": shown, "replays": replays} for c in data["finding"]["controls"]]
    row = {"column": "accumulation", "device": "cpu", "dtype": "fp32", "net": "mlp", "n": 4, "measured": 1e-7}
    row |= {"bound": 1e-6, "ratio": 0.1, "case": "defaults", "metric": "linf", "note": "", "l2": None}
    reply = {"solver": "z3", "version": "4.13", "answer": "unsat"}
    sized = {"clause": "T-1", "label": "sum", "claimed": "1/2"}
    stats = {
        **data["finding"]["stats"],
        "solver": "z3 4.13", "solvers": [reply, {**reply, "solver": "cvc5"}], "rounded": ["add fp32"], "runs": 3,
        "lemmas": [
            {"name": "a", "method": "solvers", "solvers": [reply]}, {"name": "b", "method": "exhaustion", "cases": 7},
            {"name": "c", "method": "derivation", "premises": ["a", "b"]},
        ],
        "exhaustion": [{**sized, "worst": "1/4", "numbers": 9}],
        "certificates": [{**sized, "sha256": "0" * 64, "bound": "1/4", "contracts": ["a"]}],
    }  # fmt: skip
    finding = {
        **data["finding"],
        "controls": controls,
        "measurements": [row],
        "stats": stats,
        "assumptions": ["no NaN"],
    }
    return {**data, "finding": finding}


READERS = [
    ["gate"], ["explain", "K-1"], ["list"],
    ["report", *(f"--format={name}=said.{name}" for name in ("text", "json", "md", "html", "junit", "sarif"))],
]  # fmt: skip


def read_by_all(place: Path, path: Path, changed: Any) -> str:
    """What the commands say to stderr that read evidence, and `gate` to stdout, where `path` holds this instead."""
    text = path.read_text(encoding="utf-8")
    path.unlink()
    forged = path.with_name(f"{digest_of(changed)[:16]}.json")
    forged.write_text(json.dumps(changed), encoding="utf-8")
    said = io.StringIO()
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(said), redirect_stdout(said):
            patch.setenv("GRADPROOF_TRACEBACK", "1")  # what is internal is raised
            patch.chdir(place)
            for command in READERS:
                dispatch(command)
    finally:
        forged.unlink()
        path.write_text(text, encoding="utf-8")
    return said.getvalue()


@few(150)
@given(st.data())
def test_no_value_in_any_place_stops_a_command(place: Path, data: st.DataObject) -> None:
    """No internal error, and no report that its own renderer refuses: what does not conform is left out by its name."""
    path = evidence(place)
    rich = enriched(json.loads(path.read_text(encoding="utf-8")))
    spot = data.draw(st.sampled_from([spot for spot in spots(rich) if len(spot) > 1 and spot[0] != "check"]))
    changed = put(rich, spot, data.draw(JSON | st.sampled_from(["\0", "1e999999999", 10**400, -1, [None, {"a": 1}]])))
    try:
        digest_of(changed)
    except ValueError:
        return
    said = read_by_all(place, path, changed)
    assert "REPORT-" not in said, (spot, said)
    if fault_of(changed):
        assert "is rejected" in said
        assert "GATE MET" not in said


def test_rich_evidence_is_green(place: Path) -> None:
    path = evidence(place)
    said = read_by_all(place, path, enriched(json.loads(path.read_text(encoding="utf-8"))))
    assert said.count("GATE MET") == 2  # gate and report
    assert fault_of(enriched(json.loads(path.read_text(encoding="utf-8")))) == ""


def deep(levels: int) -> Any:
    """A list of a list of a list."""
    return [] if levels == 0 else [deep(levels - 1)]


SHAPELESS: dict[str, tuple[Any, str]] = {
    "finding.assumptions": ([None, {"a": 1}], "finding.assumptions[0]: "),
    "finding.controls.0.counterexample": (5, "finding.controls[0].counterexample: "),
    "finding.controls.0.counterexample.trace": ({"ticks": []}, "trace.title: Field required"),
    "finding.controls.0.counterexample.trace.ticks": ([], "trace.ticks: List"),
    "finding.controls.0.killed": ("yes", "finding.controls[0].killed: "),
    "finding.controls.0.trust": (True, "finding.controls[0].trust: Extra inputs"),
    "finding.controls.0.replays": ([{"reproduced": True}], "replays[0].on: Field required"),
    "finding.measurements": ([{"a": {"b": []}}], "finding.measurements[0].column: Field required"),
    "finding.measurements.0.measured": (10**400, "finding.measurements[0].measured: "),
    "finding.measurements.0.n": (0, "finding.measurements[0].n: "),
    "finding.covers.0.reached": (1, "finding.covers[0].reached: "),
    "finding.reach": ([], "finding.reach: "),
    "finding.stats.rounded": (["add"], "finding.stats.rounded[0]: "),
    "finding.stats.lemmas": ([{"name": "a", "method": "solvers"}], "lemmas[0]: Value error"),
    "finding.stats.exhaustion.0.worst": ("1/0", "finding.stats.exhaustion[0].worst: "),
    "finding.stats.certificates.0.bound": ("1e999999999", "finding.stats.certificates[0].bound: "),
    "finding.stats.free": (deep(70), "too deeply"),
    "claim.files": ({"ws:\0": "x"}, "claim.files['ws:\\x00']: "),
    "claim.imports.0.names": ({"a\0": "ws:a.py"}, "claim.imports[0].names['a\\x00']: "),
    "claim.imports": ([{"path": ["\0"], "names": {}}], "claim.imports[0].path[0]: "),
    "environment.device": (["x"], "environment.device"),
    "environment.variables": ({"A": 1}, "environment.variables.A: "),
    "check.time_limit": ("soon", "check.time_limit: "),
    "check.obligations": ([1], "check.obligations[0]: "),
    "seconds": (-1, "seconds: "),
    "started_at": ("0001-01-01T00:00:00+00:00", "no time"),
}


@pytest.mark.parametrize("spot", list(SHAPELESS))
def test_evidence_of_another_shape_is_left_out_with_its_place(place: Path, spot: str) -> None:
    path = evidence(place)
    value, stated = SHAPELESS[spot]
    rich = enriched(json.loads(path.read_text(encoding="utf-8")))
    changed = put(rich, tuple(int(step) if step.isdigit() else step for step in spot.split(".")), value)
    changed["claim"] = {**changed["claim"], "spec": digest_of(changed["check"])}
    said = read_by_all(place, path, changed)
    assert f"{digest_of(changed)[:16]}.json is rejected" in said
    assert stated in said
    assert "GATE MET" not in said


def test_what_the_reader_takes_meets_the_printed_schema(place: Path) -> None:
    """No value in a place where the schema has another type is taken."""
    schema = json.loads((Path(__file__).resolve().parents[2] / "reports/evidence.schema.json").read_text("utf-8"))
    valid = Draft202012Validator(schema)
    rich = enriched(json.loads(evidence(place).read_text(encoding="utf-8")))
    assert [e.message for e in valid.iter_errors(rich)] == []
    taken = 0
    for spot in spots(rich):
        for value in (None, 5, -1.5, "text", True, [], {}, [1], {"a": 1}):
            changed = put(rich, spot, value)
            if spot[:1] == ("check",):
                changed["claim"] = {**changed["claim"], "spec": digest_of(changed["check"])}
            if (
                spot[-1:] not in ((), ("schema",), ("spec",))
                and spot[:2] != ("claim", "files")
                and not fault_of(changed)
            ):
                taken += 1
                assert spot[0] == "check" or valid.is_valid(changed), (spot, value)
    assert taken > 100


@few(60)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789eE-NaInfinity\\u ', max_size=60).map(str.encode))
def test_any_bytes(place: Path, data: bytes) -> None:
    path = evidence(place)
    other = path.with_name("ffffffffffffffff.json")
    other.write_bytes(data)
    try:
        with pytest.raises(ValueError, match=r"\w"):
            read(other)
        assert gate(place).exit is Exit.MET  # the good evidence beside it still stands
    finally:
        other.unlink()


DEEP = ["[" * 200_000, '{"a":' * 200_000, "[" * 50_000 + "]" * 50_000, '{"seconds": ' + "9" * 100_000 + "}"]


@pytest.mark.parametrize("number", range(len(DEEP)))
def test_evidence_that_is_too_deep(green: Path, number: int) -> None:
    path = evidence(green)
    path.write_text(DEEP[number])
    found = gate(green)
    assert found.red
    assert "is rejected" in found.reason


def test_evidence_that_is_a_pipe_or_a_folder(green: Path) -> None:
    path = evidence(green)
    path.unlink()
    path.mkdir()
    found = gate(green)
    assert found.red
    assert "is no file" in found.reason
    path.rmdir()
    os.mkfifo(path)
    found = gate(green)
    assert found.red
    assert "is no file" in found.reason


WORDS = [
    *COMMANDS, "--workspace", "--contract", "-k", "--format", "--json", "--profile", "ci", "release", "--jobs", "0",
    "-1", "json", "junit=", "=", "html=/dev/null/x", "../..", "/", "\u202e", "K-1", "GP101", "--help", "-h", "", "é",
    "\0", "mean-v1", "../mean-v1", "--", "--bogus", "a:b", "x.py:f", "--time-limit", "nan", "inf", "64",
]  # fmt: skip
READING = ("gate", "list", "graph", "explain", "report", "bound", "plan-batch")


@few(50)
@given(st.sampled_from(READING), st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=4))
def test_any_command_line(place: Path, command: str, words: list[str]) -> None:
    """One of the exit codes, and 3 only where something crashed: which it never does."""
    os.environ.pop("GRADPROOF_TRACEBACK", None)
    here = Path.cwd()
    os.chdir(place)
    try:
        code = dispatch([command, *words])
    finally:
        os.chdir(here)
    assert code in EXIT_CODE.values()
    assert code != EXIT_CODE[Exit.CRASH], (command, words)


@pytest.mark.parametrize("name", ["../../etc", "..", "/etc/passwd", "mean-v1/../..", "\0", "a" * 5000])
def test_contracts_by_a_path(green: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = dispatch(["gate", "--workspace", str(green), "--contract", name])
    assert code == EXIT_CODE[Exit.USAGE]
    assert "internal error" not in capsys.readouterr().err


def test_a_contract_that_is_a_pipe(green: Path) -> None:
    """Nobody would ever write into it, and the reader would wait."""
    (green / CONTRACT).unlink()
    os.mkfifo(green / CONTRACT)
    assert dispatch(["gate", "--workspace", str(green)]) == EXIT_CODE[Exit.USAGE]


def test_a_contract_that_is_a_link_out_of_the_workspace(green: Path, tmp_path: Path) -> None:
    """Its text is what counts: evidence of the text that stood here before is stale, wherever the new one lies."""
    text = (green / CONTRACT).read_text(encoding="utf-8")
    (green / CONTRACT).unlink()
    (tmp_path / "other.yaml").write_text(text.replace("the mean is exact", "the mean is roughly exact"))
    (green / CONTRACT).symlink_to(tmp_path / "other.yaml")
    found = gate(green)
    assert found.red
    assert "changed: text, title" in found.reason
    assert session(green).contracts[0].id == "mean-v1"
