"""The command runner: any program. Its exit code is the outcome; its output is logged; usage is read from its JSON.

The payload is on standard input as JSON, the rest in the environment (program.py). Such a program cannot send messages
during its run, and only a signal can stop it. A program that needs more uses the ndjson runner.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.fleet.hook_rules import HOOK_KIND
from rota.fleet.runners.contract import Assignment, RunChannel, RunOutcome
from rota.fleet.runners.program import (
    CHECKPOINT_FD,
    INLINE_BYTES_MAX,
    Descriptors,
    Program,
    ProgramOutcome,
    ProgramStarter,
    ProgramStopHandle,
    long_checkpoint,
    lost_outcome,
    memory_file,
    not_started_outcome,
    output_tail,
)
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.runners.usage import UsageReader, UsageReport

__all__ = ["CommandRunner"]

PIPE_BYTES_MIN = 4 * 1024  # the capacity that every pipe has


class CommandRunner:
    """Runs programs."""

    def __init__(self, resources: RunnerResources, *, use_groups: bool = True) -> None:
        self._starter = ProgramStarter(resources, use_groups=use_groups)

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Run the agent's program until it ends."""
        usage = assignment.settings.usage
        try:
            reader = UsageReader(usage) if usage is not None else None
        except RotaError as problem:
            return not_started_outcome(problem)
        with Descriptors() as descriptors:
            return self._run(assignment, channel, _Output(channel, reader, descriptors), descriptors)

    def close(self) -> None:
        """Runs share nothing."""

    def _run(
        self, assignment: Assignment, channel: RunChannel, output: _Output, descriptors: Descriptors
    ) -> RunOutcome:
        env, fds = _input(assignment, descriptors)
        fds |= output.write_ends
        program: Program | None = None
        try:
            with self._starter.start(assignment, env, fds, []) as program:
                for fd in fds.values():
                    descriptors.close(fd)
                return self._follow(program, output, channel)
        except RotaError as problem:
            has_started = program is not None and program.session.pid
            return lost_outcome(problem) if has_started else not_started_outcome(problem)

    def _follow(self, program: Program, output: _Output, channel: RunChannel) -> RunOutcome:
        program.wait_started()
        session = program.session
        channel.started(
            ProgramStopHandle(session),
            os_pid=session.pid,
            advisories=program.advisories,
            enforced=program.enforced,
        )
        program.report_changes(channel)
        ended = program.pump(output.sinks)
        return _outcome(program.outcome(ended), output.usage_report(), channel)


def _input(assignment: Assignment, descriptors: Descriptors) -> tuple[dict[str, str], dict[int, int]]:
    """Return the variables and the descriptors that carry the program's input."""
    env: dict[str, str] = {}
    fds: dict[int, int] = {}
    payload = msgspec.json.encode(assignment.entry.payload)
    if len(payload) <= INLINE_BYTES_MAX:
        env["ROTA_PAYLOAD"] = payload.decode()
        if assignment.settings.kind == HOOK_KIND:
            env["ROTA_EVENT"] = env["ROTA_PAYLOAD"]
    if assignment.settings.stdin == "payload":
        fds[0] = _readable(payload, descriptors)
    saved = long_checkpoint(assignment)
    if saved is not None:
        fds[CHECKPOINT_FD] = descriptors.keep(memory_file(saved))
    return env, fds


def _readable(payload: bytes, descriptors: Descriptors) -> int:
    """Return a descriptor to read the payload from: a pipe if it fits, which costs half as much as a memory file."""
    if len(payload) > PIPE_BYTES_MIN:
        return descriptors.keep(memory_file(payload))
    read_end, write_end = descriptors.pipe()
    os.write(write_end, payload)
    descriptors.close(write_end)
    return read_end


class _Output:
    """Where a program's output goes: to the log, and standard output also to the usage reader."""

    def __init__(self, channel: RunChannel, reader: UsageReader | None, descriptors: Descriptors) -> None:
        self._channel = channel
        self._reader = reader
        read_end, write_end = descriptors.pipe()
        self.write_ends = {1: write_end, 2: write_end}  # one pipe, so that the log keeps the order of both
        self.sinks = {read_end: channel.log if reader is None else self._log_and_read}
        if reader is not None:  # an error message in the middle of a line of JSON would make it unreadable
            errors, self.write_ends[2] = descriptors.pipe()
            self.sinks[errors] = channel.log

    def _log_and_read(self, data: bytes) -> None:
        self._channel.log(data)
        assert self._reader is not None  # noqa: S101  # see above
        self._reader.feed(data)

    def usage_report(self) -> UsageReport:
        return self._reader.report() if self._reader is not None else UsageReport()


def _outcome(program: ProgramOutcome, report: UsageReport, channel: RunChannel) -> RunOutcome:
    exit_kind, outcome = program.exit_kind, program.outcome
    result: dict[str, Any] = {**program.details, "output_tail": output_tail(channel)}
    if report.text is not None:
        result["text"] = report.text
    if report.advisories:
        result["advisories"] = list(report.advisories)
    if report.error is not None and exit_kind == "completed":
        exit_kind = "failed"
        result["error"] = report.error
    if channel.stop_reason is not None and exit_kind != "completed" and outcome is None:
        exit_kind = "cancelled"  # it was asked to stop and did
    return RunOutcome(
        exit_kind=exit_kind,
        outcome=outcome,
        result=result,
        usage={**program.usage, **report.usage},
        model=report.model,
        cpu_ms=program.cpu_ms,
    )
