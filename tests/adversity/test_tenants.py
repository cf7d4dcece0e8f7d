"""A caller that is bound to a project finds nothing of another one, through any method, and changes nothing of it.

The test takes all methods from their declarations and calls each with everything that a stranger could know about the
other project, over HTTP and the unix socket: as a reader, as one that enqueues, and as a run with its own token.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
import pytest

from rota.errors import Forbidden, InvalidInput
from rota.kernel import ScheduleSpec
from rota.rpc import bound_calls
from rota.rpc.methods import METHODS
from rota.rpc.rest import ROUTES, Route
from tests.adversity.conftest import Rounds
from tests.adversity.tenant_world import (
    ALL_METHODS,
    NEVER_USED,
    OTHER,
    OWN,
    Knowledge,
    calls,
    furnish,
    leaks,
    mix,
    rows_of,
)
from tests.daemon.harness import Raw, Served, make_token, serving
from tests.daemon.http_client import Stream, fetch, rpc

BATCH = 25  # fewer than `explains_max`
CALLERS = ("read", "enqueue", "run")
Ask = Callable[[str, list[Any]], list[Any]]  # the responses to calls of one method


class World:
    """A daemon with two projects, and a token of each kind that is bound to the first."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.echoed: set[str] = set()  # names of the other project that callers have given to their own entries
        with served.client() as client:
            self.own, self.other = furnish(client, OWN), furnish(client, OTHER)
            mix(client, self.own, self.other)
            running = self.own.sched_ids[-3]
            self.tokens = {"run": client.supervision.access_token(running, self.own.tokens[0])}
        for scope in ("read", "enqueue"):
            self.tokens[scope] = make_token(served.path, scope, projects=(self.own.project_id,))

    def other_rows(self) -> dict[str, list[str]]:
        return rows_of(self.served.path, self.other, self.own)

    def ask_http(self, caller: str) -> Ask:
        return lambda name, params: rpc(self.served.url, self.tokens[caller], _batch(name, params)).json

    def ask_unix(self, caller: str, raw: Raw) -> Ask:
        assert "result" in raw.ask("system.hello", {"protocol": 1, "access_token": self.tokens[caller]})

        def ask(name: str, params: list[Any]) -> list[Any]:
            raw.send(msgspec.json.encode(_batch(name, params)) + b"\n")
            answers: list[Any] = raw.receive()
            return answers

        return ask


def _batch(name: str, params: list[Any]) -> list[Any]:
    return [{"jsonrpc": "2.0", "id": index, "method": name, "params": each} for index, each in enumerate(params)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("tenants") / "rota.db") as served:
        yield World(served)


def answers_of(ask: Ask, name: str, params: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each call's parameters and its response."""
    for start in range(0, len(params), BATCH):
        part = params[start : start + BATCH]
        found = {answer["id"]: answer for answer in ask(name, part)}
        yield from ((each, found[index]) for index, each in enumerate(part))


def probe(world: World, ask: Ask, known: Knowledge, chance: random.Random | None = None) -> dict[str, list[Any]]:
    """Call every method with what is known; return the responses of each, after looking for secrets in them."""
    found: dict[str, list[Any]] = {}
    for method in ALL_METHODS:
        for params, answer in answers_of(ask, method.name, list(calls(method, known, world.own, chance))):
            leaked = leaks(msgspec.json.encode(answer).decode(), params) - world.echoed
            assert not leaked, f"{method.name}({params}) tells {sorted(leaked)}: {answer}"
            if method.scope == "enqueue" and answer.get("result", {}).get("created", "result" in answer):
                world.echoed |= leaks(msgspec.json.encode(params).decode())
            found.setdefault(method.name, []).append(answer)
    names = (
        "key",
        "workspace",
        "limit",
        "own_limit",
        "kind",
        "worker",
        "trigger",
        "event",
        "pauser",
    )  # and no contents
    assert world.echoed <= {f"{OTHER}-{name}" for name in names}
    return found


# --- nothing is seen, nothing is changed ---------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("transport", ["http", "unix"])
def test_no_method_shows_or_changes_anything_of_another_project(world: World, caller: str, transport: str) -> None:
    before = world.other_rows()
    assert len(before) > 5, "the other project has rows in many tables"
    if transport == "http":
        found = probe(world, world.ask_http(caller), world.other)
    else:
        with Raw(world.served.unix) as raw:
            found = probe(world, world.ask_unix(caller, raw), world.other)
    assert world.other_rows() == before
    assert set(found) == set(METHODS)
    for name, answers in found.items():
        codes = {answer.get("error", {}).get("code") for answer in answers}
        assert codes != {InvalidInput.code}, f"no call of {name} was even tried: {answers[0]}"
        rule = METHODS[name].bound
        if rule is None or (not rule.allowed and METHODS[name].run in (None, "refused")):
            assert codes == {Forbidden.code}, f"{name} is not refused"


@pytest.mark.parametrize("caller", CALLERS)
def test_no_route_shows_or_changes_anything_of_another_project(world: World, caller: str) -> None:
    before = world.other_rows()
    statuses: dict[str, set[int]] = {}
    for route in ROUTES:
        for params in calls(route.method, world.other, world.own):
            for path, body in rest_requests(route, params, world.other):
                headers = {"authorization": f"Bearer {world.tokens[caller]}"}
                sent = msgspec.json.encode(body) if body is not None else b""
                answer = fetch(world.served.url, path, method=route.verb, body=sent, **headers)
                leaked = leaks(answer.body.decode(), [unquote(path), body]) - world.echoed
                assert not leaked, f"{route.verb} {path} {body} tells {sorted(leaked)}: {answer.body.decode()}"
                if answer.status == 201:  # it has given names of the other project to an entry of its own
                    world.echoed |= leaks(msgspec.json.encode(body).decode())
                statuses.setdefault(f"{route.verb} {route.path}", set()).add(answer.status)
    assert world.other_rows() == before
    assert len(statuses) == len(ROUTES)
    for name, found in statuses.items():
        assert found != {400}, f"no request to {name} was even tried"
        assert max(found) < 500, name


def rest_requests(route: Route, params: Any, known: Knowledge) -> Iterator[tuple[str, Any]]:
    """Yield a call as requests to its route: the path with its query, and the body."""
    given = {name: value for name, value in params.items() if value is not None}
    asked = {name: given[own] for name, own in route.query.items() if own in given}
    body = {name: given[name] for name in route.body_fields if name in given} if route.has_body else None
    for agent in (given.get(route.agent_as), known.text("agent")) if route.agent_as else (None,):
        path = route.path.replace("{sched_id}", str(given.get("sched_id")))
        query = dict(asked)
        if "{agent}" in path:
            path = path.replace("{agent}", quote(str(agent), safe=""))
        elif agent is not None:
            query["agent"] = agent
        texts = {name: ",".join(map(str, each)) if isinstance(each, list) else each for name, each in query.items()}
        yield f"{path}?{urlencode(texts)}" if texts else path, body


@pytest.mark.parametrize("caller", CALLERS)
def test_an_id_of_another_project_is_answered_like_one_that_was_never_used(world: World, caller: str) -> None:
    ask, other = world.ask_http(caller), world.other
    never = Knowledge(
        "NEVER",
        [NEVER_USED] * len(other.sched_ids),
        [NEVER_USED] * len(other.pids),
        [NEVER_USED] * len(other.context_ids),
        other.tokens,
    )
    for method in ALL_METHODS:
        if method.name == "kernel.event.tail":
            continue  # its cursor moves
        theirs = answers_of(ask, method.name, list(calls(method, other, world.own)))
        unused = answers_of(ask, method.name, list(calls(method, never, world.own)))
        for (params, answer), (_, expected) in zip(list(theirs), list(unused), strict=True):
            assert _shape(answer) == _shape(expected), f"{method.name}({params}): {answer}"


def _shape(answer: Any) -> str:
    """A response without the ids and names that were asked for, and without numbers that differ from call to call."""
    text = msgspec.json.encode({name: value for name, value in answer.items() if name != "id"}).decode()
    text = re.sub(rf"({OTHER}|NEVER)-[a-z_]+", "NAME", text)
    text = re.sub('"created":(true|false)', '"created":BOOL', text)  # of own entries: whether the test ran before
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", text)


@pytest.mark.parametrize("caller", CALLERS)
def test_the_event_stream_shows_only_own_events(world: World, caller: str) -> None:
    with world.served.client() as client:
        client.journal.append(world.other.pids[0], "SECRET-late_event", {"said": "SECRET-late"})
        client.journal.append(world.own.pids[0], f"{OWN}-last-{caller}")
    with Stream(world.served.url, world.tokens[caller], "/events?since=0") as stream:
        seen = []
        for frame in stream.frames():
            assert not leaks(repr(frame)), frame
            seen.append(frame.event)
            if frame.event == f"{OWN}-last-{caller}":
                break
    assert {"kernel.process.created", "kernel.project.created", "kernel.sched.claimed", f"{OWN}-event"} <= set(seen)


def test_the_metrics_are_refused(world: World) -> None:
    for caller in CALLERS:
        answer = fetch(world.served.url, "/metrics", authorization=f"Bearer {world.tokens[caller]}")
        assert answer.status == 403
        assert not leaks(answer.body.decode())


def test_random_calls_show_and_change_nothing(world: World, rounds: Rounds) -> None:
    before = world.other_rows()
    for seed in rounds(3):
        chance = random.Random(seed)
        caller = chance.choice(CALLERS[:2])  # a run would end itself
        if chance.random() < 0.5:
            probe(world, world.ask_http(caller), world.other, chance)
        else:
            with Raw(world.served.unix) as raw:
                probe(world, world.ask_unix(caller, raw), world.other, chance)
        assert world.other_rows() == before


# --- its own project it sees ---------------------------------------------------------------------


def test_a_bound_reader_sees_all_of_its_own_project(world: World) -> None:
    found = probe(world, world.ask_http("read"), world.own)
    text = msgspec.json.encode(found).decode()
    kinds = (
        "payload project_metadata agent_metadata path error outcome tag key trigger dim budget event_payload note_body "
        "checkpoint batch_payload title template pauser correlation own_limit"
    )
    missing = {what for what in kinds.split() if f"{OWN}-{what}" not in text}
    assert not missing


def test_counts_and_pages_are_of_the_own_project(world: World) -> None:
    ask = world.ask_http("read")

    def one(name: str, **params: Any) -> Any:
        return ask(name, [params])[0]["result"]

    with world.served.client() as client:
        expected, total = client.queue.list(project_id=world.own.project_id, limit=10_000)
    ids = [entry.sched_id for entry in expected]
    assert one("kernel.sched.list", limit=10_000)["total"] == total
    paged = [
        entry["sched_id"]
        for offset in range(0, total, 2)
        for entry in one("kernel.sched.list", limit=2, offset=offset)["entries"]
    ]
    assert paged == ids
    states = one("kernel.sched.counts")["states"]
    assert sum(states.values()) == total
    assert one("kernel.agent.list")["total"] == one("system.info")["agent_count"] == len(world.own.pids)
    assert [each["project_id"] for each in one("kernel.project.list")["projects"]] == [world.own.project_id]


def test_the_tail_moves_on_behind_events_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_calls, "SCANNED_PARTS_MAX", 1)  # of fewer events than others have written
    with world.served.client() as client:
        since = client.journal.cursor()
        for _ in range(3):
            client.queue.enqueue_many([ScheduleSpec(world.other.pids[1])] * 3)
            for _ in range(100):
                client.journal.append(world.other.pids[0], "SECRET-flood")
        client.journal.append(world.own.pids[0], f"{OWN}-behind")
    ask = world.ask_http("read")
    (answer,) = ask("kernel.event.tail", [{"since": since, "limit": 1}])
    assert [event["kind"] for event in answer["result"]["events"]] == [f"{OWN}-behind"]
    (end,) = ask("kernel.event.tail", [{"since": answer["result"]["next_cursor"]}])
    assert end["result"]["events"] == []
    with Stream(world.served.url, world.tokens["read"], f"/events?since={since}") as stream:
        assert next(stream.frames()).event == f"{OWN}-behind"
