"""Ledgers, budgets, and the rolling windows that budgets and shares are counted in."""

from __future__ import annotations

from rota.store.protocol import Statement

# --- an agent's ledger ---------------------------------------------------------------------------

LEDGER_CREATE = Statement(
    "ledger_create",
    "Give an agent an allowance in one dimension.",
    "INSERT INTO agent_ledgers (pid, dim, used, granted, hard_limit, warn_at) VALUES (?1, ?2, 0, ?3, ?3, ?4)",
)
LEDGER_GET = Statement(
    "ledger_get",
    "An agent's allowances.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at FROM agent_ledgers WHERE pid = ? ORDER BY dim",
)
LEDGER_LINE = Statement(
    "ledger_line",
    "An agent's allowance in one dimension.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at FROM agent_ledgers WHERE pid = ? AND dim = ?",
)
LEDGER_CHARGE = Statement(
    "ledger_charge",
    "Add usage to an allowance, over its limit too; a refund is less than nothing.",
    "UPDATE agent_ledgers SET used = used + ?1 WHERE pid = ?2 AND dim = ?3 AND used <= ?4 - ?1 "
    "RETURNING pid, dim, used, granted, hard_limit, warn_at",
)
LEDGER_GRANT = Statement(
    "ledger_grant",
    "Change an allowance; the limit is the grant.",
    "UPDATE agent_ledgers SET granted = ?1, hard_limit = ?1 WHERE pid = ?2 AND dim = ?3",
)
LEDGER_BREACHED = Statement(
    "ledger_breached",
    "Every allowance that is used up and more.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at FROM agent_ledgers WHERE used > hard_limit ORDER BY pid, dim",
)

# --- budgets of projects and of everybody ----------------------------------------------------------

BUDGET_SET = Statement(
    "budget_set",
    "Set a budget.",
    "INSERT INTO budgets (owner, dim, amount, window_s) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (owner, dim) DO UPDATE SET amount = excluded.amount, window_s = excluded.window_s",
)
BUDGET_DROP = Statement(
    "budget_drop",
    "Remove a budget.",
    "DELETE FROM budgets WHERE owner = ? AND dim = ?",
)
BUDGETS_OF = Statement(
    "budgets_of",
    "An owner's budgets and what was used in their windows.",
    "SELECT b.dim, b.amount, b.window_s, coalesce(w.used, 0), w.edge_at FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s WHERE b.owner = ?",
)
BUDGETS_ALL = Statement(
    "budgets_all",
    "Every budget and what was used in its window, less what has left it since.",
    "SELECT b.owner, b.dim, b.amount, b.window_s, coalesce(w.used, 0) - coalesce((SELECT sum(u.amount) "
    "FROM usage_buckets u WHERE u.owner = b.owner AND u.dim = b.dim AND u.window_s = b.window_s "
    "AND u.leaves_at <= ?1), 0) FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s "
    "ORDER BY b.owner, b.dim",
)

# --- rolling windows -----------------------------------------------------------------------------

WINDOW_OPEN = Statement(
    "window_open",
    "Begin to count an owner's usage in a window.",
    "INSERT INTO usage_windows (owner, dim, window_s) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
)
WINDOW_CLOSE = Statement(
    "window_close",
    "Count an owner's usage in a window no more.",
    "DELETE FROM usage_windows WHERE owner = ? AND dim = ? AND window_s = ?",
)
WINDOW_EMPTY = Statement(
    "window_empty",
    "Forget all buckets of a window.",
    "DELETE FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ?",
)
WINDOWS_OF = Statement(
    "windows_of",
    "What an owner used, in each of its windows.",
    "SELECT dim, window_s, used FROM usage_windows WHERE owner = ?",
)
WINDOWS_SHARED = Statement(
    "windows_shared",
    "What every owner used of one dimension in one window.",
    "SELECT owner, dim, used FROM usage_windows WHERE window_s = ? AND owner != '*'",
)
# ?1 owner, ?2 dim, ?3 amount, ?4 now, ?5 buckets in a window. A bucket leaves when all of it is out of the window.
BUCKET_ADD = Statement(
    "bucket_add",
    "Put usage into the present bucket of every window of its owner.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount) "
    "SELECT owner, dim, window_s, (CAST(?4 / (window_s / ?5) AS INTEGER) + 1) * (window_s / ?5) + window_s, ?3 "
    "FROM usage_windows WHERE owner = ?1 AND dim = ?2 "
    "ON CONFLICT (owner, dim, window_s, leaves_at) DO UPDATE SET amount = amount + excluded.amount",
)
WINDOW_ADD = Statement(
    "window_add",
    "Add usage to every window of its owner.",
    "UPDATE usage_windows SET used = used + ?3, edge_at = coalesce(edge_at, "
    "(CAST(?4 / (window_s / ?5) AS INTEGER) + 1) * (window_s / ?5) + window_s) WHERE owner = ?1 AND dim = ?2",
)
BUCKETS_NEWEST = Statement(
    "buckets_newest",
    "What lies in an owner's buckets of one dimension, newest first.",
    "SELECT window_s, leaves_at, amount FROM usage_buckets WHERE owner = ? AND dim = ? AND amount > 0 "
    "ORDER BY window_s, leaves_at DESC",
)
BUCKET_TAKE = Statement(
    "bucket_take",
    "Take usage out of a bucket again.",
    "UPDATE usage_buckets SET amount = amount - ? WHERE owner = ? AND dim = ? AND window_s = ? AND leaves_at = ?",
)
WINDOW_TAKE = Statement(
    "window_take",
    "Take usage off a window's sum again.",
    "UPDATE usage_windows SET used = used - ? WHERE owner = ? AND dim = ? AND window_s = ?",
)
WINDOWS_DUE = Statement(
    "windows_due",
    "Windows out of which a bucket has moved.",
    "SELECT owner, dim, window_s FROM usage_windows WHERE edge_at <= ? ORDER BY edge_at LIMIT +?",
)
BUCKETS_LEAVE = Statement(
    "buckets_leave",
    "Take out what has left a window.",
    "DELETE FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ? AND leaves_at <= ? RETURNING amount",
)
WINDOW_ROLL = Statement(
    "window_roll",
    "Take what has left a window off its sum, and note when the next bucket leaves.",
    "UPDATE usage_windows SET used = used - ?1, edge_at = (SELECT min(leaves_at) FROM usage_buckets b "
    "WHERE b.owner = ?2 AND b.dim = ?3 AND b.window_s = ?4) WHERE owner = ?2 AND dim = ?3 AND window_s = ?4",
)
