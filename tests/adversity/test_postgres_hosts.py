"""Hosts of one PostgreSQL whose network is cut: each is a network namespace, and its cable is pulled.

What is checked is what the others see. A worker that is cut off keeps its claim until it expires, and its late result
is refused. A holder of the turn that is cut off keeps the turn until the server gives its connection up
(`CUT_S_MAX`): not for the two hours of the operating system's default, nor for `IDLE_S_MAX`, which is for processes
that are stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rota import store
from rota.clock import SystemClock
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.model.events import Event
from rota.store.postgres_connection import CONNECT_S_MAX, CUT_S_MAX, IDLE_S_MAX
from rota.store.statements.file import META_GET
from tests.adversity.draining_host import TOKENS, draining_host
from tests.adversity.remote_host import RemoteHost
from tests.postgres_server import PostgresServer
from tests.short_folders import short_folder
from tests.stories.two_hosts import Network, until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="only root can make network namespaces, with the tool ip"
)
CLAIM_S = 1.0
WAIT_S = 60.0  # only ends a test that would hang


class World(NamedTuple):
    """A server, a host that is cut off (a), one that is not (b), and the test's own view past the network."""

    network: Network
    server: PostgresServer
    a: RemoteHost
    b: RemoteHost
    kernel: Kernel
    pid: int

    def log(self) -> str:
        return Path(self.server.folder, "log").read_text()


@pytest.fixture(scope="module")
def hosts() -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        folder, network = stack.enter_context(short_folder()), stack.enter_context(Network(("a", "b")))
        addresses = ",".join(network.address(host) for host in network.hosts)
        server = stack.enter_context(PostgresServer(folder / "pg", address=addresses, namespace=network.server))
        opened = store.open(f"{server.dsn()}&schema=rota")
        stack.callback(opened.close)
        kernel = Kernel(opened)
        urls = (f"postgresql://rota@{network.address(host)}/postgres?schema=rota" for host in network.hosts)
        a, b = (
            stack.enter_context(RemoteHost(network.namespace(host), url, host))
            for host, url in zip(network.hosts, urls, strict=True)
        )
        yield World(network, server, a, b, kernel, kernel.agents.create("coder"))


def test_the_late_result_of_a_worker_that_was_cut_off_is_refused_and_its_entry_ran_elsewhere_once(hosts: World) -> None:
    sched_id = hosts.b("enqueue", hosts.pid)
    ((claimed, token, attempt),) = hosts.a("claim", CLAIM_S, 0)
    assert (claimed, attempt) == (sched_id, 1)
    hosts.network.cut("a")
    ((again, new_token, attempt),) = hosts.b("claim", WAIT_S, WAIT_S)
    assert (again, attempt) == (sched_id, 2)
    hosts.network.heal("a")
    assert hosts.a("complete_when_back", sched_id, token) == "StaleClaim"
    assert hosts.b("complete", sched_id, new_token) == "completed"
    assert hosts.a("complete_when_back", sched_id, token) == "StaleClaim"
    entry = hosts.kernel.queue.get(sched_id)
    assert (entry.state, entry.result, entry.worker_id) == ("completed", "b", "b")
    kinds = [event.kind.removeprefix("kernel.sched.") for event in hosts.kernel.journal.tail()]
    assert (kinds.count("claimed"), kinds.count("completed")) == (2, 1)


def test_others_go_on_when_the_server_gives_up_the_connection_of_a_holder_that_is_cut_off(hosts: World) -> None:
    assert hosts.a("hold_turn") == "held"
    hosts.network.cut("a")
    assert isinstance(hosts.b("enqueue", hosts.pid), int)
    hosts.network.heal("a")
    hosts.a.ask("go on")
    assert hosts.a.answer() == 2, "the transaction that was cut off did not run again"
    assert hosts.kernel.store.read(lambda tx: tx.run(META_GET, ("held",))) == [("a",)]
    log = hosts.log()
    assert "could not receive data from client" in log
    assert "idle-in-transaction timeout" not in log, "the network's limit has to be the shorter one"


def test_a_worker_id_in_use_on_one_host_is_refused_on_another(hosts: World) -> None:
    assert hosts.a("hold_worker_id", "box") == "held"
    assert hosts.b("hold_worker_id", "box") == "WorkerExists"
    assert hosts.b("hold_worker_id", "another box") == "held"


# --- caps, budgets and limits of many processes ----------------------------------------------------

PROCESSES = 4  # on each of the two hosts
PROJECT_CAP, AGENT_CAP = 5, 3


def check_caps(hosts: World, schema: str, runs: int) -> None:
    """Of twice as many entries, let `runs` run by a budget and as many by a limit; look at every moment of it."""
    with contextlib.ExitStack() as stack:
        opened = store.open(f"{hosts.server.dsn()}&schema={schema}")
        stack.callback(opened.close)
        kernel = Kernel(opened)
        kernel.projects.create("lab", max_concurrent=PROJECT_CAP)
        kernel.ledger.set_budget("project", "lab", "tokens", runs * TOKENS)
        kernel.contexts.create(bound_to="name", bound_id="api", budget=runs, period_s=86_400, unit="requests")
        capped = kernel.agents.create("capped", project_id="lab", max_concurrent=AGENT_CAP)
        free, limited = kernel.agents.create("free", project_id="lab"), kernel.agents.create("limited")
        for host in hosts.network.hosts:
            url = f"postgresql://rota@{hosts.network.address(host)}/postgres?schema={schema}"
            stack.enter_context(draining_host(hosts.network.namespace(host), url, host, PROCESSES))
        asks = {pid: ScheduleSpec(pid, ceiling={"tokens": TOKENS}) for pid in (capped, free)}
        asks[limited] = ScheduleSpec(limited, draws_on=("api",))
        specs = [asks[pid] for _ in range(runs) for pid in (capped, free, limited, limited)]
        pids = dict(zip(kernel.queue.enqueue_many(specs), [spec.pid for spec in specs], strict=True))
        for count in range(10, 2 * runs + 10, 10):  # so that a slow machine has time, and one that hangs has not
            until(lambda count=count: kernel.queue.counts().get("completed", 0) >= min(count, 2 * runs))  # type: ignore[misc]
        assert kernel.queue.claim(worker_id="test", max_n=10) == [], "more than budget and limit allow"
        events = kernel.journal.tail(0, 100_000, kinds=("kernel.sched.claimed", "kernel.sched.completed"))
        most, ended = history(events, pids)
        assert (most[capped] <= AGENT_CAP, most[capped, free] <= PROJECT_CAP) == (True, True), most
        assert (ended[capped] + ended[free], ended[limited]) == (runs, runs)
        (budget,) = [each for each in kernel.ledger.budgets() if each.dim == "tokens" and each.limit is not None]
        assert budget.used == runs * TOKENS
        tables, journal = opened.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        assert tables.at(kernel.clock.now()) == journal.at(kernel.clock.now())
        print(f"{2 * PROCESSES} processes, {2 * runs} runs: at most {most}")


def history(events: list[Event], pids: dict[int, int]) -> tuple[Counter[Any], Counter[int]]:
    """How many entries of each agent, and of each two, were claimed at the same time at most; how many ended."""
    live: Counter[int] = Counter()
    most: Counter[Any] = Counter()
    ended: Counter[int] = Counter()
    claimed: set[int] = set()
    for event in events:
        ids = [entry[0] for entry in event.payload["entries"]]
        if event.kind.endswith("claimed"):
            assert not claimed & set(ids), "claimed twice"
            claimed.update(ids)
            live.update(pids[sched_id] for sched_id in ids)
        else:
            live.subtract(pids[sched_id] for sched_id in ids)
            ended.update(pids[sched_id] for sched_id in ids)
        for pid in list(live):
            most[pid] = max(most[pid], live[pid])
        for pair in itertools.combinations(sorted(live), 2):
            most[pair] = max(most[pair], live[pair[0]] + live[pair[1]])
    return most, ended


def test_caps_budgets_and_limits_are_exact_with_eight_processes_on_two_hosts(hosts: World) -> None:
    check_caps(hosts, "few", 8)


@pytest.mark.soak
def test_caps_budgets_and_limits_are_exact_with_eight_processes_and_many_runs(hosts: World) -> None:
    check_caps(hosts, "many", int(os.environ.get("ROTA_SOAK_RUNS", "500")))


@pytest.mark.soak
def test_how_long_a_cut_network_lasts_for_others_and_for_the_host_itself(hosts: World) -> None:
    """By the clock: this one needs a machine that does little else. The figures are printed."""
    now = SystemClock.monotonic
    hosts.b("enqueue", hosts.pid)
    ((sched_id, token, _),) = hosts.a("claim", WAIT_S, 0)
    assert hosts.a("hold_turn") == "held"
    hosts.network.cut("a")
    cut_at = now()
    hosts.a.ask("go on")  # its next statement is on its way for ever
    hosts.b("enqueue", hosts.pid)
    others_s = now() - cut_at
    hosts.network.heal("a")
    hosts.a.answer()
    hosts.network.cut("a")
    cut_at = now()
    assert hosts.a("complete", sched_id, token) == "StoreUnavailable"
    heard_s = now() - cut_at
    hosts.network.heal("a")
    print(f"others waited {others_s:.1f} s, the host itself {heard_s:.1f} s")
    assert others_s < CUT_S_MAX + 1.5 < IDLE_S_MAX
    assert heard_s < CUT_S_MAX + CONNECT_S_MAX + 1.5
