"""Asking CrossHair about one function, and what its answer is worth.

CrossHair's message types keep "confirmed over all paths", "not confirmed" and "counterexample" apart, which its exit
code does not. Beyond the message, a confirmation needs: the path tree was exhausted, the postcondition was evaluated on
each path that entered the body (CrossHair drops a path without a word when a called function breaks a contract of its
own, so such contracts are switched off), and concrete samples agree. Source: crosshair.core.analyze_calltree and
ExceptionFilter, read at version 0.0.112.
"""

from __future__ import annotations

import functools
import gc
import inspect
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from crosshair.core import ConditionCheckable
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet

from gradproof.core import Outcome

SAMPLES = 200
TRIES = 20_000
SPAN = (0, 1, -1, 2, 3, 4, 5, 6, -2, -3, 7, 1000, -1001)
BITS = (False, True)

ANSWER: Mapping[str, Outcome] = {
    "CONFIRMED": Outcome.HOLDS,
    "CANNOT_CONFIRM": Outcome.UNKNOWN,
    "PRE_UNSAT": Outcome.VACUOUS,
    "POST_FAIL": Outcome.REFUTED,
    "POST_ERR": Outcome.ERROR,
    "EXEC_ERR": Outcome.ERROR,
    "SYNTAX_ERR": Outcome.ERROR,
    "IMPORT_ERR": Outcome.ERROR,
}

Contract = Callable[..., Any]


@dataclass
class Answer:
    """What CrossHair said of one function, and the arguments of its counterexample."""

    outcome: Outcome
    reason: str
    values: dict[str, Any] | None = None
    paths: int = 0
    seconds: float = 0.0


@dataclass
class Watch:
    """What was seen of one exploration from inside."""

    entered: int = 0
    judged: int = 0
    raised: str = ""
    values: dict[str, Any] | None = None
    stats: Counter[str] = field(default_factory=Counter)


def consult(contract: Contract, post: str, limit: float, most_paths: int = sys.maxsize) -> Answer:
    """Ask CrossHair about a function whose postcondition reads `post`, for at most `limit` seconds of CPU time."""
    if limit <= 0:
        return Answer(Outcome.TIMEOUT, "no time was left for it")
    watch, began = Watch(), time.process_time()
    try:
        checkables = analyze_function(contract, options(limit, most_paths, watch.stats))
        problem = unsuitable(checkables, post)
        asked = [watched(c, watch) for c in checkables if isinstance(c, ConditionCheckable)]
        with uncollected():
            messages = [] if problem else run_checkables(asked)
    except Exception as error:  # CrossHair's own failure is an outcome, and never an answer
        return Answer(Outcome.ERROR, f"CrossHair failed: {type(error).__name__}: {error}")
    used = time.process_time() - began
    answer = Answer(Outcome.ERROR, problem) if problem else read(messages, watch)
    answer.paths, answer.seconds = watch.stats["num_paths"], round(used, 3)
    if answer.outcome is Outcome.UNKNOWN and answer.paths >= most_paths:
        answer.outcome, answer.reason = Outcome.BOUND_HIT, f"the bound of {most_paths} paths was reached"
    elif answer.outcome is Outcome.UNKNOWN and used >= 0.95 * limit:
        answer.outcome, answer.reason = Outcome.TIMEOUT, f"not confirmed within {limit:.1f} s of CPU time"
    return answer


@contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage is collected inside, but all of it before.

    z3 gives the number of a collected term to a later one, and what it answers depends on numbers: a counterexample
    would depend on when the interpreter collects, and so on all that was imported before.
    """
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def options(limit: float, most_paths: int, stats: Counter[str]) -> AnalysisOptionSet:
    """Every option that can end an exploration early, set here, so that no comment in a source file sets it."""
    return AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316],
        enabled=True,
        specs_complete=False,
        report_all=True,
        per_condition_timeout=limit,
        per_path_timeout=max(1.0, limit / 2),
        max_iterations=most_paths,
        max_uninteresting_iterations=sys.maxsize,
        stats=stats,
    )


def unsuitable(checkables: Sequence[Any], post: str) -> str:
    """Why CrossHair's reading of the docstring is no claim of ours, or an empty text."""
    if not checkables:
        return "CrossHair found no contract in the docstring"
    if not isinstance(checkables[0], ConditionCheckable):
        said = "; ".join(m.message for m in checkables[0].analyze())
        return f"CrossHair cannot read the contract: {said}"
    if len(checkables) > 1:
        return f"the docstring states {len(checkables)} postconditions, not one"
    conditions = checkables[0].conditions
    if conditions.post[0].expr_source.strip() != post:
        return f"the postcondition reads {conditions.post[0].expr_source!r}, not {post!r}"
    if conditions.raises:
        return "the docstring declares exceptions, which CrossHair would count as success"
    return ""


def watched(checkable: ConditionCheckable, watch: Watch) -> ConditionCheckable:
    """The same question: counts paths, keeps a counterexample's arguments, ignores contracts of called functions."""
    conditions = checkable.conditions
    post = conditions.post[0]

    @functools.wraps(conditions.fn)
    def entered(*args: Any, **kwargs: Any) -> Any:
        watch.entered += 1
        return conditions.fn(*args, **kwargs)

    def judged(scope: Mapping[str, object]) -> Any:
        watch.judged += 1
        assert post.evaluate is not None
        return post.evaluate(scope)

    def guarded(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def assumed(scope: Mapping[str, object]) -> Any:
            try:
                return evaluate(scope)
            except Exception as error:
                watch.raised = f"a pre: line raised {type(error).__name__}"
                raise

        return assumed

    def kept(args: inspect.BoundArguments, returned: object, reprs: Any) -> tuple[str, str]:
        watch.values = dict(args.arguments)
        return ", ".join(f"{k}={v!r}" for k, v in args.arguments.items()), repr(returned)

    pre = [p if p.evaluate is None else replace(p, evaluate=guarded(p.evaluate)) for p in conditions.pre]
    told = replace(
        conditions, fn=entered, pre=pre, post=[replace(post, evaluate=judged)], counterexample_description_maker=kept
    )
    return ConditionCheckable(checkable.ctxfn, replace(checkable.options, analysis_kind=()), told)


def read(messages: Sequence[Any], watch: Watch) -> Answer:
    """The answer in CrossHair's messages. Nothing, several kinds or an unknown kind is an ERROR."""
    kinds = {m.state.name for m in messages}
    if len(kinds) != 1:
        return Answer(Outcome.ERROR, f"CrossHair gave {'several answers' if kinds else 'no answer'}: {sorted(kinds)}")
    kind, said = kinds.pop(), messages[0].message
    outcome = ANSWER.get(kind)
    if watch.raised:
        return Answer(Outcome.ERROR, f"{watch.raised}, which CrossHair would read as an assumption: {said}")
    if outcome is None:
        return Answer(Outcome.ERROR, f"CrossHair said {kind}, which gradproof does not know: {said}")
    if outcome is Outcome.HOLDS:
        return confirmed(watch)
    if outcome is Outcome.VACUOUS and (watch.entered or not watch.stats["exhaustion"]):
        return Answer(Outcome.UNKNOWN, f"{watch.entered} paths entered the body and none was finished")
    if outcome is Outcome.REFUTED and watch.values is None:
        return Answer(Outcome.ERROR, f"CrossHair gave a counterexample without arguments: {said}")
    return Answer(outcome, f"{kind}: {said}", watch.values if outcome is Outcome.REFUTED else None)


def confirmed(watch: Watch) -> Answer:
    """What a CONFIRMED is worth: HOLDS only if the tree was exhausted and each path that began was judged."""
    if watch.stats["exhaustion"] < 1:
        return Answer(Outcome.UNKNOWN, "CrossHair said CONFIRMED although its paths were not exhausted")
    if watch.judged == 0:
        return Answer(Outcome.VACUOUS, "no path reached the postcondition")
    if watch.judged != watch.entered:
        return Answer(Outcome.UNKNOWN, f"{watch.entered - watch.judged} of {watch.entered} paths were dropped")
    return Answer(Outcome.HOLDS, f"confirmed over all paths; {watch.judged} of them reached the postcondition")


def sampled(contract: Contract) -> tuple[int, str]:
    """Call a contract of ints and truth values on arguments that meet its `pre:` lines.

    Returns the number of calls and the first disagreement with a confirmation. Other arguments are not sampled.
    """
    checkable = analyze_function(contract, options(1.0, 1, Counter()))[0]
    assert isinstance(checkable, ConditionCheckable)
    types = {p.name: p.annotation for p in checkable.conditions.sig.parameters.values()}
    if not set(types.values()) <= {int, bool}:
        return 0, ""
    pre = [p.evaluate for p in checkable.conditions.pre if p.evaluate is not None]
    draws, done = random.Random(20260115), 0
    for _ in range(TRIES):
        if done == SAMPLES:
            break
        values = {name: draws.choice(BITS if kind is bool else SPAN) for name, kind in types.items()}
        if all(condition(values) for condition in pre):
            done += 1
            fails, said = broken(contract, values)
            if fails is not False:
                return done, f"{values}: {said}"
    return done, ""


def broken(contract: Contract, values: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether plain Python finds the function false on these arguments; None where it raises."""
    try:
        returned = contract(**values)
    except Exception as error:
        return None, f"raised {type(error).__name__}: {error}"
    return not returned, f"returned {returned!r}"
