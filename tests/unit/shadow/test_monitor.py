"""What `gradproof watch` tells of a training is what happened, and what it cannot tell is said to be so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from shadow_protocol_bench import PROTOCOL
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.data import DataLoader

from gradproof.core.outcome import Outcome
from gradproof.monitoring import CountRules, report_loss
from gradproof.report.formats import step
from gradproof.shadow.judge.by_events import reported
from gradproof.shadow.result import Verification, from_json, to_json
from gradproof.shadow.tape import monitor_report as monitoring
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.monitor_report import MIXED, NO_EPOCH, READ_AHEAD, SEVERAL, heard, monitored
from models.systems.monitors import MUTANTS
from symbolic.systems.falsify_monitors import world_of
from tests.checked import watch
from tests.loops import monitored_loop

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "reports/step.schema.json").read_text(encoding="utf-8"))
RANKS = 3

pytestmark = pytest.mark.usefixtures("one_thread")


def stated_by(tally: CountRules) -> tuple[dict[str, Any], list[float]]:
    """What a monitor tells of the real loop in a world of three, and the loop's own losses."""
    losses: list[float] = []
    with world_of(RANKS), Monitor(tally, windows=6) as monitor:
        monitored_loop.train(losses=losses)
    return monitored(monitor), losses


def mistakes(stated: dict[str, Any], losses: Iterable[float]) -> set[str]:
    """Where it differs from what is known of the loop: ten micro-batches of four rows an epoch, N = 4, one overflow."""
    rows = [(r["epoch"], r["passes"], r["performed"], r["skipped"], r["complete"]) for r in stated["epochs"]["rows"]]
    found = {
        "effective": stated["effective"]["samples"] != 4 * 4 * RANKS,
        "epochs": rows != [(1, 10, 2, 1, True), (2, 10, 3, 0, True)],
        "run": [(r["passes"], r["performed"], r["skipped"]) for r in stated["steps"]] != [(20, 5, 1)],
        "scaler": stated["scalers"] != [{"performed": 5, "skipped": 1, "scale": 512.0}],
        "losses": [r["loss"] for r in stated["losses"]] != pytest.approx(list(losses), rel=1e-6),
    }
    return {name for name, wrong in found.items() if wrong}


def test_a_real_training_is_told_as_it_was() -> None:
    stated, losses = stated_by(CountRules())
    assert mistakes(stated, losses) == set()
    assert stated["effective"]["sizes"] == [4, 4, 4, 4]
    text = " ".join(monitoring.monitoring_lines(stated))
    assert re.search(r"\b2 optimizer steps \S+ 1 skipped", text)
    for words in ("4 x 4 x 3 = 48", "for 10 backward passes", "scale now 512"):
        assert words in text


RED = {
    "monitor_counts_micro_batches": "epochs",
    "monitor_counts_skipped": "scaler",
    "monitor_epochs_run_on": "epochs",
    "monitor_one_rank": "effective",
    "monitor_divided_loss": "losses",
    "monitor_accumulated_loss": "losses",
    "monitor_scaled_loss": "losses",
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_monitor_is_seen(name: str) -> None:
    assert RED[name] in mistakes(*stated_by(MUTANTS[name].subject()))


def running() -> Callable[[Tensor, Tensor], None]:
    """Reports the sum of the window's losses as if it were the micro-batch's."""
    seen: list[Tensor] = []

    def log(loss: Tensor, share: Tensor) -> None:
        seen.append(loss.detach())
        report_loss(sum(seen[len(seen) - 1 - (len(seen) - 1) % 4 :]))

    return log


LOGS: dict[str, tuple[Callable[[Tensor, Tensor], None], str]] = {
    "divided": (lambda loss, share: report_loss(share), "divided by N"),
    "scaled": (lambda loss, share: report_loss(share * 1024), "the loss scale"),
    "accumulated": (running(), "sum over the window's"),
    "own loss as divided": (lambda loss, share: report_loss(loss, divided=True), "loss of the micro-batch$"),
    "last one for the window": (lambda loss, share: report_loss(loss, "window"), "loss of the micro-batch$"),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_wrong_log_is_flagged_at_its_line(name: str) -> None:
    log, words = LOGS[name]
    found = watch(lambda: monitored_loop.train(log), 4, 2).result("GA-INV-001")
    assert found.outcome is Outcome.REFUTED
    assert re.search(words, found.reason.rpartition(";")[2])
    assert found.location is not None
    assert Path(found.location.file) == Path(__file__)


def test_a_right_log_is_a_note_and_the_window_s_mean_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    each = watch(monitored_loop.train, 4, 1)  # the first window, and one that is drawn
    assert each.result("GA-INV-001").outcome is Outcome.UNKNOWN
    assert re.search(r"\b8 reported losses 8\b", each.notes[0])
    monkeypatch.setattr(monitored_loop, "OVERFLOWS", -1)  # a loss of another form, in a window that is not recorded
    said = watch(lambda: monitored_loop.train(lambda loss, share: report_loss(share, divided=True)), 4, 1)
    assert "divided by N" in said.notes[0]
    assert {said.result(name).outcome for name in PROTOCOL} == {Outcome.HOLDS}
    seen: list[float] = []

    def mean(loss: Tensor, share: Tensor) -> None:
        seen.append(float(loss.detach()))
        report_loss(sum(seen) / len(seen), of="window")

    assert watch(lambda: monitored_loop.train(mean), 4, 1, windows_at="0").result("GA-INV-001").outcome is Outcome.HOLDS


@pytest.mark.parametrize(("ignored", "outcome"), [(0, Outcome.HOLDS), (1, Outcome.UNKNOWN)])
def test_the_mean_of_unequal_micro_batches_is_not_the_full_batch_s(ignored: int, outcome: Outcome) -> None:
    def train() -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            seen = []
            for k in range(2):
                labels = torch.tensor([-100 if k < ignored else 1, 0, 1])
                loss = nn.functional.cross_entropy(model(torch.randn(3, 3)), labels)
                seen.append(loss.detach())
                (loss / 2).backward()
            report_loss(sum(seen) / 2, of="window")
            optimizer.step()
            optimizer.zero_grad()

    assert watch(train, 2, 2).result("GA-INV-001").outcome is outcome


def test_a_loss_may_be_reported_before_its_backward_pass() -> None:
    for factor, right in ((1, True), (0.5, False)):
        made = run([torch.full((2, 3), float(i)) for i in range(4)], lambda out, f=factor: before(out, f), windows=9)
        assert [r.verdict(made)[0] for r in made.reports] == [right] * 4


def before(output: Tensor, factor: float) -> Tensor:
    """Half of the mean, by a quotient, after it was reported with a factor."""
    loss = output.mean()
    report_loss(loss * factor)
    return loss / 2


def test_a_log_that_is_not_recognised_is_not_decided() -> None:
    strange = watch(lambda: monitored_loop.train(lambda loss, share: report_loss(loss + 7)), 4, 1)
    assert strange.result("GA-INV-001").outcome is Outcome.UNKNOWN
    made = run([torch.ones(2, 3)] * 4, lambda output: output.sum() / 2, log=True)
    decided = reported(made, True)
    assert decided is not None
    assert decided.outcome is Outcome.UNKNOWN
    assert {row["loss"] for row in monitored(made)["losses"]} == {None}
    [note] = heard(made)
    assert re.search(r"\b4 reported losses 0\b", note)


def run(
    batches: Iterable[Any], loss: Callable[[Tensor], Tensor] = torch.mean, log: bool = False, **options: Any
) -> Monitor:
    """Two micro-batches a window over these batches, monitored."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(**options) as monitor:
        for i, x in enumerate(batches):
            found = loss(model(x))
            found.backward()
            if log:
                report_loss(found)
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
    return monitor


def epochs_of(monitor: Monitor) -> list[tuple[int, int, bool]]:
    """Passes, steps and completeness of each epoch."""
    rows = monitored(monitor)["epochs"]["rows"]
    return [(r["passes"], r["performed"], r["complete"]) for r in rows]


def test_what_tells_an_epoch() -> None:
    data: Any = torch.randn(8, 3)
    loader = DataLoader(data, batch_size=2)
    twice = (x for _ in range(2) for x in loader)
    assert epochs_of(run(twice)) == [(4, 2, True), (4, 2, True)]
    partly = (x for _ in range(2) for x, _ in zip(loader, range(2), strict=False))
    assert epochs_of(run(partly)) == [(2, 1, False), (2, 1, False)]
    plain = run([data[:2]] * 6)
    assert epochs_of(plain) == []
    assert monitored(plain)["epochs"]["why"] == NO_EPOCH
    assert epochs_of(run([data[:2]] * 6, epoch_batches=4)) == [(4, 2, True), (2, 1, False)]


def test_epochs_that_a_loader_does_not_tell_are_not_guessed() -> None:
    data: Any = torch.randn(8, 3)
    made_before = list(DataLoader(data, batch_size=2)) * 2
    assert monitored(run(made_before))["epochs"]["why"] == NO_EPOCH
    with Monitor() as monitor:
        batches = list(DataLoader(data, batch_size=2))
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches * 2:
            model(x).mean().backward()
            optimizer.step()
    assert monitored(monitor)["epochs"]["why"] == READ_AHEAD
    first, second = DataLoader(data, batch_size=2), DataLoader(data, batch_size=2)

    def in_turn() -> Iterator[Any]:
        one, other = iter(first), iter(second)
        for _ in range(4):
            yield next(one)
            yield next(other)

    turns = run(in_turn())
    assert monitored(turns)["epochs"] == {"stated_by": "", "why": MIXED, "rows": []}


def test_validation_between_two_micro_batches_is_no_epoch() -> None:
    data: Any = torch.randn(8, 3)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor() as monitor:
        for x in DataLoader(data, batch_size=2):
            model(x).mean().backward()
            optimizer.step()
            with torch.no_grad():
                assert all(model(v).numel() for v in DataLoader(data, batch_size=4))
    assert epochs_of(monitor) == [(4, 4, True)]


def test_the_rows_of_a_batch_that_is_split_are_the_model_s() -> None:
    data: Any = torch.randn(8, 3)
    made = run(x for whole in DataLoader(data, batch_size=4) for x in whole.split(2))
    assert monitored(made)["effective"]["sizes"] == [2, 2]
    assert epochs_of(made) == [(4, 2, True)]


def test_two_optimizers_have_no_effective_batch() -> None:
    generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    both = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)]
    with Monitor() as monitor:
        for optimizer in both * 2:
            critic(generator(torch.randn(2, 3))).mean().backward()
            optimizer.step()
    stated = monitored(monitor)
    assert stated["effective"]["samples"] is None
    assert stated["effective"]["why"] == SEVERAL
    assert [(row["optimizer"], row["performed"]) for row in stated["steps"]] == [("0 SGD", 2), ("1 SGD", 2)]


def test_a_fused_optimizer_s_skip_is_no_step() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    with Monitor() as monitor:
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(torch.randn(2, 3)).mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [(r["performed"], r["skipped"]) for r in monitored(monitor)["steps"]] == [(2, 1)]
    assert [(r["performed"], r["skipped"]) for r in monitored(monitor)["scalers"]] == [(2, 1)]


def test_a_loss_may_be_reported_where_nothing_watches() -> None:
    before = torch.autograd.backward
    with Monitor() as monitor:
        report_loss(1.0)
    report_loss(2.0)
    found = reported(monitor, True)
    assert found is not None
    assert found.outcome is Outcome.UNKNOWN
    assert re.search("^no micro-batch .* backward$", found.reason)
    assert len(monitor.reports) == 1
    assert torch.autograd.backward is before
    with pytest.raises(ValueError, match="known: batch, window"):
        report_loss(1.0, of="epoch")


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_watched() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    graphs = CompileCounterWithBackend("eager")
    compiled: Any = torch.compile(model, backend=graphs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for i in range(6):
            (compiled(torch.randn(5, 3)).mean() / 3).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    made = watch(train, 3, 1)
    assert graphs.frame_count > 0
    assert {made.result(name).outcome for name in PROTOCOL if name != "GA-INV-003"} == {Outcome.HOLDS}
    assert made.monitoring["effective"]["sizes"] == [5, 5, 5]
    assert [row["divided_by"] for row in made.monitoring["losses"]] == [3.0] * 3


def test_a_given_number_that_is_not_seen_is_said() -> None:
    made = run([torch.ones(2, 3)] * 4, accum_steps=4)
    assert re.search(r"\b2 micro-batches, .*\b4 .* given", next(monitoring.monitoring_lines(monitored(made))))


def test_the_json_form_and_the_text_have_it() -> None:
    made: Verification = watch(monitored_loop.train, 4, 2)
    jsonschema.validate(to_json(made), SCHEMA)
    text = step.text(from_json(to_json(made)))
    assert "4 x 4 x 1 = 16" in text
    assert re.search(r"window 2, [^.]*: 0\.659184, inf,", text)
    assert "Monitoring" not in step.text(Verification("train.py", {}))


def test_the_command_tells_the_effective_batch_at_start_up() -> None:
    words = [sys.executable, "-m", "gradproof", "watch", "--windows", "2", "--format", "json"]
    words += ["--", "tests/loops/monitored_loop.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=600)
    assert done.returncode == 4, done.stderr
    first = next(line for line in done.stderr.splitlines() if line.startswith("gradproof watch:"))
    assert "4 x 4 x 1 = 16" in first
    data = json.loads(done.stdout)
    jsonschema.validate(data, SCHEMA)
    assert [row["skipped"] for row in data["monitoring"]["epochs"]["rows"]] == [1, 0]
