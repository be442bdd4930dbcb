"""The manifest of a bundle and its signature: nothing missing, nothing more, no link, and every byte as it was.

A problem has a code of `gradproof explain`. Whatever is not an ordinary file or folder is one.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.base import DocumentModel, Sha256
from gradproof.core.workspace import sha256_of
from gradproof.evidence.environment import environment, normal
from gradproof.evidence.store import parse, safe

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import SSlibKey

# -- `MANIFEST.json`, format `gradproof-bundle/1`: every other file of a bundle with its digest.
BUNDLE = "gradproof-bundle/1"
MANIFEST = "MANIFEST.json"
ENVELOPE = "MANIFEST.dsse.json"
"""The signature over the manifest: beside the manifest the one file that no manifest lists."""
SAYS = "The evidence in this folder supports the verdicts in reports/, as far as each check reaches."
Text = Annotated[str, Field(min_length=1)]


class ManifestEntry(DocumentModel):
    """A file: its place in the bundle with forward slashes, sha256 in hex, size in bytes."""

    path: Text
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class Wheel(DocumentModel):
    """The wheel that was named: each file of the engine that a verdict depends on is in it, byte for byte."""

    name: Text
    sha256: Sha256
    bytes: Annotated[int, Field(ge=1)]


class LeftOut(DocumentModel):
    """A planned check of which the bundle carries no evidence."""

    check: Text
    reason: Text


class Manifest(DocumentModel):
    """What the bundle holds. `sources`: sha256 of files.sha256, which names every file that a verdict depends on.

    `packaged`: there was no workspace, and the packaged reference was judged; each report says so as well.

    History: 1, the first.
    """

    document: Literal["gradproof-bundle/1"] = Field(alias="schema")
    says: Literal["The evidence in this folder supports the verdicts in reports/, as far as each check reaches."]
    gradproof: Text
    made_at: Text
    profile: Literal["ci", "release"]
    packaged: bool
    contracts: Annotated[list[Text], Field(min_length=1)]
    sources: Sha256
    wheel: Wheel | None
    left_out: list[LeftOut]
    files: list[ManifestEntry]


# -- What a bundle says of the installation: distributions with the digests of their own file lists, and the wheel.
def ran_on() -> dict[str, Any]:
    """This machine's versions, and every installed distribution: version, and sha256 of its RECORD (null without)."""
    found = {}
    for one in importlib.metadata.distributions():
        name, record = one.metadata["Name"], one.read_text("RECORD")
        if name and normal(name) not in found:
            digest = hashlib.sha256(record.encode()).hexdigest() if record else None
            found[normal(name)] = {"version": one.version, "record_sha256": digest}
    return {"environment": environment(), "distributions": dict(sorted(found.items()))}


def wheel_of(path: Path, files: Mapping[str, str]) -> Wheel:
    """The wheel, if it holds every file of the engine in `files`, as it ran. Raises GradproofError GP442."""
    try:
        with zipfile.ZipFile(path) as held:
            members = set(held.namelist())
            other = [key for key, digest in files.items() if not _holds(held, members, key, digest)]
        size = path.stat().st_size
        digest = sha256_of(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise _refused(path, f"it is no wheel that can be read: {error}") from error
    if other:
        raise _refused(path, f"{len(other)} files that ran are not in it as they ran, {other[0]} first")
    return Wheel(name=path.name, sha256=digest, bytes=size)


def _holds(held: zipfile.ZipFile, members: set[str], key: str, digest: str) -> bool:
    kind, _, name = key.partition(":")
    if kind != "gp" or not digest:
        return True
    inside = f"gradproof/{name}"
    return inside in members and hashlib.sha256(held.read(inside)).hexdigest() == digest


def _refused(path: Path, found: str) -> GradproofError:
    help = "build the wheel of the sources that ran, or run the checks with that wheel installed"
    return GradproofError("GP442", found, "the wheel whose files the evidence rests on", help, str(path))


_APART = (MANIFEST, ENVELOPE)
_STRANGE = {"link": "it is a link", "empty folder": "it is an empty folder", "other": "it is no file, link or folder"}


@dataclass(frozen=True)
class BundleProblem:
    """What is wrong with a bundle: an error code, the place in the bundle, and what was found there."""

    code: str
    path: str
    found: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.found}".encode(errors="backslashreplace").decode()


def entry_of(root: Path, path: str) -> ManifestEntry:
    """The entry of a file as it is now. Raises OSError."""
    with (root / path).open("rb") as f:
        return ManifestEntry(path=path, sha256=hashlib.file_digest(f, "sha256").hexdigest(), bytes=f.tell())


def entries(root: Path) -> list[ManifestEntry]:
    """An entry for every file below `root` but the manifest and its envelope, sorted.

    Raises ValueError for what is no plain file.
    """
    found = list(walk(root))
    strange = [name for name, kind in found if kind != "file"]
    if strange:
        raise ValueError(f"{strange[0]} is no plain file")
    return [entry_of(root, name) for name in sorted(n for n, _ in found if n not in _APART)]


def walk(root: Path, below: str = "") -> Iterator[tuple[str, str]]:
    """Places below `root` and what each is: file, link, empty folder or other. Links are not followed."""
    with os.scandir(root / below) as scan:
        found = sorted(scan, key=lambda e: e.name)
    if not found and below:
        yield below, "empty folder"
    for item in found:
        name = f"{below}/{item.name}" if below else item.name
        if item.is_symlink():
            yield name, "link"
        elif item.is_dir(follow_symlinks=False):
            yield from walk(root, name)
        else:
            yield name, "file" if item.is_file(follow_symlinks=False) else "other"


def open_manifest(root: Path) -> Manifest:
    """The manifest of a bundle. Raises GradproofError: GP443 where there is none, GP444 for another version of it."""
    place = root / MANIFEST
    if place.is_symlink() or not place.is_file():
        raise _unreadable(root, f"there is no {MANIFEST}")
    try:
        data = parse(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(root, f"{MANIFEST} cannot be read: {error}") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if isinstance(version, str) and version != BUNDLE:
        help = "judge it with the release of gradproof that wrote it"
        raise GradproofError("GP444", f"the schema {version!r}", BUNDLE, help, str(place))
    try:
        return Manifest.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise _unreadable(root, f"{MANIFEST}: {where}: {first['msg']}") from error


def _unreadable(root: Path, found: str) -> GradproofError:
    help = "name a folder that gradproof attest wrote, whole"
    return GradproofError("GP443", found, "a bundle of evidence", help, str(root))


def problems(root: Path, manifest: Manifest) -> list[BundleProblem]:
    """What is wrong with the files. Contents are read only where the listing itself is sound."""
    found = list(_listed(manifest.files))
    try:
        return found or list(_present(root, manifest.files))
    except OSError as error:
        return [BundleProblem("GP446", str(error.filename), f"it cannot be read: {error.strerror}")]


def _listed(files: Sequence[ManifestEntry]) -> Iterator[BundleProblem]:
    names = [e.path for e in files]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        yield BundleProblem("GP445", name, "the manifest lists it twice")
    for name in names:
        parts = PurePosixPath(name).parts
        plain = "/".join(parts) == name and ".." not in parts and "\\" not in name and name.isprintable()
        if not plain or name in _APART or ":" in parts[0]:
            yield BundleProblem("GP445", name, "it is no place inside of the bundle")
    if names != sorted(names):
        yield BundleProblem("GP445", MANIFEST, "its files are not sorted")


def _present(root: Path, files: Sequence[ManifestEntry]) -> Iterator[BundleProblem]:
    wanted = {e.path: e for e in files}
    there = dict(walk(root))
    for name, kind in there.items():
        if kind != "file":
            yield BundleProblem("GP446", name, _STRANGE[kind])
        elif name not in wanted and name not in _APART:
            yield BundleProblem("GP446", name, "the manifest does not list it")
    for name, entry in wanted.items():
        if name not in there:
            yield BundleProblem("GP446", name, "it is missing")
        elif there[name] == "file":
            try:
                now = entry_of(root, name)
            except OSError as error:
                yield BundleProblem("GP446", name, f"it cannot be read: {error.strerror}")
                continue
            if now != entry:
                words = f"{now.bytes} bytes with sha256 {now.sha256[:16]}, not {entry.bytes} with {entry.sha256[:16]}"
                yield BundleProblem("GP447", name, words)


def dumped(data: Any) -> str:
    """JSON as every file of a bundle has it. Raises ValueError for NaN and infinity."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def statement_path(contract: str) -> str:
    """Where the in-toto statement of a contract lies."""
    return f"statements/{safe(contract)}.json"


# -- In-toto statements: v1, with a test-result predicate v0.1.
TYPE, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"
RESULTS = ("FAILED", "WARNED", "PASSED")  # the worst first


def stated(
    subject: dict[str, Any], result: str, configuration: list[dict[str, Any]],
    passed: list[str], warned: list[str], failed: list[str],
) -> dict[str, Any]:  # fmt: skip
    """An in-toto statement with a test-result predicate."""
    return {
        "_type": TYPE,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": configuration,
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }


def of_manifest(digest: str, statements: Mapping[str, str]) -> dict[str, Any]:
    """The statement about a whole bundle. Its subject is the manifest, by `digest` (sha256 in hex).

    `statements`: the text of each contract's, by its id. The tests are the contracts.
    """
    results = {name: json.loads(text)["predicate"]["result"] for name, text in statements.items()}
    named = {word: [name for name, result in results.items() if result == word] for word in RESULTS}
    result = next((word for word in RESULTS if named[word]), "FAILED")
    texts = [described(statement_path(n), hashlib.sha256(text.encode()).hexdigest()) for n, text in statements.items()]
    return stated(described(MANIFEST, digest), result, texts, named["PASSED"], named["WARNED"], named["FAILED"])


def described(name: str, digest: str) -> dict[str, Any]:
    """A file as in-toto describes one. `digest`: sha256 in hex."""
    return {"name": name, "digest": {"sha256": digest}}


# -- The envelope of a bundle: DSSE 1.0, around an in-toto statement, signed with ed25519 keys.
#
# By securesystemslib and pyca/cryptography: the optional extra `sign`. Keys are PEM files: the private one PKCS#8, the
# public one SubjectPublicKeyInfo. A private key is read, and never written or stated. ed25519 is deterministic (RFC
# 8032, section 5.1.6), so one state gives one envelope.
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_BYTES = 16 << 20
MOST_SIGNATURES = 64
_URL_SAFE = str.maketrans("-_", "+/")


class SignatureShape(DocumentModel):
    """A signature in base64. `keyid` is a hint that nothing rests on."""

    keyid: str = ""
    sig: Annotated[str, Field(min_length=1, max_length=1024)]


class EnvelopeShape(DocumentModel):
    """A DSSE envelope as JSON. Other keys are refused, which DSSE would let pass: nothing in a bundle is unjudged."""

    payload: str
    payload_type: Annotated[Literal["application/vnd.in-toto+json"], Field(alias="payloadType")]
    signatures: Annotated[list[SignatureShape], Field(min_length=1, max_length=MOST_SIGNATURES)]


def read_envelope(path: Path) -> tuple[bytes, list[bytes]]:
    """The payload of an envelope around an in-toto statement, and its signatures, none of them checked.

    Raises ValueError with what is wrong with it.
    """
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is no file, or larger than {MOST_BYTES >> 20} MiB")
        data = EnvelopeShape.model_validate_json(json.dumps(parse(path.read_text(encoding="utf-8"))))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    return _bytes(data.payload), [_bytes(row.sig) for row in data.signatures]


def _bytes(text: str) -> bytes:
    """Base64, standard or URL-safe. Raises ValueError."""
    return base64.b64decode(text.translate(_URL_SAFE), validate=True)


def payload(digest: str, texts: Mapping[str, str]) -> bytes:
    """What the envelope of a bundle must hold: the statement about its manifest.

    `digest`: sha256 of the manifest in hex. `texts`: of each contract's statement, by its id.
    """
    return dumped(of_manifest(digest, texts)).encode()


def envelope_problems(root: Path, digest: str, texts: Mapping[str, str]) -> Iterator[BundleProblem]:
    """What is wrong with what the envelope of a bundle holds; none at all is no problem here."""
    try:
        if (root / ENVELOPE).exists() and read_envelope(root / ENVELOPE)[0] != payload(digest, texts):
            yield BundleProblem("GP478", ENVELOPE, "it does not hold the statement that this bundle makes")
    except ValueError as error:
        yield BundleProblem("GP478", ENVELOPE, str(error))


def signed(root: Path, digest: str, keys: Sequence[PublicKey]) -> tuple[PublicKey | None, BundleProblem | None]:
    """Whose signature covers this manifest, or why none of `keys` does. `digest`: sha256 of the manifest in hex.

    A signature counts whatever key it names. Of the bundle nothing but the envelope is read, and its payload only after
    its signature was found valid.
    """
    if not (root / ENVELOPE).exists() and not (root / ENVELOPE).is_symlink():
        return None, BundleProblem("GP477", ENVELOPE, "it is missing: the bundle is not signed")
    try:
        content, signatures = read_envelope(root / ENVELOPE)
        if (key := next((k for k in keys for s in signatures if k.signed(s, content)), None)) is None:
            words = "none of its signatures is valid and of a key that was given"
            return None, BundleProblem("GP479", ENVELOPE, words)
        statement = parse(content.decode())
    except (ValueError, RecursionError) as error:
        return None, BundleProblem("GP478", ENVELOPE, str(error))
    subject = statement.get("subject") if isinstance(statement, dict) else None
    if subject != [{"name": MANIFEST, "digest": {"sha256": digest}}]:
        return None, BundleProblem("GP478", ENVELOPE, f"it is validly signed, and not about this {MANIFEST}")
    return key, None


PASSPHRASE = "GRADPROOF_SIGN_PASSPHRASE"
MOST_KEY_BYTES = 1 << 16


class PublicKey:
    """A key that signatures are checked with. `keyid`: sha256 in hex, of its canonical JSON by securesystemslib."""

    def __init__(self, path: Path, key: SSlibKey) -> None:
        self.path, self.keyid, self._key = path, key.keyid, key

    def signed(self, signature: bytes, payload: bytes) -> bool:
        """Whether `signature` is this key's, over an in-toto `payload` in DSSE's pre-authentication encoding."""
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import UnverifiedSignatureError
        from securesystemslib.signer import Signature

        try:
            made = Signature(self.keyid, signature.hex())
            self._key.verify_signature(made, Envelope(payload, PAYLOAD_TYPE, {}).pae())
        except UnverifiedSignatureError:
            return False
        return True


class Signer:
    """A private key. `digest`: sha256 in hex of its file, so that the file is reported where it must not be."""

    def __init__(self, key: Ed25519PrivateKey, digest: str) -> None:
        from securesystemslib.signer import CryptoSigner

        self._signer, self.digest = CryptoSigner(key), digest
        self.keyid = self._signer.public_key.keyid

    def envelope(self, payload: bytes) -> dict[str, Any]:
        """A DSSE envelope around an in-toto statement, as JSON values."""
        from securesystemslib.dsse import Envelope

        made = Envelope(payload, PAYLOAD_TYPE, {})
        made.sign(self._signer)
        found: dict[str, Any] = made.to_dict()
        return found


def private_key(path: Path) -> Signer:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data, secret = _key_of(path), os.environ.get(PASSPHRASE)
    try:
        key = load_pem_private_key(data, secret.encode() if secret and b"ENCRYPTED" in data else None)
    except TypeError:
        raise _no_key(path, f"it is encrypted, and {PASSPHRASE} is not set") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _no_key(path, f"it holds no private key in PEM, or {PASSPHRASE} is not its passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, f"it holds a key of another kind: {type(key).__name__.removesuffix('PrivateKey')}")
    return Signer(key, hashlib.sha256(data).hexdigest())


def public_key(path: Path, bundle: Path) -> PublicKey:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used or lies in the bundle."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if path.resolve().is_relative_to(bundle.resolve()):
        raise _no_key(path, "it lies in the bundle that it is to judge")
    try:
        key = load_pem_public_key(_key_of(path))
    except (ValueError, UnsupportedAlgorithm):
        raise _no_key(path, "it holds no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, f"it holds a key of another kind: {type(key).__name__.removesuffix('PublicKey')}")
    return PublicKey(path, SSlibKey.from_crypto(key))


def _key_of(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            data = f.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise _no_key(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_KEY_BYTES:
        raise _no_key(path, "it is too large for a key")
    return data


def _no_key(path: Path, found: str) -> GradproofError:
    help = "make one with openssl genpkey -algorithm ed25519, and its public half with openssl pkey -pubout"
    return GradproofError("GP475", found, "an ed25519 key in PEM", help, str(path))


def kept_apart(signer: Signer, files: Sequence[ManifestEntry]) -> None:
    """Raises GradproofError GP475 where a file of the bundle is the private key's."""
    if place := next((entry.path for entry in files if entry.sha256 == signer.digest), ""):
        help = "keep the key outside of the workspace"
        raise GradproofError("GP475", f"{place} of the bundle would be the private key", "no key in a bundle", help)
