"""`gradproof init`: a workspace around a user's own training loop."""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gradproof import __version__
from gradproof.cli.options import ACCUM_STEPS, MICRO_BATCH
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_all
from gradproof.core.workspace import CONTENT
from gradproof.evidence.environment import taken

# -- A workspace for a user's own loop: which files, with what in them, and writing all of them or none.
CI = ("github", "gitlab", "none")
FOLDER = re.compile(r"[\w./ -]+")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CLIPS = re.compile(r"clip_grad|gradient_clip|max_grad_norm|clip_value")
PACKAGE = ""
IGNORED = "# What gradproof generates here is made again by gradproof verify.\n*\n!.gitignore\n"
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).resolve().parent / "templates"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A function of a file: how the user wrote it, the folder to import from, the module's dotted name.

    `clips`: the file has the name of a clip somewhere.
    """

    shown: str
    root: Path
    module: str
    function: str
    clips: bool


@dataclass(frozen=True, slots=True)
class InitPlan:
    """What a workspace is asked for. Micro-batches of a window, samples of a micro-batch, micro-batches of the tail."""

    folder: Path
    loop: FoundLoop
    name: str
    ci: str = "github"
    accum_steps: int = 4
    micro_batch: int = 2
    tail: int = 0
    time_limit: int = 120


def loop_of(text: str) -> FoundLoop:
    """FILE.py:FUNCTION, looked up without running it.

    Raises GradproofError: GP402 for another form, GP403 when the file is not there or no Python, GP471 when it has no
    such function, GP472 when the function does not take one argument, GP473 when the file cannot be imported by name.
    """
    from gradproof.shadow.process.check import target_of

    shown, _, name = text.rpartition(":")
    path = Path(shown)
    if shown.endswith(".py") and name.isidentifier() and not path.exists():
        near = _near(path.name, [p.name for p in sorted(path.parent.glob("*.py"))])
        raise GradproofError("GP403", "no such file", near or "a Python file", "give the path of the loop", shown)
    target = target_of(text)
    tree = ast.parse(target.path.read_bytes())
    _function(tree, target.function, shown)
    root, module = _module(Path(os.path.abspath(shown)), shown)
    words = {w for n in ast.walk(tree) for w in (getattr(n, "id", ""), getattr(n, "attr", ""), getattr(n, "arg", ""))}
    clips = any(CLIPS.search(str(word)) for word in words)
    return FoundLoop(f"{target.path.name}:{target.function}", root, module, target.function, clips)


def _near(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, 3, 0.5)
    return f"perhaps {', '.join(found)}" if found else ""


def _function(tree: ast.Module, name: str, shown: str) -> None:
    """Whether the file has a function of one argument under this name at its top level."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if name in found:
        _takes_one(found[name], shown)
    elif name not in set(_other_names(tree)):
        expected = _near(name, list(found)) or f"one of {', '.join(found) or 'its functions, and it has none'}"
        raise GradproofError("GP471", f"no function {name!r} at the top level", expected, "correct the name", shown)


def _other_names(tree: ast.Module) -> Iterator[str]:
    """Names that imports, assignments and classes bind at the top level."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def _takes_one(node: ast.FunctionDef | ast.AsyncFunctionDef, shown: str) -> None:
    given = node.args
    places = [*given.posonlyargs, *given.args]
    needed = len(places) - len(given.defaults) + sum(default is None for default in given.kw_defaults)
    if isinstance(node, ast.FunctionDef) and needed <= 1 and (places or given.vararg):
        return
    kind = "a coroutine" if isinstance(node, ast.AsyncFunctionDef) else f"{ast.unparse(given) or 'no argument'}"
    raise GradproofError(
        "GP472",
        f"{node.name} takes {kind}",
        f"def {node.name}(run): one argument, the run",
        "read run.accum_steps, run.micro_batch_size and run.micro_batches instead of the loop's own numbers",
        f"{shown}:{node.lineno}",
    )


def _module(path: Path, shown: str) -> tuple[Path, str]:
    """The folder to import from, and the dotted name: folders with __init__.py are packages."""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names.insert(0, folder.name)
        folder = folder.parent
    if not all(name.isidentifier() for name in names):
        found = f"{'.'.join(names)!r} is no name that Python can import"
        raise GradproofError("GP473", found, "letters, digits and underscores", "rename the file", shown)
    word = next((name for name in names if keyword.iskeyword(name)), None)
    if word is not None:
        found = f"{'.'.join(names)!r} cannot be imported: {word!r} is a keyword of Python"
        raise GradproofError("GP473", found, "a name that is no keyword", _rename(word, path), shown)
    owner = taken(names[0])
    if owner is not None:
        found = f"{names[0]!r} is the name of a module of {owner}, and that one would be imported"
        raise GradproofError("GP473", found, "a name that nobody else has", _rename(names[0], path), shown)
    return folder, ".".join(names)


def _rename(name: str, path: Path) -> str:
    if name == path.stem:
        return f"rename {path.name}, for example to my_{path.stem.strip('_')}.py"
    return f"rename the folder {name}/, for example to my_{name}/"


def _not_hidden(plan: InitPlan, folder: Path, made: Collection[Path]) -> None:
    """The workspace's own folders must not be found where the loop is looked for, nor a file be written over it."""
    loop = plan.loop
    root, top = loop.root.resolve(), loop.module.partition(".")[0]
    place = root.joinpath(*loop.module.split(".")).with_suffix(".py")
    if place in made:
        found, help = f"{place} is the loop, and init writes a file there", _rename(place.stem, place)
        raise GradproofError("GP473", found, "a loop in a file of its own", help, loop.shown)
    if top in CONTENT and (root != folder or top == loop.module):
        found = f"{loop.module!r} is hidden by the folder {top}/ of the workspace"
        raise GradproofError(
            "GP473", found, f"a name other than {' and '.join(CONTENT)}", _rename(top, place), loop.shown
        )


def named(name: str | None, loop: FoundLoop) -> str:
    """The contract's folder. Raises GradproofError GP473 for a name that is no id."""
    chosen = name or f"{loop.function.lower().replace('_', '-').strip('-')}-accumulation-v1"
    if not NAME.fullmatch(chosen):
        expected = "lower-case letters, digits, dot, dash and underscore, at most 64"
        raise GradproofError("GP473", f"{chosen!r} as the name of a contract", expected, "give another --name")
    return chosen


def _relative(place: Path, folder: Path) -> str:
    """From a folder to a place, by the links that the user named where they lie below it, for links may change."""
    here = os.path.abspath(folder)
    if place.is_relative_to(here):
        return os.path.relpath(place, here)
    return os.path.relpath(place.resolve(), folder.resolve())


def files(plan: InitPlan) -> dict[Path, str]:
    """Every file that the workspace needs, by its path. `__init__.py` files that are there are left alone.

    Raises GradproofError GP473 for a folder that a file for CI cannot name, and for a loop that the workspace hides.
    """
    from gradproof.shadow.result import OBLIGATIONS

    folder = plan.folder.resolve()
    imports = Path(_relative(plan.loop.root, plan.folder)).as_posix()
    made = {
        folder / "proofs" / plan.name / "contract.yaml": _filled("contract.yaml", plan, properties=OBLIGATIONS),
        folder / "models" / "loop.py": _filled("models.py", plan, imports=json.dumps(imports)),
        folder / "symbolic" / "loop.py": _filled("symbolic.py", plan),
    }
    _not_hidden(plan, folder, made)
    kept = {folder / name / "__init__.py": PACKAGE for name in ("models", "symbolic")}
    kept[folder / "reports" / ".gitignore"] = IGNORED
    made |= {path: text for path, text in kept.items() if not path.exists()}
    return made | continuous(plan, folder)


def _filled(name: str, plan: InitPlan, **more: object) -> str:
    """The text of a file that is written."""
    return TEMPLATES.get_template(f"{name}.j2").render(plan=plan, version=__version__, **more)


def continuous(plan: InitPlan, folder: Path) -> dict[Path, str]:
    """The file that the CI service reads, at the top of the repository.

    Raises GradproofError GP473 for a folder whose name does not stand in a shell as it is.
    """
    if plan.ci == "none":
        return {}
    top = next((p for p in (folder, *folder.parents) if (p / ".git").exists()), folder)
    needs = (top / "requirements.txt").is_file()
    workspace = Path(os.path.relpath(folder, top)).as_posix()
    if not FOLDER.fullmatch(workspace):
        expected = "letters, digits, dots, dashes and spaces"
        raise GradproofError("GP473", f"the folder {workspace!r}", expected, "name another folder, or use --ci none")
    path = {"gitlab": top / ".gitlab-ci.yml", "github": top / ".github" / "workflows" / "gradproof.yml"}[plan.ci]
    return {path: _filled(plan.ci, plan, workspace=workspace, needs=needs)}


def write(made: Mapping[Path, str], *, force: bool = False) -> None:
    """Write every file, or leave everything as it was.

    Raises GradproofError: GP470 when one is there and `force` is not given, GP474 when one cannot be written.
    """
    there = [str(path) for path in made if path.exists() or path.is_symlink()]
    if there and not force:
        found = f"{', '.join(there)} would be overwritten"
        raise GradproofError("GP470", found, "a folder without them", "name another folder, or give --force")
    try:
        write_all(made)
    except OSError as error:
        raise GradproofError("GP474", str(error), "files that can be written", "nothing was changed") from error


@click.command("init", epilog="Exit code 0: written; 2: a mistake in the call, and nothing was written.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--loop", required=True, metavar="FILE.py:FUNCTION", help="The function that trains; it takes the run.")
@click.option("--ci", type=click.Choice(CI), default="github", show_default=True, help="Write a file for this CI.")
@click.option("--name", metavar="NAME", help="Name of the contract.  [default: FUNCTION-accumulation-v1]")
@click.option("--accum-steps", type=click.IntRange(2, 64), default=4, show_default=True, help=ACCUM_STEPS)
@click.option("--micro-batch", type=click.IntRange(1, 1024), default=2, show_default=True, help=MICRO_BATCH)
@click.option(
    "--tail", type=click.IntRange(0), default=0, show_default=True, help="Micro-batches of a short last window."
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def command(
    folder: Path, loop: str, ci: str, name: str | None, accum_steps: int, micro_batch: int, tail: int, force: bool
) -> int:
    """Write a workspace into FOLDER: a contract, the loop as its subject, a harness, mutants, and a file for CI.

    FUNCTION is looked up and not run. `gradproof verify` in FOLDER then says whether the loop accumulates gradients
    correctly, and whether the verifier would have seen it if it did not.
    """

    if tail >= accum_steps:
        found, expected = f"tail is {tail}", f"fewer than the {accum_steps} micro-batches of a window"
        raise GradproofError("GP406", found, expected, "give a smaller --tail")
    found_loop = loop_of(loop)
    plan = InitPlan(folder, found_loop, named(name, found_loop), ci, accum_steps, micro_batch, tail)
    made = files(plan)
    write(made, force=force)
    for path in made:
        click.echo(f"written: {os.path.relpath(path)}")
    there = "" if folder.resolve() == Path.cwd() else f" --workspace {folder}"
    click.echo(f"\nnext:\n  gradproof verify{there}\n  git add {' '.join(_tops(made))}")
    return 0


def _tops(made: dict[Path, str]) -> list[str]:
    """What to commit, as few names as say it, relative to the current folder."""
    tops = dict.fromkeys(os.path.relpath(path.parent if path.parent.name != "workflows" else path) for path in made)
    return [top for top in tops if top != "."] + [os.path.relpath(p) for p in made if os.path.relpath(p.parent) == "."]
