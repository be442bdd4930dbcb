"""`gradproof watch`: the script stays itself, its exit code is reported, and what was seen of it is judged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import step_bench

from gradproof import cli
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.shadow.process import check as child
from gradproof.shadow.process.check import Script, script_of
from gradproof.shadow.result import OBLIGATIONS, from_json, named

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "reports/step.schema.json").read_text(encoding="utf-8"))
SCRIPT = """
import pickle, sys
import step_bench

class Mine:
    pass

assert __name__ == "__main__"
assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
import beside
print("arguments", sys.argv[1:], sys.flags.dev_mode)
step_bench.SAID.append(sys.argv[1] if len(sys.argv) > 1 else "fine")
if "fail" in sys.argv:
    raise RuntimeError("no more memory")
if "exit" in sys.argv:
    sys.exit(7)
if "vanish" in sys.argv:
    import os
    os._exit(0)
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        step_bench.SAID.append("fine")
        sys.exit(0)
    os.wait()
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with jobs/train.py, and children with the fake watcher."""
    monkeypatch.setattr(child, "command", step_bench.command)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    (path.parent / "beside.py").write_text("")
    (tmp_path / "broken.txt").write_text("")
    return path


def gradproof(*args: str) -> int:
    return cli.dispatch(["watch", *args])


CASES = {
    ("fine",): (0, 0),
    ("refuted",): (1, 0),
    ("OPAQUE",): (4, 0),
    ("silent",): (4, 0),
    ("garbage",): (3, 0),
    ("strange",): (3, 0),
    ("fine", "fail"): (3, 1),
    ("refuted", "fail"): (1, 1),
    ("fine", "exit"): (3, 7),
    ("fine", "vanish"): (3, 0),
    ("refuted", "fork"): (1, 0),
}


@pytest.mark.parametrize(("words", "codes"), CASES.items(), ids=lambda x: " ".join(map(str, x)))
def test_exit_codes(capfd: pytest.CaptureFixture[str], words: tuple[str, ...], codes: tuple[int, int]) -> None:
    assert gradproof("--", "python", "jobs/train.py", *words) == codes[0]
    out, err = capfd.readouterr()
    assert re.search(rf"jobs/train\.py .* {codes[1]}; gradproof .* {codes[0]}\b", err)
    assert ("every obligation holds" in " ".join(err.split())) == (words == ("fine",))
    assert ("ERROR jobs/train.py: the script failed" in err) == (codes[0] == 3 and words[1:] in (("fail",), ("exit",)))
    assert "vanish" in words or f"exit code {codes[0]}; " in err
    assert out.startswith(f"arguments {list(words)}") or "vanish" in words


@pytest.mark.parametrize(
    "words",
    [
        ("--", "python", "jobs/train.py", "x", "--lr", "1"),
        ("python3", "-X", "dev", "jobs/train.py", "x", "--lr", "1"),
        ("--accum-steps", "2", "--", sys.executable, "-u", "-W", "ignore", "jobs/train.py", "x", "--lr", "1"),
        ("--", "jobs/train.py", "x", "--lr", "1"),
    ],
)
def test_ways_to_name_a_script(capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert gradproof(*words) == 0
    assert f"arguments ['x', '--lr', '1'] {'dev' in words}" in capfd.readouterr().out


def test_a_module_is_run_as_python_runs_it(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (script.parent / "__init__.py").write_text("")
    script.write_text("import sys\nfrom . import beside\nprint(__name__, sys.argv[1:])\n")
    assert gradproof("--", "python", "-m", "jobs.train", "--flag") == 0
    out, err = capfd.readouterr()
    assert "__main__ ['--flag']" in out
    assert re.search(r"-m jobs\.train .* 0$", err, re.MULTILINE)


def test_a_name_that_is_not_utf_8_has_an_answer(script: Path) -> None:
    name = os.fsdecode(b"jobs/tr\xff.py")
    script.rename(name)
    assert gradproof("--", "python", name) == 0


def test_a_script_may_have_as_many_arguments_as_python_takes(script: Path) -> None:
    assert gradproof("--", "jobs/train.py", "fine", *["a" * 44] * 4000) == 0


def test_a_script_that_leaves_no_answer_has_ended_early(capfd: pytest.CaptureFixture[str]) -> None:
    assert gradproof("--format", "json", "--", "jobs/train.py", "fine", "vanish") == EXIT_CODE[Exit.CRASH]
    reason = json.loads(capfd.readouterr().out)["results"][0]["reason"]
    assert reason == "the script's process ended with exit code 0 and left no answer: the process ended early"


def test_the_text_and_the_lines_beside_it_keep_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    for word, most in (("fine", 12), ("refuted", 25)):
        assert gradproof("--", "jobs/train.py", word) == (word == "refuted")
        assert len(capfd.readouterr().err.splitlines()) + 1 <= most  # and the effective batch
    assert gradproof("-v", "--", "jobs/train.py", "refuted") == 1
    assert "Counterexample" in capfd.readouterr().err
    assert gradproof("-q", "--", "jobs/train.py", "refuted") == 1
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_json_alone_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert gradproof("--format", "json", "--", "jobs/train.py", "refuted") == 1
    out, err = capfd.readouterr()
    assert json.loads(out)["subject"] == "jobs/train.py"
    assert json.loads(out)["seconds"]["all"] > 0
    assert "arguments ['refuted']" in err


def test_a_page_alone_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert gradproof("--format", "html", "--", "jobs/train.py", "refuted") == 1
    out, err = capfd.readouterr()
    assert out.startswith("<!doctype html>")
    assert "REFUTED: jobs/train.py" in out
    assert "arguments ['refuted']" in err


def test_the_result_in_a_file_leaves_the_scripts_output_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert gradproof("--format", "json", "--out", "made.json", "--", "jobs/train.py", "refuted") == 1
    assert capfd.readouterr().out.startswith("arguments")
    assert json.loads(Path("made.json").read_text(encoding="utf-8"))["outcome"] == "REFUTED"


def test_silence_about_an_obligation_is_not_run(script: Path) -> None:
    script.write_text("import step_bench\nstep_bench.SAID.append('partial')\n")
    assert gradproof("--", "jobs/train.py") == EXIT_CODE[Exit.OPEN]


ALLOWED = [
    (("OPAQUE",), ("GA-EQ-001",), 0),
    (("OPAQUE",), ("GA-INV-002",), 4),
    (("OPAQUE",), ("GA-EQ-002",), 2),
    (("refuted",), ("GA-EQ-001",), 1),
    (("ERROR",), ("GA-EQ-001",), 3),
    (("VACUOUS",), ("GA-EQ-001",), 0),
    (("VACUOUS",), ("GA-INV-002",), 4),
    (("OPAQUE", "exit"), ("GA-EQ-001",), 3),
    (("silent",), ("GA-EQ-001",), 4),
    (("silent",), tuple(OBLIGATIONS), 4),
    (("partial",), ("GA-INV-002", "GA-EQ-001"), 0),
]


@pytest.mark.parametrize(("words", "names", "code"), ALLOWED)
def test_only_what_is_undecided_can_be_allowed(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...], names: tuple[str, ...], code: int
) -> None:
    options = [word for name in names for word in ("--allow-undecided", name)]
    assert gradproof(*options, "--", "jobs/train.py", *words) == code
    err = " ".join(capfd.readouterr().err.split())
    if code == EXIT_CODE[Exit.USAGE]:
        assert "allow-undecided is 'GA-EQ-002'" in err
    elif code == 0:
        assert f"allowed to be undecided: {'; '.join(map(named, names))}; exit code 0" in err
        assert f"{named('GA-EQ-001')} not decided: " in err


def test_what_is_allowed_stands_in_the_json_and_the_markdown() -> None:
    options = ("--allow-undecided", "GA-EQ-001", "--out", "made")
    assert gradproof("--format", "json", *options, "--", "jobs/train.py", "OPAQUE") == 0
    data = json.loads(Path("made").read_text(encoding="utf-8"))
    jsonschema.validate(data, SCHEMA)
    assert (data["allow_undecided"], data["outcome"], data["exit"], data["code"]) == (
        ["GA-EQ-001"],
        "OPAQUE",
        "met",
        0,
    )
    assert from_json(data).code == 0
    with pytest.raises(ValueError, match="its results say"):
        from_json(data | {"allow_undecided": []})
    assert gradproof("--format", "md", *options, "--", "jobs/train.py", "OPAQUE") == 0
    assert "Allowed to be undecided: GA-EQ-001, the gradient of the full batch." in Path("made").read_text(
        encoding="utf-8"
    )


BAD: tuple[tuple[str, ...], ...] = (
    (),
    ("torchrun", "jobs/train.py"),
    ("python",),
    ("python", "-c", "print()"),
    ("python", "-m"),
    ("python", "--version"),
    ("python", "--", "jobs/train.py"),
    ("python", "-u", "--", "jobs/train.py"),
    ("python", "jobs/gone.py"),
    ("jobs/gone.py",),
    ("python9.9", "jobs/train.py"),
    ("broken.txt",),
)


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_mistake_is_exit_2(capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert gradproof("--", *words) == EXIT_CODE[Exit.USAGE]
    out, err = capfd.readouterr()
    assert "GP408" in err
    assert "Traceback" not in out + err


def test_another_interpreter_is_refused() -> None:
    with pytest.raises(GradproofError, match="gradproof runs in /elsewhere/bin/python"):
        script_of([sys.executable, "jobs/train.py"], "/elsewhere/bin/python")


def test_a_bare_python_is_the_one_that_gradproof_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/elsewhere/bin")
    assert script_of(["python3", "jobs/train.py"]).name == "jobs/train.py"
    assert script_of([sys.executable, "jobs/train.py"]).name == "jobs/train.py"


def test_python_takes_its_flags_first() -> None:
    found = script_of(["python", "-u", "-W", "ignore", "-Xdev", "jobs/train.py", "-u"])
    assert found == Script(("-u", "-W", "ignore", "-Xdev"), "jobs/train.py", False, ("-u",))


def test_an_interrupted_script_is_still_judged(script: Path) -> None:
    script.write_text("import step_bench, time\nstep_bench.SAID.append('refuted')\nopen('on', 'w')\ntime.sleep(600)\n")
    here = str(Path(__file__).parents[1])
    program = (
        f"import sys; sys.path.insert(0, {here!r}); import step_bench\n"
        "from gradproof.shadow.process import check as child; child.command = step_bench.command\n"
        "from gradproof.cli import main; main(['watch', '--', 'jobs/train.py'])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not Path("on").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    _, err = parent.communicate(timeout=300)
    assert parent.returncode == 130
    assert "REFUTED" in err
