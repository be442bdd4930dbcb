"""The mutants that every loop with a share, a backward, a sum of losses, a step and a zero can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.loops.bugs import CLIP, EQ, LOSS, STEP, ZERO, Blame, LoopMutant, mutant


@dataclass(frozen=True, slots=True)
class Parts:
    """The lines of a loop, each of which stands in it once.

    `raw` is the loss before scaling, `n` the length of the window, `ready` the text before which the optimizer is
    built, `weighted` whether the loss is weighted by tokens.
    """

    loop: str
    share: str = "share = loss / len(window)"
    raw: str = "loss"
    n: str = "len(window)"
    backward: str = "share.backward()"
    log: str = "window_loss += share.detach()"
    zero: str = "optimizer.zero_grad()"
    first: str = "start == 0"
    step: str = "optimizer.step()"
    params: str = "model.parameters()"
    ready: str = "optimizer = torch.optim."
    clip: str = ""
    schedule: str = ""
    index: str = ""
    boundary: str = ""
    weighted: bool = False


def _scales(p: Parts) -> Iterator[LoopMutant]:
    raw = (p.share, f"share = {p.raw}")
    blame = ((EQ, p.backward),)
    made = (*blame, (EQ, "loss = nn.functional")) if p.raw == "loss" else blame
    yield mutant("missing_scale", p.loop, raw, raw[1], also=made)
    twice = f"{p.share} / {p.n}"
    yield mutant("divided_twice", p.loop, (p.share, twice), twice, also=blame)
    if not p.weighted:
        shrunk = f"share = {p.raw} / ({p.n} + 1)"
        yield mutant("shrunk_single", p.loop, (p.share, shrunk), shrunk, also=blame)
        n = "self.accum_steps" if p.loop.startswith("lightning") else "run.accum_steps"
        tail = f"share = {p.raw} / {n}"
        yield mutant("tail_by_configured_n", p.loop, (p.share, tail), tail, also=blame, tail=True)
        if p.index:
            indexed = f"share = {p.raw} / ({p.index} % {n} + 1)"
            yield mutant("divided_by_index", p.loop, (p.share, indexed), indexed, also=blame)
    each = f"{p.backward}\n@for p in {p.params}:\n@    if p.grad is not None:\n@        p.grad.div_({p.n})"
    yield mutant("rescaled_buffer", p.loop, (raw, (p.backward, each)), "p.grad.div_(")
    later = f"{p.backward}\n@share = share / {p.n}"
    yield mutant("scaled_after_backward", p.loop, (raw, (p.backward, later)), raw[1], also=made)
    ending = f"{p.backward}\n@for p in {p.params}:\n@    held = p.grad.numpy()\n@    held /= {p.n}"
    yield mutant(
        "scaled_through_numpy",
        p.loop,
        (p.backward, ending),
        "held /= ",
        also=((EQ, "held = p.grad"),),
        expected="opaque",
    )


def _hooks(p: Parts) -> Iterator[LoopMutant]:
    hook = f"{p.share}\n@share.register_hook(lambda grad: grad / {p.n})"
    root = ((EQ, p.backward), (EQ, p.share))
    yield mutant("scaled_in_hook", p.loop, (p.share, hook), "share.register_hook(", also=root)
    if not p.ready:
        return
    loop = f"for p in {p.params}:\n@    "
    call = "p.register_hook(lambda grad: grad / run.accum_steps)"
    yield mutant("hook_on_parameter", p.loop, (p.ready, f"{loop}{call}\n@{p.ready}"), call, also=((EQ, p.backward),))
    line = "q.grad.mul_(0.5)"
    call = f"def halve(q: Tensor) -> None:\n@    {line}\n@{loop}p.register_post_accumulate_grad_hook(halve)"
    edit = (p.ready, f"{call}\n@{p.ready}")
    yield mutant("hook_after_accumulate", p.loop, edit, line, also=((EQ, p.backward),))


def _elements(p: Parts) -> Iterator[LoopMutant]:
    if p.step:
        rest = f"p.grad.view(-1)[int(k == 0) :] *= {p.n}"
        some = f"for k, p in enumerate({p.params}):\n@    {rest}\n@{p.step}"
        yield mutant("scale_first_element_only", p.loop, (p.step, some), rest, also=((EQ, p.step),))
    for name, narrow in (("fp16_sum", "half"), ("bf16_sum", "bfloat16")):
        line = f"p.grad.copy_(p.grad.{narrow}())"
        edit = (p.backward, f"{p.backward}\n@for p in {p.params}:\n@    {line}")
        yield mutant(name, p.loop, edit, line)
    line = "nn.utils.clip_grad_value_("
    edit = (p.backward, f"{p.backward}\n@{line}{p.params}, 0.01)")
    yield mutant("clip_value_per_micro_batch", p.loop, edit, line)


def _losses(p: Parts) -> Iterator[LoopMutant]:
    if not p.log:
        return
    head = p.log.split()[0]
    rest = p.log.partition("share.detach()")[2]
    rows = (
        ("loss_sum", f"{head} = {head} + ({p.raw}).detach(){rest}"),
        ("loss_divided_twice", f"{p.log} / {p.n}"),
        ("last_loss_only", f"{head} = share.detach(){rest}"),
        ("last_loss_unscaled", f"{head} = ({p.raw}).detach(){rest}"),
    )
    for name, line in rows:
        yield mutant(name, p.loop, (p.log, line), line, also=_handed_on(p) if name.startswith("last") else ())


def _handed_on(p: Parts) -> tuple[Blame, ...]:
    """Where the loop hands on a tensor under another name, the line that made it, or that returns it."""
    return ((LOSS, p.share.partition(" = ")[0] + " = "), (LOSS, "loss = "), (LOSS, "losses.append("))


def _zeros(p: Parts) -> Iterator[LoopMutant]:
    seen = ((EQ, p.backward), *(((ZERO, p.step), (EQ, p.step)) if p.step else ()))
    if p.zero:
        yield mutant("zero_skipped", p.loop, (p.zero, "pass"), p.backward, also=seen)
        once = (p.zero, f"if {p.first}:\n@    {p.zero}")
        behind = p.loop in ("plain", "plain_token_sum", "plain_checkpoint")
        yield mutant("zero_first_cycle_only", p.loop, once, p.backward, also=seen, tail=behind)
        one = f"for p in list({p.params})[:1]:\n@    if p.grad is not None:\n@        p.grad.view(-1)[0] = 0"
        yield mutant("zero_first_element_only", p.loop, (p.zero, one), p.backward, also=seen)
        yield mutant("zero_first_param_only", p.loop, (p.zero, f"next({p.params}).grad = None"), p.backward, also=seen)
    line = "self.zero_grad()" if p.loop.startswith("lightning") else "model.zero_grad()"
    blame = ((EQ, line), (EQ, p.backward))
    yield mutant("zero_per_micro_batch", p.loop, (p.backward, f"{line}\n@{p.backward}"), line, also=blame)
    if p.step:
        late = line.replace("()", "(set_to_none=False)")
        after = ((EQ, late), (ZERO, p.step), (EQ, p.step))
        yield mutant("zero_after_backward", p.loop, (p.step, f"{late}\n@{p.step}"), late, also=after)
    if p.index:
        n = "self.accum_steps" if p.loop.startswith("lightning") else "run.accum_steps"
        text = f"if {p.index} % ({n} + 1) == {n} - 1:\n@    {line}\n@{p.backward}"
        yield mutant("zero_irregular", p.loop, (p.backward, text), line, also=blame)


def _steps(p: Parts) -> Iterator[LoopMutant]:
    line = "p.mul_(0.99)"
    edit = (p.backward, f"{p.backward}\n@with torch.no_grad():\n@    for p in {p.params}:\n@        {line}")
    yield mutant("decay_per_micro_batch", p.loop, edit, line)
    if not p.step:
        return
    if "scaler" not in p.step:
        yield mutant("step_twice", p.loop, (p.step, f"{p.step}\n@{p.step}"), p.step)
    keep = f"before = [p.detach().clone() for p in {p.params}]\n@{p.step}\n@with torch.no_grad():"
    line = "p.copy_(held)"
    edit = (p.step, f"{keep}\n@    for p, held in zip({p.params}, before, strict=True):\n@        {line}")
    yield mutant("no_move", p.loop, edit, line, also=((STEP, p.step),))
    if p.boundary:
        index = p.boundary.split()[1].strip("(")
        n = p.boundary.split(" % ")[1].split()[0]
        rows = (
            ("step_per_micro_batch", f"if {index} >= 0:", False),
            ("boundary_at_index", f"if {index} % {n} == 0:", False),
            ("step_at_n_minus_1", p.boundary.replace(f"({index} + 1)", f"({index} + 2)"), False),
            ("irregular_windows", p.boundary.replace(f"% {n} ==", f"% ({n} + {index} // {n}) =="), False),
            ("tail_dropped", p.boundary.partition(" or ")[0] + ":", True),
        )
        for name, test, tail in rows:
            also = ((STEP, test), (EQ, p.step), *(((STEP, p.backward),) if tail else ()))
            yield mutant(name, p.loop, (p.boundary, test), p.step, also=also, tail=tail)
    elif "scaler" not in p.step:
        edit = (p.backward, f"{p.backward}\n@{p.step}")
        yield mutant("step_per_micro_batch", p.loop, edit, p.step)
    if p.schedule:
        edits = ((p.schedule, "pass"), (p.backward, f"{p.backward}\n@{p.schedule}"))
        yield mutant("schedule_per_micro_batch", p.loop, edits, p.schedule)


def _clips(p: Parts) -> Iterator[LoopMutant]:
    if not p.clip:
        return
    moved = ((p.clip, "pass"), (p.backward, f"{p.backward}\n@{p.clip}"))
    yield mutant("clip_per_micro_batch", p.loop, moved, p.clip)
    stale = ((p.clip, "pass"), (p.backward, f"{p.clip}\n@{p.backward}"))
    yield mutant("clip_before_last", p.loop, stale, p.clip, also=((CLIP, p.step), (CLIP, p.backward)))
    late = ((p.clip, "pass"), (p.step, f"{p.step}\n@{p.clip}"))
    yield mutant("clip_after_step", p.loop, late, p.clip, also=((CLIP, p.step),))


def common(p: Parts) -> Iterator[LoopMutant]:
    """Every mutant that the loop's lines allow."""
    for family in (_scales, _hooks, _elements, _losses, _zeros, _steps, _clips):
        yield from family(p)


_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)"
_BOUNDARY = "if (i + 1) % run.accum_steps == 0 or i + 1 == len(inputs):"
_SHARE_SUM = "share = loss / window_tokens"

FAMILIES: tuple[Parts, ...] = (
    Parts(
        "plain", share="share = loss / window", n="window", index="i", first="i + 1 == n",
        boundary="if (i + 1) % n == 0 or i + 1 == count:",
    ),
    Parts("plain_mlp", index="i", first="i == 0", boundary=_BOUNDARY, clip=_CLIP, schedule="scheduler.step()"),
    Parts(
        "plain_attention", share="share = loss * tokens / window_tokens", clip=_CLIP, schedule="scheduler.step()",
        zero="optimizer.zero_grad(set_to_none=True)", weighted=True,
    ),
    Parts("plain_amp", backward="scaler.scale(share).backward()", step="scaler.step(optimizer)", clip=_CLIP, index="i"),
    Parts(
        "plain_token_sum", share=_SHARE_SUM, raw="loss / (targets[i] != -100).sum()", n="(last - start)", log="",
        weighted=True,
    ),
    Parts(
        "plain_checkpoint", share="share = nn.functional.mse_loss(output, targets[i]) / len(window)",
        raw="nn.functional.mse_loss(output, targets[i])", zero="optimizer.zero_grad(set_to_none=False)", index="i",
    ),
    Parts("plain_ema", schedule="scheduler.step()", index="i"),
    Parts("plain_closure", zero="optimizer.zero_grad()", first="window[0] == 0", step="", index="i"),
    Parts("plain_third", share="share = loss * (1 / len(window))", index="i"),
    Parts(
        "lightning_manual", share="share = loss / window", n="window", backward="self.manual_backward(share)",
        log="self.window_loss = self.window_loss + share.detach()", first="index == 0", params="self.parameters()",
        boundary="if (index + 1) % n == 0 or index + 1 == self.micro_batches:", ready="", index="index",
        schedule="scheduler.step()",
    ),
    Parts(
        "ddp_loop", share="share = total * world / tokens", raw="total * world / (y != -100).sum()",
        log="window_loss += share.detach() / world", params="ddp.parameters()", ready="",
        clip="nn.utils.clip_grad_norm_(ddp.parameters(), MAX_NORM)", weighted=True,
    ),
)  # fmt: skip

NOT_IN_FAMILY: Mapping[tuple[str, str], str] = {
    ("labels_before_shift", "trainer_llama"): "Transformers 5.23 counts the shifted labels of the models that it knows",
    ("step_per_micro_batch", "plain_amp"): "state_per_micro_batch is this mutant in a loop with a scaler",
}
"""Cells that are left out of one loop, with the reason."""
