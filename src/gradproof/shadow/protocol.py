"""The acts of a run against the table of the window protocol: which obligation is broken, where, and for which weights.

The table is that of `models/window.py`, the one that is proved for every number of micro-batches. A run is judged one
parameter and one scheduler at a time, because each buffer has a window of its own:

* A zero of a buffer that holds nothing, and a zero of what was first moved into an accumulator that is then applied,
  are no acts. A parameter that no gradient reached in a window (unused, frozen) needs no zero after it.
* Backward passes are counted by optimizer: a parameter that one micro-batch does not reach still has its window.
  Where every micro-batch takes several backward passes, each counts, and windows are that much longer.
* An optimizer of master weights, which backward passes never reach, has the windows of the weights that they do reach.
* A step that a wrapper makes around another optimizer's step is the inner one's.
* A step that a scaler skipped ends its window like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradproof.shadow.flow import acts_of
from gradproof.shadow.flow_ops import NARROW, Act, Acts
from gradproof.shadow.tape import Place, Tape
from gradproof.shadow.windows import Broken, Cluster, Windows

SHOWN = ("how", "limit", "lr", "before", "after", "skipped", "type", "number", "by hand", "by_hand", "world")


@dataclass(slots=True)
class Judgement:
    """What the events of one run say. `events` are plain data, for reading. `sizes` are the windows it was held to.

    `unseen` says of what the events do not speak: where it is not empty, nothing but the number of steps was judged.
    `doubts`: obligations that nothing broke and that the operators do not show; why, and where.
    """

    broken: list[Broken] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: int = 0
    arrivals: int = 0
    unseen: list[str] = field(default_factory=list)
    doubts: dict[str, tuple[str, Place]] = field(default_factory=dict)


def window_sizes(accum_steps: int, windows: int, tail: int = 0) -> list[int]:
    """Micro-batches of each window: full ones, then a short last one."""
    return [accum_steps] * windows + [tail] * (tail > 0)


def check_protocol(tape: Tape, accum_steps: int, windows: int, tail: int = 0) -> Judgement:
    """Judge a recorded run whose windows are known."""
    return judge(acts_of(tape), window_sizes(accum_steps, windows, tail))


Sizes = Callable[[Acts, Cluster], Sequence[int]]


def judge(acts: Acts, sizes: Sequence[int], each: Sizes | None = None) -> Judgement:
    """Judge the acts of a run: the first break of each parameter's and scheduler's stream, merged where they agree.

    `each` gives the windows of a cluster where they differ from `sizes`.
    """
    found = Judgement(sizes=list(sizes), events=readable(acts.acts), doubts=dict(acts.doubts))
    breaks: list[tuple[Broken, str]] = []
    groups = list(clusters(acts))
    for cluster in groups:
        run = Windows(acts, cluster, sizes if each is None else each(acts, cluster))
        found.arrivals = max(found.arrivals, len(run.numbers))
        found.steps += len({(a.detail.get("call"), a.micro) for a in run.steps})
        breaks.extend(run.breaks())
    breaks.extend(_outside(acts, groups))
    breaks.extend(_uncounted(acts, groups, sizes, found))
    if max(sizes, default=1) > 1:
        breaks.extend(narrow(acts, groups))
    found.broken = merged(breaks)
    return found


def readable(acts: Iterable[Act]) -> list[dict[str, Any]]:
    """Acts as plain data; the same act on one parameter after the other, at one line, is one row."""
    rows: list[dict[str, Any]] = []
    for act in acts:
        shown = {k: _plain(v) for k, v in act.detail.items() if k in SHOWN and v not in (None, "", False)}
        row = {"event": act.kind, "place": str(act.place), "micro": act.micro, "params": sorted(act.params), **shown}
        last = rows[-1] if rows else row
        if act.params and last is not row and {**last, "params": []} == {**row, "params": []}:
            last["params"] = sorted({*last["params"], *row["params"]})
        else:
            rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def merged(breaks: Iterable[tuple[Broken, str]]) -> list[Broken]:
    """One finding for all the parameters that one act broke in the same way, in the order of the run."""
    groups: dict[tuple[str, str, str, str], list[tuple[Broken, str]]] = {}
    for broken, name in breaks:
        key = (broken.obligation, broken.why, broken.event, str(broken.place))
        groups.setdefault(key, []).append((broken, name))
    out = []
    for rows in groups.values():
        first = min((b for b, _ in rows), key=lambda b: b.index)
        names = tuple(dict.fromkeys(n for _, n in rows if n))
        out.append(Broken(first.obligation, first.why, first.event, first.place, first.micro, names, first.index))
    return sorted(out, key=lambda b: b.index)


def clusters(acts: Acts) -> Iterator[Cluster]:
    """The optimizers that stepped, or that were made and never did, each with the parameters that it answers for."""
    steps = [a for a in acts.acts if a.kind == "step"]
    wrappers = {a.detail.get("outer") for a in steps} - {None}
    reached = frozenset().union(*(a.params for a in acts.acts if a.kind == "arrive"))
    own: dict[int, frozenset[str]] = {}
    for step in steps:
        if step.detail.get("optimizer") not in wrappers:
            key = int(step.detail.get("optimizer", -1))
            own[key] = own.get(key, frozenset()) | step.params
    ends = [a for a in acts.acts if a.kind == "end"]
    made = {k: frozenset(v) for a in ends for k, v in a.detail.get("optimizers", {}).items()}
    for key, params in made.items():
        taken = frozenset().union(*own.values())
        if key not in own and key not in wrappers and params & reached - taken:
            own[key] = params - taken
    if not own:
        own[-1] = reached
    free = reached - frozenset().union(*own.values())
    for key, names in own.items():
        if names & reached:
            yield Cluster(key, names & reached, names)
        elif free:
            yield Cluster(key, free, names | free, masters=True)


def _uncounted(
    acts: Acts, groups: list[Cluster], sizes: Sequence[int], found: Judgement
) -> Iterator[tuple[Broken, str]]:
    """Steps of gradients whose arrival nothing saw: only their number can be judged."""
    known = frozenset().union(*(c.own for c in groups))
    unseen: dict[int, list[Act]] = {}
    for act in acts.acts:
        if act.kind == "step" and not act.params & known:
            unseen.setdefault(act.detail.get("optimizer", -1), []).append(act)
    for steps in unseen.values():
        found.steps += len(steps)
        found.unseen.append(f"{steps[0].place}: gradients are applied here that no backward pass was seen to bring")
        if len(steps) != len(sizes):
            why = f"{len(steps)} optimizer steps for {len(sizes)} windows"
            act = steps[min(len(sizes), len(steps) - 1)]
            yield from (
                (Broken("GA-INV-003", why, "step", act.place, act.micro, (), act.index), name)
                for name in sorted(act.params)
            )


def _outside(acts: Acts, groups: list[Cluster]) -> Iterator[tuple[Broken, str]]:
    why = "the optimizer's state was advanced by the gradients outside the optimizer's step"
    known = frozenset().union(*(c.own for c in groups))
    for act in acts.outside:
        for name in act.params & known:
            yield Broken("GA-INV-003", why, "state", act.place, act.micro, (), act.index), name


def narrow(acts: Acts, groups: list[Cluster]) -> Iterator[tuple[Broken, str]]:
    """Accumulation in fewer bits than fp32: into `.grad`, or into a buffer of the user's own."""
    answered = frozenset().union(*(c.params for c in groups))
    for found in acts.narrowed:
        if found.param in answered:
            yield Broken("GA-INV-004", found.why, "accumulate", found.place, found.micro, (), found.index), found.param
    held: dict[str, int] = {}
    for act in acts.acts:
        if act.kind in ("zero", "step"):
            held.update(dict.fromkeys(act.params, 0))
        if act.kind != "arrive" or act.detail.get("taken"):
            continue
        for name in sorted(act.params & answered):
            held[name] = held.get(name, 0) + 1
            dtype = act.detail.get("dtypes", {}).get(name, "")
            if held[name] == 2 and dtype in NARROW:
                why = f"gradients are accumulated in {dtype}"
                yield Broken("GA-INV-004", why, "accumulate", act.place, act.micro, (), act.index), name
