"""`gradproof check`: exit codes, output apart from the user's, a limit that holds, and mistakes without a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import step_bench
from jsonschema import Draft202012Validator

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome
from gradproof.shadow.process import check as child
from gradproof.shadow.request import Request, takes_run
from gradproof.shadow.result import Verification, ending

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "reports/step.schema.json").read_text(encoding="utf-8"))

TRAIN = """
import sys
print("talks while it is imported")


def good(run):
    print("trains with", run.accum_steps, run.micro_batch_size)
    print("complains", file=sys.stderr)


def says(word):
    return lambda run: word


refuted, silent, garbage, strange = says("refuted"), says("silent"), says("garbage"), says("strange")
opaque, timeout, refuses = says("OPAQUE"), says("TIMEOUT"), says("refuses")


def reads(run):
    return "refuted" if run.optimizer == "adam" else "HOLDS"


def raises(run):
    value = None
    return value.backward()


def exits(run):
    sys.exit(0)


def gone(run):
    import os
    os._exit(0)


def killed(run):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)


def closes(run):
    import os
    os.close(1)


def forks(run):
    import os
    if os.fork():
        os.wait()


def two(run, other):
    return None


def none():
    return None


class Step:
    pass


def lazy(run):
    yield 1


async def later(run):
    return None


number = 3
"""

TALKS = """
import logging
import os
import subprocess
import sys
import warnings

import torch

logging.basicConfig(level=logging.INFO)  # a handler that holds the first stderr
CALLS = []


def talk(words):
    print(words, "by print")
    print(words, "to stderr", file=sys.stderr)
    logging.warning(f"{words} by logging")
    warnings.warn(f"{words} by warnings " + "!" * len(CALLS))
    os.write(1, f"{words} to descriptor 1\\n".encode())
    os.write(2, f"{words} to descriptor 2\\n".encode())
    subprocess.run(["echo", words, "by a child"], check=True)


def late(run):
    CALLS.append(run)
    talk(f"call {len(CALLS)}")
    if len(CALLS) > 1:
        raise RuntimeError("no second call")


def train(run):
    CALLS.append(run)
    talk("heard")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(torch.randn(run.samples, 2).split(run.micro_batch_size), 1):
        (model(x).square().mean() * (1 / 3)).backward()
        if i % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
HANGS = """
import os, subprocess, sys, time
from pathlib import Path


def hangs(run):
    here = Path(__file__).parent
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (here / "pids").write_text(f"{os.getpid()} {child.pid}")
    while True:
        pass
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with train.py as the working directory, and children with the fake engine."""
    monkeypatch.setattr(child, "command", step_bench.command)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def gradproof(*args: str) -> int:
    return cli.dispatch(list(args))


def test_only_what_is_undecided_can_be_allowed(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    allow = ("--allow-undecided", "GA-EQ-001")
    assert gradproof("check", "train.py:opaque", *allow, "--format", "json") == 0
    data = read(capfd)
    assert (data["outcome"], data["code"], data["allow_undecided"]) == ("OPAQUE", 0, ["GA-EQ-001"])
    assert gradproof("check", "train.py:opaque", *allow) == 0
    assert "allowed to be undecided: GA-EQ-001, the gradient of the full batch; exit" in capfd.readouterr().out
    assert gradproof("check", "train.py:refuted", *allow) == 1
    assert gradproof("check", "train.py:opaque", "--allow-undecided", "GA-EQ-1") == EXIT_CODE[Exit.USAGE]
    assert "GP406" in capfd.readouterr().err


def read(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(capfd.readouterr().out)
    Draft202012Validator(SCHEMA).validate(data)
    return data


def test_a_step_that_holds_is_exit_0_and_users_output_stays_apart(
    train: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert gradproof("check", "train.py:good", "--accum-steps", "3", "--micro-batch", "5") == 0
    out, err = capfd.readouterr()
    assert out.startswith("HOLDS train.py:good: every obligation holds (")
    for words in ("talks while", "trains with 3 5", "complains"):
        assert words in err
        assert words not in out


def test_a_few_lines_or_all_or_what_does_not_hold(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = {}
    for option in ("", "--verbose", "--quiet"):
        assert gradproof("check", "train.py:refuted", *[option] * bool(option)) == 1
        said[option] = capfd.readouterr().out
    assert len(said[""].splitlines()) <= 25 < len(said["--verbose"].splitlines())
    assert "Counterexample" in said["--verbose"]
    [line] = said["--quiet"].splitlines()
    assert re.search(rf"step_bench\.py:1: REFUTED GA-EQ-001, the gradient of the full batch: {step_bench.REASON}", line)
    assert gradproof("check", "train.py:good", "-q") == 0
    assert capfd.readouterr().out == ""
    assert gradproof("check", "train.py:silent", "-q") == EXIT_CODE[Exit.OPEN]
    assert "NOT_RUN GA-EQ-001" in capfd.readouterr().out


def test_what_takes_long_says_so(
    train: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "train.py:good is called with micro-batches and with the full batch, for at most 120 s of CPU; 0 s so far"
    assert gradproof("check", "train.py:good") == 0
    assert "so far" not in capfd.readouterr().err
    monkeypatch.setattr("gradproof.cli.check.LATE", 0.05)
    assert gradproof("check", "train.py:good") == 0
    assert said in capfd.readouterr().err
    assert not [thread for thread in threading.enumerate() if "say" in thread.name]


WAYS = ("by print", "to stderr", "by logging", "by warnings", "to descriptor 1", "to descriptor 2", "by a child")


def counted(text: str, words: str) -> list[int]:
    """How often these words are in a text, by each way to say them; a warning's own line of source left out."""
    return [text.count(f"{words} {way}") for way in WAYS]


def test_what_a_function_prints_is_heard_once(tmp_path: Path) -> None:
    """It is called several times, and again where constants have to be read otherwise."""
    path = tmp_path / "train.py"
    path.write_text(TALKS)
    for words in ([], ["--accum-steps", "3"], ["--fake"], ["--rounding"], ["--ranks", "2"]):
        command = [sys.executable, "-m", "gradproof", "check", *words, f"{path}:train"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 4), done.stderr
        assert counted(done.stderr, "heard") == [1] * len(WAYS), done.stderr
        assert not any(counted(done.stdout, "heard"))


def test_a_later_call_that_raises_is_heard_as_well(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TALKS)
    command = [sys.executable, "-m", "gradproof", "check", f"{path}:late"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE[Exit.CRASH]
    assert "no second call" in done.stdout
    assert counted(done.stderr, "call 1") == counted(done.stderr, "call 2") == [1] * len(WAYS), done.stderr
    assert not any(counted(done.stderr, "call 3"))


def test_a_function_of_this_process_is_heard_once(tmp_path: Path) -> None:
    program = "import gradproof, train; found = gradproof.check(train.train); print('after', found.outcome)"
    (tmp_path / "train.py").write_text(TALKS)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert counted(done.stdout + done.stderr, "heard") == [1] * len(WAYS)
    assert "after REFUTED" in done.stdout


CODES = {"refuted": 1, "opaque": 4, "timeout": 4, "silent": 4, "garbage": 3, "strange": 3, "raises": 3, "refuses": 3}
CODES |= {"exits": 3, "gone": 3, "killed": 3, "closes": 0, "forks": 0}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_way_to_end_has_its_exit_code_and_json(
    train: Path, capfd: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    assert gradproof("check", f"train.py:{name}", "--format", "json") == code
    data = read(capfd)
    assert data["code"] == code
    assert data["subject"] == f"train.py:{name}"
    assert (data["outcome"] == "HOLDS") == (code == 0)


def test_a_step_that_raises_is_told_with_its_line(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gradproof("check", "train.py:raises", "--format", "json")
    (first, *_) = read(capfd)["results"]
    line = TRAIN.splitlines().index("    return value.backward()") + 1
    assert (first["outcome"], first["location"]["file"], first["location"]["line"]) == ("ERROR", str(train), line)
    assert "AttributeError" in first["reason"]
    gradproof("check", "train.py:raises")
    assert "return value.backward()" in capfd.readouterr().out


def test_a_file_that_raises_at_import_is_an_error_with_its_line(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.write_text("x = 1\nraise RuntimeError('not today')\n")
    assert gradproof("check", "train.py:good", "--format", "json") == EXIT_CODE[Exit.CRASH]
    (first, *_) = read(capfd)["results"]
    assert (first["location"]["line"], "not today" in first["reason"]) == (2, True)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("KeyboardInterrupt", "the code ended with KeyboardInterrupt"),
        ("RuntimeError('one\\n  two')", "the code ended with RuntimeError: one two"),
        ("RuntimeError('x' * 999)", f"the code ended with RuntimeError: {'x' * 300}"),
        ("RuntimeError('\\udcff')", "the code ended with RuntimeError: \udcff"),
    ],
)
def test_what_a_step_raises_is_told_in_one_line(train: Path, raised: str, said: str) -> None:
    train.write_text(f"def good(run):\n    raise {raised}\n")
    assert gradproof("check", "train.py:good", "--format", "json", "--out", "made.json") == EXIT_CODE[Exit.CRASH]
    results = json.loads(Path("made.json").read_text(encoding="utf-8"))["results"]
    assert {result["reason"] for result in results} == {said}


def test_a_syntax_error_is_told_with_its_line(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.write_text("x = 1\ndef good(run)\n")
    assert gradproof("check", "train.py:good") == EXIT_CODE[Exit.USAGE]
    assert "train.py:2" in capfd.readouterr().err


def test_the_optimizer_is_passed_on(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gradproof("check", "train.py:reads", "--optimizer", "adam") == 1
    assert gradproof("check", "train.py:reads", "--optimizer", "sgd") == 0


def test_a_step_that_hangs_is_killed_with_what_it_started(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.write_text(HANGS)
    began = time.monotonic()
    assert gradproof("check", "train.py:hangs", "--time-limit", "10", "--format", "json") == EXIT_CODE[Exit.OPEN]
    assert time.monotonic() - began < 300
    assert {r["outcome"] for r in read(capfd)["results"]} == {"TIMEOUT"}
    assert gone(train.parent / "pids", time.monotonic() + 60)


def test_what_escapes_is_seen_to_live(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hunt for escaped children, one survives."""
    train.write_text(HANGS)
    monkeypatch.setattr("gradproof.core.processes.end_strays", lambda scratch: None)
    assert gradproof("check", "train.py:hangs", "--time-limit", "10") == EXIT_CODE[Exit.OPEN]
    assert not gone(train.parent / "pids", time.monotonic() + 0.5)
    os.kill(int((train.parent / "pids").read_text().split()[1]), signal.SIGKILL)


def test_a_killed_parent_takes_the_step_with_it(train: Path) -> None:
    train.write_text(HANGS)
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import step_bench; from gradproof.shadow.process import check as child; child.command = step_bench.command\n"
        "from gradproof.cli import main; main(['check', 'train.py:hangs'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=train.parent)
    pids, deadline = train.parent / "pids", time.monotonic() + 300
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(pids, deadline)


def gone(pids: Path, deadline: float) -> bool:
    """Whether every process of a file is gone, or dead and waiting for its parent, before a deadline."""
    left = set(pids.read_text().split())
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if not _dead(pid)}
        time.sleep(0.05)
    return not left


def _dead(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_file_in_a_package_may_import_its_neighbours(train: Path) -> None:
    package = train.parent / "mine" / "deep"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package.parent / "other.py").write_text("WORD = 'refuted'\n")
    (package / "beside.py").write_text("def word(): return WORD\nfrom ..other import WORD\n")
    (package / "loop.py").write_text(
        "from . import beside\nimport beside as script\ndef step(run): return beside.word()\n"
    )
    (package / "beside.py").write_text("import mine.other\ndef word(): return mine.other.WORD\n")
    assert gradproof("check", "mine/deep/loop.py:step") == 1


def test_a_file_with_the_name_of_a_loaded_module_is_still_the_users(train: Path) -> None:
    (train.parent / "json.py").write_text("def step(run): return 'refuted'\n")
    assert gradproof("check", "json.py:step") == 1


BAD: dict[tuple[str, ...], str] = {
    ("train.py",): "GP402",
    (":good",): "GP402",
    ("train.py:",): "GP402",
    ("train.py:a b",): "GP402",
    ("missing.py:good",): "GP403",
    (".:good",): "GP403",
    ("notes.txt:good",): "GP403",
    ("broken.py:good",): "GP403",
    ("bytes.py:good",): "GP403",
    ("train.py:god",): "GP404",
    ("train.py:good.more",): "GP404",
    ("train.py:two",): "GP405",
    ("train.py:none",): "GP405",
    ("train.py:Step",): "GP405",
    ("train.py:lazy",): "GP405",
    ("train.py:later",): "GP405",
    ("train.py:number",): "GP405",
    ("train.py:good", "--accum-steps", "0"): "GP406",
    ("train.py:good", "--micro-batch", "-1"): "GP406",
    ("train.py:good", "--windows", "0"): "GP406",
    ("train.py:good", "--tail", "4"): "GP406",
    ("train.py:good", "--ranks", "0"): "GP406",
    ("train.py:good", "--seed", "-1"): "GP406",
    ("train.py:good", "--dtype", "int8"): "GP406",
    ("train.py:good", "--device", "tpu"): "GP406",
    ("train.py:good", "--rounding", "--ranks", "2"): "GP406",
    ("train.py:good", "--rounding", "--fake"): "GP406",
    ("train.py:good", "--range", "data=1"): "GP406",
    ("train.py:good", "--range", "data=0.1"): "GP406",
    ("train.py:good", "--rounding", "--range", "data=much"): "GP406",
    ("train.py:good", "--out", "no/folder/x.json"): "GP407",
    ("train.py:good", "--out", "."): "GP407",
    (): "",
    ("train.py:good", "--accum-steps", "four"): "",
    ("train.py:good", "--time-limit", "0"): "",
    ("train.py:good", "--time-limit", "nan"): "",
    ("train.py:good", "--time-limit", "inf"): "",
    ("train.py:good", "--format", "pdf"): "",
    ("train.py:good", "--nonsense"): "",
}


@pytest.mark.parametrize(("args", "code"), BAD.items(), ids=lambda a: " ".join(a) if isinstance(a, tuple) else a)
def test_a_mistake_is_exit_2_without_a_traceback(
    train: Path, capfd: pytest.CaptureFixture[str], args: tuple[str, ...], code: str
) -> None:
    (train.parent / "notes.txt").write_text("def good(run): ...")
    (train.parent / "broken.py").write_text("x = 1\ndef good(run)\n")
    (train.parent / "bytes.py").write_bytes(b"\xff\x00")
    assert gradproof("check", *args) == EXIT_CODE[Exit.USAGE]
    out, err = capfd.readouterr()
    assert code in err
    assert out == ""
    assert "Traceback" not in err


def test_no_such_device(train: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradproof.evidence.environment.cuda_absent", lambda: "no driver")
    assert gradproof("check", "train.py:good", "--device", "cuda:0") == EXIT_CODE[Exit.USAGE]
    assert "no driver" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("json", "{"),
        ("md", "# REFUTED"),
        ("text", "REFUTED"),
        ("html", "<!doctype html>"),
        ("sarif", "{"),
        ("junit", "<testsuites"),
        ("github", "::error file="),
    ],
)
def test_the_result_goes_to_a_file(train: Path, capfd: pytest.CaptureFixture[str], form: str, start: str) -> None:
    assert gradproof("check", "train.py:refuted", "--format", form, "--out", "made.txt") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(r"train\.py:refuted: REFUTED .*\b1\b.* made\.txt", err)
    assert Path("made.txt").read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_what_holds_is_exit_0(outcome: Outcome) -> None:
    """Of every outcome of one obligation, beside seven that hold."""
    found = step_bench.answering(outcome)
    assert (found.code == 0) == (outcome is Outcome.HOLDS)
    assert found.exit is ending(outcome)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"verification": {}}', '{"mistake": {}}', "null", '"HOLDS"'])
def test_garbage_in_the_place_of_an_answer_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011
        child.answered(path, "train.py:good")


def test_an_answer_to_another_question_is_an_error(tmp_path: Path) -> None:
    from gradproof.shadow.result import to_json

    path = tmp_path / "result.json"
    path.write_text(json.dumps({"verification": to_json(step_bench.held("other.py:step"))}))
    with pytest.raises(ValueError, match="it is about"):
        child.answered(path, "train.py:good")
    assert isinstance(child.answered(path, "other.py:step"), Verification)


def test_a_child_that_cannot_be_started_is_an_error(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "command", lambda: ["/no/such/interpreter"])
    assert gradproof("check", "train.py:good") == EXIT_CODE[Exit.CRASH]


def test_a_callable_object_and_a_method_are_functions() -> None:
    class Loop:
        def __call__(self, run: Any) -> None:
            return None

        def train(self, run: Any, epochs: int = 1) -> None:
            return None

    assert takes_run(Loop())
    assert takes_run(Loop().train)
    with pytest.raises(GradproofError, match="GP405"):
        takes_run(Loop.train)


def test_what_says_nothing_is_not_passed_to_the_engine() -> None:
    assert {"optimizer", "ranks"} & set(Request().options()) == set()
    assert {"optimizer", "ranks"} <= set(Request(optimizer="adam", ranks=2).options())


def test_two_ranks_from_the_command_line(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The child runs this module as `__main__`, and the ranks have to find it by its name."""
    loop = Path(__file__).resolve().parents[2] / "loops" / "ddp_loop.py"
    assert gradproof("check", f"{loop}:train", "--ranks", "2", "--format", "json") == 0
    assert {r["outcome"] for r in read(capfd)["results"]} == {"HOLDS"}
