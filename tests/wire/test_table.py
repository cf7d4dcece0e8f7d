"""The wire table against the kernel it speaks for, and against the seed's own table."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from rota import errors
from rota.errors import RotaError
from rota.kernel import Kernel
from rota.kernel.agents import Agents
from rota.kernel.claim_request import Asked, ask_of
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.retention import Retention
from rota.kernel.supervision import Supervision
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.rpc.methods import METHODS, SCOPES, Method, of_part
from rota.rpc.openrpc import document
from rota.rpc.tokens import Tokens
from rota.service.dispatcher import Dispatcher

PARTS: dict[str, type] = {
    "queue": Queue,
    "agents": Agents,
    "ledger": Ledger,
    "contexts": Contexts,
    "projects": Projects,
    "journal": Journal,
    "supervision": Supervision,
    "retention": Retention,
    "kernel": Kernel,
    "desk": Dispatcher,
    "tokens": Tokens,
}
# verbs that stay in the process, and why
AT_HOME = {
    "queue.cancel_some": "runs inside somebody's transaction",
    **dict.fromkeys(
        (f"queue.{verb}" for verb in ("end", "hand_out", "live", "park", "put", "return_run", "spend")),
        "runs inside somebody's transaction",
    ),
    "queue.watch": "calls back",
    "supervision.turn": "the desk's turn",
    "queue.claim": "the desk's claim, with policy strict",
    "queue.complete_and_claim": "the desk's, with policy strict",
    "agents.end": "runs inside somebody's transaction",
    "agents.check_exit": "a check",
    "journal.follow": "a client asks for the tail again and again",
    "journal.ring": "wakes followers of this process",
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
    """Every field and its default; `...` where it must be given."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = ...
    return found


def signature_of(method: Method) -> dict[str, Any]:
    """A verb's parameters and their defaults, in the words of the wire."""
    verb = getattr(PARTS[method.part], method.verb)
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(verb).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        found[name] = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return found


@pytest.mark.parametrize("name", SEED)
def test_the_seeds_methods_are_exactly_as_it_says(name: str) -> None:
    params, results = SEED[name]
    method = METHODS[name]
    ours = fields_of(method.params)
    assert {field: ours[field] for field in params} == params
    required = {field for field, default in ours.items() if default is ...}
    assert required == {field for field, default in params.items() if default is ...}, "what we add is optional"
    if results:
        types = {field.name: field.type for field in msgspec.structs.fields(method.shape.result)}
        assert {field: types[field] for field in results} == results
    else:
        assert method.shape.result is ReadyEntry


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.part in PARTS])
def test_a_method_takes_what_its_verb_takes(name: str) -> None:
    method = METHODS[name]
    if method.whole:
        assert method.params is ScheduleSpec
        return
    ours, theirs = fields_of(method.params), signature_of(method)
    if method.part == "desk":  # a claim's wishes are named in one place
        theirs = {**theirs, **signature_of_wishes()}
    extra = set(ours) - set(theirs)
    open_ended = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(getattr(PARTS[method.part], method.verb)).parameters.values()
    )
    assert not extra or open_ended or (name == "kernel.event.tail" and extra == {"wait_s"}), extra
    assert {field: ours[field] for field in theirs} == theirs


def signature_of_wishes() -> dict[str, Any]:
    defaults = inspect.signature(ask_of).parameters
    words = [word for word in Asked.__annotations__ if word not in ("find", "same")]
    return {
        word: ... if defaults[word].default is inspect.Parameter.empty else defaults[word].default for word in words
    }


def test_every_verb_of_the_kernel_is_on_the_wire_or_has_a_reason_not_to_be() -> None:
    for part in ("queue", "agents", "ledger", "contexts", "projects", "journal", "supervision"):
        verbs = {name for name, _ in inspect.getmembers(PARTS[part], inspect.isfunction) if not name.startswith("_")}
        missing = {f"{part}.{verb}" for verb in verbs - set(of_part(part))}
        assert missing == {verb for verb in AT_HOME if verb.startswith(f"{part}.")}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_who_may_call_it_what_it_does_and_how_it_fails(name: str) -> None:
    method = METHODS[name]
    assert method.scope in SCOPES
    assert method.sentence.endswith(".")
    assert all(issubclass(kind, RotaError) for kind in method.errors)
    assert set(method.guarded) <= set(fields_of(method.params) if not method.whole else ())
    assert method.params.__struct_config__.forbid_unknown_fields


def test_a_callers_own_time_and_unchecked_claims_are_guarded_wherever_they_can_be_said() -> None:
    for method in METHODS.values():
        fields = set() if method.whole else set(fields_of(method.params))
        said = fields & {"now", "admission_check"}
        assert set(method.guarded) == said or SCOPES.index(method.scope) >= SCOPES.index("operate"), method.name


def test_only_what_changes_nothing_or_the_same_is_safe() -> None:
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
    assert not any(METHODS[name].safe for name in unsafe)
    assert all(method.safe for method in METHODS.values() if method.manner in ("read", "wait", "door"))


def test_the_document_describes_every_method_and_every_reference_leads_somewhere() -> None:
    made = msgspec.json.decode(msgspec.json.encode(document("1")))
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
