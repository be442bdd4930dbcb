"""From one element to the norm over d elements: KANI-GA-030 of the contract.

Each element of a gradient has a buffer of its own, so element i errs by E_i with |E_i| <= B (what one element may lose:
KANI-GA-020 to -024) and |E_i| <= c m_i, m_i = mean |g| of that element (KANI-GA-029). Then, for every d,

    max |E_i| <= B,   ||E||_2 <= sqrt(d) B,   ||E||_2 <= c ||m||_2,

and where every |E_i| = B the norm is sqrt(d) B, so that the second cannot be smaller. The base takes the gradient of
as many elements as the bound `elements` says from the subject, and their norms from the definition. The step adds an
element to norms of any d others, and asks the subject nothing: that each element has its own buffer is shown up to the
bound, and what follows from it for every d.
Source: Higham, Accuracy and Stability (2nd ed.), section 6.2.
"""

from __future__ import annotations

from typing import Any

from gradproof.harness import sqrt

CLAUSE = "GA-EQ-001"


def norm(k: Any, layout: Any) -> None:
    """As many elements of a gradient as the bound says, and one more beside any number of others."""
    # every input is drawn before the first check, for the replays
    first, later = Gradient(k, k.bound("elements")), OneMore(k)
    k.inductive(lambda: first.judge(k, layout), lambda: later.judge(k))


def lemma(k: Any, condition: Any, words: str) -> None:
    """A claim that later ones may use."""
    k.check(CLAUSE, condition, words)
    k.assume(condition)


def at_most(k: Any, one: Any, two: Any) -> Any:
    """Whether one <= two; a root that a replay has to cut may be a last place above."""
    return (one <= two) | k.same(one, two)


def euclidean(parts: Any) -> Any:
    """The norm, by its definition."""
    return sqrt(sum(x * x for x in parts))


class Gradient:
    """The base: what buffers hold, each within the bounds of its element, and what the subject makes of them."""

    def __init__(self, k: Any, count: int) -> None:
        self.b, self.c = k.real("B"), k.real("c")
        self.exact, self.held, self.means = (k.reals(name, count) for name in ("exact mean", "accumulated", "mean |g|"))
        k.assume((self.b > 0) & (self.c > 0))
        for x, got, m in zip(self.exact, self.held, self.means, strict=True):
            k.assume((x <= m) & (-x <= m))
            for bound in (self.b, self.c * m):
                k.assume((got - x <= bound) & (x - got <= bound))

    def judge(self, k: Any, layout: Any) -> None:
        """Each element, then the three norms of all of them."""
        got = layout.gradient(self.held)
        k.check(CLAUSE, len(got) == len(self.held), "as many elements as buffers")
        errors = [a - x for a, x in zip(got, self.exact, strict=True)]
        k.cover("an element with an error", errors[0] > 0)
        for i, (e, m) in enumerate(zip(errors, self.means, strict=True)):
            lemma(k, (e <= self.b) & (-e <= self.b), f"the error of element {i}")
            lemma(k, (e <= self.c * m) & (-e <= self.c * m), f"the error of element {i}, relative to its mean")
            lemma(k, e * e <= self.b * self.b, f"its square, element {i}")
            lemma(k, e * e <= self.c * self.c * m * m, f"its square, relative, element {i}")
        k.check(CLAUSE, at_most(k, euclidean(errors), sqrt(self.b * 0 + len(self.held)) * self.b), "at most sqrt(d) B")
        k.check(
            CLAUSE, at_most(k, euclidean(errors), self.c * euclidean(self.means)), "at most c times the means' norm"
        )


class OneMore:
    """The step: norms of d elements as the theorem has them, and those of d + 1."""

    def __init__(self, k: Any) -> None:
        names = ("d", "B later", "c later", "||E||", "||m||", "one more", "its mean |g|")
        self.d, self.b, self.c, self.norm, self.means, self.e, self.m = (k.real(name) for name in names)
        k.assume((self.d >= 0) & (self.b >= 0) & (self.c >= 0) & (self.norm >= 0) & (self.means >= 0))
        for bound in (self.b, self.c * self.m):
            k.assume((self.e <= bound) & (-self.e <= bound))
        k.assume((self.m >= 0) & (self.norm <= self.c * self.means))

    def judge(self, k: Any) -> None:
        """Both bounds of the norm, and the case in which the first is attained."""
        k.cover("a gradient of many elements", (self.d >= 64) & (self.norm > 0))
        root = sqrt(self.d)
        after, more = sqrt(self.norm * self.norm + self.e * self.e), sqrt(self.d + 1)
        means = sqrt(self.means * self.means + self.m * self.m)
        k.check(CLAUSE, at_most(k, after, self.c * means), "at most c times the means' norm, with one more")
        k.assume(self.norm <= root * self.b)
        k.check(CLAUSE, at_most(k, after, more * self.b), "at most sqrt(d + 1) B")
        attained = k.same(after, more * self.b)
        k.check(
            CLAUSE,
            attained | (self.norm < root * self.b) | (abs(self.e) < self.b),
            "sqrt(d + 1) B where every error is B",
        )
