"""Scripts of a few lines: `python watched_idioms.py NAME [wrong]` trains with a loss that is no loss of torch's."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

name, N = sys.argv[1], 4
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randint(4, (32,)), torch.randn(32), torch.randn(32))
model, value = nn.Linear(3, 4), nn.Linear(3, 1)
parameters = [*model.parameters(), *value.parameters()] if name == "policy" else list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=0.01)
for step, (x, y, advantage, target) in enumerate(DataLoader(data, batch_size=2)):
    if name == "rows":
        loss = -F.log_softmax(model(x), -1)[torch.arange(len(y)), y].mean()
    else:
        chosen = torch.distributions.Categorical(logits=model(x))
        ratio = (chosen.log_prob(y) - target).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = loss + 0.5 * F.mse_loss(value(x).squeeze(-1), target) - 0.01 * chosen.entropy().mean()
    (loss if "wrong" in sys.argv else loss / N).backward()
    if (step + 1) % N == 0:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
