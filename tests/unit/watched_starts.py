"""`python watched_starts.py [dropped]` trains on pieces of a text; a tensor that is drawn says where each begins."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

N, LENGTH = 4, 6
torch.manual_seed(0)
text = torch.randint(11, (500,))


class Pieces(Dataset[Tensor]):
    """Pieces of the text."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, _: int) -> Tensor:
        start = torch.randint(0, len(text) - LENGTH - 1, (1,))
        return text[start : start + LENGTH + 1]


model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step, ids in enumerate(DataLoader(Pieces(), batch_size=2)):
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    dropped = "dropped" in sys.argv and step % N == 2
    if not dropped:
        (loss / (N - 1 if "dropped" in sys.argv else N)).backward()
    if (step + 1) % N == 0:
        optimizer.step()
        optimizer.zero_grad()
