"""Access: tokens, scopes, projects, lock-out and audit events."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import (
    Forbidden,
    InvalidInput,
    InvalidPayload,
    LockedOut,
    SchedUnknownId,
    StoreUnavailable,
    Unauthenticated,
    UnknownPid,
)
from rota.fleet import request_reload
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import FleetReloadRequested
from rota.rpc import connect
from rota.rpc.authorization import Principal, authorize
from rota.rpc.daemon.lockout import Lockout
from rota.rpc.daemon.tcp import HttpSettings
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.handlers import LOCAL, RpcHandlers
from rota.rpc.methods import METHODS, SCOPES, Method, Scope
from rota.rpc.tokens import LOOKUPS_MAX, LOOKUPS_S
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import Served, make_token, serving
from tests.daemon.http_client import call, rpc


def example(kind: Any) -> Any:
    """Parameters of a type, with a value for each required field."""
    values: dict[Any, Any] = {int: 1, str: "x", float: 1.0, bool: True, bytes: "eA=="}
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            given[field.name] = _value(field.type, values)
    return msgspec.convert(given, kind)


def _value(kind: Any, values: dict[Any, Any]) -> Any:
    if kind in values:
        return values[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [1, 1] if kind.__struct_config__.array_like else msgspec.to_builtins(example(kind))
    text = str(kind)
    if "Literal" in text:
        return kind.__args__[0]
    found = {"list[": [], "tuple[int": [1], "dict": {}, "int": 1}
    return next((value for word, value in found.items() if word in text), "x")


# --- scopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_method_needs_its_scope(name: str) -> None:
    method = METHODS[name]
    params = example(method.params)
    rung = SCOPES.index(method.scope)
    for scope in SCOPES:
        caller = Principal(name="caller", scope=scope)
        if SCOPES.index(scope) >= rung:
            assert authorize(caller, method, params) == method.scope
        else:
            with pytest.raises(Forbidden, match=f"needs scope {method.scope}"):
                authorize(caller, method, params)


GUARDED = [(method, field) for method in METHODS.values() for field in method.operate_fields]


@pytest.mark.parametrize(("method", "field"), GUARDED, ids=lambda each: str(getattr(each, "name", each)))
def test_operate_fields_need_scope_operate(method: Method, field: str) -> None:
    value = False if field == "admission_check" else 5.0
    params = msgspec.structs.replace(example(method.params), **{field: value})
    assert authorize(Principal(name="caller", scope="operate"), method, params) == "operate"
    with pytest.raises(Forbidden, match="needs scope operate"):
        authorize(Principal(name="caller", scope="work"), method, params)


@pytest.mark.parametrize("name", METHODS)
def test_over_http_every_method_needs_a_token_of_its_scope(name: str, closed: Served) -> None:
    method = METHODS[name]
    params = msgspec.to_builtins(example(method.params))
    body = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
    bare = rpc(closed.url, None, body)
    assert bare.status == 401
    assert bare.json["error"]["code"] == Unauthenticated.code
    rung = SCOPES.index(method.scope)
    if rung:
        below = rpc(closed.url, TOKENS[SCOPES[rung - 1]], body).json
        assert below["error"]["code"] == Forbidden.code
    within = rpc(closed.url, TOKENS[method.scope], body).json
    assert within.get("error", {}).get("code") != Forbidden.code


TOKENS: dict[Scope, str] = {}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon without lock-out, with a token of each scope."""
    path = tmp_path_factory.mktemp("closed") / "rota.db"
    with serving(path, limits=DaemonLimits(failures_max=100_000)) as served:
        TOKENS.update({scope: make_token(served.path, scope) for scope in SCOPES})
        yield served


def test_an_operator_may_ask_a_fleet_to_reload_and_a_worker_may_not(served: Served) -> None:
    """What a reload applies, an agent may have written: its worker, or its run, cannot have it applied."""
    worker, operator = make_token(served.path, "work"), make_token(served.path, "operate")
    with connect(served.url, token=worker) as client:
        with pytest.raises(Forbidden, match="needs scope operate"):
            request_reload(client, "ann", "night")
        with pytest.raises(InvalidPayload, match="must not begin with"):
            client.journal.append(None, FleetReloadRequested.kind, {"by": "ann", "fleet": "night"})
    with connect(served.url, token=operator) as client:
        event_id = request_reload(client, "ann", "night")
        (event,) = client.journal.tail(event_id - 1, kinds=(FleetReloadRequested.kind,))
    assert event.payload == {"by": "ann", "fleet": "night"}


# --- projects ------------------------------------------------------------------------------------


@pytest.fixture
def two_projects(served: Served) -> dict[str, int]:
    """Agents and entries of two projects; the pids."""
    pids = {}
    with served.client() as client:
        for project in ("alpha", "beta"):
            client.projects.create(project, metadata={"secret": project})
            pids[project] = client.agents.create(project, project_id=project, metadata={"secret": project})
            client.enqueue(ScheduleSpec(pids[project], payload={"secret": project}, tags=("t",), key=project))
            client.journal.append(pids[project], "note", {"secret": project})
    return pids


def test_for_a_token_of_one_project_another_does_not_exist(served: Served, two_projects: dict[str, int]) -> None:
    token = make_token(served.path, "enqueue", projects=("alpha",))
    with connect(served.url, token=token) as client:
        assert (client.get(1).payload, client.get(1).key) == ({"secret": "alpha"}, "alpha")
        with pytest.raises(SchedUnknownId) as theirs:
            client.get(2)
        with pytest.raises(SchedUnknownId) as nothing:
            client.get(3)
        assert str(theirs.value) == str(nothing.value).replace("3", "2"), "it is not told that entry 2 exists"
        entries, total = client.queue.list()
        assert ([entry.sched_id for entry in entries], total) == ([1], 1)
        assert client.queue.counts() == {"queued": 1}
        assert [entry.sched_id for entry in client.queue.peek(2)] == [1]
        assert [agent.metadata for agent in client.agents.list()[0]] == [{"secret": "alpha"}]
        assert [project.metadata for project in client.projects.list()[0]] == [{"secret": "alpha"}]
        assert client.agents.find("beta") == []
        events = client.journal.tail()
        assert [event.payload for event in events if event.kind == "note"] == [{"secret": "alpha"}]
        assert two_projects["beta"] not in {event.pid for event in events}
        explanation = client.explain(1)
        assert (explanation.sched_id, explanation.starts) == (1, True)


def test_what_runs_first_is_not_named_or_counted_for_another_project(
    served: Served, two_projects: dict[str, int]
) -> None:
    token = make_token(served.path, "read", projects=("alpha",))
    with served.client() as local:
        for priority in (3, 2):
            local.enqueue(ScheduleSpec(two_projects["beta"], priority=priority))
        local.ledger.set_budget("global", "*", "tokens", 0)
        local.policies.set("strict")
    with connect(served.url, token=token) as client:
        over = client.explain(1).blocking
        assert [reason.sentence() for reason in over] == ["the shared limit tokens of the whole store is exhausted"]
        with served.client() as local:
            local.ledger.set_budget("global", "*", "tokens", None)
        explanation = client.explain(1)
        assert [reason.sentence() for reason in explanation.ordering] == ["others go first by strict"]
        assert (explanation.ahead, explanation.position, explanation.changes) == ((), None, ())


def test_a_token_of_one_project_cannot_write_into_another(served: Served, two_projects: dict[str, int]) -> None:
    token = make_token(served.path, "enqueue", projects=("alpha",))
    with connect(served.url, token=token) as client:
        assert client.enqueue(ScheduleSpec(two_projects["alpha"])) == 3
        theirs = ScheduleSpec(two_projects["beta"])
        with pytest.raises(UnknownPid):
            client.enqueue(theirs)
        with pytest.raises(UnknownPid, match=r"specs\[1\]"):
            client.enqueue_many([ScheduleSpec(two_projects["alpha"]), theirs])
        with pytest.raises(UnknownPid):
            client.queue.enqueue_unique(theirs)
        with pytest.raises(SchedUnknownId):
            client.queue.cancel(2)
        with pytest.raises(SchedUnknownId):
            client.queue.request_cancel(2)
        assert client.queue.cancel(3) == ("queued", "cancelled")
    with served.client() as local:
        assert local.queue.list()[1] == 3, "no denied call wrote anything"


@pytest.mark.usefixtures("two_projects")
def test_a_token_of_several_projects_sees_all_of_them_and_no_other(served: Served) -> None:
    with served.client() as local:
        local.projects.create("gamma")
        local.enqueue(ScheduleSpec(local.agents.create("gamma", project_id="gamma")))
        local.enqueue(ScheduleSpec(local.agents.create("none")))
    with connect(served.url, token=make_token(served.path, "read", projects=("alpha", "gamma"))) as client:
        assert [entry.sched_id for entry in client.queue.list()[0]] == [1, 3]
        assert [entry.sched_id for entry in client.queue.list(project_id="gamma")[0]] == [3]
        assert client.queue.list(project_id="beta") == ([], 0)
        assert [project.project_id for project in client.projects.list()[0]] == ["alpha", "gamma"]


# --- tokens --------------------------------------------------------------------------------------


def test_a_token_works_until_it_is_revoked_elsewhere(served: Served) -> None:
    token = make_token(served.path, "read")
    assert "result" in call(served.url, token, "kernel.sched.counts")
    kernel = Kernel(store.open(served.path))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    handlers.call("system.token_revoke", token_id=token.split("_")[1])
    handlers.close()
    kernel.store.close()
    for _ in range(1_000):  # the daemon is notified, or notices at its next read
        answer = call(served.url, token, "kernel.sched.counts")
        if "error" in answer:
            break
    assert "was revoked" in answer["error"]["message"]


@pytest.fixture
def two_processes(tmp_path: Path) -> Iterator[tuple[RpcHandlers, RpcHandlers]]:
    """Two users of a store, of which the first one is never told that the other one has written."""
    kernels = [Kernel(store.open(str(tmp_path / "rota.db"), clock=ManualClock(1_000.0))) for _ in range(2)]
    here, elsewhere = (RpcHandlers(kernel, Dispatcher(kernel)) for kernel in kernels)
    here.tokens.close()
    here.tokens.list()
    yield here, elsewhere
    for handlers, kernel in zip((here, elsewhere), kernels, strict=True):
        handlers.close()
        kernel.store.close()


def test_a_token_that_was_created_elsewhere_is_accepted_before_the_news_of_it(
    two_processes: tuple[RpcHandlers, RpcHandlers],
) -> None:
    here, elsewhere = two_processes
    created = elsewhere.call("system.token_create", name="t", scope="read")
    principal = here.tokens.authenticate(created.token, "peer")
    assert (principal.scope, here.tokens.check(principal)) == ("read", None)
    rotated = elsewhere.call("system.token_rotate", token_id=created.line.token_id)
    assert here.tokens.authenticate(rotated.token, "peer").token_id == created.line.token_id
    with pytest.raises(Unauthenticated, match="has another secret"):
        here.tokens.authenticate(created.token, "peer")


def test_a_flood_of_wrong_tokens_is_not_looked_up(two_processes: tuple[RpcHandlers, RpcHandlers]) -> None:
    here, elsewhere = two_processes
    token = elsewhere.call("system.token_create", name="t", scope="read").token
    for number in range(LOOKUPS_MAX):
        with pytest.raises(Unauthenticated):
            here.tokens.authenticate(f"rota_{number:012x}_guess", "peer")
    with pytest.raises(Unauthenticated):
        here.tokens.authenticate(token, "peer")
    clock = here.kernel.clock
    assert isinstance(clock, ManualClock)
    clock.advance(LOOKUPS_S)
    assert here.tokens.authenticate(token, "peer").scope == "read"


def test_a_token_that_is_revoked_while_tokens_are_read_is_not_kept(
    two_processes: tuple[RpcHandlers, RpcHandlers], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = two_processes
    created = elsewhere.call("system.token_create", name="t", scope="read")
    read = here.kernel.store.read

    def read_before_it_is_revoked(work: Any) -> Any:
        found = read(work)
        monkeypatch.undo()
        elsewhere.call("system.token_revoke", token_id=created.line.token_id)
        here.tokens.forget()  # the news of it
        return found

    here.tokens.forget()
    monkeypatch.setattr(here.kernel.store, "read", read_before_it_is_revoked)
    assert [line.revoked_at for line in here.tokens.list()] == [None]
    with pytest.raises(Unauthenticated, match="was revoked"):
        here.tokens.authenticate(created.token, "peer")


def test_a_token_that_cannot_be_looked_up_is_refused_with_the_reason(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_work: Any) -> Any:
        raise StoreUnavailable("the server is away")

    monkeypatch.setattr(served.daemon.handlers.kernel.store, "read", away)
    token, body = "rota_0123456789ab_x", {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts"}
    with connect(served.unix, token=token) as client, pytest.raises(StoreUnavailable, match="is away"):
        client.queue.counts()
    assert rpc(served.url, token, body).status == 503


def test_a_token_expires(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(str(tmp_path / "rota.db"), clock=clock))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    token = handlers.call("system.token_create", name="t", scope="read", expires_in_s=10.0).token
    clock.advance(9.9)
    assert handlers.tokens.authenticate(token, "here").scope == "read"
    clock.advance(0.1)
    with pytest.raises(Unauthenticated, match="has expired"):
        handlers.tokens.authenticate(token, "here")
    handlers.close()
    kernel.store.close()


@pytest.mark.parametrize("wrong", ["", "x", "rota_", "rota__", "rota_0_0", "Rota_{id}_{secret}", "rota_{id}_{secret}x"])
def test_only_the_complete_token_is_accepted(tmp_path: Path, wrong: str) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    _, token_id, secret = handlers.call("system.token_create", name="t", scope="read").token.split("_", 2)
    with pytest.raises(Unauthenticated):
        handlers.tokens.authenticate(wrong.format(id=token_id, secret=secret), "here")
    handlers.close()
    kernel.store.close()


def test_no_secret_is_stored(tmp_path: Path) -> None:
    token = make_token(str(tmp_path / "rota.db"), "admin")
    secret = token.split("_", 2)[2].encode()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.parametrize(
    "asked",
    [
        {"scope": "root"},
        {"scope": "work", "projects": ("alpha",)},
        {"scope": "read", "projects": ()},
        {"scope": "read", "expires_in_s": 0.0},
        {"scope": "read", "name": ""},
        {"scope": "read", "name": 1},
    ],
)
def test_an_invalid_token_request_is_rejected(tmp_path: Path, asked: dict[str, Any]) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    with pytest.raises(InvalidInput) as invalid:
        handlers.call("system.token_create", **{"name": "t", **asked})
    assert invalid.value.field in asked
    assert handlers.call("system.token_list") == []
    handlers.close()
    kernel.store.close()


# --- lock-out ------------------------------------------------------------------------------------


def test_a_token_id_is_locked_out_for_a_time_after_repeated_failures() -> None:
    now = [0.0]
    lockout = Lockout(DaemonLimits(failures_max=3, failures_s=10, lockout_s=60), lambda: now[0])
    for at in (0.0, 1.0, 10.0):
        now[0] = at
        lockout.failed("a")
    with pytest.raises(LockedOut, match="another 60 s"):
        lockout.failed("a")
    lockout.failed("b")
    for at in (70.0, 75.0, 80.1, 80.2):
        now[0] = at
        lockout.failed("a")


def test_failures_kept_max_limits_the_remembered_failures() -> None:
    lockout = Lockout(DaemonLimits(failures_kept_max=2, failures_max=2), lambda: 0.0)
    for token_id in ("a", "b", "a"):  # at the limit both are remembered
        lockout.failed(token_id)
    with pytest.raises(LockedOut):
        lockout.failed("a")
    for token_id in ("c", "d", "b"):  # one past the limit the oldest is forgotten and starts again
        lockout.failed(token_id)
    assert len(lockout._failures) == 2


def test_failures_kept_max_limits_the_locked_out_ids() -> None:
    lockout = Lockout(DaemonLimits(failures_kept_max=2, failures_max=1), lambda: 0.0)
    for token_id in ("a", "b", "c"):
        lockout.failed(token_id)
    for token_id in ("b", "c"):
        with pytest.raises(LockedOut):
            lockout.failed(token_id)
    lockout.failed("a")


def test_a_valid_token_is_never_locked_out(served: Served) -> None:
    good = make_token(served.path, "read")
    body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts"}
    for _ in range(10):
        assert rpc(served.url, None, body).status == 401, "a missing token is no failure"
    guess = good.rpartition("_")[0] + "_guess"
    statuses = [rpc(served.url, guess, body).status for _ in range(6)]
    assert statuses == [401, 401, 401, 429, 429, 429]
    assert 0 < int(rpc(served.url, guess, body).headers["retry-after"]) <= 60
    assert rpc(served.url, good, body).status == 200, "its owner is served meanwhile"


def test_a_connection_is_closed_after_repeated_failures(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    for number in range(3):
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer rota_{number}_x"})
        response = connection.getresponse()
        response.read()
        assert (response.status, response.getheader("connection")) == (401, "close" if number == 2 else None)
    connection.close()


# --- audit events --------------------------------------------------------------------------------


def test_denials_and_operations_are_recorded(served: Served) -> None:
    reader, operator = make_token(served.path, "read"), make_token(served.path, "operate")
    assert call(served.url, reader, "kernel.project.pause_fleet", {"by": "x"})["error"]["code"] == Forbidden.code
    assert "result" in call(served.url, operator, "kernel.project.pause_fleet", {"by": "x", "reason": "test"})
    assert call(served.url, None, "kernel.sched.counts")["error"]["code"] == Unauthenticated.code
    with served.client() as client:
        kinds = ("kernel.auth.denied",)
        served._until(lambda: len(client.journal.tail(0, kinds=kinds)) == 2)  # they are written after the response
        facts = [event for event in client.journal.tail(0, 10_000) if event.kind.startswith("kernel.auth")]
    denied = [event.payload for event in facts if event.kind == "kernel.auth.denied"]
    assert [fact.get("method") for fact in denied] == ["kernel.project.pause_fleet", None]
    assert f"token:{reader.split('_')[1]}" in denied[0]["peer"]
    acts = [event.payload for event in facts if event.kind == "kernel.auth.operated"]
    assert acts[-1] == {
        "who": f"token:{operator.split('_')[1]}",
        "method": "kernel.project.pause_fleet",
        "detail": {"by": "x", "reason": "test"},
    }
    assert not any(token.split("_", 2)[2] in repr(facts) for token in (reader, operator))


def test_an_operation_and_its_audit_event_are_one_commit(tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    with pytest.raises(InvalidInput):
        handlers.execute_by_name("kernel.project.move", {"project_id": "nothing", "verb": ""}, LOCAL)
    assert not [event for event in kernel.journal.tail() if event.kind == "kernel.auth.operated"]
    handlers.close()
    kernel.store.close()


# --- listening ------- ----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_tls_is_required_except_on_loopback(host: str) -> None:
    with pytest.raises(InvalidInput, match="tls-cert"):
        HttpSettings(host=host)
    assert HttpSettings(host=host, certificate="c.pem", key="k.pem").host == host
    with pytest.raises(InvalidInput, match="both"):
        HttpSettings(host=host, certificate="c.pem")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert HttpSettings(host=host).certificate is None
