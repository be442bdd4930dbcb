"""`python watched_masks.py HOW`: means of masked means, whose masks are full in the first windows.

The last is right: one tensor of ones stands beside all micro-batches, and is no data.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

how, N, B = sys.argv[1], 4, 2
torch.manual_seed(0)
x, y, mask = torch.randn(64, 6, 3), torch.randn(64, 6), torch.ones(64, 6)
mask[40:, 3:] = 0
whole, one = TensorDataset(x, y, mask), torch.ones(B, 6)
batches = {
    "loader": DataLoader(whole, batch_size=B),
    "list": [tuple(part.clone() for part in whole[i : i + B]) for i in range(0, 64, B)],
    "slices": [whole[i : i + B] for i in range(0, 64, B)],
    "counts": [(*whole[i : i + B][:2], mask[i : i + B].sum()) for i in range(0, 64, B)],
    "ones": [(*whole[i : i + B][:2], one) for i in range(0, 64, B)],
}[how]
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (a, b, valid) in enumerate(batches):
    each = F.mse_loss(model(a).squeeze(-1), b, reduction="none")
    loss = (each * valid).sum() / valid.sum() if valid.dim() else each.sum() / valid
    (loss / N).backward()
    if (step + 1) % N == 0:
        optimizer.step()
        optimizer.zero_grad()
