"""Batch plans both ways, against brute force, and the command line."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from gradproof.cli import cli
from gradproof.core.batches import accumulation, compared, effective, micro_batch, planned
from gradproof.core.errors import GradproofError
from models.systems.batch_plans import RoundedDown, WorldForgotten, WorldNotDivided

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "reports/plan-batch.schema.json").read_text(encoding="utf-8"))


def stated(*args: str) -> tuple[int, str]:
    """Exit code and output of `gradproof plan-batch`."""
    result = CliRunner().invoke(cli, ["plan-batch", *args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_the_inverse_is_found_exactly_where_there_is_one() -> None:
    for micro in range(1, 7):
        for world in range(1, 5):
            made = {effective(micro, n, world): n for n in range(1, 60)}
            for target in range(1, 60):
                assert accumulation(target, micro, world) == made.get(target)
                assert micro_batch(target, micro, world) == made.get(target)


def test_wrong_plans_differ() -> None:
    assert WorldForgotten().effective(2, 3, 4) != effective(2, 3, 4)
    assert RoundedDown().accumulation(7, 2, 1) == 3
    assert accumulation(7, 2, 1) is None
    assert WorldNotDivided().accumulation(8, 2, 2) != accumulation(8, 2, 2)


def test_the_documented_table() -> None:
    plan = planned(16, 4, None, 1, 625, 100)
    assert plan.as_json() == {
        "micro": 16, "accum": 4, "world": 1, "batches": 625, "epochs": 100, "effective": 64, "steps_per_epoch": 157,
        "total_steps": 15_700, "fewer_percent": 74.88, "samples_in_memory": 16, "fewer": "468/625",
        "steps_per_epoch_without": 625, "total_steps_without": 62_500, "samples_in_memory_without": 64,
    }  # fmt: skip
    assert plan.batches is not None
    assert plan.batches * plan.epochs == 62_500


@pytest.mark.parametrize(
    ("given", "found"),
    [((16, None, 128, 2), (16, 4)), ((None, 4, 128, 2), (16, 4)), ((16, 4, 128, 2), (16, 4))],
)
def test_any_two_sizes_give_the_third(given: tuple[int, int, int, int], found: tuple[int, int]) -> None:
    plan = planned(*given, None, 1)
    assert (plan.micro, plan.accum) == found
    assert plan.effective == 128


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((16, None, 64, 3, None, 1), "48 or 96"),
        ((None, 5, 64, 1, None, 1), "60 or 65"),
        ((64, None, 5, 1, None, 1), "the nearest are 64"),
        ((16, 4, 65, 1, None, 1), "16 x 4 x 1 is 64"),
        ((16, None, None, 1, None, 1), "two of --micro-batch"),
        ((0, 4, None, 1, None, 1), "--micro-batch 0"),
        ((16, 4, None, -1, None, 1), "--ranks -1"),
        ((16, 4, None, 1, 0, 1), "--batches 0"),
        ((16, 4, None, 1, 10**13, 1), "--batches"),
    ],
)
def test_sizes_that_make_no_plan(given: tuple[int, int, int, int, None, int], words: str) -> None:
    with pytest.raises(GradproofError) as refused:
        planned(*given)
    assert refused.value.code == "GP413"
    assert words in str(refused.value)


def test_comparing_keeps_the_micro_batch_or_the_effective_batch() -> None:
    plan = planned(16, 4, None, 1, 625, 1)
    same_micro = [p.effective for _, p in compared(plan, (1, 2, 8), fixed=False) if p]
    assert same_micro == [16, 32, 128]
    kept = dict(compared(plan, (1, 8, 3), fixed=True))
    assert kept[3] is None
    assert kept[8] is not None
    assert (kept[8].micro, kept[8].effective, kept[8].batches, kept[8].steps) == (8, 64, 1250, 157)
    with pytest.raises(GradproofError, match="--compare 0"):
        list(compared(plan, (0,), fixed=False))


def test_the_command_prints_the_documented_numbers() -> None:
    code, text = stated("-b", "16", "-n", "4", "--batches", "625", "--epochs", "100")
    assert code == 0
    for words in (
        "settings: micro-batch 16, 4 a window, ranks 1, 625 an epoch, epochs 100",
        "16 x 4 x 1 = 64 samples a step",
        "16 samples a rank at a time; 64 without accumulation",
        "157 an epoch with accumulation, 625 without, 74.88 % fewer; forward and backward passes stay 625",
        "15,700 over 100 epochs, 62,500 without",
    ):
        assert words in text
    marked = [line.split() for line in text.splitlines() if line.startswith("now")]
    assert marked == [["now", "4", "16", "64", "16", "samples", "64", "157", "74.88", "%", "15,700"]]
    _, text = stated("--effective", "64", "-n", "4", "--keep-effective", "--compare", "3")
    assert "does not divide" in text


def test_the_command_as_json() -> None:
    _, text = stated("--effective", "64", "-b", "16", "--compare", "1,2", "--json")
    data = json.loads(text)
    jsonschema.validate(data, SCHEMA)
    assert data["plan"]["accum"] == 4
    assert [row["plan"]["effective"] for row in data["compared"]] == [16, 32]
    with pytest.raises(GradproofError, match="--compare"):
        stated("-b", "1", "-n", "1", "--compare", "x")


def test_the_schema_holds_every_form_and_refuses_another() -> None:
    for args in (("--batches", "625"), ("--keep-effective", "--compare", "3,4")):
        data = json.loads(stated("-b", "16", "-n", "4", *args, "--json")[1])
        jsonschema.validate(data, SCHEMA)
    for wrong in ({**data, "more": 1}, {**data, "plan": {**data["plan"], "fewer": "0.7488"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


@pytest.mark.parametrize(("batches", "n"), [(625, 4), (1, 8), (7, 3), (10**12, 999_983)])
def test_the_reduction_is_exact(batches: int, n: int) -> None:
    plan = planned(1, n, None, 1, batches, 1)
    steps = len(range(0, batches, n))
    assert plan.steps == steps
    assert plan.as_json()["fewer"] == str(Fraction(batches - steps, batches))
