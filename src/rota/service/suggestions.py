"""Suggestions: for each reason that blocks an entry, the smallest change that removes it.

A suggestion names a method and its arguments, just large enough: a budget is raised to what is used, reserved and
requested, a cap to one more than what runs. If no method helps, it says what to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rota.kernel.agents import QUARANTINED_FOR
from rota.kernel.dry_run import DryRun
from rota.kernel.lookups import find_project
from rota.kernel.rows import COMPLETED_AT, EXIT_KIND, KIND, PID, PROJECT, STATE
from rota.model import reasons
from rota.model.explanation import Suggestion
from rota.model.lifecycle import ENTRY, EntryState
from rota.model.money import amount_text, dim_text
from rota.model.reasons import BlockingBase
from rota.store import Row

__all__ = ["DEADLINE_S", "suggestions_for"]

DEADLINE_S = 3_600.0  # from now, for an entry whose deadline has passed
BY = "operator"
SUCCEEDED = ("completed", "completed")  # the state and exit kind of a successful entry


def suggestions_for(dry_run: DryRun, row: Row, blocked: Iterable[BlockingBase]) -> Iterator[Suggestion]:
    """Yield the changes that together unblock the entry."""
    constraint: list[BlockingBase] = []
    for reason in blocked:
        match reason:
            case (
                reasons.CapReached(level="project" | "kind")
                | reasons.PausedByOperator(level="project", by="constraint")
            ):
                constraint.append(reason)
            case _:
                yield from _remove_reason(dry_run, row, reason)
    if constraint:
        yield from _relax_constraint(dry_run, row, constraint)


def _remove_reason(dry_run: DryRun, row: Row, reason: BlockingBase) -> Iterator[Suggestion]:
    match reason:
        case reasons.NotYetRunnable() | reasons.BackingOff():
            yield _change(row, "make it runnable now", runnable_at=dry_run.now)
        case reasons.PastDeadline():
            yield _change(row, "give it a later deadline", deadline=dry_run.now + DEADLINE_S)
        case reasons.AfterPredecessor():
            yield from _resolve_predecessors(dry_run, row)
        case reasons.OverBudget():
            yield _raise_budget(dry_run, reason)
        case reasons.LimitExhausted(until_at=until_at) | reasons.ContextExhausted(until_at=until_at):
            yield Suggestion(
                "wait for the refill" if until_at else "wait until live runs that use it end", until_at=until_at
            )
        case reasons.CapReached(level="key", owner=key):
            yield Suggestion(f"wait until a run with the concurrency key {key} ends")
        case reasons.CapReached(running=running):
            arguments = {"pid": row[PID], "max_concurrent": running + 1}
            yield Suggestion(f"raise max_concurrent of agent {row[PID]} to {running + 1}", "agents.update", arguments)
        case reasons.WorkspaceTaken():
            yield _free_workspace(row, reason)
        case reasons.PausedByOperator() | reasons.ProjectInactive():
            yield from _resume(row, reason)
        case reasons.Unreadable():
            yield Suggestion("enqueue a new entry: the claim that reaches this one ends it as failed")
        case reasons.NotQueued(state=state) if state != EntryState.DISPATCHED:
            yield _again(dry_run, row)


def _again(dry_run: DryRun, row: Row) -> Suggestion:
    if row[STATE] == EntryState.EXPIRED and row[COMPLETED_AT] == dry_run.clock_now:  # the dry run expired it
        return _change(row, "give it a later deadline", deadline=dry_run.now + DEADLINE_S)
    if (row[STATE], row[EXIT_KIND]) == SUCCEEDED:
        return Suggestion("it has succeeded and cannot start again: enqueue a new entry")
    return Suggestion("it has ended: enqueue a copy of it", "queue.retry", {"sched_id": row[0]})


def _resolve_predecessors(dry_run: DryRun, row: Row) -> Iterator[Suggestion]:
    """Live predecessors have to complete; to run after failed ones, the entry must be released."""
    predecessors = dry_run.predecessors(row[0])
    waiting = [sched_id for sched_id, state, _ in predecessors if state is not None and state not in ENTRY.final]
    failed = [
        sched_id
        for sched_id, state, exit_kind in predecessors
        if state in ENTRY.final and (state, exit_kind) != SUCCEEDED
    ]
    if waiting:
        yield Suggestion(f"wait until {', '.join(map(str, waiting))} complete")
    if failed:
        yield Suggestion(f"run it although {', '.join(map(str, failed))} failed", "queue.release", {"sched_id": row[0]})


def _change(row: Row, words: str, **changes: float) -> Suggestion:
    return Suggestion(words, "queue.change", {"sched_id": row[0], **changes})


def _raise_budget(dry_run: DryRun, reason: reasons.OverBudget) -> Suggestion:
    enough = reason.used + reason.reserved + reason.ask
    before, after = amount_text(reason.dim, reason.limit), amount_text(reason.dim, enough)
    words = f"raise {dim_text(reason.dim)} of {reason.level} {reason.owner} from {before} to {after}"
    if reason.level == "agent":
        return Suggestion(
            words, "ledger.update_grant", {"pid": int(reason.owner), "dim": reason.dim, "granted": enough}
        )
    if reason.level == "graph":
        whose = f"node {reason.node} of graph run {reason.owner}" if reason.node else f"graph run {reason.owner}"
        words = f"raise {dim_text(reason.dim)} of {whose} from {before} to {after}"
        arguments = {"run_id": reason.owner, "dim": reason.dim, "limit": enough, "node": reason.node}
        return Suggestion(words, "ledger.set_graph_budget", arguments)
    window_s = dry_run.budget_window_s(reason.owner, reason.dim)
    arguments = {"level": reason.level, "owner": reason.owner, "dim": reason.dim, "limit": enough, "window_s": window_s}
    return Suggestion(words, "ledger.set_budget", arguments, until_at=reason.frees_at)


def _free_workspace(row: Row, reason: reasons.WorkspaceTaken) -> Suggestion:
    if reason.held_by:
        return Suggestion(f"wait until {' or '.join(map(str, reason.held_by))} ends, or add a workspace")
    if row[PROJECT] is None:
        return Suggestion("it needs a workspace, and only projects have workspaces: move its agent to a project")
    name = f" {reason.workspace}" if reason.workspace else ""
    return Suggestion(f"add the workspace{name} to project {row[PROJECT]}")


def _resume(row: Row, reason: BlockingBase) -> Iterator[Suggestion]:
    match reason:
        case reasons.PausedByOperator(level="agent", by=by) if str(by).startswith(QUARANTINED_FOR):
            yield Suggestion(f"correct the settings of agent {row[PID]}: reload its fleet file, or write its metadata")
        case reasons.PausedByOperator(level="agent"):
            yield Suggestion(f"resume agent {row[PID]}", "agents.resume", {"pid": row[PID], "by": BY})
        case reasons.PausedByOperator(level="fleet"):
            yield Suggestion("resume the fleet", "projects.resume_fleet", {"by": BY})
        case reasons.ProjectInactive(status="ARCHIVED"):
            yield _move(row, "restore")
            yield _move(row, "resume")
        case _:
            yield _move(row, "resume")


def _move(row: Row, verb: str) -> Suggestion:
    return Suggestion(f"{verb} project {row[PROJECT]}", "projects.move", {"project_id": row[PROJECT], "verb": verb})


def _relax_constraint(dry_run: DryRun, row: Row, blocked: list[BlockingBase]) -> Iterator[Suggestion]:
    """Relax the cap of a project and its constraint, which may block for several reasons."""
    project = find_project(dry_run.tx, row[PROJECT])
    constraint, relaxed = project.constraint, project.constraint
    for reason in blocked:
        match reason:
            case reasons.CapReached(level="kind", running=running):
                wider = {**relaxed.max_by_kind, row[KIND]: running + 1}
                relaxed = msgspec.structs.replace(relaxed, max_by_kind=wider)
            case reasons.CapReached(running=running):
                if constraint.exclusive and running >= 1:
                    relaxed = msgspec.structs.replace(relaxed, exclusive=False)
                if project.max_concurrent is not None and running >= project.max_concurrent:
                    arguments: dict[str, Any] = {"project_id": row[PROJECT], "max_concurrent": running + 1}
                    yield Suggestion(
                        f"raise max_concurrent of project {row[PROJECT]} to {running + 1}", "projects.update", arguments
                    )
            case _:
                relaxed = msgspec.structs.replace(relaxed, pause_scheduling=False)
    if relaxed != constraint:
        arguments = {"project_id": row[PROJECT], "constraint": msgspec.to_builtins(relaxed)}
        yield Suggestion(f"relax the constraint of project {row[PROJECT]}", "projects.constrain", arguments)
