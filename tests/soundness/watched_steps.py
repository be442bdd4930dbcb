"""Training scripts with wrong steps, and the obligations that do not hold of them."""

from __future__ import annotations

STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "clip each and never zero": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    pass
""",
        (
            "GA-INV-002",
            "GA-INV-005",
        ),
    ),
    "unscale early and rest": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for w in range(W):
    for i in range(N):
        scaler.scale(mb(w*N+i)).backward()
        if i == 1: scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(opt); scaler.update();
""",
        (
            "GA-INV-002",
            "GA-INV-005",
        ),
    ),
    "zero lost and bf16 and clip": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 1: opt.zero_grad()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    pass
""",
        (
            "GA-INV-002",
            "GA-INV-005",
        ),
    ),
    "lost first then clip each": (
        """
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if w == 0 and i == 0: opt.zero_grad()
        if w > 0: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad()
""",
        (
            "GA-INV-002",
            "GA-INV-005",
        ),
    ),
    "clip each step twice": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "step each and never zero": (
        """
for k in range(20):
    mb(k).backward()
    opt.step()
""",
        ("GA-INV-003",),
    ),
    "two opts same params": (
        """
opt2 = torch.optim.SGD(model[2].parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step(); opt2.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "subclass skips": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class Skip(torch.optim.SGD):
    k = 0
    def step(self, closure=None):
        self.k += 1
        if self.k % 2 == 0: return None
        return super().step(closure)
opt = Skip(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "cond skip inside step prehook": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class Guard(torch.optim.SGD):
    def step(self, closure=None):
        n = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if n > 0.5: return None     # silently drops the whole window
        return super().step(closure)
opt = Guard(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "fake step wrapper twice lr": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class Twice(torch.optim.SGD):
    def step(self, closure=None):
        super().step(); return super().step()
opt = Twice(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "post hook second update": (
        """
def post(o, a, k):
    with torch.no_grad():
        for p in model.parameters(): p.add_(p.grad, alpha=-0.05)
opt.register_step_post_hook(post)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "every step skipped": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=0.999)
def mb(i): return mse_loss(model(X[i]) * 1e17, Y[i]) / N       # every window overflows: no step is ever made
for w in range(W):
    for i in range(N): scaler.scale(mb(w*N+i)).backward()
    scaler.step(opt); scaler.update(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "two backwards per mb": (
        """
aux = nn.Linear(4, 2)
opt = torch.optim.SGD([*model.parameters(), *aux.parameters()], lr=0.05)
from torch.utils.data import DataLoader, TensorDataset
dl = DataLoader(TensorDataset(X[:24], Y[:24]), batch_size=1)
for k, (x, y) in enumerate(dl):
    (mse_loss(model(x), y) / N).backward()
    (mse_loss(model(x) + aux(x), y) / N).backward()
    if (k + 1) % 2 == 0:   # should be N = 4
        opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "replay loader tail": (
        """
from torch.utils.data import DataLoader, TensorDataset
dl = DataLoader(TensorDataset(X[:24], Y[:24]), batch_size=1)
replay = DataLoader(TensorDataset(X[24:26], Y[24:26]), batch_size=2)
for k, (x, y) in enumerate(dl):
    for rx, ry in replay: pass
    ((mse_loss(model(x), y) + mse_loss(model(rx), ry)) / N).backward()
    if (k + 1) % 2 == 0:   # should be N = 4
        opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "hand copy each micro": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        with torch.no_grad():
            for p in model.parameters(): p.copy_(p - 0.05 * p.grad)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "hand data assign each micro": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters(): p.data = p.data - 0.05 * p.grad
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "hand add before step": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    for p in model.parameters(): p.data.add_(p.grad, alpha=-0.05)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "hand add after step": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    for p in model.parameters(): p.data.add_(p.grad, alpha=-0.05)
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "load state mid window": (
        """
import copy
init = copy.deepcopy(model.state_dict())
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 1: model.load_state_dict(init)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "lookalike foreach": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        with torch.no_grad():
            new = torch._foreach_add(list(model.parameters()), [p.grad for p in model.parameters()], alpha=-0.05)
            torch._foreach_copy_(list(model.parameters()), new)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "step in zero grad": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class Z(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        if any(p.grad is not None for p in model.parameters()):
            with torch.no_grad():
                for p in model.parameters(): p.add_(p.grad, alpha=-0.05)      # a second update
        super().zero_grad(set_to_none)
opt = Z(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "scheduler step writes": (
        """
class L(torch.optim.lr_scheduler.LambdaLR):
    def step(self, epoch=None):
        super().step()
        if hasattr(self, "go"):
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None: p.add_(p.grad, alpha=-0.05)
sched = L(opt, lambda e: 1.0); sched.go = True
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step(); sched.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "param subclass data write": (
        """
class MyP(nn.Parameter): pass
model = nn.Linear(4, 2)
model.weight = MyP(model.weight.data); model.bias = MyP(model.bias.data)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        for p in model.parameters(): p.data.add_(p.grad.data, alpha=-0.05)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "extra step other opt inside micro": (
        """
opt2 = torch.optim.SGD(model[0].parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        opt2.step()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "rebound step fn": (
        """
fn = torch.optim.SGD.step.__wrapped__ if hasattr(torch.optim.SGD.step, "__wrapped__") else torch.optim.SGD.step
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 1: fn(opt)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "functional sgd": (
        """
from torch.optim.sgd import sgd
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        with torch.no_grad():
            ps = list(model.parameters())
            sgd(ps, [p.grad for p in ps], [None] * len(ps),
                weight_decay=0, momentum=0, lr=0.05, dampening=0, nesterov=False, maximize=False)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "no loader short forwards2": (
        """
for k in range(20):   # steps after every micro-batch; two forward passes in each
    (mb(k) + 0.1 * mb(k)).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "lr sched each micro and stale": (
        """
sched = torch.optim.lr_scheduler.StepLR(opt, 100)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        sched.step()
    opt.step()
    pass
""",
        ("GA-INV-003",),
    ),
    "a second step on zeros": (
        """
from torch.utils.data import DataLoader, TensorDataset
opt = torch.optim.AdamW(model.parameters())
for k, (x, y) in enumerate(DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=2)):
    (mse_loss(model(x), y) / N).backward()
    if k % N == N - 1: opt.step(); opt.zero_grad(set_to_none=False); opt.step()
""",
        ("GA-INV-003",),
    ),
}
