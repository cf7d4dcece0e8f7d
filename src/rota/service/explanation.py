"""Explain why an entry is not running, by a dry run of the claim that would start it.

There are two kinds of reasons. *Blocking* reasons come from the check of the claim itself; all of them are listed, not
only the first. *Ordering* reasons come from making the claim: the same worker, number of entries, policy and flow state
(a copy of it), in a transaction that is rolled back (see kernel/dry_run.py). The entries that this claim takes run
first. If the entry is not among them, one more claim of `LOOK_MAX` entries is made after it, and the place of the entry
there is its position.

    no reason at all      ⇔  that claim, made now, returns the entry
    no blocking reason    ⇔  force_claim, made now, succeeds

Both hold because nothing is modelled: the code that explains is the code that claims. What a later claim will do, when
other entries have been claimed, is unknown; so an estimate says what it is based on. Whether a worker is there that
would make such a claim is an outlook besides the reasons (worker_outlook.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import msgspec

from rota.clock import local_time
from rota.errors import SchedInvalidPayload
from rota.kernel import affinity
from rota.kernel.claim_pass import ClaimPass, PendingClaim
from rota.kernel.dry_run import DryRun
from rota.kernel.flows import ServedFlows
from rota.kernel.graph_places import graph_node_of
from rota.kernel.lookups import find_agent
from rota.kernel.rows import (
    DISPATCHED_AT,
    KIND,
    PID,
    PRIORITY,
    PROJECT,
    RUNNABLE_AT,
    STATE,
    entry_from_row,
    state_and_hold,
)
from rota.kernel.turn import TurnRequest, make_turn_request
from rota.model import reasons
from rota.model.checks import Checks
from rota.model.explanation import EntryAhead, Explanation, StartEstimate, Suggestion
from rota.model.lifecycle import EntryState
from rota.model.reasons import BlockingBase, BlockingReason, OrderingReason, WorkerReason
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.policy.contract import Policy
from rota.service.candidate_windows import WINDOW_MAX
from rota.service.dispatcher import Dispatcher
from rota.service.entry_history import read_history
from rota.service.isolated_pass import asks_process
from rota.service.policy_guard import Answer, AnswerNeeded
from rota.service.policy_in_force import PolicyChoice, find_policy
from rota.service.suggestions import suggestions_for
from rota.service.worker_outlook import WorkerOutlook, start_command
from rota.store import Row

__all__ = ["LOOK_MAX", "NAMED_MAX", "RECENT_MAX", "estimate", "explain"]

LOOK_MAX = 500  # entries after the claim itself that are examined for a position
ASKED_LOOK_MAX = 100  # the same under a policy in another process, whose every answer takes another dry run
NAMED_MAX = 5  # entries ahead that are listed
RECENT_MAX = 1_000  # events that the recent claim rate is computed from
_EPOCH_S = re.compile(r"\bat (\d+\.\d+)")  # in the words of a policy
_NONE_SERVED = ServedFlows()
_HELD_FOR_WORKER = (EntryState.QUEUED, "worker")
_checks = Checks("Queue", SchedInvalidPayload)


def explain(
    dispatcher: Dispatcher,
    sched_id: int,
    *,
    worker_id: str = "any-worker",
    max_n: int = 1,
    policy: Policy | str | None = None,
    kinds: Sequence[str] = (),
    now: float | None = None,
    policy_from_store: bool = False,
) -> Explanation:
    """Explain why an entry is not running, by what a claim of this worker would do now.

    The default policy is that of the dispatcher. With `policy_from_store`, for callers that do not claim with this
    dispatcher, it is the policy in force on the store.
    """
    _checks.whole("sched_id", sched_id)
    request = make_turn_request(worker_id=worker_id, max_n=max_n, kinds=kinds, now=now)
    choice = _choose_policy(dispatcher, policy, policy_from_store)
    row, explanation = _by_dry_run(dispatcher, lambda dry_run: dry_run.row(sched_id), request, choice, now=now)
    if explanation.state == EntryState.QUEUED:
        expired_at = dispatcher.kernel.queue.get(sched_id).claim_expires_at  # as it is, before a claim takes it back
        explanation = msgspec.structs.replace(explanation, claim_expired_at=expired_at)
    return _with_history(dispatcher, row, explanation)


def estimate(dispatcher: Dispatcher, spec: ScheduleSpec, *, policy_from_store: bool = False) -> Explanation:
    """Explain what would happen to an entry if it were enqueued now: it is enqueued in the dry run itself.

    The claim is that of a worker with a slot of the entry's kind. The entry is a new one, whatever its key. No entry
    exists afterwards, so `sched_id` is 0, and the changes are those that do not name it.
    """
    spec = msgspec.structs.replace(spec, key=None)
    request = make_turn_request(worker_id="any-worker", max_n=1, kinds=() if spec.kind is None else (spec.kind,))
    choice = _choose_policy(dispatcher, None, policy_from_store)
    _, found = _by_dry_run(dispatcher, lambda dry_run: dry_run.row(dry_run.enqueue(spec)), request, choice)
    changes = tuple(change for change in found.changes if "sched_id" not in change.arguments)
    return msgspec.structs.replace(found, sched_id=0, changes=changes)


def _by_dry_run(
    dispatcher: Dispatcher,
    find: Callable[[DryRun], Row],
    request: TurnRequest,
    choice: PolicyChoice,
    *,
    now: float | None = None,
) -> tuple[Row, Explanation]:
    """Return an entry that is found or made in a dry run, and the explanation of it."""
    answers: list[Answer] = []

    def work(dry_run: DryRun) -> tuple[Row, Explanation]:
        if dry_run.due.affinity_until is not None:
            affinity.release_for_claim(dry_run.tx, dry_run.env, request, dry_run.clock_now)
        row = find(dry_run)
        claim = ClaimPass(dry_run.tx, dry_run.env, request, dry_run.clock_now, dry_run.due)
        claim.lift_holds()
        row = dry_run.row(row[0])  # lifting a hold changes it
        return row, _explain(partial(dispatcher.copy, choice.policy, answers), dry_run, row, claim, choice)

    while True:
        try:
            return dispatcher.kernel.dry_run(work, now=now)
        except AnswerNeeded as needed:  # of a policy in another process: not asked while writers wait
            answers.append(needed.ask())


def _with_history(dispatcher: Dispatcher, row: Row, explanation: Explanation) -> Explanation:
    """Add the history up to the same event. It is past, so a read transaction is enough and blocks no writer."""
    history = dispatcher.kernel.store.read(lambda tx: read_history(tx, row, explanation.cursor))
    return msgspec.structs.replace(explanation, story=history.steps, story_is_whole=history.is_complete)


def _choose_policy(dispatcher: Dispatcher, policy: Policy | str | None, policy_from_store: bool) -> PolicyChoice:
    """Choose the policy before the dry run: to load one of another package may take long."""
    if policy is not None:
        return PolicyChoice(dispatcher.resolve_policy(policy), "named in the request")
    if policy_from_store:
        return find_policy(dispatcher)
    dispatcher.load_stored(again=True)
    return PolicyChoice(dispatcher.policy, "the policy of this dispatcher")


def _explain(
    copy: Callable[[], Dispatcher], dry_run: DryRun, row: Row, claim: ClaimPass, choice: PolicyChoice
) -> Explanation:
    request, blocking = claim.request, _blocking(dry_run, claim, row)
    claim.restore_holds()
    agent, workers = find_agent(dry_run.tx, row[PID]), WorkerOutlook(dry_run.tx, dry_run.clock_now)
    result = _ClaimResult(policy=choice.policy.name)
    if row[STATE] == EntryState.QUEUED and row[KIND] is not None and row[KIND] not in request.kinds:
        result = result._replace(ordering=(_no_slot(dry_run, row),))
    elif state_and_hold(row) == _HELD_FOR_WORKER:
        result = result._replace(ordering=(_waits_for_worker(dry_run, row),))
    elif not blocking:
        result = _make_claim(copy(), dry_run, row, request, choice.policy)
    against: WorkerReason | None = None
    if row[STATE] == EntryState.QUEUED:
        against = workers.reason_against(row[KIND], lambda: start_command(dry_run.tx, agent), row[0], row[PID])
    elif row[STATE] == EntryState.DISPATCHED:
        against = workers.reason_for_running(entry_from_row(row).worker_id)
    return Explanation(
        sched_id=row[0],
        pid=row[PID],
        agent=agent.name,
        state=row[STATE],
        status=entry_from_row(row).status,
        cursor=dry_run.cursor,
        now=dry_run.now,
        worker_id=request.worker.worker_id,
        max_n=request.max_n,
        kinds=request.kinds,
        policy=result.policy,
        policy_source=choice.source + _instead_of(choice.policy, result.policy),
        blocking=blocking,
        ordering=result.ordering,
        workers=against,
        position=result.position,
        ahead=_ahead(dry_run, result.first[:NAMED_MAX]),
        estimate=_estimate(dry_run, row, blocking, result.ordering),
        changes=tuple(_suggestions(dry_run, row, blocking, result, against)),
        graph=graph_node_of(dry_run.tx, entry_from_row(row)),
    )


def _instead_of(chosen: Policy, used: str) -> str:
    return "" if used == chosen.name else f"; {chosen.name} has failed, and {used} order replaces it"


def _blocking(dry_run: DryRun, claim: ClaimPass, row: Row) -> tuple[BlockingReason, ...]:
    """All blocking reasons; for an entry that runs or has ended only that, since it would count against itself.

    For a run that waits for a limit, that too.
    """
    found = cast("list[BlockingReason]", claim.blocking_reasons(row))
    if row[STATE] == EntryState.QUEUED:
        return tuple(found)
    return *found[:1], *dry_run.waits_on_limits(row[0])


# --- making the claim ----------------------------------------------------------------------------


class _WatchedPass(ClaimPass):
    """A pass that records what happens to one entry."""

    def __init__(self, dry_run: DryRun, request: TurnRequest, row: Row) -> None:
        super().__init__(dry_run.tx, dry_run.env, request, dry_run.clock_now, dry_run.due)
        self.lift_holds()
        self._row = row
        self.policy = "strict"
        self.index: int | None = None  # among the claimed entries
        self.shown = False  # whether the policy saw it
        self.blocked_by: list[BlockingBase] = []  # what blocks it after others were claimed

    def write(
        self, *, policy: str = "strict", served: ServedFlows = _NONE_SERVED, forced_by: str | None = None
    ) -> list[ReadyEntry]:
        """Record whether the entry was claimed; then write, so that the next pass does not find it."""
        self.policy = policy
        self.claim_on_loans()
        ids = [each.row[0] for each in self.claimed]
        if self._row[0] in ids:
            self.index = ids.index(self._row[0])
        else:
            self.blocked_by = self.blocking_reasons(self._row)
        return super().write(policy=policy, served=served, forced_by=forced_by)

    def ready_entries(self, project_id: str | None = None, *, limit: int | None = None) -> list[Row]:
        """Also record whether the entry is shown."""
        return self._record(super().ready_entries(project_id, limit=limit))

    def ready_entries_of_agent(self, pid: int, limit: int) -> list[Row]:
        """Also record whether the entry is shown."""
        return self._record(super().ready_entries_of_agent(pid, limit))

    def nearest_deadlines(self, limit: int) -> list[Row]:
        """Also record whether the entry is shown."""
        return self._record(super().nearest_deadlines(limit))

    def heads_of_project(self, project_id: str, limit: int, offset: int) -> list[Row]:
        """Also record whether the entry is shown."""
        return self._record(super().heads_of_project(project_id, limit, offset))

    def show(self, sched_ids: Iterable[int]) -> None:
        """Record whether the entry is shown."""
        self.shown = self.shown or self._row[0] in sched_ids

    def _record(self, rows: list[Row]) -> list[Row]:
        self.shown = self.shown or any(row[0] == self._row[0] for row in rows)
        return rows


class _ClaimResult(NamedTuple):
    """What the claim did."""

    policy: str
    ordering: tuple[OrderingReason, ...] = ()
    position: int | None = None
    first: Sequence[PendingClaim] = ()  # the entries that run first
    claimed: int = 0  # how many of them are in the claim itself
    by_priority: bool = False  # whether a higher priority would have put it before these


def _make_claim(copied: Dispatcher, dry_run: DryRun, row: Row, request: TurnRequest, policy: Policy) -> _ClaimResult:
    """Make the claim, and one more after it if the entry was not reached."""
    claim = last = _WatchedPass(dry_run, request, row)
    copied.fill(claim, policy)
    first = claim.claimed
    if claim.index is None and claim.is_full:
        looks_for = ASKED_LOOK_MAX if asks_process(policy) else LOOK_MAX
        last = _WatchedPass(dry_run, msgspec.structs.replace(request, max_n=looks_for), row)
        copied.fill(last, policy)
        first = claim.claimed + last.claimed
    if last.index is not None:
        position = len(first) - len(last.claimed) + last.index + 1
        first = first[: position - 1]
    else:
        position = None
    ordering = () if claim.index is not None else tuple(_ordering_reasons(claim, last, first))
    own_project = all(each.project_id == row[PROJECT] for each in claim.claimed)
    by_priority = claim.policy == "strict" or (policy.priority_first and own_project)
    return _ClaimResult(claim.policy, ordering, position, first, len(claim.claimed), by_priority)


def _ordering_reasons(
    claim: _WatchedPass, last: _WatchedPass, first: Sequence[PendingClaim]
) -> Iterator[OrderingReason]:
    """Why a claim took other entries, or none, instead of an entry that is not blocked."""
    listed = tuple(each.row[0] for each in first[:NAMED_MAX])
    if claim.is_full:
        yield reasons.Outranked(
            policy=claim.policy,
            ahead=len(first),
            first=listed,
            score=_score(last.claimed[last.index]) if last.index is not None else "",
            at_least=last.index is None and last.is_full,
        )
    if last.index is None and not last.is_full:
        if last.blocked_by:
            yield reasons.CrowdedOut(by=listed, then=tuple(cast("list[BlockingReason]", last.blocked_by)))
        elif last.shown:
            yield reasons.NotPicked(policy=claim.policy)
        else:
            yield reasons.OutsideWindow(window=WINDOW_MAX)


def _no_slot(dry_run: DryRun, row: Row) -> OrderingReason:
    """The worker has no slot of its kind. The number of busy ones shows whether any worker has."""
    return reasons.NoSlot(kind=row[KIND], busy=dry_run.busy_slots(row[KIND]))


def _waits_for_worker(dry_run: DryRun, row: Row) -> OrderingReason:
    worker_id, until_at = dry_run.affinity_hold(row[0])
    return reasons.WaitsForWorker(worker_id=worker_id, until_at=until_at)


def _ahead(dry_run: DryRun, first: Sequence[PendingClaim]) -> tuple[EntryAhead, ...]:
    names = dry_run.agent_names({claim.pid for claim in first})
    return tuple(
        EntryAhead(claim.row[0], claim.pid, claim.project_id, _score(claim), names.get(claim.pid, ""))
        for claim in first
    )


def _score(claim: PendingClaim) -> str:
    """The reason of the policy; strict order records none, so it comes from the row."""
    priority, ready_at = claim.row[PRIORITY : RUNNABLE_AT + 1]
    ready = f"since {local_time(ready_at)}" if ready_at else "immediately"
    return _EPOCH_S.sub(_local_time, claim.reason) if claim.reason else f"priority {priority}, ready {ready}"


def _local_time(found: re.Match[str]) -> str:
    """Return an instant as people read it; a policy does not know that its numbers are epoch seconds here."""
    at = float(found[1])
    return f"at {local_time(at)}" if at else "at no time yet"


# --- estimate and suggestions --------------------------------------------------------------------


def _estimate(
    dry_run: DryRun, row: Row, blocking: Sequence[BlockingBase], ordering: Sequence[OrderingReason]
) -> StartEstimate:
    if row[STATE] != EntryState.QUEUED:
        waits = [f"; {reason.sentence()}" for reason in blocking if isinstance(reason, reasons.WaitsOnLimit)]
        return StartEstimate(row[DISPATCHED_AT], f"it is {row[STATE]}{''.join(waits)}")
    if blocking:
        return _when_unblocked(blocking)
    if not ordering:
        return StartEstimate(dry_run.now, "the next such claim returns it")
    last = ordering[-1]
    if isinstance(last, reasons.WaitsForWorker):
        return StartEstimate(last.until_at, "any worker may claim it then; its own worker may claim it earlier")
    return (
        _by_claim_rate(dry_run, last) if isinstance(last, reasons.Outranked) else StartEstimate(None, last.sentence())
    )


def _when_unblocked(blocking: Iterable[BlockingBase]) -> StartEstimate:
    """When the last blocking reason ends, if all of them end by time alone."""
    latest = 0.0
    for reason in blocking:
        at = _ends_at(reason)
        if at is None:
            return StartEstimate(None, f"it is unknown when this ends: {reason.sentence()}")
        latest = max(latest, at)
    return StartEstimate(latest, "when the last blocking reason ends; other entries may then run first")


def _ends_at(reason: BlockingBase) -> float | None:
    match reason:
        case reasons.NotYetRunnable(runnable_at=at):
            return at
        case reasons.BackingOff(until_at=until) | reasons.LimitExhausted(until_at=until):
            return until
        case reasons.ContextExhausted(until_at=until) | reasons.OverBudget(frees_at=until):
            return until
    return None


def _by_claim_rate(dry_run: DryRun, outranked: reasons.Outranked) -> StartEstimate:
    """When the entries ahead are claimed, at the recent rate of claims."""
    count, since = dry_run.recent_claims(RECENT_MAX)
    elapsed_s = dry_run.now - since if since is not None else 0.0
    first = f"{'at least ' * outranked.at_least}{outranked.ahead:,} before it"
    if not count or elapsed_s <= 0:
        return StartEstimate(None, f"{first}, and no entry was claimed recently")
    basis = f"{first}; {count:,} were claimed in the last {elapsed_s:.0f} s"
    return StartEstimate(dry_run.now + outranked.ahead * elapsed_s / count, basis)


def _suggestions(
    dry_run: DryRun,
    row: Row,
    blocking: Sequence[BlockingBase],
    result: _ClaimResult,
    against: WorkerReason | None,
) -> Iterator[Suggestion]:
    """The smallest change for each blocking reason; for the order one change is enough."""
    if isinstance(against, reasons.CoresRefused) and against.never:
        yield Suggestion("start a worker on a host that has the cores, or ask for less")
    elif isinstance(against, reasons.CoresRefused | reasons.NotPlaced):  # else it would only be refused again
        yield Suggestion(against.remedy)
    yield from suggestions_for(dry_run, row, blocking)
    if any(isinstance(reason, reasons.NoSlot) for reason in result.ordering):
        yield Suggestion(f"start a worker that has a slot of kind {row[KIND]}")
    elif any(isinstance(reason, reasons.WaitsForWorker) for reason in result.ordering):
        yield Suggestion("let any worker claim it", "queue.release", {"sched_id": row[0]})
    elif result.ordering and result.by_priority and result.claimed:
        priority = _high_enough(result)
        yield Suggestion(
            f"raise its priority to {priority}", "queue.change", {"sched_id": row[0], "priority": priority}
        )
    elif result.ordering:
        arguments = {"sched_id": row[0], "worker_id": "operator"}
        yield Suggestion("force its claim: nothing blocks it", "queue.force_claim", arguments)


def _high_enough(result: _ClaimResult) -> int:
    """A priority above the last claimed entry, or above all of them if they leave too little capacity for it."""
    priorities = [each.row[PRIORITY] for each in result.first[: result.claimed]]
    crowded = any(isinstance(reason, reasons.CrowdedOut) for reason in result.ordering)
    return int(max(priorities) if crowded else min(priorities)) + 1
