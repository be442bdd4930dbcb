"""`watch` on the data of a loop: windows of other events or sizes, batches that are used again, and losses."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.report.formats import brief
from gradproof.shadow.result import Verification
from tests.checked import watch

HOLDS, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
EQ, DATA, LOSS, STEPS, STALE = "GA-EQ-001", "GA-DATA-001", "GA-INV-001", "GA-INV-003", "GA-INV-002"
FILE = "watch_data_loop.py"
HEAD = """
from torch.utils.data import DataLoader, TensorDataset
from gradproof.monitoring import report_loss
torch.manual_seed(0)
X, Y = torch.randn({size}, 4), torch.randn({size}, 1)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
mse, N = nn.functional.mse_loss, 4
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle={shuffle})
"""


def watched(body: str, *, size: int = 124, shuffle: bool = True, **options: object) -> Verification:
    """What is said of a loop over 31 batches of 4 samples, by default."""
    text = HEAD.format(size=size, shuffle=shuffle) + body
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    return watch(lambda: exec(compile(text, FILE, "exec"), {"torch": torch, "nn": nn}), **options)  # type: ignore[arg-type]


def line_of(made: Verification, name: str) -> str:
    """The source line of a result."""
    location = made.result(name).location
    return "" if location is None else linecache.getline(FILE, location.line).strip()


LOOP = """
for epoch in range(2):
    {first}
    for i, (x, y) in enumerate(loader):
        n = min(N, len(loader) - i // N * N)
        (mse(model(x), y{reduction}) / {by}).backward()
        if (i + 1) % N == 0{tail}:
            opt.step(); opt.zero_grad()
    {last}
"""
PLAIN = {"first": "pass", "last": "pass", "by": "N", "tail": "", "reduction": ""}
TAIL = PLAIN | {"tail": " or i + 1 == len(loader)"}
ROWS = TAIL | {"reduction": ", reduction='sum'", "by": "min(4 * N, len(X) - i // N * N * 4)"}


WRONG = {
    "shorter last micro-batch": (LOOP.format(**TAIL | {"by": "n"}), 122, ".backward()"),
    "leftover of the last epoch": (LOOP.format(**PLAIN), 124, ".backward()"),
    "tail divided by N": (LOOP.format(**TAIL), 124, ".backward()"),
    "step at the start of the next window": (
        """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i % N == 0 and i > 0:
            opt.step(); opt.zero_grad()
        (mse(model(x), y) / N).backward()
""",
        96,
        ".backward()",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_last_window_of_the_first_epoch_is_recorded_by_default(name: str) -> None:
    body, size, line = WRONG[name]
    made = watched(body, size=size)
    assert made.result(EQ).outcome is REFUTED, made.result(EQ).reason
    assert line in line_of(made, EQ)


RIGHT = {
    "leftover zeroed at the end of the epoch": (LOOP.format(**PLAIN | {"last": "opt.zero_grad()"}), 124),
    "leftover zeroed at the start of the epoch": (LOOP.format(**PLAIN | {"first": "opt.zero_grad()"}), 124),
    "leftover not read": (LOOP.format(**PLAIN).replace("enumerate(loader)", "zip(range(28), loader)"), 124),
    "read one batch ahead": (
        """
def ahead():
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now
"""
        + LOOP.format(**TAIL | {"by": "n"}).replace("enumerate(loader)", "enumerate(ahead())"),
        124,
    ),
    "short window by its own length": (LOOP.format(**TAIL | {"by": "n"}), 124),
    "shorter last micro-batch by its rows": (LOOP.format(**ROWS), 122),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_end_of_an_epoch_holds_by_default(name: str) -> None:
    body, size = RIGHT[name]
    made = watched(body, size=size)
    assert made.code == EXIT_CODE[Exit.MET], [(r.obligation, r.reason) for r in made.results if r.outcome is not HOLDS]


def test_what_an_epoch_leaves_over_is_zeroed_and_named() -> None:
    body = LOOP.format(**PLAIN | {"last": "opt.zero_grad()"})
    assert watched(body).result(DATA).reason.endswith("what an epoch left over was dropped: 3 micro-batches")
    lost = body.replace("if (i + 1) % N == 0:", "if i == 19: opt.zero_grad()\n        elif (i + 1) % N == 0:")
    found = watched(lost, windows_at="0,1,4", accum_steps=4).result(EQ)
    assert found.outcome is UNKNOWN
    assert "arrived, and is not in the step of window 5" in found.reason  # inside of the epoch there is no rest


LAST = LOOP.format(**PLAIN | {"last": "opt.zero_grad()"}).replace("range(2)", "range(1)")
LAST_WRONG = {
    "never zeroed": LAST.replace("    opt.zero_grad()\n", "    pass\n"),
    "zeroed inside": LAST.replace("    n = ", "    if i == 18: opt.zero_grad()\n        n = "),
    "zeroed too early": LAST.replace("    n = ", "    if i == 13: opt.zero_grad()\n        n = "),
    "left early": LAST.replace("    n = ", "    if i == 17: break\n        n = "),
    "a pass of another batch": LAST.replace("    opt.z", "    mse(model(X[:4]), Y[:4]).backward()\n    opt.z"),
}


def test_what_the_last_epoch_left_over_and_is_zeroed_leaves_the_steps_right() -> None:
    """There are 19 batches: three are left over."""
    assert watched(LAST, size=76).outcome is HOLDS


@pytest.mark.parametrize("name", LAST_WRONG)
def test_another_end_of_the_last_epoch_does_not_hold(name: str) -> None:
    found = watched(LAST_WRONG[name], size=76)
    assert found.outcome is not HOLDS
    lost = name == "never zeroed"
    assert (found.result(STEPS).outcome is REFUTED) == lost
    assert found.result(STEPS).reason.startswith("the run ended with a gradient that no step applied") == lost


HEAD_ONLY = """
head = torch.optim.{optimizer}
for i, (x, y) in enumerate(loader):
    (mse(model(x), y) / N).backward()
    if (i + 1) % N == 0:
        head.step(); head.zero_grad()
"""


def test_a_gradient_of_weights_that_are_in_no_optimizer_is_named() -> None:
    found = watched(HEAD_ONLY.format(optimizer="SGD(model[2].parameters(), lr=0.1)"), size=64).result(STALE)
    assert found.outcome is UNKNOWN
    assert found.reason == "0.weight, which no optimizer has, had a gradient when window 2 began"


TWICE = """
for i, (x, y) in enumerate(loader):
    out = model(x)
    {passes}
    if (i + 1) % N == 0{more}:
        opt.step(); opt.zero_grad()
"""
PASSES = {
    "two forward passes": "(mse(model(x), y) / N).backward(); (0.1 * model(x).pow(2).mean() / N).backward()",
    "one forward pass": "(mse(out, y) / N).backward(retain_graph=True); (out.pow(2).mean() / N).backward()",
    "three losses": "(mse(out, y) / N).backward(retain_graph=True); (out.abs().mean() / N).backward()\n"
    "    (model(x).pow(2).mean() / N).backward()",
}
NOT_TWICE = {
    "the second is undivided": {"passes": PASSES["two forward passes"].replace(".mean() / N", ".mean()")},
    "the second is of one batch alone": {"passes": "(mse(out, y) / N).backward()\n    if i % 4 == 0: "
                                         "(model(x).pow(2).mean() / N).backward()"},
    "parts of a batch": {"passes": "for at in (0, 2): (mse(model(x[at:][:2]), y[at:][:2]) / N).backward()",
                         "more": " or True"},
    "a step too early": {"passes": PASSES["one forward pass"], "more": " or i == 1"},
    "of another batch": {"passes": PASSES["one forward pass"].replace("(out.pow", "(model(X[:4]).pow")},
}  # fmt: skip


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("name", PASSES)
def test_several_backward_passes_of_one_batch_are_one_micro_batch(name: str, steps: int | None) -> None:
    found = watched(TWICE.format(passes=PASSES[name], more=""), size=64, accum_steps=steps)
    assert found.outcome is HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert found.config["accum_steps"] == 4
    assert "window of 4 micro-batches" in found.result(STEPS).reason


@pytest.mark.parametrize("name", NOT_TWICE)
def test_other_passes_beside_the_first_leave_the_steps_undecided(name: str) -> None:
    found = watched(TWICE.format(**{"more": ""} | NOT_TWICE[name]), size=64)
    assert found.outcome is not HOLDS
    assert found.result(STEPS).outcome is not HOLDS


NO_LENGTH = LOOP.replace("loader = ", "").replace("enumerate(loader)", "enumerate(stream())")
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return zip(X, Y)
stream = lambda: DataLoader(Stream(), batch_size=4)
loader = range(31)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("TAIL", "has 3 backward passes where the recorded ones have 4"),
        ("ROWS", "has a batch of 2 rows where the recorded ones have 4"),
    ],
)
def test_a_window_unlike_the_recorded_ones_keeps_it_undecided(name: str, reason: str) -> None:
    """Both are right, and the loader has no length: the option that records the window decides them."""
    how, size = (TAIL | {"by": "n"}, 124) if name == "TAIL" else (ROWS, 126)
    body = (STREAM if name == "TAIL" else STREAM.replace("31", "32")) + NO_LENGTH.format(**how)
    made = watched(body, size=size)
    assert made.code == EXIT_CODE[Exit.OPEN]
    assert {made.result(one).outcome for one in (EQ, DATA, STEPS)} == {UNKNOWN}
    assert made.result(EQ).reason == f"window 8 and 1 more like it were not recorded: it {reason}"
    text = brief.text(made)
    assert "record it: --windows-at 0,1,2,7" in text, text
    again = watched(body, size=size, windows_at="0,1,2,7")
    assert again.code == EXIT_CODE[Exit.MET], [(r.obligation, r.reason) for r in again.results]


def test_the_option_is_not_cut_where_something_else_is_refuted() -> None:
    """A divided loss is reported, and a tail is not recorded."""
    body = STREAM + NO_LENGTH.format(**TAIL | {"by": "n"})
    body = body.replace("opt.step()", "report_loss(mse(model(x), y).item() / N); opt.step()")
    made = watched(body)
    assert made.result(LOSS).outcome is REFUTED
    assert "record it: --windows-at 0,1,2,7" in brief.text(made)


def test_zeroing_once_more_after_a_step_is_like_zeroing_once() -> None:
    body = NO_LENGTH.format(**PLAIN | {"first": "opt.zero_grad()"})
    assert watched(STREAM + body, size=112).code == EXIT_CODE[Exit.MET]


@pytest.mark.parametrize("windows_at", ["0,1,last", "0,7", "7,8"])
def test_no_batch_was_skipped_in_a_tail_that_is_divided_by_n(windows_at: str) -> None:
    made = watched(LOOP.format(**TAIL), windows_at=windows_at)
    assert made.result(EQ).outcome is REFUTED, made.result(EQ).reason


def test_a_batch_that_was_skipped_is_named() -> None:
    skips = LOOP.format(**TAIL).replace("n = min", "if i == 29: continue\n        n = min")
    found = watched(skips, size=128, windows_at="0,1,last").result(EQ)
    assert found.outcome is UNKNOWN
    assert "a batch of the data loader was skipped" in found.reason


SAME = {
    "one batch": """
for step in range(5):
    x, y = X[4 * step : 4 * step + 4], Y[4 * step : 4 * step + 4]
    for micro in range(N):
        {draw}
        loss = mse(model(x), y) / N
        loss.backward()
    opt.step(); opt.zero_grad()
""",
    "one batch of a loader": """
batches = iter(loader)
for step in range(5):
    x, y = next(batches)
    for micro in range(N):
        {draw}
        (mse(model(x), y) / N).backward()
    opt.step(); opt.zero_grad()
""",
}
DRAWN = {
    "one batch": "k = 4 * (N * step + micro); x, y = X[k : k + 4], Y[k : k + 4]",
    "one batch of a loader": "x, y = next(batches) if micro else (x, y)",
}


@pytest.mark.parametrize("name", SAME)
def test_a_micro_batch_without_a_row_of_its_own_is_not_decided(name: str) -> None:
    made = watched(SAME[name].format(draw="pass"), accum_steps=4, epoch_batches=20)
    assert made.result(DATA).outcome is UNKNOWN
    assert "has no row of its own" in made.result(DATA).reason
    assert "mse(model(x), y)" in line_of(made, DATA)
    right = watched(SAME[name].format(draw=DRAWN[name]), accum_steps=4, epoch_batches=20)
    assert right.result(DATA).outcome is HOLDS, right.result(DATA).reason


def test_two_losses_of_one_batch_are_no_batch_that_is_used_again() -> None:
    two = SAME["one batch of a loader"].format(draw=DRAWN["one batch of a loader"])
    two = two.replace("(mse(model(x), y) / N).backward()", "for f in losses: (f(model(x), y) / N).backward()")
    made = watched("\nlosses = mse, nn.functional.l1_loss\n" + two, accum_steps=4, epoch_batches=40)
    assert "row of its own" not in made.result(DATA).reason


NEW_ITERATION = """
for step in range(6):
    batches = iter(loader)
    for micro in range(N):
        x, y = next(batches)
        (mse(model(x), y) / N).backward()
    opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize("body", [NEW_ITERATION, NEW_ITERATION.replace("next(batches)", "next(iter(loader))")])
def test_a_loader_that_begins_anew_in_each_window_is_not_decided(body: str) -> None:
    made = watched(body, shuffle=False)
    assert made.result(DATA).outcome is UNKNOWN
    assert "none had come to its end" in made.result(DATA).reason
    assert "x, y = next(" in line_of(made, DATA)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("how", ["for", "next"])
def test_epochs_of_small_data_hold(how: str, shuffle: bool) -> None:
    body = LOOP.format(**PLAIN).replace("range(2)", "range(6)") if how == "for" else NEW_ITERATION
    made = watched(body, size=16, shuffle=shuffle)
    assert made.code == EXIT_CODE[Exit.MET], [(r.obligation, r.reason) for r in made.results]


def test_what_a_script_prints_is_not_judged() -> None:
    """The divided loss is printed, and so is the right one: neither is followed."""
    for said in ("print(loss.item())", "print(N * loss.item())"):
        body = LOOP.format(**PLAIN).replace(
            "(mse(model(x), y) / N).backward()", f"loss = mse(model(x), y) / N; {said}; loss.backward()"
        )
        made = watched(body, size=128)
        assert not made.result(LOSS).applies
        assert made.result(LOSS).reason == "no reported loss was seen: what the script prints was not followed"
        assert "every obligation that was judged holds (6 of 7)" in brief.text(made)


REPORTS = """
for i, (x, y) in enumerate(loader):
    total = 0.0 if i % N == 0 else total
    loss = mse(model(x), y)
    (loss / N).backward()
    total += loss.item()
    {each}
    if (i + 1) % N == 0:
        {early}
        opt.step(); opt.zero_grad()
        {late}
"""


@pytest.mark.parametrize(
    ("places", "outcome"),
    [
        ({"late": "report_loss(total / N)"}, HOLDS),
        ({"early": "report_loss(total / N)"}, HOLDS),
        ({"late": "report_loss(total / N, of='window')"}, HOLDS),
        ({"each": "report_loss(total / (i % N + 1))"}, UNKNOWN),
        ({"late": "report_loss(total)"}, REFUTED),
        ({"each": "report_loss(loss / N)"}, REFUTED),
    ],
)
def test_a_mean_of_the_window_that_is_reported_is_right(places: dict[str, str], outcome: Outcome) -> None:
    made = watched(REPORTS.format(**{"each": "pass", "early": "pass", "late": "pass"} | places), size=128)
    found = made.result(LOSS)
    assert found.outcome is outcome, found.reason
    assert ('of="window"' in found.help) is (outcome is UNKNOWN)


ROWS_OF = """
opt.zero_grad()
{setup}
for i{item} in {source}:
    {batch}
    ({loss} / N).backward()
    if (i + 1) % N == 0:
        opt.step(); opt.zero_grad()
"""
SLICES = {"setup": "", "item": "", "source": "range(20)", "batch": "x, y = X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]"}
LOADED = {"setup": "", "item": ", (x, y)", "source": "enumerate(loader)", "batch": "pass"}
TMAJOR = SLICES | {"setup": "X, Y = torch.randn(20, 6, 4, 4), torch.randn(20, 6, 4, 1)", "batch": "x, y = X[i], Y[i]"}
INDEXED = SLICES | {"setup": "at = torch.randperm(80)", "batch": "k = at[4 * i : 4 * i + 4]; x, y = X[k], Y[k]"}
OVERLAP = SLICES | {"batch": "x, y = X[2 * i :][:4].clone(), Y[2 * i :][:4].clone()"}
HALF = LOADED | {"batch": "k = torch.tensor([True, False] * 2); x, y = x[k], y[k]"}
PLAIN_LOSS = "mse(model(x), y)"
RIGHT_ROWS = {
    "slices": (SLICES, PLAIN_LOSS),
    "an axis more": (SLICES, "mse(model(x[None]), y[None])"),
    "rows of a table that was rolled": (SLICES | {"setup": "X, Y = X.roll(3, 0), Y.roll(5, 0)"}, PLAIN_LOSS),
    "rows by an index": (INDEXED, PLAIN_LOSS),
    "both in another order": (LOADED | {"batch": "k = torch.tensor([2, 0, 3, 1]); x, y = x[k], y[k]"}, PLAIN_LOSS),
    "labels with an axis": (LOADED, "mse(model(x), y[:, 0][:, None])"),
    "labels of ones": (LOADED, "mse(model(x), torch.ones(len(x), 1))"),
    "a mean over both axes": (TMAJOR, PLAIN_LOSS),
}  # fmt: skip
WRONG_ROWS = {
    "labels without an axis": (SLICES, "(model(x) - y[:, 0]).square().mean()", EQ),
    "labels of a loader without an axis": (LOADED, "(model(x) - y[:, 0]).square().mean()", EQ),
    "rolled labels": (SLICES, "mse(model(x), y.roll(1, 0))", EQ),
    "flipped labels of a loader": (LOADED, "mse(model(x), y.flip(0))", EQ),
    "labels by an index": (LOADED, "mse(model(x), y[torch.tensor([1, 0, 2, 3])])", EQ),
    "the row before": (LOADED, "mse(model(x[:-1]), y[1:])", EQ),
    "a batch in each row": (LOADED, "mse(model(x + x.reshape(1, -1).expand(4, -1)[:, :4]), y)", EQ),
    "a mean over rows that are the second axis": (SLICES, "mse((o := model(x[None])) - o.mean(1, True), y[None])", EQ),
    "sequences that are left out": (TMAJOR, "mse(model(x)[:, :2], y[:, :2])", DATA),
    "a mean over the other axis": (TMAJOR, "mse((o := model(x)) - o.mean(1, True), y)", EQ),
    "windows that overlap": (OVERLAP, PLAIN_LOSS, DATA),
    "half of each batch": (HALF, PLAIN_LOSS, DATA),
    "a new iteration for each": (SLICES | {"batch": "x, y = next(iter(loader))"}, PLAIN_LOSS, DATA),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT_ROWS)
def test_rows_that_stay_apart_hold(name: str) -> None:
    form, loss = RIGHT_ROWS[name]
    made = watched(ROWS_OF.format(**form, loss=loss), size=80, accum_steps=4)
    assert {made.result(one).outcome for one in (EQ, DATA)} == {HOLDS}, [(r.obligation, r.reason) for r in made.results]


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_rows_that_were_moved_meet_or_are_left_out_do_not_hold(name: str) -> None:
    form, loss, obligation = WRONG_ROWS[name]
    made = watched(ROWS_OF.format(**form, loss=loss), size=80, accum_steps=4)
    assert made.result(obligation).outcome not in (HOLDS, REFUTED), made.result(obligation).reason


def test_the_samples_are_named() -> None:
    form, loss = RIGHT_ROWS["slices"]
    made = watched(ROWS_OF.format(**form, loss=loss), size=80, accum_steps=4)
    assert "4 micro-batches of 4 samples: the rows of data [4, 4]" in made.assumptions
