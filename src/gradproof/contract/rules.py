"""What the clauses of a contract say about each other: ids, references, bounds, coverage, the gate.

The rules read the tree and not the typed contract, so that they still speak when a clause elsewhere has the wrong
shape. A value of the wrong type is passed over here: its own problem is reported by contract.model.

A rule is hard (an error) or soft: an error in our dialect, a warning in a contract of the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradproof.contract.schema import DEVICES, IDENT, REFERENCE, Dtype
from gradproof.contract.yaml_reader import Node, Problem, meant
from gradproof.core.outcome import Expect, Layer


# -- What a contract says of the justification of its proofs: known lemmas, and requirements that meet some check.
def lemma_names(r: Rules) -> None:
    """Lemmas of stubs, and of harnesses of step contracts, are lemmas that there are; such a harness names some."""
    from gradproof.rounding.step_contracts import named

    rows = [(stub, stub.items("lemmas")) for stub in r.stubs]
    for clause in r.harnesses if r.ours else ():
        if clause.text("strategy") != "step_contract":
            continue
        rows.append((clause, clause.items("params", "lemmas")))
        if not rows[-1][1]:
            node, help = clause.under("params").get("lemmas") or clause, "name them under params: lemmas"
            r.error("GP103", node, f"no lemmas in {r.label(clause)}", "the step contracts to check", help)
    for clause, nodes in rows:
        for node in nodes:
            try:
                named([str(node.value)])
            except KeyError:
                found = f"{r.label(clause)} names {node.value!r}, which is no lemma and no pattern of any"
                r.error("GP136", node, found)


def requirements(r: Rules) -> None:
    """A strategy of which the gate requires something is the strategy of some harness."""
    used = sorted({s for clause in r.harnesses if (s := clause.text("strategy"))})
    for key, row in r.gate.pairs("require"):
        _repeated(r, row.words(), "the strategy")
        for node in row.words():
            if node.value not in used:
                found = f"{key} of {node.value!r} is required, and no harness has that strategy"
                r.error("GP135", node, found, f"of: {', '.join(used)}", "correct the strategy, or remove it")


# -- What a gate demands and excuses is of obligations that there are.
def demanded(r: Rules) -> None:
    """Each obligation under `least` and `waivers` is one of the contract's."""
    named = [(node.value, node) for row in r.gate.items("waivers") if (node := row.get("obligation")) is not None]
    for name, node in [*r.gate.pairs("least"), *named]:
        if isinstance(name, str) and name not in r.ids:
            found, help = f"{name!r}, which is no obligation of this contract", "correct the name, or remove it"
            r.error("GP137", node, found, f"one of: {', '.join(r.ids)}", meant(name, r.ids, help))


# -- What a step proof of a contract must state: its bounds, which are the largest n and the number of windows.
PRIMARY = "micro_batches"
STEP_BOUNDS = (PRIMARY, "windows")


def ints(*nodes: Node) -> bool:
    """Whether every node is a whole number."""
    return all(isinstance(n.value, int) and not isinstance(n.value, bool) for n in nodes)


def step_bounds(r: Rules) -> None:
    """A step proof states the largest n and the windows, and no bound that nothing reads."""
    for clause in r.steps:
        rows = {name: b for b in clause.items("bounds") if (name := b.text("name"))}
        for name in [n for n in STEP_BOUNDS if rows and n not in rows]:
            node = clause.get("bounds") or clause
            r.error("GP103", node, f"no bound {name!r} in {r.label(clause)}", f"the bound {name!r}", f"add {name!r}")
        for name, row in rows.items():
            if name not in STEP_BOUNDS:
                expected = f"one of: {', '.join(STEP_BOUNDS)}"
                r.error("GP105", row, f"the bound {name!r} of a step proof, which nothing reads", expected, "remove it")
        value = rows[PRIMARY].get("value") if PRIMARY in rows else None
        sizes = [n for n in clause.items("params", "n") if ints(n)]
        if value is None or not sizes or not ints(value) or value.value == max(n.value for n in sizes):
            continue
        largest = max(sizes, key=lambda n: n.value)
        place = f"{largest.line}:{largest.col}"
        found = f"the bound {PRIMARY} is {value.value}, but the largest n is {largest.value} at {place}"
        r.error("GP112", value, found)


SOLVER_LAYER = {"z3": {Layer.SMT}, "crosshair": {Layer.CROSSHAIR}}
_DTYPES: tuple[str, ...] = Dtype.__args__  # type: ignore[attr-defined]


ASKED: Mapping[str, tuple[str, str]] = {
    "GP108": ("each id once in the whole contract", "give one of the two another id"),
    "GP112": ("the same number in both", "correct the one that is wrong"),
    "GP113": ("a harness or a falsification test", "add a harness or a falsification test that names it"),
    "GP124": ("an id", "gradproof assigned one; write it down"),
    "GP125": ("one for each dtype", "nothing is gated on it until it has both"),
    "GP126": ("bounds with name, value, reason", "add bounds"),
    "GP127": ("harness: module:attribute", "it counts as NOT_RUN until it names module:attribute"),
    "GP128": ("the true number", "correct it or remove it"),
    "GP129": ("each entry once", "remove one of the two"),
    "GP130": ("a name in checks", "add it to checks, or remove it"),
    "GP131": ("a mutant that a check names", "correct it"),
    "GP133": ("the mutants that it must kill", "name them under mutants"),
    "GP136": (
        "a name that `python -m gradproof.rounding.lemma_store --list` prints, or a shell pattern of such names",
        "correct the name",
    ),
}
"""What is expected, and the help, of a rule that always asks for the same."""


def check(root: Node, ours: bool, path: Path, shown: str) -> tuple[list[Problem], list[Problem]]:
    """Errors and warnings of all rules."""
    rules = Rules(root, ours, path, shown)
    for rule in RULES:
        rule(rules)
    return rules.errors, rules.warnings


def tolerate(harness: str) -> str:
    """The harness of a field contract if it names an attribute of a module, else nothing."""
    return harness if REFERENCE.fullmatch(harness) else ""


class Rules:
    """The tree with what all rules need."""

    def __init__(self, root: Node, ours: bool, path: Path, shown: str) -> None:
        self.root, self.ours, self.path, self.shown = root, ours, path, shown
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self.gate = root.under("qa_gate")
        self.obligations = root.items("proof_obligations")
        self.harnesses = root.items("kani_harnesses")
        self.tests = root.items("falsification_tests")
        self.stubs = root.items("stubs")
        self.steps = root.items("step_proofs")
        self.claims = [*self.harnesses, *self.steps, *self.tests]
        self.ids = [i for n in self.obligations if (i := n.text("id")) is not None]

    def _problem(self, code: str, node: Node, found: str, *asked: str) -> Problem:
        """`asked`: what is expected, and the help, where it is not what ASKED has for the code."""
        return Problem(code, self.shown, *node.place, found, *(asked or ASKED[code]))

    def error(self, code: str, node: Node, found: str, *asked: str) -> None:
        """A mistake at a node."""
        self.errors.append(self._problem(code, node, found, *asked))

    def warn(self, code: str, node: Node, found: str, *asked: str) -> None:
        """A warning at a node."""
        self.warnings.append(self._problem(code, node, found, *asked))

    def soft(self, code: str, node: Node, found: str, *asked: str) -> None:
        """A mistake in our dialect, a warning in a contract of the field."""
        (self.error if self.ours else self.warn)(code, node, found, *asked)

    def named(self, clause: Node) -> list[Node]:
        """Nodes of the obligation names in a check, from both spellings."""
        single = clause.under("obligation")
        return [*([single] if isinstance(single.value, str) else []), *clause.words("obligations")]

    def label(self, clause: Node) -> str:
        """The clause's id, or words in place of one."""
        return clause.text("id") or "a clause without id"


def _obligations(r: Rules) -> None:
    if not r.obligations:
        node = r.root.get("proof_obligations") or r.root
        r.error("GP115", node, "no obligation", "at least one under proof_obligations", "state what must hold")


def _unique_ids(r: Rules) -> None:
    seen: dict[str, Node] = {}
    for clause in [*r.obligations, *r.stubs, *r.claims, r.gate]:
        node = clause.under("id")
        if not isinstance(node.value, str):
            continue
        first = seen.setdefault(node.value, node)
        if first is not node:
            found = f"the id {node.value!r} again; it stands already at {first.line}:{first.col}"
            r.error("GP108", node, found)


def _dangling(r: Rules, node: Node, known: list[str], code: str, what: str, by: str) -> None:
    known = sorted(set(known))
    if node.value not in known:
        found, expected = f"{by} names {node.value!r}, which is no {what}", ", ".join(known) or "none is declared"
        help = meant(node.value, known, f"correct the name, or add the {what}")
        r.soft(code, node, found, f"one of: {expected}", help)


def _obligation_references(r: Rules) -> None:
    for clause in r.claims:
        for node in r.named(clause):
            _dangling(r, node, r.ids, "GP109", "obligation", r.label(clause))
        if not r.named(clause) and (r.ours or clause in r.harnesses) and isinstance(clause.value, dict):
            r.soft(
                "GP103",
                clause,
                f"no obligation in {r.label(clause)}",
                "obligation or obligations",
                "name what it checks",
            )
    for name, row in r.gate.pairs("criteria"):
        for node in row.words():
            _dangling(r, node, r.ids, "GP109", "obligation", f"the gate criterion {name!r}")


def _stub_references(r: Rules) -> None:
    known = [i for n in r.stubs if (i := n.text("id")) is not None]
    for clause in r.harnesses:
        for node in clause.words("stubs"):
            _dangling(r, node, known, "GP110", "stub", r.label(clause))
        if r.ours and clause.text("strategy") == "stub_float" and _absent(clause, "stubs"):
            r.error(
                "GP103",
                clause,
                f"no stub in {r.label(clause)}",
                "the stubs that stub_float rests on",
                "name them under stubs",
            )


def _absent(clause: Node, key: str) -> bool:
    """No such key, or an empty list; a value of the wrong type is no absence."""
    node = clause.get(key)
    return isinstance(clause.value, dict) and (node is None or node.value == [])


def _bounds(r: Rules) -> None:
    for clause in r.harnesses:
        total, rows = clause.get("bound"), clause.items("bounds")
        if total is not None and not rows and not r.ours:
            r.warn("GP126", total, f"a bound without name and reason in {r.label(clause)}")
        chosen = next((b for b in rows if b.text("name") == PRIMARY), rows[0] if rows else None)
        value = chosen.get("value") if chosen is not None else None
        if total is None or value is None or not ints(total, value) or total.value == value.value:
            continue
        name = chosen.text("name") if chosen is not None else ""
        found = f"bound {total.value}, but {name!r} is {value.value} at {value.line}:{value.col}"
        r.error("GP112", total, found)


def _repeated(r: Rules, nodes: list[Node], what: str, *keys: str) -> None:
    """No two nodes have one value, or the same texts under some keys."""
    seen: set[Any] = set()
    for node in nodes:
        value = " ".join(str(node.text(key)) for key in keys) if keys else node.value
        if value in seen:
            r.error("GP129", node, f"{what} {value} again")
        seen.add(value)


def _no_repetition(r: Rules) -> None:
    for clause in [*r.stubs, *r.claims]:
        _repeated(r, [b for b in clause.items("bounds") if b.text("name")], "the bound", "name")
        for key in ("mutants", "stubs", "formats", "obligations", "lemmas"):
            _repeated(r, clause.words(key), "the name")
    for clause in r.obligations:
        rows = [t for t in clause.items("tolerance") if t.text("dtype") and t.text("metric")]
        _repeated(r, rows, "the tolerance of", "dtype", "metric")


def _covered(r: Rules) -> None:
    named = {n.value for clause in r.claims for n in r.named(clause)}
    for clause in r.obligations:
        name = clause.text("id")
        if (name is not None and name not in named) or (name is None and not r.ours):
            r.soft("GP113", clause, f"no check for {name or clause.text('property')}")


def _layers(r: Rules) -> None:
    """Each required layer needs a check that can fill it."""
    can: dict[str, set[str]] = {}
    for clause in r.harnesses:
        layers_of = SOLVER_LAYER.get(clause.text("solver") or "", {Layer.SMT, Layer.CROSSHAIR})
        for n in r.named(clause):
            can.setdefault(n.value, set()).update(layers_of)
    for clause in [*r.steps, *r.tests]:
        devices = {device for device, _ in clause.pairs("params", "dtypes")} or set(DEVICES)
        devices = {Layer.STEP} if clause in r.steps else devices
        for n in r.named(clause):
            can.setdefault(n.value, set()).update(devices)
    for clause in r.obligations:
        name = clause.text("id")
        if name not in can:
            continue
        nodes = [*clause.words("layers", "ci"), *clause.words("layers", "release")]
        missing = {n.value: n for n in reversed(nodes) if n.value in set(Layer) and n.value not in can[name]}
        for value, node in missing.items():
            help = f"add a check of {name} on {value}, or do not require it"
            r.error(
                "GP132",
                node,
                f"{name} requires {value}, and no check runs there",
                f"of: {', '.join(sorted(can[name]))}",
                help,
            )


def _run_dtypes(r: Rules) -> None:
    for clause in r.tests:
        for device, row in clause.pairs("params", "dtypes"):
            if device not in DEVICES:
                r.error("GP105", row, f"the device {device!r}", f"one of: {', '.join(DEVICES)}", "correct the device")
            nodes = row.value if isinstance(row.value, list) else [row]
            for node in nodes:
                if node.value not in _DTYPES:
                    r.error(
                        "GP105", node, f"the dtype {node.value!r}", f"one of: {', '.join(_DTYPES)}", "correct the dtype"
                    )
            _repeated(r, row.words(), "the dtype")


def _gate(r: Rules) -> None:
    criteria, checks = dict(r.gate.pairs("criteria")), r.gate.words("checks")
    _repeated(r, checks, "the gate check")
    for node in checks:
        if node.value not in criteria:
            help = f"add {node.value!r} to criteria with the obligations that decide it"
            r.soft(
                "GP114", node, f"the gate check {node.value!r} without criteria", "the obligations that decide it", help
            )
    for name, node in criteria.items():
        if checks and name not in [n.value for n in checks]:
            r.error("GP130", node, f"criteria for {name!r}, which is no gate check")
    named = {m.value for clause in r.claims for m in clause.words("mutants")}
    seeded = r.gate.under("seeded_bug")
    bugs = [seeded] if isinstance(seeded.value, str) else seeded.words()
    _repeated(r, bugs, "the seeded bug")
    for bug in bugs:
        if bug.value not in named:
            r.error("GP131", bug, f"the seeded bug {bug.value!r}, which no check must kill")


def _subjects(r: Rules) -> None:
    if not r.ours:
        return
    node = r.root.get("subjects")
    given = dict(r.root.pairs("subjects"))
    wanted: list[tuple[bool, tuple[str, ...], str]] = [
        (bool(r.harnesses), ("model", "empty", "mutants"), "the harnesses"),
        (bool(r.steps), ("torch", "torch_empty", "torch_mutants"), "the step proofs"),
        (bool(r.tests and not r.steps), ("torch", "torch_empty", "torch_mutants"), "the falsification tests"),
    ]
    for needed, keys, who in wanted:
        for key in keys if needed else ():
            if key not in given:
                r.error(
                    "GP103",
                    node or r.root,
                    f"no {key!r} in subjects",
                    f"{key!r}, which {who} need",
                    "add it as module:attribute",
                )


def _mutants(r: Rules) -> None:
    if not r.ours:
        return
    for clause in [*r.stubs, *r.claims]:
        expect = clause.get("expect")
        if _absent(clause, "mutants") and (expect is None or expect.value == Expect.HOLDS):
            r.error("GP133", clause, f"no mutants in {r.label(clause)}")


def _summary(r: Rules) -> None:
    total = r.root.under("verification_summary", "total_obligations")
    if ints(total) and total.value != len(r.obligations):
        found = f"total_obligations {total.value}, but the contract has {len(r.obligations)}"
        r.soft("GP128", total, found)


def _depends(r: Rules) -> None:
    for node in r.root.words("metadata", "depends_on"):
        if IDENT.fullmatch(node.value) and beside(r.path, node.value) is None:
            found, expected = f"depends_on {node.value}, which is not there", f"a folder {node.value}"
            help = "add that contract, or remove the name"
            r.warn("GP123", node, found, f"{expected} beside this contract", help)


def beside(path: Path, name: str) -> Path | None:
    """The file of the contract called `name` that the contract at `path` builds on, or None."""
    full = path.absolute()
    home = full.parent.parent if full.stem == "contract" else full.parent
    places = (home / name / "contract.yaml", home / f"{name}.yaml")
    return next((p for p in places if p.is_file()), None)


def _field_gaps(r: Rules) -> None:
    if r.ours:
        return
    for clause in r.obligations:
        if isinstance(clause.value, dict) and clause.text("id") is None:
            r.warn("GP124", clause, "an obligation without id")
        if (tolerance := clause.get("tolerance")) is not None and tolerance.value is not None:
            r.warn("GP125", tolerance, "a tolerance without dtype and metric")
    for clause in [*r.harnesses, *r.tests]:
        if isinstance(clause.value, dict) and not tolerate(clause.text("harness") or ""):
            r.warn("GP127", clause, f"{r.label(clause)} names nothing that can be run")
    if r.root.get("qa_gate") is None:
        r.warn("GP134", r.root, "no qa_gate", "a gate", "without a gate nothing can be released on this contract")


RULES: tuple[Callable[[Rules], None], ...] = (
    _obligations, _unique_ids, _obligation_references, _stub_references, _bounds, step_bounds, _no_repetition, _covered,
    _layers, _run_dtypes, _gate, _subjects, _mutants, _summary, _depends, _field_gaps, lemma_names, requirements,
    demanded,
)  # fmt: skip
