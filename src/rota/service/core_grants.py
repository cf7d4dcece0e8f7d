"""The one admission for the cores of real hosts: fleets, entries and graphs ask here.

    settings or island  →  profile  →  admission  →  grant, as a row of the claim that asked

`core_admission.decide` decides, with the code that `rota cpu sim` and the engine use. What it grants or refuses is
recorded in the journal, in the transaction that reads and writes the rows, so two supervisors cannot be granted the
same core. A grant ends with the claim that it was made for.

A lease grants placement: no other work that rota runs uses its cores, the supervisors and their helpers included. What
stays open is part of every grant, and `open_cores` tells it at any time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import msgspec

from rota.clock import SystemClock
from rota.errors import Refused, RotaError
from rota.kernel import Kernel
from rota.kernel.clock_jumps import now_as_stored
from rota.kernel.contexts import cpu_contexts
from rota.kernel.core_grants import (
    leased_cores,
    live_grants,
    refused_lately,
    remove_ended,
    remove_grant,
    save_grant,
)
from rota.kernel.entries import RowToChange, rows_to_change
from rota.kernel.journal import append
from rota.kernel.lookups import find_agent
from rota.lazy import late
from rota.model.core_grants import CoreAsk, CoreGrant, CoreHost, CoreStatus, HostStatus
from rota.model.cpu import CpuSettings
from rota.model.events import CoresRefused, EventData
from rota.service.core_refusals import ADMISSION, AskedOfHost, CoreRefusals, asked_of, holders
from rota.store import Transaction

if TYPE_CHECKING:
    from rota.host import thread_settings
    from rota.service.api import SchedulerApi
    from rota.service.core_admission import Asker
else:
    thread_settings = late("rota.host.thread_settings")  # only supervisors need it

__all__ = [
    "CoreGrants",
    "grant",
    "needs_grant",
    "open_cores",
    "refused_delay_s",
    "release",
    "this_host",
]

REFUSED_DELAY_MIN_S, REFUSED_DELAY_MAX_S = 1.0, 10.0  # after which an entry that was refused is claimed again
REFUSED_DELAY_PART = 10  # one part in so many of the time that it has waited
WAKE_MAX = 16  # refused entries that are looked at when a grant ends: to decide about one costs a millisecond
WOKEN_S = 1.0  # how long what one that was woken would be granted is kept for it

# --- the rows ------------------------------------------------------------------------------------


class CoreGrants:
    """Grants on the hosts of one store."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def grant(self, sched_id: int, token: int, host: CoreHost, ask: CoreAsk) -> CoreGrant:
        """Grant a live claim what it asks of a host, or raise the refusal; both are recorded."""
        admission = resolve_name(ADMISSION)
        env, queue = self._kernel.env, self._kernel.queue

        def work(tx: Transaction) -> CoreGrant | Refused:
            now = env.read_clock(tx)
            run = queue.live_run(tx, sched_id, token)
            # an expired claim has no cores, unless its worker may be coming back, as that of a late claim is
            spares = env.returning.is_going_on or sched_id in queue.maintenance.expired_claims(tx, now)
            queue.maintenance.run_due(tx, now, now_from_clock=True, takes_in=False, reclaims=not spares)
            has_ended = remove_ended(tx, now)
            agent = find_agent(tx, run.pid)
            asker = admission.Asker(sched_id, token, run.pid, agent.name, run.project_id, now)
            record: list[EventData] = []
            live = live_grants(tx, 0.0 if spares else now, host.key)
            if has_ended:  # those who waited for it come first
                live += self._wake_refused(tx, host.key, now, before=sched_id)
            try:
                granted: CoreGrant | Refused = admission.decide(host, live, ask, asker, record)
            except Refused as refusal:
                granted = admission.lasting_refusal(refusal, host, ask, asker)
            for fact in record:
                append(tx, fact, now=now)
            if isinstance(granted, CoreGrant):
                save_grant(tx, granted)
            else:
                append(tx, _refused_event(granted, host, live, asker, ask), now=now)
            return granted

        granted = env.write_keeping_cache(work)
        if isinstance(granted, RotaError):
            raise granted
        return granted

    def release(self, sched_id: int, token: int) -> bool:
        """End the grant of a claim before the claim ends; returns whether there was one.

        The first entries that wait for what it had are runnable at once.
        """
        env = self._kernel.env

        def work(tx: Transaction) -> bool:
            now = env.read_clock(tx)
            host = remove_grant(tx, sched_id, token, now)
            if host is not None:
                self._wake_refused(tx, host, now)
            return host is not None

        return env.write_keeping_cache(work)

    def _wake_refused(self, tx: Transaction, host: str, now: float, *, before: int | None = None) -> list[CoreGrant]:
        """Wake the refused entries that a host can serve now, in claim order.

        Returns what they will be granted, of those that come `before` an entry. What will be granted to entries that
        were woken a moment ago, and have not been claimed yet, counts as taken.
        """
        refused = refused_lately(tx, host)
        if not refused:
            return []
        rows = sorted(rows_to_change(tx, [*refused, *([] if before is None else [before])]), key=_claim_order)
        admission, live = resolve_name(ADMISSION), live_grants(tx, now, host)
        woken: list[RowToChange] = []
        ahead: list[CoreGrant] = []
        is_ahead = before is not None
        for row in [row for row in rows if row.sched_id == before or _waits(row, now)][:WAKE_MAX]:
            if row.sched_id == before:
                is_ahead = False
                continue
            _at, event = refused[row.sched_id]
            asker = admission.Asker(row.sched_id, 0, row.pid, event.owner, row.project_id, now)
            asked = asked_of(event)
            if asked is None:
                continue
            with suppress(RotaError):  # refused again
                granted = admission.decide(asked.host, live, asked.ask, asker, [])
                live.append(granted)
                woken.append(row)
                ahead += [granted] * is_ahead
        self._kernel.queue.wake_in(tx, woken, now)
        return ahead

    def leased(self, host: str) -> dict[int, int]:
        """Return the leased cores of a host, and the entry that leases each."""
        return self._kernel.env.read(lambda tx: leased_cores(tx, host))

    def status(self, host: str | None = None) -> CoreStatus:
        """Return the grants of every host or of one, the entries refused there, and contexts of CPU time."""

        def work(tx: Transaction) -> CoreStatus:
            now = now_as_stored(tx, self._kernel.env)
            hosts: dict[str, list[CoreGrant]] = {}
            for each in live_grants(tx, now, host):
                hosts.setdefault(each.host, []).append(each)
            return CoreStatus(
                hosts=[_host_status(grants) for grants in hosts.values()],
                refused=list(CoreRefusals(tx, now, host)),
                contexts=cpu_contexts(tx, now),
            )

        return self._kernel.env.read(work)


def _refused_event(
    refusal: Refused, host: CoreHost, live: Sequence[CoreGrant], asker: Asker, ask: CoreAsk
) -> CoresRefused:
    missing = refusal.data.get("missing") or []
    return CoresRefused(
        sched_id=asker.sched_id,
        host=host.key,
        host_name=host.name,
        owner=asker.owner,
        reason=refusal.message,
        held_by=holders(live, asker.sched_id),
        missing=[str(each) for each in missing],
        island=ask.island,
        asked=msgspec.to_builtins(AskedOfHost(host, ask)),
    )


def _waits(row: RowToChange, now: float) -> bool:
    """Whether a refused entry waits for its time, or was woken and is about to be claimed."""
    return row.state == "queued" and (row.hold == "time" or (row.hold is None and row.runnable_at > now - WOKEN_S))


def _claim_order(row: RowToChange) -> tuple[int, int]:
    """The order in which entries came: each refusal has moved their time."""
    return -row.priority, row.sched_id


def _host_status(grants: list[CoreGrant]) -> HostStatus:
    reserved: Counter[int] = Counter()
    for each in grants:
        reserved.update(each.reserved_ppm())
    return HostStatus(
        host=grants[0].host,
        host_name=grants[0].host_name,
        leased={core: each.sched_id for each in grants for core in each.leased},
        reserved_ppm=dict(reserved),
        grants=grants,
    )


# --- for supervisors -----------------------------------------------------------------------------


def this_host() -> CoreHost:
    """Return this machine and the cores that this process may use. Its key is the same in every container.

    Cores that are leased, which this process keeps off, are among them. Islands may reserve its memory, and a slot for
    each core that the machine has.
    """
    name = os.uname().nodename or "localhost"
    cores = tuple(sorted(thread_settings.usable_cores()))
    boot, _, _ = SystemClock().boot_id().partition("/")  # without the time namespace, which a container may have
    key = name if boot.startswith("process-") else boot
    return CoreHost(key=key, name=name, cores=cores, memory_bytes=_memory_bytes(), slots=os.cpu_count() or len(cores))


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def refused_delay_s(waited_s: float) -> float:
    """Return when an entry that was refused is tried again: each time is two events, so a long wait is asked seldom."""
    return min(max(REFUSED_DELAY_MIN_S, waited_s / REFUSED_DELAY_PART), REFUSED_DELAY_MAX_S)


def needs_grant(settings: CpuSettings | None) -> bool:
    """Whether a run with these settings needs a grant before it starts.

    `cores` promise nothing, but a lease has to leave the run one of them.
    """
    if settings is None:
        return False
    policy = settings.policy
    is_reserved = policy is not None and policy.policy == "deadline"
    places = settings.leased_cores > 0 or settings.cores is not None
    return places or settings.quota is not None or is_reserved or settings.latency_class != "normal"


def grant(
    api: SchedulerApi, host: CoreHost, sched_id: int, token: int, settings: CpuSettings, *, runs: bool = False
) -> CoreGrant:
    """Grant a run its settings on a host, changed ones if it `runs`; raises the refusal with its numbers."""
    return api.cores.grant(sched_id, token, host, CoreAsk(cpu=settings, runs=runs))


def release(api: SchedulerApi, sched_id: int, token: int) -> None:
    """End the grant of a run. Without it the grant ends with the claim."""
    api.cores.release(sched_id, token)


def open_cores(api: SchedulerApi, host: CoreHost) -> tuple[int, ...]:
    """Return the cores of a host that no lease has: everything but the owners of leases stays on them.

    There is none if a supervisor that may use other cores too has leased all of these.
    """
    leased = api.cores.leased(host.key)
    return tuple(core for core in host.cores if core not in leased)
