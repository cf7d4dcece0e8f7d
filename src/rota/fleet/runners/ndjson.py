"""The ndjson runner: a program that exchanges messages with its supervisor (protocol.py).

Messages are newline-delimited JSON on standard input and output; standard error goes to the log. The slot's thread
reads the program and holds the conversation:

    handshake ──ready──▶ running ──exit, yield──▶ finished
        └─ no ready within the timeout, or another message first: handshake_failed; the run never started

Nothing here waits for the agent. Messages to it go through a send queue: what the pipe does not accept is written
later, so an agent that does not read costs memory up to a limit, and no time. A request that takes long (`wait`,
`acquire`) is
answered by its own thread, so that the agent's messages are read in the meantime. A program that does not exit after
its final message is killed after a grace period; the message still counts.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec

from rota.errors import LimitExceeded, RotaError, RunnerHandshakeFailed, RunnerIpcTimeout, RunnerProtocolBroken
from rota.fleet.runners import protocol
from rota.fleet.runners.contract import Assignment, RunChannel, RunOutcome
from rota.fleet.runners.program import (
    Descriptors,
    Program,
    ProgramOutcome,
    ProgramStarter,
    ProgramStopHandle,
    lost_outcome,
    not_started_outcome,
    output_tail,
)
from rota.fleet.runners.resources import RunnerResources
from rota.host.watchdog import Watchdog
from rota.model.checks import RESULT_BYTES_MAX

__all__ = ["EXIT_GRACE_S", "IPC_TIMEOUT_S", "NdjsonRunner"]

IPC_TIMEOUT_S = 5.0  # from the start to ready; of CPU time, if its `cpu` settings keep it from running
EXIT_GRACE_S = 5.0  # from the final message to the exit
SEND_QUEUE_BYTES_MAX = 16 * 1024 * 1024  # messages that the agent has not read
WAITS_MAX = 16  # concurrent requests of one run that wait
LOG_ARGUMENTS_CHARS = 500  # of a tool call
ERROR_CHARS_MAX = 4_000  # of an error that the agent sent, in a result


class NdjsonRunner:
    """Runs programs that speak the ndjson protocol."""

    def __init__(self, resources: RunnerResources, *, use_groups: bool = True) -> None:
        self._starter = ProgramStarter(resources, use_groups=use_groups)
        self._watchdog = Watchdog(resources.clock, "rota-ndjson-watchdog")

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Start the agent's program and exchange messages with it until it ends."""
        with Descriptors() as descriptors:
            try:
                return self._run(assignment, channel, descriptors)
            except RotaError as problem:
                return not_started_outcome(problem)

    def close(self) -> None:
        """End the watchdog."""
        self._watchdog.close()

    def _run(self, assignment: Assignment, channel: RunChannel, descriptors: Descriptors) -> RunOutcome:
        (stdin, to_agent), (from_agent, stdout), (errors, stderr) = (descriptors.pipe() for _ in range(3))
        send_queue = _SendQueue(to_agent, descriptors)
        fds = {0: stdin, 1: stdout, 2: stderr}
        advisories: list[str] = []
        with self._starter.start(assignment, {}, fds, advisories) as program:
            for fd in fds.values():
                descriptors.close(fd)
            program.wait_started()
            conversation = _Conversation(assignment, channel, program, send_queue, self._watchdog)
            try:
                conversation.begin(advisories)
                sinks = {from_agent: conversation.receive, errors: channel.log}
                ended = program.pump(sinks, send_queue.wake, send_queue.flush)
                return conversation.outcome(program.outcome(ended))
            except RotaError as problem:
                return lost_outcome(problem)
            finally:
                conversation.end()


# --- messages to the agent -------------------------------------------------------------------------


class _SendQueue:
    """Messages on their way to an agent. Any thread may add one; that never waits."""

    def __init__(self, fd: int, descriptors: Descriptors) -> None:
        os.set_blocking(fd, False)
        self.wake = descriptors.keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._fd = fd
        self._descriptors = descriptors
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._is_open = True

    def put(self, message: protocol.SupervisorMessage) -> bool:
        """Send a message now, or later if the pipe is full; False if the agent has closed its input."""
        data = protocol.encode(message)
        with self._lock:
            if not self._is_open:
                return False
            if len(self._unsent) + len(data) > SEND_QUEUE_BYTES_MAX:
                raise RunnerProtocolBroken(
                    f"the agent does not read its input: more than {SEND_QUEUE_BYTES_MAX:,} bytes of messages wait"
                )
            was_empty = not self._unsent
            self._unsent += data
            if was_empty:
                self._write()
                if self._unsent:
                    os.eventfd_write(self.wake, 1)  # the polling thread writes the rest
            return self._is_open

    def flush(self, poll: select.poll) -> None:
        """On the polling thread: write what the pipe accepts, and poll the pipe if more is left."""
        with self._lock:
            with suppress(BlockingIOError):
                os.eventfd_read(self.wake)
            self._write()
            if self._is_open and self._unsent:
                poll.register(self._fd, select.POLLOUT)
                return
            with suppress(KeyError):  # it was not polled
                poll.unregister(self._fd)
            if not self._is_open:
                self._descriptors.close(self._fd)

    def close(self) -> None:
        """Send nothing more: the agent reads the end of its input."""
        with self._lock:
            self._is_open = False
            self._unsent.clear()
            os.eventfd_write(self.wake, 1)

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._fd, self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # the agent has closed its input
            self._is_open = False
            self._unsent.clear()


class _NdjsonStopHandle(ProgramStopHandle):
    """Stops a program: a stop message first, then the signals."""

    def __init__(self, program: Program, send_queue: _SendQueue, grace_s: float) -> None:
        super().__init__(program.session)
        self._send_queue = send_queue
        self._grace_s = grace_s

    def request_stop(self, reason: str) -> bool:
        """Send `stop`."""
        try:
            return self._send_queue.put(protocol.StopMessage(reason, self._grace_s))
        except RunnerProtocolBroken:
            return False


# --- messages from the agent -----------------------------------------------------------------------


class _Conversation:
    """The messages of one run and their effects."""

    def __init__(
        self,
        assignment: Assignment,
        channel: RunChannel,
        program: Program,
        send_queue: _SendQueue,
        watchdog: Watchdog,
    ) -> None:
        self._assignment = assignment
        self._channel = channel
        self._program = program
        self._send_queue = send_queue
        self._watchdog = watchdog
        self._lines = protocol.LineSplitter()
        self._lock = threading.Lock()  # guards the phase and the problem, which the watchdog also changes
        self._phase: Literal["handshake", "running", "finished"] = "handshake"
        self._problem: RotaError | None = None
        self._timer: int | None = None
        self._advisories: list[str] = []
        self._waits = threading.Semaphore(WAITS_MAX)
        self._result: Any = None
        self._has_result = False
        self._final: protocol.ExitMessage | protocol.YieldMessage | None = None
        self._was_killed_after_final = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            protocol.ReadyMessage: lambda _message: self._log("ignored a second ready"),
            protocol.LogMessage: lambda message: self._log(message.text),
            protocol.ProgressMessage: lambda message: channel.progress(message.fraction, message.text),
            protocol.ChunkMessage: lambda message: channel.log(message.text.encode()),
            protocol.ToolCallMessage: self._tool_call,
            protocol.IterationStartMessage: lambda message: self._log(f"iteration {message.iteration} starts"),
            protocol.IterationDoneMessage: self._iteration_done,
            protocol.ChargeMessage: self._charge,
            protocol.RemainingRequest: lambda message: self._send(
                protocol.RemainingReply(message.id, channel.remaining())
            ),
            protocol.HeartbeatMessage: lambda _message: None,
            protocol.CheckpointMessage: lambda message: channel.checkpoint(message.state),
            protocol.EmitMessage: self._emit,
            protocol.ThrottledMessage: lambda message: channel.throttled(message.retry_after_s, message.name),
            protocol.SpawnRequest: self._spawn,
            protocol.WaitRequest: partial(self._in_thread, self._wait),
            protocol.AcquireRequest: partial(self._in_thread, self._acquire),
            protocol.SettleRequest: self._settle,
            protocol.ResultMessage: self._keep_result,
            protocol.YieldMessage: self._finish,
            protocol.ExitMessage: self._finish,
        }

    def begin(self, advisories: list[str]) -> None:
        """Send `init` and start the handshake timeout."""
        self._advisories = advisories
        self._timer = self._watchdog.watch(IPC_TIMEOUT_S, self._handshake_timed_out)
        assignment, entry = self._assignment, self._assignment.entry
        self._send(
            protocol.InitMessage(
                pid=assignment.agent.pid,
                sched_id=entry.sched_id,
                attempt=entry.attempt,
                token=entry.token,
                deadline=entry.deadline,
                trigger=entry.trigger,
                payload=entry.payload,
                remaining=assignment.remaining,
                checkpoint=assignment.checkpoint,
                agent=assignment.agent.name,
                workspace=assignment.workspace,
            )
        )

    def receive(self, data: bytes) -> None:
        """Handle what the agent wrote."""
        try:
            for line in self._lines.feed(data):
                if self._problem is None and self._phase != "finished":
                    self._handle(protocol.decode(line))
        except (RunnerProtocolBroken, RunnerHandshakeFailed) as problem:
            self._fail(problem)

    def end(self) -> None:
        """The program has ended: close the send queue and cancel the timer."""
        self._send_queue.close()
        if self._timer is not None:
            self._watchdog.cancel(self._timer)

    def _handle(self, message: protocol.AgentMessage | str) -> None:
        if self._phase == "handshake" and not isinstance(message, protocol.FOR_THE_LOG):
            self._handshake(message)
        elif isinstance(message, str):
            self._log(f"ignored unknown op {message!r}")
        else:
            try:
                self._handlers[type(message)](message)
            except RunnerProtocolBroken:
                raise
            except RotaError as problem:
                self._refuse(message, problem)

    def _handshake(self, message: protocol.AgentMessage | str) -> None:
        expected = self._assignment.agent.pid
        if not isinstance(message, protocol.ReadyMessage):
            op = message if isinstance(message, str) else _op(message)
            raise RunnerHandshakeFailed(f"the program answered init with {op!r} instead of 'ready'")
        if message.pid is not None and message.pid != expected:
            raise RunnerHandshakeFailed(f"the program sent ready with pid {message.pid} instead of {expected}")
        with self._lock:
            if self._problem is not None:
                return  # the handshake has timed out
            self._phase = "running"
        if self._timer is not None:
            self._watchdog.cancel(self._timer)
        session = self._program.session
        stop_handle = _NdjsonStopHandle(self._program, self._send_queue, self._assignment.settings.stop_grace_s)
        self._channel.started(
            stop_handle, os_pid=session.pid, advisories=self._advisories, enforced=self._program.enforced
        )
        self._program.report_changes(self._channel)

    def _handshake_timed_out(self) -> None:
        with self._lock:
            if self._phase != "handshake":
                return
            may_wait = self._assignment.cpu is not None and self._channel.stop_reason is None
            if may_wait and self._program.is_held_up(IPC_TIMEOUT_S):  # by its quota, or that of its project
                self._timer = self._watchdog.watch(IPC_TIMEOUT_S, self._handshake_timed_out)
                return
        self._fail(RunnerIpcTimeout(f"the program did not send ready within {IPC_TIMEOUT_S:g} s"))

    def _fail(self, problem: RotaError) -> None:
        with self._lock:
            self._problem = self._problem or problem
        self._program.session.kill()

    # --- one method per message ------------------------------------------------------------------

    def _log(self, text: str) -> None:
        self._channel.log(f"{text}\n".encode("utf-8", "replace"))

    def _tool_call(self, message: protocol.ToolCallMessage) -> None:
        given = message.args if message.arguments is None else message.arguments
        arguments = "" if given is None else given if isinstance(given, str) else msgspec.json.encode(given).decode()
        self._log(f"tool {message.name} {arguments[:LOG_ARGUMENTS_CHARS]}".rstrip())

    def _iteration_done(self, message: protocol.IterationDoneMessage) -> None:
        used = {"tokens": message.tokens, "cost_micro": message.cost_micro}
        charged = {dim: amount for dim, amount in used.items() if amount}
        if charged:
            self._channel.charge(charged, message.model)

    def _charge(self, message: protocol.ChargeMessage) -> None:
        remaining = self._channel.charge(message.all, message.model)
        if message.id is not None:
            self._send(protocol.RemainingReply(message.id, remaining))

    def _spawn(self, message: protocol.SpawnRequest) -> None:
        options = {} if message.priority is None else {"priority": message.priority}
        sched_id = self._channel.spawn(message.agent, message.payload, message.lent, **options)
        self._send(protocol.SpawnedReply(message.id, sched_id))

    def _emit(self, message: protocol.EmitMessage) -> None:
        self._channel.emit(message.kind, message.payload)

    def _settle(self, message: protocol.SettleRequest) -> None:
        remaining = self._channel.settle(message.key, message.used)
        if message.id is not None:
            self._send(protocol.RemainingReply(message.id, remaining))

    def _wait(self, message: protocol.WaitRequest) -> None:
        ended = self._channel.wait_for(message.children, message.wait_s)
        self._send(protocol.WaitedReply(message.id, [protocol.child_outcome(entry) for entry in ended]))

    def _acquire(self, message: protocol.AcquireRequest) -> None:
        key = self._channel.acquire(message.name, message.amounts, message.wait_s)
        self._send(protocol.AcquiredReply(message.id, key))

    def _in_thread(self, answer: Callable[[Any], None], message: protocol.AgentMessage) -> None:
        """Answer a request that takes long on a thread of its own."""
        if not self._waits.acquire(blocking=False):
            raise LimitExceeded("waits_max", WAITS_MAX, WAITS_MAX + 1)
        arguments = answer, message
        threading.Thread(target=self._answer, args=arguments, name="rota-ndjson-wait", daemon=True).start()

    def _answer(self, answer: Callable[[Any], None], message: protocol.AgentMessage) -> None:
        try:
            answer(message)
        except RunnerProtocolBroken as problem:
            self._fail(problem)
        except RotaError as problem:
            self._refuse(message, problem)
        finally:
            self._waits.release()

    def _keep_result(self, message: protocol.ResultMessage) -> None:
        self._result, self._has_result = message.value, True

    def _finish(self, message: protocol.ExitMessage | protocol.YieldMessage) -> None:
        self._final = message
        with self._lock:
            self._phase = "finished"
        self._send_queue.close()
        self._timer = self._watchdog.watch(EXIT_GRACE_S, self._kill_after_final)

    def _kill_after_final(self) -> None:
        self._was_killed_after_final = True
        self._program.session.kill()

    def _send(self, message: protocol.SupervisorMessage) -> None:
        self._send_queue.put(message)

    def _refuse(self, message: protocol.AgentMessage, problem: RotaError) -> None:
        self._log(f"{_op(message)} was refused: {problem}")
        request_id = getattr(message, "id", None)
        self._send_queue.put(protocol.RefusedReply(request_id, _op(message), problem.name, str(problem)))

    # --- how it ended ----------------------------------------------------------------------------

    def outcome(self, program: ProgramOutcome) -> RunOutcome:
        """Return the outcome of the run, from the messages and from how the program ended."""
        if self._problem is None and self._phase == "handshake" and program.outcome is None:
            how = program.details.get("error", "exited with code 0")
            self._problem = RunnerHandshakeFailed(f"the program did not send ready: {how}")
        if self._problem is not None:
            return self._failed_outcome(self._problem, program)
        exit_kind, outcome, error = self._classify(program)
        returned = self._returned()
        result_bytes = len(msgspec.json.encode(returned))
        if exit_kind == "completed" and result_bytes > RESULT_BYTES_MAX:
            exit_kind, outcome = "failed", "result_too_large"
            error = f"the result has {result_bytes:,} bytes of JSON; the maximum is {RESULT_BYTES_MAX:,}"
        if exit_kind != "completed":
            result = {**program.details, "error": error, "output_tail": output_tail(self._channel), **self._partial()}
            return RunOutcome(
                exit_kind=exit_kind, outcome=outcome, result=result, usage=program.usage, cpu_ms=program.cpu_ms
            )
        yield_after_s = max(self._final.after_s, 0.0) if isinstance(self._final, protocol.YieldMessage) else None
        return RunOutcome(result=returned, usage=program.usage, cpu_ms=program.cpu_ms, yield_after_s=yield_after_s)

    def _classify(
        self, program: ProgramOutcome
    ) -> tuple[Literal["completed", "failed", "crashed", "cancelled"], str | None, Any]:
        final, error = self._final, program.details.get("error")
        if program.outcome is not None:  # a limit ended it, or its end was not observed
            return program.exit_kind, program.outcome, error
        if final is None:
            was_stopped = self._channel.stop_reason is not None
            why = f"ended without an exit message: {error or 'exited with code 0'}"
            return ("cancelled" if was_stopped else "crashed"), None, why
        if isinstance(final, protocol.ExitMessage) and final.exit_kind != "completed":
            why = final.summary or final.text or f"the agent reported exit_kind {final.exit_kind!r}"
            return final.exit_kind, None, why[:ERROR_CHARS_MAX]
        if program.exit_kind != "completed" and not self._was_killed_after_final:
            return "failed", None, f"sent {_op(final)!r}, then {error}"
        return "completed", None, None

    def _failed_outcome(self, problem: RotaError, program: ProgramOutcome) -> RunOutcome:
        outcome = "protocol_broken" if isinstance(problem, RunnerProtocolBroken) else "handshake_failed"
        if self._phase == "handshake":
            outcome = "handshake_failed"
        failed = not_started_outcome(problem, outcome)
        result = {**failed.result, **problem.data, "output_tail": output_tail(self._channel), **self._partial()}
        return msgspec.structs.replace(failed, result=result, usage=program.usage, cpu_ms=program.cpu_ms)

    def _partial(self) -> dict[str, Any]:
        """The value of the last `result` message, if it fits beside the error."""
        fits = self._has_result and len(msgspec.json.encode(self._result)) <= RESULT_BYTES_MAX // 2
        return {"result": self._result} if fits else {}

    def _returned(self) -> Any:
        if self._has_result or not isinstance(self._final, protocol.ExitMessage):
            return self._result
        final = self._final
        fields = {"summary": final.summary, "text": final.text, "metadata": final.metadata}
        return {key: value for key, value in fields.items() if value} or None


def _op(message: protocol.AgentMessage) -> str:
    return str(type(message).__struct_config__.tag)
