"""The log of a run on a page: what it printed last, then what it prints."""

from __future__ import annotations

import codecs
import re
from collections import deque

import msgspec
from nicegui import ui

from rota.errors import StoreUnavailable
from rota.model import LogPart
from rota.web.page_session import PageSession
from rota.web.widgets import labelled

__all__ = ["LOG_S", "LiveLog", "LogLines"]

FIRST_BYTES = 64 * 1024  # of the end of a log that are shown at first
BLOCK_BYTES = 16 * 1024
LINES_MAX = 1_000
LOG_S = 1.0  # between two reads of what a run prints
PAGES_OF_FULL_PACE = 20  # with more open pages, logs are read more rarely
LINE_MAX = 2_000  # characters
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")


class LogLines:
    """Cuts what was printed into lines; what is not a whole line yet is kept. No I/O."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes, *, is_last: bool = False) -> list[str]:
        """Return the lines that are complete; at the end also the last one. Codes for terminals are left out."""
        self._rest += self._decoder.decode(data, final=is_last).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = self._rest.split("\n")
        if is_last and self._rest:
            lines.append(self._rest)
            self._rest = ""
        return [_ESCAPES.sub("", line)[:LINE_MAX] for line in lines]


class LiveLog:
    """What one attempt of an entry prints."""

    def __init__(self, session: PageSession, sched_id: int) -> None:
        self._session = session
        self._sched_id = sched_id
        self._attempt: int | None = None  # None: the last one
        self._shown_attempt = 0
        self._offset: int | None = None  # of the next byte; None: nothing was read
        self._lines = LogLines()
        self._is_reading = False
        self._elsewhere: dict[int, str] = {}  # by attempt: other hosts that have its log, for people
        self.is_whole = False  # whether the run has ended and all that it printed is shown
        self._note = ui.label("").classes("soft small")
        # drawn from the end, so that the newest lines stay in sight
        with labelled(ui.element("div").classes("log log-end").props("tabindex=0 role=log"), "Output") as self._log:
            self._parts = ui.element("div")
        self._counts: deque[int] = deque()  # lines of the parts
        self._log.set_visibility(False)

    async def show_attempt(self, attempt: int | None) -> None:
        """Show another attempt; None is the last one, also when a new one begins."""
        self._attempt = attempt
        self._start_again()
        await self.refresh()

    def _start_again(self) -> None:
        self._offset, self._lines = None, LogLines()
        self._parts.clear()
        self._counts.clear()

    async def refresh(self) -> None:
        """Read what was printed since."""
        if self._is_reading:
            return
        self._is_reading = True
        try:
            part = await self._read()
            if part.attempt != self._shown_attempt and self._offset is not None:
                self._start_again()
                part = await self._read()
            if not part.total_bytes and part.attempts >= part.attempt and part.attempt not in self._elsewhere:
                await self._look_elsewhere(part)
            self._show(part)
        except StoreUnavailable:
            pass  # the page says so
        finally:
            self._is_reading = False

    async def _read(self) -> LogPart:
        """Read from the start of a block: pages that are in the same block make one call."""
        access = self._session.access
        begin = -FIRST_BYTES if self._offset is None else self._offset // BLOCK_BYTES * BLOCK_BYTES
        age_s = LOG_S * max(1.0, access.feed.open_pages / PAGES_OF_FULL_PACE)
        read = access.api.logs.read
        part = await access.read_every(
            age_s, read, self._sched_id, self._attempt, offset=begin, limit_bytes=FIRST_BYTES
        )
        if self._offset is None or part.attempt != self._shown_attempt:
            return part
        known = max(0, self._offset - part.offset)
        return msgspec.structs.replace(part, offset=part.offset + known, data=part.data[known:])

    async def _look_elsewhere(self, part: LogPart) -> None:
        """Find out which other hosts have the log of an attempt that has printed nothing here."""
        access = self._session.access
        places = await access.read_every(LOG_S, access.api.logs.places, self._sched_id, part.attempt)
        self._elsewhere[part.attempt] = ", ".join(place.host for place in places if not place.is_here)

    def _show(self, part: LogPart) -> None:
        if not part.total_bytes and (hosts := self._elsewhere.get(part.attempt)):
            self._note.set_text(f"The output of attempt {part.attempt} is on host {hosts}.")
        elif self._offset is None:
            skipped = f", from byte {part.offset:,} of {part.total_bytes:,}" if part.offset else ""
            self._note.set_text(f"attempt {part.attempt}{skipped}" if part.total_bytes else "Nothing was printed yet.")
        elif part.data:
            self._note.set_text(f"attempt {part.attempt}")
        self._shown_attempt = part.attempt
        self._offset = part.offset + len(part.data)
        self.is_whole = part.ended and self._offset >= part.total_bytes
        if lines := self._lines.add(part.data, is_last=self.is_whole)[-LINES_MAX:]:
            with self._parts:
                ui.label("\n".join(lines))
            self._counts.append(len(lines))
        while sum(self._counts) > LINES_MAX:
            self._counts.popleft()
            self._parts.remove(0)
        self._log.set_visibility(bool(self._counts))
