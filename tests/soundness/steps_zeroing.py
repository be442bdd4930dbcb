"""Steps about zeroing: too late, in part, never, in the wrong place, and gradients that are there before the loop."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import right, wrong
from tests.soundness.tasks import LINEAR, MLP


@wrong("zeroing", LINEAR, "GA-INV-002")
def never_zeroed(run: Run) -> None:
    """No zero_grad at all."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


@wrong("zeroing", LINEAR, "GA-INV-002")
def the_bias_is_not_zeroed(run: Run) -> None:
    """Only one parameter is zeroed."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        job.parameters[0].grad = None


@wrong("zeroing", MLP, "GA-INV-002")
def the_first_row_is_not_zeroed(run: Run) -> None:
    """A part of a gradient is left as it was."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient[1:] = 0


@wrong("zeroing", LINEAR, "GA-INV-002")
def gradients_before_the_loop(run: Run) -> None:
    """Something is in .grad when the loop begins."""
    job = LINEAR.start(run)
    for p in job.parameters:
        p.grad = torch.ones_like(p)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@wrong("zeroing", LINEAR, "GA-INV-002")
def gradients_before_the_loop_that_are_clamped(run: Run) -> None:
    """Something is in .grad when the loop begins, and each gradient is clamped."""
    job = LINEAR.start(run)
    for p in job.parameters:
        p.grad = torch.full_like(p, 0.5)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        torch.nn.utils.clip_grad_value_(job.parameters, 0.02)
        job.apply()


@right("zeroing", LINEAR)
def zeroed_before_each_window(run: Run) -> None:
    """Zeroed where a window begins."""
    job = LINEAR.start(run)
    for window in job.windows():
        job.zero()
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


@right("zeroing", LINEAR)
def zeroed_in_place(run: Run) -> None:
    """zero_grad keeps the tensors."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=False)


@right("zeroing", MLP)
def zeroed_through_the_model(run: Run) -> None:
    """The model's own zero_grad."""
    job = MLP.start(run)
    for window in job.windows():
        job.model.zero_grad()
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


@right("zeroing", LINEAR)
def zeroed_by_hand(run: Run) -> None:
    """Each gradient is zeroed in place."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient.zero_()


@right("zeroing", MLP)
def zeroed_by_foreach(run: Run) -> None:
    """torch's own list operator."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        torch._foreach_zero_(job.gradients)


@right("zeroing", LINEAR)
def zeroed_at_both_ends(run: Run) -> None:
    """Before each window and after it: once would do."""
    job = LINEAR.start(run)
    for window in job.windows():
        job.zero()
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@right("zeroing", LINEAR)
def zeroed_by_a_product(run: Run) -> None:
    """Each gradient is multiplied by zero."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient.mul_(0)


@wrong("zeroing", LINEAR, "GA-INV-002")
def multiplied_by_a_half(run: Run) -> None:
    """Half of each gradient stays."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient.mul_(0.5)


@wrong("zeroing", LINEAR, "GA-INV-002")
def zeroed_for_each_micro_batch(run: Run) -> None:
    """Only the last micro-batch is left."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            job.zero()
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


@wrong("zeroing", MLP, "GA-INV-002")
def zeroed_in_the_middle(run: Run) -> None:
    """Between the second and the third micro-batch."""
    job = MLP.start(run)
    for window in job.windows():
        for i, (x, y) in enumerate(window):
            if i == 2:
                job.zero()
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.apply()


@wrong("zeroing", LINEAR, "GA-INV-002")
def zeroed_too_late(run: Run) -> None:
    """After the first backward pass of the next window."""
    job = LINEAR.start(run)
    for number, window in enumerate(job.windows()):
        for i, (x, y) in enumerate(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            if number > 0 and i == 0:
                job.zero()
        job.optimizer.step()


@wrong("zeroing", LINEAR, "GA-INV-002")
def zeroed_before_the_step(run: Run) -> None:
    """The step is called with gradients of zero."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.zero_grad(set_to_none=False)
        job.optimizer.step()


@wrong("zeroing", MLP, "GA-INV-002", windows=3)
def zeroed_every_other_window(run: Run) -> None:
    """Once in two windows."""
    job = MLP.start(run)
    for number, window in enumerate(job.windows()):
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        if number % 2 == 1:
            job.zero()


@wrong("zeroing", LINEAR, "GA-INV-002")
def another_model_is_zeroed(run: Run) -> None:
    """zero_grad of a copy."""
    job = LINEAR.start(run)
    other = copy.deepcopy(job.model)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        other.zero_grad()


@wrong("zeroing", MLP, "GA-INV-002")
def only_one_layer_is_zeroed(run: Run) -> None:
    """The optimizer's zero_grad is replaced by that of the first layer."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for p in job.parameters[:2]:
            p.grad = None


@wrong("zeroing", LINEAR, "GA-INV-002")
def one_column_is_not_zeroed(run: Run) -> None:
    """A slice of the weight's gradient stays."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        weight, bias = job.gradients
        weight[:, :2] = 0
        bias.zero_()


@wrong("zeroing", LINEAR, "GA-INV-002")
def masked_zeroing(run: Run) -> None:
    """Only positive gradients are zeroed."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient.masked_fill_(gradient > 0, 0)


@wrong("gradients before the loop", LINEAR, "GA-INV-002")
def a_warm_up_that_is_not_zeroed(run: Run) -> None:
    """A backward pass before the loop, to warm up."""
    job = LINEAR.start(run)
    job.model.eval()
    F.mse_loss(job.model(torch.ones(2, 3, dtype=run.dtype)), torch.zeros(2, 2, dtype=run.dtype)).backward()
    job.model.train()
    job.train()


@right("gradients before the loop", LINEAR)
def a_warm_up_that_is_zeroed(run: Run) -> None:
    """A backward pass before the loop, and zero_grad."""
    job = LINEAR.start(run)
    job.model.eval()
    F.mse_loss(job.model(torch.ones(2, 3, dtype=run.dtype)), torch.zeros(2, 2, dtype=run.dtype)).backward()
    job.model.train()
    job.zero()
    job.train()


@wrong("gradients before the loop", MLP, "GA-INV-002")
def gradients_before_the_loop_in_one_parameter(run: Run) -> None:
    """One bias has a gradient when the loop begins."""
    job = MLP.start(run)
    job.parameters[1].grad = torch.full_like(job.parameters[1], 0.25)
    job.train()


@wrong("gradients before the loop", LINEAR, "GA-INV-002")
def gradients_of_a_validation_pass(run: Run) -> None:
    """After each window a validation loss goes back, and is not zeroed."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()
        job.model.eval()
        F.mse_loss(job.model(job.inputs[:4]), job.targets[:4]).backward()
        job.model.train()
