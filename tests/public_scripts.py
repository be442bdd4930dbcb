"""Scripts that others wrote, under `gradproof watch`: `python -m tests.public_scripts CLONES --out docs/scripts.md`.

CLONES is a folder with clones of the repositories of `SCRIPTS`, each under its name, as owner_name, or as owner+name.
Each script is taken from its clone at the commit of the table, into a folder of its own with made-up data, and runs as
it was published; then with the lines of a sed command changed. None of their text enters this project. `--python` is
an interpreter that has their packages; gradproof is taken from here.
"""

from __future__ import annotations

import argparse
import array
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.shadow.result import NO_LOSS
from tests.docs.peers import LIMIT, ran

HEAD = """# Scripts that others wrote

Written by `python -m tests.public_scripts CLONES --out docs/scripts.md`; do not edit. CLONES is a folder of clones;
none of their text is in this project.

Each script runs under `gradproof watch` as it was published, on made-up data and at sizes that its own options give,
and once more with the lines changed that the sed command names. No line of gradproof's is added anywhere: the column
*adapter* counts the lines of the clone that differ from the commit, but for the sed commands of the table. `sizes` are
constants of a script without options, made small by sed as well. Seconds are those of the clock, with the start of
Python, on {machine} at the end: where the load is above the number of cores, other work had most of them.

"""
TABLE = """| script | form | verdict | refuted or not decided | seconds | adapter |
|---|---|---|---|---|---|
"""


def tokens(path: Path, count: int, below: int, head: bytes = b"") -> None:
    """A file of random tokens of 16 bits."""
    draw = random.Random(path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + array.array("H", [draw.randrange(below) for _ in range(count)]).tobytes())


def nano_data(folder: Path) -> None:
    """Two token files, where nanoGPT looks for a data set called made_up."""
    for name in ("train", "val"):
        tokens(folder / f"data/made_up/{name}.bin", 4000, 50)


def stories(folder: Path) -> None:
    """Two shards of tokens, where llama2.c looks for its stories."""
    for name in ("0", "1"):
        tokens(folder / f"data/TinyStories_all_data/{name}.bin", 9000, 32000)


def bytes_of_text(folder: Path) -> None:
    """95 million letters, one block many times over, where the scripts look for enwik8."""
    draw = random.Random(0)
    block = bytes(draw.randrange(32, 127) for _ in range(4096))
    (folder / "data").mkdir(exist_ok=True)
    with gzip.open(folder / "data/enwik8.gz", "wb", 1) as file:
        for _ in range(95 * 256):
            file.write(block)


@dataclass(frozen=True)
class Script:
    """A script: where it is from, its data and arguments, the sed commands of its forms, and what is expected of each.

    `forms`: words to a sed command (empty: as published), the expected headline, and an obligation that it names.
    """

    repository: str
    commit: str
    licence: str
    file: str
    data: Callable[[Path], None]
    arguments: tuple[str, ...]
    forms: dict[str, tuple[str, str, str]]
    sizes: str = ""
    note: str = ""
    options: tuple[str, ...] = ()


SMALL = ("--num_batches=4", "--batch_size=2", "--seq_len=32", "--cpu=True", "--validate_every=1000",
         "--generate_every=1000")  # fmt: skip
X = ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06", "MIT")
PUBLISHED = "as published"
HOLDS, REFUTED, OPEN = "HOLDS", "REFUTED", "NOT DECIDED"
SCRIPTS = (
    Script(
        "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "MIT", "train.py", nano_data,
        ("--device=cpu", "--compile=False", "--dataset=made_up", "--batch_size=2", "--block_size=16",
         "--gradient_accumulation_steps=4", "--n_layer=2", "--n_head=2", "--n_embd=32", "--max_iters=4",
         "--eval_interval=100", "--eval_iters=4"),
        {
            PUBLISHED: ("", HOLDS, ""),
            "not divided": ("s|loss = loss / gradient_accumulation_steps|loss = loss|", REFUTED, "GA-EQ-001"),
            "never zeroed": ("s|optimizer.zero_grad(set_to_none=True)|pass|", REFUTED, "GA-INV-002"),
        },
    ),
    Script(
        "karpathy/llama2.c", "350e04fe35433e6d2941dce5a1f53308f87058eb", "MIT", "train.py", stories,
        ("--device=cpu", "--compile=False", "--dtype=float32", "--batch_size=2", "--max_seq_len=16", "--dim=32",
         "--n_layers=2", "--n_heads=2", "--n_kv_heads=2", "--gradient_accumulation_steps=4", "--max_iters=4",
         "--eval_interval=100", "--eval_iters=4"),
        {
            PUBLISHED: ("", HOLDS, ""),
            "divided twice": ("s|scaler.scale(loss)|scaler.scale(loss / gradient_accumulation_steps)|", REFUTED,
                              "GA-EQ-001"),
        },
    ),
    Script(
        *X, "train_enwik8.py", bytes_of_text, SMALL,
        {
            PUBLISHED: ("", HOLDS, ""),
            "not divided": ("s|backward(loss / gradient_accumulate_every)|backward(loss)|", REFUTED, "GA-EQ-001"),
        },
    ),
    Script(
        *X, "train_entropy_tokenizer.py", bytes_of_text, SMALL,
        {
            PUBLISHED: ("", HOLDS, ""),
            "clipped in each micro-batch": (
                "s|^\\( *\\)accelerator.backward(.*|&; accelerator.clip_grad_norm_(model.parameters(), 0.5)|", REFUTED,
                "GA-INV-005"),
        },
    ),
    Script(
        "lucidrains/PaLM-rlhf-pytorch", "bd0d0f3893ec62f827fa35e759cb38d748829d51", "MIT", "train.py", bytes_of_text,
        (),
        {
            PUBLISHED: ("", REFUTED, "GA-INV-005"),
            "clipped once a window, not divided by hand": (
                "s|backward(loss / GRADIENT_ACCUMULATE_EVERY)|backward(loss)|; "
                "s|^\\( *\\)accelerator.clip_grad_norm_|\\1accelerator.sync_gradients and accelerator.clip_grad_norm_|",
                HOLDS, ""),
            "clipped once a window": (
                "s|^\\( *\\)accelerator.clip_grad_norm_|\\1accelerator.sync_gradients and accelerator.clip_grad_norm_|",
                REFUTED, "GA-EQ-001"),
        },
        "s/^NUM_BATCHES = .*/NUM_BATCHES = 16/; s/^BATCH_SIZE = .*/BATCH_SIZE = 2/; s/^SEQ_LEN = .*/SEQ_LEN = 32/; "
        "s/^GENERATE_LENGTH = .*/GENERATE_LENGTH = 4/; s/^PRIME_LENGTH = .*/PRIME_LENGTH = 4/",
        "As published, each micro-batch is clipped, and the loss is divided by hand although Accelerate divides it.",
    ),
    Script(
        *X, "train_length_extrapolate.py", bytes_of_text, (),
        {
            PUBLISHED: ("", REFUTED, "GA-INV-003"),
            "Accelerate knows the window": (
                "s|^accelerator = Accelerator()|accelerator = Accelerator(gradient_accumulation_steps = 4)|; "
                "s|^    for _ in range(GRADIENT_ACCUMULATE_EVERY):|&\\n     with accelerator.accumulate(model):|; "
                "s|accelerator.backward(loss / GRADIENT_ACCUMULATE_EVERY)|accelerator.backward(loss)|", HOLDS, ""),
        },
        "s/^NUM_BATCHES = .*/NUM_BATCHES = 4/; s/^BATCH_SIZE = .*/BATCH_SIZE = 2/; s/^SEQ_LEN = .*/SEQ_LEN = 32/; "
        "s/^VALIDATE_SEQ_LENS = .*/VALIDATE_SEQ_LENS = (32,)/; s/^GENERATE_LENGTH = .*/GENERATE_LENGTH = 4/",
        "As published, the optimizer steps after each micro-batch, by a quarter of its gradient. Without "
        "--accum-steps 4 that is no accumulation, and not decided.", ("--accum-steps", "4"),
    ),
    Script(
        *X, "train_enwik8_lejepa_style.py", bytes_of_text, SMALL,
        {
            PUBLISHED: ("", REFUTED, "GA-DATA-001"),
            "a backward pass of each": (
                "s|^        if exists(gradient_accumulate_every):|    &|; "
                "s|^            accelerator.backward|    &|", OPEN, "GA-EQ-001"),
        },
        note="As published, the backward pass stands behind the loop over micro-batches, so that three of four are "
        "dropped. `watch` names the line of the forward pass. Its regularizer is a statistic of a whole "
        "micro-batch and no sum over samples, so that a backward pass of each is not shown to be the full batch's.",
    ),
)  # fmt: skip


def clone_of(folder: Path, script: Script) -> Path | None:
    """The clone of a repository: a work tree, a bare one, or a folder with a bare one called repo."""
    owner, _, name = script.repository.partition("/")
    for found in (name, f"{owner}_{name}", f"{owner}+{name}"):
        for path in (folder / found, folder / found / "repo"):
            if (path / ".git").exists() or (path / "HEAD").exists():
                return path
    return None


def taken(clone: Path, script: Script, into: Path) -> None:
    """The files of the commit, without the folder data. Raises CalledProcessError where the clone lacks the commit."""
    git = ["git", "-C", str(clone), "archive", script.commit, "--", ".", ":(exclude)data"]
    archive = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT, check=True)
    subprocess.run(["tar", "-x", "-C", str(into)], input=archive.stdout, timeout=LIMIT, check=True)


def changed(path: Path, expression: str) -> int:
    """Change a file by sed; how many lines of it are others now."""
    before = path.read_text(encoding="utf-8").splitlines()
    if expression:
        subprocess.run(["sed", "-i", "-e", expression, str(path)], timeout=LIMIT, check=True)
    after = path.read_text(encoding="utf-8").splitlines()
    return len(set(after) - set(before))


@dataclass(frozen=True)
class Answer:
    """What `watch` said of one form: exit code in a word, obligations, seconds, lines added for gradproof's sake."""

    word: str
    named: tuple[str, ...]
    held: int
    judged: int
    seconds: float
    adapter: int
    line: str

    @property
    def cells(self) -> str:
        """The last cells of the row."""
        found = ", ".join(self.named) + (f" at {self.line}" if self.line else "")
        return f"{self.word}, {self.held} of {self.judged} hold | {found} | {self.seconds:.0f} | {self.adapter} |"


def watched(python: str, folder: Path, script: Script, sed: str) -> Answer:
    """Run one form of a script. Raises RuntimeError where nothing came back, or a sed command changed nothing."""
    path = folder / script.file
    for expression in (script.sizes, sed):
        if expression and not changed(path, expression):
            raise RuntimeError(f"{script.file}: {expression!r} changed nothing")
    before = path.read_text(encoding="utf-8")
    out = folder / "verdict.json"
    command = [python, "-m", "gradproof", "watch", *script.options, "--format", "json", "--out", str(out), "--", python]
    done = ran(python, folder, *command, script.file, *script.arguments)
    if not out.is_file():
        raise RuntimeError(f"{script.file}: no verdict:\n{done.said[-3000:]}")
    data = json.loads(out.read_text(encoding="utf-8"))
    judged = [r for r in data["results"] if r["details"].get("code") != NO_LOSS]  # a printed loss is none
    rows = [r for r in judged if r.get("applies", True)]
    word = {0: HOLDS, 1: REFUTED, 4: OPEN}.get(done.code, f"exit code {done.code}")
    named = [r for r in rows if r["outcome"] == "REFUTED"] or [r for r in rows if r["outcome"] != "HOLDS"]
    where = next((r["location"] for r in named if r.get("location")), None)
    line = f"{Path(where['file']).name}:{where['line']}" if where else ""
    held = sum(r["outcome"] == "HOLDS" for r in rows)
    adapter = len(set(path.read_text(encoding="utf-8").splitlines()) - set(before.splitlines()))
    obligations = tuple(r["obligation"] for r in named)
    return Answer(word, obligations, held, len(rows), done.seconds, adapter, line)


def key(script: Script, form: str) -> str:
    """What an answer is about: the commit, the file, the options, and what is changed."""
    sed = script.forms[form][0]
    return json.dumps(
        [script.repository, script.commit, script.file, script.options, script.arguments, script.sizes, sed]
    )


def answered(python: str, clone: Path, script: Script, form: str) -> str:
    """Run one form in a folder of its own; the last cells of its row."""
    sed, word, obligation = script.forms[form]
    folder = Path(tempfile.mkdtemp(prefix="public-"))
    try:
        taken(clone, script, folder)
        script.data(folder)
        answer = watched(python, folder, script, sed)
    finally:
        shutil.rmtree(folder)
    if answer.word != word or (obligation and obligation not in answer.named):
        print(f"unexpected: {script.repository} {script.file}, {form}: {answer}", file=sys.stderr)
    return answer.cells


def described(script: Script) -> list[str]:
    """Where a script is from, how it is run, and what its forms change."""
    note = f"commit `{script.commit[:10]}`, licence {script.licence}. {script.note}".rstrip()
    command = ("gradproof watch", *script.options, "-- python", script.file, *script.arguments)
    lines = [f"- **{script.repository}, `{script.file}`**, {note}", f"  Run as `{' '.join(command)}`."]
    lines += [f"  Sizes: `{script.sizes}`."] if script.sizes else []
    forms = {form: sed for form, (sed, _, _) in script.forms.items() if sed}
    return lines + [f"  {form[0].upper()}{form[1:]}: `sed -i '{sed}'`." for form, sed in forms.items()]


def table(
    python: str, clones: Path, scripts: tuple[Script, ...] = SCRIPTS, keep: Path | None = None
) -> tuple[str, list[str]]:
    """The table and the list below it, and what is missing in them. `keep`: a file of answers, read and added to."""
    kept = dict(json.loads(line) for line in keep.read_text("utf-8").splitlines()) if keep and keep.is_file() else {}
    lines, missing = [], []
    for script in scripts:
        first, clone = f"{script.repository}, `{script.file}`", clone_of(clones, script)
        for form in script.forms:
            cells = kept.get(key(script, form))
            if cells is None and clone is None:
                missing.append(f"no clone of {script.repository} in {clones}")
                continue
            if cells is None and clone is not None:
                cells = answered(python, clone, script, form)
                if keep:
                    with keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([key(script, form), cells]) + "\n")
            lines.append(f"| {first} | {form} | {cells}")
            print(lines[-1], flush=True)
            first = ""
    below = [line for script in scripts for line in described(script)]
    return TABLE + "\n".join(lines) + "\n\n## Where they are from, and the forms\n\n" + "\n".join(below) + "\n", missing


def main(arguments: list[str] | None = None) -> int:
    """Run all, print the table, and write the page. Exit code 1 where something is missing: then nothing is written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path, help="a folder of clones")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the scripts' packages")
    parser.add_argument("--keep", type=Path, help="a file of answers: what it has is not run again")
    parser.add_argument("--out", type=Path, help="write the page here")
    given: Any = parser.parse_args(arguments)
    made, missing = table(given.python, given.clones, keep=given.keep)
    if missing:
        print("\n".join(dict.fromkeys(missing)), "nothing was written", sep="\n", file=sys.stderr)
        return 1
    if given.out:
        machine = f"{os.cpu_count()} cores without a GPU, load {os.getloadavg()[1]:.0f}"
        given.out.write_text(HEAD.format(machine=machine) + made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
