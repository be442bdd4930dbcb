"""Writes the certificate of a run: the log of its operators, tensors, data, backward passes and optimizer steps.

`evidence/certificate.py` reads it, and works out by laws of its own what each gradient is made of. A record is a
line of JSON. A tensor is a number, given with its storage and region: a view needs no other record.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import torch

from gradproof.shadow.locations import NOWHERE, initialising, recomputing, user_location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.record.patches import params_of
from gradproof.shadow.record.run import Run
from gradproof.shadow.whole.engine import Engine
from gradproof.shadow.whole.memory import geometry_of, weakly
from gradproof.shadow.whole.terms import NOBODY
from gradproof.shadow.whole.unseen import call_site
from gradproof.shadow.whole.values import Value

FORMAT = "gradproof-step-log/1"
OTHERWISE = ("_neg_view", "_conj")
"""Views that do not hold what lies there."""


class StepLog:
    """The records of one run. `made`: the storages that a record wrote to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.storages: dict[int, tuple[Any, int]] = {}
        self.count = 0
        self.made: set[int] = set()

    def add(self, *record: Any, wrote: Iterable[torch.Tensor] = ()) -> None:
        """Add a record, and note what it wrote to."""
        self.made |= {self.storage(tensor) for tensor in wrote}
        self.lines.append(json.dumps(record, separators=(",", ":"), default=self.plain))

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of the storage of a tensor."""
        storage = tensor.untyped_storage()
        found = self.storages.get(storage._cdata)
        if found is None or found[0].expired():
            found = self.storages[storage._cdata] = weakly(storage), self.count
            self.count += 1
        return found[1]

    def place(self, tensor: torch.Tensor) -> int:
        """The number of a tensor, by where it lies."""
        key = (self.storage(tensor), *geometry_of(tensor), str(tensor.dtype).removeprefix("torch."))
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.add("tensor", *key)
        return self.numbers[key]

    def plain(self, value: Any) -> Any:
        """What JSON has no word for."""
        return {"tensor": self.place(value)} if isinstance(value, torch.Tensor) else str(value)

    def text(self) -> bytes:
        """The certificate."""
        body = "".join(f"{line}\n" for line in self.lines).encode()
        return zlib.compress(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, 9)


class Logging(Engine):  # type: ignore[no-untyped-call]
    """An engine that writes a certificate while it follows a run."""

    log: StepLog
    steps: Counter[str]

    def logs(self, log: StepLog, run: Run) -> None:
        """Begin a certificate."""
        self.log, self.steps, self.there = log, Counter(), 0
        self.turns, self.renewing = Counter[tuple[str, int]](), dict[Any, torch.Tensor]()
        log.add(FORMAT, {name: getattr(run, name) for name in ("accum_steps", "micro_batch_size", "windows", "tail")})

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments; those that no record made are data, parameters or constants."""
        values = super().before(spec, args, kwargs)
        self.begins = initialising()
        for at, tensor in enumerate(() if self.stepping or self.begins else tensors_in((args, kwargs))):
            self._meet(tensor, f"argument {at + 1} of operator {spec.short}")
        self.there = self.log.count
        return values

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results, and log the operator. One on lists of tensors is the same on each."""
        super().after(func, spec, args, kwargs, values, out)
        log, written, made = self.log, spec.written_in(args, kwargs), tensors_in(out)
        fresh = [log.storage(t) >= self.there for t in made]
        if self.stepping:
            self.renewing |= {(log.storage(t), geometry_of(t)): t for t in written}
        elif self.begins or spec.draws(args, kwargs):
            for tensor in [*written, *(() if self.begins else made)]:
                self._source(tensor, spec.short)
        elif spec.alters or spec.short in OTHERWISE:
            log.add("lost", f"operator {spec.short} gives a tensor another meaning")
        elif not spec.moves and (written or any(fresh) or (values and not made)):
            listed = spec.function.startswith("_foreach_")
            first = list(args[0]) if listed else list(args[:1])
            known = all(fresh) if not written else [id(t) for t in written] == [id(t) for t in first]
            for at, result in enumerate(written or made if listed and known else ()):
                each = [a[at] if isinstance(a, list | tuple) and len(a) == len(first) else a for a in args]
                self._operator(spec.function.removeprefix("_foreach_"), each, kwargs, [result])
            if not (listed and known):
                self._operator(spec.function if known else spec.name, args, kwargs, [*written, *made])

    def _operator(self, name: str, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
        """Log an operator by the name of its law. What a copy writes over is no argument."""
        places = {self.log.place(t): t for t in results}
        given = args[1:2] if name == "copy" else args
        self.log.add("operator", name, given, kwargs, list(places.values()), wrote=results)
        at = user_location() if torch._C._current_graph_task_id() != -1 else NOWHERE
        if at not in (NOWHERE, self.location()) and not recomputing():
            self.log.add("hook", str(at))

    def _meet(self, tensor: torch.Tensor, site: str) -> None:
        if id(tensor) in self.declared and self.name(tensor) not in self.steps:
            self.steps[self.name(tensor)] = 0
            self.log.add("source", tensor, "parameter", self.name(tensor), wrote=[tensor])
        elif self.log.storage(tensor) not in self.log.made:
            self._source(tensor, site)

    def _data(self, value: Value) -> bool:
        """Whether each part is the data of one sample, or what was drawn for it."""
        alone = value.turns == 1 and all(len(part) == 1 for part in value.parts)
        own = [(self.terms.operators[term], self.terms.owners[term] >= 0) for part in value.parts for term in part]
        return alone and set(own) <= {("data", True), ("draw", True)}

    def _source(self, tensor: torch.Tensor, site: str) -> None:
        """What a tensor is that no logged operator made."""
        with self.aside():
            value = self.value(tensor)
        terms, leaves = self.terms, [term for part in value.parts for term in part]
        owners = [terms.owners[term] for term in leaves]
        kind: tuple[Any, ...] = ("lost", f"{site} comes from no operator")
        if value.shared and self.laws.constant(value.parts[0]):
            number = value.parts[0].get(terms.one, Fraction(0))
            kind = ("number", [number.numerator, number.denominator])
        elif self._data(value):
            name = f"{call_site()} {site}"
            turns = {self.turns[name, owner] for owner in owners}
            self.turns.update((name, owner) for owner in owners)
            least = terms.attributes[leaves[0]][-1][0]
            if len(turns) == 1:
                kind = ("data", f"{name} {turns.pop()}", value.axis, owners, least)
        elif all(owner == NOBODY for owner in owners):
            kind = ("constant", " ".join(f"{by}*{term}" for part in value.parts for term, by in part.items()))
        self.log.add("source", tensor, *kind, wrote=[tensor])

    def _gradients(self) -> list[Any]:
        return [[self.name(p), p.grad] for p in self.kept if p.is_leaf and p.grad is not None]

    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        super().begin(roots, *rest)
        if self.stepping:
            self.log.add("lost", "a backward pass runs inside of an optimizer step")
        self.log.add("backward", tensors_in(roots), tensors_in(rest[0]) if rest else [], self._gradients())

    def ended(self, found: Any) -> None:
        """A backward pass has ended."""
        super().ended(found)
        self.log.add("ended", self._gradients())

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: log the gradients that it was handed."""
        super().before_step(optimizer)
        rows: list[list[Any]] = [[self.name(p), self.steps[self.name(p)]] for p in params_of(optimizer)]
        for row, p in zip(rows, params_of(optimizer), strict=True):
            if p.grad is not None:
                self._meet(p.grad, "a gradient")
                row.append(p.grad)
        self.log.add("step", self.number_of(optimizer), rows)
        self.renewing.clear()

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters are others, and what else it wrote is a state."""
        super().after_step(optimizer)
        own = {id(p): (self.name(p), p) for p in params_of(optimizer)}
        self.steps.update(name for name, _ in own.values())
        rest = [t for t in self.renewing.values() if id(t) not in own]
        self.log.add("stepped", list(own.values()), rest, wrote=[*params_of(optimizer), *rest])

    def end(self) -> None:
        """The function has returned: log what was lost and read."""
        super().end()
        self.log.lines[1:1] = [json.dumps(["lost", *map(str, entry)]) for entry in self.facts.lost]
        for entry in self.facts.reads:
            self.log.add("read", *map(str, entry))
        if self.facts.repeated or self.facts.again:
            self.log.add("repeat", str(self.facts.repeated or "a generator"))
        self.log.add("end", len(self.log.lines))
