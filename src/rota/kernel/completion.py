"""How runs end: well or badly for good, again after a pause, or back in the queue.

A completion with its claim's token comes from a worker that knows what it holds: if the run ended in a way its
spec wants retried and attempts are left, the entry goes back with a back-off; otherwise it ends. A completion
without a token is the plain verb of the queue: it ends the entry, whatever the kind. A claim that nobody held
on to ends as crashed, and is retried by the same rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec

from rota.errors import RotaError, SchedUnknownId, StaleClaim
from rota.kernel import budget_loans, dependencies, flows, usage_windows
from rota.kernel.core import Core
from rota.kernel.journal import append
from rota.kernel.ledger import SHARED_DIM
from rota.kernel.rows import Options, options_of, spent_of
from rota.model.events import CompletedEntry, EntriesCompleted, EntriesReturned, FlowMove
from rota.model.lifecycle import ENTRY, advance
from rota.model.work import Backoff
from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = ["Ended", "Ending", "Run", "backoff_s", "end_runs", "not_live", "put_back", "runs_of"]

NEVER_AGAIN = frozenset({"over_budget"})  # outcomes that another attempt would only repeat
_encode = msgspec.json.Encoder().encode


class Ending(NamedTuple):
    """What is said about the end of one run."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: str | None = None
    outcome: str | None = None
    verb: Literal["complete", "reclaim"] = "complete"


class Run(NamedTuple):
    """What has to be known of a run to end it."""

    sched_id: int
    state: str
    token: int | None
    pid: int
    project_id: str | None
    attempt: int
    max_attempts: int
    options_text: str | None
    estimate: int
    spent_text: str | None
    dispatched_at: float | None
    cancel_requested: int
    worker_id: str | None
    awaited: int  # whether other entries wait for it

    @property
    def options(self) -> Options:
        """What its spec said about later."""
        return options_of(self.options_text)

    def correction(self, now: float) -> int:
        """By how much what was measured differs from what its flows were charged when it began.

        A run that was neither estimated nor measured moves nothing.
        """
        measured = spent_of(self.spent_text).get(SHARED_DIM, 0)
        return self.cost(now) - self.estimate if measured or self.estimate else 0

    def cost(self, now: float) -> int:
        """What it used of what is shared: the tokens it was charged, else whole seconds, at least one."""
        return spent_of(self.spent_text).get(SHARED_DIM, 0) or max(1, round(now - (self.dispatched_at or now)))


class Ended(NamedTuple):
    """What became of runs: each ending's new state or error, and every entry that ended for good."""

    answers: list[tuple[str, str] | RotaError]
    final: list[int]
    changed_more: bool = True  # than the runs: windows, flows, other entries


def runs_of(tx: Transaction, sched_ids: list[int]) -> dict[int, Run]:
    """Runs by id; those that do not exist are missing."""
    one = len(sched_ids) == 1  # the usual case, and twice as quick
    rows = tx.run(sql.RUN, sched_ids) if one else tx.run(sql.RUNS, (_encode(sched_ids).decode(),))
    return {row[0]: Run(*row) for row in rows}


def backoff_s(backoff: Backoff, attempt: int, chance: random.Random) -> float:
    """How long to wait after an attempt: anything up to base × factor^(attempt-1), capped."""
    try:
        longest = backoff.base_s * backoff.factor ** (attempt - 1)
    except OverflowError:
        longest = backoff.cap_s
    return chance.uniform(0.0, min(backoff.cap_s, longest))


def end_runs(tx: Transaction, core: Core, endings: Sequence[Ending], now: float) -> Ended:
    """End runs, each for itself: one that is refused changes nothing and holds up nobody."""
    runs = runs_of(tx, [ending.sched_id for ending in endings])
    if len(endings) == 1:
        simple = _end_simply(tx, core, runs.get(endings[0].sched_id), endings[0], now)
        if simple is not None:
            return simple
    answers: list[tuple[str, str] | RotaError] = []
    final: list[tuple[Run, Ending]] = []
    again: list[tuple[Run, Ending]] = []
    for ending in endings:
        run = runs.pop(ending.sched_id, None)  # a second ending of the same run is judged anew below
        try:
            answer = _judge(run or _moved(ending, final, again), ending)
        except RotaError as error:
            answers.append(error)
            continue
        assert run is not None  # noqa: S101  # judged just above
        answers.append(answer)
        (final if answer[1] == "completed" else again).append((run, ending))
    ended = [run for run, _ in (*final, *again)]
    charged = [run for run in ended if run.estimate or run.spent_text is not None]
    moves = flows.after_cost(tx, [(run.pid, run.project_id, run.correction(now)) for run in charged])
    _attend(core, (*final, *again), now)
    cancelled = _finish(tx, core, final, moves, now)
    _return(tx, again, moves if not final else [], now, core.chance)
    _count(tx, ended, now)
    tx.notes.wake = True
    steady = not (again or cancelled or moves or any(run.project_id is not None or run.awaited for run in ended))
    return Ended(answers, [run.sched_id for run, _ in final] + cancelled, changed_more=not steady)


def _moved(ending: Ending, final: list[tuple[Run, Ending]], again: list[tuple[Run, Ending]]) -> Run | None:
    """A run that an earlier ending of the same call has moved already."""
    for runs, state in ((final, "completed"), (again, "queued")):
        for run, _ in runs:
            if run.sched_id == ending.sched_id:
                return run._replace(state=state, token=None)
    return None


def _end_simply(tx: Transaction, core: Core, run: Run | None, ending: Ending, now: float) -> Ended | None:
    """End one run for good if it is of the usual kind: it went well, it is nobody's but its agent's, nobody waits."""
    usual = run is not None and run.state == "dispatched" and run.token == ending.token and not run.awaited
    if run is None or not usual or ending.exit_kind != "completed":
        return None
    if run.project_id is not None or run.estimate or run.spent_text is not None:
        return None
    if run.options_text is not None and "completed" in run.options.retry_on:
        return None
    if run.worker_id is not None:
        core.seen.saw(run.worker_id, now)
    tx.run(sql.COMPLETE, (now, "completed", ending.outcome, ending.result, run.sched_id))
    fact = EntriesCompleted(
        entries=[CompletedEntry(run.sched_id, "completed", ending.outcome)], worker_id=run.worker_id
    )
    append(tx, fact, now=now)
    tx.notes.wake = True
    return Ended([_COMPLETED], [run.sched_id], changed_more=False)


_COMPLETED = ("dispatched", "completed")


def not_live(run: Run, token: int | None) -> StaleClaim:
    """The error for a token that is not a run's live claim."""
    text = f"token {token} is not the live claim of entry {run.sched_id}, which is {run.state}"
    return StaleClaim(text, sched_id=run.sched_id, token=token)


def _judge(run: Run | None, ending: Ending) -> tuple[str, str]:
    """State before and after, or the error that nothing changes."""
    if run is None:
        raise SchedUnknownId(ending.sched_id)
    well = run.token == ending.token and ending.exit_kind == "completed" and run.state == "dispatched"
    if well and run.options_text is None:  # the usual case
        return _COMPLETED
    if ending.token is not None and (run.token != ending.token or run.state != "dispatched"):
        raise not_live(run, ending.token)
    knows = ending.token is not None or ending.verb == "reclaim"
    may_retry = knows and not run.cancel_requested and run.attempt < run.max_attempts
    may_retry = may_retry and ending.outcome not in NEVER_AGAIN
    if may_retry and ending.exit_kind in run.options.retry_on:
        verb = "reclaim" if ending.verb == "reclaim" else "retry"
        return run.state, str(advance(ENTRY, run.state, verb, run.sched_id))
    return run.state, str(advance(ENTRY, run.state, "complete", run.sched_id))


def _attend(core: Core, ended: Iterable[tuple[Run, Ending]], now: float) -> None:
    """Who ends a run is there, and may well want what comes after it; who lets one expire is gone."""
    workers = {(run.worker_id, ending.token is None, ending.verb) for run, ending in ended}
    for worker_id, is_untold, verb in workers:
        if worker_id is not None and verb == "reclaim":
            core.seen.left(worker_id)
        elif worker_id is not None and not is_untold:
            core.seen.saw(worker_id, now)


def _finish(
    tx: Transaction, core: Core, ended: list[tuple[Run, Ending]], moves: list[FlowMove], now: float
) -> list[int]:
    """Write the runs that ended for good; the answer is who was cancelled because of it."""
    if not ended:
        return []
    rows, entries = [], []
    for run, ending in ended:
        exit_kind = "cancelled" if run.cancel_requested and ending.verb == "reclaim" else ending.exit_kind
        rows.append((now, exit_kind, ending.outcome, ending.result, run.sched_id))
        entries.append(CompletedEntry(run.sched_id, exit_kind, ending.outcome))
    tx.run_many(sql.COMPLETE, sorted(rows, key=itemgetter(4)))  # by id: neighbours share pages
    fact = EntriesCompleted(entries=entries, worker_id=ended[0][0].worker_id, flows=moves)
    flows.save(tx, moves, event_id=append(tx, fact, now=now))
    return dependencies.ended(tx, core, [run.sched_id for run, _ in ended if run.awaited], now)


class _Return(NamedTuple):
    """How a run goes back into the queue."""

    run: Run
    runnable_at: float
    attempt: int
    hold: str | None
    outcome: str | None = None


def _return(
    tx: Transaction, again: list[tuple[Run, Ending]], moves: list[FlowMove], now: float, chance: random.Random
) -> None:
    """Write the runs that will be tried again, each after its own pause."""
    verbs: tuple[Literal["retry", "reclaim"], ...] = ("retry", "reclaim")
    for verb in verbs if again else ():
        returns = []
        for run, ending in again:
            if (ending.verb == "reclaim") == (verb == "reclaim"):
                wait_s = backoff_s(run.options.backoff, run.attempt, chance)
                hold = "backoff" if wait_s > 0 else None
                returns.append(_Return(run, now + wait_s, run.attempt, hold, ending.outcome))
        if returns:
            _put_back(tx, verb, returns, moves, now)
            moves = []


def put_back(tx: Transaction, run: Run, verb: Literal["preempt", "yield"], runnable_at: float, now: float) -> None:
    """Put a run back into the queue without counting an attempt."""
    advance(ENTRY, run.state, verb, run.sched_id)
    moves = flows.after_cost(tx, [(run.pid, run.project_id, run.correction(now))])
    hold = "time" if runnable_at > now else None
    _put_back(tx, verb, [_Return(run, runnable_at, run.attempt - 1, hold)], moves, now)
    tx.notes.wake = True


def _put_back(
    tx: Transaction,
    verb: Literal["reclaim", "retry", "preempt", "yield"],
    returns: list[_Return],
    moves: list[FlowMove],
    now: float,
) -> None:
    for each in returns:
        if each.run.spent_text is not None and each.run.options.parent_id is not None:
            budget_loans.after_attempt(tx, each.run.sched_id)
    tx.run_many(sql.RETURN, [(r.hold, r.runnable_at, r.attempt, r.outcome, r.run.sched_id) for r in returns])
    fact = EntriesReturned(
        verb=verb,
        sched_ids=[each.run.sched_id for each in returns],
        runnable_at=min(each.runnable_at for each in returns),
        reason=returns[0].outcome,
        flows=moves,
    )
    event_id = append(tx, fact, now=now)
    flows.save(tx, moves, event_id=event_id)
    at_once = {(each.run.pid, each.run.project_id) for each in returns if each.hold is None}
    flows.touch(tx, at_once, event_id=event_id)


def _count(tx: Transaction, runs: list[Run], now: float) -> None:
    """A run that ended in any way counts for its project, or one that always fails would stay first for ever."""
    used: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for run in runs:
        if run.project_id is not None:
            used[run.project_id] += run.cost(now)
            count[run.project_id] += 1
    if count:
        usage_windows.add_runs(
            tx, [(project_id, used[project_id], number) for project_id, number in count.items()], now
        )
