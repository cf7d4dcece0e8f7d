"""Calling an agent's function: what it is given, what it may raise, and what it returns.

The same code runs on a slot's thread and in a worker process; in the worker `call_in_worker` stands around it. How a
call ended is one plain value, `Called`, which travels between the two.

A function gets the payload as keyword arguments. If its first parameter is named ctx, run or context, or is annotated
with RunContext, it gets the context there. An async function runs in a loop of its own; when the run is asked to stop,
its task is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import msgspec

from rota.fleet.runners.context import Cancelled, RunContext, RunFacts, WorkerTalk, YieldBack
from rota.host import worker
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.work import Limits

__all__ = ["Called", "Cancelling", "call", "call_in_worker", "found"]

CONTEXT_NAMES = frozenset({"ctx", "run", "context"})
TRACEBACK_CHARS_MAX = 4_000  # its end: that is where it happened
ERROR_CHARS_MAX = 4_000

Cancelling = Callable[[Callable[[], None]], None]  # is given what cancels the task, from any thread


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    outcome: str | None = None
    result: Any = None
    back_in_s: float | None = None
    cpu_s: float = 0.0


def call(function: Callable[..., Any], facts: RunFacts, context: RunContext, cancelling: Cancelling) -> Called:
    """Call a function and wait for it. Nothing it raises comes out of here."""
    before_s = _thread_cpu_s()
    try:
        given = _arguments(function, facts, context)
        if isinstance(given, Called):
            return given
        returned = given() if not inspect.iscoroutinefunction(function) else asyncio.run(_awaited(given, cancelling))
        called = _returned(returned)
    except YieldBack as back:
        called = Called(back_in_s=max(back.after_s, 0.0))
    except (Cancelled, asyncio.CancelledError):
        called = Called(exit_kind="cancelled", result={"error": f"it was asked to stop: {context.stop_reason}"})
    except BaseException as problem:  # SystemExit too: an agent's fault ends its run, not its supervisor
        called = _raised(problem)
    return msgspec.structs.replace(called, cpu_s=_thread_cpu_s() - before_s)


def _thread_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


async def _awaited(given: Callable[[], Any], cancelling: Cancelling) -> Any:
    """Await a function's coroutine in a task that can be cancelled from outside."""
    task = asyncio.ensure_future(given())
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            return  # the loop has closed: there is nothing left to cancel

    cancelling(cancel)
    return await task


# --- what it is given ------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """A function's signature, and whether its first parameter is for the context."""
    signature = inspect.signature(function)
    first = next(iter(signature.parameters.values()), None)
    return signature, first is not None and _is_for_context(first)


def _is_for_context(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name.lstrip("_") in CONTEXT_NAMES or named.rpartition(".")[2] == RunContext.__name__


def _arguments(function: Callable[..., Any], facts: RunFacts, context: RunContext) -> Callable[[], Any] | Called:
    """The call, ready to be made; or that the payload does not fit."""
    signature, wants_context = _signature(function)
    first = (context,) if wants_context else ()
    try:
        bound = signature.bind(*first, **facts.payload)
    except TypeError as problem:
        wanted = [str(each) for each in signature.parameters.values()][len(first) :]
        name = getattr(function, "__name__", "the function")
        error = (
            f"{name}({', '.join(wanted)}) cannot be called with this payload: {problem} "
            f"(it has {', '.join(facts.payload) or 'nothing'})"
        )
        return Called(exit_kind="failed", outcome="payload_mismatch", result={"error": error[:ERROR_CHARS_MAX]})
    return lambda: function(*bound.args, **bound.kwargs)


# --- what became of it -----------------------------------------------------------------------------


def _returned(value: Any) -> Called:
    """A value that was returned, as the JSON it is kept as."""
    if value is None:
        return Called()
    try:
        encoded = msgspec.json.encode(value)
    except Exception as problem:  # a key, a number or an object that JSON has no word for
        error = f"what it returned is not JSON: {problem}"
        return Called(exit_kind="failed", outcome="result_not_json", result={"error": error[:ERROR_CHARS_MAX]})
    if len(encoded) > RESULT_BYTES_MAX:
        error = f"what it returned is {len(encoded):,} bytes of JSON; {RESULT_BYTES_MAX:,} are allowed"
        return Called(exit_kind="failed", outcome="result_too_large", result={"error": error})
    return Called(result=msgspec.json.decode(encoded))


def _raised(problem: BaseException) -> Called:
    kind = type(problem).__name__
    try:
        text = str(problem)
    except Exception:  # its __str__ is the user's code
        text = "(its message could not be read)"
    # the first frames are ours
    frames = traceback.extract_tb(problem.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__] or frames
    trace = "".join(traceback.format_list(theirs))[-TRACEBACK_CHARS_MAX:]
    told = f"{kind}: {text}"[:ERROR_CHARS_MAX]
    result = {"error": _sound(told), "type": kind, "traceback": _sound(trace)}
    outcome = "over_memory" if isinstance(problem, MemoryError) else None
    return Called(exit_kind="failed", outcome=outcome, result=result)


def _sound(text: str) -> str:
    """Text that can be written as UTF-8, whatever the function put into it."""
    return text.encode("utf-8", "replace").decode()


# --- in a worker process ---------------------------------------------------------------------------


def found(where: str) -> Callable[..., Any]:
    """The function at `module:name`; behind whatever was put around it when it became an agent."""
    function = pkgutil.resolve_name(where)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not callable(function):
        raise TypeError(f"{where} is not a function")
    return function  # type: ignore[no-any-return]  # checked just above


def call_in_worker(where: str, facts: RunFacts, limits: Limits) -> Called:
    """What a warm worker runs: find the function, put the limits on, call it."""
    try:
        function = found(where)
    except Exception as problem:
        error = f"{where} cannot be loaded: {type(problem).__name__}: {problem}"
        return Called(exit_kind="failed", outcome="not_found", result={"error": _sound(error)[:ERROR_CHARS_MAX]})
    talk = WorkerTalk()
    with limited(limits):
        return call(function, facts, RunContext(facts, talk), lambda cancel: _cancel_when_told(talk, cancel))


def _cancel_when_told(talk: WorkerTalk, cancel: Callable[[], None]) -> None:
    """In the loop of an async function: look what was told whenever something comes."""
    loop = asyncio.get_running_loop()
    fd = worker.fileno()

    def look() -> None:
        if talk.stop_reason is not None:
            loop.remove_reader(fd)
            cancel()

    loop.add_reader(fd, look)


_LIMITED = {
    "memory_bytes": resource.RLIMIT_DATA,
    "processes": resource.RLIMIT_NPROC,
    "open_files": resource.RLIMIT_NOFILE,
}


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Put limits on this process while a function runs, and take them off again.

    They are soft limits, since a worker serves others afterwards: they hold whoever does not undo them on purpose.
    """
    wanted = {which: getattr(limits, field) for field, which in _LIMITED.items() if getattr(limits, field) is not None}
    if limits.cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        wanted[resource.RLIMIT_CPU] = int(used.ru_utime + used.ru_stime + limits.cpu_s) + 1
    before = {which: resource.getrlimit(which) for which in wanted}
    try:
        for which, soft in wanted.items():
            hard = before[which][1]
            resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        yield
    finally:
        for which, limit in before.items():
            resource.setrlimit(which, limit)
