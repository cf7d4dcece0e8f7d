"""The file itself: its stamp, its settings, its health."""

from __future__ import annotations

from rota.store.protocol import Statement

META_EXISTS = Statement(
    "meta_exists",
    "Whether this file is one of ours.",
    "SELECT 1 FROM sqlite_schema WHERE name = 'kernel_meta'",
)
META_GET = Statement(
    "meta_get",
    "Read a value of the file's own settings.",
    "SELECT value FROM kernel_meta WHERE key = ?",
)
META_SET = Statement(
    "meta_set",
    "Write a value of the file's own settings.",
    "INSERT INTO kernel_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
)
META_UNSET = Statement(
    "meta_unset",
    "Forget a value of the file's own settings.",
    "DELETE FROM kernel_meta WHERE key = ?",
)
META_UNDER = Statement(
    "meta_under",
    "Every value of the file's own settings whose key begins alike.",
    "SELECT key, value FROM kernel_meta WHERE key >= ? AND key < ?",
)
INTEGRITY = Statement(
    "integrity",
    "What SQLite itself finds wrong with the file.",
    "PRAGMA integrity_check",
)
ORPHANS = Statement(
    "orphans",
    "Rows that name a row which is not there.",
    "PRAGMA foreign_key_check",
)
