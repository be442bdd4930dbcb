"""KANI-GA-026: what every rounded operation promises, each promise behind the evidence of the lemma that states it."""

from __future__ import annotations

from typing import Any


def kept(k: Any, promises: Any) -> None:
    """Each named step contract is kept on every step that is tried, is proved, and promises something."""
    names = k.lemmas()
    name = k.choose("lemma", names)
    promise = promises.of(name)
    k.cover("the last of the named contracts", name == names[-1])
    k.check("GA-EQ-001", k.refuses(name, promise), f"{name}: a wrong result is excluded")
    k.check("GA-EQ-001", k.keeps(name, promise, k.bound("steps")), f"{name}: {promise.words}")
