"""The measured comparison of deterministic accumulation: its runs, its document, its command."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.base import read
from gradproof.core.schemas.deterministic import (
    PUBLISHED,
    Compared,
    Deterministic,
    FlagRun,
    Sizes,
    TrainingRun,
    compared,
)
from gradproof.extras.studies import deterministic
from gradproof.extras.studies.sources import write
from models.sampling import flags
from models.sampling.measured import measured
from models.sampling.torch_mutants import MUTANTS
from models.sampling.torch_training import CharTraining
from tests.schemas import schemas

Json = dict[str, Any]
SHAPES = {"width": 32, "layers": 2, "heads": 4, "block": 32, "characters": 25, "text": 100, "validation": 8}


def run(size: int, n: int, **changed: Any) -> TrainingRun:
    """A run, as if it had been measured."""
    values: Json = {"size": size, "n": n, "steps": 5, "train_loss": 2.5, "validation_loss": 2.25}
    return TrainingRun(**{**values, "steps_per_second": 16.0, "weights": "0" * 64, "repeats": True, **changed})


def flag(name: str = flags.NOTHING, same: bool = True, **changed: Any) -> FlagRun:
    """A flag left out, as if it had been measured."""
    values: Json = {"flag": name, "left_out": "not set", "device": "cpu", "outcome": "MEASURED"}
    return FlagRun(**{**values, "in_process": True, "across_processes": True, "same_bits": same, **changed})


NOT_RUN: Json = {
    "device": "cuda",
    "outcome": "NOT_RUN",
    "in_process": None,
    "across_processes": None,
    "same_bits": None,
}


def made(*runs: TrainingRun, left_out: tuple[FlagRun, ...] = (flag(), flag(**NOT_RUN))) -> Deterministic:
    """A document of two runs. Raises ValueError where they do not belong together."""
    one, two = runs
    return Deterministic(
        schema="gradproof-deterministic/2", gradproof="0", made_at="2026-11-21T00:00:00Z", seconds=1.0, device="cpu",
        device_name="cpu", torch="2", threads=1, sizes=Sizes(**SHAPES, learning_rate=0.5, seed=1, data_seed=2),
        runs=(one, two), compared=compared(one, two), published=PUBLISHED, flags=list(left_out),
        sources={"models/sampling/measured.py": "2" * 64},
    )  # fmt: skip


PAIR = (run(64, 1), run(16, 4, validation_loss=2.5, steps_per_second=8.0, weights="1" * 64))


def test_the_comparison_is_the_second_run_less_the_first() -> None:
    assert compared(*PAIR) == Compared(
        train_loss=0.0, validation_loss=0.25, train_equal=True, validation_equal=False, weights_equal=False, slower=2.0
    )


def test_the_published_row_is_the_documents() -> None:
    """And its own figures say 1.5 times as long a step, not 3 to 4 times."""
    one, two = PUBLISHED.validation_loss
    assert (two - one, PUBLISHED.train_loss[0] - PUBLISHED.train_loss[1]) == (pytest.approx(2.4e-7, rel=1e-3), 0.0)
    fast, slow = PUBLISHED.steps_per_second
    assert fast / slow == 1.5
    said = deterministic.stated(made(*PAIR))
    assert "1.50x" in said
    assert "3-4x" in said


def test_what_is_told_has_every_number() -> None:
    text = deterministic.stated(made(PAIR[0], run(16, 4, repeats=False)))
    for piece in (
        "64 x 1",
        "16 x 4",
        "2.500000000000",
        "2.434814453125",
        "2.47094028",
        "bit for bit",
        "NO",
        "one thread",
    ):
        assert piece in text, piece


@pytest.mark.parametrize("second", [run(16, 2), run(16, 4, steps=6)])
def test_runs_that_do_not_belong_together_are_no_document(second: TrainingRun) -> None:
    with pytest.raises(ValueError, match="effective batch"):
        made(PAIR[0], second)


FORGED: dict[str, Callable[[Json], Any]] = {
    "another difference": lambda d: d["compared"].update(validation_loss=0.0),
    "equal weights that are not": lambda d: d["compared"].update(weights_equal=True),
    "a loss that is none": lambda d: d["runs"][0].update(train_loss=-1.0),
    "an unknown key": lambda d: d.update(more=1),
    "another version": lambda d: d.update(schema="gradproof-deterministic/1"),
    "a flag that ran elsewhere": lambda d: d["flags"][0].update(device="cuda"),
    "an answer without a run": lambda d: d["flags"][1].update(same_bits=True),
    "a run without an answer": lambda d: d["flags"][0].update(same_bits=None),
    "no digest": lambda d: d["runs"][1].update(weights="abc"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    write(path, made(*PAIR))
    data = json.loads(path.read_text(encoding="utf-8"))
    assert read(path, Deterministic) == made(*PAIR)
    jsonschema.validate(data, schemas()["deterministic.schema.json"])
    FORGED[name](data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read(path, Deterministic)


def test_a_document_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("gradproof.core.files.os.replace", full)
    with pytest.raises(GradproofError, match="GP407"):
        write(tmp_path / "d.json", made(*PAIR))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_what_it_measured(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deterministic, "SPLITS", ((4, 1), (2, 2)))
    monkeypatch.setattr(deterministic, "QUICK", 2)
    monkeypatch.setattr(flags, "FLAGS", flags.FLAGS[:1])
    monkeypatch.setattr(deterministic, "left_out", cache(deterministic.left_out))  # one child in place of three
    path = tmp_path / "d.json"
    assert deterministic.main(["--quick", "--out", str(path)]) == 0
    found = read(path, Deterministic)
    assert [(r.size, r.n, r.steps, r.repeats) for r in found.runs] == [(4, 1, 2, True), (2, 2, 2, True)]
    assert abs(found.compared.train_loss) < 1e-4
    assert [(f.flag, f.device, f.same_bits) for f in found.flags] == [
        (flags.NOTHING, "cpu", True),
        (flags.NOTHING, "cuda", None),
    ]
    assert deterministic.stated(found) == capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize("arguments", [["--out", "no/such/folder/d.json"], ["--device", "cuda"]])
def test_a_mistake_in_the_call_is_told_before_anything_runs(
    arguments: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradproof.evidence.environment.cuda_absent", lambda: "no CUDA driver on this machine")
    monkeypatch.setattr(deterministic, "document", lambda *_: pytest.fail("it ran"))
    assert deterministic.main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[0].split()[-1] in ("GP407", "GP406")


def test_a_run_that_does_not_repeat_is_told_and_is_not_met(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deterministic, "document", lambda *_: made(PAIR[0], run(16, 4, repeats=False)))
    assert deterministic.main([]) == 1
    assert "NO" in capsys.readouterr().out


def test_a_run_that_differs_in_another_process_is_not_met(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = flag(same=False, across_processes=False)
    monkeypatch.setattr(deterministic, "document", lambda *_: made(*PAIR, left_out=(other,)))
    assert deterministic.main([]) == 1
    assert "differs across processes" in capsys.readouterr().out


LEFT_OUT = {f.name: f.name not in (flags.MODEL_SEED, flags.DATA_SEED) for f in flags.FLAGS}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_flag_is_left_out_and_put_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a seed that is left out changes a run of one process; and nothing of it stays behind."""
    seen: list[tuple[bool, bool, bool]] = []
    cudnn = torch.backends.cudnn

    def noted(job: Any, *args: Any) -> Any:
        seen.append((torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark))
        return CharTraining.window(trained, job, *args)

    trained = flags.LeavesOut(name)
    before = (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
    monkeypatch.setattr(flags.LeavesOut, "window", lambda self, job, *args: noted(job, *args))
    one, two = flags.twice(name, 2, 2, 2, "cpu")
    assert (one == two) is LEFT_OUT[name]
    assert (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark) == before
    wanted = (name != flags.ALGORITHMS, name != flags.DETERMINISTIC, name == flags.BENCHMARK)
    assert set(seen) == {wanted}


def test_a_variable_that_is_left_out_is_not_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def run(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.append(env)
        return SimpleNamespace(returncode=0, stdout='["a", "a"]', stderr="")

    monkeypatch.setenv(flags.HASH, "7")
    monkeypatch.setattr(deterministic.subprocess, "run", run)
    assert deterministic.left_out(flags.HASH, 2, "cpu") == ["a", "a"]
    deterministic.left_out(flags.NOTHING, 2, "cpu")
    assert [env.get(flags.HASH) for env in seen] == [None, "0"]
    assert [env.get(flags.CUBLAS) for env in seen] == [":4096:8"] * 2


def test_a_child_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stdout="", stderr="ValueError: no flag")
    monkeypatch.setattr(deterministic.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="no flag"):
        deterministic.left_out("a flag", 2, "cpu")
    with pytest.raises(ValueError, match="no flag"):
        flags.twice("a flag", 2, 2, 2, "cpu")


@pytest.mark.parametrize(("mutant", "repeats"), [("unseeded", False), ("seeded_by_clock", False), ("logged_sum", True)])
def test_repeats_is_measured(mutant: str, repeats: bool) -> None:
    assert measured(2, 2, 2, "cpu", MUTANTS[mutant].subject).repeats is repeats


def test_one_step_cannot_be_timed() -> None:
    with pytest.raises(ValueError, match="two are needed"):
        measured(2, 1, 1, "cpu")
