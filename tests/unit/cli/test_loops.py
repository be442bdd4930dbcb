"""The example loops agree with their own full batch, and each mutant applies, runs and does something else."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from models.accumulation.torch_mutants import CROSSING, MUTANTS as STEPS
from tests.loops.bugs import BUGS
from tests.loops.catalogue import LOOPS, Loop
from tests.loops.mutants import EXCLUDED, MUTANTS, apply
from tests.loops.observe import Run, Seen, distance, observe, observe_ranks

WINDOWS = 2
TAIL = 2
FEWEST_MUTANTS = 60
DIFFERENT = 2e-6
"""A mutant is compared with the correct loop in the same arithmetic, where equal means equal bit for bit."""

ALONE = [loop for loop in LOOPS.values() if loop.available and loop.ranks == 1]
TOGETHER = [loop for loop in LOOPS.values() if loop.available and loop.ranks > 1]
ABSENT = [loop.name for loop in LOOPS.values() if not loop.available]
if ABSENT:
    print(f"loops whose package is not installed: {', '.join(ABSENT)}")

each_alone = pytest.mark.parametrize("loop", ALONE, ids=lambda loop: loop.name)


@pytest.fixture(autouse=True)
def quiet_frameworks() -> Iterator[None]:
    """Frameworks log, leave names of their own in the environment, and collect all garbage after each run."""
    gc.freeze()
    before, disabled = dict(os.environ), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(disabled)
    os.environ.clear()
    os.environ.update(before)


def run_of(loop: Loop, *, tail: bool) -> Run:
    """The usual numbers of a loop."""
    return Run(loop.accum_steps, windows=WINDOWS, tail=TAIL if tail else 0)


@cache
def correct(name: str, run: Run) -> Seen:
    """A loop as it stands in its file."""
    loop = LOOPS[name]
    return observe(loop.path.read_text(encoding="utf-8"), str(loop.path), run)


def differs(found: Seen, right: Seen, most: float) -> list[str]:
    """In what two observations differ by more than `most`."""
    lists = {
        "gradients": (found.gradients, right.gradients),
        "weights": (found.weights, right.weights),
        "losses": ([found.losses], [right.losses]),
        "rates": ([found.rates], [right.rates]),
    }
    return [name for name, (a, b) in lists.items() if distance(a, b) > most]


def agree(loop: Loop, found: Seen, full: Seen) -> None:
    """Steps, gradients, losses and rates of the accumulating run are those of the full batch."""
    assert (found.error, full.error) == ("", "")
    assert len(found.gradients) == len(full.gradients) == WINDOWS + loop.tail
    apart = {"weights"} if not loop.name.startswith("control_lr") else {"gradients", "rates"}
    assert set(differs(found, full, loop.tolerance)) <= apart


@each_alone
def test_a_loop_agrees_with_its_full_batch(loop: Loop) -> None:
    run = run_of(loop, tail=loop.tail)
    agree(loop, correct(loop.name, run), correct(loop.name, run.full_batch()))


@each_alone
def test_a_window_of_one_micro_batch(loop: Loop) -> None:
    """N = 1 is its own full batch, bit for bit."""
    run = Run(1, windows=WINDOWS)
    seen = correct(loop.name, run)
    assert seen.error == ""
    assert differs(seen, observe(loop.path.read_text(encoding="utf-8"), loop.name, run.full_batch()), 0.0) == []


def test_loops_of_several_ranks_agree_with_their_full_batch() -> None:
    jobs = []
    for loop in TOGETHER:
        run = run_of(loop, tail=loop.tail)
        text = loop.path.read_text(encoding="utf-8")
        jobs += [(text, str(loop.path), run), (text, str(loop.path), run.full_batch())]
    seen = observe_ranks(jobs)
    for k, loop in enumerate(TOGETHER):
        for found, full in zip(seen[2 * k], seen[2 * k + 1], strict=True):
            agree(loop, found, full)


# The edits of this loop are those of trainer_loop, which tries them all; each run of it takes seconds.
TRIED = {"trainer_llama": 4}


@each_alone
def test_mutants_do_something_else(loop: Loop) -> None:
    lost = []
    for mutant in [m for m in MUTANTS if m.loop == loop.name][: TRIED.get(loop.name)]:
        run = run_of(loop, tail=mutant.tail)
        seen = observe(apply(mutant), str(loop.path), run)
        if bool(seen.error) != (mutant.expected == "error"):
            lost.append(f"{mutant.name}: ends with {seen.error or 'no error'}")
        elif not differs(seen, correct(loop.name, run), DIFFERENT):
            lost.append(f"{mutant.name}: does the same")
    assert lost == []


@pytest.mark.slow
def test_mutants_of_several_ranks_do_something_else() -> None:
    for loop in TOGETHER:
        mutants = [mutant for mutant in MUTANTS if mutant.loop == loop.name]
        runs = [run_of(loop, tail=tail) for tail in (False, True)]
        text = loop.path.read_text(encoding="utf-8")
        jobs = [(text, str(loop.path), run) for run in runs]
        jobs += [(apply(mutant), str(loop.path), runs[mutant.tail]) for mutant in mutants]
        seen = observe_ranks(jobs)
        for mutant, found in zip(mutants, seen[2:], strict=True):
            assert not any(rank.error for rank in found), mutant.name
            right = seen[mutant.tail]
            assert any(differs(a, b, DIFFERENT) for a, b in zip(found, right, strict=True)), mutant.name


def test_mutants_blame_lines_that_exist() -> None:
    lost = []
    for mutant in MUTANTS:
        lines = apply(mutant).splitlines()
        texts = [mutant.line_text, *(text for _, text in mutant.also)]
        lost += [f"{mutant.name} in {mutant.loop}: {t}" for t in texts if not any(t in line for line in lines)]
    assert lost == []


def test_an_edit_that_does_not_fit_is_seen() -> None:
    for old in ("no such text", "run."):
        with pytest.raises(ValueError, match="is found"):
            apply(replace(MUTANTS[0], edits=((old, "other"),)))


def test_every_cell_is_a_mutant_or_excluded_with_a_reason() -> None:
    made = [(mutant.name, mutant.loop) for mutant in MUTANTS]
    assert len(set(made)) == len(made)
    assert set(made) | set(EXCLUDED) == {(bug, loop) for bug in BUGS for loop in LOOPS}
    assert set(made).isdisjoint(EXCLUDED)
    assert all(EXCLUDED.values())
    assert len({name for name, _ in made}) >= FEWEST_MUTANTS


def test_every_mutant_of_the_steps_is_a_bug_here() -> None:
    reported = {name for name, mutant in STEPS.items() if mutant.reference != CROSSING}
    assert reported <= set(BUGS)
    assert {name for name in reported if STEPS[name].obligation != BUGS[name].obligation} == set()


def test_loops_import_nothing_of_the_verifier() -> None:
    assert [loop.name for loop in LOOPS.values() if "gradproof" in loop.path.read_text(encoding="utf-8")] == []
