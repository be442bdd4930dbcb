"""What MkDocs does with a page of docs/ before it renders it: `hooks` of mkdocs.yml.

The pages link to files of the repository, as a reader of the checkout needs it. A site has only its own pages. So the
schemas of reports/ become files of the site, and a link to any other file becomes the path of that file. A flowchart
of Mermaid, which GitHub draws, becomes an SVG: Mermaid itself would be loaded from another host. Without the index of
the search as a script, the theme's own script ends where the site is opened as files, and nothing of it works.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
CHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WIDTH, ROOM, HIGH, GAP = 118, 20, 30, 28
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the JSON schemas."""
    for path in sorted((REPOSITORY / "reports").glob("*.schema.json")):
        files.append(File.generated(config, f"schemas/{path.name}", abs_src_path=str(path)))
    return files


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, which the theme asks for where the site is opened as files."""
    index = Path(config["site_dir"]) / "search/search_index.json"
    if index.is_file():
        index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links that lead out of docs/ and flowcharts, and give a block of a file the file's name as its title."""
    markdown = CHART.sub(lambda chart: drawn(re.findall(r"(\w+) --> (\w+)", chart[1])), markdown)
    return OUTSIDE.sub(_inside, NAMED.sub(r'```\1 title="\2"', markdown))


def _inside(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    if path.startswith("reports/") and path.endswith(".schema.json"):
        return f"[{text}](schemas/{PurePosixPath(path).name})"
    if text.strip("`") in path:
        return f"`{path}`"
    return f"{text} (`{path}`)"


def drawn(arrows: list[tuple[str, str]]) -> str:
    """An SVG of boxes in rows: each box stands below all that point to it. Raises ValueError for arrows in a circle."""
    names = list(dict.fromkeys(name for arrow in arrows for name in arrow))
    depth = dict.fromkeys(names, 0)
    for _ in names:
        for above, below in arrows:
            depth[below] = max(depth[below], depth[above] + 1)
    if any(depth[below] <= depth[above] for above, below in arrows) or max(depth.values()) >= len(names):
        raise ValueError("arrows in a circle")
    rows = [[name for name in names if depth[name] == row] for row in range(max(depth.values()) + 1)]
    wide = max(map(len, rows)) * (WIDTH + ROOM)
    middle = {
        name: (int((i + 0.5) * wide / len(row)), number * (HIGH + GAP) + HIGH // 2 + 1)
        for number, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    lines = [
        f'<line x1="{x}" y1="{y + HIGH // 2}" x2="{u}" y2="{v - HIGH // 2}"/>'
        for (x, y), (u, v) in ((middle[a], middle[b]) for a, b in arrows)
    ]
    boxes = [
        f'<rect x="{x - WIDTH // 2}" y="{y - HIGH // 2}" width="{WIDTH}" height="{HIGH}" rx="4"/>'
        f'<text x="{x}" y="{y + 4}" text-anchor="middle" fill="currentColor" stroke="none">{name}</text>'
        for name, (x, y) in middle.items()
    ]
    size = f'viewBox="0 0 {wide} {len(rows) * (HIGH + GAP)}" style="max-width: {wide}px"'
    pen = 'stroke="currentColor" fill="none" font-size="12" role="img" aria-label="which package imports which"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {pen}>{"".join(lines + boxes)}</svg>'
