"""Checks the certificate of a training step: `python -m gradproof.evidence.certificate FILE`.

A certificate is the log of one run. From it alone this file works out what the gradient of each parameter is made of at
each optimizer step: with which exact weight each sample is in it. It has laws of its own (`step_laws`), and uses the
standard library alone. It believes nothing that it can work out.

Exit code 0: every obligation is confirmed. 1: one is refused. 4: one is not confirmed. 2: the file is no certificate.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradproof.evidence import step_laws
from gradproof.evidence.step_laws import SEVERAL, Contents, Items, OperatorCall, TensorRecord, Unfollowed

FORMAT = "gradproof-step-log/1"
EQUAL, STALE, DATA, WIDTH, CLIP = "GA-EQ-001", "GA-INV-002", "GA-DATA-001", "GA-INV-004", "GA-INV-005"
CONFIRMED, OPEN, REFUSED = "confirmed", "not confirmed", "refused"
CODES = {REFUSED: 1, OPEN: 4, CONFIRMED: 0}
MALFORMED = 2
OBLIGATIONS = {
    DATA: "each sample is in the gradients of one window",
    EQUAL: "every sample of a window has one weight",
    STALE: "no gradient has a part of another window",
    WIDTH: "no sum over micro-batches is below fp32",
    CLIP: "no number that scales gradients is made of a part of a window",
}
NEAR = Fraction(1, 2**20)
"""A constant of Python's may be a rounded number: 1/3 is."""
MOST, DIGITS = 2**28, 2**12
"""Bytes of a log, and bits of a number."""
SIZES = ("windows", "accum_steps", "tail", "micro_batch_size")
NARROW = ("float16", "bfloat16", "float8")
Value = Contents | Unfollowed


class Malformed(Exception):
    """The file is no certificate, or not a whole one."""


class StepChecker:
    """Reads the records in order, and judges each optimizer step.

    `contents`: what each storage holds by place, the newest last. `weights`: in a backward pass, the weight of each
    sample in what it began at. `shares`: what a unit of it brought to a gradient, by term.
    """

    def __init__(self) -> None:
        self.laws = step_laws.Laws()
        self.tensors: list[TensorRecord] = []
        self.contents: defaultdict[int, list[tuple[TensorRecord, Value]]] = defaultdict(list)
        self.found: dict[str, dict[str, str]] = {name: {} for name in OBLIGATIONS}
        self.run: dict[str, int] = {}
        self.kinds: Counter[str] = Counter()
        self.types: dict[int, str] = {}
        self.numbers = 0
        self.versions: dict[str, int] = {}
        self.weights: dict[int, Fraction] = {}
        self.before: dict[str, Items] = {}
        self.shares: defaultdict[int, set[Fraction]] = defaultdict(set)
        self.gained: set[tuple[str, int]] = set()
        self.window: set[int] = set()
        self.losses: set[str] = set()
        self.steps: list[dict[int, Fraction]] = []

    def _note(self, status: str, why: str, *names: str) -> None:
        """Something that keeps obligations from being confirmed."""
        for name in names or OBLIGATIONS:
            self.found[name].setdefault(status, why)

    def check(self, lines: Sequence[str]) -> None:
        """Check every record. Raises Malformed for one that is none."""
        rules: dict[str, Any] = {
            "tensor": self._tensor, "source": self._source, "operator": self._operator, "backward": self._backward,
            "ended": self._after, "step": self._step, "end": self._end,
            "read": lambda *_: None, FORMAT: self._begin,
            "repeat": lambda at: self._note(OPEN, f"data or draws hold what earlier ones held: {at}", DATA, EQUAL),
        }  # fmt: skip
        try:
            for number, line in enumerate(lines):
                kind, *rest = json.loads(line)
                if (kind == FORMAT) != (number == 0) or self.kinds["end"]:
                    raise Malformed(f"record {number} is out of place, or the format is another one")
                if kind == "lost":
                    raise Unfollowed(rest[-1])
                self.kinds[kind] += 1
                rules[kind](*rest)
        except Unfollowed as found:
            self._note(OPEN, f"record {number}: {found}")
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as found:
            raise Malformed(f"record {number} cannot be read: {type(found).__name__}: {str(found)[:80]}") from found
        else:
            if not self.kinds["end"]:
                raise Malformed("the last record is missing")

    def _begin(self, run: dict[str, int]) -> None:
        if any(type(run[name]) is not int or run[name] < 0 for name in SIZES):
            raise ValueError("a run of no micro-batches")
        self.run = run

    # Tensors, and what they hold

    def _tensor(self, storage: int, offset: int, shape: list[int], stride: list[int], dtype: str) -> None:
        if self.types.setdefault(storage, dtype) != dtype:
            raise Unfollowed(f"storage {storage} has two types")
        if len(shape) != len(stride) or any(type(n) is not int or n < 0 for n in (offset, *shape, *stride)):
            raise ValueError("a tensor lies nowhere")
        self.tensors.append(TensorRecord(storage, offset, tuple(shape), tuple(stride), dtype))

    def _named(self, value: Any) -> list[TensorRecord]:
        return [self.tensors[int(number)] for number in step_laws.TENSOR.findall(json.dumps(value))]

    def _read(self, place: TensorRecord) -> Contents:
        """What a tensor holds. Raises Unfollowed."""
        for own, value in reversed(self.contents[place.storage]):
            if place.inside(own):
                if isinstance(value, Unfollowed):
                    raise value
                return self.laws.viewed(value, own, place)
            if own.offset < place.end and place.offset < own.end:
                break
        raise Unfollowed("a tensor is read that no record made, or that was written in parts")

    def _write(self, place: TensorRecord, value: Value) -> None:
        held = self.contents[place.storage]
        sizes = () if isinstance(value, Unfollowed) else value.items.values()
        if any(max(abs(by.numerator), by.denominator) >> DIGITS for by in sizes):
            value = Unfollowed("a number has too many digits")
        held[:] = [one for one in held if one[0] != place and not (place.dense and one[0].inside(place))]
        held.append((place, value))

    def _sum_of(self, reference: Any) -> Contents:
        """What a gradient or a loss holds. Raises Unfollowed for rows of samples as well."""
        value = self._read(*self._named(reference))
        if value.axis >= 0:
            raise Unfollowed("rows of samples stand where a sum has to")
        return value

    def _source(self, reference: Any, kind: str, name: Any, *rest: Any) -> None:
        (tensor,) = self._named(reference)
        value: Value = Unfollowed("data have no rows of samples" if kind == "data" else name)
        covered = any(isinstance(one, Contents) and one.owned for _, one in self.contents[tensor.storage])
        if (kind == "parameter" and name in self.versions) or (kind in ("number", "constant") and covered):
            self._note(REFUSED, "something that is no operator writes over what one made")
        if kind == "number":
            value = self.laws.number(Fraction(*map(int, name)))
        elif kind in ("parameter", "constant"):
            value = self.laws.leaf(kind, (name, 0), tensor.shape)
            self.versions.update({name: 0} if kind == "parameter" else {})
        elif kind == "data" and rest[0] >= 0:
            axis, owners, least = rest
            (*lead, size), tail = tensor.shape[: axis + 1], tensor.shape[axis + 1 :]
            if len(set(owners)) != len(owners) or min(owners) < 0 or size % len(owners):
                self._note(REFUSED, "data have rows that are not those of their samples")
            part = (*lead, size // len(owners), *tail)
            term = self.laws.make("data", (name, tensor.dtype, least), (), part)
            self.laws.traits[term] = least
            value = Contents({(term, owner): Fraction(1) for owner in owners}, axis)
        self._write(tensor, value)

    def _operator(self, name: str, args: dict[str, Any], results: list[Any]) -> None:
        own, made, law = self._named(args), self._named(results), step_laws.LAWS.get(name)
        read = [] if name in step_laws.FILLED else own[-1:] if name in step_laws.SAME else own
        sums = isinstance(step_laws.FILLED.get(name), str) or (law is not None and (law.joint or law.linear))
        other = len({t.dtype for t in (*read, *made)}) > 1 if name in step_laws.SAME | {"cat", "stack"} else sums
        found: list[Value] = []
        try:
            if other and any("float" not in t.dtype for t in made):
                raise Unfollowed(f"operator {name} makes whole numbers")
            call = OperatorCall(name, [*map(self._read, read)], [t.shape for t in read], args, [t.shape for t in made])
            self.numbers += name == "_local_scalar_dense" and call.values[0].owned
            found += self.laws.result(call)
        except (Unfollowed, ZeroDivisionError) as why:
            found += [Unfollowed(str(why))] * len(made)
        for tensor, value in zip(made, found, strict=True):
            self._write(tensor, value)
            if tensor.dtype.startswith(NARROW) and isinstance(value, Contents) and value.axis < 0:
                every = [value, *self.laws.below(term for term, _ in value.items)[1]]
                size = self.run["micro_batch_size"]
                if len({owner // size for one in every for owner in one.owners if owner >= 0}) > 1:
                    self._note(REFUSED, f"a {tensor.dtype} tensor holds a sum over micro-batches", WIDTH)

    # Backward passes and optimizer steps

    def _backward(self, roots: list[Any], seeds: list[Any], gradients: list[Any]) -> None:
        if self.kinds["backward"] != self.kinds["ended"] + 1:
            raise Unfollowed("a backward pass inside of another, or without its end")
        self.weights, self.before = {}, {name: self._sum_of(one).items for name, one in gradients}
        for root, seed in zip(roots, seeds, strict=True):
            value, factor = self._sum_of(root), self.laws.plain(self._sum_of(seed))
            for (term, owner), by in value.items.items():
                if owner < 0 or owner in self.weights or factor is None or value.factor:
                    raise Unfollowed("a loss is no plain sum with one term of each sample")
                self.weights[owner] = by * factor
                self.losses.add(self.laws.traits.get(term, ""))

    def _after(self, gradients: list[Any]) -> None:
        """A backward pass has ended: what a unit of the loss of a sample brought to each gradient."""
        for name, one in gradients:
            for (term, owner), by in self._sum_of(one).items.items():
                gain = by - self.before.get(name, {}).get((term, owner), 0)
                if gain and self.weights.get(owner):
                    self.gained.add((name, term))
                    self.shares[term].add(gain / self.weights[owner])
        self.window |= self.weights.keys()

    def _step(self, optimizer: int, versions: dict[str, int], gradients: list[Any], written: list[Any]) -> None:
        """What was written is each parameter, and then what else the optimizer writes."""
        at, windows, size = len(self.steps), self.run["windows"], self.run["accum_steps"] * self.run["micro_batch_size"]
        last = self.run["tail"] * self.run["micro_batch_size"] if at == windows else size
        if optimizer or self.kinds["backward"] != self.kinds["ended"] or at >= windows + bool(self.run["tail"]):
            raise Unfollowed("several optimizers, more steps than windows, or a step in a backward pass")
        if any(self.versions.get(name, 0) != version for name, version in versions.items()):
            self._note(REFUSED, "a parameter is stepped at another version")
        sums = {name: self._sum_of(one) for name, one in gradients}
        self._clipped(sums)
        self._weighed(sums, range(at * size, at * size + last), {key for key in self.gained if key[0] in versions})
        self.gained, self.window = set(), set()
        leaves = [("parameter", (name, by + 1)) for name, by in versions.items()]
        leaves += [("state", (f"step {at}", number)) for number in range(len(written) - len(versions))]
        self.versions.update(name for _, name in leaves[: len(versions)])
        for tensor, (kind, name) in zip(self._named(written), leaves, strict=True):
            self._write(tensor, self.laws.leaf(kind, name, tensor.shape))

    def _weighed(self, sums: dict[str, Contents], window: range, gained: set[tuple[str, int]]) -> None:
        """The weight of each sample in the gradients of a window, and what keeps them from having one."""
        what, found, few = f"window {len(self.steps) + 1}", defaultdict[int, set[Fraction]](set), False
        every = defaultdict[tuple[str, int], dict[int, Fraction]](dict)
        for name, value in sums.items():
            for (term, owner), by in value.items.items():
                every[name, term][owner] = by
        leaves, _ = self.laws.below(term for _, term in every)
        for name, _ in sorted({one for kind, one in leaves if kind == "parameter"} - set(self.versions.items())):
            self._note(REFUSED, f"a gradient of {what} is made of an older {name}", STALE, EQUAL)
        for name, _ in sorted(gained - every.keys()):
            self._note(OPEN, f"the gradient of {name} in {what} lacks what a backward pass added", DATA, EQUAL)
        for (name, term), own in every.items():
            shares, ours = self.shares.get(term, set()), [one for one in own if one in window]
            others, few = sorted(own.keys() - {*ours, -1, -2}), few or 0 < len(ours) < len(window)
            if others:
                self._note(REFUSED, f"the gradient of {name} in {what} has samples {others[:8]}", STALE, EQUAL)
            elif len(shares) != 1:
                self._note(OPEN, f"the gradient of {name} in {what} was changed after its backward passes", EQUAL)
            for owner in ours:
                found[owner] |= {own[owner] / share for share in shares}
        if strange := sorted(name for (name, _), own in every.items() if min(own) < 0):
            raise Unfollowed(f"the gradient of {strange[0]} has a part of no sample, or a function of several")
        if few or len(found) < len(window):
            self._note(REFUSED, f"a gradient of {what} lacks some of its {len(window)} samples", DATA, EQUAL)
            self._note(OPEN, f"{what} may have been zeroed inside", STALE)
        weights = [by for shares in found.values() for by in shares]
        if weights and min(weights) < (1 - NEAR) * max(weights):
            self._note(REFUSED, f"the samples of {what} have several weights", EQUAL)
        self.steps.append({owner: min(by) for owner, by in found.items() if by})

    def _clipped(self, sums: dict[str, Contents]) -> None:
        """Whether what scales gradients is made of whole gradients of the window."""
        ours = {key: by for value in sums.values() for key, by in value.items.items()}
        _, inside = self.laws.below(term for term, owner in ours if owner == SEVERAL)
        factors, used = {value.factor for value in (*sums.values(), *inside)}, set[tuple[tuple[int, int], Fraction]]()
        self.laws.scalars -= factors
        for one in self.laws.below(factors)[1]:
            own = {key: by for key, by in one.items.items() if key[1] >= 0}
            owners, used = {owner for _, owner in own}, used | own.items()
            if owners & self.window and owners != self.window:
                self._note(REFUSED, f"a number of window {len(self.steps) + 1} is made of a part of it", CLIP, EQUAL)
        if factors != {0} and (len(factors) > 1 or ours.items() != used):
            self._note(OPEN, "a number that scales gradients is not made of what the step is handed", CLIP, EQUAL)

    def _end(self, count: int) -> None:
        if self.kinds.total() != count + 1 or self.numbers > self.kinds["read"]:
            self._note(REFUSED, "a record is missing, or one that says that Python reads a number")
        if self.laws.scalars:
            self._note(OPEN, "a gradient is scaled by a number, and no step is handed what comes of it", CLIP)
        if len(self.steps) != self.run["windows"] + bool(self.run["tail"]):
            self._note(REFUSED if self.steps else OPEN, f"{len(self.steps)} optimizer steps, and other windows")
        totals = [(sum(by.values(), Fraction(0)), len(by)) for by in self.steps]
        ones = all(abs(total - 1) <= NEAR for total, _ in totals)
        if self.losses not in ({"mean"}, {"sum"}):
            self._note(OPEN, "a loss of which it is not known whether it is a sum or a mean", EQUAL)
        elif not ones and (self.losses == {"mean"} or any(abs(total - n) > NEAR * n for total, n in totals)):
            self._note(REFUSED, "the weights of a window do not add up to 1, nor a sum's to its samples", EQUAL)

    def verdicts(self) -> list[tuple[str, str, str]]:
        """Each obligation with its status, and why."""
        worst = {name: next((one for one in CODES if one in found), CONFIRMED) for name, found in self.found.items()}
        return [(name, status, self.found[name].get(status, OBLIGATIONS[name])) for name, status in worst.items()]


def checked(data: bytes) -> StepChecker:
    """Check a certificate. Raises Malformed."""
    stream, made = zlib.decompressobj(), StepChecker()
    try:
        head, _, body = stream.decompress(data, MOST).partition(b"\n")
        lines = body.decode().splitlines()
    except (zlib.error, UnicodeDecodeError) as error:
        raise Malformed(f"it is no certificate: {error}") from error
    if not stream.eof or stream.unused_data or hashlib.sha256(body).hexdigest().encode() != head:
        raise Malformed("it is cut, or its digest is not that of its records")
    made.check(lines)
    return made


def main(words: Sequence[str]) -> int:
    """Check the certificate of a file, and print a line for each obligation."""
    try:
        if len(words) != 1:
            raise Malformed("give the path of one certificate")
        made = checked(Path(words[0]).read_bytes())
    except (OSError, Malformed) as error:
        print(f"GP415: {error}\n  expected: a certificate that gradproof check --certificate wrote", file=sys.stderr)
        return MALFORMED
    rows = made.verdicts()
    for name, status, why in rows:
        print(f"{name:12} {status:14} {why}")
    weights = sorted({str(by.limit_denominator(10**6)) for step in made.steps for by in step.values()})[:4]
    windows = "{} windows of {} micro-batches, {} more, of {} samples".format(*(made.run[name] for name in SIZES))
    print(
        f"{windows}; weights {', '.join(weights) or 'not known'}; on this path Python read {made.kinds['read']} numbers"
    )
    return next(code for one, code in CODES.items() if any(status == one for _, status, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
