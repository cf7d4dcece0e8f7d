"""`api.logs` on a file: which run may write, what a reader is told, and what happens when an entry runs again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import LimitExceeded, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel import Kernel
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.run_logs import LogPart
from rota.model.work import Backoff, ReadyEntry, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.service.run_logs import PIECE_BYTES_MAX, READ_BYTES_MAX


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Dispatcher]:
    made = Dispatcher(Kernel(store.open(str(tmp_path / "rota.db"), clock=clock)))
    made.agents.create("printer")
    yield made
    made.close()


def claim(api: Dispatcher, **spec: Any) -> ReadyEntry:
    """Enqueue an entry, or with nothing given take the one that is queued, and claim it."""
    if spec:
        api.queue.enqueue(ScheduleSpec(1, **spec))
    (entry,) = api.queue.claim(worker_id="w")
    assert entry.token is not None
    return entry


def append(api: Dispatcher, entry: ReadyEntry, offset: int, data: bytes) -> int:
    return api.logs.append(entry.sched_id, entry.attempt, entry.token or 0, offset, data)


def read(api: Dispatcher, sched_id: int, attempt: int | None = None, **more: Any) -> LogPart:
    return api.logs.read(sched_id, attempt, **more)


def test_pieces_are_read_by_offset(api: Dispatcher) -> None:
    entry = claim(api, priority=1)
    assert append(api, entry, 0, b"one\n") == 4
    assert append(api, entry, 4, b"two\n") == 8
    assert append(api, entry, 0, b"one\ntwo\n") == 8  # its response was lost
    assert read(api, entry.sched_id) == LogPart(
        sched_id=1, attempt=1, attempts=1, offset=0, data=b"one\ntwo\n", total_bytes=8, dropped_bytes=0, ended=False
    )
    assert read(api, 1, offset=4, limit_bytes=2).data == b"tw"
    assert (read(api, 1, offset=-3).offset, read(api, 1, offset=-3).data) == (5, b"wo\n")
    api.queue.complete(1, "completed", token=entry.token)
    assert read(api, 1, offset=8).ended
    assert not read(api, 1, offset=8).data


def test_a_run_is_bounded_by_the_limit_of_its_agent(api: Dispatcher) -> None:
    api.agents.update(1, metadata={SETTINGS_KEY: {"limits": {"log_bytes": 100}}})
    entry = claim(api, priority=1)
    for number in range(100):
        append(api, entry, 10 * number, b"x" * 10)
    part = read(api, 1)
    assert (len(part.data), part.total_bytes) == (50, 1_000)
    assert part.dropped_bytes >= 850


def test_an_entry_that_has_not_started_or_never_ran(api: Dispatcher) -> None:
    api.queue.enqueue(ScheduleSpec(1))
    part = read(api, 1)
    assert (part.attempt, part.attempts, part.total_bytes, part.ended) == (1, 0, 0, False)
    api.queue.cancel(1)
    assert read(api, 1).ended
    with pytest.raises(SchedUnknownId):
        read(api, 99)


def test_a_retried_entry_has_a_log_for_each_attempt(api: Dispatcher, clock: ManualClock) -> None:
    first = claim(api, max_attempts=2, retry_on=("failed",), backoff=Backoff(base_s=1.0))
    append(api, first, 0, b"first")
    api.queue.complete(1, "failed", token=first.token)
    part = read(api, 1)
    assert (part.attempt, part.attempts, part.data, part.ended) == (1, 1, b"first", True)
    clock.advance(10.0)
    second = claim(api)
    assert second.attempt == 2
    assert append(api, first, 5, b", late") == 11  # what its supervisor could not send in time
    append(api, second, 0, b"second")
    assert (read(api, 1).data, read(api, 1, 1).data) == (b"second", b"first, late")
    assert (read(api, 1).ended, read(api, 1, 1).ended) == (False, True)


def test_a_run_that_was_put_back_goes_on_in_the_same_log(api: Dispatcher) -> None:
    first = claim(api, priority=1)
    append(api, first, 0, b"before, ")
    api.queue.put_back(1, token=first.token or 0)
    part = read(api, 1)
    assert (part.attempt, part.attempts, part.data, part.ended) == (1, 1, b"before, ", False)
    second = claim(api)
    assert append(api, second, 0, b"after") == 5
    assert read(api, 1).data == b"before, after"
    with pytest.raises(StaleClaim):
        append(api, first, 8, b"too late")


def test_only_the_token_of_a_claim_of_this_entry_may_write(api: Dispatcher) -> None:
    entry, other = claim(api, priority=1), claim(api, priority=2)
    assert entry.token is not None
    assert other.token is not None
    for token in (other.token, 1, entry.token + 1_000):
        with pytest.raises(StaleClaim, match=f"token {token} is not that of a claim of attempt 1 of entry 1"):
            api.logs.append(1, 1, token, 0, b"x")
    with pytest.raises(StaleClaim):
        api.logs.append(1, 2, entry.token, 0, b"x")
    with pytest.raises(SchedUnknownId):
        api.logs.append(77, 1, entry.token, 0, b"x")
    assert read(api, 1).total_bytes == 0


def test_limits_are_checked(api: Dispatcher) -> None:
    entry = claim(api, priority=1)
    assert append(api, entry, 0, b"x" * PIECE_BYTES_MAX) == PIECE_BYTES_MAX
    with pytest.raises(LimitExceeded, match="piece_bytes_max"):
        append(api, entry, 0, b"x" * (PIECE_BYTES_MAX + 1))
    assert read(api, 1, limit_bytes=READ_BYTES_MAX).total_bytes == PIECE_BYTES_MAX
    with pytest.raises(LimitExceeded, match="limit_bytes"):
        read(api, 1, limit_bytes=READ_BYTES_MAX + 1)
    for wrong in ({"offset": "1"}, {"limit_bytes": -1}, {"attempt": 0}):
        with pytest.raises(SchedInvalidPayload):
            read(api, 1, **wrong)


def test_a_log_folder_that_vanished_is_created_again(api: Dispatcher, tmp_path: Path) -> None:
    entry = claim(api, priority=1)
    append(api, entry, 0, b"gone")
    shutil.rmtree(tmp_path / "rota.db-logs")
    assert read(api, 1).total_bytes == 0
    append(api, entry, 4, b"here")
    part = read(api, 1)
    assert (part.offset, part.data, part.dropped_bytes) == (4, b"here", 4)


@pytest.mark.only_on("memory", "file", reason="it deletes the file")
def test_the_log_of_a_deleted_store_is_not_this_stores(api: Dispatcher, tmp_path: Path) -> None:
    append(api, claim(api, priority=1), 0, b"of the first store")
    api.close()
    for path in tmp_path.glob("rota.db*"):
        if path.is_file():
            path.unlink()
    second = Dispatcher(Kernel(store.open(str(tmp_path / "rota.db"))))
    second.agents.create("printer")
    entry = claim(second, priority=1)
    assert read(second, 1).total_bytes == 0
    append(second, entry, 0, b"mine")
    assert read(second, 1).data == b"mine"
    second.close()


def test_the_logs_of_live_runs_stay_and_the_oldest_others_go(api: Dispatcher) -> None:
    assert api.logs.folder is not None
    api.logs.folder.set_maxima(2, 1_000_000)
    live, *others = (claim(api, priority=1) for _ in range(6))
    append(api, live, 0, b"live")
    for entry in others:
        append(api, entry, 0, b"done")
        api.queue.complete(entry.sched_id, "completed", token=entry.token)
    api.logs.folder.remove_surplus()
    assert [read(api, each.sched_id).data for each in (live, *others)] == [b"live", b"", b"", b"", b"", b"done"]
    api.logs.folder.set_maxima(0, 0)
    assert append(api, live, 4, b"not kept") == 12
    assert read(api, live.sched_id).data == b"live"


@pytest.mark.only_on("memory", reason="it is about a store in memory")
def test_a_store_in_memory_keeps_no_logs() -> None:
    api = Dispatcher(Kernel(store.open(":memory:")))
    api.agents.create("printer")
    entry = claim(api, priority=1)
    assert append(api, entry, 0, b"hello") == 5
    assert read(api, 1).total_bytes == 0
    api.close()
