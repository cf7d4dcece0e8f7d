"""What runs have lent to their children."""

from __future__ import annotations

from rota.store.protocol import Statement

LEND = Statement(
    "loan_add",
    "Note what an entry was lent, by whom, and since when.",
    "INSERT INTO entry_loans (sched_id, parent_id, amounts, since_id) VALUES (?, ?, ?, ?)",
)
LOAN = Statement(
    "loan_of",
    "What an entry was lent.",
    "SELECT amounts FROM entry_loans WHERE sched_id = ?",
)
STANDING = Statement(
    "entry_standing",
    "What an entry asks for, and what its run has spent.",
    "SELECT needs, spent FROM agent_schedule_queue WHERE sched_id = ?",
)
SETTLED = Statement(
    "loans_settled",
    "Loans of a parent whose children have ended.",
    "SELECT l.sched_id, q.pid, l.amounts, l.since_id FROM entry_loans l JOIN agent_schedule_queue q "
    "ON q.sched_id = l.sched_id WHERE l.parent_id = ? AND +q.state IN ('completed','expired','cancelled') "
    "ORDER BY l.sched_id",
)
FORGET = Statement(
    "loan_forget",
    "Forget a loan that was settled.",
    "DELETE FROM entry_loans WHERE sched_id = ?",
)
CHARGED = Statement(
    "loan_charged",
    "What an entry was charged since it was lent something.",
    "SELECT json_extract(payload, '$.amounts') FROM agent_events WHERE pid = ?1 AND event_id > ?2 "
    "AND kind = 'kernel.ledger.charged' AND kind NOT GLOB 'kernel.sched.*' "
    "AND json_extract(payload, '$.sched_id') = ?3",
)
SET_NEEDS = Statement(
    "entry_set_needs",
    "Change what a live run asks for.",
    "UPDATE agent_schedule_queue SET needs = ? WHERE sched_id = ?",
)
