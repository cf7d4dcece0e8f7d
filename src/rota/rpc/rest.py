"""The REST face: HTTP routes, each of which is one declared method.

A route says which method it calls and where the parameters come from: the path, the query, a header, the body. All else
is the method's: its rights, the walls between projects, its limits, its errors, the author of its events. So a route
adds no right, and what a method refuses, its route refuses.

    POST /v1/agents/coder/entries?project=lab   {"payload": {"issue": 7}, "priority": 5}
      → kernel.agent.find  (name = "coder")     the agent that the caller may see, in this project
      → kernel.agent.enqueue  (pid = 4, payload = {"issue": 7}, priority = 5)

An agent in a path or a query is a pid, or a name; a name that several agents have needs `project`. An error is an
object with its code, name, message, hint and facts; `STATUSES` has its HTTP status, by the class of the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from rota import errors as e
from rota.decoding import convert
from rota.errors import AmbiguousAgent, InvalidInput, LimitExceeded, RotaError, UnknownAgent
from rota.model.work import Agent
from rota.rpc.error_codec import to_error_object
from rota.rpc.jsonrpc import body_problem, params_error
from rota.rpc.methods import METHODS, Method

__all__ = [
    "FIND",
    "OPENAPI",
    "PREFIX",
    "ROUTES",
    "STATUSES",
    "AgentRef",
    "Route",
    "Sent",
    "agent_in",
    "agent_named",
    "error_body",
    "find_route",
    "params_of",
    "status_of",
]

PREFIX = "/v1/"
OPENAPI = "/v1/openapi.json"
AGENT, PROJECT = "agent", "project"  # in a path or query: they say together which agent is meant
FIND = METHODS["kernel.agent.find"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """One route."""

    verb: str
    path: str  # with {variables}: parameters of the method, or {agent}
    method: Method
    query: Mapping[str, str] = field(default_factory=dict)  # parameters by their name in the query
    headers: Mapping[str, str] = field(default_factory=dict)  # parameters by the name of a header
    agent_as: str = ""  # the parameter that gets the pid of the agent in the path or query
    has_body: bool = False  # the other parameters are fields of a JSON object in the body
    status: int = 200
    location: str = ""  # of what was created: a path with {fields} of the result

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(self.path.strip("/").split("/"))

    @cached_property
    def types(self) -> dict[str, Any]:
        """The types of the method's parameters."""
        return {each.name: each.type for each in msgspec.structs.fields(self.method.params)}

    @cached_property
    def body_fields(self) -> tuple[str, ...]:
        """The parameters that the body may have."""
        taken = {self.agent_as, *self.query.values(), *(name.strip("{}") for name in self.segments)}
        return tuple(name for name in self.types if name not in taken) if self.has_body else ()

    def location_of(self, result: Any) -> str | None:
        """Return the path of what was created; None if it has none."""
        parts = (part.strip("{}") if part.startswith("{") else None for part in self.location.split("/"))
        fields = {name: quote(str(getattr(result, name)), safe="") for name in parts if name is not None}
        return self.location.format(**fields) or None

    @property
    def takes_project(self) -> bool:
        """Whether `project` in the query only says which agent is meant."""
        return bool(self.agent_as) and PROJECT not in self.query


def _route(verb: str, path: str, method: str, **more: Any) -> Route:
    query = {name: name for name in more.pop("same", ())} | more.pop("query", {})
    return Route(verb=verb, path=path, method=METHODS[method], query=query, **more)


_PAGE = ("limit", "offset")
_ENTRY = "/v1/entries/{sched_id}"
_RUN = "/v1/graph-runs/{run_id}"
ROUTES: tuple[Route, ...] = (
    _route(
        "POST",
        "/v1/agents/{agent}/entries",
        "kernel.agent.enqueue",
        agent_as="pid",
        headers={"idempotency-key": "key"},
        has_body=True,
        status=201,
        location=_ENTRY,
    ),
    _route("GET", "/v1/agents", "kernel.agent.list", same=("state", *_PAGE), query={PROJECT: "project_id"}),
    _route("GET", "/v1/projects", "kernel.project.list", same=("status", *_PAGE)),
    _route(
        "GET",
        "/v1/entries",
        "kernel.sched.list",
        same=("status", "tag", "trigger", "after", *_PAGE),
        query={PROJECT: "project_id"},
        agent_as="pid",
    ),
    _route("GET", _ENTRY, "kernel.sched.get"),
    _route("POST", f"{_ENTRY}/cancel", "kernel.sched.request_cancel", has_body=True),
    _route("POST", f"{_ENTRY}/retry", "kernel.sched.retry"),
    _route("GET", f"{_ENTRY}/why", "kernel.sched.explain", same=("policy", "worker_id")),
    _route("GET", f"{_ENTRY}/logs", "kernel.log.read", same=("attempt", "offset", "limit_bytes")),
    _route("GET", f"{_ENTRY}/logs/places", "kernel.log.places", same=("attempt",)),
    _route(
        "GET",
        "/v1/usage",
        "kernel.usage.report",
        same=("by", "agent"),
        query={"since": "since_at", "until": "until_at", PROJECT: "project_id"},
    ),
    _route("POST", "/v1/events", "kernel.event.append", has_body=True, status=201),
    _route("POST", "/v1/graph-runs", "kernel.graph.start", has_body=True, status=201, location=_RUN),
    _route("GET", "/v1/graph-runs", "kernel.graph.list", same=("status", "graph", *_PAGE)),
    _route("GET", _RUN, "kernel.graph.show"),
    _route("POST", f"{_RUN}/cancel", "kernel.graph.cancel", has_body=True),
    _route("POST", f"{_RUN}/resume", "kernel.graph.resume"),
    _route("DELETE", _RUN, "kernel.graph.forget", same=("cancel",)),
)


# --- which route ---------------------------------------------------------------------------------


class Found(NamedTuple):
    """The route of a request and the variables of its path; or no route, and the verbs that the path has."""

    route: Route | None
    variables: Mapping[str, str]
    verbs: tuple[str, ...]


def find_route(verb: str, path: str) -> Found:
    """Return the route for a path, still percent-encoded, without its query."""
    segments = path.strip("/").split("/")
    at_path = [(route, found) for route in ROUTES if (found := _variables(route, segments)) is not None]
    verbs = tuple(route.verb for route, _ in at_path)
    for route, variables in at_path:
        if route.verb == verb or (verb == "HEAD" and route.verb == "GET"):
            return Found(route, variables, verbs)
    return Found(None, {}, verbs)


def _variables(route: Route, segments: Sequence[str]) -> dict[str, str] | None:
    """Return the variables of a path, or None if it is not the route's."""
    if len(segments) != len(route.segments):
        return None
    variables: dict[str, str] = {}
    for declared, given in zip(route.segments, segments, strict=True):
        if declared.startswith("{"):
            variables[declared.strip("{}")] = unquote(given)
        elif declared != given:
            return None
    return variables


class Sent(NamedTuple):
    """What a request has beside its route."""

    variables: Mapping[str, str]  # of its path
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes


# --- the agent -----------------------------------------------------------------------------------


class AgentRef(NamedTuple):
    """The agent that a request names, and the project that it is in, if that is given."""

    name: str
    project_id: str | None

    @property
    def pid(self) -> int | None:
        """The pid, if it is one."""
        return int(self.name) if self.name.isascii() and self.name.isdecimal() else None


def agent_in(route: Route, sent: Sent) -> AgentRef | None:
    """Return the agent that a request names, if it names one."""
    if not route.agent_as:
        return None
    given = {**dict(parse_qsl(sent.query, keep_blank_values=True)), **sent.variables}
    return AgentRef(given[AGENT], given.get(PROJECT)) if AGENT in given else None


def agent_named(ref: AgentRef, found: Sequence[Agent]) -> int:
    """Return the pid of the agent that is meant, among those of this name that the caller may see."""
    matching = {each.pid: each.project_id for each in found if ref.project_id in (None, each.project_id)}
    if not matching:
        raise UnknownAgent(ref.name, ref.project_id)
    if len(matching) > 1:
        names = ", ".join(sorted(project for project in matching.values() if project is not None))
        raise AmbiguousAgent(ref.name, matching, hint=f"Add ?project= with one of: {names}; or give the pid.")
    return next(iter(matching))


# --- the parameters ------------------------------------------------------------------------------


def params_of(route: Route, sent: Sent, pid: int | None = None) -> Any:
    """Return the parameters of the method, from all parts of a request and the pid of its agent."""
    given: dict[str, Any] = _body(route, sent.body)
    for header, name in route.headers.items():
        if (value := sent.headers.get(header.encode())) is not None:
            _put(given, name, value.decode("latin-1"), f"the header {header}")
    for name, text in parse_qsl(sent.query, keep_blank_values=True):
        if (name == AGENT and route.agent_as) or (name == PROJECT and route.takes_project):
            continue
        if name not in route.query:
            known = ", ".join((*route.query, *((AGENT, PROJECT) if route.agent_as else ()))) or "none"
            raise InvalidInput(f"unknown query parameter {name!r}", field=name, hint=f"Known are: {known}.")
        parameter = route.query[name]
        _put(given, parameter, _from_text(name, text, route.types[parameter]), "the query")
    for name, text in sent.variables.items():
        if name in route.types:
            given[name] = _from_text(name, text, route.types[name])
    if pid is not None:
        given[route.agent_as] = pid
    try:
        return convert(given, route.method.params)
    except msgspec.ValidationError as refusal:
        raise params_error(route.method, given, refusal) from refusal


def _body(route: Route, body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    if problem := body_problem(body):
        raise problem
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidInput(f"the body is not JSON: {problem}", field="body") from problem
    if not isinstance(given, dict):
        raise InvalidInput("the body must be a JSON object", field="body")
    unknown = next((name for name in given if name not in route.body_fields), None)
    if unknown is not None:
        known = ", ".join(route.body_fields) or "none"
        raise InvalidInput(f"unknown field {unknown!r} in the body", field=str(unknown), hint=f"Known are: {known}.")
    return given


def _put(given: dict[str, Any], name: str, value: Any, where: str) -> None:
    if name in given and given[name] != value:
        raise InvalidInput(f"{name} is given twice: in {where} and before it", field=name, hint="Give it once.")
    given[name] = value


def _from_text(name: str, text: str, kind: Any) -> Any:
    """Return the value of a parameter in a path or query; several values are separated by commas."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(get_origin(each) in (list, tuple) for each in kinds) and ("," in text or str not in kinds):
        return text.split(",") if text else []
    if str in kinds:
        return text
    try:
        return convert(text, kind, strict=False)
    except msgspec.ValidationError as refusal:
        raise InvalidInput(f"{name} cannot be {text!r}: {refusal}", field=name) from refusal


# --- errors --------------------------------------------------------------------------------------

STATUSES: tuple[tuple[type[RotaError], int], ...] = (  # the first that matches
    (e.Unauthenticated, 401),
    (e.LockedOut, 429),
    (e.NotAllowed, 403),
    (e.NotFound, 404),
    (e.AmbiguousAgent, 409),
    (e.Conflict, 409),
    (e.IllegalTransition, 409),
    (e.Refused, 409),
    (e.LimitExceeded, 422),  # or one of `_LIMITS`
    (e.InvalidPayload, 422),  # a value that the method refuses
    (e.LedgerInvalidAmount, 422),
    (e.ProjectInvalid, 422),
    (e.FleetInvalid, 422),
    (e.GraphInvalid, 422),
    (e.InvalidInput, 400),  # a parameter that is missing, unknown or of another type
    (e.StoreUnavailable, 503),
    (e.StoreReplaced, 503),
    (e.WaitTimeout, 504),
)
_LIMITS = {  # by the name of the limit
    "body_bytes_max": 413,
    "answer_bytes_max": 413,
    "subscribers_max": 429,
    "reads_max": 429,
    "explains_max": 429,
    "connections_max": 503,
}


def status_of(error: BaseException) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, LimitExceeded) and error.limit in _LIMITS:
        return _LIMITS[error.limit]
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def error_body(error: BaseException, **facts: Any) -> bytes:
    """Return an error as JSON: its code, name, message, hint and facts."""
    packed = to_error_object(error)
    message = error.message if isinstance(error, RotaError) else packed.message
    return msgspec.json.encode({"code": packed.code, "message": message, **(packed.data or {}), **facts})
