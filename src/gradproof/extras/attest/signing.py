"""ed25519 keys of DSSE envelopes, by securesystemslib and pyca/cryptography: the optional extra `sign`.

Keys are PEM files: the private one PKCS#8, the public one SubjectPublicKeyInfo. A private key is read, and never
written or stated. ed25519 is deterministic (RFC 8032, section 5.1.6), so one state gives one envelope.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.base import DocumentModel
from gradproof.evidence.store import parse
from gradproof.extras.attest.manifest import ENVELOPE, MANIFEST, BundleProblem, ManifestEntry, dumped, of_manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import SSlibKey


# -- The envelope of a bundle: DSSE 1.0, around an in-toto statement.
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


def read(path: Path) -> tuple[bytes, list[bytes]]:
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


def problems(root: Path, digest: str, texts: Mapping[str, str]) -> Iterator[BundleProblem]:
    """What is wrong with what the envelope of a bundle holds; none at all is no problem here."""
    try:
        if (root / ENVELOPE).exists() and read(root / ENVELOPE)[0] != payload(digest, texts):
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
        content, signatures = read(root / ENVELOPE)
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

    data, secret = _read(path), os.environ.get(PASSPHRASE)
    try:
        key = load_pem_private_key(data, secret.encode() if secret and b"ENCRYPTED" in data else None)
    except TypeError:
        raise _refused(path, f"it is encrypted, and {PASSPHRASE} is not set") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _refused(path, f"it holds no private key in PEM, or {PASSPHRASE} is not its passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _refused(path, f"it holds a key of another kind: {type(key).__name__.removesuffix('PrivateKey')}")
    return Signer(key, hashlib.sha256(data).hexdigest())


def public_key(path: Path, bundle: Path) -> PublicKey:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used or lies in the bundle."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    if path.resolve().is_relative_to(bundle.resolve()):
        raise _refused(path, "it lies in the bundle that it is to judge")
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        raise _refused(path, "it holds no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _refused(path, f"it holds a key of another kind: {type(key).__name__.removesuffix('PublicKey')}")
    return PublicKey(path, SSlibKey.from_crypto(key))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            data = f.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_KEY_BYTES:
        raise _refused(path, "it is too large for a key")
    return data


def _refused(path: Path, found: str) -> GradproofError:
    help = "make one with openssl genpkey -algorithm ed25519, and its public half with openssl pkey -pubout"
    return GradproofError("GP475", found, "an ed25519 key in PEM", help, str(path))


def kept_apart(signer: Signer, files: Sequence[ManifestEntry]) -> None:
    """Raises GradproofError GP475 where a file of the bundle is the private key's."""
    if place := next((entry.path for entry in files if entry.sha256 == signer.digest), ""):
        help = "keep the key outside of the workspace"
        raise GradproofError("GP475", f"{place} of the bundle would be the private key", "no key in a bundle", help)
