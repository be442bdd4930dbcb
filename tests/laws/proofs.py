"""The proof of laws at small shapes: both sides are one polynomial in each element, for all real numbers.

A law is proved on an example where the operator on the whole, and what the law makes of the operator on parts, are the
same polynomials. Integers, as labels and indices, have the numbers of the example; so has a tensor of zeros. What is
assumed, that the definition is what the kernel computes, is tried on the numbers of the example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from gradproof.shadow.follow.interpreter import Law
from gradproof.shadow.follow.laws import LAWS
from gradproof.shadow.ops.schema import tensors_in
from tests.laws import definitions as definitions
from tests.laws.examples import examples
from tests.laws.numbers import CLOSE, Traced, Wrong
from tests.laws.polynomials import KEYS, Monomial
from tests.laws.symbols import RANKED, Symbols, array_of, variables
from tests.laws.trials import args_of, attempt, layouts, mutants, takes
from tests.operator_examples import Bool, Example, Int, T, overload


@dataclass
class Proof:
    """What was proved of one operator: in how many cases, at which shapes, and why not where it was not.

    `held`: mutants that were proved; `fell`: those that were not.
    """

    name: str
    cases: int = 0
    shapes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    fell: set[str] = field(default_factory=set)


class Proving(Traced):
    """The same, in polynomials."""

    def same(self, made: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether each element is one polynomial on both sides."""
        left, right = array_of(made), array_of(out)
        return left.shape == right.shape and all(p == q for p, q in zip(left.ravel(), right.ravel(), strict=True))

    def shown(self, tensor: torch.Tensor) -> str:
        """The first element."""
        return str(array_of(tensor).ravel()[:1])[:200]

    def nought(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds zeros."""
        return not isinstance(tensor, Symbols) and super().nought(tensor)

    def counts_up(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds 0, 1, 2 ..."""
        return not isinstance(tensor, Symbols) and super().counts_up(tensor)


@dataclass
class Case:
    """An example in symbols: its arguments, the numbers of its variables, and the results."""

    name: str
    op: str
    example: Example
    args: Any
    kwargs: Any
    held: dict[str, torch.Tensor]
    whole: Any

    def proved(self, layout: dict[int, int], law: Law | None, turns: int = 1) -> bool:
        """Whether a law decides a layout. Raises where it is not proved."""
        return attempt(
            self.name, self.op, self.example, self.args, self.kwargs, layout, law, turns, Proving(), self.whole
        )


def symbolic(name: str, op: str, example: Example, args: Any, kwargs: Any) -> Case:
    """An example with variables for its numbers. Raises Wrong where the definition is not what the kernel computes."""
    held: dict[str, torch.Tensor] = {}
    counts = name in ("nll_loss_backward", "nll_loss2d_backward")
    given = tensors_in((args, kwargs))

    def changed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [changed(part) for part in value]
        if not isinstance(value, torch.Tensor):
            return value
        truth = value.dtype is torch.bool and "index" not in name
        number = value.is_floating_point() and bool(value.any()) and not (counts and value is given[-1])
        if not truth and not number:
            return value
        own = f"{name} {len(held)}"
        held[own] = value.double()
        return variables(value, own)

    func = overload(op, example, args, kwargs)
    made = [changed(a) for a in args], {key: changed(v) for key, v in kwargs.items()}
    whole = func(*made[0], **made[1])
    real = func(*args, **kwargs)
    for mine, other in zip(*map(_listed, (whole, real)), strict=True):
        if isinstance(mine, Symbols) and other is not None:
            close = CLOSE.get(other.dtype, 1e-7)
            numbers = Numbers(held).of(mine)
            if numbers.shape != other.shape or not torch.allclose(
                numbers, other.double(), rtol=close, atol=close, equal_nan=True
            ):
                raise Wrong(f"{name}: the definition gives other numbers than the kernel")
    return Case(name, op, example, *made, held, whole)


def shapes_of(example: Example) -> str:
    """The shapes of the tensors of an example."""
    sizes = [part.shape for arg in (*example.args, *example.kwargs.values()) for part in _listed(arg)
             if isinstance(part, T | Int | Bool)]  # fmt: skip
    return ", ".join("x".join(map(str, size)) or "1" for size in sizes)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def proofs() -> dict[str, Proof]:
    """Every law on every example and layout, and its mutants."""
    found: dict[str, Proof] = {}
    for name, op, example, args, kwargs in examples(small=True):
        proof = found.setdefault(name, Proof(name))
        with torch.no_grad():
            prove(proof, name, op, example, args, kwargs)
    return found


def prove(proof: Proof, name: str, op: str, example: Example, args: Any, kwargs: Any) -> None:
    """One example."""
    try:
        case = symbolic(name, op, example, args, kwargs)
    except Exception as error:
        proof.why.append(f"{args_of(example)}: {type(error).__name__} {error}")
        return
    tensors = tensors_in((case.args, case.kwargs))
    every = list(layouts(tensors))
    before = proof.cases
    for layout, turns in ((one, turns) for one in every for turns in takes(tensors, one)):
        try:
            proof.cases += case.proved(layout, None, turns)
        except Exception as error:
            proof.why.append(f"{args_of(example)} {layout} {turns}: {type(error).__name__} {error}")
    if proof.cases > before:
        proof.shapes.append(shapes_of(example))
    law = LAWS.get(name)
    for label, mutant in mutants(law, tensors) if law is not None else ():
        if label not in proof.fell:
            falls = any(_fails(case, layout, mutant) for layout in every)
            (proof.fell if falls else proof.held).add(label)
    proof.held -= proof.fell


def _fails(case: Case, layout: dict[int, int], mutant: Law) -> bool:
    try:
        case.proved(layout, mutant)
    except Exception:
        return True
    return False


class Numbers:
    """Polynomials with numbers again: the number of each atom. `held`: those of the variables, by name."""

    def __init__(self, held: dict[str, torch.Tensor]) -> None:
        self.held, self.known = held, dict[int, float]()

    def of(self, symbols: Symbols) -> torch.Tensor:
        """The numbers of a tensor."""
        flat = [self._polynomial(p.items()) for p in symbols.array.ravel()]
        return torch.tensor(flat, dtype=torch.float64).reshape(symbols.array.shape)

    def _polynomial(self, items: Iterable[tuple[Monomial, Fraction]]) -> float:
        return math.fsum(float(c) * self._monomial(m) for m, c in items)

    def _monomial(self, monomial: Monomial) -> float:
        factors = [self._atom(one) ** power for one, power in monomial]
        return 0.0 if 0.0 in factors else math.prod(factors)

    def _atom(self, one: int) -> float:
        if one not in self.known:
            self.known[one] = float(self._worked(*KEYS[one]))
        return self.known[one]

    def _worked(self, kind: str, *rest: Any) -> Any:
        if kind in ("variable", "mask"):
            return self.held[rest[0]].flatten()[rest[1]]
        if kind == "constant":
            return float(rest[0]) if rest[0] != "1/0" else math.inf
        if kind == "positive":
            up, p = rest
            return (self._polynomial(p) > 0) if up else (self._polynomial(p) < 0)
        if kind == "zero":
            return self._polynomial(rest[0]) == 0
        if kind == "inverse":
            return 1 / self._polynomial(rest[0])
        if kind in ("amax", "amin"):
            return {"amax": max, "amin": min}[kind](map(self._polynomial, rest[0]))
        if kind == "place":
            spots, held = rest
            row = [self._polynomial(p) for p in held]
            return spots[row.index(max(row))]
        if kind in RANKED:
            at, k, options, row = rest
            named = {key: value for key, value in options if key in ("descending", "k", "largest", "sorted")}
            numbers = torch.tensor([self._polynomial(p) for p in row], dtype=torch.float64)
            single = kind in ("max", "min", "median", "argmax", "argmin", "topk")
            found = getattr(torch, kind)(numbers, **named, **({} if kind == "topk" else {"dim": 0}))
            made = found[at] if isinstance(found, tuple) else found
            return made.flatten()[k] if not single or kind == "topk" else made
        given = [torch.tensor(self._polynomial(p), dtype=torch.float64) for p in rest]
        return getattr(torch, kind.replace("erf_inv", "erfinv"))(*given)
