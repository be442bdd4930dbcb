"""Writes the certificate of a run: the log of its operators, tensors, data, backward passes and optimizer steps.

`evidence/certificate.py` reads it, and works out by laws of its own what each gradient is made of. A record is a
line of JSON. A tensor is a number, given with its storage and region, and the version of the storage that is meant.
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


class StepLog:
    """The records of one run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.storages: dict[int, tuple[Any, int]] = {}
        self.versions: dict[int, int] = {}
        self.turns: Counter[tuple[str, int]] = Counter()
        self.operators: Counter[str] = Counter()

    def add(self, *record: Any) -> None:
        """Add a record."""
        self.lines.append(json.dumps(record, separators=(",", ":")))

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of the storage of a tensor."""
        storage = tensor.untyped_storage()
        found = self.storages.get(storage._cdata)
        if found is None or found[0].expired():
            found = self.storages[storage._cdata] = weakly(storage), len(self.versions)
            self.versions[found[1]] = 0
        return found[1]

    def key(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Storage, region and type of a tensor."""
        return (self.storage(tensor), *geometry_of(tensor), str(tensor.dtype).removeprefix("torch."))

    def reference(self, tensor: torch.Tensor) -> dict[str, int]:
        """A tensor as it is now."""
        key = self.key(tensor)
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.add("tensor", *key)
        return {str(self.numbers[key]): self.versions[key[0]]}

    def writes(self, tensors: Iterable[torch.Tensor]) -> None:
        """The storages of tensors have another version now."""
        for storage in {self.storage(tensor) for tensor in tensors}:
            self.versions[storage] += 1

    def plain(self, value: Any) -> Any:
        """What JSON has no word for."""
        return self.reference(value) if isinstance(value, torch.Tensor) else str(value)

    def text(self) -> bytes:
        """The certificate."""
        body = "".join(f"{line}\n" for line in self.lines).encode()
        return zlib.compress(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, 9)


class Logging(Engine):  # type: ignore[no-untyped-call]
    """An engine that writes a certificate while it follows a run."""

    log: StepLog
    given: Any = None
    steps: Counter[str]

    def logs(self, log: StepLog, run: Run) -> None:
        """Begin a certificate."""
        self.log, self.steps, self.renewing = log, Counter(), dict[Any, torch.Tensor]()
        shape = {name: getattr(run, name) for name in ("accum_steps", "micro_batch_size", "windows", "tail")}
        log.add(FORMAT, shape)

    def before(self, spec: Spec, args: Any, kwargs: Any) -> dict[int, Value]:
        """The values of the arguments; those that no record made are data, parameters or constants."""
        values = super().before(spec, args, kwargs)
        self.given = None
        if not self.stepping and not initialising():
            for at, tensor in enumerate(tensors_in((args, kwargs))):
                self._meet(tensor, f"{spec.short} {at}")
            self.given = json.loads(json.dumps((args, kwargs), default=self.log.plain))
        self.there = len(self.log.versions)
        return values

    def after(self, func: Any, spec: Spec, args: Any, kwargs: Any, values: dict[int, Value], out: Any) -> None:
        """Work out the values of the results, and log the operator."""
        super().after(func, spec, args, kwargs, values, out)
        log, written, made = self.log, spec.written_in(args, kwargs), tensors_in(out)
        if self.stepping:
            self.renewing |= {log.key(t): t for t in written}
        elif self.given is None or spec.draws(args, kwargs):
            for tensor in {id(t): t for t in (*written, *(made if self.given else ()))}.values():
                log.writes([tensor])
                self._source(tensor, spec.short, 1)
        else:
            fresh = [t for t in made if log.storage(t) >= self.there]
            affected = [log.reference(t) for t in written]
            log.writes([*written, *fresh])
            name = spec.name.removeprefix("aten.")
            log.operators[name] += 1
            log.add("operator", name, *self.given, [log.reference(t) for t in made], affected)
            at = user_location() if torch._C._current_graph_task_id() != -1 else NOWHERE
            if at not in (NOWHERE, self.location()) and at.function != "backward" and not recomputing():
                log.add("hook", str(at))

    def _meet(self, tensor: torch.Tensor, site: str) -> None:
        log, key = self.log, self.log.key(tensor)
        if id(tensor) in self.declared and self.name(tensor) not in self.steps:
            self.steps[self.name(tensor)] = 0
            log.writes([tensor])
            log.add("source", log.reference(tensor), 1, "parameter", self.name(tensor))
        elif not log.versions[key[0]] and key not in log.numbers:
            self._source(tensor, site, 0)

    def _data(self, value: Value) -> bool:
        """Whether each part is the data of one sample, or what was drawn for it."""
        alone = value.turns == 1 and all(len(part) == 1 for part in value.parts)
        own = [(self.terms.operators[term], self.terms.owners[term] >= 0) for part in value.parts for term in part]
        return alone and set(own) <= {("data", True), ("draw", True)}

    def _source(self, tensor: torch.Tensor, site: str, writes: int) -> None:
        """What a tensor is that no logged operator made."""
        with self.aside():
            value = self.value(tensor)
        terms, leaves = self.terms, [term for part in value.parts for term in part]
        owners = [terms.owners[term] for term in leaves]
        kind: tuple[Any, ...] = ("lost", f"a tensor at {site}")
        if value.shared and self.laws.constant(value.parts[0]):
            kind = ("number", str(value.parts[0].get(terms.one, Fraction(0))))
        elif self._data(value):
            name = f"{call_site()} {site}"
            turns = {self.log.turns[name, owner] for owner in owners}
            self.log.turns.update((name, owner) for owner in owners)
            least = terms.attributes[leaves[0]][-1][0]
            if len(turns) == 1:
                kind = ("data", f"{name} {turns.pop()}", value.axis, owners, least)
        elif all(owner == NOBODY for owner in owners):
            kind = ("constant", " ".join(f"{by}*{term}" for part in value.parts for term, by in part.items()))
        self.log.add("source", self.log.reference(tensor), writes, *kind)

    def _gradients(self) -> list[Any]:
        held = {self.name(p): p.grad for p in self.kept if p.is_leaf and p.grad is not None}
        return [[name, self.log.reference(grad)] for name, grad in held.items()]

    def begin(self, roots: Any, *rest: Any) -> None:
        """A backward pass begins."""
        super().begin(roots, *rest)
        log, seeds = self.log, tensors_in(rest[0]) if rest else []
        if self.stepping:
            log.add("lost", "a backward pass runs inside of an optimizer step")
        log.add("backward", *([log.reference(t) for t in one] for one in (tensors_in(roots), seeds)), self._gradients())

    def ended(self, found: Any) -> None:
        """A backward pass has ended."""
        super().ended(found)
        self.log.add("ended", self._gradients(), [self.log.reference(t) for t in tensors_in(found)])

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: log the gradients that it was handed."""
        super().before_step(optimizer)
        rows = [[self.name(one), self.steps[self.name(one)]] for one in params_of(optimizer)]
        for row, one in zip(rows, params_of(optimizer), strict=True):
            if one.grad is not None:
                self._meet(one.grad, "gradient")
                row.append(self.log.reference(one.grad))
        self.log.add("step", self.number_of(optimizer), rows)
        self.renewing.clear()

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped: its parameters have another version, and what else it wrote is a state."""
        super().after_step(optimizer)
        own, log = {id(one): one for one in params_of(optimizer)}, self.log
        rest = [t for t in self.renewing.values() if id(t) not in own]
        log.writes([*own.values(), *rest])
        self.steps.update(map(self.name, own.values()))
        rows = [[self.name(one), log.reference(one)] for one in own.values()]
        log.add("stepped", rows, [log.reference(t) for t in rest])

    def end(self) -> None:
        """The function has returned: log what was lost and read, and the operators by name."""
        super().end()
        self.log.lines[1:1] = [json.dumps(["lost", *map(str, entry)]) for entry in self.facts.lost]
        for entry in self.facts.reads:
            self.log.add("read", *map(str, entry))
        if self.facts.repeated or self.facts.again:
            self.log.add("repeat", str(self.facts.repeated or "a generator"))
        self.log.add("end", len(self.log.lines), dict(sorted(self.log.operators.items())))
