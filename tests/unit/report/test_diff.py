"""`gradproof diff` of contracts: every kind of change is seen, and its reverse is classified the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from pydantic import BaseModel
from toy_workspace import CONTRACT

from gradproof import cli
from gradproof.contract.schema import FieldRoot, OursRoot
from gradproof.core.errors import GradproofError
from gradproof.report import diff_rules as rules
from gradproof.report.diff import Diff, difference, raised
from gradproof.report.diff_rules import ABSENT, Direction, compare
from tests.schemas import schemas

W, S, N, U = Direction.WEAKENED, Direction.STRENGTHENED, Direction.NEUTRAL, Direction.UNDECIDED
TURNED = {W: S, S: W, N: N, U: U}

BASE = (
    CONTRACT.replace(
        'metadata: {version: "1.0.0", description: toy}',
        'metadata: {version: "1.0.0", description: toy, author: a, depends_on: [other-v1]}',
    )
    .replace(
        "equations: {}",
        'equations: {mean: {formula: "m", domain: "R", invariants: [i1, i2], assumptions: [a1], postconditions: [p]}}\n'
        "kernel_structure: {phases: [{name: first, description: d, invariant: i}]}\n"
        "enforcement: {finite: {description: d, check: c, severity: ERROR}}",
    )
    .replace("    formal: VALUE = 1\n", "    formal: VALUE = 1\n    assumptions: [finite]\n")
    .replace("    time_limit: 200\nfals", "    assumptions: [small]\n    note: n\n    time_limit: 200\nfals")
    .replace("cpu: [fp32], cuda", "cpu: [fp32, fp16], cuda")
    .replace("formats: [fp16]", "formats: [fp16, bf16]\n    lemmas: [add/fp16/exact, add/bf16/exact]")
)
SECOND = '      - {name: elements, value: 2, reason: "two"}'
K2 = BASE[BASE.index("  - id: K-2") : BASE.index("falsification_tests")]
F1 = BASE[BASE.index("falsification_tests") : BASE.index("qa_gate")]
MORE = "  - {id: T-2, type: bound, property: p, formal: f, layers: {ci: [smt], release: [smt]}}\n"

# what stands in the contract, what takes its place, the kind, and what the change is; the reverse is the other one
EDITS: dict[str, tuple[str, str, str, Direction]] = {
    "a looser tolerance": ('value: "1e-5"', 'value: "1e-4"', "tolerance", W),
    "a looser tolerance in other digits": ('value: "1e-5"', 'value: "0.000011"', "tolerance", W),
    "the same tolerance in other digits": ('value: "1e-5"', 'value: "0.00001"', "tolerance", N),
    "a dropped tolerance": ('[{dtype: fp32, value: "1e-5", metric: linf}]', "[]", "tolerance", W),
    "a tolerance that is only reported": ("metric: linf}", "metric: linf, role: reported}", "tolerance", W),
    "another metric": ("metric: linf}", "metric: ulp}", "tolerance", U),
    "another domain of a tolerance": ("metric: linf}", "metric: linf, domain: small}", "tolerance", U),
    "a smaller bound": ("name: micro_batches, value: 2", "name: micro_batches, value: 1", "bound", W),
    "a smaller bound of the field": ("bound: 2\n    strategy: stub", "bound: 1\n    strategy: stub", "bound", W),
    "another bound": ("name: examples", "name: samples", "named bound", U),
    "the reason of a bound": ("value: 3, reason: toy", "value: 3, reason: tiny", "words", N),
    "a dropped mutant": ("    mutants: [bug]\n    time_limit: 200\n  - id: K-2", "    time_limit: 200\n  - id: K-2",
                         "mutant", W),
    "a dropped check": (K2, "", "check", W),
    "a new obligation": ("stubs:\n", MORE + "stubs:\n", "obligation", S),
    "a dropped section of checks": (F1, "", "check", W),
    "a dropped obligation of a check": ("obligation: T-1\n    property: the model", "property: the model",
                                        "obligation of a check", W),
    "a dropped part of a criterion": ("criteria: {right: [T-1]}", "criteria: {right: [T-2]}", "criterion", W),
    "a dropped criterion": ("checks: [right]", "checks: [other]", "criterion", W),
    "a dropped seeded bug": ("seeded_bug: bug", "seeded_bug: [bug, more]", "seeded bug", S),
    "a dropped justification": ("  seeded_bug: bug", "  seeded_bug: bug\n  require: {certificates: [linear_chain]}",
                          "required justification", S),
    "a removed layer": ("ci: [smt, cpu]", "ci: [smt]", "layer", W),
    "expect flipped": ('"symbolic.toy:a_is_one"', '"symbolic.toy:a_is_one"\n    expect: refuted', "expect", W),
    "an added assumption": ("[finite]", "[finite, sorted]", "assumption", W),
    "an added assumption of a check": ("[small]", "[small, sorted]", "assumption", W),
    "an added assumption of an equation": ("[a1]", "[a1, a2]", "assumption", W),
    "a longer list of stubs": ("stubs: [STUB-1]", "stubs: [STUB-1, STUB-2]", "stub", W),
    "a dropped parameter": ("cpu: [fp32, fp16]", "cpu: [fp32]", "parameter", W),
    "a dropped format": ("formats: [fp16, bf16]", "formats: [fp16]", "format", W),
    "a dropped lemma": ("lemmas: [add/fp16/exact, ", "lemmas: [", "lemma", W),
    "a dropped dependency": (", depends_on: [other-v1]", "", "dependency", W),
    "a dropped invariant": ("[i1, i2]", "[i2]", "invariant", W),
    "a dropped postcondition": (", postconditions: [p]", "", "postcondition", W),
    "a dropped phase": ("{phases: [{name: first, description: d, invariant: i}]}", "{phases: []}", "phase", W),
    "another invariant of a phase": ("description: d, invariant: i}", "description: d, invariant: j}", "phase", U),
    "a dropped rule": ("enforcement: {finite: {description: d, check: c, severity: ERROR}}", "enforcement: {}",
                       "enforcement", W),
    "another severity": ("severity: ERROR", "severity: NOTE", "enforcement", U),
    "another formula": ('formula: "m"', 'formula: "n"', "equation", U),
    "another formal": ("formal: VALUE = 1", "formal: VALUE = 2", "formal", U),
    "another type": ("type: invariant", "type: bound", "type", U),
    "another subject": ('model: "models.a:VALUE"', 'model: "models.b:VALUE"', "subject", U),
    "another strategy": ("strategy: exhaustive", "strategy: bounded_int", "strategy", U),
    "another solver": ("strategy: exhaustive\n    solver: z3", "strategy: exhaustive\n    solver: crosshair", "solver",
                       U),
    "another stub": ("stub: symbolic.stub", "stub: symbolic.other", "stub", U),
    "another gate": ("id: GATE-1", "id: GATE-2", "gate", U),
    "another property": ("    property: toy\n", "    property: a toy\n", "words", N),
    "another author": ("author: a", "author: b", "words", N),
    "another note": ("note: n", "note: m", "words", N),
    "another harness": ("symbolic.toy:a_is_two", "symbolic.toy:a_is_too", "words", N),
    "a comment": ("stubs:\n", "stubs:  # of the toy\n", "words", N),
    "another description": ("name: toy gate", "name: a toy gate", "words", N),
}  # fmt: skip
EXITS = {W: 1, S: 0, N: 0, U: 4}
NEED = {W: "major", S: "minor", N: "patch", U: "major"}


def written(folder: Path, text: str) -> Path:
    path = folder / "toy.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def loose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contracts are loaded without the rules between their clauses, so that an edit may be one edit."""
    monkeypatch.setattr("gradproof.contract.model.check", lambda *args: ([], []))


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("name", EDITS)
def test_a_change_is_seen_and_its_reverse_is_the_other_way_round(tmp_path: Path, name: str) -> None:
    old, new, kind, way = EDITS[name]
    assert old in BASE
    one, other = written(tmp_path / "a", BASE), written(tmp_path / "b", BASE.replace(old, new, 1))
    for found, direction in ((difference(one, other), way), (difference(other, one), TURNED[way])):
        [row] = found.contracts
        wanted = [c for c in row.changes if (c.kind, c.direction) == (kind, direction)]
        assert wanted, row.changes
        only = {c.direction for c in row.changes}
        if "section" not in name and "of a criterion" not in name and "dropped criterion" not in name:
            assert only == {str(direction)}, row.changes
            assert (found.code, row.version.needed) == (EXITS[direction], NEED[direction])
        else:
            assert found.code in (EXITS[direction], 1)


def test_the_same_contract_has_no_change(tmp_path: Path) -> None:
    one = written(tmp_path / "a", BASE)
    found = difference(one, one)
    assert (found.code, found.contracts[0].changes, found.contracts[0].version.needed) == (0, [], "none")


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize(
    ("old", "new", "step", "enough"),
    [("1.0.0", "2.0.0", "major", True), ("1.0.0", "1.1.0", "minor", False), ("1.0.0", "1.0.0", "none", False),
     ("1.9.0", "1.10.0", "minor", False), ("2.0.0", "1.9.9", "lowered", False), ("1.0", "2.0", None, None),
     ("01.0.0", "2.0.0", None, None)],
)  # fmt: skip
def test_semver_says_whether_the_version_was_raised_for_a_weakening(
    tmp_path: Path, old: str, new: str, step: str | None, enough: bool | None
) -> None:
    paths = []
    for name, version, value in (("a", old, "1e-5"), ("b", new, "1e-4")):
        text = BASE.replace('version: "1.0.0"', f'version: "{version}"').replace('"1e-5"', f'"{value}"')
        paths.append(written(tmp_path / name, text))
    version = difference(*paths).contracts[0].version
    assert (version.needed, version.raised, version.accordingly) == ("major", step, enough)


def test_versions_are_numbers() -> None:
    assert [raised("1.2.3", v) for v in ("1.2.4", "1.2.10", "1.10.0", "1.2.3", "1.2.2", "1.2", "1.2.3-a")] == [
        "patch", "patch", "minor", "none", "lowered", None, None,
    ]  # fmt: skip


def tree_changes(old: Any, new: Any, table: tuple[rules.Rule, ...]) -> list[tuple[str, str, str]]:
    return [(c.kind, c.word, str(c.direction)) for c in compare(old, new, table)]


WAIVER = {"T-1 cpu": {"obligation": "T-1", "layer": "cpu", "owner": "o", "reason": "r", "expires": "2030-01-31"}}
LEAST = {"T-1": {"layers": ["cpu"], "reach": {"smt": "all inputs"}, "bounds": {"micro_batches": 8}}}
DEMANDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a new waiver": ({}, {"waivers": WAIVER}, "waiver", "new"),
    "a longer waiver": ({"waivers": WAIVER}, {"waivers": {"T-1 cpu": {**WAIVER["T-1 cpu"], "expires": "2030-02-01"}}},
                        "waiver", "later"),
    "a lower required reach": ({"least": LEAST}, {"least": {"T-1": {**LEAST["T-1"], "reach": {"smt": "bounded"}}}},
                               "required reach", "lowered"),
    "no required reach": ({"least": LEAST}, {"least": {"T-1": {**LEAST["T-1"], "reach": {}}}}, "required reach",
                          "lowered"),
    "a lower required bound": ({"least": LEAST}, {"least": {"T-1": {**LEAST["T-1"], "bounds": {"micro_batches": 4}}}},
                               "required bound", "smaller"),
    "a removed layer": ({"least": LEAST}, {"least": {"T-1": {**LEAST["T-1"], "layers": []}}}, "layer", "dropped"),
    "older evidence": ({"gpu_max_age_days": 30}, {"gpu_max_age_days": 60}, "age of evidence", "looser"),
    "evidence of any age": ({"gpu_max_age_days": 30}, {}, "age of evidence", "dropped"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEMANDS)
def test_what_a_gate_demands_and_excuses(name: str) -> None:
    """In a contract's gate and in pyproject.toml alike."""
    old, new, kind, word = DEMANDS[name]
    gates = [{"qa_gate": {"id": "G", **side}} for side in (old, new)]
    assert tree_changes(*gates, rules.RULES) == [(kind, word, "weakened")]
    [(back, _, direction)] = tree_changes(*reversed(gates), rules.RULES)
    assert (back, direction) == (kind, "strengthened")
    named = {"least": "require", "gpu_max_age_days": "gpu-max-age-days", "waivers": "waivers"}
    tables = [{named[k]: v for k, v in side.items()} for side in (old, new)]
    assert tree_changes(*tables, rules.SETTINGS) == [(kind, word, "weakened")]


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [({"baseline": "a"}, {}, W), ({"baseline": "a"}, {"baseline": "b"}, U), ({"profile": "release"}, {}, W),
     ({"profile": "release"}, {"profile": "ci"}, W), ({"jobs": 1}, {"jobs": 2}, N), ({"new-key": 1}, {}, U)],
)  # fmt: skip
def test_what_pyproject_says_of_runs(old: dict[str, Any], new: dict[str, Any], way: Direction) -> None:
    for sides, wanted in (((old, new), way), ((new, old), TURNED[way])):
        assert [c.direction for c in compare(*sides, rules.SETTINGS)] == [wanted]


def test_two_workspaces_with_a_new_waiver_and_a_dropped_contract(tmp_path: Path) -> None:
    for name, contracts in (("a", ("toy", "more")), ("b", ("toy",))):
        for contract in contracts:
            path = tmp_path / name / "proofs" / contract / "contract.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(CONTRACT, encoding="utf-8")
    waiver = '[tool.gradproof]\nwaivers = [{obligation = "T-1", owner = "o", reason = "r", expires = 2030-01-31}]\n'
    (tmp_path / "b/pyproject.toml").write_text(waiver, encoding="utf-8")
    found = difference(tmp_path / "a", tmp_path / "b")
    stated = {(c.kind, c.word, c.direction) for row in found.contracts for c in row.changes}
    assert stated == {("contract", "dropped", "weakened"), ("waiver", "new", "weakened")}
    back = difference(tmp_path / "b", tmp_path / "a")
    assert {c.direction for row in back.contracts for c in row.changes} == {"strengthened"}
    assert (found.code, back.code) == (1, 0)
    (tmp_path / "b/pyproject.toml").write_text("[tool", encoding="utf-8")
    with pytest.raises(GradproofError, match="GP481"):
        difference(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b/pyproject.toml").unlink()
    (tmp_path / "b/pyproject.toml").symlink_to("gone.toml")
    with pytest.raises(GradproofError, match="it is no file"):
        difference(tmp_path / "a", tmp_path / "b")


def leaves(shape: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The path of every field of a shape; `*` stands for a name."""
    for name, field in shape.model_fields.items():
        at = (*path, field.alias or name)
        below = list(models(field.annotation))
        listed = any(word in str(field.annotation) for word in ("list[", "dict["))
        for model in below:
            yield from leaves(model, (*at, "*") if listed else at)
        if not below:
            yield at


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


NO_FIELD = {"id", "name", "obligation", "version"}  # how rows are found, what is merged, and the version itself


@pytest.mark.parametrize("root", [OursRoot, FieldRoot])
def test_every_field_of_a_contract_has_a_rule(root: type[BaseModel]) -> None:
    """A field that is new in the dialect must be given its order; until then it is undecided."""
    found = list(leaves(root, ()))
    assert len(found) > 50
    lost = [p for p in found if rules.rule_of(rules.RULES, p) is rules.OTHER and p[-1] not in NO_FIELD]
    lost = [p for p in lost if rules.rule_of(rules.RULES, (*p, "x")) is rules.OTHER]
    assert lost == []


def test_a_field_without_a_rule_is_undecided() -> None:
    [change] = compare({"new_field": 1}, {"new_field": 2}, rules.RULES)
    assert (change.kind, change.place, change.direction) == ("other", "new_field", U)
    assert (change.word, change.old, change.new, change.of) == ("changed", "1", "2", "claim")
    assert rules.rule_of(rules.RULES, ("kani_harnesses", "K-1", "new_field")) is rules.OTHER
    assert [c.direction for c in compare(ABSENT, {"x": {"y": 1}}, rules.RULES)] == [U]


def test_the_command_prints_words_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path / "a", CONTRACT)
    other = written(tmp_path / "b", CONTRACT.replace('value: "1e-5"', 'value: "1e-4"'))
    assert cli.dispatch(["diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    assert "proof_obligations.T-1.tolerance.fp32.value, looser: 1e-5 -> 1e-4" in out
    assert "major; raised: none, which is NOT" in out
    assert cli.dispatch(["diff", str(one), str(other), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schemas()["diff.schema.json"])
    assert Diff.model_validate_json(json.dumps(data)).totals == {
        "weakened": 1,
        "undecided": 0,
        "strengthened": 0,
        "neutral": 0,
    }
    for forged in ({"exit": "met", "code": 0}, {"code": 0}, {"totals": {**data["totals"], "weakened": 0}}):
        with pytest.raises(ValueError, match="the "):
            Diff.model_validate_json(json.dumps({**data, **forged}))


def test_what_cannot_be_compared_is_open_and_what_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = written(tmp_path / "a", CONTRACT)
    alien = written(tmp_path / "b", CONTRACT.replace("T-1", "X-1")).rename(tmp_path / "b/alien.yaml")
    assert cli.dispatch(["diff", str(one), str(alien)]) == 4
    assert "both sides" in capsys.readouterr().out
    (tmp_path / "cut.json").write_text('{"schema": "gradproof-rep', encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for name in ("cut.json", "deep.json", "list.json", "empty", "nowhere", "nowhere.json"):
        assert cli.dispatch(["diff", str(tmp_path / name), str(one)]) == 2, name
        assert "GP481" in capsys.readouterr().err, name
    wrong = written(tmp_path / "c", CONTRACT.replace("bound: 2", "bound: -2"))
    assert cli.dispatch(["diff", str(one), str(wrong)]) == 2
    assert "GP107" in capsys.readouterr().err
