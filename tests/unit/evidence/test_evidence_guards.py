"""Each condition under which evidence is believed by itself: in a workspace, and in a bundle."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from search_bench import hiding
from test_store import evidence
from toy_workspace import answer, check, fresh, recorded, refutation, taken

from gradproof.core.check import Finding
from gradproof.core.outcome import Layer, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import ANSWERS, EvidenceStatus, plain, record
from gradproof.evidence.store import Store, _misdated, read
from gradproof.extras.attest.verify import CarriedStore, claimed, clock, files_of, files_text

NONE, DIGEST, OTHER = "", "a" * 64, "b" * 64


@pytest.mark.parametrize("outcome", sorted(ANSWERS))
def test_every_answer_rests_on_files(toy: Workspace, outcome: Outcome) -> None:
    """An expected refutation that names no file would be green for ever."""
    one = check()
    finding = refutation(one) if outcome is Outcome.REFUTED else Finding(outcome, "said")
    assert fresh(one, taken(evidence(toy, one, finding)), toy) == (True, "")
    claim = {"spec": one.digest, "files": {}, "imports": []}
    bare = {**evidence(toy, one, finding), "claim": claim}
    ok, reason = fresh(one, taken(bare), toy)
    assert (ok, reason.endswith(" harness symbolic.toy:a_is_one")) == (False, True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """Whoever opens a pipe waits for ever."""
    make(tmp_path / "0.json")
    monkeypatch.setattr(Path, "read_text", lambda self, **how: pytest.fail("it was opened"))
    with pytest.raises(ValueError, match="it is no file"):
        read(tmp_path / "0.json")


def test_a_claim_that_names_a_pipe_waits_for_nobody(toy: Workspace) -> None:
    one = check()
    data = evidence(toy, one)
    data["claim"]["files"]["ws:models/pipe"] = DIGEST
    os.mkfifo(toy.root / "models/pipe")
    assert fresh(one, taken(data), toy) == (False, "ws:models/pipe is gone")


def test_evidence_too_deep_to_be_read_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read(tmp_path / "0.json")


def test_a_folder_of_evidence_is_looked_through_once(toy: Workspace) -> None:
    gpu = check("F-1@cuda-fp32", layer=Layer.CUDA)
    assert Store(toy).folders(gpu) == [toy.reports / "gpu/F-1@cuda-fp32"]
    assert Store(toy).folders(check()) == [toy.reports / "evidence/K-1"]
    elsewhere = Workspace(toy.root, toy.root / "elsewhere")
    assert Store(elsewhere).folders(check()) == [toy.root / "elsewhere/evidence/K-1"]


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("json", "ext:/somewhere/json.py", "json installed ext:/somewhere/json.py"),
        ("models.a", "ext:/somewhere/models/a.py", "models.a ws:models/a.py ext:/somewhere/models/a.py"),
        ("models.gone", "ws:models/gone.py", "models.gone"),
        ("models.a", "what:models/a.py", "models.a ws:models/a.py what:models/a.py"),
        ("models.a", "ws:models/b.py", "models.a ws:models/a.py ws:models/b.py"),
    ],
)
def test_a_module_is_where_it_was(toy: Workspace, name: str, key: str, said: str) -> None:
    one = check()
    data = evidence(toy, one)
    data["claim"]["imports"][0]["names"][name] = key
    ok, reason = fresh(one, taken(data), toy)
    assert (ok, hiding([reason])) == (False, [said])


def at(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


@pytest.mark.parametrize(
    ("began", "ended", "said"),
    [(-2, -1, ""), (-1, 0.5, ""), (0.4, -0.4, ""), (-1, 1.5, "in the future"), (-1, -2.5, "before it began")],
)  # fmt: skip
def test_clocks_may_differ_by_an_hour_and_no_more(began: float, ended: float, said: str) -> None:
    data = {**record(check(), answer(check())), "started_at": at(began), "finished_at": at(ended)}
    found = "; ".join(_misdated(taken(data)))
    assert found.endswith(said)
    assert bool(found) is bool(said)


@pytest.mark.parametrize("text", ["yesterday", "", "2026-01-01T00:00:00"])
def test_a_time_without_a_zone_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="zone"):
        taken({**record(check(), answer(check())), "finished_at": text})


def test_plain_data_is_made_of_what_backends_return() -> None:
    given = {Layer.SMT: Reach.BOUNDED, "set": {"b", "a"}, "exact": Fraction(1, 3), "path": Path("a/b"), 3: (1, None)}
    found = plain(given)
    assert found == {"smt": "bounded", "set": ["a", "b"], "exact": "1/3", "path": "a/b", "3": [1, None]}
    assert [type(k) for k in found] == [str] * 5
    assert type(found["smt"]) is str


# A bundle: what its evidence rests on is compared with what it carries.


def carried(toy: Workspace, files: dict[str, str], **versions: str) -> CarriedStore:
    installed = {name: {"version": version, "record_sha256": None} for name, version in versions.items()}
    here = {"environment": {"python": "3.11.9", "z3": "4.13.0"}, "distributions": installed}
    return CarriedStore(toy, files, here)


def of(toy: Workspace, files: dict[str, str], **environment: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Evidence whose claim names these files too, and the list of files that a bundle of it has."""
    data = evidence(toy, check())
    data["claim"]["files"] |= files
    data["environment"] = {"python": "3.11.2", "z3": "4.13.0", **environment}
    return dict(data["claim"]["files"]), data


def test_a_bundle_that_carries_what_its_evidence_rests_on(toy: Workspace) -> None:
    files, data = of(toy, {"ext:/lib/x.py": DIGEST, "gp:none.py": NONE}, distributions={"Z3_solver": "4.13.0"})
    assert carried(toy, files, **{"z3-solver": "4.13.0"}).fresh(check(), taken(data)) == (True, "")


@pytest.mark.parametrize("key", ["ext:/lib/x.py", "gp:core/check.py", "ws:models/a.py"])
def test_a_file_that_a_bundle_does_not_list_or_lists_otherwise(toy: Workspace, key: str) -> None:
    files, data = of(toy, {"ext:/lib/x.py": DIGEST})
    left = {k: v for k, v in files.items() if k != key}
    for listed, said in ((left, "not in"), ({**files, key: OTHER}, "digest in")):
        ok, reason = carried(toy, listed).fresh(check(), taken(data))
        assert not ok
        assert re.fullmatch(rf"{re.escape(key)} .*{said} files\.sha256", reason)


def test_a_source_that_is_listed_rightly_and_is_another_is_stale(toy: Workspace) -> None:
    files, data = of(toy, {})
    (toy.root / "models/a.py").write_text("VALUE = 2\n")
    assert carried(toy, files).fresh(check(), taken(data)) == (False, "ws:models/a.py changed")


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"python": "3.12.1"}, "python 3.12.1 then, 3.11.9"),
        ({"z3": "4.12.0"}, "z3 4.12.0 then, 4.13.0"),
        ({"distributions": {"numpy": "1.0"}}, "numpy 1.0 then, 2.0"),
        ({"distributions": {"scipy": "1.0"}}, "scipy 1.0 then, None"),
    ],
)
def test_evidence_of_other_versions_is_none_of_this_bundle(toy: Workspace, recorded: Any, said: str) -> None:
    files, data = of(toy, {}, **recorded)
    ok, reason = carried(toy, files, numpy="2.0").fresh(check(), taken(data))
    assert (ok, reason.partition(" in ")[::2]) == (False, (said, "distributions.json"))


def test_the_clock_of_a_bundle_is_that_of_its_newest_evidence() -> None:
    def status(text: str) -> EvidenceStatus:
        return EvidenceStatus(taken({**record(check(), answer(check())), "finished_at": text}), True)

    late, early = "2026-03-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"
    held = {"a": status(early), "b": status("2026-02-01T00:00:00+00:00"), "c": EvidenceStatus(None, False)}
    assert clock(late, held).isoformat() == late
    assert clock(early, held).isoformat() == "2026-02-01T00:00:00+00:00"
    assert clock("2026-03-01T00:00:00", held).isoformat() == late
    assert clock("some day", {}) == datetime.min.replace(tzinfo=UTC)


def test_a_list_of_files_is_read_as_it_was_written() -> None:
    files = {"gp:a b.py": DIGEST, "ws:none": NONE}
    assert files_text(files) == f"{DIGEST}  gp:a b.py\n{'-' * 64}  ws:none\n"
    assert files_of(files_text(files)) == files
    for line in (f"{DIGEST}  x\n{DIGEST}  x\n", f"{DIGEST}  \n", f"{DIGEST} x\n", "x\n"):
        with pytest.raises(ValueError, match="none of a file"):
            files_of(line)
    assert claimed({"K-1": EvidenceStatus(None, False)}) == {}


def test_a_number_that_is_large_and_finite_is_evidence() -> None:
    """A subject that diverges is refuted by it."""
    of = check()
    row = {"column": "a", "device": "cpu", "dtype": "fp32", "net": "mlp", "n": 1, "measured": 1e305, "ratio": 1.7e308}
    assert recorded(of, replace(answer(of), measurements=[row])).finding.outcome is Outcome.HOLDS
