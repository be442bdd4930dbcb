"""What a report says, in words, once for every format: banner, counts, matrix cells, reach and attention lists.

A word of success (met, DISCHARGED) is written only where the derived effect is that; colour never carries a
statement alone. Every count has its denominator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Scope, entry_of
from gradproof.core.outcome import (
    DECISION,
    EXIT_MEANING,
    MEANING,
    NO_WORKSPACE,
    REACH_MEANING,
    Effect,
    Exit,
    Expect,
    Layer,
    Outcome,
    Reach,
)
from gradproof.core.schemas.evidence import Stats
from gradproof.report.consistency import Report, effect_of, required_ids, waived_ids, worst
from gradproof.report.rounding import assumed
from gradproof.report.text import counted, one_line, plural, sentence, value
from gradproof.verdict import judge

if TYPE_CHECKING:
    from gradproof.shadow.result import Verification


# -- What a row of a report is to a CI system: passed, failed, an error, or skipped. One table for every format.
class RowStatus(StrEnum):
    """Of one row, in a format that knows no more than these."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


class Level(StrEnum):
    """Of one annotation."""

    ERROR = "error"
    WARNING = "warning"


FAILS = frozenset({Outcome.REFUTED, Outcome.HOLDS, Outcome.WEAK, Outcome.VACUOUS})
LOUD = FAILS | {Outcome.SPURIOUS, Outcome.ERROR}


@dataclass(frozen=True)
class CaseRow:
    """A check of a report, or a criterion of its gate. `file` is the contract's, `line` and `col` start at 1."""

    id: str
    title: str
    status: RowStatus
    level: Level | None
    outcome: str
    words: str
    seconds: float
    contract: str
    file: str
    line: int
    col: int


def status_of(outcome: Outcome, effect: Effect, required: bool, waived: bool = False) -> RowStatus:
    """The status of a check."""
    if effect is Effect.DISCHARGED:
        return RowStatus.PASSED
    if (outcome is Outcome.NOT_RUN and not required) or (waived and effect is Effect.OPEN):
        return RowStatus.SKIPPED
    return RowStatus.FAILED if outcome in FAILS else RowStatus.ERROR


def level_of(outcome: Outcome, status: RowStatus) -> Level | None:
    """How loud an annotation is: none for what passed or was not asked for."""
    if status in (RowStatus.PASSED, RowStatus.SKIPPED):
        return None
    return Level.ERROR if outcome in LOUD else Level.WARNING


def of_nobody(report: Report) -> bool:
    """Whether the packaged reference was judged because no workspace was found."""
    return NO_WORKSPACE in report["contract"]["warnings"]


def rows(report: Report) -> Iterator[CaseRow]:
    """Every check of a report, then every criterion of its gate, and the verdict."""
    waived = waived_ids(report)
    for check in report["checks"]:
        yield _check(report, check, check["id"] in waived)
    yield from _gate(report)


def case_rows(verification: Verification) -> list[CaseRow]:
    """A row for each obligation of a step; one of the verdict where no other shows that it is not met."""
    from gradproof.shadow.result import NAMES

    v, found = verification, list[CaseRow]()
    file = v.subject.rpartition(":")[0] or v.subject
    for r in v.results:
        status = status_of(r.outcome, DECISION[Expect.HOLDS, r.outcome], required=True)
        if not r.applies or r in v.allowed:
            status = RowStatus.SKIPPED
        at = (file, 1, 1)
        if r.location is not None and r.location.file:
            at = (r.location.file, max(1, r.location.line), 1)
        words = sentence(f"{r.outcome}: {r.reason}") + (f" Help: {sentence(r.help)}" if r.help else "")
        name, level = NAMES.get(r.obligation, r.obligation), level_of(r.outcome, status)
        spent = 0.0 if found else sum(v.seconds.values())  # one run decides all
        found.append(CaseRow(r.obligation, name, status, level, str(r.outcome), words, spent, v.subject, *at))
    if v.exit is not Exit.MET and not any(row.level for row in found):
        words = f"{v.outcome}: nothing was decided. Exit code {v.code}: {EXIT_MEANING[v.exit]}."
        bad = ("verdict", "the verdict", RowStatus.FAILED, Level.ERROR, str(v.outcome), words)
        found.append(CaseRow(*bad, 0.0, v.subject, file, 1, 1))
    return found


def _check(report: Report, check: Mapping[str, Any], waived: bool) -> CaseRow:
    outcome = Outcome(check["outcome"])
    status = status_of(outcome, Effect(check["effect"]), bool(check.get("required", True)), waived)
    words = f"{'waived: ' if waived else ''}{outcome}: {check['reason'] or check['meaning']}"
    if check["expect"] != "holds":
        words = f"{outcome}, expected {check['expect']}: {check['reason'] or check['meaning']}"
    place = _place(report, entry_of(check["id"]))
    level = level_of(outcome, status)
    return CaseRow(check["id"], one_line(check["title"]), status, level, str(outcome), one_line(words),
               float(check["seconds"]), report["contract"]["id"], *place)  # fmt: skip


def _gate(report: Report) -> Iterator[CaseRow]:
    gate, verdict = report["gate"] or {}, report["verdict"]
    name = gate.get("id", "gate")
    place = _place(report, name)
    for criterion in gate.get("criteria", []):
        good = bool(criterion["met"])
        yield _judged(f"{name}/{criterion['name']}", f"criterion {criterion['name']}", good, criterion["why"],
                      report, place)  # fmt: skip
    why = "; ".join(verdict["reasons"]) or verdict["exit"]
    yield _judged(f"{name}/verdict", f"the gate, profile {report['profile']}", bool(verdict["met"]), why, report, place)


def _judged(name: str, title: str, good: bool, why: str, report: Report, place: tuple[str, int, int]) -> CaseRow:
    status, level = (RowStatus.PASSED, None) if good else (RowStatus.FAILED, Level.ERROR)
    words = f"{'met' if good else 'not met'}: {why}"
    outcome = "met" if good else "not met"
    return CaseRow(name, title, status, level, outcome, one_line(words), 0.0, report["contract"]["id"], *place)


def _place(report: Report, name: str) -> tuple[str, int, int]:
    line, col = report["contract"]["places"].get(name, (1, 1))
    return report["contract"]["path"], line, col


SENTENCE = "A proof is about real numbers, and floats round; a sample is no proof."
LAYER_TITLE: Mapping[Layer, str] = {
    Layer.SMT: "SMT (Z3)",
    Layer.CROSSHAIR: "CrossHair",
    Layer.STEP: "PyTorch, step",
    Layer.CPU: "PyTorch, CPU",
    Layer.CUDA: "PyTorch, CUDA",
}
REACH_WORDS: dict[Reach, str] = {
    Reach.ALL_INPUTS: "proved, all inputs",
    Reach.BOUNDED: "proved, bounded",
    Reach.CHOSEN: "checked at chosen values",
    Reach.SAMPLED: "sampled",
}
LABELS: Mapping[Reach, str] = REACH_WORDS | {
    Reach.ALL_INPUTS: "proved for all inputs",
    Reach.BOUNDED: "proved for every input up to the bounds",
}
STYLE = {Effect.DISCHARGED: "bold green", Effect.BROKEN: "bold red", Effect.OPEN: "bold yellow"}
SYMBOL: Mapping[Effect, str] = {Effect.DISCHARGED: "●", Effect.BROKEN: "✕", Effect.OPEN: "○"}
RUN_STATE_WORDS = {
    "partial": "the run is partial: only some of its checks have been run",
    "running": "the run has not finished",
}


@dataclass(frozen=True)
class Banner:
    """The verdict in one line and one sentence. `tone` picks a colour that the words have already said."""

    met: bool
    title: str
    sentence: str
    exit_words: str
    tone: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class CellView:
    """One obligation in one layer. `effect` is None where the contract plans no check and asks for none."""

    layer: Layer
    effect: Effect | None
    outcomes: str
    reach: str
    required: bool
    checks: tuple[str, ...]

    @property
    def words(self) -> str:
        """The whole cell as one line."""
        if self.effect is None:
            return "no check planned"
        need = "required" if self.required else "not required"
        return f"{self.effect}: {self.outcomes}; {self.reach}; {need}"


@dataclass(frozen=True)
class Attention:
    """Checks that are not DISCHARGED, for one reason, in one layer."""

    effect: Effect
    outcome: str
    layer: Layer
    reason: str
    required: bool
    checks: tuple[str, ...]


def banner(report: Report) -> Banner:
    """The verdict. Met only when the judge says so and the run is complete."""
    verdict, state = report["verdict"], report["run_state"]
    reasons = _first([NO_WORKSPACE] * of_nobody(report) + verdict["reasons"])
    exit_ = Exit(verdict["exit"])
    if state != "complete":
        sentence = f"No verdict: {RUN_STATE_WORDS[state]}."
        words = "no verdict on the gate" if verdict["met"] else f"{verdict['code']} ({EXIT_MEANING[exit_]})"
        return Banner(False, "GATE NOT MET", sentence, words, "open", reasons)
    words = f"{verdict['code']} ({EXIT_MEANING[exit_]})"
    if verdict["met"]:
        done = plural(len(report["obligations"]), "obligation")
        sentence = f"All {done} are discharged in every layer that profile {report['profile']} requires."
        spare = optional_open(report)
        sentence += f" {plural(spare, 'check')} outside that profile stay open." if spare else ""
        return Banner(True, "GATE MET", sentence, words, "discharged", reasons)
    tone = "broken" if exit_ in (Exit.BROKEN, Exit.CRASH, Exit.USAGE) else "open"
    why = f"{EXIT_MEANING[exit_].capitalize()}: {obligation_counts(report)}."
    return Banner(False, "GATE NOT MET", why, words, tone, reasons)


def _first(reasons: list[str], limit: int = 8) -> tuple[str, ...]:
    more = len(reasons) - limit
    return (
        (*reasons[:limit], f"and {more} more of {len(reasons)} reasons, in the tables below")
        if more > 0
        else (*reasons,)
    )


def obligation_counts(report: Report) -> str:
    """5 of 6 obligations discharged, 0 broken, 1 open."""
    effects = [ob["effect"] for ob in report["obligations"]]
    total = plural(len(effects), "obligation")
    return f"{effects.count('DISCHARGED')} of {total} discharged, {_rest(effects)}"


def check_counts(report: Report) -> str:
    """41 of 60 checks discharged, 0 broken, 19 open (18 of them not required)."""
    effects = [c["effect"] for c in report["checks"]]
    optional = optional_open(report)
    spare = f" ({optional} of them not required)" if optional else ""
    return f"{effects.count('DISCHARGED')} of {plural(len(effects), 'check')} discharged, {_rest(effects)}{spare}"


def optional_open(report: Report) -> int:
    """How many checks are open that the profile does not require."""
    return sum(len(a.checks) for a in attention(report) if not a.required and a.effect is Effect.OPEN)


def mutant_counts(report: Report) -> str:
    """20 of 21 mutants killed, 1 survived a check, 0 not tried."""
    words = [mutant_words(m) for m in report["mutants"]]
    rest = f"{words.count('SURVIVED')} survived a check, {words.count('NOT TRIED')} not tried"
    return f"{words.count('KILLED')} of {plural(len(words), 'mutant')} killed, {rest}"


def _rest(effects: list[str]) -> str:
    return f"{effects.count('BROKEN')} broken, {effects.count('OPEN')} open"


def outcome_words(check: Mapping[str, Any]) -> str:
    """The outcome, with the expectation where that is a refutation: "REFUTED as expected"."""
    outcome = Outcome(check["outcome"])
    if Expect(check["expect"]) is Expect.HOLDS:
        return str(outcome)
    return f"{outcome} as expected" if outcome is Outcome.REFUTED else f"{outcome} (expected REFUTED)"


def reach_words(check: Mapping[str, Any]) -> str:
    """How far the answer goes; an undischarged check establishes nothing."""
    if effect_of(check) is not Effect.DISCHARGED:
        return "nothing established"
    if Outcome(check["outcome"]) is Outcome.REFUTED:
        return "counterexample"
    return REACH_WORDS[Reach(check["reach"])] if check.get("reach") else "no reach stated"


def label(check: Mapping[str, Any]) -> str:
    """How far the answer goes in full words, derived from what the harness did where it is a solver's proof."""
    words, scope = reach_words(check), check.get("stats", {}).get("scope")
    reach = next((r for r, known in REACH_WORDS.items() if known == words), None)
    if reach is None:
        return words
    return Scope(**scope).label if scope else LABELS[reach]


def cell(report: Report, ob: Mapping[str, Any], layer: Layer) -> CellView:
    """The matrix cell, derived from its checks and never better than the judge's word."""
    stated = ob["cells"].get(layer)
    if stated is None or (not stated["checks"] and not stated["required"]):
        return CellView(layer, None, "", "", False, ())
    if not stated["checks"]:
        return CellView(layer, Effect.OPEN, "no check", "nothing established", True, ())
    by_id = {c["id"]: c for c in report["checks"]}
    rows = [by_id[c] for c in stated["checks"]]
    effect = worst([Effect(stated["effect"] or Effect.OPEN), *(effect_of(r) for r in rows)])
    outcomes = counted(outcome_words(r) for r in rows)
    reach = _cell_reach(stated, rows) if effect is Effect.DISCHARGED else "nothing established"
    return CellView(layer, effect, outcomes, reach, bool(stated["required"]), tuple(stated["checks"]))


def _cell_reach(stated: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    """Reach of the contract's model; what is known beyond it of another subject is reported as such."""
    words = list(dict.fromkeys(reach_words(r) for r in rows if of_model(stated, r)))
    known = [w for w in REACH_WORDS.values() if w in words]
    proved = [w.removeprefix("proved, ") for w in known if w.startswith("proved, ")]
    parts = [f"proved, {' + '.join(proved)}"] if proved else []
    parts += [w for w in known or words if not w.startswith("proved, ")]
    shown = {(r.get("subject"), r.get("reach")) for r in rows if effect_of(r) is Effect.DISCHARGED}
    further = [b for b in stated.get("beyond", ()) if (b["subject"], b["reach"]) in shown]
    return "; ".join([*parts, *_further(further)])


def _further(known: list[Mapping[str, Any]], limit: int = 2) -> list[str]:
    """What is known of other subjects, by name where they are few, else counted by reach."""
    if len(known) <= limit:
        return [f"of {b['subject']}: {b['reach']}" for b in known]
    reaches = [str(b["reach"]) for b in known]
    return [f"of {plural(reaches.count(r), 'other subject')}: {r}" for r in dict.fromkeys(reaches)]


def of_model(stated: Mapping[str, Any], check: Mapping[str, Any]) -> bool:
    """Whether a check of a cell is about the contract's own model (or its PyTorch step), and not another subject."""
    return not stated.get("subject") or check.get("subject") == stated["subject"]


def matrix(report: Report) -> list[tuple[Mapping[str, Any], list[CellView]]]:
    """Obligation by layer."""
    return [(ob, [cell(report, ob, layer) for layer in Layer]) for ob in report["obligations"]]


def cell_counts(ob: Mapping[str, Any]) -> str:
    """3 of 3 required: the obligation's required cells or checks, as the judge counted them."""
    return f"{ob['counts']['discharged']} of {ob['counts']['required']} required"


def reach_of(report: Report, ob: Mapping[str, Any]) -> dict[Reach, list[str]]:
    """The discharged checks of an obligation that hold of the contract's model, by reach."""
    found: dict[Reach, list[str]] = {reach: [] for reach in Reach}
    cells = {c: stated for stated in ob["cells"].values() for c in stated["checks"]}
    for check in report["checks"]:
        holds = effect_of(check) is Effect.DISCHARGED and check["outcome"] == Outcome.HOLDS
        if check["id"] in cells and holds and check.get("reach") and of_model(cells[check["id"]], check):
            found[Reach(check["reach"])].append(check["id"])
    return found


def largest(report: Report, ob: Mapping[str, Any]) -> str:
    """Up to which bounds an obligation is proved: those of its proof, or of several the largest of each bound."""
    names, found = reach_of(report, ob)[Reach.BOUNDED], dict[str, Any]()
    every = [{b["name"]: b["value"] for b in c.get("bounds") or []} for c in report["checks"] if c["id"] in names]
    for name, number in (pair for each in every for pair in each.items()):
        found[name] = max(found.get(name, number), number)
    several = any(each != every[0] for each in every)
    start = "the largest bounds, each of some proof: " if several else "up to "
    return start + ", ".join(f"{name} = {number}" for name, number in found.items())


def strongest(report: Report) -> list[tuple[str, str, list[str]]]:
    """For each reach: its meaning and the DISCHARGED obligations whose strongest reach it is; the others last."""
    by_reach: dict[Reach | None, list[str]] = {r: [] for r in Reach} | {None: []}
    for ob in report["obligations"]:
        found = reach_of(report, ob) if ob["effect"] == Effect.DISCHARGED else {}
        by_reach[next((r for r in Reach if found.get(r)), None)].append(ob["id"])
    rows = [(REACH_WORDS[r], REACH_MEANING[r], by_reach[r]) for r in Reach]
    rest = "BROKEN or OPEN: nothing is claimed, whatever single checks have shown."
    return [*rows, ("nothing established", rest, by_reach[None])]


def attention(report: Report) -> list[Attention]:
    """Every undischarged check, required and broken first, grouped by outcome, layer and reason."""
    needed = required_ids(report)
    groups: dict[tuple[Effect, str, Layer, str, bool], list[str]] = {}
    for check in report["checks"]:
        effect = effect_of(check)
        if effect is not Effect.DISCHARGED:
            key = (effect, outcome_words(check), Layer(check["layer"]), check["reason"], check["id"] in needed)
            groups.setdefault(key, []).append(check["id"])
    rows = [Attention(*key, checks=tuple(ids)) for key, ids in groups.items()]
    return sorted(rows, key=lambda a: (not a.required, a.effect is not Effect.BROKEN))


def by_layer(report: Report) -> list[tuple[Layer, list[Mapping[str, Any]]]]:
    """The checks, layer by layer."""
    rows = [(layer, [c for c in report["checks"] if c["layer"] == layer]) for layer in Layer]
    return [(layer, checks) for layer, checks in rows if checks]


def criterion_words(criterion: Mapping[str, Any]) -> str:
    """MET or NOT MET."""
    return "MET" if criterion["met"] is True else "NOT MET"


def criterion_effect(report: Report, criterion: Mapping[str, Any]) -> Effect:
    """The tone of a criterion: DISCHARGED when met, else BROKEN where one of its obligations is."""
    if criterion["met"] is True:
        return Effect.DISCHARGED
    effects = {ob["id"]: ob["effect"] for ob in report["obligations"]}
    broken = any(effects.get(name) == Effect.BROKEN for name in criterion["obligations"])
    return Effect.BROKEN if broken else Effect.OPEN


def waiver_words(waiver: Mapping[str, Any]) -> str:
    """A waiver in one line: its state, what it excuses, whose it is, until when, and why."""
    where = waiver["obligation"] + (f" x {waiver['layer']}" if waiver["layer"] else ", every layer")
    said = f"Waiver {waiver['state']}: {where}, {waiver['owner']}, until {waiver['expires']}: {waiver['reason']}"
    return said + (f" (open: {', '.join(waiver['cells'])})" if waiver["cells"] else "")


def seeded_effect(gate: Mapping[str, Any]) -> Effect:
    """The tone of the gate's own falsification: OPEN when no run shows it."""
    red = (gate.get("falsification") or {}).get("turned_red")
    return Effect.DISCHARGED if red is True else Effect.OPEN if red is None else Effect.BROKEN


def seeded_words(gate: Mapping[str, Any]) -> str:
    """Whether the gate's own falsification turned it red."""
    seeded = gate.get("falsification") or {}
    red = seeded.get("turned_red")
    if red is True:
        return "TURNED RED, as it must"
    return "NOT SHOWN" if red is None else "STAYED GREEN: the gate cannot see the bug that it must catch"


def mutant_words(mutant: Mapping[str, Any]) -> str:
    """KILLED only when some check killed it and none let it live."""
    if mutant["survived"]:
        return "SURVIVED"
    return "KILLED" if mutant["killed_by"] else "NOT TRIED"


def mutant_effect(mutant: Mapping[str, Any]) -> Effect:
    """The tone of a mutant's row; the templates ask for it."""
    words = mutant_words(mutant)
    return {"KILLED": Effect.DISCHARGED, "SURVIVED": Effect.BROKEN}.get(words, Effect.OPEN)


def covers_words(check: Mapping[str, Any]) -> str:
    """2 of 3 covers reached."""
    covers = check.get("covers") or []
    reached = sum(c.get("reached") is True for c in covers)
    return f"{reached} of {plural(len(covers), 'cover')} reached" if covers else "no cover"


def controls_words(check: Mapping[str, Any]) -> str:
    """4 of 4 controls killed."""
    controls = check.get("controls") or []
    killed = sum(c.get("killed") is True for c in controls)
    return f"{killed} of {plural(len(controls), 'control')} killed" if controls else "no control"


def counterexamples(report: Report) -> Iterator[Mapping[str, Any]]:
    """Checks that carry a counterexample of the subject itself."""
    return (c for c in report["checks"] if c.get("counterexample"))


def mutant_counterexamples(report: Report) -> list[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """For each mutant, the first control that shows one: (mutant, check id, control)."""
    shown = []
    for mutant in report["mutants"]:
        hits = ((c["id"], k) for c in report["checks"] for k in c.get("controls") or [] if k["name"] == mutant["name"])
        first = next(((name, k) for name, k in hits if k.get("killed") and k.get("counterexample")), None)
        if first:
            shown.append((mutant, *first))
    return shown


def replay_words(replays: list[Mapping[str, Any]]) -> list[str]:
    """Where a counterexample was replayed, and whether it came back."""
    words: dict[Any, str] = {True: "reproduced", False: "NOT reproduced"}
    return [f"{r['on']}: {words.get(r.get('reproduced'), 'not replayed')}" for r in replays]


def values_words(counterexample: Mapping[str, Any], limit: int = 12) -> str:
    """The concrete numbers, at most `limit` of them, with the number left out."""
    values = counterexample.get("values") or {}
    shown = [f"{name} = {value(number)}" for name, number in list(values.items())[:limit]]
    if len(values) > limit:
        shown.append(f"and {len(values) - limit} more of {len(values)} in the evidence")
    return ", ".join(shown) or "no values recorded"


def bounds_words(check: Mapping[str, Any]) -> str:
    """micro_batches = 4, cycles = 2."""
    return ", ".join(f"{b['name']} = {b['value']}" for b in check.get("bounds") or []) or "none"


def backing_words(check: Mapping[str, Any]) -> str:
    """What stands behind a check that holds: certificates, lemmas, enumerations, solvers. Empty for others."""
    return judge.words(Stats.model_validate(check.get("stats") or {})) if check["outcome"] == Outcome.HOLDS else ""


def meaning(check: Mapping[str, Any]) -> str:
    """What the outcome established, from the vocabulary alone: the report's own word is not taken."""
    return MEANING[Outcome(check["outcome"])]


def assumptions(report: Report) -> list[tuple[str, list[str]]]:
    """Each assumption with the obligations and checks that make it."""
    made: dict[str, list[str]] = {}
    for item in (*report["obligations"], *report["checks"]):
        for text in item.get("assumptions") or []:
            made.setdefault(str(text), []).append(item["id"])
    for words, check in assumed(report):
        made.setdefault(words, []).append(check)
    return list(made.items())


def freshness(check: Mapping[str, Any]) -> str:
    """Whether the evidence was made by this run, came from the cache, is stale, or is not there."""
    if check.get("fresh") is True:
        return "cached" if check.get("cached") else "run now"
    return "stale evidence" if check.get("evidence") else "no evidence"
