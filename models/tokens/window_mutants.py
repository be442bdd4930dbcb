"""Wrong normalisers of windows of token counts, each named after the obligation that it breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.registry import CROSSING, Mutant, registered
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

    def run(self, params: Vector, window: Window, rate: Number) -> TokenStep:
        """The count is clamped to one, and what is in the buffer is not looked at."""
        if not self.skips(window):
            return super().run(params, window, rate)
        return TokenStep((0,) * len(params), tuple(p - rate for p in params), 1)


class MissingScale(FixedConstant):
    """The means are summed: the 1/K is missing."""

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """K times too much."""
        return tuple(g * len(window) for g in super().share(batch, window))


class FilledOnly(FixedConstant):
    """The means over the micro-batches that have a target: 1/K where none is empty."""

    def finish(self, buffer: Vector, window: Window) -> Vector:
        """An empty micro-batch does not count."""
        filled = sum(1 for batch in window if batch.valid > 0)
        return tuple(b * len(window) / filled for b in buffer)


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


class CountedApart(TokenWindow):
    """Base of bugs that count the valid targets in another window than they are used in."""

    counted: Window = ()

    def normaliser(self, window: Window) -> Number:
        """The total of the window that was counted."""
        return super().normaliser(self.counted)


class FirstWindowCounts(CountedApart):
    """The valid targets are counted in the first window, and that total is used in all later ones."""

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """Counted once, when the training begins."""
        self.counted = windows[0]
        return super().window(params, windows, number, rate)


class NextWindowCounts(CountedApart):
    """The micro-batches of the next window are fetched before this one is counted."""

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """The counts of the window that follows, where there is one."""
        self.counted = windows[min(number + 1, len(windows) - 1)]
        return super().window(params, windows, number, rate)


class GuardOnce(TokenWindow):
    """Looks for a window without a valid target in the first window only."""

    guards = True

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """Switches the guard off after the first window."""
        self.guards = number == 0
        return super().window(params, windows, number, rate)

    def skips(self, window: Window) -> bool:
        """Never in a later window."""
        return self.guards and super().skips(window)


class FixedFromThird(TokenWindow):
    """The right weights in two windows, and 1/K from the third on."""

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """Another rule for later windows."""
        rule = TokenWindow() if number < 2 else FixedConstant()
        return rule.window(params, windows, number, rate)


class StaleWeights(TokenWindow):
    """From the third window on the step starts from the weights that the first window left."""

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """Keeps a copy of the weights and loads it again."""
        if number == 1:
            self.kept = params
        return super().window(self.kept if number >= 2 else params, windows, number, rate)


_ROWS = [
    ("mean_of_means", "GA-TOK-001", "transformers#34191", MeanOfMeans),
    ("fixed_constant", "GA-TOK-001", "torchtune#1875", FixedConstant),
    ("first_count", "GA-TOK-001", "LlamaFactory#6639", FirstCount),
    ("counts_ignored", "GA-TOK-001", "composer#3273", CountsIgnored),
    ("no_guard", "GA-TOK-001", "pytorch#116349", NoGuard),
    ("steps_on_nothing", "GA-TOK-001", "mlx-lm#1413", StepsOnNothing),
    ("first_window_counts", "GA-TOK-001", CROSSING, FirstWindowCounts),
    ("next_window_counts", "GA-TOK-001", CROSSING, NextWindowCounts),
    ("guard_once", "GA-TOK-001", CROSSING, GuardOnce),
    ("fixed_from_third", "GA-TOK-001", CROSSING, FixedFromThird),
    ("stale_weights", "GA-TOK-001", CROSSING, StaleWeights),
    ("missing_scale", "GA-TOK-002", "nanoGPT#206", MissingScale),
    ("filled_only", "GA-TOK-002", CROSSING, FilledOnly),
    ("divided_twice", "GA-TOK-002", "Megatron-LM#4590", DividedTwice),
    ("summed_tokens", "GA-TOK-002", "torchtune#1917", SummedTokens),
]

TOKEN_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
