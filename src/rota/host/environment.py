"""What of our environment a command gets to see: what is on the list, and what was named for it.

An environment is where secrets live, so nothing goes along by accident. The list has what programs need to find
themselves: where programs and the home folder are, who the user is, language and time zone, where temporary files go,
and where certificates lie. A key that a command needs is named by whoever starts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

__all__ = ["ALLOWED", "scrubbed"]

ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "TZ", "TMPDIR",
    "LANG", "LANGUAGE", "LC_*", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


def scrubbed(
    environment: Mapping[str, str], *, allow: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The part of an environment that is allowed (names or patterns such as `LC_*`), and what is set on top."""
    patterns = (*ALLOWED, *allow)
    kept = {name: value for name, value in environment.items() if any(fnmatchcase(name, p) for p in patterns)}
    return {**kept, **(extra or {})}
