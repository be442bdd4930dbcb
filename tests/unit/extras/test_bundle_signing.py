"""A signed bundle: the signature covers the manifest, so all of it; every other one is refused, with its reason."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_bench import EPOCH, change, codes, load, reseal, save
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from toy_workspace import worker_command

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.execution.local import Worker
from gradproof.extras.attest import manifest as signing
from gradproof.extras.attest.manifest import ENVELOPE, MANIFEST, entry_of

Attack = Callable[[Path], object]
USAGE, BROKEN = EXIT_CODE[Exit.USAGE], EXIT_CODE[Exit.BROKEN]
SECRET = b"a passphrase"


def private(seed: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """own.pem and other.pem with their public halves, own.pem encrypted as well, and keys that cannot be used."""
    home = tmp_path_factory.mktemp("keys")
    curve = generate_private_key(SECP256R1())
    for name, key in (("own", private(1)), ("other", private(2)), ("curve", curve)):
        (home / f"{name}.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (home / f"{name}.pub.pem").write_bytes(public)
    locked = private(1).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET))
    (home / "locked.pem").write_bytes(locked)
    (home / "none.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    (home / "large.pem").write_bytes(b"-" * (signing.MOST_KEY_BYTES + 1))
    return home


@pytest.fixture(scope="module")
def home(finished: Path) -> Iterator[Path]:
    """The finished toy workspace, as the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", lambda self: worker_command(finished))
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        patch.delenv(signing.PASSPHRASE, raising=False)
        patch.chdir(finished)
        yield finished


def attested(out: Path, *args: str) -> int:
    return cli.dispatch(["attest", str(out), "-q", "--no-queries", *args])


@pytest.fixture(scope="module")
def pristine(home: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle signed with own.pem."""
    place = tmp_path_factory.mktemp("signed") / "bundle"
    assert attested(place, "--sign", str(keys / "own.pem")) == 0
    return place


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the signed bundle, to tamper with."""
    return Path(shutil.copytree(pristine, tmp_path / "bundle"))


def judged(bundle: Path, *names: Path) -> int:
    return cli.dispatch(["verify-bundle", str(bundle), *(word for name in names for word in ("--key", str(name)))])


def by(seed: int, payload: bytes) -> Any:
    """An envelope as `seed` signs it."""
    return signing.Signer(private(seed), "").envelope(payload)


def payload(place: Path) -> bytes:
    return base64.b64decode(load(place)["payload"])


def signed_again(name: str, edit: Callable[[Any], object], seed: int = 1) -> Attack:
    """A statement that the key's owner signed, with another content."""

    def attack(b: Path) -> None:
        data = json.loads(payload(b / name))
        edit(data)
        save(b / name, by(seed, json.dumps(data, indent=1, sort_keys=True).encode()))

    return attack


def sealed(attack: Attack) -> Attack:
    """Another manifest under the same envelope."""
    return lambda b: (attack(b), reseal(b))


def enveloped(edit: Callable[[Any], object]) -> Attack:
    return lambda b: change(b / ENVELOPE, edit)


def raw(data: bytes) -> Attack:
    return lambda b: (b / ENVELOPE).write_bytes(data)


def other_bytes(member: str) -> Attack:
    """One bit of the payload or of the signature."""

    def edit(data: Any) -> None:
        row = data if member == "payload" else data["signatures"][0]
        found = bytearray(base64.b64decode(row[member]))
        found[len(found) // 2] ^= 1
        row[member] = base64.b64encode(found).decode()

    return enveloped(edit)


def claimed(data: Any) -> None:
    """Signatures of two others, one of which names the key that is asked for."""
    own = data["signatures"][0]["keyid"]
    rows = [by(seed, base64.b64decode(data["payload"]))["signatures"][0] for seed in (2, 3)]
    data["signatures"] = [rows[0], {**rows[1], "keyid": own}]


def of_another_type(data: Any) -> None:
    """The very signature, over the same bytes, under a name that it does not cover."""
    data["payloadType"] = "application/json"


ATTACKS: dict[str, tuple[str, Attack]] = {
    "no envelope": ("GP477", lambda b: (b / ENVELOPE).unlink()),
    "an envelope of another name": ("GP477", lambda b: (b / ENVELOPE).rename(b / "MANIFEST.DSSE.json")),
    "another key": ("GP479", signed_again(ENVELOPE, lambda d: None, seed=2)),
    "a bit of the payload": ("GP479", other_bytes("payload")),
    "a bit of the signature": ("GP479", other_bytes("sig")),
    "a signature cut short": ("GP479", enveloped(lambda d: d["signatures"][0].update(sig="AAAA"))),
    "two signatures, none of the key": ("GP479", enveloped(claimed)),
    "another payloadType": ("GP478", enveloped(of_another_type)),
    "no payloadType": ("GP478", enveloped(lambda d: d.pop("payloadType"))),
    "no signatures": ("GP478", enveloped(lambda d: d["signatures"].clear())),
    "too many signatures": ("GP478", enveloped(lambda d: d.update(signatures=d["signatures"] * 65))),
    "signatures of another shape": ("GP478", enveloped(lambda d: d.update(signatures={"sig": "AAAA"}))),
    "a key twice": ("GP478", lambda b: raw((b / ENVELOPE).read_bytes().replace(b"{", b'{"payload": "",', 1))(b)),
    "one more key": ("GP478", enveloped(lambda d: d.update(note="good"))),
    "no base64": ("GP478", enveloped(lambda d: d.update(payload="!" + d["payload"]))),
    "letters beyond ASCII": ("GP478", enveloped(lambda d: d.update(payload="ä" + d["payload"]))),
    "garbage": ("GP478", raw(b"garbage")),
    "bytes that are no text": ("GP478", raw(b"\xff\xfe{}")),
    "a list": ("GP478", raw(b"[]")),
    "deep nesting": ("GP478", raw(b"[" * 100_000)),
    "nothing": ("GP478", raw(b"")),
    "a link": ("GP478", lambda b: ((b / ENVELOPE).rename(b.parent / "e"), (b / ENVELOPE).symlink_to(b.parent / "e"))),
    "a link to nowhere": ("GP478", lambda b: ((b / ENVELOPE).unlink(), (b / ENVELOPE).symlink_to("nowhere"))),
    "a folder": ("GP478", lambda b: ((b / ENVELOPE).unlink(), (b / ENVELOPE).mkdir())),
    "a pipe": ("GP478", lambda b: ((b / ENVELOPE).unlink(), os.mkfifo(b / ENVELOPE))),
    "the statement of a contract": (
        "GP478",
        lambda b: save(b / ENVELOPE, by(1, (b / "statements/toy.json").read_bytes())),
    ),
    "no statement": ("GP478", lambda b: save(b / ENVELOPE, by(1, b"[1]"))),
    "a payload that is no JSON": ("GP478", lambda b: save(b / ENVELOPE, by(1, b"\xff"))),
    "another subject": ("GP478", signed_again(ENVELOPE, lambda d: d["subject"][0]["digest"].update(sha256="0" * 64))),
    "one more subject": ("GP478", signed_again(ENVELOPE, lambda d: d["subject"].append({"name": "x"}))),
    "another manifest": ("GP478", sealed(lambda b: (b / "waivers.json").write_text("{}\n"))),
    "a manifest in other white space": ("GP478", lambda b: (b / MANIFEST).write_text(json.dumps(load(b / MANIFEST)))),
    "another result": ("GP478", signed_again(ENVELOPE, lambda d: d["predicate"].update(result="WARNED"))),
    "another contract": ("GP478", signed_again(ENVELOPE, lambda d: d["predicate"]["passedTests"].append("x"))),
    "a file behind the manifest": ("GP447", lambda b: (b / "waivers.json").write_text("{}\n")),
    "a file beside the manifest": ("GP446", lambda b: (b / "waivers.dsse.json").write_text("{}\n")),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bundle_that_the_key_did_not_sign_as_it_is_is_refused(
    bundle: Path, keys: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, attack = ATTACKS[name]
    attack(bundle)
    assert judged(bundle, keys / "own.pub.pem") == BROKEN
    assert capsys.readouterr().err.split()[0] == code


def test_the_bundle_that_nobody_touched_is_signed(bundle: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, other = keys / "own.pub.pem", keys / "other.pub.pem"
    assert judged(bundle, own) == judged(bundle, other, own) == 0
    assert capsys.readouterr().out.count(f"signed with the key {signing.public_key(own, bundle).keyid}") == 2
    assert judged(bundle) == 0
    assert "nobody" in capsys.readouterr().out
    change(bundle / ENVELOPE, lambda d: d["signatures"].insert(0, by(3, payload(bundle / ENVELOPE))["signatures"][0]))
    change(bundle / ENVELOPE, lambda d: d["signatures"][1].pop("keyid"))
    assert judged(bundle, own) == 0
    assert judged(bundle, other) == BROKEN


def test_what_is_signed_is_the_manifest_and_each_statement_by_its_digest(bundle: Path) -> None:
    stated = json.loads(payload(bundle / ENVELOPE))
    digest = entry_of(bundle, MANIFEST).sha256
    assert stated["subject"] == [{"name": MANIFEST, "digest": {"sha256": digest}}]
    assert (stated["_type"], stated["predicateType"]) == tuple(
        load(bundle / "statements/toy.json")[key] for key in ("_type", "predicateType")
    )
    digest = entry_of(bundle, "statements/toy.json").sha256
    assert stated["predicate"] == {
        "result": "PASSED",
        "configuration": [{"name": "statements/toy.json", "digest": {"sha256": digest}}],
        "passedTests": ["toy"],
        "warnedTests": [],
        "failedTests": [],
    }
    listed = {row["path"] for row in load(bundle / MANIFEST)["files"]}
    assert "statements/toy.json" in listed
    assert ENVELOPE not in listed
    assert set(load(bundle / ENVELOPE)) == {"payload", "payloadType", "signatures"}


def test_without_a_key_what_an_envelope_holds_is_judged_all_the_same(bundle: Path) -> None:
    held = (bundle / ENVELOPE).read_bytes()
    for name in ("garbage", "no signatures", "another result"):
        ATTACKS[name][1](bundle)
        assert codes(bundle) == ["GP478"], name
        (bundle / ENVELOPE).write_bytes(held)
    assert codes(bundle) == []
    (bundle / ENVELOPE).unlink()
    assert codes(bundle) == []


def test_the_manifest_lists_no_envelope_of_its_own(bundle: Path) -> None:
    entry = entry_of(bundle, ENVELOPE).model_dump(mode="json")
    change(bundle / MANIFEST, lambda m: m["files"].insert(0, entry))
    assert codes(bundle) == ["GP445"]


def test_two_bundles_of_one_state_are_one_also_where_the_key_is_encrypted(
    home: Path, keys: Path, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signing.PASSPHRASE, SECRET.decode())
    assert attested(tmp_path / "again", "--sign", str(keys / "locked.pem")) == 0
    files = [
        {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (pristine, tmp_path / "again")
    ]
    assert files[0] == files[1]
    secrets = [(keys / name).read_bytes() for name in ("own.pem", "locked.pem")] + [SECRET, b"\1" * 32]
    assert not any(secret in data for secret in secrets for data in files[0].values())


def refused(code: str, said: str, act: Callable[[], object]) -> None:
    with pytest.raises(GradproofError) as caught:
        act()
    assert caught.value.code == code
    assert said in caught.value.render()
    assert "PRIVATE KEY-----" not in caught.value.render()


def test_keys_that_cannot_be_used(
    home: Path, keys: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, said in (
        ("own.pub.pem", "no private key"), ("none.pem", "no private key"), ("curve.pem", "another kind: EC"),
        ("large.pem", "too large"), ("nowhere.pem", "cannot be read"), ("locked.pem", "it is encrypted"),
    ):  # fmt: skip
        refused("GP475", said, lambda name=name: signing.private_key(keys / name))
        assert attested(tmp_path / "out", "--sign", str(keys / name)) == USAGE
    monkeypatch.setenv(signing.PASSPHRASE, "another one")
    refused("GP475", "is not its passphrase", lambda: signing.private_key(keys / "locked.pem"))
    assert signing.private_key(keys / "own.pem").digest
    for name, said in (("own.pem", "no public key"), ("none.pem", "no public key"), ("curve.pub.pem", "kind: EC")):
        refused("GP475", said, lambda name=name: signing.public_key(keys / name, bundle))
        assert judged(bundle, keys / "own.pub.pem", keys / name) == USAGE
    inside = Path(shutil.copy(keys / "own.pub.pem", bundle / "own.pub.pem"))
    refused("GP475", "lies in the bundle", lambda: signing.public_key(inside, bundle))
    assert not (tmp_path / "out").exists()
    assert "BEGIN" not in capsys.readouterr().err


def test_the_private_key_never_comes_into_a_bundle(
    finished: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(finished, tmp_path / "toy"))
    (root / "proofs/toy/witnesses").mkdir(exist_ok=True)
    key = Path(shutil.copy(keys / "own.pem", root / "proofs/toy/witnesses/key.json"))
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(root))
    monkeypatch.chdir(root)
    assert attested(tmp_path / "out", "--sign", str(key)) == USAGE
    said = capsys.readouterr().err
    assert "GP475" in said
    assert "sources/proofs/toy/witnesses/key.json" in said
    assert not (tmp_path / "out").exists()
    assert attested(tmp_path / "out", "--sign", str(keys / "other.pem")) == 0


@pytest.mark.parametrize("name", ["securesystemslib", "cryptography"])
def test_without_the_extra_nothing_is_signed_or_judged(
    home: Path, keys: Path, bundle: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for loaded in [m for m in sys.modules if m.partition(".")[0] in ("securesystemslib", name)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    assert attested(tmp_path / "out", "--sign", str(keys / "own.pem")) == USAGE
    assert judged(bundle, keys / "own.pub.pem") == USAGE
    said = capsys.readouterr()
    assert said.err.count("GP409") == 2
    assert said.err.count("pip install 'securesystemslib[crypto]>=1.2'") == 2
    assert "supports" not in said.out
    assert not (tmp_path / "out").exists()
    assert judged(bundle) == 0


def test_a_bundle_without_a_signature_says_so(
    home: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attested(tmp_path / "out") == 0
    assert not (tmp_path / "out" / ENVELOPE).exists()
    assert judged(tmp_path / "out") == 0
    assert "not signed" in capsys.readouterr().out
    assert judged(tmp_path / "out", keys / "own.pub.pem") == BROKEN
    save(tmp_path / "out" / ENVELOPE, {})
    assert codes(tmp_path / "out") == ["GP478"]


def test_an_answer_that_is_not_green_is_signed_as_failed(tmp_path: Path) -> None:
    from gradproof.extras.attest.manifest import of_manifest

    texts = {name: json.dumps({"predicate": {"result": name.upper()}}) for name in ("passed", "warned")}
    assert of_manifest("0", texts)["predicate"]["result"] == "WARNED"
    texts |= {"failed": json.dumps({"predicate": {"result": "FAILED"}})}
    stated = of_manifest("0", texts)["predicate"]
    assert (stated["result"], stated["passedTests"], stated["failedTests"]) == ("FAILED", ["passed"], ["failed"])
    assert of_manifest("0", {})["predicate"]["result"] == "FAILED"
