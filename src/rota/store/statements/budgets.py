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
    "SELECT pid, dim, used, granted, hard_limit, warn_at FROM agent_ledgers WHERE pid = +? ORDER BY dim",
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
BUDGET_WINDOW = Statement(
    "budget_window",
    "The window a budget is counted in.",
    "SELECT window_s FROM budgets WHERE owner = ? AND dim = ?",
)
BUDGETS_ALL = Statement(
    "budgets_all",
    "Every budget and what was used in its window, less what has left it since.",
    "SELECT b.owner, b.dim, b.amount, b.window_s, coalesce(w.used, 0) - coalesce((SELECT sum(u.amount) "
    "FROM usage_buckets u WHERE u.owner = b.owner AND u.dim = b.dim AND u.window_s = b.window_s "
    "AND u.leaves_at <= +?1), 0) FROM budgets b "
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
WINDOWS_SHARED = Statement(
    "windows_shared",
    "What every project used of what is shared, and how many runs it ended.",
    "SELECT owner, used, ended FROM usage_windows WHERE dim = 'share'",
)
# ?1 owner, ?2 dim, ?3 amount, ?4 runs that ended, ?5 now, ?6 buckets in a window. A bucket leaves when it is all out.
_LEAVES_AT = "(CAST(?5 / (window_s / ?6) AS INTEGER) + 1) * (window_s / ?6) + window_s"
BUCKET_ADD = Statement(
    "bucket_add",
    "Put usage into the present bucket of every window of its owner.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount, ended) "
    f"SELECT owner, dim, window_s, {_LEAVES_AT}, ?3, ?4 FROM usage_windows WHERE owner = ?1 AND dim = ?2 "
    "ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = amount + excluded.amount, ended = ended + excluded.ended",
)
WINDOW_ADD = Statement(
    "window_add",
    "Add usage to every window of its owner.",
    f"UPDATE usage_windows SET used = used + ?3, ended = ended + ?4, edge_at = coalesce(edge_at, {_LEAVES_AT}) "
    "WHERE owner = ?1 AND dim = ?2",
)
BUCKETS_NEWEST = Statement(
    "buckets_newest",
    "What lies in an owner's buckets of one dimension, newest first.",
    "SELECT window_s, leaves_at, amount FROM usage_buckets WHERE owner = +? AND dim = +? AND amount > 0 "
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
WINDOWS_OF_DIM = Statement(
    "windows_of_dim",
    "Whose usage is counted in a dimension, and in which windows.",
    "SELECT owner, window_s FROM usage_windows WHERE dim = ?",
)
BUCKETS_OF = Statement(
    "buckets_of",
    "What lies in a window: when each bucket leaves, what was used in it, how many runs ended in it.",
    "SELECT leaves_at, amount, ended FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ?",
)
BUCKET_PUT = Statement(
    "bucket_put",
    "Put usage into one bucket of a window.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount, ended) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = amount + excluded.amount, ended = ended + excluded.ended",
)
WINDOWS_DUE = Statement(
    "windows_due",
    "Windows out of which a bucket has moved.",
    "SELECT owner, dim, window_s FROM usage_windows WHERE edge_at <= +? ORDER BY edge_at LIMIT +?",
)
BUCKETS_LEAVE = Statement(
    "buckets_leave",
    "Take out what has left a window.",
    "DELETE FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ? AND leaves_at <= ? RETURNING amount, ended",
)
WINDOW_ROLL = Statement(
    "window_roll",
    "Take what has left a window off its sum, and note when the next bucket leaves.",
    "UPDATE usage_windows SET used = used - ?1, ended = ended - ?2, edge_at = (SELECT min(leaves_at) "
    "FROM usage_buckets b WHERE b.owner = ?3 AND b.dim = ?4 AND b.window_s = ?5) "
    "WHERE owner = ?3 AND dim = ?4 AND window_s = ?5",
)
WINDOW_SET = Statement(
    "window_set",
    "Set a window's sum, and note when its first bucket leaves.",
    "UPDATE usage_windows SET used = ?1, ended = ?2, edge_at = (SELECT min(leaves_at) "
    "FROM usage_buckets b WHERE b.owner = ?3 AND b.dim = ?4 AND b.window_s = ?5) "
    "WHERE owner = ?3 AND dim = ?4 AND window_s = ?5",
)
IS_BUDGETED = Statement(
    "dim_is_budgeted",
    "Whether a dimension is limited for an agent, its project or everybody.",
    "SELECT 1 FROM agent_ledgers WHERE pid = ?1 AND dim = ?2 "
    "UNION ALL SELECT 1 FROM budgets WHERE owner = ?3 AND dim = ?2 "
    "UNION ALL SELECT 1 FROM budgets WHERE owner = ?4 AND dim = ?2 LIMIT 1",
)
