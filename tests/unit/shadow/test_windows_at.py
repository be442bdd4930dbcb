"""`watch --windows-at`: what is recorded is judged, and of the rest nothing is said but in what its events differ."""

from __future__ import annotations

import linecache
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.report.formats import brief
from gradproof.shadow.judge import scale
from gradproof.shadow.judge.one_run import OneRun
from gradproof.shadow.process.watch import drawn
from gradproof.shadow.request import chosen
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.calls import CLIP, STEP, ZERO
from gradproof.shadow.tape.looks import form_of
from gradproof.shadow.tape.run_events import RunEvents
from tests.checked import watch

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
BY_VALUES = ("GA-DATA-001", "GA-EQ-001", "GA-INV-002", "GA-INV-004", "GA-INV-005")
FILE = "windows_at_loop.py"
HEAD = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
X, Y = torch.randn(40, 2, 3), torch.randn(40, 2, 2)
modes = []
def one(k, n=4):
    return nn.functional.mse_loss(model(X[k]), Y[k]) / n
"""
PLAIN = """
for w in range(8):
    for i in range(4):
        {each}
    {last}
    optimizer.step()
    {after}
"""
LOADED = """
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:{size}], Y[:{size}]), batch_size=None)
for epoch in range(2):
    for k, (x, y) in enumerate(loader):
        (nn.functional.mse_loss(model(x), y) / (2 if k >= 8 else 4)).backward()
        if k % 4 == 3 or k == {size} - 1:
            optimizer.step()
            optimizer.zero_grad()
"""


def loop(each: str = "one(4 * w + i).backward()", last: str = "pass", after: str = "optimizer.zero_grad()") -> str:
    """Eight windows of four micro-batches."""
    return PLAIN.format(each=each, last=last, after=after)


def watched(body: str, windows_at: str | None, epoch_batches: int | None = None) -> Verification:
    """What is said of a loop."""
    text = HEAD + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    names = {"torch": torch, "nn": nn, "mode": _get_current_dispatch_mode}
    made = watch(lambda: exec(compile(text, FILE, "exec"), names), 4, 3, epoch_batches, windows_at)
    assert _get_current_dispatch_mode() is None
    return made


def line_of(made: Verification, name: str) -> str:
    """The source line of a result."""
    location = made.result(name).location
    return "" if location is None else linecache.getline(FILE, location.line).strip()


@given(st.sets(st.integers(0, 10**6), min_size=1), st.booleans())
def test_numbers_and_last_are_read(numbers: set[int], last: bool) -> None:
    words = [*numbers, *["last"] * last]
    assert chosen(", ".join(map(str, words))) == set(words)


@given(st.text().filter(lambda text: not all(w.strip() == "last" or w.strip().isdigit() for w in text.split(","))))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(GradproofError, match="GP406"):
        chosen(text)


@pytest.mark.parametrize("text", ["-1", "0,,1", "first", ""])
def test_a_mistake_is_exit_2(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it ran')")
    assert cli.dispatch(["watch", f"--windows-at={text}", "--", str(script)]) == EXIT_CODE[Exit.USAGE]
    err = capfd.readouterr().err
    assert "GP406" in err
    assert "it ran" not in err


VARIANTS = {
    "plain": loop(),
    "zeroed first": PLAIN.format(each="one(4 * w + i).backward()", last="pass", after="pass").replace(
        "    for i", "    optimizer.zero_grad()\n    for i"
    ),
    "zeroed to zeros": loop(after="optimizer.zero_grad(set_to_none=False)"),
    "set to none by hand": loop(after="for p in model.parameters(): p.grad = None"),
    "clipped": loop(last="nn.utils.clip_grad_norm_(model.parameters(), 0.1)"),
    "a schedule": "\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
    + loop(after="schedule.step(); optimizer.zero_grad()"),
    "a scaler": "\nscaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)\n"
    + loop("scaler.scale(one(4 * w + i)).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer); scaler.update()"
    ),
    "batch statistics of another model": "\nother = nn.BatchNorm1d(3)\n"
    + loop(last="with torch.no_grad(): other(X[w])"),
}


@pytest.mark.parametrize("windows_at", ["0,3", "2", "1,2,5"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_loop_holds_wherever_it_is_recorded(name: str, windows_at: str) -> None:
    made = watched(VARIANTS[name], windows_at)
    assert {o: made.result(o).outcome for o in BY_VALUES} == dict.fromkeys(BY_VALUES, HOLDS)
    shown = [int(word) + 1 for word in windows_at.split(",")]
    assert all(str(number) in made.result("GA-EQ-001").reach for number in shown)
    assert made.config["windows_at"] == [number - 1 for number in shown]


def test_nothing_is_followed_in_a_window_that_is_not_recorded() -> None:
    """No dispatch mode, and torch's own functions: events are all that it costs."""
    body = loop("modes.append((w, mode() is not None)); one(4 * w + i).backward()")
    body += "\nassert {w for w, on in modes if on} == {0, 1, 3, 4}, modes\n"
    body += "assert [on for w, on in modes if w == 1] == [True, False, False, False]\n"
    assert watched(body, "0,3").result("GA-EQ-001").outcome is HOLDS


BUGS = {
    "share": (loop("one(4 * w + i, 1 if w == 5 else 4).backward()"), "GA-EQ-001", "one("),
    "never zeroed": (loop(after="if w != 4: optimizer.zero_grad()"), "GA-INV-002", ""),
    "clip": (
        loop("one(4 * w + i).backward()\n        if w == 5: nn.utils.clip_grad_norm_(model.parameters(), 0.01)"),
        "GA-INV-005",
        "clip_grad_norm_",
    ),
    "lost": (
        loop("one(4 * w + i).backward()\n        if w == 5 and i == 1: optimizer.zero_grad()"),
        "GA-INV-002",
        "optimizer.zero_grad()",
    ),
    "schedule": (
        "\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
        + loop("one(4 * w + i).backward()\n        if w == 5: schedule.step()"),
        "GA-INV-003",
        "schedule.step()",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_late_bug_is_seen_where_it_is_recorded(name: str) -> None:
    """It is refuted at its line; a gradient that was left over from a window that was not recorded is undecided."""
    body, obligation, line = BUGS[name]
    made = watched(body, "0,5")
    found = made.result(obligation)
    assert found.outcome is REFUTED if line else found.outcome is not HOLDS
    assert line in line_of(made, obligation)
    assert made.result("GA-EQ-001").outcome is not HOLDS


LATE_BUGS = {
    "a summand": loop("(one(4 * w + i) + (w == 5) * one(4 * w + i).pow(2) if w == 5 else one(4 * w + i)).backward()"),
    "a factor": loop("(one(4 * w + i) * 1.0 if w != 5 else one(4 * w + i) * 0.5).backward()"),
    "evaluation": loop(last="model.eval() if w == 4 else 0"),
    "the same rows": loop("one(4 * w + i if w != 5 else 4 * w).backward()"),
    "a copy of the same rows": loop("one(torch.tensor(4 * w + i if w != 5 else 4 * w)).backward()"),
    "fewer rows": loop("F(model(X[4 * w + i][w == 5:]), Y[4 * w + i][w == 5:]).div(4).backward()").replace(
        "F(", "nn.functional.mse_loss("
    ),
    "a part is zeroed": loop(after="[p.grad.zero_() for p in list(model.parameters())[2 * (w == 4):]]"),
    "written by hand": loop(
        "one(4 * w + i).backward()\n        if w == 5 and i == 1: [p.grad.mul_(0.5) for p in model.parameters()]"
    ),
}


@pytest.mark.parametrize("name", LATE_BUGS)
def test_a_late_bug_of_the_same_events_leaves_what_it_may_break_undecided(name: str) -> None:
    """Its loss, rows, modes or gradients are not those of a recorded window."""
    made = watched(LATE_BUGS[name], None)
    assert made.result("GA-EQ-001").outcome is Outcome.UNKNOWN
    assert (
        "was not recorded" in made.result("GA-EQ-001").reason or "were not recorded" in made.result("GA-EQ-001").reason
    )
    assert made.code == EXIT_CODE[Exit.OPEN]


LATE_RIGHT = {
    "a loss scaler that grows": VARIANTS["a scaler"],
    "dropout": loop().replace("\nfor w", "\nmodel = nn.Sequential(model, nn.Dropout(0.5))\nfor w", 1),
    "a validation": loop(after="optimizer.zero_grad()\n    model.eval(); model(X[w]).sum().item(); model.train()"),
    "zeroed to zeros": VARIANTS["zeroed to zeros"],
    "batches of several sizes": "\nsizes = [2, 1, 2, 2] * 8\n"
    + loop(
        "(nn.functional.mse_loss(model(X[4 * w + i][:sizes[w + i]]), Y[4 * w + i][:sizes[w + i]], reduction='sum')"
        " / sum(sizes[w:w + 4]) / 2).backward()"
    ),
    "a number of parts": loop("sum(one(4 * w + i, 4 * (w + 1)) for _ in range(w + 1)).backward()"),
    "several epochs": LOADED.format(size=8),
}


@pytest.mark.parametrize("name", LATE_RIGHT)
def test_a_right_loop_has_no_window_that_differs(name: str) -> None:
    """Numbers and rows that differ from window to window say nothing."""
    made = watched(LATE_RIGHT[name], None)
    assert not any("not recorded: it" in result.reason for result in made.results), made.windows
    assert made.windows.startswith("windows 1 to 3")


def test_that_rows_are_looked_at_is_no_read_of_them() -> None:
    """Token ids are known again by their bytes, which the engine does not see."""
    body = "\nmodel = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))\nT, L = torch.randint(9, (2, 32, 2, 16))\n"
    body += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    made = "model(T[4 * w + i]).flatten(0, 1), L[4 * w + i].flatten()"
    body += loop(f"(nn.functional.cross_entropy({made}) / 4).backward()")
    result = watched(body, None).result("GA-EQ-001")
    assert (result.outcome, "path" in result.reach) == (HOLDS, False)


def test_further_windows_are_drawn_by_a_seed_that_is_named() -> None:
    body = loop().replace("range(8)", "range(11)").replace("4 * w + i", "(4 * w + i) % 40")
    made = watched(body, None)
    assert drawn(0, 3) == {9, 38}
    assert drawn(1, 3) != drawn(0, 3)
    assert made.windows.startswith("windows 1 to 3, 10 of 11 (10 drawn by seed 0); 7 by events")
    assert made.result("GA-EQ-001").outcome is HOLDS
    assert made.windows in "\n".join(line.text for line in brief.lines(made))


def test_what_the_judge_took_for_so_stands_below_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneRun, "taken", lambda _: ["the 4 at train.py:9 is taken for N"])
    made = watched(loop(), None)
    assert made.taken == ["the 4 at train.py:9 is taken for N"]
    assert brief.text(made).splitlines()[2] == "  taken: the 4 at train.py:9 is taken for N"


def test_a_form_is_the_ways_to_the_parts_of_a_loss() -> None:
    weight = torch.ones(3, requires_grad=True)
    part = (weight * 2).mean()
    once, often = ((sum(part for _ in range(n)) * 0.5).div(4) for n in (1, 5))
    (form, numbers), more = form_of([once], None) or ((), []), form_of([often], None)
    assert form == {("DivBackward", "MulBackward", "MeanBackward")} == (more or [()])[0]
    assert [number for _, number in numbers] == [4, 0.5]
    scale = torch.tensor(8.0)
    assert [number for _, number in (form_of([part * scale], scale) or ((), []))[1]] == [None]


@pytest.mark.parametrize("name", [name for name in BUGS if name != "share"])
def test_a_late_bug_whose_events_differ_leaves_what_it_may_break_undecided(name: str) -> None:
    """The default records the first three; the bug is in the sixth alone, and the option that records it is named."""
    made = watched(BUGS[name][0], None)
    found = made.result(BUGS[name][1])
    number = 5 - (name == "never zeroed")
    assert found.outcome is Outcome.UNKNOWN
    assert f"window {number + 1} was not recorded" in found.reason
    assert f"--windows-at 0,1,2,{number}" in found.help
    assert made.code == EXIT_CODE[Exit.OPEN]


@pytest.mark.parametrize(("size", "last"), [(8, 1), (10, 2)])
def test_the_last_window_of_an_epoch_is_known_by_its_data_loader(size: int, last: int) -> None:
    made = watched(LOADED.format(size=size), "0,last")
    assert f"windows 1 to 2 of {2 * last + 2}" in made.result("GA-EQ-001").reach or last == 2
    assert f"{last + 1} of {2 * last + 2}" in made.result("GA-EQ-001").reach
    assert made.result("GA-EQ-001").outcome is HOLDS
    assert not [note for note in made.notes if "`last`" in note]


def test_the_last_window_is_known_by_a_given_length_or_said_not_to_be() -> None:
    assert "windows 1, 4 of 8" in watched(loop(), "0,last", 16).result("GA-EQ-001").reach
    made = watched(loop(), "0,last")
    assert any("`last`" in note for note in made.notes)
    assert "window 1 of 8" in made.result("GA-EQ-001").reach


def test_windows_that_a_run_does_not_reach_are_said_and_nothing_holds() -> None:
    made = watched(loop(), "50")
    assert HOLDS not in {result.outcome for result in made.results}
    assert any("50" in note for note in made.notes)


def test_what_rests_on_something_refuted_does_not_hold() -> None:
    """Each recorded window alone has right weights; the gradients between them were never zeroed."""
    made = watched(loop(after="pass"), None)
    assert made.result("GA-INV-002").outcome is REFUTED
    assert not {"GA-EQ-001", "GA-DATA-001"} & {r.obligation for r in made.results if r.outcome is HOLDS}


def test_a_total_that_is_a_share_of_a_window_by_chance_is_not_refuted() -> None:
    """Sums, divided by another number in each window: by 8, 16, .., 64; a window has 16 elements."""
    each = "nn.functional.mse_loss(model(X[4 * w + i]), Y[4 * w + i], reduction='sum').backward()"
    body = loop(each, "[p.grad.div_(8 * (w + 1)) for p in model.parameters()]")
    assert {watched(body, at).result("GA-EQ-001").outcome for at in ("0,7", "7")} == {Outcome.UNKNOWN}


KINDS = st.lists(st.sampled_from([ZERO, CLIP, STEP]), max_size=4)


def run_of(windows: list[tuple[int, list[str]]], recorded: set[int]) -> RunEvents:
    """The events of windows with a number of backward passes, and some events before the step."""
    run = RunEvents()
    run.recorded = recorded
    for passes, kinds in windows:
        for _ in range(passes):
            run.begins()
        for kind in (*kinds, STEP, ZERO):
            run.keep(kind)
    return run


@given(st.integers(1, 4), KINDS, st.integers(1, 6))
def test_windows_with_the_events_of_a_recorded_one_are_not_named(passes: int, kinds: list[str], count: int) -> None:
    assert list(run_of([(passes, kinds)] * count, {0}).others()) == []


@given(st.integers(1, 4), KINDS, st.integers(1, 4), KINDS, st.integers(1, 6))
def test_every_other_window_is_named(passes: int, kinds: list[str], more: int, others: list[str], at: int) -> None:
    windows = [(passes, kinds)] * 7
    windows[at] = (more, others)
    named = list(run_of(windows, {0}).others())
    assert [(number, first) for number, first, _ in named] == ([] if windows[at] == windows[0] else [(1, at)])


def test_a_window_of_two_optimizers_is_recorded_after_a_gap() -> None:
    """What is followed from the first one's step on is not given up at the second one's."""
    body = """
head = nn.Linear(2, 2)
second = torch.optim.SGD(head.parameters(), lr=0.1)
for w in range(4):
    for i in range(4):
        (nn.functional.mse_loss(head(model(X[4 * w + i])), Y[4 * w + i]) / 4).backward()
        if w == 2 and i == 1: nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 0.01)
    optimizer.step(); second.step()
    optimizer.zero_grad(); second.zero_grad()
"""
    made = watched(body, "2")
    assert made.result("GA-INV-005").outcome is REFUTED
    assert "clip_grad_norm_" in line_of(made, "GA-INV-005")


def test_a_factor_that_may_be_the_division_is_told_with_what_to_do() -> None:
    made = watched(loop("(0.25 * one(4 * w + i, 1)).backward()"), None)
    result = made.result("GA-EQ-001")
    assert (result.outcome, result.help) == (Outcome.UNKNOWN, scale.WRITE_N)
    assert "whether a loss of window 1 is divided by N is not shown: 0.25 at " in result.reason
    assert any(line.startswith("for N = 4: ") for line in watched(loop(), None).taken)


@pytest.mark.parametrize(
    ("writes", "words"),
    [("rates", "sets 1 numbers of optimizers"), ("weights", "has 2 weights written without a step")],
)
def test_what_a_later_window_writes_between_passes_is_seen(writes: str, words: str) -> None:
    def train(late: int) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(288, 4), torch.randn(288, 1)
        for i in range(144):
            at = slice(2 * i, 2 * i + 2)
            (torch.nn.functional.mse_loss(model(x[at]), y[at]) / 4).backward()
            with torch.no_grad():
                for weight in model.parameters() if i == late and writes == "weights" else ():
                    weight.mul_(0.5)
            for group in optimizer.param_groups if i == late and writes == "rates" else ():
                group["lr"] *= 0.5
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    equal = [watch(partial(train, late)).result("GA-EQ-001") for late in (-1, 4 * 5)]
    assert equal[0].outcome is Outcome.HOLDS
    assert equal[1].outcome is Outcome.UNKNOWN
    assert words in equal[1].reason
