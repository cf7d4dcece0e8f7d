"""Following the log of an entry: what is there, then what is printed, until the entry has ended.

The log of a run lies in files, here or at a daemon, and no commit says that there is more. So a follower reads again
after a pause, which grows while nothing is printed. It names its offset in the stream, so output is never shown twice;
what was dropped before it was read is counted. An entry that is retried is followed into its next attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from rota.model.run_logs import LogPart
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.outages import call_through_outage

__all__ = ["LogNotice", "LogOutput", "end_sentence", "follow_log"]

POLL_S = (0.05, 0.1, 0.2, 0.5)  # pauses between two reads that find nothing; the last one repeats
ERROR_CHARS_MAX = 200  # of an error, in a notice
_UNFINISHED = ("queued", "dispatched")


class LogOutput(NamedTuple):
    """What was printed, after bytes that were dropped before they were read."""

    dropped_bytes: int
    part: LogPart


class LogNotice(NamedTuple):
    """What a follower should know besides the output: that the run has ended, or has not started."""

    text: str


def follow_log(
    api: SchedulerApi,
    sched_id: int,
    attempt: int | None = None,
    *,
    offset: int = 0,
    goes_on: bool = True,
    read: Callable[..., LogPart] | None = None,
) -> Iterator[LogOutput | LogNotice]:
    """Yield what an entry prints until it ends; with `goes_on` also in the attempts after this one.

    `read` takes the place of `api.logs.read`, for logs that are somewhere else.
    """
    read_log = api.logs.read if read is None else read
    pauses, announced = _Pauses(api), 0  # the attempt whose start was said to be awaited
    while True:
        part = call_through_outage(api.clock, partial(read_log, sched_id, attempt, offset=offset), lambda: False)
        attempt = part.attempt
        if part.data or part.offset > offset:
            yield LogOutput(max(0, part.offset - offset), part)
            offset = part.offset + len(part.data)
            pauses.start_again()
            continue
        offset = part.offset
        if part.ended:
            entry = call_through_outage(api.clock, lambda: api.queue.get(sched_id), lambda: False)
            if not goes_on:
                yield LogNotice(_end_of_attempt(entry, attempt))
                return
            if entry.state not in _UNFINISHED and attempt >= entry.attempt:
                yield LogNotice(end_sentence(entry))
                return
            yield LogNotice(f"{_end_of_attempt(entry, attempt)}; attempt {attempt + 1} follows")
            announced = attempt = attempt + 1
            offset = 0
        elif part.attempts < attempt and announced != attempt:
            yield LogNotice(f"waiting for {f'attempt {attempt} of ' if attempt > 1 else ''}entry {sched_id} to start")
            announced = attempt
        pauses.wait()


def end_sentence(entry: ReadyEntry) -> str:
    """Say how an entry has ended."""
    outcome = f" ({entry.outcome})" if entry.outcome not in (None, "", entry.status) else ""
    attempts = f" in attempt {entry.attempt}" if entry.attempt > 1 else ""
    error = entry.result.get("error") if isinstance(entry.result, dict) and entry.status == "failed" else None
    return f"entry {entry.sched_id} {entry.status}{outcome}{attempts}{_why(error)}"


def _end_of_attempt(entry: ReadyEntry, attempt: int) -> str:
    error = next((each.error for each in entry.errors if each.attempt == attempt), None)
    return f"attempt {attempt} of entry {entry.sched_id} has ended{_why(error)}"


def _why(error: object) -> str:
    lines = str(error or "").strip().splitlines()
    return f": {lines[0][:ERROR_CHARS_MAX]}" if lines else ""


class _Pauses:
    """Pauses that grow until something was found."""

    def __init__(self, api: SchedulerApi) -> None:
        self._clock = api.clock
        self._condition = threading.Condition()
        self._count = 0

    def start_again(self) -> None:
        self._count = 0

    def wait(self) -> None:
        pause_s = POLL_S[min(self._count, len(POLL_S) - 1)]
        self._count += 1
        with self._condition:
            self._clock.wait(self._condition, pause_s)
