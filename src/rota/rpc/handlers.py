"""The office: carries out wire methods over a kernel, for callers who have an identity.

A daemon serves both its transports through one office; a program that holds the file itself can have one too, and then
a method means the same whichever way it was called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from rota.errors import Forbidden, InvalidInput, InvalidPayload, StoreCorrupt
from rota.kernel import Kernel
from rota.kernel.journal import append
from rota.model.events import AccessDenied, Event, OperatorActed, decode
from rota.model.explanation import Explanation
from rota.model.work import ScheduleSpec
from rota.rpc.authorization import Caller, Owners, check, hide
from rota.rpc.methods import METHODS, PROTOCOL, Method, Scope
from rota.rpc.openrpc import document
from rota.rpc.params.work import EnqueueMany, EnqueueUnique
from rota.rpc.results.register import Welcome
from rota.rpc.tokens import Tokens
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain

__all__ = ["LOCAL", "Caller", "Office", "Tokens"]

DETAIL_BYTES_MAX = 4_096  # of what an operator said, in the audit
LOCAL = Caller(name="local", scope="admin")  # whoever holds the file itself
_AUDITED: tuple[Scope, ...] = ("operate", "admin")


class Office:
    """Carries out methods."""

    def __init__(self, kernel: Kernel, desk: Dispatcher, *, store: str = "", rota_version: str = "") -> None:
        self.kernel = kernel
        self.desk = desk
        self.tokens = Tokens(kernel)
        self._store = store
        self._rota_version = rota_version
        self._owners = Owners(kernel.agents.get)
        parts: dict[str, Any] = {
            "queue": kernel.queue,
            "agents": kernel.agents,
            "ledger": kernel.ledger,
            "contexts": kernel.contexts,
            "projects": kernel.projects,
            "journal": kernel.journal,
            "supervision": kernel.supervision,
            "retention": kernel.retention,
            "kernel": kernel,
            "desk": desk,
            "tokens": self.tokens,
            "office": self,
        }
        self._verbs: dict[str, Callable[..., Any]] = {
            name: getattr(parts[method.part], method.verb) for name, method in METHODS.items()
        }
        self._verbs["kernel.event.tail"] = self._tail

    # --- carrying out ----------------------------------------------------------------------------

    def call(self, name: str, params: Any = None, caller: Caller = LOCAL) -> Any:
        """Carry out a method by name, as whoever has the file itself does; the answer is its result on the wire."""
        method = METHODS.get(name)
        if method is None:
            raise InvalidInput(f"there is no method {name!r}", field="method")
        try:
            given = params if isinstance(params, method.params) else msgspec.convert(params or {}, method.params)
        except msgspec.ValidationError as error:
            raise error.__cause__ if isinstance(error.__cause__, InvalidInput) else InvalidInput(str(error)) from error
        try:
            return self.run(method, given, caller)
        except Forbidden as denied:
            self.record_denied(caller, name, denied.message)
            raise

    def ask(self, name: str, /, **params: Any) -> Any:
        """Carry out a method for whoever has the file itself; the answer is what the verb returns, as a client's is."""
        return METHODS[name].shape.unpack(self.call(name, params))

    def run(self, method: Method, params: Any, caller: Caller) -> Any:
        """Carry out a method, if the caller may; the answer is its result on the wire.

        Inside a posted verb all of it, the audit too, is part of that verb's commit.
        """
        scope = check(caller, method, params)
        if method.name == "system.hello":
            return self.hello(params.protocol, params.client, caller)
        if caller.projects is not None:
            self._check_projects(method, params, caller)
        args, kwargs = arguments(method, params)
        result = method.shape.pack(params, self._verbs[method.name](*args, **kwargs))
        idle = method.manner == "claim" and not result.entries  # a claim that waits has done nothing
        if scope in _AUDITED and not idle:
            self._record_operated(caller, method, params)
        return result if caller.projects is None else hide(result, caller, self._owners)

    def _check_projects(self, method: Method, params: Any, caller: Caller) -> None:
        """A caller of some projects writes into no other."""
        if method.scope != "enqueue":
            return
        for project_id in self._projects_touched(params):
            if not caller.sees(project_id):
                whose = "no project" if project_id is None else f"project {project_id!r}"
                hint = "Use a token that is bound to it, or to no project."
                raise Forbidden(f"{caller.name} may not write into {whose}", hint=hint, project_id=project_id)

    def _projects_touched(self, params: Any) -> set[str | None]:
        """The projects that a call writes into: looked up anew, since this may be inside a commit that fails."""
        if isinstance(params, ScheduleSpec):
            pids = {params.pid}
        elif isinstance(params, EnqueueMany):
            pids = {spec.pid for spec in params.specs}
        elif isinstance(params, EnqueueUnique):
            pids = {params.spec.pid}
        else:
            return {self.kernel.queue.get(params.sched_id).project_id}
        return {self.kernel.agents.get(pid).project_id for pid in pids}

    # --- verbs of its own ------------------------------------------------------------------------

    def hello(self, protocol: int, client: str, caller: Caller) -> Welcome:  # noqa: ARG002  # for the log of whoever serves
        """Say who serves, if both speak the same protocol."""
        if protocol != PROTOCOL:
            hint = "Bring both sides to the same version of rota."
            raise InvalidInput(f"protocol {PROTOCOL} is spoken here, not {protocol}", field="protocol", hint=hint)
        projects = None if caller.projects is None else tuple(sorted(caller.projects))
        return Welcome(
            rota_version=self._rota_version,
            protocol=PROTOCOL,
            store=self._store if caller.may("operate") else "",
            policy=self.desk.policy.name,
            caller=caller.name,
            scope=caller.scope,
            projects=projects,
        )

    def discover(self) -> dict[str, Any]:
        """The wire table as an OpenRPC document."""
        return document(self._rota_version)

    def explain(self, sched_id: int, **claim: Any) -> Explanation:
        """Why an entry is not running."""
        return explain(self.desk, sched_id, from_outside=True, **claim)

    def record(self, kind: str, payload: dict[str, Any], pid: int | None = None) -> int:
        """Record a fact about running work, which has to be one that rota knows."""
        try:
            fact = decode(kind, payload)
        except StoreCorrupt as unknown:
            raise InvalidPayload(unknown.message, field="kind") from unknown
        return self.kernel.journal.record(fact, pid=pid)

    def _tail(self, since: int, limit: int, pid: int | None, kinds: tuple[str, ...], wait_s: float) -> list[Event]:
        journal = self.kernel.journal
        events = journal.tail(since, limit, pid=pid, kinds=kinds)
        if events or wait_s <= 0:
            return events
        for _ in journal.follow(since, wait_s=wait_s):
            if events := journal.tail(since, limit, pid=pid, kinds=kinds):
                break
        return events

    # --- the audit -------------------------------------------------------------------------------

    def record_denied(self, caller: Caller, method: str | None, reason: str) -> None:
        """Write down that somebody was turned away."""
        fact = AccessDenied(peer=f"{caller.peer} {caller.name}", method=method, reason=reason)
        now = self.kernel.clock.now()
        self.kernel.store.write(lambda tx: append(tx, fact, now=now))

    def _record_operated(self, caller: Caller, method: Method, params: Any) -> None:
        fact = OperatorActed(who=caller.name, method=method.name, detail=_detail(params))
        now = self.kernel.clock.now()
        self.kernel.store.write(lambda tx: append(tx, fact, now=now))

    def close(self) -> None:
        """Hear of no more changes."""
        self.tokens.close()


def arguments(method: Method, params: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A verb's arguments from a method's parameters; what was left out has the verb's own default."""
    if method.whole:
        return (params,), {}
    fields = method.params.__struct_fields__
    return (), {name: value for name in fields if (value := getattr(params, name)) is not UNSET}


def _detail(params: Any) -> dict[str, Any]:
    said = {name: msgspec.to_builtins(value) for name, value in arguments_said(params).items()}
    size = len(msgspec.json.encode(said))
    return said if size <= DETAIL_BYTES_MAX else {"bytes": size}


def arguments_said(params: Any) -> dict[str, Any]:
    """The fields of parameters that are not at their default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(params)
        if (value := getattr(params, field.name)) is not UNSET and (field.required or value != field.default)
    }
