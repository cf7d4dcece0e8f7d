"""Jobs in coroutines: everything that waits has a twin that leaves the event loop free."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rota import Rota
from rota.errors import RunFailed, WaitTimeout

PATIENCE_S = 30.0
MANY = 100  # more than the threads that an event loop has for blocking calls


def test_a_coroutine_enqueues_runs_and_waits_behind_every_door(anywhere: Rota) -> None:
    @anywhere.agent
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @anywhere.agent(max_attempts=1)
    def broken() -> None:
        raise ValueError("no")

    async def program() -> list[Any]:
        running = asyncio.create_task(anywhere.arun(2))
        job = await double.aenqueue(1)
        found = [await job, (await job.aentry()).state, await job.astatus(), await job.aerrors(), await job.aprogress()]
        jobs = await double.amap(range(3))
        found.append(await anywhere.agather(*jobs, wait_s=PATIENCE_S))
        found.append(sorted([await each.aresult() async for each in anywhere.aas_completed(jobs)]))
        failed = await broken.aenqueue_many([{}])
        with pytest.raises(RunFailed, match="ValueError: no"):
            await failed[0]
        assert (await failed[0].await_end()).exit_kind == "failed"
        later = await double.aenqueue(9, delay=1000)
        with pytest.raises(WaitTimeout, match=f"entry {later.sched_id} has not ended after 0.01 s"):
            await later.aresult(wait_s=0.01)
        with pytest.raises(WaitTimeout, match="1 of the jobs have not ended"):
            await anywhere.agather(later, wait_s=0.01)
        found.append(await later.acancel())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return found

    assert asyncio.run(program()) == [2, "completed", "succeeded", [], None, [0, 2, 4], [0, 2, 4], "cancelled"]


def test_many_jobs_are_awaited_without_a_thread_for_each() -> None:
    gate = threading.Event()

    async def program() -> None:
        async with Rota() as rota:

            @rota.agent
            def opens(number: int) -> int:
                assert gate.wait(PATIENCE_S)
                return number

            jobs = await opens.amap(range(MANY))
            waiting = [asyncio.ensure_future(job.aresult()) for job in jobs]
            while len(rota._link.ends._calls) < MANY:  # all of them wait, and calls are still answered
                await opens.aenqueue(0, key="once")
            assert threading.active_count() < MANY
            running = asyncio.create_task(rota.arun(4))
            gate.set()
            assert await asyncio.gather(*waiting) == list(range(MANY))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(program())


def test_awaiting_ends_with_an_error_if_the_journal_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even for a defect, which nothing expects: who awaits a job must not wait for ever."""

    def broken(*_: object) -> int:
        raise KeyError("a defect")

    async def program() -> None:
        async with Rota() as rota:

            @rota.agent
            def never() -> None: ...

            job = await never.aenqueue()
            monkeypatch.setattr(rota.api.journal, "wait", broken)
            for _ in range(2):  # the second time there is a new thread
                with pytest.raises(KeyError, match="a defect"):
                    await asyncio.wait_for(job.aresult(), PATIENCE_S)

    asyncio.run(program())


def test_awaiting_ends_with_an_error_if_the_store_is_closed() -> None:
    async def program() -> None:
        rota = Rota()

        @rota.agent
        def never() -> None: ...

        job = await never.aenqueue()
        waiting = asyncio.ensure_future(job.aresult())
        while not rota._link.ends._calls:
            await asyncio.sleep(0)
        await rota.aclose()
        with pytest.raises(Exception, match="closed"):
            await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(program())
