"""The page in a real browser, headless: filters, links into folded parts, both colour schemes, and no other request."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import report_sample as sample
from test_index import drawn
from test_page import broken, rounded
from test_render_page import CSS, Page

from gradproof.report import text as fmt
from gradproof.report.formats import html, page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser is here: none of {', '.join(NAMES)}")

RED = sample.red()
PAGE = html.render(RED)
FOUND = broken()
FOUND.results[0].reason = "a_word_that_is_longer_than_a_narrow_screen_" * 4
PAGES = {"/step": page.of_step(FOUND), "/rounded": page.of_step(rounded()), "/index": drawn(RED, sample.green())}
JUPYTER = """<style>
.jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; padding: 0; }
.jp-OutputArea-output dd { float: left; width: 80%; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon :is(th, td, tr) { text-align: right; vertical-align: middle; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: white; }
.jp-RenderedHTMLCommon ul:not(.list-inline) { padding-left: 2em; }
</style>"""
"""What JupyterLab's style sheet says of the elements of an output."""
MEASURED = """<script>
const style = (name) => getComputedStyle(document.querySelector(name));
const label = document.querySelector(".gradproof dt").getBoundingClientRect().width;
const cell = [style(".gradproof td").textAlign, style(".gradproof tbody tr").backgroundColor];
document.body.dataset.said = [label > 90, ...cell, style(".gradproof .plain").paddingLeft];
</script>"""
NOTEBOOKS = {
    f"/notebook-{light}": f'<!doctype html><body data-jp-theme-light="{light}" style="margin: 0">{JUPYTER}<div class="'
    f'jp-RenderedHTMLCommon jp-OutputArea-output">{page.body(rounded())}</div>{MEASURED}'
    for light in ("true", "false")
}
"""A verification as JupyterLab shows it in its light and in its dark theme."""
BLIND = PAGE.replace('"use strict";', '"use strict"; ', 1)  # its digest is no longer the one that the page allows
OUTCOME, FOLDED = "BROKEN", "KANI-GA-001"


class Served:
    """Pages on this machine alone, and the paths that were asked for."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.pages, self.asked = pages, list[str]()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.partition("?")[0]
                served.asked.append(name)
                found = served.pages.get(name)
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write((found or "").encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is logged."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served({"/red": PAGE, "/blind": BLIND, "/frames": FRAMES, **PAGES, **NOTEBOOKS})
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def browse(folder: Path, address: str, *flags: str) -> tuple[str, str]:
    """What the browser prints on stdout and stderr. Fails the test when it does not end well within a minute."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    command += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}", *flags, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def shown(dom: str) -> list[str]:
    """Ids of the rows of checks that are not hidden."""
    rows = Page(dom).all("tbody")
    return [r["id"] for r in rows if "check" in r.get("class", "").split() and "hidden" not in r]


def bar(dom: str) -> dict[str, str]:
    return next(a for a in Page(dom).all("div") if a.get("id") == "filters")


def test_filters_of_the_address_narrow_the_checks_and_nothing_else_is_asked_for(served: Served, tmp_path: Path) -> None:
    served.asked.clear()
    address = f"{served.address}/red?outcome={OUTCOME}&layer=cpu&text=transformer"
    dom, said = browse(tmp_path, address, "--dump-dom")
    wanted = [c["id"] for c in RED["checks"] if c["effect"] == OUTCOME and c["layer"] == "cpu"]
    assert len(wanted) == 1
    assert shown(dom) == [fmt.anchor("check", name) for name in wanted]
    assert f"1 of {len(RED['checks'])} checks shown" in dom
    assert "hidden" not in bar(dom)
    assert set(served.asked) <= {"/red", "/favicon.ico"}
    assert "Content Security Policy" not in said


def test_a_link_opens_what_is_folded_and_takes_filters_off(served: Served, tmp_path: Path) -> None:
    target = fmt.anchor("check", FOLDED)
    dom, _ = browse(tmp_path, f"{served.address}/red?outcome={OUTCOME}#{target}", "--dump-dom")
    assert len(shown(dom)) == len(RED["checks"])
    row = dom.partition(f'id="{target}"')[2].partition("</tbody>")[0]
    assert re.search(r'<details class="holds" open', row)
    assert not re.search(r'<details class="holds" open', PAGE)


def test_no_other_script_runs_and_the_page_is_whole_without_one(served: Served, tmp_path: Path) -> None:
    dom, said = browse(tmp_path, f"{served.address}/blind?outcome={OUTCOME}", "--dump-dom")
    assert "Content Security Policy" in said
    assert "hidden" in bar(dom)
    assert len(shown(dom)) == len(RED["checks"])


FRAMES = f"""<!doctype html><body><script>
for (const page of {["/red", *PAGES]}) for (const width of [400, 1280]) {{
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  frame.src = page;
  frame.onload = () => {{
    const inner = frame.contentDocument.documentElement;
    frame.dataset.said = `${{page}} ${{inner.clientWidth > width - 30}} ${{inner.scrollWidth - inner.clientWidth}}`;
  }};
  document.body.append(frame);
}}
</script>"""
"""Each page in a frame of a phone's width and of a screen's. A frame says how much of it has to be scrolled to."""


def test_nothing_is_scrolled_to_the_side(served: Served, tmp_path: Path) -> None:
    dom, _ = browse(tmp_path, f"{served.address}/frames", "--virtual-time-budget=5000", "--dump-dom")
    said = re.findall(r'data-said="([^"]*)"', dom)
    assert sorted(said) == sorted(f"{page} true 0" for page in ("/red", *PAGES) for _ in range(2))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["1", "0"], ids=["light", "dark"])
def test_a_page_is_light_or_dark_as_preferred(served: Served, tmp_path: Path, scheme: str, name: str) -> None:
    image = tmp_path / "page.png"
    flags = ["--window-size=900,700", f"--screenshot={image}", f"--blink-settings=preferredColorScheme={scheme}"]
    browse(tmp_path, f"{served.address}{name}", *flags)
    assert first_pixel(image.read_bytes()) == {"1": "fbfaf8", "0": "131518"}[scheme]


@pytest.mark.parametrize(("light", "scheme", "paper"), [("true", "0", "fbfaf8"), ("false", "1", "131518")])
def test_in_a_notebook_its_theme_decides(served: Served, tmp_path: Path, light: str, scheme: str, paper: str) -> None:
    image = tmp_path / "page.png"
    flags = ["--window-size=900,700", f"--screenshot={image}", f"--blink-settings=preferredColorScheme={scheme}"]
    browse(tmp_path, f"{served.address}/notebook-{light}", *flags)
    assert first_pixel(image.read_bytes()) == paper


def test_the_style_of_a_notebook_does_not_break_the_page(served: Served, tmp_path: Path) -> None:
    dom, _ = browse(tmp_path, f"{served.address}/notebook-true", "--window-size=900,700", "--dump-dom")
    assert re.search(r'data-said="([^"]*)"', dom)[1] == "true,left,rgba(0, 0, 0, 0),0px"


@pytest.mark.parametrize(("scheme", "place"), [("1", 0), ("0", 1)], ids=["light", "dark"])
def test_the_paper_is_of_the_scheme_that_is_preferred(served: Served, tmp_path: Path, scheme: str, place: int) -> None:
    image = tmp_path / "page.png"
    flags = ["--window-size=900,700", f"--screenshot={image}", f"--blink-settings=preferredColorScheme={scheme}"]
    browse(tmp_path, f"{served.address}/red", *flags)
    paper = re.findall(r"--paper: #([0-9a-f]{6})", CSS)[place]
    assert first_pixel(image.read_bytes()) == paper


def first_pixel(png: bytes) -> str:
    """rrggbb of the upper left corner: no filter of PNG changes the first pixel of the first row."""
    data, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(data)[1:4].hex()
