"""Training scripts with sums in too few bits, or beside the optimizer, and what does not hold of them."""

from __future__ import annotations

NARROW: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain leaf stale": (
        """
temp = torch.zeros(2, requires_grad=True)          # trained by hand, never zeroed
def mb(i): return mse_loss(model(X[i]) + temp, Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    with torch.no_grad(): temp -= 0.05 * temp.grad
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "param in opt made before module": (
        """
class Plain:            # an optimizer of one's own, beside SGD: steps every micro-batch, never zeroes
    def __init__(s, ps): s.ps = ps
    def step(s):
        with torch.no_grad():
            for p in s.ps: p.add_(p.grad, alpha=-0.05)
extra = nn.Parameter(torch.zeros(2)); own = Plain([extra])
def mb(i): return mse_loss(model(X[i]) + extra, Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        own.step()
    opt.step()
    opt.zero_grad()
""",
        (
            "GA-INV-002",
            "GA-INV-003",
        ),
    ),
    "plain leaf step each": (
        """
temp = torch.zeros(2, requires_grad=True)
def mb(i): return mse_loss(model(X[i]) + temp, Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        with torch.no_grad(): temp -= 0.05 * temp.grad; temp.grad = None
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "cast after first window": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
    if w == 0: model.bfloat16(); X, Y = X.bfloat16(), Y.bfloat16()
""",
        ("GA-INV-004",),
    ),
    "sanity then bf16": (
        """
mb(0).backward(); model.zero_grad()
model.bfloat16(); X, Y = X.bfloat16(), Y.bfloat16()
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "alternate towers": (
        """
A, B = nn.Linear(4, 2), nn.Linear(4, 2).bfloat16()
opt = torch.optim.SGD([*A.parameters(), *B.parameters()], lr=0.05)
def mb(i):
    return mse_loss(A(X[i]), Y[i]) / N if i % 2 == 0 else mse_loss(B(X[i].bfloat16()).float(), Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "accnode posthook round": (
        """
nodes = []
for p in model.parameters():
    n = p.view_as(p).grad_fn.next_functions[0][0]
    n.register_hook(lambda gi, go, p=p: (p.grad.data.copy_(p.grad.data.bfloat16()), None)[1]); nodes.append(n)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "complex half": (
        """
class C(nn.Module):
    def __init__(s):
        super().__init__(); s.w = nn.Parameter(torch.randn(4, dtype=torch.cfloat).to(torch.complex32))
    def forward(s, x): return torch.view_as_real(s.w).sum(1).float() * x
model = C(); opt = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
def mb(i): return model(X[i]).pow(2).mean() / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "bf16 model late param": (
        """
model = nn.Linear(4, 2)
big = nn.Linear(4, 2).bfloat16()
opt = torch.optim.SGD([*model.parameters(), *big.parameters()], lr=0.05)
def mb(i):
    if i % 4 < 2: return mse_loss(model(X[i]), Y[i]) / N
    return mse_loss(big(X[i].bfloat16()).float(), Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "numpy fp16 acc": (
        """
import numpy as np
for w in range(W):
    acc = [np.zeros(p.shape, np.float16) for p in model.parameters()]
    for i in range(N):
        gs = torch.autograd.grad(mb(w*N+i), list(model.parameters()))
        for a, g in zip(acc, gs): a += g.numpy().astype(np.float16)
    for p, a in zip(model.parameters(), acc): p.grad = torch.from_numpy(a.astype(np.float32))
    opt.step()
""",
        ("GA-INV-004",),
    ),
    "numpy fp16 assign": (
        """
import numpy as np
for w in range(W):
    acc = None
    for i in range(N):
        opt.zero_grad(); mb(w*N+i).backward()
        g = [p.grad.numpy().astype(np.float16) for p in model.parameters()]
        acc = g if acc is None else [a + b for a, b in zip(acc, g)]
    for p, a in zip(model.parameters(), acc): p.grad.copy_(torch.from_numpy(a.astype(np.float32)))
    opt.step()
""",
        ("GA-INV-004",),
    ),
    "autocast pairs": (
        """
def pair(j):
    return mb(2*j) + mb(2*j+1)
for w in range(W):
    for h in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mb(w*4+2*h) + mb(w*4+2*h+1)
        loss.backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "plain leaf bf16": (
        """
temp = torch.zeros(2, requires_grad=True, dtype=torch.bfloat16)
def mb(i): return mse_loss(model(X[i]) + temp.float(), Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    with torch.no_grad(): temp -= 0.05 * temp.grad; temp.grad = None
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "grad dtype": (
        """
for p in model.parameters():
    p.grad_dtype = torch.bfloat16
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "flat sum in bf16": (
        """
from torch.nn.utils import parameters_to_vector
ps = list(model.parameters())
for w in range(W):
    acc = torch.zeros(sum(p.numel() for p in ps), dtype=torch.bfloat16)
    for i in range(N):
        mb(w * N + i).backward()
        acc += parameters_to_vector([p.grad for p in ps]).bfloat16()
        opt.zero_grad()
    for p, part in zip(ps, acc.split([p.numel() for p in ps])): p.grad = part.view_as(p).float()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "slices of one batch in bf16": (
        """
from torch.utils.data import DataLoader, TensorDataset
ps, data = list(model.parameters()), TensorDataset(X.reshape(-1, 4)[:40], Y.reshape(-1, 2)[:40])
sums = [torch.zeros_like(p, dtype=torch.bfloat16) for p in ps]
for x, y in DataLoader(data, batch_size=8):
    for a, b in zip(x.split(2), y.split(2)):
        (mse_loss(model(a), b) / N).backward()
        for t, p in zip(sums, ps): t += p.grad; p.grad = None
    for t, p in zip(sums, ps): p.grad = t.float(); t.zero_()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
}
