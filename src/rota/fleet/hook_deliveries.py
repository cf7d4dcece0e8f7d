"""The deliveries of hooks: what an event asks for, with what the store knows about it, and how many may wait.

At most `HOOK_WAITING_MAX` deliveries of one hook wait. Beyond that the oldest are cancelled, and an event counts them:
a receiver that is down for long must not fill the queue, and the newest news are worth the most.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from rota.errors import IllegalTransition, NotFound
from rota.fleet.hook_rules import HookFilter, Subject, entry_ids, is_hook, is_wanted, make_notice
from rota.model.events import Event, HookDropped
from rota.model.work import Agent
from rota.service.api import KernelApi

__all__ = ["HOOK_WAITING_MAX", "HookDeliveries"]

HOOK_WAITING_MAX = 100  # deliveries of one hook that wait at a time
LOOKED_AT_MAX = 20  # entries of an event that are looked at, to tell whether it is about hooks only
_OF_ENTRIES = "kernel.sched."
_log = logging.getLogger("rota.fleet")


class HookDeliveries:
    """Reads what a delivery tells from a store, and drops deliveries that are too many."""

    def __init__(self, api: KernelApi, store: str) -> None:
        self._api = api
        self._store = store  # its address, as the receivers are told it

    def of(
        self, wanted: HookFilter, event: Event, subjects: Sequence[Subject], number: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what identifies each delivery of an event within the hook's trigger, and what it tells.

        An event about hooks yields none: it would cause the next one.
        """
        if self._is_about_hooks(event):
            return
        for subject in subjects[-HOOK_WAITING_MAX:]:
            try:
                entry = None if subject.sched_id is None else self._api.queue.get(subject.sched_id)
                pid = event.pid if entry is None else entry.pid
                agent = None if pid is None else self._api.agents.get(pid)
            except NotFound:  # pruned
                continue
            if (agent is not None and is_hook(agent)) or not is_wanted(wanted, event, agent):
                continue
            moment = str(event.event_id) if entry is None else f"{event.event_id}.{entry.sched_id}"
            delivery_id = f"{wanted.hook}:{number}:{moment}"
            yield moment, make_notice(wanted, event, agent, entry, delivery_id=delivery_id, store=self._store)

    def _is_about_hooks(self, event: Event) -> bool:
        """Whether an event is about a hook, or about deliveries only."""
        try:
            if event.pid is not None:
                return is_hook(self._api.agents.get(event.pid))
            if not event.kind.startswith(_OF_ENTRIES):
                return False
            pids = {self._api.queue.get(sched_id).pid for sched_id in entry_ids(event)[:LOOKED_AT_MAX]}
            return bool(pids) and all(is_hook(self._api.agents.get(pid)) for pid in pids)
        except NotFound:
            return False

    def drop_oldest(self, hook: Agent, not_queued: int) -> None:
        """Cancel the oldest deliveries of a hook if too many wait. `not_queued` more were never enqueued."""
        waiting, total = self._api.queue.list(state="queued", pid=hook.pid, limit=2 * HOOK_WAITING_MAX)
        excess = waiting[: max(0, total - HOOK_WAITING_MAX)]
        dropped = [entry.sched_id for entry in excess if self._cancel(entry.sched_id)]
        if dropped or not_queued:
            event = HookDropped(hook=hook.name, count=len(dropped) + not_queued, sched_ids=dropped)
            self._api.journal.record(event, pid=hook.pid)
            text = "%s: more than %s deliveries waited, and the oldest %s were dropped"
            _log.warning(text, hook.name, HOOK_WAITING_MAX, event.count)

    def _cancel(self, sched_id: int) -> bool:
        try:
            self._api.queue.cancel(sched_id)
        except (IllegalTransition, NotFound):  # it has just been claimed
            return False
        return True
