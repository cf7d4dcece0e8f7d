"""What a store's address means besides opening it: how to show it, and where this host keeps files for it.

A file has its neighbours: `rota.db-logs`, `rota.db-daemon`. A store on PostgreSQL belongs to many hosts, and each of
them keeps the logs of its runs, the socket of its daemon and the locks of its workers in the user's state folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from rota.errors import InvalidInput, NotEnabled
from rota.lazy import late

if TYPE_CHECKING:
    import hashlib

    from psycopg import pq
else:
    hashlib = late("hashlib")
    pq = late("psycopg.pq")  # the package is an extra, and loaded where a store on PostgreSQL is used

__all__ = [
    "DEFAULT_SCHEMA",
    "SECRET",
    "PostgresUrl",
    "check_address",
    "driver_missing",
    "has_raw_password",
    "host_path",
    "is_mistyped",
    "is_postgres",
    "resolved",
    "shown_address",
    "without_password",
]

_DIGEST_CHARS = 10
_SHOWN_CHARS = 24  # of the schema, for people: the path of a socket may have 107 bytes, and a schema 58
SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")  # of libpq
OWN_PARAMETERS = ("schema", "pooler")  # of rota; all others are libpq's
DEFAULT_SCHEMA = "rota"
_DEFAULT_PORT = "5432"
_NO_MODE = "rota-resolves"  # no sslmode: libpq refuses it after it has resolved all parameters, and connects nowhere
_NEARLY = re.compile(r"\s*(postgres[\w+.-]*):", re.IGNORECASE)  # what people write for such a URL
_CONNECTION_TEXT = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|service|password|passfile)\s*=", re.IGNORECASE)
_BARE_IPV6 = re.compile(r"\[?[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*\]?")  # without brackets, or with one of them
_SECRET_WORD = re.compile(rf"\b(?:{'|'.join(SECRET)})\s*=", re.IGNORECASE)


class PostgresUrl(NamedTuple):
    """The parts of a URL as they were written. Python's `urlsplit` reads some of them otherwise than libpq."""

    scheme: str
    place: str  # user, password, hosts and ports
    path: str
    query: list[str]  # each `name=value`

    @classmethod
    def split(cls, url: str) -> PostgresUrl:
        """Split a URL, however wrong it is."""
        scheme, _, rest = url.partition("://")
        before, _, query = rest.partition("?")
        place, slash, path = before.partition("/")
        return cls(scheme, place, slash + path, [each for each in query.split("&") if each])

    def text(self) -> str:
        """Put the parts together again."""
        query = "&".join(self.query)
        return f"{self.scheme}://{self.place}{self.path}{'?' if query else ''}{query}"

    def own(self, name: str, default: str) -> str:
        """Return one of rota's own parameters; of several the last counts, as for libpq."""
        given = [unquote(each.partition("=")[2]) for each in self.query if _name(each) == name]
        return given[-1] if given else default

    def of_libpq(self) -> PostgresUrl:
        """Return the URL without rota's own parameters."""
        return self._replace(query=[each for each in self.query if _name(each) not in OWN_PARAMETERS])

    @property
    def has_password(self) -> bool:
        """Whether a message of libpq that quotes from the URL may show a secret."""
        return ":" in self.place.rpartition("@")[0] or any(_name(each).lower() in SECRET for each in self.query)


def _name(parameter: str) -> str:
    return unquote(parameter.partition("=")[0])


def is_postgres(url: str) -> bool:
    """Whether a store's name is that of a schema on PostgreSQL, and not a path."""
    return url.startswith(("postgresql://", "postgres://"))


def is_mistyped(address: str) -> bool:
    """Whether an address is no path but nearly the URL of a store on PostgreSQL, or libpq's other form, `host=db`."""
    return not is_postgres(address) and bool(_NEARLY.match(address) or _CONNECTION_TEXT.match(address))


def check_address(address: str) -> None:
    """Raise InvalidInput for an address that is nearly one of PostgreSQL: no file gets its name, or its password."""
    if is_mistyped(address):
        hint = "Write postgresql://user@host/database?schema=rota, in lower-case letters."
        raise InvalidInput(f"{without_password(address)} is not the URL of a store", field="store", hint=hint)


def driver_missing(problem: ModuleNotFoundError) -> NotEnabled:
    """Return the error of a store on PostgreSQL where its driver is not installed."""
    text = f"a store on PostgreSQL needs {problem.name}"
    return NotEnabled(text, hint="Install it: pip install 'rota[postgres]'.")


def shown_address(url: str) -> str:
    """Return an address for people and logs: a path with links resolved, a URL without its password."""
    shown = without_password(url)
    return shown if is_postgres(url) or shown != url else os.path.realpath(url)


def without_password(address: str) -> str:
    """Return an address as it was given, without the password of PostgreSQL: all that is printed goes through this.

    An address with a mistake is cut, because there is no saying where its password is.
    """
    if is_postgres(address) and not has_raw_password(address):
        return _without_secrets(PostgresUrl.split(address))
    if nearly := _NEARLY.match(address):
        return f"{nearly[1]}://…"
    if "://" in address and "@" in address:
        return f"{address.partition('://')[0]}://…"
    if (secret := _SECRET_WORD.search(address)) is not None:
        return f"{address[: secret.end()]}…"
    return address


def _without_secrets(url: PostgresUrl) -> str:
    kept: list[str] = []
    after_secret = False
    for each in url.query:
        if "=" in each:
            after_secret = _name(each).lower() in SECRET
        if not after_secret:  # else a secret, or the rest of one with an ampersand
            kept.append(each)
    user, at, hosts = url.place.rpartition("@")
    return url._replace(place=f"{user.partition(':')[0]}{at}{hosts}", query=kept).text()


def has_raw_password(url: str) -> bool:
    """Whether a URL seems to have a password that cannot be told from the rest.

    It has one of `/?#`, which must be percent-encoded: `ann:pass/word@host`; or no host follows it: `ann:password`.
    """
    rest = url.partition("://")[2]
    host = re.sub(r"\[[^]]*\]", "", re.split(r"[/?#]", rest, maxsplit=1)[0])  # without IPv6
    if "@" in host or ":" not in host:
        return False
    has_port = re.search(r":[0-9]*[^0-9,]", host) is None
    if has_port:
        return "@" in re.split(r"[?#]", rest, maxsplit=1)[0]
    return "@" in rest or _BARE_IPV6.fullmatch(host) is None


def host_path(url: str) -> str:
    """Return the path beside which this host keeps files for a store: `-logs`, `-daemon`, `-workers` are appended."""
    check_address(url)
    if not is_postgres(url):
        return os.path.realpath(url)
    parts = PostgresUrl.split(url)
    schema = parts.own("schema", DEFAULT_SCHEMA)
    digest = hashlib.sha256("\0".join([*_database(parts), schema]).encode()).hexdigest()[:_DIGEST_CHARS]
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state, "rota", f"{quote(schema, safe='')[:_SHOWN_CHARS]}-{digest}"))


def _database(parts: PostgresUrl) -> list[str]:
    """Return the hosts and the name of a database, as libpq resolves them: from the URL, a service, the environment.

    Who connects and how does not matter: all users of one schema on one host share these files.
    """
    given = resolved(parts)
    if not given:  # the URL has a mistake, which opening it reports
        return [parts.place.rpartition("@")[2], parts.path]
    names, addresses, ports = (given.get(name, "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(names), len(addresses))
    hosts = sorted({
        f"{_at(addresses, place) or _at(names, place).lower()}:{_at(ports, place) or _DEFAULT_PORT}"
        for place in range(count)
    })  # fmt: skip
    return [*hosts, given.get("dbname", "")]


def _at(values: list[str], place: int) -> str:
    """Return the value for one of several hosts; a single one is for all."""
    return values[place] if place < len(values) else values[0] if len(values) == 1 else ""


def resolved(parts: PostgresUrl) -> dict[str, str]:
    """Return libpq's parameters with all defaults; nothing if it cannot read the URL."""
    libpq = parts.of_libpq()
    text = libpq._replace(query=[*libpq.query, f"sslmode={_NO_MODE}"]).text()
    try:
        started = pq.PGconn.connect_start(text.encode())
    except ModuleNotFoundError as problem:
        raise driver_missing(problem) from problem
    found: list[Any] = started.info
    started.finish()
    return {each.keyword.decode(): each.val.decode(errors="replace") for each in found if each.val is not None}
