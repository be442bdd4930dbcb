"""Scripts whose micro-batches, clips or sums over the ranks only seem to be shown, and right ones that look wrong."""

from __future__ import annotations

SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "clip norm with stale backbone": (
        """
head = model[2]; opt = torch.optim.SGD(head.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): mb(w*N+k).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step(); opt.zero_grad()
""",
        (
            "GA-INV-002",
            "GA-INV-005",
        ),
    ),
    "clip counts frozen stale discriminator": (
        """
G, D = nn.Linear(4, 3), nn.Linear(3, 1); opt = torch.optim.SGD(G.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (D(G(X[w*N+k])).mean()/N).backward()
    nn.utils.clip_grad_norm_([*G.parameters(), *D.parameters()], 0.1)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "adversarial clean and adv no loader": (
        """
for i in range(20):
    x = X[i].clone().requires_grad_(True)
    (mse_loss(model(X[i]), Y[i]) / N).backward()
    xa = X[i] + 0.01*torch.randn_like(X[i])
    (mse_loss(model(xa), Y[i]) / N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "adversarial prefetched loader": (
        """
from torch.utils.data import DataLoader, TensorDataset
data = list(DataLoader(TensorDataset(X[:10].flatten(0,1), Y[:10].flatten(0,1)), batch_size=1))
for i,(x,y) in enumerate(data):
    (mse_loss(model(x), y) / N).backward()
    (mse_loss(model(x + 0.01*torch.randn_like(x)), y) / N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "prefetching wrapper two losses": (
        """
from torch.utils.data import DataLoader, TensorDataset
import queue, threading
q = queue.Queue()
def go():
    for b in DataLoader(TensorDataset(X[:20].flatten(0,1), Y[:20].flatten(0,1)), batch_size=2): q.put(b)
    q.put(None)
t = threading.Thread(target=go); t.start(); t.join(); i = 0
while (b := q.get()) is not None:
    (mse_loss(model(b[0]), b[1])/N).backward(); (mse_loss(model(b[0]+.01), b[1])/N).backward(); i += 1
    if i % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "compiled functional penalty second pass": (
        """
c = torch.compile(model, backend="eager")
for i in range(20):
    (mse_loss(c(X[i]), Y[i])/N).backward(); (mse_loss(c(X[i]), Y[i]*0)/N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "functional two losses": (
        """
del opt, model
W1 = torch.randn(4, 2, requires_grad=True); opt = torch.optim.SGD([W1], lr=0.05)
for i in range(20):
    (mse_loss(X[i] @ W1, Y[i]) / N).backward()
    (1e-2 * W1.pow(2).sum() / N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "fresh iterator each micro two passes": (
        """
from torch.utils.data import DataLoader, TensorDataset
dl = DataLoader(TensorDataset(X.flatten(0,1), Y.flatten(0,1)), batch_size=2, shuffle=True)
for i in range(20):
    x, y = next(iter(dl))
    (mse_loss(model(x), y)/N).backward(); (model(x+.1).var()/N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "one batch loader probe first": (
        """
from torch.utils.data import DataLoader, TensorDataset
pr = DataLoader(TensorDataset(X[100].clone(), Y[100].clone()), batch_size=2)
for w in range(10):
    next(iter(pr))
    for k in range(2):
        x, y = X[2*w+k], Y[2*w+k]
        (mse_loss(model(x), y)/N).backward(); (mse_loss(model(-x), y)/N).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "wrapper module sums pairs": (
        """
class Acc(nn.Module):
    def __init__(s, m): super().__init__(); s.m = m
    def forward(s, xs, ys): return sum(mse_loss(s.m(x), y)/8 for x, y in zip(xs, ys))
acc = Acc(model)
for w in range(W):
    for k in range(4):
        i = w*8+2*k
        acc(X[i:i+2], Y[i:i+2]).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "one batch four losses": (
        """
from torch.utils.data import DataLoader, TensorDataset
for x, y in DataLoader(TensorDataset(X[:10].flatten(0,1), Y[:10].flatten(0,1)), batch_size=2):
    for t in range(4):
        (mse_loss(model(x)*(t+1), y) / N).backward()
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "three batches and replay loader": (
        """
from torch.utils.data import DataLoader, TensorDataset
tr = DataLoader(TensorDataset(X[:30].flatten(0,1), Y[:30].flatten(0,1)), batch_size=2)
re = iter(DataLoader(TensorDataset(X[100:130].flatten(0,1), Y[100:130].flatten(0,1)), batch_size=2))
for i, (x, y) in enumerate(tr):
    (mse_loss(model(x), y) / N).backward()
    if (i+1) % 3 == 0:
        a, b = next(re); (mse_loss(model(a), b) / N).backward()
        opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "two loaders in turn half window": (
        """
from torch.utils.data import DataLoader, TensorDataset
l1 = iter(DataLoader(TensorDataset(X[:30].flatten(0,1), Y[:30].flatten(0,1)), batch_size=2))
l2 = iter(DataLoader(TensorDataset(X[100:130].flatten(0,1), Y[100:130].flatten(0,1)), batch_size=2))
for i in range(20):
    x, y = next(l1); (mse_loss(model(x), y) / N).backward()
    x, y = next(l2); (model(x).var() / N).backward()
    if (i+1) % 2 == 0: opt.step(); opt.zero_grad()
""",
        ("GA-INV-003",),
    ),
    "validation read before pass early steps": (
        """
from torch.utils.data import DataLoader, TensorDataset
va = DataLoader(TensorDataset(X[100].clone(), Y[100].clone()), batch_size=2); n = 0; w = 0
for x, y in DataLoader(TensorDataset(X[:40].flatten(0,1), Y[:40].flatten(0,1)), batch_size=2):
    n += 1; size = 2 if w % 2 else 4
    if n == size:
        with torch.no_grad():
            for a, b in va: model(a)
    (mse_loss(model(x), y)/N).backward()
    if n == size: opt.step(); opt.zero_grad(); n = 0; w += 1
""",
        ("GA-INV-003",),
    ),
    "clip then restored": (
        """
for w in range(W):
    for k in range(N): mb(w*N+k).backward()
    saved = [p.grad.clone() for p in model.parameters()]
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for p, s in zip(model.parameters(), saved): p.grad.copy_(s)
    opt.step(); opt.zero_grad()
""",
        ("GA-INV-005",),
    ),
    "clip model after copy to masters": (
        """
ps = list(model.parameters()); ms = [nn.Parameter(p.detach().clone()) for p in ps]; opt = torch.optim.SGD(ms, lr=0.05)
for w in range(W):
    for k in range(N): mb(w*N+k).backward()
    for p, m in zip(ps, ms): m.grad = p.grad.clone()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step(); opt.zero_grad(); model.zero_grad()
    with torch.no_grad():
        for p, m in zip(ps, ms): p.copy_(m)
""",
        ("GA-INV-005",),
    ),
    "functional pairs bf16 four passes": (
        """
W1 = torch.randn(4, 2, requires_grad=True); opt = torch.optim.SGD([W1], lr=0.05)
for w in range(W):
    for k in range(4):
        i = w*8+2*k; V = W1.bfloat16()
        l = sum(mse_loss((X[j].bfloat16() @ V).float(), Y[j])/8 for j in (i, i+1))
        l.backward()
    opt.step(); opt.zero_grad()
""",
        (
            "GA-INV-003",
            "GA-INV-004",
        ),
    ),
}
SHOWN_RIGHT: dict[str, str] = {
    # torch.autograd.backward of a generator of losses
    "autograd backward generator": """
for w in range(W):
    for k in range(N): torch.autograd.backward(l for l in (mb(w*N+k),))
    opt.step(); opt.zero_grad()
""",
    # torch.autograd.grad(loss, model.parameters()): a generator, gradients put into .grad
    "autograd grad generator": """
for w in range(W):
    for k in range(N):
        for p, g in zip(model.parameters(), torch.autograd.grad(mb(w*N+k), model.parameters())):
            p.grad = g if p.grad is None else p.grad + g
    opt.step(); opt.zero_grad()
""",
    # torch.autograd.grad(loss, model.parameters(), create_graph=True), a generator, for a gradient penalty
    "gradient penalty grad of generator": """
for w in range(W):
    for k in range(N):
        l = mb(w*N+k); g = torch.autograd.grad(l, model.parameters(), create_graph=True)
        (l + 0.01*sum(x.pow(2).sum() for x in g)).backward()
    opt.step(); opt.zero_grad()
""",
    # 4 batches of the loader and one of a replay loader (its own iterator) a window
    "replay pass real loader of its own": """
from torch.utils.data import DataLoader, TensorDataset
re = iter(DataLoader(TensorDataset(X[100:120].flatten(0,1), Y[100:120].flatten(0,1)), batch_size=2))
for i,(x, y) in enumerate(DataLoader(TensorDataset(X[:20].flatten(0,1), Y[:20].flatten(0,1)), batch_size=2)):
    (mse_loss(model(x), y)/N).backward()
    if (i+1) % N == 0:
        a, b = next(re); (0.1*mse_loss(model(a), b)).backward(); opt.step(); opt.zero_grad()
""",
    # 4 micro-batches and one replay forward+backward of as many rows a window, no loader
    "replay pass once a window no loader": """
for w in range(W):
    for k in range(N): mb(w*N+k).backward()
    (0.1*mse_loss(model(X[100+w]), Y[100+w])).backward()
    opt.step(); opt.zero_grad()
""",
    # a loader batch in 4 chunks, and a replay pass a window
    "replay pass once chunks one batch": """
from torch.utils.data import DataLoader, TensorDataset
for w,(x, y) in enumerate(DataLoader(TensorDataset(X[:20].flatten(0,1), Y[:20].flatten(0,1)), batch_size=8)):
    for a, b in zip(x.chunk(4), y.chunk(4)):
        (mse_loss(model(a), b) / N).backward()
    (0.1*mse_loss(model(X[100+w]), Y[100+w])).backward()
    opt.step(); opt.zero_grad()
""",
    # 4 documents a window, of one or two chunks each (5 passes), one step a window; no loader
    "documents in chunks no loader": """
i = 0
for w in range(W):
    for d in range(N):
        for c in range(2 if d == 1 else 1): mb(i).backward(); i += 1
    opt.step(); opt.zero_grad()
""",
    # 4 good batches and a weight penalty's pass a window; one bad batch is read and left out in each window
    "skip bad and penalty": """
from torch.utils.data import DataLoader, TensorDataset
n = 0
for i, (x, y) in enumerate(DataLoader(TensorDataset(X[:40].flatten(0,1), Y[:40].flatten(0,1)), batch_size=2)):
    if i % 5 == 2: continue
    (mse_loss(model(x), y)/N).backward(); n += 1
    if n % N == 0:
        (1e-3*sum(p.pow(2).sum() for p in model.parameters())).backward()
        opt.step(); opt.zero_grad()
""",
    # one outer module runs the 4 micro-batches of the window and sums their losses; one backward pass and one step a
    "wrapper module sums losses": """
class Acc(nn.Module):
    def __init__(s, m): super().__init__(); s.m = m
    def forward(s, xs, ys): return sum(mse_loss(s.m(x), y)/N for x, y in zip(xs, ys))
acc = Acc(model)
for w in range(W):
    acc(X[w*N:w*N+N], Y[w*N:w*N+N]).backward(); opt.step(); opt.zero_grad()
""",
    # nn.Embedding(max_norm=1) renormalises its weight in its forward pass
    "embedding max norm": """
emb = nn.Embedding(10, 4, max_norm=1.0); opt = torch.optim.SGD([*model.parameters(), *emb.parameters()], lr=0.05)
for w in range(W):
    for k in range(N):
        i = w*N+k
        (mse_loss(model(emb(torch.tensor([i%10, (i+1)%10]))), Y[i])/N).backward()
    opt.step(); opt.zero_grad()
""",
    # prototypes are normalised in place before each forward pass (SwAV); after the first of a window that changes
    "weights normalised in forward": """
for w in range(W):
    for k in range(N):
        with torch.no_grad(): model[2].weight.div_(model[2].weight.norm(dim=1, keepdim=True))
        mb(w*N+k).backward()
    opt.step(); opt.zero_grad()
""",
    # h += pos in the forward pass, pos is a weight of as many elements as h
    "inplace add of a weight to activation": """
class M(nn.Module):
    def __init__(s):
        super().__init__(); s.a = nn.Linear(4,3); s.pos = nn.Parameter(torch.randn(2,3)); s.b = nn.Linear(3,2)
    def forward(s, x):
        h = s.a(x); h += s.pos
        return s.b(torch.tanh(h))
model = M(); opt = torch.optim.SGD(model.parameters(), lr=0.05)

for w in range(W):
    for k in range(N): mb(w*N+k).backward()
    opt.step(); opt.zero_grad()
""",
    # windows of 4 go on over epochs of 6 batches; StepLR once an epoch: its call in the middle of a window changes
    "epoch scheduler windows cross epochs": """
from torch.utils.data import DataLoader, TensorDataset
sch = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5); n = 0
dl = DataLoader(TensorDataset(X[:6].flatten(0,1), Y[:6].flatten(0,1)), batch_size=2)
for ep in range(6):
    for x, y in dl:
        (mse_loss(model(x), y) / N).backward(); n += 1
        if n % N == 0: opt.step(); opt.zero_grad()
    sch.step()
""",
    # CosineAnnealingWarmRestarts.step(epoch + i/iters) after each micro-batch as its documentation has it: absolute
    "cosine restarts absolute each micro": """
sch = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 10)
for i in range(20):
    sch.step(i/20)
    mb(i).backward()
    if (i+1) % N == 0: opt.step(); opt.zero_grad()
""",
    # bf16 model; post-accumulate hook adds to an fp32 main_grad and zeroes .grad in place; fp32 masters step
    "bf16 main grad hook inplace zero": """
model = model.bfloat16(); ps = list(model.parameters())
ms = [nn.Parameter(p.detach().float()) for p in ps]; opt = torch.optim.SGD(ms, lr=0.05)
mg = {p: torch.zeros_like(p, dtype=torch.float32) for p in ps}
def h(p): mg[p].add_(p.grad.float()); p.grad.zero_()
for p in ps: p.register_post_accumulate_grad_hook(h)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k].bfloat16()).float(), Y[w*N+k])/N).backward()
    for p, m in zip(ps, ms): m.grad = mg[p].clone(); mg[p].zero_()
    opt.step(); opt.zero_grad()
    with torch.no_grad():
        for p, m in zip(ps, ms): p.copy_(m)
""",
    # a custom function that returns None for one weight's gradient (straight-through scale)
    "custom function none grad": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s): return x * s.detach()
    @staticmethod
    def backward(ctx, g): return g, None
s = nn.Parameter(torch.ones(1)); opt = torch.optim.SGD([*model.parameters(), s], lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(F.apply(model(X[w*N+k]), s), Y[w*N+k])/N).backward()
    opt.step(); opt.zero_grad()
""",
    # sparse embedding; in one micro-batch the dense table is used
    "sparse embedding then dense": """
emb = nn.Embedding(10, 4, sparse=True); opt = torch.optim.SGD([*model.parameters(), *emb.parameters()], lr=0.05)
for w in range(W):
    for k in range(N):
        i = w*N+k
        l = mse_loss(model(emb(torch.tensor([i%10, (i+1)%10]))), Y[i])/N
        if k == 3: l = mse_loss(model(emb.weight[:2]), Y[i])/N
        l.backward()
    opt.step(); opt.zero_grad()
""",
    # IterableDataset whose __len__ raises NotImplementedError
    "iterable len not implemented": """
from torch.utils.data import DataLoader, IterableDataset
class D(IterableDataset):
    def __len__(self): raise NotImplementedError
    def __iter__(self):
        for i in range(20): yield X[i], Y[i]
for i,(x,y) in enumerate(DataLoader(D(), batch_size=None)):
    (mse_loss(model(x), y)/N).backward()
    if (i+1)%N==0: opt.step(); opt.zero_grad()
""",
    # nested (strided) tensor into a linear layer
    "nested tensor input": """
lin = nn.Linear(4,2); opt = torch.optim.SGD(lin.parameters(), lr=0.05)
for w in range(W):
    for k in range(N):
        o = lin(torch.nested.nested_tensor([X[w*N+k], X[w*N+k][:1]]))
        (torch.nested.to_padded_tensor(o, 0.0).pow(2).mean()/N).backward()
    opt.step(); opt.zero_grad()
model = lin
""",
}
SUMS_WRONG: dict[str, str] = {
    # first layer frozen when DDP was made, unfrozen afterwards: DDP never sums it
    "ddp unfrozen after wrap": """
model[0].requires_grad_(False); ddp = DDP(model); model[0].requires_grad_(True); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # weights of the head are on DDP's ignore list
    "ddp ignored params": """
DDP._set_params_and_buffers_to_ignore_for_model(model, ['2.weight','2.bias']); ddp = DDP(model); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # as head_replaced, find_unused_parameters=True so that DDP goes on
    "ddp head replaced find unused": """
ddp = DDP(model, find_unused_parameters=True); torch.manual_seed(3); model[2] = nn.Linear(3,2); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # DDP over a group of one rank each: nothing is summed
    "ddp own process group": """
gs = [dist.new_group([0]), dist.new_group([1])]; ddp = DDP(model, process_group=gs[r]); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # debugging noop_hook: nothing is summed
    "ddp noop comm hook": """
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
ddp = DDP(model); ddp.register_comm_hook(None, noop_hook); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # the summed gradient is only measured (noise scale); the local one is put back
    "manual restores local": """
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        local = p.grad.clone(); dist.all_reduce(p.grad); g2 = p.grad.norm(); p.grad.copy_(local)
    opt.step(); opt.zero_grad()
""",
    # the same, by assignment
    "manual restores local assign": """
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        local = p.grad.clone(); dist.all_reduce(p.grad); g2 = p.grad.norm(); p.grad = local
    opt.step(); opt.zero_grad()
""",
    # a local penalty's gradient is added after the sum over the ranks
    "manual local term added after sum": """
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad); p.grad += 0.1*torch.randn_like(p.grad)*(r+1)
    opt.step(); opt.zero_grad()
""",
    # all_reduce in a group of this rank alone
    "manual own group": """
gs = [dist.new_group([0]), dist.new_group([1])]
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=gs[r])
    opt.step(); opt.zero_grad()
""",
    # all_reduce with MAX: ranks agree, but it is no sum
    "manual max": """
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
    opt.step(); opt.zero_grad()
""",
    # a one-element temperature's gradient is summed in a copy that never comes back
    "manual one element weight copy full": """
t = nn.Parameter(torch.ones(1)); MODELS=[model]; opt = torch.optim.SGD([*model.parameters(), t], lr=0.05)
model.t = t
for w in range(W):
    for k in range(N): (mse_loss(nn.Sequential.forward(model[:3], X[w*N+k])*t, Y[w*N+k])/N).backward()
    for p in model.parameters():
        if p is t: g = p.grad.clone(); dist.all_reduce(g)
        else: dist.all_reduce(p.grad); p.grad /= 2
    opt.step(); opt.zero_grad()
""",
}
SUMS_RIGHT: dict[str, str] = {
    "a forward pass without a sum before the pass that sums": """
ddp = DDP(model)
for w in range(W):
    for i in range(N):
        with nullcontext() if i == N - 1 else ddp.no_sync(): loss = mse_loss(ddp(X[w*N+i]), Y[w*N+i]) / N
        with ddp.no_sync(): ddp(X[100])
        loss.backward()
    opt.step(); opt.zero_grad()
""",
    "manual right": """
for w in range(W):
    for i in range(N): mb(w*N+i).backward()
    for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= 2
    opt.step(); opt.zero_grad()
""",
    # DDP, no_sync
    "ddp right": """
ddp = DDP(model); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train()
""",
    # DDP always in no_sync; gradients averaged by all_gather by hand
    "ddp no sync manual all gather": """
ddp = DDP(model); MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    with ddp.no_sync():
        for k in range(N): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        o = [torch.zeros_like(p.grad) for _ in range(2)]; dist.all_gather(o, p.grad); p.grad.copy_((o[0]+o[1])/2)
    opt.step(); opt.zero_grad()
""",
    # DDP always in no_sync; gradients by reduce to rank 0 and broadcast
    "ddp no sync manual reduce broadcast": """
ddp = DDP(model); MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    with ddp.no_sync():
        for k in range(N): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0); p.grad /= 2; dist.broadcast(p.grad, 0)
    opt.step(); opt.zero_grad()
""",
    # DDP of two separate branches; the last micro-batch's two losses in two backward passes: DDP sums when the
    "ddp two branches two backwards": """
class M(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4,2); s.b = nn.Linear(4,2)
    def forward(s, x): return s.a(x), s.b(x)
model = M(); MODELS=[model]; ddp = DDP(model); opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N):
        with (nullcontext() if k == N-1 else ddp.no_sync()):
            a, b = ddp(X[w*N+k]); (mse_loss(a, Y[w*N+k])/N).backward(); (mse_loss(b, Y[w*N+k])/N).backward()
    opt.step(); opt.zero_grad()
""",
    # async all_reduces, all waited for
    "manual async right": """
MODELS=[model]; opt = torch.optim.SGD(model.parameters(), lr=0.05)
for w in range(W):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    hs = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for h in hs: h.wait()
    opt.step(); opt.zero_grad()
""",
    # two windows, the process group is destroyed, then the inner model is tuned alone
    "ddp destroyed then trains": """
ddp = DDP(model); MODELS=[model]
opt = torch.optim.SGD([p for m in MODELS for p in m.parameters()], lr=0.05)
def train(W=W):
    for w in range(W):
        for k in range(N):
            with (nullcontext() if k == N-1 else ddp.no_sync()): (mse_loss(ddp(X[w*N+k]), Y[w*N+k])/N).backward()
        opt.step(); opt.zero_grad()
train(2); dist.destroy_process_group()
for w in range(2):
    for k in range(N): (mse_loss(model(X[w*N+k]), Y[w*N+k])/N).backward()
    opt.step(); opt.zero_grad()
""",
}
