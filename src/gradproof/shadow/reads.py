"""Which integer data every window reads: token ids and labels, followed from their site to what takes them.

Integers cannot be moved as floats can, but the recorder marks where each element came from (`counts`). Per line and
operator, the elements that a window reads must be those of the full batch's window, and with several ranks those of
the ranks together; a window must not read the first one's again where there is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradproof.shadow.count_marks import Marks, Unknown
from gradproof.shadow.layout import blocks_of, sample_axis
from gradproof.shadow.match import joined
from gradproof.shadow.session import Session
from gradproof.shadow.tape import Const, Entry, Event, Tape

Site = tuple[str, str, int]
"""The user's line, the operator and the number of its argument."""
Element = tuple[str, int]
"""The site of the data and the place in its stream."""


@dataclass(slots=True)
class Reads:
    """What one operator's argument reads, window by window; `followed`: no element of it came from elsewhere."""

    windows: dict[int, set[Element]] = field(default_factory=dict)
    followed: bool = True

    @property
    def all(self) -> set[Element]:
        """The elements of every window."""
        return set().union(*self.windows.values())


def reads_of(tape: Tape) -> dict[Site, Reads]:
    """Every argument of integers that a forward pass takes."""
    found: dict[Site, Reads] = {}
    window = 0
    for item in tape.items:
        if isinstance(item, Event) and item.kind == "step":
            window += any(window in r.windows for r in found.values())
        elif isinstance(item, Entry) and not item.backward:
            for number, arg in enumerate(item.args):
                if isinstance(arg, Const) and isinstance(arg.marks, Marks) and arg.value.dtype.kind == "i":
                    reads = found.setdefault((str(item.place), item.op, number), Reads())
                    elements = [_element(m, tape) for m in arg.marks.marks.ravel().tolist()]
                    reads.followed = reads.followed and None not in elements
                    reads.windows.setdefault(window, set()).update(e for e in elements if e is not None)
    return found


def _element(mark: object, tape: Tape) -> Element | None:
    if not isinstance(mark, Unknown) or len(mark.key) != 3 or mark.key[0] not in tape.integers:
        return None
    site, first, index = mark.key
    return str(site), int(first) + int(index)


def integers_differ(session: Session) -> str:
    """How the windows' integers are not those of the full batch, or of the other ranks, or not new; else nothing."""
    ours, full = ([reads_of(r.tape) for r in side] for side in (session.ours, session.full))
    for rank, (mine, theirs) in enumerate(zip(ours, full, strict=True)):
        aside = side_by_side(session.ours[rank].tape, session.full[rank].tape)
        for key in mine.keys() & theirs.keys():
            a, b = mine[key], theirs[key]
            same = {site for site, _ in a.all} == {site for site, _ in b.all}
            if a.followed and b.followed and same and not aside & {site for site, _ in a.all}:
                found = _apart(a, b) or _again(a, session.ours[0].tape)
                if found:
                    return found
    return _shared(ours, session) if session.ranks > 1 else ""


def side_by_side(ours: Tape, full: Tape) -> set[str]:
    """Sites of which the full batch has its samples along a later axis: places in the streams are not the same."""
    blocks = blocks_of({site: {np.shape(a) for a in arrays} for site, arrays in ours.integers.items()})
    return {
        s for s, arrays in full.integers.items() if any(sample_axis(blocks.get(s, ()), np.shape(a)) for a in arrays)
    }


def _apart(ours: Reads, full: Reads) -> str:
    for window in sorted(ours.windows.keys() & full.windows.keys()):
        a, b = ours.windows[window], full.windows[window]
        if a != b:
            words = f"reads {len(a)} integers of the data, the full batch {len(b)}, {len(a & b)} of both"
            return f"window {window + 1} {words}"
    return ""


def _again(reads: Reads, tape: Tape) -> str:
    first, *others = reads.windows.values()
    if not others or not first or any(w != first for w in others):
        return ""
    unread = _unread(first, tape)
    return (
        f"every window reads the same integers, and {unread} of them are never read" if unread > len(first) / 2 else ""
    )


def _unread(read: set[Element], tape: Tape) -> int:
    held = sum(np.size(a) for site in {site for site, _ in read} for a in tape.integers[site])
    return int(held) - len(read)


def _shared(ours: Sequence[dict[Site, Reads]], session: Session) -> str:
    """All ranks read the same elements of the same data, and leave as many to nobody."""
    for key in set(ours[0]).intersection(*ours[1:]):
        each = [reads[key] for reads in ours]
        first = each[0].all
        if not first or any(not r.followed or r.all != first for r in each):
            continue
        unread = _unread(first, session.ours[0].tape)
        if unread > len(first) / 2 and _same_data({site for site, _ in first}, session):
            return f"every rank reads the same samples, and {unread} integers of the data are read by none"
    return ""


def _same_data(sites: set[str], session: Session) -> bool:
    return all(_alike(site, [r.tape for r in session.ours]) for site in sites)


def _alike(site: str, tapes: Sequence[Tape]) -> bool:
    streams = _streams(site, tapes)
    first = next(streams)
    return all(np.array_equal(first, other) for other in streams)


def _streams(site: str, tapes: Sequence[Tape]) -> Iterator[np.ndarray]:
    return (joined(tape.integers.get(site, []), ()) for tape in tapes)
