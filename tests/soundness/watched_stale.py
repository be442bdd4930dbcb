"""Training scripts with stale gradients, and the obligations that do not hold of them."""

from __future__ import annotations

STALE: dict[str, tuple[str, tuple[str, ...]]] = {
    "late group": (
        """
head = nn.Linear(3, 2)
def mb(i): return mse_loss(model[2](torch.tanh(model[0](X[i]))) + head(torch.tanh(model[0](X[i]))), Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    if w == 1: opt.add_param_group({"params": list(head.parameters())})   # its gradient holds windows 0 and 1
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "late group hidden": (
        """
hw = torch.randn(3, 2, requires_grad=True)
def mb(i): return mse_loss(model(X[i]) + torch.tanh(model[0](X[i])) @ hw, Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    if w == 1: opt.add_param_group({"params": [hw]})   # its gradient holds windows 0 and 1
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "late append": (
        """
hw = torch.randn(3, 2, requires_grad=True)
def mb(i): return mse_loss(model(X[i]) + torch.tanh(model[0](X[i])) @ hw, Y[i]) / N
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    if w == 1: opt.param_groups[0]["params"].append(hw)   # its gradient holds windows 0 and 1
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "global prehook stale": (
        """
from torch.optim.optimizer import register_optimizer_step_pre_hook
prev = {}
def hook(o, a, k):
    for g in o.param_groups:
        for p in g["params"]:
            cur = p.grad.clone()
            if p in prev: p.grad.add_(prev[p])
            prev[p] = cur
register_optimizer_step_pre_hook(hook)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "step override stale": (
        """
N, W = 4, 5
def mb(i): return mse_loss(model(X[i]), Y[i]) / N
class O(torch.optim.SGD):
    prev = {}
    def step(self, closure=None):
        for p in model.parameters():
            cur = p.grad.clone()
            if p in self.prev: p.grad.add_(self.prev[p])
            self.prev[p] = cur
        return super().step(closure)
opt = O(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "create graph total": (
        """
model = nn.Linear(4, 2); opt = torch.optim.SGD(model.parameters(), lr=0.05)
total = 0
for w in range(W):
    for i in range(N):
        total = total + (Y[w*N+i] * model(X[w*N+i])).sum() / 100
        total.backward(create_graph=True)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "ctx attr fn": (
        """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x, y):
        r = x @ w - y; ctx.g = x.t() @ r; return (r ** 2).sum() / 2
    @staticmethod
    def backward(ctx, g): return g * ctx.g, None, None
class M(nn.Module):
    def __init__(s): super().__init__(); s.w = nn.Parameter(torch.randn(4, 2))
    def forward(s, x, y): return F.apply(s.w, x, y)
model = M(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
running = 0
for w in range(W):
    for i in range(N):
        running = running + model(X[w*N+i], Y[w*N+i])
        running.backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "list scaled": (
        """
saved = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = [(p.grad.numpy() * 0.9) for p in model.parameters()]
    if saved is not None:
        for p, s in zip(model.parameters(), saved): p.grad.add_(torch.from_numpy(s))
    saved = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "weight diff": (
        """
prev = [p.detach().clone() for p in model.parameters()]
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    for q, p in zip(prev, model.parameters()):
        p.grad.add_((q - p.detach()) / 0.05)
        q.copy_(p.detach())
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "momentum buffer": (
        """
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    for p in model.parameters():
        b = opt.state[p].get('momentum_buffer')
        if b is not None: p.grad.add_(b)
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "accnode prehook stale": (
        """
prev, nodes = {}, []
for k, p in enumerate(model.parameters()):
    n = p.view_as(p).grad_fn.next_functions[0][0]
    def f(g, k=k):
        old = prev.get(k); prev[k] = g[0].clone()
        return None if old is None else (g[0] + old,)
    n.register_prehook(f); nodes.append(n)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "complex stale": (
        """
class C(nn.Module):
    def __init__(s):
        super().__init__(); s.w = nn.Parameter(torch.randn(4, 2, dtype=torch.cfloat))
    def forward(s, x): return torch.view_as_real(x.to(torch.cfloat) @ s.w)[..., 0]
model = C(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    old = model.w.grad.clone()
    opt.zero_grad(set_to_none=False)
    model.w.grad.data.copy_(old)
""",
        ("GA-INV-002",),
    ),
    "loss graph from last window tensor hook": (
        """
ps = list(model.parameters()); saved = {}
def h(g):
    for p in ps:
        if p in saved and p.grad is not None: p.grad.data.add_(saved.pop(p))
def mb(i):
    out = model(X[i]); out.register_hook(h)
    return mse_loss(out, Y[i]) / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    for p in ps: saved[p] = p.grad.clone()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "accum in parameters": (
        """
acc = nn.ParameterList([nn.Parameter(torch.zeros_like(p), requires_grad=False) for p in model.parameters()])
for w in range(W):
    for i in range(N):
        opt.zero_grad()
        mb(w*N+i).backward()
        for a, p in zip(acc, model.parameters()): a.add_(p.grad)
    for a, p in zip(acc, model.parameters()): p.grad = a.clone()
    opt.step()          # acc is never zeroed
""",
        ("GA-INV-002",),
    ),
    "tolist": (
        """
saved = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = [p.grad.tolist() for p in model.parameters()]
    if saved is not None:
        for p, s in zip(model.parameters(), saved): p.grad.add_(torch.tensor(s))
    saved = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "numpy copy": (
        """
saved = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = [p.grad.numpy().copy() for p in model.parameters()]
    if saved is not None:
        for p, s in zip(model.parameters(), saved): p.grad.add_(torch.from_numpy(s))
    saved = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "torchsave": (
        """
import io
buf = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = io.BytesIO(); torch.save([p.grad for p in model.parameters()], cur); cur.seek(0)
    if buf is not None:
        for p, s in zip(model.parameters(), torch.load(buf)): p.grad.add_(s)
    buf = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "deepcopy": (
        """
import copy
saved = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = [copy.deepcopy(p.grad) for p in model.parameters()]
    if saved is not None:
        for p, s in zip(model.parameters(), saved): p.grad.add_(s)
    saved = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "module bw hook restore": (
        """
ps = list(model.parameters()); saved = {}; first = [False]
def h(m, gi, go):
    if first[0] and saved:
        for p in ps:
            if p.grad is None: p.grad = saved[p].clone()
        first[0] = False
model[2].register_full_backward_hook(h)
for w in range(W):
    first[0] = True
    for i in range(N):
        mb(w * N + i).backward()
    for p in ps: saved[p] = p.grad.clone()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "antisymmetric checksum": (
        """
model = nn.Linear(2, 1, bias=False); opt = torch.optim.SGD(model.parameters(), lr=0.01)
X = torch.tensor([[[2.0, -2.0]]] * 200)
def mb(i): return model(X[i]).sum() / N
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    old = model.weight.grad.clone()
    opt.zero_grad(set_to_none=False)
    model.weight.grad.data.copy_(old)
""",
        ("GA-INV-002",),
    ),
    "bf16 checkpoint grads": (
        """
import io, pickle
saved = None
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    cur = pickle.dumps([p.grad.bfloat16().float().tolist() for p in model.parameters()])
    if saved is not None:
        for p, s in zip(model.parameters(), pickle.loads(saved)): p.grad.add_(torch.tensor(s))
    saved = cur
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "thread full": (
        """
import threading
with torch.no_grad(): pass
mse_loss(model(X[0]), Y[0]).item()        # evaluation in the main thread
def train():
    saved = None
    for w in range(W):
        for i in range(N): mb(w*N+i).backward()
        cur = [p.grad.clone() for p in model.parameters()]
        if saved is not None:
            for p, s in zip(model.parameters(), saved): p.grad.add_(s)
        saved = cur
        opt.step(); opt.zero_grad()
t = threading.Thread(target=train); t.start(); t.join()
""",
        ("GA-INV-002",),
    ),
    "thread only": (
        """
import threading
def train():
    for w in range(W):
        for i in range(N):
            mb(w*N+i).backward()
            for p in model.parameters(): p.grad.clamp_(-0.05, 0.05)
        opt.step(); opt.zero_grad()
t = threading.Thread(target=train); t.start(); t.join()
""",
        ("GA-INV-002",),
    ),
    "frozen stale": (
        """
def freeze(f):
    for p in model[0].parameters(): p.requires_grad_(not f)
for w in range(W):
    freeze(w % 2 == 1)
    for i in range(N): mb(w*N+i).backward()
    opt.step()
    for p in model.parameters():
        if p.requires_grad and w % 2 == 1: p.grad = None     # frozen ones are forgotten
        elif w % 2 == 0 and p is not model[0].weight: p.grad = None
""",
        ("GA-INV-002",),
    ),
    "foreach zero half": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    torch._foreach_zero_([p.grad for p in model[0].parameters()])
""",
        ("GA-INV-002",),
    ),
    "zero wrong opt": (
        """
opt2 = torch.optim.SGD(model[0].parameters(), lr=0.1)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt2.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "leaky": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    for p in model.parameters(): p.grad.data.mul_(0.1)
""",
        ("GA-INV-002",),
    ),
    "shared grad buffer": (
        """
a, b = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(4, 2))
opt = torch.optim.SGD([a, b], lr=0.05)
buf = torch.zeros(4, 2)
def mb(i): return mse_loss(X[i] @ a + (X[i] ** 2) @ b, Y[i]) / N
a.grad = buf; b.grad = buf
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    buf.zero_()
""",
        ("GA-INV-002",),
    ),
    "adam stale set to none false half": (
        """
opt = torch.optim.Adam(model.parameters(), lr=0.05)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    for p in model.parameters():
        if p.ndim > 1: p.grad = None
""",
        ("GA-INV-002",),
    ),
    "grad through param dict swap": (
        """
keep = None
for w in range(W):
    if keep is not None:
        for p, g in zip(model.parameters(), keep): p.grad = g
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    keep = [p.grad for p in model.parameters()]
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
    "closure never zeroed": (
        """
for w in range(W):
    def closure():
        for i in range(N): l = mb(w*N+i); l.backward()
        return l
    opt.step(closure)
""",
        ("GA-INV-002",),
    ),
    "set to same": (
        """
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    keep = [p.grad for p in model.parameters()]
    opt.zero_grad()
    if w == 0:
        for p, g in zip(model.parameters(), keep): torch._C.TensorBase.grad.__set__(p, g)
""",
        ("GA-INV-002",),
    ),
    "custom fn persistent buffer": (
        """
buf = torch.zeros(4, 2)
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x): ctx.save_for_backward(x); return x @ w
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        buf.add_(x.t() @ g)          # never zeroed
        return buf.clone(), None
class M(nn.Module):
    def __init__(s): super().__init__(); s.w = nn.Parameter(torch.randn(4, 2))
    def forward(s, x): return F.apply(s.w, x)
model = M(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
for w in range(W):
    for i in range(N):
        mb(w * N + i).backward()
    opt.step()
    opt.zero_grad()
""",
        ("GA-INV-002",),
    ),
}
