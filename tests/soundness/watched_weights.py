"""Scripts whose samples have the wrong weights in a gradient, and scripts in which they have the right ones.

Each is the head of `test_soundness_watch` and one of these bodies. WEIGHTS_WRONG: GA-EQ-001 may not hold, and is
refuted where the second part says so. WEIGHTS_RIGHT: it holds where the second part says so, and is never refuted.
"""

from __future__ import annotations

TAIL = """
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
"""
TOKENS = """
model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
A, B = torch.randint(11, (200, 2, 5)), torch.randint(11, (200, 2, 5))
for i in range(200): B[i, :, : i % 4] = -100
ce = nn.functional.cross_entropy
"""
NORM = """
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
"""
LOADER = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(X.flatten(0, 1)[:24], Y.flatten(0, 1)[:24])
"""
FETCHED = """
from torch.utils.data import DataLoader, TensorDataset
model(A[0])
batches = iter(DataLoader(TensorDataset(A.flatten(0, 1), B.flatten(0, 1)), batch_size=2))
for w in range(W):
    window = [next(batches) for _ in range(N)]
"""
OWN_LOSS = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, y): ctx.save_for_backward(o, y); return (o - y).square().mean()
    @staticmethod
    def backward(ctx, g): o, y = ctx.saved_tensors; return {}, None
"""
WORKERS = (
    LOADER
    + """
for epoch in range(2):
    for k, (x, y) in enumerate(DataLoader(data, batch_size=2, num_workers=1)):
        (mse_loss(model(x), y) / {}).backward()
        if (k + 1) % N == 0: opt.step(); opt.zero_grad()
"""
)
EACH = "for w in range(W):\n    for i in range(N):\n        {}\n" + TAIL

WEIGHTS_WRONG: dict[str, tuple[str, bool]] = {
    "no share": (EACH.format("mse_loss(model(X[w*N+i]), Y[w*N+i]).backward()"), True),
    "N times a loss that is divided": (EACH.format("(N * mb(w * N + i)).backward()"), False),
    "no share, and a factor that is 1/N": (
        EACH.format("(0.25 * mse_loss(model(X[w*N+i]), Y[w*N+i])).backward()"),
        False,
    ),
    "no share of half a squared error, in windows of two": (
        "N = 2\n" + EACH.format("(0.5 * (model(X[w*N+i]) - Y[w*N+i]).square().mean()).backward()"),
        False,
    ),
    "no share, and a factor of 1/N below the mean": (
        EACH.format("(0.25 * (model(X[w*N+i]) - Y[w*N+i]).square()).mean().backward()"),
        False,
    ),
    "no share of a sum by its elements, and a factor that is 1/N": (
        EACH.format("(0.25 * ((model(X[w*N+i]) - Y[w*N+i]).square().sum() / 4)).backward()"),
        False,
    ),
    "no share, a factor that is 1/N, and a loss scale": (
        "S = 1024\n"
        "for w in range(W):\n    for i in range(N): (S * (0.25 * mse_loss(model(X[w*N+i]), Y[w*N+i]))).backward()\n"
        "    for p in model.parameters(): p.grad.div_(S)\n" + TAIL,
        False,
    ),
    "another loss without its share": (
        EACH.format("o = model(X[w*N+i]); (mse_loss(o, Y[w*N+i]) / N + l1_loss(o, Y[w*N+i])).backward()"),
        True,
    ),
    "another loss without its share, and with a factor": (
        EACH.format("o = model(X[w*N+i]); (mse_loss(o, Y[w*N+i]) / N + 0.5 * l1_loss(o, Y[w*N+i])).backward()"),
        False,
    ),
    "another loss without its share, and a factor that is 1/N": (
        EACH.format("o = model(X[w*N+i]); (mse_loss(o, Y[w*N+i]) / N + 0.25 * l1_loss(o, Y[w*N+i])).backward()"),
        False,
    ),
    "divided twice, and half a loss": (EACH.format("(0.5 * mb(w * N + i) / N).backward()"), False),
    "a product and a quotient": (EACH.format("(mse_loss(model(X[w*N+i]), Y[w*N+i]) * (1 / N) / N).backward()"), False),
    "a product by N - 1": (EACH.format("(mb(w * N + i) * N * (1 / (N - 1))).backward()"), False),
    "divided twice": (EACH.format("(mb(w * N + i) / N).backward()"), True),
    "only the last is divided": (EACH.format("(mb(w * N + i) * (1 if i == N - 1 else N)).backward()"), True),
    "a tail by N": (
        "for w in range(W):\n    for i in range(N if w != 1 else 2): mb(w * N + i).backward()\n" + TAIL,
        True,
    ),
    "N times a loss, less what is detached": (
        EACH.format("l = mb(w * N + i); (N * l - (N * l - l).detach()).backward()"),
        False,
    ),
    "batches of workers, no share": (WORKERS.format("1"), True),
    "the tail of an epoch by N, validated between": (
        LOADER + "dl = DataLoader(data, batch_size=4)\nfor epoch in range(3):\n    for k, (x, y) in enumerate(dl):\n"
        "        (mse_loss(model(x), y) / N).backward()\n        if (k + 1) % N == 0 or k + 1 == len(dl):"
        " opt.step(); opt.zero_grad()\n    with torch.no_grad():\n        for x, y in dl: model(x)\n",
        True,
    ),
    "divided by N - 1": (EACH.format("(mb(w * N + i) * N / (N - 1)).backward()"), False),
    "one has twice its weight": (EACH.format("(mb(w * N + i) * (2 if i == 0 else 1)).backward()"), False),
    "the mean of token means": (
        TOKENS + EACH.format("(ce(model(A[w*N+i]).flatten(0, 1), B[w*N+i].flatten()) / N).backward()"),
        True,
    ),
    "the mean of masked means": (
        TOKENS
        + EACH.format(
            "m = (B[w*N+i] != -100).flatten(); l = ce(model(A[w*N+i]).flatten(0, 1), B[w*N+i].flatten(), "
            "reduction='none'); ((l * m).sum() / m.sum() / N).backward()"
        ),
        True,
    ),
    "the mean of means by numbers": (
        TOKENS
        + EACH.format(
            "l = ce(model(A[w*N+i]).flatten(0, 1), B[w*N+i].flatten(), reduction='sum'); "
            "(l / int((B[w*N+i] != -100).sum()) / N).backward()"
        ),
        True,
    ),
    "a mask that is normalised before": (
        TOKENS
        + EACH.format(
            "m = (B[w*N+i] != -100).float().flatten(); m = m / m.sum() / N; l = ce(model(A[w*N+i]).flatten(0, 1), "
            "B[w*N+i].flatten(), reduction='none'); (l * m).sum().backward()"
        ),
        False,
    ),
    "weights in a tensor": (EACH.format("(mb(w * N + i) * torch.tensor([1.0 + i])).sum().backward()"), False),
    "weights of each row in a tensor": (
        EACH.format(
            "l = (model(X[w*N+i]) - Y[w*N+i]).pow(2).mean(1); "
            "(l * torch.full((2,), (1.0 + i) / 2 / N)).sum().backward()"
        ),
        False,
    ),
    "unequal batches": (
        LOADER + "data = TensorDataset(*data[:14])\nfor _ in range(3):\n"
        "    for x, y in DataLoader(data, batch_size=4): (mse_loss(model(x), y) / N).backward()\n"
        "    opt.step(); opt.zero_grad()\n",
        True,
    ),
    "a root of the loss": (EACH.format("mb(w * N + i).sqrt().backward()"), False),
    "a root of the loss of one": (
        EACH.format("mse_loss(model(X[w*N+i][:1]), Y[w*N+i][:1]).sqrt().div(N).backward()"),
        False,
    ),
    "batch norm": (NORM + EACH.format("mb(w * N + i).backward()"), False),
    "contrastive": (
        EACH.format("z = model(X[w*N+i]); (nn.functional.cross_entropy(z @ z.T, torch.arange(2)) / N).backward()"),
        False,
    ),
    "clipped each": (EACH.format("mb(w * N + i).backward(); nn.utils.clip_grad_norm_(model.parameters(), 0.1)"), False),
    "the sign of each": (
        "for w in range(W):\n    acc = [0] * 4\n    for i in range(N):\n        mb(w * N + i).backward()\n"
        "        acc = [a + p.grad.sign() / N for a, p in zip(acc, model.parameters())]; opt.zero_grad()\n"
        "    for p, a in zip(model.parameters(), acc): p.grad = a\n    opt.step(); opt.zero_grad()\n",
        False,
    ),
    "two losses in one pass": (
        "for w in range(W):\n    for i in range(2): (mb(w * N + 2 * i) + 2 * mb(w * N + 2 * i + 1)).backward()\n"
        + TAIL,
        False,
    ),
    "one is left out": (EACH.format("mb(w * N + i).backward() if i else mb(w * N + i)"), False),
    "one counts twice": (EACH.format("mb(w * N + i).backward(); i or mb(w * N + i).backward()"), False),
    "a gradient that is taken away": (EACH.format("mb(w * N + i).backward(); model[0].weight.grad = None"), False),
    "a parameter that is doubled": (
        "for w in range(W):\n    for i in range(N): mb(w * N + i).backward()\n    model[0].weight.grad.mul_(2)\n"
        + TAIL,
        False,
    ),
    "the gradient of another parameter": (
        "for w in range(W):\n    for i in range(N): mb(w * N + i).backward()\n"
        "    model[0].bias.grad = model[0].weight.grad[:, 0].clone()\n" + TAIL,
        False,
    ),
    "rows of a gradient zeroed": (
        "for w in range(W):\n    for i in range(N): mb(w * N + i).backward()\n    model[0].weight.grad[0].zero_()\n"
        + TAIL,
        False,
    ),
    "weights that change in the window": (
        EACH.format("mb(w * N + i).backward(); model[0].weight.data = model[0].weight.data * 0.9"),
        False,
    ),
    "frozen halfway": (EACH.format("model[0].weight.requires_grad_(i < 2); mb(w * N + i).backward()"), False),
    "a hook that scales": (
        EACH.format(
            "o = model(X[w*N+i]); o.register_hook(lambda g, i=i: g * (1 + i)); (mse_loss(o, Y[w*N+i]) / N).backward()"
        ),
        False,
    ),
    "seeds of its own": (EACH.format("mb(w * N + i).backward(torch.tensor(1.0 + i))"), False),
    "gradients zeroed halfway": (EACH.format("mb(w * N + i).backward(); i == 1 and opt.zero_grad()"), False),
    "a penalty without its share": (
        EACH.format("(mb(w * N + i) + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()"),
        False,
    ),
    "weights from a table": (
        LOADER
        + "table = torch.tensor([2.5, 0.5, 0.5, 0.5])\nfor k, (x, y) in enumerate(DataLoader(data, batch_size=2)):\n"
        "    share = (table / table.sum())[k % N]\n    (mse_loss(model(x), y) * share).backward()\n"
        "    if k % N == N - 1: opt.step(); opt.zero_grad()\n",
        False,
    ),
    "weights from a buffer": (
        LOADER + "model.register_buffer('table', torch.tensor([2.5, 0.5, 0.5, 0.5]))\n"
        "for k, (x, y) in enumerate(DataLoader(data, batch_size=2)):\n"
        "    (mse_loss(model[:3](x), y) * model.table[k % N] / N).backward()\n"
        "    if k % N == N - 1: opt.step(); opt.zero_grad()\n",
        False,
    ),
    "a sum of which one has no weight": (
        EACH.format("(mse_loss(model(X[w*N+i]), Y[w*N+i], reduction='sum') * float(i != 1)).backward()"),
        False,
    ),
    "the next batch is written into an array too early": (
        "import numpy as np\nbuffers, D = [np.zeros((2, 4), np.float32) for _ in range(200)], X.numpy().copy()\n"
        + EACH.format(
            "at = w * N + i; buffers[at][:] = D[at]; l = mse_loss(model(torch.from_numpy(buffers[at])), Y[at]) / N; "
            "buffers[at][:] = D[at + 1]; l.backward()"
        ),
        False,
    ),
    "a hook takes the share away": (
        EACH.format("l = mb(w * N + i); l.register_hook(lambda g: g * N); l.backward()"),
        False,
    ),
    "a loss of its own ignores its share": (
        OWN_LOSS.format("2 * (o - y) / o.numel()")
        + EACH.format("(Own.apply(model(X[w*N+i]), Y[w*N+i]) / N).backward()"),
        False,
    ),
    "sums by the count of the window before": (
        TOKENS + FETCHED + "    count, before = sum((b != -100).sum() for a, b in window), count if w else None\n"
        "    for a, b in window:\n        l = ce(model(a).flatten(0, 1), b.flatten(), reduction='sum')\n"
        "        (l / (count if before is None else before)).backward()\n" + TAIL,
        False,
    ),
    "a penalty of the outputs by the batch": (
        EACH.format("o = model(X[w*N+i]); (mse_loss(o, Y[w*N+i]) / N + o.mean().square()).backward()"),
        False,
    ),
}

WEIGHTS_RIGHT: dict[str, tuple[str, bool]] = {
    # by the one rule the full batch has these factors too: w(N, r) = w(1, N * r)
    "several losses in a pass, divided by the passes": (
        "for w in range(W):\n    for i in range(2):\n"
        "        (sum(mse_loss(model(X[8*w+4*i+j]), Y[8*w+4*i+j]) for j in range(4)) / 2).backward()\n" + TAIL,
        True,
    ),
    "sums by the count of the whole window, twice": (
        TOKENS + FETCHED + "    count = sum((b != -100).sum() for a, b in window)\n"
        "    for a, b in window: (ce(model(a).flatten(0, 1), b.view(-1), reduction='sum') / count / count).backward()\n"
        + TAIL,
        True,
    ),
    "sums by a root of the count": (
        TOKENS + FETCHED + "    count = sum((b != -100).sum() for a, b in window).sqrt()\n"
        "    for a, b in window: (ce(model(a).flatten(0, 1), b.flatten(), reduction='sum') / count).backward()\n"
        + TAIL,
        True,
    ),
    "negated": (
        "for w in range(W):\n    for i in range(N): mb(w * N + i).backward()\n"
        "    for p in model.parameters(): p.grad.neg_()\n" + TAIL,
        True,
    ),
    "a sum in one window, and means in the others": (
        EACH.format(
            "nn.functional.mse_loss(model(X[w*N+i]), Y[w*N+i], reduction='sum').backward() if w == 0 else "
            "mb(w * N + i).backward()"
        ),
        True,
    ),
    "a factor of each window, and another way of one sample": (
        EACH.format(
            "h = model[1](model[0](X[w*N+i])); h = h.tanh() if (w, i) == (1, 2) else h; "
            "((4, 0.7)[w % 2] * mse_loss(model[2](h), Y[w*N+i]) / N).backward()"
        ).replace("    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
        False,
    ),
    "losses beside a running sum": (
        "seen = torch.zeros(())\n" + EACH.format("l = mb(w * N + i); l.backward(); seen = seen + l.detach()"),
        True,
    ),
    "batches of workers": (WORKERS.format("N"), True),
    "plain": (EACH.format("mb(w * N + i).backward()"), True),
    "times a share": (EACH.format("(N * mb(w * N + i) * (1 / N)).backward()"), True),
    "times a share, and no quotient": (
        EACH.format("(mse_loss(model(X[w*N+i]), Y[w*N+i]) * (1 / N)).backward()"),
        False,
    ),
    "a factor that is 1/N, and a share": (
        EACH.format("(0.25 * mse_loss(model(X[w*N+i]), Y[w*N+i]) / N).backward()"),
        False,
    ),
    "a factor that is N, and a share": (
        EACH.format("(4.0 * mse_loss(model(X[w*N+i]), Y[w*N+i]) / N).backward()"),
        False,
    ),
    "half a loss, and a share": (EACH.format("(0.5 * mse_loss(model(X[w*N+i]), Y[w*N+i]) / N).backward()"), True),
    "half a loss that has its share": (EACH.format("(0.5 * mb(w * N + i)).backward()"), True),
    "half a loss as a quotient, and a share": (
        EACH.format("(mse_loss(model(X[w*N+i]), Y[w*N+i]) / 2 / N).backward()"),
        True,
    ),
    "half a loss, divided after": (
        "for w in range(W):\n    for i in range(N): (0.5 * mse_loss(model(X[w*N+i]), Y[w*N+i])).backward()\n"
        "    for p in model.parameters(): p.grad.div_(N)\n" + TAIL,
        True,
    ),
    "half a loss, a share and a loss scale": (
        "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\nfor w in range(W):\n    for i in range(N): "
        "scaler.scale(0.5 * mb(w * N + i)).backward()\n    scaler.step(opt); scaler.update(); opt.zero_grad()\n",
        True,
    ),
    "two losses and one share": (
        EACH.format("o = model(X[w*N+i]); ((mse_loss(o, Y[w*N+i]) + 0.25 * l1_loss(o, Y[w*N+i])) / N).backward()"),
        True,
    ),
    "two losses, each with its share": (
        EACH.format("o = model(X[w*N+i]); (mb(w * N + i) + 0.1 * (l1_loss(o, Y[w*N+i]) / N)).backward()"),
        True,
    ),
    "two losses in two passes": (
        EACH.format(
            "o = model(X[w*N+i]); (mse_loss(o, Y[w*N+i]) / N).backward(retain_graph=True); "
            "(0.1 * l1_loss(o, Y[w*N+i]) / N).backward()"
        ),
        True,
    ),
    "a mean and a sum with one share": (
        EACH.format("o = model(X[w*N+i]); ((mse_loss(o, Y[w*N+i]) + 0.1 * o.square().sum() / 2) / N).backward()"),
        True,
    ),
    "a loss times its rows by the rows of the window": (
        EACH.format("(mse_loss(model(X[w*N+i]), Y[w*N+i]) * 2 / 8).backward()"),
        False,
    ),
    "a loss times its rows, divided after by the rows of the window": (
        "for w in range(W):\n    for i in range(N): (mse_loss(model(X[w*N+i]), Y[w*N+i]) * 2).backward()\n"
        "    for p in model.parameters(): p.grad.div_(8)\n" + TAIL,
        False,
    ),
    "several losses in a pass": (
        "for w in range(W):\n    for i in range(2):\n"
        "        (sum(mse_loss(model(X[4*w+2*i+j]), Y[4*w+2*i+j]) for j in range(2)) / 4).backward()\n" + TAIL,
        False,
    ),
    "a product that follows the window": (
        "for w in range(W):\n    n = 3 if w == 1 else N\n"
        "    for i in range(n): (mse_loss(model(X[w*N+i]), Y[w*N+i]) * (1 / n)).backward()\n" + TAIL,
        True,
    ),
    "shares of thirds": (
        "for w in range(W):\n    for i in range(3): (N * mb(w * N + i) * (1 / 3)).backward()\n" + TAIL,
        False,
    ),
    "divided after": (
        "for w in range(W):\n    for i in range(N): (N * mb(w * N + i)).backward()\n"
        "    for p in model.parameters(): p.grad.div_(N)\n" + TAIL,
        True,
    ),
    "sums": (EACH.format("nn.functional.mse_loss(model(X[w*N+i]), Y[w*N+i], reduction='sum').backward()"), True),
    "sums by the elements": (
        EACH.format("((model(X[w*N+i]) - Y[w*N+i]).square().sum() / (N * Y[0].numel())).backward()"),
        True,
    ),
    "a tail of its own": (
        "for w in range(W):\n    n = N if w != 1 else 2\n    for i in range(n): (mb(w * N + i) * N / n).backward()\n"
        + TAIL,
        True,
    ),
    "tokens of the window": (
        TOKENS + "for w in range(W):\n    c = sum((B[w*N+i] != -100).sum() for i in range(N))\n    for i in range(N):\n"
        "        l = ce(model(A[w*N+i]).flatten(0, 1), B[w*N+i].flatten(), reduction='sum')\n"
        "        (l / c).backward()\n" + TAIL,
        False,
    ),
    "tokens of the window, as a number": (
        TOKENS + "for w in range(W):\n    c = sum(int((B[w*N+i] != -100).sum()) for i in range(N))\n"
        "    for i in range(N):\n"
        "        l = ce(model(A[w*N+i]).flatten(0, 1), B[w*N+i].flatten(), reduction='sum')\n"
        "        (l / c).backward()\n" + TAIL,
        False,
    ),
    "tokens of fetched batches": (
        TOKENS + FETCHED + "    c = sum((y != -100).sum() for _, y in window)\n    for x, y in window:\n"
        "        l = ce(model(x).flatten(0, 1), y.flatten(), reduction='sum')\n        (l / c).backward()\n" + TAIL,
        True,
    ),
    "tokens of fetched batches, as a number": (
        TOKENS + FETCHED + "    c = sum(int((y != -100).sum()) for _, y in window)\n    for x, y in window:\n"
        "        l = ce(model(x).flatten(0, 1), y.flatten(), reduction='sum')\n        (l / c).backward()\n" + TAIL,
        True,
    ),
    "equal batches of a loader": (
        LOADER
        + "for k, (x, y) in enumerate(DataLoader(data, batch_size=2)):\n    (mse_loss(model(x), y) / N).backward()"
        "\n    if k % N == N - 1:\n        opt.step(); opt.zero_grad()\n",
        True,
    ),
    "a loss scale": (
        "scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\nfor w in range(W):\n    for i in range(N): "
        "scaler.scale(mb(w * N + i)).backward()\n    scaler.unscale_(opt)\n    nn.utils.clip_grad_norm_("
        "model.parameters(), 1.0)\n    scaler.step(opt); scaler.update(); opt.zero_grad()\n",
        True,
    ),
    "the same batch again and again": (EACH.format("mb(0).backward()"), True),
    "one batch twice in a window": (EACH.format("mb(min(i, 2)).backward()"), True),
    "inputs that are scaled before": (
        EACH.format("x = X[w*N+i] * 1.0; x.mul_(2); (mse_loss(model(x), Y[w*N+i]) / N).backward()"),
        True,
    ),
    "groups of parameters": (
        "groups = [{'params': model[0].parameters()}, {'params': model[2].parameters(), 'lr': 0.1}]\n"
        "opt = torch.optim.SGD(groups, lr=0.05)\n" + EACH.format("mb(w * N + i).backward()"),
        True,
    ),
    "checkpointing": (
        "from torch.utils.checkpoint import checkpoint\n"
        + EACH.format("(mse_loss(checkpoint(model, X[w*N+i], use_reentrant=False), Y[w*N+i]) / N).backward()"),
        True,
    ),
    "a mean of a mean": (EACH.format("mb(w * N + i).mean().backward()"), True),
    "losses that are summed in bf16": (
        "total = torch.zeros((), dtype=torch.bfloat16)\n"
        + EACH.format("l = mb(w * N + i); l.backward(); total += l.detach().bfloat16()"),
        True,
    ),
    "mixed by a number": (
        EACH.format(
            "l = 0.3 + 0.1 * i; o = model(X[w*N+i]); "
            "((l * mse_loss(o, Y[w*N+i]) + (1 - l) * mse_loss(o, Y[w*N+i].flip(0))) / N).backward()"
        ),
        False,
    ),
    "dropout": (
        "model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))\n"
        "opt = torch.optim.AdamW(model.parameters())\n" + EACH.format("mb(w * N + i).backward()"),
        True,
    ),
    "one sample a micro-batch": (
        EACH.format("(mse_loss(model(X[w*N+i][:1]), Y[w*N+i][:1]) / N).backward()"),
        True,
    ),
    "gradients that are returned": (
        "for w in range(W):\n    acc = [0] * 4\n    for i in range(N):\n"
        "        g = torch.autograd.grad(mb(w * N + i), list(model.parameters()))\n"
        "        acc = [a + b for a, b in zip(acc, g)]\n"
        "    for p, a in zip(model.parameters(), acc): p.grad = a\n    opt.step()\n",
        False,
    ),
    "clipped by value, once": (
        "for w in range(W):\n    for i in range(N): mb(w * N + i).backward()\n"
        "    nn.utils.clip_grad_value_(model.parameters(), 0.1)\n    opt.step(); opt.zero_grad()\n",
        False,
    ),
    "a loader's batch that is cut": (
        LOADER + "for x, y in DataLoader(data, batch_size=8):\n"
        "    for a, b in zip(x.chunk(4), y.chunk(4)): (mse_loss(model(a), b) / N).backward()\n" + TAIL,
        True,
    ),
    "half a squared error, in windows of two": (
        "N = 2\n" + EACH.format("(0.5 * mse_loss(model(X[w*N+i]), Y[w*N+i]) / N).backward()"),
        False,
    ),
    "batches from arrays that are filled again": (
        "import numpy as np\nbuffers, D = [np.zeros((2, 4), np.float32) for _ in range(N)], X.numpy().copy()\n"
        + EACH.format(
            "buffers[i][:] = D[w * N + i]; (mse_loss(model(torch.from_numpy(buffers[i])), Y[w*N+i]) / N).backward()"
        ),
        True,
    ),
    "a hook gives the share": (
        EACH.format("l = mb(w * N + i) * N; l.register_hook(lambda g: g / N); l.backward()"),
        False,
    ),
    "a function gives the share": (
        OWN_LOSS.format("g * 2 * (o - y) / o.numel() / N")
        + EACH.format("Own.apply(model(X[w*N+i]), Y[w*N+i]).backward()"),
        False,
    ),
    "a loss of its own": (
        OWN_LOSS.format("g * 2 * (o - y) / o.numel()")
        + EACH.format("(Own.apply(model(X[w*N+i]), Y[w*N+i]) / N).backward()"),
        True,
    ),
    "one scale from a buffer": (
        LOADER + "model.register_buffer('scale', torch.tensor(1 / N))\n"
        "for k, (x, y) in enumerate(DataLoader(data, batch_size=2)):\n"
        "    (mse_loss(model[:3](x), y) * model.scale).backward()\n"
        "    if k % N == N - 1: opt.step(); opt.zero_grad()\n",
        False,
    ),
    "sums by the count of the whole window": (
        TOKENS + FETCHED + "    count = sum((b[:, 1:] != -100).sum() for a, b in window)\n"
        "    for a, b in window: (ce(model(a).flatten(0, 1), b.flatten(), reduction='sum') / count).backward()\n"
        + TAIL,
        True,
    ),
}
