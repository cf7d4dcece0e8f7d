"""How far a call travels: Python calls, files, depth and SQL statements of one warm call of each verb.

A reader follows these hops, and Python executes them between two commits. Each verb runs twice on an embedded store;
the second call is counted. `calls` are Python call events inside `src/rota`, `files` the files they are in, `depth` the
deepest nesting of such calls, `sql` the statements that the transaction executes (without BEGIN and COMMIT).

    ./dev hops [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rota import store
from rota.kernel import Completion, Kernel, ReadyEntry, RunReport, ScheduleSpec
from rota.policy import names
from rota.service import Dispatcher
from rota.store.file_identity import WATCH_AFTER

__all__ = ["Hops", "measure", "report"]

SOURCE = str(Path(store.__file__).parents[1]) + "/"
STATEMENTS = "SqliteTransaction."  # the class whose methods execute the statements of a transaction
PROJECTS = {"research": 3_000, "review": 1_000}
AGENTS = 4
ENTRIES = 60
WORKER = "worker"


class Hops(NamedTuple):
    """What one call of a verb cost."""

    verb: str
    policy: str
    calls: int
    files: int
    depth: int
    sql: int


class _Counter:
    """A profile function that counts the calls of our own files and the statements they execute."""

    def __init__(self) -> None:
        self.calls = self.depth = self.sql = 0
        self.files: set[str] = set()
        self._nested = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(SOURCE):
            return
        if event == "call":
            self.calls += 1
            self.files.add(path)
            self._nested += 1
            self.depth = max(self.depth, self._nested)
        elif event == "return":
            self._nested -= 1
        elif event == "c_call" and arg.__name__ in ("execute", "executemany"):
            self.sql += frame.f_code.co_qualname.startswith(STATEMENTS)


def measure(verb: str, policy: str, call: Callable[[], object]) -> Hops:
    """Count one call."""
    counter = _Counter()
    sys.setprofile(counter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Hops(verb, policy, counter.calls, len(counter.files), counter.depth, counter.sql)


def report() -> Iterator[Hops]:
    """Every verb: enqueue once, the others under each policy."""
    for policy in names():
        with tempfile.TemporaryDirectory() as folder:
            world = _World(str(Path(folder) / "rota.db"), policy)
            try:
                yield from world.verbs()
            finally:
                world.dispatcher.close()


class _World:
    """Two projects with two agents each, and entries for all of them."""

    def __init__(self, path: str, policy: str) -> None:
        kernel = Kernel(store.open(path))
        for project_id, weight in PROJECTS.items():
            kernel.projects.create(project_id, weight=weight)
        projects = list(PROJECTS)
        pids = [kernel.agents.create(f"agent-{n}", project_id=projects[n % len(projects)]) for n in range(AGENTS)]
        kernel.queue.enqueue_many([ScheduleSpec(pids[n % AGENTS]) for n in range(ENTRIES)])
        self.spec = ScheduleSpec(pids[0])
        for _ in range(WATCH_AFTER):  # as in a process that has run for a while: the files are watched
            kernel.queue.enqueue(self.spec)
        self.policy = policy
        self.dispatcher = Dispatcher(kernel, policy)
        self.held: list[ReadyEntry] = []

    def verbs(self) -> Iterator[Hops]:
        """Call each verb twice and count the second call."""
        verbs: dict[str, Callable[[], object]] = {
            "claim": self._claim,
            "complete": self._complete,
            "complete_and_claim": self._complete_and_claim,
            "turn": self._turn,
        }
        if self.policy == "strict":
            verbs = {"enqueue": lambda: self.dispatcher.queue.enqueue(self.spec), **verbs}
        for verb, call in verbs.items():
            self.held += self.dispatcher.claim(WORKER, 4)
            call()
            yield measure(verb, self.policy, call)

    def _claim(self) -> None:
        self.held += self.dispatcher.claim(WORKER)

    def _complete(self) -> None:
        entry = self.held.pop()
        self.dispatcher.queue.complete(entry.sched_id, "completed", token=entry.token)

    def _complete_and_claim(self) -> None:
        entry = self.held.pop()
        done = Completion(entry.sched_id, "completed", entry.token)
        self.held += self.dispatcher.complete_and_claim([done], WORKER).entries

    def _turn(self) -> None:
        entry = self.held.pop()
        done = RunReport(sched_id=entry.sched_id, token=entry.token or 0)
        self.held += self.dispatcher.turn([done], WORKER).entries


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev hops", description="how far one warm call of each verb travels")
    parser.add_argument("--json", action="store_true", help="one object per line")
    as_json = parser.parse_args().json
    if not as_json:
        print(f"{'verb':20} {'policy':18} {'calls':>6} {'files':>6} {'depth':>6} {'sql':>4}")
    for hops in report():
        if as_json:
            print(json.dumps(hops._asdict()), flush=True)
        else:
            print(f"{hops.verb:20} {hops.policy:18} {hops.calls:6} {hops.files:6} {hops.depth:6} {hops.sql:4}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
