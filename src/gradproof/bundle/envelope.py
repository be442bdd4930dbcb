"""Envelopes of a bundle: DSSE 1.0, each around an in-toto statement. What they hold; who signed is `signing`'s to say.

`MANIFEST.dsse.json` holds the statement whose subject is the manifest, which lists every other file. So one signature
covers the bundle. `envelopes/` holds the statement of each contract, byte for byte, for tools that take one alone; the
manifest lists these. What an envelope must hold is made anew from the bundle and compared, byte for byte.
Source: https://github.com/secure-systems-lab/dsse, envelope.md and protocol.md
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from gradproof.bundle.derived import dumped, statement_path
from gradproof.bundle.document import ENVELOPE, MANIFEST
from gradproof.bundle.listing import Problem
from gradproof.bundle.statement import of_manifest
from gradproof.documents import Shape
from gradproof.store import parse, safe

if TYPE_CHECKING:
    from gradproof.bundle.signing import PublicKey

FOLDER = "envelopes"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_BYTES = 16 << 20
MOST_SIGNATURES = 64
_URL_SAFE = str.maketrans("-_", "+/")


class SignatureShape(Shape):
    """A signature in base64. `keyid` is a hint that nothing rests on."""

    keyid: str = ""
    sig: Annotated[str, Field(min_length=1, max_length=1024)]


class EnvelopeShape(Shape):
    """A DSSE envelope as JSON. Other keys are refused, which DSSE would let pass: nothing in a bundle is unjudged."""

    payload: str
    payload_type: Annotated[str, Field(alias="payloadType")]
    signatures: Annotated[list[SignatureShape], Field(min_length=1, max_length=MOST_SIGNATURES)]


@dataclass(frozen=True)
class Envelope:
    """An envelope that was read: its payload, and its signatures, none of them checked."""

    payload: bytes
    signatures: tuple[bytes, ...]


def read(path: Path) -> Envelope:
    """An envelope around an in-toto statement. Raises ValueError with what is wrong with it."""
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
    if data.payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payloadType is {data.payload_type[:80]!r}, not {PAYLOAD_TYPE}")
    return Envelope(_bytes(data.payload), tuple(_bytes(row.sig) for row in data.signatures))


def _bytes(text: str) -> bytes:
    """Base64, standard or URL-safe. Raises ValueError."""
    return base64.b64decode(text.translate(_URL_SAFE), validate=True)


def envelope_path(contract: str) -> str:
    """Where the envelope of a contract's statement lies."""
    return f"{FOLDER}/{safe(contract)}.dsse.json"


def payloads(digest: str, texts: Mapping[str, str]) -> dict[str, bytes]:
    """What each envelope of a bundle must hold, by its place; the manifest's is the last.

    `digest`: sha256 of the manifest in hex. `texts`: of each contract's statement, by its id.
    """
    whole = of_manifest(digest, {name: (statement_path(name), text) for name, text in texts.items()})
    return {envelope_path(name): text.encode() for name, text in texts.items()} | {ENVELOPE: dumped(whole).encode()}


def problems(
    root: Path, listed: frozenset[str], digest: str, texts: Mapping[str, str], keys: Sequence[PublicKey]
) -> Iterator[Problem]:
    """What is wrong with the envelopes of a bundle, whose manifest lists `listed`; none at all are no problem here."""
    wanted = payloads(digest, texts)
    held = [name for name in wanted if name in listed]
    whole = (root / ENVELOPE).exists()
    if held and len(held) != len(texts):
        yield Problem("GP478", FOLDER, "it holds envelopes of some statements, and not of all")
    if held and not whole:
        yield Problem("GP477", ENVELOPE, f"it is missing, and the manifest lists {FOLDER}/")
    for name in [*held, *([ENVELOPE] if whole else [])]:
        yield from _holds(root, name, wanted[name], keys)


def _holds(root: Path, name: str, wanted: bytes, keys: Sequence[PublicKey]) -> Iterator[Problem]:
    try:
        found = read(root / name)
    except ValueError as error:
        yield Problem("GP478", name, str(error))
        return
    if found.payload != wanted:
        yield Problem("GP478", name, "it does not hold the statement that this bundle makes")
    if keys and signer_of(found, keys) is None:
        yield Problem("GP479", name, "none of its signatures is valid and of a key that was given")


def signer_of(envelope: Envelope, keys: Sequence[PublicKey]) -> PublicKey | None:
    """The first key of which a signature is valid over the payload, whatever key a signature names."""
    pairs = ((key, signature) for key in keys for signature in envelope.signatures)
    return next((key for key, signature in pairs if key.signed(signature, envelope.payload)), None)


def signed(root: Path, digest: str, keys: Sequence[PublicKey]) -> tuple[PublicKey | None, Problem | None]:
    """Whose signature covers this manifest, or why none of `keys` does. `digest`: sha256 of the manifest in hex.

    Of the bundle nothing but the envelope is read, and its payload only after its signature was found valid.
    """
    if not (root / ENVELOPE).exists() and not (root / ENVELOPE).is_symlink():
        return None, Problem("GP477", ENVELOPE, "it is missing: the bundle is not signed")
    try:
        found = read(root / ENVELOPE)
        if (key := signer_of(found, keys)) is None:
            words = "none of its signatures is valid and of a key that was given"
            return None, Problem("GP479", ENVELOPE, words)
        statement = parse(found.payload.decode())
    except (ValueError, RecursionError) as error:
        return None, Problem("GP478", ENVELOPE, str(error))
    subject = statement.get("subject") if isinstance(statement, dict) else None
    if subject != [{"name": MANIFEST, "digest": {"sha256": digest}}]:
        return None, Problem("GP478", ENVELOPE, f"it is validly signed, and not about this {MANIFEST}")
    return key, None
