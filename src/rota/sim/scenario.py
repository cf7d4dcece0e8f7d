"""Scenario files: cores, threads and events, in TOML.

    seed = 7
    cores = 2
    duration_ms = 1000

    [[thread]]
    name = "hog"
    kind = "hog"
    weight = 3

    [[thread]]
    name = "editor"
    kind = "sleeper"
    work_us = [200, 800]     # a number, or a range to draw from
    sleep_us = [2000, 9000]

There are five kinds of threads: a *hog* works without end; a *sleeper* works, sleeps and works again; a *periodic* one
has new work every period; a *server* works when it is called; a *caller* works, calls a server, and sleeps. Times are
whole microseconds or milliseconds, weights are numbers with up to three decimals.

An invalid file is refused before anything runs, with the place of the error and the expected value.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rota.cores.accounts import SLICE_MAX_NS, SLICE_MIN_NS, LatencyClass
from rota.cores.runqueue import Rule
from rota.errors import ScenarioInvalid
from rota.model.budgets import CORES_MAX, Criticality, OverrunPolicy
from rota.model.struct_reader import Problems, TomlReader
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT
from rota.service.profiles import Hint

__all__ = [
    "SCENARIO_BYTES_MAX",
    "THREADS_MAX",
    "CapacitySpec",
    "ContextSpec",
    "DurationUs",
    "EventSpec",
    "GroupSpec",
    "IslandSpec",
    "LeaseSpec",
    "Scenario",
    "ThreadSpec",
    "load_scenario",
    "parse_scenario",
    "weight_of",
]

SCENARIO_BYTES_MAX = 1024 * 1024
THREADS_MAX = 1_000_000  # including `count`

DurationUs: TypeAlias = int | tuple[int, int]  # microseconds; a range includes both ends
Kind = Literal["hog", "sleeper", "periodic", "caller", "server"]

# the fields each kind requires; it accepts no others of these
_KIND_FIELDS: dict[Kind, tuple[str, ...]] = {
    "hog": (),
    "sleeper": ("work_us", "sleep_us"),
    "periodic": ("work_us", "every_us"),
    "caller": ("work_us", "sleep_us", "server", "serve_us"),
    "server": (),
}


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


Name: TypeAlias = Annotated[str, Meta(description="Its name, unique among tables of its kind.")]
Weight: TypeAlias = Annotated[float, Meta(description="Its share beside the others.")]
Cores: TypeAlias = Annotated[tuple[int, ...], Meta(description="The cores that it may use. Default: all.")]
Work: TypeAlias = Annotated[DurationUs | None, Meta(description="How long it works each time: a number, or a range.")]
MemoryBytes: TypeAlias = Annotated[int, Meta(description="Memory, in bytes.")]
Slots: TypeAlias = Annotated[int, Meta(description="Slots.")]
Tokens: TypeAlias = Annotated[int, Meta(description="Tokens.")]
Devices: TypeAlias = Annotated[tuple[str, ...], Meta(description="Devices, by name.")]


class GroupSpec(_Table, frozen=True, kw_only=True):
    """A process, session or project whose threads compete as one."""

    name: Name
    weight: Weight = 1.0
    latency: Annotated[LatencyClass, Meta(description="The length of the group's time slices.")] = "normal"
    context: Annotated[
        str | None, Meta(description="The context that pays for threads of the group without one of their own.")
    ] = None


class ContextSpec(_Table, frozen=True, kw_only=True):
    """A budget per period."""

    name: Name
    budget_us: Annotated[int, Meta(description="CPU time per period.")]
    period_us: Annotated[int, Meta(description="The period.")]
    deadline_us: Annotated[
        int | None, Meta(description="How long after it wakes a thread must be done. Default: the period.")
    ] = None
    criticality: Annotated[
        Criticality,
        Meta(description="`high` and `critical` reserve the budget, `normal` is a cap, `background` uses idle time."),
    ] = "normal"
    priority: Annotated[int, Meta(description="Among reservations with equal deadlines the higher goes first.")] = 0
    cores: Annotated[
        tuple[int, ...],
        Meta(description="The cores that it may be used on; a reservation gets one of them. Default: all."),
    ] = ()
    overrun: Annotated[OverrunPolicy, Meta(description="What becomes of a thread when the budget is used up.")] = (
        "throttle"
    )
    endpoint: Annotated[int | None, Meta(description="Where the notice goes that it is used up. Default: nowhere.")] = (
        None
    )


class ThreadSpec(_Table, frozen=True, kw_only=True):
    """One thread, or `count` equal ones."""

    name: Name
    kind: Annotated[Kind, Meta(description="What it does.")]
    count: Annotated[int, Meta(description="How many; they are called NAME-0, NAME-1, ….")] = 1
    weight: Weight = 1.0
    latency: Annotated[LatencyClass, Meta(description="The length of its time slices.")] = "normal"
    slice_us: Annotated[int | None, Meta(description="The length of its time slices, in place of the class's.")] = None
    group: Annotated[str | None, Meta(description="The group that it belongs to.")] = None
    context: Annotated[str | None, Meta(description="The context that pays for it. Default: its group's.")] = None
    cores: Cores = ()
    needs_context: Annotated[bool, Meta(description="Whether it does not run while no context pays for it.")] = False
    hint: Annotated[
        Hint | None,
        Meta(description="Asks the policy service for a profile; until it answers, `weight` and `latency` apply."),
    ] = None
    start_ms: Annotated[int, Meta(description="When it first wakes.")] = 0
    work_us: Work = None
    sleep_us: Annotated[DurationUs | None, Meta(description="How long it sleeps after that.")] = None
    every_us: Annotated[int | None, Meta(description="The period of new work.")] = None
    server: Annotated[str | None, Meta(description="The thread that it calls.")] = None
    serve_us: Annotated[DurationUs | None, Meta(description="How long the server works for a call.")] = None


class LeaseSpec(_Table, frozen=True, kw_only=True):
    """Exclusive cores for one group, from an instant on."""

    name: Name
    owner: Annotated[str, Meta(description="The group that gets the cores.")]
    cores: Annotated[tuple[int, ...], Meta(description="The cores that only its threads may use.")]
    context: Annotated[str, Meta(description="The context that pays; the lease ends with it.")]
    at_ms: Annotated[int, Meta(description="When it is granted. One of an island is granted with the island.")] = 0
    mode: Annotated[
        Literal["exclusive", "poller"], Meta(description="A `poller` has one thread, which consumes its ring.")
    ] = "exclusive"
    housekeeping: Annotated[tuple[int, ...], Meta(description="Cores that have to stay open to all threads.")] = ()
    revocation_us: Annotated[int, Meta(description="How long the owner has to return the cores.")] = 5_000
    endpoint: Annotated[int | None, Meta(description="Where the notice of a revocation goes. Default: nowhere.")] = None
    on_service_loss: Annotated[
        Literal["keep", "revoke"], Meta(description="What becomes of it when the policy service is lost.")
    ] = "keep"


class IslandSpec(_Table, frozen=True, kw_only=True):
    """A realtime graph that is admitted or refused as a whole."""

    name: Name
    contexts: Annotated[tuple[str, ...], Meta(description="Its contexts.")]
    leases: Annotated[tuple[str, ...], Meta(description="Its leases.")] = ()
    memory_bytes: MemoryBytes = 0
    slots: Slots = 0
    tokens: Tokens = 0
    devices: Devices = ()
    overrun: Annotated[
        Literal["stop", "degrade"],
        Meta(description="When an activation uses more than its budget: `degrade` goes on without reservations."),
    ] = "stop"
    shutdown: Annotated[
        Literal["drain", "immediate"], Meta(description="Whether activations in progress are finished when it stops.")
    ] = "drain"


class CapacitySpec(_Table, frozen=True, kw_only=True):
    """What islands can reserve, besides cores."""

    memory_bytes: MemoryBytes = 0
    slots: Slots = 0
    tokens: Tokens = 0
    devices: Devices = ()


class EventSpec(_Table, frozen=True, kw_only=True):
    """An event at an instant."""

    at_ms: Annotated[int, Meta(description="When it happens.")]
    do: Annotated[
        Literal[
            "core_offline", "core_online", "exit", "revoke_context", "revoke_lease", "service_lost", "service_back"
        ],
        Meta(description="What happens."),
    ]
    core: Annotated[int | None, Meta(description="The core that goes offline or comes back.")] = None
    name: Annotated[str | None, Meta(description="The thread that ends, or the context or lease that is revoked.")] = (
        None
    )


class Scenario(_Table, frozen=True, kw_only=True):
    """A whole scenario file."""

    cores: Annotated[int, Meta(description="The number of cores.")]
    duration_ms: Annotated[int, Meta(description="How long it is simulated.")]
    seed: Annotated[int, Meta(description="What all random numbers follow from.")] = 1
    rule: Annotated[Rule, Meta(description="How threads share a core; `--policy` takes precedence.")] = "eevdf"
    reschedule_us: Annotated[int, Meta(description="How long a core takes to notice that it should choose again.")] = 0
    answer_us: Annotated[int, Meta(description="How long the policy service takes to answer.")] = 1_000
    capacity: Annotated[CapacitySpec, Meta(description="What islands can reserve, besides cores.")] = CapacitySpec()
    group: Annotated[tuple[GroupSpec, ...], Meta(description="Groups of threads.")] = ()
    context: Annotated[tuple[ContextSpec, ...], Meta(description="Budgets of CPU time.")] = ()
    thread: Annotated[tuple[ThreadSpec, ...], Meta(description="Threads, at least one.")] = ()
    lease: Annotated[tuple[LeaseSpec, ...], Meta(description="Exclusive cores.")] = ()
    island: Annotated[tuple[IslandSpec, ...], Meta(description="Realtime islands.")] = ()
    event: Annotated[tuple[EventSpec, ...], Meta(description="What happens during the simulation.")] = ()


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a file."""
    try:
        with path.open("rb") as file:
            body = file.read(SCENARIO_BYTES_MAX + 1)  # no more: a device has no size and may not end
        if len(body) > SCENARIO_BYTES_MAX:
            raise ScenarioInvalid(f"{path} is larger than the maximum, which is {SCENARIO_BYTES_MAX:,} bytes")
        text = body.decode("utf-8")
    except OSError as problem:
        raise ScenarioInvalid(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ScenarioInvalid(f"{path} is not UTF-8: {problem}") from problem
    return parse_scenario(text, str(path))


def parse_scenario(text: str, source: str = "scenario") -> Scenario:
    """Read a scenario from text; errors name `source`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ScenarioInvalid(f"{source} is not TOML: {problem}") from problem
    problems = Problems()
    scenario = TomlReader(problems).read(Scenario, data)
    if problems:
        raise ScenarioInvalid(f"{source}: {problems.text()}", field=problems.keys()[0])
    for key, expected in _problems(scenario):
        raise ScenarioInvalid(f"{source}: {key} {expected}", field=key)
    return scenario


def weight_of(weight: float) -> int:
    """Return a weight in thousandths, as the engine counts it."""
    return round(weight * WEIGHT_UNIT)


# --- checks ----------------------------------------------------------------------------------------


def _problems(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Every error in a scenario: the place, and what is wrong there."""
    yield from _outside("cores", scenario.cores, 1, CORES_MAX)
    yield from _outside("duration_ms", scenario.duration_ms, 1, 10**9)
    yield from _outside("reschedule_us", scenario.reschedule_us, 0, 10**6)
    yield from _outside("answer_us", scenario.answer_us, 0, 10**6)
    yield from _names(scenario)
    for at, group in enumerate(scenario.group):
        yield from _weight(f"group[{at}].weight", group.weight)
        yield from _known(f"group[{at}].context", group.context, scenario.context)
    for at, context in enumerate(scenario.context):
        yield from _context(f"context[{at}]", context, scenario)
    for at, thread in enumerate(scenario.thread):
        yield from _thread(f"thread[{at}]", thread, scenario)
    yield from _outside("thread count", sum(thread.count for thread in scenario.thread), 1, THREADS_MAX)
    for at, lease in enumerate(scenario.lease):
        yield from _lease(f"lease[{at}]", lease, scenario)
    yield from _islands(scenario)
    for at, event in enumerate(scenario.event):
        yield from _event(f"event[{at}]", event, scenario)


def _names(scenario: Scenario) -> Iterator[tuple[str, str]]:
    for kind in ("group", "context", "thread", "lease", "island"):
        seen: set[str] = set()
        for at, one in enumerate(getattr(scenario, kind)):
            if not one.name:
                yield f"{kind}[{at}].name", "must not be empty"
            if one.name in seen:
                yield f"{kind}[{at}].name", f"is {one.name!r}, already used by another {kind}"
            seen.add(one.name)


def _context(place: str, context: ContextSpec, scenario: Scenario) -> Iterator[tuple[str, str]]:
    yield from _outside(f"{place}.period_us", context.period_us, 1, 10**10)
    yield from _outside(f"{place}.budget_us", context.budget_us, 1, context.period_us)
    if context.deadline_us is not None:
        yield from _outside(f"{place}.deadline_us", context.deadline_us, 1, 10**10)
    yield from _cores(f"{place}.cores", context.cores, scenario)


def _thread(place: str, thread: ThreadSpec, scenario: Scenario) -> Iterator[tuple[str, str]]:
    yield from _outside(f"{place}.count", thread.count, 1, THREADS_MAX)
    yield from _outside(f"{place}.start_ms", thread.start_ms, 0, scenario.duration_ms)
    yield from _weight(f"{place}.weight", thread.weight)
    if thread.slice_us is not None:
        yield from _outside(f"{place}.slice_us", thread.slice_us, SLICE_MIN_NS // 1_000, SLICE_MAX_NS // 1_000)
    yield from _known(f"{place}.group", thread.group, scenario.group)
    yield from _known(f"{place}.context", thread.context, scenario.context)
    yield from _cores(f"{place}.cores", thread.cores, scenario)
    for field in ("work_us", "sleep_us", "every_us", "server", "serve_us"):
        value = getattr(thread, field)
        yield from _needed(f"{place}.{field}", value, f"a {thread.kind}", field in _KIND_FIELDS[thread.kind])
        if value is not None and field != "server":
            yield from _span(f"{place}.{field}", value)
    if thread.server is not None:
        servers = [one for one in scenario.thread if one.kind == "server"]
        yield from _known(f"{place}.server", thread.server, servers)


def _lease(place: str, lease: LeaseSpec, scenario: Scenario) -> Iterator[tuple[str, str]]:
    yield from _known(f"{place}.owner", lease.owner, scenario.group)
    yield from _known(f"{place}.context", lease.context, scenario.context)
    yield from _cores(f"{place}.cores", lease.cores, scenario)
    yield from _cores(f"{place}.housekeeping", lease.housekeeping, scenario)
    yield from _outside(f"{place}.at_ms", lease.at_ms, 0, scenario.duration_ms)
    if lease.at_ms and any(lease.name in island.leases for island in scenario.island):
        yield f"{place}.at_ms", "is not allowed: it is granted with its island"
    if not lease.cores:
        yield f"{place}.cores", "must name at least one core"


def _islands(scenario: Scenario) -> Iterator[tuple[str, str]]:
    for field, defined in (("contexts", scenario.context), ("leases", scenario.lease)):
        islands: dict[str, str] = {}  # by what belongs to them
        for at, island in enumerate(scenario.island):
            for name in getattr(island, field):
                yield from _known(f"island[{at}].{field}", name, defined)
                if name in islands:
                    yield f"island[{at}].{field}", f"names {name!r}, which island {islands[name]!r} has"
                islands[name] = island.name


def _event(place: str, event: EventSpec, scenario: Scenario) -> Iterator[tuple[str, str]]:
    yield from _outside(f"{place}.at_ms", event.at_ms, 0, scenario.duration_ms)
    named = {"exit": scenario.thread, "revoke_context": scenario.context, "revoke_lease": scenario.lease}.get(event.do)
    yield from _needed(f"{place}.core", event.core, event.do, event.do in ("core_offline", "core_online"))
    yield from _needed(f"{place}.name", event.name, event.do, named is not None)
    yield from _cores(f"{place}.core", () if event.core is None else (event.core,), scenario)
    yield from _known(f"{place}.name", event.name, named or ())
    if event.do in ("revoke_context", "revoke_lease"):
        yield from _revocable(f"{place}.name", event, scenario)


def _needed(place: str, value: object, of: str, is_needed: bool) -> Iterator[tuple[str, str]]:
    if is_needed and value is None:
        yield place, f"is missing: {of} requires it"
    elif value is not None and not is_needed:
        yield place, f"is not allowed: {of} has none"


def _revocable(place: str, event: EventSpec, scenario: Scenario) -> Iterator[tuple[str, str]]:
    what = event.do.removeprefix("revoke_")
    if any(event.name in getattr(island, f"{what}s") for island in scenario.island):
        yield place, f"is {event.name!r}, a {what} of an island: it ends with the island"
    if [(one.do, one.name) for one in scenario.event].count((event.do, event.name)) > 1:
        yield place, f"is {event.name!r}, which is revoked twice"
    if what == "context":
        return
    granted_ms = next((lease.at_ms for lease in scenario.lease if lease.name == event.name), 0)
    if event.at_ms < granted_ms:
        yield place, f"is {event.name!r}, which is granted only at {granted_ms:,} ms"


def _outside(place: str, value: int, low: int, high: int) -> Iterator[tuple[str, str]]:
    if not low <= value <= high:
        yield place, f"must be from {low:,} to {high:,}, not {value:,}"


def _span(place: str, span: DurationUs) -> Iterator[tuple[str, str]]:
    low, high = (span, span) if isinstance(span, int) else span
    if not 1 <= low <= high <= 10**10:
        yield place, f"must be at least 1 microsecond, and a range must be ascending, not {span}"


def _weight(place: str, weight: float) -> Iterator[tuple[str, str]]:
    if not math.isfinite(weight) or not 1 <= weight_of(weight) <= WEIGHT_MAX:
        yield place, f"must be from 0.001 to {WEIGHT_MAX // WEIGHT_UNIT:,}, not {weight}"


def _cores(place: str, cores: tuple[int, ...], scenario: Scenario) -> Iterator[tuple[str, str]]:
    for core in cores:
        if not 0 <= core < scenario.cores:
            yield place, f"names core {core}; cores are 0 to {scenario.cores - 1}"
    if len(set(cores)) != len(cores):
        yield place, "names a core twice"


def _known(place: str, name: str | None, among: Any) -> Iterator[tuple[str, str]]:
    names = [one.name for one in among]
    if name is not None and name not in names:
        yield place, f"is {name!r}; defined: {', '.join(names) or 'none'}"
