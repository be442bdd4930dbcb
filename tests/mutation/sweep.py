"""Many mutants: in parallel, the likeliest killer first, and nothing twice that was answered on the same texts."""

from __future__ import annotations

import hashlib
import json
import multiprocessing as mp
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.mutation import run
from tests.mutation.known import Known
from tests.mutation.mutants import CodeMutant, mutants
from tests.mutation.page import only_killer
from tests.mutation.subjects import Tree, bare, loose_lines, module_of

Result = dict[str, Any]
UNKNOWN_SECONDS = 2.0
"""What a check is taken to cost of which the document says nothing."""


@dataclass
class Pool:
    """Processes that have the solvers and no model, and answer calls one after another."""

    workers: int
    lanes: dict[Connection, Any] = field(default_factory=dict)

    def __enter__(self) -> Pool:
        run.preload()
        context = mp.get_context("fork")
        for _ in range(self.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,))
            process.start()
            theirs.close()
            self.lanes[ours] = process
        return self

    def __exit__(self, *of: object) -> None:
        for pipe, process in self.lanes.items():
            with suppress(OSError):
                pipe.send(("stop",))
            process.join(5)
            if process.is_alive():
                process.kill()

    def each(self, calls: Iterable[Callable[[], tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """The answers as they come, with the number of their call. A call is made up when a process is free for it."""
        pending, free, busy = enumerate(calls), list(self.lanes), {}
        for number, make in pending:
            pipe = free.pop()
            pipe.send(make())
            busy[pipe] = number
            if not free:
                yield from self._answered(busy, free)
        while busy:
            yield from self._answered(busy, free)

    def _answered(self, busy: dict[Connection, int], free: list[Connection]) -> Iterator[tuple[int, Any]]:
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            answer = pipe.recv()
            if isinstance(answer, dict) and "raised" in answer:
                raise RuntimeError(answer["raised"])
            free.append(pipe)
            yield busy.pop(pipe), answer


def _serve(pipe: Connection) -> None:
    while True:
        try:
            name, *of = pipe.recv()
        except EOFError:
            return
        if name == "stop":
            return
        try:
            pipe.send(getattr(run, name)(*of))
        except Exception:
            pipe.send({"raised": traceback.format_exc()})


@dataclass
class Memory:
    """A file of answers, one a line, which a later run begins with. None: nothing is kept."""

    path: Path | None
    rows: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def keep(self, row: Result) -> None:
        """Add an answer."""
        self.rows[row["key"]] = row
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")


@dataclass
class Order:
    """Which checks are likeliest to kill, learned as the sweep goes on: kills a second, here and in the whole file."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)

    def sorted(self, mutant: CodeMutant, ids: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
        """The checks, the most kills a second first."""

        def worth(check: str) -> float:
            near, far = (mutant.within, check), (mutant.path, check)
            chance = (self.kills[near] + 0.5 * (self.kills[far] + 1) / (self.tries[far] + 2)) / (self.tries[near] + 1)
            return chance / (seconds[check] + 0.1)

        return sorted(ids, key=lambda check: (-worth(check), check))

    def learn(self, mutant: CodeMutant, tried: Sequence[str], killers: Sequence[str]) -> None:
        """Note what was tried on a mutant, and which of it killed."""
        for place in (mutant.within, mutant.path):
            self.tries.update((place, check) for check in tried)
            self.kills.update((place, check) for check in killers)


@dataclass
class Sweep:
    """The mutants of some files against every check that may notice them.

    `wanted`: killers of each mutant after which no more is asked; with 2, a mutant that has one has no other, and its
    killer is `needed`: no other mutant of that killer is asked for a second one. `red`: checks that are not green on
    the unmutated models, which kill nothing. With `known` baselines are made as they are needed, and the order begins
    with what the committed document says: for a sample.
    """

    tree: Tree
    pool: Pool
    memory: Memory
    wanted: int = 1
    order: Order = field(default_factory=Order)
    bases: dict[str, Result] = field(default_factory=dict)
    digests: dict[tuple[str, str], str] = field(default_factory=dict)
    red: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    known: Known | None = None

    def measure(self, paths: Sequence[str]) -> None:
        """Baselines of all checks of these files."""
        wanted = sorted({check.id for path in paths for check in self.tree.noticing(path)})
        if self.known is not None:
            self.order.kills.update(self.known.kills)
            self.bases = {name: {"cpu": self.known.seconds.get(name, UNKNOWN_SECONDS)} for name in wanted}
            return
        keys = {name: f"baseline {self.tree.digest(self.tree.checks[name])} {name}" for name in wanted}
        missing = [name for name in wanted if keys[name] not in self.memory.rows]
        calls = [self._baseline(name) for name in missing]
        for number, said in self.pool.each(calls):
            name = missing[number]
            self.memory.keep({"key": keys[name], "check": name, **said})
        self.bases = {name: self.memory.rows[keys[name]] for name in wanted}
        self.red = {name for name in wanted if not run.green(self.tree.checks[name].to_json(), self.bases[name])}

    def _baseline(self, name: str) -> Callable[[], tuple[Any, ...]]:
        paths = sorted({s.path for s in self.tree.sources.values() if not s.path.startswith("symbolic/")})
        return lambda: ("baseline", str(self.tree.root), bare(self.tree.checks[name]).to_json(), paths)

    def may_notice(self, mutant: CodeMutant) -> list[str]:
        """Green checks that reach the mutated statement; for what runs at import, those that use the definition."""
        checks = [check for check in self.tree.noticing(mutant.path) if check.id not in self.red]
        ids = [check.id for check in checks]
        if not mutant.statement:
            definition = module_of(mutant.path), mutant.within
            return [check.id for check in checks if definition in self.tree.uses(check)]
        if self.known is not None:
            return ids
        return [name for name in ids if mutant.statement in self.bases[name]["reached"].get(mutant.path, ())]

    def results(self, chosen: Sequence[CodeMutant]) -> Iterator[tuple[CodeMutant, Result]]:
        """The answer on each mutant, as they come: those that are known first."""
        fresh = []
        for mutant in chosen:
            known = self.known_still(mutant)
            if known is not None and (known["survived"] or self.wanted <= max(len(known["killers"]), known["wanted"])):
                self.order.learn(mutant, known["order"], [k["check"] for k in known["killers"]])
                self._note_needed(known)
                yield mutant, known
            else:
                fresh.append(mutant)
        sent: list[tuple[CodeMutant, list[str]]] = []
        for number, said in self.pool.each(self._jobs(fresh, sent)):
            mutant, ids = sent[number]
            done = ids[: said["tried"]]
            self.red.update(said["red"])
            self.order.learn(mutant, done, [k["check"] for k in said["killers"]])
            about = {"key": self.key(mutant), "file": mutant.path, "operator": mutant.operator, "line": mutant.line}
            about |= {"within": mutant.within, "diff": mutant.diff(self.tree.sources[module_of(mutant.path)].text)}
            asked = dict.fromkeys([*done, *(k["check"] for k in said["killers"])])
            rests = {name: self.digest(name, mutant.path) for name in asked}
            row = {**about, **said, "order": done, "rests": rests, "wanted": self.wanted, "runs": self._runs(mutant)}
            self.memory.keep(row)
            self._note_needed(row)
            yield mutant, row

    def second_killers(self, chosen: Sequence[CodeMutant]) -> Iterator[tuple[CodeMutant, Result]]:
        """A second killer of the mutants that have one, those first that cost least, until each killer is decided."""
        self.wanted = 2

        def cost(mutant: CodeMutant) -> float:
            return float(sum(self.bases[name]["cpu"] for name in self.may_notice(mutant)))

        return self.results(sorted(chosen, key=cost))

    def _note_needed(self, row: Result) -> None:
        if only := only_killer(row):
            self.needed.add(only)

    def digest(self, name: str, path: str) -> str:
        """What an answer of a check on a mutant of a file rests on."""
        if (name, path) not in self.digests:
            self.digests[name, path] = self.tree.digest(self.tree.checks[name], path)
        return self.digests[name, path]

    def key(self, mutant: CodeMutant) -> str:
        """The same for the same text of the same file, whatever made it."""
        return hashlib.sha256(f"{mutant.path}\0{mutant.text}".encode()).hexdigest()[:20]

    def known_still(self, mutant: CodeMutant) -> Result | None:
        """The answer of an earlier run, as far as it stands: every text is unchanged that it rests on.

        A kill rests on its killers, equivalence on its runs, on the original and on each check that was asked, and a
        survival, or a killer that is the only one, on every check that may notice the mutant.
        """
        row = self.memory.rows.get(self.key(mutant))
        if row is None or (row["survived"] and row.get("runs") != self._runs(mutant)):
            return None
        needed = [k["check"] for k in row["killers"]] or row["order"]
        equal = row["survived"] and row["equivalence"]["answer"] == "equivalent"
        if len(row["killers"]) < row["wanted"] and not equal:
            needed = self.may_notice(mutant)
        stands = all(n in self.tree.checks and row["rests"].get(n) == self.digest(n, mutant.path) for n in needed)
        return row if stands else None

    def _runs(self, mutant: CodeMutant) -> str:
        """What equivalence rests on: how a mutant is compared, by which engine, and with which original."""
        return f"{_runs_digest()} {self.tree.engine} {self.tree.sources[module_of(mutant.path)].digest}"

    def _jobs(
        self, fresh: Iterable[CodeMutant], sent: list[tuple[CodeMutant, list[str]]]
    ) -> Iterator[Callable[[], tuple[Any, ...]]]:
        """What to ask of each mutant, made up when its turn comes; `sent`: the mutants with their checks, in order."""
        seconds = {name: base["cpu"] for name, base in self.bases.items()}
        for mutant in fresh:
            row = self.known_still(mutant)
            killers = row["killers"] if row else []
            if self.needed.isdisjoint(k["check"] for k in killers):
                left = set(self.may_notice(mutant)) - {k["check"] for k in killers}
                ids = self.order.sorted(mutant, sorted(left), seconds)
                sent.append((mutant, ids))
                job = self.job(mutant, ids) | {"killers": killers}
                yield partial(_run_job, job)

    def job(self, mutant: CodeMutant, ids: Sequence[str]) -> dict[str, Any]:
        """A mutant and its checks as plain data."""
        checks = []
        for name in ids:
            row = {"check": bare(self.tree.checks[name]).to_json()}
            if self.known is None:
                row["baseline"] = {key: self.bases[name][key] for key in ("outcome", "clause", "cpu")}
            checks.append(row)
        loose = {
            s.path: self._loose(s.path, mutant)
            for s in self.tree.sources.values()
            if not s.path.startswith("symbolic/")
        }
        job = {"root": str(self.tree.root), "path": mutant.path, "text": mutant.text, "checks": checks}
        return job | {"loose": {path: lines for path, lines in loose.items() if lines}, "wanted": self.wanted}

    def _loose(self, path: str, mutant: CodeMutant) -> list[int]:
        """First lines of assignments that may fail at import because of the mutant, without being it."""
        source = self.tree.sources[module_of(path)]
        lines = loose_lines(source)
        if path != mutant.path:
            return lines
        own = max((line for line in lines if line <= mutant.line), default=0)
        return [line for line in lines if line < own] + [
            line + mutant.text.count("\n") - source.text.count("\n") for line in lines if line > own
        ]


def _run_job(job: dict[str, Any]) -> tuple[Any, ...]:
    return "run_job", job


@cache
def _runs_digest() -> str:
    """Of how a mutant is compared with its original."""
    here = Path(__file__).parent
    text = b"".join((here / name).read_bytes() for name in ("equivalence.py", "equivalence_runs.py"))
    return hashlib.sha256(text).hexdigest()[:20]


def drawn(made: Sequence[CodeMutant], count: int, seed: str) -> list[CodeMutant]:
    """A sample by a seed, the same number of each file as far as it has them."""
    by_file: dict[str, list[CodeMutant]] = defaultdict(list)
    for mutant in made:
        by_file[mutant.path].append(mutant)
    draws = random.Random(seed)
    for rows in by_file.values():
        draws.shuffle(rows)
    taken: list[CodeMutant] = []
    while len(taken) < count and any(by_file.values()):
        for rows in by_file.values():
            if rows and len(taken) < count:
                taken.append(rows.pop())
    return taken


def all_mutants(tree: Tree, paths: Sequence[str]) -> list[CodeMutant]:
    """The mutants of some files."""
    return [mutant for path in paths for mutant in mutants(tree, path)]
