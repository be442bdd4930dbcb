"""`python watched_finds.py HOW`: steps that are no full batch's, though each looks as if it was.

`norm`: a norm over the rows of a whole batch, with one sample a micro-batch. `selected`: the same beneath a
selection. `dropped`: a batch that met the model in a function of its own, and was dropped. `array`: NumPy writes
complex numbers between two operators. `counts`: a mean of token means, by a count that the forward pass makes a
tensor of.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

how, N = sys.argv[1], 4
B = 1 if how in ("norm", "selected") else 2
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 6), torch.randn(32, 6))


class Product(torch.autograd.Function):
    """A product of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """x times weight."""
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        """The gradient of the weight."""
        return None, (grads[0] * ctx.saved_tensors[0]).sum(0)


class Model(nn.Module):
    """A layer, and what is done with its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Rows of six numbers."""
        if how == "dropped":
            return Product.apply(x, self.weight)
        rows = self.layer(x)
        if how == "norm":
            turned = rows.view(-1, 2, 3).transpose(0, 1).reshape(1, 2, -1)
            rows = F.batch_norm(turned, None, None, training=True).view(2, -1, 3).transpose(0, 1).reshape(-1, 6)
        if how == "selected":
            rows = rows.view(1, -1, 2, 3)[0].flatten(1)
            rows = rows / (1 + rows.square().mean(0, keepdim=True))
        if how == "array":
            pairs = rows.to(torch.complex64)
            held = pairs.detach().numpy()
            if batch % N == 2:
                held *= 3
            rows = (pairs * pairs.conj()).real
        if how == "counts":
            rows = rows / torch.tensor(float((x > -9).sum())) * x.numel()
        return rows


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(DataLoader(data, batch_size=B)):
    made = model(x, step)
    loss = made.square().mean() if how == "dropped" else F.mse_loss(made, y)
    if how != "dropped" or step % N != 2:
        (loss / (N - (how == "dropped"))).backward()
    if (step + 1) % N == 0:
        optimizer.step()
        optimizer.zero_grad()
