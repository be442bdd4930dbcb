"""Wrong normalisers of a window of token counts, each named after the obligation that it breaks."""

from __future__ import annotations

from collections.abc import Mapping

from models.registry import Mutant, registered
from models.tokens.window import FixedConstant, Number, TokenBatch, TokenStep, TokenWindow, Vector, Window


class MeanOfMeans(TokenWindow):
    """The mean over the micro-batches that have a target at all."""

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """Each micro-batch counts equally."""
        if batch.valid == 0:
            return tuple(0 * g for g in batch.total)
        return tuple(g / batch.valid for g in batch.total)

    def finish(self, buffer: Vector, window: Window) -> Vector:
        """Over the micro-batches that counted."""
        return tuple(b / sum(1 for batch in window if batch.valid > 0) for b in buffer)


class FirstCount(TokenWindow):
    """The valid targets of the first micro-batch stand for all: K * N_1."""

    def skips(self, window: Window) -> bool:
        """Guards what it divides by."""
        return bool(window[0].valid == 0)

    def normaliser(self, window: Window) -> Number:
        """Counted once, when the window begins."""
        return len(window) * window[0].valid


class CountsIgnored(TokenWindow):
    """Every label counts, the ignored ones too: labels.numel()."""

    def normaliser(self, window: Window) -> Number:
        """Valid and ignored."""
        return sum(b.valid + b.ignored for b in window)


class NoGuard(TokenWindow):
    """Divides by the total also where it is zero."""

    def skips(self, window: Window) -> bool:
        """Never."""
        return False


class StepsOnNothing(TokenWindow):
    """A window without a valid target is stepped as if its gradient were 1 in every element."""

    def run(self, params: Vector, window: Window, rate: Number = 1) -> TokenStep:
        """The count is clamped to one, and what is in the buffer is not looked at."""
        if not self.skips(window):
            return super().run(params, window, rate)
        return TokenStep((0,) * len(params), tuple(p - rate for p in params), 1)


class MissingScale(FixedConstant):
    """The means are summed: the 1/K is missing."""

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """K times too much."""
        return tuple(g * len(window) for g in super().share(batch, window))


class DividedTwice(TokenWindow):
    """The loss is divided by the window's tokens, and the framework divides by K again."""

    def finish(self, buffer: Vector, window: Window) -> Vector:
        """Once more."""
        return tuple(b / len(window) for b in buffer)


class SummedTokens(TokenWindow):
    """The summed loss is never divided."""

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """The sum itself."""
        return batch.total


_ROWS = [
    ("mean_of_means", "GA-TOK-001", "transformers#34191", MeanOfMeans),
    ("fixed_constant", "GA-TOK-001", "torchtune#1875", FixedConstant),
    ("first_count", "GA-TOK-001", "LlamaFactory#6639", FirstCount),
    ("counts_ignored", "GA-TOK-001", "composer#3273", CountsIgnored),
    ("no_guard", "GA-TOK-001", "pytorch#116349", NoGuard),
    ("steps_on_nothing", "GA-TOK-001", "mlx-lm#1413", StepsOnNothing),
    ("missing_scale", "GA-TOK-002", "nanoGPT#206", MissingScale),
    ("divided_twice", "GA-TOK-002", "Megatron-LM#4590", DividedTwice),
    ("summed_tokens", "GA-TOK-002", "torchtune#1917", SummedTokens),
]

TOKEN_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
