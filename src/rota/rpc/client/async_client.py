"""The client for programs with an asyncio event loop.

Over the unix socket it has one connection and sends requests without waiting for earlier responses; ids match responses
to requests. Over HTTP it calls the synchronous client on threads. Keys, retries and errors are those of that client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from rota.errors import RotaError
from rota.kernel.agents import Agents
from rota.kernel.claims import TurnResult
from rota.kernel.completion import Completion
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.runs import HeartbeatReply
from rota.model.events import Event
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.rpc.client.client import BACKOFF_S, Client, EntryKeys, is_retry_safe, lost_response, unreachable
from rota.rpc.client.connections import ConnectionLost
from rota.rpc.client.remote_parts import POLL_S, remote_methods
from rota.rpc.jsonrpc import BODY_BYTES_MAX, decode_result, encode_call
from rota.rpc.methods import METHODS, PROTOCOL, Method

__all__ = ["AsyncClient"]

RESPONSE_BYTES_MAX = 32 * BODY_BYTES_MAX  # of one line
_HELLO = METHODS["system.hello"]
Send = Callable[[Method, Any], Awaitable[Any]]


class _Id(msgspec.Struct, frozen=True):
    id: int | None = None


_id = msgspec.json.Decoder(_Id)


class _Pipeline:
    """One unix socket with many requests at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._responses: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.create_task(self._read())
        self.lost = False

    @classmethod
    async def open(cls, path: str) -> _Pipeline:
        """Connect and check the protocol version."""
        try:
            pipeline = cls(*await asyncio.open_unix_connection(path, limit=RESPONSE_BYTES_MAX))
        except OSError as problem:
            raise ConnectionLost(str(problem), sent=False) from problem
        try:
            hello = encode_call(0, _HELLO, {"protocol": PROTOCOL, "client": "rota asyncio"})
            decode_result(_HELLO, await pipeline.request(0, hello))
        except ConnectionLost as problem:
            raise ConnectionLost(str(problem), sent=False) from problem
        return pipeline

    async def request(self, number: int, body: bytes) -> bytes:
        """Send a line and wait for its response."""
        if self.lost:
            raise ConnectionLost("the daemon closed the connection", sent=False)
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
                    response.set_exception(ConnectionLost("the daemon closed the connection", sent=True))

    def _dispatch(self, line: bytes) -> None:
        number = _id.decode(line).id
        for each in self._responses if number is None else (number,):  # without an id it concerns the connection
            response = self._responses.get(each)
            if response is not None and not response.done():
                response.set_result(line)

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)


class AsyncPart:
    """An async proxy for one part of a kernel in another process."""

    def __init__(self, part: str, kind: type, send: Send) -> None:
        self._send = send
        self._verbs = remote_methods(part, kind)

    def __getattr__(self, verb: str) -> Any:
        """Return an async function of this part."""
        found = self.__dict__.get("_verbs", {}).get(verb)
        if found is None:
            raise AttributeError(f"there is no remote function {verb!r}")

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._send(found.method, found.bind(args, kwargs))

        return call


class AsyncClient:
    """The scheduler API of a daemon, with async functions."""

    def __init__(
        self,
        address: str,
        *,
        http: Client | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        keys: bool = True,
    ) -> None:
        self.address = address
        self._http = http  # called on threads; None: the unix socket
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._keys = EntryKeys() if keys else None
        self._pipeline: _Pipeline | None = None
        self._opening = asyncio.Lock()
        self._numbers = iter(range(1, 1 << 62))
        self.queue: Any = AsyncPart("queue", Queue, self._send)
        self.agents: Any = AsyncPart("agents", Agents, self._send)
        self.ledger: Any = AsyncPart("ledger", Ledger, self._send)
        self.contexts: Any = AsyncPart("contexts", Contexts, self._send)
        self.projects: Any = AsyncPart("projects", Projects, self._send)
        self.journal: Any = AsyncPart("journal", Journal, self._send)

    # --- calls -----------------------------------------------------------------------------------

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call a method by its name on the wire."""
        return await self._send(METHODS[name], params)

    async def _send(self, method: Method, params: Any) -> Any:
        if self._http is not None:
            return await asyncio.to_thread(self._http.send, method, params)
        if self._keys is not None:
            params = self._keys.add_to_params(method, params)
        retry_safe = is_retry_safe(method, params)
        number = next(self._numbers)
        body = encode_call(number, method, params)
        wait_s = params.get("wait_s", 0.0) if isinstance(params, dict) else 0.0
        give_up_at = asyncio.get_running_loop().time() + self._retry_s
        for pause_s in _pauses():
            try:
                async with asyncio.timeout(self._timeout_s + max(0.0, wait_s)):
                    pipeline = await self._open()
                    return decode_result(method, await pipeline.request(number, body))
            except (ConnectionLost, TimeoutError) as lost:
                sent = not isinstance(lost, ConnectionLost) or lost.sent
                late = asyncio.get_running_loop().time() + pause_s > give_up_at
                if sent and not retry_safe:
                    raise lost_response(self.address, method, lost) from lost
                if late:
                    raise unreachable(self.address, lost) from lost
                await asyncio.sleep(pause_s)
        raise AssertionError("the pauses never end")

    async def _open(self) -> _Pipeline:
        async with self._opening:
            if self._pipeline is None or self._pipeline.lost:
                if self._pipeline is not None:
                    await self._pipeline.close()
                self._pipeline = await _Pipeline.open(self.address.removeprefix("unix:"))
            return self._pipeline

    async def close(self) -> None:
        """Close all connections."""
        if self._pipeline is not None:
            await self._pipeline.close()
        if self._http is not None:
            self._http.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- scheduler API ---------------------------------------------------------------------------

    async def create_agent(self, name: str, template: str, **settings: Any) -> int:
        """Create an agent and return its pid."""
        return cast("int", await self.agents.create(name, template, **settings))

    async def enqueue(self, spec: ScheduleSpec) -> int:
        """Enqueue an entry."""
        return cast("int", await self._send(METHODS["kernel.sched.enqueue"], spec))

    async def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Enqueue many entries in one commit: all or none."""
        return cast("list[int]", await self.call("kernel.sched.enqueue_many", specs=specs))

    async def claim(self, worker_id: str, max_n: int = 1, *, wait_s: float = 0.0, **options: Any) -> list[ReadyEntry]:
        """Claim the next entries; while there are none, wait up to `wait_s`."""
        result = await self.call("kernel.sched.claim", worker_id=worker_id, max_n=max_n, wait_s=wait_s, **options)
        return cast("list[ReadyEntry]", result)

    async def heartbeat(self, sched_id: int, token: int) -> HeartbeatReply:
        """Extend a claim."""
        return cast("HeartbeatReply", await self.call("kernel.sched.heartbeat", sched_id=sched_id, token=token))

    async def complete(self, sched_id: int, exit_kind: str, **options: Any) -> tuple[str, str]:
        """Complete a run; return its entry's states before and after."""
        result = await self.call("kernel.sched.complete", sched_id=sched_id, exit_kind=exit_kind, **options)
        return cast("tuple[str, str]", result)

    async def complete_many(self, completions: Sequence[Completion]) -> list[tuple[str, str] | RotaError]:
        """Complete many runs in one commit; a rejected one has its error in its place."""
        result = await self.call("kernel.sched.complete_many", completions=completions)
        return cast("list[tuple[str, str] | RotaError]", result)

    async def complete_and_claim(
        self, completions: Sequence[Completion], worker_id: str, max_n: int = 1, **options: Any
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit."""
        name = "kernel.sched.complete_and_claim"
        result = await self.call(name, completions=completions, worker_id=worker_id, max_n=max_n, **options)
        return cast("TurnResult", result)

    async def get(self, sched_id: int) -> ReadyEntry:
        """Return an entry."""
        return cast("ReadyEntry", await self.call("kernel.sched.get", sched_id=sched_id))

    async def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """Wait for an entry to end, and return it."""
        return cast("ReadyEntry", await self.call("kernel.sched.wait", sched_id=sched_id, wait_s=wait_s))

    async def follow(self, since: int | None = None) -> AsyncIterator[Event]:
        """Yield events as they are committed, from a cursor or from now on."""
        cursor = await self.call("kernel.event.cursor") if since is None else since
        while True:
            for event in await self.call("kernel.event.tail", since=cursor, wait_s=POLL_S):
                yield event
                cursor = event.event_id


def _pauses() -> Iterator[float]:
    yield from BACKOFF_S
    while True:
        yield BACKOFF_S[-1]
