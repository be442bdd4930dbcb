"""Random operators: which there are, by what numbers they draw, and the leaves that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from gradproof.shadow.locations import Location, initialising
from gradproof.shadow.ops.schema import Spec
from gradproof.shadow.whole.facts import RunFacts
from gradproof.shadow.whole.interpreter import Call, Interpreter, Law
from gradproof.shadow.whole.terms import Shape, Terms
from gradproof.shadow.whole.values import NOUGHT, Value, part_shape, shared

GENERATORS = frozenset({
    "rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like", "uniform", "bernoulli",
    "exponential", "random", "cauchy", "log_normal", "geometric",
})  # fmt: skip
"""Random operators whose result depends on no tensor but for its shape, or on the numbers of their first alone."""


def bounds(call: Call) -> tuple[Any, Any]:
    """The least number that a random operator gives and the first above; of others nothing is known."""
    if call.name != "randint":
        return (None, None)
    plain = [arg for arg in call.args if isinstance(arg, int) and not isinstance(arg, bool)]
    return (0, plain[0]) if len(plain) == 1 else (plain[0], plain[1]) if len(plain) == 2 else (None, None)


def settings(call: Call) -> tuple[Any, ...]:
    """The numbers that a random operator is given: a mean, a deviation, a probability, bounds."""
    given = call.attributes[:-1] if call.name != "randperm" else ()
    return tuple(one for one in given if isinstance(one, int) or (isinstance(one, tuple) and one[:1] == ("float",)))


def by_numbers(call: Call, written: list[torch.Tensor]) -> bool:
    """Whether it draws by the numbers of its first tensor: by a mean, or a probability, for each element."""
    first = call.args[0] if call.args else None
    if not isinstance(first, torch.Tensor) or any(first is one for one in written):
        return False
    return call.name == "normal" or (call.name == "bernoulli" and len(call.args) == 1)


class Draws(ABC):
    """An engine that makes leaves: of data, of draws, and of what is not known."""

    laws: Interpreter
    terms: Terms
    facts: RunFacts
    made: Counter[tuple[str, int]]
    mark: Any
    drawing = ""
    each: Law
    """The law of an operator on each element."""
    product: Law
    """The law of one that is linear in two arguments."""

    @abstractmethod
    def source(self, tensor: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """A tensor of data, which no operator made of others. `within`: the least whole number, and the first above."""

    @abstractmethod
    def location(self) -> Location:
        """The user's line that runs."""

    def leaf(self, operator: str, attributes: tuple[Any, ...], shape: Shape) -> Value:
        """What all samples share, of no other term."""
        return shared(self.terms.of(self.terms.make(operator, attributes, (), shape)))

    def _fresh(self, kind: str, shape: Shape) -> Value:
        """A leaf of which nothing is known: it equals no other, of this run or another."""
        self.made[kind, 0] += 1
        return self.leaf("unknown", (kind, self.mark, self.made[kind, 0]), shape)

    def _shared(self, kind: str, shape: Shape) -> Value:
        self.made[kind, 0] += 1
        return self.leaf("draw", (kind, self.made[kind, 0], (None, None)), shape)

    def _drawn(self, spec: Spec, call: Call, written: list[torch.Tensor]) -> list[Value]:
        """Random numbers: data, numbers of each sample, or numbers that all share."""
        if call.name == "native_dropout":
            return self._dropped(call)
        by, others = by_numbers(call, written), any(isinstance(arg, torch.Tensor) for arg in call.args[1:])
        if call.name not in GENERATORS or others or (by and written):
            self.facts.opaque[call.name] += 1
            return [self._fresh(call.name, call.out_shape(at)) for at in range(len(call.out))]
        drawn = self._drawn_like(call, bool(written))
        if not by:
            return drawn
        pair = replace(
            call, attributes=settings(call), tensors=call.tensors * 2, values=[call.values[0], *drawn],
            shapes=call.shapes * 2, arguments=(),
        )  # fmt: skip
        return self.laws.apply(self.each, pair)  # a function of these numbers and of noise

    def _drawn_like(self, call: Call, written: bool = True) -> list[Value]:
        found: list[Value] = []
        for at, made in enumerate(call.out):
            shape = call.out_shape(at)
            like = call.values[0] if call.values and call.shapes[0] == shape else NOUGHT
            owners = [{self.terms.owners[term] for term in part} for part in like.parts]
            if not like.shared and all(len(o) == 1 and min(o) >= 0 for o in owners):
                found.append(self._masks(call, like, [o.pop() for o in owners], shape))
            elif written or initialising() or made is None or (like.shared and call.name.endswith("_like")):
                found.append(self._shared(f"random {call.name} {settings(call)}", shape))
            else:
                self.drawing = f" {call.name} {settings(call)}"
                found.append(self.source(made, bounds(call)))
                self.drawing = ""
        return found

    def _masks(self, call: Call, like: Value, owners: list[int], shape: Shape) -> Value:
        """Numbers drawn for each sample: the n-th draw of a line for a sample is one leaf in both runs."""
        site, size = f"{call.name} at {self.location()}", part_shape(like, shape)
        parts = []
        for owner in owners:
            self.made[site, owner + 1] += 1
            key = (site, call.attributes, owner, self.made[site, owner + 1], (None, None))
            parts.append(self.terms.of(self.terms.make("draw", key, (), size, owner)))
        return like.holding(parts)

    def _dropped(self, call: Call) -> list[Value]:
        """Dropout as one operator: a mask is drawn, and the result is the product with it, scaled."""
        keep = self.laws.exact(call.args[1])
        bits = replace(call, out=call.out[1:], name="bernoulli")
        (mask,) = self._drawn_like(bits)
        if keep is None or keep == 1:
            return self.laws.opaque(call)
        pair = replace(
            call, name="mul", attributes=(), values=[call.values[0], mask], shapes=[call.shapes[0]] * 2,
            tensors=[call.tensors[0]] * 2, out=call.out[:1],
        )  # fmt: skip
        return [self.laws.apply(self.product, pair)[0].scaled(1 / (1 - keep)), mask]
