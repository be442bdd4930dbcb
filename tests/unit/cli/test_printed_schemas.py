"""Every JSON that a command prints meets its published schema, and what is none of it does not."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradproof.cli import dispatch
from gradproof.core.check import digest_of
from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Expect, Kind, Layer, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.rounding.farkas import check

ROOT = Path(__file__).resolve().parents[3]
OPEN, NOTHING = EXIT_CODE[Exit.OPEN], EXIT_CODE[Exit.NOTHING]
Json = Any
Edit = Callable[[Json], object]


def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads((ROOT / f"reports/{name}.schema.json").read_text(encoding="utf-8"))
    )


def meets(name: str, data: Json) -> None:
    """Raise unless `data` meets the published schema, and its members agree."""
    schema(name).validate(data)
    assert consistent(name, data)


def consistent(name: str, data: Json) -> bool:
    """What no JSON Schema says: whether the members of a document agree."""
    return all({"merge": _merge, "selection": _selection, "events": _event, "bound": _bound, "thresholds": _thresholds,
                "certificate": _certificate}.get(name, lambda _: [])(data))  # fmt: skip


def _merge(d: Json) -> Iterator[bool]:
    found = d["taken"] or d["kept"] or d["refused"] or d["strange"]
    yield d["exit"] == ("nothing" if not found else "open" if d["missing"] else "met")
    yield d["code"] == EXIT_CODE[Exit(d["exit"])]
    counted = [row["check"] for row in (*d["taken"], *d["kept"])]
    yield len({*counted, *d["missing"]}) == len(counted) + len(d["missing"])


def _selection(d: Json) -> Iterator[bool]:
    yield d["code"] == EXIT_CODE[Exit(d["exit"])]
    yield d["exit"] != "met" or {row["effect"] for row in d["checks"]} == {"DISCHARGED"}


def _event(d: Json) -> Iterator[bool]:
    if d["event"] == "verdict":
        yield d["code"] == EXIT_CODE[Exit(d["exit"])]
        yield d["met"] is (d["exit"] == "met")


def _bound(d: Json) -> Iterator[bool]:
    yield from (Fraction(row["attained"]) <= Fraction(row["bound"]) for row in (d, d.get("norm")) if row is not None)
    yield len(d["witness"]) == d["setting"]["n"]


def _thresholds(d: Json) -> Iterator[bool]:
    true, undecided, false = (d[key] for key in ("true up to", "undecided from", "false from"))
    yield all(n is None or n & (n - 1) == 0 for n in (true, undecided, false))
    yield false is None or false > max(true or 0, undecided or 0)


def _certificate(d: Json) -> Iterator[bool]:
    yield len(d["multipliers"]) == len(d["rows"])
    yield all(earlier < i for i, row in enumerate(d["rows"]) for _, earlier in row[2])
    yield d.get("case") is None or d["case"]["row"] < len(d["rows"])


def printed(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Json:
    capsys.readouterr()
    assert dispatch(list(args)) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def done(toy: Workspace, finished: Path) -> Workspace:
    """The toy workspace, with the evidence of a run."""
    shutil.copytree(finished / "reports", toy.reports)
    return toy


def test_a_merge(toy: Workspace, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    meets("merge", printed(capsys, "merge", "--json", str(tmp_path / "empty"), code=NOTHING))
    shutil.copytree(finished / "reports/evidence", tmp_path / "in/evidence")
    (tmp_path / "in/evidence/K-9").mkdir()
    (tmp_path / "in/evidence/K-9/x.json").write_text("{", encoding="utf-8")
    (toy.root / "models/b.py").write_text("VALUE = 1  # another\n", encoding="utf-8")
    data = printed(capsys, "merge", "--json", str(tmp_path / "in"), code=OPEN)
    meets("merge", data)
    assert all(data[key] for key in ("taken", "refused", "missing"))
    again = printed(capsys, "merge", "--json", str(tmp_path / "in"), code=OPEN)
    meets("merge", again)
    assert again["kept"]


def test_the_plan_and_the_settings(done: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    meets("list", printed(capsys, "list", "--format", "json"))
    assert printed(capsys, "list", "--json") == printed(capsys, "list", "--format", "json")
    assert dispatch(["list", "--json", "--format", "md"]) == EXIT_CODE[Exit.USAGE]
    (done.root / "pyproject.toml").write_text(
        "[tool.gradproof]\ngpu-max-age-days = 30\n[tool.gradproof.require.T-1]\nreach = {smt = 'bounded'}\n"
        "[[tool.gradproof.waivers]]\nobligation = 'T-1'\nlayer = 'cuda'\nowner = 'ann'\nreason = 'no GPU'\n"
        "expires = 2027-01-31\n",
        encoding="utf-8",
    )
    data = printed(capsys, "config", "--json", "--time-limit", "2.5")
    meets("config", data)
    assert {"time_limit", "gpu_max_age_days", "require T-1", "waiver"} <= {row["name"] for row in data["settings"]}


def test_selections(done: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    meets("selection", printed(capsys, "prove", "-q", "--json"))
    data = printed(capsys, "prove", "-q", "--json", "--shard", "1/2")
    meets("selection", data)
    assert data["shard"] == "1/2"
    data = printed(capsys, "run", "-q", "--json", "--device", "cuda", code=OPEN)
    meets("selection", data)
    assert [row["effect"] for row in data["checks"]] == ["OPEN"]


def test_events_of_a_run(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["verify", "-q", "--format", "ndjson=events"]) == 0
    lines = (toy.root / "events").read_text(encoding="utf-8").splitlines()
    for line in lines:
        meets("events", json.loads(line))
    assert {json.loads(line)["event"] for line in lines} == {"begin", "started", "finished", "verdict", "end"}


def test_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    meets("bound", printed(capsys, "bound", "-n", "2", "--json"))
    data = printed(capsys, "bound", "-n", "2", "--tolerance", "1", "--elements", "3", "--replay", "cpu", "--json")
    meets("bound", data)
    assert {"norm", "replay"} <= set(data)
    meets("bound", printed(capsys, "bound", "-n", "4", "--order", "any", "--inputs", "bf16", "--json"))
    args = ("bound", "--thresholds", "--tolerance", "1e-2", "--buffer", "bf16", "--most", "16", "--json")
    data = printed(capsys, *args)
    meets("thresholds", data)
    assert data["true up to"] is not None
    assert data["false from"] is not None


@pytest.mark.parametrize("order", ["sequential", "pairwise", "kahan"])
def test_certificates(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "certificate.json"
    for size in ("3", "8"):
        said = printed(capsys, "bound", "-n", size, "--order", order, "--certificate", str(place), "--json")
        data = json.loads(place.read_text(encoding="utf-8"))
        meets("certificate", data)
        assert said["certificate"] == digest_of(data)
        given = data.get("case")
        case = given and (given["row"], Fraction(int(given["edge"], 16), 2 ** data["unit"]))
        assert Fraction(data["bound"]) == check(data, case)
        assert case or data["bound"] == said["bound"]


DIGEST = "0" * 64
CHECK: Json = {
    "id": "K-1", "kind": "smt", "layer": "smt", "obligations": ["T-1"], "title": "", "harness": "a:b", "subject": "",
    "expect": "holds", "strategy": "", "bounds": [{"name": "n", "value": 4, "reason": "small"}], "stubs": [],
    "mutants": [], "assumptions": [], "params": {}, "text": {}, "depends": [], "time_limit": 20.0, "digest": DIGEST,
}  # fmt: skip
FILE = {"check": "K-1", "outcome": "HOLDS", "path": "x/a.json"}
RULING = {"id": "K-1", "outcome": "HOLDS", "effect": "DISCHARGED", "reason": "", "reach": "bounded", "cached": True,
          "evidence": "x/a.json"}  # fmt: skip
FINISHED = {"event": "finished", "done": 1, "total": 1, "check": "K-1", "kind": "smt", "layer": "smt",
            "outcome": "HOLDS", "effect": "DISCHARGED", "reason": "", "seconds": 0.5}  # fmt: skip
GOOD: dict[str, Json] = {
    "merge": {"schema": "gradproof-merge/1", "exit": "open", "code": 4, "taken": [FILE], "kept": [],
              "refused": [{"path": "x/b.json", "reason": "it is stale"}], "strange": [], "missing": ["K-2"]},
    "list": {"schema": "gradproof-list/1", "checks": [CHECK]},
    "config": {"schema": "gradproof-config/1", "settings": [{"name": "jobs", "value": 2, "source": "default"}]},
    "selection": {"schema": "gradproof-selection/1", "exit": "met", "code": 0, "reasons": [], "checks": [RULING]},
    "events": FINISHED,
    "bound": {
        "schema": "gradproof-bound/1", "bound": "1/2", "bound_float": 0.5, "attained": "1/4", "attained_float": 0.25,
        "setting": {"n": 1, "buffer": "fp32", "inputs": None, "magnitude": "1", "scale": "divide",
                    "order": "sequential", "weights": []},
        "ratio": 2.0, "witness": ["3f800000"], "contracts": ["add/fp32/grid"], "certificate": DIGEST, "assumes": [],
        "outcome": None},
    "thresholds": {"schema": "gradproof-thresholds/1", "true up to": 4, "undecided from": None, "false from": 8},
    "certificate": {"version": 2, "unit": 256, "bound": "1/2", "multipliers": ["0", "-1/3"],
                    "case": {"row": 1, "edge": "f"},
                    "rows": [["input", "fp32", [], "10", "0"], ["exact", "", [["1", 0]], "10", "0"]]},
}  # fmt: skip


def verdict(**other: Json) -> Edit:
    row = {"event": "verdict", "contract": "toy", "run_state": "complete", "exit": "met", "code": 0, "met": True}
    return lambda d: (d.clear(), d.update({**row, "reasons": [], **other}))


# What the published schema refuses.
WRONG: dict[tuple[str, str], Edit] = {
    ("merge", "an exit of its own"): lambda d: d.update(exit="broken"),
    ("merge", "an outcome of its own"): lambda d: d["taken"][0].update(outcome="PROVED"),
    ("merge", "a refusal without a reason"): lambda d: d["refused"][0].pop("reason"),
    ("merge", "a list left out"): lambda d: d.pop("kept"),
    ("list", "no check"): lambda d: d["checks"].clear(),
    ("list", "a bound without a reason"): lambda d: d["checks"][0]["bounds"][0].update(reason=""),
    ("list", "a kind of its own"): lambda d: d["checks"][0].update(kind="guess"),
    ("list", "a digest cut short"): lambda d: d["checks"][0].update(digest=DIGEST[1:]),
    ("config", "a value that is a list"): lambda d: d["settings"][0].update(value=[2]),
    ("config", "no source"): lambda d: d["settings"][0].update(source=""),
    ("selection", "no shard"): lambda d: d.update(shard="0/2"),
    ("selection", "a reach of its own"): lambda d: d["checks"][0].update(reach="everything"),
    ("selection", "a code of its own"): lambda d: d.update(code=6),
    ("events", "an event of its own"): lambda d: d.update(event="tick"),
    ("events", "an end without an outcome"): lambda d: d.pop("outcome"),
    ("events", "a time before the start"): lambda d: d.update(seconds=-1),
    ("events", "another version"): lambda d: (d.clear(), d.update(event="begin", schema="gradproof-events/2")),
    ("events", "an end that says more"): lambda d: (d.clear(), d.update(event="end", met=True)),
    ("bound", "a bound that is no rational"): lambda d: d.update(bound="0.5"),
    ("bound", "an outcome that is none of three"): lambda d: d.update(outcome="TIMEOUT"),
    ("bound", "a format of its own"): lambda d: d["setting"].update(buffer="fp8"),
    ("bound", "a norm without its bound"): lambda d: d.update(norm={"elements": 3, "attained": "0"}),
    ("thresholds", "an answer left out"): lambda d: d.pop("false from"),
    ("thresholds", "no number"): lambda d: d.update({"true up to": "4"}),
    ("certificate", "no row"): lambda d: d.update(rows=[], multipliers=[]),
    ("certificate", "a row of a kind of its own"): lambda d: d["rows"][0].__setitem__(0, "believed"),
    ("certificate", "a row without its error"): lambda d: d["rows"][0].pop(),
    ("certificate", "a reach that is no hexadecimal number"): lambda d: d["rows"][0].__setitem__(3, "0x10"),
    ("certificate", "a multiplier that is no rational"): lambda d: d["multipliers"].__setitem__(0, "0.5"),
}
# What no JSON Schema says.
LIES: dict[tuple[str, str], Edit] = {
    ("merge", "met, and a check is missing"): lambda d: d.update(exit="met", code=0),
    ("merge", "nothing, and there were files"): lambda d: d.update(exit="nothing", code=5),
    ("merge", "a code of another exit"): lambda d: d.update(code=0),
    ("merge", "two files of a check"): lambda d: d["kept"].append(FILE),
    ("merge", "a check that is there and missing"): lambda d: d["missing"].append("K-1"),
    ("selection", "met, and a check is open"): lambda d: d["checks"][0].update(effect="OPEN"),
    ("selection", "met, and nothing was selected"): lambda d: d["checks"].clear(),
    ("selection", "a code of another exit"): lambda d: d.update(exit="open"),
    ("events", "met, and the code of open"): verdict(code=4),
    ("events", "not met, and the exit met"): verdict(met=False),
    ("bound", "attained above the bound"): lambda d: d.update(attained="3/4"),
    ("bound", "a norm above its bound"): lambda d: d.update(norm={"elements": 1, "bound": "1", "attained": "2"}),
    ("bound", "a witness of another size"): lambda d: d["witness"].append("3f800000"),
    ("thresholds", "false below what is true"): lambda d: d.update({"false from": 2}),
    ("thresholds", "no power of two"): lambda d: d.update({"true up to": 3}),
    ("certificate", "a multiplier too many"): lambda d: d["multipliers"].append("0"),
    ("certificate", "a row that rests on itself"): lambda d: d["rows"][1][2].append(["1", 1]),
    ("certificate", "a case of no row"): lambda d: d["case"].update(row=2),
}


@pytest.mark.parametrize("name", ["list", "selection", "events", "merge"])
def test_a_schema_knows_every_word_of_a_vocabulary(name: str) -> None:
    """A word that is new must be added to the schemas of what prints it."""
    words = {kind.__name__: list(kind) for kind in (Effect, Exit, Expect, Kind, Layer, Outcome, Reach)}
    named = {key: row["enum"] for key, row in schema(name).schema["$defs"].items() if "enum" in row}
    assert named
    assert all(set(words[key]) == set(found) for key, found in named.items())


@pytest.mark.parametrize("name", GOOD)
def test_a_key_that_is_unknown_and_another_version_are_refused(name: str) -> None:
    meets(name, GOOD[name])
    version = {"events": {"event": "gradproof-x/9"}, "certificate": {"version": 1}}
    for wrong in ({"more": 1}, version.get(name, {"schema": "gradproof-x/9"})):
        data = GOOD[name] | wrong
        assert not schema(name).is_valid(data)


@pytest.mark.parametrize(("name", "what"), [*WRONG, *LIES])
def test_what_is_no_such_document_is_refused(name: str, what: str) -> None:
    data = copy.deepcopy(GOOD[name])
    (WRONG | LIES)[name, what](data)
    assert schema(name).is_valid(data) is ((name, what) in LIES)
    assert (name, what) in WRONG or not consistent(name, data)


FORMAT = re.compile(r"gradproof-([a-z][a-z-]*)/[0-9]+")
NOT_PRINTED = {
    "lemma": "evidence of a step contract, inside of the package",
    "ledger": "proofs/claims.yaml, which is read and has a loader of its own",
    "step-log": "the record of a run, which has a checker of its own",
}


def unpublished(text: str) -> set[str]:
    """Formats that a text names and that have no schema in reports/."""
    names = {m[1]: m[0] for m in FORMAT.finditer(text)}
    places = {name: ROOT / f"reports/{name}.schema.json" for name in names if name not in NOT_PRINTED}
    return {
        names[name] for name, place in places.items() if not place.is_file() or names[name] not in place.read_text()
    }


def test_every_format_that_the_engine_names_is_published() -> None:
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "src/gradproof").rglob("*.py")]
    assert sum(len(FORMAT.findall(text)) for text in texts) > 40
    assert unpublished("\n".join(texts)) == set()
    assert unpublished("gradproof-guess/1 gradproof-merge/1 gradproof-list/7") == {
        "gradproof-guess/1",
        "gradproof-list/7",
    }
    assert all(f"gradproof-{name}/1" in "\n".join(texts) for name in NOT_PRINTED)
