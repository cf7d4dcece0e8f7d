"""`rota logs`: the output of runs, here or at a daemon, also while they run."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rota.cli.exit_codes import INTERRUPTED
from rota.cli.log_hosts import HostLogs
from rota.cli.options import STORE, AsJson, Store, complete_entry
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.model import LogPart

__all__ = ["logs"]

TAIL_BYTES = 64 * 1024  # read from the end of a log for its last lines; four times as much each time it is too little


class _Piece(NamedTuple):
    """A part of a log, from the store or from a folder."""

    offset: int
    data: bytes
    total_bytes: int
    dropped_bytes: int


Read = Callable[[int], _Piece]  # from an offset


def logs(
    entry: Annotated[int, typer.Argument(help="The entry id.", autocompletion=complete_entry)],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the entry has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.", metavar="N")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="The attempt. Default: the last, and with --follow the next.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Read the folder that a fleet's `logs` names instead of the store.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes as they are, with escape codes.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print the output of a run, also while it runs.

    Escape codes are shown, not obeyed: a program cannot control this terminal. --raw prints them.
    """
    from rota.cli.connection import open_api
    from rota.errors import InvalidInput

    output = _Output(raw=raw, as_json=as_json)
    if folder is not None:
        if follow:
            raise InvalidInput("--follow reads the store's log", field="folder", hint="Leave out --folder.")
        _print_folder(folder, entry, attempt, tail, output)
        return
    with open_api(store) as api, HostLogs(api) as hosts:
        try:
            (_follow if follow else _print_once)(hosts, entry, attempt, tail, output)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


# --- once ----------------------------------------------------------------------------------------


def _print_once(hosts: HostLogs, entry: int, attempt: int | None, tail: int | None, output: _Output) -> None:
    from rota.errors import NotFound

    logs = hosts.api.logs
    part = logs.read(entry, attempt, limit_bytes=0)
    places = logs.places(entry, part.attempt)
    if attempt is not None and attempt > part.attempts and not places:
        text = f"there is no attempt {attempt} of entry {entry}: it has had {part.attempts}"
        raise NotFound(text, hint=f"Wait for it: rota logs {entry} --follow.", sched_id=entry)
    about = {"sched_id": entry, "attempt": part.attempt, "ended": part.ended}
    if all(place.is_here for place in places):
        output.print_log(_reading(logs.read, entry, part.attempt), tail, **about)
        if not part.total_bytes:
            _say_empty(part)
        return
    for place in places:  # an attempt that was preempted on one host may have gone on at another one
        if len(places) > 1:
            say(f"on host {place.host}:", err=True)
        read = _reading(partial(hosts.read_at, place), entry, part.attempt)
        try:
            output.print_log(read, tail, **about, host=place.host)
        except NotFound as problem:
            if len(places) == 1:
                raise
            say(f"{problem.message}. {problem.hint}", err=True)


def _say_empty(part: Any) -> None:
    if not part.attempts and not part.ended:
        say(f"entry {part.sched_id} has not started; to wait for it: rota logs {part.sched_id} --follow", err=True)
    else:
        so_far = "" if part.ended else " so far"
        say(f"attempt {part.attempt} of entry {part.sched_id} has no output{so_far}", err=True)


def _reading(read_log: Callable[..., LogPart], entry: int, attempt: int) -> Read:
    def read(offset: int) -> _Piece:
        part = read_log(entry, attempt, offset=offset)
        return _Piece(part.offset, part.data, part.total_bytes, part.dropped_bytes)

    return read


def _print_folder(folder: Path, entry: int, attempt: int | None, tail: int | None, output: _Output) -> None:
    from rota.errors import NotFound
    from rota.service import attempts_in, read_log

    found = attempts_in(folder, entry)
    number = max(found, default=None) if attempt is None else attempt
    if number is None or number not in found:
        which = f"entry {entry}" if attempt is None else f"attempt {attempt} of entry {entry}"
        raise NotFound(f"there is no log of {which} in {folder}", hint=f"rota logs {entry}", sched_id=entry)

    def read(offset: int) -> _Piece:
        return _Piece(*read_log(folder, entry, number, offset, TAIL_BYTES))

    output.print_log(read, tail, sched_id=entry, attempt=number)


# --- following -----------------------------------------------------------------------------------


def _follow(hosts: HostLogs, entry: int, attempt: int | None, tail: int | None, output: _Output) -> None:
    from rota.service import LogOutput, follow_log

    first = hosts.read(entry, attempt, limit_bytes=0)
    offset = 0 if tail is None else _last_lines(_reading(hosts.read, entry, first.attempt), tail)
    for step in follow_log(hosts.api, entry, first.attempt, offset=offset, goes_on=attempt is None, read=hosts.read):
        if isinstance(step, LogOutput):
            output.print_part(step.part, step.dropped_bytes)
        else:
            output.finish()
            say(step.text, err=True)


# --- text ----------------------------------------------------------------------------------------


def _pieces(read: Read, offset: int) -> Iterator[_Piece]:
    """Yield what is there from an offset on; what is printed meanwhile is left out."""
    end = None
    while (piece := read(offset)).data:
        end = piece.total_bytes if end is None else end
        yield piece._replace(data=piece.data[: max(0, end - piece.offset)])
        offset = piece.offset + len(piece.data)
        if offset >= end:
            return


def _last_lines(read: Read, lines: int) -> int:
    """Return the offset where the last lines of a log begin."""
    size = TAIL_BYTES
    while True:
        pieces = list(_pieces(read, -size))
        total = read(0).total_bytes if not pieces else pieces[0].total_bytes
        left = lines
        for piece in reversed(pieces):
            end = len(piece.data)
            if piece.offset + end == total and piece.data.endswith(b"\n"):
                end -= 1  # the end of the last line
            while left and (at := piece.data.rfind(b"\n", 0, end)) >= 0:
                left, end = left - 1, at
                if not left:
                    return piece.offset + at + 1
        if not lines:
            return total
        if not pieces or size >= total:
            return 0
        size *= 4


class _Output:
    """Prints a log: made harmless, as bytes, or in JSON."""

    def __init__(self, *, raw: bool, as_json: bool) -> None:
        self._raw, self._as_json = raw, as_json
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._is_after_return = False  # a carriage return whose next character is not known

    def print_log(self, read: Read, tail: int | None, **about: Any) -> None:
        """Print what a log has now."""
        from rota.cli.output import print_json
        from rota.service import gap_line

        offset = 0 if tail is None else _last_lines(read, tail)
        text, first = "", None
        for piece in _pieces(read, offset):
            first = first or piece
            gap = gap_line(piece.offset - offset)
            offset = piece.offset + len(piece.data)
            if self._as_json:
                text += gap + piece.data.decode("utf-8", "replace")
            else:
                self._print(gap, piece.data)
        first = first or read(offset)
        gap = gap_line(first.total_bytes - offset)  # its end was not kept
        if self._as_json:
            print_json(
                {
                    **about,
                    "total_bytes": first.total_bytes,
                    "dropped_bytes": first.dropped_bytes,
                    "text": text + gap,
                }
            )
        else:
            self._print(gap, b"")
            self.finish()

    def print_part(self, part: Any, dropped_bytes: int) -> None:
        """Print new output of a log that is followed."""
        from rota.cli.output import print_json
        from rota.service import gap_line

        if self._as_json:
            names = ("sched_id", "attempt", "offset")
            line = {name: getattr(part, name) for name in names} | {"dropped_bytes": dropped_bytes}
            print_json({**line, "text": part.data.decode("utf-8", "replace")})
        else:
            self._print(gap_line(dropped_bytes), part.data)
        sys.stdout.flush()  # a program that follows reads it now

    def _print(self, gap: str, data: bytes) -> None:
        if self._raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(gap.encode() + data)
            sys.stdout.buffer.flush()
            return
        if gap:
            self.finish()
            say(gap, nl=False)
        self._say(self._decoder.decode(data))

    def finish(self) -> None:
        """Print the rest of a character that was cut: an attempt has ended, or bytes are missing."""
        if not self._raw:
            self._say(self._decoder.decode(b"", final=True), is_end=True)

    def _say(self, text: str, *, is_end: bool = False) -> None:
        if self._is_after_return:
            text = "\r" + text
        self._is_after_return = text.endswith("\r") and not is_end
        text = text[:-1] if self._is_after_return else text
        if text:
            say(text.replace("\r\n", "\n"), nl=False)
