"""Ending runs: an entry completes for good, is retried after a back-off, or returns to the queue.

A completion with the claim's token comes from the worker that holds the claim: if the exit kind is one that the spec
retries and attempts are left, the entry returns to the queue with a back-off; otherwise it ends. A completion without a
token ends the entry, whatever the exit kind. A claim that expired ends as crashed and is retried by the same rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel import budget_loans, dependencies, flows, usage_windows
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.ledger import SHARED_DIM
from rota.kernel.rows import EntryOptions, decode_options, decode_spent, encode_json, json_list
from rota.model.checks import RESULT_BYTES_MAX, Checks
from rota.model.events import CompletedEntry, EntriesCompleted, EntriesReturned, FlowMove
from rota.model.lifecycle import ENTRY, advance
from rota.model.work import EXIT_KINDS, Backoff
from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = [
    "COMPLETE_MAX",
    "Completion",
    "CompletionAnswer",
    "CompletionResult",
    "RunEnd",
    "RunRow",
    "backoff_s",
    "check_completions",
    "complete_runs",
    "read_runs",
    "return_to_queue",
    "stale_claim_error",
]

COMPLETE_MAX = 1_000  # runs in one complete_many
NOT_RETRIED_OUTCOMES = frozenset({"over_budget"})  # another attempt would end the same way
_queue = Checks("Queue", SchedInvalidPayload)
_COMPLETED = ("dispatched", "completed")

CompletionAnswer: TypeAlias = tuple[str, str] | RotaError  # state before and after, or why nothing changed


class Completion(msgspec.Struct, frozen=True):
    """How one run of a batch ended, as the caller reports it."""

    sched_id: int
    exit_kind: str = "completed"
    token: int | None = None
    result: Any = None
    outcome: str | None = None


class RunEnd(NamedTuple):
    """How one run ended, checked and with its result encoded."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: str | None = None
    outcome: str | None = None
    verb: Literal["complete", "reclaim"] = "complete"


class RunRow(NamedTuple):
    """The columns of an entry that ending its run needs."""

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
    def options(self) -> EntryOptions:
        """The entry's options."""
        return decode_options(self.options_text)

    def correction(self, now: float) -> int:
        """Return measured usage minus what the flows were charged at the claim; 0 for a run with neither."""
        measured = decode_spent(self.spent_text).get(SHARED_DIM, 0)
        return self.cost(now) - self.estimate if measured or self.estimate else 0

    def cost(self, now: float) -> int:
        """Return the run's shared usage: the tokens charged, else whole seconds, at least one."""
        return decode_spent(self.spent_text).get(SHARED_DIM, 0) or max(1, round(now - (self.dispatched_at or now)))


class CompletionResult(NamedTuple):
    """The answer to each reported run, and every entry that ended for good."""

    answers: list[CompletionAnswer]
    ended_ids: list[int]
    invalidates_cache: bool = True  # windows, flows or other entries changed, too


def check_completions(completions: Sequence[Completion]) -> list[RunEnd]:
    """Check reported completions and encode their results."""
    _queue.sequence("completions", completions)
    if len(completions) > COMPLETE_MAX:
        raise _queue.refuse("completions", f"may be at most {COMPLETE_MAX:,}, not {len(completions):,}")
    return [_check_completion(each) for each in completions]


def _check_completion(each: Completion) -> RunEnd:
    if type(each) is not Completion:
        raise _queue.refuse("completions", f"must be Completions, not {type(each).__name__}")
    _queue.whole("sched_id", each.sched_id)
    _queue.one_of("exit_kind", each.exit_kind, EXIT_KINDS)
    if each.token is not None:
        _queue.whole("token", each.token)
    if each.outcome is not None:
        _queue.text("outcome", each.outcome)
    result = None if each.result is None else encode_json("result", each.result, RESULT_BYTES_MAX)
    return RunEnd(each.sched_id, each.exit_kind, each.token, result, each.outcome)


def read_runs(tx: Transaction, sched_ids: list[int]) -> dict[int, RunRow]:
    """Read runs by id; entries that do not exist are missing from the result."""
    one = len(sched_ids) == 1  # the usual case, and twice as fast
    rows = tx.run(sql.RUN, sched_ids) if one else tx.run(sql.RUNS, (json_list(sched_ids),))
    return {row[0]: RunRow(*row) for row in rows}


def backoff_s(backoff: Backoff, attempt: int, rng: random.Random) -> float:
    """Return a random delay after an attempt, at most base × factor^(attempt-1) and at most the cap."""
    try:
        longest = backoff.base_s * backoff.factor ** (attempt - 1)
    except OverflowError:
        longest = backoff.cap_s
    return rng.uniform(0.0, min(backoff.cap_s, longest))


def complete_runs(tx: Transaction, env: KernelEnvironment, run_ends: Sequence[RunEnd], now: float) -> CompletionResult:
    """End runs independently of each other: a refused one changes nothing and does not affect the rest."""
    runs = read_runs(tx, [run_end.sched_id for run_end in run_ends])
    if len(run_ends) == 1:
        simple = _complete_simple(tx, env, runs.get(run_ends[0].sched_id), run_ends[0], now)
        if simple is not None:
            return simple
    answers: list[CompletionAnswer] = []
    final: list[tuple[RunRow, RunEnd]] = []
    retried: list[tuple[RunRow, RunEnd]] = []
    for run_end in run_ends:
        run = runs.pop(run_end.sched_id, None)  # a second report of the same run is checked against its new state
        try:
            answer = _next_state(run or _already_ended(run_end, final, retried), run_end)
        except RotaError as error:
            answers.append(error)
            continue
        assert run is not None  # noqa: S101  # checked just above
        answers.append(answer)
        (final if answer[1] == "completed" else retried).append((run, run_end))
    ended = [run for run, _ in (*final, *retried)]
    charged = [run for run in ended if run.estimate or run.spent_text is not None]
    moves = flows.moves_for_costs(tx, [(run.pid, run.project_id, run.correction(now)) for run in charged])
    _update_workers_seen(env, (*final, *retried), now)
    cancelled = _write_completed(tx, env, final, moves, now)
    _write_retries(tx, retried, moves if not final else [], now, env.rng)
    _count_usage(tx, ended, now)
    tx.effects.wake_parked = True
    only_runs = not (retried or cancelled or moves or any(run.project_id is not None or run.awaited for run in ended))
    return CompletionResult(answers, [run.sched_id for run, _ in final] + cancelled, invalidates_cache=not only_runs)


def _already_ended(
    run_end: RunEnd, final: list[tuple[RunRow, RunEnd]], retried: list[tuple[RunRow, RunEnd]]
) -> RunRow | None:
    """Return a run that an earlier report of the same call has ended, in its new state."""
    for runs, state in ((final, "completed"), (retried, "queued")):
        for run, _ in runs:
            if run.sched_id == run_end.sched_id:
                return run._replace(state=state, token=None)
    return None


def _complete_simple(
    tx: Transaction, env: KernelEnvironment, run: RunRow | None, run_end: RunEnd, now: float
) -> CompletionResult | None:
    """Complete a run of the usual kind: successful, without project, usage or dependents. None if it is not."""
    usual = run is not None and run.state == "dispatched" and run.token == run_end.token and not run.awaited
    if run is None or not usual or run_end.exit_kind != "completed":
        return None
    if run.project_id is not None or run.estimate or run.spent_text is not None:
        return None
    if run.options_text is not None and "completed" in run.options.retry_on:
        return None
    if run.worker_id is not None:
        env.workers_seen.mark_seen(run.worker_id, now)
    tx.run(sql.COMPLETE, (now, "completed", run_end.outcome, run_end.result, run.sched_id))
    event = EntriesCompleted(
        entries=[CompletedEntry(run.sched_id, "completed", run_end.outcome)], worker_id=run.worker_id
    )
    append(tx, event, now=now)
    tx.effects.wake_parked = True
    return CompletionResult([_COMPLETED], [run.sched_id], invalidates_cache=False)


def stale_claim_error(run: RunRow, token: int | None) -> StaleClaim:
    """Return the error for a token that is not the run's live claim."""
    text = f"token {token} is not the live claim of entry {run.sched_id}, which is {run.state}"
    return StaleClaim(text, sched_id=run.sched_id, token=token)


def _next_state(run: RunRow | None, run_end: RunEnd) -> tuple[str, str]:
    """Return the state before and after; raises if the report is stale or the transition illegal."""
    if run is None:
        raise SchedUnknownId(run_end.sched_id)
    succeeded = run.token == run_end.token and run_end.exit_kind == "completed" and run.state == "dispatched"
    if succeeded and run.options_text is None:  # the usual case
        return _COMPLETED
    if run_end.token is not None and (run.token != run_end.token or run.state != "dispatched"):
        raise stale_claim_error(run, run_end.token)
    is_attempt = run_end.token is not None or run_end.verb == "reclaim"
    may_retry = is_attempt and not run.cancel_requested and run.attempt < run.max_attempts
    may_retry = may_retry and run_end.outcome not in NOT_RETRIED_OUTCOMES
    if may_retry and run_end.exit_kind in run.options.retry_on:
        verb = "reclaim" if run_end.verb == "reclaim" else "retry"
        return run.state, str(advance(ENTRY, run.state, verb, run.sched_id))
    return run.state, str(advance(ENTRY, run.state, "complete", run.sched_id))


def _update_workers_seen(env: KernelEnvironment, ended: Iterable[tuple[RunRow, RunEnd]], now: float) -> None:
    """Mark workers that ended a run as alive, and workers that let a claim expire as gone."""
    workers = {(run.worker_id, run_end.token is not None, run_end.verb) for run, run_end in ended}
    for worker_id, has_token, verb in workers:
        if worker_id is not None and verb == "reclaim":
            env.workers_seen.mark_gone(worker_id)
        elif worker_id is not None and has_token:
            env.workers_seen.mark_seen(worker_id, now)


def _write_completed(
    tx: Transaction, env: KernelEnvironment, ended: list[tuple[RunRow, RunEnd]], moves: list[FlowMove], now: float
) -> list[int]:
    """Write the runs that ended for good; returns the dependents that were cancelled because of it."""
    if not ended:
        return []
    rows, entries = [], []
    for run, run_end in ended:
        exit_kind = "cancelled" if run.cancel_requested and run_end.verb == "reclaim" else run_end.exit_kind
        rows.append((now, exit_kind, run_end.outcome, run_end.result, run.sched_id))
        entries.append(CompletedEntry(run.sched_id, exit_kind, run_end.outcome))
    tx.run_many(sql.COMPLETE, sorted(rows, key=itemgetter(4)))  # by id: neighbours share pages
    event = EntriesCompleted(entries=entries, worker_id=ended[0][0].worker_id, flows=moves)
    flows.save_moves(tx, moves, event_id=append(tx, event, now=now))
    return dependencies.resolve_dependents(tx, env, [run.sched_id for run, _ in ended if run.awaited], now)


class _Requeued(NamedTuple):
    """How a run goes back into the queue."""

    run: RunRow
    runnable_at: float
    attempt: int
    hold: str | None
    outcome: str | None = None


def _write_retries(
    tx: Transaction, retried: list[tuple[RunRow, RunEnd]], moves: list[FlowMove], now: float, rng: random.Random
) -> None:
    """Write the runs that are tried again, each after its own back-off."""
    verbs: tuple[Literal["retry", "reclaim"], ...] = ("retry", "reclaim")
    for verb in verbs if retried else ():
        requeued = []
        for run, run_end in retried:
            if (run_end.verb == "reclaim") == (verb == "reclaim"):
                wait_s = backoff_s(run.options.backoff, run.attempt, rng)
                hold = "backoff" if wait_s > 0 else None
                requeued.append(_Requeued(run, now + wait_s, run.attempt, hold, run_end.outcome))
        if requeued:
            _write_requeued(tx, verb, requeued, moves, now)
            moves = []


def return_to_queue(
    tx: Transaction, run: RunRow, verb: Literal["preempt", "yield"], runnable_at: float, now: float
) -> None:
    """Return a run to the queue without counting an attempt."""
    advance(ENTRY, run.state, verb, run.sched_id)
    moves = flows.moves_for_costs(tx, [(run.pid, run.project_id, run.correction(now))])
    hold = "time" if runnable_at > now else None
    _write_requeued(tx, verb, [_Requeued(run, runnable_at, run.attempt - 1, hold)], moves, now)
    tx.effects.wake_parked = True


def _write_requeued(
    tx: Transaction,
    verb: Literal["reclaim", "retry", "preempt", "yield"],
    requeued: list[_Requeued],
    moves: list[FlowMove],
    now: float,
) -> None:
    for each in requeued:
        if each.run.spent_text is not None and each.run.options.parent_id is not None:
            budget_loans.reduce_after_attempt(tx, each.run.sched_id)
    tx.run_many(sql.REQUEUE, [(r.hold, r.runnable_at, r.attempt, r.outcome, r.run.sched_id) for r in requeued])
    event = EntriesReturned(
        verb=verb,
        sched_ids=[each.run.sched_id for each in requeued],
        runnable_at=min(each.runnable_at for each in requeued),
        reason=requeued[0].outcome,
        flows=moves,
    )
    event_id = append(tx, event, now=now)
    flows.save_moves(tx, moves, event_id=event_id)
    ready = {(each.run.pid, each.run.project_id) for each in requeued if each.hold is None}
    flows.mark_ready(tx, ready, event_id=event_id)


def _count_usage(tx: Transaction, runs: list[RunRow], now: float) -> None:
    """Count every ended run for its project, else a project whose runs always fail would stay first for ever."""
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
