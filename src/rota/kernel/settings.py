"""Settings: named texts in the store, read and written inside a transaction."""

from __future__ import annotations

import os

from rota.model.checks import SECONDS_MAX
from rota.store import Transaction
from rota.store.statements import file as sql

__all__ = [
    "STORE_ID",
    "delete_setting",
    "read_number",
    "read_setting",
    "settings_with_prefix",
    "store_id",
    "write_setting",
]

STORE_ID = "store_id"  # the setting
_ID_BYTES = 8


def read_setting(tx: Transaction, key: str) -> str | None:
    """Return a setting, or None."""
    rows = tx.run(sql.META_GET, (key,))
    return str(rows[0][0]) if rows else None


def read_number(tx: Transaction, key: str, default: float) -> float:
    """Return a setting that is a number, 0 or more; the default if there is none or it cannot be read."""
    text = read_setting(tx, key)
    try:
        number = default if text is None else float(text)
    except ValueError:
        return default
    return number if 0 <= number <= SECONDS_MAX else default


def write_setting(tx: Transaction, key: str, value: str) -> None:
    """Store a setting, replacing the previous one."""
    tx.run(sql.META_SET, (key, value))


def delete_setting(tx: Transaction, key: str) -> None:
    """Delete a setting, if it exists."""
    tx.run(sql.META_UNSET, (key,))


def settings_with_prefix(tx: Transaction, prefix: str) -> list[str]:
    """Return the settings whose key begins with a prefix."""
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return [str(value) for _, value in tx.run(sql.META_PREFIX, (prefix, after))]


def store_id(tx: Transaction) -> str:
    """Return the store's own random id in hex, and store it unless there is one: another file never has it."""
    found = read_setting(tx, STORE_ID)
    if found is None:
        found = os.urandom(_ID_BYTES).hex()
        write_setting(tx, STORE_ID, found)
    return found
