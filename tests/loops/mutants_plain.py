"""Mutants of the plain loops that only one of them, or a few, can express."""

from __future__ import annotations

from tests.loops.bugs import DATA, EQ, STEP, ZERO, LoopMutant, mutant

_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)"
_STEP = "optimizer.step()"
_SHARE = "share.backward()"

_TOKENS = [
    mutant(
        "mean_of_means",
        "plain_attention",
        ("share = loss * tokens / window_tokens", "share = loss / len(window)"),
        "share = loss / len(window)",
        also=((EQ, _SHARE),),
    ),
    mutant(
        "samples_for_tokens",
        "plain_attention",
        ("share = loss * tokens / window_tokens", "share = loss * len(y) / sum(len(b) for _, b in window)"),
        "share = loss * len(y)",
        also=((EQ, _SHARE),),
    ),
    mutant(
        "padding_counted",
        "plain_attention",
        (
            "share = loss * tokens / window_tokens",
            "share = loss * aims.numel() / sum(b[:, 1:].numel() for _, b in window)",
        ),
        "share = loss * aims.numel()",
        also=((EQ, _SHARE),),
    ),
    mutant(
        "labels_before_shift",
        "plain_attention",
        (
            ("int((y[:, 1:] != -100).sum()) for", "int((y != -100).sum()) for"),
            ("tokens = int((aims != -100).sum())", "tokens = int((y != -100).sum())"),
        ),
        "share = loss * tokens / window_tokens",
        also=((EQ, _SHARE), (EQ, "(y != -100).sum()")),
    ),
    mutant(
        "labels_shifted_twice",
        "plain_attention",
        (
            ("int((y[:, 1:] != -100).sum()) for", "int((y[:, 2:] != -100).sum()) for"),
            ("tokens = int((aims != -100).sum())", "tokens = int((y[:, 2:] != -100).sum())"),
        ),
        "share = loss * tokens / window_tokens",
        also=((EQ, _SHARE), (EQ, "(y[:, 2:] != -100).sum()")),
    ),
    mutant(
        "fused_forgets_scale",
        "plain_attention",
        (
            "share = loss * tokens / window_tokens",
            'share = loss if optimizer.defaults["fused"] else loss * tokens / window_tokens',
        ),
        "share = loss if optimizer.defaults",
        also=((EQ, _SHARE), (EQ, "loss = nn.functional")),
    ),
    mutant(
        "mean_of_means",
        "plain_token_sum",
        ("share = loss / window_tokens", "share = loss / (targets[i] != -100).sum() / (last - start)"),
        "share = loss / (targets[i] != -100).sum()",
        also=((EQ, _SHARE),),
    ),
    mutant(
        "samples_for_tokens",
        "plain_token_sum",
        ("counts = [(targets[i] != -100).sum() for", "counts = [torch.tensor(len(targets[i])) for"),
        "share = loss / window_tokens",
        also=((EQ, _SHARE), (EQ, "counts = [torch.tensor(len(targets[i]))")),
        expected="unknown",
    ),
    mutant(
        "padding_counted",
        "plain_token_sum",
        ("counts = [(targets[i] != -100).sum() for", "counts = [torch.tensor(targets[i].numel()) for"),
        "share = loss / window_tokens",
        also=((EQ, _SHARE), (EQ, "counts = [torch.tensor(targets[i].numel())")),
        expected="unknown",
    ),
    mutant(
        "list_averaged_wrongly",
        "plain_token_sum",
        ("losses.append(torch.stack(shares).sum())", "losses.append(torch.stack(shares).mean())"),
        "torch.stack(shares).mean()",
        also=(("GA-INV-001", "torch.stack(shares).mean()"),),
    ),
]

_DETACHED = [
    mutant(
        "part_detached",
        loop,
        (old, f"output = torch.cat([model({x})[:1].detach(), model({x})[1:]])"),
        "[:1].detach()",
        also=((EQ, backward), (EQ, "share = ")),
    )
    for loop, old, x, backward in (
        ("plain_amp", "output = model(inputs[i])", "inputs[i]", "scaler.scale(share).backward()"),
        ("plain_checkpoint", "output = model(inputs[i])", "inputs[i]", _SHARE),
    )
]

_LAST = [
    mutant(
        "last_only_backward",
        loop,
        (_SHARE, f"if i + 1 == {last}:\n@    {_SHARE}"),
        _SHARE,
        also=((EQ, "optimizer.step("), (STEP, "optimizer.step(")),
    )
    for loop, last in (
        ("plain_checkpoint", "window[-1] + 1"),
        ("plain_ema", "window[-1] + 1"),
        ("plain_third", "window[-1] + 1"),
        ("plain_closure", "window[-1] + 1"),
        ("plain_token_sum", "last"),
    )
]

_MADE = ((EQ, "loss.backward()"), (EQ, "loss = nn.functional"))
_READ = (("GA-INV-001", "loss.item()"),)
_DIV_ONCE = [
    mutant("missing_scale", "plain_div_once", ("p.grad.div_(held)", "pass"), _STEP, also=_MADE),
    mutant("divided_twice", "plain_div_once", ("p.grad.div_(held)", "p.grad.div_(held * held)"), "p.grad.div_("),
    mutant("shrunk_single", "plain_div_once", ("p.grad.div_(held)", "p.grad.div_(held + 1)"), "p.grad.div_("),
    mutant(
        "tail_by_configured_n",
        "plain_div_once",
        ("p.grad.div_(held)", "p.grad.div_(run.accum_steps)"),
        "p.grad.div_(",
        tail=True,
    ),
    mutant(
        "rescaled_buffer",
        "plain_div_once",
        (
            ("                    p.grad.div_(held)", "                    pass"),
            ("loss.backward()", "loss.backward()\n@for p in model.parameters():\n@    p.grad.div_(held + 1)"),
        ),
        "p.grad.div_(",
    ),
    mutant(
        "scale_first_element_only",
        "plain_div_once",
        ("p.grad.div_(held)", "p.grad.view(-1)[:1].div_(held)"),
        "p.grad.view(-1)[:1].div_(",
    ),
    mutant(
        "scaled_through_numpy",
        "plain_div_once",
        ("p.grad.div_(held)", "p.grad.numpy()[...] /= held * 2"),
        "p.grad.numpy()",
        expected="opaque",
    ),
    mutant(
        "list_averaged_wrongly",
        "plain_div_once",
        ("losses.append(total / held)", "losses.append(total)"),
        "append(total)",
        also=(("GA-INV-001", "append(total)"), *_READ),
    ),
    mutant(
        "loss_sum",
        "plain_div_once",
        ("losses.append(total / held)", "losses.append(total * 1)"),
        "append(total",
        also=_READ,
    ),
    mutant(
        "loss_divided_twice",
        "plain_div_once",
        ("total / held)", "total / held / held)"),
        "losses.append(",
        also=_READ,
    ),
    mutant(
        "last_loss_unscaled",
        "plain_div_once",
        ("total += loss.item()", "total = loss.item() * (held + 1)"),
        "total = loss",
    ),
    mutant(
        "loss_not_reset",
        "plain_div_once",
        ("            total, held = 0.0, 0", "            held = 0"),
        "losses.append(total / held)",
        also=(("GA-INV-001", "total += loss.item()"),),
    ),
    mutant(
        "zero_skipped", "plain_div_once", ("optimizer.zero_grad()", "pass"), "loss.backward()", also=((ZERO, _STEP),)
    ),
    mutant(
        "zero_per_micro_batch",
        "plain_div_once",
        ("loss.backward()", "model.zero_grad()\n@loss.backward()"),
        "model.zero_grad()",
        also=((EQ, "loss.backward()"),),
    ),
    mutant(
        "zero_after_backward",
        "plain_div_once",
        (_STEP, "model.zero_grad(set_to_none=False)\n@optimizer.step()"),
        "model.zero_grad(",
        also=((ZERO, _STEP), (EQ, _STEP)),
    ),
    mutant(
        "step_per_micro_batch",
        "plain_div_once",
        ("if held == run.accum_steps or i + 1 == len(loader):", "if held >= 1:"),
        _STEP,
        also=((STEP, "if held >= 1"), (EQ, _STEP)),
    ),
    mutant(
        "tail_dropped",
        "plain_div_once",
        ("if held == run.accum_steps or i + 1 == len(loader):", "if held == run.accum_steps:"),
        "loss.backward()",
        also=((STEP, "if held == run.accum_steps:"), (STEP, _STEP)),
        tail=True,
    ),
    mutant("step_twice", "plain_div_once", (_STEP, f"{_STEP}\n@{_STEP}"), _STEP),
    mutant(
        "clip_value_per_micro_batch",
        "plain_div_once",
        (
            ("nn.utils.clip_grad_value_(model.parameters(), 0.05)", "pass"),
            ("loss.backward()", "loss.backward()\n@nn.utils.clip_grad_value_(model.parameters(), 0.05)"),
        ),
        "clip_grad_value_(",
    ),
    mutant(
        "inputs_fetched_once",
        "plain_div_once",
        ("loss = nn", "x, y = (x, y) if held == 0 else kept\n@kept = (x, y)\n@loss = nn"),
        "kept = (x, y)",
        also=((DATA, "loss = nn"), (DATA, "x, y = (x, y) if held"), (EQ, "loss.backward()")),
    ),
    mutant(
        "loader_restarted",
        "plain_div_once",
        ("enumerate(loader):", "enumerate(next(iter(loader)) for _ in range(len(loader))):"),
        "next(iter(loader))",
        also=((DATA, "loss = nn"), (DATA, "loss.backward()"), (EQ, "loss.backward()")),
    ),
]

_OTHERS = [
    mutant(
        "ema_per_micro_batch",
        "plain_ema",
        (
            "window_loss += share.detach()",
            "window_loss += share.detach()\n"
            "@for slow, fast in zip(average.parameters(), model.parameters(), strict=True):"
            "\n@    slow.lerp_(fast.detach(), 0.1)",
        ),
        "slow.lerp_(fast.detach(), 0.1)",
    ),
    *(
        mutant(
            "state_per_micro_batch",
            loop,
            ("share.backward()", f"share.backward()\n@{_STEP}"),
            _STEP,
            also=((EQ, _STEP),),
        )
        for loop in ("plain_attention", "plain_ema", "plain_checkpoint")
    ),
    mutant(
        "loss_not_reset",
        "plain",
        ("            window_loss.zero_()\n", ""),
        "window_loss += ",
        also=(("GA-INV-001", "losses.append("),),
    ),
    mutant(
        "loss_not_reset",
        "plain_mlp",
        ("            window_loss.zero_()\n", ""),
        "window_loss += ",
        also=(("GA-INV-001", "losses.append("),),
    ),
    *(
        mutant(
            "inputs_fetched_once",
            loop,
            (old, old.replace("inputs[i]", f"inputs[{first}]").replace("targets[i]", f"targets[{first}]")),
            f"inputs[{first}]",
            also=((EQ, _SHARE),),
        )
        for loop, old, first in (
            ("plain_closure", "model(inputs[i]), targets[i])", "window[0]"),
            ("plain_third", "model(inputs[i]), targets[i])", "start"),
        )
    ),
    mutant(
        "inputs_fetched_once",
        "plain_token_sum",
        (("model(inputs[i])", "model(inputs[start])"), ("targets[i], reduction", "targets[start], reduction")),
        "inputs[start]",
        also=((EQ, _SHARE), (DATA, "targets[start]")),
    ),
    mutant(
        "inputs_fetched_once",
        "plain",
        ("rows = slice(i * size, (i + 1) * size)", "rows = slice(i // n * n * size, (i // n * n + 1) * size)"),
        "rows = slice",
        also=((DATA, "loss = nn"), (EQ, _SHARE)),
    ),
    mutant(
        "loader_restarted",
        "plain",
        ("rows = slice(i * size, (i + 1) * size)", "rows = slice(i % n * size, (i % n + 1) * size)"),
        "rows = slice",
        also=((DATA, "loss = nn"), (EQ, _SHARE)),
    ),
    mutant(
        "loader_restarted",
        "plain_attention",
        ("batches[start : start + run.accum_steps]", "batches[: len(batches[start : start + run.accum_steps])]"),
        "window = batches[:",
        also=((DATA, "self.tokens(ids)"), (EQ, _SHARE)),
    ),
    mutant(
        "sample_lost",
        "plain",
        ("rows = slice(i * size, (i + 1) * size)", "rows = slice(i * size, (i + 1) * size - 1)"),
        "rows = slice",
        also=((DATA, "loss = nn"), (EQ, _SHARE)),
    ),
    mutant(
        "sample_lost",
        "plain_ema",
        (
            "x, y = inputs[i * size : (i + 1) * size], targets[i * size : (i + 1) * size]",
            "x, y = inputs[i * size + 1 : (i + 1) * size], targets[i * size + 1 : (i + 1) * size]",
        ),
        "x, y = inputs",
        also=((DATA, "loss = nn"), (EQ, _SHARE)),
    ),
    mutant(
        "targets_of_another",
        "plain_closure",
        ("model(inputs[i]), targets[i])", "model(inputs[i]), targets[window[0]])"),
        "targets[window[0]]",
        also=((EQ, _SHARE), (EQ, "targets[window[0]]")),
    ),
    mutant(
        "targets_of_another",
        "plain_checkpoint",
        ("mse_loss(output, targets[i])", "mse_loss(output, targets[start])"),
        "targets[start]",
        also=((EQ, _SHARE), (EQ, "targets[start]")),
    ),
]

PLAIN_MUTANTS: tuple[LoopMutant, ...] = (*_TOKENS, *_DETACHED, *_LAST, *_DIV_ONCE, *_OTHERS)
