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
from string import Template

import click

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.files import write_all
from gradproof.core.workspace import CONTENT
from gradproof.evidence.environment import taken

# -- A workspace for a user's own loop: which files, with what in them, and writing all of them or none.
CI = ("github", "gitlab", "none")
FOLDER = re.compile(r"[\w./ -]+")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CLIPS = re.compile(r"clip_grad|gradient_clip|max_grad_norm|clip_value")
EQUALITY = ("not_divided", "first_counts_twice")
LOSS = ("loss_misreported",)
PROTOCOL = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
PROTOCOL_MUTANTS = ("never_zeroed", "step_every_micro_batch", "sum_in_bf16", "clip_every_micro_batch")


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
    folder = plan.folder.resolve()
    imports = Path(_relative(plan.loop.root, plan.folder)).as_posix()
    models = MODELS.substitute(
        loop=plan.loop.shown, imports=json.dumps(imports), module=plan.loop.module, function=plan.loop.function
    )
    made = {
        folder / "proofs" / plan.name / "contract.yaml": contract(plan),
        folder / "models" / "loop.py": models,
        folder / "symbolic" / "loop.py": SYMBOLIC,
    }
    _not_hidden(plan, folder, made)
    kept = {folder / name / "__init__.py": PACKAGE for name in ("models", "symbolic")}
    kept[folder / "reports" / ".gitignore"] = IGNORED
    made |= {path: text for path, text in kept.items() if not path.exists()}
    return made | continuous(plan, folder)


def contract(plan: InitPlan) -> str:
    """The contract's text."""
    from gradproof.shadow.result import OBLIGATIONS

    rows = [
        OBLIGATION.substitute(id=name, type=type_, property=OBLIGATIONS[name], formal=formal)
        for name, type_, formal in FORMULAS
    ]
    inner = "a first, inner ones and a last micro-batch" if plan.accum_steps > 2 else "a first and a last micro-batch"
    return CONTRACT.substitute(
        loop=plan.loop.shown,
        name=plan.name,
        obligations="\n".join(rows),
        n=plan.accum_steps,
        why_n=f"{inner}; further ones run the same operators again",
        micro_batch=plan.micro_batch,
        tail=plan.tail,
        note=CLIPPED if plan.loop.clips else "",
        equality=", ".join(EQUALITY[1:] if plan.loop.clips else EQUALITY),
        loss=", ".join(LOSS),
        protocol=", ".join(PROTOCOL),
        protocol_mutants=", ".join(PROTOCOL_MUTANTS),
        seconds=plan.time_limit,
    )


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
    if plan.ci == "gitlab":
        install = GITLAB_INSTALL if needs else ""
        text = GITLAB.substitute(version=__version__, workspace=workspace, install=install)
        return {top / ".gitlab-ci.yml": text}
    install = GITHUB_INSTALL if needs else ""
    text = GITHUB.substitute(version=__version__, workspace=workspace, install=install)
    return {top / ".github" / "workflows" / "gradproof.yml": text}


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
@click.option(
    "--accum-steps", type=click.IntRange(2, 64), default=4, show_default=True, help="Micro-batches of a window."
)
@click.option("--micro-batch", type=click.IntRange(1, 1024), default=2, show_default=True, help="Samples in each.")
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


# -- The files that `gradproof init` writes, as templates: `$name` is filled in, `$$` is a dollar sign.

CONTRACT = Template("""\
# Written by gradproof init. It is yours now: edit it, and `gradproof verify` holds the loop to what it says.
metadata:
  version: "1.0.0"
  description: "$loop accumulates gradients as its full batch does"
subjects: {torch: "models.loop:loop", torch_empty: "models.loop:empty", torch_mutants: "models.loop:MUTANTS"}
equations:
  accumulated_gradient:
    formula: "G_accum = sum_i (n_i / n) grad L_i = grad L_full"
    domain: "the micro-batches i of a window, with n_i of its n samples each"
    codomain: "the gradient that is handed to the optimizer"
    assumptions: ["the loss of a sample does not depend on the other samples of its micro-batch"]
proof_obligations:
$obligations
step_proofs:
  - id: STEP-LOOP-001
    obligation: GA-EQ-001
    property: "the gradient that $loop hands to its optimizer is that of the full batch, for all weights and inputs"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "$why_n"}
      - {name: windows, value: 2, reason: "the second window begins with weights and state that the first has moved"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail}
    mutants: [$equality]
$note    assumptions:
      - "reals are not floats: what rounding adds is not bounded here"
      - "the micro-batches are the full batch's samples; where they are not, no obligation holds"
    time_limit: $seconds
  - id: STEP-LOOP-002
    obligation: GA-INV-001
    property: "the loss that $loop reports, or differentiates, is the mean of its window"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "a loss that is lost or counted twice shows in a window of $n"}
      - {name: windows, value: 2, reason: "two, so that a running loss which is not reset shows in the second"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail}
    mutants: [$loss]
    assumptions: ["losses that the function returns as numbers are compared within rounding, on the recorded run"]
    time_limit: $seconds
  - id: STEP-LOOP-003
    obligations: [$protocol]
    property: "$loop zeroes its gradients, sums them in fp32, clips and steps once a window, in this order"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "a step, clip or zero at a wrong micro-batch shows in a window of $n"}
      - {name: windows, value: 2, reason: "two, so that a gradient that one window leaves behind meets the next"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail}
    mutants: [$protocol_mutants]
    assumptions: ["the events are those of the recorded run; a branch that it did not take is not covered"]
    time_limit: $seconds
qa_gate:
  id: GATE-LOOP-001
  name: "$name"
  checks: [full_batch, window]
  pass_criteria: "every obligation is discharged, and every mutant of the loop is killed"
  falsification: "the first micro-batch of each window counts twice"
  criteria: {full_batch: [GA-EQ-001, GA-INV-001], window: [GA-INV-002, GA-INV-003, GA-INV-004, GA-INV-005]}
  seeded_bug: first_counts_twice
""")

CLIPPED = """\
    note: "the mutant not_divided is left out: this loop clips, and a clip that binds hides a factor of all gradients"
"""

OBLIGATION = Template("""\
  - id: $id
    type: $type
    property: "$property"
    formal: "$formal"
    layers: {ci: [step], release: [step]}""")

FORMULAS: tuple[tuple[str, str, str], ...] = (
    ("GA-EQ-001", "equivalence", "G_accum = G_full"),
    ("GA-INV-001", "invariant", "sum_i (n_i / n) L_i = L_full"),
    ("GA-INV-002", "invariant", "at the first micro-batch of a window, G = 0"),
    ("GA-INV-003", "invariant", "steps = windows, and step k comes after the last micro-batch of window k"),
    ("GA-INV-004", "invariant", "dtype(G) has at least the precision of fp32"),
    ("GA-INV-005", "ordering", "every clip comes after the last micro-batch, and before the step"),
)
"""Id, type and formula of what a recorded loop is held to; the property of each is the verifier's own."""

MODELS = Template('''\
"""The subject: $loop, the loop that really trains; and what must not pass for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gradproof.harness import mutants_of

sys.path.insert(0, str(Path(__file__).parents[1] / $imports))

from $module import $function as loop  # noqa: E402

MUTANTS = mutants_of(loop)


def empty(run: Any) -> None:
    """The empty body: it trains nothing, and every check must refute it."""
''')

SYMBOLIC = '''\
"""The harness: the loop is called as it is, once with micro-batches and once with the full batch."""

from __future__ import annotations

from gradproof.harness import LoopHarness

harness = LoopHarness()
'''

GITHUB = Template("""\
# Written by gradproof init: the gate, on every push and pull request.
name: gradproof
on: [push, pull_request]
permissions:
  contents: read
jobs:
  gate:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
$install      # Until gradproof is on a package index, its wheel lies beside the code: pip looks there as well.
      - run: python -P -m pip install --find-links . "gradproof==$version"
      - run: |
          mkdir -p gradproof-reports
          gradproof verify --quiet --workspace "$workspace" --format github \\
            --format junit=gradproof-reports/report.junit.xml \\
            --format sarif=gradproof-reports/report.sarif
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gradproof
          path: gradproof-reports/
""")
GITHUB_INSTALL = "      - run: python -P -m pip install -r requirements.txt\n"

GITLAB = Template("""\
# Written by gradproof init: the gate, on every push and merge request.
gradproof:
  image: python:3.12
  timeout: 20 minutes
  script:
$install    # Until gradproof is on a package index, its wheel lies beside the code: pip looks there as well.
    - python -P -m pip install --find-links . "gradproof==$version"
    - gradproof verify --quiet --workspace "$workspace" --format junit=gradproof.junit.xml
  artifacts:
    when: always
    paths: [gradproof.junit.xml]
    reports:
      junit: gradproof.junit.xml
""")
GITLAB_INSTALL = "    - python -P -m pip install -r requirements.txt\n"

PACKAGE = ""
IGNORED = "# What gradproof generates here is made again by gradproof verify.\n*\n!.gitignore\n"
