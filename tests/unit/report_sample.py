"""Sample report dicts in the shape of gradproof-report/2: green, red, partial; GPU rows NOT_RUN or run.

The numbers of the accumulation rows follow E_N = u (N^2 - 1) / (3 N), the proven worst case of left-to-right
accumulation over |g| <= 1; measured values are fixed fractions of it.
"""

from __future__ import annotations

import copy
from typing import Any

import study_sample as studies

from gradproof.core.outcome import DECISION, EXIT_CODE, MEANING, Exit, Expect, Outcome

Report = dict[str, Any]
UNIT = {"fp32": 2.0**-24, "fp32-tf32": 2.0**-24, "fp16": 2.0**-24, "bf16": 2.0**-24, "fp16-params": 2.0**-24}
SIZES = (1, 2, 4, 8, 32)
NETS = ("linear", "mlp", "conv", "transformer")
NO_GPU = "no CUDA device is present on this machine"
HOLDS = Outcome.HOLDS
OBLIGATIONS = {
    "GA-EQ-001": ("equivalence", "accumulated gradient equals the full-batch gradient", "‖G_accum − G_full‖ < ε"),
    "GA-INV-001": ("invariant", "loss scaling", "L = (1/N) Σ L_i, a mean and not a sum"),
    "GA-INV-002": ("invariant", "no stale gradient", "G = 0 at the first micro-batch of every window"),
    "GA-INV-003": ("invariant", "one step per window", "steps = ⌈M / N⌉, nothing left unapplied"),
    "GA-INV-004": ("bound", "fp32 accumulation buffer", "|G_accum − mean g_i| ≤ E_N(fp32), N ≥ 8"),
    "GA-INV-005": ("invariant", "clip the accumulated gradient", "clip once, after the last micro-batch"),
}
# id, layer, obligations, title, strategy, solver, bounds, mutants, seconds
PROOFS: list[tuple[str, str, list[str], str, str, list[tuple[str, int]], list[str], float]] = [
    ("KANI-GA-001", "smt", ["GA-EQ-001"], "numerical equivalence, stubbed rounding", "stub_float",
     [("micro_batches", 4)], ["missing_scale", "divided_twice", "rescaled_buffer"], 6.82),
    ("KANI-GA-002", "smt", ["GA-INV-001", "GA-INV-002"], "loss mean and zeroing", "exhaustive",
     [("micro_batches", 8), ("cycles", 2)], ["loss_sum", "zero_skipped"], 3.4),
    ("KANI-GA-003", "smt", ["GA-INV-003"], "step count over every interleaving", "exhaustive",
     [("micro_batches", 8), ("cycles", 3), ("paths", 512)], ["step_per_micro_batch", "tail_dropped"], 11.07),
    ("KANI-GA-004", "smt", ["GA-INV-004"], "buffer format by value", "stub_float",
     [("micro_batches", 8)], ["fp16_buffer", "bf16_buffer"], 9.55),
    ("KANI-GA-005", "smt", ["GA-INV-005"], "clip on the total", "exhaustive",
     [("micro_batches", 4), ("elements", 2)], ["clip_per_micro_batch", "clip_before_last"], 4.1),
    ("KANI-GA-006", "smt", ["GA-EQ-001"], "unequal counts, naive 1/N form", "exhaustive",
     [("micro_batches", 4)], ["mean_of_means"], 0.61),
    ("CROSS-GA-001", "crosshair", ["GA-EQ-001"], "exact mean over Fractions", "exhaustive",
     [("micro_batches", 3)], ["missing_scale"], 12.3),
    ("CROSS-GA-002", "crosshair", ["GA-INV-001", "GA-INV-002"], "loss mean and zeroing", "exhaustive",
     [("micro_batches", 3)], ["loss_sum"], 14.9),
    ("CROSS-GA-003", "crosshair", ["GA-INV-003"], "ceil(M/N) steps", "exhaustive",
     [("micro_batches", 6)], ["step_per_micro_batch"], 8.2),
    ("CROSS-GA-005", "crosshair", ["GA-INV-005"], "clip event order", "exhaustive",
     [("micro_batches", 3)], ["clip_per_micro_batch"], 7.7),
]  # fmt: skip
TESTS = {
    "FALSIFY-GA-001": ("GA-EQ-001", "accumulated matches full batch", ["missing_scale", "divided_twice"]),
    "FALSIFY-GA-002": ("GA-INV-002", "no leakage between cycles", ["zero_skipped"]),
    "FALSIFY-GA-003": ("GA-INV-003", "exactly 3 steps for 3N micro-batches", ["step_per_micro_batch"]),
    "FALSIFY-GA-004": ("GA-INV-005", "one large gradient clips once, on the total", ["clip_per_micro_batch"]),
    "FALSIFY-GA-005": ("GA-INV-004", "buffer dtype", ["fp16_buffer"]),
    "FALSIFY-GA-006": ("GA-INV-001", "loss mean", ["loss_sum"]),
}
DTYPES = {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "fp32-tf32", "fp16", "bf16")}
REFERENCES = {
    "missing_scale": ("GA-EQ-001", "https://github.com/karpathy/nanoGPT/issues/206"),
    "divided_twice": ("GA-EQ-001", "https://github.com/microsoft/Megatron-DeepSpeed/issues/42"),
    "rescaled_buffer": ("GA-EQ-001", "https://github.com/pytorch/torchtitan/issues/1732"),
    "mean_of_means": ("GA-EQ-001", "https://github.com/huggingface/transformers/issues/34191"),
    "loss_sum": ("GA-INV-001", "C104: window loss logged as the sum"),
    "zero_skipped": ("GA-INV-002", "C69: zero_grad never called"),
    "step_per_micro_batch": ("GA-INV-003", "https://github.com/huggingface/trl/issues/2618"),
    "tail_dropped": ("GA-INV-003", "C12, C42: last short window dropped"),
    "fp16_buffer": ("GA-INV-004", "https://github.com/microsoft/DeepSpeed/issues/1800"),
    "bf16_buffer": ("GA-INV-004", "https://github.com/google-deepmind/optax/issues/1567"),
    "clip_per_micro_batch": ("GA-INV-005", "C21, C93: clip inside the micro-batch loop"),
    "clip_before_last": ("GA-INV-005", "C94: clip before the last micro-batch"),
}
NUMBERS = {"g_1": "1", "g_2": "1/2", "g_3": "0", "g_4": "-1/3", "N": "4"}


def _replays() -> list[Report]:
    return [
        {"on": "concrete model, float64", "reproduced": True, "detail": "G_accum = 1.1667, mean = 0.2917"},
        {"on": "PyTorch step, cpu, fp32", "reproduced": True, "detail": "same clause"},
    ]


LOOP, STEP = "models.accumulation.loop:Accumulation", "models.accumulation.torch_steps:TorchStep"
SUBJECTS = {"smt": LOOP, "crosshair": LOOP, "cpu": STEP, "cuda": STEP}


def _control(name: str) -> Report:
    clause = REFERENCES.get(name, ("", ""))[0]
    values = {"clause": clause, "values": dict(NUMBERS), "found_by": "z3"}
    values |= {"trace": TRACE} if name == "zero_skipped" else {}
    return {"name": name, "kind": "mutant" if clause else "empty", "clause": clause, "outcome": "REFUTED",
            "killed": True, "reference": REFERENCES.get(name, ("", ""))[1], "reason": "refuted on its named clause",
            "counterexample": values, "replays": _replays(), "seconds": 0.2}  # fmt: skip


def check(name: str, layer: str, obligations: list[str], outcome: Outcome = HOLDS, **extra: Any) -> Report:
    """One check entry. Whatever `extra` names replaces the default."""
    base: Report = {
        "id": name, "kind": {"smt": "smt", "crosshair": "crosshair"}.get(layer, "torch"), "layer": layer,
        "title": name.lower(), "obligations": obligations, "expect": "holds", "outcome": str(outcome),
        "reason": "every clause holds on every path", "meaning": MEANING[outcome], "reach": "bounded",
        "domain": "|g_i| <= 1, equal micro-batches", "strategy": "exhaustive", "bounds": [], "stubs": [],
        "assumptions": ["equal-size, mean-reduced micro-batches", "no interaction between samples"], "solver": "z3",
        "seconds": 0.4, "fresh": True, "cached": False, "evidence": f"reports/evidence/{name.lower()}.json",
        "covers": [], "controls": [], "counterexample": None, "replays": [], "measurements": [],
        "environment": {"python": "3.11.7", "z3": "4.13.0", "torch": "2.13.0+cpu"},
        "stats": {"paths": 12, "queries": 48}, "finished_at": "2025-11-21T08:04:11Z", "subject": SUBJECTS[layer],
        "required": layer != "cuda",
    }  # fmt: skip
    made = base | extra
    made["effect"] = str(DECISION[Expect(made["expect"]), Outcome(made["outcome"])])
    return made


def _proofs() -> list[Report]:
    rows = [
        check("STUB-FL-001", "smt", [], title="rounding stub against fp16 and bf16, exhaustive", reach="all inputs",
              domain="every finite fp16 and bf16 pair", strategy="exhaustive", seconds=8.1, reason="0 violations"),
    ]  # fmt: skip
    for name, layer, obligations, title, strategy, bounds, mutants, took in PROOFS:
        solver = "z3" if layer == "smt" else "crosshair"
        why = "the contract's own bound" if layer == "smt" else "closes within 20 s on 2 cores"
        rows.append(check(
            name, layer, obligations, title=title, strategy=strategy, seconds=took, solver=solver,
            bounds=[{"name": n, "value": v, "reason": why} for n, v in bounds],
            stubs=["STUB-FL-001"] if strategy == "stub_float" else [],
            controls=[_control(m) for m in [*mutants, "empty"]],
            covers=[{"name": "clip branch taken", "reached": True, "witness": {"norm": "3/2"}},
                    {"name": "second window begins", "reached": True, "witness": None}],
        ))  # fmt: skip
    naive = next(r for r in rows if r["id"] == "KANI-GA-006")
    naive.update(expect="refuted", outcome="REFUTED", effect="DISCHARGED", reach="bounded",
                 reason="counts 3 and 1: the equal weight 1/2 is wrong, as the contract expects",
                 counterexample={"clause": "GA-EQ-001", "found_by": "z3",
                                 "values": {"count_1": "3", "count_2": "1", "g_1": "1", "g_2": "0"}},
                 replays=_replays())  # fmt: skip
    return rows


def _runs(gpu: bool) -> list[Report]:
    rows = []
    for name, (obligation, title, mutants) in TESTS.items():
        for device, dtypes in DTYPES.items():
            for dtype in dtypes:
                ran = device == "cpu" or gpu
                extra: Report = {"title": f"{title}, {device} {dtype}", "strategy": "property test", "seconds": 2.3,
                                 "solver": "hypothesis", "reach": "sampled", "domain": "random inputs, |g| <= 1",
                                 "bounds": [{"name": "examples", "value": 20, "reason": "1 s on 2 cores"}]}  # fmt: skip
                extra |= {"controls": [_control(m) for m in mutants], "reason": "20 examples passed"} if ran else {
                    "reach": None, "reason": NO_GPU, "fresh": False, "evidence": None, "seconds": 0.0,
                    "finished_at": None, "environment": {}, "stats": {}}  # fmt: skip
                outcome = HOLDS if ran else Outcome.NOT_RUN
                rows.append(check(f"{name}@{device}-{dtype}", device, [obligation], outcome, **extra))
    return rows


def measurements(gpu: bool = False) -> list[Report]:
    """Rows of all three columns, as the falsification tests write them."""
    rows: list[Report] = []
    for device in ("cpu", "cuda") if gpu else ("cpu",):
        for dtype in DTYPES[device]:
            for place, net in enumerate(NETS):
                rows += [_accumulation(device, dtype, net, n, 0.11 + 0.13 * place) for n in SIZES]
                rows += [_difference("end_to_end", device, dtype, net, n) for n in SIZES]
            rows += [_difference("outside_assumptions", device, dtype, "conv + BatchNorm", n) for n in SIZES]
    for row in rows:
        row["check"] = f"FALSIFY-GA-001@{row['device']}-{row['dtype']}"
    return rows


def _accumulation(device: str, dtype: str, net: str, n: int, share: float) -> Report:
    bound = UNIT[dtype] * (n * n - 1) / (3 * n)
    tolerance = {"fp32": 1e-5, "fp16": 1e-3}.get(dtype)
    return {"column": "accumulation", "device": device, "dtype": dtype, "net": net, "n": n, "measured": share * bound,
            "bound": bound, "ratio": share if bound else None, "tolerance": tolerance, "metric": "linf",
            "l2": 1.7 * share * bound, "relative": None, "note": ""}  # fmt: skip


def _difference(column: str, device: str, dtype: str, net: str, n: int) -> Report:
    unit = {"fp32": 2.0**-24, "fp32-tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    outside = column == "outside_assumptions"
    value = 0.37 if outside else 0.6 * unit * (1 + n / 32)
    note = "BatchNorm couples the samples of a micro-batch" if outside else "applied gradient against the full batch"
    return {"column": column, "device": device, "dtype": dtype, "net": net, "n": n, "measured": value, "bound": None,
            "ratio": None, "tolerance": None, "metric": "linf", "l2": 2.9 * value, "relative": 3.1 * value,
            "note": note}  # fmt: skip


TRACE = {
    "title": "stale breaks GA-INV-002", "start": "clean", "ticks": [
        {"event": "step", "after": "stepped", "note": "", "refused": "", "harm": ""},
        {"event": "accumulate", "after": "full", "note": "window 2", "refused": "onto a stale gradient", "harm": ""},
        {"event": "step", "after": "stepped", "note": "", "refused": "", "harm": "it reaches a step"}],
}  # fmt: skip


def kernels(gpu: bool = False) -> Report:
    """Documents of kernel runs, one of them rejected, and what is relied upon."""
    documents, relies = [], []
    for device in ("cpu", "cuda") if gpu else ("cpu",):
        data = studies.kernels(device=device)
        rows = [{"section": "elementwise", **{k: v for k, v in r.items() if k != "facts"}}
                for r in data["sections"]["elementwise"]]  # fmt: skip
        documents.append({"path": f"kernels/{device}.json", "status": "fresh", "reason": "", "mode": "quick",
                          "environment": data["environment"], "rows": rows})  # fmt: skip
    documents.append({"path": "kernels/old.json", "status": "rejected", "reason": "kernels/old.json is rejected: cut",
                      "mode": None, "environment": {}, "rows": []})  # fmt: skip
    for device in ("cpu", "cuda"):
        held = device == "cpu" or gpu
        words = f"add fp32 on {device}: add_(tensor) HOLDS, 1000 cases, kernels/{device}.json"
        relies.append({"check": "STUB-FL-001", "device": device, "operator": "add", "dtype": "fp32",
                       "state": "HOLDS" if held else "NOT_RUN", "rows": [words] if held else [],
                       "words": words if held else f"assumption: no conformance row for add fp32 on {device}",
                       })  # fmt: skip
    return {"documents": documents, "relies": relies}


def judged(report: Report) -> Report:
    """Derive cells, obligations, totals, mutants, criteria and verdict again from the checks, as the judge does."""
    checks = {c["id"]: c for c in report["checks"]}
    for c in checks.values():
        c["effect"] = str(DECISION[Expect(c["expect"]), Outcome(c["outcome"])])
        c["meaning"] = MEANING[Outcome(c["outcome"])]
    report["obligations"] = [_obligation(name, report) for name in OBLIGATIONS]
    effects = [c["effect"] for c in checks.values()]
    report["totals"] = {"checks": len(effects), "discharged": effects.count("DISCHARGED"),
                        "broken": effects.count("BROKEN"), "open": effects.count("OPEN")}  # fmt: skip
    report["mutants"] = [_mutant(name, report) for name in REFERENCES]
    killed = sum(1 for m in report["mutants"] if m["killed_by"])
    report["totals"] |= {"mutants_killed": killed, "mutants_total": len(REFERENCES)}
    _gate(report)
    return report


def _worst(effects: list[str]) -> str:
    return next((e for e in ("BROKEN", "OPEN", "DISCHARGED") if e in effects), "OPEN")


def _obligation(name: str, report: Report) -> Report:
    kind, text, formal = OBLIGATIONS[name]
    cells: Report = {}
    for layer in ("smt", "crosshair", "cpu", "cuda"):
        mine = [c for c in report["checks"] if c["layer"] == layer and name in c["obligations"]]
        required = bool(mine) and (layer != "cuda" or report["profile"] == "release")
        effect = _worst([c["effect"] for c in mine]) if mine else None
        cells[layer] = {"effect": effect, "outcomes": [c["outcome"] for c in mine], "required": required,
                        "reach": mine[0]["reach"] if mine else None, "checks": [c["id"] for c in mine],
                        "subject": SUBJECTS[layer], "beyond": [], "reason": ""}  # fmt: skip
    needed = [c["effect"] for c in cells.values() if c["required"]]
    tolerances = [{"dtype": d, "value": v, "metric": "linf", "domain": "|g_i| <= 1", "role": "required"}
                  for d, v in (("fp32", "1e-5"), ("fp16", "1e-3")) if name == "GA-EQ-001"]  # fmt: skip
    return {"id": name, "type": kind, "property": text, "formal": formal, "tolerances": tolerances,
            "assumptions": ["equal-size, mean-reduced micro-batches"], "effect": _worst(needed), "cells": cells,
            "counts": {"discharged": needed.count("DISCHARGED"), "required": len(needed)}}  # fmt: skip


def _mutant(name: str, report: Report) -> Report:
    found = [(c["id"], k["killed"]) for c in report["checks"] for k in c["controls"] if k["name"] == name]
    return {"name": name, "obligation": REFERENCES[name][0], "reference": REFERENCES[name][1],
            "killed_by": [i for i, k in found if k], "survived": [i for i, k in found if not k],
            "not_tried": []}  # fmt: skip


def _gate(report: Report) -> None:
    effects = {ob["id"]: ob["effect"] for ob in report["obligations"]}
    names = {"numerical_equivalence": ["GA-EQ-001", "GA-INV-001", "GA-INV-004"], "gradient_zeroing": ["GA-INV-002"],
             "step_count": ["GA-INV-003"], "clip_after_accumulate": ["GA-INV-005"]}  # fmt: skip
    criteria = []
    for name, needs in names.items():
        bad = [f"{n} is {effects[n]}" for n in needs if effects[n] != "DISCHARGED"]
        criteria.append({"name": name, "obligations": needs, "met": not bad,
                         "why": "; ".join(bad) or f"{len(needs)} of {len(needs)} obligations discharged"})  # fmt: skip
    report["gate"]["criteria"] = criteria
    needed = {
        c for ob in report["obligations"] for cell in ob["cells"].values() if cell["required"] for c in cell["checks"]
    }
    asked = [c for c in report["checks"] if c["id"] in needed or c["layer"] not in ("cpu", "cuda")]
    reasons = [f"{c['id']}: {c['outcome']}, {c['reason']}" for c in asked if c["effect"] != "DISCHARGED"]
    exit_ = Exit.MET
    if any(c["effect"] == "BROKEN" for c in report["checks"]):
        exit_ = Exit.BROKEN
    elif any(c["outcome"] == "ERROR" for c in asked):
        exit_ = Exit.CRASH
    elif reasons or report["run_state"] != "complete":
        exit_ = Exit.OPEN
    report["verdict"] = {"exit": str(exit_), "code": EXIT_CODE[exit_], "met": exit_ is Exit.MET, "reasons": reasons}


def _base(profile: str, gpu: bool) -> Report:
    seeded = check("F-GA-001/falsification", "smt", [], kind="gate", title="remove the 1/N scaling", bounds=[],
                   reason="the gate turned red on missing_scale", strategy="seeded bug", seconds=1.9)  # fmt: skip
    report: Report = {
        "schema": "gradproof-report/2", "run_state": "complete", "generated_at": "2025-11-21T08:05:02Z",
        "gradproof": "1.0.0", "profile": profile, "workspace": "gradproof",
        "contract": {"id": "gradient-accumulation-kernel-v1", "version": "1.0.0",
                     "description": "Gradient accumulation over N micro-batches equals the full batch.",
                     "digest": "9f2c" * 16, "path": "proofs/gradient-accumulation-kernel-v1/contract.yaml",
                     "depends_on": ["adamw-kernel-v1"],
                     "places": {"KANI-GA-001": [120, 5]},
                     "warnings": ["contract.yaml:6:17: GP123: depends_on adamw-kernel-v1, which is not there"]},
        "gate": {"id": "F-GA-001", "criteria": [], "falsification": {
            "text": "remove the 1/N scaling", "turned_red": True, "why": "KANI-GA-001 refuted it at N = 2"}},
        "checks": [*_proofs(), *_runs(gpu), seeded], "measurements": measurements(gpu),
        "waivers": [],
        "rounding": {"status": "fresh", "reason": "no file has changed", "document": studies.rounding()},
        "kernels": kernels(gpu),
        "studies": [{"name": "tokens.json", "status": "fresh", "reason": "no file has changed"}],
        "environment": {"python": "3.11.7", "platform": "Linux x86_64, glibc 2.36", "torch": "2.13.0+cpu",
                        "z3": "4.13.0", "crosshair": "0.0.112", "hypothesis": "6.140", "cores": 2,
                        "device": "NVIDIA H100 80GB HBM3" if gpu else None},
        "seconds": 78.4,
    }  # fmt: skip
    return judged(report)


def green(profile: str = "ci", gpu: bool = False) -> Report:
    """The gate is met. In profile ci without a GPU the CUDA rows are NOT_RUN and not required."""
    return copy.deepcopy(_base(profile, gpu))


def red() -> Report:
    """One obligation refuted, one proof weak, one timed out, one bound exceeded in a measured run."""
    report = green()
    by_id = {c["id"]: c for c in report["checks"]}
    by_id["FALSIFY-GA-001@cpu-fp16"].update(
        outcome="REFUTED", reach=None, reason="transformer, N = 32: measured 4.1e-6 is above the bound 6.4e-7",
        counterexample={"clause": "GA-EQ-001", "found_by": "hypothesis",
                        "values": {"net": "transformer", "N": "32"} | {f"x_{i}": f"{i}/7" for i in range(20)}},
        replays=[{"on": "concrete model, numpy float16", "reproduced": True, "detail": "4.1e-6"},
                 {"on": "PyTorch step, cpu, fp16", "reproduced": False, "detail": "5.9e-7"}])  # fmt: skip
    by_id["KANI-GA-003"].update(outcome="WEAK", reach=None, reason="mutant tail_dropped survived")
    by_id["KANI-GA-003"]["controls"][1].update(outcome="HOLDS", killed=False, reason="no clause is broken",
                                               counterexample=None, replays=[])  # fmt: skip
    by_id["CROSS-GA-005"].update(outcome="TIMEOUT", reach=None, reason="no answer within the limit of 20 s")
    row = next(r for r in report["measurements"] if (r["dtype"], r["net"], r["n"]) == ("fp16", "transformer", 32))
    row.update(measured=4.1e-6, ratio=4.1e-6 / row["bound"], note="above the proven bound")
    return judged(report)


def partial() -> Report:
    """A run that was cut: proofs done, tests not."""
    report = green()
    report["run_state"] = "partial"
    for c in report["checks"]:
        if c["layer"] == "cpu":
            c.update(outcome="NOT_RUN", reach=None, reason="the run was stopped before this check", fresh=False)
    report["measurements"] = []
    return judged(report)
