"""The slots for deliveries of hooks.

Deliveries run in `HOOK_SLOTS` slots of their own. They need the slot kind `HOOK_KIND`, which no other slot has, so they
never take a slot from other work, and other work never keeps a delivery waiting. They are claimed one by one instead of
by a policy, and budgets are not checked: the news that a budget is used up must get out. So a delivery moves no share.

The loop looks when this supervisor's triggers have enqueued a delivery, when one that failed is due again, and every
`LOOK_S` for what another supervisor left behind. Two supervisors may find the same one; one of them gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rota.clock import wait_until
from rota.errors import NotFound, RotaError, SchedAdmissionDenied
from rota.fleet.hook_rules import HOOK_KIND
from rota.fleet.slot_loop import SlotLoop
from rota.kernel.run_reports import CompletionAnswer, RunReport
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["HOOK_SLOTS", "HookLoop"]

HOOK_SLOTS = 4
LOOK_S = 15.0  # how long the loop waits before it looks again by itself
WAITING_MAX = 200  # entries of one hook that are looked at


class HookLoop(SlotLoop):
    """Claims and runs the deliveries of some hooks."""

    def __init__(
        self, api: SchedulerApi, worker_id: str, incarnation: str, pids: Callable[[], Sequence[int]], **options: Any
    ) -> None:
        """`pids` returns the agents of the hooks."""
        super().__init__(api, worker_id, incarnation, HOOK_SLOTS, kinds=(HOOK_KIND,), **options)
        self._pids = pids
        self._is_nudged = False
        self._is_finishing = False

    def finish(self) -> None:
        """Deliver what is due once more, then claim nothing more."""
        with self._changed:
            self._is_finishing = True
        self.nudge()

    def nudge(self) -> None:
        """Look at once: there are new deliveries."""
        with self._changed:
            self._is_nudged = True
            self._changed.notify_all()

    def _turn(
        self, reports: list[RunReport], wanted: int, wait_s: float
    ) -> tuple[list[CompletionAnswer], list[ReadyEntry]]:
        answers: list[CompletionAnswer] = []
        if reports:
            answers = self._api.turn(reports, self.worker_id, 0, incarnation=self._incarnation).answers
        if self._is_finishing:
            return answers, self._claim_last(wanted)
        entries, due_in_s = self._claim(wanted)
        if not entries and wait_s > 0:
            with self._changed:
                wait_until(self._api.clock, self._changed, self._has_news, min(wait_s, due_in_s))
            entries, _ = self._claim(wanted if self._is_claiming else 0)
        return answers, entries

    def _claim_last(self, wanted: int) -> list[ReadyEntry]:
        """Claim what is due; if nothing is, or the store cannot be used, claim nothing more."""
        try:
            entries, _ = self._claim(wanted)
        except RotaError:
            entries = []
        if not entries:
            self.stop_claiming()
        return entries

    def _has_news(self) -> bool:
        """Whether to look again, or to return to the loop, which waits inside a turn while it is parked."""
        return self._is_nudged or not self._is_parked

    def _claim(self, wanted: int) -> tuple[list[ReadyEntry], float]:
        """Claim the oldest deliveries that are due; also return how long until the next one is."""
        if not wanted:
            return [], LOOK_S
        with self._changed:
            self._is_nudged = False
        now, claimed, due_in_s = self._api.clock.now(), list[ReadyEntry](), LOOK_S
        for entry in self._waiting():
            if entry.runnable_at > now:
                due_in_s = min(due_in_s, entry.runnable_at - now)
            elif len(claimed) < wanted and (delivery := self._claim_one(entry.sched_id)) is not None:
                claimed.append(delivery)
        return claimed, due_in_s

    def _waiting(self) -> list[ReadyEntry]:
        found = [
            entry
            for pid in self._pids()
            for entry in self._api.queue.list(state="queued", pid=pid, limit=WAITING_MAX)[0]
        ]
        return sorted(found, key=lambda entry: entry.sched_id)

    def _claim_one(self, sched_id: int) -> ReadyEntry | None:
        try:
            return self._api.queue.force_claim(
                sched_id,
                worker_id=self.worker_id,
                incarnation=self._incarnation,
                by="the slots for hooks",
                admission_check=False,
                claim_timeout_s=self._claim_timeout_s,
            )
        except (SchedAdmissionDenied, NotFound):  # paused, or another supervisor has it
            return None

    def _interrupt_claim(self, was_parked: bool) -> None:
        """Nothing: the wait inside a turn sees that the loop is not parked any more."""
