"""The document of the study of token windows, format `gradproof-tokens/1`, made by `python -m symbolic.token_study`.

Its JSON Schema, `reports/tokens.schema.json`, is made of the classes here. Every table must be as it was stated or
proved, or the document is not believed.
"""

from __future__ import annotations

from fractions import Fraction
from math import isclose, sqrt
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.documents import Count, Sha256, Shape

TOKENS = "gradproof-tokens/1"
Ratio = Annotated[float, Field(ge=1)]
Size = Annotated[float, Field(ge=0)]
Exact = Annotated[str, Field(pattern=r"^[0-9]+(/[1-9][0-9]*)?$")]
Name = Literal["SGD", "AdamW"]
Way = Literal["with 1/K", "without 1/K", "with 1/K, K times the rate"]


class Window(Shape):
    """Tokens of a micro-step times micro-steps: the stated product, what was counted, and what each token weighs."""

    tokens: Count
    micro_batches: Count
    stated: Count
    counted: Count
    weight_of_each: Exact
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Window:
        if not self.counted == self.stated == self.tokens * self.micro_batches:
            raise ValueError("the tokens are not the product of the window")
        if Fraction(self.weight_of_each) * self.stated != 1:
            raise ValueError("the weights of the tokens do not add up to 1")
        return self


class Example(Shape):
    """A window of these counts whose bias, in units of the largest token gradient, is the bound for r = max / min."""

    r: Count
    counts: list[Count]
    bias: Exact
    bound: Exact
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Example:
        if Fraction(self.bias) != Fraction(self.bound):
            raise ValueError(f"r = {self.r}: the bias is not its bound")
        if max(self.counts) != self.r * min(self.counts):
            raise ValueError(f"r = {self.r}: the counts have another ratio")
        return self


class Bias(Shape):
    """The largest bias of the fixed constant at each r: for every K, 2 (sqrt r - 1) / (sqrt r + 1), and by K."""

    r: list[Ratio]
    any_k: list[Size]
    by_k: dict[Literal["2", "4", "8"], list[Size]]
    examples: list[Example]

    @model_validator(mode="after")
    def _consistent(self) -> Bias:
        if any(len(row) != len(self.r) for row in (self.any_k, *self.by_k.values())):
            raise ValueError("a curve has not a point for each r")
        for i, (r, most) in enumerate(zip(self.r, self.any_k, strict=True)):
            if not isclose(most, 2 * (sqrt(r) - 1) / (sqrt(r) + 1), rel_tol=1e-12, abs_tol=1e-12):
                raise ValueError(f"r = {r}: the bound for every K is another number")
            if any(row[i] > most + 1e-12 for row in self.by_k.values()):
                raise ValueError(f"r = {r}: a bias is above the bound for every K")
        return self


class Switch(Shape):
    """AdamW's steps in rates after the 1/K is dropped; the largest, and its number from 1."""

    steps: list[float]
    largest: Size
    at: Count
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Switch:
        if self.at > len(self.steps) or not self.steps[self.at - 1] == self.largest == max(self.steps):
            raise ValueError("the largest step is another one")
        return self


class Trained(Shape):
    """One run on the stream: mean losses in nats, and how far its weights end from their start and from `without`."""

    optimizer: Name
    run: Way
    rate: Annotated[float, Field(gt=0)]
    losses: list[Size]
    way: Size
    from_without: Size


class Parity(Shape):
    """Both optimizers on one stream. SGD without 1/K ends with K times the rate; AdamW nearer to the same rate."""

    k: Count
    rate: Annotated[float, Field(gt=0)]
    windows: Count
    mean_of: Count
    runs: list[Trained]
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Parity:
        far = {(r.optimizer, r.run): r.from_without for r in self.runs}
        if len(far) != len(self.runs) or len(far) != 6:
            raise ValueError("there are not three runs of each optimizer")
        larger: Way = "with 1/K, K times the rate"
        if not far["SGD", larger] == 0 < far["SGD", "with 1/K"]:
            raise ValueError("SGD without 1/K does not end where K times the rate does")
        if not far["AdamW", "with 1/K"] < far["AdamW", larger] / 10:
            raise ValueError("AdamW without 1/K does not end nearer to the same rate")
        return self


class Tokens(Shape):
    """Windows on token counts: effective tokens, the bias of the fixed constant, and training with and without 1/K.

    History: 1, the first. `sources` are digests of the files that computed it.
    """

    document: Literal["gradproof-tokens/1"] = Field(alias="schema")
    gradproof: str
    torch: str
    made_at: str
    effective_tokens: list[Window]
    bias: Bias
    after_switch: Switch
    parity: Parity
    sources: dict[str, Sha256]
