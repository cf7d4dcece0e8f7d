"""The policy setting of a store: a fact with an event, like every other change.

An opinion that differs from the one in force is refused unless it replaces it: an operator may, and a fleet whose own
opinion it is.

When what sharing counts (`share_by`) changes, past usage has another unit than future usage: virtual times and share
windows begin again at 0 for every owner, and live runs count only what they are charged.
"""

from __future__ import annotations

import msgspec

from rota.decoding import decode_json
from rota.errors import PolicyDiffers, PolicyInvalid
from rota.kernel.settings import delete_setting, read_setting, write_setting
from rota.kernel.usage_windows import count_notes, share_window_s
from rota.model.checks import Checks
from rota.model.policy_setting import DEFAULT_SHARE_BY, SHARE_DIMS, PolicySetting, ShareBy
from rota.store import Transaction
from rota.store.statements import flows as sql

__all__ = [
    "StorePolicy",
    "decode_policy",
    "encode_policy",
    "merged_policy",
    "merged_share_by",
    "read_store_policy",
    "restart_shares",
    "share_dim",
    "write_store_policy",
]

POLICY_KEY = "policy"
SHARE_BY_KEY = "share_by"
_checks = Checks("Policy", PolicyInvalid)
_encode = msgspec.json.Encoder(order="deterministic").encode


class _ShareSetting(msgspec.Struct, frozen=True):
    share_by: ShareBy
    by: str = ""


class StorePolicy(msgspec.Struct, frozen=True):
    """What the store says: the policy, if one was given, and what sharing counts."""

    setting: PolicySetting | None = None
    share_by: ShareBy = DEFAULT_SHARE_BY
    share_by_set_by: str | None = None


def encode_policy(setting: PolicySetting | None) -> str:
    """Return a setting as text; empty: none."""
    return "" if setting is None else _encode(setting).decode()


def decode_policy(text: str | None) -> PolicySetting | None:
    """Return a setting from its text; None if there is none or it cannot be read."""
    try:
        return decode_json(text, PolicySetting) if text else None
    except msgspec.DecodeError:  # also a ValidationError
        return None


def read_store_policy(tx: Transaction) -> StorePolicy:
    """Read both settings; what cannot be read counts as not given."""
    setting = decode_policy(read_setting(tx, POLICY_KEY))
    text = read_setting(tx, SHARE_BY_KEY)
    try:
        share = decode_json(text, _ShareSetting) if text else None
    except msgspec.DecodeError:
        share = None
    return StorePolicy(setting) if share is None else StorePolicy(setting, share.share_by, share.by)


def share_dim(tx: Transaction) -> str:
    """Return the dimension of usage that sharing counts on this store."""
    return SHARE_DIMS[read_store_policy(tx).share_by]


def write_store_policy(tx: Transaction, new: StorePolicy) -> None:
    """Write both settings."""
    if new.setting is None:
        delete_setting(tx, POLICY_KEY)
    else:
        write_setting(tx, POLICY_KEY, encode_policy(new.setting))
    if new.share_by_set_by is None:
        delete_setting(tx, SHARE_BY_KEY)
    else:
        write_setting(tx, SHARE_BY_KEY, _encode(_ShareSetting(new.share_by, new.share_by_set_by)).decode())


def merged_policy(known: PolicySetting | None, given: PolicySetting, *, replace: bool) -> PolicySetting:
    """Return the setting after an opinion; raises `PolicyDiffers` if it contradicts the one of another author."""
    if known is None or replace:
        return given
    if (known.name, known.params) != (given.name, given.params):
        raise PolicyDiffers(
            f"the policy of this store is {known.sentence()}, set by {known.by}, and {given.by} asks for "
            f"{given.sentence()}",
            hint=f"Leave the policy out, or change it for the whole store: rota policy set {_command(given)}.",
            policy=known.name,
            params=known.params,
            set_by=known.by,
        )
    return known


def merged_share_by(known: StorePolicy, given: ShareBy, by: str, *, replace: bool) -> tuple[ShareBy, str]:
    """Return what sharing counts after an opinion, and its author; raises `PolicyDiffers` as above."""
    _checks.one_of("share_by", given, tuple(SHARE_DIMS))
    if known.share_by_set_by is None or replace:
        return given, by
    if known.share_by != given:
        raise PolicyDiffers(
            f"this store shares by {known.share_by}, set by {known.share_by_set_by}, and {by} asks for {given}",
            hint=f"Leave share_by out, or change it for the whole store: rota policy set --share-by {given}.",
            share_by=known.share_by,
            set_by=known.share_by_set_by,
        )
    return known.share_by, known.share_by_set_by


def restart_shares(tx: Transaction, event_id: int) -> None:
    """Set all virtual times and share windows to 0, because sharing counts something else from now on."""
    for statement in (sql.AGENTS_RESTART, sql.PROJECTS_RESTART):
        tx.run(statement, (event_id,))
    count_notes(tx, share_window_s(tx))
    for statement in (sql.SHARE_WINDOWS_RESTART, sql.SHARE_BUCKETS_RESTART, sql.ESTIMATES_RESTART):
        tx.run(statement)


def _command(given: PolicySetting) -> str:
    params = (f"--param {key}={msgspec.json.encode(value).decode()}" for key, value in given.params.items())
    return " ".join([given.name, *params])
