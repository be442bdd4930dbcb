"""From a tape to the acts of the window protocol: what the hooks reported, and what only the operators show.

Two dependences are carried over storages. *Direct*: the tensor holds, element for element, the gradient of a parameter
that arrived with backward pass k (through elementwise operators, copies and concatenation, not through reductions).
*Any*: the latest backward pass on which the tensor depends at all. With them a hand-written clip is a product of a
gradient with a factor that depends on the gradients of the same window, or a bound on its elements; a product with a
constant is none. A hand-written step is a write to a parameter of what directly holds its newest gradient.

*Passes*: every backward pass on which any element may depend, through every operator. This is an upper bound. So it can
show that a gradient holds nothing stale, and that no sum was stored in 16 bits. What it does not show is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gradproof.shadow.protocol.event_ops import (
    AVERAGED,
    AVERAGES,
    BOUNDS,
    CHANGED,
    EARLIER,
    FACTORS,
    JOINS,
    NARROW,
    NO_PASS,
    OF_GRADIENTS,
    OVERWRITES,
    REDUCTIONS,
    Act,
    Acts,
    LossScaling,
    Narrowed,
    Passes,
    Token,
    base,
    clips_in,
    held_before,
    hook_line,
    narrow,
    pairings,
    rest,
    span,
    zeroes,
)
from gradproof.shadow.tape import NOWHERE, Entry, Event, Init, Leaf, Location, Ref, Tape, held_in

STATE = frozenset({"_amp_update_scale"})
"""Operators whose results are state that lives on from window to window by design."""
SCALED = "the loss was scaled, and what is clipped was not seen to be unscaled"


class Flow:
    """One pass over a tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.found = Acts(sighted=next(tape.entries(), None) is not None)
        self.direct: dict[int, frozenset[Token]] = {}
        self.latest: dict[int, int] = {}
        self.passes = Passes()
        self.outside: set[int] = set()
        self.current = 0
        self.scaled: dict[int, tuple[LossScaling, ...]] = {}
        self.arrived: dict[int, int] = {}
        self.narrow: dict[int, Narrowed] = {}
        self.grads: dict[str, Ref] = {}
        self.params: dict[int, str] = {}
        self.states: dict[int, str] = {}
        self.writer: dict[int, tuple[int, Location]] = {}
        self.applied: dict[str, int] = {}
        self.by_hand: dict[str, int] = {}
        self.norms: list[float] = []
        self.micro, self.begun, self.scope = 0, 0, ""
        self.backward = NOWHERE
        self.hooked: list[tuple[str, LossScaling]] = []
        self.gathered: set[int] = set()
        self.loss_scaled = False
        self.still_scaled: set[str] = set()
        self.optimized = {p for e in tape.events("step") for p in e.detail.get("params", ())}
        self._maybe: list[tuple[Act, LossScaling]] = []

    def run(self) -> Acts:
        """The acts of the tape."""
        for index, item in enumerate(self.tape.items):
            if isinstance(item, Entry):
                self.entry(index, item)
            elif isinstance(item, Event):
                self.event(index, item)
            elif isinstance(item, Leaf) and item.source.kind == "param":
                self.params[item.ref.storage] = item.source.name
            elif isinstance(item, Leaf) and item.value.any():
                self.outside.add(item.ref.storage)
            elif isinstance(item, Init) and item.content.value.any():
                self.outside.add(item.storage)
        self._clips()
        self.found.acts.sort(key=lambda a: a.index)
        return self.found

    def _clips(self) -> None:
        """Clips that nothing but a number shows, and clips of gradients that no optimizer applies."""
        self.found.acts.extend(clips_in(self._maybe))
        for act, scaling in self._maybe:
            if act not in self.found.acts and len({s.factor for _, s in self._maybe if s.place == scaling.place}) > 1:
                self._doubt(
                    "GA-INV-005", "gradients are multiplied by numbers that may come from their norm", act.place
                )
        trained = self.optimized.union(*(a.params for a in self.found.acts if a.kind in ("arrive", "step")))
        clips = [a for a in self.found.acts if a.kind == "clip"]
        some = {(a.place, a.micro) for a in clips if a.params & trained}
        for act in clips:
            if (act.place, act.micro) not in some:
                self._doubt("GA-INV-005", "a clip is of no gradient that an optimizer applies", act.place)

    def act(self, kind: str, params: Iterable[str], place: Location, index: int, **detail: Any) -> Act:
        """Note an act."""
        found = Act(kind, frozenset(params), place, index, self.micro, detail)
        self.found.acts.append(found)
        if kind in ("unscale", "zero", "step"):
            self.still_scaled -= found.params
        if kind == "clip":
            self._clipping(found.params, place)
        return found

    def _clipping(self, params: frozenset[str], place: Location) -> None:
        if params & self.still_scaled:
            self._doubt("GA-INV-005", SCALED, place)

    # Events

    def event(self, index: int, event: Event) -> None:
        """One event of the tape."""
        for name, ref in event.refs.items():
            if isinstance(ref, Ref) and name.startswith("param/"):
                self.params[ref.storage] = name.removeprefix("param/")
            elif isinstance(ref, Ref) and name.startswith("state/"):
                self.states[ref.storage] = name.removeprefix("state/")
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(index, event)
        if event.kind not in ("gradients", "zero"):
            self._learn(event)

    def _learn(self, event: Event) -> None:
        for name, ref in event.refs.items():
            if isinstance(ref, Ref) and name.startswith("grad/"):
                self.grads[name.removeprefix("grad/")] = ref

    def _on_enter(self, index: int, event: Event) -> None:
        self.scope = str(event.detail.get("what"))

    def _on_leave(self, index: int, event: Event) -> None:
        self.scope = ""

    def _on_backward(self, index: int, event: Event) -> None:
        self.scope, self.backward = "", event.place
        self.current = int(event.detail.get("number", self.current + 1))

    def _on_accumulate(self, index: int, event: Event) -> None:
        self._learn(event)
        number = int(event.detail.get("number", self.micro + 1))
        if number > self.micro and self.begun < max(self.applied.values(), default=0):
            self.begun = max(self.applied.values())
            self.norms.clear()
        self.micro = max(self.micro, number)
        self.arrived[number] = index
        params = event.detail.get("params", ())
        self.still_scaled |= set(params) if self.loss_scaled else set()
        self.act("arrive", params, event.place, index, **{"number": number, "dtypes": {}, **rest(event)})
        for name in params:
            ref = event.refs.get(f"grad/{name}")
            if isinstance(ref, Ref):
                for scaling in self.scaled.pop(ref.storage, ()):
                    self._clip(name, scaling)
                self._bring(ref, name, number)
                self.passes.add(ref, frozenset({number, EARLIER} if ref.storage in self.outside else {number}))
        for name, scaling in [h for h in self.hooked if h[0] in params]:
            self.hooked.remove((name, scaling))
            self._clip(name, replace(scaling, index=index, micro=number))

    def _bring(self, ref: Ref, name: str, number: int) -> None:
        self.direct[ref.storage] = self.direct.get(ref.storage, frozenset()) | {(name, number)}
        self.latest[ref.storage] = number

    def _on_gradients(self, index: int, event: Event) -> None:
        self._on_accumulate(index, event)
        self.found.acts[-1].detail["taken"] = True
        for name in event.detail.get("params", ()):
            self.grads.pop(name, None)

    def _on_zero(self, index: int, event: Event) -> None:
        place, at = event.place, index
        names = list(event.detail.get("params", ()))
        for name in names:
            ref = self.grads.pop(name, None)
            late = event.detail.get("how") in ("seen later", "found zero")
            if ref is not None and late and ref.storage in self.writer:
                at, place = self.writer[ref.storage]
            left = event.refs.get(f"grad/{name}")
            if isinstance(left, Ref):
                self.grads[name] = left
                self._forget(left)
        if names:
            self.act("zero", names, place, at, how=event.detail.get("how", ""))

    def _on_assign(self, index: int, event: Event) -> None:
        names = event.detail.get("params", ())
        self.act("assign", names, event.place, index)
        for name in names:
            ref = event.refs.get(f"grad/{name}")
            if not isinstance(ref, Ref):
                continue
            inside = event.detail.get("during") == "backward"
            for scaling in self.scaled.pop(ref.storage, ()):
                self._clip(name, replace(scaling, index=index, micro=self.micro) if inside else scaling)
            if inside:
                self._bring(ref, name, self.micro)

    def _on_touch(self, index: int, event: Event) -> None:
        self.act("touch", event.detail.get("params", ()), event.place, index)

    def _on_unscale(self, index: int, event: Event) -> None:
        self.act("unscale", event.detail.get("params", ()), event.place, index)

    def _on_clip(self, index: int, event: Event) -> None:
        limit = event.detail.get("limit")
        if limit is None or float(limit) != float("inf"):
            self.act("clip", event.detail.get("params", ()), event.place, index, limit=limit)

    def _on_scaled(self, index: int, event: Event) -> None:
        self.loss_scaled = True

    def _on_step(self, index: int, event: Event) -> None:
        self._learn(event)
        state = [ref for n, ref in event.refs.items() if isinstance(ref, Ref) and n.startswith("state/")]
        self.gathered = {ref.storage for ref in state if self.passes.of(ref)}  # state that holds gradients by itself
        found = self.act("step", event.detail.get("params", ()), event.place, index, **rest(event))
        for obligation in OF_GRADIENTS if event.detail.get("hooked") else ():
            why = "a hook of the optimizer runs before its step; what it does to the gradients is not judged"
            self._doubt(obligation, why, event.place)
        for name in found.params:
            ref = event.refs.get(f"grad/{name}")
            if not isinstance(ref, Ref):
                if f"grad/{name}" in event.refs:
                    self._doubt("GA-INV-002", f"where the gradient of {name} comes from was not seen", event.place)
                continue
            self._stale(name, self.passes.of(ref), event.place)
            for scaling in self.scaled.pop(ref.storage, ()):
                self._clip(name, scaling)
            for param, number in self._tokens(ref):
                found.held[param] = found.held.get(param, frozenset()) | {number}
            flagged = self.narrow.get(ref.storage)
            if flagged is not None and ref.dtype not in NARROW:
                self.found.narrowed.append(flagged)
        self.applied.update(dict.fromkeys((*found.params, *found.held), self.micro))
        self.scope = "step"

    def _on_stepped(self, index: int, event: Event) -> None:
        self.scope = ""
        for ref in event.refs.values():
            if isinstance(ref, Ref) and ref.storage not in self.gathered:
                self.direct.pop(ref.storage, None)
                self.passes.forget(ref.storage)

    def _on_rebind(self, index: int, event: Event) -> None:
        for name, ref in event.refs.items():
            if isinstance(ref, Ref) and name.startswith("param/"):
                at, place = self.writer.get(ref.storage, (index, event.place))
                self._step_by_hand(name.removeprefix("param/"), ref, at, place, "")
                self.direct.pop(ref.storage, None)
                self.passes.forget(ref.storage)

    def _on_schedule(self, index: int, event: Event) -> None:
        self.act("schedule", (), event.place, index, **rest(event))

    def _on_rate(self, index: int, event: Event) -> None:
        self.act("rate", (), event.place, index, **rest(event))

    def _on_rewrite(self, index: int, event: Event) -> None:
        self.act("rewrite", event.detail.get("params", ()), event.place, index)

    def _on_sync(self, index: int, event: Event) -> None:
        ref = event.refs.get("tensor")
        held = {p for p, _ in self._tokens(ref)} if isinstance(ref, Ref) else set()
        own = event.detail.get("params", ())
        summed = frozenset(own if event.detail.get("whole", True) else ())
        self.act("sync", {*own, *held}, event.place, index, own=summed, **rest(event))

    def _on_end(self, index: int, event: Event) -> None:
        self.act("end", (), event.place, index, optimizers=event.detail.get("optimizers", {}))

    def _on_item(self, index: int, event: Event) -> None:
        for name, ref in event.refs.items():
            if isinstance(ref, Ref) and self.latest.get(ref.storage, 0) > self.begun and name in event.values:
                self.norms.extend(float(v) for v in event.values[name].ravel()[:1])

    # Operators

    def entry(self, index: int, entry: Entry) -> None:
        """One operator."""
        name = base(entry.op)
        reads = list(held_in((*entry.args, *entry.kwargs.values()), Ref))
        newest = max((self.latest.get(r.storage, 0) for r in reads), default=0)
        stated, numbers = [], []
        for out, given in pairings(entry):
            inputs = list(held_in(given, Ref))
            if name in OVERWRITES:
                inputs = [r for r in inputs if r.storage != out.storage]
            stated.append((out, given, inputs, self._carried(name, out, inputs)))
            numbers.append(self._passes(entry, name, out, inputs))
        for (out, _, _, _), depends in zip(stated, numbers, strict=True):
            self._depend(entry, out, depends)
        for out, given, inputs, tokens in stated:
            if not self.scope:
                self._look(index, entry, name, out, given, inputs, tokens)
            self._write(index, entry, name, out, inputs, tokens, newest)

    def _passes(self, entry: Entry, name: str, out: Ref, inputs: list[Ref]) -> frozenset[int]:
        """The backward passes on which an output depends."""
        if name in STATE:
            return NO_PASS
        found = NO_PASS.union(*(self.passes.of(r) for r in inputs))
        if out.storage in self.params and not self.scope and not entry.backward:
            applied = NO_PASS.union(*(self.passes.of(r) for r in inputs if r.storage != out.storage))
            self._stale(self.params[out.storage], applied, entry.place)
        return found | {self.current} if entry.backward and self.current else found

    def _depend(self, entry: Entry, out: Ref, numbers: frozenset[int]) -> None:
        if out.storage in self.params:
            self.passes.forget(out.storage)
            return
        self.passes.write(out, numbers)
        if held_before(entry):
            self.outside.add(out.storage)
        if out.storage in self.outside and out.count == out.size and base(entry.op) in OVERWRITES:
            self.outside.discard(out.storage)
        if len(numbers) > 1 and narrow(out) and self.scope != "step":
            self._doubt("GA-INV-004", f"a sum of gradients goes through {out.dtype}", hook_line(entry, self.backward))

    def _stale(self, param: str, numbers: frozenset[int], place: Location) -> None:
        """A gradient that may hold more than the arrivals since the last step of its parameter."""
        old = sorted(n for n in numbers if n <= self.applied.get(param, 0))
        if old and old[0] == EARLIER:
            self._doubt("GA-INV-002", f"the gradient of {param} held something before the first backward pass", place)
        elif old:
            why = f"what is applied to {param} may depend on backward pass {old[0]}, of an earlier window"
            self._doubt("GA-INV-002", why, place)

    def _doubt(self, obligation: str, why: str, place: Location) -> None:
        self.found.doubts.setdefault(obligation, (why, place))

    def _carried(self, name: str, out: Ref, inputs: list[Ref]) -> frozenset[Token]:
        if name in REDUCTIONS:
            return frozenset()
        same = [r for r in inputs if r.count == out.count or name in JOINS]
        return frozenset().union(*(self._tokens(r) for r in same))

    def _tokens(self, ref: Ref) -> frozenset[Token]:
        """Arrivals that a tensor holds; where gradients share a storage, those of the gradients that it touches."""
        tokens = self.direct.get(ref.storage, frozenset())
        if len({p for p, _ in tokens}) < 2:
            return tokens
        touched = self._touched(ref)
        return frozenset(t for t in tokens if t[0] in touched) if touched else tokens

    def _touched(self, ref: Ref) -> set[str]:
        low, high = span(ref)
        near = ((p, span(g)) for p, g in self.grads.items() if g.storage == ref.storage)
        return {p for p, (a, b) in near if a < high and low < b}

    def _forget(self, ref: Ref) -> None:
        touched = self._touched(ref)
        kept = self.direct.get(ref.storage, frozenset())
        self.direct[ref.storage] = frozenset(t for t in kept if t[0] not in touched) if touched else frozenset()
        self.narrow.pop(ref.storage, None)
        self.scaled.pop(ref.storage, None)

    def _write(
        self, index: int, entry: Entry, name: str, out: Ref, inputs: list[Ref], tokens: frozenset[Token], newest: int
    ) -> None:
        whole = out.count == out.size
        others = [t for t in self.direct.get(out.storage, frozenset()) if not whole and t not in self._tokens(out)]
        if name in OVERWRITES:
            if not self.scope and not self._touched(out):
                gone = self._tokens(out) - tokens
                self.found.lost.update({t: entry.place for t in gone if t[1] > self.applied.get(t[0], 0)})
            self._forget(out)
        self.direct[out.storage] = tokens | frozenset(others)
        self.latest[out.storage] = newest if whole else max(newest, self.latest.get(out.storage, 0))
        self.writer[out.storage] = (index, entry.place)
        carriers = [r for r in inputs if r.count == out.count and self._tokens(r)]
        for carrier in carriers:
            if carrier.storage in self.narrow and carrier.storage != out.storage:
                self.narrow.setdefault(out.storage, self.narrow[carrier.storage])
            if carrier.storage in self.scaled and out.storage not in self.scaled and carrier.storage != out.storage:
                self.scaled[out.storage] = self.scaled[carrier.storage]
        wide = next((c for c in carriers if c.floating and c.dtype not in NARROW), None)
        if wide is not None and out.dtype in NARROW and not self.scope and wide.storage != out.storage:
            param = min(p for p, _ in self._tokens(wide))
            why = f"the accumulated gradient is kept in {out.dtype} before the step"
            self.narrow[out.storage] = Narrowed(param, why, hook_line(entry, self.backward), index, self.micro)

    def _look(
        self, index: int, entry: Entry, name: str, out: Ref, given: list[Any], inputs: list[Ref],
        tokens: frozenset[Token],
    ) -> None:  # fmt: skip
        """What a write outside every known call means."""
        current = {t for t in tokens if t[1] > self.applied.get(t[0], 0)}
        hit = self._touched(out)
        if name in ("zero", "fill", "_foreach_zero") and hit and not entry.backward and zeroes(name, given):
            self.act("zero", hit, entry.place, index, how=entry.op)
        if out.storage in self.params and not entry.backward:
            self._step_by_hand(self.params[out.storage], out, index, entry.place, name, tokens)
        if out.storage in self.states and max((self.latest.get(r.storage, 0) for r in inputs), default=0) > self.begun:
            owner = self.states[out.storage].rsplit("/", 1)[0]
            self.found.outside.append(Act("state", frozenset({owner}), entry.place, index, self.micro))
        self._weights(index, entry, name, out, inputs)
        if not current:
            return
        self._added_narrow(index, entry, out, inputs, current)
        scaling = self._scaling(index, entry, name, out, given, inputs)
        if scaling is not None:
            for param in sorted(hit):
                self._clip(param, scaling, entry.backward)
            if not hit:
                self.scaled[out.storage] = (*self.scaled.get(out.storage, ()), scaling)
        elif hit and name in ("copy", "_foreach_copy"):
            for source in inputs:
                for scaling in self.scaled.get(source.storage, ()):
                    self._clip(min(hit), scaling, entry.backward)

    def _weights(self, index: int, entry: Entry, name: str, out: Ref, inputs: list[Ref]) -> None:
        """A write to a weight, or to a running average of weights, that is no step."""
        if entry.backward or name in OVERWRITES or all(r.storage != out.storage for r in inputs):
            return
        if out.storage in self.params and self.found.acts[-1:] and self.found.acts[-1].index != index:
            self.act("weights", [self.params[out.storage]], entry.place, index, why=CHANGED)
        elif name in AVERAGES and not self._touched(out) and out.storage not in self.params:
            sources = {self.params[r.storage] for r in inputs if r.storage in self.params and r.count == out.count}
            if sources:
                self.act("weights", sources, entry.place, index, why=AVERAGED)

    def _scaling(
        self, index: int, entry: Entry, name: str, out: Ref, given: list[Any], inputs: list[Ref]
    ) -> LossScaling | None:
        carrier = next((r for r in inputs if r.count == out.count and self._tokens(r)), None)
        if carrier is None or name not in BOUNDS | FACTORS:
            return None
        held = self._tokens(carrier)
        last = max(k for _, k in held)
        at = index if last >= self.micro else self.arrived.get(last, index)
        if name in BOUNDS:
            return LossScaling(entry.place, at, last, True, None)
        others = list(inputs)
        others.remove(carrier)
        if any(self.latest.get(r.storage, 0) > min(self.applied.get(p, 0) for p, _ in held) for r in others):
            return LossScaling(entry.place, at, last, False, None)
        numbers = [g for g in given if isinstance(g, int | float) and not isinstance(g, bool)]
        if numbers and self.norms and len(inputs) == 1:
            factor = float(numbers[0])
            factor = 1 / factor if "div" in name and factor else factor
            return LossScaling(entry.place, at, last, False, factor, tuple(self.norms))
        return None

    def _clip(self, param: str, scaling: LossScaling, hooked: bool = False) -> None:
        """A clip; in a hook of a backward pass it is one of what arrived with this pass."""
        if hooked:
            self.hooked.append((param, scaling))
            return
        act = Act("clip", frozenset({param}), scaling.place, scaling.index, scaling.micro, {"by hand": True})
        if scaling.factor is None:
            self.found.acts.append(act)
            self._clipping(act.params, act.place)
        else:
            self._maybe.append((act, scaling))

    def _added_narrow(self, index: int, entry: Entry, out: Ref, inputs: list[Ref], current: set[Token]) -> None:
        if out.dtype not in NARROW:
            return
        for param in sorted({p for p, _ in current}):
            arrivals = {k for p, k in current if p == param}
            each = [{k for p, k in self._tokens(r) if p == param} & arrivals for r in inputs]
            if len(arrivals) > 1 and all(e != arrivals for e in each):
                why = f"gradients are added in {out.dtype}"
                self.found.narrowed.append(Narrowed(param, why, hook_line(entry, self.backward), index, self.micro))

    def _step_by_hand(
        self, param: str, ref: Ref, index: int, place: Location, name: str, tokens: frozenset[Token] | None = None
    ) -> None:
        held = frozenset(k for p, k in (self._tokens(ref) if tokens is None else tokens) if p == param)
        newest = max(held, default=0)
        if param in self.optimized or not held:
            return
        again = newest == self.applied.get(param, 0) and self.by_hand.get(param) == place.line and name != "copy"
        if newest > self.applied.get(param, 0) or again:
            act = self.act("step", (param,), place, index, by_hand=True, optimizer=-1, outer=None)
            act.held[param] = held
            self.by_hand[param] = place.line
            self.applied[param] = self.micro


def acts_of(tape: Tape) -> Acts:
    """The acts of a tape, in order."""
    return Flow(tape).run()
