"""The evidence reader and the command line take whatever there is: an answer with a reason, and never a traceback."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attack_kit import CONTRACT, evidence, gate, session
from fuzz_kit import few
from hypothesis import given
from hypothesis import strategies as st

from gradproof.cli import COMMANDS, dispatch
from gradproof.core import EXIT_CODE, Effect, Exit, Outcome, digest_of
from gradproof.store import read

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
    """The tree with another value at a place."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
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
    assert "the claim changed: text, title" in found.reason
    assert session(green).contracts[0].id == "mean-v1"
