"""The client has the API, signatures and errors of the embedded dispatcher, and retries when the daemon is away."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.errors import Forbidden, InvalidInput, SchedInvalidPayload, StoreUnavailable, Unauthenticated, UnknownPid
from rota.kernel import Completion, Kernel, RunReport, ScheduleSpec
from rota.model.events import FleetReloaded
from rota.rpc import AsyncClient, Client, connect, connect_async, is_remote
from rota.rpc.client.client import IDLE_MAX
from rota.rpc.client.connections import UnixConnection
from rota.rpc.client.remote_calls import CallKeys, ConnectionLost, is_retry_safe
from rota.rpc.error_codec import to_error_object
from rota.rpc.jsonrpc import encode_error, encode_result
from rota.rpc.methods import METHODS
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import Served, make_token, serving

PARTS = ("agents", "queue", "ledger", "contexts", "projects", "journal", "supervision")


# --- the same API --------------------------------------------------------------------------------


def test_a_client_and_an_embedded_dispatcher_have_the_same_api(served: Served) -> None:
    kernel = Kernel(store.open(":memory:"))
    embedded: SchedulerApi = Dispatcher(kernel)
    with served.client() as client:
        remote: SchedulerApi = client
        for part in PARTS:
            near, far = getattr(embedded, part), getattr(remote, part)
            for verb, method in ((m.verb, m) for m in METHODS.values() if m.part == part):
                assert inspect.signature(getattr(far, verb)) == method.signature, method.name
                assert callable(getattr(near, verb))
        for name, _ in inspect.getmembers(SchedulerApi, inspect.isfunction):
            if not name.startswith("_"):
                assert callable(getattr(client, name))
    kernel.store.close()


@pytest.mark.parametrize("remote", [False, True])
def test_code_written_for_the_api_runs_on_both(remote: bool, served: Served) -> None:
    kernel = Kernel(store.open(":memory:"))
    client = served.client()
    api: SchedulerApi = client if remote else Dispatcher(kernel)
    assert _story(api) == [
        1,
        ("completed", 2, {"ok": True}),
        (3, True, False),
        [("kernel.process.transitioned", {"prev_state": "READY", "new_state": "RUNNING", "reason": "run"})],
        "UnknownPid: no agent has pid 9. Check the pid; `rota agents` lists them.",
        "TypeError",
    ]
    client.close()
    kernel.store.close()


def _story(api: SchedulerApi) -> list[Any]:
    """The results of a small supervisor's calls."""
    results: list[Any] = []
    pid = api.agents.create("agent", "callable", max_concurrent=2)
    results.append(pid)
    api.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, priority=5, expected={"tokens": 3})])
    (entry,) = api.claim("worker", 1, kinds=("gpu",), incarnation="1")
    api.ledger.create(pid, {"tokens": 2})
    charged = api.queue.charge(entry.sched_id, {"tokens": 3}, token=entry.token)["tokens"]
    api.complete_and_claim([Completion(entry.sched_id, token=entry.token, result={"ok": True})], "worker")
    ended = api.queue.wait(entry.sched_id, 1.0)
    results.append((ended.state, ended.sched_id, ended.result))
    results.append((charged.used, charged.first_breach, charged.warned and charged.used < 2))
    since = api.journal.cursor()
    api.agents.transition(pid, "RUNNING", reason="run")
    results.append([(event.kind, event.payload) for event in api.journal.tail(since)])
    try:
        api.agents.get(9)
    except UnknownPid as error:
        results.append(f"{type(error).__name__}: {error}")
    try:
        api.agents.transition(pid, nonsense=1)  # type: ignore[call-arg]
    except TypeError as error:
        results.append(type(error).__name__)
    return results


def test_the_queue_of_a_client_claims_in_strict_order_unless_the_store_has_a_policy(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        soon = client.enqueue(ScheduleSpec(pid, priority=1, deadline=4e9))
        first = client.enqueue(ScheduleSpec(pid, priority=2))
        assert [entry.sched_id for entry in client.queue.claim(worker_id="w")] == [first]
        client.queue.put_back(first, token=client.get(first).token or 0)
        client.policies.set("edf")
        assert [entry.sched_id for entry in client.queue.claim(worker_id="w")] == [soon]
        assert [entry.sched_id for entry in client.claim("w")] == [first]


# --- addresses and tokens ------------------------------------------------------------------------


def test_an_address_is_a_file_or_a_daemon() -> None:
    assert is_remote("unix:/x")
    assert is_remote("https://h:1")
    assert not is_remote("rota.db")
    with pytest.raises(InvalidInput, match="not the address of a daemon"):
        connect("rota.db")


def test_the_token_comes_from_the_argument_the_environment_or_a_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token(served.path, "read")
    file = tmp_path / "token"
    file.write_text(token + "\n")
    for options, environment in (
        ({"token": token}, {}),
        ({}, {"ROTA_ACCESS_TOKEN": token}),
        ({"token_file": str(file)}, {}),
        ({}, {"ROTA_ACCESS_TOKEN_FILE": str(file)}),
    ):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with connect(served.url, **options) as client:  # type: ignore[arg-type]
                assert client.queue.counts() == {}
    monkeypatch.setenv("ROTA_TOKEN", "41")  # the claim token of a run, which is not an access token
    with connect(served.url) as client, pytest.raises(Unauthenticated, match="no access token"):
        client.queue.counts()
    with connect(served.url, token=token) as client, pytest.raises(Forbidden, match="needs scope enqueue"):
        client.enqueue(ScheduleSpec(1))
    with pytest.raises(InvalidInput, match="cannot be read"):
        connect(served.url, token_file=str(tmp_path / "none"))


# --- when the daemon is away ---------------------------------------------------------------------


class Scripted:
    """Connections that follow a script, one word for each request."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.sent: list[dict[str, Any]] = []

    def __call__(self) -> Scripted:
        if self.script and self.script[0] == "unreachable":
            self.script.pop(0)
            raise ConnectionLost("connection refused", sent=False)
        return self

    def request(self, body: bytes, _timeout_s: float) -> bytes:
        request = msgspec.json.decode(body)
        word = self.script.pop(0)
        if word == "unsent":
            raise ConnectionLost("gone before", sent=False)
        self.sent.append(request)
        if word == "lost":
            raise ConnectionLost("gone after", sent=True)
        if word == "refuse":
            return encode_error(request["id"], to_error_object(UnknownPid(7)))
        return encode_result(request["id"], msgspec.json.decode(word))

    def close(self) -> None:
        pass


def client_of(script: Scripted, **options: Any) -> Client:
    return Client(script, "unix:test", **options)


def test_any_call_that_was_not_sent_is_retried() -> None:
    script = Scripted("unreachable", "unsent", '{"sched_id":1,"state":"completed","prev_state":"dispatched"}')
    assert client_of(script).complete(1, "completed") == ("dispatched", "completed")
    assert len(script.sent) == 1


def test_a_safe_call_is_retried_when_its_response_was_lost() -> None:
    script = Scripted("lost", "lost", '{"states":{"queued":1}}')
    assert client_of(script).queue.counts() == {"queued": 1}
    assert len({request["id"] for request in script.sent}) == 1


def test_the_charge_of_a_run_is_retried_with_the_same_key() -> None:
    line = (
        '{"lines":{"tokens":{"used":5,"granted":10,"hard_limit":10,'
        '"over_limit":false,"first_breach":false,"warned":false}}}'
    )
    script = Scripted("lost", line, line)
    client = client_of(script)
    assert client.queue.charge(1, {"tokens": 5})["tokens"].used == 5
    client.queue.charge(1, {"tokens": 5})
    first, again, next_one = (request["params"]["key"] for request in script.sent)
    assert first == again != next_one


def test_an_unsafe_call_is_not_retried_when_its_response_was_lost() -> None:
    script = Scripted("lost")
    with pytest.raises(StoreUnavailable, match=r"kernel.sched.complete was lost .*may have been executed"):
        client_of(script).complete(1, "completed")


def test_a_retried_enqueue_has_the_same_key() -> None:
    script = Scripted("lost", '{"sched_id":5}', "lost", '{"sched_ids":[6,7]}')
    client = client_of(script)
    assert client.enqueue(ScheduleSpec(1)) == 5
    first, again = (request["params"]["key"] for request in script.sent)
    assert first == again
    assert client.enqueue_many([ScheduleSpec(1), ScheduleSpec(1, key="mine")]) == [6, 7]
    one, two = script.sent[-1]["params"]["specs"]
    assert one["key"] not in (None, first)
    assert two["key"] == "mine"


def test_a_retried_enqueue_creates_one_entry(served: Served) -> None:
    """The daemon executes it and the response is lost."""
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        real = client._open_connection

        class Forgetful:
            def __init__(self) -> None:
                self.inner = real()
                self.first = True

            def request(self, body: bytes, timeout_s: float) -> bytes:
                got = self.inner.request(body, timeout_s)
                if b"kernel.sched.enqueue" in body and lose:
                    lose.pop()
                    raise ConnectionLost("the response was lost", sent=True)
                return got

            def close(self) -> None:
                self.inner.close()

        lose = [1, 1]
        with Client(Forgetful, "unix:test") as forgetful:
            sched_id = forgetful.enqueue(ScheduleSpec(pid))
        assert client.queue.list()[1] == 1
        assert client.get(sched_id).pid == pid


def test_a_daemon_that_stays_away_is_reported_as_unreachable() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached: connection refused"):
        client_of(Scripted(*["unreachable"] * 9), retry_s=0.0).info()
    with pytest.raises(StoreUnavailable, match="rota serve"), connect("unix:/nowhere/x", retry_s=0.0) as client:
        client.info()
    with pytest.raises(StoreUnavailable), connect("http://127.0.0.1:9", retry_s=0.0) as client:
        client.info()


def test_an_error_of_the_daemon_is_not_retried() -> None:
    script = Scripted("refuse")
    with pytest.raises(UnknownPid):
        client_of(script).enqueue(ScheduleSpec(7))
    assert script.script == []


def test_which_calls_are_safe_to_retry() -> None:
    keyed, bare = ScheduleSpec(1, key="k"), ScheduleSpec(1)
    enqueue, many = METHODS["kernel.sched.enqueue"], METHODS["kernel.sched.enqueue_many"]
    assert is_retry_safe(enqueue, keyed)
    assert not is_retry_safe(enqueue, bare)
    assert not is_retry_safe(many, many.params([keyed, bare]))
    claim, turn = METHODS["kernel.sched.claim"], METHODS["kernel.run.turn"]
    assert is_retry_safe(claim, claim.params("worker"))
    assert is_retry_safe(turn, turn.params([], "worker"))
    assert not is_retry_safe(turn, turn.params([RunReport(sched_id=1, token=1)], "worker"))
    charge, charge_run = METHODS["kernel.ledger.charge"], METHODS["kernel.sched.charge"]
    assert not is_retry_safe(charge, charge.params(1, "tokens", 1))
    assert not is_retry_safe(charge_run, charge_run.params(1, {"tokens": 1}))
    assert is_retry_safe(charge_run, charge_run.params(1, {"tokens": 1}, key="k"))
    assert len({CallKeys().add(bare).key for _ in range(100)}) == 100


def test_an_invalid_spec_is_rejected_by_the_client() -> None:
    with pytest.raises(SchedInvalidPayload):
        client_of(Scripted()).enqueue({"pid": 1})  # type: ignore[arg-type]
    with pytest.raises(SchedInvalidPayload, match="not JSON"):
        client_of(Scripted()).enqueue(ScheduleSpec(1, payload={"a": object()}))


def test_a_connection_whose_response_comes_after_the_client_was_closed_is_closed(served: Served) -> None:
    made: list[UnixConnection] = []

    class Late(UnixConnection):
        def request(self, body: bytes, timeout_s: float) -> bytes:
            response = super().request(body, timeout_s)
            if made:  # it is connected
                client.close()  # as another thread does
            return response

    def open_connection() -> UnixConnection:
        made.append(Late(served.unix.removeprefix("unix:"), None, 5.0))
        return made[0]

    client = Client(open_connection, served.unix)
    assert client.journal.cursor() >= 0
    assert made[0]._socket.fileno() == -1


def test_connections_are_pooled_and_closed(served: Served) -> None:
    client = served.client()
    pid = client.create_agent("agent", "callable")
    threads = [threading.Thread(target=client.enqueue, args=(ScheduleSpec(pid),)) for _ in range(IDLE_MAX + 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert 1 <= len(client._idle) <= IDLE_MAX
    client.close()
    served._until(lambda: len(served.daemon.listener.connections) == 0)
    with pytest.raises(StoreUnavailable, match="closed"):
        client.info()


# --- with an event loop --------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_the_async_client_has_the_same_api(served: Served, transport: str) -> None:
    address = served.unix if transport == "unix" else served.url
    token = make_token(served.path, "admin")

    async def story() -> None:
        options: dict[str, Any] = {} if transport == "unix" else {"token": token}
        async with connect_async(address, **options) as client:
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


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_a_supervisor_can_use_the_async_client(served: Served, transport: str) -> None:
    options: dict[str, Any] = {} if transport == "unix" else {"token": make_token(served.path, "admin")}

    async def story() -> None:
        client = connect_async(served.unix if transport == "unix" else served.url, **options)
        pid = await client.agents.create("agent")
        sched_id = await client.queue.enqueue(ScheduleSpec(pid))
        assert (await client.explain(sched_id)).sched_id == sched_id
        (entry,) = (await client.turn([], "supervisor", 1)).entries
        assert entry.token is not None
        await client.supervision.began(sched_id, entry.token, slot="s1", runner="test")
        await client.supervision.checkpoint(sched_id, entry.token, {"step": 1})
        turn = await client.turn([RunReport(sched_id=sched_id, token=entry.token)], "supervisor", 0)
        assert turn.answers == [("dispatched", "completed")]
        await client.journal.remember("cursor", {"at": 3})
        assert await client.journal.recall("cursor") == {"at": 3}
        since = await client.journal.cursor()
        event_id = await client.journal.record(FleetReloaded(changes={"agents": 1}))
        assert await client.journal.wait(since, 5.0) == event_id
        assert [event.event_id async for event in client.journal.follow(since, wait_s=0.05)] == [event_id]
        last = await client.queue.enqueue(ScheduleSpec(pid))
        assert [each.sched_id for each in await client.queue.claim(worker_id="w")] == [last]
        made = await client.tokens.create("ci", "read")
        assert [line.token_id for line in await client.tokens.list()][-1] == made.line.token_id
        assert (await client.info())["agent_count"] == 1
        await client.terminate(pid, "completed")
        await client.close()
        with pytest.raises(StoreUnavailable, match="the client is closed"):
            await client.info()

    asyncio.run(story())


def test_the_async_client_reconnects_to_a_restarted_daemon(tmp_path: Path) -> None:
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
