"""What a seal sees of a change to the engine, and what it does not mind: one change at a time."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradproof.evidence import seal as integrity
from gradproof.evidence.seal import Seal, shadowed

NAME = "gradproof.toy_engine"
SOURCE = """\
LIMIT = 3
lower = 3
TABLE = {"a": 1}


def f(x, y=1):
    def inner():
        return x
    return inner()


class C:
    def m(self):
        return 1

    @staticmethod
    def s():
        return 2

    @classmethod
    def c(cls):
        return 3

    @property
    def p(self):
        return 4
"""
Change = Callable[[Any], object]


def other(*args: Any, **kwargs: Any) -> int:
    return 0


def put(owner: str, name: str, value: Any) -> Change:
    """Set an attribute of the module, or of its class."""
    return lambda m: setattr(m if owner == "module" else m.C, name, value)


WRAP = """
def wrap(fn, shown):
    @wraps(shown)
    def wrapper(*args):
        return fn(*args)
    return wrapper
"""


def around(*files: str, inner: Any = None) -> Change:
    """Wrap the function by code of these files. `inner` is called in its place by a wrapper that names the function."""

    def change(module: Any) -> None:
        for file in files:
            space: dict[str, Any] = {"wraps": functools.wraps}
            exec(compile(WRAP, file, "exec"), space)
            module.f = space["wrap"](inner or module.f, module.f)

    return change


COMPILER = "/site-packages/torch/_compile.py"
SEEN: dict[str, tuple[Change, str]] = {
    "a function wrapped": (around("/ws/models/a.py"), "f"),
    "a function wrapped once more": (around("/ws/models/a.py", COMPILER), "f"),
    "another function in torch's wrapper": (around(COMPILER, inner=other), "f"),
    "a function exchanged": (put("module", "f", other), "f"),
    "a function removed": (lambda m: delattr(m, "f"), "f"),
    "the code of a function": (lambda m: setattr(m.f, "__code__", other.__code__), "f"),
    "the defaults of a function": (lambda m: setattr(m.f, "__defaults__", (2,)), "f"),
    "a constant": (put("module", "LIMIT", 4), "LIMIT"),
    "a method exchanged": (put("class", "m", other), "C.m"),
    "a method removed": (lambda m: delattr(m.C, "m"), "C.m"),
    "the code of a method": (lambda m: setattr(m.C.m, "__code__", other.__code__), "C.m"),
    "a static method": (put("class", "s", staticmethod(other)), "C.s"),
    "the code of a static method": (lambda m: setattr(m.C.s, "__code__", other.__code__), "C.s"),
    "the code of a class method": (lambda m: setattr(m.C.c.__func__, "__code__", other.__code__), "C.c"),
    "the code of a property": (lambda m: setattr(vars(m.C)["p"].fget, "__code__", other.__code__), "C.p"),
}
UNMINDED: dict[str, Change] = {
    "nothing": lambda m: None,
    "a function wrapped by torch's compiler": around(COMPILER),
    "a function wrapped twice by torch's compiler": around(COMPILER, COMPILER),
    "a new function": put("module", "g", other),
    "a new method": put("class", "n", other),
    "a name that is no constant": put("module", "lower", 4),
    "a table that is filled": lambda m: m.TABLE.update(b=2),
}


def load(place: Path) -> ModuleType:
    """A module of the engine, from a file of its own."""
    place.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(NAME, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Nothing but one small module counts as the engine."""
    module = load(tmp_path / "toy_engine.py")
    monkeypatch.setattr(integrity, "OTHERS", ())
    for name in [n for n in sys.modules if n.partition(".")[0] == "gradproof"]:
        monkeypatch.delitem(sys.modules, name)
    return module


def broken(engine: ModuleType, edit: Change, *, late: bool = False, again: bool = False) -> list[str]:
    """What a seal names after a change. `late`: the module came after the closing. `again`: it is closed once more."""
    seal = Seal()
    if late:
        seal.close()
    sys.modules[NAME] = engine
    if not late:
        seal.close()
    edit(engine)
    if again:
        seal.close()
    found = seal.broken()
    del sys.modules[NAME]
    return found


@pytest.mark.parametrize("change", SEEN)
def test_what_is_exchanged_after_the_seal_is_named(engine: ModuleType, change: str) -> None:
    edit, named = SEEN[change]
    assert f"{NAME}.{named}" in broken(engine, edit)


@pytest.mark.parametrize("change", UNMINDED)
def test_what_is_added_or_counts_for_nothing_breaks_no_seal(engine: ModuleType, change: str) -> None:
    assert broken(engine, UNMINDED[change]) == []


LATE = ["a function exchanged", "the code of a function", "a method exchanged", "the code of a method",
        "a static method", "the code of a class method", "the code of a property"]  # fmt: skip


@pytest.mark.parametrize("change", [*LATE, *UNMINDED])
def test_a_module_that_came_later_is_held_against_its_own_file(engine: ModuleType, change: str) -> None:
    found = broken(engine, SEEN[change][0] if change in SEEN else UNMINDED[change], late=True)
    assert found == ([f"{NAME}.{SEEN[change][1]}"] if change in SEEN else [])


@pytest.mark.parametrize("name", ["another", "gradproof._reference.models", "gradproofs"])
def test_a_module_of_somebody_else_is_not_the_engine(
    engine: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, engine)
    seal = Seal()
    seal.close()
    engine.__dict__["f"] = other
    assert seal.broken() == []


@pytest.mark.parametrize("spec", [True, False])
def test_a_late_module_without_a_file_has_nothing_to_be_held_against(engine: ModuleType, spec: bool) -> None:
    engine.__spec__ = importlib.util.spec_from_loader(NAME, None) if spec else None
    assert broken(engine, put("module", "f", other), late=True) == []


def test_a_seal_that_was_never_closed_names_nothing(engine: ModuleType) -> None:
    sys.modules[NAME] = engine
    seal = Seal()
    engine.__dict__["f"] = other
    found = seal.broken()
    del sys.modules[NAME]
    assert found == []


def test_a_second_closing_forgives_nothing(engine: ModuleType) -> None:
    assert broken(engine, put("module", "f", other), again=True) == [f"{NAME}.f"]


OUTER = "add = sum\nTABLE = {'a': [sum]}\n\ndef late():\n    global add\n    add = max\n"


@pytest.mark.parametrize(
    ("change", "when", "named"),
    [
        (lambda m: None, "inside", []),
        (lambda m: m.late(), "inside", []),
        (lambda m: m.late(), "after", []),
        (lambda m: setattr(m, "new", other), "inside", []),
        (lambda m: m.TABLE.update(b=1), "after", []),
        (lambda m: setattr(m, "TABLE", {}), "inside", ["TABLE"]),
        (lambda m: setattr(m, "late", other), "inside", ["late"]),
        (lambda m: setattr(m, "sum", other), "inside", ["sum"]),
        (lambda m: setattr(m, "late", other), "after", ["late"]),
        (lambda m: setattr(m, "sum", other), "after", ["sum"]),
        (lambda m: m.TABLE["a"].clear(), "after", ["TABLE"]),
        (lambda m: sys.modules.pop("outer"), "after", []),
        (lambda m: sys.modules.__setitem__("outer", ModuleType("outer")), "after", [""]),
        (lambda m: setattr(m, "__class__", type("M", (ModuleType,), {})), "after", ["__class__"]),
    ],
)
def test_a_module_of_the_workspace_may_be_changed_by_itself_alone(
    change: Change, when: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another module is imported by it, and after its own import."""
    monkeypatch.setattr(integrity, "_watched", list)
    outer, inner, code = ModuleType("outer"), ModuleType("inner"), compile(OUTER, "outer.py", "exec")
    monkeypatch.setitem(sys.modules, "outer", outer)
    monkeypatch.setitem(sys.modules, "inner", inner)
    seal = Seal()
    with seal.importing(outer, code):
        exec(code, vars(outer))
        with seal.importing(inner, compile("", "inner.py", "exec")):
            if when == "inside":
                change(outer)
    if when == "after":
        change(outer)
    assert seal.rewritten() == [f"outer.{name}".rstrip(".") for name in named]


@pytest.mark.parametrize("name", ["models.toy", "symbolic"])
def test_a_model_or_harness_that_is_taken_out_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_watched", list)
    module, code = ModuleType(name), compile("", "toy.py", "exec")
    monkeypatch.setitem(sys.modules, name, module)
    seal = Seal()
    with seal.importing(module, code):
        exec(code, vars(module))
    assert seal.rewritten() == []
    del sys.modules[name]
    assert seal.rewritten() == [name]


def test_a_name_of_z3_is_told_as_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: ModuleType(name) for name in ("z3.z3", "z3.z3core")}
    monkeypatch.setattr(integrity, "_watched", lambda: list(modules.items()))
    vars(modules["z3.z3"])["solve"] = vars(modules["z3.z3core"])["Z3_mk"] = lambda: 1
    seal = Seal()
    seal.close()
    vars(modules["z3.z3"])["solve"] = vars(modules["z3.z3core"])["Z3_mk"] = lambda: 2
    assert seal.broken() == ["z3.solve", "z3.z3core.Z3_mk"]


Noted = Callable[..., list[str]]


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    """What a seal says of an audit event that code of a file raised."""
    hooks: list[Any] = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    monkeypatch.setattr(integrity, "_watched", list)

    def note(event: str, *args: Any, place: str = "models/a.py", root: Path | None = tmp_path) -> list[str]:
        hooks.clear()
        seal = Seal(root)
        seal.close()
        for hook in hooks:
            text = compile("hook(event, args)", os.path.join(tmp_path, place), "exec")
            exec(text, {"hook": hook, "event": event, "args": args})
        return seal.broken()

    return note


def test_a_tracer_of_the_workspace_is_named_and_no_other_event_is(noted: Noted) -> None:
    assert noted("sys.settrace") == ["sys.settrace"]
    assert noted("sys.setprofile") == ["sys.setprofile"]
    assert noted("open", "file", "r", 0) == []
    assert noted("sys.settrace", place="/elsewhere/tool.py") == []
    assert noted("sys.settrace", root=None) == []


def test_another_class_for_an_object_of_the_engine_is_named_and_for_ones_own_is_not(noted: Noted) -> None:
    class Own:
        pass

    Own.__module__ = "models.a"
    assert noted("object.__setattr__", Seal(), "__class__", Own) == ["Seal.__class__"]
    assert noted("object.__setattr__", Own(), "__class__", Own) == []
    assert noted("object.__setattr__", Seal(), "_root", None) == []


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a solver's name, from a folder."""
    module = ModuleType("z3")
    module.__file__ = str(tmp_path / "z3.py")
    monkeypatch.setattr(integrity, "STACK", ("z3",))
    monkeypatch.setattr(integrity, "_needed", lambda names: iter(()))
    monkeypatch.setitem(sys.modules, "z3", module)
    return module


def test_a_solver_from_a_folder_is_told_where_the_folder_counts(solver: ModuleType, tmp_path: Path) -> None:
    assert shadowed([tmp_path]) == [f"z3 from {tmp_path.name}/z3.py"]
    assert shadowed([tmp_path / "other"]) == []
    assert shadowed([]) == []


@pytest.mark.parametrize("file", [None, "built-in", "frozen"])
def test_a_module_without_a_place_is_told_by_its_spec_alone(
    solver: ModuleType, tmp_path: Path, file: str | None
) -> None:
    solver.__file__ = file
    assert shadowed([tmp_path]) == []
    solver.__spec__ = importlib.util.spec_from_file_location("z3", tmp_path / "z3.py")
    assert shadowed([tmp_path]) == [f"z3 from {tmp_path.name}/z3.py"]


def test_an_installation_and_pythons_own_modules_are_no_strangers(solver: ModuleType, tmp_path: Path) -> None:
    installed = tmp_path / "lib/site-packages/z3.py"
    installed.parent.mkdir(parents=True)
    solver.__file__ = str(installed)
    assert shadowed([tmp_path]) == []
    solver.__file__ = os.__file__
    assert shadowed([Path("/")]) == []


def test_names_that_everybody_uses_are_nobodys() -> None:
    assert set(integrity._needed({"tests", "json", "nobody_has_this"})) == {"json"}


OPTIMIZER = """
import torch

class Still(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        return None
"""


def test_an_optimizer_of_the_workspace_may_be_made_and_not_exchanged() -> None:
    """Torch wraps the step of a class of optimizers when the first of them is made."""
    module, code = ModuleType("models.still"), compile(OPTIMIZER, "still.py", "exec")
    seal = Seal()
    with seal.importing(module, code):
        exec(code, vars(module))
    module.Still([module.torch.nn.Parameter(module.torch.ones(1))])
    assert seal.rewritten() == []
    module.Still.step = lambda self: None
    assert seal.rewritten() == ["models.still.Still.step"]
