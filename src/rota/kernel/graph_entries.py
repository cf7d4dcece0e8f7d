"""The entries of a graph run: those that are left are stopped when it ends, and a report tells how its nodes are.

An entry of a run has the key `graph/RUN/EPOCH/COMPONENT/N` (with `~ATTEMPT` behind it from the second attempt on) and
the run's name as its `correlation_id`. What such entries spawn belongs to the run too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.decoding import decode_json
from rota.kernel.completion import read_runs
from rota.kernel.entries import BATCH_MAX, EntryFilter
from rota.kernel.environment import KernelEnvironment
from rota.kernel.graph_places import key_prefix, split_key
from rota.kernel.queue import Queue
from rota.kernel.rows import decode_spent, json_list
from rota.model.entry_status import derive_status
from rota.model.graph_runs import GraphNodeReport, NodeState
from rota.model.lifecycle import ENTRY
from rota.store import Row
from rota.store.statements import graph_runs as sql

__all__ = ["NEWEST_MAX", "GraphEntries", "NodeEntry", "StoppedEntries", "node_reports"]

NEWEST_MAX = 20  # ids of entries that a report lists for a node, and for what the run waits for
REPORT_MAX = 100_000  # entries of a run that a report counts
GENERATIONS_MAX = 64  # how deep entries that entries of a run spawned are looked for
FIRST_BEHIND = "0"  # the character after "/": the end of the range of keys that begin with a name and a slash


class StoppedEntries(NamedTuple):
    """What stopping the entries of a run did."""

    cancelled: int = 0  # they were queued
    stopped: int = 0  # they run, and were asked to stop
    left: int = 0  # they run, and were not asked


class NodeEntry(NamedTuple):
    """An entry of a node, as a report reads it."""

    node: str
    epoch_id: int
    sched_id: int
    pid: int
    project_id: str | None
    status: str
    since: float  # when it was created, started or ended
    usage: dict[str, int]


class GraphEntries:
    """Reading and stopping the entries of graph runs."""

    def __init__(self, env: KernelEnvironment, queue: Queue) -> None:
        self._env = env
        self._queue = queue

    def stop(self, run_id: str, also: Sequence[int], *, live: bool = True, by: str) -> StoppedEntries:
        """Cancel the queued entries of a run and, if `live`, ask its running ones to stop, in bounded steps.

        `also` names entries that belong to the run without its key: its coordinator.
        """
        done = StoppedEntries()
        for batch in self._unfinished(run_id, also):
            result = self._queue.bulk(EntryFilter(), "cancel", stop=live, sched_ids=batch, by=by)
            running = result.statuses.get("running", 0)
            done = StoppedEntries(
                done.cancelled + result.count - running,
                done.stopped + running,
                done.left + sum(count for why, count in result.refused.items() if why == "it is running"),
            )
        return done

    def _unfinished(self, run_id: str, also: Sequence[int]) -> Iterator[list[int]]:
        """Yield the entries of a run that have not ended, in batches; those that they spawned come after them."""
        seen: set[int] = set(also)
        yield list(also)
        batch: Sequence[Any]
        for batch in self._entries(run_id):
            yield [row[1] for row in batch if row[4] not in ENTRY.final]
            seen.update(row[1] for row in batch)
        parents = seen
        for _ in range(GENERATIONS_MAX):
            children: set[int] = set()
            for batch in self._children(parents):
                yield [sched_id for sched_id, state in batch if state not in ENTRY.final and sched_id not in seen]
                children.update(sched_id for sched_id, _state in batch)
            parents = children - seen
            seen |= children
            if not parents:
                return

    def _entries(self, run_id: str) -> Iterator[list[Row]]:
        """Yield the rows of a run's entries by key, in batches."""
        last, behind = key_prefix(run_id), f"graph/{run_id}{FIRST_BEHIND}"
        while True:
            row = (last, behind, run_id, BATCH_MAX)
            rows = self._env.read(lambda tx: tx.run(sql.RUN_ENTRIES, row))  # noqa: B023  # runs before the loop continues
            if not rows:
                return
            yield rows
            last = rows[-1][0]

    def _children(self, parents: Iterable[int]) -> Iterator[list[tuple[int, str]]]:
        ids = sorted(parents)
        for start in range(0, len(ids), BATCH_MAX):
            text, last = json_list(ids[start : start + BATCH_MAX]), 0
            while rows := self._env.read(lambda tx: tx.run(sql.CHILDREN_OF, (text, last, BATCH_MAX))):  # noqa: B023  # runs before the loop continues
                yield [(row[0], row[1]) for row in rows]
                last = rows[-1][0]

    def of_run(self, run_id: str) -> list[NodeEntry]:
        """Return the entries of a run's nodes, at most `REPORT_MAX`."""
        found: list[NodeEntry] = []
        for batch in self._entries(run_id):
            for key, sched_id, pid, project_id, state, hold, exit_kind, spent, created, started, ended in batch:
                place = split_key(run_id, str(key))
                if place is not None:
                    since = ended if state in ENTRY.final else started if state == "dispatched" else created
                    status = derive_status(state, hold, exit_kind)
                    usage = dict(decode_spent(spent)) if isinstance(spent, str) else {}
                    found.append(NodeEntry(*place, sched_id, pid, project_id, status, since or 0.0, usage))
            if len(found) >= REPORT_MAX:
                break
        return found[:REPORT_MAX]

    def counts(self, run_id: str) -> dict[str, tuple[int, int]]:
        """Return how often each node of a run succeeded and failed, as of its last checkpoint."""
        rows = self._env.read(lambda tx: tx.run(sql.RUN_COUNTS, (run_id,)))
        try:
            return decode_json(rows[0][0] or "{}", dict[str, tuple[int, int]]) if rows else {}
        except msgspec.MsgspecError:  # a checkpoint that was damaged must not hide the run
            return {}

    def coordinator(self, sched_id: int) -> tuple[str | None, dict[str, int]]:
        """Return the status of a coordinator, None if it was pruned, and what it used itself."""
        run = self._env.read(lambda tx: read_runs(tx, [sched_id])).get(sched_id)
        return (None, {}) if run is None else (self._queue.get(sched_id).status, dict(decode_spent(run.spent_text)))


# --- the report ----------------------------------------------------------------------------------

# The state of a node with entries of several statuses is the first of these that one of them has.
_FIRST: tuple[NodeState, ...] = ("running", "ready", "waiting")


def node_reports(
    nodes: Sequence[tuple[str, str | None]],
    entries: Sequence[NodeEntry],
    counts: Mapping[str, tuple[int, int]],
    *,
    error: str | None = None,
) -> tuple[GraphNodeReport, ...]:
    """Return how each node of a run is. `nodes` are names with agents.

    A node without entries runs in the coordinator: `counts` says how often it succeeded and failed, as of the last
    checkpoint. An epoch that failed has none; the `error` of the run names the node.
    """
    by_node: dict[str, list[NodeEntry]] = {name: [] for name, _ in nodes}
    for entry in entries:
        by_node.setdefault(entry.node, []).append(entry)
    agents = dict(nodes)
    states: dict[str, NodeState] = {
        name: "succeeded" if completed else "failed" for name, (completed, _) in counts.items() if name in by_node
    }
    if (
        failing := next((name for name in by_node if (error or "").startswith(f"component {name} failed")), None)
    ) is not None:
        states[failing] = "failed"
    return tuple(
        _node_report(name, agents.get(name), found, states.get(name, "pending")) for name, found in by_node.items()
    )


def _node_report(name: str, agent: str | None, entries: list[NodeEntry], without_entries: NodeState) -> GraphNodeReport:
    if not entries:
        return GraphNodeReport(node=name, agent=agent, state=without_entries)
    by_age = sorted(entries, key=lambda entry: entry.sched_id)
    counts = Counter(entry.status for entry in entries)
    newest = by_age[-1]
    usage: Counter[str] = Counter()
    for entry in entries:
        usage.update(entry.usage)
    state = next((each for each in _FIRST if each in counts), None) or _ended_state(newest.status)
    return GraphNodeReport(
        node=name,
        agent=agent,
        state=state,
        epoch_id=newest.epoch_id,
        entries=dict(counts),
        newest=tuple(entry.sched_id for entry in by_age[-NEWEST_MAX:]),
        since=max(entry.since for entry in entries),
        usage=dict(usage),
    )


def _ended_state(status: str) -> NodeState:
    if status == "succeeded":
        return "succeeded"
    return "cancelled" if status == "cancelled" else "failed"
