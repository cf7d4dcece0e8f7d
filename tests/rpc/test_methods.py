"""The declared methods match the kernel's functions and the table of the seed."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from rota import errors
from rota.errors import RotaError
from rota.kernel import Kernel
from rota.kernel.agents import Agents
from rota.kernel.automatic_retention import AutomaticRetention
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.supervision import Supervision
from rota.kernel.turn import ClaimOptions, make_turn_request
from rota.kernel.usage import Usage
from rota.kernel.workers import Workers
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import METHODS, PROTOCOLS, SCOPES, Method
from rota.rpc.openrpc import openrpc_document
from rota.rpc.tokens import AccessTokens
from rota.service.api.declaration import declarations
from rota.service.core_grants import CoreGrants
from rota.service.dispatcher import Dispatcher
from rota.service.graph_runs import GraphRunVerbs
from rota.service.run_logs import RunLogs
from rota.service.store_policies import StorePolicies

PARTS: dict[str, type] = {  # the class that implements each part
    "queue": Queue,
    "agents": Agents,
    "ledger": Ledger,
    "contexts": Contexts,
    "projects": Projects,
    "policies": StorePolicies,
    "journal": Journal,
    "supervision": Supervision,
    "graphs": GraphRunVerbs,
    "workers": Workers,
    "cores": CoreGrants,
    "usage": Usage,
    "logs": RunLogs,
    "retention": AutomaticRetention,
    "claims": Dispatcher,
    "tokens": AccessTokens,
    "system": RpcHandlers,
    "server": RpcHandlers,
}
KERNEL = ("terminate", "info")  # functions of the kernel itself that the handlers pass on
# functions that are not methods, and why
NOT_REMOTE = {
    "usage.fold": "a report does it first",
    "usage.report_within": "takes projects without a check: `report` is the method",
    "queue.checked_batch": "checks the specs of `enqueue_batch_in`",
    "queue.enqueue_batch_in": "runs inside the caller's transaction",
    "queue.enqueue_each_in": "runs inside the caller's transaction",
    "queue.enqueue_in": "runs inside the caller's transaction",
    "agents.create_in": "runs inside the caller's transaction",
    "graphs.create": "takes a document without a check: `start` is the method",
    "graphs.stored": "a part of `show`",
    "graphs.reachable_agents": "a part of `start`",
    "queue.cancel_batch_in": "runs inside the caller's transaction",
    "queue.entry_with_key": "runs inside the caller's transaction",
    "queue.spawn_in": "runs inside the caller's transaction",
    "queue.wake_in": "runs inside the caller's transaction",
    "queue.live_run": "runs inside the caller's transaction",
    "queue.park": "runs the caller's transaction",
    "queue.watch": "calls back",
    "supervision.settle_agents": "runs inside the caller's transaction",
    "queue.run_due": "what a daemon does by itself: `upkeep` is the method",
    "queue.claim": "the dispatcher's claim",
    "agents.set_pause_in": "runs inside the caller's transaction",
    "agents.update_in": "runs inside the caller's transaction",
    "agents.terminate_in": "runs inside the caller's transaction",
    "agents.check_exit": "a check",
    "agents.interrupted": "for a daemon that starts",
    "agents.recover_idle": "for a daemon that starts",
    "workers.remove_lost": "for a daemon, from time to time",
    "journal.ends": "for the event stream of the daemon",
    "journal.follow": "a client asks for the tail again and again",
    "journal.notify_followers": "wakes followers of this process",
    "journal.wait": "a client asks for the tail, and waits for it",
    "journal.record": "kernel.event.record names the fact by its kind",
}
SEED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # fields with their defaults; results with their types
    "kernel.sched.enqueue": (
        {"pid": ..., "priority": 0, "runnable_at": 0.0, "deadline": None, "trigger": "manual", "payload": {}},
        {"sched_id": int},
    ),
    "kernel.sched.claim": (
        {"worker_id": ..., "max_n": 1, "now": None, "admission_check": True},
        {"entries": list[ReadyEntry]},
    ),
    "kernel.sched.complete": (
        {"sched_id": ..., "exit_kind": ...},
        {"sched_id": int, "state": str, "prev_state": str},
    ),
    "kernel.sched.cancel": ({"sched_id": ...}, {"sched_id": int, "state": str}),
    "kernel.sched.get": ({"sched_id": ...}, {}),
    "kernel.sched.list": (
        {"state": None, "pid": None, "limit": 100, "offset": 0},
        {"entries": list[ReadyEntry], "total": int},
    ),
    "kernel.sched.gc_expired": ({"now": None}, {"swept": int}),
}


def fields_of(kind: Any) -> dict[str, Any]:
    """Every field and its default; `...` if it is required."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = ...
    return found


def function_of(method: Method) -> Any:
    """The function that implements a method."""
    owner = Kernel if method.part == "system" and method.verb in KERNEL else PARTS[method.part]
    return getattr(owner, method.verb)


def signature_of(method: Method) -> dict[str, Any]:
    """The parameters of a method's function and their defaults."""
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function_of(method)).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD or name == "principal":
            continue
        found[name] = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return found


@pytest.mark.parametrize("name", SEED)
def test_the_methods_of_the_seed_match_it_exactly(name: str) -> None:
    params, results = SEED[name]
    method = METHODS[name]
    ours = fields_of(method.params)
    assert {field: ours[field] for field in params} == params
    required = {field for field, default in ours.items() if default is ...}
    assert required == {field for field, default in params.items() if default is ...}, "further fields are optional"
    if results:
        types = {field.name: field.type for field in msgspec.structs.fields(method.codec.result)}
        assert {field: types[field] for field in results} == results
    else:
        assert method.codec.result is ReadyEntry


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_the_arguments_of_its_function(name: str) -> None:
    method = METHODS[name]
    if method.takes_struct:
        assert method.params is ScheduleSpec
        return
    ours, theirs = fields_of(method.params), signature_of(method)
    if method.part == "claims":  # the options of a claim are declared in one place
        theirs = {**theirs, **signature_of_claim_options()}
    extra = set(ours) - set(theirs)
    open_ended = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(function_of(method)).parameters.values()
    )
    assert not extra or open_ended, extra
    assert {field: ours[field] for field in theirs} == theirs


def signature_of_claim_options() -> dict[str, Any]:
    parameters = inspect.signature(make_turn_request).parameters
    return {option: parameters[option].default for option in ClaimOptions.__annotations__}


def test_every_kernel_function_is_a_method_or_has_a_reason_not_to_be() -> None:
    for part in ("queue", "agents", "ledger", "contexts", "projects", "journal", "supervision"):
        verbs = {name for name, _ in inspect.getmembers(PARTS[part], inspect.isfunction) if not name.startswith("_")}
        declared = {declaration.verb for declaration in declarations(PROTOCOLS[part])}
        missing = {f"{part}.{verb}" for verb in verbs - declared}
        assert missing == {verb for verb in NOT_REMOTE if verb.startswith(f"{part}.")}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_scope_summary_and_errors(name: str) -> None:
    method = METHODS[name]
    assert method.scope in SCOPES
    assert method.summary.endswith(".")
    assert all(issubclass(kind, RotaError) for kind in method.errors)
    assert set(method.operate_fields) <= set(fields_of(method.params) if not method.takes_struct else ())
    assert method.params.__struct_config__.forbid_unknown_fields


def test_now_and_admission_check_always_need_scope_operate() -> None:
    for method in METHODS.values():
        fields = set() if method.takes_struct else set(fields_of(method.params))
        overrides = fields & {"now", "admission_check"}
        if method.name == "kernel.sched.bulk":  # one that enqueues may cancel; the other verbs are the operator's
            overrides |= {"verb"}
        assert set(method.operate_fields) == overrides or SCOPES.index(method.scope) >= SCOPES.index("operate"), (
            method.name
        )


def test_only_idempotent_methods_are_retry_safe() -> None:
    unsafe = {
        "kernel.sched.complete",
        "kernel.sched.charge",
        "kernel.ledger.charge",
        "kernel.agent.create",
        "kernel.event.append",
        "kernel.sched.put_back",
        "kernel.ledger.refund",
        "kernel.context.charge",
    }
    assert not any(METHODS[name].retry_safe for name in unsafe)
    assert all(method.retry_safe for method in METHODS.values() if method.execution in ("read", "wait", "inline"))


def test_the_document_describes_every_method_and_all_references_resolve() -> None:
    made = msgspec.json.decode(msgspec.json.encode(openrpc_document("1")))
    assert [method["name"] for method in made["methods"]] == list(METHODS)

    def follow(reference: str) -> Any:
        found = made
        for word in reference.removeprefix("#/").split("/"):
            found = found[word]
        return found

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [each for value in node.values() for each in references(value)]
        return [each for value in node for each in references(value)] if isinstance(node, list) else []

    assert all(follow(reference) is not None for reference in references(made))
    codes = {error["code"] for method in made["methods"] for error in method["errors"]}
    assert codes <= set(errors.CODES)
