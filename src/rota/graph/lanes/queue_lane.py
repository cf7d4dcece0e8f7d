"""Durable lanes: an invocation becomes an entry of the queue; the graph continues when the entry has ended.

A ready invocation is enqueued with everything needed to run it elsewhere, as JSON, under a key made of run, epoch,
component and its number in that epoch (fleet_lane.py). The epoch does not wait. At the first epoch boundary after the
entry has ended, its publications are committed along the component's async edges; a failure is handled like any other,
and with `on_error: retry` the invocation is enqueued again under a key of its own. Supervisors run the entries.

**In order.** The results of a component are committed in the order of its invocations, not in the order in which its
entries end: so the same graph gives the same sequence on every lane. A result waits until those before it have ended;
`preserve_order: false` on all edges behind the component commits each as soon as it is there. A result for which an
edge has no room waits too: it stays in the queue, with its entry.

The key depends only on the graph and the run, not on this process, so enqueueing the same invocation twice adds
nothing. This makes it safe to repeat an epoch after a crash (see `checkpoint`).

The store notifies after every commit of any process. The notification only sets a flag; the run's own thread checks
whether one of its entries has ended when it has nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from rota.decoding import convert
from rota.errors import ComponentInvalid, GraphRunFailed, RotaError
from rota.graph.back_pressure import BackPressure
from rota.graph.channels import MessageChannel
from rota.graph.commit import Committer
from rota.graph.components import DEFAULT_OUTPUT
from rota.graph.fan_out import collect_ready, publish_lists
from rota.graph.invocation import Invocation, Publication, Scope
from rota.graph.lanes.durable import NEW_RUN_HINT, DurableRun, EntryOutcome, EntryResult, is_interruption, json_value
from rota.graph.lanes.fleet_lane import EntryRequest, agent_payload
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node, has_room
from rota.graph.reports import RunStopped, error_text
from rota.graph.run_budgets import RunBudgets
from rota.graph.stop import WakeSignal
from rota.model.checks import PAYLOAD_BYTES_MAX

__all__ = ["PendingInvocation", "QueueLane", "QueueStep"]

T = TypeVar("T")


class PendingInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation whose entry has not ended yet."""

    entry_id: int = 0  # 0: not enqueued yet
    name: str  # run, epoch, component and number
    component_id: str
    epoch_id: int
    inputs: Inputs
    attempt: int = 1
    number: int = 0  # in its epoch and component
    ask: dict[str, int] = {}  # what its entry asks of the budgets of the run, where that is more than 1

    @property
    def key(self) -> str:
        """The unique key of its entry; each attempt has its own."""
        return f"graph/{self.name}" if self.attempt == 1 else f"graph/{self.name}~{self.attempt}"


class QueueLane:
    """All queue and fleet lanes of a run: they share one durable queue.

    Only the run's thread calls it, except for `_on_store_change`.
    """

    def __init__(
        self, run_id: str, committer: Committer, scope: Scope, wake_signal: WakeSignal, meters: Mapping[str, LaneMeter]
    ) -> None:
        self._run_id = run_id
        self._meters = meters
        self._committer = committer
        self._scope = scope
        self._wake_signal = wake_signal
        self._nodes: dict[str, Node] = {}
        self._run: DurableRun | None = None
        self._pending: dict[int, PendingInvocation] = {}  # by entry
        self._lines: dict[str, dict[int, PendingInvocation]] = {}  # the same by component, in order of invocation
        self._unsubscribe: Callable[[], None] | None = None
        # by component: its first ended entry whose publications the edges have no room for
        self._held_back: dict[str, tuple[int, list[Publication]]] = {}
        self._running_items: dict[str, list[int]] = {}  # by component that maps over lists: what may still run
        self._store_changed = False  # since the last check
        self.budgets: RunBudgets | None = None  # set by the engine

    @property
    def outstanding(self) -> int:
        """The number of entries that have not ended, or whose end was not seen yet."""
        return len(self._pending)

    def outstanding_of(self, component_id: str) -> int:
        """The number of a component's entries whose results are not committed."""
        return len(self._lines.get(component_id, ()))

    def awaited(self) -> tuple[int, ...]:
        """Return the entries whose end lets the run go on: of a component that keeps its order, only the first."""
        found: list[int] = []
        for component_id, line in self._lines.items():
            node = self._nodes[component_id]
            if component_id in self._held_back:
                continue  # it waits for room on its edges, which no entry of its own gives
            if node.map_over is not None and line:
                running = self._running_items[component_id]
                # with a budget, the end of any of them may leave too little for the others
                is_limited = self.budgets is not None and self.budgets.limits(node)
                found += running if is_limited else running[-1:]
            else:
                found += [next(iter(line))] if node.keeps_order and line else line
        return tuple(found)

    def pending(self) -> tuple[PendingInvocation, ...]:
        """Return the invocations in flight, for a checkpoint."""
        return tuple(self._pending.values())

    def add_component(self, node: Node) -> None:
        """Add a component to this lane."""
        self._nodes[node.id] = node

    def open(self, run: DurableRun, pending: Sequence[PendingInvocation]) -> None:
        """Begin, with the invocations that an earlier process left in flight."""
        unknown = sorted({each.component_id for each in pending} - set(self._nodes))
        if unknown:
            names = ", ".join(unknown)
            raise GraphRunFailed(
                f"the graph has changed since this run began: {names} is not on a durable lane",
                hint=NEW_RUN_HINT,
            )
        self._run = run
        for each in pending:
            self._add(each)
        self._store_changed = True  # entries may have ended before this process subscribed
        self._unsubscribe = run.on_change(self._on_store_change)

    def close(self) -> None:
        """Stop listening to the store; entries in flight continue without this process."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _on_store_change(self) -> None:
        self._store_changed = True
        self._wake_signal.notify()

    def has_ended_entries(self) -> bool:
        """Return whether an entry has ended that the next epoch boundary would commit."""
        if any(has_room(self._nodes[name], held[1], Counter()) for name, held in self._held_back.items()):
            return True  # a reader has taken messages
        if not self._store_changed:
            return False
        self._store_changed = False  # cleared first: later changes are for the next check
        try:
            has_ended = bool(self._durable_run.ended(self.awaited()))
        except RotaError:  # the epoch boundary will fail with it too, and report it
            has_ended = True
        if has_ended:  # set until an epoch boundary has committed them
            self._store_changed = True
        return has_ended

    def commit_ended(self) -> None:
        """Commit every invocation whose entry has ended and whose results fit, oldest first."""
        self._store_changed = False
        self._cancel_over_budget()
        ended = self._call_kernel(lambda run: run.ended(tuple(self._pending)))
        retries: list[PendingInvocation] = []
        coming: Counter[MessageChannel] = Counter()
        full: set[str] = set()  # components behind which there is no room
        self._held_back.clear()
        lists: dict[tuple[str, str], PendingInvocation] = {}  # by component and list: an item of it that has ended
        may_continue = True
        for entry_id in self._committable(ended):
            pending, outcome = self._pending[entry_id], ended[entry_id]
            node = self._nodes[pending.component_id]
            staged = _staged(node, outcome)
            published = staged.published if isinstance(staged, EntryResult) and node.map_over is None else []
            if pending.component_id in full or not has_room(node, published, coming):
                full.add(pending.component_id)  # for the later ones too, which come after it
                self._held_back.setdefault(pending.component_id, (entry_id, published))
                continue
            self._remove(pending)
            if self._is_tried_again(pending, outcome):
                retries.append(msgspec.structs.replace(pending, attempt=pending.attempt + 1))
            elif self.budgets is not None and self._is_over_budget(node, pending, outcome):
                place = (pending.inputs, pending.epoch_id, outcome.error)
                may_continue = self.budgets.commit_stopped(node, *place, ask=pending.ask) and may_continue
            else:
                may_continue = self._commit_outcome(node, pending, staged) and may_continue
            if node.map_over is not None:
                lists[node.id, _list_of(node, pending)] = pending
        may_continue = self._publish_lists(lists, retries) and may_continue
        self._put(retries)
        if not may_continue:
            raise RunStopped

    def _publish_lists(
        self, ended: Mapping[tuple[str, str], PendingInvocation], retries: Sequence[PendingInvocation] = ()
    ) -> bool:
        """Publish the results of the lists of which no item is left; False if the run must end."""
        mapped = {component_id: self._nodes[component_id] for component_id, _ in ended}
        left = {
            (each.component_id, _list_of(mapped[each.component_id], each))
            for each in retries
            if each.component_id in mapped
        }
        for component_id, node in mapped.items():
            left |= {(component_id, _list_of(node, each)) for each in self._lines.get(component_id, {}).values()}
        may_continue = True
        for name, pending in ended.items():
            if name not in left:
                node = mapped[name[0]]
                published = publish_lists(node, [pending.inputs], self._committer, pending.epoch_id)
                may_continue = published and may_continue
        return may_continue

    def _cancel_over_budget(self) -> None:
        """Cancel entries that no claim will take any more, because a budget is used up and they do not wait for it."""
        budgets = self.budgets
        if budgets is not None:
            nodes, pending = self._nodes, self._pending.items()
            over = [key for key, each in pending if budgets.must_cancel(nodes[each.component_id], each.ask)]
            if over:
                self._call_kernel(partial(DurableRun.cancel_queued, entry_ids=over))

    def _is_of_earlier_life(self, pending: PendingInvocation, outcome: EntryOutcome) -> bool:
        """Whether an entry ended otherwise than well before the run was resumed: it is enqueued again.

        A resumed run has a new coordinator, and all entries that it enqueues have higher ids.
        """
        return not outcome.succeeded and pending.entry_id < self._durable_run.first_id

    def _is_over_budget(self, node: Node, pending: PendingInvocation, outcome: EntryOutcome) -> bool:
        """Whether an entry was stopped over budget, or cancelled because there was none left for it."""
        if self.budgets is None or outcome.succeeded:
            return False
        return outcome.over_budget or (outcome.cancelled and self.budgets.must_cancel(node, pending.ask))

    def _committable(self, ended: Mapping[int, EntryOutcome]) -> list[int]:
        """Return the ended entries that no earlier invocation of the same component holds up, oldest first."""
        found: list[int] = []
        for component_id, line in self._lines.items():
            if self._nodes[component_id].map_over is not None:
                found += self._committable_items(self._nodes[component_id], line, ended)
                continue
            keeps_order = self._nodes[component_id].keeps_order
            for entry_id in line:
                if entry_id in ended:
                    found.append(entry_id)
                elif keeps_order:
                    break
        return sorted(found)

    def _committable_items(
        self, node: Node, line: Mapping[int, PendingInvocation], ended: Mapping[int, EntryOutcome]
    ) -> list[int]:
        """Return the ended entries of each list that is complete, and those that failed.

        A list is complete when all of its items have ended and none is tried again. Until then the results stay in the
        queue: what was committed for an incomplete list would be gone when the run goes on elsewhere. Entries that
        failed are not waited with, unless the component continues without them.
        """
        lists: dict[str, list[int]] = {}
        for entry_id, pending in line.items():
            lists.setdefault(_list_of(node, pending), []).append(entry_id)
        running = {name: [each for each in ids if each not in ended] for name, ids in lists.items()}
        self._running_items[node.id] = [entry_id for ids in running.values() for entry_id in ids]
        again = {each for each in line if each in ended and self._is_tried_again(line[each], ended[each])}
        complete = [each for name, ids in lists.items() if not running[name] and again.isdisjoint(ids) for each in ids]
        failed = [each for each in line if each in ended and not ended[each].succeeded]
        early = again if node.on_error == "continue" else failed
        return list(dict.fromkeys([*complete, *early]))

    def _add(self, pending: PendingInvocation) -> None:
        """Remember an invocation; one that is retried comes before the later ones."""
        self._pending[pending.entry_id] = pending
        line = self._lines.setdefault(pending.component_id, {})
        is_last = not line or _place(line[next(reversed(line))]) < _place(pending)
        line[pending.entry_id] = pending
        if self._nodes[pending.component_id].map_over is not None:
            self._running_items.setdefault(pending.component_id, []).append(pending.entry_id)
        if not is_last:
            self._lines[pending.component_id] = dict(sorted(line.items(), key=lambda item: _place(item[1])))

    def _remove(self, pending: PendingInvocation) -> None:
        del self._pending[pending.entry_id]
        del self._lines[pending.component_id][pending.entry_id]

    def enqueue(self, ready: Sequence[tuple[Node, Sequence[Inputs]]], epoch_id: int) -> None:
        """Enqueue the invocations of components that are ready in an epoch, in one commit."""
        wanted = [
            PendingInvocation(
                name=f"{self._run_id}/{epoch_id}/{node.id}/{index}",
                component_id=node.id,
                epoch_id=epoch_id,
                inputs=inputs,
                number=index,
            )
            for node, found in ready
            for index, inputs in enumerate(found)
        ]
        self._put(wanted)
        # lists of which no item could be encoded, under on_error: continue
        mapped = {node.id: node for node, _ in ready if node.map_over is not None}
        of_lists = [each for each in wanted if each.component_id in mapped] if mapped else []
        lists = {(each.component_id, _list_of(mapped[each.component_id], each)): each for each in of_lists}
        if not self._publish_lists(lists):
            raise RunStopped

    def _put(self, wanted: Sequence[PendingInvocation]) -> None:
        """Enqueue all invocations that can be encoded, in one commit; the others fail one by one."""
        requests: list[EntryRequest] = []
        fitting: list[PendingInvocation] = []
        for pending in wanted:
            node = self._nodes[pending.component_id]
            try:
                agent, payload = node.spec.execution.agent, self._payload(node, pending)
                options = {} if self.budgets is None else self.budgets.entry_options(node)
                requests.append(EntryRequest(pending.key, payload, node.rank, agent, node.spec.type, options))
                fitting.append(pending)
            except ComponentInvalid as problem:
                if not self._committer.fail(node, problem):
                    raise RunStopped from problem
        if requests:
            specs = self._call_kernel(lambda run: run.specs(requests))
            ids = self._call_kernel(lambda run: run.enqueue(specs))
            for pending, entry_id, spec in zip(fitting, ids, specs, strict=True):
                self._add(msgspec.structs.replace(pending, entry_id=entry_id, ask={**spec.expected, **spec.ceiling}))
            self._cancel_over_budget()  # what can never start would be waited for without end
            self._measure()
            self._store_changed = True  # after a restart the entry of this key may have ended already

    def _measure(self) -> None:
        in_flight: Counter[str] = Counter()
        for component_id, line in self._lines.items():
            in_flight[self._nodes[component_id].lane.id] += len(line)
        for lane, count in in_flight.items():
            self._meters[lane].in_flight_count = max(self._meters[lane].in_flight_count, count)

    def _payload(self, node: Node, pending: PendingInvocation) -> dict[str, Any]:
        agent = node.spec.execution.agent
        payload = self._agent_payload(node, pending) if agent else self._component_payload(node, pending)
        size = len(msgspec.json.encode(payload))
        if size > PAYLOAD_BYTES_MAX:
            raise ComponentInvalid(
                f"an entry of component {node.id} has {size:,} bytes; the maximum is {PAYLOAD_BYTES_MAX:,}",
                hint="Publish less data, or a reference to where it is stored.",
                component_id=node.id,
            )
        return payload

    def _agent_payload(self, node: Node, pending: PendingInvocation) -> dict[str, Any]:
        _checked_inputs(node, pending.inputs)
        json_value(f"the configuration of component {node.id}", dict(node.spec.config))
        return agent_payload(node, pending.inputs)

    def _component_payload(self, node: Node, pending: PendingInvocation) -> dict[str, Any]:
        return {
            "run": self._run_id,
            "epoch": pending.epoch_id,
            "invocation": pending.name,
            "attempt": pending.attempt,
            "component": node.id,
            "type": node.spec.type,
            "lane": node.lane.id,
            "config": json_value(f"the configuration of component {node.id}", dict(node.spec.config)),
            "graph_config": json_value("the configuration of the graph", dict(self._scope.config)),
            "channel_ports": list(node.component.channel_ports),
            "output_ports": sorted(node.component.output_ports),
            "fills": node.trigger.fills_every_input,
            "budget_s": node.component.budget_s,
            "inputs": _checked_inputs(node, pending.inputs),
        }

    def _is_tried_again(self, pending: PendingInvocation, outcome: EntryOutcome) -> bool:
        """Whether an invocation whose entry ended like this is enqueued again."""
        if outcome.succeeded or self._is_of_earlier_life(pending, outcome):
            return not outcome.succeeded
        node = self._nodes[pending.component_id]
        if self._is_over_budget(node, pending, outcome):
            return False
        return pending.attempt < node.component.attempts_max and not self._committer.stop_token.is_set

    def _commit_outcome(self, node: Node, pending: PendingInvocation, staged: EntryResult | RotaError) -> bool:
        invocation = Invocation(node.component, self._scope, pending.inputs, pending.epoch_id)
        invocation.begin()
        invocation.attempt = pending.attempt
        if isinstance(staged, RotaError):
            invocation.end(staged)
        else:
            invocation.end()
            invocation.staged = staged.published
            invocation.started_at_s = invocation.ended_at_s - staged.duration_s  # as it was measured there
        return self._committer.commit(node, invocation)

    @property
    def _durable_run(self) -> DurableRun:
        assert self._run is not None  # noqa: S101  # `open` comes before the first epoch
        return self._run

    def _call_kernel(self, call: Callable[[DurableRun], T]) -> T:
        """Call the kernel. If it refuses, the run ends, but nothing is lost: the epoch can be repeated."""
        try:
            return call(self._durable_run)
        except RotaError as problem:
            code = "queue_unavailable" if is_interruption(problem) else "queue_refused"
            self._committer.reports.error("runtime", code, error_text(problem))
            raise RunStopped from problem


def _checked_inputs(node: Node, inputs: Inputs) -> Any:
    for given in inputs:
        for message in given if isinstance(given, tuple) else (given,):
            if message is not None:
                json_value(f"a message from edge {message.channel_id} to component {node.id}", message.payload)
    return msgspec.to_builtins(inputs)


def _list_of(node: Node, pending: PendingInvocation) -> str:
    """Return the message whose item an invocation of a component that maps over lists is for."""
    assert node.map_over is not None  # noqa: S101  # the callers ask
    return node.map_over.place(pending.inputs).message_id


def _place(pending: PendingInvocation) -> tuple[int, int]:
    return pending.epoch_id, pending.number


def _staged(node: Node, outcome: EntryOutcome) -> EntryResult | RotaError:
    """Return what an entry publishes, or why it failed. The result of an agent is published whatever it is."""
    if not outcome.succeeded:
        return GraphRunFailed(outcome.error.removeprefix(f"component {node.id} failed: "))  # the report says that
    if node.spec.execution.agent:
        return EntryResult([Publication(DEFAULT_OUTPUT, outcome.result, None)], outcome.duration_s)
    try:
        return convert(outcome.result, EntryResult)
    except msgspec.ValidationError as problem:
        return ComponentInvalid(
            f"an entry of component {node.id} was completed with a result that has no publications: {problem}",
            hint="Supervisors run such entries; in a program, `run_entry` does.",
        )


class QueueStep:
    """The step of neighbouring components in an epoch: their ready invocations become entries, in one commit."""

    def __init__(self, nodes: Sequence[Node], lane: QueueLane, committer: Committer) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self._lane = lane
        self._committer = committer
        for node in self.nodes:
            lane.add_component(node)
            if isinstance(node.trigger, BackPressure):
                node.trigger.in_flight = partial(lane.outstanding_of, node.id)

    def run(self, epoch_id: int, iteration_id: int, /) -> int:
        """Enqueue every ready invocation; return the number of invocations."""
        found = [
            (node, collect_ready(node, self._committer, epoch_id, iteration_id))
            for node in self.nodes
            if not node.is_isolated
        ]
        ready = [(node, inputs) for node, inputs in found if inputs]
        if ready:
            self._lane.enqueue(ready, epoch_id)
        return sum(len(inputs) for _, inputs in ready)
