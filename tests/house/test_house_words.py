"""The words that we use, and what we say of a verdict: evidence supports it.

A certificate is a thing of rounding proofs; no verdict is one. For common things we use the words of the field.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house_rules import REPOSITORY

FOLDERS = ("src", "docs", "proofs", "reports", "models", "symbolic")
ENDINGS = (".py", ".md", ".yaml", ".json", ".j2", ".css")
ALLOWED = re.compile(r"\bcertificates?\b|\bcertified (?:bound|error)s?\b", re.IGNORECASE)
FORBIDDEN = re.compile(r"\b\w*certif(?:y|ie|ica)\w*", re.IGNORECASE)


def said_in(path: Path) -> str:
    """The text of a document; of a module its texts, for what a function is called is said to nobody."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    values = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
    return "\n".join(v for v in values if isinstance(v, str))


def claims(text: str) -> Iterator[str]:
    """Words that would call a verdict more than supported."""
    return (m[0] for m in FORBIDDEN.finditer(ALLOWED.sub("", text)))


def ours() -> list[Path]:
    """The README, the changelog, and every text of the product and its documents."""
    found = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "action.yml")]
    for folder in FOLDERS:
        found += [p for p in (REPOSITORY / folder).rglob("*") if p.suffix in ENDINGS and "__pycache__" not in p.parts]
    return sorted(found)


def test_nothing_of_ours_says_more_of_a_verdict_than_that_evidence_supports_it() -> None:
    said = {f"{p.relative_to(REPOSITORY)}: {word}" for p in ours() for word in claims(said_in(p))}
    assert len(ours()) > 100
    assert said == set()


@pytest.mark.parametrize(
    "text", ["gradproof certifies it", "a certified loop", "Certification of a step", "uncertified", "we certify"]
)
def test_a_word_too_many_is_seen(text: str) -> None:
    assert list(claims(text)) != []


def test_a_word_too_many_is_seen_in_a_text_of_a_module(tmp_path: Path) -> None:
    place = tmp_path / "a.py"
    place.write_text('def certify() -> str:\n    return "this release is certified"\n', encoding="utf-8")
    assert list(claims(said_in(place))) == ["certified"]


def test_certificates_of_rounding_are_no_verdict() -> None:
    assert list(claims("the certificate of an order, two certificates, the certified bound")) == []


PRIVATE = {
    "told": "reported, shown, stated",
    "retold": "replayed",
    "telling": "reporting",
    "mend": "help",
    "mends": "fixes",
    "at hand": "stored",
    "offence": "violation",
    "offences": "violations",
    "trouble": "precondition",
    "excused": "waived",
    "standing": "status",
    "disown": "drop_equivalent",
    "blame": "diagnosis, at fault",
    "backing": "justification",
    "founded": "requirements",
    "at_hand": "stored",
    "touched": "affected",
    "ratchet": "baseline comparison",
}
"""Words of our own, and what stands in their place."""
PRIVATE_WORD = re.compile(rf"(?<![\w-])_?({'|'.join(PRIVATE)})(?![\w-])", re.IGNORECASE)
OWN_FOLDERS = ("src", "docs", "models", "symbolic")


def private(text: str) -> list[str]:
    """Our own words for what has a common one."""
    return [m[1].lower() for m in PRIVATE_WORD.finditer(text)]


def test_code_messages_and_docs_use_the_words_of_the_field() -> None:
    texts = [p for folder in OWN_FOLDERS for p in (REPOSITORY / folder).rglob("*") if p.suffix in (*ENDINGS, ".txt")]
    found = {
        f"{p.relative_to(REPOSITORY)}: {word!r}; we say {PRIVATE[word]}"
        for p in [REPOSITORY / "README.md", *texts]
        for word in private(p.read_text(encoding="utf-8"))
        if p != REPOSITORY / "models/sampling/transformer.py"  # the training text has words of its own
    }
    assert len(texts) > 300
    assert sorted(found) == []


@pytest.mark.parametrize("text", ["it is told", "def _told():", "mend: do it", "the evidence AT HAND", "an offence"])
def test_a_private_word_is_seen(text: str) -> None:
    assert private(text) != []


def test_a_word_that_contains_a_private_one_is_not() -> None:
    assert private("recommend, outstanding, withstanding, a recommended step, understanding") == []
