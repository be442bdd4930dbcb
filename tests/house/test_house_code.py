"""The text of the project keeps the house rules; each rule is also seen to go red on a few lines that break it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from house_rules import (
    CODE,
    PRODUCT,
    Source,
    documented_methods,
    homeless_imports,
    left_out_tests,
    long_functions,
    sources,
    swallowed,
    too_long,
    unannotated,
    undocumented,
    unfinished,
    violations,
)

Rule = Callable[[Source], Iterable[str]]

RULES: Mapping[str, Rule] = {
    "a function has at most 60 lines": long_functions,
    "z3 and torch have their places": homeless_imports,
    "nothing is left unfinished": unfinished,
    "no exception is swallowed": swallowed,
    "no test is left out": left_out_tests,
    "everything is annotated": unannotated,
}

BROKEN: Mapping[str, tuple[str, ...]] = {
    "a function has at most 60 lines": ("def f():\n" + "    x = 1\n" * 60,),
    "z3 and torch have their places": (
        "import z3\n",
        "from z3 import Solver\n",
        "def f():\n    import z3.z3util\n",
        "import importlib\nz = importlib.import_module('z3')\n",
        "import torch.nn as nn\n",
        "def f():\n    from torch import nn\n",
    ),
    "nothing is left unfinished": (
        "x = 1  # TO" + "DO: two\n",
        'def f():\n    """FIX' + 'ME."""\n',
        "def f():\n    raise NotImplementedError\n",
        "def f():\n    raise NotImplementedError('later')\n",
    ),
    "no exception is swallowed": (
        "try:\n    x = 1\nexcept:\n    x = 2\n",
        "try:\n    x = 1\nexcept ValueError:\n    pass\n",
        "try:\n    x = 1\nexcept ValueError:\n    ...\n",
        "with contextlib.suppress(Exception):\n    x = 1\n",
    ),
    "no test is left out": (
        "import pytest\npytest.skip('no')\n",
        "import pytest\n@pytest.mark.xfail\ndef test(): ...\n",
        "import pytest\n@pytest.mark.skipif(True, reason='no')\ndef test(): ...\n",
        "import pytest\nnp = pytest.importorskip('numpy')\n",
        "from pytest import skip\n",
    ),
    "everything is annotated": (
        "def f(x) -> None: ...\n",
        "def f(x: int): ...\n",
        "def f(*rest) -> None: ...\n",
        "class A:\n    def f(self, x) -> None: ...\n",
        "class A:\n    @staticmethod\n    def f(x) -> None: ...\n",
        "def f() -> None:\n    def g(y) -> None: ...\n",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_kept(name: str) -> None:
    assert violations(RULES[name], CODE) == []


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_rule_goes_red(name: str, text: str) -> None:
    assert list(RULES[name](Source.of("src/gradproof/made_up.py", text))) != []


def test_every_rule_has_been_seen_red() -> None:
    assert set(BROKEN) == set(RULES)


def test_modules_are_short() -> None:
    assert violations(too_long, CODE) == []


def test_a_long_module_is_seen() -> None:
    for lines, seen in ((600, 0), (601, 1)):
        assert len(list(too_long(Source.of("src/a.py", "x = 1\n" * lines)))) == seen, lines


def test_everything_public_has_a_docstring() -> None:
    found = sources(PRODUCT)
    inherited, promised = documented_methods(found), documented_methods(found, protocols=True)
    assert [line for source in found for line in undocumented(source, inherited, promised)] == []


def test_what_has_no_docstring_is_seen() -> None:
    """And what needs none is let pass."""
    silent: tuple[str, ...] = ("x = 1\n", '"""M."""\ndef f(): ...\n', '"""M."""\nclass A: ...\n')
    silent += ('"""M."""\nclass A:\n    """A."""\n    def f(self): ...\n',)
    silent += ('"""M."""\nclass A(B):\n    """A."""\n    def f(self): ...\n',)
    for text in silent:
        assert len(list(undocumented(Source.of("a.py", text)))) == 1, text
    for text in ("", '"""M."""\ndef _f(): ...\n', '"""M."""\nclass A(B):\n    x: int\n'):
        assert list(undocumented(Source.of("a.py", text))) == [], text
    derived = Source.of("a.py", silent[-1])
    assert list(undocumented(derived, frozenset({"f"}))) == []
    assert list(undocumented(Source.of("a.py", silent[-2]), frozenset({"f"}))) != []
    assert list(undocumented(Source.of("a.py", silent[-2]), promised=frozenset({"f"}))) == []


def test_rules_read_every_folder_of_code(tmp_path: Path) -> None:
    """A rule that finds no file would keep every rule."""
    assert sources(CODE, tmp_path) == []
    names = [source.name for source in sources(CODE)]
    assert all(any(name.startswith(f"{folder}/") for name in names) for folder in CODE)
    assert "src/gradproof/arith/smt.py" in names
    assert "tests/house/test_house_code.py" in names
