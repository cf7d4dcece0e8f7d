"""A supervisor's turn: runs end, the next entries are claimed, and the states of their agents follow, in one commit.

Methods of the queue change entries and never an agent's state; a supervisor changes both. An agent is RUNNING while at
least one of its runs is live, and a crash between two commits would leave an agent RUNNING without a run. So a *turn*
does everything in one transaction:

    charge measured usage → complete runs or return them → record how they ended → claim → update the agents

The agents are updated once, at the end, so an agent whose run ended and whose next run was claimed does not move:

    a live run, and READY or SUSPENDED      → (READY →) RUNNING
    no live run, and RUNNING or WAITING     → SUSPENDED → READY; an agent that is not re-runnable ends with its entry

A turn without reports that claims nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack

import msgspec

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId
from rota.kernel.agents import move_agent
from rota.kernel.claim_request import ClaimOptions, ClaimRequest, make_claim_request
from rota.kernel.claims import FindEntries, TurnResult, find_in_strict_order
from rota.kernel.completion import COMPLETE_MAX, CompletionAnswer, RunEnd, RunRow, read_runs, stale_claim_error
from rota.kernel.entries import EntryFilter
from rota.kernel.journal import append
from rota.kernel.rows import encode_json, json_list
from rota.kernel.run_progress import QUARANTINE, RunProgress
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model import events
from rota.model.checks import RESULT_BYTES_MAX, Checks
from rota.model.work import EXIT_KINDS, ReadyEntry
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import budgets as budget_sql

__all__ = ["METERED", "QUARANTINE", "RunReport", "Supervision"]

METERED = frozenset({"cpu_s", "wall_s"})  # measured for every run, and charged only where a budget exists

_report = Checks("RunReport", SchedInvalidPayload)
_BACK = ("yield", "preempt")


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or that it returns to the queue, with what was measured."""

    sched_id: int
    token: int
    exit_kind: str = "completed"
    outcome: str | None = None
    result: Any = None
    usage: dict[str, int] = {}  # not charged yet
    wall_ms: int = 0
    stopped_by: Literal["message", "TERM", "KILL"] | None = None
    back: Literal["yield", "preempt"] | None = None  # the run returns to the queue instead of ending
    back_at: float | None = None  # when it may run again; None: now


CheckedReport: TypeAlias = tuple[RunReport, RunEnd]


class Supervision(RunProgress):
    """What a supervisor does: turns, recovery, and reports on runs."""

    # --- a turn ----------------------------------------------------------------------------------

    def turn(
        self,
        reports: Sequence[RunReport],
        *,
        worker_id: str,
        max_n: int = 1,
        wait_s: float = 0.0,
        find: FindEntries = find_in_strict_order,
        find_key: Hashable = "strict",
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """End runs and claim the next entries, with their agents, in one commit; while there are none, wait.

        With `max_n=0` nothing is claimed. The reports are durable before the wait begins.
        """
        _report.sequence("reports", reports)
        checked = [(report, _check_report(report)) for report in reports]
        if len(reports) > COMPLETE_MAX:
            raise _report.refuse("reports", f"may be at most {COMPLETE_MAX:,}, not {len(reports):,}")
        _report.duration("wait_s", wait_s)
        request = make_claim_request(worker_id=worker_id, max_n=max_n, **options) if max_n != 0 else None

        def claim(tx: Transaction) -> list[ReadyEntry]:
            assert request is not None  # noqa: S101  # checked below
            return self._claim(tx, request, find)

        if not reports and request is not None and wait_s > 0:
            return TurnResult([], self._queue.park(claim, request, find_key, wait_s))
        result = self._env.write_keeping_cache(lambda tx: self._turn(tx, checked, request, find))
        if result.entries or request is None or wait_s <= 0:
            return result
        return TurnResult(result.answers, self._queue.park(claim, request, find_key, wait_s))

    def _turn(
        self, tx: Transaction, checked: Sequence[CheckedReport], request: ClaimRequest | None, find: FindEntries
    ) -> TurnResult:
        now = self._env.now()
        runs = read_runs(tx, [report.sched_id for report, _ in checked]) if checked else {}
        answers = self._end_runs(tx, runs, checked, now)
        final = {
            runs[report.sched_id].pid: report.exit_kind
            for (report, _), answer in zip(checked, answers, strict=True)
            if not isinstance(answer, RotaError) and answer[1] == "completed"
        }
        entries = self._queue.claim_in(tx, request, find) if request is not None else []
        self._update_agents(tx, {run.pid for run in runs.values()} | {entry.pid for entry in entries}, final, now)
        return TurnResult(answers, entries)

    def _claim(self, tx: Transaction, request: ClaimRequest, find: FindEntries) -> list[ReadyEntry]:
        entries = self._queue.claim_in(tx, request, find)
        self._update_agents(tx, {entry.pid for entry in entries}, {}, self._env.now())
        return entries

    def _end_runs(
        self, tx: Transaction, runs: dict[int, RunRow], checked: Sequence[CheckedReport], now: float
    ) -> list[CompletionAnswer]:
        """Complete runs or return them; a stale or unknown one changes nothing and does not affect the rest."""
        answers: dict[int, CompletionAnswer] = {}
        run_ends: list[tuple[int, RunEnd]] = []
        seen: set[int] = set()
        for number, (report, run_end) in enumerate(checked):
            run = runs.get(report.sched_id)
            if run is None or run.state != "dispatched" or run.token != report.token or run.sched_id in seen:
                answers[number] = (
                    SchedUnknownId(report.sched_id) if run is None else stale_claim_error(run, report.token)
                )
                continue
            seen.add(run.sched_id)
            usage = self._charge(tx, run, report.usage, now)
            if report.back is None:
                run_ends.append((number, run_end))
            else:
                answers[number] = self._put_back(tx, run, report, now)
            append(tx, _run_ended(run, report, usage), now=now, pid=run.pid)
        if run_ends:
            completed = self._queue.complete_in(tx, [run_end for _, run_end in run_ends], now)
            answers |= {number: answer for (number, _), answer in zip(run_ends, completed, strict=True)}
        return [answers[number] for number in range(len(checked))]

    def _put_back(self, tx: Transaction, run: RunRow, report: RunReport, now: float) -> CompletionAnswer:
        assert report.back is not None  # noqa: S101  # checked by the caller
        self._env.cache.invalidate()
        self._queue.put_back_in(tx, run, report.back, now if report.back_at is None else report.back_at, now)
        return run.state, "completed" if run.cancel_requested else "queued"

    def _charge(self, tx: Transaction, run: RunRow, usage: Mapping[str, int], now: float) -> dict[str, int]:
        """Charge measured usage; metered dimensions only where a budget exists."""
        charged = {
            dim: amount
            for dim, amount in usage.items()
            if amount > 0 and (dim not in METERED or self._is_budgeted(tx, run, dim))
        }
        if charged:
            self._queue.charge_in(tx, run, charged, now)
            self._env.cache.invalidate()
        return charged

    def _is_budgeted(self, tx: Transaction, run: RunRow, dim: str) -> bool:
        return bool(tx.run(budget_sql.IS_BUDGETED, (run.pid, dim, run.project_id, ALL_PROJECTS)))

    # --- agents ----------------------------------------------------------------------------------

    def _update_agents(self, tx: Transaction, pids: Iterable[int], final: Mapping[int, str], now: float) -> None:
        """Make agents RUNNING exactly while one of their runs is live; end one-shot agents with their entry."""
        wanted = sorted(pids)
        rows = tx.run(agent_sql.WITH_LIVE_RUNS, (json_list(wanted),)) if wanted else []
        for pid, state, is_live, is_rerunnable in rows:
            if pid in final and not is_live and not is_rerunnable and state != "DEAD":
                self._agents.terminate_in(tx, pid, final[pid], {}, now)
                self._queue.cancel_batch_in(tx, EntryFilter(pid=pid), now, "owner_terminated")
                continue
            for target in _transitions(state, is_live=bool(is_live)):
                move_agent(tx, pid, state, target, reason="run" if is_live else "run_ended", now=now)
                state = target  # noqa: PLW2901  # the next transition starts from here

    def recover(self) -> list[int]:
        """Move agents without a live run out of RUNNING and WAITING, when a supervisor starts; returns their pids."""
        now = self._env.now()

        def work(tx: Transaction) -> list[int]:
            pids = [pid for pid, _ in tx.run(agent_sql.INTERRUPTED)]
            idle = [row[0] for row in tx.run(agent_sql.WITH_LIVE_RUNS, (json_list(pids),)) if not row[2]]
            self._update_agents(tx, idle, {}, now)
            return idle

        return self._env.write(work)


def _check_report(report: RunReport) -> RunEnd:
    """Check a report and return the run end that it describes."""
    if type(report) is not RunReport:
        raise _report.refuse("reports", f"must be RunReports, not {type(report).__name__}")
    _report.whole("sched_id", report.sched_id)
    _report.whole("token", report.token)
    _report.one_of("exit_kind", report.exit_kind, EXIT_KINDS)
    if report.outcome is not None:
        _report.text("outcome", report.outcome)
    _report.amounts("usage", report.usage)
    _report.whole("wall_ms", report.wall_ms, 0)
    if report.back is not None:
        _report.one_of("back", report.back, _BACK)
    if report.back_at is not None:
        _report.instant("back_at", report.back_at)
    result = None if report.result is None else encode_json("result", report.result, RESULT_BYTES_MAX)
    return RunEnd(report.sched_id, report.exit_kind, report.token, result, report.outcome)


def _transitions(state: str, *, is_live: bool) -> tuple[str, ...]:
    """Return the states that an agent passes through to the one it should be in."""
    if is_live:
        return {"READY": ("RUNNING",), "SUSPENDED": ("READY", "RUNNING")}.get(state, ())
    return ("SUSPENDED", "READY") if state in ("RUNNING", "WAITING") else ()


def _run_ended(run: RunRow, report: RunReport, usage: dict[str, int]) -> events.RunEnded:
    return events.RunEnded(
        sched_id=run.sched_id,
        attempt=run.attempt,
        exit_kind=report.exit_kind,
        outcome=report.back or report.outcome,
        wall_ms=report.wall_ms,
        usage=usage,
        stopped_by=report.stopped_by,
    )
