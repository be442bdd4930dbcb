"""The contract loader takes whatever text there is: it loads, or every mistake has file:line:col. Never a traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attack_kit import CONTRACT, CORPUS
from fuzz_kit import few
from hypothesis import given, strategies as st

from gradproof.cli import dispatch
from gradproof.contract.model import load
from gradproof.contract.yaml_reader import MAX_BYTES, ContractErrors
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.verdict.plan import plan

GOOD = (CORPUS / "green" / CONTRACT).read_text(encoding="utf-8")
LINES = GOOD.splitlines()
STRANGE = [
    "\u202eevil", "\u0000", "é", "e\u0301", "\ud7ff", "𝟙", "\ufeff", "../../etc/passwd", "/etc/passwd", "a" * 5000,
    "1e999", "-1", "0x10", "1_000", ".nan", "~", "yes", "!!python/object/apply:os.system [id]", "&a [*a, *a]", "*a",
    "{a: {b: {c: {}}}}", "[[[[[]]]]]", "|\n  text", "'", '"', "%YAML 1.1", "---", "<<: *x", "? a", "\t", "# x",
    "\u2028", r'"\ud800"', r'"a \udfff b"', r'"\ud83d\ude00"', r'{"\udc00": 1}',
]  # fmt: skip


def attempt(path: Path) -> list[str]:
    """The codes of what is wrong with a contract; each has a place in this file."""
    try:
        assert all(check.digest for check in plan(load(path)))
    except ContractErrors as error:
        for problem in error.problems:
            assert problem.line > 0
            assert problem.col > 0
            assert problem.where == f"{path}:{problem.line}:{problem.col}"
            assert problem.found
            assert problem.help
        return [p.code for p in error.problems]
    return []


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "fuzz-v1" / "contract.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def test_the_good_contract_is_good(tmp_path: Path) -> None:
    assert attempt(written(tmp_path, GOOD)) == []


@pytest.mark.parametrize("half", [r"\ud800-v1", r"\udfff", r"\ud83d\ude00"])
def test_half_of_a_surrogate_pair_has_a_place(tmp_path: Path, half: str) -> None:
    """In the place of every scalar, and as a key."""
    for number, line in enumerate(LINES):
        head, colon, rest = line.partition(": ")
        if not colon or line.startswith("#") or "{" in head or rest[:1] in ("{", "["):
            continue
        changed = [*LINES[:number], f'{head}: "{half}"', *LINES[number + 1 :]]
        with pytest.raises(ContractErrors) as caught:
            load(written(tmp_path, "\n".join(changed)))
        found = [(p.code, p.line, p.col) for p in caught.value.problems if p.code == "GP118"]
        assert found == [("GP118", number + 1, len(head) + 3)]
        caught.value.render().encode()
    with pytest.raises(ContractErrors, match="GP118"):
        load(written(tmp_path, GOOD + f'"{half}": [1, "{half}"]\n'))


@pytest.mark.parametrize("command", ["gate", "verify", "graph", "list", "report", "attest", "merge", "diff", "explain"])
def test_no_command_stumbles_over_half_of_a_surrogate_pair(
    green: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = (green / CONTRACT).read_text(encoding="utf-8")
    (green / CONTRACT).write_text(text + 'description: "\\ud800"\n')
    monkeypatch.chdir(green)
    more = {"attest": ["out"], "merge": ["reports"], "diff": [CONTRACT, CONTRACT], "explain": ["K-1"]}
    assert dispatch([command, *more.get(command, [])]) == EXIT_CODE[Exit.USAGE]
    said = capsys.readouterr().err
    assert f"{CONTRACT}:{text.count(chr(10)) + 1}:14: GP118" in said
    assert "internal error" not in said


@few(60)
@given(st.data())
def test_a_strange_value_in_any_place(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(LINES) - 1))
    head, colon, _ = LINES[number].partition(": ")
    strange = data.draw(st.sampled_from(STRANGE) | st.text(max_size=20))
    changed = [*LINES[:number], f"{head}{colon}{strange}", *LINES[number + 1 :]]
    attempt(written(tmp_path_factory.mktemp("fuzz"), "\n".join(changed)))


@few(40)
@given(st.lists(st.integers(0, len(LINES) - 1), max_size=6), st.lists(st.integers(0, len(LINES) - 1), max_size=6))
def test_lines_that_are_lost_and_doubled(
    tmp_path_factory: pytest.TempPathFactory, lost: list[int], doubled: list[int]
) -> None:
    rows = [row for i, line in enumerate(LINES) for row in ([] if i in lost else [line] * (1 + doubled.count(i)))]
    attempt(written(tmp_path_factory.mktemp("fuzz"), "\n".join(rows)))


@few(30)
@given(st.integers(0, len(GOOD.encode()) - 1), st.binary(min_size=1, max_size=4))
def test_bytes_that_fell_in(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    raw = GOOD.encode()
    attempt(written(tmp_path_factory.mktemp("fuzz"), raw[:at] + junk + raw[at:]))


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 8)}]\n" for i in range(20)
)
HUGE: dict[str, tuple[str | bytes, str]] = {
    "a bomb of aliases": (BOMB, "GP120"),
    "a bomb of merges": ("a: &a {x: 1}\n" + "b:\n  <<: [*a, *a]\n" * 50, "GP120"),
    "ten megabytes": (GOOD + "# " + "x" * (10 << 20), "GP121"),
    "ten megabytes of one key": (b"k" * (10 << 20), "GP121"),
    "deep lists": ("a: " + "[" * 20_000, "GP121"),
    "deep mappings": ("a: " + "{b: " * 20_000, "GP121"),
    "deep indentation": ("\n".join(" " * i + "a:" for i in range(900)), "GP121"),
    "many values": ("a: [" + "1," * 60_000 + "]", "GP121"),
    "many mistakes": ("".join(f"key{i}: 1\n" for i in range(20_000)), "GP101"),
    "a long number": ("metadata: {version: " + "9" * 100_000 + "}", "GP107"),
    "a long exponent": ("metadata: {version: 1e" + "9" * 5_000 + "}", "GP104"),
    "an object": ("metadata: !!python/object/apply:os.system ['touch pwned']", "GP120"),
    "another encoding": (GOOD.encode("utf-16"), "GP118"),
    "nothing but zeros": (b"\0" * 1000, "GP117"),
}


@pytest.mark.parametrize("name", list(HUGE))
def test_a_contract_that_is_too_much(tmp_path: Path, name: str) -> None:
    """Refused, and soon: the reader stops at its limits."""
    text, code = HUGE[name]
    began = time.process_time()
    assert code in attempt(written(tmp_path, text))
    assert time.process_time() - began < 100
    assert not (tmp_path / "pwned").exists()


def test_the_limit_of_size_is_below_ten_megabytes() -> None:
    assert MAX_BYTES < 10 << 20


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..", "a/../../b", "\u0000", "a\nb"])
@pytest.mark.parametrize("key", ["id: K-1", "- id: T-1", 'harness: "symbolic:exact"', "depends_on"])
def test_names_that_lead_out_of_the_workspace(tmp_path: Path, key: str, name: str) -> None:
    """Ids name folders and harnesses name modules: none may hold a path."""
    value = '"' + name.replace("\0", "\\0").replace("\n", "\\n") + '"'
    if key == "depends_on":
        text = GOOD.replace('description: "green"', f'description: "green", depends_on: [{value}]')
    else:
        text = GOOD.replace(key, f"{key.partition(':')[0]}: {value}", 1)
    assert text != GOOD
    assert attempt(written(tmp_path, text)) != []
