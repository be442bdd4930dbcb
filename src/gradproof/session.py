"""What the commands share: find the workspace, load contracts, plan, select, run, judge, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.contract.settings import Settings, load as load_settings
from gradproof.contract.yaml_reader import meant
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.files import replace_whole
from gradproof.core.outcome import DECISION, EXIT_CODE, SEVERITY, Effect, Exit, Kind, Layer, Outcome
from gradproof.core.processes import Options as Options
from gradproof.core.workspace import Workspace, find
from gradproof.evidence.audit import audit
from gradproof.evidence.record import ANSWERS, EvidenceStatus
from gradproof.evidence.store import Store
from gradproof.report.text import rendering, writing
from gradproof.verdict.judge import Verdict, judge, required, waived
from gradproof.verdict.plan import plan, policy_of, with_stubs

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
    from gradproof.contract.settings import Demands
    from gradproof.core.schemas.evidence import Evidence
    from gradproof.execution.pool import Listener
    from gradproof.report.diff_rules import ChangeShape


RENDERINGS = ("md", "html")  # beside report.json; the page is the last
INDEX = "index.html"
"""Of the folder of reports: the page over all contracts."""


@dataclass(frozen=True)
class Outcomes:
    """What `Session.run` did: the status of every check it was given, and which of them it ran."""

    statuses: Mapping[str, EvidenceStatus]
    ran: frozenset[str]
    complete: bool
    interrupted: bool
    seconds: float


class Session:
    """One workspace with its contracts and their checks. Raises GradproofError; contract errors all at once."""

    def __init__(self, options: Options) -> None:
        from gradproof.contract.model import closure, load

        self.workspace: Workspace = find(options.workspace, explicit=options.workspace is not None)
        self.settings = load_settings(self.workspace.root)
        self.options = _completed(options, self.settings)
        self.demands = replace(self.settings.demands, now=datetime.now(UTC))
        self.contracts: list[Contract] = self._load()
        self._one_of_a_name()
        self.known: dict[str, Contract] = closure(self.contracts, load)
        """The contracts and those that they build on, dependencies first."""
        others = [c for c in self.known.values() if c not in self.contracts]
        self.plans: dict[Path, list[Check]] = {c.path: plan(c) for c in [*self.contracts, *others]}
        self._distinct()
        self._demanded()
        self._compared_with_others()

    def _load(self) -> list[Contract]:
        from gradproof.contract.model import load
        from gradproof.contract.yaml_reader import ContractErrors, Problem

        loaded: list[Contract] = []
        problems: list[Problem] = []
        for path in self._paths():
            try:
                loaded.append(load(path))
            except ContractErrors as e:
                problems += e.problems
        if problems:
            raise ContractErrors(problems)
        return loaded

    def _paths(self) -> list[Path]:
        """The contracts asked for, by id or by file, each once; all of the workspace's by default."""
        if not self.options.contracts:
            return self.workspace.contracts()
        paths: dict[Path, Path] = {}
        for name in self.options.contracts:
            places = (self.workspace.root / "proofs" / name / "contract.yaml", Path(name))
            found = next((p for p in places if is_file(p)), None)
            if found is None:
                known = ", ".join(p.parent.name for p in self.workspace.contracts())
                raise GradproofError(
                    "GP212", f"no contract {name!r}", f"one of {known}, or a file", "correct --contract"
                )
            paths.setdefault(found.resolve(), found)
        return list(paths.values())

    def _one_of_a_name(self) -> None:
        """Reports and verdicts are distinguished by the contract's id, so no two files may have the same one."""
        owner: dict[str, Path] = {}
        for contract in self.contracts:
            if (other := owner.setdefault(contract.id, contract.path)) != contract.path:
                found = f"{other} and {contract.path} are both called {contract.id}"
                raise GradproofError("GP217", found, "one contract of a name", "rename the folder of one of them")

    def _demanded(self) -> None:
        """What pyproject.toml demands and excuses is of obligations of this workspace."""
        if self.options.contracts:
            return
        known = sorted({o.id for c in self.contracts for o in c.obligations})
        for name, where in self.settings.obligations:
            if name not in known:
                help = meant(name, known, "correct the name, or remove it")
                raise GradproofError("GP492", f"the obligation {name!r}", f"one of {', '.join(known)}", help, where)

    def _compared_with_others(self) -> None:
        """A baseline is no report of this workspace, which would be compared with itself."""
        names = {"", *self._beside(), *(c.id for c in self.contracts)}
        own = {os.path.realpath(self.workspace.reports / n / "report.json") for n in names}
        files = [place for place in own if os.path.isfile(place)]
        for baseline in self.options.baselines:
            for place in reports_of(baseline):
                linked = is_file(place) and any(os.path.samefile(place, report) for report in files)
                if linked or os.path.realpath(place) in own:
                    found, expected = "the workspace's own report as its baseline", "the reports of an earlier release"
                    raise GradproofError("GP487", found, expected, "copy the reports of a release, and name the copy",
                                         str(baseline))  # fmt: skip

    def _distinct(self) -> None:
        """Evidence is filed under check ids, so no two contracts may plan the same one."""
        owner: dict[str, Path] = {}
        for path, checks in self.plans.items():
            for check in checks:
                if (other := owner.setdefault(check.id, path)) != path:
                    found = f"{path} and {other} both plan {check.id}"
                    raise GradproofError("GP210", found, "unique ids", "rename one of them")

    @property
    def checks(self) -> list[Check]:
        """Every planned check of every contract that was asked for; what these build on is judged and not run."""
        return [check for contract in self.contracts for check in self.plans[contract.path]]

    def selected(self, kinds: Iterable[Kind] = tuple(Kind), layers: Iterable[Layer] = tuple(Layer)) -> list[Check]:
        """Checks of these kinds and layers that match the options' patterns, and the stubs that they rest on."""
        kinds, layers = tuple(kinds), tuple(layers)
        wanted = [c for c in self.checks if c.kind in kinds and c.layer in layers and self._matches(c)]
        return with_stubs(self.checks, {c.id for c in wanted})

    def _matches(self, check: Check) -> bool:
        patterns = self.options.select
        exact = {p for p in patterns if any(p == c.id for c in self.checks)}
        words = [check.id, *check.obligations]
        return not patterns or any(
            p == check.id if p in exact else any(p.casefold() in w.casefold() for w in words) for p in patterns
        )

    def statuses(self, checks: Iterable[Check]) -> dict[str, EvidenceStatus]:
        """The stored evidence, without running anything."""
        store = Store(self.workspace)
        return {check.id: store.status(check) for check in checks}

    def stored(self) -> Outcomes:
        """The stored evidence of every check, as a run that ran nothing."""
        return Outcomes(self.statuses(self.checks), frozenset(), True, False, 0.0)

    def filled(self, run: Outcomes) -> Outcomes:
        """A run of some checks, with the stored evidence of all others."""
        others = self.statuses(c for c in self.checks if c.id not in run.statuses)
        return replace(run, statuses={**run.statuses, **others})

    def run(
        self, checks: Sequence[Check], listener: Listener, begins: Callable[[bool], None] = lambda _: None
    ) -> Outcomes:
        """Run what has no fresh answer. Whatever was run is read back from disk and checked like old evidence.

        `begins` is called before anything runs: with False where a package is missing (GP409), and nothing will.
        """
        from gradproof.execution.pool import Pool, able, engine_for

        clock, store = time.monotonic(), Store(self.workspace)
        before = {c.id: store.status(c) for c in checks}
        answered = {name for name, s in before.items() if s.fresh and s.outcome in ANSWERS}
        due = [c for c in checks if self.options.no_cache or c.id not in answered]
        try:
            able(due if self.options.scheduler is None else ())
        except GradproofError:
            begins(False)
            raise
        begins(True)
        known = {n: s.evidence.seconds for n, s in before.items() if s.evidence is not None}
        settled = {c.id: _effect(c, before[c.id]) for c in checks if c not in due}
        asked = self.options
        pool = Pool(
            self.workspace, asked.jobs, asked.time_limit, asked.fail_fast, known, settled, listener,
            memory=asked.memory_limit,
        )  # fmt: skip
        if due and asked.scheduler is not None:
            pool.engine = engine_for(self.workspace, asked.jobs, asked.scheduler)
            pool.refused = lambda check, evidence: store.fresh(check, evidence)[1]
        unwritten: dict[str, str] = {}
        result = pool.run(due, lambda evidence: _saved(store, evidence, unwritten))
        after, now = dict(before), Store(self.workspace)
        for check in due:
            if check.id in result.evidence:
                after[check.id] = _after(now, check, result.evidence[check.id], before[check.id])
        after |= {name: EvidenceStatus(None, False, why) for name, why in unwritten.items()}
        spent = time.monotonic() - clock
        return Outcomes(after, frozenset(result.evidence), result.complete, result.interrupted, spent)

    def under(self, demands: Demands) -> Session:
        """The same session with other demands, as those of another day."""
        other = copy(self)
        other.demands = demands
        return other

    def judged(self, contract: Contract, statuses: Mapping[str, EvidenceStatus]) -> Verdict:
        """Verdict on everything a contract plans, and on what it builds on: that on the stored evidence."""
        return self.verdicts(statuses, contract)[contract.id]

    def verdicts(self, statuses: Mapping[str, EvidenceStatus], *wanted: Contract) -> dict[str, Verdict]:
        """Verdicts on these contracts (all by default) and on what they build on, by id, dependencies first."""
        from gradproof.contract.model import closure

        made: dict[str, Verdict] = {}
        at = {contract.path.resolve(): contract for contract in self.known.values()}
        for contract in closure(wanted or self.contracts, lambda path: at[path.resolve()]).values():
            checks = self.plans[contract.path]
            missing = self.statuses(c for c in checks if c.id not in statuses)
            stands = {n: made[n].exit if n in made else None for n in contract.metadata.depends_on}
            policy = policy_of(contract, self.options.profile, self.demands)
            made[contract.id] = judge(checks, {**missing, **statuses}, replace(policy, dependencies=stands))
        return made

    def state(self, contract: Contract, run: Outcomes) -> str:
        """`complete` when this run or fresh evidence decided all that is required and not waived, else `partial`."""
        policy = policy_of(contract, self.options.profile, self.demands)
        decided = all(
            c.id in run.ran or run.statuses[c.id].fresh or waived(c, policy)
            for c in self.plans[contract.path]
            if required(c, policy)
        )
        return "complete" if run.complete and decided else "partial"

    def reported(self, contract: Contract, run: Outcomes) -> dict[str, Any]:
        """The report of one contract."""
        from gradproof.report import build as reports

        verdict = self.judged(contract, run.statuses)
        return reports.build(
            contract,
            self.workspace,
            verdict,
            profile=self.options.profile,
            run_state=self.state(contract, run),
            seconds=run.seconds,
        )

    def reports(self, run: Outcomes) -> list[dict[str, Any]]:
        """The report of each contract, compared with every baseline that there is. Raises GradproofError GP481.

        A part of a run, which never meets the gate, is held against none.
        """
        made = [self.reported(contract, run) for contract in self.contracts]
        if not self.options.baselines or not run.complete:
            return made
        for baseline in self.options.baselines:
            made = held(baseline, made, self._beside())
        return made

    def _beside(self) -> frozenset[str]:
        """Ids of the workspace's contracts, which are not gone where --contract leaves them out."""
        return frozenset(path.parent.name for path in self.workspace.root.glob("proofs/*/contract.yaml"))

    def report_path(self, contract: Contract, ending: str) -> Path:
        """`reports/report.json`; in a workspace with several contracts each has a folder of its own."""
        several = len(self._beside() | {c.id for c in self.contracts}) > 1
        folder = self.workspace.reports / contract.id if several else self.workspace.reports
        return folder / f"report.{ending}"

    def mark(self, new: bool = True) -> None:
        """Say in every report.json that a run is under way, and take the older renderings away.

        `new`: also where there is none yet.
        """
        from gradproof.report import build as reports

        for contract in (c for c in self.contracts if new or self.report_path(c, "json").exists()):
            running = reports.marker(contract, self.workspace, self.options.profile)
            with writing(self.report_path(contract, "json")):
                reports.write_json(self.report_path(contract, "json"), running)
                for ending in RENDERINGS:
                    self.report_path(contract, ending).unlink(missing_ok=True)
                (self.workspace.reports / INDEX).unlink(missing_ok=True)
                self._forget(contract)

    def _forget(self, contract: Contract) -> None:
        """Take away what the contract's report was before the workspace had several contracts, or one."""
        from gradproof.report.build import contract_of

        folder = self.report_path(contract, "json").parent
        for other in {self.workspace.reports, self.workspace.reports / contract.id} - {folder}:
            if contract_of(other / "report.json") == contract.id:
                for ending in ("json", *RENDERINGS):
                    (other / f"report.{ending}").unlink(missing_ok=True)

    def write(self, reports: Sequence[Mapping[str, Any]]) -> Path:
        """Render the report of each contract, and the page over all, each whole or not at all; return that page."""
        from gradproof.report.formats.html import overview

        index, pages = self.workspace.reports / INDEX, dict[str, str]()
        for contract, report in zip(self.contracts, reports, strict=True):
            for name in ("json", *RENDERINGS):
                path = self.report_path(contract, name)
                with writing(path):
                    replace_whole(path, rendering(name)(report))
            pages[contract.id] = path.relative_to(index.parent).as_posix()
        with writing(index):
            replace_whole(index, overview(reports, pages, self.workspace.root, sorted(self._beside() - pages.keys())))
        return index


def workspace_of(options: Options) -> Workspace | None:
    """The workspace that a session of these options would have; None without one."""
    try:
        return find(options.workspace, explicit=options.workspace is not None)
    except GradproofError:
        return None


def baselines_of(options: Options, root: Path) -> tuple[Path, ...]:
    """The baselines that a session of these options would have, as far as its settings can be read."""
    try:
        return _completed(options, load_settings(root)).baselines
    except GradproofError:
        return () if options.baseline is None else (options.baseline,)


def reports_of(baseline: Path) -> list[Path]:
    """Where a report of a baseline may lie: at its name, in that folder, and in folders of that one."""
    inner = sorted(baseline.glob("*/report.json")) if os.path.isdir(baseline) else []
    return [] if "\0" in str(baseline) else [baseline, baseline / "report.json", *inner]


def _completed(options: Options, settings: Settings) -> Options:
    """The options with what the file says where neither the command line nor the environment does.

    A baseline is added to that of the file and never takes its place.
    """
    found = {name: value for name, value in settings.options.items() if name not in options.stated}
    found.pop("baseline", None)
    baselines = [] if options.baseline is None else [options.baseline]
    if "baseline" in settings.options and settings.path is not None:
        baselines.append(settings.path.parent / settings.options["baseline"])
    return replace(options, **found, baselines=tuple(dict.fromkeys(baselines)))


def _effect(check: Check, status: EvidenceStatus) -> Effect:
    assert status.evidence is not None
    return DECISION[check.expect, audit(check, status.evidence.finding)[0]]


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that is too long for the system is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def _saved(store: Store, evidence: Evidence, unwritten: dict[str, str]) -> None:
    """Store one run. A disk that is full or may not be written to costs this check its answer, and not the others."""
    try:
        store.write(evidence)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        unwritten[evidence.check.id] = f"its evidence could not be written: {why}"


def _after(store: Store, check: Check, evidence: Evidence, before: EvidenceStatus) -> EvidenceStatus:
    """EvidenceStatus of a check that was decided just now. What was not run was not stored."""
    if evidence.finding.outcome is not Outcome.NOT_RUN:
        return replace(store.status(check), cached=False)
    reason = evidence.finding.reason
    if before.evidence is not None and not before.fresh:
        reason = f"{reason}; and its evidence is stale: {before.reason}"
    elif "rejected" in before.reason:
        reason = f"{reason}; {before.reason}"
    return EvidenceStatus(None, False, reason)


# -- Baselines: nothing may be weaker than in the reports of the last release.


def held(baseline: Path, reports: Sequence[dict[str, Any]], beside: Collection[str] = ()) -> list[dict[str, Any]]:
    """These reports, judged against a report.json or a folder of reports as well. Raises GradproofError GP481.

    `beside`: contracts that are there, whether one of the reports is about them or not.
    """
    from gradproof.report.build import contract_of
    from gradproof.report.diff import between, side_of

    known = {report["contract"]["id"] for report in reports}
    asked = [place for place in _reports_at(baseline) if contract_of(place) not in {*beside} - known]
    if not asked:
        return list(reports)
    found = between(side_of(baseline, asked), side_of(Path("this run"), reports))
    shared = [f"the baseline cannot be compared: {reason}" for reason in found.open]
    reasons: dict[str, list[tuple[Exit, str]]] = {name: [(Exit.OPEN, text) for text in shared] for name in known}
    for row in found.contracts:
        stated = [_stated(change) for change in row.changes if change.direction in ("weakened", "undecided")]
        for name in [row.contract] if row.contract in known else known:
            reasons[name] += stated
    return [_judged(report, reasons[report["contract"]["id"]]) for report in reports]


def _reports_at(baseline: Path) -> list[Path]:
    """The reports of a baseline.

    Raises GradproofError GP481 for a contract, a workspace or evidence: they say what is asked, or less.
    """
    held = [place for place in reports_of(baseline) if os.path.isfile(place)]
    workspace = os.path.isdir(baseline) and any(baseline.glob("proofs/*/contract.yaml"))
    if all(place.suffix == ".json" for place in held) and held and not workspace:
        return held
    expected = "a report.json, or a folder of reports, as gradproof verify wrote it"
    raise GradproofError("GP481", f"{baseline} is no report", expected, "keep the reports of a release, and name them")


def _stated(change: ChangeShape) -> tuple[Exit, str]:
    sides = f": {change.old or 'nothing'} -> {change.new or 'nothing'}"
    if change.direction == "weakened":
        return Exit.BROKEN, f"weaker than the baseline: {change.kind} {change.place}, {change.word}{sides}"
    return Exit.OPEN, f"not decided against the baseline: {change.kind} {change.place}, {change.word}{sides}"


def _judged(report: dict[str, Any], found: Sequence[tuple[Exit, str]]) -> dict[str, Any]:
    verdict = report["verdict"]
    exit_ = min([Exit(verdict["exit"]), *(e for e, _ in found)], key=SEVERITY.index)
    reasons = [*(text for _, text in found), *verdict["reasons"]]
    stated = {"exit": str(exit_), "code": EXIT_CODE[exit_], "met": exit_ is Exit.MET, "reasons": reasons}
    return {**report, "verdict": {**verdict, **stated}}
