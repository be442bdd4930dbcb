"""Whether a step does the same when nobody records it.

What is proved is proved of the recorded calls, and a function can tell that it is recorded: a dispatch mode is on, and
torch's functions are wrapped. So it is called again with nothing around it, for what it returns, and with torch's own
hook after each optimizer step, for the parameters. Both must agree with the recording within `agree.tolerance`, or as
nearly as recorded calls at leaves a few units of roundoff away do: an adaptive optimizer makes a whole step out of a
gradient that is nothing but rounding, and torch may take another kernel where nobody looks.

Where two recorded calls from the same seed already differ (data from an unseeded generator), there is nothing to agree
with: that is told and is no answer. A function that looks for gradproof itself and behaves in all of these calls is
not found out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradproof.core.outcome import Outcome
from gradproof.shadow.record.hook_points import params_of
from gradproof.shadow.record.run import Recording, Run, Step, numbers, seed, tensors, told
from gradproof.shadow.result import Verification
from gradproof.shadow.tape import NOWHERE, Place
from gradproof.shadow.verify.match import near
from gradproof.shadow.verify.recordings import (
    UNIT,
    Session,
    Trouble,
    distance,
    narrowest,
    recorded,
    tolerance,
    values_of,
)

MEND = "the function must not ask whether it is recorded: no look at dispatch modes, hooks or the caller"
RANKS = "whether the ranks do the same when nobody records them was not looked at"
UNSTEADY = "whether the step does the same unrecorded cannot be seen: two recorded calls with one seed differ"
SILENT = "whether the step does the same unrecorded cannot be seen: it returns no numbers and makes no optimizer step"
CLOSE = "unrecorded the step agrees with the recording only as far as rounding determines it"
ROUNDOFFS = 16
"""Units of roundoff by which leaves are moved, to see what rounding does to the parameters."""
NEIGHBOURS = (1, 2, 3, 4, 5)
SLACK = 4.0
Numbers = NDArray[np.float64]
Tensors = list[Numbers]


@dataclass(slots=True)
class Seen:
    """What was seen of a call: after each optimizer step its parameters, in their order; what it returned.

    `steps` is None for a call whose optimizer steps nobody watched.
    """

    steps: list[Tensors] | None
    returned: Numbers = field(default_factory=lambda: np.zeros(0))
    error: str = ""


def unrecorded(session: Session, made: Verification) -> Iterator[Trouble]:
    """The step does something else when nobody records it. What could not be looked at is told in `made`."""
    if session.ranks > 1:
        made.uncovered.append(RANKS)
        return
    ours = of_recording(session.ours[0])
    if not ours.steps and not ours.returned.size:
        made.uncovered.append(SILENT)
        return
    allowed = tolerance(session.ours[0].tape)
    if not _found(_calls(session, ours), ours, allowed):
        return
    recorded(session.step, session.run, 1, values_of(session.ours))  # a model outside of the step is as it was for ours
    calls = _calls(session, ours)
    if not _found(calls, ours, allowed):
        return
    if apart(ours, of_recording(recorded(session.step, session.run, 1)[0]), allowed):
        made.uncovered.append(UNSTEADY)
        return
    around: list[Seen] = []
    for seen in _around(session):
        around.append(seen)
        found = _found(calls, ours, allowed, around)
        if not found:
            made.notes.append(CLOSE)
            return
    reason = f"the step does something else when nobody records it: {found}"
    yield Trouble(Outcome.OPAQUE, reason, _start(session.step), MEND, "unrecorded")


def _calls(session: Session, ours: Seen) -> list[Seen]:
    """The plain calls that can show a difference."""
    watched = [called(session.step, session.run, watched=True)] if ours.steps else []
    return watched + ([called(session.step, session.run, watched=False)] if ours.returned.size else [])


def _found(calls: Sequence[Seen], ours: Seen, allowed: float, around: Sequence[Seen] = ()) -> str:
    return next((words for call in calls if (words := apart(ours, call, allowed, around))), "")


def _around(session: Session) -> Iterator[Seen]:
    """The step, recorded at leaves a few units of roundoff away."""
    size = ROUNDOFFS * UNIT[narrowest(session.ours[0].tape)]
    for key in NEIGHBOURS:
        values = [near(v, key, size) for v in values_of(session.ours)]
        yield of_recording(recorded(session.step, session.run, 1, values)[0])


def of_recording(recording: Recording) -> Seen:
    """What a recording shows."""
    steps = [
        [_flat([v]) for k, v in e.values.items() if k.startswith("param/")] for e in recording.tape.events("stepped")
    ]
    losses = [v for e in recording.tape.events("loss") for v in e.values.values()]
    return Seen(steps, _flat([*losses, np.asarray(recording.tape.returned)]), recording.error)


def called(step: Step, run: Run, watched: bool) -> Seen:
    """What a plain call shows: its optimizer steps only if it is `watched`. The function's own error is kept."""
    seed(run.seed)
    steps: list[Tensors] = []
    seen = Seen(steps if watched else None)
    inside: list[Optimizer] = []  # a step that calls the step of its base class is one step

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        inside.append(optimizer)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        inside.remove(optimizer)
        if optimizer not in inside:
            steps.append([_flat([_plain(p)]) for p in params_of(optimizer)])

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)] if watched else []
    try:
        returned = step(run)
        seen.returned = _flat([*map(_plain, tensors(returned)), np.asarray(numbers(returned))])
    except Exception as error:
        seen.error = told(error)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def apart(ours: Seen, other: Seen, allowed: float, around: Sequence[Seen] = ()) -> str:
    """How a call differs from the recorded one, in words; empty when it does not, or not more than `around` does."""
    if other.error != ours.error:
        return f"it raises {other.error}"
    was, now = ours.steps or [], other.steps or []
    if other.steps is not None and len(now) != len(was):
        return f"it makes {len(now)} optimizer steps and not {len(was)}"
    near_by = [seen for seen in around if len(seen.steps or []) == len(was)]
    for number, (one, two) in enumerate(zip(was, now, strict=False), 1):
        if _far(one, two, allowed, [(seen.steps or [])[number - 1] for seen in near_by]):
            return f"optimizer step {number} gives other parameters"
    far = _far([ours.returned], [other.returned], allowed, [[seen.returned] for seen in near_by])
    return "it returns other numbers" if far else ""


def _far(was: Tensors, now: Tensors, allowed: float, around: Sequence[Tensors]) -> bool:
    """Whether a tensor is further away than allowed and than where rounding alone takes that one tensor.

    Tensors that are all there, but in another order, are not far.
    """
    whole = _sorted(was)
    most = allowed * float(np.max(np.abs(whole[np.isfinite(whole)]), initial=1e-3))
    if distance(whole, _sorted(now)) <= most:
        return False
    room = [most + SLACK * _spread(place, was, around) for place in range(len(was))]
    return len(was) != len(now) or not all(distance(*two) <= most for *two, most in zip(was, now, room, strict=True))


def _spread(place: int, was: Tensors, around: Sequence[Tensors]) -> float:
    found = max((distance(was[place], near_by[place]) for near_by in around if len(near_by) == len(was)), default=0.0)
    return found if np.isfinite(found) else 0.0


def _plain(tensor: Any) -> Numbers:
    return tensor.detach().double().cpu().numpy().copy()  # type: ignore[no-any-return]


def _flat(parts: list[Any]) -> Numbers:
    return np.concatenate([np.zeros(0), *(np.asarray(part, dtype=np.float64).reshape(-1) for part in parts)])


def _sorted(parts: Tensors) -> Numbers:
    return np.sort(_flat(parts))


def _start(step: Step) -> Place:
    code = getattr(inspect.unwrap(step), "__code__", None)
    return NOWHERE if code is None else Place(code.co_filename, code.co_firstlineno, code.co_name)
