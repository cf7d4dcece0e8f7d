"""Ledgers, budgets, and the rolling windows in which budgets and shares are counted."""

from __future__ import annotations

from rota.store.protocol import Statement

# --- ledgers of agents ---------------------------------------------------------------------------

LEDGER_CREATE = Statement(
    "ledger_create",
    "Create an agent's budget in one dimension.",
    "INSERT INTO agent_ledgers (pid, dim, used, granted, hard_limit, warn_at, alerts) "
    "VALUES (?1, ?2, 0, ?3, ?3, ?4, ?5)",
)
LEDGER_INHERIT = Statement(
    "ledger_inherit",
    "Copy the budgets of an agent to another one, with what was used.",
    "INSERT INTO agent_ledgers (pid, dim, used, granted, hard_limit, warn_at, alerts) VALUES (?, ?, ?, ?, ?, ?, ?)",
)
LEDGERS_OF_DEAD = Statement(
    "ledgers_of_dead",
    "The budgets of the last DEAD agent with a name in a project, or in none, that had any.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at, alerts FROM agent_ledgers WHERE pid = (SELECT max(p.pid) "
    "FROM agent_processes p JOIN agent_ledgers l ON l.pid = p.pid "
    "WHERE p.name = +?1 AND p.project_id IS ?2 AND p.state = 'DEAD') ORDER BY dim",
)
LEDGER_GET = Statement(
    "ledger_get",
    "An agent's budgets in every dimension.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at, alerts FROM agent_ledgers WHERE pid = +? ORDER BY dim",
)
LEDGER_LINE = Statement(
    "ledger_line",
    "An agent's budget in one dimension.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at, alerts FROM agent_ledgers WHERE pid = ? AND dim = ?",
)
CHARGE_KEY_ADD = Statement(
    "charge_key_add",
    "Remember the key of a charge; no row if the run has charged with it.",
    "INSERT INTO charge_keys (sched_id, charge_key) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING sched_id",
)
CHARGE_KEYS_REMOVE = Statement(
    "charge_keys_remove",
    "Forget the keys with which a run has charged.",
    "DELETE FROM charge_keys WHERE sched_id = ?",
)
LEDGER_CHARGE = Statement(
    "ledger_charge",
    "Add usage to a ledger line, also past its limit; a refund is negative.",
    "UPDATE agent_ledgers SET used = used + ?1 WHERE pid = ?2 AND dim = ?3 AND used <= ?4 - ?1 "
    "RETURNING pid, dim, used, granted, hard_limit, warn_at, alerts",
    # the sum of two whole numbers may not fit where PostgreSQL computes it
    postgres="UPDATE agent_ledgers SET used = used + ?1 WHERE pid = ?2 AND dim = ?3 "
    "AND used::numeric + ?1::bigint <= ?4::bigint RETURNING pid, dim, used, granted, hard_limit, warn_at, alerts",
    everyday=True,
)
LEDGER_GRANT = Statement(
    "ledger_grant",
    "Change a grant; the hard limit equals it.",
    "UPDATE agent_ledgers SET granted = ?1, hard_limit = ?1 WHERE pid = ?2 AND dim = ?3",
)
LEDGER_ALERTS = Statement(
    "ledger_alerts",
    "Set the shares of an agent's budget at which an alert is recorded.",
    "UPDATE agent_ledgers SET alerts = ? WHERE pid = ? AND dim = ?",
)
LEDGER_BREACHED = Statement(
    "ledger_breached",
    "Every ledger line with more usage than its hard limit.",
    "SELECT pid, dim, used, granted, hard_limit, warn_at, alerts FROM agent_ledgers WHERE used > hard_limit "
    "ORDER BY pid, dim",
)

LEDGER_MOVES = Statement(
    "ledger_moves",
    "An agent's charges and refunds after a time.",
    "SELECT kind, payload FROM agent_events WHERE pid = +?1 AND kind NOT GLOB 'kernel.sched.*' AND ts > +?2 "
    "AND kind IN ('kernel.ledger.charged', 'kernel.ledger.refunded')",
)

# --- budgets of projects and of the fleet --------------------------------------------------------

BUDGET_SET = Statement(
    "budget_set",
    "Set a budget.",
    "INSERT INTO budgets (owner, dim, amount, window_s, alerts, alerted) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (owner, dim) DO UPDATE SET amount = excluded.amount, window_s = excluded.window_s, "
    "alerts = excluded.alerts, alerted = excluded.alerted",
)
BUDGET_ALERTS = Statement(
    "budget_alerts",
    "The amount of a budget, the shares at which an alert is recorded, and when each was recorded last.",
    "SELECT amount, alerts, alerted FROM budgets WHERE owner = ? AND dim = ? AND window_s = ?",
)
BUDGET_ALERTED = Statement(
    "budget_alerted",
    "Record when alerts of a budget were recorded.",
    "UPDATE budgets SET alerted = ? WHERE owner = ? AND dim = ?",
)
BUDGET_DROP = Statement(
    "budget_drop",
    "Remove a budget.",
    "DELETE FROM budgets WHERE owner = ? AND dim = ?",
)
BUDGET_WINDOW = Statement(
    "budget_window",
    "The window a budget is counted in, its usage there, its alerts and when each was recorded last.",
    "SELECT b.window_s, coalesce(w.used, 0), b.alerts, b.alerted FROM budgets b LEFT JOIN usage_windows w "
    "ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s WHERE b.owner = ? AND b.dim = ?",
)
BUDGETS_ALL = Statement(
    "budgets_all",
    "Every budget and the usage in its window, without buckets that have left it.",
    "SELECT b.owner, b.dim, b.amount, b.window_s, coalesce(w.used, 0) - coalesce((SELECT sum(u.amount) "
    "FROM usage_buckets u WHERE u.owner = b.owner AND u.dim = b.dim AND u.window_s = b.window_s "
    "AND u.leaves_at <= +?1), 0), b.alerts FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s "
    "ORDER BY b.owner, b.dim",
    postgres="SELECT b.owner, b.dim, b.amount, b.window_s, coalesce(w.used, 0) - coalesce((SELECT sum(u.amount) "
    "FROM usage_buckets u WHERE u.owner = b.owner AND u.dim = b.dim AND u.window_s = b.window_s "
    "AND u.leaves_at <= ?1), 0)::bigint, b.alerts FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s "
    "ORDER BY b.owner, b.dim",
)

# --- rolling windows -----------------------------------------------------------------------------

WINDOW_OPEN = Statement(
    "window_open",
    "Start counting an owner's usage in a window.",
    "INSERT INTO usage_windows (owner, dim, window_s) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
)
WINDOW_CLOSE = Statement(
    "window_close",
    "Stop counting an owner's usage in a window.",
    "DELETE FROM usage_windows WHERE owner = ? AND dim = ? AND window_s = ?",
)
WINDOW_EMPTY = Statement(
    "window_empty",
    "Delete all buckets of a window.",
    "DELETE FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ?",
)
SHARES = Statement(
    "shares",
    "Weight, virtual time, usage and live runs of some projects, or of all (NULL); '' is no project.",
    "SELECT n.value, coalesce(p.weight, 1000), coalesce(f.virtual_time, 0), coalesce(w.used + coalesce(s.used, 0), 0), "
    "coalesce(l.reserved, 0), coalesce(l.live, 0), coalesce(w.ended + coalesce(s.ended, 0), 0) FROM json_each("
    "coalesce(?, (SELECT json_group_array(id) FROM (SELECT project_id AS id FROM projects UNION ALL SELECT '')))) n "
    "LEFT JOIN projects p ON p.project_id = n.value LEFT JOIN project_flows f ON f.project_id = n.value "
    "LEFT JOIN usage_windows w ON w.owner = n.value AND w.dim = 'share' LEFT JOIN (SELECT k.key AS owner, "
    "sum(json_extract(k.value, '$[0]')) AS used, sum(json_extract(k.value, '$[1]')) AS ended "
    "FROM share_notes, json_each(CASE WHEN json_valid(runs) THEN runs ELSE '{}' END) k "  # damaged ones count nothing
    "WHERE CASE k.type WHEN 'array' THEN json_type(k.value, '$[0]') = 'integer' "
    "AND json_type(k.value, '$[1]') = 'integer' END GROUP BY k.key) s ON s.owner = n.value LEFT JOIN ("
    "SELECT coalesce(project_id, '') AS name, count(*) AS live, sum(max(estimate, 1)) AS reserved "
    "FROM agent_schedule_queue WHERE state = 'dispatched' GROUP BY project_id) l ON l.name = n.value "
    "WHERE n.value = '' OR p.project_id IS NOT NULL",
    postgres="SELECT n.value, coalesce(p.weight, 1000), coalesce(f.virtual_time, 0), "
    "coalesce(w.used + coalesce(s.used, 0), 0), coalesce(l.reserved, 0), coalesce(l.live, 0), "
    "coalesce(w.ended + coalesce(s.ended, 0), 0) FROM ("
    "SELECT jsonb_array_elements_text(?1::jsonb) AS value UNION ALL SELECT project_id FROM projects WHERE ?1 IS NULL "
    "UNION ALL SELECT '' WHERE ?1 IS NULL) n "
    "LEFT JOIN projects p ON p.project_id = n.value LEFT JOIN project_flows f ON f.project_id = n.value "
    "LEFT JOIN usage_windows w ON w.owner = n.value AND w.dim = 'share' LEFT JOIN (SELECT k.owner, "
    "sum(k.used)::bigint AS used, sum(k.ended)::bigint AS ended "
    "FROM share_notes, rota_noted_runs(runs) k GROUP BY k.owner) s ON s.owner = n.value LEFT JOIN ("
    "SELECT coalesce(project_id, '') AS name, count(*) AS live, sum(greatest(estimate, 1))::bigint AS reserved "
    "FROM agent_schedule_queue WHERE state = 'dispatched' GROUP BY project_id) l ON l.name = n.value "
    "WHERE n.value = '' OR p.project_id IS NOT NULL",
)
# ?1 owner, ?2 dim, ?3 amount, ?4 runs that ended, ?5 now, ?6 buckets in a window. A bucket leaves when
# its whole span is older than the window.
_LEAVES_AT = "(CAST(?5 / (window_s / ?6) AS INTEGER) + 1) * (window_s / ?6) + window_s"
_LEAVES_AT_POSTGRES = "(trunc(?5 / (window_s / ?6))::bigint + 1) * (window_s / ?6) + window_s"  # a cast would round
BUCKET_ADD = Statement(
    "bucket_add",
    "Add usage to the current bucket of every window of its owner.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount, ended) "
    f"SELECT owner, dim, window_s, {_LEAVES_AT}, ?3, ?4 FROM usage_windows WHERE owner = ?1 AND dim = ?2 "
    "ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = amount + excluded.amount, ended = ended + excluded.ended",
    postgres="INSERT INTO usage_buckets AS b (owner, dim, window_s, leaves_at, amount, ended) "
    f"SELECT owner, dim, window_s, {_LEAVES_AT_POSTGRES}, ?3::bigint, ?4::bigint FROM usage_windows WHERE owner = ?1 "
    "AND dim = ?2 ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = b.amount + excluded.amount, ended = b.ended + excluded.ended",
    everyday=True,
)
WINDOW_ADD = Statement(
    "window_add",
    "Add usage to every window of its owner.",
    "UPDATE usage_windows SET used = used + ?3, ended = ended + ?4, "
    f"edge_at = min({_LEAVES_AT}, coalesce(edge_at, {_LEAVES_AT})) WHERE owner = ?1 AND dim = ?2",
    postgres="UPDATE usage_windows SET used = used + ?3, ended = ended + ?4, "
    f"edge_at = least(edge_at, {_LEAVES_AT_POSTGRES}) WHERE owner = ?1 AND dim = ?2",
    everyday=True,
)
SHARE_NOTE = Statement(
    "share_note",
    "Note runs that have ended, which are added to the share windows of their projects later.",
    "INSERT INTO share_notes (event_id, noted_at, runs) VALUES (?, ?, ?)",
    everyday=True,
)
SHARE_NOTES_ANY = Statement(
    "share_notes_any",
    "Whether ended runs are noted.",
    "SELECT 1 FROM share_notes LIMIT 1",
)
SHARE_NOTES_TAKE = Statement(
    "share_notes_take",
    "Remove the notes of ended runs, and return them.",
    "DELETE FROM share_notes RETURNING noted_at, runs",
    everyday=True,
)
WINDOW_CHARGE = Statement(
    "window_charge",
    "Add usage to every window of its owner; returns the sum, and the sum at which an alert is due.",
    f"{WINDOW_ADD.sql} RETURNING owner, dim, window_s, used, alert_at",
    postgres=f"{WINDOW_ADD.postgres} RETURNING owner, dim, window_s, used, alert_at",
    everyday=True,
)
WINDOW_ALERT = Statement(
    "window_alert",
    "Set the sum of a window at which the next alert is due.",
    "UPDATE usage_windows SET alert_at = ? WHERE owner = ? AND dim = ? AND window_s = ?",
)
BUCKETS_OLDEST = Statement(
    "buckets_oldest",
    "An owner's buckets of one dimension, oldest first.",
    "SELECT window_s, leaves_at, amount FROM usage_buckets WHERE owner = +? AND dim = +? AND amount > 0 "
    "ORDER BY window_s, leaves_at",
)
BUCKET_TAKE = Statement(
    "bucket_take",
    "Subtract usage from a bucket.",
    "UPDATE usage_buckets SET amount = amount - ? WHERE owner = ? AND dim = ? AND window_s = ? AND leaves_at = ?",
)
WINDOW_TAKE = Statement(
    "window_take",
    "Subtract usage from a window's sum.",
    "UPDATE usage_windows SET used = used - ?, alert_at = CASE WHEN dim = 'share' THEN NULL ELSE 0 END "
    "WHERE owner = ? AND dim = ? AND window_s = ?",
)
WINDOWS_OF_DIM = Statement(
    "windows_of_dim",
    "The owners and windows in which a dimension is counted.",
    "SELECT owner, window_s FROM usage_windows WHERE dim = ?",
)
BUCKETS_OF = Statement(
    "buckets_of",
    "The buckets of a window: when each leaves, its usage, its number of ended runs.",
    "SELECT leaves_at, amount, ended FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ?",
)
BUCKET_PUT = Statement(
    "bucket_put",
    "Add usage to one bucket of a window.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount, ended) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = amount + excluded.amount, ended = ended + excluded.ended",
    postgres="INSERT INTO usage_buckets AS b (owner, dim, window_s, leaves_at, amount, ended) VALUES (?, ?, "
    "?, ?, ?, ?) "
    "ON CONFLICT (owner, dim, window_s, leaves_at) "
    "DO UPDATE SET amount = b.amount + excluded.amount, ended = b.ended + excluded.ended",
)
WINDOWS_DUE = Statement(
    "windows_due",
    "Windows with a bucket that is due to leave.",
    "SELECT owner, dim, window_s FROM usage_windows WHERE edge_at <= +? ORDER BY edge_at LIMIT +?",
    postgres="SELECT owner, dim, window_s FROM usage_windows WHERE edge_at <= ? "
    "ORDER BY edge_at, owner, dim, window_s LIMIT ?",
)
BUCKETS_LEAVE = Statement(
    "buckets_leave",
    "Delete the buckets that have left a window.",
    "DELETE FROM usage_buckets WHERE owner = ? AND dim = ? AND window_s = ? AND leaves_at <= ? RETURNING amount, ended",
)
WINDOW_ROLL = Statement(
    "window_roll",
    "Subtract the buckets that left a window from its sum, and record when the next one leaves.",
    "UPDATE usage_windows SET used = used - ?1, ended = ended - ?2, "
    "alert_at = CASE WHEN dim = 'share' THEN NULL ELSE 0 END, edge_at = (SELECT min(leaves_at) "
    "FROM usage_buckets b WHERE b.owner = ?3 AND b.dim = ?4 AND b.window_s = ?5) "
    "WHERE owner = ?3 AND dim = ?4 AND window_s = ?5",
)
WINDOW_SET = Statement(
    "window_set",
    "Set a window's sum, and record when its first bucket leaves.",
    "UPDATE usage_windows SET used = ?1, ended = ?2, edge_at = (SELECT min(leaves_at) "
    "FROM usage_buckets b WHERE b.owner = ?3 AND b.dim = ?4 AND b.window_s = ?5) "
    "WHERE owner = ?3 AND dim = ?4 AND window_s = ?5",
)
IS_BUDGETED = Statement(
    "dim_is_budgeted",
    "Whether a dimension has a budget for an agent, its project or the fleet.",
    "SELECT 1 FROM agent_ledgers WHERE pid = ?1 AND dim = ?2 "
    "UNION ALL SELECT 1 FROM budgets WHERE owner = ?3 AND dim = ?2 "
    "UNION ALL SELECT 1 FROM budgets WHERE owner = ?4 AND dim = ?2 LIMIT 1",
)
