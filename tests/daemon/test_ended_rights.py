"""A token that is revoked or expires, and a run that ends, end what they wait for at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import RotaError, StaleClaim, Unauthenticated
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc.daemon import ended_rights
from rota.rpc.daemon.ended_rights import EndedRights
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import PATIENCE_S, Raw, Served, make_token
from tests.daemon.http_client import Stream, call

WAIT_S = 600.0  # longer than any test: only the end of the rights ends the wait


def revoke(served: Served, token: str) -> None:
    with served.client() as client:
        client.tokens.revoke(token.split("_")[1])


class Waiting(threading.Thread):
    """A call over HTTP that waits."""

    def __init__(self, served: Served, access_token: str, method: str, /, **params: Any) -> None:
        super().__init__(daemon=True)
        self._call: Callable[[], Any] = lambda: call(served.url, access_token, method, {**params, "wait_s": WAIT_S})
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        self.answer = self._call()

    def refused(self) -> str:
        """The message of the error that ends it."""
        self.join(PATIENCE_S)
        assert self.answer["error"]["code"] == Unauthenticated.code
        return str(self.answer["error"]["message"])


def test_a_revoked_token_ends_its_stream(served: Served) -> None:
    token, other = make_token(served.path, "read"), make_token(served.path, "read")
    with Stream(served.url, token) as stream, Stream(served.url, other) as kept:
        frames, others = stream.frames(), kept.frames()
        revoke(served, token)
        last = list(frames)[-1]
        assert last.event == "ended"
        assert "was revoked" in last.data["reason"]
        with served.client() as client:
            client.journal.append(None, "later")
        assert any(frame.event == "later" for frame in others), "the stream of another token goes on"


def test_a_revoked_token_ends_its_parked_claim_and_gets_no_entry(served: Served) -> None:
    token = make_token(served.path, "work")
    with served.client() as client:
        pid = client.agents.create("agent")
        claim = Waiting(served, token, "kernel.sched.claim", worker_id="thief")
        served.until_parked(1)
        revoke(served, token)
        assert "was revoked" in claim.refused()
        client.enqueue(ScheduleSpec(pid))
        assert [entry.attempt for entry in client.claim("honest")] == [1]


def test_a_revoked_token_ends_its_wait_and_its_tail(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client:
        sched_id = client.enqueue(ScheduleSpec(client.agents.create("agent")))
        wait = Waiting(served, token, "kernel.sched.wait", sched_id=sched_id)
        tail = Waiting(served, token, "kernel.event.tail", since=1_000_000)
        served.until_watched(sched_id)
        served._until(lambda: len(served.daemon.executor.rights._watched) == 2)
        revoke(served, token)
        assert "was revoked" in wait.refused()
        assert "was revoked" in tail.refused()
    assert not served.daemon.executor.rights._watched


def test_a_token_that_is_revoked_while_its_request_is_received_is_refused(served: Served) -> None:
    token = make_token(served.path, "enqueue")
    with served.client() as client:
        pid = client.agents.create("agent")
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.enqueue", "params": {"pid": pid}})
    parts = urlsplit(served.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE_S) as connection:
        head = f"POST /rpc HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        served._until(lambda: any(each._request for each in served.daemon.transport.connections.open()))  # type: ignore[union-attr]
        revoke(served, token)
        connection.sendall(body[10:])
        assert b"was revoked" in connection.recv(65536)
    with served.client() as client:
        assert client.queue.list()[1] == 0


def test_on_the_unix_socket_too(served: Served) -> None:
    token = make_token(served.path, "read")
    with Raw(served.unix) as raw:
        raw.ask("system.hello", {"protocol": 1, "access_token": token})
        assert "result" in raw.ask("kernel.sched.counts")
        revoke(served, token)
        assert "was revoked" in raw.ask("kernel.sched.counts")["error"]["message"]


def test_a_run_that_ends_ends_its_wait(served: Served) -> None:
    with served.client() as client:
        pid = client.agents.create("agent")
        first, second = client.enqueue(ScheduleSpec(pid)), client.enqueue(ScheduleSpec(pid))
        (entry,) = client.claim("worker")
        assert (entry.sched_id, entry.token is not None) == (first, True)
        token = client.supervision.access_token(first, entry.token or 0)
        wait = Waiting(served, token, "kernel.sched.wait", sched_id=second)
        served.until_watched(second)
        client.queue.complete(first, "completed", token=entry.token)
        assert "has ended" in wait.refused()


@pytest.mark.parametrize("ends", ["revoked", "completed"])
def test_an_ask_of_a_limit_that_waits_ends_with_the_rights_of_its_caller(served: Served, ends: str) -> None:
    with served.client() as client:
        pid = client.agents.create("agent")
        client.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=3_600.0)
        client.enqueue(ScheduleSpec(pid))
        client.enqueue(ScheduleSpec(pid))
        holder, asker = client.claim("worker", 2)
        assert client.supervision.acquire(holder.sched_id, holder.token or 0, "api", {"tokens": 10}, key="a").granted_at
        own = client.supervision.access_token(asker.sched_id, asker.token or 0)
        token = make_token(served.path, "work") if ends == "revoked" else own
        ask: dict[str, Any] = {"name": "api", "amounts": {"tokens": 5}, "key": "b"}
        ids = {"sched_id": asker.sched_id, "token": asker.token}
        wait = Waiting(served, token, "kernel.run.acquire", **ids, **ask)
        served.until_parked(1)
        if ends == "revoked":
            revoke(served, token)
            assert "was revoked" in wait.refused()
        else:
            client.queue.complete(asker.sched_id, "completed", token=asker.token)
            wait.join(PATIENCE_S)
            assert wait.answer["error"]["code"] in (Unauthenticated.code, StaleClaim.code)


def test_a_token_that_expires_ends_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_rights, "CHECK_EVERY_S", (0.001, 0.001))
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(str(tmp_path / "rota.db"), clock=clock))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    token = handlers.call("system.token_create", name="t", scope="read", expires_in_s=10.0).token
    principal = handlers.tokens.authenticate(token, "here")

    async def story() -> RotaError:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[RotaError] = loop.create_future()
        rights = EndedRights(loop, handlers.tokens, clock, deliver=lambda _call, *_: None)
        rights.watch(principal, ended.set_result)
        clock.advance(9.9)
        rights._check_all()
        assert not ended.done()
        clock.advance(0.1)
        return await ended

    assert "has expired" in asyncio.run(story()).message
    handlers.close()
    kernel.store.close()
