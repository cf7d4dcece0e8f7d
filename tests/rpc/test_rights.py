"""Every method declares what callers that are bound to projects, and runs, may do with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota.errors import Forbidden
from rota.kernel.project_reads import ProjectReads
from rota.rpc.authorization import BOUND_SCOPES, Principal, RunIdentity, authorize, for_own_run
from rota.rpc.methods import METHODS, Method
from rota.rpc.project_views import VIEWS
from tests.daemon.test_access import example

RUN = RunIdentity(sched_id=7, pid=3, project_id="alpha", claim_token=99)
RUNNER = Principal.of_run(RUN, name="run:7", peer="here")
BOUND = Principal(name="token:x", scope="enqueue", projects=frozenset({"alpha"}))
OWN = {  # all that a run may do for itself, beside reading what its project's view shows
    "kernel.sched.heartbeat",
    "kernel.sched.charge",
    "kernel.sched.complete",
    "kernel.run.checkpoint",
    "kernel.run.rest",
    "kernel.event.append",
    "kernel.log.append",
}
CHILDREN = {
    "kernel.sched.enqueue",
    "kernel.sched.enqueue_many",
    "kernel.sched.enqueue_unique",
    "kernel.sched.estimate",
    "kernel.run.spawn",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_what_bound_callers_and_runs_may_do(name: str) -> None:
    method = METHODS[name]
    assert method.bound is not None, f"{name} must declare `bound`: see service/api/declaration.py"
    assert method.run is not None, f"{name} must declare `run`: see service/api/declaration.py"
    rule = method.bound
    if not rule.allowed:
        assert method.run != "view", "a run sees no more than others that are bound to its project"
        return
    assert method.scope in BOUND_SCOPES, "no token with another scope is bound to projects"
    assert rule.reason or rule.owned or rule.view or rule.reads, "it says why nothing is taken out, or what is"
    assert set(rule.owned) <= {"spec"} if method.takes_struct else set(rule.owned) <= set(fields_of(method))
    assert not rule.view or rule.view in VIEWS
    assert not rule.reads or rule.reads == "events" or callable(getattr(ProjectReads, rule.reads))


def fields_of(method: Method) -> tuple[str, ...]:
    fields: tuple[str, ...] = method.params.__struct_fields__
    return fields


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_declares_nothing_is_refused(name: str) -> None:
    method = undeclared(METHODS[name])
    params = example(method.params)
    with pytest.raises(Forbidden):
        authorize(BOUND, method, params)
    with pytest.raises(Forbidden):
        authorize(RUNNER, method, params)


def undeclared(method: Method) -> Method:
    """The same method, as if its declaration did not mention projects or runs."""
    return msgspec.structs.replace(method, bound=None, run=None)


def test_a_run_acts_for_itself_only() -> None:
    rules = {name: method.run for name, method in METHODS.items()}
    extra = {name for name, rule in rules.items() if rule == "own"} - OWN
    assert not {name for name in extra if not name.startswith("kernel.run.")}, extra
    assert {name for name, rule in rules.items() if rule == "own"} >= OWN
    assert {name for name, rule in rules.items() if rule == "children"} == CHILDREN
    cancels = {"kernel.sched.cancel", "kernel.sched.request_cancel"}
    assert {name for name, rule in rules.items() if rule == "own_or_child"} == cancels


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.run == "own"])
def test_a_run_must_name_itself(name: str) -> None:
    method = METHODS[name]
    own: dict[str, Any] = {"sched_id": RUN.sched_id, "pid": RUN.pid, "token": RUN.claim_token}
    named = {field: value for field, value in own.items() if field in fields_of(method)}
    assert named, "it must say which run it is about"
    params = msgspec.structs.replace(example(method.params), **named)
    authorize(RUNNER, method, params)
    for field in named:
        with pytest.raises(Forbidden, match=f"must have {field} {own[field]}, not 1000"):
            authorize(RUNNER, method, msgspec.structs.replace(params, **{field: 1000}))
        if method.signature.parameters[field].default is None:
            omitted = msgspec.structs.replace(params, **{field: None})
            authorize(RUNNER, method, omitted)
            assert for_own_run(RUN, method, omitted) == params


@pytest.mark.parametrize("name", sorted(CHILDREN))
def test_what_a_run_enqueues_is_its_child(name: str) -> None:
    method = METHODS[name]
    spec = {"pid": 3}
    whole: dict[str, Any] = {"spec": spec, "specs": [spec]}
    given = spec if method.takes_struct else {field: whole[field] for field in whole if field in fields_of(method)}
    if "token" in fields_of(method):
        given = {**given, "token": RUN.claim_token}
    params = msgspec.convert(given, method.params)
    authorize(RUNNER, method, params)
    filled = msgspec.to_builtins(for_own_run(RUN, method, params))
    child = filled if method.takes_struct else filled.get("spec") or filled["specs"][0]
    assert child["parent_id"] == RUN.sched_id
    stranger = msgspec.json.decode(msgspec.json.encode(filled).replace(b'"parent_id":7', b'"parent_id":8'))
    with pytest.raises(Forbidden, match="children of entry 7, not of entry 8"):
        authorize(RUNNER, method, msgspec.convert(stranger, method.params))


@pytest.mark.parametrize("name", ["kernel.agent.create", "kernel.event.remember", "kernel.event.record"])
def test_a_worker_starts_no_program_and_writes_no_notes(name: str) -> None:
    method = METHODS[name]
    with pytest.raises(Forbidden, match="needs scope operate") as denied:
        authorize(Principal(name="worker", scope="work"), method, example(method.params))
    assert "`rota run` needs a token of scope operate" in str(denied.value.hint)
