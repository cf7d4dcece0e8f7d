"""Many clients at a time: shared commits, one wake for each commit, and no entry is claimed twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc import Client, connect
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.handlers import LOCAL, RpcHandlers
from rota.rpc.methods import METHODS
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import Raw, Served, make_token, serving

CLIENTS = 16


class Caller:
    """A caller that reads its responses."""

    def __init__(self, reply: Callable[[Any, BaseException | None], None]) -> None:
        self.reply = reply
        self.encode = msgspec.json.encode

    def may_run(self) -> bool:
        return True


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_sixteen_clients_never_run_an_entry_twice(tmp_path: Path, transport: str) -> None:
    each = 25
    with serving(tmp_path / "rota.db", policy="eevdf") as served:
        token = make_token(served.path, "admin")
        address = served.unix if transport == "unix" else served.url
        with connect(address, token=token) as client:
            pids = [client.create_agent(f"agent {number}", "callable") for number in range(4)]

            def work(number: int) -> list[int]:
                with connect(address, token=token) as own:
                    for step in range(each):
                        own.enqueue(ScheduleSpec(pids[step % 4], payload={"from": number}))
                    return _drain(own, f"worker {number}")

            with ThreadPoolExecutor(CLIENTS) as pool:
                ran = [sched_id for ids in pool.map(work, range(CLIENTS)) for sched_id in ids]
            assert Counter(ran) == Counter(range(1, CLIENTS * each + 1))
            assert client.queue.counts() == {"completed": CLIENTS * each}


def _drain(client: Client, worker_id: str) -> list[int]:
    ran = []
    while entries := client.claim(worker_id, 2, wait_s=0.2):
        for entry in entries:
            client.complete(entry.sched_id, "completed", token=entry.token)
            ran.append(entry.sched_id)
    return ran


def test_a_client_may_be_used_by_many_threads(served: Served) -> None:
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        with ThreadPoolExecutor(CLIENTS) as pool:
            ids = list(pool.map(lambda _: client.enqueue(ScheduleSpec(pid)), range(200)))
    assert sorted(ids) == list(range(1, 201))


def test_simultaneous_requests_share_a_commit_and_wake_the_loop_once(tmp_path: Path) -> None:
    """A batch, or lines of many connections, are read together: they form one group with one commit."""
    joint = store.open_joined(str(tmp_path / "rota.db"))
    handlers = RpcHandlers(kernel := Kernel(joint), Dispatcher(kernel))
    pid = kernel.agents.create("agent")
    commits: list[int] = []
    joint.on_change(lambda: commits.append(1))

    async def together(here: bool) -> tuple[int, int, list[Any]]:
        executor = CallExecutor(asyncio.get_running_loop(), joint, handlers)
        if not here:
            executor._inline_from = float("inf")  # as after a slow commit
        answers: list[Any] = []
        done = asyncio.Event()

        def reply(result: Any, error: BaseException | None) -> None:
            answers.append(result if error is None else error)
            if len(answers) == 20:
                done.set()

        commits.clear()
        for step in range(20):
            spec = ScheduleSpec(pid, payload={"step": step})
            executor.submit(METHODS["kernel.sched.enqueue"], spec, LOCAL, Caller(reply))
        await done.wait()
        executor.close()
        return len(commits), executor.wakes, answers

    for here in (True, False):
        count, wakes, answers = asyncio.run(together(here))
        assert (count, wakes) == (1, 1)
        ids = [answer.sched_id for answer in answers]
        assert ids == list(range(ids[0], ids[0] + 20))
    handlers.close()
    joint.close()


def test_a_group_waits_for_the_writer_thread_and_then_runs_in_the_loop(tmp_path: Path) -> None:
    """Else groups that find the thread busy would follow each other to it for as long as the load lasts."""
    joint = store.open_joined(str(tmp_path / "rota.db"))
    handlers = RpcHandlers(kernel := Kernel(joint), Dispatcher(kernel))
    pid = kernel.agents.create("agent")
    committed_by: list[str] = []
    submitted = threading.Event()

    def committed() -> None:
        committed_by.append(threading.current_thread().name)
        if committed_by == ["rota-writer"]:
            submitted.wait()  # the thread has not delivered yet

    joint.on_change(committed)

    async def groups() -> list[int]:
        executor = CallExecutor(asyncio.get_running_loop(), joint, handlers)
        ids: list[int] = []
        done = asyncio.Event()

        def reply(result: Any, error: BaseException | None) -> None:
            assert error is None
            ids.append(result.sched_id)
            if len(ids) == 12:
                done.set()

        for inline_from in (float("inf"), 0.0, 0.0):  # the first as after a slow commit
            executor._inline_from = inline_from
            for _ in range(4):
                executor.submit(METHODS["kernel.sched.enqueue"], ScheduleSpec(pid), LOCAL, Caller(reply))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        submitted.set()
        await done.wait()
        executor.close()
        return ids

    assert asyncio.run(groups()) == list(range(1, 13))
    assert committed_by == ["rota-writer", threading.current_thread().name]
    handlers.close()
    joint.close()


def test_a_failing_request_does_not_affect_the_others_of_its_group(served: Served) -> None:
    with served.client() as client, Raw(served.unix) as raw:
        pid = client.create_agent("agent", "callable")
        specs = [{"pid": pid}, {"pid": 99}, {"pid": pid, "after": [77]}, {"pid": pid}]
        lines = [
            msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": "kernel.sched.enqueue", "params": spec})
            for number, spec in enumerate(specs)
        ]
        raw.send(b"\n".join(lines) + b"\n")
        answers = {answer["id"]: answer for answer in (raw.receive() for _ in specs)}
        assert [answers[number].get("error", {}).get("code") for number in range(4)] == [None, -32102, -32132, None]
        assert client.queue.counts() == {"queued": 2}


def test_a_waiting_claim_holds_no_thread(served: Served) -> None:
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        waiters = [Raw(served.unix) for _ in range(100)]
        params = {"worker_id": "w", "wait_s": 60.0}
        body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.claim", "params": params}
        before = threading.active_count()
        for raw in waiters:
            raw.send(msgspec.json.encode(body) + b"\n")
        served.until_parked(100)
        assert threading.active_count() <= before + 2, (
            "the writer and the file watcher, if they had not been started yet"
        )
        ids = client.enqueue_many([ScheduleSpec(pid)] * 100)
        got = [raw.receive()["result"]["entries"][0]["sched_id"] for raw in waiters]
        assert sorted(got) == ids
        for raw in waiters:
            raw.close()


def test_a_waiting_claim_that_leaves_out_an_agent_stands_for_no_other(served: Served) -> None:
    with served.client() as client, Raw(served.unix) as without, Raw(served.unix) as both:
        pid = client.create_agent("agent", "callable")
        for worker, raw, left_out in (("without", without, [pid]), ("both", both, [])):
            params = {"worker_id": worker, "wait_s": 60.0, "except_agents": left_out}
            body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.claim", "params": params}
            raw.send(msgspec.json.encode(body) + b"\n")
            served.until_parked(1 if worker == "without" else 2)
        sched_id = client.enqueue(ScheduleSpec(pid))  # the oldest claim is tried first, and finds nothing
        assert [entry["sched_id"] for entry in both.receive()["result"]["entries"]] == [sched_id]
        assert client.claim("again", except_agents=(pid,)) == []


def test_a_waiting_call_has_one_check_at_a_time(served: Served) -> None:
    """Otherwise calls that wait for rare events would add work faster than it is done."""
    with served.client() as client, Raw(served.unix) as raw:
        params = {"since": client.journal.cursor(), "kinds": ["rare"], "wait_s": 600.0}
        body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.event.tail", "params": params}
        raw.send(msgspec.json.encode(body) + b"\n")
        pages = served.daemon.executor._pages
        served._until(
            lambda: any(call.waits and not call.checking for call in set(served.daemon.executor.pending_calls))
        )
        release = threading.Event()
        pages._pool.submit(release.wait, 30.0)
        for _ in range(50):
            client.journal.append(None, "often")
        assert pages._pool._work_queue.qsize() + sum(map(len, pages._waiting.values())) == 1
        release.set()
        event_id = client.journal.append(None, "rare")
        assert [event["event_id"] for event in raw.receive()["result"]["events"]] == [event_id]


def test_a_disconnected_client_claims_nothing(served: Served) -> None:
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        gone = Raw(served.unix)
        params = {"worker_id": "gone", "wait_s": 60.0}
        gone.send(msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.claim", "params": params}))
        gone.send(b"\n")
        served.until_parked(1)
        gone.close()
        served._until(lambda: served.daemon.store.parked == 0)
        sched_id = client.enqueue(ScheduleSpec(pid))
        assert [entry.sched_id for entry in client.claim("here")] == [sched_id]


def test_entries_claimed_for_a_disconnected_client_return_to_the_queue(tmp_path: Path) -> None:
    joint = store.open_joined(str(tmp_path / "rota.db"))
    handlers = RpcHandlers(kernel := Kernel(joint), Dispatcher(kernel))
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("agent")))

    async def claim_and_go() -> None:
        executor = CallExecutor(asyncio.get_running_loop(), joint, handlers)
        method = METHODS["kernel.sched.claim"]
        params = msgspec.convert({"worker_id": "gone"}, method.params)
        call = executor.submit(method, params, LOCAL, Caller(lambda *_: pytest.fail("the client is gone")))
        executor.withdraw(call)  # before its group runs, but too late to stop it
        while executor.pending_calls or kernel.queue.get(sched_id).state != "queued":
            await asyncio.sleep(0)
        executor.close()

    asyncio.run(claim_and_go())
    entry = kernel.queue.get(sched_id)
    assert (entry.state, entry.attempt) == ("queued", 0)
    handlers.close()
    joint.close()


def test_a_process_that_opens_the_file_works_beside_the_daemon(served: Served) -> None:
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        kernel = Kernel(store.open(served.path))
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.extend(e.sched_id for e in client.claim("worker", wait_s=60.0)))
        waiter.start()
        served.until_parked(1)
        sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
        waiter.join(30.0)
        assert got == [sched_id]
        kernel.queue.complete(sched_id, "completed")
        assert client.wait(sched_id, 30.0).state == "completed"
        kernel.store.close()
