"""`--format NAME[=PATH]`: several outputs of one run, at most one of them on stdout, each file whole or not there.

Without a path an output goes to stdout, and then nothing else does. `{contract}` in a path makes a file of its own for
each contract, of every format but `ndjson`. `github` prints annotations, and appends its summary to PATH or to
$GITHUB_STEP_SUMMARY. `ndjson` is written as things happen; a stream without its last event, `end`, is not whole. What
an earlier run wrote is taken away before a contract is loaded, but for the summary, to which others append as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gradproof.cli.options import json_option, together
from gradproof.core.errors import GradproofError
from gradproof.core.files import allowed, cleared, descriptor_of, is_stream, opened, unwritten, written
from gradproof.core.outcome import EXIT_MEANING, Exit, worst

if TYPE_CHECKING:
    from gradproof.core.workspace import Workspace
    from gradproof.execution.pool import Listener, Progress
    from gradproof.extras.claims.document import Claims
    from gradproof.session import Options, Outcomes, Session
    from gradproof.verdict.judge import Verdict

Report = Mapping[str, Any]

NAMES = ("text", "json", "md", "html", "junit", "sarif", "github", "ndjson")
ONE_EACH = "{contract}"
SUMMARY = "GITHUB_STEP_SUMMARY"
EVENTS = "gradproof-events/1"
WARNINGS = 2
"""Of contracts, on stderr, where --verbose does not ask for all."""


@dataclass(frozen=True)
class Output:
    """One format and where it goes; no path is stdout."""

    name: str
    path: str | None


formats = together(
    click.option(
        "--format",
        "formats",
        multiple=True,
        metavar="NAME[=PATH]",
        help=f"Output: {', '.join(NAMES)}; to stdout or PATH (repeatable).  [default: text]",
    ),
    json_option,
)


def asked(texts: Sequence[str], json_: bool) -> list[Output]:
    """The outputs of a command line. Raises GradproofError GP430, GP431 and GP434."""
    outputs = [_output(text) for text in [*texts, *(["json"] if json_ and "json" not in texts else [])]]
    loud = [o.name for o in outputs if o.path is None or o.name == "github"]
    if len(loud) > 1:
        found, help = f"{' and '.join(loud)}, all on stdout", f"give the others a path: {loud[-1]}=FILE"
        raise GradproofError("GP430", found, "one output on stdout", help)
    paths = [os.path.abspath(o.path) for o in outputs if o.path is not None and not is_stream(o.path)]
    twice = next((p for p in paths if paths.count(p) > 1), None)
    if twice is not None:
        raise GradproofError("GP430", f"two outputs in {twice}", "a file for each output", "correct --format")
    return outputs if loud else [*outputs, Output("text", None)]


def _output(text: str) -> Output:
    name, sign, path = text.partition("=")
    if name not in NAMES or (sign and not path):
        from gradproof.contract.yaml_reader import meant

        help = "NAME or NAME=PATH" if name in NAMES else meant(name, NAMES, "NAME or NAME=PATH")
        raise GradproofError("GP431", f"--format {text!r}", f"one of {', '.join(NAMES)}, or NAME=PATH", help)
    if name == "ndjson" and ONE_EACH in path:
        raise GradproofError("GP434", f"--format {text!r}", "one path for all contracts", f"leave {ONE_EACH} out")
    stdout = name != "github" and sign and descriptor_of(path) == 1
    return Output(name, path if sign and not stdout else None)


class Outputs:
    """The outputs of one run: a context in which `listener` streams, and `finish` writes the rest."""

    def __init__(self, outputs: Sequence[Output], warning: str | None) -> None:
        self.outputs, self.stack, self.warning = list(outputs), ExitStack(), warning
        self.streams: list[tuple[str | None, TextIO]] = []

    @property
    def table(self) -> bool:
        """Whether the table goes to stdout."""
        return any(o == Output("text", None) for o in self.outputs)

    def __enter__(self) -> Outputs:
        for path in (o.path for o in self.outputs if o.name == "ndjson"):
            try:
                stream = sys.stdout if path is None else self.stack.enter_context(opened(Path(path), "w"))
            except OSError as error:
                raise unwritten(str(path), error) from error
            self.streams.append((path, stream))
        try:
            self._tell({"event": "begin", "schema": EVENTS} | ({"warning": self.warning} if self.warning else {}))
        except GradproofError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # every event was flushed, so this was reported already
            self.stack.close()

    def listener(self, inner: Listener) -> Listener:
        """What hears the run: `inner`, and the streams."""
        if not self.streams:
            return inner

        def both(event: Progress) -> None:
            inner(event)
            if event.event not in ("tick", "worker"):
                self._tell(_event(event))

        return both

    def finish(self, reports: Sequence[Report]) -> None:
        """Write every output. Raises GradproofError GP407 for a file that cannot be written."""
        for report in reports:
            verdict, name = report["verdict"], report["contract"]["id"]
            self._tell({"event": "verdict", "contract": name, "run_state": report["run_state"], **verdict})
        self._tell({"event": "end"})
        for output in self.outputs:
            if output.name == "github":
                _github(output, reports)
            elif output.name != "ndjson" and output != Output("text", None):
                _write(output, reports)

    def _tell(self, event: Mapping[str, Any]) -> None:
        for path, stream in self.streams:
            try:
                stream.write(json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n")
                stream.flush()
            except OSError as error:
                if path is None:
                    raise
                raise unwritten(path, error) from error


def _event(event: Progress) -> dict[str, Any]:
    stated: dict[str, Any] = {"event": event.event, "done": event.done, "total": event.total}
    if event.check is None:
        return stated
    stated |= {"check": event.check.id, "kind": str(event.check.kind), "layer": str(event.check.layer)}
    if event.evidence is not None:
        from gradproof.core.outcome import DECISION
        from gradproof.evidence.audit import audit

        outcome, reason = audit(event.check, event.evidence.finding)
        effect = DECISION[event.check.expect, outcome]
        stated |= {"outcome": str(outcome), "effect": str(effect), "reason": reason}
        stated["seconds"] = event.evidence.seconds
    return stated


def _write(output: Output, reports: Sequence[Report]) -> None:
    if output.path is None:
        click.echo(rendered(output.name, reports), nl=False)
        return
    for place, group in _grouped(output.path, reports):
        written(Path(place), rendered(output.name, group), "--format")


def _grouped(path: str, reports: Sequence[Report]) -> Iterator[tuple[str, list[Report]]]:
    """The files of an output, each with its reports."""
    places = [path.replace(ONE_EACH, report["contract"]["id"]) for report in reports]
    for place in dict.fromkeys(places):
        yield place, [report for report, own in zip(reports, places, strict=True) if own == place]


def rendered(name: str, reports: Sequence[Report]) -> str:
    """These reports in one document of a format. Raises GradproofError on an inconsistent report."""
    if name in ("junit", "sarif", "github"):
        from gradproof.report.consistency import require
        from gradproof.report.formats import ci

        for report in reports:
            require(report)
        text: str = getattr(ci, name)(reports)
        return text
    if name == "text":
        from gradproof.report.formats import markdown
        from gradproof.report.text import plain

        return "\n".join(plain(markdown.overview(report)) for report in reports)
    from gradproof.report.text import rendering

    if name == "html" and len(reports) > 1:
        from gradproof.report.formats.html import overview

        return overview(reports, {}, Path(reports[0]["workspace"]))
    if name == "json" and len(reports) > 1:
        return json.dumps(list(reports), indent=1, ensure_ascii=False) + "\n"
    return "\n".join(rendering(name)(report) for report in reports)


def _github(output: Output, reports: Sequence[Report]) -> None:
    from gradproof.report.formats.ci import summary

    click.echo(rendered(output.name, reports), nl=False)
    page_of = output.path or os.environ.get(SUMMARY)
    for path, stated in _grouped(page_of, reports) if page_of else ():
        try:
            with opened(Path(path), "a") as page:
                page.write(summary(stated))
        except OSError as error:
            raise unwritten(path, error) from error


# -- How a command that judges begins: what an earlier run wrote is taken away before a contract is loaded.
ASKED_WRONGLY = frozenset({"GP212", "GP487"})  # no such contract, no such baseline: this says nothing of the reports


def begun(options: Options, outputs: Sequence[Output], *, reports: bool = False) -> Session:
    """A session of these options, after what an earlier run wrote has been taken away: it says nothing of this one.

    `reports`: where no session comes about, the workspace's reports say so, too. The baseline is no place of an output.
    Raises GradproofError.
    """
    from gradproof.session import Session, workspace_of

    workspace = workspace_of(options)
    names = [] if workspace is None else _named(workspace, options)
    paths = [Path(p) for o in outputs if o.path is not None for p in _each(o.path, names)]
    for path in paths:
        allowed(path, "--format")
    if workspace is not None:
        _not_the_baseline(paths, options, workspace)
    for path in (Path(p) for o in outputs if o.path and o.name != "github" for p in _each(o.path, names)):
        cleared(path)
    try:
        return warned(Session(options))
    except GradproofError as error:
        if reports and workspace is not None and error.code not in ASKED_WRONGLY:
            from gradproof.report.build import outdate
            from gradproof.session import INDEX

            where = f"{error.where}: " if error.where else ""
            why = f"the run could not start: {where}{error.code}: {error.found}"
            with suppress(OSError):
                (workspace.reports / INDEX).unlink(missing_ok=True)
            for folder in [workspace.reports, *(workspace.reports / name for name in names)]:
                with suppress(OSError):  # a report that cannot be written stays
                    outdate(folder, why, names if options.contracts else None)
        raise


def _each(path: str, names: Sequence[str]) -> list[str]:
    return [path.replace(ONE_EACH, name) for name in names] if ONE_EACH in path else [path]


def _not_the_baseline(paths: Sequence[Path], options: Options, workspace: Workspace) -> None:
    """Raises GradproofError GP433 for an output that would be written where a report of a baseline lies."""
    from gradproof.session import baselines_of, reports_of

    real = {os.path.realpath(p) for b in baselines_of(options, workspace.root) if paths for p in reports_of(b)}
    for path in (p for p in paths if os.path.realpath(p) in real):
        found, wanted = "--format would write over the baseline", "a file that is no part of what is judged"
        raise GradproofError("GP433", found, wanted, "name another file", str(path))


def _named(workspace: Workspace, options: Options) -> list[str]:
    """Ids of the contracts that are asked for, shown by their places alone, whatever is in them."""
    from gradproof.contract.model import contract_id
    from gradproof.session import is_file

    if not options.contracts:
        return [contract_id(path) for path in sorted(workspace.root.glob("proofs/*/contract.yaml"))]
    known = [name for name in options.contracts if is_file(workspace.root / "proofs" / name / "contract.yaml")]
    return known + [contract_id(Path(name)) for name in options.contracts if name not in known and is_file(Path(name))]


# -- What commands print besides a report.
def open_session(options: Options) -> Session:
    """A session; one line on stderr, whatever else is quiet, where it judges another workspace than the caller's."""
    from gradproof.session import Session

    return warned(Session(options))


def warned(session: Session) -> Session:
    """The session, after its warning on stderr where it has one."""
    if session.workspace.warning:
        click.echo(f"warning: {session.workspace.warning}", err=True)
    return session


def problems(session: Session, quiet: bool, most: int | None = None) -> None:
    """The contracts' warnings on stderr, one line each; `most` of them, None for all."""
    from gradproof.report.text import plural

    found = [] if quiet else [w for contract in session.contracts for w in contract.warnings]
    for w in found[:most]:
        click.echo(f"{w.where}: warning {w.code}: {w.found}", err=True)
    if most is not None and len(found) > most:
        click.echo(f"and {plural(len(found) - most, 'more warning')}: --verbose shows all", err=True)


def selection(verdict: Verdict, json_: bool, shard: str | None = None, warning: str | None = None) -> None:
    """The result of a selection, or of a shard of it: no report, only its checks and what they add up to."""
    rows = [
        {
            "id": r.check.id,
            "outcome": str(r.outcome),
            "effect": str(r.effect),
            "reason": r.reason,
            "reach": None if r.reach is None else str(r.reach),
            "cached": r.status.cached,
            "evidence": r.status.path,
        }
        for r in verdict.rulings.values()
    ]
    if json_:
        data = {"schema": "gradproof-selection/1", "exit": str(verdict.exit), "code": verdict.code}
        data |= {} if shard is None else {"shard": shard}
        data |= {} if warning is None else {"warning": warning}
        click.echo(json.dumps({**data, "reasons": list(verdict.reasons), "checks": rows}, indent=1))
        return
    for row in rows:
        seen = "  (cached)" if row["cached"] else ""
        click.echo(f"{row['effect']:<10} {row['outcome']:<9} {row['id']}{seen}")
        if row["effect"] != "DISCHARGED":
            click.echo(f"           {row['reason']}")
    good = sum(row["effect"] == "DISCHARGED" for row in rows)
    words = {Exit.MET: "as expected"}.get(verdict.exit, EXIT_MEANING[verdict.exit])
    click.echo(f"{good} of {len(rows)} selected checks DISCHARGED: {words} (exit {verdict.code})")
    what = "a selection" if shard is None else f"shard {shard}"
    click.echo(f"This is {what} and says nothing about the gate; gradproof gate does.")


def earlier(session: Session) -> list[Report]:
    """The reports of the run before, as far as there are whole ones; ask before a run marks them."""
    from gradproof.report.formats.summary import facts
    from gradproof.report.text import when

    found = []
    for contract in session.contracts:
        try:
            report = json.loads(session.report_path(contract, "json").read_text(encoding="utf-8"))
            if report["contract"]["id"] == contract.id and report["checks"]:
                facts([report])  # each raises for what is no report
                when(report["generated_at"])
                found.append(report)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return found


def published(
    session: Session, run: Outcomes, claims: Claims | None, before: Sequence[Report], text: bool, verbose: bool
) -> list[dict[str, Any]]:
    """The reports of a run, after each was written, and shown.

    The verdict goes to stdout, or to stderr where stdout has the tables, another format or nothing. `text`: whether
    words go to stdout.
    """
    from rich.console import Console

    from gradproof.report.formats import markdown, summary
    from gradproof.report.text import draw

    reports = session.reports(run)
    for report in reports:
        report |= about(claims, report)
    page = session.write(reports)
    for report in reports if text and verbose else ():
        draw(markdown.overview(report), Console())
    console = Console(stderr=verbose or not text)
    summary.render(reports, console, before, page, None if verbose else summary.LINES)
    return reports


def code_of(reports: Sequence[Report]) -> int:
    """The worst of their exit codes."""
    return worst(Exit(report["verdict"]["exit"]) for report in reports)


def about(claims: Claims | None, report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of claims: those that one of its checks decides. Nothing without a ledger."""
    if claims is None:
        return {}
    ids = {check["id"] for check in report["checks"]}
    rows = [row for row in claims.rows if ids & {check.id for check in row.checks}]
    keys = ("id", "claim", "verdict", "effect")
    return {"claims": [{k: getattr(r, k) for k in keys} | {"checks": [c.id for c in r.checks]} for r in rows]}
