"""Every way to tamper with a bundle is refused, with its own reason; the bundle that nobody touched is not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_bench import EPOCH, change, change_manifest, codes, evidence_of, forge, load, reseal, reword, save
from toy_workspace import worker_command

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.execution.local import Worker
from gradproof.extras.attest.manifest import MANIFEST
from gradproof.extras.attest.verify import verify

Attack = Callable[[Path], object]
BROKEN = EXIT_CODE[Exit.BROKEN]


@pytest.fixture
def bundle(pristine: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the bundle, to tamper with. Its workers are the toy's, in the folder of the toy."""
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(finished))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    monkeypatch.chdir(finished)
    return Path(shutil.copytree(pristine, tmp_path / "bundle", symlinks=True))


def first_file(manifest: Any) -> Any:
    return manifest["files"][0]


def link(place: Path, target: str) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def flip(place: Path) -> None:
    """Change one byte and no size."""
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(bytes(data))


FILES: dict[str, tuple[str, Attack]] = {
    "evidence deleted": ("GP446", lambda b: evidence_of(b, "K-1").unlink()),
    "a report deleted": ("GP446", lambda b: (b / "reports/toy.json").unlink()),
    "a file added": ("GP446", lambda b: (b / "extra.txt").write_text("x")),
    "a module added": ("GP446", lambda b: (b / "sources/models/extra.py").write_text("x = 1\n")),
    "an empty folder added": ("GP446", lambda b: (b / "sources/models/c").mkdir()),
    "a link added": ("GP446", lambda b: link(b / "link", "MANIFEST.json")),
    "a file replaced by a link": ("GP446", lambda b: link(b / "sources/models/a.py", "b.py")),
    "a folder replaced by a link": (
        "GP446",
        lambda b: ((b / "replay").rename(b.parent / "replay"), (b / "replay").symlink_to(b.parent / "replay")),
    ),
    "a pipe added": ("GP446", lambda b: os.mkfifo(b / "pipe")),
    "one byte of evidence": ("GP447", lambda b: flip(evidence_of(b, "K-1"))),
    "one byte of a source": ("GP447", lambda b: flip(b / "sources/models/a.py")),
    "one byte of a report": ("GP447", lambda b: flip(b / "reports/toy.json")),
    "evidence cut short": ("GP447", lambda b: os.truncate(evidence_of(b, "K-1"), 100)),
    "another size in the manifest": (
        "GP447",
        lambda b: change_manifest(b, lambda m: first_file(m).update(bytes=first_file(m)["bytes"] + 1)),
    ),
    "a file listed twice": ("GP445", lambda b: change_manifest(b, lambda m: m["files"].insert(0, first_file(m)))),
    "files out of order": ("GP445", lambda b: change_manifest(b, lambda m: m["files"].reverse())),
    "the manifest listed": (
        "GP445",
        lambda b: change_manifest(b, lambda m: m["files"].insert(0, {**first_file(m), "path": MANIFEST})),
    ),
    **{
        f"the path {path!r}": (
            "GP445",
            lambda b, path=path: change_manifest(b, lambda m: m["files"].append({**first_file(m), "path": path})),
        )
        for path in ("../x", "sources/../x", "/etc/x", "z//x", "./x", "z\\x", "C:/x", ".", "z\nx", "z/")
    },
}


@pytest.mark.parametrize("name", FILES)
def test_tampering_with_files_is_seen(bundle: Path, name: str) -> None:
    code, attack = FILES[name]
    attack(bundle)
    assert codes(bundle) == [code]
    assert cli.dispatch(["verify-bundle", str(bundle)]) == BROKEN


def test_the_bundle_that_nobody_touched_is_good(bundle: Path) -> None:
    judged = verify(bundle)
    assert judged.problems == ()
    assert judged.reports is not None
    assert judged.reports["toy"]["verdict"]["met"] is True
    assert cli.dispatch(["verify-bundle", str(bundle)]) == 0
    reseal(bundle)
    assert codes(bundle) == []
    forge(bundle)
    assert codes(bundle) == []


MANIFESTS: dict[str, tuple[str, Attack]] = {
    "gone": ("GP443", lambda b: (b / MANIFEST).unlink()),
    "cut short": ("GP443", lambda b: os.truncate(b / MANIFEST, 300)),
    "a link": ("GP443", lambda b: ((b / MANIFEST).rename(b.parent / "m"), (b / MANIFEST).symlink_to(b.parent / "m"))),
    "a key twice": (
        "GP443",
        lambda b: (b / MANIFEST).write_text((b / MANIFEST).read_text().replace("{", '{"profile": "ci",', 1)),
    ),
    "an unknown key": ("GP443", lambda b: change_manifest(b, lambda m: m.update(grade="A"))),
    "a missing key": ("GP443", lambda b: change_manifest(b, lambda m: m.pop("left_out"))),
    "other words": ("GP443", lambda b: change_manifest(b, lambda m: m.update(says="This is right."))),
    "no contract": ("GP443", lambda b: change_manifest(b, lambda m: m.update(contracts=[]))),
    "a size as text": ("GP443", lambda b: change_manifest(b, lambda m: first_file(m).update(bytes="12"))),
    "no object": ("GP443", lambda b: (b / MANIFEST).write_text("[]")),
    "no schema": ("GP443", lambda b: change_manifest(b, lambda m: m.pop("schema"))),
    "deep nesting": ("GP443", lambda b: (b / MANIFEST).write_text("[" * 100_000)),
    "no UTF-8": ("GP443", lambda b: (b / MANIFEST).write_bytes(b"\xff\xfe{}")),
    "version 2": ("GP444", lambda b: change_manifest(b, lambda m: m.update(schema="gradproof-bundle/2"))),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be_read_is_a_usage_error(bundle: Path, name: str) -> None:
    code, attack = MANIFESTS[name]
    attack(bundle)
    with pytest.raises(GradproofError, match=code):
        verify(bundle)
    assert cli.dispatch(["verify-bundle", str(bundle)]) == EXIT_CODE[Exit.USAGE]


def k1(edit: Callable[[Any], object], **how: Any) -> Attack:
    return lambda b: reword(evidence_of(b, "K-1"), edit, **how)


def left_out(b: Path) -> None:
    shutil.rmtree(b / "evidence/K-1")
    change_manifest(b, lambda m: m["left_out"].insert(1, {"check": "K-1", "reason": "it was never run"}))


def contract(old: str, new: str) -> Attack:
    place = "sources/proofs/toy/contract.yaml"

    def edit(b: Path) -> None:
        text = (b / place).read_text(encoding="utf-8")
        assert old in text
        (b / place).write_text(text.replace(old, new), encoding="utf-8")

    return edit


def moved(b: Path) -> None:
    """Evidence of one check in the folder of another."""
    other = evidence_of(b, "K-1")
    evidence_of(b, "K-2").unlink()
    shutil.move(other, b / "evidence/K-2" / other.name)


def doubled(b: Path) -> None:
    """Two evidence files of one check."""
    place = evidence_of(b, "K-1")
    copy = place.with_name("copy.json")
    shutil.copy(place, copy)
    reword(copy, lambda d: d.update(seconds=9.5))


def in_json(name: str, edit: Callable[[Any], object]) -> Attack:
    return lambda b: change(b / name, edit)


def verdict(report: Any) -> None:
    report["verdict"].update(exit="open", code=4, met=False, reasons=["because"])


def versions(data: Any) -> None:
    data["environment"]["z3"] = "0.0.1"


def row_of(report: Any, check: str) -> Any:
    return next(c for c in report["checks"] if c["id"] == check)


# The forger makes the manifest anew after each of these.
SEALED: dict[str, tuple[str, Attack]] = {
    "evidence cut short": ("GP448", lambda b: os.truncate(evidence_of(b, "K-1"), 100)),
    "evidence edited": ("GP448", k1(lambda d: d["finding"].update(reason="better"), rename=False)),
    "a claim of another check": ("GP448", k1(lambda d: d["claim"].update(spec="0" * 64))),
    "a check that was changed": ("GP448", k1(lambda d: d["check"].update(time_limit=99.0))),
    "a digest in a claim": ("GP448", k1(lambda d: d["claim"]["files"].update({"ws:models/a.py": "0" * 64}))),
    "a digest of the engine": ("GP448", k1(lambda d: d["claim"]["files"].update({"gp:core/check.py": "0" * 64}))),
    "a file that is not listed": ("GP448", k1(lambda d: d["claim"]["files"].update({"gp:nothing.py": "0" * 64}))),
    "a claim without files": ("GP448", k1(lambda d: d["claim"].update(files={}, imports=[]))),
    "another solver in evidence": ("GP448", k1(lambda d: d["environment"].update(z3="0.0.1"))),
    "evidence of another schema": ("GP448", k1(lambda d: d.update(schema="gradproof-evidence/1"))),
    "evidence in another folder": ("GP448", moved),
    "two evidence files of a check": ("GP448", doubled),
    "evidence deleted": ("GP448", lambda b: shutil.rmtree(b / "evidence/K-1")),
    "evidence of no check": (
        "GP448",
        lambda b: shutil.copytree(b / "evidence/K-1", b / "evidence/K-9"),
    ),
    "a source changed": ("GP448", lambda b: (b / "sources/models/a.py").write_text("VALUE = 1.0\n")),
    "a source deleted": ("GP448", lambda b: (b / "sources/models/a.py").unlink()),
    "a module that shadows": ("GP448", lambda b: (b / "sources/toy_workspace.py").write_text("x = 1\n")),
    "a tolerance raised": ("GP448", contract('"1e-5"', '"1e-3"')),
    "a mutant dropped": ("GP448", contract("    mutants: [bug]\n    time_limit: 200\n  - id: K-2", "  - id: K-2")),
    "a contract that is none": ("GP448", contract("proof_obligations:", "proof_obligation:")),
    "another contract's name": ("GP448", lambda b: change_manifest(b, lambda m: m.update(contracts=["../toy"]))),
    "a contract's name that leads elsewhere": (
        "GP448",
        lambda b: change_manifest(b, lambda m: m.update(contracts=["../proofs/toy"])),
    ),
    "another version installed": ("GP448", in_json("distributions.json", versions)),
    "no versions": ("GP448", in_json("distributions.json", lambda d: d.clear())),
    "a list of files that is none": ("GP448", lambda b: (b / "files.sha256").write_text("nothing\n")),
    "a mutant that survived": ("GP449", k1(lambda d: d["finding"]["controls"][1].update(killed=False))),
    "an outcome that was turned": ("GP449", k1(lambda d: d["finding"].update(outcome="UNKNOWN"))),
    "evidence left out": ("GP449", left_out),
    "a verdict": ("GP449", in_json("reports/toy.json", verdict)),
    "a reach": ("GP449", in_json("reports/toy.json", lambda d: row_of(d, "K-1").update(reach="all inputs"))),
    "an outcome": ("GP449", in_json("reports/toy.json", lambda d: row_of(d, "F-1@cuda-fp32").update(outcome="HOLDS"))),
    "a report's environment": ("GP449", in_json("reports/toy.json", lambda d: d["environment"].update(torch="0"))),
    "a report's kernels": ("GP449", in_json("reports/toy.json", lambda d: d["kernels"]["relies"].append({}))),
    "a report's study": ("GP449", in_json("reports/toy.json", lambda d: d["rounding"].update(document={}))),
    "a report's time": ("GP449", in_json("reports/toy.json", lambda d: d.update(generated_at="1970"))),
    "a report with more": ("GP449", in_json("reports/toy.json", lambda d: d.update(grade="A"))),
    "a report that is none": ("GP449", lambda b: (b / "reports/toy.json").write_text("{")),
    "a report too many": ("GP449", lambda b: shutil.copy(b / "reports/toy.json", b / "reports/other.json")),
    "a profile": ("GP449", lambda b: change_manifest(b, lambda m: m.update(profile="release"))),
    "a reason for leaving out": ("GP449", lambda b: change_manifest(b, lambda m: m["left_out"][0].update(reason="x"))),
    "a statement": ("GP449", in_json("statements/toy.json", lambda d: d["predicate"]["passedTests"].append("K-9"))),
    "a subject": ("GP449", in_json("statements/toy.json", lambda d: d["subject"][0]["digest"].update(sha256="0" * 64))),
    "a kill": ("GP449", in_json("mutants.json", lambda d: d["toy"][0]["checks"].update({"K-2": "killed"}))),
    "a device": ("GP449", in_json("devices.json", lambda d: d["F-1@cpu-fp32"].update(device="NVIDIA"))),
    "a waiver": ("GP449", in_json("waivers.json", lambda d: d["toy"].append({"check": "K-1"}))),
    "a witness deleted": ("GP449", in_json("witnesses.json", lambda d: d.clear())),
    "a replay script": ("GP449", lambda b: (b / "replay/K-2.py").write_text("print('reproduced')\n")),
    "a replay script deleted": ("GP449", lambda b: (b / "replay/K-2.py").unlink()),
    "the digest of the sources": ("GP449", lambda b: change_manifest(b, lambda m: m.update(sources="0" * 64))),
    "the digest of the sources, and the subject": (
        "GP449",
        lambda b: (
            change_manifest(b, lambda m: m.update(sources="0" * 64)),
            change(b / "statements/toy.json", lambda d: d["subject"][0]["digest"].update(sha256="0" * 64)),
        ),
    ),
    "a wheel that was not": (
        "GP449",
        lambda b: change_manifest(b, lambda m: m.update(wheel={"name": "w", "sha256": "0" * 64, "bytes": 1})),
    ),
    "a file that follows from nothing": ("GP449", lambda b: (b / "extra.txt").write_text("x")),
    "a module that no evidence read": ("GP449", lambda b: (b / "sources/models/extra.py").write_text("x = 1\n")),
    "a row of the queries": ("GP449", in_json("queries/index.json", lambda d: d.pop())),
    "a script that is not listed": ("GP449", lambda b: (b / "queries/K-1.smt2").write_text("(check-sat)\n")),
    "a solver that contradicts": (
        "GP449",
        in_json("queries/index.json", lambda d: d[0].update(second={"differ": 1, "solver": "cvc5"})),
    ),
    "a repeated run that contradicts": (
        "GP449",
        in_json("queries/index.json", lambda d: d[0].update(again={"outcome": "REFUTED", "same": False})),
    ),
    "a script that nobody can read": (
        "GP449",
        in_json("queries/index.json", lambda d: d[0].update(included=2, read_back=1)),
    ),
    "an index that is none": ("GP449", lambda b: (b / "queries/index.json").write_text("{}")),
}  # fmt: skip


@pytest.mark.parametrize("name", SEALED)
def test_tampering_behind_a_new_manifest_is_seen(bundle: Path, name: str) -> None:
    code, attack = SEALED[name]
    attack(bundle)
    reseal(bundle)
    assert codes(bundle) == [code]
    assert verify(bundle).reports is None or verify(bundle).reports == {}


def test_a_turned_model_behind_a_whole_forgery_is_seen_by_a_repeated_run_alone(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Digests are no signature: who makes everything anew is stopped by --rerun, or by a digest stated otherwise."""
    digest = verify_digest(bundle, capsys)
    source = bundle / "sources/models/a.py"
    source.write_text("VALUE = 3\n", encoding="utf-8")
    stated = hashlib.sha256(source.read_bytes()).hexdigest()
    for place in sorted((bundle / "evidence").glob("*/*.json")):
        if "ws:models/a.py" in load(place)["claim"]["files"]:
            reword(place, lambda d: d["claim"]["files"].update({"ws:models/a.py": stated}))
    listed = (bundle / "files.sha256").read_text(encoding="utf-8").splitlines()
    text = "".join(f"{stated}  ws:models/a.py\n" if row.endswith("ws:models/a.py") else f"{row}\n" for row in listed)
    (bundle / "files.sha256").write_text(text, encoding="utf-8")
    forge(bundle)
    assert cli.dispatch(["verify-bundle", str(bundle)]) == 0
    assert cli.dispatch(["verify-bundle", str(bundle), "--sha256", digest]) == BROKEN
    capsys.readouterr()
    assert cli.dispatch(["verify-bundle", str(bundle), "--rerun", "K-1"]) == BROKEN
    assert {"GP449", "K-1:", "REFUTED,"} <= set(capsys.readouterr().err.split())


def verify_digest(bundle: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The manifest's digest, as the command prints it and takes it."""
    assert cli.dispatch(["verify-bundle", str(bundle)]) == 0
    digest = capsys.readouterr().out.split()[-1]
    assert cli.dispatch(["verify-bundle", str(bundle), "--sha256", digest]) == 0
    return digest


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    rows = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in rows:
        yield (*path, key)
        yield from places(value, (*path, key))


def put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


STRANGE = (None, 5, [], {}, "x", [None], {"a": {}}, True)


@pytest.mark.parametrize("name", ["K-1", "K-2", "queries/index.json", "distributions.json", "waivers.json"])
def test_data_of_any_shape_is_judged_and_never_crashes(bundle: Path, name: str) -> None:
    place = evidence_of(bundle, name) if name.startswith("K") else bundle / name
    whole = load(place)
    found = [p for p in places(whole) if p[0] not in ("check", "distributions") and "files" not in p]
    for number, path in enumerate(found[:: max(1, len(found) // 16)]):
        data = json.loads(json.dumps(whole))
        put(data, path, STRANGE[number % len(STRANGE)])
        place = reword(place, lambda d, data=data: (d.clear(), d.update(data))) if name.startswith("K") else place
        if not name.startswith("K"):
            save(place, data)
        reseal(bundle)
        assert set(codes(bundle)) <= {"GP448", "GP449"}, path


def test_bytes_that_are_no_text_are_a_problem(bundle: Path) -> None:
    for name in ("devices.json", "reports/toy.json", "queries/index.json", "replay/K-2.py"):
        before = (bundle / name).read_bytes()
        (bundle / name).write_bytes(b"\xff\xfe")
        reseal(bundle)
        assert codes(bundle) == ["GP449"], name
        (bundle / name).write_bytes(before)
