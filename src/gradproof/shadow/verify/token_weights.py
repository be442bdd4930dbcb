"""The exact weight of every token's loss in the gradient that a step is handed.

Two factors. The first is what a backward pass gives to the token: the loss's own gradient, summed over the classes,
which is minus the weight (whatever the label smoothing; an ignored token gets 0). The second is the factor by which
that backward pass enters the gradient at the step (loss scales, rescaling, hand-written accumulators, averages): the
loss's gradient is marked, once each, and the change at the step is divided by the change on arrival. Both are exact
rational numbers; neither depends on a value of a weight or an input. A factor that differs between elements, or a step
that is not linear in the markers, is said to be so; after a clip the weights are those before it.

Each valid token of a window must weigh 1 / (valid tokens of the window, over all ranks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value
from gradproof.shadow.domains.interpreter import Interpreter, Observation, read_ranks
from gradproof.shadow.domains.weight import PRIME, SeenLoss, Weight, inverse, rational
from gradproof.shadow.ops.rows import load
from gradproof.shadow.ops.table import TABLE, OperatorRow, Ops, Rule
from gradproof.shadow.record.run import Run
from gradproof.shadow.tape import Array, Const, Entry, Event, Item, Streams, Tape, streams
from gradproof.shadow.verify.recordings import StepRecordings, recorded


# -- Rules by which training loops weigh tokens, right and wrong, and counts of tokens that tell them apart.
@dataclass(frozen=True, slots=True)
class TokenCounts:
    """One window. `valid[r][k]`: tokens with a loss in micro-batch k of rank r; `tokens` with the padding.

    `samples` likewise; `first`: valid labels in column 0, which a causal shift removes; `planned`: micro-batches of a
    full window.
    """

    valid: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    samples: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    planned: int

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return len(self.valid)

    def total(self, table: tuple[tuple[int, ...], ...]) -> int:
        """Sum over ranks and micro-batches."""
        return sum(sum(row) for row in table)


FACTORS = frozenset(("mul", "div", "_foreach_mul", "_foreach_div"))
Weighing = list[list[Fraction]]
TokenRule = Callable[[TokenCounts, int, int], Fraction]


def _f(over: int, under: int) -> Fraction:
    return Fraction(over, under) if under else Fraction(0)


RULES: dict[str, TokenRule] = {
    "right": lambda c, r, k: _f(1, c.total(c.valid)),
    "mean of means": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][k]),
    "mean of means, by the planned length": lambda c, r, k: _f(1, c.ranks * c.planned * c.valid[r][k]),
    "first column counted": lambda c, r, k: _f(1, c.total(c.valid) + c.total(c.first)),
    "averaged by device": lambda c, r, k: _f(1, c.ranks * sum(c.valid[r])),
    "summed by device": lambda c, r, k: _f(1, sum(c.valid[r])),
    "averaged over devices twice": lambda c, r, k: _f(1, c.ranks * c.total(c.valid)),
    "divided by the length again": lambda c, r, k: _f(1, len(c.valid[r]) * c.total(c.valid)),
    "sum of means": lambda c, r, k: _f(1, c.ranks * c.valid[r][k]),
    "sum": lambda c, r, k: Fraction(1),
    "samples for tokens": lambda c, r, k: _f(1, c.total(c.samples)),
    "means weighted by samples": lambda c, r, k: _f(c.samples[r][k], c.total(c.samples) * c.valid[r][k]),
    "all tokens for valid ones": lambda c, r, k: _f(1, c.total(c.tokens)),
    "means weighted by all tokens": lambda c, r, k: _f(c.tokens[r][k], c.total(c.tokens) * c.valid[r][k]),
    "count of the last micro-batch": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][-1]),
    "count of the first micro-batch": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][0]),
    "count so far": lambda c, r, k: _f(1, c.ranks * sum(c.valid[r][: k + 1])),
    "only the last micro-batch": lambda c, r, k: _f(int(k == len(c.valid[r]) - 1), c.ranks * c.valid[r][-1]),
    "times the length": lambda c, r, k: _f(len(c.valid[r]), c.total(c.valid)),
    "means over the padding": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.tokens[r][k]),
}  # fmt: skip
"""The weight of one valid token of micro-batch k on rank r, by rule."""


def weighing(rule: str, counts: TokenCounts) -> Weighing:
    """Weights by rank and micro-batch. Raises KeyError for a rule that is not in `RULES`."""
    made = RULES[rule]
    return [[made(counts, r, k) for k in range(len(row))] for r, row in enumerate(counts.valid)]


def alike(vectors: Sequence[TokenCounts]) -> list[tuple[str, str]]:
    """Pairs of rules that no vector tells apart."""
    seen = {name: [weighing(name, counts) for counts in vectors] for name in RULES}
    names = sorted(seen)
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if seen[a] == seen[b]]


CLOSE = Fraction(1, 2**18)
"""Relative difference that a constant like 1/22 in fp32 explains, with room for a few products of such."""

STAGES = ("accumulate", "gradients", "unscale", "clip", "step")
"""Events at which gradients are looked at."""

LOSSES = {
    "aten.mse_loss_backward": 3, "aten.smooth_l1_loss_backward": 3, "aten.huber_loss_backward": 3,
    "aten.binary_cross_entropy_backward": 4,
}  # fmt: skip
"""Backward operators of losses by sample, with the place of their reduction (0 none, 1 mean, 2 sum)."""

SOFTMAX = "aten._log_softmax_backward_data"


@dataclass(slots=True)
class Loss:
    """One loss of one backward pass: the weights that it gave and the factor with which they arrived at the step."""

    window: int
    micro: int
    place: str
    given: list[Fraction | None]
    valid: list[bool]
    factor: Fraction | None
    uneven: bool
    notes: list[str] = field(default_factory=list)

    def weights(self) -> list[Fraction | None]:
        """Weight of each token in the gradient at the step; None where it depends on data."""
        return [w if w == 0 else None if w is None or self.factor is None else w * self.factor for w in self.given]


@dataclass(slots=True)
class Weights:
    """All tokens of the asked window. `right` is None when no verdict can be given; `reason` says why."""

    tokens: list[dict[str, Any]]
    right: bool | None
    exact: bool
    verdict: str
    notes: list[str]


def table(rows: Mapping[str, OperatorRow] | None = None) -> dict[str, OperatorRow]:
    """The operator table with a probe on every loss's gradient."""
    if rows is None:
        load()
        rows = TABLE
    made = dict(rows)
    if SOFTMAX in made:
        made[SOFTMAX] = replace(made[SOFTMAX], rule=_token(made[SOFTMAX].rule))
    for op, place in LOSSES.items():
        if op in made:
            made[op] = replace(made[op], rule=_sample(made[op].rule, place))
    return made


def _token(rule: Rule) -> Rule:
    def marked(k: Ops, grad: Any, *args: Any, **kwargs: Any) -> Any:
        return rule(k, k.probe("token_grad", k.lift(grad)), *args, **kwargs)

    return marked


def _sample(rule: Rule, place: int) -> Rule:
    """The weight of a sample is the factor of its own mean over everything but the first axis."""

    def marked(k: Ops, grad: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        value, given = k.lift(x), k.lift(grad)
        reduction = args[place - 2] if len(args) > place - 2 else kwargs.get("reduction", 1)
        each = given.expand(value.shape) / (value.size if reduction == 1 else 1)
        samples = each.sum(list(range(1, value.ndim))) if value.ndim > 1 else each
        domain = k.domain
        if not isinstance(domain, Weight) or not value.size:
            return rule(k, grad, x, *args, **kwargs)
        number = len(domain.seen)
        domain.probe("sample_grad", samples, k.entry)
        return rule(k, given * domain.markers.get(number, 1), x, *args, **kwargs)

    return marked


def losses(
    tapes: Sequence[Tape], window: int, rows: Mapping[str, OperatorRow] | None = None, seed: int = 0
) -> list[list[Loss]]:
    """Every loss of a window (from 0) that a step followed, rank by rank. Raises NoRow and Beyond."""
    short = [trimmed(tape) for tape in tapes]
    rules = table() if rows is None else rows
    base = _run(short, rules, {}, seed)
    starts = [starts_of(tape, seen) for tape, (_, seen) in zip(short, base, strict=True)]
    ours = [(r, i) for r, own in enumerate(starts) for i, start in enumerate(own) if _window(short[r], start) == window]

    def moved(markers: Mapping[tuple[int, int], int]) -> list[list[Move]]:
        other = _run(short, rules, markers, seed)
        return [moves(a, b) for (a, _), (b, _) in zip(base, other, strict=True)]

    total = moved(dict.fromkeys(ours, 3)) if ours else []
    alone = {key: moved({key: 2}) for key in ours}
    found: list[list[Loss]] = [[] for _ in tapes]
    for r, i in ours:
        seen, events = base[r][1], range(len(base[r][0]))
        linear = [all(sums(total[r][e], [alone[key][r][e] for key in ours])) for e in events]
        found[r].append(_loss(short[r], base[r][0], alone[r, i][r], linear, seen[i], starts[r][i], window))
    return found


def _window(tape: Tape, start: int) -> int:
    """Number of steps before a place on the tape; steps without a loss between them are one window's."""
    count, stepped = 0, False
    for item in tape.items[:start]:
        if isinstance(item, Event) and item.kind == "step":
            stepped = True
        elif isinstance(item, Event) and item.kind == "backward" and stepped:
            count, stepped = count + 1, False
    return count + stepped


def trimmed(tape: Tape) -> Tape:
    """The tape with nothing but gradients at its stages."""
    items: list[Item] = []
    for item in tape.items:
        if isinstance(item, Event):
            keep = item.kind in STAGES
            item = replace(item, refs={n: r for n, r in item.refs.items() if keep and n.startswith("grad/")})
        items.append(item)
    return Tape(items=items, params=tape.params)


def _run(
    tapes: Sequence[Tape], rows: Mapping[str, OperatorRow], markers: Mapping[tuple[int, int], int], seed: int
) -> list[tuple[list[Observation], list[SeenLoss]]]:
    """Every rank's events and losses, with some losses, by rank and number, marked."""
    each = [{i: m for (r, i), m in markers.items() if r == rank} for rank in range(len(tapes))]
    domain = Weight(each[0], seed, each[1:])
    if len(tapes) == 1:
        return [(Interpreter(domain, rows).run(tapes[0]).observations, domain.seen)]
    readings = read_ranks(domain, tapes, lambda event: bool(event.refs), rows=rows)
    return [(reading.observations, seen) for reading, seen in zip(readings, domain.found, strict=True)]


Move = dict[str, list[int]]


def moves(base: Sequence[Observation], other: Sequence[Observation]) -> list[Move]:
    """Change of every gradient at every stage."""
    made = []
    for a, b in zip(base, other, strict=True):
        pairs = ((n, a.values[n], b.values[n]) for n in a.values if isinstance(a.values[n], Value))
        made.append({n: [int(v) % PRIME for v in np.ravel(y.parts[0] - x.parts[0])] for n, x, y in pairs})
    return made


def sums(total: Move, parts: Sequence[Move]) -> list[bool]:
    """Whether marking all by 3 moves twice as far as marking each by 2 does, all together."""
    return [
        all((2 * sum(p[name][i] for p in parts) - total[name][i]) % PRIME == 0 for i in range(len(total[name])))
        for name in total
    ]


def starts_of(tape: Tape, seen: Sequence[SeenLoss]) -> list[int]:
    """Place on the tape of each loss's gradient."""
    where = {id(item): index for index, item in enumerate(tape.items)}
    return [where[id(one.entry)] for one in seen]


def _loss(
    tape: Tape,
    base: Sequence[Observation],
    move: Sequence[Move],
    linear: Sequence[bool],
    seen: SeenLoss,
    start: int,
    window: int,
) -> Loss:
    places = {id(item): index for index, item in enumerate(tape.items)}
    after = [e for e, o in enumerate(base) if places[id(o.event)] > start]
    step = next((e for e in after if base[e].event.kind == "step"), None)
    micro = micro_of(tape, start)
    notes: list[str] = []
    factor = None
    if step is None:
        notes.append("no step follows")
    else:
        stage = next((e for e in reversed([e for e in after if e <= step]) if linear[e]), None)
        if stage is not None and stage != step:
            notes.append("the gradient at the step is not linear in the losses (a clip?): weights before that")
        arrived = next((e for e in after if base[e].event.kind in ("accumulate", "gradients")), stage)
        if stage is not None and arrived is not None:
            factor = _ratio(move[stage], move[min(arrived, stage)], notes)
            factor = None if factor is None else factor / averaged(tape, places[id(base[arrived].event)])
    weights = [rational(int(w)) for w in seen.weights]
    if not any(weights) and None not in weights:
        notes.clear()
    valid = [w != 0 for w in weights] if seen.valid is None else [bool(v) for v in seen.valid]
    return Loss(window, micro, str(seen.entry.place), weights, valid, factor, seen.uneven, notes)


def micro_of(tape: Tape, start: int) -> int:
    """Number of the backward pass in its window, from 0."""
    count = 0
    for item in tape.items[: start + 1]:
        if isinstance(item, Event) and item.kind in ("step", "backward"):
            count = 0 if item.kind == "step" else count + 1
    return max(count - 1, 0)


def averaged(tape: Tape, index: int) -> int:
    """World size where DistributedDataParallel averaged inside the backward pass, before the gradient was seen."""
    for item in tape.items[index + 1 :]:
        if isinstance(item, Event) and item.kind == "sync":
            return int(item.detail.get("world", 1)) if item.detail.get("how") == "DistributedDataParallel" else 1
        if isinstance(item, Event) and item.kind in ("backward", "step"):
            break
    return 1


def _ratio(at_step: Move, arrived: Move, notes: list[str]) -> Fraction | None:
    """The factor common to all elements, or None."""
    found = common(at_step, arrived, notes)
    made = None if found is None else rational(found)
    if found is not None and made is None:
        notes.append("the factor depends on data")
    return made


def common(at_step: Move, arrived: Move, notes: list[str]) -> int | None:
    """The residue of the factor common to all elements, or None."""
    found: set[int] = set()
    moved = False
    for name, before in arrived.items():
        for a, b in zip(before, at_step.get(name, []), strict=False):
            moved = moved or b != 0
            if a:
                found.add(b * inverse(a) % PRIME)
    if not found:
        notes.append("the loss moves no gradient that was looked at" if not moved else "arrival was not seen")
        return None
    if len(found) > 1:
        notes.append("elements of the gradient enter the step with different factors")
        return None
    return found.pop()


def weigh(
    tapes: Tape | Sequence[Tape], window: int = 0, *, rows: Mapping[str, OperatorRow] | None = None, seed: int = 0
) -> Weights:
    """Weights of all tokens of a window (from 0), over all ranks (one tape each).

    `tokens` are dicts: window, rank, micro, token (its position), weight (Fraction or None), expected (Fraction), ok,
    place. Raises NoRow and Beyond as the interpreter does.
    """
    ranks = [tapes] if isinstance(tapes, Tape) else list(tapes)
    found = [(r, one) for r, own in enumerate(losses(ranks, window, rows, seed)) for one in own]
    notes = sorted({note for _, one in found for note in one.notes})
    count = sum(sum(one.valid) for _, one in found)
    passes = {(r, one.micro) for r, one in found}
    if not found or not count:
        return Weights([], None, False, "no loss with a token or sample axis was seen", notes)
    expected = Fraction(1, count)
    tokens = [token for r, one in found for token in _tokens(r, one, expected)]
    if len(passes) < len(found):
        notes.append("several losses in one backward pass: their common weight is not decided here")
    if any(one.uneven for _, one in found):
        notes.append("the classes have weights of their own: tokens need not weigh the same")
    blind = len(passes) < len(found) or any(one.uneven for _, one in found)
    if blind or any(token["weight"] is None for token in tokens):
        why = notes[0] if notes else "a weight depends on data"
        return Weights(tokens, None, False, f"token weights are not known: {why}", notes)
    right = all(token["ok"] for token in tokens)
    exact = right and all(token["weight"] == token["expected"] for token in tokens)
    return Weights(tokens, right, exact, _verdict(tokens, expected, right, exact, len(ranks)), notes)


def _tokens(rank: int, one: Loss, expected: Fraction) -> list[dict[str, Any]]:
    made = []
    for position, (weight, valid) in enumerate(zip(one.weights(), one.valid, strict=True)):
        wanted = expected if valid else Fraction(0)
        ok = weight is not None and (weight == wanted or (valid and abs(weight / wanted - 1) <= CLOSE))
        made.append({
            "window": one.window, "rank": rank, "micro": one.micro, "token": position, "weight": weight,
            "expected": wanted, "ok": ok, "place": one.place,
        })  # fmt: skip
    return made


def shown(x: Fraction) -> str:
    """A short fraction that is close enough, else a decimal."""
    near = x.limit_denominator(10**6)
    return str(near) if x == near or (x and abs(near / x - 1) <= CLOSE) else f"{float(x):.6g}"


def _verdict(tokens: Sequence[dict[str, Any]], expected: Fraction, right: bool, exact: bool, ranks: int) -> str:
    if right:
        return f"token weights {shown(expected)} each" + ("" if exact else ", up to the rounding of constants")
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for token in tokens:
        if not token["ok"]:
            groups.setdefault((token["rank"], token["micro"]), []).append(token)
    parts = []
    for (rank, micro), wrong in groups.items():
        weights = sorted({shown(t["weight"]) for t in wrong})
        where = f"micro-batch {micro + 1}" + (f" on rank {rank}" if ranks > 1 else "")
        wanted = sorted({shown(t["expected"]) for t in wrong})
        parts.append(f"tokens of {where} weigh {' or '.join(weights[:3])}, should weigh {' or '.join(wanted)}")
    return "; ".join(parts)


# -- The samples in another order: other counts of valid tokens in every micro-batch.

MOST = 2
"""Orders that are recorded at most."""
CANDIDATES = 24
"""Orders among which these are chosen."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Which tokens of every sample (one a row) have a loss."""

    valid: Array

    def counts(self, run: Run, order: Array) -> list[TokenCounts]:
        """Counts of every window, with the samples in some order."""
        found, begin, size = [], 0, run.micro_batch_size
        for length in [run.accum_steps] * run.windows + [run.tail] * (run.tail > 0):
            rows = [self.valid[order[begin + k * size : begin + (k + 1) * size]] for k in range(length)]
            begin += length * size
            each = [[int(r.sum()) for r in rows], [int(r.size) for r in rows], [len(r) for r in rows]]
            first = tuple(int(r[:, 0].sum()) for r in rows)
            valid, tokens, samples = (tuple(c) for c in each)
            found.append(TokenCounts((valid,), (tokens,), (samples,), (first,), run.accum_steps))
        return found


def labels_of(tape: Tape, samples: int) -> Labels | None:
    """The labels of a run, where some of them are ignored and every sample has a row of its own."""
    losses = [entry for entry in tape.entries() if _by_label(entry.op, entry.args)]
    ignored = {int(entry.args[4]) for entry in losses}
    rows = rows_of(tape, samples)
    if not rows or len(ignored) != 1:
        return None
    known = [r != min(ignored) for r in rows.values() if r.ndim == 2 and (r == min(ignored)).any()]
    found = known[0] if len(known) == 1 else None if known else _computed(losses, min(ignored), samples)
    return None if found is None or found.all() else Labels(found)


def _computed(losses: Sequence[Entry], ignored: int, samples: int) -> Array | None:
    """Which labels are valid where these were computed from other integers: those that one line's losses take."""
    taken = [entry.args[1].value.ravel() for entry in losses if isinstance(entry.args[1], Const)]
    total = sum(map(len, taken))
    if not total or len(taken) < len(losses) or len({entry.place for entry in losses}) > 1 or total % samples:
        return None
    width = total // samples
    return None if any(len(t) % width for t in taken) else np.concatenate(taken).reshape(samples, width) != ignored


def _by_label(op: str, args: Sequence[Any]) -> bool:
    return op.startswith("aten.nll_loss") and "backward" not in op and len(args) > 4 and isinstance(args[4], int)


def rows_of(tape: Tape, samples: int) -> dict[str, Array]:
    """The integers of every site with one row a sample; none where a site has another number of rows, and may tell
    something of the samples: tables that are the same whenever they are made, or are short, do not."""
    found = {}
    for site, arrays in tape.integers.items():
        shapes = {np.shape(a) for a in arrays}
        if len(arrays) == samples and len(shapes) == 1:
            found[site] = np.stack(arrays).reshape(samples, -1)
        elif len({s[1:] for s in shapes}) == 1 and sum(len(a) for a in arrays) == samples:
            found[site] = np.concatenate(arrays)
        elif not _table(arrays, samples):
            return {}
    return found


def _table(arrays: Sequence[Array], samples: int) -> bool:
    first, *others = arrays
    return all(np.array_equal(first, a) for a in others) and (bool(others) or np.size(first) < samples)


def chosen(labels: Labels, run: Run) -> list[Array]:
    """Orders of which the counts leave fewest rules that look right; none where the recorded order leaves none."""
    count = len(labels.valid)
    tried = [np.argsort(labels.valid.sum(1), kind="stable")]
    tried += [np.random.default_rng(key).permutation(count) for key in range(CANDIDATES)]
    vectors = labels.counts(run, np.arange(count))
    picked: list[Array] = []
    while len(picked) < MOST and like_right(vectors):
        best = min(tried, key=lambda order: len(like_right([*vectors, *labels.counts(run, order)])))
        more = [*vectors, *labels.counts(run, best)]
        if len(like_right(more)) == len(like_right(vectors)):
            break
        vectors = more
        picked.append(best)
    return picked


def like_right(vectors: Sequence[TokenCounts]) -> list[str]:
    """The wrong rules that no vector tells from the right one."""
    return [b if a == "right" else a for a, b in alike(vectors) if "right" in (a, b)]


def reordered(session: StepRecordings) -> Iterator[StepRecordings]:
    """The session at other orders of its samples, where its labels are ragged. One rank only."""
    tape, run = session.ours[0].tape, session.run
    labels = labels_of(tape, run.samples) if session.ranks == 1 else None
    if labels is None:
        return
    rows = rows_of(tape, run.samples)
    for order in chosen(labels, run):
        known = streams(tape)
        values = Streams(known, known.blocks, {site: held[order].ravel() for site, held in rows.items()})
        ours = recorded(session.step, run, 1, [values])
        full = recorded(session.step, run.full_batch(), 1, [values])
        made = replace(session, ours=ours, full=full, moved=[], away=[], seconds={})
        made.moved = made.move()
        yield made


def left_behind(session: StepRecordings, other: StepRecordings) -> bool:
    """Whether counts of the labels went through Python and stayed what they were while the labels moved."""
    labels = labels_of(session.ours[0].tape, session.run.samples)
    if labels is None:
        return False
    known = {n for c in labels.counts(session.run, np.arange(len(labels.valid))) for n in _counts(c)}
    plain = {1, session.run.accum_steps, session.run.micro_batch_size, session.run.effective_batch_size}
    before, after = (scalars(s.ours[0].tape) for s in (session, other))
    return before == after and any({n, round(1 / n)} & (known - plain) for n in before)


def _counts(one: TokenCounts) -> list[int]:
    return [*(n for rank in one.valid for n in rank), sum(map(sum, one.valid))]


def scalars(tape: Tape) -> set[float]:
    """Python numbers, and numbers that were put into tensors, by which something is multiplied or divided.

    Those below 2^-64 are no count and none's reciprocal; zero, infinity and NaN are left out for the same reason.
    """
    args = [a for e in tape.entries() if e.op.split(".")[1].rstrip("_") in FACTORS for a in e.args]
    found = {float(a) for a in args if isinstance(a, int | float)}
    found |= {float(a.value) for a in args if isinstance(a, Const) and a.value.ndim == 0 and a.marks is None}
    return {n for n in found if 2.0**-64 <= abs(n) < math.inf}


def untold(session: StepRecordings, orders: Sequence[StepRecordings]) -> list[str]:
    """Wrong rules that no recorded order tells from the right one, in words."""
    found = [labels_of(s.ours[0].tape, s.run.samples) for s in (session, *orders)]
    known = [labels for labels in found if labels is not None]
    if not known or session.ranks > 1:
        return []
    vectors = [c for labels in known for c in labels.counts(session.run, np.arange(len(labels.valid)))]
    left = [name for name in like_right(vectors) if "device" not in name]
    return [f"at the recorded counts these rules give the right weights too: {', '.join(left)}"] if left else []
