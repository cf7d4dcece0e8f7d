"""Events and decisions of the engine: `step(event, now) -> decisions`.

A driver translates what happens (a process sleeps, a timer fires, a request arrives) into events, and carries out the
decisions. An event concerns one entity, one core, one handle or one owner; a decision is an instruction to the driver.

Two rules keep a driver simple:

- *Only an event of a core changes which entity runs on it.* Waking an entity for another core returns a `Reschedule`
  for that core, at most one at a time, and the driver answers it with a `CoreTick` as soon as it can.
- *A `RunEntity` has an end.* The driver lets the entity run and sends a `CoreTick` at `until_ns`, or the event that
  happens first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from rota.cores.accounts import LatencyClass
from rota.model.budgets import Handle

__all__ = [
    "Acknowledge",
    "Arrange",
    "Block",
    "CallEntity",
    "CallFailed",
    "CloseSession",
    "CoreOffline",
    "CoreOnline",
    "CoreTick",
    "Decision",
    "Event",
    "ExitEntity",
    "ExitGroup",
    "Idle",
    "IslandStateChanged",
    "Kill",
    "LateActivation",
    "LeaseEnded",
    "Migrate",
    "More",
    "PostRevoke",
    "PostTimeout",
    "Preempt",
    "ReleaseLease",
    "Reply",
    "Reschedule",
    "Revoke",
    "RevokeLease",
    "Reweigh",
    "RunEntity",
    "ServiceBack",
    "ServiceLost",
    "Steal",
    "StopIsland",
    "TimerDue",
    "UseRule",
    "Wake",
    "trace_name",
]

# --- events --------------------------------------------------------------------------------------


class Wake(msgspec.Struct, frozen=True, gc=False):
    """An entity has work to do."""

    entity: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """The running entity waits for something."""

    entity: int


class CoreTick(msgspec.Struct, frozen=True, gc=False):
    """A core chooses again: its slice ended, or a reschedule was requested."""

    core: int


class TimerDue(msgspec.Struct, frozen=True, gc=False):
    """The instant in the engine's `timers.next_at` has come."""


class ExitEntity(msgspec.Struct, frozen=True, gc=False):
    """An entity ends, in any state."""

    entity: int


class ExitGroup(msgspec.Struct, frozen=True, gc=False):
    """A group ends with all its entities, a bounded number per step."""

    group: str


class CallEntity(msgspec.Struct, frozen=True, gc=False):
    """The running entity calls another one and waits; the callee runs on the caller's share and budget."""

    caller: int
    callee: int


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The running entity replies to its caller and waits for the next call."""

    callee: int


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """A context is revoked; every handle to it becomes stale."""

    context: Handle


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    """The timeout endpoint of a context has processed its notice and can receive another."""

    context: Handle


class RevokeLease(msgspec.Struct, frozen=True, gc=False):
    """A lease is revoked; its owner has a bounded time to leave the cores."""

    lease: Handle


class ReleaseLease(msgspec.Struct, frozen=True, gc=False):
    """The owner of a lease returns it, voluntarily or on request."""

    lease: Handle


class CloseSession(msgspec.Struct, frozen=True, gc=False):
    """An owner's session is closed; its leases end."""

    owner: str


class StopIsland(msgspec.Struct, frozen=True, gc=False):
    """An island stops, as its shutdown policy says."""

    island: int


class CoreOffline(msgspec.Struct, frozen=True, gc=False):
    """A core goes offline."""

    core: int


class CoreOnline(msgspec.Struct, frozen=True, gc=False):
    """A core comes back online."""

    core: int


class ServiceLost(msgspec.Struct, frozen=True, gc=False):
    """The policy service failed: continue by the engine's own rule, with the weights it knows."""

    failure: Literal["raised", "stalled", "nonsense", "stale"]


class ServiceBack(msgspec.Struct, frozen=True, gc=False):
    """The policy service is available again, in a new epoch."""

    epoch: int


class Reweigh(msgspec.Struct, frozen=True, gc=False):
    """An update of the policy service: change the weight and latency class of an entity."""

    entity: int
    weight: int
    latency_class: LatencyClass
    epoch: int


class UseRule(msgspec.Struct, frozen=True, gc=False):
    """An update of the policy service: order the fair queues by another rule that shares by weight."""

    rule: Literal["eevdf", "wfq"]
    epoch: int


class Arrange(msgspec.Struct, frozen=True, gc=False):
    """An update of the policy service: of the entities waiting on a core, run these first, in this order."""

    core: int
    entities: tuple[int, ...]
    epoch: int


Event: TypeAlias = (
    Wake
    | Block
    | CoreTick
    | TimerDue
    | ExitEntity
    | ExitGroup
    | CallEntity
    | Reply
    | Revoke
    | Acknowledge
    | RevokeLease
    | ReleaseLease
    | CloseSession
    | StopIsland
    | CoreOffline
    | CoreOnline
    | ServiceLost
    | ServiceBack
    | Reweigh
    | UseRule
    | Arrange
)


# --- decisions -----------------------------------------------------------------------------------


class RunEntity(msgspec.Struct, frozen=True, gc=False):
    """Let this entity run on this core, until `until_ns` at the latest."""

    core: int
    entity: int
    until_ns: int


class Preempt(msgspec.Struct, frozen=True, gc=False):
    """Stop this entity, which runs on this core and could have continued."""

    core: int
    entity: int


class Idle(msgspec.Struct, frozen=True, gc=False):
    """This core has nothing to run."""

    core: int


class Reschedule(msgspec.Struct, frozen=True, gc=False):
    """Send this core a `CoreTick` as soon as possible."""

    core: int


class Steal(msgspec.Struct, frozen=True, gc=False):
    """An idle core took this entity from another core."""

    entity: int
    source: int
    target: int


class Migrate(msgspec.Struct, frozen=True, gc=False):
    """This entity moved to another core, because it may not stay or to balance loads."""

    entity: int
    source: int
    target: int


class PostTimeout(msgspec.Struct, frozen=True, gc=False):
    """Notify this endpoint that its context ran out `count` times, last while this entity ran."""

    endpoint: int
    context: int
    entity: int
    count: int


class PostRevoke(msgspec.Struct, frozen=True, gc=False):
    """Notify this endpoint that its lease is revoked and must be released by `by_ns`."""

    endpoint: int
    lease: int
    by_ns: int


class Kill(msgspec.Struct, frozen=True, gc=False):
    """End this entity: its context ran out, and its overrun policy is `kill`."""

    entity: int


class CallFailed(msgspec.Struct, frozen=True, gc=False):
    """This call failed because the callee ended; the caller continues."""

    caller: int
    callee: int


class LeaseEnded(msgspec.Struct, frozen=True, gc=False):
    """These cores are open to every entity again."""

    lease: int
    cores: tuple[int, ...]


class IslandStateChanged(msgspec.Struct, frozen=True, gc=False):
    """An island entered another state, for this reason."""

    island: int
    state: str
    reason: str


class LateActivation(msgspec.Struct, frozen=True, gc=False):
    """An activation ended after its deadline."""

    entity: int
    context: int
    lateness_ns: int


class More(msgspec.Struct, frozen=True, gc=False):
    """The step reached its limit: send the event again to continue."""

    event: ExitGroup


Decision: TypeAlias = (
    RunEntity
    | Preempt
    | Idle
    | Reschedule
    | Steal
    | Migrate
    | PostTimeout
    | PostRevoke
    | Kill
    | CallFailed
    | LeaseEnded
    | IslandStateChanged
    | LateActivation
    | More
)

# Names in traces and reports. They are a file format, so a class that is renamed keeps its old name here.
_TRACE_NAMES: Mapping[type, str] = {
    CoreTick: "Tick",
    TimerDue: "Timer",
    ExitEntity: "Exit",
    CallEntity: "Call",
    RunEntity: "Run",
    IslandStateChanged: "IslandMoved",
    LateActivation: "DeadlineMissed",
}


def trace_name(kind: type) -> str:
    """Return the name of an event or decision type in traces and reports."""
    return _TRACE_NAMES.get(kind, kind.__name__)
