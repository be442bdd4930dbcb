"""The map from an obligation to its statement, its code, its tests and its mutants: `python -m tests.obligations`.

Everything is read off the source. A function decides an obligation where it names it in the first argument of a call,
or in a list that it goes over, by its id or by a constant that holds the id or a rule of the window table. So do those
that `Judging.decided` asks for what refutes it and for what speaks against it.
`--out docs/obligations.md` writes it.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from gradproof.core import protocol
from gradproof.core.protocol import Breaks
from gradproof.shadow.result import NAMES, OBLIGATIONS
from models.accumulation.mutants import MUTANTS as OF_THE_LOOP
from tests.loops.bugs import BUGS

REPOSITORY = Path(__file__).resolve().parents[1]
SHADOW, TESTS, PROOFS = REPOSITORY / "src/gradproof/shadow", REPOSITORY / "tests", REPOSITORY / "proofs"
PAGE = REPOSITORY / "docs" / "obligations.md"
COMMAND = "python -m tests.obligations --out docs/obligations.md"
OF_STEPS = ("unit/shadow", "soundness", "origin")
"""Folders of tests of real steps: their modules are named, without `test_`."""
MOST = 120
"""Characters of a line of the page."""
HEAD = f"""\
# From an obligation to its code

Written by `{COMMAND}`; do not edit.

Of each obligation: what it says of a real step, the functions that decide it, the contracts that prove it of a model,
the tests that name it, and its mutants. The mutants of loops are those of [Mutants of loops](mutants.md), each a bug
that somebody shipped; those of the model stand in `models/accumulation/mutants.py`. [One rule](rule.md) says by what a
window is judged, and [Architecture](architecture.md) what stands where.
"""
Names = dict[str, frozenset[str]]


@cache
def constants() -> dict[Path, Names]:
    """The obligations that the names at the top of each module hold, imported ones too."""
    trees = {path: tree(path) for path in modules(SHADOW)}
    found: dict[Path, Names] = {path: {} for path in trees}
    rules = {name: frozenset({rule.obligation}) for name, rule in vars(protocol).items() if isinstance(rule, Breaks)}
    for path, top in trees.items():
        for node in top.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                found[path].update(assigned(node.targets[0], node.value))
    for path, top in trees.items():
        for taken in (node for node in ast.walk(top) if isinstance(node, ast.ImportFrom)):
            other = SHADOW.joinpath(*(taken.module or "").split(".")[2:]).with_suffix(".py")
            known = rules if taken.module == protocol.__name__ else found.get(other, {})
            mine = ((alias.asname or alias.name, alias.name) for alias in taken.names)
            found[path].update({own: known[name] for own, name in mine if name in known})
    return found


def assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, frozenset[str]]]:
    """Names and the ids that they are given: one, several, or a tuple of them."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from assigned(one, other)
    elif isinstance(target, ast.Name) and isinstance(value, ast.Constant) and value.value in OBLIGATIONS:
        yield target.id, frozenset({str(value.value)})


def ids(node: ast.expr, names: Names) -> frozenset[str]:
    """The obligations that an expression names: an id, a constant, or a tuple of them."""
    if isinstance(node, ast.Constant) and node.value in OBLIGATIONS:
        return frozenset({str(node.value)})
    if isinstance(node, ast.Name):
        return names.get(node.id, frozenset())
    if isinstance(node, ast.Tuple):
        return frozenset().union(*(ids(one, names) for one in node.elts))
    return frozenset()


def decided(node: ast.AST, names: Names) -> frozenset[str]:
    """The obligations of which a node makes a result."""
    if isinstance(node, ast.Call) and node.args:
        return ids(node.args[0], names)
    if isinstance(node, ast.For | ast.comprehension):
        return ids(node.iter, names)
    return frozenset()


@cache
def deciders() -> dict[str, dict[str, list[str]]]:
    """The functions that decide each obligation, by module."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in OBLIGATIONS}
    for path, names in constants().items():
        module = path.relative_to(REPOSITORY / "src" / "gradproof").as_posix()
        for title, function in functions(tree(path)):
            of = title.rpartition(".")[0] + "."
            for node in ast.walk(function):
                for name in decided(node, names):
                    found[name].setdefault(module, []).extend([title, *(of + one for one in asked(node))])
    return {name: {at: [*dict.fromkeys(titles)] for at, titles in own.items()} for name, own in found.items()}


def asked(node: ast.AST) -> Iterator[str]:
    """The methods that are asked for what refutes a statement, and for what speaks against it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decided":
        for each in (one for argument in node.args[1:] for one in ast.walk(argument)):
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr.startswith("_"):
                yield each.func.attr


def functions(top: ast.AST, of: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The functions of a module, and of its classes, with their names; nested ones belong to the outer one."""
    for node in ast.iter_child_nodes(top):
        if isinstance(node, ast.FunctionDef):
            yield of + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{of}{node.name}.")


def modules(root: Path) -> list[Path]:
    """The modules below a folder."""
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


def tree(path: Path) -> ast.Module:
    """What a module says."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def texts() -> dict[str, str]:
    """The tests, by place."""
    return {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in modules(TESTS)}


def tests_of(name: str) -> list[str]:
    """The tests of real steps that name an obligation, by folder, and how many others do."""
    by: dict[str, list[str]] = {}
    for place, text in texts().items():
        folder, _, file = place.rpartition("/")
        if name in text and file.startswith("test_"):
            by.setdefault(folder, []).append(file.removeprefix("test_").removesuffix(".py"))
    near = [f"`{folder}` ({', '.join(by[folder])})" for folder in OF_STEPS if folder in by]
    others = sum(len(files) for folder, files in by.items() if folder not in OF_STEPS)
    return near + [f"{others} elsewhere"] * bool(others)


def contracts_of(name: str) -> list[str]:
    """The contracts that state an obligation, with the number of their checks of it."""
    found = []
    for path in sorted(PROOFS.glob("*/contract.yaml")):
        text = path.read_text(encoding="utf-8")
        stated = [one for one in yaml.safe_load(text).get("proof_obligations", ()) if one["id"] == name]
        if stated:
            used = len(re.findall(rf"^ +obligations?: .*{name}", text, re.M))
            found.append(f"`{path.parent.name}` ({stated[0]['property']}; {used} checks name it)")
    return found


def folded(label: str, parts: Iterable[str]) -> list[str]:
    """A bullet in lines that are not too long; nothing where there are no parts."""
    text = "; ".join(parts)
    line = f"- {label}: {text}"
    return textwrap.wrap(line, MOST, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) * bool(
        text
    )


def section(name: str) -> Iterator[str]:
    """What the page says of one obligation."""
    yield from (f"## {name}, {NAMES[name]}", "", f"{OBLIGATIONS[name].capitalize()}.", "")
    code = (f"`{module}`: {', '.join(f'`{one}`' for one in found)}" for module, found in deciders()[name].items())
    yield from folded("Decided in", code)
    yield from folded("Contracts", contracts_of(name))
    yield from folded("Tests", tests_of(name))
    yield from folded("Mutants of loops", named(BUGS, name))
    yield from folded("Of the model alone", named({k: m for k, m in OF_THE_LOOP.items() if k not in BUGS}, name))
    yield ""


def named(mutants: Mapping[str, object], name: str) -> list[str]:
    """The mutants that break an obligation, in one part."""
    found = [f"`{key}`" for key, one in mutants.items() if getattr(one, "obligation", "") == name]
    return [f"{len(found)}: {', '.join(found)}"] if found else []


def page() -> str:
    """The page as the source has it."""
    return "\n".join([HEAD, *(line for name in OBLIGATIONS for line in section(name))]).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.obligations", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the page here")
    given = parser.parse_args(words)
    if given.out is None:
        print(page(), end="")
    else:
        given.out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
