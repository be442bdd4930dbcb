"""One call of a function under an engine: what it returned, how it ended, and the certificate that is written of it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.core.errors import GradproofError
from gradproof.shadow.follow.engine import Engine
from gradproof.shadow.follow.facts import Hints
from gradproof.shadow.follow.group import Exchange
from gradproof.shadow.follow.loop_events import noted
from gradproof.shadow.follow.memory import geometry_of, weakly
from gradproof.shadow.follow.plain_numbers import Carries, Reading, UnknownNumber, Unreading, bare
from gradproof.shadow.follow.runs import Called, Fake, Real
from gradproof.shadow.follow.terms import NOBODY, Combination
from gradproof.shadow.follow.unseen import call_site, copies, made, ran, replaced, ways_out
from gradproof.shadow.follow.values import Value
from gradproof.shadow.locations import NOWHERE, Location, initialising, raised_at, recomputing, stated, user_location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.tape.calls import params_of
from gradproof.shadow.tape.run import Printed, Run, decimals, default_dtype, inside, numbers, seed


def taken_over(first: torch.Tensor, second: torch.Tensor) -> None:
    """Exchange the storages of two tensors. torch exchanges fake tensors whole, which a weak reference forbids."""
    kept = first.data
    first.data, second.data = second.data, kept


class Followed:
    """One run: what was seen, what the function returned, and its error in words with the line.

    `unsupported`: the error is the engine's; `alone`: the function ends well when nobody follows it.
    `plain`: the numbers that it returned and that were not followed. `printed`: the decimal fractions that it printed,
    each with the size of its last place.
    """

    def __init__(self, engine: Called) -> None:
        self.engine, self.facts = engine, engine.facts
        self.error, self.raised = "", NOWHERE
        self.returned: list[Combination] = []
        self.values: list[float] = []
        self.lines: list[Location] = []
        self.plain: list[float] = []
        self.printed: list[tuple[float, float]] = []
        self.unread: list[str] = []
        self.unsupported = False
        self.alone = False

    def call(self, step: Callable[[Any], Any], run: Run, reading: Reading | None = None) -> None:
        """Call the function."""
        printed = Printed(sys.stdout or io.StringIO())
        try:
            with redirect_stdout(cast("Any", printed)):
                returned = step(run)
            with self.engine.aside():
                self._returned(returned, reading)
        except GradproofError:
            raise
        except Exception as caught:
            self.error, self.raised = stated(caught), raised_at(caught)
            self.unsupported = type(caught).__module__.startswith("torch._subclasses") or "Unread" in self.error
        self.engine.end()
        self.printed = decimals("".join(printed.texts))

    def _returned(self, returned: Any, reading: Reading | None) -> None:
        read = {} if reading is None else reading.plain
        for one in inside(returned):
            if isinstance(one, Carries):
                one.used = True
                plain = math.nan if isinstance(one, UnknownNumber) else float(bare(one))
                self._reported(one.value, plain, one.location)
            elif id(one) in read:
                self._reported(read[id(one)][1], float(one), NOWHERE)
            elif isinstance(one, torch.Tensor) and one.is_floating_point():
                line = self.engine.events.line(one)
                plain = float(one.detach()) if one.numel() == 1 and not isinstance(one, FakeTensor) else math.nan
                made = self.engine.combination(one)
                self._reported(self.engine.laws.single(made) if one.numel() == 1 else made, plain, line)
            else:
                self.plain += numbers(one)

    def _reported(self, made: Combination, plain: float, line: Location) -> None:
        reads = [location for location, _ in self.facts.reads]
        self.returned.append(made)
        self.values.append(plain)
        self.lines.append(line if line is not NOWHERE or not reads else reads[-1])


def started(kind: Any, hints: Hints, run: Run, *given: Any) -> Any:
    """An engine, which is logged where the hints say so."""
    if hints.log is None:
        return kind(*given)
    engine = type("Logged", (Logging, kind), {})(*given)
    engine.logs(hints.log, run)
    return engine


def without_numbers(step: Callable[[Any], Any], run: Run, *given: Any) -> Followed:
    """Call the function on tensors without numbers. `given`: as an engine takes it."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    terms, *rest = given
    engine = started(Fake, rest[-1], run, fake, terms, run, *rest)
    found = Followed(engine)
    seed(run.seed)
    swap = replaced(torch.utils, "swap_tensors", taken_over)
    with fake, engine, Unreading(engine), made(engine), ran(engine), swap, default_dtype(run.dtype):
        found.call(step, run)
    return found


def with_numbers(
    drawn: dict[int, torch.Tensor],
    exchange: Exchange,
    step: Callable[[Any], Any],
    run: Run,
    *given: Any,
    alone: bool = False,
) -> Followed:
    """Call the function on real tensors: on every rank, or on this one `alone`."""
    terms, *rest = given
    exchange.group.begin(alone)
    engine = started(Real, rest[-1], run, drawn, exchange, terms, run, *rest)
    found = Followed(engine)
    seed(run.seed)
    reading = Reading(engine)
    with engine, reading, made(engine), ran(engine), noted(engine.events), ways_out(engine), copies(engine):
        found.call(step, run, reading)
    reading.end()
    found.error = exchange.group.end(found.error)
    if found.error and not found.unsupported and exchange.group.size == 1:
        found.alone = not unobserved(step, run)
    return found


def unobserved(step: Callable[[Any], Any], run: Run) -> str:
    """Call the function when nobody follows it: the error that it ends with, if it does."""
    seed(run.seed)
    try:
        step(run)
    except Exception as caught:
        return str(caught) or "an error"
    return ""


def again(ours: Followed, full: Followed, hints: Hints) -> Hints:
    """What two runs show that have to be made again; the same hints where nothing has to.

    What the full batch's run took for a constant is no data of samples, also where a micro-batch has as many rows.
    Numbers that a line draws as often in both runs, fewer times than there are samples, and along no axis of samples,
    are no data of a sample: a frozen weight, for example.
    """
    by_hand = hints.by_hand or not (ours.facts.updates or full.facts.updates)
    mine, other = ours.engine.axes, full.engine.axes
    both = mine.keys() & other.keys()
    apart = {site for site in both if set(mine[site]) != set(other[site])}
    whole = {s for s in both if set(mine[s]) == {None} and len(mine[s]) == len(other[s]) < ours.engine.samples}
    apart |= _beside_data(ours, whole, apart) if whole else set()
    fixed = {name for name, taken in ours.engine.fixed.items() if not taken and full.engine.fixed.get(name)}
    tables = ours.engine.tables.keys() & full.engine.tables.keys()
    if hints.rows:
        kept = {name for name in tables if _used_alike(ours, full, name)}
    else:
        kept = {name for name in tables if all(_whole(run, run.engine.tables[name]) for run in (ours, full))}
    kept |= ours.engine.looked_up & full.engine.looked_up
    fixed, apart = fixed | (kept & ours.engine.fixed.keys()), apart | (kept - ours.engine.fixed.keys())
    return replace(hints, by_hand=by_hand, common=hints.common | apart, fixed=hints.fixed | fixed)


def _whole(run: Followed, met: Sequence[frozenset[int]]) -> bool:
    """Whether all rows of a table are in the gradients of each window, each row in the same way.

    It has more rows than a window has samples, so that its rows are none: class weights, for example.
    """
    terms, updates = run.engine.terms, run.facts.updates
    for update in updates:
        reached = terms.reached(term for value in update.gradients.values() for term in value)
        inside = [rows for rows in met if rows & reached]
        if not inside or not all(terms.alike(rows, reached) for rows in inside):
            return False
    return bool(updates)


def _used_alike(ours: Followed, full: Followed, name: str) -> bool:
    """Whether both runs made rows equally often, and each summand of a gradient is made of all of them, or of none."""
    met, terms = ours.engine.tables[name], ours.engine.terms
    if len(met) != len(full.engine.tables[name]):
        return False
    summands = {term for update in ours.facts.updates for value in update.gradients.values() for term in value}
    below = [terms.below(frozenset([term])) for term in summands]
    used = [(rows, reached) for rows in met for reached in below if rows & reached]
    return bool(used) and all(rows <= reached and terms.alike(rows, reached) for rows, reached in used)


def _beside_data(ours: Followed, sites: set[str], apart: set[str]) -> set[str]:
    """The lines of which gradients hold draws, where they hold data of other lines as well."""
    terms, values = ours.engine.terms, (value for update in ours.facts.updates for value in update.gradients.values())
    met = {terms.attributes[leaf][0] for leaf in terms.found([t for value in values for t in value], ("data",))}
    drawn = {site for site in sites if any(one.startswith(f"{site} ") for one in met)}
    return drawn if any(not one.startswith(tuple(f"{site} " for site in apart | drawn)) for one in met) else set()


# -- The certificate of a run: the log of its operators, tensors, data, backward passes and optimizer steps.
#
# `evidence/certificate.py` reads it, and works out by laws of its own what each gradient is made of. A record is a
# line of JSON. A tensor is a number, given with its storage and region: a view needs no other record.
FORMAT = "gradproof-step-log/1"


def text(lines: list[str]) -> bytes:
    """The certificate of these records."""
    body = "".join(f"{line}\n" for line in lines).encode()
    return zlib.compress(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, 9)


class Logging(Engine):  # type: ignore[no-untyped-call]
    """An engine that writes a certificate while it follows a run. `met`: the storages that a record names."""

    def logs(self, lines: list[str], run: Run) -> None:
        """Begin a certificate, to which records are added."""
        self.log, self.steps, self.count = lines, Counter[str](), 0
        self.turns, self.renewing = Counter[tuple[str, int]](), dict[Any, torch.Tensor]()
        self.places, self.storages, self.met = dict[Any, int](), dict[int, tuple[Any, int]](), set[int]()
        self._add(FORMAT, {name: getattr(run, name) for name in ("accum_steps", "micro_batch_size", "windows", "tail")})

    def _add(self, *record: Any) -> None:
        self.log.append(json.dumps(record, separators=(",", ":"), default=self._plain))

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        found = self.storages.get(storage._cdata)
        if found is None or found[0].expired():
            found = self.storages[storage._cdata] = weakly(storage), self.count
            self.count += 1
        return found[1]

    def _plain(self, value: Any) -> Any:
        """What JSON has no word for. A tensor is a number, by where it lies."""
        if not isinstance(value, torch.Tensor):
            return str(value)
        key = (self._storage(value), *geometry_of(value), str(value.dtype).removeprefix("torch."))
        if key not in self.places:
            self.places[key] = len(self.places)
            self.met.add(key[0])
            self._add("tensor", *key)
        return {"tensor": self.places[key]}

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments; those that no record named are data, parameters or constants."""
        values = super().before(spec, args, kwargs)
        for at, tensor in enumerate(() if self.stepping or initialising() else tensors_in((args, kwargs))):
            self._meet(tensor, f"argument {at + 1} of operator {spec.short}")
        return values

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results, and log the operator with the names of its arguments."""
        super().after(func, spec, args, kwargs, values, out)
        written, made = spec.targets(args, kwargs), tensors_in(out)
        begins, fresh = initialising(), [self._storage(t) not in self.met for t in made]
        if self.stepping:
            self.renewing |= {(self._storage(t), geometry_of(t)): t for t in written}
        elif begins or spec.draws(args, kwargs):
            for tensor in [*written, *(() if begins else made)]:
                self._source(tensor, spec.short)
        elif spec.alters or spec.short in ("_neg_view", "_conj"):
            self._add("lost", f"operator {spec.short} gives a tensor another meaning")
        elif not spec.moves and (written or any(fresh) or (values and not made)):
            first, given = tensors_in(args[:1]), dict(zip(spec.arguments, args, strict=False)) | kwargs
            named = {a.name: given.get(a.name, a.default_value) for a in func._schema.arguments}
            known = [*map(id, written)] == [*map(id, first)] if written else all(fresh)
            self._operator(spec.function if known else spec.name, named, [*written, *made], len(first))

    def _operator(self, name: str, named: dict[str, Any], results: list[torch.Tensor], count: int) -> None:
        """Log an operator by the name of its law. One on lists of tensors is the same on each."""
        if name.startswith("_foreach_"):
            for at, result in enumerate(results[:count]):
                own = {key: one[at] if isinstance(one, list | tuple) else one for key, one in named.items()}
                self._operator(name.removeprefix("_foreach_"), own, [result], 1)
        else:
            self._add("operator", name, named, [*{self._plain(t)["tensor"]: t for t in results}.values()])
        line = user_location() if self.in_backward else NOWHERE
        if line not in (NOWHERE, self.location()) and not recomputing():
            self._add("lost", f"code of yours runs inside of a backward pass: {line}")

    def _meet(self, tensor: torch.Tensor, site: str) -> None:
        if id(tensor) in self.declared and self.name(tensor) not in self.steps:
            self.steps[self.name(tensor)] = 0
            self._add("source", tensor, "parameter", self.name(tensor))
        elif self._storage(tensor) not in self.met:
            self._source(tensor, site)

    def _source(self, tensor: torch.Tensor, site: str) -> None:
        """What a tensor is that no logged operator made. Data have one leaf of each sample, or one draw."""
        with self.aside():
            value = self.value(tensor)
        terms, leaves = self.terms, [term for part in value.parts for term in part]
        owners, made = [terms.owners[term] for term in leaves], {terms.operators[term] for term in leaves}
        kind: tuple[Any, ...] = ("lost", f"{site} comes from no operator")
        if value.shared and self.laws.constant(value.parts[0]):
            kind = ("number", value.parts[0].get(terms.one, Fraction(0)).as_integer_ratio())
        elif all(owner == NOBODY for owner in owners):
            kind = ("constant", " ".join(f"{by}*{term}" for part in value.parts for term, by in part.items()))
        elif made <= {"data", "draw"} and min(owners) >= 0 and value.turns == 1 and {*map(len, value.parts)} == {1}:
            name = f"{call_site()} {site}"
            turns = {self.turns[name, owner] for owner in owners}
            self.turns.update((name, owner) for owner in owners)
            if len(turns) == 1:
                kind = ("data", f"{name} {turns.pop()}", value.axis, owners, terms.attributes[leaves[0]][-1][0])
        self._add("source", tensor, *kind)

    def _gradients(self, parameters: list[torch.Tensor]) -> list[Any]:
        held = [(self.name(p), p.grad) for p in parameters if p.is_leaf and p.grad is not None]
        for _, gradient in held:
            self._meet(gradient, "a gradient")
        return held

    def begin(self, roots: Any, seeds: Any = None, *rest: Any) -> None:
        """A backward pass begins."""
        super().begin(roots, seeds, *rest)
        self._add("backward", tensors_in(roots), tensors_in(seeds), self._gradients(self.kept))

    def ended(self, found: Any) -> None:
        """A backward pass has ended."""
        super().ended(found)
        self._add("ended", self._gradients(self.kept))

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: keep the gradients that it was handed."""
        super().before_step(optimizer)
        self.renewing.clear()
        self.given = self._gradients(params_of(optimizer))

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters are others, and what else it wrote is a state."""
        super().after_step(optimizer)
        own = {self.name(p): p for p in params_of(optimizer)}
        rest = [t for t in self.renewing.values() if all(t is not p for p in own.values())]
        steps = {name: self.steps[name] for name in own}
        self._add("step", self.number_of(optimizer), steps, self.given, [*own.values(), *rest])
        self.steps.update([*own])

    def end(self) -> None:
        """The function has returned: log what was lost and read."""
        super().end()
        self.log[1:1] = [json.dumps(["lost", *map(str, entry)]) for entry in self.facts.lost]
        self.log += [json.dumps(["read", *map(str, entry)]) for entry in self.facts.reads]
        if self.facts.repeated or self.facts.again:
            self._add("repeat", str(self.facts.repeated or "a generator"))
        self._add("end", len(self.log))
