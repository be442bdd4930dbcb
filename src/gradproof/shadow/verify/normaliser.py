"""The weights of the tokens for every mask: counts that stay tensors are variables.

The recorded operators of one window are evaluated where every truth value that integer data gave (is this label
ignored?) is a random residue (`counts`). Token i must weigh v_i / sum of v_j, with v_i whether it is valid. That is an
identity of rational functions; one that is false holds at a random point with probability at most its degree over
PRIME (Schwartz 1980, Zippel 1979). A constant that stands for a rational (0.9 + 0.1) may be off by `CLOSE`, which
allows as many values as there are fractions of `SHORT`. The degree is followed: with a divisor D as a variable t for
1 / D, sums have the largest degree and products the sum; each t then counts 1 + degree of D.

Shown is: on the recorded operators and Python numbers, at the recorded token ids, for every choice of the valid tokens
at which nothing is divided by zero, and for any weights and states that the window begins with. A value that depends
on a comparison of counts is poisoned and shows nothing, and so does a number that left for Python. None says that
nothing was shown; a wrong normaliser is never confused with one that was not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.core.outcome import Outcome
from gradproof.shadow.algebra import Array, Beyond, Value
from gradproof.shadow.domains.interpreter import Interpreter, NoRow, Observation
from gradproof.shadow.domains.marks import (
    POISON,
    CountLedger,
    Marks,
    Rest,
    Symbolic,
    SymbolicCount,
    Unknown,
    counted,
    expression,
    validity,
)
from gradproof.shadow.domains.weight import PRIME, inverse, rational
from gradproof.shadow.ops.rows.losses import MEAN, NONE, rows_of
from gradproof.shadow.ops.table import OperatorRow, Ops
from gradproof.shadow.result import Result
from gradproof.shadow.tape import NOWHERE, Const, Entry, Event, Item, Leaf, Location, Ref, Source, Tape, held_in
from gradproof.shadow.verify.compare import MOST_OPERATIONS, size_of, windows
from gradproof.shadow.verify.recordings import StepRecordings
from gradproof.shadow.verify.token_weights import (
    CLOSE,
    FACTORS,
    Move,
    Weights,
    averaged,
    common,
    micro_of,
    moves,
    shown,
    starts_of,
    sums,
    table,
    trimmed,
    weigh,
)

SHORT = 2**160
"""Numerator and denominator of a constant that stands for one."""
ERROR = Fraction(2, 10**15)
POWERS = 4
"""A truth value may be multiplied by itself: v, v v, v v v, ... are the same at 0 and 1."""
READ = "a number that depends on integer data went through Python: shown at the recorded counts only"
PYTHON = "the counts are Python numbers, or were not followed: shown at the recorded counts only"
BY_DATA = frozenset(
    ("embedding", "embedding_dense_backward", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
     "nll_loss2d_backward")
)  # fmt: skip
INDEXED = BY_DATA | {
    "gather", "gather_backward", "scatter", "scatter_add", "index_select",
    "index_select_backward", "index", "index_put",
}  # fmt: skip
"""Operators that take integers as places: those of the recording. Only of BY_DATA may a place come from counts."""
LOOKED_AT = frozenset(
    ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
     "_log_softmax_backward_data")
)  # fmt: skip
"""Operators whose own arguments are looked at here."""


class Nothing(Exception):
    """Nothing was shown: why."""


# Interpretation


@dataclass(frozen=True, slots=True)
class Hidden:
    """A constant with marks, which no row may take for one where it looks at the operator's own arguments."""

    const: Const


class Everywhere(Interpreter):
    """Constants with marks are expressions; integers that would depend on them are refused."""

    name = ""

    def do(self, item: Item) -> None:
        """One item of the tape that is no event."""
        self.name = ""
        super().do(item)

    def operate(self, entry: Entry) -> None:
        """One operator. Raises Beyond where it makes integers of counts."""
        if any(isinstance(o, Ref) and not o.floating for o in entry.outs) and self._depends(entry):
            raise Beyond(f"{entry.op} makes integers or truth values of counts")
        self.name = entry.op.split(".")[1]
        if self.name not in LOOKED_AT and any(c.marks is not None for c in constants((entry.args, entry.kwargs))):
            entry = replace(entry, args=hidden(entry.args), kwargs=hidden(entry.kwargs))
        super().operate(entry)

    def _depends(self, entry: Entry) -> bool:
        whole = all(isinstance(o, Ref) and o.dtype == "bool" for o in entry.outs) and not self.recorded(entry)
        held = [self.memory.flat.get(ref.storage) for ref in held_in((entry.args, entry.kwargs), Ref)]
        counts = any(c.marks is not None for c in constants((entry.args, entry.kwargs)))
        return not whole and (counts or any(isinstance(h, Value) and h.parts[1].any() for h in held))

    def value(self, arg: Any) -> Any:
        """An argument. Raises Beyond for a place that was computed from counts."""
        arg = arg.const if isinstance(arg, Hidden) else arg
        marks = arg.marks if isinstance(arg, Const) else None
        if not isinstance(marks, Marks):
            return super().value(arg)
        if self.name.rstrip("_") in INDEXED and arg.value.dtype.kind == "i":
            if self.name not in BY_DATA and not all(m is None or plain(m) for m in marks.marks.ravel()):
                raise Beyond("a place that was computed from counts")
            return arg.value
        found = [counted(m, v) for m, v in zip(marks.marks.ravel(), arg.value.ravel().tolist(), strict=True)]
        return Value(self.domain, expression(found, arg.value.shape), arg.value.dtype == bool)


def plain(mark: Any) -> bool:
    """Whether a mark is integer data in which no count is."""
    return isinstance(mark, Unknown) and mark.plain


def hidden(arg: Any) -> Any:
    """Arguments with their marked constants hidden."""
    if isinstance(arg, Const):
        return arg if arg.marks is None else Hidden(arg)
    if isinstance(arg, Mapping):
        return {name: hidden(a) for name, a in arg.items()}
    return type(arg)(hidden(a) for a in arg) if isinstance(arg, list | tuple) else arg


def constants(arg: Any) -> list[Const]:
    """Every untracked tensor in an argument."""
    if isinstance(arg, Const):
        return [arg]
    if isinstance(arg, Mapping):
        return constants(list(arg.values()))
    return [c for a in arg for c in constants(a)] if isinstance(arg, list | tuple) else []


def _rows() -> dict[str, OperatorRow]:
    made = table()
    for name, rule in (("forward", _forward), ("backward", _backward)):
        for wide in ("nll_loss", "nll_loss2d"):
            made[f"aten.{wide}_{name}"] = replace(made[f"aten.{wide}_{name}"], rule=rule)
    return made


def _targets(k: Ops, target: Any, weight: Any, ignore: int) -> tuple[Array, Value]:
    """The class of each row (any, where it is ignored), and whether it is valid."""
    if weight is not None:
        raise Beyond("classes with weights of their own")
    at = 2 if k.entry.op.split(".")[1].endswith("backward") else 1
    valid = validity(k.entry.args[at], ignore)
    flat = np.asarray(target).reshape(-1).astype(np.int64)
    if valid is None:
        raise Beyond("targets that are no integer data")
    return np.where(flat == ignore, 0, flat), Value(k.domain, expression(list(valid), flat.shape))


def _forward(k: Ops, x: Value, target: Any, weight: Any, reduction: int, ignore: int) -> tuple[Value, Value]:
    classes, valid = _targets(k, target, weight, ignore)
    losses = -rows_of(x)[np.arange(len(classes)), classes] * valid
    if reduction == NONE:
        return losses.reshape(np.shape(target)), k.lift(0.0)
    total = valid.sum()
    return (losses.sum() / total if reduction == MEAN else losses.sum()), total


def _backward(
    k: Ops, grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
) -> Value:  # fmt: skip
    classes, valid = _targets(k, target, weight, ignore)
    width = x.shape[1] if x.ndim > 1 else x.shape[0]
    given = k.lift(grad).reshape(-1) if reduction == NONE else k.lift(grad).reshape(1)
    given = given / k.lift(total).reshape(1) if reduction == MEAN else given
    wide = k.lift(np.zeros((len(classes), width)))
    wide = wide.put((np.arange(len(classes)), classes), -(valid * given))
    if x.ndim == 1:
        return wide.reshape(x.shape)
    n, c, *rest = x.shape
    return wide.reshape(n, *rest, c).move(lambda p: np.moveaxis(p, -1, 1))


# One window


def ends_of(tape: Tape) -> list[int]:
    """Places on the tape behind the last step of every window, after a first zero."""
    ends, stepped = [0], False
    for index, item in enumerate(tape.items):
        if isinstance(item, Event) and item.kind == "step":
            ends = [*ends[:-1], index + 1] if stepped else [*ends, index + 1]
            stepped = True
        elif isinstance(item, Event) and item.kind == "backward":
            stepped = False
    return ends


def cut(tape: Tape, window: int) -> Tape:
    """One window, up to its last step; what it begins with are arbitrary numbers. Raises Nothing without a step."""
    ends = ends_of(tape)
    if window + 1 >= len(ends):
        raise Nothing("no step follows")
    before, kept = tape.items[: ends[window]], tape.items[ends[window] : ends[window + 1]]
    begun: dict[int, Ref] = {}
    for item in before:
        for ref in _written(item):
            begun.setdefault(ref.storage, replace(ref, offset=0, shape=(ref.size,), stride=(1,)))
    used = {ref.storage for item in kept if isinstance(item, Entry | Event) for ref in _used(item)}
    leaves = [
        Leaf(ref, Source("havoc", f"at the window's start {ref.storage}"), np.zeros(ref.size), NOWHERE)
        for ref in begun.values()
        if ref.storage in used and ref.floating
    ]
    return Tape(items=[*leaves, *kept], params=tape.params)


def _written(item: Any) -> Sequence[Ref]:
    if isinstance(item, Entry):
        return item.writes
    return [item.ref] if isinstance(item, Leaf) else []


def _used(item: Any) -> list[Ref]:
    args = (item.args, item.kwargs, list(item.writes)) if isinstance(item, Entry) else (item.refs,)
    return list(held_in(args, Ref))


def _run(tape: Tape, rows: Mapping[str, OperatorRow], markers: Mapping[int, int]) -> tuple[list[Observation], Symbolic]:
    domain = Symbolic(markers)
    return Everywhere(domain, rows).run(tape).observations, domain


def for_all_counts(tapes: Tape | Sequence[Tape], window: int = 0) -> tuple[bool | None, str]:
    """Whether each valid token of a window (from 0) weighs 1 / (valid tokens) for every mask: True or None, and why.

    None with no words: there are no losses with integer targets.
    """
    ranks = [tapes] if isinstance(tapes, Tape) else list(tapes)
    try:
        if len(ranks) != 1:
            return None, "counts of several ranks are not followed: shown at the recorded counts only"
        return _shown(ranks[0], window)
    except Nothing as why:
        return None, str(why)
    except (Beyond, NoRow) as error:
        return None, f"{error}: shown at the recorded counts only"
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return None, f"a row takes no expression ({error}): shown at the recorded counts only"


def _shown(tape: Tape, window: int) -> tuple[bool | None, str]:
    short = trimmed(cut(tape, window))
    consts = [c for item in short.items if isinstance(item, Entry) for c in constants((item.args, item.kwargs))]
    marked = [c.marks for c in consts if isinstance(c.marks, Marks)]
    if not marked:
        return None, ""
    ledger = marked[0].ledger
    begin, end = ends_of(tape)[window : window + 2]
    _complete(ledger, end)
    if any(entry.op.split(".")[1].rstrip("_") in FACTORS and 1.0 in floats(entry.args) for entry in short.entries()):
        raise Nothing("a factor of 1.0 from Python may be another number elsewhere: shown at the recorded counts only")
    if size_of(short) > MOST_OPERATIONS:
        raise Nothing("a tape that is larger than the bound: shown at the recorded counts only")
    rows = _rows()
    base, domain = _run(short, rows, {})
    if not domain.seen or any(v is None for v in domain.valid):
        return None, ""
    alone = [_run(short, rows, {i: 2})[0] for i in range(len(domain.seen))]
    together = _run(short, rows, dict.fromkeys(range(len(domain.seen)), 3))[0]
    _nothing_beside(short, rows, len(domain.seen))
    single = [moves(base, a) for a in alone]
    return _judged(LossWindow(short, (begin, end), ledger, base, domain, single, moves(base, together)))


def _nothing_beside(tape: Tape, rows: Mapping[str, OperatorRow], count: int) -> None:
    """Without its losses a gradient must not depend on the labels. Raises Nothing where it does."""
    rest = Everywhere(Rest(dict.fromkeys(range(count), 0)), rows).run(tape).observations
    values = (v for one in rest for v in one.values.values() if isinstance(v, Value))
    if any((v.parts[1] > 0).any() for v in values):
        raise Nothing(
            "a part of the gradient beside these losses depends on the labels: shown at the recorded counts only"
        )


def floats(args: Any) -> list[float]:
    """Python numbers that are no integers."""
    return [a for a in args if isinstance(a, float)]


def _complete(ledger: CountLedger, end: int) -> None:
    if ledger.lost:
        raise Nothing(f"{ledger.lost}: shown at the recorded counts only")
    if any(at < end for at in ledger.reads):
        raise Nothing(READ)


@dataclass(slots=True)
class LossWindow:
    """The evaluations of one window: how every gradient moves with each loss, and with all of them."""

    tape: Tape
    span: tuple[int, int]
    ledger: CountLedger
    base: list[Observation]
    domain: Symbolic
    alone: list[list[Move]]
    together: list[Move]

    def linear(self, at: int) -> bool:
        """Whether a stage is the sum of what the losses give, and right for all counts."""
        return all(sums(self.together[at], [a[at] for a in self.alone])) and self.degree(at) < POISON

    def degree(self, at: int) -> int:
        """The largest degree in a stage."""
        values = (v for v in self.base[at].values.values() if isinstance(v, Value))
        return max((int(v.parts[1].max(initial=0)) for v in values), default=0)

    def conditions(self, total: SymbolicCount) -> list[str]:
        """Where the weights are shown: no divisor but the number of valid tokens (or a multiple) needs a word."""
        begin, end = self.span
        found = [d for d, (_, at) in self.ledger.inverted.items() if begin <= at < end] + list(self.domain.inverted)
        simple = inverse(total.residue)
        others = any(rational(d * simple % PRIME, SHORT) is None for d in found)
        labels = [v for array in self.domain.valid if array is not None for v in array]
        fixed = sum(not v.degree for v in labels)
        constant = [f"{fixed} of the {len(labels)} labels are constants"] if fixed else []
        return [*constant, *(["nothing is divided by zero"] if others else []), *self.ledger.notes]

    def place(self, at: int) -> int:
        """The place of a stage on the tape."""
        event = self.base[at].event
        return next(i for i, item in enumerate(self.tape.items) if item is event)


def _judged(window: LossWindow) -> tuple[bool | None, str]:
    """Compare every token's weight with its share."""
    seen, valid = window.domain.seen, window.domain.valid
    starts = starts_of(window.tape, seen)
    if len({micro_of(window.tape, start) for start in starts}) < len(starts):
        raise Nothing("several losses in one backward pass")
    total = SymbolicCount(0, 0)
    for one in (v for array in valid if array is not None for v in array):
        total = total.plus(one)
    degree, late = 0, set()
    for number, start in enumerate(starts):
        array = valid[number]
        if array is None or not any(v.degree for v in array):
            raise Nothing("targets that are constants: shown at the recorded counts only")
        factor, high, words = _factor(window, number, start)
        late.add(words)
        degree = max(degree, high + window.domain.degrees[number] + 1 + POWERS)
        share = factor * total.residue % PRIME
        if not all(_right(int(w) * share % PRIME, v) for w, v in zip(seen[number].weights, array, strict=True)):
            raise Nothing(PYTHON)
    if degree >= POISON or _error(window, degree, sum(len(v) for v in valid if v is not None)) > ERROR:
        raise Nothing("the error probability is too large: shown at the recorded counts only")
    where = "".join(f", where {note}" for note in window.conditions(total)) + "".join(sorted(late))
    return True, f"each valid token weighs 1 / (valid tokens) for every mask{where} (error probability at most 2e-15)"


def _factor(window: LossWindow, number: int, start: int) -> tuple[int, int, str]:
    """By what the gradient of a loss is multiplied on its way to the step, its degree, and what that leaves out."""
    after = [e for e in range(len(window.base)) if window.place(e) > start]
    step = next((e for e in after if window.base[e].event.kind == "step"), None)
    stage = next((e for e in reversed(after) if step is not None and e <= step and window.linear(e)), None)
    kinds = ("accumulate", "gradients")
    arrived = next((e for e in after if window.base[e].event.kind in kinds), stage)
    if stage is None or arrived is None:
        raise Nothing("no gradient is linear in the losses: shown at the recorded counts only")
    arrived = min(arrived, stage)
    notes: list[str] = []
    factor = common(window.alone[number][stage], window.alone[number][arrived], notes)
    if factor is None or window.degree(arrived) >= POISON:
        raise Nothing(f"{(notes or ['a branch on the counts'])[0]}: shown at the recorded counts only")
    if averaged(window.tape, window.place(arrived)) != 1:
        raise Nothing("counts of several ranks are not followed: shown at the recorded counts only")
    late = "" if stage == step else ", before the gradient is changed at the step in another way (a clip?)"
    return factor, window.degree(stage) + window.degree(arrived), late


def _right(share: int, valid: SymbolicCount) -> bool:
    """Whether a weight times the number of valid tokens is 1 for a valid token and 0 for another."""
    if not valid.degree:
        return share == 0 if not valid.residue else _one(share)
    return any(_one(share * inverse(pow(valid.residue, k, PRIME)) % PRIME) for k in range(1, POWERS + 1))


def _one(x: int) -> bool:
    found = rational(x, SHORT)
    return found is not None and abs(found - 1) <= CLOSE


def _error(window: LossWindow, degree: int, tokens: int) -> Fraction:
    """At most: for every token, power and constant, the degree of the difference over PRIME."""
    for more in (*(d for d, _ in window.ledger.inverted.values()), *window.domain.inverted.values()):
        degree *= 1 + more
    return Fraction(tokens * POWERS * 2 * SHORT**2 * degree, PRIME)


# -- What the weights of the tokens say of the normaliser: in a comparison with the full batch both may be wrong.
NEAR = 1e-5
"""Relative distance of two weights that are the same but for the rounding of constants."""
MASKS = "token weights for every mask: the operators, token ids and Python numbers are those of the recording"
REACH = "all real weights and float inputs, at the recorded counts"
HELP = "divide by the valid tokens of the whole window, over all ranks"

CHOICE = (
    "right with a fixed normaliser, or a mask that only leaves samples out; wrong where valid tokens should be counted"
)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A window whose valid tokens all weigh the same."""

    weight: Fraction
    count: int

    @property
    def factor(self) -> Fraction:
        """Weight times count: 1 for a mean over the window's valid tokens."""
        return self.weight * self.count


def weighed(session: StepRecordings) -> tuple[list[Weights], list[Weights], list[str]]:
    """Weights of every window of the N-run and of the full batch; and why there are none, in words."""
    size = max(size_of(r.tape) for r in (*session.ours, *session.full))
    if size > session.operations:
        words = f"{size} scalar operations, more than the bound of {session.operations} (--operations)"
        return [], [], [f"token weights are not known: {words}"]
    try:
        ours = _all([r.tape for r in session.ours])
        return ours, _all([r.tape for r in session.full]), []
    except (NoRow, Beyond) as error:
        return [], [], [f"token weights are not known: {error}"]


def _all(tapes: Sequence[Tape]) -> list[Weights]:
    seen = [Observation(e) for e in tapes[0].events() if e.refs]
    return [weigh(tapes, index) for index, window in enumerate(windows(seen)) if window.steps]


def rows(found: Sequence[Weights]) -> list[dict[str, Any]]:
    """The table of a report: one row a token, weights as fractions."""
    table = []
    for weights in (w for w in found if certain(w)):
        for token in weights.tokens:
            row = {k: token[k] for k in ("window", "rank", "micro", "token")}
            row["weight"] = "unknown" if token["weight"] is None else shown(token["weight"])
            table.append(row | {"expected": shown(token["expected"]), "ok": token["ok"], "place": str(token["place"])})
    return table


def certain(weights: Weights) -> bool:
    """Whether the weights are those at the step: a clip hides whatever is rescaled before it."""
    return bool(weights.right) or not any("not linear" in note for note in weights.notes)


def everywhere(session: StepRecordings, found: Sequence[Weights]) -> list[str]:
    """What is shown of each window for every mask, in words; nothing where that is no more than at the recorded one."""
    tapes = [r.tape for r in session.ours]
    shown_ = [for_all_counts(tapes, i) if w.right else (None, "") for i, w in enumerate(found)]
    return [f"; {words}" if proved else "" for proved, words in shown_]


def verdicts(found: Sequence[Weights], more: Sequence[str] = ()) -> list[str]:
    """One line a window; `more` is what is added to each."""
    hidden = "token weights are not known at the step: a clip hides what rescales the gradient before it"
    added = list(more) or [""] * len(found)
    return [f"window {i + 1}: {w.verdict + added[i] if certain(w) else hidden}" for i, w in enumerate(found)]


def normaliser(full: Sequence[Weights], ranks: int) -> Result | None:
    """What the full batch's weights refute, or leave undecided, if anything."""
    if not full or any(w.right is None for w in full):
        return None
    for weights in full:
        wrong = _ranks_apart(weights) if ranks > 1 else ""
        if wrong:
            return _refuted(weights, wrong)
    uniform = [uniform_of(w) for w in full]
    if any(u is None for u in uniform):
        return None
    found = [u for u in uniform if u is not None]
    if wrong := _world(found, ranks):
        return _refuted(full[0], wrong)
    wrong = _deaf(found)
    if wrong and fixed(full, found):
        words = f"not decided: {wrong} (in the full batch's run): {CHOICE}"
        place = placed(full[0].tokens[0]["place"])
        return Result("GA-EQ-001", Outcome.UNKNOWN, words, place, HELP, "weight", REACH, {"verdict": full[0].verdict})
    return _refuted(full[0], wrong) if wrong else None


def fixed(full: Sequence[Weights], found: Sequence[Uniform]) -> bool:
    """Whether the normaliser is one number for every window, or for every token or sample that a window has."""
    each = [u.weight * len(w.tokens) for w, u in zip(full, found, strict=True)]
    return all(near(u.weight, found[0].weight) for u in found) or all(near(e, each[0]) for e in each)


def uniform_of(weights: Weights) -> Uniform | None:
    """The one weight of a window's valid tokens, if there is one."""
    valid = [t["weight"] for t in weights.tokens if t["expected"] != 0]
    if not valid or any(w is None or not near(w, valid[0]) for w in valid):
        return None
    return Uniform(valid[0], len(valid))


def near(a: Fraction, b: Fraction) -> bool:
    """Equal but for the rounding of constants."""
    return a == b or (b != 0 and abs(a / b - 1) <= NEAR)


def _ranks_apart(weights: Weights) -> str:
    by_rank: dict[int, list[Fraction]] = {}
    for token in weights.tokens:
        if token["expected"] != 0:
            by_rank.setdefault(token["rank"], []).append(token["weight"])
    firsts = [w[0] for _, w in sorted(by_rank.items())]
    if all(near(x, w[0]) for w in by_rank.values() for x in w) and not all(near(f, firsts[0]) for f in firsts):
        return "a token weighs " + ", ".join(f"{shown(f)} on rank {r}" for r, f in enumerate(firsts))
    return ""


def _world(found: Sequence[Uniform], ranks: int) -> str:
    factors = [u.factor for u in found]
    for factor in (Fraction(1, ranks), Fraction(ranks)) if ranks > 1 else ():
        if all(near(f, factor) for f in factors):
            return f"every token weighs {shown(factor)} of its share: {ranks} ranks are counted wrongly"
    return ""


def _deaf(found: Sequence[Uniform]) -> str:
    """A normaliser that does not follow the number of valid tokens."""
    first = found[0]
    if all(near(u.factor, first.factor) for u in found) or len({u.count for u in found}) == 1:
        return ""
    if all(u.weight == 1 for u in found):
        return ""
    said = ", ".join(f"{shown(u.weight)} each of {u.count} valid tokens" for u in found[:3])
    return f"the normaliser does not follow the valid tokens: {said}"


def placed(text: str) -> Location:
    """A place from its text, `file:line`."""
    file, _, line = str(text).rpartition(":")
    return Location(file, int(line)) if line.isdigit() else NOWHERE


def untested(found: Sequence[Weights], tape: Tape) -> list[str]:
    """Where the counts of the windows cannot tell a wrong normaliser from a right one, in words."""
    counts = {sum(t["expected"] != 0 for t in w.tokens) for w in found if w.right is not None}
    padded = any(t["expected"] == 0 for w in found for t in w.tokens)
    if padded and len(found) > 1 and len(counts) == 1:
        return [f"every window has {counts.pop()} valid tokens: a normaliser that ignores their number would not show"]
    loss = next((e.place for e in tape.entries() if "nll_loss" in e.op and not e.backward), None)
    if loss is not None and found and not padded:
        return [f"no label of this run is ignored at {loss}: micro-batches with unequal numbers of valid labels"]
    return []


def _refuted(weights: Weights, wrong: str) -> Result:
    place = placed(weights.tokens[0]["place"]) if weights.tokens else None
    words = f"{wrong} (in the full batch's run)"
    return Result("GA-EQ-001", Outcome.REFUTED, words, place, HELP, "weight", REACH, {"verdict": weights.verdict})
