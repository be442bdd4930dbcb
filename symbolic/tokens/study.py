"""The study of token windows: `python -m symbolic.tokens.study --out reports/tokens.json --plots docs [--windows N]`.

Effective tokens per update; the worst-case bias of the fixed constant over max N / min N; training with and without
the 1/K on one stream of tokens: where it ends, how long its first step is, and whether it stays stable under a rate
that rises. Format `gradproof-tokens/2`. Every table is checked before a file is
written, and files are written whole or not at all. Exit code 0: written; 1: a table is not as it was stated or proved;
2: a mistake in the call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import sqrt
from pathlib import Path
from typing import Any

from gradproof.harness import EXIT_CODE, Exit, GradproofError
from models.tokens.bias import Bias
from models.tokens.scaling import AdamW, Setup, State
from models.tokens.window import TokenBatch, TokenWindow
from symbolic.tokens.bias import bias_of, example

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "gradproof-tokens/2"
STATED = ((8, 4, 32), (8, 8, 64), (16, 8, 128))
K, RATE, SEED, TOKENS, EVERY = 8, 1e-3, 5, 16, 10
IGNORED_BESIDE = 3


def effective_tokens(stated: Sequence[tuple[int, int, int]] = STATED) -> list[dict[str, Any]]:
    """Rows of (tokens of a micro-step, micro-steps, stated product): counted on real targets, and a token's weight."""
    import torch

    from models.tokens.cross_entropy import IGNORED
    from models.tokens.torch_window import TorchTokens

    rows = []
    for tokens, count, product in stated:
        targets = torch.cat([torch.zeros(tokens), torch.full((IGNORED_BESIDE,), float(IGNORED))]).long()
        counted = TorchTokens().normaliser([(targets, targets)] * count)
        window = [TokenBatch((Fraction(int(m == 0)),), tokens, IGNORED_BESIDE) for m in range(count)]
        weight = TokenWindow().run((Fraction(0),), window, 1).gradient[0]
        right = counted == product and weight == Fraction(1, product)
        row = {"tokens": tokens, "micro_batches": count, "stated": product, "counted": counted}
        rows.append(row | {"weight_of_each": str(weight), "ok": right})
    return rows


def bias() -> dict[str, Any]:
    """The bound for every K, the sharp one at K = 2, 4, 8, and examples that attain it, checked on both models."""
    ratios = [2 ** (i / 8) for i in range(8 * 8 + 1)]
    rule = Bias()
    by_k = {k: [max(rule.with_above(j, k, r) for j in range(1, k)) for r in ratios] for k in (2, 4, 8)}
    examples = []
    for s in (1, 2, 3, 4, 8, 16):
        window, bound = example(s, 1, s * s, 1), rule.at_most(Fraction(s))
        found = bias_of(window)
        counts = [int(b.valid) for b in window]
        examples.append({"r": s * s, "counts": counts, "bias": str(found), "bound": str(bound), "ok": found == bound})
    curves = {str(k): values for k, values in by_k.items()}
    return {"r": ratios, "any_k": [rule.at_most(sqrt(r)) for r in ratios], "by_k": curves, "examples": examples}


def after_switch(steps: int = 200) -> dict[str, Any]:
    """AdamW on equal gradients: length of each step, in rates, after the 1/K is dropped in the middle of a run."""
    setup, state, moved = Setup(1.0, 0.9, 0.999, 0.0, 0.0), State(0.0, 1.0, 1.0), []
    for _ in range(steps):
        after = AdamW().step(state, float(K), setup, (1.0, 1.0))
        moved.append(state.w - after.w)
        state = after
    largest = max(moved)
    return {"steps": moved, "largest": largest, "at": moved.index(largest) + 1, "ok": 1 < largest < 7.28}


RUNS = (("with 1/K", 1.0, True), ("without 1/K", 1.0, False), ("with 1/K, K times the rate", float(K), True))


def parity(windows: int) -> dict[str, Any]:
    """Each optimizer trained on the same stream: with 1/K, without it, and with it at K times the rate."""
    from models.tokens.torch_scaling import Documented
    from symbolic.tokens.falsify import net, vector
    from symbolic.tokens.falsify_scaling import stream

    data, runs = stream(SEED, windows * K, TOKENS), []
    for name in ("SGD", "AdamW"):
        ends = {}
        for words, factor, scaled in RUNS:
            model = net(SEED)
            losses = Documented().train(name, model, data, K, RATE * factor, scaled)
            ends[words] = vector(list(model.parameters()))
            means = [sum(losses[i : i + EVERY]) / EVERY for i in range(0, len(losses) - EVERY + 1, EVERY)]
            runs.append({"optimizer": name, "run": words, "rate": RATE * factor, "losses": means})
        start = vector(list(net(SEED).parameters()))
        for row, words in zip(runs[-3:], ends, strict=True):
            row["way"] = float((ends[words] - start).norm())
            row["from_without"] = float((ends[words] - ends["without 1/K"]).norm())
    return {"k": K, "rate": RATE, "windows": windows, "mean_of": EVERY, "runs": runs, "ok": _as_proved(runs)}


def _as_proved(runs: Sequence[Mapping[str, Any]]) -> bool:
    """SGD without 1/K ends with K times the rate, to the last bit; AdamW ends nearer to the same rate."""
    far = {(r["optimizer"], r["run"]): r["from_without"] for r in runs}
    same, larger = RUNS[0][0], RUNS[2][0]
    sgd = far["SGD", larger] == 0 < far["SGD", same]
    return bool(sgd and far["AdamW", same] < far["AdamW", larger] / 10)


FIRST_N, FIRST_RATE = 16, 1e-3


def first_step() -> dict[str, Any]:
    """Length of the first step of N = 16 micro-batches, with 1/N and without, in fp64: plain SGD and AdamW."""
    from models.tokens.torch_scaling import Documented
    from symbolic.tokens.falsify import net, vector
    from symbolic.tokens.falsify_scaling import stream

    data, runs = stream(SEED, FIRST_N, TOKENS), []
    for name in ("SGD", "AdamW"):
        lengths = []
        for scaled in (True, False):
            model = net(SEED).double()
            start = vector(list(model.parameters()))
            Documented().train(name, model, data, FIRST_N, FIRST_RATE, scaled)
            lengths.append(float((vector(list(model.parameters())) - start).norm()))
        runs.append({"optimizer": name, "with_scale": lengths[0], "without": lengths[1]})
    return {"n": FIRST_N, "rate": FIRST_RATE, "runs": runs}


LATE_RATE, LATE_MEAN, LATE_SEEDS = 1.0, 20, (5, 6, 7)
LEAST = 4 * LATE_MEAN
KEPT, MISSING, RESTORED = "with 1/K", "without 1/K", "1/K restored in the last quarter"


def late(windows: int) -> dict[str, Any]:
    """SGD with momentum and AdamW under a rate that rises: with 1/K, without it, and with it restored near the end."""
    from models.tokens.torch_scaling import MOMENTUM, Mended, Rising
    from symbolic.tokens.falsify import net
    from symbolic.tokens.falsify_scaling import stream

    ways, runs = ((KEPT, Rising, True), (MISSING, Rising, False), (RESTORED, Mended, False)), []
    for name, seed in ((name, seed) for name in ("SGD", "AdamW") for seed in LATE_SEEDS):
        data = stream(seed, windows * K, TOKENS)
        for words, subject, scaled in ways:
            losses = subject().train(name, net(seed), data, K, LATE_RATE, scaled)
            runs.append({"optimizer": name, "run": words, "seed": seed} | _phases(losses))
    beside = {(r["optimizer"], r["seed"]): r for r in runs if r["run"] == KEPT}
    for row in runs:
        right = beside[row["optimizer"], row["seed"]]
        row |= {f"{part}_with": right[part] for part in ("early", "late", "end")}
    made = {"k": K, "rate": LATE_RATE, "momentum": MOMENTUM, "windows": windows, "mean_of": LATE_MEAN}
    return made | {"restored_from": Mended.since, "runs": runs}


def _phases(losses: Sequence[float]) -> dict[str, Any]:
    """Means of LATE_MEAN windows; that of the first and of the last quarter, the last one, and the highest so far."""
    means = [sum(losses[i : i + LATE_MEAN]) / LATE_MEAN for i in range(0, len(losses) - LATE_MEAN + 1, LATE_MEAN)]
    quarter = max(1, len(means) // 4)
    early, last = sum(means[:quarter]) / quarter, sum(means[-quarter:]) / quarter
    return {"losses": means, "early": early, "late": last, "end": means[-1], "highest": max(means[quarter:])}


def document(windows: int) -> dict[str, Any]:
    """The study, as JSON values. Raises GradproofError: GP411 for too few windows, GP219 where its files change."""
    import torch

    from gradproof.harness import TOKEN_STUDY as STUDY, Workspace, __version__, settled, sources_of, timestamp as now

    if windows < LEAST:
        raise GradproofError("GP411", f"--windows {windows}", f"at least {LEAST}", "such as 400")
    torch.set_num_threads(1)
    place = Workspace(ROOT, ROOT / "reports")
    made_of = sources_of(STUDY, place)
    made = {
        "schema": SCHEMA, "gradproof": __version__, "torch": torch.__version__, "made_at": now(),
        "effective_tokens": effective_tokens(), "bias": bias(), "after_switch": after_switch(),
        "parity": parity(windows), "first_step": first_step(), "late": late(windows),
    }  # fmt: skip
    return made | {"sources": settled(STUDY, place, made_of)}


def failures(data: Mapping[str, Any]) -> list[str]:
    """Tables of the document that are not as they were stated or proved."""
    rows: Iterator[tuple[str, Mapping[str, Any]]] = iter(
        [
            *((f"effective tokens {r['tokens']} x {r['micro_batches']}", r) for r in data["effective_tokens"]),
            *((f"bias at r = {r['r']}", r) for r in data["bias"]["examples"]),
            ("after the switch", data["after_switch"]),
            ("parity", data["parity"]),
        ]
    )
    return [name for name, row in rows if row["ok"] is not True]


def plots(data: Mapping[str, Any]) -> dict[str, str]:
    """File names and drawings."""
    from gradproof.harness import Curve, Panel

    b, p = data["bias"], data["parity"]
    lines = [Curve("every K: 2 (√r − 1) / (√r + 1)", tuple(zip(b["r"], b["any_k"], strict=True)))]
    lines += [Curve(f"K = {k}", tuple(zip(b["r"], values, strict=True))) for k, values in b["by_k"].items()]
    across, upright = "r = max N / min N", "largest |bias|, |token gradients| ≤ 1"
    made: dict[str, str] = {"token_bias.svg": Panel("Bias of (1/K) Σ means", across, upright, tuple(lines), (2, 0)).svg}
    for name in ("SGD", "AdamW"):
        rows = [r for r in p["runs"] if r["optimizer"] == name]
        drawn = tuple(
            Curve(f"{r['run']} ({r['rate']:g})", tuple((float(EVERY * (i + 1)), x) for i, x in enumerate(r["losses"])))
            for r in rows
        )
        title = f"{name}, K = {p['k']}, one stream of tokens"
        made[f"parity_{name.lower()}.svg"] = Panel(title, "windows", f"loss, mean of {EVERY} windows", drawn).svg
    made["late_sgd.svg"] = _late_plot(data["late"])
    return made


def _late_plot(made: Mapping[str, Any]) -> str:
    """SGD under a rising rate, the first seed."""
    from gradproof.harness import Curve, Panel

    every, seed = made["mean_of"], made["runs"][0]["seed"]
    drawn = tuple(
        Curve(r["run"], tuple((float(every * (i + 1)), x) for i, x in enumerate(r["losses"])))
        for r in made["runs"]
        if (r["optimizer"], r["seed"]) == ("SGD", seed)
    )
    title = f"SGD with momentum {made['momentum']:g}, K = {made['k']}, rate rising to {made['rate']:g}"
    return Panel(title, "windows", f"loss, mean of {every} windows", drawn).svg


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m symbolic.tokens.study", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON document here")
    parser.add_argument("--plots", type=Path, help="write the drawings into this folder")
    parser.add_argument("--windows", type=int, default=400, help="windows of each run (default 400)")
    return parser.parse_args(arguments)


def write(data: Mapping[str, Any], out: Path, folder: Path | None) -> list[Path]:
    """Write the drawings and the document, each whole. Raises GradproofError GP407; ValueError for a wrong shape."""
    from gradproof.harness import Tokens, replace_whole

    texts = {} if folder is None else {folder / name: text for name, text in plots(data).items()}
    texts[out] = json.dumps(data, indent=1, allow_nan=False) + "\n"
    Tokens.model_validate_json(texts[out])
    try:
        for path, text in texts.items():
            replace_whole(path, text)
    except OSError as error:
        raise GradproofError("GP407", str(error), "a file that can be written", "name another") from error
    return list(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, check, write, and return the exit code."""
    from gradproof.harness import writable

    o = options(sys.argv[1:] if arguments is None else arguments)
    try:
        writable(o.out)
        data = document(o.windows)
        wrong = failures(data)
        if wrong:
            print(f"not written: not as stated or proved: {'; '.join(wrong)}", file=sys.stderr)
            return EXIT_CODE[Exit.BROKEN]
        paths = write(data, o.out, o.plots)
    except GradproofError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    print(f"written: {', '.join(str(p) for p in paths)}")
    return EXIT_CODE[Exit.MET]


if __name__ == "__main__":
    sys.exit(main())
