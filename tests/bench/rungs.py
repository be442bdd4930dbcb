"""Rows of our own: certificates built and checked at large N, against Gappa at N = 512, and the lemmas from nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import claims, gappa
from tests.bench.measure import HOLDS, NOT_RUN, Said, timed
from tests.bench.sides import CHAIN, judged

BUILT = (512, 4096, 65536)
AGAINST = 512
GAPPA_LIMIT = 300.0
BUILT_LIMIT = 300.0
LEMMAS_LIMIT = 900.0


def built(sizes: Sequence[int] = BUILT) -> dict[int, Said]:
    """The certificate of the chain at each N, built and checked; the bound is at least the closed form u (N^2-1)/3N."""
    least = {n: claims.U * (n * n - 1) / (3 * n) for n in sizes}
    return {n: judged(timed(claims.chain, (n,), BUILT_LIMIT, CHAIN), least[n]) for n in sizes}


def against_gappa(ours: Said, theirs: Said) -> dict[str, Any]:
    """Times faster at N = 512, and against which seconds: measured in this run, or stored where Gappa gave no bound."""
    measured = theirs.word == HOLDS
    seconds = theirs.seconds if measured else gappa.STORED_SECONDS
    faster = seconds / ours.seconds if ours.word == HOLDS and ours.seconds > 0 else None
    source = "measured in this run" if measured else f"{gappa.STORED_FROM}; here {theirs.word}"
    return {"n": AGAINST, "gappa_seconds": seconds, "gappa_from": source, "times_faster": faster}


def gappa_at(n: int = AGAINST, limit: float = GAPPA_LIMIT) -> Said:
    """Gappa at one N with time to end; NOT_RUN where it is not installed."""
    if not gappa.installed():
        return Said(NOT_RUN, reason="no gappa on PATH")
    return judged(timed(gappa.ask, (n, "divide"), limit), claims.U * (n * n - 1) / (3 * n))


def _rebuilt() -> Said:
    from gradproof.rounding.lemma_store import PROVED, rebuild, statuses

    with tempfile.TemporaryDirectory() as folder:
        rebuild(folder=Path(folder))
        found = statuses(Path(folder))
    left = [name for name, verdict in found.items() if verdict != PROVED]
    return Said("OPEN" if left else "PROVED", reason=", ".join(left) or f"{len(found)} lemmas")


def lemmas(asked: bool) -> Said:
    """Every step contract from nothing, into a temporary folder: minutes. NOT_RUN unless it is asked for."""
    if not asked:
        return Said(NOT_RUN, reason="asked for with --lemmas")
    return timed(_rebuilt, (), LEMMAS_LIMIT, ("gradproof.rounding.lemma_store",))
