"""The windows of one optimizer's parameters, as a stream of the table's events for each, and where it breaks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import PACKAGE
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.protocol.events import NARROW, ProtocolEvent

TABLE = "gradproof_window_table"


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken obligation: the event that broke it, as the table names it, its line, and the parameters concerned.

    `micro` counts the backward passes before it, `index` is its item on the log. `last`: the window's events were
    followed no further, so that nothing is known of what they break after it.
    """

    obligation: str
    why: str
    event: str
    location: Location
    micro: int
    params: tuple[str, ...]
    index: int
    last: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """Parameters whose windows coincide: those of one optimizer. `own` are the names that its steps and clips use."""

    optimizer: int
    params: frozenset[str]
    own: frozenset[str]
    masters: bool = False


@lru_cache(maxsize=1)
def table() -> ModuleType:
    """The module `models/accumulation/window.py` of this checkout, or the packaged copy, under a private name.

    Raises GradproofError GP409 when neither is there.
    """
    homes = (PACKAGE / "_reference", PACKAGE.parents[1])
    locations = [home / "models" / "accumulation" / "window.py" for home in homes]
    found = next((path for path in locations if path.is_file()), None)
    spec = None if found is None else importlib.util.spec_from_file_location(TABLE, found)
    if spec is None or spec.loader is None:
        raise GradproofError(
            "GP409", f"no table of the window protocol at {' or '.join(map(str, locations))}",
            "models/accumulation/window.py, packaged with gradproof or in its checkout",
            "install gradproof again, from its wheel",
        )  # fmt: skip
    module = importlib.util.module_from_spec(spec)
    sys.modules[TABLE] = module
    spec.loader.exec_module(module)
    return module


class Windows:
    """The windows of one cluster."""

    def __init__(self, acts: list[ProtocolEvent], cluster: Cluster, sizes: Sequence[int]) -> None:
        self.acts, self.cluster = acts, cluster
        self.steps = [a for a in acts if a.kind == "step" and a.detail.get("optimizer", -1) == cluster.optimizer]
        self.taken = False
        self.passes: dict[int, list[ProtocolEvent]] = {}
        for act in acts:
            if act.kind == "arrive":
                self.passes.setdefault(act.detail["number"], []).append(act)
        self.numbers = self._numbers()
        sizes = evaluated(self.steps, sizes)
        total = sum(sizes)
        times = len(self.numbers) // total if total and len(self.numbers) % total == 0 else 1
        self.sizes = [n * max(times, 1) for n in sizes]

    def _numbers(self) -> list[int]:
        arrivals = [a for a in self.acts if a.kind == "arrive" and a.params & self.cluster.params]
        plain = [a for a in arrivals if not a.detail.get("taken")]
        self.taken = bool(arrivals) and not plain
        return list(dict.fromkeys(a.detail["number"] for a in plain or arrivals))

    def breaks(self) -> Iterator[tuple[Broken, str]]:
        """The first break of every parameter's stream, without a scheduler and with each."""
        schedulers = {a.detail["scheduler"] for a in self.acts if a.kind == "schedule" and self._mine(a)}
        seen: dict[tuple[Any, ...], list[Broken]] = {}
        for name in sorted(self.cluster.params):
            stream = self.stream(name)
            scaled = any(event == "unscale" or act.detail.get("scaled") for event, act in stream)
            shape = (scaled, tuple((event, id(act)) for event, act in stream))
            if shape not in seen:
                seen[shape] = list(self._replay(stream, scaled, None, name))
                for scheduler in sorted(schedulers):
                    seen[shape].extend(self._replay(stream, scaled, scheduler, name))
            yield from ((broken, name) for broken in seen[shape])
        yield from self._ranks()
        yield from self._rates()

    def _mine(self, act: ProtocolEvent) -> bool:
        optimizer = act.detail.get("optimizer")
        return optimizer is None or optimizer == self.cluster.optimizer

    def _replay(
        self, stream: list[tuple[str, ProtocolEvent]], scaled: bool, scheduler: int | None, name: str
    ) -> Iterator[Broken]:
        window = table()
        stated = [(e, a) for e, a in stream if e != "schedule" or a.detail["scheduler"] == scheduler]
        trace = window.replay([window.Event(event) for event, _ in stated], self.sizes, scaled)
        if (
            not trace
            or trace[-1].broken is None
            or (scheduler is not None and stated[trace[-1].index][0] != "schedule")
        ):
            return
        at, broken = trace[-1].index, trace[-1].broken
        if stated[at][0] in ("clip", "unscale"):
            at, broken = _cause(stated, trace[-1])
        event, act = stated[at]
        if broken.why == table().RULES[window.State.STEPPED, window.Event.STEP].why:
            before = next(a for e, a in reversed(stated[:at]) if e == "step")
            act = before if act.location.via and not before.location.via else act
        location = self._last() if event == "end" or act.location == NOWHERE else act.location
        yield Broken(broken.obligation, broken.why, event, location, act.micro, (), act.index, event != "end")

    def _last(self) -> Location:
        arrivals = (a.location for a in self.acts if a.kind == "arrive" and a.params & self.cluster.params)
        return self.steps[-1].location if self.steps else next(reversed(list(arrivals)), NOWHERE)

    def stream(self, name: str) -> list[tuple[str, ProtocolEvent]]:
        """The events of the table that concern one parameter, in order."""
        out: list[tuple[str, ProtocolEvent]] = []
        held, stated, last_number = False, set[int](), None
        wanted = set(self.numbers)
        for act in self.acts:
            number = act.detail.get("number")
            if act.kind == "arrive" and number in wanted:
                held = held or name in act.params
                if number not in stated and self._counts(act, name):
                    stated.add(number)
                    out.append(("accumulate", act))
                    last_number = number
            elif act.kind == "assign" and (name in act.params or self.cluster.masters):
                held = held or name in act.params
            elif act.kind == "zero" and name in act.params:
                if held and not self._moved(act, name, last_number):
                    out.append(("zero", act))
                held = False
            elif act.kind == "step" and act in self.steps and (name in act.params or name not in self._stepped()):
                out.append(("step", act))
                if not held or self.taken:
                    out.append(("zero", act))
            else:
                out.extend(self._other(act, name))
        return out

    def _counts(self, act: ProtocolEvent, name: str) -> bool:
        """Whether this act is the one of its backward pass that stands for this parameter."""
        same = self.passes[act.detail["number"]]
        mine = [a for a in same if name in a.params] or [a for a in same if a.params & self.cluster.params]
        return act is mine[0]

    def _other(self, act: ProtocolEvent, name: str) -> Iterator[tuple[str, ProtocolEvent]]:
        proxy = name not in self._stepped() and bool(act.params & self.cluster.own)
        if act.kind in ("unscale", "clip") and (name in act.params or proxy):
            yield act.kind, act
        elif act.kind == "sync" and name in act.params:
            yield "sync", act
        elif act.kind == "schedule" and self._mine(act) and not _repeated(act, self.acts):
            yield "schedule", act
        elif act.kind == "end":
            yield "end", act

    def _stepped(self) -> frozenset[str]:
        return frozenset().union(*(a.params for a in self.steps)) if self.steps else self.cluster.params

    def _moved(self, zero: ProtocolEvent, name: str, number: int | None) -> bool:
        """Whether what is zeroed was first added to something that the next step applies."""
        after = [a for a in self.acts if a.index > zero.index]
        step = next((a for a in after if a in self.steps), None)
        applied = any(a.micro >= number for a in self.steps if a.index < zero.index) if number else True
        if step is None or applied:
            return False
        between = (a for a in after if a.index < step.index and a.kind in ("assign", "touch"))
        return any(name in a.params or a.params & self.cluster.own for a in between)

    def _rates(self) -> Iterator[tuple[Broken, str]]:
        """A learning rate that is set by hand more than once a window, and there between two of its backward passes.

        Set once a window, before its first backward pass or before its step, it is a schedule like any other.
        """
        why = (
            "the learning rate was changed by hand more than once in a window: before this line, between micro-batches"
        )
        opened, changes, inner = False, 0, None
        for act in self.acts:
            if act.kind == "arrive" and act.detail.get("number") in self.numbers:
                opened = True
            elif act.kind == "rate" and self._mine(act):
                changes += 1
                inner = act if opened and act.detail["at"] == "backward" else inner
                if inner is not None and changes > 1:
                    broken = Broken("GA-INV-003", why, "rate", inner.location, inner.micro, (), inner.index)
                    yield from ((broken, name) for name in sorted(self.cluster.params))
                    return
            elif act in self.steps:
                opened, changes, inner = False, 0, None

    def _flat(self, act: ProtocolEvent) -> bool:
        """A sum of more than a number: it may be the gradients, flattened."""
        return not act.params and int(act.detail.get("elements", 1)) > 1

    def _ranks(self) -> Iterator[tuple[Broken, str]]:
        """With several ranks, each gradient that a step applies was summed after its last arrival.

        Judged are the weights that a DistributedDataParallel answers for. Who sums others need not be seen.
        """
        due: set[str] = set()
        for act in self.acts:
            if act.kind == "arrive":
                due |= self.cluster.params & act.params & set(act.detail.get("shared", ()))
            elif act.kind == "zero":
                due -= act.params
            elif act.kind == "sync":
                due -= set(due) if self._flat(act) else act.params
            elif act in self.steps and due:
                why = "stepped on a gradient that was not summed over the ranks after the last micro-batch"
                broken = Broken("GA-SYNC-001", why, "step", act.location, act.micro, (), act.index)
                yield from ((broken, name) for name in sorted(due))
                return


def evaluated(steps: Sequence[ProtocolEvent], sizes: Sequence[int]) -> list[int]:
    """Sizes of the windows where an optimizer (LBFGS) evaluates its closure several times: each is a window."""
    calls: dict[Any, int] = {}
    for step in steps:
        calls[step.detail.get("call")] = calls.get(step.detail.get("call"), 0) + 1
    several = any(int(step.detail.get("evaluation", 0)) > 1 for step in steps)
    if not several or len(calls) != len(sizes):
        return list(sizes)
    return [n for n, times in zip(sizes, calls.values(), strict=True) for _ in range(times)]


def _cause(stated: list[tuple[str, ProtocolEvent]], step: Any) -> tuple[int, Any]:
    """A clip or unscale that only goes with a step that is wrong itself: then the step is at fault."""
    window = table()
    following = step.index + 1
    while following < len(stated) and stated[following][0] in ("clip", "unscale", "sync"):
        following += 1
    wrong = window.RULES[step.before, window.Event.STEP]
    stepped = following < len(stated) and stated[following][0] == "step"
    return (following, wrong) if stepped and isinstance(wrong, window.Breaks) else (step.index, step.broken)


def _repeated(act: ProtocolEvent, acts: list[ProtocolEvent]) -> bool:
    """Accelerate advances a schedule once a rank and step, from one line of its own: these count once."""
    if "accelerate" not in act.location.via:
        return False
    position = acts.index(act)
    before = acts[position - 1] if position else None
    return (
        before is not None
        and before.kind == "schedule"
        and before.location == act.location
        and before.detail.get("scheduler") == act.detail.get("scheduler")
    )


# -- Events of a run against the table of the window protocol: which obligation is broken, where, for which weights.
SHOWN = ("how", "limit", "lr", "before", "after", "skipped", "type", "number", "world")


@dataclass(slots=True)
class Judgement:
    """What the events of one run say. `events` are plain data, for reading.

    `unseen` says of what the events do not speak: where it is not empty, nothing but the number of steps was judged.
    """

    broken: list[Broken] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    unseen: list[str] = field(default_factory=list)


Sizes = Callable[[list[ProtocolEvent], Cluster], Sequence[int]]


def judge(acts: list[ProtocolEvent], sizes: Sequence[int], each: Sizes | None = None) -> Judgement:
    """Judge the acts of a run: the first break of each parameter's and scheduler's stream, merged where they agree.

    `each` gives the windows of a cluster where they differ from `sizes`.
    """
    acts = _begun(acts)
    found = Judgement(events=readable(acts))
    breaks: list[tuple[Broken, str]] = []
    groups = list(clusters(acts))
    for cluster in groups:
        run = Windows(acts, cluster, sizes if each is None else each(acts, cluster))
        found.steps += len({(a.detail.get("call"), a.micro) for a in run.steps})
        breaks.extend(run.breaks())
    breaks.extend(_uncounted(acts, groups, sizes, found))
    if max(sizes, default=1) > 1:
        breaks.extend(narrow(acts, groups))
    found.broken = merged(breaks)
    return found


def _begun(acts: list[ProtocolEvent]) -> list[ProtocolEvent]:
    """Without what comes before the first gradient: steps of nothing, and schedules, which a resumed run advances."""
    first = next((a.index for a in acts if a.kind == "arrive"), 0)
    idle = [
        a for a in acts
        if a.index < first and (a.kind == "schedule" or (a.kind == "step" and not a.detail.get("held")))
    ]  # fmt: skip
    return [a for a in acts if a not in idle]


def readable(acts: Iterable[ProtocolEvent]) -> list[dict[str, Any]]:
    """list[Act] as plain data; the same act on one parameter after the other, at one line, is one row."""
    rows: list[dict[str, Any]] = []
    for act in acts:
        shown = {k: _plain(v) for k, v in act.detail.items() if k in SHOWN and v not in (None, "", False)}
        row = {
            "event": act.kind,
            "location": str(act.location),
            "micro": act.micro,
            "params": sorted(act.params),
            **shown,
        }
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
        key = (broken.obligation, broken.why, broken.event, str(broken.location))
        groups.setdefault(key, []).append((broken, name))
    out = []
    for rows in groups.values():
        first = min((b for b, _ in rows), key=lambda b: b.index)
        names = tuple(dict.fromkeys(n for _, n in rows if n))
        out.append(replace(first, params=names, last=any(b.last for b, _ in rows)))
    return sorted(out, key=lambda b: b.index)


def clusters(acts: list[ProtocolEvent]) -> Iterator[Cluster]:
    """The optimizers that stepped, or that were made and never did, each with the parameters that it answers for."""
    steps = [a for a in acts if a.kind == "step"]
    wrappers = {a.detail.get("outer") for a in steps} - {None}
    reached = frozenset().union(*(a.params for a in acts if a.kind == "arrive"))
    own: dict[int, frozenset[str]] = {}
    for step in steps:
        if step.detail.get("optimizer") not in wrappers:
            key = int(step.detail.get("optimizer", -1))
            own[key] = own.get(key, frozenset()) | step.params
    ends = [a for a in acts if a.kind == "end"]
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
    acts: list[ProtocolEvent], groups: list[Cluster], sizes: Sequence[int], found: Judgement
) -> Iterator[tuple[Broken, str]]:
    """Steps of gradients whose arrival nothing saw: only their number can be judged."""
    known = frozenset().union(*(c.own for c in groups))
    unseen: dict[int, list[ProtocolEvent]] = {}
    for act in acts:
        if act.kind == "step" and not act.params & known:
            unseen.setdefault(act.detail.get("optimizer", -1), []).append(act)
    for steps in unseen.values():
        found.steps += len(steps)
        found.unseen.append(f"{steps[0].location}: gradients are applied here that no backward pass was seen to bring")
        if len(steps) != len(sizes):
            why = f"{len(steps)} optimizer steps for {len(sizes)} windows"
            act = steps[min(len(sizes), len(steps) - 1)]
            yield from (
                (Broken("GA-INV-003", why, "step", act.location, act.micro, (), act.index), name)
                for name in sorted(act.params)
            )


def narrow(acts: list[ProtocolEvent], groups: list[Cluster]) -> Iterator[tuple[Broken, str]]:
    """Accumulation into `.grad` in fewer bits than fp32."""
    answered = frozenset().union(*(c.params for c in groups))
    held: dict[str, int] = {}
    for act in acts:
        if act.kind in ("zero", "step"):
            held.update(dict.fromkeys(act.params, 0))
        if act.kind != "arrive" or act.detail.get("taken"):
            continue
        for name in sorted(act.params & answered):
            held[name] = held.get(name, 0) + 1
            dtype = act.detail.get("dtypes", {}).get(name, "")
            if held[name] == 2 and dtype in NARROW:
                why = f"gradients are accumulated in {dtype}"
                yield Broken("GA-INV-004", why, "accumulate", act.location, act.micro, (), act.index), name
