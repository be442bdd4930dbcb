"""Every command that README and docs/ tell is run as it stands there, or the reason why not is listed here.

The pages of `FOLLOWED` have tests of their own: test_docs_recipes.py, and `make installed` for the tutorial. Words in
capitals are filled in. What takes minutes is not run: of a make target, make prints what it would run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.commands import REPOSITORY, in_blocks, in_text, told
from tests.docs.test_docs_recipes import RECIPES, reader
from tests.tutorial import TUTORIAL, Reader, blocks

CERTIFIED = "gradproof check --certificate step.cert train.py:train"
SCRIPT = (
    "gradproof check --script train.py --accum-arg gradient_accumulation_steps=4 --batch-arg batch_size=8 -- --lr 0.1"
)
VERIFIED = "gradproof verify -k GA-EQ-001"
SIGNED = "openssl genpkey -algorithm ed25519 -out release.pem"
PUBLIC = "openssl pkey -in release.pem -pubout -out release.pub.pem"
OUTSIDE = SIGNED.replace("release", "../release")
ATTESTED = "gradproof attest OUT_DIR --no-queries"
FORMATS = (
    "gradproof verify --workspace . --format junit=report.xml --format sarif=report.sarif --format ndjson=events.ndjson"
)
NOWHERE = "tcp://127.0.0.1:9"


@dataclass(frozen=True)
class How:
    """How a command is run: what is filled in, what runs before it, its exit code, and a word that it prints."""

    filled: str = ""
    before: tuple[str, ...] = ()
    code: int = 0
    says: str = ""


DESK = {
    CERTIFIED: How(says="HOLDS"),
    "python -m gradproof.evidence.certificate step.cert": How(before=(CERTIFIED,), says="confirmed"),
    "gradproof check train.py:train": How(says="HOLDS"),
    "gradproof check train.py:train --accum-steps 4": How(says="HOLDS"),
    "gradproof check train.py:train --format html": How(says="Release: nothing that was judged is wrong"),
    "gradproof check --fake train.py:train": How(says="HOLDS"),
    "gradproof check --ranks 2 ddp.py:train": How(says="GA-SYNC-001"),
    "gradproof watch -- python train.py": How(says="HOLDS"),
    "gradproof watch --accum-steps 4 -- python train.py --epochs 1": How(says="HOLDS"),
    "gradproof watch --accum-steps 4 -- python script.py --epochs 1": How(
        before=("cp train.py script.py",), says="HOLDS"
    ),
    "gradproof watch --stop-after 2 -- python train.py": How(says="stopped after window 2"),
    "gradproof watch --accum-steps 4 --allow-undecided GA-EQ-001 --allow-undecided GA-DATA-001 -- python train.py": How(
        says="HOLDS"),
    "torchrun --nproc-per-node 2 -m gradproof watch -- train.py": How(says="HOLDS"),
    "torchrun --nproc-per-node 2 -m gradproof watch -- python ddp_script.py": How(code=1, says="GA-SYNC-001"),
    VERIFIED: How(code=4, says="1 of 6 obligations"),
    "gradproof check train.py:train --rounding": How(says="HOLDS"),
    "gradproof gate --baseline release/reports": How(before=("mkdir release; cp -r reports release/reports",), code=4),
    "gradproof init --loop train.py:train": How("gradproof init --loop train.py:train --force", says="written"),
    "gradproof doctor": How(says="torch"),
    "gradproof list": How(says="GA-EQ-001"),
    "gradproof config": How(says="profile"),
    "gradproof graph": How(says="train-accumulation-v1"),
    "gradproof report --format md": How(code=4, says="GA-EQ-001"),
    "gradproof gate": How(code=4),
    "gradproof verify": How(VERIFIED, code=4, says="1 of 6 obligations"),
    "gradproof verify -k ID": How(VERIFIED, code=4, says="1 of 6 obligations"),
    "gradproof verify --workspace DIR": How(
        "gradproof verify --workspace . -k GA-EQ-001", code=4, says="1 of 6 obligations"),
    "gradproof verify --profile release": How(VERIFIED + " --profile release", code=4),
    "gradproof verify --shard": How(VERIFIED + " --shard 1/1", code=4),
    "gradproof verify --shard 1/3": How(VERIFIED + " --shard 1/1", code=4),
    FORMATS: How(FORMATS + " -k GA-EQ-001", code=4),
    "gradproof verify --watch": How(
        "timeout --preserve-status -s INT 20 gradproof verify --watch -k GA-EQ-001", code=130),
    "gradproof verify --engine dask --scheduler tcp://host:8786": How(
        f"gradproof verify --engine dask --scheduler {NOWHERE} --no-cache", code=6, says="GP495"),
    "gradproof run --device cuda": How(code=5),
    "gradproof run --device cpu": How(code=5),
    "gradproof merge FOLDER...": How("gradproof merge shard", ("cp -r reports shard",)),
    "gradproof merge --json": How("gradproof merge --json shard", ("cp -r reports shard",), says="gradproof-merge/1"),
    "gradproof gate --baseline reports-of-the-last-release": How(
        before=("cp -r reports reports-of-the-last-release",), code=4),
    "gradproof diff OLD NEW": How("gradproof diff proofs/train-accumulation-v1/contract.yaml .", says="neutral"),
    "gradproof attest OUT_DIR": How(ATTESTED, code=4),
    "gradproof verify-bundle DIR": How("gradproof verify-bundle OUT_DIR", (ATTESTED + " || true",), 4),
    "gradproof verify-bundle OUT_DIR": How("", (ATTESTED + " || true",), 4),
    "gradproof attest OUT_DIR --sign release.pem": How(ATTESTED + " --sign ../release.pem", (OUTSIDE,), 4),
    "gradproof verify-bundle OUT_DIR --key release.pub.pem": How("", (
        OUTSIDE, PUBLIC.replace("-in release", "-in ../release"), ATTESTED + " --sign ../release.pem || true"),
        4, "signed"),
    SIGNED: How(),
    PUBLIC: How(before=(SIGNED,)),
}  # fmt: skip
"""Run in a folder with train.py and ddp.py of the pages, and a workspace that `gradproof init` made of train.py."""
REFERENCE = {
    "gradproof prove -k KANI-GA-001": How(says="KANI-GA-001"),
    "gradproof prove -k ID": How("gradproof prove -k KANI-GA-004", says="KANI-GA-004"),
    "gradproof run -k ID": How("gradproof run -k FALSIFY-GA-003@cpu-fp32", says="FALSIFY-GA-003"),
    "gradproof verify -k KANI-GA-002": How(code=4, says="KANI-GA-002"),
    "gradproof explain ID": How("gradproof explain KANI-GA-020"),
    "gradproof explain KANI-GA-020": How(),
    "gradproof explain WORD": How("gradproof explain HOLDS"),
    "gradproof explain HOLDS": How(),
    "gradproof explain GP106": How(),
    "gradproof explain GA-EQ-001": How(),
    "gradproof claims": How(code=4, says="CLAIM-"),
    "gradproof claims -k CLAIM-B-14": How(code=4, says="CLAIM-B-14"),
    "gradproof claims --run": How("gradproof claims --run -k CLAIM-B-14", code=0, says="CLAIM-B-14"),
    "gradproof claims --out reports": How(code=4),
    "gradproof bound -n 64": How(),
    "gradproof bound --help": How(says="--magnitude"),
    "gradproof bound -n 512 --tolerance 1e-5": How(code=1),
    "gradproof bound --thresholds --tolerance EPS": How("gradproof bound --thresholds --tolerance 1e-3 --most 64"),
    "gradproof bound --thresholds --tolerance 1e-5 --magnitude 1e4 --most 1024": How(),
    "gradproof bound --relative EPS": How("gradproof bound -n 4 --relative 1e-3"),
    "gradproof bound --elements D": How("gradproof bound -n 4 --elements 3"),
    "gradproof demo": How(says="HOLDS"),
    "gradproof bound -n 512 --certificate FILE": How("gradproof bound -n 8 --certificate made.json"),
    "gradproof plan-batch -b 16 -n 4 --batches 625 --epochs 100": How(says="157"),
    "python -P -m gradproof.rounding.lemma_store --list": How(),
}
"""Run in an empty folder, about the reference workspace."""
EXTRAS = {"pip install .": "", "pip install '.[sign]'": "sign", "pip install '.[dask]'": "dask"}
"""`make installed` installs the wheel with pip; here the extras have to be those of pyproject.toml."""
ELSEWHERE = {
    "python -m tests.light dist": (".github/workflows/release.yml", "python -m tests.light"),
    "pytest --gradproof-accum 2,4": ("tests/unit/cli/test_pytest_steps.py", '"--gradproof-accum"'),
    "python -m build --wheel": (".github/workflows/release.yml", "python -m build --no-isolation"),
    "gradproof attest OUT_DIR --wheel dist/gradproof.whl": ("tests/unit/extras/test_bundle_attest.py", '"--wheel"'),
    "dask scheduler": ("tests/clusters.py", "dask_scheduler"),
    "dask worker tcp://host:8786 --nthreads 4": ("tests/clusters.py", "dask_worker"),
    "pre-commit run gradproof-verify --hook-stage manual": ("tests/house/test_house_integrations.py", '"--hook-stage"'),
    SCRIPT: ("tests/unit/cli/test_script.py", '"--script"'),
    "gradproof replay EVIDENCE": ("tests/unit/cli/test_cli.py", '"replay"'),
    "gradproof sweep --micro-batch 16 --accum-steps 1,2,4,8,16": ("tests/unit/extras/test_sweep.py", '"sweep"'),
    "python -P -m gradproof.extras.conformance --quick --only special": (
        "tests/unit/extras/test_kernels_special.py", "special"),
    "python -m tests.edges": ("tests/unit/rounding/test_rounding_scales.py", "edges.tables"),
    "python -m tests.edges sizes": ("tests/unit/rounding/test_rounding_scales.py", "edges.tables"),
    "python -m tests.edges NAME": ("tests/unit/rounding/test_rounding_scales.py", "edges.main"),
    "python -m tests.structure": ("tests/house/test_house_structure.py", "structure"),
    "pytest tests/unit/shadow/test_shadow_rounding.py -k name": (
        "tests/unit/shadow/test_shadow_rounding.py", "def test_"),
}  # fmt: skip
"""The test that runs the command, and a word of that test."""
NOT_RUN = {
    "gh attestation verify OUT_DIR/MANIFEST.json --repo OWNER/NAME": "it asks GitHub",
    "pre-commit install": "it changes a repository's hooks; the hooks themselves are run by tests/house",
    "python -P -m gradproof.extras.conformance --out reports/kernels/cpu.json": "minutes, and writes what is committed",
    "python -m symbolic.tokens.study --out reports/tokens.json --plots docs": "writes what is committed: make tokens",
    "python -m tests.bench_speed": "minutes",
    "python -m tests.bench_engine": "minutes",
    "python -m tests.bench_whole": "half an hour",
    "python -m tests.matrix --python 3.13": "gigabytes from the package index",
    "python -m tests.docs.peers --python PYTHON --out docs/comparison.md": "needs other tools",
}
MAKE = {command for command in told() if command.startswith("make ")}


def test_every_command_of_the_pages_is_run_or_listed() -> None:
    listed = {*DESK, *REFERENCE, *EXTRAS, *ELSEWHERE, *NOT_RUN, *MAKE}
    assert set(told()) - listed == set()
    assert listed - set(told()) == set()
    assert len(NOT_RUN) <= 9


def test_a_command_in_a_page_is_seen() -> None:
    text = "Run `gradproof check a.py:f --tail 1` or `gradproof check`.\n\n"
    text += "```\n$ gradproof gate   # judge\ngradproof: no\n```\n"
    assert in_blocks(text) == ["gradproof gate"]
    assert in_text(text) == ["gradproof check a.py:f --tail 1"]


@pytest.mark.parametrize("command", sorted(MAKE))
def test_make_knows_what_a_target_runs(command: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *shlex.split(command)[1:]], cwd=REPOSITORY, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bin/" in done.stdout


def test_extras_and_other_tests_are_there() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert {name for name in EXTRAS.values() if name} <= set(extras)
    assert [
        name for name, (file, word) in ELSEWHERE.items() if word not in (REPOSITORY / file).read_text("utf-8")
    ] == []
    modules = [match[1] for c in NOT_RUN if (match := re.match(r"python (?:-P )?-m (\S+)", c))]
    assert len(modules) >= 6
    assert [m for m in modules if find_spec(m) is None] == []


def run(user: Reader, command: str, how: How) -> None:
    """Run a command after what comes before it."""
    for earlier in how.before:
        assert list(user.run(earlier + "\n")) == [], user.said
    done = subprocess.run(
        ["bash", "-c", how.filled or command], cwd=user.folder, env=user.environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == how.code, said[-3000:]
    assert how.says in said


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the loops of the pages, and a workspace around one of them."""
    user = reader(tmp_path_factory.mktemp("desk"))
    page = blocks(TUTORIAL.read_text(encoding="utf-8"))
    loop = next(b.text for b in page if b.kind == "python")
    loop = loop.replace("loss.backward()", "(loss / run.accum_steps).backward()")
    (user.folder / "train.py").write_text(
        loop.replace("accum_steps: int = 8", "accum_steps: int = 4"), encoding="utf-8"
    )
    for block in RECIPES["DistributedDataParallel"]:
        if block.kind == "python":
            (user.folder / block.file).write_text(block.text, encoding="utf-8")
    assert list(user.run("gradproof init --loop train.py:train --accum-steps 2 --ci none\n")) == []
    assert list(user.run(VERIFIED + " || test $? -eq 4\n")) == []
    return user.folder.parent


@pytest.fixture
def desk(made: Path, tmp_path: Path) -> Reader:
    """A copy of the folder, for one command."""
    shutil.copytree(made / "home", tmp_path / "desk" / "home")
    (tmp_path / "user").mkdir()
    user = reader(tmp_path / "user")
    user.folder = tmp_path / "desk" / "home"
    return user


@pytest.mark.slow
@pytest.mark.parametrize("command", DESK)
def test_a_command_about_ones_own_loop(command: str, desk: Reader) -> None:
    run(desk, command, DESK[command])


@pytest.mark.slow
@pytest.mark.parametrize("command", REFERENCE)
def test_a_command_about_the_reference_workspace(command: str, tmp_path: Path) -> None:
    run(reader(tmp_path), command, REFERENCE[command])


def test_the_interpreter_of_these_tests_is_the_one_that_a_reader_gets(tmp_path: Path) -> None:
    user = reader(tmp_path)
    assert list(user.run("python -c 'import sys; print(sys.executable)'\n")) == []
    assert Path(user.said.splitlines()[0]).parent.samefile(Path(sys.executable).parent)
    assert user.environ["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")
