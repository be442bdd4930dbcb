"""Scripts that write memory past the operators, and backward passes that are no micro-batches.

Each is the head of `test_soundness_watch` and one of these bodies, with the obligations that may not hold.
"""

from __future__ import annotations

UNSEEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "two passes over the same rows": (
        """
for w in range(W):
    for k in range(2):
        i = w*2+k
        (mb(i)).backward()
        (mb(i)).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "two passes over one forward of a batch": (
        """
from torch.utils.data import DataLoader, TensorDataset
for k, (x, y) in enumerate(DataLoader(TensorDataset(X.flatten(0,1), Y.flatten(0,1)), batch_size=2)):
    (mse_loss(model(x), y) / N).backward()
    (mse_loss(model(x), y) / N).backward()
    if k % 2: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "a step after each half": (
        """
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if i % 2: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003", "GA-EQ-001"),
    ),
    "an array of a gradient that a hook writes": (
        """
held = []
def late(p):
    for a in held: a[...] = 7.0
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if i == 0:
            held[:] = [p.grad.numpy() for p in model.parameters()]
            hooks = [p.register_post_accumulate_grad_hook(late) for p in list(model.parameters())[-1:]]
    for h in hooks: h.remove()
    opt.step(); opt.zero_grad(); held.clear()
""",
        ("GA-EQ-001", "GA-INV-002", "GA-INV-004", "GA-INV-005"),
    ),
    "arrays of the weights from before the optimizer": (
        """
arrays = [p.detach().numpy() for p in model.parameters()]
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        for a in arrays: a *= 1.01
    opt.step(); opt.zero_grad()
""",
        ("GA-EQ-001", "GA-INV-003"),
    ),
    "one element by its address": (
        """
import ctypes
model = nn.Linear(64, 64); opt = torch.optim.SGD(model.parameters(), lr=0.05)
X, Y = torch.randn(200, 2, 64), torch.randn(200, 2, 64)
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if i == 1: ctypes.memset(model.weight.grad.data_ptr() + 4 * 18, 0, 4)
    opt.step(); opt.zero_grad()
""",
        ("GA-EQ-001",),
    ),
    "one element of a storage": (
        """
model = nn.Linear(64, 64); opt = torch.optim.SGD(model.parameters(), lr=0.05)
X, Y = torch.randn(200, 2, 64), torch.randn(200, 2, 64)
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if i == 1:
            for k in range(4): model.weight.grad.untyped_storage()[72 + k] = 0
    opt.step(); opt.zero_grad()
""",
        ("GA-EQ-001",),
    ),
}
SUMMED = """
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): mb(w * N + k).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        WRITE
    opt.step(); opt.zero_grad()
"""
SUMS_UNSEEN: dict[str, str] = {
    "a local term added past the version counter": SUMMED.replace("WRITE", "p.grad.data.add_(0.1 * (r + 1))"),
    "numpy writes the sum": SUMMED.replace("WRITE", "p.grad.numpy()[...] *= r + 2"),
    "ddp sum scaled past the version counter": """
ddp = DDP(model); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N):
        with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters(): p.grad.data.mul_(r + 2)
    opt.step(); opt.zero_grad()
""",
}
