"""The file itself: its schema version, its settings, its integrity."""

from __future__ import annotations

from rota.store.protocol import Statement

META_EXISTS = Statement(
    "meta_exists",
    "Whether the file is a rota database.",
    "SELECT 1 FROM sqlite_schema WHERE name = 'kernel_meta'",
    postgres="SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'kernel_meta'",
)
META_GET = Statement(
    "meta_get",
    "Read a setting.",
    "SELECT value FROM kernel_meta WHERE key = ?",
)
META_SET = Statement(
    "meta_set",
    "Write a setting.",
    "INSERT INTO kernel_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
)
META_UNSET = Statement(
    "meta_unset",
    "Delete a setting.",
    "DELETE FROM kernel_meta WHERE key = ?",
)
META_PREFIX = Statement(
    "meta_prefix",
    "Every setting whose key is in a range, such as a common prefix.",
    "SELECT key, value FROM kernel_meta WHERE key >= ? AND key < ?",
)
INTEGRITY = Statement(
    "integrity",
    "The problems that SQLite finds in the file.",
    "PRAGMA integrity_check",
    postgres="SELECT 'the index ' || c.relname || ' is not valid' FROM pg_index i JOIN pg_class c ON c.oid = "
    "i.indexrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND NOT i.indisvalid "
    "ORDER BY c.relname",
)
ORPHANS = Statement(
    "orphans",
    "Rows that refer to a missing row.",
    "PRAGMA foreign_key_check",
    postgres="SELECT 'agent_schedule_queue', q.sched_id, 'agent_processes' FROM agent_schedule_queue q "
    "LEFT JOIN agent_processes p ON p.pid = q.pid WHERE p.pid IS NULL ORDER BY q.sched_id",
)
COLUMNS = Statement(
    "all_columns",
    "Every column of every table: the names of the table and of the column.",
    "SELECT t.name, c.name FROM pragma_table_list t, pragma_table_info(t.name) c WHERE t.schema = 'main' "
    "AND t.type = 'table' AND t.name NOT GLOB 'sqlite_*' ORDER BY t.name, c.cid",
    postgres="SELECT table_name::text, column_name::text FROM information_schema.columns "
    "WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position",
)
PARTIAL_INDEXES = Statement(
    "partial_indexes",
    "The indexes that have some rows of their table only, and the condition of each.",
    "SELECT name, tbl_name, substr(sql, instr(sql, 'WHERE ') + 6) FROM sqlite_schema WHERE type = 'index' "
    "AND instr(sql, 'WHERE ') ORDER BY name",
    postgres="SELECT c.relname::text, t.relname::text, pg_get_expr(i.indpred, i.indrelid) FROM pg_index i "
    "JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND i.indpred IS NOT NULL "
    "ORDER BY c.relname",
)
SPACE = Statement(
    "space",
    "The size of a page, the number of pages, and how many of them are free.",
    "SELECT page_size, page_count, freelist_count FROM pragma_page_size, pragma_page_count, pragma_freelist_count",
    postgres="SELECT current_setting('block_size')::bigint, coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint "
    "/ current_setting('block_size')::bigint, 0::bigint FROM pg_class c JOIN pg_namespace n "
    "ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'",
)
VACUUM_STEP = Statement(
    "vacuum_step",
    "Return some free pages to the file system, in a file that was created for it.",
    # few at a time: SQLite searches its list of free pages for each page at the end of the file
    "PRAGMA incremental_vacuum(100)",
    postgres="SELECT 1 WHERE false",
)
