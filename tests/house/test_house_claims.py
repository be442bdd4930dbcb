"""What the contracts claim, and what the registries, the error codes and the documents say, agree with each other."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from house_rules import (
    PRODUCT,
    REPOSITORY,
    Source,
    StatedBound,
    codes_in,
    poor_reasons,
    sources,
    told_commands,
    told_targets,
)

from gradproof.cli import COMMANDS, cli
from gradproof.contract.model import Contract, load
from gradproof.contract.schema import Obligation
from gradproof.core.check import Check
from gradproof.core.outcome import Expect, Kind, Layer
from gradproof.report.text import error_codes
from gradproof.verdict.plan import plan
from models.registry import CROSSING

CONTRACTS = sorted(REPOSITORY.glob("proofs/*/contract.yaml"))
THREAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*#[1-9]\d*")
REGISTRIES = ("mutants", "torch_mutants")
FEWEST_MUTANTS = 3

each_contract = pytest.mark.parametrize("path", CONTRACTS, ids=lambda p: p.parent.name)
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
each_page = pytest.mark.parametrize("page", [REPOSITORY / "README.md", *PAGES], ids=lambda p: p.name)


@cache
def contract_at(path: Path) -> Contract:
    """A contract of the repository."""
    return load(path)


def registries(contract: Contract, name: str) -> list[str]:
    """The registries of mutants of one kind: the contract's, and those of obligations with subjects of their own."""
    subjects = [contract.subjects, *(o.subjects.stated() for o in contract.obligations)]
    return list(dict.fromkeys(s[name] for s in subjects if name in s))


def registry(contract: Contract, name: str) -> Mapping[str, Any]:
    """All mutants of one kind. Raises ValueError where two registries have another bug under one name."""
    found: dict[str, Any] = {}
    for named in registries(contract, name):
        module, _, attribute = named.partition(":")
        for key, mutant in getattr(import_module(module), attribute).items():
            if found.setdefault(key, mutant) is not mutant:
                raise ValueError(f"two mutants are called {key!r}")
    return found


METHODS = (
    ("Z3", Kind.SMT, Layer.SMT),
    ("CrossHair", Kind.CROSSHAIR, Layer.CROSSHAIR),
    ("falsification", Kind.TORCH, Layer.CPU),
)


def missing_methods(obligations: Iterable[Obligation], checks: Iterable[Check]) -> list[str]:
    """Obligations without a Z3 harness, a CrossHair harness or a falsification test, where their layers ask it."""
    have = {(name, c.kind) for c in checks if c.expect is Expect.HOLDS for name in c.obligations}
    return [
        f"{o.id}: no {method}"
        for o in obligations
        for method, kind, layer in METHODS
        if layer in o.layers.ci and (o.id, kind) not in have
    ]


def poor_mutants(mutants: Mapping[str, Any], obligations: Iterable[str]) -> Iterator[str]:
    """Mutants of no obligation, without a public thread or under another name; obligations with fewer than three."""
    known = list(obligations)
    for key, mutant in mutants.items():
        if mutant.name != key:
            yield f"{key} calls itself {mutant.name}"
        if mutant.obligation not in known:
            yield f"{key} breaks {mutant.obligation!r}, which is no obligation"
        if not THREAD.fullmatch(mutant.reference) and mutant.reference != CROSSING:
            yield f"{key} has no public thread: {mutant.reference!r}"
    for name in known:
        count = sum(mutant.obligation == name for mutant in mutants.values())
        if count < FEWEST_MUTANTS:
            yield f"{name} has {count} mutants"


def needed(contract: Contract, name: str) -> list[str]:
    """Obligations that must have mutants in a registry: those that a layer of its checks must discharge."""
    layers = {"mutants": {Layer.SMT, Layer.CROSSHAIR}, "torch_mutants": {Layer.STEP, Layer.CPU, Layer.CUDA}}[name]
    return [o.id for o in contract.obligations if layers & set(o.layers.ci)]


def unclaimed_mutants(mutants: Iterable[str], on_torch: Iterable[str], checks: Iterable[Check]) -> list[str]:
    """Mutants that no harness must kill, and PyTorch mutants that no falsification test must kill."""
    rows = [(m, c.kind) for c in checks if c.expect is Expect.HOLDS for m in c.mutants]
    proved = {m for m, kind in rows if kind in (Kind.SMT, Kind.CROSSHAIR)}
    falsified = {m for m, kind in rows if kind is Kind.TORCH}
    lost = [f"{m}: no harness" for m in mutants if m not in proved]
    return lost + [f"{m}: no falsification test" for m in on_torch if m not in falsified]


def bounds_of(contract: Contract) -> list[StatedBound]:
    """Every bound that a contract states, with the clause that states it."""
    clauses = [*contract.stubs, *contract.harnesses, *contract.falsification_tests]
    return [StatedBound(c.id, b.name, b.value, b.reason) for c in clauses for b in c.bounds]


def unknown_commands(text: str) -> list[str]:
    """Commands and options that a text tells and the command line does not have."""
    lost = []
    for name, options in sorted(told_commands(text)):
        command = cli.get_command(click.Context(cli), name)
        if command is None:
            lost.append(f"gradproof {name}")
            continue
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        lost += [f"gradproof {name} {option}" for option in options if option not in known]
    return lost


def text_of(name: str) -> str:
    """The text of a file of the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def headings(text: str) -> set[str]:
    """The anchors of a page, one for each heading, as GitHub forms them."""
    lines = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def lost_links(page: Path, text: str) -> list[str]:
    """Links of a page to files and headings that are not there; addresses are not looked up."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        there = target.exists()
        if there and heading:
            there = heading in headings(target.read_text(encoding="utf-8") if name else text)
        lost += [] if there else [link]
    return lost


@each_contract
def test_every_obligation_has_every_method(path: Path) -> None:
    contract = contract_at(path)
    assert missing_methods(contract.obligations, plan(contract)) == []
    assert all(o.layers.ci for o in contract.obligations)


def test_the_kernel_contract_asks_for_every_method() -> None:
    kernel = next(c for c in map(contract_at, CONTRACTS) if c.id == "gradient-accumulation-kernel-v1")
    assert all({layer for _, _, layer in METHODS} <= set(o.layers.ci) for o in kernel.obligations)


@each_contract
def test_a_missing_method_is_seen(path: Path) -> None:
    contract = contract_at(path)
    rows, checks = contract.obligations, plan(contract)
    asked = {layer: sum(layer in o.layers.ci for o in rows) for _, _, layer in METHODS}
    for _, kind, layer in METHODS:
        assert len(missing_methods(rows, [c for c in checks if c.kind is not kind])) == asked[layer]
    refuting = [replace(c, expect=Expect.REFUTED) for c in checks]
    assert len(missing_methods(rows, refuting)) == sum(asked.values())


@each_contract
@pytest.mark.parametrize("name", REGISTRIES)
def test_every_mutant_names_its_obligation_and_its_thread(path: Path, name: str) -> None:
    contract = contract_at(path)
    assert list(poor_mutants(registry(contract, name), needed(contract, name))) == []


@each_contract
def test_poor_mutants_are_seen(path: Path) -> None:
    contract = contract_at(path)
    names, mutants = needed(contract, "mutants"), registry(contract, "mutants")
    key, one = next(iter(mutants.items()))
    for changed in ({"obligation": "GA-EQ-999"}, {"reference": "a colleague"}, {"reference": ""}, {"name": "other"}):
        assert list(poor_mutants({**mutants, key: replace(one, **changed)}, names)) != [], changed
    kept = [k for k, m in mutants.items() if m.obligation == names[0]][:2]
    few = {k: m for k, m in mutants.items() if m.obligation != names[0] or k in kept}
    assert list(poor_mutants(few, names)) == [f"{names[0]} has 2 mutants"]


@each_contract
def test_every_mutant_is_somebodys_to_kill(path: Path) -> None:
    contract = contract_at(path)
    both = [registry(contract, name) for name in REGISTRIES]
    assert unclaimed_mutants(both[0], both[1], plan(contract)) == []


@each_contract
def test_a_mutant_that_nobody_must_kill_is_seen(path: Path) -> None:
    checks = plan(contract_at(path))
    assert unclaimed_mutants(["unheard_of"], ["unheard_of"], checks) == [
        "unheard_of: no harness",
        "unheard_of: no falsification test",
    ]
    without = [c for c in checks if c.kind is not Kind.TORCH]
    assert unclaimed_mutants([], ["missing_scale"], without) == ["missing_scale: no falsification test"]


@each_contract
def test_both_registries_agree(path: Path) -> None:
    """A PyTorch mutant is the twin of a mutant of the model, or its registry's module says why it has none.

    Twins have the same name, obligation and thread; the reasons stand in `TORCH_ONLY` beside the registry.
    """
    contract = contract_at(path)
    models, on_torch = (registry(contract, name) for name in REGISTRIES)
    rows = {name: (m.obligation, m.reference) for name, m in models.items()}
    modules = [named.partition(":")[0] for named in registries(contract, "torch_mutants")]
    alone = dict(ChainMap(*(import_module(m).TORCH_ONLY for m in modules)))
    assert set(alone) == set(on_torch) - set(models)
    assert all(reason.strip() for reason in alone.values())
    shared = {name: (m.obligation, m.reference) for name, m in on_torch.items() if name not in alone}
    assert shared.items() <= rows.items()


@each_contract
def test_every_bound_has_a_reason_of_its_own(path: Path) -> None:
    bounds = bounds_of(contract_at(path))
    assert len(bounds) > 0
    assert list(poor_reasons(bounds)) == []


def test_poor_reasons_are_seen() -> None:
    first = StatedBound("K-1", "micro_batches", 4, "every N from 1 to 4, as in the field's contract")
    assert list(poor_reasons([first, replace(first, owner="K-2")])) == []
    for changed in ({"reason": "fast enough"}, {"name": "cycles"}, {"value": 8}):
        assert len(list(poor_reasons([first, replace(first, owner="K-2", **changed)]))) == 1, changed


@each_contract
def test_the_gates_own_falsification_reaches_proofs_and_runs(path: Path) -> None:
    contract = contract_at(path)
    gate = next(c for c in plan(contract) if c.kind is Kind.GATE)
    layers = {check["layer"] for check in gate.params["subchecks"]}
    recorded = {Layer.STEP} if contract.step_proofs else set()
    assert layers == {Layer.SMT, Layer.CPU} | recorded


def test_every_code_is_explained_and_every_explanation_is_used() -> None:
    used = {c for s in sources(PRODUCT) for c in codes_in(s)} | {"GP415"}  # evidence/certificate.py prints it by itself
    assert used - set(error_codes()) == set()
    assert set(error_codes()) - used == set()


def test_codes_are_found_in_values_and_nowhere_else() -> None:
    text = '"""GP998 in a docstring."""\nraise GradproofError("GP999", f"{x} GP997", "")  # GP996\n'
    assert codes_in(Source.of("a.py", text)) == {"GP999"}


@pytest.mark.parametrize("code", error_codes())
def test_an_explanation_says_something(code: str) -> None:
    meaning, help = error_codes()[code]
    assert len(meaning) > 20
    assert len(help) > 10
    assert meaning.endswith(".")
    assert help.endswith(".")


@each_page
def test_a_page_names_commands_and_targets_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert unknown_commands(text) == []
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert told_targets(text) <= targets


def test_the_readme_and_the_page_of_commands_name_what_a_reader_needs() -> None:
    readme, page = (text_of(name) for name in ("README.md", "docs/commands.md"))
    assert {name for name, _ in told_commands(page)} >= set(COMMANDS)
    assert {name for name, _ in told_commands(readme)} >= {"check", "watch", "init"}
    assert {"verify", "test"} <= told_targets(readme) & told_targets(page)


@each_page
def test_a_page_links_to_what_exists(page: Path) -> None:
    assert lost_links(page, page.read_text(encoding="utf-8")) == []


def test_a_lost_link_is_seen() -> None:
    page = REPOSITORY / "docs/scale.md"
    text = "[a](ci.md), [b](ci.md#formats), [c](#a-part), [d](https://example.org)\n## A part\n"
    assert lost_links(page, text) == []
    assert lost_links(page, "[a](lost.md), [b](ci.md#lost), [c](#lost)") == ["lost.md", "ci.md#lost", "#lost"]


@each_page
def test_a_page_names_checks_that_exist(page: Path) -> None:
    checks = {c.id.partition("@")[0] for path in CONTRACTS for c in plan(contract_at(path))}
    stated = set(re.findall(r"\b(?:KANI|CROSS|FALSIFY|STUB)-[A-Z]+-\d+\b", page.read_text(encoding="utf-8")))
    assert stated - checks == set()


def test_the_pages_name_every_obligation_of_the_first_contract_and_its_checks() -> None:
    [path] = [path for path in CONTRACTS if path.parent.name == "gradient-accumulation-kernel-v1"]
    text = text_of("docs/proofs.md")
    assert [o.id for o in contract_at(path).obligations if f"| {o.id} |" not in text] == []


def test_unknown_commands_are_seen() -> None:
    text = "Run `gradproof verfy` or\n\n```sh\n$ gradproof verify --proflie release\nmake tset\n```\nand `make test`."
    assert unknown_commands(text) == ["gradproof verfy", "gradproof verify --proflie"]
    assert told_targets(text) == {"tset", "test"}
    assert unknown_commands("gradproof proves much, and `gradproof verify --jobs 2` shows it") == []
    assert unknown_commands("```\ngradproof list --format json\ngradproof prove -k X && gradproof gate\n```") == []


def test_the_table_of_commands_is_the_command_line() -> None:
    context = click.Context(cli)
    assert [name for name in cli.list_commands(context) if cli.get_command(context, name) is None] == []
    files = {p.stem for p in (REPOSITORY / "src/gradproof/cli").glob("*.py")} - {"__init__"}
    assert {module.partition(":")[0] for module, _ in COMMANDS.values()} <= files
