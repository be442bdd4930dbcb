"""`gradproof watch --stop-after N`: the verdict is that of N windows, and the user's files are as they were."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from gradproof.core import putback
from gradproof.core.outcome import Outcome
from gradproof.shadow import locations
from gradproof.shadow.process.watch import ScriptWatch
from gradproof.shadow.result import Verification

# -- The script ends after N windows, and what is said is about them.


def train(windows: int = 6, zero: bool = True, swallow: bool = False) -> list[int]:
    """A right loop of 4 micro-batches a window; the windows that it stepped."""
    torch.manual_seed(0)
    model, stepped = torch.nn.Linear(3, 1), list[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for window in range(windows):
        try:
            for _ in range(4):
                loss = torch.nn.functional.mse_loss(model(torch.randn(2, 3)), torch.randn(2, 1)) / 4
                loss.backward()
            optimizer.step()
            stepped.append(window)
            if zero:
                optimizer.zero_grad()
        except BaseException:
            if not swallow:
                raise
    return stepped


def seen(
    stop_after: int | None, windows: int = 3, at: str | None = None, **options: Any
) -> tuple[Verification, list[int]]:
    """What is said of the loop when it is stopped, or has ended; and the windows that it stepped all the same."""
    answers, stepped = list[Verification](), list[int]()
    watch = ScriptWatch(4, windows, at, stop_after=stop_after)
    watch.stopping = lambda: answers.append(watch.verification())
    with suppress(SystemExit), watch:
        stepped = train(**options)
    assert len(answers) == bool(watch.stopped)
    return (answers or [watch.verification()])[0], stepped


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_the_verdict_is_that_of_the_same_windows_of_a_whole_run(count: int, zero: bool) -> None:
    short, whole = seen(count, zero=zero)[0], seen(None, at="0,1"[: 2 * count - 1], zero=zero)[0]
    decided = [{r.obligation: (r.outcome, r.reason) for r in made.results} for made in (short, whole)]
    assert decided[0] == decided[1]
    assert (short.outcome is Outcome.HOLDS) == zero
    assert (short.outcome is Outcome.REFUTED) == (not zero and count == 2)


def test_a_shortened_run_never_reads_as_a_longer_one() -> None:
    short, whole = seen(2)[0], seen(None)[0]
    assert (short.config["windows"], short.config["stopped_after"]) == (2, 2)
    assert "stopped_after" not in whole.config
    assert {re.split(r", on the|: ", r.reach)[0][-45:] for r in short.results if r.outcome is Outcome.HOLDS} == {
        "pes, windows 1 to 2 of 2 until it was stopped", "run, windows 1 to 2 of 2 until it was stopped",
    }  # fmt: skip
    assert not any("until it was stopped" in r.reach for r in whole.results)
    assert any("nothing is known of what would follow" in note for note in short.notes)
    assert (short.monitoring["stopped_after"], whole.monitoring["stopped_after"]) == (2, 0)
    assert short.monitoring["steps"][0]["performed"] == 2


def test_more_windows_than_are_recorded_are_compared_and_those_of_a_shorter_run_are_its_own() -> None:
    more = seen(5)[0]
    assert (more.config["windows"], more.config["stopped_after"]) == (3, 5)
    assert "windows 1 to 3 of 5 until it was stopped" in more.result("GA-EQ-001").reach
    ended = seen(9)[0]
    assert "stopped_after" not in ended.config


def test_a_script_that_catches_everything_trains_no_further() -> None:
    found, stepped = seen(2, swallow=True)
    assert stepped == [0, 1]
    assert found.config["stopped_after"] == 2
    assert train(2) == [0, 1]  # and nothing is left behind


# -- Files are put back.

CHANGES = {
    "open": "open('out/log', 'a').write('x'); open('out/new', 'w').write('x')",
    "os.rename": "os.rename('out/log', 'out/other'); os.replace('out/deep', 'out/away')",
    "os.remove": "os.remove('out/log')",
    "os.rmdir": "os.rmdir('out/empty')",
    "os.mkdir": "os.makedirs('out/a/b/c')",
    "os.link": "os.link('out/log', 'out/hard')",
    "os.symlink": "os.symlink('log', 'out/soft')",
    "os.truncate": "os.truncate('out/log', 1)",
    "os.utime": "os.utime('out/log', (1, 1))",
    "os.chmod": "os.chmod('out/log', 0o600)",
    "shutil.rmtree": "shutil.rmtree('out/deep')",
    "sqlite3.connect": "c = sqlite3.connect('out/base'); c.execute('create table t (a)'); c.close()",
    "a link is followed": "open('link', 'w').write('x')",
    "a link is removed": "os.remove('link')",
    "a file becomes a folder": "os.remove('out/log'); os.makedirs('out/log/a')",
    "a folder becomes a file": "shutil.rmtree('out/deep'); open('out/deep', 'w').close()",
    "a new folder becomes a link": (
        "os.mkdir('new'); open('new/file', 'w').close(); shutil.rmtree('new'); os.symlink('out/deep/er', 'new')"
    ),
    "a folder makes way for a link": "os.rename('out/deep/er', 'old'); os.symlink('../empty', 'out/deep/er')",
    "a hard link is written": "os.link('out/log', 'hard'); open('hard', 'w').write('x')",
    "a forked child": "os.fork() or (open('out/log', 'w').close(), os._exit(0)); os.wait()",
    "dir_fd: open": "os.close(os.open('log', os.O_WRONLY | os.O_TRUNC, dir_fd=out))",
    "dir_fd: a new file": "os.close(os.open('new', os.O_CREAT, dir_fd=out))",
    "dir_fd: rename": "os.rename('log', 'other', src_dir_fd=out, dst_dir_fd=out)",
    "dir_fd: rename to elsewhere": "os.rename('out/log', 'other', dst_dir_fd=out)",
    "dir_fd: remove": "os.remove('log', dir_fd=out)",
    "dir_fd: folders": "os.rmdir('empty', dir_fd=out); os.mkdir('made', dir_fd=out)",
    "dir_fd: links": "os.link('log', 'hard', src_dir_fd=out, dst_dir_fd=out); os.symlink('log', 'soft', dir_fd=out)",
    "dir_fd: time": "os.utime('log', (1, 1), dir_fd=out)",
    "dir_fd: mode": "os.chmod('log', 0o600, dir_fd=out)",
    "dir_fd: rmtree": "shutil.rmtree('deep', dir_fd=out)",
    "a new file is moved": "open('out/n', 'w').close(); os.replace('out/n', 'out/log')",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a former training has left, long ago."""
    home = tmp_path / "project"
    for folder in ("out/deep/er", "out/empty"):
        (home / folder).mkdir(parents=True)
    for name in ("out/log", "out/ckpt.pt", "out/model.safetensors", "out/deep/er/file", "out/base"):
        (home / name).write_bytes(b"" if name == "out/base" else name.encode())
    (home / "link").symlink_to("out/log")
    monkeypatch.chdir(home)
    return home


def aged(home: Path) -> dict[str, Any]:
    """Set every time to one of long ago; what there is."""
    for path in sorted(home.rglob("*"), reverse=True):
        os.utime(path, ns=(10**18 + 1, 10**18 + 1), follow_symlinks=False)
    return state(home)


def state(home: Path) -> dict[str, Any]:
    """Kind, mode, time and content of everything below a folder."""
    found = {}
    for path in sorted(home.rglob("*")):
        kind = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(home))] = (kind.st_mode, kind.st_mtime_ns, content)
    return found


BEGIN = "putback.keep_changes(Path({kept!r}), [os.getcwd()], '--stop-after')"


def changed(kept: Path, code: str, head: str = "", begin: str = BEGIN) -> subprocess.CompletedProcess[str]:
    """Run code under the hook. `out` is a descriptor of that folder."""
    program = (
        f"import os, shutil, sqlite3\nfrom pathlib import Path\nfrom gradproof.core import putback\n"
        f"putback.WRITERS = putback.WRITERS[-1:]\n{head}\nout = os.open('out', os.O_RDONLY)\n"
        f"{begin.format(kept=str(kept))}\n{code}"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_put_back(name: str, project: Path, tmp_path: Path) -> None:
    before, kept = aged(project), tmp_path / "job" / "kept"
    kept.parent.mkdir()
    with putback.probed(kept, [str(project)]) as left:
        assert changed(kept, CHANGES[name]).returncode == 0
        assert state(project) != before
    assert state(project) == before
    assert left == []


@pytest.mark.parametrize("name", putback.PATHS)
def test_an_event_that_is_not_seen_leaves_its_mark(name: str, project: Path, tmp_path: Path) -> None:
    """The control: each row of the table is needed, and what is left of it is named where it is a file."""
    before, kept = aged(project), tmp_path / "job" / "kept"
    kept.parent.mkdir()
    with putback.probed(kept, [str(project)]) as left:
        blind = f"putback.PATHS = {{k: v for k, v in putback.PATHS.items() if k != {name!r}}}"
        assert changed(kept, CHANGES[name], blind).returncode == 0
    assert state(project) != before
    files = {key for key, (_, _, content) in {**before, **state(project)}.items() if content is not None}
    sizes = {key for key in files if before.get(key) != state(project).get(key)}
    assert bool(left) == (bool(sizes) and name != "os.chmod")


@pytest.mark.parametrize("step", ["remove", "write", "date"])
def test_where_putting_back_is_broken_the_test_is_red(
    step: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, kept = aged(project), tmp_path / "job" / "kept"
    kept.parent.mkdir()
    right = putback._put
    monkeypatch.setattr(putback, "_put", lambda now, *given: None if now == step else right(now, *given))
    with putback.probed(kept, [str(project)]):
        changed(kept, f"{CHANGES['open']}; {CHANGES['os.chmod']}; {CHANGES['shutil.rmtree']}")
    assert state(project) != before


TWICE = "from gradproof.cli.script import Twice; Twice('train.py', [], [], {kept!r}, [os.getcwd()])"


@pytest.mark.parametrize(("begin", "option"), [(BEGIN, "--stop-after"), (TWICE, "--script")])
def test_what_cannot_be_kept_is_not_changed(begin: str, option: str, project: Path, tmp_path: Path) -> None:
    before, kept = aged(project), tmp_path / "job" / "kept"
    kept.mkdir(parents=True)
    done = changed(kept, "open('out/log', 'a')", "putback.LARGE = 3", begin)
    assert "OSError" in done.stderr
    assert f"{option} puts back no file above 1 GiB: it may not be changed" in done.stderr
    assert state(project) == before


def test_what_cannot_be_put_back_is_named_and_its_copy_stays(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(project)
    kept = tmp_path / "job" / "kept"
    kept.parent.mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(putback.shutil, "copy2", full)
    monkeypatch.setattr(putback.tempfile, "tempdir", str(tmp_path))
    with putback.probed(kept, [str(project)]) as left:
        changed(kept, "open('out/log', 'w').close()")
    assert f"{project}/out/log (No space left on device)" in left
    where = Path(next(said for said in left if said.startswith("copies are in ")).removeprefix("copies are in "))
    assert b"out/log" in [file.read_bytes() for file in where.glob("*.copy") if file.is_file()]


def test_what_lies_behind_a_link_of_another_program_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, away = tmp_path / "job" / "kept", tmp_path / "away"
    kept.parent.mkdir()
    monkeypatch.setattr(putback.tempfile, "tempdir", str(tmp_path))
    with putback.probed(kept, [str(project)]) as left:
        changed(kept, "open('out/deep/er/file', 'w').close()")
        (project / "out/deep").rename(away)
        (project / "out/deep").symlink_to(away)
    assert (away / "er/file").read_bytes() == b""  # nothing is written through the link
    assert f"{project}/out/deep/er/file (its folder is reached through a new link)" in left


def test_temporary_and_cached_files_are_left_alone(project: Path, tmp_path: Path) -> None:
    kept, cache = tmp_path / "job" / "kept", tmp_path / "cache"
    kept.mkdir(parents=True)
    cache.mkdir()
    changed(kept, f"open({str(cache / 'a')!r}, 'w'); open({str(tmp_path / 'b')!r}, 'w')")
    assert putback.put_back(kept) == []
    assert (cache / "a").exists()  # below the temporary folder, and not below the project
    assert (tmp_path / "b").exists()


# -- Both at once, as a user runs it.

SCRIPT = """
import os, sys, time, torch
import helper
from pathlib import Path
from safetensors.torch import save_file
out, log = Path("out"), open("out/log", "a")
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    for _ in range(4):
        (torch.nn.functional.mse_loss(model(torch.randn(2, 3)), torch.randn(2, 1)) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, file=log, flush=True)
    torch.save(model.state_dict(), out / "ckpt.pt")
    torch.save(model.state_dict(), out / f"ckpt-{step}.pt")
    save_file(model.state_dict(), out / "model.safetensors")
    if sys.argv[1:] == ["wait"]:
        print("changed", flush=True)
        time.sleep(600)
    if sys.argv[1:] == ["fail"]:
        raise RuntimeError("by itself")
"""


def started(*words: str) -> subprocess.Popen[str]:
    Path("train.py").write_text(SCRIPT)
    Path("helper.py").write_text("")
    command = [sys.executable, "-m", "gradproof", "watch", "--stop-after", "2", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_probe_decides_and_leaves_no_mark(project: Path, tmp_path: Path) -> None:
    process = started("--format", "json", "--out", str(tmp_path / "found.json"), "--", "python", "train.py")
    before = aged(project)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "train.py was stopped after window 2; gradproof ends with 0" in err
    assert "not put back" not in err
    assert state(project) == before
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["outcome"], found["config"]["stopped_after"]) == ("HOLDS", 2)


def test_a_failure_of_the_scripts_own_stays_one(project: Path) -> None:
    process = started("--", "python", "train.py", "fail")
    before = aged(project)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "RuntimeError: by itself" in err
    assert "the script failed" in err
    assert state(project) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_probe_that_is_killed_leaves_no_mark(project: Path, number: int) -> None:
    process = started("--", "python", "train.py", "wait")
    before = aged(project)
    assert process.stdout is not None
    assert process.stdout.readline() == "changed\n"
    assert state(project) != before
    process.send_signal(number)
    if number == signal.SIGINT:  # a terminal sends it to both
        child = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
        os.kill(int(child.split()[0]), number)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert state(project) == before


# -- A checkpoint in a recorded window.


@pytest.mark.parametrize("known", [True, False])
def test_saving_loses_no_value(known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: where the files that save are not known, a storage is lost."""
    if not known:
        monkeypatch.setattr(locations, "SERIALIZERS", ("nowhere.py",))
    with ScriptWatch(4) as watch:
        monkeypatch.setattr(torch.nn.Linear, "forward", saved(tmp_path))
        train(4)
    assert (watch.verification().outcome is Outcome.HOLDS) == known


def saved(folder: Path) -> Any:
    """A forward pass that saves its weights as well."""
    forward = torch.nn.Linear.forward

    def call(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        torch.save(self.state_dict(), folder / "ckpt.pt")
        return forward(self, x)

    return call
