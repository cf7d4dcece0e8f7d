"""A world that runs its agents, tick by tick.

    def greet(pid, world):
        print(f"tick {world.tick}: agent {pid}")

    world = TickWorld(SchedulerConfig(policy="WEIGHTED_PRIORITY", max_per_tick=2), step=greet)
    world.spawn(AgentDescriptor(priority=3.0))
    world.run(10)

A tick goes like this:

    1. the hooks of `before_tick`
    2. the scheduler lists who runs: READY agents whose turn it is
    3. each of them, in this order: READY → RUNNING, its step, RUNNING → READY
    4. the scheduler is told who really ran
    5. the hooks of `after_tick`

A step may change the world: spawn agents (they are scheduled from the next tick on), block itself or
terminate anybody. An agent that is no longer READY when its turn comes is passed over and waits on. A
step that raises is dealt with by fault isolation; the other agents run as if nothing had happened. An
interrupt (KeyboardInterrupt, SystemExit) ends the tick where it is and goes through to the caller;
those that ran count as run, and `run` may be called again.

The same steps, agents and configuration give the same run, and `to_hash` shows it.
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
from rota.tick.descriptor import AgentDescriptor
from rota.tick.faults import QUARANTINE_TICKS, FaultIsolation, Phase
from rota.tick.process_table import READY, RUNNING, ProcessTable
from rota.tick.scheduler import TickScheduler

__all__ = ["PhasedStep", "Step", "TickWorld"]

_checks = Checks("TickWorld", InvalidPayload)


@runtime_checkable
class PhasedStep(Protocol):
    """A step in three phases; each is given what the one before it returned."""

    def observe(self, pid: int, world: TickWorld, /) -> Any:
        """Look at the world."""
        ...

    def decide(self, pid: int, world: TickWorld, observed: Any, /) -> Any:
        """Choose what to do."""
        ...

    def act(self, pid: int, world: TickWorld, decided: Any, /) -> Any:
        """Do it."""
        ...


StepFunction: TypeAlias = "Callable[[int, TickWorld], Any]"
Step: TypeAlias = "StepFunction | PhasedStep"
Hook: TypeAlias = "Callable[[TickWorld], Any]"


class TickWorld:
    """Agents, what each of them does in a tick, and the scheduler and fault isolation around them.

    An agent's step is the one assigned to it, else the one for its role, else the one for all.
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
        self.tick = 0  # the one under way, or the next one
        self.phase = Phase.ACT  # of the step under way
        self.before_tick: list[Hook] = []
        self.after_tick: list[Hook] = []
        self._step = None if step is None else _as_function(step)
        self._role_steps = {role: _as_function(each) for role, each in (role_steps or {}).items()}
        self._own_steps: dict[int, StepFunction] = {}  # by pid
        self._steps: list[StepFunction] = [_nobodys_step]  # what each agent does, by pid; row 0 is the kernel

    def spawn(self, descriptor: AgentDescriptor, step: Step | None = None) -> int:
        """Add an agent, born now and ready, and return its pid."""
        born = replace(descriptor, birth_tick=self.tick, state=AgentProcessState.READY)
        pid = self.process_table.spawn_agent(born)
        if step is not None:
            self.assign(pid, step)
        return pid

    def assign(self, pid: int, step: Step) -> None:
        """Give one agent a step of its own."""
        self.process_table.state(pid)  # an unknown pid is refused here
        self._own_steps[pid] = _as_function(step)
        if pid < len(self._steps):
            self._steps[pid] = self._own_steps[pid]

    def run(self, ticks: int) -> None:
        """Run so many ticks."""
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
        """SHA-256 of the tick, the table, what was counted, who ran when, and every fault."""
        parts = (self.tick, self.process_table.to_hash(), self.scheduler.to_hash(), self.faults.to_hash())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    # --- inside a tick ---------------------------------------------------------------------------

    def _bind_steps(self) -> None:
        """Find the step of every agent that is new since the last tick."""
        for pid in range(len(self._steps), len(self.process_table) + 1):
            self._steps.append(self._step_for(pid))

    def _step_for(self, pid: int) -> StepFunction:
        role = self.process_table.role(pid)
        step = self._own_steps.get(pid, self._role_steps.get(role, self._step))
        if step is None:
            raise _checks.refuse("step", f"is missing for agent {pid} of role {role!r}")
        return step

    def _run_agents(self, order: list[int]) -> None:
        # The state column is moved here directly, once per activation: READY → RUNNING → READY are arrows
        # of the table, and READY and RUNNING agents have no timer to keep. A test holds this loop equal to
        # one that calls set_running and set_ready.
        state, steps = self.process_table.columns.state, self._steps
        ran = []
        try:
            for pid in order:
                if state[pid] != READY:  # somebody earlier in this tick blocked or ended it
                    continue
                ran.append(pid)  # first: an interrupt between the two must not leave it RUNNING and unseen
                state[pid] = RUNNING
                try:
                    steps[pid](pid, self)
                except Exception as error:  # one agent's failure never ends the tick
                    self._fault(pid, error)
                if state[pid] == RUNNING:
                    state[pid] = READY
        finally:
            self._end_turns(ran)

    def _fault(self, pid: int, error: Exception) -> None:
        self.faults.handle(pid, self.tick, error, self.phase)
        self.phase = Phase.ACT

    def _end_turns(self, ran: list[int]) -> None:
        """Tell the scheduler who ran; after an interrupt the last of them is still running."""
        if ran and self.process_table.state(ran[-1]) is AgentProcessState.RUNNING:
            self.process_table.set_ready(ran[-1])
        self.phase = Phase.ACT
        self.scheduler.record_execution(ran, self.tick)


def _nobodys_step(_pid: int, _world: TickWorld) -> None:
    """The kernel is never scheduled."""


def _as_function(step: Step) -> StepFunction:
    """A step as a plain function; one in phases names its phase as it goes."""
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
