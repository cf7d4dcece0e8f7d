"""Budgets per period."""

from __future__ import annotations

from rota.store.protocol import Statement

_CONTEXT = (
    "context_id, bound_to, bound_id, unit, budget, period_ms, state, standing, refill_at, throttled_until, generation"
)

CREATE = Statement(
    "context_create",
    "Admit a context.",
    "INSERT INTO contexts (bound_to, bound_id, unit, budget, period_ms, state, standing) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING context_id",
)
GET = Statement(
    "context_get",
    "One context.",
    f"SELECT {_CONTEXT} FROM contexts WHERE context_id = ?",
)
BOUND = Statement(
    "context_bound",
    "The contexts that are bound to something and still valid.",
    f"SELECT {_CONTEXT} FROM contexts WHERE bound_to = +? AND bound_id = +? AND state != 'revoked' ORDER BY unit",
)
LIST = Statement(
    "context_list",
    "Every context, by id.",
    f"SELECT {_CONTEXT} FROM contexts ORDER BY context_id LIMIT +? OFFSET ?",
)
STAND = Statement(
    "context_stand",
    "Note where a context stands.",
    "UPDATE contexts SET budget = ?, period_ms = ?, state = ?, standing = ?, refill_at = ? WHERE context_id = ?",
)
REVOKE = Statement(
    "context_revoke",
    "Take a context back.",
    "UPDATE contexts SET state = 'revoked', refill_at = NULL, generation = generation + 1 WHERE context_id = ?",
)
THROTTLE = Statement(
    "context_throttle",
    "Let everybody who draws on a name wait.",
    # a pause is "at least so long": a shorter one does not cut a longer one short
    "UPDATE contexts SET throttled_until = max(coalesce(throttled_until, 0), ?1), "
    "refill_at = min(coalesce(refill_at, ?1), ?1) "
    "WHERE bound_to = 'name' AND bound_id = ?2 AND state != 'revoked' RETURNING throttled_until",
)
DUE = Statement(
    "context_due",
    "Contexts of which something comes back.",
    f"SELECT {_CONTEXT} FROM contexts WHERE refill_at <= +? ORDER BY refill_at LIMIT +?",
)
