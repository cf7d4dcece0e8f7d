"""Contexts: budgets per period."""

from __future__ import annotations

from rota.store.protocol import Statement

_CONTEXT = (
    "context_id, bound_to, bound_id, unit, budget, period_ms, state, standing, refill_at, throttled_until, generation, "
    "project_id"
)

CREATE = Statement(
    "context_create",
    "Create a context.",
    "INSERT INTO contexts (bound_to, bound_id, unit, budget, period_ms, state, standing, project_id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING context_id",
    postgres="INSERT INTO contexts (context_id, bound_to, bound_id, unit, budget, period_ms, state, standing, "
    "project_id) "
    "VALUES (coalesce((SELECT context_id FROM contexts ORDER BY context_id DESC LIMIT 1), 0) + 1, "
    "?, ?, ?, ?, ?, ?, ?, ?) RETURNING context_id",
)
GET = Statement(
    "context_get",
    "One context.",
    f"SELECT {_CONTEXT} FROM contexts WHERE context_id = ?",
)
BOUND = Statement(
    "context_bound",
    "The contexts of an owner that are not revoked.",
    f"SELECT {_CONTEXT} FROM contexts WHERE bound_to = +? AND bound_id = +? AND state != 'revoked' ORDER BY unit",
)
NAMED_FOR = Statement(
    "context_named_for",
    "The limits of a name that the entries of a project draw on: its own, and those of no project.",
    f"SELECT {_CONTEXT} FROM contexts WHERE bound_to = 'name' AND bound_id = +? AND state != 'revoked' "
    "AND (project_id IS NULL OR project_id = +?) ORDER BY unit, coalesce(project_id, '')",
)
LIST = Statement(
    "context_list",
    "Every context, by id.",
    f"SELECT {_CONTEXT} FROM contexts ORDER BY context_id LIMIT +? OFFSET ?",
)
LIST_WITHIN = Statement(
    "context_list_within",
    "A page of the contexts and limits of some projects and of their agents, by id; '' is no project.",
    f"SELECT {_CONTEXT} FROM contexts WHERE (bound_to = 'project' AND bound_id IN (SELECT value FROM json_each(?1))) "
    "OR (bound_to = 'name' AND project_id IN (SELECT value FROM json_each(?1))) "
    "OR (bound_to = 'agent' AND CAST(bound_id AS INTEGER) IN (SELECT pid FROM agent_processes "
    "WHERE coalesce(project_id, '') IN (SELECT value FROM json_each(?1)))) ORDER BY context_id LIMIT +?2 OFFSET ?3",
    postgres=f"SELECT {_CONTEXT} FROM contexts WHERE (bound_to = 'project' AND bound_id IN (SELECT value FROM "
    "json_each(?1))) OR (bound_to = 'name' AND project_id IN (SELECT value FROM json_each(?1))) "
    "OR (bound_to = 'agent' AND bound_id IN (SELECT pid::text FROM agent_processes "
    "WHERE coalesce(project_id, '') IN (SELECT value FROM json_each(?1)))) ORDER BY context_id LIMIT ?2 OFFSET ?3",
)
UPDATE = Statement(
    "context_update",
    "Update a context's budget, period, state, standing and refill time.",
    "UPDATE contexts SET budget = ?, period_ms = ?, state = ?, standing = ?, refill_at = ? WHERE context_id = ?",
)
STOP_REFILL = Statement(
    "context_stop_refill",
    "Refill a context no more.",
    "UPDATE contexts SET refill_at = NULL WHERE context_id = ?",
)
REVOKE = Statement(
    "context_revoke",
    "Revoke a context.",
    "UPDATE contexts SET state = 'revoked', refill_at = NULL, generation = generation + 1 WHERE context_id = ?",
)
THROTTLE = Statement(
    "context_throttle",
    "Throttle every user of the limits of a name until a time; with a project, only its own and those of no project.",
    # a shorter throttle does not end a longer one early
    "UPDATE contexts SET throttled_until = max(coalesce(throttled_until, 0), ?1), "
    "refill_at = min(coalesce(refill_at, ?1), ?1) "
    "WHERE bound_to = 'name' AND bound_id = ?2 AND state != 'revoked' "
    "AND (?3 OR project_id IS NULL OR project_id = ?4) RETURNING throttled_until",
)
RESUME = Statement(
    "context_resume",
    "End the throttle of a named limit; maintenance finds the next refill.",
    "UPDATE contexts SET throttled_until = NULL, refill_at = ?1 "
    "WHERE bound_to = 'name' AND bound_id = ?2 AND state != 'revoked' RETURNING context_id",
)
DUE = Statement(
    "context_due",
    "Contexts with a refill that is due.",
    f"SELECT {_CONTEXT} FROM contexts WHERE refill_at <= +? ORDER BY refill_at LIMIT +?",
    postgres=f"SELECT {_CONTEXT} FROM contexts WHERE refill_at <= ? ORDER BY refill_at, context_id LIMIT ?",
)
ANY_OF_CPU = Statement(
    "contexts_of_cpu_any",
    "Whether there is a context of CPU time.",
    "SELECT 1 FROM contexts INDEXED BY idx_context_cpu WHERE unit = 'cpu_ms' AND state != 'revoked' LIMIT 1",
)
OF_CPU = Statement(
    "contexts_of_cpu_list",
    "The contexts of CPU time, by id.",
    f"SELECT {_CONTEXT} FROM contexts WHERE unit = 'cpu_ms' AND state != 'revoked' ORDER BY context_id LIMIT +?",
)
