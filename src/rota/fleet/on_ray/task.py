"""What runs on a node of the cluster: a function on the main thread of Ray's worker process, or a program beside it.

A program is run by the same runners as on the supervisor's machine, started by a reaper of the worker process: if Ray
kills that process, the reaper kills the program. Ray's `cancel` raises KeyboardInterrupt on the main thread; a function
ends with it, a program gets SIGTERM.

A run that is over soon sends nothing but its result, which also brings what it printed. One thread of the worker
process, the *companion*, looks four times a second whether there is a longer one: it then tells where the run is, sends
what was printed, and waits for a stop request.

    first look at a run    post "started"; from now on wait for a stop request between the looks
    each look              post what was printed

A task whose run was short goes on with the next run of the same agent, if the supervisor has one soon: for Ray, that is
a message instead of a task, and costs a tenth.

Every request of a run (charge, checkpoint, …) goes through the mailbox and waits for its reply, so that it is recorded
when the call returns, as on the supervisor's machine.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import ray

from rota.clock import SystemClock
from rota.decoding import convert, decode_json
from rota.errors import RotaError
from rota.fleet.on_ray.mailbox import MAILBOX_NAMESPACE
from rota.fleet.runners.calling import call, load_function
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.context import RunContext, facts_of
from rota.fleet.runners.contract import Assignment, Runner, RunOutcome, StopHandle
from rota.fleet.runners.ndjson import NdjsonRunner
from rota.fleet.runners.printing import keep_prints
from rota.fleet.runners.program import output_tail
from rota.fleet.runners.resources import RunnerResources
from rota.model.work import Limits, ReadyEntry

__all__ = ["NodeChannel", "run_task"]

SHORT_S = 1.0  # after a run that took longer than this, a new task costs little beside it
LOOK_S = 0.25  # how often the companion looks at the run
COMPANION_IDLE_S = 10.0  # without a run for so long, the companion ends
LOG_BYTES = 64 * 1024  # of output that is sent at once
TAIL_BYTES = 4_096  # of the output, in a result
WAIT_SLICE_S = 0.1  # how late the main thread notices that Ray cancels a program
ENDED = "fenced"  # the reason for a run that its supervisor has given up
FUNCTION_LIMITS = ("cpu_s", "memory_bytes", "processes", "open_files")
_clock = SystemClock()
_PAUSE = threading.Event()  # never set: to wait for some time


def run_task(number: int, spec: bytes, function: bytes, place: bytes) -> bytes:
    """Execute an assignment, and those that are handed on after it; return the answer that was not sent yet.

    `number` is that of the task; 0: nothing is handed on.
    `place` has the name of the mailbox, and the folders from which the supervisor imports; where the node has them, it
    imports from there, too. All arguments and the result are bytes, which Ray passes on without pickling.
    """
    mailbox = _prepared(place)
    while True:
        run, answer, took_s = _run(spec, function, mailbox)
        if not number or took_s > SHORT_S:
            return answer
        # not `ray.get`, which tells the node that this process waits, and again that it does not
        spec = _mailbox_named(mailbox).exchange.remote(number, run, answer).future().result()
        if not spec:
            return b""


def _run(spec: bytes, function: bytes, mailbox: str) -> tuple[str, bytes, float]:
    """Execute an assignment; return which run it was, its answer, and the seconds that it took.

    An answer has the outcome as JSON, the node's id, the number of messages and the last output.
    """
    started_at = _clock.monotonic()
    assignment = decode_json(spec, Assignment)
    is_program = assignment.settings.executes != "callable"
    channel = NodeChannel(f"{assignment.entry.sched_id}:{assignment.entry.token}", mailbox, node_id())
    channel.tells_start = not is_program
    _companion.accompany(channel)
    try:
        execute = _run_program if is_program else _call_function
        outcome = execute(assignment, function or None, channel)
    finally:
        _companion.leave(channel)
    took_s = _clock.monotonic() - started_at
    outcome = msgspec.structs.replace(outcome, usage={**outcome.usage, "wall_ms": round(took_s * 1000)})
    answer = (msgspec.json.encode(outcome), channel.node, channel.sent, channel.rest())
    return channel.run, msgspec.msgpack.encode(answer), took_s


@cache
def _prepared(place: bytes) -> str:
    """Import from the supervisor's folders from now on; return the name of the mailbox."""
    mailbox, folders = convert(msgspec.msgpack.decode(place), tuple[str, list[str]])
    sys.path.extend(folder for folder in folders if folder not in sys.path and Path(folder).is_dir())
    return mailbox


@cache
def _mailbox_named(name: str) -> Any:
    return ray.get_actor(name, namespace=MAILBOX_NAMESPACE)


@cache
def node_id() -> str:
    """The id of this node."""
    return str(ray.get_runtime_context().get_node_id())


# --- functions -------------------------------------------------------------------------------------


def _call_function(assignment: Assignment, pickled: bytes | None, channel: NodeChannel) -> RunOutcome:
    try:
        function = _loaded(pickled, assignment.settings.function)
    except Exception as problem:  # an import may raise anything
        where = assignment.settings.function or f"the function of agent {assignment.agent.name}"
        error = f"cannot load {where} on node {channel.node}: {type(problem).__name__}: {problem}"
        return RunOutcome(exit_kind="failed", outcome="not_found", result={"error": error})
    channel.advisories = _unenforced(assignment.settings.limits)
    facts = facts_of(assignment)
    with keep_prints(channel.log):
        ended = call(function, facts, RunContext(facts, channel), channel.set_cancel)
    result = ended.result
    if ended.exit_kind in ("failed", "crashed") and isinstance(result, dict):
        printed = output_tail(channel)
        channel.log(f"{result.get('traceback', '')}{result.get('error', '')}\n".encode("utf-8", "replace"))
        result = {**result, "output_tail": printed} if printed else result
    return RunOutcome(
        exit_kind=ended.exit_kind,
        outcome=ended.outcome,
        result=result,
        cpu_ms=round(ended.cpu_s * 1000),
        yield_after_s=ended.yield_after_s,
    )


@cache
def _loaded(pickled: bytes | None, path: str | None) -> Callable[..., Any]:
    """Return the function at a path, or one that was sent. The process keeps it for the next run."""
    if path is not None:
        return load_function(path)
    if pickled is None:
        raise RotaError("the supervisor has no function of this name")
    function: Callable[..., Any] = pickle.loads(pickled)  # noqa: S301  # from the supervisor that owns this run
    return function


def _unenforced(limits: Limits) -> list[str]:
    return [
        f"{field} = {value:,} is not enforced: a function on Ray cannot be limited"
        for field in FUNCTION_LIMITS
        if (value := getattr(limits, field)) is not None
    ]


# --- programs --------------------------------------------------------------------------------------


@cache
def _runner(executes: str) -> Runner:
    """The runner of this process. Its reaper lives as long as the process."""
    resources = RunnerResources()
    return NdjsonRunner(resources) if executes == "ndjson" else CommandRunner(resources)


def _run_program(assignment: Assignment, _function: bytes | None, channel: NodeChannel) -> RunOutcome:
    """Run a program on a thread of its own: the main thread is where Ray interrupts."""
    ended: list[RunOutcome] = []
    done = threading.Event()

    def run() -> None:
        try:
            ended.append(_runner(assignment.settings.executes).run(assignment, channel))
        except BaseException as problem:  # a defect of the runner, or a process that cannot start threads
            error = f"{type(problem).__name__}: {problem}"
            ended.append(RunOutcome(exit_kind="crashed", outcome="runner_failed", result={"error": error}))
        finally:
            done.set()

    threading.Thread(target=run, name="rota-program", daemon=True).start()
    while True:
        try:
            while not done.wait(WAIT_SLICE_S):
                pass
            return ended[0]
        except KeyboardInterrupt:
            channel.terminate()


# --- messages --------------------------------------------------------------------------------------


class NodeChannel:
    """The run channel on a node: what a run tells its supervisor, and asks of it, through the mailbox."""

    def __init__(self, run: str, mailbox: str, node: str) -> None:
        self.node = node
        self.sent = 0  # messages so far
        self.tells_start = True  # the supervisor was not told yet; a program's runner tells it itself
        self.advisories: Sequence[str] = ()
        self.run = run
        self._mailbox_name = mailbox
        self._lock = threading.Lock()  # guards all below, and the order of messages
        self._unsent = bytearray()  # output
        self._tail = bytearray()
        self._numbers = itertools.count(1)
        self._stopped = threading.Event()
        self._reason: str | None = None
        self._handle: StopHandle | None = None
        self._cancel: Callable[[], None] | None = None
        self._stop_request: Any = None  # a reference to the reason for which the run is to stop

    @property
    def _mailbox(self) -> Any:
        return _mailbox_named(self._mailbox_name)

    def settings_changed(self, *, advisories: Sequence[str], enforced: Sequence[str]) -> None:
        """`cpu` settings hold no run on a cluster."""

    # --- for the companion and the task ----------------------------------------------------------

    def look(self) -> None:
        """Tell that the run has started, send what was printed, and wait a little for a stop request."""
        if self.tells_start:
            self._tell_started(None, self.advisories, ())
        self._flush()
        if self._reason is not None:
            _PAUSE.wait(LOOK_S)
            return
        if self._stop_request is None:
            self._stop_request = self._mailbox.stop.remote(self.run)
        ready, _ = ray.wait([self._stop_request], timeout=LOOK_S)
        if ready:
            self._stop(str(ray.get(self._stop_request)) or ENDED)

    def rest(self) -> bytes:
        """Return the output that was not sent."""
        with self._lock:
            rest, self._unsent = bytes(self._unsent), bytearray()
        return rest

    def set_cancel(self, cancel: Callable[[], None]) -> None:
        """The function runs as a task, which `cancel` cancels."""
        with self._lock:
            self._cancel = cancel
            is_stopped = self._reason is not None
        if is_stopped:
            cancel()

    def terminate(self) -> None:
        """Send SIGTERM to a program."""
        if self._handle is not None:
            self._handle.terminate()

    def _stop(self, reason: str) -> None:
        with self._lock:
            self._reason, cancel, handle = reason, self._cancel, self._handle
        self._stopped.set()
        if cancel is not None:
            cancel()
        if handle is not None and not handle.request_stop(reason):
            handle.terminate()

    # --- the run channel -------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        return self._reason

    def started(
        self,
        stop_handle: StopHandle,
        *,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
    ) -> None:
        """A program has started."""
        with self._lock:
            self._handle = stop_handle
        self._tell_started(os_pid, advisories, enforced)
        if self._reason is not None:
            self._stop(self._reason)

    def log(self, data: bytes) -> None:
        """Append output to the log."""
        with self._lock:
            self._unsent += data
            self._tail += data[-TAIL_BYTES:]
            del self._tail[:-TAIL_BYTES]
            is_much = len(self._unsent) >= LOG_BYTES
        if is_much:
            self._flush()

    def coordinates(self, run_id: str) -> None:
        """Nothing: a graph run is coordinated by a supervisor."""

    def log_tail(self) -> str:
        """Return the end of the log."""
        with self._lock:
            return self._tail.decode("utf-8", "replace")

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        self._post("progress", msgspec.json.encode((fraction, text)))

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed."""
        return self._stopped.wait(timeout_s)

    def charge(
        self, amounts: Mapping[str, int], model: str | None = None, *, node: str | None = None
    ) -> dict[str, int]:
        """Record usage and return what is left."""
        return dict(self._ask("charge", dict(amounts), model, **({} if node is None else {"node": node})))

    def remaining(self, node: str | None = None) -> dict[str, int]:
        """Return what is left."""
        return dict(self._ask("remaining", *(() if node is None else (node,))))

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state of the work."""
        self._ask("checkpoint", dict(state))

    def emit(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Append an event of the agent's own."""
        return int(self._ask("emit", kind, dict(payload)))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit."""
        self._ask("throttled", retry_after_s, name)

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts."""
        return str(self._ask("acquire", name, dict(amounts), wait_s))

    def settle(self, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None) -> dict[str, int]:
        """Say what was used of what was acquired."""
        return dict(self._ask("settle", key, dict(used or {}), **({} if node is None else {"node": node})))

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **options: Any) -> int:
        """Enqueue a child; return its sched_id."""
        return int(self._ask("spawn", agent, dict(payload), dict(lent), **options))

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended."""
        return list(self._ask("wait_for", list(sched_ids), wait_s))

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Send a request and wait for its reply. An error of the supervisor is raised here."""
        self._flush()  # what was printed before comes first
        body = msgspec.json.encode((args, options))
        with self._lock:
            reply = self._mailbox.ask.remote(self.run, next(self._numbers), method, body)
            self.sent += 1
        succeeded, value, stop_reason = pickle.loads(ray.get(reply))  # noqa: S301  # from the supervisor of this run
        if stop_reason is not None and self._reason is None:  # a charge over the budget, say: it stops right here
            self._stop(stop_reason)
        if not succeeded:
            raise value
        return value

    def _tell_started(self, os_pid: int | None, advisories: Sequence[str], enforced: Sequence[str]) -> None:
        self.tells_start = False
        self._post("started", msgspec.json.encode((self.node, os_pid, list(advisories), list(enforced))))

    def _flush(self) -> None:
        with self._lock:
            if self._unsent:
                self._mailbox.post.remote(self.run, "log", bytes(self._unsent))
                self._unsent.clear()
                self.sent += 1

    def _post(self, operation: str, body: bytes) -> None:
        with self._lock:
            self._mailbox.post.remote(self.run, operation, body)
            self.sent += 1


class _Companion:
    """The thread of a worker process that looks at the current run; it exists while there are runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: NodeChannel | None = None
        self._process = 0  # in which the thread was started
        self._idle_s = 0.0

    def accompany(self, run: NodeChannel) -> None:
        """Look after a run from now on."""
        with self._lock:
            self._run, self._idle_s = run, 0.0
            if self._process == os.getpid():
                return
            self._process = os.getpid()
        threading.Thread(target=self._serve, name="rota-companion", daemon=True).start()

    def leave(self, run: NodeChannel) -> None:
        """The run has ended."""
        with self._lock:
            if self._run is run:
                self._run = None

    def _serve(self) -> None:
        while True:
            seen = self._run
            _PAUSE.wait(LOOK_S)
            with self._lock:
                run = self._run
                self._idle_s = 0.0 if run is not None else self._idle_s + LOOK_S
                if self._idle_s >= COMPANION_IDLE_S:
                    self._process = 0
                    return
            while run is not None and run is seen and run is self._run:
                self._look(run)

    @staticmethod
    def _look(run: NodeChannel) -> None:
        try:
            run.look()
        except Exception:  # the mailbox is gone, and with it the supervisor: Ray ends this process
            _PAUSE.wait(LOOK_S)


_companion = _Companion()
