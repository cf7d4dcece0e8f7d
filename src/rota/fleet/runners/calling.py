"""Calling an agent's function: its arguments, its exceptions, its return value.

The same code runs on a slot's thread and, inside `call_in_worker`, in a worker process. How a call ended is one plain
value, `FunctionOutcome`, which the worker sends back.

A function gets the payload as keyword arguments. If its first parameter is named ctx, run or context, or is annotated
with RunContext, it gets the context there. An async function runs in its own event loop; when the run is asked to stop,
its task is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from rota.fleet.runners.context import RunCancelled, RunContext, RunFacts, RunYielded, WorkerChannel
from rota.fleet.runners.printing import keep_prints
from rota.host import worker
from rota.host.main_module import MAIN_NAME
from rota.host.process_cpu import thread_cpu_s
from rota.host.resource_limits import in_group, limited
from rota.host.thread_settings import Scheduling, ThreadSettings, apply_settings, read_settings
from rota.model.checks import RESULT_BYTES_MAX, check_finite
from rota.model.retries import NOT_RETRYABLE
from rota.model.work import Limits

__all__ = [
    "CallPlacement",
    "FunctionOutcome",
    "SetCancel",
    "call",
    "call_in_worker",
    "error_name",
    "load_function",
    "parameters_of",
]

CONTEXT_NAMES = frozenset({"ctx", "run", "context"})
TRACEBACK_CHARS_MAX = 4_000  # the end of it, where the error was raised
ERROR_CHARS_MAX = 4_000

SetCancel = Callable[[Callable[[], None]], None]  # receives the function that cancels the task, from any thread


class FunctionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    outcome: str | None = None
    result: Any = None
    yield_after_s: float | None = None
    cpu_s: float = 0.0


def call(function: Callable[..., Any], facts: RunFacts, context: RunContext, set_cancel: SetCancel) -> FunctionOutcome:
    """Call a function and wait for it. Every exception becomes part of the outcome."""
    before_s = thread_cpu_s()
    try:
        mismatch = _mismatch(function, tuple(facts.payload))
        if mismatch is not None:
            return FunctionOutcome(exit_kind="failed", outcome="payload_mismatch", result={"error": mismatch})
        form = _form(function)
        first = (context,) if form.takes_context else ()
        value = function(*first, **facts.payload)
        if form.is_async:
            value = asyncio.run(_await_task(value, set_cancel))
        ended = _returned(context._result if value is None else value)
    except RunYielded as yielded:
        ended = FunctionOutcome(yield_after_s=max(yielded.after_s, 0.0))
    except (RunCancelled, asyncio.CancelledError):
        ended = FunctionOutcome(exit_kind="cancelled", result={"error": f"stopped on request: {context.stop_reason}"})
    except BaseException as problem:  # SystemExit too: it ends the run, not the supervisor
        ended = _raised(problem, facts.non_retryable)
    return msgspec.structs.replace(ended, cpu_s=thread_cpu_s() - before_s)


async def _await_task(coroutine: Coroutine[Any, Any, Any], set_cancel: SetCancel) -> Any:
    """Await the coroutine of an async function as a task that another thread can cancel."""
    task = asyncio.ensure_future(coroutine)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            return  # the loop is closed: the task has ended

    set_cancel(cancel)
    return await task


# --- arguments -------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """How a function is called."""

    signature: inspect.Signature
    takes_context: bool  # as its first argument
    is_async: bool


@lru_cache(maxsize=1024)
def _form(function: Callable[..., Any]) -> _Form:
    signature = inspect.signature(function)
    first = next(iter(signature.parameters.values()), None)
    return _Form(signature, first is not None and _takes_context(first), inspect.iscoroutinefunction(function))


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that the payload fills: all but the context."""
    form = _form(function)
    return list(form.signature.parameters.values())[1 if form.takes_context else 0 :]


def _takes_context(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    annotation = parameter.annotation
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name.lstrip("_") in CONTEXT_NAMES or named.rpartition(".")[2] == RunContext.__name__


@lru_cache(maxsize=1024)
def _mismatch(function: Callable[..., Any], keys: tuple[str, ...]) -> str | None:
    """Return why a payload with these keys does not fit the function's parameters; None if it fits."""
    form = _form(function)
    first = (None,) if form.takes_context else ()
    try:
        form.signature.bind(*first, **dict.fromkeys(keys))
    except TypeError as problem:
        parameters = [str(each) for each in form.signature.parameters.values()][len(first) :]
        name = getattr(function, "__name__", "the function")
        error = (
            f"the payload does not fit {name}({', '.join(parameters)}): {problem}; "
            f"the payload has {', '.join(keys) or 'no keys'}"
        )
        return error[:ERROR_CHARS_MAX]
    return None


# --- result ----------------------------------------------------------------------------------------


def _returned(value: Any) -> FunctionOutcome:
    """The outcome for a returned value, converted to JSON."""
    if value is None:
        return FunctionOutcome()
    try:
        encoded = msgspec.json.encode(value)
        check_finite(value, encoded)
    except Exception as problem:  # a key, a number or an object that JSON cannot represent
        error = f"the returned value is not JSON: {problem}"
        return FunctionOutcome(exit_kind="failed", outcome="result_not_json", result={"error": error[:ERROR_CHARS_MAX]})
    if len(encoded) > RESULT_BYTES_MAX:
        error = f"the returned value has {len(encoded):,} bytes of JSON; the maximum is {RESULT_BYTES_MAX:,}"
        return FunctionOutcome(exit_kind="failed", outcome="result_too_large", result={"error": error})
    return FunctionOutcome(result=msgspec.json.decode(encoded))


def error_name(kind: type[BaseException]) -> str:
    """Return the name by which `non_retryable` knows a type of error: `ValueError`, `shop.errors.SoldOut`."""
    module = "__main__" if kind.__module__ == MAIN_NAME else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _is_final(problem: BaseException, names: tuple[str, ...]) -> bool:
    """Whether an error, or a type that it inherits from, is among the names; a class may be named without module."""
    return any(error_name(kind) in names or kind.__name__ in names for kind in type(problem).__mro__[:-1])


def _raised(problem: BaseException, non_retryable: tuple[str, ...]) -> FunctionOutcome:
    kind = type(problem).__name__
    try:
        text = str(problem)
    except Exception:  # its __str__ is the user's code
        text = "(its message could not be read)"
    frames = traceback.extract_tb(problem.__traceback__)
    users = [frame for frame in frames if frame.filename != __file__] or frames  # without the frames of this file
    trace = "".join(traceback.format_list(users))[-TRACEBACK_CHARS_MAX:]
    error = f"{kind}: {text}"[:ERROR_CHARS_MAX]
    result = {"error": _as_utf8(error), "type": kind, "traceback": _as_utf8(trace)}
    outcome = "over_memory" if isinstance(problem, MemoryError) else None
    if non_retryable and _is_final(problem, non_retryable):
        outcome = NOT_RETRYABLE
    return FunctionOutcome(exit_kind="failed", outcome=outcome, result=result)


def _as_utf8(text: str) -> str:
    """Replace what cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


# --- in a worker process ---------------------------------------------------------------------------


def load_function(path: str) -> Callable[..., Any]:
    """Import the function at `module:name` and unwrap it if it became an agent there."""
    function = pkgutil.resolve_name(path)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not callable(function):
        raise TypeError(f"{path} is not a function")
    return function  # type: ignore[no-any-return]  # checked just above


class CallPlacement(NamedTuple):
    """Where a call in a worker process runs: the files of its control group, and its scheduling."""

    group: Sequence[tuple[str, str]]
    scheduling: Scheduling | None


def call_in_worker(
    path: str, facts: RunFacts, limits: Limits, echo: bool = False, placement: CallPlacement | None = None
) -> FunctionOutcome:
    """Load a function in a worker process and call it under its limits."""
    try:
        function = load_function(path)
    except Exception as problem:
        error = f"cannot load {path}: {type(problem).__name__}: {problem}"
        result = {"error": _as_utf8(error)[:ERROR_CHARS_MAX]}
        return FunctionOutcome(exit_kind="failed", outcome="not_found", result=result)
    channel = WorkerChannel()
    with _placed(placement) as refused, limited(limits), keep_prints(channel.log, echo=echo):
        for setting, why in refused.items():
            channel.log(f"rota: {setting} is not in force: {why}\n".encode())
        return call(function, facts, RunContext(facts, channel), lambda cancel: _cancel_on_stop(channel, cancel))


@contextmanager
def _placed(placement: CallPlacement | None) -> Iterator[dict[str, str]]:
    """Call in a control group and under a scheduling policy; yields which setting was refused, with the reason."""
    if placement is None:
        yield {}
        return
    before = read_settings()
    with in_group(placement.group):
        refused = apply_settings(ThreadSettings(scheduling=placement.scheduling))
        try:
            yield refused
        finally:
            if placement.scheduling is not None:
                apply_settings(ThreadSettings(scheduling=before.scheduling))


def _cancel_on_stop(channel: WorkerChannel, cancel: Callable[[], None]) -> None:
    """In the event loop of an async function: check for a stop request whenever a message arrives."""
    loop = asyncio.get_running_loop()
    fd = worker.fileno()

    def check() -> None:
        if channel.stop_reason is not None:
            loop.remove_reader(fd)
            cancel()

    loop.add_reader(fd, check)
