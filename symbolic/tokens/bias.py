"""The worst-case bias of the fixed constant, GA-TOK-002: for every K, and attained.

The theory is in `models.tokens.bias`. In the induction counts are reals, which is more than integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from models.tokens.window import FixedConstant, TokenBatch, TokenWindow

CLAUSE = "GA-TOK-002"
SEEN = ("K below", "K above", "N below", "N above", "error")


@dataclass(frozen=True)
class Scene:
    """A window of K micro-batches and S tokens in all, of which some have been seen; least count and s = sqrt r."""

    k: Any
    total: Any
    least: Any
    s: Any
    seen: dict[str, Any]

    @classmethod
    def drawn(cls, kit: Any, part: str) -> Scene:
        """Any such window."""
        k, total, least, s = (kit.real(f"{name}, {part}") for name in ("K", "S", "least", "sqrt r"))
        return cls(k, total, least, s, {name: kit.real(f"{name}, {part}") for name in SEEN})

    def sensible(self) -> Any:
        """At least one micro-batch, a positive least count, r >= 1 and nothing negative."""
        parts = (self.seen[name] for name in SEEN if name != "error")
        holds = (self.k >= 1) & (self.total > 0) & (self.least > 0) & (self.s >= 1)
        for part in parts:
            holds = holds & (part >= 0)
        return holds

    def invariant(self) -> dict[str, Any]:
        """What holds of those seen so far, the ones with at most the mean count apart from the ones above it."""
        below, above, few, many, error = (self.seen[name] for name in SEEN)
        room = self.total * below - self.k * few + self.k * many - self.total * above
        return {
            "the short ones have at least the least count each": few >= below * self.least,
            "the long ones have at most r times that": many <= above * self.least * self.s * self.s,
            "the error is at most the sum of the shares' differences, above": error * self.k * self.total <= room,
            "the error is at most the sum of the shares' differences, below": -error * self.k * self.total <= room,
        }

    def assume(self, kit: Any) -> None:
        """Take it to be sensible and within the invariant."""
        kit.assume(self.sensible())
        for holds in self.invariant().values():
            kit.assume(holds)


def any_window(kit: Any, bias: Any) -> None:
    """Both bounds on |error| for every K, every count and all |g_m| <= 1, by induction on m."""
    last, first = Scene.drawn(kit, "at last"), Scene.drawn(kit, "so far")
    tokens, mean = kit.real("N"), kit.real("g")
    kit.inductive(lambda: _base(kit, bias, last), lambda: _step(kit, bias, first, tokens, mean))


def _base(kit: Any, bias: Any, last: Scene) -> None:
    """No micro-batch; and the bounds, once all K are seen and their counts are S."""
    kit.assume(last.sensible())
    for words, holds in replace(last, seen=dict.fromkeys(SEEN, 0 * last.k)).invariant().items():
        kit.check(CLAUSE, holds, f"no micro-batch: {words}")
    last.assume(kit)
    seen = last.seen
    kit.assume((seen["K below"] + seen["K above"] == last.k) & (seen["N below"] + seen["N above"] == last.total))
    kit.cover("a window with an error", seen["error"] > 0)
    for side, error in (("above", seen["error"]), ("below", -seen["error"])):
        sharp = bias.with_above(seen["K above"], last.k, last.s * last.s)
        kit.check(CLAUSE, error <= sharp, f"the bound with j of K micro-batches above the mean, {side}")
        kit.check(CLAUSE, error <= bias.at_most(last.s), f"the bound for every K, {side}")


def _step(kit: Any, bias: Any, first: Scene, tokens: Any, mean: Any) -> None:
    """One more micro-batch, of any count in range and any mean gradient."""
    first.assume(kit)
    kit.assume((mean >= -1) & (mean <= 1))
    kit.assume((tokens >= first.least) & (tokens <= first.least * first.s * first.s))
    kit.cover("a long micro-batch", first.k * tokens > first.total)
    side = "above" if first.k * tokens > first.total else "below"
    seen = dict(first.seen)
    seen[f"K {side}"] = seen[f"K {side}"] + 1
    seen[f"N {side}"] = seen[f"N {side}"] + tokens
    seen["error"] = seen["error"] + bias.error(tokens, mean, first.k, first.total)
    for words, holds in replace(first, seen=seen).invariant().items():
        kit.check(CLAUSE, holds, words)


def example(short: int, long: int, ratio: int, tokens: int) -> list[TokenBatch]:
    """`short` micro-batches of `tokens` tokens with gradient 1, `long` of `ratio` times as many with gradient -1."""
    few, many = Fraction(tokens), Fraction(tokens * ratio)
    return [TokenBatch((few,), tokens, 0)] * short + [TokenBatch((-many,), tokens * ratio, 0)] * long


def bias_of(batches: list[TokenBatch]) -> Any:
    """The applied gradient under the fixed constant less the right one, by both models."""
    zero = (Fraction(0),)
    fixed, right = (loop.run(zero, batches, 1).gradient[0] for loop in (FixedConstant(), TokenWindow()))
    return fixed - right


def _is_the_difference(kit: Any, bias: Any) -> None:
    """For any counts and gradients: fixed constant less right normaliser is the sum of the micro-batches' errors."""
    counts = [kit.int(f"N[{m}]", 1) for m in range(kit.upto("micro_batches"))]
    batches = [TokenBatch((kit.real(f"S[{m}]"),), n, 0) for m, n in enumerate(counts)]
    kit.cover("unequal counts", counts[0] > counts[-1])
    total = sum(counts)
    errors = sum(bias.error(b.valid, b.total[0] / b.valid, len(batches), total) for b in batches)
    kit.check(CLAUSE, kit.same(bias_of(batches), errors), f"K={len(batches)}: the error of the fixed constant")


def attained(kit: Any, bias: Any) -> None:
    """The error is the difference of the two models, and both bounds on it are equalities on examples.

    The examples: for every K at each integer sqrt r, and with j of K long at r = s^2.
    """
    if kit.choose("part", ["the error", "examples"]) == "the error":
        _is_the_difference(kit, bias)
        return
    s, tokens = kit.upto("sqrt_ratio"), kit.upto("tokens")
    kit.cover("a biased window", s > 1)
    best = bias_of(example(s, 1, s * s, tokens))
    kit.check(CLAUSE, kit.same(best, bias.at_most(Fraction(s))), f"s={s}, K={s + 1}: any K")
    for count in range(2, kit.bound("micro_batches") + 1):
        for long in range(1, count):
            found = bias_of(example(count - long, long, s * s, tokens))
            bound = bias.with_above(long, count, Fraction(s * s))
            kit.check(CLAUSE, kit.same(found, bound), f"s={s}, K={count}, {long} long")
