"""What a store's address means besides opening it: how to show it, and where this host keeps files for it.

A file has its neighbours: `rota.db-logs`, `rota.db-daemon`. A store on PostgreSQL belongs to many hosts, and each of
them keeps the logs of its runs, the socket of its daemon and the locks of its workers in the user's state folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote_plus, urlsplit

from rota.lazy import late

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = late("hashlib")

__all__ = ["SECRET", "has_raw_password", "host_path", "is_postgres", "shown_address", "without_password"]

_DIGEST_CHARS = 10
_SHOWN_CHARS = 24  # of the schema, for people: the path of a socket may have 107 bytes, and a schema 63
SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")  # of libpq
_DEFAULT_SCHEMA = "rota"


def is_postgres(url: str) -> bool:
    """Whether a store's name is that of a schema on PostgreSQL, and not a path."""
    return url.startswith(("postgresql://", "postgres://"))


def shown_address(url: str) -> str:
    """Return an address for people and logs: a path with links resolved, a URL without its password."""
    return without_password(url) if is_postgres(url) else os.path.realpath(url)


def without_password(address: str) -> str:
    """Return an address as it was given, without the password of PostgreSQL: all that is printed goes through this."""
    if not address.startswith(("postgres:", "postgresql:")):
        return address
    if not is_postgres(address) or has_raw_password(address):  # mistyped: there is no saying where the password is
        return f"{address.partition(':')[0]}://…"
    parts = urlsplit(address)  # put together by hand: the rest stays as it was written
    user, at, place = parts.netloc.rpartition("@")
    kept = [each for each in parts.query.split("&") if unquote_plus(each.partition("=")[0]) not in SECRET]
    query = "&".join(kept)
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}{'?' if query else ''}{query}"


def has_raw_password(url: str) -> bool:
    """Whether a URL seems to have a password with one of `/?#`, which must be percent-encoded: `ann:pass/word@host`."""
    rest = url.partition("://")[2]
    host = re.sub(r"\[[^]]*\]", "", re.split(r"[/?#]", rest, maxsplit=1)[0])  # without IPv6
    if "@" in host or ":" not in host:
        return False
    has_port = re.search(r":[0-9]*[^0-9,]", host) is None
    return "@" in (re.split(r"[?#]", rest, maxsplit=1)[0] if has_port else rest)


def host_path(url: str) -> str:
    """Return the path beside which this host keeps files for a store: `-logs`, `-daemon`, `-workers` are appended."""
    if not is_postgres(url):
        return os.path.realpath(url)
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    schema = given.get("schema", _DEFAULT_SCHEMA)
    # who connects and how does not matter: all users of one schema on one host share these files
    place = [
        parts.netloc.rpartition("@")[2],
        *(given.get(name, "") for name in ("host", "port")),
        parts.path.strip("/") or given.get("dbname", ""),
        schema,
    ]
    digest = hashlib.sha256("\0".join(place).encode()).hexdigest()[:_DIGEST_CHARS]
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state, "rota", f"{quote(schema, safe='')[:_SHOWN_CHARS]}-{digest}"))
