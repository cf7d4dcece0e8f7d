"""What runs print on its way to the daemon, for a supervisor that has not opened the store itself.

One thread sends the new output of all runs in pieces: every `SHIP_S`, or earlier if a run has printed `SHIP_BYTES`. It
reads from the logs that the supervisor holds in memory anyway, which are bounded. So a run never waits for the daemon,
and a daemon that is away, slow or refuses costs log bytes: what the log in memory has dropped when the daemon is back
was not sent, the next piece says so by its offset, and the reader is shown how many bytes are missing. A piece whose
response was lost is sent again, and the daemon leaves out what it has.

At the end of a run its report waits for the last piece, at most `FLUSH_S` and not while the daemon is away, so that in
all normal cases an entry that has ended has its whole log. What could not be sent then is sent later. At most
`UNSENT_LOGS_MAX` logs of ended runs are held for that.
"""

from __future__ import annotations

import logging
import threading

from rota.errors import LimitExceeded, RotaError, StoreUnavailable
from rota.fleet.run_logs import BoundedLog
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.outages import RETRY_S
from rota.service.run_logs import PIECE_BYTES_MAX

__all__ = ["LogShipping"]

SHIP_S = 0.5  # how long output waits for more
SHIP_BYTES = 32 * 1024  # of one run: do not wait that long
SHIP_PAUSE_S = 0.1  # between two pieces of a run that prints a lot
FLUSH_S = 2.0  # how long the report of a run waits for its last piece, and the end of the supervisor for all of them
UNSENT_LOGS_MAX = 100  # logs of ended runs that are held until the daemon is back
_log = logging.getLogger("rota.fleet")


class LogShipping:
    """Sends the output of a supervisor's runs. Its thread starts with the first output."""

    def __init__(self, api: SchedulerApi) -> None:
        self._api = api
        # guards all below; nothing is logged under it: a run's thread may wait for it inside a logging handler
        self._changed = threading.Condition()
        self._unsent: dict[ShippedLog, None] = {}  # logs with output that was not sent, in order of their first output
        self._flushing = 0  # runs that wait for their last piece
        self._is_away = False  # the daemon, at the last attempt
        self._is_closing = False
        self._has_refused = False  # a log, which was said
        self._thread: threading.Thread | None = None

    def copy_of(self, log: BoundedLog, entry: ReadyEntry) -> ShippedLog:
        """Return the copy of a log at the daemon."""
        return ShippedLog(self, log, entry)

    def close(self) -> None:
        """Send what is left, for `FLUSH_S` at most, and stop."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(FLUSH_S)
            with self._changed:
                unsent_count = len(self._unsent)
            if unsent_count:
                _log.warning("stopped before the output of %s runs was sent to the daemon", unsent_count)

    # --- for the runs ----------------------------------------------------------------------------

    def printed(self, log: ShippedLog) -> None:
        """Note that a run has printed more than was sent."""
        with self._changed:
            if log not in self._unsent or log.unsent_bytes >= SHIP_BYTES:
                self._unsent[log] = None
                self._changed.notify_all()
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._serve, name="rota-logs", daemon=True)
                self._thread.start()

    def ended(self, log: ShippedLog) -> None:
        """Wait until the output of a run that has ended was sent, unless the daemon is away."""
        give_up_at = self._api.clock.monotonic() + FLUSH_S
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            while log in self._unsent and not self._is_away and not self._is_closing:
                left_s = give_up_at - self._api.clock.monotonic()
                if left_s <= 0:
                    break
                self._api.clock.wait(self._changed, left_s)
            self._flushing -= 1
            held = [each for each in self._unsent if each.has_ended]
            dropped = held[0] if len(held) > UNSENT_LOGS_MAX else None
            if dropped is not None:
                del self._unsent[dropped]
        if dropped is not None:
            _log.warning("the rest of the output of entry %s was not sent to the daemon", dropped.entry.sched_id)

    # --- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (logs := self._next_logs()) is not None:
            for log in logs:
                try:
                    self._send_piece(log)
                except (StoreUnavailable, LimitExceeded) as problem:
                    if not self._wait_for_daemon(problem):
                        return
                    break

    def _next_logs(self) -> list[ShippedLog] | None:
        """Wait until a piece should be sent; return the logs with output, or None at the end."""
        with self._changed:
            while not self._unsent:
                if self._is_closing:
                    return None
                self._api.clock.wait(self._changed)
            began_at = self._api.clock.monotonic()
            while not self._is_closing and not self._flushing:
                is_much = any(log.unsent_bytes >= SHIP_BYTES for log in self._unsent)
                left_s = (SHIP_PAUSE_S if is_much else SHIP_S) - (self._api.clock.monotonic() - began_at)
                if left_s <= 0:
                    break
                self._api.clock.wait(self._changed, left_s)
            return list(self._unsent)

    def _send_piece(self, log: ShippedLog) -> None:
        entry, is_refused = log.entry, False
        offset, data = log.log.since(log.sent, PIECE_BYTES_MAX)
        assert entry.token is not None  # noqa: S101  # it was claimed
        try:
            if data:
                self._api.logs.append(entry.sched_id, entry.attempt, entry.token, offset, data)
        except (StoreUnavailable, LimitExceeded):
            raise
        except Exception as problem:  # refused, or a defect, which must not end the output of all other runs
            is_refused = True
            if not self._has_refused:
                self._has_refused = True
                _log.warning("the daemon does not keep the output of entry %s: %s", entry.sched_id, problem)
        with self._changed:
            self._is_away = False
            log.sent = offset + len(data)
            log.is_refused = is_refused
            if is_refused or not log.unsent_bytes:
                self._unsent.pop(log, None)
            self._changed.notify_all()

    def _wait_for_daemon(self, problem: RotaError) -> bool:
        """Wait before the next attempt; return whether there is one."""
        if not self._is_away:  # only this thread changes it
            _log.warning("the output of runs waits for the daemon: %s", problem)
        with self._changed:
            self._is_away = True
            self._changed.notify_all()
            give_up_at = self._api.clock.monotonic() + RETRY_S
            while not self._is_closing and (left_s := give_up_at - self._api.clock.monotonic()) > 0:
                self._api.clock.wait(self._changed, left_s)
            return not self._is_closing


class ShippedLog:
    """The copy of one run's log at the daemon."""

    problem = None  # its shipping reports what is wrong

    def __init__(self, shipping: LogShipping, log: BoundedLog, entry: ReadyEntry) -> None:
        self.log = log
        self.entry = entry
        self.sent = 0  # how far the output was sent or given up
        self.is_refused = False
        self.has_ended = False
        self._written = 0
        self._shipping = shipping

    @property
    def unsent_bytes(self) -> int:
        """How much was printed and not sent."""
        return self._written - self.sent

    def write(self, offset: int, data: bytes) -> None:
        """Note that there is more to send; it is read from the log when it is sent."""
        self._written = offset + len(data)
        if not self.is_refused:
            self._shipping.printed(self)

    def close(self) -> None:
        """Wait a little until everything was sent."""
        self.has_ended = True
        if self.unsent_bytes and not self.is_refused:
            self._shipping.ended(self)
