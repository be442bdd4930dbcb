"""The windows of a watched run as their events show them: which backward passes are a window's micro-batches.

A pass is a micro-batch where it follows the next batch of an iteration over a data loader. A window is the last one of
an epoch where that iteration came to its end, or as many passes were made as the caller gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, pairwise

from gradproof.shadow.tape.calls import PASS, STEP, ZERO
from gradproof.shadow.tape.run_events import SeenEvent, SeenPass


class SeenWindow:
    """A recorded window. `following`: the first backward pass of the next one.

    `ended`: an epoch ended with it. `shown`: each backward pass follows the next batch of one iteration over a data
    loader, or the caller gave the passes of an epoch. `simple`: each follows one forward pass, which calls no module
    twice, or those of its batch alone, as the values show. `begins`: the first pass of each micro-batch, which has
    `each` passes of one batch. `stepped`: how many events there are before each optimizer has stepped. `zeroed`: what
    came first was zeroed, and is no part of what is stepped.
    """

    def __init__(
        self, number: int, events: list[SeenEvent], following: SeenPass | None, length: int | None, each: int = 1
    ) -> None:
        self.number, self.events = number, events
        self.passes = [event for event in events if event.kind == PASS and event.about is not None]
        self.steps = [event for event in events if event.kind == STEP]
        self.before_step = events[: events.index(self.steps[0])] if self.steps else events
        first = {event.about.optimizer: events.index(event) for event in self.steps[::-1]}
        self.stepped = max(first.values(), default=len(events))
        self.begins = self.passes[::each]
        pairs = zip(self.begins, self.passes[each - 1 :: each], strict=False)
        if len(self.passes) % each or any(batches(one.about, last.about) != 1 for one, last in pairs):
            self.begins = self.passes
        self.zeroed = ZERO in (event.kind for event in dropwhile(lambda event: event.kind != PASS, self.before_step))
        self.count, seen = len(self.begins), [event.about for event in self.passes]
        self.first: SeenPass = seen[0] if seen else SeenPass()
        self.last: SeenPass = seen[-1] if seen else SeenPass()
        self.forwards = {one.forwards for one in seen}
        self.simple = self.forwards == {1} and not any(one.again for one in seen)
        it = self.last.iteration  # of which this pass was the last, if it was read to its end
        done = it is not None and it.trained and self.last.read == it.read
        done = done and (following is None or following.iteration is not it)
        self.ended = done or bool(length and seen and not self.last.passes % length)
        follow = all(batches(a.about, b.about) == (1 if b.about.ahead else 2) for a, b in pairwise(self.begins))
        self.shown = (follow and self.first.iteration is not None) or length is not None

    def wrong(self, windows: Sequence[SeenWindow], n: int) -> bool:
        """Whether a window of another number than `n` is shown to be wrong, where each longer one is shown.

        A short one is no tail where it stands beside another one, and nothing lies between them: the batches went on in
        one pass over a data loader, or both have one micro-batch, and an epoch of one has nothing to accumulate.
        """
        if self.count > n:
            return not self.zeroed and all(one.shown for one in windows if one.count > n)
        near = {window.number: window for window in windows}
        before, after = near.get(self.number - 1), near.get(self.number + 1)
        pairs = [(one, other) for one, other in ((before, self), (self, after)) if one and other]
        found = batches(before.last, self.last) if before is not None else 0
        read = found - 1 if found else self.last.read  # from a data loader, since the window before
        return read < n and any(beside(one, other, n) for one, other in pairs)

    def rest(self, n: int) -> bool:
        """Whether it is what an epoch left over of windows of `n`, and is zeroed after its last micro-batch."""
        order, of = [event.kind for event in self.events if event.kind in (PASS, ZERO)], self.last.iteration
        whole = of is not None and of.complete and ZERO not in order[: len(self.passes)]
        return whole and self.shown and self.simple and self.count < n


def left_over(events: Sequence[SeenEvent], length: int | None) -> int:
    """Where in a window that is zeroed begins what is no rest of an epoch: the rest is shorter than what follows.

    `length`: the backward passes of an epoch, where that was given. 0 where no end of an epoch is shown.
    """
    for at in (at for at, event in enumerate(events) if event.kind == ZERO):
        rest, own = ([e.about for e in part if e.kind == PASS] for part in (events[:at], events[at:]))
        if not rest or len(rest) >= len(own) or None in (*rest, *own):
            continue
        of = rest[-1].iteration
        if not rest[-1].passes % length if length else of and of.complete and of is not own[0].iteration:
            return at
    return 0


def beside(one: SeenWindow, other: SeenWindow, n: int) -> bool:
    """Whether nothing lies between two windows in a row, both shorter than `n`."""
    short = all(window.count < n and window.simple and not window.ended for window in (one, other))
    return short and (batches(one.last, other.first) > 1 or one.count == other.count == 1)


def batches(first: SeenPass, last: SeenPass) -> int:
    """How many batches one iteration over a data loader gave from one backward pass to another; 0: not known."""
    known = first.iteration is not None and first.iteration is last.iteration
    return last.read - first.read + 1 if known else 0
