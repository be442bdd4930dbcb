"""The samples in another order: other counts of valid tokens in every micro-batch.

A wrong normaliser may be right by accident, at the counts that were recorded. Where the valid labels are ragged the
step is recorded again with the samples in other orders, chosen so that the counts tell the wrong rules of
`token_weights` from the right one. All integers of a sample move together, so that whatever relates its labels to its
mask is kept; an order of samples is a data set like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradproof.shadow.record.run import Run
from gradproof.shadow.tape import Array, Const, Entry, Streams, Tape, streams
from gradproof.shadow.verify.recordings import StepRecordings, recorded
from gradproof.shadow.verify.token_weights import FACTORS, TokenCounts, alike

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
