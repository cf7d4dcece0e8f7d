"""The MCP server: how long an agent waits for its first answer, and what a hundred clients get.

`first-answer` is from starting `rota mcp` to the answer of its first tool, over standard input and output; the baseline
only loads the official package, which is most of it. `first-answer-cpu` is the CPU time of the same, which does not
depend on what else the machine does, against the two seconds in which the answer is asked for. `clients-100` is a
hundred connections over HTTP that each call a tool; the baseline is one connection that calls it as often.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from bench.harness import Arena, Case, Measured
from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.mcp import McpHttpServer, caller_of, upstream_of
from rota.rpc import HttpSettings, RpcHandlers, connect
from rota.service import Dispatcher

__all__ = ["cases"]

CLIENTS = 100
ENTRIES = 50
ANSWER_MS_MAX = 2_000.0
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
CALL = {"name": "list_work", "arguments": {"limit": 20}}
HEADERS = {"accept": "application/json, text/event-stream"}


def cases() -> Iterator[Case]:
    yield Case("first-answer", 1, "ms", "import mcp", _first_answer, rounds=5)
    baseline = "the 2 s that are asked for"
    yield Case("first-answer-cpu", 1, "ms", baseline, _first_answer_cpu, goal=1.0, rounds=5)
    yield Case("clients-100", CLIENTS, "ops/s", "1 client", _clients, ops=CLIENTS, rounds=5)


def _request(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _file(folder: str) -> tuple[str, str]:
    """Make a file with entries; return its path and an access token."""
    path = str(Path(folder) / "rota.db")
    kernel = Kernel(store.open(path))
    coder = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(coder) for _ in range(ENTRIES)])
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    token: str = handlers.call("system.token_create", name="bench", scope="read").token
    handlers.close()
    kernel.store.close()
    return path, token


def _first_answer() -> Arena:
    folder = tempfile.TemporaryDirectory()
    path, _ = _file(folder.name)
    lines = [
        _request(1, "initialize", HELLO),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        _request(2, "tools/call", CALL),
    ]

    def ask() -> bool:
        argv = [sys.executable, "-m", "rota", "mcp", "--store", path]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for _ in range(2)]
            process.stdin.close()
        return bool(answers[1]["result"]["structuredContent"]["total"] == ENTRIES)

    def load() -> bool:
        return subprocess.run([sys.executable, "-c", "import mcp.server.lowlevel"], check=True).returncode == 0

    return Arena(ask, load, close=folder.cleanup)


def _first_answer_cpu() -> Arena:
    arena = _first_answer()

    def ask() -> Measured:
        before = _cpu_ms()
        answer = arena.rota()
        return Measured(_cpu_ms() - before, answer)

    return Arena(ask, lambda: Measured(ANSWER_MS_MAX, True), close=arena.close)


def _cpu_ms() -> float:
    """The CPU time of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1_000


def _clients() -> Arena:
    folder = tempfile.TemporaryDirectory()
    path, token = _file(folder.name)
    upstream = upstream_of(path)
    server = McpHttpServer(HttpSettings(port=0), lambda shown: caller_of(connect(upstream.address, token=shown), shown))
    url, headers = server.start(), {**HEADERS, "authorization": f"Bearer {token}"}

    async def call(http: httpx2.AsyncClient, number: int) -> int:
        answer = await http.post(url, json=_request(number, "tools/call", CALL))
        return int(answer.json()["result"]["structuredContent"]["total"])

    async def side_by_side() -> int:
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(headers=headers, limits=limits, timeout=60) as http:
            return sum(await asyncio.gather(*(call(http, number) for number in range(CLIENTS))))

    async def one_by_one() -> int:
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            return sum([await call(http, number) for number in range(CLIENTS)])

    def close() -> None:
        server.stop()
        upstream.close()
        folder.cleanup()

    return Arena(lambda: asyncio.run(side_by_side()), lambda: asyncio.run(one_by_one()), close=close)
