"""The harness, the claim of the stub, and a harness that rests on it."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from gradproof.arith import exact as exactly
from gradproof.arith.formats import FORMATS
from gradproof.arith.symbolic import Site

from . import sound


def exact(k: Any, mean: Any) -> None:
    """The mean of 1 to 3 gradients, over the rationals."""
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))


def half_an_ulp(k: Any, stub: Any) -> None:
    """Ties between numbers of fp16 near 1 and 1024, which have the largest errors; and the stub promises something."""
    f = FORMATS["fp16"]
    one = Fraction(1)
    k.cover("reached")
    k.check(k.claim.id, not all(stub.contract(one, one + 4 * f.spacing(one), Site(f, one, one))), "a promise is made")
    ties = [base + odd * f.spacing(base) / 2 for base in (one, Fraction(1024)) for odd in (1, 3)]
    for tie in ties[: k.bound("values")]:
        promises = stub.contract(tie, f.round(tie), Site(f, tie, tie))
        k.check(k.claim.id, all(promises), f"fl({tie})")


def rounded(k: Any, mean: Any) -> None:
    """The mean of two fp16 gradients, rounded at every operation."""
    grads = k.floats("g", k.upto("micro_batches"), "fp16", -1, 1)
    k.cover("two micro-batches", len(grads) == 2)
    error = abs(exactly(mean(grads)) * len(grads) - sum(exactly(g) for g in grads))
    k.check("T-1", error <= Fraction(1, 1024))


def _stub(contract: Any) -> Any:
    return SimpleNamespace(contract=contract, enclose=sound.enclose)


NO_PROMISE = _stub(lambda z, r, site: [])
HALF_OF_IT = _stub(lambda z, r, site: [abs(r - z) <= site.half_ulp / 2])
UNSOUND = {"half_of_it": SimpleNamespace(obligation="", reference="half the true error", subject=HALF_OF_IT)}
