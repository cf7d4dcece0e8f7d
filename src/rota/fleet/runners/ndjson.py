"""A program that speaks: newline-delimited JSON on its standard input and output (protocol.py), errors into the log.

One run is one conversation, held on the slot's thread while it reads the program:

    handshake ──ready──▶ talking ──exit, yield──▶ over
        └─ no ready in time, or anything else: handshake_failed; the run never began

Nothing here waits for the agent. What it is told goes into a mailbox; what the pipe does not take at once is written
when it can be, so an agent that does not read costs memory up to a named limit and no time. A question that takes long
(`wait`) is answered by a thread of its own, so that the agent is read meanwhile. A program that has said its last word
and does not end is killed after a grace; its word counts all the same.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from rota.errors import LimitExceeded, RotaError, RunnerHandshakeFailed, RunnerIpcTimeout, RunnerProtocolBroken
from rota.fleet.runners import protocol
from rota.fleet.runners.contract import Assignment, Line, Outcome
from rota.fleet.runners.program import Descriptors, Ending, Program, Programs, ProgramStops, lost, not_started, tail_of
from rota.fleet.runners.resources import Workshop
from rota.host.watchdog import Watchdog
from rota.model.checks import RESULT_BYTES_MAX

__all__ = ["EXIT_GRACE_S", "IPC_TIMEOUT_S", "NdjsonRunner"]

IPC_TIMEOUT_S = 5.0  # from the start to ready
EXIT_GRACE_S = 5.0  # from the last word to the end
MAILBOX_BYTES_MAX = 16 * 1024 * 1024  # told and not yet read
WAITS_MAX = 16  # questions of one run that take long, at once
LOG_ARGUMENTS_CHARS = 500  # of a tool call
ERROR_CHARS_MAX = 4_000  # of an agent's own words, in a result


class NdjsonRunner:
    """Runs programs that speak ndjson."""

    def __init__(self, workshop: Workshop, *, groups: bool = True) -> None:
        self._programs = Programs(workshop, groups=groups)
        self._watchdog = Watchdog(workshop.clock, "rota-ndjson-watchdog")

    def run(self, work: Assignment, line: Line) -> Outcome:
        """Start the plan's program and speak with it to its end."""
        with Descriptors() as descriptors:
            try:
                return self._run(work, line, descriptors)
            except RotaError as problem:
                return not_started(problem)

    def close(self) -> None:
        """End the watchdog."""
        self._watchdog.close()

    def _run(self, work: Assignment, line: Line, descriptors: Descriptors) -> Outcome:
        (their_in, ours), (heard, their_out), (errors, their_err) = (descriptors.pipe() for _ in range(3))
        mailbox = _Mailbox(ours, descriptors)
        theirs = {0: their_in, 1: their_out, 2: their_err}
        advisories: list[str] = []
        with self._programs.start(work, {}, theirs, advisories) as program:
            for fd in theirs.values():
                descriptors.close(fd)
            program.begun()
            talk = _Conversation(work, line, program, mailbox, self._watchdog)
            try:
                talk.begin(advisories)
                ended = program.pump({heard: talk.hear, errors: line.log}, mailbox.wake, mailbox.flush)
                return talk.outcome(program.ending(ended))
            except RotaError as problem:
                return lost(problem)
            finally:
                talk.end()


# --- what the agent is told ------------------------------------------------------------------------


class _Mailbox:
    """Messages on their way to an agent. Any thread may put one in; it never waits."""

    def __init__(self, fd: int, descriptors: Descriptors) -> None:
        os.set_blocking(fd, False)
        self.wake = descriptors.keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._fd = fd
        self._descriptors = descriptors
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._is_open = True

    def put(self, message: protocol.Told) -> bool:
        """Send a message now or when there is room; False when nobody will read it."""
        data = protocol.encode(message)
        with self._lock:
            if not self._is_open:
                return False
            if len(self._waiting) + len(data) > MAILBOX_BYTES_MAX:
                raise RunnerProtocolBroken("the agent does not read what it is told")
            was_empty = not self._waiting
            self._waiting += data
            if was_empty:
                self._write()
                if self._waiting:
                    os.eventfd_write(self.wake, 1)  # the thread that polls takes over
            return self._is_open

    def flush(self, poll: select.poll) -> None:
        """On the polling thread: write what there is room for, and be called again when there is more."""
        with self._lock:
            with suppress(BlockingIOError):
                os.eventfd_read(self.wake)
            self._write()
            if self._is_open and self._waiting:
                poll.register(self._fd, select.POLLOUT)
                return
            with suppress(KeyError):  # it was never needed
                poll.unregister(self._fd)
            if not self._is_open:
                self._descriptors.close(self._fd)

    def close(self) -> None:
        """Nothing more is said: the agent reads the end of its input."""
        with self._lock:
            self._is_open = False
            self._waiting.clear()
            os.eventfd_write(self.wake, 1)

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # it has closed its input
            self._is_open = False
            self._waiting.clear()


class _Stops(ProgramStops):
    """A program's rungs, and a word before them."""

    def __init__(self, program: Program, mailbox: _Mailbox, grace_s: float) -> None:
        super().__init__(program.session)
        self._mailbox = mailbox
        self._grace_s = grace_s

    def ask(self, reason: str) -> bool:
        """Tell it to stop."""
        try:
            return self._mailbox.put(protocol.Stop(reason, self._grace_s))
        except RunnerProtocolBroken:
            return False


# --- what the agent says ---------------------------------------------------------------------------


class _Conversation:
    """One run: what was said so far, and what follows from it."""

    def __init__(self, work: Assignment, line: Line, program: Program, mailbox: _Mailbox, watchdog: Watchdog) -> None:
        self._work = work
        self._line = line
        self._program = program
        self._mailbox = mailbox
        self._watchdog = watchdog
        self._lines = protocol.Lines()
        self._lock = threading.Lock()  # of the phase and the problem: the watchdog changes them too
        self._phase: Literal["handshake", "talking", "over"] = "handshake"
        self._problem: RotaError | None = None
        self._timer: int | None = None
        self._advisories: list[str] = []
        self._waits = threading.Semaphore(WAITS_MAX)
        self._result: Any = None
        self._has_result = False
        self._last_word: protocol.ExitMessage | protocol.YieldBack | None = None
        self._lingered = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            protocol.Ready: lambda _said: self._note("said ready again"),
            protocol.Log: lambda said: self._note(said.text),
            protocol.Chunk: lambda said: line.log(said.text.encode()),
            protocol.ToolCall: self._tool_call,
            protocol.IterationStart: lambda said: self._note(f"iteration {said.iteration} begins"),
            protocol.IterationDone: self._iteration_done,
            protocol.Charge: self._charge,
            protocol.Remaining: lambda said: self._answer(protocol.Left(said.id, line.remaining())),
            protocol.Heartbeat: lambda _said: None,
            protocol.Checkpoint: lambda said: line.checkpoint(said.state),
            protocol.Throttled: lambda said: line.throttled(said.retry_after_s, said.name),
            protocol.Spawn: self._spawn,
            protocol.Wait: self._wait,
            protocol.Result: self._keep_result,
            protocol.YieldBack: self._leave,
            protocol.ExitMessage: self._leave,
        }

    def begin(self, advisories: list[str]) -> None:
        """Say who it is, and give it a while to answer."""
        self._advisories = advisories
        self._timer = self._watchdog.watch(IPC_TIMEOUT_S, self._give_up_on_handshake)
        work, entry = self._work, self._work.entry
        self._answer(
            protocol.Init(
                pid=work.agent.pid,
                sched_id=entry.sched_id,
                attempt=entry.attempt,
                token=entry.token,
                deadline=entry.deadline,
                trigger=entry.trigger,
                payload=entry.payload,
                remaining=work.remaining,
                checkpoint=work.checkpoint,
            )
        )

    def hear(self, data: bytes) -> None:
        """Act on what it wrote."""
        try:
            for text in self._lines.feed(data):
                if self._problem is None and self._phase != "over":
                    self._act_on(protocol.decode(text))
        except (RunnerProtocolBroken, RunnerHandshakeFailed) as problem:
            self._fail(problem)

    def end(self) -> None:
        """The program has ended: nobody is to be told or watched."""
        self._mailbox.close()
        if self._timer is not None:
            self._watchdog.call_off(self._timer)

    def _act_on(self, said: protocol.Said | str) -> None:
        if self._phase == "handshake":
            self._shake_hands(said)
        elif isinstance(said, str):
            self._note(f"op {said!r} is not known here, and was passed over")
        else:
            try:
                self._handlers[type(said)](said)
            except RunnerProtocolBroken:
                raise
            except RotaError as problem:
                self._refuse(said, problem)

    def _shake_hands(self, said: protocol.Said | str) -> None:
        if not isinstance(said, protocol.Ready):
            op = said if isinstance(said, str) else _op(said)
            raise RunnerHandshakeFailed(f"the program answered init with {op!r}")
        if said.pid is not None and said.pid != self._work.agent.pid:
            raise RunnerHandshakeFailed(f"the program is ready as agent {said.pid}, and not {self._work.agent.pid}")
        with self._lock:
            if self._problem is not None:
                return  # too late
            self._phase = "talking"
        if self._timer is not None:
            self._watchdog.call_off(self._timer)
        session = self._program.session
        stops = _Stops(self._program, self._mailbox, self._work.plan.stop_grace_s)
        self._line.began(stops, os_pid=session.pid, advisories=self._advisories)

    def _give_up_on_handshake(self) -> None:
        with self._lock:
            if self._phase != "handshake":
                return
        self._fail(RunnerIpcTimeout(f"the program did not say ready within {IPC_TIMEOUT_S:g} s"))

    def _fail(self, problem: RotaError) -> None:
        with self._lock:
            self._problem = self._problem or problem
        self._program.session.kill()

    # --- message by message ----------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self._line.log(f"{text}\n".encode("utf-8", "replace"))

    def _tool_call(self, said: protocol.ToolCall) -> None:
        arguments = "" if said.arguments is None else msgspec.json.encode(said.arguments).decode()
        self._note(f"tool {said.name} {arguments[:LOG_ARGUMENTS_CHARS]}".rstrip())

    def _iteration_done(self, said: protocol.IterationDone) -> None:
        used = {"tokens": said.tokens, "cost_micro": said.cost_micro}
        charged = {dim: amount for dim, amount in used.items() if amount}
        if charged:
            self._line.charge(charged)

    def _charge(self, said: protocol.Charge) -> None:
        remaining = self._line.charge(said.all)
        if said.id is not None:
            self._answer(protocol.Left(said.id, remaining))

    def _spawn(self, said: protocol.Spawn) -> None:
        more = {} if said.priority is None else {"priority": said.priority}
        self._answer(protocol.Spawned(said.id, self._line.spawn(said.agent, said.payload, said.lent, **more)))

    def _wait(self, said: protocol.Wait) -> None:
        if not self._waits.acquire(blocking=False):
            raise LimitExceeded("waits_max", WAITS_MAX, WAITS_MAX + 1)
        threading.Thread(target=self._wait_and_answer, args=(said,), name="rota-ndjson-wait", daemon=True).start()

    def _wait_and_answer(self, said: protocol.Wait) -> None:
        try:
            ended = self._line.wait_for(said.children, said.wait_s)
            self._answer(protocol.Waited(said.id, [protocol.child(entry) for entry in ended]))
        except RunnerProtocolBroken as problem:
            self._fail(problem)
        except RotaError as problem:
            self._refuse(said, problem)
        finally:
            self._waits.release()

    def _keep_result(self, said: protocol.Result) -> None:
        self._result, self._has_result = said.value, True

    def _leave(self, said: protocol.ExitMessage | protocol.YieldBack) -> None:
        self._last_word = said
        with self._lock:
            self._phase = "over"
        self._mailbox.close()
        self._timer = self._watchdog.watch(EXIT_GRACE_S, self._end_lingering)

    def _end_lingering(self) -> None:
        self._lingered = True
        self._program.session.kill()

    def _answer(self, message: protocol.Told) -> None:
        self._mailbox.put(message)

    def _refuse(self, said: protocol.Said, problem: RotaError) -> None:
        self._note(f"{_op(said)} was refused: {problem}")
        answer_to = getattr(said, "id", None)
        self._mailbox.put(protocol.RefusedMessage(answer_to, _op(said), problem.name, str(problem)))

    # --- how it ended ----------------------------------------------------------------------------

    def outcome(self, ending: Ending) -> Outcome:
        """What all of it came to."""
        if self._problem is None and self._phase == "handshake" and ending.outcome is None:
            how = ending.facts.get("error", "it ended with code 0")
            self._problem = RunnerHandshakeFailed(f"the program did not say ready: {how}")
        if self._problem is not None:
            return self._failed_outcome(self._problem, ending)
        exit_kind, outcome, error = self._judged(ending)
        returned = self._returned()
        result_bytes = len(msgspec.json.encode(returned))
        if exit_kind == "completed" and result_bytes > RESULT_BYTES_MAX:
            exit_kind, outcome = "failed", "result_too_large"
            error = f"the result is {result_bytes:,} bytes of JSON; {RESULT_BYTES_MAX:,} are allowed"
        if exit_kind != "completed":
            result = {**ending.facts, "error": error, "output_tail": tail_of(self._line), **self._partial()}
            return Outcome(exit_kind=exit_kind, outcome=outcome, result=result, usage=ending.usage)
        back_in_s = max(self._last_word.after_s, 0.0) if isinstance(self._last_word, protocol.YieldBack) else None
        return Outcome(result=returned, usage=ending.usage, back_in_s=back_in_s)

    def _judged(self, ending: Ending) -> tuple[Literal["completed", "failed", "crashed", "cancelled"], str | None, Any]:
        said, error = self._last_word, ending.facts.get("error")
        if ending.outcome is not None:  # a limit ended it, or nobody saw its end
            return ending.exit_kind, ending.outcome, error
        if said is None:
            stopped = self._line.stop_reason is not None
            why = f"it ended without a last word: {error or 'code 0'}"
            return ("cancelled" if stopped else "crashed"), None, why
        if isinstance(said, protocol.ExitMessage) and said.exit_kind != "completed":
            words = said.summary or said.text or f"it says that it {said.exit_kind}"
            return said.exit_kind, None, words[:ERROR_CHARS_MAX]
        if ending.exit_kind != "completed" and not self._lingered:
            return "failed", None, f"it said {_op(said)!r}, and then {error}"
        return "completed", None, None

    def _failed_outcome(self, problem: RotaError, ending: Ending) -> Outcome:
        outcome = "protocol_broken" if isinstance(problem, RunnerProtocolBroken) else "handshake_failed"
        if self._phase == "handshake":
            outcome = "handshake_failed"
        failed = not_started(problem, outcome)
        result = {**failed.result, **problem.data, "output_tail": tail_of(self._line), **self._partial()}
        return msgspec.structs.replace(failed, result=result, usage=ending.usage)

    def _partial(self) -> dict[str, Any]:
        """What it wanted to return, if there is room for it beside what went wrong."""
        fits = self._has_result and len(msgspec.json.encode(self._result)) <= RESULT_BYTES_MAX // 2
        return {"result": self._result} if fits else {}

    def _returned(self) -> Any:
        if self._has_result or not isinstance(self._last_word, protocol.ExitMessage):
            return self._result
        said = self._last_word
        told = {"summary": said.summary, "text": said.text, "metadata": said.metadata}
        return {key: value for key, value in told.items() if value} or None


def _op(said: protocol.Said) -> str:
    return str(type(said).__struct_config__.tag)
