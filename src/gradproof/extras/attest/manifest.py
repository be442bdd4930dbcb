"""The manifest of a bundle and its signature: nothing missing, nothing more, no link, and every byte as it was.

A problem has a code of `gradproof explain`. Whatever is not an ordinary file or folder is one.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

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
Json = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
Shape = TypeVar("Shape", bound=DocumentModel)


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


REFUSALS: Mapping[str, tuple[str, str]] = {
    "GP440": ("a new or an empty folder", "name another folder"),
    "GP442": ("the wheel whose files the evidence rests on",
              "build the wheel of the sources that ran, or run the checks with that wheel installed"),
    "GP443": ("a bundle of evidence", "name a folder that gradproof attest wrote, whole"),
    "GP444": (BUNDLE, "judge it with the release of gradproof that wrote it"),
    "GP475": ("an ed25519 key in PEM",
              "make one with openssl genpkey -algorithm ed25519, and its public half with openssl pkey -pubout"),
}  # fmt: skip
"""Code -> what was expected, and the help, where a folder, a wheel, a manifest or a key is refused."""


def refused(code: str, place: Path, found: str) -> GradproofError:
    """The error that a folder, a wheel, a manifest or a key at `place` is refused with."""
    return GradproofError(code, found, *REFUSALS[code], str(place))


def shaped(kind: type[Shape], data: Any) -> Shape:
    """Plain data as a document. Raises ValueError with the first place that is wrong."""
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from error


# -- What a bundle says of the installation: distributions with the digests of their own file lists, and the wheel.
def ran_on() -> dict[str, Any]:
    """This machine's versions, and every installed distribution: version, and sha256 of its RECORD (null without)."""
    found = {}
    for one in importlib.metadata.distributions():
        name, record = one.metadata["Name"], one.read_text("RECORD")
        if name and normal(name) not in found:
            digest = sha256(record.encode()).hexdigest() if record else None
            found[normal(name)] = {"version": one.version, "record_sha256": digest}
    return {"environment": environment(), "distributions": dict(sorted(found.items()))}


def wheel_of(path: Path, files: Mapping[str, str]) -> Wheel:
    """The wheel, if it holds every file of the engine in `files`, as it ran. Raises GradproofError GP442."""
    inside = {key: f"gradproof/{key[3:]}" for key, digest in files.items() if key.partition(":")[0] == "gp" and digest}
    try:
        with zipfile.ZipFile(path) as held:
            members = set(held.namelist())
            ran = {key: sha256(held.read(name)).hexdigest() for key, name in inside.items() if name in members}
        wheel = Wheel(name=path.name, sha256=sha256_of(path), bytes=path.stat().st_size)
    except (OSError, zipfile.BadZipFile) as error:
        raise refused("GP442", path, f"it is no wheel that can be read: {error}") from error
    if other := [key for key in inside if ran.get(key) != files[key]]:
        raise refused("GP442", path, f"{len(other)} files that ran are not in it as they ran, {other[0]} first")
    return wheel


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
        return ManifestEntry(path=path, sha256=file_digest(f, "sha256").hexdigest(), bytes=f.tell())


def entries(root: Path) -> list[ManifestEntry]:
    """An entry for every file below `root` but the manifest and its envelope, sorted.

    Raises ValueError for what is no plain file.
    """
    found = dict(walk(root))
    if strange := next((name for name, kind in found.items() if kind != "file"), None):
        raise ValueError(f"{strange} is no plain file")
    return [entry_of(root, name) for name in sorted({*found} - {*_APART})]


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
        raise refused("GP443", root, f"there is no {MANIFEST}")
    try:
        data = parse(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refused("GP443", root, f"{MANIFEST} cannot be read: {error}") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if isinstance(version, str) and version != BUNDLE:
        raise refused("GP444", place, f"the schema {version!r}")
    try:
        return shaped(Manifest, data)
    except ValueError as error:
        raise refused("GP443", root, f"{MANIFEST}: {error}") from error


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
        elif name not in {*wanted, *_APART}:
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


# -- In-toto statements: v1, with a test-result predicate v0.1.
TYPE, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"


def statement_path(contract: str) -> str:
    """Where the in-toto statement of a contract lies."""
    return f"statements/{safe(contract)}.json"


def described(name: str, digest: str) -> Json:
    """A file as in-toto describes one. `digest`: sha256 in hex."""
    return {"name": name, "digest": {"sha256": digest}}


def stated(subject: Json, configuration: list[Json], met: bool, groups: Sequence[Sequence[str]]) -> Json:
    """An in-toto statement with a test-result predicate. `groups`: what passed, what is waived, and everything else.

    It is FAILED where it is not `met`, whatever the groups are.
    """
    passed, warned, failed = groups
    predicate = {"result": "FAILED" if failed or not met else "WARNED" if warned else "PASSED",
                 "configuration": configuration, "passedTests": passed, "warnedTests": warned,
                 "failedTests": failed}  # fmt: skip
    return {"_type": TYPE, "subject": [subject], "predicateType": PREDICATE, "predicate": predicate}


def of_manifest(digest: str, statements: Mapping[str, str]) -> Json:
    """The statement about a whole bundle, which its envelope holds. Its subject is the manifest, by `digest`.

    `statements`: the text of each contract's, by its id. The tests are the contracts.
    """
    texts = [described(statement_path(n), sha256(text.encode()).hexdigest()) for n, text in statements.items()]
    results = {name: json.loads(text)["predicate"]["result"] for name, text in statements.items()}
    groups = [[n for n, result in results.items() if result == word] for word in ("PASSED", "WARNED", "FAILED")]
    return stated(described(MANIFEST, digest), texts, any(groups), groups)


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
        data = shaped(EnvelopeShape, parse(path.read_text(encoding="utf-8")))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    texts = [text.translate(_URL_SAFE) for text in (data.payload, *(row.sig for row in data.signatures))]
    content, *signatures = [base64.b64decode(text, validate=True) for text in texts]
    return content, signatures


def envelope_problems(root: Path, texts: Mapping[str, str]) -> Iterator[BundleProblem]:
    """What is wrong with what the envelope of a bundle holds; none at all is no problem here.

    `texts`: of each contract's statement, by its id.
    """
    try:
        wanted = dumped(of_manifest(sha256_of(root / MANIFEST), texts)).encode()
        if (root / ENVELOPE).exists() and read_envelope(root / ENVELOPE)[0] != wanted:
            yield BundleProblem("GP478", ENVELOPE, "it does not hold the statement that this bundle makes")
    except ValueError as error:
        yield BundleProblem("GP478", ENVELOPE, str(error))


def signed(root: Path, keys: Sequence[PublicKey]) -> PublicKey | BundleProblem:
    """Whose signature covers the manifest of a bundle, or why none of `keys` does.

    A signature counts whatever key it names. Of the bundle nothing but manifest and envelope is read, and the payload
    only after its signature was found valid.
    """
    if not os.path.lexists(root / ENVELOPE):
        return BundleProblem("GP477", ENVELOPE, "it is missing: the bundle is not signed")
    digest = sha256_of(root / MANIFEST)
    try:
        content, signatures = read_envelope(root / ENVELOPE)
        key = next((k for k in keys for s in signatures if k.signed(s, content)), None)
        if key is None:
            return BundleProblem("GP479", ENVELOPE, "none of its signatures is valid and of a key that was given")
        statement = parse(content.decode())
    except (ValueError, RecursionError) as error:
        return BundleProblem("GP478", ENVELOPE, str(error))
    subject = statement.get("subject") if isinstance(statement, dict) else None
    if subject != [described(MANIFEST, digest)]:
        return BundleProblem("GP478", ENVELOPE, f"it is validly signed, and not about this {MANIFEST}")
    return key


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
        return dict(made.to_dict())


def private_key(path: Path) -> Signer:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    secret = os.environ.get(PASSPHRASE)
    no_key = f"it holds no private key in PEM, or {PASSPHRASE} is not its passphrase"

    def load(data: bytes) -> object:
        return load_pem_private_key(data, secret.encode() if secret and b"ENCRYPTED" in data else None)

    return Signer(*_ed25519(path, load, Ed25519PrivateKey, no_key))


def public_key(path: Path, bundle: Path) -> PublicKey:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used or lies in the bundle."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if path.resolve().is_relative_to(bundle.resolve()):
        raise refused("GP475", path, "it lies in the bundle that it is to judge")
    key, _ = _ed25519(path, load_pem_public_key, Ed25519PublicKey, "it holds no public key in PEM")
    return PublicKey(path, SSlibKey.from_crypto(key))


def _ed25519(path: Path, load: Callable[[bytes], object], kind: type[object], no_key: str) -> tuple[Any, str]:
    """What `load` makes of a PEM file, if it is such a key, and sha256 of the file. Raises GradproofError GP475."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        with path.open("rb") as f:
            data = f.read(MOST_KEY_BYTES + 1)
        if len(data) > MOST_KEY_BYTES:
            raise refused("GP475", path, "it is too large for a key")
        key = load(data)
    except OSError as error:
        raise refused("GP475", path, f"it cannot be read: {error.strerror}") from error
    except TypeError:
        raise refused("GP475", path, f"it is encrypted, and {PASSPHRASE} is not set") from None
    except (ValueError, UnsupportedAlgorithm):
        raise refused("GP475", path, no_key) from None
    if not isinstance(key, kind):
        other = type(key).__name__.removesuffix("PrivateKey").removesuffix("PublicKey")
        raise refused("GP475", path, f"it holds a key of another kind: {other}")
    return key, sha256(data).hexdigest()
