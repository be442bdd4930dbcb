"""Right training scripts that look unusual, or that hold what a recorder may stumble over."""

from __future__ import annotations

RIGHT: dict[str, str] = {
    "dino cancel last layer": """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    if w < 2:
        for p in model[2].parameters(): p.grad = None
    opt.step()
    opt.zero_grad()
""",
    "resume fast forward": """
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
for _ in range(3): sched.step()      # resume at window 3
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step(); sched.step()
    opt.zero_grad()
""",
    "dummy step": """
opt.zero_grad(); opt.step()      # silences the scheduler's warning
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "pgd then train": """
def adv(i):
    x = X[i].clone().requires_grad_(); mse_loss(model(x), Y[i]).backward(); return (x + 0.1 * x.grad.sign()).detach()
for w in range(W):
    xs = [adv(w*N+i) for i in range(N)]
    opt.zero_grad()
    for i in range(N): (mse_loss(model(xs[i]), Y[w*N+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
    "sanity backward": """
mb(0).backward(); opt.zero_grad()   # warm-up of memory
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "super step nested": """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
class My(torch.optim.SGD):
    def step(self, closure=None): return super().step(closure)
opt = My(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "optimizer recreated": """
head = torch.optim.SGD(model[2].parameters(), lr=0.05)
body = torch.optim.SGD(model[0].parameters(), lr=0.05)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    head.step(); body.step(); model.zero_grad()
    if w == 0: head = torch.optim.SGD(model[2].parameters(), lr=0.01)
""",
    "deepcopy mid": """
import copy
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
    if w == 0: model, opt = copy.deepcopy((model, opt))
""",
    "threads backward": """
import threading
for w in range(W):
    ts = [threading.Thread(target=lambda i=i: mb(w*N+i).backward()) for i in range(N)]
    [t.start() for t in ts]; [t.join() for t in ts]
    opt.step(); opt.zero_grad()
""",
    "threads backward at once": """
import threading
for w in range(W):
    def others(g):
        ts = [threading.Thread(target=lambda i=i: mb(w*N+i).backward()) for i in range(1, N)]
        for t in ts: t.start(); t.join()
    loss = mb(w*N)
    loss.register_hook(others)
    loss.backward()
    opt.step(); opt.zero_grad()
""",
    "summed with normalizer": """
norm = nn.LayerNorm(4, elementwise_affine=False)
for w in range(W):
    xs = norm(X[w*N:(w+1)*N])
    loss = sum(mse_loss(model(xs[i]), Y[w*N+i]) for i in range(N)) / N
    loss.backward()
    opt.step(); opt.zero_grad()
""",
    "numpy fp32 acc": """
import numpy as np
for w in range(W):
    acc = [np.zeros(p.shape, np.float64) for p in model.parameters()]
    for i in range(N):
        mb(w*N+i).backward()
        for a, p in zip(acc, model.parameters()): a += p.grad.numpy(); p.grad = None
    for p, a in zip(model.parameters(), acc): p.grad = torch.tensor(a, dtype=torch.float32)
    opt.step(); opt.zero_grad()
""",
    "lbfgs": """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
for w in range(W):
    def closure():
        opt.zero_grad(); t = 0
        for i in range(N):
            l = mb(w*N+i); l.backward(); t += l.item()
        return torch.tensor(t)
    opt.step(closure)
""",
    "zero frozen grad before step": """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    model[0].weight.grad.zero_()
    opt.step()
    opt.zero_grad()
""",
    "ema swap eval": """
ema = [p.detach().clone() for p in model.parameters()]
def swap():
    for e, p in zip(ema, model.parameters()): p.data, e.data = e.data.clone(), p.data.clone()
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 1:
            swap()
            with torch.no_grad(): mb(0)
            swap()
    opt.step()
    opt.zero_grad()
""",
    "lookahead wrapper": """
slow = [p.detach().clone() for p in model.parameters()]
class LA:
    def __init__(s, o): s.o = o; s.k = 0
    def step(s):
        s.o.step(); s.k += 1
        if s.k % 2 == 0:
            for q, p in zip(slow, model.parameters()): q.add_(p.detach() - q, alpha=0.5); p.data.copy_(q)
    def zero_grad(s): s.o.zero_grad()
opt = LA(opt)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "grad restart on nan": """
for w in range(W):
    attempt = 0
    while True:
        bad = False
        for i in range(N):
            l = mb(w*N+i)
            if w == 1 and attempt == 0 and i == 2: l = l * float("nan")
            l.backward(); bad |= bool(l.isnan())
        if not bad: break
        opt.zero_grad(); attempt += 1     # the window is done again
    opt.step(); opt.zero_grad()
""",
    "two sched seq": """
from torch.optim.lr_scheduler import *
s = SequentialLR(opt, [LinearLR(opt, 0.1, 1, 2), ExponentialLR(opt, 0.9)], [2])
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step(); s.step()
    opt.zero_grad()
""",
    "scaler manual skip": """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for w in range(W):
    for i in range(N):
        l = mb(w*N+i)
        if w == 1 and i == 1: l = l * float("inf")
        scaler.scale(l).backward()
    scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(opt); scaler.update(); opt.zero_grad()
""",
    "clip each group separately": """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    for m in model:
        nn.utils.clip_grad_norm_(m.parameters(), 0.1)
    opt.step()
    opt.zero_grad()
""",
    "optimizer in backward": """
opts = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
k = [0]
def h(p):
    if k[0] % N == N - 1: opts[p].step(); opts[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(h)
for i in range(N * W): mb(i).backward(); k[0] += 1
""",
    "late unfreeze": """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
opt = torch.optim.SGD(model[2].parameters(), lr=0.05)
for w in range(W):
    if w == 1: opt.add_param_group({"params": list(model[0].parameters())})
    for i in range(N): mb(w*N+i).backward()
    opt.step(); model.zero_grad()
""",
    "gan same window": """
D, G = nn.Linear(2, 1), nn.Linear(4, 2)
oD, oG = torch.optim.SGD(D.parameters(), lr=0.05), torch.optim.SGD(G.parameters(), lr=0.05)
for w in range(W):
    for i in range(N): ((D(Y[w*N+i]) - 1).pow(2).mean() / N + D(G(X[w*N+i]).detach()).pow(2).mean() / N).backward()
    oD.step(); oD.zero_grad()
    for i in range(N): ((D(G(X[w*N+i])) - 1).pow(2).mean() / N).backward()
    oG.step(); oG.zero_grad(); oD.zero_grad()
""",
    "tokens divided at end": """
def mb(i):
    return (model(X[i]) - Y[i]).pow(2).sum()
for w in range(W):
    tok = 0
    for i in range(N): mb(w*N+i).backward(); tok += 4 + w * 3
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item(); print("raw norm", norm)
    for p in model.parameters(): p.grad.div_(tok)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad()
""",
    "running mean grad": """
def mb(i): return mse_loss(model(X[i]), Y[i])
for w in range(W):
    for i in range(N):
        for p in model.parameters():
            if p.grad is not None: p.grad.mul_(i)
        mb(w*N+i).backward()
        for p in model.parameters(): p.grad.div_(i + 1)
        print(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
    opt.step(); opt.zero_grad()
""",
    "validation grad norm": """
from torch.nn.utils import clip_grad_norm_
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    total = clip_grad_norm_(model.parameters(), max_norm=float('inf'))
    if total > 1: clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
""",
    "no accum tail drop": """
from torch.utils.data import DataLoader, TensorDataset
dl = DataLoader(TensorDataset(X[:10], Y[:10]), batch_size=1)
for ep in range(2):
    for k, (x, y) in enumerate(dl):
        if k // N == len(dl) // N: break         # incomplete windows are left out
        (mse_loss(model(x), y) / N).backward()
        if (k + 1) % N == 0: opt.step(); opt.zero_grad()
""",
    "grad scaler disabled": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for w in range(W):
    for i in range(N): scaler.scale(mb(w*N+i)).backward()
    scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(opt); scaler.update(); opt.zero_grad()
""",
    "grads saved restored": """
# a probe in the middle of a window: gradients are put aside and put back, as a library for influence functions does
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
        if i == 1:
            keep = [p.grad for p in model.parameters()]
            opt.zero_grad(); mb(0).backward(); opt.zero_grad()
            for p, g in zip(model.parameters(), keep): p.grad = g
    opt.step()
    opt.zero_grad()
""",
    "two opts shared number scheduler": """
o1 = torch.optim.SGD(model[0].parameters(), lr=0.05)
o2 = torch.optim.SGD(model[2].parameters(), lr=0.05)
def loopw(w):
    for i in range(N): mb(w*N+i).backward()
for w in range(2):
    loopw(w); o1.step(); o2.step(); model.zero_grad()
del opt
o1 = torch.optim.Adam(model[0].parameters(), lr=0.05)
for w in range(2, 5):
    loopw(w); o1.step(); o2.step(); model.zero_grad()
""",
    "post hook instance stale": """
saved = {}
def post(o, a, k):
    for p in model.parameters(): saved[p] = p.grad.clone()
opt.register_step_post_hook(post)
class Alias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w): ctx.w = w; return w.view_as(w)
    @staticmethod
    def backward(ctx, g):
        return g
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "swap tensors": """
torch.__future__.set_swap_module_params_on_conversion(True)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
    if w == 0: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
""",
    "meta model": """
import copy
meta = copy.deepcopy(model).to("meta"); meta(torch.empty(2, 4, device="meta"))   # shape check
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "fp8 frozen": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.w8 = nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
        s.l = nn.Linear(4, 2)
    def forward(s, x): return s.l(x @ s.w8.float())
model = L(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "uint16 frozen": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.q = nn.Parameter(torch.ones(4, 4).to(torch.uint16), requires_grad=False)
        s.b = nn.Parameter(torch.ones(4).bool(), requires_grad=False)
        s.l = nn.Linear(4, 2)
    def forward(s, x): return s.l(x @ s.q.float())
model = L(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "lazy": """
model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(2))
model(X[0]); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "csr": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.eye(4).to_sparse_csr(), requires_grad=True)
        s.l = nn.Linear(4, 2)
    def forward(s, x): return s.l((s.w @ x.t()).t())
model = L(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "neg bit grad": """
w = nn.Parameter(torch.randn(3)); opt = torch.optim.SGD([w], lr=0.1)
for k in range(W):
    for i in range(N): (w * X[i].sum()).sum().backward()
    w.grad = torch.complex(torch.zeros(3), w.grad).conj().imag
    opt.step(); opt.zero_grad()
""",
    "nested": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 2)
        s.nt = nn.Parameter(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), requires_grad=False)
    def forward(s, x): return s.l(x)
model = L(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "zero numel and scalar": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 2)
        s.e = nn.Parameter(torch.empty(0))
        s.s = nn.Parameter(torch.tensor(1.0))
    def forward(s, x): return s.l(x) * s.s + s.e.sum()
model = L(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "default device meta": """
with torch.device("meta"):
    big = nn.Linear(4, 4)
    big(torch.empty(1, 4))
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "step in last hook stop": """
opt2 = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}
def h(p): opt2[p].step(); p.grad = None
for p in model.parameters(): p.register_post_accumulate_grad_hook(h)
for k in range(20): mb(k).backward()
""",
    "lazy optimizer order": """
model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(2))
model(X[0])
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "param subclass tf": """
class P(nn.Parameter):
    @classmethod
    def __torch_function__(cls, f, t, a=(), k=None): return super().__torch_function__(f, t, a, k or {})
model[0].weight = P(model[0].weight.data)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "model to swap": """
from torch.utils import swap_tensors
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
    if w == 0: swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach().clone()))
""",
    "fake mode": """
from torch._subclasses.fake_tensor import FakeTensorMode
import copy
with FakeTensorMode(allow_non_fake_inputs=True) as m:
    f = nn.Linear(4, 2); f(torch.empty(2, 4))
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "set default device": """
torch.set_default_device("cpu")
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "quantized buffers": """
class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 2)
        s.q = nn.Parameter(torch.ones(4).to(torch.uint8), requires_grad=False)
        s.c = nn.Parameter(torch.ones(4, dtype=torch.cfloat).conj().imag, requires_grad=False)
    def forward(s, x): return s.l(x * s.q.float() + s.c)
model = L(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
    "double forward optimizer state reset": """
for w in range(W):
    opt.state.clear()
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
}
