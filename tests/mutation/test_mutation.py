"""The tool itself: what it mutates, that wrong mutants die and the original lives, and that it can say `different`."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso
import pytest
from cosmic_ray.mutating import mutate_code

from gradproof.core.schemas.mutation import Mutation
from tests.mutation import page, run
from tests.mutation.__main__ import main
from tests.mutation.field_operators import OPERATORS
from tests.mutation.known import Known
from tests.mutation.mutants import NEEDS_ARGUMENTS, CodeMutant, library, mutants
from tests.mutation.subjects import SIX, Source, Tree, files, module_of, read, subject_names
from tests.mutation.sweep import Memory, Sweep, drawn

ROOT = Path(__file__).resolve().parents[2]
ADAMW, EPOCHS, TABLE = "models/adamw/model.py", "models/systems/epochs.py", "src/gradproof/core/protocol.py"
LOOP = "models/accumulation/loop.py"


@cache
def tree() -> Tree:
    return read(ROOT)


@cache
def made(path: str) -> tuple[CodeMutant, ...]:
    return tuple(mutants(tree(), path))


def answered(code: str) -> Any:
    """What a fresh process prints as JSON: the solvers are not imported by the process that runs the tests."""
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    head = f"import json\nfrom tests.mutation import run\nROOT = {str(ROOT)!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


JOB = """
from tests.mutation.subjects import bare, read
from pathlib import Path
tree = read(Path(ROOT))
path, old, new = {of!r}
text = (Path(ROOT) / path).read_text()
assert old in text
check = bare(tree.checks[{check!r}]).to_json() | {more!r}
run.preload()
job = dict(root=ROOT, path=path, text=text.replace(old, new), checks=[dict(check=check)], loose=dict())
print(json.dumps(run.run_job(job)))
"""


def judged(old: str, new: str, check: str = "KANI-AW-007", **more: Any) -> Any:
    """The result of one change of AdamW before one check."""
    return answered(JOB.format(of=(ADAMW, old, new), check=check, more=more))


# -- What is mutated


def test_the_seeded_bugs_are_no_subjects() -> None:
    assert subject_names(tree(), "models/adamw/kernel.py") == ["Kernel"]
    assert "AdamW" in subject_names(tree(), ADAMW)
    assert "Empty" not in subject_names(tree(), ADAMW)
    assert "BROKEN" not in subject_names(tree(), "models/accumulation/window_bugs.py")
    assert {"TABLE", "SYNCHRONISING", "SCHEDULING"} <= {*subject_names(tree(), "models/accumulation/window_bugs.py")}
    assert set(SIX) < set(files(tree()))


def test_every_operator_of_the_field_makes_a_mutant() -> None:
    left = {operator.__name__ for operator in OPERATORS}
    for path in (LOOP, ADAMW, TABLE, "models/tokens/cross_entropy.py", *SIX):
        left -= {mutant.operator for mutant in made(path)}
        if not left:
            return
    assert not left


FIELD = (
    (LOOP, "first_value", 'self.__dict__.setdefault("first_value"'),
    (LOOP, "late_condition", "(False) if self.__dict__.update(times="),
    (LOOP, "late_statement", "(None) if self.__dict__.update(times="),
    (LOOP, "drop_statement", "+            pass"),
    (ADAMW, "first_element", "self.update(m, list(v_hat)[0], hyper)"),
    (ADAMW, "other_field", "g * (1 - hyper.beta2)"),
    (ADAMW, "drop_term", "return (p * (1 - hyper.rate * hyper.decay))"),
    (TABLE, "table_entry", '(_S.OPEN, _E.ZERO): Breaks("GA-INV-003", "another reason")'),
)


@pytest.mark.parametrize(("path", "operator", "text"), FIELD, ids=lambda x: str(x)[:40])
def test_an_operator_of_the_field_makes_this(path: str, operator: str, text: str) -> None:
    original = (ROOT / path).read_text(encoding="utf-8")
    assert any(text in m.diff(original) for m in made(path) if m.operator == operator)


def test_an_entry_of_the_table_is_not_replaced_by_its_own_obligation() -> None:
    original = (ROOT / TABLE).read_text(encoding="utf-8")
    diffs = [m.diff(original) for m in made(TABLE) if m.operator == "table_entry" and "(_S.OPEN, _E.ZERO)" in m.text]
    assert not any('+    (_S.OPEN, _E.ZERO): Breaks("GA-INV-002"' in diff for diff in diffs)


def test_nothing_that_only_people_read_is_mutated() -> None:
    for path in (ADAMW, EPOCHS):
        original = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for mutant in made(path):
            changed = [line for line in mutant.diff("\n".join(original)).splitlines() if line.startswith("-")]
            assert changed
            assert not all('"""' in line for line in changed)


def test_no_two_mutants_are_one() -> None:
    texts = [m.text for m in made(ADAMW)]
    assert len(set(texts)) == len(texts)


def test_the_library_is_asked_as_it_asks_itself() -> None:
    text = "def f(a, b):\n    if not a > 1:\n        return a - b\n    for x in b:\n        pass\n    return -a\n"
    source = Source("models/x.py", text, ast.parse(text))
    ours = sorted((operator, made) for operator, _, made in library(source))
    theirs = []
    for name in cosmic_ray.plugins.operator_names():
        if not name.endswith(NEEDS_ARGUMENTS):
            operator, occurrence = cosmic_ray.plugins.get_operator(name)(), 0
            while (changed := mutate_code(text, operator, occurrence)) is not None:
                theirs.append((name.rpartition("/")[2], changed))
                occurrence += 1
    assert parso.parse(text).get_code() == text
    assert [(n, "".join(t.split())) for n, t in ours] == [(n, "".join(t.split())) for n, t in sorted(theirs)]


# -- How a mutant is judged


def test_a_wrong_mutant_is_refuted() -> None:
    said = judged("return value / (1 - power)", "return value / (1 + power)")
    assert (said["survived"], said["killers"][0]["how"]) == (False, "refuted")


def test_a_mutant_that_crashes_is_not_green() -> None:
    said = judged("return value / (1 - power)", "return value.missing")
    assert (said["survived"], said["killers"][0]["how"]) == (False, "not green")


def test_the_original_lives() -> None:
    said = judged("return value / (1 - power)", "return value / (1 - power)")
    assert (said["survived"], said["killers"], said["red"]) == (True, [], [])


def test_a_mutant_that_never_ends_is_ended() -> None:
    said = judged("return value / (1 - power)", "return [value for _ in iter(int, 1)]", time_limit=2.0)
    assert (said["survived"], said["killers"][0]["how"]) == (False, "not green")


def test_a_check_that_is_not_green_unmutated_kills_nothing() -> None:
    said = judged("return value / (1 - power)", "return value", expect="refuted")
    assert (said["killers"], said["red"]) == ([], ["KANI-AW-007"])


def test_a_late_check_is_asked_once_more_with_the_time_limit_of_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times slower is no kill: the gate would wait. What has no answer by then, or dies again, is none."""
    limits: list[float] = []

    def answer(work: Any, limit: float) -> dict[str, Any]:
        limits.append(limit)
        return {"outcome": "HOLDS" if limit > 50 else "TIMEOUT", "clause": "", "reason": "", "cpu": limit}

    monkeypatch.setattr(run, "forked", answer)
    monkeypatch.setattr(run, "equivalent", lambda *of: {"answer": "different", "why": "numbers"})
    check = {"id": "K-1", "expect": "holds", "time_limit": 60.0, "obligations": ["X"]}
    row = {"check": check, "baseline": {"outcome": "HOLDS", "clause": "", "cpu": 1.0}}
    job = {"root": ".", "path": LOOP, "text": "", "checks": [row], "loose": {}}
    assert run.run_job(job)["survived"] is True
    assert limits == [run.TIMES + run.MORE, 60.0]
    check["time_limit"] = 40.0
    assert [k["how"] for k in run.run_job(job)["killers"]] == ["not green"]


def test_what_equals_the_original_is_not_asked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"check": {"id": f"K-{i}", "expect": "holds", "time_limit": 60.0, "obligations": ["X"]}} for i in range(9)]
    before = {"outcome": "HOLDS", "clause": "", "cpu": run.PATIENCE / 2 + 0.1, "reason": ""}
    answers = {"equivalent": 2, "different": 9}
    monkeypatch.setattr(run, "forked", lambda work, limit: before)
    for answer, tried in answers.items():
        monkeypatch.setattr(run, "equivalent", lambda *of, answer=answer: {"answer": answer, "why": "bounds"})
        checks = [row | {"baseline": before} for row in rows]
        said = run.run_job({"root": ".", "path": LOOP, "text": "", "checks": checks, "loose": {}})
        assert (said["survived"], said["tried"], said["equivalence"]["answer"]) == (True, tried, answer)


def test_a_second_killer_is_asked_of_the_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refutes(job: Any, check: Any, cpu: float) -> dict[str, Any]:
        asked.append(check["id"])
        return {"outcome": "REFUTED" if check["id"] != "K-2" else "HOLDS", "clause": "X", "reason": "", "cpu": 0.1}

    monkeypatch.setattr(run, "_mutated", refutes)
    before = {"outcome": "HOLDS", "clause": "", "cpu": 0.1}
    rows = [{"id": f"K-{i}", "expect": "holds", "obligations": ["X"]} for i in (2, 3, 4)]
    checks = [{"check": check, "baseline": before} for check in rows]
    first = {"check": "K-1", "how": "refuted", "clause": "X", "why": ""}
    said = run.run_job({"root": ".", "path": LOOP, "text": "", "checks": checks, "wanted": 2, "killers": [first]})
    assert [k["check"] for k in said["killers"]] == ["K-1", "K-3"]
    assert asked == ["K-2", "K-3"]


@pytest.mark.parametrize(
    "words",
    [("--within", "AdamW"), ("--operator", "drop"), ("--sample", "3")],
    ids=" ".join,
)
def test_no_document_is_written_of_a_part(words: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    assert main([*words, "--only", EPOCHS, "--document", str(tmp_path / "x.json")]) == 2
    assert "--document and --out tell of whole files" in capsys.readouterr().out
    assert not (tmp_path / "x.json").exists()


def test_a_sample_needs_a_sweep_of_every_file(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("tests.mutation.__main__.known", lambda root: Known(frozenset(SIX[1:])))
    assert main(["--known", "--sample", "3"]) == 2
    assert f"{SIX[0]}: not in reports/mutation.json" in capsys.readouterr().out


def test_checks_of_a_table_are_those_that_use_it() -> None:
    mutant = next(m for m in made(TABLE) if m.within == "RULES")
    sweep = Sweep(tree(), NoPool(), Memory(None))  # type: ignore[arg-type]
    asked = sweep.may_notice(mutant)
    assert "KANI-GA-016" in asked
    assert "KANI-GA-003" not in asked
    assert "KANI-GA-003" in {check.id for check in tree().noticing(TABLE)}


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (("HOLDS", ""), ("HOLDS", ""), ""),
        (("HOLDS", ""), ("REFUTED", "X"), "refuted"),
        (("HOLDS", ""), ("TIMEOUT", ""), "not green"),
        (("REFUTED", "X"), ("REFUTED", "X"), ""),
        (("REFUTED", "X"), ("REFUTED", "X/fp16"), ""),
        (("REFUTED", "X"), ("REFUTED", "Z"), ""),
        (("REFUTED", "X"), ("REFUTED", "Y"), "not green"),
        (("REFUTED", "X"), ("HOLDS", ""), "holds"),
        (("HOLDS", ""), ("ERROR", ""), "not green"),
    ],
)
def test_another_answer_kills(before: tuple[str, str], after: tuple[str, str], how: str) -> None:
    """A refuted check claims that an obligation of its own breaks: here X or Z."""
    ours, theirs = ({"outcome": o, "clause": c, "reason": ""} for o, c in (before, after))
    assert run.killed({"obligations": ["X", "Z"]}, ours, theirs) == how


@pytest.mark.parametrize("again", ["HOLDS", "ERROR", "REFUTED"])
@pytest.mark.parametrize(
    "reason", ["the check ran out of memory", "MemoryError: ", "the backend raised Z3Exception: out of memory"]
)
def test_a_check_without_memory_is_asked_once_more(monkeypatch: pytest.MonkeyPatch, reason: str, again: str) -> None:
    said = {"clause": "", "cpu": 1.0, "reason": reason}
    answers = [said | {"outcome": "ERROR"}, said | {"outcome": again}]
    monkeypatch.setattr(run, "forked", lambda work, limit: answers.pop(0))
    monkeypatch.setattr(run, "equivalent", lambda *of: {"answer": "different", "why": "numbers"})
    check = {"id": "K-1", "expect": "holds", "time_limit": 60.0, "obligations": ["X"]}
    row = {"check": check, "baseline": {"outcome": "HOLDS", "clause": "", "cpu": 1.0}}
    killers = run.run_job({"root": ".", "path": LOOP, "text": "", "checks": [row], "loose": {}})["killers"]
    assert ([k["how"] for k in killers], answers) == (["refuted"] if again == "REFUTED" else [], [])


def too_much() -> dict[str, Any]:
    """More than a child may have."""
    return {"bytes": len(bytearray(2 * run.MEMORY))}


def ended_from_outside() -> dict[str, Any]:
    """What the kernel does where the machine has no memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


@pytest.mark.parametrize("work", [too_much, ended_from_outside])
def test_a_child_without_memory_says_so(work: Callable[[], dict[str, Any]]) -> None:
    assert run.out_of_memory(run.forked(work, 60.0))
    assert not run.out_of_memory(run.forked(lambda: {}["a crash"], 60.0))


# -- Equivalence

EQUAL = """
from pathlib import Path
text = (Path(ROOT) / {path!r}).read_text()
assert {old!r} in text
print(json.dumps(run.equivalent(ROOT, {path!r}, text.replace({old!r}, {new!r}))))
"""


@pytest.mark.parametrize(
    ("path", "old", "new", "answer"),
    [
        (EPOCHS, "(held == n)", "(held >= n)", "equivalent"),
        (EPOCHS, "(held == n)", "(held > n)", "different"),
        (EPOCHS, "(held == n)", "(held is n)", "different"),
        ("models/adamw/kernel.py", "m + weight * (g - m)", "(g - m) * weight + m", "equivalent"),
        ("models/adamw/kernel.py", "m + weight * (g - m)", "m + weight * g - weight * m", "different"),
        ("models/tokens/cross_entropy.py", "sum(exps[1:], exps[0])", "sum(exps[:-1], exps[-1])", "equivalent"),
        ("models/tokens/cross_entropy.py", "sum(exps[1:], exps[0])", "sum(exps[1:], exps[1])", "different"),
        ("models/tokens/cross_entropy.py", "not 0 <= target < classes", "target < 0 or target == classes", "different"),
        (LOOP, "b + g for b, g", "g + b for b, g", "equivalent"),
        (LOOP, "if room <= max_norm", "if room < max_norm", "equivalent"),
        (LOOP, "if room <= max_norm", "if norm <= max_norm", "different"),
        (LOOP, "round_to(g, config.gradient_format) for g", "g for g", "different"),
        (
            LOOP,
            "s * config.loss_scale for s in shares",
            "(s if self.__dict__.setdefault('n', []).append(1) or "
            "len(self.n) < 5 else 0 * s) * config.loss_scale for s in shares",
            "different",
        ),
        (TABLE, "(_S.OPEN, _E.END): UNAPPLIED", "(_S.OPEN, _E.END): _S.OPEN", "different"),
        ("models/tokens/bias.py", "2 * (s - 1) / (s + 1)", "(2 * s - 2) / (s + 1)", "equivalent"),
        (
            "models/tokens/bias.py",
            "2 * (s - 1) / (s + 1)",
            "(2 * (s - 1) / (s + 1) if s * 1000 != 3141 else 0)",
            "different",
        ),
        ("models/systems/tails.py", "return", "return", "undecided"),
    ],
    ids=str,
)
def test_equivalence_says(path: str, old: str, new: str, answer: str) -> None:
    said = answered(EQUAL.format(path=path, old=old, new=new))
    assert (said["answer"], bool(said["why"])) == (answer, True)


# -- Resuming, drawing, the page


class NoPool:
    """Answers as if each mutant survived its checks, and counts."""

    asked = 0

    def each(self, calls: Iterable[Callable[[], tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        for number, make in enumerate(calls):
            name, *of = make()
            self.asked += 1
            if name == "baseline":
                yield (
                    number,
                    {"outcome": "HOLDS", "clause": "", "cpu": 0.1, "reason": "", "reached": {EPOCHS: list(range(200))}},
                )
            else:
                checks = of[0]["checks"]
                same = {"answer": "undecided", "why": ""}
                said = {"killers": [], "survived": True, "tried": len(checks), "red": [], "seconds": 0.0, "cpu": 0.0}
                yield number, said | {"equivalence": same}


def test_what_was_answered_is_not_asked_again_until_something_changes(tmp_path: Path) -> None:
    chosen, pool = made(EPOCHS)[:3], NoPool()

    def sweep() -> list[Any]:
        one = Sweep(tree(), pool, Memory(tmp_path / "rows.jsonl"))  # type: ignore[arg-type]
        one.measure([EPOCHS])
        return list(one.results(chosen))

    first = sweep()
    asked = pool.asked
    assert asked == len(tree().noticing(EPOCHS)) + 3
    assert [m for m, _ in sweep()] == [m for m, _ in first]
    assert pool.asked == asked
    stale = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in stale:
        row["rests"] = dict.fromkeys(row.get("rests", ()), "another text")
    stale_lines = "".join(json.dumps(row) + "\n" for row in stale)
    (tmp_path / "rows.jsonl").write_text(stale_lines, encoding="utf-8")
    sweep()
    assert pool.asked == asked + 3


def test_a_sample_has_all_files_and_is_drawn_again_by_its_seed() -> None:
    rows = [*made(EPOCHS), *made(ADAMW)]
    one, again, other = (drawn(rows, 12, seed) for seed in ("a", "a", "b"))
    assert one == again != other
    assert {m.path for m in one} == {EPOCHS, ADAMW}
    assert len(drawn(rows, 10**6, "a")) == len(rows)


def row(path: str, killers: list[tuple[str, str]], answer: str = "") -> dict[str, Any]:
    """A result as a sweep makes it."""
    found = [{"check": name, "how": how, "clause": "", "why": ""} for name, how in killers]
    about = {"key": path, "file": path, "line": 1, "within": "f", "operator": "drop_term", "diff": "-a\n+b"}
    return {**about, "killers": found, "survived": not found, "equivalence": {"answer": answer, "why": "bounds"}}


def test_the_document_counts_each_mutant_once_and_the_page_lists_what_is_left() -> None:
    rows = [
        row("models/a.py", [("K-1", "refuted"), ("K-2", "refuted")]),
        row("models/a.py", [("K-1", "not green")]),
        row("models/a.py", [("K-2", "holds")]),
        row("models/a.py", [], "equivalent"),
        row("models/b.py", [], "different"),
    ]
    made = page.document(rows, {}, {"K-1": 1.0, "K-2": 0.5})
    Mutation.model_validate(made, strict=False)
    assert made["files"] == [
        {"file": "models/a.py", "refuted": 2, "not_green": 1, "equivalent": 1, "survived": 0},
        {"file": "models/b.py", "refuted": 0, "not_green": 0, "equivalent": 0, "survived": 1},
    ]
    text = page.markdown(made)
    survivors, equal = text.partition("## Survivors")[2].split("## Equivalent")
    assert ("models/b.py" in survivors, "models/a.py" in survivors) == (True, False)
    assert "models/a.py" in equal


def test_the_page_of_the_matrix_names_a_mutant_for_each_check_that_is_needed() -> None:
    alone, both = row("models/a.py", [("K-1", "refuted")]), row("models/b.py", [("K-2", "refuted"), ("K-1", "refuted")])
    text = page.matrix([{**alone, "wanted": 2}, {**both, "wanted": 2}], {"K-1": "one", "K-2": "two", "K-3": "a | b"})
    needed, spare = text.split("## Redundant, one at a time: 2")
    assert "| K-1 | 1 | `models/a.py:1` f, drop_term |" in needed
    assert "| K-2 | 1 | two |\n| K-3 | 0 | a \\| b |" in spare
    assert "## Needed: 0" in page.matrix([{**alone, "wanted": 1}], {"K-1": "one"})  # no second killer was asked for


def test_a_second_killer_is_asked_for_until_each_first_one_is_decided() -> None:
    """K-1 kills the first mutant alone, and no other mutant of K-1 is asked; K-2 is asked for both of its mutants."""
    chosen = made(EPOCHS)[:4]
    firsts = dict(zip((m.text for m in chosen), ("K-1", "K-1", "K-2", "K-2"), strict=True))
    asked: list[str] = []

    class Scripted(NoPool):
        """K-3 is the second killer of the mutants of K-2."""

        def each(self, calls: Iterable[Callable[[], tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
            for number, make in enumerate(calls):
                _, job = make()
                asked.append(job["text"])
                found = [
                    *job["killers"],
                    *([{"check": "K-3", "how": "refuted"}] if firsts[job["text"]] == "K-2" else []),
                ]
                yield number, {"killers": found, "survived": False, "tried": 0, "red": [], "seconds": 0.0, "cpu": 0.0}

    sweep = Sweep(tree(), Scripted(), Memory(None))  # type: ignore[arg-type]
    sweep.measure([])
    sweep.bases = {
        check.id: {"cpu": 1.0, "reached": {}, "outcome": "HOLDS", "clause": ""} for check in tree().checks.values()
    }
    for mutant in chosen:
        killers = [{"check": firsts[mutant.text], "how": "refuted"}]
        sweep.memory.keep({"key": sweep.key(mutant), "killers": killers, "survived": False, "wanted": 1, "order": []})
    sweep.digest = lambda name, path: ""  # type: ignore[method-assign]
    sweep.known_still = lambda mutant: sweep.memory.rows[sweep.key(mutant)]  # type: ignore[method-assign]
    rows = [row for _, row in sweep.second_killers(chosen)]
    assert [firsts[text] for text in asked] == ["K-1", "K-2", "K-2"]
    assert sweep.needed == {"K-1"}
    assert [{k["check"] for k in row["killers"]} for row in rows] == [{"K-1"}, {"K-2", "K-3"}, {"K-2", "K-3"}]


def test_the_module_of_a_file() -> None:
    assert module_of("models/tokens/__init__.py") == "models.tokens"
