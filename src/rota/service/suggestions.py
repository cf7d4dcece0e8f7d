"""What would start an entry: for each thing in its way the smallest change that lifts it.

A change names a verb of the kernel and the arguments to call it with, just large enough: a budget is raised to what
is used, reserved and asked for, a cap to one more than what runs. Where no verb helps, it says what to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rota.kernel.dry_run import Stage
from rota.kernel.projects import find_project
from rota.kernel.rows import KIND, PID, PROJECT
from rota.model import reasons
from rota.model.explanation import Change
from rota.model.lifecycle import ENTRY, EntryState
from rota.model.reasons import Blocking
from rota.store import Row
from rota.store.statements import budgets as budget_sql
from rota.store.statements import queue as queue_sql

__all__ = ["DEADLINE_S", "lifting"]

DEADLINE_S = 60.0  # from now, for one whose deadline has passed
BY = "operator"
WELL = ("completed", "completed")  # the state and the exit kind of what ended well


def lifting(stage: Stage, row: Row, blocked: Iterable[Blocking]) -> Iterator[Change]:
    """One change after the other; all of them together unblock the entry."""
    constraint: list[Blocking] = []
    for reason in blocked:
        match reason:
            case reasons.CapReached(level="project" | "kind") | reasons.PausedBy(level="project", by="constraint"):
                constraint.append(reason)
            case _:
                yield from _lift(stage, row, reason)
    if constraint:
        yield from _loosen(stage, row, constraint)


def _lift(stage: Stage, row: Row, reason: Blocking) -> Iterator[Change]:
    match reason:
        case reasons.NotYetRunnable() | reasons.BackingOff():
            yield _change(row, "let it be runnable now", runnable_at=stage.now)
        case reasons.PastDeadline():
            yield _change(row, "give it a later deadline", deadline=stage.now + DEADLINE_S)
        case reasons.AfterPredecessor():
            yield from _see_predecessors_through(stage, row)
        case reasons.OverBudget():
            yield _raise_budget(stage, reason)
        case reasons.LimitExhausted(until_at=until_at) | reasons.ContextDepleted(until_at=until_at):
            yield Change("wait for the refill" if until_at else "let live runs that draw on it end", until_at=until_at)
        case reasons.CapReached(running=running):
            arguments = {"pid": row[PID], "max_concurrent": running + 1}
            yield Change(f"let agent {row[PID]} run {running + 1} at once", "agents.update", arguments)
        case reasons.WorkspaceTaken():
            yield _free_workspace(row, reason)
        case reasons.PausedBy() | reasons.ProjectInactive():
            yield from _resume(row, reason)
        case reasons.NotQueued(state=state) if state != EntryState.DISPATCHED:
            yield Change("nothing starts it again: enqueue a new one")


def _see_predecessors_through(stage: Stage, row: Row) -> Iterator[Change]:
    """Those under way have to complete; for those that ended otherwise, somebody has to decide."""
    found = stage.tx.run(queue_sql.PREDECESSORS, (row[0],))
    waiting = [other for other, state, _ in found if state is not None and state not in ENTRY.final]
    failed = [other for other, state, how in found if state in ENTRY.final and (state, how) != WELL]
    if waiting:
        yield Change(f"let {', '.join(map(str, waiting))} complete")
    if failed:
        yield Change(f"let it run although {', '.join(map(str, failed))} failed", "queue.release", {"sched_id": row[0]})


def _change(row: Row, words: str, **changes: float) -> Change:
    return Change(words, "queue.change", {"sched_id": row[0], **changes})


def _raise_budget(stage: Stage, reason: reasons.OverBudget) -> Change:
    enough = reason.used + reason.reserved + reason.ask
    words = f"raise {reason.dim} of {reason.level} {reason.owner} from {reason.limit:,} to {enough:,}"
    if reason.level == "agent":
        return Change(words, "ledger.update_grant", {"pid": int(reason.owner), "dim": reason.dim, "granted": enough})
    window_s = stage.tx.run(budget_sql.BUDGET_WINDOW, (reason.owner, reason.dim))[0][0]
    arguments = {"level": reason.level, "owner": reason.owner, "dim": reason.dim, "limit": enough, "window_s": window_s}
    return Change(words, "ledger.set_budget", arguments, until_at=reason.frees_at)


def _free_workspace(row: Row, reason: reasons.WorkspaceTaken) -> Change:
    if reason.held_by:
        return Change(f"let {' or '.join(map(str, reason.held_by))} end, or add a workspace")
    if row[PROJECT] is None:
        return Change("it asks for a workspace, and only projects have them: put its agent into one")
    named = f" {reason.workspace}" if reason.workspace else ""
    return Change(f"add the workspace{named} to project {row[PROJECT]}")


def _resume(row: Row, reason: Blocking) -> Iterator[Change]:
    match reason:
        case reasons.PausedBy(level="agent"):
            yield Change(f"resume agent {row[PID]}", "agents.resume", {"pid": row[PID], "by": BY})
        case reasons.PausedBy(level="fleet"):
            yield Change("resume the fleet", "projects.resume_fleet", {"by": BY})
        case reasons.ProjectInactive(status="ARCHIVED"):
            yield _move(row, "restore")
            yield _move(row, "resume")
        case _:
            yield _move(row, "resume")


def _move(row: Row, verb: str) -> Change:
    return Change(f"{verb} project {row[PROJECT]}", "projects.move", {"project_id": row[PROJECT], "verb": verb})


def _loosen(stage: Stage, row: Row, blocked: list[Blocking]) -> Iterator[Change]:
    """What a project's own cap and the constraint on it forbid: one constraint says several things."""
    project = find_project(stage.tx, row[PROJECT])
    constraint, loosened = project.constraint, project.constraint
    for reason in blocked:
        match reason:
            case reasons.CapReached(level="kind", running=running):
                wider = {**loosened.max_by_kind, row[KIND]: running + 1}
                loosened = msgspec.structs.replace(loosened, max_by_kind=wider)
            case reasons.CapReached(running=running):
                if constraint.exclusive and running >= 1:
                    loosened = msgspec.structs.replace(loosened, exclusive=False)
                if project.max_concurrent is not None and running >= project.max_concurrent:
                    arguments: dict[str, Any] = {"project_id": row[PROJECT], "max_concurrent": running + 1}
                    yield Change(f"let project {row[PROJECT]} run {running + 1} at once", "projects.update", arguments)
            case _:
                loosened = msgspec.structs.replace(loosened, pause_scheduling=False)
    if loosened != constraint:
        arguments = {"project_id": row[PROJECT], "constraint": msgspec.to_builtins(loosened)}
        yield Change(f"loosen the constraint on project {row[PROJECT]}", "projects.constrain", arguments)
