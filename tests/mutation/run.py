"""One mutant against the checks that may notice it: plain data in, plain data out.

Each check runs in a process of its own, forked from one that has imported the solvers and no model. An import hook
gives it the mutated text of one module. What the check answers on the original text by the same way is its baseline:
another answer kills the mutant. `refuted`: a counterexample was found. `not green`: the check crashed, hit a bound,
showed nothing, refuted an obligation that it does not claim, or did not end within its own time limit.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from gradproof.core import workspace as content
from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Expect, Kind, Outcome
from gradproof.evidence.audit import belongs
from gradproof.execution.local import MEMORY as MEMORY_SIGNALS
from tests.mutation.subjects import PROTOCOL, module_of

PRELOADED = (
    "z3",
    "crosshair.core_and_libs",
    "gradproof.harness",
    "gradproof.arith.symbolic",
    "gradproof.arith.soft",
    "gradproof.execution.methods.smt",
    "gradproof.execution.methods.smt_strategies",
    "gradproof.execution.methods.crosshair",
    "gradproof.execution.worker",
)
TIMES, MORE = 4.0, 3.0
"""A check takes longer than so many times its CPU seconds on the original text, and so many more: it is run once more,
with the time limit of the contract."""
PATIENCE = 6.0
"""CPU seconds of checks that do not kill a mutant, after which it is first compared with the original."""
WALL = 12.0
"""Wall time is no measure on a busy machine: this many times the CPU seconds end a check that waits for nothing."""
QUERIES = 4.0
"""The engine's own limit is so much longer: the process ends first, by CPU time."""
MEMORY = 6 << 30
BASELINE_SECONDS = 600.0

Texts = Mapping[str, str]


def preload() -> None:
    """Import what every check needs, and no content of a workspace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOADED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a mutant's checks in their order until so many kill it as are `wanted` (default: 1).

    `job`: root, path, text, checks (each with check and, where it is known, baseline), loose, and killers that are
    known. The result: killers, survived, seconds, CPU seconds, tried, the checks that are `red` unmutated, which kill
    nothing, and the `equivalence` of a survivor. What is the same as the original is not asked further.
    """
    killers, wanted, same = list(job.get("killers", ())), job.get("wanted", 1), None
    red, tried, spent, began, used = [], 0, 0.0, time.monotonic(), _cpu()
    for row in job["checks"]:
        if spent > PATIENCE and same is None:
            same = equivalent(job["root"], job["path"], job["text"])
            if same["answer"] == "equivalent":
                break
        tried += 1
        before = row.get("baseline") or _kept_baseline(job["root"], row["check"])
        if not green(row["check"], before):
            red.append(row["check"]["id"])
            continue
        said = _mutated(job, row["check"], before["cpu"])
        spent += 0.0 if killers else said["cpu"]
        if how := killed(row["check"], before, said):
            killers.append({"check": row["check"]["id"], "how": how, "clause": said["clause"], "why": said["reason"]})
            if len(killers) == wanted:
                break
    if not killers and same is None:
        same = equivalent(job["root"], job["path"], job["text"])
    took = {"seconds": round(time.monotonic() - began, 2), "cpu": round(_cpu() - used, 2)}
    result = {"killers": killers, "survived": not killers, "tried": tried, "red": red, **took}
    return result if killers else result | {"equivalence": same}


def _cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _mutated(job: Mapping[str, Any], check: Mapping[str, Any], cpu: float) -> dict[str, Any]:
    """What a check says of the mutant. One that is late or out of memory, or whose process dies, is asked once more."""
    limit = TIMES * cpu + MORE
    for seconds in (limit, max(limit, check["time_limit"])):
        texts = {job["path"]: job["text"]}
        said = forked(partial(_answer, job["root"], check, texts, seconds, job["loose"], ()), seconds)
        if said["outcome"] != "TIMEOUT" and not said.get("died") and not out_of_memory(said):
            break
    return said


_BASELINES: dict[tuple[str, str], dict[str, Any]] = {}
"""Baselines that this process made itself, for jobs that bring none."""


def _kept_baseline(root: str, check: Mapping[str, Any]) -> dict[str, Any]:
    key = root, check["id"]
    if key not in _BASELINES:
        _BASELINES[key] = baseline(root, check, ())
    return _BASELINES[key]


def baseline(root: str, check: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """A check on the original text: its answer, its CPU seconds, and the lines of `paths` that it reached."""
    return forked(partial(_answer, root, check, {}, BASELINE_SECONDS, {}, paths), BASELINE_SECONDS)


def equivalent(root: str, path: str, text: str) -> dict[str, Any]:
    """What `equivalence.judge` says of a mutant that no check kills."""
    from tests.mutation.equivalence import SECONDS, judge

    said = forked(partial(judge, root, path, text), 3 * SECONDS)
    return {"answer": said.get("answer", "undecided"), "why": said.get("why") or said["reason"]}


def out_of_memory(said: Mapping[str, Any]) -> bool:
    """Whether a check ended because there was no memory left for it."""
    return said["outcome"] == "ERROR" and any(words in said["reason"] for words in ("out of memory", "MemoryError"))


def killed(check: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """How an answer differs from the baseline's: `refuted`, `holds`, `not green`, or an empty text.

    Nothing is known where the memory ran out: the limit is the sweep's own. Where a refutation is expected, the claim
    is that an obligation of the check breaks, so another clause of it is the same answer: gradproof.evidence.audit.
    """
    if out_of_memory(after):
        return ""
    if after["outcome"] == before["outcome"]:
        claimed = any(belongs(after["clause"], name) for name in check["obligations"])
        return "" if after["outcome"] != "REFUTED" or claimed else "not green"
    return "refuted" if after["outcome"] == "REFUTED" else "holds" if after["outcome"] == "HOLDS" else "not green"


def green(check: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
    """Whether an answer is the one that the contract expects."""
    wanted = Outcome.HOLDS if check["expect"] == Expect.HOLDS else Outcome.REFUTED
    return bool(said["outcome"] == wanted)


def forked(work: Callable[[], Mapping[str, Any]], limit: float) -> dict[str, Any]:
    """What `work` returns in a child of this process, with its CPU seconds. A child that dies gives an answer too."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _child(theirs, work, limit)
    os.close(theirs)
    data, late = _read(ours, time.monotonic() + max(60.0, WALL * limit))
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    cpu = round(usage.ru_utime + usage.ru_stime, 3)
    try:
        said: dict[str, Any] = json.loads(data)
    except ValueError:
        spent = late or cpu >= limit
        reason = f"ended, {status}" + "; out of memory" * (status & 0x7F in MEMORY_SIGNALS)
        said = {"outcome": "TIMEOUT" if spent else "ERROR", "clause": "", "reason": reason, "reached": {}, "died": True}
    return said | {"cpu": cpu}


def _read(end: int, deadline: float) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    with os.fdopen(end, "rb", 0) as stream:
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([stream], [], [], left)[0]:
                continue
            part = stream.read(1 << 16)
            if not part:
                return b"".join(parts), False
            parts.append(part)
    return b"", True


def _child(pipe: int, work: Callable[[], Mapping[str, Any]], limit: float) -> None:
    """In the new process: answer, and never come back."""
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        seconds = int(limit) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.setrecursionlimit(2000)
        data = json.dumps(work()).encode()
    except BaseException as error:
        said = {"outcome": "ERROR", "clause": "", "reason": f"{type(error).__name__}: {error}"[:300], "reached": {}}
        data = json.dumps(said).encode()
    try:
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _answer(
    root: str,
    check: Mapping[str, Any],
    texts: Texts,
    limit: float,
    loose: Mapping[str, Sequence[int]],
    reached: Sequence[str],
) -> dict[str, Any]:
    """A check's answer in this process, and the lines of the files `reached` that it came to."""
    lines: dict[str, set[int]] = {path: set() for path in reached}
    hook(Path(root), texts, loose, lines)
    found = finding_of(Check.from_json(check), Path(root), QUERIES * limit)
    clause = next((name for name, how in found.clauses.items() if how == "REFUTED"), "")
    said: dict[str, Any] = {"outcome": str(found.outcome), "clause": clause, "reason": found.reason[:300]}
    return said | {"reached": {path: sorted(n) for path, n in lines.items()}}


def finding_of(check: Check, root: Path, limit: float) -> Finding:
    """What the engine says of the check's own subject within `limit` CPU seconds; CrossHair gives it half."""
    from gradproof.execution import worker

    workspace = content.Workspace(root, root / "reports")
    if check.kind is Kind.CROSSHAIR:
        return _crosshair(replace(check, time_limit=2 * limit), workspace)
    return worker.attempt(replace(check, time_limit=limit), workspace)


def _crosshair(check: Check, workspace: content.Workspace) -> Finding:
    """CrossHair's answer on the subject and its covers, without controls."""
    from gradproof.execution.methods import crosshair

    covers = crosshair.stated(check, workspace, "COVERS", ())
    deadline = time.process_time() + check.time_limit
    harness, reference = workspace.resolve(check.harness), workspace.resolve(check.subject)
    trial = crosshair.HarnessTrial(check, harness, reference, deadline, 1 + len(covers))
    finding = Finding(Outcome.ERROR, "")
    crosshair._judge_subject(trial, workspace, finding)
    if finding.outcome is Outcome.HOLDS:
        crosshair._judge_covers(trial, covers, finding)
    if finding.outcome is Outcome.REFUTED and check.obligations and not finding.clauses:
        finding.clauses = {check.obligations[0]: "REFUTED"}
    return finding


# -- The import hook: models are compiled from the text that is given, or from their file with marks of what is reached.
# So is the window table, which is a module of the package: it takes the place of the one that was imported.


def hook(root: Path, texts: Texts, loose: Mapping[str, Sequence[int]], lines: Mapping[str, set[int]]) -> None:
    """From now on this process compiles the models of a workspace in this way."""
    loader: Any = content._Loader
    plain, compiled = loader.get_data, loader.source_to_code
    marks: list[str] = []

    def place(path: str) -> str:
        file = Path(path)
        return file.relative_to(root).as_posix() if file.is_relative_to(root) else ""

    def get_data(self: Any, path: str) -> bytes:
        return texts[place(path)].encode() if place(path) in texts else plain(self, path)

    def source_to_code(self: Any, data: bytes, path: str, **more: Any) -> Any:
        name = place(path)
        if name in loose or name in lines:
            tree = ast.parse(data)
            let_pass(tree, set(loose.get(name, ())))
            if name in lines:
                _marked(tree, f"_reached_{len(marks)}")
                setattr(builtins, f"_reached_{len(marks)}", lines[name])
                marks.append(name)
            return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        return compiled(self, data, path, **more)

    loader.get_data, loader.source_to_code = get_data, source_to_code
    if PROTOCOL in {*texts, *lines}:
        name = module_of(PROTOCOL)
        spec: Any = spec_from_file_location(name, root / PROTOCOL, loader=loader(name, str(root / PROTOCOL)))
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def let_pass(tree: ast.Module, first_lines: set[int]) -> None:
    """A top-level assignment at one of these lines that raises leaves its names empty."""
    for i, node in enumerate(tree.body):
        if node.lineno in first_lines and isinstance(node, (ast.Assign, ast.AnnAssign)):
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            empty = ast.parse("\n".join(f"{name} = {{}}" for name in names)).body
            handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, empty)
            tree.body[i] = ast.copy_location(ast.Try([node], [handler], [], []), node)


def _marked(tree: ast.Module, seen: str) -> None:
    """Before each statement of a function stands a mark of its line."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            for holder in list(_blocks(node)):
                for name in ("body", "orelse", "finalbody"):
                    block = getattr(holder, name, None)
                    if isinstance(block, list):
                        setattr(holder, name, [part for one in block for part in (_mark(one, seen), one)])


def _blocks(node: ast.FunctionDef) -> Iterator[ast.AST]:
    stack: list[ast.AST] = [node]
    while stack:
        one = stack.pop()
        yield one
        inner = [n for n in ast.iter_child_nodes(one) if isinstance(n, (ast.stmt, ast.ExceptHandler))]
        stack += [n for n in inner if not isinstance(n, (ast.FunctionDef, ast.ClassDef))]


def _mark(node: ast.stmt, seen: str) -> ast.stmt:
    call = ast.Call(ast.Attribute(ast.Name(seen, ast.Load()), "add", ast.Load()), [ast.Constant(node.lineno)], [])
    return ast.copy_location(ast.Expr(call), node)
