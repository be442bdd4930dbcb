"""What a harness frees of its case: each field of the dataclasses in it is an input or a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from test_scope import Side, doubles, found

from gradproof.core.outcome import Outcome
from gradproof.execution.methods.free_inputs import numeric

Number = Any
Vector = tuple[Any, ...]


@dataclass(frozen=True)
class Inner:
    """A part of a configuration."""

    decay: Number


@dataclass(frozen=True)
class Setup:
    """A configuration with every kind of field."""

    rate: Number
    betas: Vector
    count: int | None = None
    name: str = "a"
    skip: frozenset[int] = frozenset()
    shapes: tuple[int, ...] = ()
    side: Side = Side.LEFT
    on: bool = False
    limit: float = 1.0
    inner: Inner = Inner(0)


def test_what_is_a_number_is_read_from_the_annotations() -> None:
    number = {name for name, is_number in numeric(Setup).items() if is_number}
    assert number == {"rate", "betas", "limit", "inner"}


def freed(build: Callable[[Any], Any], *names: str) -> dict[str, tuple[bool, list[str]]]:
    """Which fields a harness frees that builds its case so, and their concrete values."""

    def harness(k: Any, subject: Any) -> None:
        build(k)
        doubles(k, subject, k.real("x"))

    finding = found(harness, *names)
    assert finding.outcome is Outcome.HOLDS, finding.reason
    return {row["field"]: (row["free"], row["values"]) for row in finding.stats["fields"]}


def test_a_number_is_free_where_it_is_made_of_an_input() -> None:
    def build(k: Any) -> None:
        y = k.real("y", 0, 1)
        k.scenario([Setup(2 * y + 1, (1 - y, y), inner=Inner(y))], buffer=(y, -y), params=(0, 0), grads=(0, y))

    rows = freed(build)
    assert {name for name, (free, _) in rows.items() if free} == {"rate", "betas", "decay", "buffer"}
    assert rows["params"] == rows["grads"] == (False, ["0"])
    assert rows["limit"] == (False, ["1.0"])


@pytest.mark.parametrize("pinned", ["element", "range", "dataclass", "path"])
def test_one_free_element_does_not_free_a_list(pinned: str) -> None:
    def build(k: Any) -> None:
        y, z = k.reals("y", 2, 0, 1)
        if pinned == "path":  # an element is constant on each path, and another one on the other
            y, z = (y, 0) if k.choose("first", [True, False]) else (0, z)
        elif pinned != "dataclass":
            z = 1 if pinned == "element" else k.real("z", 1, 1)
        second = 2 if pinned == "dataclass" else y
        k.scenario([Setup(y, (y, z)), Setup(second, (y, z))])

    rows = freed(build)
    assert rows["betas"][0] is (pinned == "dataclass")
    assert rows["rate"][0] is (pinned != "dataclass")


def test_a_case_of_any_number_of_parts_is_taken_whole() -> None:
    def build(k: Any) -> None:
        inner = [Inner(k.real(f"decay {i}")) for i in range(4)]
        k.scenario(*inner, Setup(k.real("rate"), (), inner=inner[0]))

    assert {"decay", "rate"} <= {name for name, (free, _) in freed(build).items() if free}
    three = freed(lambda k: k.scenario(Inner(0), Inner(k.real("y")), Setup(k.real("z"), ())))
    assert (three["decay"], three["rate"][0]) == ((False, ["0"]), True)


@pytest.mark.parametrize("case", [(Inner(0), 1), (Inner(0), Inner(0), Inner(0), (1, 2)), ((1, 2),)])
def test_a_part_of_a_case_that_no_dataclass_is_in_needs_a_name(case: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="give it a name"):
        freed(lambda k: k.scenario(*case))


def test_a_number_that_takes_two_values_is_not_free_and_a_word_that_does_is() -> None:
    def build(k: Any) -> None:
        value, name, on = k.choose("value", [1, 4]), k.choose("name", ["a", "b"]), k.choose("on", [False, True])
        k.scenario(Setup(value, (), count=value, name=name, skip=frozenset({value}), on=on))

    rows = freed(build)
    assert rows["rate"] == (False, ["1", "4"])
    assert {name for name, (free, _) in rows.items() if free} == {"count", "name", "skip", "on"}
    assert rows["skip"][1] == ["[1]", "[4]"]


def test_several_constants_on_one_path_are_constants() -> None:
    """Counts 1, 2, 3 of three micro-batches are one case; three cases are several."""
    rows = freed(lambda k: k.scenario([Setup(0, (), count=i) for i in (1, 2, 3)]))
    assert rows["count"] == (False, ["1", "2", "3"])
    rows = freed(lambda k: k.scenario([Setup(0, (), count=i + 1) for i in range(k.choose("n", [1, 2]))]))
    assert rows["count"] == (False, ["1", "2"])
    rows = freed(lambda k: k.scenario([Setup(0, (), count=i) for i in (1, k.choose("count", [2, 3]))]))
    assert rows["count"] == (True, ["1", "2", "3"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_input_that_the_assumptions_pin_is_not_free(when: str) -> None:
    def build(k: Any) -> None:
        y, z = k.real("y"), k.real("z", 2, 2)
        if when == "before":
            k.assume(y == 3)
        k.scenario(Setup(y, (z,), count=k.int("n", 5, 5), on=k.bool("b")))
        if when == "after":
            k.assume(y == 3)

    assert {name for name, (free, _) in freed(build).items() if free} == {"on"}


def test_a_path_that_nothing_is_asked_on_frees_nothing() -> None:
    def harness(k: Any, subject: Any) -> None:
        if k.choose("asked", [True, False]):
            doubles(k, subject, k.real("x"))
            k.scenario(Setup(1, ()))
        else:
            k.scenario(Setup(k.real("y"), ()))

    rows = {row["field"]: row["free"] for row in found(harness).stats["fields"]}
    assert not rows["rate"]


def test_what_a_mutant_does_is_not_told() -> None:
    """The rows are those of the reference's run: two explorations with other fields are two evidences."""

    def harness(k: Any, subject: Any) -> None:
        x = k.real("x", 1, 2)
        k.scenario(Setup(1 if subject(1) == 2 else x, ()))
        doubles(k, subject, x)

    rows = {row["field"]: row["free"] for row in found(harness).stats["fields"]}
    assert not rows["rate"]
