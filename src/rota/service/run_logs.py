"""The logs of a store's runs: one folder beside its file, owned by the processes that open the file.

A supervisor that opened the file writes there itself (`writer_for`). One at a daemon sends what its runs print in
pieces (`append`), and the daemon writes them. All read through `read`, whichever wrote.

A piece is accepted under the token of the run's claim. The token is the id of the event of that claim, so it can be
checked also when the run has ended: the last pieces of a run may arrive after its report, for example when its daemon
was away. They go to the log of the attempt that printed them; if the entry was claimed again under the same attempt and
that run has printed, they come too late and are refused. Pieces may be repeated: each names its offset, and what is
there already is left out. The only rows here are two settings: an id of the store, and the maxima in force.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rota.errors import InvalidPayload, LimitExceeded, RotaError, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel.daemon_addresses import daemon_address_of
from rota.kernel.entry_relations import read_row
from rota.kernel.rows import entry_from_row
from rota.kernel.settings import STORE_ID, read_setting, store_id, write_setting
from rota.model.agent_settings import read_settings
from rota.model.checks import Checks
from rota.model.events import EntriesClaimed
from rota.model.run_logs import READ_BYTES, LogPart, LogPlace
from rota.model.work import Limits, ReadyEntry
from rota.service.attempts import attempts_of
from rota.service.entry_history import read_history
from rota.service.log_files import LogContent, LoggedRun, LogWriter, has_log, read_log
from rota.service.log_folder import LOGS_BYTES_MAX, LOGS_MAX, FolderUsage, LogFolder, folder_usage

if TYPE_CHECKING:
    from rota.kernel import Kernel  # one that only reads logs is not loaded whole
    from rota.store import Transaction

__all__ = ["PIECE_BYTES_MAX", "READ_BYTES_MAX", "RunLogs"]

PIECE_BYTES_MAX = 256 * 1024  # of one piece of output
READ_BYTES_MAX = 1024 * 1024  # of one part that is read
OFFSET_MAX = 2**60  # more than a run can print
ATTEMPTS_MAX = 1_000_000_000
MAXIMA = "log_maxima"  # the setting
NO_STORE_ID = "-"  # of a store that has none yet: no log of this version belongs to it
_LOCKS = 64  # a piece of one run waits for the piece before it, and seldom for one of another run
_log = Checks("Log", SchedInvalidPayload)
_LIVE = "dispatched"
_UNFINISHED = frozenset({"queued", _LIVE})


class RunLogs:
    """What the runs of a store have printed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._store_id: str | None = None
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        path = kernel.store.host_path
        self.folder = None if path is None else LogFolder(Path(f"{path}-logs"), self._live_among)

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, sched_id: int, attempt: int | None = None, *, offset: int = 0, limit_bytes: int = READ_BYTES
    ) -> LogPart:
        """Return a part of what an attempt has printed, by default of the last one.

        Offsets count the bytes printed. A negative offset counts from the end. If the bytes at the offset were
        dropped, the part begins with the next byte that was kept.
        """
        _log.whole("offset", offset)
        if _log.whole("limit_bytes", limit_bytes, 0) > READ_BYTES_MAX:
            raise LimitExceeded("limit_bytes", READ_BYTES_MAX, limit_bytes, field="limit_bytes")
        entry = self._kernel.queue.get(sched_id)  # before the files: a run that has ended prints nothing more
        number = self._last_attempt(entry) if attempt is None else _log.whole("attempt", attempt, 1, ATTEMPTS_MAX)
        attempts = max(entry.attempt, min(number, entry.attempt + 1) if self._has_log(sched_id, number) else 0)
        is_past = number < entry.attempt or (number == entry.attempt and entry.state != _LIVE)
        content = LogContent(0, b"", 0, 0)
        if self.folder is not None:
            known = self._known_store_id() or NO_STORE_ID
            folders = self._folders(self.folder.path)
            found = (read_log(each, sched_id, number, offset, limit_bytes, store_id=known) for each in folders)
            content = next((each for each in found if each.total_bytes), content)
        return LogPart(
            sched_id=sched_id,
            attempt=number,
            attempts=attempts,
            offset=content.offset,
            data=content.data,
            total_bytes=content.total_bytes,
            dropped_bytes=content.dropped_bytes,
            ended=is_past or entry.state not in _UNFINISHED,
        )

    def places(self, sched_id: int, attempt: int | None = None) -> list[LogPlace]:
        """Return the hosts that have the log of an attempt, by default of the last one, in order.

        Empty where one host has all logs, and if the journal no longer says who claimed the entry.
        """
        _log.whole("sched_id", sched_id)
        if attempt is not None:
            _log.whole("attempt", attempt, 1, ATTEMPTS_MAX)
        here = self._kernel.store.host_name
        return [] if here is None else self._kernel.store.read(lambda tx: _places(tx, sched_id, attempt, here))

    def _folders(self, own: Path) -> Iterator[Path]:
        """Yield the folders that may have a log: the one of this address, then those of other addresses of a database.

        The database says only which store it is, so a supervisor that names its server in another way has its own.
        """
        yield own
        schema, dash, _ = own.name.removesuffix("-logs").rpartition("-")  # before the digest of the address
        if dash and self._kernel.store.host_name is not None:
            others = own.parent.glob("*-logs")
            yield from sorted(each for each in others if each.name.startswith(f"{schema}-") and each != own)

    def _last_attempt(self, entry: ReadyEntry) -> int:
        """Return the last attempt; one that was preempted or yielded is not counted while its entry is queued."""
        following = entry.attempt + 1
        return following if entry.state != _LIVE and self._has_log(entry.sched_id, following) else max(entry.attempt, 1)

    def _has_log(self, sched_id: int, attempt: int) -> bool:
        return self.folder is not None and has_log(self.folder.path, sched_id, attempt)

    # --- writing ---------------------------------------------------------------------------------

    def append(self, sched_id: int, attempt: int, token: int, offset: int, data: bytes) -> int:
        """Write a piece of what a run has printed, from its `offset` on; return how far its log goes now.

        The agent's settings say how much is kept: beyond that only the beginning and the end.
        """
        entry, is_live = self._claimed(sched_id, attempt, token)
        _log.whole("offset", offset, 0, OFFSET_MAX)
        if len(data) > PIECE_BYTES_MAX:
            raise LimitExceeded("piece_bytes_max", PIECE_BYTES_MAX, len(data), field="data")
        if self.folder is None or not self.folder.keeps_logs:
            return offset + len(data)
        logged = LoggedRun(sched_id, attempt, token, self._own_store_id())
        with self._locks[sched_id % _LOCKS]:
            self.folder.make_room(runs=0 if offset else 1, size=len(data))
            writer = LogWriter(self.folder.path, logged, self._log_bytes(entry), is_live=is_live)
            try:
                writer.append(offset, data)
            finally:
                writer.close()
        return writer.end

    def _log_bytes(self, entry: ReadyEntry) -> int:
        try:
            settings = read_settings(self._kernel.agents.get(entry.pid).metadata)
        except RotaError:  # of another version
            settings = None
        return (Limits() if settings is None else settings.limits).log_bytes

    def _claimed(self, sched_id: int, attempt: int, token: int) -> tuple[ReadyEntry, bool]:
        """Return the entry of a claim and whether the claim is live; raises `StaleClaim` if it never was its claim."""
        _log.whole("token", token, 1)
        _log.whole("attempt", attempt, 1, ATTEMPTS_MAX)
        entry = self._kernel.queue.get(sched_id)
        if entry.state == _LIVE and entry.token == token and entry.attempt == attempt:
            return entry, True
        is_later = attempt > entry.attempt + (0 if entry.state == _LIVE else 1)
        if is_later or not self._was_claimed(sched_id, token):
            text = f"token {token} is not that of a claim of attempt {attempt} of entry {sched_id}"
            raise StaleClaim(text, sched_id=sched_id, token=token)
        return entry, False

    def _was_claimed(self, sched_id: int, token: int) -> bool:
        events = self._kernel.journal.tail(token - 1, 1)
        if not events or events[0].event_id != token or events[0].kind != EntriesClaimed.kind:
            return False
        return any(each[0] == sched_id for each in events[0].payload.get("entries", ()))

    def logged_run(self, entry: ReadyEntry) -> LoggedRun:
        """Return what the files of a claimed entry's run are known by."""
        assert entry.token is not None  # noqa: S101  # it was claimed
        return LoggedRun(entry.sched_id, entry.attempt, entry.token, self._own_store_id())

    # --- the maxima ------------------------------------------------------------------------------

    def maxima(self) -> tuple[int, int]:
        """Return how many runs have a log here, and how many bytes they have, at most, as a process last set it."""
        text = self._kernel.store.read(lambda tx: read_setting(tx, MAXIMA))
        found = [int(word) for word in (text or "").split() if word.isascii() and word.isdecimal()]
        return (found[0], found[1]) if len(found) == 2 else (LOGS_MAX, LOGS_BYTES_MAX)  # noqa: PLR2004  # both

    def set_maxima(self, logs_max: int, logs_bytes_max: int) -> None:
        """Set both for this process, which writes logs; they are stored for `rota doctor`."""
        if self.folder is None:
            return
        self.folder.set_maxima(logs_max, logs_bytes_max)
        if self.maxima() != (logs_max, logs_bytes_max):
            text = f"{logs_max} {logs_bytes_max}"
            self._kernel.env.write_keeping_cache(lambda tx: write_setting(tx, MAXIMA, text))

    def usage(self) -> FolderUsage:
        """Return how many runs have a log, and their bytes."""
        return FolderUsage(0, 0) if self.folder is None else folder_usage(self.folder.path)

    # --- the store -------------------------------------------------------------------------------

    def _known_store_id(self) -> str | None:
        if self._store_id is None:
            self._store_id = self._kernel.store.read(lambda tx: read_setting(tx, STORE_ID))
        return self._store_id

    def _own_store_id(self) -> str:
        if self._known_store_id() is None:
            self._store_id = self._kernel.env.write_keeping_cache(store_id)
        return str(self._store_id)

    def _live_among(self, sched_ids: Collection[int]) -> set[int]:
        return {sched_id for sched_id in sched_ids if self._is_live(sched_id)}

    def _is_live(self, sched_id: int) -> bool:
        try:
            return self._kernel.queue.get(sched_id).state == _LIVE
        except (SchedUnknownId, InvalidPayload):
            return False
        except RotaError:  # the store cannot be read now
            return True


def _places(tx: Transaction, sched_id: int, attempt: int | None, here: str) -> list[LogPlace]:
    row, cursor = read_row(tx, sched_id)
    known = [each for each in attempts_of(read_history(tx, row, cursor).events, entry_from_row(row)) if each.host]
    number = attempt if attempt is not None or not known else known[-1].attempt
    hosts = dict.fromkeys(str(each.host) for each in known if each.attempt == number)
    return [LogPlace(host, host == here, None if host == here else daemon_address_of(tx, host)) for host in hosts]
