"""Where the daemons of a store that many hosts share are reached from other hosts.

A daemon that listens for other machines writes its address while it serves. The address of a daemon that was killed
stays until the next one of its host starts, so a reader of an address must expect that no daemon answers there.
"""

from __future__ import annotations

from rota.kernel.settings import delete_setting, read_setting, write_setting
from rota.store import Transaction

__all__ = ["KEY_PREFIX", "daemon_address_of", "forget_daemon_address", "write_daemon_address"]

KEY_PREFIX = "daemon_address:"  # of the setting; the host's name follows


def write_daemon_address(tx: Transaction, host: str, address: str) -> None:
    """Record that the daemon of a host serves at this address."""
    write_setting(tx, _key(host), address)


def forget_daemon_address(tx: Transaction, host: str, address: str) -> None:
    """Remove the address of a daemon that ends, unless another daemon of its host has replaced it."""
    if daemon_address_of(tx, host) == address:
        delete_setting(tx, _key(host))


def daemon_address_of(tx: Transaction, host: str) -> str | None:
    """Return where the daemon of a host is reached; None if none listens for other machines."""
    return read_setting(tx, _key(host))


def _key(host: str) -> str:
    return KEY_PREFIX + host
