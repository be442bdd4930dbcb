"""Whether the loss of a sample depends on its neighbours, found by experiment on the full batch's tape.

A loss that is a sum over samples has no mixed second difference: for the data A of one micro-batch and B of another,
L(A', B') - L(A', B) - L(A, B') + L(A, B) = 0. The four losses are residues at random values, so that a difference that
is not zero is no rounding. Which data belong to which micro-batch is read from the terms of the N-run's roots.
Integer data cannot be moved: for them only trained batch statistics are known, by their operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Parts, Value
from gradproof.shadow.domains.interpreter import Havoc, Interpreter, NoRow, Observation
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Compiler
from gradproof.shadow.domains.real import Reals, Special
from gradproof.shadow.record.run import Recording
from gradproof.shadow.tape import Event, Place, Ref, Source
from gradproof.shadow.verify.compare import windows
from gradproof.shadow.verify.decide import size_of
from gradproof.shadow.verify.recordings import StepRecordings, batch_norm

Names = frozenset[str]


class Mixed(Field):
    """A field whose leaves are taken at another point where their names are chosen."""

    def __init__(self, chosen: Names, key: int = 11) -> None:
        super().__init__(key)
        self.chosen, self.other = chosen, Field(key + 1)

    def leaf(self, source: Source, shape: tuple[int, ...], value: Array) -> Parts:
        """As Field's, at the other point for the chosen elements."""
        here, degree = super().leaf(source, shape, value)[:2]
        there = self.other.leaf(source, shape, value)[0]
        count = int(np.prod(shape, dtype=np.int64))
        names = (f"{source.kind}/{source.name}[{source.first + i}]" for i in range(count))
        taken = np.fromiter((name in self.chosen for name in names), dtype=bool, count=count).reshape(shape)
        made: list[Any] = [np.where(taken, there, here), degree]
        return (*made, *super().leaf(source, shape, value)[2:])


def interacting(session: StepRecordings) -> Place | None:
    """Where the samples of the full batch interact; None where they do not, or where it cannot be found out."""
    known = batch_norm(session.full[0].tape)
    if known is not None:
        return known
    if size_of(session.ours[0].tape) > session.operations or session.ranks > 1:
        return None
    try:
        return _mixed(session)
    except (NoRow, Beyond):
        return None


def _mixed(session: StepRecordings) -> Place | None:
    found = data_of_roots(session, session.ours)
    groups = found[0] if found else []
    for a, b in pairwise(groups):
        if a & b or not a or not b:
            continue
        losses = [_loss(session, chosen) for chosen in (a | b, a, b, frozenset())]
        if any(loss is None for loss in losses):
            continue
        both, one, other, none = (loss for loss in losses if loss is not None)
        if int(both + none) % (2**61 - 1) != int(one + other) % (2**61 - 1):
            return next(e.place for e in session.full[0].tape.events("backward"))
    return None


def data_of_roots(session: StepRecordings, recordings: Sequence[Recording]) -> list[list[Names]]:
    """The data elements on which each root depends beyond the weights, window by window, micro-batch by micro-batch.

    A weight that was stepped depends on the data of the windows before; what a window shares with all later ones
    through its weights is distinguished by cutting the weights off (`Cut`).
    """
    domain = Reals()
    reading = Cut(domain, session.havoc).run(recordings[0].tape, _roots)
    found = []
    for window in windows(reading.observations):
        found.append([_data(domain, root) for root in window.roots])
    return found


def _data(domain: Reals, observation: Observation) -> Names:
    terms = [t for v in observation.values.values() for t in v.parts[0].ravel().tolist()]
    program = Compiler(domain.pool).compile([t for t in terms if not isinstance(t, Special)])
    names = (str(step.payload) for step in program.steps if step.op == "variable")
    return frozenset(name for name in names if name.startswith("data/"))


class Cut(Interpreter):
    """Makes every weight an unknown of its own again after each step."""

    def __init__(self, domain: Reals, havoc: Havoc | None) -> None:
        super().__init__(domain, havoc=havoc)
        self.steps = 0

    def observe(self, event: Event) -> Observation:
        """As the interpreter's; after `stepped` the weights are fresh variables."""
        seen = super().observe(event)
        for name, ref in event.refs.items() if event.kind == "stepped" else ():
            if isinstance(ref, Ref) and name.startswith(("param/", "state/")) and ref.floating:
                self.steps += 1
                fresh = self.domain.leaf(Source("param", f"{name} {self.steps}"), ref.shape, np.zeros(ref.shape))
                self.memory.write(ref, Value(self.domain, fresh))
        return seen


AGAIN = "reads all data of the window before it once more, and further ones"


def data_differ(session: StepRecordings) -> tuple[str, str]:
    """How the windows' data are not those of the full batch, or not new from window to window; else nothing.

    The second text says why it was not looked at which window reads what, where it was not.
    """
    if session.ranks > 1:
        return "", "several ranks"
    if size_of(session.ours[0].tape) > session.operations:
        return "", f"more than {session.operations} scalar operations"
    try:
        ours, full = (data_of_roots(session, r) for r in (session.ours, session.full))
    except (NoRow, Beyond) as error:
        return "", str(error)
    mine, theirs = ([frozenset().union(*w) for w in side] for side in (ours, full))
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            words = f"reads {len(a)} numbers of the data, the full batch {len(b)}, {len(a & b)} of both"
            return f"window {index + 1} {words}", ""
        if index and theirs[index - 1] and theirs[index - 1] < b:
            return f"window {index + 1} {AGAIN}", ""
    return _restarted(session, theirs), "" if any(theirs) else "no number of the data was seen to reach a loss"


def _restarted(session: StepRecordings, windows_: Sequence[Names]) -> str:
    """Every window reads the same data although there are more: a loader that begins anew."""
    if len(windows_) < 2 or not windows_[0] or any(w != windows_[0] for w in windows_):
        return ""
    tape = session.full[0].tape
    sources = {name.rpartition("[")[0] for name in windows_[0]}
    leaves = [leaf for leaf in tape.leaves() if f"data/{leaf.source.name}" in sources]
    unread = sum(leaf.ref.count for leaf in leaves) - len(windows_[0])
    return (
        f"every window reads the same data, and {unread} numbers of them are never read"
        if unread > len(windows_[0]) / 2
        else ""
    )


def _roots(event: Event) -> bool:
    return event.kind in ("backward", "step", "stepped") and bool(event.refs)


def _loss(session: StepRecordings, chosen: Names) -> int | None:
    """The first window's loss of the full batch as a residue."""
    reading = session.read(Mixed(chosen), session.full, _roots)[0]
    first = windows(reading.observations)[:1]
    value = first[0].loss() if first and first[0].steps else None
    if value is None:
        return None
    residue = int(value.parts[0])
    return residue if residue < 2**61 - 1 else None
