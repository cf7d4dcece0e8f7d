"""S7: two hosts on one PostgreSQL. One is cut off for longer than its claims, and the server is restarted.

And the same commands as on a file: a fleet file, `rota run`, a daemon, and what people look with.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import Rota, store
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.model.events import Event
from rota.rpc import connect
from tests.postgres_server import PostgresServer, own_schema
from tests.stories.processes import daemon_of, run_rota
from tests.stories.two_hosts import CAP, TOKENS, Network, register, supervisor, until

FIRST = 6  # entries before the cut
LATER = 2  # after it
BUDGET = (FIRST + LATER) * TOKENS


def most_at_once(kernel: Kernel) -> int:
    """How many entries were claimed at the same time, by the journal."""
    live: set[int] = set()
    most = 0
    for event in kernel.journal.tail(0, 10_000):
        if event.kind == "kernel.sched.claimed":
            live.update(entries_of(event))
        elif event.kind in ("kernel.sched.completed", "kernel.sched.returned"):
            live.difference_update(entries_of(event))
        most = max(most, len(live))
    return most


def entries_of(event: Event) -> Iterator[int]:
    yield from event.payload.get("sched_ids", ())
    for entry in event.payload.get("entries", ()):
        yield entry["sched_id"] if isinstance(entry, dict) else entry[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
@pytest.mark.timeout(240)
def test_a_host_is_cut_off_and_the_server_restarts(tmp_path: Path, socket_folder: Path) -> None:
    with Network(("a", "b")) as network:
        addresses = ",".join(network.address(host) for host in network.hosts)
        with PostgresServer(socket_folder / "pg", address=addresses, namespace=network.server) as server:
            _story(tmp_path, network, server)


def _story(folder: Path, network: Network, server: PostgresServer) -> None:
    urls = {host: f"postgresql://rota@{network.address(host)}/postgres?schema=rota" for host in network.hosts}
    log = folder / "log"
    log.touch()
    here = f"{server.dsn()}&schema=rota"
    with Rota(here) as rota:
        rota.project("lab", max_concurrent=CAP, budget={"tokens": BUDGET})
        jobs = [job.sched_id for job in register(rota, str(folder), "nobody").enqueue_many([{}] * FIRST)]
        queue = rota.kernel.queue

        def begun() -> dict[str, int]:
            """The first entry of each host."""
            lines = [line.split() for line in log.read_text().splitlines()]
            return {worker: int(entry) for entry, worker, what in reversed(lines) if what == "begin"}

        with supervisor(network, "a", urls["a"], folder):
            with supervisor(network, "b", urls["b"], folder):
                until(lambda: begun().keys() == {"a", "b"})
                cut_off = begun()["a"]
                network.cut("a")
                (folder / "go.b").touch()
                until(lambda: all(queue.get(job).state == "completed" for job in jobs))
                assert queue.get(cut_off).attempt == 2
                (folder / "go.a").touch()  # its run goes on while it is cut off
                until(lambda: f"{cut_off} a released" in log.read_text())
                network.heal("a")
            # only the host that was cut off is left
            jobs += [job.sched_id for job in register(rota, str(folder), "nobody").enqueue_many([{}])]
            until(lambda: queue.get(jobs[-1]).state == "completed")
            server.restart(signal.SIGINT)
            jobs += [job.sched_id for job in register(rota, str(folder), "nobody").enqueue_many([{}])]
            until(lambda: queue.get(jobs[-1]).state == "completed")
            (extra,) = (job.sched_id for job in register(rota, str(folder), "nobody").enqueue_many([{}]))
        _check(rota.kernel, jobs, cut_off, extra)
        assert "over_budget" in run_rota("why", str(extra), "--store", here, "--json", cwd=folder)


def _check(kernel: Kernel, jobs: list[int], cut_off: int, extra: int) -> None:
    """Each entry ended once, on the host that held its claim; cap and budget held; the journal gives the tables."""
    ends = kernel.journal.tail(0, 10_000, kinds=("kernel.sched.completed",))
    completed = Counter(entry for event in ends for entry in entries_of(event))
    assert completed == Counter(jobs)
    results = {job: kernel.queue.get(job).result for job in jobs}
    assert results[cut_off] == "b", "the late result of the host that was cut off was refused"
    assert [results[job] for job in jobs[FIRST:]] == ["a"] * LATER
    assert most_at_once(kernel) <= CAP
    (budget,) = [each for each in kernel.ledger.budgets() if each.dim == "tokens"]
    assert budget.used == BUDGET
    assert kernel.queue.get(extra).state == "queued"
    now = kernel.clock.now()
    tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(now) == journal.at(now)


# --- the same commands as on a file --------------------------------------------------------------


@pytest.fixture
def url() -> Iterator[str]:
    with own_schema("rota_story") as made:
        yield made


FLEET = """
name = "story"
store = "{url}"
slots = 2
worker_id = "box"
[projects.lab]
weight = 2
[agents.hello]
project = "lab"
command = ["sh", "-c", "echo hello from $ROTA_SCHED_ID; rota enqueue second"]
triggers = [{{on = "start"}}]
[agents.second]
project = "lab"
command = ["echo", "and second"]
"""


def test_a_fleet_file_names_a_database(tmp_path: Path, url: str) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (tmp_path / "fleet.toml").write_text(FLEET.format(url=url))
    assert "will be created" in run_rota("run", "fleet.toml", "--plan", cwd=tmp_path, env=env)
    run_rota("run", "fleet.toml", "--until-idle", "--plain", cwd=tmp_path, env=env)
    at_store = {**env, "ROTA_STORE": url}
    assert "2 succeeded" in run_rota("queue", "--status", "succeeded", cwd=tmp_path, env=at_store)
    assert "hello from 1" in run_rota("logs", "1", cwd=tmp_path, env=at_store)
    assert "and second" in run_rota("logs", "2", cwd=tmp_path, env=at_store)
    assert "succeeded" in run_rota("show", "1", cwd=tmp_path, env=at_store)
    assert "lab" in run_rota("top", "--once", cwd=tmp_path, env=at_store)
    assert "exists" in run_rota("run", "fleet.toml", "--plan", cwd=tmp_path, env=at_store)


def test_a_daemon(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with daemon_of(url) as info, connect(info.addresses[0]) as client:  # type: ignore[arg-type]  # a URL
        pid = client.agents.create("coder")
        sched_id = client.enqueue(ScheduleSpec(pid))
        assert client.explain(sched_id).state == "queued"
    opened = store.open(url)
    assert Kernel(opened).queue.get(sched_id).pid == pid
    opened.close()
