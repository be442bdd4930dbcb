"""`gradproof attest`: what it refuses, what it writes, and a real proof that a stranger judges, asks and runs again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bundle_bench import EPOCH, change, codes, load, reseal
from toy_workspace import answer, recorded

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, NO_WORKSPACE, Exit
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.store import Store
from gradproof.execution.pool import Pool
from gradproof.execution.queries import parse
from gradproof.extras.attest import manifest as inventory, verify as derived, write, write as asking
from gradproof.extras.attest.manifest import MANIFEST, BundleProblem
from gradproof.extras.attest.verify import verify
from gradproof.extras.attest.write import MadeBundle, Wanted, attest
from gradproof.session import Options, Session

ROOT = Path(__file__).resolve().parents[3]
USAGE, OPEN, BROKEN = (EXIT_CODE[e] for e in (Exit.USAGE, Exit.OPEN, Exit.BROKEN))
PROOF = "KANI-GT-403"


@pytest.fixture
def verified(toy: Workspace, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The toy workspace after a run."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    shutil.copytree(finished / "reports", toy.reports)
    assert cli.dispatch(["gate"]) == 0
    return toy


def attested(*args: str) -> int:
    return cli.dispatch(["attest", "out", "-q", *args])


def only_code(capsys: pytest.CaptureFixture[str]) -> str:
    return next(w for w in capsys.readouterr().err.replace(":", " ").split() if w.startswith("GP"))


def files_of(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_what_attest_refuses(
    verified: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written by any of these, beside the folder neither."""
    root = verified.root
    (root / "full").mkdir()
    (root / "full/a").write_text("a")
    (root / "file").write_text("a")
    (root / "link").symlink_to("nowhere")
    before = {p.name for p in root.iterdir()}
    for place in ("full", "file", "link", "no/where"):
        assert cli.dispatch(["attest", place, "-q"]) == USAGE
        assert only_code(capsys) == "GP440", place
    for wheel in ("nowhere.whl", "file"):
        assert attested("--wheel", wheel) == USAGE
        assert only_code(capsys) == "GP442", wheel
    for epoch in ("now", "1e9", "", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        assert attested() == USAGE
        assert only_code(capsys) == "GP440", epoch
    assert {p.name for p in root.iterdir()} == before


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_bundle_is_there_whole_or_not_at_all(
    verified: Workspace, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    before = {p.name for p in verified.root.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(derived, "documents", fail)
        assert attested() in (USAGE, 130)
    assert {p.name for p in verified.root.iterdir()} == before
    (verified.root / "out").mkdir()
    assert attested() == 0
    assert codes(verified.root / "out") == []


def test_without_evidence_there_is_nothing_to_attest(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert attested() == USAGE
    assert only_code(capsys) == "GP441"


def test_two_bundles_of_one_state_differ_in_their_time_alone(
    verified: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, epoch in (("one", EPOCH), ("two", EPOCH), ("later", "1800000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        assert cli.dispatch(["attest", name, "-q"]) == 0
    one, two, later = (files_of(verified.root / name) for name in ("one", "two", "later"))
    assert one == two
    assert {name for name in one if one[name] != later[name]} == {MANIFEST, "reports/toy.json"}
    assert load(verified.root / "one" / MANIFEST)["made_at"] == "2023-11-14T22:13:20.000+00:00"


def test_a_bundle_of_the_packaged_reference_says_whose_loop_it_is_not(
    verified: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("gradproof.session.find", lambda *args, **given: replace(verified, packaged=True))
        assert attested() == 0
    assert capsys.readouterr().err.splitlines()[0] == f"warning: {NO_WORKSPACE}"
    out = verified.root / "out"
    assert load(out / "reports/toy.json")["contract"]["warnings"] == [NO_WORKSPACE]
    assert cli.dispatch(["verify-bundle", str(out)]) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"warning: {NO_WORKSPACE}"
    change(out / MANIFEST, lambda m: m.update(packaged=False))
    assert codes(out) == ["GP449"]


def test_a_bundle_is_held_to_no_baseline_and_says_so(verified: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(verified.reports / "report.json", verified.root / "base.json")
    (verified.root / "pyproject.toml").write_text('[tool.gradproof]\nbaseline = "base.json"\n')
    assert attested() == 0
    capsys.readouterr()
    assert cli.dispatch(["verify-bundle", "out"]) == 0
    assert "baseline" in capsys.readouterr().out


def test_the_manifest_keeps_its_published_schema(verified: Workspace) -> None:
    assert attested() == 0
    schema = load(ROOT / "reports/bundle.schema.json")
    jsonschema.validate(load(verified.root / "out" / MANIFEST), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**load(verified.root / "out" / MANIFEST), "schema": "gradproof-bundle/2"}, schema)


def test_what_is_stale_is_left_out_and_never_green(verified: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (verified.root / "models/b.py").write_text("VALUE = 1  # edited\n", encoding="utf-8")
    assert attested() == OPEN
    out = verified.root / "out"
    rows = {row["check"]: row["reason"] for row in load(out / MANIFEST)["left_out"]}
    assert "models/b.py changed" in rows["F-1@cpu-fp32"]
    assert codes(out) == []
    capsys.readouterr()
    assert cli.dispatch(["verify-bundle", str(out)]) == OPEN
    assert "toy: open (exit 4)" in capsys.readouterr().out
    predicate = load(out / "statements/toy.json")["predicate"]
    assert predicate["result"] == "FAILED"
    assert "F-1@cpu-fp32" in predicate["failedTests"]


def test_the_statement_knows_passed_and_failed_and_nothing_between(verified: Workspace) -> None:
    assert attested() == 0
    stated = load(verified.root / "out/statements/toy.json")
    assert (stated["_type"], stated["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://in-toto.io/attestation/test-result/v0.1",
    )
    assert stated["subject"][0]["digest"]["sha256"] == load(verified.root / "out" / MANIFEST)["sources"]
    predicate = stated["predicate"]
    assert (predicate["result"], predicate["warnedTests"], predicate["failedTests"]) == ("PASSED", [], [])
    assert {"K-1", "K-2", "STUB-1", "F-1@cpu-fp32", "GATE-1/verdict"} <= set(predicate["passedTests"])
    assert "F-1@cuda-fp32" not in json.dumps(predicate)


def test_a_waived_check_is_warned() -> None:
    from report_sample import green

    from gradproof.extras.attest.verify import sorted_rows, statement

    def result(report: Mapping[str, Any]) -> str:
        said: str = statement(report, None, "0" * 64, [])["predicate"]["result"]
        return said

    report = green()
    assert result(report) == "PASSED"
    assert result({**report, "verdict": {**report["verdict"], "met": False}}) == "FAILED"
    row = report["obligations"][0]
    (name, *_) = row["cells"]["cpu"]["checks"]
    row["cells"]["cpu"] |= {"effect": "OPEN", "checks": [name], "required": True}
    next(c for c in report["checks"] if c["id"] == name).update(outcome="TIMEOUT", effect="OPEN")
    row |= {"effect": "OPEN", "waived": True}
    day = report["generated_at"][:10]
    waiver = {"obligation": row["id"], "layer": "cpu", "state": "in force", "expires": day}
    assert sorted_rows(report)[1:] == ([], [name])
    assert report["verdict"]["met"]
    assert result(report) == "FAILED"
    passed, warned, left = sorted_rows({**report, "waivers": [waiver]})
    assert (warned, left) == ([name], [])
    assert name not in passed
    assert result({**report, "waivers": [waiver]}) == "WARNED"


def test_kills_devices_and_witnesses_are_told(verified: Workspace) -> None:
    assert attested() == 0
    out = verified.root / "out"
    (row,) = load(out / "mutants.json")["toy"]
    assert row["mutant"] == "bug"
    assert row["checks"]["K-1"] == "killed"
    assert set(load(out / "devices.json")) == {"F-1@cpu-fp32"}
    (witness,) = load(out / "witnesses.json")
    assert (witness["check"], witness["counterexample"]["values"]) == ("K-2", {"x": "7"})
    assert witness["replay"] == "replay/K-2.py"
    assert "OPTIONS = ()\n" in (out / witness["replay"]).read_text(encoding="utf-8")
    assert load(out / "waivers.json") == {"toy": []}
    assert [r["check"] for r in load(out / asking.INDEX) if not r["not_included"]] == []


def wheel(place: Path, change: str = "") -> Path:
    """A wheel of the engine as it is, but for one file."""
    with zipfile.ZipFile(place, "w") as held:
        for path in PACKAGE.rglob("*"):
            name = path.relative_to(PACKAGE).as_posix()
            if path.suffix in (".py", ".json", ".css", ".j2"):
                held.writestr(f"gradproof/{name}", path.read_bytes() + (b"#" if name == change else b""))
    return place


def test_a_wheel_counts_only_where_it_holds_what_ran(verified: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    good = wheel(verified.root / "good.whl")
    assert attested("--wheel", str(wheel(verified.root / "bad.whl", "core/check.py"))) == USAGE
    said = capsys.readouterr().err
    assert "GP442" in said
    assert "gp:core/check.py" in said
    assert attested("--wheel", str(good)) == 0
    out = verified.root / "out"
    named = load(out / MANIFEST)["wheel"]
    assert load(out / "statements/toy.json")["subject"] == [{"name": "good.whl", "digest": {"sha256": named["sha256"]}}]
    assert cli.dispatch(["verify-bundle", str(out), "--wheel", str(good)]) == 0
    other = wheel(verified.root / "other.whl", "cli/doctor.py")
    assert (
        inventory.wheel_of(other, {"gp:core/check.py": inventory.sha256_of(PACKAGE / "core/check.py")}).name
        == "other.whl"
    )
    assert cli.dispatch(["verify-bundle", str(out), "--wheel", str(other)]) == BROKEN


def test_a_check_that_cannot_be_run_again_is_refused(verified: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attested() == 0
    carried = verify(verified.root / "out").carried
    assert carried is not None
    assert write.chosen(carried, "K-1").id == "K-1"
    for name in ("K-9", "F-1@cuda-fp32"):
        with pytest.raises(GradproofError, match="GP441"):
            write.chosen(carried, name)
    monkeypatch.setattr(write, "sha256_of", lambda path: "0" * 64)
    with pytest.raises(GradproofError, match=r"GP441[\s\S]*installed gradproof"):
        write.chosen(carried, "K-1")


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MadeBundle]:
    """A bundle of one real proof of this repository, with its queries."""
    home = tmp_path_factory.mktemp("real")
    session = Session(Options(workspace=ROOT, contracts=("gradient-accumulation-training-v1",)))
    session.workspace = replace(session.workspace, reports=home / "reports")
    check = next(c for c in session.checks if c.id == PROOF)
    Pool(session.workspace, 1).run([check], Store(session.workspace).write)
    return home / "bundle", attest(session, Wanted(home / "bundle"))


def test_a_real_proof_is_carried_with_its_queries(proved: tuple[Path, MadeBundle]) -> None:
    root, made = proved
    assert made.contradictions == ()
    judged = verify(root)
    assert judged.problems == ()
    assert judged.reports is not None
    (report,) = judged.reports.values()
    assert report["verdict"]["exit"] == "open"
    assert {c["id"] for c in report["checks"] if c["effect"] == "DISCHARGED"} == {PROOF}
    (row,) = load(root / asking.INDEX)
    assert row["again"] == {"outcome": "HOLDS", "same": True}
    assert row["second"]["differ"] == 0
    queries = parse((root / row["file"]).read_text(encoding="utf-8"))
    assert len(queries) == row["included"] > 5
    (told,) = map(str, write.ask(root, "z3", 60.0, {PROOF: 60.0}))
    assert told.startswith(f"{PROOF}: {row['included']} of {row['included']} ")
    assert "0 differ" in told


def test_a_real_proof_runs_again_from_the_bundle_alone(proved: tuple[Path, MadeBundle]) -> None:
    root, _ = proved
    carried = verify(root).carried
    assert carried is not None
    stated, problem = write.rerun(root, carried, write.chosen(carried, PROOF))
    assert problem is None
    assert stated.startswith(f"{PROOF} is HOLDS again")


@pytest.mark.parametrize("of", ["the empty body", "a mutant"])
def test_a_replay_script_reproduces_its_counterexample_and_leaves_the_bundle_whole(
    proved: tuple[Path, MadeBundle], of: str
) -> None:
    root, _ = proved
    rows = load(root / "witnesses.json")
    row = next(r for r in rows if (r["control"] == "empty body") is (of == "the empty body"))
    done = subprocess.run(
        [sys.executable, str(root / row["replay"])], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "reproduced" in done.stdout
    assert codes(root) == []


def test_a_query_whose_status_was_turned_is_seen_when_it_is_asked(
    proved: tuple[Path, MadeBundle], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(proved[0], tmp_path / "bundle"))
    (row,) = load(root / asking.INDEX)
    place = root / row["file"]
    text = place.read_text(encoding="utf-8")
    turned = text.replace(":status unsat)", ":status sat)", 1)
    place.write_text(turned, encoding="utf-8")
    reseal(root)
    assert codes(root) == ["GP449"]
    expected = {**row["expected"], "sat": row["expected"]["sat"] + 1, "unsat": row["expected"]["unsat"] - 1}
    change(root / asking.INDEX, lambda d: d[0].update(expected=expected))
    reseal(root)
    assert codes(root) == []
    (found,) = write.ask(root, "z3", 60.0, {PROOF: 60.0})
    assert isinstance(found, BundleProblem)
    assert "1 differ" in found.found


def test_a_waiver_counts_as_on_the_day_of_the_bundle(
    verified: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    today = datetime.now(UTC).date()
    (verified.root / "pyproject.toml").write_text(
        '[tool.gradproof]\nprofile = "release"\n[[tool.gradproof.waivers]]\nobligation = "T-1"\nlayer = "cuda"\n'
        f'owner = "ann"\nreason = "no GPU"\nexpires = {today}\n',
        encoding="utf-8",
    )
    assert attested() == 0
    out = verified.root / "out"
    (place,) = (out / "statements").glob("*.json")
    assert load(place)["predicate"]["warnedTests"] == ["F-1@cuda-fp32"]
    assert load(out / "waivers.json")["toy"][0]["state"] == "in force"

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=9)

    monkeypatch.setattr("gradproof.session.datetime", Later)
    assert cli.dispatch(["gate"]) == OPEN
    monkeypatch.setattr("gradproof.cli.attest.datetime", Later)
    capsys.readouterr()
    assert cli.dispatch(["verify-bundle", str(out)]) == 0
    stated = capsys.readouterr()
    assert f"clock of {today}" in stated.out
    assert "in force: T-1 x cuda" in stated.out
    assert "toy: open (exit 4): F-1@cuda-fp32" in stated.err
    assert f"ann expired on {today}" in stated.err
    assert cli.dispatch(["verify-bundle", str(out), "--today"]) == OPEN
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time())))
    assert cli.dispatch(["attest", "late", "-q", "--no-queries"]) == USAGE
    assert only_code(capsys) == "GP440"
    assert not (verified.root / "late").exists()


def test_evidence_of_a_gpu_and_the_lock_are_carried(verified: Workspace) -> None:
    (verified.root / "constraints.txt").write_text("torch==2.0\n", encoding="utf-8")
    checks = {c.id: c for cs in Session(Options(workspace=verified.root)).plans.values() for c in cs}
    gpu, cpu = checks["F-1@cuda-fp32"], Store(verified).status(checks["F-1@cpu-fp32"]).evidence
    assert cpu is not None
    Store(verified).write(
        recorded(
            gpu, answer(gpu), inputs=cpu.claim.stated() | {"spec": gpu.digest}, environment=cpu.environment.stated()
        )
    )
    assert attested() == 0
    out = verified.root / "out"
    assert codes(out) == []
    assert load(out / MANIFEST)["left_out"] == []
    assert len(list((out / "gpu/F-1@cuda-fp32").glob("*.json"))) == 1
    assert (out / "sources/constraints.txt").is_file()
    shutil.rmtree(out / "gpu")
    reseal(out)
    assert codes(out) == ["GP448"]
