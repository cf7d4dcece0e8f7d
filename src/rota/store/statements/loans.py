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
# A claim's token is the id of its event, so a loan of that claim has a higher one.
OPEN = Statement(
    "loans_open",
    "Loans of live runs, given under their present claim and not collected: the child, the amounts and the parent.",
    "SELECT l.sched_id, c.pid, c.project_id, c.state, c.needs, c.spent, l.amounts, p.sched_id, p.pid, p.project_id, "
    "p.needs FROM agent_schedule_queue p INDEXED BY idx_sched_queue_live "
    "CROSS JOIN entry_loans l ON l.parent_id = p.sched_id AND l.since_id > p.token AND l.returned IS NULL "
    "CROSS JOIN agent_schedule_queue c ON c.sched_id = l.sched_id WHERE p.state = 'dispatched'",
)
GIVEN = Statement(
    "loans_given",
    "The loans that a run gave under a claim, collected or not.",
    "SELECT l.sched_id, c.state, c.needs, c.spent, l.amounts, l.returned FROM entry_loans l "
    "JOIN agent_schedule_queue c ON c.sched_id = l.sched_id WHERE l.parent_id = ?1 AND l.since_id > ?2 "
    "ORDER BY l.sched_id",
)
SETTLE = Statement(
    "loan_settle",
    "Record what a loan returned to its parent.",
    "UPDATE entry_loans SET returned = ? WHERE sched_id = ?",
)
FORGET = Statement(
    "loans_forget",
    "Delete the loans that a run gave under a claim.",
    "DELETE FROM entry_loans WHERE parent_id = ? AND since_id > ?",
)
SET_NEEDS = Statement(
    "entry_set_needs",
    "Change the needs of a live run.",
    "UPDATE agent_schedule_queue SET needs = ? WHERE sched_id = ?",
)
