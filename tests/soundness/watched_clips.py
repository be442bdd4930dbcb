"""Training scripts with a wrong clip, and the obligations that do not hold of them."""

from __future__ import annotations

CLIPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "empty generator": (
        """
params = model.parameters()
opt = torch.optim.SGD(params, lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    nn.utils.clip_grad_norm_(params, 0.1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "accnode prehook": (
        """
nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
for n in nodes: n.register_prehook(lambda g: (g[0].clamp(-0.05, 0.05),))
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "accnode posthook data": (
        """
nodes = []
for p in model.parameters():
    n = p.view_as(p).grad_fn.next_functions[0][0]
    n.register_hook(lambda gi, go, p=p: (p.grad.data.clamp_(-0.05, 0.05), None)[1])
    nodes.append(n)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "lerp clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        n = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        c = (0.1 / (n + 1e-6)).clamp(max=1)
        for p in model.parameters(): p.grad.lerp_(torch.zeros_like(p.grad), 1 - c)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "sub clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        n = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        c = (0.1 / (n + 1e-6)).clamp(max=1)
        for p in model.parameters(): p.grad.sub_((1 - c) * p.grad)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "addalpha clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        n = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        c = min(1.0, 0.1 / (n.item() + 1e-6))
        for p in model.parameters(): p.grad.add_(p.grad, alpha=c - 1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "complex data clip": (
        """
class C(nn.Module):
    def __init__(s):
        super().__init__(); s.w = nn.Parameter(torch.randn(4, 2, dtype=torch.cfloat))
    def forward(s, x): return torch.view_as_real(x.to(torch.cfloat) @ s.w)[..., 0]
model = C(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters():
            g = p.grad.data
            g.mul_(min(1.0, 0.1 / (g.abs().pow(2).sum().sqrt().item() + 1e-6)))
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "sparse values clip": (
        """
emb = nn.Embedding(10, 4, sparse=True)
model = nn.Sequential(emb, nn.Flatten(0, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
I = torch.randint(10, (200, 3))
def mb(i): return (model(I[i:i+1]) - 3).pow(2).mean() / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        g = emb.weight.grad
        g._values().clamp_(-0.05, 0.05)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "queue callback": (
        """
ps = list(model.parameters())
def cb():
    for p in ps: p.grad.data.clamp_(-0.05, 0.05)
def h(g): torch.autograd.Variable._execution_engine.queue_callback(cb)
def mb(i):
    out = model(X[i]); out.register_hook(h)
    return mse_loss(out, Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "module full bw hook": (
        """
ps = list(model.parameters())
def h(m, gi, go):
    for p in ps:
        if p.grad is not None: p.grad.data.clamp_(-0.05, 0.05)
model.register_full_backward_hook(h)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "get total norm partial": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    from torch.nn.utils import get_total_norm, clip_grads_with_norm_
    n = get_total_norm([p.grad for p in model[0].parameters()])
    clip_grads_with_norm_(model.parameters(), 0.1, n)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "stale norm": (
        """
norm = None
from torch.nn.utils import get_total_norm, clip_grads_with_norm_
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 0: norm = get_total_norm([p.grad for p in model.parameters()])
    clip_grads_with_norm_(model.parameters(), 0.1, norm)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "no retain intermediate optimizer clip": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class ClipSGD(torch.optim.SGD):
    def step(self, closure=None):
        for p in model.parameters(): p.grad.clamp_(-0.01, 0.01)
        return super().step(closure)
opt = ClipSGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "clip empty list filter": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if not p.requires_grad], 0.1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "detached": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    nn.utils.clip_grad_norm_([p.detach() for p in model.parameters()], 0.1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "other model": (
        """
import copy
ema = copy.deepcopy(model)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    nn.utils.clip_grad_norm_(ema.parameters(), 0.1)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "scaler never unscaled": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for w in range(W):
    for i in range(N):
        scaler.scale(mb(w*N+i)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "masked assign clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters():
            p.grad[p.grad > 0.05] = 0.05
            p.grad[p.grad < -0.05] = -0.05
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "where clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters():
            p.grad.copy_(torch.where(p.grad.abs() > 0.05, 0.05 * p.grad.sign(), p.grad))
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "fmin": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters():
            p.grad.copy_(torch.fmin(p.grad, torch.full_like(p.grad, 0.05)))
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "graddata assign clamp": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters(): p.grad.data = p.grad.data.clamp(-0.05, 0.05)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "numpy norm": (
        """
import numpy as np
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        norm = np.sqrt(sum(float((p.grad.numpy() ** 2).sum()) for p in model.parameters()))
        c = 0.1 / (norm + 1e-6)
        if c < 1:
            for p in model.parameters(): p.grad.mul_(c)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "clip each replica": (
        """
import copy
for w in range(W):
    for i in range(N):
        rep = copy.deepcopy(model); rep.zero_grad()
        (mse_loss(rep(X[w*N+i]), Y[w*N+i]) / N).backward()
        nn.utils.clip_grad_norm_(rep.parameters(), 0.05)
        for p, r in zip(model.parameters(), rep.parameters()):
            if p.grad is None: p.grad = r.grad.clone()
            else: p.grad.add_(r.grad)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
}
