"""A run's own token: what a program may do with it, that it may do nothing else, and that it ends with its run.

The shell programs are run by a real supervisor at a real daemon. The probes call every declared method with a run's
token and with everything else that a run could name.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import Rota
from rota.errors import Forbidden, RotaError, Unauthenticated
from rota.kernel import ScheduleSpec
from rota.model.work import Backoff, ReadyEntry
from rota.rpc import METHODS, PROTOCOL, Client, connect, connect_async
from rota.rpc.daemon import ended_rights
from tests.adversity.tenant_world import Knowledge
from tests.adversity.test_tenants import World as Tenants
from tests.adversity.test_tenants import probe
from tests.daemon.harness import PATIENCE_S, Process, Raw, Served, make_token, serving
from tests.daemon.http_client import Stream, fetch, rpc

ROTA = f"{sys.executable} -m rota"
TOKEN = re.compile(r"rota_run-\d+-\d+_([0-9a-f]{32})")


# --- a real daemon, a real supervisor, real shell programs -----------------------------------------

FLEET = """
store = "{store}"
slots = 1
[projects.red]
[agents.parent]
project = "red"
command = ["sh", "parent.sh"]
env = {{ OUT = "{out}" }}
[agents.child]
project = "red"
command = ["true"]
"""
BY_COMMAND = f"""
if test -n "$ROTA_CHECKPOINT"; then {ROTA} complete --result '{{"was": '"$ROTA_CHECKPOINT"'}}'; exit 0; fi
set -e
env > "$OUT/env"
{ROTA} enqueue child --payload '{{"n": 1}}' > "$OUT/child"
{ROTA} charge tokens=120 cost_micro=7 > "$OUT/charged"
{ROTA} checkpoint '{{"next": 3}}'
{ROTA} emit page.read --payload '{{"pages": 3}}' > "$OUT/event"
{ROTA} heartbeat
if {ROTA} retry $(cat "$OUT/child") 2> "$OUT/refused"; then exit 9; fi
exit 7
"""
BY_CURL = """
ask() {
  call='{"jsonrpc": "2.0", "id": 1, "method": '"$1"'}'
  curl -s -H "Authorization: Bearer $ROTA_ACCESS_TOKEN" $ROTA_STORE/rpc -d "$call"
}
run='"sched_id": '$ROTA_SCHED_ID
if test -n "$ROTA_CHECKPOINT"; then
  ask '"kernel.sched.complete", "params": {'"$run"', "exit_kind": "completed", "result": {"was": '"$ROTA_CHECKPOINT"'}}'
  exit 0
fi
env > $OUT/env
child='"pid": 2, "payload": {"n": 1}'
ask '"kernel.sched.enqueue", "params": {'"$child"'}' | sed 's/.*"sched_id": *//; s/[^0-9].*//' > $OUT/child
ask '"kernel.sched.charge", "params": {'"$run"', "amounts": {"tokens": 120, "cost_micro": 7}}' > $OUT/charged
ask '"kernel.run.checkpoint", "params": {'"$run"', "token": '$ROTA_TOKEN', "state": {"next": 3}}'
ask '"kernel.event.append", "params": {"pid": null, "kind": "page.read", "payload": {"pages": 3}}' > $OUT/event
ask '"kernel.sched.heartbeat", "params": {'"$run"', "token": '$ROTA_TOKEN'}'
ask '"kernel.sched.list"' > $OUT/queue
ask '"kernel.sched.retry", "params": {"sched_id": 2}' > $OUT/refused
exit 7
"""


@pytest.mark.parametrize(("transport", "program"), [("unix", BY_COMMAND), ("http", BY_CURL)])
def test_a_shell_program_acts_for_its_run_and_for_nothing_else(tmp_path: Path, transport: str, program: str) -> None:
    path, out = str(tmp_path / "rota.db"), tmp_path / "out"
    out.mkdir()
    (tmp_path / "parent.sh").write_text(program)
    operator = make_token(path, "operate")
    daemon = Process(path, "--listen", "127.0.0.1:0", "--log-level", "debug")
    unix, url = daemon.addresses
    try:
        with connect(unix) as client:
            client.projects.create("red")
            parent = client.agents.create("parent", "command", project_id="red")
            assert client.agents.create("child", "command", project_id="red") == 2
            client.enqueue(ScheduleSpec(parent, retry_on=("failed",), max_attempts=2, backoff=Backoff(base_s=0.0)))
        printed = run_fleet(tmp_path, unix if transport == "unix" else url, operator)
        with connect(unix) as client:
            ended, child = client.get(1), client.get(int((out / "child").read_text()))
            used = {event.author: event.payload for event in client.journal.tail(kinds=("kernel.ledger.charged",))}
            (noted,) = client.journal.tail(kinds=("page.read",))
            assert client.agents.get(parent).state == "READY", "although the run ended itself"
        metrics = fetch(url, "/metrics", authorization=f"Bearer {operator}")
    finally:
        daemon.stop()
    assert (ended.attempt, ended.exit_kind, ended.result) == (2, "completed", {"was": {"next": 3}}), printed
    assert (child.parent_id, child.project_id, child.payload, child.exit_kind) == (1, "red", {"n": 1}, "completed")
    assert used["run:1"]["amounts"] == {"tokens": 120, "cost_micro": 7}
    assert (noted.pid, noted.payload, noted.author) == (parent, {"pages": 3}, "run:1")
    assert str(noted.event_id) in (out / "event").read_text()
    if transport == "http":
        assert '"sched_id":2' in (out / "queue").read_text()
    assert "kernel.sched.retry needs scope operate, but run:1 has scope work" in (out / "refused").read_text()
    secret = TOKEN.search((out / "env").read_text())
    assert secret is not None
    assert holders(tmp_path, secret[1]) == {"env"}, "only the program has it: neither the store nor a log"
    assert secret[1] not in "".join(daemon.log) + printed + metrics.body.decode()
    assert metrics.status == 200


def run_fleet(folder: Path, address: str, token: str) -> str:
    """Run a fleet until it is idle, in a process of its own; return what it printed."""
    (folder / "fleet.toml").write_text(FLEET.format(store=address, out=folder / "out"))
    command = [sys.executable, "-m", "rota", "run", "fleet.toml", "--until-idle", "--plain"]
    env = os.environ | ({} if address.startswith("unix:") else {"ROTA_ACCESS_TOKEN": token})
    ran = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def holders(folder: Path, text: str) -> set[str]:
    """The names of the files in a folder that contain a text."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.name for file in files if text.encode() in file.read_bytes()}


# --- which programs get a token --------------------------------------------------------------------

SHOW = ("sh", "-c", "env | grep -E 'ROTA_(STORE|ACCESS)'; true")


def environment_of(rota: Rota, **settings: Any) -> dict[str, str]:
    """The variables about the daemon in the environment of a program."""
    job = rota.command("show", SHOW, **settings).enqueue()
    rota.run(until_idle=True)
    lines = job.result(PATIENCE_S)["output_tail"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_program_gets_the_address_of_the_daemon_or_of_its_supervisor_and_its_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", "the supervisor's own")
    monkeypatch.chdir(tmp_path)
    with Rota("rota.db") as rota:
        found = environment_of(rota, pass_env=("ROTA_ACCESS_TOKEN",))
        assert found["ROTA_STORE"].startswith("unix:/"), "no daemon serves the file: the supervisor does"
        assert TOKEN.fullmatch(found["ROTA_ACCESS_TOKEN"]), "never the supervisor's"
        assert environment_of(rota)["ROTA_ACCESS_TOKEN"] != found["ROTA_ACCESS_TOKEN"], "never another run's"
    with serving("rota.db") as served:
        with Rota("rota.db") as rota:
            found = environment_of(rota)
            assert found["ROTA_STORE"] == served.unix, "a daemon serves the file that the supervisor opened itself"
            assert TOKEN.fullmatch(found["ROTA_ACCESS_TOKEN"])
        monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(served.path, "operate"))
        for address in ("unix:rota.db-daemon/rota.sock", served.url):
            with Rota(address) as rota:
                found = environment_of(rota, pass_env=("ROTA_*",))
                expected = f"unix:{tmp_path}/rota.db-daemon/rota.sock" if address.startswith("unix") else address
                assert found["ROTA_STORE"] == expected
                assert TOKEN.fullmatch(found["ROTA_ACCESS_TOKEN"]), "never the supervisor's"
        with Rota(served.unix) as rota:
            assert environment_of(rota, env={"ROTA_STORE": "mine.db"}) == {"ROTA_STORE": "mine.db"}


# --- a run at a daemon of this process -------------------------------------------------------------


class World:
    """Two projects at a daemon, and a claimed entry of one of them."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.client = served.client()
        self.client.projects.create("red")
        self.client.projects.create("blue")
        self.own = self.client.create_agent("own", "command", project_id="red")
        self.near = self.client.create_agent("near", "command", project_id="red")
        self.far = self.client.create_agent("planted-agent", "command", project_id="blue")
        self.run = self.claim(self.own)

    def claim(self, pid: int, **claim: Any) -> ReadyEntry:
        payload = {"a": "planted-payload" if pid == self.far else "payload"}
        self.client.enqueue(ScheduleSpec(pid, payload=payload, priority=9, backoff=Backoff(base_s=0.0)))
        (entry,) = self.client.claim("worker", **claim)
        assert entry.pid == pid
        return entry

    def token_of(self, run: ReadyEntry) -> str:
        assert run.token is not None
        return self.client.supervision.access_token(run.sched_id, run.token)

    @contextmanager
    def as_run(self, transport: str, run: ReadyEntry | None = None) -> Iterator[Client]:
        address = self.served.unix if transport == "unix" else self.served.url
        with connect(address, token=self.token_of(run or self.run), retry_s=0.0) as client:
            yield client


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with serving(tmp_path / "rota.db") as served:
        world = World(served)
        yield world
        world.client.close()


both = pytest.mark.parametrize("transport", ["unix", "http"])


@both
def test_no_method_changes_anything_of_a_runs_neighbours(tmp_path: Path, transport: str) -> None:
    """Entries, agents and limits of the same project; test_tenants.py probes another project in the same way."""
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        tenants = Tenants(served)
        running, own = client.get(tenants.own.sched_ids[-3]), tenants.own
        neighbour = client.get(own.sched_ids[-1])
        assert (running.state, neighbour.state) == ("dispatched", "dispatched")
        assert neighbour.token is not None
        others = [sched_id for sched_id in own.sched_ids if sched_id != running.sched_id]
        near = Knowledge(own.mark, others, own.pids[::-1], own.context_ids, [neighbour.token])
        before, last_id = facts(client, near), max(own.sched_ids + tenants.other.sched_ids)
        if transport == "http":
            answers = probe(tenants, tenants.ask_http("run"), near)
        else:
            with Raw(served.unix) as raw:
                answers = probe(tenants, tenants.ask_unix("run", raw), near)
        assert facts(client, near) == before
        assert client.get(running.sched_id).token == running.token, "its own claim is as it was"
        made = [entry for entry in client.queue.list(limit=10_000)[0] if entry.sched_id > last_id]
        assert {entry.parent_id for entry in made} == {running.sched_id}
        for name, method in METHODS.items():
            if method.run in (None, "refused"):
                assert {answer["error"]["code"] for answer in answers[name]} == {Forbidden.code}, name


def facts(client: Client, known: Knowledge) -> Any:
    """What could have been changed: entries, agents, budgets, limits, the project, notes and tokens."""
    agents = [client.agents.get(pid) for pid in known.pids]
    return (
        [client.get(sched_id) for sched_id in known.sched_ids],
        [msgspec.structs.replace(agent, last_event_id=0, updated_at=0.0) for agent in agents],
        [client.ledger.get(pid) for pid in known.pids],
        [client.contexts.get(context_id) for context_id in known.context_ids],
        client.projects.get(known.project_id),
        client.projects.workspace(known.text("workspace")),
        client.journal.recall(known.text("note")),
        client.agents.list()[1],
        client.tokens.list(),
    )


@both
def test_a_run_may_report_about_itself_whatever_it_leaves_out(world: World, transport: str) -> None:
    run, sched_id = world.run, world.run.sched_id
    assert run.token is not None
    with world.as_run(transport) as own:
        own.queue.charge(sched_id, {"tokens": 5})
        own.supervision.checkpoint(sched_id, run.token, {"next": 1})
        event_id = own.journal.append(None, "noted")
        children = [own.enqueue(ScheduleSpec(world.near)), *own.enqueue_many([ScheduleSpec(world.own)])]
        children.append(own.queue.enqueue_unique(ScheduleSpec(world.near, trigger="other"))[0])
        children.append(own.supervision.spawn(ScheduleSpec(world.near, parent_id=sched_id), run.token))
        with pytest.raises(RotaError):
            own.enqueue(ScheduleSpec(world.far))
        with pytest.raises(Forbidden):
            own.enqueue(ScheduleSpec(world.near, parent_id=children[0]))
        with pytest.raises(Forbidden):
            own.journal.append(world.near, "noted")
        assert own.queue.heartbeat(sched_id, run.token).cancel_requested is False
        own.complete(sched_id, "completed", result={"done": True})
        with pytest.raises(Unauthenticated):
            own.get(sched_id)
    (noted,) = world.client.journal.tail(event_id - 1, 1)
    assert (noted.pid, noted.author) == (world.own, f"run:{sched_id}")
    assert {world.client.get(child).parent_id for child in children} == {sched_id}
    ended = world.client.get(sched_id)
    assert (ended.exit_kind, ended.result) == ("completed", {"done": True})


def test_the_unix_socket_gives_a_client_with_a_token_the_rights_of_the_token(world: World) -> None:
    token = world.token_of(world.run)
    create = {"name": "another", "template": "command"}
    with Raw(world.served.unix) as raw:
        said = raw.ask("system.hello", {"protocol": 1, "access_token": token})["result"]
        assert (said["caller"], said["scope"], said["projects"]) == (f"run:{world.run.sched_id}", "work", ["red"])
        assert raw.ask("kernel.agent.create", create)["error"]["data"]["name"] == "forbidden"
        assert raw.ask("system.hello", {"protocol": 1})["result"]["caller"] == f"run:{world.run.sched_id}"
    for wrong in ("rota_run-1-1_" + "0" * 32, "nonsense", token[:-1] + "x"):
        calls = [("system.hello", {"protocol": 1, "access_token": wrong}), ("kernel.agent.create", create)]
        with Raw(world.served.unix) as raw:
            answers = [raw.ask(name, params) for name, params in calls]
            assert [answer["error"]["data"]["name"] for answer in answers] == ["unauthenticated"] * 2
        with Raw(world.served.unix) as raw:
            batch = [{"jsonrpc": "2.0", "id": name, "method": name, "params": params} for name, params in calls]
            raw.send(msgspec.json.encode(batch) + b"\n")
            assert all("error" in answer for answer in raw.receive())
    assert [agent.name for agent in world.client.agents.list()[0]] == ["own", "near", "planted-agent"]


def test_the_async_client_shows_the_token_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def caller(token: str | None = None) -> str:
        async with connect_async(world.served.unix, token=token) as client:
            return str((await client.server.hello(PROTOCOL)).caller)

    name = f"run:{world.run.sched_id}"
    assert asyncio.run(caller(world.token_of(world.run))) == name
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", world.token_of(world.run))
    assert asyncio.run(caller()) == name
    monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(world.served.path, "read"))
    assert asyncio.run(caller()) == f"uid:{os.geteuid()}", "a token for another daemon is not meant for this socket"


@both
def test_a_token_cannot_be_made_from_that_of_another_run(world: World, transport: str) -> None:
    other = world.claim(world.near)
    mac = TOKEN.fullmatch(world.token_of(world.run))[1]  # type: ignore[index]
    address = world.served.unix if transport == "unix" else world.served.url
    for sched_id, claim in [(other.sched_id, other.token), (world.run.sched_id, other.token), (1, 1), (10**18, 1)]:
        token = f"rota_run-{sched_id}-{claim}_{mac}"
        with connect(address, token=token) as client, pytest.raises(RotaError) as refused:
            client.queue.counts()
        assert refused.value.name in ("unauthenticated", "locked_out")


# --- the end of a run is the end of its token ------------------------------------------------------


def complete(world: World) -> None:
    world.client.complete(world.run.sched_id, "completed", token=world.run.token)


def retry(world: World) -> None:
    world.client.complete(world.run.sched_id, "crashed", token=world.run.token)


def put_back(world: World) -> None:
    assert world.run.token is not None
    world.client.queue.put_back(world.run.sched_id, token=world.run.token)


def take_over(world: World) -> None:
    world.client.queue.take_over("worker", "another")


ENDS = [complete, retry, put_back, take_over]


@pytest.mark.parametrize("end", ENDS)
@both
def test_the_token_is_refused_as_soon_as_the_run_has_ended(
    world: World, transport: str, end: Callable[[World], None]
) -> None:
    token = world.token_of(world.run)
    address = world.served.unix if transport == "unix" else world.served.url
    with connect(address, token=token, retry_s=0.0) as connected, connect(address, token=token, retry_s=0.0) as later:
        connected.enqueue(ScheduleSpec(world.near))
        end(world)
        for client in (connected, later):
            with pytest.raises(Unauthenticated, match="has ended"):
                client.enqueue(ScheduleSpec(world.near))
    if world.client.get(world.run.sched_id).state == "queued":  # another claim of the same entry has another token
        (again,) = world.client.claim("worker", wait_s=PATIENCE_S)
        assert again.sched_id == world.run.sched_id
        assert world.token_of(again) != token
        with world.as_run(transport, again) as run:
            assert run.get(again.sched_id).state == "dispatched"


@pytest.mark.parametrize("end", ENDS)
@both
def test_calls_and_streams_that_wait_end_with_the_run(
    world: World, transport: str, end: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_rights, "CHECK_EVERY_S", (0.01, 3_600.0))  # by the notice alone, not by the clock
    child = world.client.enqueue(ScheduleSpec(world.near))
    cursor = world.client.journal.cursor()
    with world.as_run(transport) as run, ThreadPoolExecutor(2) as threads:
        waiting: list[Future[Any]] = [
            threads.submit(run.wait, child, 3_600.0),
            threads.submit(run.journal.tail, cursor + 1_000, wait_s=3_600.0),
        ]
        world.served._until(lambda: sum(call.waits for call in world.served.daemon.executor.pending_calls) == 2)
        with Stream(world.served.url, world.token_of(world.run)) as stream:
            assert stream.status == 200
            end(world)
            *_, last = stream.frames()
            assert (last.event, last.data) == ("ended", {"reason": f"run {world.run.sched_id} has ended"})
        for call in waiting:
            with pytest.raises(Unauthenticated):
                call.result(PATIENCE_S)
    world.served.until_no_subscriber()


@both
def test_a_claim_that_expires_ends_its_token_before_anybody_takes_it_back(world: World, transport: str) -> None:
    """No commit tells the daemon: it has to notice by itself."""
    run = world.claim(world.near, claim_timeout_s=1.0)
    with world.as_run(transport, run) as client:
        with pytest.raises(Unauthenticated):
            client.wait(world.run.sched_id, 3_600.0)
        with pytest.raises(Unauthenticated):
            client.queue.counts()
    assert world.client.get(run.sched_id).token == run.token, "the row is as it was"


def test_a_token_outlives_its_daemon_and_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with serving(path) as served:
        world = World(served)
        token = world.token_of(world.run)
        world.client.close()
    with serving(path) as served, connect(served.unix, token=token) as run:
        assert run.get(world.run.sched_id).state == "dispatched"
        assert rpc(served.url, token, {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts"}).status == 200
