"""What is mutated, and who may notice: read from the contracts and from syntax trees; no model is imported.

A definition of `models/` is mutated where a check's subject is it or uses it. Seeded bugs, registries of them and empty
bodies are not: no subject uses them. A check may notice a mutant of a module where its harness, its subject or its
stubs import that module, directly or not.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gradproof.contract.model import load
from gradproof.core.check import Check
from gradproof.core.outcome import Kind
from gradproof.verdict.plan import plan

CONTENT = ("models", "symbolic")
PROTOCOL = "src/gradproof/core/protocol.py"
"""The window table: a subject like a model, in the package, because the judges of real runs read it as well."""
SIX = (
    "models/accumulation/loop.py",
    PROTOCOL,
    "models/accumulation/window_bugs.py",
    "models/adamw/model.py",
    "models/adamw/kernel.py",
    "models/tokens/window.py",
    "models/tokens/scaling.py",
    "models/tokens/bias.py",
    "models/systems/epochs.py",
    "models/tokens/cross_entropy.py",
)
"""The files of the accumulation, window, AdamW, token, epoch and cross-entropy models."""

ENGINE = ("arith", "core", "execution/methods", "rounding")
ENGINE_FILES = ("harness.py", "execution/worker.py")
SOLVERS = ("z3-solver", "crosshair-tool")
MUTANTS_ONLY = ("registry.py", "mutants.py")


def module_of(path: str) -> str:
    """The dotted name of a file of the workspace."""
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@dataclass(frozen=True)
class Source:
    """One module: its text, its tree, and its top-level definitions by name."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name."""
        return module_of(self.path)

    @property
    def digest(self) -> str:
        """Of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:20]

    def definitions(self) -> dict[str, ast.stmt]:
        """Top-level classes, functions and assignments by name; the last one of a name counts."""
        found: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for name in _bound(node):
                    found[name] = node
        return found

    def imports(self) -> dict[str, tuple[str, str]]:
        """Names that stand for something of the workspace: its module, and its name there (empty: the module)."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.split(".")[0] in (*CONTENT, "gradproof")
            ):
                for alias in node.names:
                    found[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] in CONTENT:
                        found[alias.asname or alias.name] = (alias.name, "")
        return found


def _bound(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


@dataclass
class Tree:
    """The workspace as text: its modules, its checks, and what each check may touch."""

    root: Path
    sources: Mapping[str, Source]
    checks: Mapping[str, Check]
    engine: str
    used: set[tuple[str, str]] = field(default_factory=set)
    _closures: dict[str, frozenset[str]] = field(default_factory=dict)
    _uses: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    def closure(self, check: Check) -> frozenset[str]:
        """Every module that the check's harness, subject and stubs import."""
        if check.id not in self._closures:
            names = [check.harness, check.subject, *(row["stub"] for row in check.text.get("stubs", ()))]
            self._closures[check.id] = self._reached(name.partition(":")[0] for name in names if name)
        return self._closures[check.id]

    def _reached(self, modules: Iterable[str]) -> frozenset[str]:
        seen: set[str] = set()
        queue = list(modules)
        while queue:
            name = queue.pop()
            if name in seen or name not in self.sources:
                continue
            seen.add(name)
            for module, attribute in self.sources[name].imports().values():
                queue += [module, f"{module}.{attribute}"]
        return frozenset(seen)

    def noticing(self, path: str) -> list[Check]:
        """The checks that import the module of a file."""
        name = module_of(path)
        return [check for check in self.checks.values() if name in self.closure(check)]

    def uses(self, check: Check) -> set[tuple[str, str]]:
        """The definitions that the check's harness, subject and stubs use, directly or not: module and name of each."""
        if check.id not in self._uses:
            names = [check.harness, check.subject, *(row["stub"] for row in check.text.get("stubs", ()))]
            parts = [name.partition(":") for name in names if name]
            self._uses[check.id] = _followed(self, [(module, name.partition(".")[0]) for module, _, name in parts])
        return self._uses[check.id]

    def digest(self, check: Check, but: str = "") -> str:
        """What an answer of the check rests on: its clause, the modules that it imports (without `but`), the engine."""
        plain = bare(check).to_json()
        parts = [json.dumps(plain, sort_keys=True, default=str), self.engine]
        parts += [self.sources[m].text for m in sorted(self.closure(check)) if self.sources[m].path != but]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def bare(check: Check) -> Check:
    """The check for one subject: without controls, replays on torch and traces, which do not change its answer."""
    subjects = {k: v for k, v in check.params.get("subjects", {}).items() if not k.startswith("torch")}
    params = {k: v for k, v in check.params.items() if k != "trace"} | {"subjects": subjects, "controls_off": True}
    return replace(check, mutants=(), params=params)


def read(root: Path) -> Tree:
    """The tree of a workspace. Raises GradproofError where a contract cannot be read."""
    sources = {}
    for path in (*(path for folder in CONTENT for path in sorted((root / folder).rglob("*.py"))), root / PROTOCOL):
        text = path.read_text(encoding="utf-8")
        one = Source(path.relative_to(root).as_posix(), text, ast.parse(text))
        sources[one.module] = one
    checks = {}
    for contract in sorted(root.glob("proofs/*/contract.yaml")):
        for check in plan(load(contract)):
            if check.kind in (Kind.SMT, Kind.CROSSHAIR):
                checks[check.id] = check
    return Tree(root, sources, checks, engine_digest())


@cache
def engine_digest() -> str:
    """Digest of what answers these checks: the engine's text, how a mutant is run, and the versions of the solvers."""
    import gradproof

    package = Path(gradproof.__file__).parent
    files = sorted(f for folder in ENGINE for f in (package / folder).glob("*.py"))
    files += [package / name for name in ENGINE_FILES] + [Path(__file__).with_name("run.py")]
    parts = [f.read_bytes() for f in files] + [f"{name} {version(name)}".encode() for name in SOLVERS]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


# -- What of a module is a subject


def subject_names(tree: Tree, path: str) -> list[str]:
    """Top-level definitions of a file that some check's subject is or uses, in the file's order."""
    if not tree.used:
        tree.used.update(_used(tree))
    source = tree.sources[module_of(path)]
    return [name for name in source.definitions() if (source.module, name) in tree.used]


def _used(tree: Tree) -> set[tuple[str, str]]:
    starts: list[tuple[str, str]] = []
    for check in tree.checks.values():
        module, _, name = check.subject.partition(":")
        starts.append((module, name.partition(".")[0]))
    harnesses = {m for c in tree.checks.values() for m in tree.closure(c) if m.startswith("symbolic")}
    for module in harnesses:
        starts += [pair for pair in tree.sources[module].imports().values() if not pair[0].startswith("symbolic")]
    return _followed(tree, starts)


def _followed(tree: Tree, starts: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """The definitions that are used from these on."""
    seen: set[tuple[str, str]] = set()
    while starts:
        module, name = starts.pop()
        source = tree.sources.get(module)
        if (module, name) in seen or source is None or module == "models.registry":
            continue
        node = source.definitions().get(name)
        if node is None or is_registry(node):
            continue
        seen.add((module, name))
        imports = source.imports()
        for used in _names(node):
            if used in source.definitions():
                starts.append((module, used))
            elif used in imports:
                starts += _imported(imports[used], node, used)
    return seen


def _imported(place: tuple[str, str], node: ast.AST, used: str) -> list[tuple[str, str]]:
    module, name = place
    found = [(module, name)]
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == used:
            found.append((f"{module}.{name}" if name else module, part.attr))
    return found


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id


def is_registry(node: ast.stmt) -> bool:
    """Whether a top-level statement lists seeded bugs."""
    words = {"Mutant", "Row", "registered", "registered_for", "TABLE_MUTANTS"}
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and bool(words & set(_names(node)))


def loose_lines(source: Source) -> list[int]:
    """First lines of top-level assignments. One that raises only because another definition was mutated is let pass."""
    return [node.lineno for node in source.tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]


def files(tree: Tree) -> list[str]:
    """Every plain model: what can be mutated on request."""
    found = []
    for source in tree.sources.values():
        name = Path(source.path).name
        if source.path.startswith("models/") and not name.endswith(MUTANTS_ONLY) and subject_names(tree, source.path):
            found.append(source.path)
    return [*SIX, *(path for path in found if path not in SIX)]


def spans(tree: Tree, path: str) -> Sequence[tuple[str, ast.stmt]]:
    """The definitions of a file that are mutated, with their statements."""
    source = tree.sources[module_of(path)]
    made = source.definitions()
    return [(name, made[name]) for name in subject_names(tree, path)]


def first_doc(node: Any) -> ast.stmt | None:
    """The docstring of a module, class or function, or None."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[0] if isinstance(body[0].value.value, str) else None
    return None
