"""The graph runner: coordinators of graph runs, and components of graphs that run as entries.

A *coordinator* is the entry of a graph run. It takes the run, runs epochs as long as something can happen, stores a
checkpoint and returns to the queue; the end of an entry that the run waits for, or a time, makes it ready again. So a
waiting run has neither a slot nor a thread, and waiting counts no attempt. It can be interrupted anywhere:

    before the checkpoint     the epoch is repeated; its entries have the same keys and are not added again
    after the checkpoint      the run goes on from there; an end that came meanwhile is seen when the entry returns
    after the run has ended   its row says so; the coordinator only reports it
    after its claim was lost  nothing more is committed: components fail now because of that (a charge is refused)

Any supervisor can go on with a run: it compiles the graph from the stored document and imports its components.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from rota.errors import (
    ComponentUnknown,
    ContextRefused,
    GraphInvalid,
    IslandRefused,
    LeaseRefused,
    RotaError,
    StaleClaim,
    StoreCorrupt,
    StoreUnavailable,
)
from rota.fleet.runners.contract import NOT_FOUND, Assignment, RunChannel, RunOutcome, another_may_run
from rota.fleet.runners.resources import RunnerResources
from rota.graph.accounts import ChannelAccount
from rota.graph.budgets import lines_of
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import ComponentType
from rota.graph.entry_runs import run_entry
from rota.graph.island import island_ask
from rota.graph.lanes.durable import DurableRuns
from rota.graph.loader import load_mapping
from rota.graph.plan import Plan
from rota.graph.reports import error_text
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
from rota.graph.run_values import outputs_of
from rota.graph.stop import StopToken
from rota.host.process_cpu import thread_cpu_s
from rota.host.thread_settings import usable_cores
from rota.model.core_grants import CoreGrant, CoreHost
from rota.model.graph_budgets import GraphBudgetLine, used_up
from rota.model.graph_runs import ENDED, GraphRun
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.core_grants import open_cores, refused_delay_s, release, this_host
from rota.service.outages import call_through_outage

__all__ = ["GraphRunner"]

PLANS_MAX = 32  # compiled graphs that are kept
ERROR_CHARS_MAX = 4_000
# what ended a run, if it was not the graph: the store was away, or another process has taken the run
_INTERRUPTED = ("queue_unavailable", "checkpoint_interrupted")
_log = logging.getLogger("rota.fleet")


class GraphRunner:
    """Runs coordinators, and invocations of components."""

    def __init__(self, resources: RunnerResources) -> None:
        self._api = resources.api
        self._resources = resources
        self._registry = _KnownOrImported(resources.components or ComponentRegistry())
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()  # by document, the last used at the end
        self._lock = threading.Lock()

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Run a coordinator until its run waits or ends, or call a component."""
        stop = StopToken()
        channel.started(_StopHandle(stop))
        before_s = thread_cpu_s()
        act = self._call_component if _is_component(assignment.entry) else self._coordinate
        outcome = act(assignment, channel, stop)
        return msgspec.structs.replace(outcome, cpu_ms=round((thread_cpu_s() - before_s) * 1000))

    def close(self) -> None:
        """Nothing is shared between runs but compiled graphs."""

    # --- a component -----------------------------------------------------------------------------

    def _call_component(self, assignment: Assignment, channel: RunChannel, stop: StopToken) -> RunOutcome:
        account = ChannelAccount(channel, names_nodes=False)
        try:
            ended = RunOutcome(result=run_entry(self._registry, assignment.entry.payload, stop, account))
        except ComponentUnknown as problem:
            ended = RunOutcome(exit_kind="failed", outcome=NOT_FOUND, result={"error": problem.message})
        except (Exception, SystemExit) as problem:  # a component's failure is an outcome, not an error of the runner
            text = problem.message if isinstance(problem, RotaError) else error_text(problem)
            ended = _failed(text.encode("utf-8", "replace").decode())
        if stop.is_set:  # it may have stopped half-way
            return RunOutcome(exit_kind="cancelled", result={"error": f"stopped on request: {stop.reason}"})
        return ended

    # --- a coordinator ---------------------------------------------------------------------------

    def _coordinate(self, assignment: Assignment, channel: RunChannel, stop: StopToken) -> RunOutcome:
        api, entry = self._api, assignment.entry
        assert api is not None and entry.token is not None  # noqa: PT018, S101  # a supervisor has claimed it
        try:
            run = api.graphs.take_entry(entry.sched_id, entry.token)
        except (GraphInvalid, StoreCorrupt) as problem:
            return _failed(problem.message)
        if run.status in ENDED:
            return _outcome_of(run)
        channel.coordinates(run.run_id)
        try:
            return self._advance(api, run, channel, stop, entry)
        except StoreUnavailable as problem:
            return RunOutcome(exit_kind="crashed", outcome="store_unavailable", result={"error": problem.message})
        except StaleClaim as problem:  # the entry is another worker's, or waits for one: the run goes on there
            return _interrupted(problem.message)
        except RotaError as problem:
            return self._end(api, run, "failed", error=problem.message)

    def _not_importable(
        self, api: SchedulerApi, run: GraphRun, entry: ReadyEntry, problem: ComponentUnknown
    ) -> RunOutcome:
        """Leave a run to a worker that may have the functions that are missing here; end it if none has ever run it."""
        host = socket.gethostname()
        if run.checkpoint is not None or another_may_run(api, entry):
            return RunOutcome(yield_after_s=0.0, outcome=NOT_FOUND, result={"error": problem.message})
        text = f"{problem.message} (on host {host}, and no other running worker may have it)"
        hint = f"install the module there, or start a supervisor where it is, then: rota graph resume {run.run_id}"
        return self._end(api, run, "failed", error=f"{text}; {hint}")

    def _advance(
        self, api: SchedulerApi, run: GraphRun, channel: RunChannel, stop: StopToken, entry: ReadyEntry
    ) -> RunOutcome:
        """Run epochs until the run waits or ends. An island is admitted first, or tried again later."""
        try:
            plan = self._plan(run)
        except ComponentUnknown as problem:
            return self._not_importable(api, run, entry, problem)
        account, is_island = _account(api, run, plan, channel, entry), plan.spec.graph.island is not None
        options = self._options(api, run, account, channel, stop, fails_closed=is_island)
        if not is_island:
            return self._run_epochs(api, run, plan, channel, options)
        ask, host = island_ask(plan), this_host()
        try:
            grant = api.cores.grant(entry.sched_id, entry.token or 0, host, ask)
        except (IslandRefused, LeaseRefused, ContextRefused) as refusal:  # recorded; `rota why` shows it
            if refusal.data.get("never"):
                return self._end(api, run, "failed", error=refusal.message)
            channel.log(f"rota: {refusal.message}\n".encode())
            return RunOutcome(yield_after_s=refused_delay_s(api.clock.now() - entry.created_at))
        try:
            with self._placed(api, host, grant):
                return self._run_epochs(api, run, plan, channel, options)
        finally:
            with suppress(RotaError):  # it ends with the claim
                release(api, entry.sched_id, entry.token or 0)

    @contextmanager
    def _placed(self, api: SchedulerApi, host: CoreHost, grant: CoreGrant) -> Iterator[None]:
        """Stay on the cores that were granted, with the threads and processes that the graph's lanes start."""
        cores = frozenset(grant.allowed)
        if not hasattr(os, "sched_setaffinity") or cores == usable_cores():
            yield
            return
        confinement = self._resources.confinement
        if grant.leased:
            self._resources.set_open(open_cores(api, host))  # everything else leaves them first
        with confinement.placed(cores, leased=bool(grant.leased)):
            yield

    def _run_epochs(
        self, api: SchedulerApi, run: GraphRun, plan: Plan, channel: RunChannel, options: RuntimeRunnerOptions
    ) -> RunOutcome:
        runner = RuntimeRunner(plan, self._registry, options)
        result = runner.run()
        if result.scheduler_stop_reason is SchedulerStopReason.WAITING:
            if not runner.awaits and runner.due_in_s is None:
                error = "the run waits for room on an edge that nothing reads from"
                return self._end(api, run, "failed", error=error)
            return RunOutcome(awaits=runner.awaits, yield_after_s=runner.due_in_s)
        if _is_lost(channel) and result.scheduler_stop_reason is SchedulerStopReason.ERROR:
            return _interrupted(result.errors[-1])
        ended = self._ended(api, run, plan, result)
        is_over_budget = any(error.code == "over_budget" for error in result.runtime_errors)
        around = () if options.account is None else options.account.outer_lines
        if ended.exit_kind == "failed" and is_over_budget and used_up(around) is not None:
            return msgspec.structs.replace(ended, outcome="over_budget")  # the node that its run is decides
        return ended

    def _plan(self, run: GraphRun) -> Plan:
        """Return the compiled graph of a run."""
        document = msgspec.json.encode(run.document)
        with self._lock:
            plan = self._plans.pop(document, None)
        if plan is None:
            spec = load_mapping(run.document or {})
            for component in spec.components:
                if not component.execution.agent:
                    self._registry.find(component.type)  # raises what is wrong if it cannot be imported here
            plan = compile_graph(spec, self._registry)
        with self._lock:
            self._plans[document] = plan
            while len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        return plan

    def _options(
        self,
        api: SchedulerApi,
        run: GraphRun,
        account: ChannelAccount,
        channel: RunChannel,
        stop: StopToken,
        *,
        fails_closed: bool,
    ) -> RuntimeRunnerOptions:
        durable = DurableRuns(api, taken=run, is_stopping=lambda: stop.is_set, is_lost=lambda: _is_lost(channel))
        return RuntimeRunnerOptions(
            run_until_idle=True,
            returns_when_waiting=True,
            run_id=run.run_id,
            durable=durable,
            inputs=run.inputs,
            account=account,
            stop_token=stop,
            clock=api.clock,
            fails_closed=fails_closed,
        )

    def _ended(self, api: SchedulerApi, run: GraphRun, plan: Plan, result: RuntimeRunnerResult) -> RunOutcome:
        """Return how a run ended that does not wait."""
        reason = result.scheduler_stop_reason
        if reason is SchedulerStopReason.IDLE:
            return self._end(api, run, "succeeded", result=outputs_of(plan.components, result.snapshots))
        if reason is SchedulerStopReason.STOP_REQUESTED:  # the supervisor drains, or the entry is cancelled
            return RunOutcome(exit_kind="cancelled")
        if reason is SchedulerStopReason.ERROR:
            if result.runtime_errors and result.runtime_errors[-1].code in _INTERRUPTED:
                return _interrupted(result.errors[-1])
            return self._end(api, run, "failed", error=result.errors[0] if result.errors else "the run failed")
        error = f"the run does not come to an end: a component is ready in every epoch ({reason.value})"
        return self._end(api, run, "failed", error=error)

    def _end(
        self, api: SchedulerApi, run: GraphRun, status: Any, *, result: Any = None, error: str | None = None
    ) -> RunOutcome:
        """End a run in the store; whatever it left in the queue is cancelled there."""
        if error is not None:  # a component's own words, and a store holds text only
            error = error.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        try:
            api.graphs.finish(run.run_id, run.fence, status, result=result, error=error)
        except StoreUnavailable as problem:
            return RunOutcome(exit_kind="crashed", outcome="store_unavailable", result={"error": problem.message})
        except RotaError as problem:  # a result that cannot be stored, or the run was cancelled meanwhile
            _log.warning("graph run %s cannot be ended: %s", run.run_id, problem.message)
            return _failed(problem.message)
        return RunOutcome(result=result) if status == "succeeded" else _failed(error or "the run failed")


class _KnownOrImported(ComponentRegistry):
    """The components that a supervisor was given, and all that can be imported."""

    def __init__(self, given: ComponentRegistry) -> None:
        super().__init__(imports=True)
        self._given = given

    def find(self, type_name: str) -> ComponentType:
        """Return the type of this name, or raise `ComponentUnknown`."""
        try:
            return self._given.find(type_name)
        except ComponentUnknown:
            return super().find(type_name)


def _outcome_of(run: GraphRun) -> RunOutcome:
    """Return the outcome of a coordinator whose run has ended before."""
    if run.status == "succeeded":
        return RunOutcome(result=run.result)
    if run.status == "cancelled":
        return RunOutcome(exit_kind="cancelled", result={"error": run.error or "the run was cancelled"})
    return _failed(run.error or "the run failed")


def _is_component(entry: ReadyEntry) -> bool:
    """Whether an entry calls a component of a queue lane.

    A node that is another graph has such a key, too, but its entry is the coordinator of a run of that graph.
    """
    name, key = entry.payload.get("invocation"), entry.key or ""
    return isinstance(name, str) and (key == f"graph/{name}" or key.startswith(f"graph/{name}~"))


def _is_lost(channel: RunChannel) -> bool:
    """Whether the claim of a coordinator was taken back, as far as its supervisor has noticed."""
    return channel.stop_reason == "fenced"


def _interrupted(error: str) -> RunOutcome:
    return RunOutcome(exit_kind="crashed", outcome="run_interrupted", result={"error": error})


def _failed(error: str) -> RunOutcome:
    return RunOutcome(exit_kind="failed", result={"error": error[:ERROR_CHARS_MAX]})


def _account(api: SchedulerApi, run: GraphRun, plan: Plan, channel: RunChannel, entry: ReadyEntry) -> ChannelAccount:
    """Return the account of a run's components in its coordinator; the budgets of a new run are stored first."""
    budgets = lines_of(plan.spec, run.budget)
    if budgets:
        api.ledger.open_graph_budgets(run.run_id, budgets)

    def read_lines(run_id: str = run.run_id) -> list[GraphBudgetLine]:
        # a component reads them after each charge: an outage then is no failure of the component
        read, stops = partial(api.ledger.graph_budgets, run_id), lambda: channel.stop_reason is not None
        return call_through_outage(api.clock, read, stops, repeats=True)

    around = None if entry.account is None else entry.account.around
    # for the budget of a node that waits, the whole run waits in the queue
    places = [place for place in (() if around is None else around.places) if place.on_over == "fail"]

    def read_outer_lines() -> Iterator[GraphBudgetLine]:
        for place in places:
            yield from (line for line in read_lines(place.run_id) if line.node in ("", place.node))

    account = ChannelAccount(channel, read_lines, read_outer_lines, names_nodes=True)
    account.refresh()
    return account


class _StopHandle:
    """Stops a graph or a component by request: the epoch in progress ends, components see the request."""

    def __init__(self, stop: StopToken) -> None:
        self._stop = stop

    def request_stop(self, reason: str) -> bool:
        """Ask it to stop."""
        self._stop.request(reason)
        return True

    def terminate(self) -> bool:
        """Not supported: a thread receives no signals."""
        return False

    def kill(self) -> bool:
        """Not supported: a thread cannot be killed."""
        return False
