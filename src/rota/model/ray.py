"""Runs on Ray, as settings: what a run needs of a cluster, and which cluster a supervisor uses.

An agent with `runner = "ray"` has `RaySettings`. What a run needs (its resources and, if it is named, its node) is its
*shape*. All entries of one shape have the same kind of slot, whose name says it:

    resources = {CPU = 4, GPU = 1}, node = "big"    →    ray:CPU=4,GPU=1@big

So a supervisor that is connected to a cluster claims by kind what fits there now, and other supervisors claim none of
it. Resources have Ray's names: CPU, GPU, memory (in bytes) and those that the nodes of the cluster declare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from rota.errors import FleetInvalid
from rota.model.checks import ID_CHARS_MAX, Checks

__all__ = [
    "IN_FLIGHT_MAX",
    "LINGER_S",
    "PENDING_S",
    "RAY",
    "RayCluster",
    "RaySettings",
    "RayShape",
    "address_problem",
    "kind_of",
    "shape_of",
]

RAY = "ray"  # the runner's name
RESOURCES_MAX = 16  # of one run
AMOUNT_MAX = 2**53
FRACTION = 10_000  # Ray counts resources in units of 1/10,000
PENDING_S = 30.0  # how long a task may wait inside the cluster before it is withdrawn
LINGER_S = 0.25  # how long a task whose run has ended waits for the next one
IN_FLIGHT_MAX = 1_000  # runs of one supervisor that are on a cluster at a time
CLIENT_ADDRESS = "ray://"
_PREFIX = f"{RAY}:"
_RESERVED = frozenset(",=@")  # they separate the parts of a kind
_checks = Checks("RaySettings", FleetInvalid)


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a run on a Ray cluster needs, and what executes it on its node."""

    executes: Literal["callable", "command", "ndjson"] = "callable"  # the runner on the node
    resources: dict[str, float] = {}  # by Ray's names; CPU is 1 unless it is given
    node: str | None = None  # the name, address or id of the node to run on
    runtime_env: dict[str, Any] = {}  # Ray's, passed on as it is

    def __post_init__(self) -> None:
        if len(self.resources) > RESOURCES_MAX:
            raise _checks.refuse("resources", f"may have at most {RESOURCES_MAX} items, not {len(self.resources)}")
        for name, amount in self.resources.items():
            _check_name("resources", name)
            _check_amount(name, amount)
        if self.node is not None:
            _check_name("node", self.node)
        kind = self.kind
        if len(kind) > ID_CHARS_MAX:
            raise _checks.refuse("resources", f"and node have {len(kind)} characters together; at most {ID_CHARS_MAX}")

    @property
    def shape(self) -> RayShape:
        """What a run needs of the cluster."""
        needs = {"CPU": 1.0} | self.resources
        return RayShape(tuple(sorted((name, float(amount)) for name, amount in needs.items() if amount)), self.node)

    @property
    def kind(self) -> str:
        """The kind of slot that its entries need."""
        return kind_of(self.shape)


def _check_name(field: str, name: Any) -> None:
    _checks.name(field, name)
    if not _RESERVED.isdisjoint(name):
        raise _checks.refuse(field, f"must not contain a comma, = or @: {name!r}")


def _check_amount(name: str, amount: Any) -> None:
    _checks.number(f"resources.{name}", amount, 0, AMOUNT_MAX)
    units = amount * FRACTION
    if abs(units - round(units)) > 1e-6 * max(units, 1.0):  # what a float of such a number may be off
        raise _checks.refuse(f"resources.{name}", f"must be a multiple of {1 / FRACTION:g}, not {amount}")
    if amount > 1 and amount != math.floor(amount):
        raise _checks.refuse(
            f"resources.{name}", f"must be a whole number above 1, not {amount:g}: Ray accepts no other"
        )


class RayShape(NamedTuple):
    """What a run needs of a cluster."""

    resources: tuple[tuple[str, float], ...]  # without zeros, by name
    node: str | None = None

    @property
    def needs(self) -> dict[str, float]:
        """The resources by name."""
        return dict(self.resources)

    def sentence(self) -> str:
        """The shape as text: `CPU 4, GPU 1 on node big`."""
        amounts = ", ".join(f"{name} {amount:g}" for name, amount in self.resources) or "no resources"
        return amounts if self.node is None else f"{amounts} on node {self.node}"


def kind_of(shape: RayShape) -> str:
    """Return the kind of slot that entries of this shape need."""
    node = "" if shape.node is None else f"@{shape.node}"
    return _PREFIX + ",".join(f"{name}={_text(amount)}" for name, amount in shape.resources) + node


def shape_of(kind: str | None) -> RayShape | None:
    """Return the shape that a kind of slot names; None if it is no kind of the Ray runner."""
    if kind is None or not kind.startswith(_PREFIX):
        return None
    amounts, _, node = kind.removeprefix(_PREFIX).partition("@")
    try:
        parts = [part.split("=") for part in amounts.split(",") if part]
        return RayShape(tuple((name, float(amount)) for name, amount in parts), node or None)
    except ValueError:
        return None


def _text(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else repr(amount)


class RayCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The Ray cluster of a supervisor; in the fleet file, the table `[ray]`."""

    address: str | None = None  # of its head; None: RAY_ADDRESS, else a cluster of this machine, else a new one
    pending_s: float = PENDING_S  # how long a task may wait for other programs on the cluster
    in_flight: int = IN_FLIGHT_MAX  # runs at a time
    linger_s: float = LINGER_S  # how long a task waits for the next run, and keeps its resources; 0: it does not
    tell_demand: bool = False  # whether the autoscaler is told what waits here

    def __post_init__(self) -> None:
        _checks.duration("pending_s", self.pending_s)
        _checks.whole("in_flight", self.in_flight, 1)
        _checks.duration("linger_s", self.linger_s)
        problem = None if self.address is None else address_problem(self.address)
        if problem is not None:
            raise _checks.refuse("address", problem)


def address_problem(address: str) -> str | None:
    """Return what is wrong with an address, as far as it can be seen; None if nothing is."""
    if address.startswith(CLIENT_ADDRESS):
        return f"must be the head's own address, like 10.0.0.1:6379, not one of a Ray client ({address})"
    return None


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Return resources as text, those that people name first: `CPU 4, GPU 1, left 2`."""
    shown = {name: amount for name, amount in amounts.items() if not name.startswith("node:")}
    order = sorted(shown, key=lambda name: (name not in ("CPU", "GPU"), name))
    return ", ".join(f"{name} {shown[name]:,.10g}" for name in order) or "nothing"
