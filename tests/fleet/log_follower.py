"""Following a log on a thread, so that a test can print more when it has seen what was printed."""

from __future__ import annotations

import threading

from rota.service.api import SchedulerApi
from rota.service.log_files import gap_line
from rota.service.log_following import LogOutput, follow_log

__all__ = ["Follower", "all_of"]

PATIENCE_S = 30.0


class Follower:
    """Follows an entry's log until the entry has ended."""

    def __init__(self, api: SchedulerApi, sched_id: int, attempt: int | None = None, *, goes_on: bool = True) -> None:
        self.text = ""  # as a terminal shows it
        self.notices: list[str] = []
        self.problem: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, args=(api, sched_id, attempt, goes_on), daemon=True)
        self._thread.start()

    def _follow(self, api: SchedulerApi, sched_id: int, attempt: int | None, goes_on: bool) -> None:
        try:
            for step in follow_log(api, sched_id, attempt, goes_on=goes_on):
                with self._changed:
                    if isinstance(step, LogOutput):
                        self.text += gap_line(step.dropped_bytes) + step.part.data.decode()
                    else:
                        self.notices.append(step.text)
                    self._changed.notify_all()
        except BaseException as problem:
            self.problem = problem

    def until_shown(self, text: str) -> None:
        """Wait until this was printed."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.text, PATIENCE_S), (self.text, self.problem)

    def until_notice(self, text: str) -> None:
        """Wait until the follower has said this."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(text in notice for notice in self.notices), PATIENCE_S)
            assert found, (self.notices, self.problem)

    def ended(self) -> str:
        """Wait for the end; return all that was shown."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), (self.text, self.notices)
        assert self.problem is None
        return self.text


def all_of(api: SchedulerApi, sched_id: int, attempt: int | None = None) -> str:
    """The whole log, as a terminal shows it."""
    text, offset = "", 0
    while True:
        part = api.logs.read(sched_id, attempt, offset=offset)
        text += gap_line(part.offset - offset) + part.data.decode()
        if not part.data:
            return text
        offset = part.offset + len(part.data)
