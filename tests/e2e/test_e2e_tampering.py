"""Evidence that was edited, cut, moved, forged or taken from elsewhere is never believed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import CONTRACT, corpus_workspace, edit, evidence_files, evidence_of, gradproof, read

from gradproof.core.check import digest_of

pytestmark = pytest.mark.slow

GATE = "GATE-1_falsification-*"


def ran(case: str, folder: Path, code: int) -> Path:
    """A workspace of the corpus after `verify`, which ended with `code`."""
    workspace = corpus_workspace(case, folder)
    done = gradproof(workspace, "verify", "--jobs", "2")
    assert done.returncode == code, done.stdout + done.stderr
    return workspace


@pytest.fixture(scope="module")
def green_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran("green", tmp_path_factory.mktemp("green") / "ws", 0)


@pytest.fixture(scope="module")
def refuted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran("refuted", tmp_path_factory.mktemp("refuted") / "ws", 1)


@pytest.fixture
def green(green_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(green_run, tmp_path / "green")
    return tmp_path / "green"


@pytest.fixture
def refuted(refuted_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(refuted_run, tmp_path / "refuted")
    return tmp_path / "refuted"


def gate(workspace: Path) -> tuple[int, str]:
    """Exit code and reasons of the gate, which writes nothing."""
    before = sorted(p for p in workspace.rglob("*") if "__pycache__" not in p.parts)
    done = gradproof(workspace, "gate", "--json")
    assert sorted(p for p in workspace.rglob("*") if "__pycache__" not in p.parts) == before
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["code"] == done.returncode
    assert verdict["met"] == (done.returncode == 0)
    return done.returncode, " ".join(verdict["reasons"])


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def forge(path: Path, data: Any) -> None:
    """Write what somebody made up under the name that its content asks for."""
    path.unlink()
    write(path.with_name(f"{digest_of(data)[:16]}.json"), data)


def claim_success(data: dict[str, Any]) -> dict[str, Any]:
    """Evidence with its outcome, and nothing below it, turned round."""
    return {**data, "finding": {**data["finding"], "outcome": "HOLDS", "reason": "believe me", "reach": "bounded"}}


def invented(data: dict[str, Any]) -> dict[str, Any]:
    """As `claim_success`, and without the counterexample."""
    finding = {**claim_success(data)["finding"], "counterexample": None, "replays": []}
    return {**data, "finding": finding}


def test_untouched_evidence_is_believed(green: Path, refuted: Path) -> None:
    """It does not depend on where the workspace lies."""
    assert gate(green) == (0, "")
    assert gate(refuted)[0] == 1


def test_an_edited_outcome_is_not_believed(refuted: Path) -> None:
    path = evidence_of(refuted, "K-1")
    write(path, claim_success(read(path)))
    code, why = gate(refuted)
    assert code == 4
    assert "K-1 is NOT_RUN" in why
    assert "edited or cut short" in why


@pytest.mark.parametrize("change", [claim_success, invented])
def test_a_forged_outcome_is_not_believed(refuted: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The name is right, but what lies below the outcome does not support it."""
    path = evidence_of(refuted, "K-1")
    forge(path, change(read(path)))
    code, why = gate(refuted)
    assert code in (1, 3)
    assert "K-1 is" in why


@pytest.mark.parametrize("check", ["K-1", GATE])
def test_deleted_evidence_is_missed(green: Path, check: str) -> None:
    evidence_of(green, check).unlink()
    code, why = gate(green)
    assert code == 4
    assert "it was never run" in why


@pytest.mark.parametrize("kept", [0, 1, 100, -2])
def test_truncated_evidence_is_not_believed(green: Path, kept: int) -> None:
    path = evidence_of(green, "K-1")
    path.write_bytes(path.read_bytes()[:kept])
    code, why = gate(green)
    assert code == 4
    assert "is rejected" in why


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00", b"[]", b"null", b'{"schema": "gradproof-evidence/2"}', b"NaN"])
def test_junk_is_not_believed(green: Path, junk: bytes) -> None:
    evidence_of(green, "K-1").write_bytes(junk)
    assert gate(green)[0] == 4


def test_evidence_of_another_check_is_not_believed(green: Path) -> None:
    own, other = evidence_of(green, "K-1"), evidence_of(green, GATE)
    shutil.copy(other, own.parent / other.name)
    own.unlink()
    code, why = gate(green)
    assert code == 4
    assert "in another check's folder" in why


def test_evidence_under_another_name_is_not_believed(green: Path) -> None:
    path = evidence_of(green, "K-1")
    path.rename(path.with_name("0123456789abcdef.json"))
    assert gate(green)[0] == 4


def test_evidence_about_another_subject_is_not_believed(green: Path, refuted: Path) -> None:
    """In the other workspace the same check is about another subject, and holds."""
    own, other = evidence_of(refuted, "K-1"), evidence_of(green, "K-1")
    own.unlink()
    shutil.copy(other, own.parent / other.name)
    code, why = gate(refuted)
    assert code == 4
    assert re.search(r"changed: [a-z, ]*subject", why)


@pytest.mark.parametrize("name", ["models/__init__.py", "symbolic/__init__.py"])
def test_a_remark_in_a_file_that_was_read_is_enough(green: Path, name: str) -> None:
    path = green / name
    path.write_text(path.read_text(encoding="utf-8") + "# A remark.\n", encoding="utf-8")
    code, why = gate(green)
    assert code == 4
    assert f"ws:{name} changed" in why


def test_a_new_file_that_would_be_imported_is_enough(green: Path) -> None:
    """A file of the workspace with the name of a library would be taken for it."""
    (green / "z3.py").write_text('"""A solver that agrees with everybody."""\n', encoding="utf-8")
    code, why = gate(green)
    assert code == 4
    assert re.search(r"\bz3 .* ws:z3\.py, .* installed", why)


def test_a_changed_bound_is_enough(green: Path) -> None:
    edit(green / CONTRACT, "{name: paths, value: 8,", "{name: paths, value: 9,")
    code, why = gate(green)
    assert code == 4
    assert "the claim changed" in why


def test_a_stale_report_does_not_help(green: Path) -> None:
    """The gate reads evidence, not the report of a better day."""
    assert read(green / "reports" / "report.json")["verdict"]["met"] is True
    for path in evidence_files(green):
        path.unlink()
    assert gate(green)[0] == 4
