"""A harness for the tests of fleet files: a kernel in memory, a manual clock and a fleet file in a folder."""

from __future__ import annotations

from pathlib import Path

from rota import store
from rota.clock import ManualClock
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.changes import FleetChanges
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.tables import Fleet
from rota.fleet.triggers import Firing, Triggers
from rota.host.thread_settings import allowed_cores
from rota.kernel import Kernel
from rota.model.event_codec import decode
from rota.model.events import EventData
from rota.model.work import Agent, ReadyEntry

START = 1_700_000_000.0  # a Tuesday, 22:13:20 UTC


class FleetHarness:
    """A kernel, its clock, and the folder with the fleet file."""

    def __init__(self, folder: Path, start: float = START) -> None:
        self.folder = folder
        self.clock = ManualClock(start)
        self.store = store.open(":memory:", clock=self.clock)
        self.api = Kernel(self.store)
        self.api.queue.upkeep()  # the first call writes the state of the clocks to the store

    def fleet(self, text: str) -> Fleet:
        """Write a fleet file and load it."""
        path = self.folder / "fleet.toml"
        path.write_text(text)
        return load_fleet(path)

    def apply(self, text: str) -> FleetChanges:
        """Write a fleet file and apply it."""
        return apply_fleet(self.api, self.fleet(text))

    def apply_messages(self, text: str) -> list[str]:
        """Write a fleet file and apply it; return the changes as messages."""
        return [str(change) for change in self.apply(text)]

    def triggers(self, text: str) -> Triggers:
        """Apply a fleet file and return its triggers."""
        self.apply(text)
        return Triggers(self.api, self.clock, self.fleet(text))

    def next_at(self, triggers: Triggers) -> float | None:
        """When the next timed trigger fires."""
        due_s = triggers.due_in_s()
        return None if due_s is None else round(self.clock.now() + due_s, 3)

    def fire_due(self, triggers: Triggers, at: float) -> list[Firing]:
        """Fire what is due at a time: later ones pass, to an earlier one the wall clock is put back."""
        by_s = at - self.clock.now()
        self.clock.advance(by_s) if by_s >= 0 else self.clock.jump(by_s)
        return triggers.fire_due()

    def agent(self, name: str) -> Agent:
        return self.api.agents.find(name)[0]

    def entries(self, name: str) -> list[ReadyEntry]:
        return self.api.queue.list(pid=self.agent(name).pid, limit=1_000)[0]

    def run(self, sched_id: int, exit_kind: str = "completed") -> None:
        """Run an entry to its end."""
        self.api.queue.force_claim(sched_id, worker_id="worker", admission_check=False)
        self.api.queue.complete(sched_id, exit_kind)

    def kernel_events(self, since: int = 0) -> list[EventData]:
        events = self.api.journal.tail(since, 10_000)
        return [decode(event.kind, event.payload) for event in events if event.kind.startswith("kernel.")]

    @property
    def cursor(self) -> int:
        return self.api.journal.cursor()

    def close(self) -> None:
        self.store.close()


def cores_here(tick: object) -> list[int]:  # noqa: ARG001  # the message that it runs for
    """The cores that the calling thread may run on."""
    return sorted(allowed_cores())
