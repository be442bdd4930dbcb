"""Training scripts whose backward passes are no micro-batches, or whose steps apply nothing."""

from __future__ import annotations

PASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "never stepped second optimizer": (
        """
head = nn.Linear(2, 2); opt2 = torch.optim.Adam(head.parameters(), lr=1e-2)
def mb(i): return mse_loss(head(model(X[i])), Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002", "GA-INV-003"),
    ),
    "never stepped second optimizer zeroed": (
        """
head = nn.Linear(2, 2); opt2 = torch.optim.Adam(head.parameters(), lr=1e-2)
def mb(i): return mse_loss(head(model(X[i])), Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad(); opt2.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "the last sample of a window is in the next": (
        """
for w in range(W):
    for i in range(N): mb(w*(N-1)+i).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-DATA-001",),
    ),
    "never stepped second optimizer freed": (
        """
import gc
head = nn.Linear(2, 2); opt2 = torch.optim.Adam(head.parameters(), lr=1e-2)
def mb(i): return mse_loss(head(model(X[i])), Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad(); opt2.zero_grad()
del opt2
gc.collect()
""",
        ("GA-INV-003",),
    ),
    "two losses retain graph half window": (
        """
for w in range(2 * W):
    for i in range(2):
        h = model(X[2*w+i])
        (mse_loss(h, Y[2*w+i]) / N).backward(retain_graph=True)
        (0.01 * h.pow(2).mean() / N).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "two losses second backward no forward": (
        """
pi, v = nn.Linear(4, 2), nn.Linear(4, 2); opt = torch.optim.SGD([*pi.parameters(), *v.parameters()], lr=0.01)
for w in range(2 * W):
    for i in range(2):
        a, b = pi(X[2*w+i]), v(X[2*w+i])
        (mse_loss(a, Y[2*w+i]) / N).backward(); (mse_loss(b, Y[2*w+i]) / N).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "three batches and a penalty": (
        """
from torch.utils.data import DataLoader, TensorDataset
for k, (x, y) in enumerate(DataLoader(TensorDataset(X[:24], Y[:24]), batch_size=1)):
    (mse_loss(model(x), y) / N).backward()
    if (k + 1) % 3 == 0:
        (1e-3 * sum(p.abs().sum() for p in model.parameters())).backward(); opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "eight batches four passes": (
        """
from torch.utils.data import DataLoader, TensorDataset
loss = 0
for k, (x, y) in enumerate(DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=1)):
    loss = loss + mse_loss(model(x), y) / 8
    if (k + 1) % 2 == 0: loss.backward(); loss = 0
    if (k + 1) % 8 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "model made anew after optimizer": (
        """
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); model.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "masters never filled": (
        """
masters = [p.detach().clone().requires_grad_() for p in model.parameters()]; opt = torch.optim.AdamW(masters, lr=0.01)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); model.zero_grad()
    for m, p in zip(masters, model.parameters()): p.data.copy_(m.data)
""",
        ("GA-INV-003",),
    ),
    "copied optimizer steps old weights": (
        """
import copy
model = copy.deepcopy(model)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1); opt.step()
    for p in model.parameters(): p.grad = None
""",
        ("GA-INV-003",),
    ),
    "scaler two optimizers one unscaled": (
        """
head = nn.Linear(2, 2); opt2 = torch.optim.SGD(head.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
def mb(i): return mse_loss(head(model(X[i])), Y[i]) / N
for w in range(W):
    for i in range(N): scaler.scale(mb(w*N+i)).backward()
    scaler.unscale_(opt); nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
    scaler.step(opt); opt2.step(); scaler.update(); opt.zero_grad(); opt2.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "manual loss scale clip before unscale": (
        """
for w in range(W):
    for i in range(N): (mb(w*N+i) * 1024).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for p in model.parameters(): p.grad.div_(1024)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "manual scale masters clip": (
        """
for w in range(W):
    acc = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(N):
        opt.zero_grad(); (mb(w*N+i) * 4096).backward()
        for a, p in zip(acc, model.parameters()): a.add_(p.grad)
    for p, a in zip(model.parameters(), acc): p.grad = a
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for p in model.parameters(): p.grad.mul_(1 / 4096)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "ddp one rank activation hook stale": (
        """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
def mb(i): return mse_loss(net(X[i]), Y[i]) / N

ps = list(model.parameters()); saved = {}
def h(g):
    for p in ps:
        if p in saved and p.grad is not None: p.grad.data.add_(saved.pop(p))
def mb(i):
    out = net(X[i]); out.register_hook(h); return mse_loss(out, Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in ps: saved[p] = p.grad.clone()
    opt.step(); opt.zero_grad()
dist.destroy_process_group()
""",
        ("GA-INV-002",),
    ),
    "ddp one rank activation hook clips": (
        """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
def mb(i): return mse_loss(net(X[i]), Y[i]) / N

ps = list(model.parameters())
def h(g):
    for p in ps:
        if p.grad is not None: p.grad.data.clamp_(-.05, .05)
def mb(i):
    out = net(X[i]); out.register_hook(h); return mse_loss(out, Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
dist.destroy_process_group()
""",
        ("GA-INV-005",),
    ),
    "ddp comm wrapper then other model hook": (
        """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
def mb(i): return mse_loss(net(X[i]), Y[i]) / N

student = nn.Linear(4, 2); opt = torch.optim.SGD([*student.parameters()], lr=0.05); ps = list(student.parameters())
def h(g):
    for p in ps:
        if p.grad is not None: p.grad.data.clamp_(-.05, .05)
def mb(i):
    out = student(X[i]); out.register_hook(h); t = net(X[i]).detach(); return mse_loss(out, Y[i] + t) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
dist.destroy_process_group()
""",
        ("GA-INV-005",),
    ),
    "functional pairs bf16": (
        """
ws = [nn.Parameter(torch.randn(4, 64) / 2), nn.Parameter(torch.randn(64, 2) / 8)]
opt = torch.optim.SGD(ws, lr=0.01)
def f(ps, x): return torch.tanh(x @ ps[0]) @ ps[1]
for w in range(W):
    for h in range(2):
        ps = [p.bfloat16() for p in ws]
        loss = sum(mse_loss(f(ps, X[w*4+2*h+j].bfloat16()), Y[w*4+2*h+j].bfloat16()) / N for j in range(2))
        loss.backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-004",),
    ),
    "averaged model per micro": (
        """
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
for w in range(W):
    for i in range(N):
        mb(w*N+i).backward(); ema.update_parameters(model)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "head replaced after optimizer": (
        """
model[2] = nn.Linear(3, 2)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002", "GA-INV-003"),
    ),
    "exception midway partial": (
        """
boom = [False]
def bad(g):
    if boom[0]: raise RuntimeError("out of memory")
def mb(i):
    h = torch.tanh(model[0](X[i])); h.register_hook(bad)
    return mse_loss(model[2](h), Y[i]) / N
for w in range(W):
    for i in range(N):
        boom[0] = i == 2
        try: mb(w*N+i).backward()
        except RuntimeError: pass
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
}
PASSES_RIGHT: dict[str, str] = {
    "accumulating optimizer wrapper": """
class Accum(torch.optim.Optimizer):
    def __init__(s, o, n): s.o, s.n, s.k = o, n, 0; super().__init__(o.param_groups, o.defaults)
    def step(s, closure=None):
        s.k += 1
        if s.k % s.n == 0: s.o.step(); s.o.zero_grad()
    def zero_grad(s, set_to_none=True): pass
opt = Accum(torch.optim.AdamW(model.parameters(), lr=0.01), N)
for k in range(N * W):
    mb(k).backward(); opt.step(); opt.zero_grad()
""",
    "optimizer that accumulates itself": """
class AccSGD(torch.optim.Optimizer):
    def __init__(s, ps, lr, n): super().__init__(ps, dict(lr=lr)); s.n, s.k = n, 0
    @torch.no_grad()
    def step(s, closure=None):
        s.k += 1
        for g in s.param_groups:
            for p in g["params"]:
                st = s.state[p]
                st.setdefault("acc", torch.zeros_like(p)).add_(p.grad)
                if s.k % s.n == 0: p.add_(st["acc"], alpha=-g["lr"]); st["acc"].zero_()
opt = AccSGD(model.parameters(), 0.05, N)
for k in range(N * W):
    opt.zero_grad(); mb(k).backward(); opt.step()
""",
    "penalty backward once a window": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    (1e-3 * sum(p.abs().sum() for p in model.parameters())).backward()
    opt.step(); opt.zero_grad()
""",
    "lazy penalty every second window": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    if w % 2 == 0: (1e-3 * sum(p.abs().sum() for p in model.parameters())).backward()
    opt.step(); opt.zero_grad()
""",
    "oom retry right": """
for w in range(W):
    for i in range(N):
        j = w*N+i
        try:
            if j == 2: raise torch.cuda.OutOfMemoryError("oom") if False else RuntimeError("out of memory")
            mb(j).backward()
        except RuntimeError:
            for h in range(2): (mse_loss(model(X[j][h:h+1]), Y[j][h:h+1]) / N / 2).backward()
    opt.step(); opt.zero_grad()
""",
    "skip bad batches loader": """
from torch.utils.data import DataLoader, TensorDataset
X[1] = float("nan"); X[6] = float("nan")
dl = DataLoader(TensorDataset(X[:20], Y[:20]), batch_size=1)
for k, (x, y) in enumerate(dl):
    if not x.isnan().any(): (mse_loss(model(x), y) / N).backward()
    if (k + 1) % N == 0: opt.step(); opt.zero_grad()
""",
    "clip in instance prehook": """
opt.register_step_pre_hook(lambda o, a, k: (nn.utils.clip_grad_norm_(model.parameters(), 0.1), None)[1])
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
    "fisher before training": """
fisher = [torch.zeros_like(p) for p in model.parameters()]
for k in range(100, 106):
    model.zero_grad(); mse_loss(model(X[k]), Y[k]).backward()
    for f, p in zip(fisher, model.parameters()): f += p.grad.detach() ** 2
model.zero_grad()
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
    "synflow before training": """
masks = [torch.ones_like(p) for p in model.parameters()]
for r in range(3):
    model(torch.ones(1, 4)).sum().backward()
    scores = [(p * p.grad).abs() for p in model.parameters()]
    model.zero_grad()
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
""",
    "fisher after training": """
W = 2
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()

fisher = [torch.zeros_like(p) for p in model.parameters()]
for k in range(100, 106):
    model.zero_grad(); mse_loss(model(X[k]), Y[k]).backward()
    for f, p in zip(fisher, model.parameters()): f += p.grad.detach() ** 2
""",
    "norm guard skips last window": """
for w in range(3):
    for i in range(N): (mb(w*N+i) * (float("inf") if w == 2 and i == 3 else 1)).backward()
    n = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if torch.isfinite(n): opt.step()
    opt.zero_grad()
""",
    "grad norm probe at end": """
W = 2
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()

mse_loss(model(X[150]), Y[150]).backward()
print("heldout grad norm", torch.stack([p.grad.norm() for p in model.parameters()]).norm().item())
""",
    "sam per window right": """
class SAM(torch.optim.Optimizer):
    def __init__(s, ps, base, rho=0.05, **kw):
        super().__init__(ps, dict(rho=rho, **kw))
        s.base_optimizer = base(s.param_groups, **kw); s.param_groups = s.base_optimizer.param_groups
    @torch.no_grad()
    def first_step(s, zero_grad=False):
        n = torch.stack([p.grad.norm() for g in s.param_groups for p in g["params"]]).norm()
        for g in s.param_groups:
            for p in g["params"]: s.state[p]["old"] = p.data.clone(); p.add_(p.grad * 0.05 / (n + 1e-12))
        if zero_grad: s.zero_grad()
    @torch.no_grad()
    def second_step(s, zero_grad=False):
        for g in s.param_groups:
            for p in g["params"]: p.data = s.state[p]["old"]
        s.base_optimizer.step()
        if zero_grad: s.zero_grad()
opt = SAM(model.parameters(), torch.optim.SGD, lr=0.05)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.first_step(True)
    for i in range(N): mb(w*N+i).backward()
    opt.second_step(True)
""",
    "quantized frozen part": """
class Q(nn.Module):
    def __init__(s):
        super().__init__(); s.l = nn.Linear(4, 2)
        s.q = nn.Parameter(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), requires_grad=False)
    def forward(s, x): return s.l(x * s.q.dequantize())
model = Q(); opt = torch.optim.SGD(model.l.parameters(), lr=0.05)
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
_keep = model; model = model.l; del Q; _keep = [_keep]
""",
    "frozen teacher freed storage": """
big = nn.Linear(4, 4).requires_grad_(False); keep = [p.detach().clone() for p in big.parameters()]
def teacher(x):
    for p, k in zip(big.parameters(), keep): p.untyped_storage().resize_(p.numel() * 4); p.data.copy_(k)
    with torch.no_grad(): y = big(x)
    for p in big.parameters(): p.untyped_storage().resize_(0)
    return y
def mb(i): return (mse_loss(model(X[i]), Y[i]) + 0 * teacher(X[i]).sum()) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    opt.step(); opt.zero_grad()
big = [big]
""",
    "fsdp2 right": """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
from torch.nn.parallel import DistributedDataParallel as DDP

from torch.distributed.fsdp import fully_shard
mesh = torch.distributed.init_device_mesh("cpu", (1,))
fully_shard(model[0], mesh=mesh); fully_shard(model, mesh=mesh); opt = torch.optim.AdamW(model.parameters(), lr=0.01)
for w in range(W):
    for i in range(N):
        model.set_requires_gradient_sync(i == N - 1); mb(w*N+i).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1); opt.step(); opt.zero_grad()
dist.destroy_process_group()
""",
}
