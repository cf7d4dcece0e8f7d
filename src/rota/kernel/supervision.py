"""What a supervisor does in one commit: runs end, their agents rest, the next are handed out, theirs work.

The queue knows runs and the agents know states, and no verb of the queue changes an agent's state. A supervisor is
who moves both, and it must not be seen in between: an agent is RUNNING while at least one of its runs lives, and a
crash between two commits would leave one RUNNING that nobody runs. So a *turn* does all of it at once:

    charge what was measured → end the runs, or put them back → record how they ended → hand out → settle the agents

Settling compares, once and at the end, so an agent whose run ended while its next one was handed out does not move:

    a live run, and READY or SUSPENDED      → (READY →) RUNNING
    no live run, and RUNNING or WAITING     → SUSPENDED → READY; one that is not re-runnable ends with its entry

A turn with nothing to say that is handed nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack

import msgspec

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId
from rota.kernel import affinity, budget_loans
from rota.kernel.agents import Agents
from rota.kernel.claim_request import COMPLETE_MAX, Answer, Ask, Asked, Turnover, ask_of, worker_of
from rota.kernel.completion import Ending, Run, not_live, runs_of
from rota.kernel.core import Core
from rota.kernel.entries import EntryFilter
from rota.kernel.journal import append
from rota.kernel.queue import Queue
from rota.kernel.rows import encode_json
from rota.kernel.usage_windows import EVERYBODY
from rota.model import events
from rota.model.checks import RESULT_BYTES_MAX, Checks
from rota.model.lifecycle import AGENT, verb_to
from rota.model.work import EXIT_KINDS, ReadyEntry, ScheduleSpec
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as sql

__all__ = ["METERED", "QUARANTINE", "RunReport", "Supervision"]

QUARANTINE = "quarantine"  # who has paused an agent that kept failing
METERED = frozenset({"cpu_s", "wall_s"})  # measured for every run, and charged where somebody budgets it

_report = Checks("RunReport", SchedInvalidPayload)
_encode = msgspec.json.Encoder().encode
_BACK = ("yield", "preempt")


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or that it goes back into the queue, with what was measured of it."""

    sched_id: int
    token: int
    exit_kind: str = "completed"
    outcome: str | None = None
    result: Any = None
    usage: dict[str, int] = {}  # not charged yet
    wall_ms: int = 0
    stopped_by: Literal["message", "TERM", "KILL"] | None = None
    back: Literal["yield", "preempt"] | None = None  # not an end
    back_at: float | None = None  # None: at once


Told: TypeAlias = tuple[RunReport, Ending]  # a report, and the end that it stands for if it is one


class Supervision:
    """Runs and their agents, moved together."""

    def __init__(self, core: Core, agents: Agents, queue: Queue) -> None:
        self._core = core
        self._agents = agents
        self._queue = queue

    # --- a turn ----------------------------------------------------------------------------------

    def turn(self, reports: Sequence[RunReport], *, wait_s: float = 0.0, **asked: Unpack[Asked]) -> Turnover:
        """Let runs end and take the next entries, with their agents, in one commit; while there are none, wait.

        With `max_n=0` nothing is taken. What ended is durable before the waiting begins.
        """
        _report.sequence("reports", reports)
        told = [(report, _checked(report)) for report in reports]
        if len(reports) > COMPLETE_MAX:
            raise _report.refuse("reports", f"may be at most {COMPLETE_MAX:,}, not {len(reports):,}")
        _report.duration("wait_s", wait_s)
        wants = asked.get("max_n", 1) != 0
        ask = ask_of(**asked) if wants else None
        if not reports and ask is not None and wait_s > 0:
            return Turnover([], self._queue.park(lambda tx: self._next(tx, ask), ask, wait_s))
        turnover = self._core.write_steadily(lambda tx: self._turn(tx, told, ask))
        if turnover.entries or ask is None or wait_s <= 0:
            return turnover
        return Turnover(turnover.answers, self._queue.park(lambda tx: self._next(tx, ask), ask, wait_s))

    def _turn(self, tx: Transaction, told: Sequence[Told], ask: Ask | None) -> Turnover:
        now = self._core.now()
        runs = runs_of(tx, [report.sched_id for report, _ in told]) if told else {}
        answers = self._end(tx, runs, told, now)
        final = {
            runs[report.sched_id].pid: report.exit_kind
            for (report, _), answer in zip(told, answers, strict=True)
            if not isinstance(answer, RotaError) and answer[1] == "completed"
        }
        entries = self._queue.hand_out(tx, ask) if ask is not None else []
        self._settle(tx, {run.pid for run in runs.values()} | {entry.pid for entry in entries}, final, now)
        return Turnover(answers, entries)

    def _next(self, tx: Transaction, ask: Ask) -> list[ReadyEntry]:
        entries = self._queue.hand_out(tx, ask)
        self._settle(tx, {entry.pid for entry in entries}, {}, self._core.now())
        return entries

    def _end(self, tx: Transaction, runs: dict[int, Run], told: Sequence[Told], now: float) -> list[Answer]:
        """End runs or put them back; one that is stale or unknown changes nothing and holds up nobody."""
        answers: dict[int, Answer] = {}
        endings: list[tuple[int, Ending]] = []
        seen: set[int] = set()
        for number, (report, ending) in enumerate(told):
            run = runs.get(report.sched_id)
            if run is None or run.state != "dispatched" or run.token != report.token or run.sched_id in seen:
                answers[number] = SchedUnknownId(report.sched_id) if run is None else not_live(run, report.token)
                continue
            seen.add(run.sched_id)
            usage = self._charge(tx, run, report.usage, now)
            if report.back is None:
                endings.append((number, ending))
            else:
                answers[number] = self._return(tx, run, report, now)
            append(tx, _fact(run, report, usage), now=now, pid=run.pid)
        if endings:
            ended = self._queue.end(tx, [ending for _, ending in endings], now)
            answers |= {number: answer for (number, _), answer in zip(endings, ended, strict=True)}
        return [answers[number] for number in range(len(told))]

    def _return(self, tx: Transaction, run: Run, report: RunReport, now: float) -> Answer:
        assert report.back is not None  # noqa: S101  # asked by the caller
        self._core.memo.forget()
        self._queue.return_run(tx, run, report.back, now if report.back_at is None else report.back_at, now)
        return run.state, "completed" if run.cancel_requested else "queued"

    def _charge(self, tx: Transaction, run: Run, usage: Mapping[str, int], now: float) -> dict[str, int]:
        """Charge what was measured; what is metered anyway, only where somebody budgets it."""
        charged = {
            dim: amount
            for dim, amount in usage.items()
            if amount > 0 and (dim not in METERED or self._is_budgeted(tx, run, dim))
        }
        if charged:
            self._queue.spend(tx, run, charged, now)
            self._core.memo.forget()
        return charged

    def _is_budgeted(self, tx: Transaction, run: Run, dim: str) -> bool:
        return bool(tx.run(budget_sql.IS_BUDGETED, (run.pid, dim, run.project_id, EVERYBODY)))

    # --- agents ----------------------------------------------------------------------------------

    def _settle(self, tx: Transaction, pids: Iterable[int], final: Mapping[int, str], now: float) -> None:
        """Let agents be RUNNING exactly while one of their runs lives."""
        wanted = sorted(pids)
        rows = tx.run(agent_sql.AT_WORK, (_encode(wanted).decode(),)) if wanted else []
        for pid, state, is_live, is_rerunnable in rows:
            if pid in final and not is_live and not is_rerunnable and state != "DEAD":
                self._agents.end(tx, pid, final[pid], {}, now)
                self._queue.cancel_some(tx, EntryFilter(pid=pid), now, "owner_terminated")
                continue
            for target in _way(state, is_live=bool(is_live)):
                self._move(tx, (pid, state, target), "run" if is_live else "run_ended", now)
                state = target  # noqa: PLW2901  # the next step begins where this one ended

    def _move(self, tx: Transaction, step: tuple[int, str, str], reason: str, now: float) -> None:
        pid, state, target = step
        verb_to(AGENT, state, target, pid)
        fact = events.ProcessTransitioned(prev_state=state, new_state=target, reason=reason)
        tx.run(agent_sql.MOVE, (target, reason, now, None, None, append(tx, fact, now=now, pid=pid), pid))

    def recover(self) -> list[int]:
        """At a supervisor's start: let agents rest whose runs nobody holds any more; their pids are the answer."""
        now = self._core.now()

        def work(tx: Transaction) -> list[int]:
            pids = [pid for pid, _ in tx.run(agent_sql.INTERRUPTED)]
            left = [row[0] for row in tx.run(agent_sql.AT_WORK, (_encode(pids).decode(),)) if not row[2]]
            self._settle(tx, left, {}, now)
            return left

        return self._core.write(work)

    # --- children --------------------------------------------------------------------------------

    def spawn(self, spec: ScheduleSpec, token: int, lent: Mapping[str, int] | None = None) -> int:
        """Enqueue a child of a run (`spec.parent_id`), with a part of the run's budget as the child's ceiling."""
        amounts = _report.amounts("lent", lent or {})
        parent_id = getattr(spec, "parent_id", None)
        if type(spec) is not ScheduleSpec or parent_id is None:
            raise _report.refuse("spec", "must be a ScheduleSpec that names its parent_id")
        wanted = msgspec.structs.replace(spec, ceiling={**spec.ceiling, **amounts}) if amounts else spec
        now = self._core.now()

        def work(tx: Transaction) -> int:
            self._queue.live(tx, parent_id, _report.whole("token", token))
            sched_id = self._queue.put(tx, wanted, now)
            if amounts:
                budget_loans.lend(tx, parent_id, (sched_id, spec.pid), amounts, now)
            return sched_id

        return self._core.write(work)

    def rest(self, sched_id: int, token: int, *, waiting: bool) -> dict[str, int]:
        """A run waits for its children, or goes on: its agent is WAITING meanwhile, unless another run of it works.

        When it goes on it gets back what its children left of what it lent them: that is the answer.
        """
        _report.flag("waiting", waiting)
        now = self._core.now()

        def work(tx: Transaction) -> dict[str, int]:
            run = self._queue.live(tx, sched_id, _report.whole("token", token))
            ((state, _project),) = tx.run(agent_sql.STATE, (run.pid,))
            if waiting and state == "RUNNING" and tx.run(sql.LIVE_RUNS, (run.pid,))[0][0] == 1:
                self._move(tx, (run.pid, state, "WAITING"), "children", now)
            elif not waiting and state == "WAITING":
                self._move(tx, (run.pid, state, "RUNNING"), "children_ended", now)
            return {} if waiting else budget_loans.collect(tx, sched_id, run.pid, now)

        return self._core.write(work)

    # --- what else is told of runs -----------------------------------------------------------------

    def began(self, sched_id: int, token: int, *, slot: str, runner: str, os_pid: int | None = None) -> None:
        """Record that a runner began an entry."""
        _report.text("slot", slot)
        _report.text("runner", runner)
        if os_pid is not None:
            _report.whole("os_pid", os_pid, 1)
        now = self._core.now()

        def work(tx: Transaction) -> None:
            run = self._queue.live(tx, sched_id, _report.whole("token", token))
            fact = events.RunStarted(
                sched_id=sched_id, attempt=run.attempt, token=token, slot=slot, runner=runner, os_pid=os_pid
            )
            append(tx, fact, now=now, pid=run.pid)

        self._core.write_steadily(work)

    def checkpoint(self, sched_id: int, token: int, state: dict[str, Any]) -> None:
        """Keep where a run stands: its next attempt is given it, and it is the result of a run that never gave one."""
        body = encode_json("state", _report.mapping("state", state), RESULT_BYTES_MAX)
        now = self._core.now()

        def work(tx: Transaction) -> None:
            run = self._queue.live(tx, sched_id, _report.whole("token", token))
            tx.run(sql.CHECKPOINT, (body, sched_id))
            append(tx, events.RunCheckpointed(sched_id=sched_id, token=token, state=state), now=now, pid=run.pid)

        self._core.write_steadily(work)

    def quarantine(self, pid: int, failures: int, until_at: float) -> None:
        """Leave an agent that keeps failing alone until then; whoever supervises lifts it."""
        _report.whole("failures", failures, 0)
        _report.instant("until_at", until_at)
        agent = self._agents.get(pid)
        self._agents.update(pid, metadata={**agent.metadata, "quarantined_until": until_at})
        self._agents.pause(pid, QUARANTINE, f"{failures} failures in a row")
        fact = events.AgentQuarantined(failures=failures, until_at=until_at)
        self._core.write(lambda tx: append(tx, fact, now=self._core.now(), pid=pid))

    def moved(self, worker_id: str, incarnation: str, verb: str) -> None:
        """Record that a supervisor started, drains, stopped, or took over."""
        worker_of(worker_id, incarnation)
        _report.one_of("verb", verb, ("started", "draining", "stopped", "took_over"))
        fact = events.SupervisorMoved(worker_id=worker_id, incarnation=incarnation, verb=verb)  # type: ignore[arg-type]  # checked
        self._core.write(lambda tx: self._moved(tx, fact))

    def _moved(self, tx: Transaction, fact: events.SupervisorMoved) -> None:
        now = self._core.now()
        append(tx, fact, now=now)
        if fact.verb in ("draining", "stopped"):
            self._core.seen.left(fact.worker_id)
            affinity.has_left(tx, fact.worker_id, now)


def _checked(report: RunReport) -> Ending:
    """What a report says about the end of its run, once it is found to be right."""
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
    return Ending(report.sched_id, report.exit_kind, report.token, result, report.outcome)


def _way(state: str, *, is_live: bool) -> tuple[str, ...]:
    """Through which states an agent goes to where it belongs."""
    if is_live:
        return {"READY": ("RUNNING",), "SUSPENDED": ("READY", "RUNNING")}.get(state, ())
    return ("SUSPENDED", "READY") if state in ("RUNNING", "WAITING") else ()


def _fact(run: Run, report: RunReport, usage: dict[str, int]) -> events.RunEnded:
    return events.RunEnded(
        sched_id=run.sched_id,
        attempt=run.attempt,
        exit_kind=report.exit_kind,
        outcome=report.back or report.outcome,
        wall_ms=report.wall_ms,
        usage=usage,
        stopped_by=report.stopped_by,
    )
