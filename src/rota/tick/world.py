"""The tick world: runs its agents, tick by tick.

    def greet(pid, world):
        print(f"tick {world.tick}: agent {pid}")

    world = TickWorld(SchedulerConfig(policy="WEIGHTED_PRIORITY", max_per_tick=2), step=greet)
    world.spawn(AgentDescriptor(priority=3.0))
    world.run(10)

One tick:

    1. run the hooks in `before_tick`
    2. the scheduler lists the READY agents to run
    3. for each of them, in order: READY → RUNNING, its step, RUNNING → READY
    4. report the agents that ran to the scheduler
    5. run the hooks in `after_tick`

A step may change the world: spawn agents (scheduled from the next tick on), block its own agent or terminate any agent.
An agent that is no longer READY when its step is due is skipped and keeps waiting. Fault isolation handles a step that
raises; the other agents run as usual. An interrupt (KeyboardInterrupt, SystemExit) ends the tick where it is and
propagates to the caller; the agents that ran count as run, and `run` may be called again.

The same steps, agents and configuration give the same run, which `to_hash` verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rota.errors import InvalidPayload
from rota.model.checks import Checks
from rota.model.lifecycle import AgentProcessState
from rota.tick.config import SchedulerConfig
from rota.tick.faults import QUARANTINE_TICKS, FaultIsolation, Phase
from rota.tick.process_table import READY, RUNNING, AgentDescriptor, ProcessTable
from rota.tick.scheduler import TickScheduler

__all__ = ["PhasedStep", "Step", "TickWorld"]

_checks = Checks("TickWorld", InvalidPayload)


@runtime_checkable
class PhasedStep(Protocol):
    """A step in three phases; each phase gets the result of the one before it."""

    def observe(self, pid: int, world: TickWorld, /) -> Any:
        """Read the world."""
        ...

    def decide(self, pid: int, world: TickWorld, observed: Any, /) -> Any:
        """Choose an action."""
        ...

    def act(self, pid: int, world: TickWorld, decided: Any, /) -> Any:
        """Perform the action."""
        ...


StepFunction: TypeAlias = "Callable[[int, TickWorld], Any]"
Step: TypeAlias = "StepFunction | PhasedStep"
Hook: TypeAlias = "Callable[[TickWorld], Any]"


class TickWorld:
    """Agents, their steps, and the scheduler and fault isolation around them.

    An agent's step is the one assigned to it, else that of its role, else the default step.
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        step: Step | None = None,
        role_steps: Mapping[str, Step] | None = None,
        process_table: ProcessTable | None = None,
        quarantine_ticks: int = QUARANTINE_TICKS,
    ) -> None:
        self.process_table = ProcessTable() if process_table is None else process_table
        self.scheduler = TickScheduler(self.process_table, config)
        self.faults = FaultIsolation(self.process_table, quarantine_ticks=quarantine_ticks)
        self.tick = 0  # the current tick, or the next one
        self.phase = Phase.ACT  # phase of the current step
        self.before_tick: list[Hook] = []
        self.after_tick: list[Hook] = []
        self._step = None if step is None else _as_function(step)
        self._role_steps = {role: _as_function(each) for role, each in (role_steps or {}).items()}
        self._own_steps: dict[int, StepFunction] = {}  # by pid
        self._steps: list[StepFunction] = [_kernel_step]  # the step of each agent, by pid; row 0 is the kernel

    def spawn(self, descriptor: AgentDescriptor, step: Step | None = None) -> int:
        """Add a ready agent, born in the current tick, and return its pid."""
        born = replace(descriptor, birth_tick=self.tick, state=AgentProcessState.READY)
        pid = self.process_table.spawn_agent(born)
        if step is not None:
            self.assign(pid, step)
        return pid

    def assign(self, pid: int, step: Step) -> None:
        """Give one agent a step of its own."""
        self.process_table.state(pid)  # raises for an unknown pid
        self._own_steps[pid] = _as_function(step)
        if pid < len(self._steps):
            self._steps[pid] = self._own_steps[pid]

    def run(self, ticks: int) -> None:
        """Run a number of ticks."""
        for _ in range(_checks.whole("ticks", ticks, 0)):
            self.run_tick()

    def run_tick(self) -> None:
        """Run one tick."""
        for hook in self.before_tick:
            hook(self)
        self._bind_steps()
        try:
            self._run_agents(self.scheduler.build_schedule(self.tick))
            for hook in self.after_tick:
                hook(self)
        finally:
            self.tick += 1

    def to_hash(self) -> str:
        """SHA-256 of the tick, the table, the scheduler and every fault."""
        parts = (self.tick, self.process_table.to_hash(), self.scheduler.to_hash(), self.faults.to_hash())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    # --- one tick --------------------------------------------------------------------------------

    def _bind_steps(self) -> None:
        """Look up the step of every agent that is new since the last tick."""
        for pid in range(len(self._steps), len(self.process_table) + 1):
            self._steps.append(self._step_for(pid))

    def _step_for(self, pid: int) -> StepFunction:
        role = self.process_table.role(pid)
        step = self._own_steps.get(pid, self._role_steps.get(role, self._step))
        if step is None:
            raise _checks.refuse("step", f"is missing for agent {pid} of role {role!r}")
        return step

    def _run_agents(self, order: list[int]) -> None:
        # This writes the state column directly, for speed: READY → RUNNING → READY are legal transitions, and
        # READY and RUNNING agents have no timer. A test compares this loop with calls of set_running and set_ready.
        state, steps = self.process_table.columns.state, self._steps
        ran = []
        try:
            for pid in order:
                if state[pid] != READY:  # an earlier step of this tick blocked or terminated it
                    continue
                ran.append(pid)  # before the change of state: after an interrupt it must be in the list
                state[pid] = RUNNING
                try:
                    steps[pid](pid, self)
                except Exception as error:  # one agent's failure never ends the tick
                    self._fault(pid, error)
                if state[pid] == RUNNING:
                    state[pid] = READY
        finally:
            self._finish_runs(ran)

    def _fault(self, pid: int, error: Exception) -> None:
        self.faults.handle(pid, self.tick, error, self.phase)
        self.phase = Phase.ACT

    def _finish_runs(self, ran: list[int]) -> None:
        """Report the agents that ran to the scheduler; after an interrupt the last one is still running."""
        if ran and self.process_table.state(ran[-1]) is AgentProcessState.RUNNING:
            self.process_table.set_ready(ran[-1])
        self.phase = Phase.ACT
        self.scheduler.record_execution(ran, self.tick)


def _kernel_step(_pid: int, _world: TickWorld) -> None:
    """The step of the kernel, which is never scheduled."""


def _as_function(step: Step) -> StepFunction:
    """Return a step as a plain function; a step in phases sets the world's phase."""
    if not isinstance(step, PhasedStep):
        if not callable(step):
            raise _checks.refuse("step", f"must be a function or have observe, decide and act, not {step!r}")
        return step

    def in_phases(pid: int, world: TickWorld) -> None:
        world.phase = Phase.OBSERVE
        observed = step.observe(pid, world)
        world.phase = Phase.DECIDE
        decided = step.decide(pid, world, observed)
        world.phase = Phase.ACT
        step.act(pid, world, decided)

    return in_phases
