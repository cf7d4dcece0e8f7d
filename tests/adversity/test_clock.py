"""The wall clock jumps, the machine is suspended and rebooted: durations keep their length, dates are dates.

A round is a random script over one file: time passes, the wall clock jumps by seconds up to years and back, the machine
is suspended, or it reboots with its wall clock anywhere. Two processes share the file. Meanwhile there are claims,
back-offs, delays, paused limits, a rate limit, a budget per window, affinity holds, dates and deadlines. The model has
one number: the time that has passed. After every step everything that lasts is where it belongs on that clock.
"""

from __future__ import annotations

import mmap
import multiprocessing
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock, SystemClock
from rota.errors import RotaError
from rota.fleet.triggers import Triggers
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.kernel.clock_jumps import ROUNDED_S
from rota.kernel.environment import SEEN_EVERY_S
from rota.kernel.settings import read_setting
from rota.kernel.usage_windows import BUCKETS
from rota.model.events import ClockJumped
from rota.model.work import Backoff, ReadyEntry
from rota.rpc import connect
from rota.store.parking import CLOCK_CHECK_S
from tests.adversity.conftest import Rounds
from tests.daemon.harness import Served, make_token
from tests.fleet.support import FleetHarness
from tests.store.world import PATIENCE_S, Caller

START = 1_700_000_000.0
DAY, YEAR = 86_400.0, 365 * 86_400.0
WALL_MIN, WALL_MAX = 1e5, 3e9  # the wall clock stays between 1970 and 2065
TOLERANCE_S = 0.02  # jumps are rounded up to whole milliseconds
LIMIT, LIMIT_PERIOD_S = 5, 60.0
WINDOW_S = 100.0
STEPS = 60

JUMPS_S = (0.5, 3.0, 59.0, 3_600.0, 6 * 3_600.0, DAY, YEAR, 9 * YEAR)


class Script:
    """A random history on one file, and the model that it is compared with."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = str(path)
        self.clock = ManualClock(START)
        self.passed_s = 0.0  # the model's clock
        self.log: list[str] = []
        self.ready_at: dict[int, float] = {}  # delays and back-offs, by entry, on the model's clock
        self.expires_at: dict[int, float] = {}  # live claims
        self.freed_at: dict[int, float] = {}  # affinity holds
        self.dates: dict[int, float] = {}  # by entry, on the wall clock
        self.deadlines: dict[int, float] = {}
        self.expired: set[int] = set()  # deadlines that a check has found passed
        self.passed: set[int] = set()  # deadlines that have passed at some moment
        self.starts: list[float] = []  # of runs under the rate limit
        self.charges: list[tuple[float, int]] = []
        self.paused_until = 0.0
        self.kernels = self.boot()
        kernel = self.kernel
        kernel.projects.create("lab")
        self.pid = kernel.agents.create("agent", project_id="lab")
        kernel.contexts.create(bound_to="name", bound_id="api", unit="requests", budget=LIMIT, period_s=LIMIT_PERIOD_S)
        kernel.contexts.create(bound_to="name", bound_id="slow", unit="requests", budget=1_000, period_s=1.0)
        kernel.ledger.set_budget("project", "lab", "tokens", 10**6, window_s=WINDOW_S)
        self.limited = kernel.queue.enqueue_many([self.spec("limited", draws_on=("api",)) for _ in range(200)])
        self.paused = kernel.queue.enqueue(self.spec("paused", draws_on=("slow",)))

    def boot(self) -> list[Kernel]:
        rng = random.Random(self.rng.random())
        return [Kernel(store.open(self.path, clock=self.clock, durability="normal"), rng=rng) for _ in range(2)]

    def close(self) -> None:
        for kernel in self.kernels:
            kernel.store.close()

    @property
    def kernel(self) -> Kernel:
        return self.rng.choice(self.kernels)

    def spec(self, kind: str, **fields: object) -> ScheduleSpec:
        return ScheduleSpec(self.pid, kind=kind, **fields)  # type: ignore[arg-type]

    # --- time ------------------------------------------------------------------------------------

    def advance(self) -> None:
        by_s = self.rng.choice((0.0, 0.01, 0.3, 1.0, 4.0, 7.0, 20.0, 70.0))
        self.log.append(f"advance {by_s}")
        self.clock.advance(by_s)
        self.passed_s += by_s

    def suspend(self) -> None:
        by_s = self.rng.choice((30.0, 3_600.0, DAY))
        self.log.append(f"suspend {by_s}")
        self.clock.advance(by_s)
        self.passed_s += by_s

    def jump(self) -> None:
        by_s = self.rng.choice(JUMPS_S) * self.rng.choice((-1, 1)) * self.rng.uniform(0.7, 1.3)
        if not WALL_MIN <= self.clock.now() + by_s <= WALL_MAX:
            by_s = START - self.clock.now()
        self.log.append(f"jump {by_s}")
        self.clock.jump(by_s)

    def reboot(self) -> None:
        """Nothing compares with the time before; the store knows when it was last used."""
        seen_at = float(self.setting("clock_seen_at"))
        last_at = self.kernels[0].journal.tail(self.kernels[0].journal.cursor() - 1)[0].ts
        seen_at = last_at if seen_at < last_at < seen_at + SEEN_EVERY_S else seen_at
        # what the wall clock would be without a jump that no transaction has seen yet
        before = self.clock.monotonic() + float(self.setting("clock_offset").split()[-1])
        self.close()
        now = self.rng.choice((before, before + 5, before + 300, before - 5, before - DAY, before - YEAR, START))
        now = now if WALL_MIN <= now <= WALL_MAX else START
        self.log.append(f"reboot {now - before} (seen {seen_at - before})")
        self.clock.reboot(now)
        self.passed_s += max(now, seen_at) - before
        self.kernels = self.boot()
        self.kernel.queue.upkeep()

    def setting(self, key: str) -> str:
        return self.kernels[0].store.read(lambda tx: read_setting(tx, key)) or ""

    # --- work ------------------------------------------------------------------------------------

    def delay(self) -> None:
        delay_s = self.rng.uniform(0.1, 60.0)
        kernel = self.kernel
        self.ready_at[kernel.queue.enqueue(self.spec("never", delay_s=delay_s))] = self.passed_s + delay_s

    def back_off(self) -> None:
        kernel = self.kernel
        backoff = Backoff(base_s=self.rng.uniform(0.1, 40.0), factor=2.0, cap_s=100.0)
        kernel.queue.enqueue(self.spec("retried", backoff=backoff, max_attempts=9))
        for run in kernel.queue.claim(worker_id="w", kinds=("retried",), max_n=9):
            kernel.queue.complete(run.sched_id, "crashed", token=run.token)
            entry = kernel.queue.get(run.sched_id)
            self.ready_at[run.sched_id] = self.passed_s + entry.runnable_at - self.clock.now()

    def yield_back(self) -> None:
        kernel, delay_s = self.kernel, self.rng.uniform(0.0, 30.0)
        kernel.queue.enqueue(self.spec("yielded"))
        for run in kernel.queue.claim(worker_id="w", kinds=("yielded",), max_n=9):
            kernel.queue.put_back(run.sched_id, token=run.token or 0, delay_s=delay_s)
            self.ready_at[run.sched_id] = self.passed_s + delay_s

    def claim(self) -> None:
        kernel, timeout_s = self.kernel, self.rng.uniform(1.0, 90.0)
        kernel.queue.enqueue(self.spec("claimed", max_attempts=100))
        for run in kernel.queue.claim(worker_id="w", kinds=("claimed",), max_n=9, claim_timeout_s=timeout_s):
            self.expires_at[run.sched_id] = self.passed_s + timeout_s

    def hold_for_worker(self) -> None:
        kernel = self.kernel
        kernel.queue.claim(worker_id="warm", kinds=("none",))  # it is alive
        sched_id = kernel.queue.enqueue(self.spec("held", affinity="warm"))
        if kernel.queue.get(sched_id).hold == "worker":
            self.freed_at[sched_id] = self.passed_s + kernel.queue.affinity_wait()

    def date(self) -> None:
        at = self.clock.now() + self.rng.choice((5.0, 100.0, 5_000.0, 2 * DAY))
        self.dates[self.kernel.queue.enqueue(self.spec("dated", runnable_at=at))] = at

    def deadline(self) -> None:
        at = self.clock.now() + self.rng.choice((5.0, 100.0, 5_000.0, 2 * DAY))
        self.deadlines[self.kernel.queue.enqueue(self.spec("urgent", deadline=at))] = at

    def throttle(self) -> None:
        pause_s = self.rng.uniform(1.0, 50.0)
        self.kernel.contexts.throttle("slow", pause_s)
        self.paused_until = max(self.paused_until, self.passed_s + pause_s)

    def charge(self) -> None:
        amount = self.rng.randint(1, 50)
        kernel = self.kernel
        kernel.queue.enqueue(self.spec("charged"))
        (run,) = kernel.queue.claim(worker_id="w", kinds=("charged",))
        kernel.queue.charge(run.sched_id, {"tokens": amount}, token=run.token)
        kernel.queue.complete(run.sched_id, "completed", token=run.token)
        self.charges.append((self.passed_s, amount))

    # --- laws ------------------------------------------------------------------------------------

    def check(self) -> None:
        kernel = self.kernel
        kernel.queue.upkeep()  # it sees the last jump, which is rounded up to a whole millisecond
        self.clock.advance(ROUNDED_S)
        self.passed_s += ROUNDED_S
        kernel.queue.upkeep()
        now, passed_s = self.clock.now(), self.passed_s
        get = kernel.queue.get
        for sched_id, at in list(self.ready_at.items()):
            entry = get(sched_id)
            if entry.state != "queued":  # its last attempt has ended
                del self.ready_at[sched_id]
                continue
            is_ready = entry.hold is None and entry.runnable_at <= now
            assert is_ready == (passed_s >= at) or abs(passed_s - at) < TOLERANCE_S, (entry, passed_s, at)
            if passed_s > at + 1_000:
                del self.ready_at[sched_id]
        for sched_id, at in list(self.expires_at.items()):
            is_live = get(sched_id).state == "dispatched"
            assert is_live == (passed_s < at) or abs(passed_s - at) < TOLERANCE_S, (get(sched_id), passed_s, at)
            if not is_live:
                del self.expires_at[sched_id]
        for sched_id, at in list(self.freed_at.items()):
            is_held = get(sched_id).hold == "worker"
            assert is_held == (passed_s < at) or abs(passed_s - at) < TOLERANCE_S, (get(sched_id), passed_s, at)
            if not is_held:
                del self.freed_at[sched_id]
        for sched_id, at in self.dates.items():
            entry = get(sched_id)
            assert (entry.hold is None and entry.runnable_at <= now) == (now >= at), (entry, now, at)
            assert entry.runnable_at == at
        for sched_id, at in self.deadlines.items():
            if now > at:
                self.expired.add(sched_id)
                self.passed.add(sched_id)
            state = get(sched_id).state
            assert state == "expired" or sched_id not in self.expired, (sched_id, now, at)
            assert state == "queued" or sched_id in self.passed, (sched_id, now, at)
        self.check_limits(kernel)
        self.check_budget(kernel)

    def check_limits(self, kernel: Kernel) -> None:
        self.starts += [self.passed_s] * len(kernel.queue.claim(worker_id="w", kinds=("limited",), max_n=9))
        for first, last in zip(self.starts, self.starts[LIMIT:], strict=False):
            assert last - first >= LIMIT_PERIOD_S - 0.002, (self.starts, "more than the limit in one period")
        recent = [at for at in self.starts if at > self.passed_s - LIMIT_PERIOD_S - 2 * TOLERANCE_S]
        assert len(recent) >= LIMIT, "the limit did not come back"
        blocked = kernel.queue.claim(worker_id="w", kinds=("paused",))
        assert (not blocked) == (self.passed_s < self.paused_until) or (
            abs(self.passed_s - self.paused_until) < TOLERANCE_S
        )
        for run in blocked:
            kernel.queue.put_back(run.sched_id, token=run.token or 0)

    def check_budget(self, kernel: Kernel) -> None:
        (line,) = kernel.ledger.budgets()
        width_s = WINDOW_S / BUCKETS
        least = sum(amount for at, amount in self.charges if at > self.passed_s - WINDOW_S + TOLERANCE_S)
        most = sum(amount for at, amount in self.charges if at > self.passed_s - WINDOW_S - width_s - TOLERANCE_S)
        assert least <= line.used <= most, (line, least, most)

    def run(self) -> None:
        work: list[Callable[[], None]] = [
            self.delay, self.back_off, self.yield_back, self.claim, self.hold_for_worker, self.date, self.deadline,
            self.throttle, self.charge,
        ]  # fmt: skip
        times = [self.advance] * 6 + [self.suspend] + [self.jump] * 4 + [self.reboot]
        self.check()
        for _ in range(STEPS):
            for act in self.rng.sample(work, 3):
                act()
            for act in self.rng.choices(times, k=self.rng.randint(1, 3)):
                act()
                self.passed |= {sched_id for sched_id, at in self.deadlines.items() if self.clock.now() > at}
            if self.rng.random() < 0.8:
                self.check()
        self.check()
        kernel = self.kernels[0]
        now = self.clock.now()
        tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        assert tables.at(now) == journal.at(now)


def test_durations_keep_their_length_and_dates_follow_the_wall_clock(rounds: Rounds, tmp_path: Path) -> None:
    for seed in rounds(5):
        script = Script(seed, tmp_path / f"{seed}.db")
        try:
            script.run()
        except BaseException:
            print(f"seed {seed}:", *script.log[-12:], sep="\n  ")
            raise
        finally:
            script.close()
        for file in tmp_path.glob(f"{seed}.db*"):
            file.unlink()


def test_while_there_is_work_the_stored_time_is_recent(tmp_path: Path) -> None:
    clock = ManualClock(START)
    kernel = Kernel(store.open(str(tmp_path / "rota.db"), clock=clock))
    pid = kernel.agents.create("agent")
    for _ in range(50):
        kernel.queue.enqueue(ScheduleSpec(pid))
        kernel.queue.claim(worker_id="w")
        seen_at = float(kernel.store.read(lambda tx: read_setting(tx, "clock_seen_at")) or 0.0)
        assert 0 <= clock.now() - seen_at < SEEN_EVERY_S
        clock.advance(1.7)
    kernel.store.close()


# --- calls that wait ------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [-YEAR, -6 * 3_600.0, 6 * 3_600.0, YEAR])
def test_a_parked_claim_waits_its_own_time(by_s: float) -> None:
    clock = ManualClock(START)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("agent")
    kernel.queue.enqueue(ScheduleSpec(pid, delay_s=3_600.0))
    waiting = Caller(lambda: kernel.queue.claim(worker_id="w", wait_s=4.0))
    clock.until_parked(2)  # the caller and the thread that tries again
    clock.jump(by_s)
    for _ in range(3):
        clock.advance(1.0)
        clock.until_parked(2)
    assert not waiting.is_done
    clock.advance(1.0)
    assert waiting.outcome() == []
    kernel.store.close()


@pytest.mark.parametrize("by_s", [-YEAR, -6 * 3_600.0, 6 * 3_600.0, YEAR])
def test_a_parked_claim_gets_a_delayed_entry_in_time(by_s: float) -> None:
    clock = ManualClock(START)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("agent")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid, delay_s=5.0))
    waiting = Caller(lambda: kernel.queue.claim(worker_id="w", wait_s=3_600.0))
    clock.until_parked(2)
    clock.jump(by_s)
    for _ in range(4):
        clock.advance(1.0)
        clock.until_parked(2)
    assert not waiting.is_done
    clock.advance(1.0)
    assert [entry.sched_id for entry in waiting.outcome()] == [sched_id]
    kernel.store.close()


def test_a_parked_claim_gets_an_entry_whose_date_a_jump_has_passed() -> None:
    clock = ManualClock(START)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("agent")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=START + DAY))
    waiting = Caller(lambda: kernel.queue.claim(worker_id="w", wait_s=3_600.0))
    clock.until_parked(2)
    clock.jump(2 * DAY)
    clock.advance(CLOCK_CHECK_S)
    assert [entry.sched_id for entry in waiting.outcome()] == [sched_id]
    kernel.store.close()


# --- triggers -------------------------------------------------------------------------------------

TRIGGERS = """
[agents.often]
command = 'ls'
triggers = [{every = '10s'}]
[agents.hourly]
command = 'ls'
triggers = [{cron = '0 * * * *'}]
"""


def test_an_interval_fires_by_elapsed_time_and_a_cron_fires_each_instant_once(rounds: Rounds, tmp_path: Path) -> None:
    for seed in rounds(6):
        rng = random.Random(seed)
        harness = FleetHarness(tmp_path, START)
        triggers, clock = harness.triggers(TRIGGERS), harness.clock
        fired_at, passed_s = 0.0, 0.0  # the interval's last firing, on the model's clock
        keys: set[str] = set()  # of the cron's firings
        for _ in range(200):
            crossed_at = 0.0
            what = rng.choice(("pass", "pass", "pass", "jump", "restart"))
            if what == "pass":
                due_s = triggers.due_in_s()
                assert due_s is not None
                by_s = rng.choice((max(due_s, 0.0), 1.0, 4.0, 600.0))
                before = clock.now()
                clock.advance(by_s)
                passed_s += by_s
                crossed_at = clock.now() // 3_600 * 3_600 if clock.now() // 3_600 > before // 3_600 else 0.0
            elif what == "jump":
                by_s = rng.choice((1.0, 3_600.0, DAY, YEAR)) * rng.uniform(-1.0, 1.0)
                clock.jump(by_s if WALL_MIN < clock.now() + by_s < WALL_MAX else START - clock.now())
            else:
                triggers = Triggers(harness.api, clock, harness.fleet(TRIGGERS))
            firings = {firing.agent: firing for firing in triggers.fire_due()}
            if "often" in firings:
                assert firings["often"].created, (seed, "an instant was used twice")
                fired_at = passed_s
            assert passed_s - fired_at < 10 + 1e-3, (seed, "the interval does not fire")
            if (cron := firings.get("hourly")) is not None:
                instant = float(cron.key.rpartition(":")[2])
                assert instant % 3_600 == 0, (seed, cron)
                assert instant <= clock.now() < instant + 3_600, (seed, cron)
                assert cron.created != (cron.key in keys), (seed, cron)
                keys.add(cron.key)
            assert not crossed_at or f"trigger:hourly:0:{crossed_at:.0f}" in keys, (seed, "an instant was lost")
        harness.close()


# --- real processes -------------------------------------------------------------------------------


class ShiftedClock(SystemClock):
    """The machine's clock, with a wall clock that is shifted by a number in a file, for every process that reads it."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)

    def now(self) -> float:
        return time.time() + float(struct.unpack("d", self._shift[:8])[0])

    def jump(self, by_s: float) -> None:
        self._shift[:8] = struct.pack("d", float(struct.unpack("d", self._shift[:8])[0]) + by_s)


def work_in_a_process(path: str, shift: str, number: int, results: Any) -> None:
    """Keep one claim alive by heartbeats, and run delayed entries; report the heartbeats lost and the delays."""
    clock = ShiftedClock(shift)
    kernel = Kernel(store.open(path, clock=clock, durability="normal"))
    name = f"process {number}"
    pid = kernel.agents.create(name)
    kernel.queue.enqueue(ScheduleSpec(pid, kind=name))
    (kept,) = kernel.queue.claim(worker_id=name, kinds=(name,), claim_timeout_s=PATIENCE_S)
    delays, lost = [], 0
    for _ in range(12):
        began_s = clock.monotonic()
        delayed = kernel.queue.enqueue(ScheduleSpec(pid, kind=name, delay_s=0.15))
        (run,) = kernel.queue.claim(worker_id=name, kinds=(name,), wait_s=PATIENCE_S)
        assert run.sched_id == delayed
        delays.append(clock.monotonic() - began_s)
        kernel.queue.complete(delayed, "completed", token=run.token)
        (answer,) = kernel.queue.heartbeat_many([(kept.sched_id, kept.token or 0)])
        lost += isinstance(answer, RotaError)
    kernel.store.close()
    results.put((number, min(delays), lost))


def test_two_processes_on_one_file_move_everything_once_for_each_jump(tmp_path: Path) -> None:
    path, shift = str(tmp_path / "rota.db"), tmp_path / "shift"
    shift.write_bytes(bytes(8))
    clock = ShiftedClock(str(shift))
    kernel = Kernel(store.open(path, clock=clock, durability="normal"))
    kernel.queue.upkeep()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=work_in_a_process, args=(path, str(shift), number, results)) for number in range(2)
    ]
    for process in processes:
        process.start()
    rng, jumps = random.Random(1), []
    while any(process.is_alive() for process in processes):
        jumps.append(round(rng.choice((-1, 1)) * rng.choice((1.0, 3_600.0, DAY, YEAR)), 3))
        clock.jump(jumps[-1])
        kernel.queue.upkeep()  # which sees the jump, unless one of the two has
        for _ in range(3):
            processes[0].join(0.05)
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    found = sorted(results.get(timeout=PATIENCE_S) for _ in processes)
    assert [(number, lost) for number, _, lost in found] == [(0, 0), (1, 0)]
    assert all(shortest_s >= 0.149 for _, shortest_s, _ in found), found
    recorded = [event.payload["by_s"] for event in kernel.journal.tail(0, 10_000) if event.kind == ClockJumped.kind]
    assert recorded == pytest.approx(jumps, abs=0.05)
    kernel.store.close()


# --- at a daemon ---------------------------------------------------------------------------------

WAIT_S = 0.4


class JumpingDaemon:
    """A daemon on the machine's clock, whose wall clock the test sets, and a client of one of its transports."""

    def __init__(self, path: Path, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offset_s = 0.0
        monkeypatch.setattr(SystemClock, "now", staticmethod(lambda: time.time() + self._offset_s))
        self.served = Served(str(path))
        token = make_token(str(path), "admin")
        address = self.served.unix if transport == "unix" else self.served.url
        self.client = connect(address, token=token if transport == "http" else None)
        rng = self.served.daemon.handlers.kernel.env.rng
        monkeypatch.setattr(rng, "uniform", lambda low, high: (low + high) / 2)

    def claim(self, wait_s: float) -> Caller[list[ReadyEntry]]:
        """A claim on a thread of its own, which has begun to wait."""
        caller = Caller(lambda: self.client.claim("worker", wait_s=wait_s))
        self.served.until_parked(1)
        return caller

    def jump(self, by_s: float) -> None:
        self._offset_s += by_s

    def close(self) -> None:
        self.client.close()
        self.served.stop()


@pytest.fixture(params=["unix", "http"])
def at_daemon(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JumpingDaemon]:
    made = JumpingDaemon(tmp_path / "rota.db", request.param, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("by_s", [DAY, -DAY])
def test_a_claim_that_waits_at_a_daemon_waits_its_own_time(at_daemon: JumpingDaemon, by_s: float) -> None:
    began_at = SystemClock.monotonic()
    caller = at_daemon.claim(WAIT_S)
    at_daemon.jump(by_s)
    at_daemon.client.create_agent("agent", "callable")  # a transaction that sees the jump
    assert caller.outcome() == []
    assert SystemClock.monotonic() - began_at >= WAIT_S


@pytest.mark.parametrize("by_s", [DAY, -DAY])
def test_a_back_off_at_a_daemon_keeps_its_length(at_daemon: JumpingDaemon, by_s: float) -> None:
    client = at_daemon.client
    pid = client.create_agent("agent", "callable")
    backoff = Backoff(base_s=2 * WAIT_S, factor=1.0, cap_s=2 * WAIT_S)
    sched_id = client.enqueue(ScheduleSpec(pid, backoff=backoff))
    (run,) = client.claim("worker")
    began_at = SystemClock.monotonic()
    client.queue.complete(sched_id, "crashed", token=run.token)
    caller = at_daemon.claim(PATIENCE_S)
    at_daemon.jump(by_s)
    client.create_agent("another", "callable")
    assert [entry.sched_id for entry in caller.outcome()] == [sched_id]
    assert SystemClock.monotonic() - began_at >= WAIT_S - ROUNDED_S
