"""What a store's address means besides opening it: how to show it, and where this host keeps files for it.

A file has its neighbours: `rota.db-logs`, `rota.db-daemon`. A store on PostgreSQL belongs to many hosts, and each of
them keeps the logs of its runs, the socket of its daemon and the locks of its workers in the user's state folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

__all__ = ["host_path", "is_postgres", "shown_address"]

_DIGEST_CHARS = 10
_SECRET = ("password", "sslpassword")
_DEFAULT_SCHEMA = "rota"


def is_postgres(url: str) -> bool:
    """Whether a store's name is that of a schema on PostgreSQL, and not a path."""
    return url.startswith(("postgresql://", "postgres://"))


def shown_address(url: str) -> str:
    """Return an address for people and logs: a path with links resolved, a URL without its password."""
    if not is_postgres(url):
        return os.path.realpath(url)
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRET]
    netloc = f"{user.partition(':')[0]}{at}{place}"
    query = urlencode(kept, quote_via=quote, safe="/")
    # not by `geturl`: it would leave the slashes out where there is no host
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


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
    return str(Path(state, "rota", f"{quote(schema, safe='')}-{digest}"))
