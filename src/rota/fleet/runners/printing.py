"""What a function prints goes to the log of its run, like the output of a program.

Functions on threads share `sys.stdout` and `sys.stderr`. So these are replaced, while functions run, by streams that
look at who prints: text of a run goes to the run's log, and with `echo` also to the real stream; any other text goes to
the real stream only. The run is known by a context variable: tasks of an async function and `asyncio.to_thread` inherit
it, a thread that the function starts itself does not, and its text is not kept.

A logging handler holds its lock while it writes to a stream, and rota itself logs when the output of a run cannot be
kept. So no lock is held while text is passed to a log: one thread of the run passes text on, and what other threads
print meanwhile waits for it. What rota logs on the way, or inside a method of the run's context, goes to the real
streams (`apart_from_prints`).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

__all__ = ["apart_from_prints", "keep_prints", "release_streams"]

LINE_CHARS_MAX = 8_192  # text without an end of line that is kept back at most
WAITING_CHARS_MAX = 1024 * 1024  # text that waits for the thread that passes text on; more is dropped
_STREAMS = ("stdout", "stderr")
_lock = threading.Lock()  # guards the replacement of the streams


class _Printed:
    """What one run prints, passed on line by line."""

    def __init__(self, log: Callable[[bytes], None], *, echo: bool) -> None:
        self.echo = echo
        self._log = log
        # guards all below; reentrant, because an object that is collected under it may print
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[str] = deque()
        self._waiting_chars = self._dropped_chars = 0
        self._is_passing = False  # one thread passes text on, without the lock
        self._is_closing = False
        self._line = ""  # the unfinished one; only the thread that passes text on uses it

    def write(self, text: str) -> None:
        """Pass text on, or leave it to the thread that does so now."""
        if not text:
            return
        with self._changed:
            is_full = self._dropped_chars > 0 or self._waiting_chars + len(text) > WAITING_CHARS_MAX
            if is_full and self._is_passing:
                self._dropped_chars += len(text)
            else:
                self._waiting.append(text)
                self._waiting_chars += len(text)
            if self._is_passing:
                return
            self._is_passing = True
        self._pass_on()

    def close(self) -> None:
        """Pass on what is left, also an unfinished line."""
        with self._changed:
            self._is_closing = True
            while self._is_passing:
                self._changed.wait()
            self._is_passing, self._is_closing = True, False
            text = self._waiting_text()  # once: a thread that the run has left behind may print for ever
        try:
            with apart_from_prints():
                self._pass_lines(text)
                if self._line:
                    self._pass_lines("\n")
        finally:
            self._stop_passing()

    def _pass_on(self) -> None:
        try:
            with apart_from_prints():
                while text := self._take():
                    self._pass_lines(text)
        except BaseException:
            self._stop_passing()
            raise

    def _take(self) -> str:
        """Return what waits. If nothing does, or the run closes the log, another thread may pass text on."""
        with self._changed:
            if not self._waiting or self._is_closing:
                self._stop_passing()
                return ""
            return self._waiting_text()

    def _waiting_text(self) -> str:
        """Return what waits, which no longer waits. The lock is held."""
        text = "".join(self._waiting)
        self._waiting.clear()
        if self._dropped_chars:
            text += f"\n… {self._dropped_chars:,} characters dropped …\n"
        self._waiting_chars = self._dropped_chars = 0
        return text

    def _stop_passing(self) -> None:
        with self._changed:
            self._is_passing = False
            self._changed.notify_all()

    def _pass_lines(self, text: str) -> None:
        """Pass on the lines of a text, and keep back the unfinished one."""
        self._line += text
        if "\n" not in text and len(self._line) < LINE_CHARS_MAX:
            return
        done, end, rest = self._line.rpartition("\n")
        if len(rest) >= LINE_CHARS_MAX:
            done, end, rest = done + end + rest, "", ""
        self._line = rest
        self._log((done + end).encode("utf-8", "replace"))


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
def apart_from_prints() -> Iterator[None]:
    """Let rota's own code, while the block runs, print and log to the real streams and not as the run."""
    token = _printed.set(None)
    try:
        yield
    finally:
        _printed.reset(token)


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
