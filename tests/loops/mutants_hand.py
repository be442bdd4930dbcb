"""Mutants of the loops that keep their buffers by hand, and of the loop with a GradScaler."""

from __future__ import annotations

from tests.loops.bugs import BUFFER, CLIP, EQ, STEP, ZERO, LoopMutant, mutant

_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)"
_STEP = "optimizer.step()"
_SHARE = "share.backward()"

_MASTER = [
    mutant(
        "missing_scale",
        "plain_master",
        (" / len(window)\n            share.backward()", "\n            share.backward()"),
        "share = nn.functional.mse_loss(",
        also=((EQ, _SHARE), (EQ, "b.add_(")),
    ),
    mutant(
        "divided_twice",
        "plain_master",
        ("b.add_(p.grad.float())", "b.add_(p.grad.float() / len(window))"),
        "b.add_(",
    ),
    mutant(
        "tail_by_configured_n",
        "plain_master",
        ("targets[i]) / len(window)", "targets[i]) / run.accum_steps"),
        "share = nn",
        also=((EQ, _SHARE), (EQ, "b.add_(")),
        tail=True,
    ),
    mutant("rescaled_buffer", "plain_master", ("b.add_(p.grad.float())", "b.add_(p.grad.float()).div_(2)"), "b.add_("),
    mutant(
        "fp16_buffer",
        "plain_master",
        (("torch.zeros_like(m) for", "torch.zeros_like(m).half() for"), ("m.grad = b", "m.grad = b.float()")),
        "b.add_(",
        also=((BUFFER, ".half() for m"), (BUFFER, "m.grad = b.float()")),
    ),
    mutant(
        "bf16_buffer",
        "plain_master",
        (("torch.zeros_like(m) for", "torch.zeros_like(m).bfloat16() for"), ("m.grad = b", "m.grad = b.float()")),
        "b.add_(",
        also=((BUFFER, ".bfloat16() for m"), (BUFFER, "m.grad = b.float()")),
    ),
    mutant("fp16_sum", "plain_master", ("b.add_(p.grad.float())", "b.copy_((b + p.grad).half())"), "b.copy_("),
    mutant("bf16_sum", "plain_master", ("b.add_(p.grad.float())", "b.copy_((b + p.grad).bfloat16())"), "b.copy_("),
    mutant(
        "zero_skipped",
        "plain_master",
        ("                p.grad = None", "                pass"),
        _SHARE,
        also=((EQ, "b.add_("), (ZERO, "b.add_("), (EQ, _SHARE)),
    ),
    mutant(
        "zero_first_cycle_only",
        "plain_master",
        ("        buffers = [torch", "        buffers = buffers if start else [torch"),
        "b.add_(",
        also=((ZERO, _SHARE), (EQ, "b.add_("), (ZERO, _STEP)),
    ),
    mutant(
        "zero_per_micro_batch",
        "plain_master",
        ("b.add_(p.grad.float())", "b.copy_(p.grad.float())"),
        "b.copy_(",
        also=((EQ, "b.copy_("),),
    ),
    mutant(
        "no_move",
        "plain_master",
        ("p.sub_(group", "p.clone().sub_(group"),
        _STEP,
        also=((STEP, "p.clone().sub_("),),
    ),
    mutant(
        "clip_per_micro_batch",
        "plain_master",
        (
            ("        clip(buffers, MAX_NORM)\n", ""),
            (_SHARE, f"{_SHARE}\n@clip([p.grad for p in model.parameters() if p.grad is not None], MAX_NORM)"),
        ),
        "clip([p.grad for p",
        also=((CLIP, "b.mul_(factor)"),),
    ),
    mutant(
        "clip_before_last",
        "plain_master",
        (("        clip(buffers, MAX_NORM)\n", ""), (_SHARE, f"{_SHARE}\n@clip(buffers, MAX_NORM)")),
        "clip(buffers, MAX_NORM)",
        also=((CLIP, "b.mul_(factor)"), (CLIP, _STEP), (CLIP, "b.add_(")),
    ),
    mutant(
        "loss_sum",
        "plain_master",
        ("window_loss += share.detach()", "window_loss += share.detach() * len(window)"),
        "window_loss += share",
    ),
    mutant(
        "last_loss_only",
        "plain_master",
        ("window_loss += share", "window_loss = share"),
        "window_loss = share",
        also=(("GA-INV-001", "share = nn"),),
    ),
]

_FUNC = [
    mutant("missing_scale", "plain_func", ("grads[name] / len(window)", "grads[name]"), "total + grads[name]"),
    mutant(
        "divided_twice", "plain_func", ("p.grad = held[name]", "p.grad = held[name] / len(window)"), "p.grad = held"
    ),
    mutant(
        "shrunk_single", "plain_func", ("grads[name] / len(window)", "grads[name] / (len(window) + 1)"), "total + grads"
    ),
    mutant(
        "tail_by_configured_n",
        "plain_func",
        ("grads[name] / len(window)", "grads[name] / run.accum_steps"),
        "total + grads",
        tail=True,
    ),
    mutant(
        "rescaled_buffer",
        "plain_func",
        ("total + grads[name] / len(window)", "(total + grads[name]) / len(window)"),
        "total + grads",
    ),
    mutant(
        "fp16_sum",
        "plain_func",
        ("total + grads[name] / len(window)", "(total + grads[name] / len(window)).half().float()"),
        "total + grads",
    ),
    mutant(
        "fp16_buffer",
        "plain_func",
        (
            ("{name: torch.zeros_like(p) for", "{name: torch.zeros_like(p).half() for"),
            ("total + grads[name] / len(window)", "total + (grads[name] / len(window)).half()"),
            ("p.grad = held[name]", "p.grad = held[name].float()"),
        ),
        "total + (grads",
        also=((BUFFER, "torch.zeros_like(p).half()"), (BUFFER, "p.grad = held[name].float()")),
    ),
    mutant(
        "bf16_buffer",
        "plain_func",
        (
            ("{name: torch.zeros_like(p) for", "{name: torch.zeros_like(p).bfloat16() for"),
            ("total + grads[name] / len(window)", "total + (grads[name] / len(window)).bfloat16()"),
            ("p.grad = held[name]", "p.grad = held[name].float()"),
        ),
        "total + (grads",
        also=((BUFFER, "torch.zeros_like(p).bfloat16()"), (BUFFER, "p.grad = held[name].float()")),
    ),
    mutant(
        "zero_per_micro_batch",
        "plain_func",
        ("total + grads[name] / len(window)", "0 * total + grads[name] / len(window)"),
        "0 * total",
        also=((EQ, "0 * total"),),
    ),
    mutant(
        "zero_first_cycle_only",
        "plain_func",
        ("held = {name: torch.zeros_like(p) for", "held = held if start else {name: torch.zeros_like(p) for"),
        "total + grads",
        also=(
            (EQ, "total + grads"),
            (ZERO, _STEP),
            (EQ, _STEP),
            (ZERO, "held if start"),
            (ZERO, "grads, loss = grad_and_value("),
        ),
    ),
    mutant(
        "last_only_backward",
        "plain_func",
        ("p.grad = held[name]", "p.grad = grads[name] / len(window)"),
        "p.grad = grads",
    ),
    mutant(
        "loss_sum", "plain_func", ("window_loss += loss / len(window)", "window_loss += loss"), "window_loss += loss"
    ),
    mutant(
        "loss_divided_twice",
        "plain_func",
        ("losses.append(window_loss)", "losses.append(window_loss / len(window))"),
        "window_loss / len",
    ),
    mutant(
        "last_loss_only",
        "plain_func",
        ("window_loss += loss / len(window)", "window_loss = loss / len(window)"),
        "window_loss = loss",
    ),
    mutant("step_twice", "plain_func", (_STEP, f"{_STEP}\n@{_STEP}"), _STEP),
    mutant(
        "step_per_micro_batch",
        "plain_func",
        (
            "window_loss += loss",
            "for name, p in model.named_parameters():\n@    p.grad = grads[name]\n"
            "@optimizer.step()\n@window_loss += loss",
        ),
        _STEP,
    ),
    mutant(
        "inputs_fetched_once",
        "plain_func",
        ("inputs[i], targets[i])", "inputs[start], targets[start])"),
        "inputs[start]",
        also=(("GA-DATA-001", "return nn.functional.mse_loss("),),
    ),
]

_AMP = [
    mutant(
        "clip_before_unscale",
        "plain_amp",
        (("        scaler.unscale_(optimizer)\n", ""), (_CLIP, f"{_CLIP}\n@scaler.unscale_(optimizer)")),
        _CLIP,
        also=((CLIP, "scaler.unscale_(optimizer)"),),
    ),
    mutant(
        "unscale_twice",
        "plain_amp",
        ("scaler.unscale_(optimizer)", "scaler.unscale_(optimizer)\n@scaler.unscale_(optimizer)"),
        "scaler.unscale_(optimizer)",
        expected="error",
    ),
    mutant(
        "unscale_per_micro_batch",
        "plain_amp",
        (
            ("        scaler.unscale_(optimizer)\n", ""),
            ("scaler.scale(share).backward()", "scaler.scale(share).backward()\n@scaler.unscale_(optimizer)"),
        ),
        "scaler.unscale_(optimizer)",
        expected="error",
    ),
    mutant(
        "state_per_micro_batch",
        "plain_amp",
        ("window_loss += share", "scaler.step(optimizer)\n@scaler.update()\n@window_loss += share"),
        "scaler.step(optimizer)",
    ),
]

HAND_MUTANTS: tuple[LoopMutant, ...] = (*_MASTER, *_FUNC, *_AMP)
