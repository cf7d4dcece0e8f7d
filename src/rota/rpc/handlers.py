"""The handlers of all RPC methods: authorize a call, execute it, write the audit event.

Calls of callers that are bound to projects go through `bound_calls.py`.

The daemon serves both transports through one `RpcHandlers`. A program that opened the file itself can use one too:
`rota token` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from rota.decoding import convert
from rota.errors import Forbidden, InvalidInput, InvalidPayload, StoreCorrupt
from rota.fleet.agent_settings import enqueue_agent
from rota.kernel import Kernel
from rota.kernel.journal import append
from rota.model.agent_metadata import hide_env
from rota.model.entry_report import EntryReport
from rota.model.event_codec import decode
from rota.model.events import AccessDenied, OperatorActed
from rota.model.explanation import Explanation, ExplanationSummary
from rota.model.work import ScheduleSpec
from rota.rpc.authorization import Principal, authorize, without_env
from rota.rpc.bound_calls import BoundCalls
from rota.rpc.jsonrpc import params_error
from rota.rpc.methods import METHODS, PROTOCOL, Method, Parts, Scope
from rota.rpc.openrpc import openrpc_document
from rota.rpc.server_api import Hello
from rota.rpc.tokens import AccessTokens
from rota.service.dispatcher import Dispatcher
from rota.service.entry_reports import entry_report
from rota.service.explanation import estimate, explain
from rota.service.explanation_summary import explain_many
from rota.store.author import acting_as

__all__ = ["LOCAL", "RpcHandlers"]

DETAIL_BYTES_MAX = 4_096  # of the parameters in an audit event
LOCAL = Principal(name="local", scope="admin")  # a program that opened the file itself
_AUDITED: tuple[Scope, ...] = ("operate", "admin")


class RpcHandlers:
    """Executes RPC methods on a kernel."""

    def __init__(self, kernel: Kernel, dispatcher: Dispatcher, *, store: str = "", rota_version: str = "") -> None:
        self.kernel = kernel
        self.dispatcher = dispatcher
        self.tokens = AccessTokens(kernel)
        self._store = store
        self.rota_version = rota_version
        self._bound_calls = BoundCalls(kernel, _arguments)
        self.terminate, self.info = kernel.terminate, kernel.info
        parts = Parts(
            queue=kernel.queue,
            claims=dispatcher,
            system=self,
            supervision=kernel.supervision,
            graphs=dispatcher.graphs,
            workers=kernel.workers,
            cores=dispatcher.cores,
            logs=dispatcher.logs,
            agents=kernel.agents,
            ledger=kernel.ledger,
            usage=kernel.usage,
            projects=kernel.projects,
            contexts=kernel.contexts,
            policies=dispatcher.policies,
            journal=kernel.journal,
            retention=kernel.retention,
            tokens=self.tokens,
            server=self,
        )
        self._functions: dict[str, Callable[..., Any]] = {
            name: getattr(getattr(parts, method.part), method.verb) for name, method in METHODS.items()
        }

    # --- executing -------------------------------------------------------------------------------

    def execute_by_name(self, name: str, params: Any = None, principal: Principal = LOCAL) -> Any:
        """Execute a method by name and return its result as on the wire."""
        method = METHODS.get(name)
        if method is None:
            raise InvalidInput(f"unknown method {name!r}", field="method")
        try:
            given = params if isinstance(params, method.params) else convert(params or {}, method.params)
        except msgspec.ValidationError as refusal:
            raise params_error(method, params or {}, refusal) from refusal
        try:
            return self.execute(method, given, principal)
        except Forbidden as denied:
            self.record_denied(principal, name, denied.message)
            raise

    def call(self, name: str, /, **params: Any) -> Any:
        """Execute a method as the local principal and return what the same call of a client returns."""
        return METHODS[name].codec.unpack(self.execute_by_name(name, params))

    def execute(self, method: Method, params: Any, principal: Principal) -> Any:
        """Execute a method, if the principal may, and return its result as on the wire.

        Inside a posted write all of it, including the audit event, is part of that write's commit. The principal is the
        author of the events.
        """
        with acting_as(None if principal is LOCAL else principal.name):
            result = self._execute(method, params, principal)
        return result if principal.starts_programs else without_env(result)

    def _execute(self, method: Method, params: Any, principal: Principal) -> Any:
        if principal.run is not None:
            self.tokens.check(principal)  # a run that has ended may do nothing more
        scope = authorize(principal, method, params)
        if method.name == "system.hello":
            return self.hello(params.protocol, params.client, principal=principal)
        function = self._functions[method.name]
        if principal.projects is not None:
            return self._bound_calls.execute(method, params, principal, function)
        args, kwargs = _arguments(method, params)
        result = method.codec.pack(params, function(*args, **kwargs))
        if scope in _AUDITED and method.audited and not (method.execution == "claim" and not result.entries):
            self._record_operation(principal, method, params)  # except a claim without entries: it changed nothing
        return result

    # --- methods that the kernel does not implement ----------------------------------------------

    def hello(
        self,
        protocol: int,
        client: str = "",  # noqa: ARG002  # logged by the server
        access_token: str = "",  # noqa: ARG002  # the unix socket has made the principal from it
        principal: Principal = LOCAL,
    ) -> Hello:
        """Return the server's versions and the caller's rights, if both use the same protocol version."""
        if protocol != PROTOCOL:
            hint = "Install the same version of rota on both sides."
            raise InvalidInput(
                f"the server uses protocol {PROTOCOL}, the client {protocol}", field="protocol", hint=hint
            )
        projects = None if principal.projects is None else tuple(sorted(filter(None, principal.projects)))
        return Hello(
            rota_version=self.rota_version,
            protocol=PROTOCOL,
            store=self._store if principal.may("operate") else "",
            policy=self.dispatcher.policy.name,
            caller=principal.name,
            scope=principal.scope,
            projects=projects,
        )

    def discover(self) -> dict[str, Any]:
        """Return the method table as an OpenRPC document."""
        return openrpc_document(self.rota_version)

    def enqueue_agent(self, pid: int, payload: dict[str, Any] | None = None, **options: Any) -> int:
        """Enqueue an entry of an agent with the agent's settings."""
        return enqueue_agent(self.kernel, pid, payload, **options)

    def explain(self, sched_id: int, **claim: Any) -> Explanation:
        """Explain why an entry is not running."""
        return explain(self.dispatcher, sched_id, policy_from_store=True, **claim)

    def estimate(self, spec: ScheduleSpec) -> Explanation:
        """Explain what would happen to an entry if it were enqueued now."""
        return estimate(self.dispatcher, spec, policy_from_store=True)

    def show(self, sched_id: int) -> EntryReport:
        """Return everything about one entry."""
        return entry_report(self.kernel.store, self.kernel.clock, sched_id)

    def explain_many(self, *, pid: int | None = None, project_id: str | None = None) -> ExplanationSummary:
        """Count why queued entries wait."""
        return explain_many(self.dispatcher, pid=pid, project_id=project_id)

    def record(self, kind: str, payload: dict[str, Any], pid: int | None = None) -> int:
        """Record an event about running work; its kind must be one of rota's."""
        try:
            fact = decode(kind, payload)
        except StoreCorrupt as unknown:
            raise InvalidPayload(unknown.message, field="kind") from unknown
        return self.kernel.journal.record(fact, pid=pid)

    # --- audit events ----------------------------------------------------------------------------

    def record_denied(self, principal: Principal, method: str | None, reason: str, count: int = 1) -> None:
        """Record that a call was denied, or several."""
        fact = AccessDenied(peer=f"{principal.peer} {principal.name}", method=method, reason=reason, count=count)
        now = self.kernel.clock.now()
        self.kernel.store.write(lambda tx: append(tx, fact, now=now))

    def _record_operation(self, principal: Principal, method: Method, params: Any) -> None:
        fact = OperatorActed(who=principal.name, method=method.name, detail=_detail(params))
        now = self.kernel.clock.now()
        self.kernel.store.write(lambda tx: append(tx, fact, now=now))

    def close(self) -> None:
        """Stop watching the store for changes."""
        self.tokens.close()


def _arguments(method: Method, params: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a method's function; omitted parameters get the function's own defaults."""
    if method.takes_struct:
        return (params,), {}
    fields = method.params.__struct_fields__
    return (), {name: value for name in fields if (value := getattr(params, name)) is not UNSET}


def _detail(params: Any) -> dict[str, Any]:
    given = {name: msgspec.to_builtins(value) for name, value in _non_default_fields(params).items()}
    if isinstance(metadata := given.get("metadata"), dict):
        given["metadata"] = hide_env(metadata)
    size = len(msgspec.json.encode(given))
    return given if size <= DETAIL_BYTES_MAX else {"bytes": size}


def _non_default_fields(params: Any) -> dict[str, Any]:
    """Return the parameters that do not have their default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(params)
        if (value := getattr(params, field.name)) is not UNSET and (field.required or value != field.default)
    }
