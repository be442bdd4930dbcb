"""Evidence files: what is believed, what is rejected, and what makes them stale."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, check, fresh, taken, write_workspace

import gradproof.evidence.environment
from gradproof.core import files
from gradproof.core.check import Check, Finding, digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Layer, Outcome
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.environment import environment
from gradproof.evidence.record import NotPlain, plain, record
from gradproof.evidence.store import Store, open_evidence, read, safe

Data = dict[str, Any]


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    return write_workspace(tmp_path / "toy")


def claim(toy: Workspace, of: Check, **more: Any) -> Data:
    """What a worker would have found the check to rest on."""
    names = {"models.a": "ws:models/a.py", "symbolic.toy": "ws:symbolic/toy.py"}
    files = {key: sha256_of(toy.root / key[3:]) for key in names.values()}
    files["gp:core/check.py"] = sha256_of(PACKAGE / "core/check.py")
    names |= {"numpy": "site or nowhere", "models.fast": ""}
    imports = [{"path": ["ws:.", "start"], "names": names}]
    return {"spec": of.digest, "files": files, "imports": imports, **more}


def evidence(toy: Workspace, of: Check, finding: Finding | None = None, **more: Any) -> Data:
    return record(of, finding or answer(of), inputs=claim(toy, of, **more), environment=environment(), seconds=1.5)


def test_what_is_written_is_read_back_and_fresh(toy: Workspace) -> None:
    one, kept = check(), Store(toy)
    path = kept.write(taken(evidence(toy, one)))
    assert path.name == f"{digest_of(read(path).stated())[:16]}.json"
    assert path.parent == toy.reports / "evidence/K-1"
    status = kept.status(one)
    assert (status.fresh, status.cached, status.outcome) == (True, True, Outcome.HOLDS)
    assert status.path == str(path)


def test_an_older_file_goes_when_the_new_one_is_in_place(toy: Workspace) -> None:
    one, kept = check(), Store(toy)
    first = kept.write(taken(evidence(toy, one)))
    second = kept.write(taken(evidence(toy, one, answer(one, domain="another"))))
    assert [p.name for p in first.parent.iterdir()] == [second.name]


def test_a_failed_write_leaves_the_old_evidence(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    one, kept = check(), Store(toy)
    first = kept.write(taken(evidence(toy, one)))

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        kept.write(taken(evidence(toy, one, answer(one, domain="another"))))
    assert [p.name for p in first.parent.iterdir()] == [first.name]
    assert kept.status(one).fresh


def test_cuda_evidence_lies_where_version_control_keeps_it(toy: Workspace) -> None:
    one = check("F-1@cuda-fp32", layer=Layer.CUDA)
    assert Store(toy).write(taken(evidence(toy, one))).parent == toy.reports / "gpu/F-1@cuda-fp32"


def test_gpu_evidence_that_comes_with_a_workspace_is_read_wherever_reports_go(toy: Workspace, tmp_path: Path) -> None:
    gpu, cpu = check("F-1@cuda-fp32", layer=Layer.CUDA), check()
    for one in (gpu, cpu):
        Store(toy).write(taken(evidence(toy, one)))
    elsewhere = Store(Workspace(toy.root, tmp_path / "reports", packaged=True))
    assert elsewhere.status(gpu).fresh
    assert elsewhere.status(cpu).reason == "it was never run"


def test_folder_names_are_safe_and_distinct() -> None:
    names = ["K-1", "F-1@cpu-fp32", "G/falsification", "G_falsification", "..", "../x", "a b", "ä", ".git", ""]
    made = [safe(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(name not in ("", ".", "..") and "/" not in name and not name.startswith(".") for name in made)
    assert made[:2] == names[:2]


def edited(change: Callable[[Data], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return apply


def renamed(change: Callable[[Data], None]) -> Callable[[Path], None]:
    """As `edited`, by somebody who also fixes the file's name."""

    def apply(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.unlink()
        path.with_name(f"{digest_of(data)[:16]}.json").write_text(json.dumps(data))

    return apply


def outcome(data: Data) -> None:
    data["finding"]["outcome"] = "REFUTED"


TAMPERING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "edited outcome": (edited(outcome), "edited or cut short"),
    "edited seconds": (edited(lambda d: d.update(seconds=9)), "edited or cut short"),
    "cut short": (lambda p: p.write_text(p.read_text()[: len(p.read_text()) // 2]), "no JSON"),
    "emptied": (lambda p: p.write_text(""), "no JSON"),
    "binary": (lambda p: p.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "a list": (lambda p: p.write_text("[]"), "schema"),
    "duplicate key": (lambda p: p.write_text('{"schema": 1, "schema": 1}'), "duplicate"),
    "not a number": (lambda p: p.write_text('{"seconds": NaN}'), "NaN"),
    "renamed file": (lambda p: p.rename(p.with_name("0123456789abcdef.json")), "edited or cut short"),
    "foreign schema": (renamed(lambda d: d.update(schema="gradproof-evidence/9")), "schema"),
    "extra key": (renamed(lambda d: d.update(note="trust me")), "note: Extra inputs"),
    "missing key": (renamed(lambda d: d.pop("claim")), "claim: Field required"),
    "missing clause": (renamed(lambda d: d["finding"].pop("clauses")), "finding.clauses: Field required"),
    "unknown outcome": (renamed(lambda d: d["finding"].update(outcome="FINE")), "FINE"),
    "unknown reach": (renamed(lambda d: d["finding"].update(reach="everything")), "everything"),
    "control without outcome": (renamed(lambda d: d["finding"]["controls"][0].pop("outcome")), "controls"),
    "truth value for seconds": (renamed(lambda d: d.update(seconds=True)), "seconds: Input"),
    "check of another shape": (renamed(lambda d: d["check"].pop("layer")), "wrong shape"),
    "check that was edited": (renamed(lambda d: d["check"].update(title="easier")), "claim digest"),
}


@pytest.mark.parametrize("name", list(TAMPERING))
def test_tampered_evidence_is_rejected_with_a_reason(toy: Workspace, name: str) -> None:
    tamper, said = TAMPERING[name]
    one, kept = check(), Store(toy)
    tamper(kept.write(taken(evidence(toy, one))))
    status = kept.status(one)
    assert status.evidence is None
    assert not status.fresh
    assert status.outcome is Outcome.NOT_RUN
    assert "rejected" in status.reason
    assert said in status.reason


def test_evidence_of_another_check_does_not_count(toy: Workspace) -> None:
    one, other, kept = check(), check("K-9"), Store(toy)
    path = kept.write(taken(evidence(toy, other)))
    place = kept.folder(one)
    place.mkdir(parents=True)
    path.rename(place / path.name)
    assert "evidence of K-9" in kept.status(one).reason
    with pytest.raises(GradproofError, match="GP211"):
        open_evidence(place / path.name)


def test_no_evidence_is_not_run(toy: Workspace) -> None:
    status = Store(toy).status(check())
    assert (status.evidence, status.fresh, status.reason) == (None, False, "it was never run")


def test_fresh_evidence_comes_before_later_stale_one(toy: Workspace) -> None:
    one, kept = check(), Store(toy)
    good = evidence(toy, one)
    late = evidence(toy, one, files={"ws:models/a.py": "0" * 64})
    late["finished_at"] = "2999-01-01T00:00:00.000+00:00"
    path = kept.write(taken(late))
    content = json.dumps(good)
    (path.parent / f"{digest_of(good)[:16]}.json").write_text(content)
    assert len(list(path.parent.iterdir())) == 2
    assert kept.status(one).fresh


Change = Callable[[Workspace], Any]
STALE: dict[str, tuple[Change, str]] = {
    "a changed model": (lambda w: (w.root / "models/a.py").write_text("VALUE = 2\n"), "ws:models/a.py changed"),
    "a comment in the harness": (
        lambda w: (w.root / "symbolic/toy.py").write_text("#\n" + (w.root / "symbolic/toy.py").read_text()),
        "ws:symbolic/toy.py changed",
    ),
    "a model that is gone": (lambda w: (w.root / "models/a.py").unlink(), "ws:models/a.py is gone"),
    "a package that shadows": (lambda w: shadow(w.root / "models/a"), "models.a is now"),
    "a module that was absent": (lambda w: (w.root / "models/fast.py").write_text(""), "models.fast is now ws:"),
    "a local numpy": (lambda w: (w.root / "numpy.py").write_text(""), "numpy is now ws:numpy.py"),
}


def shadow(folder: Path) -> None:
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 1\n")


@pytest.mark.parametrize("name", list(STALE))
def test_what_the_run_rested_on_has_changed(toy: Workspace, name: str) -> None:
    change, said = STALE[name]
    one = check()
    path = Store(toy).write(taken(evidence(toy, one)))
    change(toy)
    status = Store(toy).status(one)
    assert status.path == str(path)
    assert not status.fresh
    assert status.outcome is Outcome.NOT_RUN
    assert said in status.reason


def test_an_unrelated_file_changes_nothing(toy: Workspace) -> None:
    one = check()
    Store(toy).write(taken(evidence(toy, one)))
    (toy.root / "models/b.py").write_text("VALUE = 5\n")
    (toy.root / "models/new.py").write_text("")
    assert Store(toy).status(one).fresh


def test_a_changed_claim_names_what_changed(toy: Workspace) -> None:
    was, now = check(), check(title="stronger", text={"obligations": [{"id": "T-1", "tolerance": []}]})
    ok, reason = fresh(now, taken(evidence(toy, was)), toy)
    assert (ok, reason.rpartition(": ")[2]) == (False, "text, title")


def test_the_environment_counts_where_it_matters(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    proof, gpu = check(), check("F@cuda-fp32", layer=Layer.CUDA)
    made = {c.id: evidence(toy, c) for c in (proof, gpu)}
    here = dict(gradproof.evidence.environment.environment())
    monkeypatch.setattr(gradproof.evidence.environment, "environment", lambda: {**here, "z3": "1.2.3"})
    ok, reason = fresh(proof, taken(made[proof.id]), toy)
    assert not ok
    assert "z3" in reason
    assert "1.2.3 now" in reason
    assert fresh(gpu, taken(made[gpu.id]), toy) == (True, "")
    monkeypatch.setattr(
        gradproof.evidence.environment, "environment", lambda: {**here, "torch": "9", "python": here["python"]}
    )
    assert fresh(proof, taken(made[proof.id]), toy)[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"imports": []}, "its harness"),
        ({"files": {}, "imports": []}, "its harness"),
        ({"files": {"ws:../../etc/passwd": "0"}}, "names no file"),
        ({"files": {"what": "0"}}, "names no file"),
    ],
)
def test_an_answer_that_rests_on_nothing_is_stale(toy: Workspace, more: Data, said: str) -> None:
    one = check()
    ok, reason = fresh(one, taken(evidence(toy, one, **more)), toy)
    assert not ok
    assert said in reason


def test_an_answer_without_the_engines_files_is_stale(toy: Workspace) -> None:
    one = check()
    data = evidence(toy, one)
    del data["claim"]["files"]["gp:core/check.py"]
    ok, reason = fresh(one, taken(data), toy)
    assert (ok, reason.endswith("of the engine")) == (False, True)


def test_an_error_is_stale_when_its_files_have_changed(toy: Workspace) -> None:
    one = check()
    data = evidence(toy, one, Finding(Outcome.ERROR, "crash"))
    assert fresh(one, taken(data), toy)[0]
    (toy.root / "models/a.py").write_text("VALUE = 2\n")
    assert fresh(one, taken(data), toy) == (False, "ws:models/a.py changed")


def test_a_non_answer_needs_no_files_to_stand(toy: Workspace) -> None:
    """TIMEOUT is red either way; it is the runner that tries it again."""
    one = check()
    data = record(one, Finding(Outcome.TIMEOUT, "late"), environment=environment())
    assert fresh(one, taken(data), toy) == (True, "")
    assert Store(toy).write(taken(data))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1.5: "x"}, b"bytes", lambda: 0])
def test_what_is_not_plain_data_becomes_an_error_and_never_an_answer(value: Any) -> None:
    with pytest.raises(NotPlain):
        plain({"deep": [value]})
    one = check()
    data = record(one, answer(one, stats={"x": [value]}))
    assert data["finding"]["outcome"] == "ERROR"
    assert "finding.stats.x[0]" in data["finding"]["reason"]
    assert taken(data).check == one


def test_read_survives_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "none.json")
