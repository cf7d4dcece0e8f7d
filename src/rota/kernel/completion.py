"""Ending runs: an entry completes for good, is retried after a back-off, or returns to the queue.

A run that ends with its claim's token was ended by the worker that holds the claim: if the exit kind is one that the
spec retries and attempts are left, the entry returns to the queue with a back-off; otherwise it ends. An end without a
token ends the entry, whatever the exit kind. A claim that expired ends as crashed and is retried by the same rule. A
supervisor's report first charges what it measured, and may ask to return the run without counting an attempt.

Each run is read once. Runs end independently of each other: one that is refused changes nothing and has its error in
its place.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec

from rota.errors import LimitExceeded, RotaError, SchedUnknownId, StaleClaim
from rota.kernel import budget_loans, dependencies, flows, limit_asks
from rota.kernel.contexts import CPU_UNIT, draws_on_cpu
from rota.kernel.environment import KernelEnvironment
from rota.kernel.graph_budgets import charge_lines, lines_of
from rota.kernel.journal import append
from rota.kernel.ledger import ChargeResult, Payer, record_usage
from rota.kernel.over_budget import over_budget_of
from rota.kernel.rows import (
    NO_OPTIONS,
    EntryOptions,
    decode_needs,
    decode_options,
    decode_spent,
    json_list,
    options_with_error,
)
from rota.kernel.run_reports import CompletionAnswer, RunEnd, RunReport
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model.checks import DIMS_MAX
from rota.model.events import CompletedEntry, EntriesCompleted, EntriesReturned, FlowMove, RunEnded
from rota.model.lifecycle import ENTRY, advance
from rota.model.retries import NOT_RETRIED
from rota.model.run_failures import failure_in
from rota.model.work import AttemptError, Backoff
from rota.store import Row, Statement, Transaction
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

__all__ = [
    "METERED",
    "UNREADABLE",
    "EndedRuns",
    "RunRow",
    "backoff_s",
    "charge_run",
    "end_runs",
    "read_of_runs",
    "read_runs",
    "return_to_queue",
    "stale_claim_error",
]

# measured for every run, and charged only where a budget exists or sharing counts it
METERED = frozenset({"cpu_s", "gpu_s", "wall_s"})
UNREADABLE = "unreadable"  # the outcome of an entry whose stored row cannot be read
ERROR_CHARS_MAX = 1_000  # of the error of an attempt that is retried
_sched_id = itemgetter(4)  # of the parameters of `COMPLETE`
_COMPLETED = ("dispatched", "completed")
_RETURNED = ("dispatched", "queued")
_encode = msgspec.json.Encoder(order="deterministic").encode


class RunRow(msgspec.Struct, frozen=True, gc=False):
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
    stored_worker: str | bytes | None  # the worker that claimed it; bytes in a damaged row
    needs_text: str | None
    awaited: int  # whether other entries wait for it

    @property
    def options(self) -> EntryOptions:
        """The entry's options."""
        return decode_options(self.options_text)

    def correction(self, dim: str, now: float) -> int:
        """Return measured usage minus what the flows were charged at the claim; 0 for a run with neither."""
        return self.cost(dim, now) - self.estimate if self.measured(dim) or self.estimate else 0

    def measured(self, dim: str) -> int:
        """The usage of a dimension that was charged so far."""
        return 0 if self.spent_text is None else decode_spent(self.spent_text).get(dim, 0)

    def cost(self, dim: str, now: float) -> int:
        """Return what sharing counts: the usage charged, else the expected usage, else whole seconds, at least one."""
        if self.spent_text is not None and (measured := self.measured(dim)):
            return measured
        if self.needs_text is not None and (expected := decode_needs(self.needs_text).expected.get(dim, 0)):
            return expected
        return max(1, round(now - (self.dispatched_at or now)))


class EndedRuns(msgspec.Struct, frozen=True):
    """The answer to each report, and the runs that were found, as they were before."""

    answers: list[CompletionAnswer]
    runs: dict[int, RunRow]
    final: dict[int, str]  # agents whose entry ended for good, with the reported exit kind
    makes_ready: bool = False  # entries may have become ready: runs that go back, or entries that waited for one


def read_of_runs(run_ends: Sequence[RunEnd]) -> tuple[Statement, Row]:
    """Return the read with which `end_runs` begins, for `Transaction.read_together`."""
    return sql.RUNS, (json_list(run_end.sched_id for run_end in run_ends),)


def read_runs(tx: Transaction, sched_ids: Sequence[int]) -> dict[int, RunRow]:
    """Read runs by id; entries that do not exist are missing from the result."""
    runs: dict[int, RunRow] = {}
    for row in tx.run_for(sql.RUNS, sched_ids):
        runs[row[0]] = RunRow(*row)  # a comprehension is a call, at every end of a run
    return runs


def end_runs(tx: Transaction, env: KernelEnvironment, run_ends: Sequence[RunEnd], now: float) -> EndedRuns:
    """End runs inside a transaction."""
    sched_ids: list[int] = []
    awaited: set[int] = set()  # by runs that return to the queue in this call: their rows are read before
    for run_end in run_ends:
        sched_ids.append(run_end.sched_id)
        if run_end.report is not None:
            awaited.update(run_end.report.awaits)
    runs = read_runs(tx, sched_ids)
    answers: list[CompletionAnswer] = []
    final: dict[int, str] = {}
    states: dict[int, str] = {}  # of the runs that this call has ended
    completed: list[tuple[RunRow, RunEnd]] = []
    retried: list[tuple[RunRow, RunEnd]] = []
    makes_ready = False
    for run_end in run_ends:
        if run_end.refused is not None:
            answers.append(run_end.refused)
            continue
        found = runs.get(run_end.sched_id)
        if found is not None and found.sched_id in states:  # reported twice
            found = msgspec.structs.replace(found, state=states[found.sched_id], token=None)
        try:
            run, answer = _decide(found, run_end)
        except RotaError as error:
            answers.append(error)
            continue
        report = run_end.report
        if report is not None:
            run = _take_report(tx, env, run, report, now, is_final=answer[1] == "completed")
        if answer[1] == "completed":
            final[run.pid] = run_end.exit_kind
            if run.awaited or run.sched_id in awaited:
                makes_ready, run = True, msgspec.structs.replace(run, awaited=1)
            completed.append((run, _cancelled(run, run_end) if run.cancel_requested else run_end))
        else:
            makes_ready = True
            if report is None or report.back is None:
                retried.append((run, run_end))
        answers.append(answer)
        states[run.sched_id] = answer[1]
    if completed or retried:
        _write(tx, env, completed, retried, now)
    return EndedRuns(answers, runs, final, makes_ready)


def _decide(run: RunRow | None, run_end: RunEnd) -> tuple[RunRow, tuple[str, str]]:
    """Return the run, and its state before and after; raises if the report is stale or the transition illegal."""
    if run is None:
        raise SchedUnknownId(run_end.sched_id)
    if run_end.token is not None and (run.token != run_end.token or run.state != "dispatched"):
        raise stale_claim_error(run, run_end.token)
    if run_end.report is not None and run_end.report.back is not None:
        return run, _COMPLETED if run.cancel_requested else _RETURNED
    verb = "complete"
    if run_end.exit_kind in (NO_OPTIONS.retry_on if run.options_text is None else run.options.retry_on):
        is_attempt = run_end.token is not None or run_end.verb == "reclaim"
        has_more = run.attempt < run.max_attempts and run_end.outcome not in NOT_RETRIED
        if is_attempt and has_more and not run.cancel_requested:
            verb = "reclaim" if run_end.verb == "reclaim" else "retry"
    return run, (run.state, str(advance(ENTRY, run.state, verb, run.sched_id)))


def _cancelled(run: RunRow, run_end: RunEnd) -> RunEnd:
    """Return how a run ends that was asked to stop: if it would have gone back to the queue, it is cancelled."""
    if run_end.report is not None and run_end.report.back is not None:
        return RunEnd(run.sched_id, "cancelled", run.token)
    return msgspec.structs.replace(run_end, exit_kind="cancelled") if run_end.verb == "reclaim" else run_end


def stale_claim_error(run: RunRow, token: int | None) -> StaleClaim:
    """Return the error for a token that is not the run's live claim."""
    text = f"token {token} is not the live claim of entry {run.sched_id}, which is {run.state}"
    hint = "The entry has ended; discard this result." if run.state in ENTRY.final else None
    return StaleClaim(text, hint=hint, sched_id=run.sched_id, token=token)


# --- a supervisor's report -----------------------------------------------------------------------


def _take_report(
    tx: Transaction, env: KernelEnvironment, run: RunRow, report: RunReport, now: float, *, is_final: bool
) -> RunRow:
    """Charge what was measured, return the run to the queue if it asks for that, and record how the run ended."""
    shared = env.cache.share_dim(tx)
    usage = {
        dim: amount
        for dim, amount in report.usage.items()
        if amount > 0 and (dim not in METERED or dim == shared or _is_budgeted(tx, run, dim))
    }
    if report.cpu_ms and _draws_on_cpu(tx, env, run):
        usage[CPU_UNIT] = report.cpu_ms
    if usage:
        usage = _fitting(usage, decode_spent(run.spent_text))
        run, _ = charge_run(tx, env, run, usage, now, model=report.model)
    if report.back is not None and not run.cancel_requested:
        delay_s = report.back_after_s or 0.0
        waits = bool(report.awaits) and dependencies.wait_for_any(tx, run.sched_id, run.options_text, report.awaits)
        if report.awaits and not waits:  # one has ended meanwhile: it may run again now
            return_to_queue(tx, env, run, report.back, now=now)
        else:
            return_to_queue(
                tx, env, run, report.back, now=now, runnable_at=report.back_at, delay_s=delay_s, waits=waits
            )
    event = RunEnded(
        sched_id=run.sched_id,
        attempt=run.attempt,
        exit_kind=report.exit_kind,
        outcome=report.back or report.outcome,
        wall_ms=report.wall_ms,
        usage=usage,
        stopped_by=report.stopped_by,
        cpu_ms=report.cpu_ms,
        failure=None if is_final or report.back is not None else failure_in(report.result),
        node=report.node,
        slot=report.slot,
    )
    append(tx, event, now=now, pid=run.pid)
    return run


def _fitting(usage: dict[str, int], spent: Mapping[str, int]) -> dict[str, int]:
    """Return usage without the dimensions that would be too many for a run; its end is recorded in any case."""
    room = DIMS_MAX - len(spent)
    new = [dim for dim in usage if dim not in spent]
    return usage if len(new) <= room else {dim: usage[dim] for dim in usage if dim not in new[max(room, 0) :]}


def _draws_on_cpu(tx: Transaction, env: KernelEnvironment, run: RunRow) -> bool:
    """Whether a run is charged to a context of CPU time. While no context exists, this reads nothing."""
    due = env.cache.due_summary(tx)
    if due is not None and not due.any_context:
        return False
    return draws_on_cpu(tx, decode_needs(run.needs_text), run.pid, run.project_id)


def _is_budgeted(tx: Transaction, run: RunRow, dim: str) -> bool:
    account = decode_needs(run.needs_text).account
    if account is not None and any(line.dim == dim for line in lines_of(tx, account.places)):
        return True
    return bool(tx.run(budget_sql.IS_BUDGETED, (run.pid, dim, run.project_id, ALL_PROJECTS)))


def charge_run(
    tx: Transaction,
    env: KernelEnvironment,
    run: RunRow,
    amounts: Mapping[str, int],
    now: float,
    *,
    covered: Mapping[str, Mapping[str, int]] | None = None,
    ask: str | None = None,
    model: str | None = None,
    node: str | None = None,
) -> tuple[RunRow, dict[str, ChargeResult]]:
    """Record what a live run used, at every level; returns the run as it is now and its agent's ledger lines.

    What it has acquired from a limit before is not charged to that again; `covered` says how much, if the charge
    settles an ask. `node` is the node of a graph whose coordinator the run is.
    """
    spent = dict(decode_spent(run.spent_text))
    for dim, amount in amounts.items():
        spent[dim] = spent.get(dim, 0) + amount
    if len(spent) > DIMS_MAX:
        raise LimitExceeded("dims_max", DIMS_MAX, len(spent), field="amounts")
    spent_text = _encode(spent).decode()
    tx.run(sql.SPEND, (spent_text, run.sched_id))
    if covered is None:
        covered = {} if run.spent_text is None else limit_asks.cover(tx, run.sched_id, run.token, amounts)
    needs = decode_needs(run.needs_text)
    account = needs.account
    if account is not None and node and not account.node:
        account = msgspec.structs.replace(account, node=node)
    payer = Payer(run.pid, run.project_id, needs, run.sched_id, covered, ask, model, account)
    lines = record_usage(tx, payer, dict(amounts), now, moves_flow=False)
    in_graph = None if account is None else charge_lines(tx, account, amounts, now, run.pid)
    over = over_budget_of(run.sched_id, run.token, needs, spent, lines, in_graph)
    if over is not None:
        append(tx, over, now=now, pid=run.pid)
    env.cache.touch(run.pid, run.project_id)
    env.cache.drop_due_summary()  # usage leaves its window later, and contexts refill
    return msgspec.structs.replace(run, spent_text=spent_text), lines


# --- writing -------------------------------------------------------------------------------------


def _write(
    tx: Transaction,
    env: KernelEnvironment,
    completed: list[tuple[RunRow, RunEnd]],
    retried: list[tuple[RunRow, RunEnd]],
    now: float,
) -> None:
    """Write what became of the runs, and adjust what is remembered."""
    if completed:  # first: a server works on it while the rest is prepared
        rows = []
        for run, end in completed:
            rows.append((now, end.exit_kind, end.outcome, end.result, run.sched_id))  # without a call, as in read_runs
        rows.sort(key=_sched_id)  # neighbours share pages
        tx.run_many(sql.COMPLETE, rows)
    costs: list[tuple[int, str | None, int]] = []  # what the flows have to be corrected by
    touched: list[tuple[int, str | None]] = []
    is_gone: dict[str, bool] = {}  # by worker
    shares: dict[str, tuple[int, int]] = {}  # by project: usage and number of runs
    shared = env.cache.share_dim(tx)
    for run, run_end in (*completed, *retried) if retried else completed:
        if run.estimate or run.spent_text is not None:
            cost = run.correction(shared, now)
            if cost:
                costs.append((run.pid, run.project_id, cost))
        if run.project_id is not None:  # also a failed run counts: else a project whose runs fail would stay first
            used, count = shares.get(run.project_id, (0, 0))
            shares[run.project_id] = used + run.cost(shared, now), count + 1
        if run_end.token is not None or run_end.verb == "reclaim":
            worker_id = run.stored_worker
            if isinstance(worker_id, str):
                is_gone[worker_id] = run_end.verb == "reclaim"  # it let a claim expire
        touched.append((run.pid, run.project_id))
    env.cache.touch_all(touched)
    seen = env.workers_seen
    for worker_id, gone in is_gone.items():
        seen.mark_gone(worker_id) if gone else seen.mark_seen(worker_id, env.clock_offset.read_at)
    moves = flows.moves_for_costs(tx, costs) if costs else []
    event_id = _write_completed(tx, env, completed, moves, now) if completed else 0
    if retried:
        event_id = _write_retries(tx, env, retried, moves if not completed else [], now)
    if shares:
        env.cache.add_shares(tx, shares, event_id, now)
    tx.effects.wake_parked = True


def _write_completed(
    tx: Transaction, env: KernelEnvironment, ended: list[tuple[RunRow, RunEnd]], moves: list[FlowMove], now: float
) -> int:
    """Record the runs that ended for good, and process the entries that waited for them; returns the event's id."""
    entries, ended_ids, awaited = [], [], []
    _end_spending(tx, [(run, end.exit_kind == "completed") for run, end in ended if run.spent_text is not None], now)
    for run, run_end in ended:
        entries.append(CompletedEntry(run.sched_id, run_end.exit_kind, run_end.outcome))
        ended_ids.append(run.sched_id)
        if run.awaited:
            awaited.append(run.sched_id)
    worker_id = ended[0][0].stored_worker
    event = EntriesCompleted(entries=entries, worker_id=worker_id if isinstance(worker_id, str) else None, flows=moves)
    event_id = append(tx, event, now=now)
    if moves:
        flows.save_moves(tx, moves, event_id=event_id)
    if awaited:
        ended_ids += dependencies.resolve_dependents(tx, env, awaited, now)
    env.waiters.notify_on_commit(tx, ended_ids)
    return event_id


def _end_spending(tx: Transaction, spenders: Sequence[tuple[RunRow, bool]], now: float) -> None:
    """End what runs asked of limits, used or not, and forget the keys of their charges.

    Only of runs with `spent`: the others charged nothing and asked for nothing.
    """
    for run, is_used in spenders:
        limit_asks.end_asks(tx, run.sched_id, run.token, run.project_id, now, is_used=is_used)
    if spenders:
        tx.run_many(budget_sql.CHARGE_KEYS_REMOVE, [(run.sched_id,) for run, _ in spenders])


class _Requeued(NamedTuple):
    """How a run goes back into the queue."""

    run: RunRow
    runnable_at: float
    attempt: int
    hold: str | None
    outcome: str | None = None
    by_date: bool = False


def backoff_s(backoff: Backoff, attempt: int, rng: random.Random) -> float:
    """Return a random delay after an attempt, at most base × factor^(attempt-1) and at most the cap."""
    try:
        longest = backoff.base_s * backoff.factor ** (attempt - 1)
    except OverflowError:
        longest = backoff.cap_s
    return rng.uniform(0.0, min(backoff.cap_s, longest))


def _write_retries(
    tx: Transaction, env: KernelEnvironment, retried: list[tuple[RunRow, RunEnd]], moves: list[FlowMove], now: float
) -> int:
    """Write the runs that are tried again, each after its own back-off, and keep what their attempts failed with.

    Returns the id of the last event.
    """
    event_id = 0
    errors = [(_options_after(run, run_end, now), run.sched_id) for run, run_end in retried]
    tx.run_many(queue_sql.SET_OPTIONS, [row for row in errors if row[0] is not None])
    verbs: tuple[Literal["retry", "reclaim"], ...] = ("retry", "reclaim")
    for verb in verbs:
        requeued = []
        for run, run_end in retried:
            if (run_end.verb == "reclaim") == (verb == "reclaim"):
                wait_s = backoff_s(run.options.backoff, run.attempt, env.rng)
                hold = "backoff" if wait_s > 0 else None
                requeued.append(_Requeued(run, now + wait_s, run.attempt, hold, run_end.outcome))
        if requeued:
            event_id = _write_requeued(tx, env, verb, requeued, moves, now=now)
            moves = []
    return event_id


def _options_after(run: RunRow, run_end: RunEnd, now: float) -> str | None:
    """Return the options of an entry with the error of the attempt that ends now; None if they cannot be decoded."""
    error = _error_of(run_end)[:ERROR_CHARS_MAX]
    return options_with_error(run.options_text, AttemptError(run.attempt, error, now))


def _error_of(run_end: RunEnd) -> str:
    """Return what a run failed with: the error in its result, else its outcome."""
    if run_end.result is not None:
        result = msgspec.json.decode(run_end.result)
        if isinstance(result, dict) and isinstance(result.get("error"), str) and result["error"]:
            return str(result["error"])
    return run_end.outcome or run_end.exit_kind


def return_to_queue(
    tx: Transaction,
    env: KernelEnvironment,
    run: RunRow,
    verb: Literal["preempt", "yield"],
    *,
    now: float,
    runnable_at: float | None = None,
    delay_s: float = 0.0,
    waits: bool = False,
) -> None:
    """Return a run to the queue without counting an attempt: now, after a delay, for a date, or to wait for others."""
    advance(ENTRY, run.state, verb, run.sched_id)
    by_date = runnable_at is not None and runnable_at > now
    runnable_at = now + delay_s if runnable_at is None else runnable_at
    correction = run.correction(env.cache.share_dim(tx), now)
    moves = flows.moves_for_costs(tx, [(run.pid, run.project_id, correction)])
    hold = "time" if runnable_at > now else "after" if waits else None
    requeued = _Requeued(run, runnable_at, run.attempt - 1, hold, by_date=by_date)
    _write_requeued(tx, env, verb, [requeued], moves, now=now)
    env.cache.touch(run.pid, run.project_id)
    tx.effects.wake_parked = True


def _write_requeued(
    tx: Transaction,
    env: KernelEnvironment,
    verb: Literal["reclaim", "retry", "preempt", "yield"],
    requeued: list[_Requeued],
    moves: list[FlowMove],
    *,
    now: float,
) -> int:
    """Write runs that go back into the queue; returns the id of their event."""
    _end_spending(tx, [(each.run, verb == "yield") for each in requeued if each.run.spent_text is not None], now)
    for each in requeued:
        if each.run.needs_text is not None:
            budget_loans.end_attempt(tx, each.run.sched_id, each.run.token)
    rows = [(r.hold, r.runnable_at, r.by_date, r.attempt, r.outcome, r.run.sched_id) for r in requeued]
    tx.run_many(sql.REQUEUE, rows)
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
    env.waiters.notify_on_commit(tx, event.sched_ids)  # the run has ended, although its entry has not
    env.cache.drop_due_summary()  # the hold or the deadline of an entry may be the next to fall due
    return event_id
