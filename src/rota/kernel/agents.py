"""Agents: the schedulable processes. A pid is never reused."""

from __future__ import annotations

from rota.clock import Clock
from rota.errors import InvalidPayload
from rota.kernel.journal import append
from rota.model.checks import Checks
from rota.model.events import ProcessCreated
from rota.store import Store, Transaction
from rota.store import statements as sql

__all__ = ["Agents"]

_agent = Checks("Agent", InvalidPayload)


class Agents:
    """Making agents and moving them through their states."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def create(self, name: str, template: str = "callable") -> int:
        """Make an agent; its pid is the answer. Nothing is enqueued."""
        _agent.text("name", name)
        _agent.text("template", template)
        now = self._clock.now()

        def work(tx: Transaction) -> int:
            pid = int(tx.run(sql.AGENT_CREATE, (None, name, template, now, now, "{}"))[0][0])
            append(tx, ProcessCreated(name=name, template=template), now=now, pid=pid)
            return pid

        return self._store.write(work)
