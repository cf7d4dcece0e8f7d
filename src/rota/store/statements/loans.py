"""Budget that runs have lent to their child entries."""

from __future__ import annotations

from rota.store.protocol import Statement

LEND = Statement(
    "loan_add",
    "Record a loan: the child entry, the parent, the amounts, the event it began with.",
    "INSERT INTO entry_loans (sched_id, parent_id, amounts, since_id) VALUES (?, ?, ?, ?)",
)
LOAN = Statement(
    "loan_of",
    "The amounts lent to an entry.",
    "SELECT amounts FROM entry_loans WHERE sched_id = ?",
)
STANDING = Statement(
    "entry_standing",
    "An entry's needs, and its usage so far.",
    "SELECT needs, spent FROM agent_schedule_queue WHERE sched_id = ?",
)
SETTLED = Statement(
    "loans_settled",
    "Loans of a parent to children that have ended.",
    "SELECT l.sched_id, q.pid, l.amounts, l.since_id FROM entry_loans l JOIN agent_schedule_queue q "
    "ON q.sched_id = l.sched_id WHERE l.parent_id = ? AND +q.state IN ('completed','expired','cancelled') "
    "ORDER BY l.sched_id",
)
FORGET = Statement(
    "loan_forget",
    "Delete a settled loan.",
    "DELETE FROM entry_loans WHERE sched_id = ?",
)
CHARGED = Statement(
    "loan_charged",
    "The charges of an entry since its loan began.",
    "SELECT json_extract(payload, '$.amounts') FROM agent_events WHERE pid = ?1 AND event_id > ?2 "
    "AND kind = 'kernel.ledger.charged' AND kind NOT GLOB 'kernel.sched.*' "
    "AND json_extract(payload, '$.sched_id') = ?3",
)
SET_NEEDS = Statement(
    "entry_set_needs",
    "Change the needs of a live run.",
    "UPDATE agent_schedule_queue SET needs = ? WHERE sched_id = ?",
)
