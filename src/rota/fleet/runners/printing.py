"""What a function prints goes to the log of its run, like the output of a program.

Functions on threads share `sys.stdout` and `sys.stderr`. So these are replaced, while functions run, by streams that
look at who prints: text of a run goes to the run's log, and with `echo` also to the real stream; any other text goes to
the real stream only. The run is known by a context variable: tasks of an async function and `asyncio.to_thread` inherit
it, a thread that the function starts itself does not, and its text is not kept.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

__all__ = ["keep_prints", "release_streams"]

LINE_CHARS_MAX = 8_192  # text without an end of line that is kept back at most
_STREAMS = ("stdout", "stderr")
_lock = threading.Lock()  # guards the replacement of the streams


class _Printed:
    """What one run prints, passed on line by line."""

    def __init__(self, log: Callable[[bytes], None], *, echo: bool) -> None:
        self.echo = echo
        self._log = log
        self._lock = threading.Lock()
        self._line = ""

    def write(self, text: str) -> None:
        with self._lock:
            self._line += text
            if "\n" not in text and len(self._line) < LINE_CHARS_MAX:
                return
            done, end, rest = self._line.rpartition("\n")
            if len(rest) >= LINE_CHARS_MAX:
                done, rest = done + end + rest, ""
                end = ""
            self._line = rest
            self._log((done + end).encode("utf-8", "replace"))

    def close(self) -> None:
        with self._lock:
            rest, self._line = self._line, ""
            if rest:
                self._log(f"{rest}\n".encode("utf-8", "replace"))


_printed: ContextVar[_Printed | None] = ContextVar("rota_printed", default=None)


class _SharedStream:
    """A standard stream that passes the text of a run to its log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text, as a stream does."""
        printed = _printed.get()
        if printed is None:
            return self.stream.write(text)
        printed.write(text)
        if printed.echo:
            self.stream.write(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write texts, as a stream does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def keep_prints(log: Callable[[bytes], None], *, echo: bool = False) -> Iterator[None]:
    """Pass what this context prints to a log, while the block runs."""
    _share_streams()
    printed = _Printed(log, echo=echo)
    token = _printed.set(printed)
    try:
        yield
    finally:
        _printed.reset(token)
        printed.close()


def _share_streams() -> None:
    """Replace the standard streams, unless they are replaced. Another program may have put its own there meanwhile."""
    if type(sys.stdout) is _SharedStream and type(sys.stderr) is _SharedStream:
        return
    with _lock:
        for name in _STREAMS:
            stream = getattr(sys, name)
            if stream is not None and type(stream) is not _SharedStream:
                setattr(sys, name, _SharedStream(stream))


def release_streams() -> None:
    """Put the real streams back. Call it when no function runs any more."""
    with _lock:
        for name in _STREAMS:
            stream = getattr(sys, name)
            if type(stream) is _SharedStream:
                setattr(sys, name, stream.stream)
