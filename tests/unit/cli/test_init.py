"""`gradproof init`: what it writes, what it refuses, and that it writes all or nothing."""

from __future__ import annotations

import ast
import errno
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradproof import __version__
from gradproof.cli import cli, dispatch, init as starting
from gradproof.contract.model import load
from gradproof.core.files import replace_whole
from gradproof.execution.methods.user_loop import BUGS

ROOT = Path(__file__).resolve().parents[3]
LOOP = "def train(run):\n    return []\n\n\ndef other(run):\n    return []\n"
WRITTEN = {
    "models/__init__.py", "models/loop.py", "symbolic/__init__.py", "symbolic/loop.py", "reports/.gitignore",
    "proofs/train-accumulation-v1/contract.yaml", ".github/workflows/gradproof.yml",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a loop, as the current folder."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and its bytes."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a refused call says; nothing was written."""
    before = tree(Path())
    assert dispatch(["init", *args]) == 2
    assert tree(Path()) == before
    return capsys.readouterr().err


def test_the_files_and_the_next_commands(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["init", "--loop", "train.py:train"]) == 0
    assert set(tree(home)) == WRITTEN | {"train.py"}
    stated = capsys.readouterr().out
    assert all(f"written: {name}" in stated for name in WRITTEN)
    assert "  gradproof verify\n  git add " in stated
    assert all(" " not in name and (home / name).exists() for name in stated.rpartition("git add ")[2].split())


@pytest.mark.parametrize("loop", ["train", "clipped"])
def test_the_contract_is_sound_and_every_obligation_has_a_mutant(home: Path, loop: str) -> None:
    text = "def clipped(run):\n    nn.utils.clip_grad_norm_(p, 1.0)\n"
    (home / "clipped.py").write_text(text, encoding="utf-8")
    assert dispatch(["init", "--loop", f"{loop}.py:{loop}", "--name", "c", "--accum-steps", "3", "--tail", "1"]) == 0
    contract = load(home / "proofs" / "c" / "contract.yaml")
    named = {name for row in contract.step_proofs for name in row.mutants}
    assert named == set(BUGS) - ({"not_divided"} if loop == "clipped" else set())
    for row in contract.step_proofs:
        assert {BUGS[name][0] for name in row.mutants} == set(row.named)
        assert (row.params.n, row.params.tail) == ([3], 1)
        assert [(b.name, b.value) for b in row.bounds] == [("micro_batches", 3), ("windows", 2)]
    assert contract.gate is not None
    assert {o.id for o in contract.obligations} == {n for names in contract.gate.criteria.values() for n in names}
    assert contract.gate.seeded_bug == ["first_counts_twice"]
    assert [w.code for w in contract.warnings] == []


def test_nothing_of_the_users_is_run(home: Path) -> None:
    (home / "train.py").write_text(f"raise SystemExit('run')\n{LOOP}", encoding="utf-8")
    assert dispatch(["init", "--loop", "train.py:train"]) == 0


def test_a_package_is_imported_by_its_dotted_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "src" / "mine_q1"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "fit.py").write_text(LOOP, encoding="utf-8")
    assert dispatch(["init", "check", "--loop", "src/mine_q1/fit.py:other", "--ci", "none"]) == 0
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = runpy.run_path(str(home / "check" / "models" / "loop.py"))
    assert made["loop"].__module__ == "mine_q1.fit"
    assert set(made["MUTANTS"]) == set(BUGS)
    assert made["empty"](None) is None
    for name in [n for n in sys.modules if n.startswith("mine_q1")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_link_is_named_as_a_link_because_it_may_change(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (home / "one").mkdir()
    (home / "one/fit.py").write_text(LOOP, encoding="utf-8")
    (home / "src").symlink_to("one")
    assert dispatch(["init", "--loop", "src/fit.py:other", "--ci", "none"]) == 0
    assert 'parents[1] / "src")' in (home / "models/loop.py").read_text()
    elsewhere = tmp_path_factory.mktemp("links") / "link"
    elsewhere.symlink_to(home)
    assert dispatch(["init", "--loop", f"{elsewhere}/src/fit.py:other", "--ci", "none", "--force"]) == 0
    assert 'parents[1] / "one")' in (home / "models/loop.py").read_text()


def test_it_overwrites_nothing_unless_told_to(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "symbolic").mkdir()
    (home / "symbolic" / "loop.py").write_text("mine = 1\n", encoding="utf-8")
    stated = refused(capsys, "--loop", "train.py:train")
    assert "GP470" in stated
    assert "symbolic/loop.py would be overwritten" in stated
    (home / "models").mkdir()
    (home / "models" / "__init__.py").write_text("mine = 2\n", encoding="utf-8")
    assert dispatch(["init", "--loop", "train.py:train", "--force"]) == 0
    assert (home / "symbolic" / "loop.py").read_text(encoding="utf-8") != "mine = 1\n"
    assert (home / "models" / "__init__.py").read_text(encoding="utf-8") == "mine = 2\n"


@pytest.mark.parametrize(
    ("loop", "code", "words"),
    [
        ("train.py", "GP402", "FILE.py:FUNCTION"),
        ("trian.py:train", "GP403", "perhaps train.py"),
        ("train.py:trian", "GP471", "perhaps train"),
        ("train.py:zzz", "GP471", "one of train, other"),
        ("bare.py:none", "GP472", "no argument"),
        ("bare.py:two", "GP472", "two takes run, other"),
        ("bare.py:keyword", "GP472", "keyword takes run, *, other"),
        ("bare.py:later", "GP472", "a coroutine"),
        ("bad.py:train", "GP403", "no Python"),
        ("a-b.py:train", "GP473", "rename the file"),
        ("class.py:train", "GP473", "'class'"),
        ("random.py:train", "GP473", "module of Python itself"),
        ("json.py:train", "GP473", " my_json.py"),
        ("__main__.py:train", "GP473", " my_main.py"),
        ("torch.py:train", "GP473", "package torch"),
        ("click.py:train", "GP473", "package click"),
        ("gradproof.py:train", "GP473", "package gradproof"),
        ("models.py:train", "GP473", "'models' is hidden"),
        ("symbolic.py:train", "GP473", "rename symbolic.py"),
        ("queue/fit.py:train", "GP473", " my_queue/"),
        ("mine/lambda.py:train", "GP473", "'mine.lambda'"),
        ("elsewhere/models/fit.py:train", "GP473", "rename the folder models/"),
    ],
)
def test_a_loop_that_is_none(home: Path, capsys: pytest.CaptureFixture[str], loop: str, code: str, words: str) -> None:
    bare = "def none(): ...\ndef two(run, other): ...\ndef keyword(run, *, other): ...\nasync def later(run): ...\n"
    taken = ("class", "random", "json", "__main__", "torch", "click", "gradproof", "models", "symbolic", "queue/fit",
             "queue/__init__", "mine/lambda", "mine/__init__", "elsewhere/models/fit",
             "elsewhere/models/__init__")  # fmt: skip
    for name, text in {"bare": bare, "bad": "def (\n", "a-b": LOOP, **dict.fromkeys(taken, LOOP)}.items():
        (home / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (home / f"{name}.py").write_text(text, encoding="utf-8")
    stated = refused(capsys, "--loop", loop)
    assert code in stated
    assert words in stated


@pytest.mark.parametrize("name", ["models/loop", "symbolic/loop"])
def test_the_loop_itself_is_never_overwritten(home: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Not even where that is asked for: what is written there would import itself."""
    (home / name).parent.mkdir()
    (home / f"{name}.py").write_text(LOOP, encoding="utf-8")
    stated = refused(capsys, "--loop", f"{name}.py:train", "--force")
    assert "GP473" in stated
    assert "is the loop" in stated


@pytest.mark.parametrize("name", ["models/fit", "mine/random", "scripts/fit", "match", "proofs", "reports"])
def test_names_that_hide_nothing_are_let_pass(home: Path, name: str) -> None:
    """Among them a module of models/ itself: that folder is the workspace's, and its `__init__.py` is left alone."""
    (home / f"{name}.py").parent.mkdir(exist_ok=True)
    (home / f"{name}.py").write_text(LOOP, encoding="utf-8")
    if "/" in name:
        (home / name).with_name("__init__.py").write_text("", encoding="utf-8")
    assert dispatch(["init", "--loop", f"{name}.py:train"]) == 0
    imports = "import models.loop as made; print(made.loop.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", imports], cwd=home, capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.strip() == name.replace("/", ".")


def test_other_callables_are_let_pass(home: Path) -> None:
    text = "from train import train\nagain = train\ndef more(run, clip=1.0, *, name=''): ...\ndef rest(*args): ...\n"
    (home / "names.py").write_text(text, encoding="utf-8")
    assert [starting.loop_of(f"names.py:{n}").function for n in ("train", "again", "more", "rest")] == [
        "train", "again", "more", "rest",
    ]  # fmt: skip


@pytest.mark.parametrize(("args", "code"), [(["--name", "../x"], "GP473"), (["--tail", "4"], "GP406")])
def test_words_and_numbers_that_do_not_fit(
    home: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: str
) -> None:
    assert code in refused(capsys, "--loop", "train.py:train", *args)


def test_a_folder_with_an_odd_name_breaks_no_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = 'a"b$(c)'
    assert "GP473" in refused(capsys, odd, "--loop", "train.py:train")
    (home / odd).mkdir()
    (home / odd / "fit.py").write_text(LOOP, encoding="utf-8")
    assert dispatch(["init", "--loop", f"{odd}/fit.py:train", "--ci", "none"]) == 0
    text = (home / "models" / "loop.py").read_text(encoding="utf-8")
    assert odd in {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()])
def test_all_or_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    (home / "models").mkdir()
    (home / "models" / "loop.py").write_text("mine = 1\n", encoding="utf-8")
    before, calls = tree(home), []

    def failing(path: Path, text: str) -> None:
        calls.append(path)
        if len(calls) == 4:
            raise error
        replace_whole(path, text)

    monkeypatch.setattr("gradproof.core.files.replace_whole", failing)
    assert dispatch(["init", "--loop", "train.py:train", "--force"]) == (2 if isinstance(error, OSError) else 130)
    assert len(calls) == 4
    assert tree(home) == before
    assert not (home / "proofs").exists()


# What CI reads

FILES = {"github": ".github/workflows/gradproof.yml", "gitlab": ".gitlab-ci.yml"}
SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}


def lint(kind: str, path: Path) -> int:
    """Exit code of the linter of a CI service."""
    command = [sys.executable, "-W", "ignore", "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[kind], str(path)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False).returncode


@pytest.mark.parametrize(
    ("kind", "good", "bad"), [("github", "runs-on", "runs-of"), ("gitlab", "when: always", "when: 3")]
)
def test_the_linter_passes_it_and_sees_a_mistake(home: Path, kind: str, good: str, bad: str) -> None:
    (home / "requirements.txt").write_text("torch\n", encoding="utf-8")
    assert dispatch(["init", "sub", "--loop", "train.py:train", "--ci", kind]) == 0
    path = home / FILES[kind]
    text = path.read_text(encoding="utf-8")
    assert "pip install -r requirements.txt" in text
    assert '"sub"' in text
    assert lint(kind, path) == 0
    path.write_text(text.replace(good, bad), encoding="utf-8")
    assert lint(kind, path) != 0


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_files_for_ci_use_what_there_is(home: Path) -> None:
    for kind in FILES:
        assert dispatch(["init", "--loop", "train.py:train", "--ci", kind, "--force"]) == 0
    steps = parsed(home / FILES["github"])["jobs"]["gate"]["steps"]
    assert {s["uses"].partition("/")[0] for s in steps if "uses" in s} == {"actions"}
    job = parsed(home / FILES["gitlab"])["gradproof"]
    verify = cli.get_command(None, "verify")  # type: ignore[arg-type]
    assert verify is not None
    [github] = [s["run"] for s in steps if "gradproof verify" in s.get("run", "")]
    for script in (github.partition("\n")[2].replace("\\\n", ""), job["script"][-1]):
        words = script.split()
        assert words[:2] == ["gradproof", "verify"]
        assert {w for w in words if w.startswith("--")} <= {o for p in verify.params for o in p.opts}
    assert f"junit={job['artifacts']['reports']['junit']}" in words


def test_what_is_written_for_python_is_python(home: Path) -> None:
    assert dispatch(["init", "--loop", "train.py:train"]) == 0
    for name in ("models/loop.py", "symbolic/loop.py"):
        assert ast.get_docstring(ast.parse((home / name).read_text(encoding="utf-8")))


def installing(home: Path, kind: str) -> str:
    """The line of the file for CI that installs gradproof."""
    assert dispatch(["init", "--loop", "train.py:train", "--ci", kind, "--force"]) == 0
    made = parsed(home / FILES[kind])
    scripts = (
        made["gradproof"]["script"]
        if kind == "gitlab"
        else [s["run"] for s in made["jobs"]["gate"]["steps"] if "run" in s]
    )
    [line] = [script for script in scripts if "--find-links" in script]
    return str(line)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("given", "named"),
    [("", f"gradproof=={__version__}"), ("dist/gradproof.whl", "dist/gradproof.whl"), ("git+file:///a@b", None)],
)
def test_ci_installs_the_wheel_beside_the_code_or_what_the_variable_names(
    home: Path, kind: str, given: str, named: str | None
) -> None:
    line = installing(home, kind)
    (home / "python").write_text('#!/bin/sh\necho "$@" > note\n', encoding="utf-8")
    (home / "python").chmod(0o755)
    env = {"PATH": f"{home}{os.pathsep}{os.environ['PATH']}", "GRADPROOF": given}
    subprocess.run(["bash", "-e", "-c", line], cwd=home, env=env, timeout=60, check=True)
    assert (home / "note").read_text(encoding="utf-8").split() == [
        "-P", "-m", "pip", "install", "--find-links", ".", named or given,
    ]  # fmt: skip
    if kind == "github":
        steps = parsed(home / FILES[kind])["jobs"]["gate"]["steps"]
        assert [s["env"] for s in steps if s.get("run") == line] == [{"GRADPROOF": "${{ vars.GRADPROOF }}"}]


@pytest.mark.slow
def test_ci_installs_from_a_git_address(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A real pip, a real git repository with this project's files, and no package index."""
    copy = tmp_path_factory.mktemp("origin")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True).stdout
    for name in set(names.split("\0")):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    who = ["-c", "user.name=a reader", "-c", "user.email=reader@example.org"]
    for command in (["init", "--quiet", "-b", "main"], ["add", "--all"], [*who, "commit", "-qm", "As it is"]):
        subprocess.run(["git", *command], cwd=copy, timeout=600, check=True)
    into = tmp_path_factory.mktemp("into")
    env = {
        **os.environ, "GRADPROOF": f"git+file://{copy}@main", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0", "PIP_TARGET": str(into), "PIP_CONFIG_FILE": os.devnull,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", installing(home, "github")], cwd=home, env=env, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'__version__ = "{__version__}"' in (into / "gradproof/__init__.py").read_text(encoding="utf-8")
