"""Grants: which project may reach into which other one.

A project is a wall. Its runs start agents of their own project, wait for entries of their own project, and its entries
name only entries of their own project as `parent_id` or in `after`. An operator opens the wall in one direction: with a
grant from A to B, runs and entries of A reach into B as if it were their own project. It says nothing about the way
back, and not even from A by way of B into a third project. Agents and entries without a project are a scope of their
own: None here, an empty text in the store.

What lies behind a wall does not exist for those outside: they get the error of an id that was never used.
"""

from __future__ import annotations

from collections.abc import Iterable

from rota.errors import LimitExceeded, ProjectInvalid, SchedUnknownId
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import check_project_exists
from rota.model.checks import Checks
from rota.model.events import ProjectGranted, ProjectGrantRevoked
from rota.model.work import ProjectGrant
from rota.store import Row, Transaction
from rota.store.author import current_author
from rota.store.statements import projects as sql
from rota.store.statements import queue as queue_sql

__all__ = ["GRANTS_MAX", "Grants", "check_reachable", "may_reach", "unreachable_entry"]

GRANTS_MAX = 1_000  # in one store
_checks = Checks("ProjectGrant", ProjectInvalid)


def may_reach(tx: Transaction, from_project: str | None, to_project: str | None) -> bool:
    """Whether runs and entries of one project may reach into another; always within one."""
    if from_project == to_project:
        return True
    return bool(tx.run(sql.GRANT_GET, (from_project or "", to_project or "")))


def check_reachable(tx: Transaction, from_project: str | None, sched_ids: Iterable[int]) -> None:
    """Raise `SchedUnknownId` for the first entry that does not exist or that the project may not reach."""
    wanted = list(sched_ids)
    projects = {row[0]: row[3] for row in tx.run_for(queue_sql.STATES_OF, wanted)} if wanted else {}
    for sched_id in wanted:
        if sched_id not in projects or not may_reach(tx, from_project, projects[sched_id]):
            raise unreachable_entry(sched_id)


def unreachable_entry(sched_id: int) -> SchedUnknownId:
    """Return the error for an entry that does not exist, or as if it did not."""
    error = SchedUnknownId(sched_id)
    error.hint = (
        "Check the id. If the entry is of another project, an operator has to allow it: rota projects grant FROM TO."
    )
    return error


class Grants:
    """Granting, revoking and listing."""

    _env: KernelEnvironment

    def grant(self, from_project: str | None, to_project: str | None) -> ProjectGrant:
        """Let runs and entries of one project reach into another; None is no project. A second time changes nothing."""
        key = _key(from_project, to_project)

        def work(tx: Transaction) -> ProjectGrant:
            for project_id in filter(None, key):
                check_project_exists(tx, project_id)
            known = tx.run(sql.GRANT_GET, key)
            if known:
                return _from_row(known[0])
            if len(tx.run(sql.GRANTS, (GRANTS_MAX,))) == GRANTS_MAX:
                raise LimitExceeded("grants_max", GRANTS_MAX, GRANTS_MAX + 1)
            now = self._env.read_clock(tx)
            tx.run(sql.GRANT_ADD, (*key, now, current_author()))
            append(tx, ProjectGranted(from_project=key[0], to_project=key[1]), now=now)
            return _from_row(tx.run(sql.GRANT_GET, key)[0])

        return self._env.write(work)

    def revoke_grant(self, from_project: str | None, to_project: str | None) -> bool:
        """Take back a grant; returns whether there was one. What it allowed before stays as it is."""
        key = _key(from_project, to_project)

        def work(tx: Transaction) -> bool:
            revoked = bool(tx.run(sql.GRANT_REMOVE, key))
            if revoked:
                now = self._env.read_clock(tx)
                append(tx, ProjectGrantRevoked(from_project=key[0], to_project=key[1]), now=now)
            return revoked

        return self._env.write(work)

    def grants(self) -> list[ProjectGrant]:
        """Return every grant, by its projects."""
        return [_from_row(row) for row in self._env.read(lambda tx: tx.run(sql.GRANTS, (GRANTS_MAX,)))]


def _key(from_project: str | None, to_project: str | None) -> tuple[str, str]:
    """Check the two projects and return them as they are stored."""
    for field, project_id in (("from_project", from_project), ("to_project", to_project)):
        _checks.optional_text(field, project_id)
    if from_project == to_project:
        raise _checks.refuse("to_project", "must be another project: inside one, no grant is needed")
    return from_project or "", to_project or ""


def _from_row(row: Row) -> ProjectGrant:
    from_project, to_project, granted_at, granted_by = row
    return ProjectGrant(from_project or None, to_project or None, granted_at, granted_by)
