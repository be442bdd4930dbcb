"""What a contract that builds on others is worth: the judge's rule, circles, missing ones, and `gradproof graph`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from toy_workspace import CONTRACT, answer, check, recorded, refutation

from gradproof import cli
from gradproof.core.outcome import EXIT_CODE, Exit, Layer, Outcome
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import EvidenceStatus
from gradproof.session import Options, Session
from gradproof.verdict.judge import judge
from gradproof.verdict.plan import Clause, Policy

IDS = re.compile(r"\b(T-1|STUB-1|K-1|K-2|F-1|GATE-1)\b")
MET, BROKEN, OPEN, USAGE = (EXIT_CODE[e] for e in (Exit.MET, Exit.BROKEN, Exit.OPEN, Exit.USAGE))


def contract(toy: Workspace, name: str, prefix: str, *depends_on: str, wrong: bool = False) -> Path:
    """A contract with ids of its own, the toy's claims, and these dependencies; a wrong one is refuted."""
    text = IDS.sub(rf"{prefix}\1", CONTRACT).replace("symbolic.toy:b_is_one", "symbolic.runs:b_is_one")
    text = text.replace("obligation: T-1", f"obligation: {prefix}T-1")
    meta = 'metadata: {version: "1.0.0", description: toy}'
    listed = "".join(f"\n    - {d}" for d in depends_on)
    assert meta in text
    if depends_on:
        text = text.replace(meta, f'metadata:\n  version: "1.0.0"\n  description: toy\n  depends_on:{listed}')
    text = text.replace("symbolic.toy:a_is_one", "symbolic.toy:a_is_two") if wrong else text
    path = toy.root / "proofs" / name / "contract.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def registry(toy: Workspace) -> Workspace:
    """The toy workspace without its own contract; its mutant breaks whatever clause it is named for."""
    (toy.root / "proofs/toy/contract.yaml").unlink()
    (toy.root / "proofs/toy").rmdir()
    return toy


def run(*args: str) -> int:
    return cli.dispatch(list(args))


def verdicts(toy: Workspace) -> dict[str, Exit]:
    session = Session(Options(workspace=toy.root))
    return {name: v.exit for name, v in session.verdicts({}).items()}


def drawn(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run("graph", "--format", "json", *args) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.parametrize("state", [None, *Exit])
@pytest.mark.parametrize("outcome", [Outcome.HOLDS, Outcome.REFUTED])
def test_only_a_met_premise_lets_the_gate_be_met(state: Exit | None, outcome: Outcome) -> None:
    """The judge alone. What is refuted stays BROKEN, whatever it builds on."""
    one = check("K-1")
    found = answer(one) if outcome is Outcome.HOLDS else refutation(one)
    policy = Policy("ci", (Clause("T-1", (Layer.SMT,)),), dependencies={"below": state})
    made = judge([one], {"K-1": EvidenceStatus(recorded(one, found), True)}, policy)
    met = Exit.MET if state is Exit.MET else Exit.OPEN
    assert made.exit is (met if outcome is Outcome.HOLDS else Exit.BROKEN)
    assert any("it depends on below" in reason for reason in made.reasons) is (state is not Exit.MET)


def test_verify_discharges_both_and_each_has_its_verdict(
    registry: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    contract(registry, "below-v1", "B")
    assert run("verify", "-q") == MET
    said = capsys.readouterr().err.splitlines()
    assert [line[4:].partition(":")[0] for line in said if line.startswith("  ● ")] == ["above-v1", "below-v1"]
    assert verdicts(registry) == {"below-v1": Exit.MET, "above-v1": Exit.MET}


def test_a_broken_dependency_leaves_the_dependent_open_and_the_worst_is_printed(registry: Workspace) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    contract(registry, "below-v1", "B", wrong=True)
    assert run("verify", "-q") == BROKEN
    assert verdicts(registry) == {"below-v1": Exit.BROKEN, "above-v1": Exit.OPEN}
    assert run("gate", "--contract", "above-v1") == OPEN
    report = json.loads((registry.reports / "above-v1/report.json").read_text(encoding="utf-8"))
    [reason] = report["verdict"]["reasons"]
    assert re.match(r".* below-v1, .* refuted", reason)
    assert report["verdict"]["met"] is False


def test_what_is_open_below_is_open_two_levels_above(registry: Workspace) -> None:
    contract(registry, "a-v1", "A", "b-v1")
    contract(registry, "b-v1", "B", "c-v1")
    contract(registry, "c-v1", "C", wrong=True)
    run("verify", "-q")
    assert verdicts(registry) == {"c-v1": Exit.BROKEN, "b-v1": Exit.OPEN, "a-v1": Exit.OPEN}


def test_a_dependency_that_was_not_asked_for_is_judged_and_not_run(
    registry: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    contract(registry, "below-v1", "B")
    assert run("verify", "-q", "--contract", "above-v1") == OPEN
    assert not (registry.reports / "evidence/BK-1").exists()
    assert run("verify", "-q", "--contract", "below-v1") == MET
    assert run("gate", "--contract", "above-v1") == MET


def test_a_missing_dependency_is_a_warning_with_its_place_and_keeps_the_contract_open(
    registry: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    path = contract(registry, "above-v1", "A", "gone-v1")
    assert run("verify") == OPEN
    said = capsys.readouterr()
    assert f"{path}:5:7: warning GP123: depends_on gone-v1" in said.err
    assert run("gate") == OPEN
    assert "depends on gone-v1" in capsys.readouterr().out
    [row] = drawn(capsys)["contracts"]
    assert (row["state"], row["depends_on"]) == ("OPEN", [{"id": "gone-v1", "state": "ABSENT"}])


@pytest.mark.parametrize("command", ["verify", "graph", "gate", "list"])
def test_a_circle_is_an_error_at_the_entry_that_closes_it(
    registry: Workspace, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    contract(registry, "a-v1", "A", "b-v1")
    contract(registry, "b-v1", "B", "c-v1")
    closing = contract(registry, "c-v1", "C", "a-v1")
    assert run(command) == USAGE
    said = capsys.readouterr().err
    assert f"{closing}:5:7: GP220" in said
    assert "a-v1 -> b-v1 -> c-v1 -> a-v1" in said


def test_a_contract_that_builds_on_itself_is_a_circle(registry: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    contract(registry, "a-v1", "A", "a-v1")
    assert run("gate") == USAGE
    assert "a-v1 -> a-v1" in capsys.readouterr().err


def test_a_mistake_in_a_dependency_is_told_though_it_was_not_asked_for(
    registry: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    below = contract(registry, "below-v1", "B")
    below.write_text("metadata: 1\n", encoding="utf-8")
    assert run("gate", "--contract", "above-v1") == USAGE
    assert str(below) in capsys.readouterr().err


def test_two_contracts_may_share_a_dependency(registry: Workspace) -> None:
    contract(registry, "a-v1", "A", "c-v1")
    contract(registry, "b-v1", "B", "c-v1")
    contract(registry, "c-v1", "C")
    assert run("verify", "-q") == MET
    assert list(verdicts(registry)) == ["c-v1", "a-v1", "b-v1"]


def test_the_graph_shows_the_state_of_everything(registry: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    contract(registry, "below-v1", "B", wrong=True)
    run("verify", "-q")
    data = drawn(capsys)
    assert data["schema"] == "gradproof-graph/1"
    jsonschema.validate(data, SCHEMA)
    above, below = data["contracts"]
    assert (above["id"], above["state"], below["state"]) == ("above-v1", "OPEN", "BROKEN")
    assert above["depends_on"] == [{"id": "below-v1", "state": "BROKEN"}]
    [row] = below["obligations"]
    found = {c["id"]: (c["outcome"], c["state"]) for c in row["checks"]}
    assert found["BK-1"] == ("REFUTED", "BROKEN")
    assert found["BF-1@cuda-fp32"] == ("NOT_RUN", "OPEN")
    assert {c["id"] for c in below["others"]} == {"BSTUB-1", "BGATE-1/falsification"}


SCHEMA = json.loads((Path(__file__).parents[3] / "reports/graph.schema.json").read_text(encoding="utf-8"))
GRAPH = {"schema": "gradproof-graph/1", "profile": "ci", "contracts": []}
PART = {"id": "a", "version": "1", "path": "a", "state": "OPEN", "says": "", "depends_on": [], "obligations": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": "gradproof-graph/2"}, {"more": 1}, {"profile": None}, {"contracts": [PART]},
        {"contracts": [PART | {"others": [], "state": "GREEN"}]},
    ],
)  # fmt: skip
def test_a_graph_of_another_shape_is_refused(wrong: dict[str, Any]) -> None:
    jsonschema.validate(GRAPH | {"contracts": [PART | {"others": []}]}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(GRAPH | wrong, SCHEMA)


def test_the_tree_names_dependencies_obligations_and_checks(
    registry: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    contract(registry, "above-v1", "A", "below-v1")
    contract(registry, "below-v1", "B")
    run("verify", "-q")
    capsys.readouterr()
    run("graph")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DISCHARGED above-v1 1.0.0: ")
    assert lines[1] == "├─ DISCHARGED depends on below-v1"
    assert "│  ├─ DISCHARGED  AK-1  HOLDS  rests on ASTUB-1" in lines
    assert "│  ├─ DISCHARGED  AK-2  REFUTED  as expected" in lines
    assert any("AF-1@cuda-fp32  NOT_RUN  not required" in line for line in lines)
    run("graph", "--depth", "contracts")
    assert len(capsys.readouterr().out.splitlines()) == 4
