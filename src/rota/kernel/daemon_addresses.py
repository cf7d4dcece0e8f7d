"""Where the daemons of a store that many hosts share are reached from other hosts.

A daemon that listens for other machines says so while it serves. What a daemon that was killed has left is wrong until
the next one of its host: who reads an address has to be prepared for a daemon that is not there.
"""

from __future__ import annotations

from rota.kernel.settings import delete_setting, read_setting, write_setting
from rota.store import Transaction

__all__ = ["daemon_address_of", "forget_daemon_address", "write_daemon_address"]


def write_daemon_address(tx: Transaction, host: str, address: str) -> None:
    """The daemon of a host serves at this address."""
    write_setting(tx, _key(host), address)


def forget_daemon_address(tx: Transaction, host: str, address: str) -> None:
    """It does not any more, unless another one has taken its place."""
    if daemon_address_of(tx, host) == address:
        delete_setting(tx, _key(host))


def daemon_address_of(tx: Transaction, host: str) -> str | None:
    """Return where the daemon of a host is reached; None if none has said so."""
    return read_setting(tx, _key(host))


def _key(host: str) -> str:
    return f"daemon_address:{host}"
