"""Jobs: handles on entries, for the code that enqueued them.

`result` and `wait` block the calling thread. In a coroutine `await job` is the result; every method that calls the
store has a twin with an `a` in front (`aresult`, `acancel`, …), which leaves the event loop free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from rota.app.ended_jobs import EndWatch, ended_in_order
from rota.app.moments import Duration, seconds_of
from rota.errors import RunFailed, WaitTimeout
from rota.model.entry_status import EntryStatus
from rota.model.events import RunProgressed
from rota.model.lifecycle import ENTRY
from rota.model.retries import why_not_retried
from rota.model.work import AttemptError, ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["Job", "Progress", "StoreLink", "aas_completed", "agather", "as_completed", "gather"]

WAIT_S = 60.0  # one wait for an entry; a longer one is repeated


class StoreLink:
    """The scheduler API that a program's jobs and agents use. A test may exchange it."""

    def __init__(self, api: SchedulerApi) -> None:
        self.api = api
        self.ends = EndWatch(api)

    def use(self, api: SchedulerApi) -> None:
        """Use another store from now on."""
        self.api, self.ends = api, EndWatch(api)


class Progress(NamedTuple):
    """How far a run is, as it reported last."""

    fraction: float  # from 0 to 1
    text: str


class Job:
    """A handle on an entry. `await job` waits for its result."""

    def __init__(self, link: StoreLink, sched_id: int) -> None:
        self._link = link
        self.sched_id = sched_id

    def __repr__(self) -> str:
        return f"<Job {self.sched_id}>"

    def entry(self) -> ReadyEntry:
        """Return the entry."""
        return self._link.api.queue.get(self.sched_id)

    @property
    def status(self) -> EntryStatus:
        """One word: waiting, ready, running, succeeded, failed, expired or cancelled."""
        return self.entry().status

    def wait(self, wait_s: Duration | None = None) -> ReadyEntry:
        """Wait until the entry has ended, in any way, and return it; `WaitTimeout` after `wait_s`."""
        clock = self._link.api.clock
        give_up_at = None if wait_s is None else clock.monotonic() + seconds_of("wait_s", wait_s)
        while True:
            left_s = WAIT_S if give_up_at is None else max(0.0, give_up_at - clock.monotonic())
            try:
                return self._link.api.queue.wait(self.sched_id, min(left_s, WAIT_S))
            except WaitTimeout:
                if give_up_at is not None and left_s <= WAIT_S:
                    raise

    def result(self, wait_s: Duration | None = 0.0) -> Any:
        """Wait up to `wait_s` for the run's result; raise `WaitTimeout`, or `RunFailed` if the run failed.

        None waits without limit.
        """
        return _result_of(self.wait(wait_s))

    def errors(self) -> list[AttemptError]:
        """Return how the attempts failed, oldest first."""
        entry = self.entry()
        result = entry.result if isinstance(entry.result, dict) else {}
        if entry.status != "failed":
            return list(entry.errors)
        error = str(result.get("error") or entry.outcome or entry.exit_kind)
        return [*entry.errors, AttemptError(entry.attempt, error, entry.completed_at or 0.0)]

    def progress(self) -> Progress | None:
        """Return what the run reported last with `ctx.progress`; None if it has not, or the entry is queued."""
        entry, newest = self.entry(), None
        cursor = entry.token
        while cursor is not None and (events := self._link.api.journal.tail(cursor, pid=entry.pid)):
            cursor = events[-1].event_id
            for event in events:
                if event.kind == RunProgressed.kind and event.payload.get("sched_id") == self.sched_id:
                    newest = Progress(float(event.payload["fraction"]), str(event.payload.get("text", "")))
        return newest

    def cancel(self, by: str = "user") -> str:
        """Cancel a queued entry, or ask its run to stop; return the entry's state."""
        return self._link.api.queue.request_cancel(self.sched_id, by=by)

    # --- for coroutines --------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

    async def aresult(self, wait_s: Duration | None = None) -> Any:
        """Wait for the result like `result`; without `wait_s`, without limit."""
        return _result_of(await self.await_end(wait_s))

    async def await_end(self, wait_s: Duration | None = None) -> ReadyEntry:
        """Wait until the entry has ended like `wait`."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake(problem: Exception | None) -> None:
            if not ended.done():
                ended.set_result(None) if problem is None else ended.set_exception(problem)

        def on_end(problem: Exception | None) -> None:
            try:
                loop.call_soon_threadsafe(wake, problem)
            except RuntimeError:
                return  # the loop is closed: nothing waits any more

        ends, limit_s = self._link.ends, None if wait_s is None else seconds_of("wait_s", wait_s)
        await asyncio.to_thread(ends.watch, self.sched_id, on_end)
        try:
            async with asyncio.timeout(limit_s):
                while (entry := await self.aentry()).state not in ENTRY.final:
                    await ended
                    ended = loop.create_future()
        except TimeoutError:
            text = f"entry {self.sched_id} has not ended after {limit_s:g} s"
            raise WaitTimeout(text, sched_id=self.sched_id) from None
        finally:
            ends.forget(self.sched_id, on_end)
        return entry

    async def aentry(self) -> ReadyEntry:
        """Return the entry."""
        return await asyncio.to_thread(self.entry)

    async def astatus(self) -> EntryStatus:
        """One word, like `status`."""
        return (await self.aentry()).status

    async def aerrors(self) -> list[AttemptError]:
        """Return how the attempts failed, oldest first."""
        return await asyncio.to_thread(self.errors)

    async def aprogress(self) -> Progress | None:
        """Return what the run reported last."""
        return await asyncio.to_thread(self.progress)

    async def acancel(self, by: str = "user") -> str:
        """Cancel a queued entry, or ask its run to stop; return the entry's state."""
        return await asyncio.to_thread(self.cancel, by)


def _result_of(entry: ReadyEntry) -> Any:
    """Return the result of an entry that has ended, or raise why there is none."""
    if entry.exit_kind == "completed":
        return entry.result
    how = entry.outcome or entry.exit_kind or entry.state
    text = f"entry {entry.sched_id} ended {how} after {entry.attempt} attempt{'s' if entry.attempt != 1 else ''}"
    if isinstance(entry.result, dict) and isinstance(entry.result.get("error"), str):
        text += f": {entry.result['error']}"
    if entry.exit_kind in ("failed", "crashed"):
        text += f" (not retried: {why_not_retried(entry)})"
    raise RunFailed(
        text,
        sched_id=entry.sched_id,
        state=entry.state,
        exit_kind=entry.exit_kind,
        outcome=entry.outcome,
        result=entry.result,
        hint=f"`rota show {entry.sched_id}` shows what happened in each attempt.",
    )


# --- several jobs ----------------------------------------------------------------------------------


def as_completed(link: StoreLink, jobs: Iterable[Job], wait_s: Duration | None) -> Iterator[Job]:
    """Yield jobs as they end, in any way; `WaitTimeout` when the time has passed and some have not."""
    by_id = {job.sched_id: job for job in jobs}
    limit_s = None if wait_s is None else seconds_of("wait_s", wait_s)
    return (by_id[sched_id] for sched_id in ended_in_order(link.api, by_id, limit_s))


def gather(link: StoreLink, jobs: Iterable[Job], wait_s: Duration | None, *, return_exceptions: bool) -> list[Any]:
    """Wait for all jobs and return their results in order; raise the error of the first that has none."""
    wanted = list(jobs)
    for _ in as_completed(link, wanted, wait_s):
        pass
    return [_result_or_error(job.entry(), return_exceptions=return_exceptions) for job in wanted]


async def aas_completed(jobs: Iterable[Job], wait_s: Duration | None) -> AsyncIterator[Job]:
    """Yield jobs as they end, like `as_completed`."""
    limit_s = None if wait_s is None else seconds_of("wait_s", wait_s)
    tasks = {asyncio.ensure_future(job.await_end()): job for job in {job.sched_id: job for job in jobs}.values()}
    give_up_at = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
    waiting = set(tasks)
    try:
        while waiting:
            left_s = None if give_up_at is None else max(0.0, give_up_at - asyncio.get_running_loop().time())
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                left = [tasks[task].sched_id for task in waiting]
                text = f"{len(left):,} of the jobs have not ended after {limit_s:g} s: {', '.join(map(str, left))}"
                raise WaitTimeout(text, sched_ids=left)
            for task in [each for each in tasks if each in done]:
                task.result()  # raises if the store was lost
                yield tasks[task]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def agather(jobs: Iterable[Job], wait_s: Duration | None, *, return_exceptions: bool) -> list[Any]:
    """Wait for all jobs and return their results in order, like `gather`."""
    wanted = list(jobs)
    ended = {job.sched_id: await job.aentry() async for job in aas_completed(wanted, wait_s)}
    return [_result_or_error(ended[job.sched_id], return_exceptions=return_exceptions) for job in wanted]


def _result_or_error(entry: ReadyEntry, *, return_exceptions: bool) -> Any:
    try:
        return _result_of(entry)
    except RunFailed as failed:
        if not return_exceptions:
            raise
        return failed
