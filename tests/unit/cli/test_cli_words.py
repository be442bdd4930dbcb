"""The commands that speak about evidence and words: replay, explain, help."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import report_sample as sample
import step_bench
from rich.console import Console
from test_cli import evidence, gradproof

from gradproof import cli
from gradproof.cli.explain import lines_of, shortened
from gradproof.contract.schema import Strategy
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, MEANING, NEXT, Effect, Exit, Outcome, Reach
from gradproof.core.schemas.evidence import Evidence
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import EvidenceStatus
from gradproof.evidence.store import open_evidence
from gradproof.report.formats import brief, markdown, step, summary
from gradproof.report.text import error_codes, glossary
from gradproof.session import Options, Session
from gradproof.shadow.follow.laws import LAWS
from gradproof.shadow.result import OBLIGATIONS


def test_replay_of_a_check_and_what_has_no_counterexample(
    toy: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradproof("verify", "-q")
    capsys.readouterr()
    assert gradproof("replay", str(evidence(toy, "K-1"))) == EXIT_CODE[Exit.USAGE]
    assert "GP213" in capsys.readouterr().err
    assert gradproof("replay", str(evidence(toy, "K-2")), "--control", "nobody") == EXIT_CODE[Exit.USAGE]
    for again, code in ((True, 0), (False, EXIT_CODE[Exit.OPEN])):
        rows = [{"on": "toy", "reproduced": again, "detail": "x"}]
        monkeypatch.setattr("gradproof.execution.methods.replay_evidence.replay", lambda *_, rows=rows: rows)
        assert gradproof("replay", str(evidence(toy, "K-2")), "--write", "test_it.py") == code
    text = Path("test_it.py").read_text()
    compile(text, "test_it.py", "exec")
    assert "test_k_2_breaks" in text
    assert str(toy.root) not in text


EXPLAINED = [*Outcome, *Effect, *Exit, *map(str, EXIT_CODE.values()), "GP101", "gp216", "ci", "release", "bounded"]
EXPLAINED += ["T-1", "K-1", "k-1", "F-1", "F-1@cpu-fp32", "bug", "GATE-1", "stub_float", "induction"]


EXPLAINED += ["130", "interrupted", "GA-DATA-001", "ga-sync-001"]
EXPLAINED += ["required", "optional", "stored", "discharged", "mutant", "killed"]
FIXED = [*Outcome, *Effect, *Reach, *Exit, *get_args(Strategy), "property test", "ci", "release", "interrupted"]


def words_of(session: Session) -> Iterator[str]:
    """Every word, code and id that the reference workspace prints."""
    yield from [*FIXED, *error_codes(), *OBLIGATIONS, *(word for words in glossary() for word in words.split(", "))]
    for contract in session.contracts:
        yield from (o.id for o in contract.obligations)
        yield from [contract.gate.id] if contract.gate else []
    for check in session.checks:
        yield from (check.id, check.id.partition("@")[0], *check.mutants)


def test_every_word_code_and_id_is_explained_in_15_lines() -> None:
    """Of 100 columns each; an id of another contract is the same function on another table."""
    session = Session(Options(workspace=Path(__file__).resolve().parents[3]))
    absent = EvidenceStatus(None, False, "it was never run")
    session.statuses = lambda checks: {c.id: absent for c in checks}  # type: ignore[method-assign,assignment]
    words = list(dict.fromkeys(words_of(session)))
    assert len(words) > 500
    for word in words:
        lines = shortened(lines_of(word, session))
        assert 1 <= sum(-(-len(line) // 100) for line in lines) <= 15, (word, lines)
        assert len(lines[0]) > len(word) + 20, lines


def test_what_is_fixed_has_an_example_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for word in FIXED:
        assert gradproof("explain", word) == 0
        assert "\nExample: " in capsys.readouterr().out, word
    examples = [example for _, example in glossary().values()]
    assert len(set(examples)) == len(examples)


def test_verbose_leaves_nothing_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"  bound b{i} = 1: why" for i in range(9)]
    assert len(shortened(["K-1, a check (smt): x", *lines])) == 4
    assert shortened(["K-1, a check (smt): x", lines[0]]) == ["K-1, a check (smt): x", lines[0]]
    long = shortened(["K-1", "  " + "word " * 99])
    assert long[1].endswith("word ...")
    assert (len(long[1]), long[2]) == (200, "--verbose prints everything.")


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_says_what_to_do(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("explain", outcome.lower()) == 0
    stated = capsys.readouterr().out
    assert MEANING[outcome] in stated
    assert f"Help: {NEXT[outcome]}" in stated
    assert len({*NEXT.values()}) == len(Outcome)
    assert all(len(text) > 40 and text.endswith(".") for text in NEXT.values())


def test_every_code_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    for code, (meaning, help) in error_codes().items():
        assert gradproof("explain", code) == 0
        assert capsys.readouterr().out == f"{code}: {meaning}\nHelp: {help}\n"


def test_a_word_that_is_none_is_not_explained(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("GA-NONE-001", "131", "GP000"):
        assert gradproof("explain", word) == 2
        assert "GP216" in capsys.readouterr().err


@pytest.mark.parametrize("word", EXPLAINED)
def test_every_word_is_explained(toy: Workspace, capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert gradproof("explain", word) == 0
    assert len(capsys.readouterr().out) > len(word) + 20


def test_every_code_in_the_source_is_explained() -> None:
    source = Path(cli.__file__).parent.parent
    used = {code for p in source.rglob("*.py") for code in re.findall(r'"(GP\d{3})"', p.read_text())}
    assert used <= set(error_codes()), sorted(used - set(error_codes()))


def test_help_names_every_command_and_exit_code_and_loads_nothing_heavy() -> None:
    program = "import sys; from gradproof.cli import dispatch; dispatch(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    for name in cli.COMMANDS:
        assert f"  {name} " in out
    for name in ("torch", "z3", "crosshair", "pydantic", "yaml", "rich", "jinja2", "hypothesis"):
        assert f"'{name}'" not in out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof(name, "--help") == 0
    assert "Usage: gradproof" in capsys.readouterr().out


def test_a_replay_that_does_not_end_is_no_answer(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gradproof("verify", "-q") == 0
    monkeypatch.setattr("gradproof.execution.methods.replay_evidence.replay", lambda *_: time.sleep(60))
    path = evidence(toy, "K-2")
    monkeypatch.setattr("gradproof.evidence.store.open_evidence", lambda _, real=open_evidence: hurried(real(path)))
    assert gradproof("replay", str(path)) == EXIT_CODE[Exit.OPEN]
    assert "within 0.2 s" in capsys.readouterr().err


def hurried(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"check": replace(evidence.check, time_limit=0.2)})


def test_explain_reads_the_glossary_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!word|-)(.+?) \| (.+?) \| (.+?) \|$", page, flags=re.MULTILINE)
    assert {words: (meaning, example) for words, meaning, example in rows} == glossary()
    assert len(rows) > 60
    assert gradproof("explain", "ulp") == 0
    meaning, example = glossary()["ulp"]
    assert capsys.readouterr().out == f"ulp: {meaning}\nExample: {example}.\n"


PRINTED = re.compile(r"(?<![\w./-])[A-Z][A-Z_]{2,}(?![\w./-])")
NAMES = {"SMT", "CPU", "GPU", "CUDA", "HTML", "JSON", "YAML", "SVG", "SGD", "MLP", "NOT", "FTZ", "FMA", "UTC"}
"""Abbreviations of others; SMT, CPU, GPU and CUDA are explained in small letters as well."""


@pytest.mark.parametrize("made", [sample.green, sample.red, sample.partial])
def test_every_word_in_capitals_of_a_report_is_explained(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    summary.render([made()], console, [sample.partial()])
    text = console.export_text() + markdown.render(made())
    words = set(PRINTED.findall(text)) - NAMES
    assert {"DISCHARGED", "HOLDS"} <= words
    unknown = {word for word in words if gradproof("explain", word) != 0}
    capsys.readouterr()
    assert unknown == set()


LABEL = re.compile(r"^ *\**([A-Za-z][a-z]*(?: [a-z]+){0,3}):", re.MULTILINE)
"""What stands before a colon at the beginning of a line."""
SAID = {
    "draws": "", "weight": "", "stale gradient": "", "recorded path": "", "values read": "", "c_k": "",
    "samples meet": "shadow/judge/by_terms.py", "numbers that were not read": "shadow/judge/one_run.py",
    "a value was lost": "shadow/process/watch.py", "the script failed": "shadow/process/watch.py",
    "not put back": "cli/check.py", "the recorded run": "shadow/result.py", "a short last window": "",
    "allowed to be undecided": "report/formats/brief.py", "law": "shadow/follow/laws.py", "token count": "",
    "effective batch:": "",
}  # fmt: skip
"""Phrases of messages, and a file that has them where no page has."""


def printed_words() -> set[str]:
    """The labels of every text of `check` and `watch`, in pages and made here, phrases, and operators that it names."""
    root = Path(__file__).resolve().parents[3]
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    blocks = [
        b
        for page in pages
        for b in re.findall(r"^```\n(\$ gradproof (?:check|watch|demo).*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len(blocks) >= 2
    samples = [step_bench.refuted(), step_bench.held(), *map(step_bench.answering, Outcome)]
    samples[1].assumptions = ["no denominator is zero"]
    samples[1].rounding, samples[1].allow_undecided = [{"bound": 1.0}], ["GA-EQ-001"]
    texts = [*blocks, *map(brief.text, samples), *map(step.text, samples)]
    operators = {name.partition(".")[0] for name in LAWS} | {"mm", "aminmax", "native_batch_norm"}
    return {*(label for text in texts for label in LABEL.findall(text)), *SAID, *operators}


def test_every_word_that_check_and_watch_print_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    words, source = printed_words(), Path(cli.__file__).parent.parent
    assert {"wrong", "not judged", "assumed", "next", "also", "help", "mm", "c_k"} <= words
    assert len(words) > 150
    for phrase, file in SAID.items():
        assert not file or phrase in (source / file).read_text(encoding="utf-8"), phrase
    session = Session(Options(workspace=Path(__file__).resolve().parents[3]))
    unknown = set()
    for word in sorted(words):
        try:
            assert sum(-(-len(line) // 100) for line in shortened(lines_of(word.lower(), session))) <= 15, word
        except GradproofError:
            unknown.add(word)
    assert unknown == set()
    assert gradproof("explain", "numbers", "were", "read") == gradproof("explain", "aten.mm.default") == 0
    assert "torch" in capsys.readouterr().out
    assert [gradproof("explain", word) for word in ("no_operator_of_torch", "__name__", "a b")] == [2, 2, 2]


@pytest.mark.parametrize("word", ["UNKNOWN", "REFUTED", "OUTSIDE", "OPAQUE", "HOLDS", "ERROR", "TIMEOUT", "NOT_RUN"])
def test_an_outcome_is_first_what_it_means_in_check_and_watch(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("explain", word) == 0
    assert re.match(rf"{word}, .+?: In check", capsys.readouterr().out)


def test_an_obligation_begins_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert gradproof("explain", "GA-EQ-001") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"GA-EQ-001, the gradient of the full batch: {glossary()['GA-EQ-001'][0]} Example: ")
    assert sum(-(-len(line) // 100) for line in (first, *rest)) <= 15
