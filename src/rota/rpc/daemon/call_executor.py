"""Executing calls for the event loop, without blocking it.

The loop must not block, and a commit takes as long as the disk takes. Calls are executed in four ways:

- *Writes* are collected while the loop reads requests and then run as one group, which shares a commit. Passing a group
  to the writer thread and waking the loop again costs more than a commit on a fast disk. So while commits are fast, the
  loop runs small groups itself; requests that arrive meanwhile form the next group. After a slow commit, groups go to
  the writer thread for a while, longer each time; it wakes the loop once per commit. So a slow disk blocks the loop for
  one commit a second, and a single slow commit costs little.
- *Claims that wait* are posted to the writer and parked there. A waiting worker costs no thread, and the commit that
  makes an entry ready also claims it.
- *Reads* and calls that take several commits run on a few threads, the callers taking turns (`read_queue.py`). Reads
  that return many rows run one at a time, because each needs memory, and are encoded on their thread.
- *Dry runs* (explanations) hold the write lock. They run one at a time, and only while no write waits for the writer
  thread, so a write waits for one of them and not for all. At least one runs every `DRY_RUN_EVERY_S`.

Calls that wait for a change (the end of an entry, an event) wait in the loop (`pending_calls.py`).

Every call gets exactly one response. When its connection is lost, a call is withdrawn. If it was handed entries at that
moment, they return to the queue immediately instead of when their claims expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from rota.errors import Forbidden, LimitExceeded, RotaError, StoreError, Unauthenticated
from rota.kernel.settings import write_setting
from rota.kernel.turn import ClaimKind
from rota.model.work import ScheduleSpec
from rota.rpc.authorization import Principal, authorize
from rota.rpc.daemon.denials import Denials
from rota.rpc.daemon.ended_rights import EndedRights
from rota.rpc.daemon.pending_calls import ChangeWaiters, Origin, PendingCall
from rota.rpc.daemon.read_queue import ReadQueue
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import METHODS, Method
from rota.service.dispatcher import ANSWER_WAIT_S, NOTHING
from rota.store import JoinedStore
from rota.store.requests import PostedWrite, RequestState

__all__ = ["CallExecutor"]

READ_THREADS = 4
MULTI_COMMIT_THREADS = 2
DRY_RUN_EVERY_S = 0.25  # a dry run starts this often even if writes wait
PROBE_S = 30.0  # the store counts as writable for this long after a write, unless one fails
PROBE_BYTES = 16 * 1024  # that are written to try whether the store can be written
INLINE_ENTRIES_MAX = 64  # entries that a group run in the loop may touch
FAST_COMMIT_S = 0.02
SLOW_DISK_S = (0.05, 1.0)  # how long groups go to the writer thread after a slow commit; twice as long each time
NUDGES_MAX = 10_000  # workers whose nudges are remembered; the oldest is forgotten first
_log = logging.getLogger("rota.daemon")
_CLAIM = METHODS["kernel.sched.claim"]
_TURN = METHODS["kernel.run.turn"]


class CallExecutor:
    """Executes calls and delivers their results in the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: JoinedStore,
        handlers: RpcHandlers,
        limits: DaemonLimits | None = None,
    ) -> None:
        limits = limits or DaemonLimits()
        self._loop = loop
        self._store = store
        self._handlers = handlers
        self._group: list[PostedWrite[Any]] = []  # the next group of writes
        self._group_entries = 0  # entries that it may touch
        self._is_held = False  # `run_writes` will run it
        self._posted: list[PostedWrite[Any]] = []  # that the writer thread has, except those that may wait there
        self._inline_from = 0.0  # when the loop may run groups itself again
        self._slow_disk_s = SLOW_DISK_S[0]  # how long it does not after the next slow commit
        self._delivered: deque[tuple[Callable[..., None], Any]] = deque()  # calls that other threads left for the loop
        self._woken = False  # the loop is about to run them
        self._write_error: StoreError | None = None  # of the last write, if the store failed
        self._written_at = 0.0  # when a write last succeeded
        self._probe: asyncio.Future[None] | None = None  # a write that only tries whether the store can be written
        self._dry_run_at = 0.0  # when the last dry run was started
        self._dry_run_timer: asyncio.TimerHandle | None = None  # starts the next one, if nothing else does
        make = partial(ReadQueue, deliver=self._deliver, limit="reads_max", waiting_max=limits.reads_max)
        self.reads = make("read", READ_THREADS)
        self._pages = make("page", 1)
        self._steps = make("steps", MULTI_COMMIT_THREADS)
        self._dry_runs = make(
            "dry-run", 1, limit="explains_max", waiting_max=limits.explains_max, may_start=self._may_dry_run
        )
        self._denials = Denials(loop, limits, self._write_denial)
        self._waiters = ChangeWaiters(loop, handlers, self._run_wait_read, deliver=self._deliver, fail=self._fail)
        self.rights = EndedRights(loop, handlers.tokens, handlers.kernel.clock, deliver=self._deliver)
        self.pending_calls: set[PendingCall] = set()  # without a response so far
        self._nudged: dict[tuple[str, str], None] = {}  # workers whose next claim must not wait
        self.wakes = 0  # how often the loop was woken to take results
        self._unsubscribe = store.on_change(self._waiters.committed)

    # --- accepting calls -------------------------------------------------------------------------

    def submit(
        self,
        method: Method,
        params: Any,
        principal: Principal,
        origin: Origin,
        calls: set[PendingCall] | None = None,
    ) -> PendingCall:
        """Execute a call for its origin. The call is in `calls` until it has a response."""
        pending = PendingCall(method, params, principal, origin, self._finished)
        self.pending_calls.add(pending)
        if calls is not None:
            calls.add(pending)
            pending.calls = calls
        if principal.can_end and not self._has_rights(pending):
            return pending
        match method.execution:
            case "write":
                self._post(pending, partial(self._handlers.execute, method, params, principal))
            case "claim":
                self._claim(pending)
            case "park":
                self._park_until_granted(pending)
            case "read":
                self._run_read(self._pages if _is_page(method) else self.reads, pending)
            case "multi_commit":
                self._run_read(self._steps, pending)
            case "dry_run":
                self._run_read(self._dry_runs, pending)
            case "wait":
                self._waiters.wait(pending)
            case "inline" if method.name == "kernel.sched.nudge":
                self._if_authorized(pending, self._nudge)
            case "inline":
                self._run_inline(pending)
        return pending

    def _has_rights(self, pending: PendingCall) -> bool:
        """Check a token again that may have ended since it was authenticated; watch its caller while that waits."""
        try:
            if pending.principal.run is None:  # `execute` checks runs
                self._handlers.tokens.check(pending.principal)
        except RotaError as error:
            self._fail(pending, error)
            return False
        if pending.waits:
            pending.unwatch = self.rights.watch(pending.principal, partial(self._end, pending))
        return True

    def _end(self, pending: PendingCall, error: RotaError) -> None:
        """End a call that waits, because its caller's rights have ended; entries that it claimed go back."""
        pending.ended = error
        if pending.write is not None and pending.write.may_park:
            self._store.withdraw(pending.write)
        elif pending.write is None:
            pending.respond(None)

    def _if_authorized(self, pending: PendingCall, act: Callable[[PendingCall], None]) -> None:
        try:
            authorize(pending.principal, pending.method, pending.params)
        except RotaError as error:
            self._fail(pending, error)
        else:
            act(pending)

    def _run_inline(self, pending: PendingCall) -> None:
        try:
            pending.respond(self._handlers.execute(pending.method, pending.params, pending.principal))
        except RotaError as error:
            self._fail(pending, error)

    def _fail(self, pending: PendingCall, error: BaseException) -> None:
        if isinstance(error, Forbidden):
            self.record_denied(pending.principal, pending.method.name, error.message)
        elif isinstance(error, StoreError):
            self._write_error = error
        pending.respond(None, error)

    def follow(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this in the loop after commits; the returned function ends that."""
        return self._waiters.follow(call)

    def authenticate(self, token: str, peer: str) -> Principal:
        """Return the principal of an access token, or raise `Unauthenticated` and count that."""
        try:
            return self._handlers.tokens.authenticate(token, peer)
        except Unauthenticated as error:
            self.record_denied(Principal(name="unknown", scope="read", peer=peer), None, error.message)
            raise

    def record_denied(self, principal: Principal, method: str | None, reason: str) -> None:
        """Count a denied call, and record it with the next group of writes or a later one."""
        self._denials.add(principal, method, reason)

    def _write_denial(self, principal: Principal, method: str | None, reason: str, count: int) -> None:
        record = partial(self._handlers.record_denied, principal, method, reason, count)
        self._add_to_group(self._store.posted_write(record, partial(self._deliver, _ignore, None)))

    # --- whether the store can be written --------------------------------------------------------

    async def check_writable(self) -> None:
        """Raise the store's error if the last write failed, or if none was made lately and one that is made now fails.

        Health checks need no token, so however many there are, at most one write tries at a time.
        """
        if self._write_error is None and self._loop.time() - self._written_at < PROBE_S:
            return
        if self._probe is None:
            self._probe = self._loop.create_future()
            part = f"{self._handlers.kernel.clock.now()} {self._loop.time()} "
            value = part * (PROBE_BYTES // len(part))  # SQLite writes only the pages that change
            work = partial(self._handlers.kernel.store.write, lambda tx: write_setting(tx, "daemon_probe", value))
            write = self._store.posted_write(work, lambda: self._deliver(partial(self._probed, write), None))
            self._add_to_group(write)
        await asyncio.shield(self._probe)
        if self._write_error is not None:
            raise self._write_error

    def _probed(self, write: PostedWrite[Any], _pending: None) -> None:
        if isinstance(write.error, StoreError):
            self._write_error = write.error
        else:
            self._write_succeeded()
        if self._probe is not None:
            self._probe.set_result(None)
            self._probe = None

    def _write_succeeded(self) -> None:
        self._write_error = None
        self._written_at = self._loop.time()

    # --- writes ----------------------------------------------------------------------------------

    def _post(self, pending: PendingCall, function: Callable[[], Any]) -> None:
        pending.write = write = self._store.posted_write(function, partial(self._deliver, self._written, pending))
        self._add_to_group(write, _entry_count(pending.params))

    def _add_to_group(self, write: PostedWrite[Any], entries: int = 1) -> None:
        self._group.append(write)
        self._group_entries += entries
        if len(self._group) == 1 and not self._is_held:
            self._loop.call_soon(self._run_group)  # after the loop has read all requests that are there

    def hold_writes(self) -> None:
        """Do not run the next group before `run_writes`: a connection without others need not wait for them."""
        self._is_held = True

    def run_writes(self) -> None:
        """Run the next group now."""
        self._is_held = False
        self._run_group()

    def _run_group(self) -> None:
        if not self._group or self._awaits_thread():
            return  # they have run already, or will when the thread has delivered
        writes, self._group = self._group, []
        entries, self._group_entries = self._group_entries, 0
        try:
            if entries > INLINE_ENTRIES_MAX or not self._run_group_inline(writes):
                self._store.post(writes)
                self._posted += [write for write in writes if not write.may_park]
        except RotaError as error:  # the store is closed
            if self._probe is not None and not self._probe.done():
                self._probe.set_exception(error)
            for pending in [pending for pending in self.pending_calls if pending.write in writes]:
                pending.respond(None, error)

    def _awaits_thread(self) -> bool:
        """Whether the group is to wait for what the writer thread is doing, and then run in the loop.

        Otherwise, once a group had gone to the thread, every next one would find it busy: two threads would take turns
        for as long as the load lasts, at a third more CPU time.
        """
        self._posted = [write for write in self._posted if write.state is not RequestState.DONE]
        if not self._posted or self._group_entries > INLINE_ENTRIES_MAX:
            return False
        return self._loop.time() >= self._inline_from

    def _run_group_inline(self, writes: list[PostedWrite[Any]]) -> bool:
        """Run a group in the loop, if commits are fast and no other thread writes; return whether it ran."""
        began_at = self._loop.time()
        if began_at < self._inline_from:
            return False
        self._woken = True  # results that are delivered meanwhile are taken below
        try:
            ran = self._store.try_run(writes)
        finally:
            self._woken = False
        ended_at = self._loop.time()
        if ended_at - began_at > FAST_COMMIT_S:
            self._inline_from = ended_at + self._slow_disk_s
            self._slow_disk_s = min(2 * self._slow_disk_s, SLOW_DISK_S[1])
        else:
            self._slow_disk_s = max(self._slow_disk_s / 2, SLOW_DISK_S[0])
        if ran:
            self._written_at = ended_at  # unless a write says otherwise below
            self._write_error = None
        if self._delivered:
            self._run_delivered()
        return ran

    def _written(self, pending: PendingCall) -> None:
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        if write.error is not None:
            self._fail(pending, write.error)
        else:
            pending.respond(write.value)

    # --- claims ----------------------------------------------------------------------------------

    def _claim(self, pending: PendingCall) -> None:
        policy = pending.params.policy
        if not self._handlers.dispatcher.knows(policy):
            self._if_authorized(pending, self._load_policy)
        else:
            self._start_claim(pending)

    def _load_policy(self, pending: PendingCall) -> None:
        """Load a policy of another package, or the store's, before the claim: that may take long."""
        try:
            load = partial(self._handlers.dispatcher.load, pending.params.policy)
            self._steps.add(pending, load, self._policy_loaded)
        except LimitExceeded as error:
            self._fail(pending, error)

    def _policy_loaded(self, pending: PendingCall, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self._fail(pending, error)
        elif pending.origin is not None:  # else it was withdrawn or ended meanwhile
            self._start_claim(pending)

    def _start_claim(self, pending: PendingCall) -> None:
        if pending.params.wait_s <= 0 and not self._asks_process(pending.params):
            self._post(pending, partial(self._handlers.execute, pending.method, pending.params, pending.principal))
        elif _ended_runs(pending.params):
            without_wait = msgspec.structs.replace(pending.params, wait_s=0.0)
            function = partial(self._handlers.execute, pending.method, without_wait, pending.principal)
            pending.write = self._store.posted_write(function, partial(self._deliver, self._completed, pending))
            self._add_to_group(pending.write, _entry_count(without_wait))
        else:
            self._park(pending, pending.params)

    def _completed(self, pending: PendingCall) -> None:
        """The runs are completed, durably. If no entry was claimed, wait for one."""
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        result = write.value
        if result is None or result.entries or pending.gone or pending.ended is not None:
            self._written(pending)
            return
        pending.completed = result
        self._park(pending, pending.params)

    def _park(self, pending: PendingCall, claim: Any) -> None:
        worker = claim.worker_id, claim.incarnation
        waits = claim.wait_s > 0  # otherwise only for the answer of a policy's process
        if waits and worker in self._nudged:  # the nudge came before the claim began to wait
            self._nudged.pop(worker)
            self._respond_with(pending, [])
            return
        pending.write = self._store.posted_write(
            partial(self._try_claim, pending.method, claim, pending.principal),
            partial(self._deliver, self._claimed, pending),
            may_park=True,
            equivalence_key=(claim.policy, pending.method is _TURN, _claim_kind(claim)) if waits else None,
        )
        wait_s = claim.wait_s if waits else ANSWER_WAIT_S
        pending.timer = self._loop.call_later(wait_s, self._store.withdraw, pending.write)
        self._add_to_group(pending.write)

    def _park_until_granted(self, pending: PendingCall) -> None:
        """Execute a write that waits until its result is granted; when its time is over, the result says so."""
        wait_s = pending.params.wait_s
        once = msgspec.structs.replace(pending.params, wait_s=0.0)
        execute = partial(self._handlers.execute, pending.method, once, pending.principal)
        if wait_s <= 0:
            self._post(pending, execute)
            return
        pending.write = self._store.posted_write(
            partial(_granted, execute), partial(self._deliver, self._waited, pending), may_park=True
        )
        pending.timer = self._loop.call_later(wait_s, self._store.withdraw, pending.write)
        self._add_to_group(pending.write)

    def _waited(self, pending: PendingCall) -> None:
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        if write.error is not None or write.value is not None or pending.gone or pending.ended is not None:
            self._written(pending)
            return
        once = msgspec.structs.replace(pending.params, wait_s=0.0)
        self._post(pending, partial(self._handlers.execute, pending.method, once, pending.principal))

    def _try_claim(self, method: Method, claim: Any, principal: Principal) -> Any:
        """Return the claimed entries; an empty list keeps the posted write parked."""
        entries = self._claim_now(method, claim, principal)
        dispatcher = self._handlers.dispatcher
        if entries or claim.wait_s > 0 or dispatcher.is_asking(claim.policy, _claim_kind(claim)):
            return entries
        return NOTHING

    def _claim_now(self, method: Method, claim: Any, principal: Principal) -> Any:
        if method is _TURN:  # its reports are already written
            without_reports = msgspec.structs.replace(claim, reports=[], wait_s=0.0)
            return self._handlers.execute(method, without_reports, principal).entries
        plain = _CLAIM.params(**{name: getattr(claim, name) for name in _CLAIM.params.__struct_fields__})
        return self._handlers.execute(_CLAIM, plain, principal).entries

    def _nudge(self, pending: PendingCall) -> None:
        """Make a worker's waiting claim return; if none waits, its next claim does not wait."""
        worker = pending.params.worker_id, pending.params.incarnation
        found = [each for each in self.pending_calls if each.is_parked and _worker_of(each.params) == worker]
        for each in found:
            assert each.write is not None  # noqa: S101  # it is parked
            self._store.withdraw(each.write)
        if not found:
            if len(self._nudged) >= NUDGES_MAX:
                self._nudged.pop(next(iter(self._nudged)))
            self._nudged[worker] = None
        pending.respond(pending.method.codec.pack(pending.params, None))

    def _claimed(self, pending: PendingCall) -> None:
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        if write.error is not None:
            self._fail(pending, write.error)
            return
        self._respond_with(pending, [] if write.value is NOTHING else write.value or [])

    def _asks_process(self, claim: Any) -> bool:
        """Whether a claim has to wait for the answer of a policy's process."""
        return claim.max_n > 0 and self._handlers.dispatcher.asks_process(claim.policy)

    def _respond_with(self, pending: PendingCall, entries: list[Any]) -> None:
        result = pending.method.codec.result
        outcomes = [] if pending.completed is None else pending.completed.answers
        pending.respond(result(entries) if pending.method is _CLAIM else result(outcomes, entries))

    def withdraw(self, pending: PendingCall) -> None:
        """Give up a call whose connection is lost, if it has not run yet."""
        pending.gone = True
        pending.stop_waiting()
        if pending.write is not None and pending.write.may_park:
            self._store.withdraw(pending.write)
        elif pending.write is None:
            pending.respond(None)

    def _finished(self, pending: PendingCall, result: Any) -> None:
        """Forget a call. If its client is gone or has lost its rights, return the entries it claimed to the queue."""
        self.pending_calls.discard(pending)
        if not pending.gone and pending.ended is None:
            return
        for entry in getattr(result, "entries", None) or ():
            if pending.method.execution == "claim" and entry.token is not None:
                put_back = partial(self._handlers.kernel.queue.put_back, entry.sched_id, token=entry.token)
                self._add_to_group(self._store.posted_write(put_back, partial(self._deliver, _ignore, None)))

    # --- reads, dry runs, and calls that take several commits ------------------------------------

    def _run_read(self, queue: ReadQueue, pending: PendingCall) -> None:
        try:
            queue.add(pending, partial(self._execute, pending, pending.params, encode=True), self._ran)
        except LimitExceeded as error:
            self._fail(pending, error)

    def _run_wait_read(
        self, pending: PendingCall, params: Any, done: Callable[[PendingCall, Future[Any]], None], *, encode: bool
    ) -> None:
        queue = self._pages if _is_page(pending.method) else self.reads
        try:
            queue.add(pending, partial(self._execute, pending, params, encode=encode), done)
        except LimitExceeded as error:
            self._fail(pending, error)

    def _execute(self, pending: PendingCall, params: Any, *, encode: bool) -> Any:
        """On a thread: execute a call, and encode its result, so that the loop need not and the rows can be freed."""
        result = self._handlers.execute(pending.method, params, pending.principal)
        origin = pending.origin
        return origin.encode(result) if encode and origin is not None else result

    def _ran(self, pending: PendingCall, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self._fail(pending, error)
        else:
            pending.respond(future.result())

    def _may_dry_run(self) -> bool:
        now = self._loop.time()
        wait_s = self._dry_run_at + DRY_RUN_EVERY_S - now
        if self._store.has_queued and wait_s > 0:
            if self._dry_run_timer is None:  # the write may be one whose result is ignored
                self._dry_run_timer = self._loop.call_later(wait_s, self._resume_dry_runs)
            return False
        self._dry_run_at = now
        return True

    def _resume_dry_runs(self) -> None:
        self._dry_run_timer = None
        self._dry_runs.start_waiting()

    def resume_reads(self) -> None:
        """Start reads that waited until their client reads its responses."""
        for queue in (self.reads, self._pages, self._steps, self._dry_runs):
            queue.start_waiting()

    # --- delivery into the loop ------------------------------------------------------------------

    def _deliver(self, call: Callable[..., None], pending: PendingCall | None, *more: Any) -> None:
        """From any thread: run `call` in the loop, which is woken once for all calls delivered by then."""
        self._delivered.append((call, (pending, *more)))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take_delivered)
            except RuntimeError:  # the loop has ended: no client is left
                _log.debug("a result arrived after the event loop had ended")

    def _take_delivered(self) -> None:
        self._store.wait_delivered()  # so that all results of a commit are taken together
        self._woken = False
        self._run_delivered()
        if self._group:  # it may have waited for this
            self._loop.call_soon(self._run_group)

    def _run_delivered(self) -> None:
        self.wakes += 1
        while self._delivered:
            call, args = self._delivered.popleft()
            call(*args)
        if self._dry_runs.has_waiting:
            self._dry_runs.start_waiting()

    # --- stopping --------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """Make every waiting call return what it has."""
        for pending in list(self.pending_calls):
            if pending.timer is not None:
                pending.timer.cancel()
                pending.timer = None
                if pending.write is not None and pending.write.may_park:
                    self._store.withdraw(pending.write)
                elif pending.method.execution == "wait":
                    self._waiters.check(pending, last=True)

    def record_rest(self) -> None:
        """Record the denied calls that were only counted so far, now."""
        self._denials.close(self._handlers.record_denied)

    def close(self) -> None:
        """Stop the threads."""
        self._unsubscribe()
        for queue in (self.reads, self._pages, self._steps, self._dry_runs):
            queue.close()


def _claim_kind(claim: Any) -> ClaimKind:
    """What claims that find the same entries have in common, beside their policy."""
    return tuple(sorted(set(claim.kinds))), claim.admission_check, tuple(sorted(set(claim.except_agents)))


def _ended_runs(params: Any) -> Any:
    """Return the runs that a claim completes, which must be durable before it waits."""
    return getattr(params, "completions", None) or getattr(params, "reports", None)


def _is_page(method: Method) -> bool:
    """Return whether the method returns many rows with their contents."""
    return "limit" in method.params.__struct_fields__


def _worker_of(params: Any) -> tuple[str, str] | None:
    """Return the worker of a claim; None for other calls."""
    return (params.worker_id, params.incarnation) if hasattr(params, "worker_id") else None


def _granted(execute: Callable[[], Any]) -> Any:
    """Return the result if it is granted; None keeps the posted write parked."""
    result = execute()
    return None if result.granted_at is None else result


def _entry_count(params: Any) -> int:
    """Return how many entries a call may touch."""
    if type(params) is ScheduleSpec:  # the usual case
        return 1
    many = getattr(params, "specs", None) or _ended_runs(params) or ()
    return max(len(many), getattr(params, "max_n", 1))


def _ignore(_pending: None) -> None:
    """Ignore the result of a posted write."""
