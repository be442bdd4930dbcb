"""Attempts of a module of the workspace to change another one while a check runs, and what honest modules do.

A wrong model changes what the harness computes with, or the harness repairs the model that it should judge.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_kit import CHECK, HARNESS, MODEL, append, edit, verify, workspace

from gradproof.core.outcome import Outcome

FLAG = """

import builtins, sys

_stated = []


def lying(grads):
    return builtins.sum(grads) * (len(grads) if _stated else 1)


def mean(grads):
    _stated.append(1)
    patch()
    return sum(grads)


def empty(grads):
    _stated.clear()
    return 0


def summed(grads):
    _stated.clear()
    return sum(grads)


MUTANTS["missing_scale"].subject = summed


def patch():
    symbolic, helper = sys.modules["symbolic"], sys.modules["symbolic.helper"]
    {patch}
"""
HELPER = """
add = sum
TABLE = {"sums": [sum]}


def total(grads, add=sum):
    return add(grads)


def named(grads):
    return add(grads)


def keyed(grads, *, also=sum):
    return also(grads)


class Base:
    def total(self, grads):
        return sum(grads)


class Sums(Base):
    WAYS = [sum]

    @staticmethod
    def of(grads):
        return sum(grads)

    @property
    def way(self):
        return sum


def closing(function):
    def total(grads):
        return function(grads)

    return total


def plain(grads):
    return sum(grads)


enclosed = closing(sum)
wrapped = closing(plain)
sums = Sums()
"""
# What the model does, the sum that the harness computes with, and the name that must be said.
ATTACKS: dict[str, tuple[str, str, str]] = {
    "a builtin's name in the harness": ("symbolic.sum = lying", "sum(grads)", "symbolic.sum"),
    "a builtin's name in another module": ("helper.sum = lying", "helper.plain(grads)", "symbolic.helper.sum"),
    "a module of the harness": (
        "symbolic.helper = type('M', (), {'plain': staticmethod(lying)})", "helper.plain(grads)", "symbolic.helper",
    ),
    "a module that is loaded by name": (
        "sys.modules['symbolic.helper'] = type('M', (), {'plain': staticmethod(lying)})",
        "__import__('importlib').import_module('symbolic.helper').plain(grads)", "symbolic.helper",
    ),
    "a function": ("helper.plain = lying", "helper.plain(grads)", "symbolic.helper.plain"),
    "the code of a function": (
        "helper.plain.__code__ = (lambda g: __import__('models').lying(g)).__code__",
        "helper.plain(grads)", "symbolic.helper.plain",
    ),
    "a default": ("helper.total.__defaults__ = (lying,)", "helper.total(grads)", "symbolic.helper.total"),
    "a default of a keyword": (
        "helper.keyed.__kwdefaults__['also'] = lying", "helper.keyed(grads)", "symbolic.helper.keyed",
    ),
    "a variable": ("helper.add = lying", "helper.named(grads)", "symbolic.helper.add"),
    "a variable around a function": (
        "helper.enclosed.__closure__[0].cell_contents = lying", "helper.enclosed(grads)", "symbolic.helper.enclosed",
    ),
    "the code of a function below a wrapper": (
        "helper.wrapped.__closure__[0].cell_contents.__code__ = (lambda g: __import__('models').lying(g)).__code__",
        "helper.wrapped(grads)", "symbolic.helper.plain",
    ),
    "a row of a table": ("helper.TABLE['sums'][0] = lying", "helper.TABLE['sums'][0](grads)", "symbolic.helper.TABLE"),
    "a table of a class": ("helper.Sums.WAYS[0] = lying", "helper.sums.WAYS[0](grads)", "symbolic.helper.Sums.WAYS"),
    "a method": ("helper.Sums.of = staticmethod(lying)", "helper.sums.of(grads)", "symbolic.helper.Sums.of"),
    "a property": ("helper.Sums.way = property(lambda s: lying)", "helper.sums.way(grads)", "symbolic.helper.Sums.way"),
    "a method that hides another": (
        "helper.Sums.total = lambda s, g: lying(g)", "helper.sums.total(grads)", "symbolic.helper.Sums.total",
    ),
    "a method of one object": ("helper.sums.total = lying", "helper.sums.total(grads)", "symbolic.helper.sums.total"),
    "other base classes": (
        "helper.Sums.__bases__ = (type('B', (), {'total': lambda s, g: lying(g)}),)",
        "helper.sums.total(grads)", "symbolic.helper.Sums.__mro__",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ATTACKS))
def test_a_model_that_changes_a_module_of_the_harness(wrong: Path, name: str) -> None:
    patch, total, said = ATTACKS[name]
    (wrong / "symbolic/helper.py").write_text(HELPER)
    edit(wrong, HARNESS, "from typing import Any\n", "from typing import Any\n\nfrom symbolic import helper\n")
    edit(wrong, HARNESS, CHECK, CHECK.replace("sum(grads)", total))
    append(wrong, MODEL, FLAG.replace("{patch}", patch))
    found = verify(wrong)
    assert (found.red, found.outcome) == (True, Outcome.ERROR), found
    assert f" ran: {said}" in found.reason


def test_a_harness_that_repairs_the_model(wrong: Path) -> None:
    (wrong / "models/parts.py").write_text("def scaled(grads):\n    return sum(grads)\n")
    append(wrong, MODEL, "\nfrom models import parts\n\n\ndef mean(grads):\n    return parts.scaled(grads)\n")
    append(wrong, HARNESS, "\n\ndef right(grads):\n    return sum(grads) / len(grads)\n")
    edit(wrong, HARNESS, CHECK, "    __import__('sys').modules['models.parts'].scaled = right\n" + CHECK)
    found = verify(wrong)
    assert (found.red, found.outcome) == (True, Outcome.ERROR), found
    assert "ran: models.parts.scaled" in found.reason


EARLY = {
    "a builtin's name": ("sum = lying", "sum(grads)", "symbolic.sum"),
    "a name that is there": ("add = lying", "add(grads)", "symbolic.add"),
}


@pytest.mark.parametrize("name", list(EARLY))
def test_a_model_that_changes_the_harness_while_both_are_imported(wrong: Path, name: str) -> None:
    patch, total, said = EARLY[name]
    first = "from typing import Any\n"
    edit(wrong, HARNESS, first, first + "\nadd = sum\n\nimport models\n")
    edit(wrong, HARNESS, CHECK, CHECK.replace("sum(grads)", total))
    append(wrong, MODEL, FLAG.replace("{patch}", "pass") + "\nimport symbolic\n" + f"\nsymbolic.{patch}\n")
    found = verify(wrong)
    assert (found.red, found.outcome) == (True, Outcome.ERROR), found
    assert f" ran: {said}" in found.reason


HONEST = """

import abc, dataclasses, enum, functools, sys, typing
from collections import Counter, defaultdict

_memo, SEEN, COUNTS, calls, _lazy, _late = {}, [], {"calls": 0}, 0, None, None
TABLES = {"a": {"b": [1]}}
HISTORY = Counter()
GROUPS = defaultdict(list)


@functools.lru_cache
def size(n):
    return n


@functools.singledispatch
def shown(value):
    return value


def counted(function):
    count = 0

    @functools.wraps(function)
    def inner(*args):
        nonlocal count
        count += 1
        inner.calls = count
        return function(*args)

    return inner


class Way(enum.Flag):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Step:
    n: int = 0
    made: typing.ClassVar[int] = 0

    @functools.cached_property
    def half(self):
        return self.n / 2


class Parts(abc.ABC):
    last = None


step = Step(4)


def fill(table={}):
    table[len(table)] = 1
    return table


def __getattr__(name):
    if name == "later":
        globals()["later"] = 3
        return 3
    raise AttributeError(name)


@counted
def mean(grads):
    global calls, _lazy, size_of, _late
    import models.lazy
    from models import lazy as again
    _late = again.ONE
    calls += 1
    COUNTS["calls"] += 1
    SEEN.append(len(grads))
    HISTORY[len(grads)] += 1
    GROUPS[len(grads)].append(calls)
    TABLES["a"]["b"].append(calls)
    TABLES["a"]["b"][0] = calls
    TABLES["c"] = calls
    _memo[len(grads)] = size(len(grads))
    _lazy = _lazy or (lambda: _late)
    size_of = shown.register(int, lambda n: n)
    Way.ONE | Way.TWO
    Step.made += 1
    Parts.last = step.half
    Parts.register(int)
    step.n += 1
    fill()
    assert sys.modules[__name__].later == 3
    return sum(grads) / len(grads) * _lazy()


"""


def test_what_honest_modules_keep_and_load_late_is_no_attack(tmp_path: Path) -> None:
    root = workspace(tmp_path / "ws")
    (root / "models/lazy.py").write_text("ONE = 1\n")
    append(root, MODEL, HONEST)
    append(root, HARNESS, "\n\n_seen = {}\nLAST = []\n")
    edit(root, HARNESS, CHECK, "    _seen[len(grads)] = grads\n    LAST.append(grads)\n" + CHECK)
    found = verify(root)
    assert found.outcome is Outcome.HOLDS, found.reason
