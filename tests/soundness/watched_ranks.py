"""Training scripts of two ranks that step by one gradient, or by gradients of their own."""

from __future__ import annotations

RANKS_WRONG: dict[str, str] = {
    "loss reduce only": """
for w in range(W):
    for i in range(N):
        l = mb(w*N+i); l.backward(); d = l.detach().clone(); dist.all_reduce(d)
    opt.step(); opt.zero_grad()
""",
    "sync first window only": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    if w == 0:
        for p in model.parameters(): dist.all_reduce(p.grad)
    opt.step(); opt.zero_grad()
""",
    "sync before last micro": """
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward()
        if i == 2:
            for p in model.parameters(): dist.all_reduce(p.grad)
    opt.step(); opt.zero_grad()
""",
    "part reduced": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model[2].parameters(): dist.all_reduce(p.grad)
    opt.step(); opt.zero_grad()
""",
    "flat wrong": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()]); dist.all_reduce(flat)
    opt.step(); opt.zero_grad()
""",
    "second model hides": """
B = nn.Linear(2, 2); torch.manual_seed(5); nn.init.normal_(B.weight); nn.init.zeros_(B.bias)
A, B = DDP(model), DDP(B)
opt = torch.optim.SGD([*A.parameters(), *B.parameters()], lr=0.05)
for w in range(W):
    for i in range(N):
        with A.no_sync(): h = A(X[w*N+i])
        if i < N - 1:
            with B.no_sync(): (mse_loss(B(h), Y[w*N+i]) / N).backward()
        else: (mse_loss(B(h), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "never summed": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): pass
    pass
    opt.step(); opt.zero_grad()
""",
    "a gradient made anew after the sum": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad); p.grad = torch.zeros_like(p)
    pass
    opt.step(); opt.zero_grad()
""",
    "divided by a number of the rank after the sum": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= 2 + rank
    pass
    opt.step(); opt.zero_grad()
""",
    "written past the version counter after the sum": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad); p.grad.data.mul_(0.3)
    pass
    opt.step(); opt.zero_grad()
""",
    "sparse gradients": """
table = nn.Embedding(5, 2, sparse=True); opt = torch.optim.SGD(table.parameters(), lr=0.05)
for w in range(W):
    for i in range(N): (table(torch.tensor([i])).sum() / N).backward()
    dist.all_reduce(table.weight.grad)
    opt.step(); opt.zero_grad()
""",
    "a hook that writes when the sum is there": """
net = DDP(model)
def hook(_, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0].mul_(rank + 1))
net.register_comm_hook(None, hook)
for w in range(W):
    for i in range(N):
        net.require_backward_grad_sync = i == N - 1
        (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "summed for a log, and then in another group": """
local = [dist.new_group([0]), dist.new_group([1])][rank]
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad.clone())
    for p in model.parameters(): dist.all_reduce(p.grad, group=local)
    opt.step(); opt.zero_grad()
""",
    "summed for a log, and then the largest": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad.clone())
    for p in model.parameters(): dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
    opt.step(); opt.zero_grad()
""",
    "a hook of a ddp inside another module": """
def hook(_, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda f: f.value()[0].mul_(rank + 1))
class Lit(nn.Module):
    def __init__(self): super().__init__(); self.net = DDP(model); self.net.register_comm_hook(None, hook)
    def forward(self, x, y): return mse_loss(self.net(x), y) / N
lit = Lit()
for w in range(W):
    for i in range(N):
        lit.net.require_backward_grad_sync = i == N - 1
        lit(X[w*N+i], Y[w*N+i]).backward()
    opt.step(); opt.zero_grad()
""",
    "a sum in a hook that nobody waits for": """
last = False
def hook(p):
    if last: dist.all_reduce(p.grad, async_op=True)
for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
for w in range(W):
    for i in range(N): last = i == N-1; mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
}
RANKS_REFUTED: dict[str, str] = {
    "ddp sums the wrong micro-batch": """
net = DDP(model); import contextlib
for w in range(W):
    for i in range(N):
        with (net.no_sync() if i == N - 1 else contextlib.nullcontext()):
            (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "a ddp inside another module never sums": """
class Lit(nn.Module):
    def __init__(self): super().__init__(); self.net = DDP(model)
    def forward(self, x, y): return mse_loss(self.net(x), y) / N
lit = Lit()
for w in range(W):
    for i in range(N):
        with lit.net.no_sync(): lit(X[w*N+i], Y[w*N+i]).backward()
    opt.step(); opt.zero_grad()
""",
    "ddp never sums": """
net = DDP(model)
for w in range(W):
    for i in range(N):
        with net.no_sync(): (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    l = torch.zeros(()); dist.all_reduce(l)
    opt.step(); opt.zero_grad()
""",
}
RANKS_UNDECIDED: dict[str, str] = {
    "ddp never sums and ranks exchange by hand": """
net = DDP(model)
for w in range(W):
    for i in range(N):
        with net.no_sync(): (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    for p in model.parameters(): dist.all_reduce(p.data)
    opt.step(); opt.zero_grad()
""",
    "gradients are exchanged by files": """
import time, numpy as np
net = DDP(model); base = os.environ["STORE"] + "x"
def ex(k, t):
    np.save(f"{base}{k}.{rank}.part.npy", t); os.rename(f"{base}{k}.{rank}.part.npy", f"{base}{k}.{rank}")
    while not os.path.exists(f"{base}{k}.{1-rank}"): time.sleep(.001)
    return np.load(f"{base}{k}.{1-rank}")
for w in range(W):
    for i in range(N):
        with net.no_sync(): (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    for j, p in enumerate(model.parameters()):
        a = p.grad.numpy().copy(); p.grad.copy_(torch.from_numpy((a + ex(f"{w}.{j}", a)) / 2))
    opt.step(); opt.zero_grad()
""",
    "weights are averaged in the step": """
class Avg(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for g in self.param_groups:
            for p in g['params']: dist.all_reduce(p.data); p.data /= 2
opt = Avg(model.parameters(), lr=0.05); net = DDP(model)
for w in range(W):
    for i in range(N):
        with net.no_sync(): (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "ddp with a hook that sums nothing": """
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
net = DDP(model); net.register_comm_hook(None, noop_hook)
for w in range(W):
    for i in range(N): (mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
}
RANKS_RIGHT: dict[str, str] = {
    "ddp no grad target": """
net = DDP(model); import contextlib
for w in range(W):
    for i in range(N):
        with (net.no_sync() if i < N - 1 else contextlib.nullcontext()):
            out = net(X[w*N+i])
            with torch.no_grad(): t = net(X[w*N+i+1])
            (mse_loss(out, Y[w*N+i] + 0.1 * t) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "summed after the last micro-batch": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad)
    pass
    opt.step(); opt.zero_grad()
""",
    "clipped after the sum": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad()
""",
    "clipped by value after the sum of a ddp under a loss scale": """
net, scaler = DDP(model), torch.amp.GradScaler("cpu", init_scale=8.0)
for w in range(W):
    for i in range(N):
        net.require_backward_grad_sync = i == N - 1
        scaler.scale(mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    scaler.unscale_(opt); nn.utils.clip_grad_value_(model.parameters(), 0.1)
    scaler.step(opt); scaler.update(); opt.zero_grad()
""",
    "clipped by value after the sum": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad)
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad()
""",
    "ddp views of buckets and a loss scale": """
net, scaler = DDP(model, gradient_as_bucket_view=True), torch.amp.GradScaler("cpu", init_scale=8.0)
for w in range(W):
    for i in range(N):
        net.require_backward_grad_sync = i == N - 1
        scaler.scale(mse_loss(net(X[w*N+i]), Y[w*N+i]) / N).backward()
    scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(opt); scaler.update(); opt.zero_grad()
""",
}
