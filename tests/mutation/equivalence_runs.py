"""What is run to tell a mutant from its original: for each file, runs with free inputs, and their bounds in words.

A run takes a kit, makes the inputs and returns what is observed of a module that it is given. The configurations are
crossed: windows, tails, loss scales, clips, skips, weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import product
from types import ModuleType
from typing import Any, ClassVar

from gradproof.arith.soft import Ratio

Run = tuple[str, Callable[[Any], Callable[[ModuleType], Any]], str]


def _vector(k: Any, name: str, count: int) -> tuple[Any, ...]:
    return tuple(k.real(f"{name}[{i}]") for i in range(count))


def _positive(k: Any, name: str) -> Any:
    x = k.real(name, 0)
    k.assume(x > 0)
    return x


def _beta(k: Any, name: str) -> Any:
    """A number of [0, 1)."""
    x = k.real(name, 0, 1)
    k.assume(x < 1)
    return x


# -- Operations as texts


class Answers:
    """What comparisons of texts answer: each is a choice, but for what others have decided."""

    def __init__(self, k: Any) -> None:
        self.k, self.known = k, dict[tuple[str, str], bool]()

    def le(self, one: str, two: str) -> bool:
        """Whether one <= two. Of two numbers one is at most the other."""
        if (one, two) not in self.known:
            forced = one == two or self.known.get((two, one)) is False
            self.known[one, two] = forced or self.k.choose(f"{one} <= {two}", (False, True))
        return self.known[one, two]

    def equal(self, one: str, two: str) -> bool:
        """Whether both comparisons of them were answered with yes."""
        return self.known.get((one, two), False) and self.known.get((two, one), False)


class Op(Ratio):
    """An operation as text, for what must be the same in every rounding: sums and products commute, nothing else.

    Of numbers above 0 that were found equal the quotient is 1, and a factor 1 changes nothing.
    """

    answers: ClassVar[Answers] = Answers(None)

    def __init__(self, text: str) -> None:
        self.text = text

    def round_to(self, fmt: str) -> Op:
        """The number in a format."""
        return Op(f"{fmt}({self.text})")

    def _with(self, sign: str, other: Any, swap: bool = False) -> Op:
        one, two = (str(other), self.text) if swap else (self.text, str(other))
        if sign in "+*":
            one, two = sorted((one, two))
        if sign == "*" and "1" in (one, two):
            return Op(two if one == "1" else one)
        if sign == "/" and self.answers.equal(one, two):
            return Op("1")
        return Op(f"({one} {sign} {two})")

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __add__(self, other: Any) -> Op:
        return self._with("+", other)

    def __sub__(self, other: Any) -> Op:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Op:
        return self._with("-", other, swap=True)

    def __mul__(self, other: Any) -> Op:
        return self._with("*", other)

    def __truediv__(self, other: Any) -> Op:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Op:
        return self._with("/", other, swap=True)

    __radd__, __rmul__ = __add__, __mul__

    def __le__(self, other: Any) -> bool:
        return self.answers.le(self.text, str(other))

    def __ge__(self, other: Any) -> bool:
        return self.answers.le(str(other), self.text)

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __eq__(self, other: object) -> bool:
        return self <= other and self >= other

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = None  # type: ignore[assignment]

    def sqrt(self) -> Op:
        """The root."""
        return Op(f"sqrt({self.text})")


# -- The accumulation loop


def loop(subject: str) -> Callable[[Any], Callable[[ModuleType], Any]]:
    """A run of the loop: everything that the record keeps, as texts of operations."""

    def run(k: Any) -> Callable[[ModuleType], Any]:
        Op.answers = Answers(k)
        n = k.choose("n", (1, 2, 3))
        total = k.choose("micro-batches", sorted({1, n, 2 * n + 1, 5 * n - n // 2}))
        formats = k.choose("formats", (("fp32", None), ("bf16", "fp16")))
        given = {
            "n": n,
            "max_norm": k.choose("clip", (None, Op("max_norm"))),
            "loss_scale": k.choose("scale", (None, Op("scale"))),
            "buffer_format": formats[0],
            "gradient_format": formats[1],
            "learning_rate": Op("rate"),
            "skip": frozenset(k.choose("skip", ((), (0,), (0, 2), (1, 2, 4)))),
        }

        def vector(name: str) -> tuple[Op, ...]:
            return Op(f"{name}0"), Op(f"{name}1")

        rows = [(Op(f"loss{i}"), vector(f"g{i}_"), Op(f"count{i}")) for i in range(total)]

        def observe(module: ModuleType) -> Any:
            batches = [module.MicroBatch(*(row if subject != "Accumulation" else row[:2])) for row in rows]
            one = getattr(module, subject)()
            for earlier in (given | {"max_norm": None, "skip": frozenset({0})}, {"n": 2}):  # an instance runs again
                one.run(vector("q"), batches, module.Config(**earlier), vector("older"))
            record = one.run(vector("p"), batches, module.Config(**given), vector("stale"))
            return [str(getattr(record, field.name)) for field in fields(record)]

        return observe

    return run


def defaults_of_the_loop(k: Any) -> Callable[[ModuleType], Any]:
    """The defaults of a configuration, of a micro-batch and of a record."""
    value = k.real("x")

    def observe(module: ModuleType) -> Any:
        return [module.Config(n=2), module.MicroBatch(value, (value,)), module.Record((value,), (value,))]

    return observe


# -- The window table and the loops around it


def transitions(k: Any) -> Callable[[ModuleType], Any]:
    """Every state with every event, last or not, scaled or not."""

    def observe(module: ModuleType) -> Any:
        bits = (False, True)
        found = {
            (str(s), str(e), last, scaled): module.advance(s, e, last=last, scaled=scaled)
            for s, e, last, scaled in product(module.State, module.Event, bits, bits)
        }
        plain = {(str(s), str(e)): module.advance(s, e) for s, e in product(module.State, module.Event)}
        full = {(str(s), str(e)): module.advance(s, e, True) for s, e in product(module.State, module.Event)}
        names = [*module.State, *module.Event]
        return {"given": found, "defaults": plain, "last": full, "names": names, "extra": module.EXTRA}

    return observe


def traces(k: Any) -> Callable[[ModuleType], Any]:
    """Every trace of up to 4 events, and sizes of windows."""

    def observe(module: ModuleType) -> Any:
        found = {}
        for length in range(5):
            for events in product(module.Event, repeat=length):
                for sizes in ((1,), (2, 1)):
                    steps = module.replay(iter(events), iter(sizes))
                    last = steps[-1] if steps else None
                    found[" ".join(map(str, events)), sizes] = (len(steps), last)
        scaled = module.replay(list(module.Event)[1:4], [1], scaled=True)
        sizes = {f"{b} at {n}": module.window_sizes(b, n) for b in range(13) for n in range(1, 6)}
        return {"traces": found, "scaled": scaled, "sizes": sizes}

    return observe


def loops(k: Any) -> Callable[[ModuleType], Any]:
    """Each event in each state and memory that a loop reaches: what it refuses, where it leads, what is remembered."""

    def observe(module: ModuleType) -> Any:
        found = {}
        for name, scaled in product(("TABLE", "SYNCHRONISING", "SCHEDULING", "AFTER_EVERY_ATTEMPT"), (False, True)):
            found[name, scaled] = list(_moves(module, getattr(module, name), scaled))
            found[f"{name} tail"] = getattr(module, name).tail_completes
        return found

    return observe


def _moves(module: ModuleType, loop: Any, scaled: bool) -> Any:
    start = (module.State.CLEAN, 0)
    stack, seen = [start], {start}
    while stack:
        state, summed = stack.pop()
        for event, last in product(module.Event, (False, True)):
            refused = [
                str(r.broken.obligation)
                for r in loop.refusals
                if r.event is event and state in r.states and r.summed in (None, summed)
            ]
            after = loop.advance(state, event, last=last, scaled=scaled)
            kept = loop.remember(summed, event)
            wrong = getattr(after, "obligation", "")
            yield str(state), summed, str(event), last, refused, wrong or str(after), kept
            if not refused and not wrong and (after, kept) not in seen:
                seen.add((after, kept))
                stack.append((after, kept))


# -- AdamW


def adamw(form: str) -> Callable[[Any], Callable[[ModuleType], Any]]:
    """Three steps of two elements from nothing or from any state."""

    def run(k: Any) -> Callable[[ModuleType], Any]:
        begun = k.choose("from a state", (False, True))
        hyper = {
            "rate": k.real("rate"),
            "beta1": _beta(k, "beta1"),
            "beta2": _beta(k, "beta2"),
            "eps": _positive(k, "eps"),
            "decay": k.real("decay"),
        }
        params = _vector(k, "p", 2)
        grads = [_vector(k, f"g{t}", 2) for t in range(3)]
        m, v = _vector(k, "m", 2), tuple(k.real(f"v[{i}]", 0) for i in range(2))
        powers = (_beta(k, "power1"), _beta(k, "power2"))

        def observe(module: ModuleType) -> Any:
            model, now = module.AdamW(), params
            state = module.State(m, v, *powers) if begun else module.fresh(2)
            found = []
            for g in grads:
                step = getattr(model, form)(now, g, state, module.Hyper(**hyper))
                found.append(step)
                now, state = step.params, step.state
            return found

        return observe

    return run


def adamw_parts(k: Any) -> Callable[[ModuleType], Any]:
    """Each part of a step by itself, three times on one instance."""
    a, b = k.real("a"), k.real("b")
    hyper = {name: k.real(name) for name in ("rate", "beta1", "beta2", "eps", "decay")}
    power = _beta(k, "power")

    def observe(module: ModuleType) -> Any:
        model, h = module.AdamW(), module.Hyper(**hyper)
        state = module.State((a, b), (b, a), power, power)
        found = []
        for _ in range(3):
            found += [model.first(a, b, h), model.second(a, b, h), model.corrected(a, power), model.powers(state, h)]
            found += [model.moved(a, b, h), model.gradient((a,), (b,), h), model.advance((a, b), state, h)]
        return [*found, module.State((a,), (b,)), module.fresh(3)]

    return observe


# -- Token windows, one element under SGD and AdamW, the bias of a fixed constant, epochs, cross-entropy


def tokens(k: Any) -> Callable[[ModuleType], Any]:
    """Up to 3 micro-batches with 2 elements, in windows of one to three."""
    count = k.choose("micro-batches", (1, 2, 3))
    size = k.choose("K", tuple(range(1, count + 1)))
    subject = k.choose("subject", ("TokenWindow", "WeightedMeans", "FixedConstant"))
    rows = [(_vector(k, f"g{i}", 2), k.int(f"valid {i}", 0), k.int(f"ignored {i}", 0)) for i in range(count)]
    params, rate = _vector(k, "p", 2), k.real("rate")

    def observe(module: ModuleType) -> Any:
        window = [module.TokenBatch(*row) for row in rows]
        model = getattr(module, subject)()
        return [*model.train(params, window, size, rate), model.skips(window), model.normaliser(window)]

    return observe


def one_element(k: Any) -> Callable[[ModuleType], Any]:
    """Three steps of each optimizer on one element."""
    subject = k.choose("subject", ("Sgd", "SgdDecay", "SgdClipped", "AdamW"))
    given: dict[str, Any] = {"rate": k.real("rate"), "decay": k.real("decay", 0, 1), "norm": _positive(k, "norm")}
    if subject == "AdamW":
        given |= {"beta1": _beta(k, "beta1"), "beta2": k.real("beta2", 0, "9/10"), "eps": k.real("eps", "1/1000", 1)}
    else:
        given |= {"momentum": _beta(k, "momentum"), "nesterov": k.choose("nesterov", (False, True))}
    start = (k.real("w"), k.real("m"), k.real("v", 0))
    grads = [k.real(f"g{t}") for t in range(3)]
    corrections = [(_positive(k, f"c{t}"), _positive(k, f"d{t}")) for t in range(3)]

    def observe(module: ModuleType) -> Any:
        setup = (module.Setup if subject == "AdamW" else module.SgdSetup)(**given)
        model, state, found = getattr(module, subject)(), module.State(*start), [setup]
        for g, c in zip(grads, corrections, strict=True):
            more = (c,) if subject == "AdamW" else ()
            state = model.step(state, g, setup, *more)
            found.append(state)
        return found

    return observe


def bias(k: Any) -> Callable[[ModuleType], Any]:
    """The error and both bounds, up to 5 micro-batches."""
    above, count = k.choose("above", (1, 2, 3, 4)), k.choose("k", (2, 3, 4, 5))
    tokens, mean, total = k.real("tokens", 0), k.real("mean"), _positive(k, "total")
    s, r = k.real("s", 1), k.real("r", 1)

    def observe(module: ModuleType) -> Any:
        model = module.Bias()
        return [model.error(tokens, mean, count, total), model.at_most(s), model.with_above(above, count, r)]

    return observe


def epochs(k: Any) -> Callable[[ModuleType], Any]:
    """Every epoch of up to 7 micro-batches with N up to 4."""

    def observe(module: ModuleType) -> Any:
        model, numbers, bits = module.Epochs(), range(1, 8), (False, True)
        found: dict[str, Any] = {}
        for b, n in [*product(numbers, range(1, 5)), (600, 300)]:
            found[f"steps {b} {n}"] = model.steps(b, n)
            found |= {f"total {e} {b} {n}": model.total(e, b, n) for e in (1, 2, 3)}
            some = (*range(1, min(n, 4) + 1), int(f"{n}")), (*range(1, min(b, 8)), int(f"{b}"))  # numbers of their own
            found |= {f"ends {h} {n} {i} {b}": bool(model.ends(h, n, i, b)) for h, i in product(*some)}
        found |= {f"schedules {c} {s}": model.schedules(c, s) for c in bits for s in bits}
        return found | {f"length {a} {c}": model.length(a, c) for a in range(1, 4) for c in range(1, 4)}

    return observe


def cross_entropy(k: Any) -> Callable[[ModuleType], Any]:
    """Up to 3 rows of up to 3 classes, each with a target, none or no class; two batches of 5 rows of 5 classes."""
    if k.choose("larger", (False, True)):
        classes, targets = 5, k.choose("targets", ([4, -100, 3, 0, 4], [3, 4, -100, -100, 2]))
        rows = len(targets)
    else:
        rows, classes = k.choose("rows", (1, 2, 3)), k.choose("classes", (2, 3))
        labels = (*range(classes), -100, *((-1, classes, classes + 1, -99, -101) if rows == 1 else ()))
        targets = [k.choose(f"target {i}", labels) for i in range(rows)]
    exps = [tuple(_positive(k, f"e{i}{j}") for j in range(classes)) for i in range(rows)]

    def observe(module: ModuleType) -> Any:
        model = module.CrossEntropy()
        return [model.backward(exps, targets), module.IGNORED]

    return observe


def kernel(k: Any) -> Callable[[ModuleType], Any]:
    """Each operation of the kernel, as a text of operations."""
    a, b, c, d, e = (Op(name) for name in "abcde")

    def observe(module: ModuleType) -> Any:
        model = module.Kernel()
        found = [model.first(a, b, c), model.first_far(a, b, c), model.second(a, b, c, d), model.below(a, b, c)]
        return [str(one) for one in (*found, model.moved(a, b, c, d, e))]

    return observe


_LOOP = "2 elements, N <= 3, up to 5 windows with a tail, in every rounding: scale, clip, formats, skips of 4 kinds"
RUNS: Mapping[str, tuple[Run, ...]] = {
    "models/accumulation/loop.py": (
        ("Accumulation", loop("Accumulation"), _LOOP),
        ("WeightedAccumulation", loop("WeightedAccumulation"), "the same"),
        ("defaults", defaults_of_the_loop, "for all inputs"),
    ),
    "src/gradproof/core/protocol.py": (
        ("every transition", transitions, "for all inputs"),
        ("traces", traces, "up to 4 events, windows of 1 and 2"),
    ),
    "models/accumulation/window_bugs.py": (
        ("the right loops", loops, "every reachable state and memory, for all traces"),
    ),
    "models/adamw/model.py": (
        ("parts", adamw_parts, "for all inputs"),
        ("step", adamw("step"), "2 elements, 3 steps"),
        ("vectorised", adamw("vectorised"), "2 elements, 3 steps"),
    ),
    "models/adamw/kernel.py": (("operations", kernel, "for all inputs, in every rounding"),),
    "models/tokens/window.py": (("windows", tokens, "up to 3 micro-batches of any counts, 2 elements"),),
    "models/tokens/scaling.py": (("steps", one_element, "3 steps of 1 element"),),
    "models/tokens/bias.py": (("error and bounds", bias, "up to 5 micro-batches"),),
    "models/systems/epochs.py": (("epochs", epochs, "up to 7 micro-batches with N up to 4, and 600 with 300"),),
    "models/tokens/cross_entropy.py": (
        ("gradients", cross_entropy, "up to 3 rows of 3 classes, two batches of 5 by 5"),
    ),
}
