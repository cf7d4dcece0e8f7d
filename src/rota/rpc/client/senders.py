"""Functions of a client that send a declared method.

`enqueue = sent(QueueApi.enqueue)` gives a part of the client the function `enqueue` with the signature that the
protocol declares, for type checkers and for `inspect`. `sent_async` gives the same function as a coroutine function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from rota.rpc.methods import METHODS, Method
from rota.service.api.declaration import declaration_of

__all__ = ["AsyncRemotePart", "AsyncSend", "AsyncSent", "RemotePart", "Send", "Sent", "sent", "sent_async"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Send = Callable[[Method, Any], Any]
AsyncSend = Callable[[Method, Any], Awaitable[Any]]


class RemotePart:
    """A part of the API in another process."""

    def __init__(self, send: Send) -> None:
        self._send = send


class AsyncRemotePart:
    """A part of the API in another process, with coroutine functions."""

    def __init__(self, send: AsyncSend) -> None:
        self._send = send


class Sent(Generic[P, R_co]):
    """A function that sends a method and returns its result. It is made on first use and kept in the part."""

    def __init__(self, function: Callable[..., R_co]) -> None:
        self._method = _method_of(function)

    @overload
    def __get__(self, part: None, kind: type[RemotePart]) -> Callable[..., Any]: ...
    @overload
    def __get__(self, part: RemotePart, kind: type[RemotePart]) -> Callable[P, R_co]: ...
    def __get__(self, part: RemotePart | None, kind: type[RemotePart]) -> Callable[..., Any]:
        """Return the function of one part; of the class, the declared function."""
        if part is None:
            return self._method.function
        method, bind, send = self._method, self._method.bind, part._send

        def call(*args: P.args, **kwargs: P.kwargs) -> R_co:
            result: R_co = send(method, bind(*args, **kwargs))
            return result

        return _kept(part, method, call)


class AsyncSent(Generic[P, R_co]):
    """A coroutine function that sends a method and returns its result."""

    def __init__(self, function: Callable[..., R_co]) -> None:
        self._method = _method_of(function)

    @overload
    def __get__(self, part: None, kind: type[AsyncRemotePart]) -> Callable[..., Any]: ...
    @overload
    def __get__(self, part: AsyncRemotePart, kind: type[AsyncRemotePart]) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    def __get__(self, part: AsyncRemotePart | None, kind: type[AsyncRemotePart]) -> Callable[..., Any]:
        """Return the coroutine function of one part; of the class, the declared function."""
        if part is None:
            return self._method.function
        method, bind, send = self._method, self._method.bind, part._send

        async def call(*args: P.args, **kwargs: P.kwargs) -> R_co:
            result: R_co = await send(method, bind(*args, **kwargs))
            return result

        return _kept(part, method, call)


def sent(function: Callable[Concatenate[Any, P], R]) -> Sent[P, R]:
    """Return a function that sends the method which a protocol's function declares."""
    return Sent(function)


def sent_async(function: Callable[Concatenate[Any, P], R]) -> AsyncSent[P, R]:
    """Return a coroutine function that sends the method which a protocol's function declares."""
    return AsyncSent(function)


def _method_of(function: Callable[..., Any]) -> Method:
    declaration = declaration_of(function)
    assert declaration is not None, f"{function.__qualname__} is not declared as a method"  # noqa: S101
    return METHODS[declaration.name]


def _kept(part: RemotePart | AsyncRemotePart, method: Method, call: Callable[P, R]) -> Callable[P, R]:
    """Name and document the function, and store it in the part, where it takes precedence over the descriptor."""
    call.__name__, call.__doc__ = method.verb, method.summary
    call.__signature__ = method.signature  # type: ignore[attr-defined]  # inspect reads it
    setattr(part, method.verb, call)
    return call
