"""Automatic retention: daemons and supervisors remove what is too old or too much, by themselves.

The setting is a fact of the store, so all processes keep the same. Every `LOOK_S` one of them looks (retention.py and
finished_entries.py say how rows are removed, and why it may be killed at any moment):

1. Take the turn: a setting names the process that works, and until when. Every step extends it; the turn of a process
   that was killed ends after `TURN_S`, and the next one continues.
2. Append the entries that ended since the last look to the list of finished entries.
3. Remove the oldest entries of the list, `STEP_MAX` in a transaction, with a pause after each: first those beyond
   `entries_max`, then those that are too old. What ended less than `RECENT_S` ago stays in any case, because a program
   may be about to read its result.
4. Remove events, if there are enough of them to be worth a checkpoint, which has to read the state of all entries: when
   the oldest is a seventh older than allowed, or there are a tenth more than allowed.
5. Add the events since the last look to the usage per day (usage.py).

So the numbers are goals, not exact bounds: between two looks there may be more. The file is shortened only if more than
a quarter of it is free, because new rows would soon need the space again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rota.decoding import decode_json
from rota.errors import InvalidPayload
from rota.kernel.finished_entries import Finished, collect, excess_place, finished_before, not_collected
from rota.kernel.journal import append, first_event_at
from rota.kernel.retention import PruneResult, Retention, file_space
from rota.kernel.settings import read_setting, write_setting
from rota.model.checks import INTEGER_MAX, NOTE_CHARS_MAX, Checks
from rota.model.events import RetentionSet
from rota.model.retention import RetentionSetting, RetentionStatus
from rota.store import Transaction
from rota.store.statements import journal as journal_sql
from rota.store.statements import retention as sql

__all__ = ["LOOK_S", "PAUSE_S", "STEP_MAX", "AutomaticRetention"]

LOOK_S = 600.0  # how often a process looks
STEP_MAX = 200  # entries removed in one transaction
EVENTS_STEP_MAX = 500  # events removed in one transaction
PAUSE_S = 0.02  # after each transaction, for the other writers
TURN_S = 60.0  # how long a process that does not continue keeps its turn
RECENT_S = 60.0  # an entry that ended less than this ago stays
EVENTS_LATE = 1 / 7  # of the age that is kept, and
EVENTS_EXCESS = 1 / 10  # of the number: beyond that events are removed
FREE_MAX = 1 / 4  # of the file: more than that is returned to the file system
_SETTING = "retention"
_TURN = "retention_turn"
_checks = Checks("Retention", InvalidPayload)
_encode = msgspec.json.Encoder().encode
Pause = Callable[[float], bool]  # waits this long; returns whether to go on


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Which process removes rows, and what was done last."""

    holder: str = ""
    until_at: float = 0.0
    last_at: float | None = None
    removed_at: float | None = None
    removed_entries: int = 0
    removed_events: int = 0


class _Removed(msgspec.Struct):
    """What one look has removed so far."""

    entries: int = 0
    events: int = 0


class _Interrupted(Exception):
    """The process ends, or another one has the turn."""


class AutomaticRetention(Retention):
    """Checkpoints and pruning, and the setting by which processes prune by themselves."""

    # --- the setting -----------------------------------------------------------------------------

    def setting(self) -> RetentionSetting:
        """Return what the store keeps."""
        return self._env.read(_read_retention)

    def set(
        self,
        *,
        enabled: bool | None = None,
        entries_s: float | None = None,
        entries_max: int | None = None,
        events_s: float | None = None,
        events_max: int | None = None,
        by: str = "operator",
    ) -> RetentionSetting:
        """Change what the store keeps, for all processes; what is not given stays. Returns the setting."""
        given = {"enabled": enabled, "entries_s": entries_s, "entries_max": entries_max}
        given |= {"events_s": events_s, "events_max": events_max}
        wanted = {field: value for field, value in given.items() if value is not None}
        for field, value in wanted.items():
            if field == "enabled":
                _checks.flag(field, value)
            elif field.endswith("_s"):
                _checks.duration(field, value)
            else:
                _checks.whole(field, value, 0, INTEGER_MAX)
        _checks.text("by", by, NOTE_CHARS_MAX)

        def work(tx: Transaction) -> RetentionSetting:
            before = _read_retention(tx)
            setting = msgspec.structs.replace(before, **wanted, by=by)
            if msgspec.structs.replace(setting, by=before.by) != before:
                write_setting(tx, _SETTING, _encode(setting).decode())
                append(tx, RetentionSet(setting=setting, previous=before), now=self._env.now())
                return setting
            return before

        return self._env.write_keeping_cache(work)

    def status(self) -> RetentionStatus:
        """Return what the store keeps, what it has, and what was removed last."""
        now = self._env.now()

        def work(tx: Transaction) -> RetentionStatus:
            turn = _read_turn(tx)
            entries, _, oldest_at = tx.run(sql.FINISHED_ENDS)[0]
            first, last = tx.run(journal_sql.EVENT_ENDS)[0]
            page_bytes, pages, free = file_space(tx)
            return RetentionStatus(
                setting=_read_retention(tx),
                entries=entries + not_collected(tx),
                oldest_entry_at=oldest_at,
                events=0 if last is None else last - first + 1,
                oldest_event_at=None if first is None else tx.run(journal_sql.EVENT_FROM, (first,))[0][1],
                file_bytes=page_bytes * pages,
                free_bytes=page_bytes * free,
                last_at=turn.last_at,
                removed_at=turn.removed_at,
                removed_entries=turn.removed_entries,
                removed_events=turn.removed_events,
                running=turn.holder != "" and turn.until_at > now,
            )

        return self._env.read(work)

    # --- one look --------------------------------------------------------------------------------

    def due_in_s(self) -> float:
        """Return how long until the next look is due, whichever process does it."""
        now, turn = self._env.now(), self._env.read(_read_turn)
        if turn.holder and turn.until_at > now:
            return max(1.0, turn.until_at - now)
        if turn.last_at is None or not turn.last_at <= now:  # the wall clock was put back
            return 0.0
        return max(0.0, turn.last_at + LOOK_S - now)

    def keep(self, holder: str, pause: Pause = lambda _: True) -> PruneResult | None:
        """Remove what exceeds the setting, in small steps; None if it is off, not due, or another process does it.

        `pause` is called after each step and returns whether to go on.
        """
        setting = self.setting()
        if not setting.enabled or self.due_in_s() > 0 or not self._take_turn(holder):
            return None
        removed, is_done = _Removed(), False
        try:
            while collect(self._env):
                self._go_on(holder, pause)
            self._keep_entries(setting, removed, holder, pause)
            self._keep_events(setting, removed, holder, pause)
            self._usage.fold(lambda: self._go_on(holder, pause))
            is_done = True
        except _Interrupted:
            return None
        finally:
            self._end_turn(holder, removed, is_done)
        return PruneResult(removed.events, removed.entries, 0, *self._shorten())

    def _keep_entries(self, setting: RetentionSetting, removed: _Removed, holder: str, pause: Pause) -> None:
        now = self._env.now()
        last_place = self._env.read(lambda tx: int(tx.run(sql.FINISHED_ENDS)[0][1]))
        excess = self._env.read(lambda tx: excess_place(tx, setting.entries_max))
        recent_at = now - RECENT_S
        for before_at, until in ((recent_at, excess), (min(recent_at, now - setting.entries_s), last_place)):
            after = 0
            while finished := self._oldest(before_at, after, until):
                removed.entries += self.remove_finished(finished, now)
                after = finished[-1].place
                self._go_on(holder, pause)

    def _oldest(self, before_at: float, after: int, until: int) -> list[Finished]:
        return self._env.read(lambda tx: finished_before(tx, before_at, after, until, STEP_MAX))

    def _keep_events(self, setting: RetentionSetting, removed: _Removed, holder: str, pause: Pause) -> None:
        now = self._env.now()
        first, last, oldest_at = self._env.read(_event_ends)
        is_late = oldest_at < now - setting.events_s * (1 + EVENTS_LATE)
        if not is_late and last - first + 1 <= setting.events_max * (1 + EVENTS_EXCESS):
            return
        self.checkpoint()
        self._usage.fold()
        old = self._env.read(lambda tx: first_event_at(tx, first, last, now - setting.events_s)) - 1
        until = max(old, last - setting.events_max)
        while gone := self.remove_events(float("inf"), until, EVENTS_STEP_MAX, now):
            removed.events += gone
            self._go_on(holder, pause)

    def _shorten(self) -> tuple[int, int]:
        page_bytes, pages, free = self._env.read(file_space)
        return self.return_space(pages) if free > pages * FREE_MAX else (0, free * page_bytes)

    # --- the turn --------------------------------------------------------------------------------

    def _take_turn(self, holder: str) -> bool:
        def work(tx: Transaction) -> bool:
            now, turn = self._env.now(), _read_turn(tx)
            if turn.holder not in ("", holder) and turn.until_at > now:
                return False
            _write_turn(tx, msgspec.structs.replace(turn, holder=holder, until_at=now + TURN_S))
            return True

        return self._env.write_keeping_cache(work)

    def _go_on(self, holder: str, pause: Pause) -> None:
        if not pause(PAUSE_S) or not self._take_turn(holder):
            raise _Interrupted

    def _end_turn(self, holder: str, removed: _Removed, is_done: bool) -> None:
        """Give the turn back. A look that was interrupted is continued by the next process."""

        def work(tx: Transaction) -> None:
            now, turn = self._env.now(), _read_turn(tx)
            if turn.holder != holder:
                return
            turn = msgspec.structs.replace(turn, holder="", until_at=0.0, last_at=now if is_done else turn.last_at)
            if removed.entries or removed.events:
                done = {"removed_entries": removed.entries, "removed_events": removed.events}
                turn = msgspec.structs.replace(turn, removed_at=now, **done)
            _write_turn(tx, turn)

        self._env.write_keeping_cache(work)


def _read_retention(tx: Transaction) -> RetentionSetting:
    """Read the setting; one that cannot be read counts as the default."""
    try:
        text = read_setting(tx, _SETTING)
        return RetentionSetting() if text is None else decode_json(text, RetentionSetting)
    except msgspec.DecodeError:  # also a ValidationError
        return RetentionSetting()


def _read_turn(tx: Transaction) -> _Turn:
    try:
        text = read_setting(tx, _TURN)
        return _Turn() if text is None else decode_json(text, _Turn)
    except msgspec.DecodeError:
        return _Turn()


def _write_turn(tx: Transaction, turn: _Turn) -> None:
    write_setting(tx, _TURN, _encode(turn).decode())


def _event_ends(tx: Transaction) -> tuple[int, int, float]:
    first, last = tx.run(journal_sql.EVENT_ENDS)[0]
    if first is None:
        return 1, 0, float("inf")
    return first, last, tx.run(journal_sql.EVENT_FROM, (first,))[0][1]
