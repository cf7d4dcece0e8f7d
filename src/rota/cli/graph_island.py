"""`rota graph run --island`: admit a graph whole before it runs in this process.

With a store the island is a grant of a claim there, as for a run of a fleet: other processes on this host see it, and
it ends with this process. Without a store it is admitted beside nothing else, and holds for this process only.

A thread keeps the claim alive, whatever the run does: it may wait for entries, or compute, for longer than the claim
lasts. An outage of the store is no reason to stop, because the cores are granted as long as the claim is. A claim that
was taken back is one: another run may have the cores.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rota.cli.connection import open_api
from rota.cli.terminal_text import say
from rota.clock import Clock, SystemClock
from rota.errors import RotaError, StaleClaim, StoreUnavailable
from rota.graph import Plan, StopToken, island_ask
from rota.model import ScheduleSpec
from rota.service import Asker, call_through_outage, decide, this_host

if TYPE_CHECKING:
    from rota.model import CoreGrant
    from rota.service import SchedulerApi

__all__ = ["HEARTBEAT_S", "IslandEnd", "admitted"]

CLAIM_TIMEOUT_S = 60.0  # after the end of a killed process its cores are free again this much later
HEARTBEAT_S = 15.0
ERROR_CHARS_MAX = 4_000  # of its entry's result
ISLAND_KIND = "rota.island"  # the kind of slot that its entry needs, which no supervisor has


class IslandEnd:
    """How a run as an island ended, for its entry; completed, unless the caller says otherwise."""

    def __init__(self) -> None:
        self.exit_kind = "completed"
        self.error: str | None = None

    def failed(self, error: str) -> None:
        """The graph has failed."""
        self.exit_kind, self.error = "failed", error

    def cancelled(self, why: str) -> None:
        """The run was asked to stop."""
        self.exit_kind, self.error = "cancelled", why

    def raised(self, problem: BaseException) -> None:
        """It ended by an error, or by a second Ctrl-C."""
        if isinstance(problem, KeyboardInterrupt):
            self.cancelled("interrupted")
        else:
            self.failed(problem.message if isinstance(problem, RotaError) else f"{type(problem).__name__}: {problem}")

    def result(self) -> Any:
        """The result of the entry; a store holds text only."""
        if self.error is None:
            return None
        return {"error": self.error[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode().replace("\0", "\ufffd")}


@contextlib.contextmanager
def admitted(
    plan: Plan, store: str | None, stop: StopToken, *, quiet: bool, clock: Clock | None = None
) -> Iterator[IslandEnd]:
    """Admit a graph as an island, or raise what is missing; this process stays on its cores meanwhile.

    The caller says by what is yielded how the run ended. If the island loses its cores, `stop` is requested, and the
    error is raised at the end.
    """
    end = IslandEnd()
    with _granted(plan, store, stop, clock or SystemClock(), end) as grant, _on_cores(_places(grant)):
        if not quiet:
            say(f"{plan.name}: island admitted: {'; '.join(_words(grant))}", err=True)
        yield end


def _words(grant: CoreGrant) -> Iterator[str]:
    if grant.leased:
        yield f"core{'s' * (len(grant.leased) > 1)} {', '.join(map(str, grant.leased))} for itself"
    for one in grant.reserved:
        yield f"{one.name} {one.budget_ns / 1e6:g} ms in {one.period_ns / 1e6:g} ms on core {one.core}"


@contextlib.contextmanager
def _granted(plan: Plan, store: str | None, stop: StopToken, clock: Clock, end: IslandEnd) -> Iterator[CoreGrant]:
    ask = island_ask(plan)
    host = this_host()
    if store is None:
        asker = Asker(0, 0, 0, plan.name, None, clock.now())
        yield decide(host, (), ask, asker, [])
        return
    with open_api(store, create=True) as api:
        claim = _IslandClaim(api, plan.name, stop, clock)
        try:
            grant = api.cores.grant(claim.sched_id, claim.token, host, ask)
            claim.keep()
            yield grant
        except BaseException as problem:
            end.raised(problem)
            with contextlib.suppress(StaleClaim):  # the first error says more
                claim.end(end, waits=False)
            raise
        claim.end(end)


class _IslandClaim:
    """The claim of an entry of the agent with the graph's name: the grant belongs to it.

    No slot is of its kind, so no supervisor that runs this agent takes the entry before this process does.
    """

    def __init__(self, api: SchedulerApi, name: str, stop: StopToken, clock: Clock) -> None:
        found = api.agents.find(name)
        pid = found[0].pid if found else api.agents.create(name)
        # one attempt: if this process is killed, no worker can go on with its run
        self.sched_id = api.queue.enqueue(ScheduleSpec(pid, max_attempts=1, kind=ISLAND_KIND))
        worker = f"graph-run-{os.getpid()}"
        try:
            entry = api.queue.force_claim(self.sched_id, worker_id=worker, claim_timeout_s=CLAIM_TIMEOUT_S)
        except RotaError:
            with contextlib.suppress(RotaError):
                api.queue.cancel(self.sched_id)  # nothing else would
            raise
        self.token = entry.token or 0
        self._api, self._name, self._stop, self._clock = api, name, stop, clock
        self._pause = threading.Condition()
        self._is_over = False
        self._lost: RotaError | None = None
        self._thread = threading.Thread(target=self._beat, name="rota-island", daemon=True)

    def keep(self) -> None:
        """Keep the claim alive until `end`."""
        self._thread.start()

    def end(self, end: IslandEnd, *, waits: bool = True) -> None:
        """Give the cores back and end the entry; raises if the claim was lost."""
        with self._pause:
            self._is_over = True
            self._pause.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        try:
            call_through_outage(
                self._clock, lambda: self._give_back(end), lambda: not waits,
                limit_s=CLAIM_TIMEOUT_S, say=self._say_waiting,
            )  # fmt: skip
        except StoreUnavailable as problem:
            say(f"{self._name}: its cores are free when its claim expires: {problem.message}", err=True)
        except StaleClaim as problem:
            lost = self._lost or problem
            text = f"island {self._name} has lost its cores: {lost.message}"
            hint = "Other runs may have them now. Run it again."
            raise StaleClaim(text, hint=hint, sched_id=self.sched_id, token=self.token) from problem

    def _give_back(self, end: IslandEnd) -> None:
        self._api.cores.release(self.sched_id, self.token)  # what waits for its cores is claimed at once
        self._api.queue.complete(self.sched_id, end.exit_kind, token=self.token, result=end.result())

    def _beat(self) -> None:
        while not self._is_ended(HEARTBEAT_S):
            try:
                call_through_outage(
                    self._clock, partial(self._api.queue.heartbeat, self.sched_id, token=self.token),
                    lambda: self._is_over, limit_s=math.inf, repeats=True, say=self._say_waiting,
                )  # fmt: skip
            except StoreUnavailable:
                return  # the run has ended during the outage
            except RotaError as problem:
                self._lost = problem
                self._stop.request(f"island {self._name} has lost its cores")
                return

    def _is_ended(self, after_s: float) -> bool:
        with self._pause:
            if not self._is_over:
                self._clock.wait(self._pause, after_s)
            return self._is_over

    def _say_waiting(self, problem: StoreUnavailable) -> None:
        say(f"{self._name}: waiting for the store: {problem.message}", err=True)


def _places(grant: CoreGrant) -> tuple[int, ...]:
    """Return where this process may run: no supervisor would keep it off the cores that others have leased."""
    return grant.leased or tuple(core for core in grant.allowed if core in grant.open_cores)


@contextlib.contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep this process, and the threads that it starts, on some cores."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
