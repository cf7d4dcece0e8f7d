"""A call under way: from the moment it is taken to its one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from rota.rpc.handlers import Caller
from rota.rpc.methods import Method
from rota.rpc.results.work import TurnedOver
from rota.store.requests import Posted

__all__ = ["Job", "Reply"]

Reply: TypeAlias = Callable[[Any, BaseException | None], None]


class Job:
    """A call under way, and who wants its answer."""

    __slots__ = (
        "_ended",
        "caller",
        "earlier",
        "end_watch",
        "errand",
        "gone",
        "looks",
        "method",
        "params",
        "reply",
        "rung",
        "timer",
    )

    def __init__(
        self, method: Method, params: Any, caller: Caller, reply: Reply, ended: Callable[[Job, Any], None]
    ) -> None:
        self._ended = ended
        self.method = method
        self.params = params
        self.caller = caller
        self.reply: Reply | None = reply
        self.errand: Posted[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.end_watch: Callable[[], None] | None = None
        self.earlier: TurnedOver | None = None  # what became of the runs that ended before it waited for the next
        self.looks = False  # somebody looks for it just now
        self.rung = False  # it should be looked at once more
        self.gone = False  # nobody will hear the answer

    def answer(self, result: Any, error: BaseException | None = None) -> None:
        """Give the answer, which is the last thing that happens to a job."""
        self.stop_waiting()
        reply, self.reply = self.reply, None
        if reply is None:
            return
        self._ended(self, result)
        if not self.gone:
            reply(result, error)

    @property
    def is_parked(self) -> bool:
        """Whether it waits for something to be handed out."""
        return self.errand is not None and self.errand.parks and self.reply is not None

    @property
    def waits(self) -> bool:
        """Whether it is one that may wait for something to happen."""
        return bool(getattr(self.params, "wait_s", 0.0) > 0)

    def stop_waiting(self) -> None:
        """Let go of what would wake it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.end_watch is not None:
            self.end_watch()
            self.end_watch = None
