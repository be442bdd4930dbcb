"""The falsification tests FALSIFY-AW-001 to -006 of adamw-kernel-v1, on the AdamW that PyTorch runs.

u and tiny are the unit roundoff and the smallest subnormal of the format that weights and moments are stored in. A
bound here counts roundings of one step and leaves room; the sharp bounds of a step are in
`gradproof.extras.conformance.reductions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradproof.harness import Case, Observed, Place, Refutation, rounded_root as root
from models.adamw.torch_model import DecayInGradient, Settings
from symbolic.adamw.falsify_grid import (
    DTYPES,
    WIDTH,
    AdamWGrid,
    Snapshot,
    Start,
    format_of,
    last,
    normal,
    settings_of,
    walk,
)
from symbolic.adamw.rounding import Bounds, Scalars, bounds


def judge(clause: str, wrong: Tensor, words: str, **shown: Tensor) -> None:
    """Raise Refutation with the first element that is wrong."""
    found = torch.nonzero(wrong)
    if len(found):
        i = int(found[0])
        values = {"element": i, **{name: float(x[i]) for name, x in shown.items()}}
        stated = ", ".join(f"{name} {float(x[i]):.9g}" for name, x in shown.items())
        raise Refutation(clause, f"{words}: element {i}, {stated}", values)


def above(x: Tensor, bound: Tensor) -> Tensor:
    """Where x is above its bound; a number that is not finite is."""
    return ~(x <= bound)


def size(*xs: Tensor) -> Tensor:
    """The largest magnitude of each element."""
    return torch.stack([x.abs() for x in xs]).amax(0)


class Decoupled(AdamWGrid):
    """FALSIFY-AW-001: the decay takes rate decay theta from the weight and leaves both moments alone.

    Both runs make the last step from one weight and the same moments. Roundings of numbers up to the larger weight:
    the factor 1 - l d, the product with it, and the sum of each run: 4 u; the update is the same number in both.
    """

    clause = "AW-INV-001"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("the decay is larger than rounding", "Adam on g + decay theta gives another weight")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, f = Observed(), format_of(place)
        settings, weight = settings_of(case, place), normal(replace(case, magnitude=0), place, 0)
        grads = [normal(case, place, t + 1) for t in range(case.n)]
        runs = [list(walk(subject, s, weight, grads, place)) for s in (settings, replace(settings, decay=0.0))]
        for t, (one, two) in enumerate(zip(*runs, strict=True)):
            for name, a, b in (("m", one.first, two.first), ("v", one.second, two.second)):
                judge(self.clause, ~(a == b), f"step {t + 1}: {name} depends on the decay", with_decay=a, without=b)
        start = self.before(runs[0], case, weight)
        pair = [
            last(walk(subject, replace(settings, decay=d), weight, [weight.flip(0)], place, start))
            for d in (settings.decay, 0.0)
        ]
        taken, due = pair[1].weight - pair[0].weight, settings.rate * settings.decay * weight.double()
        room = 6 * float(f.u) * size(weight.double(), pair[0].weight, pair[1].weight) + 4 * float(f.tiny)
        judge(self.clause, above((taken - due).abs(), room), f"step {case.n}: what the decay takes", got=taken, due=due)
        seen.covers |= {"the decay is larger than rounding"} if bool((due.abs() > 2 * room).any()) else set()
        adam = last(walk(DecayInGradient(), settings, weight, grads, place))
        if bool((adam.weight != runs[0][-1].weight).any()):
            seen.covers.add("Adam on g + decay theta gives another weight")
        return seen

    def before(self, run: Sequence[Snapshot], case: Case, weight: Tensor) -> Start:
        """The state that n - 1 steps leave behind."""
        dtype = weight.dtype
        zero = torch.zeros_like(weight)
        held = run[-2] if len(run) > 1 else None
        moments = (zero, zero) if held is None else (held.first.to(dtype), held.second.to(dtype))
        return Start(case.n - 1, *moments)


class NonNegative(AdamWGrid):
    """FALSIFY-AW-002: v >= 0 after every step, at most the largest square, and no less than the last one's share.

    A step rounds v at most five times, relatively, so that t steps from zero grow it by no more than 1 + 8 t u.
    """

    clause = "AW-BND-001"

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        return (-13 if place.dtype == "fp16" else -80, -3, 4)

    def reaches(self, place: Place) -> Sequence[str]:
        return ("negative gradients", "squares that underflow")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, f, settings = Observed(), format_of(place), settings_of(case, place)
        grads = [normal(case, place, t + 1) for t in range(case.n)]
        largest = torch.zeros_like(grads[0], dtype=torch.float64)
        room, floor = 8 * float(f.u), 8 * float(f.tiny)
        for t, (at, g) in enumerate(zip(walk(subject, settings, grads[0], grads, place), grads, strict=True)):
            square = g.double() ** 2
            largest = torch.maximum(largest, square)
            v, share = at.second, (1 - settings.betas[1]) * square
            judge(self.clause, ~(v >= 0), f"step {t + 1}: v is negative", v=v, g=g)
            most = largest * (1 + (t + 1) * room) + (t + 1) * floor
            judge(self.clause, above(v, most), f"step {t + 1}: v above every square", v=v, square=largest)
            judge(self.clause, above(share * (1 - room) - floor, v), f"step {t + 1}: v misses the square", v=v, g=g)
            seen.covers |= {"negative gradients"} if bool((g < 0).any()) else set()
            seen.covers |= {"squares that underflow"} if bool(((g != 0) & (square < float(f.tiny))).any()) else set()
        return seen


class Corrected(AdamWGrid):
    """FALSIFY-AW-003: on a constant gradient every step moves the weight by rate g / (|g| + eps), whatever t is.

    The cell's number is t: the state is what t - 1 such steps leave behind, m = g (1 - b1^(t-1)) and v likewise. The
    factor 1 / (1 - b^t), in the doubles that torch computes it in, is above 1 until b^t is below their roundoff, and
    never below 1.
    """

    clause = "AW-INV-002"

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        return (0, 1, 2)

    def reaches(self, place: Place) -> Sequence[str]:
        return ("the update is larger than rounding",)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, f, settings = Observed(), format_of(place), settings_of(case, place, decay=0.0)
        for beta in settings.betas:
            power = beta**case.n
            factor = 1 / (1 - power)
            if not (factor > 1 or (factor == 1 and power <= 2.0**-54)):
                raise Refutation(self.clause, f"1 / (1 - {beta}^{case.n}) = {factor}", {"factor": factor})
        grad, weight = self.gradient(case, place), torch.zeros(WIDTH, dtype=DTYPES[place.dtype])
        before = [1 - b ** (case.n - 1) for b in settings.betas]
        moments = (grad.double() * before[0], grad.double() ** 2 * before[1])
        start = None if case.n == 1 else Start(case.n - 1, *(x.to(grad.dtype) for x in moments))
        moved = -last(walk(subject, settings, weight, [grad], place, start)).weight
        due = settings.rate * grad.double() / (grad.double().abs() + settings.eps)
        room = 32 * float(f.u) * due.abs() + 4 * float(f.tiny)
        judge(self.clause, above((moved - due).abs(), room), f"step {case.n}: the update", got=moved, due=due)
        seen.covers |= {"the update is larger than rounding"} if bool((due.abs() > 4 * room).all()) else set()
        return seen

    def gradient(self, case: Case, place: Place) -> Tensor:
        """Between 2 and 32 in magnitude, so that no square underflows in fp16."""
        drawn = normal(replace(case, magnitude=0), place, 1).double().clamp(-2, 2)
        return (torch.sign(drawn + 2.0**-20) * (drawn.abs() + 2) * 2.0**case.magnitude).to(DTYPES[place.dtype])


class Finite(AdamWGrid):
    """FALSIFY-AW-004: weights and moments stay finite for every gradient whose square is finite, zero included.

    The update is at most rate (1 - b1) / sqrt(1 - b2), or rate if that is more (Kingma and Ba 2015, 2.1), and where
    squares underflow at most rate |g| / eps for the |g| that do. Half of the largest square's root is the largest g.
    """

    clause = "AW-BND-002"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("a gradient next to the largest", "a subnormal gradient", "a zero gradient")

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, f, settings = Observed(), format_of(place), settings_of(case, place, decay=0.0)
        edges, before = self.edges(case, place), torch.zeros(WIDTH, dtype=torch.float64)
        one, two = settings.betas
        lost = math.sqrt(64 * float(f.tiny) / (1 - two))
        most = settings.rate * (2 * max(1.0, (1 - one) / math.sqrt(1 - two)) + 4 * lost / settings.eps)
        for t, at in enumerate(walk(subject, settings, torch.zeros_like(edges[0]), edges, place)):
            for name, x in (("theta", at.weight), ("m", at.first), ("v", at.second)):
                judge(self.clause, ~torch.isfinite(x), f"step {t + 1}: {name} is not finite", got=x, g=edges[t])
            room = most + 4 * float(f.u) * size(at.weight, before) + torch.zeros_like(before)
            judge(self.clause, above((at.weight - before).abs(), room), f"step {t + 1}: the update", got=at.weight)
            if t == 0:
                away = (at.weight.abs() < settings.rate / 2) | (at.weight.abs() > settings.rate * 2)
                wrong = away & (edges[0].double().abs() >= 1)
                judge(self.clause, wrong, "step 1: a large gradient moves the weight by rate", got=at.weight)
            before = at.weight
        seen.covers = set(self.reaches(place))
        return seen

    def edges(self, case: Case, place: Place) -> list[Tensor]:
        """Gradients from the edges of the format, in an order of the case's own."""
        f = format_of(place)
        high = 2.0 ** (math.floor(math.log2(float(f.largest))) // 2 - 1)
        values = [0.0, float(f.tiny), float(f.tiny) * 5, high, high / 2, 1.0, 2.0**-9, high * 0.75]
        pool = torch.tensor([s * x for x in values for s in (1, -1)], dtype=torch.float64)
        generator = torch.Generator().manual_seed(case.seed)
        made = []
        for _ in range(case.n):
            picked = pool[torch.randint(0, len(pool), (WIDTH,), generator=generator)]
            picked[:3] = torch.tensor([0.0, float(f.tiny), high])
            made.append(picked.to(DTYPES[place.dtype]))
        return made


class Vectorised(AdamWGrid):
    """FALSIFY-AW-005: one step in every form against the same step on each element alone, in ulps.

    The ulp is that of the larger of the weight before and after, for m of m before, its share of g and m after, for v
    of v. Both start from the same state, and second moments are normal numbers; every other case has an eps of 0.5.
    """

    clause = "AW-EQ-001"

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        return (2, 3, 4)

    def reaches(self, place: Place) -> Sequence[str]:
        return ("the forms differ",) if place.dtype == "fp32" and place.device == "cpu" else ()

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, settings = Observed(), settings_of(case, place)
        settings = replace(settings, eps=0.5) if case.seed % 2 else settings
        weight, grad, start = self.moment(case, place)
        whole = last(walk(subject, settings, weight, [grad], place, start))
        alone = replace(settings, form="single")
        parts = [self.alone(subject, alone, weight, grad, start, i, place) for i in range(len(weight))]
        scalar = Snapshot(*(torch.cat(xs) for xs in zip(*((p.weight, p.first, p.second) for p in parts), strict=True)))
        after = (start.first.double(), grad.double() * (1 - settings.betas[0]))
        rows = (
            ("theta", whole.weight, scalar.weight, size(weight.double(), whole.weight, scalar.weight)),
            ("m", whole.first, scalar.first, size(*after, whole.first, scalar.first)),
            ("v", whole.second, scalar.second, size(whole.second, scalar.second)),
        )
        limit = place.tolerances[self.clause]
        for name, a, b, scale in rows:
            off = (a - b).abs() / self.ulp(scale, place)
            bound = torch.full_like(off, limit)
            judge(self.clause, above(off, bound), f"step {case.n}: {name} in ulps", ulps=off, vector=a, scalar=b)
            seen.covers |= {"the forms differ"} if bool((off > 0).any()) else set()
        still = settings.rate > 0.1 and not bool((whole.weight != weight.double()).any())
        judge(self.clause, torch.tensor([still]), "every weight stays where it was", weight=weight.double())
        return seen

    def alone(self, subject: Any, s: Any, w: Tensor, g: Tensor, start: Start, i: int, place: Place) -> Snapshot:
        """The step on element i, in a tensor of its own."""
        at = slice(i, i + 1)
        own = Start(start.steps, start.first[at], start.second[at])
        return last(walk(subject, s, w[at], [g[at]], place, own))

    def moment(self, case: Case, place: Place) -> tuple[Tensor, Tensor, Start]:
        """Weights near 1, gradients of at least 4 in magnitude, and the state before step n."""
        g, m = (normal(case, place, salt).double() for salt in (1, 2))
        floor = 2.0**case.magnitude
        g = torch.where(g < 0, g - floor, g + floor)
        v = (normal(case, place, 3).double().abs() + floor) ** 2 / 4
        none = 0.0 if case.n == 1 else 1.0
        weight = normal(replace(case, magnitude=-1), place, 4).double()
        weight = torch.where(weight < 0, weight - 0.5, weight + 0.5)
        w, grad, first, second = (x.to(DTYPES[place.dtype]) for x in (weight, g, m * none, v * none))
        return w, grad, Start(case.n - 1, first, second)

    def ulp(self, x: Tensor, place: Place) -> Tensor:
        """The spacing of the format's numbers at x."""
        f = format_of(place)
        exponent = torch.floor(torch.log2(x.clamp_min(float(f.tiny) * 2.0 ** (f.p - 1))))
        return 2.0 ** (exponent - f.p + 1)


class ZeroGradient(AdamWGrid):
    """FALSIFY-AW-006: without a gradient from the first step on, only the decay moves the weight."""

    clause = "AW-INV-001"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("the decay is larger than rounding",)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, f, settings = Observed(), format_of(place), settings_of(case, place)
        weight = normal(replace(case, magnitude=0), place, 0)
        zeros = [torch.zeros_like(weight)] * case.n
        before = weight.double()
        for t, at in enumerate(walk(subject, settings, weight, zeros, place)):
            due = before * (1 - settings.rate * settings.decay)
            room = 4 * float(f.u) * before.abs() + 2 * float(f.tiny)
            judge(self.clause, above((at.weight - due).abs(), room), f"step {t + 1}: theta", got=at.weight, due=due)
            for name, x in (("m", at.first), ("v", at.second)):
                judge(self.clause, ~(x == 0), f"step {t + 1}: {name} of no gradient", got=x)
            if settings.rate * settings.decay > 16 * float(f.u):
                seen.covers.add("the decay is larger than rounding")
            before = at.weight
        return seen


decay_is_decoupled = Decoupled()
second_moment_is_not_negative = NonNegative()
moments_are_corrected = Corrected()
update_is_finite = Finite()
forms_agree = Vectorised()
zero_gradient_only_decays = ZeroGradient()


# -- FALSIFY-AW-007 of adamw-kernel-v1: torch's fp32 forms against the bound that KANI-AW-009 derives for one step.
#
# The step over the reals is exact arithmetic on the state in fp32 and on the scalars that torch computes in doubles:
# 1 - b1, b2, 1 - b2, 1 - rate decay, rate / (1 - b1^t), sqrt(1 - b2^t), eps. A root is cut, within 2^-100 of itself.

CUT = Fraction(1, 2**90)
"""What the cut root may change of an update, relatively."""


@cache
def scalars(settings: Settings, t: int) -> Scalars:
    """The scalars of step t, as torch computes them in doubles."""
    one, two = settings.betas
    first, second = 1 - one**t, 1 - two**t
    made = (1 - one, two, 1 - two, 1 - settings.rate * settings.decay, settings.rate / first, second**0.5, settings.eps)
    return Scalars(*map(Fraction, made))


def derived(state: tuple[Fraction, Fraction, Fraction, Fraction], given: Scalars) -> Bounds:
    """The step over the reals from (theta, g, m, v), v > 0 after it, each result with its bound."""
    _, g, _, v = state
    second = given.beta2 * v + given.weight2 * g * g
    made = bounds(state, given, root(second) / given.root + given.eps)
    weight, off = made.weight
    return replace(made, weight=(weight, off + CUT * (abs(weight) + abs(state[0]))))


def errors(state: Sequence[Tensor], after: Snapshot, given: Scalars) -> Iterator[tuple[str, int, float]]:
    """Name of a result, element, and its error over its bound; a result that is not finite is infinitely far."""
    results = (after.first.tolist(), after.second.tolist(), after.weight.tolist())
    for i, row in enumerate(zip(*(x.double().tolist() for x in state), strict=True)):
        p, g, m, v = map(Fraction, row)
        made = derived((p, g, m, v), given)
        for name, got, (want, off) in zip(
            ("m", "v", "theta"), (r[i] for r in results), (made.first, made.second, made.weight), strict=True
        ):
            finite = abs(got) < float("inf")
            yield name, i, float(abs(Fraction(got) - want) / off) if finite else float("inf")


class Derived(Vectorised):
    """FALSIFY-AW-007: m', v' and theta' of every form lie within the derived bounds, from every state drawn."""

    def magnitudes(self, place: Place) -> tuple[int, ...]:
        return (-16, 2, 16)

    def reaches(self, place: Place) -> Sequence[str]:
        return ("a rounding error of more than a quarter of its bound",)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        seen, settings = Observed(), settings_of(case, place)
        settings = replace(settings, eps=0.5) if case.seed % 2 else settings
        weight, grad, start = self.moment(case, place)
        after = last(walk(subject, settings, weight, [grad], place, start))
        most: dict[str, float] = {}
        state = (weight, grad, start.first, start.second)
        for name, i, ratio in errors(state, after, scalars(settings, case.n)):
            if not ratio <= 1:
                stated = f"step {case.n}: {name} of element {i} is {ratio:.4g} times its derived bound away"
                raise Refutation(self.clause, stated, {"element": i, "ratio": ratio})
            most[name] = max(ratio, most.get(name, 0.0))
        seen.rows = [row(case, place, ratio, f"adamw {case.form}: {name}") for name, ratio in most.items()]
        seen.covers |= {self.reaches(place)[0]} if max(most.values()) > 1 / 4 else set()
        return seen


def row(case: Case, place: Place, ratio: float, words: str) -> dict[str, Any]:
    """The largest error over its derived bound, as a measured row; the bound is of a step and not of a gradient."""
    return {
        "column": "end_to_end", "device": place.device, "dtype": place.dtype, "net": case.net, "n": case.n,
        "measured": ratio, "l2": None, "relative": None, "bound": None, "ratio": None, "tolerance": None,
        "note": f"{words}, error over its derived bound",
    }  # fmt: skip


within_derived_bound = Derived()
