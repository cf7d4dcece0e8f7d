"""A small world for the fleet's tests: a kernel in memory, a clock moved by hand, a fleet file."""

from __future__ import annotations

from pathlib import Path

from rota import store
from rota.clock import ManualClock
from rota.fleet.config.apply import apply
from rota.fleet.config.changes import Changes
from rota.fleet.config.file import load
from rota.fleet.config.tables import Fleet
from rota.fleet.triggers import Triggers
from rota.kernel import Kernel
from rota.model.events import Fact, decode
from rota.model.work import Agent, ReadyEntry

START = 1_700_000_000.0  # a Tuesday, 22:13:20 UTC


class Office:
    """A kernel, its clock, and the fleet file beside it."""

    def __init__(self, folder: Path, start: float = START) -> None:
        self.folder = folder
        self.clock = ManualClock(start)
        self.store = store.open(":memory:", clock=self.clock)
        self.desk = Kernel(self.store)
        self.desk.queue.upkeep()  # the first look at a file notes there how the clocks stand

    def fleet(self, text: str) -> Fleet:
        """The fleet in this text."""
        path = self.folder / "fleet.toml"
        path.write_text(text)
        return load(path)

    def apply(self, text: str) -> Changes:
        return apply(self.desk, self.fleet(text))

    def told(self, text: str) -> list[str]:
        """What applying this text changes, as sentences."""
        return [str(change) for change in self.apply(text)]

    def triggers(self, text: str) -> Triggers:
        """The triggers of an applied text."""
        self.apply(text)
        return Triggers(self.desk, self.clock, self.fleet(text))

    def agent(self, name: str) -> Agent:
        return self.desk.agents.find(name)[0]

    def entries(self, name: str) -> list[ReadyEntry]:
        return self.desk.queue.list(pid=self.agent(name).pid, limit=1_000)[0]

    def run(self, sched_id: int, exit_kind: str = "completed") -> None:
        """Run an entry to its end."""
        self.desk.queue.force_claim(sched_id, worker_id="worker", admission_check=False)
        self.desk.queue.complete(sched_id, exit_kind)

    def facts(self, since: int = 0) -> list[Fact]:
        events = self.desk.journal.tail(since, 10_000)
        return [decode(event.kind, event.payload) for event in events if event.kind.startswith("kernel.")]

    @property
    def cursor(self) -> int:
        return self.desk.journal.cursor()

    def close(self) -> None:
        self.store.close()
