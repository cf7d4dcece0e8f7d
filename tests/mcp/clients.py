"""The official client, for tests: in this process, over standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp.client.streamable_http import streamable_http_client

from mcp import Client, StdioServerParameters, stdio_client
from rota.cli.connection import open_api
from rota.mcp.callers import Caller, caller_of
from rota.mcp.http import McpHttpServer, McpLimits
from rota.mcp.server import McpServer
from rota.mcp.upstream import upstream_of
from rota.rpc import HttpSettings, connect

T = TypeVar("T")
Work = Callable[[Client], Awaitable[T]]
ROTA_VARIABLES = tuple(name for name in os.environ if name.startswith("ROTA_"))


class ToolFailed(Exception):
    """A tool returned an error, whose data is `error`."""

    def __init__(self, text: str, error: dict[str, Any]) -> None:
        super().__init__(text)
        self.error = error


async def use(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool and return its result; raise `ToolFailed` with its error."""
    result: Any = await client.call_tool(name, arguments)
    if result.is_error:
        raise ToolFailed(result.content[0].text, result.structured_content["error"])
    return result.structured_content


async def offered(client: Client) -> set[str]:
    """Return the names of the tools that are offered."""
    return {tool.name for tool in (await client.list_tools()).tools}


def with_client(opened: AbstractAsyncContextManager[Client], work: Work[T]) -> T:
    """Do work with a client, and return its result or raise its error, without the groups of the client's tasks."""

    async def run() -> T | BaseException:
        async with opened as client:
            try:
                return await work(client)
            except Exception as problem:
                return problem

    found = asyncio.run(run())
    if isinstance(found, BaseException):
        raise found
    return found


class Desk:
    """A caller with an official client in this process."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def with_client(self, work: Work[T]) -> T:
        return with_client(Client(McpServer(lambda _context: self.caller).lowlevel), work)

    def __call__(self, name: str, **arguments: Any) -> Any:
        return self.with_client(lambda client: use(client, name, **arguments))

    @property
    def offered(self) -> set[str]:
        return self.with_client(offered)


@contextmanager
def desk_at(address: str | Path, token: str | None = None, *, allow_write: bool | None = None) -> Iterator[Desk]:
    """Open a file or connect to a daemon, as `rota mcp` does."""
    api = open_api(str(address)) if token is None else connect(str(address), token=token, retry_s=0.0)
    with api:
        yield Desk(caller_of(api, token, allow_write=allow_write))


@asynccontextmanager
async def over_stdio(*options: str, env: dict[str, str] | None = None, mode: str = "auto") -> AsyncIterator[Client]:
    """Start `rota mcp` as a coding agent does, and connect to it."""
    own = {name: value for name, value in os.environ.items() if name not in ROTA_VARIABLES}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "rota", "mcp", *options], env={**own, **(env or {})}
    )
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(url: str, token: str | None, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect with an access token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@contextmanager
def http_server(
    address: str, *, allow_write: bool | None = None, limits: McpLimits | None = None, **settings: Any
) -> Iterator[str]:
    """Serve a file or a daemon over HTTP in this process, as `rota mcp --listen` does; yield the URL."""
    upstream = upstream_of(address)

    def open_caller(token: str) -> Caller:
        return caller_of(connect(upstream.address, token=token, retry_s=0.0), token, allow_write=allow_write)

    server = McpHttpServer(HttpSettings(port=0, **settings), open_caller, limits)
    try:
        yield server.start()
    finally:
        server.stop()
        upstream.close()
