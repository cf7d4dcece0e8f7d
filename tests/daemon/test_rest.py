"""The REST face: routes are declared methods, with their rights, walls and errors."""

from __future__ import annotations

import argparse
import shlex
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest

from rota.fleet import SETTINGS_KEY, AgentSettings, settings_of, spec_for
from rota.kernel import ScheduleSpec
from rota.model.work import Backoff, Limits, RestartPolicy
from rota.rpc import Client
from rota.rpc.jsonrpc import BODY_BYTES_MAX
from rota.rpc.rest import ROUTES, find_route, status_of
from tests.daemon.harness import Served, make_token
from tests.daemon.http_client import Response, fetch
from tests.docs.pages import ROOT

SETTINGS = AgentSettings(
    runner="command",
    argv=("true",),
    expected={"tokens": 500},
    limits=Limits(tokens=900),
    draws_on=("model-api",),
    max_attempts=5,
    kind="gpu",
    payload={"model": "small"},
    restart=RestartPolicy(when="on_failure", backoff=Backoff(base_s=7.0)),
)
Ask = Callable[..., Response]


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client with all rights, to prepare and to compare."""
    with served.client() as made:
        yield made


@pytest.fixture
def ask(served: Served) -> Ask:
    return asking(served, make_token(served.path, "admin"))


def asking(served: Served, token: str) -> Ask:
    def ask(verb: str, path: str, body: Any = None, **headers: str) -> Response:
        raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        return fetch(served.url, path, method=verb, body=raw, authorization=f"Bearer {token}", **headers)

    return ask


def furnish(client: Client, name: str = "coder", project: str | None = "lab") -> int:
    """Create an agent with settings of its own."""
    if project is not None and project not in {each.project_id for each in client.projects.list()[0]}:
        client.projects.create(project)
    if not client.contexts.list():
        client.contexts.create(bound_to="name", bound_id="model-api", budget=600, period_s=60.0)
    metadata = {SETTINGS_KEY: msgspec.to_builtins(SETTINGS)}
    return client.agents.create(name, "command", project_id=project, priority=4, metadata=metadata)


# --- enqueueing ----------------------------------------------------------------------------------


def test_an_entry_has_the_settings_of_its_agent(client: Client, ask: Ask) -> None:
    pid = furnish(client)
    made = ask("POST", "/v1/agents/coder/entries", {"payload": {"issue": 7}, "tags": ["night"]})
    assert (made.status, made.json) == (201, {"sched_id": 1})
    assert made.headers["location"] == "/v1/entries/1"
    entry = client.queue.get(1)
    assert (entry.pid, entry.payload, entry.priority) == (pid, {"model": "small", "issue": 7}, 4)
    assert (entry.max_attempts, entry.kind, entry.tags) == (5, "gpu", ("night",))
    assert (entry.expected, entry.ceiling, entry.draws_on) == ({"tokens": 500}, {"tokens": 900}, ("model-api",))
    ask("POST", "/v1/agents/coder/entries", {"priority": 9, "max_attempts": 1, "draws_on": []})
    assert (client.queue.get(2).priority, client.queue.get(2).max_attempts, client.queue.get(2).draws_on) == (9, 1, ())


def test_the_entry_is_the_same_as_the_command_line_and_python_make_it(client: Client, ask: Ask) -> None:
    pid = furnish(client)
    agent = client.agents.get(pid)
    client.queue.enqueue(spec_for(agent, settings_of(agent), {"issue": 7}))  # as `rota enqueue` and `agent.enqueue`
    ask("POST", f"/v1/agents/{pid}/entries", {"payload": {"issue": 7}})
    first, second = (msgspec.to_builtins(client.queue.get(sched_id)) for sched_id in (1, 2))
    different = {name for name, value in first.items() if second[name] != value}
    assert different <= {"sched_id", "created_at", "runnable_at", "key"}  # the client adds a key of its own


def test_a_key_makes_one_entry(client: Client, ask: Ask) -> None:
    furnish(client)
    made = [ask("POST", "/v1/agents/coder/entries", {}, idempotency_key="order-1").json for _ in range(3)]
    made += [ask("POST", "/v1/agents/coder/entries", {"key": "order-1"}).json]
    assert made == [{"sched_id": 1}] * 4
    twice = ask("POST", "/v1/agents/coder/entries", {"key": "other"}, idempotency_key="order-1")
    assert (twice.status, twice.json["field"]) == (400, "key")
    assert client.queue.counts() == {"queued": 1}


def test_an_agent_is_named_percent_encoded_or_by_pid(client: Client, ask: Ask) -> None:
    name = "code & review/2 ü%"
    pid = furnish(client, name)
    assert ask("POST", f"/v1/agents/{quote(name, safe='')}/entries", {}).status == 201
    assert ask("GET", f"/v1/entries?agent={quote(name, safe='')}").json["total"] == 1
    assert ask("POST", f"/v1/agents/{pid}/entries").json == {"sched_id": 2}
    unknown = ask("POST", "/v1/agents/nobody/entries", {})
    assert (unknown.status, unknown.json["name"]) == (404, "kernel_unknown_agent")


def test_a_name_in_two_projects_needs_the_project(client: Client, ask: Ask) -> None:
    pids = {project: furnish(client, "coder", project) for project in ("lab", "shop")}
    ambiguous = ask("POST", "/v1/agents/coder/entries", {})
    assert (ambiguous.status, ambiguous.json["name"]) == (409, "kernel_ambiguous_agent")
    assert ambiguous.json["hint"] == "Add ?project= with one of: lab, shop; or give the pid."
    assert ask("POST", "/v1/agents/coder/entries?project=shop", {}).status == 201
    assert client.queue.get(1).pid == pids["shop"]
    assert ask("GET", "/v1/entries?agent=coder&project=lab").json["total"] == 0
    assert ask("POST", "/v1/agents/coder/entries?project=elsewhere", {}).status == 404


# --- the other routes ----------------------------------------------------------------------------


def test_entries_are_read_listed_cancelled_retried_and_explained(client: Client, ask: Ask) -> None:
    pid = furnish(client)
    for _ in range(3):
        client.queue.enqueue(ScheduleSpec(pid, max_attempts=1, retry_on=(), tags=("night",)))
    (entry,) = client.claim("w")
    client.complete(entry.sched_id, "failed", token=entry.token, result={"error": "exit code 3"})
    seen = ask("GET", "/v1/entries/1").json
    assert (seen["status"], seen["result"]) == ("failed", {"error": "exit code 3"})
    assert seen == msgspec.json.decode(msgspec.json.encode(client.queue.get(1)))
    assert [each["sched_id"] for each in ask("GET", "/v1/entries?status=failed").json["entries"]] == [1]
    assert ask("GET", "/v1/entries?status=failed,ready&limit=2").json["total"] == 3
    assert len(ask("GET", "/v1/entries?tag=night&limit=2").json["entries"]) == 2
    assert ask("GET", "/v1/entries?agent=coder&project=lab&status=ready").json["total"] == 2
    after = ask("GET", "/v1/entries?after=1&limit=1").json
    assert ([each["sched_id"] for each in after["entries"]], after["total"]) == ([2], 3)
    assert ask("POST", "/v1/entries/2/cancel").json == {"state": "cancelled"}
    assert ask("POST", "/v1/entries/1/retry").json == {"sched_id": 4}
    why = ask("GET", "/v1/entries/3/why")
    assert (why.status, why.json["sched_id"]) == (200, 3)
    assert ask("GET", "/v1/agents?project=lab").json["agents"][0]["name"] == "coder"
    assert [each["project_id"] for each in ask("GET", "/v1/projects").json["projects"]] == ["lab"]
    assert ask("GET", "/v1/usage?by=project").status == 200
    assert ask("GET", "/v1/entries/1/logs").status == 200
    assert ask("GET", "/v1/entries/1/logs/places").json == {"places": []}  # a file belongs to one host
    appended = ask("POST", "/v1/events", {"pid": pid, "kind": "review.done", "payload": {"score": 9}})
    assert appended.status == 201
    assert client.journal.tail(appended.json["event_id"] - 1)[0].payload == {"score": 9}


GRAPH = {
    "schema_version": 2,
    "graph": {"name": "review"},
    "lanes": {},
    "components": [{"id": "read", "execution": {"agent": "coder"}}],
    "edges": [],
}


def test_graph_runs_are_started_listed_shown_cancelled_resumed_and_forgotten(client: Client, ask: Ask) -> None:
    furnish(client)
    body = {"document": GRAPH, "run_id": "a run", "project": "lab", "budget": {"tokens": 9}}
    made = ask("POST", "/v1/graph-runs", body)
    assert (made.status, made.headers["location"]) == (201, "/v1/graph-runs/a%20run")
    assert (made.json["run_id"], made.json["status"], made.json["project_id"]) == ("a run", "running", "lab")
    assert ask("POST", "/v1/graph-runs", body).json == made.json
    other = ask("POST", "/v1/graph-runs", {**body, "document": {**GRAPH, "graph": {"name": "other"}}})
    assert (other.status, other.json["name"]) == (409, "graph_run_exists")
    listed = ask("GET", "/v1/graph-runs?graph=review&limit=5").json
    assert (listed["total"], listed["runs"][0]["run_id"]) == (1, "a run")
    shown = ask("GET", "/v1/graph-runs/a%20run").json
    assert [(node["node"], node["agent"]) for node in shown["nodes"]] == [("read", "coder")]
    assert [line["limit"] for line in shown["budgets"]] == [9]
    refused = ask("POST", "/v1/graph-runs/a%20run/resume")
    assert (refused.status, refused.json["name"]) == (409, "graph_run_refused")
    cancelled = ask("POST", "/v1/graph-runs/a%20run/cancel", {"by": "me"}).json
    assert (cancelled["run"]["status"], cancelled["cancelled"]) == ("cancelled", 1)
    assert ask("POST", "/v1/graph-runs/a%20run/resume").json["resumes"] == 1
    assert ask("DELETE", "/v1/graph-runs/a%20run").status == 409
    assert ask("DELETE", "/v1/graph-runs/a%20run?cancel=true").json == {"existed": True}
    assert ask("GET", "/v1/graph-runs/a%20run").status == 404


def test_events_have_the_caller_as_their_author(served: Served, client: Client, ask: Ask) -> None:
    furnish(client)
    before = client.journal.cursor()
    ask("POST", "/v1/agents/coder/entries", {})
    (event,) = client.journal.tail(before, kinds=("kernel.sched.enqueued",))
    assert event.author.startswith("token:")
    assert served.path


# --- errors --------------------------------------------------------------------------------------

REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/v1/entries/99", None, 404, "kernel_sched_unknown_id"),
    ("GET", "/v1/entries/seven", None, 400, "invalid_params"),
    ("GET", "/v1/entries?status=bogus", None, 422, "kernel_sched_invalid_state_filter"),
    ("GET", "/v1/entries?colour=red", None, 400, "invalid_params"),
    ("GET", "/v1/entries?limit=many", None, 400, "invalid_params"),
    ("POST", "/v1/agents/1/entries", b"{not json", 400, "invalid_params"),
    ("POST", "/v1/agents/1/entries", [1], 400, "invalid_params"),
    ("POST", "/v1/agents/1/entries", {"pid": 2}, 400, "invalid_params"),
    ("POST", "/v1/agents/1/entries", {"priority": "high"}, 400, "invalid_params"),
    ("POST", "/v1/agents/1/entries", {"max_attempts": 0}, 422, "kernel_sched_invalid_payload"),
    ("POST", "/v1/agents/1/entries", {"draws_on": ["elsewhere"]}, 422, "kernel_sched_invalid_payload"),
    ("POST", "/v1/agents/1/entries", b"[" * 70 + b"]" * 70, 422, "limit_exceeded"),
    ("POST", "/v1/agents/99/entries", {}, 404, "kernel_unknown_pid"),
    ("POST", "/v1/entries/1/retry", None, 409, "kernel_sched_illegal_transition"),
    ("POST", "/v1/events", {"pid": None, "kind": "kernel.mine"}, 422, "kernel_invalid_payload"),
    ("POST", "/v1/graph-runs", {"document": {"graph": {}}}, 422, "graph_invalid"),
    ("POST", "/v1/graph-runs", {"inputs": {}}, 400, "invalid_params"),
    ("GET", "/v1/graph-runs?status=bogus", None, 422, "kernel_invalid_payload"),
    ("GET", "/v1/graph-runs/never", None, 404, "graph_run_unknown"),
    ("POST", "/v1/graph-runs/never/resume", None, 404, "graph_run_unknown"),
    ("GET", "/v1/nowhere", None, 404, "invalid_params"),
    ("DELETE", "/v1/entries/1", None, 405, "invalid_params"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=[f"{each[0]} {each[1]}" for each in REFUSED])
def test_an_error_is_json_with_the_status_of_its_class(
    client: Client, ask: Ask, refused: tuple[str, str, Any, int, str]
) -> None:
    verb, path, body, status, name = refused
    pid = furnish(client)
    client.queue.enqueue(ScheduleSpec(pid))
    answer = ask(verb, path, body)
    assert (answer.status, answer.json["name"]) == (status, name)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["message"]
    assert answer.json["hint"]
    assert client.queue.counts() == {"queued": 1}
    if status == 405:
        assert answer.headers["allow"] == "GET"


def test_a_body_that_is_too_large_is_413(ask: Ask) -> None:
    answer = ask("POST", "/v1/events", b" " * (BODY_BYTES_MAX + 1))
    assert (answer.status, answer.json["limit"]) == (413, "body_bytes_max")


def test_without_a_token_it_is_401_and_with_too_few_rights_403(served: Served, client: Client) -> None:
    furnish(client)
    nobody = fetch(served.url, "/v1/agents")
    assert (nobody.status, nobody.json["name"]) == (401, "unauthenticated")
    assert nobody.headers["www-authenticate"] == "Bearer"
    reader = asking(served, make_token(served.path, "read"))
    denied = reader("POST", "/v1/agents/coder/entries", {})
    assert (denied.status, denied.json["scope"]) == (403, "enqueue")
    assert client.queue.counts() == {}


def test_every_error_of_every_route_has_a_status_that_is_documented() -> None:
    found = {status_of(kind.__new__(kind)) for route in ROUTES for kind in route.method.errors}
    assert found <= {400, 403, 404, 409, 422, 500, 503}
    assert found >= {404, 409, 422}


# --- walls ---------------------------------------------------------------------------------------


def test_for_a_token_of_one_project_another_does_not_exist(served: Served, client: Client) -> None:
    pids = {project: furnish(client, "coder", project) for project in ("lab", "shop")}
    furnish(client, "secret-agent", "shop")
    hidden = client.queue.enqueue(ScheduleSpec(pids["shop"], tags=("hidden-tag",)))
    ask = asking(served, make_token(served.path, "enqueue", projects=("lab",)))
    made = ask("POST", "/v1/agents/coder/entries", {})
    assert (made.status, client.queue.get(made.json["sched_id"]).pid) == (201, pids["lab"])
    unused = 987_654
    for path in ("/v1/entries/{}", "/v1/entries/{}/why", "/v1/entries/{}/logs", "/v1/entries/{}/logs/places"):
        answers = [ask("GET", path.format(sched_id)) for sched_id in (hidden, unused)]
        assert [answer.status for answer in answers] == [404, 404]
        hidden_error, unused_error = (answer.json for answer in answers)
        hidden_error["message"] = hidden_error["message"].replace(str(hidden), str(unused))
        assert {**hidden_error, "sched_id": unused} == unused_error
    assert ask("POST", f"/v1/entries/{hidden}/cancel").status == 404
    assert ask("POST", f"/v1/entries/{hidden}/retry").status in (403, 404)
    for path, name in (("/v1/agents/{}/entries", "secret-agent"), ("/v1/agents/{}/entries", str(pids["shop"]))):
        for other in (name, "never-used" if name == "secret-agent" else "987654"):
            assert ask("POST", path.format(other), {}).status == 404
    assert ask("POST", "/v1/agents/coder/entries?project=shop", {}).status == 404
    client.graphs.start(GRAPH, run_id="hidden-run", project="shop")
    shown = [ask("GET", f"/v1/graph-runs/{run}") for run in ("hidden-run", "unused-run")]
    assert [answer.status for answer in shown] == [404, 404]
    for verb in ("cancel", "resume"):
        assert ask("POST", f"/v1/graph-runs/hidden-run/{verb}").status == 404
    assert ask("POST", "/v1/graph-runs", {"document": GRAPH}).status == 403
    pages = ("/v1/agents", "/v1/projects", "/v1/entries", "/v1/entries?project=shop", "/v1/usage?by=project,agent")
    for path in (*pages, "/v1/graph-runs"):
        answer = ask("GET", path)
        assert answer.status == 200
        assert b"shop" not in answer.body.replace(b"project=shop", b"")
        assert b"secret-agent" not in answer.body
        assert b"hidden-tag" not in answer.body
    assert [each["pid"] for each in ask("GET", "/v1/entries?after=0").json["entries"]] == [pids["lab"]]
    assert client.queue.get(hidden).state == "queued"


def test_a_run_has_the_rights_of_its_own_token(served: Served, client: Client) -> None:
    pid = furnish(client)
    client.queue.enqueue(ScheduleSpec(pid))
    (entry,) = client.claim("w")
    ask = asking(served, client.supervision.access_token(entry.sched_id, entry.token or 0))
    assert ask("GET", f"/v1/entries/{entry.sched_id}").status == 200
    assert ask("POST", "/v1/events", {"kind": "review.done", "pid": pid}).status == 201
    assert ask("POST", f"/v1/entries/{entry.sched_id}/retry").status == 403
    assert ask("POST", f"/v1/entries/{entry.sched_id}/cancel").json == {"state": "dispatched"}  # it is asked to stop


# --- many at a time, and the document ------------------------------------------------------------


def test_many_requests_at_a_time_make_one_entry_each(client: Client, ask: Ask) -> None:
    furnish(client)
    made: list[int] = []

    def work() -> None:
        made.extend(ask("POST", "/v1/agents/coder/entries", {}).json["sched_id"] for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(1, 41))


def test_the_document_describes_every_route(ask: Ask) -> None:
    document = ask("GET", "/v1/openapi.json").json
    assert document["openapi"] == "3.1.0"
    described = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert described == {(route.verb, route.path) for route in ROUTES}
    operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            given = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert given == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
            assert {"400", "401", "403", "503"} <= set(operation["responses"])
    known = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in known, reference
    for name, schema in known.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema, name


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_what_a_route_returns_fits_the_document(client: Client, ask: Ask) -> None:
    pid = furnish(client)
    client.queue.enqueue(ScheduleSpec(pid))
    document = ask("GET", "/v1/openapi.json").json
    for verb, path, body in (
        ("GET", "/v1/entries", None),
        ("GET", "/v1/entries/1", None),
        ("GET", "/v1/entries/1/why", None),
        ("GET", "/v1/agents", None),
        ("GET", "/v1/projects", None),
        ("POST", "/v1/agents/coder/entries", {}),
        ("POST", "/v1/graph-runs", {"document": GRAPH, "run_id": "r", "project": "lab"}),
        ("GET", "/v1/graph-runs", None),
        ("GET", "/v1/graph-runs/r", None),
    ):
        declared = path.replace("-runs/r", "-runs/{run_id}")
        declared = declared.replace("/1", "/{sched_id}").replace("/coder", "/{agent}")
        answer = ask(verb, path, body)
        success = document["paths"][declared][verb.lower()]["responses"][str(answer.status)]
        schema = success["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        jsonschema.Draft202012Validator(whole).validate(answer.json)


# --- the guide -----------------------------------------------------------------------------------


def documented() -> list[list[str]]:
    """The curl commands of the guide, as words."""
    text = (ROOT / "docs" / "daemon.md").read_text()
    return [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ curl") and "/v1/" in line]


def test_the_commands_of_the_guide_work(served: Served, client: Client) -> None:
    pid = furnish(client, "reviewer", "website")
    client.queue.enqueue_many([ScheduleSpec(pid, max_attempts=1, retry_on=())] * 6)
    (entry,) = client.claim("w")
    client.complete(entry.sched_id, "failed", token=entry.token)
    token = make_token(served.path, "operate")
    tried = set()
    for words in documented():
        parser = argparse.ArgumentParser()
        parser.add_argument("-H", action="append", default=[])
        parser.add_argument("-d")
        parser.add_argument("-X")
        parser.add_argument("url")
        given = parser.parse_args(words[1:])
        headers = dict(line.replace("$TOKEN", token).split(": ", 1) for line in given.H)
        verb = given.X or ("POST" if given.d else "GET")
        path = given.url.removeprefix("http://127.0.0.1:7682")
        body = (given.d or "").encode()
        answer = fetch(served.url, path, method=verb, body=body, **headers)
        assert answer.status in (200, 201), (words, answer)
        tried.add(find_route(verb, path.partition("?")[0]).route)
    assert len(tried) >= len(ROUTES) - 2  # all but the plain lists
    assert client.queue.get(7).payload == {"model": "small", "issue": 7}
