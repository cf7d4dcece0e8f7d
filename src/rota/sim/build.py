"""Builds a simulation from a scenario: the engine, its threads and the scheduled events.

Contexts, leases and islands go through `Admission`, and hints of threads through the policy service (`PolicyLink`), as
with real hosts. The built-in service answers from the profile table, `answer_us` after it was asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from rota.cores import Capacity, CoresEngine, CpuIsolationLease, Handle, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.events import CoreOffline, CoreOnline, Decision, RevokeLease, ServiceLost
from rota.cores.runqueue import Rule
from rota.errors import RotaError
from rota.model.budgets import mask_of
from rota.policy.contract import Policy
from rota.service.core_policy import CorePolicy
from rota.service.policy_guard import PolicyGuard
from rota.sim.clock import SimulationClock
from rota.sim.policy_service import SimulatedService
from rota.sim.scenario import ContextSpec, EventSpec, IslandSpec, LeaseSpec, Scenario, ThreadSpec, weight_of
from rota.sim.simulation import Simulation
from rota.sim.threads import CallerThread, ServerThread, SimThread, make_thread

__all__ = ["apply_policy", "build_simulation"]

US = 1_000
MS = 1_000_000


def build_simulation(scenario: Scenario, *, rule: Rule | None = None, observe: bool = True) -> Simulation:
    """Return a simulation at the start of a scenario. Contexts, leases and islands that do not fit are refused here."""
    return _Builder(scenario, rule, observe).build()


def apply_policy(simulation: Simulation, policy: Policy, every_ns: int, *, seed: int = 1) -> None:
    """Let a policy choose, every `every_ns`, which waiting entities of each core run first.

    Its guard reads a clock whose wall time jumps at random, as the seed says.
    """

    def on_failure(failure: Literal["raised", "stalled", "nonsense"], _detail: str, now: int) -> Sequence[Decision]:
        return simulation.engine.step(ServiceLost(failure), now)

    guard = PolicyGuard(SimulationClock(lambda: simulation.now, seed))
    core_policy = CorePolicy(simulation.engine, policy, guard, on_failure)

    def arrange() -> Sequence[Decision]:
        simulation.schedule(simulation.now + every_ns, arrange)
        now = simulation.now
        return [one for core in range(simulation.engine.core_count) for one in core_policy.arrange(core, now)]

    simulation.schedule(0, arrange)


@contextmanager
def _errors_of(place: str) -> Iterator[None]:
    """Say in an error where in the scenario it arose."""
    try:
        yield
    except RotaError as problem:
        problem.message = f"{place}: {problem.message}"
        raise


class _Builder:
    """Maps the names of a scenario to numbers and handles of the engine."""

    def __init__(self, scenario: Scenario, rule: Rule | None, observe: bool) -> None:
        self._scenario = scenario
        capacity = scenario.capacity
        self._engine = CoresEngine(
            cores=scenario.cores,
            rule=rule or scenario.rule,
            blocking_ns=scenario.reschedule_us * US,
            capacity=Capacity(
                memory_bytes=capacity.memory_bytes,
                slots=capacity.slots,
                tokens=capacity.tokens,
                devices=frozenset(capacity.devices),
            ),
        )
        self._simulation = Simulation(self._engine, reschedule_ns=scenario.reschedule_us * US, observe=observe)
        self._service = SimulatedService(self._simulation, scenario.answer_us * US)
        self._admission = self._service.admission
        self._context_ids = {context.name: number for number, context in enumerate(scenario.context, 1)}
        self._lease_ids = {lease.name: number for number, lease in enumerate(scenario.lease, 1)}
        self._handles: dict[str, Handle] = {}  # of contexts
        self._leases: dict[str, Handle] = {}
        self._threads: dict[str, list[SimThread]] = {}  # by the name of their table

    def build(self) -> Simulation:
        scenario = self._scenario
        for group in scenario.group:
            self._engine.add_group(group.name, weight=weight_of(group.weight), latency_class=group.latency)
        in_islands = {name for island in scenario.island for name in island.contexts}
        for at, context in enumerate(scenario.context):
            if context.name not in in_islands:
                with _errors_of(f"context[{at}]"):
                    self._handles[context.name] = self._admission.admit(context.name, self._context(context))
        for thread in scenario.thread:
            self._add(thread)
        self._connect_callers()
        for at, island in enumerate(scenario.island):
            with _errors_of(f"island[{at}]"):
                self._admit(at + 1, island)
        self._bind_all()
        self._schedule_events()
        return self._simulation

    # --- specs -----------------------------------------------------------------------------------

    def _context(self, spec: ContextSpec) -> SchedulingContext:
        return SchedulingContext(
            context_id=self._context_ids[spec.name],
            budget=spec.budget_us * US,
            period=spec.period_us * US,
            relative_deadline=None if spec.deadline_us is None else spec.deadline_us * US,
            criticality=spec.criticality,
            priority=spec.priority,
            core_mask=mask_of(spec.cores),
            timeout_endpoint=spec.endpoint,
            overrun=spec.overrun,
            bound_id=spec.name,
        )

    def _lease(self, spec: LeaseSpec) -> CpuIsolationLease:
        owned = [thread for thread in self._scenario.thread if thread.group == spec.owner]
        consumers = (
            [one.entity for table in owned for one in self._threads[table.name]] if spec.mode == "poller" else []
        )
        return CpuIsolationLease(
            lease_id=self._lease_ids[spec.name],
            owner=spec.owner,
            cores=spec.cores,
            mode=spec.mode,
            housekeeping=spec.housekeeping,
            consumers=tuple(consumers),
            accounting_target=self._context_ids[spec.context],
            revocation_latency_max=spec.revocation_us * US,
            revoke_endpoint=spec.endpoint,
            on_service_loss=spec.on_service_loss,
        )

    def _admit(self, number: int, spec: IslandSpec) -> None:
        contexts = [one for one in self._scenario.context if one.name in spec.contexts]
        leases = [one for one in self._scenario.lease if one.name in spec.leases]
        island = RealtimeIsland(
            island_id=number,
            name=spec.name,
            contexts=tuple(self._context_ids[one.name] for one in contexts),
            memory_bytes=spec.memory_bytes,
            slots=spec.slots,
            devices=spec.devices,
            tokens=spec.tokens,
            leases=tuple(self._lease_ids[one.name] for one in leases),
            overrun=spec.overrun,
            shutdown=spec.shutdown,
        )
        plan = IslandPlan(
            island=island,
            contexts=tuple(self._context(one) for one in contexts),
            leases=tuple(self._lease(one) for one in leases),
        )
        handles, decisions = self._admission.admit_island(spec.name, plan)
        self._simulation.apply(decisions)
        self._simulation.apply(self._engine.start_island(number))
        for context in contexts:
            self._handles[context.name] = handles[self._context_ids[context.name]]

    # --- threads ---------------------------------------------------------------------------------

    def _add(self, spec: ThreadSpec) -> None:
        self._threads[spec.name] = []
        for number in range(spec.count):
            name = spec.name if spec.count == 1 else f"{spec.name}-{number}"
            entity = self._engine.spawn(
                weight=weight_of(spec.weight),
                latency_class=spec.latency,
                slice_ns=None if spec.slice_us is None else spec.slice_us * US,
                group=spec.group,
                core_mask=mask_of(spec.cores),
                needs_context=spec.needs_context,
            )
            rng = random.Random(f"{self._scenario.seed}/{name}")  # noqa: S311  # a simulation, not a secret
            thread = make_thread(spec, name, entity, rng)
            self._threads[spec.name].append(thread)
            self._simulation.add(thread, spec.start_ms * MS)
            if spec.hint is not None:
                self._service.entity_created(entity, spec.group or spec.name, spec.hint)

    def _connect_callers(self) -> None:
        """Connect callers to servers. A server table with a `count` shares its callers among its threads."""
        for spec in self._scenario.thread:
            for number, thread in enumerate(self._threads[spec.name]):
                if isinstance(thread, CallerThread) and spec.server is not None:
                    servers = self._threads[spec.server]
                    server = servers[number % len(servers)]
                    thread.server = server if isinstance(server, ServerThread) else None

    def _bind_all(self) -> None:
        for group in self._scenario.group:
            if group.context is not None:
                self._simulation.apply(self._engine.bind_group(self._handles[group.context], group.name))
        for spec in self._scenario.thread:
            if spec.context is not None:
                for thread in self._threads[spec.name]:
                    self._simulation.apply(self._engine.bind(self._handles[spec.context], thread.entity))

    # --- events ----------------------------------------------------------------------------------

    def _schedule_events(self) -> None:
        in_islands = {name for island in self._scenario.island for name in island.leases}
        for at, lease in enumerate(self._scenario.lease):
            if lease.name not in in_islands:
                self._schedule(f"lease[{at}]", lease.at_ms, partial(self._grant, lease))
        for at, event in enumerate(self._scenario.event):
            self._schedule(f"event[{at}]", event.at_ms, self._action(event))

    def _schedule(self, place: str, at_ms: int, action: Callable[[], Sequence[Decision]]) -> None:
        def act() -> Sequence[Decision]:
            with _errors_of(f"{place} at {at_ms:,} ms"):
                return action()

        self._simulation.schedule(at_ms * MS, act)

    def _grant(self, spec: LeaseSpec) -> Sequence[Decision]:
        self._leases[spec.name], decisions = self._admission.lease(self._lease(spec))
        return decisions

    def _action(self, spec: EventSpec) -> Callable[[], Sequence[Decision]]:
        step, simulation = self._engine.step, self._simulation
        core, name = spec.core or 0, spec.name or ""

        def exit_all() -> Sequence[Decision]:
            for thread in self._threads[name]:
                simulation.end(thread.entity)
            return ()

        actions: dict[str, Callable[[], Sequence[Decision]]] = {
            "core_offline": lambda: step(CoreOffline(core), simulation.now),
            "core_online": lambda: step(CoreOnline(core), simulation.now),
            "exit": exit_all,
            "revoke_context": lambda: self._revoke_context(name),
            "revoke_lease": lambda: step(RevokeLease(self._leases[name]), simulation.now),
            "service_lost": self._service.lose,
            "service_back": self._service.restore,
        }
        return actions[spec.do]

    def _revoke_context(self, name: str) -> Sequence[Decision]:
        handle, number = self._handles[name], self._context_ids[name]
        return self._admission.revoke(name, handle, number, self._simulation.now)
