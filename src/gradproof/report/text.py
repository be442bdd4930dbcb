"""Numbers, times and identifiers in the form that people read. Units: seconds, dimensionless errors."""

from __future__ import annotations

import html
import json
import linecache
import math
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import reference

if TYPE_CHECKING:
    from rich.console import Console

ABSENT = "none"
# Control characters, those that steer the direction of text, and lone surrogates.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CELL = re.compile(r"(?:[^\s:]*/)?(\d+\.py|<ipython-input-[^>\s]+>):(\d+)")


def clean(text: object) -> str:
    """`text` without what a terminal would obey: every control character except newline and tab is made visible."""
    shown = _CELL.sub(_cell, str(text)) if "IPython" in sys.modules else str(text)
    return _UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", shown)


def _cell(found: re.Match[str]) -> str:
    """A line of a cell of this notebook, as IPython names it in tracebacks; any other line as it is."""
    shell = sys.modules["IPython"].get_ipython()
    files = [file for file in list(linecache.cache) if shell and file.endswith(found[1])]
    known = next(filter(None, map(shell.compile.format_code_name, files)), None) if files else None
    return f"cell {known[1]}, line {found[2]}" if known else found[0]


def one_line(text: object) -> str:
    """`clean` text with each run of white space made one space."""
    return " ".join(clean(text).split())


def near(path: object) -> str:
    """A path below the working directory without it; another as it is."""
    try:
        return str(Path(str(path)).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


def first_words(text: str, most: int) -> str:
    """The text in one line, or its first words and dots, in at most so many characters."""
    return textwrap.shorten(text, most, placeholder=" ...", break_on_hyphens=False)


def sci(x: float | None) -> str:
    """At most three significant digits: 0, 0.25, 1.28e-3. None is "none"; NaN and infinity are named."""
    if x is None:
        return ABSENT
    if math.isnan(x):
        return "not a number"
    if math.isinf(x):
        return "infinite" if x > 0 else "-infinite"
    if x == 0:
        return "0"
    if 0.01 <= abs(x) < 999.5:
        return f"{x:.3g}"
    mantissa, _, exponent = f"{x:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def ratio(x: float | None) -> str:
    """Measured over proven, with as many digits as it takes to stay on its own side of 1."""
    if x is None or not math.isfinite(x):
        return sci(x)
    for digits in range(3, 18):
        text = f"{x:.{digits}g}"
        if (float(text) > 1) == (x > 1):
            return text if digits > 3 else sci(x)
    return repr(x)


def seconds(x: float | None) -> str:
    """A duration: 0.42 s, 12.3 s, 2 min 05 s."""
    if x is None:
        return ABSENT
    if x >= 60:
        minutes, rest = divmod(round(x), 60)
        return f"{minutes} min {rest:02d} s"
    return f"{x:.2f} s" if x < 10 else f"{x:.1f} s"


def when(text: str | None) -> str:
    """An ISO time as 2025-11-21 08:05:02 UTC; text that is no time stays as it is."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return text or ABSENT
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment.tzinfo else str(text)


def sentence(text: object) -> str:
    """`text` with one full stop at its end."""
    words = one_line(text)
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."


def value(text: object, limit: int = 32) -> str:
    """A concrete number; a long fraction or decimal as three digits with "≈", other long text cut with "…"."""
    words = one_line(text)
    if len(words) <= limit:
        return words
    try:
        exponent = "e" in words.lower()  # as a fraction, 1e999999999 has a thousand million digits
        return f"≈ {sci(float(words) if exponent else float(Fraction(words)))}"
    except (ValueError, ZeroDivisionError, OverflowError):
        return f"{words[: limit - 1]}…"


def counted(items: Iterable[str]) -> str:
    """Distinct words in order of appearance with their counts: "HOLDS ×3, TIMEOUT"."""
    return ", ".join(word if count == 1 else f"{word} ×{count}" for word, count in Counter(items).items())


def plural(count: int, noun: str) -> str:
    """1 check, 2 checks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def anchor(prefix: str, name: str) -> str:
    """An HTML id, different for different names."""
    kept = (ch if ch.isascii() and (ch.isalnum() or ch in ".-") else f"_{ord(ch):x}_" for ch in name)
    return f"{prefix}-{''.join(kept)}"


def compact(value: Any, limit: int = 240) -> str:
    """One value of a free mapping as short text."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = sci(value)
    elif isinstance(value, list) and all(isinstance(v, str | int) for v in value):
        text = ", ".join(str(v) for v in value)
    elif isinstance(value, dict | list):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = ABSENT if value is None else str(value)
    text = one_line(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def grouped(ids: Iterable[str]) -> list[str]:
    """Check ids with a shared head written once: FALSIFY-GA-001@cpu-fp32 and @cpu-bf16 become one entry."""
    tails: dict[str, list[str]] = {}
    for name in ids:
        head, _, tail = name.partition("@")
        tails.setdefault(head, []).extend([tail] if tail else [])
    return [f"{head} @ {', '.join(rest)}" if rest else head for head, rest in tails.items()]


def heads(ids: Iterable[str]) -> str:
    """Check ids without device and dtype, counted: "KANI-GA-001, FALSIFY-GA-001 ×7"."""
    return counted(name.partition("@")[0] for name in ids)


GLOSSARY, ERRORS = "docs/glossary.md", "docs/errors.md"
"""Tables of words of outputs and docs, several with one meaning by commas, with an example; and of error codes."""


@cache
def rows_of(page: str) -> dict[str, tuple[str, str]]:
    """The first cells of a table of three columns with both others, from a page beside the reference workspace."""
    root = reference()
    lines = [] if root is None else (root / page).read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {first: (second, third) for first, second, third in rows if first not in ("word", "code")}


def glossary() -> dict[str, tuple[str, str]]:
    """The words with meaning and example."""
    return rows_of(GLOSSARY)


def error_codes() -> dict[str, tuple[str, str]]:
    """Every stable error code: what it means and what to do."""
    return rows_of(ERRORS)


# -- Markdown of GitHub's dialect, and how it is shown.
_SPECIAL = re.compile(r"([\\`*|~\[\]$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ESCAPED = re.compile(r"\\(.)")


def escape(text: object) -> str:
    """`text` on one line, with nothing left that Markdown or HTML would read."""
    words = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", words)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, or the word "none" where there is no row."""
    body = [f"| {' | '.join(escape(value) for value in row)} |" for row in rows]
    if not body:
        return "None."
    return "\n".join([f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}", *body])


def bullets(items: Iterable[object]) -> str:
    """A list, or the word "none"."""
    return "\n".join(f"- {escape(item)}" for item in items) or "None."


def plain(text: str) -> str:
    """Markdown without its escapes and bold type; what stands between fences stays as it is."""
    parts = text.replace("**", "").split("```")
    return "```".join(part if i % 2 else html.unescape(_ESCAPED.sub(r"\1", part)) for i, part in enumerate(parts))


def draw(text: str, console: Console) -> None:
    """Print Markdown; where it goes to no terminal, as plain text of which nothing is wrapped."""
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        console.file.write(plain(text))


# -- A few lines on a terminal or in a pipe.


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a label with a style, and a text.

    `firm`: it is never cut; `short`: what may stand in its place; `source`: it keeps its spaces.
    """

    text: str
    label: str = ""
    style: str = "bold"
    indent: int = 0
    firm: bool = False
    source: bool = False
    short: Line | None = None

    def rows(self, width: int) -> list[str]:
        """What a terminal of this width shows."""
        body, start = f"{self.label}{self.text}", " " * self.indent
        if self.source:
            return [start + body]
        wrapper = textwrap.TextWrapper(width, start, f"{start}  ", break_long_words=False, break_on_hyphens=False)
        return wrapper.wrap(body) or [""]

    def height(self, width: int) -> int:
        """How many lines of a terminal it takes."""
        return sum(math.ceil(len(row) / width) or 1 for row in self.rows(width))

    def cut(self, rows: int, width: int) -> Line:
        """The same in as many rows, cut after a word; in one, cut anywhere, where a word is longer than the rows."""
        room = " ".join(row.strip() for row in self.rows(width)[:rows])[len(self.label) : -1]
        made = replace(self, text=f"{room.rpartition(' ')[0].rstrip(' ,;:')} …")
        most = width - self.indent - len(self.label) - 2
        return made if made.height(width) <= rows else replace(self, text=f"{self.text[:most].rstrip()} …")


def printed(lines: Iterable[Line], console: Console) -> None:
    """Print lines; on a terminal wrapped at words, elsewhere a sentence a line."""
    from rich.text import Text

    width = console.width if console.is_terminal else 1 << 20
    for line in lines:
        drawn = Text("\n".join(row[: width if line.source else None] for row in map(clean, line.rows(width))))
        drawn.rstrip()
        drawn.stylize(line.style or "default", line.indent, line.indent + len(line.label.rstrip()))
        console.print(drawn, soft_wrap=True)


# -- Reports as files: the renderer of each format, and what happens where a file cannot be written.


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises GradproofError GP450 for a report that cannot be written."""
    try:
        yield
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror or error}"
        raise GradproofError("GP450", found, "a folder of reports with room", "free the disk or its rights") from error


RENDERERS = {"json": "consistency:as_json", "md": "formats.markdown:render", "html": "formats.html:render"}


def rendering(name: str) -> Callable[[Mapping[str, Any]], str]:
    """The renderer of a format: json, md or html. Its module is imported when it is first asked for."""
    renderer: Callable[[Mapping[str, Any]], str] = resolve_name(f"gradproof.report.{RENDERERS[name]}")
    return renderer
