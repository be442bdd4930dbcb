"""The report as one self-contained HTML page: no external resource, everything escaped, and all of it without a script.

The one script filters the checks and opens what a link points at. The page's own policy names it by its digest, so a
browser runs no other.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradproof import __version__
from gradproof.core.outcome import EXIT_CODE, EXIT_MEANING, MEANING, Effect, Layer, Outcome
from gradproof.report import charts, rounding, stories, text as fmt, views
from gradproof.report.consistency import Report, effect_of, exceeds, require, required_ids

HERE = Path(__file__).resolve().parent
MANY = 150  # checks up to which a page is tried in full
MOST = 1_000_000  # bytes of a page that is not the least
TERMS = (
    "obligation", "window", "micro-batch", "full batch", "effective batch", "tail", "rounding", "gate", "profile",
    "discharged", "required", "optional", "check", "evidence", "mutant", "waiver", "all inputs", "bounded", "sampled",
    "chosen values", "counterexample", "HOLDS", "REFUTED", "UNKNOWN", "NOT_RUN", "TIMEOUT", "OPAQUE", "OUTSIDE",
    "SPURIOUS", "WEAK", "vacuous", "BOUND_HIT", "ERROR",
)  # fmt: skip
"""Words that a page explains, as docs/glossary.md does, below the paragraph that uses one first."""
FULL, BRIEF, LEAST = 2, 1, 0  # how much is shown of what is discharged; of the rest everything is reported


def _finalize(value: Any) -> Any:
    """None reads "none"; control characters are made visible; our own markup stays as it is."""
    if value is None:
        return fmt.ABSENT
    return value if isinstance(value, Markup) else fmt.clean(value)


def _link(text: object) -> Markup:
    """A reference, as a link where it is one http(s) address; nothing else is ever made an address."""
    words = fmt.one_line(text)
    if words.startswith(("https://", "http://")) and " " not in words:
        shown = words.split("://", 1)[1].removeprefix("github.com/")
        return Markup('<a rel="noreferrer" href="{}">{}</a>').format(words, shown)
    return Markup("{}").format(words)


def _checks_links(ids: list[str]) -> Markup:
    """Links to checks, a shared head written once."""
    heads: dict[str, list[tuple[str, str]]] = {}
    for name in ids:
        head, _, tail = name.partition("@")
        heads.setdefault(head, []).append((name, tail))
    parts = []
    for head, members in heads.items():
        tails = [_to("check", name, tail or head) for name, tail in members]
        lead = Markup("{} @ ").format(fmt.clean(head)) if members[0][1] else Markup("")
        parts.append(Markup('<span class="ids">{}{}</span>').format(lead, Markup(", ").join(tails)))
    return Markup(" ").join(parts)


def _to(prefix: str, name: str, shown: str) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(fmt.anchor(prefix, name), fmt.clean(shown))


def _legend(panels: Iterable[charts.Panel]) -> list[tuple[str, str, Markup]]:
    """What the curves of some panels are drawn as, their names and their drawings, each once."""
    svg = Markup('<svg class="key" viewBox="0 0 16 14" aria-hidden="true">{}</svg>')
    kinds = dict.fromkeys((c.kind, c.name) for p in panels for c in p.curves if c.points or c.kind == "above")
    return [(kind, name, svg.format(charts.SHAPES[kind].format(8, 7, ""))) for kind, name in kinds]


class Glossary:
    """Adds to a paragraph, or to a part of a page, the meaning of each term that no part before it has used."""

    def __init__(self) -> None:
        rows = fmt.glossary().items()
        self.left = {word: (words, said) for words, (said, _) in rows for word in words.split(", ") if word in TERMS}

    def __call__(self, part: Markup) -> Markup:
        text, line = part.striptags(), Markup('<p class="gloss"><dfn>{}</dfn>: {}</p>\n')
        found = {row for term, row in self.left.items() if re.search(rf"\b{term}s?\b", text)}
        self.left = {term: row for term, row in self.left.items() if row not in found}
        return part + Markup("").join(line.format(*row) for row in sorted(found))


def style(name: str) -> Markup:
    """A style sheet of this folder."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


@cache
def environment() -> Environment:
    """Templates of this folder, everything escaped."""
    loader = FileSystemLoader(HERE)
    env = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(
        views=views,
        traces_of=stories.of_mutants,
        fmt=fmt,
        link=_link,
        checks=_checks_links,
        to=_to,
        effect_of=effect_of,
        wrong=stories.wrong,
    )
    env.globals.update(style=style, VERSION=__version__)
    env.tests["wrong"] = stories.wrong
    env.globals.update(rounding=rounding)
    env.globals.update(Layer=Layer, Effect=Effect, Outcome=Outcome)
    return env


def _plot_section(report: Report) -> dict[str, Any]:
    rows = charts.column(report, "accumulation")
    panels, studies = charts.panels(rows), charts.rounding_panels(rounding.study(report) or {"series": []})
    return {
        "panels": panels,
        "legend": _legend(panels),
        "groups": charts.groups(rows),
        "apart": charts.apart(report),
        "tolerated": charts.tolerated,
        "reason": charts.TOLERATED,
        "rows": len(rows),
        "above": sum(map(exceeds, rows)),
        "end_to_end": charts.summaries(charts.column(report, "end_to_end")),
        "studies": studies,
        "studies_legend": _legend(studies),
        "quantities": charts.quantities(report),
        "outside": charts.summaries(charts.column(report, "outside_assumptions")),
    }


def render(report: Report) -> str:
    """The page as text, with less of what is discharged where it would pass MOST bytes.

    Raises GradproofError on a wrong shape or an inconsistency.
    """
    require(report)
    levels = (FULL, BRIEF, LEAST) if len(report["checks"]) <= MANY else (BRIEF, LEAST)
    for level in levels:
        page = _page(report, level)
        if len(page.encode(errors="backslashreplace")) <= MOST:
            break
    return page


def _page(report: Report, level: int) -> str:
    template = environment().get_template("report.html.j2")
    script = (HERE / "report.js").read_text(encoding="utf-8")
    seen = {Outcome(c["outcome"]) for c in report["checks"]}
    return template.render(
        r=report,
        gate=report["gate"] or {},
        banner=views.banner(report),
        matrix=views.matrix(report),
        required=required_ids(report),
        loud=[a for a in views.attention(report) if a.required or a.effect is Effect.BROKEN],
        quiet=[a for a in views.attention(report) if not a.required and a.effect is Effect.OPEN],
        outcomes=[(o, MEANING[o]) for o in Outcome if o in seen],
        exits=[(code, EXIT_MEANING[name]) for name, code in EXIT_CODE.items()],
        css=style("report.css"),
        ids={c["id"] for c in report["checks"]},
        level=level,
        stories=stories.stories(report),
        harnesses=report.get("harnesses") or {},
        machines=stories.environments(report),
        claims=report.get("claims") or [],
        needed={c.get("harness") for c in report["checks"] if effect_of(c) is not Effect.DISCHARGED},
        effects={c["id"]: effect_of(c) for c in report["checks"]},
        killed=[m["name"] for m in report["mutants"] if stories.certain(m)],
        mutants=[m for m in report["mutants"] if level or not stories.certain(m)],
        by_layer=views.by_layer(report),
        script=Markup(script),  # its digest is the one that the page's policy names
        script_digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        **_plot_section(report),
    )


# -- The page over all contracts.
def overview(reports: Sequence[Report], pages: Mapping[str, str], root: Path, absent: Sequence[str] = ()) -> str:
    """The page over some reports. `pages`: where each contract's is; `absent`: contracts that were not asked for.

    Raises GradproofError on a wrong shape or an inconsistency.
    """
    from gradproof.report.formats import summary

    for report in reports:
        require(report)
    reasons = [r for report in reports if not views.banner(report).met for r in summary.reasons(report)]
    template, plain = environment().get_template("index.html.j2"), fmt.glossary()
    return template.render(
        reports=reports, pages=pages, absent=absent, banners=[views.banner(report) for report in reports],
        reasons=sorted(reasons, key=lambda r: r.effect is not Effect.BROKEN), commit=commit(root), gloss=Glossary(),
        sentence=lambda ob: plain[ob["id"]][0] if ob["id"] in plain else ob["property"], summary=summary,
    )  # fmt: skip


def commit(root: Path) -> str:
    """The commit of a folder, read from its files: Git would run programs that the folder's settings name."""
    try:
        git = next(top / ".git" for top in (root, *root.absolute().parents) if (top / ".git").exists())
        if git.is_file():  # a worktree or a submodule
            git = git.parent / git.read_text("utf-8").removeprefix("gitdir:").strip()
        common = git / (git / "commondir").read_text("utf-8").strip() if (git / "commondir").is_file() else git
        head = (git / "HEAD").read_text("utf-8").strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head[:12]
        found = next((path.read_text("utf-8") for path in (git / name, common / name) if path.is_file()), "")
        packed = (common / "packed-refs").read_text("utf-8").splitlines() if not found else []
        return (found or next(line for line in packed if line.endswith(f" {name}")))[:12]
    except (OSError, UnicodeDecodeError, StopIteration):
        return "none: this is no checkout of git"
