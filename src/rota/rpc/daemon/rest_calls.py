"""Requests to the REST face, executed: find the agent that is named, then call the method of the route."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from rota.errors import InvalidInput, LimitExceeded, RotaError
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.http_protocol import HttpProtocol, HttpRequest
from rota.rpc.daemon.pending_calls import PendingCall
from rota.rpc.daemon.transport import ResponseLimit
from rota.rpc.methods import Method
from rota.rpc.rest import (
    FIND,
    AgentRef,
    Route,
    Sent,
    agent_in,
    agent_named,
    error_body,
    find_route,
    params_of,
    status_of,
)

__all__ = ["RestCalls", "refusal_of"]

_log = logging.getLogger("rota.daemon")
_encode = msgspec.json.Encoder().encode


def refusal_of(verb: bytes, path: bytes) -> tuple[int, bytes, bytes] | None:
    """Return the status, body and headers for a request that no route answers; None: one does."""
    found = find_route(verb.decode("latin-1"), path.decode("latin-1"))
    if found.route is not None:
        return None
    if not found.verbs:
        unknown = InvalidInput("no such route", field="path", hint="GET /v1/openapi.json lists the routes.")
        return 404, error_body(unknown), b""
    allowed = ", ".join(found.verbs)
    wrong = InvalidInput(f"this path has {allowed}", field="method", hint=f"Use {allowed}.")
    return 405, error_body(wrong), f"allow: {allowed}\r\n".encode()


class RestCalls:
    """Executes requests of HTTP connections."""

    def __init__(self, executor: CallExecutor, limit: ResponseLimit) -> None:
        self._executor = executor
        self._limit = limit

    def handle(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Answer a complete request, now or later."""
        path, _, query = request.path.decode("latin-1").partition("?")
        route, variables, _ = find_route(request.method.decode("latin-1"), path)
        assert route is not None  # noqa: S101  # it was checked when its headers were complete
        body = b"".join(request.body_parts)
        request.body_parts.clear()
        connection.received += 1
        sent = Sent(variables, query, request.headers, body)
        make = partial(params_of, route, sent)
        reference = agent_in(route, sent)
        if reference is None or reference.pid is not None:
            self._call(connection, route, partial(make, None if reference is None else reference.pid))
        else:
            self._find(connection, route, reference, make)

    def _find(self, connection: HttpProtocol, route: Route, reference: AgentRef, make: Callable[[int], Any]) -> None:
        """Find an agent by its name as the caller, then call the method."""

        def found(result: Any) -> None:
            self._call(connection, route, lambda: make(agent_named(reference, result.agents)))

        self._submit(connection, FIND, FIND.params(reference.name), _Lookup(connection, found))

    def _call(self, connection: HttpProtocol, route: Route, make: Callable[[], Any]) -> None:
        origin = _RestRequest(connection, route, self._limit)
        try:
            params = make()
        except RotaError as error:
            origin.reply(None, error)
            return
        self._submit(connection, route.method, params, origin)

    def _submit(self, connection: HttpProtocol, method: Method, params: Any, origin: Any) -> None:
        pending: set[PendingCall] = set()
        self._executor.submit(method, params, connection.principal, origin, pending)
        if pending:
            connection.on_lost = partial(self._withdraw, pending)
            connection.waits = any(call.waits for call in pending)

    def _withdraw(self, calls: set[PendingCall]) -> None:
        for call in list(calls):
            self._executor.withdraw(call)
        self._executor.resume_reads()


class _Lookup:
    """Takes the result of a call that is not the answer yet."""

    def __init__(self, connection: HttpProtocol, found: Callable[[Any], None]) -> None:
        self._connection = connection
        self._found = found

    def may_run(self) -> bool:
        """Whether a read may run now."""
        return self._connection.reads_responses()

    def encode(self, result: Any) -> Any:
        """Keep the result as it is."""
        return result

    def reply(self, result: Any, error: BaseException | None) -> None:
        """Continue with the result, or answer with the error."""
        if error is None and result is not None:
            self._found(result)
        else:
            _respond(self._connection, FIND, error)


class _RestRequest:
    """One request: encodes and sends its response."""

    def __init__(self, connection: HttpProtocol, route: Route, limit: ResponseLimit) -> None:
        self._connection = connection
        self._route = route
        self._limit = limit
        self._too_large: LimitExceeded | None = None
        self._location: str | None = None

    def may_run(self) -> bool:
        """Whether a read may run now, or waits until the client reads its responses."""
        return self._connection.reads_responses()

    def encode(self, result: Any) -> bytes:
        """Encode a result, on any thread."""
        body = _encode(result)
        self._location = self._route.location_of(result)
        try:
            self._limit.use(len(body))
        except LimitExceeded as too_large:
            self._too_large = too_large
            return b""
        return body

    def reply(self, result: Any, error: BaseException | None) -> None:
        """Send the response; a result in bytes is already encoded."""
        if error is not None:
            _respond(self._connection, self._route.method, error)
            return
        body = result if type(result) is bytes else self.encode(result)
        if self._too_large is not None:
            _respond(self._connection, self._route.method, self._too_large)
            return
        headers = b"" if self._location is None else f"location: {self._location}\r\n".encode()
        self._connection.respond(self._route.status, body, headers=headers)


def _respond(connection: HttpProtocol, method: Method, error: BaseException | None) -> None:
    """Send an error and log it."""
    problem = error if error is not None else RotaError("the call was ended without a result")
    request_id = f"{connection.number}-{connection.received}"
    name, caller = method.name, connection.principal.name
    if isinstance(problem, RotaError):
        _log.info("request=%s method=%s caller=%s outcome=%d %s", request_id, name, caller, problem.code, problem.name)
        connection.respond(status_of(problem), error_body(problem))
    else:
        _log.error("request=%s method=%s caller=%s outcome=defect", request_id, name, caller, exc_info=problem)
        connection.respond(500, error_body(problem, request_id=request_id))
