"""Counts of labels: sums of truth values that say which labels are valid, and what a masked sum stands for."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.whole.interpreter import Call, Interpreter, rows_of
from gradproof.shadow.whole.laws import rule
from gradproof.shadow.whole.terms import ZERO, Combination, plus
from gradproof.shadow.whole.values import Value, part_shape, shared


def masses(x: Interpreter, call: Call, count: int) -> list[Combination]:
    """How many elements each part of a sum of everything stands for: those that a mask keeps, or all of them.

    Where counts are the numbers of this run, what is ignored of all of them is not known.
    """
    found = masked(x, call)
    return found or ([] if x.integers else [x.ones(Fraction(count, len(call.values[0].parts))).parts[0]])


def masked(x: Interpreter, call: Call) -> list[Combination]:
    """For each part of a masked sum of everything, how many elements the mask keeps; nothing for another sum."""
    value, terms, small = call.values[0], x.terms, part_shape(call.values[0], call.shapes[0])
    found = []
    for part in value.parts if x.tallies and call.name == "sum" and not call.out_shape() else ():
        bare = terms.bare(next(iter(part)))[0] if len(part) == 1 else x.terms.one
        kids = terms.kids[bare] if terms.operators[bare] == "mul" else ()
        counts = [made for kid in kids if terms.shapes[kid] == small and (made := _valid(x, kid)) is not None]
        if len(counts) != 1:
            return []
        found.append(counts[0])
    return found


def _valid(x: Interpreter, term: int) -> Combination | None:
    """The count of labels that are not the ignored one, of truth values that say so, also as numbers."""
    terms = x.terms
    term = terms.kids[term][0] if terms.operators[term] == "cast" else term
    if x.integers:
        return x.tallied.get(term)
    form = terms.attributes[term]
    if terms.operators[term] != "ne" or len(terms.kids[term]) != 1 or not isinstance(form[1][1], int):
        return None
    labels = terms.kids[term][0]
    return x.count(labels, terms.shapes[labels] or (), form[1][1])


def counted(x: Interpreter, call: Call) -> Value | None:
    """A sum of truth values that say which labels are not the ignored one: it is the count of these labels."""
    value = call.values[0]
    if call.tensors[0].dtype is not torch.bool or x.marks:
        return None
    if x.integers:
        with _disable_current_modes():
            seen = [int(rows_of(call.tensors[0], value, at).sum()) for at in range(len(value.parts))]
        for part, number in zip(value.parts, seen, strict=True):
            x.tallied |= {term: x.ones(Fraction(number)).parts[0] for term in part if len(part) == 1}
        return x.ones(Fraction(sum(seen)))
    total: Combination = ZERO
    for part in value.parts:
        count = _valid(x, next(iter(part))) if list(part.values()) == [1] else None
        if count is None:
            return None
        total = plus(total, count)
    return shared(total)


@rule("bitwise_not", "logical_not")
def negated(x: Interpreter, call: Call) -> list[Value] | None:
    """What is not equal is unequal: a loss with label smoothing counts its labels so."""
    value, terms = call.values[0], x.terms
    own = [next(iter(part)) for part in value.parts if list(part.values()) == [1]]
    if call.tensors[0].dtype is not torch.bool or [terms.operators[t] for t in own] != ["eq"] * len(value.parts):
        return None
    made = (terms.make("ne", terms.attributes[t], terms.kids[t], terms.shapes[t]) for t in own)
    return [value.holding([terms.of(term) for term in made])]
