"""The MCP server over streamable HTTP, with the official client: against a file and against a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mcp import Client
from rota.errors import InvalidInput
from rota.kernel import ScheduleSpec
from rota.mcp.http import McpLimits
from rota.mcp.upstream import upstream_of
from rota.rpc import DaemonLimits, HttpSettings, connect
from rota.rpc.daemon.runtime_dir import find_daemon
from tests.daemon.harness import PATIENCE_S, make_token, serving
from tests.mcp.clients import ToolFailed, http_server, offered, over_http, use, with_client
from tests.mcp.conftest import Office

CLIENTS = 100
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_work", "arguments": {}}}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@contextmanager
def serving_both(path: Path, kind: str) -> Iterator[str]:
    """Serve a file by itself, or a daemon that serves the file."""
    if kind == "file":
        with http_server(str(path), allow_write=True) as url:
            assert find_daemon(str(path)) is None
            yield url
    else:
        with serving(path, http=False) as served, http_server(served.unix, allow_write=True) as url:
            yield url


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("kind", ["file", "daemon"])
def test_a_client_reads_and_writes_with_its_token(path: Path, kind: str, mode: str) -> None:
    token = make_token(str(path), "enqueue", projects=("lab",))

    async def work(client: Client) -> None:
        assert await offered(client) >= {"list_work", "enqueue"}
        made = await use(client, "enqueue", agent="coder", payload={"n": 1})
        shown = await use(client, "show_work", sched_id=made["sched_id"])
        assert shown["payload"] == {"n": 1}
        assert (await client.read_resource("rota://glossary")).contents
        assert (await client.get_prompt("diagnose_a_stuck_fleet")).messages

    with serving_both(path, kind) as url:
        with_client(over_http(url, token, mode), work)


def test_a_file_with_a_daemon_is_read_through_that_daemon(path: Path) -> None:
    token = make_token(str(path), "read")
    with serving(path, http=False), http_server(str(path)) as url:
        with_client(over_http(url, token), lambda client: use(client, "list_work"))


def post(url: str, headers: dict[str, str] | None = None, body: Any = CALL) -> httpx2.Response:
    return httpx2.post(url, json=body, headers={**HEADERS, **(headers or {})}, timeout=60)


def test_without_a_valid_token_nothing_is_served(path: Path) -> None:
    token = make_token(str(path), "read")
    wrong = token[:-4] + "aaaa"
    with http_server(str(path)) as url:
        for header in ({}, {"authorization": "Bearer"}, {"authorization": token}, {"authorization": f"Bearer {wrong}"}):
            refused = post(url, header)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert "rota token create" in refused.json()["error"]["hint"]
        assert post(url, {"authorization": f"Bearer {token}"}).status_code == 200


def test_guessing_a_token_is_slowed_down_and_its_owner_is_not_locked_out(path: Path) -> None:
    token = make_token(str(path), "read")
    wrong = {"authorization": f"Bearer {token[:-4]}aaaa"}
    with http_server(str(path)) as url:
        answers = [post(url, wrong).status_code for _ in range(DaemonLimits().failures_max + 1)]
        assert answers == [401] * DaemonLimits().failures_max + [429]
        assert post(url, {"authorization": f"Bearer {token}"}).status_code == 200


def test_a_revoked_token_is_refused_although_it_was_used_before(office: Office) -> None:
    token = office.token("read")
    (line,) = office.client.tokens.list()
    with http_server(office.served.unix) as url:
        header = {"authorization": f"Bearer {token}"}
        assert not post(url, header).json()["result"].get("isError", False)
        office.client.tokens.revoke(line.token_id)
        answers = [post(url, header) for _ in range(2)]
        assert answers[-1].status_code == 401, "at the latest after the call that found out"


def test_each_request_has_the_rights_of_its_own_token(office: Office) -> None:
    mine = office.client.enqueue(ScheduleSpec(office.near))
    run = office.claim()
    with http_server(office.served.unix) as url:
        red = with_client(over_http(url, office.token("read", "red")), lambda client: use(client, "list_work"))
        blue = with_client(over_http(url, office.token("read", "blue")), lambda client: use(client, "list_work"))
        own = with_client(over_http(url, office.token_of(run)), lambda client: use(client, "show_work"))
    assert [entry["sched_id"] for entry in red["entries"]] == [mine, run.sched_id]
    assert [entry["sched_id"] for entry in blue["entries"]] == [office.secret]
    assert own["entry"]["sched_id"] == run.sched_id


def test_runs_write_by_default_and_others_do_not(office: Office) -> None:
    run = office.claim()
    with http_server(office.served.unix) as url:
        saved = with_client(
            over_http(url, office.token_of(run)), lambda client: use(client, "save_checkpoint", state={"page": 3})
        )
        assert saved == {}
        with pytest.raises(ToolFailed, match="--allow-write"):
            with_client(over_http(url, office.token("operate")), lambda client: use(client, "enqueue", agent="near"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "rebound.example"}, 421), ({"origin": "https://evil.example"}, 403), ({"host": "localhost"}, 200)],
)
def test_pages_of_other_hosts_are_refused(path: Path, headers: dict[str, str], status: int) -> None:
    token = make_token(str(path), "read")
    with http_server(str(path)) as url:
        assert post(url, {"authorization": f"Bearer {token}", **headers}).status_code == status


def test_a_body_that_is_too_large_is_refused(path: Path) -> None:
    token = make_token(str(path), "read")
    with http_server(str(path), limits=McpLimits(body_bytes_max=1_000)) as url:
        at_limit = {**CALL, "params": {"name": "list_work", "arguments": {}, "_meta": {"x": "y" * 500}}}
        beyond = {**CALL, "params": {"name": "list_work", "arguments": {}, "_meta": {"x": "y" * 2_000}}}
        header = {"authorization": f"Bearer {token}"}
        assert (post(url, header, at_limit).status_code, post(url, header, beyond).status_code) == (200, 413)


def test_connections_max_limits_the_connections(path: Path) -> None:
    token = make_token(str(path), "read")
    header = {"authorization": f"Bearer {token}", **HEADERS}
    limits = McpLimits(connections_max=1)
    with http_server(str(path), limits=limits) as url, httpx2.Client(headers=header, timeout=60) as kept:
        assert kept.post(url, json=CALL).status_code == 200
        assert post(url, header).status_code == 503, "the first connection is still open"


def test_callers_that_are_not_used_make_room_for_others(path: Path) -> None:
    tokens = [make_token(str(path), "read") for _ in range(4)]
    with http_server(str(path), limits=McpLimits(callers_max=2)) as url:
        for token in tokens + tokens:
            assert post(url, {"authorization": f"Bearer {token}"}).status_code == 200


def test_a_hundred_clients_are_served_at_the_same_time(path: Path) -> None:
    """Each of them waits for the same entry: all are connected and have a call pending before it ends.

    They speak the protocol themselves: the official client checks the schemas of all tools first, which takes longer
    than everything else here.
    """
    token = make_token(str(path), "enqueue")
    with serving(path, http=False) as served, served.client() as api, http_server(served.unix) as url:
        (coder,) = api.agents.find("coder")
        sched_id = api.enqueue(ScheduleSpec(coder.pid))
        waiters: Any = served.daemon.handlers.kernel.queue._env.waiters

        async def one(http: httpx2.AsyncClient) -> bool:
            params = {"name": "wait_for_work", "arguments": {"sched_ids": [sched_id], "wait_s": 50}}
            answer = await http.post(url, json={**CALL, "params": params}, headers=HEADERS)
            return bool(answer.json()["result"]["structuredContent"]["all_have_ended"])

        async def all_of_them() -> list[bool]:
            header, limits = {"authorization": f"Bearer {token}"}, httpx2.Limits(max_connections=CLIENTS)
            async with httpx2.AsyncClient(headers=header, limits=limits, timeout=60) as http:
                calls = [asyncio.create_task(one(http)) for _ in range(CLIENTS)]
                async with asyncio.timeout(PATIENCE_S):
                    while len(waiters._waiters.get(sched_id, ())) < CLIENTS:
                        await asyncio.sleep(0.01)
                await asyncio.to_thread(api.queue.cancel, sched_id)
                return await asyncio.gather(*calls)

        assert asyncio.run(all_of_them()) == [True] * CLIENTS


def test_tls_is_required_except_on_loopback() -> None:
    with pytest.raises(InvalidInput, match="not a loopback address"):
        HttpSettings(host="192.0.2.1", port=0)


def test_the_socket_of_a_file_is_removed_with_the_server(path: Path) -> None:
    upstream = upstream_of(str(path))
    socket = Path(upstream.address.removeprefix("unix:"))
    with connect(upstream.address, retry_s=0.0) as client:
        assert client.agents.find("coder")
    assert socket.exists()
    upstream.close()
    assert not socket.parent.exists()
