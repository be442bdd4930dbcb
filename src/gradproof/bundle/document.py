"""The manifest of a bundle, format `gradproof-bundle/1`: `MANIFEST.json`, which names every other file and its digest,
but for the one that signs it.

Its JSON Schema, `reports/bundle.schema.json`, is made of the classes here. The paths are judged in `listing`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradproof.documents import Shape

BUNDLE = "gradproof-bundle/1"
MANIFEST = "MANIFEST.json"
ENVELOPE = "MANIFEST.dsse.json"
"""The signature over the manifest: beside the manifest the one file that no manifest lists."""
SAYS = "The evidence in this folder supports the verdicts in reports/, as far as each check reaches."
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(min_length=1)]


class Entry(Shape):
    """A file: its place in the bundle with forward slashes, sha256 in hex, size in bytes."""

    path: Text
    sha256: Digest
    bytes: Annotated[int, Field(ge=0)]


class Wheel(Shape):
    """The wheel that was named: each file of the engine that a verdict depends on is in it, byte for byte."""

    name: Text
    sha256: Digest
    bytes: Annotated[int, Field(ge=1)]


class LeftOut(Shape):
    """A planned check of which the bundle carries no evidence."""

    check: Text
    reason: Text


class Manifest(Shape):
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
    sources: Digest
    wheel: Wheel | None
    left_out: list[LeftOut]
    files: list[Entry]
