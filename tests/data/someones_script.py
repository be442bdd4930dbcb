"""A training script as it stands in many repositories: arguments, a model, a loader, an optimizer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features: int = 6, hidden: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(x))
        return logits


def train(args: argparse.Namespace) -> torch.Tensor:
    torch.manual_seed(args.seed)
    data = TensorDataset(torch.randn(args.samples, 6), torch.randint(0, 3, (args.samples,)))
    loader = DataLoader(data, batch_size=args.micro_batch_size)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    losses = []
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        (loss / args.accum_steps).backward()
        losses.append(loss.detach())
        if (step + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return torch.stack(losses).mean()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--accum-steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    print("mean loss:", train(parser.parse_args()).item())
