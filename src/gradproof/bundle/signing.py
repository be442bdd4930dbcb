"""ed25519 keys of DSSE envelopes, by securesystemslib and pyca/cryptography: the optional extra `sign`.

Keys are PEM files: the private one PKCS#8, the public one SubjectPublicKeyInfo. A private key is read, and never
written or told. ed25519 is deterministic (RFC 8032, section 5.1.6), so one state gives one envelope.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradproof.bundle.envelope import PAYLOAD_TYPE
from gradproof.core import GradproofError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import SSlibKey

T = TypeVar("T")
PASSPHRASE = "GRADPROOF_SIGN_PASSPHRASE"
MOST_BYTES = 1 << 16


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
    """A private key. `digest`: sha256 in hex of its file, so that the file is told where it must not be."""

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
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used, GP476 without the extra."""
    _library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data, secret = _read(path), os.environ.get(PASSPHRASE)
    try:
        key = _opened(load_pem_private_key, data, secret.encode() if secret else None)
    except TypeError:
        raise _refused(path, f"it is encrypted, and {PASSPHRASE} is not set") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _refused(path, f"it holds no private key in PEM, or {PASSPHRASE} is not its passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _refused(path, f"it holds a key of another kind: {type(key).__name__.removesuffix('PrivateKey')}")
    return Signer(key, hashlib.sha256(data).hexdigest())


def _opened(load: Callable[[bytes, bytes | None], T], data: bytes, secret: bytes | None) -> T:
    """A key that is not encrypted, or is and opens. Raises TypeError where it is and there is no secret."""
    try:
        return load(data, None)
    except TypeError:
        return load(data, secret)


def public_key(path: Path, bundle: Path) -> PublicKey:
    """The key of a PEM file. Raises GradproofError: GP475 for one that cannot be used or lies in the bundle, GP476."""
    _library()
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


def _library() -> None:
    """Raises GradproofError GP476 where the extra is not installed."""
    try:
        for name in ("cryptography.hazmat.primitives.asymmetric.ed25519", "securesystemslib.dsse"):
            import_module(name)
    except ImportError as error:
        found = f"{error.name or 'securesystemslib'} cannot be imported"
        mend = "python -m pip install 'securesystemslib[crypto]>=1.2'"
        raise GradproofError("GP476", found, "the extra `sign`: securesystemslib with cryptography", mend) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            data = f.read(MOST_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise _refused(path, "it is too large for a key")
    return data


def _refused(path: Path, found: str) -> GradproofError:
    mend = "make one with openssl genpkey -algorithm ed25519, and its public half with openssl pkey -pubout"
    return GradproofError("GP475", found, "an ed25519 key in PEM", mend, str(path))


def kept_apart(signer: Signer, digests: Mapping[str, str]) -> None:
    """Raises GradproofError GP475 where a file of the bundle is the private key's. `digests`: sha256 by place."""
    place = next((name for name, digest in digests.items() if digest == signer.digest), None)
    if place is not None:
        mend = "keep the key outside of the workspace"
        raise GradproofError("GP475", f"{place} of the bundle would be the private key", "no key in a bundle", mend)
