"""Shards: every check in exactly one, a stub with all that need it, the same cut everywhere; never the whole gate."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from toy_workspace import check, runs

from gradproof import cli
from gradproof.cli.options import fingerprint, parse, partition
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Kind, Layer
from gradproof.core.workspace import Workspace

LAYERS = st.sampled_from([Layer.SMT, Layer.CPU, Layer.CUDA])


@st.composite
def plans(draw: st.DrawFn) -> list[Check]:
    stubs = [
        check(f"S-{i}", kind=Kind.STUB, time_limit=draw(st.integers(1, 9))) for i in range(draw(st.integers(0, 3)))
    ]
    names = [s.id for s in stubs]
    rows = []
    for i in range(draw(st.integers(1, 12))):
        depends = tuple(draw(st.lists(st.sampled_from(names), unique=True))) if names else ()
        rows.append(check(f"K-{i}", layer=draw(LAYERS), depends=depends, time_limit=draw(st.integers(1, 99))))
    return [*stubs, *rows]


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(1, 5))
def test_shards_are_the_whole_plan_and_disjoint_but_for_stubs(checks: list[Check], of: int) -> None:
    parts = partition(checks, of)
    assert len(parts) == of
    ids = [[c.id for c in part] for part in parts]
    assert {name for part in ids for name in part} == {c.id for c in checks}
    needed = {name for c in checks for name in c.depends}
    for c in checks:
        count = sum(c.id in part for part in ids)
        assert count == 1 or (c.id in needed and count >= 1), c.id
    for part, names in zip(parts, ids, strict=True):
        assert all(name in names for c in part for name in c.depends)
        assert names == [c.id for c in checks if c.id in names]
        assert [c.id for c in part if c.kind is Kind.STUB and c.id in needed and
                not any(c.id in other.depends for other in part)] == []  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(plans(), st.integers(1, 5), st.randoms())
def test_the_cut_does_not_depend_on_the_order_of_the_plan(checks: list[Check], of: int, random: object) -> None:
    mixed = sorted(checks, key=lambda c: random.random())  # type: ignore[attr-defined]
    one, other = partition(checks, of), partition(mixed, of)
    assert [{c.id for c in part} for part in one] == [{c.id for c in part} for part in other]
    assert fingerprint(one) == fingerprint(partition(checks, of))


def test_time_limits_balance_the_shards() -> None:
    checks = [check(f"K-{i}", time_limit=50.0 if i == 0 else 10.0) for i in range(6)]
    heavy, light = partition(checks, 2)
    assert [[c.id for c in heavy], len(light)] == [["K-0"], 5]
    gpu = [replace(c, layer=Layer.CUDA) for c in checks[1:3]]
    assert [len(part) for part in partition([*gpu, *checks[3:]], 2)] == [3, 2]


def test_checks_that_wait_for_each_other_are_in_a_shard() -> None:
    circle = [check("A", depends=("B",)), check("B", depends=("A",)), check("C")]
    parts = partition(circle, 2)
    assert {c.id for part in parts for c in part} == {"A", "B", "C"}


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/1001", "01/2", "²/3"])
def test_what_is_no_shard_is_an_error(text: str) -> None:
    assert parse("2/3") == (2, 3)
    with pytest.raises(GradproofError, match="GP480"):
        parse(text)


def test_a_shard_is_partial_and_never_met(toy: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even where the evidence of all other checks is at hand."""
    open_ = EXIT_CODE[Exit.OPEN]
    assert cli.dispatch(["verify", "-q", "--shard", "1/2"]) == open_
    first = runs(toy.root)
    assert cli.dispatch(["verify", "-q", "--shard", "2/2"]) == open_
    assert first != []
    assert runs(toy.root) != []
    report = json.loads((toy.reports / "report.json").read_text(encoding="utf-8"))
    assert (report["run_state"], report["verdict"]["met"]) == ("partial", False)
    assert cli.dispatch(["gate"]) == 0
    assert cli.dispatch(["verify", "-q", "--shard", "9/9"]) == EXIT_CODE[Exit.NOTHING]
    capsys.readouterr()
    assert cli.dispatch(["prove", "-q", "--json", "--shard", "1/2"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["shard"] == "1/2"
    assert re.search(r"shard 1/2: [12] of 3 .* [0-9a-f]{12}", err)
    assert cli.dispatch(["run", "-q", "--shard", "1/1"]) == 0
    assert "shard 1/1 and says nothing" in capsys.readouterr().out
    for wrong in (["--shard", "2/1"], ["--shard", "1/2", "--watch"]):
        assert cli.dispatch(["verify", *wrong]) == EXIT_CODE[Exit.USAGE]
