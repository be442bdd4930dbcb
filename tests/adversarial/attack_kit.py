"""What the attempts share: a small honest workspace that is green, and one way to ask what the gate makes of it.

An attempt changes the workspace, its evidence or the process around it, and must come out red. The run is the real one:
contract, plan, worker processes, store, judge; only the command line is left out, which the end-to-end tests have.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.core.check import digest_of
from gradproof.core.outcome import Effect, Exit, Outcome
from gradproof.session import Options, Session
from gradproof.verdict.judge import Verdict

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
CONTRACT = "proofs/mean-v1/contract.yaml"
MODEL, HARNESS = "models/__init__.py", "symbolic/__init__.py"
HONEST = "return sum(grads) / len(grads)\n"
WRONG = "return sum(grads)\n"
CHECK = '    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))'

Data = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What the gate said: its exit, its reasons, and the ruling on K-1."""

    exit: Exit
    why: str
    outcome: Outcome
    effect: Effect
    reason: str

    @property
    def red(self) -> bool:
        """Whether nothing was released and K-1 discharges nothing."""
        return self.exit is not Exit.MET and self.effect is not Effect.DISCHARGED


def workspace(folder: Path, case: str = "green") -> Path:
    """A copy of one workspace of the corpus, without evidence."""
    shutil.copytree(CORPUS / case, folder, ignore=shutil.ignore_patterns("__pycache__", "reports"))
    return folder


def seen(verdict: Verdict, check: str = "K-1") -> Seen:
    """A verdict in short."""
    ruling = verdict.rulings[check]
    return Seen(verdict.exit, " | ".join(verdict.reasons), ruling.outcome, ruling.effect, ruling.reason)


def session(root: Path, *select: str, **options: Any) -> Session:
    """A session on the workspace, as a command has it."""
    return Session(Options(workspace=root, select=select, **{"jobs": 2, **options}))


def gate(root: Path, check: str = "K-1", **options: Any) -> Seen:
    """What `gradproof gate` says of the stored evidence."""
    asked = session(root, **options)
    return seen(asked.judged(asked.contracts[0], asked.statuses(asked.checks)), check)


def verify(root: Path, check: str = "K-1", *, alone: bool = True, **options: Any) -> Seen:
    """What `gradproof verify` says; with `alone` only this check is run, and the gate has the rest as it stands."""
    asked = session(root, *([check] if alone else []), **options)
    run = asked.run(asked.selected(), lambda progress: None)
    return seen(asked.judged(asked.contracts[0], asked.filled(run).statuses), check)


def edit(root: Path, name: str, old: str, new: str) -> None:
    """Replace what must stand exactly once in a file."""
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def append(root: Path, name: str, text: str) -> None:
    """Add a text to the end of a file."""
    with (root / name).open("a", encoding="utf-8") as file:
        file.write(text)


def break_model(root: Path) -> None:
    """The model forgets the 1/N: an honest run refutes it."""
    path = root / MODEL
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(HONEST, WRONG, 1), encoding="utf-8")


def evidence(root: Path, check: str = "K-1") -> Path:
    """The one evidence file of a check."""
    [path] = root.glob(f"reports/*/{check}/*.json")
    return path


def forged(path: Path, change: Callable[[Data], None]) -> Path:
    """Edit evidence as somebody who knows how it is named: the name and the claim's digest are right afterwards."""
    data: Data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    data["claim"]["spec"] = digest_of(data["check"])
    path.unlink()
    made = path.with_name(f"{digest_of(data)[:16]}.json")
    made.write_text(json.dumps(data), encoding="utf-8")
    return made
