"""Pictures for the documentation, each of a real run: `python -m tests.screenshots`, or `make screenshots`. Minutes.

docs/shots has the pictures. shots.json beside them says of each what was run and which text it shows, without what is
another one in each run: seconds, times, versions, digests and temporary folders. `tests/docs/test_docs_shots.py` runs
some of the commands again; a picture whose text has changed since is stale. It needs the `docs` extra and Chromium.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from dataclasses import asdict, dataclass, field
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.text import Text

from gradproof import __version__
from gradproof.extras.selftest import LOOP, RIGHT, WRONG
from tests.tutorial import TUTORIAL, blocks

REPOSITORY = Path(__file__).resolve().parents[1]
SHOTS = REPOSITORY / "docs" / "shots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
COLUMNS, ROWS = 100, 60
WIDE, PHONE = (1280, 900), (400, 900)
MOST, IN_ALL = 150_000, 1_000_000
"""Bytes of a picture, and of all of them."""
IMPORTS = "import torch\nfrom torch import nn\n\nimport gradproof"
FUNCTION = """def train(run):
    torch.manual_seed(run.seed)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(run.samples, 16), torch.randn(run.samples, 1)
    for i, (x, y) in enumerate(zip(inputs.split(run.micro_batch_size), targets.split(run.micro_batch_size))):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
CELL = """model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, labels = torch.randn(64, 16), torch.randn(64, 1)
with gradproof.watch() as run:
    for i, (x, y) in enumerate(zip(data.split(4), labels.split(4))):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
CHECK = "gradproof.check(train, accum_steps=4)"
NOTEBOOKS = {
    "light": [IMPORTS, FUNCTION.replace("(loss / run.accum_steps)", "loss"), CHECK],
    "dark": [IMPORTS, CELL.replace("(loss / 4)", "loss") + "run"],
}
"""The cells of the notebook that is shown in each theme of JupyterLab."""
VARIES = {
    r"\x1b\[[0-9;]*m": "", r"\d+ min \d\d s|\b\d+(\.\d+)? s\b": "_ s", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC": "_",
    r"\bIn\[\d+\]": "In[_]",
    r"\b(python|torch|z3|gradproof) \d[^\s,]*": r"\1 _", r"/[^\s:]*/(?=first-gate)": "", r"\b[0-9a-f]{12,16}\b": "_",
}  # fmt: skip
"""What differs between two runs of one command, and what stands for it."""


@dataclass
class Shot:
    """A picture: what was run, and the lines of its text."""

    command: str
    lines: list[str]
    gradproof: str = field(default=__version__)


def steady(text: str) -> list[str]:
    """The lines of a text without what each run has otherwise, and without the spaces that lay it out."""
    for pattern, stands in VARIES.items():
        text = re.sub(pattern, stands, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def lines_of_page(page: str) -> list[str]:
    """The text of an HTML page, a line for each block; what is folded is not shown."""
    page = re.sub(r"<(style|script|head|details)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(p|h\d|li|div|tr|pre|figcaption|text|article|section)\b[^>]*>", "\n", page)
    return steady(unescape(re.sub(r"<[^>]+>", " ", page)))


def of_site() -> list[str]:
    """What the first page of the site shows: the parts of its navigation, and the headings of docs/index.md."""
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    parts = re.findall(r"^  - ([\w ]+):$", nav, re.MULTILINE)
    index = (REPOSITORY / "docs/index.md").read_text(encoding="utf-8")
    return parts + re.findall(r"^#+ (.*)$", index, re.MULTILINE)


def environ() -> dict[str, str]:
    """Of a user at a terminal, whose Python imports gradproof from here."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONWARNINGS": "ignore"}


def ran(folder: Path, command: str, code: int, terminal: bool = False) -> str:
    """What a command prints on stdout, in a pipe or on a terminal. Raises RuntimeError for another exit code.

    `watch` prints its verdict on stderr, because stdout is the script's.
    """
    called = [sys.executable, "-m", *command.split()]
    ours, theirs = pty.openpty() if terminal else (0, subprocess.PIPE)
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    err = theirs if terminal and " watch " in command else subprocess.PIPE
    child = subprocess.Popen(called, cwd=folder, env=environ(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=err)
    if terminal:
        os.close(theirs)
        said = b"".join(iter(lambda: _read(ours), b""))
        os.close(ours)
    else:
        assert child.stdout is not None
        said = child.stdout.read()
    beside = child.communicate(timeout=600)[1] or b""
    if child.returncode != code:
        raise RuntimeError(f"{command} ended with {child.returncode}: {said.decode()}{beside.decode()}")
    return said.decode().replace("\r\n", "\n")


def _read(end: int) -> bytes:
    try:
        return os.read(end, 1 << 16)
    except OSError:  # of a terminal that its last process has left
        return b""


def drawing(command: str, said: str) -> str:
    """A terminal with a command and what it said, as SVG. No font is loaded from anywhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ {command}\n{said}".rstrip()))
    svg = console.export_svg(title="", unique_id="shot")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


class Album:
    """Pictures in a folder, and what is known of each."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch, self.shots = folder, scratch, dict[str, Shot]()
        folder.mkdir(parents=True, exist_ok=True)

    def terminal(self, name: str, folder: Path, command: str, code: int) -> None:
        """A command on a terminal."""
        said = ran(folder, command, code, terminal=True)
        (self.folder / f"{name}.svg").write_text(drawing(command, said), encoding="utf-8")
        self._add(f"{name}.svg", command, steady(said))

    def page(self, name: str, command: str, address: str, size: tuple[int, int], dark: bool, lines: list[str]) -> None:
        """A page in a browser that asks no other host for anything."""
        from PIL import Image

        made = self.scratch / f"{name}.png"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += [
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={self.scratch / name}",
        ]
        flags += [f"--window-size={size[0]},{size[1]}", f"--blink-settings=preferredColorScheme={int(not dark)}"]
        flags += ["--virtual-time-budget=5000", f"--screenshot={made}"]
        subprocess.run([browser(), *flags, address], capture_output=True, timeout=120, check=True)
        with Image.open(made) as image:
            small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            small.save(self.folder / f"{name}.png", optimize=True)
        self._add(f"{name}.png", command, lines)

    def _add(self, name: str, command: str, lines: list[str]) -> None:
        print(f"{name}: {(self.folder / name).stat().st_size:,} bytes", file=sys.stderr)
        self.shots[name] = Shot(command, lines)

    def close(self) -> None:
        """Write what is known of the pictures; take away those that are not made any more."""
        known = {name: asdict(shot) for name, shot in sorted(self.shots.items())}
        text = json.dumps(known, indent=1, ensure_ascii=False)
        (self.folder / "shots.json").write_text(f"{text}\n", encoding="utf-8")
        for path in self.folder.iterdir():
            if path.name not in {*known, "shots.json"}:
                path.unlink()


def browser() -> str:
    """A browser. Raises RuntimeError where none is installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise RuntimeError(f"no browser is here: none of {', '.join(BROWSERS)}")
    return found


def loop(folder: Path, right: bool = False) -> Path:
    """A folder with the loop of README.md as train.py."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(LOOP.replace(WRONG, RIGHT) if right else LOOP, encoding="utf-8")
    return folder


RED = "gradproof check train.py:train"
PAGE = f"{RED} --format html"


def checks(album: Album) -> None:
    """`demo`, `check` and `watch` on a terminal, and the page of a refutation."""
    home = loop(album.scratch / "loop")
    album.terminal("demo", home, "gradproof demo", 0)
    album.terminal("check-red", home, RED, 1)
    page = album.scratch / "check.html"
    page.write_text(ran(home, PAGE, 1), encoding="utf-8")
    lines = lines_of_page(page.read_text(encoding="utf-8"))
    for name, size, dark in (("light", WIDE, False), ("dark", WIDE, True), ("phone", PHONE, False)):
        album.page(f"page-{name}", PAGE, page.as_uri(), size, dark, lines)
    album.terminal("check-green", loop(home, right=True), RED, 0)
    text = (REPOSITORY / "docs/index.md").read_text(encoding="utf-8").partition("## A first verdict")[2]
    (home / "train.py").write_text(next(b.text for b in blocks(text) if b.kind == "python"), encoding="utf-8")
    album.terminal("watch-red", home, "gradproof watch -- python train.py", 1)


def gates(album: Album) -> None:
    """`verify` of the tutorial's workspace before and after the fix, and the page over all contracts."""
    home = album.scratch / "first-gate"
    home.mkdir()
    page = blocks(TUTORIAL.read_text(encoding="utf-8"))
    (home / "train.py").write_text(next(b.text for b in page if b.kind == "python"), encoding="utf-8")
    ran(home, "gradproof init --loop train.py:train --accum-steps 2 --ci none", 0)
    for name, code, size, dark in (("red", 1, WIDE, False), ("green", 0, WIDE, True)):
        if name == "green":
            text = (home / "train.py").read_text(encoding="utf-8")
            (home / "train.py").write_text(text.replace(WRONG, RIGHT), encoding="utf-8")
        album.terminal(f"verify-{name}", home, "gradproof verify", code)
        index = home / "reports/index.html"
        lines = lines_of_page(index.read_text(encoding="utf-8"))
        album.page(f"gate-{name}", "gradproof verify", index.as_uri(), size, dark, lines)


def notebooks(album: Album) -> None:
    """A notebook that a kernel of this Python has run, in both themes."""
    import nbclient
    from nbconvert import HTMLExporter
    from nbformat.v4 import new_code_cell, new_notebook

    os.environ |= environ()
    for theme, cells in NOTEBOOKS.items():
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
        shown = "".join(o.get("data", {}).get("text/html", "") for o in notebook.cells[-1].outputs)
        page = album.scratch / f"notebook-{theme}.html"
        page.write_text(HTMLExporter(theme=theme).from_notebook_node(notebook)[0], encoding="utf-8")
        command = cells[-1].partition("\n")[0] if theme == "light" else "with gradproof.watch() as run:"
        album.page(f"notebook-{theme}", command, page.as_uri(), (1000, 1100), False, lines_of_page(shown))


def site(album: Album) -> None:
    """The first page of the site."""
    out = album.scratch / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    subprocess.run(command, cwd=REPOSITORY, env={**environ(), "NO_MKDOCS_2_WARNING": "1"}, timeout=600, check=True)
    handler = partial(Silent, directory=str(out))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:  # a page that is opened as a file has no search
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/index.html"
        for name, size, dark in (("light", WIDE, False), ("dark", WIDE, True), ("phone", PHONE, False)):
            album.page(f"site-{name}", "make site", address, size, dark, of_site())
        server.shutdown()


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def main() -> int:
    """Make all pictures. Exit code 2 where something that it needs is not installed; then nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=SHOTS, help="folder of the pictures; others in it are deleted")
    out = parser.parse_args().out.resolve()
    missing = [name for name in ("PIL", "ipykernel", "material", "nbconvert", "torch") if find_spec(name) is None]
    if missing or not any(map(shutil.which, BROWSERS)):
        print(f"not installed: {', '.join(missing) or 'a browser'}; install the docs extra, and Chromium")
        return 2
    with tempfile.TemporaryDirectory(prefix="gradproof-shots-") as folder:
        album = Album(out, Path(folder))
        for part in (checks, gates, notebooks, site):
            part(album)
        album.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
