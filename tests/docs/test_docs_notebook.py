"""gradproof in a real Jupyter kernel: a line is named by its cell, and nothing is left after an interrupt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from tests.screenshots import CELL, CHECK, FUNCTION, IMPORTS, NOTEBOOKS, REPOSITORY, SHOTS, lines_of_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ipykernel") is None, reason="ipykernel is not installed: no kernel was started"),
]
HOLDS = "<HOLDS: train, every obligation that was judged holds (6 of 7)>"


class Shown(NamedTuple):
    """What a cell left: its page as words, its text, the error that ended it, and the page itself."""

    page: str
    text: str
    error: str
    html: str


class Notebook:
    """A kernel of this Python that runs one cell after the other. `cells`: how many it has run."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child, self.cells = child, 0

    def run(self, source: str, interrupted_after: float = 0) -> Shown:
        """Run a cell, and interrupt it after some seconds, if any; return what it left."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.cells += 1
        print(json.dumps([source, interrupted_after]), file=self.child.stdin, flush=True)
        page, text, error = json.loads(self.child.stdout.readline())
        return Shown(words(page), text, error, page)


def words(page: str) -> str:
    """A page without its style and its tags."""
    return unescape(" ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split()))


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.docs.kernel"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        made = Notebook(child)
        assert made.run(f"import time\n{IMPORTS}").error == ""
        yield made


def test_a_function_of_a_cell_is_refuted_at_its_cell(notebook: Notebook) -> None:
    cell = notebook.cells + 1
    notebook.run(FUNCTION.replace("(loss / run.accum_steps)", "loss"))
    seen = notebook.run(f"found = {CHECK}\nfound")
    assert seen.text == "<REFUTED: train, 2 of 6 obligations hold>"
    assert f"cell In[{cell}], line 7 in train 7 loss = nn.functional.mse_loss(model(x), y)" in seen.page
    assert f"✕ backward cell In[{cell}], line 8 the loss of cell In[{cell}], line 7 is at fault" in seen.page
    assert "ipykernel" not in seen.page
    told = notebook.run("found.explain()").text
    assert f"cell In[{cell}], line 7 in train: loss =" in told
    assert "ipykernel" not in told


def test_an_assertion_keeps_its_text(notebook: Notebook) -> None:
    """A rich console of a notebook displays what it is given, and writes nothing to its file."""
    seen = notebook.run(FUNCTION.replace("(loss / run.accum_steps)", "loss") + "gradproof.assert_accumulates(train)")
    assert seen.error.startswith("AssertionError: not every obligation holds")
    assert f"--> cell In[{notebook.cells}], line 7 in train" in seen.error
    assert "expected: 1/8" in seen.error
    assert seen.text == ""


def test_a_right_function_holds_and_prints_once(notebook: Notebook) -> None:
    seen = notebook.run(FUNCTION.replace("    model =", "    print('hello')\n    model =") + CHECK)
    assert HOLDS in seen.text
    assert seen.text.count("hello") == 1
    assert "HOLDS: train" in seen.page


@pytest.mark.parametrize(("wrong", "said"), [(True, "REFUTED"), (False, "HOLDS")])
def test_the_code_of_a_cell_is_watched(notebook: Notebook, wrong: bool, said: str) -> None:
    seen = notebook.run((CELL.replace("(loss / 4)", "loss") if wrong else CELL) + "run")
    assert seen.text.startswith(f"<{said}: the watched code")
    line = f"cell In[{notebook.cells}], line 7 in <module> 7 loss.backward()"
    assert (line in seen.page) is wrong
    assert "--accum-steps" not in seen.page
    assert ("Give accum_steps." in seen.page) is wrong


@pytest.mark.parametrize(
    "code",
    [
        FUNCTION.replace("    model =", "    time.sleep(99)\n    model =") + CHECK,
        CELL.replace("        (loss", "        time.sleep(99 * (i == 9))\n        (loss"),
    ],
)
def test_after_an_interrupt_nothing_is_left(notebook: Notebook, code: str) -> None:
    assert notebook.run(code, 3).error.startswith("KeyboardInterrupt")
    assert notebook.run(FUNCTION + CHECK).text == HOLDS


def test_a_cell_that_awaits_is_no_obstacle(notebook: Notebook) -> None:
    assert notebook.run(f"import asyncio\nawait asyncio.sleep(0)\n{FUNCTION}{CHECK}").text == HOLDS


def test_ranks_need_a_file(notebook: Notebook) -> None:
    seen = notebook.run(f"{FUNCTION}gradproof.check(train, ranks=2)")
    assert seen.error.startswith("GradproofError: GP406")
    assert "no other process can import a notebook's" in seen.error
    assert seen.text == ""


@pytest.mark.parametrize("theme", NOTEBOOKS)
def test_the_notebooks_of_the_pictures_still_show_what_they_showed(notebook: Notebook, theme: str) -> None:
    known = json.loads((SHOTS / "shots.json").read_text(encoding="utf-8"))[f"notebook-{theme}.png"]
    shown = [notebook.run(cell) for cell in NOTEBOOKS[theme]][-1]
    assert lines_of_page(shown.html) == known["lines"], "a picture is stale: make screenshots"
