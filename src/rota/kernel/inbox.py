"""The inbox: entries that programs enqueue in transactions of their own, on PostgreSQL.

A program that keeps its data in the same database wants to write its rows and enqueue an entry together: both or
neither. It cannot take rota's turn for that. So it calls the schema's function `enqueue`, which only adds a row to the
inbox; the row is there when the program's transaction is committed. The first claim that sees it takes it in: removes
the row and enqueues the entry, in the claim's own transaction, so each row becomes one entry whatever is killed when.

Everything that `Queue.enqueue` checks is checked here. The program has long gone on, so what is refused becomes an
entry that ended as failed, with the outcome `refused` and the reason as its result. It belongs to the agent that the
row names; if there is no such agent, to one of the name `inbox`, which is created then and has no project.

The agent's settings fill in what the program left out, as for an entry enqueued by name. A delay counts from the call
of the function. The author is the database role that called it.

A row that cannot be written, for a reason not foreseen here, must not fail every claim. After a rollback fewer rows are
taken in together, at last one; if that one is undone again and again, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from rota.decoding import convert, decode_json
from rota.errors import AmbiguousAgent, NotFound, RotaError, SchedInvalidPayload
from rota.kernel.agents import Agents
from rota.kernel.completion import end_runs
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import find_agent
from rota.kernel.queue import Queue
from rota.kernel.rows import DECODE_ERRORS, agent_from_row, decode_problem, encode_json
from rota.kernel.run_reports import ERROR_CHARS_MAX, RunEnd
from rota.model.checks import INTEGER_MAX, PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, Checks
from rota.model.entry_defaults import settings_of, spec_for
from rota.model.events import ClaimedEntry, EntriesClaimed
from rota.model.lifecycle import AgentState
from rota.model.work import Agent, ScheduleSpec
from rota.store import Transaction
from rota.store.author import acting_as
from rota.store.statements import agents as agent_sql
from rota.store.statements import claims as claim_sql
from rota.store.statements import inbox as sql

__all__ = ["INBOX", "REFUSED", "TAKE_MAX", "UNDONE_MAX", "Inbox"]

INBOX = "inbox"  # the trigger of these entries, and the agent of those that name none
REFUSED = "refused"  # the outcome of an entry that could not be enqueued
TAKE_MAX = 256  # rows taken in by one transaction; halved after each one that is undone
UNDONE_MAX = 11  # after so many in a row the one that is left is refused
_checks = Checks("Inbox", SchedInvalidPayload)


class _InboxRow(NamedTuple):
    """What a program has asked for; the order is the statement's."""

    inbox_id: int
    agent: str
    payload: str
    options: str
    author: str
    created_at: float


class Inbox:
    """Takes in what is in the inbox."""

    def __init__(self, env: KernelEnvironment, agents: Agents, queue: Queue) -> None:
        self._env = env
        self._agents = agents
        self._queue = queue
        self._undone = 0  # transactions in a row that took rows in and were undone

    def take_in(self, tx: Transaction, now: float) -> None:
        """Enqueue the oldest rows of the inbox, at most `TAKE_MAX`, and remove them."""
        rows = [_InboxRow(*row) for row in sorted(tx.run(sql.TAKE, (max(1, TAKE_MAX >> self._undone),)))]
        tx.effects.on_rollback.append(partial(setattr, self, "_undone", self._undone + 1))
        tx.effects.on_commit.append(partial(setattr, self, "_undone", 0))
        agents = _AgentsByName(tx)
        for author, some in groupby(rows, key=lambda row: row.author):
            with acting_as(author):
                self._take_in_of_author(tx, some, agents, now)

    def _take_in_of_author(self, tx: Transaction, rows: Iterable[_InboxRow], agents: _AgentsByName, now: float) -> None:
        good: list[tuple[_InboxRow, ScheduleSpec]] = []
        bad: list[tuple[_InboxRow, RotaError]] = []
        for row in rows:
            try:
                if self._undone >= UNDONE_MAX:
                    raise _checks.refuse("row", f"could not be written: {self._undone} transactions were undone")
                good.append((row, _spec(agents, row, now)))
            except RotaError as problem:
                bad.append((row, problem))
        answers = self._queue.enqueue_each_in(tx, [spec for _, spec in good], now)
        bad += [(row, answer) for (row, _), answer in zip(good, answers, strict=True) if isinstance(answer, RotaError)]
        for row, reason in bad:
            self._refuse(tx, row, agents, reason, now)

    def _refuse(self, tx: Transaction, row: _InboxRow, agents: _AgentsByName, problem: RotaError, now: float) -> None:
        """Enqueue what can be shown of a row, and end it as failed: claimed by no worker, in the same transaction."""
        pid = self._agent_to_show(tx, row, agents, now)
        spec = ScheduleSpec(pid, trigger=INBOX, payload=_shown_payload(row), causation_id=_cause(row))
        sched_id = self._queue.enqueue_in(tx, spec, now)
        entries = [ClaimedEntry(sched_id, pid, 1)]
        token = append(tx, EntriesClaimed(worker_id=INBOX, incarnation="", entries=entries, policy="strict"), now=now)
        tx.run(claim_sql.CLAIM, (INBOX, "", now, now, 0.0, now, token, None, 0, sched_id))
        error = {"error": problem.message[:ERROR_CHARS_MAX], "code": problem.code, "agent": row.agent[:ERROR_CHARS_MAX]}
        result = encode_json("result", error, RESULT_BYTES_MAX)
        end_runs(tx, self._env, [RunEnd(sched_id, "failed", token, result, REFUSED)], now)

    def _agent_to_show(self, tx: Transaction, row: _InboxRow, agents: _AgentsByName, now: float) -> int:
        """Return the agent that a refused row belongs to."""
        try:
            agent = agents.find(row.agent, _options(row).get("project"))
            if agent.state != AgentState.DEAD:
                return agent.pid
        except RotaError:
            pass
        found = tx.run(agent_sql.FIND_IN_PROJECT, (INBOX, None))
        if found:
            return int(found[0][0])
        return self._agents.create_in(tx, INBOX, INBOX, metadata={}, project_id=None, now=now)


class _AgentsByName:
    """The agents that rows name, each read once."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._found: dict[tuple[str, str | None], Agent] = {}

    def find(self, agent: str, project_id: str | None) -> Agent:
        """Return the agent with this pid, or the one live agent with this name, of a project if one is named."""
        found = self._found.get((agent, project_id))
        if found is None:
            found = self._found[agent, project_id] = self._read(agent, project_id)
        return found

    def _read(self, agent: str, project_id: str | None) -> Agent:
        if agent.isascii() and agent.isdecimal():
            found = [find_agent(self._tx, min(int(agent[:20]), INTEGER_MAX))]
        else:
            found = [agent_from_row(row) for row in self._tx.run(agent_sql.FIND, (agent,))]
        if project_id is not None:
            found = [each for each in found if each.project_id == project_id]
        if not found:
            where = "" if project_id is None else f" in project {project_id!r}"
            raise NotFound(f"no live agent is named {agent!r}{where}", hint="`rota agents` lists them.")
        if len(found) > 1:
            hint = "Name its project in the options, or give its pid instead of its name."
            raise AmbiguousAgent(agent, {each.pid: each.project_id for each in found}, hint=hint)
        return found[0]


def _spec(agents: _AgentsByName, row: _InboxRow, now: float) -> ScheduleSpec:
    """Return the entry that a row asks for."""
    options = _options(row)
    agent = agents.find(row.agent, options.pop("project", None))
    if not_options := {"pid", "payload", "account"} & options.keys():
        raise _checks.refuse("options", f"must not have {min(not_options)}")
    try:  # an option of a wrong type or value, or that does not exist
        typed = convert({**options, "pid": agent.pid}, ScheduleSpec)
    except DECODE_ERRORS as problem:
        raise _checks.refuse("options", f"cannot be used: {decode_problem(problem)}") from None
    given = {"trigger": INBOX, "causation_id": _cause(row)} | {name: getattr(typed, name) for name in options}
    if typed.delay_s:  # it counts from the call
        given["delay_s"] = max(0.0, typed.delay_s - max(0.0, now - row.created_at))
    return spec_for(agent, settings_of(agent), _decoded("payload", row.payload), **given)


def _options(row: _InboxRow) -> dict[str, Any]:
    options = _decoded("options", row.options)
    if options.get("project") is not None:
        _checks.text("options.project", options["project"])
    return options


def _decoded(field: str, text: str) -> dict[str, Any]:
    try:
        return decode_json(text, dict[str, Any])
    except DECODE_ERRORS as problem:
        raise _checks.refuse(field, f"must be a JSON object: {decode_problem(problem)}") from None


def _shown_payload(row: _InboxRow) -> dict[str, Any]:
    """Return the payload of a refused row; nothing if it is not one, or too large."""
    try:
        payload = _decoded("payload", row.payload)
        encode_json("payload", payload, PAYLOAD_BYTES_MAX)
    except RotaError:
        return {}
    return payload


def _cause(row: _InboxRow) -> str:
    return f"inbox:{row.inbox_id}"
