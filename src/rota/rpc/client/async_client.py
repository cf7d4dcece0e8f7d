"""The client for programs with an event loop.

Over the unix socket it has one connection and sends without waiting for earlier answers: the daemon answers in any
order, and ids tell which is which. Over HTTP it asks on threads. Keys, retries and errors are those of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from rota.errors import RotaError
from rota.kernel.agents import Agents
from rota.kernel.claim_request import Beat, Completion, Turnover
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.model.events import Event
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.rpc.client.client import BACKOFF_S, Client, Keys, is_safe, lost_answer, unreachable
from rota.rpc.client.connections import Lost
from rota.rpc.client.parts import POLL_S, verbs_of
from rota.rpc.jsonrpc import BODY_BYTES_MAX, encode_call, result_of
from rota.rpc.methods import METHODS, PROTOCOL, Method

__all__ = ["AsyncClient"]

ANSWER_BYTES_MAX = 32 * BODY_BYTES_MAX  # of one line that is read
_HELLO = METHODS["system.hello"]
Ask = Callable[[Method, Any], Awaitable[Any]]


class _Id(msgspec.Struct, frozen=True):
    id: int | None = None


_id = msgspec.json.Decoder(_Id)


class _Pipe:
    """One unix socket with many questions on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._listening = asyncio.create_task(self._listen())
        self.lost = False

    @classmethod
    async def open(cls, path: str) -> _Pipe:
        """Connect and say which protocol is spoken."""
        try:
            pipe = cls(*await asyncio.open_unix_connection(path, limit=ANSWER_BYTES_MAX))
        except OSError as problem:
            raise Lost(str(problem), sent=False) from problem
        try:
            hello = encode_call(0, _HELLO, {"protocol": PROTOCOL, "client": "rota asyncio"})
            result_of(_HELLO, await pipe.ask(0, hello))
        except Lost as problem:
            raise Lost(str(problem), sent=False) from problem
        return pipe

    async def ask(self, number: int, body: bytes) -> bytes:
        """Send a line and wait for the one that answers it."""
        if self.lost:
            raise Lost("the daemon closed the connection", sent=False)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(body + b"\n")
            await self._writer.drain()
            return await answer
        except OSError as problem:
            raise Lost(str(problem), sent=True) from problem
        finally:
            self._waiting.pop(number, None)

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self._hear(line)
        except (OSError, ValueError):
            pass  # the connection broke, or a line was longer than any answer
        finally:
            self.lost = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Lost("the daemon closed the connection", sent=True))

    def _hear(self, line: bytes) -> None:
        number = _id.decode(line).id
        for each in self._waiting if number is None else (number,):  # without an id it is about the connection
            answer = self._waiting.get(each)
            if answer is not None and not answer.done():
                answer.set_result(line)

    async def close(self) -> None:
        """Ask no more."""
        self._listening.cancel()
        self._writer.close()
        await asyncio.gather(self._listening, return_exceptions=True)


class AsyncPart:
    """One part of a kernel that is elsewhere: its verbs are awaited."""

    def __init__(self, part: str, kind: type, ask: Ask) -> None:
        self._ask = ask
        self._verbs = verbs_of(part, kind)

    def __getattr__(self, verb: str) -> Any:
        """A verb of this part."""
        found = self.__dict__.get("_verbs", {}).get(verb)
        if found is None:
            raise AttributeError(f"there is no verb {verb!r} over the wire")

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._ask(found.method, found.bound(args, kwargs))

        return call


class AsyncClient:
    """A desk whose verbs are awaited."""

    def __init__(
        self,
        address: str,
        *,
        threads: Client | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        keys: bool = True,
    ) -> None:
        self.address = address
        self._threads = threads  # who asks over HTTP
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._keys = Keys() if keys else None
        self._pipe: _Pipe | None = None
        self._opening = asyncio.Lock()
        self._numbers = iter(range(1, 1 << 62))
        self.queue: Any = AsyncPart("queue", Queue, self._ask)
        self.agents: Any = AsyncPart("agents", Agents, self._ask)
        self.ledger: Any = AsyncPart("ledger", Ledger, self._ask)
        self.contexts: Any = AsyncPart("contexts", Contexts, self._ask)
        self.projects: Any = AsyncPart("projects", Projects, self._ask)
        self.journal: Any = AsyncPart("journal", Journal, self._ask)

    # --- asking ----------------------------------------------------------------------------------

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call any method of the wire table by its name."""
        return await self._ask(METHODS[name], params)

    async def _ask(self, method: Method, params: Any) -> Any:
        if self._threads is not None:
            return await asyncio.to_thread(self._threads.send, method, params)
        if self._keys is not None:
            params = self._keys.on(method, params)
        safe = is_safe(method, params)
        number = next(self._numbers)
        body = encode_call(number, method, params)
        wait_s = params.get("wait_s", 0.0) if isinstance(params, dict) else 0.0
        give_up_at = asyncio.get_running_loop().time() + self._retry_s
        for pause_s in _pauses():
            try:
                async with asyncio.timeout(self._timeout_s + max(0.0, wait_s)):
                    pipe = await self._open()
                    return result_of(method, await pipe.ask(number, body))
            except (Lost, TimeoutError) as lost:
                sent = not isinstance(lost, Lost) or lost.sent
                late = asyncio.get_running_loop().time() + pause_s > give_up_at
                if sent and not safe:
                    raise lost_answer(self.address, method, lost) from lost
                if late:
                    raise unreachable(self.address, lost) from lost
                await asyncio.sleep(pause_s)
        raise AssertionError("there is always another pause")

    async def _open(self) -> _Pipe:
        async with self._opening:
            if self._pipe is None or self._pipe.lost:
                if self._pipe is not None:
                    await self._pipe.close()
                self._pipe = await _Pipe.open(self.address.removeprefix("unix:"))
            return self._pipe

    async def close(self) -> None:
        """Ask no more."""
        if self._pipe is not None:
            await self._pipe.close()
        if self._threads is not None:
            self._threads.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the desk --------------------------------------------------------------------------------

    async def create_agent(self, name: str, template: str, **settings: Any) -> int:
        """Make an agent; its pid is the answer."""
        return cast("int", await self.agents.create(name, template, **settings))

    async def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue."""
        return cast("int", await self._ask(METHODS["kernel.sched.enqueue"], spec))

    async def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Put many entries into the queue: all or none."""
        return cast("list[int]", await self.call("kernel.sched.enqueue_many", specs=specs))

    async def claim(self, worker_id: str, max_n: int = 1, *, wait_s: float = 0.0, **asked: Any) -> list[ReadyEntry]:
        """Take the next entries; while there are none, wait up to `wait_s`."""
        answer = await self.call("kernel.sched.claim", worker_id=worker_id, max_n=max_n, wait_s=wait_s, **asked)
        return cast("list[ReadyEntry]", answer)

    async def heartbeat(self, sched_id: int, token: int) -> Beat:
        """Hold on to a claim."""
        return cast("Beat", await self.call("kernel.sched.heartbeat", sched_id=sched_id, token=token))

    async def complete(self, sched_id: int, exit_kind: str, **how: Any) -> tuple[str, str]:
        """End a run; the answer is (state before, state after)."""
        answer = await self.call("kernel.sched.complete", sched_id=sched_id, exit_kind=exit_kind, **how)
        return cast("tuple[str, str]", answer)

    async def complete_many(self, completions: Sequence[Completion]) -> list[tuple[str, str] | RotaError]:
        """End many runs in one commit; one that is refused has its error in its place."""
        answer = await self.call("kernel.sched.complete_many", completions=completions)
        return cast("list[tuple[str, str] | RotaError]", answer)

    async def complete_and_claim(
        self, completions: Sequence[Completion], worker_id: str, max_n: int = 1, **asked: Any
    ) -> Turnover:
        """End runs and take the next entries in one commit."""
        name = "kernel.sched.complete_and_claim"
        answer = await self.call(name, completions=completions, worker_id=worker_id, max_n=max_n, **asked)
        return cast("Turnover", answer)

    async def get(self, sched_id: int) -> ReadyEntry:
        """Look at an entry."""
        return cast("ReadyEntry", await self.call("kernel.sched.get", sched_id=sched_id))

    async def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """The entry once it has ended."""
        return cast("ReadyEntry", await self.call("kernel.sched.wait", sched_id=sched_id, wait_s=wait_s))

    async def follow(self, since: int | None = None) -> AsyncIterator[Event]:
        """Events as they are committed, from a cursor or from now on."""
        cursor = await self.call("kernel.event.cursor") if since is None else since
        while True:
            for event in await self.call("kernel.event.tail", since=cursor, wait_s=POLL_S):
                yield event
                cursor = event.event_id


def _pauses() -> Iterator[float]:
    yield from BACKOFF_S
    while True:
        yield BACKOFF_S[-1]
