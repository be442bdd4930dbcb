"""The pictures of docs/: each is shown and was made by the script, and its text is still what the command prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests import screenshots
from tests.screenshots import IN_ALL, LOOP, MOST, PAGE, RED, SHOTS, drawing, lines_of_page, loop, of_site, ran, steady

DOCS = SHOTS.parent
KNOWN: dict[str, Any] = json.loads((SHOTS / "shots.json").read_text(encoding="utf-8"))
MADE = {path.name for path in SHOTS.iterdir()} - {"shots.json"}
STALE = "a picture is stale: make screenshots"


def test_each_picture_is_shown_in_a_page_and_was_made_by_the_script() -> None:
    shown = {name for page in DOCS.glob("*.md") for name in re.findall(r"\]\(shots/([^)]+)\)", page.read_text("utf-8"))}
    assert shown == MADE == set(KNOWN)
    assert all(shot["lines"] and shot["command"] for shot in KNOWN.values())


def test_pictures_are_small_and_load_nothing() -> None:
    sizes = {name: (SHOTS / name).stat().st_size for name in MADE}
    assert max(sizes.values()) <= MOST
    assert sum(sizes.values()) <= IN_ALL
    for path in SHOTS.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://[^\"\s>]+", text)) - {"http://www.w3.org/2000/svg"}
        assert hosts <= {"https://www.textualize.io"}, path  # a comment
        assert "url(http" not in text


def without_spaces(lines: Iterable[str]) -> str:
    return re.sub(r"\s", "", "".join(lines))


@pytest.mark.parametrize("name", sorted(name for name in MADE if name.endswith(".svg")))
def test_a_picture_of_a_terminal_has_the_text_that_is_known_of_it(name: str) -> None:
    drawn = re.findall(r"<text[^>]*clip-path[^>]*>([^<]*)</text>", (SHOTS / name).read_text(encoding="utf-8"))
    text = steady(unescape("".join(drawn)).replace("\xa0", " "))
    assert without_spaces(text) == without_spaces([f"$ {KNOWN[name]['command']}", *KNOWN[name]["lines"]])


def test_the_command_still_prints_what_the_picture_shows(tmp_path: Path) -> None:
    said = steady(ran(loop(tmp_path / "loop"), RED, 1, terminal=True))
    assert said == KNOWN["check-red.svg"]["lines"], STALE


@pytest.mark.slow
def test_the_page_still_says_what_the_picture_shows(tmp_path: Path) -> None:
    said = lines_of_page(ran(loop(tmp_path / "loop"), PAGE, 1))
    for name in ("page-light.png", "page-dark.png", "page-phone.png"):
        assert said == KNOWN[name]["lines"], STALE


def test_the_first_page_of_the_site_still_has_the_parts_that_are_shown() -> None:
    for name in ("site-light.png", "site-dark.png", "site-phone.png"):
        assert of_site() == KNOWN[name]["lines"], STALE


def test_another_output_makes_a_picture_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        screenshots, "LOOP", LOOP.replace("loss = ", "error = ").replace("loss.backward", "error.backward")
    )
    said = steady(ran(loop(tmp_path / "loop"), RED, 1, terminal=True))
    assert said != KNOWN["check-red.svg"]["lines"]


def test_what_each_run_has_otherwise_is_no_difference() -> None:
    one = "Made 2026-11-27 10:41:00 UTC, in 2.44 s\n\n  in \x1b[1m1 min 05 s\x1b[0m /a/first-gate/x torch 2.6.0, x"
    assert steady(one) == ["Made _, in _ s", "in _ s first-gate/x torch _, x"]
    assert lines_of_page("<p>a <b>b</b></p><style>p</style><details>c</details><li>d</li>") == ["a b", "d"]


def test_a_drawing_keeps_colours_and_loads_no_font() -> None:
    svg = drawing("gradproof", "\x1b[1;31mREFUTED\x1b[0m it")
    assert "REFUTED" in svg
    assert "font-face" not in svg
    assert len(set(re.findall(r"fill: (#\w+)", svg))) >= 2
