"""Any program as an agent: its exit code is the outcome, its output is kept, its usage is read where it prints JSON.

The payload is on its standard input as JSON; the rest of what it may want to know is in its environment
(run_environment.py). It has no way to speak while it runs, nor to be told to stop but by a signal; a program that wants
more speaks ndjson.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.fleet.runners.contract import Assignment, Line, Outcome
from rota.fleet.runners.environment import CHECKPOINT_FD, INLINE_BYTES_MAX, in_memory, long_checkpoint
from rota.fleet.runners.program import Descriptors, Ending, Program, Programs, ProgramStops, lost, not_started, tail_of
from rota.fleet.runners.resources import Workshop
from rota.fleet.runners.usage import Report, UsageReader

__all__ = ["CommandRunner"]

PIPE_BYTES_MIN = 4 * 1024  # what a pipe takes at once, however many there are


class CommandRunner:
    """Runs programs."""

    def __init__(self, workshop: Workshop, *, groups: bool = True) -> None:
        self._programs = Programs(workshop, groups=groups)

    def run(self, work: Assignment, line: Line) -> Outcome:
        """Run the plan's program to its end."""
        try:
            reader = UsageReader(work.plan.usage) if work.plan.usage is not None else None
        except RotaError as problem:
            return not_started(problem)
        with Descriptors() as descriptors:
            return self._run(work, line, _Output(line, reader, descriptors), descriptors)

    def close(self) -> None:
        """Nothing is shared between runs."""

    def _run(self, work: Assignment, line: Line, output: _Output, descriptors: Descriptors) -> Outcome:
        env, fds = _given(work, descriptors)
        fds |= output.theirs
        program: Program | None = None
        try:
            with self._programs.start(work, env, fds, []) as program:
                for fd in fds.values():
                    descriptors.close(fd)
                return self._followed(program, output, line)
        except RotaError as problem:
            has_begun = program is not None and program.session.pid
            return lost(problem) if has_begun else not_started(problem)

    def _followed(self, program: Program, output: _Output, line: Line) -> Outcome:
        program.begun()
        session = program.session
        line.began(ProgramStops(session), os_pid=session.pid, advisories=program.advisories)
        ended = program.pump(output.sinks)
        return _outcome(program.ending(ended), output.report(), line)


def _given(work: Assignment, descriptors: Descriptors) -> tuple[dict[str, str], dict[int, int]]:
    """The variables and the descriptors that bring a program its input."""
    env: dict[str, str] = {}
    fds: dict[int, int] = {}
    payload = msgspec.json.encode(work.entry.payload)
    if len(payload) <= INLINE_BYTES_MAX:
        env["ROTA_PAYLOAD"] = payload.decode()
    if work.plan.stdin == "payload":
        fds[0] = _readable(payload, descriptors)
    saved = long_checkpoint(work)
    if saved is not None:
        fds[CHECKPOINT_FD] = descriptors.keep(in_memory(saved))
    return env, fds


def _readable(payload: bytes, descriptors: Descriptors) -> int:
    """A descriptor to read it from. A short one fits into a pipe, which costs half of a file in memory."""
    if len(payload) > PIPE_BYTES_MIN:
        return descriptors.keep(in_memory(payload))
    theirs, ours = descriptors.pipe()
    os.write(ours, payload)
    descriptors.close(ours)
    return theirs


class _Output:
    """Where a program's output goes: into the log, and what may be JSON also to who reads usage."""

    def __init__(self, line: Line, reader: UsageReader | None, descriptors: Descriptors) -> None:
        self._line = line
        self._reader = reader
        ours, theirs = descriptors.pipe()
        self.theirs = {1: theirs, 2: theirs}  # one pipe, so that the log has both in the order they were written
        self.sinks = {ours: line.log if reader is None else self._take}
        if reader is not None:  # an error message in the middle of a line of JSON would spoil it
            ours_too, self.theirs[2] = descriptors.pipe()
            self.sinks[ours_too] = line.log

    def _take(self, data: bytes) -> None:
        self._line.log(data)
        assert self._reader is not None  # noqa: S101  # see above
        self._reader.feed(data)

    def report(self) -> Report:
        return self._reader.report() if self._reader is not None else Report()


def _outcome(ending: Ending, said: Report, line: Line) -> Outcome:
    exit_kind, outcome = ending.exit_kind, ending.outcome
    result: dict[str, Any] = {**ending.facts, "output_tail": tail_of(line)}
    if said.text is not None:
        result["text"] = said.text
    if said.advisories:
        result["advisories"] = list(said.advisories)
    if said.error is not None and exit_kind == "completed":
        exit_kind = "failed"
        result["error"] = said.error
    if line.stop_reason is not None and exit_kind != "completed" and outcome is None:
        exit_kind = "cancelled"  # it ended as it was told to, in its own way
    return Outcome(exit_kind=exit_kind, outcome=outcome, result=result, usage={**ending.usage, **said.usage})
