"""House rules as functions: each takes one source file, or a piece of data, and returns what offends in it.

The tests beside this file run them over the repository, and over a few lines that break each rule.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = ("src", "models", "symbolic", "tests")
PRODUCT = ("src", "models", "symbolic")

MOST_LINES = 600
MOST_FUNCTION_LINES = 60

# The plugin skips checks that nobody asks for, and is no test; a browser is no package that a test can ask for; recipes
# and the site need packages that not every environment has.
SKIPPING = (
    "src/gradproof/pytest_plugin.py", "tests/unit/report/test_render_browser.py", "tests/docs/test_docs_recipes.py",
    "tests/docs/test_docs_site.py", "tests/docs/test_docs_notebook.py",
)  # fmt: skip
Z3_HOME = "src/gradproof/arith/smt.py"
TORCH_HOMES = (
    "src/gradproof/cli/script.py",
    "src/gradproof/execution/methods/",
    "src/gradproof/extras/selftest.py",
    "src/gradproof/extras/conformance/",
    "src/gradproof/shadow/",
    "models/",
    "symbolic/",
    "tests/",
)

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
EVERYTHING = {"Exception", "BaseException"}
LEFT_OUT = ("skip", "skipif", "xfail", "importorskip")
PRIVATE_WORDS = ("/wo" + "rk/", "/tmp/" + "team", "pypi" + ".org", "fa" + "rm-", ".lib" + "rary")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef


@dataclass(frozen=True)
class Source:
    """One Python file: its place relative to the repository, its text, its tree."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, name: str, text: str) -> Source:
        """A source made of text. Raises SyntaxError."""
        return cls(name, text, ast.parse(text))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, which is walked once for all rules."""
        return tuple(ast.walk(self.tree))

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler, found: str) -> str:
        """One line that says where something was found."""
        return f"{self.name}:{node.lineno}: {found}"


@cache
def sources(folders: tuple[str, ...], root: Path = REPOSITORY) -> list[Source]:
    """Every Python file below some folders."""
    paths = sorted(p for folder in folders for p in (root / folder).rglob("*.py") if "__pycache__" not in p.parts)
    return [Source.of(p.relative_to(root).as_posix(), p.read_text(encoding="utf-8")) for p in paths]


def violations(rule: Callable[[Source], Iterable[str]], folders: tuple[str, ...]) -> list[str]:
    """What a rule finds in every file of some folders."""
    return [line for source in sources(folders) for line in rule(source)]


def too_long(source: Source) -> Iterator[str]:
    """Modules above 600 lines."""
    lines = len(source.text.splitlines())
    if lines > MOST_LINES:
        yield f"{source.name}: {lines} lines"


def long_functions(source: Source) -> Iterator[str]:
    """Functions, harnesses and tests of more than 60 lines."""
    for node in functions(source):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MOST_FUNCTION_LINES:
            yield source.at(node, f"{node.name} has {lines} lines")


def functions(source: Source) -> Iterator[Function]:
    """Every function, nested ones and methods included."""
    return (node for node in source.nodes if isinstance(node, Function))


def imported(node: ast.AST) -> Iterator[str]:
    """Top-level packages that a statement imports, by any spelling."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield (node.module or "").partition(".")[0]
    elif isinstance(node, ast.Call) and node.args and name_of(node.func) in ("import_module", "__import__"):
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value.partition(".")[0]


def name_of(node: ast.AST) -> str:
    """Last part of a dotted name; empty for everything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def homeless_imports(source: Source) -> Iterator[str]:
    """z3 anywhere but in its module, torch outside of backends and content."""
    for node in source.nodes:
        for package in imported(node):
            assert isinstance(node, ast.stmt | ast.expr)
            if package == "z3" and source.name != Z3_HOME:
                yield source.at(node, "imports z3")
            if package == "torch" and not source.name.startswith(TORCH_HOMES):
                yield source.at(node, "imports torch")


def unfinished(source: Source) -> Iterator[str]:
    """Comments and texts that promise work, and bodies that raise NotImplementedError."""
    lines = io.StringIO(source.text if UNFINISHED.search(source.text) else "")
    for token in tokenize.generate_tokens(lines.readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and UNFINISHED.search(token.string):
            yield f"{source.name}:{token.start[0]}: {token.string.strip()[:60]}"
    for node in source.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if name_of(raised) == "NotImplementedError":
                yield source.at(node, "raises NotImplementedError")


def swallowed(source: Source) -> Iterator[str]:
    """Bare `except`, handlers with an empty body, and `suppress` of everything."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield source.at(node, "catches everything, unnamed")
            if all(isinstance(s, ast.Pass) or _is_ellipsis(s) for s in node.body):
                yield source.at(node, "does nothing about an exception")
        caught = {name_of(a) for a in node.args} if isinstance(node, ast.Call) else set()
        if isinstance(node, ast.Call) and name_of(node.func) == "suppress" and caught & EVERYTHING:
            yield source.at(node, "suppresses every exception")


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def left_out_tests(source: Source) -> Iterator[str]:
    """Tests that are skipped or expected to fail, the files of SKIPPING apart."""
    for node in source.nodes if source.name not in SKIPPING else ():
        if isinstance(node, ast.Attribute) and node.attr in LEFT_OUT:
            owner = name_of(node.value)
            if owner in ("pytest", "mark", "unittest"):
                yield source.at(node, f"{owner}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest"):
            yield from (source.at(node, f"imports {a.name}") for a in node.names if a.name in LEFT_OUT)


def unannotated(source: Source) -> Iterator[str]:
    """Parameters and results without annotation; lambdas and the receiver of a method excepted."""
    owned = {id(f) for c in source.nodes if isinstance(c, ast.ClassDef) for f in c.body}
    for node in functions(source):
        arguments = [*node.args.posonlyargs, *node.args.args]
        if id(node) in owned and not any(name_of(d) == "staticmethod" for d in node.decorator_list):
            arguments = arguments[1:]
        arguments += node.args.kwonlyargs
        arguments += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
        bare = [a.arg for a in arguments if a.annotation is None]
        if bare:
            yield source.at(node, f"{node.name} leaves {', '.join(bare)} without annotation")
        if node.returns is None:
            yield source.at(node, f"{node.name} does not say what it returns")


def undocumented(
    source: Source, inherited: frozenset[str] = frozenset(), promised: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring.

    Nothing is asked of an empty module, of a derived class that only lists fields, of a method of a derived class whose
    name is `inherited`, and of a method whose name is `promised` by a protocol.
    """
    if source.tree.body and ast.get_docstring(source.tree) is None:
        yield f"{source.name}:1: the module says nothing"
    for node in source.tree.body:
        if not isinstance(node, Documented) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not only_fields(node):
            yield source.at(node, f"{node.name} says nothing")
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if not isinstance(method, Function) or method.name.startswith("_"):
                    continue
                known = method.name in promised or (bool(node.bases) and method.name in inherited)
                if ast.get_docstring(method) is None and not known:
                    yield source.at(method, f"{node.name}.{method.name} says nothing")


def only_fields(node: Documented) -> bool:
    """Whether a definition is a derived class that lists annotated fields and nothing else: the shape of a clause."""
    return isinstance(node, ast.ClassDef) and bool(node.bases) and all(isinstance(s, ast.AnnAssign) for s in node.body)


def documented_methods(found: Iterable[Source], *, protocols: bool = False) -> frozenset[str]:
    """Names of methods that some class documents, or some protocol."""
    classes = [node for source in found for node in source.nodes if isinstance(node, ast.ClassDef)]
    wanted = [c for c in classes if not protocols or any(name_of(b) == "Protocol" for b in c.bases)]
    return frozenset(f.name for c in wanted for f in c.body if isinstance(f, Function) and ast.get_docstring(f))


def private_words(name: str, text: str) -> Iterator[str]:
    """Machine paths, registry hosts and names of private tools."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{name}:{number}: {word}" for word in PRIVATE_WORDS if word in line)


def codes_in(source: Source) -> set[str]:
    """Error codes that a file names as values, docstrings and comments not counted."""
    values = (node.value for node in source.nodes if isinstance(node, ast.Constant))
    return {v for v in values if isinstance(v, str) and re.fullmatch(r"GP\d{3}", v)}


@dataclass(frozen=True)
class StatedBound:
    """A bound and the clause that states it."""

    owner: str
    name: str
    value: int
    reason: str


def poor_reasons(bounds: Iterable[StatedBound]) -> Iterator[str]:
    """Reasons of 20 characters or fewer, and reasons that were copied to another name or another value."""
    first: dict[str, StatedBound] = {}
    for b in bounds:
        if len(b.reason.strip()) <= 20:
            yield f"{b.owner}: {b.name}: the reason {b.reason!r} is too short"
        other = first.setdefault(b.reason, b)
        if (other.name, other.value) != (b.name, b.value):
            yield f"{b.owner}: {b.name} = {b.value} has the reason of {other.owner}: {other.name} = {other.value}"


def code_of(text: str) -> list[str]:
    """The code of a text: each line of its blocks, and what stands between backticks."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line for block in blocks for line in block.splitlines()] + inline


def told_commands(text: str) -> set[tuple[str, tuple[str, ...]]]:
    """Each `gradproof COMMAND` of a text that stands in code, with the long options that are given to it."""
    found = set()
    for line in code_of(text):
        match = re.search(r"(?:^|[\s/])gradproof\s+([a-z][a-z-]*)\b([^|;&#]*)", line)
        if match:
            found.add((match[1], tuple(re.findall(r"(--[a-z][a-z-]*)", match[2].partition(" -- ")[0]))))
    return found


def told_targets(text: str) -> set[str]:
    """Each `make TARGET` of a text that stands in code."""
    return {target for line in code_of(text) for target in re.findall(r"(?:^|\s)make ([a-z]+)\b", line)}
