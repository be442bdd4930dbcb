"""Mutants of the loops that a framework drives, and of the loop over several ranks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.loops.bugs import CLIP, DATA, EQ, STEP, SYNC, ZERO, Blame, Edit, LoopMutant, mutant

_A = "accelerate_loop"
_LOSS = "loss = total / window_tokens"
_BACKWARD = "accelerator.backward(loss * accelerator.gradient_accumulation_steps)"
_OWN = "loss = total / (y != -100).sum()"
_PREPARE = "model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)"
_LOG = "window_loss += loss.detach()"
_ACC = ((EQ, "accelerator.backward("),)


def _after_backward(name: str, line: str, head: str = "") -> LoopMutant:
    lines = f"{_BACKWARD}\n@{head}{line}"
    return mutant(name, _A, (_BACKWARD, lines), line, also=((EQ, line),) if name.startswith("zero") else ())


_EACH = "for p in model.parameters():\n@    "
_NO_GRAD = "with torch.no_grad():\n@    for p in model.parameters():\n@        "

_ACCELERATE = [
    mutant("missing_scale", _A, (_LOSS, _OWN), _OWN, also=_ACC),
    mutant("divided_twice", _A, (_BACKWARD, "accelerator.backward(loss)"), "accelerator.backward("),
    mutant("mean_of_means", _A, ((_LOSS, _OWN), (_BACKWARD, "accelerator.backward(loss)")), _OWN, also=_ACC),
    mutant(
        "tail_by_configured_n",
        _A,
        (_BACKWARD, "accelerator.backward(loss * len(counts[first : first + run.accum_steps]))"),
        "accelerator.backward(",
        tail=True,
    ),
    mutant(
        "samples_for_tokens",
        _A,
        ("int((y != -100).sum()) for", "len(y) for"),
        _LOSS,
        also=(*_ACC, (EQ, "counts = [len(y)")),
        expected="unknown",
        tail=True,
    ),
    mutant(
        "padding_counted",
        _A,
        ("int((y != -100).sum()) for", "y.numel() for"),
        _LOSS,
        also=(*_ACC, (EQ, "counts = [y.numel()")),
        expected="unknown",
        tail=True,
    ),
    mutant(
        "zero_in_block",
        _A,
        (("            optimizer.zero_grad()\n", ""), ("total = nn", "optimizer.zero_grad()\n@total = nn")),
        "optimizer.zero_grad()",
        also=((EQ, "accelerator.backward("), (EQ, "optimizer.step()")),
    ),
    mutant(
        "zero_skipped",
        _A,
        ("optimizer.zero_grad()", "pass"),
        "accelerator.backward(",
        also=((ZERO, "optimizer.step()"), *_ACC),
    ),
    mutant("zero_per_micro_batch", _A, (_BACKWARD, f"model.zero_grad()\n@{_BACKWARD}"), "model.zero_grad()", also=_ACC),
    mutant(
        "zero_after_backward",
        _A,
        ("optimizer.step()", "model.zero_grad(set_to_none=False)\n@optimizer.step()"),
        "model.zero_grad(",
        also=((EQ, "model.zero_grad("), (ZERO, "optimizer.step()"), (EQ, "optimizer.step()")),
    ),
    mutant(
        "schedule_per_micro_batch",
        _A,
        (_PREPARE, "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"),
        "scheduler.step()",
    ),
    mutant(
        "clip_per_micro_batch",
        _A,
        (
            "            if accelerator.sync_gradients:\n                accelerator.clip",
            "            if True:\n                accelerator.clip",
        ),
        "accelerator.clip_grad_norm_(",
    ),
    mutant(
        "step_per_micro_batch", _A, ("optimizer.step()", "optimizer.optimizer.step()"), "optimizer.optimizer.step()"
    ),
    mutant(
        "tail_dropped",
        _A,
        (
            ("import Accelerator", "import Accelerator\nfrom accelerate.utils import GradientAccumulationPlugin"),
            (
                "gradient_accumulation_steps=run.accum_steps",
                "gradient_accumulation_plugin="
                "GradientAccumulationPlugin(num_steps=run.accum_steps, sync_with_dataloader=False)",
            ),
        ),
        "accelerator.backward(",
        also=((STEP, "optimizer.step()"), (STEP, "GradientAccumulationPlugin(")),
        tail=True,
    ),
    mutant(
        "inner_loader_ends",
        _A,
        (
            ("losses: list", "inner = accelerator.prepare(loader_of(run))\n@losses: list"),
            ("window_tokens = sum", "next(iter(inner))\n@window_tokens = sum"),
        ),
        "optimizer.step()",
        also=((STEP, "next(iter(inner))"), (STEP, "accelerator.backward("), *_ACC),
        tail=True,
    ),
    mutant(
        "scaled_in_hook",
        _A,
        (_LOSS, f"{_LOSS}\n@loss.register_hook(lambda grad: grad / run.accum_steps)"),
        "loss.register_hook(",
        also=_ACC,
    ),
    mutant("loss_sum", _A, (_LOG, f"{_LOG} * run.accum_steps"), _LOG),
    mutant(
        "last_loss_only",
        _A,
        (_LOG, "window_loss = loss.detach()"),
        "window_loss = loss",
        also=(("GA-INV-001", _LOSS), ("GA-INV-001", "losses.append(")),
    ),
    mutant("loss_divided_twice", _A, (_LOG, f"{_LOG} / accelerator.gradient_accumulation_steps"), _LOG),
    mutant(
        "loss_not_reset", _A, ("            window_loss.zero_()\n", ""), _LOG, also=(("GA-INV-001", "losses.append("),)
    ),
    _after_backward("rescaled_buffer", "p.grad.div_(2)", _EACH),
    _after_backward("fp16_sum", "p.grad.copy_(p.grad.half())", _EACH),
    _after_backward("bf16_sum", "p.grad.copy_(p.grad.bfloat16())", _EACH),
    _after_backward("decay_per_micro_batch", "p.mul_(0.99)", _NO_GRAD),
    _after_backward("clip_value_per_micro_batch", "nn.utils.clip_grad_value_(model.parameters(), 0.01)"),
    mutant(
        "scaled_through_numpy",
        _A,
        (_BACKWARD, f"{_BACKWARD}\n@{_EACH}p.grad.numpy()[...] *= 0.5"),
        "p.grad.numpy()",
        expected="opaque",
    ),
]


def _trainers() -> Iterator[LoopMutant]:
    says = '"""Reads the documents in their order."""'
    step = "@\n@def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Tensor:\n@    "
    call = "loss = super().training_step(model, *args, **kwargs)\n@    "
    each, no_grad = (
        "for p in model.parameters():\n@        ",
        "with torch.no_grad():\n@        for p in model.parameters():\n@            ",
    )
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)"
    rows = (
        ("zero_per_micro_batch", "", "model.zero_grad()"),
        ("step_per_micro_batch", "", "self.optimizer.step()"),
        ("schedule_per_micro_batch", "", "self.lr_scheduler.step()"),
        ("clip_per_micro_batch", "", clip),
        ("clip_value_per_micro_batch", "", "torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)"),
        ("rescaled_buffer", each, "p.grad.div_(2)"),
        ("fp16_sum", each, "p.grad.copy_(p.grad.half())"),
        ("bf16_sum", each, "p.grad.copy_(p.grad.bfloat16())"),
        ("decay_per_micro_batch", no_grad, "p.mul_(0.99)"),
        ("scaled_through_numpy", each, "p.grad.numpy()[...] *= 0.5"),
        ("loss_divided_twice", "", "loss = loss / self.args.gradient_accumulation_steps"),
        ("loss_sum", "", "loss = loss * self.args.gradient_accumulation_steps"),
    )
    for loop in ("trainer_loop", "trainer_llama"):
        for name, head, line in rows:
            first = f"{line}\n@    {call}" if name == "zero_per_micro_batch" else f"{call}{head}{line}\n@    "
            edits: tuple[Edit, ...] = ((says, f"{says}\n{step}{first}return loss"),)
            if line == clip and loop == "trainer_loop":
                edits = (*edits, ("max_grad_norm=0.3", "max_grad_norm=0.0"))
            expected = "opaque" if name == "scaled_through_numpy" else "refuted"
            also: tuple[Blame, ...] = ()
            if name.startswith("zero"):
                also = ((EQ, line), (EQ, "super().training_step("))
            elif name == "step_per_micro_batch":
                also = ((STEP, "trainer.train()"),)
            yield mutant(name, loop, edits, line, also=also, expected=expected)
        line = "return super().compute_loss(*args, **kwargs) / self.args.gradient_accumulation_steps"
        text = f"{says}\n@\n@def compute_loss(self, *args: Any, **kwargs: Any) -> Any:\n@    {line}"
        yield mutant("divided_twice", loop, (says, text), line, also=((EQ, "trainer.train()"),))
    loop, count = (
        "trainer_loop",
        "count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch",
    )
    own = "count = (targets != -100).sum()"
    trained = ((EQ, "trainer.train()"), (EQ, 'return {"loss": total / count'))
    yield mutant("kwargs_ignored", loop, (count, own), own, also=trained)
    signature = "self, input_ids: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None, **kwargs: Any"
    short = (signature, "self, input_ids: Tensor, labels: Tensor")
    yield mutant("mean_of_means", loop, (short, (count, own)), own, also=trained)
    yield mutant(
        "labels_before_shift",
        loop,
        ("        self.labels[:, 0] = -100\n", ""),
        "total / count",
        also=trained,
        tail=True,
    )
    logits = "[:, :-1].flatten(0, 1)"
    lost = f"{logits}\n@logits = torch.cat([logits[:1].detach(), logits[1:]])"
    yield mutant("part_detached", loop, (logits, lost), "logits[:1].detach()", also=trained)


def _lightning() -> Iterator[LoopMutant]:
    loop, returned, log = "lightning_auto", "return loss * n / window", "self.losses[-1] += loss.detach() / window"
    fit = ((EQ, "trainer.fit("),)
    for name, line, tail in (
        ("missing_scale", "return loss * n", False),
        ("divided_twice", "return loss / window", False),
        ("shrunk_single", "return loss * n / (window + 1)", False),
        ("tail_by_configured_n", "return loss", True),
        ("divided_by_index", "return loss * n / (index % n + 1)", False),
    ):
        yield mutant(name, loop, (f"        {returned}\n", f"        {line}\n"), line, also=fit, tail=tail)
    for name, line in (
        ("loss_sum", "self.losses[-1] += loss.detach()"),
        ("loss_divided_twice", f"{log} / window"),
        ("last_loss_only", "self.losses[-1] = loss.detach() / window"),
        ("last_loss_unscaled", "self.losses[-1] = loss.detach()"),
    ):
        made = (("GA-INV-001", "loss = nn.functional"),) if name.startswith("last") else ()
        yield mutant(name, loop, (log, line), line, also=made)
    place = "def configure_optimizers"
    after = "def on_after_backward(self) -> None:\n@    "
    each = "for p in self.parameters():\n@        "
    no_grad = "with torch.no_grad():\n@        for p in self.parameters():\n@            "
    clip = "nn.utils.clip_grad_norm_(self.parameters(), MAX_NORM / 2)"
    for name, head, line in (
        ("zero_per_micro_batch", "def on_before_backward(self, loss: Tensor) -> None:\n@    ", "self.zero_grad()"),
        ("rescaled_buffer", after + each, "p.grad.div_(2)"),
        ("fp16_sum", after + each, "p.grad.copy_(p.grad.half())"),
        ("bf16_sum", after + each, "p.grad.copy_(p.grad.bfloat16())"),
        ("decay_per_micro_batch", after + no_grad, "p.mul_(0.99)"),
        ("scaled_through_numpy", after + each, "p.grad.numpy()[...] *= 0.5"),
        ("clip_per_micro_batch", after, clip),
        ("clip_value_per_micro_batch", after, "nn.utils.clip_grad_value_(self.parameters(), 0.01)"),
        ("step_per_micro_batch", after, "self.trainer.optimizers[0].step()"),
        ("schedule_per_micro_batch", after, "self.lr_schedulers().step()"),
    ):
        edits: tuple[Edit, ...] = ((place, f"{head}{line}\n\n@{place}"),)
        if line == clip:
            edits = (*edits, ("gradient_clip_val=MAX_NORM", "gradient_clip_val=None"))
        expected = "opaque" if name == "scaled_through_numpy" else "refuted"
        yield mutant(name, loop, edits, line, also=fit if name.startswith("zero") else (), expected=expected)
    loop, backward = "lightning_manual", "self.manual_backward(share)"
    line = 'self.clip_gradients(optimizer, gradient_clip_val=MAX_NORM, gradient_clip_algorithm="norm")'
    gone = (line, "pass")
    half = line.replace("=MAX_NORM", "=MAX_NORM / 2")
    yield mutant("clip_per_micro_batch", loop, (gone, (backward, f"{backward}\n@{half}")), half)
    yield mutant("clip_before_last", loop, (gone, (backward, f"{line}\n@{backward}")), line, also=((CLIP, backward),))
    stepped = ("optimizer.step()", f"optimizer.step()\n@{line}")
    yield mutant("clip_after_step", loop, (gone, stepped), line, also=((CLIP, "optimizer.step()"),))


def _ranks() -> Iterator[LoopMutant]:
    loop, share, last = "ddp_loop", "share = total * world / tokens", "last = k + 1 == len(window)"
    backward, inside = "share.backward()", "with nullcontext() if last else ddp.no_sync():"
    blame = ((SYNC, backward), (SYNC, "optimizer.step()"), (EQ, backward))
    reduce = "        dist.all_reduce(tokens)\n"
    yield mutant("no_sync_on_last", loop, (last, "last = k == 0"), inside, also=((SYNC, "last = k == 0"), *blame))
    flag = "ddp.require_backward_grad_sync = last"
    edits = ((inside, "with nullcontext():"), (share, f"{share}\n@{flag}"))
    yield mutant("sync_flag_after_forward", loop, edits, flag, also=blame)
    tail = "last = k + 1 == run.accum_steps"
    yield mutant("tail_never_synced", loop, (last, tail), inside, also=((SYNC, tail), *blame), tail=True)
    yield mutant("never_synced", loop, (inside, "with ddp.no_sync():"), "with ddp.no_sync():", also=blame)
    means = "share = total / (y != -100).sum() / len(window)"
    yield mutant("mean_of_means", loop, (share, means), means, also=((EQ, backward),))
    own = "share = total / tokens"
    yield mutant("per_rank_token_means", loop, ((reduce, ""), (share, own)), own, also=((EQ, backward),))
    yield mutant("world_forgotten", loop, (share, own), own, also=((EQ, backward),))
    counted = ("torch.stack([(y != -100).sum() for", "torch.stack([torch.tensor(len(y)) for")
    also = ((EQ, backward), (EQ, "torch.tensor(len(y))"))
    yield mutant("samples_for_tokens", loop, counted, share, also=also, expected="unknown")
    same = "inputs, targets = ids[:, :-1][::world], ids[:, 1:].masked_fill(~valid, -100)[::world]"
    right = same.replace("[::world]", "[rank::world]")
    forward = "cross_entropy(ddp(x)"
    yield mutant("ranks_read_the_same", loop, (right, same), same, also=((DATA, forward), (EQ, backward)))


FRAMEWORK_MUTANTS: tuple[LoopMutant, ...] = (*_ACCELERATE, *_trainers(), *_lightning(), *_ranks())
