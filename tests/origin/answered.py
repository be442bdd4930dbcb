"""What gradproof says of a case: the exit code and the first lines, from a process of the case's own.

The process is forked from one that has loaded torch, so that a case takes a second. It does what `gradproof watch
--accum-steps N -- python train.py` and `gradproof check train.py:train --accum-steps N` do, and prints what they print.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch._dynamo
import torch.utils.data

from gradproof.cli.check import BESIDE
from gradproof.core.files import write_json
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.workspace import PACKAGE
from gradproof.report.formats import brief
from gradproof.shadow.process.check import Script, Target, answered, perform, run_watched
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification, plain
from tests.origin.cases import Case

FILE, ANSWER = "train.py", "said.json"
LIMIT, PATIENCE, FIRST = 120, 10, 12
"""Seconds of CPU for a case, so many times as long on the clock, and the lines that have to say what it rests on."""
HOLDS, DISCLOSED, REFUTED, UNDECIDED, CRASH = "HOLDS", "HOLDS, disclosed", "REFUTED", "undecided", "crash"
SAID = {EXIT_CODE[Exit.MET]: HOLDS, EXIT_CODE[Exit.BROKEN]: REFUTED, EXIT_CODE[Exit.OPEN]: UNDECIDED}
NUMBERS, ROWS = r"^ *taken: .*for (N = \d+: (?!N at)|factors|numbers|the rows)", r"^ *taken: .*for one sample each"
"""What a line of the first ones names where it says which numbers, or rows, a verdict takes for granted."""
NAMES = {
    "late window": r"\bwindows? \d", "other N": r"windows have as many micro-batches|\bN = \d",
    **dict.fromkeys(("coupling", "data moved", "data identity", "sample axis"), ROWS),
}  # fmt: skip
"""By the class of a loop; in every other one it is numbers."""


@dataclass(frozen=True, slots=True)
class Said:
    """The answer in one word, and the printed text."""

    name: str
    word: str
    text: str

    @property
    def why(self) -> str:
        """The first line, without the name of the file."""
        return self.text.partition("\n")[0].strip()[:160]


def disclosed(case: Case, text: str) -> bool:
    """Whether the first lines name what the verdict rests on."""
    first = "\n".join(text.splitlines()[:FIRST])
    return re.search(NAMES.get(case.group, NUMBERS), first, re.M) is not None


def said(case: Case) -> Said:
    """The answer to one case."""
    with tempfile.TemporaryDirectory(prefix="gradproof-origin-") as folder:
        here = multiprocessing.get_context("fork")
        process = here.Process(target=_child, args=(case, folder))
        process.start()
        process.join(LIMIT * PATIENCE)
        process.kill()
        process.join()
        answer = Path(folder, ANSWER)
        if not answer.exists():
            late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
            why = f"no answer in {LIMIT} s" if late else f"the process ended with {process.exitcode}"
            return Said(case.name, CRASH, why)
        code, text = json.loads(answer.read_text(encoding="utf-8"))
    word = SAID.get(code, CRASH)
    return Said(case.name, DISCLOSED if word == HOLDS and disclosed(case, text) else word, text)


def every_answer(cases: Sequence[Case], jobs: int) -> Iterator[Said]:
    """The answers in order, some at once."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(said, cases)


def _child(case: Case, folder: str) -> None:
    """Write the exit code and the text, and end."""
    os.chdir(folder)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))
    torch.set_num_threads(1)
    Path(FILE).write_text(case.text, encoding="utf-8")
    with Path("printed.txt").open("w", encoding="utf-8") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        try:
            found = (_checked if case.function else _watched)(case, Path("result.json"))
            answer = found.code, brief.text(found, spent=0 if case.function else BESIDE)
            Path(ANSWER).write_text(json.dumps(answer), encoding="utf-8")
        finally:
            os._exit(0)


def _checked(case: Case, result: Path) -> Verification:
    chosen = {"windows": case.slots["windows"]} if "windows" in case.slots else {}
    request, target = Request(accum_steps=case.steps or 4, **chosen), Target(Path("train.py").resolve(), "train", FILE)
    job = {
        "file": str(target.path), "shown": FILE, "function": "train", "subject": target.subject,
        "options": plain(request.options()), "package": str(PACKAGE),
    }  # fmt: skip
    write_json(result, perform(job))
    return answered(result, target.subject)


def _watched(case: Case, result: Path) -> Verification:
    options = {"accum_steps": case.steps, "windows": 3, "windows_at": None, "stop_after": None, "epoch_batches": None}
    script, failed = Script((), FILE, False, ()), False
    try:
        run_watched({"script": asdict(script), "options": options, "result": str(result)})
    except BaseException as error:
        failed = not isinstance(error, SystemExit) or error.code not in (None, 0)
        traceback.print_exception(error)
    found = answered(result, FILE)
    if failed:
        found.config.setdefault("failed", "with exit code 1")
    return found
