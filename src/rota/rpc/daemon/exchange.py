"""Between the event loop and those who answer.

The loop may not block, and a commit takes as long as the disk takes. So calls go out in three ways:

- *writes* are collected while the loop reads, and go out together once it has read all there is to read: they share a
  commit. Handing them to the writer's thread and being woken by it costs more than a commit on a quick disk, so a
  small group is run here and now while commits are quick; meanwhile others send, and make up the next group. One
  commit that was not quick, and for a while groups are posted to the writer's thread, which leaves the answers here
  and wakes the loop, once for each commit. So the loop hangs at most once, for one commit.
- *claims that wait* are posted too and stay parked with the writer: a waiting worker costs no thread, and the commit
  that brings work hands it over.
- *reads* and what takes several commits run on a few threads of their own.

What waits for a change (an entry's end, an event) waits in the loop (`waiting.py`).

Every job is answered exactly once. A job whose connection is gone is withdrawn; if it was handed entries in that very
moment, they are put back at once instead of being held until their claim expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from rota.errors import Forbidden, RotaError
from rota.rpc.authorization import check
from rota.rpc.daemon.jobs import Job, Reply
from rota.rpc.daemon.waiting import Waiting
from rota.rpc.handlers import Caller, Office
from rota.rpc.methods import METHODS, Method
from rota.rpc.params.work import Claim, CompleteAndClaim, Turn
from rota.rpc.results import Done
from rota.rpc.results.work import Claimed, TurnedOver
from rota.store import JointStore
from rota.store.requests import Posted

__all__ = ["Exchange"]

READERS = 4  # threads that look
STEPPERS = 2  # threads for what takes several commits
HERE_MAX = 64  # entries that a group run in the loop may touch
QUICK_S = 0.02  # a commit that took longer was not quick
NUDGES_MAX = 10_000  # workers whose nudges are remembered; the one first heard of is forgotten first
AFTER_SLOW_S = 1.0  # how long groups are left to the writer's thread then
_log = logging.getLogger("rota.daemon")


class Exchange:
    """Carries calls to those who answer them, and answers back into the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: JointStore, office: Office) -> None:
        self._loop = loop
        self._store = store
        self._office = office
        self._outgoing: list[Posted[Any]] = []
        self._weight = 0  # entries that the outgoing ones may touch
        self._here_from = 0.0  # when the loop may run groups itself again
        self._incoming: deque[tuple[Callable[..., None], Any]] = deque()  # what other threads have for the loop
        self._woken = False  # the loop knows that there is something
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="rota-read")
        self._steppers = ThreadPoolExecutor(STEPPERS, thread_name_prefix="rota-steps")
        self._waiting = Waiting(loop, office, self._readers, tell=self._tell, fail=self._fail)
        self.jobs: set[Job] = set()  # not answered yet
        self._nudged: dict[tuple[str, str], None] = {}  # workers whose next claim shall not wait
        self.wakes = 0  # of the loop, to take in answers
        self._end_listening = store.on_change(self._waiting.committed)

    # --- taking calls ----------------------------------------------------------------------------

    def carry(self, method: Method, params: Any, caller: Caller, reply: Reply) -> Job:
        """Have a call answered."""
        job = Job(method, params, caller, reply, self._ended)
        self.jobs.add(job)
        match method.manner:
            case "write":
                self._post(job, partial(self._office.run, method, params, caller))
            case "claim":
                self._claim(job)
            case "read":
                self._hand_to(self._readers, job)
            case "steps":
                self._hand_to(self._steppers, job)
            case "wait":
                self._waiting.wait(job)
            case "door" if method.name == "kernel.sched.nudge":
                self._guarded(job, self._nudge)
            case "door":
                self._answer_here(job)
        return job

    def _guarded(self, job: Job, act: Callable[[Job], None]) -> None:
        """Act for a caller who may ask for it."""
        try:
            check(job.caller, job.method, job.params)
        except RotaError as error:
            self._fail(job, error)
        else:
            act(job)

    def _answer_here(self, job: Job) -> None:
        try:
            job.answer(self._office.run(job.method, job.params, job.caller))
        except RotaError as error:
            self._fail(job, error)

    def _fail(self, job: Job, error: BaseException) -> None:
        if isinstance(error, Forbidden):
            self.record_denied(job.caller, job.method.name, error.message)
        job.answer(None, error)

    def follow(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have this called in the loop after commits; the answer ends it."""
        return self._waiting.follow(call)

    def record_denied(self, caller: Caller, method: str | None, reason: str) -> None:
        """Write down, when there is time, that somebody was turned away."""
        self._enlist(self._store.errand(partial(self._office.record_denied, caller, method, reason), _nobody))

    # --- writes ----------------------------------------------------------------------------------

    def _post(self, job: Job, verb: Callable[[], Any]) -> None:
        job.errand = errand = self._store.errand(verb, partial(self._tell, self._written, job))
        self._enlist(errand, _weight(job.params))

    def _enlist(self, errand: Posted[Any], weight: int = 1) -> None:
        self._outgoing.append(errand)
        self._weight += weight
        if len(self._outgoing) == 1:
            self._loop.call_soon(self._send)  # after all that can be read now has been read

    def _send(self) -> None:
        errands, self._outgoing = self._outgoing, []
        weight, self._weight = self._weight, 0
        try:
            if weight > HERE_MAX or not self._run_here(errands):
                self._store.post(errands)
        except RotaError as error:  # the store is closed
            for job in [job for job in self.jobs if job.errand in errands]:
                job.answer(None, error)

    def _run_here(self, errands: list[Posted[Any]]) -> bool:
        """Run a group in the loop, if commits are quick and nobody else writes."""
        began_at = self._loop.time()
        if began_at < self._here_from:
            return False
        self._woken = True  # what is told meanwhile is taken in below
        try:
            ran = self._store.run(errands)
        finally:
            self._woken = False
        ended_at = self._loop.time()
        if ended_at - began_at > QUICK_S:
            self._here_from = ended_at + AFTER_SLOW_S
        if self._incoming:
            self._take_in()
        return ran

    def _written(self, job: Job) -> None:
        errand = job.errand
        assert errand is not None  # noqa: S101  # it was posted
        if errand.error is not None:
            self._fail(job, errand.error)
        else:
            job.answer(errand.answer)

    # --- claims ----------------------------------------------------------------------------------

    def _claim(self, job: Job) -> None:
        if job.params.wait_s <= 0:
            self._post(job, partial(self._office.run, job.method, job.params, job.caller))
        elif isinstance(job.params, CompleteAndClaim | Turn) and _says_something(job.params):
            first = msgspec.structs.replace(job.params, wait_s=0.0)
            verb = partial(self._office.run, job.method, first, job.caller)
            job.errand = self._store.errand(verb, partial(self._tell, self._turned_over, job))
            self._enlist(job.errand, _weight(first))
        else:
            self._park(job, job.params)

    def _turned_over(self, job: Job) -> None:
        """The runs have ended, durably. If there was nothing to take, wait for it."""
        errand = job.errand
        assert errand is not None  # noqa: S101  # it was posted
        turnover: TurnedOver | None = errand.answer
        if turnover is None or turnover.entries or job.gone:
            self._written(job)
            return
        job.earlier = turnover
        self._park(job, job.params)

    def _park(self, job: Job, claim: Claim) -> None:
        worker = claim.worker_id, claim.incarnation
        if worker in self._nudged:  # it came before the waiting did
            self._nudged.pop(worker)
            self._answer_with(job, [])
            return
        job.errand = self._store.errand(
            partial(self._hand_out, job.method, claim, job.caller),
            partial(self._tell, self._handed_out, job),
            parks=True,
            same=(claim.policy, tuple(sorted(set(claim.kinds))), claim.admission_check),
        )
        job.timer = self._loop.call_later(claim.wait_s, self._store.withdraw, job.errand)
        self._enlist(job.errand)

    def _hand_out(self, method: Method, claim: Claim, caller: Caller) -> Any:
        """Entries, or nothing yet: an empty answer is what a posted verb waits on."""
        if isinstance(claim, Turn):  # its reports were taken before
            return self._office.run(method, msgspec.structs.replace(claim, reports=[], wait_s=0.0), caller).entries
        wishes = Claim(**{name: getattr(claim, name) for name in Claim.__struct_fields__})
        return self._office.run(METHODS["kernel.sched.claim"], wishes, caller).entries

    def _nudge(self, job: Job) -> None:
        """Let a worker's waiting claim come back; one that has not begun to wait yet will not."""
        worker = job.params.worker_id, job.params.incarnation
        found = [each for each in self.jobs if each.is_parked and _worker_of(each.params) == worker]
        for each in found:
            assert each.errand is not None  # noqa: S101  # it is parked
            self._store.withdraw(each.errand)
        if not found:
            if len(self._nudged) >= NUDGES_MAX:
                self._nudged.pop(next(iter(self._nudged)))
            self._nudged[worker] = None
        job.answer(Done())

    def _handed_out(self, job: Job) -> None:
        errand = job.errand
        assert errand is not None  # noqa: S101  # it was posted
        if errand.error is not None:
            self._fail(job, errand.error)
            return
        self._answer_with(job, errand.answer or [])

    def _answer_with(self, job: Job, entries: list[Any]) -> None:
        turns_over = isinstance(job.params, CompleteAndClaim | Turn)
        earlier = [] if job.earlier is None else job.earlier.answers
        job.answer(TurnedOver(earlier, entries) if turns_over else Claimed(entries))

    def withdraw(self, job: Job) -> None:
        """Its connection is gone: let it not happen if it need not."""
        job.gone = True
        job.stop_waiting()
        if job.errand is not None and job.errand.parks:
            self._store.withdraw(job.errand)
        elif job.errand is None and job.method.manner == "wait":
            job.answer(None)

    def _ended(self, job: Job, result: Any) -> None:
        """A job was answered; if entries were handed to somebody who is gone, others may have them."""
        self.jobs.discard(job)
        if not job.gone:
            return
        for entry in getattr(result, "entries", None) or ():
            if job.method.manner == "claim" and entry.token is not None:
                verb = partial(self._office.kernel.queue.put_back, entry.sched_id, token=entry.token)
                self._enlist(self._store.errand(verb, _nobody))

    # --- reads, and what takes several commits ---------------------------------------------------

    def _hand_to(self, pool: ThreadPoolExecutor, job: Job) -> None:
        future = pool.submit(self._office.run, job.method, job.params, job.caller)
        future.add_done_callback(partial(self._tell, self._looked, job))

    def _looked(self, job: Job, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self._fail(job, error)
        else:
            job.answer(future.result())

    # --- into the loop ---------------------------------------------------------------------------

    def _tell(self, call: Callable[..., None], job: Job | None, *more: Any) -> None:
        """From any thread: have this called in the loop, which is woken once for all that is there by then."""
        self._incoming.append((call, (job, *more)))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:  # the loop has ended: nobody is left to hear it
                _log.debug("an answer came after the loop had ended")

    def _take_in(self) -> None:
        self._store.settled()  # so that all answers of a commit are taken in together
        self.wakes += 1
        self._woken = False
        while self._incoming:
            call, args = self._incoming.popleft()
            call(*args)

    # --- the end ---------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """Give everybody who waits the answer they have, which is none."""
        for job in list(self.jobs):
            if job.timer is not None:
                job.timer.cancel()
                job.timer = None
                if job.errand is not None and job.errand.parks:
                    self._store.withdraw(job.errand)
                elif job.method.manner == "wait":
                    self._waiting.look(job, last=True)

    def close(self) -> None:
        """Answer no more."""
        self._end_listening()
        self._readers.shutdown()
        self._steppers.shutdown()


def _says_something(params: CompleteAndClaim | Turn) -> bool:
    """Whether runs have ended, which is to be durable before the waiting begins."""
    return bool(params.reports if isinstance(params, Turn) else params.completions)


def _worker_of(params: Any) -> tuple[str, str]:
    return params.worker_id, params.incarnation


def _weight(params: Any) -> int:
    """How many entries a call may touch."""
    many = (
        getattr(params, "specs", None) or getattr(params, "completions", None) or getattr(params, "reports", None) or ()
    )
    return max(len(many), getattr(params, "max_n", 1))


def _nobody() -> None:
    """Nobody waits for this."""
