"""A run in progress, as its supervisor sees it. It implements the runner's `RunChannel`.

Everything a run reports is committed before the call returns, under the token of its claim. A run that has lost its
claim can change nothing any more; it is stopped (`fenced`) as soon as the supervisor notices. While the store cannot be
reached, a call waits (service/outages.py), and the work goes on as far as it does not need the store.

The stop reason decides what becomes of the entry:

    reason        exit kind of the run                   outcome       the entry
    cancelled     cancelled                              cancelled     ends
    timed_out     failed                                 timed_out     is retried according to its spec
    over_budget   failed                                 over_budget   ends: the next attempt would exceed it again;
                                                                       queued, if its graph node waits for its budget
    preempted     none: the entry is requeued            –             queued; no attempt counted
    draining      none: the entry is requeued            –             queued; no attempt counted
    fenced        none: another worker has the claim     –             unchanged

A run that completes although it was asked to stop counts as completed. Whatever result there is is kept in every case;
unless the run completed, the last checkpoint is added as `partial`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from rota.clock import wait_until
from rota.errors import RotaError, StaleClaim, StoreUnavailable, WaitTimeout
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.progress import ProgressReports
from rota.fleet.run_budgets import left_in_graph, remaining_budget, waits_over_budget
from rota.fleet.run_logs import BoundedLog
from rota.fleet.runners.contract import Assignment, RunOutcome, StopHandle
from rota.fleet.stop_escalation import StopEscalation
from rota.host.watchdog import Watchdog
from rota.kernel.run_reports import INVALID_REPORT, RunReport
from rota.model.checks import NOTE_CHARS_MAX, SECONDS_MAX
from rota.model.graph_budgets import GraphAccount
from rota.model.prices import ModelPrice, priced
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.outages import call_through_outage, new_charge_key
from rota.store.author import acting_as

__all__ = ["LiveRun", "SlotHold"]

T = TypeVar("T")
REQUEUE = {"preempted": "preempt", "draining": "yield"}  # stop reasons after which the entry is queued again
FAILED = frozenset({"timed_out", "over_budget"})
LOG_TAIL_BYTES = 4_096  # of the output, in a result
WAIT_SLICE_S = 1.0  # one wait for a child; then check whether the run was asked to stop
_log = logging.getLogger("rota.fleet")


class SlotHold(Protocol):
    """A run's hold on its slot, which it may give up while it waits."""

    def release(self) -> None:
        """Let other runs use the slot."""
        ...

    def reacquire(self) -> None:
        """Wait for a free slot and take it."""
        ...


class LiveRun:
    """One run, from its claim to its report."""

    def __init__(
        self, api: SchedulerApi, assignment: Assignment, watchdog: Watchdog, log: BoundedLog, slot_hold: SlotHold
    ) -> None:
        self.assignment = assignment
        self.escalation = StopEscalation(watchdog, assignment.settings.stop_grace_s)
        self.started_at = api.clock.monotonic()
        self.os_pid: int | None = None
        self._api = api
        self._watchdog = watchdog
        self._log = log
        self._slot_hold = slot_hold
        self._lock = threading.Lock()  # guards _spent, _asks, _ceiling and _spawned
        self._spent: dict[str, int] = {}
        self._prices: Mapping[str, ModelPrice] | None = None  # of models, once they were needed
        self._advised: set[str] = set()
        self._asks = 0  # of limits, so far
        self._spawned = 0  # children, for their keys
        self._saved = assignment.checkpoint
        self._account = assignment.entry.account  # of a graph: where its charges count
        self._ceiling = assignment.entry.ceiling  # lower while a part of it is lent to a child
        self._waits_for_budget = False  # of its graph run: the entry goes back to the queue until it is raised
        self._stopping = threading.Condition()
        self._progress = ProgressReports(api.clock, watchdog, self._record_progress)
        wall_s = assignment.settings.limits.wall_s
        self._wall_timer = None if wall_s is None else watchdog.watch(wall_s, self._time_out)

    @property
    def entry(self) -> ReadyEntry:
        """The claimed entry."""
        return self.assignment.entry

    @property
    def token(self) -> int:
        """The token of the run's claim."""
        token = self.assignment.entry.token
        assert token is not None  # noqa: S101  # it was claimed
        return token

    # --- for the supervisor ------------------------------------------------------------------------

    def stop(self, reason: str, grace_s: float | None = None) -> bool:
        """Begin to stop the run; False if it is already being stopped or has ended."""
        has_begun = self.escalation.stop(reason, grace_s)
        self._wake_for_stop()
        return has_begun

    def stop_over_budget(self, level: str) -> None:
        """Stop the run because it has used more than it may, of its own budget or of its graph run's."""
        account = self._account
        waits = level == "graph" and account is not None and self._call(lambda: waits_over_budget(self._api, account))
        self._waits_for_budget = (waits and self.stop_reason is None) or self._waits_for_budget
        self.stop("over_budget")

    def _time_out(self) -> None:
        self.stop("timed_out")

    def kill(self, reason: str) -> None:
        """Kill the run now."""
        self.escalation.kill(reason)
        self._wake_for_stop()

    def _wake_for_stop(self) -> None:
        with self._stopping:
            self._stopping.notify_all()

    def report(self, outcome: RunOutcome) -> RunReport | None:
        """Return the report to commit when the run has ended; None if another worker has the claim."""
        self.escalation.end()
        self._progress.close()
        if self._wall_timer is not None:
            self._watchdog.cancel(self._wall_timer)
        wall_ms = round((self._api.clock.monotonic() - self.started_at) * 1000)
        usage = self._final_usage(outcome)
        self._log.close()  # this may wait a little for the daemon
        reason = self.escalation.reason
        if reason == "fenced":
            return None
        outcome = _with_valid_delay(outcome)
        if reason is None or outcome.exit_kind == "completed":
            ended = self._own_end(outcome)
        elif self._waits_for_budget and reason == "over_budget":
            ended = {"stopped_by": self.escalation.stopped_by, "back": "yield"}
        else:
            ended = {"stopped_by": self.escalation.stopped_by, **_forced_end(reason)}
        return RunReport(
            sched_id=self.entry.sched_id,
            token=self.token,
            result=self._result(outcome),
            usage=usage,
            model=outcome.model,
            wall_ms=wall_ms,
            cpu_ms=outcome.cpu_ms,
            node=outcome.node,
            slot=self.assignment.slot if self.os_pid is None else None,  # else it was said when the process started
            **ended,
        )

    def _final_usage(self, outcome: RunOutcome) -> dict[str, int]:
        """What the run has used in addition to its charges, with its cost."""
        try:
            return self._priced(outcome.usage, outcome.model)
        except RotaError as problem:  # of the store: the report itself waits for it
            self.log(f"rota: the cost of {outcome.model} was not computed: {problem.message}\n".encode())
            return outcome.usage

    def _result(self, outcome: RunOutcome) -> Any:
        """The run's result; unless it completed, with its last checkpoint."""
        result = outcome.result
        if self._advised and self.assignment.settings.runner == "command" and isinstance(result, dict):
            result = {**result, "advisories": [*result.get("advisories", ()), *sorted(self._advised)]}
        if outcome.exit_kind == "completed" or self._saved is None:
            return result
        return {**(result if isinstance(result, dict) else {"result": result}), "partial": self._saved}

    def _own_end(self, outcome: RunOutcome) -> dict[str, Any]:
        if outcome.yield_after_s is not None or outcome.awaits:
            return {"back": "yield", "back_after_s": outcome.yield_after_s, "awaits": outcome.awaits}
        return {"exit_kind": outcome.exit_kind, "outcome": outcome.outcome}

    # --- the run channel -------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        return self.escalation.reason

    def started(
        self,
        stop_handle: StopHandle,
        *,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
    ) -> None:
        """The work has started and `stop_handle` can stop it."""
        for advisory in advisories:
            self.log(f"rota: {advisory}\n".encode())
        self.os_pid = os_pid
        if os_pid is not None or advisories or enforced:
            try:
                self._call(partial(self._record_start, advisories, enforced))
            except StoreUnavailable as problem:  # only the record is missing: the work has started
                _log.warning("cannot record the start of entry %s: %s", self.entry.sched_id, problem)
        self.escalation.start(stop_handle)

    def preparing(self, stop_handle: StopHandle | None) -> None:
        """A command that prepares the work has started; None: it has ended, and the work has not started."""
        self.escalation.forget_handle() if stop_handle is None else self.escalation.start(stop_handle)

    def placed(
        self, node: str, *, os_pid: int | None, advisories: Sequence[str] = (), enforced: Sequence[str] = ()
    ) -> None:
        """The work runs on a node of a cluster."""
        for advisory in advisories:
            self.log(f"rota: {advisory}\n".encode())
        self.os_pid = os_pid
        try:
            self._call(partial(self._record_start, advisories, enforced, node))
        except RotaError as problem:  # only the record is missing
            _log.warning("cannot record where entry %s runs: %s", self.entry.sched_id, problem)

    def _record_start(self, advisories: Sequence[str], enforced: Sequence[str], node: str | None = None) -> None:
        self._api.supervision.began(
            self.entry.sched_id,
            self.token,
            slot=self.assignment.slot,
            runner=self.assignment.settings.runner,
            os_pid=self.os_pid,
            advisories=_notes(advisories),
            enforced=_notes(enforced),
            node=node,
        )

    def settings_changed(self, *, advisories: Sequence[str], enforced: Sequence[str]) -> None:
        """The `cpu` settings of the run, or what is enforced of them, have changed."""
        for advisory in advisories:
            self.log(f"rota: {advisory}\n".encode())
        changed = self._api.supervision.settings_changed
        try:  # not through an outage: this thread follows the journal
            changed(self.entry.sched_id, self.token, advisories=_notes(advisories), enforced=_notes(enforced))
        except RotaError as problem:  # only the record is missing
            _log.warning("cannot record the changed cpu settings of entry %s: %s", self.entry.sched_id, problem)

    def log(self, data: bytes) -> None:
        """Append output to the log."""
        self._log.write(data)

    def log_tail(self) -> str:
        """Return the end of the log."""
        return self._log.tail(LOG_TAIL_BYTES)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        self._progress.report(fraction, text)

    def _record_progress(self, fraction: float, text: str) -> None:
        self._api.supervision.progress(self.entry.sched_id, self.token, fraction, text)

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed; return whether it should stop."""
        with self._stopping:
            return wait_until(self._api.clock, self._stopping, lambda: self.stop_reason is not None, timeout_s)

    def charge(
        self, amounts: Mapping[str, int], model: str | None = None, *, node: str | None = None
    ) -> dict[str, int]:
        """Record usage and return what is left. Stop the run if it exceeds a budget that ends it.

        Those are its ceiling, its agent's grant and, unless it coordinates it, the budgets of its graph run. A
        coordinator names the `node` that has used it.
        """
        amounts = self._priced(amounts, model)
        over_limit = self._charge(amounts, model, node)
        if self._note_spent(amounts) or over_limit:
            self.stop("over_budget")
        left = self.remaining(node)
        self._stop_over_graph_budget(left)
        return left

    def coordinates(self, run_id: str) -> None:
        """The run coordinates this graph run: what it charges counts there from now on."""
        if self._account is not None:
            self._account = GraphAccount(run_id).inside(self._account.around)

    def _stop_over_graph_budget(self, left: Mapping[str, int]) -> None:
        """Stop a run of a graph's node that is over the budget of the node or of the graph run.

        A coordinator decides what happens then, unless its run is a node of another run that waits for its budget.
        """
        account = self._account
        if account is not None and not account.node and account.held_by:
            left = self._call(lambda: left_in_graph(self._api, account.held_by))
        elif account is None or not account.node:
            return
        if any(amount < 0 for amount in left.values()):
            self.stop_over_budget("graph")

    def _priced(self, amounts: Mapping[str, int], model: str | None) -> dict[str, int]:
        """Return usage with its cost, if it is of a model with a price; what is missing is said once in the log."""
        prices: Mapping[str, ModelPrice] = {}
        if model is not None:
            with self._lock:
                known = self._prices
            prices = self._call(self._api.usage.prices) if known is None else known
            with self._lock:
                self._prices = prices
        found = priced(amounts, model, prices)
        if found.advisory is not None and found.advisory not in self._advised:
            self._advised.add(found.advisory)
            self.log(f"rota: {found.advisory}\n".encode())
        return found.amounts

    def _charge(self, amounts: Mapping[str, int], model: str | None, node: str | None) -> bool:
        """Charge exactly once, also if a response is lost; returns whether a limit of the agent is exceeded."""
        charge = partial(self._api.queue.charge, token=self.token, model=model, node=node, key=new_charge_key())
        lines = self._call(lambda: charge(self.entry.sched_id, amounts), repeats=True)
        return any(line.over_limit for line in lines.values())

    def remaining(self, node: str | None = None) -> dict[str, int]:
        """Return what is left of the run's ceiling, its agent's grants and its graph's budgets, per dimension."""
        account = self._account
        if account is not None and node and not account.node:
            account = msgspec.structs.replace(account, node=node)
        return self._call(lambda: remaining_budget(self._api, self.entry.pid, self._left_of_ceiling(), account))

    def _left_of_ceiling(self) -> dict[str, int]:
        with self._lock:
            return {dim: limit - self._spent.get(dim, 0) for dim, limit in self._ceiling.items()}

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state of the work for the next attempt."""
        saved = dict(state)
        self._call(lambda: self._api.supervision.checkpoint(self.entry.sched_id, self.token, saved))
        self._saved = saved

    def emit(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Append an event about this run's agent to the journal; return its id."""
        body = dict(payload)
        with acting_as(f"run:{self.entry.sched_id}"):
            return self._call(lambda: self._api.journal.append(self.entry.pid, kind, body))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit, or every limit that this run draws on, for all agents that draw on it."""
        throttle = self._api.supervision.throttle
        self._call(lambda: throttle(self.entry.sched_id, self.token, retry_after_s, name))

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts; return the key to settle them with. A stop request ends the wait."""
        with self._lock:
            self._asks += 1
            key = str(self._asks)
        give_up_at = None if wait_s is None else self._api.clock.monotonic() + wait_s
        ask = partial(self._api.supervision.acquire, self.entry.sched_id, self.token, name, amounts, key=key)
        while True:
            left_s = WAIT_SLICE_S if give_up_at is None else give_up_at - self._api.clock.monotonic()
            if self._call(partial(ask, wait_s=max(0.0, min(left_s, WAIT_SLICE_S)))).granted_at is not None:
                return key
            is_over = give_up_at is not None and left_s <= WAIT_SLICE_S
            if is_over or self.stop_reason is not None:
                self.settle(key, dict.fromkeys(amounts, 0))  # give up the place
                why = f"within {wait_s:g} s" if is_over else f"before the run was asked to stop ({self.stop_reason})"
                raise WaitTimeout(f"the limit {name} did not have what was asked {why}", sched_id=self.entry.sched_id)

    def settle(self, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None) -> dict[str, int]:
        """Say what was used of what was acquired; return what is left, like `charge`."""
        settle = self._api.supervision.settle
        settled = self._call(lambda: settle(self.entry.sched_id, self.token, key, used, node=node))
        self._note_spent(settled.charged)
        left = self._call(lambda: remaining_budget(self._api, self.entry.pid, self._left_of_ceiling()))
        if any(amount < 0 for amount in left.values()):
            self.stop("over_budget")
        if self._account is not None:
            left = self.remaining(node)
            self._stop_over_graph_budget(left)
        return left

    def _note_spent(self, amounts: Mapping[str, int]) -> bool:
        """Add what was charged; return whether the run has spent more than its ceiling."""
        with self._lock:
            for dim, amount in amounts.items():
                self._spent[dim] = self._spent.get(dim, 0) + amount
            return any(self._spent.get(dim, 0) > limit for dim, limit in self._ceiling.items())

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **options: Any) -> int:
        """Enqueue a child with a part of this run's budget and at least its priority; return its sched_id."""
        find = self._api.supervision.agent_to_spawn
        child = self._call(lambda: find(self.entry.sched_id, self.token, agent))
        options.setdefault("priority", max(child.priority, self.entry.priority))
        options.setdefault("correlation_id", self.entry.correlation_id)
        with self._lock:
            self._spawned += 1
            key = f"~run-{self.entry.sched_id}-{self.token}-{self._spawned}"
        options.setdefault("key", key)  # so that a call whose response was lost can be repeated
        spec = spec_for(child, settings_of(child), payload, parent_id=self.entry.sched_id, **options)
        sched_id = self._call(lambda: self._api.supervision.spawn(spec, self.token, lent), repeats=True)
        if lent:
            self._refresh_ceiling()
        return sched_id

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended. The slot is released during the wait."""
        self._set_waiting(waiting=True, awaits=sched_ids)
        self._slot_hold.release()
        try:
            return [self._wait_for(sched_id, wait_s) for sched_id in sched_ids]
        finally:
            self._slot_hold.reacquire()
            if self._set_waiting(waiting=False):
                self._refresh_ceiling()

    def _set_waiting(self, *, waiting: bool, awaits: Sequence[int] = ()) -> dict[str, int]:
        rest = self._api.supervision.rest
        return self._call(lambda: rest(self.entry.sched_id, self.token, waiting=waiting, awaits=list(awaits)))

    def _refresh_ceiling(self) -> None:
        ceiling = self._call(lambda: self._api.queue.get(self.entry.sched_id)).ceiling
        with self._lock:
            self._ceiling = ceiling

    def _wait_for(self, sched_id: int, wait_s: float | None) -> ReadyEntry:
        give_up_at = None if wait_s is None else self._api.clock.monotonic() + wait_s
        while True:
            left_s = WAIT_SLICE_S if give_up_at is None else give_up_at - self._api.clock.monotonic()
            try:
                return self._call(partial(self._api.queue.wait, sched_id, max(0.0, min(left_s, WAIT_SLICE_S))))
            except TimeoutError:
                if self.stop_reason is not None or (give_up_at is not None and left_s <= WAIT_SLICE_S):
                    raise

    def _call(self, call: Callable[[], T], *, repeats: bool = False) -> T:
        """Make a call, waiting while the store cannot be reached; stop the run if its claim was lost."""
        try:
            return call_through_outage(self._api.clock, call, lambda: self.stop_reason is not None, repeats=repeats)
        except StaleClaim:
            self.stop("fenced")
            raise


def _notes(texts: Sequence[str]) -> list[str]:
    return [each[:NOTE_CHARS_MAX] for each in texts]


def _with_valid_delay(outcome: RunOutcome) -> RunOutcome:
    """Return the outcome; a run that returns to the queue after a delay that is no duration has failed."""
    delay: Any = outcome.yield_after_s  # of a worker process: whatever the function passed
    if delay is None or (isinstance(delay, int | float) and 0 <= delay <= SECONDS_MAX):  # false for NaN
        return outcome
    error = f"the run gave up its slot for {delay!r} seconds; that must be a number from 0 to {SECONDS_MAX:,.0f}"
    return RunOutcome(exit_kind="failed", outcome=INVALID_REPORT, result={"error": error}, usage=outcome.usage)


def _forced_end(reason: str) -> dict[str, Any]:
    if reason in REQUEUE:
        return {"back": REQUEUE[reason]}
    if reason in FAILED:
        return {"exit_kind": "failed", "outcome": reason}
    return {"exit_kind": "cancelled", "outcome": reason}
