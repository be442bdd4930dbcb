"""Contract loading: every mistake at its place, all at once, and no input that crashes the loader."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gradproof.contract import model as contract
from gradproof.contract.model import Contract, load
from gradproof.contract.schema import Tolerance, exact
from gradproof.contract.yaml_reader import ContractErrors, Problem
from gradproof.core.check import canonical
from gradproof.core.outcome import Expect, Layer
from gradproof.report.text import error_codes
from gradproof.verdict.plan import vars_of

ROOT = Path(__file__).parents[3]
HERE = ROOT / "tests" / "contracts"
MAIN = ROOT / "proofs" / "gradient-accumulation-kernel-v1" / "contract.yaml"
SMALL = (HERE / "small.yaml").read_text(encoding="utf-8")
MARK = re.compile(r"!(GP\d{3}):(\d+)")

Place = tuple[str, int, int]


def marks(text: str) -> list[Place]:
    """Codes with line and column that the marks in `text` expect."""
    rows = enumerate(text.splitlines(), 1)
    return sorted((code, n, int(col)) for n, row in rows for code, col in MARK.findall(row))


def places(problems: list[Problem]) -> list[Place]:
    return sorted((p.code, p.line, p.col) for p in problems)


def attempt(path: Path) -> Contract | list[Problem]:
    """The contract or its problems; anything else that is raised fails the test."""
    try:
        return load(path)
    except ContractErrors as error:
        problems, text = error.problems, str(error)
    assert problems
    assert all(p.found and p.expected and p.help and p.line > 0 and p.col > 0 for p in problems)
    assert all(p.code in error_codes() and p.where in text for p in problems)
    return problems


def broken(path: Path) -> list[Problem]:
    result = attempt(path)
    assert isinstance(result, list), "the contract loaded"
    return result


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def save(text: str | bytes) -> Path:
        path = tmp_path / "small-kernel-v1" / "contract.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return save


# The contracts of this repository


def test_main_contract_loads_without_a_warning_now_that_its_dependency_is_there() -> None:
    loaded = load(MAIN)
    assert loaded.id == "gradient-accumulation-kernel-v1"
    assert loaded.digest == hashlib.sha256(MAIN.read_bytes()).hexdigest()
    assert loaded.warnings == []
    assert loaded.metadata.version == "1.0.0"
    assert loaded.metadata.depends_on == ["adamw-kernel-v1"]


def test_main_contract_says_what_the_project_claims() -> None:
    loaded = load(MAIN)
    names = ["GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005"]
    assert [o.id for o in loaded.obligations] == names
    required = {t.dtype: t.value for t in loaded.obligation("GA-EQ-001").tolerance if t.role == "required"}
    assert required == {"fp32": "1e-5", "fp16": "1e-3"}
    assert {t.metric for o in loaded.obligations for t in o.tolerance} == {"linf"}
    reported = {t.dtype for t in loaded.obligation("GA-EQ-001").tolerance if t.role == "reported"}
    assert reported == {"bf16", "fp32-tf32"}
    for obligation in loaded.obligations:
        assert [t.id for t in loaded.falsification_tests if obligation.id in t.named]
        assert obligation.layers.ci == [Layer.SMT, Layer.CROSSHAIR, Layer.STEP, Layer.CPU]
        assert obligation.layers.release == [*obligation.layers.ci, Layer.CUDA]
    assert [t.id for t in loaded.falsification_tests] == [f"FALSIFY-GA-{i:03d}" for i in range(1, 7)]
    assert [t.id for t in loaded.step_proofs] == [f"STEP-GA-{i:03d}" for i in range(1, 6)]
    rows = {h.id: h for h in loaded.harnesses}
    assert rows["KANI-GA-002"].named == ("GA-INV-001", "GA-INV-002")
    assert (rows["KANI-GA-001"].bound, rows["KANI-GA-001"].strategy) == (4, "stub_float")
    assert rows["KANI-GA-004"].bound == 8
    assert [h for h in rows if rows[h].expect is Expect.REFUTED] == [
        "KANI-GA-009",
        "KANI-GA-019",
        "KANI-GA-021",
        "KANI-GA-028",
    ]
    assert loaded.gate is not None
    assert loaded.gate.seeded_bug == ["missing_scale"]
    assert set(loaded.gate.criteria) == set(loaded.gate.checks)
    assert {i for c in loaded.gate.criteria.values() for i in c} == set(names)


def test_main_contract_has_no_bound_without_a_reason_of_some_length() -> None:
    loaded = load(MAIN)
    rows = [*loaded.stubs, *loaded.harnesses, *loaded.falsification_tests]
    assert all(r.bounds for r in rows)
    assert [b for r in rows for b in r.bounds if len(b.reason.split()) < 5] == []


def test_every_clause_has_raw_data_that_can_be_digested() -> None:
    loaded = load(MAIN)
    groups = (loaded.obligations, loaded.stubs, loaded.harnesses, loaded.step_proofs)
    for clause in [c for group in groups for c in group] + [*loaded.falsification_tests, loaded.gate]:
        assert clause is not None
        assert canonical(clause.raw) != "{}"


def test_small_contract_is_normalised(write: Callable[[str], Path]) -> None:
    loaded = load(write(SMALL))
    assert loaded.id == "small-kernel-v1"
    assert loaded.warnings == []
    first, second, third = loaded.harnesses
    assert [tuple(dict(b).values()) for b in first.bounds] == [("branches", 9, "enough"), ("micro_batches", 4, "small")]
    assert (first.named, second.named) == (("S-EQ-001",), ("S-INV-001", "S-EQ-001"))
    assert (third.expect, third.mutants, third.solver) == (Expect.REFUTED, [], "crosshair")
    assert (first.time_limit, second.time_limit) == (1.5, 60.0)
    assert first.params == {"scale": "0.1", "flags": [True, 2]}
    assert first.raw["time_limit"] == "1.5"
    assert loaded.obligation("S-EQ-001").tolerance == [
        Tolerance(dtype="fp32", value="1e-5", metric="linf"),
        Tolerance(dtype="fp16", value="1e-3", metric="linf", role="reported"),
    ]
    assert loaded.stubs[0].stub == "symbolic.stubs.half"
    assert loaded.subjects["torch"] == "models.steps:Step"
    with pytest.raises(KeyError):
        loaded.obligation("S-EQ-002")


def test_a_tolerance_is_a_decimal_and_never_a_binary_float() -> None:
    assert exact("1e-5") == Fraction(1, 100000) != Fraction(1e-5)
    assert exact(".5") == Fraction(1, 2)
    for text in ("", "inf", "nan", "1e9999", "0x10", "1_0", " 1", "1/3", "-1", "１"):
        with pytest.raises(ValueError, match=r"^"):
            exact(text)


def test_field_contract_loads_and_lists_its_gaps() -> None:
    path = HERE / "field.yaml"
    loaded = load(path)
    assert places(loaded.warnings) == marks(path.read_text(encoding="utf-8"))
    assert [o.id for o in loaded.obligations] == ["FIELD-001", "SM-BND-001", "FIELD-003"]
    assert [vars_of(t) for t in loaded.obligations[0].tolerance] == [
        {"dtype": "", "value": "1.0e-6", "metric": "", "domain": "", "role": "reported"}
    ]
    assert [(h.harness, h.named) for h in loaded.harnesses] == [
        ("", ()),
        ("symbolic.softmax:positive", ("SM-BND-001",)),
    ]
    assert [tuple(dict(b).values()) for b in loaded.harnesses[0].bounds] == [("bound", 8, "the contract states none")]
    assert loaded.metadata.created == "2026-03-01"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  - type: ordering", "  - type: ordering\n    assumptions: [none]"),
        ("    strategy: exhaustive", "    strategy: bit_precise"),
        ("    solver: cadical", "    solver: crosshair"),
        ("    tolerance: 1.0e-6", "    tolerance: [{dtype: fp32, value: 1.0e-6, metric: linf}]"),
        ("  checks: [norm", "  seeded_bug: x\n  checks: [norm"),
        ("  l4_lean_proved: 1", "  notes: [none]"),
        ("equations:", "subjects: {}\nequations:"),
        ("    rule: norm", "    harness: 'a:b'\n    rule: norm"),
    ],
)
def test_one_key_of_ours_holds_a_contract_to_all_of_ours(write: Callable[[str], Path], old: str, new: str) -> None:
    text = (HERE / "field.yaml").read_text(encoding="utf-8")
    assert old in text
    codes = {p.code for p in broken(write(text.replace(old, new, 1)))}
    assert {"GP103", "GP109", "GP114", "GP122", "GP133"} <= codes


# Mistakes


def test_many_mistakes_are_reported_all_at_once_and_in_order() -> None:
    path = HERE / "many.yaml"
    problems = broken(path)
    assert places(problems) == marks(path.read_text(encoding="utf-8"))
    assert [(p.line, p.col) for p in problems] == sorted((p.line, p.col) for p in problems)
    assert {p.file for p in problems} == {str(path)}


EDITS = {
    "unknown key, near a known one": ("    formula:", "    formulla: x  # !GP101:5\n    formula:"),
    "unknown key far from all": ("    - name: zero\n", "    - name: zero\n      zzz: 1  # !GP101:7\n"),
    "key of another clause": ("    stub: symbolic", "    solver: z3  # !GP101:5\n    stub: symbolic"),
    "hand-written proof level": ("  total_obligations: 2", "  l4_lean_proved: 2  # !GP101:3"),
    "null key": ("    rule: equal", "    rule: equal\n    ~: 1  # !GP104:5"),
    "number as a key": ("    equal: [S-EQ-001]", "    equal: [S-EQ-001]\n    1: [S-EQ-001]  # !GP104:5"),
    "list as a key": ("    equal: [S-EQ-001]", "    equal: [S-EQ-001]\n    [a, b]: 1  # !GP104:5"),
    "missing gate": ("qa_gate:", "qa_gat:"),
    "missing metadata key": ("  description: a small contract", "  author: me"),
    "missing formal": ('    formal: "no leak"', "    assumptions: [none]"),
    "blank text": ("    property: zeroed\n    formal", '    property: " "  # !GP103:15\n    formal'),
    "empty list": ("formats: [fp16]", "formats: []  # !GP103:14"),
    "no reason": (", reason: three}", "}"),
    "blank reason": ("reason: three", 'reason: "\\t "'),
    "reason of the wrong type": ("reason: three", "reason: 3"),
    "no name of a bound": ("name: cycles, ", ""),
    "no bounds": ("    bounds: [{name: cycles, value: 3, reason: three}]\n", ""),
    "empty bounds": ("[{name: cycles, value: 3, reason: three}]", "[]  # !GP103:13"),
    "text for a number": ("bound: 3", 'bound: "3"  # !GP104:12'),
    "truth value for a number": ("bound: 3", "bound: true  # !GP104:12"),
    "float for a number": ("bound: 3", "bound: 3.0  # !GP104:12"),
    "number for a text": ("rule: equal", "rule: 1.5  # !GP104:11"),
    "truth value for a text": ("rule: equal", "rule: yes it is\n    note: true  # !GP104:11"),
    "nothing for a list": ("    stubs: [S-STUB-001]", "    stubs:  # !GP104:5"),
    "mapping for a list": ("    mutants: [zero_skipped]", "    mutants: {a: b}  # !GP104:14"),
    "zero bound": ("bound: 3", "bound: 0  # !GP107:12 !GP112:12"),
    "negative bound": ("bound: 3", "bound: -3  # !GP107:12 !GP112:12"),
    "endless number": ("bound: 3", f"bound: {'9' * 5000}  # !GP107:12 !GP107:12 !GP112:12"),
    "endless time": ("time_limit: 1.5", "time_limit: .inf  # !GP107:17"),
    "time of nothing": ("time_limit: 1.5", "time_limit: 0  # !GP107:17"),
    "time as text": ("time_limit: 1.5", 'time_limit: "9"  # !GP104:17'),
    "unknown type": ("type: invariant", "type: invarient  # !GP105:11"),
    "unknown applies_to": ("applies_to: all", "applies_to: everything  # !GP105:17"),
    "unknown strategy": ("strategy: stub_float", "strategy: magic  # !GP105:15"),
    "strategy that only claims": ("strategy: stub_float", "strategy: induction  # !GP105:15"),
    "reach that is typed": ("strategy: stub_float", "strategy: stub_float\n    reach: all inputs  # !GP101:5"),
    "input that is no name": ("equations:", "inputs: {of: [../x]}  # !GP122:15\nequations:"),
    "fixed input without a reason": ("equations:", 'inputs: {fixed: {C.n: {value: "1"}}}  # !GP106:18\nequations:'),
    "unknown solver": ("solver: crosshair", "solver: cadical  # !GP105:13"),
    "unknown expect": ("expect: refuted", "expect: refused  # !GP105:13"),
    "unknown dtype to run": ("cpu: [fp32]", "cpu: [fp32, tf32]"),
    "dtype that is no text": ("cpu: [fp32]", "cpu: [[fp32]]"),
    "unknown device": ("cpu: [fp32]", "tpu: [fp32], cpu: [fp32]"),
    "repeated dtype": ("cpu: [fp32]", "cpu: [fp32, fp32]"),
    "duplicate id": ("id: S-CROSS-001", "id: S-STUB-001  # !GP108:9"),
    "duplicate id in one section": ("id: S-KANI-002", "id: S-KANI-001  # !GP108:9"),
    "dangling obligation": ("obligations: [S-INV-001]", "obligations: [S-INV-001, S-INV-002]  # !GP109:30"),
    "dangling obligation of a test": (
        "    obligation: S-EQ-001\n    rule",
        "    obligation: S-EQ  # !GP109:17\n    rule",
    ),
    "dangling obligation of the gate": ("    zeroed: [S-INV-001]", "    zeroed: [S-INV]  # !GP109:14"),
    "no obligation": ("    obligations: [S-INV-001]\n", ""),
    "dangling stub": ("stubs: [S-STUB-001]", "stubs: [S-STUB]  # !GP110:13"),
    "stub_float without stubs": ("    stubs: [S-STUB-001]\n", ""),
    "two bounds disagree": ("bound: 4", "bound: 5  # !GP112:12"),
    "two bounds disagree, first name": ("bound: 3", "bound: 2  # !GP112:12"),
    "check without criteria": ("    zeroed: [S-INV-001]", "    others: [S-INV-001]  # !GP130:13"),
    "criterion without obligations": ("    zeroed: [S-INV-001]", "    zeroed: []  # !GP103:13"),
    "seeded bug that nobody kills": ("seeded_bug: missing_scale", "seeded_bug: divided  # !GP131:15"),
    "no mutants": ("    mutants: [zero_skipped]\n", ""),
    "repeated mutant": ("[zero_skipped]", "[zero_skipped, zero_skipped]  # !GP129:29"),
    "repeated bound": ("name: branches", "name: micro_batches"),
    "repeated tolerance": ("dtype: fp16", "dtype: fp32"),
    "requirement of no harness": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  require: {second_solver: [bit_precise]}  # !GP135:29",
    ),
    "certificate of a strategy that has none": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  require: {certificates: [stub_float]}  # !GP105:28",
    ),
    "requirement of nothing": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  require: {second_solver: []}  # !GP103:28",
    ),
    "unknown requirement": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  require: {second_solvers: [exhaustive]}  # !GP101:13",
    ),
    "repeated requirement": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  require: {second_solver: [exhaustive, exhaustive]}  # !GP129:41",
    ),
    "seeded bug twice": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: [missing_scale, missing_scale]  # !GP129:31",
    ),
    "one seeded bug that nobody kills": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: [missing_scale, divided]  # !GP131:31",
    ),
    "no seeded bug": ("  seeded_bug: missing_scale", "  seeded_bug: []  # !GP103:15"),
    "demand of nobody": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  least: {GA-NONE-001: {layers: [cuda]}}  # !GP137:24",
    ),
    "waiver of nobody": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n"
        "  waivers: [{obligation: GA-X, owner: ann, reason: none, expires: 2027-01-31}]  # !GP137:26",
    ),
    "waiver of a number": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n"
        "  waivers: [{obligation: 7, owner: ann, reason: none, expires: 2027-01-31}]  # !GP104:26",
    ),
    "waiver without an end": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n"
        "  waivers: [{obligation: S-EQ-001, owner: ann, reason: none, expires: never}]  # !GP122:71",
    ),
    "waiver without an owner": (
        "  seeded_bug: missing_scale",
        "  seeded_bug: missing_scale\n  waivers: [{obligation: S-EQ-001, reason: x, expires: 2027-01-31}]  # !GP103:13",
    ),
    "stub on an unknown lemma": (
        "formats: [fp16]",
        "formats: [fp16]\n    lemmas: [round/fp16/grid, round/fp8/*]  # !GP136:31",
    ),
    "stub on no lemma": ("formats: [fp16]", "formats: [fp16]\n    lemmas: []  # !GP103:13"),
    "stub on a lemma twice": (
        "formats: [fp16]",
        "formats: [fp16]\n    lemmas: [round/fp16/grid, round/fp16/grid]  # !GP129:31",
    ),
    "lemma that is no name": ("formats: [fp16]", "formats: [fp16]\n    lemmas: [Half an ulp]  # !GP122:14 !GP136:14"),
    "step contracts of nothing": ("strategy: stub_float", "strategy: step_contract"),
    "repeated gate check": ("checks: [equal, zeroed]", "checks: [equal, zeroed, equal]  # !GP129:27"),
    "wrong total": ("total_obligations: 2", "total_obligations: 3  # !GP128:22"),
    "id that is no file name": ("id: S-CROSS-001", 'id: "../x"  # !GP122:9'),
    "harness that is no reference": ("symbolic.loop:zero", "symbolic.loop"),
    "stub that is no module": ("stub: symbolic.stubs.half", 'stub: "a:b"  # !GP122:11'),
    "dependency that is no name": ("  description: a", "  depends_on: [../x]  # !GP122:16\n  description: a"),
    "bare tolerance": ('    formal: "no leak"', "    tolerance: 1e-5  # !GP111:16\n    formal: x"),
    "tolerance of nothing": ("value: 1e-5", "value: 0"),
    "tolerance not a number": ('value: "1e-3"', "value: .nan"),
    "tolerance as truth value": ("value: 1e-5", "value: true"),
    "anchor": ("bound: 3", "bound: &three 3  # !GP120:12"),
    "alias": ("bound: 3", "bound: *three  # !GP120:12 !GP104:12"),
    "merge key": ("  name: gate", "  <<: {a: b}  # !GP120:3\n  name: gate"),
    "tag": ("bound: 3", "bound: !!int 3  # !GP120:12 !GP104:12"),
    "directive": ("# The smallest", "%YAML 1.1  # !GP120:1\n---\n# The smallest"),
    "second document": ("verification_summary:", "---  # !GP120:1\nverification_summary:"),
    "tab": ("    solver: crosshair", "\tsolver: crosshair  # !GP117:1"),
    "open bracket": ("  checks: [equal, zeroed]", "  checks: [equal, zeroed\n"),
    "duplicate keys, nested, all of them": (
        "  phases:\n",
        "  phases: []\n  phases: [{name: a, name: b, name: c}]  # !GP102:3 !GP102:22 !GP102:31\n"
        "  phases:  # !GP102:3\n",
    ),
}

# Where the mistake is an absence, or stands in a row with columns that the edit moves: found by the code alone.
BY_CODE = {
    "missing formal": ["GP103"],
    "missing gate": ["GP101", "GP103"],
    "missing metadata key": ["GP103"],
    "dangling obligation of a test": ["GP109", "GP132", "GP132"],
    "no reason": ["GP106"],
    "blank reason": ["GP106"],
    "reason of the wrong type": ["GP104"],
    "no name of a bound": ["GP106"],
    "no bounds": ["GP103"],
    "unknown dtype to run": ["GP105"],
    "dtype that is no text": ["GP105"],
    "unknown device": ["GP105"],
    "repeated dtype": ["GP129"],
    "no obligation": ["GP103", "GP132"],
    "stub_float without stubs": ["GP103"],
    "no mutants": ["GP133"],
    "step contracts of nothing": ["GP103"],
    "repeated bound": ["GP112", "GP129"],
    "repeated tolerance": ["GP129"],
    "harness that is no reference": ["GP122"],
    "tolerance of nothing": ["GP107"],
    "tolerance not a number": ["GP107"],
    "tolerance as truth value": ["GP104"],
    "open bracket": ["GP117"],
    "check without criteria": ["GP114", "GP130"],
}


@pytest.mark.parametrize("name", EDITS)
def test_each_mistake_is_named_at_its_place(write: Callable[[str], Path], name: str) -> None:
    old, new = EDITS[name]
    assert old in SMALL, "the edit no longer applies"
    text = SMALL.replace(old, new, 1)
    problems = broken(write(text))
    if name in BY_CODE:
        assert sorted(p.code for p in problems) == BY_CODE[name]
    else:
        assert places(problems) == marks(text)


def test_an_unchecked_obligation_and_an_impossible_layer(write: Callable[[str], Path]) -> None:
    extra = "  - {id: S-INV-002, type: invariant, property: p, formal: f, layers: {ci: [smt], release: [smt]}}\n"
    text = SMALL.replace("kernel_structure:", extra + "kernel_structure:", 1).replace("tions: 2", "tions: 3")
    assert [(p.code, "S-INV-002" in p.found) for p in broken(write(text))] == [("GP113", True)]
    text = SMALL.replace("release: [smt, crosshair]", "release: [smt, crosshair, cuda]", 1)
    assert [(p.code, p.line, p.col) for p in broken(write(text))] == [("GP132", 30, 62)]
    text = SMALL.replace(", cuda: [fp32-tf32]", "", 1)
    assert [(p.code, "cuda" in p.found) for p in broken(write(text))] == [("GP132", True)]


def test_missing_subjects(write: Callable[[str], Path]) -> None:
    text = SMALL.replace('  empty: "models.loop:Empty"\n', "").replace('  torch: "models.steps:Step"\n', "")
    problems = broken(write(text))
    assert [(p.code, p.found) for p in problems] == [
        ("GP103", "no 'empty' in subjects"),
        ("GP103", "no 'torch' in subjects"),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "GP115"), ("# nothing\n", "GP115"), ("{}", "GP115"), ("~", "GP115"), ("---\n", "GP115"),
        ("- a", "GP116"), ("word", "GP116"), ("5", "GP116"), ("metadata: {version: '1', description: d}", "GP115"),
        ("metadata: {version: '1', description: d}\nproof_obligations: []", "GP115"),
        ("a: [", "GP117"), ("a: 'b", "GP117"), ("a: b: c", "GP117"), ("\tb: c", "GP117"), ("a: \x00", "GP117"),
        ("[" * 5000, "GP121"), ("a: {" * 3000, "GP121"), ("- " * 3000, "GP121"), ("[1," * 30 + "x", "GP117"),
        ("a: [" + "1," * 60_000 + "]", "GP121"), ("a: " + "x" * (1 << 20), "GP121"), ("---\n" * 600, "GP121"),
        (b"a: \xff\n", "GP118"), (b"\xff\xfea\x00", "GP118"), (b"a: 1\n\xe9: 2", "GP118"),
    ],
)  # fmt: skip
def test_files_that_are_no_contract(write: Callable[[str | bytes], Path], text: str | bytes, code: str) -> None:
    assert code in [p.code for p in broken(write(text))]


def test_not_utf8_is_placed(write: Callable[[bytes], Path]) -> None:
    assert places(broken(write(b"a: 1\nbc: \xe9\n"))) == [("GP118", 2, 5)]


@pytest.mark.parametrize("name", ["absent.yaml", ".", "bad\0name"])
def test_paths_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    assert places(broken(tmp_path / name)) == [("GP119", 1, 1)]


def test_a_byte_order_mark_is_no_mistake(write: Callable[[bytes], Path]) -> None:
    assert isinstance(attempt(write(b"\xef\xbb\xbf" + SMALL.encode())), Contract)


def test_a_dependency_that_is_there_is_no_warning(write: Callable[[str], Path]) -> None:
    path = write(SMALL.replace("  description: a", "  depends_on: [other-v1, gone-v1]\n  description: a", 1))
    assert [w.code for w in load(path).warnings] == ["GP123", "GP123"]
    other = path.parents[1] / "other-v1" / "contract.yaml"
    other.parent.mkdir()
    other.write_text("x", encoding="utf-8")
    assert [(w.code, "gone-v1" in w.found) for w in load(path).warnings] == [("GP123", True)]


def test_a_field_contract_without_a_gate_is_warned_of(write: Callable[[str], Path]) -> None:
    text = (HERE / "field.yaml").read_text(encoding="utf-8")
    text = text[: text.index("qa_gate:")]
    assert "GP134" in [w.code for w in load(write(text)).warnings]


def test_a_hint_names_the_nearest_key(write: Callable[[str], Path]) -> None:
    (problem,) = broken(write(SMALL.replace("    formula:", "    formulla: x\n    formula:", 1)))
    assert "'formula'" in problem.help
    assert "assumptions" in problem.expected
    (problem,) = broken(write(SMALL.replace("expect: refuted", "expect: refused", 1)))
    assert "'refuted'" in problem.help
    demand = "  seeded_bug: missing_scale\n  least: {S-EQ-002: {layers: [cuda]}}"
    (problem,) = broken(write(SMALL.replace("  seeded_bug: missing_scale", demand, 1)))
    assert "'S-EQ-001'" in problem.help


# Totality


def test_every_code_has_an_explanation_and_every_explanation_a_code() -> None:
    folder = Path(str(contract.__file__)).parent
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.py")))
    assert set(re.findall(r"GP1\d\d", text)) == {c for c in error_codes() if c.startswith("GP1")}
    assert all(meaning.endswith(".") and help.endswith(".") for meaning, help in error_codes().values())


def test_every_code_of_a_contract_is_seen_in_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8") + "".join(
        p.read_text(encoding="utf-8") for p in sorted(HERE.glob("*.yaml"))
    )
    assert {c for c in error_codes() if c.startswith("GP1")} - set(re.findall(r"GP1\d\d", text)) == set()


# Anything either loads or is refused

QUICK = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
BITS = [
    "",
    " ",
    "  ",
    "\t",
    "\n",
    "- ",
    ": ",
    "? ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a",
    "!!str ",
    "<<: ",
    "|\n",
    ">",
    "%",
]
BITS += [
    "~",
    "true",
    "1e-5",
    ".inf",
    "0x1F",
    "'",
    '"',
    "#",
    "---\n",
    "...\n",
    "\0",
    "\x85",
    "\u2028",
    "\ufeff",
    "é",
    "{{{{",
]


@QUICK
@given(data=st.binary(max_size=300))
def test_any_bytes(write: Callable[[bytes], Path], data: bytes) -> None:
    broken(write(data))


@QUICK
@given(parts=st.lists(st.one_of(st.sampled_from(BITS), st.text(max_size=5)), max_size=60))
def test_any_text_of_yaml_pieces(write: Callable[[bytes], Path], parts: list[str]) -> None:
    broken(write("".join(parts).encode("utf-8", "surrogatepass")))


@QUICK
@given(data=st.data())
def test_any_mutation_of_a_good_contract(write: Callable[[bytes], Path], data: st.DataObject) -> None:
    lines = SMALL.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(lines) - 1))
        j = data.draw(st.integers(0, len(lines) - 1))
        how = data.draw(st.sampled_from(["drop", "copy", "swap", "cut", "put"]))
        at = data.draw(st.integers(0, len(lines[i])))
        if how == "drop":
            lines[i] = ""
        elif how == "copy":
            lines[i] += lines[j]
        elif how == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif how == "cut":
            lines[i] = lines[i][:at] + "\n"
        else:
            lines[i] = lines[i][:at] + data.draw(st.sampled_from(BITS)) + lines[i][at:]
    attempt(write("".join(lines).encode("utf-8", "surrogatepass")))


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from(["a", "S-EQ-001", "fp32", ".inf"]))
KEYS = st.sampled_from(["id", "a", "value"])
TREES = st.recursive(
    LEAVES, lambda t: st.one_of(st.lists(t, max_size=3), st.dictionaries(KEYS, t, max_size=3)), max_leaves=5
)


def test_a_mutant_that_is_no_name_is_told(write: Callable[[str], Path]) -> None:
    """Beside a gate that asks whether anybody must kill its seeded bug."""
    assert "mutants: [zero_skipped]" in SMALL
    assert broken(write(SMALL.replace("mutants: [zero_skipped]", "mutants: [{a: b}]")))


@QUICK
@given(tree=TREES, index=st.integers(0, 200))
def test_any_tree_in_place_of_any_value(write: Callable[[str], Path], tree: object, index: int) -> None:
    """Replace what follows a colon, anywhere, by an arbitrary value in flow style."""
    spots = [m for m in re.finditer(r"(?<=: )[^\n{}\[\],]+(?=[\n},])", SMALL)]
    spot = spots[index % len(spots)]
    value = canonical(tree).replace(":", ": ")
    attempt(write(SMALL[: spot.start()] + value + SMALL[spot.end() :]))
