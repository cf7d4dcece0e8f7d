"""What a supervisor does besides claiming: reports on runs while they execute, children, and the states of agents.

Methods of the queue change entries and never an agent's state; a supervisor changes both. An agent is RUNNING while at
least one of its runs is live, and a crash between two commits would leave an agent RUNNING without a run. So a
supervisor's turn ends runs, claims the next ones and then settles the agents of both, in one transaction. They are
settled once, at the end, so an agent whose run ended and whose next run was claimed does not move:

    a live run, and READY or SUSPENDED      → (READY →) RUNNING
    no live run, and RUNNING or WAITING     → SUSPENDED → READY; an agent that is not re-runnable ends with its entry
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rota.errors import SchedInvalidPayload
from rota.kernel import affinity, budget_loans, contexts, limit_asks
from rota.kernel.agents import QUARANTINED_FOR, Agents, move_agent
from rota.kernel.entry_reads import EntryFilter
from rota.kernel.environment import KernelEnvironment
from rota.kernel.grants import check_reachable, may_reach
from rota.kernel.journal import append
from rota.kernel.limit_grants import LimitGrants
from rota.kernel.lookups import find_agent
from rota.kernel.queue import Queue
from rota.kernel.rows import agent_from_row, decode_needs, encode_json
from rota.kernel.run_tokens import RunTokens
from rota.kernel.turn import check_worker
from rota.model import events
from rota.model.agent_names import agent_named
from rota.model.checks import ID_CHARS_MAX, NOTE_CHARS_MAX, RESULT_BYTES_MAX, Checks
from rota.model.event_codec import run_checkpointed
from rota.model.work import Agent, ScheduleSpec
from rota.store import Transaction
from rota.store.author import acting_as
from rota.store.statements import agents as agent_sql
from rota.store.statements import claims as sql

__all__ = ["QUARANTINE", "Supervision"]

QUARANTINE = "quarantine"  # the `by` of a pause after repeated failures
ADVISORIES_MAX = 20  # of one run; more are left out
_run = Checks("RunReport", SchedInvalidPayload)


class Supervision(LimitGrants):
    """Starts, checkpoints, children and waits of runs, the states of agents, and the supervisor's own events."""

    def __init__(self, env: KernelEnvironment, agents: Agents, queue: Queue) -> None:
        self._env = env
        self._agents = agents
        self._queue = queue
        self.run_tokens = RunTokens(env)

    # --- runs ------------------------------------------------------------------------------------

    def began(
        self,
        sched_id: int,
        token: int,
        *,
        slot: str,
        runner: str,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
        node: str | None = None,
    ) -> None:
        """Record that a runner started an entry, and what of its settings is enforced and what is not as it reads."""
        told, held = _notes("advisories", advisories), _notes("enforced", enforced)
        _run.name("slot", slot)
        _run.name("runner", runner)
        if os_pid is not None:
            _run.whole("os_pid", os_pid, 1)
        _run.optional_name("node", node)
        now = self._env.now()

        def work(tx: Transaction) -> None:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            event = events.RunStarted(
                sched_id=sched_id,
                attempt=run.attempt,
                token=token,
                slot=slot,
                runner=runner,
                os_pid=os_pid,
                advisories=told,
                enforced=held,
                node=node,
            )
            append(tx, event, now=now, pid=run.pid)

        self._env.write_keeping_cache(work)

    def settings_changed(
        self, sched_id: int, token: int, *, advisories: Sequence[str] = (), enforced: Sequence[str] = ()
    ) -> None:
        """Record what of a run's settings is enforced from now on and what is not as it reads."""
        told, held = _notes("advisories", advisories), _notes("enforced", enforced)
        now = self._env.now()

        def work(tx: Transaction) -> None:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            event = events.RunSettingsChanged(
                sched_id=sched_id, attempt=run.attempt, token=token, advisories=told, enforced=held
            )
            append(tx, event, now=now, pid=run.pid)

        self._env.write_keeping_cache(work)

    def access_token(self, sched_id: int, token: int) -> str:
        """Return a run's own access token, which is valid while the claim lives (see run_tokens.py)."""
        return self.run_tokens.make(sched_id, token)

    def checkpoint(self, sched_id: int, token: int, state: dict[str, Any]) -> None:
        """Store a run's checkpoint: its next attempt gets it, and it is the result of a run that returns none."""
        body = encode_json("state", _run.mapping("state", state), RESULT_BYTES_MAX)
        now = self._env.now()

        def work(tx: Transaction) -> None:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            tx.run(sql.CHECKPOINT, (body, sched_id))
            with acting_as(f"run:{sched_id}"):
                append(tx, run_checkpointed(sched_id, token, body.encode()), now=now, pid=run.pid)

        self._env.write_keeping_cache(work)

    def progress(self, sched_id: int, token: int, fraction: float, text: str = "") -> int:
        """Record how far a run is; returns the event's id."""
        _run.number("fraction", fraction, 0, 1)
        if text != "":
            _run.text("text", text, NOTE_CHARS_MAX)
        now = self._env.now()

        def work(tx: Transaction) -> int:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            event = events.RunProgressed(sched_id=sched_id, attempt=run.attempt, fraction=float(fraction), text=text)
            with acting_as(f"run:{sched_id}"):
                return append(tx, event, now=now, pid=run.pid)

        return self._env.write_keeping_cache(work)

    # --- children --------------------------------------------------------------------------------

    def spawn(self, spec: ScheduleSpec, token: int, lent: Mapping[str, int] | None = None) -> int:
        """Enqueue a child of a run (`spec.parent_id`), with a part of the run's budget as the child's ceiling."""
        amounts = _run.amounts("lent", lent or {})
        parent_id = getattr(spec, "parent_id", None)
        if type(spec) is not ScheduleSpec or parent_id is None:
            raise _run.refuse("spec", "must be a ScheduleSpec with a parent_id")
        wanted = msgspec.structs.replace(spec, ceiling={**spec.ceiling, **amounts}) if amounts else spec
        now = self._env.now()

        def work(tx: Transaction) -> int:
            run = self._queue.live_run(tx, parent_id, _run.whole("token", token))
            with acting_as(f"run:{parent_id}"):
                is_known = self._queue.entry_with_key(tx, spec) is not None
                sched_id = self._queue.spawn_in(tx, wanted, run.project_id, now)
                if amounts and not is_known:  # an entry that has the key already keeps the budget that it has
                    budget_loans.lend(tx, parent_id, (sched_id, spec.pid), amounts, now)
            return sched_id

        return self._env.write(work)

    def agent_to_spawn(self, sched_id: int, token: int, name: str) -> Agent:
        """Return the agent that a name means to a run, among those that its project may reach."""
        _run.text("name", name)

        def work(tx: Transaction) -> Agent:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            found = [agent_from_row(row) for row in tx.run(agent_sql.FIND, (name,))]
            reached = [agent for agent in found if may_reach(tx, run.project_id, agent.project_id)]
            return agent_named(reached, name, near=run.project_id)

        return self._env.read(work)

    def throttle(self, sched_id: int, token: int, retry_after_s: float, name: str | None = None) -> dict[str, float]:
        """Pause a limit that a run draws on, or all of them; returns until when, by name.

        A pause lasts at most `THROTTLE_MAX_S`; a longer one is cut to that.
        """
        _run.duration("retry_after_s", retry_after_s)
        _run.optional_text("name", name)

        def work(tx: Transaction) -> dict[str, float]:
            now = self._env.read_clock(tx)
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            draws_on = dict.fromkeys(decode_needs(run.needs_text).draws_on)
            draws_on |= dict.fromkeys(ask.name for ask in limit_asks.asks_of(tx, sched_id, token))  # acquired
            if name is not None and name not in draws_on:
                raise _run.refuse("name", f"must be a limit that entry {sched_id} draws on, not {name!r}")
            names, owner = list(draws_on) if name is None else [name], (run.pid, run.project_id)
            with acting_as(f"run:{sched_id}"):
                paused = contexts.throttle_for_run(tx, names, retry_after_s, owner, now)
            if name is not None and not paused:
                raise contexts.unknown_limit(name)
            return paused

        return self._env.write(work)

    def rest(self, sched_id: int, token: int, *, waiting: bool, awaits: Sequence[int] = ()) -> dict[str, int]:
        """Record that a run starts or stops waiting for its children, or for other entries that it may reach.

        Its agent is WAITING meanwhile, unless another run of it executes. When the run stops waiting it gets back what
        its ended children left of their loans, which is the result.
        """
        _run.flag("waiting", waiting)
        _run.sequence("awaits", awaits)
        for awaited in awaits:
            _run.whole("awaits", awaited)
        now = self._env.now()

        def work(tx: Transaction) -> dict[str, int]:
            run = self._queue.live_run(tx, sched_id, _run.whole("token", token))
            check_reachable(tx, run.project_id, awaits)
            with acting_as(f"run:{sched_id}"):
                ((state, _project),) = tx.run(agent_sql.STATE, (run.pid,))
                if waiting and state == "RUNNING" and tx.run(sql.LIVE_RUNS, (run.pid,))[0][0] == 1:
                    move_agent(tx, run.pid, state, "WAITING", reason="children", now=now)
                elif not waiting and state == "WAITING":
                    move_agent(tx, run.pid, state, "RUNNING", reason="children_ended", now=now)
                return {} if waiting else budget_loans.collect(tx, sched_id, run.pid, token, now)

        return self._env.write(work)

    # --- the supervisor --------------------------------------------------------------------------

    def quarantine(
        self,
        pid: int,
        failures: int = 0,
        until_at: float | None = None,
        *,
        for_s: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Pause an agent: one that keeps failing until a given time, one with unusable settings until they change.

        The supervisor resumes the first kind after `for_s` (or at `until_at`). The second kind has a `reason` instead;
        writing the agent's metadata resumes it, and an agent that is already paused stays as it is.
        """
        _run.whole("failures", failures, 0)
        if reason is None:
            reason = self._agents.get(pid).unreadable  # its metadata must not be replaced by the end of a quarantine
        if reason is not None:
            self._quarantine_until_repaired(pid, failures, _run.text("reason", reason, NOTE_CHARS_MAX))
            return
        if for_s is None:
            _run.instant("until_at", until_at)
        else:
            _run.duration("for_s", for_s)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            end_at = until_at if for_s is None else now + for_s
            metadata = find_agent(tx, pid).metadata | {"quarantined_until": end_at}
            self._agents.update_in(tx, pid, {"metadata": metadata}, now)
            pause = events.Paused(level="agent", key=str(pid), by=QUARANTINE, reason=f"{failures} failures in a row")
            self._agents.set_pause_in(tx, pid, QUARANTINE, pause, now)
            append(tx, events.AgentQuarantined(failures=failures, until_at=end_at), now=now, pid=pid)

        self._env.write(work)

    def _quarantine_until_repaired(self, pid: int, failures: int, reason: str) -> None:
        if self._agents.get(pid).paused_by is None:
            self._agents.pause(pid, f"{QUARANTINED_FOR}{reason}"[:ID_CHARS_MAX])
            event = events.AgentQuarantined(failures=failures, reason=reason)
            self._env.write(lambda tx: append(tx, event, now=self._env.now(), pid=pid))

    def moved(self, worker_id: str, incarnation: str, verb: str) -> None:
        """Record that a supervisor started, drains, has drained, stopped, or took over."""
        check_worker(worker_id, incarnation)
        _run.one_of("verb", verb, ("started", "draining", "drained", "stopped", "took_over"))
        event = events.SupervisorChanged(worker_id=worker_id, incarnation=incarnation, verb=verb)  # type: ignore[arg-type]  # checked
        self._env.write(lambda tx: self._moved(tx, event))

    def _moved(self, tx: Transaction, event: events.SupervisorChanged) -> None:
        now = self._env.read_clock(tx)
        append(tx, event, now=now)
        if event.verb in ("draining", "stopped"):
            self._env.workers_seen.mark_gone(event.worker_id)
            affinity.expire_holds_for(tx, event.worker_id, now)

    # --- agents ----------------------------------------------------------------------------------

    def settle_agents(self, tx: Transaction, pids: Iterable[int], final: Mapping[int, str], now: float) -> None:
        """Make agents RUNNING exactly while one of their runs is live; end one-shot agents with their entry.

        `final` has the agents whose entry ended for good, with its exit kind.
        """
        wanted = sorted(pids)
        rows = tx.run_for(agent_sql.WITH_LIVE_RUNS, wanted) if wanted else []
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
            idle = [row[0] for row in tx.run_for(agent_sql.WITH_LIVE_RUNS, pids) if not row[2]]
            self.settle_agents(tx, idle, {}, now)
            return idle

        return self._env.write(work)


def _notes(field: str, texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_run.text(field, each, NOTE_CHARS_MAX) for each in texts[:ADVISORIES_MAX])


def _transitions(state: str, *, is_live: bool) -> tuple[str, ...]:
    """Return the states that an agent passes through to the one it should be in."""
    if is_live:
        return {"READY": ("RUNNING",), "SUSPENDED": ("READY", "RUNNING")}.get(state, ())
    return ("SUSPENDED", "READY") if state in ("RUNNING", "WAITING") else ()
