"""What the engine is told and what it answers: `step(event, now) -> decisions`.

A driver turns what happens (a process sleeps, a timer fires, a request arrives) into events, and carries out the
decisions. An event is about one entity, one core, one handle or one owner; a decision is an order to the driver.

Two rules make a driver simple. *Whoever runs on a core changes only in an answer to an event of that core*:
somebody who wakes for another core leaves a `Reschedule` there, at most one at a time, and the driver answers
it with a `Tick` as soon as it can. And *a `Run` says until when*: the driver lets the entity run and sends a
`Tick` at that moment, or the event that came first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rota.cores.accounts import LatencyClass
from rota.model.budgets import Handle

__all__ = [
    "Acknowledge",
    "Arrange",
    "Block",
    "Call",
    "CallFailed",
    "CloseSession",
    "CoreOffline",
    "CoreOnline",
    "DeadlineMissed",
    "Decision",
    "Event",
    "Exit",
    "ExitGroup",
    "Idle",
    "IslandMoved",
    "Kill",
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
    "Run",
    "ServiceBack",
    "ServiceLost",
    "Steal",
    "StopIsland",
    "Tick",
    "Timer",
    "UseRule",
    "Wake",
]

# --- events --------------------------------------------------------------------------------------


class Wake(msgspec.Struct, frozen=True, gc=False):
    """An entity has something to do."""

    entity: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """The entity that runs waits for something."""

    entity: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A core looks again: its slice ended, or it was asked to reschedule."""

    core: int


class Timer(msgspec.Struct, frozen=True, gc=False):
    """The moment that `next_timer_at` named has come."""


class Exit(msgspec.Struct, frozen=True, gc=False):
    """An entity ends, whatever it is doing."""

    entity: int


class ExitGroup(msgspec.Struct, frozen=True, gc=False):
    """A group ends with everybody in it, a bounded number at a time."""

    group: str


class Call(msgspec.Struct, frozen=True, gc=False):
    """The entity that runs asks another one and waits for the reply, lending it its context."""

    caller: int
    callee: int


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The entity that runs answers its caller and waits for the next call."""

    callee: int


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """A context is taken back; every handle to it is stale from now on."""

    context: Handle


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    """Whoever hears of a context's timeouts has taken the notice and can be given another."""

    context: Handle


class RevokeLease(msgspec.Struct, frozen=True, gc=False):
    """A lease is taken back; its owner has a bounded time to leave."""

    lease: Handle


class ReleaseLease(msgspec.Struct, frozen=True, gc=False):
    """The owner of a lease gives it back, of its own will or because it was asked to."""

    lease: Handle


class CloseSession(msgspec.Struct, frozen=True, gc=False):
    """An owner is gone; what it leased goes back."""

    owner: str


class StopIsland(msgspec.Struct, frozen=True, gc=False):
    """An island ends as its shutdown policy says."""

    island: int


class CoreOffline(msgspec.Struct, frozen=True, gc=False):
    """A core goes away."""

    core: int


class CoreOnline(msgspec.Struct, frozen=True, gc=False):
    """A core comes back."""

    core: int


class ServiceLost(msgspec.Struct, frozen=True, gc=False):
    """The policy service cannot be trusted: go on by round robin."""

    failure: Literal["raised", "stalled", "nonsense", "stale"]


class ServiceBack(msgspec.Struct, frozen=True, gc=False):
    """The policy service is there again, in a new epoch."""

    epoch: int


class Reweigh(msgspec.Struct, frozen=True, gc=False):
    """An order of the policy service: give an entity another weight and latency class."""

    entity: int
    weight: int
    latency_class: LatencyClass
    epoch: int


class UseRule(msgspec.Struct, frozen=True, gc=False):
    """An order of the policy service: order the fair queues by another rule."""

    rule: Literal["eevdf", "wfq", "round_robin"]
    epoch: int


class Arrange(msgspec.Struct, frozen=True, gc=False):
    """An order of the policy service: of those who wait on a core, let these go first, in this order."""

    core: int
    entities: tuple[int, ...]
    epoch: int


Event: TypeAlias = (
    Wake
    | Block
    | Tick
    | Timer
    | Exit
    | ExitGroup
    | Call
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


class Run(msgspec.Struct, frozen=True, gc=False):
    """Let this entity run on this core, until then at the latest."""

    core: int
    entity: int
    until_ns: int


class Preempt(msgspec.Struct, frozen=True, gc=False):
    """Stop this entity, which runs on this core and would have gone on."""

    core: int
    entity: int


class Idle(msgspec.Struct, frozen=True, gc=False):
    """This core has nothing to run."""

    core: int


class Reschedule(msgspec.Struct, frozen=True, gc=False):
    """Send this core a `Tick` as soon as you can."""

    core: int


class Steal(msgspec.Struct, frozen=True, gc=False):
    """A core with nothing to do took this entity from another one."""

    entity: int
    source: int
    target: int


class Migrate(msgspec.Struct, frozen=True, gc=False):
    """This entity was moved from one core to another, because it may not stay or to even out their loads."""

    entity: int
    source: int
    target: int


class PostTimeout(msgspec.Struct, frozen=True, gc=False):
    """Tell this endpoint that its context ran out so many times, the last time under this entity."""

    endpoint: int
    context: int
    entity: int
    count: int


class PostRevoke(msgspec.Struct, frozen=True, gc=False):
    """Tell this endpoint that its lease is revoked and must be released by then."""

    endpoint: int
    lease: int
    by_ns: int


class Kill(msgspec.Struct, frozen=True, gc=False):
    """End this entity: its context ran out, and that is its overrun policy."""

    entity: int


class CallFailed(msgspec.Struct, frozen=True, gc=False):
    """This caller waits no longer: whom it asked has ended."""

    caller: int
    callee: int


class LeaseEnded(msgspec.Struct, frozen=True, gc=False):
    """These cores are everybody's again."""

    lease: int
    cores: tuple[int, ...]


class IslandMoved(msgspec.Struct, frozen=True, gc=False):
    """An island is in another state, because."""

    island: int
    state: str
    reason: str


class DeadlineMissed(msgspec.Struct, frozen=True, gc=False):
    """An activation ended after its deadline."""

    entity: int
    context: int
    lateness_ns: int


class More(msgspec.Struct, frozen=True, gc=False):
    """There is more of the same to do: send the event again."""

    event: ExitGroup


Decision: TypeAlias = (
    Run
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
    | IslandMoved
    | DeadlineMissed
    | More
)
