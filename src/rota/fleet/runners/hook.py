"""The hook runner: sends a delivery as an HTTP POST.

The entry's payload (hook_rules.py) is the body, as JSON. The address and further headers are in the settings' `env`,
because these are the values that no reader is shown: `url`, and `header:NAME` for each header. `${NAME}` in them is
replaced by a variable of the supervisor when it is sent, so that a secret need not be in the store at all.

    rota-delivery-id   the same in every attempt, so that a receiver can tell a repeated delivery
    rota-attempt       1, 2, …
    rota-event         the name or kind that the hook asked for

An answer of 200 to 299 is success. Everything else fails and is retried with a back-off, except 400 to 499: then the
receiver refuses the request and would refuse it again (408 and 429 say that it may be repeated). Redirects are not
followed, so a body never goes to an address that the file does not name. The time to connect, the time of the whole
run (`limits.wall_s`) and the size of what is read of an answer are limited.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from urllib.parse import SplitResult, urlsplit

import msgspec

from rota.fleet.runners.contract import Assignment, RunChannel, RunOutcome

__all__ = ["HEADER_PREFIX", "URL", "HookRunner", "shown_address", "url_problem"]

URL = "url"  # the key of the address in `env`
HEADER_PREFIX = "header:"  # of the keys of headers in `env`
CONNECT_S = 10.0  # maximum time to connect, TLS included
TOTAL_S = 30.0  # maximum time of a delivery whose settings name none
LATE_S = 5.0  # how much later than the supervisor the socket itself gives up
ANSWER_BYTES_MAX = 4_096  # of an answer's body, for the error
TEXT_CHARS_MAX = 500  # of an answer's body in the error
REFUSED = "hook_refused"  # the outcome after which a delivery is not retried
RETRIED_4XX = (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HookRunner:
    """Sends deliveries."""

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Send the entry's payload and return how that went."""
        try:
            request = _Request(assignment)
        except ValueError as problem:
            return _failed(str(problem))
        channel.started(request)
        try:
            status, text = request.send()
        except (OSError, http.client.HTTPException, ValueError) as problem:  # ssl.SSLError is an OSError
            return _failed(f"{request.shown}: {_reason(problem)}")
        finally:
            request.close()
        channel.log(f"POST {request.shown}: {status}\n".encode())
        if http.client.OK <= status < http.client.MULTIPLE_CHOICES:
            return RunOutcome(result={"status": status})
        is_final = http.client.BAD_REQUEST <= status < http.client.INTERNAL_SERVER_ERROR and status not in RETRIED_4XX
        answer = f"{request.shown} answered {status}" + (f": {text}" if text else "")
        return _failed(answer, REFUSED if is_final else None, status)

    def close(self) -> None:
        """Deliveries share nothing."""


class _Request:
    """One POST; also the handle that stops it."""

    def __init__(self, assignment: Assignment) -> None:
        env, entry = assignment.settings.env, assignment.entry
        url = urlsplit(_filled(env.get(URL, "")))
        if (problem := url_problem(url.geturl())) is not None:
            raise ValueError(problem)
        self.shown = shown_address(url.geturl())
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._body = msgspec.json.encode(entry.payload)
        self._headers = {
            "content-type": "application/json",
            "user-agent": f"rota/{version('rota')}",
            **{name.removeprefix(HEADER_PREFIX): _filled(text) for name, text in env.items() if name != URL},
            "rota-delivery-id": str(entry.payload.get("id", entry.sched_id)),
            "rota-attempt": str(entry.attempt),
            "rota-event": str(entry.payload.get("event", "")),
        }
        self._total_s = assignment.settings.limits.wall_s or TOTAL_S
        self._connection = _connection(url)
        self._lock = threading.Lock()
        self._is_killed = False

    def send(self) -> tuple[int, str]:
        """Send it and return the status and the beginning of the answer."""
        self._connection.connect()
        with self._lock:
            if self._is_killed:
                raise OSError("it was stopped")
        self._connection.sock.settimeout(self._total_s + LATE_S)  # the supervisor ends it before
        self._connection.request("POST", self._target, self._body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
        return answer.status, " ".join(text.split())[:TEXT_CHARS_MAX]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def request_stop(self, _reason: str) -> bool:
        return False

    def terminate(self) -> bool:
        return False

    def kill(self) -> bool:
        """Shut the socket down: whatever waits for it fails at once."""
        with self._lock:
            self._is_killed = True
            if self._connection.sock is not None:
                with suppress(OSError):  # it is not connected any more
                    self._connection.sock.shutdown(socket.SHUT_RDWR)
        return True


def url_problem(url: str) -> str | None:
    """Return what is wrong with the address of a hook, without the address: it may contain a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as problem:
        return f"the address cannot be read: {problem}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "expected an address that begins with https:// or http:// and names a host"
    if parts.username is not None or parts.password is not None:
        return "expected an address without a user: send credentials in headers"
    if any(ord(letter) <= ord(" ") or ord(letter) >= 127 for letter in url):  # noqa: PLR2004  # printable ASCII
        return "expected an address of printable ASCII characters"
    return None


def shown_address(url: str) -> str:
    """Return what may be shown of an address: its scheme and host, without path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _connection(url: SplitResult) -> http.client.HTTPConnection:
    assert url.hostname is not None  # noqa: S101  # checked
    if url.scheme == "http":
        return http.client.HTTPConnection(url.hostname, url.port, timeout=CONNECT_S)
    return http.client.HTTPSConnection(url.hostname, url.port, timeout=CONNECT_S, context=ssl.create_default_context())


def _filled(text: str, variables: Mapping[str, str] | None = None) -> str:
    """Replace `${NAME}` by variables of the supervisor."""
    known = os.environ if variables is None else variables
    missing = [name for name in _VARIABLE.findall(text) if name not in known]
    if missing:
        raise ValueError(f"the supervisor has no variable {missing[0]}, which the hook's settings name")
    return _VARIABLE.sub(lambda found: known[found[1]], text)


def _failed(error: str, outcome: str | None = None, status: int | None = None) -> RunOutcome:
    result = {"error": error} if status is None else {"error": error, "status": status}
    return RunOutcome(exit_kind="failed", outcome=outcome, result=result)


def _reason(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    text = getattr(problem, "strerror", None) or str(problem)
    return text or type(problem).__name__
