"""Why is it not running? A dry run of the pass that would start it.

Two kinds of answer, never mixed. *Blocking* reasons are what the claim's own check says about the entry, all of them
and not only the first. *Ordering* reasons come from letting the claim happen: same worker, same number, same policy,
same memory of who is owed what (a copy of it), in a transaction that is undone (see kernel/rehearsal). What that
claim takes instead is who goes first. If the entry is not among them, one more claim of `LOOK_MAX` is let happen
behind it: where it turns up there is its position.

    no reason at all      ⇔  that claim, made now, returns it
    no blocking reason    ⇔  force_claim, made now, succeeds

The laws hold because nothing is modelled: the code that is asked is the code that claims. What a claim would do that
comes later, with other things taken by then, nobody knows; so an estimate says from what it was reckoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import msgspec

from rota.errors import SchedInvalidPayload
from rota.kernel import affinity
from rota.kernel.claim_request import Ask, ask_of
from rota.kernel.claims import ClaimPass, Taken, Terms
from rota.kernel.dry_run import Stage
from rota.kernel.due_summary import Pulse
from rota.kernel.flows import Served
from rota.kernel.rows import DISPATCHED_AT, KIND, PID, PRIORITY, RUNNABLE_AT, STATE, state_and_hold
from rota.model import reasons
from rota.model.checks import Checks
from rota.model.explanation import Ahead, Change, Estimate, Explanation
from rota.model.lifecycle import EntryState
from rota.model.reasons import Blocking, BlockingReason, OrderingReason
from rota.model.work import ReadyEntry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.entry_history import tell
from rota.service.policy_in_force import Chosen, in_force
from rota.service.ranked_pass import WINDOW_MAX
from rota.service.suggestions import lifting
from rota.store import Row, Transaction
from rota.store.statements import claims as claim_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import queue as queue_sql

__all__ = ["LOOK_MAX", "NAMED_MAX", "RECENT_MAX", "explain"]

LOOK_MAX = 500  # entries behind the claim's own that are looked at for a position
NAMED_MAX = 5  # of those that go first
RECENT_MAX = 1_000  # events from which the pace is reckoned
_NOBODY = Served()
_KEPT = (EntryState.QUEUED, "worker")
_queue = Checks("Queue", SchedInvalidPayload)


def explain(
    dispatcher: Dispatcher,
    sched_id: int,
    *,
    worker_id: str = "anybody",
    max_n: int = 1,
    policy: Policy | str | None = None,
    kinds: Sequence[str] = (),
    now: float | None = None,
    from_outside: bool = False,
) -> Explanation:
    """Why an entry is not running: what a claim by this worker, made now, would do about it.

    Where no policy is named, the claim goes by the dispatcher's own; asked from outside, by somebody who does not
    claim with this dispatcher, it goes by the one that is in force on the store.
    """
    _queue.whole("sched_id", sched_id)
    ask = ask_of(worker_id=worker_id, max_n=max_n, kinds=kinds, now=now)

    def play(stage: Stage) -> tuple[Row, Explanation]:
        affinity.has_asked(stage.tx, ask.terms(stage.now), stage.beat)
        row = stage.row(sched_id)
        return row, _explained(dispatcher, stage, row, ask, _chosen(dispatcher, stage, policy, from_outside))

    row, answer = dispatcher.kernel.rehearse(play, now=now)
    return _with_story(dispatcher, row, answer)


def _with_story(dispatcher: Dispatcher, row: Row, answer: Explanation) -> Explanation:
    """Add what the journal says up to the same moment. That is past, so it can be read without holding anybody up."""
    story = dispatcher.kernel.store.read(lambda tx: tell(tx, row, answer.cursor))
    return msgspec.structs.replace(answer, story=story.steps, story_is_whole=story.is_whole)


def _chosen(dispatcher: Dispatcher, stage: Stage, policy: Policy | str | None, from_outside: bool) -> Chosen:
    if policy is not None:
        return Chosen(dispatcher.named(policy), "it was asked for")
    if from_outside:
        return in_force(stage.tx, stage.cursor, dispatcher)
    return Chosen(dispatcher.policy, "it is this desk's own")


def _explained(dispatcher: Dispatcher, stage: Stage, row: Row, ask: Ask, chosen: Chosen) -> Explanation:
    terms = ask.terms(stage.now)
    blocked = _blocked(ClaimPass(stage.tx, terms, stage.beat), row)
    turn = _Turn(policy=chosen.policy.name)
    if row[STATE] == EntryState.QUEUED and row[KIND] is not None and row[KIND] not in terms.kinds:
        turn = turn._replace(ordering=(_no_slot(stage, row),))
    elif state_and_hold(row) == _KEPT:
        turn = turn._replace(ordering=(_waits_for_worker(stage, row),))
    elif not blocked:
        turn = _let_happen(dispatcher, stage, row, terms, chosen.policy)
    return Explanation(
        sched_id=row[0],
        pid=row[PID],
        state=row[STATE],
        cursor=stage.cursor,
        now=stage.now,
        worker_id=terms.worker.worker_id,
        max_n=terms.most,
        kinds=terms.kinds,
        policy=turn.policy,
        policy_source=chosen.source,
        blocking=blocked,
        ordering=turn.ordering,
        position=turn.position,
        ahead=tuple(_ahead(each) for each in turn.first[:NAMED_MAX]),
        estimate=_estimate(stage, row, blocked, turn.ordering),
        changes=tuple(_changes(stage, row, blocked, turn)),
    )


def _blocked(claim: ClaimPass, row: Row) -> tuple[BlockingReason, ...]:
    """All that stands in its way; of one that runs or has run only that: it would count against itself."""
    found = cast("list[BlockingReason]", claim.reasons(row))
    return tuple(found[:1] if row[STATE] != EntryState.QUEUED else found)


# --- letting the claim happen --------------------------------------------------------------------


class _Watched(ClaimPass):
    """A pass that notes what becomes of one entry."""

    def __init__(self, tx: Transaction, terms: Terms, beat: Pulse, row: Row) -> None:
        super().__init__(tx, terms, beat)
        self._row = row
        self.policy = "strict"
        self.place: int | None = None  # among those that were taken
        self.shown = False  # whether anybody who chooses saw it
        self.short_of: list[Blocking] = []  # what blocks it now that others were taken

    def seal(
        self, *, policy: str = "strict", served: Served = _NOBODY, forced_by: str | None = None
    ) -> list[ReadyEntry]:
        """Note what was taken, and whether the entry was; then write, so that the next pass finds it gone."""
        self.policy = policy
        ids = [each.row[0] for each in self.taken]
        if self._row[0] in ids:
            self.place = ids.index(self._row[0])
        else:
            self.short_of = self.reasons(self._row)
        return super().seal(policy=policy, served=served, forced_by=forced_by)

    def ready(self, project_id: str | None = None, *, most: int | None = None) -> list[Row]:
        """Also note whether the entry is shown."""
        return self._noted(super().ready(project_id, most=most))

    def ready_of(self, pid: int, most: int) -> list[Row]:
        """Also note whether the entry is shown."""
        return self._noted(super().ready_of(pid, most))

    def nearest_deadlines(self, most: int) -> list[Row]:
        """Also note whether the entry is shown."""
        return self._noted(super().nearest_deadlines(most))

    def heads_in(self, project_id: str, most: int, offered: int) -> list[Row]:
        """Also note whether the entry is shown."""
        return self._noted(super().heads_in(project_id, most, offered))

    def first_of_each_project(self) -> list[tuple[str, int, Row]]:
        """Also note whether the entry is shown."""
        found = super().first_of_each_project()
        self._noted([row for _, _, row in found])
        return found

    def _noted(self, rows: list[Row]) -> list[Row]:
        self.shown = self.shown or any(row[0] == self._row[0] for row in rows)
        return rows


class _Turn(NamedTuple):
    """What came of letting the claim happen."""

    policy: str
    ordering: tuple[OrderingReason, ...] = ()
    position: int | None = None
    first: Sequence[Taken] = ()  # who goes first
    claimed: int = 0  # of those, how many in the very claim that was asked about


def _let_happen(dispatcher: Dispatcher, stage: Stage, row: Row, terms: Terms, policy: Policy) -> _Turn:
    """Let the claim happen, and one more behind it if the entry was not reached."""
    find = dispatcher.rehearsal(policy)
    claim = last = _Watched(stage.tx, terms, stage.beat, row)
    find(claim, stage.beat)
    first = claim.taken
    if claim.place is None and claim.is_full:
        last = _Watched(stage.tx, terms._replace(most=LOOK_MAX), stage.beat, row)
        find(last, stage.beat)
        first = claim.taken + last.taken
    if last.place is not None:
        position = len(first) - len(last.taken) + last.place + 1
        first = first[: position - 1]
    else:
        position = None
    ordering = () if claim.place is not None else tuple(_passed_over(claim, last, first))
    return _Turn(claim.policy, ordering, position, first, len(claim.taken))


def _passed_over(claim: _Watched, last: _Watched, first: Sequence[Taken]) -> Iterator[OrderingReason]:
    """Why a claim took others, or nobody, instead of an entry that nothing blocks."""
    named = tuple(each.row[0] for each in first[:NAMED_MAX])
    if claim.is_full:
        yield reasons.Outranked(
            policy=claim.policy,
            ahead=len(first),
            first=named,
            score=_score(last.taken[last.place]) if last.place is not None else "",
            at_least=last.place is None and last.is_full,
        )
    if last.place is None and not last.is_full:
        if last.short_of:
            yield reasons.CrowdedOut(by=named, then=tuple(cast("list[BlockingReason]", last.short_of)))
        elif last.shown:
            yield reasons.NotPicked(policy=claim.policy)
        else:
            yield reasons.OutsideWindow(window=WINDOW_MAX)


def _no_slot(stage: Stage, row: Row) -> OrderingReason:
    """The worker has no slot of its kind; how many of that kind are busy tells whether anybody has."""
    busy = sum(count for _, _, kind, _, _, count in stage.tx.run(claim_sql.LIVE) if kind == row[KIND])
    return reasons.NoSlot(kind=row[KIND], busy=busy)


def _waits_for_worker(stage: Stage, row: Row) -> OrderingReason:
    worker_id, until_at = stage.tx.run(queue_sql.KEPT_FOR, (row[0],))[0]
    return reasons.WaitsForWorker(worker_id=worker_id, until_at=until_at)


def _ahead(taken: Taken) -> Ahead:
    return Ahead(taken.row[0], taken.pid, taken.project_id, _score(taken))


def _score(taken: Taken) -> str:
    """What decided; strict order writes nothing down, since the row says it."""
    priority, ready_at = taken.row[PRIORITY : RUNNABLE_AT + 1]
    return taken.because or f"priority {priority}, ready at {ready_at or 'once'}"


# --- when, and what would change it --------------------------------------------------------------


def _estimate(stage: Stage, row: Row, blocked: Sequence[Blocking], ordering: Sequence[OrderingReason]) -> Estimate:
    if row[STATE] != EntryState.QUEUED:
        return Estimate(row[DISPATCHED_AT], f"it is {row[STATE]}")
    if blocked:
        return _when_lifted(blocked)
    if not ordering:
        return Estimate(stage.now, "the next such claim returns it")
    last = ordering[-1]
    if isinstance(last, reasons.WaitsForWorker):
        return Estimate(last.until_at, "others may have it then; its worker may before, when it asks for work")
    return _by_pace(stage, last) if isinstance(last, reasons.Outranked) else Estimate(None, last.sentence())


def _when_lifted(blocked: Iterable[Blocking]) -> Estimate:
    """When the last of what blocks it is over, if time alone ends it all."""
    latest = 0.0
    for reason in blocked:
        at = _over_at(reason)
        if at is None:
            return Estimate(None, f"nobody can say when this ends: {reason.sentence()}")
        latest = max(latest, at)
    return Estimate(latest, "not before the last of what blocks it is over; others may then go first")


def _over_at(reason: Blocking) -> float | None:
    match reason:
        case reasons.NotYetRunnable(runnable_at=at):
            return at
        case reasons.BackingOff(until_at=until) | reasons.LimitExhausted(until_at=until):
            return until
        case reasons.ContextDepleted(until_at=until) | reasons.OverBudget(frees_at=until):
            return until
    return None


def _by_pace(stage: Stage, outranked: reasons.Outranked) -> Estimate:
    """As many as go first, at the pace at which entries were handed out lately."""
    span = (max(0, stage.cursor - RECENT_MAX), stage.cursor)
    count, since = stage.tx.run(journal_sql.CLAIMED_LATELY, span)[0]
    elapsed_s = stage.now - since if since is not None else 0.0
    first = f"{'at least ' * outranked.at_least}{outranked.ahead:,} before it"
    if not count or elapsed_s <= 0:
        return Estimate(None, f"{first}, and nothing was handed out lately")
    basis = f"{first}; {count:,} were handed out in the last {elapsed_s:.0f} s"
    return Estimate(stage.now + outranked.ahead * elapsed_s / count, basis)


def _changes(stage: Stage, row: Row, blocked: Sequence[Blocking], turn: _Turn) -> Iterator[Change]:
    """The smallest change for each thing in its way; for its place in the order one is enough."""
    yield from lifting(stage, row, blocked)
    if any(isinstance(reason, reasons.NoSlot) for reason in turn.ordering):
        yield Change(f"let a worker with a slot of kind {row[KIND]} ask for work")
    elif any(isinstance(reason, reasons.WaitsForWorker) for reason in turn.ordering):
        yield Change("let anybody have it", "queue.release", {"sched_id": row[0]})
    elif turn.ordering and turn.policy == "strict" and turn.claimed:
        priority = _high_enough(turn)
        yield Change(f"raise its priority to {priority}", "queue.change", {"sched_id": row[0], "priority": priority})
    elif turn.ordering:
        arguments = {"sched_id": row[0], "worker_id": "operator"}
        yield Change("force it: nothing blocks it", "queue.force_claim", arguments)


def _high_enough(turn: _Turn) -> int:
    """In strict order: above the last that was taken is enough, unless those before it leave it too little."""
    priorities = [each.row[PRIORITY] for each in turn.first[: turn.claimed]]
    crowded = any(isinstance(reason, reasons.CrowdedOut) for reason in turn.ordering)
    return int(max(priorities) if crowded else min(priorities)) + 1
