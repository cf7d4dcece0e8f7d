"""The inbox: what programs have enqueued in transactions of their own (kernel/inbox.py)."""

from __future__ import annotations

from rota.store.protocol import Statement

__all__ = ["TAKE"]

TAKE = Statement(
    "inbox_take",
    "Remove the oldest rows of the inbox and return them, in no order.",
    "DELETE FROM enqueue_inbox WHERE inbox_id IN (SELECT inbox_id FROM enqueue_inbox ORDER BY inbox_id LIMIT +?) "
    "RETURNING inbox_id, agent, payload, options, author, created_at",
)
