"""The client is a desk: the embedded one's verbs, signatures and errors, and what it does when the daemon is away."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.errors import Forbidden, InvalidInput, SchedInvalidPayload, StoreUnavailable, Unauthenticated, UnknownPid
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.rpc.client import AsyncClient, Client, connect, connect_async, is_remote
from rota.rpc.client.client import IDLE_MAX, Keys, is_safe
from rota.rpc.client.connections import Lost
from rota.rpc.error_codec import fault_of
from rota.rpc.jsonrpc import answer, refuse
from rota.rpc.methods import METHODS
from rota.service.api import Desk
from rota.service.dispatcher import Dispatcher
from tests.daemon.world import Served, make_token, serving

PARTS = ("agents", "queue", "ledger", "contexts", "projects", "journal", "supervision")


# --- the same desk -------------------------------------------------------------------------------


def test_a_client_and_an_embedded_dispatcher_are_the_same_desk(served: Served) -> None:
    kernel = Kernel(store.open(":memory:"))
    embedded: Desk = Dispatcher(kernel)
    with served.client() as client:
        remote: Desk = client
        for part in PARTS:
            near, far = getattr(embedded, part), getattr(remote, part)
            for verb, method in ((m.verb, m) for m in METHODS.values() if m.part == part):
                assert inspect.signature(getattr(far, verb)) == inspect.signature(getattr(near, verb)), method.name
        for name, _ in inspect.getmembers(Desk, inspect.isfunction):
            if not name.startswith("_"):
                assert callable(getattr(client, name))
    kernel.store.close()


@pytest.mark.parametrize("far_away", [False, True])
def test_code_written_for_a_desk_cannot_tell_them_apart(far_away: bool, served: Served) -> None:
    kernel = Kernel(store.open(":memory:"))
    client = served.client()
    desk: Desk = client if far_away else Dispatcher(kernel)
    assert _story(desk) == [
        1,
        ("completed", 2, {"ok": True}),
        (3, True, False),
        [("kernel.process.transitioned", {"prev_state": "READY", "new_state": "RUNNING", "reason": "run"})],
        "UnknownPid: no agent has pid 9. Check the id; `list` shows what exists.",
        "TypeError",
    ]
    client.close()
    kernel.store.close()


def _story(desk: Desk) -> list[Any]:
    """What a small supervisor does, and what it hears."""
    heard: list[Any] = []
    pid = desk.agents.create("agent", "callable", max_concurrent=2)
    heard.append(pid)
    desk.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, priority=5, expected={"tokens": 3})])
    (entry,) = desk.claim("worker", 1, kinds=("gpu",), incarnation="1")
    desk.ledger.create(pid, {"tokens": 2})
    charged = desk.queue.charge(entry.sched_id, {"tokens": 3}, token=entry.token)["tokens"]
    desk.complete_and_claim([Completion(entry.sched_id, token=entry.token, result={"ok": True})], "worker")
    ended = desk.queue.wait(entry.sched_id, 1.0)
    heard.append((ended.state, ended.sched_id, ended.result))
    heard.append((charged.used, charged.first_breach, charged.warned and charged.used < 2))
    since = desk.journal.cursor()
    desk.agents.transition(pid, "RUNNING", reason="run")
    heard.append([(event.kind, event.payload) for event in desk.journal.tail(since)])
    try:
        desk.agents.get(9)
    except UnknownPid as error:
        heard.append(f"{type(error).__name__}: {error}")
    try:
        desk.agents.transition(pid, nonsense=1)  # type: ignore[call-arg]
    except TypeError as error:
        heard.append(type(error).__name__)
    return heard


def test_the_queue_of_a_client_claims_strictly_whatever_the_daemons_policy(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", policy="edf") as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        soon = client.enqueue(ScheduleSpec(pid, priority=1, deadline=4e9))
        first = client.enqueue(ScheduleSpec(pid, priority=2))
        assert [entry.sched_id for entry in client.queue.claim(worker_id="w")] == [first]
        client.queue.put_back(first, token=client.get(first).token or 0)
        assert [entry.sched_id for entry in client.claim("w")] == [soon]


# --- addresses and tokens ------------------------------------------------------------------------


def test_an_address_says_what_it_is() -> None:
    assert is_remote("unix:/x")
    assert is_remote("https://h:1")
    assert not is_remote("rota.db")
    with pytest.raises(InvalidInput, match="no daemon's address"):
        connect("rota.db")


def test_the_token_comes_from_the_argument_the_environment_or_a_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token(served.path, "read")
    file = tmp_path / "token"
    file.write_text(token + "\n")
    for how, environment in (
        ({"token": token}, {}),
        ({}, {"ROTA_ACCESS_TOKEN": token}),
        ({"token_file": str(file)}, {}),
        ({}, {"ROTA_ACCESS_TOKEN_FILE": str(file)}),
    ):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with connect(served.url, **how) as client:  # type: ignore[arg-type]
                assert client.queue.counts() == {}
    monkeypatch.setenv("ROTA_TOKEN", "41")  # what a run is given: the token of its claim, which is another thing
    with connect(served.url) as client, pytest.raises(Unauthenticated, match="no token"):
        client.queue.counts()
    with connect(served.url, token=token) as client, pytest.raises(Forbidden, match="needs scope enqueue"):
        client.enqueue(ScheduleSpec(1))
    with pytest.raises(InvalidInput, match="cannot be read"):
        connect(served.url, token_file=str(tmp_path / "none"))


# --- when the daemon is away ---------------------------------------------------------------------


class Scripted:
    """Connections that do what was written down, one word for each request."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.sent: list[dict[str, Any]] = []

    def __call__(self) -> Scripted:
        if self.script and self.script[0] == "unreachable":
            self.script.pop(0)
            raise Lost("nobody listens", sent=False)
        return self

    def ask(self, body: bytes, _timeout_s: float) -> bytes:
        request = msgspec.json.decode(body)
        word = self.script.pop(0)
        if word == "unsent":
            raise Lost("gone before", sent=False)
        self.sent.append(request)
        if word == "lost":
            raise Lost("gone after", sent=True)
        if word == "refuse":
            return refuse(request["id"], fault_of(UnknownPid(7)))
        return answer(request["id"], msgspec.json.decode(word))

    def close(self) -> None:
        pass


def client_of(script: Scripted, **how: Any) -> Client:
    return Client(script, "unix:test", **how)


def test_what_was_not_sent_is_sent_again_whatever_it_is() -> None:
    script = Scripted("unreachable", "unsent", '{"sched_id":1,"state":"completed","prev_state":"dispatched"}')
    assert client_of(script).complete(1, "completed") == ("dispatched", "completed")
    assert len(script.sent) == 1


def test_what_is_safe_is_sent_again_when_its_answer_was_lost() -> None:
    script = Scripted("lost", "lost", '{"states":{"queued":1}}')
    assert client_of(script).queue.counts() == {"queued": 1}
    assert len({request["id"] for request in script.sent}) == 1


def test_what_is_not_safe_is_not() -> None:
    script = Scripted("lost")
    with pytest.raises(StoreUnavailable, match=r"kernel.sched.complete was lost .*may have been carried out"):
        client_of(script).complete(1, "completed")


def test_an_enqueue_that_is_sent_again_has_the_key_it_had() -> None:
    script = Scripted("lost", '{"sched_id":5}', "lost", '{"sched_ids":[6,7]}')
    client = client_of(script)
    assert client.enqueue(ScheduleSpec(1)) == 5
    first, again = (request["params"]["key"] for request in script.sent)
    assert first == again
    assert client.enqueue_many([ScheduleSpec(1), ScheduleSpec(1, key="mine")]) == [6, 7]
    one, two = script.sent[-1]["params"]["specs"]
    assert one["key"] not in (None, first)
    assert two["key"] == "mine"


def test_a_retried_enqueue_makes_one_entry(served: Served) -> None:
    """The daemon carries it out and the answer is lost on the way."""
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        real = client._open_connection

        class Forgetful:
            def __init__(self) -> None:
                self.inner = real()
                self.first = True

            def ask(self, body: bytes, timeout_s: float) -> bytes:
                got = self.inner.ask(body, timeout_s)
                if b"kernel.sched.enqueue" in body and lose:
                    lose.pop()
                    raise Lost("the answer was lost", sent=True)
                return got

            def close(self) -> None:
                self.inner.close()

        lose = [1, 1]
        with Client(Forgetful, "unix:test") as forgetful:
            sched_id = forgetful.enqueue(ScheduleSpec(pid))
        assert client.queue.list()[1] == 1
        assert client.get(sched_id).pid == pid


def test_a_daemon_that_stays_away_is_said_to_be_unreachable() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached: nobody listens"):
        client_of(Scripted(*["unreachable"] * 9), retry_s=0.0).info()
    with pytest.raises(StoreUnavailable, match="rota serve"), connect("unix:/nowhere/x", retry_s=0.0) as client:
        client.info()
    with pytest.raises(StoreUnavailable), connect("http://127.0.0.1:9", retry_s=0.0) as client:
        client.info()


def test_an_error_of_the_daemon_is_not_tried_again() -> None:
    script = Scripted("refuse")
    with pytest.raises(UnknownPid):
        client_of(script).enqueue(ScheduleSpec(7))
    assert script.script == []


def test_what_is_safe_is_said_in_one_place() -> None:
    keyed, bare = ScheduleSpec(1, key="k"), ScheduleSpec(1)
    enqueue, many = METHODS["kernel.sched.enqueue"], METHODS["kernel.sched.enqueue_many"]
    assert is_safe(enqueue, keyed)
    assert not is_safe(enqueue, bare)
    assert not is_safe(many, {"specs": [keyed, bare]})
    assert is_safe(METHODS["kernel.sched.claim"], {})
    assert not is_safe(METHODS["kernel.ledger.charge"], {})
    assert len({Keys().put(bare).key for _ in range(100)}) == 100


def test_what_is_no_spec_is_refused_here() -> None:
    with pytest.raises(SchedInvalidPayload):
        client_of(Scripted()).enqueue({"pid": 1})  # type: ignore[arg-type]
    with pytest.raises(SchedInvalidPayload, match="not JSON"):
        client_of(Scripted()).enqueue(ScheduleSpec(1, payload={"a": object()}))


def test_connections_are_kept_and_closed(served: Served) -> None:
    client = served.client()
    pid = client.create_agent("agent", "callable")
    threads = [threading.Thread(target=client.enqueue, args=(ScheduleSpec(pid),)) for _ in range(IDLE_MAX + 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert 1 <= len(client._idle) <= IDLE_MAX
    client.close()
    served._until(lambda: not served.daemon._connections.open)
    with pytest.raises(StoreUnavailable, match="closed"):
        client.info()


def test_a_child_process_does_not_use_its_parents_connections(served: Served) -> None:
    with served.client() as client:
        client.info()
        (kept,) = client._idle
        client._process = os.getpid() + 1  # as after a fork
        client.info()
        assert kept not in client._idle
        kept.close()


# --- with an event loop --------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_the_client_for_event_loops_is_the_same_desk(served: Served, transport: str) -> None:
    address = served.unix if transport == "unix" else served.url
    token = make_token(served.path, "admin")

    async def story() -> None:
        how: dict[str, Any] = {} if transport == "unix" else {"token": token}
        async with connect_async(address, **how) as client:
            pid = await client.create_agent("agent", "callable")
            waiting = [asyncio.create_task(client.claim(f"w{n}", wait_s=30.0)) for n in range(3)]
            ids = await client.enqueue_many([ScheduleSpec(pid) for _ in range(3)])
            entries = [entry for claimed in await asyncio.gather(*waiting) for entry in claimed]
            assert sorted(entry.sched_id for entry in entries) == ids
            assert entries[0].token is not None
            await client.heartbeat(entries[0].sched_id, entries[0].token)
            answers = await client.complete_many([Completion(e.sched_id, token=e.token) for e in entries])
            assert answers == [("dispatched", "completed")] * 3
            assert (await client.wait(ids[0], 1.0)).state == "completed"
            assert (await client.agents.get(pid)).name == "agent"
            with pytest.raises(UnknownPid):
                await client.enqueue(ScheduleSpec(99))
            async for event in client.follow(0):
                if event.kind == "kernel.sched.claimed":
                    break

    asyncio.run(story())


def test_the_client_for_event_loops_finds_a_daemon_that_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")

    async def story() -> None:
        with serving(path) as served:
            client = AsyncClient(served.unix)
            pid = await client.create_agent("agent", "callable")
        again = asyncio.create_task(client.enqueue(ScheduleSpec(pid)))
        await asyncio.sleep(0)
        served = await asyncio.to_thread(Served, path)
        assert await again == 1
        await client.close()
        await asyncio.to_thread(served.stop)

    asyncio.run(story())
