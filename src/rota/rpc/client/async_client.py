"""The client for programs with an asyncio event loop.

Over the unix socket it has one connection and sends requests without waiting for earlier responses; ids match responses
to requests. Over HTTP it calls the synchronous client on threads. It has the parts and functions of that client as
coroutine functions, and the same keys, retries and errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import msgspec

from rota.decoding import json_decoder
from rota.errors import StoreUnavailable
from rota.rpc.client import parts
from rota.rpc.client.client import Client, variables_for
from rota.rpc.client.remote_calls import ConnectionLost, RemoteCalls
from rota.rpc.client.remote_parts import AsyncRemoteJournal, AsyncRemoteQueue
from rota.rpc.jsonrpc import BODY_BYTES_MAX, decode_result, encode_call
from rota.rpc.methods import METHODS, PROTOCOL, Method
from rota.store.forks import in_child
from rota.store.socket_paths import socket_path

__all__ = ["AsyncClient"]

RESPONSE_BYTES_MAX = 32 * BODY_BYTES_MAX  # of one line
_HELLO = METHODS["system.hello"]


class _Id(msgspec.Struct, frozen=True):
    id: int | None = None


_id = json_decoder(_Id)
_forgotten: list[_Pipeline] = []  # of the parent: a task that is finalised before its end is reported as an error


class _Pipeline:
    """One unix socket with many requests at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._responses: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.create_task(self._read())
        self.lost = False

    @classmethod
    async def open(cls, path: str, token: str | None) -> _Pipeline:
        """Connect, check the protocol version and show the access token if there is one."""
        try:
            with socket_path(path) as address:
                pipeline = cls(*await asyncio.open_unix_connection(address, limit=RESPONSE_BYTES_MAX))
        except OSError as problem:
            raise ConnectionLost(str(problem), sent=False) from problem
        try:
            hello = encode_call(0, _HELLO, _HELLO.params(PROTOCOL, "rota asyncio", token or ""))
            decode_result(_HELLO, await pipeline.request(0, hello))
        except ConnectionLost as problem:
            raise ConnectionLost(str(problem), sent=False) from problem
        return pipeline

    async def request(self, number: int, body: bytes) -> bytes:
        """Send a line and wait for its response."""
        if self.lost:
            raise ConnectionLost("the connection was closed", sent=False)
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._responses[number] = response
        try:
            self._writer.write(body + b"\n")
            await self._writer.drain()
            return await response
        except OSError as problem:
            raise ConnectionLost(str(problem), sent=True) from problem
        finally:
            self._responses.pop(number, None)

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._dispatch(line)
        except (OSError, ValueError):
            pass  # the connection broke, or a line was longer than the limit
        finally:
            self.lost = True
            for response in self._responses.values():
                if not response.done():
                    response.set_exception(ConnectionLost("the connection was closed", sent=True))

    def _dispatch(self, line: bytes) -> None:
        number = _id.decode(line).id
        for each in self._responses if number is None else (number,):  # without an id it concerns the connection
            response = self._responses.get(each)
            if response is not None and not response.done():
                response.set_result(line)

    def forget(self) -> None:
        """In a forked child: let go of the socket, so that the daemon notices the end of the parent.

        The transport must not be closed: it would remove the socket from the selector of the event loop, which the
        child shares with its parent. It keeps a descriptor that it may close when it is finalised.
        """
        nothing = os.open(os.devnull, os.O_RDWR)
        with contextlib.suppress(OSError):
            os.dup2(nothing, self._writer.get_extra_info("socket").fileno(), inheritable=False)
        os.close(nothing)
        _forgotten.append(self)

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)


class AsyncClient(parts.AsyncClaimsPart, parts.AsyncSystemPart):
    """The scheduler API of a daemon, with coroutine functions."""

    def __init__(
        self,
        address: str,
        *,
        http: Client | None = None,
        token: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        keys: bool = True,
    ) -> None:
        super().__init__(self.send)
        self.address = address
        self._http = http  # called on threads; None: the unix socket
        self._token = token  # for the unix socket; None: the rights of the local user
        self._calls = RemoteCalls(address, timeout_s=timeout_s, retry_s=retry_s, keys=keys)
        self._pipeline: _Pipeline | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        in_child(self._forget_connection)
        self.queue = AsyncRemoteQueue(self.send)
        self.supervision = parts.AsyncSupervisionPart(self.send)
        self.graphs = parts.AsyncGraphsPart(self.send)
        self.workers = parts.AsyncWorkersPart(self.send)
        self.cores = parts.AsyncCoresPart(self.send)
        self.logs = parts.AsyncLogsPart(self.send)
        self.agents = parts.AsyncAgentsPart(self.send)
        self.ledger = parts.AsyncLedgerPart(self.send)
        self.usage = parts.AsyncUsagePart(self.send)
        self.projects = parts.AsyncProjectsPart(self.send)
        self.contexts = parts.AsyncContextsPart(self.send)
        self.policies = parts.AsyncPoliciesPart(self.send)
        self.journal = AsyncRemoteJournal(self.send)
        self.retention = parts.AsyncRetentionPart(self.send)
        self.tokens = parts.AsyncTokensPart(self.send)
        self.server = parts.AsyncServerPart(self.send)
        # the most used functions can be called without naming their part
        self.create_agent = self.agents.create
        self.enqueue, self.enqueue_many = self.queue.enqueue, self.queue.enqueue_many
        self.complete, self.complete_many = self.queue.complete, self.queue.complete_many
        self.heartbeat = self.queue.heartbeat
        self.get, self.wait = self.queue.get, self.queue.wait
        self.follow = self.journal.follow

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call a method by its name on the wire."""
        return await self.send(METHODS[name], METHODS[name].params(**params))

    async def send(self, method: Method, params: Any) -> Any:
        """Send a call and wait for its response."""
        if self._http is not None:
            return await asyncio.to_thread(self._http.send, method, params)
        monotonic = asyncio.get_running_loop().time
        call = self._calls.make(method, params, monotonic())
        while True:
            try:
                async with asyncio.timeout(call.timeout_s):
                    pipeline = await self._open()
                    response = await pipeline.request(call.number, call.body)
            except TimeoutError:
                lost = ConnectionLost("timed out", sent=True)
            except ConnectionLost as problem:
                lost = problem
            else:
                return call.result_of(response)
            await asyncio.sleep(call.pause_after(lost, monotonic()))

    def _forget_connection(self) -> None:
        """In a forked child: give up the parent's connection and open another one."""
        self._opening = asyncio.Lock()  # the other one may be held, by a task of the parent
        if self._pipeline is not None:
            self._pipeline.forget()
            self._pipeline = None

    async def _open(self) -> _Pipeline:
        async with self._opening:
            if self._closed:
                raise StoreUnavailable("the client is closed", hint="Create a new client with `connect_async`.")
            if self._pipeline is None or self._pipeline.lost:
                if self._pipeline is not None:
                    await self._pipeline.close()
                self._pipeline = await _Pipeline.open(self.address.removeprefix("unix:"), self._token)
            return self._pipeline

    def program_variables(self) -> dict[str, str]:
        """Return the environment variables by which a program on this machine reaches the same daemon."""
        return variables_for(self.address) if self._http is None else self._http.program_variables()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._pipeline is not None:
            await self._pipeline.close()
        if self._http is not None:
            self._http.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
