"""A standby is promoted: nothing acknowledged is lost if it was synchronous, and all claims are fenced in any case.

Specific, because a file has no standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from rich.console import Console

from rota import store
from rota.cli.view import LiveView
from rota.clock import SystemClock
from rota.errors import StaleClaim, StoreUnavailable
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.service.outages import call_through_outage
from rota.store import server_health
from rota.store.postgres_timeline import EVENT_ID_GAP
from rota.store.statements.file import META_GET
from rota.web import feed as feeds
from rota.web.feed import Feed
from tests.postgres_server import PORT, USER, PostgresServer

SYSTEM = SystemClock()
PATIENCE_S = 20.0


class Pair:
    """A primary and its standby, and a kernel on whichever of them accepts writes."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        hosts = ",".join(quote(str(server.folder), safe="") for server in (primary, standby))
        self.url = f"postgresql://{USER}@/postgres?host={hosts}&port={PORT},{PORT}&schema=rota"

    def kernel(self) -> Kernel:
        return call_through_outage(SYSTEM, lambda: Kernel(store.open(self.url)), lambda: False)

    def wait_for_standby(self) -> None:
        """Commits are answered from now on when the standby has them."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")

    def until_replayed(self) -> None:
        """Return when the standby shows what was committed before."""
        with psycopg.connect(self.primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_switch_wal()")
            text = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) FROM pg_stat_replication"
            while connection.execute(text).fetchone() != (0,):
                pass

    def promote(self) -> None:
        self.primary.stop(signal.SIGKILL)
        with psycopg.connect(self.standby.dsn(), autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)


@pytest.fixture
def pair(socket_folder: Path) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(PostgresServer(socket_folder / "a"))
        standby = PostgresServer(socket_folder / "b")
        standby.copy(primary)
        yield Pair(primary, stack.enter_context(standby))


def test_a_read_only_store_reads_the_primary_and_a_standby_if_there_is_no_other(pair: Pair) -> None:
    worker = pair.kernel()
    worker.agents.create("coder")
    pair.until_replayed()
    hosts = ",".join(quote(str(server.folder), safe="") for server in (pair.standby, pair.primary))
    url = f"postgresql://{USER}@/postgres?host={hosts}&port={PORT},{PORT}&schema=rota"
    with psycopg.connect(pair.standby.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_wal_replay_pause()")
    worker.agents.create("writer")  # the standby, which comes first in the URL, does not have it
    with contextlib.closing(store.open(url, read_only=True)) as opened:
        assert [agent.name for agent in Kernel(opened).agents.list()[0]] == ["coder", "writer"]
    assert not server_health(url).is_standby
    worker.store.close()
    pair.primary.stop()
    assert server_health(url).is_standby
    store.open(url, read_only=True).close()
    with pytest.raises(StoreUnavailable, match="no server of the address accepts writes") as refused:
        store.open(url)
    assert "cannot be reached" not in str(refused.value)
    assert refused.value.data["address"], "the log of a loop takes it for the same outage"
    assert "Name the primary" in str(refused.value)


def timeline(kernel: Kernel) -> str:
    return str(kernel.store.read(lambda tx: tx.run(META_GET, ("timeline",)))[0][0])


def completes(kernel: Kernel, sched_id: int, token: int | None) -> None:
    kernel.queue.complete(sched_id, "completed", token=token)


def test_a_synchronous_standby_has_everything_and_fences_the_claims(pair: Pair) -> None:
    pair.wait_for_standby()
    worker, other = pair.kernel(), pair.kernel()
    pid = worker.agents.create("coder")
    ids = worker.queue.enqueue_many([ScheduleSpec(pid, max_attempts=5)] * 3)
    first, second = worker.queue.claim(worker_id="worker", max_n=2)
    worker.queue.complete(first.sched_id, "completed", token=first.token)
    before = timeline(worker)
    pair.promote()

    (third,) = call_through_outage(other.clock, lambda: other.queue.claim(worker_id="other"), lambda: False)
    assert timeline(other) != before
    assert [entry.sched_id for entry in other.queue.list()[0]] == ids
    assert other.queue.get(first.sched_id).state == "completed"
    assert third.sched_id == ids[2], "the fenced entry is behind: it backs off"
    with pytest.raises(StaleClaim):
        completes(worker, second.sched_id, second.token)
    completes(other, third.sched_id, third.token)  # a claim of the new timeline is good

    kinds = [event.kind for event in other.journal.tail()]
    assert kinds.count("kernel.store.failed_over") == 1, "every process connects again, one of them fences"
    tables, journal = other.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(other.clock.now()) == journal.at(other.clock.now())
    worker.store.close()
    other.store.close()


def test_the_token_of_a_claim_that_an_asynchronous_standby_has_lost_is_not_given_again(pair: Pair) -> None:
    worker = pair.kernel()
    pid = worker.agents.create("coder")
    worker.queue.enqueue(ScheduleSpec(pid, max_attempts=5))
    pair.until_replayed()
    pair.standby.stop()
    (lost,) = worker.queue.claim(worker_id="worker")
    pair.primary.stop(signal.SIGKILL)
    pair.standby.start()
    pair.promote()

    other = pair.kernel()
    (entry,) = other.queue.claim(worker_id="other")
    assert entry.sched_id == lost.sched_id
    assert entry.token is not None
    assert lost.token is not None
    assert entry.token > lost.token + EVENT_ID_GAP // 2
    with pytest.raises(StaleClaim):
        completes(worker, lost.sched_id, lost.token)
    completes(other, entry.sched_id, entry.token)
    worker.store.close()
    other.store.close()


def test_commits_are_heard_of_whose_numbers_were_given_before_the_failover_too(pair: Pair) -> None:
    """An asynchronous standby lacks the last numbers of commits (`news`), and gives them again."""
    worker, watcher = pair.kernel(), pair.kernel()
    pid = worker.agents.create("coder")
    pair.until_replayed()
    pair.standby.stop()
    for number in range(64):  # the log has the numbers of a sequence up to 32 before they are given
        watcher.agents.create(f"lost-{number}")
    heard = threading.Event()
    watcher.store.on_change(heard.set, foreign_only=True)
    with ThreadPoolExecutor() as pool:
        claim = pool.submit(lambda: worker.queue.claim(worker_id="worker", wait_s=PATIENCE_S))
        while not worker.store.parked:  # type: ignore[attr-defined]  # a PostgresStore
            pass
        pair.primary.stop(signal.SIGKILL)
        pair.standby.start()
        pair.promote()
        other = pair.kernel()
        sched_id = other.queue.enqueue(ScheduleSpec(pid))
        assert [entry.sched_id for entry in claim.result()] == [sched_id]
    assert heard.wait(PATIENCE_S), "the connection is there again"
    heard.clear()
    other.queue.enqueue(ScheduleSpec(pid))
    assert heard.wait(PATIENCE_S), "a commit is announced"
    for kernel in (worker, watcher, other):
        kernel.store.close()


@pytest.mark.parametrize("writes", [True, False])
def test_what_shows_the_fleet_forgets_what_an_asynchronous_standby_has_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    """The first process that writes records the failover, and leaves out ids that no event had."""
    monkeypatch.setattr(feeds, "POLL_S", 0.1)
    worker, printed = pair.kernel(), io.StringIO()
    pid = worker.agents.create("coder")
    worker.queue.enqueue(ScheduleSpec(pid))
    pair.until_replayed()
    pair.standby.stop()
    api = Dispatcher(worker)
    with LiveView(api, console=Console(file=printed, force_terminal=False, width=200)) as view:
        worker.queue.enqueue_many([ScheduleSpec(pid)] * 5)

        async def watch() -> int:
            feed, drawn = Feed(api, "test"), asyncio.Condition()

            async def listener() -> None:
                async with drawn:
                    drawn.notify_all()

            async def until_queued(count: int) -> None:
                async with drawn:
                    await drawn.wait_for(lambda: feed.state is not None and feed.state.queued == count)

            feed.subscribe(listener)
            try:
                await asyncio.wait_for(until_queued(6), PATIENCE_S)
                fail_over()  # on this thread: the server ends with the one that starts it
                await asyncio.wait_for(until_queued(1), PATIENCE_S)
            finally:
                feed.stop()
            return feed.state.queued if feed.state is not None else 0

        def fail_over() -> None:
            view.look()
            assert view.state is not None
            assert view.state.queued == 6
            pair.primary.stop(signal.SIGKILL)
            pair.standby.start()
            pair.promote()
            if writes:
                call_through_outage(worker.clock, lambda: worker.agents.create("writer"), lambda: False)

        assert asyncio.run(watch()) == 1
        view.look()
        assert view.state.queued == 1  # type: ignore[union-attr]  # it was read
    assert ("the database was replaced by a standby" in printed.getvalue()) == writes
    assert "skipped" not in printed.getvalue()
    worker.store.close()
