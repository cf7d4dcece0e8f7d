"""A world with one row of every kind, for tests of refused calls."""

from __future__ import annotations

from typing import Any

from rota.kernel import Kernel
from rota.store.sqlite import SqliteStore
from tests.kernel.world import World
from tests.stores import fingerprint

NAN, INF = float("nan"), float("inf")
SURROGATE = "\ud800"  # half a character, which cannot be encoded
PID, DEAD_PID = 1, 2
QUEUED, RUNNING, DONE, BACKED_OFF, AFTER = 1, 2, 3, 4, 5


class PopulatedWorld(World):
    """A world with one row of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.projects.create("lab")
        self.projects.add_workspace("desk", "lab", "/desk")
        assert self.agent(project_id="lab") == PID
        assert self.agent() == DEAD_PID
        self.kernel.terminate(DEAD_PID, "failed")
        self.ledger.create(PID, {"tokens": 1_000})
        self.ledger.charge(PID, "tokens", 50)
        self.ledger.set_budget("project", "lab", "tokens", 10_000)
        self.context_id = self.contexts.create(bound_to="name", bound_id="api", budget=500, period_s=60).context_id
        for sched_id in (QUEUED, RUNNING, DONE, BACKED_OFF):
            assert self.put(PID) == sched_id
        for sched_id in (RUNNING, DONE, BACKED_OFF):
            self.queue.force_claim(sched_id, worker_id="worker")
        self.token = self.queue.get(RUNNING).token or 0
        self.queue.complete(DONE, "completed")
        self.queue.complete(BACKED_OFF, "crashed", token=self.queue.get(BACKED_OFF).token)
        assert self.put(PID, after=(RUNNING,), on_failed="hold") == AFTER

    def image(self) -> object:
        """Return the whole store, to compare: in memory as bytes, which is faster than its rows."""
        if (connection := self._memory()) is not None:
            return bytes(connection.serialize("main"))
        return fingerprint(self.store)

    def restore(self, image: Any) -> object:
        """Restore an image of the populated world, as it was at first; returns its image now."""
        if (connection := self._memory()) is not None:
            connection.deserialize("main", image)
            self.begin(Kernel(self.store, rng=self.rng))
        else:
            self.close()
            self.__init__()  # type: ignore[misc]  # the same rows, in a new store with an id of its own
        return self.image()

    def _memory(self) -> Any:
        """The connection to a store in memory: there is one."""
        if not isinstance(self.store, SqliteStore) or self.store.path is not None:
            return None
        return self.store._engine.connection
